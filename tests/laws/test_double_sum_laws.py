"""The double-sum form of softmax: its optimum is the likelihood, and every sampled gradient is unbiased."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import softmax as oracle

from glmfit.solvers import NCE, OVE, SGD, ImportanceSampling, SampledSoftmax, UMax

N, D, K = 5, 3, 4
every_alpha = pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])


@pytest.fixture
def model(rng):
    """Rows, labels (one class is never seen), weights, offsets, coefficients and auxiliary variables."""
    X, W, v = rng.normal(size=(N, D)), rng.normal(size=(K, D)), rng.uniform(0, 2, N)
    return X, np.array([0, 2, 2, 1, 0]), W, v, rng.normal(size=(N, K)), rng.uniform(0.5, 2, N)


@every_alpha
def test_the_double_sum_at_the_best_auxiliary_variables_is_the_likelihood(alpha, model):
    """Identity 3: value, gradient in v, gradient in W."""
    X, y, W, _, offset, weight = model
    v = oracle.best_auxiliary(W, X, y, alpha, offset)
    value = oracle.double_sum(v, W, X, y, alpha, offset, weight) - weight.sum()
    np.testing.assert_allclose(value, oracle.nll(W, X, oracle.one_hot(y, K), offset, weight), rtol=1e-13)
    gv, gW = oracle.double_sum_gradient(v, W, X, y, alpha, offset, weight, mu=0.3)
    np.testing.assert_allclose(gv, 0, atol=1e-12)
    exact = oracle.nll_gradient(W, X, oracle.one_hot(y, K), offset, weight, mu=0.3)
    np.testing.assert_allclose(gW, exact, atol=1e-12)


@pytest.mark.thorough(cases=2)
@every_alpha
def test_value_and_gradient_match_the_sum_written_term_by_term(alpha, model, x64):
    X, y, W, v, offset, weight = model

    def total(v, W):
        score = X @ W.T + offset
        own = score[jnp.arange(N), y]
        others = jnp.where(jnp.arange(K)[None] == y[:, None], -jnp.inf, score - (1 - alpha) * own[:, None])
        rows = v - alpha * own + jnp.exp(alpha * own - v) + jnp.exp(others - v[:, None]).sum(axis=1)
        return jnp.sum(weight * rows)

    value = oracle.double_sum(v, W, X, y, alpha, offset, weight)
    np.testing.assert_allclose(total(v, jnp.asarray(W)), value, rtol=1e-12)
    gv, gW = jax.grad(total, (0, 1))(jnp.asarray(v), jnp.asarray(W))
    exact_v, exact_W = oracle.double_sum_gradient(v, W, X, y, alpha, offset, weight)
    np.testing.assert_allclose(gv, exact_v, atol=1e-12)
    np.testing.assert_allclose(gW, exact_W, atol=1e-12)


class Scheme(NamedTuple):
    """A row of the table in docs/theory/double_sum.md."""

    row: float  # multiplies what a sampled row contributes by itself
    negative: float  # multiplies each sampled exponential
    touched: np.ndarray  # probability that a step touches each class


def single_row_weights(label_counts, m):
    share = label_counts / N
    return Scheme(N, N * np.exp(SGD().log_weight(K, m, 1)), share + (1 - share) * m / (K - 1))


def with_replacement_weights(label_counts, m):
    share = label_counts / N
    return Scheme(N, N * np.exp(SGD().log_weight(K, m, 1)), share + (1 - share) * (1 - (1 - 1 / (K - 1)) ** m))


def shared_weights(label_counts, n, m):
    missed = np.prod([1 - label_counts / (N - j) for j in range(n)], axis=0)
    as_negative, as_label = m / K, 1 - np.maximum(missed, 0.0)
    touched = as_negative + as_label - as_negative * as_label
    return Scheme(N / n, N / n * np.exp(SGD().log_weight(K, m, 2)), touched)


def sampled(solver, log_a, X, y, score, v, weight, i, C):
    """Gradient in v and W that a solver's step at row i with negatives C represents."""
    gv, gW = np.zeros(N), np.zeros((K, D))
    pushes, pull, after = oracle.pair_step(solver, weight[i], log_a, score[i, C], score[i, y[i]], 0.0, v[i])
    gv[i] = v[i] - float(after)
    for k, push in zip(C, np.asarray(pushes), strict=True):
        gW[k] += push * X[i]
    gW[y[i]] -= float(pull) * X[i]
    return gv, gW


