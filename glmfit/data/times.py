"""Times of pynapple objects: remembered to give one back, and compared where arrays must have the same rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import warn_user


@dataclass(frozen=True)
class TimeAxis:
    """Times, support and columns of a pynapple object, remembered to give one back."""

    t: np.ndarray
    time_support: Any
    columns: Any = None
    metadata: Any = None


def is_pynapple(value: Any, *types: str) -> bool:
    """Whether a value is an object of pynapple of one of these types, by default a series (nothing is imported)."""
    if not type(value).__module__.startswith("pynapple."):
        return False
    return type(value).__name__ in types if types else hasattr(value, "t") and hasattr(value, "values")


def time_axis(value: Any) -> TimeAxis | None:
    """Time axis of a pynapple object, None for anything else."""
    if not is_pynapple(value):
        return None
    columns = getattr(value, "columns", None)
    has_metadata = columns is not None and len(getattr(value, "metadata_columns", ())) > 0
    metadata = value.metadata.copy() if has_metadata else None
    return TimeAxis(np.asarray(value.t), value.time_support, columns, metadata)


def plain(value: Any) -> Any:
    """Array behind a pynapple object; a frame with named columns becomes a DataFrame; what is masked becomes NaN."""
    if isinstance(value, np.ma.MaskedArray):
        return value.astype(np.promote_types(value.dtype, np.float32)).filled(np.nan)
    if not is_pynapple(value):
        return value
    columns = getattr(value, "columns", None)
    if columns is not None and all(isinstance(c, str) for c in columns):
        import pandas as pd

        return pd.DataFrame(np.asarray(value.values), columns=list(columns))
    return np.asarray(value.values)


def wrap(values: np.ndarray, axis: TimeAxis | None, neurons: TimeAxis | None, names) -> Any:
    """Give values (time,) or (time, neuron) the time axis they came with, as a pynapple object."""
    if axis is None:
        return values
    import pynapple as nap

    if values.ndim == 1:
        return nap.Tsd(t=axis.t, d=values, time_support=axis.time_support)
    of = neurons or TimeAxis(axis.t, axis.time_support)
    columns = names if of.columns is None else of.columns
    return nap.TsdFrame(t=axis.t, d=values, time_support=axis.time_support, columns=columns, metadata=of.metadata)


def check_same_rows(X, y=None, **others) -> None:
    """Raise unless what has times has the same; warn of tables whose rows have the same labels in another order."""
    for name, rows in {"y": y, **others}.items():
        to = "X" if is_pynapple(X) or name == "y" else "y"
        check_aligned(X if to == "X" else y, to, rows, name)
        given, index = (
            getattr(a, "index", None) if type(a).__module__.startswith("pandas") else None for a in (X, rows)
        )
        if given is None or index is None or len(given) != len(index) or given.equals(index):
            continue
        if given.is_unique and index.is_unique and given.isin(index).all():
            row = int(np.argmax(np.asarray(given) != np.asarray(index)))
            in_x, in_rows = (labels[row : row + 1].tolist()[0] for labels in (given, index))
            warn_user(  # no error: scikit-learn's permutation_test_score shuffles y so
                f"the rows of X and {name} have the same labels in different orders (first at row {row}: {in_x!r} in "
                f"X, {in_rows!r} in {name}); rows are matched by position. Where that is not meant, give "
                f"{name}.loc[X.index].",
            )


def check_aligned(x, to: str, y, what: str) -> None:
    """Raise unless the times of both, if both have any, agree to a thousandth of a bin."""
    x, y = time_axis(x), time_axis(y)
    if x is None or y is None:
        return
    if len(x.t) != len(y.t):
        advice = f"restrict both to the same epochs, {what}.restrict({to}.time_support)."
        if what == "y":
            count = f"spikes.count(bin_size, ep={to}.time_support)"
            advice = f"count the spikes with those of {to}, {count}, or restrict both to the same epochs."
        raise ValueError(f"{to} has {_extent(x)} but {what} has {_extent(y)}. Both need the same bins: {advice}")
    if not len(x.t):
        raise ValueError(f"{to} and {what} are empty: no time bins. A fit needs at least 2.")
    shift = np.abs(x.t - y.t)
    bin_s = np.median(np.diff(x.t)) if len(x.t) > 1 else 1.0
    if shift.max() > 1e-3 * bin_s:
        first = int(np.argmax(shift > 1e-3 * bin_s))
        effect = "fitted to the wrong features" if what == "y" else f"taken for that of other rows of {to}"
        raise ValueError(
            f"the times of {to} and {what} differ (first at row {first}: {to} at {x.t[first]:g} s, {what} at "
            f"{y.t[first]:g} s; bins of {bin_s:g} s): {what} would be {effect}. Align them, for example with "
            f"{what}.value_from or by counting on the same epochs and bin size."
        )


def _extent(axis: TimeAxis) -> str:
    size = f" of {np.median(np.diff(axis.t)):g} s" if len(axis.t) > 1 else ""
    span = f" ({axis.t[0]:g} to {axis.t[-1]:g} s)" if len(axis.t) else ""
    return f"{len(axis.t)} time bins{size}{span}"
