"""The rows of a population GLM on the device, in the spectral basis, and every kernel that reads them.

A kernel is compiled once per shape: data are arguments, observation and penalty groups are static.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from ..bounds import descent_step, lanczos
from ..observations import Observation
from ..penalties import Penalty

_HIGHEST = jax.lax.Precision.HIGHEST


class AdmmState(NamedTuple):
    """Warm start of the proximal step: split copy z of the coefficients and scaled dual u, (feature, neuron)."""

    z: jax.Array
    u: jax.Array


class Splitting(eqx.Module):
    """Constants of the proximal step of a penalty that acts on coefficients and not on their norm.

    With B mapping whitened columns to scaled coefficients (coefficient times feature scale), the x-update of
    ADMM is linear and is needed only through B: ``B x = gain v + mix (z - u)``.
    """

    expand: jax.Array  # B, (feature, feature)
    contract: jax.Array  # B^-1
    gain: jax.Array  # B (I + rho B'B)^-1
    mix: jax.Array  # rho B (I + rho B'B)^-1 B'
    scale: jax.Array  # (feature,)
    rho: float = eqx.field(static=True)
    n_inner: int = eqx.field(static=True)


class Rows(eqx.Module):
    """Whitened rows in blocks, counts, weights, and the penalty in whitened coordinates."""

    Z: jax.Array  # (block, row, column), the last column is 1
    Y: jax.Array  # (block, row, neuron)
    weight: jax.Array  # (block, row, 1), mean 1 over the T rows, 0 on padding
    ridge: jax.Array  # (column, neuron) strength of the ridge in whitened coordinates, 0 on the intercept
    penalty: Penalty
    splitting: Splitting | None
    observation: Observation = eqx.field(static=True)
    n_rows: int = eqx.field(static=True)

    @property
    def batch_size(self) -> int:
        return self.Z.shape[1]

    @property
    def n_blocks(self) -> int:
        return self.Z.shape[0]

    @property
    def blocks(self):
        """What a scan over blocks runs through."""
        return self.Z, self.Y, self.weight

    def eta(self, z, v):
        """Linear predictor of rows z, (row, neuron)."""
        return jnp.dot(z, v, precision=_HIGHEST)

    def pull(self, z, r):
        """Gradient of the rows' residuals, (column, neuron)."""
        return jnp.dot(z.T, r, precision=_HIGHEST)

    def descend(self, v, g, metric, step, memory):
        """One proximal gradient step in the metric; returns the new columns and the warm start."""
        if self.splitting is None:
            return v - step[None] * metric * (g + self.ridge * v), memory
        half = v - step[None] * metric * g
        d = v.shape[0] - 1
        # With no ridge in it the metric is one number per neuron.
        memory = self._prox(half[:d], step * metric[0], memory)
        return self._columns(memory.z, half[d:]), memory

    def _prox(self, half, step, memory):
        """Over-relaxed ADMM for min |x - half|^2/(2 step) + penalty(B x); the answer is z, with exact zeros."""
        c = self.splitting
        base = jnp.dot(c.gain, half, precision=_HIGHEST)
        length = step / c.rho
        ridge = jnp.asarray(self.penalty.ridge_strength, half.dtype)
        shrink = 1 + (length * ridge)[None] / c.scale[:, None] ** 2

        def inner(_, state):
            z, u = state
            x = base + jnp.dot(c.mix, z - u, precision=_HIGHEST)
            x = 1.6 * x - 0.6 * z
            z = self.penalty.prox(x + u, length, feature_scale=c.scale) / shrink
            return AdmmState(z, u + x - z)

        return jax.lax.fori_loop(0, c.n_inner, inner, memory)

    def _columns(self, scaled_coef, intercept):
        return jnp.concatenate([jnp.dot(self.splitting.contract, scaled_coef, precision=_HIGHEST), intercept])

    def start_memory(self, v):
        """Warm start of the proximal step at columns v (None when the penalty needs none)."""
        if self.splitting is None:
            return None
        coef = jnp.dot(self.splitting.expand, v[:-1], precision=_HIGHEST)
        return AdmmState(coef, jnp.zeros_like(coef))

    def penalty_value(self, v, memory):
        """Penalty at columns v, (neuron,)."""
        if self.splitting is None:
            return 0.5 * jnp.sum(self.ridge * v**2, axis=0)
        return self.penalty.value(memory.z / self.splitting.scale[:, None])


