"""The only door for data of softmax and multinomial models: features dense or sparse, labels of any kind, counts."""

from __future__ import annotations

import contextlib
import numbers as numbers_abc
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from .._warn import warn_user
from ..stochastic import Pairs
from ._mistakes import (
    looks_like_times,
    refuse_infinity,
    refuse_lengths,
    refuse_no_array,
    refuse_ragged,
    refuse_spike_times,
    refuse_trials,
    refuse_turned,
)
from ._validation import as_numbers, check_weights, no_overflow, plain, refuse_bad_features, refuse_words_and_times

_LARGEST = 1e100


@dataclass(frozen=True)
class ClassTraining:
    """Checked training data of a model of classes."""

    X: Any  # (row, feature), array or CSR
    pairs: Pairs  # weights of mean one over the rows times counts
    weight: np.ndarray  # those weights, (row,)
    total_weight: float  # sum of the weights as given: the number of rows without weights
    rows: np.ndarray  # which of those given, (row,)
    n_dropped: int  # rows with a NaN
    n_empty: int  # rows without counts
    offset: np.ndarray | None  # (row, class)
    class_totals: np.ndarray  # (weighted) rows or counts of every class, (class,)

    @property
    def n_rows(self) -> int:
        """Rows that count."""
        return len(self.rows)

    def extreme_losses(self, rows=None) -> tuple[float, float]:
        """Mean loss, of all or of some rows, of the shares of all rows together, and of every row's own shares."""
        row, label, weight = self.pairs
        everywhere = np.log(np.maximum(self.class_totals / self.class_totals.sum(), 1e-300))[label]
        own = np.log(weight / np.bincount(row, weight, self.n_rows)[row])
        if rows is not None:
            weight = weight * np.bincount(rows, minlength=self.n_rows)[row]
        n = self.n_rows if rows is None else len(rows)
        return -float(weight @ everywhere) / n, -float(weight @ own) / n


# ------------------------------------------------------------------------------------------ features


def check_class_features(estimator, X, reset: bool):
    """Check features, dense or sparse; NaN is allowed in dense ones, and stays."""
    refuse_bad_features(X, "features, (row, feature)")
    X = plain(X)
    if scipy.sparse.issparse(X) and X.format in ("csr", "csc", "coo"):
        X = scipy.sparse.csr_array(X)
        if max(X.nnz, *X.shape) < 2**31:  # what NumPy's default integers make of them
            X = scipy.sparse.csr_array((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), X.shape)
    if not reset:
        refuse_turned(X, estimator)
    with no_overflow("X"):
        X = validate_data(
            estimator,
            X,
            reset=reset,
            accept_sparse="csr",
            accept_large_sparse=False,
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
            order="C",
        )
    refuse_infinity(X, "X", "feature")
    if scipy.sparse.issparse(X):
        X = scipy.sparse.csr_array(X)
        X.sum_duplicates()
        if np.isnan(X.data).any():
            raise ValueError(
                f"X is sparse and holds {int(np.isnan(X.data).sum())} NaN; Input X contains NaN. Leave those rows out."
            )
    values = X.data if scipy.sparse.issparse(X) else X
    largest = max(float(np.nanmax(values, initial=0.0)), -float(np.nanmin(values, initial=0.0)))
    if largest > _LARGEST:
        raise ValueError(
            f"X holds values up to {largest:.1e}, whose squares cannot be summed; rescale its columns to about 1."
        )
    return X


# -------------------------------------------------------------------------------------------- labels


def read_labels(y) -> np.ndarray:
    """Read labels as a 1-D array: numbers, strings, or objects of any hashable kind."""
    refuse_spike_times(
        y, "y", "labels are needed, one per row. For which unit fired each spike: X, y = glmfit.spike_identities(y, X)."
    )
    y = plain(y)
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None: give one label per row.")
    refuse_no_array(y, "y", "one label per row, (row,)")
    if scipy.sparse.issparse(y):
        raise TypeError(
            f"y is a sparse matrix of shape {y.shape}; labels are one per row. Counts are for MultinomialGLM."
        )
    if hasattr(y, "to_numpy"):
        y = y.to_numpy()
    if isinstance(y, list | tuple):
        y = _from_list(y)
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        _warn_column()
        y = y[:, 0]
    if y.ndim != 1:
        raise ValueError(
            f"y has shape {y.shape}; a softmax model needs one label per row, (row,). bad input shape for labels: for "
            "counts over categories use MultinomialGLM."
        )
    if y.dtype.kind == "c":
        raise ValueError("y has dtype complex. Complex data not supported.")
    if y.dtype.kind in "fiub":
        _check_numbers(y)
    return y


