"""Recordings given as something that rows are read from: loaded where they fit in memory, checked as they are read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._warn import warn_user
from ..design import RowSource, as_source
from ..problems._chunks import chunks
from ._mistakes import refuse_lengths, refuse_spike_times
from ._validation import (
    NOT_INTEGER,
    Scoring,
    TimeAxis,
    check_aligned,
    check_counts,
    check_exposure,
    check_offset,
    check_same_neurons,
    check_scoring,
    check_unexposed,
    check_weights,
    counts_of,
    mean_exposure,
    neuron_names,
    plain,
    time_axis,
)
from ._watch import Watch

_LOOK = 65536  # rows at a time of the first look at the counts


@dataclass(frozen=True)
class StreamedTraining:
    """Training data whose rows are read as they are needed; what does not count has weight 0."""

    X: RowView
    Y: CountView
    weights: np.ndarray | None  # (time,), exposure included
    offset: np.ndarray | None  # (time, 1 or neuron)
    n_dropped: int  # rows without features
    one_neuron: bool
    neurons: TimeAxis | None
    neuron_names: list
    spike_count: np.ndarray  # as given, (neuron,)
    mean_exposure: float
    watch: Watch


class RowView:
    """Features of a source, checked whenever they are read; rows that do not count read as 0.

    Parameters
    ----------
    source : RowSource
        Where they come from.
    keep : numpy.ndarray or None
        Which rows count, bool (time,).
    """

    def __init__(self, source: RowSource, keep: np.ndarray | None):
        self.source, self.keep = source, keep
        self.shape, self.dtype, self.chunk_rows = source.shape, source.dtype, source.chunk_rows

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows) -> np.ndarray:
        self.source._refuse_shorter(len(self))
        x = self.source.fetch(rows)
        if self.keep is not None and not self.keep[rows].all():
            x = np.where(self.keep[rows][:, None], x, np.zeros((), x.dtype))
        with np.errstate(over="ignore", invalid="ignore"):
            suspect = not np.isfinite(np.sum(x))  # cheap, and right but for an overflow
        if suspect and not np.isfinite(x).all():
            place, column = np.argwhere(~np.isfinite(x))[0]
            row = np.arange(len(self))[rows][place]
            raise ValueError(
                f"X is {x[place, column]} at row {row}, feature {column}; rows that are read as they are fitted need "
                "finite features. Give such rows sample_weight 0, or fix the source."
            )
        return x


class CountView:
    """Counts per unit of exposure, from an array or a source; rows that do not count read as 0."""

    def __init__(self, counts, keep: np.ndarray | None, exposure: np.ndarray | None):
        self.counts, self.keep, self.exposure = counts, keep, exposure
        self.shape = tuple(counts.shape)
        # What is divided is rounded: in double precision it is the same recording as in memory.
        self.dtype = np.dtype(np.float64 if counts.dtype == np.float64 or exposure is not None else np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows) -> np.ndarray:
        if isinstance(self.counts, RowSource):
            self.counts._refuse_shorter(len(self))
        y = self.counts.fetch(rows) if isinstance(self.counts, RowSource) else self.counts[rows]
        y = np.asarray(y, self.dtype)
        if self.keep is not None and not self.keep[rows].all():
            y = np.where(self.keep[rows][:, None], y, np.zeros((), y.dtype))
        if self.exposure is not None:
            e = self.exposure[rows]
            y = y / np.where(e > 0, e, 1.0)[:, None]
        return y


def load_or_stream(estimator, X, y, sample_weight, offset, exposure, max_memory: float):
    """Load sources that fit in memory; otherwise check what can be checked without reading X.

    Returns
    -------
    arrays : tuple or None
        X and y as arrays, for a fit in memory.
    data : StreamedTraining or None
        For one that reads rows as it goes.
    """
    X, y = (_readable(a, max_memory) for a in (X, y))
    source, counts = as_source(X), as_source(y)
    if source is None:
        return as_arrays(X, y), None
    n_neurons = 1 if len(np.shape(y)) < 2 else np.shape(y)[1]
    if counts is not None:
        n_neurons = counts.shape[1]
    if bytes_in_memory(source.shape, n_neurons, source.dtype) <= max_memory:
        return as_arrays(X, y), None
    return None, _check(estimator, source, y if counts is None else counts, sample_weight, offset, exposure)


def _readable(array, max_memory: float):
    """Load a small mapped file in a layout whose rows cannot be read by position."""
    if isinstance(array, np.memmap) and 2 * array.nbytes <= max_memory:
        try:
            as_source(array)
        except ValueError:
            return np.array(array)
    return array


def as_arrays(X, y):
    """Load what rows are read from."""
    X, y = (_readable(a, np.inf) for a in (X, y))
    source, counts = as_source(X), as_source(y)
    return X if source is None else _with_names(source), y if counts is None else _whole(counts)


def bytes_in_memory(shape, n_neurons: int, dtype) -> int:
    """Bytes that a fit in memory takes: features twice, and of the size of the counts some arrays."""
    n_rows, n_features = shape
    return n_rows * (2 * n_features + 1 + 7 * n_neurons) * np.dtype(dtype).itemsize


def _whole(counts: RowSource) -> np.ndarray:
    values = counts.to_array()
    return values[:, 0] if counts.one_column else values


def _with_names(source: RowSource):
    if source.columns is None:
        return source.to_array()
    import pandas as pd

    return pd.DataFrame(source.to_array(), columns=source.columns)


def _check(estimator, source: RowSource, y, sample_weight, offset, exposure) -> StreamedTraining:
    n_rows = len(source)
    if y is None:
        raise ValueError(
            "requires y to be passed, but the target y is None: give the spike counts, (time,) or (time, neuron)."
        )
    refuse_spike_times(y, "y")
    axis = _check_times(y, sample_weight, offset, exposure)
    watch = Watch([source, y, offset, exposure])  # weights are copied
    names = neuron_names(y)
    one_neuron = y.one_column if isinstance(y, RowSource) else np.ndim(plain(y)) == 1
    counts = y if isinstance(y, RowSource) else counts_of(y, keep_type=True)
    counts = counts[:, None] if counts.ndim == 1 else counts
    refuse_lengths(source, counts)
    estimator.n_features_in_ = source.shape[1]
    if source.columns is not None:
        estimator.feature_names_in_ = np.asarray(source.columns, object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    weights, offset, n_dropped = row_weights(source, counts.shape[1], sample_weight, offset)
    exposure = check_exposure(exposure, n_rows)
    spikes = look_at_counts(CountView(counts, _positive(weights), None), exposure)
    if exposure is not None:
        weights = exposure if weights is None else weights * exposure
    keep = _positive(weights)
    if keep is not None and keep.sum() < 2:
        raise ValueError(f"X has {int(keep.sum())} rows that count; a fit needs at least 2, of positive weight.")
    names = names or [str(i) for i in range(counts.shape[1])]
    return StreamedTraining(
        RowView(source, keep), CountView(counts, keep, exposure), weights, offset, n_dropped, one_neuron, axis, names,
        spikes, mean_exposure(weights, exposure), watch,
    )  # fmt: skip


def _check_times(y, sample_weight, offset, exposure) -> TimeAxis | None:
    """Raise unless what has times has those of y."""
    axis = time_axis(y)
    for name, rows in (("sample_weight", sample_weight), ("offset", offset), ("exposure", exposure)):
        check_aligned(axis, time_axis(rows), name, "y")
    return axis


def check_streamed_scoring(estimator, X, y, sample_weight, offset, exposure) -> Scoring:
    """Check what a score is asked of where X or y is read as it is needed."""
    source, counts = as_source(X), as_source(y)
    if source is None:
        return check_scoring(estimator, X, _whole(counts), sample_weight, offset, exposure)
    check_columns(estimator, source)
    _check_times(y, sample_weight, offset, exposure)
    check_same_neurons(estimator.report_.neuron, neuron_names(y))
    counts = counts_of(y, keep_type=True) if counts is None else counts
    counts = counts[:, None] if counts.ndim == 1 else counts
    refuse_lengths(source, counts)
    exposure = check_exposure(exposure, len(source))
    weights, offset, _ = row_weights(source, counts.shape[1], sample_weight, offset)
    keep = _positive(weights)
    weights = np.ones(len(source)) if weights is None else weights
    Y = CountView(counts, keep, None)
    look_at_counts(Y, exposure, warn=False)
    return Scoring(RowView(source, keep), Y, weights, offset, np.ones(len(source)) if exposure is None else exposure)


def _positive(weights: np.ndarray | None) -> np.ndarray | None:
    """Which rows count; None where all do."""
    return None if weights is None or weights.all() else weights > 0


def row_weights(source: RowSource, n_neurons: int, sample_weight, offset):
    """Weights of the rows of a source, None where all are 1; the offset without NaN; how many rows have no features."""
    n_rows = len(source)
    weights = np.ones(n_rows)
    if sample_weight is not None:
        weights = check_weights(sample_weight, np.broadcast_to(0.0, (n_rows, 1))).astype(np.float64)
    offset = check_offset(offset, n_rows, n_neurons)
    missing = np.zeros(n_rows, bool) if source.left_out is None else np.asarray(source.left_out, bool)
    if missing.shape != (n_rows,):
        raise ValueError(f"left_out of X has shape {missing.shape}; it needs one entry per row, ({n_rows},).")
    if offset is not None:
        missing = missing | np.isnan(offset).any(axis=1)
        offset = np.where(missing[:, None], 0.0, offset)
    if missing.any():
        weights = np.where(missing, 0.0, weights)
    return None if (weights == 1).all() else weights, offset, int(missing.sum())


def look_at_counts(counts: CountView, exposure=None, warn: bool = True) -> np.ndarray:
    """Check all counts once: finite, not negative, none without exposure; warn if they are not integers. Sum them."""
    fraction, total = np.zeros(counts.shape[1], bool), np.zeros(counts.shape[1])
    for rows in chunks(len(counts), _LOOK):
        y = counts[rows]
        bad = np.argwhere(~np.isfinite(y))
        if len(bad):
            row, neuron = bad[0]
            raise ValueError(
                f"y is {y[row, neuron]} at row {rows.start + row}, neuron {neuron}; rows that are read as they are "
                "fitted need finite counts. Give such rows sample_weight 0."
            )
        check_counts(y, warn=False, first_row=rows.start)
        if exposure is not None:
            check_unexposed(y, exposure[rows], np.arange(rows.start, rows.stop))
        fraction |= np.any(y != np.rint(y), axis=0)
        total += y.sum(axis=0, dtype=np.float64)
    if warn and fraction.any():
        warn_user(NOT_INTEGER.format(int(fraction.sum()), len(fraction)))
    return total


def predictor_of(source: RowSource, coef: np.ndarray, intercept) -> np.ndarray:
    """Linear predictor of all rows of a source, (time, ...), NaN where a row has none."""
    parts = [np.asarray(source.fetch(rows), np.float64) @ coef + intercept for rows in chunks(len(source))]
    return np.concatenate(parts)


def check_columns(estimator, source: RowSource) -> None:
    """Raise unless a source has the features of the fit."""
    if source.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"X has {source.shape[1]} features, but {type(estimator).__name__} was fitted to "
            f"{estimator.n_features_in_}."
        )
    fitted = getattr(estimator, "feature_names_in_", None)
    if fitted is not None and source.columns is not None and list(fitted) != list(source.columns):
        raise ValueError(f"X has features {list(source.columns)}, but the fit had {list(fitted)}.")
