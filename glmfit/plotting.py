"""Figures of fits: every function draws on matplotlib axes and returns them.

matplotlib is imported when a function is called (``pip install 'glmfit[plot]'``). With ``ax=None`` a function makes a
figure through pyplot, so that a notebook shows it; :func:`new_axes` makes one that belongs to no window, for scripts.
Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

from __future__ import annotations

import numpy as np

from ._status import Status

BLUE, RED, GREEN, ORANGE, PURPLE = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7"
BLACK, GREY, LIGHT = "#222222", "#7F7F7F", "#C8C8C8"
_UNIT_S = {"s": 1.0, "ms": 1e-3}

# ------------------------------------------------------------------------------------------------- axes


def new_axes(width_ratios=(1,), height_ratios=(1,), size=(6.5, 3.0), sharex=False):
    """Make a figure that belongs to no window, and its axes; save it with ``axes[0, 0].figure.savefig(path)``.

    Parameters
    ----------
    width_ratios, height_ratios : sequence of float
        Relative widths of the columns and heights of the rows.
    size : tuple of float
        Width and height in inches.
    sharex : bool
        Whether the axes of a column share their x-axis.

    Returns
    -------
    numpy.ndarray of matplotlib.axes.Axes
        (row, column).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=200, layout="constrained")
    axes = figure.subplots(
        len(height_ratios),
        len(width_ratios),
        squeeze=False,
        sharex="col" if sharex else False,
        gridspec_kw={"width_ratios": width_ratios, "height_ratios": height_ratios},
    )
    for ax in axes.flat:
        _dress(ax)
    return axes


def label_panels(axes, titles=None):
    """Write a, b, c, ... above the upper left corner of each panel, with a title if there is one.

    Parameters
    ----------
    axes : iterable of matplotlib.axes.Axes
        In reading order.
    titles : iterable of str, optional
        One per panel.
    """
    axes = np.ravel(np.asarray(axes, object))
    for letter, ax, title in zip("abcdefghijklmnopqrstuvwxyz", axes, titles or [""] * len(axes)):
        ax.set_title(rf"$\mathbf{{{letter}}}$  {title}", loc="left", fontsize=9, pad=8)


def _dress(ax):
    """Quiet axes: two spines, ticks outside, small type."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(direction="out", labelsize=8, length=3)
    return ax


def _axes(ax, size=(4.5, 3.0)):
    """Axes given, or new ones that a notebook shows."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return _dress(plt.subplots(figsize=size, layout="constrained")[1])


def _label(ax, x=None, y=None):
    if x is not None:
        ax.set_xlabel(x, fontsize=9)
    if y is not None:
        ax.set_ylabel(y, fontsize=9)


def _legend(ax, **kwargs):
    ax.legend(**{"frameon": False, "fontsize": 8, "handlelength": 1.6, "labelspacing": 0.25, **kwargs})


# --------------------------------------------------------------------------------------- filters, rates


def plot_filter(
    basis,
    weights,
    lag_s,
    *,
    unit="ms",
    covariance=None,
    refractory_s=None,
    label=None,
    color=BLUE,
    xlabel="lag",
    ylabel="filter",
    ax=None,
):
    """Draw a filter, ``basis @ weights``, against its lag.

    Parameters
    ----------
    basis : array-like of shape (lag, basis function)
        Values of the basis functions.
    weights : array-like of shape (basis function,) or (basis function, neuron)
        Their coefficients, a part of ``coef_``; one line per neuron.
    lag_s : array-like of shape (lag,)
        Lags, s.
    unit : {"ms", "s"}
        Unit of the lag axis.
    covariance : array-like of shape (basis function, basis function), optional
        Covariance of the weights of one neuron; drawn as a band of two standard deviations.
    refractory_s : float, optional
        Lags up to here, s, are shaded and called refractory.
    label : str, optional
        Name for the legend (drawn by the caller).
    color : color
        Of line and band.
    xlabel, ylabel : str
        Names of the axes; the unit of the lag is added.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If the shapes do not fit or the unit is unknown.
    """
    if unit not in _UNIT_S:
        raise ValueError(f"unit is {unit!r}; it must be one of {', '.join(_UNIT_S)}.")
    basis, weights, lag = np.asarray(basis), np.asarray(weights), np.asarray(lag_s) / _UNIT_S[unit]
    if basis.shape != (len(lag), len(weights)):
        raise ValueError(
            f"basis has shape {basis.shape}; with {len(lag)} lags and {len(weights)} weights it must be "
            f"({len(lag)}, {len(weights)})."
        )
    ax = _axes(ax)
    values = basis @ weights
    ax.axhline(0, color=LIGHT, lw=0.8, zorder=0)
    if refractory_s is not None:
        ax.axvspan(0, refractory_s / _UNIT_S[unit], color=LIGHT, alpha=0.45, lw=0, zorder=0)
    if covariance is not None:
        sd = np.sqrt(np.einsum("li,ij,lj->l", basis, np.asarray(covariance), basis))
        ax.fill_between(lag, values - 2 * sd, values + 2 * sd, color=color, alpha=0.2, lw=0)
    lines = ax.plot(lag, values, color=color, lw=1.6 if values.ndim == 1 else 0.7)
    if label is not None:
        lines[0].set_label(label)
    _label(ax, f"{xlabel} ({unit})", ylabel)
    return ax


