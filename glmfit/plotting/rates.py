"""Rates of a model, spikes and signals, against time and against covariates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_positive, check_whole
from .axes import (
    axes_or_new,
    check_limits,
    name_axes,
    on_axes,
    read_bins,
    read_like,
    read_numbers,
    read_pair,
    time_axis,
)
from .colors import BLACK, BLUE, GREY, LIGHT, colors_of_models

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType

_WINDOWS = 1000  # for every bin, at most


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
        Standard deviation, s, of a Gaussian that smooths the predictions, and the counts next to them, so that
        the two can be compared.
    """
    time, bin_s = read_bins(time_s, bin_s)
    if smooth_s is not None:
        check_positive("smooth_s", smooth_s)
    rates = rate if isinstance(rate, dict) else {"predicted rate": rate}
    if not rates:
        raise ValueError("rate is an empty dict; it must be expected counts per bin, or a dict from names to such.")
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
    """Smooth by a Gaussian, ignoring NaN, which stay where they were."""
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


@on_axes
def plot_tuning(
    covariate: ArrayLike,
    counts: ArrayLike,
    rate: ArrayLike | dict[str, Any] | None = None,
    *,
    bin_s: float,
    edges: int | ArrayLike = 12,
    curve: tuple[ArrayLike, ArrayLike] | None = None,
    min_bins: int = 10,
    xlabel: str = "covariate",
    color: ColorType = BLUE,
    ax: Axes | None = None,
) -> Axes:
    """Draw a tuning curve: rates counted against a covariate, with error bars, and those of the model.

    Dots with bars: mean counted rate, in spikes/s, and its standard error, from the spread of the counts over the time
    bins of the interval as if these were independent. Line: the model's mean rate there.

    Parameters
    ----------
    covariate, counts : array-like of shape (time,)
        Value of the covariate, and spikes, in every time bin; bins with a NaN are dropped.
    rate : array-like of shape (time,) or dict of str to such, optional
        Expected counts per bin, as ``predict`` returns them, averaged over the same bins as the counts, so that both
        see the other covariates as they were. A dict gives names for the legend (drawn by the caller).
    bin_s : float
        Width of a time bin, s.
    edges : int or array-like of shape (interval + 1,)
        Limits of the intervals of the covariate; a number makes this many of equal width.
    curve : tuple of two array-like of shape (point,), optional
        A rate in spikes/s against the covariate, drawn as it is, for example from ``predict`` on a grid.
    min_bins : int
        Intervals with fewer time bins are not drawn.
    """
    check_positive("bin_s", bin_s)
    check_whole("min_bins", min_bins, 0)
    x = read_numbers("covariate", covariate, "time")
    if curve is not None:
        at, of_model = read_pair("curve", curve, "values of the covariate and rates there, (point,) each")
        at = read_numbers("curve[0]", at, "point")
        of_model = read_like("curve[1]", of_model, "curve[0]", at.shape)
    rates = {} if rate is None else rate if isinstance(rate, dict) else {"model": rate}
    rates = {name: read_like(name, values, "covariate", x.shape) for name, values in rates.items()}
    y = read_like("counts", counts, "covariate", x.shape)
    known = np.isfinite(x) & np.isfinite(y) & np.all([np.isfinite(v) for v in [x, *rates.values()]], axis=0)
    if not known.any():
        raise ValueError("covariate, counts and rate have no time bin where all are known; there is nothing to draw.")
    x, y = x[known], y[known]
    edges = _edges(edges, x)
    place = np.searchsorted(edges, x, side="right") - 1
    place[x == edges[-1]] = len(edges) - 2  # the last interval is closed
    groups = [np.flatnonzero(place == k) for k in range(len(edges) - 1)]
    drawn = [k for k, group in enumerate(groups) if len(group) >= max(min_bins, 1)]
    if not drawn:
        raise ValueError(
            f"no interval has min_bins={min_bins} time bins: {len(edges) - 1} intervals lie from {edges[0]:g} to "
            f"{edges[-1]:g}, and {len(x)} values of the covariate from {x.min():g} to {x.max():g}; give other edges "
            "or a smaller min_bins."
        )
    centre = (0.5 * (edges[:-1] + edges[1:]))[drawn]

    def means(values):
        return np.array([values[groups[k]].mean() for k in drawn]) / bin_s

    error = [y[groups[k]].std(ddof=1) / np.sqrt(len(groups[k])) / bin_s if len(groups[k]) > 1 else 0.0 for k in drawn]
    ax = axes_or_new(ax, (3.0, 2.4))
    ax.errorbar(centre, means(y), error, fmt="o", ms=3.5, color=BLACK, elinewidth=0.8, capsize=0, label="counted")
    styles = [{"color": GREY, "lw": 1.2}] * (len(rates) - 1) + [{"color": color, "lw": 1.6}]
    for (name, values), style in zip(rates.items(), styles, strict=False):
        ax.plot(centre, means(values[known]), label=name, **style)
    if curve is not None:
        ax.plot(at, of_model, color=color, lw=1.6, label="model")
    ax.set_ylim(bottom=0)
    name_axes(ax, xlabel, "rate (spikes/s)")
    return ax


