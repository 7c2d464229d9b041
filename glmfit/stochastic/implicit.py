"""Proximal maps of a sampled softmax loss: what an implicit step does to the scores of the classes it touches.

Minibatches are a `Batch`; all other functions see one row. A class gives way by `mobility` per unit of impulse pushed
on it, and all unknowns of a row follow from one number: a concave increasing equation, solved by Newton's method from
the left, where it never overshoots. Derivations: docs/theory/implicit_sgd.md. What functions of a row take:

- c: step times weight (and total count) of the row, at least 0;
- log_a: logarithm of the weight of each class, a number or (class,); -inf leaves one out;
- delta or score: of each class, relative to the label's or absolute, at weights already shrunk by the ridge, (class,);
- target: shares of the label or counts, (class,), summing to 1;
- mobility: of each class, a number or (class,): squared norm of the row in the metric of the step, 0 if frozen;
- u or v: the auxiliary variable before the step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..engine.exact.quadratic import conjugate_gradients
from .lambert import hsolve, limits, log1p_sum_exp, log_of, p_of, uprox

_MOST = 30  # Newton steps: two or three do for ordinary numbers, a dozen for absurd ones


class Impulse(NamedTuple):
    """What a step pushes on the classes it touches: ``w_k -= push_k x`` for negatives, ``w_y += pull x``."""

    push: jax.Array  # (negative,)
    pull: jax.Array  # number, the sum of the pushes
    u: jax.Array  # auxiliary variable after the step


def _climb(newton, start):
    """Newton's method from the left of a concave increasing equation, until the steps are rounding."""
    # In single precision one step earlier: they shrink quadratically, and what is left is rounding.
    close = 1e-4 if start.dtype.itemsize == 4 else 30 * jnp.finfo(start.dtype).eps

    def go_on(carry):
        t, before, k = carry
        return (t - before > close * (1 + jnp.abs(t))) & (k < _MOST)

    def step(carry):
        t, _, k = carry
        return newton(t), t, k + 1

    return jax.lax.while_loop(go_on, step, (start, start - jnp.inf, 0))[0]


def implicit_step(c, log_a, delta, mobility, mobility_label, u) -> Impulse:
    """Implicit step with any number of negative classes, exact.

    Minimises ``c (v + exp(-v) + sum_k a_k exp(delta_k - v)) + (v - u)^2 / 2`` plus half the squared change of the
    weights, over v and the weights together. With ``t = v + mobility_label * pull`` the pushes are ``log p_k +
    mobility_k p_k = log(c a_k) + delta_k - t``, and ``v + c (1 - exp(-v)) = u + pull`` is the equation left.
    """
    level = log_of(c, delta) + log_a + delta
    mobility = jnp.broadcast_to(mobility, delta.shape)
    lowest = jnp.minimum(u, 0.0)

    def safe_exp(x):
        return jnp.exp(jnp.minimum(x, limits(x).exp))

    def relaxed(v):
        """Value and slope of 1 - exp(-v), continued by its tangent below what v can be."""
        inside = jnp.maximum(v, lowest)
        slope = safe_exp(-inside)
        return slope * (v - inside) - jnp.expm1(-inside), slope

    def pushes(t):
        p, moved = p_of(level - t, mobility)
        return p, jnp.sum(p), jnp.sum(p / (1 + moved))

    def newton(t):
        _, pull, slope = pushes(t)
        v = t - mobility_label * pull
        rise, e = relaxed(v)
        value = c * rise + v - u - pull
        return t - value / ((1 + c * e) * (1 + mobility_label * slope) + slope)

    # v is at least what it would be without a push, and at most what the scores would have it; each push is at most
    # what it would be alone. From the largest pull follows the smallest t.
    least = jnp.maximum(u / (1 + c), u - c)
    highest = jnp.maximum(log1p_sum_exp(log_a + delta), u)
    alone = p_of(level - least, mobility + mobility_label)[0]
    most = jnp.maximum(c * -jnp.expm1(-highest) + highest - u, 0.0)
    most = jnp.maximum(jnp.minimum(most, jnp.sum(alone)), limits(delta).smallest)
    start = jax.nn.logsumexp(level - mobility * jnp.minimum(alone, most)) - jnp.log(most)
    t = _climb(newton, jnp.maximum(least, start))
    p, pull, _ = pushes(t)
    v = t - mobility_label * pull
    # Of the two expressions for v the one whose terms cancel less.
    better = (jnp.abs(u) + pull) / (1 + c * safe_exp(-v)) < jnp.abs(t) + mobility_label * pull
    return Impulse(p, pull, jnp.where(better, hsolve(c, u + pull), v))


