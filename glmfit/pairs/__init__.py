"""Responses of all pairs of two towers: problems that are not convex, and what finds their stationary points."""

from __future__ import annotations

from .descent import TowerAdam, TowerLBFGS
from .gauss_newton import GaussNewton
from .objective import AllPairs
from .problem import AllPairsProblem
from .responses import SessionBlock, Triples
from .sampling import LeftBatches, SampledPairs
from .stationary import StationaryOptions, StationarySolution, TwoSidedSolver
from .towers import Tower, TwoTowers

__all__ = [
    "AllPairs",
    "AllPairsProblem",
    "GaussNewton",
    "LeftBatches",
    "SampledPairs",
    "SessionBlock",
    "StationaryOptions",
    "StationarySolution",
    "Tower",
    "TowerAdam",
    "TowerLBFGS",
    "Triples",
    "TwoSidedSolver",
    "TwoTowers",
]
