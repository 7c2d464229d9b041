"""Laws of softmax problems: objective and gradient match the definition; the gap bound holds at any parameters."""

import numpy as np
import pytest
import scipy.sparse as sp
from oracles import softmax as oracle
from scipy.optimize import minimize

from glmfit.engine.problem import Params
from glmfit.stochastic import class_gap, class_problem

N, D, K = 60, 4, 5


def make(rng, strength=0.01, intercept=True, offset=False, sparse=False, labels=False):
    X = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.8)
    Y = rng.multinomial(1, np.ones(K) / K, N) if labels else rng.poisson(0.7, (N, K))
    Y[:K] += np.eye(K, dtype=int)  # every class is seen
    weight = rng.uniform(0.5, 2, N)
    shift = rng.normal(size=(N, K)) if offset else None
    row, label = np.nonzero(Y)
    pairs = class_problem.Pairs(row, label, Y[row, label] * weight[row])
    problem = class_problem.SoftmaxProblem(
        sp.csr_array(X) if sparse else X, pairs, K, strength, intercept, shift, np.float64
    )
    return problem, X, Y, weight, shift


def solve(problem):
    """Minimise F by BFGS, for reference."""
    n = problem.n_features + problem.fit_intercept

    def split(theta):
        W = theta.reshape(n, problem.n_classes)
        return Params(W[: problem.n_features], W[-1] if problem.fit_intercept else np.zeros(problem.n_classes))

    def value(theta):
        e = problem.evaluate(split(theta))
        parts = [e.grad_coef, e.grad_intercept[None]] if problem.fit_intercept else [e.grad_coef]
        return e.objective, np.concatenate(parts).ravel()

    found = minimize(value, np.zeros(n * problem.n_classes), jac=True, method="BFGS", options={"gtol": 1e-11})
    return split(found.x), found.fun


def random_params(rng, problem):
    intercept = rng.normal(size=K) if problem.fit_intercept else np.zeros(K)
    return Params(rng.normal(size=(D, K)), intercept)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_objective_and_gradient_match_the_definition(sparse, offset, intercept, rng, monkeypatch):
    monkeypatch.setattr(class_problem, "_SCORES", 7 * K)  # several tiles
    problem, X, Y, weight, shift = make(rng, 0.3, intercept, offset, sparse)
    params = random_params(rng, problem)
    total = params.intercept[None] + (0 if shift is None else shift)
    W = params.coef.T
    exact = oracle.nll(W, X, Y, total, weight) / N + 0.15 * np.sum(W**2)
    np.testing.assert_allclose(problem.objective(params), exact, rtol=1e-13)
    e = problem.evaluate(params)
    np.testing.assert_allclose(e.objective, exact, rtol=1e-13)
    gradient = oracle.nll_gradient(W, X, Y, total, weight) / N + 0.3 * W
    np.testing.assert_allclose(e.grad_coef.T, gradient, atol=1e-13)
    ones = oracle.nll_gradient(np.zeros((K, 1)), np.ones((N, 1)), Y, X @ W.T + total, weight)[:, 0] / N
    np.testing.assert_allclose(e.grad_intercept, ones * intercept, atol=1e-13)


def test_the_objective_on_some_rows_is_unbiased(rng):
    problem, *_ = make(rng)
    params = random_params(rng, problem)
    parts = [problem.objective(params, np.arange(k, N, 6)) for k in range(6)]
    np.testing.assert_allclose(np.mean(parts), problem.objective(params), rtol=1e-13)


def test_the_null_model_is_the_optimum_without_features(rng):
    problem, *_ = make(rng)
    assert problem.null_objective == pytest.approx(problem.evaluate(problem.null_params()).objective, rel=1e-13)
    np.testing.assert_allclose(problem.evaluate(problem.null_params()).grad_intercept, 0, atol=1e-14)


@pytest.fixture(params=["pairs of classes", "classes alone"])
def settling(request, monkeypatch):
    """Curvature of the intercepts that settles a bound: the whole matrix for few classes, its diagonal for many."""
    if request.param == "classes alone":
        monkeypatch.setattr(class_gap, "_SETTLING_WORK", 0)
        monkeypatch.setattr(class_gap, "_FEW", 0)
        monkeypatch.setattr(class_gap, "_SETTLING_STEPS", 12)  # enough for five classes


@pytest.mark.usefixtures("settling")
@pytest.mark.parametrize("strength", [1e-3, 0.1])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_the_bound_of_the_gap_holds_and_closes(strength, offset, intercept, rng):
    """Far from, near and at the optimum, where it is only rounding."""
    problem, *_ = make(rng, strength, intercept, offset)
    best, lowest = solve(problem)
    far = random_params(rng, problem)
    for share in (1.0, 0.5, 0.1, 1e-2, 1e-4, 0.0):
        params = Params(*((1 - share) * b + share * f for b, f in zip(best, far, strict=True)))
        gap = problem.certify_gap(params)
        assert gap.bound >= gap.objective - lowest >= -1e-12
        assert gap.theorem == class_gap.GAP_THEOREM
    assert gap.bound < 1e-6


