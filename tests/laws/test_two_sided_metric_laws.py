"""Laws of the metric of linear two-tower models: the mean curvature of an entity, by the whole Gauss-Newton matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from glmfit.pairs import AllPairsProblem, Triples
from glmfit.pairs.metric import _FLOOR, in_metric, metric_of
from glmfit.solvers import StationaryOptions, TowerLBFGS
from glmfit.status import Status

M, N, K = 9, 7, 3


def make(loss="poisson", prior="mean", biases=True, layout="triples", sides=(M, N), omega=0.2):
    """Small problem, some pairs unobserved and one of them twice, and parameters."""
    rng = np.random.default_rng(2)
    y = rng.poisson(1.0, (M, N)).astype(float)
    y[rng.random((M, N)) < 0.4] = np.nan
    left, right = np.nonzero(~np.isnan(y))
    if layout == "triples":
        left, right = np.append(left, left[0]), np.append(right, right[0])
    data = y if layout == "dense" else Triples(left, right, y[left, right])
    cost = rng.uniform(0.3, 1.5, M), rng.uniform(0.3, 1.5, N)
    problem = AllPairsProblem(
        *sides, data, loss, omega, *cost, prior, 0.4, biases, 0.3, layout=layout, dtype=np.float64
    )  # fmt: skip
    return problem, problem.draw_params(jax.random.key(1), K, scale=0.7)


def blocks(problem, theta):
    """Gauss-Newton matrix of each leaf with itself, one after the other."""
    flat, back = ravel_pytree(theta)
    product = problem.data.gauss_newton(theta)
    whole = np.asarray(jax.vmap(lambda d: ravel_pytree(product(back(d)))[0])(jnp.eye(flat.size)))
    ends = np.cumsum([leaf.size for leaf in jax.tree.leaves(theta)])
    return [whole[a:b, a:b] for a, b in zip([0, *ends[:-1]], ends)]


def mean_block(whole, n):
    """Mean of the blocks (k, k) of n entities on the diagonal."""
    return np.mean([whole[K * i : K * (i + 1), K * i : K * (i + 1)] for i in range(n)], axis=0)


def floored(h):
    return h + _FLOOR * np.mean(np.diag(h - 0.4 * np.eye(K))) * np.eye(K)


@pytest.mark.thorough(cases=3)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("layout", ["triples", "dense"])
@pytest.mark.parametrize(
    ("loss", "prior", "biases", "omega"),
    [("poisson", "mean", True, 0.9), ("squared", "zero", False, 0.4), ("logistic", "mean", True, 0.2)],
)
def test_the_metric_is_the_inverse_of_the_mean_curvature_of_an_entity(loss, prior, biases, omega, layout):
    problem, theta = make(loss, prior, biases, layout, omega=omega)
    found, (left, right, *of_biases) = metric_of(problem.data, theta), blocks(problem, theta)
    for tower, block, n in ((found.left, left, M), (found.right, right, N)):
        mean = np.linalg.inv(tower.maps[0].weight)
        np.testing.assert_allclose(mean, floored(mean_block(block, n)), rtol=1e-9, atol=1e-12)
    if biases:
        exact = [np.mean(np.diag(whole)) for whole in of_biases]
        np.testing.assert_allclose([1 / found.left_bias, 1 / found.right_bias], exact, rtol=1e-9)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_features_and_constants_count_as_often_as_they_occur():
    """If entities are alike, the curvature of a weight is that of an entity times the sum of its squared feature."""
    rng = np.random.default_rng(0)
    sides, y = (np.sign(rng.normal(size=(M, 4))), N), rng.normal(size=(M, N))
    how = {"prior": "zero", "strength": 40.0, "biases": False, "layout": "dense", "dtype": np.float64}
    problem = AllPairsProblem(*sides, y, "squared", 0.5, **how)
    theta = problem.draw_params(jax.random.key(1), K, scale=0.7)
    weight, constant, _ = blocks(problem, theta)
    up = in_metric(metric_of(problem.data, theta), jax.tree.map(jnp.ones_like, theta)).left.maps[0]
    exact = np.linalg.solve(mean_block(weight, 4), np.ones(K))
    np.testing.assert_allclose(up.weight, np.tile(exact, (4, 1)), rtol=1e-2)
    np.testing.assert_allclose(up.constant, np.linalg.solve(constant, np.ones(K)), rtol=1e-2)
    nothing = AllPairsProblem(np.zeros((M, 2)), N, y, "squared", 0.5, **how)  # the ridge alone
    up = metric_of(nothing.data, nothing.draw_params(jax.random.key(1), K)).left.maps[0].weight
    np.testing.assert_allclose(up, np.eye(K) / 40, rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_perceptrons_little_imputation_and_non_finite_numbers_have_no_metric():
    for omega in (0.0, 0.01):
        problem, theta = make(omega=omega)
        assert metric_of(problem.data, theta) is None
    problem, _ = make(sides=(np.eye(M), np.eye(N)))
    assert metric_of(problem.data, problem.draw_params(jax.random.key(0), K, (4,), (4,))) is None
    problem, theta = make()
    broken = metric_of(problem.data, jax.tree.map(lambda leaf: leaf.at[0].set(jnp.inf), theta))
    np.testing.assert_array_equal(broken.left.maps[0].weight, np.eye(K))


@pytest.mark.slow
def test_the_metric_saves_iterations(monkeypatch):
    """Positive pairs of left entities of different activity and right ones of different popularity, all others 0."""
    rng, (m, n) = np.random.default_rng(0), (120, 150)
    taste = rng.normal(size=(m, 4)) @ rng.normal(size=(4, n)) - np.log(np.arange(n) + 5.0) + rng.gumbel(size=(m, n))
    left, right = np.nonzero(taste > np.quantile(taste, rng.uniform(0.9, 0.99, (m, 1))))
    triples = Triples(left, right, np.ones(len(left)))
    how = {"prior": "zero", "strength": 1.0, "biases": False, "layout": "triples"}
    problem = AllPairsProblem(m, n, triples, "squared", 0.05, **how)
    theta, options = problem.draw_params(jax.random.key(1), 8), StationaryOptions(tol=1e-4)
    found = TowerLBFGS().run(problem, theta, key=jax.random.key(0), options=options)
    monkeypatch.setattr("glmfit.pairs.descent.metric_of", lambda data, theta: None)
    plain = TowerLBFGS().run(problem, theta, key=jax.random.key(0), options=options)
    assert found.status == plain.status == Status.CONVERGED
    np.testing.assert_allclose(found.objective, plain.objective, rtol=1e-3)
    assert found.epochs < 0.9 * plain.epochs
