"""Distance of fits from their optimum, and overviews of reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_choice
from ..estimators import ClassReport, FitReport, ResponseReport
from ..estimators.model import Model, check_is_fitted
from ..status import Status
from .axes import axes_or_new, bars, legend, name_axes, on_axes, panels_or_new, read_numbers, say, whole_ticks
from .colors import BLACK, BLUE, CYCLE, GREEN, GREY, ORANGE, RED
from .scores import plot_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def read_report(report):
    """Return a report, or that of a fitted model; TypeError for anything else, NotFittedError before a fit."""
    if isinstance(report, Model):
        check_is_fitted(report)
        report = report.report_
    if not hasattr(report, "status"):
        raise TypeError(f"report is a {type(report).__name__}; pass model.report_, or the model, after its fit.")
    return report


@on_axes
def plot_convergence(
    report: FitReport | ClassReport | Model, *, against: str = "epoch", ax: Axes | None = None
) -> Axes:
    """Draw the distance from the optimum of every neuron over the fit: estimates as lines, bounds as triangles.

    The gap is in nats per bin (of classes, per row), logarithmic. Thin: each neuron. Strong: median and worst over the
    neurons with spikes. Triangles: the first proved gap of a neuron, so that the truth is below them. Dashed: the
    target below which a neuron counts as converged (a band if neurons have different ones). Gaps of 0, and those that
    could not be computed, are not drawn.

    Parameters
    ----------
    report : FitReport or ClassReport
        Report of a fitted model, ``model.report_``, or the model; all classes are one fit, drawn as one neuron.
    against : {"epoch", "passes", "seconds"}
        Unit of the x-axis: epochs; rows evaluated over rows of the data, certificates included; wall time with
        compilation.
    """
    report = read_report(report)
    history = report.history
    words = {"epoch": "epoch", "passes": "passes over the data", "seconds": "time (s)"}
    check_choice("against", against, words)
    if "gap" not in history:
        raise ValueError(
            f"this report ({report.solver_name}) has no history of gaps to draw. Fits by ConjugateGradients, SAGA, "
            "Newton and bound majorization have one; fits by sampling, of one class, to an interrupted "
            "cross-validation, and models of responses have none."
        )
    one = ("all classes", "row") if hasattr(report, "class_totals") else ("a neuron", "bin")
    fitted = np.atleast_1d(report.status != Status.NO_SPIKES)
    ax = axes_or_new(ax)
    name_axes(ax, words[against], f"gap  $F - F^*$  (nats per {one[1]})")
    if not fitted.any():
        say(ax, "no neuron with spikes")
        return ax
    seen = np.asarray(history["row_evals" if against == "passes" else against], float)
    x = seen / report.n_rows if against == "passes" else seen
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
    legend(ax, handles=[*thin, *handles], labels=[f"{one[0]} (estimate)", *labels], loc="best")
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
    """Draw the reported gap of each neuron against its measured gap, for a known optimum.

    Both axes are logarithmic, nats per bin. Bounds (filled) must lie on or above the diagonal; estimates (hollow) may
    lie anywhere. Neurons whose measured gap is not positive are not drawn.

    Parameters
    ----------
    report : FitReport
        As in `plot_convergence`.
    optimum : array-like of shape (neuron,)
        Lowest objective known, nats per bin, for example ``report_.objective`` of a fit with a far smaller ``tol``.
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
    ax.set(xscale="log", yscale="log")
    if drawn.any():
        both = np.concatenate([measured[drawn], report.gap[drawn]])
        ends = [both.min() / 2, both.max() * 2]
        ax.plot(ends, ends, color=GREY, lw=0.8, zorder=0)
        ax.fill_between(ends, [ends[0]] * 2, ends, color=RED, alpha=0.08, lw=0, zorder=0)
        ax.text(0.97, 0.04, "below the truth", ha="right", fontsize=8, color=RED, transform=ax.transAxes)
        ax.set(xlim=ends, ylim=ends)
    else:
        say(ax, "no gap above 0")
    name_axes(ax, "measured gap (nats per bin)", "reported gap (nats per bin)")
    return ax


def plot_report_overview(
    report: FitReport | ClassReport | ResponseReport | Model, *, axes: Sequence[Axes] | np.ndarray | None = None
) -> np.ndarray:
    """Draw a fit in three panels: outcome, explained deviance, distance from the optimum.

    Parameters
    ----------
    report : FitReport, ClassReport or ResponseReport
        Report of a fitted model, ``model.report_``, or the model.
    axes : sequence of three matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    numpy.ndarray of matplotlib.axes.Axes
        (3,). Of a population: neurons per status; histogram of the pseudo-R² of the training rows with its median;
        histogram of gaps, bounds and estimates separately, with the target (a gap of 0 is not drawn). Of classes: rows
        or counts of every class, commonest first; loss of class frequencies alone and objective of the model; gap over
        the fit, as in `plot_convergence`. Of responses: objective over the fit; D2 of held-out pairs against the ridge,
        a line per imputation weight, or D2 of the fitted pairs if nothing was chosen; a bound of how much the objective
        could fall by changing one side alone (nothing if nothing is proved).

    Raises
    ------
    ValueError, TypeError, NotFittedError
        If `axes` are not three axes, or `report` is something else, or a model before its fit.
    """
    report = read_report(report)
    axes = panels_or_new(axes, 1, 3, (7, 2.4), "it must be three, such as plt.subplots(1, 3)[1]")[0]
    kinds = {ClassReport: _classes, ResponseReport: _responses}
    next((draw for kind, draw in kinds.items() if isinstance(report, kind)), _population)(report, *axes)
    return axes


