"""Filters against their lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from .._checks import check_choice
from ._axes import BLUE, LIGHT, axes_or_new, name_axes
from ._given import read_alike, read_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType

_UNIT_S = {"s": 1.0, "ms": 1e-3}


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
    interval : tuple of two array-like of shape (lag,), optional
        Lower and upper end of the filter at every lag, drawn as a band: ``low`` and ``high`` of
        :func:`glmfit.inference.wald_table`, with the basis as its ``combinations``.
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
    check_choice("unit", unit, _UNIT_S)
    basis = read_numbers("basis", basis, "lag", "basis function")
    lag = read_numbers("lag_s", lag_s, "lag") / _UNIT_S[unit]
    several = np.ndim(weights) == 2
    weights = read_numbers("weights", weights, "basis function", *(["neuron"] if several else []))
    if basis.shape != (len(lag), len(weights)):
        raise ValueError(
            f"basis has shape {basis.shape}; with {len(lag)} lags and {len(weights)} weights it must be "
            f"({len(lag)}, {len(weights)})."
        )
    if interval is not None:
        ends = read_alike("lag_s", lag.shape, dict(zip(("interval[0]", "interval[1]"), interval, strict=True)))
        low, high = ends.values()
    if covariance is not None:
        covariance, n = read_numbers("covariance", covariance, "basis function", "basis function"), len(weights)
        if several or covariance.shape != (n, n):
            raise ValueError(
                f"covariance has shape {covariance.shape} and weights {weights.shape}; it must be that of the weights "
                f"of one neuron, ({n}, {n})."
            )
    ax = axes_or_new(ax)
    values = basis @ weights
    ax.axhline(0, color=LIGHT, lw=0.8, zorder=0)
    if refractory_s is not None:
        ax.axvspan(0, refractory_s / _UNIT_S[unit], color=LIGHT, alpha=0.45, lw=0, zorder=0)
    if covariance is not None:
        sd = np.sqrt(np.einsum("li,ij,lj->l", basis, covariance, basis))
        ax.fill_between(lag, values - 2 * sd, values + 2 * sd, color=color, alpha=0.2, lw=0)
    if interval is not None:
        ax.fill_between(lag, low, high, color=color, alpha=0.2, lw=0)
    lines = ax.plot(lag, values, color=color, lw=0.7 if several else 1.6)
    if label is not None:
        lines[0].set_label(label)
    name_axes(ax, f"{xlabel} ({unit})", ylabel)
    return ax
