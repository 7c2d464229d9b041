"""Who is at work in an output folder: files that say so, are touched as long as it lasts, and hold it for one run."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from .._files import DAMAGED, read_regular

BEAT_S = 5.0
SILENT_S = 60.0  # on another host, heard of longer ago than this: gone
touched: set[Path] = set()  # files that are touched from time to time, to show that this process is there


def lock_of(out: Path, shard: tuple[int, int] | None) -> Path:
    return out / ("run.lock" if shard is None else f"shard-{shard[0]}-of-{shard[1]}.lock")


class BusyFolder(RuntimeError):
    """Another run is at work in the output folder."""


class RunLock:
    """Hold an output folder for one run, by a file; a run that was killed does not hold it any longer.

    Entering raises BusyFolder if a run that is alive (see `is_there`) holds it.
    """

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
                seen, holder = _text_of(self.path), self.holder()
                if holder is not None:
                    raise BusyFolder(
                        f"another run is at work in {self.path.parent}: process {holder['pid']} on {holder['host']}, "
                        f"since {holder['since']}. Wait for it to end or stop it; to share the work, start shards "
                        f"(--shard i/n). If it is gone, remove {self.path}."
                    ) from None
                self._take_away(seen)
        raise BusyFolder(f"other runs are starting in {self.path.parent} at this moment; start one of them only.")

    def __exit__(self, *_) -> None:
        touched.discard(self.path)
        with contextlib.suppress(OSError):  # a folder that has become read-only, or is gone, is told of elsewhere
            if _text_of(self.path) == self._text:
                self.path.unlink(missing_ok=True)

    def holder(self) -> dict | None:
        """Who holds the folder; None if they are gone."""
        try:
            found = json.loads(_text_of(self.path) or "")
            holder = found | {"pid": int(found["pid"]), "since": time.ctime(float(found.get("since", 0)))}
            return holder if is_there(holder, self.path) else None
        except DAMAGED:  # half-written, by somebody who is at it or was killed; or no file at all
            unknown = {"pid": "?", "host": "?", "since": time.ctime()}
            return unknown if _is_heard_of(self.path, BEAT_S) else None

    def _take_away(self, seen: str | None) -> None:
        """Remove the file of a run that is gone; of several that try, one does."""
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.gone")
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, aside)
            if _text_of(aside) != seen and not self.path.exists():
                os.rename(aside, self.path)  # somebody was faster, and is alive
            else:
                aside.unlink()


def _text_of(path: Path) -> str | None:
    """Read what somebody wrote, of a file that may be anything."""
    try:
        return read_regular(path, 10_000).decode(errors="replace")
    except (OSError, ValueError):
        return None


def touch_from_now_on(path: Path) -> None:
    """Touch a file from time to time, so that other hosts see that somebody is there."""
    touched.add(path)
    if "glmfit-beat" not in [thread.name for thread in threading.enumerate()]:
        threading.Thread(target=_beat, daemon=True, name="glmfit-beat").start()


def _beat() -> None:
    while True:
        time.sleep(BEAT_S)
        for path in list(touched):
            with contextlib.suppress(OSError):  # a file server may be back in a moment
                os.utime(path)


def this_process() -> dict[str, Any]:
    """Name this process so that others can tell whether it is still there."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}


def is_there(mark: dict[str, Any], path: Path) -> bool:
    """Whether who left a mark is there: on this host the process exists, on another it has touched its file of late."""
    if mark["host"] != socket.gethostname():
        return _is_heard_of(path, SILENT_S)
    return mark.get("born") is not None and _born(mark.get("pid")) == mark["born"]


def _is_heard_of(path: Path, within_s: float) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime < within_s
    return False


def _born(pid: Any) -> str | None:
    """When a process of this host was started, in its own words; None if there is none (or it is a zombie)."""
    try:
        if not Path("/proc/self/stat").exists():  # whether it exists has to do
            os.kill(int(pid), 0)
            return "alive"
        state, *after = Path(f"/proc/{int(pid)}/stat").read_text().rsplit(")", 1)[1].split()
    except DAMAGED:
        return None
    return None if state == "Z" else after[18]