def plot_rate_against_spikes(
    time_s,
    rate,
    counts=None,
    *,
    bin_s=None,
    smooth_s=None,
    limits_s=None,
    ax=None,
):
    """Draw predicted rates as lines and the spikes as ticks above them.

    Parameters
    ----------
    time_s : array-like of shape (time,)
        Centres of the bins, s; evenly spaced.
    rate : array-like of shape (time,), or dict of str to such
        Expected counts per bin, as ``predict`` returns them; a dict gives names for the legend. The last is drawn
        strongest.
    counts : array-like of shape (time,), optional
        Spikes per bin; a bin with k spikes gets k ticks.
    bin_s : float, optional
        Width of a bin, s; the median difference of `time_s` when left out.
    smooth_s : float, optional
        Smooth by a Gaussian of this standard deviation, s: the predictions, and beside them the counts, so that
        the two can be compared.
    limits_s : tuple of float, optional
        First and last time to draw, s.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
        Rates in spikes/s against time in s.

    Raises
    ------
    ValueError
        If lengths differ.
    """
    time = np.asarray(time_s)
    bin_s = float(np.median(np.diff(time))) if bin_s is None else bin_s
    rates = rate if isinstance(rate, dict) else {"predicted rate": rate}
    series = {name: np.asarray(values) / bin_s for name, values in rates.items()}
    count = None if counts is None else np.asarray(counts)
    for name, values in {**series, **({} if count is None else {"counts": count})}.items():
        if values.shape != time.shape:
            raise ValueError(f"{name} has shape {values.shape}; it must be that of time_s, {time.shape}.")
    seen = slice(None) if limits_s is None else (time >= limits_s[0]) & (time <= limits_s[1])
    ax = _axes(ax, (6.5, 2.6))
    if smooth_s is not None:
        series = {name: _smooth(values, smooth_s / bin_s) for name, values in series.items()}
        if count is not None:
            smooth = _smooth(count / bin_s, smooth_s / bin_s)
            ax.fill_between(time[seen], smooth[seen], color=LIGHT, lw=0, label="spikes, smoothed")
    others = ((ORANGE, 0.9), (GREEN, 0.9), (PURPLE, 0.9)) * len(series)
    styles = [*others[: len(series) - 1], (BLUE, 1.3)]
    for (name, values), (color, width) in zip(series.items(), styles, strict=True):
        ax.plot(time[seen], values[seen], color=color, lw=width, label=name)
    if count is not None:
        ticks = _spike_times(time[seen], count[seen], bin_s)
        across = ax.get_xaxis_transform()  # x in data, y in axes
        ax.vlines(ticks, 1.02, 1.09, color=BLACK, lw=0.7, transform=across, clip_on=False, label="spikes")
    if limits_s is not None:
        ax.set_xlim(limits_s)
    ax.margins(x=0)
    ax.set_ylim(bottom=0)
    _label(ax, "time (s)", "rate (spikes/s)")
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
    times = [
        t + bin_s * ((np.arange(k) + 0.5) / k - 0.5)
        for t, k in zip(time, np.nan_to_num(counts).astype(int), strict=True)
        if k > 0
    ]
    return np.concatenate(times) if times else np.empty(0)


