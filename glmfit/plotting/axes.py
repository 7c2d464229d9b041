"""Figures, axes and labels, and checks of the numbers and times that drawings are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..checks import check_installed, check_positive, shorten
from ..data.arrays import numbers
from .colors import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OPTIONS = {
    "bin_s": "float, optional\n    Width of a bin, s; default the median difference of `time_s`.",
    "limits_s": "tuple of float, optional\n    First and last time to draw, s.",
    "colorbar": "bool or list of matplotlib.axes.Axes\n    Whether to draw one, or the axes that share it.",
    "color": "color\n    Of lines and bands, or of the model.",
    "xlabel": "str\n    Name, and unit, of the x-axis.",
    "ylabel": "str\n    Name, and unit, of the y-axis.",
    "ax": "matplotlib.axes.Axes, optional\n    Where to draw.",
}
_UNEVEN, _MISSING = 0.25, 50  # of a step; steps for every number given, at most
_OF_EVERY_DRAWING = """

Returns
-------
matplotlib.axes.Axes

Raises
------
ValueError, TypeError, NotFittedError
    For values of another range, kind or shape than stated here, if there is nothing to draw, and for a model before its
    fit; the message states what is allowed.
"""
Drawing = TypeVar("Drawing", bound=Callable)


def on_axes(draw: Drawing) -> Drawing:
    """Add to a docstring the parts that many drawings share: options, returned values and errors."""
    draw.__doc__ = inspect.cleandoc(draw.__doc__ or "")
    for name, option in _OPTIONS.items():
        if name in inspect.signature(draw).parameters and f"\n{name} : " not in draw.__doc__:
            draw.__doc__ += f"\n{name} : {option}"
    draw.__doc__ += _OF_EVERY_DRAWING
    return draw


def new_axes(
    width_ratios: Sequence[float] = (1,),
    height_ratios: Sequence[float] = (1,),
    size: tuple[float, float] = (6.5, 3.0),
    sharex: bool = False,
) -> np.ndarray:
    """Make a figure that belongs to no window, and its axes; save it with ``axes[0, 0].figure.savefig(path)``.

    Parameters
    ----------
    width_ratios, height_ratios : sequence of float
        Relative widths of the columns and heights of the rows.
    size, sharex : tuple of float, bool
        Width and height in inches; whether the axes of a column share their x-axis.

    Returns
    -------
    numpy.ndarray of matplotlib.axes.Axes
        (row, column).
    """
    check_installed(["matplotlib"], "plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=200, layout="constrained")
    ratios, shared = {"width_ratios": width_ratios, "height_ratios": height_ratios}, "col" if sharex else False
    axes = figure.subplots(len(height_ratios), len(width_ratios), squeeze=False, sharex=shared, gridspec_kw=ratios)
    for ax in axes.flat:
        dress(ax)
    return axes


def label_panels(axes: Sequence[Axes] | np.ndarray, titles: Iterable[str] | None = None) -> None:
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


def dress(ax):
    """Style axes: two spines, ticks outside, small type."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(direction="out", labelsize=8, length=3)


def axes_or_new(ax, size=(4.5, 3.0)):
    """Return the axes given, or new ones that a notebook shows; TypeError for anything else."""
    return panels_or_new(None, 1, 1, size)[0, 0] if ax is None else _check_axes("ax", ax)


def panels_or_new(given, n_rows: int, n_columns: int, size, needs: str = "") -> np.ndarray:
    """Return axes, (row, column): those given, in reading order, or new ones that a notebook shows.

    The error for another number of axes says what is needed.
    """
    if given is None:
        check_installed(["matplotlib"], "plot")
        import matplotlib.pyplot as plt

        axes = plt.subplots(n_rows, n_columns, figsize=size, layout="constrained", squeeze=False)[1]
        for ax in axes.flat:
            dress(ax)
        return axes
    axes = np.ravel(np.asarray(given, object))
    if len(axes) != n_rows * n_columns:
        raise ValueError(f"axes has {len(axes)} entries; {needs}.")
    for k, ax in enumerate(axes):
        _check_axes(f"axes[{k}]", ax)
    return axes.reshape(n_rows, n_columns)


def _check_axes(name, ax):
    """Return the axes; TypeError if they are none, or an array of them."""
    check_installed(["matplotlib"], "plot")
    from matplotlib.axes import Axes

    if isinstance(ax, Axes):
        return ax
    what = f"an array of shape {ax.shape}" if isinstance(ax, np.ndarray) else f"a {type(ax).__name__}"
    raise TypeError(f"{name} is {what}; it must be one matplotlib Axes, such as an entry of what plt.subplots returns.")


