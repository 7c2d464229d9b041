"""Rows whose loss is given by its value alone and may couple the columns: a softmax, or a loss given as code.

F(W, b) = (1/T) sum_t loss_t(W'x_t + b) + penalty(W)
"""

import jax
import jax.numpy as jnp
import numpy as np

from ..bounds import bound_largest_eigenvalue
from ..compilation import jit
from ..engine.exact.quadratic import minimise
from ..engine.metric import basis_of
from ..engine.problem import Params
from ..engine.result import Solution
from ..engine.tiles import a_twentieth
from ..numerics import seed_of
from ..penalties import Penalty
from ..penalties.base import per_neuron
from ..status import Status
from .spectral_rows import Metric, Rows, block_spectra, change_of_derivative, saga_epoch, sweep
from .walk import Position, SpectralView

_SMOOTH_STEPS, _GAP_STEPS, _LEFT = 8, 16, 1e-3  # of Lanczos; of conjugate gradients, and the residual they may leave
_STALLED = 10  # epochs without progress
_MOVED = 4.0  # fall of the gradient's norm after which the curvature is evaluated again
_FLAT = 1e-6  # share of the largest curvature that single precision cannot tell from 0


class JointProblem(SpectralView):
    """Data, loss of a row (`RowLoss`) and penalty of a model whose columns are fitted jointly, without certificates.

    Curvatures are those at the current parameters, not bounds. ``kernels`` are `sweep`, `saga_epoch`, `block_spectra`
    and `curved`, jitted by a caller that releases them with the problem.
    """

    def __init__(self, X, Y, loss, penalty: Penalty, n_columns: int, dtype=np.float32, kernels=None):
        super().__init__(X, Y, loss, penalty, basis_of(X, None, penalty, grouped=True), dtype)
        self.n_neurons, self.kernels = n_columns, kernels or (sweep, saga_epoch, block_spectra, curved)

    @property
    def default_batch_size(self) -> int:
        """Rows per block: 1/20 of the recording, between 32 and 4096."""
        return a_twentieth(self.n_rows)

    def objective(self, loss, coef) -> float:
        """F, given the mean loss."""
        return float(loss) + float(np.sum(self.penalty.value(coef)))


def fit_joint(
    problem: JointProblem,
    start: Params,
    *,
    key,
    tol: float = 1e-6,
    max_epochs: int = 1000,
    reference: Params | None = None,
    batch_size: int | None = None,
    step_limit: float = np.inf,
) -> Solution:
    """Fit by SAGA until the estimated gap is below ``tol`` times the improvement over the start, or nothing improves.

    ``reference`` replaces the start in the improvement. If it has coefficients other than 0, the improvement is over no
    coefficients: a start near the optimum then needs no smaller gap than one far from it, a worse start no larger one.
    The objective is one number, never larger than at the start; gap and target are divided among the columns by the
    norms of their gradients. A fit that is converged by its estimate is UNPROVED; the state is its last step.
    """
    walk = _JointWalk(problem, batch_size, seed_of(key), step_limit)
    reference, best, first = reference or start, start, None
    if np.any(reference.coef):
        none, mean = np.zeros_like(reference.coef), problem.basis.mean
        plain = [Params(none, b) for b in (reference.intercept, reference.intercept + mean @ reference.coef)]
        values = [walk.put(params) for params in plain]
        first, best = min(zip(values, plain, strict=True), key=lambda at: at[0] if np.isfinite(at[0]) else np.inf)
    elif reference is not start:
        first = walk.put(reference)
    begun = walk.put(start)
    first = begun if first is None else first
    if max_epochs > 0 and not begun <= first:
        walk.put(best)
    gap, target = walk.run(first, tol, max_epochs)
    worse = walk.objective > begun
    params, objective = (start, begun) if worse else (walk.params, walk.objective)
    norms = walk.norms()
    shares = norms / norms.sum() if 0 < norms.sum() < np.inf else np.full(len(norms), 1 / len(norms))
    status = Status.MAX_EPOCHS if walk.epoch >= max_epochs else Status.PRECISION_FLOOR
    status = Status.UNPROVED if gap <= target and not worse else status
    return Solution(
        params=params, status=status if np.isfinite(objective) else Status.NON_FINITE, gap=gap * shares,
        target=target * shares, objective=objective, epochs=walk.epoch, seconds_run=0.0, seconds_compile=0.0,
        solver_name="TableSAGA", state=walk.shrink * walk.step,
    )  # fmt: skip


