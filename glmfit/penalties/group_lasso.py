"""Group lasso penalty."""

import functools
from typing import ClassVar, NamedTuple, Self, final

import equinox as eqx
import jax
import numpy as np

from glmfit.numerics import Array, FeatureNeuron, PerFeature, namespace
from glmfit.penalties.base import PROHIBITIVE, Penalty, per_neuron

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
    ratio: ClassVar[float] = 1.0
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
        weight = layout.weight[layout.weight > 0]
        return np.where(layout.group < len(weight), layout.group, NO_GROUP), np.ravel(self.strength) * weight

    def without(self, excluded: np.ndarray) -> Self:
        """Return the penalty that also keeps some whole groups at 0, bool (feature, neuron); see `Penalty.without`.

        Raises
        ------
        ValueError
            If it excludes a part of a group, or a feature in no group.
        """
        labels = np.asarray(self.groups)
        if excluded[labels == NO_GROUP].any():
            feature = int(np.flatnonzero(excluded.any(axis=1) & (labels == NO_GROUP))[0])
            raise ValueError(
                f"feature {feature} is excluded for some neuron, but it is in no group (label -1). Give the features "
                "that a neuron may lack a group, or remove them from X."
            )
        groups = np.unique(labels[labels != NO_GROUP])
        outside = np.stack([excluded[labels == group].any(axis=0) for group in groups])
        for group, of in zip(groups, outside, strict=True):
            partly = np.flatnonzero(of & ~excluded[labels == group].all(axis=0))
            if len(partly):
                raise ValueError(
                    f"some features of group {group} are excluded for neuron {partly[0]} and others are not; the norm "
                    "of a group needs all of its features or none."
                )
        return GroupLasso(np.where(outside, PROHIBITIVE, np.asarray(self.strength)), self.groups)

    def prox(self, coef: FeatureNeuron, step: Array | float, feature_scale: PerFeature | None = None) -> jax.Array:
        """Shrink the norm of each group by ``strength sqrt(|g|) step / scale_g``; step is shared by the features.

        Raises
        ------
        ValueError
            If `step` has an axis for the features, or if a NumPy `feature_scale` varies inside a group.
        """
        if np.ndim(step) > 1:
            raise ValueError(
                f"step has shape {np.shape(step)}; the group lasso needs one step for all features, shape () "
                "or (neuron,). Put scales of the groups into feature_scale, constant inside a group."
            )
        if isinstance(feature_scale, np.ndarray):
            layout = _layout(self.groups)
            if np.any(feature_scale != feature_scale[layout.members[layout.group, 0]]):
                raise ValueError(
                    "feature_scale varies inside a group; the group lasso needs one scale per group. Give "
                    "all features of a group the mean of their scales."
                )
        return super().prox(coef, step, feature_scale)

    def norms(self, coef: FeatureNeuron) -> Array:
        """Compute the norms of groups and of features without a group, (norm, neuron), with gradient 0 at 0."""
        xp = namespace(coef)
        members = xp.concatenate([coef, xp.zeros_like(coef[:1])])[_layout(self.groups).members]
        squared = (members * members).sum(axis=1)
        is_zero = squared == 0.0
        return xp.where(is_zero, 0.0, xp.sqrt(xp.where(is_zero, 1.0, squared)))

    def norm_strength(self, like: FeatureNeuron) -> Array:
        """Compute ``strength sqrt(|g|)``, 0 for features without a group, shape (norm, 1) or (norm, neuron)."""
        strength, weight = per_neuron(self.strength, like), _layout(self.groups).weight
        if strength.ndim == 2 and len(strength) > 1:  # any will do for features without a group, whose weight is 0
            strength = strength[np.minimum(np.arange(len(weight), dtype=np.int32), len(strength) - 1)]
        return strength * namespace(like).asarray(weight, dtype=like.dtype)[:, None]

    def spread(self, values: Array) -> Array:
        """Give every feature the value of its norm, (feature, neuron)."""
        return values[_layout(self.groups).group]


class _Layout(NamedTuple):
    """Index arrays of a grouping: its groups, then features without one, each a norm of weight 0."""

    members: np.ndarray  # (norm, largest size): features, then n_features as padding
    weight: np.ndarray  # (norm,): sqrt of the size, 0 where not penalised
    group: np.ndarray  # (feature,): row of `members`


@functools.lru_cache(maxsize=64)
def _layout(groups: tuple[int, ...]) -> _Layout:
    """Compute the index arrays of a grouping, once."""
    labels = np.asarray(groups)
    free = labels == NO_GROUP
    labels = np.where(free, labels.max() + 1 + np.arange(len(labels)), labels)
    _, group, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    # int64 breaks when one process runs jax in both modes.
    members = np.full((len(sizes), sizes.max(initial=1)), len(labels), dtype=np.int32)
    for row, size in enumerate(sizes):
        members[row, :size] = np.flatnonzero(group == row)
    weight = np.where(np.arange(len(sizes)) < len(sizes) - free.sum(), np.sqrt(sizes), 0.0)
    return _Layout(members, weight, group.astype(np.int32))
