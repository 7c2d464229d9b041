"""The [[model]] of a manifest: estimators, their parameters and grids, designs."""

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import glmfit

from ..checks import as_numbers
from ..design import rules as rule
from ..design.rules import Problems, check_table, guess, is_plain, shown
from ..design.schema import CLASS_ESTIMATORS, COUNT_ESTIMATORS, GAM, read_design
from .held_out.explained import read_explain
from .held_out.scores import read_score
from .reading import Data

ESTIMATORS = (*COUNT_ESTIMATORS, *CLASS_ESTIMATORS)  # imported when they are needed
_SET_ELSEWHERE = {
    "random_state": "is set by the manifest's seed",
    "pad_shapes": "has no effect since version 0.2; remove it",
    "devices": "is not for batches: a worker has one device",
    "verbose": "is not for batches: nobody would see it",
}
_KEYS = {"name": rule.NAMED, "estimator": rule.TEXT, "data": rule.list_of(rule.TEXT, "a list of names of data")}
_KEYS |= dict.fromkeys(("parameters", "grid", "design", "explain", "score"), rule.TABLE)


@dataclass(frozen=True)
class Model:
    """One configuration of an estimator and a design."""

    name: str  # with the grid values for members of a grid
    estimator: str
    parameters: dict[str, Any]
    design: dict[str, Any] | None  # of recordings
    data: tuple[str, ...]  # sources whose sessions it is fitted to
    explain: dict[str, Any] | None = None  # how to explain by groups of features
    score: dict[str, Any] | None = None  # how to score on held-out data


def read_model(
    problems: Problems, path: tuple, table: dict[str, Any], data: Mapping[str, Data], values: bool = True
) -> list[Model]:
    """Check one model, its parameters on request; return one configuration for each member of its grid."""
    before = len(problems)
    right = check_table(problems, path, table, _KEYS, ("name", "estimator"))
    estimator = right.get("estimator")
    if estimator is not None and estimator not in ESTIMATORS:
        problems.add(path, f"estimator is {shown(estimator)}{guess(estimator, ESTIMATORS)}")
        estimator = None
    wrong = "data" in table and "data" not in right
    names = () if wrong else tuple(dict.fromkeys(right.get("data", data)))
    for name in names:
        if name not in data:
            problems.add(path, f'data names "{name}", which is not a [[data]] name{guess(name, data)}')
    sources = [data[name] for name in names if name in data]
    parameters, grid = right.get("parameters", {}), right.get("grid", {})
    members = _members(problems, path, parameters, grid, estimator, values)
    if wrong:  # what follows depends on the data
        return []
    design = _design(problems, path, table, sources, estimator)
    explained = scored = None
    if "score" in right:
        scored = read_score(problems, (*path, "score"), right["score"], sources, estimator)
    if "explain" in right:
        tried = grid.get("regularizer")
        penalties = [parameters.get("regularizer"), *(tried if isinstance(tried, list) else ())]
        at = (*path, "explain")
        explained = read_explain(problems, at, right["explain"], sources, estimator, penalties, design)
    if len(problems) > before or estimator is None:
        return []
    common = design, names, explained, scored
    return [Model(right["name"] + end, estimator, parameters | chosen, *common) for end, chosen in members]


def _members(problems: Problems, path: tuple, parameters: dict, grid: dict, estimator: str | None, check: bool) -> list:
    """List every combination of a grid, each with its addition to the name."""
    before = len(problems)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            problems.add((*path, "grid"), f"{key} is {shown(values)}; it must be a list of values to try.")
        elif any(value in values[:i] for i, value in enumerate(values)):
            problems.add((*path, "grid"), f"{key} is {shown(values)}; each value may occur once.")
        if key in parameters:
            problems.add((*path, "grid"), f"{key} is also given in the parameters; remove one of them.")
    for what, keys in (("parameters", parameters), ("grid", grid)):
        for key in (key for key in keys if not is_plain(keys[key])):
            text = f"{key} is {shown(keys[key])}; it must be made of strings, finite numbers, true and false."
            problems.add((*path, what), text)
        if check and estimator is not None:
            taken = [k for k in inspect.signature(getattr(glmfit, estimator)).parameters if k not in _SET_ELSEWHERE]
            for key in keys:
                if key in _SET_ELSEWHERE:
                    problems.add((*path, what), f"{key} {_SET_ELSEWHERE[key]}.")
                elif key not in taken:
                    problems.add((*path, what), f"{key} is not a parameter of {estimator}{guess(key, taken)}")
    if len(problems) > before or estimator is None:
        return []
    members = []
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        words = [value if isinstance(value, str) else shown(value).replace(" ", "") for value in values]
        label = ",".join(map("{}={}".format, grid, words))
        members.append((f"[{label}]" if label else "", chosen))
        if check:
            _check_values(problems, path, estimator, parameters, chosen)
    return members


