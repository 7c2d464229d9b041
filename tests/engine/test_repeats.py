"""Repeated rows: the rows that remain have the same objective, and fits to them the same optimum and proofs."""

import math

import numpy as np
import pytest
from cases import LOSSES, solve
from oracles import population as oracle

from glmfit import PopulationGLM, PopulationGLMCV, penalties
from glmfit.engine import repeats
from glmfit.engine.passes import evaluate_loss
from glmfit.engine.population import FoldedProblem, PopulationProblem
from glmfit.engine.repeats import PooledRows
from glmfit.solvers import LoopOptions

T, D, N, CONDITIONS = 9000, 4, 3, 700
SOLVERS = {"Ridge": "ConjugateGradients", "Lasso": "ProximalNewton"}


def trials(rng, dtype=np.float32):
    """Bins of conditions that repeat in random order, and counts: X (t, d), Y (t, n)."""
    X = rng.normal(size=(CONDITIONS, D)).astype(dtype)[rng.integers(CONDITIONS, size=T)]
    return X, rng.poisson(np.logaddexp(0, X @ rng.normal(size=(D, N)) * 0.5 - 1)).astype(np.uint8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("folded", [False, True])
def test_rows_that_remain_have_the_mean_responses_and_the_weight_of_all_like_them(folded, weighted, dtype, rng):
    X, Y = trials(rng, dtype)
    weights = rng.uniform(size=T) * (rng.uniform(size=T) > 0.1) if weighted else None
    weights = None if weights is None else weights / weights.mean()
    w, sets = np.ones(T) if weights is None else weights, None
    if folded:
        train = rng.integers(3, size=T)[:, None] != np.arange(3)
        sets = train * w[:, None]
        sets = sets / sets.mean(axis=0)
    offset = rng.integers(2, size=(T, 1)).astype(float)
    found = PooledRows.of(X, Y, weights, sets, offset)
    sets = w[:, None] if sets is None else sets
    keys = np.column_stack([X, offset, *([sets > 0] if folded else [])])
    again = np.column_stack([found.X, found.offset, *([found.sets > 0] if folded else [])])
    assert len(found.X) == len(np.unique(keys, axis=0)) < T / 2
    share = len(found.X) / T
    for k in rng.integers(len(found.X), size=50):
        rows = np.all(keys == again[k], axis=1)
        mass = w[rows].sum()
        np.testing.assert_allclose(found.sets[k], share * sets[rows].sum(axis=0))
        if mass > 0:
            np.testing.assert_allclose(found.Y[k], w[rows] @ Y[rows] / mass)
    np.testing.assert_allclose(found.sets.mean(axis=0), 1.0)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_linear_in_the_response(name, rng):
    """On which pooling rests."""
    observation, eta = LOSSES[name].model, rng.normal(size=(20, 2))
    y = rng.choice(np.asarray(LOSSES[name].responses, float), size=(30, 20, 2))
    share = rng.dirichlet(np.ones(30))
    for function in observation.loss, observation.derivative, observation.curvature:
        each = np.einsum("k,ktn->tn", share, np.stack([function(some, eta) for some in y]))
        np.testing.assert_allclose(function(np.einsum("k,ktn->tn", share, y), eta), each, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_objective_and_its_gradient_stay_the_same(weighted, rng):
    X, Y = trials(rng)
    weights = rng.uniform(size=T) if weighted else None
    offset = rng.integers(2, size=(T, 1)) * np.linspace(0.5, 1, N)
    problem = PopulationProblem(
        X, Y, LOSSES["softplus"].model, penalties.NoPenalty(np.zeros(())), weights, offset=offset
    )
    pooled = problem.pooled
    assert problem.pooled is pooled  # found once
    at = rng.normal(size=(D, N)), rng.normal(size=N)
    given = pooled.X, pooled.Y, pooled.sets, problem.observation
    for part, whole in zip(
        evaluate_loss(*given, *at, offset=pooled.offset)[:3],
        evaluate_loss(X, Y, problem.weights, problem.observation, *at, offset=offset)[:3],
        strict=True,
    ):
        np.testing.assert_allclose(part, whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["one-hot", "whole", "rounded", "signed"])
def test_numbers_that_end_in_zeros_are_told_apart(kind, dtype, rng):
    X = {
        "one-hot": np.eye(300)[rng.integers(300, size=20_000)],
        "whole": rng.integers(8, size=(20_000, 3)),
        "rounded": rng.normal(size=(2000, 2)).astype(np.float32)[rng.integers(2000, size=20_000)],
        "signed": rng.choice([-0.0, 0.0, 1.0], size=(20_000, 3)),
    }[kind].astype(dtype)
    found = PooledRows.of(X, np.ones((20_000, 1)))
    assert len(found.X) == len(np.unique(X + 0.0, axis=0))


def test_rows_that_hardly_repeat_stay_as_they_are(rng, monkeypatch):
    X, Y = trials(rng)
    assert PooledRows.of(X[:4000], Y[:4000]) is None  # few
    different = X + np.arange(T, dtype=np.float32)[:, None]
    assert PooledRows.of(different, Y) is None
    thrice = np.repeat(different, 3, axis=0)[rng.permutation(3 * T)]
    assert len(PooledRows.of(thrice, np.ones((3 * T, 1))).X) == T
    hashed, over_tiles = [], repeats.over_tiles
    monkeypatch.setattr(repeats, "over_tiles", lambda *given: hashed.append(0) or over_tiles(*given))
    resting = np.where(np.arange(T)[:, None] < T / 5, X[:1], different)  # a fifth of the rows are one
    assert PooledRows.of(resting, Y) is None and not hashed


def test_rows_whose_hashes_are_equal_by_accident_stay_alone(rng, monkeypatch):
    X, Y = trials(rng)
    right, bits = PooledRows.of(X, Y), repeats._bits
    two = np.unique(X, axis=0)[:2]
    alike = np.all(X == two[0], axis=1) | np.all(X == two[1], axis=1)

    def confuse(values):
        other = np.all(values == two[1], axis=1)[:, None] if values.shape[1] == D else False
        return bits(np.where(other, two[:1], values))

    monkeypatch.setattr(repeats, "_bits", confuse)
    found = PooledRows.of(X, Y)
    assert len(right.X) < len(found.X) <= len(right.X) + alike.sum()
    np.testing.assert_allclose(found.sets[:, 0] @ found.Y / found.sets.sum(), Y.mean(axis=0))
    monkeypatch.setattr(repeats, "_bits", lambda values: np.zeros(values.shape, np.uint64))
    assert PooledRows.of(X, Y) is None


def test_pooled_rows_take_little_memory(rng, monkeypatch):
    X, Y = trials(rng)
    monkeypatch.setattr(repeats, "_FREE", 0)
    many = np.tile(Y, (1, 200))
    assert PooledRows.of(X, many) is None  # eight bytes for each
    assert PooledRows.of(X, many.astype(float)) is not None
    assert PooledRows.of(X, Y, offset=np.zeros((T, 600))) is not None
    assert PooledRows.of(X[:5000], many[:5000]) is None


@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso"])
@pytest.mark.parametrize("link", ["softplus", "exp"])
def test_a_fit_to_repeated_rows_is_that_to_all(link, regularizer, rng, monkeypatch):
    X, Y = trials(rng)
    weights, how = rng.uniform(size=T), {"tol": 1e-8, "solver_name": SOLVERS[regularizer]}
    seen, of = [], PooledRows.of

    def note(*given):
        seen.append(of(*given))
        return seen[-1]

    monkeypatch.setattr(PooledRows, "of", note)
    model = PopulationGLM(link, regularizer, 1e-3, **how).fit(X, Y, sample_weight=weights)
    assert [len(rows.X) for rows in seen] == [len(np.unique(X, axis=0))]
    monkeypatch.setattr(PooledRows, "of", lambda *_: None)
    alone = PopulationGLM(link, regularizer, 1e-3, **how).fit(X, Y, sample_weight=weights)
    for one in model, alone:
        assert one.report_.converged.all() and one.report_.gap_is_bound.all() and one.report_.n_rows == T
        F = oracle.objective(link, X, Y, one.coef_, one.intercept_, weights, regularizer, strength=1e-3)
        np.testing.assert_allclose(one.report_.objective, F, rtol=1e-12)
    for name in ("objective", "null_objective"):
        a, b = (np.asarray(getattr(one.report_, name)) for one in (model, alone))
        np.testing.assert_allclose(a, b, atol=np.max(model.report_.gap + alone.report_.gap))
    np.testing.assert_allclose(model.report_.dispersion, alone.report_.dispersion, rtol=1e-3)
    np.testing.assert_allclose(model.report_.pseudo_r2, alone.report_.pseudo_r2, rtol=1e-3)
    if regularizer == "Ridge":
        gap = model.report_.objective - oracle.newton(link, X, Y, 1e-3, weights).objective
        assert np.all(gap <= model.report_.gap + 1e-13)


def test_folds_of_repeated_rows_are_fitted_as_those_of_all(rng, monkeypatch):
    X, Y = trials(rng)
    train = rng.integers(3, size=T)[:, None] != np.arange(3)
    neuron, fold = np.tile(np.arange(N), 3), np.repeat(np.arange(3), N)
    made = (X, Y, LOSSES["softplus"].model, penalties.Ridge(np.array(1e-3)), neuron, fold, train)
    weights = rng.uniform(size=T)
    problem = FoldedProblem(*made, weights=weights)
    assert len(problem.pooled.X) == len(np.unique(np.column_stack([X, train]), axis=0))
    found = solve(problem, LoopOptions(tol=1e-8))
    assert found.gap_is_bound.all()
    for k in range(len(neuron)):
        rows = train[:, fold[k]]
        best = oracle.newton("softplus", X[rows], Y[rows][:, [neuron[k]]], 1e-3, weights[rows])
        gap = found.objective[k] - best.objective[0]
        assert -1e-13 <= gap <= found.gap[k] + 1e-13
    model = PopulationGLMCV(strengths=[1e-4, 1e-2], cv=3).fit(X, Y)
    pooled, seen = PooledRows.of, []
    monkeypatch.setattr(PooledRows, "of", lambda *given: seen.append(pooled(*given)))  # returns None
    alone = PopulationGLMCV(strengths=[1e-4, 1e-2], cv=3).fit(X, Y)
    np.testing.assert_allclose(model.cv_scores_, alone.cv_scores_, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(model.strength_, alone.strength_)
    assert seen and all(len(rows.X) <= T / 2 for rows in seen)


@pytest.mark.parametrize("model", ["Poisson", "NegativeBinomial", "Bernoulli", "Gamma", "Gaussian"])
@pytest.mark.parametrize("masked", [False, True])
def test_fits_of_every_model_are_those_to_all_rows(masked, model, rng, monkeypatch):
    """With masks of single neurons, and a lasso, whose bounds are by duality."""
    X, _ = trials(rng)
    eta = X @ rng.normal(size=(D, N)) * 0.4
    Y = {
        "Poisson": lambda: rng.poisson(np.exp(eta - 1)),
        "NegativeBinomial": lambda: rng.negative_binomial(2, 1 / (1 + np.exp(eta - 1) / 2)),
        "Bernoulli": lambda: rng.uniform(size=eta.shape) < 1 / (1 + np.exp(-eta)),
        "Gamma": lambda: rng.gamma(3, np.exp(eta) / 3),
        "Gaussian": lambda: rng.normal(eta),
    }[model]().astype(float)
    if masked:
        Y[rng.uniform(size=Y.shape) < 0.2] = np.nan
    how = {"observation_model": model, "regularizer": "Lasso", "regularizer_strength": 1e-3, "tol": 1e-8}
    how["solver_name"] = "ProximalNewton"
    if model == "NegativeBinomial":
        how["dispersion"] = 0.5
    model = PopulationGLM(**how).fit(X, Y)
    pooled, seen = PooledRows.of, []
    monkeypatch.setattr(PooledRows, "of", lambda *given: seen.append(pooled(*given)))  # returns None
    alone = PopulationGLM(**how).fit(X, Y)
    assert seen and all(len(rows.X) < T / 2 for rows in seen)
    for one in model, alone:
        assert one.report_.converged.all() and one.report_.gap_is_bound.all()
    difference = np.abs(np.asarray(model.report_.objective) - np.asarray(alone.report_.objective))
    np.testing.assert_array_less(difference, model.report_.gap + alone.report_.gap + 1e-14)
    np.testing.assert_allclose(model.report_.pseudo_r2, alone.report_.pseudo_r2, rtol=1e-6, atol=1e-8)
    share = len(seen[0].X) / T
    assert 0.5 * share < model.report_.row_evals / alone.report_.row_evals < 2 * share
    assert model.report_.rank == alone.report_.rank


def test_a_rank_and_its_proofs_do_not_depend_on_a_row_that_most_bins_have(rng):
    """Dependent features, constant ones, and a row of nearly all the weight."""
    some = rng.normal(size=(40, 3))
    some = np.column_stack([some, some[:, 0] + some[:, 1], np.full(40, 7.3)])
    X = some[np.where(rng.uniform(size=20_000) < 0.99, 0, rng.integers(40, size=20_000))]
    Y = rng.poisson(0.3, size=(20_000, 2))
    offset = rng.choice([-1.0, 0.0, 0.7], size=20_000)
    for more in {}, {"offset": offset}, {"sample_weight": np.exp(offset)}:
        with pytest.warns(UserWarning, match="constant column"):
            report = PopulationGLM(regularizer_strength=1e-3).fit(X, Y, **more).report_
        assert report.rank == 3 and report.converged.all()


@pytest.mark.parametrize("repeated", [1, 2, 5])
@pytest.mark.parametrize("common", [0.0, 0.3, 0.8])
def test_the_share_of_rows_that_differ_is_estimated_from_some(common, repeated, rng):
    n = 40_000
    hashes = np.where(np.arange(n) < common * n, n, np.arange(n) // repeated)
    some = hashes[rng.choice(n, 1600, replace=False)]
    assert abs(repeats._share_that_differs(some, n) - len(np.unique(hashes)) / n) < 0.1


def test_sums_of_a_common_row_round_little(rng):
    X = np.where(rng.uniform(size=(40_000, 1)) < 0.9, 1.0, rng.integers(100, size=(40_000, 1)))
    weights = rng.choice([0.7, 1.3], size=40_000)
    found = PooledRows.of(X, weights[:, None], weights)
    for k in range(len(found.X)):
        rows = X[:, 0] == found.X[k, 0]
        mass, squares = math.fsum(weights[rows]), math.fsum(weights[rows] ** 2)
        np.testing.assert_allclose(found.sets[k, 0] * 40_000 / len(found.X), mass, rtol=16 * np.finfo(float).eps)
        np.testing.assert_allclose(found.Y[k, 0], squares / mass, rtol=16 * np.finfo(float).eps)


def test_saga_visits_all_rows(rng, monkeypatch):
    X, Y = trials(rng)
    monkeypatch.setattr(PooledRows, "of", None)
    report = PopulationGLM(regularizer_strength=1e-2, solver_name="SAGA", tol=1e-3).fit(X, Y).report_
    assert report.converged.all() and report.row_evals >= T * report.epochs.max()
