"""From the words of a user to a penalty."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from glmfit.checks import not_text, shorten
from glmfit.penalties.base import Penalty
from glmfit.penalties.elementwise import ElasticNet, Lasso, NoPenalty, Ridge
from glmfit.penalties.group_lasso import NO_GROUP, GroupLasso
from glmfit.penalties.groups import group_labels

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
    """Make the penalty of a name and a strength, checking both.

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
        One label per feature, integers (-1: not penalised) or strings; or group name -> feature
        indices or names, one, a list or a slice, where the features in no group are not penalised.
    feature_names : sequence of str, optional
        Names of the features, for groups given by names.
    dtype : dtype, optional
        Of the strength; the formulas bring it to the dtype of the coefficients.

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
                f"regularizer_strength is {strength!r}, but regularizer is 'UnRegularized', which has none. Leave it "
                "out, or pass regularizer='Ridge'."
            )
        return NoPenalty(np.zeros((), dtype))
    return cls(_strength(strength, n_neurons, n_features, "feature", dtype))


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
