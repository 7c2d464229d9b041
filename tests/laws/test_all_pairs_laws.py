"""Laws of the all-pairs model, checked against the sum over every pair; numbered as in the spec's table."""

from dataclasses import replace
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
from jax.flatten_util import ravel_pytree

from glmfit.observations import RESPONSE_LOSSES
from glmfit.pairs import AllPairsProblem, SessionBlock, Triples
from glmfit.pairs.responses import merge_blocks
from glmfit.pairs.towers import AffineMap
from tests.oracles import all_pairs as oracle

M, N, K, RECORDS, OMEGA = 23, 17, 4, 90, 0.7
LOSSES = ("squared", "logistic", "poisson")

pytestmark = pytest.mark.usefixtures("x64")


def responses(rng, name, size):
    if name == "squared":
        return rng.normal(size=size)
    return (rng.random(size) < 0.4).astype(float) if name == "logistic" else rng.poisson(1.3, size).astype(float)


def records(rng, name, repeats):
    pair = rng.choice(M * N, RECORDS, replace=False)
    if repeats:
        pair[-30:] = pair[:30]
        pair[-40:-35] = pair[:5]
    return pair // N, pair % N, responses(rng, name, RECORDS)


def features(rng, kind, n, d):
    if kind == "one-hot":
        return n
    values = rng.normal(size=(n, d))
    if kind == "dense":
        return values
    return sp.csr_array(values * (rng.random((n, d)) < 0.4))


def plain(value, n):
    return np.eye(n) if isinstance(value, int) else value.toarray() if sp.issparse(value) else value


def case(
    name="poisson", prior="factors", repeats=True, biases=True, hidden=((7,), (8,)), kinds=("dense", "sparse"),
    omega=OMEGA, layout="triples", seed=0,
):  # fmt: skip
    """Problem, parameters away from any optimum, and the oracle's records."""
    rng = np.random.default_rng([seed, 3])
    left, right, y = records(rng, name, repeats)
    a, b = rng.uniform(0.3, 1.5, M), rng.uniform(0.3, 1.5, N)
    U, V = features(rng, kinds[0], M, 5), features(rng, kinds[1], N, 6)
    factors = rng.normal(size=(M, 3)), rng.normal(size=(N, 3))
    square = rng.normal(size=(M, K + 2 * biases)), rng.normal(size=(N, K + 2 * biases))
    given = {"factors": factors, "square factors": square}.get(prior, prior)
    problem = AllPairsProblem(
        U, V, Triples(left, right, y), name, omega, a, b, given, 0.13, biases, 0.21, layout, np.float64
    )  # fmt: skip
    theta = problem.draw_params(jax.random.key(seed), K, *hidden, scale=0.6)
    theta = jax.tree.map(lambda leaf: leaf + 0.2 * jnp.asarray(rng.normal(size=leaf.shape)), theta)
    tables = {"zero": np.zeros((M, N)), "mean": np.tile(problem.base, (M, 1))}
    table = tables[prior] if prior in tables else given[0] @ given[1].T
    return problem, theta, oracle.Pairs(left, right, y, name, omega, a, b, table)


def _predictor(data, theta):
    P, Q = data.embeddings(theta)
    Z = P @ Q.T
    if data.base is not None:
        Z = Z + theta.left_bias[:, None] + (data.base + theta.right_bias)[None, :]
    return Z


def predictor(problem, theta):
    """Linear predictors of all pairs, spelled out."""
    return np.asarray(jax.jit(_predictor)(problem.data, theta))


def brute(problem, theta, pairs):
    """Objective by the oracle."""
    towers = sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves((theta.left, theta.right)))
    biases = sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves((theta.left_bias, theta.right_bias)))
    return oracle.objective(pairs, predictor(problem, theta)) + 0.065 * towers + 0.105 * biases


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def ridge(problem, theta):
    """Ridge strength of every parameter."""
    towers = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.13), (theta.left, theta.right))
    biases = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.21), (theta.left_bias, theta.right_bias))
    return type(theta)(*towers, *biases)


@jax.jit
def by_all_pairs(data, theta, slope, curvature, direction):
    """Gradient and Gauss-Newton product without the ridge, from derivatives with respect to every linear predictor."""
    _, push = jax.linearize(lambda t: _predictor(data, t), theta)
    pull = jax.linear_transpose(push, theta)
    return pull(slope)[0], pull(curvature * push(direction))[0]