def whole_ticks(axis):
    """Put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    # Two ticks, the default minimum, would be at fractions if the axis is that of a single neuron.
    axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def say(ax, words):
    """Write words instead of a drawing."""
    ax.text(0.5, 0.5, words, ha="center", va="center", fontsize=8, color=GREY, transform=ax.transAxes)


def name_axes(ax, x=None, y=None):
    if x is not None:
        ax.set_xlabel(x, fontsize=9)
    if y is not None:
        ax.set_ylabel(y, fontsize=9)


def legend(ax, **kwargs):
    ax.legend(**{"frameon": False, "fontsize": 8, "handlelength": 1.6, "labelspacing": 0.25, **kwargs})


def color_bar(image, label, given, **kwargs):
    """Draw a color bar if requested, for the image's axes (True) or for those given."""
    if not given:
        return
    ax = image.axes if given is True else given
    bar = image.figure.colorbar(image, ax=ax, shrink=0.8, aspect=18, **kwargs)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.set_label(label, fontsize=9)
    bar.outline.set_visible(False)


def bars(ax, names, values, height, color, fmt="%g"):
    """Draw a bar per name, its value written at its end."""
    ax.bar_label(ax.barh(names, values, height, color=color), fmt=fmt, fontsize=8, padding=2)


def time_axis(ax, limits_s, y):
    if limits_s is not None:
        ax.set_xlim(limits_s)
    ax.margins(x=0)
    name_axes(ax, "time (s)", y)


# -- arguments of drawings


def read_numbers(name, values, *axes) -> np.ndarray:
    """Return values as an array of floats with these axes; TypeError for no array, ValueError for other axes."""
    return numbers(values, name, f"an array of numbers, ({', '.join(axes)}{',' if len(axes) == 1 else ''})", *axes)


def read_like(name, values, like, shape) -> np.ndarray:
    """Return values as an array of floats; ValueError unless it has the shape of what it must be like."""
    return numbers(values, name, f"numbers of the shape of {like}, {shape}", shape=shape)


def read_pair(name, values, needs) -> tuple:
    """Return two values; ValueError unless there are two."""
    try:
        first, second = values
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {shorten(values)}; it must be a tuple of two: {needs}.") from None
    return first, second


def read_steps(name, values) -> tuple[np.ndarray, float]:
    """Return numbers that increase by whole steps, and the step; ValueError for others."""
    values = read_numbers(name, values, name)
    step = float(np.diff(values).min(initial=np.inf)) if len(values) > 1 else 1.0
    places = (values - values[0]) / step if len(values) and step > 0 else np.array([np.nan])
    uneven = np.abs(places - np.round(places)).max() if np.isfinite(places).all() else np.inf
    if uneven > _UNEVEN or (len(places) > 1 and places[-1] > _MISSING * len(places)):
        raise ValueError(
            f"{name} is {shorten(values)}; it must be numbers that increase by the same step, some of which may be "
            "missing, and at least one."
        )
    return values, step


def read_indices(name, values, n: int) -> np.ndarray:
    """Return whole numbers from 0 to n - 1, all of them if None; ValueError for others."""
    at = np.arange(n) if values is None else np.asarray(values)
    if at.ndim != 1 or at.dtype.kind not in "iu" or not len(at) or at.min() < 0 or at.max() >= n:
        raise ValueError(f"{name} is {shorten(values)}; it must be a list of whole numbers from 0 to {n - 1}.")
    return at


def read_bins(time_s, bin_s) -> tuple[np.ndarray, float]:
    """Return the centres of bins, which must increase, and their width, s: the median difference if it is None."""
    time = read_numbers("time_s", time_s, "time")
    if not len(time):
        raise ValueError("time_s has no bins; there is nothing to draw.")
    backwards = np.flatnonzero(~(np.diff(time) > 0))  # also where one is NaN
    if len(backwards):
        first, second = time[backwards[0]], time[backwards[0] + 1]
        raise ValueError(f"time_s must increase, but {second:g} s follows {first:g} s; sort it, and what goes with it.")
    if bin_s is None:
        if len(time) < 2:
            raise ValueError(f"time_s has {len(time)} bin(s), which do not tell their width; give bin_s.")
        return time, float(np.median(np.diff(time)))
    check_positive("bin_s", bin_s)
    return time, bin_s


def check_limits(limits_s, time) -> np.ndarray:
    """Return which times are within the limits, all if these are None; ValueError if there are none within."""
    if limits_s is None:
        return np.ones(len(time), bool)
    limits = read_numbers("limits_s", limits_s, "2")
    if len(limits) != 2 or not limits[0] < limits[1]:
        raise ValueError(f"limits_s is {limits_s!r}; it must be a first and a later last time, s.")
    seen = (time >= limits[0]) & (time <= limits[1])
    if not seen.any():
        span = f"times lie from {np.nanmin(time):g} to {np.nanmax(time):g} s" if len(time) else "there are no times"
        raise ValueError(f"limits_s is {limits_s!r}, where there is nothing to draw: {span}.")
    return seen
