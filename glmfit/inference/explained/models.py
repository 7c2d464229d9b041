"""Nested models from the arguments of a user: the features of each, and the comparisons."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...checks import check_choice
from ...penalties.by_name import read_labels, read_members

CONSTANT, FULL = "constant", "full"


class Contribution(NamedTuple):
    """Gain in prediction of one model over another.

    Attributes
    ----------
    name : str
        Name of the group, or of the model.
    kind : {"unique", "maximal", "added", "whole", "model"}
        Comparison: all features with all but the group, the group with a constant, the groups up to this one with those
        before it, all features with a constant, a model of the user with a constant.
    more, less : int
        Indices of the model with more features, and of the other.
    """

    name: str
    kind: str
    more: int
    less: int


class ModelList:
    """Models and their comparisons; models with the same features are one, with the first name."""

    def __init__(self, n_features: int):
        self.names: list[str] = []
        self.contributions: list[Contribution] = []
        self._n_features, self._index = n_features, {}  # of models by the bytes of their features

    @property
    def masks(self) -> np.ndarray:
        """Features of each model, bool (model, feature)."""
        return np.array([np.frombuffer(key, bool) for key in self._index])

    def add(self, name: str, members: Iterable[int]) -> int:
        """Add a model if it is new; return its index."""
        mask = np.zeros(self._n_features, bool)
        mask[list(members)] = True
        index = self._index.setdefault(mask.tobytes(), len(self.names))
        if index == len(self.names):
            self.names.append(name)
        return index

    def compare(self, name: str, kind: str, more: int, less: int) -> None:
        """Add a comparison of two models."""
        self.contributions.append(Contribution(name, kind, more, less))


def read_groups(groups: Any, n_features: int, names: Sequence[str] | None) -> dict[str, list[int]]:
    """Read groups of features as name -> indices; by default each feature is a group."""
    if groups is None:
        named = range(n_features) if names is None else names
        return {str(name): [k] for k, name in enumerate(named)}
    if not hasattr(groups, "items"):
        labels = read_labels(groups, n_features)
        return {str(label): np.flatnonzero(labels == label).tolist() for label in dict.fromkeys(labels.tolist())}
    found = {str(name): read_members(name, members, n_features, names) for name, members in groups.items()}
    if not found:
        raise ValueError("groups is empty; name at least one group of features.")
    return found


def read_models(groups: dict[str, list[int]], n_features: int, kinds: Any, order: Any, models: Any) -> ModelList:
    """Make the models that the kinds of contributions compare, and those of the user.

    The constant model comes first, then that of all features.
    """
    kinds = [kinds] if isinstance(kinds, str) or not isinstance(kinds, Iterable) else list(kinds)
    for kind in kinds:
        check_choice("kinds", kind, ("unique", "maximal"), "For groups added one after the other pass order=[...].")
    reserved = [name for name in groups if name in (CONSTANT, FULL)]
    if reserved:
        raise ValueError(f"groups has a group {reserved[0]!r}, which is the name of a model; give it another name.")
    made = ModelList(n_features)
    constant, full = made.add(CONSTANT, []), made.add(FULL, range(n_features))
    made.compare("all", "whole", full, constant)
    for name, members in groups.items():
        if "unique" in kinds:
            rest = np.setdiff1d(np.arange(n_features), members)
            made.compare(name, "unique", full, made.add(f"without {name}", rest))
        if "maximal" in kinds:
            made.compare(name, "maximal", made.add(f"only {name}", members), constant)
    if order is not None:
        _add_in_order(made, groups, order, constant)
    if models is not None:
        _add_of_user(made, groups, models, constant)
    return made


def _add_in_order(made: ModelList, groups: dict, order: Any, before: int) -> None:
    order = [order] if isinstance(order, str) else list(order)
    _refuse_unknown(order, groups, "order")
    if len(set(order)) < len(order):
        raise ValueError(f"order is {order!r}; each group may occur only once.")
    members: list[int] = []
    for k, name in enumerate(order):
        members += groups[name]
        after = made.add(" + ".join(order[: k + 1]), members)
        made.compare(name, "added", after, before)
        before = after


def _add_of_user(made: ModelList, groups: dict, models: Any, constant: int) -> None:
    if not isinstance(models, Mapping) or not models:
        raise ValueError(f"models is {models!r}; it must map names of models to lists of groups, {{name: [group]}}.")
    for name, parts in models.items():
        parts = [parts] if isinstance(parts, str) else list(parts)
        _refuse_unknown(parts, groups, f"models[{name!r}]")
        index = made.add(str(name), [k for part in parts for k in groups[part]])
        if made.names[index] not in (CONSTANT, FULL):
            made.names[index] = str(name)
        made.compare(str(name), "model", index, constant)


def _refuse_unknown(names: list, groups: dict, what: str) -> None:
    for name in names:
        if name not in groups:
            raise ValueError(f"{what} names the group {name!r}, which does not exist; the groups are {list(groups)}.")
