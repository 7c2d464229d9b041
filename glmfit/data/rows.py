"""What goes with the rows: the same number of them everywhere, weights, exposure, offsets."""

from __future__ import annotations

from numbers import Number

import numpy as np

from .._warn import warn_user
from .arrays import looks_like_times, numbers


def read_weights(sample_weight, n_rows: int) -> np.ndarray:
    """Check weights of rows, (row,); one number is that of all."""
    if isinstance(sample_weight, Number) or getattr(sample_weight, "shape", None) == ():
        sample_weight = np.full(n_rows, sample_weight)
    return read_factor(sample_weight, "sample_weight", n_rows, "row", "A weight of 0 leaves a row out.")


def read_exposure(exposure, n_rows: int) -> np.ndarray | None:
    """Check the share of each bin that was observed, (time,)."""
    why = "It is the share of the bin that was observed, 1 for a whole bin."
    return None if exposure is None else read_factor(exposure, "exposure", n_rows, "bin", why)


def read_factor(values, name: str, n: int, of: str, why: str = "") -> np.ndarray:
    """Check factors, finite and not negative, one of each row, bin or entity."""
    needs = f"one number per {of}, ({n},)"
    values = numbers(values, name, needs)
    if values.shape != (n,):
        raise ValueError(f"{name} has shape {values.shape}; it needs {needs}.")
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        at = f"{'row' if of == 'bin' else of} {bad[0]}"
        raise ValueError(f"{name} is {values[bad[0]]:g} at {at}; it needs finite numbers >= 0.{why and f' {why}'}")
    return values


def read_offset(offset, n_rows: int, n_columns: int, of_classes: bool = False) -> np.ndarray | None:
    """Check a known part of the linear predictor, (row,) or (row, column); returns (row, 1 or column).

    For a model of classes it is (row, class), and a row with a NaN has none at all.
    """
    if offset is None:
        return None
    whole = f"({n_rows}, {n_columns})"
    if of_classes:
        needs = f"one number per row and class, {whole}, with classes in the order of classes_"
        shapes: tuple = ((n_rows, n_columns),)
        advice = "A class that is impossible there needs a large negative number, such as -50."
    else:
        needs = f"({n_rows},), or {whole} for one per neuron: it is added to the linear predictor of every bin"
        shapes = (n_rows,), (n_rows, 1), (n_rows, n_columns)
        advice = (
            "For bins that were observed for a part of the time only, or not at all, pass exposure (1 a whole bin, 0 "
            "none) instead of its logarithm."
        )
    values = numbers(offset, "offset", needs)
    if values.shape not in shapes:
        raise ValueError(f"offset has shape {values.shape}; it needs {needs}.")
    if np.isinf(values).any():
        raise ValueError(f"offset is infinite at row {np.argwhere(np.isinf(values))[0][0]}. {advice}")
    if of_classes:
        return np.where(np.isnan(values).any(axis=1, keepdims=True), np.nan, values)
    return values.reshape(n_rows, -1)


def refuse_lengths(X, y, of: str = "time bin") -> None:
    """Raise unless features and targets have one row of each observation, saying what they look like."""
    if X.shape[0] == y.shape[0]:
        return
    if _both_turned(X, y):
        advice = "X and y look like (feature, time) and (neuron, time): pass X.T and y.T."
    elif X.shape[1] == y.shape[0] > X.shape[0]:
        advice = f"X has shape {X.shape}, which looks like (feature, time): pass X.T."
    elif len(y.shape) == 2 and y.shape[1] == X.shape[0]:
        advice = f"y has shape {y.shape}, which looks like (neuron, time): pass y.T."
    elif looks_like_times(y):
        advice = (
            "y increases and has fractions, like spike times: count them in the bins of X first, for example by "
            "numpy.histogram(y, edges)[0]."
        )
    else:
        advice = f"Both need one row per {of}: make them with the same bin size, start and end."
    raise ValueError(f"X has {X.shape[0]} rows but y has {y.shape[0]}: inconsistent numbers of samples. {advice}")


def warn_if_turned(X, y) -> None:
    """Warn of features and targets that both look like (column, time)."""
    if _both_turned(X, y):
        warn_user(
            f"X and y have {X.shape[0]} rows and {X.shape[1]} columns each. Rows are time bins: if the columns are, "
            "pass X.T and y.T."
        )


def _both_turned(X, y) -> bool:
    return len(y.shape) == 2 and X.shape[1] == y.shape[1] > max(X.shape[0], y.shape[0])
