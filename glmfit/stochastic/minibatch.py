"""Proximal step of a minibatch: several rows with shared negatives, coupled through their inner products.

All three solvers see scores only: ``S = base - M G``, with base the scores (row, class) at shrunk weights, M the
mobility (row, row), the inner products of the rows in the metric of the step, and G the pushes (row, class), of
which those on a row's label balance the others. Derivations: docs/theory/implicit_sgd.md.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .implicit import implicit_step
from .lambert import log1p_sum_exp, uprox


class Batch(NamedTuple):
    """Sampled objective of a minibatch."""

    base: jax.Array  # scores before the pushes, (row, class)
    mobility: jax.Array  # (row, row)
    label: jax.Array  # place of each row's label among the classes, (row,)
    log_a: jax.Array  # logarithms of the weights of the negatives, -inf for what is none, (row, class)
    c: jax.Array  # step times weight, (row,)
    u: jax.Array  # auxiliary variables before the step, (row,)


def _solve_row(batch: Batch, i, base, mobility):
    """Pushes of a row, its label's balancing the others, and its auxiliary variable, as if others' pushes stood."""
    label = batch.label[i]
    step = implicit_step(batch.c[i], batch.log_a[i], base - base[label], mobility, mobility, batch.u[i])
    return step.push.at[label].add(-step.pull), step.u


def dual_ascent(batch: Batch, n_sweeps: int):
    """Cycle through the rows, each solved exactly with the others' pushes fixed: (pushes, auxiliary variables).

    One sweep from no pushes is exactly as many steps of single rows, one after the other.
    """

    def visit(t, carry):
        G, u = carry
        i = t % len(batch.c)
        others = batch.base[i] - batch.mobility[i] @ G + batch.mobility[i, i] * G[i]
        pushes, after = _solve_row(batch, i, others, batch.mobility[i, i])
        return G.at[i].set(pushes), u.at[i].set(after)

    return jax.lax.fori_loop(0, n_sweeps * len(batch.c), visit, (jnp.zeros_like(batch.base), batch.u))


def jacobi_ascent(batch: Batch, n_sweeps: int):
    """Solve all rows at once in a metric that bounds their coupling: monotone, without a line search.

    The diagonal of absolute row sums of the mobility bounds it from above.
    """
    reach = jnp.sum(jnp.abs(batch.mobility), axis=1)
    rows = jnp.arange(len(batch.c))

    def sweep(_, carry):
        G, _u = carry
        base = batch.base + reach[:, None] * G - batch.mobility @ G
        return jax.vmap(_solve_row, (None, 0, 0, 0))(batch, rows, base, reach)

    return jax.lax.fori_loop(0, n_sweeps, sweep, (jnp.zeros_like(batch.base), batch.u))


def newton_cg(batch: Batch, n_newton: int, n_cg: int = 40):
    """Newton's method on the pushes, its systems solved by conjugate gradients in the metric of the mobility.

    A singular mobility does no harm: only scores are taken from the conjugate gradients, and the pushes follow.
    """
    M, c, at = batch.mobility, batch.c, jnp.arange(len(batch.c))
    reach = jnp.max(jnp.sum(jnp.abs(M), axis=1))
    close = max(1e-12, 4 * float(jnp.finfo(M.dtype).eps))

    def parts(G):
        S = batch.base - M @ G
        delta = S - S[at, batch.label][:, None]
        log_total = log1p_sum_exp(batch.log_a + delta)
        u = uprox(c, log_total, batch.u)
        push = c[:, None] * jnp.exp(batch.log_a + delta - u[:, None])
        value = c * (u + jnp.exp(log_total - u)) + (u - batch.u) ** 2 / 2
        return u, push, jnp.sum(value) + jnp.sum(G * (M @ G)) / 2

    def balanced(push):
        return push.at[at, batch.label].add(-jnp.sum(push, axis=1))

    def curved(u, push, V):
        """Product with the Hessian of the rows' objectives in their scores."""
        change = V - V[at, batch.label][:, None]
        mean = jnp.sum(push * change, axis=1) / (c * jnp.exp(-u) + 1 + jnp.sum(push, axis=1))
        return balanced(push * (change - mean[:, None]))

    def inner(a, b):
        return jnp.sum(a * (M @ b))

    def newton(carry):
        G, _, k = carry
        u, push, value = parts(G)
        residual = balanced(push) - G
        size = inner(residual, residual)

        def conjugate(state):
            x, r, p, rr, j = state
            q = curved(u, push, M @ p) + p
            # The Hessian is at least the metric: a step longer than 1 is rounding.
            step = rr / jnp.maximum(inner(p, q), rr)
            r_new = r - step * q
            rr_new = inner(r_new, r_new)
            return x + step * p, r_new, r_new + rr_new / rr * p, rr_new, j + 1

        def unsolved(state):
            _, r, _, rr, j = state
            target = jnp.minimum(1e-4, size) * 1e-4 * size
            rounding = jnp.finfo(r.dtype).eps * reach * jnp.sum(r * r)  # of rr
            return (rr > jnp.maximum(target, rounding)) & (j < n_cg)

        zero = jnp.zeros_like(G)
        x, *_ = jax.lax.while_loop(unsolved, conjugate, (zero, residual, residual, size, 0))
        d = residual - curved(u, push, M @ x)
        slope = -inner(residual, d)

        def too_long(state):
            s, j = state
            rounding = 8 * jnp.finfo(G.dtype).eps * jnp.abs(value)
            return (parts(G + s * d)[2] > value + 1e-4 * s * slope + rounding) & (j < 40)

        s, _ = jax.lax.while_loop(too_long, lambda state: (state[0] / 2, state[1] + 1), (jnp.ones_like(size), 0))
        return G + s * d, size, k + 1

    def unfinished(carry):
        G, size, k = carry
        return (size > close**2 * (1 + inner(G, G))) & (k < n_newton)

    start = jnp.zeros_like(batch.base), jnp.full((), jnp.inf, batch.base.dtype), 0
    G, *_ = jax.lax.while_loop(unfinished, newton, start)
    u, push, _ = parts(G)
    return balanced(push), u
