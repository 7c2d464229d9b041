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
_FLOOR = 1e-4  # of the mean diagonal, added to it: single precision inverts what is left


class Metric(NamedTuple):
    """Inverses of mean curvatures, penalty included."""

    left: jax.Array  # (k, k)
    right: jax.Array
    left_bias: jax.Array  # number
    right_bias: jax.Array

    def times(self, data: AllPairs, gradient: TwoTowers) -> TwoTowers:
        """Multiply a gradient, in the structure of the parameters."""
        left = _of_tower(gradient.left, self.left, data.left)
        right = _of_tower(gradient.right, self.right, data.right)
        if gradient.left_bias is None:
            return TwoTowers(left, right, None, None)
        return TwoTowers(left, right, self.left_bias * gradient.left_bias, self.right_bias * gradient.right_bias)


def metric_of(data: AllPairs, theta: TwoTowers) -> Metric | None:
    """Compute the metric at parameters: one pass over the observed pairs.

    None if a tower has hidden layers, or if imputation has less than a quarter of the curvature: entities then differ
    too much, and the metric is as often slower as faster (measured).
    """
    if data.imputation is None or not (theta.left.is_linear and theta.right.is_linear):
        return None
    dtype = theta.left.maps[0].weight.dtype
    left, right, of_left, of_right, strength, bias_strength, imputed = jax.device_get(_curvatures(data, theta))
    if imputed < _LEAST_IMPUTED * of_left * len(data.imputation.a):
        return None
    biases = (1 / np.maximum(h + bias_strength, np.finfo(dtype).tiny) for h in (of_left, of_right))
    return Metric(*(jnp.asarray(a, dtype) for a in (_inverse(left, strength), _inverse(right, strength), *biases)))


@jit
def _curvatures(data: AllPairs, theta: TwoTowers) -> tuple[jax.Array, ...]:
    """Mean curvature of the embeddings of either side, (k, k), and of biases; their ridges; the imputed part."""
    P, Q, *_ = data.tables(theta)
    of_left, of_right = sum_curvatures(data.observed, P, Q, data.loss, data.imputed)
    a, b = data.imputation  # of all pairs: the sums are without the observed ones
    of_left, of_right = jnp.maximum(of_left + a * jnp.sum(b), 0), jnp.maximum(of_right + b * jnp.sum(a), 0)
    k = theta.left.maps[0].weight.shape[1]
    left = (Q[:, :k] * of_right[:, None]).T @ Q[:, :k] / len(P)
    right = (P[:, :k] * of_left[:, None]).T @ P[:, :k] / len(Q)
    strengths = data.strength, data.bias_strength
    return left, right, jnp.mean(of_left), jnp.mean(of_right), *strengths, jnp.sum(a) * jnp.sum(b)


def _inverse(h: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Invert a matrix with its ridge added, in double precision; the identity if it is not finite."""
    h, eye = np.asarray(h, np.float64), np.eye(len(h))
    if not np.all(np.isfinite(h)):
        return eye
    return np.linalg.inv(h + max(float(strength) + _FLOOR * np.trace(h) / len(h), np.finfo(np.float32).tiny) * eye)


def _of_tower(gradient: Tower, inverse: jax.Array, features: Features) -> Tower:
    """Multiply the gradient of a linear tower, whose features count by their mean square."""
    (weight, constant), size = gradient.maps[0], 1.0
    if features.values is not None:
        size = jnp.maximum(jnp.sum(features.values**2) / features.n_features, jnp.finfo(weight.dtype).tiny)
    constant = None if constant is None else constant @ inverse / features.n
    return Tower((AffineMap(weight @ inverse / size, constant),))
