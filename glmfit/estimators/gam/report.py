"""Report of an additive model: that of its fits, and the choice of the strengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...display import counted
from ...status import Status
from ..report import FitReport

_FLAT = 0.05  # nats: gradients of the criterion above this are worth a word
_SHOWN = 8  # neurons that are named


def unsettled_words(neurons: list) -> str:
    """Say whose strengths have not settled, and what to do."""
    some = ", ".join(map(str, neurons[:_SHOWN])) + (f" and {len(neurons) - _SHOWN} more" if neurons[_SHOWN:] else "")
    return (
        f"the strengths of {counted(len(neurons), 'neuron')} ({some}) have not settled: their terms depend on where "
        "the search stopped. Raise max_epochs if their epochs reach it; otherwise use select=True or fewer functions, "
        "or exclude neurons with few spikes."
    )


@dataclass(frozen=True, repr=False, kw_only=True)
class SmoothReport(FitReport):
    """Report of a `PopulationGAM`: a `FitReport`, whose gaps are those at the strengths of the fit, and more.

    Attributes
    ----------
    strengths_by : str
        "marginal-likelihood", "cross-validation" or "given".
    term : list of str
        Names of the terms.
    edf : numpy.ndarray
        Effective degrees of freedom, (term, neuron), without the intercept.
    strength_gradient : numpy.ndarray
        Largest derivative of the criterion by the logarithm of a strength, (neuron,), in nats, of strengths that are
        not at the end of their range, by the last Hessian; 0 at a local optimum. There may be a better one.
    at_end : numpy.ndarray
        Strengths that ran to an end of their range, (penalty, neuron): 1 the strongest (what the penalty forbids is
        gone), -1 the weakest (no penalty), else 0.
    """

    strengths_by: str = "given"
    term: list
    edf: np.ndarray
    strength_gradient: np.ndarray
    at_end: np.ndarray

    _words: ClassVar[dict[Status, str]] = {
        **FitReport._words,
        Status.SEPARABLE: (
            "What the penalties leave free, such as a plane, silences the neuron without losing a spike, so no finite "
            "optimum exists: pass select=True, which gives it a ridge, or add a ridge to the term."
        ),
    }
    _against_runaway = (
        "Use select=True or fewer functions, or exclude neurons with few spikes: their terms are hardly determined."
    )
    _frame = (*FitReport._frame, "edf_total", "strength_gradient")

    @property
    def edf_total(self) -> np.ndarray:
        """Effective degrees of freedom of all terms and the intercept, (neuron,)."""
        return 1.0 + self.edf.sum(axis=0)

    @property
    def unsettled(self) -> list:
        """Names of the neurons whose strengths have not settled: the criterion still has a slope."""
        known = np.isin(self.status, (Status.CONVERGED, Status.UNPROVED))  # others end on the way
        return [self.neuron[i] for i in np.flatnonzero(known & (self.strength_gradient > _FLAT))]

    def _remarks(self) -> list[str]:
        lines = super()._remarks()
        known = np.isin(self.status, (Status.CONVERGED, Status.UNPROVED))
        if not self.edf[:, known].size:
            return lines
        middle = np.nanmedian(self.edf[:, known], axis=1)
        each = ", ".join(f"{name} {edf:.1f}" for name, edf in zip(self.term, middle, strict=True))
        lines.append(f"median effective degrees of freedom: {each}")
        if self.strengths_by == "given":
            return lines
        worst = float(np.nanmax(self.strength_gradient[known], initial=0.0))
        optimum = "" if self.unsettled else "; a local optimum, perhaps not the global one"
        lines.append(f"strengths by {self.strengths_by}: its gradient is at most {worst:.1g} nats{optimum}")
        if self.unsettled:
            lines.append(f"  {unsettled_words(self.unsettled)}")
        if n := int(np.sum(self.at_end[:, known] > 0)):
            lines.append(f"  {counted(n, 'strength')} ran to the end of their range: that part of a term is not needed")
        return lines
