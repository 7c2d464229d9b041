"""What a fit of a NeMoS model leaves: certificate, state, and how glmfit's results become them.

Each part of the columns is fitted as one problem, by the certified solvers or on a table of gradients; the outcomes of
all parts together are the state that NeMoS keeps as ``solver_state_``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import numpy as np
from nemos.solvers._abstract_solver import OptimizationInfo

from .._display import Display, Summary
from .._status import Status, as_statuses
from ..estimators import FitReport
from ..estimators.report import null_is_best, relative_gap
from ..problems import Params

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Certificate(Display):
    """What is known of the distance from the optimum, per neuron (whose classes are one problem).

    Attributes
    ----------
    gap : numpy.ndarray
        ``F - F*``: a proved bound where ``gap_is_bound``, else an estimate.
    gap_is_bound : numpy.ndarray
        Whether it is proved.
    status : numpy.ndarray
        Outcome, of :class:`glmfit.Status`; shown as words.
    step : StepCertificate or None
        Theorem and constants of the step size, where one was used.
    """

    gap: np.ndarray
    gap_is_bound: np.ndarray
    status: np.ndarray
    step: Any = None

    def _summary(self) -> Summary:
        proved = int(np.sum(self.status == Status.CONVERGED))
        return Summary([f"{proved} of {len(self.status)} neurons converged"], self.to_frame())

    def to_frame(self) -> pd.DataFrame:
        """Return one row per neuron as a pandas DataFrame."""
        import pandas as pd

        kind = np.where(self.gap_is_bound, "bound", "estimate")
        columns = {"status": [str(s) for s in self.status], "gap": self.gap, "gap_kind": kind}
        return pd.DataFrame(columns, index=pd.RangeIndex(len(self.gap), name="neuron"))


class FitState(eqx.Module):
    """State of the solver, NeMoS's ``solver_state_``.

    Attributes
    ----------
    function_val : array
        Penalised loss at the parameters returned.
    num_steps : array
        Epochs, or iterations of the proximal route.
    converged, reached_max_steps : array
        Whether the gap of every neuron is proved to be below the tolerance (in a run that jax traces, where nothing can
        be proved: whether the gradient is); whether the budget ran out first.
    step : array
        Step size an update starts from.
    route : str
        "certified" (a model glmfit knows, with bounds per neuron), "table" (a generalised linear model it knows by
        its loss) or "proximal" (nothing known).
    solver : str
        Algorithm that ran.
    certificate : Certificate or None
        Distance from the optimum; None on the proximal route.
    report : FitReport or None
        What else is known per neuron; None on the proximal route. :func:`glmfit.plugins.nemos.report` always has one.
    """

    function_val: Any
    num_steps: Any
    converged: Any
    reached_max_steps: Any
    step: Any
    route: str = eqx.field(static=True)
    solver: str = eqx.field(static=True)
    certificate: Any = None
    report: Any = None

    def __repr__(self) -> str:
        """Return the report, or what is known without one."""
        return f"{self._heading}\n{self.report}" if self.report is not None else self._heading

    def _repr_html_(self) -> str:
        """Return the report for a notebook."""
        table = "" if self.report is None else self.report._repr_html_()
        return f"<pre>{self._heading}</pre>{table}"

    @property
    def _heading(self) -> str:
        outcome = "converged" if self.converged else "out of steps" if self.reached_max_steps else "not converged"
        return (
            f"{self.solver}, {self.route} route: {outcome} after {int(self.num_steps)} steps, penalised loss "
            f"{float(self.function_val):.6g}"
        )

    @property
    def stats(self) -> OptimizationInfo:
        """NeMoS's summary of the run."""
        return OptimizationInfo(
            function_val=self.function_val,
            num_steps=self.num_steps,
            converged=self.converged,
            reached_max_steps=self.reached_max_steps,
        )


class Outcome(NamedTuple):
    """What either solver says of a part of the columns; the facts are fields of a report."""

    params: Params
    objective: float
    epochs: int
    target: float
    converged: bool
    out_of_budget: bool
    step: float
    solver: str
    certificate: Certificate
    facts: dict


