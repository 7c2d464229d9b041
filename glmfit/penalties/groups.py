"""Groups of features as a user writes them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from glmfit.penalties.group_lasso import NO_GROUP


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
                        "feature can be in one group only, once. For overlapping groups, copy its column."
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
        raise ValueError("groups puts no feature into a group; put one in, or pass regularizer='UnRegularized'.")
    return tuple(labels.tolist())


def read_labels(groups: Any, n_features: int) -> np.ndarray:
    """Read one label per feature; ValueError for another shape, as that of a list of lists of features."""
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


def read_members(group: Any, members: Any, n_features: int, feature_names: Iterable[str] | None) -> list[int]:
    """Read the features of one group, an index, a name, several or a slice of all, as indices.

    Raises ValueError, with the group's name, for a group without a member and for what is no feature.
    """
    index_of = {name: index for index, name in enumerate(() if feature_names is None else feature_names)}
    if isinstance(members, slice):
        try:
            found = list(range(n_features)[members])
        except (TypeError, ValueError) as error:
            raise ValueError(f"group {group!r} is {members}; a slice needs feature indices ({error}).") from None
    else:
        members = [members] if isinstance(members, str) or not isinstance(members, Iterable) else members
        found = [_feature_index(member, group, n_features, index_of) for member in members]
    if not found:
        raise ValueError(f"group {group!r} is empty; give it at least one feature, or leave it out.")
    return found


def _feature_index(member: Any, group: Any, n_features: int, index_of: Mapping[str, int]) -> int:
    """Index of a feature given by its index or name."""
    if isinstance(member, str):
        if member not in index_of:
            known = f"the features are {list(index_of)}" if index_of else "X has no feature names: use indices"
            raise ValueError(f"group {group!r} names the feature {member!r}, which does not exist; {known}.")
        return index_of[member]
    if isinstance(member, bool | np.bool_) or not isinstance(member, int | np.integer):
        raise ValueError(
            f"group {group!r} has the member {member!r} ({type(member).__name__}); members are feature "
            "indices or feature names. Turn a boolean mask into indices with numpy.flatnonzero."
        )
    if not 0 <= member < n_features:
        raise ValueError(
            f"group {group!r} has the feature index {member}; X has {n_features} features, so allowed are 0 "
            f"to {n_features - 1}."
        )
    return int(member)
