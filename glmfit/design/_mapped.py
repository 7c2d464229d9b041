"""Rows of a memory-mapped file, read as a file."""

from __future__ import annotations

import mmap
import os

import numpy as np

from ._signatures import OpenFile, Stamp
from .base import KnownRows


class MappedRows(KnownRows):
    """Rows of an `np.memmap` or of a view of one.

    Not a byte is read through the mapping: were the file shorter by then, the kernel would end the process (SIGBUS). A
    read that falls short is an OSError instead.
    """

    def __init__(self, array: np.memmap):
        what = f"the np.memmap of {array.filename}"
        self._take_form(array.shape, array.dtype, what)
        if array.filename is None:
            raise ValueError("the np.memmap was made of a file without a name; make it from the file's path.")
        if array.mode == "c":
            raise ValueError(
                f"{what} has mode 'c' (copy on write): changes of it are not in the file, where rows are read from. "
                "Open it with mode='r'."
            )
        array = array[:, None] if self.one_column else array
        self._stored = array.dtype
        self._strides = _strides(array, what)
        self._row_bytes = (self.n_columns - 1) * self._strides[1] + array.itemsize
        self._position = _position(array)
        self._file = OpenFile(array.filename)
        self._origin = f" of {self._file.path}"

    def read(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        row = self._strides[0]
        data = np.empty((stop - start - 1) * row + self._row_bytes, np.uint8)
        position = self._position + start * row
        got = _read_into(self._file, data, position)
        if got < len(data):
            size = os.fstat(self._file.number).st_size
            raise OSError(
                f"{self._file.path} has {size} bytes now, but rows {start} to {stop - 1} need {position + len(data)}. "
                "It was cut short since it was mapped; write it again, or restore it."
            )
        return np.ndarray((stop - start, self.n_columns), self._stored, data, strides=self._strides)

    def signature(self) -> dict[str, Stamp]:
        """State of the file."""
        return self._file.signature()


def _strides(array: np.ndarray, what: str) -> tuple[int, int]:
    """Bytes from row to row and from column to column, each row within its own stretch of the file."""
    row, column = array.strides
    column = column if array.shape[1] > 1 else array.itemsize
    row_bytes = (array.shape[1] - 1) * column + array.itemsize
    if column <= 0 or row < row_bytes:
        raise ValueError(
            f"{what} has strides {array.strides} for shape {array.shape}: its rows do not lie one after the other in "
            "the file (Fortran order, transposed or reversed), so reading a few of them would mean reading all of it. "
            "Save it once in C order, np.save(path, np.ascontiguousarray(array)), and map that."
        )
    return row, column


def _position(array: np.memmap) -> int:
    """Byte in the file at which the first entry stands; views keep the offset of the mapping, not their own."""
    mapped = np.frombuffer(array._mmap, np.uint8).__array_interface__["data"][0]
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY  # mappings start at whole pages
    return start + array.__array_interface__["data"][0] - mapped


def _read_into(file: OpenFile, data: np.ndarray, position: int) -> int:
    """Fill data from a position of a file; how many bytes there were. Other threads may read it at the same time."""
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
