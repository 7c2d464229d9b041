"""Reports at a glance."""

from __future__ import annotations

import numpy as np

from .._status import Status
from ._axes import BLUE, ORANGE, RED, dress, legend, name_axes
from ._certificates import target_line
from ._population import plot_scores


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
            dress(ax)
    status_ax, score_ax, gap_ax = axes
    outcomes = [s for s in Status if np.any(report.status == s)]
    counts = [int(np.sum(report.status == s)) for s in outcomes]
    bars = status_ax.barh(
        [s.label for s in outcomes], counts, color=[RED if s.is_failure else BLUE for s in outcomes], height=0.6
    )
    status_ax.bar_label(bars, fontsize=8, padding=2)
    status_ax.invert_yaxis()
    status_ax.margins(x=0.15, y=0.3)
    name_axes(status_ax, "neurons")
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
        target_line(gap_ax.axvline, gap_ax.axvspan, report.target[positive])
        legend(gap_ax)
    name_axes(gap_ax, "gap (nats per bin)", "neurons")
    return np.asarray([status_ax, score_ax, gap_ax], object)
