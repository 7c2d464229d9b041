"""The observed pairs on the device: session blocks (dense products) or triples (gathers), behind one interface."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..observations import ResponseLoss
from .responses import Merged, Triples, cut_blocks

_TRIPLES = 2**14  # of a step: their embeddings stay in the cache


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
    """Observed pairs, each once, with the number of its trials."""

    @abstractmethod
    def value_and_gradient(self, tables: Tables, loss: ResponseLoss, imputation: Imputation | None):
        """Sum of the losses less what imputation would cost here, and its gradient in P and Q.

        ``sum count * ell(y, z) - a b (z - prior)^2 / 2``.
        """

    @abstractmethod
    def curvatures(self, tables: Tables, loss: ResponseLoss, imputation: Imputation | None) -> Any:
        """Second derivatives in z, ``count * ell''(y, z) - a b``, in the layout `product` takes."""

    @abstractmethod
    def product(self, curvatures: Any, tables: Tables, P_change: jax.Array, Q_change: jax.Array):
        """Multiply the curvatures with the change of z and carry them back: ``Z Q`` and ``Z' P``."""


def _entry(loss, y, count, z, prior, cost):
    """Value and slope of an observed pair; 0 where y is NaN, which fills places up."""
    seen = ~jnp.isnan(y)
    value, slope = loss.loss_and_derivative(jnp.where(seen, y, 0.0), z)
    if count is not None:
        value, slope = count * value, count * slope
    if cost is not None:
        off = z if prior is None else z - prior
        value, slope = value - 0.5 * cost * off * off, slope - cost * off
    return jnp.where(seen, value, 0.0), jnp.where(seen, slope, 0.0)


def _entry_curvature(loss, y, count, z, cost):
    """Second derivative of an observed pair."""
    seen = ~jnp.isnan(y)
    curvature = loss.curvature(jnp.where(seen, y, 0.0), z)
    curvature = curvature if count is None else count * curvature
    return jnp.where(seen, curvature if cost is None else curvature - cost, 0.0)


# ------------------------------------------------------------------------------------------- blocks


class ObservedBlocks(Observed):
    """Session blocks, by dense products; a table with gaps is one block.

    Attributes
    ----------
    pieces : tuple of Piece
        Blocks of equal shape, stacked; see `glmfit.pairs.responses.Piece`.
    """

    pieces: tuple[Any, ...]

    @classmethod
    def of(cls, merged: Merged, dtype) -> ObservedBlocks:
        """Put merged blocks on the device."""
        return cls(tuple(jax.tree.map(jnp.asarray, piece) for piece in cut_blocks(merged, dtype)))

    def value_and_gradient(self, tables, loss, imputation):
        total = jnp.zeros((), tables.P.dtype)
        gradients = jnp.zeros_like(tables.P), jnp.zeros_like(tables.Q)
        for piece in self.pieces:

            def step(carry, part):
                p, q = tables.P[part.left], tables.Q[part.right]
                value, slope = _entry(loss, part.y, part.count, *_predictor(part, p, q, tables, imputation))
                carry = (
                    carry[0].at[part.left].add(jnp.einsum("gij,gjk->gik", slope, q)),
                    carry[1].at[part.right].add(jnp.einsum("gij,gik->gjk", slope, p)),
                )
                return carry, jnp.sum(jnp.sum(value, axis=-1))

            gradients, values = jax.lax.scan(step, gradients, piece)
            total = total + jnp.sum(values)
        return total, *gradients

    def curvatures(self, tables, loss, imputation):
        def one(part):
            p, q = tables.P[part.left], tables.Q[part.right]
            z, _, cost = _predictor(part, p, q, tables, imputation)
            return _entry_curvature(loss, part.y, part.count, z, cost)

        return tuple(jax.lax.map(one, piece) for piece in self.pieces)

    def product(self, curvatures, tables, P_change, Q_change):
        moved = jnp.concatenate([P_change, tables.P], axis=1), jnp.concatenate([tables.Q, Q_change], axis=1)
        out = jnp.zeros_like(tables.P), jnp.zeros_like(tables.Q)
        for piece, curvature in zip(self.pieces, curvatures, strict=True):

            def step(carry, part):
                left, right, c = part
                change = c * jnp.einsum("gik,gjk->gij", moved[0][left], moved[1][right])
                carry = (
                    carry[0].at[left].add(jnp.einsum("gij,gjk->gik", change, tables.Q[right])),
                    carry[1].at[right].add(jnp.einsum("gij,gik->gjk", change, tables.P[left])),
                )
                return carry, None

            out, _ = jax.lax.scan(step, out, (piece.left, piece.right, curvature))
        return out


