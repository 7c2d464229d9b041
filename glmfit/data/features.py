"""Features, dense or sparse, of whatever kind: as one array of rows, with the columns of the fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.validation import validate_data

from .._warn import warn_user
from .arrays import as_csr, no_overflow, refuse_infinity, refuse_large, refuse_mistakes, shape_of
from .times import plain

_FEW = 10  # rows in which a column may be constant by chance
_SUMS = 1e100  # whose squares still add up
KINDS = [np.float64, np.float32]


def read_features(estimator, X, reset: bool, sparse: bool = False):
    """Check features for a fit (``reset``), or later for the columns of the fit; NaN may be in dense ones, and stays.

    A fit gives the estimator ``n_features_in_`` and, for named columns, ``feature_names_in_``. Sparse ones become CSR.
    """
    whole = as_features(X, "X", f"features, ({'row' if sparse else 'time'}, feature)", sparse)
    if not reset:
        _refuse_turned(whole, estimator)
    with no_overflow("X"):
        X = validate_data(
            estimator, whole, reset=reset, accept_sparse="csr" if sparse else False, accept_large_sparse=False,
            dtype=KINDS, ensure_all_finite=False, ensure_min_samples=2 if reset and not sparse else 1, order="C",
        )  # fmt: skip
    refuse_infinity(X, "X", "feature")
    if scipy.sparse.issparse(X):
        X = as_csr(X)
        if np.isnan(X.data).any():
            raise ValueError(
                f"X is sparse and holds {int(np.isnan(X.data).sum())} NaN; Input X contains NaN. Leave those rows out."
            )
    if sparse:
        refuse_large(X, "X", _SUMS, "whose squares cannot be summed")
    if reset:
        _warn_of_large_integers(whole, X)
    return X


def check_columns(estimator, source, reset: bool) -> None:
    """Check the features of a RowSource as `read_features` does, as far as it can be told without reading them."""
    columns: Any = np.empty((0, source.shape[1]))
    if source.columns is not None:
        import pandas as pd

        columns = pd.DataFrame(columns, columns=source.columns)
    validate_data(estimator, columns, reset=reset, skip_check_array=True)


def as_features(X: Any, name: str, needs: str, sparse: bool, spikes: str | None = None) -> Any:
    """Raise for what cannot be features, before scikit-learn looks at it, and bring the rest into forms it knows."""
    refuse_mistakes(X, name, needs, sparse, spikes)
    shape = shape_of(X)
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


def _refuse_turned(X: Any, estimator: Any) -> None:
    """Raise for features with as many rows as the fit had columns; scikit-learn answers all other numbers."""
    need, shape = estimator.n_features_in_, getattr(X, "shape", ())
    if len(shape) == 2 and shape[1] != need == shape[0]:
        raise ValueError(
            f"X has {shape[1]} features, but {type(estimator).__name__} is expecting {need} features as input. X has "
            f"shape {tuple(shape)}, which looks like (feature, time): pass X.T."
        )


def _warn_of_large_integers(given, X) -> None:
    """Warn where whole numbers are so large that float64 takes neighbours for one: clocks in nanoseconds."""
    if getattr(getattr(given, "dtype", None), "kind", "f") not in "iu" or 0 in X.shape:
        return
    largest = float(abs(X).max())
    if largest > 2.0**53:
        warn_user(
            f"X has whole numbers up to {largest:.3g}, which float64 rounds (it has all up to {2.0**53:.3g}): first "
            "subtract from each column its smallest."
        )


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
