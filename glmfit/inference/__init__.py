"""How certain a fitted `PopulationGLM` is: standard errors, intervals, degrees of freedom, what features explain.

Theory: docs/theory/inference.md.
"""

from .groups import GroupTable, drop_groups
from .wald import COVARIANCES, WaldTable, wald_table

__all__ = ["COVARIANCES", "GroupTable", "WaldTable", "drop_groups", "wald_table"]
