"""Checks of what a solver and a problem can do together."""

from __future__ import annotations


def check_explicit_step(c: float, strength: float) -> None:
    """Raise ValueError if an explicit step is so long that the ridge would turn the coefficients around."""
    if c * strength >= 1:
        raise ValueError(
            f"step is {c:.3g}; times the ridge strength {strength:.3g} it must stay below 1 for an explicit step. "
            "Use a shorter step, or ImplicitSGD, which takes any."
        )
