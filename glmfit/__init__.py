"""Certified GLMs for populations of neurons: Poisson counts, softmax and multinomial models of classes."""

from ._collector import collector_paused as _collector_paused

with _collector_paused():
    from ._status import Status
    from .estimators import ClassReport, FitReport, MultinomialGLM, PopulationGLM, PopulationGLMCV, SoftmaxGLM
    from .spikes import spike_identities

__all__ = [
    "ClassReport",
    "FitReport",
    "MultinomialGLM",
    "PopulationGLM",
    "PopulationGLMCV",
    "SoftmaxGLM",
    "Status",
    "__version__",
    "spike_identities",
]

__version__ = "0.1.0"
