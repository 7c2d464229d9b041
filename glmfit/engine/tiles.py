"""Tiles: blocks of rows that fit in the cache, shared among threads; rows of fits in memory, and the loss on them.

Parameters, directions and gradients are float64 (feature + 1, fit), of centred features, the intercept last.

All is NumPy and BLAS: nothing is compiled, and no threads but those here are woken.
"""

import contextlib
import copy
import functools
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  loads SciPy's BLAS
from threadpoolctl import ThreadpoolController

from ..numerics import few_nonzero
from ..observations import Observation

ROWS_OF_A_TILE = 4096
_SMALL = 400  # columns of a matrix: smaller ones gain nothing from several threads
ALL = slice(None)
TILE = 1 << 17  # numbers; smaller tiles cost more calls, larger ones leave the cache
MANY_CLASSES = 64  # from this number on, the scores of a row are contiguous in memory; for fewer, those of a class
_MOST_ROWS = 16384  # of a tile: more leave the cache
_LEAST_ROWS = 64

_own = threading.local()


def tiles_of(n_rows: int, size: int = ROWS_OF_A_TILE) -> list[slice]:
    """Slices of the rows."""
    return [slice(i, min(i + size, n_rows)) for i in range(0, n_rows, size)]


class Workers:
    """Threads among which work is shared while they are entered as a context; BLAS keeps to one thread meanwhile.

    NumPy releases the interpreter lock, so threads share the elementwise work, which BLAS threads would not. All
    workers share the threads of the process, which stay alive: with many cores, starting a thread for each costs time
    in every pass. A thread that is itself one of them does its work alone.
    """

    waiting = 0  # threads in addition to one per core, if some wait for a disk
    kind = "passes"  # of tasks, which share threads
    _pool: ThreadPoolExecutor | None = None

    def __enter__(self):
        """Start threads."""
        self._open, workers = contextlib.ExitStack(), n_cores() + self.waiting
        self._open.enter_context(one_thread_each())
        alone = workers == 1 or hasattr(_own, "is_worker")
        self._pool = None if alone else _threads(workers, self.kind, os.getpid())
        self._begun: weakref.WeakSet = weakref.WeakSet()
        return self

    def __exit__(self, *error) -> None:
        """Release the threads, once the work begun has ended."""
        for results in list(self._begun):
            results.close()
        self._pool = None
        self._open.close()

    def lend_to(self, other: "Workers") -> None:
        """Let others use the threads while this is entered."""
        other._pool, other._begun = self._pool, self._begun

    def each(self, function, items) -> Iterator:
        """Apply a function to every item, in order, shared among threads."""

        def quietly(item):
            # The caller sees overflow: of a fit far from its optimum, or of one that has none.
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                return function(item)

        if self._pool is None or len(items) == 1:
            return map(quietly, items)
        results = _in_order(self._pool, quietly, items)
        self._begun.add(results)
        return results

    def add(self, function, items) -> list[np.ndarray]:
        """Add up, in float64, what a function returns for each item, arrays in a tuple; few sums are held at a time."""
        if not len(items):
            return []

        def several(some):
            total = [np.array(part, np.float64) for part in function(some[0])]
            for item in some[1:]:
                for one, part in zip(total, function(item), strict=True):
                    one += part
            return total

        size = -(-len(items) // (2 * n_cores()))
        shares = [items[i : i + size] for i in range(0, len(items), size)]
        return [sum(parts) for parts in zip(*self.each(several, shares), strict=True)]


class Fitters(Workers):
    """Threads for tasks that are whole fits: the passes of other fits need not wait for them."""

    kind = "fits"


@functools.cache
def _threads(n: int, kind: str, process: int) -> ThreadPoolExecutor:
    """Return threads of a process, which has none of those of the process it was forked from."""
    return ThreadPoolExecutor(n, initializer=lambda: setattr(_own, "is_worker", True))


def _in_order(pool: ThreadPoolExecutor, function, items) -> Iterator[Any]:
    """Yield results in order; no task is left running after a failure, or if the caller stops early."""
    futures: deque[Future] = deque()
    try:
        for item in items:
            futures.append(pool.submit(function, item))
        while futures:
            result = futures[0].result()
            futures.popleft()
            yield result
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
        futures.clear()


def over_tiles(function: Callable[[slice], Any], n_rows: int, size: int = ROWS_OF_A_TILE) -> Iterator[Any]:
    """Apply a function to every tile and yield the results in order, whatever the threads do."""
    pieces, workers = tiles_of(n_rows, size), Workers()
    with workers if len(pieces) > 1 else contextlib.nullcontext():
        yield from workers.each(function, pieces)


def sums_over_tiles(function: Callable[[slice], tuple], n_rows: int, size: int = ROWS_OF_A_TILE) -> list[np.ndarray]:
    """Apply a function to every tile and add up, in float64, what it returns, arrays in a tuple."""
    pieces, workers = tiles_of(n_rows, size), Workers()
    with workers if len(pieces) > 1 else contextlib.nullcontext():
        return workers.add(function, pieces)


def rows_at_once(rows: Any) -> int:
    """Return how many rows to take at a time: at least a tile, more if they are read in chunks, to avoid rereading."""
    return max(ROWS_OF_A_TILE, min(getattr(rows, "chunk_rows", 0), 4_000_000 // rows.shape[1]))


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


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uninitialised array that starts on a cache line, as XLA requires to use an array without copying."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(n_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


def small_blas(size: int) -> contextlib.AbstractContextManager:
    """Context in which BLAS keeps to one thread for matrices too small to share: waking threads costs more."""
    return one_thread_each() if size < _SMALL else contextlib.nullcontext()


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Context in which BLAS uses only the calling thread, until no such context is active any more."""
    with _limited.lock:
        _limited.n += 1
        if _limited.n == 1:
            _limited.by = _blas.limit(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _limited.lock:
            _limited.n -= 1
            if not _limited.n:
                _limited.by.restore_original_limits()
                _memory.clear()


_blas = ThreadpoolController()  # of NumPy and SciPy, found when this is imported: the first fit need not wait for it
_limited = SimpleNamespace(n=0, by=None, lock=threading.Lock())
_memory: dict[int, np.ndarray] = {}  # of every thread, until its work is done


def n_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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

    def with_rows(self, X, Y, weights=None, offset=None, own=None):
        """Return the same fits on other rows, for the calling thread, without parameters yet."""
        other = copy.copy(self)
        other._pool = None
        other._hold(X, Y, weights, offset, own)
        return other

    def _over(self, function, n_fits: int | None = None) -> list:
        """Apply a function to tiles of rows that fit in the cache with ``n_fits`` numbers per row, in order."""
        size = rows_of_a_tile(len(self.neuron) if n_fits is None else n_fits)
        if self._pool is not None and self.n_rows > 8192:  # some tiles for every thread
            size = min(size, -(-self.n_rows // 4))
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
        y = self.Y[tile] if at is ALL and self._every else np.take(self.Y[tile], self.neuron[at], axis=1)
        return np.asarray(y, dtype)

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

    def _derivatives(self, rows: slice, at, y, eta) -> tuple[np.ndarray, np.ndarray]:
        """First and second derivative of the loss of some rows and fits, times their weights."""
        spikes = self._few_spikes(rows, at, y) if self.observation.skips_zeros else None
        return derivatives(self.observation, y, eta, self._weight(rows, at), spikes)

    def _few_spikes(self, rows: slice, at, y) -> np.ndarray | None:
        if at is not ALL:
            return few_nonzero(y)
        place = rows.start, rows.stop
        if place not in self._spikes:  # responses do not change from pass to pass
            self._spikes[place] = few_nonzero(y)
        return self._spikes[place]


def rows_of_a_tile(n_fits: int) -> int:
    """Return how many rows of predictors, for this many fits, fill a tile."""
    return int(np.clip(TILE // max(1, n_fits), _LEAST_ROWS, _MOST_ROWS))


def column_sums(values) -> np.ndarray:
    """Sum over rows by BLAS, which rounds less in single precision than NumPy does, and is many times faster."""
    return np.ones(len(values), values.dtype) @ values


def weighted(values, w) -> np.ndarray:
    """Values times weights; rows without weight may hold anything, even infinity."""
    values = values * w
    if not w.all():
        np.copyto(values, 0, where=w == 0)
    return values


def is_far(X) -> bool:
    """Whether some feature is so far from 0, relative to its spread, that centring after products would cancel."""
    some = np.asarray(X[:: max(1, len(X) // 4096)], np.float64)
    return bool(np.any(np.abs(some.mean(axis=0)) > 8 * some.std(axis=0)))


def derivatives(
    observation: Observation, y: np.ndarray, eta: np.ndarray, w=None, spikes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivative of the loss in eta, times weights if given; ``spikes`` are the `few_nonzero` of y."""
    r, c = observation.quick_derivatives(y, eta, spikes)
    if w is None:
        return r, c
    w = w.astype(r.dtype)
    return weighted(r, w), weighted(c, w)


def scratch(shape: tuple[int, int]) -> np.ndarray:
    """Return float64 memory of this thread, which the next call reuses: new memory costs as much as a product."""
    size, of = shape[0] * shape[1], threading.get_ident()
    memory = _memory.get(of)
    if memory is None or len(memory) < size:
        memory = _memory[of] = np.empty(size)
    return memory[:size].reshape(shape)
