"""Rows whose loss is known by its value alone, and may couple the columns: a softmax, or a loss given as code.

F(W, b) = (1/T) sum_t loss_t(W'x_t + b) + penalty(W)
"""

import jax
import jax.numpy as jnp
import numpy as np

from ..bounds import bound_largest_eigenvalue
from ..compilation import jit
from ..engine.basis import basis_of
from ..engine.chunks import a_twentieth
from ..engine.exact.quadratic import minimise
from ..penalties import Penalty
from ..penalties.base import per_neuron
from .spectral_rows import Metric, Rows, block_spectra, change_of_derivative, sweep
from .spectral_view import Position, SpectralView

_SMOOTH_STEPS, _GAP_STEPS, _LEFT = 8, 16, 1e-3  # of Lanczos; of conjugate gradients, and what they may leave
_FLAT = 1e-6  # of the largest curvature: what single precision does not tell from none


class JointProblem(SpectralView):
    """Data, loss of a row (`RowLoss`) and penalty of a model whose columns are fitted together.

    It shares the spectral view of a population, and none of its certificates: curvatures are those at the
    present parameters, not bounds, and so is all that follows from them. ``kernels`` are `sweep`, `block_spectra` and
    `curved`, jitted by a caller who wants them gone with the problem.
    """

    def __init__(self, X, Y, loss, penalty: Penalty, n_columns: int, dtype=np.float32, kernels=None):
        super().__init__(X, Y, loss, penalty, basis_of(X, None, penalty), dtype)
        self.n_neurons = n_columns
        self.sweep, self._spectra, self._curved = kernels or (sweep, block_spectra, curved)

    @property
    def default_batch_size(self) -> int:
        """Rows per block: 1/20 of the recording, between 32 and 4096."""
        return a_twentieth(self.n_rows)

    def objective(self, loss, coef) -> float:
        """F, given the mean loss."""
        return float(loss) + float(np.sum(self.penalty.value(coef)))

    def metric_of(self, at: Position) -> Metric:
        """Metric of the mean curvature, one for coupled columns: what is the same for all of them stays so."""
        bend = np.abs(np.asarray(at.bend, np.float64)).reshape(-1, self.observation.n_coupled).mean(axis=1)
        bend = np.maximum(np.repeat(bend, self.observation.n_coupled), 1e-6 * bend.max() + 1e-12)
        scale = 1 / (bend + np.asarray(at.rows.ridge, np.float64))
        return Metric(scale.astype(self.dtype), np.zeros_like(scale[:-1], dtype=self.dtype))

    def smoothness(self, at: Position, metric: Metric, number: int) -> float:
        """Largest eigenvalue of any block's Hessian where the columns are, in the metric."""
        start = np.random.default_rng([at.seed, 3, number]).normal(size=(at.v.size, 1))
        start = (start / np.linalg.norm(start)).astype(self.dtype)
        spectra = self._spectra(at.rows, at.v, None, metric, start, n_steps=_SMOOTH_STEPS)
        alpha, beta = (np.asarray(a)[..., 0].T for a in spectra[:2])
        return float(np.max(bound_largest_eigenvalue(alpha, beta, at.v.size, 1e-3 / at.rows.n_blocks)))

    def residual(self, at: Position) -> np.ndarray:
        """Gradient plus smallest subgradient in whitened coordinates, (column of v, column)."""
        coef, g = at.params.coef, at.gradient
        grad_coef = self.basis.unwhiten.T @ g[:-1] + self.basis.mean[:, None] * g[-1]
        grad_coef = grad_coef + np.asarray(self.penalty.ridge_strength, np.float64) * coef
        inside = np.asarray(self.penalty.subgradient_residual(coef, grad_coef), np.float64)
        return np.concatenate([self.basis.whiten.T @ (inside - self.basis.mean[:, None] * g[-1]), g[-1:]])

    def joint_gap(self, at: Position, metric: Metric, largest: float) -> float:
        """Second-order estimate ``g'H^-1 g / 2`` of the gap, given the largest curvature in the metric; not a bound.

        Directions the gradient has no part in, such as a softmax's common shift of all classes, do not enter.
        """
        g, scale = self.residual(at), np.asarray(metric.scale, np.float64)

        def product(p):
            whole = np.asarray(self._curved(at.rows, at.v, p.astype(self.dtype)), np.float64)
            return whole + _FLAT * largest * p / scale

        _, down, _ = minimise(product, lambda r: scale * r, g, _GAP_STEPS, _LEFT)
        return down or float(np.sum(scale * g**2)) / 2  # where nothing curves, the metric's own


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
