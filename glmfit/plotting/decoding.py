"""Decoded classes and positions against the true ones, and tables of responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_positive
from ..estimators import ResponseModel
from .axes import (
    axes_or_new,
    color_bar,
    legend,
    name_axes,
    on_axes,
    read_indices,
    read_like,
    read_numbers,
    read_pair,
    read_steps,
)
from .colors import LIGHT, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@on_axes
def plot_confusion(
    true: ArrayLike,
    decoded: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    names: Sequence[str] | None = None,
    numbers: bool | None = None,
    colorbar: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw a confusion matrix: the share of the rows of each class that was decoded as each.

    Rows are true classes, columns decoded ones, values percent of the row. A class that never occurred has a grey row.

    Parameters
    ----------
    true, decoded : array-like of shape (row,)
        Classes, of any kind that can be compared and sorted.
    labels : sequence, optional
        Classes in the order to draw them; default all that occur, sorted. Rows of other classes are an error.
    names : sequence of str, optional
        Names of the classes, as tick labels.
    numbers : bool, optional
        Whether to write the percentages into the cells; default up to twelve classes.
    """
    true, decoded = np.asarray(true), np.asarray(decoded)
    if true.ndim != 1 or true.shape != decoded.shape:
        raise ValueError(f"true has shape {true.shape} and decoded {decoded.shape}; they must be (row,), equally long.")
    labels = np.unique(np.concatenate([true, decoded])) if labels is None else np.asarray(labels)
    place = {label: k for k, label in enumerate(labels.tolist())}
    if len(place) < len(labels):
        raise ValueError(f"labels has {len(labels)} classes, but only {len(place)} that differ; give each once.")
    if names is not None and len(names) != len(labels):
        raise ValueError(f"names has {len(names)} names for {len(labels)} classes; give one for each.")
    unknown = sorted({str(c) for c in [*true.tolist(), *decoded.tolist()] if c not in place})
    if unknown:
        raise ValueError(f"labels lacks {', '.join(unknown[:5])}, which occurs in true or decoded.")
    n = len(labels)
    table = np.zeros((n, n))
    np.add.at(table, ([place[c] for c in true.tolist()], [place[c] for c in decoded.tolist()]), 1)
    rows = table.sum(axis=1, keepdims=True)
    percent = np.where(rows > 0, 100 * table / np.where(rows > 0, rows, 1), np.nan)
    ax = axes_or_new(ax, (3.2, 3.0))
    ax.set_facecolor(LIGHT)  # shows through where nothing is drawn
    image = ax.imshow(percent, cmap="Blues", vmin=0, vmax=100, interpolation="nearest")
    if n <= 12 if numbers is None else numbers:
        for i, j in np.argwhere(percent > 0.5):
            ink = "white" if percent[i, j] > 55 else "black"
            ax.text(j, i, f"{percent[i, j]:.0f}", ha="center", va="center", fontsize=7.5, color=ink)
    words = [str(c) for c in labels.tolist()] if names is None else list(names)
    some = range(n) if n <= 12 or names is not None else np.unique(np.linspace(0, n - 1, 7).astype(int))
    ax.set_xticks(list(some), [words[k] for k in some])
    ax.set_yticks(list(some), [words[k] for k in some])
    name_axes(ax, "decoded", "true")
    color_bar(image, "% of the true class", colorbar)
    return ax


