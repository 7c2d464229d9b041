"""Softmax and multinomial models with a lasso, elastic net or group lasso, compared with FISTA in NumPy."""

import numpy as np
import pytest
import scipy.sparse
from scipy.special import logsumexp, softmax
from sklearn.linear_model import LogisticRegression

from glmfit import MultinomialGLM, SoftmaxGLM, Status
from glmfit.engine.classes import proximal
from glmfit.engine.problem import Params
from glmfit.penalties import make
from glmfit.solvers import LoopOptions, ProximalNewton
from glmfit.stochastic import Pairs, SoftmaxProblem

N, D, K = 300, 6, 4
GROUPS = (0, 0, 1, 1, 2, 2)
KINKS = {
    "Lasso": {"regularizer_strength": 0.02},
    "ElasticNet": {"regularizer_strength": 0.03, "l1_ratio": 0.6},
    "GroupLasso": {"regularizer_strength": 0.02, "groups": list(GROUPS)},
}


@pytest.fixture
def data(rng):
    """Correlated features, one of them far from 0; the last two say nothing."""
    X = rng.normal(size=(N, D)) @ (np.eye(D) + 0.5) + np.array([0, 0, 30.0, 0, 0, 0])
    W = rng.normal(size=(D, K)) * (np.arange(D) < 4)[:, None]
    return X, np.argmax((X - X.mean(axis=0)) @ W + rng.gumbel(size=(N, K)), axis=1)


def shrink(W, step, name, strength, ratio, groups):
    if name != "GroupLasso":
        cut = strength * (ratio if name == "ElasticNet" else 1.0) * step
        return np.sign(W) * np.maximum(np.abs(W) - cut, 0)
    out = W.copy()
    for g in sorted(set(groups) - {-1}):
        members = np.flatnonzero(np.array(groups) == g)
        size = np.linalg.norm(W[members], axis=0)
        cut = strength * np.sqrt(len(members)) * step
        out[members] *= np.maximum(1 - cut / np.maximum(size, 1e-300), 0)
    return out


def penalty(W, name, strength, ratio, groups):
    if name == "GroupLasso":
        parts = [(np.array(groups) == g) for g in sorted(set(groups) - {-1})]
        return strength * sum(np.sqrt(p.sum()) * np.linalg.norm(W[p], axis=0).sum() for p in parts)
    ratio = ratio if name == "ElasticNet" else 1.0
    return strength * (ratio * np.abs(W).sum() + (1 - ratio) / 2 * (W**2).sum())


def objective(X, Y, W, b, offset, *of):
    s, n = X @ W + b + offset, Y.sum(axis=1)
    return np.mean(n * logsumexp(s, axis=1) - np.sum(Y * s, axis=1)) + penalty(W, *of)


def optimum(X, Y, name, strength, ratio=0.5, groups=GROUPS, free=True, offset=0.0, steps=6_000):
    """FISTA with restarts, in centred features; returns the objective, coefficients and intercepts."""
    mean = X.mean(axis=0) * free
    Z, n = X - mean, Y.sum(axis=1)
    ridge = strength * (1 - ratio) if name == "ElasticNet" else 0.0
    L = 0.5 * n.max() * np.linalg.eigvalsh(np.c_[Z, np.ones(len(Z))].T @ np.c_[Z, np.ones(len(Z))] / len(Z))[-1] + ridge
    W, b, t = np.zeros((X.shape[1], Y.shape[1])), np.zeros(Y.shape[1]), 1.0
    ahead = W, b
    for _ in range(steps):
        V, c = ahead
        R = (n[:, None] * softmax(Z @ V + c + offset, axis=1) - Y) / len(Z)
        new = shrink(V - (Z.T @ R + ridge * V) / L, 1 / L, name, strength, ratio, groups), c - free * R.sum(axis=0) / L
        if np.vdot(V - new[0], new[0] - W) + np.vdot(c - new[1], new[1] - b) > 0:
            t, ahead, (W, b) = 1.0, new, new
            continue
        before, t = t, (1 + np.sqrt(1 + 4 * t * t)) / 2
        ahead = tuple(a + (before - 1) / t * (a - a0) for a, a0 in zip(new, (W, b), strict=True))
        W, b = new
    b = b - mean @ W
    return objective(X, Y, W, b, offset, name, strength, ratio, groups), W, b


