"""Algorithms behind one call, ``run``: frozen parameters that never hold data."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._lazy import names_of_rooms as _names_of_rooms

if _TYPE_CHECKING:
    from ..engine import ConjugateGradients, Newton, ProximalNewton
    from ..pairs import (
        GaussNewton, LeftBatches, SampledPairs, StationaryOptions, StationarySolution, TowerAdam, TowerLBFGS,
        TwoSidedSolver,
    )  # fmt: skip
    from ..saga import SAGA
    from ..stochastic import (
        NCE, OVE, SGD, BoundMajorization, ImplicitSGD, ImportanceSampling, IncrementalMajorization, SampledSolution,
        Schedule, SoftmaxProx, SoftmaxSGD, StochasticMajorization, TunedStep, UMax, tune_step, untuned_step,
    )  # fmt: skip
    from ._result import LoopOptions, Solution

__all__ = [
    "LoopOptions", "Solution",
    "ConjugateGradients", "ProximalNewton", "Newton", "SAGA",
    "UMax", "ImplicitSGD", "OVE", "NCE", "ImportanceSampling", "SGD", "SoftmaxProx",
    "BoundMajorization", "IncrementalMajorization", "StochasticMajorization", "SoftmaxSGD",
    "Schedule", "SampledSolution", "TunedStep", "tune_step", "untuned_step",
    "GaussNewton", "TowerLBFGS", "TowerAdam", "SampledPairs", "LeftBatches",
    "TwoSidedSolver", "StationaryOptions", "StationarySolution",
]  # fmt: skip

__getattr__, __dir__ = _names_of_rooms(__name__, __all__, ("._result", "..pairs", "..engine", "..saga", "..stochastic"))
