"""Checks of hyper-parameters and of penalties: what was given, what is allowed."""

from __future__ import annotations

import numbers
from typing import Any


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless the value is one of the words allowed."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise ValueError unless the value is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}.")


def check_real(name: str, value: Any, below: float, closed: bool = False) -> None:
    """Raise ValueError unless 0 < value < below (<= below if closed)."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    good = real and 0 < value and (value < below or (closed and value == below))
    if not good:
        raise ValueError(f"{name} is {value!r}; it must be in (0, {below:g}{']' if closed else ')'}.")


def check_positive(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value!r}; it must be a finite number above 0.")


def check_at_least_zero(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} is {value!r}; it must be a finite number of at least 0.")


def check_explicit_step(c: float, strength: float) -> None:
    """Raise ValueError if an explicit step is so long that the ridge would turn the coefficients around."""
    if c * strength >= 1:
        raise ValueError(
            f"step is {c:.3g}; times the ridge strength {strength:.3g} it must stay below 1 for an explicit step. "
            "Use a shorter step, or ImplicitSGD, which takes any."
        )


def check_share(name: str, value: Any) -> None:
    """Raise ValueError unless 0 <= value < 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise ValueError(f"{name} is {value!r}; it must be in [0, 1).")


def check_rotation_invariant(solver: str, penalty: Any) -> None:
    """Raise ValueError unless the penalty is one a rotation of the features leaves alone."""
    check_smooth(solver, penalty)
    if not penalty.rotation_invariant:
        raise ValueError(
            f"{solver} needs one strength for all coefficients of a neuron; this {penalty.name} has strengths of "
            f'shape {penalty.strength.shape}. Use solver_name="Newton" or "SAGA".'
        )


def check_smooth(solver: str, penalty: Any) -> None:
    """Raise ValueError unless the penalty has a Hessian."""
    if not penalty.smooth:
        raise ValueError(
            f"{solver} needs a smooth penalty (UnRegularized or Ridge); this problem has {penalty.name}. "
            'Use solver_name="SAGA".'
        )
