"""Ridge that suits a design as it comes, and a word where a penalty leaves nothing.

Measured on recordings: docs/decisions/0013-default-strengths.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse
from scipy.stats import chi2

from .._warn import warn_user
from ..problems._basis import weighted_moments

_SHARE = 0.05  # of the median variance of the directions of the features
_LEAST = 1e-6  # of the largest variance: the median counts as no less
_ROUNDING = 1e-12  # of the largest variance: what is below is 0
_FLAT = 1e-2  # standard deviation of the linear predictor
_SOME_ROWS = 10_000
_SOME_RESIDUALS = 10_000_000  # rows times columns


def default_ridge(X, weights: np.ndarray | None) -> float:
    """Choose a ridge by the covariance C of the features alone: it scales with them, and no shift or rotation matters.

    Parameters
    ----------
    X :
        Features, (time, feature), an array or what rows are read from.
    weights :
        Of the rows, exposure included, or None.

    Returns
    -------
    float
        The smaller of ``trace(C) / T`` (T the sum of the weights), the strength of a Gaussian prior under which the
        linear predictor has standard deviation one, and a twentieth of the median eigenvalue of C (of those that are
        not 0), which hardly shrinks what counts tell of correlated features. 1.0 for features that are constant.

    Notes
    -----
    Repeating a row is the same as doubling its weight.
    """
    total, mean_one = (len(X), None) if weights is None else (weights.sum(), weights / weights.mean())
    variances = np.linalg.eigvalsh(weighted_moments(X, mean_one)[1])
    variances = variances[variances > _ROUNDING * variances[-1]]
    if not variances.size:
        return 1.0
    return float(min(variances.sum() / total, _SHARE * max(np.median(variances), _LEAST * variances[-1])))


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
