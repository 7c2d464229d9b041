"""Stable scalar maths, written once for NumPy arrays and for JAX arrays and tracers, and names for annotations."""

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Float
from numpy.typing import ArrayLike

from .threads import is_worker, scratch

Array = jax.Array | np.ndarray
FeatureNeuron = Float[Array, "feature neuron"]
PerFeature = Float[Array, "feature"]
PerNeuron = Float[Array, "neuron"]

# Types of inputs and outputs.
DataLike = Any  # rows: array-like, pandas, pynapple, SciPy sparse, or what is read a run at a time
PerRow = ArrayLike | None  # one number, or one row of numbers, of each row
ArrayOrTsd = Any  # an array, or the pynapple object with the times of the rows given; a union would need narrowing
Seed = int | np.random.RandomState | np.random.Generator | jax.Array | None

# Maximum of h (see `SoftplusParts`), h(A_STAR) = 0.167095572670516627..., rounded up.
C_STAR = 0.16709557267051664
A_STAR = 0.4949849516607962  # h increases before it and decreases after it

# Blocks of this many elements keep the temporaries of a formula in NumPy in the cache and in malloc's pool: 6 to 7
# times faster than (4096, 32) float64 arrays at once, where every temporary costs its page faults. Parallel
# threads wait for each other at every call instead, and need few calls.
_BLOCK_SIZE, _BLOCK_SIZE_OF_A_THREAD = 8192, 1 << 17


def namespace(*arrays: Any) -> ModuleType:
    """Find the array namespace: ``jax.numpy`` if any argument is a JAX array, else ``numpy``."""
    spaces = [array.__array_namespace__() for array in arrays if hasattr(array, "__array_namespace__")]
    return jnp if jnp in spaces else np


def elementwise(formula: Callable, *arrays: Any) -> Any:
    """Apply an elementwise formula, with one result or a tuple, to arrays that broadcast, in one namespace and dtype.

    The dtype is that of the last floating array (so the linear predictor takes precedence over the counts, and float32
    stays float32), or the namespace's default if there is none.
    """
    xp = namespace(*arrays)
    floating = [a.dtype for a in arrays if hasattr(a, "dtype") and _is_floating(a.dtype)]
    dtype = floating[-1] if floating else xp.asarray(0.0).dtype
    if xp is jnp:
        dtype = jax.dtypes.canonicalize_dtype(dtype)  # NumPy's float64 with JAX arrays, x64 mode off
    shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
    most = _BLOCK_SIZE_OF_A_THREAD if is_worker() else _BLOCK_SIZE
    if xp is jnp or math.prod(shape) <= most:
        return formula(*(xp.asarray(a, dtype=dtype) for a in arrays))
    return _in_blocks(formula, [np.broadcast_to(a, shape) for a in arrays], dtype, most)


def _is_floating(dtype: Any) -> bool:
    return dtype.kind == "f" or jnp.issubdtype(dtype, jnp.floating)


