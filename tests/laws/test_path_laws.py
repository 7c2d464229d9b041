"""Paths of strengths with shared Hessians: every fit is the one it stands for, and no bound is below the truth."""

import numpy as np
import pytest
from cases import recording
from oracles import population as oracle

from glmfit import Status, observations, penalties
from glmfit.problems import Params, PathProblem, _active_set
from glmfit.problems import path as path_module
from glmfit.solvers import LoopOptions, SharedNewton

T, D, N, FOLDS = 600, 5, 3, 3
STRENGTHS = np.array([1e-3, 3e-2, 0.3])
every_link = pytest.mark.parametrize("link", ["softplus", "exp"])
every_weights = pytest.mark.parametrize("weighted", [False, True])
every_penalty = pytest.mark.parametrize("name", ["Ridge", "Lasso", "ElasticNet"])


def maker(name, ratio=0.6):
    def make(strength):
        strength = np.asarray(strength, float)
        return (
            penalties.ElasticNet(strength, np.float64(ratio))
            if name == "ElasticNet"
            else getattr(penalties, name)(strength)
        )

    return make


def blocks(overlapping=False, t=T):
    """Rows of every fold, all rows last; overlapping ones have almost as many patterns as rows."""
    if overlapping:
        train = np.random.default_rng(4).random((t, 12)) < 0.6
    else:
        train = np.arange(t)[:, None] * FOLDS // t != np.arange(FOLDS)
    return np.column_stack([train, np.ones(t, bool)])


def make(link="softplus", name="Ridge", weighted=False, dtype=np.float64, overlapping=False, **options):
    X, Y = recording(link, t=T, d=D, n=N, **options)
    X = X.astype(dtype)
    train = blocks(overlapping)
    weights = np.random.default_rng(1).uniform(0.2, 2, T) if weighted else None
    if weighted:
        weights[::7] = 0
    problem = PathProblem(X, Y, observations.from_inverse_link(link), maker(name), train, weights, dtype)
    return problem, X, Y, train, weights


def rows_of(made, fold):
    _, X, Y, train, weights = made
    rows = train[:, fold]
    return X[rows].astype(float), Y[rows], None if weights is None else weights[rows]


def everything(problem):
    fold, neuron = (a.ravel() for a in np.meshgrid(range(problem.n_folds), range(N), indexing="ij"))
    return problem.columns(fold, neuron)


def optimum(link, name, X, Y, strength, weights):
    if name == "Ridge":
        coef, intercept = oracle.newton(link, X, Y, strength, weights)[:2]
    else:
        coef, intercept = oracle.proximal(link, X, Y, name, strength, 0.6, weights=weights)[:2]
    return oracle.objective(link, X, Y, coef, intercept, weights, name, strength=strength, ratio=0.6), coef, intercept


# ------------------------------------------------------------------------------------------ passes


@every_link
@every_weights
@pytest.mark.parametrize("overlapping", [False, True])
def test_a_pass_gives_every_column_its_loss_gradient_and_drift(link, weighted, overlapping, rng):
    made = make(link, weighted=weighted, overlapping=overlapping)
    problem, columns = made[0], everything(made[0])
    C = len(columns)
    params = Params(0.1 * rng.normal(size=(D, C)), rng.normal(size=C) - 1)
    params.coef[2] = 0  # a feature that no column uses leaves the product
    at = Params(0.1 * rng.normal(size=(D, N))[:, columns.neuron], np.zeros(C))
    at.coef[2:] = 0
    for few in (0.5, 1.1):
        path_module._FEW, before = few, path_module._FEW
        pass_ = problem.evaluate(columns, params, at)
        path_module._FEW = before
        for c in range(C):
            X, Y, w = rows_of(made, columns.fold[c])
            y, here = Y[:, [columns.neuron[c]]], (params.coef[:, [c]], params.intercept[[c]])
            assert pass_.loss[c] == pytest.approx(
                oracle.objective(link, X, y, *here, w, "Ridge", strength=0)[0], rel=1e-12
            )
            grad_coef, grad_intercept = oracle.gradient(link, X, y, *here, w)
            np.testing.assert_allclose(pass_.gradient[:, c], np.append(grad_coef, grad_intercept), atol=1e-12)
            away = np.abs(X @ (params.coef - at.coef)[:, c] + params.intercept[c] - at.intercept[c])
            counts = slice(None) if w is None else w > 0
            assert pass_.drift[c] == pytest.approx(away[counts].max(), rel=1e-12)


