"""Whether files are still what they were: sizes and times of change, of what is open and of what lies at its path."""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple


class Stamp(NamedTuple):
    """State of a file.

    Attributes
    ----------
    read :
        Of what rows are read from.
    at_path :
        Of what lies at its path, None for nothing: another file may have taken its place (a rename), and what is open
        stays what it was.
    """

    read: Hashable
    at_path: Hashable


class OpenFile:
    """A file that is open as long as this lives.

    Attributes
    ----------
    path : str
        Where it was when it was opened.
    number : int
        Its descriptor.
    """

    def __init__(self, path):
        self.path = str(path)
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
