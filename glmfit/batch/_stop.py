"""Tell Ctrl-C and SIGTERM from what a loader raises that looks like them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

_noted: list[int] = []  # the signals that came
TERMINATED = 143


def is_stopped() -> bool:
    """Whether this process was told to stop."""
    return bool(_noted)


def stop() -> NoReturn:
    """Raise what the signal raised, for those who caught it: SystemExit for SIGTERM, else KeyboardInterrupt."""
    if not _noted:
        _noted.append(signal.SIGINT)
    raise SystemExit(TERMINATED) if _noted[-1] == signal.SIGTERM else KeyboardInterrupt


@contextlib.contextmanager
def signals_noted() -> Iterator[None]:
    """Note SIGINT and SIGTERM on their way to whoever handles them; SIGTERM ends the process in order.

    What comes out after a signal is the signal's, also where somebody on the way made another error of it: it may come
    in the middle of an import or of a read, whose errors are caught and told in other words. In threads other than the
    main one there are no signals.
    """
    _noted.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}

    def note(number, frame):
        _noted.append(number)
        if callable(before[number]):
            before[number](number, frame)
        stop()

    for number in before:
        signal.signal(number, note)
    try:
        yield
    except Exception:
        if is_stopped():
            stop()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
