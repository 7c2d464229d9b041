"""Rates of a model beside those counted."""

from __future__ import annotations

import numpy as np

from ._axes import BLACK, BLUE, GREEN, GREY, LIGHT, ORANGE, PURPLE, RED, axes_or_new, legend, name_axes


def plot_tuning(
    covariate, counts, rate=None, *, bin_s, edges=12, curve=None, min_bins=10, xlabel="covariate", color=BLUE, ax=None
):
    """Draw a tuning curve: rates counted where a covariate had a value, with error bars, and the model's beside them.

    Parameters
    ----------
    covariate : array-like of shape (time,)
        Value of the covariate in every time bin; bins with a NaN are left out.
    counts : array-like of shape (time,)
        Spikes per bin.
    rate : array-like of shape (time,) or dict of str to such, optional
        Expected counts per bin, as ``predict`` returns them, averaged over the same bins as the counts, so that both
        see the other covariates as they were. A dict gives names for the legend (drawn by the caller).
    bin_s : float
        Width of a time bin, s.
    edges : int or array-like of shape (interval + 1,)
        Limits of the intervals of the covariate; a number makes so many of equal width.
    curve : tuple of two array-like of shape (point,), optional
        A rate in spikes/s against the covariate, drawn as it is, for example of ``predict`` on a grid.
    min_bins : int
        Intervals with fewer time bins are not drawn.
    xlabel : str
        Name and unit of the covariate.
    color : color
        Of the model.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
        Spikes/s. Dots with bars: mean counted rate and its standard error, from the spread of the counts over the
        time bins of the interval as if these were independent. Line: the model's mean rate there.

    Raises
    ------
    ValueError
        If lengths differ.
    """
    x, y = np.asarray(covariate, float), np.asarray(counts, float)
    rates = {} if rate is None else rate if isinstance(rate, dict) else {"model": rate}
    rates = {name: np.asarray(values, float) for name, values in rates.items()}
    for name, values in {"counts": y, **rates}.items():
        if values.shape != x.shape:
            raise ValueError(f"{name} has shape {values.shape}; it must be that of covariate, {x.shape}.")
    known = np.isfinite(x) & np.isfinite(y) & np.all([np.isfinite(v) for v in [x, *rates.values()]], axis=0)
    x, y = x[known], y[known]
    edges = np.linspace(x.min(), x.max(), edges + 1) if np.ndim(edges) == 0 else np.asarray(edges, float)
    place = np.searchsorted(edges, x, side="right") - 1
    place[x == edges[-1]] = len(edges) - 2  # the last interval is closed
    groups = [np.flatnonzero(place == k) for k in range(len(edges) - 1)]
    drawn = [k for k, group in enumerate(groups) if len(group) >= max(min_bins, 1)]
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
        ax.plot(*curve, color=color, lw=1.6, label="model")
    ax.set_ylim(bottom=0)
    name_axes(ax, xlabel, "rate (spikes/s)")
    return ax


