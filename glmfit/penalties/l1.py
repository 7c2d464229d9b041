"""Lasso and elastic net penalties."""

import functools
import warnings
from types import ModuleType
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from glmfit.numerics import namespace
from glmfit.penalties.base import (
    Penalty,
    as_strength,
    per_neuron,
    ridge_conjugate,
    ridge_value,
    share_within,
    thresholds,
)
from glmfit.types import Array, FeatureNeuron, PerFeature, PerNeuron


@functools.cache
def _jaxopt_prox() -> ModuleType:
    """Import jaxopt.prox on first use, without its warning that it is no longer maintained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from jaxopt import prox
    return prox


class L1Penalty(Penalty):
    """Penalty R(w) = strength ((1 - ratio) / 2 ||w||_2^2 + ratio ||w||_1)."""

    ratio: eqx.AbstractVar[Any]
    smooth: ClassVar[bool] = False

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
        threshold = thresholds(per_neuron(self.l1_strength, coef), step, feature_scale, coef)
        return _jaxopt_prox().prox_lasso(coef, jnp.broadcast_to(threshold, coef.shape))

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


@final
class Lasso(L1Penalty):
    """Lasso, R(w) = strength ||w||_1: the elastic net of ratio 1."""

    ratio: ClassVar[float] = 1.0
    name: ClassVar[str] = "Lasso"


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
