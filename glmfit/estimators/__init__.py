"""What a scientist touches."""

from __future__ import annotations

from ._auto import choose_solver
from ._report import FitReport
from .population_glm import PopulationGLM

__all__ = ["FitReport", "PopulationGLM", "choose_solver"]
