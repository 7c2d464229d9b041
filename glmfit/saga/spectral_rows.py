"""Rows on the device in the spectral basis, and every kernel of SAGA that reads them.

A kernel is compiled once per shape: data are arguments, observation and penalty groups are static.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from ..bounds import lanczos
from ..compilation import full_precision, jit
from ..observations import Observation
from ..penalties import Penalty
from ..penalties.base import per_neuron

ADMM_RHO, _ADMM_STEPS = 0.2, 10


class Metric(NamedTuple):
    """Positive definite ``M = S diag(scale) S'`` per neuron, of NumPy or JAX; ``S'z`` is the row z less a centre.

    The intercept's column stays. Why: docs/theory/spectral_basis.md.
    """

    scale: jax.Array  # (column, neuron), positive, intercept last
    centre: jax.Array  # (column - 1, neuron)

    def apply(self, g):
        """``M g``, (column, neuron)."""
        return self._shift_intercept(self.scale * self._from_centre(g))

    def root(self, x):
        """``R x`` with ``M = R R'``, (column, neuron)."""
        return self._shift_intercept(self.scale**0.5 * x)

    def root_transposed(self, g):
        """``R' g``, (column, neuron)."""
        return self.scale**0.5 * self._from_centre(g)

    def squared_norm(self, g):
        """``g'M g``, (neuron,)."""
        return (self.scale * self._from_centre(g) ** 2).sum(axis=0)

    def leverage(self, z, dot):
        """``z'M z`` of rows z (row, column) whose last entry is 1, (row, neuron); ``dot`` multiplies matrices."""
        shifted = -2 * self.scale[:-1] * self.centre
        constant = self.scale[-1] + (self.scale[:-1] * self.centre**2).sum(axis=0)
        return dot(z[:, :-1] ** 2, self.scale[:-1]) + dot(z[:, :-1], shifted) + constant[None]

    def _from_centre(self, g):
        return g.__array_namespace__().concat([g[:-1] - self.centre * g[-1:], g[-1:]])

    def _shift_intercept(self, x):
        shifted = x[-1:] - (self.centre * x[:-1]).sum(axis=0, keepdims=True)
        return x.__array_namespace__().concat([x[:-1], shifted])


class AdmmState(NamedTuple):
    """Warm start of the proximal step: split copy z of the coefficients and scaled dual u, (feature, neuron)."""

    z: jax.Array
    u: jax.Array


class Splitting(eqx.Module):
    """Constants of the proximal step of a penalty on coefficients; ADMM's x-update: ``B x = gain v + mix (z - u)``."""

    expand: jax.Array  # B, from whitened columns to scaled coefficients (times feature scale), (feature, feature)
    contract: jax.Array  # B^-1
    gain: jax.Array  # B (I + rho B'B)^-1
    mix: jax.Array  # rho B (I + rho B'B)^-1 B'
    scale: jax.Array  # (feature,)


