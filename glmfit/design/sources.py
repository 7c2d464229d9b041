"""Sources of rows: objects that are read a run at a time, and sources side by side."""

import os
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from ..data.arrays import rows_with_nan
from ..data.times import plain
from .base import KnownRows, RowSource, check_form
from .on_disk import MappedRows, stamp

CHUNK_ROWS = (256, 65536)  # between too many small reads and too much memory


def as_source(array: Any) -> RowSource | None:
    """Make a `RowSource` of an object that is read a run at a time.

    Parameters
    ----------
    array : RowSource, np.memmap, h5py.Dataset, zarr.Array, or any object with ``__len__`` and ``read``
        Rows of features or of counts, (time, column), or (time,) for one column. Arrays of other libraries that have
        ``chunks`` (dask) are also accepted.

    Returns
    -------
    RowSource or None
        The object itself if it is a `RowSource`; None for data in memory (NumPy, JAX, pandas, pynapple, lists).

    Raises
    ------
    ValueError
        If the array has no rows, not one or two dimensions, a type other than real numbers, or an order in its file in
        which rows cannot be read.

    Notes
    -----
    Rows are returned in float32 if it holds every value of the stored type, else in float64. Files stay open as long
    as the source lives; those of h5py and zarr are the caller's. A memory-mapped file is read as a file and not through
    the mapping: if it is cut short, reading raises instead of ending the process. A chunk that is missing from a zarr
    store reads as its fill value, as in zarr.
    """
    if isinstance(array, RowSource):
        return array
    if isinstance(array, np.memmap):
        return None if array._mmap is None else MappedRows(array)  # None: a copy, such as mapped[[2, 0]]
    if isinstance(array, np.ndarray):
        return None
    if hasattr(array, "__len__") and callable(getattr(array, "read", None)):
        return ReadableRows(array)
    is_h5 = type(array).__module__.split(".")[0] == "h5py"
    if is_h5 and not array:
        raise ValueError("the h5py.Dataset belongs to a file that is closed; keep the file open during the fit.")
    is_stored = all(hasattr(array, name) for name in ("shape", "dtype", "__getitem__"))
    return ChunkedRows(array) if is_stored and (is_h5 or getattr(array, "chunks", None)) else None


def hstack(sources: Iterable[Any]) -> RowSource:
    """Put sources and arrays side by side.

    Parameters
    ----------
    sources : sequence
        Objects that `as_source` takes, and arrays in memory, (time, column) or (time,), in the order of their columns.

    Returns
    -------
    RowSource
        All columns, (time, column), float64 if any part is. Rows that any part drops, and rows of arrays in memory with
        a NaN, are dropped. Columns have names if those of any part have; the others are then called x and their number.
        If two parts have a name in common, all names begin with ``part`` and the number of the part.

    Raises
    ------
    ValueError, TypeError
        If there is no source, or the numbers of rows differ; if ``sources`` is a single array.

    Notes
    -----
    Cost: one copy of a run's rows.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit.design import Convolution, hstack
    >>> counts, speed = np.zeros((1000, 2), np.uint8), np.ones(1000, np.float32)
    >>> hstack([Convolution(counts, np.ones((5, 1)), name="n"), speed]).columns
    ['n0_0', 'n1_0', 'x2']
    """
    if hasattr(sources, "shape"):
        needs = "it must be a list of sources and arrays, (time, column) each. Give [X] for one."
        raise TypeError(f"sources is a {type(sources).__name__} of shape {tuple(sources.shape)}; {needs}")
    parts = [rows_of(given) for given in sources]
    if not parts:
        raise ValueError("sources is empty; give at least one source or array.")
    lengths = [len(part) for part in parts]
    if len(set(lengths)) > 1:
        needs = "all need the same number, one row per time bin. Were all of them cut to the same bins?"
        raise ValueError(f"sources have {', '.join(map(str, lengths))} rows; {needs}")
    return SideBySide(parts)


def rows_of(given: Any, what: str | None = None) -> RowSource:
    """Make a source of anything that `as_source` takes, or of an array in memory, which ``what`` names in messages."""
    source = as_source(given)
    return ArrayRows(given, what) if source is None else source


