"""Fits of a population at many strengths of its penalty, some at a time, from the strongest to the weakest."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import shorten, warn_user
from ..data.counts import Training
from ..display import Display, ProgressBar, Summary, counted
from ..engine import ConjugateGradients, LeastSquares, ProximalNewton
from ..engine.exact.least_squares import least_squares_serves
from ..engine.problem import Params
from ..engine.result import Hints, LoopOptions, Solution
from ..observations import Observation
from ..penalties.by_name import PenaltyFamily
from ..status import Status
from .cv_fits import ManyFits
from .population_model import PROVED, at_ends

if TYPE_CHECKING:
    import pandas as pd

_FITS = 48  # stepped together, at least: with fewer, products wait for memory
_N_STRENGTHS, _WEAKEST = 30, 1e-3
_ABOVE = 1.001  # of the first strength: rounding must not let a coefficient in
_OF_RIDGE = 1.0, 1e-6  # first and last strength of a ridge path


@dataclass(frozen=True, repr=False, kw_only=True)
class RegularizationPath(Display):
    """Fits of all neurons at decreasing strengths of a penalty, each with its gap; from `PopulationGLM.path`.

    Attributes
    ----------
    neuron : numpy.ndarray
        Names, (neuron,).
    strengths : numpy.ndarray
        (strength, neuron), decreasing.
    coef : numpy.ndarray
        (strength, feature, neuron); nan where Ctrl-C came first, here and in all that follow.
    intercept : numpy.ndarray
        (strength, neuron).
    objective, null_objective : numpy.ndarray
        F at the fit, and without coefficients, (strength, neuron).
    gap : numpy.ndarray
        Bound of ``F - F*``, (strength, neuron), or an estimate.
    gap_is_bound : numpy.ndarray
        Whether ``gap`` is a bound.
    status : numpy.ndarray
        :class:`glmfit.Status` of every fit, (strength, neuron).
    """

    neuron: np.ndarray
    strengths: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    objective: np.ndarray
    null_objective: np.ndarray
    gap: np.ndarray
    gap_is_bound: np.ndarray
    status: np.ndarray

    @property
    def n_nonzero(self) -> np.ndarray:
        """Coefficients that are not 0, (strength, neuron)."""
        return np.count_nonzero(np.nan_to_num(self.coef), axis=1)

    @property
    def converged(self) -> np.ndarray:
        """Whether a fit is proved to be at its tolerance, (strength, neuron)."""
        return np.isin(self.status, PROVED)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per neuron and strength as a pandas DataFrame."""
        import pandas as pd

        columns = {"neuron": np.repeat(self.neuron, len(self.strengths)), "strength": self.strengths.T.ravel()}
        for name in ("n_nonzero", "objective", "null_objective", "gap", "gap_is_bound"):
            columns[name] = getattr(self, name).T.ravel()
        return pd.DataFrame({**columns, "status": [str(Status(s)) for s in self.status.T.ravel()]})

    def _summary(self) -> Summary:
        S, n = self.strengths.shape
        n_done = int(self.converged.sum())
        done = f"{n_done} of {self.status.size} fits converged, largest gap {np.nanmax(self.gap):.1e}"
        return Summary([f"path of {S} strengths, {n} neurons", done], self.to_frame())


def path_of(
    data: Training, observation: Observation, penalty: PenaltyFamily, given: Any, options: LoopOptions
) -> RegularizationPath:
    """Fit all neurons at all strengths; those ``given`` are (strength,) or (strength, neuron), None for the default."""
    fits = PathFits(data, observation, penalty, given, options)
    found = fits.path
    what = f"{counted(len(found.strengths), 'strength')}, {counted(data.Y.shape[1], 'neuron')}"
    with closing(ProgressBar(what, found.strengths.size, "fit", options.verbose)) as bar:
        fits.run(bar)
    stopped = found.status == Status.INTERRUPTED
    n_left = int(np.sum(~found.converged & ~stopped))
    if stopped.any():
        warn_user(
            f"Ctrl-C stopped the path: {int(stopped.sum())} of {stopped.size} fits are missing (nan); the strongest "
            "strengths are fitted first."
        )
    if n_left:
        warn_user(
            f"{n_left} of {stopped.size} fits of the path did not converge (gap says how far they are); raise "
            "max_epochs, or drop the weakest strengths."
        )
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


