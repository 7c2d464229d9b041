"""Penalties: formulas in the coefficients only."""

from glmfit.penalties._make import make
from glmfit.penalties.base import Penalty
from glmfit.penalties.elastic_net import ElasticNet
from glmfit.penalties.group_lasso import GroupLasso
from glmfit.penalties.lasso import Lasso
from glmfit.penalties.none import NoPenalty
from glmfit.penalties.ridge import Ridge

__all__ = ["ElasticNet", "GroupLasso", "Lasso", "NoPenalty", "Penalty", "Ridge", "make"]
