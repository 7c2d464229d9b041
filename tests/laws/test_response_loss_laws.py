"""Laws of the losses of yes or no and of measured values: against SciPy, 40 digits and their own definitions."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from glmfit.observations import Bernoulli, Gaussian

RESPONSES = {Bernoulli(): np.array([0.0, 0.3, 1.0]), Gaussian(): np.array([-2.0, 0.0, 7.5])}
EXACT = {
    Bernoulli(): lambda y, a: mp.log(1 + mp.exp(a)) - y * a,
    Gaussian(): lambda y, a: a * a / 2 - y * a,
}
ETA = np.linspace(-30, 30, 41)
every_model = pytest.mark.parametrize("model", RESPONSES, ids=lambda model: model.name)
every_namespace = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


@every_model
@every_namespace
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loss_and_derivatives_match_40_digits(model, xp, dtype, x64):
    y, eta = xp.asarray(RESPONSES[model], dtype=dtype)[None], xp.asarray(ETA, dtype=dtype)[:, None]
    found = model.loss(y, eta), model.derivative(y, eta), model.curvature(y, eta)
    size = 1 + np.abs(eta) + np.abs(y) + np.asarray(eta) ** 2 * (model == Gaussian())
    with mp.workdps(40):
        for order, value in enumerate(found):
            exact = [
                [float(mp.diff(lambda a, b=b: EXACT[model](mp.mpf(b), a), mp.mpf(a), order)) for b in map(float, y[0])]
                for a in map(float, eta[:, 0])
            ]
            assert value.dtype == dtype and value.shape == (41, 3)
            assert np.all(np.abs(np.asarray(value, float) - np.array(exact)) <= 8 * np.finfo(dtype).eps * size)
    together = (*model.loss_and_derivative(y, eta), *model.derivatives(y, eta))
    for one, alone in zip(together, (found[0], found[1], found[1], found[2]), strict=True):
        np.testing.assert_allclose(one, alone, rtol=1e-6 if dtype == np.float32 else 1e-14)


@every_model
def test_third_derivative_is_below_the_constant_times_the_second(model, x64):
    y, eta = (jnp.ravel(a) for a in jnp.broadcast_arrays(jnp.asarray(RESPONSES[model]), jnp.asarray(ETA)[:, None]))
    third = jax.vmap(jax.grad(model.curvature, argnums=1))(y, eta)
    assert np.all(np.abs(third) <= model.constant * model.curvature(y, eta) * (1 + 1e-12))


@every_model
@every_namespace
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_curvature_bound_holds_on_intervals(model, xp, dtype, x64):
    y, lower = xp.asarray(RESPONSES[model], dtype=dtype)[None], xp.asarray(ETA, dtype=dtype)[:, None]
    whole = model.curvature_bound(y)
    for width in (0.0, 0.1, 3.0):
        upper = lower + xp.asarray(width, dtype=dtype)
        bound = model.curvature_bound(y, lower, upper)
        inside = np.linspace(*(np.asarray(a, float) for a in (lower, upper)), 50)
        largest = model.curvature(np.asarray(y, float), inside).max(axis=0)
        assert bound.dtype == dtype and bound.shape == (41, 3)
        assert np.all(largest <= np.asarray(bound, float)) and np.all(bound <= largest * (1 + 1e-3) + 1e-30)
        for wider in (model.curvature_bound(y, lower), model.curvature_bound(y, None, upper), whole):
            assert np.all(wider >= bound)


@every_model
def test_the_misfit_is_the_loss_but_for_a_term_in_the_response_alone(model):
    y, eta = np.broadcast_arrays(RESPONSES[model], ETA[:, None])
    misfit, slope = model.misfit_and_derivative(y, eta)
    np.testing.assert_allclose(slope, model.derivative(y, eta), atol=1e-15)
    rest = misfit - model.loss(y, eta)
    np.testing.assert_allclose(rest, np.broadcast_to(rest[20], rest.shape), atol=1e-12)
    trials = RESPONSES[model]
    spread = model.spread_constant(np.sum((trials - trials.mean()) ** 2))
    for z in (-1.0, 0.7):
        total = model.misfit_and_derivative(trials, np.full(3, z))[0].sum()
        np.testing.assert_allclose(total, 3 * model.misfit_and_derivative(trials.mean(), z)[0] + spread, rtol=1e-13)


@every_model
def test_the_mean_is_the_optimum_and_the_deviance_what_is_above(model):
    y, eta = np.broadcast_arrays(RESPONSES[model], ETA[:, None])
    np.testing.assert_allclose(model.deviance(y, eta) / 2, model.loss(y, eta) - model.saturated_loss(y), atol=1e-12)
    assert np.all(model.deviance(y, eta) >= 0)
    mean = RESPONSES[model].mean()
    assert model.has_optimum(mean) and np.isclose(model.mean(model.link(mean)), mean)
    assert abs(model.derivative(mean, model.intercept(mean))) < 1e-14
    np.testing.assert_allclose(model.intercept(mean, 100.0), model.link(mean), rtol=1e-14)


def test_all_or_none_are_taken_as_if_half_a_response_were_different():
    model = Bernoulli()
    mean = np.array([0.0, 1.0])
    assert not model.has_optimum(mean).any() and np.all(np.isfinite(model.intercept(mean)))
    np.testing.assert_allclose(model.mean(model.intercept(mean, np.array([9.0, 4.0]))), [0.05, 0.9], rtol=1e-14)


def test_log_likelihoods_are_those_of_scipy_and_samples_have_their_moments():
    y = np.array([[0.0], [1.0]])
    np.testing.assert_allclose(
        Bernoulli().log_likelihood(y, ETA), scipy.special.log_expit((2 * y - 1) * ETA), atol=1e-14
    )
    np.testing.assert_allclose(Gaussian().log_likelihood(y, ETA), scipy.stats.norm.logpdf(y, ETA), rtol=1e-13)
    eta = jnp.full(20_000, 0.7, jnp.float32)
    drawn = {model: np.asarray(model.sample(jax.random.key(0), eta), float) for model in RESPONSES}
    p = 1 / (1 + np.exp(-0.7))
    np.testing.assert_allclose(drawn[Bernoulli()].mean(), p, atol=0.02)
    np.testing.assert_allclose([drawn[Gaussian()].mean(), drawn[Gaussian()].var()], [0.7, 1.0], atol=0.04)
    assert set(np.unique(drawn[Bernoulli()])) == {0.0, 1.0}
    assert Bernoulli().wrong(np.array([0.0, 0.5, 1.0]))[0].tolist() == [False, True, False]