def _edges(edges, x) -> np.ndarray:
    """Return the limits of intervals: those given, or of this many of equal width."""
    if np.ndim(edges) == 0:
        check_whole("edges", edges, 1)
        return np.linspace(x.min(), x.max(), edges + 1)
    limits = read_numbers("edges", edges, "interval + 1")
    if len(limits) < 2 or not np.all(np.diff(limits) > 0):
        raise ValueError(f"edges is {edges!r}; it must be a number of intervals, or at least two limits that increase.")
    return limits


@on_axes
def plot_residuals(
    time_s: ArrayLike,
    rate: ArrayLike,
    counts: ArrayLike,
    *,
    window_s: float,
    bin_s: float | None = None,
    limits_s: tuple[float, float] | None = None,
    color: ColorType = BLUE,
    ax: Axes | None = None,
) -> Axes:
    """Draw the number of spikes beyond the expected ones, window by window, in units of its standard deviation.

    These are Pearson residuals, (spikes - expected) / sqrt(expected). Grey: two standard deviations, which Poisson
    counts of these rates exceed in about one of twenty windows. Bins with a NaN are excluded from both sums.

    Parameters
    ----------
    time_s : array-like of shape (time,)
        Centres of the bins, s; evenly spaced.
    rate, counts : array-like of shape (time,)
        Expected counts per bin, as ``predict`` returns them, and spikes per bin.
    window_s : float
        Width of the windows, s; choose it so that each window expects a few spikes.
    """
    time, bin_s = read_bins(time_s, bin_s)
    check_positive("window_s", window_s)
    rate, counts = read_like("rate", rate, "time_s", time.shape), read_like("counts", counts, "time_s", time.shape)
    seen = check_limits(limits_s, time)
    time, rate, counts = time[seen], rate[seen], counts[seen]
    ax = axes_or_new(ax, (6.5, 1.5))
    known = np.isfinite(rate) & np.isfinite(counts)
    start = time[0] - bin_s / 2
    window = np.floor((time - start) / window_s + 1e-9).astype(int)
    n = window[-1] + 1
    if n > _WINDOWS * len(time):
        raise ValueError(
            f"time_s spans {n} windows of {window_s:g} s with {len(time)} bins; bins must be evenly spaced. Draw each "
            "part of the recording with limits_s."
        )
    expected = np.bincount(window[known], rate[known], n)
    came = np.bincount(window[known], counts[known], n)
    residual = np.where(expected > 0, (came - expected) / np.sqrt(np.where(expected > 0, expected, 1.0)), np.nan)
    ax.stairs(residual, start + window_s * np.arange(n + 1), baseline=None, color=color, lw=1.1)
    ax.axhspan(-2, 2, color=LIGHT, alpha=0.45, lw=0, zorder=0)
    ax.axhline(0, color=GREY, lw=0.8, zorder=0)
    time_axis(ax, limits_s, "residual (SD)")
    return ax
