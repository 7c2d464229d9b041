"""Groups of features as a user writes them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def read_labels(groups: Any, n_features: int) -> np.ndarray:
    """Read one label per feature, or raise ValueError.

    Parameters
    ----------
    groups : array-like of shape (feature,)
        Labels.
    n_features : int
        How many there must be.

    Raises
    ------
    ValueError
        For another shape, as that of a list of lists of features.
    """
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
    """Read the features of one group as indices, or raise ValueError.

    Parameters
    ----------
    group :
        Its name, for errors.
    members : int, str, slice or iterable of int or str
        Feature indices or names; a slice as of a list of all features.
    n_features : int
        How many features there are.
    feature_names : iterable of str, optional
        Their names, for members given by names.

    Raises
    ------
    ValueError
        For a group without a member and for what is no feature.
    """
    index_of = {name: index for index, name in enumerate(() if feature_names is None else feature_names)}
    if isinstance(members, slice):
        found = _of_slice(group, members, n_features)
    else:
        members = [members] if isinstance(members, str) or not isinstance(members, Iterable) else members
        found = [_feature_index(member, group, n_features, index_of) for member in members]
    if not found:
        raise ValueError(f"group {group!r} is empty; give it at least one feature, or leave it out.")
    return found


def _of_slice(group: Any, members: slice, n_features: int) -> list[int]:
    try:
        return list(range(n_features)[members])
    except (TypeError, ValueError) as error:
        raise ValueError(f"group {group!r} is {members}; a slice needs feature indices ({error}).") from None


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
