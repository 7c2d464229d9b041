"""What the reports of all estimators share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from .._display import Display
from .._status import Status

if TYPE_CHECKING:
    import pandas as pd


_ROUNDING = 1e-13  # of an objective, relative


def explains_nothing(objective, null_objective):
    """Whether an objective is that of the model without features, but for rounding: then that model is the optimum.

    Of converged fits only: there a ratio of the gap to what is explained would be one of two roundings.
    """
    return null_objective - objective <= _ROUNDING * (1 + np.abs(null_objective))


class Report(Display):
    """Common part of the reports: whether a fit converged, what to do if not, a table, and lines to read."""

    status: Any  # one, or an array with one per neuron
    seconds_run: float
    seconds_compile: float

    @property
    def converged(self) -> bool | np.ndarray:
        """Whether the fit, or that of each neuron (neuron,), reached its target."""
        return self.status == Status.CONVERGED

    @property
    def advice(self) -> list[str]:
        """What to do about every outcome but convergence, a sentence each."""
        return [f"{who}{status.label}: {self._advice(status)}" for who, status in self._outcomes()]

    def _failure(self) -> str:
        """Say what a warning says of fits that failed; nothing if none did."""
        failed = [(who, status) for who, status in self._outcomes() if status.is_failure]
        if not failed:
            return ""
        if self.status is Status.NO_GAIN:
            return f"the fit did not improve on class frequencies. {self._advice(self.status)}"
        parts = "; ".join(f"{who}{status.label} ({self._advice(status)})" for who, status in failed)
        if np.ndim(self.status) == 0:
            return f"the fit {'has' if self.status is Status.NO_USEFUL_BOUND else 'did not converge:'} {parts}"
        n_failed = sum(np.sum(self.status == status) for _, status in failed)
        return f"{n_failed} of {len(self.status)} neurons did not converge: {parts}"

    def _outcomes(self) -> list[tuple[str, Status]]:
        """Outcomes but convergence, with how many neurons have them."""
        found = sorted({Status(int(s)) for s in np.atleast_1d(self.status)} - {Status.CONVERGED})
        return [(f"{np.sum(self.status == s)} " if np.ndim(self.status) else "", s) for s in found]

    def _advice(self, status: Status) -> str:
        return status.advice

    def to_frame(self) -> pd.DataFrame:
        """Return what was fitted on its own, a row each, as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            A row per neuron of a population, one row of any other model. Every frame has the columns status, objective,
            pseudo_r2 and epochs; where distances from the optimum are known, gap, gap_kind ("bound", "estimate", or
            "none" where nothing was computed) and relative_gap.
        """
        import pandas as pd

        return pd.DataFrame(self._columns(), index=self._index())

    def _index(self):
        return None

    @abstractmethod
    def _columns(self) -> dict:
        """Columns of the frame."""

    @staticmethod
    def _kind(gap, is_bound) -> np.ndarray:
        """Say of every gap whether it is a bound, an estimate, or was not looked at."""
        return np.where(np.isnan(gap), "none", np.where(is_bound, "bound", "estimate"))

    def _seconds(self) -> str:
        return f"{self.seconds_run:.2f} s + {self.seconds_compile:.2f} s compiling"
