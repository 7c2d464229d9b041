"""Rows in cells with the same nonzero features: sums over rows for many fits, each with its own Hessian.

Basis functions are 0 almost everywhere: in the rows of a cell, some tens of several hundred features are nonzero. The
Hessians of all fits are one matrix product: products of all pairs of these features times the curvature of every row
and fit.
"""

import copy
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from ...numerics import few_nonzero
from ...observations import Observation, PoissonExp
from ...observations.poisson import Poisson
from ...threads import Workers, n_cores, scratch
from ..tiles import column_sums, weighted

_NUMBERS = 1 << 19  # products of pairs, or predictors, of a tile
_OVERHEAD = 256  # rows: cost of a cell in addition to its rows
_MOST_BYTES = 5e8  # of features in double precision, and of products of pairs, that are kept
_FEW_FITS = 8  # below, Hessians are formed one by one
_SINGLE = 2.0**-24


@dataclass(frozen=True, eq=False)
class Cell:
    """Rows that have the same nonzero features."""

    rows: np.ndarray  # indices
    columns: np.ndarray  # of the features they have, the intercept's last
    x: np.ndarray  # (column, row)
    pairs: np.ndarray  # index of every pair of columns among those of all features


class Sums(NamedTuple):
    """Sums of a pass over all rows, for every fit; None if not requested."""

    loss: np.ndarray  # (fit,)
    gradient: np.ndarray  # (feature + 1, fit)
    square: np.ndarray  # of the derivatives of the loss, (fit,)
    hessian: np.ndarray | None = None  # (pair, fit)
    bend: np.ndarray | None = None  # of the third derivative times the leverage of every row, (feature + 1, fit)


