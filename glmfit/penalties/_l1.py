"""The l1 formulas, shared by the lasso and the elastic net."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from glmfit._numerics import namespace
from glmfit._types import Array, FeatureNeuron, PerFeature, PerNeuron
from glmfit.penalties._prox import soft_threshold, thresholds
from glmfit.penalties.base import Penalty, per_neuron, ridge_conjugate, ridge_value, share_within


class L1Penalty(Penalty):
    """Penalty R(w) = strength ((1 - ratio) / 2 ||w||_2^2 + ratio ||w||_1)."""

    ratio: eqx.AbstractVar[Any]

    @property
    def l1_strength(self) -> Array:
        """Strength * ratio, the strength of ||w||_1."""
        return self.strength * self.ratio

    @property
    def ridge_strength(self) -> Array:
        """Strength * (1 - ratio)."""
        return self.strength * (1.0 - self.ratio)

    def blocks(self, n_features: int) -> tuple[np.ndarray, np.ndarray]:
        """Give every feature a norm of its own."""
        return np.arange(n_features), np.broadcast_to(np.ravel(self.l1_strength), n_features)

    def value(self, coef: FeatureNeuron) -> PerNeuron:
        """Compute l1_strength ||w||_1 + ridge_strength / 2 ||w||_2^2."""
        l1 = (per_neuron(self.l1_strength, coef) * abs(coef)).sum(axis=0)
        return l1 + ridge_value(per_neuron(self.ridge_strength, coef), coef)

    def prox(self, coef: FeatureNeuron, step: Array | float, feature_scale: PerFeature | None = None) -> jax.Array:
        """Soft-threshold at l1_strength * step / feature_scale: the l1 part only."""
        coef = jnp.asarray(coef)
        return soft_threshold(coef, thresholds(per_neuron(self.l1_strength, coef), step, feature_scale, coef))

    def subgradient_residual(self, coef: FeatureNeuron, grad: FeatureNeuron) -> FeatureNeuron:
        """Add l1 sign(w) to grad where w != 0, shrink grad by l1 towards 0 where w = 0."""
        xp = namespace(coef, grad)
        strength = per_neuron(self.l1_strength, grad)
        at_zero = xp.sign(grad) * xp.maximum(abs(grad) - strength, 0.0)
        return xp.where(coef == 0.0, at_zero, grad + strength * xp.sign(coef))

    def conjugate(self, dual: FeatureNeuron) -> PerNeuron:
        """Compute the ridge's conjugate of what exceeds ``l1_strength``."""
        xp = namespace(dual)
        excess = xp.maximum(abs(dual) - per_neuron(self.l1_strength, dual), 0.0)
        return ridge_conjugate(per_neuron(self.ridge_strength, dual), excess)

    def shares(self, dual: FeatureNeuron) -> Array:
        """Compute where ``|s u|`` exceeds ``l1_strength`` in no feature without ridge, and in none at all."""
        xp = namespace(dual)
        l1, ridge = (per_neuron(a, dual) for a in (self.l1_strength, self.ridge_strength))
        size = abs(dual)
        return xp.stack([share_within(l1, xp.where(ridge > 0.0, 0.0, size)), share_within(l1, size)])

    def maximal_strength(self, grad_at_zero: FeatureNeuron) -> PerNeuron:
        """Compute ``max |g| / ratio``."""
        return (abs(grad_at_zero) / per_neuron(self.ratio, grad_at_zero)).max(axis=0)
