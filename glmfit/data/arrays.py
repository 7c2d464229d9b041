"""Arrays of numbers, in whatever form they are given; errors for anything else say what to do instead."""

import contextlib
import math
import numbers as number_types
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import numpy as np
import scipy.sparse

from ..threads import one_thread_each
from .times import is_pynapple, plain

_FEW = 10  # rows that may increase by chance
_SHOWN = 3
_NUMBER_OR_NONE = number_types.Number | np.bool_ | None  # "1" counts as a label


def numbers(
    value: Any, name: str, needs: str, *axes: str, shape: tuple | None = None, spikes: str | None = None
) -> np.ndarray:
    """Return real numbers as float64, with these axes or this shape if any; NaN is kept. Errors say what it needs."""
    refuse_mistakes(value, name, needs, spikes=spikes)
    value = plain(value)
    is_pandas = type(value).__module__.startswith("pandas")
    with _no_words(name, ValueError):
        array = value.to_numpy(np.float64, na_value=np.nan) if is_pandas else np.asarray(value, np.float64)
    if (axes and array.ndim != len(axes)) or (shape is not None and array.shape != shape):
        raise ValueError(f"{name} has shape {array.shape}; it needs {needs}.")
    return array


def refuse_mistakes(value: Any, name: str, needs: str, sparse: bool = False, spikes: str | None = None) -> None:
    """Raise for anything but an array of real numbers, before any library takes it for one."""
    refuse_spike_times(value, name, spikes)
    if not sparse and hasattr(value, "toarray") and hasattr(value, "nnz"):
        why = " (the spectral basis of a design is dense)" if name == "X" else ""
        advice = f"dense data is required{why}. Pass {name}.toarray() if it fits in memory."
        raise TypeError(f"{name} is a sparse matrix of shape {value.shape}; {advice}")
    refuse_no_array(value, name, needs)
    _refuse_trials(value, name, needs)
    refuse_ragged(value, name, needs)
    _refuse_words(value, name)


def refuse_spike_times(value: Any, name: str, advice: str | None = None) -> None:
    """Raise for pynapple spike times that were not counted, alone or in a list."""
    first = value[0] if isinstance(value, list | tuple) and len(value) else value
    if not is_pynapple(first, "Ts", "TsGroup"):
        return
    kind = type(first).__name__ if first is value else f"list of {type(first).__name__}"
    if advice is None:
        group = name if first is value else f"pynapple.TsGroup({name})"
        bins = "bin_size" if name == "X" else "bin_size, ep=X.time_support"
        advice = f"numbers per time bin are needed. Count them first: {group}.count({bins})."
    raise TypeError(f"{name} is a {kind}, spike times; {advice}")


def refuse_no_array(value: Any, name: str, needs: str) -> None:
    """Raise for values without an axis and for epochs, before scikit-learn takes them for numbers."""
    epochs, tree = is_pynapple(value, "IntervalSet"), type(value).__name__ == "FeaturePytree"
    source = callable(getattr(value, "to_array", None)) and callable(getattr(value, "read", None))
    if not (epochs or tree or source or isinstance(value, type)) and shape_of(value) != ():
        return
    short = value is None or isinstance(value, str | bytes | PathLike | number_types.Number | np.ndarray)
    what, advice = repr(value) if short else f"a {type(value).__name__}", ""
    if isinstance(value, type):
        what, advice = f"the class {value.__name__}", f" Give an array of it, not the class: {value.__name__}(...)."
    elif tree:
        what = "a FeaturePytree of NeMoS"
        advice = (
            f" Put its arrays side by side, numpy.column_stack(list({name}.data.values())), or fit it through NeMoS "
            'with solver_name="SAGA[glmfit]".'
        )
    elif source:
        advice = f" Rows that are read when needed cannot be used here; load them: {name}.to_array()."
    elif epochs:
        what, advice = "an IntervalSet", " Pass epochs to restrict, or as ep to count."
    elif isinstance(value, str | bytes | PathLike):
        advice = f" Load the file first, for example by numpy.load({str(value)!r})."
    elif isinstance(value, Mapping):
        advice = f" Put its arrays side by side: numpy.column_stack(list({name}.values()))."
    elif isinstance(value, Iterator):
        advice = f" Collect its rows first: numpy.array(list({name}))."
    raise TypeError(f"{name} is {what}; it needs {needs}.{advice}")