class Rows:
    """Rows of a population, all or ``only`` some: features ``(x - shift) / scale`` and an intercept.

    A shift other than 0 is only for features that are hardly ever 0. ``groups`` are features whose zeros may coincide:
    those of the terms. Weights are those of rows (time,), ``own`` those of responses (time, neuron), and offsets are
    (time, 1 or neuron).
    """

    def __init__(
        self, X, Y, observation: Observation, shift, scale, groups: Sequence, weights=None, own=None, offset=None,
        only: np.ndarray | None = None,
    ):  # fmt: skip
        self.X, self.Y, self.observation, self.shift, self.scale = X, Y, observation, shift, scale
        self.weights, self.own, self.offset = weights, own, offset
        self._has_scale, self.is_steep_upwards = observation.has_scale, isinstance(observation, Poisson)
        self.n_columns, self.stands_for = X.shape[1] + 1, 1.0  # the second: rows that each row stands for
        self.n_neurons = Y.shape[1]
        upper = np.triu_indices(self.n_columns)
        self._upper, self.n_pairs = upper, len(upper[0])
        self._pair = np.zeros((self.n_columns, self.n_columns), np.int64)
        self._pair[upper] = np.arange(self.n_pairs)
        self._pair = np.maximum(self._pair, self._pair.T)
        self.cells = [self._cell(rows) for rows in _cells(X, groups, shift, only)]
        self._count()

    def _cell(self, rows: np.ndarray) -> Cell:
        x = self.X[rows]
        has = np.flatnonzero((self.shift != 0) | (x != 0).any(axis=0))
        columns = np.append(has, self.n_columns - 1)
        z = np.ones((len(columns), len(rows)), np.float32)
        z[:-1] = ((x[:, has] - self.shift[has]) / self.scale[has]).T
        i, j = np.triu_indices(len(columns))
        return Cell(rows, columns, z, self._pair[columns[i], columns[j]])

    def _count(self) -> None:
        """Decide which arrays of the cells are kept from one pass to the next."""
        self.n_rows = sum(len(cell.rows) for cell in self.cells)
        self._keeps, self._doubles = sum(2 * cell.x.nbytes for cell in self.cells) < _MOST_BYTES, {}
        bytes_of_pairs = sum(4 * len(cell.pairs) * len(cell.rows) for cell in self.cells)
        self._keeps_pairs, self._products = bytes_of_pairs < _MOST_BYTES, {}

    def every(self, step: int) -> Self:
        """Take every ``step``-th row of each cell."""
        other = copy.copy(self)
        some = slice(None, None, step)
        other.cells = [replace(c, rows=c.rows[some], x=np.ascontiguousarray(c.x[:, some])) for c in self.cells]
        other._count()
        other.stands_for = self.n_rows / other.n_rows
        return other

    def _pairs(self, cell: Cell, some: slice, x: np.ndarray) -> np.ndarray:
        """Products of all pairs of columns for some rows of a cell, whose columns are x: (pair, row)."""
        if x.dtype != np.float32 or not self._keeps_pairs:
            return _pairs(x)
        key = id(cell), some.start, some.stop
        if key not in self._products:
            self._products[key] = _pairs(x)
        return self._products[key]

    def _exact(self, cell: Cell, some: slice) -> np.ndarray:
        """Features of some rows of a cell in double precision, (column, row)."""
        if id(cell) in self._doubles:
            return self._doubles[id(cell)][:, some]
        rows, has = cell.rows if self._keeps else cell.rows[some], cell.columns[:-1]
        z = np.ones((len(cell.columns), len(rows)))
        z[:-1] = ((self.X[rows][:, has] - self.shift[has]) / self.scale[has]).T
        if self._keeps:
            self._doubles[id(cell)] = z
        return z[:, some] if self._keeps else z

    def square(self, packed: np.ndarray) -> np.ndarray:
        """Turn sums of pairs (pair, fit) into symmetric matrices (fit, column, column)."""
        return packed.T[:, self._pair]

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        """Turn symmetric matrices (fit, column, column) into pairs whose products sum to quadratic forms, float32."""
        i, j = self._upper
        return np.ascontiguousarray((matrices[:, i, j] * np.where(i == j, 1.0, 2.0)).T, np.float32)

    def sums(
        self, at: np.ndarray, fits: np.ndarray, hessian: bool = False, leverage: np.ndarray | None = None,
        dtype: Any = np.float32,
    ) -> Sums:  # fmt: skip
        """Add up losses, gradients, on request Hessians, and products of third derivatives and leverages.

        Parameters ``at`` are (feature + 1, fit), intercepts last, and ``fits`` (fit,) the neurons. Leverages are by
        packed inverses of Hessians (pair, fit). ``dtype`` is that of products; sums over tiles are float64.
        """
        with np.errstate(over="ignore"):
            at = at.astype(dtype)
        n, one_by_one, paired = len(fits), len(fits) < _FEW_FITS, hessian or leverage is not None

        def tiles(items):
            loss, square, gradient = np.zeros(n), np.zeros(n), np.zeros((self.n_columns, n))
            bend = None if leverage is None else np.zeros((self.n_columns, n))
            whole = np.zeros((self.n_pairs, n)) if hessian else None
            for cell, tiles_of_cell in itertools.groupby(items, key=lambda item: item[0]):
                part = np.zeros((len(cell.pairs), n)) if hessian else None
                for _, some in tiles_of_cell:
                    x = cell.x[:, some] if dtype == np.float32 else self._exact(cell, some)
                    y, w, eta = self._of(cell, some, fits, x, at)
                    value, slope, curvature, third = self._losses(y, eta, w, hessian, leverage is not None)
                    loss += value
                    gradient[cell.columns] += x @ _times(slope, w)
                    if self._has_scale:
                        square += _column_sums(slope * slope, w)
                    products = None if one_by_one or not paired else self._pairs(cell, some, x)
                    if hessian:
                        curvature = _times(curvature, w)
                        part += _one_by_one(x, curvature) if one_by_one else products @ curvature
                    if leverage is not None:
                        of_cell = leverage[cell.pairs]
                        height = _heights(x, of_cell) if one_by_one else products.T @ of_cell
                        height *= _times(third, w)
                        bend[cell.columns] += x @ height
                if hessian:
                    whole[cell.pairs] += part
            return loss, gradient, square, whole, bend

        parts = zip(*self._each(tiles, n, paired and not one_by_one), strict=True)
        return Sums(*(None if of[0] is None else sum(of) for of in parts))

    def furthest(self, change: np.ndarray, upwards: bool = False) -> np.ndarray:
        """Bound the largest change, or rise, of a predictor by changes of parameters (feature + 1, fit): (fit,)."""
        with np.errstate(over="ignore"):
            change, size = change.astype(np.float32), np.abs(change).astype(np.float32)

        def of_tile(x, columns):
            moved = x.T @ change[columns]
            moved = np.maximum(moved, 0) if upwards else np.abs(moved)
            moved += (4 * (len(columns) + 4) * _SINGLE) * (np.abs(x).max(axis=1) @ size[columns])
            return moved.max(axis=0)

        with np.errstate(over="ignore", invalid="ignore"):
            return self._largest(of_tile, change.shape[1]) * (1 + 1e-6)

    def longest(self, size: np.ndarray) -> np.ndarray:
        """Bound the norms of all rows by the norms of the features' units, (feature + 1, fit): the largest, (fit,)."""
        with np.errstate(over="ignore"):
            size = np.abs(size).astype(np.float32) * np.float32(1 + 1e-6)
        longest = self._largest(lambda x, columns: (np.abs(x).T @ size[columns]).max(axis=0), size.shape[1])
        return longest * (1 + 4 * self.n_columns * _SINGLE)

    def _largest(self, of_tile, n_fits: int) -> np.ndarray:
        """Find the largest number above 0 that a function of features and their columns returns for a tile, (fit,)."""

        def tiles(items):
            most = np.zeros(n_fits)
            for cell, some in items:
                most = np.maximum(most, of_tile(cell.x[:, some], cell.columns))
            return most

        return np.max(self._each(tiles, n_fits), axis=0)

    def total_weights(self) -> np.ndarray:
        """Sum the weights of every neuron's responses, (neuron,)."""
        total = np.zeros(self.n_neurons)
        for cell in self.cells:
            w = np.ones(len(cell.rows)) if self.weights is None else self.weights[cell.rows]
            total += w.sum() if self.own is None else w @ self.own[cell.rows]
        return total

    def size_of_responses(self) -> np.ndarray:
        """Sum the sizes of every neuron's responses that count, (neuron,)."""
        rows = np.concatenate([cell.rows for cell in self.cells])
        sizes = np.abs(self.Y[rows].astype(np.float64, copy=False))
        return (sizes if self.own is None else sizes * (self.own[rows] > 0)).sum(axis=0)

    def _of(self, cell: Cell, some: slice, fits, x, at):
        """Responses, weights (None for 1) and predictors of some rows of a cell, (row, fit)."""
        rows = cell.rows[some]
        every = len(fits) == self.n_neurons and np.array_equal(fits, np.arange(self.n_neurons))
        y = self.Y[rows] if every else self.Y[rows][:, fits]
        y = np.ascontiguousarray(y, x.dtype)
        w = None if self.weights is None else self.weights[rows, None].astype(x.dtype)
        if self.own is not None:
            own = (self.own[rows] if every else self.own[rows][:, fits]).astype(x.dtype)
            w = own if w is None else own * w
        eta = x.T @ at[cell.columns]
        if self.offset is not None:
            known = self.offset[rows]
            eta += known if known.shape[1] == 1 else known[:, fits]
        return y, w, eta

    def _losses(self, y, eta, w, curved: bool, bent: bool):
        """Compute summed losses (fit,), slopes, curvatures and third derivatives, (row, fit), of some rows."""
        of = self.observation
        loss, slope, bend = (scratch(eta.shape, eta.dtype, name) for name in ("loss", "slope", "bend"))
        of.evaluate_into(y, eta, slope, bend if curved else None, loss, few_nonzero(y) if of.skips_zeros else None)
        third = None
        if bent:  # with the exponential all derivatives are the rate
            third = bend if curved and isinstance(of, PoissonExp) else of.curvature_slope(y, eta)
        return _column_sums(loss, w), slope, bend, third

    def _items(self, n_fits: int, pairs: bool) -> list[tuple[Cell, slice]]:
        items = []
        for cell in self.cells:
            width = max(n_fits, len(cell.pairs if pairs else cell.columns))
            size = int(np.clip(_NUMBERS // width, 64, 8192))
            items += [(cell, slice(i, min(i + size, len(cell.rows)))) for i in range(0, len(cell.rows), size)]
        return items

    def _each(self, tiles, n_fits: int, pairs: bool = False) -> list:
        """Apply a function to shares of all tiles, one for each thread or some more."""
        items = self._items(n_fits, pairs)
        with Workers() as workers:
            n = min(len(items), n_cores())
            return list(workers.each(tiles, [items[i::n] for i in range(n)]))


def _pairs(x: np.ndarray) -> np.ndarray:
    """Products of all pairs of columns (column, row), starting with those of the first: (pair, row)."""
    n = len(x)
    products, at = np.empty((n * (n + 1) // 2, x.shape[1]), x.dtype), 0
    for i in range(n):
        np.multiply(x[i], x[i:], out=products[at : at + n - i])
        at += n - i
    return products


def _one_by_one(x: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """Sum products of pairs of columns, one fit at a time, (pair, fit)."""
    upper = _upper(len(x))
    return np.stack([((x * c) @ x.T)[upper] for c in np.ascontiguousarray(curvature.T)], axis=1)


def _heights(x: np.ndarray, packed: np.ndarray) -> np.ndarray:
    """Quadratic forms of rows (column, row), one fit at a time, by packed matrices (pair, fit): (row, fit)."""
    heights, matrix = np.empty((x.shape[1], packed.shape[1]), x.dtype), np.zeros((len(x), len(x)), x.dtype)
    for j in range(packed.shape[1]):
        matrix[_upper(len(x))] = packed[:, j]
        heights[:, j] = np.einsum("ij,ij->j", matrix.T @ x, x)
    return heights


@functools.cache
def _upper(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the indices of the pairs of columns."""
    return np.triu_indices(n)


def _times(values: np.ndarray, w: np.ndarray | None) -> np.ndarray:
    return values if w is None else weighted(values, w)


def _column_sums(values: np.ndarray, w: np.ndarray | None) -> np.ndarray:
    """Weighted sums over rows, (fit,)."""
    return column_sums(_times(values, w))


def _cells(X, groups: Sequence, shift: np.ndarray, only: np.ndarray | None) -> list[np.ndarray]:
    """Find sets of rows whose features share their zeros, so that there are few products of pairs."""
    rows = np.arange(len(X)) if only is None else only
    label, cost = np.zeros(len(rows), np.int64), _cost(X, rows, np.zeros(len(rows), np.int64))
    sparse = [np.asarray(of) for of in groups if not np.any(shift[np.asarray(of, int)])]
    for of in sorted(sparse, key=len, reverse=True):
        present = X[rows][:, of] != 0
        if present.mean() > 0.7:
            continue
        _, pattern = np.unique(_hashes(present), return_inverse=True)
        _, finer = np.unique(label * (pattern.max() + 1) + pattern, return_inverse=True)
        if finer.max() * _OVERHEAD < 2 * len(rows) and (now := _cost(X, rows, finer)) < 0.9 * cost:
            label, cost = finer, now
    order = np.argsort(label, kind="stable")
    return [rows[part] for part in np.split(order, np.flatnonzero(np.diff(label[order])) + 1)]


def _hashes(present: np.ndarray) -> np.ndarray:
    """Hash each row of a bool array (row, column) to one number; collisions are harmless."""
    packed = np.packbits(present, axis=1)
    words = np.zeros((len(packed), -(-packed.shape[1] // 8) * 8), np.uint8)
    words[:, : packed.shape[1]] = packed
    words = words.view(np.uint64)
    odd = np.random.default_rng(0).integers(0, 2**63, words.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return (words * odd).sum(axis=1, dtype=np.uint64)


def _cost(X, rows: np.ndarray, label: np.ndarray) -> float:
    """Count the products of pairs that cells need, with their overhead as rows."""
    order = np.argsort(label, kind="stable")
    starts = np.r_[0, np.flatnonzero(np.diff(label[order])) + 1]
    present = np.logical_or.reduceat(X[rows[order]] != 0, starts, axis=0).sum(axis=1)
    return float(np.sum((np.diff(np.r_[starts, len(rows)]) + _OVERHEAD) * (present + 1.0) ** 2))
