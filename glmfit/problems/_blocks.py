"""Blocks of rows: how many there are, and loops over them."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp


def a_twentieth(n_rows: int) -> int:
    """Rows per block where the columns of a row are coupled: 1/20 of them, between 32 and 4096."""
    return int(min(n_rows, max(32, min(4096, n_rows // 20))))


class Extent(eqx.Module):
    """How many rows and blocks there are, known when kernels are compiled."""

    n_rows: int = eqx.field(static=True)
    n_blocks: int = eqx.field(static=True)

    def rows_per_block(self, dtype):
        """Mean number of rows of a block."""
        return self.n_rows / self.n_blocks

    def some(self):
        """Count an eighth of the blocks, one at least."""
        return max(1, self.n_blocks // 8)

    def scan(self, function, init, xs, out=None):
        """Loop over the blocks, as `jax.lax.scan` does."""
        return jax.lax.scan(function, init, xs)

    def renew(self, function, a, b):
        """``function(a, b)``, which acts element by element."""
        return function(a, b)


class Used(eqx.Module):
    """How much is in use of arrays that have room for more: kernels learn it as they run, one program fits all."""

    n_rows: jax.Array  # int32 numbers; NumPy's on the host, where every operation of jax would be compiled
    n_blocks: jax.Array

    def rows_per_block(self, dtype):
        """Mean number of rows of a block."""
        return self.n_rows.astype(dtype) / self.n_blocks.astype(dtype)

    def some(self):
        """Count an eighth of the blocks, one at least."""
        return jnp.maximum(1, self.n_blocks // 8)

    def scan(self, function, init, xs, out=None):
        """Loop over the blocks in use, as `jax.lax.scan` does; the others are not looked at.

        Outputs are put into ``out``, whose memory is used again if it is donated, else among zeros.
        """

        def at(i):
            return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, i, keepdims=False), xs)

        def visit(i, state):
            carry, y = function(state[0], at(i))
            return carry, jax.tree.map(lambda a, b: jax.lax.dynamic_update_index_in_dim(a, b, i, 0), state[1], y)

        if out is None:
            room = len(jax.tree.leaves(xs)[0])
            shapes = jax.eval_shape(lambda: function(init, at(0)))[1]
            out = jax.tree.map(lambda a: jnp.zeros((room, *a.shape), a.dtype), shapes)
        return jax.lax.fori_loop(0, self.n_blocks, visit, (init, out))

    def renew(self, function, a, b):
        """``function(a, b)``, which acts element by element, in the place of the blocks of a that are in use."""

        def visit(i, a):
            old, change = (jax.lax.dynamic_slice_in_dim(x, i, 1) for x in (a, b))
            return jax.lax.dynamic_update_slice_in_dim(a, function(old, change), i, 0)

        return jax.lax.fori_loop(0, self.n_blocks, visit, a)
