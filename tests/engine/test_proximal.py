"""Quadratic models for penalties with kinks: corrections from steps, joint minimisation, and fallbacks."""

import numpy as np
import pytest

from glmfit import PopulationGLM, Status, observations, penalties
from glmfit.engine import proximal
from glmfit.engine.exact import proximal_newton
from glmfit.engine.host import HostRows
from glmfit.engine.population import PopulationProblem
from glmfit.engine.result import Hints
from glmfit.solvers import LoopOptions, ProximalNewton


def test_corrections_equal_those_of_bfgs_step_by_step(rng):
    n, fits, steps = 5, 3, 4
    A = rng.normal(size=(fits, 9, n))
    Q = A.swapaxes(1, 2) @ A
    S = rng.normal(size=(steps, n, fits))
    H = np.eye(n) + 0.1 * np.ones((n, n))
    past = [(s, H @ s, 1 / np.einsum("in,in->n", s, H @ s)) for s in S]
    known = rng.random((steps, fits)) < 0.7
    known[-1] = True
    found = proximal._corrected(Q, past, known, np.arange(fits), lambda values: values.T)
    for k in range(fits):
        B = Q[k].copy()
        for (s, y, weight), told in zip(past, known, strict=True):
            if told[k]:
                Bs = B @ s[:, k]
                B += weight[k] * np.outer(y[:, k], y[:, k]) - np.outer(Bs, Bs) / (s[:, k] @ Bs)
        np.testing.assert_allclose(found[k], B, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(found[k] @ S[-1][:, k], past[-1][1][:, k], rtol=1e-10)  # the secant equation


def test_correction_ruined_by_rounding_is_not_used():
    plain = np.stack([np.eye(3), 2 * np.eye(3), np.ones((3, 3))])
    corrected = np.stack([np.diag([1.0, -1.0, 1.0]), 3 * np.eye(3), np.full((3, 3), np.nan)])
    found = proximal._definite(plain, corrected)
    np.testing.assert_allclose(found[:2], np.stack([np.eye(3), 3 * np.eye(3)]), rtol=1e-6)
    assert np.all(np.linalg.eigvalsh(found[2]) > 0)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [14, 28])
def test_fits_that_diverge_along_unpenalised_features_end(seed):
    """Curvature falls by many orders of magnitude on the way, and so do the corrections."""
    rng = np.random.default_rng(seed)
    T, d, N = int(rng.choice([20, 60, 150])), int(rng.choice([80, 120])), 3
    X = rng.normal(size=(T, d))
    Y = rng.poisson(np.exp(rng.normal(size=(T, N)) - 1)).astype(float)
    strength = np.full((d, N), 10.0 ** rng.uniform(-6, -2))
    strength[rng.random((d, N)) < 0.4 * (seed % 3)] = 0
    made = {"inverse_link_function": "exp", "regularizer": "Lasso", "solver_name": "ProximalNewton"}
    with pytest.warns(Warning, match="separable"):
        model = PopulationGLM(**made, regularizer_strength=strength).fit(X, Y)
    assert np.all(model.report_.status == Status.SEPARABLE)


def test_one_fit_with_many_features_does_not_allocate_for_all_fits(rng, monkeypatch):
    X = rng.normal(size=(600, 40))
    Y = rng.poisson(np.exp(X @ (0.1 * rng.normal(size=(40, 12))) - 1))
    sizes = []
    least = proximal.least_of_models
    monkeypatch.setattr(proximal, "least_of_models", lambda Q, *rest: (sizes.append(Q.shape), least(Q, *rest))[1])
    strength = np.full(12, 0.3)
    strength[0] = 1e-3
    PopulationGLM(regularizer="Lasso", regularizer_strength=strength).fit(X, Y)
    assert max(n for n, *_ in sizes) > 5 and max(m for *_, m in sizes) > 30
    assert all(n == 1 for n, m, _ in sizes if m > 20)


