"""Contributions of groups of features: the [model.explain] of a manifest, computed for one task, and in its file."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...design import rules as rule
from ...design.rules import Problems, check_table, guess, is_number, shown
from ...design.schema import HISTORY, check_once
from ..process import stop
from .scores import CV, check_epochs, folds_of, labels_of, read_cv

if TYPE_CHECKING:
    from ...inference import Explanation
    from ..fits import Work
    from ..reading import Data

KINDS = ("unique", "maximal")
NULLS = ("circular_shift", "linear_shift")
PENALTIES = ("Ridge", "Lasso", "ElasticNet", "UnRegularized")
_RESERVED = ("constant", "full")  # models that always exist

_GROUPS = rule.list_of(rule.TEXT, "a list of names of groups")
_MEMBERS = rule.either(rule.TEXT, rule.list_of(rule.TEXT, "a list of names of covariates or features"))
_LEVEL = rule.Rule(
    "a number between 0 and 1, or false, which computes all draws",
    lambda value: value is False or (is_number(value) and 0 < value < 1),
)
_KINDS = rule.Rule(
    'a list of "unique" and "maximal"',
    lambda value: isinstance(value, list) and all(kind in KINDS for kind in value),
)
_KEYS = {
    "groups": rule.TABLE,
    "kinds": _KINDS,
    "order": _GROUPS,
    "models": rule.TABLE,
    "cv": CV,
    "strengths": rule.list_of(rule.NOT_NEGATIVE, "a list of finite numbers of at least 0"),
    "null": rule.TABLE,
    "null_strength": rule.either(rule.POSITIVE, rule.one_of("chosen")),
    "level": _LEVEL,
}
_NULL = {
    "circular_shift": {
        "kind": rule.TEXT, "n": rule.whole(1), "least": rule.whole(1), "within": rule.TEXT,
        "of": rule.one_of("counts", "features"),
    },
    "linear_shift": {"kind": rule.TEXT, "n": rule.whole(1), "largest": rule.whole(1)},
}  # fmt: skip

PREFIX = "explain."  # of its arrays among those of the model
# Axes of the arrays, to check a file without importing the code that made it.
AXES = {
    "members": ("model", "feature"),
    "strengths": ("strength",),
    **dict.fromkeys(("loss", "loss_off", "strength", "gap", "proved"), ("model", "fold", "neuron")),
    **dict.fromkeys(("saturated", "n_spikes"), ("fold", "neuron")),
    **dict.fromkeys(("n_fits", "n_proved", "null_strength"), ("neuron",)),
    **dict.fromkeys(
        ("p_value", "q_value", "statistic", "n_draws", "n_loose", "n_unproved_draws"), ("contribution", "neuron")
    ),
    "null_statistic": ("draw", "contribution", "neuron"),
}
_BOOLEAN = ("members", "proved")
_HEADER = dict.fromkeys(("neuron", "model", "feature", "contributions"), list)
_HEADER |= dict.fromkeys(("observation_model", "null", "status"), str)
_HEADER |= dict.fromkeys(("n_null_fits", "n_null_proved", "n_possible_draws"), int)


def read_explain(
    problems: Problems, path: tuple, table: dict[str, Any], sources: list[Data], estimator: str | None,
    penalties: Iterable[Any], design: dict[str, Any] | None,
) -> dict[str, Any]:  # fmt: skip
    """Check the explanation of a model against its design, its penalties and its data; return it with defaults."""
    right = check_table(problems, path, table, _KEYS)
    if estimator not in (None, "PopulationGLM", "PopulationGLMCV"):
        problems.add(path[:-1], f"explain is given, which {estimator} does not support; it is for PopulationGLM(CV).")
    for name in penalties:
        if isinstance(name, str) and name not in PENALTIES:
            problems.add(path, f'regularizer is "{name}"; explain takes one of {", ".join(PENALTIES)}.')
    found = {"kinds": [*KINDS], "level": 0.05, **right}
    check_once(partial(problems.add, path), "kinds", found["kinds"])
    terms = None if design is None else _terms(design)
    for name in _RESERVED if "groups" not in right else ():
        if name in (terms or ()):
            problems.add(path, f'groups is missing; a covariate is called "{name}", which a group may not be.')
    if "groups" in right:
        found["groups"] = _read_groups(problems, (*path, "groups"), right["groups"], terms)
    _check_compared(problems, path, right, found.get("groups", terms), "groups" in right)
    if isinstance(right.get("cv"), dict):
        found["cv"] = read_cv(problems, (*path, "cv"), right["cv"], sources)
    folds = found["cv"].get("n") if isinstance(found.get("cv"), dict) else found.get("cv")
    if folds == 2 and len(set(right.get("strengths", []))) > 1:
        problems.add(path, "cv has 2 folds, and there are several strengths to choose from; that needs at least 3.")
    if "null" in right:
        found["null"] = _read_null(problems, (*path, "null"), right["null"], sources)
    return found


def _terms(design: dict[str, Any]) -> list[str]:
    """Covariates and products of a design by name, and the history."""
    made = [*design["covariates"], *design.get("products", [])]
    names = [covariate.get("name", covariate.get("signal")) for covariate in made]
    return [name for name in names if name is not None] + ([HISTORY] if "history" in design else [])


def _read_groups(problems: Problems, path: tuple, table: dict[str, Any], terms: list[str] | None) -> dict:
    if not table:
        problems.add(path[:-1], "groups is empty; name at least one group, or remove it.")
    groups: dict[str, list[str]] = {}
    for name, members in table.items():
        if not rule.NAMED.fits(name):
            problems.add(path, f'"{name}" is not a name of a group; it must be {rule.NAMED.allowed}.')
        elif name in _RESERVED:
            problems.add(path, f'"{name}" is the name of a model that always exists; give the group another name.')
        elif not _MEMBERS.fits(members):
            problems.add(path, f"{name} is {shown(members)}; it must be {_MEMBERS.allowed}.")
        groups[name] = [members] if isinstance(members, str) else members if isinstance(members, list) else []
        for member in groups[name] if terms is not None else ():
            if isinstance(member, str) and not _may_be_there(member, terms):
                text = f'{name} names "{member}", which is neither a covariate of the design nor a feature of one'
                problems.add(path, text + guess(member, terms))
    return groups


def _may_be_there(member: str, terms: list[str]) -> bool:
    """Whether a name is a covariate's, or can be that of one of its features: the number of columns is not known."""
    return "*" in member or any(member == term or member.startswith(f"{term}_") for term in terms)


