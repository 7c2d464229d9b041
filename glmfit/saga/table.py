"""SAGA for rows whose loss is known by its value alone: its table holds gradients in the linear predictor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from .._checks import check_positive, check_whole
from ..bounds import check_batch_size
from ..problems.base import Params
from ..solvers._seed import seed_of
from .row_orders import epoch_order
from .spectral_rows import saga_epoch

_STALLED = 10  # epochs without progress
_MOVED = 4.0  # fall of the gradient's norm after which the curvature is looked at anew


def _finite_first(pair) -> float:
    return pair[0] if np.isfinite(pair[0]) else np.inf


class TableSolution(NamedTuple):
    """Outcome of a joint fit.

    Attributes
    ----------
    params : Params
        Coefficients (feature, column) and intercepts (column,), float64.
    objective, start_objective : float
        F at ``params`` and at the start; the former is never larger.
    gap : float
        Second-order estimate of F - F*; not a bound.
    shares : numpy.ndarray
        What of it is each column's, by the norms of their gradients, (column,).
    target : float
        Gap below which the fit counts as converged.
    converged : bool
        Whether it is below.
    epochs : int
        Passes of SAGA over the rows.
    step : float
        Last step, in the metric of the spectral basis.
    """

    params: Params
    objective: float
    start_objective: float
    gap: float
    shares: np.ndarray
    target: float
    converged: bool
    epochs: int
    step: float


@dataclass(frozen=True)
class TableSAGA:
    """SAGA on all columns together, with a safeguarded step.

    Parameters
    ----------
    batch_size : int, optional
        Rows per step; chosen by default (1/20 of the recording, 32 to 4096).
    step_limit : float
        The step is never longer than this.
    epoch_kernel : callable, optional
        A jitted ``saga_epoch`` of the caller's own.

    Notes
    -----
    The step is 1/(3 L_b), the largest eigenvalue of the blocks' Hessians at the present parameters: right for them,
    proved for nothing else. After each epoch the objective is looked at; if it rose, the epoch is undone and the step
    halved. The objective never ends above its start. Cost per epoch: about three passes.
    """

    batch_size: int | None = None
    step_limit: float = float("inf")
    epoch_kernel: object = None

    def __post_init__(self):
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size, 1)
        if self.step_limit != float("inf"):
            check_positive("step_limit", self.step_limit)

    def run(
        self, problem, start: Params, *, key, tol: float = 1e-6, max_epochs: int = 1000, reference: Params | None = None
    ) -> TableSolution:
        """Fit until the estimated gap is below ``tol`` times the improvement over the start, or nothing improves.

        With 0 epochs it only looks. ``reference`` takes the place of the start in the improvement; from coefficients
        other than 0 the improvement is that over no coefficients, so that a start near the optimum asks for no more
        than one far from it, and a worse one for no less.
        """
        seed = seed_of(key)
        size = self.batch_size or problem.default_batch_size
        check_batch_size(size, problem.n_rows)
        saga = self.epoch_kernel or saga_epoch
        rows = problem.rows(size, seed)
        eps = float(np.finfo(problem.dtype).eps)

        def look(params):
            v = problem.to_columns(params)
            return problem.look(rows, v, rows.start_memory(v))

        at = look(start)
        begun = first = at.objective
        if reference is not None:
            first = look(reference).objective
        reference = start if reference is None else reference
        if np.any(reference.coef):
            plain = reference._replace(coef=np.zeros_like(reference.coef))
            centred = plain._replace(intercept=reference.intercept + problem.basis.mean @ reference.coef)
            first, no_coef = min(((o.objective, o) for o in (look(plain), look(centred))), key=_finite_first)
            if max_epochs > 0 and not at.objective <= first:
                at = no_coef
        lowest = at.objective
        shrink, best, since, seen = 1.0, np.inf, 0, np.inf
        metric = step = None
        number, inflation, gap = 0, 1.0, np.inf
        for epoch in range(max_epochs + 1):
            norm = np.inf
            if metric is not None:
                norm = float(np.sum(metric.squared_norm(problem.residual(at))))
            if metric is None or norm < seen / _MOVED**2:
                number += 1
                metric = problem.metric_of(rows, at)
                norm = float(np.sum(metric.squared_norm(problem.residual(at))))
                L = problem.smoothness(rows, at.v, metric, seed, number)
                step, seen = min(1 / (3 * max(L, 1e-12)), self.step_limit), norm
            target = self._target(first, at.objective, tol, eps)
            last = epoch == max_epochs or since >= _STALLED
            if inflation * norm / 2 <= 4 * target or last:
                gap = problem.joint_gap(rows, at, metric)
                inflation = max(1.0, 2 * gap / max(norm, 1e-300))
            else:
                gap = inflation * norm / 2
            if gap <= target or last or not np.isfinite(at.objective):
                break
            order = epoch_order("partition", seed, epoch, rows.n_blocks, rows.batch_size, problem.n_rows)
            steps = np.full(problem.n_neurons, shrink * step, problem.dtype)
            kept = jax.tree.map(np.array, (at.v, at.memory))
            v, _, _, memory = saga(
                rows, at.v, at.pass_.table, at.pass_.gradient, at.memory, metric, steps, order, subsets=False
            )
            before, new = at.objective, problem.look(rows, v, memory)
            # The proximal step of a sparse penalty is solved to a share of what is left only.
            slack = 8 * eps * abs(before) + (0.0 if problem.penalty.smooth else 0.05 * norm)
            if new.objective <= before + slack:
                at, shrink = new, min(1.0, 1.2 * shrink)
            else:
                at, shrink = problem.look(rows, *kept), shrink / 2
            better = norm < 0.9 * best or at.objective < lowest - max(1e-2 * target, 4 * eps * abs(before))
            since = 0 if better else since + 1
            if better:
                best, lowest = min(best, norm), min(lowest, at.objective)
        worse = at.objective > begun
        params = start if worse else problem.from_columns(at.v, at.memory)
        converged = bool(gap <= target and np.isfinite(at.objective) and not worse)
        objective = begun if worse else at.objective
        norms = np.asarray(metric.squared_norm(problem.residual(at)), np.float64)
        shares = norms / norms.sum() if 0 < norms.sum() < np.inf else np.full(len(norms), 1 / len(norms))
        return TableSolution(params, objective, begun, gap, shares, target, converged, epoch, shrink * step)

    @staticmethod
    def _target(first, objective, tol, eps) -> float:
        return max(tol * max(first - objective, 0.0), max(8 * eps**2, 4e-15) * abs(objective))
