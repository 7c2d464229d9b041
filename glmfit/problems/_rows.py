"""The rows of a population GLM on the device, in the spectral basis, and every kernel that reads them.

A kernel is compiled once per shape: data are arguments, observation and penalty groups are static.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .._compile import full_precision, jit
from ..bounds import descent_step, is_not_above_start, lanczos
from ..observations import Observation
from ..penalties import Penalty
from ..penalties.base import per_neuron
from ._metric import Metric

_SEARCH_STEPS, _SEARCH_END = 8, 0.1


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
    """Whitened rows in blocks, counts, weights, and the penalty in whitened coordinates.

    They may be a portion of all blocks: what kernels sum or maximise over blocks then belongs to the portion, and the
    portions' results add up.
    """

    Z: jax.Array  # (block, row, column), the last column is 1
    Y: jax.Array  # (block, row, neuron)
    weight: jax.Array  # (block, row, 1 or neuron), mean 1 over the T rows, 0 on padding
    offset: jax.Array | None  # (block, row, 1 or neuron), part of the linear predictor that is known
    ridge: jax.Array  # (column, neuron) strength of the ridge in whitened coordinates, 0 on the intercept
    penalty: Penalty
    splitting: Splitting | None
    observation: Observation = eqx.field(static=True)
    n_rows: int = eqx.field(static=True)  # of the whole
    n_blocks: int = eqx.field(static=True)

    @property
    def rows_per_block(self) -> float:
        """Mean number of rows of a block."""
        return self.n_rows / self.n_blocks

    @property
    def batch_size(self) -> int:
        return self.Z.shape[1]

    @property
    def blocks(self):
        """What a scan over blocks runs through."""
        return self.Z, self.Y, self.weight, self.offset

    def eta(self, z, v, offset=None):
        """Linear predictor of rows z, (row, neuron); without its offset, its change when the columns change by v."""
        change = z @ v
        return change if offset is None else change + offset

    def pull(self, z, r):
        """Gradient of the rows' residuals, (column, neuron)."""
        return z.T @ r

    def descend(self, v, g, metric: Metric, step, memory):
        """One proximal gradient step in the metric; returns the new columns and the warm start."""
        if self.splitting is None:
            return v - step[None] * metric.apply(g + self.ridge * v), memory
        half = v - step[None] * metric.apply(g)
        d = v.shape[0] - 1
        # With no ridge in it the metric of the coefficients is one number per neuron.
        memory = self._prox(half[:d], step * metric.scale[0], memory)
        new = self.splitting.contract @ memory.z
        # The penalty moves the coefficients with the predictor at the centre held fixed, not the intercept.
        intercept = half[d:] - jnp.sum(metric.centre * (new - half[:d]), axis=0, keepdims=True)
        return jnp.concatenate([new, intercept]), memory

    def _prox(self, half, step, memory):
        """Over-relaxed ADMM for min |x - half|^2/(2 step) + penalty(B x); the answer is z, with exact zeros."""
        c = self.splitting
        base = c.gain @ half
        length = step / c.rho
        shrink = 1 + length[None] * per_neuron(self.penalty.ridge_strength, half) / c.scale[:, None] ** 2

        def inner(_, state):
            z, u = state
            x = base + c.mix @ (z - u)
            x = 1.6 * x - 0.6 * z
            z = self.penalty.prox(x + u, length, feature_scale=c.scale) / shrink
            return AdmmState(z, u + x - z)

        return jax.lax.fori_loop(0, c.n_inner, inner, memory)

    @full_precision  # called outside of kernels, too
    def start_memory(self, v):
        """Warm start of the proximal step at columns v (None when the penalty needs none)."""
        if self.splitting is None:
            return None
        coef = self.splitting.expand @ v[:-1]
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
    bend: jax.Array  # (column, neuron) mean of the rows times their curvature; last the mean curvature


