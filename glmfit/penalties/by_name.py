"""Penalties and groups of features from the arguments of a user; penalties of one kind at many strengths."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glmfit.checks import not_text, shorten
from glmfit.numerics import FeatureNeuron
from glmfit.penalties.base import ElasticNet, Lasso, NoPenalty, Penalty, Ridge
from glmfit.penalties.group_lasso import NO_GROUP, GroupLasso

BY_NAME = {cls.name: cls for cls in (NoPenalty, Ridge, Lasso, ElasticNet, GroupLasso)}


def make(
    regularizer: str | None,
    strength: Any,
    n_features: int,
    n_neurons: int,
    groups: Any = None,
    feature_names: Sequence[str] | None = None,
    dtype: Any = np.float64,
) -> Penalty:
    """Make a penalty from a name and a strength, and check both.

    Parameters
    ----------
    regularizer : {"UnRegularized", "Ridge", "Lasso", "ElasticNet", "GroupLasso"} or None
        NeMoS's name of the penalty; None is "UnRegularized".
    strength : float, array of shape (neuron,) or (feature, neuron), tuple or None
        Regularisation strength >= 0, shared, one per neuron, or one per coefficient (for the group lasso one per
        group, (group, neuron), groups in the order of their first label); None is 1.0, as in NeMoS. The elastic net
        also takes a tuple (strength, ratio) with 0 < ratio <= 1; its ratio is 0.5 otherwise. "UnRegularized" takes
        None or 0.
    n_features, n_neurons : int
        Shape of the coefficients.
    groups : array-like of shape (feature,), or mapping; for "GroupLasso" only
        One label per feature, integers (-1: not penalised) or strings; or group name -> feature indices or names (one,
        a list or a slice). Features in no group are not penalised.
    feature_names : sequence of str, optional
        Names of the features, for groups given by names.
    dtype : dtype, optional
        Dtype of the strength; the formulas bring it to the dtype of the coefficients.

    Returns
    -------
    Penalty
        Its strengths are NumPy arrays of one of these shapes.

    Raises
    ------
    ValueError
        If anything is not of the types, shapes and ranges above, a feature does not exist or is in two groups, or
        groups are missing or given for another penalty.
    """
    cls = _find(regularizer)
    if groups is not None and cls is not GroupLasso:
        raise ValueError(
            f"groups is given, but regularizer is {cls.name!r}; only 'GroupLasso' uses groups. Pass "
            "regularizer='GroupLasso', or leave groups at None."
        )
    if cls is ElasticNet:
        strength, ratio = _split(strength)
        ratio = _numbers("the ratio of the elastic net", ratio, n_neurons, n_features, "feature", dtype)
        if not np.all((ratio > 0) & (ratio <= 1)):
            raise ValueError(
                f"the ratio of the elastic net is {ratio}; it must be in (0, 1], where 1 is the lasso. For "
                "0, the ridge, pass regularizer='Ridge'."
            )
        return ElasticNet(_strength(strength, n_neurons, n_features, "feature", dtype), ratio)
    if cls is GroupLasso:
        labels = group_labels(groups, n_features, feature_names)
        return GroupLasso(_strength(strength, n_neurons, len(set(labels) - {NO_GROUP}), "group", dtype), labels)
    if cls is NoPenalty:
        if strength is not None and np.any(_strength(strength, n_neurons, n_features, "feature", dtype) != 0):
            raise ValueError(
                f"regularizer_strength is {strength!r}, but regularizer is 'UnRegularized', which has none. Omit it, "
                "or pass regularizer='Ridge'."
            )
        return NoPenalty(np.zeros((), dtype))
    return cls(_strength(strength, n_neurons, n_features, "feature", dtype))


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


def _find(regularizer: Any) -> type[Penalty]:
    if regularizer is None:
        return NoPenalty
    if not isinstance(regularizer, str) or regularizer not in BY_NAME:
        allowed = ", ".join(repr(name) for name in BY_NAME)
        raise ValueError(
            f"regularizer is {regularizer!r}; allowed are {allowed} and None: pass a name, and the strength as "
            "regularizer_strength."
        )
    return BY_NAME[regularizer]


def _split(strength: Any) -> tuple[Any, Any]:
    if not isinstance(strength, tuple):
        return strength, 0.5
    if len(strength) != 2:
        raise ValueError(
            f"regularizer_strength is a tuple of {len(strength)}; for the elastic net a tuple is "
            "(strength, ratio). Pass strengths per neuron as an array."
        )
    return strength


def _strength(strength: Any, n_neurons: int, n_members: int, member: str, dtype: Any) -> np.ndarray:
    """Check a strength; 1.0 for None."""
    strength = 1.0 if strength is None else strength
    strength = _numbers("regularizer_strength", strength, n_neurons, n_members, member, dtype)
    if not np.all(np.isfinite(strength)) or np.any(strength < 0):
        raise ValueError(
            f"regularizer_strength is {strength}; it must be finite and >= 0. Pass 0 for a neuron without a penalty."
        )
    return strength


def _numbers(what: str, value: Any, n_neurons: int, n_members: int, member: str, dtype: Any) -> np.ndarray:
    """Check that a value is a number, or has one per neuron or per member (feature or group) and neuron."""
    try:
        array = np.asarray(value)
        if array.dtype.kind in "USTmMcb":  # "0.1" would pass as 0.1, 1j as 0, True as 1
            raise TypeError
        array = array.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{what} is {shorten(value)}; allowed are a number or an array: one number per neuron, or per {member} and "
            f"neuron. Give real numbers that a float can hold, such as 0.1{not_text(value)}."
        ) from None
    if array.shape not in ((), (n_neurons,), (n_members, n_neurons)):
        raise ValueError(
            f"{what} has shape {array.shape}; allowed are a number, one number per neuron, shape ({n_neurons},), or "
            f"one per {member} and neuron, shape ({n_members}, {n_neurons})."
        )
    return array


def group_labels(groups: Any, n_features: int, feature_names: Sequence[str] | None) -> tuple[int, ...]:
    """Label 0, 1, ... of each feature, -1 for the features in no group."""
    if groups is None:
        raise ValueError(
            "regularizer is 'GroupLasso', but groups is None; pass groups as one label per feature, for "
            "example [0, 0, 1, 1], or as {'name': [indices or feature names]}."
        )
    labels = np.full(n_features, NO_GROUP)
    if isinstance(groups, Mapping):
        for label, (group, members) in enumerate(groups.items()):
            for feature in read_members(group, members, n_features, feature_names):
                if labels[feature] != NO_GROUP:
                    name = f"{feature}" if feature_names is None else f"{feature} ({feature_names[feature]!r})"
                    raise ValueError(
                        f"feature {name} is in group {list(groups)[labels[feature]]!r} and again in group {group!r}; a "
                        "feature can be in one group only, and once. For overlapping groups, copy its column."
                    )
                labels[feature] = label
    else:
        given = read_labels(groups, n_features)
        if given.dtype.kind not in "iuUT":
            raise ValueError(
                f"groups has dtype {given.dtype}; labels must be integers (-1: not penalised) or strings. "
                "Convert them, for example with numpy.asarray(groups, dtype=int)."
            )
        is_number = given.dtype.kind in "iu"
        if is_number and given.min(initial=0) < NO_GROUP:
            raise ValueError(
                f"groups has the label {given.min()}; integer labels must be >= 0, or -1 for a feature that is "
                "not penalised."
            )
        grouped = given != NO_GROUP if is_number else np.ones(n_features, dtype=bool)
        labels[grouped] = np.unique(given[grouped], return_inverse=True)[1]
    if np.all(labels == NO_GROUP):
        raise ValueError("groups puts no feature into a group; add one, or pass regularizer='UnRegularized'.")
    return tuple(labels.tolist())


def read_labels(groups: Any, n_features: int) -> np.ndarray:
    """Read one label per feature; raise ValueError for another shape, such as a list of lists of features."""
    try:
        labels = np.asarray(groups)
        shape = f"shape {labels.shape}"
    except ValueError:  # ragged
        labels, shape = np.empty(()), f"{len(groups)} entries of different lengths"
    if labels.shape != (n_features,):
        raise ValueError(
            f"groups has {shape}; it needs one label per feature, shape ({n_features},), or a mapping from group names "
            "to features, such as {'speed': [0, 1], 'place': [2]}."
        )
    return labels


def read_members(
    group: Any, members: Any, n_features: int, feature_names: Iterable[str] | None, kind: str = "group"
) -> list[int]:
    """Read the features of one group (an index, a name, several, or a slice of all) as indices.

    Raises ValueError, with the group's name, for an empty group and for members that are not features.
    """
    index_of = {name: index for index, name in enumerate(() if feature_names is None else feature_names)}
    if isinstance(members, slice):
        try:
            found = list(range(n_features)[members])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{kind} {group!r} is {members}; a slice needs feature indices ({error}).") from None
    else:
        members = [members] if isinstance(members, str) or not isinstance(members, Iterable) else members
        found = [_feature_index(member, f"{kind} {group!r}", n_features, index_of) for member in members]
    if not found:
        raise ValueError(f"{kind} {group!r} is empty; give it at least one feature, or omit it.")
    return found


def _feature_index(member: Any, of: str, n_features: int, index_of: Mapping[str, int]) -> int:
    """Return the index of a feature given by its index or name."""
    if isinstance(member, str):
        if member not in index_of:
            known = f"the features are {list(index_of)}" if index_of else "X has no feature names: use indices"
            raise ValueError(f"{of} names the feature {member!r}, which does not exist; {known}.")
        return index_of[member]
    if isinstance(member, bool | np.bool_) or not isinstance(member, int | np.integer):
        raise ValueError(
            f"{of} has the member {member!r} ({type(member).__name__}); members are feature "
            "indices or feature names. Turn a boolean mask into indices with numpy.flatnonzero."
        )
    if not 0 <= member < n_features:
        raise ValueError(
            f"{of} has the feature index {member}; X has {n_features} features, so allowed are 0 to {n_features - 1}."
        )
    return int(member)
