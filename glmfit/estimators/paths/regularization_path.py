"""Results of a regularization path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...display import Display, Summary
from ...status import Status
from ..population_model import PROVED

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False, kw_only=True)
class RegularizationPath(Display):
    """Fits of all neurons at decreasing strengths of a penalty, each with its gap; from `PopulationGLM.path`.

    Attributes
    ----------
    neuron : numpy.ndarray
        Names, (neuron,).
    strengths : numpy.ndarray
        (strength, neuron), decreasing.
    coef : numpy.ndarray
        (strength, feature, neuron); nan where Ctrl-C came first, here and in all that follow.
    intercept : numpy.ndarray
        (strength, neuron).
    objective, null_objective : numpy.ndarray
        F at the fit, and without coefficients, (strength, neuron).
    gap : numpy.ndarray
        Bound of ``F - F*``, (strength, neuron), or an estimate.
    gap_is_bound : numpy.ndarray
        Whether ``gap`` is a bound.
    status : numpy.ndarray
        :class:`glmfit.Status` of every fit, (strength, neuron).
    """

    neuron: np.ndarray
    strengths: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    objective: np.ndarray
    null_objective: np.ndarray
    gap: np.ndarray
    gap_is_bound: np.ndarray
    status: np.ndarray

    @property
    def n_nonzero(self) -> np.ndarray:
        """Coefficients that are not 0, (strength, neuron)."""
        return np.count_nonzero(np.nan_to_num(self.coef), axis=1)

    @property
    def converged(self) -> np.ndarray:
        """Whether a fit is proved to be at its tolerance, (strength, neuron)."""
        return np.isin(self.status, PROVED)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per neuron and strength as a pandas DataFrame."""
        import pandas as pd

        S, n = self.strengths.shape
        columns = {
            "neuron": np.tile(self.neuron, S), "strength": self.strengths.ravel(), "n_nonzero": self.n_nonzero.ravel(),
            "objective": self.objective.ravel(), "null_objective": self.null_objective.ravel(),
            "gap": self.gap.ravel(), "gap_is_bound": self.gap_is_bound.ravel(),
            "status": [str(Status(s)) for s in self.status.ravel()],
        }  # fmt: skip
        order = np.arange(S * n).reshape(S, n).T.ravel()
        return pd.DataFrame(columns).iloc[order].reset_index(drop=True)

    def _summary(self) -> Summary:
        S, n = self.strengths.shape
        done = (
            f"{int(self.converged.sum())} of {self.status.size} fits converged, largest gap {np.nanmax(self.gap):.1e}"
        )
        return Summary([f"path of {S} strengths, {n} neurons", done], self.to_frame())