def _design(problems: Problems, path: tuple, table: dict, sources: list[Data], estimator: str | None):
    kind = "matrices" if "design" in table else "recording"
    names = ", ".join(f'"{source.name}"' for source in sources if source.kind == kind)
    if "design" not in table:
        if names:
            problems.add(path, f"design is missing; the data {names} are recordings. Add [model.design] with bin_s.")
        return None
    if names:
        problems.add(path, f"design is given, but the data {names} are matrices, which have one already.")
    for key in ("terms", "feature_mask") if estimator == GAM else ():
        for what in ("parameters", "grid"):
            if key in (table.get(what) if isinstance(table.get(what), dict) else {}):
                problems.add((*path, what), f"{key} is made from the design: remove it.")
    if isinstance(table["design"], dict):
        return read_design(problems, (*path, "design"), table["design"], sources, estimator)
    return None


def make_estimator(spec: dict[str, Any], **made: Any) -> Any:
    """Make the estimator of a task's spec, not fitted, with further arguments made from its design."""
    parameters = {name: value for name, value in spec["parameters"].items() if name != "pad_shapes"}
    strength = parameters.get("regularizer_strength")  # and ratio, a tuple for the elastic net
    if parameters.get("regularizer") == "ElasticNet" and isinstance(strength, list) and len(strength) == 2:
        parameters["regularizer_strength"] = tuple(strength)
    return getattr(glmfit, spec["estimator"])(**parameters, **made, random_state=spec["seed"])


# -- values of parameters: all checks that need no data


def _check_values(problems: Problems, path: tuple, estimator: str, parameters: dict, chosen: dict) -> None:
    """Note invalid values, in the table that gives them."""
    model = make_estimator({"estimator": estimator, "parameters": {**parameters, **chosen}, "seed": 0})
    for about, check in _checks(model, estimator).items():
        try:
            check()
        except (TypeError, ValueError) as error:
            text = str(error)
            given = next((key for key in (*parameters, *chosen) if text.startswith(f"{key} ")), about)
            table = "grid" if given in chosen else "parameters" if given in parameters else None
            problems.add((*path, table) if table else path, text if given in text else f"{given}: {text}")


def _checks(model: Any, estimator: str) -> dict[str, Callable[[], Any]]:
    """List checks by the parameter that each is about."""
    from ..checks import check_flag, check_positive, check_real, check_whole
    from ..estimators.cv_fits import read_tried
    from ..estimators.dispersion import read_dispersion
    from ..estimators.parameters import read_solver
    from ..estimators.population_glm_cv import SOLVERS as CV_SOLVERS
    from ..observations import find

    readers = dict.fromkeys(("tol", "cv_tol", "max_memory"), check_positive)
    readers |= {"certify": check_flag, "max_epochs": check_whole}
    if estimator not in COUNT_ESTIMATORS and model.max_epochs is None:
        del readers["max_epochs"]  # as many as the solver takes
    there = [name for name in readers if hasattr(model, name)]
    checks = {name: partial(readers[name], name, getattr(model, name)) for name in there}
    if estimator not in COUNT_ESTIMATORS:
        checks |= {"solver_name": model._make_solver, "regularizer_strength": model._strength, "step": model._read_step}
        checks |= {"step_decay": partial(check_real, "step_decay", model.step_decay, 1.0, closed=True)}
        checks |= {"groups": partial(_check_class_penalty, model)}
        if hasattr(model, "strengths"):
            strengths = partial(read_tried, model.strengths, model._alone.__name__)
            checks |= {"strengths": strengths, "scoring": model._check_words}
        return checks
    checks["observation_model"] = partial(find, model.observation_model, model.inverse_link_function)
    checks["dispersion"] = lambda: read_dispersion(model.dispersion, model._family(), np.size(model.dispersion))
    if estimator == "PopulationGLM":
        return checks | {"solver_name": partial(_check_solver, model), "regularizer": partial(_check_penalty, model)}
    if estimator == GAM:
        return checks | {"strengths": partial(_check_strengths, model.strengths), "terms": partial(_check_terms, model)}
    solver = partial(read_solver, model.solver_name, model.solver_kwargs, CV_SOLVERS)
    strengths = partial(read_tried, model.strengths)
    words = {"regularizer": model._check_words, "groups": partial(_check_penalty, model)}
    return checks | {"solver_name": solver, "strengths": strengths} | words


