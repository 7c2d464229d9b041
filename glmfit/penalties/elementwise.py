"""Penalties of single coefficients: ridge, lasso, elastic net, and none."""

from typing import ClassVar, final

import equinox as eqx
import numpy as np

from glmfit.numerics import Array, FeatureNeuron, PerNeuron, namespace
from glmfit.penalties.base import PROHIBITIVE, Penalty, as_strength


class Ridge(Penalty):
    """Ridge, R(w) = strength / 2 ||w||_2^2: all of it smooth, so the proximal operator is the identity."""

    ratio: ClassVar[float] = 0.0
    name: ClassVar[str] = "Ridge"
    smooth: ClassVar[bool] = True

    def without(self, excluded: np.ndarray) -> "ElasticNet":
        """Return the elastic net of ratio 0 that also keeps some coefficients at 0; see `Penalty.without`."""
        strength = np.where(excluded, PROHIBITIVE, np.asarray(self.strength, np.float64))
        return ElasticNet(strength, np.where(excluded, 1.0, 0.0))


@final
class NoPenalty(Ridge):
    """No penalty, R = 0: maximum likelihood. The strength exists for uniformity and is 0."""

    strength: Array = eqx.field(default=0.0, converter=as_strength)
    name: ClassVar[str] = "UnRegularized"

    def value(self, coef: FeatureNeuron) -> PerNeuron:
        """Return 0 for each neuron, even if coefficients are not finite."""
        return namespace(coef).zeros_like(coef[0])


@final
class Lasso(Penalty):
    """Lasso, R(w) = strength ||w||_1: the elastic net of ratio 1."""

    ratio: ClassVar[float] = 1.0
    name: ClassVar[str] = "Lasso"
    smooth: ClassVar[bool] = False


@final
class ElasticNet(Penalty):
    """Elastic net, R(w) = strength ((1 - ratio) / 2 ||w||_2^2 + ratio ||w||_1), NeMoS's parametrisation.

    Attributes
    ----------
    ratio : array, shape (), (neuron,) or (feature, neuron)
        Share of the l1 part, 0 < ratio <= 1; 1 is the lasso. 0 is the ridge, for coefficients of `Ridge.without`.
    """

    ratio: Array = eqx.field(default=0.5, converter=as_strength)
    name: ClassVar[str] = "ElasticNet"
    smooth: ClassVar[bool] = False
