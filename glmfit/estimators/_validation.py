"""The only door for arrays of the user: what comes in is checked, what is wrong is said clearly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, validate_data

from .._warn import warn_user
from ._mistakes import (
    TIMES,
    looks_like_times,
    refuse_columns_of_words,
    refuse_infinity,
    refuse_lengths,
    refuse_no_array,
    refuse_one_dimension,
    refuse_ragged,
    refuse_spike_times,
    refuse_trials,
    refuse_turned,
    warn_if_turned,
    warn_of_constant,
)

_LARGEST = 1e37  # of the features: differences and centred values must be numbers in single precision


@dataclass(frozen=True)
class TimeAxis:
    """Times, support and columns of a pynapple object, remembered to give one back."""

    t: np.ndarray
    time_support: Any
    columns: Any = None
    metadata: Any = None


@dataclass(frozen=True)
class Training:
    """Checked training data: finite rows only."""

    X: np.ndarray  # (time, feature)
    Y: np.ndarray  # (time, neuron)
    weights: np.ndarray | None  # (time,), exposure included
    offset: np.ndarray | None  # (time, 1 or neuron)
    exposure: np.ndarray | None  # (time,), by which counts are divided already
    n_dropped: int  # rows with a NaN
    one_neuron: bool  # y was 1-D
    neurons: TimeAxis | None  # y's axis when it was a pynapple object
    neuron_names: list
    rows: np.ndarray  # which of those given, (time,)
    n_given: int  # rows given
    spike_count: np.ndarray  # as given, whatever weights and exposure, (neuron,)

    @property
    def mean_exposure(self) -> float:
        """Weighted mean of the exposure of the rows, 1 without one."""
        return mean_exposure(self.weights, self.exposure)


def is_pynapple(value: Any) -> bool:
    """Whether a value is a pynapple time series (without importing pynapple)."""
    return type(value).__module__.startswith("pynapple.") and hasattr(value, "t") and hasattr(value, "values")


def time_axis(value: Any) -> TimeAxis | None:
    """Time axis of a pynapple object, None for anything else."""
    if not is_pynapple(value):
        return None
    columns = getattr(value, "columns", None)
    metadata = getattr(value, "metadata", None) if columns is not None else None
    has_metadata = metadata is not None and len(getattr(value, "metadata_columns", ())) > 0
    return TimeAxis(np.asarray(value.t), value.time_support, columns, metadata.copy() if has_metadata else None)


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


def check_training(estimator, X, y, sample_weight=None, offset=None, exposure=None) -> Training:
    """Check features, counts and weights for a fit.

    Parameters
    ----------
    estimator :
        Gets ``n_features_in_`` and, for named columns, ``feature_names_in_``.
    X, y, sample_weight, offset, exposure :
        As :meth:`glmfit.PopulationGLM.fit` takes them.

    Returns
    -------
    Training
        Counts are per unit of exposure, which has become part of the weights.

    Raises
    ------
    ValueError, TypeError
        Saying what was given, what is allowed and what to do.
    """
    if y is None:
        raise ValueError(
            "requires y to be passed, but the target y is None: give the spike counts, (time,) or (time, neuron)."
        )
    _refuse_sparse(X, "X")
    _refuse_sparse(y, "y")
    refuse_spike_times(X, "X")
    refuse_spike_times(y, "y")
    check_same_rows(X, y, sample_weight=sample_weight, offset=offset, exposure=exposure)
    axis_y, names = time_axis(y), neuron_names(y)
    X = _features(estimator, X, reset=True)
    Y = counts_of(y)
    refuse_lengths(X, Y)
    weights = None
    if sample_weight is not None:
        weights = check_weights(sample_weight, X)
    one_neuron = Y.ndim == 1
    Y = Y[:, None] if one_neuron else Y
    offset, exposure = check_offset(offset, *Y.shape), check_exposure(exposure, len(X))
    n_given = len(X)
    rows = _rows_without_nan(X, Y, offset)
    X, Y, weights, offset, exposure = (_take(a, rows, n_given) for a in (X, Y, weights, offset, exposure))
    n_dropped = n_given - len(rows)
    check_counts(Y)
    counts = Y
    _refuse_extremes(weights, "sample_weight", "Only ratios count: divide all by the largest.")
    _refuse_extremes(exposure, "exposure", "Give the duration of the bins in another unit.")
    if exposure is not None:
        Y, weights = per_exposure(Y, weights, exposure, rows)
        _refuse_extremes(weights, "sample_weight times exposure", "Divide sample_weight by its largest.")
    if weights is not None and not weights.sum() > 0:
        what = "sample_weight" if exposure is None else "sample_weight times exposure"
        raise ValueError(
            f"{what} is zero on all {len(X)} rows without NaN; at least one of them needs a positive weight."
        )
    if weights is not None and not weights.all():
        # Nothing may depend on them, not even by 0 times infinity.
        kept = weights > 0
        X, Y, counts, rows, offset, exposure, weights = (
            a if a is None else a[kept] for a in (X, Y, counts, rows, offset, exposure, weights)
        )
    if len(X) < 2:
        raise ValueError(
            f"Found array with n_samples = {len(X)} usable rows (time bins) after dropping {n_dropped} with NaN; a fit "
            "needs at least 2, of positive weight."
        )
    largest = max(float(X.max(initial=0.0)), -float(X.min(initial=0.0)))
    if largest > _LARGEST:
        raise ValueError(f"X has values up to {largest:.1e}, too large for single precision; rescale them to about 1.")
    warn_if_turned(X, Y)
    warn_of_constant(X)
    names = names or [str(i) for i in range(Y.shape[1])]
    spikes = counts.sum(axis=0, dtype=np.float64)
    return Training(X, Y, weights, offset, exposure, n_dropped, one_neuron, axis_y, names, rows, n_given, spikes)


def check_features(estimator, X) -> tuple[np.ndarray, TimeAxis | None]:
    """Check features for a prediction; NaN rows are allowed and stay."""
    _refuse_sparse(X, "X")
    return _features(estimator, X, reset=False), time_axis(X)


class Scoring(NamedTuple):
    """Checked data of a score: finite rows only."""

    X: np.ndarray  # (time, feature)
    Y: np.ndarray  # (time, neuron), counts as given
    weights: np.ndarray  # (time,)
    offset: np.ndarray | None  # (time, 1 or neuron)
    exposure: np.ndarray  # (time,)


def check_scoring(estimator, X, y, sample_weight=None, offset=None, exposure=None) -> Scoring:
    """Check features, counts and weights for a score; rows with NaN are left out."""
    check_is_fitted(estimator)
    check_same_rows(X, y, sample_weight=sample_weight, offset=offset, exposure=exposure)
    _refuse_sparse(X, "X")
    refuse_spike_times(y, "y")
    check_same_neurons(estimator.report_.neuron, neuron_names(y))
    X, Y = _features(estimator, X, reset=False), counts_of(y)
    refuse_lengths(X, Y)
    weights = np.ones(len(X)) if sample_weight is None else check_weights(sample_weight, X)
    Y = Y[:, None] if Y.ndim == 1 else Y
    offset, exposure = check_offset(offset, *Y.shape), check_exposure(exposure, len(X))
    exposure = np.ones(len(X)) if exposure is None else exposure
    rows, n = _rows_without_nan(X, Y, offset), len(X)
    check_counts(Y[rows], warn=False)
    check_unexposed(Y[rows], exposure[rows], rows)
    return Scoring(*(_take(a, rows, n) for a in (X, Y, weights, offset, exposure)))


def wrap(values: np.ndarray, axis: TimeAxis | None, neurons: TimeAxis | None, names) -> Any:
    """Give values (time,) or (time, neuron) the time axis they came with, as a pynapple object."""
    if axis is None:
        return values
    import pynapple as nap

    if values.ndim == 1:
        return nap.Tsd(t=axis.t, d=values, time_support=axis.time_support)
    columns = neurons.columns if neurons is not None and neurons.columns is not None else names
    metadata = neurons.metadata if neurons is not None else None
    return nap.TsdFrame(t=axis.t, d=values, time_support=axis.time_support, columns=columns, metadata=metadata)


def check_weights(sample_weight, X) -> np.ndarray:
    """Check weights of rows: numbers, finite, not negative."""
    weights = as_numbers(sample_weight, "sample_weight")
    weights = weights if weights.ndim else weights.item()  # one for all
    return _check_sample_weight(weights, X, dtype=np.float64, ensure_non_negative=True)


def check_offset(offset, n_rows: int, n_neurons: int) -> np.ndarray | None:
    """Check a known part of the linear predictor: (time,) or (time, neuron), no infinities; (time, 1 or neuron)."""
    if offset is None:
        return None
    values = as_numbers(offset, "offset")
    if values.shape not in ((n_rows,), (n_rows, 1), (n_rows, n_neurons)):
        raise ValueError(
            f"offset has shape {values.shape}; it is added to the linear predictor of every bin and needs "
            f"({n_rows},), or ({n_rows}, {n_neurons}) for one per neuron."
        )
    if np.isinf(values).any():
        row = np.argwhere(np.isinf(values))[0][0]
        raise ValueError(
            f"offset is infinite at row {row}. For bins that were observed for a part of the time only, or not at all, "
            "pass exposure (1 a whole bin, 0 none) instead of its logarithm."
        )
    return values.reshape(n_rows, -1)


def check_exposure(exposure, n_rows: int) -> np.ndarray | None:
    """Check the share of each bin that was observed: (time,), finite, not negative."""
    if exposure is None:
        return None
    values = as_numbers(exposure, "exposure")
    if values.shape != (n_rows,):
        raise ValueError(f"exposure has shape {values.shape}; it needs one number per bin, ({n_rows},).")
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        raise ValueError(
            f"exposure is {values[bad[0]]:g} at row {bad[0]}; it is the share of the bin that was observed, a finite "
            "number >= 0 (1 for a whole bin)."
        )
    return values


def _refuse_extremes(factor: np.ndarray | None, name: str, advice: str) -> None:
    """Raise for factors of rows that cannot be added up, or divided by."""
    if factor is None:
        return
    with np.errstate(over="ignore"):
        total = factor.sum()
    if not np.isfinite(total) or 0 < total < 1e-290:
        what = "their sum overflows" if total > 1 else "too small to divide by"
        raise ValueError(f"{name} is up to {factor.max():g}, {what}. {advice}")


def per_exposure(Y, weights, exposure, rows):
    """Divide counts by the exposure, and return weights times exposure: the same likelihood, for every inverse link."""
    check_unexposed(Y, exposure, rows)
    # In float64 whatever the counts came in: in single precision they would be the counts of another recording.
    safe = np.where(exposure > 0, exposure, 1.0)[:, None]
    with np.errstate(over="ignore"):
        return Y / safe, exposure if weights is None else weights * exposure


def mean_exposure(weights: np.ndarray, exposure: np.ndarray | None) -> float:
    """Average the exposure of the rows by their weights, which include it; 1 without one."""
    if exposure is None:
        return 1.0
    seen = exposure > 0
    return float(weights.sum() / (weights[seen] / exposure[seen]).sum())


def check_unexposed(Y, exposure, rows) -> None:
    """Raise for counts in bins that were not observed."""
    bad = np.flatnonzero((exposure == 0) & (Y > 0).any(axis=1))
    if bad.size:
        raise ValueError(
            f"row {rows[bad[0]]} has spikes but exposure 0: nothing can be counted in a bin that was not observed."
        )


@contextlib.contextmanager
def no_overflow(name: str) -> Iterator[None]:
    """Say of Python's whole numbers that no float can hold where they are."""
    try:
        yield
    except OverflowError as error:
        raise ValueError(f"{name} has whole numbers that no float can hold ({error}). Rescale them.") from None


