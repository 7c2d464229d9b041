"""Scalar roots behind implicit steps: the Lambert function of an exponential and what is built on it.

Derivations and error bounds: docs/theory/implicit_sgd.md. Each function works elementwise on NumPy or JAX
arrays, in single or double precision, without branches, so that it can sit in the innermost loop of a solver.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .._numerics import elementwise, namespace


class Limits(NamedTuple):
    """Largest arguments a precision can take, of exp, wexp's iteration and an impulse's logarithm; smallest divisor."""

    exp: float
    iterate: float
    impulse: float
    smallest: float


def limits(x: Any) -> Limits:
    """Give the limits of an array's precision."""
    return Limits(80.0, 1e8, 40.0, 1e-37) if x.dtype.itemsize == 4 else Limits(700.0, 1e15, 350.0, 1e-300)


def wexp(z: Any) -> Any:
    """Solve ``w + log(w) = z`` for w > 0: the Lambert function W_0 of ``exp(z)``, which is never formed.

    Parameters
    ----------
    z : array or number
        Any finite number.

    Returns
    -------
    array
        w, of the shape of z. Its derivative is ``w / (1 + w)``.

    Notes
    -----
    Two iterations of Fritsch, Shafer and Crowley's fourth-order scheme. Relative error at most 2e-15 in double
    and 1e-6 in single precision for all z >= -700 (-80 in single precision: exp(z) itself underflows below).

    References
    ----------
    F. N. Fritsch, R. E. Shafer, W. P. Crowley, Algorithm 443: Solution of the transcendental equation
    w e^w = x, Comm. ACM 16 (1973).
    """
    return elementwise(_wexp, z)


def _wexp(z):
    xp, limit = namespace(z), limits(z).iterate
    tiny = xp.exp(xp.minimum(z, 0.0))
    w = xp.where(z > limit, z - xp.log(xp.maximum(z, 1.0)), _wexp_between(z))
    return xp.where(z < -18, tiny * (1 - tiny), w)


def _wexp_between(z):
    """Solve where z is neither below -18 nor beyond what the iteration takes; finite in any case."""
    xp = namespace(z)
    inside = xp.clip(z, -30.0, limits(z).iterate)
    small = xp.exp(xp.minimum(inside, 1.0))
    large = xp.maximum(inside, 1.0)
    log = xp.log(large)
    w = xp.where(inside < 1, small / (1 + small), large - log * (1 - 1 / large))
    for _ in range(2):
        t = inside - xp.log(w) - w
        q = 2 * (1 + w) * (1 + w + 2 * t / 3)
        w = w * (1 + t / (1 + w) * (q - t) / (q - 2 * t))
    return w


def hsolve(c: Any, q: Any) -> Any:
    """Solve ``delta + c (1 - exp(-delta)) = q`` for delta.

    Parameters
    ----------
    c : array or number
        At least 0.
    q : array or number
        Any number.

    Returns
    -------
    array
        delta, with the sign of q and no larger; of their common shape.

    Notes
    -----
    The closed form ``q - c + wexp(log(c) + c - q)`` cancels where c is much larger than q. It is brought back
    between the bounds that concavity gives, q/(1+c) and max(q, 0), and polished by four Newton steps.
    """
    return elementwise(_hsolve, c, q)


def _hsolve(c, q):
    xp = namespace(c, q)
    log_c = xp.log(xp.maximum(c, limits(c).smallest))
    floor = xp.maximum(log_c, 0.0) - limits(c).exp  # c exp(-delta) must not overflow
    delta = q - c + xp.where(c > 0, _wexp(log_c + c - q), 0.0)
    lowest, highest = q / (1 + c), xp.maximum(q, 0.0)
    delta = xp.clip(delta, lowest, highest)
    for _ in range(4):
        at = xp.maximum(delta, floor)
        excess = c * xp.expm1(-at)
        delta = xp.clip(delta - (delta - excess - q) / (1 + c + excess), lowest, highest)
    return delta


def uprox(c: Any, log_total: Any, u: Any) -> Any:
    """Minimise ``c (v + C exp(-v)) + (v - u)^2 / 2`` over v, where C = exp(log_total): the implicit step of u.

    Parameters
    ----------
    c : array or number
        Step times weight, at least 0.
    log_total : array or number
        Logarithm of C.
    u : array or number
        Where the step starts.

    Returns
    -------
    array
        v, between u and log_total.
    """
    return elementwise(_uprox, c, log_total, u)


def _uprox(c, log_total, u):
    return log_total + _hsolve(c, u - log_total)


def p_of(level: Any, mobility: Any) -> tuple[Any, Any]:
    """Solve ``log(p) + mobility * p = level`` for the impulse p > 0 on a class.

    Parameters
    ----------
    level : array or number
        Logarithm of the impulse an explicit step would give.
    mobility : array or number
        How much the class's score gives way per unit of impulse, at least 0; 0 for a frozen class.

    Returns
    -------
    p, moved : array
        The impulse, at most exp(350) (single precision: exp(40)) where the class hardly moves so that what is
        made of it stays finite, and ``mobility * p``. The derivative of p in the level is ``p / (1 + moved)``.
    """
    return elementwise(_p_of, level, mobility)


def _p_of(level, mobility):
    xp = namespace(level, mobility)
    free = mobility > 0
    safe = xp.where(free, mobility, 1.0)
    moved = xp.where(free, _wexp_between(level + xp.log(safe)), 0.0)
    # The quotient is exact where the class moves; the exponential where it hardly does.
    p = xp.where(moved > 1e-2, moved / safe, xp.exp(xp.minimum(level - moved, limits(level).impulse)))
    return p, mobility * p


def log1p_sum_exp(terms: Any, axis: int = -1) -> Any:
    """Compute ``log(1 + sum(exp(terms)))`` along an axis, with full relative precision where it is small.

    Parameters
    ----------
    terms : array
        -inf counts nothing.
    axis : int
        Axis summed over.

    Returns
    -------
    array
        At least 0; the axis is gone.
    """
    xp = namespace(terms)
    top = xp.maximum(xp.max(terms, axis=axis, initial=0.0, keepdims=True), 0.0)
    total = xp.sum(xp.exp(terms - top), axis=axis)
    top = xp.squeeze(top, axis)
    return xp.where(top > 0, top + xp.log(xp.exp(-top) + total), xp.log1p(total))
