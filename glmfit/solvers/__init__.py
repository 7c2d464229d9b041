"""Algorithms behind one call, ``run``: frozen parameters that never hold data."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._lazy import names_of_rooms as _names_of_rooms

if _TYPE_CHECKING:
    from ..engine import ConjugateGradients, Newton, ProximalNewton
    from ..pairs import (
        GaussNewton,
        LeftBatches,
        SampledPairs,
        StationaryOptions,
        StationarySolution,
        TowerAdam,
        TowerLBFGS,
        TwoSidedSolver,
    )
    from ..saga import SAGA
    from ..stochastic import (
        NCE,
        OVE,
        SGD,
        BoundMajorization,
        ImplicitSGD,
        ImportanceSampling,
        IncrementalMajorization,
        SampledSolution,
        Schedule,
        SoftmaxProx,
        SoftmaxSGD,
        StochasticMajorization,
        TunedStep,
        UMax,
        tune_step,
        untuned_step,
    )
    from ._result import LoopOptions, Solution

__all__ = [
    "NCE",
    "OVE",
    "SAGA",
    "SGD",
    "BoundMajorization",
    "ConjugateGradients",
    "GaussNewton",
    "ImplicitSGD",
    "ImportanceSampling",
    "IncrementalMajorization",
    "LeftBatches",
    "LoopOptions",
    "Newton",
    "ProximalNewton",
    "SampledPairs",
    "SampledSolution",
    "Schedule",
    "SoftmaxProx",
    "SoftmaxSGD",
    "Solution",
    "StationaryOptions",
    "StationarySolution",
    "StochasticMajorization",
    "TowerAdam",
    "TowerLBFGS",
    "TunedStep",
    "TwoSidedSolver",
    "UMax",
    "tune_step",
    "untuned_step",
]

__getattr__, __dir__ = _names_of_rooms(__name__, __all__, ("._result", "..pairs", "..engine", "..saga", "..stochastic"))
