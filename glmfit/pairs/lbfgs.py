"""L-BFGS on all parameters of a two-tower model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from .._checks import check_whole
from . import lbfgs_steps as lbfgs
from .base import TwoSided
from .stationary import TwoSidedSolver, magnitude


class TowerLBFGSState(NamedTuple):
    """Everything the next epoch depends on."""

    epoch: int
    theta: Any
    objective: float
    gradient_norm: float
    magnitude: float
    evaluations: int
    products: int
    fresh: bool
    trials: int
    point: lbfgs.LbfgsPoint


@dataclass(frozen=True)
class TowerLBFGS(TwoSidedSolver):
    r"""L-BFGS (optax) on all parameters of both towers at once: the default for linear towers.

    Parameters
    ----------
    history_size : int
        Pairs of vectors remembered; each costs 4 flops per parameter in every iteration.
    max_line_search : int
        Evaluations per step, at most.

    Notes
    -----
    Guarantee: the objective never rises by more than ten times the rounding of its terms; every step meets the strong
    Wolfe conditions, or the approximate ones of Hager and Zhang where rounding hides the decrease. Deterministic; no
    learning rate.

    An epoch is one iteration: one pass for the objective and its gradient, rarely two, and ``4 history_size`` times as
    many flops as there are parameters. Memory: ``2 history_size`` times the parameters.

    With perceptrons its first long steps can end among large embeddings that nearly cancel, where single precision has
    nothing left to go by: there `TowerAdam` is the default.

    References
    ----------
    Liu and Nocedal (1989), On the limited memory BFGS method for large scale optimization; Hager and Zhang (2006),
    Algorithm 851.
    """

    usual_epochs: ClassVar[int] = 2000
    patience: ClassVar[int] = 60

    history_size: int = 8
    max_line_search: int = 20

    def __post_init__(self):
        check_whole("history_size", self.history_size, 1)
        check_whole("max_line_search", self.max_line_search, 1)

    def init_state(self, problem: TwoSided, theta: Any, *, key=None) -> TowerLBFGSState:
        """Evaluate the start."""
        point = lbfgs.start(problem.data, theta, self.history_size)
        size = magnitude(problem.data, theta)
        return TowerLBFGSState(0, theta, float(point.value), float(point.norm), float(size), 1, 0, True, 1, point)

    def update(self, problem: TwoSided, state: TowerLBFGSState) -> TowerLBFGSState:
        """Take one step."""
        return lbfgs.advance(problem.data, state, self.history_size, self.max_line_search)
