"""Solvers that follow a schedule of epochs, with a step that shrinks at each epoch and no stopping rule."""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from ..checks import check_positive, check_real, check_whole
from ..compilation import Clock
from ..display import ProgressBar
from ..engine.problem import Params
from ..engine.result import Solution
from ..status import Status

_FIRST = 0.03  # c that is tried first


@dataclass(frozen=True)
class Schedule:
    """Number of epochs, and their steps.

    Attributes
    ----------
    epochs : int
        Passes over the rows.
    step : float
        Step size times number of rows, c, of the first epoch.
    decay : float
        Factor of c from one epoch to the next, in (0, 1].
    """

    epochs: int = 50
    step: float = 0.1
    decay: float = 0.9

    def __post_init__(self):
        check_whole("epochs", self.epochs, 0)
        check_positive("step", self.step)
        check_real("decay", self.decay, 1.0, closed=True)


@dataclass(frozen=True, kw_only=True)
class SampledSolution(Solution):
    """Outcome of a schedule: parameters, always finite, and a state to continue from.

    The status is SCHEDULE_DONE, NON_FINITE (a number overflowed: the parameters are those before) or INTERRUPTED.

    Attributes
    ----------
    steps : int
        Number of steps taken.
    schedule : Schedule
        The schedule followed.
    """

    steps: int
    schedule: Schedule


class ScheduledSolver(ABC):
    """Solver of a softmax problem: a state, a NamedTuple with a field ``epoch``, is updated epoch by epoch."""

    usual_epochs: ClassVar[int] = 50  # of a run without a schedule
    has_step: ClassVar[bool] = True  # whether the step of the schedule is used
    implicit: ClassVar[bool] = False  # whether steps are implicit: stable at any length
    batch_size: int  # visits per step

    @abstractmethod
    def init_state(self, problem, params: Params | None, *, key) -> Any:
        """Prepare the first epoch, at the parameters or at zeros."""

    @abstractmethod
    def update(self, problem, state: Any, c: float, share: float) -> Any:
        """Do one epoch at step size c / N, a share of that of the first."""

    @abstractmethod
    def user_params(self, problem, state: Any) -> Params:
        """Coefficients (feature, class) and intercepts (class,) of a state."""

    @abstractmethod
    def is_finite(self, state: Any) -> bool:
        """Whether no number overflowed."""

    def n_visits(self, problem) -> int:
        """Return the number of visits per epoch: one of every row."""
        return problem.n_rows

    @abstractmethod
    def n_steps(self, problem) -> int:
        """Return the number of steps per epoch."""

    def ridge(self, problem) -> float | np.ndarray:
        """Strength of the ridge, perhaps per column, in terms of what is visited: a row of counts may be several."""
        return problem.strength * problem.n_rows / self.n_visits(problem)

    def visit_weight(self, problem) -> float:
        """Mean weight, or count, of a visit; steps are relative to it."""
        return float(problem.totals.sum()) / self.n_visits(problem)

    def longest_step(self, problem) -> float:
        """Smallest c that is too long for any data: an explicit step on the ridge then reverses coefficients."""
        if self.implicit or not self.has_step:
            return math.inf
        return 1 / max(np.max(self.ridge(problem), initial=0.0), 1e-300)

    def known_step(self, problem) -> float | None:
        """First step of the schedule that suits any data, if there is one."""
        return None

    def first_step(self, problem) -> float:
        """Return the c that is tried first if none is known."""
        return _FIRST / self.visit_weight(problem)

    def kept(self, state: Any) -> Any:
        """Return a state that later updates do not change."""
        return state

    def where(self, problem) -> contextlib.AbstractContextManager:
        """Context in which jax puts steps where they are fastest: on its default device."""
        return contextlib.nullcontext()

    def run(
        self,
        problem: Any,
        params: Params | None = None,
        *,
        key: jax.Array,
        schedule: Schedule | None = None,
        callback: Callable | None = None,
        verbose: bool = False,
        state: Any = None,
    ) -> SampledSolution:
        """Follow the schedule.

        Parameters
        ----------
        problem : SoftmaxProblem
        params : Params, optional
            Start; default zeros.
        key : jax key
            Key of all draws: the same key gives the same answer.
        schedule : Schedule, optional
        callback : callable, optional
            Called as ``callback(epoch, seconds, params)`` after every epoch; the seconds exclude its own.
        verbose : bool
            Show a progress bar.
        state : optional
            State of an earlier run with the same problem, to continue from: its epochs count as done.
        """
        schedule = schedule or Schedule(self.usual_epochs)
        clock, status = Clock(), Status.SCHEDULE_DONE
        with self.where(problem):
            state = self.init_state(problem, params, key=key) if state is None else self.kept(state)
            kept = self.kept(state)
        bar = ProgressBar(f"fitting {problem.subject}", schedule.epochs, "epoch", verbose, state.epoch)
        try:
            while state.epoch < schedule.epochs:
                share = schedule.decay**state.epoch
                c = schedule.step * share
                if c >= self.longest_step(problem):
                    raise ValueError(
                        f"step is {c:.3g}; it must stay below {self.longest_step(problem):.3g}, where an explicit step "
                        "on the ridge alone reverses coefficients. Use a shorter step, or ImplicitSGD, which accepts "
                        "any."
                    )
                with self.where(problem):
                    state = self.update(problem, state, c, share)
                    if not self.is_finite(state):
                        status, state = Status.NON_FINITE, kept
                        break
                    kept = self.kept(state)
                bar.advance()
                if callback is not None:
                    with clock.paused():
                        callback(state.epoch, clock.seconds, self.user_params(problem, state))
        except KeyboardInterrupt:
            status, state = Status.INTERRUPTED, kept
        finally:
            bar.close()
        params = self.user_params(problem, state)
        compiling = clock.compiling
        return SampledSolution(
            params=params, status=status, epochs=state.epoch, steps=state.epoch * self.n_steps(problem),
            seconds_run=clock.seconds - compiling, seconds_compile=compiling, solver_name=type(self).__name__,
            state=state, interrupted=status == Status.INTERRUPTED, schedule=schedule,
        )  # fmt: skip
