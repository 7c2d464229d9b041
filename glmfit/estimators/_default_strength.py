"""Ridge that suits a recording as it comes, and a word where a penalty leaves nothing.

Theory: docs/theory/default_strength.md. Measured on recordings: docs/decisions/0013-default-strengths.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse
from scipy.stats import chi2

from .._warn import warn_user
from ..problems import PopulationProblem

_SHARE = 0.05  # of the median variance of the directions of the features
_LEAST = 1e-6  # of the largest variance: the median counts as no less
_ROUNDING = 1e-12  # of the largest variance: what is below is 0
_TRIED = 64  # strengths at which the marginal likelihood is computed, over five decades or so
_STRONGEST = 10.0  # times the largest curvature: an eleventh of the unpenalised coefficients is left
_FLAT = 1e-2  # standard deviation of the linear predictor
_SOME_ROWS = 10_000
_SOME_RESIDUALS = 10_000_000  # rows times columns


def default_ridge(problem: PopulationProblem, total_weight: float) -> np.ndarray:
    """Choose a ridge for every neuron by marginal likelihood, no weaker than the features ask for.

    Parameters
    ----------
    problem :
        Data and observation model; the penalty does not matter as long as a rotation leaves it alone.
    total_weight :
        Sum of the weights of the rows, exposure included: two of one row count as that row twice.

    Returns
    -------
    numpy.ndarray
        Strength per neuron, (neuron,).

    Notes
    -----
    The marginal likelihood (empirical Bayes; MacKay, Neural Computation 1992) of coefficients with independent Gaussian
    priors, of the quadratic approximation of the likelihood at the model without features. Strengths are no smaller
    than the smaller of ``trace(C) / T`` and a twentieth of the median eigenvalue of C (of those that are not 0), C the
    covariance of the features and T ``total_weight``. They scale with the features, and no shift or rotation matters.
    Cost: one product of T d n_neurons besides the spectral basis, which the fit needs anyway.
    """
    basis = problem.basis
    variance = basis.variance[: basis.rank]
    variance = variance[variance > _ROUNDING * variance.max(initial=0.0)]
    if not variance.size:
        return np.ones(problem.n_neurons)
    weakest = min(variance.sum() / total_weight, _SHARE * max(np.median(variance), _LEAST * variance[0]))
    gradient = basis.whiten[:, : len(variance)].T @ problem.null_gradient()
    curvature = problem.null_curvature
    return _most_likely(gradient, curvature, variance, total_weight, weakest)


def _most_likely(gradient, curvature, variance, total_weight: float, weakest: float) -> np.ndarray:
    """Maximise the marginal likelihood over strengths, (neuron,).

    The mean loss is ``gradient * v + curvature v^2 / 2`` along each whitened direction (direction, neuron), and the
    prior of v is ``N(0, variance / (strength * total_weight))``.
    """
    surprise = total_weight * gradient**2 / np.where(curvature > 0, curvature, 1.0)  # chi-squared without any effect
    stiffness = curvature * variance[:, None]
    strongest = np.maximum(_STRONGEST * stiffness.max(axis=0), weakest)
    log_strengths, step = np.linspace(np.log(weakest), np.log(strongest), _TRIED, retstep=True)

    def loss(log_strength):
        ratio = stiffness * np.exp(-log_strength)  # curvature of the likelihood over that of the prior
        return np.sum(np.log1p(ratio) - surprise * ratio / (1 + ratio), axis=0)

    losses = np.stack([loss(s) for s in log_strengths])
    best = np.argmin(losses, axis=0)
    inside, columns = np.clip(best, 1, _TRIED - 2), np.arange(len(best))
    # The vertex of a parabola, so that rounding moves a strength a little and never by a step.
    before, at, after = (losses[inside + k, columns] for k in (-1, 0, 1))
    bend = before - 2 * at + after
    shift = np.where(best == inside, (before - after) / np.where(bend > 0, 2 * bend, np.inf), best - inside)
    return np.exp(log_strengths[inside, columns] + shift * step)


def warn_if_flat(X, coef: np.ndarray, strength, residual: Callable[[slice], np.ndarray]) -> None:
    """Warn once if a penalty leaves next to nothing of what the features tell.

    Parameters
    ----------
    X :
        Features, (row, feature), dense or sparse; every k-th row is looked at.
    coef : numpy.ndarray
        Coefficients, (feature, column).
    strength :
        Of the penalty; no warning without one.
    residual :
        Of a slice of the rows: derivative of the loss at the fit, (row, column), of variance one if the model holds.

    Notes
    -----
    Two things are asked: no linear predictor varies over the rows, and some feature is correlated with what is left
    to explain, by the score test of one feature at a time, at a level of 0.001 over all features and columns together.
    Features that tell nothing are not the penalty's fault. Weights of the rows are left aside.
    """
    if not np.any(np.asarray(strength) > 0):
        return
    n_features, n_columns = coef.shape
    n_rows = min(_SOME_ROWS, max(_SOME_RESIDUALS // n_columns, 1))
    rows = slice(None, None, max(1, X.shape[0] // n_rows))
    some = X[rows]
    if np.std(some @ coef, axis=0).max(initial=0.0) >= _FLAT:
        return
    r = residual(rows)
    r = (r - r.mean(axis=0)) / np.sqrt(np.maximum(np.mean(r**2, axis=0), 1.0))  # more varied than the model has it
    mean = np.asarray(some.mean(axis=0), np.float64).ravel()
    square = some.multiply(some) if scipy.sparse.issparse(some) else np.square(some, dtype=np.float64)
    variance = np.asarray(square.mean(axis=0)).ravel() - mean**2
    seen = variance > 1e-6 * mean**2  # the others are constant to rounding
    score = np.asarray(some.T @ r)[seen] ** 2 / (len(r) * variance[seen, None])
    if np.max(score, initial=0.0) > chi2.isf(1e-3 / (n_features * n_columns), 1):
        warn_user(
            "the penalty leaves next to nothing of the coefficients, although the features tell something: with "
            f"regularizer_strength {np.max(strength):.2g} no linear predictor has a standard deviation above "
            f"{_FLAT:g}. Pass a smaller one."
        )
