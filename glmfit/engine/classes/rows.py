"""Rows of a softmax model: its classes are columns that are stepped together, coupled by their probabilities."""

import numpy as np
import scipy.sparse

from ...observations.softmax import Multinomial
from ..host import HostRows
from ..tiles import MANY_CLASSES, TILE, is_far, tiles_of

_LEAST = 1e-5  # of a class's curvature at its frequency
_BLOCKS = 2e7  # numbers in all classes' own blocks of the Hessian
_CURVATURES = 1e7  # numbers of which blocks are made at a time
_LEAST_ROWS = 128  # of a tile without memory
_SOME, _ONE_IN, _FLOOR = 2048, 16, 1e-3  # rows from which lengths are estimated: at least, one in, least doubt of any
_TINY = 1e-300
_GOLDEN = 0.618  # of the way between two rows, from one guess to the next


class ClassRows(HostRows):
    """Rows of a softmax problem, and the mean ``loss`` at their position; see :class:`HostRows` for what is kept.

    Passes may be in single precision until :meth:`sharpen`. Rows may be nearly certain, so the mean curvature of
    classes that guides the steps is kept above ``least_curvature``. Arrays (row, class) of few classes are stored class
    by class, so that sums over them are as fast as over many.
    """

    selects, coupled, held = False, True, True
    keeps = True  # scores
    guesses = True  # lengths of steps, if it keeps none

    def __init__(self, problem, mean: np.ndarray, single: bool = False):
        X, self.offset = problem.X, problem.offset
        self.X, self.n_rows, self.neuron = X, X.shape[0], np.arange(problem.n_classes)
        self.sparse, self.observation = scipy.sparse.issparse(X), Multinomial()
        self.mean, self._shift = mean, mean if not self.sparse and np.any(mean) and is_far(X) else None
        self.pairs, self.totals, self.fit_intercept = problem.pairs, problem.totals, problem.fit_intercept
        self._first = problem.first_pairs
        share = np.clip(problem.class_totals / self.totals.sum(), 1 / self.totals.sum(), 0.5)
        self.least_curvature = _LEAST * share * self.totals.mean()
        self.weights = self.rows = None
        self.loss, self.passes = np.nan, 0.0
        # Small fits of features in double precision agree to more digits than single precision has.
        short = X.dtype == np.float32 if self.keeps else problem.dtype == np.float32
        single = single and short and self._shift is None and not self.sparse
        self._hold_in(np.float32 if single else np.float64)

    def _hold_in(self, dtype) -> None:
        self.dtype = np.dtype(dtype)
        self._fast = self.X if self.X.dtype == self.dtype else self.X.astype(self.dtype)
        self._weights = self.totals.astype(self.dtype)
        self._allocate()

    @property
    def is_single(self) -> bool:
        """Whether passes are in single precision, so that no proof may rest on them."""
        return self.dtype == np.float32

    def sharpen(self) -> None:
        """Make passes in double precision from now on; the rows have no position then."""
        self._hold_in(np.float64)

    def _allocate(self) -> None:
        self.eta, self.D, self.p = (self._room(self.n_rows) for _ in range(3))

    def _room(self, n_rows: int) -> np.ndarray:
        """Memory for scores, (row, class)."""
        n = len(self.neuron)
        return np.empty((n, n_rows), self.dtype).T if n < MANY_CLASSES else np.empty((n_rows, n), self.dtype)

    def _x(self, tile: slice):
        x = self._fast[tile]
        return x if self._shift is None else x - self._shift

    def _dense(self, tile: slice) -> np.ndarray:
        return self._x(tile).toarray() if self.sparse else self._x(tile)

    def _predict(self, rows: slice, coef, base, out) -> None:
        if self.sparse:
            out[:] = self._x(rows) @ coef
            out += base
        else:
            super()._predict(rows, coef, base, out)

    def _known(self, tile: slice, at) -> np.ndarray | None:
        return None if self.offset is None else self.offset[tile]

    def columns(self, rows: np.ndarray) -> np.ndarray:
        """Dense centred features of some rows and a 1, or a 0 without an intercept."""
        x = self._fast[rows]
        x = (x.toarray() if self.sparse else x) - self.mean
        return np.hstack([x, np.full((len(x), 1), float(self.fit_intercept))])

    def scores(self, rows: slice) -> np.ndarray:
        """Return the current scores of some rows, (row, class)."""
        return self.eta[rows]

    def probabilities(self, rows: slice) -> np.ndarray:
        """Return the current probabilities of some rows, (row, class)."""
        return self.p[rows]

    def _changes(self, rows: slice) -> np.ndarray:
        """Return the changes of the scores of some rows along the direction, (row, class)."""
        return self.D[rows]

    def _slopes_of(self, rows: slice):
        eta, n = self.scores(rows).T, self.totals[rows]
        p = self.p[rows].T if self.keeps else eta
        top = eta.max(axis=0)
        np.subtract(eta, top, out=p)
        places = slice(self._first[rows.start], self._first[rows.stop])
        row, label, weight = self.pairs.row[places] - rows.start, self.pairs.label[places], self.pairs.weight[places]
        fitted = weight @ p[label, row]
        np.exp(p, out=p)
        total = p.sum(axis=0)
        p /= total
        if not self.keeps:
            self._log_norms[rows], self._doubts[rows] = top + np.log(total), n * (1 + _FLOOR - 1 / total)
        r = np.multiply(p, self._weights[rows], out=None if self.keeps else p)
        r[label, row] -= weight
        return r @ self._x(rows), r.sum(axis=1), n @ np.log(total) - fitted

    def _curve(self, rows: slice, change: np.ndarray) -> np.ndarray:
        """Multiply the curvature of some rows by changes of their scores, (class, row), in place."""
        p = self.probabilities(rows).T
        change -= np.einsum("ki,ki->i", p, change)
        change *= p
        change *= self._weights[rows]
        return change

    def _bend(self, rows: slice | np.ndarray, weight=None) -> np.ndarray:
        D, p = self._changes(rows).T, self.probabilities(rows).T
        away = D - np.einsum("ki,ki->i", p, D)  # squares of D alone would cancel where a row is all but certain
        weight = self.totals[rows] if weight is None else weight
        return np.full(len(p), weight @ np.einsum("ki,ki,ki->i", p, away, away))

    def move(self, step, at: np.ndarray | None = None) -> np.ndarray:
        """Move by ``step`` (class,), the same for all, along D, and return the gradient of the mean loss there."""
        return super().move(step)

    def products(self, p) -> np.ndarray:
        """Multiply the Hessian of the mean loss by a direction."""
        return self.curve_by(self._curve, p)

    def curve_by(self, curve, p) -> np.ndarray:
        """Multiply another curvature of the rows by a direction.

        ``curve(rows, change)`` turns changes of scores, (class, row), into those of residuals, possibly in place.
        """
        coef, base = self._rounded(p)

        def tile(rows):
            change = self._room(rows.stop - rows.start)
            self._predict(rows, coef, base, change)
            r = curve(rows, change.T)
            return r @ self._x(rows), r.sum(axis=1)

        self.passes += 0.5
        return self._sum(self._over(tile))

    def _centred(self, G, g, loss=None) -> np.ndarray:
        self.loss = self.loss if loss is None else float(loss)
        return super()._centred(G, g if self.fit_intercept else np.zeros_like(g))

    def mean_curvature(self) -> np.ndarray:
        """Mean of every class's own curvature, (class,), kept above 0."""
        parts = self._over(lambda rows: self._own(rows).sum(axis=1))
        return np.maximum(self._mean(parts), self.least_curvature)

    def _own(self, rows: slice | np.ndarray, weight=None) -> np.ndarray:
        p = self.probabilities(rows).T
        return (self._weights[rows] if weight is None else weight.astype(self.dtype)) * p * (1 - p)

    @property
    def has_blocks(self) -> bool:
        """Whether every class's own block of the Hessian may be formed."""
        return len(self.neuron) * (len(self.mean) + 1) ** 2 <= _BLOCKS

    def hessians(self, fits, scale, columns=None) -> list[np.ndarray]:
        """Every class's own block of the Hessian."""
        self.curvature = self._own(slice(0, self.n_rows)).T
        blocks = super().hessians(fits, scale, columns)
        del self.curvature
        return blocks

    def reach(self, at) -> np.ndarray:
        """Largest range of a row's D over the classes, (class,), the same for all."""
        return np.full(len(at), max(self.each_tile(self._range)))

    def _range(self, rows: slice) -> float:
        return float(np.where(self.totals[rows] > 0, np.ptp(self._changes(rows), axis=1), 0.0).max())

    def each_tile(self, function) -> list:
        """Apply a function to some rows at a time, in order."""
        return self._over(function)


