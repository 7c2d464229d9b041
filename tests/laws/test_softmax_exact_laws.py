"""Exact solvers of softmax models: they reach the optimum, and what they prove of it is true."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from oracles import softmax as oracle
from scipy.optimize import minimize
from scipy.special import softmax as probabilities

from glmfit import Status
from glmfit.observations.softmax import Multinomial, OffsetMultinomial
from glmfit.problems import Pairs, Params, SoftmaxProblem, _softmax_exact
from glmfit.problems._softmax_view import SoftmaxView
from glmfit.solvers import SAGA, LoopOptions, NewtonCG

N, D, K = 240, 4, 5


def make(rng, strength=0.01, intercept=True, offset=False, sparse=False, dtype=np.float64, scale=1.0):
    X = rng.normal(size=(N, D)) * np.geomspace(1, 0.1, D) + np.array([0, 3.0, 0, -1])
    X[:, 2] += 0.9 * X[:, 0]
    X *= rng.random((N, D)) < 0.9
    shift = rng.normal(size=(N, K)) if offset else None
    eta = X @ rng.normal(size=(D, K)) * scale + (0 if shift is None else shift)
    Y = np.stack(
        [rng.multinomial(n, p) for n, p in zip(rng.integers(1, 4, N), probabilities(eta, axis=1), strict=True)]
    )
    Y[: 3 * K] += np.tile(np.eye(K, dtype=int), (3, 1))  # every class is seen
    weight = rng.uniform(0.5, 2, N)
    row, label = np.nonzero(Y)
    pairs = Pairs(row, label, Y[row, label] * weight[row])
    return SoftmaxProblem(sp.csr_array(X) if sparse else X, pairs, K, strength, intercept, shift, dtype)


def oracle_value(problem):
    """F and its gradient as functions of (class, feature + 1) weights, straight from the definition."""
    X = problem.X.toarray() if sp.issparse(problem.X) else problem.X
    X1 = np.hstack([X, np.ones((N, 1))]) if problem.fit_intercept else X
    Y = problem.counts.toarray()
    keep = np.ones(X1.shape[1])
    keep[D:] = 0

    def value(W):
        loss = oracle.nll(W, X1, Y, problem.offset) / N + problem.strength / 2 * np.sum((W * keep) ** 2)
        return loss, oracle.nll_gradient(W, X1, Y, problem.offset) / N + problem.strength * W * keep

    return value, (K, X1.shape[1])


def optimum(problem):
    value, shape = oracle_value(problem)

    def flat(theta):
        f, g = value(theta.reshape(shape))
        return f, g.ravel()

    found = minimize(flat, np.zeros(np.prod(shape)), jac=True, method="BFGS", options={"gtol": 1e-10, "maxiter": 5000})
    return found.fun


def as_oracle(params, problem):
    return np.vstack([params.coef, params.intercept[None]]).T if problem.fit_intercept else params.coef.T


VARIANTS = [
    {"strength": s, "intercept": i, "offset": o, "sparse": p}
    for s, i, o, p in [
        (0.01, True, False, False), (0.01, True, True, False), (1e-4, True, False, True), (0.1, False, True, True),
        (0.0, True, False, False), (0.0, False, True, False),
    ]
]  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_view_has_the_objective_gradient_and_curvature_of_the_definition(variant, rng, monkeypatch):
    problem = make(rng, **variant)
    monkeypatch.setattr("glmfit.problems._softmax_view._SCORES_AT_ONCE", 37 * K)  # several chunks
    view, (value, _) = SoftmaxView(problem), oracle_value(problem)
    params = Params(rng.normal(size=(D, K)), rng.normal(size=K) if problem.fit_intercept else np.zeros(K))
    params = view.from_columns(view.to_columns(params))  # the common shift is gone
    at = view.at(view.to_columns(params))
    exact, g = value(as_oracle(params, problem))
    assert at.objective == pytest.approx(exact, rel=1e-13)
    # A directional derivative does not care for coordinates.
    change = Params(rng.normal(size=(D, K)), rng.normal(size=K) if problem.fit_intercept else np.zeros(K))
    change = Params(change.coef - change.coef.mean(axis=1, keepdims=True), change.intercept - change.intercept.mean())
    p = view.to_columns(change)
    assert np.sum(at.gradient * p) == pytest.approx(np.sum(g * as_oracle(change, problem)), rel=1e-10)
    eps = 1e-5
    ahead, behind = (value(as_oracle(params, problem) + s * as_oracle(change, problem))[1] for s in (eps, -eps))
    curved = np.sum((ahead - behind) / (2 * eps) * as_oracle(change, problem))
    assert np.sum(view.curve(at, p) * p) == pytest.approx(curved, rel=1e-7)
    move = view.change_of_scores(p)
    for t in (0.3, 1.0):
        there = view.at(at.v + t * p)
        assert view.objective_along(at, p, move, t) == pytest.approx(there.objective, rel=1e-12)
        np.testing.assert_allclose(there.scores, at.scores + t * move, atol=1e-12)


def test_probabilities_do_not_see_a_common_shift(rng):
    problem = make(rng)
    view = SoftmaxView(problem)
    params = Params(rng.normal(size=(D, K)), rng.normal(size=K))
    shifted = Params(params.coef + rng.normal(size=(D, 1)), params.intercept + 7)
    np.testing.assert_allclose(view.to_columns(shifted), view.to_columns(params), atol=1e-12)
    # What is taken away only ever lowers the objective.
    assert problem.objective(view.from_columns(view.to_columns(shifted))) <= problem.objective(shifted)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_newton_reaches_the_optimum_and_its_bound_is_true_and_tight(variant, rng):
    problem = make(rng, **variant)
    best = optimum(problem)
    solution = NewtonCG().run(problem.exact, key=jax.random.key(0), options=LoopOptions(tol=1e-9))
    gap = problem.objective(solution.params) - best
    assert solution.status[0] == Status.CONVERGED
    assert solution.gap_is_bound[0]
    assert -1e-12 <= gap <= solution.gap[0] + 1e-12  # the reference has its own rounding
    assert solution.gap[0] <= solution.target[0] <= 1e-7
    objectives = solution.history["objective"][:, 0]
    assert np.all(np.diff(objectives) <= 1e-14)
    np.testing.assert_allclose(solution.params.coef.sum(axis=1), 0, atol=1e-10)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v["sparse"]], ids=str)
def test_blocks_of_the_hessian_precondition_and_change_nothing_else(variant, rng, monkeypatch):
    problem = make(rng, **variant)
    plain = NewtonCG().run(problem.exact, key=jax.random.key(0), options=LoopOptions(tol=1e-9))
    monkeypatch.setattr("glmfit.problems._softmax_newton._PATIENCE", -1000)  # formed at once
    state = NewtonCG().init_state(problem.exact, problem.null_params())
    for _ in range(6):
        before = state.state
        state = NewtonCG().update(problem.exact, *state)
        assert state.state.inverse is not None
        assert state.state.objective[0] <= before.objective[0] + 1e-14
        # What the solver says of F is F at the parameters it would hand out.
        params = problem.exact.user_params(state.params)
        assert problem.objective(params) == pytest.approx(state.state.objective[0], rel=1e-10)
    assert state.state.objective[0] <= plain.objective[0] + 2e-9
    assert np.abs(state.params.mean(axis=1)).max() < 1e-12


def test_blocks_are_those_of_the_hessian(rng):
    problem = make(rng, 0.02)
    view = SoftmaxView(problem)
    at = view.at(view.to_columns(Params(rng.normal(size=(D, K)), rng.normal(size=K))))
    inverse = view.invert_blocks(at)
    for k in range(K):
        for j in range(D + 1):
            p = np.zeros_like(at.v)
            p[j, k] = 1
            np.testing.assert_allclose(inverse[k] @ view.curve(at, p)[:, k], p[:, k], atol=1e-9)


@pytest.mark.parametrize("strength", [0.0, 1e-7, 1e-3])
def test_bounds_hold_all_the_way_and_are_tight_at_the_end(strength, rng):
    problem = make(rng, strength)
    best = optimum(problem)
    seen = []

    def look(epoch, seconds, columns, state):
        params = problem.exact.user_params(columns)
        gap = problem.objective(params) - best
        by_hessian = problem.exact.view.bound_by_hessian(state.point)
        seen.append((gap, by_hessian, problem.exact.certify_gap(params).bound[0]))

    NewtonCG().run(problem.exact, key=jax.random.key(0), options=LoopOptions(tol=1e-9, callback=look))
    for gap, by_hessian, bound in seen:
        assert gap <= min(by_hessian, bound) + 1e-13
    gap, by_hessian, _ = next(row for row in seen if 1e-10 < row[0] < 1e-5)
    assert by_hessian <= 1.2 * gap + 1e-12  # half the squared decrement, at the end


def test_hessian_bound_says_nothing_far_away_or_where_curvature_vanishes(rng):
    problem = make(rng, 0.0)
    view = problem.exact.view
    far = view.at(view.to_columns(Params(20 * rng.normal(size=(D, K)), np.zeros(K))))
    assert view.bound_by_hessian(far) == np.inf
    twice = SoftmaxProblem(np.hstack([problem.X, problem.X[:, :1]]), problem.pairs, K, 0.0)
    gap = twice.exact.certify_gap(twice.null_params())
    assert gap.bound[0] == np.inf
    assert gap.estimate[0] == pytest.approx(problem.exact.certify_gap(problem.null_params()).estimate[0], rel=0.05)


def test_separated_rows_are_said_to_have_no_optimum(rng):
    X = rng.normal(size=(90, 2))
    y = np.argmax(X @ rng.normal(size=(2, 3)), axis=1)
    problem = SoftmaxProblem(X, Pairs(np.arange(90), y, np.ones(90)), 3, 0.0)
    for solver in (NewtonCG(), SAGA()):
        solution = solver.run(problem.exact, key=jax.random.key(0), options=LoopOptions(max_epochs=100))
        assert solution.status[0] == Status.SEPARABLE
        assert np.all(np.isfinite(solution.params.coef))


@pytest.mark.parametrize("certificate", ["anchored", "global"])
@pytest.mark.parametrize("offset", [False, True])
def test_saga_reaches_the_optimum_in_single_precision(certificate, offset, rng):
    problem = make(rng, 1e-3, offset=offset, dtype=np.float32)
    solution = SAGA(certificate=certificate).run(
        problem.exact, key=jax.random.key(0), options=LoopOptions(tol=1e-7, max_epochs=500)
    )
    assert solution.status[0] == Status.CONVERGED
    assert solution.gap_is_bound[0]
    assert problem.objective(solution.params) - optimum(problem) <= solution.gap[0] <= solution.target[0]
    assert solution.step_certificate.certified


def test_saga_alone_reaches_the_optimum(x64, rng, monkeypatch):
    monkeypatch.setattr(_softmax_exact.ExactSoftmax, "newton_is_cheap", lambda *_: False)
    problem = make(rng, 1e-2, dtype=np.float64)
    solution = SAGA(batch_size=40).run(
        problem.exact, key=jax.random.key(1), options=LoopOptions(tol=1e-9, max_epochs=2000)
    )
    assert solution.status[0] == Status.CONVERGED
    assert problem.objective(solution.params) - optimum(problem) <= solution.gap[0] <= solution.target[0] < 1e-6


@pytest.mark.parametrize("radius", [np.inf, 0.7])
def test_smoothness_bounds_every_block_where_the_certificate_holds(radius, rng):
    problem = make(rng, 0.01, dtype=np.float32).exact
    rows = problem.rows(60, 0)
    v = problem.to_columns(Params(rng.normal(size=(D, K)), rng.normal(size=K)))
    _, _, _, metric, _ = problem.descend_surely(rows, v, None, 0.1, 0)
    sure = problem.certify_smoothness(rows, v, np.array([radius]), 10, 1e-3, 0, 1, metric)
    root = np.sqrt(np.asarray(metric.scale, np.float64))
    ridge = np.asarray(rows.ridge, np.float64)

    def largest(at):
        """Largest eigenvalue of every block's Hessian in the metric, and of the worst row's."""
        blocks, worst = [], 0.0
        for Z, Y in zip(np.asarray(rows.Z, np.float64), np.asarray(rows.Y, np.float64), strict=True):
            p = probabilities(Z @ at, axis=1)
            n = Y.sum(axis=1)
            H = np.zeros((D + 1, K, D + 1, K))
            for z, q, total in zip(Z, p, n, strict=True):
                one = np.einsum("i,j,k,l->ijkl", z, np.ones(K), z, np.ones(K)) * total
                one *= (np.diag(q) - np.outer(q, q))[None, :, None, :]
                H += one
                scaled = (root[:, :, None, None] * one * root).reshape(v.size, v.size)
                worst = max(worst, np.linalg.eigvalsh(scaled)[-1])
            H = H / (rows.n_rows / rows.n_blocks) + np.diag(ridge.ravel()).reshape(H.shape)
            blocks.append(np.linalg.eigvalsh((root[:, :, None, None] * H * root).reshape(v.size, v.size))[-1])
        return np.array(blocks), worst

    for _ in range(3):
        change = rng.normal(size=v.shape).astype(np.float32)
        if np.isfinite(radius):
            change *= 0.99 * radius / problem.move(rows, change, np.zeros_like(change))[0]
        blocks, worst = largest(v + change)
        assert blocks.max() <= sure.block[0]
        assert blocks.mean() <= sure.full[0]
        assert worst <= sure.row[0]
    assert sure.block[0] <= 3 * (np.exp(radius) if np.isfinite(radius) else 4) * largest(v)[0].max()


def test_move_is_the_largest_range_of_a_rows_change(rng):
    problem = make(rng, dtype=np.float32).exact
    rows = problem.rows(50, 0)
    a, b = (rng.normal(size=(D + 1, K)).astype(np.float32) for _ in range(2))
    Z = np.asarray(rows.Z).reshape(-1, D + 1)[:N]
    assert problem.move(rows, a, b)[0] == pytest.approx(np.max(np.ptp(Z @ (a - b), axis=1)), rel=1e-5)
    assert problem.move(rows, a, a + 3 * np.eye(D + 1)[D][:, None])[0] < 1e-5  # a common shift is none


@pytest.mark.parametrize("solver", [NewtonCG(), SAGA()], ids=["newton", "saga"])
def test_resumed_fit_is_the_same_bit_for_bit(solver, rng):
    problem = make(rng, 1e-3, dtype=np.float32).exact
    columns, state = solver.init_state(problem, problem.null_params(), key=jax.random.key(3))

    def go(columns, state, n):
        for _ in range(n):
            columns, state = solver.update(problem, columns, state)
        return columns, state

    columns, state = go(columns, state, 2)
    copy = jax.tree.map(np.array, (columns, state))
    once, _ = go(columns, state, 3)
    again, _ = go(*copy, 3)
    np.testing.assert_array_equal(np.asarray(once), np.asarray(again))


def test_rows_of_a_loss_with_offsets_are_those_of_shifted_scores(rng):
    plain, shifted = Multinomial(K), OffsetMultinomial(K)
    Y, offset, eta = rng.poisson(1.0, (7, K)), rng.normal(size=(7, K)), rng.normal(size=(7, K))
    both, weight = np.hstack([Y, offset]), np.ones((7, 1))
    both, Y, eta, offset = (a.astype(np.float32) for a in (both, Y, eta, offset))
    np.testing.assert_allclose(shifted.total(both, eta, weight), plain.total(Y, eta + offset, weight), rtol=1e-6)
    np.testing.assert_allclose(shifted.derivative(both, eta), plain.derivative(Y, eta + offset), rtol=1e-6)
    np.testing.assert_allclose(shifted.curvature_bound(both), plain.curvature_bound(Y))


def test_saga_refuses_what_its_basis_cannot_hold(rng):
    for kind, words in (({"sparse": True}, "sparse features"), ({"intercept": False}, "without intercepts")):
        with pytest.raises(ValueError, match=words):
            SAGA().run(make(rng, **kind).exact, key=jax.random.key(0))
