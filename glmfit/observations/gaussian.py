"""Measured values with normal errors of variance one."""

from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from glmfit.numerics import Array, namespace
from glmfit.observations.base import Observation


@final
class Gaussian(Observation):
    """Measured values y of mean eta and variance 1: ``phi = eta^2 / 2 - y eta``, the misfit ``(y - eta)^2 / 2``.

    Notes
    -----
    The curvature is 1 everywhere: generalised self-concordance with the constant 0.
    """

    name: ClassVar[str] = "squared"
    constant: ClassVar[float | None] = 0.0

    def loss(self, y: Array, eta: Array) -> Array:
        return eta * (0.5 * eta - y)

    def derivative(self, y: Array, eta: Array) -> Array:
        return eta - y

    def curvature(self, y: Array, eta: Array) -> Array:
        return 1.0 + 0.0 * eta + 0.0 * y

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

    def log_likelihood(self, y: Array, eta: Array) -> Array:
        return -0.5 * ((eta - y) ** 2 + float(np.log(2.0 * np.pi)))

    def sample(self, key: jax.Array, eta: Array, dtype: Any = None) -> jax.Array:
        eta = jnp.asarray(eta)
        return (eta + jax.random.normal(key, eta.shape, eta.dtype)).astype(eta.dtype if dtype is None else dtype)

    def wrong(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        return np.zeros(np.shape(y), bool), "finite numbers"
