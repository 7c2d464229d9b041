"""Rows of a softmax model: its classes are columns that are stepped together, coupled by their probabilities."""

import numpy as np
import scipy.sparse

from ...observations.softmax import Multinomial
from ..host import HostRows
from ..tiles import is_far

_LEAST = 1e-5  # of a class's curvature at its frequency
_BLOCKS = 2e7  # numbers in all classes' own blocks of the Hessian


class ClassRows(HostRows):
    """Rows of a softmax problem; see :class:`HostRows` for what is kept, and the mean ``loss`` where they are.

    Passes may be in single precision until :meth:`sharpen`. Rows may be all but certain: the mean curvature of classes
    that guides is kept above ``least_curvature``. Arrays (row, class) lie class by class in memory, so that sums over
    few classes are as quick as over many.
    """

    def __init__(self, problem, mean: np.ndarray, single: bool = False):
        X, self.offset = problem.X, problem.offset
        self.X, self.n_rows, self.neuron = X, X.shape[0], np.arange(problem.n_classes)
        self.sparse, self.observation = scipy.sparse.issparse(X), Multinomial()
        self.mean, self._shift = mean, mean if not self.sparse and np.any(mean) and is_far(X, mean) else None
        self.pairs, self.totals, self.fit_intercept = problem.pairs, problem.totals, problem.fit_intercept
        self._first = problem.first_pairs
        share = np.clip(problem.class_totals / self.totals.sum(), 1 / self.totals.sum(), 0.5)
        self.least_curvature = _LEAST * share * self.totals.mean()
        self.weights = self.rows = None
        self.loss, self.passes = np.nan, 0.0
        single = single and X.dtype == np.float32 and self._shift is None and not self.sparse
        self._hold_in(np.float32 if single else np.float64)

    def _hold_in(self, dtype) -> None:
        self.dtype = np.dtype(dtype)
        self._fast = self.X if self.X.dtype == self.dtype else self.X.astype(self.dtype)
        self._weights = self.totals.astype(self.dtype)
        self._allocate()

    @property
    def is_single(self) -> bool:
        """Whether passes are in single precision, and nothing may rest on them."""
        return self.dtype == np.float32

    def sharpen(self) -> None:
        """Make passes in double precision from now on; the rows are nowhere."""
        self._hold_in(np.float64)

    def _allocate(self) -> None:
        shape = len(self.neuron), self.n_rows
        self.eta, self.D, self.p = (np.empty(shape, self.dtype).T for _ in range(3))

    def _x(self, tile: slice):
        x = self._fast[tile]
        return x if self._shift is None else x - self._shift

    def _predict(self, rows: slice, coef, base, out) -> None:
        if self.sparse:
            out[:] = self._x(rows) @ coef
            out += base
        else:
            super()._predict(rows, coef, base, out)

    def _known(self, tile: slice, at) -> np.ndarray | None:
        return None if self.offset is None else self.offset[tile]

    def columns(self, rows: np.ndarray) -> np.ndarray:
        """Centred features of some rows and a 1, or a 0 where there is no intercept, dense."""
        x = self._fast[rows]
        x = (x.toarray() if self.sparse else x) - self.mean
        return np.hstack([x, np.full((len(x), 1), float(self.fit_intercept))])

    def _slopes_of(self, rows: slice):
        eta, p, n = self.eta[rows].T, self.p[rows].T, self.totals[rows]
        np.subtract(eta, eta.max(axis=0), out=p)
        places = slice(self._first[rows.start], self._first[rows.stop])
        row, label, weight = self.pairs.row[places] - rows.start, self.pairs.label[places], self.pairs.weight[places]
        fitted = weight @ p[label, row]
        np.exp(p, out=p)
        total = p.sum(axis=0)
        p /= total
        r = p * self._weights[rows]
        r[label, row] -= weight
        return r @ self._x(rows), r.sum(axis=1), n @ np.log(total) - fitted

    def _curve(self, rows: slice, change: np.ndarray) -> np.ndarray:
        """Multiply the curvature of some rows with changes of their scores, (class, row), in place."""
        p = self.p[rows].T
        change -= np.einsum("ki,ki->i", p, change)
        change *= p
        change *= self._weights[rows]
        return change

    def _bend(self, rows: slice) -> np.ndarray:
        D, p = self.D[rows].T, self.p[rows].T
        away = D - np.einsum("ki,ki->i", p, D)  # squares of D alone would cancel where a row is all but certain
        return np.full(len(p), self.totals[rows] @ np.einsum("ki,ki,ki->i", p, away, away))

    def move(self, step, at: np.ndarray | None = None) -> np.ndarray:
        """Go ``step`` (class,), which is the same for all, along D, and return the gradient of the mean loss there."""
        return super().move(step)

    def products(self, p) -> np.ndarray:
        """Hessian of the mean loss times a direction."""
        return self.curve_by(self._curve, p)

    def curve_by(self, curve, p) -> np.ndarray:
        """Multiply another curvature of the rows with a direction.

        ``curve(rows, change)`` turns changes of scores, (class, row), into those of residuals, maybe in place.
        """
        coef, base = p[:-1].astype(self.dtype), self._base(p).astype(self.dtype)

        def tile(rows):
            change = np.empty((len(self.neuron), rows.stop - rows.start), self.dtype)
            self._predict(rows, coef, base, change.T)
            r = curve(rows, change)
            return r @ self._x(rows), r.sum(axis=1)

        self.passes += 0.5
        return self._sum(self._over(tile))

    def _centred(self, G, g, loss=None) -> np.ndarray:
        self.loss = self.loss if loss is None else float(loss)
        return super()._centred(G, g if self.fit_intercept else np.zeros_like(g))

    def mean_curvature(self) -> np.ndarray:
        """Mean of every class's own curvature, (class,), kept off 0."""
        parts = self._over(lambda rows: self._own(rows).sum(axis=1))
        return np.maximum(self._mean(parts), self.least_curvature)

    def _own(self, rows: slice) -> np.ndarray:
        p = self.p[rows].T
        return self._weights[rows] * p * (1 - p)

    @property
    def has_blocks(self) -> bool:
        """Whether every class's own block of the Hessian may be formed."""
        return not self.sparse and len(self.neuron) * (len(self.mean) + 1) ** 2 <= _BLOCKS

    def hessians(self, fits, scale, columns=None) -> list[np.ndarray]:
        """Every class's own block of the Hessian."""
        self.curvature = np.empty_like(self.p)
        self._over(lambda rows: np.copyto(self.curvature[rows].T, self._own(rows)))
        blocks = super().hessians(fits, scale, columns)
        del self.curvature
        return blocks

    def reach(self, at) -> np.ndarray:
        """Largest range of a row's D over the classes, (class,), the same for all."""

        def tile(rows):
            D = self.D[rows].T
            return np.where(self.totals[rows] > 0, D.max(axis=0) - D.min(axis=0), 0.0).max()

        return np.full(len(at), np.max(self._over(tile)))
