"""What is often passed by mistake: noticed, and answered with what to do instead."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import numpy as np
import scipy.sparse

from .._warn import warn_user

_FEW = 10  # rows that may increase by chance
_SHOWN = 3

TIMES = (
    "y increases from row to row and has fractions, like spike times; counts per time bin are needed. Count them in "
    "the bins of X, for example by numpy.histogram(y, edges)[0]. (Fitting the Poisson quasi-likelihood all the same.)"
)


def refuse_spike_times(value: Any, name: str, advice: str | None = None) -> None:
    """Raise for pynapple's spike times that were not counted, alone or in a list."""
    first = value[0] if isinstance(value, list | tuple) and len(value) else value
    if not _is_spike_times(first):
        return
    kind = type(first).__name__ if first is value else f"list of {type(first).__name__}"
    if advice is None:
        group = name if first is value else f"pynapple.TsGroup({name})"
        bins = "bin_size" if name == "X" else "bin_size, ep=X.time_support"
        advice = f"numbers per time bin are needed. Count them first: {group}.count({bins})."
    raise TypeError(f"{name} is a {kind}, spike times; {advice}")


def _is_spike_times(value: Any) -> bool:
    return type(value).__module__.startswith("pynapple.") and type(value).__name__ in ("Ts", "TsGroup")


def refuse_no_array(value: Any, name: str, needs: str) -> None:
    """Raise for what has no axis, and for epochs, before scikit-learn takes it for a number."""
    epochs = type(value).__module__.startswith("pynapple.") and type(value).__name__ == "IntervalSet"
    tree = type(value).__name__ == "FeaturePytree"
    if not (epochs or tree or isinstance(value, type)) and _shape(value) != ():
        return
    short = value is None or isinstance(value, str | bytes | PathLike | numbers.Number | np.ndarray)
    what, advice = repr(value) if short else f"a {type(value).__name__}", ""
    if isinstance(value, type):
        what, advice = f"the class {value.__name__}", f" Give an array of it, not the class: {value.__name__}(...)."
    elif tree:
        what = "a FeaturePytree of NeMoS"
        advice = (
            f" Put its arrays side by side, numpy.column_stack(list({name}.data.values())), or fit it through NeMoS "
            'with solver_name="SAGA[glmfit]".'
        )
    elif epochs:
        what, advice = "an IntervalSet", " Epochs go into restrict, or into ep of count."
    elif isinstance(value, str | bytes | PathLike):
        advice = f" Load the file first, for example by numpy.load({str(value)!r})."
    elif isinstance(value, Mapping):
        advice = f" Put its arrays side by side: numpy.column_stack(list({name}.values()))."
    elif isinstance(value, Iterator):
        advice = f" Collect its rows first: numpy.array(list({name}))."
    raise TypeError(f"{name} is {what}; it needs {needs}.{advice}")


def refuse_trials(value: Any, name: str, needs: str) -> None:
    """Raise for more than two dimensions, and for lists of tables, which may differ in length."""
    shape = _shape(value)
    if isinstance(value, list | tuple) and value and all(len(getattr(v, "shape", ())) == 2 for v in value):
        what = f"is a list of {len(value)} arrays (the first of shape {tuple(value[0].shape)})"
    elif shape is not None and len(shape) > 2:
        what = f"has shape {shape}, {len(shape)} dimensions"
    else:
        return
    raise ValueError(
        f"{name} {what}; it needs {needs}. If these are trials, concatenate them: numpy.concatenate({name})."
    )


def refuse_one_dimension(X: Any, needs: str) -> None:
    """Raise for features without a second axis, saying how to give them one."""
    shape = _shape(X)
    if shape is None or len(shape) != 1:
        return
    array = "X" if hasattr(X, "shape") else "numpy.asarray(X)"
    column, row = f"{array}[:, None]", f"{array}[None]"
    if hasattr(X, "to_frame"):
        column, row = "X.to_frame()", "X.to_frame().T"
    raise ValueError(
        f"X has shape {shape}, one dimension; it needs {needs}. Reshape your data: {column} if it is one feature, "
        f"{row} if it is one row."
    )


def refuse_turned(X: Any, estimator: Any) -> None:
    """Raise for features with as many rows as the fit had columns; scikit-learn answers all other numbers."""
    need, shape = estimator.n_features_in_, getattr(X, "shape", ())
    if len(shape) == 2 and shape[1] != need == shape[0]:
        raise ValueError(
            f"X has {shape[1]} features, but {type(estimator).__name__} is expecting {need} features as input. X has "
            f"shape {tuple(shape)}, which looks like (feature, time): pass X.T."
        )


