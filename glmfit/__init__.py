"""Certified Poisson GLMs for populations of neurons."""

from ._status import Status
from .estimators import FitReport, PopulationGLM

__all__ = ["FitReport", "PopulationGLM", "Status", "__version__"]

__version__ = "0.1.0"