class LeanClassRows(ClassRows):
    """Rows that keep parameters instead of scores, which are computed on demand, some rows at a time.

    Memory does not grow with rows times classes. The length of a step is estimated from some rows, and judged at its
    end.
    """

    keeps = False

    def _allocate(self) -> None:
        self._at = self._along = None
        self._log_norms, self._doubts, self._guesses = np.empty(self.n_rows), np.empty(self.n_rows), 0

    def each_tile(self, function) -> list:
        """Apply a function to some rows at a time, in order."""
        return list(self.each(function, self._tiles()))

    def _over(self, function, n_fits: int | None = None) -> list:
        """Add up what a function returns of some rows at a time, arrays in a tuple: the only item of the list."""
        return [self.add(function, self._tiles())]

    def _tiles(self, n_rows: int | None = None) -> list[slice]:
        return tiles_of(n_rows or self.n_rows, max(_LEAST_ROWS, TILE // len(self.neuron)))

    def _guess(self, function) -> np.ndarray:
        """Estimate the mean over the rows of what ``function(rows, weight)`` sums, from some, mostly uncertain, rows.

        The rows differ every time: steps were guided by those of the last estimates, and overlook the rest.
        """
        self._guesses += 1
        n = max(_SOME, self.n_rows // _ONE_IN)
        if n >= self.n_rows:
            return self._mean(self.each_tile(lambda rows: function(rows, self.totals[rows])))
        upto = np.cumsum(self._doubts)
        places = (np.arange(n) + self._guesses * _GOLDEN % 1) * (upto[-1] / n)
        drawn = np.minimum(np.searchsorted(upto, places, side="right"), self.n_rows - 1)
        weight = self.totals[drawn] / np.maximum(self._doubts[drawn], _TINY) * (upto[-1] / n)
        parts = self.each(lambda tile: function(drawn[tile], weight[tile]), self._tiles(n))
        return sum(parts) / self.n_rows

    def place(self, at) -> np.ndarray:
        """Set the parameters of the model; returns the gradient of the mean loss there."""
        self._at, self._here = at, self._rounded(at)
        self.passes += 0.5
        return self._sum(self._over(self._slopes_of))

    def along(self, p) -> np.ndarray:
        """Choose a direction; returns the mean of curvature times squares of changes along it, of some rows."""
        self._along, self._there = p, self._rounded(p)
        return self._guess(self._bend) if self.guesses else self._mean(self.each_tile(self._bend))

    def move(self, step, at: np.ndarray | None = None) -> np.ndarray:
        """Move by ``step`` along the direction, and return the gradient of the mean loss there."""
        return self.place(self._at + step[0] * self._along)

    def mean_curvature(self) -> np.ndarray:
        """Mean of every class's own curvature over some rows, (class,), kept above 0."""
        return np.maximum(self._guess(lambda *some: self._own(*some).sum(axis=1)), self.least_curvature)

    def hessians(self, fits, scale, columns=None) -> list[np.ndarray]:
        """Every class's own block of the Hessian, of some classes at a time."""
        (coef, base), blocks = self._here, []
        for some in np.array_split(fits, -(-self.n_rows * len(fits) // int(_CURVATURES))):
            self.curvature = np.empty((self.n_rows, len(some)), self.dtype)

            def tile(rows, some=some):
                p = self._x(rows) @ coef[:, some] + base[some]
                p += 0 if self.offset is None else self.offset[rows][:, some]
                p = np.exp(p - self._log_norms[rows, None])
                self.curvature[rows] = self.totals[rows, None] * p * (1 - p)

            self.each_tile(tile)
            blocks += HostRows.hessians(self, np.arange(len(some)), scale)
            del self.curvature
        return blocks

    def scores(self, rows: slice | np.ndarray) -> np.ndarray:
        """Compute the current scores of some rows, (row, class)."""
        eta = self._product(rows, *self._here)
        if self.offset is not None:
            eta += self.offset[rows]
        return eta

    def probabilities(self, rows: slice | np.ndarray) -> np.ndarray:
        """Compute the current probabilities of some rows, (row, class)."""
        p = self.scores(rows)
        p -= p.max(axis=1, keepdims=True)
        np.exp(p, out=p)
        p /= p.sum(axis=1, keepdims=True)
        return p

    def _changes(self, rows: slice) -> np.ndarray:
        return self._product(rows, *self._there)

    def _product(self, rows: slice, coef, base) -> np.ndarray:
        out = self._room(len(self.totals[rows]))
        self._predict(rows, coef, base, out)
        return out