def _features(estimator, X, reset: bool) -> np.ndarray:
    refuse_bad_features(X, "features, (time, feature)")
    if not reset:
        refuse_turned(X, estimator)
    whole = plain(X)
    with no_overflow("X"):
        X = validate_data(
            estimator,
            whole,
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
            ensure_min_samples=2 if reset else 1,
            order="C",
        )
    refuse_infinity(X, "X", "feature")
    if reset:
        _warn_of_large_integers(whole, X)
    return X


def _warn_of_large_integers(given, X: np.ndarray) -> None:
    """Warn where whole numbers are so large that float64 takes neighbours for one: clocks in nanoseconds."""
    if getattr(getattr(given, "dtype", None), "kind", "f") not in "iu" or not X.size:
        return
    largest = float(np.max(np.abs(X)))
    if largest > 2.0**53:
        warn_user(
            f"X has whole numbers up to {largest:.3g}, which float64 rounds (it has all up to {2.0**53:.3g}): first "
            "subtract from each column its smallest."
        )


def refuse_bad_features(X: Any, needs: str) -> None:
    """Raise for what cannot be features, before scikit-learn looks at it."""
    refuse_spike_times(X, "X")
    refuse_no_array(X, "X", needs)
    refuse_trials(X, "X", needs)
    refuse_ragged(X, "X", needs)
    refuse_one_dimension(X, needs)
    refuse_words_and_times(X, "X")