@pytest.mark.thorough
@pytest.mark.parametrize("name", KINKS)
@pytest.mark.parametrize("whole", [True, False])
def test_fits_match_proximal_gradients_and_are_proved(data, name, whole, monkeypatch):
    X, y = data
    if not whole:
        monkeypatch.setattr(proximal, "_WHOLE", 0)  # class by class
    given = KINKS[name]
    model = SoftmaxGLM(regularizer=name, tol=1e-8, **given).fit(X, y)
    report = model.report_
    best, W, b = optimum(X, np.eye(K)[y], name, given["regularizer_strength"], given.get("l1_ratio", 0.5))
    assert report.converged and report.gap_is_bound and report.solver_name == "ProximalNewton"
    assert -1e-9 < report.objective - best <= report.gap + 1e-9
    np.testing.assert_allclose(model.predict_proba(X), softmax(X @ W + b, axis=1), atol=2e-3)
    zero = model.coef_ == 0
    assert 0 < zero.sum() < zero.size
    if name != "Lasso":  # without a strictly convex part a shift of all classes may cost nothing
        np.testing.assert_allclose(model.coef_, W, atol=2e-3)
        assert np.mean(zero == (np.abs(W) < 1e-9)) > 0.95
    if name == "GroupLasso":
        pairs = (model.coef_ == 0).reshape(3, 2, K)
        assert np.array_equal(pairs.all(axis=1), pairs.any(axis=1))  # whole groups only
    assert "Proposition 3" in report.gap_theorem and 0 < report.pseudo_r2 < 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", KINKS)
@pytest.mark.parametrize("offset", [False, True])
def test_no_bound_is_below_the_true_gap(data, rng, name, offset):
    """At random parameters, far and near, with intercepts that are not optimal."""
    X, y = data
    known, given = (rng.normal(size=(N, K)) if offset else 0.0), KINKS[name]
    of = name, given["regularizer_strength"], given.get("l1_ratio", 0.5), GROUPS
    best, W, b = optimum(X, np.eye(K)[y], *of, offset=known)
    strength = (given["regularizer_strength"], 0.6) if name == "ElasticNet" else given["regularizer_strength"]
    kinks = make(name, strength, D, 1, given.get("groups"))
    ridge = float(kinks.ridge_strength)
    pairs = Pairs(np.arange(N), y, np.ones(N))
    problem = SoftmaxProblem(X, pairs, K, ridge, True, known if offset else None, np.float64, kinks)
    informative = 0
    for scale in (0.0, 1e-4, 1e-2, 0.1, 1.0):
        at = Params(W + scale * rng.normal(size=W.shape) / 30, b + scale * rng.normal(size=K))
        found = problem.certify_gap(at)
        true = objective(X, np.eye(K)[y], *at, known, *of)
        assert found.objective == pytest.approx(true, abs=1e-9)
        assert found.bound >= true - best - 1e-9
        informative += found.bound < 0.1 * (problem.null_objective - best)
        assert scale > 0 or found.bound < 1e-5
    assert informative >= 2


@pytest.mark.thorough
def test_counts_weights_and_models_without_intercepts(data, rng):
    X, _ = data
    X = X - X.mean(axis=0)
    counts = rng.multinomial(3, softmax(X @ rng.normal(size=(D, K)), axis=1))
    for free in (True, False):
        model = MultinomialGLM(regularizer="Lasso", regularizer_strength=0.05, tol=1e-8, fit_intercept=free)
        model.fit(X, counts)
        best, W, b = optimum(X, counts, "Lasso", 0.05, free=free)
        assert model.report_.converged and abs(model.report_.objective - best) <= model.report_.gap + 1e-9
        p = softmax(X @ W + b, axis=1)
        np.testing.assert_allclose(model.predict(X), p, atol=3e-3)
        assert free or not model.intercept_.any()


