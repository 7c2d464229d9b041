"""Measured values with normal errors."""

from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from glmfit.numerics import Array, namespace
from glmfit.observations.base import Observation


@final
class Gaussian(Observation):
    """Measured values y of mean eta and variance `dispersion`: ``phi = eta^2 / 2 - y eta``, in units of the variance.

    Notes
    -----
    The curvature is 1 everywhere: generalised self-concordance with the constant 0.
    """

    name: ClassVar[str] = "squared"
    constant: ClassVar[float | None] = 0.0
    has_scale: ClassVar[bool] = True
    dispersion: Any = 1.0

    def loss(self, y: Array, eta: Array) -> Array:
        return eta * (0.5 * eta - y)

    def derivative(self, y: Array, eta: Array) -> Array:
        return eta - y

    def curvature(self, y: Array, eta: Array) -> Array:
        return 1.0 + 0.0 * eta + 0.0 * y

    def curvature_slope(self, y: Array, eta: Array) -> Array:
        return 0.0 * eta + 0.0 * y

    def curvature_bound(self, y: Array, lower: Array | None = None, upper: Array | None = None) -> Array:
        shapes = (a.shape for a in (y, lower, upper) if a is not None)
        return namespace(y).ones(np.broadcast_shapes(*shapes), y.dtype)

    def mean(self, eta: Array) -> Array:
        return eta

    def link(self, mean: Array) -> Array:
        return mean

    def saturated_loss(self, y: Array) -> Array:
        return -0.5 * y * y

    def deviance(self, y: Array, eta: Array) -> Array:
        return (eta - y) ** 2

    def misfit_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        return 0.5 * (eta - y) ** 2, eta - y

    def spread_constant(self, sum_of_squares: float) -> float:
        return sum_of_squares / 2

    def variance(self, eta: Array) -> Array:
        return self._of(eta) + 0.0 * eta

    def log_likelihood(self, y: Array, eta: Array) -> Array:
        xp, variance = namespace(eta), self._of(eta)
        return -0.5 * ((eta - y) ** 2 / variance + xp.log(variance) + float(np.log(2.0 * np.pi)))

    def sample(self, key: jax.Array, eta: Array, dtype: Any = None) -> jax.Array:
        eta = jnp.asarray(eta)
        drawn = eta + jnp.sqrt(self._of(eta)) * jax.random.normal(key, eta.shape, eta.dtype)
        return drawn.astype(eta.dtype if dtype is None else dtype)

    def draw(self, key: jax.Array, eta: np.ndarray, exposure: Any = 1.0) -> np.ndarray:
        return eta + super().draw(key, np.zeros_like(eta))  # single precision is not enough for large means

    def _law(self, eta: np.ndarray, exposure: Any) -> tuple:
        from scipy.stats import norm

        return norm, eta, np.sqrt(self._of(eta))

    def wrong(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        return np.zeros(np.shape(y), bool), "finite numbers"
