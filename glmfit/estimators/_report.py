"""What a fit says of itself, per neuron, for people and for code."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .._status import Status
from ..bounds import GAP_THEOREM, StepCertificate
from ._base_report import Report


@dataclass(frozen=True)
class FitReport(Report):
    """Report of a fit.

    Attributes
    ----------
    neuron : list of str
        Names of the neurons; all arrays below are (neuron,).
    status : numpy.ndarray
        Outcome, values of :class:`glmfit.Status`.
    gap : numpy.ndarray
        ``F - F*`` in nats per bin: a proved upper bound where ``gap_is_bound``, else an estimate.
    gap_is_bound : numpy.ndarray
        Whether ``gap`` is a certificate.
    relative_gap : numpy.ndarray
        ``gap / (F_null - F)``, what ``tol`` is compared with.
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
        Over the population, that a certificate fails (random starts of Lanczos); 0 for exact Hessians.
    history : dict of numpy.ndarray
        epoch, row_evals, seconds (check,); objective, gap, gap_is_bound (check, neuron).
    seconds_run, seconds_compile : float
        Wall time of the fit without, and of, compilation.
    memory_bytes : int or None
        Of a fit whose rows were read as they were needed: bytes of rows and table held at a time. None for one in
        memory.
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

    @property
    def gap_theorem(self) -> str:
        """What the bounds rest on; empty if no gap is a bound."""
        return GAP_THEOREM if self.gap_is_bound.any() else ""

    def _columns(self) -> dict:
        return {
            "status": [Status(s).label for s in self.status],
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

    def __str__(self) -> str:
        """Readable summary: totals, a line per neuron (the worst twelve of many), advice, certificate."""
        n = len(self.neuron)
        done, silent = int(self.converged.sum()), int(np.sum(self.status == Status.NO_SPIKES))
        wide = min(24, max(12, *(len(str(name)) for name in self.neuron)))
        lines = [
            f"{self.solver_name}: {done} of {n} neurons converged"
            + (f", {silent} without spikes" if silent else "")
            + f"; {self.n_rows} rows, {self.n_features} features "
            f"(rank {self.rank})" + (f", {self.n_dropped} rows with NaN left out" if self.n_dropped else ""),
            f"{self._seconds()}, {int(self.epochs.max())} epochs, "
            f"{self.row_evals / self.n_rows:.0f} passes over the rows in all",
            "",
            f"{'neuron':>{wide}} {'status':>15} {'gap F-F*':>10} {'kind':>8} {'relative':>9} {'pseudo-R2':>9} "
            f"{'spikes':>9}",
        ]
        order = np.argsort(-np.nan_to_num(self.gap, nan=np.inf), kind="stable")
        shown = range(n) if n <= 12 else sorted(order[:12])
        kinds = self._kind(self.gap, self.gap_is_bound)
        for i in shown:
            lines.append(
                f"{_shorten(self.neuron[i], wide):>{wide}} {Status(self.status[i]).label:>15} {self.gap[i]:10.1e} "
                f"{kinds[i]:>8} {self.relative_gap[i]:9.1e} {self.pseudo_r2[i]:9.3f} {self.spike_count[i]:9.0f}"
            )
        if n > 12:
            lines.append(f"{'':>12} (the 12 of {n} neurons with the largest gaps; to_frame() has all)")
        lines += self.advice
        if self.rank < self.n_features and not self.gap_is_bound.all():
            lines.append(
                f"X varies too little along {self.n_features - self.rank} of {self.n_features} directions: they are "
                "left out, and gaps that are estimates are those of the other directions."
            )
        if self.memory_bytes is not None:
            lines.append(f"rows were read in every pass; {self.memory_bytes / 1e6:.0f} MB of rows and table at a time")
        lines.append("")
        if self.step_certificate is not None:
            lines.append(str(self.step_certificate))
        if self.gap_is_bound.any():
            chance = (
                f"failure probability {self.failure_probability:.0e}" if self.failure_probability else "exact Hessians"
            )
            lines.append(f"gap bounds: generalised self-concordance, float64 gradient, {chance}")
        return "\n".join(lines)


def _shorten(name, wide: int) -> str:
    """Name cut in the middle, where names of units differ least."""
    name = str(name)
    if len(name) <= wide:
        return name
    tail = 2 * wide // 3
    return f"{name[: wide - tail - 2]}..{name[-tail:]}"
