"""How certain a fitted `PopulationGLM` is: standard errors, intervals, degrees of freedom, what features explain; and
whether spikes came when the rates said (docs/theory/inference.md).
"""

from .explained.explain import explain
from .explained.explanation import Explanation
from .explained.models import Contribution
from .explained.nulls import CircularShift, Counts, Designs, LinearShift, Null, Permutation
from .groups import GroupTable, drop_groups
from .time_rescaling import TimeRescaling, rescale_time
from .wald import COVARIANCES, WaldTable, wald_table

__all__ = [
    "COVARIANCES", "CircularShift", "Contribution", "Counts", "Designs", "Explanation", "GroupTable", "LinearShift",
    "Null", "Permutation", "TimeRescaling", "WaldTable", "drop_groups", "explain", "rescale_time", "wald_table",
]  # fmt: skip
