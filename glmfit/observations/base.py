"""What every observation model provides: the loss of one response as a function of its linear predictor."""

import abc
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np

from glmfit._numerics import elementwise, namespace
from glmfit._types import Array

_WHOLE = ("sample", "wrong", "spread_constant")  # methods that are not formulas


def by_element(formula: Callable) -> Callable:
    """Let a formula for arrays of one namespace and dtype take all that `elementwise` takes; None is left out."""
    signature = inspect.signature(formula)

    @functools.wraps(formula)
    def method(self, *args, **kwargs):
        values = signature.bind(self, *args, **kwargs).arguments
        given = [name for name, value in values.items() if name != "self" and value is not None]
        return elementwise(lambda *a: formula(self, **dict(zip(given, a))), *(values[name] for name in given))

    return method


class Observation(eqx.Module):
    """Observation model: a family of convex losses phi(eta; y) of a response y at a linear predictor eta.

    The loss is a negative log-likelihood without the terms that do not depend on eta, and linear in y. So the mean loss
    of many responses at one eta is the loss of their mean, and `intercept` of that mean is its optimum.

    An instance has no data: two instances of a class are equal and have the same hash, so it can be a static
    argument of `jax.jit`. All methods are elementwise, broadcast, and take numbers, NumPy arrays (and then
    compute with NumPy) or JAX arrays. The result has the dtype of `eta`; float32 is never promoted.

    Attributes
    ----------
    name : str
        What users call it.
    constant : float or None
        Of generalised self-concordance: ``|phi'''| <= constant phi''`` for all eta and all y allowed. None where no
        such number is known: then no gap is bounded.
    coupled : bool
        Whether the loss of a row couples its outputs; False where every element has a loss of its own.

    Notes
    -----
    A model defines `loss`, `derivative`, `curvature`, `curvature_bound`, `mean`, `link`, `log_likelihood`, `sample` and
    `wrong`, and more where it knows better. Its public methods but for the last two are formulas: what they are given
    has been brought to one namespace (`namespace(eta)`) and one floating dtype, and only arguments that are None are
    left out.
    """

    name: eqx.AbstractClassVar[str]
    constant: eqx.AbstractClassVar[float | None]
    coupled: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for name, value in list(vars(cls).items()):
            if inspect.isfunction(value) and not name.startswith("_") and name not in _WHOLE:
                setattr(cls, name, by_element(value))

    # ---------------------------------------------------------------- loss

    @abc.abstractmethod
    def loss(self, y: Array, eta: Array) -> Array:
        """Compute phi(eta; y).

        Parameters
        ----------
        y : array
            Responses.
        eta : array
            Linear predictor; broadcasts with `y`.

        Returns
        -------
        array
            Loss in nats, broadcast shape.
        """

    @abc.abstractmethod
    def derivative(self, y: Array, eta: Array) -> Array:
        """Compute phi'(eta; y), the derivative of the loss with respect to eta.

        Parameters
        ----------
        y, eta : array
            As in `loss`.

        Returns
        -------
        array
            Derivative, broadcast shape.
        """

    @abc.abstractmethod
    def curvature(self, y: Array, eta: Array) -> Array:
        """Compute phi''(eta; y), the second derivative of the loss with respect to eta.

        Parameters
        ----------
        y, eta : array
            As in `loss`.

        Returns
        -------
        array
            Curvature >= 0, broadcast shape.
        """

    def loss_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        """Compute the loss and its derivative together, sharing their work.

        Parameters
        ----------
        y, eta : array
            As in `loss`.

        Returns
        -------
        loss, derivative : array
            As `loss` and `derivative` return them.
        """
        return self.loss(y, eta), self.derivative(y, eta)

    def misfit_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        """Compute the loss with a term in y alone, and its derivative, sharing their work.

        Parameters
        ----------
        y, eta : array
            As in `loss`.

        Returns
        -------
        misfit, derivative : array
            The loss itself, unless it would cancel where a model fits well.
        """
        return self.loss_and_derivative(y, eta)

    def derivatives(self, y: Array, eta: Array) -> tuple[Array, Array]:
        """Compute the first and second derivative of the loss together, sharing their work.

        Parameters
        ----------
        y, eta : array
            As in `loss`.

        Returns
        -------
        r, c : array
            As `derivative` and `curvature` return them.
        """
        return self.derivative(y, eta), self.curvature(y, eta)

    @abc.abstractmethod
    def curvature_bound(self, y: Array, lower: Array | None = None, upper: Array | None = None) -> Array:
        """Bound phi''(eta; y) from above for all eta in [lower, upper].

        Parameters
        ----------
        y : array
            Responses.
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

    # ---------------------------------------------------------------- responses

    @abc.abstractmethod
    def mean(self, eta: Array) -> Array:
        """Compute the expected response, the inverse link.

        Parameters
        ----------
        eta : array
            Linear predictor, any shape.

        Returns
        -------
        array
            Expected response, same shape.
        """

    @abc.abstractmethod
    def link(self, mean: Array) -> Array:
        """Compute the eta of an expected response.

        Parameters
        ----------
        mean : array
            Expected response.

        Returns
        -------
        array
            Linear predictor, same shape; infinite where only the limit has that mean.
        """

    def intercept(self, mean: Array, weight: Array | None = None) -> Array:
        """Compute the optimum of a model without features.

        Parameters
        ----------
        mean : array
            Mean response.
        weight : array, optional
            Over how many responses, > 0. With it a mean at the end of its range (no spike, all or none) is taken as if
            half a response more or less had been seen.

        Returns
        -------
        array
            Linear predictor, same shape: `link`, but finite where there is no optimum (see `has_optimum`).
        """
        return self.link(mean)

    @by_element
    def has_optimum(self, mean: Array) -> Array:
        """Tell whether a model without features has an optimum.

        Parameters
        ----------
        mean : array
            Mean response.

        Returns
        -------
        array of bool
            False where the loss falls for ever as eta goes to infinity on one side, as without any spike; same shape.
        """
        return namespace(mean).isfinite(mean)

    @by_element
    def saturated_loss(self, y: Array) -> Array:
        """Compute the smallest loss a response can have, min over eta of phi(eta; y).

        Parameters
        ----------
        y : array
            Responses.

        Returns
        -------
        array
            Loss in nats, same shape.
        """
        return self.loss(y, self.intercept(y))

    @by_element
    def deviance(self, y: Array, eta: Array) -> Array:
        """Compute the unit deviance 2 (phi(eta; y) - min phi(.; y)).

        Parameters
        ----------
        y, eta : array
            As in `loss`.

        Returns
        -------
        array
            Deviance >= 0 in nats, broadcast shape.
        """
        excess = self.loss(y, eta) - self.saturated_loss(y)  # what is below 0 is rounding
        return 2.0 * namespace(eta).maximum(excess, 0.0)

    def spread_constant(self, sum_of_squares: float) -> float:
        """Compute what the misfits of responses add up to beyond those of their means.

        Parameters
        ----------
        sum_of_squares : float
            Sum of squared differences between responses and their means.

        Returns
        -------
        float
            0 unless the misfit has a term that is quadratic in y.
        """
        return 0.0

    @abc.abstractmethod
    def log_likelihood(self, y: Array, eta: Array) -> Array:
        """Compute the log-probability (or its density) of a response: the negative loss and its constant.

        Parameters
        ----------
        y, eta : array
            As in `loss`.

        Returns
        -------
        array
            Log-likelihood in nats, broadcast shape.
        """

    @abc.abstractmethod
    def sample(self, key: jax.Array, eta: Array, dtype: Any = None) -> jax.Array:
        """Draw responses.

        Parameters
        ----------
        key : jax.Array
            PRNG key (threefry, the default of JAX).
        eta : array
            Linear predictor, any shape.
        dtype : dtype, optional
            Of the responses; that of `eta` by default, so that they can go straight into a loss.

        Returns
        -------
        jax.Array
            Independent responses, same shape.
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
