"""Responses of all pairs of two towers: problems that are not convex, and what finds their stationary points."""

from .descent import GaussNewton, TowerLBFGS
from .objective import AllPairs
from .problem import AllPairsProblem
from .responses import SessionBlock, Triples
from .sampling import LeftBatches, SampledPairs, TowerAdam
from .stationary import StationaryOptions, StationarySolution, TwoSidedSolver
from .towers import Tower, TwoTowers

__all__ = [
    "AllPairs",
    "AllPairsProblem",
    "SessionBlock",
    "Triples",
    "TwoTowers",
]  # and solvers: glmfit.solvers
