"""Counts over classes, on the host: labels are rows with a total of 1."""

from typing import Any, ClassVar

import numpy as np
from scipy.special import gammaln, log_softmax, xlogy


class Multinomial:
    r"""Counts over classes given their total: ``loss = n log sum_k exp(eta_k) - sum_k y_k eta_k``, ``n = sum_k y_k``.

    Counts and scores are (row, class); scores matter only up to a constant per row.
    """

    # Of self-concordance: a change of a row's scores of range r multiplies its curvature by at most exp(r), because a
    # bounded variable's third central moment is at most its range times the second.
    constant: ClassVar[float] = 1.0

    def loss(self, y: Any, eta: Any) -> np.ndarray:
        """Compute the loss of every row, (row,)."""
        # A class of probability 0 that was not seen costs nothing.
        return -np.sum(y * np.where(np.asarray(y) > 0, log_softmax(eta, axis=-1), 0.0), axis=-1)

    def log_likelihood(self, y: Any, eta: Any) -> np.ndarray:
        """Compute the log-probability of every row's counts given their total, multinomial coefficient included."""
        y = np.asarray(y, np.float64)
        coefficient = gammaln(y.sum(axis=-1) + 1) - gammaln(y + 1).sum(axis=-1)
        return coefficient - self.loss(y, np.asarray(eta, np.float64))

    def deviance(self, y: Any, eta: Any) -> np.ndarray:
        """Compute twice the log-likelihood lost to a model that predicts every row's shares exactly, (row,)."""
        y = np.asarray(y, np.float64)
        share = y / np.maximum(y.sum(axis=-1, keepdims=True), 1e-300)
        return 2 * (self.loss(y, np.asarray(eta, np.float64)) + xlogy(y, share).sum(axis=-1))

    def sample(self, rng: np.random.Generator, total: Any, eta: Any) -> np.ndarray:
        """Draw counts of the totals given, (row, class)."""
        p = np.exp(log_softmax(np.asarray(eta, np.float64), axis=-1))
        return rng.multinomial(np.asarray(total), p / p.sum(axis=-1, keepdims=True))
