"""Rows of a design, read a run at a time."""

import abc
import functools
import numbers
from collections.abc import Hashable

import numpy as np
from numpy.typing import ArrayLike


class RowSource(abc.ABC):
    """Rows of a design or of counts, read a run at a time.

    A subclass needs two methods: ``__len__``, the number of rows, and ``read(rows)``, a run of them. Everything else
    follows from the first row, and may be set if it is known better.

    Attributes
    ----------
    shape, n_columns : tuple of int, int
        Numbers of rows and columns; number of columns, taken from the first row unless a class sets it.
    dtype : numpy.dtype
        Type of the rows that `fetch` returns: float32 if it holds every value that `read` may return, else float64.
    chunk_rows : int
        Preferred number of rows to read at once.
    left_out : numpy.ndarray or None
        Rows without features, bool (time,), such as those before a history is complete. They hold NaN, and a fit drops
        them. None if there are none.
    columns, one_column : list of str or None, bool
        Names of the features; whether the one column stands for an array (time,), such as the counts of one neuron.

    Notes
    -----
    Rows are read many times, in any order, and from a thread other than the one that made the source: `read` must
    return the same rows each time and must not depend on the thread. There is no check for NaN and infinities.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit.design import RowSource
    >>> class Place(RowSource):
    ...     def __init__(self, position):
    ...         self.position = position
    ...
    ...     def __len__(self):
    ...         return len(self.position)
    ...
    ...     def read(self, rows):
    ...         return np.exp(-((self.position[rows, None] - np.arange(4)) ** 2))
    >>> Place(np.linspace(0, 3, 1000))
    <Place (1000, 4) float64>
    """

    ndim = 2
    chunk_rows: int = 256
    left_out: np.ndarray | None = None
    columns: list[str] | None = None
    one_column: bool = False
    _origin = ""  # where the rows come from, in words: " of ..."

    @abc.abstractmethod
    def __len__(self) -> int:
        """Count the rows."""

    @abc.abstractmethod
    def read(self, rows: slice) -> np.ndarray:
        """Read a run of rows.

        Parameters
        ----------
        rows : slice
            From a start to a stop within the source, step 1.

        Returns
        -------
        numpy.ndarray
            Real numbers, (row, column), possibly a view that no later read overwrites.
        """

    def signature(self) -> dict[str, Hashable]:
        """Describe the state of what the rows are read from.

        Returns
        -------
        dict
            Name -> value that compares equal as long as the data behind the name are the same, such as size and time
            of change of a file; empty if nothing is known. A fit that reads rows while it runs warns of changes, by
            name.
        """
        return {}

    @functools.cached_property
    def n_columns(self) -> int:
        """Number of columns."""
        return self._first_row.shape[1]

    @functools.cached_property
    def dtype(self) -> np.dtype:
        """Type of the rows that `fetch` returns."""
        return served_dtype(self._first_row.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), self.n_columns

    def fetch(self, rows: slice | ArrayLike) -> np.ndarray:
        """Read rows and check them.

        Parameters
        ----------
        rows : slice or array of int
            A slice of step 1, or increasing indices, (row,). Indices are read run by run.

        Returns
        -------
        numpy.ndarray
            (row, column), C-contiguous, of `dtype`. Do not write to it: it may be a view of what `read` returned.

        Raises
        ------
        OSError, ValueError, IndexError
            If rows could not be read, with these rows and the reason; if `read` returned something else than requested,
            or rows is neither a slice nor increasing indices; if an index is out of range.
        """
        blocks = [self._checked(*run) for run in runs_of(rows, len(self))]
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate(blocks) if blocks else np.empty((0, self.n_columns), self.dtype)

    def to_array(self) -> np.ndarray:
        """Read all rows into memory.

        Returns
        -------
        numpy.ndarray
            (time, column), of `dtype`.
        """
        whole = np.empty(self.shape, self.dtype)
        for start in range(0, len(self), self.chunk_rows):
            rows = slice(start, start + self.chunk_rows)
            whole[rows] = self.fetch(rows)
        return whole

    @functools.cached_property
    def _first_row(self) -> np.ndarray:
        if not len(self):
            raise ValueError(f"{self._label} has no rows; it needs at least one. Has it been written?")
        return self._read(0, 1, is_first=True)

    def _checked(self, start: int, stop: int) -> np.ndarray:
        """Read a run: C-contiguous, of the right shape and type."""
        return np.ascontiguousarray(self._read(start, stop), self.dtype)

    def _read(self, start: int, stop: int, is_first: bool = False) -> np.ndarray:
        """Read a run and check its shape, but keep its type; the first row gives the number of columns."""
        try:
            block = np.asarray(self.read(slice(start, stop)))
        except Exception as error:
            why = f"could not be read: {type(error).__name__}: {error}"
            raise OSError(f"rows {start} to {stop - 1} of {self._label} {why}") from error
        what = f"read(slice({start}, {stop})) gave"
        is_right = block.ndim == 2 and len(block) == stop - start and block.shape[1] > 0
        if not is_right or not (is_first or block.shape[1] == self.n_columns):
            form = f"({stop - start}, {'column' if is_first else self.n_columns})"
            needs = f"{form}, one row per requested row, and as many columns in every run as in the first row."
            shorter = f" It has {len(self)} rows now." if len(self) < stop else ""
            raise ValueError(f"{self._label}: {what} shape {block.shape}; it must give {needs}{shorter}")
        check_real(block.dtype, f"{self._label}: what {what}")
        return block

    def _refuse_shorter(self, n_rows: int) -> None:
        """Raise if there are fewer rows than before; additional rows do not concern a reader."""
        if len(self) < n_rows:
            why = "Rows must not disappear while they are read: is something writing to it?"
            had = f"{self._label} had {n_rows} rows at first"
            raise ValueError(f"{had}, and has {len(self)} now. {why}")

    @property
    def _label(self) -> str:
        """Name for messages, found without reading anything."""
        return type(self).__name__ + self._origin

    def __repr__(self) -> str:
        try:
            form = f"{self.shape} {self.dtype}"
        except (OSError, ValueError):
            form = "that cannot be read"
        return f"<{type(self).__name__} {form}{self._origin}>"


