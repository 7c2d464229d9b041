"""Scalar roots behind implicit steps, elementwise and without branches, so that they can sit in innermost loops.

Derivations and error bounds: docs/theory/implicit_sgd.md.
"""

from typing import NamedTuple

import jax.numpy as jnp


class Limits(NamedTuple):
    """Largest arguments a precision can take, of exp, wexp's iteration and an impulse's logarithm; smallest divisor."""

    exp: float
    iterate: float
    impulse: float
    smallest: float


def limits(x) -> Limits:
    """Give the limits of an array's precision."""
    return Limits(80.0, 1e8, 40.0, 1e-37) if x.dtype.itemsize == 4 else Limits(700.0, 1e15, 350.0, 1e-300)


def wexp(z):
    """Solve ``w + log(w) = z`` for w > 0: the Lambert function W_0 of ``exp(z)``, which is never formed.

    Relative error at most 2e-15 in double and 1e-6 in single precision, down to where exp(z) itself underflows.
    """
    tiny = jnp.exp(jnp.minimum(z, 0.0))
    w = jnp.where(z > limits(z).iterate, z - jnp.log(jnp.maximum(z, 1.0)), _wexp_between(z))
    return jnp.where(z < -18, tiny * (1 - tiny), w)


def _wexp_between(z):
    """Solve where z is neither below -18 nor beyond what the iteration takes; finite in any case."""
    inside = jnp.clip(z, -30.0, limits(z).iterate)
    small = jnp.exp(jnp.minimum(inside, 1.0))
    large = jnp.maximum(inside, 1.0)
    log = jnp.log(large)
    w = jnp.where(inside < 1, small / (1 + small), large - log * (1 - 1 / large))
    for _ in range(2):
        t = inside - jnp.log(w) - w
        q = 2 * (1 + w) * (1 + w + 2 * t / 3)
        w = w * (1 + t / (1 + w) * (q - t) / (q - 2 * t))
    return w


def hsolve(c, q):
    """Solve ``delta + c (1 - exp(-delta)) = q`` for delta, of the sign of q and no larger, for c >= 0."""
    log_c = log_of(c, q)
    floor = jnp.maximum(log_c, 0.0) - limits(q).exp  # c exp(-delta) must not overflow
    delta = q - c + jnp.where(c > 0, wexp(log_c + c - q), 0.0)
    # This cancels where c is much larger than q: bring it between bounds by concavity, and polish it by Newton steps.
    lowest, highest = q / (1 + c), jnp.maximum(q, 0.0)
    delta = jnp.clip(delta, lowest, highest)
    for _ in range(4):
        at = jnp.maximum(delta, floor)
        excess = c * jnp.expm1(-at)
        delta = jnp.clip(delta - (delta - excess - q) / (1 + c + excess), lowest, highest)
    return delta


def uprox(c, log_total, u):
    """Minimise ``c (v + exp(log_total - v)) + (v - u)^2 / 2`` over v: the implicit step of an auxiliary variable u."""
    return log_total + hsolve(c, u - log_total)


def p_of(level, mobility):
    """Solve ``log(p) + mobility * p = level`` for the impulse p > 0 on a class, and give ``mobility * p`` as well.

    The derivative of p in the level is ``p / (1 + mobility * p)``.
    """
    free = mobility > 0
    safe = jnp.where(free, mobility, 1.0)
    moved = jnp.where(free, _wexp_between(level + jnp.log(safe)), 0.0)
    # The quotient is exact where the class moves; the exponential where it hardly does.
    p = jnp.where(moved > 1e-2, moved / safe, jnp.exp(jnp.minimum(level - moved, limits(level).impulse)))
    return p, mobility * p


def log1p_sum_exp(terms):
    """Compute ``log(1 + sum(exp(terms)))`` along the last axis, with full relative precision where it is small."""
    top = jnp.maximum(jnp.max(terms, axis=-1, initial=0.0, keepdims=True), 0.0)
    total = jnp.sum(jnp.exp(terms - top), axis=-1)
    top = jnp.squeeze(top, -1)
    return jnp.where(top > 0, top + jnp.log(jnp.exp(-top) + total), jnp.log1p(total))


def log_of(c, like):
    """Logarithm of a number that may be 0, kept finite in the precision of an array."""
    return jnp.log(jnp.maximum(c, limits(like).smallest))
