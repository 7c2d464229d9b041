"""Gap bound from the whole Hessian of a small softmax model, and whether the model has an optimum at all."""

import numpy as np
import scipy.linalg

from ...bounds import gap_bound
from ..exact.recession import may_be_separated
from ..metric import OwnMetric
from ..tiles import tiles_of
from .rows import ClassRows

_DENSE_HESSIAN = 2000  # parameters up to which the whole Hessian is formed for a bound
_DENSE_WORK = 5e10
_ROWS = 256  # rows from which it is formed at a time
_FAR_APART = 30.0  # range of a row's scores at which probabilities are 1e-13


def has_small_hessian(n_rows: int, n_columns: int, n_classes: int) -> bool:
    """Whether the whole Hessian is cheap to form."""
    return n_columns * (n_classes - 1) <= _DENSE_HESSIAN and n_rows * (n_columns * n_classes) ** 2 <= _DENSE_WORK


def bound_by_hessian(cg, objective: float) -> float:
    """Bound F - F* by self-concordance, from the whole Hessian; infinite if that proves nothing.

    Proof: docs/theory/softmax_gap.md, Proposition 2.
    """
    rows, whole = cg.rows, WholeHessian(cg)
    values, vectors = np.linalg.eigh(whole.matrix)
    rounding = 64 * np.finfo(float).eps * values[-1] * len(values)
    least = values[0] - rounding
    if not least > 0:
        return np.inf
    decrement = np.sum((vectors.T @ whole.inside(cg.gradient)) ** 2 / (values - rounding))
    # A range is at most sqrt 2 times a norm.
    reach = 2 * np.max(np.sum(whole.z**2, axis=1)[rows.totals > 0]) / least
    slack = 64 * np.finfo(float).eps * (abs(objective) + 1)
    return float(gap_bound(decrement, reach, attained=cg.strength > 0)) + slack


class WholeHessian:
    """Hessian of a softmax model orthogonal to the shift common to all classes, with ridge, in units of mean curvature.

    ``matrix`` is ((class - 1) * column) square; ``z`` are the columns of all rows in these units, (row, column).
    """

    def __init__(self, cg):
        rows, K = cg.rows, len(cg.intercept)
        d = len(cg.coef) + rows.fit_intercept
        self.z = rows.columns(np.arange(rows.n_rows))[:, :d]
        (full,) = rows.add(lambda tile: (curvature_of_rows(self.z[tile], rows.probabilities(tile), rows.totals[tile]),),
                           tiles_of(rows.n_rows, _ROWS))  # fmt: skip
        full /= rows.n_rows
        ridge = np.append(np.full(len(cg.coef), cg.strength), 0)[:d]
        # One metric for all classes, so that the common shift stays apart: the mean of their curvatures.
        scale = np.einsum("kjkj->j", full) / K + ridge
        self._root = np.sqrt(np.where(scale > 0, scale, 1.0))
        self.z = self.z / self._root
        full /= self._root[:, None, None] * self._root
        self._contrast = scipy.linalg.helmert(K).T  # (class, class - 1), orthonormal, orthogonal to the shift
        reduced = np.einsum("ka,kilj,lb->aibj", self._contrast, full, self._contrast, optimize=True)
        self.matrix = reduced.reshape((K - 1) * d, (K - 1) * d) + np.diag(np.tile(ridge / self._root**2, K - 1))
        self._metric = None

    def inside(self, g: np.ndarray) -> np.ndarray:
        """Write a gradient as one vector in these units."""
        return ((g[: len(self._root)] / self._root[:, None]) @ self._contrast).T.ravel()

    def solve(self, g: np.ndarray) -> np.ndarray:
        """Apply the inverse to a gradient."""
        if self._metric is None:
            self._metric = OwnMetric(self.matrix, np.zeros(len(self.matrix) - 1), np.ones(len(self.matrix) - 1))
        x = self._metric.solve(self.inside(g)).reshape(len(self._contrast) - 1, -1).T @ self._contrast.T
        z = np.zeros_like(g)
        z[: len(x)] = x / self._root[:, None]
        return z


def curvature_of_rows(z: np.ndarray, p: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Sum the Hessians of some rows, (class, column, class, column)."""
    (n, d), K = z.shape, p.shape[1]
    paired = (p[:, :, None] * z[:, None]).reshape(n, K * d)
    full = -(paired.T @ (totals[:, None] * paired)).reshape(K, d, K, d)
    for k in range(K):  # a difference of sums would cancel where rows are nearly certain
        full[k, :, k] = (totals * p[:, k] * (1 - p[:, k]) * z.T) @ z
    return full


def is_separated(problem, rows: ClassRows) -> bool:
    """Whether classes are separable, at least in some rows: then no finite model without a ridge is optimal.

    Certain if every row has one class, with the highest score; otherwise searched for if scores are far apart.
    """
    offset = problem.offset
    if offset is None and problem.n_pairs == problem.n_rows == len(np.unique(problem.pairs.row)):

        def is_right(tile):
            eta = rows.scores(tile)
            own = np.take_along_axis(eta, problem.pairs.label[tile, None], axis=1)
            return bool(np.all(np.sum(eta >= own, axis=1) == 1))

        if all(rows.each_tile(is_right)):
            return True

    def spread(tile):
        return np.max(np.ptp(rows.scores(tile) - (0 if offset is None else offset[tile]), axis=1))

    return bool(max(rows.each_tile(spread)) > _FAR_APART and may_be_separated(problem, rows.columns) is True)
