"""Rows of a softmax model a few at a time, and the curvature of their quadratic bounds: what stochastic solvers need.

Float64 on the host, in the coordinates of `SoftmaxView` and, across classes, along Helmert contrasts, which leave out
the shift that changes no probability. Parameters are one vector, (contrast * column,), columns being the features and
last the intercept if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy.linalg.blas import dsymm, dsymv, dsyrk, dtrsm

from ..bounds import LowRankPlusDiagonal, softmax_bound
from ..problems._chunks import small_blas
from ..problems._softmax_view import SoftmaxView
from ..problems.base import Params

_MOST_FULL = 3000  # parameters up to which an inverse is kept: 72 MB
_FACTORS, _NUMBERS = 128, 1 << 21  # rank-one factors, and numbers in them, at a time
_CONDITION = 1e10  # most that the data's curvature may exceed the one to begin with, so that an inverse keeps digits


class RowBatch(NamedTuple):
    """Some rows at some parameters.

    Attributes
    ----------
    z : numpy.ndarray
        Features in the view's coordinates and 1 for the intercept, (row, column).
    scores : numpy.ndarray
        (row, class).
    totals : numpy.ndarray
        n_i, (row,).
    gradient : numpy.ndarray
        Of the sum of their losses and of their share of the ridge, (parameter,).
    """

    z: np.ndarray
    scores: np.ndarray
    totals: np.ndarray
    gradient: np.ndarray


class ContrastRows:
    """Rows of a `SoftmaxView`, in any order.

    Attributes
    ----------
    n_rows, n_parameters : int
        How many there are.
    """

    def __init__(self, view: SoftmaxView):
        self._view, self.n_rows = view, view.n_rows
        self._contrasts = scipy.linalg.helmert(view.n_classes)  # (contrast, class), orthonormal
        self._shape = view.n_classes - 1, len(view.variance) + view.fit_intercept
        self.n_parameters = self._shape[0] * self._shape[1]

    def to_vector(self, params: Params) -> np.ndarray:
        """Map coefficients (feature, class) and intercepts to one vector."""
        return (self._contrasts @ self._view.to_columns(params)[: self._shape[1]].T).ravel()

    def to_params(self, theta: np.ndarray) -> Params:
        """Map them back."""
        v = np.zeros((len(self._view.variance) + 1, self._view.n_classes))
        v[: self._shape[1]] = theta.reshape(self._shape).T @ self._contrasts
        return self._view.from_columns(v)

    def visit(self, theta: np.ndarray, rows: np.ndarray) -> RowBatch:
        """Evaluate some rows; cost: rows times columns times classes."""
        view, d, theta = self._view, len(self._view.variance), theta.reshape(self._shape)
        z, totals = self._columns(rows), view.totals[rows]
        scores = z @ theta.T @ self._contrasts
        if view.offset is not None:
            scores += view.offset[rows]
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        residual = totals / p.sum(axis=1, keepdims=True) * p
        place, label, count = _entries(view.counts, rows)
        residual[place, label] -= count
        gradient = (residual @ self._contrasts.T).T @ z
        gradient[:, :d] += len(rows) * view.strength * theta[:, :d]
        return RowBatch(z, scores, totals[:, 0], gradient.ravel())

    def _columns(self, rows: np.ndarray) -> np.ndarray:
        view, d = self._view, len(self._view.variance)
        z = np.ones((len(rows), self._shape[1]))
        if view.sparse:
            z[:, :d] = -view.mean
            place, column, value = _entries(view.rows, rows)
            z[place, column] += value
        else:
            z[:, :d] = view.rows[rows]
        return z

    def factors(self, batch: RowBatch, order: str) -> Iterator[np.ndarray]:
        """Yield rank-one factors q of the curvature of the rows' bounds, some at a time, (factor, parameter).

        They are the vectors ``a (x) z`` whose ``q q'`` add up to ``n_i C_i (x) z_i z_i'``: K - 1 of every row, twice
        as many for the order "averaged".
        """
        A = softmax_bound(batch.scores, order).factors() @ self._contrasts.T
        A *= np.sqrt(batch.totals)[:, None, None]
        place = np.repeat(np.arange(len(A)), A.shape[1])
        A = A.reshape(-1, A.shape[2])
        size = max(1, min(_FACTORS, _NUMBERS // self.n_parameters))
        for start in range(0, len(A), size):
            part = slice(start, start + size)
            q = A[part, :, None] * batch.z[place[part], None]
            yield q.reshape(len(q), -1)

    def start_curvature(self, rank: int | None) -> InverseCurvature | LowRankPlusDiagonal:
        """Return the curvature to begin with, whole (``rank`` None) or in low rank plus diagonal.

        Raises
        ------
        ValueError
            If there is no ridge to begin with, or too many parameters for the whole.
        """
        n = self.n_parameters
        if rank is None and n > _MOST_FULL:
            K, columns = self._shape[0] + 1, self._shape[1]
            raise ValueError(
                f"rank is None and the model has {n} parameters ({columns} columns times {K} - 1 classes); an inverse "
                f"of the whole curvature is kept for at most {_MOST_FULL}. Give a rank, for example rank=10."
            )
        return InverseCurvature(self.diagonal) if rank is None else LowRankPlusDiagonal(self.diagonal, rank)

    @property
    def diagonal(self) -> np.ndarray:
        """Curvature before any row was seen, (parameter,), of the sum over rows.

        The ridge's, but at least a 1e-10th of what the data may have. Intercepts, which have no ridge, begin with as
        much, or with the weight of one row if that is less: a strong ridge shall not hold them back.
        """
        view = self._view
        ridge = view.n_rows * view.strength
        if not ridge > 0:
            raise ValueError(
                f"the ridge's strength is {view.strength:g}; stochastic majorization begins from the curvature of the "
                "ridge, so it must be positive. A weak one will do, for example 1e-6."
            )
        weight = float(view.totals.mean())
        least = view.n_rows * weight / 2 / _CONDITION
        column = np.maximum(ridge, least * np.append(view.variance, 1.0))[: self._shape[1]]
        if view.fit_intercept:
            column[-1] = max(min(ridge, weight), least)
        return np.tile(column, self._shape[0])

    @staticmethod
    def one_thread():
        """Context for many small steps, in which BLAS keeps to one thread: waking others costs more than it saves."""
        return small_blas(0)


class InverseCurvature:
    """Inverse M of a positive diagonal plus rank-one matrices, by Woodbury's identity.

    Only the lower triangle exists, so M is symmetric whatever rounding does.

    Parameters
    ----------
    diagonal : numpy.ndarray
        (parameter,), positive.
    """

    def __init__(self, diagonal: np.ndarray):
        self._lower = np.asfortranarray(np.diag(1 / diagonal))

    def add_many(self, Q: np.ndarray) -> None:
        """Add ``Q'Q`` to the matrix whose inverse this is; cost: 3 factors parameters squared flops."""
        U = dsymm(1.0, self._lower, Q.T, lower=1)
        inner = Q @ U
        inner.flat[:: len(inner) + 1] += 1
        W = dtrsm(1.0, np.linalg.cholesky(inner), U, side=1, lower=1, trans_a=1, overwrite_b=1)
        self._lower = dsyrk(-1.0, W, beta=1.0, c=self._lower, lower=1, overwrite_c=1)

    def solve(self, u: np.ndarray) -> np.ndarray:
        """M times u."""
        return dsymv(1.0, self._lower, u, lower=1)


def _entries(matrix, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Place among the rows, column and value of every entry of some rows of a CSR matrix."""
    start = matrix.indptr[rows]
    size = matrix.indptr[rows + 1] - start
    end = np.cumsum(size)
    entry = np.arange(end[-1]) + np.repeat(start - end + size, size)
    return np.repeat(np.arange(len(rows)), size), matrix.indices[entry], matrix.data[entry]
