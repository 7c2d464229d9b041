"""No penalty."""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp

from glmfit._numerics import namespace
from glmfit._types import Array, FeatureNeuron, PerFeature, PerNeuron
from glmfit.penalties.base import Penalty, as_strength, ridge_conjugate, unreachable


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

    def conjugate(self, dual: FeatureNeuron) -> PerNeuron:
        """Give 0 where u is 0, else inf."""
        return ridge_conjugate(namespace(dual).zeros_like(dual), dual)

    def shares(self, dual: FeatureNeuron) -> Array:
        """Give 1 where u is 0, else 0."""
        xp = namespace(dual)
        return xp.where(xp.any(dual != 0.0, axis=0), 0.0, 1.0)[None]

    def maximal_strength(self, grad_at_zero: FeatureNeuron) -> PerNeuron:
        """Give inf for each neuron."""
        return unreachable(grad_at_zero)