def _from_list(y) -> np.ndarray:
    """Array of a list: of numbers, of strings, or else of objects as they are."""
    numbers = all(isinstance(v, numbers_abc.Number | np.bool_) for v in y)
    if numbers or all(isinstance(v, str) for v in y) or any(isinstance(v, list | np.ndarray) for v in y):
        refuse_ragged(y, "y", "one label per row")
        return np.asarray(y)
    return _object_array(y)


def _warn_column() -> None:
    warn_user(
        "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,).",
        DataConversionWarning,
    )


def _check_numbers(y: np.ndarray) -> None:
    """Refuse infinite labels and measured quantities."""
    if y.dtype.kind != "f":
        return
    refuse_infinity(y, "y", "label")
    finite = y[~np.isnan(y)]
    if not np.array_equal(finite, np.rint(finite)):
        first = finite[finite != np.rint(finite)][0]
        raise ValueError(
            f"Unknown label type: continuous. y holds numbers that are no integers (the first is {first:g}): those are "
            "measurements, not classes. Bin them first, for example with numpy.digitize, or turn them into strings. "
            "Counts of neurons are for PopulationGLM."
        )
    check_classification_targets(finite)


def missing_labels(y: np.ndarray) -> np.ndarray:
    """Rows without a label (NaN, None, NaT, NA), (row,)."""
    if y.dtype.kind == "f":
        return np.isnan(y)
    if y.dtype.kind == "O":
        return np.array([_is_missing(v) for v in y], bool)
    if y.dtype.kind in "mM":
        return np.isnat(y)
    return np.zeros(len(y), bool)


def _is_missing(value) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def read_classes(classes) -> np.ndarray:
    """Read the labels a stream will have."""
    classes = read_labels(list(classes) if isinstance(classes, range | set | frozenset) else classes)
    if missing_labels(classes).any():
        raise ValueError("classes holds NaN or None, which mark rows without a label; leave them out.")
    return classes


def find_classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct labels, sorted where they can be and else in order of appearance, and every row's index of them."""
    if y.dtype.kind != "O":
        return np.unique(y, return_inverse=True)
    try:
        distinct = list(dict.fromkeys(y))
    except TypeError as error:
        raise TypeError(
            f"y holds labels that cannot be hashed ({error}); use numbers, strings or tuples instead."
        ) from None
    with contextlib.suppress(TypeError):  # kinds that do not compare
        distinct = sorted(distinct)
    return _object_array(distinct), lookup(_object_array(distinct), y)


