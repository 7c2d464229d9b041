"""Kernels on rows whose loss is known by its value alone and may couple the columns."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._compile import jit
from ..bounds import lanczos
from ..penalties.base import per_neuron
from .spectral_rows import Rows


class JointSweep(NamedTuple):
    """What one pass over the rows at fixed columns v yields."""

    table: jax.Array  # (block, row, column) weighted derivatives
    gradient: jax.Array  # (column of v, column) of the mean loss, without ridge
    loss: jax.Array  # mean loss, a number
    bend: jax.Array  # (column,) mean curvature, an unbiased estimate where columns are coupled


def _along(rows: Rows, y, w, eta, change):
    """Change of the weighted derivative of a block when eta changes, (row, column)."""
    return jax.jvp(jax.grad(lambda e: rows.observation.total(y, e, w)), (eta,), (change,))[1]


@jit
def joint_sweep(rows: Rows, v) -> JointSweep:
    """Evaluate loss, derivatives, gradient and mean curvature at v over all rows."""
    signs = jax.random.rademacher(jax.random.key(0), rows.Y.shape[1:2] + v.shape[1:], v.dtype)

    def block(carry, data):
        g, loss, bend = carry
        z, y, w, offset = data
        eta = rows.eta(z, v, offset)
        value, r = jax.value_and_grad(lambda e: rows.observation.total(y, e, w))(eta)
        # With random signs s, E[s (H s)] is the diagonal of H.
        curved = signs * _along(rows, y, w, eta, signs)
        n = rows.n_rows
        return (g + rows.pull(z, r) / n, loss + value / n, bend + jnp.sum(curved, axis=0) / n), r

    zero = jnp.zeros_like(v)
    (g, loss, bend), table = jax.lax.scan(block, (zero, jnp.zeros((), v.dtype), zero[0]), rows.blocks)
    return JointSweep(table, g, loss, bend)


@partial(jit, static_argnames="n_steps")
def joint_blocks(rows: Rows, v, scale, start, n_steps: int):
    """Run Lanczos on every block's Hessian at v, all columns together, in the metric: (block, step) twice."""
    per_block, root = rows.n_rows / rows.n_blocks, jnp.sqrt(scale)

    def block(_, data):
        z, y, w, offset = data
        eta = rows.eta(z, v, offset)

        def matvec(x):
            x = root * x.reshape(v.shape)
            curved = rows.pull(z, _along(rows, y, w, eta, rows.eta(z, x))) / per_block + rows.ridge * x
            return (root * curved).reshape(-1, 1)

        alpha, beta = lanczos(matvec, start, n_steps)
        return None, (alpha[:, 0], beta[:, 0])

    return jax.lax.scan(block, None, rows.blocks)[1]


@partial(jit, static_argnames="n_steps")
def joint_spectrum(rows: Rows, v, scale, start, n_steps: int):
    """Run Lanczos on the whole Hessian at v, all columns together, in the metric: (step,) twice."""
    root = jnp.sqrt(scale)

    def matvec(x):
        x = root * x.reshape(v.shape)

        def block(total, data):
            z, y, w, offset = data
            return total + rows.pull(z, _along(rows, y, w, rows.eta(z, v, offset), rows.eta(z, x))), None

        total, _ = jax.lax.scan(block, jnp.zeros_like(v), rows.blocks)
        return (root * (total / rows.n_rows + _ridge_of(rows, x))).reshape(-1, 1)

    alpha, beta = lanczos(matvec, start, n_steps)
    return alpha[:, 0], beta[:, 0]


def _ridge_of(rows: Rows, x):
    """Product with the Hessian of the penalty's ridge part, in whitened coordinates."""
    if rows.splitting is None:
        return rows.ridge * x
    expand, scale = rows.splitting.expand, rows.splitting.scale[:, None]
    ridge = per_neuron(rows.penalty.ridge_strength, x)
    inside = expand.T @ (ridge / scale**2 * (expand @ x[:-1]))
    return jnp.concatenate([inside, jnp.zeros_like(x[-1:])])
