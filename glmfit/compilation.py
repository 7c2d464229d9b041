"""Compilation in full precision, timed separately from running, and refused if jax would hang."""

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

_PREFIX = "/jax/core/compile/"
_lock = threading.Lock()
_programs = 0
_waited = threading.local()
_forked = False  # after jax had started: its threads have stayed in the parent


def full_precision(function: Callable) -> Callable:
    """Compute all products of a function, gradients and loops included, in the precision of its arrays, on any device.

    By default jax multiplies float32 matrices in the precision that the device prefers: on NVIDIA GPUs with 10 bits
    (TF32), an error of 1e-3, but line searches, certificates and stopping rules rely on 1e-7. The configuration of jax
    is not changed.
    """

    @functools.wraps(function)
    def in_full(*args, **kwargs):
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return in_full


def jit(function: Callable, **options: Any) -> Callable:
    """Compile a kernel: `jax.jit`, with `full_precision`. All compiled functions of the package use it."""
    return jax.jit(full_precision(function), **options)


def default_device() -> jax.Device:
    """Return the device on which jax puts arrays by default."""
    return next(iter(jax.device_put(np.empty(0)).devices()))


def _listen(event: str, seconds: float, **_) -> None:
    global _programs
    if event.startswith(_PREFIX):
        _waited.seconds = compile_seconds() + seconds
        with _lock:
            _programs += event.endswith("backend_compile_duration")


jax.monitoring.register_event_duration_secs_listener(_listen)


def compile_seconds() -> float:
    """Return the seconds this thread has spent so far on tracing and compiling."""
    return getattr(_waited, "seconds", 0.0)


class Clock:
    """Seconds since a fit began, without callbacks: in total, and for tracing and compiling."""

    def __init__(self):
        self._start, self._compiled = time.perf_counter(), compile_seconds()

    @property
    def seconds(self) -> float:
        """Seconds so far, compilation included."""
        return time.perf_counter() - self._start

    @property
    def compiling(self) -> float:
        """Seconds so far of tracing and compiling."""
        return compile_seconds() - self._compiled

    def add(self, seconds: float) -> None:
        """Count the seconds of an earlier part of the fit."""
        self._start -= seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time spent inside."""
        seconds, compiling = self.seconds, self.compiling
        try:
            yield
        finally:
            self._start += self.seconds - seconds
            self._compiled += self.compiling - compiling


def compiled_programs() -> int:
    """Return the number of programs compiled so far in this process."""
    return _programs


def _note_fork() -> None:
    global _forked
    # jax has no public way to tell whether it has started; compiled programs show it, except at the very start.
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", _programs)
    _forked = _forked or bool(started)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def is_forked() -> bool:
    """Tell whether this process was forked after jax had started, so that calls to jax would hang."""
    return _forked


def refuse_fork() -> None:
    """Raise in a process that was forked after jax had started, where jax would hang."""
    if _forked:
        raise RuntimeError(
            "this process was forked after JAX had started, whose threads stayed in the parent: a fit would wait for "
            'them indefinitely. Start processes with multiprocessing.get_context("spawn") or joblib\'s "loky", or fork '
            "before the first fit."
        )
