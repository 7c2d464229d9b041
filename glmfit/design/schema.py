"""Rules for the values of manifests, the problems found by them, and the [model.design]: bins, covariates, history."""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ..display import one_line
from .kernels import TIME_BASES
from .splines import VALUE_BASES

COUNTS = "counts"  # name of the binned spikes among the signals
COUNT_ESTIMATORS = ("PopulationGLM", "PopulationGLMCV")  # those that know an exposure
RESAMPLE = ("mean", "nearest", "linear")
_SHORTEST_S = 1e-6  # of a bin
_WHOLE_LAG = 1e-6  # of a bin: what rounding leaves
_LONGEST_LAG = 10**9
_LATEST_S = 1e11  # some thousand years

NAME = re.compile(r"[A-Za-z0-9_.-]+")
_LONGEST = 60


class Problems:
    """What is wrong with a document, each with its table in words."""

    def __init__(self, file: str, document: Mapping):
        self._file, self._document = file, document
        self._found: list[str] = []

    def add(self, table: tuple, text: str) -> None:
        """Note what is wrong with a table, or with a key of it that the text names."""
        words, value = [], self._document
        for part in table:
            value = value[part]
            if isinstance(part, int):
                name = value.get("name") if isinstance(value, dict) else None
                words[-1] += f' "{name}"' if isinstance(name, str) and name else f" {part + 1}"
            else:
                words.append(str(part))
        self._found.append(one_line(f"{self._file}: {', '.join(words)}{': ' if words else ''}{text}"))

    @property
    def texts(self) -> list[str]:
        """All of them, each once."""
        return list(dict.fromkeys(self._found))

    def __len__(self) -> int:
        return len(self._found)


class Rule(NamedTuple):
    """What a value may be, in words and as a test."""

    allowed: str
    fits: Callable[[Any], Any]


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer above all floats
        return False


def is_whole(value: Any) -> bool:
    """Whether a value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_plain(value: Any) -> bool:
    """Whether a value is made of what JSON has: no dates, no infinities."""
    if isinstance(value, dict | list):
        return all(map(is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str | bool) or is_number(value)


TEXT = Rule("a text that is not empty", lambda value: isinstance(value, str) and value)
NAMED = Rule("a name of letters, digits, _ . and -", lambda value: isinstance(value, str) and NAME.fullmatch(value))
BOOLEAN = Rule("true or false", lambda value: isinstance(value, bool))
TABLE = Rule("a table", lambda value: isinstance(value, dict))
TABLES = Rule("an array of tables", lambda value: isinstance(value, list) and all(map(TABLE.fits, value)))
POSITIVE = Rule("a finite number above 0", lambda value: is_number(value) and value > 0)
NOT_NEGATIVE = Rule("a finite number of at least 0", lambda value: is_number(value) and value >= 0)


def whole(at_least: int) -> Rule:
    """Rule for integers."""
    return Rule(f"a whole number of at least {at_least}", lambda value: is_whole(value) and value >= at_least)


def one_of(*names: str) -> Rule:
    """Rule for a choice of texts."""
    quoted = ", ".join(f'"{name}"' for name in names)
    return Rule(f"one of {quoted}", lambda value: isinstance(value, str) and value in names)


def list_of(rule: Rule, what: str) -> Rule:
    """Rule for a list that is not empty."""
    return Rule(what, lambda value: isinstance(value, list) and value and all(map(rule.fits, value)))


def either(*rules: Rule) -> Rule:
    """Rule for what fits one of several."""
    return Rule(", or ".join(rule.allowed for rule in rules), lambda value: any(rule.fits(value) for rule in rules))


def check_table(
    problems: Problems, path: tuple, table: Any, rules: Mapping[str, Rule], required: Iterable[str] = ()
) -> dict[str, Any]:
    """Check the keys and values of a table; what is right of it is returned."""
    if not isinstance(table, dict):
        problems.add(path[:-1], f"{path[-1]} is {shown(table)}; it must be a table.")
        return {}
    right = {}
    for key, value in table.items():
        if key not in rules:
            problems.add(path, f"{key} is not known here{guess(key, rules)}")
        elif not rules[key].fits(value):
            problems.add(path, f"{key} is {shown(value)}; it must be {rules[key].allowed}.")
        else:
            right[key] = value
    for key in required:
        if key not in table:
            problems.add(path, f"{key} is missing; it must be {rules[key].allowed}.")
    return right


def guess(word: str, known: Iterable[str]) -> str:
    """End of a sentence on a word that is not known: the nearest one, or all."""
    known = [str(name) for name in known]
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; allowed are {', '.join(known)}." if known else "; there is none."


def shown(value: Any) -> str:
    """Write a value as JSON does, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."


# -- designs

_NUMBER = Rule("a finite number", is_number)
_WHOLE = Rule("a whole number", is_whole)
_PAIR = Rule("two numbers", lambda value: isinstance(value, list) and len(value) == 2 and all(map(is_number, value)))
_KEYS = {
    "bin_s": Rule(f"a number of seconds of at least {_SHORTEST_S:g}", lambda v: is_number(v) and v >= _SHORTEST_S),
    "epochs": either(TEXT, list_of(_PAIR, "a list of [start, stop] in seconds")),
    "partial_bins": one_of("drop", "exposure"),
    "target": TEXT,
    "units": list_of(either(TEXT, _WHOLE), "a list of names of units"),
    "min_rate_hz": NOT_NEGATIVE,
    "covariates": TABLES,
    "history": TABLE,
}
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
        hint = guess(kind, kinds) if isinstance(kind, str) else f"; it must be {one_of(*kinds).allowed}."
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