class Sweep(NamedTuple):
    """What one pass over the rows at fixed columns v yields."""

    table: jax.Array  # (block, row, neuron) weighted derivatives
    gradient: jax.Array  # (column, neuron) of the mean loss, without ridge
    loss: jax.Array  # (neuron,) mean loss


@jax.jit
def sweep(rows: Rows, v) -> Sweep:
    """Evaluate loss, derivatives and gradient at v over all rows."""

    def block(carry, data):
        g, loss = carry
        z, y, w = data
        value, r = rows.observation.loss_and_derivative(y, rows.eta(z, v))
        r = w * r
        value = jnp.where(w > 0, w * value, 0)  # 0 * inf must not come from padding
        return (g + rows.pull(z, r) / rows.n_rows, loss + jnp.sum(value, axis=0) / rows.n_rows), r

    zero = jnp.zeros(v.shape[1], v.dtype)
    (g, loss), table = jax.lax.scan(block, (jnp.zeros_like(v), zero), rows.blocks)
    return Sweep(table, g, loss)


@jax.jit
def largest_change(rows: Rows, p):
    """Largest change of eta over the rows when the columns change by p, (neuron,)."""

    def block(reach, data):
        z, w = data
        return jnp.maximum(reach, jnp.max(jnp.where(w > 0, jnp.abs(rows.eta(z, p)), 0), axis=0)), None

    return jax.lax.scan(block, jnp.zeros(p.shape[1], p.dtype), (rows.Z, rows.weight))[0]


class BlockSpectra(NamedTuple):
    """Lanczos coefficients of every block's smoothness matrix, and the worst row."""

    alpha: jax.Array  # (block, step, neuron)
    beta: jax.Array
    row: jax.Array  # (neuron,) max_t w_t curvature_bound_t z_t'D z_t


@partial(jax.jit, static_argnames="n_steps")
def block_spectra(rows: Rows, anchor, radius, metric, start, n_steps: int) -> BlockSpectra:
    """Run Lanczos on ``D^1/2 ((1/b) Z_B' diag(curvature bound) Z_B + ridge) D^1/2`` for all blocks and neurons.

    The curvature bound holds wherever eta stays within ``radius`` of its value at ``anchor``; an infinite
    radius makes it global.
    """
    root = jnp.sqrt(metric)
    start = jnp.broadcast_to(start, anchor.shape)
    per_block = rows.n_rows / rows.n_blocks  # mean over a block of n_rows/n_blocks counted rows

    def block(row, data):
        z, y, w = data
        eta = rows.eta(z, anchor)
        wide = radius[None] + 64 * jnp.finfo(eta.dtype).eps * (1 + jnp.abs(eta))  # eta is rounded
        bound = w * rows.observation.curvature_bound(y, eta - wide, eta + wide)

        def matvec(x):
            x = root * x
            return root * (rows.pull(z, bound * rows.eta(z, x)) / per_block + rows.ridge * x)

        alpha, beta = lanczos(matvec, start, n_steps)
        leverage = jnp.dot(z * z, metric, precision=_HIGHEST)
        return jnp.maximum(row, jnp.max(bound * leverage, axis=0)), (alpha, beta)

    row, (alpha, beta) = jax.lax.scan(block, jnp.zeros(anchor.shape[1], anchor.dtype), rows.blocks)
    return BlockSpectra(alpha, beta, row + jnp.max(rows.ridge * metric, axis=0))


class HessianSpectrum(NamedTuple):
    """Lanczos coefficients of the Hessian in the metric, and the largest leverage of a row."""

    alpha: jax.Array  # (step, neuron)
    beta: jax.Array
    leverage: jax.Array  # (neuron,) max_t z_t'D z_t


