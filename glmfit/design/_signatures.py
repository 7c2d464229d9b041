"""Whether files are still what they were: sizes and times of change, of what is open and of what lies at its path."""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._warn import warn_user
from .base import RowSource


class Stamp(NamedTuple):
    """State of a file: another may have taken its place (a rename), and what is open stays what it was."""

    read: Hashable  # of what rows are read from
    at_path: Hashable  # of what lies at its path, None for nothing


class OpenFile:
    """A file that is open as long as this lives."""

    def __init__(self, path):
        self.path = str(path)  # where it was when it was opened
        self.number = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self.number)

    def signature(self) -> dict[str, Stamp]:
        """State of the file by its path."""
        return stamp(self.path, self.number)


def stamp(path, number: int | None = None) -> dict[str, Stamp]:
    """State of a file or folder by its path; of one that is opened anew for every read unless a descriptor is given."""
    at_path = _state(path)
    return {str(path): Stamp(at_path if number is None else _state(number), at_path)}


def _state(file) -> Hashable:
    """Size and time of change of a file, or number, sizes and the last time of all files in a folder; None for none."""
    try:
        if not isinstance(file, int) and os.path.isdir(file):
            found = [os.stat(Path(folder, name)) for folder, _, names in os.walk(file) for name in names]
            return len(found), sum(f.st_size for f in found), max((f.st_mtime_ns for f in found), default=0)
        found = os.stat(file)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class Watch:
    """What the data of a fit (sources, arrays in memory or mapped) are read from, as it was when this was made."""

    def __init__(self, data: Iterable[Any]):
        self._sources = [source for given in data for source in _signed(given)]
        self._before = self._signature()

    def warn_of_changes(self) -> None:
        """Warn once if something has changed since: a fit does not end, and what it found is not lost."""
        now, said = self._signature(), []
        changed = [name for name, was in self._before.items() if _read(was) != _read(now.get(name))]
        moved = [name for name, was in self._before.items() if was != now.get(name) and name not in changed]
        replaced = [name for name in moved if now[name].at_path is not None]
        if changed:
            said.append(
                f"data changed while the fit read them: {', '.join(changed)}. Coefficients, gaps and statuses may be "
                "those of a mixture of rows from before and after; fit again when nothing writes there any more."
            )
        if replaced:
            said.append(
                f"another file was put in place during the fit: {', '.join(replaced)}. The fit is of the file that was "
                "there when it began."
            )
        if said:
            warn_user(" ".join(said))

    def _signature(self) -> dict[str, Hashable]:
        return {name: state for source in self._sources for name, state in source.signature().items()}


def _signed(given: Any) -> list[RowSource | OpenFile]:
    """Find what has the signature of data that are read during the fit; nothing for data in memory."""
    if isinstance(given, RowSource):
        return [given]
    mapped = isinstance(given, np.memmap) and given._mmap is not None and given.filename is not None
    return [OpenFile(given.filename)] if mapped else []


def _read(state: Hashable) -> Hashable:
    """Return the part of a state that is of what rows are read from."""
    return state.read if isinstance(state, Stamp) else state
