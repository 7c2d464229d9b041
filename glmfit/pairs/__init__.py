"""Two-tower models of the responses of all pairs: nonconvex problems and solvers that find stationary points."""

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
