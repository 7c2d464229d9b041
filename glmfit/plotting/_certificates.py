"""How far a fit is from its optimum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from .._checks import check_choice
from .._status import Status
from ..estimators import ClassReport, FitReport
from ..estimators._model import Model
from ._axes import BLACK, BLUE, GREEN, GREY, RED, axes_or_new, legend, name_axes, on_axes, say, whole_ticks
from ._given import read_numbers, read_report

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@on_axes
def plot_convergence(
    report: FitReport | ClassReport | Model, *, against: str = "epoch", ax: Axes | None = None
) -> Axes:
    """Draw the distance from the optimum of every neuron over the fit: estimates as lines, bounds as triangles.

    Parameters
    ----------
    report : FitReport or ClassReport
        Of a fitted model, ``model.report_``, or the model; all classes are one fit, drawn as one neuron.
    against : {"epoch", "passes", "seconds"}
        What the x-axis counts: epochs; rows evaluated over rows of the data, certificates included; wall time with
        compilation.

    Returns
    -------
    matplotlib.axes.Axes
        Gap in nats per bin (of classes, per row), logarithmic. Thin: each neuron. Strong: median and worst over the
        neurons with spikes. Triangles: where the gap of a neuron was first proved, so that the truth is below them.
        Dashed: the target below which a neuron counts as converged (a band where neurons have different ones). A gap
        of 0 or one that could not be computed is not drawn.

    Raises
    ------
    ValueError, TypeError, NotFittedError
        If `against` is unknown, or `report` has no history of gaps, is something else, or a model before its fit.
    """
    report = read_report(report)
    history = report.history
    axis = {
        "epoch": ("epoch", "epoch"),
        "passes": ("row_evals", "passes over the data"),
        "seconds": ("seconds", "time (s)"),
    }
    check_choice("against", against, axis)
    if "gap" not in history:
        raise ValueError(
            f"this report ({report.solver_name}) has no history of gaps to draw. Fits by ConjugateGradients, SAGA, "
            "Newton and bound majorization have one; fits by sampling and models of responses have none."
        )
    one = ("all classes", "row") if hasattr(report, "class_totals") else ("a neuron", "bin")
    fitted = np.atleast_1d(report.status != Status.NO_SPIKES)
    ax = axes_or_new(ax)
    name_axes(ax, axis[against][1], f"gap  $F - F^*$  (nats per {one[1]})")
    if not fitted.any():
        say(ax, "no neuron with spikes")
        return ax
    x = np.asarray(history[axis[against][0]], float) / (report.n_rows if against == "passes" else 1)
    gap = np.where(history["gap"] > 0, history["gap"], np.nan)[:, fitted]
    proved = history["gap_is_bound"][:, fitted] & np.isfinite(gap)
    ax.plot(x, gap, color=BLUE, lw=0.4 if gap.shape[1] > 1 else 1.4, alpha=0.35 if gap.shape[1] > 1 else 1.0)
    drawn = np.isfinite(gap).any(axis=1)
    if gap.shape[1] > 1:
        ax.plot(x[drawn], np.nanmax(gap[drawn], axis=1), color=RED, lw=1.6, label="worst neuron")
        ax.plot(x[drawn], np.nanmedian(gap[drawn], axis=1), color=BLUE, lw=1.6, label="median")
    first = proved & (np.cumsum(proved, axis=0) == 1)
    check, neuron = np.nonzero(first)
    ax.plot(x[check], gap[check, neuron], "v", ms=3.5, mfc=BLACK, mec="none", alpha=0.7, label="proved bound", zorder=4)
    target_line(ax.axhline, ax.axhspan, np.atleast_1d(report.target)[fitted])
    ax.set_yscale("log")
    if against == "epoch":
        whole_ticks(ax.xaxis)
    handles, labels = ax.get_legend_handles_labels()
    thin = ax.plot([], [], color=BLUE, lw=0.6 if gap.shape[1] > 1 else 1.4, alpha=0.6)
    legend(ax, handles=[*thin, *handles], labels=[f"{one[0]} (estimate)", *labels], loc="upper right")
    return ax


def target_line(line, band, target):
    """Target below which neurons count as converged, as a line or a band."""
    target = target[np.isfinite(target) & (target > 0)]
    if not len(target):
        return
    low, high = target.min(), target.max()
    if high > 1.05 * low:
        band(low, high, color=GREEN, alpha=0.15, lw=0)
    line(np.median(target), color=GREEN, lw=1, ls="--", label="target")


@on_axes
def plot_bounds(report: FitReport | Model, optimum: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw the gap each neuron was reported to have against the gap it has, for a known optimum.

    Parameters
    ----------
    report : FitReport
        Of a fitted model, ``model.report_``, or the model.
    optimum : array-like of shape (neuron,)
        Lowest objective known, nats per bin, for example ``report_.objective`` of a fit with a far smaller ``tol``.

    Returns
    -------
    matplotlib.axes.Axes
        Both axes logarithmic, nats per bin. Bounds (filled) must lie on or above the diagonal; estimates (hollow)
        may lie anywhere. Neurons whose measured gap is not positive are not drawn.

    Raises
    ------
    ValueError, TypeError, NotFittedError
        If `optimum` does not have one number per neuron, or `report` is not of a population, something else, or a model
        before its fit.
    """
    report, optimum = read_report(report), read_numbers("optimum", optimum, "neuron")
    if not np.ndim(getattr(report, "gap", 0.0)):
        raise TypeError(f"report is a {type(report).__name__}; gaps are compared for the neurons of a PopulationGLM.")
    if len(optimum) != len(report.gap):
        raise ValueError(f"optimum has {len(optimum)} entries; the report has {len(report.gap)} neurons, one for each.")
    ax = axes_or_new(ax, (3.2, 3.0))
    measured = report.objective - optimum
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
    else:
        say(ax, "no gap above 0")
    name_axes(ax, "measured gap (nats per bin)", "reported gap (nats per bin)")
    return ax