def test_objective_is_at_most_that_of_scikit_learn(data):
    X, y = data
    X = X - X.mean(axis=0)
    ours = SoftmaxGLM(regularizer="Lasso", regularizer_strength=0.02, tol=1e-8).fit(X, y)
    kind = {"l1_ratio": 1.0} if LogisticRegression().penalty == "deprecated" else {"penalty": "l1"}
    theirs = LogisticRegression(C=1 / (0.02 * N), **kind, solver="saga", tol=1e-8, max_iter=20_000).fit(X, y)
    of = "Lasso", 0.02, 1.0, GROUPS
    value = objective(X, np.eye(K)[y], theirs.coef_.T, theirs.intercept_, 0.0, *of)
    assert ours.report_.objective <= value + 1e-8
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=2e-3)


def test_sparse_features_and_starts_give_the_same_fit(data):
    X, y = data
    given = {"regularizer": "Lasso", "regularizer_strength": 0.02, "tol": 1e-8}
    dense = SoftmaxGLM(**given).fit(X, y)
    sparse = SoftmaxGLM(**given).fit(scipy.sparse.csr_array(X), y)
    np.testing.assert_allclose(sparse.predict_proba(X), dense.predict_proba(X), atol=1e-3)
    again = SoftmaxGLM(**given).fit(X, y, init_params=(dense.coef_, dense.intercept_))
    assert again.n_iter_ < dense.n_iter_ and again.report_.converged
    np.testing.assert_array_equal(SoftmaxGLM(**given).fit(X, y).coef_, dense.coef_)  # reproducible


def test_a_strong_penalty_leaves_class_frequencies(data):
    X, y = data
    with pytest.warns(UserWarning, match="leaves"):
        model = SoftmaxGLM(regularizer="Lasso", regularizer_strength=100.0).fit(X, y)
    assert not model.coef_.any() and model.report_.converged
    np.testing.assert_allclose(model.predict_proba(X[:1])[0], np.bincount(y) / N, atol=1e-6)


@pytest.mark.thorough
def test_features_in_no_group_are_not_penalised_and_leave_an_estimate(data):
    X, y = data
    model = SoftmaxGLM(regularizer="GroupLasso", groups=[0, 0, 1, 1, -1, -1], regularizer_strength=0.05)
    with pytest.warns(UserWarning, match="did not converge|below the tolerance by an estimate|not proved"):
        model.fit(X, y)
    assert model.report_.status == Status.UNPROVED and not model.report_.gap_is_bound
    best, *_ = optimum(X, np.eye(K)[y], "GroupLasso", 0.05, groups=(0, 0, 1, 1, -1, -1))
    assert model.report_.objective - best < 1e-5


@pytest.mark.parametrize("strength", [1e-7, 1e-4])
def test_weak_penalties_are_proved_although_objectives_no_longer_resolve_steps(strength):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(400, D))
        y = np.argmax(X @ rng.normal(size=(D, K)) + rng.gumbel(size=(400, K)), axis=1)
        report = SoftmaxGLM(regularizer="Lasso", regularizer_strength=strength).fit(X, y).report_
        assert report.converged and report.gap_is_bound


@pytest.mark.thorough
def test_known_scores_far_apart_do_not_stop_the_steps(data):
    X, y = data
    known = np.zeros((N, K))
    known[:, 0], known[::2, 1] = 40, -40
    model = SoftmaxGLM(regularizer="Lasso", regularizer_strength=0.01).fit(X - X.mean(axis=0), y, offset=known)
    assert model.report_.converged and model.report_.objective < 0.5 * model.report_.null_objective


@pytest.mark.parametrize("sparse", [False, True])
def test_a_constant_feature_is_no_obstacle(data, sparse):
    X, y = data
    X = np.column_stack([X, np.full(N, 0.3)])
    X = scipy.sparse.csr_array(X) if sparse else X
    model = SoftmaxGLM(regularizer="GroupLasso", groups=[*GROUPS, -1], regularizer_strength=0.02)
    with pytest.warns(UserWarning):
        model.fit(X, y)
    assert model.report_.status == Status.UNPROVED and model.report_.objective < 0.8 * model.report_.null_objective


@pytest.mark.thorough
def test_many_classes_are_fitted_class_by_class(rng):
    X = rng.normal(size=(600, 50))
    y = np.argmax(X @ rng.normal(size=(50, 32)) / 5 + rng.gumbel(size=(600, 32)), axis=1)
    model = SoftmaxGLM(regularizer="Lasso", regularizer_strength=1e-3).fit(X, y)
    assert model.report_.converged and model.report_.epochs < 20


