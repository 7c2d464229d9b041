"""Proximal maps of a sampled softmax loss: what one implicit step does to the scores of the classes it touches.

Every function sees one row. A class gives way by `mobility` per unit of impulse pushed on it, and all unknowns follow
from one number: a concave increasing equation, solved by Newton's method from the left, where it never overshoots.
Derivations: docs/theory/implicit_sgd.md. What the functions take:

- c: step times weight (and total count) of the row, at least 0;
- log_a: logarithm of the weight of each class, a number or (class,); -inf leaves one out;
- delta or score: of each class, relative to the label's or absolute, at weights already shrunk by the ridge, (class,);
- target: shares of the label or counts, (class,), summing to 1;
- mobility: of each class, a number or (class,): squared norm of the row in the metric of the step, 0 if frozen;
- u or v: the auxiliary variable before the step.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .lambert import hsolve, limits, log1p_sum_exp, log_of, p_of, uprox

_MOST = 30  # Newton steps: two or three do for ordinary numbers, a dozen for absurd ones


class Impulse(NamedTuple):
    """What a step pushes on the classes it touches: ``w_k -= push_k x`` for negatives, ``w_y += pull x``."""

    push: jax.Array  # (negative,)
    pull: jax.Array  # number, the sum of the pushes
    u: jax.Array  # auxiliary variable after the step


def _climb(newton, start):
    """Newton's method from the left of a concave increasing equation, until the steps are rounding.

    In single precision it stops one step earlier: the steps shrink quadratically, and what is left is rounding.
    """
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