def close(ours, true, tolerance):
    np.testing.assert_allclose(ours, true, rtol=tolerance, atol=tolerance * max(np.max(np.abs(true)), 1e-3))


CASES = [
    *({"name": name, "prior": prior} for name in LOSSES for prior in ("zero", "factors", "mean")),
    *({"name": name, "repeats": False} for name in LOSSES),
    {"name": "poisson-exp"},
    {"name": "poisson-exp", "layout": "dense", "prior": "mean"},
    {"prior": "square factors"},
    {"prior": "square factors", "biases": False},
    {"prior": "mean", "biases": False},
    {"biases": False, "prior": "zero"},
    {"hidden": ((), ()), "kinds": ("one-hot", "one-hot")},
    {"hidden": ((), (5, 4)), "kinds": ("sparse", "one-hot")},
    {"layout": "dense", "repeats": True},
    {"layout": "dense", "name": "squared"},
    {"omega": 0.0},
]  # fmt: skip


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize("kwargs", CASES, ids=str)
def test_1_3_4_objective_gradient_and_product_match_the_sum_over_every_pair(kwargs, rng):
    problem, theta, pairs = case(**kwargs)
    direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), theta)
    objective, value, gradient, product = everything(problem.data, theta, direction)
    true = brute(problem, theta, pairs)
    close(float(objective), true, 1e-12)
    close(float(value), true, 1e-12)
    assert jax.tree.structure(gradient) == jax.tree.structure(theta)
    Z, shrink = predictor(problem, theta), flat(ridge(problem, theta))
    slope, curvature = oracle.slope(pairs, Z), oracle.curvature(pairs, Z)
    true_gradient, true_product = by_all_pairs(problem.data, theta, slope, curvature, direction)
    close(flat(gradient), flat(true_gradient) + shrink * flat(theta), 1e-11)
    close(flat(product), flat(true_product) + shrink * flat(direction), 1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["poisson", *(pytest.param(name, marks=pytest.mark.thorough) for name in (*LOSSES[:2], "poisson-exp"))]
)
def test_the_exact_hessian_is_the_derivative_of_the_gradient(name, rng):
    problem, theta, _ = case(name=name)
    direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), theta)

    @jax.jit
    def gradient(data, t):
        moved = jax.tree.map(lambda leaf, d: leaf + t * d, theta, direction)
        return ravel_pytree(data.value_and_gradient(moved)[1])[0]

    product = flat(jax.jit(lambda data: data.hessian(theta)(direction))(problem.data))
    h = 1e-5
    close(product, np.asarray(gradient(problem.data, h) - gradient(problem.data, -h)) / (2 * h), 1e-6)


@jax.jit
def everything(data, theta, direction):
    """Objective alone, objective with gradient, and product."""
    return data.objective(theta), *data.value_and_gradient(theta), data.gauss_newton(theta)(direction)


def dense_gauss_newton(problem, theta):
    vector, unravel = ravel_pytree(theta)

    @jax.jit
    def rows(data, theta):
        product = data.gauss_newton(theta)
        return jax.vmap(lambda e: ravel_pytree(product(unravel(e)))[0])(jnp.eye(len(vector)))

    return np.asarray(rows(problem.data, theta))


@pytest.mark.slow
def test_2_imputation_is_the_double_sum(rng):
    problem, theta, pairs = case()
    P, Q, S, T = problem.data.tables(theta)
    close(np.asarray(S @ T.T), np.asarray(P @ Q.T) - pairs.prior, 1e-12)


@pytest.mark.thorough
def test_5_gauss_newton_is_positive_although_observed_curvatures_are_not():
    problem, theta, _ = case(omega=3.0, hidden=((), ()), kinds=("one-hot", "one-hot"))
    assert float(jnp.min(problem.data.curvatures(problem.data.tables(theta))[0])) < -0.5
    assert np.linalg.eigvalsh(dense_gauss_newton(problem, theta)).min() >= 0.13 - 1e-10


