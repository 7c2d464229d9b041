"""Files that rows are read from: detection of changes, and reading of memory-mapped files as files."""

import mmap
import os
import weakref
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checks import warn_user
from .base import KnownRows, RowSource


class Stamp(NamedTuple):
    """State of a file: another may have replaced it (a rename), while the open one stays the same."""

    read: Hashable  # of what rows are read from
    at_path: Hashable  # of what is at its path, None for nothing


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
    """State of a file or folder by its path, opened for every read unless a descriptor is given."""
    at_path = _state(path)
    return {str(path): Stamp(at_path if number is None else _state(number), at_path)}


def _state(file) -> Hashable:
    """Size and time of change of a file, or number, sizes and the last time of all files in a folder, or None."""
    try:
        if not isinstance(file, int) and os.path.isdir(file):
            found = [os.stat(Path(folder, name)) for folder, _, names in os.walk(file) for name in names]
            return len(found), sum(f.st_size for f in found), max((f.st_mtime_ns for f in found), default=0)
        found = os.stat(file)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class Watch:
    """State, when made, of the files that a fit's data (sources, arrays in memory or mapped) are read from."""

    def __init__(self, data: Iterable[Any]):
        data = list(data)
        mapped = [given for given in data if isinstance(given, np.memmap) and given._mmap is not None]
        self._sources: list[RowSource | OpenFile] = [given for given in data if isinstance(given, RowSource)]
        self._sources += [OpenFile(given.filename) for given in mapped if given.filename is not None]
        self._before = self._signature()

    def warn_of_changes(self) -> None:
        """Warn once if something has changed since construction: the fit continues, and its results are not lost."""
        now, said = self._signature(), []
        differ = [name for name, was in self._before.items() if was != now.get(name)]
        changed = [name for name in differ if _read(self._before[name]) != _read(now.get(name))]
        replaced = [name for name in differ if name not in changed and now[name].at_path is not None]
        if changed:
            said.append(
                f"data changed while the fit read them: {', '.join(changed)}. Coefficients, gaps and statuses may be "
                "those of a mixture of old and new rows; fit again when nothing writes there any more."
            )
        if replaced:
            said.append(
                f"files were replaced during the fit: {', '.join(replaced)}. The fit used the files that were there "
                "when it began."
            )
        if said:
            warn_user(" ".join(said))

    def _signature(self) -> dict[str, Hashable]:
        return {name: state for source in self._sources for name, state in source.signature().items()}


def _read(state: Hashable) -> Hashable:
    """Return the part of a state that describes what rows are read from."""
    return state.read if isinstance(state, Stamp) else state


# -- memory-mapped files


class MappedRows(KnownRows):
    """Rows of an `np.memmap` or of a view of one.

    Nothing is read through the mapping: if the file had become shorter, the kernel would end the process (SIGBUS). A
    short read raises an OSError instead.
    """

    def __init__(self, array: np.memmap):
        what = f"the np.memmap of {array.filename}"
        self._take_form(array.shape, array.dtype, what)
        if array.filename is None:
            raise ValueError("the np.memmap was made of a file without a name; make it from the file's path.")
        if array.mode == "c":
            why = "(copy on write): changes to it are not in the file, where rows are read from. Open it with mode='r'."
            raise ValueError(f"{what} has mode 'c' {why}")
        array = array[:, None] if self.one_column else array
        row, column = array.strides
        column = column if self.n_columns > 1 else array.itemsize
        self._stored, self._strides = array.dtype, (row, column)
        self._row_bytes = (self.n_columns - 1) * column + array.itemsize
        if column <= 0 or row < self._row_bytes:
            raise ValueError(
                f"{what} has strides {array.strides} for shape {array.shape}: its rows do not lie one after the other "
                "in the file (Fortran order, transposed or reversed), so reading a few of them would mean reading all "
                "of it. Save it once in C order, np.save(path, np.ascontiguousarray(array)), and map that."
            )
        self._position = _position(array)
        self._file = OpenFile(array.filename)
        self._origin = f" of {self._file.path}"

    def read(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        row = self._strides[0]
        data, position = np.empty((stop - start - 1) * row + self._row_bytes, np.uint8), self._position + start * row
        if _read_into(self._file, data, position) < len(data):
            has = f"{self._file.path} has {os.fstat(self._file.number).st_size} bytes now"
            advice = "It was cut short since it was mapped; write it again, or restore it."
            raise OSError(f"{has}, but rows {start} to {stop - 1} need {position + len(data)}. {advice}")
        return np.ndarray((stop - start, self.n_columns), self._stored, data, strides=self._strides)

    def signature(self) -> dict[str, Stamp]:
        return self._file.signature()


def _position(array: np.memmap) -> int:
    """Byte in the file at which the first entry stands; views keep the offset of the mapping, not their own."""
    mapped = np.frombuffer(array._mmap, np.uint8).__array_interface__["data"][0]
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY  # mappings start at whole pages
    return start + array.__array_interface__["data"][0] - mapped


def _read_into(file: OpenFile, data: np.ndarray, position: int) -> int:
    """Fill data from a position of a file; return the number of bytes read. Other threads may read at the same time."""
    view, done = memoryview(data), 0
    while done < len(data):  # one call gives 2 GiB at most
        if hasattr(os, "preadv"):
            n = os.preadv(file.number, [view[done:]], position + done)
        else:
            with open(file.path, "rb", buffering=0) as own:
                own.seek(position + done)
                n = own.readinto(view[done:])
        if not n:
            break
        done += n
    return done