def mean(pairs):
    pairs = list(pairs)
    return tuple(sum(part) / len(pairs) for part in zip(*pairs, strict=True))


def counts(y):
    return np.bincount(y, minlength=K)


@pytest.mark.thorough
@every_alpha
@pytest.mark.parametrize("m", [1, 2, 3])
def test_one_row_with_distinct_negatives_is_unbiased(alpha, m, model, x64):
    """Identity 4, over every row and every set of negatives."""
    X, y, W, v, offset, weight = model
    v = v + 3.0  # so that no auxiliary variable is stopped at 0
    score = oracle.scores(W, X, offset)
    scheme = single_row_weights(counts(y), m)
    solver = UMax(alpha=alpha, delta=1e30)
    draws = [(i, list(C)) for i in range(N) for C in oracle.subsets([k for k in range(K) if k != y[i]], m)]
    log_a = np.log(scheme.negative / scheme.row)
    gv, gW = mean(sampled(solver, log_a, X, y, score, v, weight, i, C) for i, C in draws)
    exact = oracle.double_sum_gradient(v, W, X, y, alpha, offset, weight)
    np.testing.assert_allclose(scheme.row * gv, exact[0], atol=1e-11)
    np.testing.assert_allclose(scheme.row * gW, exact[1], atol=1e-11)
    touched = np.mean([[k in C or k == y[i] for k in range(K)] for i, C in draws], axis=0)
    np.testing.assert_allclose(scheme.touched, touched, atol=1e-13)


@pytest.mark.thorough
@pytest.mark.parametrize("m", [1, 2, 3])
def test_negatives_with_replacement_are_unbiased(m, model, x64):
    X, y, W, v, offset, weight = model
    v = v + 3.0
    score = oracle.scores(W, X, offset)
    scheme = with_replacement_weights(counts(y), m)
    draws = [(i, list(C)) for i in range(N) for C in itertools.product([k for k in range(K) if k != y[i]], repeat=m)]
    log_a = np.log(scheme.negative / scheme.row)
    gv, gW = mean(sampled(SGD(), log_a, X, y, score, v, weight, i, C) for i, C in draws)
    exact = oracle.double_sum_gradient(v, W, X, y, 0.0, offset, weight)
    np.testing.assert_allclose(scheme.row * gv, exact[0], atol=1e-11)
    np.testing.assert_allclose(scheme.row * gW, exact[1], atol=1e-11)
    touched = np.mean([[k in C or k == y[i] for k in range(K)] for i, C in draws], axis=0)
    np.testing.assert_allclose(scheme.touched, touched, atol=1e-13)


@pytest.mark.thorough
@every_alpha
@pytest.mark.parametrize("n, m", [(1, 2), (2, 2), (3, 1), (5, 4)])
def test_rows_that_share_negatives_are_unbiased(alpha, n, m, model, x64):
    X, y, W, v, offset, weight = model
    v = v + 3.0
    score = oracle.scores(W, X, offset)
    scheme = shared_weights(counts(y), n, m)
    solver, log_a = UMax(alpha=alpha, delta=1e30), np.log(scheme.negative / scheme.row)
    draws = list(itertools.product(oracle.subsets(range(N), n), oracle.subsets(range(K), m)))

    def masked(rows, C):
        """Ignore a row's own label among the negatives."""
        parts = []
        for i in rows:
            parts.append(sampled(solver, log_a, X, y, score, v, weight, i, [k for k in C if k != y[i]]))
        return tuple(sum(part) for part in zip(*parts, strict=True))

    gv, gW = mean(masked(rows, C) for rows, C in draws)
    exact = oracle.double_sum_gradient(v, W, X, y, alpha, offset, weight)
    np.testing.assert_allclose(scheme.row * gv, exact[0], atol=1e-11)
    np.testing.assert_allclose(scheme.row * gW, exact[1], atol=1e-11)
    touched = np.mean([[k in C or k in y[list(rows)] for k in range(K)] for rows, C in draws], axis=0)
    np.testing.assert_allclose(scheme.touched, touched, atol=1e-13)