@jit
def sweep(rows: Rows, v) -> Sweep:
    """Evaluate loss, derivatives, gradient and mean curvature at v over all rows."""

    def block(carry, data):
        g, loss, bend = carry
        z, y, w, offset = data
        eta = rows.eta(z, v, offset)
        value, r = rows.observation.loss_and_derivative(y, eta)
        r = w * r
        value = jnp.where(w > 0, w * value, 0)  # 0 * inf must not come from padding
        g = g + rows.pull(z, r) / rows.n_rows
        bend = bend + rows.pull(z, w * rows.observation.curvature(y, eta)) / rows.n_rows
        return (g, loss + jnp.sum(value, axis=0) / rows.n_rows, bend), r

    zero = jnp.zeros_like(v)
    (g, loss, bend), table = jax.lax.scan(block, (zero, zero[0], zero), rows.blocks)
    return Sweep(table, g, loss, bend)


@jit
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
    row: jax.Array  # (neuron,) max_t w_t curvature_bound_t z_t'M z_t, and the ridge


@partial(jit, static_argnames="n_steps")
def block_spectra(rows: Rows, anchor, radius, metric: Metric, start, n_steps: int) -> BlockSpectra:
    """Run Lanczos on ``R' ((1/b) Z_B' diag(curvature bound) Z_B + ridge) R`` for all blocks and neurons.

    The curvature bound holds wherever eta stays within ``radius`` of its value at ``anchor``; an infinite
    radius makes it global.
    """
    start = jnp.broadcast_to(start, anchor.shape)

    def block(row, data):
        z, y, w, offset = data
        eta = rows.eta(z, anchor, offset)
        wide = radius[None] + 64 * jnp.finfo(eta.dtype).eps * (1 + jnp.abs(eta))  # eta is rounded
        bound = w * rows.observation.curvature_bound(y, eta - wide, eta + wide)

        def matvec(x):
            x = metric.root(x)
            return metric.root_transposed(rows.pull(z, bound * rows.eta(z, x)) / rows.rows_per_block + rows.ridge * x)

        alpha, beta = lanczos(matvec, start, n_steps)
        return jnp.maximum(row, jnp.max(bound * metric.leverage(z, rows.eta), axis=0)), (alpha, beta)

    row, (alpha, beta) = jax.lax.scan(block, jnp.zeros(anchor.shape[1], anchor.dtype), rows.blocks)
    # The ridge leaves the intercept alone, so the centre does not enter.
    return BlockSpectra(alpha, beta, row + jnp.max(rows.ridge * metric.scale, axis=0))


class HessianSpectrum(NamedTuple):
    """Lanczos coefficients of the Hessian in the metric, and the largest leverage of a row."""

    alpha: jax.Array  # (step, neuron)
    beta: jax.Array
    leverage: jax.Array  # (neuron,) upper bound of max_t z_t'M z_t


@partial(jit, static_argnames="n_steps")
def hessian_spectrum(rows: Rows, v, metric: Metric, start, n_steps: int) -> HessianSpectrum:
    """Run Lanczos on ``R'H R``, H the Hessian of the smooth part at v, all neurons together."""

    def prepare(longest, data):
        z, y, w, offset = data
        counts = jnp.any(w > 0, axis=1, keepdims=True)
        square = jnp.sum(jnp.where(counts, z[:, :-1], 0) ** 2, axis=1)
        return jnp.maximum(longest, jnp.max(square)), w * rows.observation.curvature(y, rows.eta(z, v, offset))

    longest, bend = jax.lax.scan(prepare, jnp.zeros((), v.dtype), rows.blocks)

    def matvec(x):
        x = metric.root(x)

        def block(total, data):
            z, w = data
            return total + rows.pull(z, w * rows.eta(z, x)), None

        total, _ = jax.lax.scan(block, jnp.zeros_like(x), (rows.Z, bend))
        return metric.root_transposed(total / rows.n_rows + rows.ridge * x)

    alpha, beta = lanczos(matvec, jnp.broadcast_to(start, v.shape), n_steps)
    return HessianSpectrum(alpha, beta, metric.bound_leverage(longest))


