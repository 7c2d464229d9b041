"""Threads: work shared among the cores, and BLAS kept to the threads that are wanted.

A thread of BLAS that is woken once waits for more for a tenth of a second, in which it takes time from ours. So large
products are shared among our threads, and BLAS runs in them.
"""

import contextlib
import functools
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  loads SciPy's BLAS
from numpy.typing import DTypeLike
from threadpoolctl import ThreadpoolController

_SMALL = 400  # columns of a matrix: smaller ones gain nothing from several threads

_own = threading.local()


class Workers:
    """Threads among which work is shared while they are entered as a context; BLAS keeps to one thread meanwhile.

    NumPy releases the interpreter lock, so threads share the elementwise work, which BLAS threads would not. The
    calling thread works, too, so that no core is left to one that waits for the lock. All workers share the threads of
    the process, which stay alive: with many cores, starting a thread for each costs time in every pass. A thread that
    is itself one of them does its work alone.
    """

    waiting = 0  # threads in addition to one per core, if some wait for a disk
    kind = "passes"  # of tasks, which share threads
    _pool: "_Threads | None" = None

    def __enter__(self):
        """Start threads."""
        self._open, workers = contextlib.ExitStack(), n_cores() + self.waiting
        self._open.enter_context(one_thread_each())
        alone = workers == 1 or is_worker()
        self._pool = None if alone else _threads(workers - 1, self.kind, os.getpid())
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
        """Apply a function to every item, in order; it is called by this thread and by others."""

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


class _Threads(ThreadPoolExecutor):
    """Threads that help others."""

    def __init__(self, size: int):
        super().__init__(size, initializer=_become_worker)
        self.size = size


@functools.cache
def _threads(n: int, kind: str, process: int) -> _Threads:
    """Return threads of a process, which has none of those of the process it was forked from."""
    return _Threads(n)


def _in_order(pool: _Threads, function, items) -> Iterator[Any]:
    """Yield results in order; no task is left running after a failure, or if the caller stops early."""
    left, results, others, other = iter(range(len(items))), {}, [], None

    def work():
        try:
            for k in left:
                results[k] = function(items[k])
        except BaseException:
            deque(left, 0)  # the others stop, too
            raise

    try:
        for _ in range(min(pool.size, len(items) - 1)):
            others.append(pool.submit(work))
        for k in range(len(items)):
            while k not in results:
                mine = next(left, None)
                if mine is None:
                    others = [other for other in others if not other.cancel()]
                    for other in others:
                        other.result()
                else:
                    with _as_worker():
                        results[mine] = function(items[mine])
            yield results.pop(k)
    finally:
        deque(left, 0)
        wait([other for other in others if not other.cancel()])
        others = other = None  # else the traceback of a failure would hold all that its tasks hold


def small_blas(size: int) -> contextlib.AbstractContextManager:
    """Context in which BLAS keeps to one thread for matrices too small to share: waking threads costs more."""
    return one_thread_each() if size < _SMALL else contextlib.nullcontext()


class _Limit:
    """One thread for each of some libraries of BLAS while it is entered, by whichever threads and in any order."""

    def __init__(self, libraries: list):
        self.libraries, self.before = libraries, []
        self.n, self.lock = 0, threading.Lock()

    def enter(self) -> None:
        """Limit the libraries, unless they are limited already."""
        with self.lock:
            self.n += 1
            if self.n == 1:
                self.before = [library.num_threads for library in self.libraries]
                self._set([1] * len(self.libraries))

    def leave(self) -> bool:
        """Restore the numbers of threads if nobody else needs the limit; return whether that is so."""
        with self.lock:
            self.n -= 1
            if not self.n:
                self._set(self.before)
            return not self.n

    def _set(self, numbers: list[int]) -> None:
        for library, number in zip(self.libraries, numbers, strict=True):
            # threadpoolctl lets one thread change the number of a library, and ignores the others.
            getattr(library, "_real_set_num_threads", library.set_num_threads)(number)


def _limit_of_thread() -> _Limit:
    """Return the limit of libraries that count threads for each calling thread: those with OpenMP."""
    if not hasattr(_own, "limit"):
        _own.limit = _Limit(_PER_THREAD)
    return _own.limit


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Context in which BLAS uses only the calling thread, until no such context is active any more."""
    own = _limit_of_thread()
    own.enter()
    _limit.enter()
    try:
        yield
    finally:
        if _limit.leave():
            _memory.clear()
        own.leave()


@contextlib.contextmanager
def _as_worker() -> Iterator[None]:
    """Context in which this thread is one of ours."""
    before = is_worker()
    _own.is_worker = True
    try:
        yield
    finally:
        if not before:
            del _own.is_worker


def _become_worker() -> None:
    """Mark a thread as one of ours, in which BLAS never has threads of its own."""
    _own.is_worker = True
    _limit_of_thread().enter()


# Libraries of NumPy and SciPy, found when this is imported: the first fit need not wait for it.
_BLAS = [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]
_ALLOWED = max((library.num_threads for library in _BLAS), default=1 << 16)
_PER_THREAD = [library for library in _BLAS if getattr(library, "threading_layer", None) == "openmp"]
_limit = _Limit([library for library in _BLAS if library not in _PER_THREAD])
_memory: dict[tuple[int, str], np.ndarray] = {}  # of every thread, until its work is done


def n_cores() -> int:
    """Cores this process may use, at most as many threads as BLAS had (OMP_NUM_THREADS) when glmfit was imported."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(n, _ALLOWED)


def is_worker() -> bool:
    """Whether this thread shares work with others at the moment."""
    return hasattr(_own, "is_worker")


def scratch(shape: tuple[int, ...], dtype: DTypeLike, name: str) -> np.ndarray:
    """Return memory of this thread for an array, which the next call with this name reuses.

    New memory costs more than what is computed in it: the system clears every page.
    """
    dtype, place = np.dtype(dtype), (threading.get_ident(), name)
    size = math.prod(shape) * dtype.itemsize
    memory = _memory.get(place)
    if memory is None or len(memory) < size:
        memory = _memory[place] = np.empty(size, np.uint8)
    return memory[:size].view(dtype).reshape(shape)
