"""The [model.explain] of a manifest: groups of features, comparisons, folds, strengths and a null."""

from collections.abc import Iterable, Mapping
from typing import Any

from ...design import rules as rule
from ...design.rules import Problems, check_table, guess, is_number, shown
from ..reading import Data
from .scores import CV, check_epochs, read_cv

KINDS = ("unique", "maximal")
NULLS = ("circular_shift", "linear_shift")
PENALTIES = ("Ridge", "Lasso", "ElasticNet", "UnRegularized")
_RESERVED = ("constant", "full")  # models that always exist
_HISTORY = "history"

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
    if len(set(found["kinds"])) < len(found["kinds"]):
        problems.add(path, f"kinds is {shown(found['kinds'])}; each may occur once.")
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
    return [name for name in names if name is not None] + ([_HISTORY] if "history" in design else [])


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
    named = [(path, "order", right.get("order", []))]
    order = right.get("order", [])
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
