"""The observed pairs on the device: session blocks (dense products) or scattered pairs (gathers), piece by piece."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from ..observations import Observation
from .responses import Merged, Piece, Triples, cut_blocks, cut_triples


class Tables(NamedTuple):
    """Rows of both sides whose inner products are all that the loss sees.

    Attributes
    ----------
    P, Q : jax.Array
        (m, k') and (n, k'): the linear predictor is ``z = P Q'``.
    Pt, Qt : jax.Array or None
        (m, k~) and (n, k~): the prior is ``Pt Qt'``; None for 0.
    """

    P: jax.Array
    Q: jax.Array
    Pt: jax.Array | None = None
    Qt: jax.Array | None = None


class Imputation(NamedTuple):
    """Cost factors of unobserved pairs: that of (i, j) is ``a_i b_j``, the weight omega inside of a."""

    a: jax.Array  # (m,)
    b: jax.Array  # (n,)


class Observed(eqx.Module):
    """Observed pairs, each once, with the number of its trials.

    Attributes
    ----------
    pieces : tuple of Piece
        Blocks of equal shape, or scattered pairs, one step of a scan after the other.
    """

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, merged: Merged, dtype) -> Observed:
        """Put merged responses on the device."""
        if isinstance(merged.parts, Triples):
            pieces = [cut_triples(merged.parts, merged.counts, dtype)]
        else:
            pieces = cut_blocks(merged, dtype)
        return cls(tuple(jax.tree.map(jnp.asarray, piece) for piece in pieces))

    def value_and_gradient(self, tables: Tables, loss: Observation, imputation: Imputation | None):
        """Sum of the losses less what imputation would cost here, and its gradient in P and Q.

        ``sum count * ell(y, z) - a b (z - prior)^2 / 2``.
        """

        def step(gradients, part):
            p, q = tables.P[part.left], tables.Q[part.right]
            value, slope = _in_its_places(part, inner(p, q), tables, loss, imputation)
            value = jnp.sum(jnp.sum(value, axis=-1)) if value.ndim > 1 else jnp.sum(value)
            return _add(gradients, part.left, part.right, slope, p, q), value

        gradients = jnp.zeros_like(tables.P), jnp.zeros_like(tables.Q)
        total = jnp.zeros((), tables.P.dtype)
        for piece in self.pieces:
            gradients, values = jax.lax.scan(step, gradients, piece)
            total = total + jnp.sum(values)
        return total, *gradients

    def curvatures(self, tables: Tables, loss: Observation, imputation: Imputation | None) -> tuple[jax.Array, ...]:
        """Second derivatives in z, ``count * ell''(y, z) - a b``, of all pieces."""

        def one(part):
            z, seen = inner(tables.P[part.left], tables.Q[part.right]), ~jnp.isnan(part.y)
            curvature = loss.curvature(jnp.where(seen, part.y, 0.0), z)
            curvature = curvature if part.count is None else part.count * curvature
            if imputation is not None:
                curvature = curvature - _cost(part, imputation)
            return jnp.where(seen, curvature, 0.0)

        return tuple(jax.lax.map(one, piece) for piece in self.pieces)

    def product(self, curvatures: tuple[jax.Array, ...], tables: Tables, P_change: jax.Array, Q_change: jax.Array):
        """Multiply the curvatures with the change of z and carry them back: ``Z Q`` and ``Z' P``."""
        moved = jnp.concatenate([P_change, tables.P], axis=1), jnp.concatenate([tables.Q, Q_change], axis=1)

        def step(out, part):
            left, right, c = part
            p, q = moved[0][left], moved[1][right]
            return _add(out, left, right, c * inner(p, q), p[..., k:], q[..., :k]), None

        out, k = (jnp.zeros_like(tables.P), jnp.zeros_like(tables.Q)), tables.P.shape[1]
        for piece, curvature in zip(self.pieces, curvatures, strict=True):
            out, _ = jax.lax.scan(step, out, (piece.left, piece.right, curvature))
        return out


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


def _cost(part: Piece, imputation: Imputation) -> jax.Array:
    """Weights that imputation would give the pairs of a piece."""
    a, b = imputation.a[part.left], imputation.b[part.right]
    return a[:, :, None] * b[:, None, :] if part.y.ndim == 3 else a * b


def value_and_slope(loss: Observation, y, count, z, cost, off):
    """Losses of observed pairs less what imputation would cost there, ``cost * off^2 / 2``, and derivatives in z.

    The arrays are all NumPy's or all JAX's; count and cost may be None.
    """
    value, slope = loss.misfit_and_derivative(y, z)
    if count is not None:
        value, slope = count * value, count * slope
    return (value, slope) if cost is None else (value - 0.5 * cost * off * off, slope - cost * off)


def _in_its_places(part: Piece, z, tables: Tables, loss: Observation, imputation: Imputation | None):
    """Value and slope of observed pairs; 0 where y is NaN, which fills places up."""
    seen = ~jnp.isnan(part.y)
    cost = off = None
    if imputation is not None:
        cost = _cost(part, imputation)
        off = z if tables.Pt is None else z - inner(tables.Pt[part.left], tables.Qt[part.right])
    value, slope = value_and_slope(loss, jnp.where(seen, part.y, 0.0), part.count, z, cost, off)
    return jnp.where(seen, value, 0.0), jnp.where(seen, slope, 0.0)
