"""Features of several sources in one design."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from ._form import check_form, served_dtype
from ._sources import as_source
from .base import RowSource


def hstack(sources: Iterable[Any]) -> RowSource:
    """Put sources and arrays side by side.

    Parameters
    ----------
    sources : sequence
        What `as_source` takes, and arrays in memory, (time, column) or (time,), in the order of their columns.

    Returns
    -------
    RowSource
        All columns, (time, column). Rows that one of them leaves out, and rows of arrays in memory with a NaN, are left
        out. Columns have names if those of any part have; the others are then called x and their number. Where two
        parts have a name in common, all names begin with ``part`` and the number of the part.

    Raises
    ------
    ValueError
        If there is none, or their numbers of rows differ.
    TypeError
        For an array by itself.

    Notes
    -----
    Cost: one copy of a run's rows. The type is float64 if that of any part is.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit.design import Convolution, hstack
    >>> counts, speed = np.zeros((1000, 2), np.uint8), np.ones(1000, np.float32)
    >>> hstack([Convolution(counts, np.ones((5, 1)), name="n"), speed]).columns
    ['n0_0', 'n1_0', 'x2']
    """
    if hasattr(sources, "shape"):
        raise TypeError(
            f"sources is a {type(sources).__name__} of shape {tuple(sources.shape)}; it must be a list of sources and "
            "arrays, (time, column) each. Give [X] for one."
        )
    sources = list(sources)
    if not sources:
        raise ValueError("sources is empty; give at least one source or array.")
    parts = [source if (source := as_source(given)) is not None else ArrayRows(given) for given in sources]
    lengths = [len(part) for part in parts]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"sources have {', '.join(map(str, lengths))} rows; all need the same number, one row per time bin. Were "
            "all of them cut to the same bins?"
        )
    return SideBySide(parts)


class ArrayRows(RowSource):
    """Rows of an array in memory."""

    def __init__(self, array: Any):
        values = np.asarray(getattr(array, "values", array))  # .values: pandas and pynapple
        if isinstance(array, np.ma.MaskedArray):  # what is masked is missing
            values = array.astype(np.promote_types(array.dtype, np.float32)).filled(np.nan)
        check_form(values.shape, values.dtype, f"the {type(array).__name__}")
        self.one_column = values.ndim == 1
        self._values = values[:, None] if self.one_column else values
        self.n_columns = self._values.shape[1]
        self.dtype = served_dtype(values.dtype)
        names = getattr(array, "columns", None)
        self.columns = None if names is None else [str(name) for name in names]
        missing = np.isnan(self._values).any(axis=1)
        self.left_out = missing if missing.any() else None

    def __len__(self) -> int:
        return len(self._values)

    def read(self, rows: slice) -> np.ndarray:
        """Read a run of rows."""
        return self._values[rows]


class SideBySide(RowSource):
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

    def __len__(self) -> int:
        return self._n_rows

    def read(self, rows: slice) -> np.ndarray:
        """Read a run of rows."""
        return self._checked(*rows.indices(len(self))[:2])

    def signature(self) -> dict[str, Hashable]:
        """State of what the parts are read from."""
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
        # Parts without a name of their own: told apart by their place.
        of = [place for place, part in enumerate(self._parts) for _ in range(part.n_columns)]
        return [f"part{place}_{name}" for place, name in zip(of, names, strict=True)]