def refuse_words_and_times(value: Any, name: str) -> None:
    """Raise for arrays and frames of words, times or complex numbers."""
    refuse_columns_of_words(value, name)
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    if kind in "mMcUS":
        advice = "Complex data not supported." if kind == "c" else "Convert it to seconds, counts or features first."
        if name == "y" and kind in "US":
            advice = "Labels of classes are fitted by SoftmaxGLM."
        raise ValueError(f"{name} has dtype {value.dtype}; it must be real numbers. {advice}")
    if kind == "O":
        try:
            np.asarray(value, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name} has entries that are not numbers ({error}). Convert or remove them.") from None


def as_numbers(value: Any, name: str) -> np.ndarray:
    """Return real numbers given in any form as float64, or raise ValueError."""
    if getattr(getattr(value, "dtype", None), "kind", "O") != "O":
        refuse_words_and_times(value, name)
    try:
        return np.asarray(plain(value), np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} has entries that are not numbers ({error}). Convert or remove them.") from None


def counts_of(y, keep_type: bool = False) -> np.ndarray:
    """Return counts as an array, (time,) or (time, neuron); small integers stay such if asked."""
    needs = "counts, one row per time bin: (time,) or (time, neuron)"
    refuse_no_array(y, "y", needs)
    refuse_trials(y, "y", needs)
    refuse_words_and_times(y, "y")
    refuse_ragged(y, "y", needs)
    if len(getattr(y, "shape", ())) == 2 and y.shape[1] == 0:
        raise ValueError(f"y has shape {y.shape}: no neuron. It needs (time,) or (time, neuron).")
    with no_overflow("y"):
        Y = check_array(
            plain(y),
            dtype="numeric" if keep_type else [np.float64, np.float32],
            ensure_2d=False,
            ensure_all_finite=False,
            input_name="y",
        )
    refuse_infinity(Y, "y", "neuron")
    return Y