def plot_signal(time_s, signal, *, ylabel, limits_s=None, color=GREY, ax=None):
    """Draw a signal against time.

    Parameters
    ----------
    time_s : array-like of shape (time,)
        s.
    signal : array-like of shape (time,)
        Any unit; say which in `ylabel`.
    ylabel : str
        Name and unit.
    limits_s : tuple of float, optional
        First and last time to draw, s.
    color : color
        Of the line.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
    """
    time, signal = np.asarray(time_s), np.asarray(signal)
    seen = slice(None) if limits_s is None else (time >= limits_s[0]) & (time <= limits_s[1])
    ax = _axes(ax, (6.5, 1.5))
    ax.plot(time[seen], signal[seen], color=color, lw=0.8)
    if limits_s is not None:
        ax.set_xlim(limits_s)
    ax.margins(x=0)
    _label(ax, "time (s)", ylabel)
    return ax


# ----------------------------------------------------------------------------------------- certificates


def plot_convergence(report, *, against="epoch", ax=None):
    """Draw the distance from the optimum of every neuron over the fit: estimates as lines, bounds as triangles.

    Parameters
    ----------
    report : glmfit.FitReport
        Of a fitted model, ``model.report_``.
    against : {"epoch", "passes", "seconds"}
        What the x-axis counts: epochs; rows evaluated over rows of the data, certificates included; wall time with
        compilation.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
        Gap in nats per bin, logarithmic. Thin: each neuron. Strong: median and worst over the neurons with spikes.
        Triangles: where the gap of a neuron was first proved, so that the truth is below them. Dashed: the target
        below which a neuron counts as converged (a band where neurons have different ones). A gap of 0 or one that
        could not be computed is not drawn.

    Raises
    ------
    ValueError
        If `against` is unknown.
    """
    history = report.history
    axis = {
        "epoch": ("epoch", "epoch"),
        "passes": ("row_evals", "passes over the data"),
        "seconds": ("seconds", "time (s)"),
    }
    if against not in axis:
        raise ValueError(f"against is {against!r}; it must be one of {', '.join(axis)}.")
    x = np.asarray(history[axis[against][0]], float) / (report.n_rows if against == "passes" else 1)
    fitted = report.status != Status.NO_SPIKES
    gap = np.where(history["gap"] > 0, history["gap"], np.nan)[:, fitted]
    proved = history["gap_is_bound"][:, fitted] & np.isfinite(gap)
    ax = _axes(ax)
    ax.plot(x, gap, color=BLUE, lw=0.4, alpha=0.35)
    drawn = np.isfinite(gap).any(axis=1)
    if gap.shape[1] > 1:
        ax.plot(x[drawn], np.nanmax(gap[drawn], axis=1), color=RED, lw=1.6, label="worst neuron")
        ax.plot(x[drawn], np.nanmedian(gap[drawn], axis=1), color=BLUE, lw=1.6, label="median")
    first = proved & (np.cumsum(proved, axis=0) == 1)
    check, neuron = np.nonzero(first)
    ax.plot(x[check], gap[check, neuron], "v", ms=3.5, mfc=BLACK, mec="none", alpha=0.7, label="proved bound", zorder=4)
    _target(ax.axhline, ax.axhspan, report.target[fitted])
    ax.set_yscale("log")
    if against == "epoch":
        ax.xaxis.get_major_locator().set_params(integer=True)
    _label(ax, axis[against][1], "gap  $F - F^*$  (nats per bin)")
    handles, labels = ax.get_legend_handles_labels()
    thin = ax.plot([], [], color=BLUE, lw=0.6, alpha=0.6)
    _legend(ax, handles=[*thin, *handles], labels=["a neuron (estimate)", *labels], loc="upper right")
    return ax


def _target(line, band, target):
    """Target below which neurons count as converged, as a line or a band."""
    target = target[np.isfinite(target) & (target > 0)]
    if not len(target):
        return
    low, high = target.min(), target.max()
    if high > 1.05 * low:
        band(low, high, color=GREEN, alpha=0.15, lw=0)
    line(np.median(target), color=GREEN, lw=1, ls="--", label="target")


