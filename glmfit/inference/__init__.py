"""How certain a fitted `PopulationGLM` is: standard errors, intervals, degrees of freedom, what features explain; and
whether spikes came when the rates said (docs/theory/inference.md).
"""

from .groups import GroupTable, drop_groups
from .time_rescaling import TimeRescaling, rescale_time
from .wald import COVARIANCES, WaldTable, wald_table

__all__ = ["COVARIANCES", "GroupTable", "TimeRescaling", "WaldTable", "drop_groups", "rescale_time", "wald_table"]