NOT_INTEGER = (
    "y has counts that are not integers, in {} of {} neurons: fitting the Poisson quasi-likelihood. This is right for "
    "deconvolved calcium; if you passed firing rates, multiply by the bin width (and check the scale)."
)


def check_counts(Y: np.ndarray, warn: bool = True, first_row: int = 0) -> None:
    """Raise for negative counts, warn of counts that are not integers."""
    negative = np.argwhere(Y < 0)
    if len(negative):
        row, neuron = negative[0]
        raise ValueError(
            f"y has {len(negative)} negative counts (first at row {first_row + row}, neuron {neuron}, value "
            f"{Y[row, neuron]:g}); Poisson needs y >= 0. Did you pass z-scored data? Pass the counts themselves."
        )
    if warn and not np.array_equal(Y, np.rint(Y)):
        n_neurons = int(np.sum(np.any(Y != np.rint(Y), axis=0)))
        warn_user(TIMES if looks_like_times(Y) else NOT_INTEGER.format(n_neurons, Y.shape[1]))


def _rows_without_nan(X, Y, offset) -> np.ndarray:
    """Which rows have no NaN, indices."""
    bad = np.isnan(X).any(axis=1) | np.isnan(Y).any(axis=1)
    if offset is not None:
        bad |= np.isnan(offset).any(axis=1)
    n_dropped = int(bad.sum())
    if n_dropped and n_dropped == len(bad):
        columns = [f"feature {j}" for j in np.flatnonzero(np.isnan(X).all(axis=0))]
        columns += [f"neuron {j}" for j in np.flatnonzero(np.isnan(Y).all(axis=0))]
        blame = f" All NaN: {', '.join(columns[:5])}; a constant column divided by its standard deviation?"
        raise ValueError(f"every row has a NaN in X, y or offset; nothing is left to fit.{blame if columns else ''}")
    return np.flatnonzero(~bad)


