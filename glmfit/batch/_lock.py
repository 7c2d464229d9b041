"""One run at a time in an output folder: a file that says who is at work, and since when it was heard of."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from .._files import read_regular

BEAT_S = 5.0
SILENT_S = 60.0  # on another host, heard of longer ago than this: gone


def lock_of(out: Path, shard: tuple[int, int] | None) -> Path:
    """File that a run, or a shard of one, holds."""
    return out / ("run.lock" if shard is None else f"shard-{shard[0]}-of-{shard[1]}.lock")


class BusyFolder(RuntimeError):
    """Another run is at work in the output folder."""


class RunLock:
    """Hold an output folder for one run, by a file; a run that was killed does not hold it any longer.

    Entering raises BusyFolder if a run that is alive holds it: on this host its process exists, on another its file was
    touched within the last minute.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self._end = threading.Event()
        self._seen: str | None = None

    def __enter__(self) -> RunLock:
        me = {"host": socket.gethostname(), "pid": os.getpid(), "born": born(os.getpid()), "since": time.time()}
        self._text = json.dumps(me)
        for _ in range(3):
            try:
                with open(self.path, "x", encoding="utf-8") as file:
                    file.write(self._text)
                break
            except FileExistsError:
                holder = self.holder()
                if holder is not None:
                    raise BusyFolder(
                        f"another run is at work in {self.path.parent}: process {holder.get('pid')} on "
                        f"{holder.get('host')}, since {time.ctime(holder.get('since', 0))}. Wait for it to end or stop "
                        f"it; to share the work, start shards (--shard i/n). If it is gone, remove {self.path}."
                    ) from None
                self._take_away(self._seen)
        else:
            raise BusyFolder(f"other runs are starting in {self.path.parent} at this moment; start one of them only.")
        threading.Thread(target=self._beat, daemon=True, name="glmfit-lock").start()
        return self

    def __exit__(self, *_) -> None:
        self._end.set()
        with contextlib.suppress(OSError):  # a folder that has become read-only, or is gone, is told of elsewhere
            if self._read() == self._text:
                self.path.unlink(missing_ok=True)

    def _beat(self) -> None:
        """Touch the file, so that other hosts see that somebody is there."""
        while not self._end.wait(BEAT_S):
            with contextlib.suppress(OSError):  # a file server may be back in a moment
                os.utime(self.path)

    def _read(self) -> str | None:
        return _text_of(self.path)

    def holder(self) -> dict | None:
        """Who holds the folder; None if they are gone."""
        try:
            silent = time.time() - self.path.stat().st_mtime
            self._seen = self._read()
            holder = json.loads(self._seen or "")
            if not (isinstance(holder, dict) and isinstance(holder.get("pid"), int) and "host" in holder):
                raise ValueError("not one of ours")
            holder["since"] = float(holder.get("since", 0))
            time.ctime(holder["since"])
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, OverflowError, RecursionError):
            # Half-written, by somebody who is at it or was killed.
            return {"pid": "?", "host": "?", "since": time.time()} if silent < BEAT_S else None
        if holder.get("host") == socket.gethostname():
            return holder if is_alive(holder) else None
        return holder if silent < SILENT_S else None

    def _take_away(self, seen: str | None) -> None:
        """Remove the file of a run that is gone; of several that try, one does."""
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.gone")
        try:
            os.rename(self.path, aside)
            if _text_of(aside) != seen and not self.path.exists():
                os.rename(aside, self.path)  # somebody was faster, and is alive
            else:
                aside.unlink()
        except FileNotFoundError:
            pass


def _text_of(path: Path) -> str | None:
    """Read what somebody wrote, of a file that may be anything."""
    try:
        return read_regular(path, 10_000).decode(errors="replace")
    except (OSError, ValueError):
        return None


def is_alive(mark: dict[str, Any]) -> bool:
    """Whether the process that left a mark on this host, with its pid and when it was born, is still there."""
    return mark.get("born") is not None and born(mark.get("pid")) == mark["born"]


def born(pid: Any) -> str | None:
    """When a process of this host was started, in its own words; None if there is none (or it is a zombie)."""
    try:
        after = Path(f"/proc/{int(pid)}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, ValueError, IndexError, TypeError, OverflowError):
        if Path("/proc/self/stat").exists():
            return None
        try:  # no /proc: whether it exists has to do
            os.kill(int(pid), 0)
        except (OSError, ValueError, TypeError, OverflowError):
            return None
        return "alive"
    return None if after[0] == "Z" else after[19]
