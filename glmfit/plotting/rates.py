"""Rates, spikes and signals against time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_positive
from .axes import BLACK, BLUE, GREY, LIGHT, axes_or_new, colors_of_models, on_axes, time_axis
from .given import check_limits, read_bins, read_like, read_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType


@on_axes
def plot_rate_against_spikes(
    time_s: ArrayLike,
    rate: ArrayLike | dict[str, Any],
    counts: ArrayLike | None = None,
    *,
    bin_s: float | None = None,
    smooth_s: float | None = None,
    limits_s: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw predicted rates, in spikes/s, as lines and the spikes as ticks above them.

    Parameters
    ----------
    time_s : array-like of shape (time,)
        Centres of the bins, s; evenly spaced.
    rate : array-like of shape (time,), or dict of str to such
        Expected counts per bin, as ``predict`` returns them; a dict gives names for the legend. The last is drawn
        strongest.
    counts : array-like of shape (time,), optional
        Spikes per bin; a bin with k spikes gets k ticks.
    smooth_s : float, optional
        Smooth by a Gaussian of this standard deviation, s: the predictions, and beside them the counts, so that
        the two can be compared.
    """
    time, bin_s = read_bins(time_s, bin_s)
    if smooth_s is not None:
        check_positive("smooth_s", smooth_s)
    rates = rate if isinstance(rate, dict) else {"predicted rate": rate}
    if not rates:
        raise ValueError("rate is an empty dict; it must be expected counts per bin, or a dict with names for such.")
    series = {name: read_like(name, values, "time_s", time.shape) / bin_s for name, values in rates.items()}
    count = None if counts is None else read_like("counts", counts, "time_s", time.shape)
    seen = check_limits(limits_s, time)
    ax = axes_or_new(ax, (6.5, 2.6))
    if smooth_s is not None:
        series = {name: _smooth(values, smooth_s / bin_s) for name, values in series.items()}
        if count is not None:
            smooth = _smooth(count / bin_s, smooth_s / bin_s)
            ax.fill_between(time[seen], smooth[seen], color=LIGHT, lw=0, label="spikes, smoothed")
    for (name, values), color in zip(series.items(), colors_of_models(len(series)), strict=True):
        ax.plot(time[seen], values[seen], color=color, lw=1.3 if color == BLUE else 0.9, label=name)
    if count is not None:
        ticks = _spike_times(time[seen], count[seen], bin_s)
        across = ax.get_xaxis_transform()  # x in data, y in axes
        ax.vlines(ticks, 1.02, 1.09, color=BLACK, lw=0.7, transform=across, clip_on=False, label="spikes")
    ax.set_ylim(bottom=0)
    time_axis(ax, limits_s, "rate (spikes/s)")
    return ax


def _smooth(values, sd):
    """Gaussian smoothing that passes over NaN and leaves it where it was."""
    from scipy.ndimage import gaussian_filter1d

    known = np.isfinite(values)
    total = gaussian_filter1d(np.where(known, values, 0.0), sd, mode="nearest")
    weight = gaussian_filter1d(known.astype(float), sd, mode="nearest")
    return np.where(known, total / np.where(weight > 0, weight, 1.0), np.nan)


def _spike_times(time, counts, bin_s):
    """Spread the k spikes of a bin evenly inside it."""
    n = np.maximum(np.nan_to_num(counts).astype(int), 0)
    in_bin = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
    return np.repeat(time, n) + bin_s * ((in_bin + 0.5) / np.repeat(n, n) - 0.5)


@on_axes
def plot_signal(
    time_s: ArrayLike,
    signal: ArrayLike,
    *,
    ylabel: str,
    limits_s: tuple[float, float] | None = None,
    color: ColorType = GREY,
    ax: Axes | None = None,
) -> Axes:
    """Draw a signal against time.

    Parameters
    ----------
    time_s, signal : array-like of shape (time,)
        Times, s, and the signal in any unit.
    """
    time = read_numbers("time_s", time_s, "time")
    signal = read_like("signal", signal, "time_s", time.shape)
    seen = check_limits(limits_s, time)
    ax = axes_or_new(ax, (6.5, 1.5))
    ax.plot(time[seen], signal[seen], color=color, lw=0.8)
    time_axis(ax, limits_s, ylabel)
    return ax
