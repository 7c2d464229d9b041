"""What a fit says of itself, per neuron, for people and for code."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .._display import Summary
from .._status import Status
from ..bounds import DUALITY_THEOREM, GAP_THEOREM, StepCertificate
from ._base_report import Report

_MOST, _WIDE = 12, 24  # rows and letters shown
_AFTER_NEWTON = {
    Status.PRECISION_FLOOR: (
        "Above the tolerance no further progress was seen, because of rounding: loosen tol, or bring the features to "
        "similar scales."
    ),
    Status.UNPROVED: (
        "The estimated gap is below the tolerance, but nothing proves it: along some direction the features vary too "
        "little. A ridge penalty can give the curvature a proof needs; so may removing features that nearly repeat "
        "others."
    ),
}


@dataclass(frozen=True, repr=False)
class FitReport(Report):
    """Report of a fit.

    Attributes
    ----------
    neuron : list of str
        Names of the neurons; all arrays below are (neuron,).
    status : numpy.ndarray
        Outcome, of :class:`glmfit.Status`; shown as words.
    gap : numpy.ndarray
        ``F - F*`` in nats per bin: a proved upper bound where ``gap_is_bound``, else an estimate.
    gap_is_bound : numpy.ndarray
        Whether ``gap`` is a certificate.
    relative_gap : numpy.ndarray
        ``gap / (F_null - F)``, what ``tol`` is compared with; 0 for a proved optimum that explains nothing.
    target : numpy.ndarray
        Gap below which the neuron counts as converged.
    objective, null_objective : numpy.ndarray
        F at the solution and of the intercept-only model, nats per bin.
    pseudo_r2 : numpy.ndarray
        Share of the deviance explained on the training rows (D2): 1 - deviance / deviance of a constant rate.
    spike_count : numpy.ndarray
        Number of spikes in the rows fitted, whatever their weights and exposure.
    epochs : numpy.ndarray
        Epoch of the last work on the neuron.
    row_evals : int
        Rows evaluated per neuron, certificates included.
    n_rows, n_dropped : int
        Rows fitted, and rows left out because of a NaN.
    rank, n_features : int
        Directions of the design the data distinguish, and features.
    solver_name : str
        Solver that ran.
    step_certificate : StepCertificate or None
        Theorem and constants of the step size; None for solvers without one.
    failure_probability : float
        Over the population, that a certificate fails (random starts of Lanczos); 0 where no bound involves randomness.
    history : dict of numpy.ndarray
        epoch, row_evals, seconds (check,); objective, gap, gap_is_bound (check, neuron).
    seconds_run, seconds_compile : float
        Wall time of the fit without, and of, compilation.
    memory_bytes : int or None
        Of a fit whose rows were read as they were needed: bytes of rows and table held at a time. None for one in
        memory.
    runaway : dict of numpy.ndarray
        Coefficients whose feature alone moves the linear predictor by more than 15 over the rows, and which the rows
        hardly determine, as happens on columns that are nearly empty or nearly repeat others: neuron, feature (names),
        coef, n_rows (rows where the feature is not 0). Empty if there are none, and for rows that were read as they
        were needed.
    """

    neuron: list
    status: np.ndarray
    gap: np.ndarray
    gap_is_bound: np.ndarray
    relative_gap: np.ndarray
    target: np.ndarray
    objective: np.ndarray
    null_objective: np.ndarray
    pseudo_r2: np.ndarray
    spike_count: np.ndarray
    epochs: np.ndarray
    row_evals: int
    n_rows: int
    n_dropped: int
    rank: int
    n_features: int
    solver_name: str
    step_certificate: StepCertificate | None
    failure_probability: float
    seconds_run: float
    seconds_compile: float
    history: dict = field(default_factory=dict, repr=False)
    memory_bytes: int | None = None
    runaway: dict = field(default_factory=dict)

    @property
    def gap_theorem(self) -> str:
        """What the bounds rest on; empty if no gap is a bound."""
        return f"{GAP_THEOREM}, or {DUALITY_THEOREM}" if self.gap_is_bound.any() else ""

    def _advice(self, status: Status) -> str:
        return _AFTER_NEWTON.get(status, status.advice) if "Newton" in self.solver_name else status.advice

    def _columns(self) -> dict:
        return {
            "status": [str(s) for s in self.status],
            "gap": self.gap,
            "gap_kind": self._kind(self.gap, self.gap_is_bound),
            "relative_gap": self.relative_gap,
            "pseudo_r2": self.pseudo_r2,
            "objective": self.objective,
            "spike_count": self.spike_count,
            "epochs": self.epochs,
        }

    def _index(self):
        import pandas as pd

        return pd.Index(self.neuron, name="neuron")

    def _summary(self) -> Summary:
        """Totals, a row per neuron (of many the twelve most in need of a look), advice, certificate."""
        return Summary(self._totals(), self._worst(), self._remarks())

    def _totals(self) -> list[str]:
        done, silent = int(self.converged.sum()), int(np.sum(self.status == Status.NO_SPIKES))
        return [
            f"{self.solver_name}: {done} of {len(self.neuron)} neurons converged"
            + (f", {silent} without spikes" if silent else "")
            + f"; {self.n_rows} rows, {self.n_features} features "
            f"(rank {self.rank})" + (f", {self.n_dropped} rows with NaN left out" if self.n_dropped else ""),
            f"{self._seconds()}, {int(self.epochs.max())} epochs, "
            f"{self.row_evals / self.n_rows:.0f} passes over the rows in all",
        ]

    def _worst(self):
        """Frame of words, a row per neuron; of many those that did not converge first, then the largest gaps."""
        import pandas as pd

        shown = np.arange(len(self.neuron))
        if len(shown) > _MOST:
            failed = np.array([s.is_failure for s in self.status])
            shown = np.lexsort((-np.nan_to_num(self.gap, nan=np.inf), self.converged, ~failed))[:_MOST]
        kinds = self._kind(self.gap, self.gap_is_bound)
        return pd.DataFrame(
            {
                "neuron": [_shorten(self.neuron[i]) for i in shown],
                "status": [str(self.status[i]) for i in shown],
                "gap F-F*": [f"{self.gap[i]:.1e}" for i in shown],
                "kind": kinds[shown],
                "relative": [f"{self.relative_gap[i]:.1e}" for i in shown],
                "pseudo-R2": [f"{np.round(self.pseudo_r2[i], 3) + 0.0:.3f}" for i in shown],  # no "-0.000"
                "spikes": [f"{self.spike_count[i]:.0f}" for i in shown],
            }
        )

    def _remarks(self) -> list[str]:
        lines = []
        if len(self.neuron) > _MOST:
            first = "with the largest gaps" if self.converged.all() else "with failures first, then the largest gaps"
            lines.append(f"(the {_MOST} of {len(self.neuron)} neurons {first}; to_frame() has all)")
        lines += self.advice
        if self.rank < self.n_features and not self.gap_is_bound.all():
            lines.append(
                f"X varies too little along {self.n_features - self.rank} of {self.n_features} directions: they are "
                "left out, and gaps that are estimates are those of the other directions."
            )
        lines += self._runaway_lines()
        if self.memory_bytes is not None:
            lines.append(f"rows were read in every pass; {self.memory_bytes / 1e6:.0f} MB of them at a time")
        if self.step_certificate is not None:
            lines.append(str(self.step_certificate))
        if self.gap_is_bound.any():
            chance = (
                f"failure probability {self.failure_probability:.0e}" if self.failure_probability else "no randomness"
            )
            lines.append(f"gap bounds: generalised self-concordance or duality, float64 gradient, {chance}")
        return lines

    def _runaway_lines(self) -> list[str]:
        """Say which features have coefficients that ran away, and for how many neurons."""
        if not self.runaway:
            return []
        lines = [
            "Coefficients that the rows hardly determine, and that alone change the linear predictor by more than 15:"
        ]
        features = list(dict.fromkeys(self.runaway["feature"]))
        for name in features[:_MOST]:
            of = self.runaway["feature"] == name
            coef = self.runaway["coef"][of]
            rows = int(self.runaway["n_rows"][of][0])
            neurons = f"{of.sum()} neurons" if of.sum() > 1 else f"neuron {self.runaway['neuron'][of][0]}"
            lines.append(
                f"  feature {name} (not at its median in {rows} of {self.n_rows} rows): {neurons}, up to "
                f"{np.max(np.abs(coef)):.1e}"
            )
        more = [f"  and {len(features) - _MOST} more features"] if len(features) > _MOST else []
        return [*lines, *more, "  Remove such features, or use a ridge penalty."]


def _shorten(name) -> str:
    """Name cut in the middle, where names of units differ least."""
    name = str(name)
    if len(name) <= _WIDE:
        return name
    tail = 2 * _WIDE // 3
    return f"{name[: _WIDE - tail - 2]}..{name[-tail:]}"
