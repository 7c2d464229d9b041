"""Fits of a population with quadratic penalties: strengths are given or chosen, optima are proved.

Theory: docs/theory/smooth_terms.md. Losses are in nats of the recording, or in units of the scale.
"""

import time
from typing import Any

import numpy as np

from ...display import ProgressBar
from ...penalties import NoPenalty
from ...status import Status
from ..population import PopulationProblem
from ..problem import Params
from ..result import History, LoopOptions, Solution, stopping_target
from .cells import Rows, Sums
from .coordinates import Coordinates
from .folds import FoldSearch
from .search import in_chunks

_SAFE = 1.0  # change of a predictor up to which steps are whole
_FAR = 8.0  # standard deviations from 0 above which a feature is shifted
_EVERY, _ROWS_EACH = 4, 200  # one row in this many guides the first steps, given this many rows per feature
_SOUGHT = 50  # maximum number of fits that are checked for having an optimum
_COPIES = 14  # of the Hessian of a fit, or of that of each fold, that are held at once


class Outcome:
    """Results of the fits and their verdicts; axes are (..., neuron) or, of coordinates, (neuron, ...)."""

    def __init__(self, problem: PopulationProblem, space: Coordinates):
        n, p = problem.n_neurons, space.n_coordinates
        # Of mean losses, nan where the neuron has no such term; and of the criterion by log strengths, in nats.
        self.strengths, self.gradient = np.full((2, space.n_penalties, n), np.nan)
        # -1 where a strength ran to its lower end (no penalty), 1 to its upper end, else 0.
        self.at_end = np.zeros((space.n_penalties, n), int)
        self.penalty = np.zeros(n)  # of the mean loss of the population
        self.scale = np.ones(n)  # estimated, 1 for models without one
        # Effective degrees of freedom of coordinates, (coordinate, neuron): diagonals of F and 2F - FF.
        self.degrees, self.degrees_of_tests = np.zeros((2, p, n))
        self.coordinates = np.zeros((n, p + 1))  # the optimum
        self.coordinates[:, -1] = problem.null_params().intercept
        # Covariance of every term's coordinates and the intercept at a scale of 1, nan where the neuron has no such
        # term: at fixed strengths, and with the uncertainty of chosen ones.
        sizes = {name: place.stop - place.start + 1 for name, place in space.places.items()}
        self.covariance, self.wide = (
            {name: np.full((n, size, size), np.nan) for name, size in sizes.items()} for _ in range(2)
        )
        self.status, self.objective = problem.first_status(), problem.null_objective.copy()
        self.gap, self.proved, self.rounds = np.full(n, np.inf), np.zeros(n, bool), np.zeros(n, int)