class ReadableRows(RowSource):
    """Rows of an object that has ``__len__`` and ``read`` without being a `RowSource`."""

    def __init__(self, rows: Any):
        self._rows, self._origin = rows, f" of {type(rows).__name__}"
        told = {name: getattr(rows, name, None) for name in ("n_columns", "chunk_rows", "left_out", "columns")}
        vars(self).update({name: value for name, value in told.items() if value is not None})
        check_form(self.shape, self.dtype, f"the {type(rows).__name__}")

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, rows: slice) -> np.ndarray:
        return self._rows.read(rows)

    def signature(self) -> dict[str, Hashable]:
        """State of what the rows are read from, if the object reports it."""
        signature = getattr(self._rows, "signature", None)
        return signature() if callable(signature) else {}


class ChunkedRows(KnownRows):
    """Rows of an array that is stored in chunks and read by slices (h5py, zarr)."""

    def __init__(self, array: Any):
        kind = f"{type(array).__module__.split('.')[0]} {type(array).__name__}"
        self._take_form(array.shape, array.dtype, f"the {kind}")
        self._array = array
        chunk = array.chunks[0] if array.chunks else 0
        chunk = max(chunk) if isinstance(chunk, tuple) else chunk  # dask gives the sizes of all
        self.chunk_rows = int(np.clip(chunk, *CHUNK_ROWS))
        file = getattr(getattr(array, "file", None), "filename", None) or getattr(array, "store", None)
        place = " in ".join(str(part) for part in (getattr(array, "name", None), file) if part)
        self._origin = f" of {kind} {place}".rstrip()

    def read(self, rows: slice) -> np.ndarray:
        block = np.asarray(self._array[rows])
        return block[:, None] if self.one_column else block

    def signature(self) -> dict[str, Hashable]:
        """State of the file of HDF5, or of the file or folder of a zarr array; nothing is known of other stores."""
        file, store = getattr(self._array, "file", None), getattr(self._array, "store", None)
        if getattr(file, "driver", None) == "sec2":
            return stamp(file.filename, file.id.get_vfd_handle())
        root = getattr(store, "root", None) or getattr(store, "path", None)
        if root is None or not os.path.exists(root):
            return {}
        return stamp(Path(root, self._array.path) if os.path.isdir(root) else root)


class ArrayRows(KnownRows):
    """Rows of an array in memory, dense or sparse; those with a NaN are dropped."""

    def __init__(self, array: Any, what: str | None):
        values = plain(array)
        values = scipy.sparse.csr_array(values) if scipy.sparse.issparse(values) else np.asarray(values)
        self._take_form(values.shape, values.dtype, what or f"the {type(array).__name__}")
        self._values = values[:, None] if self.one_column else values
        names = getattr(array, "columns", None)
        self.columns = None if names is None else [str(name) for name in names]
        missing = rows_with_nan(self._values)
        self.left_out = missing if missing.any() else None

    def read(self, rows: slice) -> np.ndarray:
        block = self._values[rows]
        return block.toarray() if scipy.sparse.issparse(block) else block


class SideBySide(KnownRows):
    """Columns of several sources of the same length."""

    def __init__(self, parts: list[RowSource]):
        self._parts = parts
        self._n_rows = len(parts[0])
        self.n_columns = sum(part.n_columns for part in parts)
        self.dtype = np.result_type(*(part.dtype for part in parts))
        self.chunk_rows = max(part.chunk_rows for part in parts)
        left_out = [part.left_out for part in parts if part.left_out is not None]
        self.left_out = np.logical_or.reduce(left_out) if left_out else None
        self.columns = self._names() if any(part.columns for part in parts) else None
        self._origin = f" of {', '.join(part._label for part in parts)}"

    def read(self, rows: slice) -> np.ndarray:
        return self._checked(*rows.indices(len(self))[:2])

    def signature(self) -> dict[str, Hashable]:
        return {name: state for part in self._parts for name, state in part.signature().items()}

    def _checked(self, start: int, stop: int) -> np.ndarray:
        # The parts check themselves, and name themselves if something is wrong.
        block, at = np.empty((stop - start, self.n_columns), self.dtype), 0
        for part in self._parts:
            part._refuse_shorter(self._n_rows)
            block[:, at : at + part.n_columns] = part._checked(start, stop)
            at += part.n_columns
        return block

    def _names(self) -> list[str]:
        names: list[str] = []
        for part in self._parts:
            names += part.columns or [f"x{len(names) + i}" for i in range(part.n_columns)]
        if len(set(names)) == len(names):
            return names
        # Parts without distinct names: distinguished by their place.
        of = [place for place, part in enumerate(self._parts) for _ in range(part.n_columns)]
        return [f"part{place}_{name}" for place, name in zip(of, names, strict=True)]