def plot_bounds(report, optimum, *, ax=None):
    """Draw the gap each neuron was reported to have against the gap it has, for a known optimum.

    Parameters
    ----------
    report : glmfit.FitReport
        Of a fitted model.
    optimum : array-like of shape (neuron,)
        Lowest objective known, nats per bin, for example ``report_.objective`` of a fit with a far smaller ``tol``.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
        Both axes logarithmic, nats per bin. Bounds (filled) must lie on or above the diagonal; estimates (hollow)
        may lie anywhere. Neurons whose measured gap is not positive are not drawn.
    """
    ax = _axes(ax, (3.2, 3.0))
    measured = report.objective - np.asarray(optimum)
    drawn = (measured > 0) & (report.gap > 0)
    kinds = {
        "proved bound": (drawn & report.gap_is_bound, {"mfc": BLACK, "mec": "none", "alpha": 0.6}),
        "estimate": (drawn & ~report.gap_is_bound, {"mfc": "none", "mec": BLUE}),
    }
    for name, (where, style) in kinds.items():
        if where.any():
            ax.plot(measured[where], report.gap[where], "v", ms=4, ls="none", label=name, **style)
    ax.set_xscale("log")
    ax.set_yscale("log")
    if drawn.any():
        both = np.concatenate([measured[drawn], report.gap[drawn]])
        ends = [both.min() / 2, both.max() * 2]
        ax.plot(ends, ends, color=GREY, lw=0.8, zorder=0)
        ax.fill_between(ends, [ends[0]] * 2, ends, color=RED, alpha=0.08, lw=0, zorder=0)
        ax.text(0.97, 0.04, "below the truth", ha="right", fontsize=8, color=RED, transform=ax.transAxes)
        ax.set_xlim(ends)
        ax.set_ylim(ends)
    _label(ax, "measured gap (nats per bin)", "reported gap (nats per bin)")
    return ax


def plot_report_overview(report, *, axes=None):
    """Draw a fit in three panels: outcomes, pseudo-R² of the training rows, gaps.

    Parameters
    ----------
    report : glmfit.FitReport
        Of a fitted model.
    axes : sequence of three matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    numpy.ndarray of matplotlib.axes.Axes
        (3,): neurons per status; histogram of pseudo-R² with its median; histogram of gaps, bounds and estimates
        apart, with the target (a gap of 0 is not drawn).
    """
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.subplots(1, 3, figsize=(7, 2.4), layout="constrained")[1]
        for ax in axes:
            _dress(ax)
    status_ax, score_ax, gap_ax = axes
    outcomes = [s for s in Status if np.any(report.status == s)]
    counts = [int(np.sum(report.status == s)) for s in outcomes]
    bars = status_ax.barh(
        [s.label for s in outcomes], counts, color=[RED if s.is_failure else BLUE for s in outcomes], height=0.6
    )
    status_ax.bar_label(bars, fontsize=8, padding=2)
    status_ax.invert_yaxis()
    status_ax.margins(x=0.15, y=0.3)
    _label(status_ax, "neurons")
    plot_scores(report.pseudo_r2, xlabel="pseudo-$R^2$ (training)", ax=score_ax)
    positive = report.gap > 0
    if positive.any():
        low, high = np.log10(report.gap[positive].min()), np.log10(report.gap[positive].max())
        edges = np.logspace(np.floor(low), max(np.ceil(high), np.floor(low) + 1), 25)
        kinds = {"bound": report.gap_is_bound & positive, "estimate": ~report.gap_is_bound & positive}
        kinds = {name: where for name, where in kinds.items() if where.any()}
        gap_ax.hist(
            [report.gap[where] for where in kinds.values()],
            edges,
            stacked=True,
            color=[{"bound": BLUE, "estimate": ORANGE}[name] for name in kinds],
            label=list(kinds),
        )
        gap_ax.set_xscale("log")
        _target(gap_ax.axvline, gap_ax.axvspan, report.target[positive])
        _legend(gap_ax)
    _label(gap_ax, "gap (nats per bin)", "neurons")
    return np.asarray([status_ax, score_ax, gap_ax], object)