def of_certified(problem, start: Params, solution, dtype) -> Outcome:
    """Outcome of a certified fit at parameters as NeMoS keeps them, in its precision: the gap there is the one told."""
    params, objective = solution.params, solution.objective
    kept = Params(*(a.astype(dtype).astype(np.float64) for a in params))
    with np.errstate(invalid="ignore"):
        there = np.asarray(problem.evaluate(kept).objective).reshape(objective.shape)
        gap = solution.gap + np.maximum(there - objective, 0.0)
    lost = np.isin(solution.status, (Status.CONVERGED, Status.UNPROVED)) & ~(gap <= solution.target)
    status = np.where(lost, Status.PRECISION_FLOOR, solution.status)
    params, objective = kept, there
    fine = (status == Status.CONVERGED) | (status == Status.NO_SPIKES)
    if np.any(start.coef):  # a start may be better than where an unfinished fit has got to
        before = np.asarray(problem.evaluate(start).objective).reshape(objective.shape)
        worse = ~fine & ~(objective <= before)
        params = Params(*(np.where(worse, old, new) for old, new in zip(start, params, strict=True)))
        objective = np.where(worse, before, objective)
    step = solution.step_certificate
    certificate = Certificate(gap, solution.gap_is_bound, as_statuses(status), step)
    return Outcome(
        params, float(np.sum(objective)), int(solution.epochs.max()), float(np.min(solution.target)), bool(fine.all()),
        bool(np.any(status == Status.MAX_EPOCHS)), float(np.min(step.step)) if step is not None else 1.0,
        solution.solver_name, certificate, _facts_of(problem, solution, params, objective),
    )  # fmt: skip


