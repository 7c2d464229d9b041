"""Targets of class models: labels of any kind, and counts over categories."""

import contextlib
import numbers as number_types
import sys
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets

from ..checks import warn_user
from ..stochastic import Pairs
from . import arrays
from .features import read_weights
from .times import plain

_SUMS = 1e100  # that do not overflow
_BY_UNIT = "labels are needed, one per row. To label spikes by unit: X, y = glmfit.spike_identities(y, X)."


@dataclass(frozen=True)
class ClassTraining:
    """Checked training data of a model of classes."""

    X: Any  # (row, feature), array or CSR
    pairs: Pairs  # weights of mean one over the rows times counts
    weight: np.ndarray  # those weights, (row,)
    total_weight: float  # sum of the weights as given: the number of rows without weights
    rows: np.ndarray  # their indices among the rows given, (row,)
    n_given: int  # rows given
    n_dropped: int  # rows with a NaN
    n_empty: int  # rows without counts
    offset: np.ndarray | None  # (row, class)
    class_totals: np.ndarray  # (weighted) rows or counts of every class, (class,)

    @property
    def n_rows(self) -> int:
        """Rows that count."""
        return len(self.rows)

    def take(self, rows: np.ndarray) -> Self:
        """Take some rows, bool (row,); their weights have the mean one again."""
        row, label, weight = self.pairs
        kept, mean = rows[row], self.weight[rows].mean()
        pairs = Pairs((np.cumsum(rows) - 1)[row[kept]], label[kept], weight[kept] / mean)
        return replace(
            self, X=self.X[rows], pairs=pairs, weight=self.weight[rows] / mean, rows=self.rows[rows],
            total_weight=self.total_weight * mean * int(rows.sum()) / self.n_rows,
            offset=None if self.offset is None else self.offset[rows],
            class_totals=np.bincount(pairs.label, pairs.weight, len(self.class_totals)),
        )  # fmt: skip

    def of_classes(self, seen: np.ndarray) -> Self | None:
        """Take the counts of some classes, bool (class,), and the rows that have any; None if there are none.

        Given that a count is in one of these classes, the model of these classes alone predicts which.
        """
        if seen.all():
            return self
        known, rows = seen[self.pairs.label], np.zeros(self.n_rows, bool)
        rows[self.pairs.row[known]] = True
        if not rows.any():
            return None
        row, label, weight = (a[known] for a in self.pairs)
        some = replace(self, pairs=Pairs(row, label, weight)).take(rows)
        return replace(
            some, pairs=some.pairs._replace(label=(np.cumsum(seen) - 1)[some.pairs.label]),
            offset=None if some.offset is None else some.offset[:, seen], class_totals=some.class_totals[seen],
        )  # fmt: skip

    def extreme_losses(self, rows=None) -> tuple[float, float]:
        """Compute the mean loss, over all or some rows, of the pooled shares, and of every row's own shares."""
        row, label, weight = self.pairs
        everywhere = np.log(np.maximum(self.class_totals / self.class_totals.sum(), 1e-300))[label]
        own = np.log(weight / np.bincount(row, weight, self.n_rows)[row])
        if rows is not None:
            weight = weight * np.bincount(rows, minlength=self.n_rows)[row]
        n = self.n_rows if rows is None else len(rows)
        # Sums, not products: threads of BLAS that are woken wait for more, and take time from the fit.
        return -float(np.sum(weight * everywhere)) / n, -float(np.sum(weight * own)) / n


def counts_of_labels(index: np.ndarray, missing: np.ndarray, n_classes: int):
    """Count labels, given by their index: one in every row, NaN if it is missing; CSR, (row, class)."""
    entries = np.where(missing, np.nan, 1.0), index, np.arange(len(index) + 1)
    return scipy.sparse.csr_array(entries, (len(index), max(n_classes, 1)))


def read_class_training(X, Y, sample_weight, offset) -> ClassTraining:
    """Take the rows without NaN that have a positive weight and a count."""
    n, total = X.shape[0], np.asarray(Y.sum(axis=1)).ravel()
    weight = read_weights(np.ones(n) if sample_weight is None else sample_weight, n)
    dense = [a for a in (X, offset) if a is not None and not scipy.sparse.issparse(a)]
    nan = np.logical_or.reduce([*map(arrays.rows_with_nan, (Y, *dense))])
    keep = np.flatnonzero(~nan & (weight > 0) & (total > 0))
    if not len(keep):
        weightless = "sample_weight is zero on all rows without NaN" if not weight[~nan].any() else ""
        why = "every row has a NaN in X, y or offset" if nan.all() else weightless or "no row without NaN has a count"
        raise ValueError(f"{why}; nothing is left to fit.")
    largest = weight[keep].max()
    weight = weight[keep] / largest  # sums of the largest would overflow
    total_weight = min(float(weight.sum()) * float(largest), sys.float_info.max)
    weight = weight / weight.mean()
    some = scipy.sparse.csr_array(Y if len(keep) == n else Y[keep], copy=True)  # it is sorted in place
    some.eliminate_zeros()
    some.sort_indices()
    row = np.repeat(np.arange(len(keep)), np.diff(some.indptr))
    pairs = Pairs(row, some.indices.astype(int), some.data * weight[row])
    return ClassTraining(
        X if len(keep) == n else X[keep], pairs, weight, total_weight, rows=keep,
        n_given=n, n_dropped=int(nan.sum()), n_empty=int(np.sum((total == 0) & ~nan)),
        offset=None if offset is None else offset[keep],
        class_totals=np.bincount(pairs.label, pairs.weight, Y.shape[1]),
    )  # fmt: skip


# -------------------------------------------------------------------------------------------- labels


