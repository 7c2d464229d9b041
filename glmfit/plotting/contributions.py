"""Contributions of groups of features to held-out predictions: figures of `glmfit.inference.explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_choice, check_real
from .axes import axes_or_new, color_bar, legend, name_axes, on_axes, panels_or_new, say
from .colors import BLACK, BLUE, CYCLE, GREEN, GREY, LIGHT, ORANGE, PURPLE, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNITS = {"nats": "nats", "bits per spike": "bits per spike", "d2": "share of the deviance, $D^2$"}
_COLORS = {"whole": BLACK, "unique": BLUE, "maximal": ORANGE, "added": GREEN, "model": PURPLE}
_NAMED = 8  # neurons that points distinguish by colour; more are a map
_FAR = 4.0  # standard deviations beyond which an axis is logarithmic
_NAMES_ON_AXIS = 40  # neurons whose names fit below a map


@on_axes
def plot_contributions(
    explanation: Any,
    *,
    kind: str = "unique",
    unit: str = "nats",
    neurons: ArrayLike | None = None,
    style: str | None = None,
    level: float = 0.05,
    colorbar: bool | list[Axes] = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw the contribution of each group of features to the predictions of each neuron.

    Points: a point per neuron and group, with a bar of one standard error to each side. Map: a column per neuron, a row
    per group, red where the group helps and blue where it harms. With a null, points are filled, and squares of the map
    have a dot, if the q-value is at most ``level``. Contributions without a score are omitted, and grey on the map.

    Parameters
    ----------
    explanation : glmfit.inference.Explanation
        Result of :func:`glmfit.inference.explain`.
    kind : {"unique", "maximal", "added", "whole", "model"}
        Kind of the contributions, one of those in `explanation`.
    unit : {"nats", "bits per spike", "d2"}
        Sum over the held-out rows, divided by the number of spikes there, or as a share of the deviance.
    neurons : sequence of int or str, optional
        Neurons, by number or name; all by default.
    style : {"points", "map"}, optional
        Default: points for up to eight neurons.
    level : float
        False discovery rate, in (0, 1).
    """
    _check(explanation)
    check_choice("unit", unit, _UNITS)
    check_real("level", level, 1)
    each, some = _of_kind(explanation, kind), _neurons(explanation, neurons)
    style = ("points" if len(some) <= _NAMED else "map") if style is None else style
    check_choice("style", style, ("points", "map"))
    scale = _scale(explanation, unit)
    shown = np.ix_(list(each.values()), some)
    value, error = ((a * scale)[shown] for a in (explanation.contribution, explanation.standard_error))
    found = explanation.q_value[shown] <= level if explanation.null else None
    names = [str(explanation.neuron[n]) for n in some]
    size = (max(3.0, 1.2 + 0.9 * len(each)), 2.8) if style == "points" else (5.0, 1.2 + 0.3 * len(each))
    ax = axes_or_new(ax, size)
    label = f"{kind} contribution\n({_UNITS[unit]})"
    things = "model" if kind == "model" else "group of features"
    if style == "points":
        _points(ax, value, error, found, names, level)
        ax.set_xticks(range(len(each)), list(each))
        name_axes(ax, None if kind == "whole" else things, label)
    else:
        _map(ax, value, found, names, list(each), label, colorbar)
        name_axes(ax, "neuron" if found is None else f"neuron (dot: $q$ ≤ {level:g})", things)
    return ax


