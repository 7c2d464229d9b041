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

    def derivatives(self, y: Array, eta: Array) -> tuple[Array, Array]:
        parts = softplus_parts(eta)
        return parts.s - y * parts.r, parts.s * parts.q + y * parts.h

    def evaluate_into(self, y, eta, slope, bend=None, loss=None, spikes=None) -> None:
        arrays = [None if a is None else a.reshape(-1) for a in (y, eta, slope, bend, loss)]
        if spikes is None:
            for start in range(0, eta.size, _ENTRIES):
                _write(*(None if a is None else a[start : start + _ENTRIES] for a in arrays))
            return
        y, eta, *results = arrays
        for start in range(0, eta.size, _ENTRIES):
            some = slice(start, start + _ENTRIES)
            _write_silence(eta[some], *(None if a is None else a[some] for a in results))
        some = np.take(y, spikes), np.take(eta, spikes)
        found = [None if a is None else np.empty(len(spikes), a.dtype) for a in results]
        _write(*some, *found)
        for result, value in zip(results, found, strict=True):
            if result is not None:
                result[spikes] = value

    def curvature_bound(self, y: Array, lower: Array | None = None, upper: Array | None = None) -> Array:
        if lower is None and upper is None:
            return round_up(0.25 + C_STAR * y)
        at_0, at_star = (softplus_parts(nearest(peak, lower, upper)) for peak in (0.0, A_STAR))
        return round_up(at_0.s * at_0.q + y * at_star.h)

    def link(self, mean: Array) -> Array:
        xp = namespace(mean)
        return mean + xp.log(-xp.expm1(-mean))


def _write_silence(a: np.ndarray, slope, bend, loss) -> None:
    """Write derivatives, and if wanted the loss, of bins without spikes."""
    u, q = (scratch(a.shape, a.dtype, name) for name in ("u", "q"))
    write_odds(a, u, q)
    if loss is not None:
        write_softplus(a, u, q, loss)
    np.multiply(u, q, out=slope)  # s
    if bend is not None:
        np.multiply(slope, q, out=bend)


def _write(y: np.ndarray, a: np.ndarray, slope, bend, loss) -> None:
    """Write derivatives, and if wanted the loss, of responses, all in memory that is used again."""
    u, q, f, w, m = (scratch(a.shape, a.dtype, name) for name in ("u", "q", "f", "w", "m"))
    write_odds(a, u, q)
    write_softplus(a, u, q, f)
    np.multiply(u, q, out=slope)  # s
    np.divide(slope, f, out=w)  # r
    if bend is not None:
        np.multiply(slope, q, out=bend)
    np.multiply(y, w, out=q)
    slope -= q
    if bend is not None:
        q *= w
        write_missing(u, f, w, m, bend.dtype)
        q *= m
        bend += q
    if loss is not None:
        np.log(f, out=w)
        limit = exponent_limit(a.dtype)
        if (a < -limit).any():  # there log f is a itself
            w += np.minimum(a + a.dtype.type(limit), 0)
        w *= y
        np.subtract(f, w, out=loss)
