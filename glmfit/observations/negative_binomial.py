"""Counts that vary more than Poisson counts: the negative binomial distribution with a logarithmic link."""

from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from glmfit.numerics import Array, exp, gammaln, log_factorial, namespace, nearest, round_up, write_odds, write_softplus
from glmfit.observations.base import Counts, LogLink
from glmfit.threads import scratch


@final
class NegativeBinomial(LogLink, Counts):
    """Counts of mean mu = e^eta and variance mu + `dispersion` mu^2 (NB2).

    With r = 1 / dispersion and p = mu / (mu + r) the formulas are::

        phi   = (y + r) log(1 + mu / r) - y eta
        phi'  = (y + r) p - y
        phi'' = (y + r) p (1 - p)

    Notes
    -----
    ``|phi'''| = |1 - 2p| phi'' <= phi''``: generalised self-concordance, constant 1. On an interval the curvature is
    largest at its point nearest to log r, so the bound is exact; over all eta it is (y + r) / 4. As the dispersion goes
    to 0 all of them become those of `PoissonExp`.

    At a known dispersion the loss is that of y successes in y + r trials with the log-odds eta - log r. It is fitted in
    this form (docs/theory/observation_models.md).
    """

    name: ClassVar[str] = "negative-binomial"
    constant: ClassVar[float | None] = 1.0
    dispersion: Any = 1.0

    def _share(self, eta: Array) -> tuple[Array, Array]:
        """Return p and 1 - p."""
        xp = namespace(eta)
        z = eta + xp.log(self._of(eta))
        small = exp(-abs(z))
        big = 1.0 / (1.0 + small)
        return xp.where(z > 0.0, big, small * big), xp.where(z > 0.0, small * big, big)

    def loss(self, y: Array, eta: Array) -> Array:
        xp, r = namespace(eta), 1.0 / self._of(eta)
        z = eta - xp.log(r)
        return (y + r) * (xp.maximum(z, 0.0) + xp.log1p(exp(-abs(z)))) - y * eta

    def derivative(self, y: Array, eta: Array) -> Array:
        p, q = self._share(eta)
        return p / self._of(eta) - y * q

    def evaluate_into(self, y, eta, slope, bend=None, loss=None, spikes=None) -> None:
        z, q, w = (scratch(eta.shape, eta.dtype, name) for name in ("z", "q", "w"))
        dispersion = self._of(eta)
        r = 1 / dispersion
        np.add(eta, np.log(dispersion), out=z)
        write_odds(z, slope, q)
        np.add(y, r, out=w)
        if loss is not None:
            write_softplus(z, slope, q, loss)
            loss *= w
            np.multiply(y, eta, out=z)
            loss -= z
        slope *= q
        if bend is not None:
            w *= slope
            np.multiply(w, q, out=bend)
        slope *= r
        q *= y
        slope -= q

    def curvature(self, y: Array, eta: Array) -> Array:
        p, q = self._share(eta)
        return (y + 1.0 / self._of(eta)) * p * q

    def curvature_slope(self, y: Array, eta: Array) -> Array:
        p, q = self._share(eta)
        return (y + 1.0 / self._of(eta)) * p * q * (q - p)

    def curvature_bound(self, y: Array, lower: Array | None = None, upper: Array | None = None) -> Array:
        xp = namespace(y)
        peak = -xp.log(self._of(y))
        at = nearest(peak, lower, upper)
        at = xp.broadcast_arrays(xp.asarray(at, dtype=y.dtype), y)[0]
        p, q = self._share(at)
        return round_up((y + 1.0 / self._of(y)) * p * q * (1.0 + 4.0 * float(jnp.finfo(y.dtype).eps)))

    def saturated_loss(self, y: Array) -> Array:
        xp, r = namespace(y), 1.0 / self._of(y)
        return (y + r) * xp.log1p(y / r) - y * xp.log(xp.where(y > 0.0, y, 1.0))

    def variance(self, eta: Array) -> Array:
        mu = exp(eta)
        return mu + self._of(eta) * mu * mu

    def log_likelihood(self, y: Array, eta: Array) -> Array:
        r = 1.0 / self._of(eta)
        xp = namespace(eta)
        return gammaln(y + r) - gammaln(r) - log_factorial(y) - y * xp.log(r) - self.loss(y, eta)

    def sample(self, key: jax.Array, eta: Array, dtype: Any = None) -> jax.Array:
        """Draw a rate of a gamma distribution, and a count of that rate; see `Observation.sample`."""
        eta = jnp.asarray(eta)
        of_rate, of_count = jax.random.split(key)
        r = jnp.broadcast_to(1.0 / self._of(eta), eta.shape)
        rate = jax.random.gamma(of_rate, r, eta.shape, eta.dtype) * self.mean(eta) / r
        counts = jax.random.poisson(of_count, jnp.minimum(rate, 2.0**30)).astype(eta.dtype)
        return counts.astype(eta.dtype if dtype is None else dtype)

    def _law(self, eta: np.ndarray, exposure: Any) -> tuple:
        from scipy.stats import nbinom

        r = 1.0 / self._of(eta)
        return nbinom, r, r / (r + np.exp(eta))