def test_the_bound_is_that_of_strong_convexity_if_intercepts_are_optimal(rng):
    problem, *_ = make(rng, 0.05, intercept=False)
    params = random_params(rng, problem)
    gap, gradient = problem.certify_gap(params), problem.evaluate(params).grad_coef
    np.testing.assert_allclose(gap.bound, np.sum(gradient**2) / 0.1, rtol=1e-9)


@pytest.mark.usefixtures("settling")
@pytest.mark.parametrize("offset", [False, True])
def test_intercepts_that_are_off_do_not_make_the_bound_loose(offset, rng, monkeypatch):
    problem, *_ = make(rng, 0.1, True, offset)
    best, lowest = solve(problem)
    near = Params(best.coef, best.intercept + 1e-3 * rng.normal(size=K))
    excess = problem.objective(near) - lowest
    assert excess < problem.certify_gap(near).bound < 3 * excess + 1e-12
    monkeypatch.setattr(class_gap, "_SETTLING_STEPS", 0)
    assert problem.certify_gap(near).bound > 100 * excess


def test_mirrored_rows_with_exactly_optimal_intercepts_have_a_bound(rng):
    for _ in range(300):
        half = rng.normal(size=(rng.integers(1, 6), 3))
        n, X = len(half), np.concatenate([half, -half])
        pairs = class_problem.Pairs(np.arange(2 * n), np.repeat([0, 1], n), np.ones(2 * n))
        problem = class_problem.SoftmaxProblem(X, pairs, 2, 1e-2, True, None, np.float64)
        w = rng.normal(size=(3, 1))
        gap = problem.certify_gap(Params(np.hstack([w, -w]), np.zeros(2)))
        assert np.isfinite(gap.bound) and gap.bound >= 0


@pytest.mark.parametrize("size", [0.0, 1e8, 1e12])
def test_a_common_part_of_the_offsets_of_a_row_costs_no_digits(size, rng):
    problem, X, *_ = make(rng, 0.1, offset=True)
    best, _ = solve(problem)
    shifted = class_problem.SoftmaxProblem(X, problem.pairs, K, 0.1, True, np.round(problem.offset) + size, np.float64)
    plain = class_problem.SoftmaxProblem(X, problem.pairs, K, 0.1, True, np.round(problem.offset), np.float64)
    near = Params(best.coef + 1e-3 * rng.normal(size=best.coef.shape), best.intercept)
    assert shifted.objective(near) == pytest.approx(plain.objective(near), rel=1e-13)
    assert shifted.certify_gap(near).bound == pytest.approx(plain.certify_gap(near).bound, rel=1e-6)


def test_without_a_ridge_there_is_no_bound(rng):
    gap = make(rng, 0.0)[0].certify_gap(Params(np.zeros((D, K)), np.zeros(K)))
    assert gap.bound == np.inf and "without a penalty" in gap.theorem and gap.gradient_norm > 0


@pytest.mark.usefixtures("settling")
def test_a_class_never_seen_has_a_bound(rng):
    problem, X, *_ = make(rng, 0.1, labels=True)
    more = class_problem.SoftmaxProblem(X, problem.pairs, K + 1, 0.1, True, None, np.float64)
    _, lowest = solve(more)
    for b in (0.0, -3.0, -30.0):
        params = Params(np.zeros((D, K + 1)), np.append(np.zeros(K), b))
        assert np.isfinite(more.certify_gap(params).bound)
        assert more.certify_gap(params).bound >= more.objective(params) - lowest


@pytest.mark.slow
@pytest.mark.parametrize("sparse, alpha", [(False, 0.0), (True, 1.0)])
def test_auxiliary_variables_start_at_their_best_values(sparse, alpha, rng, monkeypatch):
    problem, X, *_ = make(rng, offset=True, sparse=sparse)
    params, shift = random_params(rng, problem), problem.offset  # without the part shared by a row
    monkeypatch.setattr(class_problem, "_SCORES", 7 * K)  # several tiles
    row, label = problem.pairs.row, problem.pairs.label
    best = oracle.best_auxiliary(params.coef.T, X[row], label, alpha, params.intercept[None] + shift[row])
    np.testing.assert_allclose(problem.start_auxiliary(params, alpha, rng), best, rtol=1e-12)
    monkeypatch.setattr(class_problem, "_SAMPLED_CLASSES", 3)
    drawn = np.mean([np.exp(problem.start_auxiliary(params, alpha, rng)) for _ in range(4000)], axis=0)
    np.testing.assert_allclose(drawn, np.exp(best), rtol=0.15)  # unbiased before the logarithm


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("offset", [False, True])
def test_the_optimum_satisfies_the_bounds_of_coefficients_and_auxiliary_variables(intercept, offset, rng):
    problem, X, _, _, shift = make(rng, 0.05, intercept, offset)
    params, _ = solve(problem)
    assert np.linalg.norm(params.coef) <= problem.coef_bound < 20 * np.linalg.norm(params.coef)
    row = problem.pairs.row
    total = params.intercept[None] + (0 if shift is None else shift[row])
    best = oracle.best_auxiliary(params.coef.T, X[row], problem.pairs.label, 0.0, total)
    assert best.max() <= problem.auxiliary_bound
    assert np.isinf(problem.auxiliary_bound) == intercept
    free = make(rng, 0.0, intercept, offset)[0]
    assert np.isinf(free.coef_bound) and np.isinf(free.auxiliary_bound)
