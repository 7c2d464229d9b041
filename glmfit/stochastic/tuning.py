"""The first step size of a sampling solver, chosen by the loss of held-out rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..solvers._seed import seed_of
from .schedule import Schedule, ScheduledSolver

STEPS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1000.0)
_MOST_STEPS, _MOST_EPOCHS, _LEAST_EPOCHS = 200_000, 20, 3
_ROWS_PER_CLASS, _LEAST_ROWS = 10, 20_000
_MOST_SCORES = 40_000_000
_TOO_FEW = 4  # rows, below which none can be left out
_SHORTER = 6  # times a tenth of the shortest step is tried while that is the best


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
