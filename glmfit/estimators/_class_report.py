"""What a fit of a model of classes says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .._display import Summary
from .._status import Status
from ..bounds import StepCertificate
from ._base_report import Report

_ADVICE = {
    Status.PRECISION_FLOOR: (
        "Above the tolerance no further progress was seen, because of rounding or, with a majorization, slowness: "
        'loosen tol, bring the features to similar scales, or use solver_name="ConjugateGradients".'
    ),
    Status.UNPROVED: (
        "The estimated gap is below the tolerance, but nothing proves it: along some direction the features vary too "
        "little, or a proof was too expensive. A ridge penalty can give the curvature a proof needs; so may "
        'removing features that nearly repeat others, or solver_name="ConjugateGradients".'
    ),
}


@dataclass(frozen=True, repr=False)
class ClassReport(Report):
    """Report of a softmax or multinomial fit; all classes are fitted together, so there is one of everything.

    Attributes
    ----------
    status : Status
        Outcome; the property ``converged`` says whether it is CONVERGED.
    gap : float
        ``F - F*`` in nats per row: a proved upper bound if ``gap_is_bound``, else an estimate; nan where it was not
        looked at (``certify=False``, or too many rows times classes).
    gap_is_bound : bool
        Whether ``gap`` is a certificate.
    gap_theorem : str
        What the bound rests on.
    relative_gap : float
        ``gap / (F_null - F)``, what ``tol`` is compared with; 0 for a proved optimum that explains nothing.
    target : float
        Gap below which an exact fit counts as converged; nan for solvers that follow a schedule.
    objective, null_objective : float
        F at the solution and of the model of class frequencies alone, nats per row.
    pseudo_r2 : float
        Share of the deviance explained on the training rows (D2): 1 - deviance / deviance of class frequencies. For
        labels it is McFadden's.
    class_totals : numpy.ndarray
        (Weighted) rows or counts of every class, (class,).
    n_rows, n_dropped, n_empty : int
        Rows fitted, rows left out because of a NaN, and rows left out because they have no counts.
    n_features, n_classes : int
        Features and classes.
    solver_name : str
        Solver that ran.
    epochs, row_evals : int
        Steps of Newton or passes of a sampling solver; rows evaluated, all passes counted (a sampling solver sees a
        handful of classes at each).
    step : float
        Step size times rows, c, of the first epoch of a sampling solver; nan for others.
    step_tuned : bool
        Whether it was chosen on held-out rows.
    step_certificate : StepCertificate or None
        Theorem and constants of the step size; None for solvers without one.
    failure_probability : float
        That a certificate fails (random starts of Lanczos).
    overshot : bool
        Whether a sampling solver ended worse than class frequencies, which were kept instead.
    history : dict of numpy.ndarray
        epoch, row_evals, seconds, objective, gap, gap_is_bound of an exact fit's checks.
    seconds_run, seconds_compile : float
        Wall time of the fit without, and of, compilation.
    """

    status: Status
    gap: float
    gap_is_bound: bool
    gap_theorem: str
    relative_gap: float
    target: float
    objective: float
    null_objective: float
    pseudo_r2: float
    class_totals: np.ndarray
    n_rows: int
    n_dropped: int
    n_empty: int
    n_features: int
    n_classes: int
    solver_name: str
    epochs: int
    row_evals: int
    step: float
    step_tuned: bool
    step_certificate: StepCertificate | None
    failure_probability: float
    seconds_run: float
    seconds_compile: float
    overshot: bool = False
    history: dict = field(default_factory=dict, repr=False)

    def _advice(self, status: Status) -> str:
        if status != Status.NO_GAIN or np.isnan(self.step):
            return _ADVICE.get(status, status.advice)
        how = 'as step="tune" chose it' if self.step_tuned else "as given"
        step = f"the first was {self.step:g}, {how}"
        if self.overshot:
            what = f"The steps led to a worse fit, so that class frequencies are kept: they were too long ({step})"
            try_ = "give a shorter step"
        else:
            what = f"The steps have hardly moved the coefficients: they were too short ({step}) or too few"
            try_ = "give a longer step or more epochs"
        return (
            f"{what}, or the features explain nothing (they are constant, or the penalty is strong). Centre X and "
            f'scale it to about 1, {try_}, or solve exactly with solver_name="ConjugateGradients" to find out.'
        )

    def _columns(self) -> dict:
        return {
            "status": [self.status.label],
            "gap": [self.gap],
            "gap_kind": [str(self._kind(self.gap, self.gap_is_bound))],
            "relative_gap": [self.relative_gap],
            "pseudo_r2": [self.pseudo_r2],
            "objective": [self.objective],
            "n_rows": [self.n_rows],
            "n_classes": [self.n_classes],
            "epochs": [self.epochs],
        }

    def _summary(self) -> Summary:
        """Say what was fitted, how far from the optimum, advice, certificate."""
        left_out = [f"{n} {what}" for n, what in ((self.n_dropped, "with NaN"), (self.n_empty, "without counts")) if n]
        kind = self._kind(self.gap, self.gap_is_bound)
        if np.isnan(self.gap):
            gap = "not looked at (too many rows times classes, or certify=False)"
        else:
            gap = f"{self.gap:.1e} nats per row ({kind}), {self.relative_gap:.1e} of what the model explains"
            if self.gap_is_bound and self.relative_gap > 1 and not self.converged:
                gap = f"no useful bound ({self.gap:.1e} nats per row, more than the model explains)"
        least, most = (f"{x:.6g}" for x in (self.class_totals.min(), self.class_totals.max()))
        lines = [
            f"{self.solver_name}: {self.status.label}; {self.n_rows} rows"
            + (f" ({', '.join(left_out)} left out)" if left_out else "")
            + f", {self.n_features} features, {self.n_classes} classes ({least} to {most} rows or counts each)",
            f"{self._seconds()}, {self.epochs} epochs",
            f"gap F-F*: {gap}",
            f"objective {self.objective:.6g}, class frequencies alone {self.null_objective:.6g}, "
            f"pseudo-R2 {self.pseudo_r2:.4f}",
        ]
        if not np.isnan(self.step):
            lines.append(f"step c {self.step:g}" + (", chosen on held-out rows" if self.step_tuned else ""))
        lines += self.advice
        if self.step_certificate is not None:
            lines.append(str(self.step_certificate))
        if self.gap_is_bound:
            lines.append(f"gap bound: {self.gap_theorem}")
        return Summary(lines)
