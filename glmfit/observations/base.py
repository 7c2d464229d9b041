"""Base class of observation models: the loss of one response as a function of its linear predictor."""

import abc
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from glmfit.numerics import Array, Nonzero, elementwise, exp, exponent_limit, namespace

# Methods that are not formulas.
_WHOLE = "sample", "wrong", "spread_constant", "quantile", "cdf", "draw", "evaluate_into"


def by_element(formula: Callable) -> Callable:
    """Let a formula for arrays of one namespace and dtype take all that `elementwise` takes; None is omitted."""
    signature = inspect.signature(formula)

    @functools.wraps(formula)
    def method(self, *args, **kwargs):
        if not kwargs and all(value is not None for value in args):
            return elementwise(lambda *a: formula(self, *a), *args)
        values = signature.bind(self, *args, **kwargs).arguments
        given = [name for name, value in values.items() if name != "self" and value is not None]
        return elementwise(lambda *a: formula(self, **dict(zip(given, a))), *(values[name] for name in given))

    return method


class Observation(eqx.Module):
    """Observation model: a family of convex losses phi(eta; y) of a response y at a linear predictor eta.

    The loss is a negative log-likelihood without the terms that do not depend on eta, and linear in y. So the mean loss
    of many responses at one eta is the loss of their mean, and `intercept` of that mean is its optimum.

    An instance has no data: two instances of a class are equal and have the same hash, so it can be a static
    argument of `jax.jit`. The `dispersion`, if the model has one, is a number, or an array with one for each column,
    (neuron,): such an instance can be evaluated, but is not a static argument.

    Attributes
    ----------
    name : str
        Name that users give.
    constant : float or None
        Constant of generalised self-concordance: ``|phi'''| <= constant phi''`` for all eta and all y allowed. None if
        no such number is known: then no gap is bounded.
    has_scale : bool
        Whether the dispersion is a scale of the loss: the log-likelihood is minus the loss over it, and a constant.
    takes_exposure : bool
        Whether a response may be the sum over an exposure (of a bin, or trials), whose mean response has this loss.
    counts : bool
        Whether responses are counts of events, without a limit.
    skips_zeros : bool
        Whether `evaluate_into` takes less time if it knows which responses are not 0.
    neutral : float
        Placeholder for responses that do not count: a value that the model allows.

    Notes
    -----
    The arguments of all methods are responses y, linear predictors eta and expected responses `mean`: numbers, NumPy
    arrays (for which methods compute with NumPy) or JAX arrays. Methods work element by element and broadcast; the
    result has the broadcast shape and the dtype of eta, and float32 is never promoted. Losses are in nats.

    A model defines `loss`, `derivative`, `curvature`, `curvature_bound`, `mean`, `variance`, `link`, `log_likelihood`,
    `quantile` and `cdf` (or the `_law` of both), `sample` and `wrong`, and others for which it has better formulas:
    `curvature_slope` by differences is too rough for single precision. Its public methods except the last four are
    formulas: their arguments have been brought to one namespace (`namespace(eta)`) and one floating dtype, and only
    arguments that are None are omitted.
    """

    name: eqx.AbstractClassVar[str]
    constant: eqx.AbstractClassVar[float | None]
    has_scale: ClassVar[bool] = False
    takes_exposure: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    skips_zeros: ClassVar[bool] = False
    neutral: ClassVar[float] = 0.0

    __getattribute__ = object.__getattribute__  # Equinox makes a module of every method that is looked up: too slow

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for name, value in list(vars(cls).items()):
            if inspect.isfunction(value) and not name.startswith("_") and name not in _WHOLE:
                setattr(cls, name, by_element(value))

    @property
    def is_quadratic(self) -> bool:
        """Whether the loss is a quadratic of eta, so that a fit with a ridge is a system of linear equations."""
        return self.constant == 0

    # ---------------------------------------------------------------- loss

    @abc.abstractmethod
    def loss(self, y: Array, eta: Array) -> Array:
        """Compute phi(eta; y)."""

    @abc.abstractmethod
    def derivative(self, y: Array, eta: Array) -> Array:
        """Compute phi'(eta; y), the derivative of the loss with respect to eta."""

    @abc.abstractmethod
    def curvature(self, y: Array, eta: Array) -> Array:
        """Compute phi''(eta; y) >= 0, the second derivative of the loss with respect to eta."""

    def curvature_slope(self, y: Array, eta: Array) -> Array:
        """Compute phi'''(eta; y), the third derivative of the loss: by differences unless a class overrides it."""
        step = float(np.finfo(eta.dtype).eps) ** (1 / 3)
        return (self.curvature(y, eta + step) - self.curvature(y, eta - step)) / (2 * step)

    def loss_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        """Compute the loss and its derivative together, sharing their work."""
        return self.loss(y, eta), self.derivative(y, eta)

    def misfit_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        """Compute the loss, plus a term in y alone if that avoids cancellation in a good fit, and its derivative."""
        return self.loss_and_derivative(y, eta)

    def derivatives(self, y: Array, eta: Array) -> tuple[Array, Array]:
        """Compute the derivative and the curvature of the loss together; compiled, they share their work."""
        return self.derivative(y, eta), self.curvature(y, eta)

    def evaluate_into(
        self, y: np.ndarray | None, eta: np.ndarray, slope: np.ndarray, bend: np.ndarray | None = None,
        loss: np.ndarray | None = None, spikes: Nonzero | None = None,
    ) -> None:  # fmt: skip
        """Write `derivatives` and `loss` to arrays, contiguous NumPy arrays of one shape and dtype; bend may be single.

        Models that skip zeros are given the responses that are not 0, if they are few, and may be given no others.
        """
        formulas = type(self)
        if loss is None:
            slope[...] = inspect.unwrap(formulas.derivative)(self, y, eta)
        else:
            loss[...], slope[...] = inspect.unwrap(formulas.loss_and_derivative)(self, y, eta)
        if bend is not None:
            bend[...] = inspect.unwrap(formulas.curvature)(self, y, eta)

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
            A number >= the supremum of phi'' over the interval, rounding included; inf if that is infinite.

        Notes
        -----
        Guaranteed: the formula is an upper bound, inflated by 16 machine epsilons of the dtype, more than the
        errors of the evaluation. The classes state how tight it is.
        """

    # ---------------------------------------------------------------- responses

    def with_dispersion(self, dispersion: Any) -> Self:
        """Return this model at a dispersion, a number or one of each column; itself if it has none."""
        return type(self)(dispersion) if hasattr(self, "dispersion") else self

    def _of(self, eta: Array) -> Array:
        """Return the dispersion in a shape that broadcasts with linear predictors."""
        value = namespace(eta).asarray(self.dispersion, dtype=eta.dtype)
        return value.reshape((1,) * (eta.ndim - value.ndim) + value.shape) if value.ndim else value

    @by_element
    def recession(self, y: Array) -> Array:
        """Tell in which direction the loss of a response never rises: -1 down, 1 up, 0 if it rises in both.

        If some change of the coefficients moves no row's predictor in another direction, there is no optimum.
        """
        return 0.0 * y

    @abc.abstractmethod
    def variance(self, eta: Array) -> Array:
        """Compute the variance of a response."""

    @abc.abstractmethod
    def mean(self, eta: Array) -> Array:
        """Compute the expected response, the inverse link."""

    def mean_and_variance(self, eta: Array) -> tuple[Array, Array]:
        """Compute both, sharing their work."""
        return self.mean(eta), self.variance(eta)

    @abc.abstractmethod
    def link(self, mean: Array) -> Array:
        """Compute the eta of an expected response; infinite where only the limit has that mean."""

    def intercept(self, mean: Array, weight: Array | None = None) -> Array:
        """Compute the optimum of a model without features.

        Parameters
        ----------
        mean : array
            Mean response.
        weight : array, optional
            Number of responses, > 0. With it a mean at the end of its range (no spike, all or none) is moved as if half
            a response more or less had been observed.

        Returns
        -------
        array
            Linear predictor: `link`, but finite where there is no optimum (see `has_optimum`).
        """
        return self.link(mean)

    @by_element
    def has_optimum(self, mean: Array) -> Array:
        """Tell whether a model without features has an optimum, from the mean response.

        Without any spike, for example, it has none: the loss keeps falling as eta goes to infinity on one side.
        """
        return namespace(mean).isfinite(mean)

    def exact_mean(self, mean: np.ndarray, room: Callable[[], np.ndarray]) -> np.ndarray:
        """Return mean responses, exactly 1 where all are, which the rounding of weighted sums may hide.

        ``room`` computes means of ``1 - y``.
        """
        if self.has_optimum(np.ones(())):
            return mean
        return np.where(room() == 0, 1.0, np.minimum(mean, np.nextafter(1.0, 0.0)))

    @by_element
    def saturated_loss(self, y: Array) -> Array:
        """Compute the smallest loss a response can have, min over eta of phi(eta; y)."""
        return self.loss(y, self.intercept(y))

    @by_element
    def deviance(self, y: Array, eta: Array) -> Array:
        """Compute the unit deviance 2 (phi(eta; y) - min phi(.; y)) >= 0."""
        excess = self.loss(y, eta) - self.saturated_loss(y)  # negative values are rounding
        return 2.0 * namespace(eta).maximum(excess, 0.0)

    def spread_constant(self, sum_of_squares: float) -> float:
        """Compute the summed misfits of responses minus those of their means, given the sum of squared differences.

        It is 0 unless the misfit has a term that is quadratic in y.
        """
        return 0.0

    @abc.abstractmethod
    def log_likelihood(self, y: Array, eta: Array) -> Array:
        """Compute the log-probability (or its density) of a response: the negative loss and its constant."""

    def total_log_likelihood(self, y: Array, eta: Array, exposure: Array) -> Array:
        """Compute the log-probability of a response over an exposure, which is 1 for models that take none."""
        return self.log_likelihood(y, eta)

    def _law(self, eta: np.ndarray, exposure: Any) -> tuple:
        """Return the distribution of the response over an exposure in `scipy.stats`, and its parameters."""
        raise NotImplementedError(f"{type(self).__name__} defines neither _law nor quantile and cdf")

    def quantile(self, level: Any, eta: np.ndarray, exposure: Any = 1.0) -> np.ndarray:
        """Compute quantiles of the response over an exposure, with SciPy; levels and eta broadcast."""
        law, *parameters = self._law(eta, exposure)
        return law.ppf(level, *parameters)

    def cdf(self, y: Any, eta: np.ndarray, exposure: Any = 1.0) -> np.ndarray:
        """Compute the probability of a response of at most y over an exposure, with SciPy; all broadcast."""
        law, *parameters = self._law(eta, exposure)
        return law.cdf(y, *parameters)

    @abc.abstractmethod
    def sample(self, key: jax.Array, eta: Array, dtype: Any = None) -> jax.Array:
        """Draw independent responses, of the shape of eta.

        Parameters
        ----------
        key : jax.Array
            PRNG key (threefry, the default of JAX).
        eta : array
            Linear predictor.
        dtype : dtype, optional
            Dtype of the responses; by default that of `eta`, so that they can be passed directly to a loss.

        Returns
        -------
        jax.Array
        """

    def draw(self, key: jax.Array, eta: np.ndarray, exposure: Any = 1.0) -> np.ndarray:
        """Draw responses over an exposure, float64: `sample` in single precision."""
        return np.asarray(self.sample(key, np.asarray(eta, np.float32)), np.float64)

    @abc.abstractmethod
    def wrong(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Find responses, all finite, that the loss cannot take.

        Returns
        -------
        wrong : numpy.ndarray of bool
            Mask of these responses.
        needs : str
            Allowed values, for an error message.
        """


