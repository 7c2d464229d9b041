"""An observation model that the package does not have, as a user writes it: gamma responses."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from glmfit.numerics import exp, gammaln, namespace, round_up
from glmfit.observations import Observation

SHAPE = 2.0


class Gamma(Observation):
    """Values > 0 of mean e^eta and variance e^2eta / SHAPE: phi = y e^-eta + eta, and |phi'''| = phi''."""

    name: ClassVar[str] = "gamma"
    constant: ClassVar[float | None] = 1.0

    def loss(self, y, eta):
        return y * exp(-eta) + eta

    def derivative(self, y, eta):
        return 1.0 - y * exp(-eta)

    def curvature(self, y, eta):
        return y * exp(-eta)

    def curvature_bound(self, y, lower=None, upper=None):
        xp = namespace(y)
        bound = xp.full_like(y, np.inf) if lower is None else round_up(y * exp(-lower))
        return bound if upper is None else xp.broadcast_arrays(bound, upper)[0]

    def mean(self, eta):
        return exp(eta)

    def link(self, mean):
        return namespace(mean).log(mean)

    def log_likelihood(self, y, eta):
        constant = SHAPE * np.log(SHAPE) - float(gammaln(np.asarray(SHAPE)))
        return constant + (SHAPE - 1.0) * namespace(y).log(y) - SHAPE * self.loss(y, eta)

    def sample(self, key, eta, dtype=None):
        eta = jnp.asarray(eta)
        drawn = jax.random.gamma(key, SHAPE, eta.shape, eta.dtype) * self.mean(eta) / SHAPE
        return drawn if dtype is None else drawn.astype(dtype)

    def wrong(self, y):
        return y <= 0, "values > 0"
