"""Fits that were begun: what ends its process again and again is noticed, in whatever way the work is shared out.

``begun/KEY.json`` has a line for every attempt at a fit, and is removed when the fit ends with a result or an error.
Lines that are left are attempts that nobody lived to tell of.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from .._progress import counted
from ._lock import born, is_alive

LIFETIME = "GLMFIT_BATCH_LIFETIME"  # seconds that a process may work, of jobs with a walltime
_MOST = 0.8  # of a lifetime: an attempt that had less may have been too short for an innocent fit
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)


class Attempt:
    """Write down that a fit is begun; on leaving by a signal, that it need not count.

    Parameters
    ----------
    out : pathlib.Path
        Output folder.
    key : str
        Of the task.
    """

    def __init__(self, out: Path, key: str):
        self._path, self._start = _path(out, key), time.monotonic()
        pid = os.getpid()
        mark = {"host": socket.gethostname(), "pid": pid, "born": born(pid), "began": time.time()}
        lifetime = os.environ.get(LIFETIME)
        if lifetime:
            mark |= {"lifetime": float(lifetime), "left": float(lifetime) - _age(mark["born"])}
        self._lifetime, self._line = mark.get("lifetime"), json.dumps(mark) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, _FLAGS, 0o666)
        try:
            os.write(file, self._line.encode())
        finally:
            os.close(file)

    def forget(self) -> None:
        """Take the line back: the process was told to end, and the fit is not why."""
        if self._lifetime and time.monotonic() - self._start > _MOST * self._lifetime:
            return  # it had all the time there is
        with contextlib.suppress(OSError):
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            rest = [line for line in lines if line != self._line]
            if rest:
                self._path.write_text("".join(rest), encoding="utf-8")
            else:
                self._path.unlink()


def ended(out: Path, key: str) -> None:
    """Forget the attempts at a fit that has a result or an error."""
    _path(out, key).unlink(missing_ok=True)


def begun(out: Path) -> set[str]:
    """Keys of the fits that were begun and have not ended, of those at work too."""
    try:
        return {path.stem for path in (Path(out) / "begun").iterdir()}
    except OSError:
        return set()


def deaths(out: Path, key: str) -> list[dict[str, Any]]:
    """List attempts whose process ended without a word; in jobs with a walltime those that had nearly all of it."""
    found = []
    with contextlib.suppress(OSError):
        for line in _path(out, key).read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                mark = json.loads(line)
                alive = mark["host"] == socket.gethostname() and is_alive(mark)
                if not alive and mark.get("left", 1.0) >= _MOST * mark.get("lifetime", 1.0):
                    found.append(mark)
    return found


def reason(attempts: list[dict[str, Any]]) -> str:
    """Say why a fit is given up."""
    text = f"its process ended {counted(len(attempts), 'time')} without a result: a crash, or more memory than there is"
    lifetimes = [mark["lifetime"] for mark in attempts if "lifetime" in mark]
    return text + (f", or a fit longer than the {min(lifetimes):.0f} s that a job may work" if lifetimes else "")


def _path(out: Path, key: str) -> Path:
    return Path(out) / "begun" / f"{key}.json"


def _age(birth: str | None) -> float:
    """Seconds since a process of this host was started."""
    try:
        return float(Path("/proc/uptime").read_text().split()[0]) - int(birth) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, TypeError):
        return 0.0
