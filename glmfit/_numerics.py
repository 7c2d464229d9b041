"""Stable scalar maths, written once for NumPy arrays and for JAX arrays and tracers."""

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from glmfit._types import Array

# Maximum of h (see `softplus_curvature_slope`), h(A_STAR) = 0.167095572670516627..., rounded up.
C_STAR = 0.16709557267051664
A_STAR = 0.4949849516607962  # h increases before it and decreases after it

# Blocks of this many elements keep the temporaries of a formula in NumPy in the cache and in malloc's pool: 6 to 7
# times faster than (4096, 32) float64 arrays at once, where every temporary costs its page faults.
_BLOCK_SIZE = 8192


def namespace(*arrays: Any) -> ModuleType:
    """Find the array namespace: ``jax.numpy`` as soon as one argument is a JAX array, else ``numpy``."""
    spaces = [array.__array_namespace__() for array in arrays if hasattr(array, "__array_namespace__")]
    return jnp if jnp in spaces else np


def elementwise(formula: Callable, *arrays: Any) -> Any:
    """Apply an elementwise formula, of one array or a tuple, to arrays that broadcast, in one namespace and dtype.

    The dtype is that of the last floating array (so the linear predictor decides over the counts, and float32 stays
    float32), the namespace's default where there is none.
    """
    xp = namespace(*arrays)
    floating = [a.dtype for a in arrays if hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jnp.floating)]
    dtype = floating[-1] if floating else xp.asarray(0.0).dtype
    if xp is jnp:
        dtype = jax.dtypes.canonicalize_dtype(dtype)  # NumPy's float64 beside JAX arrays, x64 mode off
    shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
    if xp is jnp or math.prod(shape) <= _BLOCK_SIZE:
        return formula(*(xp.asarray(a, dtype=dtype) for a in arrays))
    return _in_blocks(formula, [np.broadcast_to(a, shape) for a in arrays], dtype)


