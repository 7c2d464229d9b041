"""Labels and counts over classes: against SciPy, automatic differentiation and enumeration (identity 19 among them)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from glmfit.observations.softmax import CURVATURE_BOUND, Multinomial, log_softmax

N, K = 30, 5


@pytest.fixture
def counts(rng):
    return rng.poisson(1.5, (N, K)).astype(float), 3 * rng.normal(size=(N, K))


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_values_and_residuals_are_those_of_scipy_and_autodiff(counts, xp, x64):
    Y, eta = counts
    model = Multinomial(K)
    p = scipy.special.softmax(eta, axis=1)
    exact = [scipy.stats.multinomial(int(y.sum()), q).logpmf(y) for y, q in zip(Y, p, strict=True)]
    np.testing.assert_allclose(model.log_likelihood(Y, eta), exact, atol=1e-11)
    loss = model.loss(xp.asarray(Y), xp.asarray(eta))
    np.testing.assert_allclose(
        jnp.sum(loss), model.total(jnp.asarray(Y), jnp.asarray(eta), jnp.ones((N, 1))), rtol=1e-13
    )
    slope = jax.grad(lambda e: jnp.sum(model.loss(jnp.asarray(Y), e)))(jnp.asarray(eta))
    np.testing.assert_allclose(model.derivative(xp.asarray(Y), xp.asarray(eta)), slope, atol=1e-12)
    v = np.random.default_rng(0).normal(size=(N, K))
    curved = jax.jvp(lambda e: model.derivative(jnp.asarray(Y), e), (jnp.asarray(eta),), (jnp.asarray(v),))[1]
    np.testing.assert_allclose(model.curve(xp.asarray(Y), xp.asarray(eta), xp.asarray(v)), curved, atol=1e-12)


def test_the_curvature_bound_holds_and_is_attained(rng):
    for _ in range(300):
        p = rng.dirichlet(rng.choice([0.05, 1.0, 20.0]) * np.ones(K))
        H = np.diag(p) - np.outer(p, p)
        assert np.linalg.eigvalsh(H)[-1] <= CURVATURE_BOUND + 1e-12
        assert np.linalg.eigvalsh((np.eye(K) - 1 / K) / 2 - H)[0] >= -1e-13
    half = np.array([0.5, 0.5, 0, 0, 0])
    np.testing.assert_allclose(np.linalg.eigvalsh(np.diag(half) - np.outer(half, half))[-1], CURVATURE_BOUND)
    np.testing.assert_array_equal(Multinomial(K).curvature_bound(np.array([[1.0, 2, 0, 0, 0]])), [1.5])


def test_the_third_derivative_is_at_most_the_range_times_the_second(rng):
    """What makes the softmax loss self-concordant along every direction."""
    for _ in range(300):
        p, h = rng.dirichlet(0.3 * np.ones(K)), rng.normal(size=K)
        centred = h - p @ h
        assert abs(p @ centred**3) <= np.ptp(h) * (p @ centred**2) * (1 + 1e-12)


def test_deviance_is_zero_where_shares_are_predicted_exactly():
    Y = np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [5.0, 5.0, 10.0]])
    with np.errstate(divide="ignore"):
        eta = np.log(Y / np.maximum(Y.sum(axis=1, keepdims=True), 1))
    eta[1] = 0
    np.testing.assert_allclose(Multinomial(3).deviance(Y, eta), 0, atol=1e-12)
    assert np.all(Multinomial(3).deviance(Y[[0, 2]], np.zeros((2, 3))) > 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_of_1e4_are_finite(dtype, x64):
    eta = np.array([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], dtype)
    Y = np.array([[0.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype)
    for xp in (np, jnp):
        with np.errstate(over="raise", invalid="raise"):
            loss, residual = Multinomial(3).loss(xp.asarray(Y), xp.asarray(eta)), Multinomial(3).derivative(Y, eta)
        assert np.asarray(loss).dtype == dtype
        np.testing.assert_allclose(loss, [2e4, 3 * np.log(3)], rtol=1e-6)
        assert np.all(np.isfinite(residual))
    assert np.all(np.isfinite(log_softmax(eta)))


def test_samples_have_the_probabilities(rng):
    eta = np.tile([0.0, 1.0, -1.0], (20_000, 1))
    p = scipy.special.softmax(eta[0])
    Y = Multinomial(3).sample(rng, np.full(len(eta), 4), eta)
    assert np.all(Y.sum(axis=1) == 4)
    np.testing.assert_allclose(Y.mean(axis=0) / 4, p, atol=0.01)
