"""Stable scalar maths."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from oracles import poisson as oracle

from glmfit import numerics

LIMITS = {np.float32: 43.0, np.float64: 354.0}

every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
every_namespace = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


def test_c_star_is_the_maximum_of_h_rounded_up():
    a_star, c_star = oracle.slope_maximum()
    assert mp.mpf(numerics.C_STAR) >= c_star
    assert mp.mpf(np.nextafter(numerics.C_STAR, 0)) < c_star
    assert float(a_star) == numerics.A_STAR
    a = np.linspace(-40, 40, 1_000_000)
    h = numerics.softplus_parts(a).h
    assert np.all((h >= 0) & (h <= numerics.C_STAR * (1 + 1e-15)))
    assert numerics.C_STAR - h.max() < 1e-9
    # Increasing before its peak, decreasing after it: bounds on an interval rely on this.
    coarse = h[::1000]
    assert np.all(np.diff(coarse[a[::1000] <= numerics.A_STAR]) > 0)
    assert np.all(np.diff(coarse[a[::1000] >= numerics.A_STAR]) < 0)


@pytest.mark.thorough(cases=2)
@every_dtype
@every_namespace
def test_parts_and_h_match_40_digits_in_both_tails(dtype, xp, x64):
    """They also raise no floating-point error (overflow, invalid, division by zero), hence no warning, up to 1e4."""
    limit = LIMITS[dtype]
    points = [
        np.linspace(-limit, limit, 41),
        np.linspace(-30, 30, 61),
        np.linspace(-1, 1, 41),
        [numerics.A_STAR],
    ]
    a = np.concatenate(points).astype(dtype)
    far_out = np.linspace(-1e4, 1e4, 2001).astype(dtype)
    formulas = jax.jit(_formulas) if xp is jnp else _formulas
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        values = formulas(xp.asarray(np.concatenate([a, far_out])))
    true = [oracle.exact("softplus", x, 0.0) for x in a]
    for key, value in values.items():
        assert value.dtype == dtype and np.all(np.isfinite(value))
        if key == "log_rate":  # whose relative error is large at its zero
            np.testing.assert_array_equal(value[len(a) :][far_out < -limit], far_out[far_out < -limit])
            continue
        # `round_up` relies on these few epsilons.
        for got, row in zip(np.asarray(value), true, strict=False):
            assert abs(mp.mpf(float(got)) / row[key] - 1) <= 8 * np.finfo(dtype).eps


def _formulas(a):
    parts = numerics.softplus_parts(a)
    return {
        "rate": parts.f,
        "r": parts.r,
        "h": parts.h,
        "curvature": parts.s * parts.q,
        "log_rate": parts.log_f,
    }


@every_dtype
def test_exponent_limit(dtype):
    limit = numerics.exponent_limit(np.dtype(dtype))
    assert limit == LIMITS[dtype]
    assert np.exp(dtype(-limit)) ** 2 >= np.finfo(dtype).smallest_normal


def test_namespace():
    assert numerics.namespace(np.ones(2), 1.0) is np
    assert numerics.namespace(1.0, 2) is np
    assert numerics.namespace(np.ones(2), jnp.ones(2)) is jnp
    assert jax.jit(lambda x: jnp.ones(1) * (numerics.namespace(np.ones(2), x) is jnp))(jnp.ones(2))[0] == 1


@pytest.mark.parametrize(
    "arrays, dtype",
    [
        ((np.ones(2, int), np.ones(2, np.float32)), np.float32),
        ((np.ones(2, np.float64), np.ones(2, np.float32)), np.float32),
        ((np.ones(2, np.float32), 0.5), np.float32),
        ((np.ones(2, bool), 0.5), np.float64),
        ((1, 0.5), np.float64),
        ((jnp.ones(2), np.ones(2, np.float64)), np.float32),
        ((jnp.ones(2, int), 0.5), np.float32),
    ],
)
def test_elementwise_dtype(arrays, dtype):
    assert numerics.elementwise(lambda a, b: a + b, *arrays).dtype == dtype


def test_elementwise_blocks():
    seen = []

    def both(a, b):
        seen.append(a.shape)
        return a + b, a * b

    a, b = np.arange(30_000.0).reshape(3000, 10), np.arange(10)
    total, product = numerics.elementwise(both, a, b)
    np.testing.assert_array_equal(total, a + b)
    np.testing.assert_array_equal(product, a * b)
    assert len(seen) > 1 and sum(shape[0] for shape in seen) == 3000
    assert numerics.elementwise(np.negative, np.zeros((0, 4))).shape == (0, 4)


@every_dtype
@every_namespace
def test_round_up_and_exp(dtype, xp, x64):
    value = xp.asarray([0.0, 1e-30, 1.0, 1e30], dtype=dtype)
    raised = (jax.jit(numerics.round_up) if xp is jnp else numerics.round_up)(value)
    assert raised.dtype == dtype
    raised, value = np.asarray(raised), np.asarray(value)
    assert np.all(raised > value) and np.all(raised[1:] <= value[1:] * (1 + 20 * np.finfo(dtype).eps))
    assert numerics.exp(xp.asarray(1e4, dtype=dtype)) == np.inf