def _object_array(values) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def lookup(classes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Index of every label among the classes, -1 where it is none of them."""
    if classes.dtype.kind in "mM" and y.dtype.kind == classes.dtype.kind:
        y = y.astype(classes.dtype)  # days and nanoseconds
    place = {label: i for i, label in enumerate(classes.tolist())}
    return np.array([place.get(label, -1) for label in y.tolist()], int)


def check_seen(classes: np.ndarray, y: np.ndarray, index: np.ndarray) -> None:
    """Raise if labels are not among the classes."""
    unseen = index < 0
    if unseen.any():
        names = list(dict.fromkeys(y[unseen].tolist()))
        shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        raise ValueError(
            f"y holds {len(names)} labels that the model does not know ({shown}), in {int(unseen.sum())} rows; it "
            f"knows {len(classes)}. Leave those rows out, or fit with them (in a stream: name all classes at the first "
            "partial_fit)."
        )


# -------------------------------------------------------------------------------------------- counts


def read_counts(Y):
    """Read counts as an array or CSR matrix, (row, category), finite where not NaN, checked for signs."""
    if Y is None:
        raise ValueError("requires y to be passed, but the target y is None: give counts, (row, category).")
    refuse_spike_times(Y, "y")
    needs = "counts, (row, category)"
    refuse_no_array(Y, "y", needs)
    refuse_trials(Y, "y", needs)
    refuse_words_and_times(Y, "y")
    refuse_ragged(Y, "y", needs)
    if scipy.sparse.issparse(Y):
        Y = scipy.sparse.csr_array(Y).astype(np.float64)
        Y.sum_duplicates()
        values = Y.data
    else:
        Y = np.asarray(plain(Y)).astype(np.float64)
        if Y.ndim != 2 or Y.shape[1] == 0:
            times = " Spike times are counted in the bins of X first." if looks_like_times(Y) else ""
            raise ValueError(
                f"y has shape {Y.shape}; a multinomial model needs counts (row, category), dense or sparse. For one "
                f"label per row use SoftmaxGLM.{times}"
            )
        values = Y.ravel()
    refuse_infinity(Y, "y", "category")
    largest = float(np.max(values, initial=0.0, where=~np.isnan(values)))
    if largest > _LARGEST:
        raise ValueError(f"y has counts up to {largest:.1e}, whose sums overflow; divide all of them by a number.")
    negative = values < 0
    if negative.any():
        if scipy.sparse.issparse(Y):
            row, category = (a[np.flatnonzero(Y.data < 0)[0]] for a in Y.tocoo().coords)
        else:
            row, category = np.argwhere(Y < 0)[0]
        raise ValueError(
            f"y has {int(negative.sum())} negative counts (first at row {row}, category {category}); a multinomial "
            "model needs counts >= 0. Did you pass z-scored data? Pass the counts themselves."
        )
    return Y


def rows_with_nan(values) -> np.ndarray:
    """Whether each row of an array or CSR matrix has a NaN, (row,)."""
    if scipy.sparse.issparse(values):
        bad = np.zeros(values.shape[0], bool)
        bad[np.repeat(np.arange(values.shape[0]), np.diff(values.indptr))[np.isnan(values.data)]] = True
        return bad
    return np.isnan(values).any(axis=1)


# ------------------------------------------------------------------------------------------ together


def check_offset(offset, n_rows: int, n_classes: int) -> np.ndarray | None:
    """Check offsets of the scores, (row, class)."""
    if offset is None:
        return None
    offset = as_numbers(offset, "offset")
    if offset.shape != (n_rows, n_classes):
        raise ValueError(
            f"offset has shape {offset.shape}; it needs one number per row and class, ({n_rows}, {n_classes}), with "
            "classes in the order of classes_."
        )
    if np.isinf(offset).any():
        row = np.argwhere(np.isinf(offset))[0][0]
        raise ValueError(
            f"offset is infinite at row {row}. A class that is impossible there needs a large negative number, such as "
            "-50."
        )
    return np.where(np.isnan(offset).any(axis=1, keepdims=True), np.nan, offset)


def training_of_labels(X, index, missing, sample_weight, offset, n_classes: int) -> ClassTraining:
    """Rows that count, from labels' indices."""
    n = X.shape[0]
    refuse_lengths(X, index, "observation")
    weight = np.ones(n) if sample_weight is None else check_weights(sample_weight, X)
    nan = missing | _without_features(X, offset)
    keep = _keep(nan, weight > 0, np.ones(n, bool))
    weight, total_weight = _mean_one(weight[keep])
    label = index[keep]
    pairs = Pairs(np.arange(len(label)), label, weight)
    totals = np.bincount(label, weight, n_classes)
    offset = None if offset is None else offset[keep]
    return ClassTraining(_rows(X, keep), pairs, weight, total_weight, keep, int(nan.sum()), 0, offset, totals)


def training_of_counts(X, Y, sample_weight, offset) -> ClassTraining:
    """Rows that count, from counts."""
    n, n_classes = Y.shape
    refuse_lengths(X, Y, "observation")
    weight = np.ones(n) if sample_weight is None else check_weights(sample_weight, X)
    nan = rows_with_nan(Y) | _without_features(X, offset)
    total = np.where(nan, 1.0, np.asarray(Y.sum(axis=1)).ravel())
    keep = _keep(nan, weight > 0, total > 0)
    weight, total_weight = _mean_one(weight[keep])
    # A copy: it is sorted in place.
    Y = scipy.sparse.csr_array(Y[keep])
    Y.eliminate_zeros()
    Y.sort_indices()
    row = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))
    pairs = Pairs(row, Y.indices.astype(int), Y.data * weight[row])
    totals = np.bincount(pairs.label, pairs.weight, n_classes)
    offset = None if offset is None else offset[keep]
    n_empty = int(np.sum((total == 0) & (~nan)))
    return ClassTraining(_rows(X, keep), pairs, weight, total_weight, keep, int(nan.sum()), n_empty, offset, totals)


def _without_features(X, offset) -> np.ndarray:
    """Whether features, or offsets, of each row have a NaN, (row,)."""
    bad = np.zeros(X.shape[0], bool) if scipy.sparse.issparse(X) else np.isnan(X).any(axis=1)
    return bad if offset is None else bad | np.isnan(offset).any(axis=1)


def _mean_one(weight: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights of mean one, and the sum of those given, at most the largest number."""
    largest = weight.max()
    weight = weight / largest  # sums of the largest would overflow
    return weight / weight.mean(), min(float(weight.sum()) * float(largest), sys.float_info.max)


def _rows(X, keep):
    return X if len(keep) == X.shape[0] else X[keep]


def _keep(nan, weighted, counted) -> np.ndarray:
    keep = np.flatnonzero(~nan & weighted & counted)
    if len(keep):
        return keep
    if nan.all():
        why = "every row has a NaN in X, y or offset"
    elif not weighted[~nan].any():
        why = "sample_weight is zero on all rows without NaN"
    else:
        why = "no row without NaN has a count"
    raise ValueError(f"{why}; nothing is left to fit.")
