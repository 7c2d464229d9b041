"""What every observation model provides: the loss of one count as a function of the linear predictor."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from glmfit._numerics import elementwise, exponent_limit, gammaln, namespace
from glmfit._types import Array

# jax.random.poisson works in int32 and saturates; above this the spread is below 3e-5 of the rate.
_LARGEST_SAMPLED_RATE = 2.0**30


class Observation(eqx.Module):
    """Observation model: a family of losses phi(eta; y) of a count y at a linear predictor eta.

    An instance has no data: two instances of a class are equal and have the same hash, so it can be a static
    argument of `jax.jit`. All methods are elementwise, broadcast, and take numbers, NumPy arrays (and then
    compute with NumPy) or JAX arrays. The result has the dtype of `eta`; float32 is never promoted.
    Counts need not be integers (weighted or deconvolved data): the loss is then a quasi-likelihood.

    Attributes
    ----------
    name : str
        Name of the inverse link.
    """

    name: eqx.AbstractClassVar[str]

    def rate(self, eta: Array) -> Array:
        """Compute the expected count per bin, the inverse link f(eta).

        Parameters
        ----------
        eta : array
            Linear predictor, any shape.

        Returns
        -------
        array
            Expected count per bin, > 0, same shape. Softplus stays at e^-43 (float32) or e^-354 (float64)
            below these eta; the exponential underflows to 0 and overflows to inf, as it must.
        """
        return elementwise(self._rate, eta)

    def log_rate(self, eta: Array) -> Array:
        """Compute log f(eta), accurate where f itself underflows.

        Parameters
        ----------
        eta : array
            Linear predictor, any shape.

        Returns
        -------
        array
            Natural logarithm of the expected count per bin, same shape.
        """
        return elementwise(self._log_rate, eta)

    def loss(self, y: Array, eta: Array) -> Array:
        """Compute phi(eta; y) = f(eta) - y log f(eta).

        This is the negative Poisson log-likelihood without log y!, so phi >= y - y log y (`saturated_loss`).

        Parameters
        ----------
        y : array
            Counts per bin, >= 0.
        eta : array
            Linear predictor; broadcasts with `y`.

        Returns
        -------
        array
            Loss in nats, broadcast shape.
        """
        return self.loss_and_derivative(y, eta)[0]

    def derivative(self, y: Array, eta: Array) -> Array:
        """Compute phi'(eta; y), the derivative of the loss with respect to eta.

        Parameters
        ----------
        y : array
            Counts per bin, >= 0.
        eta : array
            Linear predictor; broadcasts with `y`.

        Returns
        -------
        array
            Derivative, broadcast shape; tends to -y as eta -> -inf.
        """
        return elementwise(self._derivative, y, eta)

    def loss_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        """Compute the loss and its derivative together, sharing their work.

        Parameters
        ----------
        y : array
            Counts per bin, >= 0.
        eta : array
            Linear predictor; broadcasts with `y`.

        Returns
        -------
        loss, derivative : array
            As `loss` and `derivative` return them.
        """
        return elementwise(self._loss_and_derivative, y, eta)

    def curvature(self, y: Array, eta: Array) -> Array:
        """Compute phi''(eta; y), the second derivative of the loss with respect to eta.

        Parameters
        ----------
        y : array
            Counts per bin, >= 0.
        eta : array
            Linear predictor; broadcasts with `y`.

        Returns
        -------
        array
            Curvature >= 0, broadcast shape.

        Notes
        -----
        Both links satisfy ``|phi'''| <= phi''`` for every y >= 0: generalised self-concordance, constant 1.
        """
        return elementwise(self._curvature, y, eta)

    def curvature_bound(self, y: Array, lower: Array | None = None, upper: Array | None = None) -> Array:
        """Bound phi''(eta; y) from above for all eta in [lower, upper].

        Parameters
        ----------
        y : array
            Counts per bin, >= 0.
        lower, upper : array, optional
            Ends of the interval, lower <= upper; they broadcast with `y`. None means unbounded on that side.

        Returns
        -------
        array
            A number >= the supremum of phi'' over the interval, rounding included, in the broadcast shape;
            inf where the supremum is infinite.

        Notes
        -----
        Guaranteed: the formula is an upper bound, inflated by 16 machine epsilons of the dtype, more than the
        errors of the evaluation. The classes say how tight it is.
        """
        if lower is None and upper is None:
            return elementwise(self._global_curvature_bound, y)
        lower = -np.inf if lower is None else lower
        upper = np.inf if upper is None else upper
        return elementwise(self._curvature_bound, y, lower, upper)

    def saturated_loss(self, y: Array) -> Array:
        """Compute the smallest loss a count can have, y - y log y (0 at y = 0), reached at rate y.

        Parameters
        ----------
        y : array
            Counts per bin, >= 0.

        Returns
        -------
        array
            Loss in nats, same shape.
        """
        return elementwise(_saturated_loss, y)

    def deviance(self, y: Array, eta: Array) -> Array:
        """Compute the unit deviance 2 (phi(eta; y) - min phi(.; y)) = 2 (y log(y/f) - (y - f)).

        Parameters
        ----------
        y : array
            Counts per bin, >= 0.
        eta : array
            Linear predictor; broadcasts with `y`.

        Returns
        -------
        array
            Deviance >= 0 in nats, broadcast shape.
        """
        return elementwise(self._deviance, y, eta)

    def log_likelihood(self, y: Array, eta: Array) -> Array:
        """Compute the Poisson log-probability y log f - f - log y!.

        Parameters
        ----------
        y : array
            Counts per bin, >= 0; log y! = log Gamma(y + 1) where y is not an integer.
        eta : array
            Linear predictor; broadcasts with `y`.

        Returns
        -------
        array
            Log-likelihood in nats, constant included, broadcast shape.
        """
        return elementwise(self._log_likelihood, y, eta)

    def sample(self, key: jax.Array, eta: Array, dtype: Any = None) -> jax.Array:
        """Draw Poisson counts with rate f(eta).

        Parameters
        ----------
        key : jax.Array
            PRNG key (threefry, the default of JAX).
        eta : array
            Linear predictor, any shape.
        dtype : dtype, optional
            Of the counts; that of `eta` by default, so that they can go straight into a loss.

        Returns
        -------
        jax.Array
            Independent counts, same shape. Above a rate of 2^30 the integers of the sampler end and the rate
            itself is returned (its relative spread is below 3e-5); a rate of inf or NaN gives inf or NaN.
        """
        rate = self.rate(jnp.asarray(eta))
        in_range = rate <= _LARGEST_SAMPLED_RATE
        counts = jax.random.poisson(key, jnp.where(in_range, rate, 0.0)).astype(rate.dtype)
        return jnp.where(in_range, counts, rate).astype(rate.dtype if dtype is None else dtype)

    def intercept(self, mean_rate: Array) -> Array:
        """Compute the eta whose rate is `mean_rate`: the link, and the optimum of a model without features.

        Parameters
        ----------
        mean_rate : array
            Mean count per bin, >= 0.

        Returns
        -------
        array
            Finite linear predictor, same shape. A mean below e^-43 (float32) or e^-354 (float64), and in
            particular 0, gives the predictor of that floor, -43 or -354: never -inf.
        """
        return elementwise(self._intercept, mean_rate)

    # What a model implements. All arrays arrive with one namespace and one floating dtype.

    @abc.abstractmethod
    def _rate(self, eta: Array) -> Array:
        """Rate."""

    @abc.abstractmethod
    def _log_rate(self, eta: Array) -> Array:
        """Logarithm of the rate."""

    @abc.abstractmethod
    def _derivative(self, y: Array, eta: Array) -> Array:
        """First derivative of the loss."""

    @abc.abstractmethod
    def _loss_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        """Loss and first derivative."""

    @abc.abstractmethod
    def _curvature(self, y: Array, eta: Array) -> Array:
        """Second derivative of the loss."""

    @abc.abstractmethod
    def _curvature_bound(self, y: Array, lower: Array, upper: Array) -> Array:
        """Upper bound of the curvature on [lower, upper], rounding included."""

    @abc.abstractmethod
    def _global_curvature_bound(self, y: Array) -> Array:
        """Upper bound of the curvature over all eta, rounding included."""

    @abc.abstractmethod
    def _link(self, rate: Array) -> Array:
        """Inverse of the rate, for a rate >= e^-exponent_limit."""

    def _intercept(self, mean_rate: Array) -> Array:
        """Link function, floored."""
        floor = np.exp(-exponent_limit(mean_rate.dtype))
        return self._link(namespace(mean_rate).maximum(mean_rate, float(floor)))

    def _deviance(self, y: Array, eta: Array) -> Array:
        """Twice the excess over the saturated loss; what is below 0 is rounding."""
        excess = self._loss_and_derivative(y, eta)[0] - _saturated_loss(y)
        return 2.0 * namespace(eta).maximum(excess, 0.0)

    def _log_likelihood(self, y: Array, eta: Array) -> Array:
        """Negative loss with its constant."""
        return -self._loss_and_derivative(y, eta)[0] - gammaln(y + 1.0)


def _saturated_loss(y: Array) -> Array:
    """Smallest loss of a count."""
    xp = namespace(y)
    return y - y * xp.log(xp.where(y > 0.0, y, 1.0))