class LogLink(Observation):
    """Models of mean e^eta."""

    def mean(self, eta: Array) -> Array:
        return exp(eta)

    def link(self, mean: Array) -> Array:
        return namespace(mean).log(mean)


class Counts(Observation):
    """Models of counts, whose rate is 0 in the limit only."""

    counts: ClassVar[bool] = True

    def intercept(self, mean: Array, weight: Array | None = None) -> Array:
        """Compute the eta whose rate is a mean count per bin >= 0; see `Observation.intercept`.

        It is never -inf: the mean is raised to e^-43 (float32), e^-354 (float64), or with the number of bins as weight
        to half a count over all of them.
        """
        least = float(np.exp(-exponent_limit(mean.dtype))) if weight is None else 0.5 / weight
        return self.link(namespace(mean).maximum(mean, least))

    def has_optimum(self, mean: Array) -> Array:
        return mean > 0.0

    def recession(self, y: Array) -> Array:
        return -1.0 * (y == 0.0)

    def wrong(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        return y < 0, "counts >= 0"


class RowLoss(abc.ABC):
    """Loss of one row, known by its value alone, as a function of its linear predictor of all outputs, in JAX.

    Unlike an `Observation` it guarantees nothing about its curvature: derivatives come from automatic
    differentiation, and results based on them are estimates. A subclass must be hashable and equal to every
    instance that computes the same, so that it can be a static argument of `jax.jit`.
    """

    n_coupled: int = 1  # columns in consecutive sets of this size share a loss, such as the classes of a softmax

    @abc.abstractmethod
    def total(self, y: Array, eta: Array, weight: Array) -> jax.Array:
        """Sum the losses of rows, targets (row, target) and predictors (row, column), with weights (row, 1)."""

    def derivative(self, y: Array, eta: Array) -> jax.Array:
        """Compute the gradient of every row's loss in its linear predictor, (row, column)."""
        ones = jnp.ones((eta.shape[0], 1), eta.dtype)
        return jax.grad(lambda e: self.total(y, e, ones))(eta)