@on_axes
def plot_unique_against_maximal(
    explanation: Any, *, group: str | None = None, unit: str = "nats", level: float = 0.05, ax: Axes | None = None
) -> Axes:
    """Draw what no other group explains against what groups explain alone, a point per neuron and group.

    On the diagonal the other groups explain nothing that the group explains; on the horizontal line they explain all
    of it. Above the diagonal groups explain more together than each alone. Thin bars: one standard error to each
    side. With a null, points are filled if the q-value of the unique contribution is at most ``level``.

    Parameters
    ----------
    explanation : glmfit.inference.Explanation
        Result of :func:`glmfit.inference.explain`, with both kinds.
    group : str, optional
        Group to draw; all, in colours, by default.
    unit : {"nats", "bits per spike", "d2"}
        As in `plot_contributions`.
    level : float
        False discovery rate, in (0, 1).
    """
    _check(explanation)
    check_choice("unit", unit, _UNITS)
    check_real("level", level, 1)
    unique, maximal = _of_kind(explanation, "unique"), _of_kind(explanation, "maximal")
    pairs = {name: (maximal[name], c) for name, c in unique.items() if name in maximal}
    if group is not None:
        check_choice("group", group, pairs)
        pairs = {group: pairs[group]}
    ax = axes_or_new(ax, (3.4, 3.2))
    ax.axhline(0, color=LIGHT, lw=0.8, zorder=0)
    ax.axvline(0, color=LIGHT, lw=0.8, zorder=0)
    scale = _scale(explanation, unit)
    value, error = explanation.contribution * scale, explanation.standard_error * scale
    drawn = []
    for k, (name, (m, c)) in enumerate(pairs.items()):
        known = np.isfinite(value[m]) & np.isfinite(value[c])
        filled = explanation.q_value[c] <= level if explanation.null else np.ones(len(known), bool)
        color = CYCLE[k % len(CYCLE)]
        ax.errorbar(
            value[m, known], value[c, known], np.nan_to_num(error[c, known]), np.nan_to_num(error[m, known]),
            fmt="none", ecolor=color, elinewidth=0.5, alpha=0.4,
        )  # fmt: skip
        _dots(ax, value[m, known], value[c, known], 18, color, filled[known], name)
        drawn += [value[m, known], value[c, known]]
    drawn = np.concatenate(drawn)
    if len(drawn):
        ax.axline((0, 0), slope=1, color=GREY, lw=0.8, zorder=0)
        legend(ax, loc="upper left", handletextpad=0.2)
    else:
        say(ax, "no neuron can be scored")
    if explanation.null:
        _explain_filled(ax, level)
    name_axes(ax, f"maximal contribution ({_UNITS[unit]})", f"unique contribution\n({_UNITS[unit]})")
    return ax