def test_a_constant_feature_of_a_group_stays_exactly_zero(rng):
    X = rng.normal(size=(500, 8))
    X[:, 3] = 2.0
    Y = rng.poisson(np.exp(0.2 * X[:, 0] + 0.3 * X[:, 5]))
    model = PopulationGLM(regularizer="GroupLasso", groups=[0, 0, 0, 0, 1, 1, 1, 1], regularizer_strength=1e-3)
    with pytest.warns(UserWarning, match="constant column"):
        model.fit(X, Y)
    assert model.coef_[3] == 0 and np.count_nonzero(model.coef_) == 7


def test_search_without_gain_near_the_optimum_is_followed_by_a_proof(rng, monkeypatch):
    """If a feature has no penalty, only the Hessian proves anything."""
    X = rng.normal(size=(400, 5))
    Y = rng.poisson(np.exp(0.3 * X[:, :1] - 1)).astype(float)
    penalty = penalties.GroupLasso(np.asarray(1e-2), (-1, 0, 0, 1, 1))
    problem = PopulationProblem(X, Y, observations.from_inverse_link("exp"), penalty)
    model = PopulationGLM(inverse_link_function="exp", regularizer="GroupLasso", groups=[-1, 0, 0, 1, 1],
                          regularizer_strength=1e-2, tol=1e-10).fit(X, Y[:, 0])  # fmt: skip
    at = proximal_newton.start(problem, np.append(model.coef_ + 1e-6, model.intercept_))
    assert not np.isfinite(at.bound)
    monkeypatch.setattr(proximal_newton, "search", lambda problem, at, step, look: at._replace(stuck=True))
    after = proximal_newton.iterate(problem, at)
    assert after.stuck and after.bound < 1e-6


def test_rounding_of_the_objective_does_not_reject_the_last_step(rng, monkeypatch):
    """The bound by duality is of first order: it is loose where the objective no longer changes."""
    X = rng.normal(size=(2000, 6))
    Y = rng.poisson(np.exp(0.4 * X[:, :1] - 0.5)).astype(float)
    model = PopulationGLM("exp", "Lasso", regularizer_strength=1e-4, tol=1e-12).fit(X, Y[:, 0])
    problem = PopulationProblem(X, Y, observations.PoissonExp(), penalties.Lasso(1e-4), dtype=np.float64)
    at = proximal_newton.start(problem, np.append(model.coef_ + 1e-9 * (model.coef_ != 0), model.intercept_))
    evaluate, noise = PopulationProblem.evaluate_with_dual, 2e-15
    assert at.rounding < noise < problem.rounding_of(at.params, np.array([at.objective]))[0]

    def noisy(self, params):
        value, bound = evaluate(self, params)
        return value._replace(objective=value.objective + noise), bound

    monkeypatch.setattr(PopulationProblem, "evaluate_with_dual", noisy)
    after = proximal_newton.iterate(problem, at)
    assert after.bound < 0.1 * at.bound and np.any(after.at != at.at)


@pytest.mark.parametrize("regularizer", ["Lasso", "GroupLasso"])
def test_models_of_some_rows_need_a_penalty_on_all_features(regularizer, rng, monkeypatch):
    """Along a feature without a penalty that these rows do not show, nothing would bound a step."""
    X = np.exp(-((rng.uniform(0, 1, (6000, 1)) - np.linspace(0, 1, 6)) ** 2) / 0.02)
    Y = rng.poisson(np.exp(3 * X[:, [1, 4]] - 3)).astype(float)
    penalty = penalties.Lasso(1e-5) if regularizer == "Lasso" else penalties.GroupLasso(1e-5, (-1, 0, 0, 1, 1, 2))
    problem = PopulationProblem(X, Y, observations.from_inverse_link("softplus"), penalty)
    seen, sampled = [], HostRows.sampled_hessians
    monkeypatch.setattr(HostRows, "sampled_hessians", lambda *given: seen.append(0) or sampled(*given))
    solver = ProximalNewton(hints=Hints(curved=np.ones(2, bool), fall=np.ones(2)))
    found = solver.run(problem)
    assert bool(seen) == (regularizer == "Lasso") and np.all(found.status == Status.CONVERGED)
    exact = solver.run(problem, options=LoopOptions(tol=1e-9))
    assert np.all(found.gap >= found.objective - exact.objective - 1e-15)
