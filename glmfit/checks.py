"""Checks of parameters, with errors that state what was given and is allowed; warnings at the user's line."""

import importlib.util
import numbers
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def shorten(value: Any) -> str:
    """Write a value for a message, cut in the middle if it is long."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:80]}...{text[-20:]}"


def not_text(value: Any) -> str:
    """Return the end of a message about numbers if a string was given, alone or in a list."""
    return ", and not text" if _has_text(value) else ""


def _has_text(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_text, value))
    return isinstance(value, str | bytes) or getattr(getattr(value, "dtype", None), "kind", "") in ("U", "S", "T")


def as_numbers(name: str, values: Any) -> np.ndarray:
    """Copy values to float64; raise ValueError if they are not numbers."""
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {shorten(values)}; it must be an array of numbers.") from None


def check_choice(name: str, value: Any, allowed: Iterable[str], hint: str = "") -> None:
    """Raise ValueError unless the value is one of the words allowed."""
    words = ", ".join(map(repr, allowed))
    _refuse_unless(isinstance(value, str) and value in allowed, name, value, f"one of {words}", hint)


def check_model(model: Any, kinds: Any, needs: str) -> None:
    """Raise TypeError unless the model is of one of some classes, which ``needs`` names."""
    if not isinstance(model, kinds):
        of = f"{type(model).__module__.partition('.')[0]}.{type(model).__name__}"
        raise TypeError(f"model is a {of}; it must be a fitted {needs}")


def check_flag(name: str, value: Any) -> bool:
    """Raise ValueError unless the value is True or False; return it."""
    _refuse_unless(isinstance(value, bool | np.bool_), name, value, "True or False")
    return bool(value)


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """Raise ValueError unless the value is a whole number of at least ``least``; return it."""
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    _refuse_unless(is_whole and value >= least, name, value, f"a whole number of at least {least}")
    return int(value)


def check_real(name: str, value: Any, below: float, closed: bool = False, hint: str = "") -> None:
    """Raise ValueError unless 0 < value < below (<= below if closed)."""
    inside = _is_real(value) and (0 < value < below or (closed and value == below))
    _refuse_unless(inside, name, value, f"a number in (0, {below:g}{']' if closed else ')'}", hint)


def check_positive(name: str, value: Any, hint: str = "") -> float:
    """Raise ValueError unless the value is a finite number above 0; return it."""
    _refuse_unless(_is_real(value) and 0 < value < np.inf, name, value, "a finite number above 0", hint)
    return float(value)


def check_at_least_zero(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a finite number of at least 0."""
    _refuse_unless(_is_real(value) and 0 <= value < np.inf, name, value, "a finite number of at least 0")


def check_share(name: str, value: Any) -> None:
    """Raise ValueError unless 0 <= value < 1."""
    _refuse_unless(_is_real(value) and 0 <= value < 1, name, value, "a number in [0, 1)")


def _refuse_unless(right: bool, name: str, value: Any, allowed: str, hint: str = "") -> None:
    if not right:
        raise ValueError(f"{name} is {value!r}; it must be {allowed}." + (hint and f" {hint}"))


def _is_real(value: Any) -> bool:
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and not np.isnan(float(value))
    except OverflowError:  # an integer too large for a float
        return False


class MissingExtra(ImportError):
    """A package of an extra is not installed."""


def check_installed(packages: Sequence[str], extra: str, hint: str = "") -> None:
    """Raise MissingExtra, which names the extra that installs them, unless all these packages are installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        advice = f'in the checkout run  python -m pip install -e ".[{extra}]"{hint}'
        raise MissingExtra(f"{' and '.join(missing)} not installed: {advice}")


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn on behalf of the first caller outside of the package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "glmfit":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
