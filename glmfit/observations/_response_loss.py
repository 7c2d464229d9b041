"""Losses of one response (a count, a yes or no, a measured value) as a function of its linear predictor."""

import abc
from typing import Any, ClassVar, final

import equinox as eqx
import numpy as np
import scipy.special

from glmfit._numerics import elementwise, namespace
from glmfit._types import Array
from glmfit.observations.poisson import PoissonSoftplus

_POISSON = PoissonSoftplus()


class ResponseLoss(eqx.Module):
    """Loss ell(y, z) of a response y at a linear predictor z, convex and twice differentiable in z.

    Up to a term without z it is linear in y. The losses of repeated trials of one pair are therefore that of their
    mean, times their number, and a constant (`spread_constant`).

    Instances have no data, are equal and have the same hash; methods are elementwise and broadcast, for NumPy and JAX
    arrays alike. The result has the dtype of ``z``.

    Attributes
    ----------
    name : str
        What users call it.
    """

    name: ClassVar[str]

    def loss_and_derivative(self, y: Array, z: Array) -> tuple[Array, Array]:
        """Compute ell and its derivative in z.

        Parameters
        ----------
        y : array
            Responses.
        z : array
            Linear predictor.

        Returns
        -------
        loss, derivative : array
            In nats (squared: in squared units of y) and per unit of z.
        """
        return elementwise(self._loss_and_derivative, y, z)

    def curvature(self, y: Array, z: Array) -> Array:
        """Compute the second derivative in z, >= 0.

        Parameters
        ----------
        y, z : array
            As in `loss_and_derivative`.

        Returns
        -------
        array
            Curvature, broadcast shape.
        """
        return elementwise(self._curvature, y, z)

    @abc.abstractmethod
    def curvature_bound(self, y: np.ndarray) -> np.ndarray:
        """Bound the curvature over all z, rounding included.

        Parameters
        ----------
        y : numpy.ndarray
            Responses.

        Returns
        -------
        numpy.ndarray
            A number >= the curvature at every z, same shape.
        """

    def response(self, z: Array) -> Array:
        """Compute the expected response at a linear predictor: the inverse link.

        Parameters
        ----------
        z : array
            Linear predictor.

        Returns
        -------
        array
            Expected count per bin, probability or value, same shape.
        """
        return elementwise(self._response, z)

    def deviance(self, y: Array, z: Array) -> Array:
        """Compute twice the excess of the loss over the least a response can have.

        Parameters
        ----------
        y, z : array
            As in `loss_and_derivative`.

        Returns
        -------
        array
            Deviance >= 0, broadcast shape.
        """
        return elementwise(self._deviance, y, z)

    @abc.abstractmethod
    def link(self, mean: Array, weight: Array) -> Array:
        """Compute the finite linear predictor of a mean response.

        Parameters
        ----------
        mean : array
            Mean response.
        weight : array
            Over how many responses, > 0: a mean at the end of its range (no spike, all or none) is taken as if half a
            response more or less had been seen.

        Returns
        -------
        array
            Linear predictor.
        """

    @abc.abstractmethod
    def wrong(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Find responses that the loss cannot take.

        Parameters
        ----------
        y : numpy.ndarray
            Finite responses.

        Returns
        -------
        wrong : numpy.ndarray of bool
            Where they are.
        needs : str
            What is allowed, for an error.
        """

    def spread_constant(self, sum_of_squares: float) -> float:
        """Constant that merging repeated trials takes out of the sum of losses.

        Parameters
        ----------
        sum_of_squares : float
            Sum of squared differences between responses and the means of their pairs.

        Returns
        -------
        float
            0 unless the loss is quadratic in y.
        """
        return 0.0

    @abc.abstractmethod
    def _loss_and_derivative(self, y: Array, z: Array) -> tuple[Array, Array]:
        """Loss and derivative."""

    @abc.abstractmethod
    def _curvature(self, y: Array, z: Array) -> Array:
        """Second derivative."""

    @abc.abstractmethod
    def _response(self, z: Array) -> Array:
        """Inverse link."""

    @abc.abstractmethod
    def _deviance(self, y: Array, z: Array) -> Array:
        """Deviance."""


@final
class PoissonLoss(ResponseLoss):
    """Counts with rate softplus(z): ``softplus(z) - y log softplus(z)``."""

    name: ClassVar[str] = "poisson"

    def link(self, mean: Array, weight: Array) -> Array:
        return _POISSON.intercept(np.maximum(mean, 0.5 / weight))

    def wrong(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        return y < 0, "counts >= 0"

    def curvature_bound(self, y: np.ndarray) -> np.ndarray:
        return _POISSON.curvature_bound(y)

    def _loss_and_derivative(self, y: Array, z: Array) -> tuple[Array, Array]:
        return _POISSON.loss_and_derivative(y, z)

    def _curvature(self, y: Array, z: Array) -> Array:
        return _POISSON.curvature(y, z)

    def _response(self, z: Array) -> Array:
        return _POISSON.rate(z)

    def _deviance(self, y: Array, z: Array) -> Array:
        return _POISSON.deviance(y, z)


@final
class LogisticLoss(ResponseLoss):
    """Yes or no with probability 1 / (1 + e^-z): ``log(1 + e^z) - y z`` for y = 1 or 0 (or a share of trials)."""

    name: ClassVar[str] = "logistic"

    def link(self, mean: Array, weight: Array) -> Array:
        return scipy.special.logit(np.clip(mean, 0.5 / (weight + 1), 1 - 0.5 / (weight + 1)))

    def wrong(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        return (y != 0) & (y != 1), "responses 0 or 1"

    def curvature_bound(self, y: np.ndarray) -> np.ndarray:
        return np.full(np.shape(y), 0.25 * (1 + 1e-14))

    def _loss_and_derivative(self, y: Array, z: Array) -> tuple[Array, Array]:
        xp = namespace(z)
        small = xp.exp(-xp.abs(z))
        probability = xp.where(z > 0, 1.0, small) / (1.0 + small)
        return xp.maximum(z, 0.0) + xp.log1p(small) - y * z, probability - y

    def _curvature(self, y: Array, z: Array) -> Array:
        small = namespace(z).exp(-namespace(z).abs(z))
        return small / (1.0 + small) ** 2 + 0.0 * y

    def _response(self, z: Array) -> Array:
        return self._loss_and_derivative(0.0 * z, z)[1]

    def _deviance(self, y: Array, z: Array) -> Array:
        xp = namespace(z)
        share = xp.clip(y, 1e-300 if z.dtype.itemsize == 8 else 1e-37, 1.0)
        rest = xp.clip(1.0 - y, 1e-300 if z.dtype.itemsize == 8 else 1e-37, 1.0)
        least = -(y * xp.log(share) + (1.0 - y) * xp.log(rest))
        return 2.0 * xp.maximum(self._loss_and_derivative(y, z)[0] - least, 0.0)


@final
class SquaredLoss(ResponseLoss):
    """Measured values: ``(y - z)^2 / 2``."""

    name: ClassVar[str] = "squared"

    def link(self, mean: Array, weight: Array) -> Array:
        return np.asarray(mean) + 0.0

    def wrong(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        return np.zeros(np.shape(y), bool), "finite numbers"

    def curvature_bound(self, y: np.ndarray) -> np.ndarray:
        return np.ones(np.shape(y))

    def spread_constant(self, sum_of_squares: float) -> float:
        return sum_of_squares / 2

    def _loss_and_derivative(self, y: Array, z: Array) -> tuple[Array, Array]:
        return 0.5 * (z - y) ** 2, z - y

    def _curvature(self, y: Array, z: Array) -> Array:
        return 1.0 + 0.0 * z + 0.0 * y

    def _response(self, z: Array) -> Array:
        return z

    def _deviance(self, y: Array, z: Array) -> Array:
        return (z - y) ** 2


RESPONSE_LOSSES: dict[str, Any] = {loss.name: loss for loss in (PoissonLoss(), LogisticLoss(), SquaredLoss())}
"""The losses by name."""
