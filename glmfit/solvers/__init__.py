"""Algorithms behind one interface: ``init_state``, ``update``, ``run``."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._lazy import lazy_names as _lazy_names

if _TYPE_CHECKING:
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
    from ._result import LoopOptions, Solution
    from ._schedule import Schedule
    from ._scheduled import SampledSolution
    from ._tuning import TunedStep, tune_step, untuned_step
    from .base import OptStep, Solver
    from .bound_majorization import BoundMajorization
    from .class_sampling import NCE, OVE, SGD, ImplicitSGD, ImportanceSampling, SoftmaxProx, UMax
    from .incremental_majorization import IncrementalMajorization
    from .lbfgs import LBFGS
    from .newton import Newton
    from .newton_cg import NewtonCG
    from .path import SharedNewton
    from .saga import SAGA
    from .softmax_sgd import SoftmaxSGD
    from .stochastic_majorization import StochasticMajorization

__all__ = [
    "LBFGS",
    "NCE",
    "OVE",
    "SAGA",
    "SGD",
    "BoundMajorization",
    "GaussNewton",
    "ImplicitSGD",
    "ImportanceSampling",
    "IncrementalMajorization",
    "LeftBatches",
    "LoopOptions",
    "Newton",
    "NewtonCG",
    "OptStep",
    "SampledPairs",
    "SampledSolution",
    "Schedule",
    "SharedNewton",
    "SoftmaxProx",
    "SoftmaxSGD",
    "Solution",
    "Solver",
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

__getattr__, __dir__ = _lazy_names(
    __name__,
    _result=("LoopOptions", "Solution"),
    _schedule=("Schedule",),
    _scheduled=("SampledSolution",),
    _tuning=("TunedStep", "tune_step", "untuned_step"),
    base=("OptStep", "Solver"),
    bound_majorization=("BoundMajorization",),
    class_sampling=("NCE", "OVE", "SGD", "ImplicitSGD", "ImportanceSampling", "SoftmaxProx", "UMax"),
    incremental_majorization=("IncrementalMajorization",),
    lbfgs=("LBFGS",),
    newton=("Newton",),
    newton_cg=("NewtonCG",),
    path=("SharedNewton",),
    saga=("SAGA",),
    softmax_sgd=("SoftmaxSGD",),
    stochastic_majorization=("StochasticMajorization",),
    **{
        ".pairs": (
            "GaussNewton",
            "LeftBatches",
            "SampledPairs",
            "StationaryOptions",
            "StationarySolution",
            "TowerAdam",
            "TowerLBFGS",
            "TwoSidedSolver",
        )
    },
)
