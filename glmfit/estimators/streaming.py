"""Recordings given as sources of rows: loaded if they fit in memory, checked as they are read."""

from dataclasses import replace

import numpy as np

from ..data import counts as door
from ..data.counts import Recording, Training
from ..design import RowSource, as_source
from ..design.on_disk import Watch
from ..engine.tiles import tiles_of

_LOOK = 65536  # rows at a time in the first pass over the counts


def _fetch(given, rows: slice, n_rows: int) -> np.ndarray:
    """Return some rows of an array, or of a source that must still have all its rows."""
    if not isinstance(given, RowSource):
        return given[rows]
    given._refuse_shorter(n_rows)
    return given.fetch(rows)


class _View:
    """Rows that are read on demand, from a source or an array; those that do not count have a neutral value."""

    def __init__(self, given, keep: np.ndarray | None, dtype, neutral: float = 0.0):
        self.given, self.keep, self.dtype = given, keep, np.dtype(dtype)
        self.neutral = np.asarray(neutral, self.dtype)
        self.shape = tuple(given.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows) -> np.ndarray:
        values = np.asarray(_fetch(self.given, rows, len(self)), self.dtype)
        if self.keep is not None and not self.keep[rows].all():
            values = np.where(self.keep[rows][:, None], values, self.neutral)
        return values


