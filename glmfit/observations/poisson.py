"""Poisson counts, and the exponential as inverse link."""

import abc
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from glmfit.numerics import Array, exp, few_nonzero, log_factorial, namespace, round_up
from glmfit.observations.base import Counts, LogLink

# jax.random.poisson works in int32 and saturates; above this the spread is below 3e-5 of the rate.
_LARGEST_SAMPLED_RATE = 2.0**30
_SILENT = -1e4  # linear predictor of rate 0


class Poisson(Counts):
    """Poisson counts: phi(eta; y) = f(eta) - y log f(eta) with the rate f, so phi >= y - y log y (`saturated_loss`).

    Counts need not be integers (weighted or deconvolved data): the loss is then a quasi-likelihood.

    Notes
    -----
    Both links satisfy ``|phi'''| <= phi''`` for every y >= 0: generalised self-concordance, constant 1.
    """

    constant: ClassVar[float | None] = 1.0
    takes_exposure: ClassVar[bool] = True

    def rate(self, eta: Array) -> Array:
        """Compute the expected count per bin f(eta) > 0, an alias of `mean`.

        Softplus stays at e^-43 (float32) or e^-354 (float64) below these eta; the exponential underflows to 0 and
        overflows to inf, as it must.
        """
        return self.mean(eta)

    @abc.abstractmethod
    def log_rate(self, eta: Array) -> Array:
        """Compute log f(eta), accurate where f itself underflows."""

    def loss(self, y: Array, eta: Array) -> Array:
        return self.loss_and_derivative(y, eta)[0]

    def variance(self, eta: Array) -> Array:
        return self.mean(eta)

    def mean_and_variance(self, eta: Array) -> tuple[Array, Array]:
        mean = self.mean(eta)
        return mean, mean

    def saturated_loss(self, y: Array) -> Array:
        if (spikes := few_nonzero(y)) is not None:
            loss = np.array(y, order="C")
            loss.reshape(-1)[spikes.at] -= spikes.values * np.log(spikes.values)
            return loss
        xp = namespace(y)
        return y - y * xp.log(y + (y == 0.0).astype(y.dtype))

    def log_likelihood(self, y: Array, eta: Array) -> Array:
        """Compute the Poisson log-probability y log f - f - log y!, with log Gamma(y + 1) for y that is not whole."""
        return -self.loss(y, eta) - log_factorial(y)

    def total_log_likelihood(self, y: Array, eta: Array, exposure: Array) -> Array:
        """Compute the log-probability of a count whose expectation is exposure times the rate."""
        rate = self.rate(eta)
        value = self.log_likelihood(y, eta) + (1 - exposure) * rate + scipy.special.xlogy(y, exposure)
        return np.where(np.isinf(rate), -np.inf, value)  # no count is that large

    def _law(self, eta: np.ndarray, exposure: Any) -> tuple:
        from scipy.stats import poisson

        return poisson, exposure * self.mean(eta)

    def sample(self, key: jax.Array, eta: Array, dtype: Any = None) -> jax.Array:
        """Draw Poisson counts with rate f(eta).

        Above a rate of 2^30, the limit of the sampler, the rate itself is returned (its relative spread is
        below 3e-5); a rate of inf or NaN gives inf or NaN. Arguments and result are those of `Observation.sample`.
        """
        rate = self.rate(jnp.asarray(eta))
        in_range = rate <= _LARGEST_SAMPLED_RATE
        counts = jax.random.poisson(key, jnp.where(in_range, rate, 0.0)).astype(rate.dtype)
        return jnp.where(in_range, counts, rate).astype(rate.dtype if dtype is None else dtype)

    def draw(self, key: jax.Array, eta: np.ndarray, exposure: Any = 1.0) -> np.ndarray:
        if np.ndim(exposure):
            expected = np.asarray(self.rate(np.asarray(eta, np.float64)), np.float64) * exposure
            eta = np.where(expected > 0, self.intercept(expected), _SILENT)
        return super().draw(key, eta)


@final
class PoissonExp(LogLink, Poisson):
    """Poisson counts with rate f(eta) = e^eta.

    The formulas are::

        phi   = e^eta - y eta
        phi'  = e^eta - y
        phi'' = e^eta

    Notes
    -----
    The curvature has no bound over all eta; on an interval it is exactly e^upper. Finite for every eta below
    log of the largest number (88 in float32, 709 in float64); above it rate, loss and derivative are inf.
    """

    name: ClassVar[str] = "exp"

    def log_rate(self, eta: Array) -> Array:
        return eta

    def loss_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        rate = exp(eta)
        return rate - y * eta, rate - y

    def derivative(self, y: Array, eta: Array) -> Array:
        return exp(eta) - y

    def curvature(self, y: Array, eta: Array) -> Array:
        return _broadcast(exp(eta), y)

    def curvature_slope(self, y: Array, eta: Array) -> Array:
        return _broadcast(exp(eta), y)

    def evaluate_into(self, y, eta, slope, bend=None, loss=None, spikes=None) -> None:
        np.exp(eta, out=slope)
        if bend is not None:
            bend[...] = slope
        if loss is not None:
            np.multiply(y, eta, out=loss)
            np.subtract(slope, loss, out=loss)
        slope -= y

    def curvature_bound(self, y: Array, lower: Array | None = None, upper: Array | None = None) -> Array:
        bound = namespace(y).full_like(y, np.inf) if upper is None else round_up(exp(upper))
        return _broadcast(bound, y, lower)


def _broadcast(value: Array, *others: Array | None) -> Array:
    """Broadcast a value with arrays that it does not depend on."""
    shapes = (other.shape for other in others if other is not None)
    return namespace(value).broadcast_to(value, np.broadcast_shapes(value.shape, *shapes))
