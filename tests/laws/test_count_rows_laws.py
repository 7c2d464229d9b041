"""Laws of steps on whole rows of counts: unbiased, raised no further than proved, ending near the optimum."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import softmax as oracle
from scipy.special import logsumexp

from glmfit import MultinomialGLM
from glmfit.solvers import SGD, ImplicitSGD, Schedule, UMax
from glmfit.stochastic import Pairs, SoftmaxProblem
from glmfit.stochastic import class_kernels as sampling

N, D, K, M = 4, 3, 5, 2
every_alpha = pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
every_layout = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
Y = np.array([[2.0, 0, 1, 0, 0], [0, 0, 0, 3, 0], [1, 1, 1, 1, 1], [1, 2, 0, 3, 1]])  # one row has all classes


def make(rng, sparse=False, offset=True, strength=0.0):
    import scipy.sparse as sp

    X, W, v = rng.normal(size=(N, D)), rng.normal(size=(K, D)), rng.uniform(0.5, 2, N)
    o, weight = rng.normal(size=(N, K)) if offset else None, rng.uniform(0.5, 2, N)
    if offset:
        o -= o.mean(axis=1, keepdims=True)  # as problems store them: a common offset changes no probability
    row, label = np.nonzero(Y)
    pairs = Pairs(row, label, Y[row, label] * weight[row])
    features = sp.csr_array(X) if sparse else X
    return SoftmaxProblem(features, pairs, K, strength, False, o, np.float64), X, W, v, o, weight


def one_step(problem, W, v, i, others, solver, c=1e-3, strength=0.0):
    """Weights and auxiliary variables after one visit of rows i with given negatives, padded with class K."""
    negatives = np.full((1, len(i), max(len(C) for C in others)), K, np.int32)
    for j, C in enumerate(others):
        negatives[0, j, : len(C)] = C
    weights = sampling.Weights(jnp.array(W), jnp.array(v), jnp.ones(D))
    span = sampling.Span(0, 1, c, np.full(D, strength), np.nan, np.inf)
    order = jnp.asarray(np.array([i], np.int32))
    data, width = problem.class_data("raw"), int(np.diff(problem.first_pairs).max())
    support = jnp.stack([sampling.support_of(data, row, width)[0] for row in i])[None]
    drawn = support, jnp.asarray(negatives)
    end = sampling.take_steps(
        sampling.measure(data, span, solver), weights, order, drawn, span, sampling.counts, solver
    )
    return np.array(end.V) * np.array(end.scale), np.array(end.u)


def subsets(i):
    others = np.flatnonzero(Y[i] == 0)
    return oracle.subsets(others, min(M, len(others)))


@every_alpha
def test_the_best_auxiliary_variable_gives_the_likelihood(alpha, rng):
    _, X, W, _, offset, _ = make(rng)
    s = oracle.scores(W, X, offset)
    share = Y / Y.sum(axis=1, keepdims=True)
    v = logsumexp(s, axis=1) - (1 - alpha) * (share * s).sum(axis=1)
    value = sum(oracle.count_term(s[i], Y[i], v[i], alpha) for i in range(N))
    assert value - Y.sum() == pytest.approx(oracle.nll(W, X, Y, offset), rel=1e-12)
    if alpha == 0:  # this justifies the clip at 0
        entropy = -np.sum(np.where(share > 0, share * np.log(np.maximum(share, 1e-300)), 0), axis=1)
        assert np.all(v >= entropy - 1e-12)


@pytest.mark.thorough(cases=1)
@every_alpha
@every_layout
def test_steps_are_unbiased_over_all_draws(alpha, sparse, rng, x64):
    """Forms A2 (alpha = 1) and C (alpha = 0), every row and every set of negatives enumerated."""
    problem, X, W, v, offset, weight = make(rng, sparse)
    solver, c = UMax(auxiliary_step=None, alpha=alpha, delta=1e30), 1e-3
    gv, gW = np.zeros(N), np.zeros((K, D))
    for i in range(N):
        sets = subsets(i)
        for C in sets:
            V, u = one_step(problem, W, v, [i], [C], solver, c)
            gW -= (V - W) / c / len(sets)
            gv -= (u - v) / c / len(sets)
    exact_v, exact_W = oracle.count_gradient(v, W, X, Y, alpha, offset, weight)
    np.testing.assert_allclose(gW, exact_W, atol=1e-10)
    np.testing.assert_allclose(gv, exact_v, atol=1e-10)


@pytest.mark.slow
@every_layout
def test_implicit_steps_minimise_the_sampled_objective(sparse, rng, x64):
    """Stationarity of the sampled objective plus half the squared change, ridge included."""
    problem, X, W, v, offset, weight = make(rng, sparse)
    c, strength = 3.0, 0.2
    for i in range(N):
        C = np.asarray(subsets(i)[-1], int)
        V, u = one_step(problem, W, v, [i], [C], ImplicitSGD(auxiliary_step=None, alpha=1.0), c, strength)
        a = (Y[i] > 0).astype(float)
        a[C] = np.sum(Y[i] == 0) / max(len(C), 1)
        n, share = weight[i] * Y[i].sum(), Y[i] / Y[i].sum()
        e = a * np.exp(V @ X[i] + offset[i] - u[i])
        slope = c * n * (e - share)[:, None] * X[i] + c * strength * V + V - W
        np.testing.assert_allclose(slope, 0, atol=1e-9)
        assert c * n * (1 - e.sum()) + u[i] - v[i] == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
@every_layout
def test_a_batch_takes_the_mean_of_its_rows(sparse, rng, x64):
    problem, _, W, v, *_ = make(rng, sparse)
    sets = [subsets(i)[0] for i in range(N)]
    for solver in (ImplicitSGD(auxiliary_step=None, alpha=1.0), SGD(auxiliary_step=None)):
        V, u = one_step(problem, W, v, list(range(N)), sets, solver, 0.1)
        alone = [one_step(problem, W, v, [i], [sets[i]], solver, 0.1) for i in range(N)]
        np.testing.assert_allclose(V, np.mean([a for a, _ in alone], axis=0), atol=1e-12)
        np.testing.assert_allclose(u, np.mean([b for _, b in alone], axis=0), atol=1e-12)


@pytest.mark.thorough(cases=1)
@every_alpha
def test_raises_of_a_batch_count_in_full(alpha, rng, x64):
    """They are not averaged over the batch: a variable that is too low is raised whatever the others do."""
    problem, _, W, _, *_ = make(rng)
    sets, low = [subsets(i)[0] for i in range(N)], np.full(N, -5.0)
    _, together = one_step(problem, W, low, list(range(N)), sets, UMax(auxiliary_step=None, alpha=alpha), 0.0)
    alone = [
        one_step(problem, W, low, [i], [sets[i]], UMax(auxiliary_step=None, alpha=alpha), 0.0)[1][i] for i in range(N)
    ]
    np.testing.assert_allclose(together, alone, atol=1e-12)
    assert np.all(together > low)


@pytest.mark.thorough(cases=1)
@every_alpha
def test_a_raise_never_exceeds_the_best_variable(alpha, rng, x64):
    """A step of length 0 only raises; afterwards no exponential exceeds exp(delta)."""
    problem, X, W, _, offset, _ = make(rng)
    s = oracle.scores(4 * W, X, offset)
    share = Y / Y.sum(axis=1, keepdims=True)
    best = logsumexp(s, axis=1) - (1 - alpha) * (share * s).sum(axis=1)
    low, raised = best - 6, 0
    draws = [(row, C) for row in range(N) for C in subsets(row)]
    for i, C in draws:
        _, u = one_step(problem, 4 * W, low, [i], [C], UMax(auxiliary_step=None, alpha=alpha), 0.0)
        touched = np.flatnonzero(Y[i] > 0).tolist() + list(C)
        most = np.max(s[i, touched] - (1 - alpha) * share[i] @ s[i] - u[i])
        assert u[i] <= best[i] + 1e-10 and most <= 1 + 1e-10
        raised += u[i] > low[i]
    assert raised > 0


@pytest.mark.thorough
def test_classes_without_counts_are_drawn_uniformly():
    known = np.full((30_000, 3), np.iinfo(np.int32).max, np.int32)
    known[:, :2] = [1, 4]
    C = np.asarray(sampling.distinct_negatives(jax.random.key(0), jnp.asarray(known), 6, 2, jnp.full(30_000, 2)))
    drawn, count = np.unique(C, axis=0, return_counts=True)
    assert {tuple(d) for d in drawn} == set(itertools.permutations([0, 2, 3, 5], 2))
    assert np.all(np.abs(count - 2500) < 6 * np.sqrt(2500))
    known[:, 1] = 2
    few = np.asarray(sampling.distinct_negatives(jax.random.key(0), jnp.asarray(known[:9]), 3, 3, jnp.full(9, 2)))
    assert np.all(few[:, 0] == 0) and np.all(few[:, 1:] >= 3)  # one other class exists, the rest are not classes


SOLVERS = {
    "implicit": (ImplicitSGD(3, alpha=1.0, visit="row"), 0.5),
    "implicit, batch": (ImplicitSGD(3, batch_size=4, alpha=1.0, visit="row"), 2.0),
    "umax, mean reference": (UMax(3, visit="row"), 0.05),
    "umax, absolute": (UMax(3, alpha=1.0, visit="row"), 0.05),
    "umax, batch": (UMax(3, batch_size=4, visit="row"), 0.1),
}


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver, step", SOLVERS.values(), ids=SOLVERS)
def test_fits_of_counts_end_near_the_optimum(solver, step, rng):
    X = rng.normal(size=(600, 4))
    p = np.exp(X @ rng.normal(size=(4, 8)))
    counts = np.stack([rng.multinomial(rng.integers(0, 9), q) for q in p / p.sum(axis=1, keepdims=True)])
    exact = MultinomialGLM(regularizer_strength=1e-3, solver_name="ConjugateGradients").fit(X, counts)
    row, label = np.nonzero(counts)
    kept = counts.sum(axis=1) > 0
    place = np.cumsum(kept) - 1
    problem = SoftmaxProblem(X[kept], Pairs(place[row], label, counts[row, label].astype(float)), 8, 1e-3)
    found = solver.run(problem, key=jax.random.key(0), schedule=Schedule(40, step, 0.9))
    null = problem.null_objective
    share = (problem.objective(found.params) - exact.report_.objective) / (null - exact.report_.objective)
    assert found.state.weights.u.shape == (kept.sum(),)
    assert 0 <= share < 0.05
    again = solver.run(problem, key=jax.random.key(0), schedule=Schedule(40, step, 0.9))
    np.testing.assert_array_equal(found.params.coef, again.params.coef)
    # In a run that starts at its own end, the variables start at their best values, so that it stays there.
    state = solver.init_state(problem, found.params, key=jax.random.key(1))
    scores = problem.scores(found.params)
    mean = np.asarray(problem.counts.multiply(scores).sum(axis=1)).ravel() / problem.totals
    best = logsumexp(scores, axis=1) - (1 - solver.alpha) * mean
    np.testing.assert_allclose(np.asarray(state.weights.u), best, atol=1e-3)


@pytest.mark.slow
def test_a_single_count_per_row_is_a_label(rng, x64):
    """With alpha = 1, rows and pairs give the same steps, up to the order of classes."""
    X, label = rng.normal(size=(50, D)), rng.integers(0, K, 50)
    problem = SoftmaxProblem(X, Pairs(np.arange(50), label, np.ones(50)), K, 1e-2, dtype=np.float64)
    ends = [
        ImplicitSGD(2, alpha=1.0, visit=visit).run(problem, key=jax.random.key(0), schedule=Schedule(3, 1.0)).params
        for visit in ("pair", "row")
    ]
    np.testing.assert_allclose(ends[0].coef, ends[1].coef, atol=1e-10)


@pytest.mark.slow
def test_an_estimator_accepts_rows_of_counts(rng):
    X = rng.normal(size=(300, 2))
    counts = rng.multinomial(6, np.ones(4) / 4, size=300)
    kwargs = {"n_negatives": 2, "alpha": 1.0, "visit": "row"}
    model = MultinomialGLM(regularizer_strength=1e-2, solver_name="ImplicitSGD", solver_kwargs=kwargs).fit(X, counts)
    assert model.report_.gap_is_bound and model.report_.row_evals == model.report_.epochs * 300
    assert model.report_.gap < 0.1


@pytest.mark.parametrize(
    "make_it, message",
    [
        (lambda: ImplicitSGD(visit="all"), "visit is 'all'; it must be one of 'pair', 'row'"),
        (lambda: UMax(visit=1), "visit is 1"),
        (lambda: ImplicitSGD(visit="row"), "implicit steps on rows of counts need alpha=1"),
    ],
)
def test_visits_that_make_no_sense_are_refused(make_it, message):
    with pytest.raises(ValueError, match=message):
        make_it()