class RowView(_View):
    """Features of a source, checked whenever they are read."""

    def __init__(self, source: RowSource, keep: np.ndarray | None, watch: Watch | None = None):
        super().__init__(source, keep, source.dtype)
        self.chunk_rows, self.watch = source.chunk_rows, watch

    def __getitem__(self, rows) -> np.ndarray:
        x = super().__getitem__(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            suspect = not np.isfinite(np.sum(x))  # cheap, and right except for an overflow
        if suspect and not np.isfinite(x).all():
            place, column = np.argwhere(~np.isfinite(x))[0]
            row = np.arange(len(self))[rows][place]
            raise ValueError(
                f"X is {x[place, column]} at row {row}, feature {column}; rows that are read during the fit need "
                "finite features. Give such rows sample_weight 0, or fix the source."
            )
        return x


class CountView(_View):
    """Responses per unit of exposure, from an array or a source; a value that the model allows replaces a NaN."""

    def __init__(self, counts, keep: np.ndarray | None, exposure: np.ndarray | None, neutral: float):
        # Division rounds: in double precision it is the same recording as in memory.
        double = counts.dtype == np.float64 or exposure is not None
        super().__init__(counts, keep, np.float64 if double else np.float32, neutral)
        self.exposure = exposure

    def __getitem__(self, rows) -> np.ndarray:
        y = super().__getitem__(rows)
        if np.isnan(np.sum(y)):
            y = np.where(np.isnan(y), self.neutral, y)
        return y if self.exposure is None else door.per_unit(y, self.exposure[rows])


class OwnView(_View):
    """Weights of single responses that are read on demand: 0 if the response is NaN."""

    def __init__(self, counts, own: np.ndarray | None):
        super().__init__(counts, None, np.float64)
        self.own = own

    def __getitem__(self, rows) -> np.ndarray:
        seen = ~np.isnan(super().__getitem__(rows))
        return seen if self.own is None else seen * self.own[rows]


def read_fitted(estimator, X, y, sample_weight, offset, exposure, epochs, max_memory: float) -> Training:
    """Check the data of a fit: X and y are loaded if they fit in memory, else read in every pass, as views."""
    X, y = (_readable(a, max_memory) for a in (X, y))
    source, counts = as_source(X), as_source(y)
    if source is not None:
        shape = np.shape(y) if counts is None else counts.shape
        if bytes_in_memory(source.shape, 1 if len(shape) < 2 else shape[1], source.dtype) > max_memory:
            y = y if counts is None else counts
            return _read_streamed(estimator, source, y, sample_weight, offset, exposure, epochs)
    return door.read_training(estimator, *as_arrays(X, y), sample_weight, offset, exposure, epochs)


def _readable(array, max_memory: float):
    """Load a small mapped file in a layout whose rows cannot be read by position."""
    if isinstance(array, np.memmap) and 2 * array.nbytes <= max_memory:
        try:
            as_source(array)
        except ValueError:
            return np.array(array)
    return array


def as_arrays(X, y):
    """Load sources of rows; features with names become a frame."""
    X, y = (_readable(a, np.inf) for a in (X, y))
    source, counts = as_source(X), as_source(y)
    if source is not None:
        X = source.to_array()
        if source.columns is not None:
            import pandas as pd

            X = pd.DataFrame(X, columns=source.columns)
    if counts is not None:
        y = counts.to_array()
        y = y[:, 0] if counts.one_column else y
    return X, y


def bytes_in_memory(shape, n_neurons: int, dtype) -> int:
    """Estimate the bytes of a fit in memory: features twice, and some arrays of the size of the counts."""
    n_rows, n_features = shape
    return n_rows * (2 * n_features + 1 + 7 * n_neurons) * np.dtype(dtype).itemsize


def _read_streamed(estimator, source: RowSource, y, sample_weight, offset, exposure, epochs) -> Training:
    """Check sources of rows, except for the features; rows that do not count get weight 0."""
    watch = Watch([source, y, offset, exposure])  # weights are copied
    data = _look(estimator, source, y, sample_weight, offset, exposure, epochs, reset=True)
    weights = data.weights
    if data.exposure is not None and data.exposure.ndim == 1:
        weights = data.exposure if weights is None else weights * data.exposure
    keep = _positive(weights)
    if keep is not None and keep.sum() < 2:
        raise ValueError(f"X has {int(keep.sum())} rows that count; a fit needs at least 2, of positive weight.")
    counts, own = CountView(data.Y.given, keep, data.exposure, estimator._family().neutral), data.own
    if data.exposure is not None and data.exposure.ndim == 2:
        own.own = data.exposure if own.own is None else own.own * data.exposure
    return replace(data, X=RowView(source, keep, watch), Y=counts, weights=weights, own=own)


def read_scored(estimator, X, y, sample_weight, offset, exposure, epochs) -> Recording:
    """Check the data of a score; features in a source of rows are not loaded."""
    source, counts = as_source(X), as_source(y)
    if source is None:
        return door.read_scoring(estimator, *as_arrays(X, y), sample_weight, offset, exposure, epochs)
    y = y if counts is None else counts
    data = _look(estimator, source, y, sample_weight, offset, exposure, epochs, reset=False)
    door.total_weights(replace(data, own=None))
    return replace(data, X=RowView(source, _positive(data.weights)))


def _positive(weights: np.ndarray | None) -> np.ndarray | None:
    """Find which rows count; None if all do."""
    return None if weights is None or weights.all() else weights > 0


def _look(estimator, source: RowSource, y, sample_weight, offset, exposure, epochs, reset: bool) -> Training:
    """Check a recording except for its features, once: rows without these or the offset get weight 0."""
    data = door.read_recording(estimator, source, y, sample_weight, offset, exposure, epochs, reset)
    n_rows, observation = len(source), estimator._family()
    missing = np.zeros(n_rows, bool) if source.left_out is None else np.asarray(source.left_out, bool)
    if missing.shape != (n_rows,):
        raise ValueError(f"left_out of X has shape {missing.shape}; it needs one entry per row, ({n_rows},).")
    offset = data.offset
    if offset is not None:
        missing = missing | np.isnan(offset).any(axis=1)
        offset = np.where(missing[:, None], 0.0, offset)
    weights = np.where(missing, 0.0, 1.0 if data.weights is None else data.weights)
    weights = None if (weights == 1).all() else weights
    keep = _positive(weights)
    Y, own = CountView(data.Y, keep, None, observation.neutral), OwnView(data.Y, data.own)
    fraction, spikes, n_seen, some_nan = np.zeros(Y.shape[1], bool), *np.zeros((2, Y.shape[1])), False
    idle, n_dropped = np.zeros(n_rows, bool), int(missing.sum())  # rows that count for no neuron
    for rows in tiles_of(n_rows, _LOOK):
        y = np.asarray(_fetch(data.Y, rows, n_rows), np.float64)
        n_dropped += int(np.sum(np.isnan(y).all(axis=1) & ~missing[rows]))
        seen = np.ones((len(y), 1), bool) if keep is None else keep[rows][:, None]
        y = np.where(seen, y, observation.neutral)
        door.check_part(y, None if data.exposure is None else data.exposure[rows], rows.start, observation)
        unknown = np.isnan(y)
        some_nan |= bool(unknown.any())
        seen = seen & ~unknown if data.own is None else seen & ~unknown & (data.own[rows] > 0)
        fraction |= np.any((y != np.rint(y)) & seen, axis=0)
        spikes += np.where(seen, y, 0).sum(axis=0)
        n_seen += seen.sum(axis=0)
        if np.ndim(data.exposure) == 2:
            seen = seen & (data.exposure[rows] > 0)
        idle[rows] = ~seen.any(axis=1)
    if idle.any():
        weights = np.where(idle, 0.0, 1.0 if weights is None else weights)
        keep = _positive(weights)
    if reset and observation.counts:
        door.warn_of_fractions(fraction)
    n_masked = (n_rows if keep is None else int(keep.sum())) - n_seen.astype(int)
    needed = some_nan or data.own is not None or np.ndim(data.exposure) == 2
    weighed = {"Y": Y, "weights": weights, "offset": offset, "own": own if needed else None, "n_masked": n_masked}
    checked = vars(data) | weighed
    return Training(**checked, n_dropped=n_dropped, spike_count=spikes)
