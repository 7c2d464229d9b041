"""Laws of the coordinates in which classes are sampled: the same model, ridge and optimum for any features."""

import itertools

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from oracles import softmax as oracle

from glmfit import SoftmaxGLM
from glmfit.engine.problem import Params
from glmfit.solvers import OVE, SGD, ImplicitSGD, ImportanceSampling, Schedule, SoftmaxProx, UMax
from glmfit.stochastic import Pairs, SoftmaxProblem, class_kernels
from glmfit.stochastic.double_sum import double_sum

N, D, K = 60, 4, 5
KINDS = ["correlated", "shifted", "scaled", "sparse", "redundant", "no intercept", "weighted", "many", "heavy"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, rng, strength=1e-2, dtype=np.float64):
    X, weight = rng.normal(size=(N, D)), np.ones(N)
    label = np.argmax(X @ rng.normal(size=(D, K)) + rng.gumbel(size=(N, K)), axis=1)
    label[:K] = np.arange(K)
    if kind == "correlated":
        X = X @ rng.normal(size=(D, D))
    if kind == "shifted":
        X += 100
    if kind == "scaled":
        X *= np.geomspace(1e-3, 1e3, D)
    if kind == "redundant":
        X = np.column_stack([X, X[:, :1] - X[:, 1:2], np.ones(N)])
    if kind == "weighted":
        weight = rng.uniform(0.5, 2, N)
    if kind == "heavy":
        X = rng.standard_cauchy(size=(N, D))
    if kind == "sparse":
        X = sp.csr_array(X * (rng.random(X.shape) < 0.5))
    pairs = Pairs(np.arange(N), label, weight)
    problem = SoftmaxProblem(X, pairs, K, strength, kind != "no intercept", dtype=dtype)
    if kind == "many":
        problem.basis_by = lambda weight: plain(problem, weight)
    return problem


def plain(problem, weight):
    """Basis of a problem with too many features to rotate."""
    from glmfit.engine.metric import plain_basis

    return plain_basis(problem.X, weight / weight.mean(), problem.fit_intercept)


def some_params(problem, rng):
    coef = rng.normal(size=(problem.n_features, K))
    return Params(coef, rng.normal(size=K) * problem.fit_intercept)


@every_kind
@pytest.mark.parametrize("robust", [True, False])
def test_scores_and_ridge_are_those_of_the_model(kind, robust, rng):
    problem = make(kind, rng)
    at = problem.coordinates("spectral", robust)
    V = Params(rng.normal(size=(len(at.size), K)), rng.normal(size=K) * problem.fit_intercept)
    params = at.outside(V)
    np.testing.assert_allclose(at.rows(problem.X, float) @ V.coef + V.intercept, problem.scores(params), atol=1e-9)
    np.testing.assert_allclose(at.units @ V.coef**2, np.sum(params.coef**2, axis=0), rtol=1e-10)
    back = at.inside(params)
    np.testing.assert_allclose(back.coef, V.coef, atol=1e-9 * np.abs(V.coef).max())
    np.testing.assert_allclose(back.intercept, V.intercept, atol=1e-9 * np.abs(params.intercept).max() + 1e-12)
    if not problem.fit_intercept:
        assert not np.any(at.mean) and not np.any(params.intercept)


@pytest.mark.parametrize("kind", ["correlated", "shifted", "scaled", "redundant", "weighted", "no intercept"])
def test_all_directions_have_equal_curvature_at_equal_probabilities(kind, rng):
    """The proposition of docs/theory/class_coordinates.md, by the Hessian of a dense oracle."""
    problem = make(kind, rng)
    at = problem.coordinates("spectral")
    Z, weight = at.rows(problem.X, float), problem.totals
    curvature = (Z.T * weight) @ Z / N / K + problem.strength * np.diag(at.units)
    np.testing.assert_allclose(curvature, np.eye(len(at.size)) * weight.mean() / K, atol=1e-6)


def test_rows_that_dominate_the_variance_do_not_set_the_scale(rng):
    X = rng.normal(size=(N, 2))
    X[:2] *= 1e6
    heavy, tame = (SoftmaxProblem(x, Pairs(np.arange(len(x)), np.arange(len(x)) % K, np.ones(len(x))), K, 0.0)
                   for x in (X, X[2:]))  # fmt: skip
    lengths = np.sum(heavy.coordinates("spectral", True).rows(X, float)[2:] ** 2, axis=1)
    plainly = np.sum(tame.coordinates("spectral", True).rows(X[2:], float) ** 2, axis=1)
    assert np.median(lengths) > 0.05 * np.median(plainly)  # 1e-9 of it with the plain variance


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["ImplicitSGD", "SoftmaxProx"])
def test_one_row_with_nearly_all_the_weight_leaves_coordinates(solver):
    """Each round makes the other rows count for less; they must not vanish."""
    rng = np.random.default_rng(0)
    X, y, weight = rng.normal(size=(30, 3)), rng.integers(0, 3, 30), np.ones(30)
    weight[0] = 1e4
    model = SoftmaxGLM(solver_name=solver, regularizer_strength=0.0, max_epochs=1, certify=False)
    model.fit(X, y, sample_weight=weight)
    assert np.isfinite(model.coef_).all() and np.isfinite(model.intercept_).all()


