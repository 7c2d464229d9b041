"""Seconds jax spends tracing and compiling, so that a report can tell them from running."""

from __future__ import annotations

import threading

import jax

_PREFIX = "/jax/core/compile/"
_lock = threading.Lock()
_total = {"seconds": 0.0, "programs": 0}


def _listen(event: str, seconds: float, **_) -> None:
    if event.startswith(_PREFIX):
        with _lock:
            _total["seconds"] += seconds
            _total["programs"] += event.endswith("backend_compile_duration")


jax.monitoring.register_event_duration_secs_listener(_listen)


def compile_seconds() -> float:
    """Seconds spent so far in this process on tracing, lowering and compiling."""
    return _total["seconds"]


def compiled_programs() -> int:
    """Programs compiled so far in this process."""
    return _total["programs"]
