"""Sums over the observed pairs on the device: session blocks (dense products) or scattered pairs (gathers)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..observations import Observation
from .responses import Piece


class Imputation(NamedTuple):
    """Cost factors of unobserved pairs: that of (i, j) is ``a_i b_j``; a includes the weight omega."""

    a: jax.Array  # (m,)
    b: jax.Array  # (n,)


def sum_observed(pieces: tuple[Piece, ...], P, Q, loss: Observation, imputed: Callable):
    """Sum the losses, less what imputation would cost here, with the gradient in P and Q.

    ``sum count * ell(y, z) - a b (z - prior)^2 / 2`` with ``z = P Q'``; ``imputed`` returns the costs ``a b``
    of a piece, and the differences of its z from the prior.
    """

    def step(gradients, part):
        p, q, seen = P[part.left], Q[part.right], ~jnp.isnan(part.y)
        z = inner(p, q)
        terms = value_and_slope(loss, jnp.where(seen, part.y, 0.0), part.count, z, *imputed(part, z))
        value, slope = (jnp.where(seen, term, 0.0) for term in terms)  # places without a response are padding
        value = jnp.sum(jnp.sum(value, axis=-1)) if value.ndim > 1 else jnp.sum(value)
        return _add(gradients, part.left, part.right, slope, p, q), value

    gradients, total = (jnp.zeros_like(P), jnp.zeros_like(Q)), jnp.zeros((), P.dtype)
    for piece in pieces:
        gradients, values = jax.lax.scan(step, gradients, piece)
        total = total + jnp.sum(values)
    return total, gradients


def observed_curvatures(pieces: tuple[Piece, ...], P, Q, loss: Observation, imputed: Callable):
    """Second derivatives in z, ``count * ell''(y, z) - a b``, of all pieces."""
    return tuple(jax.lax.map(lambda part: _curvature(part, P, Q, loss, imputed), piece) for piece in pieces)


def sum_curvatures(pieces: tuple[Piece, ...], P, Q, loss: Observation, imputed: Callable):
    """Sum the second derivatives of `observed_curvatures` over the pairs of every left, and every right entity."""

    def step(sums, part):
        of_left = of_right = _curvature(part, P, Q, loss, imputed)
        if of_left.ndim == 3:  # (block, left, right)
            of_left, of_right = of_left.sum(axis=2), of_right.sum(axis=1)
        return (sums[0].at[part.left].add(of_left), sums[1].at[part.right].add(of_right)), None

    sums = jnp.zeros_like(P[:, 0]), jnp.zeros_like(Q[:, 0])
    for piece in pieces:
        sums, _ = jax.lax.scan(step, sums, piece)
    return sums


def _curvature(part: Piece, P, Q, loss: Observation, imputed: Callable):
    seen = ~jnp.isnan(part.y)
    z = inner(P[part.left], Q[part.right])
    curvature = loss.curvature(jnp.where(seen, part.y, 0.0), z)
    curvature, cost = curvature if part.count is None else part.count * curvature, imputed(part, z)[0]
    return jnp.where(seen, curvature if cost is None else curvature - cost, 0.0)


def observed_product(pieces: tuple[Piece, ...], curvatures: tuple[jax.Array, ...], P, Q, dP, dQ):
    """Multiply the curvatures by the change of z and carry them back: ``Z Q`` and ``Z' P``."""
    left_rows, right_rows = jnp.concatenate([dP, P], axis=1), jnp.concatenate([Q, dQ], axis=1)

    def step(out, part):
        left, right, c = part
        p, q = left_rows[left], right_rows[right]
        return _add(out, left, right, c * inner(p, q), p[..., k:], q[..., :k]), None

    out, k = (jnp.zeros_like(P), jnp.zeros_like(Q)), P.shape[1]
    for piece, curvature in zip(pieces, curvatures, strict=True):
        out, _ = jax.lax.scan(step, out, (piece.left, piece.right, curvature))
    return out


def value_and_slope(loss: Observation, y, count, z, cost, off):
    """Losses of observed pairs less what imputation would cost there, ``cost * off^2 / 2``, and derivatives in z."""
    value, slope = loss.misfit_and_derivative(y, z)
    if count is not None:
        value, slope = count * value, count * slope
    return (value, slope) if cost is None else (value - 0.5 * cost * off * off, slope - cost * off)


def inner(p: jax.Array, q: jax.Array) -> jax.Array:
    """Inner products of the rows of blocks, each with each, or of scattered pairs."""
    return jnp.einsum("gik,gjk->gij", p, q) if p.ndim == 3 else jnp.sum(p * q, axis=1)


def _add(sums, left, right, slope, p, q):
    """Add slopes times the rows of the other side."""
    if p.ndim == 3:
        to_left, to_right = jnp.einsum("gij,gjk->gik", slope, q), jnp.einsum("gij,gik->gjk", slope, p)
    else:
        to_left, to_right = slope[:, None] * q, slope[:, None] * p
    return sums[0].at[left].add(to_left), sums[1].at[right].add(to_right)
