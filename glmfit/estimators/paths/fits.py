"""Fits at many strengths, some at a time, starting from the last fit of those before."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from ...checks import shorten, warn_user
from ...data.counts import Training
from ...data.standard_form import StandardForm
from ...display import ProgressBar, counted
from ...engine import ConjugateGradients, LeastSquares, ProximalNewton
from ...engine.exact.least_squares import least_squares_serves
from ...engine.population import FoldedProblem, PopulationProblem
from ...engine.problem import Params
from ...engine.result import Hints, LoopOptions, Solution
from ...observations import Observation
from ...penalties import Penalty
from ...penalties.by_name import PenaltyFamily
from ...status import Status
from ..cv_fits import known_of_counts, run_counted
from ..parameters import precision
from ..population_model import PROVED
from .regularization_path import RegularizationPath

_FITS = 48  # stepped together, at least: with fewer, products wait for memory
_N_STRENGTHS, _WEAKEST = 30, 1e-3
_ABOVE = 1.001  # of the first strength: rounding must not let a coefficient in
_OF_RIDGE = 1.0, 1e-6  # first and last strength of a ridge path


def path_of(
    data: Training, observation: Observation, penalty: PenaltyFamily, given: Any, options: LoopOptions,
    neuron: list[str], verbose: bool,
) -> RegularizationPath:  # fmt: skip
    """Fit all neurons at all strengths.

    Strengths that are ``given`` are (strength,) or (strength, neuron), None for the default ones.
    """
    form = StandardForm.of(data, observation)
    problem = _problem(data, form, penalty(np.ones(data.Y.shape[1])))
    strengths = default_strengths(penalty, problem, form) if given is None else read_path(given, data.Y.shape[1])
    fits = PathFits(data, form, penalty, strengths, form.options(options))
    what = f"{counted(len(strengths), 'strength')}, {counted(data.Y.shape[1], 'neuron')}"
    with closing(ProgressBar(what, strengths.size, "fit", verbose)) as bar:
        fits.run(bar)
    found = fits.path(neuron)
    _warn(found)
    return found


def read_path(given: Any, n_neurons: int) -> np.ndarray:
    """Return strengths as an array (strength, neuron), decreasing for every neuron."""
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    shapes = f"(strength,) or (strength, neuron), here (strength, {n_neurons})"
    fits = values.ndim == 1 or (values.ndim == 2 and values.shape[1] == n_neurons)
    if not fits or not len(values) or not np.isfinite(values).all() or np.any(values < 0):
        raise ValueError(
            f"strengths is {shorten(given)}; it must be an array of finite numbers of at least 0, {shapes}, or None "
            "for 30 per neuron."
        )
    return -np.sort(-np.broadcast_to(values.reshape(len(values), -1), (len(values), n_neurons)), axis=0)


def default_strengths(penalty: PenaltyFamily, problem: PopulationProblem, form: StandardForm) -> np.ndarray:
    """Choose thirty per neuron, from the smallest without coefficients down to a thousandth, (strength, neuron).

    For a ridge, which always leaves coefficients, from 1 to 1e-6.
    """
    if not penalty.selects:
        first, last = _OF_RIDGE
        return np.repeat(np.geomspace(first, last, _N_STRENGTHS)[:, None], problem.n_neurons, axis=1)
    strongest = penalty.maximal_strength(problem.null_gradient()) * form.unit
    rounding = 1e-12 * np.maximum(np.abs(problem.null_objective), problem.size_of_counts) * form.unit
    strongest = np.where(np.isfinite(strongest) & (strongest > rounding) & (strongest > 1e-30), strongest, 1.0)
    return strongest * np.geomspace(_ABOVE, _WEAKEST, _N_STRENGTHS)[:, None]


class PathFits:
    """Fits of a path and their results so far: nan, and INTERRUPTED, for missing ones."""

    def __init__(self, data, form: StandardForm, penalty: PenaltyFamily, strengths: np.ndarray, options: LoopOptions):
        self.data, self.form, self.penalty, self.strengths, self.options = data, form, penalty, strengths, options
        S, n = strengths.shape
        self.coef, self.intercept = np.full((S, data.X.shape[1], n), np.nan), np.full((S, n), np.nan)
        self.gap, self.objective, self.null = np.full((3, S, n), np.nan)
        self.is_bound, self.status = np.zeros((S, n), bool), np.full((S, n), int(Status.INTERRUPTED))
        self._designs: dict = {True: {}, False: {}}  # of the features alone, by whether the penalty is smooth
        self._of_counts: dict = {}  # by how many strengths are fitted together

    def run(self, bar: ProgressBar) -> None:
        """Fit from strong to weak; Ctrl-C ends it and keeps the finished strengths."""
        (S, n), last = self.strengths.shape, None
        # Gaussian responses with a ridge have a closed form, for each neuron once.
        size = 1 if self.form.observation.is_quadratic and self.penalty.smooth else max(1, -(-_FITS // n))
        try:
            kinks = int(np.count_nonzero(self.strengths.any(axis=1)))  # a strength of 0 has none
            for block in np.split(np.arange(S), sorted({*range(size, kinks, size), kinks} - {0, S})):
                last = self._fit(block, last, bar)
                if last.interrupted:
                    break
        except KeyboardInterrupt:
            if last is None:
                raise

    def _fit(self, block: np.ndarray, last: Solution | None, bar: ProgressBar) -> Solution:
        """Fit some neighbouring strengths together, starting from the weakest of those before."""
        form, n, k = self.form, self.strengths.shape[1], len(block)
        strength = self.strengths[block] / form.unit
        penalty = self.penalty(strength.ravel())
        problem = _problem(self.data, form, penalty, np.tile(np.arange(n), k))
        problem.design = self._designs[penalty.smooth]
        vars(problem).update(self._of_counts.get(k, {}))
        options = replace(self.options, negligible=np.tile(np.broadcast_to(self.options.negligible, n), k))
        start, hints = None, None
        if last is not None:
            start = Params(*(np.tile(a[..., -n:], k) for a in last.params))
            hints = None if last.state is None else Hints(*(of[-n:] for of in last.state)).repeated(k)
        if least_squares_serves(problem):
            solver = LeastSquares()
        else:
            solver = (ConjugateGradients if penalty.smooth else ProximalNewton)(hints=hints)
        solution = run_counted(solver, problem, start, options, bar)
        self._of_counts[k] = known_of_counts(problem)
        self._keep(block, solution)
        return solution

    def _keep(self, block: np.ndarray, solution: Solution) -> None:
        form, shape = self.form, (len(block), self.strengths.shape[1])
        coef = solution.params.coef.reshape(-1, *shape)
        self.coef[block] = np.moveaxis(coef, 0, 1)
        self.intercept[block] = solution.params.intercept.reshape(shape) + form.shift
        self.gap[block] = solution.gap.reshape(shape) * form.unit
        self.objective[block] = solution.objective.reshape(shape) * form.unit + form.constant
        self.null[block] = solution.null_objective.reshape(shape) * form.unit + form.constant
        self.is_bound[block], self.status[block] = solution.gap_is_bound.reshape(shape), solution.status.reshape(shape)

    def path(self, neuron: list[str]) -> RegularizationPath:
        """Return the results."""
        return RegularizationPath(
            neuron=np.asarray(neuron), strengths=self.strengths, coef=self.coef, intercept=self.intercept,
            objective=self.objective, null_objective=self.null, gap=self.gap, gap_is_bound=self.is_bound,
            status=self.status,
        )  # fmt: skip


def _problem(data: Training, form: StandardForm, penalty: Penalty, neuron: np.ndarray | None = None):
    """Make the problem in standard form whose fits are of these neurons."""
    neuron = np.arange(data.Y.shape[1]) if neuron is None else neuron
    given = {"weights": data.weights, "dtype": precision(data.X.dtype), "offset": form.offset, "own": form.own}
    return FoldedProblem(data.X, form.Y, form.observation, penalty, neuron, **given)


def _warn(path: RegularizationPath) -> None:
    left = ~np.isin(path.status, (*PROVED, Status.INTERRUPTED))
    stopped = path.status == Status.INTERRUPTED
    if stopped.any():
        warn_user(
            f"Ctrl-C stopped the path: {int(stopped.sum())} of {stopped.size} fits are missing (nan); the strongest "
            "strengths are fitted first."
        )
    if left.any():
        warn_user(
            f"{int(left.sum())} of {left.size} fits of the path did not converge (gap says how far they are); raise "
            "max_epochs, or drop the weakest strengths."
        )