@on_axes
def plot_null(
    explanation: Any, neuron: int | str, *, kind: str = "unique", group: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the statistics of the draws of a null, and that of the recording among them.

    Both are contributions at ``null_strength``. Draws are computed only as precisely as the p-value needs: those far
    below the recording roughly, and none once the p-value cannot fall below the level. ``level=None`` of `explain`
    computes all of them.

    Parameters
    ----------
    explanation : glmfit.inference.Explanation
        Result of :func:`glmfit.inference.explain`, with a null.
    neuron : int or str
        Neuron, by number or name.
    kind : {"unique", "maximal", "added", "whole", "model"}
        Kind of the contribution, one of those in `explanation`.
    group : str, optional
        Group or model; needed if there are several.
    """
    _check(explanation)
    if not explanation.null:
        raise ValueError(
            "the explanation has no null; pass null=, such as a CircularShift, to glmfit.inference.explain."
        )
    n, each = _neuron(explanation, neuron), _of_kind(explanation, kind)
    if group is None and len(each) == 1:
        (group,) = each
    check_choice("group", group, each)
    c = each[group]
    draws, observed = explanation.null_statistic[:, c, n], explanation.statistic[c, n]
    draws = draws[np.isfinite(draws)]
    ax = axes_or_new(ax, (3.6, 2.4))
    if len(draws):
        looked, possible = int(explanation.n_draws[c, n]), explanation.n_possible_draws
        words = f"{looked} draws" if looked == possible else f"{looked} of {possible} draws"
        ax.hist(draws, bins=min(30, max(5, len(draws) // 4)), color=GREY, alpha=0.6, label=words)
    else:
        say(ax, "no draw was computed" if np.isfinite(observed) else "cannot be scored")
    if np.isfinite(observed):
        label = f"recording, $p$ = {explanation.p_value[c, n]:.2g}"
        ax.axvline(observed, ymax=0.8, color=RED, lw=1.6, label=label)
    if ax.get_legend_handles_labels()[0]:
        ax.set_ylim(top=1.35 * ax.get_ylim()[1])  # room for the legend
        legend(ax, loc="upper right")
    what = _title(explanation.contributions[c])
    ax.set_title(f"neuron {explanation.neuron[n]}, {what}", loc="left", fontsize=9)
    name_axes(ax, "statistic (nats)", "draws")
    return ax


def plot_explained_neuron(
    explanation: Any, neuron: int | str, *, unit: str = "nats", axes: ArrayLike | None = None
) -> np.ndarray:
    """Draw all results of one neuron: contributions, folds, strengths, and the null.

    Parameters
    ----------
    explanation : glmfit.inference.Explanation
        Result of :func:`glmfit.inference.explain`.
    neuron : int or str
        Neuron, by number or name.
    unit : {"nats", "bits per spike", "d2"}
        Unit of the contributions, as in `plot_contributions`.
    axes : array-like of four matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    numpy.ndarray of matplotlib.axes.Axes
        (4,): contributions with standard errors, and the gain of each fold, with the same rows; strengths chosen for
        each model, a point per fold (0 is at the left end); statistics of the recording among those of the null, in
        standard deviations of the draws, with p-values.

    Raises
    ------
    ValueError, TypeError
        If `axes` are not four axes, or there is no such neuron, or `explanation` is something else.
    """
    _check(explanation)
    check_choice("unit", unit, _UNITS)
    n = _neuron(explanation, neuron)
    height = 1.8 + 0.36 * (len(explanation.contributions) + len(explanation.model) // 2)
    axes = panels_or_new(axes, 2, 2, (8.4, height), "it must be four, such as plt.subplots(2, 2)[1]").ravel()
    scale = _scale(explanation, unit)[:, n]
    rows = np.arange(len(explanation.contributions))
    labels = [_title(c) for c in explanation.contributions]
    colors = [_COLORS[c.kind] for c in explanation.contributions]
    value = explanation.contribution[:, n] * scale
    error = np.nan_to_num(explanation.standard_error[:, n] * scale)
    for row, color in zip(rows, colors, strict=True):
        axes[0].errorbar(value[row], row, xerr=error[row], fmt="o", ms=4, color=color, elinewidth=1)
        folds = explanation.by_fold[row, :, n]
        axes[1].plot(folds, np.full(len(folds), row), "o", ms=3.5, mew=0, color=color, alpha=0.6)
    for ax in axes[:2]:
        ax.axvline(0, color=GREY, lw=0.8, zorder=0)
    name_axes(axes[0], f"contribution ({_UNITS[unit]})")
    name_axes(axes[1], "gain of each fold (nats)")
    _strengths(axes[2], explanation, n)
    _null_of_all(axes[3], explanation, n, colors)
    for ax in (axes[0], axes[1], axes[3]):
        ax.set_yticks(rows, labels)
        ax.set_ylim(len(rows) - 0.5, -0.5)
    axes[0].set_title(f"neuron {explanation.neuron[n]}", loc="left", fontsize=9)
    return axes


# -- parts of the drawings


def _points(ax, value, error, found, names, level):
    ax.axhline(0, color=GREY, lw=0.8, zorder=0)
    n = len(names)
    told_apart = n <= _NAMED
    for k, name in enumerate(names):
        color = CYCLE[k % len(CYCLE)] if told_apart else BLUE
        at = np.arange(len(value)) + 0.6 * ((k + 0.5) / n - 0.5)
        known = np.isfinite(value[:, k])
        at, y, bar = at[known], value[known, k], np.nan_to_num(error[known, k])
        ax.errorbar(at, y, bar, fmt="none", ecolor=color, elinewidth=0.8)
        filled = np.ones(len(y), bool) if found is None else found[known, k]
        _dots(ax, at, y, 20, color, filled, name if told_apart else None)
    if told_apart:
        legend(ax, title="neuron", title_fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), handletextpad=0.2)
    if found is not None:
        _explain_filled(ax, level)
    ax.set_xlim(-0.5, len(value) - 0.5)


def _dots(ax, x, y, size, color, filled, name):
    """Draw dots, some of them filled, with an entry of the legend if they have a name."""
    ax.scatter(x, y, size, [color if one else "white" for one in filled], edgecolors=color, lw=0.9, zorder=3)
    if name is not None:
        ax.plot([], [], "o", ms=4, color=color, label=name)


def _explain_filled(ax, level):
    ax.set_title(f"filled: $q$ ≤ {level:g}", loc="right", fontsize=8, color=GREY)


def _map(ax, value, found, names, groups, label, colorbar):
    size = np.abs(value[np.isfinite(value)])
    limit = float(np.quantile(size, 0.98)) if np.any(size > 0) else 1.0
    limit = limit if limit > 0 else float(size.max())
    image = ax.imshow(value, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    ax.set_facecolor("#E6E6E6")
    if found is not None:
        row, column = np.nonzero(found)
        ax.plot(column, row, "o", ms=3.5, color=BLACK, mec="white", mew=0.5)
    ax.set_yticks(range(len(groups)), groups)
    step = -(-len(names) // _NAMES_ON_AXIS)  # between names that fit
    shown = range(0, len(names), step)
    rotation = 90 if max(map(len, names)) * len(names) > 60 else 0
    ax.set_xticks(shown, [names[k] for k in shown], fontsize=7, rotation=rotation)
    color_bar(image, label, colorbar, extend="both")


def _strengths(ax, found, n):
    """Strength of every model, a point per fold."""
    strength, tried = found.strength[:, :, n], np.asarray(found.strengths, float)
    positive = tried[tried > 0]
    least = positive.min() / 10 if len(positive) else 1.0  # a strength of 0 stands one decade below the others
    seen = [k for k in range(len(found.model)) if found.members[k].any()]  # the constant model has no strength
    for row, k in enumerate(seen):
        folds = strength[k][np.isfinite(strength[k])]
        at = row + 0.3 * ((np.arange(len(folds)) + 0.5) / max(len(folds), 1) - 0.5)
        ax.plot(np.where(folds > 0, folds, least), at, "o", ms=3.5, mew=0, color=BLUE, alpha=0.6)
    for value in tried:
        ax.axvline(value if value > 0 else least, color=LIGHT, lw=0.6, zorder=0)
    ax.set_xscale("log")
    if len(positive) < 2:  # a logarithmic axis about one number has no ticks
        ax.set_xticks([least if not len(positive) else positive[0]], [f"{tried[-1]:.2g}"])
    ax.set_yticks(range(len(seen)), [found.model[k] for k in seen])
    ax.set_ylim(len(seen) - 0.5, -0.5)
    name_axes(ax, "strength chosen in each fold")


def _null_of_all(ax, found, n, colors):
    """Statistics of the recording among the draws, a row per contribution, in standard deviations of the draws."""
    if not found.null:
        say(ax, "no null")
        name_axes(ax, "statistic minus mean of draws (SD)")
        return
    farthest = 0.0
    for row, color in enumerate(colors):
        draws, observed = found.null_statistic[:, row, n], found.statistic[row, n]
        draws = draws[np.isfinite(draws)]
        spread = draws.std() if len(draws) > 1 else 0.0
        if not spread > 0 or not np.isfinite(observed):
            continue
        ax.plot((draws - draws.mean()) / spread, np.full(len(draws), row), "|", ms=6, color=GREY, alpha=0.4)
        at = (observed - draws.mean()) / spread
        ax.plot(at, row, "D", ms=5, color=color)
        ax.annotate(
            f"$p$ = {found.p_value[row, n]:.2g}", (1.02, row), xycoords=("axes fraction", "data"), va="center",
            fontsize=7.5,
        )  # fmt: skip
        farthest = max(farthest, abs(at))
    if farthest > _FAR:
        ax.set_xscale("symlog", linthresh=_FAR)
        ax.set_xlim(right=1.6 * farthest)
        tens = 10.0 ** np.arange(1, np.log10(farthest) + 0.2)
        ax.set_xticks([-_FAR, 0, _FAR, *tens], [f"{x:g}" for x in (-_FAR, 0, _FAR, *tens)])
    name_axes(ax, "statistic minus mean of draws (SD)")


# -- arguments


def _check(found) -> None:
    if not hasattr(found, "by_fold"):
        raise TypeError(f"explanation is a {type(found).__name__}; it must be what glmfit.inference.explain returns.")


def _of_kind(found, kind: str) -> dict[str, int]:
    """Contributions of a kind: name and index."""
    kinds = list(dict.fromkeys(c.kind for c in found.contributions))
    check_choice("kind", kind, kinds, "These are the kinds that explain has computed.")
    return {c.name: k for k, c in enumerate(found.contributions) if c.kind == kind}


def _neuron(found, neuron) -> int:
    names = [str(name) for name in found.neuron]
    if isinstance(neuron, str) and neuron in names:
        return names.index(neuron)
    if isinstance(neuron, str) or isinstance(neuron, bool) or not isinstance(neuron, int | np.integer):
        raise ValueError(f"neuron is {neuron!r}; it must be one of {names}, or a number from 0 to {len(names) - 1}.")
    if not 0 <= neuron < len(names):
        raise ValueError(f"neuron is {neuron}; there are neurons 0 to {len(names) - 1}.")
    return int(neuron)


def _neurons(found, neurons) -> list[int]:
    if neurons is None:
        return list(range(len(found.neuron)))
    neurons = [neurons] if isinstance(neurons, str) or np.ndim(neurons) == 0 else list(neurons)
    if not neurons:
        raise ValueError("neurons is empty; name at least one.")
    return [_neuron(found, neuron) for neuron in neurons]


def _scale(found, unit: str) -> np.ndarray:
    """Return what nats are multiplied by, (contribution, neuron)."""
    if unit == "nats":
        return np.ones_like(found.contribution)
    bits = unit == "bits per spike"
    total = found._of_folds(found.n_spikes) * np.log(2) if bits else found._of_folds(found.loss[0] - found.saturated)
    return 1 / np.where(total > 0, total, np.nan)


def _title(contribution) -> str:
    return f"{contribution.kind}: {contribution.name}" if contribution.kind != "whole" else "all features"
