"""Compilation: in full precision, told apart from running in a report, and done ahead of need in the background."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

_PREFIX = "/jax/core/compile/"
_lock = threading.Lock()
_programs = 0
_waited = threading.local()
# Weak: kernels made for one fit take what they were compiled for with them.
_ahead: weakref.WeakKeyDictionary[Callable, Future] = weakref.WeakKeyDictionary()
_known: weakref.WeakKeyDictionary[Callable, set[tuple]] = weakref.WeakKeyDictionary()
_turn: Callable[[str], AbstractContextManager] = nullcontext
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


def _listen(event: str, seconds: float, **_) -> None:
    global _programs
    if event.startswith(_PREFIX):
        _waited.seconds = compile_seconds() + seconds
        with _lock:
            _programs += event.endswith("backend_compile_duration")


jax.monitoring.register_event_duration_secs_listener(_listen)


def compile_seconds() -> float:
    """Seconds this thread has spent so far on tracing and compiling, or on waiting for others to do so."""
    return getattr(_waited, "seconds", 0.0)


def compiled_programs() -> int:
    """Programs compiled so far in this process."""
    return _programs


def take_turns(turn: Callable[[str], AbstractContextManager]) -> None:
    """Let every program be compiled ahead within ``turn(name)``.

    Processes that share a folder of compiled programs need not compile the same one at the same time: whoever comes
    second waits, and finds it there. Programs of the same shapes have the same name in all processes.
    """
    global _turn
    _turn = turn


def compile_ahead(calls: Iterable[tuple[Callable, tuple, dict[str, Any]]]) -> None:
    """Start to compile jitted kernels in the background, while the caller does something else.

    Parameters
    ----------
    calls :
        Kernel, arguments and static keyword arguments of each call to come, the most urgent one first; arrays
        may stand as `jax.ShapeDtypeStruct`. A call that comes otherwise is compiled then, as ever.
    """
    x64 = _double()
    fresh = []
    for kernel, args, static in calls:
        leaves, structure = jax.tree.flatten(args)
        key = structure, tuple((a.shape, str(a.dtype)) for a in leaves), tuple(static.items()), x64
        known = _known.setdefault(kernel, set())
        if key not in known:
            known.add(key)
            shapes = hashlib.sha256(repr(key[1:]).encode()).hexdigest()[:16]
            fresh.append((kernel, args, static, f"{kernel.__name__}-{shapes}"))
    if not fresh:
        return

    def compile_one(kernel, args, static, name):
        if _double() == x64:  # a context manager of the caller's thread is not seen here
            with _turn(name):
                kernel.lower(*args, **static).compile()

    pool = ThreadPoolExecutor(2, thread_name_prefix="glmfit-compile")
    for kernel, *call in fresh:
        _ahead[kernel] = pool.submit(compile_one, kernel, *call)
    pool.shutdown(wait=False)


def _note_fork() -> None:
    global _forked
    # jax does not say in public whether it has started; what was compiled tells, too, but for its first moments.
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


def finish_compiling() -> None:
    """Wait for what is being compiled in the background: its programs then count for the fit that asked for them."""
    for future in list(_ahead.values()):
        future.exception()


def compiled(kernel: Callable) -> Callable:
    """Return the kernel, once it is no longer being compiled in the background."""
    future = _ahead.pop(kernel, None)
    if future is not None:
        start = time.perf_counter()
        future.exception()  # the call itself will tell
        _waited.seconds = compile_seconds() + time.perf_counter() - start
    return kernel


def _double() -> bool:
    """Whether jax keeps double precision in this thread."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def like(tree: Any) -> Any:
    """Shapes and dtypes of a tree of arrays, as jax will see them."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), jax.dtypes.canonicalize_dtype(a.dtype)), tree)
