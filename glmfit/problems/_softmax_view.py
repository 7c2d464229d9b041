"""A softmax problem in coordinates that make it easy: what Newton's method with conjugate gradients asks of it.

Float64 on the host, features dense or sparse. Features are measured from their mean, and dense ones along the
eigenvectors of their covariance, which all classes share; a ridge is the same there. Parameters are one array
(feature + 1, class), intercepts last; a shift common to all classes changes no probability and is kept at 0.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.special

from ..bounds import gap_bound
from ._chunks import over_chunks
from ._recession import recedes
from .base import Params

HESSIAN_THEOREM = (
    "generalised self-concordance of the softmax, by its whole Hessian (docs/theory/softmax_gap.md, Proposition 2)"
)
_ROTATED = 2048  # features up to which eigenvectors are worth their price
_SCORES_AT_ONCE = 1_000_000
_DENSE_HESSIAN = 2000  # parameters up to which the whole Hessian is formed for a bound
_DENSE_WORK = 5e10
_FAR_APART = 30.0  # scores of a row, where probabilities are 1e-13
_MOST_UNKNOWNS = 1000  # of a linear programme
_MOST_ENTRIES = 3e7
_BLOCKS = 2e7  # numbers in all classes' own blocks of the Hessian


class SoftmaxPoint(NamedTuple):
    """A softmax model and what one pass over the rows says of it.

    Attributes
    ----------
    v : numpy.ndarray
        Parameters, (feature + 1, class).
    scores, p : numpy.ndarray
        Of every row and class, (row, class); p are probabilities.
    objective : float
        F.
    gradient : numpy.ndarray
        Of F, like v.
    scale : numpy.ndarray
        Diagonal of the mean curvature where classes did not interact, like v, positive.
    """

    v: np.ndarray
    scores: np.ndarray
    p: np.ndarray
    objective: float
    gradient: np.ndarray
    scale: np.ndarray

    @property
    def norm(self) -> float:
        """Squared norm of the gradient, each entry divided by its curvature: twice the gap, were classes alone."""
        return float(np.sum(self.gradient**2 / self.scale))


class SoftmaxView:
    """Rows, counts and ridge of a `SoftmaxProblem`, centred and rotated."""

    def __init__(self, problem):
        X, self.n_rows, self.n_classes, self.strength = problem.X, problem.n_rows, problem.n_classes, problem.strength
        self.counts, self.totals, self.offset = problem.counts, problem.totals[:, None], problem.offset
        self.fit_intercept = problem.fit_intercept
        self.sparse = scipy.sparse.issparse(X)
        self._chunk = int(np.clip(_SCORES_AT_ONCE // self.n_classes, 16, 4096))
        weight = problem.totals / problem.totals.sum()
        # Without intercepts nothing could make up for a shift.
        self.mean = np.asarray(X.T @ weight, np.float64).ravel() * self.fit_intercept
        self.rotation = None
        if self.sparse:
            self.rows = X
            square = np.asarray(X.multiply(X).T @ weight, np.float64).ravel()
            self.variance = np.maximum(square - self.mean**2, 0.0)
            return
        self.rows = np.asarray(X, np.float64) - self.mean
        if X.shape[1] > _ROTATED:
            self.variance = weight @ self.rows**2
            return
        variance, self.rotation = np.linalg.eigh(self.rows.T @ (weight[:, None] * self.rows))
        self.variance = np.maximum(variance, 0.0)
        self.rows = self.rows @ self.rotation

    # ------------------------------------------------------------------------------------- coordinates

    def to_columns(self, params: Params) -> np.ndarray:
        """Map coefficients (feature, class) and intercepts to this view's parameters."""
        coef = np.asarray(params.coef, np.float64)
        coef = coef - coef.mean(axis=1, keepdims=True)
        intercept = np.asarray(params.intercept, np.float64) + self.mean @ coef
        if self.fit_intercept:
            intercept = intercept - intercept.mean()
        return np.vstack([coef if self.rotation is None else self.rotation.T @ coef, intercept])

    def from_columns(self, v: np.ndarray) -> Params:
        """Map them back."""
        coef = v[:-1] if self.rotation is None else self.rotation @ v[:-1]
        coef = coef - coef.mean(axis=1, keepdims=True)
        if not self.fit_intercept:
            return Params(coef, np.zeros(self.n_classes))
        intercept = v[-1] - self.mean @ coef
        return Params(coef, intercept - intercept.mean())

    # ------------------------------------------------------------------------------------------ passes

    def at(self, v: np.ndarray, scores: np.ndarray | None = None) -> SoftmaxPoint:
        """Evaluate the model at v; its scores, if they are known, save a product."""
        scores = self.scores(v) if scores is None else scores
        p = np.empty_like(scores)

        def chunk(rows):
            s, y, n = scores[rows], self.counts[rows], self.totals[rows]
            log_norm = scipy.special.logsumexp(s, axis=1, keepdims=True)
            np.exp(s - log_norm, out=p[rows])
            loss = float(np.sum(n * log_norm) - np.sum(y.data * s[_places(y)]))
            residual = n * p[rows]
            bend = np.sum(residual * (1 - p[rows]), axis=0)
            residual[_places(y)] -= y.data
            return loss, self._pull(rows, residual), bend

        loss, gradient, bend = (total / self.n_rows for total in self._sum(chunk))
        gradient[:-1] += self.strength * v[:-1]
        # Kept off 0 where a class is never or always expected.
        scale = np.append(self.variance, 1.0)[:, None] * np.maximum(bend, 1e-8 * bend.max() + 1e-100)
        scale[:-1] += max(self.strength, 1e-12 * scale.max())
        return SoftmaxPoint(v, scores, p, loss + self.strength / 2 * np.sum(v[:-1] ** 2), gradient, scale)

    def scores(self, v: np.ndarray) -> np.ndarray:
        """Scores of all rows and classes, offsets included."""
        scores = self.change_of_scores(v)
        if self.offset is not None:
            scores += self.offset
        return scores

    def change_of_scores(self, v: np.ndarray) -> np.ndarray:
        """Change of the scores of all rows and classes when the parameters change by v."""
        shift = self._shift(v)
        scores = np.empty((self.n_rows, self.n_classes))

        def chunk(rows):
            np.add(self.rows[rows] @ v[:-1], shift, out=scores[rows])

        list(over_chunks(chunk, self.n_rows, self._chunk))
        return scores

    def curve(self, at: SoftmaxPoint, direction: np.ndarray) -> np.ndarray:
        """Multiply the Hessian of F with a direction: one pass over the rows, two products with the features."""

        def bend(rows, change):
            p = at.p[rows]
            change -= np.einsum("ik,ik->i", p, change)[:, None]
            change *= p
            return change

        return self.curve_by(bend, direction)

    def curve_by(self, bend, direction: np.ndarray, change_of_scores: np.ndarray | None = None) -> np.ndarray:
        """Multiply another curvature with a direction, the ridge included.

        ``bend(rows, change)`` turns changes of scores into those of the rows' gradients, (row, class), in place if it
        likes; the changes are also left in ``change_of_scores`` where given.
        """
        shift = self._shift(direction)

        def chunk(rows):
            change = self.rows[rows] @ direction[:-1] + shift
            if change_of_scores is not None:
                change_of_scores[rows] = change
            return (self._pull(rows, self.totals[rows] * bend(rows, change)),)

        (curved,) = (total / self.n_rows for total in self._sum(chunk))
        curved[:-1] += self.strength * direction[:-1]
        return curved

    def by_chunk(self, function) -> dict:
        """Apply a function of a slice of rows to those that passes take at a time: their start -> what it gives."""
        results = over_chunks(lambda rows: (rows.start, function(rows)), self.n_rows, self._chunk)
        return dict(results)

    def objective_along(self, at: SoftmaxPoint, direction: np.ndarray, move: np.ndarray, t: float) -> float:
        """F at ``at.v + t * direction``, whose scores change by ``t * move``."""

        def chunk(rows):
            s, y = at.scores[rows] + t * move[rows], self.counts[rows]
            log_norm = scipy.special.logsumexp(s, axis=1)
            return (float(self.totals[rows, 0] @ log_norm - np.sum(y.data * s[_places(y)])),)

        (loss,) = self._sum(chunk)
        return loss / self.n_rows + self.strength / 2 * float(np.sum((at.v[:-1] + t * direction[:-1]) ** 2))

    @property
    def surest_scale(self) -> np.ndarray:
        """Diagonal of Bohning's bound of the curvature, whatever the parameters, (feature + 1, 1).

        Along the eigenvectors a step by its inverse never goes uphill; without them (sparse features) it may.
        """
        scale = np.append(self.variance, 1.0) * self.totals.mean() / 2
        scale[:-1] += max(self.strength, 1e-12 * scale.max())
        return scale[:, None]

    def _sum(self, chunk) -> tuple:
        pieces = over_chunks(chunk, self.n_rows, self._chunk)
        return tuple(sum(parts) for parts in zip(*pieces, strict=True))

    def _shift(self, v: np.ndarray) -> np.ndarray:
        return v[-1] - self.mean @ v[:-1] if self.sparse else v[-1]

    def _pull(self, rows, residual) -> np.ndarray:
        """Gradient of residuals (row, class) with respect to parameters."""
        total = residual.sum(axis=0)
        coef = self.rows[rows].T @ residual
        coef = coef - np.outer(self.mean, total) if self.sparse else coef
        return np.vstack([coef, total if self.fit_intercept else np.zeros_like(total)])

    @property
    def has_blocks(self) -> bool:
        """Whether every class's own block of the Hessian may be formed."""
        return not self.sparse and self.n_classes * (len(self.variance) + 1) ** 2 <= _BLOCKS

    def invert_blocks(self, at: SoftmaxPoint) -> np.ndarray:
        """Invert every class's own block of the Hessian, (class, feature + 1, feature + 1).

        Directions of next to no curvature get a share of the largest, so that all are positive definite. Cost:
        (feature + 1) / 2 products of `curve`.
        """
        d = len(self.variance)

        def chunk(rows):
            z = np.hstack([self.rows[rows], np.full((len(at.p[rows]), 1), float(self.fit_intercept))])
            bend = self.totals[rows] * at.p[rows] * (1 - at.p[rows])
            return (np.stack([z.T @ (bend[:, k, None] * z) for k in range(self.n_classes)]),)

        (blocks,) = (total / self.n_rows for total in self._sum(chunk))
        blocks[:, range(d), range(d)] += self.strength
        values, vectors = np.linalg.eigh(blocks)
        largest = np.maximum(values[:, -1:], 1e-8 * values.max())
        values = np.maximum(values, 1e-9 * largest)
        inverse = vectors / values[:, None] @ vectors.transpose(0, 2, 1)
        if not self.fit_intercept:
            inverse[:, d] = inverse[:, :, d] = 0
        return inverse

    # ------------------------------------------------------------------------------ how far from the optimum

    @property
    def has_small_hessian(self) -> bool:
        """Whether the whole Hessian is cheap to form."""
        d, K = len(self.variance) + self.fit_intercept, self.n_classes
        return d * (K - 1) <= _DENSE_HESSIAN and self.n_rows * (d * K) ** 2 <= _DENSE_WORK

    def bound_by_hessian(self, at: SoftmaxPoint) -> float:
        """Bound F - F* by self-concordance, from the whole Hessian; infinite where that proves nothing.

        Proof: docs/theory/softmax_gap.md, Proposition 2.
        """
        scale = at.scale.mean(axis=1)  # the same for all classes, so that the common shift stays apart
        rows = self.rows.toarray() if self.sparse else self.rows
        rows = np.hstack([rows - self.mean if self.sparse else rows, np.ones((self.n_rows, 1))])
        if not self.fit_intercept:
            rows, scale = rows[:, :-1], scale[:-1]
        rows = rows / np.sqrt(scale)
        contrast = scipy.linalg.helmert(self.n_classes).T  # (class, class - 1), orthonormal, across the shift
        hessian = self._hessian(at, rows, contrast)
        d = rows.shape[1]
        ridge = np.full(d, self.strength) / scale
        if self.fit_intercept:
            ridge[-1] = 0
        hessian += np.diag(np.tile(ridge, self.n_classes - 1))
        g = ((at.gradient[:d] / np.sqrt(scale)[:, None]) @ contrast).T.ravel()
        values, vectors = np.linalg.eigh(hessian)
        rounding = 64 * np.finfo(float).eps * values[-1] * len(values)
        least = values[0] - rounding
        if not least > 0:
            return np.inf
        decrement = np.sum((vectors.T @ g) ** 2 / (values - rounding))
        # A range is at most sqrt 2 times a norm.
        reach = 2 * np.max(np.sum(rows**2, axis=1)[self.totals[:, 0] > 0]) / least
        slack = 64 * np.finfo(float).eps * (abs(at.objective) + 1)
        return float(gap_bound(decrement, reach, attained=self.strength > 0)) + slack

    def _hessian(self, at: SoftmaxPoint, rows, contrast) -> np.ndarray:
        """Hessian of the loss across the common shift, ((class - 1) * column) square."""
        d, K = rows.shape[1], self.n_classes
        full = np.empty((K, d, K, d))
        for k in range(K):
            for l in range(k, K):
                bend = self.totals[:, 0] * at.p[:, k] * ((k == l) - at.p[:, l])
                full[k, :, l] = full[l, :, k] = rows.T @ (bend[:, None] * rows) / self.n_rows
        reduced = np.einsum("ka,kilj,lb->aibj", contrast, full, contrast, optimize=True)
        return reduced.reshape((K - 1) * d, (K - 1) * d)

    def is_separated(self, at: SoftmaxPoint) -> bool:
        """Whether classes can be set apart, some rows of them at least: then no finite model without ridge is best.

        Sure where every row has one class, and the highest score there; else looked for where scores are far apart.
        """
        if self.strength > 0:
            return False
        if self.offset is None and np.all(np.diff(self.counts.indptr) == 1):
            own = at.scores[np.arange(self.n_rows), self.counts.indices]
            if np.all(np.sum(at.scores >= own[:, None], axis=1) == 1):
                return True
        scores = at.scores if self.offset is None else at.scores - self.offset
        return bool(np.max(np.ptp(scores, axis=1)) > _FAR_APART and self.recedes is True)

    @cached_property
    def recedes(self) -> bool | None:
        """Whether scores can grow apart for ever, and no row with counts get worse; None where that is much to compute.

        A direction has, in every row, the same change of score at all classes with counts, and no larger one at others.
        """
        row, label = _places(self.counts)
        keep = self.counts.data > 0
        row, label = row[keep], label[keep]
        row, first = np.unique(row, return_index=True)
        own = label[first]
        n_unknowns = (self.rows.shape[1] + self.fit_intercept) * self.n_classes
        n_inequalities = len(row) * (self.n_classes - 1) + len(label) - len(row)
        if n_unknowns > _MOST_UNKNOWNS or n_unknowns * n_inequalities > _MOST_ENTRIES:
            return None
        x = (self.rows[row].toarray() if self.sparse else self.rows[row]) / np.sqrt(
            np.where(self.variance > 0, self.variance, 1.0)
        )
        x = np.column_stack([x, np.ones(len(x))]) if self.fit_intercept else x
        counted = np.zeros((len(row), self.n_classes), bool)
        counted[np.repeat(np.arange(len(row)), np.diff(np.append(first, len(label)))), label] = True
        parts = []
        for k in range(self.n_classes):
            for sign, which in ((1, own != k), (-1, (own != k) & counted[:, k])):
                part = np.zeros((which.sum(), self.n_classes, x.shape[1]))
                part[:, k] = sign * x[which]
                part[np.arange(len(part)), own[which]] = -sign * x[which]
                parts.append(part.reshape(len(part), n_unknowns))
        return recedes(np.concatenate(parts))


def _places(y) -> tuple[np.ndarray, np.ndarray]:
    """Row and class of every count."""
    return np.repeat(np.arange(y.shape[0]), np.diff(y.indptr)), y.indices