def plot_residuals(time_s, rate, counts, *, window_s, bin_s=None, limits_s=None, color=BLUE, ax=None):
    """Draw how many spikes came beyond those expected, window by window, in units of their standard deviation.

    Parameters
    ----------
    time_s : array-like of shape (time,)
        Centres of the bins, s; evenly spaced.
    rate : array-like of shape (time,)
        Expected counts per bin, as ``predict`` returns them.
    counts : array-like of shape (time,)
        Spikes per bin.
    window_s : float
        Width of the windows, s; best so wide that each expects a few spikes.
    bin_s : float, optional
        Width of a bin, s; the median difference of `time_s` when left out.
    limits_s : tuple of float, optional
        First and last time to draw, s.
    color : color
        Of the line.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
        Pearson residuals (spikes - expected) / sqrt(expected) against time. Grey: two standard deviations, which
        Poisson counts of these rates leave about once in twenty windows. Bins with a NaN are left out of both sums.

    Raises
    ------
    ValueError
        If lengths differ.
    """
    time, rate, counts = np.asarray(time_s, float), np.asarray(rate, float), np.asarray(counts, float)
    for name, values in {"rate": rate, "counts": counts}.items():
        if values.shape != time.shape:
            raise ValueError(f"{name} has shape {values.shape}; it must be that of time_s, {time.shape}.")
    bin_s = float(np.median(np.diff(time))) if bin_s is None else bin_s
    seen = np.ones(len(time), bool) if limits_s is None else (time >= limits_s[0]) & (time <= limits_s[1])
    time, rate, counts = time[seen], rate[seen], counts[seen]
    ax = axes_or_new(ax, (6.5, 1.5))
    if len(time):
        known = np.isfinite(rate) & np.isfinite(counts)
        start = time[0] - bin_s / 2
        window = np.floor((time - start) / window_s + 1e-9).astype(int)
        n = window[-1] + 1
        expected = np.bincount(window[known], rate[known], n)
        came = np.bincount(window[known], counts[known], n)
        residual = np.where(expected > 0, (came - expected) / np.sqrt(np.where(expected > 0, expected, 1.0)), np.nan)
        ax.stairs(residual, start + window_s * np.arange(n + 1), baseline=None, color=color, lw=1.1)
    ax.axhspan(-2, 2, color=LIGHT, alpha=0.45, lw=0, zorder=0)
    ax.axhline(0, color=GREY, lw=0.8, zorder=0)
    if limits_s is not None:
        ax.set_xlim(limits_s)
    ax.margins(x=0)
    name_axes(ax, "time (s)", "residual (SD)")
    return ax


def plot_time_rescaling(rescaled, *, neuron=0, level=0.95, difference=False, ax=None):
    """Draw the distribution of rescaled intervals against the uniform one, with the band of a right model.

    Parameters
    ----------
    rescaled : glmfit.inference.TimeRescaling or dict of str to such
        What :func:`glmfit.inference.rescale_time` returns; a dict gives names of models for the legend. The last is
        drawn strongest.
    neuron : int
        Which neuron.
    level : float
        Probability that the whole curve of a right model stays within its band, in (0, 1).
    difference : bool
        Whether to draw the distance from the diagonal instead, which shows more where there are many spikes.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
        Line: share of the intervals that are at most so long, stepping up by 1 / intervals at each. Grey: the band of
        the Kolmogorov-Smirnov test about the diagonal, where the rates of a right model lead.
    """
    models = rescaled if isinstance(rescaled, dict) else {"model": rescaled}
    ax = axes_or_new(ax, (3.0, 3.0))
    half = max(float(np.nan_to_num(model.band(level)[neuron])) for model in models.values())
    ends = np.array([0.0, 1.0])
    diagonal = ends * (not difference)
    ax.fill_between(ends, diagonal - half, diagonal + half, color=LIGHT, alpha=0.6, lw=0, label=f"{level:.0%} band")
    ax.plot(ends, diagonal, color=GREY, lw=0.8)
    others = (RED, GREEN, PURPLE, ORANGE) * len(models)
    colors = [*others[: len(models) - 1], BLUE]
    for (name, model), color in zip(models.items(), colors, strict=True):
        u = model.uniform[neuron]
        x, share = np.concatenate([[0.0], u, [1.0]]), np.concatenate([np.arange(len(u) + 1) / max(len(u), 1), [1.0]])
        if difference:  # both ends of every jump
            x, share = np.repeat(x, 2)[1:], np.repeat(share, 2)[:-1]
            share = share - x
        ax.plot(x, share, color=color, lw=1.4, drawstyle="default" if difference else "steps-post", label=name)
    ax.set_xlim(0, 1)
    if not difference:
        ax.set_ylim(0, 1)
        ax.set_aspect("equal")
    name_axes(ax, "rescaled interval", "share, less the uniform" if difference else "share at most so long")
    legend(ax, loc="best" if difference else "lower right")
    return ax
