"""No penalty."""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp

from glmfit._numerics import namespace
from glmfit._types import Array, FeatureNeuron, PerFeature, PerNeuron
from glmfit.penalties.base import Penalty, as_strength, unreachable


@final
class NoPenalty(Penalty):
    """No penalty, R = 0: maximum likelihood. The strength is there for uniformity and is 0."""

    strength: Array = eqx.field(default=0.0, converter=as_strength)
    name: ClassVar[str] = "UnRegularized"
    smooth: ClassVar[bool] = True

    @property
    def ridge_strength(self) -> Array:
        """Strength 0."""
        return self.strength

    def value(self, coef: FeatureNeuron) -> PerNeuron:
        """Give 0 for each neuron."""
        return namespace(coef).zeros_like(coef[0])

    def prox(self, coef: FeatureNeuron, step: Array | float, feature_scale: PerFeature | None = None) -> jax.Array:
        """Return coef."""
        return jnp.asarray(coef)

    def subgradient_residual(self, coef: FeatureNeuron, grad: FeatureNeuron) -> FeatureNeuron:
        """Return grad."""
        return grad

    def maximal_strength(self, grad_at_zero: FeatureNeuron) -> PerNeuron:
        """Give inf for each neuron."""
        return unreachable(grad_at_zero)
