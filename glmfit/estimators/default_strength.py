"""Default ridge for a recording, and a warning if a penalty leaves nothing.

Theory: docs/theory/default_strength.md. Measured on recordings: docs/decisions/0013-default-strengths.md.
"""

from collections.abc import Callable

import numpy as np
import scipy.sparse
from scipy.stats import chi2

from ..checks import warn_user
from ..data.counts import Training, exposure_of, weights_of
from ..data.standard_form import StandardForm
from ..engine.metric import ranges_of
from ..engine.population import PopulationProblem
from ..engine.problem import Params
from ..engine.tiles import over_tiles
from ..threads import one_thread_each

_PRIOR = 1.5  # one over the variance of the linear predictor that the weakest prior allows
_SMALLEST = 0.1  # of the median range of the features: smaller ones count as that, because other rows may vary more
_KEPT = 0.5  # of what the features explain
_ROUNDING = 1e-12  # of the largest variance: what is below is 0
_TRIED = 128  # strengths at which the marginal likelihood is computed, over ten decades or so
_WEAKEST, _STRONGEST = 1e-4, 10.0  # times the smallest and the largest curvature: all or next to nothing is left
_FLAT = 1e-2  # standard deviation of the linear predictor
_SOME_ROWS = 10_000
_SOME_RESIDUALS = 10_000_000  # rows times columns