def shape_of(value: Any) -> tuple | None:
    """Return the shape of an array-like value, None if it is ragged or cannot become an array."""
    try:
        return tuple(value.shape if hasattr(value, "shape") else np.asarray(value).shape)
    except ValueError:
        return None


def _refuse_trials(value: Any, name: str, needs: str) -> None:
    """Raise for more than two dimensions, and for lists of tables, which may differ in length."""
    shape = shape_of(value)
    if isinstance(value, list | tuple) and value and all(len(getattr(v, "shape", ())) == 2 for v in value):
        what = f"is a list of {len(value)} arrays (the first of shape {tuple(value[0].shape)})"
    elif shape is not None and len(shape) > 2:
        what = f"has shape {shape}, {len(shape)} dimensions"
    else:
        return
    advice = f"If these are trials, concatenate them: numpy.concatenate({name})."
    if hasattr(value, "dims"):
        advice = "glmfit.design.Trials(X, y) lays trials out as rows: fit(**Trials(X, y).given)."
    raise ValueError(f"{name} {what}; it needs {needs}. {advice}")


def refuse_ragged(value: Any, name: str, needs: str) -> None:
    """Raise for a list of sequences of different lengths, or of increasing ones, such as spike times by neuron."""
    if not isinstance(value, list | tuple) or not all(hasattr(v, "__len__") and not isinstance(v, str) for v in value):
        return
    lengths = {len(v) for v in value}
    if len(lengths) > 1:
        what = f"of different lengths ({min(lengths)} to {max(lengths)})"
    elif name == "y" and value and all(isinstance(v, np.ndarray) and looks_like_times(v) for v in value):
        what = "that increase and have fractions, like spike times"
    else:
        return
    advice = "Count spike times first, for example with numpy.histogram(times, edges)[0]."
    raise ValueError(f"{name} is a list of {len(value)} sequences {what}; it needs {needs}. {advice}")


def _refuse_words(value: Any, name: str) -> None:
    """Raise for arrays and frames of strings, times or complex numbers."""
    dtypes, names = getattr(value, "dtypes", None), getattr(value, "columns", None)
    names = [] if names is None else list(names)  # a row source may have none
    is_frame = dtypes is not None and not callable(dtypes) and hasattr(value, "columns")
    again = [repr(column) for column in dict.fromkeys(names) if is_frame and names.count(column) > 1]
    if again:
        advice = "Give every column its own name."
        raise ValueError(f"{name} has several columns of the same name: {_some(again)}. {advice}")
    found = []
    for column, dtype in zip(names, dtypes, strict=True) if is_frame else ():
        if getattr(dtype, "kind", "O") not in "biufc":
            words = (entry for entry in value[column] if not isinstance(entry, _NUMBER_OR_NONE))
            found += [f"{column!r} (with {first!r})" for first in words if type(first).__name__ != "NAType"][:1]
    if found:
        encode = f"Encode them, for example with pandas.get_dummies({name}, dtype=float), or drop them."
        advice = "Drop them." if name == "y" else encode  # dummies of names are not counts
        raise ValueError(f"{name} has columns that are not numbers: {_some(found)}. {advice}")
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    if kind in "mMcUS":
        advice = "Complex data not supported." if kind == "c" else "Convert it to seconds, counts or features first."
        if kind in "US":
            advice = "For class labels use SoftmaxGLM." if name == "y" else "Convert text to numbers first."
        raise ValueError(f"{name} has dtype {value.dtype}; it must be real numbers. {advice}")
    if kind == "O":
        with _no_words(name, TypeError):
            np.asarray(value, np.float64)


