"""The [model.design] of a manifest: bins, covariates, products and history."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from . import rules as rule
from .kernels import TIME_BASES
from .rules import Problems, check_table, guess, is_number, shown
from .splines import VALUE_BASES, BSpline, CyclicBSpline

COUNTS = "counts"  # name of the binned spikes among the signals
GAM, HISTORY = "PopulationGAM", "history"
COUNT_ESTIMATORS = ("PopulationGLM", "PopulationGLMCV", GAM)  # those that take an exposure
LABEL_ESTIMATORS = ("SoftmaxGLM", "SoftmaxGLMCV")
CLASS_ESTIMATORS = (*LABEL_ESTIMATORS, "MultinomialGLM", "MultinomialGLMCV")
_FITTED_BY = {"own": ("PopulationGLM", GAM), "others": (GAM,)}  # histories of some units only
ISOTROPIC = (BSpline.kind, CyclicBSpline.kind)  # bases whose products may have one penalty for all directions
RESAMPLE = ("mean", "nearest", "linear")
_SHORTEST_S = 1e-6  # of a bin
_WHOLE_LAG = 1e-6  # of a bin: rounding error
_LONGEST_LAG = 10**9
_LATEST_S = 1e11  # some thousand years

_NUMBER = rule.Rule("a finite number", is_number)
_WHOLE = rule.Rule("a whole number", rule.is_whole)
_PAIR = rule.Rule(
    "two numbers", lambda value: isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
)
_KEYS = {
    "bin_s": rule.Rule(f"a number of seconds of at least {_SHORTEST_S:g}", lambda v: is_number(v) and v >= _SHORTEST_S),
    "epochs": rule.either(rule.TEXT, rule.list_of(_PAIR, "a list of [start, stop] in seconds")),
    "partial_bins": rule.one_of("drop", "exposure"),
    "target": rule.TEXT,
    "units": rule.list_of(rule.either(rule.TEXT, _WHOLE), "a list of names of units"),
    "min_rate_hz": rule.NOT_NEGATIVE,
    "covariates": rule.TABLES,
    "products": rule.TABLES,
    "history": rule.TABLE,
}
_COVARIATE = {
    "signal": rule.TEXT,
    "name": rule.NAMED,
    "columns": rule.list_of(rule.either(rule.TEXT, rule.whole(0)), "a list of numbers or names of columns"),
    "basis": rule.TABLE,
    "lags": rule.list_of(_WHOLE, "a list of whole numbers of bins"),
    "lags_s": rule.list_of(_NUMBER, "a list of numbers of seconds"),
    "resample": rule.one_of(*RESAMPLE),
    "max_gap_s": rule.POSITIVE,
    "standardize": rule.BOOLEAN,
    "ridge": rule.BOOLEAN,
}
_FACTOR = {key: _COVARIATE[key] for key in ("signal", "columns", "basis", "resample", "max_gap_s")}
_PRODUCT = {"name": rule.NAMED, "factors": rule.TABLES, "isotropic": rule.BOOLEAN}
_HISTORY = {"of": rule.one_of("all", "own", "others"), "basis": rule.TABLE}
_VALUE_BASIS = {"kind": rule.TEXT, "n": rule.whole(1), "range": _PAIR, "order": rule.whole(1)}
_VALUE_BASIS |= {"penalty_order": rule.whole(0), "clamped": rule.BOOLEAN}
_TIME_BASIS = {"kind": rule.TEXT, "n": rule.whole(2), "window_s": rule.POSITIVE, "penalty_order": rule.whole(0)}
_NOT_OF = {"fourier": ("order", "clamped"), "cyclic_bspline": ("clamped",)}
_OF_PENALTIES = ("penalty_order", "ridge", "isotropic")  # keys that only models with terms take

Note = Callable[[str], None]  # reports what is wrong with a table


def read_design(
    problems: Problems, path: tuple, table: dict[str, Any], sources: Iterable[Any], estimator: str | None
) -> dict[str, Any]:
    """Check a design against its data; return it with defaults filled in."""
    note = partial(problems.add, path)
    right = check_table(problems, path, table, _KEYS, ("bin_s",))
    design = {"partial_bins": "drop", "target": COUNTS, "epochs": None, **right}
    recordings = [source for source in sources if source.kind == "recording"]
    epochs, target = design["epochs"], design["target"]
    if isinstance(epochs, str):
        check_known(note, "epochs", epochs, recordings, "epochs")
    elif epochs is not None:
        ends = [-_LATEST_S, *(stop for _, stop in epochs)]
        if wrong := [[a, b] for before, (a, b) in zip(ends, epochs, strict=False) if not before <= a < b <= _LATEST_S]:
            note(f"epochs has {shown(wrong[0])}; starts come before stops, and epochs may not overlap.")
    if target != COUNTS:
        check_known(note, "target", target, recordings, "signals")
    if estimator in LABEL_ESTIMATORS and target == COUNTS:
        note(f"target is missing; {estimator} needs the name of a signal whose values are labels.")
    elif estimator not in (None, *LABEL_ESTIMATORS) and target != COUNTS:
        note(f'target is "{target}"; {estimator} is fitted to "{COUNTS}".')
    if design["partial_bins"] == "exposure" and estimator in CLASS_ESTIMATORS:
        note(f'partial_bins is "exposure", which {estimator} does not support; use "drop".')
    if "units" in design:
        design["units"] = [str(unit) for unit in design["units"]]
        check_once(note, "units", design["units"])
    bin_s = design.get("bin_s")
    read = partial(_read_covariate, problems, recordings, bin_s, target)
    given = enumerate(right.get("covariates", []))
    design["covariates"] = [read((*path, "covariates", i), entry) for i, entry in given]
    if "products" in right:
        given = enumerate(right["products"])
        design["products"] = [_read_product(problems, read, (*path, "products", i), entry) for i, entry in given]
    _check_names(problems, path, design)
    if "history" in right:
        at = (*path, "history")
        history = design["history"] = {"of": "all", **check_table(problems, at, right["history"], _HISTORY, ("basis",))}
        fitted_by = _FITTED_BY.get(history["of"])
        if fitted_by and estimator not in (None, *fitted_by):
            words = ", ".join(fitted_by)
            problems.add(at, f'of is "{history["of"]}", which {estimator} cannot fit; use {words}, or "all".')
        if "basis" in history:
            history["basis"] = _read_basis(problems, (*at, "basis"), history["basis"], bin_s, TIME_BASES)
    elif not any(table.get(key) for key in ("covariates", "products")):
        note("there are neither covariates nor a history; a design needs features.")
    _check_penalties(problems, path, design, estimator)
    return design


def _check_names(problems: Problems, path: tuple, design: dict[str, Any]) -> None:
    """Note covariates and products whose features would have the same names."""
    called = {"history": "the spike history"}
    for kind in ("covariates", "products"):
        for i, entry in enumerate(design.get(kind, [])):
            name = entry.get("name", entry.get("signal"))
            if name in called:
                text = f'its features would be called "{name}" like those of {called[name]}; give it a name of its own.'
                problems.add((*path, kind, i), text)
            elif name is not None:
                called[name] = f"{kind[:-1]} {i + 1}"


def _check_penalties(problems: Problems, path: tuple, design: dict[str, Any], estimator: str | None) -> None:
    """Note keys about penalties of terms if the estimator has none, and keys that conflict with them."""
    for at, table in _tables(path, design):
        for key in _OF_PENALTIES if estimator not in (None, GAM) else ():
            if key in table:
                problems.add(at, f"{key} is given, which {estimator} does not support; it is for {GAM}.")
        if estimator == GAM and table.get("standardize") and "basis" in table:
            problems.add(at, f"standardize is true; {GAM} takes the functions of a basis as they are. Leave it out.")


def _tables(path: tuple, value: Any) -> Iterator[tuple[tuple, dict[str, Any]]]:
    """Yield tables in tables and lists, with their paths."""
    if isinstance(value, dict):
        yield path, value
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(entry, dict | list):
            yield from _tables((*path, key), entry)


def check_known(note: Note, key: str, name: str, recordings: list, what: str) -> None:
    """Note a name that some source of recordings does not have."""
    for source in recordings:
        known = getattr(source, what)
        if name not in known:
            note(f'{key} names "{name}", which is not among the {what} of data "{source.name}"{guess(name, known)}')


def _check_columns(note: Note, covariate: Mapping[str, Any], recordings: list) -> None:
    """Note a column that the signal of a covariate does not have, if some source of recordings names its columns."""
    signal = covariate["signal"]
    for source in recordings:
        named = source.columns.get(signal, ())
        for column in covariate.get("columns", []) if named else ():
            if isinstance(column, str) and column not in named:
                note(f'columns names "{column}", which "{signal}" of data "{source.name}" lacks{guess(column, named)}')


def check_once(note: Note, key: str, values: list) -> None:
    """Note a list in which some value occurs twice."""
    if len(set(map(str, values))) < len(values):
        note(f"{key} is {shown(values)}; each may occur once.")


def _read_product(problems: Problems, read: Callable, path: tuple, table: dict) -> dict[str, Any]:
    note = partial(problems.add, path)
    right = check_table(problems, path, table, _PRODUCT, ("name", "factors"))
    given = right.get("factors", [])
    if "factors" in right and len(given) < 2:
        note(f"factors has {len(given)} entr{'y' if len(given) == 1 else 'ies'}; a product needs at least two.")
    right["factors"] = [
        read((*path, "factors", i), entry, _FACTOR, ("signal", "basis")) for i, entry in enumerate(given)
    ]
    for i, factor in enumerate(right["factors"] if right.get("isotropic") else ()):
        basis, at = factor.get("basis", {}), (*path, "factors", i)
        if basis.get("kind") not in (None, *ISOTROPIC):
            allowed = " or ".join(f'"{kind}"' for kind in ISOTROPIC)
            problems.add(at, f'its basis is "{basis["kind"]}"; in an isotropic product it must be {allowed}.')
        elif basis.get("order", 4) < 3:
            problems.add(at, f"its basis has order {basis['order']}; in an isotropic product it must be 3 or more.")
        if "penalty_order" in basis:
            problems.add(at, "its basis has a penalty_order; an isotropic product has its own. Remove it.")
    return right


def _read_covariate(
    problems: Problems, recordings, bin_s, target, path: tuple, table: dict, rules=_COVARIATE, required=("signal",)
) -> dict[str, Any]:
    note = partial(problems.add, path)
    right = check_table(problems, path, table, rules, required)
    signal = right.get("signal")
    if signal == COUNTS:
        if target == COUNTS:
            note(f'signal is "{COUNTS}", which is the target; for the past of spikes use [model.design.history].')
        for key in ("resample", "max_gap_s"):
            if key in right:
                note(f'{key} does not apply to "{COUNTS}", which are already in bins.')
    elif signal is not None:
        check_known(note, "signal", signal, recordings, "signals")
        _check_columns(note, right, recordings)
    check_once(note, "columns", right.get("columns", []))
    if "max_gap_s" in right and right.get("resample") == "mean":
        note("max_gap_s does not apply to means, which lack a value only if a bin has no sample.")
    ways = [key for key in ("basis", "lags", "lags_s") if key in table]
    if len(ways) > 1:
        note(f"{' and '.join(ways)} are given; a covariate takes one of them.")
    if "ridge" in right and "basis" in table:
        note("ridge is given with a basis, whose penalty is that of its penalty_order; 0 is a ridge.")
    if "basis" in right:
        right["basis"] = _read_basis(problems, (*path, "basis"), right["basis"], bin_s, VALUE_BASES + TIME_BASES)
    seconds = right.get("lags_s", []) if bin_s is not None else []
    if odd := [lag for lag in seconds if abs(lag / bin_s - round(lag / bin_s)) > _WHOLE_LAG]:
        note(f"lags_s has {shown(odd)}; lags are whole numbers of bins of {bin_s:g} s.")
    for key, bins in (("lags", right.get("lags", [])), ("lags_s", [round(lag / bin_s) for lag in seconds])):
        if any(abs(lag) > _LONGEST_LAG for lag in bins):
            note(f"{key} is {shown(right[key])}; no lag may be above {_LONGEST_LAG} bins.")
        if len(set(bins)) < len(bins):
            note(f"{key} is {shown(right[key])}; each lag may occur once, in bins.")
    return right


def _read_basis(problems: Problems, path: tuple, table: dict, bin_s, kinds: tuple[str, ...]) -> dict[str, Any]:
    note, kind = partial(problems.add, path), table.get("kind")
    if kind not in kinds:
        hint = guess(kind, kinds) if isinstance(kind, str) else f"; it must be {rule.one_of(*kinds).allowed}."
        note(f"kind is {shown(kind) if 'kind' in table else 'missing'}{hint}")
        return {}
    if kind in TIME_BASES:
        right = check_table(problems, path, table, _TIME_BASIS, ("n", "window_s"))
        if "window_s" in right and bin_s is not None:
            if (lags := round(right["window_s"] / bin_s)) < (n := right.get("n", 2)):
                note(f"window_s is {right['window_s']:g}, {lags} bins of {bin_s:g} s; {n} kernels need as many.")
        if right.get("penalty_order", 0) >= right.get("n", math.inf):
            note(f"penalty_order is {right['penalty_order']}; it must be below n, {right['n']}.")
        return right
    rules = {key: allowed for key, allowed in _VALUE_BASIS.items() if key not in _NOT_OF.get(kind, ())}
    right = check_table(problems, path, table, rules, ("n", "range") if kind == "bspline" else ("n",))
    if kind != "fourier":
        right.setdefault("order", 4)
        if right.get("n", right["order"]) < right["order"]:
            note(f"n is {right['n']}, order {right['order']}; n must be at least the order.")
        if right.get("penalty_order", 0) >= right["order"]:
            note(f"penalty_order is {right['penalty_order']}; it must be below order, {right['order']}.")
    if kind != "bspline":
        right.setdefault("range", [0.0, 2 * math.pi])
    if "range" in right and right["range"][0] >= right["range"][1]:
        note(f"range is {shown(right['range'])}; it must go from low to high.")
    return right
