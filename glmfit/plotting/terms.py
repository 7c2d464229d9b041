"""Terms of additive models: tuning curves, maps and filters with their intervals, next to counted rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..estimators import PopulationGAM, TermCurve
from ..estimators.gam.terms import read_neurons
from ..estimators.model import check_is_fitted
from .axes import color_bar, legend, name_axes, panels_or_new, say
from .colors import BLACK, BLUE, LIGHT
from .rates import plot_tuning
from .term_data import COUNTS, FINER, LINES, TermData, around, inputs_to_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..numerics import DataLike, Seed

_UNSEEN = "#D9D9D9"  # places that the animal never visited
_WIDTH, _HEIGHT = 2.5, 2.2  # of a panel, inches
_ENTRY = 1.25  # of an entry of the legend
_SMALL = 0.1  # change of a predictor below which a filter looks flat


def plot_terms(
    model: PopulationGAM,
    X: DataLike | None = None,
    y: DataLike | None = None,
    *,
    neuron: int | str | Sequence[int | str] = 0,
    terms: str | Sequence[str] | None = None,
    covariates: Mapping[str, ArrayLike | Sequence[ArrayLike]] | None = None,
    bin_s: float | None = None,
    units: Mapping[str, str] | None = None,
    level: float = 0.95,
    n_bins: int = 20,
    min_bins: int = 5,
    random_state: Seed = None,
    axes: Sequence[Axes] | np.ndarray | None = None,
) -> np.ndarray:
    """Draw the terms of additive models, a row of panels for each neuron, with counted rates.

    Curves are rates with pointwise (dark) and simultaneous (light) intervals. Maps are images of rates; places that the
    animal never visited are grey. Filters and coefficients are the changes of the linear predictor by an event, or by
    one unit of a feature. Dots with bars, and a second image for each map, are counted rates, by occupancy.

    Parameters
    ----------
    model : PopulationGAM
        Fitted.
    X : array-like of shape (time, feature), optional
        Features. With them rates are averaged over the values of the other terms in these rows, so that they can be
        compared with counted rates; without them, all other terms are at their mean.
    y : array-like of shape (time,) or (time, neuron), optional
        Responses, of all neurons of the model.
    neuron : int, str or sequence of these
        Neurons to draw, by number or name; default the first.
    terms : str or sequence of str, optional
        Terms to draw, all by default.
    covariates : dict of str to array-like of shape (time,), or for a map a tuple of two, optional
        For terms with counted rates to draw: the values from which the features were made. Without `y` they mark the
        places that the animal never visited.
    bin_s : float, optional
        Width of a time bin, s, for rates in spikes/s; without it they are per bin.
    units : dict of str to str, optional
        Unit of inputs, by their name or that of the term, such as ``{"x": "cm"}``.
    level : float
        Coverage of the intervals.
    n_bins, min_bins : int
        Number of intervals of each input for counted rates, and number of time bins below which an interval is not
        drawn. (Maps need a single one.)
    random_state : optional
        Seed of the simultaneous intervals, as in :meth:`glmfit.PopulationGAM.term`.
    axes : sequence of matplotlib.axes.Axes, optional
        Where to draw: one for each panel of each neuron, row by row; a map with counted rates takes two.

    Returns
    -------
    numpy.ndarray of matplotlib.axes.Axes
        (neuron, panel).

    Raises
    ------
    ValueError, TypeError, NotFittedError
        For unknown terms and neurons, data of another shape, another number of axes, another kind of model, or a model
        before its fit.
    """
    if not isinstance(model, PopulationGAM):
        raise TypeError(f"model is a {type(model).__name__}; it must be a fitted glmfit.PopulationGAM.")
    check_is_fitted(model)
    which = read_neurons(neuron, list(model.report_.neuron))
    data = TermData(model, X, y, covariates, bin_s, units, n_bins, min_bins)
    panels = [panel for name in _read_terms(model, terms) for panel in data.panels(name)]
    n_axes, size = len(which) * len(panels), (_WIDTH * len(panels), _HEIGHT * len(which))
    needs = f"{len(which)} neuron(s) with {len(panels)} panels each need {n_axes}"
    grid = panels_or_new(axes, len(which), len(panels), size, needs)
    for row, n in zip(grid, which, strict=True):
        drawn: dict[str, Any] = {}
        for ax, (kind, name) in zip(row, panels, strict=True):
            title = name if kind != "raw" else "counted"
            if len(model.report_.neuron) > 1 and ax is row[0]:
                title = f"{model.report_.neuron[n]}: {title}"
            ax.set_title(title, loc="left", fontsize=9)
            if kind == "raw":
                _draw_raw(ax, data, name, n, drawn[name])
                continue
            options = {"axes": data.grid(name), "neuron": n, "level": level, "random_state": random_state}
            bands = {"simultaneous": kind not in ("map", "filter map", "many"), "with_mean": kind in ("curve", "map")}
            curve = model.term(name, **options, **bands)
            drawn[name] = _DRAW[kind](ax, data, curve, n) if np.isfinite(curve.curve).any() else say(ax, "no fit")
    _legend(grid, axes is None)
    return grid


# -- one panel each


def _draw_curve(ax, data: TermData, curve: TermCurve, n: int) -> None:
    x, rate = curve.axes[0], data.rates(curve, n)
    if curve.name in data.covariates and data.y is not None:
        _draw_points(ax, data, curve.name, n)
    _draw_line(ax, curve, x, rate)
    if data.model.observation_model in COUNTS:
        ax.set_ylim(bottom=0)
    ax.set_xlim(x[0], x[-1])
    _round_ticks(ax.xaxis, data.ends(curve.name)[0])
    name_axes(ax, data.label(curve.inputs[0]), data.rate_label)


def _draw_line(ax, curve: TermCurve, x: np.ndarray, drawn: dict[str, np.ndarray]) -> None:
    """Draw a curve over its simultaneous and its pointwise interval."""
    low, high = drawn["low_simultaneous"], drawn["high_simultaneous"]
    ax.fill_between(x, low, high, color=BLUE, alpha=0.15, lw=0, label=_band(curve), zorder=1)
    ax.fill_between(x, drawn["low"], drawn["high"], color=BLUE, alpha=0.3, lw=0, label="pointwise", zorder=1)
    ax.plot(x, drawn["curve"], color=BLUE, lw=1.6, label="model", zorder=2)


def _band(curve: TermCurve) -> str:
    return f"{100 * curve.level:g} % simultaneous"


def _draw_points(ax, data: TermData, name: str, n: int) -> None:
    """Draw counted rates as in `plot_tuning`."""
    (ends,), (values,) = data.ends(name), data.covariates[name]
    values = around(data.model.terms_[name].basis, ends, values)
    edges = np.linspace(*ends, data.n_bins + 1)
    inside = np.isfinite(values) & (values >= ends[0]) & (values <= ends[1]) & np.isfinite(data.y[:, n])
    occupancy = np.histogram(values[inside], edges)[0]
    if np.any(occupancy >= max(data.min_bins, 1)):
        scale = 1.0 if data.bin_s is None else data.bin_s
        plot_tuning(values, data.y[:, n], bin_s=scale, edges=edges, min_bins=data.min_bins, ax=ax)


def _draw_map(ax, data: TermData, curve: TermCurve, n: int):
    rate = data.rates(curve, n)["curve"]
    has_raw = ("raw", curve.name) in data.panels(curve.name)
    counted = data.counted(curve.name, n) if has_raw else np.array(np.nan)
    if curve.name in data.covariates:
        visited = np.isfinite(counted) if has_raw else data.occupancy(curve.name) > 0
        rate = np.where(np.kron(visited, np.ones((FINER, FINER), bool)), rate, np.nan)
    if data.model.observation_model in COUNTS:
        low, high = 0.0, np.nanmax(rate, initial=0.0)
        if np.isfinite(counted).any():
            high = max(high, np.nanquantile(counted, 0.98))
    else:
        low, high = np.nanmin(rate, initial=np.inf), np.nanmax(rate, initial=-np.inf)
    image = _image(ax, data, curve.name, curve.inputs, rate, cmap="viridis", vmin=low, vmax=high)
    color_bar(image, data.rate_label, not has_raw)
    return image


def _draw_raw(ax, data: TermData, name: str, n: int, fitted) -> None:
    """Draw a map of counted rates, in the colours of the fitted one, if there is one."""
    counted = data.counted(name, n)
    if np.isnan(counted).all():
        say(ax, "no bins")
        return
    limits = {"vmin": 0.0, "vmax": np.nanmax(counted)} if fitted is None else {"norm": fitted.norm}
    image = _image(ax, data, name, inputs_to_count(data.model, name), counted, cmap="viridis", **limits)
    color_bar(image, data.rate_label, True)
    ax.set_ylabel("")


def _draw_filter(ax, data: TermData, curve: TermCurve, n: int) -> None:
    longest = curve.axes[0][-1]
    scale, unit = (1e3, "ms") if longest < 2 else (1.0, "s")
    x = curve.axes[0] * scale
    ax.axhline(0, color=LIGHT, lw=0.8, zorder=0)
    _draw_line(ax, curve, x, {name: getattr(curve, name)[:, 0] for name in LINES})
    ax.set_xlim(0, x[-1])
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, -_SMALL), max(high, _SMALL))
    name_axes(ax, f"lag ({unit})", "change of predictor")


def _draw_filter_map(ax, data: TermData, curve: TermCurve, n: int):
    values = curve.curve[..., 0]
    limit = np.nanmax(np.abs(values)) or 1.0
    image = _image(ax, data, curve.name, curve.inputs, values, curve.axes, cmap="RdBu_r", vmin=-limit, vmax=limit)
    color_bar(image, "change of predictor", True)
    return image


def _draw_coefficients(ax, data: TermData, curve: TermCurve, n: int) -> None:
    at, names = np.arange(len(curve.axes[0])), curve.axes[0]
    ax.axhline(0, color=LIGHT, lw=0.8, zorder=0)
    wide = curve.low_simultaneous[:, 0], curve.high_simultaneous[:, 0]
    ax.vlines(at, *wide, color=BLUE, lw=1, alpha=0.4, label=_band(curve))
    ax.vlines(at, curve.low[:, 0], curve.high[:, 0], color=BLUE, lw=2.5, alpha=0.6, label="pointwise")
    ax.plot(at, curve.curve[:, 0], "o", ms=3.5, color=BLACK, label="coefficient")
    ax.set_xlim(-0.7, len(at) - 0.3)
    if len(at) <= 12:
        ax.set_xticks(at, names, rotation=45 if max(map(len, names)) > 3 else 0, ha="right", fontsize=7)
    name_axes(ax, "feature" if len(at) > 12 else None, "coefficient")


def _draw_many(ax, data: TermData, curve: TermCurve, n: int) -> None:
    say(ax, f"{len(curve.inputs)} inputs:\nmodel.term({curve.name!r})")


_DRAW = {
    "curve": _draw_curve, "map": _draw_map, "filter": _draw_filter, "filter map": _draw_filter_map,
    "coefficients": _draw_coefficients, "many": _draw_many,
}  # fmt: skip


# -- what panels need


def _legend(grid: np.ndarray, own: bool) -> None:
    """Write one legend: below the panels of our own figure, otherwise in the first panel that has labels."""
    said: dict[str, Any] = {}
    for ax in grid.flat:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            said.setdefault(label, (ax, handle))
    if not said:
        return
    handles, labels = [handle for _, handle in said.values()], list(said)
    if own:
        columns = max(1, min(len(labels), int(_WIDTH * grid.shape[1] / _ENTRY)))
        options = {"frameon": False, "fontsize": 8, "handlelength": 1.6, "ncols": columns}
        grid[0, 0].figure.legend(handles, labels, loc="outside lower center", **options)
    else:
        legend(next(iter(said.values()))[0], handles=handles, labels=labels)


def _image(ax, data: TermData, name: str, inputs, values, points=None, **options):
    """Draw a map, (x, y), over the ranges of its inputs, or around points of a grid; grey where it is NaN."""
    (left, right), (bottom, top) = data.ends(name) if points is None else map(_outer, points)
    units = [data.units.get(one) for one in inputs]
    alike = units[0] is not None and units[0] == units[1]
    aspect = "equal" if alike or getattr(data.model.terms_[name].basis, "isotropic", False) else "auto"
    extent = (left, right, bottom, top)
    image = ax.imshow(values.T, origin="lower", extent=extent, aspect=aspect, interpolation="nearest", **options)
    ax.set_facecolor(_UNSEEN)
    _round_ticks(ax.xaxis, (left, right))
    _round_ticks(ax.yaxis, (bottom, top))
    name_axes(ax, *("lag (s)" if one.startswith("lag_s") else data.label(one) for one in inputs))
    return image


def _round_ticks(axis, ends) -> None:
    """Put ticks at multiples of pi where one turn is 2 pi, and the ends are those of a turn."""
    turn = ends[1] - ends[0]
    if abs(turn - 2 * np.pi) < 1e-6 and min(abs(ends[0]), abs(ends[0] + np.pi)) < 1e-6:
        at = [ends[0], ends[0] + np.pi, ends[1]]
        axis.set_ticks(at, ["0", r"$\pi$", r"$2\pi$"] if abs(ends[0]) < 1e-6 else [r"$-\pi$", "0", r"$\pi$"])


def _outer(axis: np.ndarray) -> tuple[float, float]:
    """Return ends of cells around evenly spaced points."""
    half = (axis[-1] - axis[0]) / (2 * (len(axis) - 1))
    return axis[0] - half, axis[-1] + half


def _read_terms(model: PopulationGAM, given) -> list[str]:
    names = list(model.terms_) if given is None else [given] if isinstance(given, str) else list(given)
    if not names:
        raise ValueError("terms is empty; name at least one.")
    return [model._known(name) for name in names]