class KnownRows(RowSource):
    """Rows whose number is known when their source is made."""

    _n_rows: int

    def __len__(self) -> int:
        return self._n_rows

    def _take_form(self, shape, dtype, what: str) -> None:
        """Adopt the shape and type of an array of real numbers, (time,) or (time, column)."""
        check_form(shape, dtype, what)
        self.one_column = len(shape) == 1
        self._n_rows, self.n_columns = shape[0], 1 if self.one_column else shape[1]
        self.dtype = served_dtype(dtype)


def served_dtype(dtype) -> np.dtype:
    """Type in which rows are served: float32 where it holds every value, else float64."""
    return np.dtype(np.float32 if np.can_cast(dtype, np.float32) else np.float64)


def check_real(dtype, what: str) -> None:
    """Raise unless a type is one of real numbers."""
    if np.dtype(dtype).kind not in "biuf":
        needs = "it must be real numbers (bool, integers or floats). Convert it, or write the part you need as such."
        raise ValueError(f"{what} has dtype {dtype}; {needs}")


def check_form(shape, dtype, what: str) -> None:
    """Raise unless an array has rows of real numbers: (time,) or (time, column), neither of them empty."""
    check_real(dtype, what)
    if len(shape) not in (1, 2):
        needs = "it needs (time,) or (time, column). Reshape it so that each row is a time bin."
        raise ValueError(f"{what} has {len(shape)} dimensions, shape {tuple(shape)}; {needs}")
    if 0 in shape:
        empty = "rows" if shape[0] == 0 else "columns"
        raise ValueError(f"{what} has no {empty}, shape {tuple(shape)}; it needs at least one. Has it been written?")


def runs_of(rows, n_rows: int) -> list[tuple[int, int]]:
    """Split a slice or increasing indices into runs (start, stop) of consecutive rows."""
    if isinstance(rows, slice):
        if rows.step not in (None, 1):
            raise ValueError(f"rows is {rows}; a slice must have step 1. Give the rows as increasing indices instead.")
        start, stop, _ = rows.indices(n_rows)
        return [(start, stop)] if start < stop else []
    if isinstance(rows, numbers.Integral):
        raise ValueError(f"rows is {rows}; it must be a slice or increasing indices. Give slice({rows}, {rows + 1}).")
    rows = np.asarray(rows)
    if rows.size == 0:
        return []
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        needs = "it must be a slice or increasing integers, (row,). For a mask give np.flatnonzero(mask)."
        raise ValueError(f"rows has shape {rows.shape} and dtype {rows.dtype}; {needs}")
    if not np.all(rows[1:] > rows[:-1]):
        raise ValueError("rows do not increase; sort them, each once, and put the result in the order you want.")
    if rows[0] < 0 or rows[-1] >= n_rows:
        raise IndexError(f"rows go from {rows[0]} to {rows[-1]}; there are rows 0 to {n_rows - 1} only.")
    cuts = np.flatnonzero(rows[1:] - rows[:-1] > 1) + 1
    starts, stops = rows[np.r_[0, cuts]], rows[np.r_[cuts - 1, len(rows) - 1]] + 1
    return list(zip(starts.tolist(), stops.tolist()))
