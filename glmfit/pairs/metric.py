"""Metric of linear two-tower models: the mean curvature of a row of either table, a small matrix a side.

The curvature of an entity's embedding is the sum of ``c_ij q_j q_j'`` over the other side. All entities of a side share
its mean, which is right for what imputation adds: with it, embeddings that are long in some directions and short in
others no longer slow a descent down.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..compilation import jit
from .objective import AllPairs
from .observed import sum_curvatures
from .towers import AffineMap, Features, Tower, TwoTowers

_LEAST_IMPUTED = 0.25  # of the curvature
_TINY = float(np.finfo(np.float32).tiny)
_FLOOR = 1e-4  # of the mean diagonal, added to it: single precision inverts what is left


class Side(NamedTuple):
    """Inverses of the mean curvature of the parameters of a linear tower, penalty included."""

    weight: jax.Array  # (k, k)
    constant: jax.Array
    bias: jax.Array  # number

    def times(self, gradient: Tower, bias: jax.Array | None) -> tuple[Tower, jax.Array | None]:
        """Multiply the gradient of a tower and of its biases."""
        weight, constant = gradient.maps[0]
        constant = None if constant is None else constant @ self.constant
        return Tower((AffineMap(weight @ self.weight, constant),)), None if bias is None else bias * self.bias


class Metric(NamedTuple):
    """Those of both sides."""

    left: Side
    right: Side

    def times(self, gradient: TwoTowers) -> TwoTowers:
        """Multiply a gradient, in the structure of the parameters."""
        left, left_bias = self.left.times(gradient.left, gradient.left_bias)
        right, right_bias = self.right.times(gradient.right, gradient.right_bias)
        return TwoTowers(left, right, left_bias, right_bias)


def metric_of(data: AllPairs, theta: TwoTowers) -> Metric | None:
    """Compute the metric at parameters: one pass over the observed pairs.

    None if a tower has hidden layers, or if all pairs at the cost of imputed ones have less than a quarter of the
    curvature: entities then differ too much, and the metric is as often slower as faster (measured).
    """
    if data.imputation is None or not (theta.left.is_linear and theta.right.is_linear):
        return None
    *sides, strengths, imputed = jax.device_get(_curvatures(data, theta))
    if imputed < _LEAST_IMPUTED * sides[0].bias * data.left.n:
        return None
    dtype = theta.left.maps[0].weight.dtype
    return Metric(*(jax.tree.map(lambda a: jnp.asarray(a, dtype), _inverses(side, *strengths)) for side in sides))


def _inverses(mean: Side, strength: float, bias_strength: float) -> Side:
    """Invert mean curvatures, with the ridge added."""
    weight, constant = (_inverse(h, strength) for h in mean[:2])
    return Side(weight, constant, 1 / max(mean.bias + bias_strength, _TINY))


@jit
def _curvatures(data: AllPairs, theta: TwoTowers) -> tuple:
    """Mean curvature of the parameters of either side; strengths of their ridges; all pairs at the cost of imputed."""
    P, Q, *_ = data.tables(theta)
    of_left, of_right = sum_curvatures(data.observed, P, Q, data.loss, data.imputed)
    a, b = data.imputation  # of all pairs: the sums are without the observed ones
    of_left, of_right = jnp.maximum(of_left + a * jnp.sum(b), 0), jnp.maximum(of_right + b * jnp.sum(a), 0)
    k = theta.left.maps[0].weight.shape[1]

    def side(features: Features, own, others, weight):
        """Count the weight of a feature with its squares, and a constant with all entities."""
        h = (others[:, :k] * weight[:, None]).T @ others[:, :k] / features.n
        size = 1.0 if features.values is None else jnp.sum(features.values**2) / features.n_features
        return Side(size * h, features.n * h, jnp.mean(own))

    sides = side(data.left, of_left, Q, of_right), side(data.right, of_right, P, of_left)
    return *sides, (data.strength, data.bias_strength), jnp.sum(a) * jnp.sum(b)


def _inverse(h: np.ndarray, strength: float) -> np.ndarray:
    """Invert a matrix with its ridge added, in double precision; the identity if it is not finite."""
    h, eye = np.asarray(h, np.float64), np.eye(len(h))
    if not np.all(np.isfinite(h)):
        return eye
    return np.linalg.inv(h + max(float(strength) + _FLOOR * np.trace(h) / len(h), _TINY) * eye)
