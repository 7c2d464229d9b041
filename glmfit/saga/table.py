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
from .joint import JointProblem, Outlook
from .spectral_rows import Metric, epoch_order, saga_epoch

_STALLED = 10  # epochs without progress
_MOVED = 4.0  # fall of the gradient's norm after which the curvature is looked at anew


class TableSolution(NamedTuple):
    """Outcome of a joint fit."""

    params: Params  # float64
    objective: float  # F there, never larger than at the start
    start_objective: float
    gap: float  # second-order estimate of F - F*; not a bound
    shares: np.ndarray  # what of it is each column's, by the norms of their gradients, (column,)
    target: float  # gap below which the fit counts as converged
    converged: bool
    epochs: int  # passes of SAGA over the rows
    step: float  # last one, in the metric of the spectral basis


@dataclass(frozen=True)
class TableSAGA:
    """SAGA on all columns together, with a safeguarded step.

    ``batch_size`` rows per step (1/20 of the recording, 32 to 4096, by default); no step is longer than ``step_limit``;
    ``epoch_kernel`` may be a jitted `saga_epoch` of the caller's own.

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
        size = self.batch_size or problem.default_batch_size
        check_batch_size(size, problem.n_rows)
        seed = seed_of(key)
        walk = _JointWalk(problem, problem.rows(size, seed), seed, self.epoch_kernel or saga_epoch, self.step_limit)
        begun = walk.look(start)
        walk.at, first = begun, begun.objective if reference is None else walk.look(reference).objective
        reference = start if reference is None else reference
        if np.any(reference.coef):
            none, mean = np.zeros_like(reference.coef), problem.basis.mean
            intercepts = reference.intercept, reference.intercept + mean @ reference.coef
            plain = [walk.look(Params(none, intercept)) for intercept in intercepts]
            best = min(plain, key=lambda at: at.objective if np.isfinite(at.objective) else np.inf)
            first = best.objective
            if max_epochs > 0 and not begun.objective <= first:
                walk.at = best
        gap, target = walk.run(first, tol, max_epochs)
        at = walk.at
        worse = at.objective > begun.objective
        norms = walk.norms()
        shares = norms / norms.sum() if 0 < norms.sum() < np.inf else np.full(len(norms), 1 / len(norms))
        return TableSolution(
            params=start if worse else problem.from_columns(at.v, at.memory),
            objective=begun.objective if worse else at.objective,
            start_objective=begun.objective,
            gap=gap,
            shares=shares,
            target=target,
            converged=bool(gap <= target and np.isfinite(at.objective) and not worse),
            epochs=walk.epochs,
            step=walk.shrink * walk.step,
        )


class _JointWalk:
    """A joint fit on its way: columns, the metric formed where they were, and the step in it."""

    def __init__(self, problem: JointProblem, rows, seed: int, kernel, step_limit: float):
        self.problem, self.rows, self.seed, self.kernel, self.limit = problem, rows, seed, kernel, step_limit
        self.at: Outlook
        self.metric: Metric | None = None
        self.step, self.shrink, self.n_metrics, self.epochs = 0.0, 1.0, 0, 0

    def look(self, params: Params) -> Outlook:
        """Take a pass at some parameters."""
        v = self.problem.to_columns(params)
        return self.problem.look(self.rows, v, self.rows.start_memory(v))

    def norms(self) -> np.ndarray:
        """Squared norms of the gradient in the metric, (column,)."""
        return np.asarray(self.metric.squared_norm(self.problem.residual(self.at)), np.float64)

    def run(self, first: float, tol: float, max_epochs: int) -> tuple[float, float]:
        """Go epochs until the gap, estimated, is below its target or nothing improves; returns both."""
        eps, smooth = float(np.finfo(self.problem.dtype).eps), self.problem.penalty.smooth
        lowest, best, since, seen, inflation = self.at.objective, np.inf, 0, np.inf, 1.0
        for self.epochs in range(max_epochs + 1):
            norm = np.inf if self.metric is None else float(np.sum(self.norms()))
            if self.metric is None or norm < seen / _MOVED**2:
                self._renew()
                norm = seen = float(np.sum(self.norms()))
            before = self.at.objective
            target = max(tol * max(first - before, 0.0), max(8 * eps**2, 4e-15) * abs(before))
            last = self.epochs == max_epochs or since >= _STALLED
            gap = inflation * norm / 2
            if gap <= 4 * target or last:
                gap = self.problem.joint_gap(self.rows, self.at, self.metric)
                inflation = max(1.0, 2 * gap / max(norm, 1e-300))
            if gap <= target or last or not np.isfinite(before):
                break
            # The proximal step of a sparse penalty is solved to a share of what is left only.
            self._visit(slack=8 * eps * abs(before) + (0.0 if smooth else 0.05 * norm))
            better = norm < 0.9 * best or self.at.objective < lowest - max(1e-2 * target, 4 * eps * abs(before))
            since = 0 if better else since + 1
            if better:
                best, lowest = min(best, norm), min(lowest, self.at.objective)
        return gap, target

    def _renew(self) -> None:
        """Form the metric and the step where the columns are."""
        self.n_metrics += 1
        self.metric = self.problem.metric_of(self.rows, self.at)
        L = self.problem.smoothness(self.rows, self.at.v, self.metric, self.seed, self.n_metrics)
        self.step = min(1 / (3 * max(L, 1e-12)), self.limit)

    def _visit(self, slack: float) -> None:
        """Go an epoch; where the objective rises by more than some slack, it is undone and the step halved."""
        problem, rows, at = self.problem, self.rows, self.at
        order = epoch_order("partition", self.seed, self.epochs, rows.n_blocks, rows.batch_size, problem.n_rows)
        steps = np.full(problem.n_neurons, self.shrink * self.step, problem.dtype)
        kept = jax.tree.map(np.array, (at.v, at.memory))
        v, _, _, memory = self.kernel(
            rows, at.v, at.pass_.table, at.pass_.gradient, at.memory, self.metric, steps, order, subsets=False
        )
        new = problem.look(rows, v, memory)
        if new.objective <= at.objective + slack:
            self.at, self.shrink = new, min(1.0, 1.2 * self.shrink)
        else:
            self.at, self.shrink = problem.look(rows, *kept), self.shrink / 2
