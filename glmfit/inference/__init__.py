"""Uncertainty of a fitted `PopulationGLM`: standard errors, intervals, filters, contributions of features;
time rescaling of its spikes (docs/theory/inference.md); simulation and stability of coupled models
(docs/theory/stable_coupling.md); and decoding with a prior over time.
"""

from .decoding import smooth_posterior
from .explained.explain import explain
from .explained.explanation import Explanation
from .explained.models import Contribution
from .explained.nulls import CircularShift, Counts, Designs, LinearShift, Null, Permutation
from .filters import FilterTable, filter_table
from .groups import GroupTable, drop_groups
from .recurrent import RecurrentSimulation, simulate_recurrent
from .stability import CouplingStability, coupling_stability
from .time_rescaling import TimeRescaling, rescale_time
from .wald import COVARIANCES, WaldTable, wald_table

__all__ = [
    "COVARIANCES", "CircularShift", "Contribution", "Counts", "CouplingStability", "Designs", "Explanation",
    "FilterTable", "GroupTable", "LinearShift", "Null", "Permutation", "RecurrentSimulation", "TimeRescaling",
    "WaldTable", "coupling_stability", "drop_groups", "explain", "filter_table", "rescale_time", "simulate_recurrent",
    "smooth_posterior", "wald_table",
]  # fmt: skip