@pytest.mark.thorough
def test_6_its_null_space_is_the_gauge_of_the_embeddings():
    problem, theta, _ = case(biases=False, prior="zero", hidden=((), ()), kinds=("one-hot", "one-hot"))
    values = np.linalg.eigvalsh(dense_gauss_newton(problem, theta)) - 0.13
    assert np.sum(values < 1e-9 * values.max()) == K**2


@pytest.mark.thorough
def test_7_a_sample_of_observed_pairs_alone_gives_a_matrix_that_is_not_positive():
    """A scaled-up sample of the observed part plus the whole imputed part gives a matrix that is not positive."""
    problem, theta, _ = case(omega=3.0, hidden=((), ()), kinds=("one-hot", "one-hot"), biases=False, prior="zero")
    (observed,) = problem.data.observed
    some = np.arange(observed.y.size).reshape(observed.y.shape) % 3 == 0
    thinned = replace(problem.data, observed=(observed._replace(y=jnp.where(some, observed.y, jnp.nan)),))
    tables, cost = problem.data.tables(theta), problem.data.imputation
    h = np.outer(cost.a, cost.b)
    places = np.ravel(observed.left), np.ravel(observed.right)
    np.add.at(h, places, 3 * np.ravel(thinned.curvatures(tables)[0]))
    J = np.kron(np.eye(M), tables.Q)  # of the left embeddings alone
    assert np.linalg.eigvalsh(J.T @ (h.ravel()[:, None] * J)).min() < -1