def implicit_counts(c, log_a, score, target, mobility, v):
    """Implicit step for a row of counts in the form with one auxiliary variable per row (alpha = 1).

    Minimises ``c (z - sum_j target_j s_j + exp(-z) sum_j a_j exp(s_j)) + (z - v)^2 / 2`` plus half the squared change
    of the weights. Returns pushes (class,), ``w_j += (c target_j - push_j) x``, and the auxiliary variable after it.
    """
    mobility = jnp.broadcast_to(mobility, score.shape)
    log_c = log_of(c, score)
    level = log_c + log_a + score + mobility * c * target
    highest = uprox(c, jax.nn.logsumexp(level) - log_c, v)
    most = jnp.maximum(highest - v + c, limits(score).smallest)
    start = jnp.maximum(v - c, jax.nn.logsumexp(level - mobility * most) - jnp.log(most))

    def newton(z):
        p, moved = p_of(level - z, mobility)
        return z - (z - v + c - jnp.sum(p)) / (1 + jnp.sum(p / (1 + moved)))

    z = _climb(newton, start)
    return p_of(level - z, mobility)[0], z


def softmax_prox(c, score, target, mobility):
    """Exact proximal step of a row's softmax loss over all classes: no sampling, no auxiliary variable.

    Minimises ``c (logsumexp(s) - sum_k target_k s_k)`` plus half the squared change of the weights. Returns pushes
    (class,), summing to c: ``w_k += (c target_k - push_k) x``.
    """
    mobility = jnp.broadcast_to(mobility, score.shape)
    gain = mobility * c * target
    level = log_of(c, score) + score + gain

    def newton(z):
        p, moved = p_of(level - z, mobility)
        slope = jnp.sum(p / (1 + moved))
        step = (jnp.sum(p) - c) / jnp.where(slope > 0, slope, 1.0)
        return jnp.where(slope > 0, z + step, z)

    z = _climb(newton, jax.nn.logsumexp(score + gain - mobility * c))
    return p_of(level - z, mobility)[0]


class Batch(NamedTuple):
    """Sampled objective of several rows with shared negatives, coupled through their inner products.

    Scores are ``base - mobility @ G``, at weights already shrunk, with G the pushes (row, class), of which those on a
    row's label balance the others.
    """

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
    """Cycle through the rows, each solved exactly with the others' pushes fixed: (pushes, auxiliary variables)."""

    def visit(t, carry):
        G, u = carry
        i = t % len(batch.c)
        others = batch.base[i] - batch.mobility[i] @ G + batch.mobility[i, i] * G[i]
        pushes, after = _solve_row(batch, i, others, batch.mobility[i, i])
        return G.at[i].set(pushes), u.at[i].set(after)

    return jax.lax.fori_loop(0, n_sweeps * len(batch.c), visit, (jnp.zeros_like(batch.base), batch.u))


def jacobi_ascent(batch: Batch, n_sweeps: int):
    """Solve all rows at once in a metric that bounds their coupling: monotone, without a line search."""
    reach = jnp.sum(jnp.abs(batch.mobility), axis=1)  # a diagonal above the mobility
    rows = jnp.arange(len(batch.c))

    def sweep(_, carry):
        G, _u = carry
        base = batch.base + reach[:, None] * G - batch.mobility @ G
        return jax.vmap(_solve_row, (None, 0, 0, 0))(batch, rows, base, reach)

    return jax.lax.fori_loop(0, n_sweeps, sweep, (jnp.zeros_like(batch.base), batch.u))


def newton_cg(batch: Batch, n_newton: int, n_cg: int = 40):
    """Newton's method on the pushes, its systems solved by conjugate gradients in the metric of the mobility."""
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

        def enough(r):
            rounding = jnp.finfo(r.dtype).eps * reach * jnp.sum(r * r)
            return jnp.maximum(jnp.minimum(1e-4, size) * 1e-4 * size, rounding)

        x, *_ = conjugate_gradients(lambda p: curved(u, push, M @ p) + p, residual, enough, n_cg, inner)
        d = residual - curved(u, push, M @ x)  # from scores alone, so that a singular mobility does no harm
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