@jit
def predictor(rows: Rows, v):
    """Linear predictor of all rows, (block, row, neuron)."""
    return jax.lax.scan(lambda _, block: ((), rows.eta(block[0], v, block[1])), (), (rows.Z, rows.offset))[1]


class Track(NamedTuple):
    """What a guaranteed-descent step leaves for the next one."""

    eta: jax.Array  # (block, row, neuron)
    gradient: jax.Array  # (column, neuron), ridge included
    direction: jax.Array  # (column, neuron)
    move: jax.Array  # (neuron,) largest change of eta


@partial(jit, donate_argnames="track")
def sure_step(rows: Rows, v, memory, metric: Metric, moving, track: Track):
    """Take a step that self-concordance proves to descend, along a conjugate or proximal direction.

    Returns the new columns, warm start and track. Neurons not ``moving`` stay.
    """

    def gradient(g, data):
        (z, y, w, _), eta = data
        return g + rows.pull(z, w * rows.observation.derivative(y, eta)) / rows.n_rows, None

    g = jax.lax.scan(gradient, jnp.zeros_like(v), (rows.blocks, track.eta))[0] + rows.ridge * v
    if rows.splitting is None:
        p = _conjugate(g, metric, track)
        slope, bend = jnp.sum(rows.ridge * p * v, axis=0), jnp.sum(rows.ridge * p * p, axis=0)
    else:
        proposal, warm = rows.descend(v, g, metric, jnp.ones(v.shape[1], v.dtype), memory)
        old = rows.start_memory(v)
        p = proposal - v
        # The penalty lies below its chord up to the proposal and no further.
        slope, bend = rows.penalty_value(proposal, warm) - rows.penalty_value(v, old), jnp.zeros_like(v[0])
    p = p.at[-1].set(0)  # the intercept has a direction of its own in the search

    def look_ahead(ends, data):
        z, w = data
        along = rows.eta(z, p)
        low, high = (jnp.where(w > 0, along, far) for far in (jnp.inf, -jnp.inf))
        return (jnp.minimum(ends[0], low.min(axis=0)), jnp.maximum(ends[1], high.max(axis=0))), along

    infinite = jnp.full_like(v[0], jnp.inf)
    ends, along = jax.lax.scan(look_ahead, (infinite, -infinite), (rows.Z, rows.weight))
    t, shift, move = _search_plane(rows, track.eta, along, ends, slope, bend, moving)
    v = (v + t[None] * p).at[-1].add(shift)
    if rows.splitting is not None:
        memory = jax.tree.map(
            lambda new, was, now: jnp.where(moving[None], was + t[None] * (new - was), now), warm, old, memory
        )
    eta = track.eta + t[None, None] * along + shift[None, None]
    return v, memory, Track(eta, g, p, move)


