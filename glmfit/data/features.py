"""Features, dense or sparse, as one array of rows, and weights, exposures and offsets of the rows."""

from numbers import Number
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.validation import validate_data

from ..checks import warn_user
from ..display import counted
from . import arrays
from .times import plain

_FEW = 10  # rows in which a column may be constant by chance
_SUMS = 1e100  # whose squares still add up
_SEEN = 256  # rows
_APART, _ALONE = 10, 50  # times the range of all others: a repeated value, or a single one, that far away is no measure
_SHARE = 1 / 3  # of the rows that may have a code
KINDS = [np.float64, np.float32]


def read_features(estimator, X, reset: bool, sparse: bool = False):
    """Check features for a fit (``reset``), or later against the columns of the fit; NaN in dense ones is kept.

    A fit sets ``n_features_in_`` and, for named columns, ``feature_names_in_`` of the estimator. Sparse X becomes CSR.
    """
    return read_measured(estimator, X, reset, sparse)[0]


def read_measured(estimator, X, reset: bool, sparse: bool = False) -> tuple[Any, float]:
    """Check features as `read_features` does; return them and their length (`arrays.length_of`)."""
    whole = as_features(X, "X", f"features, ({'row' if sparse else 'time'}, feature)", sparse)
    shape = getattr(whole, "shape", ())
    if not reset and len(shape) == 2 and shape[1] != estimator.n_features_in_ == shape[0]:
        expects = f"{type(estimator).__name__} is expecting {shape[0]} features as input."
        advice = f"X has shape {tuple(shape)}, which looks like (feature, time): pass X.T."
        raise ValueError(f"X has {shape[1]} features, but {expects} {advice}")
    with arrays.no_overflow("X"):
        X = _validated(
            estimator, whole, reset, accept_sparse="csr" if sparse else False, accept_large_sparse=False,
            dtype=KINDS, ensure_all_finite=False, ensure_min_samples=2 if reset and not sparse else 1, order="C",
        )  # fmt: skip
    length = arrays.refuse_infinity(X, "X", "feature")
    if scipy.sparse.issparse(X):
        X = arrays.as_csr(X)
        n_nan = int(np.isnan(X.data).sum())
        if n_nan:
            raise ValueError(f"X is sparse and holds {n_nan} NaN; Input X contains NaN. Drop those rows.")
    if sparse:
        arrays.refuse_large(X, "X", _SUMS, "whose squares cannot be summed")
    if reset and getattr(getattr(whole, "dtype", None), "kind", "f") in "iu" and 0 not in X.shape:
        largest = float(abs(X).max())
        if largest > 2.0**53:  # clocks in nanoseconds
            what = f"X has whole numbers up to {largest:.3g}, which float64 rounds (it is exact up to {2.0**53:.3g})"
            warn_user(f"{what}: first subtract the minimum of each column.")
    return X, length


def warn_of_codes(X: np.ndarray, weights: np.ndarray | None, ranges: np.ndarray, names) -> None:
    """Warn of features with a value so far from all others that it must be a code, such as -9999 for a lost tracker."""
    found = []
    for j in _suspects(X, ranges):
        x = np.asarray(X[:, j] if weights is None else X[weights > 0, j], np.float64)
        for code in dict.fromkeys([x.min(), x.max()] if len(x) else []):
            others = x[x != code]
            least, most = (others.min(), others.max()) if len(others) else (code, code)
            n, gap = len(x) - len(others), max(least - code, code - most)
            if 0 < most - least < gap / (_APART if n > 1 else _ALONE) and n <= _SHARE * len(x):
                where = f"{counted(n, 'row')}, {least:.4g} to {most:.4g} elsewhere"
                found.append(f"feature {names[j]} is {code:g} in {where}")
    if found:
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        warn_user(
            f"{'; '.join(found[:3])}{more}. Such values decide the fit. If they stand for missing values, use NaN: "
            "rows with a NaN in X are dropped."
        )


