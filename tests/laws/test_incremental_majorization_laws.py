"""Laws of incremental majorization: the sum of row bounds is as defined, never rises, and ends at the optimum."""

from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from oracles import majorization as oracle
from scipy.special import softmax as probabilities

import glmfit
from glmfit import Status
from glmfit.engine.classes.run import ClassRun
from glmfit.engine.problem import Params
from glmfit.solvers import BoundMajorization, ConjugateGradients, IncrementalMajorization, LoopOptions
from glmfit.stochastic import Pairs, SoftmaxProblem
from glmfit.stochastic import bound_majorization as majorization
from glmfit.stochastic import contrast_rows as surrogates
from glmfit.stochastic.contrast_rows import SurrogateSum

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
N, D, K = 90, 3, 4
ORDER = "given"
UNSEEN = IncrementalMajorization(check_every=10**6)  # checks of the objective are not part of the method
VARIANTS = {
    "plain": {},
    "offsets": {"offset": True},
    "sparse, offsets": {"sparse": True, "offset": True},
    "no intercept": {"intercept": False},
    "two classes": {"classes": 2, "labels": True},
    "single precision": {"dtype": np.float32},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def make(rng, strength=0.01, intercept=True, offset=False, sparse=False, dtype=np.float64, classes=K, labels=False):
    X = rng.normal(size=(N, D)) * np.geomspace(1, 0.2, D) + np.array([0, 2.0, 0])
    X *= rng.random((N, D)) < 0.9
    shift = rng.normal(size=(N, classes)) if offset else None
    p = probabilities(X @ rng.normal(size=(D, classes)) + (0 if shift is None else shift), axis=1)
    n = np.ones(N, int) if labels else rng.integers(1, 4, N)
    Y = np.stack([rng.multinomial(m, q) for m, q in zip(n, p, strict=True)])
    Y[:classes] = np.eye(classes, dtype=int)
    row, label = np.nonzero(Y)
    weight = np.ones(N) if labels else rng.uniform(0.5, 2, N)
    pairs = Pairs(row, label, Y[row, label] * weight[row])
    X = X.astype(dtype)
    return SoftmaxProblem(sp.csr_array(X) if sparse else X, pairs, classes, strength, intercept, shift, dtype)


def random_params(rng, problem, scale=1.0):
    intercept = rng.normal(size=problem.n_classes) if problem.fit_intercept else np.zeros(problem.n_classes)
    return Params(scale * rng.normal(size=(D, problem.n_classes)), scale * intercept)


def sum_of_bounds(problem, anchors, params, order=ORDER):
    """Sum of the rows' bounds at some parameters, and its curvature, row by row from the listing."""
    X = problem.X.toarray() if sp.issparse(problem.X) else np.asarray(problem.X, float)
    X1 = np.hstack([X, np.full((N, 1), float(problem.fit_intercept))])
    scores, Y = problem.scores(params), problem.counts.toarray()
    value = N * problem.strength / 2 * np.sum(params.coef**2)
    S = np.kron(np.eye(problem.n_classes), N * problem.strength * np.diag(np.append(np.ones(D), 0.0)))
    for x, a, s, y in zip(X1, anchors, scores, Y, strict=True):
        C, n = oracle.softmax_curvature(a), y.sum()
        top = a.max()
        log_norm, p = top + np.log(np.exp(a - top).sum()), probabilities(a)
        value += n * log_norm - y @ a + (n * p - y) @ (s - a) + n * (s - a) @ C @ (s - a) / 2
        S += n * np.kron(C, np.outer(x, x))
    return value / N, S / N


def blocks_of(rng, size):
    rows = rng.permutation(N)
    return [rows[i : i + size] for i in range(0, N, size)]


@pytest.mark.thorough(cases=1)
@every_variant
def test_the_sum_of_row_bounds_is_above_f_and_touches_it(variant, rng, monkeypatch):
    monkeypatch.setattr(surrogates, "_AT_ONCE", 300)  # several parts
    problem = make(rng, **VARIANTS[variant])
    rows, start = SurrogateSum(problem), random_params(rng, problem)
    at = rows.start(start, ORDER)
    assert at.bound == pytest.approx(problem.objective(rows.to_params(at.theta)), rel=1e-12)
    for _ in range(3):
        at = rows.visit(at, blocks_of(rng, 20), ORDER, 0.3)
        value, _ = sum_of_bounds(problem, at.anchor, rows.to_params(at.theta))
        assert at.bound == pytest.approx(value, rel=1e-10)
        assert at.bound >= problem.objective(rows.to_params(at.theta)) - 1e-12
        for scale in (0.1, 1.0, 30.0):
            far = random_params(rng, problem, scale)
            assert sum_of_bounds(problem, at.anchor, far)[0] >= problem.objective(far)


@pytest.mark.thorough
@every_variant
def test_visiting_all_rows_at_once_is_a_step_of_the_batch_method(variant, rng, monkeypatch):
    monkeypatch.setattr(surrogates, "_FORCING", 1e-14)
    problem = make(rng, **VARIANTS[variant])
    rows = SurrogateSum(problem)
    at = rows.start(random_params(rng, problem), ORDER)
    first = rows.visit(at, [np.arange(0)], ORDER, 0.0)
    second = rows.visit(first, [np.arange(N)], ORDER, 0.0)
    for before, after in ((at, first), (first, second)):
        params, moved = rows.to_params(before.theta), rows.to_params(after.theta)
        _, S = sum_of_bounds(problem, problem.scores(params), params)
        e = problem.evaluate(params)
        g = np.vstack([e.grad_coef, e.grad_intercept]).T.ravel()
        step = -(np.linalg.pinv(S, rcond=1e-12) @ g).reshape(problem.n_classes, D + 1).T
        step -= step.mean(axis=1, keepdims=True)
        found = np.vstack([moved.coef - params.coef, moved.intercept - params.intercept])
        np.testing.assert_allclose(found, step, atol=1e-10 * np.abs(step).max())


@pytest.mark.thorough
@pytest.mark.parametrize("lead", [0.0, 0.8])
@pytest.mark.parametrize("order", ["descending", "averaged"])
@pytest.mark.parametrize("size", [0.0, 30.0, 1e4])
@pytest.mark.parametrize("strength", [0.01, 0.0])
def test_no_visit_raises_the_sum_from_any_start(size, order, lead, strength, rng):
    problem = make(rng, strength=strength)
    rows, start = SurrogateSum(problem), random_params(rng, problem)
    scale = size / np.abs(problem.X @ start.coef).max()
    at = rows.start(Params(scale * start.coef, start.intercept), order)
    first = at.bound
    for _ in range(4):
        for block in blocks_of(rng, 15):  # one visit at a time
            after = rows.visit(at, [block], order, lead)
            objective = problem.objective(rows.to_params(after.theta))
            assert after.bound <= at.bound + 1e-12 * (abs(at.bound) + size)
            assert objective <= after.bound + 1e-11 * (abs(at.bound) + size)
            at = after
    assert objective < first


def test_differences_add_up_and_are_recomputed_periodically(rng):
    problem = make(rng)
    rows = SurrogateSum(problem)
    at = rows.start(random_params(rng, problem, 3.0), ORDER)
    for _ in range(10):
        at = rows.visit(at, blocks_of(rng, 10), ORDER, 0.5)
    bound, gradient, curvature = rows._form(at.theta, at.anchor, ORDER)
    np.testing.assert_allclose(at.curvature, curvature, atol=1e-12 * np.abs(curvature).max())
    np.testing.assert_allclose(at.gradient, gradient, atol=1e-12)
    assert at.bound == pytest.approx(bound, rel=1e-12)
    spoiled = at._replace(curvature=2 * at.curvature, age=surrogates._FORM_ANEW)
    after = rows.visit(spoiled, [np.arange(0)], ORDER, 0.0)
    np.testing.assert_allclose(after.curvature, curvature, atol=1e-12 * np.abs(curvature).max())
    assert after.age == 1 and after.passes == at.passes + 1


@pytest.mark.thorough
@every_variant
def test_fits_end_at_the_optimum_with_a_proof(variant, rng):
    problem = make(rng, **VARIANTS[variant])
    best = ConjugateGradients().run(problem, key=jax.random.key(0), options=LoopOptions(tol=1e-11))
    found = IncrementalMajorization(20).run(problem, key=jax.random.key(1), options=LoopOptions(tol=1e-8))
    assert found.status == Status.CONVERGED and found.gap_is_bound.all()
    assert found.gap >= found.objective - best.objective - 1e-14
    again = IncrementalMajorization(20).run(problem, key=jax.random.key(1), options=LoopOptions(tol=1e-8))
    np.testing.assert_array_equal(again.params.coef, found.params.coef)
    certificate = found.step_certificate
    assert certificate.certified and certificate.step == 1 and "Proposition 4" in certificate.theorem


def test_checks_affect_only_when_a_fit_ends(rng):
    problem, options = make(rng), LoopOptions(max_epochs=7, tol=1e-14)
    runs = [
        IncrementalMajorization(20, check_every=n).run(problem, key=jax.random.key(0), options=options) for n in (1, 3)
    ]
    np.testing.assert_array_equal(runs[0].params.coef, runs[1].params.coef)
    assert runs[0].objective == runs[1].objective and runs[0].row_evals > runs[1].row_evals
    assert set(runs[1].history["epoch"]) == {0, 3, 6, 7}


def test_without_a_ridge_flat_directions_stay_where_they_are(rng):
    problem = make(rng, strength=0.0)
    doubled = SoftmaxProblem(np.hstack([problem.X, problem.X[:, :1]]), problem.pairs, K, 0.0)
    found = IncrementalMajorization(20).run(doubled, key=jax.random.key(0), options=LoopOptions(max_epochs=60))
    best = ConjugateGradients().run(problem, key=jax.random.key(0), options=LoopOptions(tol=1e-10))
    np.testing.assert_allclose(found.params.coef[0], found.params.coef[-1], atol=1e-2)
    assert found.objective == pytest.approx(best.objective, abs=1e-6)


class Enough(Exception):
    """The gap is small enough."""


def passes_to(problem, solver, target=1e-6, most=200):
    """Passes until the relative gap is below the target; the check after each epoch is not part of the method."""
    best = ConjugateGradients().run(problem, options=LoopOptions(tol=1e-12)).objective[0]
    seen = []

    def look(epoch, seconds, params, state):
        seen.append(epoch)
        if problem.objective(params) - best <= target * (problem.null_objective - best):
            raise Enough

    with pytest.raises(Enough):
        solver.run(problem, key=jax.random.key(0), options=LoopOptions(tol=1e-14, max_epochs=most, callback=look))
    return seen[-1]


def labelled(X, y, strength):
    y = np.unique(y, return_inverse=True)[1]
    return SoftmaxProblem(X, Pairs(np.arange(len(y)), y, np.ones(len(y))), int(y.max()) + 1, strength)


@pytest.mark.slow
def test_25_passes_are_enough_on_logistic_regression_and_digits(rng):
    from sklearn.datasets import load_digits

    X = rng.normal(size=(600, 10))
    y = rng.random(600) < 1 / (1 + np.exp(-X @ rng.normal(size=10)))
    assert passes_to(labelled(X, y, 1e-2), UNSEEN) <= 25
    assert passes_to(labelled(X, y, 1e-3), UNSEEN) <= 25
    X, y = load_digits(return_X_y=True)
    problem = labelled(X / 16, y, 1e-2)
    ours = passes_to(problem, UNSEEN)
    assert ours <= 25 and ours < passes_to(problem, BoundMajorization(1.0))


@pytest.mark.realdata
@pytest.mark.skipif(not (DATA / "ecoli.npz").exists(), reason="../shared/data has no ecoli.npz")
def test_25_passes_are_enough_on_ecoli():
    with np.load(DATA / "ecoli.npz", allow_pickle=False) as file:
        assert passes_to(labelled(np.asarray(file["X"], float), file["y"], 1e-2), UNSEEN) <= 25


@pytest.mark.parametrize("estimator", ["SoftmaxGLM", "MultinomialGLM"])
def test_estimators_accept_incremental_majorization(estimator, rng):
    problem = make(rng, labels=estimator == "SoftmaxGLM")
    y = problem.counts.indices if estimator == "SoftmaxGLM" else np.round(problem.counts.toarray())
    make_model = getattr(glmfit, estimator)
    model = make_model(solver_name="IncrementalMajorization", regularizer_strength=0.01).fit(problem.X, y)
    assert model.report_.converged and "incrementally" in str(model.report_.step_certificate)
    other = make_model(regularizer_strength=0.01).fit(problem.X, y)
    np.testing.assert_allclose(model.coef_, other.coef_, atol=2e-2)


def test_too_many_parameters_are_refused_with_advice(rng):
    y = np.arange(200) % 100
    with pytest.raises(ValueError, match=r"60 features and 100 classes make 6039 parameters.*Use BoundMajorization"):
        glmfit.SoftmaxGLM(solver_name="IncrementalMajorization").fit(rng.normal(size=(200, 60)), y)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"order": "random"}, "order is 'random'; it must be one of"),
        ({"lead": 1.0}, r"lead is 1.0; it must be a number in \[0, 1\)"),
        ({"lead": -0.1}, "lead is -0.1"),
        ({"check_every": 0}, "check_every is 0"),
    ],
)
def test_bad_hyper_parameters_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        IncrementalMajorization(**options)


