"""Fitted filters and couplings, and their comparison with the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_at_least_zero, check_choice, check_positive
from ..data.arrays import numbers
from .axes import axes_or_new, color_bar, name_axes, on_axes, read_like, read_numbers, read_pair, whole_ticks
from .colors import BLUE, GREY, LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType

_UNIT_S = {"s": 1.0, "ms": 1e-3}
_ROUNDING = 1e-9  # of the largest variance


@on_axes
def plot_filter(
    basis: ArrayLike,
    weights: ArrayLike,
    lag_s: ArrayLike,
    *,
    unit: str = "ms",
    covariance: ArrayLike | None = None,
    interval: tuple[ArrayLike, ArrayLike] | None = None,
    refractory_s: float | None = None,
    label: str | None = None,
    color: ColorType = BLUE,
    xlabel: str = "lag",
    ylabel: str = "filter",
    ax: Axes | None = None,
) -> Axes:
    """Draw a filter, ``basis @ weights``, against its lag.

    Parameters
    ----------
    basis, lag_s : array-like of shape (lag, basis function) and (lag,)
        Values of the basis functions at every lag, s.
    weights : array-like of shape (basis function,) or (basis function, neuron)
        Their coefficients, a part of ``coef_``; one line per neuron.
    unit : {"ms", "s"}
        Unit of the lag axis, which is added to its name.
    covariance : array-like of shape (basis function, basis function), optional
        Covariance of the weights of one neuron; drawn as a band of two standard deviations.
    interval : tuple of two array-like of shape (lag,), optional
        Lower and upper end of the filter at every lag, drawn as a band: ``low`` and ``high`` of
        :func:`glmfit.inference.wald_table`, with the basis as its ``combinations``.
    refractory_s : float, optional
        Lags up to here, s, are shaded and called refractory.
    label : str, optional
        Name for the legend (drawn by the caller).
    """
    check_choice("unit", unit, _UNIT_S)
    lag = read_numbers("lag_s", lag_s, "lag") / _UNIT_S[unit]
    several = np.ndim(weights) == 2
    weights = read_numbers("weights", weights, "basis function", *(["neuron"] if several else []))
    basis = read_like("basis", basis, "lag_s and weights", (len(lag), len(weights)))
    if interval is not None:
        ends = read_pair("interval", interval, "lower and upper ends, (lag,) each")
        low, high = (read_like(f"interval[{k}]", end, "lag_s", lag.shape) for k, end in enumerate(ends))
    if covariance is not None:
        if several:
            raise ValueError(
                f"covariance is given with weights {weights.shape}; it belongs to the weights of one neuron."
            )
        covariance = read_like("covariance", covariance, "the weights of one neuron", (len(weights),) * 2)
        variance = np.einsum("li,ij,lj->l", basis, covariance, basis)
        if np.any(variance < -_ROUNDING * np.abs(variance).max(initial=0.0)):
            raise ValueError("covariance is not one: it makes the variance of the filter negative at some lag.")
    if refractory_s is not None:
        check_at_least_zero("refractory_s", refractory_s)
    ax = axes_or_new(ax)
    values = basis @ weights
    ax.axhline(0, color=LIGHT, lw=0.8, zorder=0)
    if refractory_s is not None:
        ax.axvspan(0, refractory_s / _UNIT_S[unit], color=LIGHT, alpha=0.45, lw=0, zorder=0)
    if covariance is not None:
        sd = np.sqrt(np.maximum(variance, 0.0))
        ax.fill_between(lag, values - 2 * sd, values + 2 * sd, color=color, alpha=0.2, lw=0)
    if interval is not None:
        ax.fill_between(lag, low, high, color=color, alpha=0.2, lw=0)
    lines = ax.plot(lag, values, color=color, lw=0.7 if several else 1.6)
    if label is not None:
        lines[0].set_label(label)
    name_axes(ax, f"{xlabel} ({unit})", ylabel)
    return ax


@on_axes
def plot_coupling(
    coupling: ArrayLike,
    *,
    names: Sequence[str] | None = None,
    limit: float | None = None,
    label: str = "coupling",
    colorbar: bool | list[Axes] = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw a coupling matrix: rows are sources, columns are targets, red excites, blue inhibits.

    Parameters
    ----------
    coupling : array-like of shape (source neuron, target neuron)
        Weights, oriented as ``coef_``; NaN (a masked diagonal, for example) is left grey.
    names : sequence of str, optional
        Names of the neurons, as tick labels of both axes; default numbers from 0.
    limit : float, optional
        Weight at which the colours saturate; default the 99th percentile of the absolute non-zero weights.
    label : str
        Name, and unit, of the weights, next to the color bar.
    """
    coupling = read_numbers("coupling", coupling, "source neuron", "target neuron")
    if names is not None and {len(names)} != set(coupling.shape):
        raise ValueError(
            f"names has {len(names)} entries; coupling has shape {coupling.shape}, and each neuron needs one."
        )
    if limit is not None:
        check_positive("limit", limit)
    size = np.abs(coupling[np.isfinite(coupling) & (coupling != 0)])
    limit = (float(np.quantile(size, 0.99)) if size.size else 1.0) if limit is None else limit
    ax = axes_or_new(ax, (3.6, 3.0))
    image = ax.imshow(coupling, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    ax.set_facecolor("#E6E6E6")
    ax.spines[["top", "right"]].set_visible(True)
    for spine in ax.spines.values():
        spine.set(color=GREY, linewidth=0.6)
    for axis in (ax.xaxis, ax.yaxis):
        if names is None:
            whole_ticks(axis)
        else:
            axis.set_ticks(range(len(names)), [str(name) for name in names])
    name_axes(ax, "target neuron", "source neuron")
    color_bar(image, label, colorbar, extend="both")
    return ax


@on_axes
def plot_recovery(
    true: ArrayLike,
    estimated: ArrayLike,
    *,
    xlabel: str = "true coupling",
    ylabel: str = "estimated coupling",
    ax: Axes | None = None,
) -> Axes:
    """Draw estimated against true values, with the diagonal.

    Parameters
    ----------
    true, estimated : array-like of one shape
        Pairs with a NaN are dropped.
    """
    true = numbers(true, "true", "an array of numbers")
    estimated = read_like("estimated", estimated, "true", true.shape)
    ok = np.isfinite(true) & np.isfinite(estimated)
    true, estimated = true[ok], estimated[ok]
    if not len(true):
        raise ValueError("true and estimated have no pair of finite numbers; there is nothing to compare.")
    ax = axes_or_new(ax, (3.0, 3.0))
    low, high = min(true.min(), estimated.min()), max(true.max(), estimated.max())
    ax.plot([low, high], [low, high], color=GREY, lw=0.8, zorder=0)
    ax.plot(true, estimated, ".", ms=3, mec="none", color=BLUE, alpha=0.4, rasterized=True)
    name_axes(ax, xlabel, ylabel)
    return ax
