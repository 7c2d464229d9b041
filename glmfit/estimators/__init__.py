"""What a scientist touches."""

from __future__ import annotations

from ._auto import choose_solver
from ._class_auto import choose_class_solver
from ._class_report import ClassReport
from ._report import FitReport
from .multinomial_glm import MultinomialGLM
from .population_glm import PopulationGLM
from .population_glm_cv import PopulationGLMCV
from .softmax_glm import SoftmaxGLM

__all__ = [
    "ClassReport",
    "FitReport",
    "MultinomialGLM",
    "PopulationGLM",
    "PopulationGLMCV",
    "SoftmaxGLM",
    "choose_class_solver",
    "choose_solver",
]