def _predictor(part, p, q, tables, imputation):
    """Linear predictor, prior and cost of the entries of some blocks."""
    z = jnp.einsum("gik,gjk->gij", p, q)
    if imputation is None:
        return z, None, None
    cost = imputation.a[part.left][:, :, None] * imputation.b[part.right][:, None, :]
    if tables.Pt is None:
        return z, None, cost
    return z, jnp.einsum("gik,gjk->gij", tables.Pt[part.left], tables.Qt[part.right]), cost


# ------------------------------------------------------------------------------------------ triples


class ObservedTriples(Observed):
    """Scattered pairs, some thousand at a time, so that temporary arrays stay small.

    Attributes
    ----------
    left, right : jax.Array of int
        Entities, (step, pair).
    y : jax.Array
        Mean responses, (step, pair); NaN fills up.
    count : jax.Array or None
        Trials.
    """

    left: jax.Array
    right: jax.Array
    y: jax.Array
    count: jax.Array | None

    @classmethod
    def of(cls, triples: Triples, count, dtype, size: int | None = None) -> ObservedTriples:
        """Put triples on the device; ``size`` is the number of places, filled up (None: as many as needed)."""
        n = len(triples.y) if size is None else size
        n_steps = max(1, -(-n // _TRIPLES))
        width = -(-n // n_steps) if n else 1

        def laid(values, fill, dtype):
            flat = np.full(n_steps * width, fill, dtype)
            flat[: len(values)] = values
            return jnp.asarray(flat.reshape(n_steps, width))

        return cls(
            laid(triples.left, 0, np.int32),
            laid(triples.right, 0, np.int32),
            laid(triples.y, np.nan, dtype),
            None if count is None else laid(count, 1, dtype),
        )

    def value_and_gradient(self, tables, loss, imputation):
        def step(carry, part):
            p, q = tables.P[part.left], tables.Q[part.right]
            value, slope = _entry(loss, part.y, part.count, *_pair_predictor(part, p, q, tables, imputation))
            carry = (
                carry[0].at[part.left].add(slope[:, None] * q),
                carry[1].at[part.right].add(slope[:, None] * p),
            )
            return carry, jnp.sum(value)

        gradients = jnp.zeros_like(tables.P), jnp.zeros_like(tables.Q)
        gradients, values = jax.lax.scan(step, gradients, self)
        return jnp.sum(values), *gradients

    def curvatures(self, tables, loss, imputation):
        def one(part):
            p, q = tables.P[part.left], tables.Q[part.right]
            z, _, cost = _pair_predictor(part, p, q, tables, imputation)
            return _entry_curvature(loss, part.y, part.count, z, cost)

        return jax.lax.map(one, self)

    def product(self, curvatures, tables, P_change, Q_change):
        def step(carry, part):
            left, right, c = part
            p, q = tables.P[left], tables.Q[right]
            change = c * jnp.sum(P_change[left] * q + p * Q_change[right], axis=1)
            carry = carry[0].at[left].add(change[:, None] * q), carry[1].at[right].add(change[:, None] * p)
            return carry, None

        out = jnp.zeros_like(tables.P), jnp.zeros_like(tables.Q)
        return jax.lax.scan(step, out, (self.left, self.right, curvatures))[0]


def _pair_predictor(part, p, q, tables, imputation):
    """Linear predictor, prior and cost of scattered pairs."""
    z = jnp.sum(p * q, axis=1)
    if imputation is None:
        return z, None, None
    cost = imputation.a[part.left] * imputation.b[part.right]
    if tables.Pt is None:
        return z, None, cost
    return z, jnp.sum(tables.Pt[part.left] * tables.Qt[part.right], axis=1), cost
