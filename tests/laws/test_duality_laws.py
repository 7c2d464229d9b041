"""The gap by duality is never below the distance from the optimum, and vanishes there."""

import cases
import numpy as np
import pytest
from oracles import duality as oracle

from glmfit.bounds import ResidualSums, dual_gap
from glmfit.engine.problem import Params

KINDS = {  # every coefficient penalised: there is a dual bound everywhere
    "ridge": ("Ridge", {"strength": 0.02}),
    "ridge per neuron": ("Ridge", {"strength": np.array([1e-3, 0.03, 0.3])}),
    "lasso": ("Lasso", {"strength": 0.03}),
    "lasso per neuron": ("Lasso", {"strength": np.array([1e-3, 0.03, 0.3])}),
    "elastic net": ("ElasticNet", {"strength": 0.05, "ratio": 0.6}),
    "group lasso": ("GroupLasso", {"strength": 0.03, "groups": (0, 0, 1, 1, 2)}),
}
every_kind = pytest.mark.parametrize("name, numbers", KINDS.values(), ids=KINDS.keys())
every_link = pytest.mark.parametrize("link", ["softplus", "exp"])


def package_bound(problem, params):
    return problem.evaluate_with_dual(Params(*params))[1]


@pytest.mark.thorough
@every_link
@every_kind
@pytest.mark.parametrize("weighted", [False, True])
def test_the_bound_matches_its_definition(link, name, numbers, weighted):
    rng = np.random.default_rng(1)
    X, Y = cases.recording(link, t=200)
    weights = rng.uniform(0, 2, 200) if weighted else None
    problem = cases.problem(link, X, Y, name, weights, np.float64, **numbers)
    best = _optimum(problem)
    coef, intercept = best.coef + 0.01 * rng.normal(size=best.coef.shape), best.intercept
    expected = oracle.gap(link, X, Y, coef, intercept, name, **numbers, sample_weight=weights)
    assert np.isfinite(expected).any()
    np.testing.assert_allclose(package_bound(problem, (coef, intercept)), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
@every_link
@every_kind
@pytest.mark.parametrize("offset", [False, True])
def test_the_bound_is_never_below_the_distance_from_the_optimum(link, name, numbers, offset):
    for seed in range(3):
        rng = np.random.default_rng([seed, 5])
        X, Y = cases.recording(link, seed, t=150)
        weights = rng.uniform(0, 2, 150) if seed % 2 else None
        problem = cases.problem(link, X, Y, name, weights, np.float64, **numbers)
        if offset:
            known = rng.normal(size=(150, 1))
            made = problem.penalty
            problem = type(problem)(X, Y, problem.observation, made, weights, np.float64, known)
        best = _optimum(problem)
        for size in (1.0, 1e-2, 1e-4):
            coef = best.coef + size * rng.normal(size=best.coef.shape) * (rng.random(best.coef.shape) < 0.7)
            intercept = best.intercept + size * rng.normal(size=best.intercept.shape)
            objective = problem.evaluate(Params(coef, intercept)).objective
            bound = package_bound(problem, (coef, intercept))
            assert np.all(bound >= objective - problem.evaluate(best).objective)
            assert np.all(np.isfinite(bound) | (bound == np.inf))


@pytest.mark.thorough
@every_link
@every_kind
def test_the_bound_vanishes_at_the_optimum(link, name, numbers):
    X, Y = cases.recording(link, t=300)
    problem = cases.problem(link, X, Y, name, None, np.float64, **numbers)
    best = _optimum(problem)
    assert np.all(package_bound(problem, best) <= 1e-9)


def _optimum(problem) -> Params:
    """Coefficients as near the optimum as steps with exact Hessians get; every bound states how near."""
    parts = [problem.finish_neuron(problem.null_params(), n, 0.0) for n in range(problem.n_neurons)]
    return Params(np.column_stack([p.at[:-1] for p in parts]), np.array([p.at[-1] for p in parts]))


def test_no_bound_if_all_residuals_have_one_sign():
    """The dual point is then 0 and shows only that no loss is negative."""
    X, Y = cases.recording(t=50)
    problem = cases.problem("softplus", X, Y, "Lasso", None, np.float64, strength=0.1)
    bound = package_bound(problem, (np.zeros((cases.D, cases.N)), np.full(cases.N, 30.0)))
    assert np.all(bound == np.inf)


def test_infinite_numbers_give_no_bound():
    sums = ResidualSums(
        np.array([[0.1, np.nan], [-0.1, -0.1]]), np.zeros((2, 3, 2)), np.full((2, 2), np.inf), np.zeros((2, 2))
    )
    made = cases.penalty("Lasso", strength=0.1, d=3, n=2)
    assert np.all(dual_gap(np.ones(2), sums, made) == np.inf)


def test_an_unpenalised_feature_gives_no_dual_bound():
    X, Y = cases.recording(t=50)
    problem = cases.problem("softplus", X, Y, "Lasso", None, np.float64, strength=cases.PER_COEF)
    assert np.all(package_bound(problem, problem.null_params()) == np.inf)