def _population(report, status_ax, score_ax, gap_ax):
    outcomes = [s for s in Status if np.any(report.status == s)]
    counts = [int(np.sum(report.status == s)) for s in outcomes]
    bars(status_ax, [s.label for s in outcomes], counts, 0.6, [RED if s.is_failure else BLUE for s in outcomes])
    status_ax.invert_yaxis()
    status_ax.margins(x=0.15, y=0.3)
    whole_ticks(status_ax.xaxis)
    name_axes(status_ax, "neurons")
    plot_scores(report.pseudo_r2, xlabel="pseudo-$R^2$ (training)", ax=score_ax)
    positive = report.gap > 0
    if positive.any():
        low, high = np.log10(report.gap[positive].min()), np.log10(report.gap[positive].max())
        edges = np.logspace(np.floor(low), max(np.ceil(high), np.floor(low) + 1), 25)
        kinds = (("bound", BLUE, report.gap_is_bound & positive), ("estimate", ORANGE, ~report.gap_is_bound & positive))
        names, colors, gaps = zip(*((name, color, report.gap[some]) for name, color, some in kinds if some.any()))
        gap_ax.hist(gaps, edges, stacked=True, color=colors, label=names)
        gap_ax.set_xscale("log")
        target_line(gap_ax.axvline, gap_ax.axvspan, report.target[positive])
        legend(gap_ax)
    else:
        silent = np.all(report.status == Status.NO_SPIKES)
        say(gap_ax, "no neuron with spikes" if silent else "no gap above 0")
    whole_ticks(gap_ax.yaxis)
    name_axes(gap_ax, "gap (nats per bin)", "neurons")


def _classes(report, total_ax, loss_ax, gap_ax):
    totals = np.sort(report.class_totals)[::-1]
    total_ax.stairs(totals, 0.5 + np.arange(len(totals) + 1), fill=True, color=BLUE, alpha=0.75)
    total_ax.set_xlim(0.5, len(totals) + 0.5)
    if totals[-1] > 0 and totals[0] > 30 * totals[-1]:
        total_ax.set_yscale("log")
    whole_ticks(total_ax.xaxis)
    name_axes(total_ax, "class, commonest first", "rows or counts")
    bars(loss_ax, ["frequencies", "model"], [report.null_objective, report.objective], 0.6, [GREY, BLUE], "%.3g")
    loss_ax.invert_yaxis()
    loss_ax.margins(x=0.2, y=0.3)
    loss_ax.set_title(f"{report.status.label}, pseudo-$R^2$ {report.pseudo_r2:.3f}", fontsize=8)
    name_axes(loss_ax, "objective (nats per row)")
    if np.any(np.asarray(report.history.get("gap", 0.0)) > 0):
        plot_convergence(report, ax=gap_ax)
    else:
        say(gap_ax, "gap not computed" if np.isnan(report.gap) else f"gap {report.gap:.1e}")


def _responses(report, objective_ax, score_ax, gap_ax):
    epoch, objective = (np.asarray(report.history.get(key, []), float) for key in ("epoch", "objective"))
    if len(epoch):
        objective_ax.plot(epoch, objective, ".-", color=BLUE, lw=1.2, ms=4)
        whole_ticks(objective_ax.xaxis)
    else:
        say(objective_ax, f"objective {report.objective:.6g}")
    objective_ax.set_title(report.status.label, fontsize=8)
    name_axes(objective_ax, "epoch", "objective (sum over pairs)")
    if report.tuning:
        weight, ridge, score = (
            np.asarray(report.tuning[key], float) for key in ("imputation_weight", "regularizer_strength", "score")
        )
        for k, w in enumerate(np.unique(weight)):
            own = np.flatnonzero(weight == w)
            own = own[np.argsort(ridge[own])]
            color = CYCLE[k % len(CYCLE)]
            score_ax.plot(ridge[own], score[own], "o-", ms=3.5, lw=1, color=color, label=f"imputation {w:g}")
        chosen = (ridge == report.regularizer_strength) & (weight == report.imputation_weight)
        score_ax.plot(ridge[chosen], score[chosen], "o", ms=9, mfc="none", mec=BLACK, label="chosen")
        score_ax.set_xscale("symlog" if np.any(ridge == 0) else "log")
        name_axes(score_ax, "ridge strength", "$D^2$, held-out pairs")
        legend(score_ax, fontsize=7)
    else:
        bars(score_ax, ["fitted pairs"], [report.pseudo_r2], 0.4, BLUE, "%.3f")
        score_ax.margins(x=0.2, y=1.0)
        name_axes(score_ax, "$D^2$")
    gaps = {"stimuli": report.gap_stimuli, "neurons": report.gap_neurons}
    gaps = {side: gap for side, gap in gaps.items() if np.isfinite(gap) and gap > 0}
    if gaps:
        bars(gap_ax, list(gaps), list(gaps.values()), 0.5, BLUE, "%.1e")
        gap_ax.set(xscale="log", xlim=(min(gaps.values()) / 30, max(gaps.values()) * 300))
        gap_ax.margins(y=0.4)
        name_axes(gap_ax, "one side alone gains\nat most (nats)")
    else:
        say(gap_ax, "no bound is known\nfor this model")