class Rows(eqx.Module):
    """Whitened rows in blocks, counts, weights, and the penalty in whitened coordinates."""

    Z: jax.Array  # (block, row, column), the last column is 1
    Y: jax.Array  # (block, row, neuron)
    weight: jax.Array  # (block, row, 1 or neuron), mean 1 over the T rows, 0 on padding
    offset: jax.Array | None  # (block, row, 1 or neuron), part of the linear predictor that is known
    ridge: jax.Array  # (column, neuron) strength of the ridge in whitened coordinates, 0 on the intercept
    penalty: Penalty
    splitting: Splitting | None
    observation: Any = eqx.field(static=True)  # Observation or RowLoss
    n_rows: int = eqx.field(static=True)  # of the whole
    n_blocks: int = eqx.field(static=True)

    @property
    def by_code(self) -> bool:
        """Whether the loss of a row is given as code alone, which may couple the columns."""
        return not isinstance(self.observation, Observation)

    @property
    def batch_size(self) -> int:
        """Rows per block, padding included."""
        return self.Z.shape[1]

    @property
    def blocks(self):
        """Arrays that a scan over blocks iterates over."""
        return self.Z, self.Y, self.weight, self.offset

    def eta(self, z, v, offset=None):
        """Linear predictor of rows z, (row, neuron); without its offset, its change when the columns change by v."""
        change = z @ v
        return change if offset is None else change + offset

    def descend(self, v, g, metric: Metric, step, memory):
        """One proximal gradient step in the metric; returns the new columns and the warm start."""
        if self.splitting is None:
            return v - step[None] * metric.apply(g + self.ridge * v), memory
        half = v - step[None] * metric.apply(g)
        d = v.shape[0] - 1
        # Without a ridge the metric of the coefficients is one number per neuron.
        memory = self._prox(half[:d], step * metric.scale[0], memory)
        new = self.splitting.contract @ memory.z
        # The penalty moves the coefficients with the predictor at the centre held fixed, not the intercept.
        intercept = half[d:] - jnp.sum(metric.centre * (new - half[:d]), axis=0, keepdims=True)
        return jnp.concatenate([new, intercept]), memory

    def _prox(self, half, step, memory):
        """Over-relaxed ADMM for min |x - half|^2/(2 step) + penalty(B x); the answer is z, with exact zeros."""
        c = self.splitting
        base = c.gain @ half
        length = step / ADMM_RHO
        shrink = 1 + length[None] * per_neuron(self.penalty.ridge_strength, half) / c.scale[:, None] ** 2

        def inner(_, state):
            z, u = state
            x = base + c.mix @ (z - u)
            x = 1.6 * x - 0.6 * z
            z = self.penalty.prox(x + u, length, feature_scale=c.scale) / shrink
            return AdmmState(z, u + x - z)

        return jax.lax.fori_loop(0, _ADMM_STEPS, inner, memory)

    @full_precision  # also called outside kernels
    def start_memory(self, v):
        """Warm start of the proximal step at columns v (None when the penalty needs none)."""
        if self.splitting is None:
            return None
        coef = self.splitting.expand @ v[:-1]
        return AdmmState(coef, jnp.zeros_like(coef))


class Sweep(NamedTuple):
    """Results of one pass over the rows at fixed columns v; curvatures are estimates if the loss is given as code."""

    table: jax.Array  # (block, row, neuron) weighted derivatives
    gradient: jax.Array  # (column, neuron) of the mean loss, without ridge
    loss: jax.Array  # (neuron,) mean loss; one number if columns are coupled
    bend: jax.Array  # (column, neuron) mean of the rows times their curvature, or (neuron,) mean curvature


@jit
def sweep(rows: Rows, v) -> Sweep:
    """Evaluate loss, derivatives, gradient and mean curvature at v over all rows."""
    by_code = rows.by_code
    signs = jax.random.rademacher(jax.random.key(0), rows.Y.shape[1:2] + v.shape[1:], v.dtype) if by_code else None

    def block(total, data):
        z, y, w, offset = data
        eta = rows.eta(z, v, offset)
        if by_code:
            loss, r = jax.value_and_grad(lambda e: rows.observation.total(y, e, w))(eta)
            # With random signs s, E[s (H s)] is the diagonal of H.
            bend = jnp.sum(signs * change_of_derivative(rows, y, w, eta, signs), axis=0)
        else:
            loss, r = rows.observation.loss_and_derivative(y, eta)
            r, loss = w * r, jnp.sum(jnp.where(w > 0, w * loss, 0), axis=0)  # padding must not give 0 * inf
            bend = z.T @ (w * rows.observation.curvature(y, eta))
        return jax.tree.map(jnp.add, total, (z.T @ r, loss, bend)), r

    zero = jnp.zeros_like(v)
    start = (zero, zero[0, 0], zero[0]) if by_code else (zero, zero[0], zero)
    total, table = jax.lax.scan(block, start, rows.blocks)
    return Sweep(table, *(part / rows.n_rows for part in total))


