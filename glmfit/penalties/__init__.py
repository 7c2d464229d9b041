"""Penalties: formulas in the coefficients only."""

from glmfit.penalties.base import ElasticNet, Lasso, NoPenalty, Penalty, Ridge
from glmfit.penalties.by_name import make
from glmfit.penalties.group_lasso import GroupLasso

__all__ = ["ElasticNet", "GroupLasso", "Lasso", "NoPenalty", "Penalty", "Ridge", "make"]
