"""Search for the first step of a schedule: a few short trials, each a step three times as long or as short."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..checks import check_choice
from ..numerics import seed_of
from .schedule import Schedule, ScheduledSolver

JUDGES = "objective", "held-out"
FACTOR = 10**0.5
_MOST_TRIALS, _MOST_LONGER = 12, 6
_MOST_STEPS, _MOST_EPOCHS, _LEAST_EPOCHS = 50_000, 8, 3
_ROWS_PER_CLASS, _LEAST_ROWS = 10, 20_000
_MOST_SCORES = 40_000_000
_TOO_FEW = 4  # rows, below which none can be held out
_HELD_OUT = 0.1


class TunedStep(NamedTuple):
    """Outcome of the trials.

    Attributes
    ----------
    step : float
        The best step, c.
    steps : tuple of float
        Steps tried, increasing.
    loss : numpy.ndarray
        Final value of each step's trial, by the judge; infinite if numbers overflowed.
    seconds : float
        Wall time of all trials.
    """

    step: float
    steps: tuple
    loss: np.ndarray
    seconds: float


class _Trials:
    """Short runs on some rows, each from class frequencies and with its own first step."""

    def __init__(self, solver, problem, key, schedule, judge, epochs):
        rng = np.random.default_rng(seed_of(key))
        order = rng.permutation(problem.n_rows)
        chosen = order[: max(_ROWS_PER_CLASS * problem.n_classes, _LEAST_ROWS)]
        most = max(_MOST_SCORES // problem.n_classes, 1)
        self.solver, self.key = solver, key
        if judge == "objective":  # over all rows of a fit, or as many as are quickly evaluated
            judging = order[-min(most, problem.n_rows) :]
        else:
            n = min(max(1, int(_HELD_OUT * len(chosen))), most)
            judging, chosen = chosen[:n], chosen[n:]
        self.tried = problem if len(chosen) == problem.n_rows else problem.subset(chosen)
        judging = problem.subset(judging)
        self._value = judging.objective if judge == "objective" else judging.loss
        usual = int(np.clip(_MOST_STEPS // self.tried.n_rows, _LEAST_EPOCHS, _MOST_EPOCHS))
        self.epochs = epochs or min(usual, max(schedule.epochs, 1))
        self.decay = schedule.decay ** (schedule.epochs / self.epochs)
        self.start, self.found = self.tried.null_params(), {}
        self.floor = self._value(self.start)

    def loss(self, step: float) -> float:
        """Judge a step; each is tried once."""
        if step not in self.found:
            value = np.inf
            if step < self.solver.longest_step(self.tried):
                schedule = Schedule(self.epochs, step, self.decay)
                run = self.solver.run(self.tried, self.start, key=self.key, schedule=schedule)
                value = np.inf if run.status.is_failure else self._value(run.params)
            self.found[step] = np.inf if np.isnan(value) else value
        return self.found[step]

    def shorten(self, step: float) -> float:
        """Try shorter steps while they are better, or none is better than class frequencies."""
        while len(self.found) < _MOST_TRIALS:
            shorter = times(step, 1 / FACTOR if self.loss(step) < np.inf else 0.1)
            if not self.loss(shorter) < self.loss(step) and min(self.found.values()) < self.floor:
                break
            step = shorter
        return min(self.found, key=self.found.get)

    def lengthen(self, step: float) -> float:
        """Try longer steps while they are better."""
        for _ in range(_MOST_LONGER):
            longer = times(step, FACTOR)
            if not self.loss(longer) < self.loss(step):
                break
            step = longer
        return step


def times(step: float, factor: float) -> float:
    """Multiply a step, and keep three significant digits."""
    return float(f"{step * factor:.3g}")


def tune_step(
    solver: ScheduledSolver,
    problem: Any,
    *,
    key: jax.Array,
    schedule: Schedule | None = None,
    steps: Sequence[float] | None = None,
    judge: str = "objective",
    epochs: int | None = None,
) -> TunedStep:
    """Try step sizes on some of the rows, and return the one with the best model.

    Parameters
    ----------
    solver : ScheduledSolver
        Solver to tune.
    problem : SoftmaxProblem
        With fewer than 4 rows nothing is tried, and the answer is `untuned_step`.
    key : jax key
        Key of the choice of rows and of all draws.
    schedule : Schedule, optional
        To be followed with the step chosen. Trials are shorter; their steps shrink by the same total factor.
    steps : sequence of float, optional
        Step sizes times number of rows, c, to try, and shorter ones while the shortest is best; default the solver's
        `first_step`, followed by steps three times as long or as short while these are better.
    judge : {"objective", "held-out"}
        Objective over all rows (over some, if there are many), or mean loss of a held-out tenth of the rows tried:
        with a weak ridge the best step then stops short of the optimum.
    epochs : int, optional
        Epochs of a trial; default 3 to 8, no more than the schedule has, fewer for more rows.

    Returns
    -------
    TunedStep

    Raises
    ------
    ValueError
        If the solver has no step to choose, or the judge is unknown.

    Notes
    -----
    Up to 10 rows per class, and at least 20 000, are tried: because c is step size times rows, the best step on some
    rows is about right for all.
    """
    check_choice("judge", judge, JUDGES)
    if not solver.has_step:
        raise ValueError(f"{type(solver).__name__} has no step to choose; run it without one.")
    clock = time.perf_counter()
    if problem.n_rows < _TOO_FEW:
        return TunedStep(untuned_step(solver, problem), (), np.empty(0), 0.0)
    trials = _Trials(solver, problem, key, schedule or Schedule(), judge, epochs)
    if steps is None:
        first = times(solver.first_step(problem), 1.0)
        best = trials.shorten(first)
        best = trials.lengthen(best) if best == first else best
    elif not len(steps):
        raise ValueError("steps is empty; give step sizes to try, or None for the default ones.")
    else:
        shortest = min(map(float, steps))
        best = min(map(float, steps), key=trials.loss)
        if best == shortest or not trials.loss(best) < trials.floor:
            best = trials.shorten(shortest)
    tried = tuple(sorted(trials.found))
    return TunedStep(best, tried, np.array([trials.found[step] for step in tried]), time.perf_counter() - clock)


def untuned_step(solver: ScheduledSolver, problem: Any) -> float:
    """Return a safe step for problems with too few rows to try any.

    Parameters
    ----------
    solver : ScheduledSolver
        Solver that takes the step.
    problem : SoftmaxProblem
        Problem whose ridge limits explicit steps.

    Returns
    -------
    float
        Step size times rows, c: 1 for implicit steps, at most 0.1 for explicit ones.
    """
    longest = solver.longest_step(problem)
    return 1.0 if longest == np.inf else min(0.1, longest / 2)
