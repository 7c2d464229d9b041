"""Rules for the values of manifests, and the problems found by them."""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..display import one_line

NAME = re.compile(r"[A-Za-z0-9_.-]+")
_LONGEST = 60


class Problems:
    """Problems of a document, each with the name of its table."""

    def __init__(self, file: str, document: Mapping):
        self._file, self._document = file, document
        self._found: list[str] = []

    def add(self, table: tuple, text: str) -> None:
        """Add a problem of a table, or of one of its keys that the text names."""
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
        """All problems, each once."""
        return list(dict.fromkeys(self._found))

    def __len__(self) -> int:
        return len(self._found)


class Rule(NamedTuple):
    """Allowed values, in words and as a test."""

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
    """Whether a value is made of JSON values: no dates, no infinities."""
    if isinstance(value, dict | list):
        return all(map(is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str | bool) or is_number(value)


TEXT = Rule("a non-empty string", lambda value: isinstance(value, str) and value)
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
    """Rule for a choice of strings."""
    quoted = ", ".join(f'"{name}"' for name in names)
    return Rule(f"one of {quoted}", lambda value: isinstance(value, str) and value in names)


def tables(key: str) -> Rule:
    """Rule for an array of tables, which says how TOML writes them."""
    return TABLES._replace(allowed=f"an array of tables, [[{key}]] each in TOML")


def list_of(rule: Rule, what: str) -> Rule:
    """Rule for a list that is not empty."""
    return Rule(what, lambda value: isinstance(value, list) and value and all(map(rule.fits, value)))


def either(*rules: Rule) -> Rule:
    """Rule for a value that fits one of several rules."""
    return Rule(", or ".join(rule.allowed for rule in rules), lambda value: any(rule.fits(value) for rule in rules))


def check_table(
    problems: Problems, path: tuple, table: Any, rules: Mapping[str, Rule], required: Iterable[str] = ()
) -> dict[str, Any]:
    """Check the keys and values of a table; return the valid ones."""
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
    """End a sentence about an unknown word: with the nearest known word, or all."""
    known = [str(name) for name in known]
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{lower[near[0]]}"?'
    return f"; allowed are {', '.join(known)}." if known else "; there is none."


def shown(value: Any) -> str:
    """Write a value as JSON does, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
