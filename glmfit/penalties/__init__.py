"""Penalties: formulas in the coefficients only."""

from glmfit.penalties.base import Penalty
from glmfit.penalties.by_name import make
from glmfit.penalties.group_lasso import GroupLasso
from glmfit.penalties.l1 import ElasticNet, Lasso
from glmfit.penalties.ridge import NoPenalty, Ridge

__all__ = ["ElasticNet", "GroupLasso", "Lasso", "NoPenalty", "Penalty", "Ridge", "make"]