def _in_blocks(formula: Callable, arrays: list[np.ndarray], dtype: Any, most: int) -> Any:
    """Apply a formula to NumPy arrays of one shape, a few rows at a time."""
    shape, wholes = arrays[0].shape, ()
    step = max(1, most * shape[0] // arrays[0].size)
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


class Nonzero(NamedTuple):
    """Numbers of an array that are not 0, and their flat indices."""

    at: np.ndarray
    values: np.ndarray


def few_nonzero(values: Array) -> Nonzero | None:
    """Find the numbers of a NumPy array that are not 0, unless they are more than a third of all.

    Formulas can skip the others: in most bins, most neurons have no spike.
    """
    if namespace(values) is not np or 3 * np.count_nonzero(some := values != 0) > np.size(values):
        return None
    at = np.flatnonzero(some)
    return Nonzero(at.astype(np.int32 if np.size(values) < 2**31 else np.int64), np.take(values, at))


def round_up(value: Array) -> Array:
    """Raise a number by 16 machine epsilons, so that it is >= a true value it differs from by less."""
    info = jnp.finfo(value.dtype)
    return value * (1.0 + 16.0 * float(info.eps)) + float(info.smallest_normal)


def nearest(point: float, lower: Array | None, upper: Array | None) -> Any:
    """Find the number in an interval that is nearest to a point; None means no bound."""
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


def log_factorial(y: Array) -> Array:
    """Compute log y!, or log Gamma(y + 1) for y that is not whole; NumPy looks small whole numbers up."""
    if namespace(y) is np:
        with np.errstate(invalid="ignore"):
            whole = y.astype(np.uint8)
        if np.array_equal(whole, y):
            return scipy.special.gammaln(np.arange(1.0, 257.0)).astype(y.dtype).take(whole)
    return gammaln(y + 1.0)


_NUMBERS = 1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510
_BERNOULLI = [number / math.factorial(2 * k) for k, number in enumerate(_NUMBERS, 1)]  # those of SciPy are rounded


class SoftplusParts(NamedTuple):
    """Common terms of the softplus formulas on JAX, from one exponential and no logarithm, which is expensive there.

    All divisions are by numbers of order one or larger (k, 1 + v, 2 + v), so autodiff is safe to any order.
    """

    a: Array
    v: Array  # e^-|a|, at the least e^-exponent_limit
    most: Array  # 1 / (1 + v), the larger one of sigmoid(a) and sigmoid(-a)
    k: Array  # softplus(a) / min(e^a, 1): from 1 on the left over 0.69 at 0 to a on the right
    missing: Array  # 1 - log(1 + v) / v, about v / 2
    is_left: Array  # a <= 0: all branches go by this one, so that they and their derivatives agree at a = 0

    @property
    def s(self) -> Array:
        """Derivative of f, sigmoid(a)."""
        return self._either(self.v * self.most, self.most)

    @property
    def q(self) -> Array:
        """1 - s = sigmoid(-a)."""
        return self._either(self.most, self.v * self.most)

    @property
    def f(self) -> Array:
        """Softplus, log(1 + e^a)."""
        return self._either(self.v * self.k, self.k)

    @property
    def log_f(self) -> Array:
        """Logarithm of f, which is a itself on the far left."""
        return self._either(self.a, 0.0) + jnp.log(self.k)

    @property
    def r(self) -> Array:
        """Derivative of log f, s / f; between 0 and 1."""
        return self.most / self.k

    @property
    def h(self) -> Array:
        """What one count adds to the curvature, r (r - (1 - s)); 0 <= h <= C_STAR.

        The bracket is r (1 - f/e^a), and cancels on the left.
        """
        return self.r * self._either(self.r * self.missing, self.r - self.v * self.most)

    def _either(self, left: Array, right: Array) -> Array:
        return jnp.where(self.is_left, left, right)


class _NumpyParts(NamedTuple):
    """Common terms of the softplus formulas on NumPy, whose logarithms are fast; the properties are the same."""

    a: np.ndarray
    u: np.ndarray  # e^a, between e^-exponent_limit and its inverse
    f: np.ndarray
    q: np.ndarray

    @property
    def s(self) -> np.ndarray:
        return self.u * self.q

    @property
    def log_f(self) -> np.ndarray:
        return np.log(self.f) + np.minimum(self.a + exponent_limit(self.a.dtype), 0.0)

    @property
    def r(self) -> np.ndarray:
        return self.s / self.f

    @property
    def h(self) -> np.ndarray:
        w, missing = np.empty_like(self.f), np.empty_like(self.f)
        write_missing(self.u, self.f, w, missing, self.f.dtype)
        return self.r * self.r * missing


def write_odds(a: np.ndarray, u: np.ndarray, q: np.ndarray) -> None:
    """Write u = e^a and q = 1 / (1 + u); beyond +- C (`exponent_limit`) they keep their values at C."""
    limit = a.dtype.type(exponent_limit(a.dtype))
    np.clip(a, -limit, limit, out=u)
    np.exp(u, out=u)
    np.add(u, u.dtype.type(1), out=q)
    np.divide(u.dtype.type(1), q, out=q)  # faster than `numpy.reciprocal`


def write_missing(u: np.ndarray, f: np.ndarray, w: np.ndarray, missing: np.ndarray, dtype: np.dtype) -> None:
    """Write 1 - f/u with u = e^f - 1, to the precision of a dtype; w is overwritten, too.

    Up to f = 1/2, where it cancels, it is f/2 less a series of Bernoulli numbers.
    """
    *others, last = _BERNOULLI if dtype.itemsize == 8 else _BERNOULLI[:3]
    np.multiply(f, f, out=w)
    np.multiply(w, f.dtype.type(-last), out=missing)
    for number in reversed(others):
        missing -= f.dtype.type(number)
        missing *= f if number is others[0] else w
    missing += f.dtype.type(0.5)
    missing *= f
    if (large := f > 0.5).any():
        np.divide(f, u, out=w)
        np.subtract(f.dtype.type(1), w, out=w)
        np.copyto(missing, w, where=large)


def write_softplus(a: np.ndarray, u: np.ndarray, q: np.ndarray, f: np.ndarray) -> None:
    """Write log(1 + u), from `write_odds`: the logarithm of 1 + u as rounded, and over it what rounding has taken.

    As accurate as `numpy.log1p`, and twice as fast.
    """
    w = scratch(a.shape, a.dtype, "softplus")
    np.add(u, u.dtype.type(1), out=w)
    np.log(w, out=f)
    w -= u.dtype.type(1)
    np.subtract(u, w, out=w)
    w *= q
    f += w
    limit = u.dtype.type(exponent_limit(u.dtype))
    if (a > limit).any():  # where u keeps its value
        np.subtract(a, limit, out=w)
        f += np.maximum(w, 0, out=w)


def softplus_parts(a: Array) -> SoftplusParts | _NumpyParts:
    """Compute the terms of f = softplus(a), s = f', 1 - s and r = s/f, each to a few epsilons *relative*.

    Beyond +- C (`exponent_limit`) s and 1 - s keep their value at C, and so does f on the left (2e-19 in
    float32, 1e-154 in float64); on the right it continues as a straight line.
    """
    limit = exponent_limit(a.dtype)
    if namespace(a) is np:
        u, q = np.empty(a.shape, a.dtype), np.empty(a.shape, a.dtype)
        write_odds(a, u, q)
        f = np.log1p(u)
        return _NumpyParts(a, u, f + np.maximum(a - limit, 0.0) if np.any(a > limit) else f, q)
    is_left = a <= 0.0
    v = jnp.exp(jnp.maximum(jnp.where(is_left, a, -a), -limit))
    # log(1 + v) is twice the atanh of x <= 1/3: x plus x^3 times the tail, sum_k x^(2k) / (2k + 3), of which 15 terms
    # suffice in float64 and 6 in float32.
    inverse = 1.0 / (2.0 + v)
    x = v * inverse
    twice, square, tail = 2.0 * x * x, x * x, jnp.zeros_like(x)
    for k in reversed(range(15 if v.dtype.itemsize == 8 else 6)):
        tail = tail * square + 1.0 / (2 * k + 3)
    near, missing = (2.0 + twice * tail) * inverse, x - twice * tail * inverse
    return SoftplusParts(a, v, 1.0 / (1.0 + v), jnp.where(is_left, near, a + v * near), missing, is_left)


def seed_of(key) -> int:
    """Return the integer seed for NumPy's generators that belongs to a jax key."""
    return int(np.asarray(jax.random.key_data(key)).ravel()[-1])
