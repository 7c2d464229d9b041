"""Laws of every problem: its numbers match the definition, whatever coordinates it works in."""

import warnings

import jax
import numpy as np
import pytest
from cases import (
    DESIGNS,
    OBSERVATIONS,
    PENALTIES,
    D,
    N,
    T,
    design,
    problem,
    proved_gap,
    recording,
    seen_by_saga,
    with_fit,
)
from oracles import population as oracle
from oracles.penalties import smooth
from sklearn.exceptions import ConvergenceWarning

from glmfit import PopulationGLM, Status
from glmfit.engine.exact.newton import NewtonSystem
from glmfit.engine.metric import basis_of, floored_basis, spectral_basis
from glmfit.engine.problem import Params
from glmfit.penalties import GroupLasso
from glmfit.saga.spectral_rows import Metric, largest_change, saga_epoch, sweep

every_link = pytest.mark.parametrize("link", OBSERVATIONS)
every_design = pytest.mark.parametrize("kind", DESIGNS)
every_penalty = pytest.mark.parametrize("penalty", PENALTIES)
some_weights = pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])

WEIGHTS = np.random.default_rng(4).choice([0.0, 0.3, 2.0], T)


def some_params(X, seed=0, size=0.3):
    """Parameters whose predictor is of order one whatever the scale of the features."""
    rng = np.random.default_rng([seed, 3])
    spread = np.where(X.std(axis=0) > 1e-9 * np.abs(X).max(axis=0), X.std(axis=0), 1)
    coef = size * rng.normal(size=(X.shape[1], N)) / spread[:, None]
    return Params(coef, rng.normal(size=N) * size - 0.5 - X.mean(axis=0) @ coef)


def counts(X, seed=0):
    at = some_params(X, seed)
    rate = np.logaddexp(0, np.clip(X @ at.coef + at.intercept, -20, 5))
    return np.random.default_rng([seed, 5]).poisson(rate).astype(float)


def in_order(rows, batch_size, n_rows, seed=0):
    """Rows of the device as float64 (row, column), counts and weights, in the order of the data."""
    Z, Y, w = (np.asarray(a, float).reshape(-1, a.shape[-1]) for a in rows.blocks[:3])
    order = np.random.default_rng(seed).permutation(n_rows)
    assert np.all(w[n_rows:] == 0)
    place = np.argsort(order)
    return Z[place], Y[place], w[place, 0]


# ------------------------------------------------------------------------- objective and gradient


