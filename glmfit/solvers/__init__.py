"""Algorithms behind one interface: ``init_state``, ``update``, ``run``."""

from __future__ import annotations

from ._result import LoopOptions, Solution
from ._schedule import Schedule
from ._scheduled import SampledSolution
from ._stationary import StationaryOptions, StationarySolution, TwoSidedSolver
from ._tuning import TunedStep, tune_step, untuned_step
from .base import OptStep, Solver
from .bound_majorization import BoundMajorization
from .class_sampling import NCE, OVE, SGD, ImplicitSGD, ImportanceSampling, SoftmaxProx, UMax
from .gauss_newton import GaussNewton
from .incremental_majorization import IncrementalMajorization
from .lbfgs import LBFGS
from .left_batches import LeftBatches
from .newton import Newton
from .newton_cg import NewtonCG
from .path import SharedNewton
from .saga import SAGA
from .sampled_pairs import SampledPairs
from .softmax_sgd import SoftmaxSGD
from .stochastic_majorization import StochasticMajorization
from .tower_adam import TowerAdam
from .tower_lbfgs import TowerLBFGS

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