def _check_compared(problems: Problems, path: tuple, right: dict, groups: Iterable[str] | None, given: bool) -> None:
    """Check groups of an order and of models; ``groups`` is None if only the data determine them."""
    what = "groups" if given else "covariates of the design"
    order = right.get("order", [])
    named = [(path, "order", order)]
    if len(set(order)) < len(order):
        problems.add(path, f"order is {shown(order)}; each group may occur once.")
    for name, parts in right.get("models", {}).items():
        if not _MEMBERS.fits(parts):
            problems.add((*path, "models"), f"{name} is {shown(parts)}; it must be {_GROUPS.allowed}.")
        else:
            named.append(((*path, "models"), name, [parts] if isinstance(parts, str) else parts))
    if "models" in right and not right["models"]:
        problems.add(path, "models is empty; name at least one, or remove it.")
    for at, key, parts in named:
        for part in parts if groups is not None else ():
            if part not in groups:
                problems.add(at, f'{key} names "{part}", which is not among the {what}{guess(part, groups)}')


def _read_null(problems: Problems, path: tuple, table: Mapping[str, Any], sources: list[Data]) -> dict[str, Any]:
    kind = table.get("kind")
    if kind not in NULLS:
        hint = guess(kind, NULLS) if isinstance(kind, str) else f"; it must be {rule.one_of(*NULLS).allowed}."
        problems.add(path, f"kind is {shown(kind) if 'kind' in table else 'missing'}{hint}")
        return {}
    right = check_table(problems, path, table, _NULL[kind], ("largest",) if kind == "linear_shift" else ())
    check_epochs(problems, path, "within", right.get("within"), sources)
    if kind == "circular_shift":
        return {"n": 100, "least": 1, "of": "counts", **right}
    found = {"n": 100, **right}
    if found["n"] > right.get("largest", found["n"]):
        problems.add(path, f"n is {found['n']}, more than there are shifts of whole bins up to {right['largest']}.")
    return found


# -- one task, and its file


def explain_task(work: Work) -> Explanation:
    """Explain the responses of a task by its groups of features."""
    from ...inference import explain
    from ..models import make_estimator

    options, parts = _options(work), []
    for X, y in work.inputs():
        parts.append(explain(make_estimator(work.spec), X, y, **options, **work.given))
        if parts[-1].status != "complete":
            stop()  # an interrupted explanation is not a result
    return parts[0] if work.built.own is None else _side_by_side(parts, work.built.target_names)


