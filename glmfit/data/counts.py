"""Counts of populations: what a fit and a score need of them and of all that goes with them."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_array

from ..checks import warn_user
from ..design import RowSource
from . import arrays, features
from .times import TimeAxis, check_same_rows, plain, time_axis

_LARGEST = 1e37  # of the features: differences and centred values must be numbers in single precision
_NEEDS = "counts, one row per time bin: (time,) or (time, neuron)"
_NOT_INTEGER = (
    "{} has counts that are not integers, in {} of {} neurons: fitting the Poisson quasi-likelihood. This is right for "
    "deconvolved calcium; if you passed firing rates, multiply by the bin width (and check the scale)."
)
_TIMES = (
    "y increases from row to row and has fractions, like spike times; counts per time bin are needed. Count them in "
    "the bins of X, for example by numpy.histogram(y, edges)[0]. (Fitting the Poisson quasi-likelihood all the same.)"
)


@dataclass(frozen=True)
class Recording:
    """Features, counts and what goes with them, all of one length; X and Y may be read as they are needed."""

    X: Any  # (time, feature)
    Y: Any  # (time, neuron)
    weights: np.ndarray | None  # (time,)
    offset: np.ndarray | None  # (time, 1 or neuron)
    exposure: np.ndarray | None  # (time,)
    one_neuron: bool  # y was 1-D
    neurons: TimeAxis | None  # y's axis when it was a pynapple object
    neuron_names: list

    def take(self, rows) -> Self:
        """Take some rows, indices or bool (time,)."""
        parts = {name: getattr(self, name) for name in ("X", "Y", "weights", "offset", "exposure")}
        return replace(self, **{name: None if a is None else a[rows] for name, a in parts.items()})


@dataclass(frozen=True)
class Training(Recording):
    """Checked data of a fit: finite rows of positive weight, which includes the exposure; counts per unit of it."""

    n_dropped: int  # rows with a NaN
    spike_count: np.ndarray  # as given, whatever weights and exposure, (neuron,)
    rows: np.ndarray | None = None  # which of those given, (time,)
    n_given: int = 0  # rows given

    @property
    def mean_exposure(self) -> float:
        """Weighted mean of the exposure of the rows, 1 without one."""
        if self.exposure is None:
            return 1.0
        seen = self.exposure > 0
        return float(self.weights.sum() / (self.weights[seen] / self.exposure[seen]).sum())


def read_recording(estimator, X, y, sample_weight, offset, exposure, reset: bool) -> Recording:
    """Check features, counts and what goes with them, in memory or (RowSource) where they are read from.

    Parameters are those of :meth:`glmfit.PopulationGLM.fit`. A fit (``reset``) gives the estimator ``n_features_in_``
    and, for named columns, ``feature_names_in_``; later features and neurons must be those of the fit.
    """
    arrays.refuse_none(y, "give the spike counts, (time,) or (time, neuron).")
    check_same_rows(X, y, sample_weight=sample_weight, offset=offset, exposure=exposure)
    if isinstance(X, RowSource):
        features.check_columns(estimator, X, reset)
    else:
        X = features.read_features(estimator, X, reset)
    counts = y if isinstance(y, RowSource) else _read_counts(y, small=isinstance(X, RowSource))
    features.refuse_lengths(X, counts)
    one_neuron = y.one_column if isinstance(y, RowSource) else counts.ndim == 1
    counts = counts[:, None] if len(counts.shape) == 1 else counts
    named = getattr(y, "name", None) is not None and getattr(y, "ndim", 2) == 1
    columns = getattr(y, "columns", [y.name] if named else None)
    n, names = len(X), None if columns is None else [str(c) for c in columns]
    if not reset:
        fitted = estimator.report_.neuron
        unnamed = fitted == [str(i) for i in range(len(fitted))]
        features.check_same_columns(counts.shape[1], fitted, None if unnamed else names, "neuron", "report_.neuron")
    if not isinstance(counts, RowSource) and not isinstance(X, RowSource):
        arrays.refuse_negative(counts, "neuron")
    weights = features.read_weights(sample_weight, n)
    offset, exposure = features.read_offset(offset, n, counts.shape[1]), features.read_exposure(exposure, n)
    names = names or [str(i) for i in range(counts.shape[1])]
    return Recording(X, counts, weights, offset, exposure, one_neuron, time_axis(y), names)


def read_training(estimator, X, y, sample_weight=None, offset=None, exposure=None, reset: bool = True) -> Training:
    """Check the data of a fit, or (``reset=False``) what is said to be that; the fit warns of what may be a mistake."""
    given = read_recording(estimator, X, y, sample_weight, offset, exposure, reset)
    rows, data = _without_nan(given)
    n_dropped = len(given.X) - len(rows)
    if reset:
        warn_of_fractions(np.any(data.Y != np.rint(data.Y), axis=0), data.Y)
    exposure = data.exposure
    if exposure is not None:
        check_unexposed(data.Y, exposure, rows)
    weights = total_weights(data)
    data = replace(data, weights=weights)
    if weights is not None and not weights.all():
        # Nothing may depend on them, not even by 0 times infinity.
        rows, data = rows[weights > 0], data.take(weights > 0)
    if len(rows) < 2:
        what = f"{len(rows)} usable rows (time bins) after dropping {n_dropped} with NaN"
        raise ValueError(f"Found array with n_samples = {what}; a fit needs at least 2, of positive weight.")
    arrays.refuse_large(data.X, "X", _LARGEST, "too large for single precision")
    if reset:
        features.warn_if_turned(data.X, data.Y)
        features.warn_of_constant(data.X)
    spikes = data.Y.sum(axis=0, dtype=np.float64)
    # In float64 whatever the counts came in: in single precision they would be the counts of another recording.
    with np.errstate(over="ignore"):
        Y = data.Y if exposure is None else data.Y / data.exposure[:, None]
    of = {**vars(data), "Y": Y, "n_dropped": n_dropped, "spike_count": spikes}
    return Training(**of, rows=rows, n_given=len(given.X))


def read_scoring(estimator, X, y, sample_weight=None, offset=None, exposure=None) -> Recording:
    """Check features, counts and weights for a score; rows with NaN are left out."""
    rows, data = _without_nan(read_recording(estimator, X, y, sample_weight, offset, exposure, reset=False))
    total_weights(data)
    if data.exposure is not None:
        check_unexposed(data.Y, data.exposure, rows)
    return data


def total_weights(data: Recording) -> np.ndarray | None:
    """Weights times exposure; raises if they cannot be added up or divided by, or if no row counts."""
    weights, exposure = data.weights, data.exposure
    _refuse_extremes(weights, "sample_weight", "Only ratios count: divide all by the largest.")
    _refuse_extremes(exposure, "exposure", "Give the duration of the bins in another unit.")
    if exposure is not None:
        with np.errstate(over="ignore"):
            weights = exposure if weights is None else weights * exposure
        _refuse_extremes(weights, "sample_weight times exposure", "Divide sample_weight by its largest.")
    if weights is not None and not weights.sum() > 0:
        what = "sample_weight" if exposure is None else "sample_weight times exposure"
        advice = "at least one of them needs a positive weight."
        raise ValueError(f"{what} is zero on all {len(weights)} rows without NaN; {advice}")
    return weights


def _read_counts(y, small: bool) -> np.ndarray:
    """Return counts as an array, (time,) or (time, neuron), in double or single precision, or in their own integers."""
    arrays.refuse_mistakes(y, "y", _NEEDS)
    if len(getattr(y, "shape", ())) == 2 and y.shape[1] == 0:
        raise ValueError(f"y has shape {y.shape}: no neuron. It needs (time,) or (time, neuron).")
    kinds: Any = "numeric" if small else [np.float64, np.float32]
    with arrays.no_overflow("y"):
        Y = check_array(plain(y), dtype=kinds, ensure_2d=False, ensure_all_finite=False, input_name="y")
    arrays.refuse_infinity(Y, "y", "neuron")
    return Y


def warn_of_fractions(fraction: np.ndarray, Y=None, name: str = "y") -> None:
    """Warn of neurons, bool (neuron,), with counts that are no integers."""
    if fraction.any():
        said = _NOT_INTEGER.format(name, int(fraction.sum()), len(fraction))
        warn_user(_TIMES if arrays.looks_like_times(Y) else said)


def check_unexposed(Y, exposure, rows) -> None:
    """Raise for counts in bins that were not observed."""
    for bad in np.flatnonzero((exposure == 0) & (Y > 0).any(axis=1))[:1]:
        why = "nothing can be counted in a bin that was not observed."
        raise ValueError(f"row {rows[bad]} has spikes but exposure 0: {why}")


def check_part(Y, exposure, first_row: int) -> None:
    """Check some rows of counts that are read as they are fitted: finite, not negative, none without exposure."""
    advice = "rows that are read as they are fitted need finite counts. Give such rows sample_weight 0."
    arrays.refuse_some(~np.isfinite(Y), Y, "neuron", f"y is {{first}} at {{at}}; {advice}", first_row)
    arrays.refuse_negative(Y, "neuron", first_row)
    if exposure is not None:
        check_unexposed(Y, exposure, np.arange(first_row, first_row + len(Y)))


def _refuse_extremes(factor: np.ndarray | None, name: str, advice: str) -> None:
    """Raise for factors of rows that cannot be added up, or divided by."""
    if factor is None:
        return
    with np.errstate(over="ignore"):
        total = factor.sum()
    if not np.isfinite(total) or 0 < total < 1e-290:
        what = "their sum overflows" if total > 1 else "too small to divide by"
        raise ValueError(f"{name} is up to {factor.max():g}, {what}. {advice}")


def _without_nan(data: Recording) -> tuple[np.ndarray, Recording]:
    """Rows without a NaN: which, and what is there; the arrays themselves where these are all."""
    bad = np.logical_or.reduce([arrays.rows_with_nan(a) for a in (data.X, data.Y, data.offset) if a is not None])
    if bad.all() and len(bad):
        columns = [f"feature {j}" for j in np.flatnonzero(np.isnan(data.X).all(axis=0))]
        columns += [f"neuron {j}" for j in np.flatnonzero(np.isnan(data.Y).all(axis=0))]
        blame = f" All NaN: {', '.join(columns[:5])}; a constant column divided by its standard deviation?"
        raise ValueError(f"every row has a NaN in X, y or offset; nothing is left to fit.{blame if columns else ''}")
    rows = np.flatnonzero(~bad)
    return rows, data.take(rows) if bad.any() else data
