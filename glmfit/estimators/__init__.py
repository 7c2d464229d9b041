"""Estimators, and the reports of their fits."""

from .class_cv.models import MultinomialGLMCV, SoftmaxGLMCV
from .gam import PopulationGAM, SmoothReport, TermCurve
from .model_reports import ClassReport, ResponseReport
from .multinomial_glm import MultinomialGLM
from .parameters import choose_class_solver, choose_solver
from .paths import RegularizationPath
from .population_glm import PopulationGLM
from .population_glm_cv import PopulationGLMCV
from .report import FitReport
from .response_model import ResponseModel
from .softmax_glm import SoftmaxGLM

__all__ = [
    "PopulationGLM", "PopulationGLMCV", "PopulationGAM", "SoftmaxGLM", "SoftmaxGLMCV", "MultinomialGLM",
    "MultinomialGLMCV", "ResponseModel",
    "FitReport", "SmoothReport", "ClassReport", "ResponseReport", "TermCurve", "RegularizationPath",
    "choose_solver", "choose_class_solver",
]  # fmt: skip
