"""Laws of exact softmax fits: they end at the optimum with valid bounds, however the same problem is stated.

"The same" is defined by the certificates: both objectives are within their bounds of one optimum.
"""

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from oracles import softmax as oracle
from scipy.special import softmax as probabilities

from glmfit import MultinomialGLM, SoftmaxGLM, Status
from glmfit.engine import tiles
from glmfit.engine.checkpoint import Checkpoint
from glmfit.engine.classes import bounds as class_bounds
from glmfit.engine.classes import rows as class_rows
from glmfit.engine.classes import run as class_run
from glmfit.engine.classes.bounds import bound_by_hessian
from glmfit.engine.classes.descent import ClassDescent
from glmfit.engine.classes.run import ClassRun
from glmfit.engine.problem import Params
from glmfit.solvers import ConjugateGradients, LoopOptions
from glmfit.stochastic import Pairs, SoftmaxProblem

N, D, K = 240, 4, 5
TIGHT = LoopOptions(tol=1e-9)


@pytest.fixture(params=["scores kept", "no scores kept"], autouse=True)
def scores(request, monkeypatch):
    """Every law holds whether scores are kept or computed again, some rows at a time."""
    monkeypatch.setattr(class_run, "_KEPT", np.inf if request.param == "scores kept" else 0)
    monkeypatch.setattr(class_rows, "_LEAST_ROWS", 100)
    monkeypatch.setattr(class_rows, "TILE", 1)
    monkeypatch.setattr(class_rows, "_CURVATURES", 2 * N)


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
    X = X.astype(dtype)
    return SoftmaxProblem(sp.csr_array(X) if sparse else X, pairs, K, strength, intercept, shift, dtype)


def wide(problem):
    """Dense features with a column of ones, or of zeros if there is no intercept."""
    X = problem.X.toarray() if sp.issparse(problem.X) else problem.X
    return np.hstack([X, np.full((len(X), 1), float(problem.fit_intercept))]).astype(float)


def optimum(problem):
    return oracle.newton(wide(problem), problem.counts.toarray(), problem.offset, problem.strength)[1]


def value_and_gradient(problem, params):
    """F and its gradient (feature + 1, class), straight from the definition."""
    W, X, Y = np.vstack(params).T, wide(problem), problem.counts.toarray()
    keep = np.append(np.ones(len(params.coef)), 0.0)
    value = oracle.nll(W, X, Y, problem.offset) / len(X) + problem.strength / 2 * np.sum((W * keep) ** 2)
    return value, (oracle.nll_gradient(W, X, Y, problem.offset) / len(X) + problem.strength * W * keep).T


def descent_at(problem, params) -> ClassDescent:
    """Descent at given parameters, however far from the optimum."""
    run = ClassRun(problem, LoopOptions())
    rows, coef = run.rows(), params.coef - params.coef.mean(axis=1, keepdims=True)
    intercept = params.intercept + rows.mean @ coef
    where = run.problem.basis, problem.strength, run.problem.null_objective
    return ClassDescent(rows, *where, np.vstack([coef, intercept - intercept.mean() * problem.fit_intercept]))


def user_params(cg) -> Params:
    coef = cg.coef - cg.coef.mean(axis=1, keepdims=True)
    intercept = cg.intercept - cg.rows.mean @ coef
    return Params(coef, intercept - intercept.mean() if cg.rows.fit_intercept else 0 * intercept)


def random_params(rng, problem, scale=1.0):
    intercept = rng.normal(size=K) if problem.fit_intercept else np.zeros(K)
    return Params(scale * rng.normal(size=(D, K)), scale * intercept)


VARIANTS = [
    {"strength": s, "intercept": i, "offset": o, "sparse": p}
    for s, i, o, p in [
        (0.01, True, False, False), (0.01, True, True, False), (1e-4, True, False, True), (0.1, False, True, True),
        (0.0, True, False, False), (0.0, False, True, False),
    ]
]  # fmt: skip
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)


