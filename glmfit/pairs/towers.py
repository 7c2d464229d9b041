"""Towers: maps from the features of an entity (a stimulus, a neuron) to its embedding, with parameters as leaves."""

from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from ..numerics import namespace

# ----------------------------------------------------------------------------------------- features


class Features(eqx.Module):
    """Features of all entities of one side; only products with them are ever needed."""

    n: int = eqx.field(static=True)  # entities
    n_features: int = eqx.field(static=True)
    values: jax.Array | None = None  # (entity, feature), or the nonzero ones; None if every entity is its own feature
    entity: jax.Array | None = None  # of every nonzero one, sorted
    feature: jax.Array | None = None

    def times(self, weight: jax.Array, rows: jax.Array | None) -> jax.Array:
        """Multiply the features of some entities (all if None) with a matrix (feature, column)."""
        if self.values is None:
            product = weight
        elif self.entity is None:
            return (self.values if rows is None else self.values[rows]) @ weight
        else:  # for some entities at the cost of all
            terms = self.values[:, None] * weight[self.feature]
            product = jax.ops.segment_sum(terms, self.entity, self.n, indices_are_sorted=True)
        return product if rows is None else product[rows]


def make_features(values: Any, dtype) -> Features:
    """Put an array or SciPy sparse matrix (entity, feature) on the device; a number of entities needs no features."""
    if isinstance(values, int | np.integer):
        return Features(int(values), int(values))
    if not scipy.sparse.issparse(values):
        return Features(*values.shape, jnp.asarray(np.asarray(values), dtype))
    rows = scipy.sparse.csr_array(values)
    rows.sum_duplicates()
    entity = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    places = (jnp.asarray(ids, np.int32) for ids in (entity, rows.indices))
    return Features(*rows.shape, jnp.asarray(rows.data, dtype), *places)


# ------------------------------------------------------------------------------------------- towers


class AffineMap(NamedTuple):
    """Map ``x W + c``."""

    weight: Any  # (input, output)
    constant: Any  # (output,); None where every entity is its own feature


class Tower(eqx.Module):
    """Affine maps from features to embeddings, one or several with a tanh between each two.

    Every array leaf is a parameter: on the device those of a fit, on the host, in float64, those of a fitted model.
    """

    maps: tuple[AffineMap, ...]

    @property
    def is_linear(self) -> bool:
        """Whether there is no hidden layer."""
        return len(self.maps) == 1

    def __call__(self, features: Any, rows: jax.Array | None = None) -> Any:
        """Embeddings (entity, k) of `Features`, of some rows or all; on the host of an array, a SciPy sparse matrix
        or, where every entity is its own feature, None.
        """
        (weight, constant), *others = self.maps
        if isinstance(features, Features):
            out = features.times(weight, rows)
        else:
            out = weight if features is None else np.asarray(features @ weight, np.float64)
        out = out if constant is None else out + constant[None, :]
        for weight, constant in others:
            out = namespace(out).tanh(out) @ weight + constant[None, :]
        return out

    def on_host(self) -> Self:
        """Copy the parameters from the device."""
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self)

    def rotate(self, matrix: np.ndarray) -> Self:
        """Multiply the embeddings with a matrix (k, k)."""
        weight, constant = self.maps[-1]
        last = AffineMap(weight @ matrix, None if constant is None else constant @ matrix)
        return Tower((*self.maps[:-1], last))

    def to_file(self, prefix: str, arrays: dict) -> None:
        """Add the parameters, by name."""
        for i, pair in enumerate(self.maps):
            arrays.update({f"{prefix}.{i}.{key}": a for key, a in pair._asdict().items() if a is not None})

    @classmethod
    def from_file(cls, prefix: str, arrays: dict) -> Self:
        """Find what `to_file` added."""
        maps: list[AffineMap] = []
        while (weight := arrays.get(f"{prefix}.{len(maps)}.weight")) is not None:
            maps.append(AffineMap(weight, arrays.get(f"{prefix}.{len(maps)}.constant")))
        if not maps:
            raise KeyError(f"{prefix}.0.weight")
        return cls(tuple(maps))


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


def draw_tower(key, features: Features, hidden: tuple[int, ...], k: int, scale: float, dtype) -> Tower:
    """Draw a tower, linear without ``hidden`` widths, whose embeddings have about the root mean square ``scale``."""
    one_hot, widths, maps = features.values is None, (features.n_features, *hidden, k), []
    for i, one in enumerate(jax.random.split(key, len(hidden) + 1)):
        size = np.sqrt(widths[i]) if i else 1.0
        if not i and not one_hot:  # length of a typical row of features, 1 where all are 0
            size = float(np.sqrt(np.sum(np.asarray(features.values, np.float64) ** 2) / max(features.n, 1))) or 1.0
        spread = float((scale if i == len(hidden) else 1.0) / size)  # no dtype of its own
        n_in, n_out = widths[i : i + 2]
        draw = jax.random.normal(one, (n_out, n_in) if i else (n_in, n_out), dtype)
        weight = spread * (draw.T if i else draw)
        maps.append(AffineMap(weight, None if one_hot and not i else jnp.zeros(n_out, dtype)))
    return Tower(tuple(maps))
