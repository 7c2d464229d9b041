"""Rows of a softmax model a few at a time, and the curvature of their quadratic bounds.

Float64 on the host. Features are measured from their mean, dense ones along the eigenvectors of their covariance, which
leave a ridge as it is; classes along Helmert contrasts, which leave out the shift that changes no probability.
Parameters are one vector, (contrast * column,), columns being the features and last the intercept if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.linalg.blas import dsymm, dsymv, dsyrk, dtrsm

from ..bounds import LowRankPlusDiagonal, softmax_bound
from ..engine.problem import Params

_ROTATED = 2048  # features up to which eigenvectors are worth their price
_MOST_FULL = 3000  # parameters up to which an inverse is kept: 72 MB
_FACTORS, _NUMBERS = 128, 1 << 21  # rank-one factors, and numbers in them, at a time
_CONDITION = 1e10  # most that the data's curvature may exceed the one to begin with, so that an inverse keeps digits


class RowBatch(NamedTuple):
    """Some rows at some parameters."""

    z: np.ndarray  # features in the view's coordinates and 1 for the intercept, (row, column)
    scores: np.ndarray  # (row, class)
    totals: np.ndarray  # n_i, (row,)
    gradient: np.ndarray  # of the sum of their losses and of their share of the ridge, (parameter,)


class ContrastRows:
    """Rows of a softmax problem, in any order; ``shape`` is that of parameters, contrasts and columns."""

    def __init__(self, problem):
        self.problem, self.n_rows = problem, problem.n_rows
        self.contrasts = scipy.linalg.helmert(problem.n_classes)  # orthonormal, (contrast, class)
        self.shape = problem.n_classes - 1, problem.n_features + problem.fit_intercept
        self.n_parameters = self.shape[0] * self.shape[1]
        X, weight = problem.X, problem.totals / problem.totals.sum()
        # Without intercepts nothing could make up for a shift.
        self._mean = np.asarray(X.T @ weight, np.float64).ravel() * problem.fit_intercept
        self._rotation = None
        if scipy.sparse.issparse(X):
            self._rows = X
            square = np.asarray(X.multiply(X).T @ weight, np.float64).ravel()
            self._variance = np.maximum(square - self._mean**2, 0.0)
            return
        self._rows = np.asarray(X, np.float64) - self._mean
        if X.shape[1] > _ROTATED:
            self._variance = weight @ self._rows**2
            return
        variance, self._rotation = np.linalg.eigh(self._rows.T @ (weight[:, None] * self._rows))
        self._variance = np.maximum(variance, 0.0)
        self._rows = self._rows @ self._rotation

    def to_vector(self, params: Params) -> np.ndarray:
        """Map coefficients (feature, class) and intercepts to one vector."""
        coef = np.asarray(params.coef, np.float64)
        v = coef if self._rotation is None else self._rotation.T @ coef
        if self.problem.fit_intercept:
            v = np.vstack([v, params.intercept + self._mean @ coef])
        return (self.contrasts @ v.T).ravel()

    def to_params(self, theta: np.ndarray) -> Params:
        """Map them back, without the shift common to all classes."""
        v, d = theta.reshape(self.shape).T @ self.contrasts, len(self._mean)
        coef = v[:d] if self._rotation is None else self._rotation @ v[:d]
        intercept = v[d] - self._mean @ coef if self.problem.fit_intercept else np.zeros(self.problem.n_classes)
        return Params(coef, intercept)

    def scores(self, z: np.ndarray, theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Scores of some rows, given their columns, (row, class)."""
        scores = z @ theta.reshape(self.shape).T @ self.contrasts
        return scores if self.problem.offset is None else scores + self.problem.offset[rows]

    def visit(self, theta: np.ndarray, rows: np.ndarray) -> RowBatch:
        """Evaluate some rows; cost: rows times columns times classes."""
        d, z, totals = len(self._mean), self.columns(rows), self.problem.totals[rows]
        scores = self.scores(z, theta, rows)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        residual = (totals / p.sum(axis=1))[:, None] * p
        place, label, count = _entries(self.problem.counts, rows)
        residual[place, label] -= count
        gradient = (residual @ self.contrasts.T).T @ z
        gradient[:, :d] += len(rows) * self.problem.strength * theta.reshape(self.shape)[:, :d]
        return RowBatch(z, scores, totals, gradient.ravel())

    def columns(self, rows: np.ndarray) -> np.ndarray:
        """Features of some rows, and a 1 if there is an intercept, (row, column)."""
        d, z = len(self._mean), np.ones((len(rows), self.shape[1]))
        if scipy.sparse.issparse(self._rows):
            z[:, :d] = -self._mean
            place, column, value = _entries(self._rows, rows)
            z[place, column] += value
        else:
            z[:, :d] = self._rows[rows]
        return z

    def factors(self, batch: RowBatch, order: str) -> Iterator[np.ndarray]:
        """Yield factors q (factor, parameter), some at a time, whose ``q q'`` add up to ``n_i C_i (x) z_i z_i'``."""
        A = softmax_bound(batch.scores, order).factors() @ self.contrasts.T
        A *= np.sqrt(batch.totals)[:, None, None]
        place = np.repeat(np.arange(len(A)), A.shape[1])
        A = A.reshape(-1, A.shape[2])
        size = max(1, min(_FACTORS, _NUMBERS // self.n_parameters))
        for start in range(0, len(A), size):
            part = slice(start, start + size)
            q = A[part, :, None] * batch.z[place[part], None]
            yield q.reshape(len(q), -1)

    def start_curvature(self, rank: int | None) -> InverseCurvature | LowRankPlusDiagonal:
        """Return the curvature to begin with, whole (``rank`` None) or in low rank plus diagonal."""
        n = self.n_parameters
        if rank is None and n > _MOST_FULL:
            K, columns = self.shape[0] + 1, self.shape[1]
            raise ValueError(
                f"rank is None and the model has {n} parameters ({columns} columns times {K} - 1 classes); an inverse "
                f"of the whole curvature is kept for at most {_MOST_FULL}. Give a rank, for example rank=10."
            )
        return InverseCurvature(self.diagonal) if rank is None else LowRankPlusDiagonal(self.diagonal, rank)

    @property
    def diagonal(self) -> np.ndarray:
        """Curvature of the sum over rows before any was seen, (parameter,): the ridge's, or a 1e-10th of the data's."""
        problem = self.problem
        ridge = self.n_rows * problem.strength
        if not ridge > 0:
            raise ValueError(
                f"the ridge's strength is {problem.strength:g}; stochastic majorization begins from the curvature of "
                "the ridge, so it must be positive. A weak one will do, for example 1e-6."
            )
        weight = float(problem.totals.mean())
        least = self.n_rows * weight / 2 / _CONDITION
        column = np.maximum(ridge, least * np.append(self._variance, 1.0))[: self.shape[1]]
        if problem.fit_intercept:  # at most the weight of one row: a strong ridge shall not hold intercepts back
            column[-1] = max(min(ridge, weight), least)
        return np.tile(column, self.shape[0])


class InverseCurvature:
    """Inverse of a positive diagonal, (parameter,), plus rank-one matrices, by Woodbury: its lower triangle."""

    def __init__(self, diagonal: np.ndarray):
        self._lower = np.asfortranarray(np.diag(1 / diagonal))

    def add_many(self, Q: np.ndarray) -> None:
        """Add ``Q'Q`` to the matrix whose inverse this is, in 3 flops per factor and pair of parameters."""
        U = dsymm(1.0, self._lower, Q.T, lower=1)
        inner = Q @ U
        inner.flat[:: len(inner) + 1] += 1
        W = dtrsm(1.0, np.linalg.cholesky(inner), U, side=1, lower=1, trans_a=1, overwrite_b=1)
        self._lower = dsyrk(-1.0, W, beta=1.0, c=self._lower, lower=1, overwrite_c=1)

    def solve(self, u: np.ndarray) -> np.ndarray:
        """Inverse times u."""
        return dsymv(1.0, self._lower, u, lower=1)


def _entries(matrix, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Place among the rows, column and value of every entry of some rows of a CSR matrix."""
    start = matrix.indptr[rows]
    size = matrix.indptr[rows + 1] - start
    end = np.cumsum(size)
    entry = np.arange(end[-1]) + np.repeat(start - end + size, size)
    return np.repeat(np.arange(len(rows)), size), matrix.indices[entry], matrix.data[entry]
