"""Rows of a softmax model a few at a time, and the sum of their quadratic bounds.

Float64 on the host. Features are measured from their mean, dense ones along the eigenvectors of their covariance, which
leave a ridge unchanged; classes along Helmert contrasts, which exclude the shift that changes no probability.
Parameters are one vector, (contrast * column,); columns are the features, then the intercept if there is one.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from ..bounds import softmax_bound
from ..engine.exact.quadratic import minimise
from ..engine.problem import Params
from ..engine.tiles import tiles_of
from .coordinates import Coordinates

ROTATED = 2048  # features up to which eigenvectors are worth their cost
_FACTORS, _NUMBERS = 128, 1 << 21  # rank-one factors, and numbers in them, at a time
_PARAMETERS = 5000  # whose square matrix takes 200 MB
_AT_ONCE = 4_000_000  # numbers in memory for some rows
_FORM_ANEW = 16  # passes after which rounding of the differences is dropped
_FORCING, _STEPS = 0.1, 50  # share of the gradient's norm left by a visit; maximum conjugate gradient steps
_FLOOR, _FLAT = 1e-12, 1e-14  # of the largest curvature: added to keep the factor off 0; counted as none


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
        # Without intercepts nothing could compensate for a shift.
        mean, rotation = np.asarray(X.T @ weight, np.float64).ravel() * problem.fit_intercept, None
        if scipy.sparse.issparse(X):
            self._rows = X
            variance = np.asarray(X.multiply(X).T @ weight, np.float64).ravel() - mean**2
        else:
            self._rows = np.asarray(X, np.float64) - mean
            if X.shape[1] > ROTATED:
                variance = weight @ self._rows**2
            else:
                variance, rotation = np.linalg.eigh(self._rows.T @ (weight[:, None] * self._rows))
                self._rows = self._rows @ rotation
        self.variance = np.maximum(variance, 0.0)
        self._coordinates = Coordinates(mean, rotation, np.ones(len(mean)))

    def to_vector(self, params: Params) -> np.ndarray:
        """Map coefficients (feature, class) and intercepts to one vector."""
        v, intercept = self._coordinates.inside(params)
        v = np.vstack([v, intercept]) if self.problem.fit_intercept else v
        return (self.contrasts @ v.T).ravel()

    def to_params(self, theta: np.ndarray) -> Params:
        """Map a vector back to parameters, without the shift common to all classes."""
        v, d = theta.reshape(self.shape).T @ self.contrasts, self.problem.n_features
        intercept = v[d] if self.problem.fit_intercept else np.zeros(self.problem.n_classes)
        return self._coordinates.outside(Params(v[:d], intercept))

    def scores(self, z: np.ndarray, theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Scores of some rows, given their columns, (row, class)."""
        scores = z @ theta.reshape(self.shape).T @ self.contrasts
        return scores if self.problem.offset is None else scores + self.problem.offset[rows]

    def visit(self, theta: np.ndarray, rows: np.ndarray) -> RowBatch:
        """Evaluate some rows; cost: rows times columns times classes."""
        d, z, totals = self.problem.n_features, self.columns(rows), self.problem.totals[rows]
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
        d, z = self.problem.n_features, np.ones((len(rows), self.shape[1]))
        if scipy.sparse.issparse(self._rows):
            z[:, :d] = -self._coordinates.mean
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


