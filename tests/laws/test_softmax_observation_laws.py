"""Laws of counts over classes, compared with SciPy and enumeration (includes identity 19)."""

import numpy as np
import pytest
import scipy.special
import scipy.stats

from glmfit.observations.softmax import Multinomial

N, K = 30, 5


def test_log_likelihoods_are_those_of_scipy(rng):
    Y, eta = rng.poisson(1.5, (N, K)).astype(float), 3 * rng.normal(size=(N, K))
    p = scipy.special.softmax(eta, axis=1)
    exact = [scipy.stats.multinomial(int(y.sum()), q).logpmf(y) for y, q in zip(Y, p, strict=True)]
    np.testing.assert_allclose(Multinomial().log_likelihood(Y, eta), exact, atol=1e-11)
    loss = Y.sum(axis=1) * scipy.special.logsumexp(eta, axis=1) - np.sum(Y * eta, axis=1)
    np.testing.assert_allclose(Multinomial().loss(Y, eta), loss, rtol=1e-13)


def test_the_third_derivative_is_at_most_the_range_times_the_second(rng):
    """What makes the softmax loss self-concordant along every direction."""
    for _ in range(300):
        p, h = rng.dirichlet(0.3 * np.ones(K)), rng.normal(size=K)
        centred = h - p @ h
        assert abs(p @ centred**3) <= np.ptp(h) * (p @ centred**2) * (1 + 1e-12)


def test_deviance_is_zero_if_shares_are_predicted_exactly():
    Y = np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [5.0, 5.0, 10.0]])
    with np.errstate(divide="ignore"):
        eta = np.log(Y / np.maximum(Y.sum(axis=1, keepdims=True), 1))
    eta[1] = 0
    np.testing.assert_allclose(Multinomial().deviance(Y, eta), 0, atol=1e-12)
    assert np.all(Multinomial().deviance(Y[[0, 2]], np.zeros((2, 3))) > 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_of_1e4_are_finite(dtype):
    eta = np.array([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], dtype)
    Y = np.array([[0.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype)
    with np.errstate(over="raise", invalid="raise"):
        loss = Multinomial().loss(Y, eta)
    assert loss.dtype == dtype
    np.testing.assert_allclose(loss, [2e4, 3 * np.log(3)], rtol=1e-6)


def test_samples_have_the_right_probabilities(rng):
    eta = np.tile([0.0, 1.0, -1.0], (20_000, 1))
    p = scipy.special.softmax(eta[0])
    Y = Multinomial().sample(rng, np.full(len(eta), 4), eta)
    assert np.all(Y.sum(axis=1) == 4)
    np.testing.assert_allclose(Y.mean(axis=0) / 4, p, atol=0.01)