# ---------------------------------------------------------------- rows


@every_variant
@pytest.mark.parametrize("far", [0.0, 1e3])
def test_rows_have_the_gradient_and_curvature_of_the_definition(variant, far, rng, monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 1)  # several tiles
    problem = make(rng, **variant)
    if far and not variant["sparse"] and variant["intercept"]:
        problem = SoftmaxProblem(problem.X + far, problem.pairs, K, problem.strength, True, problem.offset)
    cg = descent_at(problem, random_params(rng, problem))
    params = user_params(cg)
    _, g = value_and_gradient(problem, params)
    # A directional derivative does not depend on coordinates.
    change = random_params(rng, problem)
    p = np.vstack([change.coef, change.intercept + cg.rows.mean @ change.coef])
    slope = np.sum(cg.gradient * p)
    assert slope == pytest.approx(np.sum(g * np.vstack(change)), rel=1e-9)
    Z = wide(problem)
    c, q = Z @ np.vstack(change), probabilities(problem.scores(params), axis=1)
    spread = np.sum(q * c**2, axis=1) - np.sum(q * c, axis=1) ** 2
    curved = problem.totals @ spread / N + problem.strength * np.sum(change.coef**2)
    product = cg.rows.products(p)
    bend = np.sum(product * p) + problem.strength * np.sum(p[:-1] ** 2)
    assert bend == pytest.approx(curved, rel=1e-6)
    along = cg.rows.along(p)
    assert along[0] + problem.strength * np.sum(p[:-1] ** 2) == pytest.approx(bend, rel=1e-10)
    there = cg.rows.move(np.full(K, 0.3))
    _, g = value_and_gradient(problem, Params(*(a + 0.3 * b for a, b in zip(params, change, strict=True))))
    np.testing.assert_allclose(there[-1], g[-1], atol=1e-12)


