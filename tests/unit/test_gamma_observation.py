"""A model that is not Poisson is one class: gamma responses, written here, keep the laws and are fitted with bounds."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.stats
from cases import penalty, solve

from glmfit import Status, engine
from glmfit.numerics import exp, gammaln, namespace, round_up
from glmfit.observations.base import Observation
from glmfit.solvers import LoopOptions

SHAPE = 2.0


class Gamma(Observation):
    """Values > 0 of mean e^eta and variance e^2eta / SHAPE: phi = y e^-eta + eta, and |phi'''| = phi''."""

    name: ClassVar[str] = "gamma"
    constant: ClassVar[float | None] = 1.0

    def loss(self, y, eta):
        return y * exp(-eta) + eta

    def derivative(self, y, eta):
        return 1.0 - y * exp(-eta)

    def curvature(self, y, eta):
        return y * exp(-eta)

    def curvature_bound(self, y, lower=None, upper=None):
        xp = namespace(y)
        bound = xp.full_like(y, np.inf) if lower is None else round_up(y * exp(-lower))
        return bound if upper is None else xp.broadcast_arrays(bound, upper)[0]

    def mean(self, eta):
        return exp(eta)

    def link(self, mean):
        return namespace(mean).log(mean)

    def log_likelihood(self, y, eta):
        constant = SHAPE * np.log(SHAPE) - float(gammaln(np.asarray(SHAPE)))
        return constant + (SHAPE - 1.0) * namespace(y).log(y) - SHAPE * self.loss(y, eta)

    def sample(self, key, eta, dtype=None):
        eta = jnp.asarray(eta)
        drawn = jax.random.gamma(key, SHAPE, eta.shape, eta.dtype) * self.mean(eta) / SHAPE
        return drawn if dtype is None else drawn.astype(dtype)

    def wrong(self, y):
        return y <= 0, "values > 0"


MODEL = Gamma()
RESPONSES, ETA = np.array([0.03, 0.7, 1.0, 40.0]), np.linspace(-6, 6, 25)
every_namespace = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


# ---------------------------------------------------------------------------------------- laws


@every_namespace
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loss_and_derivatives_match_40_digits(xp, dtype, x64):
    y, eta = xp.asarray(RESPONSES, dtype=dtype)[None], xp.asarray(ETA, dtype=dtype)[:, None]
    found = MODEL.loss(y, eta), MODEL.derivative(y, eta), MODEL.curvature(y, eta)
    together = (*MODEL.loss_and_derivative(y, eta), *MODEL.derivatives(y, eta))
    with mp.workdps(40):
        for order, value in enumerate(found):
            exact = [
                [float(mp.diff(lambda a, b=b: mp.mpf(b) * mp.exp(-a) + a, mp.mpf(a), order)) for b in map(float, y[0])]
                for a in map(float, eta[:, 0])
            ]
            assert value.dtype == dtype
            size = np.asarray(y * np.exp(-np.asarray(eta)) + 1 + np.abs(eta))
            assert np.all(np.abs(np.asarray(value, float) - np.array(exact)) <= 4 * np.finfo(dtype).eps * size)
    for one, alone in zip(together, (found[0], found[1], found[1], found[2]), strict=True):
        np.testing.assert_array_equal(one, alone)


def test_third_derivative_is_below_the_constant_times_the_second(x64):
    y, eta = (jnp.ravel(a) for a in jnp.broadcast_arrays(jnp.asarray(RESPONSES), jnp.asarray(ETA)[:, None]))
    third = jax.vmap(jax.grad(MODEL.curvature, argnums=1))(y, eta)
    assert np.all(np.abs(third) <= MODEL.constant * MODEL.curvature(y, eta) * (1 + 1e-12))


@every_namespace
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_curvature_bound_holds_on_intervals(xp, dtype, x64):
    y, lower = xp.asarray(RESPONSES, dtype=dtype)[None], xp.asarray(ETA, dtype=dtype)[:, None]
    for width in (0.0, 0.1, 3.0):
        upper = lower + width
        bound = MODEL.curvature_bound(y, lower, upper)
        inside = np.linspace(*(np.asarray(a, float) for a in (lower, upper)), 50)
        largest = MODEL.curvature(np.asarray(y, float), inside).max(axis=0)
        assert bound.dtype == dtype and bound.shape == (25, 4)
        assert np.all(largest <= np.asarray(bound, float)) and np.all(bound <= largest * (1 + 1e-5))
        assert np.all(MODEL.curvature_bound(y, lower) >= bound)
    assert np.all(np.isinf(MODEL.curvature_bound(y))) and np.all(np.isinf(MODEL.curvature_bound(y, None, upper)))


def test_saturated_loss_is_the_least_and_the_deviance_what_is_above():
    y, eta = np.broadcast_arrays(RESPONSES, ETA[:, None])
    np.testing.assert_allclose(MODEL.saturated_loss(RESPONSES), 1 + np.log(RESPONSES), rtol=1e-14)
    assert np.all(MODEL.loss(y, eta) >= MODEL.saturated_loss(y))
    ratio = y / np.exp(eta)
    np.testing.assert_allclose(MODEL.deviance(y, eta), 2 * (ratio - 1 - np.log(ratio)), rtol=1e-9)
    assert MODEL.deviance(np.array([1, 2]), np.float32([0.0, 0.1])).dtype == np.float32


def test_mean_response_is_all_that_a_model_without_features_needs(rng):
    y = rng.gamma(SHAPE, size=50)
    mean = y.mean()
    assert MODEL.has_optimum(mean) and np.isclose(MODEL.mean(MODEL.link(mean)), mean)
    for eta in (-1.0, MODEL.intercept(mean), 2.0):
        np.testing.assert_allclose(MODEL.loss(y, eta).mean(), MODEL.loss(mean, eta), rtol=1e-13)
    assert abs(MODEL.derivative(y, MODEL.intercept(mean)).mean()) < 1e-13


def test_log_likelihood_is_that_of_scipy_and_samples_have_their_moments():
    y, eta = np.broadcast_arrays(RESPONSES, ETA[:, None])
    expected = scipy.stats.gamma.logpdf(y, SHAPE, scale=np.exp(eta) / SHAPE)
    np.testing.assert_allclose(MODEL.log_likelihood(y, eta), expected, rtol=1e-11, atol=1e-12)
    drawn = np.asarray(MODEL.sample(jax.random.key(0), jnp.full(20_000, 0.7, jnp.float32)), float)
    np.testing.assert_allclose([drawn.mean(), drawn.var()], [np.exp(0.7), np.exp(1.4) / SHAPE], rtol=0.04)
    wrong, needs = MODEL.wrong(np.array([-1.0, 0.0, 2.0]))
    assert wrong.tolist() == [True, True, False] and "> 0" in needs


# ---------------------------------------------------------------------------------------- a fit


def objective(X, Y, coef, intercept, strength):
    eta = X @ coef + intercept
    return (Y * np.exp(-eta) + eta).mean(axis=0) + strength / 2 * np.sum(coef**2, axis=0)


def optimum(X, y, strength):
    """Newton's method in float64 on the formulas above, and on nothing of the package."""
    rows = np.column_stack([X, np.ones(len(X))])
    ridge = np.append(np.full(X.shape[1], strength), 0.0)
    b = np.append(np.zeros(X.shape[1]), np.log(y.mean()))

    def value(b):
        return np.mean(y * np.exp(-rows @ b) + rows @ b) + ridge @ b**2 / 2

    for _ in range(100):
        bend = y * np.exp(-rows @ b)
        g = rows.T @ (1 - bend) / len(y) + ridge * b
        step = np.linalg.solve((rows.T * bend) @ rows / len(y) + np.diag(ridge), g)
        length = 1.0
        while value(b - length * step) > value(b) + 1e-15 and length > 1e-6:
            length /= 2
        b = b - length * step
        if g @ step < 1e-26:
            break
    return b[:-1], b[-1]


@pytest.fixture(scope="module")
def recording():
    """Enough numbers for the compiled program of the engine, and features with a mean."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(15_000, 5)) @ (np.eye(5) + 0.3 * rng.normal(size=(5, 5))) + 0.5
    mean = np.exp(X @ rng.normal(size=(5, 3)) * 0.4 + [-2.0, 0.0, 3.0])
    return X.astype(np.float32), rng.gamma(SHAPE, mean / SHAPE).astype(np.float32)


@pytest.mark.parametrize("name, strength", [("Ridge", 0.01), ("UnRegularized", 0.0)])
@pytest.mark.parametrize("tol", [0.1, 1e-8])
def test_a_fit_ends_within_its_bound_of_an_independent_optimum(recording, name, strength, tol):
    X, Y = recording
    made = penalty(name, strength, d=5, n=3)
    problem = engine.PopulationProblem(X, Y, MODEL, made)
    found = solve(problem, LoopOptions(tol=tol, negligible=0.0))
    X, Y = X.astype(float), Y.astype(float)
    coef, intercept = (np.stack(part, axis=-1) for part in zip(*(optimum(X, y, strength) for y in Y.T), strict=True))
    best = objective(X, Y, coef, intercept, strength)
    np.testing.assert_allclose(found.objective, objective(X, Y, *found.params, strength), rtol=1e-12)
    assert np.all(found.status == Status.CONVERGED) and found.gap_is_bound.all()
    gap = found.objective - best
    assert np.all(gap <= found.gap) and np.all(gap >= -1e-14 * np.abs(best)) and np.all(found.gap <= found.target)
    assert np.all(found.target <= tol * (found.null_objective - best) * 1.001)
    if tol == 0.1:
        assert np.all(found.gap < 30 * gap)  # and the bound says something
    else:
        np.testing.assert_allclose(found.params.coef, coef, atol=1e-4)
    assert np.all(problem.saturated_loss <= best)
    np.testing.assert_allclose(problem.saturated_loss, (1 + np.log(Y)).mean(axis=0), rtol=1e-10)