def _search_plane(rows: Rows, eta, along, ends, slope, bend, moving):
    """Minimise the loss over ``eta + t along + shift`` plus ``slope t + bend t^2 / 2``.

    Newton steps in the plane: sums over the rows, no product with them. The way is sought on an eighth of the
    blocks. Over all rows the search goes on from there if that is proved not to lie above the start, else
    from the start, and every step has the length that self-concordance proves to descend.
    ``ends`` are the extremes of ``along``; with a penalty that is not smooth t stays in [0, 1].
    Returns t, shift and the largest change of eta, (neuron,) each.
    """
    data, capped = (rows.Y, rows.weight, eta, along), rows.splitting is not None

    def reach(t, shift):
        return jnp.maximum(jnp.abs(t * ends[0] + shift), jnp.abs(t * ends[1] + shift))

    def sums(t, shift, n_blocks):
        def block(i, total):
            y, w, e, a = (x[i] for x in data)
            e = e + t[None] * a + shift[None]
            r, h = w * rows.observation.derivative(y, e), w * rows.observation.curvature(y, e)
            return total + jnp.stack([jnp.sum(x, axis=0) for x in (r, r * a, h, h * a, h * a * a)])

        total = jax.lax.fori_loop(0, n_blocks, block, jnp.zeros((5, eta.shape[-1]), eta.dtype))
        return total / (n_blocks.astype(eta.dtype) * rows.rows_per_block)

    def better(carry):
        t, shift, open_, k, n_blocks = carry
        g_shift, g_t, h_shift, h_cross, h_t = sums(t, shift, n_blocks)
        g_t, h_t = g_t + slope + bend * t, h_t + bend

        def curvature(t, shift):
            return h_t * t**2 + 2 * h_cross * t * shift + h_shift * shift**2

        sunk = is_not_above_start(g_t * t + g_shift * shift, curvature(t, shift), reach(t, shift))
        step_t, step_shift = _newton_in_plane(g_t, g_shift, h_t, h_cross, h_shift)
        if capped:
            blocked = jnp.where(step_t > 0, t >= 1, t <= 0)
            step_t, step_shift = jnp.where(blocked, 0, step_t), jnp.where(blocked, _alone(g_shift, h_shift), step_shift)
        far = reach(step_t, step_shift)
        length = descent_step(-(g_t * step_t + g_shift * step_shift), curvature(step_t, step_shift), far)
        if capped:
            room = jnp.where(step_t > 0, 1 - t, t) / jnp.where(step_t == 0, 1, jnp.abs(step_t))
            length = jnp.where(step_t == 0, length, jnp.minimum(length, room))
        length = jnp.where(open_, length, 0)
        again = (k == 0) & open_ & ~sunk
        go = length > 0  # a step that overflowed has length 0 and is not a number
        t = jnp.where(again, 0, jnp.where(go, t + length * step_t, t))
        shift = jnp.where(again, 0, jnp.where(go, shift + length * step_shift, shift))
        open_ &= again | (length * far > _SEARCH_END * (0.5 + reach(t, shift)))
        return t, shift, open_, k + 1, n_blocks

    def search(at, n_blocks):
        start = (*at, moving, 0, n_blocks)
        return jax.lax.while_loop(lambda c: jnp.any(c[2]) & (c[3] < _SEARCH_STEPS), better, start)[:2], None

    zero = jnp.zeros_like(slope)
    at, _ = jax.lax.scan(search, (zero, zero), jnp.array([max(1, rows.n_blocks // 8), rows.n_blocks], jnp.int32))
    return *at, reach(*at)


def _newton_in_plane(g_t, g_shift, h_t, h_cross, h_shift):
    """Newton's direction; where the plane all but collapses to a line, the intercept moves alone."""
    determinant = h_t * h_shift - h_cross**2
    both = determinant > 1e-4 * h_t * h_shift
    determinant = jnp.where(both, determinant, 1)
    return (
        jnp.where(both, (h_cross * g_shift - h_shift * g_t) / determinant, 0),
        jnp.where(both, (h_cross * g_t - h_t * g_shift) / determinant, _alone(g_shift, h_shift)),
    )


def _alone(g_shift, h_shift):
    """Newton's step of the intercept by itself."""
    return jnp.where(h_shift > 0, -g_shift / jnp.where(h_shift > 0, h_shift, 1), 0)


def _conjugate(g, metric: Metric, track: Track):
    """Polak-Ribiere direction in the metric, the plain one where it would not descend."""
    scaled = metric.apply(g)
    before = metric.squared_norm(track.gradient)
    overlap = jnp.sum(scaled * (g - track.gradient), axis=0)
    share = jnp.where(before > 0, jnp.maximum(overlap, 0) / jnp.where(before > 0, before, 1), 0)
    p = share[None] * track.direction - scaled
    return jnp.where((jnp.sum(g * p, axis=0) < 0)[None], p, -scaled)
