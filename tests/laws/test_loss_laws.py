"""Laws of every loss of one response, compared with 40 digits and with their own definitions."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from cases import LOSSES

from glmfit.observations import Bernoulli, Gaussian

ETA = np.linspace(-30, 30, 41)
every_loss = pytest.mark.parametrize("name", LOSSES)
every_namespace = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def grid(name, xp=np, dtype=np.float64):
    """Responses (1, response) and predictors (eta, 1)."""
    return xp.asarray(LOSSES[name].responses, dtype=dtype)[None], xp.asarray(ETA, dtype=dtype)[:, None]


@functools.cache
def exactly(name, dtype, order):
    """Derivative of a loss in its predictor with 40 digits, (eta, response), and the same for a response of 0."""
    y, eta = (a.astype(float).ravel() for a in grid(name, dtype=dtype))
    formula = LOSSES[name].exact
    with mp.workdps(40):
        rows = [[mp.diff(lambda a, b=b: formula(b, a), a, order) for b in map(mp.mpf, (0.0, *y))]
                for a in map(mp.mpf, eta)]  # fmt: skip
    rows = np.array(rows, float)
    return rows[:, 1:], rows[:, :1]


def formulas(model, xp):
    """Loss, derivative and curvature, each alone and together; one compilation of all for JAX."""

    def everything(y, eta):
        alone = model.loss(y, eta), model.derivative(y, eta), model.curvature(y, eta)
        return alone, (*model.loss_and_derivative(y, eta), *model.derivatives(y, eta))

    return jax.jit(everything) if xp is jnp else everything


@pytest.mark.thorough
@every_loss
@every_namespace
@every_dtype
def test_loss_and_derivatives_match_40_digits(name, xp, dtype, x64):
    model, y, eta = LOSSES[name].model, *grid(name, xp, dtype)
    found, together = formulas(model, xp)(y, eta)
    eps = np.finfo(dtype).eps
    for order, value in enumerate(found):
        exact, without = exactly(name, dtype, order)
        # A difference is judged by the sizes of the terms of the loss, with and without a response.
        size = np.abs(without) + np.abs(exact - without) + (order == 0) * np.abs(eta) * (1 + np.abs(y))
        assert value.dtype == dtype and value.shape == exact.shape
        assert np.all(np.abs(np.asarray(value, float) - exact) <= 40 * eps * np.asarray(size, float) + eps)
    for one, alone in zip(together, (found[0], found[1], found[1], found[2]), strict=True):
        np.testing.assert_allclose(one, alone, rtol=20 * eps, atol=eps)


@every_loss
def test_derivatives_are_linear_in_the_response(name):
    """Fits begin at one predictor for all rows, where the engine relies on it."""
    model, (y, eta) = LOSSES[name].model, grid(name)
    for formula in (model.derivative, model.curvature):
        none, one = formula(np.zeros_like(eta), eta), formula(np.ones_like(eta), eta)
        size = np.abs(none) + np.abs(one) * (1 + np.abs(y))
        np.testing.assert_array_less(np.abs(formula(y, eta) - none - y * (one - none)), 1e-13 * size + 1e-30)


@pytest.mark.thorough
@every_loss
def test_third_derivative_is_below_the_constant_times_the_second(name, x64):
    model = LOSSES[name].model
    y, eta = (jnp.ravel(a) for a in jnp.broadcast_arrays(*grid(name, jnp)))
    third = jax.jit(jax.vmap(jax.grad(model.curvature, argnums=1)))(y, eta)
    assert np.all(np.abs(third) <= model.constant * model.curvature(y, eta) * (1 + 1e-12) + 1e-15 * np.abs(y))


@pytest.mark.thorough
@every_loss
@every_namespace
@every_dtype
def test_curvature_bound_holds_on_intervals(name, xp, dtype, x64):
    model, y, lower = LOSSES[name].model, *grid(name, xp, dtype)

    def bounds(y, lower, upper):
        ends = (lower, upper), (lower, None), (None, upper), (None, None)
        return [model.curvature_bound(y, *interval) for interval in ends]

    bounds = jax.jit(bounds) if xp is jnp else bounds
    for width in (0.0, 0.1, 3.0):
        upper = lower + xp.asarray(width, dtype=dtype)
        bound, *larger = bounds(y, lower, upper)
        inside = np.linspace(*(np.asarray(a, float) for a in (lower, upper)), 50)
        largest = model.curvature(np.asarray(y, float), inside).max(axis=0)
        assert bound.dtype == dtype and bound.shape == largest.shape
        assert np.all(largest <= np.asarray(bound, float)) and np.all(bound <= largest * 1.0132 + 1e-16)
        for wider in larger:
            assert np.all(wider >= bound * (1 - 1e-6))


@every_loss
def test_the_misfit_is_the_loss_up_to_a_term_in_the_response_alone(name):
    model, y, eta = LOSSES[name].model, *np.broadcast_arrays(*grid(name))
    eta = np.clip(eta, -9, 9)
    misfit, slope = model.misfit_and_derivative(y, eta)
    np.testing.assert_allclose(slope, model.derivative(y, eta), rtol=1e-13, atol=1e-13)
    rest = misfit - model.loss(y, eta)
    np.testing.assert_allclose(rest, np.broadcast_to(rest[20], rest.shape), atol=1e-9)
    trials = y[0]
    spread = model.spread_constant(np.sum((trials - trials.mean()) ** 2))
    for z in (-1.0, 0.7):
        total = model.misfit_and_derivative(trials, np.full(len(trials), z))[0].sum()
        mean = len(trials) * model.misfit_and_derivative(trials.mean(), z)[0]
        np.testing.assert_allclose(total, mean + spread, rtol=1e-13)


@every_loss
def test_the_mean_is_optimal_and_the_deviance_is_twice_the_excess(name):
    model, y, eta = LOSSES[name].model, *np.broadcast_arrays(*grid(name))
    excess = model.loss(y, eta) - model.saturated_loss(y)
    np.testing.assert_allclose(model.deviance(y, eta) / 2, excess, rtol=1e-12, atol=1e-12)
    assert np.all(model.deviance(y, eta) >= 0)
    mean = y[0].mean()
    assert model.has_optimum(mean) and np.isclose(model.mean(model.link(mean)), mean)
    assert abs(model.derivative(mean, model.intercept(mean))) < 1e-13
    np.testing.assert_allclose(model.intercept(mean, 100.0), model.link(mean), rtol=1e-14)
    assert abs(np.mean(model.derivative(y[0], model.intercept(mean)))) < 1e-13  # the loss is linear in y


@every_loss
def test_the_log_probability_is_minus_the_loss_plus_a_term_in_the_response_alone(name):
    model, y, eta = LOSSES[name].model, *np.broadcast_arrays(*grid(name))
    eta = np.clip(eta, -3, 3)
    likelihood, loss = model.log_likelihood(y, eta), model.loss(y, eta)
    rise, fall = likelihood - likelihood[20], loss[20] - loss
    scale = np.ptp(rise) / np.ptp(fall)  # for gamma its shape, else 1
    np.testing.assert_allclose(rise, scale * fall, rtol=1e-9, atol=1e-9)


@pytest.mark.thorough
@every_loss
def test_samples_have_the_right_mean_and_are_valid_responses(name):
    model, eta = LOSSES[name].model, jnp.full(20_000, 0.7, jnp.float32)
    drawn = np.asarray(model.sample(jax.random.key(0), eta), float)
    assert abs(drawn.mean() - model.mean(np.array(0.7))) < 5 * drawn.std() / np.sqrt(len(drawn))
    assert not model.wrong(drawn)[0].any()


def test_means_of_0_and_1_are_treated_as_if_half_a_response_were_different():
    model = Bernoulli()
    mean = np.array([0.0, 1.0])
    assert not model.has_optimum(mean).any() and np.all(np.isfinite(model.intercept(mean)))
    np.testing.assert_allclose(model.mean(model.intercept(mean, np.array([9.0, 4.0]))), [0.05, 0.9], rtol=1e-14)


def test_log_likelihoods_are_those_of_scipy():
    y = np.array([[0.0], [1.0]])
    signed = (2 * y - 1) * ETA
    np.testing.assert_allclose(Bernoulli().log_likelihood(y, ETA), scipy.special.log_expit(signed), atol=1e-14)
    np.testing.assert_allclose(Gaussian().log_likelihood(y, ETA), scipy.stats.norm.logpdf(y, ETA), rtol=1e-13)
    assert Bernoulli().wrong(np.array([0.0, 0.5, 1.0]))[0].tolist() == [False, True, False]
    drawn = np.asarray(Gaussian().sample(jax.random.key(0), jnp.full(20_000, 0.7, jnp.float32)), float)
    np.testing.assert_allclose([drawn.mean(), drawn.var()], [0.7, 1.0], atol=0.04)
