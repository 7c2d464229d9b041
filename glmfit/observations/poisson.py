"""Poisson counts with a softplus or an exponential inverse link."""

from typing import ClassVar, final

import numpy as np

from glmfit._numerics import (
    A_STAR,
    C_STAR,
    exp,
    log_softplus,
    namespace,
    round_up,
    softplus_curvature_slope,
    softplus_parts,
)
from glmfit._types import Array
from glmfit.observations.base import Observation


@final
class PoissonSoftplus(Observation):
    """Poisson counts with rate f(eta) = log(1 + e^eta).

    With s = sigmoid(eta), r = s/f and h = r (r - (1 - s))::

        phi   = f - y log f
        phi'  = s - y r
        phi'' = s (1 - s) + y h,    0 <= s (1 - s) <= 1/4,    0 <= h <= c* = 0.16709557...

    Notes
    -----
    Guarantee: phi'' <= 1/4 + c* y for all eta, within 1.31 % of the true maximum (worst at y = 1.72). On an
    interval both summands take their largest value at its point nearest to their peak (0 and 0.49498...),
    and the bound is the sum of the two: within 1.31 % again.
    Everything is finite for ``|eta| <= 1e4`` in float32, gradients by autodiff included.
    """

    name: ClassVar[str] = "softplus"

    def _rate(self, eta: Array) -> Array:
        return softplus_parts(eta).f

    def _log_rate(self, eta: Array) -> Array:
        return log_softplus(eta, softplus_parts(eta))

    def _derivative(self, y: Array, eta: Array) -> Array:
        parts = softplus_parts(eta)
        return parts.s - y * parts.r

    def _loss_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        parts = softplus_parts(eta)
        return parts.f - y * log_softplus(eta, parts), parts.s - y * parts.r

    def _curvature(self, y: Array, eta: Array) -> Array:
        parts = softplus_parts(eta)
        return parts.s * parts.q + y * softplus_curvature_slope(parts)

    def _curvature_bound(self, y: Array, lower: Array, upper: Array) -> Array:
        xp = namespace(y, lower, upper)
        at_0, at_star = (softplus_parts(xp.minimum(xp.maximum(lower, peak), upper)) for peak in (0.0, A_STAR))
        return round_up(at_0.s * at_0.q + y * softplus_curvature_slope(at_star))

    def _global_curvature_bound(self, y: Array) -> Array:
        return round_up(0.25 + C_STAR * y)

    def _link(self, rate: Array) -> Array:
        xp = namespace(rate)
        return rate + xp.log(-xp.expm1(-rate))


@final
class PoissonExp(Observation):
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

    def _rate(self, eta: Array) -> Array:
        return exp(eta)

    def _log_rate(self, eta: Array) -> Array:
        return eta

    def _derivative(self, y: Array, eta: Array) -> Array:
        return exp(eta) - y

    def _loss_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        rate = exp(eta)
        return rate - y * eta, rate - y

    def _curvature(self, y: Array, eta: Array) -> Array:
        return _broadcast(exp(eta), y)

    def _curvature_bound(self, y: Array, lower: Array, upper: Array) -> Array:
        return _broadcast(round_up(exp(upper)), y, lower)

    def _global_curvature_bound(self, y: Array) -> Array:
        return namespace(y).full_like(y, float("inf"))

    def _link(self, rate: Array) -> Array:
        return namespace(rate).log(rate)


def _broadcast(value: Array, *others: Array) -> Array:
    """Value, in the shape it has together with arrays it does not depend on."""
    return namespace(value).broadcast_to(value, np.broadcast_shapes(value.shape, *(o.shape for o in others)))
