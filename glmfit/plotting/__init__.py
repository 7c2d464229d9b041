"""Figures of fits: every function draws on matplotlib axes and returns them.

matplotlib is imported when a function is called; ``python -m pip install -e ".[plot]"`` in the checkout installs it.
With ``ax=None`` a function makes a figure through pyplot, so that a notebook shows it; :func:`new_axes` makes one that
belongs to no window, for scripts.
Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

from .axes import label_panels, new_axes
from .calibration import plot_binned_residuals, plot_calibration
from .colors import BLACK, BLUE, GREEN, GREY, LIGHT, ORANGE, PURPLE, RED
from .contributions import plot_contributions, plot_explained_neuron, plot_null, plot_unique_against_maximal
from .decoding import plot_confusion, plot_decoded, plot_responses
from .parameters import plot_coupling, plot_filter, plot_recovery
from .rates import plot_rate_against_spikes, plot_residuals, plot_signal, plot_tuning
from .reports import plot_bounds, plot_convergence, plot_report_overview
from .scores import plot_cv_curves, plot_scores, plot_strengths, plot_time_rescaling
from .terms import plot_terms

__all__ = [
    "new_axes", "label_panels",
    "plot_filter", "plot_rate_against_spikes", "plot_signal", "plot_residuals", "plot_tuning", "plot_time_rescaling",
    "plot_binned_residuals", "plot_calibration",
    "plot_convergence", "plot_bounds", "plot_report_overview",
    "plot_coupling", "plot_recovery", "plot_scores", "plot_terms",
    "plot_confusion", "plot_decoded", "plot_responses",
    "plot_cv_curves", "plot_strengths",
    "plot_contributions", "plot_unique_against_maximal", "plot_null", "plot_explained_neuron",
    "BLACK", "BLUE", "GREEN", "GREY", "LIGHT", "ORANGE", "PURPLE", "RED",
]  # fmt: skip