@partial(jax.jit, static_argnames="n_steps")
def hessian_spectrum(rows: Rows, v, metric, start, n_steps: int) -> HessianSpectrum:
    """Run Lanczos on ``D^1/2 H D^1/2``, H the Hessian of the smooth part at v, all neurons together."""
    root = jnp.sqrt(metric)

    def prepare(leverage, data):
        z, y, w = data
        reach = jnp.where(w > 0, jnp.dot(z * z, metric, precision=_HIGHEST), 0)
        return jnp.maximum(leverage, jnp.max(reach, axis=0)), w * rows.observation.curvature(y, rows.eta(z, v))

    leverage, bend = jax.lax.scan(prepare, jnp.zeros(v.shape[1], v.dtype), rows.blocks)

    def matvec(x):
        x = root * x

        def block(total, data):
            z, w = data
            return total + rows.pull(z, w * rows.eta(z, x)), None

        total, _ = jax.lax.scan(block, jnp.zeros_like(x), (rows.Z, bend))
        return root * (total / rows.n_rows + rows.ridge * x)

    alpha, beta = lanczos(matvec, jnp.broadcast_to(start, v.shape), n_steps)
    return HessianSpectrum(alpha, beta, leverage)


class Track(NamedTuple):
    """What a guaranteed-descent step leaves for the next one."""

    gradient: jax.Array  # (column, neuron), ridge included
    direction: jax.Array  # (column, neuron)
    mean_curvature: jax.Array  # (neuron,)
    move: jax.Array  # (neuron,) largest change of eta


@jax.jit
def sure_step(rows: Rows, v, memory, metric, moving, track: Track):
    """Take a step of the length that self-concordance proves to descend, along a conjugate or proximal direction.

    Returns the new columns, warm start and track. Neurons not ``moving`` stay.
    """

    def gradient(g, data):
        z, y, w = data
        eta = rows.eta(z, v)
        return g + rows.pull(z, w * rows.observation.derivative(y, eta)) / rows.n_rows, eta

    g, eta = jax.lax.scan(gradient, jnp.zeros_like(v), rows.blocks)
    g = g + rows.ridge * v
    if rows.splitting is None:
        warm, p = memory, _conjugate(g, metric, track)
    else:
        proposal, warm = rows.descend(v, g, metric, jnp.ones(v.shape[1], v.dtype), memory)
        p = proposal - v

    def look_ahead(carry, data):
        curvature, mean, reach = carry
        (z, y, w), eta = data
        along = rows.eta(z, p)
        bend = w * rows.observation.curvature(y, eta)
        far = jnp.where(w > 0, jnp.abs(along), 0)
        carry = (
            curvature + jnp.sum(bend * along**2, axis=0) / rows.n_rows,
            mean + jnp.sum(bend, axis=0) / rows.n_rows,
            jnp.maximum(reach, jnp.max(far, axis=0)),
        )
        return carry, None

    zero = jnp.zeros(v.shape[1], v.dtype)
    (curvature, mean, reach), _ = jax.lax.scan(look_ahead, (zero, zero, zero), (rows.blocks, eta))
    curvature = curvature + jnp.sum(rows.ridge * p * p, axis=0)
    slope = -jnp.sum(g * p, axis=0)
    if rows.splitting is None:
        t = jnp.where(moving, descent_step(slope, curvature, reach), 0)
    else:
        old = rows.start_memory(v)
        slope = slope - rows.penalty_value(proposal, warm) + rows.penalty_value(v, old)
        t = jnp.where(moving, jnp.minimum(descent_step(slope, curvature, reach), 1), 0)
        memory = jax.tree.map(
            lambda new, was, now: jnp.where(moving[None], was + t[None] * (new - was), now), warm, old, memory
        )
    # One that stays keeps its curvature: nothing of a neuron may depend on how long the others take.
    mean = jnp.where(moving, mean, track.mean_curvature)
    return v + t[None] * p, memory, Track(g, p, mean, t * reach)


def _conjugate(g, metric, track: Track):
    """Polak-Ribiere direction in the metric, the plain one where it would not descend."""
    before = jnp.sum(track.gradient * metric * track.gradient, axis=0)
    overlap = jnp.sum(g * metric * (g - track.gradient), axis=0)
    share = jnp.where(before > 0, jnp.maximum(overlap, 0) / jnp.where(before > 0, before, 1), 0)
    plain = -metric * g
    p = plain + share[None] * track.direction
    return jnp.where((jnp.sum(g * p, axis=0) < 0)[None], p, plain)
