"""Locks of an output folder, one run at a time, by a file that is touched as long as the run lasts; begun fits.

A fit that repeatedly ends its process is noticed, however the work is distributed: ``begun/KEY.json`` has a line for
every attempt at a fit, is touched as long as it lasts, and is removed when the fit ends with a result or an error.
Remaining lines are attempts whose process died. A process that ends in order takes its own lines back, by appending a
line: nothing is lost when two write at once.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import math
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from ..display import counted
from ..files import DAMAGED, open_to_append, read_regular
from .process import LIFETIME, MARGIN, STARTED, lifetime_of, seconds_of

BEAT_S = 5.0
SILENT_S = 60.0  # a process on another host that is silent for longer is gone
_touched: set[Path] = set()  # files that are touched periodically, to show that this process is alive
_MOST = 0.8  # of a lifetime: an attempt that had less may have been too short for a sound fit
_LEAST = 0.1  # of a lifetime, the least that an attempt counts: no fit is tried indefinitely
_BACK = "-"  # before a line that is taken back
_here: set[Attempt] = set()  # those of this process


def lock_of(out: Path, shard: tuple[int, int] | None) -> Path:
    return out / ("run.lock" if shard is None else f"shard-{shard[0]}-of-{shard[1]}.lock")


class BusyFolder(RuntimeError):
    """Another run is at work in the output folder."""


class RunLock:
    """Lock of an output folder for one run, by a file; BusyFolder if a run that is alive (`is_there`) holds it."""

    def __init__(self, path: Path):
        self.path = Path(path)

    def __enter__(self) -> RunLock:
        self._text = json.dumps(this_process() | {"since": time.time()})
        for _ in range(3):
            try:
                with open(self.path, "x", encoding="utf-8") as file:
                    file.write(self._text)
                touch_from_now_on(self.path)
                return self
            except FileExistsError:
                seen, holder = text_of(self.path), self.holder()
                if holder is not None:
                    raise BusyFolder(
                        f"another run is at work in {self.path.parent}: process {holder['pid']} on {holder['host']}, "
                        f"since {holder['since']}. Wait for it to end or stop it; to share the work, start shards "
                        f"(--shard i/n). If it is gone, remove {self.path}."
                    ) from None
                self._take_away(seen)
        raise BusyFolder(f"other runs are starting in {self.path.parent} at this moment; start only one of them.")

    def __exit__(self, *_) -> None:
        _touched.discard(self.path)
        with contextlib.suppress(OSError):  # a folder that has become read-only, or is gone, is reported elsewhere
            if text_of(self.path) == self._text:
                self.path.unlink(missing_ok=True)

    def holder(self) -> dict | None:
        """Return the process that holds the folder; None if it is gone."""
        try:
            found = json.loads(text_of(self.path) or "")
            holder = found | {"pid": int(found["pid"]), "since": time.ctime(float(found.get("since", 0)))}
            return holder if is_there(holder, self.path) else None
        except DAMAGED:  # half-written, by a process that is writing or was killed; or no file
            unknown = {"pid": "?", "host": "?", "since": time.ctime()}
            return unknown if _is_heard_of(self.path, BEAT_S) else None

    def _take_away(self, seen: str | None) -> None:
        """Remove the file of a run that is gone; if several try, one succeeds."""
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.gone")
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, aside)
            if text_of(aside) != seen and not self.path.exists():
                os.rename(aside, self.path)  # another run was faster, and is alive
            else:
                aside.unlink()


def text_of(path: Path) -> str | None:
    """Read the text of a file that may be anything; None if that fails."""
    with contextlib.suppress(OSError, ValueError):
        return read_regular(path).decode(errors="replace")
    return None


def touch_from_now_on(path: Path) -> None:
    """Touch a file periodically, so that other hosts see that this process is alive."""
    _touched.add(path)
    if "glmfit-beat" not in [thread.name for thread in threading.enumerate()]:
        threading.Thread(target=_beat, daemon=True, name="glmfit-beat").start()


def _beat() -> None:
    while True:
        time.sleep(BEAT_S)
        for path in list(_touched):
            with contextlib.suppress(OSError):  # a file server may be back in a moment
                os.utime(path)


def this_process() -> dict[str, Any]:
    """Identify this process, so that others can tell whether it still exists."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}


def is_there(mark: dict[str, Any], path: Path) -> bool:
    """Whether the process of a mark is alive: on this host it exists, on another it touched its file recently."""
    if mark["host"] != socket.gethostname():
        return _is_heard_of(path, SILENT_S)
    return mark.get("born") is not None and _born(mark.get("pid")) == mark["born"]


def _is_heard_of(path: Path, within_s: float) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime < within_s
    return False


def _born(pid: Any) -> str | None:
    """Return when a process of this host started, in its own words; None if it does not exist or is a zombie."""
    try:
        if not Path("/proc/self/stat").exists():  # only its existence can be checked
            os.kill(int(pid), 0)
            return "alive"
        state, *after = Path(f"/proc/{int(pid)}/stat").read_text().rsplit(")", 1)[1].split()
    except DAMAGED:
        return None
    return None if state == "Z" else after[18]


