"""Tests of whether a smooth term is needed: Wood's, with exact null distributions.

``coordinates``, ``covariance`` and ``penalty`` are those of a term: (coordinate,), their posterior covariance and the
inverse of their prior one, (coordinate, coordinate). ``residual_df`` are the degrees of freedom on which an estimated
scale rests, infinite for models without one.

S. Wood, On p-values for smooth components of an extended generalized additive model, Biometrika 100 (2013); A simple
test for random effects in regression models, Biometrika 100 (2013).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...threads import one_thread_each

_ROUNDING = 1e-14  # of the largest eigenvalue: what has no variance
UNSEEN = 1e-9  # degrees of freedom that rounding leaves to a direction without data
_PENALISED = 1e-8  # of the largest eigenvalue of one penalty: what is penalised
_FREE = 1e-12  # of the largest eigenvalue of a penalty: what is not penalised
_LEAST_PRIOR = 1e-10  # of a direction's precision, if rounding hides that of its prior
_LEAST_DF, _HALVINGS = 1e-6, 60  # degrees of freedom of a term, from either end; steps to a strength
_NODES, _END = 200, 8.0  # of the integral along a contour


class TermTest(NamedTuple):
    """Reference degrees of freedom of the statistic, the statistic and its p-value."""

    reference_df: float
    statistic: float
    p_value: float


NO_TEST = TermTest(np.nan, np.nan, np.nan)


def penalty_of(matrices, strengths: np.ndarray, turn: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the penalty of a term's coordinates at its strengths, that at equal ones, and whether nothing is free."""
    penalty, pattern = np.zeros((turn.shape[1],) * 2), np.zeros((turn.shape[1],) * 2)
    for strength, S in zip(strengths, matrices, strict=True):
        if strength > 0:
            turned = turn.T @ S @ turn
            least = np.linalg.eigvalsh(turned)  # what is penalised least counts alike
            pattern = pattern + turned / least[least > _PENALISED * least[-1]].min()
            penalty = penalty + strength * turned
    values = np.linalg.eigvalsh(pattern)
    return penalty, pattern, bool(len(values) and values[0] > _FREE * values[-1])


def smooth_test(
    coordinates: np.ndarray, covariance: np.ndarray, gram: np.ndarray, df: float, residual_df: float = np.inf
) -> TermTest:
    """Test that a term with an unpenalised part is 0 everywhere.

    ``gram`` has the second moments of the coordinates' features over the rows, in any unit; ``df`` is the sum of the
    diagonal of 2 F - F F. With the curve at the rows ``f = R g``, R'R the second moments, and its covariance ``V = R C
    R'``, the statistic is ``f' V^(r-) f`` with the pseudo-inverse of rank r = df: after the k = floor(r) largest
    eigenvalues the next counts by the fraction q that is left. If the term is 0 it is distributed as a sum of squares
    of k - 1 normals and of two with weights ``(1 + q +- sqrt(1 - q^2)) / 2``. The pseudo-inverse has two versions,
    which differ by the sign of an eigenvector, which is arbitrary: the statistic and the p-value are the means of both.
    """
    values, vectors = np.linalg.eigh(gram)
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    variance, axes = np.linalg.eigh(root @ covariance @ root.T)
    variance, axes = variance[::-1], axes[:, ::-1]
    rank = int(np.sum(variance > _ROUNDING * max(variance[0], 0.0)))
    if rank == 0:
        return NO_TEST
    z = (axes[:, :rank].T @ root @ coordinates) / np.sqrt(variance[:rank])
    df = min(max(df, 0.0), float(rank))
    k = max(int(df), 1)  # a term of less than one degree of freedom counts with one direction
    q = max(df - k, 0.0)
    plain = float(z[:k] @ z[:k])
    if q == 0.0:
        return TermTest(df, plain, tail(plain, np.ones(k), residual_df))
    statistic, across = plain + q * z[k] ** 2, np.sqrt(2 * q * (1 - q)) * z[k - 1] * z[k]
    weights = np.append(np.ones(k - 1), (1 + q + np.array([1, -1]) * np.sqrt(1 - q**2)) / 2)
    both = [tail(statistic + sign * across, weights, residual_df) for sign in (1, -1)]
    return TermTest(df, float(statistic), float(np.mean(both)))


def shrunken_test(
    coordinates: np.ndarray, covariance: np.ndarray, penalty: np.ndarray, residual_df: float = np.inf
) -> TermTest:
    """Test that a term that is shrunk as a whole is 0: a ridge, ARD, a cyclic smooth, a Fourier series.

    The data alone have the precision J, which the posterior adds to that of the prior S: ``C^-1 = J + S``. The
    statistic is ``g' C^-1 g``, how much less the penalised deviance is with the term than without; if the term is 0 it
    is distributed as the sum of f_i times squares of normals, f the eigenvalues of ``C J``, the degrees of freedom of
    every direction, whose sum is the reference. Both fall to 0 together as strengths rise, so p-values stay right if a
    strength ran to the end of its range.
    """
    f, left, z, _ = _shrunken(coordinates, covariance, penalty)
    statistic = float(np.sum(z**2 / left))
    return TermTest(float(f.sum()), statistic, tail(statistic, f, residual_df))


