"""Checks of single parameters: what was given, what is allowed."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np


def shorten(value: Any) -> str:
    """Write a value for a message, cut in the middle if it is long."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:80]}...{text[-20:]}"


def not_text(value: Any) -> str:
    """Words for the end of a message about numbers, if text was given, alone or in a list."""
    return ", and not text" if _has_text(value) else ""


def _has_text(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_text, value))
    return isinstance(value, str | bytes) or getattr(getattr(value, "dtype", None), "kind", "") in ("U", "S", "T")


def check_choice(name: str, value: Any, allowed: Iterable[str], hint: str = "") -> None:
    """Raise ValueError unless the value is one of the words allowed."""
    if not isinstance(value, str) or value not in allowed:
        words = ", ".join(map(repr, allowed))
        raise ValueError(f"{name} is {value!r}; it must be one of {words}." + (hint and f" {hint}"))


def check_flag(name: str, value: Any) -> None:
    """Raise ValueError unless the value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {value!r}; it must be True or False.")


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise ValueError unless the value is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}.")


def check_real(name: str, value: Any, below: float, closed: bool = False, hint: str = "") -> None:
    """Raise ValueError unless 0 < value < below (<= below if closed)."""
    if not _is_real(value) or not 0 < value <= below or (value == below and not closed):
        bracket = "]" if closed else ")"
        raise ValueError(f"{name} is {value!r}; it must be a number in (0, {below:g}{bracket}." + (hint and f" {hint}"))


def check_positive(name: str, value: Any, hint: str = "") -> None:
    """Raise ValueError unless the value is a finite number above 0."""
    if not _is_real(value) or not 0 < value < np.inf:
        raise ValueError(f"{name} is {value!r}; it must be a finite number above 0." + (hint and f" {hint}"))


def check_at_least_zero(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a finite number of at least 0."""
    if not _is_real(value) or not 0 <= value < np.inf:
        raise ValueError(f"{name} is {value!r}; it must be a finite number of at least 0.")


def check_share(name: str, value: Any) -> None:
    """Raise ValueError unless 0 <= value < 1."""
    if not _is_real(value) or not 0 <= value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a number in [0, 1).")


def _is_real(value: Any) -> bool:
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and not np.isnan(float(value))
    except OverflowError:  # a whole number beyond any float
        return False
