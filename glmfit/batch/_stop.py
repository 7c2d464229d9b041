"""Tell Ctrl-C and SIGTERM from what a loader raises that looks like them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

_stopped = threading.Event()
TERMINATED = 143


def is_stopped() -> bool:
    """Whether this process was told to stop."""
    return _stopped.is_set()


def stop() -> NoReturn:
    """Raise what Ctrl-C raises, for a fit that caught it."""
    _stopped.set()
    raise KeyboardInterrupt


@contextlib.contextmanager
def signals_noted() -> Iterator[None]:
    """Note SIGINT and SIGTERM on their way to whoever handles them; SIGTERM ends the process in order.

    In threads other than the main one there are no signals.
    """
    _stopped.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}

    def note(number, frame):
        _stopped.set()
        if callable(before[number]):
            before[number](number, frame)
        raise SystemExit(TERMINATED) if number == signal.SIGTERM else KeyboardInterrupt

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
