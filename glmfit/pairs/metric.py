"""Metric of linear two-tower models: the mean curvature of a row of either table, a small matrix a side.

The curvature of an entity's embedding is the sum of ``c_ij q_j q_j'`` over the other side. All entities of a side share
its mean, which is right for what imputation adds: with it, embeddings that are long in some directions and short in
others no longer slow a descent down.
"""

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


def metric_of(data: AllPairs, theta: TwoTowers) -> TwoTowers | None:
    """Compute the metric at parameters, in their structure: one pass over the observed pairs.

    It has the inverse of the mean curvature, penalty included: a matrix (k, k) for the weights and the constant of a
    tower, a number for biases. None if a tower has hidden layers, or if all pairs at the cost of imputed ones have less
    than a quarter of the curvature: entities then differ too much, and the metric is as often slower as faster
    (measured).
    """
    if data.imputation is None or not (theta.left.is_linear and theta.right.is_linear):
        return None
    *sides, strength, bias_strength, imputed = jax.device_get(_curvatures(data, theta))
    if imputed < _LEAST_IMPUTED * sides[0][2] * data.left.n:
        return None
    maps = [AffineMap(*(_inverse(h, strength) for h in side[:2])) for side in sides]
    biases = [1 / max(side[2] + bias_strength, _TINY) for side in sides]
    inverses = TwoTowers(*(Tower((pair,)) for pair in maps), *biases)

    def kept(own, inverse):
        return None if own is None else jnp.asarray(inverse, own.dtype)

    return jax.tree.map(kept, theta, inverses, is_leaf=lambda leaf: leaf is None)


def in_metric(metric: TwoTowers, gradient: TwoTowers) -> TwoTowers:
    """Multiply a gradient by the metric."""
    return jax.tree.map(lambda up, inverse: up @ inverse if inverse.ndim else up * inverse, gradient, metric)


@jit
def _curvatures(data: AllPairs, theta: TwoTowers) -> tuple:
    """Mean curvature of weights, constant and bias of either side; strengths of their ridges; cost of all pairs."""
    P, Q, *_ = data.tables(theta)
    of_left, of_right = sum_curvatures(data.observed, P, Q, data.loss, data.imputed)
    a, b = data.imputation  # of all pairs: the sums are without the observed ones
    of_left, of_right = jnp.maximum(of_left + a * jnp.sum(b), 0), jnp.maximum(of_right + b * jnp.sum(a), 0)
    k = theta.left.maps[0].weight.shape[1]

    def side(features: Features, own, others, weight):
        """Count the weight of a feature with its squares, and a constant with all entities."""
        h = (others[:, :k] * weight[:, None]).T @ others[:, :k] / features.n
        size = 1.0 if features.values is None else jnp.sum(features.values**2) / features.n_features
        return size * h, features.n * h, jnp.mean(own)

    sides = side(data.left, of_left, Q, of_right), side(data.right, of_right, P, of_left)
    return *sides, data.strength, data.bias_strength, jnp.sum(a) * jnp.sum(b)


def _inverse(h: np.ndarray, strength: float) -> np.ndarray:
    """Invert a matrix with its ridge added, in double precision; the identity if it is not finite."""
    h, eye = np.asarray(h, np.float64), np.eye(len(h))
    if not np.all(np.isfinite(h)):
        return eye
    return np.linalg.inv(h + max(float(strength) + _FLOOR * np.trace(h) / len(h), _TINY) * eye)