def to_file(found: Explanation) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return header and arrays of an explanation, as in the file of a result."""
    from ...inference.explained.explanation import explanation_to_file

    header, arrays = explanation_to_file(found)
    return header, {f"{PREFIX}{name}": array for name, array in arrays.items()}


def from_file(header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Explanation:
    """Make the explanation of `to_file`."""
    from ...inference.explained.explanation import explanation_from_file

    found = {name.removeprefix(PREFIX): a for name, a in arrays.items() if name.startswith(PREFIX)}
    return explanation_from_file(header, found)


def check_explanation(header: Any, arrays: Mapping[str, np.ndarray], n_units: int) -> None:
    """Raise ValueError, or an error of reading damaged values, unless an explanation is complete."""
    if not isinstance(header, dict):
        raise ValueError("it lacks its explanation")
    if header.keys() != _HEADER.keys() or not all(isinstance(header[name], of) for name, of in _HEADER.items()):
        raise ValueError("its explanation is incomplete or invalid")
    sizes = {"neuron": n_units, "contribution": len(header["contributions"])}
    for axis in ("neuron", "model", "feature"):
        names = header[axis]
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"names in its explanation are not strings ({axis})")
        if sizes.setdefault(axis, len(names)) != len(names):
            raise ValueError(f"it explains {len(names)} of {n_units} neurons")
    for name, kind, *compared in header["contributions"]:
        if not (isinstance(name, str) and isinstance(kind, str) and len(compared) == 2):
            raise ValueError("its contributions have no names, or do not compare two models")
        if not all(type(k) is int and 0 <= k < sizes["model"] for k in compared):
            raise ValueError(f"its contribution {name} compares models that do not exist")
    for name, axes in AXES.items():
        array = arrays[f"{PREFIX}{name}"]
        if array.dtype.kind not in ("b" if name in _BOOLEAN else "fiu"):
            raise ValueError(f"{PREFIX}{name} is of type {array.dtype}")
        if array.ndim != len(axes) or any(sizes.setdefault(a, n) != n for a, n in zip(axes, array.shape, strict=True)):
            expected = tuple(sizes.get(axis, axis) for axis in axes)
            raise ValueError(f"{PREFIX}{name} has shape {array.shape}, not {expected}")


# -- options of a manifest as arguments of `explain`


def _options(work: Work) -> dict[str, Any]:
    asked = work.spec["explain"]
    passed = ("kinds", "order", "models", "strengths", "null_strength")
    options = {name: asked[name] for name in passed if name in asked}
    options["groups"] = groups_of(asked.get("groups"), work.built.terms or {}, work.names)
    cv = asked.get("cv")
    options["cv"] = folds_of(cv, "explain: cv", work) if isinstance(cv, dict) else cv
    options["level"] = asked["level"] or None
    if "null" in asked:
        options["null"] = _null(asked["null"], work)
    return options


def groups_of(
    given: Mapping[str, list[str]] | None, terms: Mapping[str, list[str]], features: list[str]
) -> dict[str, list[str]] | None:
    """Return the features of each group, by default every covariate and the history; None if there are none."""
    if given is None:
        return dict(terms) or None
    groups = {}
    for group, members in given.items():
        found: list[str] = []
        for member in members:
            matched = terms.get(member) or [name for name in features if name == member]
            matched = matched or [name for name in features if "*" in member and fnmatch.fnmatchcase(name, member)]
            if not matched:
                what = "which is neither a covariate nor a feature" if "*" not in member else "which no feature matches"
                raise ValueError(f'explain: group {group} names "{member}", {what}{guess(member, [*terms, *features])}')
            found += matched
        groups[group] = list(dict.fromkeys(found))
    return groups


def _null(asked: dict[str, Any], work: Work) -> Any:
    from ...inference import CircularShift, LinearShift

    if asked["kind"] == "linear_shift":
        return LinearShift(asked["largest"], asked["n"])
    within = None
    if "within" in asked:
        labels = labels_of(asked["within"], "explain: within", work)
        if not np.any(labels >= 0):
            raise ValueError(f'explain: no bin of the design is within the epochs "{asked["within"]}".')
        within = np.where(labels >= 0, labels, -1 - np.arange(len(labels)))  # rows by themselves stay where they are
    return CircularShift(asked["n"], within, asked["least"], asked["of"], work.spec["seed"])


def _side_by_side(parts: list[Explanation], names: list[str]) -> Explanation:
    """Join explanations of one neuron each; discoveries are counted over all of them."""
    from ...inference.explained.explanation import false_discovery_rate

    changes: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=-1)
        for name, axes in AXES.items()
        if axes[-1] == "neuron"
    }
    changes["strengths"] = np.unique(np.concatenate([part.strengths for part in parts]))
    changes |= {name: sum(getattr(part, name) for part in parts) for name in ("n_null_fits", "n_null_proved")}
    changes["q_value"] = false_discovery_rate(changes["p_value"], [c.kind for c in parts[0].contributions])
    return replace(parts[0], neuron=list(names), **changes)