@on_axes
def plot_decoded(
    time_s: ArrayLike,
    posterior: ArrayLike,
    position: ArrayLike,
    truth: ArrayLike | None = None,
    *,
    limit: float | None = None,
    breaks: Sequence[float] | np.ndarray = (),
    ylabel: str = "position",
    ax: Axes | None = None,
) -> Axes:
    """Draw a posterior over positions against time, with the true position.

    Parameters
    ----------
    time_s : array-like of shape (time,)
        Centres of the bins, s; evenly spaced.
    posterior : array-like of shape (time, position)
        Probabilities, as ``predict_proba`` returns them. Bins where they are NaN stay white.
    position : array-like of shape (position,)
        Centres of the places, increasing and evenly spaced; those that never occurred in training may be missing.
    truth : array-like of shape (time,), optional
        True position, in the unit of `position`.
    limit : float, optional
        Probability drawn as black; default the 99th percentile of the largest probability of every bin.
    breaks : sequence of float
        Times, s, at which time was cut, marked by lines with a name in the legend; the truth is not joined across them.
    """
    time, (position, step) = read_numbers("time_s", time_s, "time"), read_steps("position", position)
    if not np.isfinite(time).all() or not len(time):
        raise ValueError("time_s must be one or more finite numbers, s.")
    posterior = read_like("posterior", posterior, "time_s and position", (len(time), len(position)))
    values = None if truth is None else read_like("truth", truth, "time_s", time.shape)
    ax = axes_or_new(ax, (6.5, 2.6))
    place = np.round((position - position[0]) / step).astype(int)
    image = np.zeros((place[-1] + 1, len(time)))
    image[place] = posterior.T
    half_t = np.median(np.diff(time)) / 2 if len(time) > 1 else 0.5
    extent = (time[0] - half_t, time[-1] + half_t, position[0] - step / 2, position[-1] + step / 2)
    if limit is None:
        largest = posterior.max(axis=1)
        largest = largest[np.isfinite(largest)]
        limit = float(np.quantile(largest, 0.99)) if len(largest) else 1.0
    else:
        check_positive("limit", limit)
    shown = {"cmap": "Greys", "vmin": 0, "vmax": limit, "interpolation": "nearest"}
    ax.imshow(image, origin="lower", aspect="auto", extent=extent, **shown)
    named = {}  # the last line of each kind
    for cut in breaks:
        named["time cut"] = ax.axvline(cut, color="#56B4E9", lw=0.8)
    if values is not None:
        for part in np.split(np.arange(len(time)), np.searchsorted(time, np.sort(breaks))):
            (named["true"],) = ax.plot(time[part], values[part], color=RED, lw=1.3)
    if named:
        legend(ax, loc="upper right", handles=named.values(), labels=named, frameon=True, framealpha=0.8)
    ax.set(xlim=extent[:2], ylim=extent[2:])
    name_axes(ax, "time (s)", ylabel)
    return ax


@on_axes
def plot_responses(
    responses: ArrayLike | ResponseModel,
    *,
    rows: ArrayLike | None = None,
    columns: ArrayLike | None = None,
    limits: tuple[float, float] | None = None,
    label: str = "response",
    colorbar: bool | list[Axes] = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw a table of responses: a row per stimulus, a column per neuron; unknown pairs stay grey.

    Parameters
    ----------
    responses : array-like of shape (stimulus, neuron) or ResponseModel
        Responses, NaN where there is none; or a fitted model, whose completed table is drawn.
    rows, columns : array-like of int, optional
        Stimuli and neurons in the order to draw them (some may be omitted); default as they are.
    limits : tuple of float, optional
        Responses at the ends of the colours; default 0, or the least response if that is negative, and the 99th
        percentile.
    label : str
        Name, and unit, of the responses, next to the color bar.
    """
    responses = responses.predict() if isinstance(responses, ResponseModel) else responses
    table = read_numbers("responses", responses, "stimulus", "neuron")
    table = table[np.ix_(*(read_indices(*of) for of in zip(("rows", "columns"), (rows, columns), table.shape)))]
    limits = None if limits is None else read_pair("limits", limits, "the responses at the ends of the colours")
    known = table[np.isfinite(table)]
    if limits is None:
        limits = (min(0.0, float(known.min())), float(np.quantile(known, 0.99))) if known.size else (0.0, 1.0)
    ax = axes_or_new(ax, (4.0, 3.0))
    shown = {"cmap": "viridis", "vmin": limits[0], "vmax": limits[1], "interpolation": "none"}
    image = ax.imshow(table, aspect="auto", **shown)
    ax.set_facecolor("#D9D9D9")
    name_axes(ax, "neuron", "stimulus")
    color_bar(image, label, colorbar, pad=0.01, extend="max")
    return ax
