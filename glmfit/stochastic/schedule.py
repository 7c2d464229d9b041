"""Solvers that follow a schedule, of epochs and a step that shrinks from one to the next, with no rule to stop.

The first step may be chosen by the loss of held-out rows.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from ..checks import check_positive, check_real, check_whole
from ..compilation import Clock
from ..display import ProgressBar
from ..engine.problem import Params
from ..engine.result import Solution
from ..numerics import seed_of
from ..status import Status

STEPS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1000.0)
_MOST_STEPS, _MOST_EPOCHS, _LEAST_EPOCHS = 200_000, 20, 3
_ROWS_PER_CLASS, _LEAST_ROWS = 10, 20_000
_MOST_SCORES = 40_000_000
_TOO_FEW = 4  # rows, below which none can be left out
_SHORTER = 6  # times a tenth of the shortest step is tried while that is the best


@dataclass(frozen=True)
class Schedule:
    """How long and with what steps to go.

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
    step: float = 10.0
    decay: float = 0.9

    def __post_init__(self):
        check_whole("epochs", self.epochs, 0)
        check_positive("step", self.step)
        check_real("decay", self.decay, 1.0, closed=True)


@dataclass(frozen=True, kw_only=True)
class SampledSolution(Solution):
    """Outcome of a schedule: parameters in the solver's precision and always finite, and a state to go on from.

    The status is SCHEDULE_DONE, NON_FINITE (a number overflowed: the parameters are those before) or INTERRUPTED.

    Attributes
    ----------
    steps : int
        Done.
    """

    steps: int


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
    def update(self, problem, state: Any, c: float) -> Any:
        """Do one epoch at step size c / N."""

    @abstractmethod
    def user_params(self, problem, state: Any) -> Params:
        """Coefficients (feature, class) and intercepts (class,) of a state."""

    @abstractmethod
    def is_finite(self, state: Any) -> bool:
        """Whether no number overflowed."""

    def n_visits(self, problem) -> int:
        """How many visits an epoch has: one of every row."""
        return problem.n_rows

    @abstractmethod
    def n_steps(self, problem) -> int:
        """How many steps an epoch has."""

    def strength(self, problem) -> float:
        """Strength of the ridge in terms of what is visited: a row of counts may be several visits."""
        return problem.strength * problem.n_rows / self.n_visits(problem)

    def longest_step(self, problem) -> float:
        """Least c that is too long whatever the data: where an explicit step on the ridge turns coefficients around."""
        return 1 / max(self.strength(problem), 1e-300) if self.has_step and not self.implicit else math.inf

    def kept(self, state: Any) -> Any:
        """Return a state that later updates leave as it is."""
        return state

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
            Where to start; default zeros.
        key : jax key
            Of all draws: the same key gives the same answer.
        schedule : Schedule, optional
        callback : callable, optional
            Called as ``callback(epoch, seconds, params)`` after every epoch, the seconds without its own.
        verbose : bool
            Show a progress bar.
        state : optional
            To go on from, of an earlier run with the same problem: its epochs count as done.
        """
        schedule = schedule or Schedule(self.usual_epochs)
        clock, status = Clock(), Status.SCHEDULE_DONE
        state = self.init_state(problem, params, key=key) if state is None else self.kept(state)
        kept = self.kept(state)
        bar = ProgressBar(f"fitting {problem.subject}", schedule.epochs, "epoch", verbose, state.epoch)
        try:
            while state.epoch < schedule.epochs:
                c = schedule.step * schedule.decay**state.epoch
                if c >= self.longest_step(problem):
                    raise ValueError(
                        f"step is {c:.3g}; times the ridge strength {self.strength(problem):.3g} it must stay below 1 "
                        "for an explicit step. Use a shorter step, or ImplicitSGD, which takes any."
                    )
                state = self.update(problem, state, c)
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
            state=state, interrupted=status == Status.INTERRUPTED,
        )  # fmt: skip


class TunedStep(NamedTuple):
    """Outcome of the trials.

    Attributes
    ----------
    step : float
        The best one, c.
    steps : tuple of float
        Tried; the shortest are tenths of it while that was the best, or none was better than class frequencies.
    loss : numpy.ndarray
        Mean loss of the held-out rows, for every step; infinite where numbers overflowed.
    seconds : float
        Wall time of all trials.
    """

    step: float
    steps: tuple
    loss: np.ndarray
    seconds: float


def tune_step(
    solver: ScheduledSolver,
    problem: Any,
    *,
    key: jax.Array,
    schedule: Schedule | None = None,
    steps: Sequence[float] = STEPS,
    fraction: float = 0.1,
    from_frequencies: bool = True,
    epochs: int | None = None,
) -> TunedStep:
    """Try step sizes on some of the rows and take the one whose model predicts other rows best.

    Parameters
    ----------
    solver : ScheduledSolver
        Whose steps they are.
    problem : SoftmaxProblem
        With fewer than 4 rows nothing is tried, and the answer is `untuned_step`.
    key : jax key
        Of the choice of rows and of all draws.
    schedule : Schedule, optional
        To be followed with the step chosen. Trials are shorter, and their steps shrink by as much in all.
    steps : sequence of float
        Step sizes times number of rows, c, to try.
    fraction : float
        Share of the rows tried that is left out for judging.
    from_frequencies : bool
        Whether to start from the model of class frequencies, or from zeros.
    epochs : int, optional
        Of a trial; 3 to 20, fewer for more rows, by default.

    Returns
    -------
    TunedStep

    Raises
    ------
    ValueError
        If the solver has no step to choose.

    Notes
    -----
    Up to 10 rows per class, and 20 000 at least, are tried: as c is step size times rows, what is best on some rows is
    about right for all. The loss has no ridge in it.
    """
    if not solver.has_step:
        raise ValueError(f"{type(solver).__name__} has no step to choose; run it without one.")
    clock = time.perf_counter()
    if problem.n_rows < _TOO_FEW:
        return TunedStep(untuned_step(solver, problem), (), np.empty(0), 0.0)
    rng = np.random.default_rng(seed_of(key))
    chosen = rng.permutation(problem.n_rows)[: max(_ROWS_PER_CLASS * problem.n_classes, _LEAST_ROWS)]
    most = max(_MOST_SCORES // problem.n_classes, 1)
    n_held = min(max(1, int(fraction * len(chosen))), most)
    held, tried = problem.subset(chosen[:n_held]), problem.subset(chosen[n_held:])
    epochs = epochs or int(np.clip(_MOST_STEPS // tried.n_rows, _LEAST_EPOCHS, _MOST_EPOCHS))
    schedule = schedule or Schedule()
    decay = schedule.decay ** (schedule.epochs / epochs)
    start = tried.null_params() if from_frequencies else None

    def trial(step: float) -> float:
        if step >= solver.longest_step(tried):
            return np.inf
        solution = solver.run(tried, start, key=key, schedule=Schedule(epochs, step, decay))
        value = np.inf if solution.status.is_failure else held.loss(solution.params)
        return np.inf if np.isnan(value) else value

    steps = sorted(map(float, steps))
    floor = held.loss(tried.null_params())
    loss = [trial(step) for step in steps]
    for _ in range(_SHORTER):
        if int(np.argmin(loss)) > 0 and min(loss) < floor:
            break
        steps.insert(0, steps[0] / 10)
        loss.insert(0, trial(steps[0]))
    return TunedStep(steps[int(np.argmin(loss))], tuple(steps), np.array(loss), time.perf_counter() - clock)


def untuned_step(solver: ScheduledSolver, problem: Any) -> float:
    """Return a step that does no harm where there are too few rows to try any.

    Parameters
    ----------
    solver : ScheduledSolver
        Whose step it is.
    problem : SoftmaxProblem
        Whose ridge limits explicit steps.

    Returns
    -------
    float
        Step size times rows, c: 1 for implicit steps, at most 0.1 for explicit ones.
    """
    longest = solver.longest_step(problem)
    return 1.0 if longest == np.inf else min(0.1, longest / 2)
