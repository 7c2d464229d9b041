"""Gamma responses are fitted with bounds: another model takes one class and one line in cases.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from cases import LOSSES, penalty, proved_gap, solve

from glmfit import Status, engine
from glmfit.observations import Gamma
from glmfit.solvers import LoopOptions

SHAPE = 2.0
MODEL = Gamma(1 / SHAPE)
RESPONSES, ETA = np.array(LOSSES["gamma"].responses), np.linspace(-6, 6, 25)


def test_saturated_loss_and_deviance_match_the_formulas():
    y, eta = np.broadcast_arrays(RESPONSES, ETA[:, None])
    np.testing.assert_allclose(MODEL.saturated_loss(RESPONSES), 1 + np.log(RESPONSES), rtol=1e-14)
    ratio = y / np.exp(eta)
    np.testing.assert_allclose(MODEL.deviance(y, eta), 2 * (ratio - 1 - np.log(ratio)), rtol=1e-9)
    assert MODEL.deviance(np.array([1, 2]), np.float32([0.0, 0.1])).dtype == np.float32


@pytest.mark.thorough
def test_log_likelihood_equals_that_of_scipy_and_samples_have_the_right_moments():
    y, eta = np.broadcast_arrays(RESPONSES, ETA[:, None])
    expected = scipy.stats.gamma.logpdf(y, SHAPE, scale=np.exp(eta) / SHAPE)
    np.testing.assert_allclose(MODEL.log_likelihood(y, eta), expected, rtol=1e-11, atol=1e-12)
    drawn = np.asarray(MODEL.sample(jax.random.key(0), jnp.full(20_000, 0.7, jnp.float32)), float)
    np.testing.assert_allclose([drawn.mean(), drawn.var()], [np.exp(0.7), np.exp(1.4) / SHAPE], rtol=0.04)
    wrong, needs = MODEL.wrong(np.array([-1.0, 0.0, 2.0]))
    assert wrong.tolist() == [True, True, False] and "> 0" in needs


def objective(X, Y, coef, intercept, strength):
    eta = X @ coef + intercept
    return (Y * np.exp(-eta) + eta).mean(axis=0) + strength / 2 * np.sum(coef**2, axis=0)


def optimum(X, y, strength):
    """Newton's method in float64 on the formulas above, without code from the package."""
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
    """Enough data for the engine's compiled program, and features with a nonzero mean."""
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
        assert np.all(found.gap < 30 * gap)  # and the bound is informative
    else:
        np.testing.assert_allclose(found.params.coef, coef, atol=1e-4)
    assert np.all(problem.saturated_loss <= best)
    np.testing.assert_allclose(problem.saturated_loss, (1 + np.log(Y)).mean(axis=0), rtol=1e-10)


class Unknown(Gamma):
    """Gamma responses without a known constant."""

    constant = None


class Steeper(Gamma):
    """Gamma responses with a larger constant than necessary: bounds may only grow."""

    constant = 3.0


@pytest.mark.parametrize("name, strength", [("Ridge", 0.01), ("UnRegularized", 0.0)])
def test_newton_uses_the_constant_of_the_loss_for_its_bounds(recording, name, strength):
    X, Y = (a[:500] for a in recording)
    made, options = penalty(name, strength, d=5, n=3), LoopOptions(tol=0.1, negligible=0.0)
    gamma, steeper, unknown = (
        engine.Newton().run(engine.PopulationProblem(X, Y, model(), made), options=options)
        for model in (Gamma, Steeper, Unknown)
    )
    assert gamma.gap_is_bound.all() and steeper.gap_is_bound.all()
    assert np.all(steeper.gap >= gamma.gap) and np.any(steeper.gap > gamma.gap)
    if name == "UnRegularized":  # otherwise duality proves the gap, whatever the constant
        assert not unknown.gap_is_bound.any() and Status.CONVERGED not in unknown.status


@pytest.mark.parametrize("strength", [0.01, 1e-6])
def test_products_prove_nothing_without_a_constant_of_the_loss(recording, strength):
    X, Y = (a[:500] for a in recording)
    ridge = penalty("Ridge", strength, d=5, n=3)
    gamma, unknown = (engine.PopulationProblem(X, Y, model(), ridge) for model in (Gamma, Unknown))
    at = solve(gamma).params
    assert np.all(np.isfinite(proved_gap(gamma, at))) and np.all(np.isinf(proved_gap(unknown, at)))