class _JointWalk(Position):
    """A joint fit in progress, with a metric formed at earlier columns, and the step in it."""

    def __init__(self, problem: JointProblem, batch_size: int | None, seed: int, step_limit: float):
        super().__init__(problem, batch_size, seed, problem.kernels[:2])
        self.limit, self.n_metrics, self.shrink = step_limit, 0, 1.0

    def norms(self) -> np.ndarray:
        """Squared norms of the gradient in the metric, (column,)."""
        return np.asarray(self.metric.squared_norm(self._residual()), np.float64)

    def run(self, first: float, tol: float, max_epochs: int) -> tuple[float, float]:
        """Run epochs until the estimated gap is below its target or nothing improves; return both."""
        eps, smooth = float(np.finfo(self.view.dtype).eps), self.view.penalty.smooth
        lowest, best, since, seen, inflation = self.objective, np.inf, 0, np.inf, 1.0
        while True:
            norm = float(np.sum(self.norms())) if self.n_metrics else -np.inf
            if norm < seen / _MOVED**2:
                self._renew()
                norm = seen = float(np.sum(self.norms()))
            before = self.objective
            target = max(tol * max(first - before, 0.0), max(8 * eps**2, 4e-15) * abs(before))
            last = self.epoch == max_epochs or since >= _STALLED
            gap = inflation * norm / 2
            if gap <= 4 * target or last:
                gap = self._gap()
                inflation = max(1.0, 2 * gap / max(norm, 1e-300))
            if gap <= target or last or not np.isfinite(before):
                return gap, target
            # The proximal step of a sparse penalty is solved only to a share of the rest.
            self._visit(slack=8 * eps * abs(before) + (0.0 if smooth else 0.05 * norm))
            better = norm < 0.9 * best or self.objective < lowest - max(1e-2 * target, 4 * eps * abs(before))
            since = 0 if better else since + 1
            if better:
                best, lowest = min(best, norm), min(lowest, self.objective)

    def _renew(self) -> None:
        """Form the metric of the mean curvature at the columns, one for coupled columns, and the step in it."""
        view, n_coupled, self.n_metrics = self.view, self.view.observation.n_coupled, self.n_metrics + 1
        # What is the same for coupled columns stays so.
        bend = np.abs(np.asarray(self.bend, np.float64)).reshape(-1, n_coupled).mean(axis=1)
        bend = np.maximum(np.repeat(bend, n_coupled), 1e-6 * bend.max() + 1e-12)
        scale = 1 / (bend + np.asarray(self.rows.ridge, np.float64))
        self.metric = Metric(scale.astype(view.dtype), np.zeros_like(scale[:-1], dtype=view.dtype))
        # Largest eigenvalue of any block's Hessian.
        start = np.random.default_rng([self.seed, 3, self.n_metrics]).normal(size=(self.v.size, 1))
        start = (start / np.linalg.norm(start)).astype(view.dtype)
        *spectra, _ = view.kernels[2](self.rows, self.v, None, self.metric, start, n_steps=_SMOOTH_STEPS)
        alpha, beta = (np.asarray(a)[..., 0].T for a in spectra)
        largest = np.max(bound_largest_eigenvalue(alpha, beta, self.v.size, 1e-3 / self.rows.n_blocks))
        self.largest = max(float(largest), 1e-12)
        self.step = min(1 / (3 * self.largest), self.limit)

    def _residual(self) -> np.ndarray:
        """Gradient plus smallest subgradient in whitened coordinates, (column of v, column)."""
        basis, penalty, coef, g = self.view.basis, self.view.penalty, self.params.coef, self.gradient
        grad_coef = basis.unwhiten.T @ g[:-1] + basis.mean[:, None] * g[-1]
        grad_coef = grad_coef + np.asarray(penalty.ridge_strength, np.float64) * coef
        inside = np.asarray(penalty.subgradient_residual(coef, grad_coef), np.float64)
        return np.concatenate([basis.whiten.T @ (inside - basis.mean[:, None] * g[-1]), g[-1:]])

    def _gap(self) -> float:
        """Second-order estimate ``g'H^-1 g / 2`` of the gap; not a bound."""
        g, scale = self._residual(), np.asarray(self.metric.scale, np.float64)

        def product(p):
            whole = self.view.kernels[3](self.rows, self.v, p.astype(self.view.dtype))
            return np.asarray(whole, np.float64) + _FLAT * self.largest * p / scale

        _, down, _ = minimise(product, lambda r: scale * r, g, _GAP_STEPS, _LEFT)
        return down or float(np.sum(scale * g**2)) / 2  # without curvature, that of the metric

    def _visit(self, slack: float) -> None:
        """Run an epoch; if the objective rises by more than the slack, undo it and halve the step."""
        before = self.objective
        self.keep()
        self.visit_rows(np.full(self.view.n_neurons, self.shrink * self.step), self.metric)
        self.look()
        if self.objective <= before + slack:
            self.shrink = min(1.0, 1.2 * self.shrink)
        else:
            self.v, self.memory = self.kept
            self.shrink /= 2
            self.look()


@jit
def curved(rows: Rows, v, x):
    """Product of the whole Hessian at v, ridge included, with a change of the columns."""

    def block(total, data):
        z, y, w, offset = data
        return total + z.T @ change_of_derivative(rows, y, w, rows.eta(z, v, offset), rows.eta(z, x)), None

    total, _ = jax.lax.scan(block, jnp.zeros_like(v), rows.blocks)
    if rows.splitting is None:
        return total / rows.n_rows + rows.ridge * x
    expand, scale = rows.splitting.expand, rows.splitting.scale[:, None]
    ridge = expand.T @ (per_neuron(rows.penalty.ridge_strength, x) / scale**2 * (expand @ x[:-1]))
    return total / rows.n_rows + jnp.concatenate([ridge, jnp.zeros_like(x[-1:])])
