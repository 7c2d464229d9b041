"""One epoch of SAGA on blocks of rows, whatever their loss."""

from __future__ import annotations

from functools import partial

import jax

from .._compile import jit


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
        delta = rows.pull(z, change) / rows.n_rows
        v, memory = rows.descend(v, mean_gradient + factor * delta, metric, step, memory)
        # `old + change`, not the new value: XLA updates the table in place only when the write depends on the read.
        return (v, table.at[index].set(old + change), mean_gradient + delta, memory), None

    start = v, table, mean_gradient, memory
    (v, table, mean_gradient, memory), _ = jax.lax.scan(visit, start, order)
    return v, table.reshape(shape), mean_gradient, memory