def test_batches_larger_than_the_data_are_refused(rng):
    with pytest.raises(ValueError, match="batch_size is 91"):
        IncrementalMajorization(91).run(make(rng), key=jax.random.key(0))


def cauchy(seed, n=400, d=4, classes=4):
    """Columns in which a few values are a thousand times the others: fits progress slowly."""
    rng = np.random.default_rng(seed)
    X = rng.standard_cauchy(size=(n, d))
    y = np.argmax(np.tanh(X) @ rng.normal(size=(d, classes)) + rng.gumbel(size=(n, classes)), axis=1)
    return labelled(X, y, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_slow_progress_is_not_reported_as_a_precision_floor(seed):
    problem, options = cauchy(seed), LoopOptions(max_epochs=60)
    found = IncrementalMajorization().run(problem, key=jax.random.key(0), options=options)
    best = ConjugateGradients().run(problem, options=LoopOptions(tol=1e-10)).objective[0]
    assert found.status in (Status.CONVERGED, Status.MAX_EPOCHS) and found.gap >= found.objective - best


def test_a_rising_gradient_does_not_end_the_fit_while_the_sum_falls(rng, monkeypatch):
    """The gradient and F may rise for several passes: no proof is attempted before the budget is spent."""
    problem, proofs, look = make(rng), [], ClassRun._look
    monkeypatch.setattr(majorization._Visits, "estimate", property(lambda self: 1.0 + self.n_steps))
    monkeypatch.setattr(ClassRun, "_look", lambda self, *a: proofs.append(0) or look(self, *a))
    found = IncrementalMajorization(20).run(problem, key=jax.random.key(0), options=LoopOptions(max_epochs=12))
    assert len(proofs) == 1 and found.epochs == 12


def test_a_sum_that_stopped_falling_ends_the_fit(rng, monkeypatch):
    problem = make(rng)
    monkeypatch.setattr(SurrogateSum, "visit", lambda self, at, *how: at)
    found = IncrementalMajorization(20).run(problem, key=jax.random.key(0), options=LoopOptions(max_epochs=50))
    assert found.status == Status.PRECISION_FLOOR and found.epochs < 12
