"""What a scientist touches."""

from __future__ import annotations

from ._auto import choose_class_solver, choose_solver
from ._class_report import ClassReport
from ._report import FitReport
from ._response_report import ResponseReport
from .multinomial_glm import MultinomialGLM
from .population_glm import PopulationGLM
from .population_glm_cv import PopulationGLMCV
from .response_model import ResponseModel
from .softmax_glm import SoftmaxGLM

__all__ = [
    "ClassReport",
    "FitReport",
    "MultinomialGLM",
    "PopulationGLM",
    "PopulationGLMCV",
    "ResponseModel",
    "ResponseReport",
    "SoftmaxGLM",
    "choose_class_solver",
    "choose_solver",
]
