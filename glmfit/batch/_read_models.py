"""The [[model]] of a manifest: estimators, their parameters and grids, designs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..design._schema import NAMED, TABLE, TEXT, Problems, check_table, guess, is_plain, list_of, shown
from ..design.settings import read_design
from ._estimators import ESTIMATORS, parameters_of, why_not
from ._read_data import Data

_KEYS = {
    "name": NAMED,
    "estimator": TEXT,
    "data": list_of(TEXT, "a list of names of data"),
    "parameters": TABLE,
    "grid": TABLE,
    "design": TABLE,
}


@dataclass(frozen=True)
class Model:
    """One configuration of an estimator and a design."""

    name: str  # with the place in the grid for members of one
    estimator: str
    parameters: dict[str, Any]
    design: dict[str, Any] | None  # of recordings
    data: tuple[str, ...]  # sources whose sessions it is fitted to


def read_model(
    problems: Problems, path: tuple, table: dict[str, Any], data: Mapping[str, Data], values: bool = True
) -> list[Model]:
    """Check one model, names and values of parameters on request; one configuration for each member of its grid."""
    before = len(problems)
    right = check_table(problems, path, table, _KEYS, ("name", "estimator"))
    estimator = right.get("estimator")
    if estimator is not None and estimator not in ESTIMATORS:
        problems.add(path, f"estimator is {shown(estimator)}{guess(estimator, ESTIMATORS)}")
        estimator = None
    names = tuple(dict.fromkeys(right.get("data", data)))
    for name in names:
        if name not in data:
            problems.add(path, f'data names "{name}", which is no [[data]]{guess(name, data)}')
    sources = [data[name] for name in names if name in data]
    parameters, grid = right.get("parameters", {}), right.get("grid", {})
    members = _members(problems, path, parameters, grid, estimator, values)
    design = _design(problems, path, table, sources, estimator)
    if len(problems) > before or estimator is None:
        return []
    return [
        Model(right["name"] + suffix, estimator, {**parameters, **member}, design, names) for suffix, member in members
    ]


def _members(problems: Problems, path: tuple, parameters: dict, grid: dict, estimator: str | None, check: bool) -> list:
    """Every combination of a grid, with what it adds to the name."""
    before = len(problems)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            problems.add((*path, "grid"), f"{key} is {shown(values)}; it must be a list of values to try.")
        elif any(value in values[:i] for i, value in enumerate(values)):
            problems.add((*path, "grid"), f"{key} is {shown(values)}; each value may be there once.")
        if key in parameters:
            problems.add((*path, "grid"), f"{key} is given by the parameters as well; leave one of them out.")
    for what, keys in (("parameters", parameters), ("grid", grid)):
        for key in (key for key in keys if not is_plain(keys[key])):
            text = f"{key} is {shown(keys[key])}; it must be made of texts, finite numbers, true and false."
            problems.add((*path, what), text)
        if check and estimator is not None:
            _check_names(problems, (*path, what), keys, estimator)
    if len(problems) > before or estimator is None:
        return []
    members = []
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        label = ",".join(f"{key}={_short(value)}" for key, value in chosen.items())
        members.append((f"[{label}]" if label else "", chosen))
        if check:
            _check_values(problems, path, estimator, parameters, chosen)
    return members


def _check_values(problems: Problems, path: tuple, estimator: str, parameters: dict, chosen: dict) -> None:
    """Note values that make no sense, where they are given."""
    from ._check_parameters import wrong_values

    for about, text in wrong_values(estimator, {**parameters, **chosen}):
        given = next((key for key in (*parameters, *chosen) if text.startswith(f"{key} ")), about)
        table = "grid" if given in chosen else "parameters" if given in parameters else None
        problems.add((*path, table) if table else path, text if given in text else f"{given}: {text}")


def _check_names(problems: Problems, path: tuple, keys: dict, estimator: str) -> None:
    """Note parameters that the estimator does not have, or that are not for manifests."""
    known = parameters_of(estimator)
    for key in keys:
        if key in known:
            continue
        reason = why_not(key)
        problems.add(path, f"{key} {reason}." if reason else f"{key} is no parameter of {estimator}{guess(key, known)}")


def _design(problems: Problems, path: tuple, table: dict, sources: list[Data], estimator: str | None):
    """Check whether there is to be a design, and the design."""
    kinds = {source.kind for source in sources}
    if "design" in table:
        if "matrices" in kinds:
            names = ", ".join(f'"{source.name}"' for source in sources if source.kind == "matrices")
            problems.add(path, f"design is given, but the data {names} are matrices, which have one already.")
        if isinstance(table["design"], dict):
            return read_design(problems, (*path, "design"), table["design"], sources, estimator)
    elif "recording" in kinds:
        names = ", ".join(f'"{source.name}"' for source in sources if source.kind == "recording")
        problems.add(path, f"design is missing; the data {names} are recordings. Add [model.design] with bin_s.")
    return None


def _short(value: Any) -> str:
    """Write a value within a name."""
    return value if isinstance(value, str) else shown(value).replace(" ", "")
