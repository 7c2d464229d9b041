"""How long a sampling solver goes on, and with what steps."""

from __future__ import annotations

from dataclasses import dataclass

from .._checks import check_positive, check_real, check_whole


@dataclass(frozen=True)
class Schedule:
    """How long and with what steps to go.

    Attributes
    ----------
    epochs : int
        Passes over the rows.
    step : float
        Step size times number of rows, c, of the first epoch.
    decay : float
        Factor of c from one epoch to the next, in (0, 1].
    """

    epochs: int = 50
    step: float = 10.0
    decay: float = 0.9

    def __post_init__(self):
        check_whole("epochs", self.epochs, 0)
        check_positive("step", self.step)
        check_real("decay", self.decay, 1.0, closed=True)


def check_explicit_step(c: float, strength: float) -> None:
    """Raise ValueError if an explicit step is so long that the ridge would turn the coefficients around."""
    if c * strength >= 1:
        raise ValueError(
            f"step is {c:.3g}; times the ridge strength {strength:.3g} it must stay below 1 for an explicit step. "
            "Use a shorter step, or ImplicitSGD, which takes any."
        )
