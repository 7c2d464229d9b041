"""Solvers, all called by ``run``: frozen parameters that never hold data."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .lazy import names_of_rooms as _names_of_rooms

if _TYPE_CHECKING:
    from .engine import ConjugateGradients, LeastSquares, LoopOptions, Newton, ProximalNewton, Solution
    from .pairs import (
        GaussNewton, LeftBatches, SampledPairs, StationaryOptions, StationarySolution, TowerAdam, TowerLBFGS,
        TwoSidedSolver,
    )  # fmt: skip
    from .saga import SAGA
    from .stochastic import (
        NCE, OVE, SGD, BoundMajorization, ImplicitSGD, ImportanceSampling, IncrementalMajorization, SampledSoftmax,
        SampledSolution, Schedule, SoftmaxProx, SoftmaxSGD, StochasticMajorization, TunedStep, UMax, tune_step,
        untuned_step,
    )  # fmt: skip

__all__ = [
    "NCE", "OVE", "SAGA", "SGD", "BoundMajorization", "ConjugateGradients", "GaussNewton", "ImplicitSGD",
    "ImportanceSampling", "IncrementalMajorization", "LeastSquares", "LeftBatches", "LoopOptions", "Newton",
    "ProximalNewton", "SampledPairs", "SampledSoftmax", "SampledSolution", "Schedule", "SoftmaxProx", "SoftmaxSGD",
    "Solution", "StationaryOptions", "StationarySolution", "StochasticMajorization", "TowerAdam", "TowerLBFGS",
    "TunedStep", "TwoSidedSolver", "UMax", "tune_step", "untuned_step",
]  # fmt: skip

__getattr__, __dir__ = _names_of_rooms(__name__, __all__, ("..pairs", "..engine", "..saga", "..stochastic"), instead={
    "LBFGS": "use `ConjugateGradients`, for a `ResponseModel` `TowerLBFGS`",
    "NewtonCG": "use `ConjugateGradients`",
    "OptStep": "`run` of a solver returns a `Solution`",
    "SharedNewton": "use `ConjugateGradients`",
    "Solver": "every solver has `run`, which returns a `Solution`",
})  # fmt: skip
