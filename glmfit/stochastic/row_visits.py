"""Solvers of softmax models that visit rows, a few at a time and all classes at once, on the host in float64."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._checks import check_whole
from ..problems.base import Params
from ..solvers._seed import seed_of
from .base import ScheduledSolver


class VisitState(NamedTuple):
    """Everything the next visit depends on.

    Attributes
    ----------
    theta : numpy.ndarray
        Parameters in the problem's coordinates, (parameter,).
    memory : object
        What else the solver keeps; the next step may overwrite it.
    epoch, steps : int
        Done.
    seed : int
        Of the orders of the rows.
    """

    theta: np.ndarray
    memory: Any
    epoch: int
    steps: int
    seed: int


@dataclass(frozen=True)
class RowVisitor(ScheduledSolver):
    """Common part of the solvers that visit rows.

    Attributes
    ----------
    batch_size : int
        Rows per step; what is left of an epoch is a smaller batch.
    """

    batch_size: int = 1

    def __post_init__(self):
        check_whole("batch_size", self.batch_size, 1)

    @abstractmethod
    def _begin_epoch(self, rows, memory) -> Any:
        """Return the memory for an epoch, sharing nothing that a step will overwrite."""

    @abstractmethod
    def _step(self, rows, seen, state: VisitState, c: float) -> tuple[np.ndarray, Any]:
        """Return new parameters and memory after a batch."""

    def init_state(self, problem, params: Params | None, *, key) -> VisitState:
        """Begin at the parameters, or at zeros."""
        rows = problem.contrast_rows
        theta = np.zeros(rows.n_parameters) if params is None else rows.to_vector(params)
        return VisitState(theta, None, 0, 0, seed_of(key))

    def visits(self, problem, state: VisitState, c: float = 1.0) -> Iterator[VisitState]:
        """Visit every row once, in a random order: an epoch, one step at a time.

        Parameters
        ----------
        problem : SoftmaxProblem
            Data and ridge.
        state : VisitState
            Left as it is.
        c : float
            Step size times rows, where it is used.

        Yields
        ------
        VisitState
            After every step, for those who want to look on; the epoch ends early if numbers overflow.
        """
        rows = problem.contrast_rows
        state = state._replace(memory=self._begin_epoch(rows, state.memory))
        order = np.random.default_rng([state.seed, state.epoch]).permutation(problem.n_rows)
        for start in range(0, len(order), self.batch_size):
            with np.errstate(over="ignore", invalid="ignore"):
                seen = rows.visit(state.theta, order[start : start + self.batch_size])
                overflowed = not np.isfinite(seen.gradient).all()
                theta, memory = (seen.gradient, state.memory) if overflowed else self._step(rows, seen, state, c)
            state = state._replace(theta=theta, memory=memory, steps=state.steps + 1)
            yield state
            if overflowed:
                return

    def update(self, problem, state: VisitState, c: float) -> VisitState:
        """Do one epoch."""
        with problem.contrast_rows.one_thread():
            last = deque(self.visits(problem, state, c), maxlen=1)[0]
        return last._replace(epoch=state.epoch + 1)

    def user_params(self, problem, state: VisitState) -> Params:
        """Coefficients (feature, class) and intercepts (class,) of a state."""
        return problem.contrast_rows.to_params(state.theta)

    def is_finite(self, state: VisitState) -> bool:
        """Whether no number overflowed."""
        return bool(np.isfinite(state.theta).all())

    def n_visits(self, problem) -> int:
        """Rows."""
        return problem.n_rows

    def n_steps(self, problem) -> int:
        """Batches of an epoch, the last perhaps a smaller one."""
        return -(-problem.n_rows // self.batch_size)
