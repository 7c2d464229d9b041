"""Dispersion: how much responses vary about their means, by Pearson's statistic or by maximum likelihood.

Theory: docs/theory/observation_models.md.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import digamma, polygamma

from ..checks import shorten
from ..data.counts import Training, exposure_of, weights_of
from ..data.standard_form import mean_of
from ..engine.passes import KURTOSIS, LEAST_VARIANCE, pearson_terms
from ..engine.population import PopulationProblem
from ..engine.problem import Params
from ..engine.tiles import over_tiles, rows_at_once
from ..observations import Gaussian, NegativeBinomial, Observation
from ..status import Status

SMALLEST, LARGEST = 1e-6, 1e4  # of a negative binomial: below the first it is Poisson's
_SETTLED, _MOVED = 1e-4, 5e-4  # change of the logarithm from one fit to the next, and at a fit that is certified
_ROUGH, _FINE = 1e-3, 1e-8  # tolerances of the fits, first and later
_MOST_FITS, _MOST_STEPS = 30, 60
_TABLE = 2000  # largest count whose number of bins is counted
_RUN = 256  # neighbours among them where rows are read
_REFUTED, _NOTICED = 4.0, 1.1  # standard errors of the statistic under the model; smaller excesses matter little
_ROUNDING, _TINY = 1e-14, 1e-300
NO_FIT = (Status.NO_SPIKES, Status.ALL_ONES, Status.NO_DATA)


def read_dispersion(given, observation: Observation, n_neurons: int) -> np.ndarray | None:
    """Check the dispersion of a negative binomial, a number or (neuron,); None is estimated."""
    if given is None:
        return None
    if not isinstance(observation, NegativeBinomial):
        raise ValueError(
            f"dispersion is {shorten(given)}, but only observation_model='NegativeBinomial' takes one. "
            "(That of Gaussian and Gamma responses changes no coefficient, and is estimated after the fit.)"
        )
    needs = (
        f"dispersion is {shorten(given)}; it must be a number from 1e-8 to 1e8, or one per neuron, ({n_neurons},), the "
        "variance being mean + dispersion mean^2. None estimates it; for 0 use observation_model='Poisson', link 'exp'."
    )
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise ValueError(needs) from None
    values = np.full(n_neurons, values) if values.ndim == 0 and not isinstance(given, str | bool) else values
    if values.shape != (n_neurons,) or not np.all((values >= 1e-8) & (values <= 1e8)):
        raise ValueError(needs)
    return values


def degrees(problem: PopulationProblem, coef: np.ndarray) -> np.ndarray:
    """Estimate the degrees of freedom of fits, intercept included, (neuron,): exact for normal errors and a ridge."""
    if problem.degrees is not None:
        return problem.degrees
    if not problem.penalty.smooth:
        return 1.0 + np.count_nonzero(coef, axis=0)
    basis, curvature = problem.basis, problem.null_curvature
    ridge = np.broadcast_to(np.asarray(problem.penalty.ridge_strength, np.float64), coef.shape)
    along = (basis.whiten[:, : basis.rank] ** 2).T @ ridge
    with np.errstate(invalid="ignore"):
        return 1.0 + np.sum(curvature / (curvature + along), axis=0)


def scale_of(problem: PopulationProblem, data: Training, observation: Observation, params: Params, loss) -> np.ndarray:
    """Estimate the scale of normal or gamma responses, (neuron,); ``loss`` is the mean loss of the fits."""
    n_seen = problem.n_counted - data.n_masked
    if isinstance(observation, Gaussian):
        spread = 2 * loss
    else:
        spread, _, _ = _statistic(_sums(data, observation, params, np.arange(len(data.X))))
    # Responses that do not vary also have a distribution, as wide as rounding.
    least = (_ROUNDING * np.abs(params.intercept)) ** 2 + _TINY if isinstance(observation, Gaussian) else _ROUNDING
    return np.maximum(spread, least) * n_seen / np.maximum(n_seen - degrees(problem, params.coef), 1.0)


def pearson(
    problem: PopulationProblem, data: Training, observation: Observation, params: Params, status
) -> tuple[np.ndarray, np.ndarray]:
    """Pearson's statistic over its degrees of freedom, and whether it refutes the model for counts, (neuron,) each.

    It is 1 for normal and gamma responses, whose scale it estimates; for others it is taken over some thousand rows
    spread over the recording. Its standard error under the model is that of the rows' fourth moments: squared residuals
    over their variance v vary by 2 + 1 / v, negative binomial ones by 6 dispersion more.
    """
    if observation.has_scale:  # which is this statistic
        unknown = np.isin(status, NO_FIT)
        return np.where(unknown, np.nan, 1.0), np.zeros(len(unknown), bool)
    sums = problem.pearson_sums
    if sums is None or type(observation) is not type(problem.observation) or data.exposure is not None:
        sums = _sums(data, observation, params, _some_rows(problem, data))
    mean, error, n_rows = _statistic(sums)
    n_seen = problem.n_counted - data.n_masked
    left = np.maximum(1 - degrees(problem, params.coef) / np.maximum(n_seen, 1), 1 / np.maximum(n_seen, 1))
    value = np.where(np.isin(status, NO_FIT) | (n_rows == 0), np.nan, mean / left)
    with np.errstate(invalid="ignore"):
        return value, (value > 1 + _REFUTED * error) & (value > _NOTICED) & observation.counts


def _some_rows(problem: PopulationProblem, data: Training) -> np.ndarray:
    """Choose rows spread over the recording: some thousand, or short runs of a twentieth if they are read on demand."""
    n, distance = len(data.X), problem.rows_apart
    if problem.in_memory:
        return np.arange(0, n, distance)
    length = max(1, min(_RUN, n // 400))
    starts = np.linspace(0, n - length, max(1, min(n // distance, n // 20) // length)).astype(int)
    return np.unique(starts[:, None] + np.arange(length))


def _statistic(sums) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the weighted mean of squared residuals over variances, its standard error for counts, rows that count."""
    square, units, noise, n = sums
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return square / units, np.sqrt(noise) / units, n


