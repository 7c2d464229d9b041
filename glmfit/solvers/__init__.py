"""Algorithms behind one interface: ``init_state``, ``update``, ``run``."""

from __future__ import annotations

from ._result import LoopOptions, Solution
from .base import OptStep, Solver
from .lbfgs import LBFGS
from .newton import Newton
from .saga import SAGA

__all__ = ["LBFGS", "SAGA", "LoopOptions", "Newton", "OptStep", "Solution", "Solver"]
