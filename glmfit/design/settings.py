"""The [model.design] of a manifest: bins, covariates, spike history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._schema import (
    BOOLEAN,
    NAMED,
    NOT_NEGATIVE,
    POSITIVE,
    TABLE,
    TEXT,
    Problems,
    Rule,
    check_table,
    either,
    guess,
    is_number,
    is_whole,
    list_of,
    one_of,
    shown,
    whole,
)
from .bases import TIME_BASES, VALUE_BASES, lags_of

COUNTS = "counts"  # name of the binned spikes among the signals
COUNT_ESTIMATORS = ("PopulationGLM", "PopulationGLMCV")  # those that know an exposure
RESAMPLE = ("mean", "nearest", "linear")
_SHORTEST_BIN_S = 1e-6

_NUMBER = Rule("a finite number", is_number)
_WHOLE = Rule("a whole number", is_whole)
_PAIR = Rule("two numbers", lambda value: isinstance(value, list) and len(value) == 2 and all(map(is_number, value)))
_KEYS = {
    "bin_s": Rule(
        f"a number of seconds of at least {_SHORTEST_BIN_S:g}",
        lambda value: is_number(value) and value >= _SHORTEST_BIN_S,
    ),
    "epochs": either(TEXT, list_of(_PAIR, "a list of [start, stop] in seconds")),
    "partial_bins": one_of("drop", "exposure"),
    "target": TEXT,
    "units": list_of(either(TEXT, _WHOLE), "a list of names of units"),
    "min_rate_hz": NOT_NEGATIVE,
    "covariates": Rule(
        "an array of tables", lambda value: isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
    ),
    "history": TABLE,
}
_WHOLE_LAG = 1e-6  # of a bin: what rounding leaves
_LONGEST_LAG = 10**9
_LATEST_S = 1e11  # some thousand years
_COVARIATE = {
    "signal": TEXT,
    "name": NAMED,
    "columns": list_of(either(TEXT, whole(0)), "a list of numbers or names of columns"),
    "basis": TABLE,
    "lags": list_of(_WHOLE, "a list of whole numbers of bins"),
    "lags_s": list_of(_NUMBER, "a list of numbers of seconds"),
    "resample": one_of(*RESAMPLE),
    "max_gap_s": POSITIVE,
    "standardize": BOOLEAN,
}
_HISTORY = {"of": one_of("all", "own"), "basis": TABLE}
_VALUE_BASIS = {"kind": TEXT, "n": whole(1), "range": _PAIR, "order": whole(1)}
_TIME_BASIS = {"kind": TEXT, "n": whole(2), "window_s": POSITIVE}


def read_design(
    problems: Problems, path: tuple, table: dict[str, Any], sources: Iterable[Any], estimator: str | None
) -> dict[str, Any]:
    """Check a design against the data it is for; with its defaults filled in."""
    right = check_table(problems, path, table, _KEYS, ("bin_s",))
    design = {"partial_bins": "drop", "target": COUNTS, "epochs": None, **right}
    recordings = [source for source in sources if source.kind == "recording"]
    if isinstance(design["epochs"], str):
        _check_known(problems, path, "epochs", design["epochs"], recordings, "epochs")
    elif design["epochs"] is not None:
        _check_increasing(problems, path, design["epochs"])
    _check_target(problems, path, design, recordings, estimator)
    if design["partial_bins"] == "exposure" and estimator in ("SoftmaxGLM", "MultinomialGLM"):
        problems.add(path, f'partial_bins is "exposure", which {estimator} does not know; use "drop".')
    if "units" in design:
        design["units"] = [str(unit) for unit in design["units"]]
        if len(set(design["units"])) < len(design["units"]):
            problems.add(path, f"units is {shown(design['units'])}; each may be there once.")
    bin_s = design.get("bin_s")
    design["covariates"] = [
        _read_covariate(problems, (*path, "covariates", i), entry, recordings, bin_s, design["target"])
        for i, entry in enumerate(right.get("covariates", []))
    ]
    _check_prefixes(problems, path, design["covariates"])
    if "history" in right:
        design["history"] = _read_history(problems, (*path, "history"), right["history"], bin_s, estimator)
    elif not design["covariates"] and not table.get("covariates"):
        problems.add(path, "there are neither covariates nor a history; a design needs features.")
    return design


def _check_target(problems: Problems, path: tuple, design: dict, recordings: list, estimator) -> None:
    target = design["target"]
    if target != COUNTS:
        _check_known(problems, path, "target", target, recordings, "signals")
    if estimator == "SoftmaxGLM" and target == COUNTS:
        problems.add(path, "target is missing; SoftmaxGLM needs the name of a signal whose values are labels.")
    elif estimator not in (None, "SoftmaxGLM") and target != COUNTS:
        problems.add(path, f'target is "{target}"; {estimator} is fitted to "{COUNTS}".')


def _check_known(problems: Problems, path: tuple, key: str, name: str, recordings: list, what: str) -> None:
    """Note a name that some source of recordings does not have."""
    for source in recordings:
        known = getattr(source, what)
        if name not in known:
            text = f'{key} names "{name}", which is not among the {what} of data "{source.name}"{guess(name, known)}'
            problems.add(path, text)


def _check_increasing(problems: Problems, path: tuple, epochs: list) -> None:
    before = None
    for start, stop in epochs:
        if start >= stop or (before is not None and start < before) or max(abs(start), abs(stop)) > _LATEST_S:
            text = f"epochs has {shown([start, stop])}; starts come before stops, and epochs may not overlap."
            problems.add(path, text)
            return
        before = stop


def _read_covariate(problems: Problems, path: tuple, table, recordings, bin_s, target) -> dict[str, Any]:
    right = check_table(problems, path, table, _COVARIATE, ("signal",))
    signal = right.get("signal")
    if signal == COUNTS:
        if target == COUNTS:
            text = f'signal is "{COUNTS}", which is the target; for the past of spikes use [model.design.history].'
            problems.add(path, text)
    elif signal is not None:
        _check_known(problems, path, "signal", signal, recordings, "signals")
    if len(set(map(str, right.get("columns", [])))) < len(right.get("columns", [])):
        problems.add(path, f"columns is {shown(right['columns'])}; each may be there once.")
    for key in ("resample", "max_gap_s"):
        if key in right and signal == COUNTS:
            problems.add(path, f'{key} is not for "{COUNTS}", which are in bins already.')
    if "max_gap_s" in right and right.get("resample") == "mean":
        problems.add(path, "max_gap_s is not for means, which have no value only where a bin has no sample.")
    ways = [key for key in ("basis", "lags", "lags_s") if key in table]
    if len(ways) > 1:
        problems.add(path, f"{' and '.join(ways)} are given; a covariate takes one of them.")
    if "basis" in right:
        right["basis"] = _read_basis(problems, (*path, "basis"), right["basis"], bin_s, VALUE_BASES + TIME_BASES)
    for key in ("lags", "lags_s"):
        bins = right.get(key, [])
        if key == "lags_s" and bin_s is not None:
            odd = [lag for lag in bins if abs(lag / bin_s - round(lag / bin_s)) > _WHOLE_LAG]
            if odd:
                problems.add(path, f"lags_s has {shown(odd)}; lags are whole numbers of bins of {bin_s:g} s.")
            bins = [round(lag / bin_s) for lag in bins]
        if any(abs(lag) > _LONGEST_LAG for lag in bins):
            problems.add(path, f"{key} is {shown(right[key])}; no lag may be above {_LONGEST_LAG} bins.")
        if len(set(bins)) < len(bins):
            problems.add(path, f"{key} is {shown(right[key])}; each lag may be there once, in bins.")
    return right


def _check_prefixes(problems: Problems, path: tuple, covariates: list[dict]) -> None:
    """Note covariates whose features would have the same names."""
    seen = {"history": "the spike history"}
    for i, covariate in enumerate(covariates):
        name = covariate.get("name", covariate.get("signal"))
        if name in seen:
            text = f'its features would be called "{name}" like those of {seen[name]}; give it a name of its own.'
            problems.add((*path, "covariates", i), text)
        elif name is not None:
            seen[name] = f"covariate {i + 1}"


def _read_history(problems: Problems, path: tuple, table: dict, bin_s, estimator) -> dict[str, Any]:
    right = {"of": "all", **check_table(problems, path, table, _HISTORY, ("basis",))}
    if right["of"] == "own" and estimator not in (None, "PopulationGLM"):
        problems.add(path, f'of is "own", which {estimator} cannot fit; use PopulationGLM, or "all".')
    if "basis" in right:
        right["basis"] = _read_basis(problems, (*path, "basis"), right["basis"], bin_s, TIME_BASES)
    return right


def _read_basis(problems: Problems, path: tuple, table: dict, bin_s, kinds: tuple[str, ...]) -> dict[str, Any]:
    kind = table.get("kind")
    if kind not in kinds:
        if "kind" not in table:
            problems.add(path, f"kind is missing; it must be {one_of(*kinds).allowed}.")
        else:
            hint = guess(kind, kinds) if isinstance(kind, str) else f"; it must be {one_of(*kinds).allowed}."
            problems.add(path, f"kind is {shown(kind)}{hint}")
        return {}
    if kind in TIME_BASES:
        right = check_table(problems, path, table, _TIME_BASIS, ("n", "window_s"))
        if "window_s" in right and bin_s is not None:
            lags, n = lags_of(right["window_s"], bin_s), right.get("n", 2)
            if lags < n:
                text = f"window_s is {right['window_s']:g}, {lags} bins of {bin_s:g} s; {n} kernels need as many."
                problems.add(path, text)
        return right
    rules = {key: rule for key, rule in _VALUE_BASIS.items() if key != "order" or kind != "fourier"}
    right = check_table(problems, path, table, rules, ("n", "range") if kind == "bspline" else ("n",))
    if kind != "fourier":
        right.setdefault("order", 4)
        if right.get("n", right["order"]) < right["order"]:
            problems.add(path, f"n is {right['n']}, order {right['order']}; n must be at least the order.")
    if kind != "bspline":
        right.setdefault("range", [0.0, 6.283185307179586])
    if "range" in right and right["range"][0] >= right["range"][1]:
        problems.add(path, f"range is {shown(right['range'])}; it must go from low to high.")
    return right
