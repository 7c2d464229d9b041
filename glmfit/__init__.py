"""Certified GLMs for populations of neurons: Poisson counts, softmax and multinomial models of classes."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .lazy import names_of_rooms as _names_of_rooms

if _TYPE_CHECKING:
    from .status import Status
    from .estimators import (
        ClassReport, FitReport, MultinomialGLM, MultinomialGLMCV, PopulationGAM, PopulationGLM, PopulationGLMCV,
        ResponseModel, ResponseReport, SmoothReport, SoftmaxGLM, SoftmaxGLMCV,
    )  # fmt: skip
    from .data.times import spike_identities

__all__ = [
    "PopulationGLM", "PopulationGLMCV", "PopulationGAM", "SoftmaxGLM", "SoftmaxGLMCV", "MultinomialGLM",
    "MultinomialGLMCV", "ResponseModel",
    "FitReport", "SmoothReport", "ClassReport", "ResponseReport", "Status",
    "spike_identities", "__version__",
]  # fmt: skip

__version__ = "0.2.0"

_MODULES = (
    "batch", "bounds", "demo", "design", "engine", "estimators", "inference", "observations", "pairs", "penalties",
    "plotting", "plugins", "problems", "solvers", "stochastic",
)  # fmt: skip

__getattr__, __dir__ = _names_of_rooms(__name__, __all__, (".status", ".data.times", ".estimators"), _MODULES)
