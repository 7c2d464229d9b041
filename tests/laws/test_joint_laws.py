"""Problems defined by the value of their loss, the SAGA that fits them, and the proximal steps behind it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import recording
from scipy.optimize import minimize

from glmfit import penalties
from glmfit.engine.problem import Params
from glmfit.observations.base import RowLoss
from glmfit.plugins.nemos.proximal import proximal_gradient
from glmfit.saga.joint import JointProblem, fit_joint
from glmfit.status import Status

T, D, K = 500, 4, 3
KEY = jax.random.key(0)


@dataclass(frozen=True)
class Softmax(RowLoss):
    n_coupled: int = K

    def total(self, y, eta, weight):
        return -jnp.sum(weight * jnp.sum(y * jax.nn.log_softmax(eta), axis=1, keepdims=True))


@dataclass(frozen=True)
class Reciprocal(RowLoss):
    """Gamma with the reciprocal link: infinite at a linear predictor of 0."""

    def total(self, y, eta, weight):
        return jnp.sum(weight * (y * eta - jnp.log(jnp.maximum(eta, 1e-30))))


def choices(seed=0):
    """Features with a mean, and one-hot choices they drive."""
    rng = np.random.default_rng([seed, 3])
    X, _ = recording(seed=seed, t=T, d=D)
    scores = (X - X.mean(axis=0)) @ rng.normal(size=(D, K)) * 0.4 + rng.gumbel(size=(T, K))
    return X, np.eye(K)[scores.argmax(axis=1)]


def softmax_objective(theta, X, Y, ridge):
    """Value and gradient, NumPy float64."""
    theta = theta.reshape(D + 1, K)
    eta = X @ theta[:-1] + theta[-1]
    eta = eta - eta.max(axis=1, keepdims=True)
    log_p = eta - np.log(np.exp(eta).sum(axis=1, keepdims=True))
    r = (np.exp(log_p) - Y) / T
    value = -np.sum(Y * log_p) / T + ridge / 2 * np.sum(theta[:-1] ** 2)
    return value, np.vstack([X.T @ r + ridge * theta[:-1], r.sum(axis=0, keepdims=True)]).ravel()


def fitted(X, Y, name="Ridge", strength=0.01, dtype=np.float64, groups=None, start=None, tol=1e-12, **options):
    penalty = penalties.make(name, strength, D, K, groups=groups)
    problem = JointProblem(X.astype(dtype), Y.astype(dtype), Softmax(), penalty, K, dtype)
    start = Params(np.zeros((D, K)), np.zeros(K)) if start is None else start
    return fit_joint(problem, start, key=KEY, tol=tol, **options)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("ridge", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_softmax_is_fitted_and_its_gap_estimated(ridge, dtype, x64):
    X, Y = choices()
    best = minimize(softmax_objective, np.zeros((D + 1) * K), (X, Y, ridge), "BFGS", jac=True, options={"gtol": 1e-10})
    solution = fitted(X, Y, strength=ridge, dtype=dtype, tol=1e-12 if dtype is np.float64 else 1e-6)
    theta = np.vstack([solution.params.coef, solution.params.intercept])
    gap = softmax_objective(theta.ravel(), X, Y, ridge)[0] - best.fun
    assert solution.status == Status.UNPROVED and gap <= 1.1 * solution.target.sum() + 1e-14
    # Second order, within the rounding of the reference.
    assert 0.5 * gap - 1e-13 <= solution.gap.sum() <= 2 * gap + 1e-10
    np.testing.assert_allclose(theta.sum(axis=1), 0, atol=1e-5)  # what the data do not determine has not moved
    assert solution.objective <= softmax_objective(np.zeros((D + 1) * K), X, Y, ridge)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Lasso", "ElasticNet", "GroupLasso"])
def test_a_sparse_softmax_agrees_with_proximal_steps(name, x64):
    X, Y = choices()
    groups = [0, 0, 1, 1] if name == "GroupLasso" else None
    penalty = penalties.make(name, 0.03, D, K, groups=groups)

    def loss(p):
        return -jnp.mean(jnp.sum(Y * jax.nn.log_softmax(X @ p[0] + p[1][None]), axis=1))

    def prox(p, step):
        ridge = jnp.asarray(penalty.ridge_strength, p[0].dtype)
        return penalty.prox(p[0], step) / (1 + step * ridge), p[1]

    best = proximal_gradient(
        loss, prox, lambda p: jnp.sum(penalty.value(p[0])), (jnp.zeros((D, K)), jnp.zeros(K)), 1e-7, 20_000
    )
    assert best.converged
    solution = fitted(X, Y, name, 0.03, groups=groups, tol=1e-8)
    assert -1e-10 <= solution.objective - float(best.objective) <= 2e-7
    np.testing.assert_allclose(solution.params.coef, best.params[0], atol=2e-3)


@pytest.mark.thorough
def test_padding_rows_never_make_the_loss_infinite(x64):
    rng = np.random.default_rng(0)
    X = rng.uniform(0.5, 1.5, size=(101, 2))
    Y = rng.gamma(2.0, 1 / (X @ [1.0, 2.0]) / 2)[:, None]
    problem = JointProblem(X, Y, Reciprocal(), penalties.make("Ridge", 1e-3, 2, 1), 1, np.float64)
    solution = fit_joint(problem, Params(np.zeros((2, 1)), np.ones(1)), key=KEY, tol=1e-10, batch_size=32)
    assert np.isfinite(solution.objective) and solution.status == Status.UNPROVED


@pytest.mark.thorough
def test_limits_of_step_and_budget_are_kept_and_the_same_key_repeats(x64):
    X, Y = choices()
    short = fitted(X, Y, step_limit=1e-3, tol=1e-6)
    assert short.state <= 1e-3 and short.status == Status.UNPROVED
    penalty = penalties.make("Ridge", 0.01, D, K)
    problem = JointProblem(X, Y, Softmax(), penalty, K, np.float64)
    start = Params(np.zeros((D, K)), np.zeros(K))
    two = fit_joint(problem, start, key=KEY, tol=1e-12, max_epochs=2)
    assert two.epochs == 2 and two.status == Status.MAX_EPOCHS
    again = fit_joint(problem, start, key=KEY, tol=1e-12, max_epochs=2)
    np.testing.assert_array_equal(two.params.coef, again.params.coef)


# ------------------------------------------------------------------------- proximal steps


@pytest.mark.slow
def test_proximal_steps_never_raise_the_objective_whatever_the_first_step(x64):
    X, Y = choices()
    loss = lambda p: -jnp.mean(jnp.sum(Y * jax.nn.log_softmax(X @ p), axis=1))  # noqa: E731
    before = np.inf
    for n_steps in (0, 1, 2, 5, 20):
        for step in (1e-6, 1.0, 1e9):
            result = proximal_gradient(loss, lambda p, s: p, lambda p: 0.0, jnp.zeros((D, K)), 0.0, n_steps, step)
            assert result.n_steps <= n_steps and result.objective <= loss(jnp.zeros((D, K)))
            if step == 1.0:
                assert result.objective <= before
                before = result.objective


@pytest.mark.thorough
def test_proximal_steps_do_not_converge_if_nothing_is_finite(x64):
    result = proximal_gradient(lambda p: jnp.nan * p.sum(), lambda p, s: p, lambda p: 0.0, jnp.ones(3), 1e-8, 100)
    assert not result.converged