def _facts_of(problem, solution, params: Params, objective) -> dict:
    """Fields of a report."""
    null, saturated = solution.null_objective, problem.saturated_loss
    penalty = np.asarray(problem.penalty.value(params.coef), np.float64).reshape(-1)
    penalty = penalty if len(penalty) == len(objective) else penalty.sum(keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        explained = 1 - (objective - penalty - saturated) / (null - saturated)
    return {
        "target": solution.target,
        "objective": objective,
        "null_objective": null,
        "pseudo_r2": explained,
        "epochs": solution.epochs,
        "row_evals": solution.row_evals,
        "lost_rank": len(params.coef) - getattr(problem, "design_rank", len(params.coef)),
        "failure_probability": solution.failure_probability,
        "seconds_run": solution.seconds_run,
        "seconds_compile": solution.seconds_compile,
    }


def of_table(solution, budget: int, n_classes: int) -> Outcome:
    """Outcome of a fit of which only an estimate of the gap is known, shared out over the neurons; no proof."""
    shares = solution.shares.reshape(-1, n_classes).sum(axis=1)
    n = len(shares)
    out = not solution.converged and solution.epochs >= budget
    status = Status.UNPROVED if solution.converged else Status.MAX_EPOCHS if out else Status.PRECISION_FLOOR
    status = status if np.isfinite(solution.objective) else Status.NON_FINITE
    certificate = Certificate(solution.gap * shares, np.zeros(n, bool), as_statuses([status] * n))
    return Outcome(
        solution.params, solution.objective, solution.epochs, solution.target, False, out, solution.step,
        "TableSAGA", certificate, _nothing_known(n) | {
            "target": solution.target * shares, "epochs": np.full(n, solution.epochs),
        },
    )  # fmt: skip


def _nothing_known(n_neurons: int) -> dict:
    """Fields of a report on a fit of which neither null model nor cost is known."""
    unknown = np.full(n_neurons, np.nan)
    return {
        **dict.fromkeys(("target", "objective", "null_objective", "pseudo_r2"), unknown),
        **dict.fromkeys(("row_evals", "lost_rank"), 0),
        **dict.fromkeys(("failure_probability", "seconds_run", "seconds_compile"), 0.0),
        "epochs": np.zeros(n_neurons, int),
    }


def merge(outcomes, view, route: str) -> FitState:
    """State of all columns from the outcomes of their parts; the classes of a neuron are one row of its report."""
    K = view.n_together
    all_ = [outcome for _, outcome in outcomes]
    step = all_[0].certificate.step if len(all_) == 1 else None

    def joined(values):
        out = np.empty(view.n_columns // K, np.result_type(*values))
        for (columns, _), value in zip(outcomes, values, strict=True):
            out[columns[::K] // K] = value
        return out

    of = {name: joined([getattr(o.certificate, name) for o in all_]) for name in ("gap", "gap_is_bound", "status")}
    certificate, solver = Certificate(**of, step=step), "+".join(sorted({o.solver for o in all_}))
    facts = {
        name: joined([o.facts[name] for o in all_])
        for name in ("target", "objective", "null_objective", "pseudo_r2", "epochs")
    }
    facts |= {
        name: sum(o.facts[name] for o in all_)
        for name in ("row_evals", "failure_probability", "seconds_run", "seconds_compile")
    }
    spikes = np.sum(view.Y, axis=0, dtype=np.float64) if K == 1 else np.full(view.n_columns // K, np.nan)
    rank = view.X.shape[1] - max(o.facts["lost_rank"] for o in all_)
    return FitState(
        np.asarray(sum(o.objective for o in all_)),
        np.asarray(max(o.epochs for o in all_)),
        np.asarray(all(o.converged for o in all_)),
        np.asarray(any(o.out_of_budget for o in all_)),
        np.asarray(min(o.step for o in all_)),
        route,
        solver,
        certificate,
        report_of(
            certificate, facts, solver, spike_count=spikes, n_rows=len(view.X), rank=rank, n_features=view.X.shape[1],
            n_classes=K,
        ),
    )  # fmt: skip


@dataclass(frozen=True, repr=False, kw_only=True)
class NemosReport(FitReport):
    """Report of a fit through NeMoS: its advice names what can be changed there.

    Attributes
    ----------
    n_classes : int
        Classes of a classifier, which are one problem for every neuron: there are no spikes then.
    """

    n_classes: int = 1

    def _advice(self, status: Status) -> str:
        if status == Status.UNPROVED and not self.step_certificate and "Newton" not in self.solver_name:
            return _UNKNOWN_MODEL
        return _ADVICE.get(status, status.advice)

    def _totals(self) -> list[str]:
        if self.row_evals and self.n_classes == 1:
            return super()._totals()
        n, classes = len(self.neuron), f", {self.n_classes} classes" if self.n_classes > 1 else ""
        done = str(self.status[0]) if n == 1 else f"{int(self.converged.sum())} of {n} neurons converged"
        data = f"; {self.n_rows} rows, {self.n_features} features (rank {self.rank}){classes}" if self.n_rows else ""
        steps = self._seconds() if self.seconds_run else f"{int(self.epochs.max())} epochs"
        return [f"{self.solver_name}: {done}{data}", f"{steps} or steps"]

    @property
    def _frame(self) -> tuple[str, ...]:
        names = FitReport._frame
        return names if self.n_classes == 1 else (*(n for n in names if n != "spike_count"), "n_classes")

    def _worst(self):
        return super()._worst() if self.n_classes == 1 else super()._worst().drop(columns="spikes")


_UNKNOWN_MODEL = (
    "The estimated gap is below the tolerance, but no bound of it is known for this observation model, link and "
    "regularizer, so that nothing proves it."
)
_ADVICE = {
    Status.MAX_EPOCHS: "The budget ran out first: raise maxiter in solver_kwargs, or accept the reported gap.",
    Status.PRECISION_FLOOR: (
        "Above the tolerance no further progress was seen, because of rounding or slowness: loosen tol in "
        'solver_kwargs, or turn on double precision with jax.config.update("jax_enable_x64", True).'
    ),
    Status.NON_FINITE: "A number overflowed or was not finite: check the scale of X and of y.",
    Status.UNPROVED: (
        "The estimated gap is below the tolerance, but nothing proves it: along some direction the features vary too "
        "little, or a proof was too expensive. A ridge penalty can give the curvature a proof needs; so may "
        "removing features that nearly repeat others."
    ),
}


def report_of(certificate: Certificate, facts: dict, solver: str, **counts) -> FitReport:
    """Report of a fit through NeMoS, whose neurons have numbers for names."""
    of = facts["objective"], facts["null_objective"]
    facts = {**facts, "pseudo_r2": np.where(null_is_best(certificate.status, *of), 0.0, facts["pseudo_r2"])}
    return NemosReport(
        neuron=[str(n) for n in range(len(certificate.gap))], status=certificate.status, gap=certificate.gap,
        gap_is_bound=certificate.gap_is_bound, relative_gap=relative_gap(certificate.status, certificate.gap, *of),
        n_dropped=0, solver_name=solver,
        step_certificate=certificate.step, **facts, **counts,
    )  # fmt: skip


def report_of_proximal(state: FitState, n_neurons: int, n_classes: int) -> FitReport:
    """Report of a fit of which only the gradient is known, and no gap."""
    status = Status.MAX_EPOCHS if state.reached_max_steps else Status.UNPROVED
    unknown = np.full(n_neurons, np.nan)
    certificate = Certificate(unknown, np.zeros(n_neurons, bool), as_statuses([status] * n_neurons))
    facts = _nothing_known(n_neurons) | {"epochs": np.full(n_neurons, int(state.num_steps))}
    del facts["lost_rank"]
    counts = {"spike_count": unknown, "n_rows": 0, "rank": 0, "n_features": 0, "n_classes": n_classes}
    return report_of(certificate, facts, state.solver, **counts)