@pytest.mark.thorough
def test_8_a_block_step_of_gauss_newton_is_alternating_least_squares():
    problem, theta, pairs = case(
        name="squared", biases=False, prior="zero", hidden=((), ()), kinds=("one-hot", "one-hot")
    )  # fmt: skip
    gradient = problem.data.value_and_gradient(theta)[1]
    G = dense_gauss_newton(problem, theta)[: M * K, : M * K]
    step = np.linalg.solve(G, -np.ravel(gradient.left.maps[0].weight)).reshape(M, K)
    for i in range(M):
        true = oracle.als_row(pairs, np.asarray(theta.right.maps[0].weight), i, 0.13)
        close(np.asarray(theta.left.maps[0].weight)[i] + step[i], true, 1e-10)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_10_session_blocks_equal_triples(name, repeats, rng):
    """Blocks of several shapes that overlap, with gaps and with stimuli shown twice."""
    blocks = []
    for rows, columns in ((9, 6), (11, 5), (23, 4), (3, 17)):
        left = rng.choice(M, rows, replace=False)
        if repeats:
            left[-2:] = left[:2]
        y = responses(rng, name, (rows, columns))
        y[rng.random(y.shape) < 0.2] = np.nan
        right = rng.choice(N, columns, replace=False)
        blocks.append(SessionBlock(left, right, y))
    if not repeats:  # every pair once
        seen = np.zeros((M, N), bool)
        for block in blocks:
            at = np.ix_(block.left, block.right)
            block.y[seen[at]] = np.nan
            seen[at] |= ~np.isnan(block.y)
    where = [np.nonzero(~np.isnan(block.y)) for block in blocks]
    left = np.concatenate([block.left[w[0]] for block, w in zip(blocks, where, strict=True)])
    right = np.concatenate([block.right[w[1]] for block, w in zip(blocks, where, strict=True)])
    y = np.concatenate([block.y[w] for block, w in zip(blocks, where, strict=True)])
    a, b = rng.uniform(0.3, 1.5, M), rng.uniform(0.3, 1.5, N)
    triples = Triples(left, right, y)
    given = [(blocks, "auto"), (triples, "triples")]
    if name == "squared":  # its merged trials leave a constant
        given += [(blocks, "triples"), (blocks, "dense"), (triples, "dense")]
    made = [AllPairsProblem(M, N, r, name, OMEGA, a, b, layout=how, dtype=np.float64) for r, how in given]
    theta = made[0].draw_params(jax.random.key(1), K)
    direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), theta)
    _, value, gradient, product = everything(made[0].data, theta, direction)
    assert len({p.n_pairs for p in made}) == 1
    for other in made[1:]:
        np.testing.assert_allclose(other.mean, made[0].mean, rtol=1e-13)
        _, value_2, gradient_2, product_2 = everything(other.data, theta, direction)
        np.testing.assert_allclose(value_2, value, rtol=1e-12)
        np.testing.assert_allclose(flat(gradient_2), flat(gradient), atol=1e-10)
        np.testing.assert_allclose(flat(product_2), flat(product), atol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_long_blocks_and_many_small_blocks_match_triples(device, rng, monkeypatch):
    from glmfit.pairs import responses

    monkeypatch.setattr(responses, "default_device", lambda: SimpleNamespace(platform=device))
    assert responses.at_once(40) == (40 if device == "cpu" else 2560)
    monkeypatch.setattr(responses, "_ENTRIES", 40)
    monkeypatch.setattr(responses, "_TRIPLES", 7)
    y = rng.poisson(1.0, (M, N)).astype(float)
    y[rng.random(y.shape) < 0.3] = np.nan
    blocks = [SessionBlock(np.arange(4 * s, min(4 * s + 4, M)), np.arange(N), y[4 * s : 4 * s + 4]) for s in range(6)]
    blocks += [SessionBlock(np.array([1]), np.array([2]), np.array([[5.0]]))]
    a = AllPairsProblem(M, N, blocks, dtype=np.float64)
    merged = merge_blocks(blocks).scattered()
    assert len(merged.y) == a.n_pairs == np.sum(~np.isnan(y)) + np.isnan(y[1, 2])
    record = Triples(*np.nonzero(~np.isnan(y)), y[~np.isnan(y)])
    record = Triples(np.append(record.left, 1), np.append(record.right, 2), np.append(record.y, 5.0))
    b = AllPairsProblem(M, N, record, layout="triples", dtype=np.float64)
    theta = a.draw_params(jax.random.key(1), K)
    for ours, true in zip(a.data.value_and_gradient(theta), b.data.value_and_gradient(theta), strict=True):
        close(flat(ours), flat(true), 1e-12)
    assert merged.count is None or merged.count.max() == 2


@pytest.mark.slow
def test_11_uniformly_drawn_left_entities_estimate_the_gradient():
    """The mean over a partition of the left entities is the gradient itself."""
    problem, theta, _ = case(hidden=((), (8,)), kinds=("sparse", "dense"), prior="mean")
    assert problem.left_batches(5, seed=0)[0].shape == (4, 5)
    rows, observed = problem.left_batches(1, seed=3)
    assert sorted(np.ravel(rows)) == list(range(M))
    value, gradient = 0.0, 0.0
    one = jax.jit(lambda data, rows, observed, theta: data.take(rows, observed).value_and_gradient(theta))
    for b in range(M):
        estimate = one(problem.data, rows[b], jax.tree.map(lambda a, b=b: a[b], observed), theta)
        value, gradient = value + estimate[0] / M, gradient + flat(estimate[1]) / M
    true = problem.data.value_and_gradient(theta)
    close(float(value), float(true[0]), 1e-12)
    close(gradient, flat(true[1]), 1e-12)


@pytest.mark.slow
def test_13_difference_form_keeps_what_the_gram_form_loses():
    rng = np.random.default_rng(5)
    Pt, Qt = rng.normal(size=(60, 4)), rng.normal(size=(50, 4))
    y = np.full((60, 50), np.nan)
    y[0, 0] = 1.0
    with jax.enable_x64(False):
        problem = AllPairsProblem(60, 50, y, "squared", 1.0, prior=(Pt, Qt), biases=False, strength=0.0)
        theta = problem.draw_params(jax.random.key(0), 4)
        P = jnp.asarray(Pt + 1e-3 * rng.normal(size=Pt.shape), np.float32)
        Q = jnp.asarray(Qt, np.float32)
        theta = type(theta)(*(type(theta.left)((AffineMap(side, None),)) for side in (P, Q)), None, None)
        value = float(problem.data.objective(theta))
    Pt32, Qt32, P32 = (np.asarray(np.asarray(a, np.float32), np.float64) for a in (Pt, Qt, P))
    Z = P32 @ Qt32.T
    pairs = oracle.Pairs(
        np.array([0]), np.array([0]), np.array([1.0]), "squared", 1.0, np.ones(60), np.ones(50), Pt32 @ Qt32.T
    )  # fmt: skip
    close(value, oracle.objective(pairs, Z), 1e-5)


@pytest.mark.slow
def test_magnitude_bounds_the_rounding_where_large_embeddings_cancel():
    rng = np.random.default_rng(6)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    P = (rng.normal(size=(60, 4)) * [40, 40, 1e-3, 1e-3] @ rotation).astype(np.float32)
    Q = (rng.normal(size=(50, 4)) * [1e-3, 1e-3, 40, 40] @ rotation).astype(np.float32)
    y = np.full((60, 50), np.nan)
    y[0, 0] = 0.0
    values = {}
    for dtype in (np.float32, np.float64):
        problem = AllPairsProblem(60, 50, y, "squared", 1.0, prior="zero", biases=False, strength=0.0, dtype=dtype)
        theta = problem.draw_params(jax.random.key(0), 4)
        towers = (type(theta.left)((AffineMap(jnp.asarray(side, dtype), None),)) for side in (P, Q))
        theta = type(theta)(*towers, None, None)
        values[dtype] = float(problem.data.objective(theta)), float(problem.data.magnitude(theta))
    eps = np.finfo(np.float32).eps
    error = abs(values[np.float32][0] - values[np.float64][0])
    assert 100 * eps * values[np.float64][0] < error <= 10 * eps * values[np.float32][1]


@pytest.mark.thorough
def test_14_without_imputation_it_is_the_plain_fit_of_observed_pairs():
    problem, theta, pairs = case(omega=0.0)
    assert problem.data.imputation is None
    Z = predictor(problem, theta)
    plain_sum = sum(
        oracle.loss_values("poisson", y, Z[i, j])[0] for i, j, y in zip(pairs.left, pairs.right, pairs.y, strict=True)
    )
    close(float(problem.data.objective(theta) - problem.data.penalty(theta)), plain_sum, 1e-12)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_15_losses_are_finite_everywhere_with_correct_derivatives(name, dtype):
    loss = RESPONSE_LOSSES[name]
    z = np.array([-800.0, -50.0, -20.0, -1.0, 0.0, 0.3, 50.0, 800.0], dtype)
    for y in (0.0, 1.0, 0.25):
        value, slope = loss.misfit_and_derivative(y, z)
        curvature = loss.curvature(y, z)
        assert value.dtype == slope.dtype == dtype
        assert np.isfinite([value, slope, curvature]).all()
        assert (curvature >= 0).all()
        grad = jax.vmap(jax.grad(lambda t, y=y: loss.misfit_and_derivative(y, t)[0]))(jnp.asarray(z))
        assert np.isfinite(grad).all()
        true = oracle.loss_values(name, y, z.astype(float)[2:-2])
        for ours, theirs in zip((value, slope, curvature), true, strict=True):
            np.testing.assert_allclose(ours[2:-2], theirs, rtol=3e-5 if dtype == np.float32 else 1e-9, atol=1e-6)


@pytest.mark.slow
def test_16_rotating_the_embeddings_changes_nothing():
    problem, theta, _ = case(hidden=((), (8,)), kinds=("one-hot", "dense"))
    rotation = jnp.linalg.qr(jax.random.normal(jax.random.key(2), (K, K)))[0]
    last = theta.right.maps[-1]
    turned = eqx.tree_at(
        lambda t: (t.left.maps[0].weight, t.right.maps[-1].weight, t.right.maps[-1].constant),
        theta,
        (theta.left.maps[0].weight @ rotation, last.weight @ rotation, last.constant @ rotation),
    )
    close(float(problem.data.objective(turned)), float(problem.data.objective(theta)), 1e-12)


SIDES = [
    {"hidden": ((), ()), "kinds": ("one-hot", "one-hot"), "prior": "mean"},
    {"hidden": ((), ()), "kinds": ("dense", "sparse"), "prior": "factors", "name": "logistic"},
    {"hidden": ((), ()), "kinds": ("one-hot", "dense"), "biases": False, "prior": "mean", "name": "squared"},
    {"hidden": ((), (8,)), "kinds": ("sparse", "one-hot"), "prior": "zero"},
    {"hidden": ((), ()), "kinds": ("one-hot", "one-hot"), "layout": "dense", "omega": 0.0},
    {"hidden": ((), ()), "kinds": ("one-hot", "one-hot"), "prior": "mean", "name": "poisson-exp"},
]


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("kwargs", SIDES, ids=str)
def test_the_possible_gain_of_one_side_is_bounded(kwargs):
    """Compare with the optimum of one side, found by SciPy with the other side fixed; near it the bound is small."""
    problem, theta, pairs = case(**kwargs)
    gaps = problem.certify_sides(theta)
    close(gaps.objective, brute(problem, theta, pairs), 1e-12)
    for side in ("left", "right"):
        bound = getattr(gaps, side)
        if kwargs["hidden"][side == "right"]:
            assert np.isnan(bound)
            continue
        moved = (side, f"{side}_bias")
        start, unravel = ravel_pytree([getattr(theta, name) for name in moved])

        def placed(x, unravel=unravel, moved=moved):
            return eqx.tree_at(
                lambda t: [getattr(t, name) for name in moved], theta, unravel(x), is_leaf=lambda leaf: leaf is None
            )

        function = jax.jit(jax.value_and_grad(lambda x: problem.data.objective(placed(x))))
        found = scipy.optimize.minimize(function, start, jac=True, method="BFGS", options={"gtol": 1e-9})
        gain = gaps.objective - found.fun
        assert gain <= bound * (1 + 1e-9)
        near = placed(jnp.asarray(found.x + 1e-5 * np.random.default_rng(0).normal(size=found.x.shape)))
        at_near = getattr(problem.certify_sides(near), side)
        assert at_near <= 1e-4
        if kwargs["kinds"][1] == "one-hot" and side == "right":
            np.testing.assert_allclose(gaps.per_right.sum(), gaps.right, rtol=1e-10)
            values = [_best_of_one(problem, theta, j) for j in (0, 5)]
            for j, value in zip((0, 5), values, strict=True):
                assert gaps.objective - value <= gaps.per_right[j] * (1 + 1e-9)
        else:
            assert kwargs["kinds"][1] == "one-hot" or np.isnan(gaps.per_right).all()


def _best_of_one(problem, theta, j):
    """Least objective when only one right entity moves."""

    def objective(x):
        right = theta.right.maps[0].weight.at[j].set(x[:K])
        moved = eqx.tree_at(
            lambda t: (t.right.maps[0].weight, t.right_bias), theta, (right, theta.right_bias.at[j].set(x[K]))
        )
        return problem.data.objective(moved)

    start = np.append(np.asarray(theta.right.maps[0].weight[j]), theta.right_bias[j])
    function = jax.jit(jax.value_and_grad(objective))
    return scipy.optimize.minimize(function, start, jac=True, method="BFGS", options={"gtol": 1e-9}).fun


@pytest.mark.thorough
def test_bounds_of_one_side_hold_in_single_precision():
    with jax.enable_x64(False):
        problem = AllPairsProblem(M, N, Triples(*records(np.random.default_rng(1), "poisson", True)))
        theta = problem.draw_params(jax.random.key(0), K)
        gaps = problem.certify_sides(theta)
        value = float(problem.data.objective(theta))
    assert gaps.left > 0 and gaps.right > 0
    close(value, gaps.objective, 1e-5)


@pytest.mark.thorough
def test_bounds_use_weights_and_priors_as_given():
    prior = np.array([[1.0], [1e6 + 0.03]]), np.array([[1.0]])
    problem = AllPairsProblem(
        2, 1, Triples(np.array([0]), np.array([0]), np.array([0.0])), "squared", 1.0, prior=prior, strength=1e-8,
        biases=False, dtype=np.float32,
    )  # fmt: skip
    theta = problem.draw_params(jax.random.key(0), 1)
    rounded = float(np.float32(1e6 + 0.03)) / (1 + 1e-8)
    theta = eqx.tree_at(
        lambda t: (t.left.maps[0].weight, t.right.maps[0].weight),
        theta,
        (jnp.array([[0.0], [rounded]]), jnp.array([[1.0]])),
    )
    best = (1e6 + 0.03) / (1 + 1e-8)
    gain = 0.5 * (1 + 1e-8) * (rounded - best) ** 2
    assert gain * (1 - 1e-6) <= problem.certify_sides(theta).left <= 2 * gain / 1e-8
