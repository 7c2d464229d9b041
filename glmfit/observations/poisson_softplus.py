"""Poisson counts with the softplus as inverse link: formulas, and how NumPy computes them in few passes."""

from typing import ClassVar, final

import numpy as np

from glmfit.numerics import (
    A_STAR,
    C_STAR,
    Array,
    exponent_limit,
    namespace,
    nearest,
    round_up,
    softplus_parts,
    write_missing,
    write_odds,
    write_softplus,
)
from glmfit.observations.poisson import Poisson
from glmfit.threads import scratch

_ENTRIES = 1 << 17  # numbers at a time, which stay in the cache


@final
class PoissonSoftplus(Poisson):
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
    skips_zeros: ClassVar[bool] = True

    def mean(self, eta: Array) -> Array:
        return softplus_parts(eta).f

    def log_rate(self, eta: Array) -> Array:
        return softplus_parts(eta).log_f

    def loss_and_derivative(self, y: Array, eta: Array) -> tuple[Array, Array]:
        parts = softplus_parts(eta)
        return parts.f - y * parts.log_f, parts.s - y * parts.r

    def derivative(self, y: Array, eta: Array) -> Array:
        parts = softplus_parts(eta)
        return parts.s - y * parts.r

    def curvature(self, y: Array, eta: Array) -> Array:
        parts = softplus_parts(eta)
        return parts.s * parts.q + y * parts.h

    def curvature_slope(self, y: Array, eta: Array) -> Array:
        parts = softplus_parts(eta)
        s, q, r = parts.s, parts.q, parts.r
        return s * q * (q - s) + y * r * (s * q - (r - q) * (2 * r - q))

    def evaluate_into(self, y, eta, slope, bend=None, loss=None, spikes=None) -> None:
        arrays = [None if a is None else a.reshape(-1) for a in (eta, slope, bend, loss)]
        y = None if spikes is not None else y.reshape(-1)
        for start in range(0, eta.size, _ENTRIES):
            some = slice(start, start + _ENTRIES)
            a, *results = (None if a is None else a[some] for a in arrays)
            u, q = (scratch(a.shape, a.dtype, name) for name in ("u", "q"))
            f = scratch(a.shape, a.dtype, "f") if spikes is None else None
            _write_silence(a, u, q, f, *results)
            if spikes is None:
                _respond(y[some], a, u, f, *results)
        if spikes is not None and len(spikes.at):
            a, *found = (None if a is None else np.take(a, spikes.at) for a in arrays)
            parts = softplus_parts(a)
            _respond(spikes.values, a, parts.u, parts.f, *found)
            for result, values in zip(arrays[1:], found, strict=True):
                if result is not None:
                    result[spikes.at] = values

    def curvature_bound(self, y: Array, lower: Array | None = None, upper: Array | None = None) -> Array:
        if lower is None and upper is None:
            return round_up(0.25 + C_STAR * y)
        at_0, at_star = (softplus_parts(nearest(peak, lower, upper)) for peak in (0.0, A_STAR))
        return round_up(at_0.s * at_0.q + y * at_star.h)

    def link(self, mean: Array) -> Array:
        xp = namespace(mean)
        return mean + xp.log(-xp.expm1(-mean))


def _write_silence(a: np.ndarray, u, q, f, slope, bend, loss) -> None:
    """Write derivatives, rate f and loss of bins without spikes, as far as they are wanted, from u and q on."""
    write_odds(a, u, q)
    if f is not None:
        write_softplus(a, u, q, f)
    if loss is not None and f is None:
        write_softplus(a, u, q, loss)
    elif loss is not None:
        loss[...] = f
    np.multiply(u, q, out=slope)  # s
    if bend is not None:
        np.multiply(slope, q, out=bend)


def _respond(y: np.ndarray, a, u, f, slope, bend, loss) -> None:
    """Add what responses y contribute, as far as it is wanted."""
    r, q, m = (scratch(a.shape, a.dtype, name) for name in ("ratio", "of_y", "missing"))
    np.divide(slope, f, out=r)
    np.multiply(y, r, out=q)
    slope -= q
    if bend is not None:
        q *= r
        write_missing(u, f, r, m, bend.dtype)
        q *= m
        bend += q
    if loss is not None:
        np.log(f, out=r)
        limit = exponent_limit(a.dtype)
        if (a < -limit).any():  # there log f is a itself
            r += np.minimum(a + a.dtype.type(limit), 0)
        r *= y
        loss -= r
