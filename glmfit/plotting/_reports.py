"""Reports at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .._status import Status
from ..estimators import ClassReport, FitReport, ResponseReport
from ..estimators._model import Model
from ._axes import BLACK, BLUE, CYCLE, GREY, ORANGE, RED, bars, check_axes, dress, legend, name_axes, say, whole_ticks
from ._certificates import plot_convergence, target_line
from ._given import read_report
from ._parameters import plot_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_report_overview(
    report: FitReport | ClassReport | ResponseReport | Model, *, axes: Sequence[Axes] | np.ndarray | None = None
) -> np.ndarray:
    """Draw a fit in three panels: outcome, what it explains, how far it is from the optimum.

    Parameters
    ----------
    report : FitReport, ClassReport or ResponseReport
        Of a fitted model, ``model.report_``, or the model.
    axes : sequence of three matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    numpy.ndarray of matplotlib.axes.Axes
        (3,). Of a population: neurons per status; histogram of the pseudo-R² of the training rows with its median;
        histogram of gaps, bounds and estimates apart, with the target (a gap of 0 is not drawn). Of classes: rows or
        counts of every class, from the commonest on; loss of class frequencies alone and objective of the model; gap
        over the fit, as `plot_convergence` draws it. Of responses: objective over the fit; D2 of held-out pairs
        against the ridge, a line per imputation weight, or D2 of the fitted pairs where nothing was chosen; how much
        the objective could fall, at most, by changing one side alone (nothing where nothing is proved).

    Raises
    ------
    ValueError, TypeError, NotFittedError
        If `axes` are not three axes, or `report` is something else, or a model before its fit.
    """
    report = read_report(report)
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.subplots(1, 3, figsize=(7, 2.4), layout="constrained")[1]
        for ax in axes:
            dress(ax)
    axes = np.ravel(np.asarray(axes, object))
    if len(axes) != 3:
        raise ValueError(f"axes has {len(axes)} entries; it must be three, such as plt.subplots(1, 3)[1].")
    for k, ax in enumerate(axes):
        check_axes(f"axes[{k}]", ax)
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
        say(gap_ax, "gap not looked at" if np.isnan(report.gap) else f"gap {report.gap:.1e}")


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
        gap_ax.set_xscale("log")
        gap_ax.set_xlim(min(gaps.values()) / 30, max(gaps.values()) * 300)
        gap_ax.margins(y=0.4)
        name_axes(gap_ax, "one side alone gains\nat most (nats)")
    else:
        say(gap_ax, "no bound is known\nfor this model")