def _shrunken(coordinates, covariance, penalty) -> tuple[np.ndarray, ...]:
    """Directions of a term that the data determine: degrees of freedom f, 1 - f, components, and their axes.

    With R the root of the penalty, (coordinate, direction) axes V, and z the components of R g, the precision of the
    data alone is ``R V f / (1 - f) V' R``.
    """
    values, vectors = np.linalg.eigh(penalty)
    # Where strengths are far apart, rounding of the largest hides the smallest: such directions are all but free.
    lost = np.abs(values) <= np.finfo(float).eps * values.size * np.max(np.abs(values), initial=0.0)
    spread = np.sum(vectors * (covariance @ vectors), axis=0)
    free = _LEAST_PRIOR / np.where(lost & (spread > 0), spread, np.inf)
    root = np.sqrt(np.where(lost, free, np.maximum(values, 0.0)))[:, None] * vectors.T
    shrunk, axes = np.linalg.eigh(root @ covariance @ root.T)  # of every direction 1 - f
    seen = (shrunk < 1 - UNSEEN) & (shrunk > 0)
    axes, shrunk = axes[:, seen], shrunk[seen]
    return 1 - shrunk, shrunk, axes.T @ root @ coordinates, root.T @ axes


def shrunken_test_of_several(
    coordinates: np.ndarray, covariance: np.ndarray, penalty: np.ndarray, pattern: np.ndarray,
    residual_df: float = np.inf,
) -> TermTest:  # fmt: skip
    """Test that a term with several penalties, which shrink it as a whole, is 0: a map with ``select``, ARD.

    ``pattern`` is the penalty at equal strengths, in any unit. Strengths that the data have chosen one by one leave
    free what the noise of these rows happens to need, and `shrunken_test`, which is right for given ones, then finds
    too much. This is its statistic at equal strengths t, with which the term has as many degrees of freedom: ``u' (J +
    t P)^-1 u`` with the score ``u = C^-1 g`` and the precision ``J = C^-1 - S`` that the data alone have. Without an
    effect u has the covariance J. The strengths must not be too far apart.
    """
    f, left, z, turn = _shrunken(coordinates, covariance, penalty)
    values, vectors = np.linalg.eigh(pattern)
    turn = (vectors / np.sqrt(values)).T @ turn
    directions, m, _ = np.linalg.svd(turn * np.sqrt(f / left), full_matrices=False)  # of J = turn f / left turn'
    m = m**2
    kept = m > _ROUNDING * np.max(m, initial=0.0)
    m, z = m[kept], directions[:, kept].T @ (turn @ (z / left))
    if not len(m):
        return NO_TEST
    df = float(np.clip(f.sum(), _LEAST_DF, len(m) * (1 - _LEAST_DF)))
    low, high = np.log(m[0]) - 40, np.log(m[-1]) + 40  # logarithms of strengths
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.sum(m / (m + np.exp(middle))) > df else (low, middle)
    line = m + np.exp(middle)
    statistic = float(np.sum(z**2 / line))
    return TermTest(df, statistic, tail(statistic, m / line, residual_df))


@one_thread_each()
def tail(statistic: float, weights: ArrayLike, residual_df: float = np.inf) -> float:
    """Compute the probability that a sum of squares of normals, with weights >= 0, (term,), exceeds a value.

    If ``residual_df`` is finite, the sum is divided by an estimated scale: an independent chi-squared variable of these
    degrees of freedom, over their number. Exact, to a relative error below 1e-4, and below 1e-7 in the upper half,
    however far in the tail: the moment generating function is inverted by the trapezoidal rule along a parabola through
    the saddle point, around the branch cut, where nothing oscillates.
    """
    from scipy.optimize import brentq
    from scipy.special import chdtrc, fdtrc

    w, times = np.unique(np.asarray(weights, np.float64), return_counts=True)
    w, times = w[w > 0], times[w > 0]
    if not len(w) or not statistic > 0:
        return 1.0 if statistic <= 0 else 0.0 if not np.isnan(statistic) else np.nan
    q, w, n = statistic / w[-1], w / w[-1], int(times.sum())
    known = np.isinf(residual_df)
    if len(w) == 1:
        return float(chdtrc(n, q) if known else fdtrc(n, residual_df, q / n))
    if not known:  # weights of what is compared with 0
        w, times, q = np.append(w, -q / residual_df), np.append(times, residual_df), 0.0

    def slope(s):
        return np.sum(times * w / (1 - 2 * w * s)) - q - 1 / s

    # The exponent is convex from 0 to the branch point at 1 / 2, where its slope goes to infinity.
    s0 = brentq(slope, 1e-12 / (1 + statistic + n), 0.5 * (1 - 1e-15), xtol=1e-16, rtol=1e-14)
    each = w / (1 - 2 * w * s0)
    second = np.sum(2 * times * each**2) + 1 / s0**2
    third = np.sum(8 * times * each**3) - 2 / s0**3
    v = (np.arange(_NODES) + 0.5) * _END / _NODES
    t, bend, width = np.sinh(v), max(third / (6 * second**2), 0.0), 1 / np.sqrt(second)
    s = s0 + bend * t**2 + 1j * width * t
    log = -0.5 * np.log(1 - 2 * w * s[:, None]) @ times - s * q - np.log(s)
    found = np.exp(log) * (2 * bend * t + 1j * width) * np.cosh(v)
    return float(min(np.sum(found.imag) * _END / _NODES / np.pi, 1.0))
