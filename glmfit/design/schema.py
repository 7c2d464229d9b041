"""The [model.design] of a manifest: bins, covariates, products and history."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from . import rules as rule
from .kernels import TIME_BASES
from .rules import Problems, check_table, guess, is_number, shown
from .splines import VALUE_BASES

COUNTS = "counts"  # name of the binned spikes among the signals
COUNT_ESTIMATORS = ("PopulationGLM", "PopulationGLMCV")  # those that know an exposure
RESAMPLE = ("mean", "nearest", "linear")
_SHORTEST_S = 1e-6  # of a bin
_WHOLE_LAG = 1e-6  # of a bin: what rounding leaves
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
}
_HISTORY = {"of": rule.one_of("all", "own"), "basis": rule.TABLE}
_VALUE_BASIS = {"kind": rule.TEXT, "n": rule.whole(1), "range": _PAIR, "order": rule.whole(1)}
_TIME_BASIS = {"kind": rule.TEXT, "n": rule.whole(2), "window_s": rule.POSITIVE}

Note = Callable[[str], None]  # says what is wrong with a table


def read_design(
    problems: Problems, path: tuple, table: dict[str, Any], sources: Iterable[Any], estimator: str | None
) -> dict[str, Any]:
    """Check a design against the data it is for; with its defaults filled in."""
    note = partial(problems.add, path)
    right = check_table(problems, path, table, _KEYS, ("bin_s",))
    design = {"partial_bins": "drop", "target": COUNTS, "epochs": None, **right}
    recordings = [source for source in sources if source.kind == "recording"]
    epochs, target = design["epochs"], design["target"]
    if isinstance(epochs, str):
        _check_known(note, "epochs", epochs, recordings, "epochs")
    elif epochs is not None:
        ends = [-_LATEST_S, *(stop for _, stop in epochs)]
        if wrong := [[a, b] for before, (a, b) in zip(ends, epochs, strict=False) if not before <= a < b <= _LATEST_S]:
            note(f"epochs has {shown(wrong[0])}; starts come before stops, and epochs may not overlap.")
    if target != COUNTS:
        _check_known(note, "target", target, recordings, "signals")
    if estimator == "SoftmaxGLM" and target == COUNTS:
        note("target is missing; SoftmaxGLM needs the name of a signal whose values are labels.")
    elif estimator not in (None, "SoftmaxGLM") and target != COUNTS:
        note(f'target is "{target}"; {estimator} is fitted to "{COUNTS}".')
    if design["partial_bins"] == "exposure" and estimator in ("SoftmaxGLM", "MultinomialGLM"):
        note(f'partial_bins is "exposure", which {estimator} does not know; use "drop".')
    if "units" in design:
        design["units"] = [str(unit) for unit in design["units"]]
        _check_once(note, "units", design["units"])
    bin_s = design.get("bin_s")
    design["covariates"] = [
        _read_covariate(problems, (*path, "covariates", i), entry, recordings, bin_s, target)
        for i, entry in enumerate(right.get("covariates", []))
    ]
    called = {"history": "the spike history"}
    for i, covariate in enumerate(design["covariates"]):
        name = covariate.get("name", covariate.get("signal"))
        if name in called:
            text = f'its features would be called "{name}" like those of {called[name]}; give it a name of its own.'
            problems.add((*path, "covariates", i), text)
        elif name is not None:
            called[name] = f"covariate {i + 1}"
    if "history" in right:
        at = (*path, "history")
        history = design["history"] = {"of": "all", **check_table(problems, at, right["history"], _HISTORY, ("basis",))}
        if history["of"] == "own" and estimator not in (None, "PopulationGLM"):
            problems.add(at, f'of is "own", which {estimator} cannot fit; use PopulationGLM, or "all".')
        if "basis" in history:
            history["basis"] = _read_basis(problems, (*at, "basis"), history["basis"], bin_s, TIME_BASES)
    elif not design["covariates"] and not table.get("covariates"):
        note("there are neither covariates nor a history; a design needs features.")
    return design


def _check_known(note: Note, key: str, name: str, recordings: list, what: str) -> None:
    """Note a name that some source of recordings does not have."""
    for source in recordings:
        known = getattr(source, what)
        if name not in known:
            note(f'{key} names "{name}", which is not among the {what} of data "{source.name}"{guess(name, known)}')


def _check_once(note: Note, key: str, values: list) -> None:
    if len(set(map(str, values))) < len(values):
        note(f"{key} is {shown(values)}; each may be there once.")


def _read_covariate(problems: Problems, path: tuple, table, recordings, bin_s, target) -> dict[str, Any]:
    note = partial(problems.add, path)
    right = check_table(problems, path, table, _COVARIATE, ("signal",))
    signal = right.get("signal")
    if signal == COUNTS:
        if target == COUNTS:
            note(f'signal is "{COUNTS}", which is the target; for the past of spikes use [model.design.history].')
        for key in ("resample", "max_gap_s"):
            if key in right:
                note(f'{key} is not for "{COUNTS}", which are in bins already.')
    elif signal is not None:
        _check_known(note, "signal", signal, recordings, "signals")
    _check_once(note, "columns", right.get("columns", []))
    if "max_gap_s" in right and right.get("resample") == "mean":
        note("max_gap_s is not for means, which have no value only where a bin has no sample.")
    ways = [key for key in ("basis", "lags", "lags_s") if key in table]
    if len(ways) > 1:
        note(f"{' and '.join(ways)} are given; a covariate takes one of them.")
    if "basis" in right:
        right["basis"] = _read_basis(problems, (*path, "basis"), right["basis"], bin_s, VALUE_BASES + TIME_BASES)
    seconds = right.get("lags_s", []) if bin_s is not None else []
    if odd := [lag for lag in seconds if abs(lag / bin_s - round(lag / bin_s)) > _WHOLE_LAG]:
        note(f"lags_s has {shown(odd)}; lags are whole numbers of bins of {bin_s:g} s.")
    for key, bins in (("lags", right.get("lags", [])), ("lags_s", [round(lag / bin_s) for lag in seconds])):
        if any(abs(lag) > _LONGEST_LAG for lag in bins):
            note(f"{key} is {shown(right[key])}; no lag may be above {_LONGEST_LAG} bins.")
        if len(set(bins)) < len(bins):
            note(f"{key} is {shown(right[key])}; each lag may be there once, in bins.")
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
        return right
    rules = {key: allowed for key, allowed in _VALUE_BASIS.items() if key != "order" or kind != "fourier"}
    right = check_table(problems, path, table, rules, ("n", "range") if kind == "bspline" else ("n",))
    if kind != "fourier":
        right.setdefault("order", 4)
        if right.get("n", right["order"]) < right["order"]:
            note(f"n is {right['n']}, order {right['order']}; n must be at least the order.")
    if kind != "bspline":
        right.setdefault("range", [0.0, 2 * math.pi])
    if "range" in right and right["range"][0] >= right["range"][1]:
        note(f"range is {shown(right['range'])}; it must go from low to high.")
    return right
