"""Laws of fits to several sets of rows, with and without kinks: every fit is the one it represents."""

import numpy as np
import pytest
from cases import recording
from oracles import population as oracle

from glmfit import Status, observations, penalties
from glmfit.engine import ConjugateGradients, ProximalNewton
from glmfit.engine.population import FoldedProblem
from glmfit.solvers import LoopOptions

T, D, N, FOLDS = 600, 5, 3, 3
STRENGTHS = (1e-3, 3e-2, 0.3)
every_link = pytest.mark.parametrize("link", ["softplus", "exp"])
every_weights = pytest.mark.parametrize("weighted", [False, True])
every_penalty = pytest.mark.parametrize("name", ["Ridge", "Lasso", "ElasticNet"])


def penalty(name, strength):
    strength = np.asarray(strength, float)
    return penalties.ElasticNet(strength, 0.6) if name == "ElasticNet" else getattr(penalties, name)(strength)


def blocks(overlapping=False, t=T):
    """Rows of every fold, all rows last."""
    if overlapping:
        train = np.random.default_rng(4).random((t, 12)) < 0.6
    else:
        train = np.arange(t)[:, None] * FOLDS // t != np.arange(FOLDS)
    return np.column_stack([train, np.ones(t, bool)])


def fit(X, Y, link, name, strength, train, weights=None, tol=1e-8, dtype=np.float64):
    """All folds of all neurons at a strength: parameters (fold, feature, neuron), and the rest (fold, neuron)."""
    shape = train.shape[1], Y.shape[1]
    fold, neuron = (a.ravel() for a in np.meshgrid(*map(range, shape), indexing="ij"))
    observation, strengths = observations.from_inverse_link(link), np.full(len(fold), strength)
    problem = FoldedProblem(X, Y, observation, penalty(name, strengths), neuron, fold, train, weights, dtype)
    solver = ConjugateGradients() if name == "Ridge" else ProximalNewton()
    found = solver.run(problem, options=LoopOptions(tol=tol))
    coef = np.moveaxis(found.params.coef.reshape(-1, *shape), 0, 1)
    rest = found.params.intercept, found.status, found.gap, found.gap_is_bound, found.target
    return coef, *(a.reshape(shape) for a in rest)


def optimum(link, name, X, Y, strength, weights):
    if name == "Ridge":
        coef, intercept = oracle.newton(link, X, Y, strength, weights)[:2]
    else:
        coef, intercept = oracle.proximal(link, X, Y, name, strength, 0.6, weights=weights)[:2]
    return oracle.objective(link, X, Y, coef, intercept, weights, name, strength=strength, ratio=0.6), coef


@pytest.mark.thorough
@every_link
@every_penalty
@every_weights
def test_every_fit_matches_the_fit_to_its_own_rows(link, name, weighted):
    """Check the objective up to the proved gap, the optimality conditions of all features, and exact zeros."""
    X, Y = recording(link, t=T, d=D, n=N)
    train, weights = blocks(), np.random.default_rng(1).uniform(0.2, 2, T) if weighted else None
    if weighted:
        weights[::7] = 0
    for strength in STRENGTHS:
        coef, intercept, status, gap, proved, target = fit(X, Y, link, name, strength, train, weights)
        assert np.all(status == Status.CONVERGED) and proved.all() and np.all(gap <= target)
        for fold in range(train.shape[1]):
            rows = train[:, fold]
            x, y, w = X[rows], Y[rows], None if weights is None else weights[rows]
            best, at_best = optimum(link, name, x, y, strength, w)
            mine = coef[fold], intercept[fold]
            value = oracle.objective(link, x, y, *mine, w, name, strength=strength, ratio=0.6)
            assert np.all(value - best <= gap[fold] + 1e-11) and np.all(value >= best - 1e-11)
            if name != "Ridge":
                np.testing.assert_array_equal(mine[0] == 0, at_best == 0)
                assert np.all(oracle.kkt_residual(link, x, y, *mine, name, strength, 0.6, weights=w) < 1e-3)