@pytest.mark.thorough
@pytest.mark.parametrize("solver", [SGD(2), UMax(2), UMax(2, alpha=1.0)], ids=["sgd", "umax", "umax, absolute"])
@pytest.mark.parametrize("kind", ["scaled", "redundant", "no intercept"])
def test_the_mean_step_is_the_gradient_of_the_user_s_objective(solver, kind, rng, x64):
    """Unbiased in W, by enumeration, with auxiliary variables at their optimum, where none is raised."""
    problem = make(kind, rng)
    params, c, m = (
        problem.coordinates("spectral").outside(
            Params(0.3 * rng.normal(size=(len(problem.coordinates("spectral").size), K)), np.zeros(K))
        ),
        1e-6,
        2,
    )
    best = double_sum(problem, params, alpha=solver.alpha).auxiliary
    data, at = problem.class_data("spectral"), problem.coordinates("spectral")
    state = solver.init_state(problem, params, key=jax.random.key(0))
    log_a = solver.log_weight(K, m, 1)
    span = class_kernels.Span(0, 1, c, solver.ridge(problem), log_a, np.inf)
    total = np.zeros(state.weights.V.shape)
    for i in range(N):
        drawn = list(itertools.combinations([k for k in range(K) if k != problem.pairs.label[i]], m))
        for classes in drawn:
            seen = class_kernels.look_up(data, np.array([[i]]), np.array([classes], np.int32))
            weights = class_kernels.Weights(state.weights.V + 0, jax.numpy.asarray(best), state.weights.scale + 0)
            end = class_kernels.take_steps(seen, weights, None, None, span, class_kernels.one_row, solver)
            total += (np.array(end.V) * np.array(end.scale) - state.weights.V) / (N * len(drawn))
    d = len(at.size)
    exact = problem.evaluate(params)
    along = at.directions.T @ (exact.grad_coef - np.outer(at.mean, exact.grad_intercept)) / at.size[:, None]
    np.testing.assert_allclose(-total[:, :d].T / c, along, atol=1e-5 * np.abs(along).max())


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(
    "solver", [ImplicitSGD(2), ImplicitSGD(2, 4), ImplicitSGD(2, 4, minibatch="dual"), UMax(2), UMax(2, 4), OVE(2),
               ImportanceSampling(2), SoftmaxProx()],
    ids=lambda s: f"{type(s).__name__}-{s.batch_size}",
)  # fmt: skip
def test_an_invertible_map_of_the_features_changes_nothing(solver, rng, x64):
    """Without a ridge: a fit of X and one of X A + m take the same steps."""
    problem = make("correlated", rng, strength=0.0)
    X = problem.X @ (rng.normal(size=(D, D)) * np.geomspace(1e-2, 1e2, D)) + 50
    mapped = SoftmaxProblem(X, problem.pairs, K, 0.0, dtype=np.float64)
    runs = [solver.run(p, key=jax.random.key(1), schedule=Schedule(3, 0.1)) for p in (problem, mapped)]
    one, two = (p.scores(run.params) for p, run in zip((problem, mapped), runs, strict=True))
    assert np.abs(one).max() > 0.3
    np.testing.assert_allclose(one, two, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("basis", ["spectral", "raw"])
def test_coordinates_can_be_chosen(basis, rng):
    problem = make("scaled", rng, dtype=np.float32)
    found = ImplicitSGD(2, basis=basis).run(problem, key=jax.random.key(0), schedule=Schedule(10, 0.3))
    gain = problem.null_objective - problem.objective(found.params)
    assert (gain > 0.1) == (basis == "spectral")


def test_unknown_coordinates_are_refused():
    with pytest.raises(ValueError, match="basis is 'whitened'; it must be one of 'spectral', 'raw'"):
        ImplicitSGD(basis="whitened")


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_the_double_sum_matches_the_oracle(alpha, rng):
    problem = make("weighted", rng)
    params, v = some_params(problem, rng), rng.normal(size=N)
    found = double_sum(problem, params, v, alpha)
    X1 = np.column_stack([problem.X, np.ones(N)])
    W = np.column_stack([params.coef.T, params.intercept])
    args = v, W, X1, problem.pairs.label, alpha, None, problem.pairs.weight
    ridge = problem.strength / 2 * np.sum(params.coef**2)
    np.testing.assert_allclose(
        found.value, (oracle.double_sum(*args) - problem.pairs.weight.sum()) / N + ridge, rtol=1e-12
    )
    gv, gW = oracle.double_sum_gradient(*args)
    np.testing.assert_allclose(found.auxiliary_gradient, gv / N, atol=1e-12 * np.abs(gv).max())
    np.testing.assert_allclose(found.gradient.intercept, gW[:, -1] / N, atol=1e-12 * np.abs(gW).max())
    expected = gW[:, :-1].T / N + problem.strength * params.coef
    np.testing.assert_allclose(found.gradient.coef, expected, atol=1e-12 * np.abs(gW).max())
    best = double_sum(problem, params, alpha=alpha)
    np.testing.assert_allclose(best.value, problem.objective(params), rtol=1e-12)
    np.testing.assert_allclose(best.auxiliary_gradient, 0, atol=1e-12)
    assert best.value < found.value


def test_the_double_sum_refuses_bad_arguments(rng):
    problem = make("weighted", rng)
    with pytest.raises(ValueError, match=r"shape \(3,\); it must be one finite number for each of the 60 pairs"):
        double_sum(problem, some_params(problem, rng), np.zeros(3))
    with pytest.raises(ValueError, match="alpha is 2; it must be between 0 and 1"):
        double_sum(problem, some_params(problem, rng), alpha=2)