@pytest.mark.parametrize("scores", ["no scores kept"], indirect=True)
def test_step_lengths_and_curvature_estimated_from_some_rows_are_right_on_average(rng, monkeypatch):
    monkeypatch.setattr(class_rows, "_SOME", 60)
    problem = make(rng, scale=2.0)
    cg = descent_at(problem, random_params(rng, problem))
    p = np.vstack(random_params(rng, problem))
    q, change = probabilities(problem.scores(user_params(cg)), axis=1), wide(problem) @ p
    change += (p[-1] - cg.rows.mean @ p[:-1]) - p[-1]
    bend = problem.totals @ (np.sum(q * change**2, axis=1) - np.sum(q * change, axis=1) ** 2) / N
    guesses = [cg.rows.along(p)[0] for _ in range(300)]
    assert np.mean(guesses) == pytest.approx(bend, rel=0.02) and 0.01 < np.std(guesses) / bend < 0.5
    curvature = np.mean([cg.rows.mean_curvature() for _ in range(300)], axis=0)
    np.testing.assert_allclose(curvature, problem.totals @ (q * (1 - q)) / N, rtol=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize("strength", [0.0, 1e-4, 1e-2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fits_with_estimated_step_lengths_end_at_the_optimum(strength, dtype, rng, monkeypatch):
    monkeypatch.setattr(class_rows, "_SOME", 30)
    problem = make(rng, strength, dtype=dtype, scale=2.0)
    solution = ConjugateGradients().run(problem, options=LoopOptions(tol=1e-7))
    gap = problem.objective(solution.params) - optimum(problem)
    assert solution.status[0] == Status.CONVERGED and -1e-12 <= gap <= solution.gap[0] + 1e-12


@pytest.mark.parametrize("sparse", [False, True])
def test_blocks_are_those_of_the_hessian(sparse, rng):
    problem = make(rng, 0.02, sparse=sparse)
    cg = descent_at(problem, random_params(rng, problem))
    scale = np.array([1.0, 2.0, 0.5, 1.0])
    for k, block in enumerate(cg.rows.hessians(np.arange(K), scale)):
        for j in range(D + 1):
            p = np.zeros((D + 1, K))
            p[j, k] = 1 / np.append(scale, 1)[j]
            product = cg.rows.products(p)[:, k] / np.append(scale, 1)
            np.testing.assert_allclose(block[:, j], product, rtol=2e-2, atol=1e-3)  # rows that count little are skipped


def test_probabilities_do_not_depend_on_a_common_shift(rng):
    problem = make(rng)
    params = random_params(rng, problem)
    shifted = Params(params.coef + rng.normal(size=(D, 1)), params.intercept + 7)
    here, there = (user_params(descent_at(problem, p)) for p in (params, shifted))
    np.testing.assert_allclose(here.coef, there.coef, atol=1e-12)
    np.testing.assert_allclose(here.intercept, there[-1], atol=1e-12)
    # Removing the shift can only lower the objective.
    assert problem.objective(there) <= problem.objective(shifted)


# ---------------------------------------------------------------- fits and their bounds


@pytest.mark.thorough
@every_variant
def test_fits_end_at_the_optimum_and_their_bound_holds_and_is_tight(variant, rng):
    problem = make(rng, **variant)
    solution = ConjugateGradients().run(problem, options=TIGHT)
    gap = problem.objective(solution.params) - optimum(problem)
    assert solution.status[0] == Status.CONVERGED
    assert solution.gap_is_bound[0]
    assert -1e-12 <= gap <= solution.gap[0] + 1e-12  # the reference has its own rounding
    assert solution.gap[0] <= solution.target[0] <= 1e-7
    assert np.all(np.diff(solution.history["objective"][:, 0]) <= 1e-13)
    np.testing.assert_allclose(solution.params.coef.sum(axis=1), 0, atol=1e-10)


@pytest.mark.thorough
@every_variant
def test_steps_descend_and_blocks_of_the_hessian_only_improve_them(variant, rng):
    problem = make(rng, **variant)
    best = optimum(problem)

    def gaps(own):
        run = ClassRun(problem, LoopOptions())
        with run.rows() as rows:
            cg = run.descent(rows)
            seen = [problem.objective(user_params(cg)) - best]
            for step in range(8):
                if own and step in (2, 5):
                    cg.renew_metrics(np.arange(K), run.problem.basis.deviation)
                cg.advance(np.ones(K, bool))
                seen.append(problem.objective(user_params(cg)) - best)
            return np.array(seen)

    shared = gaps(False)
    assert np.all(np.diff(shared) <= 1e-13) and shared[-1] < 1e-2 * shared[0]
    if not variant["sparse"]:
        own = gaps(True)
        assert np.all(np.diff(own) <= 1e-13) and own[-1] <= shared[-1] + 1e-6 * shared[0]


@pytest.mark.thorough
@pytest.mark.parametrize("strength", [0.0, 1e-7, 1e-3])
def test_bounds_hold_all_the_way_and_are_tight_at_the_end(strength, rng):
    problem = make(rng, strength)
    best, run, seen = optimum(problem), ClassRun(problem, LoopOptions()), []
    with run.rows() as rows:
        cg = run.descent(rows)
        for _ in range(20):
            params = user_params(cg)
            objective = problem.objective(params)
            seen.append((objective - best, bound_by_hessian(cg, objective), problem.certify_gap(params).bound))
            cg.advance(np.ones(K, bool))
    for gap, by_hessian, bound in seen:
        assert gap <= min(by_hessian, bound) + 1e-13
    gap, by_hessian, _ = next(row for row in seen if 1e-10 < row[0] < 1e-5)
    assert by_hessian <= 1.2 * gap + 1e-12  # half the squared decrement, at the end


def test_hessian_bound_is_infinite_far_away_or_if_curvature_vanishes(rng):
    problem = make(rng, 0.0)
    far = descent_at(problem, Params(20 * rng.normal(size=(D, K)), np.zeros(K)))
    assert bound_by_hessian(far, 1.0) == np.inf
    twice = SoftmaxProblem(np.hstack([problem.X, problem.X[:, :1]]), problem.pairs, K, 0.0)
    doubled, plain = (descent_at(p, p.null_params()) for p in (twice, problem))
    assert bound_by_hessian(doubled, 1.0) == np.inf
    assert doubled.newton_gap() == pytest.approx(plain.newton_gap(), rel=0.05)
    solution = ConjugateGradients().run(twice)
    assert solution.status[0] == Status.UNPROVED and not solution.gap_is_bound[0]
    assert problem.objective(ConjugateGradients().run(problem).params) == pytest.approx(solution.objective[0], abs=1e-5)


def test_a_model_too_large_for_its_hessian_is_unproved_without_a_ridge(rng, monkeypatch):
    monkeypatch.setattr(class_bounds, "_DENSE_HESSIAN", 0)
    problem = make(rng, 0.0)
    solution = ConjugateGradients().run(problem, options=LoopOptions(tol=1e-6))
    assert solution.status[0] == Status.UNPROVED and not solution.gap_is_bound[0]
    gap = solution.objective[0] - optimum(problem)
    assert gap <= 2 * solution.gap[0] + 1e-12 and solution.gap[0] <= solution.target[0]


def test_a_row_with_nearly_all_counts_does_not_stall_the_fit(rng):
    """Single precision fails there, and the fit must notice it."""
    X = rng.normal(size=(300, 5))
    Y = np.eye(20)[np.argmax(X @ rng.normal(size=(5, 20)) + rng.gumbel(size=(300, 20)), axis=1)]
    Y[0] *= 1e12
    Y[:, Y.sum(axis=0) == 0] = 1
    report = MultinomialGLM(regularizer_strength=1e-4, max_epochs=150).fit(X, Y).report_
    assert report.status == Status.CONVERGED


def test_a_nearly_saturated_fit_is_bounded_by_the_saturated_loss(rng):
    X = rng.normal(size=(40, 30))
    X[:, -1] = 2 * X[:, 0]
    Y = rng.multinomial(3, np.ones(5) / 5, size=40).astype(float)
    report = MultinomialGLM(regularizer_strength=1e-10, max_epochs=60).fit(X, Y).report_
    assert report.status == Status.CONVERGED and report.gap_is_bound


@pytest.mark.thorough
@pytest.mark.parametrize("strength, at", [(1e-6, 1), (1e-6, 6), (1e-2, 4)])
def test_an_interrupted_fit_has_a_bound(strength, at, rng):
    problem = make(rng, strength)

    def stop(epoch, *_):
        if epoch == at:
            raise KeyboardInterrupt

    found = ConjugateGradients().run(problem, options=LoopOptions(tol=1e-9, callback=stop))
    gap = found.objective[0] - optimum(problem)
    assert found.status[0] == Status.INTERRUPTED and found.gap_is_bound[0]
    assert gap <= found.gap[0] <= found.objective[0] - problem.saturated_loss + 1e-9


@pytest.mark.parametrize("factor, strength", [(1e39, 1e-4), (1e-42, 1e-90)])
def test_features_beyond_single_precision_are_fitted_in_double(factor, strength, rng):
    problem = make(rng)
    X, y = problem.X * factor, rng.integers(0, K, N)
    report = SoftmaxGLM(regularizer_strength=strength).fit(X, y).report_
    assert report.status == Status.CONVERGED and report.objective < report.null_objective


@pytest.mark.slow
def test_separated_rows_are_reported_to_have_no_optimum(rng):
    X = rng.normal(size=(90, 2))
    y = np.argmax(X @ rng.normal(size=(2, 3)), axis=1)
    problem = SoftmaxProblem(X, Pairs(np.arange(90), y, np.ones(90)), 3, 0.0)
    solution = ConjugateGradients().run(problem, options=LoopOptions(max_epochs=100))
    assert solution.status[0] == Status.SEPARABLE
    assert np.all(np.isfinite(solution.params.coef))


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_budget_that_is_too_small_is_respected_and_reported(epochs, rng):
    problem = make(rng, strength=1e-5)
    found = ConjugateGradients().run(problem, options=LoopOptions(max_epochs=epochs, tol=1e-9))
    assert found.status[0] == Status.MAX_EPOCHS and found.epochs[0] == epochs


@pytest.mark.thorough
@pytest.mark.parametrize(
    "n_problems", [8, pytest.param(20, marks=pytest.mark.thorough), pytest.param(2000, marks=pytest.mark.slow)]
)
def test_no_bound_of_random_fits_is_below_the_gap(n_problems):
    """All strengths, sizes, offsets and precisions, compared with Newton's method in NumPy."""
    tightness = []
    for seed in range(n_problems):
        rng = np.random.default_rng([seed, 37])
        n, d, k = int(rng.integers(20, 200)), int(rng.integers(1, 6)), int(rng.integers(2, 7))
        X = (rng.normal(size=(n, d)) @ (np.eye(d) + 0.5) + rng.normal(size=d)) * 10 ** rng.uniform(-1, 1, d)
        X = X.astype([np.float32, np.float64][seed % 2])
        offset = 10 ** rng.uniform(-1, 1) * rng.normal(size=(n, k)) if seed % 3 == 0 else None
        y = np.argmax(X / np.abs(X).max(axis=0) @ rng.normal(size=(d, k)) * 3 + rng.gumbel(size=(n, k)), axis=1)
        y[:k] = np.arange(k)
        weight = rng.integers(1, 4, n).astype(float)
        strength = 10 ** rng.uniform(-7, 0)
        problem = SoftmaxProblem(X, Pairs(np.arange(n), y, weight), k, strength, True, offset)
        options = LoopOptions(tol=10 ** rng.uniform(-8, -1), negligible=10 ** rng.uniform(-6, 0))
        solution = ConjugateGradients().run(problem, options=options)
        gap = problem.objective(solution.params) - optimum(problem)
        assert solution.status[0] == Status.CONVERGED, seed
        assert gap <= solution.gap[0] * (1 + 1e-9) + 1e-14 * (1 + abs(solution.objective[0])), seed
        if strength > 1e-2:  # a weaker ridge makes duality weaker and ends fits nearer
            tightness.append(solution.gap[0] / max(gap, 1e-12))
    assert np.median(tightness) < 20


# ---------------------------------------------------------------- the same fit, stated in another way


def labelled(seed=0):
    rng = np.random.default_rng([seed, 41])
    X = np.round(rng.normal(size=(N, D)) @ (np.eye(D) + 0.4), 3)
    return X, np.argmax(X @ rng.normal(size=(D, K)) + rng.gumbel(size=(N, K)), axis=1)


def fit(X, y, strength=1e-3, estimator=SoftmaxGLM, **more):
    return estimator(regularizer_strength=strength, tol=1e-9).fit(X, y, **more)


def same(a, b, atol=2e-3):
    assert a.report_.converged and b.report_.converged
    slack = max(a.report_.gap, b.report_.gap) + 1e-12
    assert abs(a.report_.objective - b.report_.objective) <= slack
    np.testing.assert_allclose(a.coef_, b.coef_, atol=atol)


@pytest.mark.parametrize("strength", [1e-3, 0.0])
def test_a_row_without_weight_is_ignored_whatever_its_values(strength):
    X, y = labelled()
    weight = np.ones(N)
    weight[::7] = 0
    wild, kept = X.copy(), weight > 0
    wild[::7] *= 1e6
    same(fit(wild, y, strength, sample_weight=weight), fit(X[kept], y[kept], strength))


@pytest.mark.parametrize("strength", [1e-3, 0.0])
def test_integer_weights_equal_repeated_rows(strength):
    X, y = labelled()
    weight = np.random.default_rng(2).integers(1, 4, N)
    repeated = np.repeat(np.arange(N), weight)
    same(fit(X, y, strength, sample_weight=weight), fit(X[repeated], y[repeated], strength))


@pytest.mark.parametrize("strength", [1e-3, 0.0])
def test_counts_equal_repeated_rows(strength):
    X, _ = labelled()
    rng = np.random.default_rng(3)
    Y = rng.poisson(1.0, (N, K))
    row, label = np.nonzero(Y)
    each = np.repeat(np.arange(len(row)), Y[row, label])
    counts = fit(X, Y, strength * len(each) / N, MultinomialGLM)  # the mean is over rows, of which there are fewer
    rows = fit(X[row[each]], label[each], strength)
    np.testing.assert_allclose(counts.coef_, rows.coef_, atol=2e-3)
    scale = len(each) / np.sum(Y.sum(axis=1) > 0)
    if strength == 0:
        np.testing.assert_allclose(counts.report_.objective, rows.report_.objective * scale, rtol=1e-6)


def test_the_order_of_classes_does_not_matter():
    X, y = labelled()
    order = np.random.default_rng(4).permutation(K)
    first, other = fit(X, y), fit(X, order[y])
    assert abs(first.report_.objective - other.report_.objective) <= max(first.report_.gap, other.report_.gap)
    np.testing.assert_allclose(other.coef_[:, order], first.coef_, atol=2e-3)


@pytest.mark.parametrize("shift", [1e3, 1e6])
def test_means_of_features_do_not_matter(shift):
    X, y = labelled()
    same(fit(X + shift, y), fit(X, y))


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_units_of_features_do_not_matter_without_a_ridge(scale):
    X, y = labelled()
    units = np.array([1.0, scale, 1.0, 1 / scale])
    plain, scaled = fit(X, y, 0.0), fit(X * units, y, 0.0)
    assert plain.report_.converged and scaled.report_.converged
    np.testing.assert_allclose(scaled.coef_ * units[:, None], plain.coef_, atol=2e-3)


def test_a_start_changes_the_path_but_not_the_result(rng):
    problem = make(rng)
    first = ConjugateGradients().run(problem, options=TIGHT)
    for start in (first.params, random_params(rng, problem, 30.0)):
        again = ConjugateGradients().run(problem, start, options=TIGHT)
        assert again.status[0] == Status.CONVERGED
        assert abs(again.objective[0] - first.objective[0]) <= max(again.gap[0], first.gap[0])
    assert ConjugateGradients().run(problem, first.params, options=TIGHT).epochs[0] <= 1


def test_single_precision_features_are_fitted_as_they_are():
    X, y = labelled()
    single = X.astype(np.float32)
    same(fit(single, y), fit(single.astype(np.float64), y), atol=1e-5)


def test_a_fit_that_continues_after_its_end_keeps_its_proof(tmp_path, rng):
    problem = make(rng)

    def fit():
        checkpoint = Checkpoint(tmp_path / "fit.npz", {"of": "one problem"})
        return ConjugateGradients().run(problem, options=LoopOptions(tol=1e-6, checkpoint=checkpoint)).only()

    ended, again = fit(), fit()
    assert ended.status == again.status == Status.CONVERGED
    assert again.gap == ended.gap and again.gap_is_bound
    np.testing.assert_array_equal(again.params.coef, ended.params.coef)


def test_the_same_seed_gives_the_same_fit(rng):
    problem = make(rng)
    first, again = (ConjugateGradients().run(problem, key=jax.random.key(1)) for _ in range(2))
    np.testing.assert_array_equal(first.params.coef, again.params.coef)
