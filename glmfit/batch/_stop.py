"""Tell Ctrl-C, SIGTERM and SIGHUP from what a loader raises that looks like them, and let none of them be lost."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

_noted: list[int] = []  # the signals that came
_handled: dict[int, object] = {}  # the signals that are noted at present, and who handled them before
_dropped: list[object] = []  # stands for what a signal raised and Python dropped, until the signal is raised again
_AGAIN_S = 0.01  # after which the signal is sent again
ENDING = {143: "SIGTERM", 128 + getattr(signal, "SIGHUP", 1): "SIGHUP"}  # exit codes of an orderly end


def is_stopped() -> bool:
    """Whether this process was told to stop."""
    return bool(_noted)


def stop() -> NoReturn:
    """Raise what the signal raised, for those who caught it: KeyboardInterrupt for Ctrl-C, else SystemExit."""
    if not _noted:
        _noted.append(signal.SIGINT)
    raise SystemExit(128 + _noted[-1]) if 128 + _noted[-1] in ENDING else KeyboardInterrupt


def stop_if_told() -> None:
    """Stop here where the signal came before, and somebody caught what it raised."""
    if is_stopped():
        stop()


@contextlib.contextmanager
def signals_noted() -> Iterator[None]:
    """Note SIGINT, SIGTERM and SIGHUP on their way to whoever handles them; the last two end the process in order.

    What comes out after a signal is the signal's, also where somebody on the way made another error of it: it may come
    in the middle of an import or of a read, whose errors are caught and told in other words. In threads other than the
    main one there are no signals; one of these inside another adds nothing.
    """
    if _handled or threading.current_thread() is not threading.main_thread():
        if _handled:
            stop_if_told()
        yield
        return
    _noted.clear()
    numbers = (signal.SIGINT, *(code - 128 for code in ENDING))
    before = {number: signal.getsignal(number) for number in numbers if number in signal.valid_signals()}
    _handled.update({number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)})
    hook, sys.unraisablehook = sys.unraisablehook, functools.partial(_send_again, sys.unraisablehook)
    try:
        for number in _handled:
            signal.signal(number, _note)
        yield
    except Exception:
        stop_if_told()
        raise
    finally:
        for number, handler in _handled.items():
            signal.signal(number, handler)
        _handled.clear()
        _noted.clear()
        _dropped.clear()
        sys.unraisablehook = hook


def _note(number: int, frame: FrameType | None) -> None:
    dropped = _is_in(frame, _send_again)  # what is raised there is dropped, too
    if not dropped:
        _dropped.clear()
    _noted.append(number)
    if dropped:
        return
    handler = _handled.get(number)
    if callable(handler):
        handler(number, frame)
    stop()


def _is_in(frame: FrameType | None, function: Callable) -> bool:
    """Whether a frame is of a function or of what it called."""
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def _send_again(hook: Callable[[Any], object], unraisable: Any) -> None:
    """Let a stop come again that Python drops, as what is raised in callbacks of its garbage collector: jax has one."""
    if not is_stopped() or not isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit):
        hook(unraisable)
        return
    drop = object()
    _dropped[:] = [drop]
    threading.Thread(target=_send, args=(_noted[-1], drop), daemon=True).start()


def _send(number: int, drop: object) -> None:
    """Send a signal to the main thread until it is raised, each time after the last was noted: never once too often."""
    while True:
        time.sleep(_AGAIN_S)
        if number not in _handled or _dropped != [drop]:
            return
        n_noted = len(_noted)
        signal.pthread_kill(threading.main_thread().ident, number)
        while number in _handled and len(_noted) == n_noted:
            time.sleep(_AGAIN_S)
