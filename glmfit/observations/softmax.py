"""Labels and counts over classes: formulas in what was seen and the scores, for NumPy and JAX arrays alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from glmfit._numerics import namespace
from glmfit._types import Array

CURVATURE_BOUND = 0.5
"""Largest eigenvalue any row's curvature ``diag(p) - pp'`` can have: at two classes of probability 1/2."""


def log_softmax(eta: Array) -> Array:
    """Compute the log-probabilities of scores, (row, class)."""
    xp = namespace(eta)
    top = xp.max(eta, axis=-1, keepdims=True)
    shifted = eta - top
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


@dataclass(frozen=True)
class Multinomial:
    r"""Counts over classes given their total: ``loss = n log sum_k exp(eta_k) - sum_k y_k eta_k``, ``n = sum_k y_k``.

    With a total of 1 it is the class of a row. Scores matter only up to a constant per row. It serves as the row loss
    of a joint problem, with proved curvature besides.

    Attributes
    ----------
    n_coupled : int
        Number of classes.
    constant : float
        Of self-concordance: a change of a row's scores of range r multiplies its curvature by at most ``exp(r)``.

    Notes
    -----
    Derivative ``n p - y``, curvature ``n (diag(p) - pp')``, between 0 and ``n (I - 11'/K) / 2`` (Bohning), third
    derivative along any direction at most the direction's range times the second (a bounded variable's third central
    moment).

    References
    ----------
    D. Bohning, Multinomial logistic regression algorithm, Ann. Inst. Statist. Math. 44 (1992).
    """

    n_coupled: int
    constant: ClassVar[float] = 1.0

    def loss(self, y: Array, eta: Array) -> Array:
        """Compute the loss of every row, (row,), from counts (row, class) and scores (row, class)."""
        xp = namespace(y, eta)
        # A class of probability 0 that was not seen costs nothing.
        return -xp.sum(y * xp.where(y > 0, log_softmax(eta), 0.0), axis=-1)

    def total(self, y: Array, eta: Array, weight: Array) -> jax.Array:
        """Sum the weighted losses of rows."""
        return jnp.sum(weight[:, 0] * (jnp.sum(y, axis=1) * jax.nn.logsumexp(eta, axis=1) - jnp.sum(y * eta, axis=1)))

    def derivative(self, y: Array, eta: Array) -> Array:
        """Compute the residual ``n p - y``, (row, class)."""
        xp = namespace(y, eta)
        return xp.sum(y, axis=-1, keepdims=True) * xp.exp(log_softmax(eta)) - y

    def curve(self, y: Array, eta: Array, direction: Array) -> Array:
        """Multiply every row's curvature with a direction, (row, class)."""
        xp = namespace(y, eta)
        p = xp.exp(log_softmax(eta))
        mean = xp.sum(p * direction, axis=-1, keepdims=True)
        return xp.sum(y, axis=-1, keepdims=True) * p * (direction - mean)

    def curvature_bound(self, y: Array) -> Array:
        """Bound the largest eigenvalue of every row's curvature, whatever the scores, (row,)."""
        return CURVATURE_BOUND * namespace(y).sum(y, axis=-1)

    def log_likelihood(self, y: Any, eta: Any) -> np.ndarray:
        """Compute the log-probability of every row's counts given their total, multinomial coefficient included."""
        y = np.asarray(y, np.float64)
        coefficient = scipy.special.gammaln(y.sum(axis=-1) + 1) - scipy.special.gammaln(y + 1).sum(axis=-1)
        return coefficient - self.loss(y, np.asarray(eta, np.float64))

    def deviance(self, y: Any, eta: Any) -> np.ndarray:
        """Compute twice the log-likelihood lost to a model that predicts every row's shares exactly, (row,)."""
        y = np.asarray(y, np.float64)
        share = y / np.maximum(y.sum(axis=-1, keepdims=True), 1e-300)
        return 2 * (self.loss(y, np.asarray(eta, np.float64)) + scipy.special.xlogy(y, share).sum(axis=-1))

    def sample(self, rng: np.random.Generator, total: Any, eta: Any) -> np.ndarray:
        """Draw counts of the totals given, (row, class)."""
        p = np.exp(log_softmax(np.asarray(eta, np.float64)))
        return rng.multinomial(np.asarray(total), p / p.sum(axis=-1, keepdims=True))