def _take(values, rows, n: int):
    """Take some rows of an array that may be missing; the array itself where these are all."""
    return values if values is None or len(rows) == n else values[rows]


def _refuse_sparse(value: Any, name: str) -> None:
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        raise TypeError(
            f"{name} is a sparse matrix of shape {value.shape}; dense data is required (the spectral basis of a design "
            f"is dense). Pass {name}.toarray() if it fits in memory."
        )


def check_same_rows(X, y, **others) -> None:
    """Raise unless what has times has the same; warn of tables whose rows have the same labels in another order."""
    axis_x, axis_y = time_axis(X), time_axis(y)
    check_aligned(axis_x, axis_y)
    _warn_of_shuffled(X, y, "y")
    for name, rows in others.items():
        check_aligned(axis_x or axis_y, time_axis(rows), name, "y" if axis_x is None else "X")
        _warn_of_shuffled(X, rows, name)


def _warn_of_shuffled(X, rows, what: str) -> None:
    # No error: scikit-learn's permutation_test_score shuffles y so.
    x, y = (getattr(a, "index", None) if type(a).__module__.startswith("pandas") else None for a in (X, rows))
    if x is None or y is None or len(x) != len(y) or x.equals(y):
        return
    if x.is_unique and y.is_unique and x.isin(y).all():
        row = int(np.argmax(np.asarray(x) != np.asarray(y)))
        in_x, in_y = (index[row : row + 1].tolist()[0] for index in (x, y))
        warn_user(
            f"the rows of X and {what} have the same labels in different orders (first at row {row}: {in_x!r} in X, "
            f"{in_y!r} in {what}); rows are matched by position. Where that is not meant, give {what}.loc[X.index].",
        )


def check_aligned(x: TimeAxis | None, y: TimeAxis | None, what: str = "y", to: str = "X") -> None:
    """Raise unless both time axes agree to a thousandth of a bin."""
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


def check_same_neurons(fitted: list, given: list | None) -> None:
    """Raise if y names the neurons of the fit in another order, or others."""
    unnamed = fitted == [str(i) for i in range(len(fitted))]
    if given is None or unnamed or len(given) != len(fitted) or given == fitted:
        return
    first = next(i for i, (a, b) in enumerate(zip(fitted, given, strict=True)) if a != b)
    raise ValueError(
        f"column {first} of y is neuron {given[first]!r}, but the model was fitted with {fitted[first]!r} there. Give "
        "y with its columns in the order of report_.neuron."
    )


def neuron_names(y) -> list | None:
    """Names of the columns of counts, None where they have none."""
    columns = getattr(y, "columns", None)
    if columns is not None:
        return [str(c) for c in columns]
    name = getattr(y, "name", None)
    return [str(name)] if name is not None and getattr(y, "ndim", 2) == 1 else None
