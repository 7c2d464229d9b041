"""Group lasso penalty."""

import functools
from typing import ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from glmfit.numerics import namespace
from glmfit.penalties.base import Penalty, per_neuron, ridge_conjugate, share_within, thresholds
from glmfit.types import Array, FeatureNeuron, PerFeature, PerNeuron

NO_GROUP = -1
"""Label of the features that are not penalised."""


@final
class GroupLasso(Penalty):
    """Group lasso, ``strength sum_g sqrt(|g|) ||w_g||_2``: whole groups of features become zero together.

    Attributes
    ----------
    strength : array, shape (), (neuron,) or (group, neuron)
        Strength >= 0; the groups in ascending order of their labels.
    groups : tuple of int, length feature
        Group of each feature; features labelled -1 are not penalised. Static.

    Notes
    -----
    The weight ``sqrt(|g|)``, with ``|g|`` the number of features of the group, is that of Yuan and Lin and of NeMoS.

    References
    ----------
    Yuan and Lin, "Model selection and estimation in regression with grouped variables", JRSS B 68 (2006).
    """

    groups: tuple[int, ...] = eqx.field(static=True, converter=lambda labels: tuple(int(i) for i in labels))
    name: ClassVar[str] = "GroupLasso"
    smooth: ClassVar[bool] = False

    def __check_init__(self):
        """Refuse labels below -1 and a grouping without any group."""
        if min(self.groups, default=0) < NO_GROUP or max(self.groups, default=NO_GROUP) == NO_GROUP:
            raise ValueError(
                f"groups is {self.groups}; it needs one integer per feature, the number of its group (>= 0) "
                "or -1 for a feature that is not penalised, and at least one group."
            )

    @property
    def penalises_all(self) -> bool:
        """Whether every feature is in a group of positive strength."""
        return NO_GROUP not in self.groups and super().penalises_all

    @property
    def ridge_strength(self) -> Array:
        """Strength 0."""
        return namespace(self.strength).zeros((), self.strength.dtype)

    def blocks(self, n_features: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the groups that there are, numbered from 0; their strengths are ``strength sqrt(|g|)``."""
        layout = _layout(self.groups)
        return np.where(layout.penalised, layout.group, NO_GROUP), np.ravel(self.strength) * layout.weight

    def value(self, coef: FeatureNeuron) -> PerNeuron:
        """Compute ``strength sum_g sqrt(|g|) ||w_g||_2``."""
        return (self._group_strength(coef) * self._norms(coef)).sum(axis=0)

    def prox(self, coef: FeatureNeuron, step: Array | float, feature_scale: PerFeature | None = None) -> jax.Array:
        """Shrink the norm of each group by ``strength sqrt(|g|) step / scale_g``; step is shared by the features.

        Raises
        ------
        ValueError
            If `step` has an axis for the features, or if a NumPy `feature_scale` varies inside a group.
        """
        coef, layout = jnp.asarray(coef), _layout(self.groups)
        if np.ndim(step) > 1:
            raise ValueError(
                f"step has shape {np.shape(step)}; the group lasso needs one step for all features, shape () "
                "or (neuron,). Put scales of the groups into feature_scale, constant inside a group."
            )
        if feature_scale is not None:
            of_group = feature_scale[layout.members[:, 0]]
            differs = layout.penalised & (feature_scale != of_group[layout.group])
            if isinstance(differs, np.ndarray) and np.any(differs):
                raise ValueError(
                    "feature_scale varies inside a group; the group lasso needs one scale per group. Give "
                    "all features of a group the mean of their scales."
                )
            feature_scale = of_group
        threshold = thresholds(self._group_strength(coef), step, feature_scale, coef)
        kept = _kept(threshold, self._norms(coef))[layout.group]
        return jnp.where(layout.penalised[:, None], kept * coef, coef)

    def subgradient_residual(self, coef: FeatureNeuron, grad: FeatureNeuron) -> FeatureNeuron:
        """Add ``l w_g / ||w_g||`` where w_g != 0, else shrink the norm of grad_g by ``l = strength sqrt(|g|)``."""
        xp, layout = namespace(coef, grad), _layout(self.groups)
        strength = self._group_strength(grad)
        norm, kept = self._norms(coef), _kept(strength, self._norms(grad))
        pull = strength / xp.where(norm == 0.0, 1.0, norm)
        # Back to one row per feature.
        pull, kept, is_zero = (a[layout.group] for a in (pull, kept, norm == 0.0))
        residual = xp.where(is_zero, kept * grad, grad + pull * coef)
        return xp.where(layout.penalised[:, None], residual, grad)

    def conjugate(self, dual: FeatureNeuron) -> PerNeuron:
        """Give 0 where no group's norm exceeds ``strength sqrt(|g|)`` and features without a group have 0, else inf."""
        xp = namespace(dual)
        excess = xp.maximum(self._norms(dual) - self._group_strength(dual), 0.0)
        return ridge_conjugate(xp.zeros_like(excess), excess) + ridge_conjugate(xp.zeros_like(dual), self._free(dual))

    def shares(self, dual: FeatureNeuron) -> Array:
        """Compute where no group's norm exceeds ``strength sqrt(|g|)``; 0 where features without a group have more."""
        xp = namespace(dual)
        share = share_within(self._group_strength(dual), self._norms(dual))
        return xp.where(xp.any(self._free(dual) != 0.0, axis=0), 0.0, share)[None]

    def _free(self, dual: Array) -> Array:
        """Keep the entries of features without a group, 0 elsewhere."""
        return namespace(dual).where(_layout(self.groups).penalised[:, None], 0.0, dual)

    def maximal_strength(self, grad_at_zero: FeatureNeuron) -> PerNeuron:
        """Compute the largest ``||grad_g||_2 / sqrt(|g|)``."""
        xp = namespace(grad_at_zero)
        weight = xp.asarray(_layout(self.groups).weight, dtype=grad_at_zero.dtype)
        return (self._norms(grad_at_zero) / weight[:, None]).max(axis=0)

    def _norms(self, coef: Array) -> Array:
        """Compute the norms of the groups, (group, neuron), with gradient 0 at 0."""
        xp = namespace(coef)
        members = xp.concatenate([coef, xp.zeros_like(coef[:1])])[_layout(self.groups).members]
        squared = (members * members).sum(axis=1)
        is_zero = squared == 0.0
        return xp.where(is_zero, 0.0, xp.sqrt(xp.where(is_zero, 1.0, squared)))

    def _group_strength(self, coef: Array) -> Array:
        """Compute ``strength sqrt(|g|)``, shape (group, 1) or (group, neuron)."""
        weight = namespace(coef).asarray(_layout(self.groups).weight, dtype=coef.dtype)
        return per_neuron(self.strength, coef) * weight[:, None]


class _Layout(NamedTuple):
    """Index arrays of a grouping."""

    members: np.ndarray  # (group, largest size): features, then n_features as padding
    weight: np.ndarray  # (group,): sqrt of the size
    group: np.ndarray  # (feature,): row of `members`; 0 where not penalised
    penalised: np.ndarray  # (feature,): bool


@functools.lru_cache(maxsize=64)
def _layout(groups: tuple[int, ...]) -> _Layout:
    """Compute the index arrays of a grouping, once."""
    labels = np.asarray(groups)
    penalised = labels != NO_GROUP
    _, group_of_penalised, sizes = np.unique(labels[penalised], return_inverse=True, return_counts=True)
    group = np.zeros(len(labels), dtype=np.int32)  # int64 breaks when one process runs jax in both modes
    group[penalised] = group_of_penalised
    members = np.full((len(sizes), sizes.max(initial=1)), len(labels), dtype=np.int32)
    for row in range(len(sizes)):
        members[row, : sizes[row]] = np.flatnonzero(penalised & (group == row))
    return _Layout(members, np.sqrt(sizes), group, penalised)


def _kept(threshold: Array, norm: Array) -> Array:
    """Compute what is left of a vector whose norm is shrunk by the threshold, as a share of it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 1.0 - threshold / norm
    return namespace(norm).where(share > 0.0, share, 0.0)