def test_an_interrupted_fit_keeps_its_last_iterate(data, monkeypatch):
    X, y = data
    looks, look = [], proximal.ProximalClassRun._look

    def stop(self, params):
        looks.append(params)
        if len(looks) == 4:
            raise KeyboardInterrupt
        return look(self, params)

    monkeypatch.setattr(proximal.ProximalClassRun, "_look", stop)
    with pytest.warns(UserWarning, match="interrupted"):
        model = SoftmaxGLM(regularizer="Lasso", regularizer_strength=1e-3).fit(X, y)
    assert model.report_.status == Status.INTERRUPTED
    history = model.report_.history["objective"].ravel()
    assert model.report_.objective <= history[-1] < history[0]
    assert model.report_.objective == pytest.approx(
        objective(X, np.eye(K)[y], model.coef_, model.intercept_, 0.0, "Lasso", 1e-3, 1.0, GROUPS)
    )


def test_a_double_sum_has_no_kinks(data):
    model = SoftmaxGLM(regularizer="Lasso", regularizer_strength=0.02).fit(*data)
    with pytest.raises(ValueError, match="the double sum has a ridge or no penalty"):
        model.double_sum(*data)


def test_budgets_end_a_fit(data):
    X, y = data
    problem = SoftmaxProblem(
        X, Pairs(np.arange(N), y, np.ones(N)), K, 0.0, dtype=np.float64, penalty=make("Lasso", 1e-3, D, 1)
    )  # fmt: skip
    found = ProximalNewton().run(problem, options=LoopOptions(max_epochs=1)).only()
    assert found.status == Status.MAX_EPOCHS and found.epochs == 1
    assert found.objective < problem.null_objective and np.isfinite(found.gap)
    assert len(found.history["objective"]) == len(found.history["epoch"])


def test_files_keep_groups(data, tmp_path):
    model = SoftmaxGLM(regularizer="GroupLasso", groups={"all": [0, 1, 2, 3, 4, 5]}, regularizer_strength=1e-3)
    again = SoftmaxGLM.load(model.fit(*data).save(tmp_path / "m"))
    assert again.groups == {"all": [0, 1, 2, 3, 4, 5]}
    np.testing.assert_array_equal(again.coef_, model.coef_)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"regularizer": "GroupLasso"}, "regularizer is 'GroupLasso', but groups is None"),
        ({"groups": [0] * D}, "groups is given, but regularizer is 'Ridge'"),
        ({"regularizer": "ElasticNet", "l1_ratio": 0.0}, "l1_ratio is 0.0; it must be a number in"),
        ({"regularizer": "lasso"}, "regularizer is 'lasso'; it must be one of"),
        ({"regularizer": "Lasso", "solver_name": "UMax"}, "which has kinks, and the solver is UMax"),
        ({"regularizer": "Lasso", "solver_name": "ConjugateGradients"}, "which has kinks, and the solver is Conjugate"),
        ({"solver_name": "ProximalNewton"}, "ProximalNewton needs a penalty with kinks"),
    ],
)
def test_what_does_not_go_together_is_refused(data, given, message):
    with pytest.raises(ValueError, match=message):
        SoftmaxGLM(**given).fit(*data)


def test_streams_need_a_ridge(data):
    with pytest.raises(ValueError, match="partial_fit takes a ridge or no penalty"):
        SoftmaxGLM(regularizer="Lasso").partial_fit(*data)


@pytest.mark.parametrize("strength", [3e-3, 3e-4])
def test_groups_of_features_that_nearly_repeat_each_other_are_fitted_in_few_steps(strength):
    """The models of the steps are minimised although they are almost flat in most directions."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1)) + 1e-3 * rng.normal(size=(300, 12))
    y = (X[:, :1] * rng.normal(size=6) + rng.gumbel(size=(300, 6))).argmax(axis=1)
    given = {"regularizer": "GroupLasso", "groups": np.arange(12) // 3, "regularizer_strength": strength}
    model = SoftmaxGLM(**given, max_epochs=60)
    assert model.fit(X, y).report_.status == Status.CONVERGED
    assert model.n_iter_ < 30
