"""Engine of every convex fit: rows, independent fits, two products; steps that use all rows."""

from .population import FoldedProblem, PopulationProblem
from .problem import Evaluation, Params, Problem
from .result import LoopOptions, Solution
from .solvers import ConjugateGradients, LeastSquares, Newton, ProximalNewton

__all__ = [
    "Evaluation",
    "FoldedProblem",
    "Params",
    "PopulationProblem",
    "Problem",
]  # and solvers: glmfit.solvers
