"""Binary responses, and counts of successes among trials, with a logistic inverse link."""

from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from glmfit.numerics import (
    Array,
    exponent_limit,
    log_factorial,
    namespace,
    nearest,
    round_up,
    write_odds,
    write_softplus,
)
from glmfit.observations.base import Observation
from glmfit.threads import scratch


class Bernoulli(Observation):
    """Binary responses, y = 1 or 0 (or a share of trials), with success probability 1 / (1 + e^-eta).

    The formulas are, with the probability p::

        phi   = log(1 + e^eta) - y eta
        phi'  = p - y
        phi'' = p (1 - p)

    Notes
    -----
    ``|phi'''| = |1 - 2p| phi'' <= phi''``: generalised self-concordance, constant 1. On an interval the curvature is
    largest at its point nearest to 0, so the bound is exact. Finite for every eta.
    """

    name: ClassVar[str] = "logistic"
    constant: ClassVar[float | None] = 1.0

    def loss(self, y: Array, eta: Array) -> Array:
        return self.loss_and_derivative(y, eta)[0]

    def loss_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        xp = namespace(eta)
        small = xp.exp(-xp.abs(eta))
        return xp.maximum(eta, 0.0) + xp.log1p(small) - y * eta, _probability(eta, small) - y

    def derivative(self, y: Array, eta: Array) -> Array:
        return self.mean(eta) - y

    def evaluate_into(self, y, eta, slope, bend=None, loss=None, spikes=None) -> None:
        q = scratch(eta.shape, eta.dtype, "q")
        write_odds(eta, slope, q)
        if loss is not None:
            write_softplus(eta, slope, q, loss)
            loss -= np.multiply(y, eta, out=scratch(eta.shape, eta.dtype, "w"))
        slope *= q
        if bend is not None:
            np.multiply(slope, q, out=bend)
        slope -= y

    def curvature(self, y: Array, eta: Array) -> Array:
        return _bend(eta) + 0.0 * y

    def curvature_slope(self, y: Array, eta: Array) -> Array:
        bend = _bend(eta)
        return bend * (1.0 - 2.0 * self.mean(eta)) + 0.0 * y

    def curvature_bound(self, y: Array, lower: Array | None = None, upper: Array | None = None) -> Array:
        at = namespace(y).asarray(nearest(0.0, lower, upper), dtype=y.dtype)
        return round_up(_bend(at) + 0.0 * y)

    def mean(self, eta: Array) -> Array:
        return _probability(eta, namespace(eta).exp(-namespace(eta).abs(eta)))

    def link(self, mean: Array) -> Array:
        xp = namespace(mean)
        with np.errstate(divide="ignore"):
            return xp.log(mean) - xp.log1p(-mean)

    def intercept(self, mean: Array, weight: Array | None = None) -> Array:
        xp, limit = namespace(mean), exponent_limit(mean.dtype)
        if weight is None:
            return xp.clip(self.link(mean), -limit, limit)
        least = 0.5 / (weight + 1.0)
        return self.link(xp.clip(mean, least, 1.0 - least))

    def has_optimum(self, mean: Array) -> Array:
        return (mean > 0.0) & (mean < 1.0)

    def recession(self, y: Array) -> Array:
        return 1.0 * (y == 1.0) - 1.0 * (y == 0.0)

    def variance(self, eta: Array) -> Array:
        return _bend(eta)

    def saturated_loss(self, y: Array) -> Array:
        xp = namespace(y)
        return -sum(share * xp.log(xp.where(share > 0.0, share, 1.0)) for share in (y, 1.0 - y))

    def log_likelihood(self, y: Array, eta: Array) -> Array:
        return -self.loss(y, eta)

    def sample(self, key: jax.Array, eta: Array, dtype: Any = None) -> jax.Array:
        eta = jnp.asarray(eta)
        return jax.random.bernoulli(key, self.mean(eta)).astype(eta.dtype if dtype is None else dtype)

    def _law(self, eta: np.ndarray, exposure: Any) -> tuple:
        from scipy.stats import binom

        return binom, exposure, self.mean(eta)

    def wrong(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        return (y != 0) & (y != 1), "responses 0 or 1"


@final
class Binomial(Bernoulli):
    """Counts of successes among trials, each with probability 1 / (1 + e^-eta); the loss is that of their share."""

    name: ClassVar[str] = "binomial"
    takes_exposure: ClassVar[bool] = True

    def total_log_likelihood(self, y: Array, eta: Array, exposure: Array) -> Array:
        """Compute the log-probability of a count among trials, its binomial coefficient included."""
        share = y / np.where(exposure > 0, exposure, 1.0)
        coefficient = log_factorial(exposure) - log_factorial(y) - log_factorial(exposure - y)
        return coefficient - exposure * self.loss(share, eta)

    def draw(self, key: jax.Array, eta: np.ndarray, exposure: Any = 1.0) -> np.ndarray:
        trials = jnp.asarray(np.broadcast_to(exposure, np.shape(eta)), jnp.float32)
        return np.asarray(jax.random.binomial(key, trials, self.mean(jnp.asarray(eta, jnp.float32))), np.float64)

    def wrong(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        return (y < 0) | (y != np.rint(y)), "whole counts >= 0"


def _probability(eta: Array, small: Array) -> Array:
    """Probability of a success; ``small`` is e^-|eta|."""
    return namespace(eta).where(eta > 0.0, 1.0, small) / (1.0 + small)


def _bend(eta: Array) -> Array:
    """Second derivative of the loss."""
    small = namespace(eta).exp(-namespace(eta).abs(eta))
    return small / (1.0 + small) ** 2
