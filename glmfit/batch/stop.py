"""Tell Ctrl-C, SIGTERM and SIGHUP from what a loader raises that looks like them, and let none of them be lost."""

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

_noted: list[int] = []  # the signals that came
_handled: dict[int, object] = {}  # the signals that are noted at present, and who handled them before
_ALARM = getattr(signal, "SIGALRM", None)
_AGAIN_S = 0.01  # after which a stop that Python dropped is raised again
ENDING = {143: "SIGTERM", 128 + getattr(signal, "SIGHUP", 1): "SIGHUP"}  # exit codes of an orderly end


def is_stopped() -> bool:
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
    hook, sys.unraisablehook = sys.unraisablehook, functools.partial(_raise_again, sys.unraisablehook)
    try:
        for number in _handled:
            signal.signal(number, _note)
        yield
    except Exception:
        stop_if_told()
        raise
    finally:
        sys.unraisablehook = hook
        if _ALARM in _handled:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in _handled.items():
            signal.signal(number, handler)
        _handled.clear()
        _noted.clear()


def _note(number: int, frame: FrameType | None) -> None:
    """Note a signal, and raise what it raises; an alarm stands for the last that was dropped."""
    if number != _ALARM:
        _noted.append(number)
    if _is_in(frame, _raise_again):  # what is raised there is dropped, too: the alarm is still to come
        return
    if _ALARM in _handled:
        signal.setitimer(signal.ITIMER_REAL, 0)
    handler = _handled.get(_noted[-1])
    if callable(handler):
        handler(_noted[-1], frame)
    stop()


def _is_in(frame: FrameType | None, function: Callable) -> bool:
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def _raise_again(hook: Callable[[Any], object], unraisable: Any) -> None:
    """Let a stop come again that Python drops, as what is raised in callbacks of its garbage collector: jax has one."""
    is_stop = is_stopped() and isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit)
    if not is_stop or threading.current_thread() is not threading.main_thread():
        hook(unraisable)
        return
    before = signal.signal(_ALARM, _note)
    _handled.setdefault(_ALARM, before)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
