"""Softmax problems and what solves them in steps that draw rows or classes."""

from .bound_majorization import BoundMajorization, IncrementalMajorization
from .class_problem import Pairs, SoftmaxProblem
from .class_steps import NCE, OVE, SGD, ImplicitSGD, ImportanceSampling, SoftmaxProx, UMax
from .double_sum import DoubleSum, double_sum
from .row_visits import SoftmaxSGD, StochasticMajorization
from .schedule import SampledSolution, Schedule, ScheduledSolver
from .step_search import TunedStep, tune_step, untuned_step

__all__ = ["DoubleSum", "Pairs", "SoftmaxProblem", "double_sum"]  # and solvers: glmfit.solvers