class PathFits(ManyFits):
    """Fits of a path; its arrays are nan, and INTERRUPTED, for those that are missing."""

    def __init__(self, data: Training, observation: Observation, penalty: PenaltyFamily, given, options: LoopOptions):
        super().__init__(data, observation, penalty, options)
        n = data.Y.shape[1]
        strengths = self._default_strengths(n) if given is None else read_path(given, n)
        shape = strengths.shape
        self.path = RegularizationPath(
            neuron=np.asarray(data.neuron_names), strengths=strengths,
            coef=np.full((shape[0], data.X.shape[1], n), np.nan), intercept=np.full(shape, np.nan),
            objective=np.full(shape, np.nan), null_objective=np.full(shape, np.nan), gap=np.full(shape, np.nan),
            gap_is_bound=np.zeros(shape, bool), status=np.full(shape, int(Status.INTERRUPTED)),
        )  # fmt: skip

    def _default_strengths(self, n_neurons: int) -> np.ndarray:
        """Choose thirty per neuron, from the smallest without coefficients down to a thousandth, (strength, neuron).

        For a ridge, which always leaves coefficients, from 1 to 1e-6.
        """
        penalty, unit = self.penalty, self.form.unit
        if not penalty.selects:
            return np.repeat(np.geomspace(*_OF_RIDGE, _N_STRENGTHS)[:, None], n_neurons, axis=1)
        problem = self._problem(None, penalty(np.ones(n_neurons)), np.arange(n_neurons))
        strongest = penalty.maximal_strength(problem.null_gradient()) * unit
        rounding = 1e-12 * np.maximum(np.abs(problem.null_objective), problem.size_of_counts) * unit
        strongest = np.where(np.isfinite(strongest) & (strongest > rounding) & (strongest > 1e-30), strongest, 1.0)
        return strongest * np.geomspace(_ABOVE, _WEAKEST, _N_STRENGTHS)[:, None]

    def run(self, bar: ProgressBar) -> None:
        """Fit from strong to weak; Ctrl-C ends it and keeps the finished strengths."""
        strengths, last = self.path.strengths, None
        S, n = strengths.shape
        # Gaussian responses with a ridge have a closed form, for each neuron once.
        size = 1 if self.form.observation.is_quadratic and self.penalty.smooth else max(1, -(-_FITS // n))
        try:
            kinks = int(np.count_nonzero(strengths.any(axis=1)))  # a strength of 0 has none
            for block in np.split(np.arange(S), sorted({*range(size, kinks, size), kinks} - {0, S})):
                last = self._fit(block, last, bar)
                if last.interrupted:
                    break
        except KeyboardInterrupt:
            if last is None:
                raise

    def _fit(self, block: np.ndarray, last: Solution | None, bar: ProgressBar) -> Solution:
        """Fit some neighbouring strengths together, starting from the weakest of those before."""
        form, path, shape = self.form, self.path, (len(block), self.path.strengths.shape[1])
        k, n = shape
        penalty = self.penalty((path.strengths[block] / form.unit).ravel())
        problem = self._problem(k, penalty, np.tile(np.arange(n), k))
        options = replace(self.options, negligible=np.tile(np.broadcast_to(self.options.negligible, n), k))
        start, hints = None, None
        if last is not None:
            start = Params(*(np.tile(a[..., -n:], k) for a in last.params))
            hints = None if last.state is None else Hints(*(of[-n:] for of in last.state)).repeated(k)
        if least_squares_serves(problem):
            solver = LeastSquares()
        else:
            solver = (ConjugateGradients if penalty.smooth else ProximalNewton)(hints=hints)
        solution = self._run(k, solver, problem, start, options, bar)
        coef = np.moveaxis(solution.params.coef.reshape(-1, *shape), 0, 1)
        intercept = solution.params.intercept.reshape(shape) + form.shift
        path.coef[block], path.intercept[block] = at_ends(solution.status.reshape(shape), coef, intercept)
        path.gap[block] = solution.gap.reshape(shape) * form.unit
        path.objective[block] = solution.objective.reshape(shape) * form.unit + form.constant
        path.null_objective[block] = solution.null_objective.reshape(shape) * form.unit + form.constant
        path.gap_is_bound[block], path.status[block] = (
            solution.gap_is_bound.reshape(shape),
            solution.status.reshape(shape),
        )
        return solution
