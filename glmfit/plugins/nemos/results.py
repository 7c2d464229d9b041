"""Results of fits of NeMoS models: certificate and state (NeMoS's ``solver_state_``), and conversions to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from nemos.solvers._abstract_solver import OptimizationInfo

from ...display import Display, Summary, frame_by_neuron
from ...engine.problem import Params
from ...engine.result import PER_FIT, Solution
from ...estimators import FitReport
from ...estimators.report import null_is_best, relative_gap, report_of
from ...status import NO_PROOF, Status

if TYPE_CHECKING:
    import pandas as pd


_FINE = (Status.CONVERGED, Status.NO_SPIKES)


@dataclass(frozen=True, repr=False)
class Certificate(Display):
    """Known distance from the optimum, per neuron (the classes of a neuron are one problem).

    Attributes
    ----------
    gap : numpy.ndarray
        ``F - F*``: a proved bound if ``gap_is_bound``, otherwise an estimate.
    gap_is_bound : numpy.ndarray
        Whether it is proved.
    status : numpy.ndarray
        Outcome, of :class:`glmfit.Status`; shown as words.
    step : StepCertificate or None
        Theorem and constants of the step size, if one was used.
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
        kind = np.where(self.gap_is_bound, "bound", "estimate")
        columns = {"status": [str(s) for s in self.status], "gap": self.gap, "gap_kind": kind}
        return frame_by_neuron(range(len(self.gap)), columns)


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
    report : FitReport or None
        Report per neuron; None on the proximal route. :func:`glmfit.plugins.nemos.report` always returns one.
    """

    function_val: Any
    num_steps: Any
    converged: Any
    reached_max_steps: Any
    step: Any
    route: str = eqx.field(static=True)
    solver: str = eqx.field(static=True)
    report: Any = None

    @property
    def certificate(self) -> Certificate | None:
        """Distance from the optimum; None on the proximal route."""
        known = self.report
        if known is None:
            return None
        return Certificate(known.gap, known.gap_is_bound, known.status, known.step_certificate)

    def __repr__(self) -> str:
        """Return the report, or the outcome alone without one."""
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
        names = "function_val", "num_steps", "converged", "reached_max_steps"
        return OptimizationInfo(**{name: getattr(self, name) for name in names})


def unproved_state(
    objective: Any, n_steps: Any, step: Any, converged: Any = False, out: Any = False,
    solver: str = "proximal gradient", route: str = "proximal",
) -> FitState:  # fmt: skip
    """Make the state of a fit without a report; it may be traced."""
    return FitState(objective, n_steps, jnp.asarray(converged), jnp.asarray(out), step, route, solver)


class Outcome(NamedTuple):
    """Outcome of either solver for a part of the columns."""

    solution: Solution
    pseudo_r2: np.ndarray
    objective: float  # sum of the columns'
    step: float
    lost_rank: int = 0


def of_certified(problem, start: Params, solution: Solution, dtype) -> Outcome:
    """Make the outcome of a certified fit at the parameters that NeMoS keeps, in its precision, with the gap there."""
    kept = Params(*(a.astype(dtype).astype(np.float64) for a in solution.params))
    same = all(np.array_equal(*each) for each in zip(kept, solution.params, strict=True))
    with np.errstate(invalid="ignore"):
        objective = solution.objective if same else problem.evaluate(kept).objective
        objective = np.asarray(objective).reshape(solution.objective.shape)
        gap = solution.gap + np.maximum(objective - solution.objective, 0.0)
    lost = np.isin(solution.status, (Status.CONVERGED, Status.UNPROVED)) & ~(gap <= solution.target)
    status = np.where(lost, Status.PRECISION_FLOOR, solution.status)
    if np.any(start.coef):  # a start may be better than the end of an unfinished fit
        before = np.asarray(problem.evaluate(start).objective).reshape(objective.shape)
        worse = ~np.isin(status, _FINE) & ~(objective <= before)
        kept = Params(*(np.where(worse, old, new) for old, new in zip(start, kept, strict=True)))
        objective = np.where(worse, before, objective)
    penalty = np.asarray(problem.penalty.value(kept.coef), np.float64).reshape(-1)
    penalty = penalty if len(penalty) == len(objective) else penalty.sum(keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        saturated = problem.saturated_loss
        explained = 1 - (objective - penalty - saturated) / (solution.null_objective - saturated)
    step, lost_rank = solution.step_certificate, len(kept.coef) - getattr(problem, "design_rank", len(kept.coef))
    solution = replace(solution, params=kept, status=status, gap=gap, objective=objective)
    return Outcome(solution, explained, float(np.sum(objective)), 1.0 if step is None else np.min(step.step), lost_rank)


def of_table(found: Solution, n_classes: int) -> Outcome:
    """Make the outcome of a fit with an estimated gap and no proof."""
    gap, target = (a.reshape(-1, n_classes).sum(axis=1) for a in (found.gap, found.target))
    known = _nothing_proved(len(gap), found.status, found.solver_name, found.epochs)
    return Outcome(
        replace(known, params=found.params, gap=gap, target=target), known.objective, found.objective, found.state
    )


def _nothing_proved(n_neurons: int, status: Status, solver: str, epochs: int) -> Solution:
    """Make a solution whose null model and cost are unknown."""
    known = Solution(
        params=None, status=int(status), epochs=int(epochs), seconds_run=0.0, seconds_compile=0.0, solver_name=solver
    )
    return known.each(lambda value: np.full(n_neurons, value))


def merge(outcomes, view, route: str, n_rows: int | None = None, spikes: np.ndarray | None = None) -> FitState:
    """Make the state of all columns from the outcomes of parts; the classes of a neuron are one row of its report.

    Rows and spikes are by default those of the view, which may have only some of the rows.
    """
    K, parts, all_ = view.n_together, *zip(*outcomes, strict=True)
    fits, n = [outcome.solution for outcome in all_], view.Y.shape[1] // K

    def joined(values):
        out = np.empty(n, np.result_type(*values))
        for columns, value in zip(parts, values, strict=True):
            out[columns[::K] // K] = value
        return out

    sums = "row_evals", "failure_probability", "seconds_run", "seconds_compile"
    solution = Solution(
        params=None,
        **{name: joined([getattr(fit, name) for fit in fits]) for name in PER_FIT},
        **{name: sum(getattr(fit, name) for fit in fits) for name in sums},
        step_certificate=fits[0].step_certificate if len(fits) == 1 else None,
        solver_name="+".join(sorted({fit.solver_name for fit in fits})),
    )
    if spikes is None:
        spikes = np.sum(view.Y, axis=0, dtype=np.float64) if K == 1 else np.full(n, np.nan)
    rank = view.X.shape[1] - max(o.lost_rank for o in all_)
    report = _report(
        solution, joined([o.pseudo_r2 for o in all_]), spike_count=spikes,
        n_rows=len(view.X) if n_rows is None else n_rows, rank=rank,
        n_features=view.X.shape[1], n_classes=K,
    )  # fmt: skip
    return FitState(
        np.asarray(sum(o.objective for o in all_)),
        np.asarray(max(int(fit.epochs.max()) for fit in fits)),
        np.isin(solution.status, _FINE).all(),
        np.asarray(np.any(solution.status == Status.MAX_EPOCHS)),
        np.asarray(min(o.step for o in all_)),
        route,
        solution.solver_name,
        report,
    )


@dataclass(frozen=True, repr=False, kw_only=True)
class NemosReport(FitReport):
    """Report of a fit through NeMoS, whose advice names the options of NeMoS.

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
    "regularizer, so that it is not proved."
)
_ADVICE = {
    Status.MAX_EPOCHS: (
        "The budget ran out first: raise maxiter in solver_kwargs (or the passes of stochastic_fit), or accept the "
        "reported gap."
    ),
    Status.PRECISION_FLOOR: (
        "Progress stopped above the tolerance, because of rounding or slow convergence: loosen tol in "
        'solver_kwargs, or turn on double precision with jax.config.update("jax_enable_x64", True).'
    ),
    Status.NON_FINITE: "A number overflowed or was not finite: check the scale of X and of y.",
    Status.UNPROVED: NO_PROOF.format(", or a proof was too expensive", ""),
}


def _report(solution: Solution, pseudo_r2, **counts) -> FitReport:
    """Make the report of a fit through NeMoS, with numbers as names of neurons."""
    of = solution.objective, solution.null_objective
    return report_of(
        NemosReport,
        solution,
        neuron=[str(n) for n in range(len(solution.gap))],
        relative_gap=relative_gap(solution.status, solution.gap, *of),
        pseudo_r2=np.where(null_is_best(solution.status, *of), 0.0, pseudo_r2),
        n_dropped=0,
        **counts,
    )


def report_of_proximal(state: FitState, n_neurons: int, n_classes: int) -> FitReport:
    """Make the report of a fit whose gradient is known, but not its gap."""
    status = Status.MAX_EPOCHS if state.reached_max_steps else Status.UNPROVED
    solution = _nothing_proved(n_neurons, status, state.solver, state.num_steps)
    unknown = solution.objective
    return _report(solution, unknown, spike_count=unknown, n_rows=0, rank=0, n_features=0, n_classes=n_classes)
