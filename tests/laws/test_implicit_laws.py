"""Proximal maps of sampled softmax losses: their equations, a generic minimiser, limits (identities 5 to 9, 13)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import softmax as oracle
from scipy.special import logsumexp

from glmfit.stochastic import implicit

MOBILITY = [0.0, 1e-10, 1e-4, 1e-2, 1.0, 10.0, 1e4]


def to_numpy(tree):
    return jax.tree.map(np.asarray, tree)


jit_step = jax.jit(implicit.implicit_step)


def random_step(rng):
    d, m = rng.integers(1, 6), rng.choice([1, 2, 6])
    K = rng.integers(m + 1, 51)
    step = {
        "c": 10 ** rng.uniform(-3, 2),
        "a": np.full(m, (K - 1) / m),
        "x": rng.normal(size=d),
        "u": rng.uniform(0, 4),
        "w": 2 * rng.normal(size=(m, d)),
        "w_label": rng.normal(size=d),
        "ridge": rng.choice([0.0, 0.3]),
        "offset": rng.normal(size=m),
    }
    return step


@pytest.mark.slow
def test_the_step_is_the_minimum_of_the_sampled_objective(x64, rng):
    """Identity 6."""
    for _ in range(60):
        s = random_step(rng)
        v, w, w_label = oracle.implicit_by_minimiser(**s)
        shrink = 1 + s["ridge"]
        mobility = s["x"] @ s["x"] / shrink
        delta = (s["w"] - s["w_label"]) @ s["x"] / shrink + s["offset"]
        step = to_numpy(jit_step(s["c"], np.log(s["a"]), delta, mobility, s["u"]))
        np.testing.assert_allclose(step.u, v, atol=1e-8)
        np.testing.assert_allclose((s["w"] - step.push[:, None] * s["x"]) / shrink, w, atol=1e-8)
        np.testing.assert_allclose((s["w_label"] + step.pull * s["x"]) / shrink, w_label, atol=1e-8)


def extreme(rng, n, m, dtype):
    """Steps, scores and mobilities far beyond any fit."""
    c = 10 ** rng.uniform(-8, 6, n)
    log_a = np.log(10 ** rng.uniform(1, 9, n) / m)
    delta = 1e4 * rng.uniform(-1, 1, (n, m))
    u = rng.uniform(0, 1, n) * np.where(rng.random(n) < 0.5, 1, 1e4)
    numbers = c, log_a, delta, rng.choice(MOBILITY, n), u
    return tuple(a.astype(dtype) for a in numbers)


def off(numbers, step):
    """How far a step is from its two equations, relative to the terms in them."""
    c, log_a, delta, mobility, u = numbers
    level = (np.log(c) + log_a)[:, None] + delta
    t = (step.u + mobility * step.pull)[:, None]
    moved = mobility[:, None] * step.push
    seen = step.push > 1e-290
    left = np.log(np.where(seen, step.push, 1.0)) + moved - level + t
    pushes = np.where(seen, np.abs(left) / (1 + np.abs(level) + t + moved), 0.0).max(axis=1)
    return pushes, np.abs(step.u - c * np.expm1(-step.u) - u - step.pull) / (1 + u + c + step.pull)


@pytest.mark.thorough
def test_both_equations_hold_to_rounding_for_ordinary_steps(x64, rng):
    """Identity 5: c in [1e-3, 1e3], scores to 100, mobilities to 5."""
    n, m = 20_000, 5
    numbers = (
        10 ** rng.uniform(-3, 3, n), np.log(10 ** rng.uniform(1, 6, n) / m), 100 * rng.uniform(-1, 1, (n, m)),
        rng.uniform(0, 5, n), rng.uniform(0, 30, n),
    )  # fmt: skip
    for equation in off(numbers, to_numpy(jax.jit(jax.vmap(implicit.implicit_step))(*numbers))):
        assert equation.max() < 1e-11


@pytest.mark.thorough
def test_both_equations_hold_for_extreme_steps(x64, rng):
    numbers = extreme(rng, 20_000, 5, np.float64)
    for equation in off(numbers, to_numpy(jax.jit(jax.vmap(implicit.implicit_step))(*numbers))):
        assert equation.max() < 1e-11


@pytest.mark.thorough
def test_single_precision_is_finite_and_close(rng):
    numbers = extreme(rng, 5_000, 5, np.float32)
    step = to_numpy(jax.jit(jax.vmap(implicit.implicit_step))(*numbers))
    assert all(a.dtype == np.float32 and np.all(np.isfinite(a)) for a in step)
    assert np.all(step.u >= 0) and np.all(step.push >= 0)
    n = 5_000
    ordinary = (
        10 ** rng.uniform(-3, 3, n), np.log(10 ** rng.uniform(1, 6, n) / 5), 30 * rng.uniform(-1, 1, (n, 5)),
        rng.uniform(0, 5, n), rng.uniform(0, 30, n),
    )  # fmt: skip
    ordinary = tuple(a.astype(np.float32) for a in ordinary)
    pushes, auxiliary = off(ordinary, to_numpy(jax.jit(jax.vmap(implicit.implicit_step))(*ordinary)))
    assert pushes.max() < 1e-4 and auxiliary.max() < 1e-4


@pytest.mark.thorough
def test_with_one_negative_the_step_matches_the_listing_for_extreme_numbers(x64, rng):
    """Identity 8: Algorithm 1 by bisection; auxiliary variables go up and down."""
    c, log_a, delta, mobility, u = numbers = extreme(rng, 5_000, 1, np.float64)
    step = to_numpy(jax.jit(jax.vmap(implicit.implicit_step))(*numbers))
    v = oracle.implicit_by_bisection(c, log_a, delta[:, 0], 2 * mobility, u)
    np.testing.assert_allclose(step.u, v, rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(step.pull, step.push[:, 0])
    assert np.mean(step.u > u) > 0.1 and np.mean(step.u < u) > 0.1


@pytest.mark.slow
def test_a_frozen_class_and_a_row_of_zeros_move_only_the_auxiliary_variable(x64, rng):
    """Identity 7: mobility 0 leaves u = uprox."""
    from glmfit.stochastic.implicit import log1p_sum_exp, uprox

    delta, u = rng.normal(size=4), 0.7
    step = implicit.implicit_step(2.0, np.log(3.0), jnp.asarray(delta), 0.0, u)
    expected = uprox(2.0, log1p_sum_exp(np.log(3.0) + delta), u)
    np.testing.assert_allclose(step.u, expected, rtol=1e-12)
    np.testing.assert_allclose(step.push, 2.0 * 3.0 * np.exp(delta - expected), rtol=1e-11)


@pytest.mark.thorough
def test_an_omitted_negative_has_no_effect(x64, rng):
    delta = rng.normal(size=4)
    some = implicit.implicit_step(2.0, jnp.array([0.5, -jnp.inf, 0.5, -jnp.inf]), jnp.asarray(delta), 1.0, 0.3)
    less = implicit.implicit_step(2.0, 0.5, jnp.asarray(delta[::2]), 1.0, 0.3)
    np.testing.assert_array_equal(some.push[1::2], 0)
    np.testing.assert_allclose(some.push[::2], less.push, rtol=1e-14)


@pytest.mark.thorough
def test_short_steps_follow_the_gradient_of_the_sample(x64, rng):
    """Identity 9: the difference shrinks tenfold with the step."""
    s = random_step(rng) | {"ridge": 0.0}
    mobility, delta = s["x"] @ s["x"], (s["w"] - s["w_label"]) @ s["x"]
    errors = []
    for c in (1e-3, 1e-4, 1e-5):
        step = implicit.implicit_step(c, jnp.log(s["a"]), jnp.asarray(delta), mobility, s["u"])
        slope = s["a"] * np.exp(delta - s["u"])
        errors.append(
            np.abs(step.push / c - slope).max() + abs((s["u"] - step.u) / c - (1 - np.exp(-s["u"]) - slope.sum()))
        )
    assert 8 < errors[0] / errors[1] < 12 and 8 < errors[1] / errors[2] < 12


# ------------------------------------------------------------------------- all classes, counts


@pytest.mark.thorough
def test_softmax_prox_is_stationary_and_uses_its_whole_step(x64, rng):
    """Identity 13: pushes sum to c, and each is c times the new probability."""
    prox = jax.jit(implicit.softmax_prox)
    for _ in range(60):
        K, c = rng.choice([2, 5, 29]), 10 ** rng.uniform(-3, 3)
        score, mobility, target = 5 * rng.normal(size=K), rng.uniform(0, 4), rng.dirichlet(np.ones(K))
        push = np.asarray(prox(c, score, target, mobility))
        np.testing.assert_allclose(push.sum(), c, rtol=1e-11)
        moved = score + mobility * (c * target - push)
        np.testing.assert_allclose(push, c * np.exp(moved - logsumexp(moved)), rtol=1e-9, atol=1e-14 * c)


@pytest.mark.slow
def test_many_negatives_and_a_fast_auxiliary_variable_give_the_softmax_prox(x64, rng):
    """Identity 13: all K - 1 negatives, u moving R times as fast as the weights; difference about 20/R."""
    K, label = 6, 2
    score, mobility, eta = rng.normal(size=K), 1.3, 0.8
    push = np.asarray(implicit.softmax_prox(eta, jnp.asarray(score), np.eye(K)[label], mobility))
    others = np.arange(K) != label
    delta = jnp.asarray(score[others] - score[label])
    errors = []
    for R in (1e3, 1e4):
        fast = implicit.implicit_step(R * eta, 0.0, delta, mobility / R, 1.0)
        errors.append(np.abs(np.asarray(fast.push) / R - push[others]).max() / push[others].max())
    assert errors[0] < 0.05 and 5 < errors[0] / errors[1] < 20


@pytest.mark.thorough
def test_counts_step_is_the_minimum(x64, rng):
    """Stationary in v and in every class; identity 6 for the form with one variable per row."""
    implicit_counts = jax.jit(implicit.implicit_counts)
    for _ in range(60):
        K, c = rng.choice([2, 5, 11]), 10 ** rng.uniform(-3, 2)
        score, mobility, v = 3 * rng.normal(size=K), rng.uniform(0, 4), 2 * rng.normal()
        target, a = rng.dirichlet(np.ones(K)), rng.uniform(1, 5, K)
        push, after = to_numpy(implicit_counts(c, np.log(a), score, target, mobility, v))
        moved = score + mobility * (c * target - push)
        np.testing.assert_allclose(push, c * a * np.exp(moved - after), rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(after - v + c - push.sum(), 0, atol=1e-10 * (1 + c))
