"""Tiles: blocks of rows that fit in the cache, shared among threads; rows of fits in memory, and the loss on them.

Parameters, directions and gradients are float64 (feature + 1, fit), of centred features, the intercept last.

All is NumPy and BLAS: nothing is compiled.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  loads SciPy's BLAS

from ..numerics import Nonzero, few_nonzero
from ..observations import Observation
from ..threads import Workers, n_cores, one_thread_each, scratch

ROWS_OF_A_TILE = 4096
ALL = slice(None)
TILE = 1 << 17  # numbers; smaller tiles cost more calls, larger ones leave the cache
MANY_CLASSES = 64  # from this number on, the scores of a row are contiguous in memory; for fewer, those of a class
_MOST_ROWS = 16384  # of a tile: more leave the cache
_LEAST_ROWS = 64
_ALONE = 1 << 19  # numbers: a pass over fewer is not worth waking a thread


def tiles_of(n_rows: int, size: int = ROWS_OF_A_TILE) -> list[slice]:
    """Slices of the rows."""
    return [slice(i, min(i + size, n_rows)) for i in range(0, n_rows, size)]


def over_tiles(function: Callable[[slice], Any], n_rows: int, size: int = ROWS_OF_A_TILE) -> Iterator[Any]:
    """Apply a function to every tile and yield the results in order, whatever the threads do."""
    pieces, workers = tiles_of(n_rows, size), Workers()
    with workers if len(pieces) > 1 else one_thread_each():
        yield from workers.each(function, pieces)


def sums_over_tiles(function: Callable[[slice], tuple], n_rows: int, size: int = ROWS_OF_A_TILE) -> list[np.ndarray]:
    """Apply a function to every tile and add up, in float64, what it returns, arrays in a tuple."""
    pieces, workers = tiles_of(n_rows, size), Workers()
    with workers if len(pieces) > 1 else one_thread_each():
        return workers.add(function, pieces)


def rows_at_once(rows: Any, n_fits: int = 0) -> int:
    """Return how many rows to take at a time: for so many fits a tile, if they are not read in chunks."""
    if _are_few(len(rows), rows.shape[1] + n_fits):
        return max(1, len(rows))
    if n_fits and not hasattr(rows, "chunk_rows"):
        return min(ROWS_OF_A_TILE, rows_of_a_tile(n_fits))
    return max(ROWS_OF_A_TILE, min(getattr(rows, "chunk_rows", 0), 4_000_000 // (rows.shape[1] + n_fits)))


def _are_few(n_rows: int, width: int) -> bool:
    """Tell whether a pass over rows of so many numbers is not worth sharing."""
    return n_rows <= _MOST_ROWS and n_rows * width <= _ALONE


class Columns:
    """Columns of an array, looked up a tile of rows at a time: (row, column) without holding it."""

    def __init__(self, array: Any, column: np.ndarray):
        self.array, self.column, self.shape = array, column, (len(array), len(column))
        if np.array_equal(column, np.arange(array.shape[1])):
            self.column = slice(None)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        return self.array[rows][:, self.column]


def a_twentieth(n_rows: int) -> int:
    """Rows per block where the columns of a row are coupled: 1/20 of them, between 32 and 4096."""
    return int(min(n_rows, max(32, min(4096, n_rows // 20))))


class Tiles(Workers):
    """Rows in memory, cut into tiles that stay in the cache; arguments are those of `HostRows`."""

    def __init__(
        self, X, Y, observation: Observation, neuron, mean, weights=None, rows=None, offset=None, dtype=np.float32,
        own=None, scale=None,
    ):  # fmt: skip
        self.observation, self.mean, self.dtype = observation, mean, np.dtype(dtype)
        self.neuron, self.rows, self.scale = np.asarray(neuron), rows, scale
        far = np.abs(mean).max(initial=0.0) > 0
        self._shift = mean.astype(X.dtype) if far and is_far(X) else None
        if self._shift is not None:  # features are centred at exactly what is subtracted
            self.mean = self._shift.astype(np.float64)
        self._hold(X, Y, weights, offset, own)

    def _hold(self, X, Y, weights, offset, own) -> None:
        self.X, self.Y, self.weights, self.offset, self.own, self.n_rows = X, Y, weights, offset, own, len(X)
        self._fast = X if X.dtype == self.dtype else X.astype(self.dtype)
        self._allocate()

    @property
    def are_many(self) -> bool:
        """Whether passes are shared among threads."""
        return not _are_few(self.n_rows, self.X.shape[1] + len(self.neuron))

    def with_rows(self, X, Y, weights=None, offset=None, own=None):
        """Return the same fits on other rows, for the calling thread, without parameters yet."""
        other = copy.copy(self)
        other._pool = None
        other._hold(X, Y, weights, offset, own)
        return other

    def _over(self, function, n_fits: int | None = None) -> list:
        """Apply a function to tiles of rows that fit in the cache with ``n_fits`` numbers per row, in order."""
        n_fits = len(self.neuron) if n_fits is None else n_fits
        size = rows_of_a_tile(n_fits)
        if _are_few(self.n_rows, self.X.shape[1] + n_fits):
            size = max(1, self.n_rows)
        elif self._pool is not None and self.n_rows > 8192:  # as many tiles for every thread
            rounds = -(-self.n_rows // (size * n_cores()))
            size = max(_LEAST_ROWS, -(-self.n_rows // (rounds * n_cores())))
        return list(self.each(function, tiles_of(self.n_rows, size)))

    def _x(self, tile: slice) -> np.ndarray:
        """Rows of the passes that guide steps; features far from 0 are centred before they are rounded."""
        if self._shift is None:
            return self._fast[tile]
        return np.asarray(self.X[tile] - self._shift, self.dtype)

    def _base(self, at) -> np.ndarray:
        """Constant term of the predictor for parameters of centred features, given what products subtract from X."""
        return at[-1] - self.mean @ at[:-1] if self._shift is None else at[-1]

    def _y(self, tile: slice, at, dtype) -> np.ndarray:
        """Responses, laid out as predictors: results do not depend on the order of Y."""
        y = self._counts(tile, at)
        if y.dtype == dtype:
            return y
        converted = scratch(y.shape, dtype, "y")
        converted[...] = y
        return converted

    def _counts(self, tile: slice, at) -> np.ndarray:
        y = self.Y[tile]
        if not (at is ALL and self._every):
            neuron = self.neuron[at]
            y = np.take(y, neuron, axis=1, out=scratch((len(y), len(neuron)), y.dtype, "counts"), mode="clip")
        return np.ascontiguousarray(y)

    def _responses(self, tile: slice, at, dtype, whole: bool = False) -> tuple[np.ndarray | None, Nonzero | None]:
        """Responses of some rows and fits, or those that are not 0 if these suffice; if ``whole``, both."""
        spikes = self._few_spikes(tile, at) if self.observation.skips_zeros else None
        if spikes is None:
            return self._y(tile, at, dtype), None
        spikes = spikes._replace(values=spikes.values.astype(dtype, copy=False))
        return self._y(tile, at, dtype) if whole else None, spikes

    def _few_spikes(self, tile: slice, at) -> Nonzero | None:
        if at is not ALL:
            return few_nonzero(self._counts(tile, at))
        place = tile.start, tile.stop
        if place not in self._spikes:  # responses do not change from pass to pass
            self._spikes[place] = few_nonzero(self._counts(tile, at))
        return self._spikes[place]

    def _weight(self, tile: slice, at) -> np.ndarray | None:
        w = None
        if self.weights is not None:
            w = self.weights[tile]
            if np.all(w == w[:1]):  # for example if folds are blocks of rows
                w = w[:1]
            w = w if self.rows is None else np.take(w, self.rows[at], axis=1)
        if self.own is None:
            return w
        own = self.own[tile] if at is ALL and self._every else np.take(self.own[tile], self.neuron[at], axis=1)
        scale = self.scale[at] if w is None else w * self.scale[at]
        return own * scale

    def _known(self, tile: slice, at) -> np.ndarray | None:
        if self.offset is None:
            return None
        return self.offset[tile] if self.offset.shape[1] == 1 else self.offset[tile][:, self.neuron[at]]

    def _differentiate(self, rows: slice, at, eta, bend=None) -> np.ndarray:
        """Return the derivative of the loss of some rows and fits, and write the second one, times their weights."""
        (y, spikes), slope = self._responses(rows, at, self.dtype), scratch(eta.shape, self.dtype, "slope")
        self.observation.evaluate_into(y, eta, slope, bend, None, spikes)
        w = self._weight(rows, at)
        if w is not None:
            w = w.astype(self.dtype)
            weigh(slope, w)
            if bend is not None:
                weigh(bend, w)
        return slope


def rows_of_a_tile(n_fits: int) -> int:
    """Return how many rows of predictors, for this many fits, fill a tile."""
    return min(max(TILE // max(1, n_fits), _LEAST_ROWS), _MOST_ROWS)


def column_sums(values) -> np.ndarray:
    """Sum over rows by BLAS, which rounds less in single precision than NumPy does, and is many times faster."""
    return np.ones(len(values), values.dtype) @ values


def weigh(values, w) -> None:
    """Multiply values by weights in place; rows without weight may hold anything, even infinity."""
    values *= w
    if not w.all():
        np.copyto(values, 0, where=w == 0)


def weighted(values, w) -> np.ndarray:
    """Values times weights; see `weigh`."""
    values = values * w
    if not w.all():
        np.copyto(values, 0, where=w == 0)
    return values


def is_far(X) -> bool:
    """Whether some feature is so far from 0, relative to its spread, that centring after products would cancel."""
    some = np.asarray(X[:: max(1, len(X) // 4096)], np.float64)
    return bool(np.any(np.abs(some.mean(axis=0)) > 8 * some.std(axis=0)))
