"""Penalties of one kind at many strengths, for paths and cross-validations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glmfit.numerics import FeatureNeuron
from glmfit.penalties.base import ElasticNet, Penalty, Ridge
from glmfit.penalties.by_name import make


@dataclass(frozen=True)
class PenaltyFamily:
    """Penalties of one kind, whose strengths are given later.

    Called with strengths, one per fit, it returns their penalty. The fits are those of all neurons, again and again.
    Fields without a comment are arguments of `make`.
    """

    regularizer: str
    n_features: int
    l1_ratio: float | np.ndarray = 0.5  # of the elastic net, () or (neuron,)
    groups: Any = None
    feature_names: Sequence[str] | None = None
    mask: np.ndarray | None = None  # features that each neuron has, bool (feature, neuron)

    def __call__(self, strength: np.ndarray) -> Penalty:
        """Return the penalty of fits with these strengths, (fit,)."""
        strength = np.asarray(strength)
        penalty: Penalty = Ridge(strength)  # without a strength there are no kinks
        if strength.any():
            ratio = self.l1_ratio
            ratio = np.tile(ratio, strength.size // np.size(ratio)) if np.ndim(ratio) else ratio
            given = (strength, ratio) if self.regularizer == ElasticNet.name else strength
            penalty = make(self.regularizer, given, self.n_features, strength.size, self.groups, self.feature_names)
        if self.mask is None:
            return penalty
        return penalty.without(np.tile(~self.mask, strength.size // self.mask.shape[1]))

    @property
    def selects(self) -> bool:
        """Whether a penalty that is strong enough leaves no coefficients; a ridge always leaves some."""
        return self.regularizer != Ridge.name

    @property
    def smooth(self) -> bool:
        """Whether the penalties are ridges of all features."""
        return not self.selects and self.mask is None

    def maximal_strength(self, grad_at_zero: FeatureNeuron) -> np.ndarray:
        """Return the smallest strengths that leave no coefficients, (neuron,); see `Penalty.maximal_strength`."""
        gradient = grad_at_zero if self.mask is None else np.where(self.mask, grad_at_zero, 0.0)
        plain = replace(self, mask=None)
        return np.asarray(plain(np.ones(gradient.shape[1])).maximal_strength(gradient), np.float64)
