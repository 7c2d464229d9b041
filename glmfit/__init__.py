"""Certified GLMs for populations of neurons: Poisson counts, softmax and multinomial models of classes."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from ._lazy import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from ._status import Status
    from .estimators import (
        ClassReport,
        FitReport,
        MultinomialGLM,
        PopulationGLM,
        PopulationGLMCV,
        ResponseModel,
        ResponseReport,
        SoftmaxGLM,
    )
    from .spikes import spike_identities

__all__ = [
    "ClassReport",
    "FitReport",
    "MultinomialGLM",
    "PopulationGLM",
    "PopulationGLMCV",
    "ResponseModel",
    "ResponseReport",
    "SoftmaxGLM",
    "Status",
    "__version__",
    "spike_identities",
]

__version__ = "0.1.0"

_MODULES = ("batch", "bounds", "demo", "design", "estimators", "inference", "observations", "penalties", "plotting")
_MODULES += ("plugins", "problems", "solvers", "spikes")

__getattr__, __dir__ = _lazy_names(
    __name__,
    _MODULES,
    _status=("Status",),
    estimators=(
        "ClassReport",
        "FitReport",
        "MultinomialGLM",
        "PopulationGLM",
        "PopulationGLMCV",
        "ResponseModel",
        "ResponseReport",
        "SoftmaxGLM",
    ),
    spikes=("spike_identities",),
)
