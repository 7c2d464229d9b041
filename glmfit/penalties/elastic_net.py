"""Elastic net penalty."""

from typing import ClassVar, final

import equinox as eqx

from glmfit._types import Array
from glmfit.penalties._l1 import L1Penalty
from glmfit.penalties.base import as_strength


@final
class ElasticNet(L1Penalty):
    """Elastic net, R(w) = strength ((1 - ratio) / 2 ||w||_2^2 + ratio ||w||_1), NeMoS's parametrisation.

    Attributes
    ----------
    ratio : array, shape (), (neuron,) or (feature, neuron)
        Share of the l1 part, 0 < ratio <= 1; 1 is the lasso.
    """

    ratio: Array = eqx.field(default=0.5, converter=as_strength)
    name: ClassVar[str] = "ElasticNet"
    smooth: ClassVar[bool] = False