def _shape(value: Any) -> tuple | None:
    """Shape of what is or can become an array, None if it is ragged or no array can be made of it."""
    try:
        return tuple(value.shape if hasattr(value, "shape") else np.asarray(value).shape)
    except ValueError:
        return None


def refuse_infinity(values: Any, name: str, column: str) -> None:
    """Raise for infinite values of an array or a sparse matrix, saying where the first is; NaN may be there."""
    sparse = scipy.sparse.issparse(values)
    entries = values.data if sparse else values
    with np.errstate(over="ignore", invalid="ignore"):
        if entries.dtype.kind != "f" or np.isfinite(np.sum(entries)):  # cheap, and sure where it is finite
            return
    bad = np.isinf(entries)
    if not bad.any():
        return
    first = [c[bad][0] for c in values.tocoo().coords] if sparse else np.argwhere(bad)[0]
    place = ", ".join(f"{axis} {at}" for axis, at in zip(("row", column), first, strict=False))
    raise ValueError(
        f"Input {name} contains infinity: {int(bad.sum())} infinite values (first at {place}). Leave such rows out, or "
        "put NaN where nothing is known."
    )


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
    raise ValueError(
        f"{name} is a list of {len(value)} sequences {what}; it needs {needs}. Spike times are counted first, for "
        "example by numpy.histogram(times, edges)[0]."
    )


def refuse_columns_of_words(value: Any, name: str) -> None:
    """Raise for a frame with columns that are not numbers, and name them."""
    dtypes = getattr(value, "dtypes", None)
    if dtypes is None or callable(dtypes) or not hasattr(value, "columns"):
        return
    names = list(value.columns)
    again = [repr(column) for column in dict.fromkeys(names) if names.count(column) > 1]
    if again:
        shown = ", ".join(again[:_SHOWN]) + (", ..." if len(again) > _SHOWN else "")
        raise ValueError(f"{name} has several columns of the same name: {shown}. Give every column a name of its own.")
    found = []
    for j, dtype in enumerate(dtypes):
        if getattr(dtype, "kind", "O") in "biufc":
            continue
        column = value.iloc[:, j] if hasattr(value, "iloc") else value[value.columns[j]]
        first = next((entry for entry in column if not _is_number(entry)), None)
        if first is not None:
            found.append(f"{value.columns[j]!r} (with {first!r})")
    if found:
        shown = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        encode = f"Encode them, for example by pandas.get_dummies({name}, dtype=float), or leave them out."
        advice = "Leave them out." if name == "y" else encode  # dummies of names are no counts
        raise ValueError(f"{name} has columns that are not numbers: {shown}. {advice}")


def _is_number(entry: Any) -> bool:
    if isinstance(entry, str):  # "1" is a label as long as nobody says otherwise
        return False
    try:
        float(entry)
    except (TypeError, ValueError):
        return entry is None or type(entry).__name__ == "NAType"
    return True


def refuse_lengths(X, y, of: str = "time bin") -> None:
    """Raise for features and targets of different lengths, saying what they look like.

    Parameters
    ----------
    X, y :
        Arrays, or whatever has a shape, rows first.
    of : str
        What both need one row of.
    """
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


def looks_like_times(y: Any) -> bool:
    """Whether one column of numbers increases in every row and has fractions."""
    if not isinstance(y, np.ndarray) or y.dtype.kind != "f" or y.size < max(_FEW, len(y)):
        return False
    return bool(y.size == len(y) and np.all(np.diff(y.ravel()) > 0) and np.any(y != np.rint(y)))


def warn_of_constant(X, name: str = "X", why: str = "The intercept is automatic, and has no penalty") -> None:
    """Warn of columns with the same number, not 0, in every row, and say what makes them needless."""
    if X.shape[0] < _FEW:
        return
    if scipy.sparse.issparse(X):
        first = np.zeros(X.shape[1], X.dtype)
        first[X.indices[: X.indptr[1]]] = X.data[: X.indptr[1]]
        same = np.bincount(X.indices[X.data == first[X.indices]], minlength=X.shape[1])
        constant = np.flatnonzero((same == X.shape[0]) & (first != 0))
    else:
        first = X[0]
        maybe = np.flatnonzero((X[:_FEW] == first).all(axis=0) & (first != 0))
        constant = maybe[(X[:, maybe] == first[maybe]).all(axis=0)]
    if len(constant):
        what = "a constant column" if len(constant) == 1 else f"{len(constant)} constant columns"
        warn_user(
            f"{name} has {what} (feature {constant[0]}, always {first[constant[0]]:g}). {why}: leave constant columns "
            "out."
        )