class SmoothPopulation:
    """Data in standard form and penalties of a population.

    ``groups`` are the features of every term, ``n_observed`` (neuron,) the responses that a mean loss stands for,
    ``unit`` (neuron,) the mean loss in units of the problem's, and ``inside`` bool (coordinate, neuron) which
    coordinates each neuron has. ``folds`` are rows to fit and rows to score in every fold, bool (time, fold): strengths
    are then chosen by the loss of the latter, and otherwise by marginal likelihood.
    """

    def __init__(
        self, problem: PopulationProblem, space: Coordinates, groups, n_observed, unit, inside=None, folds=None
    ):
        self.problem, self.space, self.inside = problem, space, None if inside is None else inside.T
        self.n_observed = np.broadcast_to(np.asarray(n_observed, np.float64), (problem.n_neurons,))
        self.per_row = self.n_observed * np.asarray(unit, np.float64)
        mean, scale = problem.standard
        shift = np.where(np.abs(mean) > _FAR * scale, mean, 0.0)
        self.back = space.back(shift, scale)
        given = problem.X, problem.Y, problem.observation, shift, scale, groups
        given += problem.weights, problem.own, problem.offset
        self.folds, parts = None, [None]
        if folds is not None:
            patterns, of_row = np.unique(np.concatenate(folds, axis=1), axis=0, return_inverse=True)
            parts = [np.flatnonzero(of_row.ravel() == k) for k in range(len(patterns))]
            self.folds = np.split(patterns, 2, axis=1)  # whether a fold fits a part, and scores it, bool (part, fold)
        self.parts = [Rows(*given, only) for only in parts]
        weights = np.array([rows.total_weights() for rows in self.parts]).T
        self.weight_of_parts = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)  # (neuron, part)
        # A quarter of the rows guides the first steps.
        every = problem.n_rows // (_ROWS_EACH * (problem.n_features + 1)) and _EVERY
        self.some = self.parts[0].every(every) if every and folds is None else None
        # Coordinates of every fit without a penalty: if there are any, penalties alone do not guarantee an optimum.
        self.free = np.zeros((problem.n_neurons, space.n_coordinates), bool) | (space.sizes().sum(axis=0) == 0)
        own = np.ones(problem.n_neurons) if problem.scale is None else problem.scale
        self.nats = self.per_row * own / problem.n_rows  # of a sum over rows, whose weights have mean one

    def sums(
        self, rows: Rows, at: np.ndarray, fits: np.ndarray, dtype: Any = np.float32, packed=None, hessian: bool = True
    ) -> Sums:
        """Add up losses and their derivatives over some rows at coordinates (fit, coordinate + 1), in nats."""
        nats, back = self.nats[fits] * rows.stands_for, self.back
        sums = rows.sums(back @ at.T, fits, hessian, packed, dtype)

        def turned(some):
            whole = rows.square(sums.hessian[:, some]) * nats[some, None, None]
            half = (whole.reshape(-1, whole.shape[2]) @ back).reshape(*whole.shape[:2], -1)
            return back.T @ half

        H = in_chunks(turned, len(fits)) if hessian else None
        if hessian:  # what rounding leaves of features that do not vary for a neuron
            i = np.arange(H.shape[1])
            H[:, i, i] = np.maximum(H[:, i, i], 0.0)
        gradient, bend = (None if of is None else (back.T @ of).T * nats[:, None] for of in (sums.gradient, sums.bend))
        if self.inside is not None:
            has = np.append(self.inside[fits], np.ones((len(fits), 1), bool), axis=1)
            if hessian:
                H *= has[:, :, None] & has[:, None, :]
            gradient *= has
            bend = None if bend is None else bend * has
        return Sums(sums.loss * nats, gradient, sums.square * nats, H, bend)

    def furthest(self, change: np.ndarray, upwards: bool = False, parts: list[Rows] | None = None) -> np.ndarray:
        """Bound the largest change, or rise, of predictors by changes of coordinates (fit, coordinate + 1): (fit,)."""
        back = self.back @ change.T
        return np.max([rows.furthest(back, upwards) for rows in parts or self.parts], axis=0)

    def lengths(self, step: np.ndarray, trust: np.ndarray, parts: list[Rows] | None = None) -> np.ndarray:
        """Lengths of steps (fit, coordinate + 1), shortened where predictors would move far: (fit,).

        If ``trust`` is above 1, after successful steps, they may move further. Falling rates are harmless.
        """
        rows = (parts or self.parts)[0]
        moved = self.furthest(step, rows.is_steep_upwards, parts) * (self.problem.observation.constant or 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            safe = trust * np.log1p(moved) / np.maximum(moved, 1e-300)
        return np.where(moved > _SAFE, np.minimum(safe, 1.0), 1.0)

    def fit(self, strengths: np.ndarray | None, options: LoopOptions) -> tuple[Solution, Outcome]:
        """Fit every neuron, at strengths of mean losses (penalty, neuron) or, if None, at chosen ones."""
        from .group import Group

        began, problem, space = time.perf_counter(), self.problem, self.space
        if strengths is not None:
            self.free = (strengths > 0).T.astype(float) @ space.sizes() == 0
        outcome, interrupted = Outcome(problem, space), False
        todo = np.flatnonzero(outcome.status == Status.MAX_EPOCHS)
        copies = _COPIES * (1 if self.folds is None or strengths is not None else self.folds[0].shape[1])
        size = options.max_memory // (8 * copies * (space.n_coordinates + 1) ** 2)
        size = int(np.clip(size, 1, max(1, len(todo))))
        bar = ProgressBar(problem.subject, len(todo), "fit", options.verbose)
        try:
            for first in range(0, len(todo), size):
                some = todo[first : first + size]
                chosen = strengths
                if self.folds is not None and strengths is None:
                    self._choose_by_folds(some, outcome)
                    chosen = outcome.strengths.copy()
                Group(self, some, chosen, options, outcome, bar).run()
            self._find_separable(outcome.status)
            bar.finish(not np.any(outcome.status == Status.MAX_EPOCHS))
        except KeyboardInterrupt:
            interrupted = True
            outcome.status[outcome.status == Status.MAX_EPOCHS] = int(Status.INTERRUPTED)
        finally:
            bar.close()
        silent = np.isin(outcome.status, (Status.NO_SPIKES, Status.ALL_ONES))
        gap, proved = np.where(silent, 0.0, outcome.gap), outcome.proved | silent
        rounds, seconds = int(outcome.rounds.max(initial=0)), time.perf_counter() - began
        row_evals, history = rounds * problem.n_rows, History()
        history.add(rounds, row_evals, seconds, outcome.objective, gap, proved)
        solution = Solution(
            params=Params(*space.plain(outcome.coordinates)), status=outcome.status, gap=gap, gap_is_bound=proved,
            target=stopping_target(problem, outcome.objective, options, 0.0), objective=outcome.objective,
            null_objective=problem.null_objective, epochs=outcome.rounds, row_evals=row_evals,
            history=history.arrays(), seconds_run=seconds, seconds_compile=0.0, solver_name="Newton",
            interrupted=interrupted,
        )  # fmt: skip
        return solution, outcome

    def _choose_by_folds(self, fits: np.ndarray, outcome: Outcome) -> None:
        """Choose the strengths of some neurons by the loss of held-out rows."""
        search = FoldSearch(self, fits)
        search.run()
        outcome.strengths[:, fits] = np.exp(search.rho.T) / self.n_observed[fits]
        outcome.gradient[:, fits], outcome.at_end[:, fits] = search.gradient.T, search.at_end.T

    def _find_separable(self, status: np.ndarray) -> None:
        """Mark fits without a proof as separable if they have no optimum."""
        failed = np.flatnonzero(np.isin(status, (Status.MAX_EPOCHS, Status.UNPROVED)))
        problem = self.problem
        given = {"weights": problem.weights, "offset": problem.offset, "own": problem.own}
        for n in failed[:_SOUGHT]:
            free = self.free[n] if self.inside is None else self.free[n] & self.inside[n]
            if free.any():
                X = (np.asarray(problem.X, np.float64) - self.space.mean) @ self.space.turn[:, free]
                alone = PopulationProblem(X, problem.Y, problem.observation, NoPenalty(np.zeros(())), **given)
                if alone.is_separable(n):
                    status[n] = int(Status.SEPARABLE)
