"""Algorithms behind one interface: ``init_state``, ``update``, ``run``."""

from __future__ import annotations

from ._result import LoopOptions, Solution
from .base import OptStep, Solver
from .class_sampling import NCE, OVE, SGD, ImplicitSGD, ImportanceSampling, SampledSolution, Schedule, SoftmaxProx, UMax
from .lbfgs import LBFGS
from .newton import Newton
from .saga import SAGA

__all__ = [
    "LBFGS",
    "NCE",
    "OVE",
    "SAGA",
    "SGD",
    "ImplicitSGD",
    "ImportanceSampling",
    "LoopOptions",
    "Newton",
    "OptStep",
    "SampledSolution",
    "Schedule",
    "SoftmaxProx",
    "Solution",
    "Solver",
    "UMax",
]