@every_link
@every_weights
@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hessians_of_all_folds_are_sums_of_pieces(link, weighted, overlapping, dtype, rng):
    """Against dense NumPy, in whitened coordinates; the error is below what is said of rounding."""
    made = make(link, weighted=weighted, overlapping=overlapping, dtype=dtype)
    problem = made[0]
    params = Params(0.2 * rng.normal(size=(D, N)), rng.normal(size=N) - 1)
    for n, shared in enumerate(problem.hessians(np.arange(N), params)):
        for fold in range(problem.n_folds):
            X, Y, w = rows_of(made, fold)
            exact = whitened(problem, oracle.hessian(link, X, Y[:, n], params.coef[:, n], params.intercept[n], w))
            error = np.linalg.norm(shared.rows_part(fold) - exact, 2)
            assert error <= shared.error(fold)
            assert shared.error(fold) <= 1e-2 * np.trace(exact)


def whitened(problem, H):
    """Hessian in coefficients and intercept, seen in whitened coordinates."""
    basis = problem.basis
    back = np.zeros((D + 1, D + 1))
    back[:-1, :-1], back[-1, :-1], back[-1, -1] = basis.whiten, -basis.mean @ basis.whiten, 1
    return back.T @ H @ back


@every_link
@every_weights
def test_a_hessian_elsewhere_bounds_the_one_here(link, weighted, rng):
    """The smallest eigenvalue of the one here is at least exp(-drift) of the shared one, exactly, for every fold."""
    made = make(link, weighted=weighted)
    problem, columns = made[0], everything(made[0])
    at = Params(0.2 * rng.normal(size=(D, N)), rng.normal(size=N) - 1)
    shared = problem.hessians(np.arange(N), at)
    near = Params(at.coef[:, columns.neuron] + 0.1 * rng.normal(size=(D, len(columns))), at.intercept[columns.neuron])
    own = Params(at.coef[:, columns.neuron], at.intercept[columns.neuron])
    drift = problem.evaluate(columns, near, own).drift
    for c, (fold, n) in enumerate(zip(*columns, strict=True)):
        X, Y, w = rows_of(made, fold)
        here = whitened(problem, oracle.hessian(link, X, Y[:, n], near.coef[:, c], near.intercept[c], w))
        assert np.linalg.eigvalsh(here - np.exp(-drift[c]) * shared[n].rows_part(fold))[0] >= -1e-12 * np.trace(here)
        assert shared[n].smallest(fold) == pytest.approx(np.linalg.eigvalsh(shared[n].rows_part(fold))[0])


# ------------------------------------------------------------------------------------------ bounds


@every_link
@every_penalty
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_bound_is_below_the_true_gap(link, name, dtype, rng):
    """At points all around the optimum of every fold, with references at a third place."""
    made = make(link, name, weighted=True, dtype=dtype)
    problem, columns, strength = made[0], everything(made[0]), 0.02
    best, coef, intercept = np.zeros(len(columns)), np.zeros((D, len(columns))), np.zeros(len(columns))
    for fold in range(problem.n_folds):
        mine = columns.fold == fold
        X, Y, w = rows_of(made, fold)
        best[mine], coef[:, mine], intercept[mine] = optimum(link, name, X, Y, strength, w)
    penalty, all_rows = problem.penalty(strength), columns.fold == problem.n_folds - 1
    shared = problem.hessians(np.arange(N), Params(coef[:, all_rows], intercept[all_rows]))
    references = [shared[n] for n in columns.neuron]
    points = Params(coef[:, all_rows][:, columns.neuron], intercept[all_rows][columns.neuron])
    proved = 0
    for size in (0, 1e-6, 1e-4, 1e-2, 1e-1):
        near = Params(coef * (1 + size * rng.normal(size=coef.shape)), intercept + size * rng.normal(size=len(columns)))
        pass_ = problem.evaluate(columns, near, points)
        _, bound = problem.look(columns, penalty, near, pass_, references, np.full(len(columns), 1e-6))
        gap = pass_.loss + penalty.value(near.coef) - best
        assert np.all(bound >= gap - 1e-12)
        proved += np.isfinite(bound).mean()
        if name == "Ridge" and size <= 1e-2:
            assert np.all(bound <= 4 * gap + 1e-12)
    assert proved > 3


# ------------------------------------------------------------------------------------------ solutions