def read_labels(y) -> np.ndarray:
    """Read labels as a 1-D array: numbers, strings, or objects of any hashable kind."""
    arrays.refuse_spike_times(y, "y", _BY_UNIT)
    y = plain(y)
    arrays.refuse_none(y, "give one label per row.")
    arrays.refuse_no_array(y, "y", "one label per row, (row,)")
    if scipy.sparse.issparse(y):
        advice = "labels are one per row. For counts use MultinomialGLM."
        raise TypeError(f"y is a sparse matrix of shape {y.shape}; {advice}")
    y = y.to_numpy() if hasattr(y, "to_numpy") else y
    if isinstance(y, list | tuple):  # of numbers, of strings, or else of objects as they are
        one_kind = any(all(isinstance(v, kind) for v in y) for kind in (number_types.Number | np.bool_, str))
        if not one_kind and not any(isinstance(v, list | np.ndarray) for v in y):
            y = _object_array(y)
        arrays.refuse_ragged(y, "y", "one label per row")
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        advice = "Please change the shape of y to (n_samples,)."  # the words of scikit-learn
        warn_user(f"A column-vector y was passed when a 1d array was expected. {advice}", DataConversionWarning)
        y = y[:, 0]
    if y.ndim != 1:
        advice = "bad input shape for labels: for counts over categories use MultinomialGLM."
        raise ValueError(f"y has shape {y.shape}; a softmax model needs one label per row, (row,). {advice}")
    if y.dtype.kind == "c":
        raise ValueError("y has dtype complex. Complex data not supported.")
    if y.dtype.kind == "f":
        arrays.refuse_infinity(y, "y", "label")
        finite = y[~np.isnan(y)]
        fractions = finite[finite != np.rint(finite)]
        if fractions.size:
            raise ValueError(
                f"Unknown label type: continuous. y holds numbers that are not integers (the first is "
                f"{fractions[0]:g}): these are measurements, not classes. Bin them first, for example with "
                "numpy.digitize, or convert them to strings. For counts of neurons use PopulationGLM."
            )
        check_classification_targets(finite)
    return y


def missing_labels(y: np.ndarray) -> np.ndarray:
    """Rows without a label (NaN, None, NaT, NA), (row,)."""
    if y.dtype.kind == "O":
        import pandas as pd

        return pd.isna(y)
    return np.isnan(y) if y.dtype.kind in "fmM" else np.zeros(len(y), bool)


def read_classes(classes) -> np.ndarray:
    """Read the labels a stream will have."""
    classes = read_labels(list(classes) if isinstance(classes, range | set | frozenset) else classes)
    if missing_labels(classes).any():
        raise ValueError("classes holds NaN or None, which mark rows without a label; remove them.")
    return classes


def find_classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct labels, sorted if possible, else in order of appearance, and every row's index of them."""
    if y.dtype.kind != "O":
        return np.unique(y, return_inverse=True)
    try:
        distinct = list(dict.fromkeys(y))
    except TypeError as error:
        advice = "use numbers, strings or tuples instead."
        raise TypeError(f"y holds labels that cannot be hashed ({error}); {advice}") from None
    with contextlib.suppress(TypeError):  # kinds that do not compare
        distinct = sorted(distinct)
    return _object_array(distinct), lookup(_object_array(distinct), y)


def _object_array(values) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def lookup(classes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Find the index of every label among the classes, -1 if it is none of them."""
    if classes.dtype.kind in "mM" and y.dtype.kind == classes.dtype.kind:
        y = y.astype(classes.dtype)  # days and nanoseconds
    place = {label: i for i, label in enumerate(classes.tolist())}
    return np.array([place.get(label, -1) for label in y.tolist()], int)


def check_seen(classes: np.ndarray, y: np.ndarray, index: np.ndarray, strange: bool = False) -> None:
    """Raise if labels are not among the classes; if ``strange`` ones are allowed, warn if all of them are."""
    unseen = index < 0
    if strange and unseen.any() and unseen.all():
        (given,), (known,) = y[:1].tolist(), classes[:1].tolist()
        warn_user(
            f"the model knows none of the labels in y, so the accuracy is 0: y has {given!r} first, the model "
            f"{known!r} and {len(classes) - 1} more. Pass labels of the same type as in the fit (1 and '1' differ)."
        )
    elif not strange and unseen.any():
        names = list(dict.fromkeys(y[unseen].tolist()))
        shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        raise ValueError(
            f"y holds {len(names)} labels that the model does not know ({shown}), in {int(unseen.sum())} rows; it "
            f"knows {len(classes)}. Drop those rows, or fit with them (in a stream: name all classes at the first "
            "partial_fit)."
        )


# -------------------------------------------------------------------------------------------- counts


def read_category_counts(y):
    """Read counts as an array or CSR matrix, (row, category), finite or NaN, and not negative."""
    arrays.refuse_none(y, "give counts, (row, category).")
    arrays.refuse_mistakes(y, "y", "counts, (row, category)", sparse=True)
    if scipy.sparse.issparse(y):
        Y = arrays.as_csr(y).astype(np.float64)
    else:
        Y = np.asarray(plain(y)).astype(np.float64)
        if Y.ndim != 2 or Y.shape[1] == 0:
            needs = "a multinomial model needs counts (row, category), dense or sparse. For one label per row use"
            times = " Count spike times in the bins of X first." if arrays.looks_like_times(Y) else ""
            raise ValueError(f"y has shape {Y.shape}; {needs} SoftmaxGLM.{times}")
    arrays.refuse_infinity(Y, "y", "category")
    arrays.refuse_large(Y, "y", _SUMS, "whose sums overflow")
    arrays.refuse_negative(Y, "category")
    return Y
