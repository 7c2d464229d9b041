"""Ridge penalty, and none: its strength 0."""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp

from glmfit.numerics import namespace
from glmfit.penalties.base import Penalty, as_strength, per_neuron, ridge_conjugate, ridge_value
from glmfit.types import Array, FeatureNeuron, PerFeature, PerNeuron


class Ridge(Penalty):
    """Ridge, R(w) = strength / 2 ||w||_2^2: all of it smooth, so the proximal operator is the identity."""

    name: ClassVar[str] = "Ridge"
    smooth: ClassVar[bool] = True

    @property
    def ridge_strength(self) -> Array:
        """Strength itself."""
        return self.strength

    def value(self, coef: FeatureNeuron) -> PerNeuron:
        """Compute strength / 2 ||w||_2^2."""
        return ridge_value(per_neuron(self.strength, coef), coef)

    def prox(self, coef: FeatureNeuron, step: Array | float, feature_scale: PerFeature | None = None) -> jax.Array:
        """Return coef."""
        return jnp.asarray(coef)

    def subgradient_residual(self, coef: FeatureNeuron, grad: FeatureNeuron) -> FeatureNeuron:
        """Return grad, which contains the ridge part."""
        return grad

    def conjugate(self, dual: FeatureNeuron) -> PerNeuron:
        """Compute ``||u||_2^2 / (2 strength)``, feature by feature."""
        return ridge_conjugate(per_neuron(self.strength, dual), dual)

    def shares(self, dual: FeatureNeuron) -> Array:
        """Give 1, or 0 where a feature of strength 0 has an entry."""
        xp = namespace(dual)
        free = per_neuron(self.strength, dual) == 0.0
        return xp.where(xp.any(free & (dual != 0.0), axis=0), 0.0, 1.0)[None]

    def maximal_strength(self, grad_at_zero: FeatureNeuron) -> PerNeuron:
        """Give inf: a ridge shrinks but never selects."""
        return namespace(grad_at_zero).full_like(grad_at_zero[0], float("inf"))


@final
class NoPenalty(Ridge):
    """No penalty, R = 0: maximum likelihood. The strength is there for uniformity and is 0."""

    strength: Array = eqx.field(default=0.0, converter=as_strength)
    name: ClassVar[str] = "UnRegularized"

    def value(self, coef: FeatureNeuron) -> PerNeuron:
        """Give 0 for each neuron, also where coefficients are not finite."""
        return namespace(coef).zeros_like(coef[0])