@every_penalty
def test_overlapping_sets_of_rows_are_fitted_as_well(name):
    X, Y = recording(t=T, d=D, n=N)
    train = blocks(overlapping=True)
    coef, intercept, status, gap, proved, _ = fit(X, Y, "softplus", name, STRENGTHS[1], train, tol=1e-7)
    assert np.all(status == Status.CONVERGED) and proved.all()
    x, y = X[train[:, 5]], Y[train[:, 5]]
    best, _ = optimum("softplus", name, x, y, STRENGTHS[1], None)
    more = {"strength": STRENGTHS[1], "ratio": 0.6}
    value = oracle.objective("softplus", x, y, coef[5], intercept[5], None, name, **more)
    assert np.all((value - best <= gap[5] + 1e-11) & (value >= best - 1e-11))


@every_penalty
def test_fits_that_finish_do_not_change_the_others(name):
    """A neuron fitted alone, with others that need more steps, and with one that is silent in one fold."""
    X, Y = recording(t=T, d=D, n=N)
    train = blocks()
    hard = np.column_stack([Y[:, 0], np.where(X[:, 0] > X[:, 0].mean(), 5.0 * Y[:, 1], 0), Y[:, 2] * ~train[:, 0]])
    together = fit(X, hard, "softplus", name, STRENGTHS[0], train)
    alone = fit(X, hard[:, :1], "softplus", name, STRENGTHS[0], train)
    np.testing.assert_allclose(together[0][..., 0], alone[0][..., 0], atol=1e-3)
    assert np.all(together[2][0, 2] == Status.NO_SPIKES) and np.all(together[2][1:] == Status.CONVERGED)


@every_link
def test_fits_that_start_far_away_converge(link):
    X, Y = recording(link, t=T, d=D, n=N, size=3.0)
    _, _, status, _, proved, _ = fit(X, Y, link, "Ridge", 1e-6, blocks())
    assert np.all(status == Status.CONVERGED) and proved.all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["Ridge", "Lasso"])
def test_redundant_features_can_be_fitted(name, dtype):
    """A duplicate and a constant; a lasso does not determine how duplicates share a coefficient."""
    X, Y = recording(t=T, d=3, n=N)
    X = np.column_stack([X, X[:, 0], np.ones(T)]).astype(dtype)
    coef, intercept, status, gap, proved, _ = fit(X, Y, "softplus", name, STRENGTHS[0], blocks(), tol=1e-6, dtype=dtype)
    assert proved.all() and np.all(status == Status.CONVERGED)
    X = X.astype(float)
    best, _ = optimum("softplus", name, X, Y, STRENGTHS[0], None)
    value = oracle.objective("softplus", X, Y, coef[-1], intercept[-1], None, name, strength=STRENGTHS[0])
    assert np.all(value - best <= gap[-1] + 1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Ridge", "Lasso"])
@pytest.mark.parametrize("seed", [13, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 5, 8))])
def test_a_start_far_away_gives_no_false_proof(seed, name):
    """A huge count sends the first step to where the exp link's curvature tells nothing about the optimum's."""
    rng, t = np.random.default_rng(seed), 200 if seed == 1 else 400
    X = np.cumsum(rng.normal(size=(t, 1)), 0) / np.sqrt(t)
    y = rng.poisson(0.5, size=(t, 1)).astype(float)
    y[rng.integers(t)] = 1e4
    train, bounded = blocks(t=t), 0
    for strength in (1e-4, 1e-2):
        coef, intercept, _, gap, proved, _ = fit(X, y, "exp", name, strength, train, tol=1.0)
        for f in range(train.shape[1]):
            x, counts = X[train[:, f]], y[train[:, f]]
            best, _ = optimum("exp", name, x, counts, strength, None)
            own = oracle.objective("exp", x, counts, coef[f], intercept[f], None, name, strength=strength)
            if proved[f, 0]:
                bounded += 1
                assert own[0] - best[0] <= gap[f, 0] * (1 + 1e-6) + 1e-12 * abs(best[0])
    assert bounded


@pytest.mark.parametrize("name", ["Lasso", "ElasticNet"])
def test_fits_above_the_maximal_strength_stay_at_zero(name):
    """No step moves any of them."""
    X, Y = recording(t=T, d=D, n=N)
    coef, _, status, _, proved, _ = fit(X, Y, "softplus", name, 1e3, blocks())
    assert not coef.any() and np.all(status == Status.CONVERGED) and proved.all()
