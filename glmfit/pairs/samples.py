"""Drawn pairs of left and right entities: an unbiased estimate of the objective of all pairs."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class ObservedPairs(NamedTuple):
    """Observed pairs, each once, on the device.

    Attributes
    ----------
    left, right : jax.Array of int
        Entities, (pair,).
    y : jax.Array
        Mean responses.
    count : jax.Array or None
        Numbers of trials; None if all are 1.
    """

    left: jax.Array
    right: jax.Array
    y: jax.Array
    count: jax.Array | None


class PairSample(NamedTuple):
    """A draw of pairs.

    Attributes
    ----------
    observed : ObservedPairs
        Observed pairs, drawn evenly with replacement.
    n_pairs : jax.Array
        Out of how many.
    left, right : jax.Array of int
        Pairs to impute, (draw,), drawn by the cost factors of either side whether they were observed or not; without
        any where nothing is imputed.
    """

    observed: ObservedPairs
    n_pairs: jax.Array
    left: jax.Array
    right: jax.Array


def draw_pairs(key, pairs: ObservedPairs, imputation, n_observed: int, n_imputed: int) -> PairSample:
    """Draw observed pairs evenly, and pairs to impute by their cost."""
    keys = jax.random.split(key, 3)
    n = pairs.y.shape[0]
    places = jax.random.randint(keys[0], (n_observed,), 0, n)
    observed = jax.tree.map(lambda values: values[places], pairs)
    n_pairs = jnp.asarray(n, pairs.y.dtype)
    if imputation is None:
        nobody = jnp.zeros(0, pairs.left.dtype)
        return PairSample(observed, n_pairs, nobody, nobody)
    left, right = (
        jax.random.choice(k, weight.shape[0], (n_imputed,), p=weight / jnp.sum(weight))
        for k, weight in zip(keys[1:], imputation, strict=True)
    )
    return PairSample(observed, n_pairs, left, right)