def units_of(X, weights: np.ndarray | None) -> np.ndarray:
    """Measure features by half their range, (feature,); 1 if all are constant."""
    half = ranges_of(X, weights) / 2
    varies = np.sort(half[half > 0])
    if not varies.size:
        return np.ones(len(half))
    return np.maximum(half, _SMALLEST * varies[(len(varies) - 1) // 2])


def default_ridge(problem: PopulationProblem, data: Training, units: np.ndarray, form: StandardForm) -> np.ndarray:
    """Choose a ridge for every neuron by marginal likelihood, within limits from the features, (feature, neuron)."""
    n_observed = np.maximum(observed(data) * form.unit / form.scale, 1.0)
    basis = problem.basis
    largest = units.max()
    variance = basis.variance[: basis.rank] / largest**2  # the basis takes the largest unit for 1
    variance = variance[variance > _ROUNDING * variance.max(initial=0.0)]
    if not variance.size:
        return np.ones((problem.n_features, problem.n_neurons))
    gradient = basis.whiten[:, : len(variance)].T @ problem.null_gradient()
    weakest = _PRIOR * variance.sum() / (n_observed * form.spread)
    return np.outer(units**2, _most_likely(gradient, problem.null_curvature, variance, n_observed, weakest))


def observed(data: Training) -> np.ndarray:
    """Count the responses, or units of exposure, to learn from, (1 or neuron,).

    With weights this is Kish's effective number, so a common factor of the weights changes nothing.
    """
    if data.weights is None and data.own is None:
        return np.array([len(data.X)])

    def tile(rows):
        w, e = weights_of(data, rows), exposure_of(data, rows)  # weights include the exposure
        s = np.divide(w, e, out=np.zeros(np.broadcast_shapes(w.shape, e.shape)), where=e > 0)
        return np.stack([np.broadcast_to(part.sum(axis=0), s.shape[1:]) for part in (w, s, s * s)])

    exposed, total, square = sum(over_tiles(tile, len(data.X)))
    return exposed * np.where(square > 0, total / np.where(square > 0, square, 1.0), 1.0)


def _most_likely(gradient, curvature, variance, n_observed: np.ndarray, weakest: np.ndarray) -> np.ndarray:
    """Maximise the marginal likelihood over strengths, (neuron,).

    The mean loss is ``gradient * v + curvature v^2 / 2`` along each whitened direction (direction, neuron), and the
    prior of v is ``N(0, variance / (strength * n_observed))``, where the number of responses (neuron,) is in units in
    which a nat is one.
    """
    surprise = n_observed * gradient**2 / np.where(curvature > 0, curvature, 1.0)  # chi-squared without any effect
    stiffness = np.where(curvature > 0, curvature, 1.0) * variance[:, None]
    ends = np.log(_WEAKEST * stiffness.min(axis=0)), np.log(_STRONGEST * stiffness.max(axis=0))
    log_strengths, step = np.linspace(*ends, _TRIED, retstep=True)

    def look(log_strength):
        ratio = stiffness * np.exp(-log_strength)  # curvature of the likelihood over that of the prior
        left = ratio / (1 + ratio)  # of a coefficient
        return np.sum(np.log1p(ratio) - surprise * left, axis=0), np.sum(surprise * left * (2 - left), axis=0)

    losses, explained = np.moveaxis([look(s) for s in log_strengths], 1, 0)
    best, columns = np.clip(np.argmin(losses, axis=0), 1, _TRIED - 2), np.arange(len(step))
    # The vertex of a parabola, so that rounding moves a strength a little and never by a step.
    before, at, after = (losses[best + k, columns] for k in (-1, 0, 1))
    bend = before - 2 * at + after
    shift = np.clip((before - after) / np.where(bend > 0, 2 * bend, np.inf), -1, 1)
    likely = log_strengths[best, columns] + shift * step
    enough = explained >= _KEPT * explained[best, columns]
    strongest = log_strengths[_TRIED - 1 - np.argmax(enough[::-1], axis=0), columns]
    strength = np.exp(np.maximum(likely, np.minimum(np.log(weakest), strongest)))
    return np.where(curvature > 0, strength, weakest)


def name_strength(strength, default: bool) -> tuple[str, str]:
    """Name a strength, given or chosen by default, for :func:`warn_if_flat`, and say what to do about it."""
    if default:
        return "the default strength (strength_)", "Pass a smaller regularizer_strength."
    return f"regularizer_strength {np.max(strength):.2g}", "Pass a smaller one."


@one_thread_each()  # threads of BLAS, once woken, would take time from the next fit
def warn_if_flat(X, coef: np.ndarray, residual: Callable[[slice], np.ndarray], penalty: str, advice: str) -> None:
    """Warn once if no linear predictor varies, although score tests of one feature at a time find some informative.

    ``residual`` returns, for a slice of the rows, regardless of weights, the derivative of the loss at the fit, (row,
    column), of variance one if the model holds.
    """
    n_features, n_columns = coef.shape
    n_rows = min(_SOME_ROWS, max(_SOME_RESIDUALS // n_columns, 1))
    rows = slice(None, None, max(1, X.shape[0] // n_rows))
    some = X[rows]
    if np.std(some @ coef.astype(some.dtype), axis=0).max(initial=0.0) >= _FLAT:
        return
    r = residual(rows)
    r = (r - r.mean(axis=0)) / np.sqrt(np.maximum(np.mean(r**2, axis=0), 1.0))  # more varied than the model allows
    mean = np.asarray(some.mean(axis=0), np.float64).ravel()
    square = some.multiply(some) if scipy.sparse.issparse(some) else np.square(some, dtype=np.float64)
    variance = np.asarray(square.mean(axis=0)).ravel() - mean**2
    seen = variance > 1e-6 * mean**2  # the others are constant to rounding
    score = np.asarray(some.T @ r)[seen] ** 2 / (len(r) * variance[seen, None])
    if np.max(score, initial=0.0) > chi2.isf(1e-3 / (n_features * n_columns), 1):
        warn_user(
            "the penalty leaves next to nothing of the coefficients, although the features are informative: with "
            f"{penalty} no linear predictor has a standard deviation above {_FLAT:g}. {advice}"
        )


def residual(problem: PopulationProblem, params: Params, rows: slice) -> np.ndarray:
    """Compute the derivative of the loss of a slice of rows, over its standard deviation under the model."""
    eta = problem.X[rows].astype(np.float64) @ params.coef + params.intercept
    eta = eta if problem.offset is None else eta + problem.offset[rows]
    y = np.asarray(problem.Y[rows], np.float64)
    r, variance = problem.observation.derivative(y, eta), problem.observation.curvature(y, eta).mean(axis=0)
    return r / np.sqrt(np.maximum(variance, np.finfo(float).tiny))
