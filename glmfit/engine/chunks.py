"""Passes over rows on the host: chunks that stay in cache, one per core at a time."""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

CHUNK = 4096
_SMALL = 400  # columns of matrices that several threads do not share with a gain


def chunks(n_rows: int, size: int = CHUNK) -> list[slice]:
    """Slices of the rows."""
    return [slice(i, min(i + size, n_rows)) for i in range(0, n_rows, size)]


class Workers:
    """Threads among which work is shared while they are entered as a context; BLAS keeps to one thread meanwhile.

    NumPy lets go of the interpreter lock, so that threads share the elementwise work, which BLAS threads would not.
    """

    waiting = 0  # threads beside one for each core, where some wait for a disk
    _pool: ThreadPoolExecutor | None = None

    def __enter__(self):
        """Start threads."""
        self._open, workers = contextlib.ExitStack(), n_cores() + self.waiting
        self._open.enter_context(one_thread_each())
        self._pool = self._open.enter_context(ThreadPoolExecutor(workers)) if workers > 1 else None
        return self

    def __exit__(self, *error) -> None:
        """End them."""
        self._open.close()

    def each(self, function, items) -> Iterator:
        """Apply a function to every item, in order, shared among threads."""

        def quietly(item):
            # What overflows is seen by who asked for it: a fit far from its optimum, or one that has none.
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                return function(item)

        if self._pool is None or len(items) == 1:
            return map(quietly, items)
        return self._pool.map(quietly, items)


def over_chunks(function: Callable[[slice], Any], n_rows: int, size: int = CHUNK) -> Iterator[Any]:
    """Apply a function to every chunk and yield the results in order, whatever the threads do."""
    pieces, workers = chunks(n_rows, size), Workers()
    with workers if len(pieces) > 1 else contextlib.nullcontext():
        yield from workers.each(function, pieces)


def rows_at_once(rows: Any) -> int:
    """Rows (row, column) to take at a time: a chunk at least where they are read, lest it be read again and again."""
    return max(CHUNK, min(getattr(rows, "chunk_rows", 0), 4_000_000 // rows.shape[1]))


class Columns:
    """Columns of an array, looked up a chunk of rows at a time: (row, column) without holding it."""

    def __init__(self, array: Any, column: np.ndarray):
        self.array, self.column, self.shape = array, column, (len(array), len(column))
        if np.array_equal(column, np.arange(array.shape[1])):
            self.column = slice(None)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        return self.array[rows][:, self.column]


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uninitialised array that starts on a cache line, as XLA wants an array it is to use without copying."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(n_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


def small_blas(size: int) -> contextlib.AbstractContextManager:
    """Context in which BLAS keeps to one thread for matrices too small to share: waking threads costs more."""
    return one_thread_each() if size < _SMALL else contextlib.nullcontext()


def one_thread_each() -> contextlib.AbstractContextManager:
    """Context in which BLAS keeps to the thread that calls it."""
    return _blas().limit(limits=1, user_api="blas")


_blas = functools.cache(ThreadpoolController)


def n_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def a_twentieth(n_rows: int) -> int:
    """Rows per block where the columns of a row are coupled: 1/20 of them, between 32 and 4096."""
    return int(min(n_rows, max(32, min(4096, n_rows // 20))))