def _suspects(X: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """Return features that may have a value far from all others, by a sample of rows and the ranges in all rows."""
    sample = np.sort(np.asarray(X[:: max(1, len(X) // _SEEN)], np.float64), axis=0)
    low, high, every = sample[0], sample[-1], np.arange(X.shape[1])
    above = sample[np.argmax(sample > low, axis=0), every]  # the next values
    below = sample[len(sample) - 1 - np.argmax(sample[::-1] < high, axis=0), every]
    apart = [(above - low, high - above), (high - below, below - low), (ranges, high - low)]
    return np.flatnonzero(np.any([(gap > _APART * others) & (others > 0) for gap, others in apart], axis=0))


def _validated(estimator, X, reset: bool, ensure_min_samples: int, **how):
    """Call scikit-learn's ``validate_data``, unless an array is already valid.

    scikit-learn compares every array with the data frames of all installed libraries, which is slow the first time.
    """
    known = type(X) is np.ndarray and X.dtype.kind in "fiub" and X.ndim == 2
    known = known and X.shape[0] >= ensure_min_samples and X.shape[1] > 0
    named = hasattr(estimator, "feature_names_in_")
    if not known or (not reset and (named or X.shape[1] != estimator.n_features_in_)):
        return validate_data(estimator, X, reset=reset, ensure_min_samples=ensure_min_samples, **how)
    estimator.n_features_in_ = X.shape[1]
    if named:
        del estimator.feature_names_in_
    return np.asarray(X, X.dtype if X.dtype in KINDS else np.float64, order=how["order"])


def check_columns(estimator, source, reset: bool) -> None:
    """Check the features of a RowSource as `read_features` does, as far as possible without reading them."""
    columns: Any = np.empty((0, source.shape[1]))
    if source.columns is not None:
        import pandas as pd

        columns = pd.DataFrame(columns, columns=source.columns)
    validate_data(estimator, columns, reset=reset, skip_check_array=True)


def as_features(X: Any, name: str, needs: str, sparse: bool, spikes: str | None = None) -> Any:
    """Raise for values that cannot be features, before scikit-learn sees them; convert the rest to forms it knows."""
    arrays.refuse_mistakes(X, name, needs, sparse, spikes)
    shape = arrays.shape_of(X)
    if shape is not None and len(shape) == 1:
        array = name if hasattr(X, "shape") else f"numpy.asarray({name})"
        column, row = f"{array}[:, None]", f"{array}[None]"
        if hasattr(X, "to_frame"):
            column, row = f"{name}.to_frame()", f"{name}.to_frame().T"
        raise ValueError(
            f"{name} has shape {shape}, one dimension; it needs {needs}. Reshape your data: {column} if it is one "
            f"feature, {row} if it is one row."
        )
    X = plain(X)
    if scipy.sparse.issparse(X) and X.format in ("csr", "csc", "coo"):
        X = scipy.sparse.csr_array(X)
        if max(X.nnz, *X.shape) < 2**31:  # what NumPy's default integers make of them
            X = scipy.sparse.csr_array((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), X.shape)
    return X


def warn_of_constant(X, name: str = "X", why: str = "The intercept is automatic, and has no penalty") -> None:
    """Warn of columns with the same nonzero number in every row, and say why they are not needed."""
    if X.shape[0] < _FEW:
        return
    if scipy.sparse.issparse(X):
        first = np.zeros(X.shape[1], X.dtype)
        first[X.indices[: X.indptr[1]]] = X.data[: X.indptr[1]]
        same = np.bincount(X.indices[X.data == first[X.indices]], minlength=X.shape[1])
        constant = np.flatnonzero((same == X.shape[0]) & (first != 0))
    else:
        first, start, size = X[0], 0, _FEW
        constant = np.flatnonzero(first)
        while len(constant) and start < len(X):  # few rows rule most columns out
            constant = constant[(X[start : start + size, constant] == first[constant]).all(axis=0)]
            start, size = start + size, 4 * size
    if len(constant):
        what = "a constant column" if len(constant) == 1 else f"{len(constant)} constant columns"
        at = f"(feature {constant[0]}, always {first[constant[0]]:g})"
        warn_user(f"{name} has {what} {at}. {why}: drop constant columns.")


# -- weights, exposures and offsets of the rows


def read_weights(sample_weight, n_rows: int) -> np.ndarray | None:
    """Check weights of rows, (row,); one number applies to all."""
    if isinstance(sample_weight, Number) or getattr(sample_weight, "shape", None) == ():
        sample_weight = np.full(n_rows, sample_weight)
    return read_factor(sample_weight, "sample_weight", n_rows, "row", "A weight of 0 excludes a row.")


def read_response_weights(values, name: str, n_rows: int, n_neurons: int) -> np.ndarray | None:
    """Check weights or exposures of rows, (row,), or of single responses, (row, neuron), bool if all are 0 or 1."""
    why = "A weight of 0 excludes a row, for one neuron if weights are (time, neuron)."
    if name == "exposure":
        why = (
            "It is the share of the bin that was observed, 1 for a whole bin; for Binomial counts the number of trials."
        )
    if isinstance(values, Number) or getattr(values, "shape", None) == ():
        values = np.full(n_rows, values)
    if values is None or len(arrays.shape_of(values) or ()) != 2:
        return read_factor(values, name, n_rows, "bin" if name == "exposure" else "row", why)
    needs = f"one number per row, ({n_rows},), or per row and neuron, ({n_rows}, {n_neurons})"
    values = arrays.numbers(values, name, needs, shape=(n_rows, n_neurons))
    bad = ~(np.isfinite(values) & (values >= 0))
    arrays.refuse_some(bad, values, "neuron", f"{name} is {{first:g}} at {{at}}; it needs finite numbers >= 0. {why}")
    if n_neurons and np.all(values == values[:, :1]):  # of rows
        return values[:, 0].astype(np.float64)
    return values.astype(bool) if np.isin(values, (0, 1)).all() else values


def read_factor(values, name: str, n: int, of: str, why: str = "") -> np.ndarray | None:
    """Check factors, finite and not negative, one per row, bin or entity; None is kept."""
    if values is None:
        return None
    values = arrays.numbers(values, name, f"one number per {of}, ({n},)", shape=(n,))
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        at = f"{'row' if of == 'bin' else of} {bad[0]}"
        raise ValueError(f"{name} is {values[bad[0]]:g} at {at}; it needs finite numbers >= 0.{why and f' {why}'}")
    return values


def read_offset(offset, n_rows: int, n_columns: int, of_classes: bool = False) -> np.ndarray | None:
    """Check a known part of the linear predictor, (row,) or (row, column); returns (row, 1 or column).

    For a model of classes it is (row, class), and a row with a NaN becomes all NaN.
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
        advice = "For bins that were observed only partly, or not at all, pass exposure (1 for a whole bin, 0 for none)"
        advice += " instead of its logarithm."
    values = arrays.numbers(offset, "offset", needs)
    if values.shape not in shapes:
        raise ValueError(f"offset has shape {values.shape}; it needs {needs}.")
    if np.isinf(values).any():
        raise ValueError(f"offset is infinite at row {np.argwhere(np.isinf(values))[0][0]}. {advice}")
    if of_classes:
        return np.where(np.isnan(values).any(axis=1, keepdims=True), np.nan, values)
    return values.reshape(n_rows, -1)


def refuse_lengths(X, y, of: str = "time bin") -> None:
    """Raise unless features and targets have one row per observation, saying what they look like."""
    if X.shape[0] == y.shape[0]:
        return
    if _both_turned(X, y):
        advice = "X and y look like (feature, time) and (neuron, time): pass X.T and y.T."
    elif X.shape[1] == y.shape[0] > X.shape[0]:
        advice = f"X has shape {X.shape}, which looks like (feature, time): pass X.T."
    elif len(y.shape) == 2 and y.shape[1] == X.shape[0]:
        advice = f"y has shape {y.shape}, which looks like (neuron, time): pass y.T."
    elif arrays.looks_like_times(y):
        advice = "y increases and has fractions, like spike times: count them in the bins of X first, for example by"
        advice += " numpy.histogram(y, edges)[0]."
    else:
        advice = f"Both need one row per {of}: make them with the same bin size, start and end."
    raise ValueError(f"X has {X.shape[0]} rows but y has {y.shape[0]}: inconsistent numbers of samples. {advice}")


def check_same_columns(n: int, fitted: list, given: list | None, one: str, order: str) -> None:
    """Raise if the number, the names or the order of the columns of y differ from the fit."""
    if n != len(fitted):
        several = {"neuron": "neurons", "category": "categories"}[one]
        raise ValueError(f"y has {n} {several} but the model was fitted to {len(fitted)}.")
    for column, (name, known) in enumerate(zip(given or fitted, fitted, strict=True)):
        if name != known:
            what = f"column {column} of y is {one} {name!r}, but the model was fitted with {known!r} there."
            raise ValueError(f"{what} Give y with its columns in the order of {order}.")


def warn_if_turned(X, y) -> None:
    """Warn of features and targets that both look like (column, time)."""
    if _both_turned(X, y):
        advice = "Rows are time bins: if the columns are, pass X.T and y.T."
        warn_user(f"X and y have {X.shape[0]} rows and {X.shape[1]} columns each. {advice}")


def _both_turned(X, y) -> bool:
    return len(y.shape) == 2 and X.shape[1] == y.shape[1] > max(X.shape[0], y.shape[0])
