"""Scalar roots behind implicit steps, against 40 digits and their own equations (softmax spec, S14: 1 and 2)."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.special

from glmfit.stochastic import implicit

every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
WEXP_ERROR = {np.float32: 1e-6, np.float64: 4e-15}


def true_wexp(z):
    with mp.workdps(40):
        z = mp.mpf(float(z))
        return mp.lambertw(mp.exp(z)).real if z < 1e5 else mp.findroot(lambda w: w + mp.log(w) - z, z - mp.log(z))


@pytest.mark.thorough
@every_dtype
def test_wexp_has_full_relative_precision(dtype, x64):
    lowest = -80 if dtype == np.float32 else -700
    z = np.concatenate([np.linspace(lowest, 60, 281), np.linspace(-20, 3, 201), 10.0 ** np.arange(2, 7)]).astype(dtype)
    w = np.asarray(implicit.wexp(jnp.asarray(z)))
    assert w.dtype == dtype
    error = max(abs(float(mp.mpf(float(a)) / true_wexp(b) - 1)) for a, b in zip(w, z, strict=True))
    assert error <= WEXP_ERROR[dtype]


def test_wexp_satisfies_its_equation_and_agrees_with_scipy(x64):
    z = np.concatenate([np.linspace(-700, 700, 20_001), np.geomspace(700, 1e6, 2_001)])
    w = np.asarray(jax.jit(implicit.wexp)(z))
    assert np.all(np.abs(w + np.log(w) - z) <= 4e-15 * np.maximum(1, np.abs(z)))
    low = z <= 700
    np.testing.assert_allclose(w[low], scipy.special.lambertw(np.exp(z[low])).real, rtol=4e-15)


def test_wexp_is_finite_everywhere_without_a_warning(x64):
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        w = np.asarray(jax.jit(implicit.wexp)(jnp.asarray([-1e308, -1e4, -31.0, 1e15, 1e16, 1e308])))
    assert np.all(np.isfinite(w)) and np.all(w >= 0) and np.all(np.diff(w) >= 0)


def residual(c, q, delta):
    with mp.workdps(60):
        c, q, delta = (mp.mpf(float(a)) for a in (c, q, delta))
        return float(abs(delta - c * mp.expm1(-delta) - q))


def grid(dtype):
    c = np.geomspace(1e-8, 1e6, 29)
    q = np.concatenate([-np.geomspace(1e-6, 1e4, 21)[::-1], [0.0], np.geomspace(1e-6, 1e4, 21)])
    return (a.ravel().astype(dtype) for a in np.meshgrid(c, q))


@pytest.mark.thorough
def test_hsolve_solves_its_equation(x64):
    c, q = grid(np.float64)
    delta = np.asarray(implicit.hsolve(jnp.asarray(c), jnp.asarray(q)))
    assert all(residual(*three) <= 1e-12 * (1 + abs(three[1])) for three in zip(c, q, delta, strict=True))


def test_hsolve_is_relatively_precise_where_the_closed_form_cancels(x64):
    c, q = (a.ravel() for a in np.meshgrid([1e4, 1e5, 1e6], [1e-6, -1e-6, 1e-3, -1e-3, 0.5, -0.5]))
    delta = np.asarray(jax.jit(implicit.hsolve)(c, q))
    slope = 1 + c * np.exp(-delta)
    errors = [residual(*three) for three in zip(c, q, delta, strict=True)]
    assert np.all(np.asarray(errors) / slope <= 1e-10 * np.abs(delta))


@pytest.mark.thorough
def test_hsolve_in_single_precision(x64):
    c, q = grid(np.float32)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        delta = np.asarray(implicit.hsolve(jnp.asarray(c), jnp.asarray(q)))
    exact = np.asarray(implicit.hsolve(c.astype(float), q.astype(float)))
    np.testing.assert_allclose(delta, exact, rtol=1e-5)  # the effect of rounding q alone


def test_uprox_minimises(x64, rng):
    c, log_total, u = np.exp(rng.normal(size=50) * 3), rng.normal(size=50) * 5 + 3, rng.normal(size=50) * 4 + 4
    uprox = jax.jit(implicit.uprox)
    v = np.asarray(uprox(c, log_total, u))
    np.testing.assert_allclose(c * (1 - np.exp(log_total - v)) + v - u, 0, atol=1e-11 * (1 + c.max()))
    assert np.all((v >= np.minimum(u, log_total)) & (v <= np.maximum(u, log_total)))
    np.testing.assert_array_equal(uprox(np.zeros(3), np.array([1.0, 2.0, 3.0]), np.array([4.0, 0.0, 3.0])), [4, 0, 3])


@pytest.mark.thorough
@every_dtype
def test_p_of_solves_its_equation(dtype, x64):
    level, mobility = np.meshgrid(np.linspace(-60, 500, 113), [0.0, 1e-10, 1e-4, 0.1, 1.0, 30.0, 1e4])
    level, mobility = level.ravel().astype(dtype), mobility.ravel().astype(dtype)
    p, moved = (np.asarray(a, np.float64) for a in implicit.p_of(jnp.asarray(level), jnp.asarray(mobility)))
    assert np.all(np.isfinite(p))
    capped = np.log(p) >= (39.9 if dtype == np.float32 else 349.9)
    assert np.all(level[capped] >= 39) and capped.mean() < 0.4
    off = (np.log(p) + mobility * p - level)[~capped]
    assert np.all(np.abs(off) <= (4e-6 if dtype == np.float32 else 1e-14) * (1 + np.abs(level) + moved)[~capped])
    np.testing.assert_allclose(moved, mobility * p, rtol=1e-6)


@pytest.mark.thorough
def test_derivatives_match_the_docstrings(x64):
    z = jnp.linspace(-15.0, 40.0, 23)
    w, slope = jax.vmap(jax.value_and_grad(implicit.wexp))(z)
    np.testing.assert_allclose(slope, w / (1 + w), rtol=1e-8)


def test_log1p_sum_exp(x64):
    terms = np.array([[-800.0, -np.inf], [-40.0, -41.0], [0.0, 0.0], [700.0, 900.0], [-np.inf, -np.inf], [1e4, -1e4]])
    with mp.workdps(50):
        exact = [float(mp.log(1 + sum(mp.exp(mp.mpf(float(t))) for t in row))) for row in terms]
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        got = np.asarray(jax.jit(implicit.log1p_sum_exp)(terms))
    np.testing.assert_allclose(got, exact, rtol=1e-14)
    assert got[0] == 0 and got[4] == 0 and got[1] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("uneven", [0.0, 1.0, 6.0])
def test_the_start_from_equal_classes_is_near_and_its_bound_lies_on_the_left(uneven, rng, x64):
    """The bound is below the root; for equal classes, or a single one, it is the root itself."""
    n, m = 300, 20
    level, mobility = uneven * rng.normal(size=(n, m)) + rng.uniform(-4, 8, (n, 1)), np.exp(2 * rng.normal(size=n))
    level[::3, 1:] = -np.inf
    t = rng.uniform(-3, 6, n)
    alike = jax.vmap(implicit.Alike.of)(level, mobility)
    pull = np.asarray(jnp.sum(implicit.p_of(level - t[:, None], mobility[:, None])[0], axis=1))
    of_alike = np.asarray(jax.vmap(implicit.Alike.pushes)(alike, t)[0])
    same = slice(None) if uneven == 0 else slice(None, None, 3)
    np.testing.assert_allclose(of_alike[same], pull[same], rtol=1e-10)
    assert np.all(np.asarray(jax.vmap(implicit.Alike.together)(alike, pull)) <= t + 1e-9)
    assert np.all(of_alike <= pull * (1 + 1e-9))
    assert np.median(np.abs(np.log(of_alike / pull))) < 1


@pytest.mark.thorough
@every_dtype
def test_a_count_step_with_almost_no_push_follows_the_pull_of_the_variable(dtype, x64):
    """The auxiliary variable is far above the scores, so that the sum of the pushes is below its rounding."""
    gap = np.linspace(10, 60, 12)
    score, target = np.array([0.0, -1.0], dtype), np.array([0.0, 1.0], dtype)
    step = jax.vmap(lambda v: implicit.implicit_counts(dtype(1), dtype(0), score, target, dtype(0.5), v))
    push, after = step(gap.astype(dtype))
    np.testing.assert_allclose(after, gap - 1, atol=1e-3)
    assert np.all(np.asarray(push) >= 0) and np.all(np.asarray(push).sum(axis=1) < 1e-3)


@pytest.mark.thorough
def test_a_row_without_negatives_pushes_nothing(x64):
    none = jnp.full(4, -jnp.inf)
    alike = implicit.Alike.of(none, 0.5)
    assert float(alike.pushes(0.3)[0]) == 0 and float(alike.log_total) == -np.inf
    step = implicit.implicit_step(2.0, none, jnp.zeros(4), 0.5, jnp.asarray(1.0))
    assert not np.any(step.push) and float(step.pull) == 0
    assert float(step.u) == pytest.approx(float(implicit.hsolve(jnp.asarray(2.0), jnp.asarray(1.0))), abs=1e-9)


@pytest.mark.thorough
@every_dtype
def test_a_known_number_of_steps_suffices(dtype, monkeypatch, rng, x64):
    """GPUs take a fixed number of steps, without a test: ordinary numbers give the same, absurd ones finite results."""
    n, m = 200, 20
    c, mobility = np.exp(rng.normal(size=n)), np.exp(rng.normal(size=n))
    numbers = c, rng.normal(size=(n, m)), 2 * rng.normal(size=(n, m)), mobility, np.exp(rng.normal(size=n))
    absurd = 1e3 * c, numbers[1], 40 * numbers[2], 1e3 * mobility, numbers[4]

    def solve(of):
        of = [np.asarray(a, dtype) for a in of]
        counts = of[0], of[1], of[2], np.eye(m, dtype=dtype)[np.arange(n) % m], of[3], of[4]
        return [*jax.vmap(implicit.implicit_step)(*of), *jax.vmap(implicit.implicit_counts)(*counts)]

    wanted = solve(numbers)
    monkeypatch.setattr(implicit, "until_rounding", implicit.known_number)
    monkeypatch.setattr(implicit, "_ALIKE_STEPS", implicit._MORE_ALIKE_STEPS)
    for found, exact in zip(solve(numbers), wanted, strict=True):
        np.testing.assert_allclose(
            found, exact, rtol=5e-3 if dtype == np.float32 else 1e-9, atol=1e-5 * (dtype == np.float32)
        )
    assert all(np.all(np.isfinite(found)) for found in solve(absurd))
