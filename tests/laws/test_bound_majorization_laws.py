"""Laws of bound majorization for softmax models: every step descends from any start, and is the documented step."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from oracles import majorization as oracle
from scipy.special import softmax as probabilities

import glmfit
from glmfit import Status
from glmfit.engine import tiles
from glmfit.engine.classes.descent import ClassDescent
from glmfit.engine.classes.run import ClassRun
from glmfit.engine.problem import Params
from glmfit.solvers import BoundMajorization, ConjugateGradients, LoopOptions
from glmfit.stochastic import Pairs, SoftmaxProblem
from glmfit.stochastic import bound_majorization as majorization
from glmfit.stochastic.bound_majorization import MajorizedDescent

N, D, K = 150, 4, 4
RELAXATIONS = (0.5, 1.0, 1.5, 1.9)
ORDERS = ("given", "descending", "ascending", "averaged")


def make(rng, strength=0.01, intercept=True, offset=False, sparse=False, dtype=np.float64, classes=K, labels=False):
    X = rng.normal(size=(N, D)) * np.geomspace(1, 0.1, D) + np.array([0, 3.0, 0, -1])
    X[:, 2] += 0.9 * X[:, 0]
    X *= rng.random((N, D)) < 0.9
    shift = rng.normal(size=(N, classes)) if offset else None
    p = probabilities(X @ rng.normal(size=(D, classes)) + (0 if shift is None else shift), axis=1)
    n = np.ones(N, int) if labels else rng.integers(1, 4, N)
    Y = np.stack([rng.multinomial(m, q) for m, q in zip(n, p, strict=True)])
    Y[:classes] = np.eye(classes, dtype=int)  # every class is seen
    row, label = np.nonzero(Y)
    weight = np.ones(N) if labels else rng.uniform(0.5, 2, N)
    X = X.astype(dtype)
    pairs = Pairs(row, label, Y[row, label] * weight[row])
    return SoftmaxProblem(sp.csr_array(X) if sparse else X, pairs, classes, strength, intercept, shift, dtype)


# Ten problems that may fail in different ways: ridge, intercept, offsets, sparsity, two or many classes, labels, and a
# start with scores of 1e4.
PROBLEMS = {
    "plain": {},
    "offsets": {"offset": True},
    "sparse": {"sparse": True},
    "sparse, offsets": {"sparse": True, "offset": True},
    "no intercept": {"intercept": False},
    "no ridge": {"strength": 0.0},
    "next to no ridge": {"strength": 1e-9, "intercept": False, "offset": True},
    "two classes": {"classes": 2, "labels": True},
    "many classes": {"classes": 12},
    "labels, strong ridge": {"strength": 10.0, "labels": True},
}


def start(problem, rng, size):
    """Parameters with scores of about this size."""
    coef = rng.normal(size=(D, problem.n_classes))
    X = problem.X.toarray() if sp.issparse(problem.X) else problem.X
    coef *= size / max(np.abs(X @ coef).max(), 1e-12)
    return Params(coef, np.zeros(problem.n_classes))


def descent_at(problem, params, **options) -> MajorizedDescent:
    """Descent at given parameters, however far from the optimum."""
    run = ClassRun(problem, LoopOptions(), descent=MajorizedDescent)  # in double precision
    rows, coef = run.rows(), params.coef - params.coef.mean(axis=1, keepdims=True)
    intercept = (params.intercept + rows.mean @ coef) * problem.fit_intercept
    where = run.problem.basis, problem.strength, run.problem.null_objective
    at = np.vstack([coef, intercept - intercept.mean()])
    return MajorizedDescent(rows, *where, at, method=BoundMajorization(**options))


def params_of(cg) -> Params:
    return Params(cg.coef, (cg.intercept - cg.rows.mean @ cg.coef) * cg.rows.fit_intercept)


def curvature(problem, params, order):
    """Curvature of the bound by the plain listing, ((feature + 1) * class) square, and the gradient in that order."""
    X = problem.X.toarray() if sp.issparse(problem.X) else problem.X
    X1 = np.hstack([X, np.full((N, 1), float(problem.fit_intercept))])
    S = np.zeros((D + 1, problem.n_classes, D + 1, problem.n_classes))
    for s, x, n in zip(problem.scores(params), X1, problem.totals, strict=True):
        ways = {"given": [None], "descending": [np.argsort(-s)], "ascending": [np.argsort(s)]}
        ways["averaged"] = ways["descending"] + ways["ascending"]
        C = np.mean([_permuted(s, way) for way in ways[order]], axis=0)
        S += n * np.einsum("d,kl,e->dkel", x, C, x)
    S = S.reshape((D + 1) * problem.n_classes, -1) / N
    S += problem.strength * np.kron(np.diag(np.append(np.ones(D), 0.0)), np.eye(problem.n_classes))
    e = problem.evaluate(params)
    return S, np.vstack([e.grad_coef, e.grad_intercept]).ravel()


def _permuted(s, way):
    way = np.arange(len(s)) if way is None else way
    C = np.empty((len(s), len(s)))
    C[np.ix_(way, way)] = oracle.softmax_curvature(s[way])
    return C


@pytest.mark.thorough(cases=8)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["plain", "sparse, offsets", "no intercept", "two classes"])
def test_an_exact_step_minimises_the_sum_of_row_bounds(name, order, rng):
    problem = make(rng, **PROBLEMS[name])
    for relaxation in (1.0, 1.7):
        cg = descent_at(problem, start(problem, rng, 3.0), relaxation=relaxation, order=order, exact=True)
        params = params_of(cg)
        cg.advance(np.ones(problem.n_classes, bool))
        S, g = curvature(problem, params, order)
        move = -np.linalg.pinv(S, rcond=1e-12) @ g
        promised = -(g @ move) / 2
        found = params_of(cg)
        expected = relaxation * move.reshape(D + 1, problem.n_classes)
        change = np.vstack([found.coef - params.coef, found.intercept - params.intercept])
        # Predictions do not depend on a shift common to all classes.
        expected -= expected.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(change, expected, atol=1e-9 * np.abs(expected).max())
        assert cg.promised == pytest.approx(promised, rel=1e-9)


@pytest.mark.thorough(cases=18)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_no_step_raises_the_objective_from_any_start(name, relaxation, dtype, rng, monkeypatch):
    """The descent is at least that of Proposition 3, however few products; the objective is as defined."""
    monkeypatch.setattr(tiles, "TILE", 1)  # several tiles
    problem = make(rng, **PROBLEMS[name], dtype=dtype)
    for size, products in ((0.0, 20), (1.0, 1), (30.0, 3), (30.0, "exact"), (1e4, 20), (1e4, 1), (1e4, "exact")):
        how = {"exact": True} if products == "exact" else {"max_products": products}
        cg = descent_at(problem, start(problem, rng, size), relaxation=relaxation, **how)
        for _ in range(6):
            before = problem.objective(params_of(cg))
            cg.advance(np.ones(problem.n_classes, bool))
            after = problem.objective(params_of(cg))
            sure = relaxation * (2 - relaxation) * cg.promised
            assert after <= before - sure + 1e-12 * (abs(before) + size)
            assert cg.objective == pytest.approx(after, abs=1e-11 * (abs(before) + size))


@pytest.mark.thorough(cases=16)
@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("name", ["plain", "offsets", "sparse", "no intercept", "two classes", "many classes"])
def test_fits_end_at_the_optimum_with_a_proof(name, relaxation, rng):
    problem = make(rng, **PROBLEMS[name])
    options = LoopOptions(tol=1e-7, max_epochs=3000)
    best = ConjugateGradients().run(problem, key=jax.random.key(0), options=LoopOptions(tol=1e-10))
    found = BoundMajorization(relaxation).run(problem, key=jax.random.key(0), options=options)
    assert found.status == Status.CONVERGED and found.gap_is_bound.all()
    assert found.gap >= found.objective - best.objective - 1e-14
    assert np.all(np.diff(found.history["objective"][:, 0]) <= 1e-15)  # the last two belong to the same point
    certificate = found.step_certificate
    assert certificate.certified and certificate.step == relaxation and "Jebara" in certificate.theorem


def test_only_the_bound_is_used(rng, monkeypatch):
    """No Newton step ends the fit, and no line search is needed."""
    problem = make(rng)
    for name in ("_go", "choose", "renew_metrics"):
        monkeypatch.setattr(ClassDescent, name, None)
    assert BoundMajorization().run(problem, key=jax.random.key(0)).status == Status.CONVERGED


@pytest.mark.slow
def test_slow_progress_is_not_mistaken_for_no_progress(rng):
    problem = make(rng, strength=1e-5, labels=True)
    options = LoopOptions(tol=1e-6, max_epochs=20_000)
    found = BoundMajorization(0.2, order="given").run(problem, key=jax.random.key(0), options=options)
    assert found.status == Status.CONVERGED and found.epochs > 300


def test_a_budget_that_is_too_small_is_respected_and_reported(rng):
    problem = make(rng, strength=1e-5)
    found = BoundMajorization().run(problem, key=jax.random.key(0), options=LoopOptions(max_epochs=3))
    assert found.status == Status.MAX_EPOCHS and found.epochs == 3 and found.gap > 0


def test_many_classes_use_a_separate_preconditioner(rng, monkeypatch):
    problem = make(rng, classes=12)
    coupled = BoundMajorization().run(problem, key=jax.random.key(0))
    monkeypatch.setattr(majorization, "_COUPLED_CLASSES", 2)
    apart = BoundMajorization().run(problem, key=jax.random.key(0))
    assert apart.status == coupled.status == Status.CONVERGED
    assert apart.row_evals != coupled.row_evals


def test_rows_without_weight_do_not_enter_the_preconditioner(rng, monkeypatch):
    problem = make(rng)
    row = problem.pairs.row
    pairs = Pairs(2 * row + 1, problem.pairs.label, problem.pairs.weight)  # every other row has no weight
    spaced = SoftmaxProblem(np.repeat(problem.X, 2, axis=0), pairs, K, 0.01)
    monkeypatch.setattr(majorization, "_SAMPLED_ROWS", N)
    found = BoundMajorization().run(spaced, key=jax.random.key(0), options=LoopOptions(tol=1e-8))
    assert found.status == Status.CONVERGED and np.isfinite(found.params.coef).all()


@pytest.mark.parametrize("estimator", ["SoftmaxGLM", "MultinomialGLM"])
def test_estimators_accept_bound_majorization(estimator, rng, tmp_path):
    problem = make(rng, labels=estimator == "SoftmaxGLM")
    y = problem.counts.indices if estimator == "SoftmaxGLM" else np.round(problem.counts.toarray())
    options = {"solver_name": "BoundMajorization", "regularizer_strength": 0.01, "tol": 1e-8}
    model = getattr(glmfit, estimator)(**options, solver_kwargs={"relaxation": 1.9}).fit(problem.X, y)
    assert model.report_.converged and "quadratic bound" in str(model.report_.step_certificate)
    other = getattr(glmfit, estimator)(regularizer_strength=0.01, tol=1e-8).fit(problem.X, y)
    predict = "predict_proba" if estimator == "SoftmaxGLM" else "predict"
    expected = getattr(other, predict)(problem.X)
    np.testing.assert_allclose(getattr(model, predict)(problem.X), expected, atol=2e-3)
    model.save(tmp_path / "model.npz")
    again = getattr(glmfit, estimator).load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.coef_, model.coef_)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"relaxation": 2.0}, r"relaxation is 2.0; it must be a number in \(0, 2\)"),
        ({"relaxation": 0}, "relaxation is 0"),
        ({"relaxation": "fast"}, "relaxation is 'fast'"),
        ({"order": "random"}, "order is 'random'; it must be one of"),
        ({"max_products": 0}, "max_products is 0"),
        ({"exact": 1}, "exact is 1; it must be True or False"),
    ],
)
def test_bad_hyper_parameters_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        BoundMajorization(**options)
