"""Ridge that suits a design as it comes, and a word where a penalty leaves nothing.

Measured on recordings: docs/decisions/0013-default-strengths.md.
"""

from __future__ import annotations

import numpy as np

from .._warn import warn_user
from ..problems._basis import weighted_moments

_SHARE = 0.05  # of the median variance of the directions of the features
_LEAST = 1e-6  # of the largest variance, below which a direction is rounding
_FLAT = 1e-2  # standard deviation of the linear predictor
_SOME_ROWS = 10_000


def default_ridge(X, weights: np.ndarray | None) -> float:
    """Choose a ridge by the covariance C of the features alone: it scales with them, and no shift or rotation matters.

    Parameters
    ----------
    X :
        Features, (time, feature), an array or what rows are read from.
    weights :
        Of the rows, of mean one, or None.

    Returns
    -------
    float
        The smaller of ``trace(C) / T``, the strength of a Gaussian prior under which the linear predictor has standard
        deviation one, and a twentieth of the median eigenvalue of C (of the T largest), which shrinks little that
        counts of correlated features tell. 1.0 for features that are constant.
    """
    n_rows = len(X) if weights is None else int(np.count_nonzero(weights))
    variances = np.linalg.eigvalsh(weighted_moments(X, weights)[1])[::-1][: max(n_rows - 1, 1)]
    strength = min(variances.sum() / n_rows, _SHARE * max(np.median(variances), _LEAST * variances[0]))
    return float(strength) if strength > 0 else 1.0


def warn_if_flat(X, coef: np.ndarray, strength) -> None:
    """Warn once if a penalty leaves no column of coefficients, (feature, column), an effect on predictions."""
    if not np.any(np.asarray(strength) > 0):
        return
    some = X[:: max(1, X.shape[0] // _SOME_ROWS)]
    if np.std(some @ coef, axis=0).max(initial=0.0) < _FLAT:
        warn_user(
            "the penalty leaves next to nothing of the coefficients: with regularizer_strength "
            f"{np.max(strength):.2g} no linear predictor has a standard deviation above {_FLAT:g}. "
            "Give a weaker one, or leave it out for one that suits the data."
        )