def change_of_derivative(rows: Rows, y, w, eta, change):
    """Change of the weighted derivative of a block when eta changes, for a loss given as code, (row, column)."""
    return jax.jvp(jax.grad(lambda e: rows.observation.total(y, e, w)), (eta,), (change,))[1]


@jit
def largest_change(rows: Rows, p):
    """Largest change of eta over the rows when the columns change by p, (neuron,)."""

    def block(reach, data):
        z, w = data
        return jnp.maximum(reach, jnp.max(jnp.where(w > 0, jnp.abs(rows.eta(z, p)), 0), axis=0)), None

    return jax.lax.scan(block, jnp.zeros(p.shape[1], p.dtype), (rows.Z, rows.weight))[0]


@partial(jit, static_argnames="n_steps")
def block_spectra(rows: Rows, anchor, radius, metric: Metric, start, n_steps: int):
    """Run Lanczos on ``R' ((1/b) Z_B' diag(curvature bound) Z_B + ridge) R`` for all blocks and neurons.

    The bound holds if eta stays within ``radius`` of its value at ``anchor``. For a loss given as code, it is the
    curvature there, of all columns together: ``start`` stacks them, and there is no worst row. Returns the coefficients
    alpha and beta, (block, step, neuron), and of the worst row ``w curvature_bound z'M z`` with the ridge, (neuron,).
    """
    by_code = rows.by_code
    start = start if by_code else jnp.broadcast_to(start, anchor.shape)

    def block(row, data):
        z, y, w, offset = data
        eta = rows.eta(z, anchor, offset)
        if by_code:
            curve = partial(change_of_derivative, rows, y, w, eta)
        else:
            wide = radius[None] + 64 * jnp.finfo(eta.dtype).eps * (1 + jnp.abs(eta))  # eta is rounded
            bound = w * rows.observation.curvature_bound(y, eta - wide, eta + wide)
            curve = partial(jnp.multiply, bound)
            row = jnp.maximum(row, jnp.max(bound * metric.leverage(z, rows.eta), axis=0))

        def matvec(x):
            x = metric.root(x.reshape(anchor.shape))
            product = z.T @ curve(rows.eta(z, x)) / (rows.n_rows / rows.n_blocks) + rows.ridge * x
            return metric.root_transposed(product).reshape(start.shape)

        return row, lanczos(matvec, start, n_steps)

    row, (alpha, beta) = jax.lax.scan(block, jnp.zeros(anchor.shape[1], anchor.dtype), rows.blocks)
    # The ridge leaves the intercept alone, so the centre does not enter.
    return alpha, beta, row + jnp.max(rows.ridge * metric.scale, axis=0)


@partial(jit, static_argnames="subsets", donate_argnames=("v", "table", "mean_gradient", "memory"))
def saga_epoch(rows, v, table, mean_gradient, memory, metric, step, order, subsets: bool):
    """One epoch: for each draw, new derivatives, the SAGA estimator, a proximal step, table and mean updated."""
    shape = table.shape
    if subsets:
        flat = jax.tree.map(lambda a: a.reshape(-1, a.shape[-1]), rows.blocks)
        table = table.reshape(-1, shape[-1])
        factor = rows.n_rows / order.shape[1]
    else:
        flat = rows.blocks
        factor = rows.n_blocks

    def visit(carry, index):
        v, table, mean_gradient, memory = carry
        z, y, w, offset = jax.tree.map(lambda a: a[index], flat)
        old = table[index]
        change = w * rows.observation.derivative(y, rows.eta(z, v, offset)) - old
        delta = z.T @ change / rows.n_rows
        v, memory = rows.descend(v, mean_gradient + factor * delta, metric, step, memory)
        # `old + change`, not the new value: XLA updates the table in place only when the write depends on the read.
        return (v, table.at[index].set(old + change), mean_gradient + delta, memory), None

    start = v, table, mean_gradient, memory
    (v, table, mean_gradient, memory), _ = jax.lax.scan(visit, start, order)
    return v, table.reshape(shape), mean_gradient, memory