@every_link
@every_penalty
@some_weights
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_evaluation_is_the_definition(link, penalty, weighted, dtype):
    """In float64, whatever the precision of the data, which are taken as exact."""
    name, numbers = PENALTIES[penalty]
    X, Y = (a.astype(dtype) for a in recording(link))
    weights = WEIGHTS if weighted else None
    at = some_params(X)
    value = problem(link, X, Y, name, weights=weights, **numbers).evaluate(at)
    given = numbers["strength"], numbers.get("ratio", 0.5)
    ridge = np.array([2 * smooth(name, np.tile(e[:, None], Y.shape[1]), *given) for e in np.eye(X.shape[1])])
    expected = oracle.gradient(link, X, Y, *at, weights, ridge)
    np.testing.assert_allclose(value.grad_coef, expected[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(value.grad_intercept, expected[1], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(value.objective, oracle.objective(link, X, Y, *at, weights, name, **numbers), rtol=1e-13)
    assert value.objective.dtype == value.grad_coef.dtype == np.float64


@every_link
@some_weights
def test_objective_is_at_least_that_of_the_saturated_model(link, weighted):
    X, Y = recording(link)
    weights = WEIGHTS if weighted else None
    whole = problem(link, X, Y, weights=weights, strength=0.1)
    for seed in range(5):
        at = some_params(X, seed, size=1.0)
        floor = oracle.saturated(Y, weights) + 0.05 * (at.coef**2).sum(axis=0)
        assert np.all(whole.evaluate(at).objective >= floor)


@every_link
@some_weights
def test_null_model_is_the_best_one_without_features(link, weighted):
    X, Y = recording(link)
    weights = WEIGHTS if weighted else None
    whole = problem(link, X, Y, weights=weights, strength=0.1)
    null = whole.null_params()
    assert np.all(null.coef == 0)
    np.testing.assert_allclose(null.intercept, oracle.null_intercept(link, Y, weights), rtol=1e-12)
    np.testing.assert_allclose(whole.evaluate(null).grad_intercept, 0, atol=1e-14)
    np.testing.assert_allclose(whole.null_objective, whole.evaluate(null).objective, rtol=1e-13)


@pytest.mark.thorough(cases=1)
@every_link
@some_weights
def test_a_sweep_on_the_device_is_the_loss_and_its_gradient_in_the_columns(link, weighted, x64):
    """By the chain rule through coef = whiten v, intercept = v_b - mean'coef; the table has the derivatives."""
    X, Y = recording(link)
    weights = WEIGHTS if weighted else None
    at = some_params(X)
    ridge = np.array([0.0, 1e-3, 0.1])
    whole = problem(link, X, Y, weights=weights, dtype=np.float64, strength=ridge)
    rows = seen_by_saga(whole).rows(256, seed=0)
    v = seen_by_saga(whole).to_columns(at)
    pass_ = sweep(rows, v)
    grad_coef, grad_intercept = oracle.gradient(link, X, Y, *at, weights)
    expected = whole.basis.whiten.T @ (grad_coef - whole.basis.mean[:, None] * grad_intercept)
    np.testing.assert_allclose(pass_.gradient[:-1], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(pass_.gradient[-1], grad_intercept, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(pass_.loss, oracle.objective(link, X, Y, *at, weights), rtol=1e-12)
    Z, _, w = in_order(rows, 256, T)
    table = np.asarray(pass_.table).reshape(-1, N)
    assert np.all(table[T:] == 0)
    table = table[np.argsort(np.random.default_rng(0).permutation(T))]
    np.testing.assert_allclose(table, w[:, None] * oracle.derivative(link, Y, X @ at.coef + at.intercept), atol=1e-11)
    np.testing.assert_allclose(Z.T @ table / T, pass_.gradient, rtol=1e-9, atol=1e-12)


@every_link
def test_largest_change_on_the_device_is_the_definition(link, x64):
    X, Y = recording(link)
    whole = problem(link, X, Y, weights=WEIGHTS, dtype=np.float64, strength=0.1)
    rows = seen_by_saga(whole).rows(256, seed=0)
    p = some_params(X, seed=1)
    change = X @ p.coef + p.intercept
    w = oracle.mean_one(WEIGHTS, T)
    moved = largest_change(rows, seen_by_saga(whole).to_columns(p))
    np.testing.assert_allclose(moved, np.abs(change[w > 0]).max(axis=0), rtol=1e-9)
    np.testing.assert_allclose(
        whole.largest_move(np.append(p.coef[:, 0], p.intercept[0])), np.abs(change[:, 0]).max(), rtol=1e-9
    )


# ------------------------------------------------------------------------- the metric


@pytest.mark.thorough
def test_a_metric_is_the_matrix_it_describes(x64):
    """Form ``M = S diag(scale) S'`` slowly and compare everything derived from it, in NumPy and JAX."""
    rng = np.random.default_rng(0)
    scale, centre = rng.uniform(0.1, 3, (5, 3)), rng.normal(size=(4, 3))
    Z = np.hstack([rng.normal(size=(20, 4)), np.ones((20, 1))])
    x = rng.normal(size=(5, 3))
    for space in (np, jax.numpy):
        metric = Metric(space.asarray(scale), space.asarray(centre))
        given = space.asarray(x)
        for n in range(3):
            S = np.eye(5)
            S[-1, :-1] = -centre[:, n]
            R = S * np.sqrt(scale[:, n])
            M = R @ R.T
            np.testing.assert_allclose(metric.apply(given)[:, n], M @ x[:, n], rtol=1e-12)
            np.testing.assert_allclose(metric.root(given)[:, n], R @ x[:, n], rtol=1e-12)
            np.testing.assert_allclose(metric.root_transposed(given)[:, n], R.T @ x[:, n], rtol=1e-12)
            np.testing.assert_allclose(metric.squared_norm(given)[n], x[:, n] @ M @ x[:, n], rtol=1e-12)
            far = metric.leverage(space.asarray(Z), space.matmul)[:, n]
            np.testing.assert_allclose(far, np.sum((Z @ R) ** 2, axis=1), rtol=1e-12)


@pytest.mark.thorough(cases=1)
@every_link
def test_its_own_centre_makes_the_hessian_of_a_neuron_well_conditioned(link):
    """Gaussian features: without it the intercept and the coefficients share a direction of small curvature."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20_000, 6))
    beta = np.array([0.7, -0.4, 0.3, 0, 0, 0])[:, None]
    Y = rng.poisson(np.logaddexp(0, X @ beta - 2) if link == "softplus" else np.exp(X @ beta - 2)).astype(float)
    whole = problem(link, X, Y, strength=1e-4)
    rows = seen_by_saga(whole).rows(5000, seed=0)
    best = oracle.newton(link, X, Y, 1e-4)
    v = seen_by_saga(whole).to_columns(Params(best.coef, best.intercept))
    found = np.asarray(sweep(rows, v).bend)
    metric = seen_by_saga(whole).metric(rows, found[-1], found[:-1])
    Z = np.asarray(rows.Z, float).reshape(-1, 7)
    bend = oracle.curvature(link, np.asarray(rows.Y).reshape(-1, 1), Z @ np.asarray(v, float))
    H = (Z * bend).T @ Z / len(X) + np.diag(np.asarray(rows.ridge)[:, 0])
    centre = (bend.T @ Z / bend.sum())[0, :-1]
    np.testing.assert_allclose(metric.centre[:, 0], centre, atol=1e-4)

    def condition(metric):
        R = np.stack([np.asarray(metric.root(e[:, None]))[:, 0] for e in np.eye(7)], axis=1)
        values = np.linalg.eigvalsh(R.T @ H @ R)
        return values[-1] / values[0]

    plain = Metric(metric.scale, np.zeros_like(metric.centre))
    assert condition(metric) < 1.7 and condition(plain) > 1.8 * condition(metric)


# ------------------------------------------------------------------------- the spectral basis


@every_design
@some_weights
@pytest.mark.parametrize("penalty", ["ridge", "group lasso"])
def test_whitened_rows_have_the_predictor_of_the_features(kind, weighted, penalty):
    """On rows of weight zero too, up to single precision: parameters -> columns -> predictor, and back."""
    X = design(kind)
    name, numbers = PENALTIES[penalty]
    whole = problem("softplus", X, counts(X), name, weights=WEIGHTS if weighted else None, **numbers)
    Z, Y, w = in_order(seen_by_saga(whole).rows(256, seed=0), 256, T)
    np.testing.assert_array_equal(Y, whole.Y)
    np.testing.assert_allclose(w, oracle.mean_one(WEIGHTS if weighted else None, T), rtol=1e-6)
    at = some_params(X)
    v = seen_by_saga(whole).to_columns(at)
    seen = w > 0  # a direction that no counted row has is not in the basis
    eta = X @ at.coef + at.intercept
    np.testing.assert_allclose((Z @ v)[seen], eta[seen], atol=3e-5 * np.abs(eta[seen]).max())
    back = seen_by_saga(whole).from_columns(v)
    np.testing.assert_allclose((X @ back.coef + back.intercept)[seen], eta[seen], atol=3e-5 * np.abs(eta[seen]).max())


@every_design
@some_weights
def test_whitened_columns_are_centred_uncorrelated_and_of_unit_variance(kind, weighted):
    X = design(kind)
    weights = WEIGHTS if weighted else None
    whole = problem("softplus", X, counts(X), weights=weights, strength=0.1)
    basis = whole.basis
    Z, _, w = in_order(seen_by_saga(whole).rows(256, seed=0), 256, T)
    Z = Z[:, :-1]
    moments = (Z.T * w) @ Z / T
    expected = np.diag((np.arange(D) < basis.rank).astype(float))
    np.testing.assert_allclose(moments, expected, atol=2e-5)
    np.testing.assert_allclose(w @ Z / T, 0, atol=2e-5)
    # Whatever the scales, the rank is that of the standardised features over the rows that count.
    centred = X[w > 0] - np.average(X, axis=0, weights=w)
    spread = np.sqrt((w[w > 0] @ centred**2) / T)
    large = spread > 1e-12 * np.abs(X).max()
    assert basis.rank == np.linalg.matrix_rank(centred[:, large] / spread[large], tol=1e-6)
    # The ridge is diagonal in the basis: |coef|^2 = sum_j v_j^2 / variance_j.
    v = np.random.default_rng(0).normal(size=(D, N)) * (np.arange(D) < basis.rank)[:, None]
    variance = np.where(basis.variance > 0, basis.variance, 1)
    coef = basis.whiten @ v
    np.testing.assert_allclose((coef**2).sum(axis=0), (v**2 / variance[:, None]).sum(axis=0), rtol=1e-7)


@every_design
@every_link
@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_the_spectral_basis_has_the_optimum_of_the_plain_problem(kind, link, ridge, x64):
    """Identity 9: centred, rotated, scaled; duplicates, d > T and a feature of scale 1e8 included."""
    X = design(kind)
    if kind in ("outlier", "one row") and ridge == 0:
        pytest.skip("one row alone may determine a feature: no finite optimum is promised")
    Y = counts(X)
    whole = problem(link, X, Y, weights=WEIGHTS, dtype=np.float64, strength=ridge)
    plain = oracle.newton(link, X, Y, ridge, WEIGHTS)
    Z, _, w = in_order(seen_by_saga(whole).rows(256, seed=0), 256, T)
    strengths = np.asarray(seen_by_saga(whole)._column_ridge())
    rotated = np.stack([minimise(link, Z, Y[:, n], strengths[:, n], w) for n in range(N)], axis=1)
    at = seen_by_saga(whole).from_columns(rotated)
    objective = oracle.objective(link, X, Y, *at, WEIGHTS, strength=ridge)
    np.testing.assert_allclose(objective, plain.objective, rtol=1e-9)
    eta = X @ plain.coef + plain.intercept
    counted = WEIGHTS > 0
    np.testing.assert_allclose((X @ at.coef + at.intercept)[counted], eta[counted], atol=1e-5 * np.abs(eta).max())


def minimise(link, Z, y, ridge, w):
    """Newton's method on rows with a column of ones, with a ridge per column."""
    v = np.append(np.zeros(Z.shape[1] - 1), oracle.null_intercept(link, y[:, None], w)[0])
    for _ in range(30):
        eta = Z @ v
        g = Z.T @ (w * oracle.derivative(link, y, eta)) / len(y) + ridge * v
        H = (Z.T * (w * oracle.curvature(link, y, eta))) @ Z / len(y) + np.diag(ridge)
        v = v - oracle.solve(H, g)
    return v


def test_more_features_than_rows_keep_the_directions_the_rows_have():
    X = np.random.default_rng(0).normal(size=(20, 33))
    whole = problem("softplus", X, np.ones((20, 1)), strength=0.1)
    assert whole.basis.rank == 19  # centred
    Z, _, _ = in_order(seen_by_saga(whole).rows(20, seed=0), 20, 20)
    np.testing.assert_allclose(Z[:, :33] @ Z[:, :33].T, 20 * np.eye(20) - 1, atol=1e-3)


def test_a_feature_nonzero_only_in_rows_of_weight_zero_is_not_in_the_basis():
    """A cell held out by its weights must not come back as rounding divided by rounding."""
    X = design("random")
    X[:, 1] = 0.0
    X[:50, 1] = 1.0
    weights = np.where(np.arange(T) < 50, 0.0, 1.0)
    for name in ("Ridge", "Lasso"):
        whole = problem("softplus", X, counts(X), name, weights=weights, strength=0.0)
        assert whole.basis.rank == D - 1
        assert whole.basis.deviation[1] == 1


# ------------------------------------------------------------------------- the SAGA estimator


def tiny_rows(batch_size, weights, ridge):
    """Seven rows, two features, two neurons: small enough to enumerate everything, in float64."""
    rng = np.random.default_rng(6)
    X, Y = rng.normal(size=(7, 2)), rng.poisson(1.0, (7, 2)).astype(float)
    whole = problem("softplus", X, Y, weights=weights, dtype=np.float64, strength=ridge)
    rows = seen_by_saga(whole).rows(batch_size, seed=0)
    stale, v = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    return whole, rows, sweep(rows, stale), v


def displacement(rows, at_stale, v, metric, index, subsets):
    """Displacement of the columns by one draw with step one, and the table and mean after it."""
    moved, table, mean, _ = saga_epoch(
        rows,
        jax.numpy.array(v),
        jax.numpy.array(at_stale.table),
        jax.numpy.array(at_stale.gradient),
        None,
        metric,
        np.ones(2),
        np.asarray([index], np.int32),
        subsets=subsets,
    )
    return np.asarray(moved) - v, np.asarray(table), np.asarray(mean)


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize("weights", [None, np.array([0.0, 1, 2, 1, 0.5, 1, 3])], ids=["plain", "weighted"])
@pytest.mark.parametrize("size", [1, 3, "blocks"])
def test_the_saga_estimator_averaged_over_every_draw_is_the_full_gradient(size, weights, x64):
    """Identity 7, enumerated: every row, every subset of 3, every block of a partition of 7 into 3 (unequal)."""
    ridge = np.array([0.0, 0.3])
    subsets = size != "blocks"
    _, rows, at_stale, v = tiny_rows(7 if subsets else 3, weights, ridge)
    draws = [np.array(s) for s in oracle.every_subset(7, size)] if subsets else list(range(3))
    rng = np.random.default_rng(7)
    metric = Metric(rng.uniform(0.5, 2, v.shape), rng.normal(size=(v.shape[0] - 1, v.shape[1])))
    moves = [displacement(rows, at_stale, v, metric, index, subsets) for index in draws]
    full = metric.apply(np.asarray(sweep(rows, v).gradient) + np.asarray(rows.ridge) * v)
    np.testing.assert_allclose(-np.mean([m for m, _, _ in moves], axis=0), full, rtol=1e-12, atol=1e-13)
    Z, Y, w = (np.asarray(a).reshape(-1, a.shape[-1]) for a in rows.blocks[:3])
    old = np.asarray(at_stale.table).reshape(-1, 2)
    new = w * oracle.derivative("softplus", Y, Z @ v)
    for index, (move, table, mean) in zip(draws, moves, strict=True):
        batch = index if subsets else np.arange(3 * index, 3 * index + 3)
        # Each single draw is the plain formula ...
        expected = oracle.saga_estimate(Z, old, new, batch, 7 / size if subsets else 3.0) * len(Z) / 7
        np.testing.assert_allclose(-move, metric.apply(expected + np.asarray(rows.ridge) * v), rtol=1e-11, atol=1e-13)
        # ... the table remembers the batch and nothing else, and the mean gradient is that of the table.
        table = table.reshape(-1, 2)
        np.testing.assert_allclose(table[batch], new[batch], rtol=1e-12, atol=1e-15)
        rest = np.setdiff1d(np.arange(len(Z)), batch)
        np.testing.assert_array_equal(table[rest], old[rest])
        np.testing.assert_allclose(mean, Z.T @ table / 7, rtol=1e-12, atol=1e-14)


@pytest.mark.thorough
def test_the_saga_estimator_has_no_noise_once_the_table_is_at_the_optimum(x64):
    whole, rows, _, _ = tiny_rows(3, None, np.array([0.1, 0.3]))
    best = oracle.newton("softplus", whole.X, whole.Y, np.array([0.1, 0.3]))
    v = seen_by_saga(whole).to_columns(Params(best.coef, best.intercept))
    plain = Metric(np.ones_like(v), np.zeros_like(v[:-1]))
    for block in range(3):
        moved = displacement(rows, sweep(rows, v), v, plain, block, False)[0]
        np.testing.assert_allclose(moved, 0, atol=1e-12)


# ------------------------------------------------------------------------- one neuron exactly


@every_link
@every_design
@some_weights
def test_the_newton_direction_is_that_of_the_exact_hessian(link, kind, weighted):
    X = design(kind)
    Y = counts(X)
    weights = WEIGHTS if weighted else None
    one = problem(link, X, Y[:, :1], weights=weights, strength=1e-3)
    at = some_params(X)
    coef, intercept = at.coef[:, 0], at.intercept[0]
    grad_coef, grad_intercept = (g[..., 0] for g in oracle.gradient(link, X, Y, *at, weights, 1e-3))
    system = NewtonSystem(*one.hessian_of_one(np.append(coef, intercept), np.float64), *one.standard)
    (*step, step_intercept), decrement, _ = system.step(np.append(grad_coef, grad_intercept))

    scale = np.maximum(X.std(axis=0), 1e-3)  # any scale works
    shift = X.mean(axis=0)
    Z = (X - shift) / scale
    moved = intercept + shift @ coef
    H = oracle.hessian(link, Z, Y[:, 0], coef * scale, moved, weights) + np.diag(np.append(1e-3 / scale**2, 0))
    g = np.append((grad_coef - shift * grad_intercept) / scale, grad_intercept)
    exact = -np.linalg.solve(H, g)
    assert decrement == pytest.approx(-g @ exact, rel=1e-8)
    change = Z @ exact[:-1] + exact[-1]
    np.testing.assert_allclose(X @ step + step_intercept, change, atol=1e-6 * np.abs(change).max())
    assert system.radius_squared >= oracle.largest_reach(Z, H) * (1 - 1e-10)
    assert system.n_directions == D + 1


def test_selecting_a_neuron_gives_its_problem():
    X, Y = recording()
    for penalty in ("ridge per neuron", "group lasso", "ridge per coefficient"):
        name, numbers = PENALTIES[penalty]
        whole = problem("softplus", X, Y, name, weights=WEIGHTS, **numbers)
        at = some_params(X)
        value = whole.evaluate(at)
        for n in range(N):
            one = whole.select(n)
            alone = one.evaluate(Params(at.coef[:, [n]], at.intercept[[n]]))
            assert one.n_neurons == 1
            np.testing.assert_allclose(alone.objective, value.objective[[n]], rtol=1e-13)
            np.testing.assert_allclose(alone.grad_coef, value.grad_coef[:, [n]], rtol=1e-12)


# ------------------------------------------------------------------------- distance from the optimum


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("penalty", ["lasso", "elastic net", "group lasso"])
def test_certified_gap_of_a_sparse_penalty_covers_a_bad_share_between_duplicates(penalty):
    """The loss does not see how duplicates share a coefficient; the penalty does, and has no curvature there."""
    name, numbers = PENALTIES[penalty]
    numbers = numbers | {"strength": 1e-3}
    X = design("duplicate")
    Y = counts(X)
    best = oracle.proximal("softplus", X, Y, name, **numbers)
    whole = problem("softplus", X, Y, name, **numbers)
    for shift in (0.0, 0.1, 1.0, 10.0):
        coef = best.coef.copy()
        coef[0] += shift
        coef[1] -= shift
        at = Params(coef, best.intercept)
        gap = oracle.objective("softplus", X, Y, *at, None, name, **numbers) - best.objective
        assert np.all(proved_gap(whole, at) >= gap - 1e-14)
        for n in range(N):
            reached = whole.finish_neuron(at, n, target=1e-9)
            left = oracle.objective("softplus", X, Y, *with_fit(at, n, reached), None, name, **numbers) - best.objective
            assert reached.bound >= left[n] - 1e-14


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale, ridge", [(1.0, 0.0), (1e4, 0.0), (1e4, 1e-6)])
def test_nothing_is_proved_along_a_direction_the_data_have_but_do_not_resolve(dtype, scale, ridge):
    """If dropped, it may hold a better model: two columns that differ by 1e-7, or by the rounding of a sum.

    With a ridge, duality bounds the gain of that model; without one, nothing does.
    """
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, T))
    if dtype is np.float64:
        X, better = scale * np.stack([x, x + 1e-7 * z], axis=1), np.array([-1.0, 1.0]) * 0.1 / (1e-7 * scale)
        Y = rng.poisson(np.logaddexp(0, z))[:, None].astype(float)
    else:
        X = np.stack([x, z], axis=1).astype(dtype)
        X = np.concatenate([X, X.sum(axis=1, keepdims=True)], axis=1) * dtype(scale)
        rounding = X[:, 2].astype(float) - X[:, 0].astype(float) - X[:, 1].astype(float)
        Y = np.where(rounding > 0, 2.0, 0.0)[:, None]
        better = np.array([-1.0, -1.0, 1.0]) * 0.02 / rounding.std()
    whole = problem("softplus", X, Y, strength=ridge)
    assert whole.basis.rank < X.shape[1] and not whole.basis.absent
    at = Params(np.zeros((X.shape[1], 1)), whole.null_params().intercept)
    for _ in range(30):  # the best of the models without that direction
        at = whole.finish_neuron(at, 0, target=0.0).params
    there = at.coef + better[:, None], at.intercept - X.mean(axis=0, dtype=float) @ better
    lower = oracle.objective("softplus", X, Y, *there, strength=ridge)
    gain = oracle.objective("softplus", X, Y, *at, strength=ridge) - lower
    assert gain > 1e-5
    for bound in (whole.finish_neuron(at, 0, target=1e-9).bound, proved_gap(whole, at)[0]):
        assert bound >= gain if ridge else bound == np.inf


def test_the_basis_of_a_group_whitens_what_varies_little_in_it():
    """Features of one group keep their variance in the metric of the fit, however much another of them varies."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 6)) * np.array([1, 1e-3, 1, 1, 1e-4, 1])
    penalty = GroupLasso(0.1, (0, 0, 0, 1, 1, 1))
    Z = X - X.mean(axis=0)
    for grouped, least in ((False, 0.99), (True, 0.0)):
        basis = basis_of(X, None, penalty, grouped=grouped)
        variance = np.var(Z @ basis.whiten, axis=0)
        np.testing.assert_allclose(basis.unwhiten @ basis.whiten, np.eye(6), atol=1e-9)
        assert least <= variance.min() <= variance.max() <= 1.01
        assert grouped == (variance.min() < 0.01)  # the shared scale raises it


@pytest.mark.parametrize("n_features", [5, 50])
def test_a_direction_is_absent_where_rows_move_by_rounding_only(n_features):
    """Copies and sums of features are absent for any weights; features that differ by a thousand roundings are not."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(3000, n_features)) * np.geomspace(1, 1e-4, n_features)
    one_hot = np.eye(7)[rng.integers(0, 7, 3000)]
    weights = np.where(np.arange(3000) % 3 == 0, 0, rng.exponential(size=3000))
    weights /= weights.mean()

    def absent(X, weights=None):
        return spectral_basis(X, weights).absent, floored_basis(X, weights).absent

    for X in (
        np.column_stack([Z, Z[:, :3]]),
        np.column_stack([Z + 1e4, (Z + 1e4)[:, :2]]),
        np.column_stack([Z, one_hot]),
        np.column_stack([Z, Z[:, :1] + Z[:, 1:2]]),
        np.column_stack([Z, np.full(3000, 3.7)]),
    ):
        assert absent(X) == (True, True) and absent(X, weights) == (True, True)
    x, z = rng.normal(size=(2, 3000))
    for difference in (1e-7, 1e-11, 3e-12, 1e-13):
        assert absent(np.stack([x, x + difference * z], axis=1))[0] is False
    # The first row that counts moves alone.
    alone = np.column_stack([Z, Z[:, 0] + 1e-9 * (np.arange(3000) == 1)])
    assert absent(alone)[0] is False
    assert absent(alone, np.where(np.arange(3000) == 1, 0.0, 3000 / 2999)) == (True, True)


def test_a_report_states_that_newton_dropped_a_direction_of_the_basis():
    """Copies that differ by 3e-7: the design has that direction, the Hessian of a neuron does not resolve it."""
    x, z = np.random.default_rng(0).normal(size=(2, 500))
    y = np.random.default_rng(1).poisson(np.exp(1 + 0.5 * x + 0.5 * z))
    fit = PopulationGLM("exp", regularizer_strength=0.0).fit
    with pytest.warns(ConvergenceWarning, match=r"1 of 1 neurons did not converge: 1 unproved .* nothing proves it"):
        report = fit(np.stack([x, x + 3e-7 * z], axis=1), y).report_
    assert not report.gap_is_bound and report.rank == 1 and report.status == Status.UNPROVED
    assert "X varies too little along 1 of 2 directions" in str(report)
    report = fit(np.stack([x, x + 1e-5 * z], axis=1), y).report_
    assert report.gap_is_bound and report.rank == 2


def test_a_sparse_penalty_settles_a_constant_column_or_duality_bounds_what_it_leaves():
    X, Y = recording()
    X = np.column_stack([X, np.full(T, 3.7)])
    name, numbers = PENALTIES["lasso"]
    best = oracle.proximal("softplus", X, Y, name, **numbers)
    whole = problem("softplus", X, Y, name, **numbers)
    shift = np.array([0.0, 1e-5, -1e-5])
    coef = best.coef.copy()
    coef[-1] = 0
    bound = proved_gap(whole, Params(coef, best.intercept + shift))
    gap = oracle.objective("softplus", X, Y, coef, best.intercept + shift, None, name, **numbers) - best.objective
    assert np.all(np.isfinite(bound)) and np.all(bound >= gap - 1e-14)
    np.testing.assert_array_equal(whole.left_out_is_settled(coef), True)
    coef[-1, 1] = 0.01  # now the intercept could take it over
    np.testing.assert_array_equal(whole.left_out_is_settled(coef), [True, False, True])
    intercept = best.intercept - 3.7 * coef[-1]
    bound = proved_gap(whole, Params(coef, intercept))
    gap = oracle.objective("softplus", X, Y, coef, intercept, None, name, **numbers) - best.objective
    assert gap[1] == pytest.approx(0.01 * numbers["strength"]) and np.all((bound >= gap) & (bound < 2 * gap + 1e-8))


@pytest.mark.thorough(cases=25)
@every_design
@pytest.mark.parametrize("ridge", [0.0, 1e-2])
def test_certified_gap_is_never_below_the_true_one_on_hard_designs(kind, ridge):
    """Population form and exact form, near the optimum and away from it, row weights with zeros."""
    X = design(kind)
    Y = counts(X)
    whole = problem("softplus", X, Y, weights=WEIGHTS, strength=ridge)
    best = oracle.newton("softplus", X, Y, ridge, WEIGHTS)
    bounded = []
    for seed, size in enumerate([0.0, 1e-3, 1e-2, 0.1, 1.0]):
        off = some_params(X, seed, size)
        at = Params(best.coef + off.coef, best.intercept - X.mean(axis=0) @ off.coef + size * (-1.0) ** np.arange(N))
        gap = oracle.objective("softplus", X, Y, *at, WEIGHTS, strength=ridge) - best.objective
        bound = proved_gap(whole, at, seed)
        assert np.all(bound >= gap)
        # If only duality gives a bound, it is loose.
        near = np.isfinite(bound) & (gap > 1e-11) & (kind != "outlier")
        assert np.all(bound[near] <= 100 * gap[near])
        bounded.append(np.isfinite(bound))
        for n in range(N):
            reached = whole.finish_neuron(at, n, target=1e-9)
            true = (
                oracle.objective("softplus", X, Y, *with_fit(at, n, reached), WEIGHTS, strength=ridge) - best.objective
            )
            assert reached.bound >= true[n] - 2e-15  # F* itself is known to rounding
            if kind != "one row":
                assert reached.bound <= 1e-9
    # In other cases single precision does not resolve all directions, and only the exact form has bounds.
    if kind not in ("outlier", "one row") and not kind.startswith("scaled") and whole.basis.tame:
        assert np.all(bounded[:2])


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("name", ["Lasso", "GroupLasso"])
def test_a_constant_column_without_penalty_is_left_at_zero_by_sparse_fits(name, value):
    """It has no curvature: its step was 0 / 0, or its matrix could not be factorised."""
    X, Y = recording("exp", d=4)
    X[:, 2] = value
    strength = {"regularizer_strength": np.array([1e-3, 1e-3, 0, 0])[:, None] * np.ones(N)}
    numbers = strength if name == "Lasso" else {"regularizer_strength": 1e-3, "groups": [0, 0, -1, -1]}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X has a constant column", UserWarning)
        model = PopulationGLM("exp", name, solver_name="Newton", **numbers).fit(X, Y)
    assert model.report_.converged.all() and model.report_.gap_is_bound.all()
    np.testing.assert_array_equal(model.coef_[2], 0)
    without = {k: np.delete(v, 2, axis=0) if np.ndim(v) else v for k, v in numbers.items()}
    best = PopulationGLM("exp", name, solver_name="Newton", tol=1e-10, **without).fit(np.delete(X, 2, axis=1), Y)
    assert np.all(model.report_.objective - best.report_.objective <= model.report_.gap)
