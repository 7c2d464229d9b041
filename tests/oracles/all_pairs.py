"""All-pairs objective, gradient and curvature over every pair, in float64 NumPy: the definition, spelled out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.special


class Pairs(NamedTuple):
    """An all-pairs model with plain arrays: tables P (m, k) and Q (n, k), records (i, j, y) with repeats."""

    left: np.ndarray
    right: np.ndarray
    y: np.ndarray
    loss: str
    omega: float
    a: np.ndarray
    b: np.ndarray
    prior: np.ndarray  # (m, n)


def loss_values(name, y, z):
    """Loss, derivative and curvature of a response, by SciPy."""
    s = scipy.special.expit(z)
    if name == "squared":
        return (y - z) ** 2 / 2, z - y, np.ones_like(z)
    if name == "logistic":
        return np.logaddexp(0, z) - y * z, s - y, s * (1 - s)
    if name == "poisson-exp":
        return np.exp(z) - y * z, np.exp(z) - y, np.exp(z)
    f = np.logaddexp(0, z)
    slope = s - y * s / f
    return f - y * np.log(f), slope, s * (1 - s) * (1 - y / f) + y * (s / f) ** 2


def observed_mask(pairs, shape):
    """Whether each pair was observed."""
    seen = np.zeros(shape, bool)
    seen[pairs.left, pairs.right] = True
    return seen


def objective(pairs, Z):
    """Sum over records plus imputation over every pair that is not observed."""
    total = 0.0
    for i, j, y in zip(pairs.left, pairs.right, pairs.y, strict=True):
        total += loss_values(pairs.loss, y, Z[i, j])[0]
    unseen = ~observed_mask(pairs, Z.shape)
    cost = pairs.omega / 2 * np.outer(pairs.a, pairs.b) * (Z - pairs.prior) ** 2
    return total + cost[unseen].sum()


def slope(pairs, Z):
    """Derivative of the objective in every z, (m, n)."""
    unseen = ~observed_mask(pairs, Z.shape)
    out = np.where(unseen, pairs.omega * np.outer(pairs.a, pairs.b) * (Z - pairs.prior), 0.0)
    for i, j, y in zip(pairs.left, pairs.right, pairs.y, strict=True):
        out[i, j] += loss_values(pairs.loss, y, Z[i, j])[1]
    return out


def curvature(pairs, Z):
    """Second derivative in every z, (m, n)."""
    unseen = ~observed_mask(pairs, Z.shape)
    out = np.where(unseen, pairs.omega * np.outer(pairs.a, pairs.b), 0.0)
    for i, j, y in zip(pairs.left, pairs.right, pairs.y, strict=True):
        out[i, j] += loss_values(pairs.loss, y, Z[i, j])[2]
    return out


def als_row(pairs, Q, i, strength):
    """Weighted least squares for row i of P with Q held fixed (squared loss)."""
    n, k = Q.shape
    weight, target = pairs.omega * pairs.a[i] * pairs.b, pairs.prior[i].copy()
    for j in range(n):
        trials = pairs.y[(pairs.left == i) & (pairs.right == j)]
        if len(trials):
            weight[j], target[j] = len(trials), trials.mean()
    return np.linalg.solve((Q.T * weight) @ Q + strength * np.eye(k), Q.T @ (weight * target))
