"""Penalties: formulas in the coefficients only."""

from glmfit.penalties.base import Penalty
from glmfit.penalties.by_name import make
from glmfit.penalties.elementwise import ElasticNet, Lasso, NoPenalty, Ridge
from glmfit.penalties.group_lasso import GroupLasso

__all__ = ["ElasticNet", "GroupLasso", "Lasso", "NoPenalty", "Penalty", "Ridge", "make"]
