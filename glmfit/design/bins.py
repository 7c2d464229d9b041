"""Time bins of epochs, and spikes and signals in them."""

from typing import NamedTuple

import numpy as np

from .sessions import Signal
from .splines import CYCLIC

_SLACK = 1e-6  # of a bin: rounding of times makes no partial bin
_DIGITS = 9  # times are whole nanoseconds, as in pynapple


class Bins(NamedTuple):
    """Bins of all epochs, one after the other; none crosses the border of an epoch."""

    starts: np.ndarray  # (bin,) s
    stops: np.ndarray  # (bin,) s
    closed: np.ndarray  # (bin,) bool: whether the stop belongs to the bin
    share: np.ndarray  # (bin,) of a whole bin
    epoch: np.ndarray  # (bin,) index
    bin_s: float
    n_partial: int  # whether kept or dropped
    partial_s: float  # seconds in them

    @property
    def centres(self) -> np.ndarray:
        """Times of the bins, s."""
        return np.round((self.starts + self.stops) / 2, _DIGITS)


def make_bins(epochs: np.ndarray, bin_s: float, keep_partial: bool) -> Bins:
    """Cut epochs (epoch, 2) into bins from the start of each; a last shorter one is kept or dropped."""
    epochs = np.round(epochs, _DIGITS)
    parts, partial = [], []
    for i, (start, stop) in enumerate(epochs):
        # Times since 1970 have no more than tenths of a microsecond.
        slack = max(_SLACK, 4 * np.spacing(max(abs(start), abs(stop))) / bin_s)
        n = int(np.floor((stop - start) / bin_s + slack))
        rest = stop - start - n * bin_s
        edges = np.round(start + np.arange(n + 1) * bin_s, _DIGITS)
        share = np.ones(n)
        if rest > slack * bin_s:
            partial.append(rest)
            if keep_partial:
                edges, share = np.r_[edges, stop], np.r_[share, rest / bin_s]
        else:
            edges[-1] = stop
        closed = np.zeros(len(share), bool)
        # A spike at the end of an epoch is in it, unless the next one begins there.
        shared = i + 1 < len(epochs) and epochs[i + 1, 0] == stop
        closed[-1:] = edges[-1] == stop and not shared
        parts.append((edges[:-1], edges[1:], closed, share, np.full(len(share), i)))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Bins(*columns, bin_s, len(partial), float(sum(partial)))


def count(bins: Bins, trains: list[np.ndarray]) -> np.ndarray:
    """Count spikes, (bin, train); a spike on an edge is in the bin that starts there."""
    counts = np.zeros((len(bins.starts), len(trains)), np.int64)
    for column, times in enumerate(trains):
        row = np.searchsorted(bins.starts, times, side="right") - 1
        within = (times < bins.stops[row]) | (bins.closed[row] & (times == bins.stops[row]))
        counts[:, column] = np.bincount(row[(row >= 0) & within], minlength=len(counts))
    return counts.astype(np.min_scalar_type(counts.max(initial=0)))


def resample(bins: Bins, signal: Signal, how: str, max_gap_s: float | None) -> np.ndarray:
    """Return values of a signal in each bin, (bin, column), NaN where it has none.

    "mean" of the samples in the bin; "nearest" (the earlier of two equally near) and "linear" at its centre, from
    samples in the same interval of the signal's support.
    """
    if how == "mean":
        return _mean(bins, signal)
    times, at = signal.times, bins.centres
    right = np.searchsorted(times, at, side="left")
    left = np.where(times[np.minimum(right, len(times) - 1)] == at, right, right - 1)
    here, there = interval_of(signal.support, at), interval_of(signal.support, times)

    def known(side):
        inside = np.clip(side, 0, len(times) - 1)
        return inside, (inside == side) & (here >= 0) & (there[inside] == here)

    (left, has_left), (right, has_right) = known(left), known(right)
    # Whole nanoseconds again, so that equal distances are equal, and the earlier sample is taken.
    to_left = np.where(has_left, np.round(at - times[left], _DIGITS), np.inf)
    to_right = np.where(has_right, np.round(times[right] - at, _DIGITS), np.inf)
    if how == "nearest":
        found = signal.values[np.where(to_left <= to_right, left, right)]
        far = 2 * np.minimum(to_left, to_right)
    else:
        far = np.round(to_left + to_right, _DIGITS)
        weight = np.divide(to_left, far, out=np.zeros(len(at)), where=np.isfinite(far) & (far > 0))[:, None]
        low, high = signal.values[left], signal.values[right]
        found = np.where(weight > 0, low + weight * (high - low), low)
    most = np.finfo(float).max if max_gap_s is None else max_gap_s + 4 * np.spacing(np.abs(times[[0, -1]]).max())
    found[~(far <= most)] = np.nan
    return found


def lag(bins: Bins, values: np.ndarray, by: int) -> np.ndarray:
    """Shift values (bin, column) by a number of bins, NaN if the source is in another epoch."""
    source = np.arange(len(values)) - by
    inside = np.clip(source, 0, len(values) - 1)
    known = (inside == source) & (bins.epoch[inside] == bins.epoch)
    return np.where(known[:, None], values[inside], np.nan)


def usual_resampling(signal: Signal, bin_s: float, basis: dict | None) -> str:
    """Name the usual resampling: the mean if bins have several samples; circular values have no mean."""
    if basis is not None and basis["kind"] in CYCLIC:
        return "nearest"
    interval = np.median(np.diff(signal.times)) if len(signal.times) > 1 else np.inf
    return "mean" if interval <= bin_s / 2 * (1 + 1e-6) else "linear"


def intersect(supports: list[np.ndarray]) -> np.ndarray:
    """Return the intersection of sets of intervals (interval, 2)."""
    found, *others = supports
    for other in others:
        low, high = np.maximum(found[:, None, 0], other[:, 0]), np.minimum(found[:, None, 1], other[:, 1])
        found = np.stack([low[low < high], high[low < high]], axis=1)
        found = found[np.argsort(found[:, 0])]
    return found


def _mean(bins: Bins, signal: Signal) -> np.ndarray:
    row = np.searchsorted(bins.starts, signal.times, side="right") - 1
    within = (row >= 0) & (signal.times < bins.stops[row])
    means = np.empty((len(bins.starts), signal.values.shape[1]))
    for column, values in enumerate(signal.values.T):
        known = within & ~np.isnan(values)
        number = np.bincount(row[known], minlength=len(means))
        total = np.bincount(row[known], weights=values[known], minlength=len(means))
        means[:, column] = np.divide(total, number, out=np.full(len(means), np.nan), where=number > 0)
    return means


def interval_of(support: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the index of the interval with each time, -1 for none; intervals (interval, 2) are in order."""
    found = np.searchsorted(support[:, 0], times, side="right") - 1
    return np.where((found >= 0) & (times <= support[found, 1]), found, -1)