@every_link
@every_penalty
@every_weights
def test_every_fit_of_a_path_is_the_one_it_stands_for(link, name, weighted):
    """Objective to the gap, which is proved; conditions of the optimum on all features; exact zeros."""
    made = make(link, name, weighted)
    problem = made[0]
    found = SharedNewton().run(problem, STRENGTHS, LoopOptions(tol=1e-8))
    assert np.all(found.status == Status.CONVERGED) and found.gap_is_bound.all() and np.all(found.gap <= found.target)
    for s, strength in enumerate(STRENGTHS):
        for fold in range(problem.n_folds):
            X, Y, w = rows_of(made, fold)
            best, coef, _ = optimum(link, name, X, Y, strength, w)
            mine = found.coef[s, fold], found.intercept[s, fold]
            value = oracle.objective(link, X, Y, *mine, w, name, strength=strength, ratio=0.6)
            assert np.all(value - best <= found.gap[s, fold] + 1e-11) and np.all(value >= best - 1e-11)
            if name != "Ridge":
                np.testing.assert_array_equal(mine[0] == 0, coef == 0)
                assert np.all(oracle.kkt_residual(link, X, Y, *mine, name, strength, 0.6, weights=w) < 1e-3)


@every_penalty
def test_overlapping_sets_of_rows_are_fitted_as_well(name):
    made = make(name=name, overlapping=True)
    found = SharedNewton().run(made[0], STRENGTHS, LoopOptions(tol=1e-7))
    assert np.all(found.status == Status.CONVERGED) and found.gap_is_bound.all()
    X, Y, _ = rows_of(made, 5)
    best, *_ = optimum("softplus", name, X, Y, STRENGTHS[1], None)
    value = oracle.objective("softplus", X, Y, found.coef[1, 5], found.intercept[1, 5], None, name,
                             strength=STRENGTHS[1], ratio=0.6)  # fmt: skip
    assert np.all((value - best <= found.gap[1, 5] + 1e-11) & (value >= best - 1e-11))


@every_penalty
def test_columns_that_leave_do_not_change_the_others(name):
    """A neuron fitted alone, with others that need more steps, and with one that fires in one fold only."""
    problem, X, Y, train, _ = make(name=name)
    hard = np.column_stack([Y[:, 0], np.where(X[:, 0] > X[:, 0].mean(), 5.0 * Y[:, 1], 0), Y[:, 2] * ~train[:, 0]])
    together = PathProblem(X, hard, problem.observation, problem.penalty, train, dtype=np.float64)
    alone = PathProblem(X, Y[:, :1], problem.observation, problem.penalty, train, dtype=np.float64)
    a, b = (SharedNewton().run(p, STRENGTHS, LoopOptions(tol=1e-7)) for p in (together, alone))
    np.testing.assert_allclose(a.coef[..., 0], b.coef[..., 0], atol=1e-9)
    np.testing.assert_array_equal(a.status[..., 0], b.status[..., 0])
    np.testing.assert_allclose(a.gap[..., 0], b.gap[..., 0], rtol=1e-3, atol=1e-12)
    assert np.all(a.status[:, 0, 2] == Status.NO_SPIKES) and np.all(a.status[:, 1:, :] == Status.CONVERGED)


@every_link
def test_fits_start_far_away_and_arrive(link):
    """Weak strengths alone, from the null model; the path before them is not there to help."""
    made = make(link, size=3.0)
    found = SharedNewton().run(made[0], np.array([1e-6, 1e-5]), LoopOptions(tol=1e-8))
    assert np.all(found.status == Status.CONVERGED) and found.gap_is_bound.all()


@pytest.mark.parametrize("name", ["Ridge", "Lasso"])
def test_single_precision_hessians_prove_as_much_as_double_ones(name):
    """Gradients are in double precision in either case; a neuron whose rounding is too large gets doubles."""
    X, Y = recording(t=4000, d=D, n=N)
    train = blocks(t=4000)
    observation = observations.from_inverse_link("softplus")
    found = []
    for dtype in (np.float32, np.float64):
        problem = PathProblem(X.astype(np.float32), Y, observation, maker(name), train, dtype=dtype)
        assert problem.hessian_dtype == dtype
        found.append(SharedNewton().run(problem, STRENGTHS, LoopOptions(tol=1e-6)))
        assert found[-1].gap_is_bound.all() and np.all(found[-1].status == Status.CONVERGED)
    np.testing.assert_allclose(found[0].coef, found[1].coef, atol=1e-3)
    at = Params(np.zeros((D, 1)), np.array([-1.0]))
    problem = PathProblem(X.astype(np.float32), Y, observation, maker(name), train)
    assert problem.hessians(np.array([0]), at)[0].pieces.dtype == np.float32
    path_module._SPOILT, before = 0.0, path_module._SPOILT
    assert problem.hessians(np.array([0]), at)[0].pieces.dtype == np.float64
    path_module._SPOILT = before


