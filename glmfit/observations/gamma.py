"""Positive values, such as calcium transients, with a logarithmic link."""

from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from glmfit.numerics import Array, exp, gammaln, namespace, round_up
from glmfit.observations.base import LogLink


@final
class Gamma(LogLink):
    """Values y > 0 of mean e^eta and variance `dispersion` times e^2eta.

    The formulas of the loss, in units of the dispersion, are::

        phi   = y e^-eta + eta
        phi'  = 1 - y e^-eta
        phi'' = y e^-eta

    Notes
    -----
    ``|phi'''| = phi''``: generalised self-concordance, constant 1. The curvature has no bound over all eta; on an
    interval it is exactly y e^-lower.
    """

    name: ClassVar[str] = "gamma"
    constant: ClassVar[float | None] = 1.0
    has_scale: ClassVar[bool] = True
    neutral: ClassVar[float] = 1.0
    dispersion: Any = 1.0

    def loss(self, y: Array, eta: Array) -> Array:
        return y * exp(-eta) + eta

    def derivative(self, y: Array, eta: Array) -> Array:
        return 1.0 - y * exp(-eta)

    def curvature(self, y: Array, eta: Array) -> Array:
        return y * exp(-eta)

    def evaluate_into(self, y, eta, slope, bend=None, loss=None, spikes=None) -> None:
        np.negative(eta, out=slope)
        np.exp(slope, out=slope)
        slope *= y
        if bend is not None:
            bend[...] = slope
        if loss is not None:
            np.add(slope, eta, out=loss)
        np.subtract(1, slope, out=slope)

    def curvature_slope(self, y: Array, eta: Array) -> Array:
        return -(y * exp(-eta))

    def curvature_bound(self, y: Array, lower: Array | None = None, upper: Array | None = None) -> Array:
        xp = namespace(y)
        bound = xp.full_like(y, np.inf) if lower is None else round_up(y * exp(-lower))
        return bound if upper is None else xp.broadcast_arrays(bound, upper)[0]

    def has_optimum(self, mean: Array) -> Array:
        return mean > 0.0

    def saturated_loss(self, y: Array) -> Array:
        return 1.0 + namespace(y).log(y)

    def deviance(self, y: Array, eta: Array) -> Array:
        ratio = y * exp(-eta)
        return 2.0 * (ratio - 1.0 - namespace(eta).log(ratio))

    def variance(self, eta: Array) -> Array:
        return self._of(eta) * exp(2.0 * eta)

    def log_likelihood(self, y: Array, eta: Array) -> Array:
        xp, shape = namespace(eta), 1.0 / self._of(eta)
        return shape * (xp.log(shape) - self.loss(y, eta)) + (shape - 1.0) * xp.log(y) - gammaln(shape)

    def sample(self, key: jax.Array, eta: Array, dtype: Any = None) -> jax.Array:
        eta = jnp.asarray(eta)
        shape = jnp.broadcast_to(1.0 / self._of(eta), eta.shape)
        drawn = jax.random.gamma(key, shape, eta.shape, eta.dtype) * self.mean(eta) / shape
        drawn = jnp.maximum(drawn, jnp.finfo(eta.dtype).tiny)  # 0 is outside of this distribution
        return drawn.astype(eta.dtype if dtype is None else dtype)

    def _law(self, eta: np.ndarray, exposure: Any) -> tuple:
        from scipy.stats import gamma

        return gamma, 1.0 / self._of(eta), 0.0, np.exp(eta) * self._of(eta)

    def wrong(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        return y <= 0, "values > 0"
