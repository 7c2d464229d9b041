"""Softmax and log-linear problems, and their solvers by bounds or by steps that sample rows or classes."""

from .bound_majorization import BoundMajorization, IncrementalMajorization
from .class_problem import Pairs, SoftmaxProblem
from .class_steps import NCE, OVE, SGD, ImplicitSGD, ImportanceSampling, SampledSoftmax, SoftmaxProx, UMax
from .double_sum import DoubleSum, double_sum
from .label_chain import LabelChains
from .log_linear import LogLinearGap, QuadraticBound
from .outcome_lists import LogLinearProblem, outcome_probabilities
from .row_visits import SoftmaxSGD, StochasticMajorization
from .schedule import SampledSolution, Schedule, ScheduledSolver
from .step_search import TunedStep, tune_step, untuned_step

__all__ = [
    "DoubleSum", "LabelChains", "LogLinearGap", "LogLinearProblem", "Pairs", "QuadraticBound", "SoftmaxProblem",
    "double_sum", "outcome_probabilities",
]  # fmt: skip
# and solvers: glmfit.solvers
