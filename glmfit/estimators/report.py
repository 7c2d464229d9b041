"""Reports of fits, for people and for code, made from the solution and facts about the data."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..bounds import DUALITY_THEOREM, GAP_THEOREM, StepCertificate
from ..display import Display, Summary, counted
from ..status import NO_PROOF, Status, as_statuses

if TYPE_CHECKING:
    import pandas as pd

_ROUNDING = 1e-13  # of an objective, relative
_MOST, _WIDE, _SHOWN = 12, 24, 3  # rows and letters shown; features of a remark


@dataclass(frozen=True, repr=False, kw_only=True)
class Report(Display):
    """Common part of the reports: whether a fit converged, what to do if not, a table, and lines to read."""

    status: Any  # one, or an array with one per neuron
    objective: Any
    pseudo_r2: Any
    solver_name: str
    epochs: Any
    seconds_run: float
    seconds_compile: float
    history: dict = field(default_factory=dict, repr=False)

    _frame: ClassVar[tuple[str, ...]]
    _words: ClassVar[dict[Status, str]] = {}  # of advice that differs from the usual

    @property
    def converged(self) -> bool | np.ndarray:
        """Whether the fit, or that of each neuron (neuron,), reached its target."""
        return self.status == Status.CONVERGED

    @property
    def advice(self) -> list[str]:
        """What to do about every outcome other than convergence, one sentence each."""
        return [f"{who}{status.label}: {self._advice(status)}" for who, status in self._outcomes()]

    def _failure(self) -> str:
        """Return the warning about fits that failed; empty if none did."""
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
        """Return outcomes other than convergence, with their numbers of neurons."""
        found = sorted({Status(int(s)) for s in np.atleast_1d(self.status)} - {Status.CONVERGED})
        return [(f"{np.sum(self.status == s)} " if np.ndim(self.status) else "", s) for s in found]

    def _advice(self, status: Status) -> str:
        return self._words.get(status, status.advice)

    def to_frame(self) -> pd.DataFrame:
        """Return the report as a pandas DataFrame, a row for each separate fit.

        Returns
        -------
        pandas.DataFrame
            A row per neuron of a population, one row of any other model. The index has the names of the neurons as
            text: "0", "1", ... for arrays (``iloc`` takes positions). Every frame has the columns status, objective,
            pseudo_r2 and epochs; where distances from the optimum are known, gap, gap_kind ("bound", "estimate", or
            "none" where nothing was computed) and relative_gap.
        """
        import pandas as pd

        given = {name: getattr(self, "_gap_kind" if name == "gap_kind" else name) for name in self._frame}
        values = {name: np.atleast_1d(value) for name, value in given.items()}
        values["status"] = [str(Status(int(s))) for s in values["status"]]
        index = pd.Index(self.neuron, name="neuron") if hasattr(self, "neuron") else None
        return pd.DataFrame(values, index=index)

    def _seconds(self) -> str:
        epochs = counted(int(np.max(self.epochs)), "epoch")
        return f"{self.seconds_run:.2f} s + {self.seconds_compile:.2f} s compiling, {epochs}"


@dataclass(frozen=True, repr=False, kw_only=True)
class CertifiedReport(Report):
    """Common part of the reports of convex fits: how far from the optimum they are, at most."""

    gap: Any
    gap_is_bound: Any
    relative_gap: Any
    target: Any
    null_objective: Any
    row_evals: int
    n_rows: int
    n_dropped: int
    n_features: int
    step_certificate: StepCertificate | None
    failure_probability: float

    @property
    def _gap_kind(self) -> np.ndarray:
        """Whether each gap is a "bound", an "estimate", or was not computed, "none"."""
        return np.where(np.isnan(self.gap), "none", np.where(self.gap_is_bound, "bound", "estimate"))


def report_of(kind: type, *sources, **facts):
    """Make a report of a solution; a field not given by name comes from the first source that has it."""
    for f in fields(kind):
        source = next((source for source in sources if hasattr(source, f.name)), None)
        if f.name not in facts and source is not None:
            facts[f.name] = getattr(source, f.name)
    status = facts["status"]
    return kind(**facts | {"status": as_statuses(status) if np.ndim(status) else Status(int(status))})


def null_is_best(status, objective, null_objective):
    """Tell whether a converged fit is that without features, up to rounding: ratios to its gain mean nothing then."""
    rounding = _ROUNDING * (1 + np.abs(null_objective))
    return (status == Status.CONVERGED) & (null_objective - objective <= rounding)


def relative_gap(status, gap, objective, null_objective):
    """Divide the gap by what the features explain; 0 for an optimum that explains nothing."""
    improvement = np.maximum(null_objective - objective, 0.0)
    nothing = (gap == 0) | null_is_best(status, objective, null_objective)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(nothing, 0.0, np.divide(gap, improvement))[()]


@dataclass(frozen=True, repr=False, kw_only=True)
class FitReport(CertifiedReport):
    """Report of a fit.

    Attributes
    ----------
    neuron : list of str
        Names of the neurons; all arrays below are (neuron,).
    status : numpy.ndarray
        Outcome, of :class:`glmfit.Status`; shown as words.
    gap, gap_is_bound : numpy.ndarray
        ``F - F*`` in nats per bin: a proved upper bound where ``gap_is_bound``, else an estimate.
    relative_gap, target : numpy.ndarray
        ``gap / (F_null - F)``, compared with ``tol``, 0 for a proved optimum that explains nothing; gap below
        which the neuron counts as converged.
    objective, null_objective : numpy.ndarray
        F at the solution and of the intercept-only model, nats per bin.
    pseudo_r2 : numpy.ndarray
        Share of the deviance explained on the training rows (D2): 1 - deviance / deviance of a constant rate.
    spike_count : numpy.ndarray
        Number of spikes in the rows fitted, regardless of weights and exposure.
    epochs, row_evals : numpy.ndarray, int
        Epoch of the last work on the neuron; rows evaluated per neuron, certificates included.
    n_rows, n_dropped, rank, n_features : int
        Rows fitted, and dropped because of a NaN; directions of the design the data distinguish, and features.
    step_certificate, failure_probability : StepCertificate or None, float
        Theorem and constants of the step size, None for solvers without one; probability, over the population, that a
        certificate fails (random starts of Lanczos), 0 if no bound involves randomness.
    history : dict of numpy.ndarray
        epoch, row_evals, seconds (check,); objective, gap, gap_is_bound (check, neuron).
    solver_name, seconds_run, seconds_compile : str, float, float
        Solver that ran, and wall time of the fit without, and of, compilation.
    memory_bytes : int or None
        Bytes of rows held at a time, if rows were read during the fit; None for a fit in memory.
    runaway : dict of numpy.ndarray
        Coefficients whose feature alone moves the linear predictor by more than 15 over the rows, and which the rows
        hardly determine, as happens on columns that are nearly empty or nearly repeat others: neuron, feature (names),
        coef, n_rows (rows where the feature is not at its median). Empty if there are none, and if rows were read
        during the fit.
    observation_model : str
        As in `PopulationGLM`.
    dispersion, is_overdispersed : numpy.ndarray or None
        Pearson's statistic over its degrees of freedom, from some thousand rows: 1 if the model is right, for Gaussian
        and gamma responses at their estimated dispersion always about 1; and whether it is so far above 1, by four
        standard errors and a tenth, that counts vary more than the model allows. Estimates, and None in old files.
    n_masked : numpy.ndarray or None
        Bins, of the rows fitted, that are masked for the neuron: NaN in y, weight 0, or outside its epochs.
    """

    neuron: list
    spike_count: np.ndarray
    rank: int
    memory_bytes: int | None = None
    runaway: dict = field(default_factory=dict)
    observation_model: str = "Poisson"
    dispersion: np.ndarray | None = None
    is_overdispersed: np.ndarray | None = None
    n_masked: np.ndarray | None = None

    _against_runaway: ClassVar[str] = "Remove such features, or use a ridge penalty."
    _frame = "status", "gap", "gap_kind", "relative_gap", "pseudo_r2", "objective", "spike_count", "epochs"
    _words: ClassVar[dict[Status, str]] = {
        Status.PRECISION_FLOOR: (
            "Progress stopped above the tolerance, because of rounding: loosen tol, or bring the features "
            "to similar scales."
        ),
        Status.UNPROVED: NO_PROOF.format("", ""),
    }  # after Newton

    @property
    def gap_theorem(self) -> str:
        """Theorems that prove the bounds; empty if no gap is a bound."""
        return f"{GAP_THEOREM}, or {DUALITY_THEOREM}" if self.gap_is_bound.any() else ""

    def _advice(self, status: Status) -> str:
        return super()._advice(status) if "Newton" in self.solver_name else status.advice

    def _summary(self) -> Summary:
        """Totals, a row per neuron (of many the twelve that most need attention), advice, certificate."""
        return Summary(self._totals(), self._worst(), self._remarks())

    def _totals(self) -> list[str]:
        silent = int(np.sum(self.status == Status.NO_SPIKES))
        return [
            f"{self.solver_name}: {self.converged.sum()} of {len(self.neuron)} neurons converged"
            + (f", {silent} without spikes" if silent else "")
            + self._masked_words()
            + f"; {counted(self.n_rows, 'row')}, {counted(self.n_features, 'feature')} (rank {self.rank})"
            + (f", {counted(self.n_dropped, 'row')} with NaN dropped" if self.n_dropped else ""),
            f"{self._seconds()}, {counted(round(self.row_evals / self.n_rows), 'pass')} over the rows in all",
        ]

    def _worst(self):
        """Make a table, a row per neuron; of many those that did not converge first, then the largest gaps."""
        import pandas as pd

        shown = np.arange(len(self.neuron))
        if len(shown) > _MOST:
            failed = np.array([s.is_failure for s in self.status])
            shown = np.lexsort((-np.nan_to_num(self.gap, nan=np.inf), self.converged, ~failed))[:_MOST]
        names = [str(self.neuron[i]) for i in shown]  # cut in the middle, where those of units differ least
        words = {
            "neuron": [name if len(name) <= _WIDE else f"{name[:6]}..{name[-16:]}" for name in names],
            "status": [str(self.status[i]) for i in shown],
            "gap F-F*": [f"{self.gap[i]:.1e}" for i in shown],
            "kind": self._gap_kind[shown],
            "relative": [f"{self.relative_gap[i]:.1e}" for i in shown],
            "pseudo-R2": [f"{np.round(self.pseudo_r2[i], 3) + 0.0:.3f}" for i in shown],  # no "-0.000"
            "spikes": [f"{self.spike_count[i]:.0f}" for i in shown],
        }
        if self.observation_model in ("Gaussian", "Gamma"):
            del words["spikes"]
        return pd.DataFrame(words)

    def _remarks(self) -> list[str]:
        lines = []
        if len(self.neuron) > _MOST:
            first = "with the largest gaps" if self.converged.all() else "with failures first, then the largest gaps"
            lines.append(f"(the {_MOST} of {len(self.neuron)} neurons {first}; to_frame() has all)")
        lines += self.advice
        if self.rank < self.n_features and not self.gap_is_bound.all():
            lines.append(
                f"X varies too little along {self.n_features - self.rank} of {self.n_features} directions: they are "
                "excluded, and estimated gaps are those of the other directions."
            )
        if self.runaway:
            lines += self._runaway_lines()
        lines += self._dispersion_lines()
        if self.memory_bytes is not None:
            lines.append(f"rows were read in every pass; {self.memory_bytes / 1e6:.0f} MB of them at a time")
        if self.step_certificate is not None:
            lines.append(str(self.step_certificate))
        if self.gap_is_bound.any():
            p = self.failure_probability
            chance = f"failure probability {p:.0e}" if p else "no randomness"
            lines.append(f"gap bounds: generalised self-concordance or duality, float64 gradient, {chance}")
        return lines

    def _masked_words(self) -> str:
        if self.n_masked is None or not np.any(self.n_masked):
            return ""
        share = self.n_masked.sum() / (self.n_rows * len(self.neuron))
        return f"; {100 * share:.2g} % of all bins masked, in {counted(np.count_nonzero(self.n_masked), 'neuron')}"

    def _dispersion_lines(self) -> list[str]:
        """Report overdispersion of the counts, and what is certified if the dispersion was estimated."""
        lines = []
        if self.is_overdispersed is not None and np.any(self.is_overdispersed):
            low, middle, high = np.nanquantile(self.dispersion[self.is_overdispersed], (0, 0.5, 1))
            lines.append(
                f"Counts of {int(self.is_overdispersed.sum())} of {len(self.neuron)} neurons vary more than the model "
                f"allows: Pearson dispersion {middle:.2f} ({low:.2f} to {high:.2f}), 1 if it is right. See "
                "docs/how_to/observation_models.md."
            )
        if self.observation_model == "NegativeBinomial":
            lines.append(
                "Gaps are those of the fit at the dispersion in dispersion_. If that was estimated, nothing is "
                "proved about it: the likelihood is not convex in the dispersion."
            )
        return lines

    def _runaway_lines(self) -> list[str]:
        """List features whose coefficients ran away, and for how many neurons."""
        lines = [
            "Coefficients that the rows hardly determine, and that alone change the linear predictor by more than 15:"
        ]
        worst = np.argsort(-np.abs(self.runaway["coef"]), kind="stable")
        features = list(dict.fromkeys(self.runaway["feature"][worst]))
        for name in features[:_SHOWN]:
            of = self.runaway["feature"] == name
            neurons = f"{of.sum()} neurons" if of.sum() > 1 else f"neuron {self.runaway['neuron'][of][0]}"
            lines.append(
                f"  feature {name} (not at its median in {self.runaway['n_rows'][of][0]} of {self.n_rows} rows): "
                f"{neurons}, coefficients up to {np.max(np.abs(self.runaway['coef'][of])):.1e}"
            )
        more = len(features) - _SHOWN
        rest = [f"  and {counted(more, 'more feature')} (report_.runaway)"] if more > 0 else []
        return [*lines, *rest, f"  {self._against_runaway}"]
