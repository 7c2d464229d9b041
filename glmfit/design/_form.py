"""What rows may look like: shape, type, which of them are asked for."""

from __future__ import annotations

import numbers

import numpy as np


def served_dtype(dtype) -> np.dtype:
    """Type in which rows are served: float32 where it holds every value, else float64."""
    dtype = np.dtype(dtype)
    wide = (dtype.kind == "f" and dtype.itemsize >= 8) or (dtype.kind in "iu" and dtype.itemsize >= 4)
    return np.dtype(np.float64 if wide else np.float32)


def check_real(dtype, what: str) -> None:
    """Raise unless a type is one of real numbers."""
    if np.dtype(dtype).kind not in "biuf":
        raise ValueError(
            f"{what} has dtype {dtype}; it must be real numbers (bool, integers or floats). Convert it, or write the "
            "part you need as such."
        )


def check_form(shape, dtype, what: str) -> None:
    """Raise unless an array has rows of real numbers: (time,) or (time, column), neither of them empty."""
    check_real(dtype, what)
    if len(shape) not in (1, 2):
        raise ValueError(
            f"{what} has {len(shape)} dimensions, shape {tuple(shape)}; it needs (time,) or (time, column). Reshape it "
            "so that each row is a time bin."
        )
    if 0 in shape:
        empty = "rows" if shape[0] == 0 else "columns"
        raise ValueError(f"{what} has no {empty}, shape {tuple(shape)}; it needs at least one. Is it written already?")


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
        raise ValueError(
            f"rows has shape {rows.shape} and dtype {rows.dtype}; it must be a slice or increasing integers, (row,). "
            "For a mask give np.flatnonzero(mask)."
        )
    if not np.all(rows[1:] > rows[:-1]):
        raise ValueError("rows do not increase; sort them, each once, and put the result in the order you want.")
    if rows[0] < 0 or rows[-1] >= n_rows:
        raise IndexError(f"rows go from {rows[0]} to {rows[-1]}; there are rows 0 to {n_rows - 1} only.")
    cuts = np.flatnonzero(rows[1:] - rows[:-1] > 1) + 1
    starts, stops = rows[np.r_[0, cuts]], rows[np.r_[cuts - 1, len(rows) - 1]] + 1
    return list(zip(starts.tolist(), stops.tolist()))
