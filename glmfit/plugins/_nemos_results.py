"""What a fit of a NeMoS model leaves: certificate, state, and how glmfit's results become them.

Each part of the columns is fitted as one problem, by the certified solvers or on a table of gradients; the outcomes of
all parts together are the state that NeMoS keeps as ``solver_state_``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from nemos.solvers._abstract_solver import OptimizationInfo

from .._status import Status
from ..problems import Params


class Certificate(NamedTuple):
    """What is known of the distance from the optimum, per column of the linear predictor.

    Attributes
    ----------
    gap : numpy.ndarray
        ``F - F*``: a proved bound where ``gap_is_bound``, else an estimate.
    gap_is_bound : numpy.ndarray
        Whether it is proved.
    status : numpy.ndarray
        Values of :class:`glmfit.Status`.
    step : StepCertificate or None
        Theorem and constants of the step size, where one was used.
    """

    gap: np.ndarray
    gap_is_bound: np.ndarray
    status: np.ndarray
    step: Any = None


class FitState(eqx.Module):
    """State of the solver, NeMoS's ``solver_state_``.

    Attributes
    ----------
    function_val : array
        Penalised loss at the parameters returned.
    num_steps : array
        Epochs, or iterations of the proximal route.
    converged, reached_max_steps : array
        Whether the gap (proximal route: the gradient) is below the tolerance, or no step improves any more in this
        precision (the status is then PRECISION_FLOOR); whether the budget ran out first.
    step : array
        Step size an update starts from.
    route : str
        "certified" (a model glmfit knows, with bounds per neuron), "table" (a generalised linear model it knows by
        its loss) or "proximal" (nothing known).
    solver : str
        Algorithm that ran.
    certificate : Certificate or None
        Distance from the optimum; None on the proximal route.
    """

    function_val: Any
    num_steps: Any
    converged: Any
    reached_max_steps: Any
    step: Any
    route: str = eqx.field(static=True)
    solver: str = eqx.field(static=True)
    certificate: Any = None

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
    """What either solver says of a part of the columns."""

    params: Params
    objective: float
    epochs: int
    target: float
    converged: bool
    out_of_budget: bool
    step: float
    solver: str
    certificate: Certificate


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
    n = params.coef.shape[1]
    each = n // len(status)  # classes share what is known of all of them
    certificate = Certificate(
        np.repeat(gap, each) / each, np.repeat(solution.gap_is_bound, each), statuses(np.repeat(status, each)), step
    )
    return Outcome(
        params, float(np.sum(objective)), int(solution.epochs.max()), float(np.min(solution.target)), bool(fine.all()),
        bool(np.any(status == Status.MAX_EPOCHS)), float(np.min(step.step)) if step is not None else 1.0,
        solution.solver_name, certificate,
    )  # fmt: skip


def of_table(solution, budget: int) -> Outcome:
    """Outcome of a fit of which only an estimate of the gap is known, shared out over the columns."""
    n = solution.params.coef.shape[1]
    out = not solution.converged and solution.epochs >= budget
    status = Status.UNPROVED if solution.converged else Status.MAX_EPOCHS if out else Status.PRECISION_FLOOR
    status = status if np.isfinite(solution.objective) else Status.NON_FINITE
    certificate = Certificate(solution.gap * solution.shares, np.zeros(n, bool), statuses([status] * n))
    return Outcome(
        solution.params, solution.objective, solution.epochs, solution.target, solution.converged, out, solution.step,
        "TableSAGA", certificate,
    )  # fmt: skip


def statuses(values) -> np.ndarray:
    """Array of statuses, which shows them as words."""
    return np.array([Status(int(s)) for s in values], object)


def merge(outcomes, n_columns: int, route: str) -> FitState:
    gap, bound, status = np.empty(n_columns), np.empty(n_columns, bool), np.empty(n_columns, object)
    for columns, outcome in outcomes:
        c = outcome.certificate
        gap[columns], bound[columns], status[columns] = c.gap, c.gap_is_bound, c.status
    all_ = [outcome for _, outcome in outcomes]
    step = all_[0].certificate.step if len(all_) == 1 else None
    return FitState(
        np.asarray(sum(o.objective for o in all_)),
        np.asarray(max(o.epochs for o in all_)),
        np.asarray(all(o.converged for o in all_)),
        np.asarray(any(o.out_of_budget for o in all_)),
        np.asarray(min(o.step for o in all_)),
        route,
        "+".join(sorted({o.solver for o in all_})),
        Certificate(gap, bound, status, step),
    )