@pytest.mark.thorough
def test_the_estimators_called_biased_are_biased(model, x64):
    """OVE, NCE and sampled softmax do not have the softmax gradient as their mean; sizes as in the spec's table."""
    X, y, W, _, _, _ = model
    score, weight = oracle.scores(W, X), np.ones(N)
    exact = oracle.nll_gradient(W, X, oracle.one_hot(y, K))
    m = 2
    for solver, log_a in (
        (OVE(), np.log((K - 1) / m)),
        (NCE(), np.log(m / K)),
        (ImportanceSampling(), 0.0),
        (ImportanceSampling(weighted=True), np.log((K - 1) / m)),
    ):
        draws = [(i, list(C)) for i in range(N) for C in oracle.subsets([k for k in range(K) if k != y[i]], m)]
        _, gW = mean(sampled(solver, log_a, X, y, score, np.zeros(N), weight, i, C) for i, C in draws)
        bias = np.linalg.norm(N * gW - exact) / np.linalg.norm(exact)
        assert 0.05 < bias < 3


@pytest.mark.parametrize(("n_classes", "m"), [(7, 2), (7, 4), (8, 7), (6, 6)])
def test_shared_negatives_estimate_the_normaliser(n_classes, m, rng):
    """The estimate is unbiased, and shares bound its relative variance; its logarithm is too low on average."""
    score, label = 2 * rng.normal(size=n_classes), 1
    weight = np.exp(SampledSoftmax(m, 9).log_weight(n_classes, m, 9))
    e = np.exp(score - score[label])
    e[label] = 0
    draws = [1 + weight * e[list(C)].sum() for C in oracle.subsets(range(n_classes), m)]
    total, share = 1 + e.sum(), np.exp(score) / np.exp(score).sum()
    np.testing.assert_allclose(np.mean(draws), total, rtol=1e-12)
    assert np.var(draws) / total**2 <= n_classes / m * np.sum(share**2)
    assert np.mean(np.log(draws)) <= np.log(total) + 1e-12


@pytest.mark.thorough
def test_baseline_steps_are_the_gradients_of_their_losses(x64, rng):
    score, own, log_a = rng.normal(size=3), 0.4, 0.7
    losses = {
        OVE(): lambda s, o: jnp.exp(log_a) * jnp.sum(jax.nn.softplus(s - o)),
        NCE(): lambda s, o: jax.nn.softplus(log_a - o) + jnp.sum(jax.nn.softplus(s - log_a)),
        ImportanceSampling(): lambda s, o: jax.nn.logsumexp(jnp.append(s, o)) - o,
        ImportanceSampling(weighted=True): lambda s, o: jax.nn.logsumexp(jnp.append(s + log_a, o)) - o,
    }
    for solver, loss in losses.items():
        slope, slope_own = jax.grad(loss, (0, 1))(jnp.asarray(score), own)
        push, pull, _ = oracle.pair_step(solver, 2.0, log_a, score, own, 0.0, 0.0)
        np.testing.assert_allclose(push, 2 * slope, rtol=1e-12)
        np.testing.assert_allclose(pull, -2 * slope_own, rtol=1e-12)


# ------------------------------------------------------------------------- what makes U-max safe


@pytest.mark.thorough(cases=2)
@every_alpha
def test_a_raise_bounds_the_exponentials_and_lowers_the_objective(alpha, x64, rng):
    """Identity 11: with distinct classes a raise by h lowers the objective by at least h^2 / 2."""
    solver = UMax(alpha=alpha)
    for _ in range(200):
        score, label, v = 4 * rng.normal(size=6), rng.integers(6), rng.uniform(-1, 3)
        others = np.arange(6) != label
        C = rng.choice(np.flatnonzero(others), 3, replace=False)
        delta, own = score[C] - (1 - alpha) * score[label], alpha * score[label]
        known = np.logaddexp(own, np.logaddexp.reduce(delta))
        raised = known if v < known - 1 else v
        push, *_ = oracle.pair_step(solver, 1.0, 0.0, score[C], score[label], 0.0, v)
        np.testing.assert_allclose(push, np.exp(delta - raised), rtol=1e-12)
        assert np.max(delta - raised) <= 1 + 1e-12
        if raised > v:
            before, after = (oracle.row_term(score, label, z, alpha) for z in (v, raised))
            assert before - after >= (raised - v) ** 2 / 2 - 1e-9


def test_repeated_negatives_would_raise_too_far(x64):
    """Why the raise uses distinct classes (erratum F7): counted twice, classes can push u above its optimum."""
    score = np.array([0.0, 3.0, -5.0])
    best = np.log1p(np.exp(3.0) + np.exp(-5.0))
    twice, once = np.log1p(2 * np.exp(3.0)), np.log1p(np.exp(3.0))
    assert once <= best < twice
    assert oracle.row_term(score, 0, twice) > oracle.row_term(score, 0, best)
