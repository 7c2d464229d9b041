"""Towers: maps from features of an entity (a stimulus, a neuron) to its embedding, on the device and on the host.

On the device, in a fit, every array leaf is a parameter; on the host (float64), embeddings give predictions and scores.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from ..engine.tiles import tiles_of
from ..numerics import namespace
from ..observations import Observation
from .responses import Triples, merge_trials

SCORES = ("D2", "correlation", "recall")
_AT_ONCE = 2**22  # numbers of a tile
_LEAST_PAIRS = 3  # of a correlation

# ----------------------------------------------------------------------------------------- features


class Features(eqx.Module):
    """Features of all entities of one side; only products with them are ever needed."""

    n: int = eqx.field(static=True)  # entities
    n_features: int = eqx.field(static=True)
    values: jax.Array | None = None  # (entity, feature), or the nonzero ones; None if every entity is its own feature
    entity: jax.Array | None = None  # of every nonzero one, sorted
    feature: jax.Array | None = None

    def times(self, weight: jax.Array, rows: jax.Array | None) -> jax.Array:
        """Multiply the features of some entities (all if None) by a matrix (feature, column)."""
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
    constant: Any  # (output,); None if every entity is its own feature


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
        """Embeddings (entity, k) of `Features`, of some rows or all; on the host, of an array, a SciPy sparse matrix
        or, if every entity is its own feature, None.
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
        """Multiply the embeddings by a matrix (k, k)."""
        weight, constant = self.maps[-1]
        last = AffineMap(weight @ matrix, None if constant is None else constant @ matrix)
        return Tower((*self.maps[:-1], last))

    def to_file(self, prefix: str, arrays: dict) -> None:
        """Add the parameters, by name."""
        for i, pair in enumerate(self.maps):
            arrays.update({f"{prefix}.{i}.{key}": a for key, a in pair._asdict().items() if a is not None})

    @classmethod
    def from_file(cls, prefix: str, arrays: dict) -> Self:
        """Read the parameters that `to_file` added."""
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
        Towers of stimuli and of neurons.
    left_bias, right_bias : jax.Array or None
        One number per entity, (m,) and (n,), added to the linear predictor; None in a model without biases.
    """

    left: Tower
    right: Tower
    left_bias: jax.Array | None
    right_bias: jax.Array | None

    @property
    def parts(self) -> tuple:
        """Towers, and biases: each has its own ridge."""
        return (self.left, self.right), (self.left_bias, self.right_bias)


def draw_tower(key, features: Features, hidden: tuple[int, ...], k: int, scale: float, dtype) -> Tower:
    """Draw a tower, linear without ``hidden`` widths, whose embeddings have a root mean square of about ``scale``."""
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


# --------------------------------------------------------------------------------- on the host


def canonical_rotation(P: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """Rotation (k, k) of embeddings (m, k) and (n, k) after which equivalent models look equal.

    Inner products, and penalties of linear towers, are the same after any rotation of both sides; this one makes
    ``P'P + Q'Q`` diagonal, decreasing, with the entry of largest magnitude of every column of Q positive.
    """
    _, vectors = np.linalg.eigh(P.T @ P + Q.T @ Q)
    rotation = vectors[:, ::-1]
    turned = Q @ rotation
    most = np.take_along_axis(turned, np.argmax(np.abs(turned), axis=0)[None, :], axis=0)[0]
    return rotation * np.where(most < 0, -1.0, 1.0)


class Predictor(NamedTuple):
    """Linear predictors ``P Q' + s + t`` on the host."""

    P: np.ndarray  # embeddings of stimuli, (stimulus, k)
    s: np.ndarray  # biases, (stimulus,)
    Q: np.ndarray  # of neurons
    t: np.ndarray
    null: np.ndarray  # linear predictor of every neuron's mean response in training, (neuron,)

    def table(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Compute the linear predictors of some stimuli and all neurons."""
        return self.P[rows] @ self.Q.T + self.s[rows, None] + self.t[None, :]

    def of_pairs(self, stimuli: np.ndarray, neurons: np.ndarray) -> np.ndarray:
        """Compute the linear predictors of scattered pairs, some at a time."""
        out = np.empty(len(stimuli))
        for some in tiles_of(len(out), max(1, _AT_ONCE // max(1, self.P.shape[1]))):
            i, j = stimuli[some], neurons[some]
            out[some] = np.sum(self.P[i] * self.Q[j], axis=1) + self.s[i] + self.t[j]
        return out


def deviance_explained(loss: Observation, records: Triples, predictor: Predictor) -> float:
    """1 - deviance / deviance of every neuron's mean in training; nan if the latter is 0."""
    z = predictor.of_pairs(records.left, records.right)
    deviance = float(np.sum(loss.deviance(records.y, z)))
    null = float(np.sum(loss.deviance(records.y, predictor.null[records.right])))
    # Constant responses differ from their mean by its rounding.
    return 1 - deviance / null if null > 1e-24 * float(np.sum(records.y**2)) else np.nan


def correlations(loss: Observation, records: Triples, predictor: Predictor) -> np.ndarray:
    """Pearson correlation over the pairs of every neuron, (neuron,); nan with fewer than 3 or if one is constant."""
    n = len(predictor.t)
    place, y, *_ = merge_trials(records.left.astype(np.int64) * n + records.right, records.y)
    i, j = records.left[place], records.right[place]
    expected = loss.mean(predictor.of_pairs(i, j))
    count = np.bincount(j, minlength=n)

    def centred(values):
        mean = np.bincount(j, values, n) / np.maximum(count, 1)
        rest = values - mean[j]
        square = np.bincount(j, rest**2, n)
        # Values count as constant up to the rounding of their mean.
        size = np.bincount(j, values**2, n)
        return rest, np.where(square > 1e-24 * size, square, np.nan)

    (dy, yy), (de, ee) = centred(y), centred(expected)
    return np.where(count >= _LEAST_PAIRS, np.bincount(j, dy * de, n) / np.sqrt(yy * ee), np.nan)


def recall(records: Triples, predictor: Predictor, k: int, exclude: Triples | None) -> float:
    """Mean over stimuli of the share of neurons that responded among the k predicted first, without ``exclude``."""
    shape = len(predictor.s), len(predictor.t)

    def table(given):
        return scipy.sparse.csr_array((given.y, (given.left, given.right)), shape)  # trials are added up

    positive = table(records) > 0
    out = None if exclude is None else table(exclude._replace(y=np.ones(len(exclude.y), bool)))
    positive = positive if out is None else positive > out
    per_stimulus = positive.sum(axis=1)
    asked = np.flatnonzero(per_stimulus)
    if not len(asked):
        raise ValueError("no remaining pair (after exclude) has a response above 0; recall needs at least one.")
    k = min(k, shape[1])
    hits = np.empty(len(asked))
    for some in tiles_of(len(asked), max(1, _AT_ONCE // shape[1])):
        rows = asked[some]
        z = predictor.table(rows)
        if out is not None:
            z[out[rows].toarray()] = -np.inf
        top = np.argpartition(-z, k - 1, axis=1)[:, :k]
        hits[some] = np.take_along_axis(positive[rows].toarray(), top, axis=1).sum(axis=1)
    return float(np.mean(hits / np.minimum(k, per_stimulus[asked])))


def hold_out(records: Triples, pair: Callable, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Draw numbers of pairs (as ``pair`` gives them) to hold out, such that every stimulus and neuron keeps one."""
    pairs, first = np.unique(pair(records.left, records.right), return_index=True)
    order = rng.permutation(len(pairs))
    left, right = records.left[first][order], records.right[first][order]
    kept = np.zeros(len(pairs), bool)  # in the order drawn: the first of every stimulus and of every neuron stays
    for side in (left, right):
        kept[np.unique(side, return_index=True)[1]] = True
    free = order[~kept]
    return np.sort(pairs[free[: round(fraction * len(pairs))]])