def _in_blocks(formula: Callable, arrays: list[np.ndarray], dtype: Any) -> Any:
    """Apply a formula to NumPy arrays of one shape, a few rows at a time."""
    shape, wholes = arrays[0].shape, ()
    step = max(1, _BLOCK_SIZE * shape[0] // arrays[0].size)
    for start in range(0, shape[0], step):
        values = formula(*(np.asarray(a[start : start + step], dtype=dtype) for a in arrays))
        blocks = values if isinstance(values, tuple) else (values,)
        wholes = wholes or tuple(np.empty(shape, block.dtype) for block in blocks)
        for whole, block in zip(wholes, blocks, strict=True):
            whole[start : start + step] = block
    return wholes if isinstance(values, tuple) else wholes[0]


@functools.cache
def exponent_limit(dtype: Any) -> float:
    """Find the largest whole C such that e^-2C is a normal number: 43 in float32, 354 in float64."""
    return float(math.floor(-math.log(float(jnp.finfo(dtype).smallest_normal)) / 2))


def round_up(value: Array) -> Array:
    """Raise a number by 16 machine epsilons, so that it is >= a true one it differs from by fewer."""
    info = jnp.finfo(value.dtype)
    return value * (1.0 + 16.0 * float(info.eps)) + float(info.smallest_normal)


def nearest(point: float, lower: Array | None, upper: Array | None) -> Any:
    """Find the number in an interval that is nearest to a point; None is no end."""
    xp = namespace(lower, upper)
    above = point if lower is None else xp.maximum(lower, point)
    return above if upper is None else xp.minimum(above, upper)


def exp(a: Array) -> Array:
    """Compute e^a; inf above the range of the dtype, without NumPy's warning."""
    with np.errstate(over="ignore"):
        return namespace(a).exp(a)


def gammaln(x: Array) -> Array:
    """Compute the logarithm of the gamma function, with SciPy or with JAX."""
    return jax.scipy.special.gammaln(x) if namespace(x) is jnp else scipy.special.gammaln(x)


class SoftplusParts(NamedTuple):
    """What the softplus formulas share, from one exponential and one logarithm.

    All divisions are by numbers of order one or larger (k, 1 + u, 2 + u), so autodiff is safe to any order.
    """

    u: Array  # e^a, with a clipped to +- exponent_limit
    q: Array  # 1 - s = sigmoid(-a) = 1 / (1 + u)
    k: Array  # softplus(a) / min(u, 1): from 1 on the left over 0.69 at 0 to a on the right
    is_left: Array  # u <= 1: all branches go by this one, so that they and their derivatives agree at a = 0

    @property
    def s(self) -> Array:
        """Derivative of f, sigmoid(a)."""
        return self.u * self.q

    @property
    def f(self) -> Array:
        """Softplus, log(1 + e^a)."""
        return _least(self.u, self.is_left) * self.k

    @property
    def r(self) -> Array:
        """Derivative of log f, s / f; between 0 and 1."""
        most = np.maximum(self.u, 1.0) if namespace(self.u) is np else jnp.where(self.is_left, 1.0, self.u)
        return most * self.q / self.k


def softplus_parts(a: Array) -> SoftplusParts:
    """Compute what gives f = softplus(a), s = f', 1 - s and r = s/f, each to a few epsilons *relative*.

    Beyond +- C (`exponent_limit`) s and 1 - s keep their value at C, and so does f on the left (2e-19 in
    float32, 1e-154 in float64); on the right it goes on as a straight line.
    """
    xp, limit = namespace(a), exponent_limit(a.dtype)
    u = xp.exp(xp.clip(a, -limit, limit))
    is_left = u <= 1.0
    if xp is np:
        k = np.log1p(u) / _least(u, is_left)
    else:  # on a CPU XLA's log1p takes three times as long, and 2 (1 + ...) longer than (2 + 2 ...)
        x = u / (2.0 + u)
        k = jnp.where(is_left, (2.0 + 2.0 * x * x * _atanh_tail(x)) / (2.0 + u), jnp.log(1.0 + u))
    return SoftplusParts(u, 1.0 / (1.0 + u), k + xp.maximum(a - limit, 0.0), is_left)


def _least(u: Array, is_left: Array) -> Array:
    """Compute min(u, 1); NumPy's `where` takes ten times as long on signs that vary, and JAX's has the derivative."""
    return np.minimum(u, 1.0) if namespace(u) is np else jnp.where(is_left, u, 1.0)


def log_softplus(a: Array, parts: SoftplusParts) -> Array:
    """Compute log f, which is a itself on the far left."""
    xp = namespace(a)
    return (np.minimum(a, 0.0) if xp is np else jnp.where(parts.is_left, a, 0.0)) + xp.log(parts.k)


def softplus_curvature_slope(parts: SoftplusParts) -> Array:
    """Compute h = r (r - (1 - s)): what one count adds to the curvature; 0 <= h <= C_STAR.

    As r = u/((1+u) f), h = r^2 (1 - f/u). The bracket cancels for small u, where with x = u/(2+u) and
    f = 2 atanh(x) it is x - 2 x^2/(2+u) sum_k x^(2k)/(2k+3), which starts with u/2.
    """
    u, xp = parts.u, namespace(parts.u)
    x = u / (2.0 + u)
    bracket = x - 2.0 * x * x * _atanh_tail(x) / (2.0 + u)
    r = parts.r
    return r * r * xp.where(parts.is_left, bracket, 1.0 - parts.k / xp.where(parts.is_left, 1.0, u))


def _atanh_tail(x: Array) -> Array:
    """Sum (atanh(x) - x) / x^3 = sum_k x^(2k) / (2k + 3), to rounding for x <= 1/3, which is u <= 1."""
    square = x * x
    total = namespace(x).zeros_like(x)
    for k in reversed(range(15 if x.dtype.itemsize == 8 else 6)):
        total *= square
        total += 1.0 / (2 * k + 3)
    return total
