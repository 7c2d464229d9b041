"""Responses of all pairs of two towers: problems that are not convex, and what finds their stationary points."""

from __future__ import annotations

from .adam import TowerAdam
from .base import TwoSided
from .gauss_newton import GaussNewton
from .lbfgs import TowerLBFGS
from .left_batches import LeftBatches
from .objective import AllPairs
from .problem import AllPairsProblem
from .responses import SessionBlock, Triples
from .sampled_pairs import SampledPairs
from .stationary import StationaryOptions, StationarySolution, TwoSidedSolver
from .towers import MLPTower, TwoTowers

__all__ = [
    "AllPairs",
    "AllPairsProblem",
    "GaussNewton",
    "LeftBatches",
    "MLPTower",
    "SampledPairs",
    "SessionBlock",
    "StationaryOptions",
    "StationarySolution",
    "TowerAdam",
    "TowerLBFGS",
    "Triples",
    "TwoSided",
    "TwoSidedSolver",
    "TwoTowers",
]