def _sums(data: Training, observation: Observation, params: Params, chosen: np.ndarray) -> np.ndarray:
    """Add up the terms of Pearson's statistic over some rows, (4, neuron)."""
    kurtosis = KURTOSIS + 6 * observation.dispersion if isinstance(observation, NegativeBinomial) else KURTOSIS

    def tile(part):
        at = chosen[part]
        y, x = np.asarray(data.Y[at], np.float64), np.asarray(data.X[at], np.float64)
        eta = x @ params.coef + params.intercept
        eta = eta if data.offset is None else eta + data.offset[at]
        least = LEAST_VARIANCE / len(data.X)
        terms = pearson_terms(observation, y, eta, weights_of(data, at), exposure_of(data, at), kurtosis, least)
        return np.stack(np.broadcast_arrays(*(term.sum(axis=0) for term in terms)))

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return sum(over_tiles(tile, len(chosen)))


# ---------------------------------------------------------------------- of a negative binomial


class Profile:
    """Log-likelihood of counts as a function of the dispersion at the predictors of a fit, per neuron.

    The variable is u = -log dispersion. Counts enter through the number of bins of each, predictors through a pass.
    """

    def __init__(self, data: Training, params: Params):
        self._data, self._tails = data, _tails(data)
        self._params, self._eta = params, None
        if isinstance(data.X, np.ndarray):
            self._eta = np.concatenate(list(over_tiles(self._predictors, len(data.X))))

    def _predictors(self, rows: slice) -> np.ndarray:
        eta = np.asarray(self._data.X[rows], np.float64) @ self._params.coef + self._params.intercept
        eta = eta if self._data.offset is None else eta + self._data.offset[rows]
        return np.minimum(eta, 300.0)

    def slope(self, u: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute the first and second derivative in u of some neurons, (neuron,) each."""
        data, r, tabled = self._data, np.exp(u), self._tails is not None

        def tile(rows):
            y = np.take(np.asarray(data.Y[rows], np.float64), which, axis=1)
            eta = self._predictors(rows) if self._eta is None else self._eta[rows]
            mu = np.exp(np.take(eta, which, axis=1))
            whole = r + mu
            first = (mu - y) / whole
            second = (mu / r - first) / whole
            first -= np.log1p(mu / r)
            if not tabled:
                first += digamma(y + r) - digamma(r)
                second += polygamma(1, y + r) - polygamma(1, r)
            w = weights_of(data, rows)
            w = np.broadcast_to(w if data.own is None else np.take(w, which, axis=1), y.shape)
            return np.stack([np.einsum("tn,tn->n", w, part) for part in (first, second)])

        with np.errstate(over="ignore", invalid="ignore"):
            first, second = sum(over_tiles(tile, len(data.Y), rows_at_once(data.X)))
        if tabled:
            steps = r + np.arange(len(self._tails))[:, None]
            first = first + np.sum(self._tails[:, which] / steps, axis=0)
            second = second - np.sum(self._tails[:, which] / steps**2, axis=0)
        return r * first, r * first + r**2 * second

    def best(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the best u, by Newton's steps in a bracket, and the slope at the u given, (neuron,) each."""
        at, start = u.copy(), np.zeros_like(u)
        low, high = (np.full_like(u, -np.log(a)) for a in (LARGEST, SMALLEST))
        open_ = np.arange(len(u))
        for step in range(_MOST_STEPS):
            slope, bend = self.slope(at[open_], open_)
            if step == 0:
                start[:] = slope
            here = at[open_]
            low[open_], high[open_] = np.where(slope > 0, here, low[open_]), np.where(slope > 0, high[open_], here)
            with np.errstate(divide="ignore", invalid="ignore"):
                newton = here - slope / bend
            inside = (bend < 0) & (newton > low[open_]) & (newton < high[open_])
            at[open_] = np.where(inside, newton, (low[open_] + high[open_]) / 2)
            going = (np.abs(at[open_] - here) >= _SETTLED / 20) & (high[open_] - low[open_] >= _SETTLED / 20)
            open_ = open_[going]
            if not len(open_):
                break
        return at, start


def _tails(data: Training) -> np.ndarray | None:
    """Weight of the bins with more than k events, (k, neuron); None if counts are large or not integers."""
    if not isinstance(data.Y, np.ndarray):
        return None
    largest = data.Y.max(initial=0.0)
    if largest > _TABLE or np.any(data.Y != np.rint(data.Y)):
        return None
    weights = np.ones(len(data.Y)) if data.weights is None else data.weights
    table = np.zeros((int(largest) + 1, data.Y.shape[1]))
    for n in range(data.Y.shape[1]):
        w = weights if data.own is None else weights * data.own[:, n]
        table[:, n] = np.bincount(data.Y[:, n].astype(int), w, minlength=len(table))
    return table[::-1].cumsum(axis=0)[::-1][1:]


def _first_dispersion(data: Training) -> np.ndarray:
    """Estimate the dispersion from the variance of the counts, without any features, (neuron,)."""
    mean, square = mean_of(data, lambda y: y), mean_of(data, lambda y: y * y)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = (square - mean**2 - mean) / mean**2
    return np.clip(np.where(np.isfinite(value), value, 1.0), 1e-2, 10.0)


def most_likely(data: Training, fit: Callable) -> tuple[np.ndarray, Params]:
    """Maximise the profile likelihood over the dispersion of every neuron; a certified fit then settles it.

    ``fit(data, neurons, dispersion, start, tol)`` returns the parameters at a dispersion (neuron,). By the envelope
    theorem the slope of the profile is that of the likelihood at the fit: it brackets the maximum. The next dispersion
    is where the secant of the last two slopes is 0; at first, and if the slope has not come nearer to 0, the best at
    the predictors of the fit; and the middle of the bracket if that is outside.

    Returns the dispersion, (neuron,), and parameters near those of the fit there.
    """
    whole = isinstance(data.X, np.ndarray)
    u, params = -np.log(_first_dispersion(data)), None
    low, high = (np.full_like(u, -np.log(a)) for a in (LARGEST, SMALLEST))
    before, slope_before = np.full((2, len(u)), np.nan)
    open_ = np.arange(len(u))
    for k in range(_MOST_FITS):
        some = take_neurons(data, open_) if whole and len(open_) < len(u) else data
        which = open_ if some is not data else np.arange(len(u))
        start = None if params is None else Params(*(a[..., which] for a in params))
        found = fit(some, which, np.exp(-u[which]), start, _ROUGH if k < 2 else _FINE)
        if params is None:
            params = Params(*(a.copy() for a in found))
        params.coef[:, which], params.intercept[which] = found
        here, (after, slope) = u[which], Profile(some, found).best(u[which])
        low[which], high[which] = np.where(slope > 0, here, low[which]), np.where(slope > 0, high[which], here)
        with np.errstate(divide="ignore", invalid="ignore"):
            secant = here - slope * (here - before[which]) / (slope - slope_before[which])
        nearer = np.abs(slope) < 0.5 * np.abs(slope_before[which])
        usable = nearer & (secant > low[which]) & (secant < high[which])
        after = np.where(usable, secant, after)
        middle = (low[which] + high[which]) / 2
        after = np.where((after >= low[which]) & (after <= high[which]), after, middle)
        before[which], slope_before[which], u[which] = here, slope, after
        open_ = which[(np.abs(after - here) > _SETTLED) | (k < 2)]
        if not len(open_):
            break
    return np.exp(-u), params


def moved(data: Training, observation: NegativeBinomial, params: Params) -> np.ndarray | None:
    """Return the best dispersion at the predictors of a fit, (neuron,); None if that is the one it was fitted at."""
    u = -np.log(np.asarray(observation.dispersion))
    after, _ = Profile(data, params).best(u)
    return None if np.all(np.abs(after - u) <= _MOVED) else np.exp(-after)


def take_neurons(data: Training, neurons: np.ndarray) -> Training:
    """Take some neurons of data in memory."""
    given = {name: getattr(data, name) for name in ("Y", "own", "offset", "exposure")}
    parts = {
        name: np.ascontiguousarray(a[:, neurons]) for name, a in given.items() if np.ndim(a) == 2 and a.shape[1] > 1
    }
    names = [data.neuron_names[n] for n in neurons]
    return replace(
        data, **parts, neuron_names=names, spike_count=data.spike_count[neurons], n_masked=data.n_masked[neurons]
    )