def test_features_that_say_the_same_are_no_obstacle():
    """Duplicates and a constant, and a lasso that leaves the share of a duplicate open."""
    X, Y = recording(t=T, d=3, n=N)
    X = np.column_stack([X, X[:, 0], np.ones(T)])
    observation = observations.from_inverse_link("softplus")
    for name in ("Ridge", "Lasso"):
        problem = PathProblem(X, Y, observation, maker(name), blocks(), dtype=np.float64)
        found = SharedNewton().run(problem, STRENGTHS, LoopOptions(tol=1e-6))
        assert np.all(found.gap_is_bound) and np.all(found.status == Status.CONVERGED)
        best, *_ = optimum("softplus", name, X, Y, STRENGTHS[0], None)
        value = oracle.objective("softplus", X, Y, found.coef[0, -1], found.intercept[0, -1], None, name,
                                 strength=STRENGTHS[0])  # fmt: skip
        assert np.all(value - best <= found.target[0, -1] + 1e-10)


# ------------------------------------------------------------------------------------------ the quadratic


@pytest.mark.parametrize("patient", [6, 0], ids=["all at once", "one by one"])
def test_the_least_of_a_quadratic_plus_l1_meets_its_conditions(patient, rng, monkeypatch):
    monkeypatch.setattr(_active_set, "_PATIENT", patient)
    for trial in range(60):
        n = int(rng.integers(2, 25))
        A = rng.normal(size=(n + 5, n)) @ np.diag(rng.uniform(0.1, 1, n))
        if trial % 3 == 0:
            A[:, 1] = A[:, 0] + 1e-3 * rng.normal(size=n + 5)
        Q, c = A.T @ A, A.T @ rng.normal(size=n + 5)
        l1 = np.full(n, rng.uniform(0.01, 1.1) * np.abs(c).max())
        l1[-1] = 0
        start = rng.normal(size=n) * (rng.random(n) < 0.5)
        w = _active_set.minimise_l1(Q, c, l1, start)
        g = Q @ w - c
        scale = 1e-6 * (np.abs(c).max() + l1.max())
        assert np.all(np.where(w != 0, np.abs(g + l1 * np.sign(w)), np.maximum(np.abs(g) - l1, 0)) <= scale)


@pytest.mark.parametrize("seed", [1, 5, 8, 13])
def test_a_reference_far_away_proves_nothing_false(seed):
    """A giant count sends the first step to where the exp link's curvature says nothing of the optimum's."""
    rng, t = np.random.default_rng(seed), 200 if seed == 1 else 400
    X = np.cumsum(rng.normal(size=(t, 1)), 0) / np.sqrt(t)
    y = rng.poisson(0.5, size=(t, 1)).astype(float)
    y[rng.integers(t)] = 1e4
    train = blocks(t=t)
    problem = PathProblem(X, y, observations.from_inverse_link("exp"), maker("Ridge"), train, None, np.float64)
    strengths = np.array([1e-4, 1e-2])
    found = SharedNewton().run(problem, strengths, LoopOptions(tol=1.0))
    bounded = 0
    for s, strength in enumerate(strengths):
        for f in range(train.shape[1]):
            rows = X[train[:, f]], y[train[:, f]]
            best = oracle.newton("exp", *rows, strength).objective[0]
            here = found.coef[s, f], found.intercept[s, f]
            own = oracle.objective("exp", *rows, *here, None, "Ridge", strength=strength)[0]
            if found.gap_is_bound[s, f, 0]:
                bounded += 1
                assert own - best <= found.gap[s, f, 0] * (1 + 1e-6) + 1e-12 * abs(best)
    assert bounded


def test_rounding_of_nearly_collinear_features_far_from_zero_is_within_what_is_said():
    """A mean of 90 deviations, and a direction that is a thousandth of another: single precision at its worst."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=300)
    X = np.column_stack([common, common + 2.5e-3 * rng.normal(size=300)]).astype(np.float32) + np.float32(88.7)
    y = rng.poisson(1.0, size=(300, 1)).astype(float)
    train = np.ones((300, 1), bool)
    problem = PathProblem(X, y, observations.from_inverse_link("softplus"), maker("Ridge"), train, None, np.float32)
    at = Params(np.zeros((2, 1)), np.zeros(1))
    single, double = (
        np.asarray(problem._curvature(np.array([0]), at, dtype)[0, 0], np.float64) for dtype in (np.float32, np.float64)
    )
    assert np.linalg.norm(single - double) <= problem.rounding(np.float32) * np.trace(double)