# -- fits that were begun


class Attempt:
    """Record that a fit has begun, touched as long as it lasts."""

    def __init__(self, out: Path, key: str):
        self._path, self._start = _path(out, key), time.monotonic()
        mark = this_process() | {"began": time.time()}
        lifetime, job = _number(LIFETIME), os.environ.get("SLURM_JOB_ID")
        lifetime = lifetime or (job and _lifetime_of_job(job, mark["born"]))
        if lifetime:
            mark |= {"lifetime": lifetime, "left": lifetime - _age(mark["born"])}
        self._left, self._line = mark.get("left", math.inf), json.dumps(mark)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _append(self._path, {self._line})
        _here.add(self)
        touch_from_now_on(self._path)

    def end(self) -> None:
        """Stop touching the file: there is a result, or an error."""
        _here.discard(self)
        _touched.discard(self._path)

    def forget(self) -> None:
        """Take the line back unless the fit had all the time: the process ends in order, and not because of the fit."""
        self.end()
        if time.monotonic() - self._start <= _MOST * self._left:
            _drop(self._path, {self._line})


@atexit.register
def forget_all() -> None:
    for attempt in list(_here):
        attempt.forget()


def ended(out: Path, key: str) -> None:
    """Forget the attempts at a fit that has a result or an error."""
    with contextlib.suppress(OSError):
        _path(out, key).unlink(missing_ok=True)


def begun(out: Path) -> set[str]:
    """Return keys of fits that were begun and have not ended, including running ones."""
    try:
        return {path.stem for path in (Path(out) / "begun").iterdir()}
    except OSError:
        return set()


def deaths(out: Path, key: str) -> list[dict[str, Any]]:
    """List attempts whose process died.

    In jobs with a walltime an attempt counts if it had nearly all of the walltime. A shorter one may have been too
    short for a sound fit; of those, one counts whenever they add up to a walltime.
    """
    found, together = [], 0.0
    for mark in [mark for _, mark, lasts in _marks(_path(out, key)) if not lasts]:
        is_short = mark["share"] < _MOST
        together += max(mark["share"], _LEAST) if is_short else 0.0
        if not is_short or together >= 1.0:
            found.append(mark | {"together": is_short})
            together -= is_short
    return found


def take_back(out: Path, keys: list[str]) -> None:
    """Forget the running attempts: their processes are about to be ended in order."""
    for key in begun(out).intersection(keys):
        path = _path(out, key)
        _drop(path, {line for line, _, lasts in _marks(path) if lasts})


def reason(attempts: list[dict[str, Any]]) -> str:
    text = f"its process ended {counted(len(attempts), 'time')} without a result: a crash, or too much memory"
    lifetimes = [mark["lifetime"] for mark in attempts if "lifetime" in mark]
    if lifetimes:
        text += f", or a fit longer than the {min(lifetimes):.0f} s that a job may run"
    if any(mark["together"] for mark in attempts):
        text += " (shorter attempts count as one when they add up to as much)"
    return text


def _path(out: Path, key: str) -> Path:
    return Path(out) / "begun" / f"{key}.json"


def _marks(path: Path) -> list[tuple[str, dict[str, Any], bool]]:
    """Return lines that were not taken back, their content, and whether the attempt lasts."""
    found, lines = [], (text_of(path) or "").splitlines()
    back = {line.removeprefix(_BACK) for line in lines if line.startswith(_BACK)}
    for line in [line for line in lines if line not in back]:
        with contextlib.suppress(ArithmeticError, *DAMAGED):
            mark, share = json.loads(line), 1.0
            if "lifetime" in mark:
                mark["lifetime"] = float(mark["lifetime"])
                share = float(mark["left"]) / mark["lifetime"]
            found.append((line, mark | {"share": share}, is_there(mark, path)))
    return found


def _append(path: Path, lines: set[str]) -> None:
    with open_to_append(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def _drop(path: Path, lines: set[str]) -> None:
    """Take lines back, and remove the file with the last of them."""
    with contextlib.suppress(OSError):
        there = {line for line, _, _ in _marks(path)}
        if there and there <= lines:
            path.unlink(missing_ok=True)
        elif there & lines:
            _append(path, {_BACK + line for line in there & lines})


def _number(name: str) -> float | None:
    with contextlib.suppress(KeyError, ValueError):
        return float(os.environ[name])
    return None


@functools.cache
def _lifetime_of_job(job: str, birth: str | None) -> float | None:
    """Ask SLURM, once, how long a job may run if this is not set: a job of a user's script."""
    command = ["squeue", "--noheader", "--format=%L", f"--jobs={job}"]
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):  # no limit, or no answer
        left = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return lifetime_of(_age(birth) + seconds_of(left), MARGIN)
    return None


def _age(birth: str | None) -> float:
    """Return seconds since the job of this process, or else the process, began."""
    started = _number(STARTED)
    if started is not None:
        return time.time() - started
    with contextlib.suppress(OSError, ValueError, TypeError):
        return float(Path("/proc/uptime").read_text().split()[0]) - int(birth) / os.sysconf("SC_CLK_TCK")
    return 0.0