@contextlib.contextmanager
def _no_words(name: str, for_objects: type[Exception]) -> Iterator[None]:
    """Name the argument in errors for values that cannot be converted."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        kind = for_objects if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} has entries that are not numbers ({error}). Convert or remove them.") from None


def _some(words: list[str]) -> str:
    return ", ".join(words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")


def looks_like_times(y: Any) -> bool:
    """Tell whether one column of numbers increases in every row and has fractions."""
    if not isinstance(y, np.ndarray) or y.dtype.kind != "f" or y.size < max(_FEW, len(y)):
        return False
    return bool(y.size == len(y) and np.all(np.diff(y.ravel()) > 0) and np.any(y != np.rint(y)))


@contextlib.contextmanager
def no_overflow(name: str) -> Iterator[None]:
    """Name the argument in errors for Python integers that no float can hold."""
    try:
        yield
    except OverflowError as error:
        raise ValueError(f"{name} has integers that no float can hold ({error}). Rescale them.") from None


# ----------------------------------------------------------------------------- values, dense or sparse


def as_csr(values: Any) -> Any:
    """Convert a sparse matrix to CSR, with duplicate entries summed."""
    values = scipy.sparse.csr_array(values)
    values.sum_duplicates()
    return values


def entries_of(values: Any) -> np.ndarray:
    """Return the entries of an array, or the stored entries of a sparse matrix."""
    return values.data if scipy.sparse.issparse(values) else values


def place(values: Any, bad: np.ndarray, *axes: str, first_row: int = 0) -> str:
    """Describe the place of the first marked entry, "row 3, feature 1"; rows count from ``first_row``."""
    sparse = scipy.sparse.issparse(values)
    row, *column = [c[bad][0] for c in values.tocoo().coords] if sparse else np.argwhere(bad)[0]
    return ", ".join(f"{axis} {at}" for axis, at in zip(axes, (row + first_row, *column), strict=False))


def rows_with_nan(values: Any, length: float = np.nan) -> np.ndarray:
    """Find the rows of an array or CSR matrix that have a NaN, bool (row,): none if the `length_of` is finite."""
    bad = np.zeros(values.shape[0], bool)
    if _is_finite(entries_of(values), length):
        return bad
    if not scipy.sparse.issparse(values):
        return np.isnan(values).reshape(len(values), -1).any(axis=1)
    bad[values.tocoo().coords[0][np.isnan(values.data)]] = True
    return bad


def _is_finite(entries: np.ndarray, length: float = np.nan) -> bool:
    """Check cheaply whether entries are finite: they are if their sum is, or that of their squares."""
    with np.errstate(over="ignore", invalid="ignore"):
        if entries.dtype.kind != "f":
            return entries.dtype.kind in "iub"
        return bool(np.isfinite(length) or np.isfinite(length_of(entries)) or np.isfinite(np.sum(entries)))


def length_of(values: Any) -> float:
    """Root of the sum of squares: no magnitude is above it, and BLAS is fast; NaN for other than floats."""
    entries = entries_of(values)
    if entries.dtype.kind != "f":
        return np.nan
    flat = entries.ravel(order="K")
    with np.errstate(over="ignore", invalid="ignore"), one_thread_each():  # others would wait and slow the fit
        return math.sqrt(np.dot(flat, flat))


def refuse_infinity(values: Any, name: str, column: str) -> float:
    """Raise for infinite values, saying where the first is; NaN is allowed. Returns the length (`length_of`)."""
    entries, length = entries_of(values), length_of(values)
    if entries.dtype.kind == "f" and not _is_finite(entries, length):
        advice = "Drop such rows, or use NaN where nothing is known."
        text = f"Input {name} contains infinity: {{n}} infinite values (first at {{at}}). {advice}"
        refuse_some(np.isinf(entries), values, column, text)
    return length


def refuse_some(bad: np.ndarray, values: Any, column: str, text: str, first_row: int = 0) -> None:
    """Raise for marked entries; the text may use {n}, {at} and {first}; rows are counted from ``first_row``."""
    if bad.any():
        at = place(values, bad, "row", column, first_row=first_row)
        raise ValueError(text.format(n=int(bad.sum()), at=at, first=entries_of(values)[bad][0]))


def refuse_large(values: Any, name: str, limit: float, why: str, length: float = np.nan) -> None:
    """Raise for values whose magnitude is above a limit; a `length_of` up to it shows that none is."""
    entries = entries_of(values)
    if length <= limit or length_of(values) <= limit:
        return
    largest = max(float(np.fmax.reduce(entries, None, initial=0.0)), -float(np.fmin.reduce(entries, None, initial=0.0)))
    if largest > limit:
        raise ValueError(f"{name} has values up to {largest:.1e}, {why}; rescale them to about 1.")


def refuse_none(y: Any, advice: str) -> None:
    """Raise if there is no target, in the words that scikit-learn checks for."""
    if y is None:
        raise ValueError(f"requires y to be passed, but the target y is None: {advice}")


def refuse_negative(Y: Any, column: str, first_row: int = 0, name: str = "y") -> None:
    """Raise for negative counts, saying where the first is."""
    what = "{n} negative counts (first at {at}, value {first:g}); the model needs counts >= 0."
    text = f"{name} has {what} Did you pass z-scored data? Pass the counts themselves."
    refuse_some(entries_of(Y) < 0, Y, column, text, first_row)
