"""Towers: maps from the features of an entity (a stimulus, a neuron) to its embedding, with parameters as leaves."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

# ----------------------------------------------------------------------------------------- features


class Features(eqx.Module):
    """Features of all entities of one side; only products with them are ever needed."""

    @property
    @abstractmethod
    def n_entities(self) -> int:
        """Number of entities."""

    @abstractmethod
    def times(self, weight: jax.Array, rows: jax.Array | None) -> jax.Array:
        """Multiply the features of some entities (all if None) with a matrix (feature, column)."""


class OneHot(Features):
    """Every entity is its own feature: a product is a look-up."""

    n: int = eqx.field(static=True)

    @property
    def n_entities(self):
        return self.n

    def times(self, weight, rows):
        return weight if rows is None else weight[rows]


class Dense(Features):
    """Features as an array (entity, feature)."""

    values: jax.Array

    @property
    def n_entities(self):
        return self.values.shape[0]

    def times(self, weight, rows):
        return (self.values if rows is None else self.values[rows]) @ weight


class Sparse(Features):
    """Nonzero features, sorted by entity; a product for some entities costs that of all."""

    values: jax.Array
    entity: jax.Array
    feature: jax.Array
    n: int = eqx.field(static=True)

    @property
    def n_entities(self):
        return self.n

    def times(self, weight, rows):
        terms = self.values[:, None] * weight[self.feature]
        product = jax.ops.segment_sum(terms, self.entity, self.n, indices_are_sorted=True)
        return product if rows is None else product[rows]


def make_features(values: Any, dtype) -> tuple[Features, int, int]:
    """Features on the device, with the numbers of entities and of features.

    ``values`` is an array or SciPy sparse matrix (entity, feature), or the number of entities if each is its own
    feature.
    """
    if isinstance(values, int | np.integer):
        return OneHot(int(values)), int(values), int(values)
    n, d = values.shape
    if scipy.sparse.issparse(values):
        rows = scipy.sparse.csr_array(values)
        rows.sum_duplicates()
        entity = np.repeat(np.arange(n, dtype=np.int32), np.diff(rows.indptr))
        data, feature = jnp.asarray(rows.data, dtype), jnp.asarray(rows.indices, np.int32)
        return Sparse(data, jnp.asarray(entity), feature, n), n, d
    return Dense(jnp.asarray(np.asarray(values), dtype)), n, d


# ------------------------------------------------------------------------------------------- towers


class Tower(eqx.Module):
    """Map from features to embeddings; all its array leaves are parameters."""

    @abstractmethod
    def __call__(self, features: Features, rows: jax.Array | None = None) -> jax.Array:
        """Embeddings (entity, k) of some entities, of all if None."""

    @abstractmethod
    def affine_maps(self) -> list[tuple[jax.Array, jax.Array | None]]:
        """Matrices and constants of ``x W + c``, one after the other, with a tanh between each two."""


class LinearTower(Tower):
    """Embedding ``U W + c``; without c where every entity is its own feature."""

    weight: jax.Array  # (feature, k)
    constant: jax.Array | None  # (k,)

    def __call__(self, features, rows=None):
        product = features.times(self.weight, rows)
        return product if self.constant is None else product + self.constant[None, :]

    def affine_maps(self):
        return [(self.weight, self.constant)]


class MLPTower(Tower):
    """Perceptron with tanh units; its first layer is a product with the features, of any kind."""

    first: LinearTower
    layers: tuple[eqx.nn.Linear, ...]

    def __call__(self, features, rows=None):
        hidden = self.first(features, rows)
        for layer in self.layers:
            hidden = jax.vmap(layer)(jnp.tanh(hidden))
        return hidden

    def affine_maps(self):
        return [*self.first.affine_maps(), *((layer.weight.T, layer.bias) for layer in self.layers)]


class TwoTowers(eqx.Module):
    """All parameters of an all-pairs model; every array leaf is one.

    Attributes
    ----------
    left, right : Tower
        Of stimuli and of neurons.
    left_bias, right_bias : jax.Array or None
        One number per entity, (m,) and (n,), added to the linear predictor; None in a model without biases.
    """

    left: Tower
    right: Tower
    left_bias: jax.Array | None
    right_bias: jax.Array | None

    @property
    def parts(self) -> tuple:
        """Towers, and biases: what either ridge is of."""
        return (self.left, self.right), (self.left_bias, self.right_bias)


def draw_tower(key, features: Features, n_features: int, k: int, hidden: tuple[int, ...], scale: float, dtype) -> Tower:
    """Draw a tower, linear without ``hidden`` widths, whose embeddings have about the root mean square ``scale``."""
    one_hot = isinstance(features, OneHot)
    widths = (*hidden, k)
    keys = jax.random.split(key, len(widths))
    size = 1.0 if one_hot else _root_mean_square_row(features)
    first_scale = (1.0 if hidden else scale) / size
    weight = first_scale * jax.random.normal(keys[0], (n_features, widths[0]), dtype)
    first = LinearTower(weight, None if one_hot else jnp.zeros(widths[0], dtype))
    if not hidden:
        return first
    layers = []
    for i, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
        spread = float((scale if i == len(hidden) - 1 else 1.0) / np.sqrt(n_in))  # no dtype of its own
        layer = eqx.nn.Linear(n_in, n_out, dtype=dtype, key=keys[i + 1])
        values = (spread * jax.random.normal(keys[i + 1], (n_out, n_in), dtype), jnp.zeros(n_out, dtype))
        layers.append(eqx.tree_at(lambda t: (t.weight, t.bias), layer, values))
    return MLPTower(first, tuple(layers))


def _root_mean_square_row(features: Dense | Sparse) -> float:
    """Length of a typical row of features; 1 where all are 0."""
    values = np.asarray(features.values, np.float64)
    return float(np.sqrt(np.sum(values**2) / max(features.n_entities, 1))) or 1.0