# ------------------------------------------------------------------------------------------- population


def plot_coupling(coupling, *, limit=None, label="coupling", colorbar=True, ax=None):
    """Draw a coupling matrix: row the source, column the target, red excites, blue inhibits.

    Parameters
    ----------
    coupling : array-like of shape (source neuron, target neuron)
        Weights, oriented as ``coef_``; NaN (a masked diagonal, for example) is left grey.
    limit : float, optional
        Weight at which the colours saturate; the 99th percentile of the absolute non-zero weights when left out.
    label : str
        Name, and unit, of the weights, beside the colour bar.
    colorbar : bool or list of matplotlib.axes.Axes
        Whether to draw one, or the axes that share it.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
    """
    coupling = np.asarray(coupling)
    size = np.abs(coupling[np.isfinite(coupling) & (coupling != 0)])
    limit = (float(np.quantile(size, 0.99)) if size.size else 1.0) if limit is None else limit
    ax = _axes(ax, (3.6, 3.0))
    image = ax.imshow(coupling, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    ax.set_facecolor("#E6E6E6")
    ax.spines[["top", "right"]].set_visible(True)
    for spine in ax.spines.values():
        spine.set(color=GREY, linewidth=0.6)
    _label(ax, "target neuron", "source neuron")
    if colorbar:
        beside = ax if colorbar is True else colorbar
        bar = ax.figure.colorbar(image, ax=beside, shrink=0.8, aspect=18, extend="both")
        bar.ax.tick_params(labelsize=8, length=2)
        bar.set_label(label, fontsize=9)
        bar.outline.set_visible(False)
    return ax


def plot_recovery(true, estimated, *, xlabel="true coupling", ylabel="estimated coupling", ax=None):
    """Draw estimated against true values, with the diagonal.

    Parameters
    ----------
    true, estimated : array-like of one shape
        Pairs with a NaN are left out.
    xlabel, ylabel : str
        What they are.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
    """
    true, estimated = np.ravel(true), np.ravel(estimated)
    ok = np.isfinite(true) & np.isfinite(estimated)
    true, estimated = true[ok], estimated[ok]
    ax = _axes(ax, (3.0, 3.0))
    low, high = min(true.min(), estimated.min()), max(true.max(), estimated.max())
    ax.plot([low, high], [low, high], color=GREY, lw=0.8, zorder=0)
    ax.plot(true, estimated, ".", ms=3, mec="none", color=BLUE, alpha=0.4, rasterized=True)
    _label(ax, xlabel, ylabel)
    return ax


def plot_scores(scores, *, xlabel="pseudo-$R^2$", ax=None):
    """Draw a histogram of one score per neuron, with its median.

    Parameters
    ----------
    scores : array-like of shape (neuron,)
        At most 1; NaN (a neuron without spikes) is left out.
    xlabel : str
        Which score, on which rows.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
    """
    scores = np.asarray(scores)
    scores = scores[np.isfinite(scores)]
    ax = _axes(ax, (3.0, 2.4))
    ax.hist(scores, bins=min(25, max(5, len(scores) // 4)), color=BLUE, alpha=0.75)
    if len(scores):
        median = float(np.median(scores))
        ax.axvline(median, color=BLACK, lw=1, ls="--", label=f"median {median:.3f}")
        _legend(ax)
    ax.yaxis.get_major_locator().set_params(integer=True)
    _label(ax, xlabel, "neurons")
    return ax


# ------------------------------------------------------------------------------------- cross-validation


def plot_cv_curves(model, neurons=None, *, ax=None):
    """Draw the held-out score of neurons against the strength, with standard errors over folds.

    Parameters
    ----------
    model : PopulationGLMCV
        Fitted.
    neurons : int or sequence of int, optional
        Which neurons to draw; all of up to eight, else the first eight, when left out. Scores are drawn less each
        neuron's best, so that neurons of any rate fit one panel.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
        A dot marks the best strength, a circle the one-standard-error rule's.

    Raises
    ------
    ValueError
        If a neuron does not exist.
    """
    n_all = model.cv_scores_.shape[2]
    neurons = np.arange(min(n_all, 8)) if neurons is None else np.atleast_1d(neurons)
    if neurons.dtype.kind not in "iu" or neurons.min(initial=0) < 0 or neurons.max(initial=0) >= n_all:
        raise ValueError(f"neurons is {neurons.tolist()}; the model has neurons 0 to {n_all - 1}.")
    ax = _axes(ax)
    colours = (BLUE, RED, GREEN, ORANGE, PURPLE, BLACK, GREY, LIGHT)
    place = _log_positions(model.strengths_)
    for k, n in enumerate(neurons):
        scores = model.cv_scores_[:, :, n]
        scores = scores[:, ~np.isnan(scores).any(axis=0)]
        if not scores.size:
            continue  # a neuron that cannot be scored
        mean = scores.mean(axis=1) - scores.mean(axis=1).max()
        error = scores.std(axis=1, ddof=1) / np.sqrt(scores.shape[1]) if scores.shape[1] > 1 else np.zeros(len(mean))
        colour = colours[k % len(colours)]
        shift = 0.02 * (k - (len(neurons) - 1) / 2) * (place[-1] - place[0]) / max(len(place) - 1, 1)
        ax.errorbar(place + shift, mean, error, color=colour, lw=1, elinewidth=0.7, label=model.report_.neuron[n])
        for chosen, face in ((model.one_se_strength_[n], "white"), (model.best_strength_[n], colour)):
            at = int(np.searchsorted(model.strengths_, chosen))
            ax.plot(place[at] + shift, mean[at], "o", ms=5, mfc=face, mec=colour)
    _strength_ticks(ax, place, model.strengths_)
    _label(
        ax,
        _strength_words(model),
        f"held-out {'D2' if model.scoring == 'D2' else 'log-likelihood per bin'}\nless the best",
    )
    if ax.get_legend_handles_labels()[0]:
        _legend(ax, title="neuron", title_fontsize=8, ncols=2 if len(neurons) > 4 else 1)
    return ax


def plot_strengths(model, *, ax=None):
    """Draw the held-out score of every neuron and strength as a map, with the strengths chosen.

    Parameters
    ----------
    model : PopulationGLMCV
        Fitted.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
        Neurons from left to right, in order of the strength chosen; colour is the mean score over folds less the
        neuron's best, over the spread of its scores; a line marks the strength chosen.
    """
    usable = ~np.isnan(model.cv_scores_).any(axis=0, keepdims=True)
    count = usable.sum(axis=1)
    with np.errstate(invalid="ignore"):
        mean = np.sum(np.where(usable, model.cv_scores_, 0), axis=1) / np.where(count > 0, count, np.nan)
    best, worst = mean.max(axis=0), mean.min(axis=0)
    relative = (mean - best) / np.where(best > worst, best - worst, 1.0)
    order = np.argsort(model.strength_, kind="stable")
    ax = _axes(ax)
    image = ax.imshow(relative[:, order], aspect="auto", origin="lower", cmap="viridis", interpolation="nearest")
    chosen = np.searchsorted(model.strengths_, model.strength_[order])
    ax.step(np.arange(len(order)), chosen, where="mid", color=RED, lw=1.2)
    ax.set_yticks(range(len(model.strengths_)), [f"{s:.2g}" for s in model.strengths_])
    bar = ax.figure.colorbar(image, ax=ax, ticks=[-1, 0])
    bar.ax.set_yticklabels(["worst", "best"], fontsize=8)
    _label(ax, "neuron, by strength chosen", _strength_words(model))
    return ax


def _log_positions(strengths) -> np.ndarray:
    """Logarithms of the strengths, a strength of 0 one decade below the others."""
    positive = strengths[strengths > 0]
    return np.log10(np.where(strengths > 0, strengths, positive.min() / 10))


def _strength_words(model) -> str:
    """Name the strength by its penalty."""
    return {"Lasso": "lasso strength", "ElasticNet": "elastic-net strength"}.get(model.regularizer, "ridge strength")


def _strength_ticks(ax, place, strengths) -> None:
    some = np.unique(np.linspace(0, len(strengths) - 1, min(len(strengths), 8)).astype(int))
    ax.set_xticks(place[some], [f"{strengths[i]:.2g}" for i in some])
