"""Features of several sources in one design."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from ._sources import rows_of
from .base import KnownRows, RowSource


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
    parts = [rows_of(given) for given in sources]
    lengths = [len(part) for part in parts]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"sources have {', '.join(map(str, lengths))} rows; all need the same number, one row per time bin. Were "
            "all of them cut to the same bins?"
        )
    return SideBySide(parts)


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
