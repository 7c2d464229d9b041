"""Compilation: in full precision, timed apart from running, and refused where jax would wait for ever."""

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
    """Let all products of a function, gradients and loops included, round as its numbers do, on any device.

    By default jax multiplies float32 matrices as the device likes best: on GPUs of NVIDIA with 10 bits (TF32), an error
    of 1e-3 where line searches, certificates and stopping rules count on 1e-7. jax's own configuration stays as it is.
    """

    @functools.wraps(function)
    def in_full(*args, **kwargs):
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return in_full


def jit(function: Callable, **options: Any) -> Callable:
    """Compile a kernel: `jax.jit`, with `full_precision`. Every compiled function of the package is made by this."""
    return jax.jit(full_precision(function), **options)


def default_device() -> jax.Device:
    """Device on which jax puts arrays unless it is told another."""
    return next(iter(jax.device_put(np.empty(0)).devices()))


def _listen(event: str, seconds: float, **_) -> None:
    global _programs
    if event.startswith(_PREFIX):
        _waited.seconds = compile_seconds() + seconds
        with _lock:
            _programs += event.endswith("backend_compile_duration")


jax.monitoring.register_event_duration_secs_listener(_listen)


def compile_seconds() -> float:
    """Seconds this thread has spent so far on tracing and compiling."""
    return getattr(_waited, "seconds", 0.0)


class Clock:
    """Seconds of a fit since it began, callbacks not counted: all of them, and those of tracing and compiling."""

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
        """Leave out what is done inside."""
        seconds, compiling = self.seconds, self.compiling
        try:
            yield
        finally:
            self._start += self.seconds - seconds
            self._compiled += self.compiling - compiling


def compiled_programs() -> int:
    """Programs compiled so far in this process."""
    return _programs


def _note_fork() -> None:
    global _forked
    # jax does not say in public whether it has started; what was compiled tells as well, except at the very start.
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", _programs)
    _forked = _forked or bool(started)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def is_forked() -> bool:
    """Whether this process was forked after jax had started, so that calls of jax would wait for ever."""
    return _forked


def refuse_fork() -> None:
    """Raise where jax would wait for ever: in a process that was forked after jax had started."""
    if _forked:
        raise RuntimeError(
            "this process was forked after JAX had started, whose threads have stayed in the parent: a fit would wait "
            'for them for ever. Start processes by multiprocessing.get_context("spawn") or joblib\'s "loky", or fork '
            "before the first fit."
        )