def _check_strengths(given: Any) -> None:
    """Check strengths as far as possible without the numbers of penalties and neurons."""
    from ..estimators.gam.terms import CHOSEN

    if isinstance(given, str):
        if given not in CHOSEN:
            text = f"strengths is {given!r}{guess(given, CHOSEN)}"
            raise ValueError(f"{text} Or give numbers, a table of them by term or one for all.")
        return
    for name, of in given.items() if isinstance(given, dict) else [(None, given)]:
        what = "strengths" if name is None else f"strengths of {name!r}"
        values = as_numbers(what, of)
        if not np.isfinite(values).all() or np.any(values < 0):
            raise ValueError(f"{what} is {shown(of)}; strengths must be finite and >= 0.")


def _check_terms(model: Any) -> None:
    """Check terms of matrices: lists of features, each with a ridge."""
    if model.terms is None:
        return
    if not isinstance(model.terms, dict):
        raise ValueError(f"terms is {shown(model.terms)}; it must be a table, name = [features].")
    for name, features in model.terms.items():
        if not isinstance(features, list) or not all(isinstance(f, int | str) for f in features):
            raise ValueError(
                f"terms has {name} = {shown(features)}; it must be a list of numbers or names of features."
            )


def _check_solver(model: Any) -> None:
    """Check the solver, and that it supports the penalty and the link."""
    from ..estimators.parameters import read_solver
    from ..penalties.by_name import BY_NAME

    solver = read_solver(model.solver_name, model.solver_kwargs)
    with_kinks = [name for name, kind in BY_NAME.items() if not kind.smooth]
    smooth = getattr(solver, "smooth", None)  # None: it takes any penalty
    if smooth is not None and smooth == (model.regularizer in with_kinks):
        needs = "a smooth penalty" if smooth else "a penalty with kinks"
        raise ValueError(f'solver_name is {model.solver_name!r}, which needs {needs}; use "auto".')
    if getattr(solver, "certificate", None) == "global" and model._family().name == "exp":
        raise ValueError('certificate is "global", which the exp link does not have; use "anchored".')


def _check_class_penalty(model: Any) -> None:
    """Check regulariser and groups of a model of classes, and that the solver supports the penalty."""
    from ..penalties.by_name import BY_NAME

    if model.regularizer not in (*BY_NAME, None):
        return  # noted already
    _check_penalty(model)
    has_kinks = model.regularizer is not None and not BY_NAME[model.regularizer].smooth
    if model.solver_name != "auto" and has_kinks != (model.solver_name == "ProximalNewton"):
        kind = "has kinks" if has_kinks else "has no kinks"
        raise ValueError(f'solver_name is {model.solver_name!r}, and the penalty {kind}; use "auto".')


def _check_penalty(model: Any) -> None:
    """Check regulariser and strength as far as possible without the numbers of features and neurons."""
    from .. import penalties
    from ..estimators.parameters import check_ratio

    check_ratio(model.l1_ratio)
    strength = getattr(model, "regularizer_strength", None)
    if isinstance(strength, list) or (isinstance(strength, tuple) and any(isinstance(s, list) for s in strength)):
        strength = None  # one per neuron: checked with the data
    if model.regularizer == "ElasticNet" and not isinstance(strength, tuple):
        strength = strength, model.l1_ratio
    if model.regularizer != "GroupLasso" or model.groups is None:
        penalties.make(model.regularizer, strength, 1, 1, groups=model.groups)