def _entries(matrix, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Place among the rows, column and value of every entry of some rows of a CSR matrix."""
    start = matrix.indptr[rows]
    size = matrix.indptr[rows + 1] - start
    end = np.cumsum(size)
    entry = np.arange(end[-1]) + np.repeat(start - end + size, size)
    return np.repeat(np.arange(len(rows)), size), matrix.indices[entry], matrix.data[entry]


class Surrogates(NamedTuple):
    """Parameters, anchors of all rows, and the sum of their surrogates there."""

    theta: np.ndarray  # parameters, (contrast, column)
    # Scores at which the surrogate of each row touches, (row, class), kept as they were: classes of equal score then
    # come in the same order when its curvature is computed again to be taken away.
    anchor: np.ndarray
    bound: float  # value of the sum: at least F
    gradient: np.ndarray  # of the sum, (contrast, column)
    curvature: np.ndarray  # of the sum, over all parameters, square
    age: int  # passes since the sum was formed from its anchors
    passes: int  # over the rows, in total


class SurrogateSum(ContrastRows):
    """Sum of the surrogates of a softmax problem's rows, formed and minimised if a matrix of all parameters fits."""

    def __init__(self, problem):
        super().__init__(problem)
        if self.n_parameters > _PARAMETERS:
            raise ValueError(
                f"{problem.n_features} features and {problem.n_classes} classes make {self.n_parameters} parameters, "
                "(features + 1) * (classes - 1); IncrementalMajorization keeps a matrix over all of them and takes at "
                f"most {_PARAMETERS}. Use BoundMajorization or ConjugateGradients, which form no such matrix."
            )
        self._counts, self._weight = problem.counts.toarray() / self.n_rows, problem.totals[:, None] / self.n_rows
        self._ridge = np.full(self.shape[1], problem.strength)
        self._ridge[problem.n_features :] = 0.0

    def start(self, params: Params, order: str) -> Surrogates:
        """Let the surrogates of all rows touch at a start: one pass over the rows."""
        theta = self.to_vector(params).reshape(self.shape)
        parts = self._parts(np.arange(self.n_rows))
        anchor = np.concatenate([self.scores(self.columns(rows), theta, rows) for rows in parts])
        return Surrogates(theta, anchor, *self._form(theta, anchor, order), 0, 1)

    def visit(self, at: Surrogates, blocks: list[np.ndarray], order: str, lead: float) -> Surrogates:
        """Replace the surrogates of each block of rows, and minimise the sum after each; ``at`` is not changed."""
        passes, age = at.passes + any(len(rows) for rows in blocks), at.age + 1
        bound, gradient, curvature = at.bound, at.gradient, at.curvature.copy()
        if at.age >= _FORM_ANEW:
            passes, age = passes + 1, 1
            bound, gradient, curvature = self._form(at.theta, at.anchor, order)
        theta, anchor, solve = at.theta, at.anchor.copy(), None
        for rows in blocks:
            down, turn = self._replace(theta, anchor, curvature, rows, order, lead)
            most = float(np.max(curvature.diagonal()))
            if solve is None:  # made once: the curvature changes little in a pass
                lifted = curvature.copy()  # off 0 where nothing bends
                lifted[np.diag_indices_from(lifted)] += _FLOOR * most + 1e-100
                factor = scipy.linalg.cho_factor(lifted, overwrite_a=True, check_finite=False)
                solve = partial(scipy.linalg.cho_solve, factor, check_finite=False)
            step, further_down, gradient = minimise(
                curvature.__matmul__, solve, (gradient + turn).ravel(), _STEPS, _FORCING, _FLAT * most
            )
            theta, gradient = theta + step.reshape(self.shape), gradient.reshape(self.shape)
            bound = bound - down - further_down
        return Surrogates(theta, anchor, bound, gradient, curvature, age, passes)

    # ----------------------------------------------------------------------------------------- rows

    def _form(self, theta, anchor, order: str):
        """Value, gradient and curvature of the sum."""
        bound, gradient = float(np.sum(self._ridge * theta**2)) / 2, self._ridge * theta
        curvature = np.diag(np.tile(self._ridge, self.shape[0]))
        for rows in self._parts(np.arange(self.n_rows)):
            z = self.columns(rows)
            value, slope, C = self._quadratics(rows, anchor[rows], self.scores(z, theta, rows), order)
            bound += float(np.sum(value))
            gradient = gradient + slope.T @ z
            self._add(curvature, z, C)
        return bound, gradient, curvature

    def _replace(self, theta, anchor, curvature, rows, order: str, lead: float):
        """Move anchors of rows, adding to the curvature in place; return the sum's fall and its gradient's change."""
        down, turn = 0.0, np.zeros(self.shape)
        for part in self._parts(rows):
            z, before = self.columns(part), anchor[part]
            now = self.scores(z, theta, part)
            old = self._quadratics(part, before, now, order)
            after = now + lead * (now - before)
            new = self._quadratics(part, after, now, order)
            higher = new[0] > old[0]
            if lead > 0 and higher.any():
                # A bound that touches at the current scores is never higher.
                after[higher] = now[higher]
                here = self._quadratics(part[higher], now[higher], now[higher], order)
                for into, values in zip(new, here, strict=True):
                    into[higher] = values
            anchor[part] = after
            value, slope, C = (b - a for a, b in zip(old, new, strict=True))
            down -= float(np.sum(value))
            turn += slope.T @ z
            self._add(curvature, z, C)
        return down, turn

    def _quadratics(self, rows, anchor, scores, order: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, slope and curvature, in contrasts, of the surrogates that touch at the anchors, at the scores."""
        bounds, counts, weight = softmax_bound(anchor, order), self._counts[rows], self._weight[rows]
        H = self.contrasts
        C = weight[:, :, None] * (H @ bounds.matrices() @ H.T)
        slope = (weight * np.exp(anchor - bounds.log_norm[:, None]) - counts) @ H.T
        away = (scores - anchor) @ H.T
        bend = np.einsum("iab,ib->ia", C, away)
        value = weight[:, 0] * bounds.log_norm - np.sum(counts * anchor, axis=1)
        return value + np.sum((slope + bend / 2) * away, axis=1), slope + bend, C

    def _add(self, curvature, z, C) -> None:
        """Add the sum of C_i (x) z_i z_i' in place."""
        n_contrasts, n_columns = self.shape
        blocks = curvature.reshape(n_contrasts, n_columns, n_contrasts, n_columns)
        for a in range(n_contrasts):
            weighted = (C[:, a, a:, None] * z[:, None, :]).reshape(len(z), -1)
            product = (z.T @ weighted).reshape(n_columns, -1, n_columns)
            blocks[a, :, a:] += product
            blocks[a + 1 :, :, a] += product[:, 1:].transpose(1, 2, 0)

    def _parts(self, rows) -> list[np.ndarray]:
        """Split rows into parts that fit in memory."""
        size = max(1, _AT_ONCE // max(self.n_parameters, self._counts.shape[1] ** 2))
        return [rows[some] for some in tiles_of(len(rows), size)]
