"""SoftmaxGLM and MultinomialGLM from a user's point of view."""

import dataclasses
import pickle
import warnings

import jax
import numpy as np
import pandas as pd
import pynapple as nap
import pytest
import scipy.sparse as sp
from oracles import softmax as oracle
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

from glmfit import MultinomialGLM, SoftmaxGLM, Status
from glmfit.design import hstack
from glmfit.engine.classes.descent import ClassDescent
from glmfit.estimators import choose_class_solver
from glmfit.solvers import ImplicitSGD
from glmfit.stochastic import Pairs, SoftmaxProblem

N, D, K = 400, 3, 4
SAMPLERS = ("SampledSoftmax", "ImplicitSGD", "UMax", "SoftmaxProx", "SGD", "OVE", "NCE", "ImportanceSampling")


@pytest.fixture
def data(rng):
    X = rng.normal(size=(N, D))
    y = np.argmax(X @ rng.normal(size=(D, K)) * 1.5 + rng.gumbel(size=(N, K)), axis=1)
    return X, y


@pytest.fixture
def counts(rng):
    X = rng.normal(size=(N, D))
    p = softmax(X @ rng.normal(size=(D, K)), axis=1)
    return X, np.stack([rng.multinomial(n, q) for n, q in zip(rng.integers(0, 5, N), p, strict=True)])


def soft(**parameters):
    return SoftmaxGLM(**{"regularizer_strength": 1e-2, **parameters})


def mult(**parameters):
    return MultinomialGLM(**{"regularizer_strength": 1e-2, **parameters})


def test_labels_that_are_all_unknown_to_the_model_raise_a_warning(data):
    X, y = data
    model = soft().fit(X, y)
    with pytest.warns(UserWarning, match=r"knows none of the labels in y, .* y has '\d' first, the model 0 and 3 more"):
        assert model.score(X, y.astype(str)) == 0
    assert model.score(X, y + 1) < model.score(X, y)  # some are known; others are wrong, as in scikit-learn


def test_categories_in_another_order_are_neither_scored_nor_streamed(counts):
    X, Y = counts[0], pd.DataFrame(counts[1], columns=list("abcd"))
    model = mult().fit(X, Y)
    for use in (model.score, model.partial_fit):
        with pytest.raises(ValueError, match="column 0 of y is category 'd', but the model was fitted with 'a' there"):
            use(X, Y[list("dcba")])
    assert model.score(X, Y) == model.score(X, Y.to_numpy())


@pytest.mark.thorough
def test_no_gap_bound_exceeds_the_objective(data):
    X, y = data
    wild = X * [100, 1e-2, 1] + 100
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = soft(solver_name="ImplicitSGD", step=1e-3, max_epochs=2).fit(wild, y).report_
    assert report.gap_is_bound
    assert report.gap <= report.objective * (1 + 1e-10)


# --------------------------------------------------------------------------- scikit-learn conventions

EXPECTED = {
    SoftmaxGLM: {"check_estimators_pickle": "predicts labels for rows with NaN, which have none: that is an error"},
    MultinomialGLM: {"check_regressor_multioutput": "passes a normal y although the tag positive_only is set"},
}


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("cls", [SoftmaxGLM, MultinomialGLM])
def test_check_estimator_passes_except_for_the_expected_failures(cls):
    # The checks compare fits to 1e-7: tighter than the default tolerance, and than rounding allows at a weak ridge.
    model = cls(tol=1e-14, regularizer_strength=1.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*one (class|category) only")
        warnings.filterwarnings("ignore", message=".*categories have no counts")
        warnings.simplefilter("ignore", ConvergenceWarning)
        results = check_estimator(model, expected_failed_checks=EXPECTED[cls], on_fail=None, on_skip=None)
    wrong = {r["check_name"]: r["exception"] for r in results if r["status"] not in ("passed", "xfail", "skipped")}
    assert not wrong
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(EXPECTED[cls])
    assert len(results) > 40


def test_clone_and_pickle_keep_what_they_should(data):
    model = soft(solver_kwargs={"max_products": 50}, solver_name="BoundMajorization").fit(*data)
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(model), "coef_")
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(data[0]), model.predict(data[0]))


def test_unfitted_models_raise_not_fitted_error(data, tmp_path):
    X, y = data
    for use in (
        lambda m: m.predict(X), lambda m: m.predict_proba(X), lambda m: m.decision_function(X), lambda m: m.top_k(X),
        lambda m: m.score(X, y), lambda m: m.simulate(X), lambda m: m.save(tmp_path / "m"),
    ):  # fmt: skip
        with pytest.raises(NotFittedError):
            use(soft())


# ------------------------------------------------------------------------------------------- results


@pytest.mark.thorough
@pytest.mark.parametrize("solver", ["auto", "ConjugateGradients", "NewtonCG"])
def test_the_answer_matches_scikit_learn_up_to_the_gap(solver, data):
    X, y = data
    model = soft(solver_name=solver, tol=1e-9).fit(X, y)
    other = LogisticRegression(C=1 / (N * 1e-2), tol=1e-10, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), other.predict_proba(X), atol=1e-4)
    np.testing.assert_allclose(model.coef_.sum(axis=1), 0, atol=1e-9)
    report = model.report_
    assert report.converged and report.gap_is_bound and report.gap <= report.target
    assert report.solver_name == "ConjugateGradients"
    scores = X @ other.coef_.T + other.intercept_
    loss = -np.mean(log_softmax(scores, axis=1)[np.arange(N), y])
    assert report.objective <= loss + 5e-3 * np.sum(other.coef_**2) + report.gap + 1e-12
    assert report.pseudo_r2 == pytest.approx(model.score(X, y, score_type="pseudo-r2-McFadden"), abs=1e-10)
    assert "bound" in str(report) and "converged" in str(report)


@pytest.mark.thorough(cases=1)
@pytest.mark.filterwarnings("ignore:the fit has no useful bound")
@pytest.mark.parametrize("solver", SAMPLERS)
def test_every_sampling_solver_fits_and_reports(solver, data):
    X, y = data
    step = 0.02 if solver == "SGD" else 0.5  # SGD overflows otherwise
    model = soft(solver_name=solver, step=step, max_epochs=15, step_decay=0.8).fit(X, y)
    report = model.report_
    assert report.status in (Status.SCHEDULE_DONE, Status.NO_USEFUL_BOUND) and report.solver_name == solver
    assert report.step == step and not report.step_tuned
    exact = soft(tol=1e-9).fit(X, y)
    assert report.gap_is_bound and report.gap >= report.objective - exact.report_.objective
    assert report.objective < 0.9 * report.null_objective  # it has learned
    assert report.pseudo_r2 == pytest.approx(model.score(X, y, score_type="pseudo-r2-McFadden"), abs=1e-6)
    again = soft(solver_name=solver, step=step, max_epochs=15, step_decay=0.8).fit(X, y)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    other = soft(solver_name=solver, step=step, max_epochs=15, step_decay=0.8, random_state=1).fit(X, y)
    assert np.any(other.coef_ != model.coef_)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the fit has no useful bound")
def test_step_is_tuned_unless_given(data):
    report = soft(solver_name="UMax", max_epochs=3).fit(*data).report_
    assert report.step_tuned and report.step in report.steps_tried and len(report.steps_tried) > 1
    assert f"step c {report.step:.3g}, the best of " in str(report)
    known = soft(solver_name="ImplicitSGD", max_epochs=3).fit(*data).report_
    assert (known.step, known.step_tuned, known.steps_tried) == (0.1, True, ())
    given = soft(solver_name="ImplicitSGD", max_epochs=3, step=0.2).fit(*data).report_
    assert (given.step, given.step_tuned) == (0.2, False)


def test_predictions_agree_with_each_other_and_with_the_formula(data):
    X, y = data
    model = soft().fit(X, y)
    scores = X @ model.coef_ + model.intercept_
    np.testing.assert_allclose(model.decision_function(X), scores, rtol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(X), log_softmax(scores, axis=1), rtol=1e-10)
    np.testing.assert_allclose(model.predict_proba(X), softmax(scores, axis=1), rtol=1e-10)
    np.testing.assert_array_equal(model.predict(X), np.argmax(scores, axis=1))
    labels, probability = model.top_k(X, 3)
    np.testing.assert_array_equal(labels, np.argsort(-scores, axis=1)[:, :3])
    np.testing.assert_allclose(probability, -np.sort(-softmax(scores, axis=1), axis=1)[:, :3], rtol=1e-10)
    assert model.top_k(X, 99)[0].shape == (N, K)
    assert model.score(X, y) == np.mean(model.predict(X) == y)
    mean = np.mean(log_softmax(scores, axis=1)[np.arange(N), y])
    assert model.score(X, y, score_type="log-likelihood") == pytest.approx(mean)


def test_two_classes_have_one_decision_score_as_in_scikit_learn(data):
    X, y = data
    model = soft().fit(X, y > 1)
    assert model.classes_.tolist() == [False, True]
    difference = model.decision_function(X)
    assert difference.shape == (N,)
    np.testing.assert_array_equal(difference > 0, model.predict(X))
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-difference)), rtol=1e-9)


def test_simulated_labels_have_the_models_frequencies(data):
    X, y = data
    model = soft().fit(X, y)
    row = np.repeat(X[:1], 20_000, axis=0)
    drawn = model.simulate(row, random_state=3)
    share = np.bincount(drawn, minlength=K) / len(drawn)
    np.testing.assert_allclose(share, model.predict_proba(X[:1])[0], atol=0.015)
    np.testing.assert_array_equal(drawn, model.simulate(row, random_state=3))


# ------------------------------------------------------------------------------------------- inputs

LABELS = {
    "integers with holes": lambda y: y * 10 - 7,
    "whole floats": lambda y: y.astype(float),
    "strings": lambda y: np.array(["d", "a", "c", "b"])[y],
    "list of strings": lambda y: [["d", "a", "c", "b"][k] for k in y],
    "tuples": lambda y: [[("x", 1), ("x", 0), ("a", 2), ("b", 1)][k] for k in y],
    "mixed kinds": lambda y: [["left", 3, ("a",), frozenset({1})][k] for k in y],
    "bytes": lambda y: [[b"d", b"a", b"c", b"b"][k] for k in y],
    "categorical": lambda y: pd.Series(np.array(["d", "a", "c", "b"])[y], dtype="category"),
    "dates": lambda y: np.datetime64("2026-01-01") + y.astype("timedelta64[D]"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_may_be_of_any_hashable_type(kind, data, tmp_path):
    X, y = data
    labels = LABELS[kind](y)
    model, plain = soft(tol=1e-9).fit(X, labels), soft(tol=1e-9).fit(X, y)
    assert len(model.classes_) == K
    predicted = model.predict(X)
    truth = list(labels)
    assert model.score(X, labels) == plain.score(X, y)
    names = {k: truth[i] for k, i in enumerate(np.unique(y, return_index=True)[1])}
    right = sum(a == names[b] for a, b in zip(predicted.tolist() if kind != "dates" else predicted, plain.predict(X)))
    assert right == N
    if kind not in ("mixed kinds", "bytes"):
        again = SoftmaxGLM.load(model.save(tmp_path / "m"))
        assert again.classes_.tolist() == model.classes_.tolist()
    else:
        with pytest.raises(TypeError, match="classes_ holds"):
            model.save(tmp_path / "m")
        assert not list(tmp_path.iterdir())


@pytest.mark.thorough(cases=1)
@pytest.mark.filterwarnings("ignore:the fit has no useful bound")
@pytest.mark.parametrize("solver", ["ConjugateGradients", "ImplicitSGD", "UMax"])
def test_sparse_features_give_the_same_answer_as_dense_ones(solver, data, rng):
    X, y = data
    X = X * (rng.random(X.shape) < 0.5)
    X[3] = 0  # a row of zeros
    kwargs = {} if solver == "ConjugateGradients" else {"step": 1.0, "max_epochs": 5, "solver_kwargs": {"basis": "raw"}}
    dense = soft(solver_name=solver, tol=1e-10, **kwargs).fit(X, y)
    for make in (sp.csr_array, sp.csc_matrix, sp.coo_array, sp.lil_matrix):
        model = soft(solver_name=solver, tol=1e-10, **kwargs).fit(make(X), y)
        np.testing.assert_allclose(model.predict_proba(make(X)), dense.predict_proba(X), atol=2e-4)


@pytest.mark.thorough
def test_sparse_features_are_never_made_dense(rng, monkeypatch):
    X = sp.random_array((300, 50), density=0.05, format="csr", rng=rng)
    y = rng.integers(0, 5, 300)

    def refuse(self, *_, **__):
        raise AssertionError("made dense")

    monkeypatch.setattr(sp.csr_array, "toarray", refuse)
    monkeypatch.setattr(sp.csr_array, "todense", refuse)
    monkeypatch.setattr("glmfit.engine.classes.bounds._DENSE_HESSIAN", 0)
    for solver in ("ConjugateGradients", "ImplicitSGD", "UMax", "SoftmaxProx"):
        predicted = soft(solver_name=solver, step=0.03, max_epochs=20).fit(X, y).predict(X)
        assert predicted.shape == y.shape and np.isin(predicted, y).all()


def test_pandas_jax_and_lists_are_accepted(data):
    X, y = data
    expected = soft().fit(X, y).predict_proba(X)
    frame = pd.DataFrame(X, columns=list("abc"))
    model = soft().fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(model.predict_proba(frame), expected, atol=1e-9)
    np.testing.assert_allclose(soft().fit(X.tolist(), y.tolist()).predict_proba(X), expected, atol=1e-9)
    with jax.enable_x64(True):
        np.testing.assert_allclose(soft().fit(jax.numpy.array(X), jax.numpy.array(y)).coef_, model.coef_, atol=1e-6)


def test_pynapple_in_pynapple_out(data):
    X, y = data
    t = np.arange(N) * 0.02
    frame, labels = nap.TsdFrame(t=t, d=X, columns=["a", "b", "c"]), nap.Tsd(t=t, d=y)
    model = soft().fit(frame, labels)
    np.testing.assert_allclose(model.coef_, soft().fit(X, y).coef_, atol=1e-9)
    proba, predicted = model.predict_proba(frame), model.predict(frame)
    assert isinstance(proba, nap.TsdFrame) and list(proba.columns) == [0, 1, 2, 3]
    assert isinstance(predicted, nap.Tsd)
    np.testing.assert_allclose(predicted.t, t, rtol=0, atol=1e-9)  # pynapple rounds
    assert isinstance(soft().fit(frame, np.array(list("abcd"))[y]).predict(frame), np.ndarray)
    with pytest.raises(ValueError, match="times of X and y differ"):
        model.fit(nap.TsdFrame(t=t + 0.5, d=X), labels)


def test_rows_without_features_or_labels_are_dropped_and_counted(data):
    X, y = data
    Xn, yn = X.copy(), y.astype(float)
    Xn[5, 1], yn[7], yn[5] = np.nan, np.nan, np.nan
    keep = np.delete(np.arange(N), [5, 7])
    model = soft(tol=1e-10).fit(Xn, yn)
    assert model.report_.n_dropped == 2 and "2 with NaN" in str(model.report_)
    np.testing.assert_allclose(model.coef_, soft(tol=1e-10).fit(X[keep], y[keep]).coef_, atol=1e-6)
    named = [None if np.isnan(v) else "abcd"[int(v)] for v in yn]
    assert soft().fit(Xn, named).report_.n_dropped == 2
    assert np.isnan(model.predict_proba(Xn)[5]).all()
    with pytest.raises(ValueError, match="X or offset contains NaN in 1 rows; no label"):
        model.predict(Xn)
    assert model.score(Xn, yn) == pytest.approx(model.score(X[keep], y[keep]))


@pytest.mark.thorough
@pytest.mark.parametrize("solver", ["ConjugateGradients", "IncrementalMajorization"])
def test_weights_repeat_rows_and_offsets_shift_scores(solver, data, rng):
    X, y = data
    times = rng.integers(0, 3, N)
    weighted = soft(solver_name=solver, tol=1e-10).fit(X, y, sample_weight=times)
    repeated = soft(solver_name=solver, tol=1e-10).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=2e-4)
    # The true model is given as an offset, so nothing else is left to explain.
    truth = rng.normal(size=(D, K))
    labels = np.argmax(X @ truth + rng.gumbel(size=(N, K)), axis=1)
    model = soft(solver_name=solver, tol=1e-10).fit(X, labels, offset=X @ truth)
    assert np.abs(model.coef_).max() < 0.35 < np.abs(truth).max()
    shifted = model.predict_proba(X, offset=X @ truth)
    np.testing.assert_allclose(shifted, softmax(X @ model.coef_ + model.intercept_ + X @ truth, axis=1), rtol=1e-8)
    assert model.score(X, labels, offset=X @ truth) > model.score(X, labels)


def test_a_class_whose_rows_have_no_weight_has_probability_zero(data):
    X, y = data
    weight = (y != 2).astype(float)
    model = soft().fit(X, y, sample_weight=weight)
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert np.all(model.predict_proba(X)[:, 2] == 0)
    assert np.isfinite(model.coef_).all()


# ------------------------------------------------------------------------------------------- streams


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver", ["auto", "UMax"])
def test_stream_learns_from_every_batch(solver, data):
    X, y = data
    model = soft(solver_name=solver, step=1.0, regularizer_strength=1e-3)
    model.partial_fit(X[:50], y[:50], classes=range(K))
    first = model.score(X, y, score_type="log-likelihood")
    for _ in range(6):
        for start in range(0, N, 50):
            model.partial_fit(X[start : start + 50], y[start : start + 50])
    assert model._streamed[:2] == (49, 50 * 49)
    last = model.score(X, y, score_type="log-likelihood")
    assert last > first
    assert last > soft(regularizer_strength=1e-3).fit(X, y).score(X, y, score_type="log-likelihood") - 0.1
    assert model.report_.n_rows == 50


@pytest.mark.slow
def test_a_stream_continues_after_saving_and_loading(data, tmp_path):
    X, y = data
    model = soft(step=1.0).partial_fit(X[:100], y[:100])
    again = SoftmaxGLM.load(model.save(tmp_path / "m"))
    a, b = (m.partial_fit(X[100:], y[100:]).coef_ for m in (model, again))
    np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
def test_a_stream_refuses_invalid_input(data):
    X, y = data
    with pytest.raises(ValueError, match="partial_fit needs a solver that samples"):
        soft(solver_name="ConjugateGradients").partial_fit(X, y)
    model = soft(step=1.0).partial_fit(X, y)
    before = model.coef_.copy()
    with pytest.raises(ValueError, match=r"1 labels that the model does not know \(9\)"):
        model.partial_fit(X, np.where(y == 1, 9, y))
    with pytest.raises(ValueError, match="not named at the first"):
        model.partial_fit(X, y, classes=[0, 1, 77])
    with pytest.raises(ValueError, match="at least two classes"):
        soft().partial_fit(X, np.zeros(N, int))
    np.testing.assert_array_equal(model.coef_, before)


# --------------------------------------------------------------------------------------------- files


@pytest.mark.thorough
@pytest.mark.parametrize("solver", ["ConjugateGradients", "IncrementalMajorization", "ImplicitSGD"])
def test_saved_models_load_unchanged(solver, data, tmp_path):
    X, y = data
    model = soft(solver_name=solver, max_epochs=30, step=1.0, tol=1e-3).fit(pd.DataFrame(X, columns=list("abc")), y)
    again = SoftmaxGLM.load(model.save(tmp_path / "model"))
    frame = pd.DataFrame(X, columns=list("abc"))
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    assert str(again.report_) == str(model.report_)
    assert again.report_.status is model.report_.status
    assert again.get_params() == model.get_params()
    with pytest.raises(ValueError, match="holds a SoftmaxGLM"):
        MultinomialGLM.load(tmp_path / "model.npz")


# -------------------------------------------------------------------------------------------- counts


@pytest.mark.thorough(cases=2)
@pytest.mark.filterwarnings("ignore:the fit has no useful bound")
@pytest.mark.parametrize("solver", ["ConjugateGradients", "IncrementalMajorization", "ImplicitSGD"])
def test_counts_dense_and_sparse_give_one_answer(solver, counts):
    X, Y = counts
    kwargs = {"solver_name": solver, "tol": 1e-9, "step": 1.0, "max_epochs": 200 if solver != "ImplicitSGD" else 5}
    model = mult(**kwargs).fit(X, Y)
    assert model.report_.n_empty == np.sum(Y.sum(axis=1) == 0) > 0
    assert "without counts" in str(model.report_)
    for make in (sp.csr_array, sp.csc_array, sp.coo_matrix, sp.lil_array):
        np.testing.assert_allclose(mult(**kwargs).fit(X, make(Y)).coef_, model.coef_, atol=1e-6)
    assert mult(**kwargs).fit(X, sp.csr_array(Y)).score(X, sp.csr_array(Y)) == pytest.approx(model.score(X, Y))


def test_counts_equal_repeated_rows_of_labels(counts):
    X, Y = counts
    row, label = np.nonzero(Y)
    model = mult(tol=1e-10).fit(X, Y)
    # Repeat each row as often as it has counts; the mean over rows becomes one over counts.
    repeat = np.repeat(np.arange(len(row)), Y[row, label])
    n_rows = np.sum(Y.sum(axis=1) > 0)
    other = soft(tol=1e-10, regularizer_strength=1e-2 * n_rows / len(repeat)).fit(X[row][repeat], label[repeat])
    np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-5)


def test_multinomial_predictions_scores_and_draws(counts, rng):
    X, Y = counts
    model = mult(regularizer_strength=1e-3).fit(X, Y)
    p = softmax(X @ model.coef_ + model.intercept_, axis=1)
    np.testing.assert_allclose(model.predict(X), p, rtol=1e-9)
    np.testing.assert_allclose(model.predict(X, total=np.arange(N)), p * np.arange(N)[:, None], rtol=1e-9)
    from scipy.stats import multinomial

    kept = Y.sum(axis=1) > 0
    log = multinomial.logpmf(Y[kept], Y[kept].sum(axis=1), p[kept])
    assert model.score(X, Y, score_type="log-likelihood") == pytest.approx(log.mean())
    share = Y.sum(axis=0) / Y.sum()
    null = multinomial.logpmf(Y[kept], Y[kept].sum(axis=1), np.broadcast_to(share, p[kept].shape))
    full = multinomial.logpmf(Y[kept], Y[kept].sum(axis=1), Y[kept] / Y[kept].sum(axis=1, keepdims=True))
    assert model.score(X, Y) == pytest.approx(1 - (full - log).sum() / (full - null).sum())
    drawn = model.simulate(np.repeat(X[:1], 500, axis=0), np.full(500, 40))
    np.testing.assert_array_equal(drawn.sum(axis=1), 40)
    np.testing.assert_allclose(drawn.mean(axis=0) / 40, p[0], atol=0.02)


def test_multinomial_pynapple_and_names(counts, tmp_path):
    X, Y = counts
    t = np.arange(N) * 0.1
    frame = nap.TsdFrame(t=t, d=Y, columns=["u1", "u2", "u3", "u4"])
    model = mult().fit(nap.TsdFrame(t=t, d=X), frame)
    assert model.classes_.tolist() == ["u1", "u2", "u3", "u4"]
    shares = model.predict(nap.TsdFrame(t=t, d=X))
    assert isinstance(shares, nap.TsdFrame) and list(shares.columns) == ["u1", "u2", "u3", "u4"]
    again = MultinomialGLM.load(model.save(tmp_path / "m"))
    assert list(again.predict(nap.TsdFrame(t=t, d=X)).columns) == ["u1", "u2", "u3", "u4"]


@pytest.mark.slow
def test_multinomial_streams(counts):
    X, Y = counts
    model = mult(step=1.0, regularizer_strength=1e-3)
    for _ in range(5):
        model.partial_fit(X[:200], Y[:200]).partial_fit(X[200:], sp.csr_array(Y[200:]))
    assert model.score(X, Y) > 0.8 * mult(regularizer_strength=1e-3).fit(X, Y).score(X, Y)
    with pytest.raises(ValueError, match="3 categories but the model was fitted to 4"):
        model.partial_fit(X, Y[:, :3])


def test_a_category_without_counts_has_probability_zero(counts):
    X, Y = counts
    Y = np.insert(Y, 2, 0, axis=1)
    with pytest.warns(UserWarning, match="1 of 5 categories have no counts"):
        model = mult(tol=1e-10).fit(X, Y)
    assert np.all(model.predict(X)[:, 2] == 0)
    assert model.report_.gap_is_bound
    np.testing.assert_allclose(np.delete(model.coef_, 2, axis=1), mult(tol=1e-10).fit(*counts).coef_, atol=1e-6)


# ------------------------------------------------------------------------------------- awkward data


def test_a_single_class_is_certain_and_raises_a_warning(data):
    X, _ = data
    with pytest.warns(UserWarning, match="one class only"):
        model = soft().fit(X, ["a"] * N)
    assert model.predict_proba(X).tolist() == [[1.0]] * N
    assert set(model.predict(X)) == {"a"}
    assert "one class" in str(model.report_)


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("solver", ["ConjugateGradients", "BoundMajorization", "ImplicitSGD", "UMax"])
def test_few_rows_and_many_classes(solver, rng):
    X = rng.normal(size=(12, 2))
    y = np.r_[0, 0, np.arange(10)]  # ten classes, nine of one row, fewer rows than weights
    model = soft(solver_name=solver, step=1.0, max_epochs=200, solver_kwargs={"n_negatives": 50}
                 if solver in SAMPLERS else None).fit(X, y)  # fmt: skip
    assert np.isfinite(model.coef_).all()
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    assert model.report_.gap_is_bound
    if solver in ("ConjugateGradients", "BoundMajorization"):
        assert model.report_.converged


def test_separable_labels_without_a_ridge_have_no_optimum(rng):
    X = rng.normal(size=(80, 2))
    with pytest.warns(ConvergenceWarning, match="separable"):
        model = SoftmaxGLM(regularizer="UnRegularized").fit(X, X[:, 0] > 0)
    assert model.report_.status == Status.SEPARABLE
    assert model.score(X, X[:, 0] > 0) == 1


@pytest.mark.slow
def test_scores_of_ten_thousand_stay_finite(rng):
    X = rng.normal(size=(60, 2)) * 1e4
    y = (X[:, 0] > 0) + 0
    y[:3] = 1 - y[:3]  # not separable
    for solver in ("ConjugateGradients", "ImplicitSGD", "UMax", "SoftmaxProx"):
        model = SoftmaxGLM(
            regularizer_strength=1e-3, solver_name=solver, step=1e-3 if solver == "UMax" else 1.0, max_epochs=100
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y)
        assert np.isfinite(model.coef_).all()
        assert np.isfinite(model.predict_proba(X)).all()
    model.coef_ = np.array([[1.0, -1.0], [0.0, 0.0]])
    assert np.isfinite(model.predict_log_proba(X)).all()
    assert np.isfinite(model.score(X, y, score_type="log-likelihood"))


@pytest.mark.thorough
def test_overflow_is_a_status_with_advice_and_the_coefficients_stay_finite(data):
    X, y = data
    with pytest.warns(ConvergenceWarning, match="non finite"):
        model = SoftmaxGLM(solver_name="SGD", step=1e4, regularizer_strength=1e-6).fit(X * 100, y)
    assert model.report_.status == Status.NON_FINITE
    assert np.isfinite(model.coef_).all() and np.isfinite(model.predict_proba(X)).all()


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver", ["ConjugateGradients", "ImplicitSGD"])
def test_an_interrupted_fit_warns_and_leaves_a_usable_model(solver, data, monkeypatch):
    X, y = data
    cls, name, calls = (ImplicitSGD, "update", []) if solver == "ImplicitSGD" else (ClassDescent, "advance", [])
    once = getattr(cls, name)

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return once(self, *arguments)

    monkeypatch.setattr(cls, name, interrupted)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = soft(solver_name=solver, step=1.0, tol=1e-12).fit(X, y)
    assert model.report_.status == Status.INTERRUPTED
    assert 0 < np.abs(model.coef_).max() < np.inf
    assert model.report_.objective < model.report_.null_objective


@pytest.mark.slow
def test_the_auto_rule_depends_on_the_amount_of_work():
    def problem(n, d, k):
        X = np.broadcast_to(np.float32(0), (n, d))
        return SoftmaxProblem(X, Pairs(np.zeros(1, int), np.zeros(1, int), np.ones(1)), k, 1.0)

    assert choose_class_solver(problem(10_000, 50, 100)) == "ConjugateGradients"
    assert choose_class_solver(problem(20_000, 64, 10_000)) == "ConjugateGradients"
    assert choose_class_solver(problem(200_000, 64, 100_000)) == "SampledSoftmax"
    one = Pairs(np.zeros(1, int), np.zeros(1, int), np.ones(1))
    words = SoftmaxProblem(sp.random_array((2000, 50_000), density=0.1), one, 10**6, 1.0)
    assert choose_class_solver(words) == "ImplicitSGD"


# ----------------------------------------------------------------------------------------- bad input

BAD_LABELS = {
    "unhashable": (lambda y: [[1], [2, 3]] * (N // 2), ValueError, "sequences of different lengths"),
    "sets": (lambda y: [{k} for k in y], TypeError, "cannot be hashed"),
    "measurements": (lambda y: y + 0.25, ValueError, "measurements, not classes"),
    "infinite": (lambda y: np.where(y == 1, np.inf, y), ValueError, "infinity"),
    "too few": (lambda y: y[:-1], ValueError, "400 rows but y has 399"),
    "matrix": (lambda y: np.eye(K)[y], ValueError, "MultinomialGLM"),
    "sparse": (lambda y: sp.csr_array(np.eye(K)[y]), TypeError, "MultinomialGLM"),
    "none": (lambda y: None, ValueError, "y is None"),
    "all missing": (lambda y: np.full(N, np.nan), ValueError, "every row has a NaN"),
}


@pytest.mark.parametrize("kind", BAD_LABELS)
def test_bad_labels_raise_an_error_that_says_what_to_do(kind, data):
    X, y = data
    make, error, message = BAD_LABELS[kind]
    model = soft().fit(X, y)
    before = dict(vars(model))
    with pytest.raises(error, match=message):
        model.fit(X, make(y))
    assert vars(model) == before


BAD_COUNTS = {
    "negative": (lambda Y: Y - 1, ValueError, "negative counts .first at row"),
    "negative sparse": (lambda Y: sp.csr_array(Y - 1), ValueError, "negative counts .first at row 0, category"),
    "infinite": (lambda Y: np.where(Y == 1, np.inf, Y), ValueError, "infinity"),
    "labels": (lambda Y: Y[:, 0], ValueError, "use SoftmaxGLM"),
    "no category": (lambda Y: Y[:, :0], ValueError, "shape"),
    "all empty": (lambda Y: 0 * Y, ValueError, "no row without NaN has a count"),
    "too few": (lambda Y: Y[:-1], ValueError, "400 rows but y has 399"),
    "none": (lambda Y: None, ValueError, "y is None"),
    "words": (lambda Y: Y.astype(str), ValueError, "dtype"),
}


@pytest.mark.parametrize("kind", BAD_COUNTS)
def test_bad_counts_raise_an_error_that_says_what_to_do(kind, counts):
    X, Y = counts
    make, error, message = BAD_COUNTS[kind]
    with pytest.raises(error, match=message):
        mult().fit(X, make(Y))


def test_rows_with_nan_counts_are_dropped(counts):
    X, Y = counts
    Yn = Y.astype(float)
    Yn[3, 1] = np.nan
    for given in (Yn, sp.csr_array(Yn)):
        model = mult(tol=1e-10).fit(X, given)
        assert model.report_.n_dropped == 1
        np.testing.assert_allclose(
            model.coef_, mult(tol=1e-10).fit(np.delete(X, 3, 0), np.delete(Y, 3, 0)).coef_, atol=1e-6
        )


BAD_PARAMETERS = [
    ({"solver_name": "Adam"}, ValueError, "solver_name is 'Adam'"),
    ({"solver_name": "UMax", "solver_kwargs": {"deltas": 1}}, ValueError, "solver_kwargs of UMax may be"),
    ({"solver_kwargs": {"delta": 1}}, ValueError, "name the solver"),
    ({"solver_name": "UMax", "solver_kwargs": 3}, ValueError, "must be a dict"),
    ({"regularizer": "L1"}, ValueError, "must be one of 'UnRegularized', 'Ridge', 'Lasso'"),
    ({"regularizer": "UnRegularized", "regularizer_strength": 1.0}, ValueError, "with UnRegularized"),
    ({"regularizer_strength": -1}, ValueError, "one finite number of at least 0"),
    ({"regularizer_strength": [1, 2]}, ValueError, "one finite number of at least 0"),
    ({"tol": 0}, ValueError, "tol is 0"),
    ({"max_epochs": 0}, ValueError, "max_epochs is 0"),
    ({"step": "fast"}, ValueError, "step is 'fast'"),
    ({"step": -1.0}, ValueError, "step is -1.0"),
    ({"solver_name": "ImplicitSGD", "step": 1.0, "step_decay": 1.5}, ValueError, "decay is 1.5"),
    ({"random_state": "x"}, ValueError, "random_state is 'x'"),
    ({"solver_name": "UMax", "step": 200.0}, ValueError, "Use a shorter step"),
]


@pytest.mark.parametrize(("parameters", "error", "message"), BAD_PARAMETERS, ids=str)
def test_invalid_parameters_are_refused(parameters, error, message, data):
    with pytest.raises(error, match=message):
        soft(**parameters).fit(*data)


def test_a_removed_solver_raises_an_error_that_says_what_to_use(data):
    with pytest.raises(ValueError, match=r"solver_name is 'SAGA', which version 0.2 no longer has.*ConjugateGradients"):
        soft(solver_name="SAGA").fit(*data)


def test_other_bad_input_is_refused(data):
    X, y = data
    model = soft().fit(X, y)
    with pytest.raises(ValueError, match=r"labels that the model does not know \(7\)"):
        model.score(X, np.full(N, 7), score_type="log-likelihood")
    with pytest.warns(UserWarning, match="knows none of the labels in y"):
        assert model.score(X, np.full(N, 7)) == 0
    with pytest.raises(ValueError, match="score_type is 'r2'"):
        model.score(X, y, score_type="r2")
    with pytest.raises(ValueError, match="offset has shape"):
        model.predict(X, offset=np.zeros(N))
    with pytest.raises(ValueError, match="offset is infinite at row 0"):
        model.fit(X, y, offset=np.full((N, K), np.inf))
    for parameters, words in (
        ({"certify": "yes"}, "certify is 'yes'; it must be True or False"),
        ({"verbose": "yes"}, "verbose is 'yes'; it must be True or False"),
        ({"step_decay": 2}, r"step_decay is 2; it must be a number in \(0, 1\]"),
    ):
        with pytest.raises(ValueError, match=words):
            soft(**parameters).fit(X, y)
    with pytest.raises(ValueError, match="k is 0"):
        model.top_k(X, 0)
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, :2])
    sparse = sp.csr_array(X)
    sparse.data[3] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        model.fit(sparse, y)
    with pytest.raises(ValueError, match="sample_weight is zero on all rows"):
        model.fit(X, y, sample_weight=np.zeros(N))
    with pytest.raises(ValueError, match="sample_weight is -1"):
        model.fit(X, y, sample_weight=-np.ones(N))
    with pytest.raises(ValueError, match=r"total has shape \(2,\); it needs one number per row"):
        mult().fit(X, np.eye(K)[y]).predict(X, total=[1, 2])


# ---------------------------------------------------------------------------------------- found in reviews


def test_sparse_features_with_64_bit_indices_are_accepted():
    X = sp.csr_array((np.ones(6), np.array([2, 0, 0, 1, 1, 2]), np.array([0, 3, 6])), shape=(2, 3))
    assert X.indices.dtype == np.int64
    assert soft().fit(X, [0, 1]).classes_.tolist() == [0, 1]


@pytest.mark.slow
def test_a_stream_after_a_fit_that_missed_a_category_recovers_it(counts):
    X, Y = counts
    missing = Y.copy()
    missing[:, 3] = 0
    model = mult(regularizer_strength=1e-3)
    with pytest.warns(UserWarning, match="no counts"):
        model.fit(X, missing)
    for _ in range(10):
        model.partial_fit(X, Y)
    assert np.abs(model.intercept_).max() < 5
    assert model.score(X, Y) > 0.9 * mult(regularizer_strength=1e-3).fit(X, Y).score(X, Y)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["auto", "UMax", "SoftmaxProx", "OVE", "ImportanceSampling"])
@pytest.mark.parametrize("batch", [2000, 100])
def test_one_pass_of_a_stream_comes_near_the_fit(solver, batch, rng):
    X = rng.normal(size=(2000, 3))
    y = np.argmax(X @ (2 * rng.normal(size=(3, 3))) + rng.gumbel(size=(2000, 3)), axis=1)
    model = soft(regularizer_strength=1e-3, solver_name=solver)
    for start in range(0, 2000, batch):
        model.partial_fit(X[start : start + batch], y[start : start + batch], classes=[0, 1, 2])
    best = soft(regularizer_strength=1e-3).fit(X, y).score(X, y, score_type="pseudo-r2-McFadden")
    assert model.score(X, y, score_type="pseudo-r2-McFadden") > best - 0.15
    np.testing.assert_allclose(model.report_.class_totals, np.bincount(y))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the fit has no useful bound")
@pytest.mark.parametrize("minibatch", ["averaged", "jacobi", "dual", "newton"])
def test_minibatches_learn(minibatch, data):
    X, y = data
    kwargs = {"batch_size": 16, "minibatch": minibatch, "n_negatives": 3}
    model = soft(regularizer_strength=1e-3, solver_name="ImplicitSGD", solver_kwargs=kwargs, step=10.0, max_epochs=20)
    report = model.fit(X, y).report_
    assert report.objective < report.null_objective - 0.8 * (
        report.null_objective - soft(regularizer_strength=1e-3).fit(X, y).report_.objective
    )


@pytest.mark.thorough
@pytest.mark.parametrize("strength", [0.0, 1e-4, 1.0])
def test_saturated_rows_do_not_stop_newton(strength, data, rng):
    X, y = data
    offset = 300 * rng.normal(size=(N, K))
    model = SoftmaxGLM(regularizer_strength=strength).fit(X, y, offset=offset)
    assert model.report_.converged and model.report_.gap_is_bound


def assert_solved(X, y, offset, strength):
    """Check that the fit converged and that its bound holds, against an independent minimiser."""
    report = (
        SoftmaxGLM(regularizer_strength=strength, solver_name="ConjugateGradients").fit(X, y, offset=offset).report_
    )
    best = oracle.minimum(X, oracle.one_hot(y, int(y.max()) + 1), offset, strength)
    assert report.converged and report.gap_is_bound
    assert report.objective - best <= report.target
    assert report.objective - best <= report.gap + 1e-9 * abs(best)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_large_offsets_against_a_rare_class_do_not_stall_newton(seed):
    """Rows that are certain and wrong have no curvature; on two of these, Newton's steps alone make no progress."""
    rng = np.random.default_rng(seed)
    X, offset = rng.normal(size=(40, 1)), 30 * rng.normal(size=(40, 2))
    y = np.zeros(40, int)
    y[rng.integers(40)] = 1
    assert_solved(X, y, offset, 2e-3)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(k, marks=pytest.mark.thorough) for k in range(4, 12))])
def test_small_problems_are_solved_whatever_the_offsets(seed):
    rng = np.random.default_rng(seed)
    n, d, K = rng.integers(10, 80), rng.integers(1, 4), int(rng.integers(2, 7))
    length, strength = np.exp(rng.uniform(0, np.log(100))), 10 ** rng.uniform(-5, -1)
    X, offset, y = rng.normal(size=(n, d)), length * rng.normal(size=(n, K)), rng.integers(0, K, n)
    if seed % 2:
        offset *= np.exp(1.5 * rng.normal(size=(n, 1)))  # some rows have much larger offsets than others
    y[:K] = np.arange(K)
    assert_solved(X, y, offset, strength)


def test_missing_labels_of_every_kind_are_dropped(data):
    X, y = data
    text = pd.Series([pd.NA if i < 3 else str(k) for i, k in enumerate(y)], dtype="string")
    model = soft().fit(X, text)
    assert model.classes_.tolist() == ["0", "1", "2", "3"] and model.report_.n_dropped == 3
    dates = np.array(["2020-01-01", "NaT", "2022-01-01", "2023-01-01"], "M8[D]")[y]
    model = soft().fit(X, dates)
    assert len(model.classes_) == 3 and model.report_.n_dropped == np.sum(y == 1)
    with pytest.raises(ValueError, match="classes holds NaN or None"):
        soft().partial_fit(X, y, classes=[0, 1, 2, None])


def test_dates_in_another_unit_are_the_same_labels(data):
    X, y = data
    days = np.array(["2020-01-01", "2021-01-01", "2022-01-01", "2023-01-01"], "M8[D]")[y]
    model = soft().fit(X, days)
    assert model.score(X, days) == model.score(X, days.astype("M8[ns]")) == model.score(X, pd.Series(days)) > 0.4


def test_offsets_at_other_times_are_refused(counts):
    X, Y = counts
    t = np.arange(N) * 0.1
    with pytest.raises(ValueError, match="times of X and offset differ"):
        mult().fit(nap.TsdFrame(t=t, d=X), Y, offset=nap.TsdFrame(t=t + 50, d=np.zeros((N, K))))
    frame, late = nap.TsdFrame(t=t, d=X), nap.TsdFrame(t=t + 50, d=np.zeros((N, K)))
    model = mult().fit(X, Y)
    with pytest.raises(ValueError, match="times of X and offset differ"):
        model.predict(frame, offset=late)
    total = nap.Tsd(t=t + 50, d=np.ones(N, int))
    for ask in (model.predict, model.simulate):
        with pytest.raises(ValueError, match="times of X and total differ"):
            ask(frame, total)
    with pytest.raises(ValueError, match="total has entries that are not numbers"):
        model.predict(X, ["many"] * N)


def test_rows_with_a_nan_in_the_offset_are_dropped(data, counts):
    for model, (X, y) in ((soft(), data), (mult(), counts)):
        offset = np.zeros((N, K))
        offset[3, 1] = np.nan
        other = clone(model).fit(np.delete(X, 3, axis=0), np.delete(y, 3, axis=0), offset=np.zeros((N - 1, K)))
        model.fit(X, y, offset=offset)
        np.testing.assert_array_equal(model.coef_, other.coef_)
        assert model.report_.n_dropped == 1
        assert model.score(X, y, offset=offset) == other.score(np.delete(X, 3, axis=0), np.delete(y, 3, axis=0))


def test_huge_weights_are_accepted_and_huge_features_refused(data):
    X, y = data
    same = soft(tol=1e-9).fit(X, y, sample_weight=np.full(N, 1e308))
    np.testing.assert_allclose(same.coef_, soft(tol=1e-9).fit(X, y).coef_, rtol=1e-6)
    with pytest.raises(ValueError, match="whose squares cannot be summed; rescale them"):
        soft().fit(X * 1e160, y)


def test_the_bound_accounts_for_cancellation_in_the_scores(data):
    X, y = data
    far, near = soft().fit(X + 1e8, y), soft(tol=1e-12).fit(X, y)
    W, b = far.coef_.astype(np.longdouble), far.intercept_.astype(np.longdouble)
    scores = (X + 1e8).astype(np.longdouble) @ W + b
    scores -= scores.max(axis=1, keepdims=True)
    loss = np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(N), y]) + 5e-3 * np.sum(W**2)
    assert float(loss) - near.report_.objective + near.report_.gap <= far.report_.gap
    assert far.report_.gap < 1e-4


def test_warnings_point_at_the_users_line():
    X = np.random.default_rng(0).normal(size=(60, 2))
    two = np.arange(60) % 2
    cases = (
        lambda: SoftmaxGLM().fit(X, np.zeros(60)),
        lambda: SoftmaxGLM().fit(X, two[:, None]),
        lambda: MultinomialGLM().fit(X, np.column_stack([two, 1 - two, 0 * two])),
        lambda: SoftmaxGLM("UnRegularized").fit(X, X[:, 0] > 0),  # separable
    )
    for case in cases:
        with pytest.warns(Warning) as caught:
            case()
        assert [w.filename for w in caught] == [__file__]


SAMPLING = ("SampledSoftmax", "ImplicitSGD", "UMax", "SoftmaxProx", "SGD", "OVE", "NCE", "ImportanceSampling")


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver", SAMPLING)
def test_one_row_of_counts_is_fitted_without_trials(solver):
    X, Y = np.array([[1.0, -1.0]]), np.array([[1.0, 2.0, 3.0]])
    with pytest.warns(ConvergenceWarning, match="did not improve on class frequencies"):  # they are the optimum here
        model = MultinomialGLM(solver_name=solver, max_epochs=200).fit(X, Y)
    assert np.all(np.isfinite(model.coef_)) and np.argmax(model.predict(X)) == 2
    assert model.report_.step <= 1


@pytest.mark.slow
def test_a_new_fit_forgets_the_stream_before_it():
    rng = np.random.default_rng(0)
    X, three, four = rng.normal(size=(200, 2)), rng.integers(0, 3, 200), rng.integers(0, 4, 200)
    model = SoftmaxGLM(regularizer_strength=1e-2).partial_fit(X, three, classes=[0, 1, 2])
    model.fit(X, four)
    assert not hasattr(model, "_streamed")
    model.partial_fit(X, four)
    assert model._streamed[:2] == (1, 200)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(
    "model",
    [
        SoftmaxGLM(solver_name="OVE", step=1000.0, max_epochs=5, regularizer_strength=0.0),
        SoftmaxGLM(solver_name="ImplicitSGD", step=1e6, step_decay=1.0, max_epochs=3, regularizer_strength=0.0),
    ],
    ids=["biased", "implicit"],
)
def test_a_fit_that_ends_worse_than_class_frequencies_returns_those_and_warns(model):
    rng = np.random.default_rng(0)
    X, y = 1e4 * rng.normal(size=(300, 3)), rng.integers(0, 4, 300)
    with pytest.warns(ConvergenceWarning, match="the fit did not improve on class frequencies"):
        model.fit(X, y)
    assert model.report_.objective == pytest.approx(model.report_.null_objective)
    assert np.all(model.coef_ == 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the fit did not improve")  # counts do not depend on the features
def test_trials_continue_to_shorter_steps_while_those_are_best():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    Y = rng.multinomial(1000, np.exp([0.5, 0.1, 0.2]) / np.exp([0.5, 0.1, 0.2]).sum(), size=400) * 1e2
    model = MultinomialGLM(solver_name="UMax", regularizer_strength=0.0, max_epochs=10).fit(X, Y)
    assert model.report_.step < 1e-3
    assert model.report_.objective <= model.report_.null_objective * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the fit has no useful bound")
def test_rows_are_counted_correctly_if_the_batch_is_larger():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(150, 2)), rng.integers(0, 3, 150)
    kwargs = {"batch_size": 1000}
    model = SoftmaxGLM(solver_name="ImplicitSGD", solver_kwargs=kwargs, step=1.0, max_epochs=4).fit(X, y)
    assert model.report_.row_evals == 600


def test_labels_that_would_change_in_a_file_are_refused(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 2))
    for labels in ((int, str), (range(2), range(3))):
        y = np.empty(40, object)
        y[:] = [labels[i % 2] for i in range(40)]
        with pytest.raises(TypeError, match="classes_ holds"):
            SoftmaxGLM().fit(X, y).save(tmp_path / "labels")


def test_files_with_inconsistent_parts_are_refused(tmp_path):
    import json

    X = np.random.default_rng(0).normal(size=(40, 2))
    path = SoftmaxGLM().fit(X, np.arange(40) % 3).save(tmp_path / "model")
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(arrays["header"].tobytes().decode())
    wrong_status = json.dumps({**header, "report": {**header["report"], "status": 99}})
    for changed in (
        {"coef": arrays["coef"][:, :2]},
        {"header": np.frombuffer(wrong_status.encode(), np.uint8)},
    ):
        np.savez(tmp_path / "other.npz", **{**arrays, **changed})
        with pytest.raises(ValueError, match=r"other\.npz is not a complete SoftmaxGLM"):
            SoftmaxGLM.load(tmp_path / "other.npz")


@pytest.mark.parametrize(
    "make_it, message",
    [
        (
            lambda X, y: SoftmaxGLM(solver_name="UMax", step_decay=2.0).fit(X, y),
            r"step_decay is 2.0; it must be a number",
        ),
        (lambda X, y: MultinomialGLM().fit(X, np.full((60, 3), 1e307)), r"y has values up to 1.0e\+307"),
        (
            lambda X, y: SoftmaxGLM(solver_name="UMax", solver_kwargs={"alpha": np.array([0, 1])}).fit(X, y),
            "alpha is array",
        ),
        (
            lambda X, y: SoftmaxGLM(solver_name="ImplicitSGD", solver_kwargs={"alpha": np.array([0, 1])}).fit(X, y),
            "alpha is array",
        ),
        (
            lambda X, y: SoftmaxGLM(solver_name="UMax", solver_kwargs={"bounded": "no"}).fit(X, y),
            "bounded is 'no'; it must be True or False",
        ),
    ],
)
def test_invalid_hyper_parameters_and_huge_counts_are_refused(make_it, message):
    X = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.raises(ValueError, match=message):
        make_it(X, np.arange(60) % 3)


@pytest.mark.thorough
def test_a_sampled_fit_warns_that_it_gained_nothing():
    """Features far from 0 make the steps of samplers tiny; the fit is no better than frequencies."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 8))
    y = np.argmax(X @ rng.normal(size=(8, 200)) + rng.gumbel(size=(3000, 200)), axis=1)
    model = SoftmaxGLM(regularizer_strength=1e-6, solver_name="ImplicitSGD", max_epochs=2, certify=False)
    model.set_params(solver_kwargs={"basis": "raw"})
    assert model.fit(X, y).report_.status == Status.SCHEDULE_DONE
    with pytest.warns(ConvergenceWarning, match="the fit did not improve on class frequencies"):
        model.fit(X + 1000, y)
    assert model.report_.status == Status.NO_GAIN


@pytest.mark.thorough
@pytest.mark.parametrize("step, advice", [(1e-7, "give a longer step or more epochs"), (1e3, "give a shorter step")])
def test_a_fit_without_gain_says_whether_the_step_was_too_long_or_too_short(data, tmp_path, step, advice):
    X, y = data
    model = SoftmaxGLM(solver_name="ImplicitSGD", regularizer_strength=1e-4, step=step, max_epochs=1)
    with pytest.warns(ConvergenceWarning, match=rf"the first was {step:g}, as given.*{advice}"):
        model.fit(X, y)
    model.save(tmp_path / "model.npz")
    assert SoftmaxGLM.load(tmp_path / "model.npz").report_.advice == model.report_.advice


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["far", "uneven", "sparse"])
def test_a_sampled_fit_warns_that_features_are_not_standardised(kind):
    """An exact fit ends where it would with standardised features; sampled steps lose most of the gain."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 10))
    y = np.argmax(X @ rng.normal(size=(10, 10)) / 2 + rng.gumbel(size=(500, 10)), axis=1)
    raw = X + 100 if kind == "far" else 10.0 ** np.linspace(-3, 3, 10) * X
    raw = sp.csr_array(raw) if kind == "sparse" else raw
    model = SoftmaxGLM(solver_name="SoftmaxProx", regularizer_strength=1e-4, certify=False, step=1.0, max_epochs=2)
    model.set_params(solver_kwargs={"basis": "raw"}, step=1.0)
    said = ("columns far from 0 or of very different scales", "Centre X and scale it")  # some gain, none
    for features, expected in ((X, False), (raw, True)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(features, y)
        assert any(words in str(warning.message) for warning in caught for words in said) == expected
    for others in ({"solver_kwargs": None, "step": "tune"}, {"solver_name": "ConjugateGradients", "max_epochs": None}):
        model.set_params(**others).fit(raw, y)  # no warning


@pytest.mark.thorough
def test_a_stream_is_not_judged_by_one_batch(data):
    X, y = data
    model = soft(solver_name="UMax")
    for start in range(0, N, 50):
        model.partial_fit(X[start : start + 50], y[start : start + 50], classes=range(K))
        assert model.report_.status == Status.SCHEDULE_DONE


def test_advice_names_solvers_that_models_of_classes_have():
    """The advice for populations, "Newton", does not name a solver here."""
    for status in Status:
        report = soft().fit([[0.0], [3.0], [1.0]], [0, 1, 0]).report_
        assert '"Newton"' not in dataclasses.replace(report, status=status)._advice(status)


@pytest.mark.thorough
def test_a_sampled_fit_warns_that_its_bound_is_useless():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 5))
    y = np.argmax(X @ rng.normal(size=(5, 10)) + rng.gumbel(size=(500, 10)), axis=1)
    model = SoftmaxGLM(regularizer_strength=1e-6, solver_name="ImplicitSGD", max_epochs=2)
    with pytest.warns(ConvergenceWarning, match="the fit has no useful bound"):
        model.fit(X, y)
    report = model.report_
    assert report.status == Status.NO_USEFUL_BOUND and report.relative_gap > 1
    assert "no useful bound" in str(report)


def test_a_parameter_of_the_estimator_is_not_a_hyper_parameter_of_its_solver():
    own = r" step is a parameter of the estimator: pass it there\."
    for name, advice in (("step", own), ("steps", "")):
        with pytest.raises(ValueError, match=rf"of SGD may be n_negatives, .*, and not '{name}'\.{advice}$"):
            SoftmaxGLM(solver_name="SGD", solver_kwargs={name: 1}).fit([[0.0], [3.0], [1.0]], [0, 1, 0])


def test_one_category_leaves_nothing_to_fit():
    with pytest.warns(UserWarning, match="one category only"):
        MultinomialGLM().fit(np.arange(20.0)[:, None], np.ones((20, 1)))


def test_a_model_is_saved_at_the_given_path_or_not_at_all(tmp_path):
    model = SoftmaxGLM().fit(np.arange(20.0)[:, None], np.arange(20) % 2)
    with pytest.raises(
        ValueError, match=r"m\.pkl: models are saved as \.npz files, not as '\.pkl'\. Give .*m\.pkl\.npz'"
    ):
        model.save(tmp_path / "m.pkl")
    with pytest.raises(ValueError, match=r"not as '\.1'\. Give .*m_v0\.1\.npz'"):
        model.save(tmp_path / "m_v0.1")
    with pytest.raises(
        TypeError, match=r"path is 3, of type int; it must be a str or pathlib\.Path, such as 'model\.npz'"
    ):
        model.save(3)
    for folder in (tmp_path, f"{tmp_path}/new/"):
        with pytest.raises(ValueError, match="it is a folder"):
            model.save(folder)
    assert not list(tmp_path.iterdir()) and not tmp_path.with_suffix(".npz").exists()
    assert model.save(tmp_path / "m") == tmp_path / "m.npz"


# ------------------------------------------------------------- sampling with default settings


def hard(rng, K=5, n=400):
    """Features far from 0, of very different sizes, and correlated."""
    Z = rng.normal(size=(n, 4))
    y = np.argmax(2 * Z @ rng.normal(size=(4, K)) + rng.gumbel(size=(n, K)), axis=1)
    return Z @ np.array([[1, 1, 0, 0], [0, 0.1, 0, 0], [0, 0, 1e3, 0], [0, 0, 0, 1e-3]]) + 100, y


@pytest.mark.thorough
@pytest.mark.parametrize("solver", ["ImplicitSGD", "UMax"])
def test_sampling_solvers_come_near_the_optimum_with_default_settings(solver, rng):
    X, y = hard(rng)
    exact = SoftmaxGLM(regularizer_strength=1e-4).fit(X, y).report_
    report = SoftmaxGLM(regularizer_strength=1e-4, solver_name=solver).fit(X, y).report_
    assert report.objective - exact.objective < 0.05 * (exact.null_objective - exact.objective)
    assert (solver == "UMax") == bool(report.steps_tried) == ("the best of" in str(report))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver", ["auto", "ImplicitSGD", "UMax", "BoundMajorization"])
def test_fit_intercept_false_gives_no_intercepts(solver, rng):
    X, y = hard(rng)
    X = (X - X.mean(axis=0)) / X.std(axis=0) + 0.3
    kwargs = {"solver_name": solver, "fit_intercept": False, "tol": 1e-9, "certify": False}
    model = SoftmaxGLM(regularizer_strength=1e-3, **kwargs).fit(X, y)
    assert not model.intercept_.any()
    theirs = LogisticRegression(C=1e3 / len(X), fit_intercept=False, tol=1e-9, max_iter=1000).fit(X, y)
    tolerance = 1e-3 if solver in ("auto", "BoundMajorization") else 0.3
    np.testing.assert_allclose(model.coef_.T, theirs.coef_ - theirs.coef_.mean(axis=0), atol=tolerance)


@pytest.mark.thorough
def test_variables_may_be_kept_within_their_bounds(rng):
    """The projections of the paper need a model without intercepts."""
    X, y = hard(rng)
    kwargs = {
        "solver_name": "UMax",
        "regularizer_strength": 1.0,
        "fit_intercept": False,
        "step": 1e-3,
        "certify": False,
    }
    free, held = (
        SoftmaxGLM(**kwargs, solver_kwargs={"bounded": bounded}).fit((X - 100) * 50, y) for bounded in (False, True)
    )
    assert np.isfinite(held.coef_).all() and np.linalg.norm(held.coef_) <= np.sqrt(2 * np.log(5)) + 1e-6
    assert free.report_.objective >= held.report_.objective - 1e-2


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver", ["ImplicitSGD", "UMax"])
def test_early_stopping_predicts_new_rows_better_than_the_optimum_of_a_weak_ridge(solver, rng):
    W = rng.normal(size=(40, 4)) / 6
    X = rng.normal(size=(1200, 40))
    y = np.argmax(X @ W + rng.gumbel(size=(1200, 4)), axis=1)
    loss = {}
    for stopped in (False, True):
        model = SoftmaxGLM(
            regularizer_strength=1e-8, solver_name=solver, early_stopping=stopped, max_epochs=60, step_decay=0.95,
            certify=False,
        )  # fmt: skip
        model.fit(X[:200], y[:200])
        loss[stopped] = -model.score(X[200:], y[200:], score_type="log-likelihood")
        assert (model.report_.epochs < 60) == stopped
    assert loss[True] < 0.7 * loss[False]


def test_early_stopping_and_intercepts_are_flags(rng):
    X, y = hard(rng)
    with pytest.raises(ValueError, match="early_stopping is 3; it must be True or False"):
        SoftmaxGLM(early_stopping=3, solver_name="UMax").fit(X, y)
    with pytest.raises(ValueError, match="fit_intercept is 'no'; it must be True or False"):
        SoftmaxGLM(fit_intercept="no").fit(X, y)
    with pytest.raises(ValueError, match=r"auxiliary_step is 0; it must be a finite number above 0\. None is that of"):
        SoftmaxGLM(solver_name="UMax", solver_kwargs={"auxiliary_step": 0}).fit(X, y)


def test_the_double_sum_at_a_fit_equals_its_objective_and_has_no_slope(rng):
    X, y = hard(rng, K=3)
    model = SoftmaxGLM(regularizer_strength=1e-2, tol=1e-9).fit(X, y)
    found = model.double_sum(X, y)
    assert found.value == pytest.approx(model.report_.objective, rel=1e-9)
    np.testing.assert_allclose(found.gradient.intercept, 0, atol=1e-5)
    assert model.double_sum(X, y, found.auxiliary + 0.1, alpha=0.0).value > found.value
    counts = np.eye(3)[y] * 2
    multinomial = MultinomialGLM(regularizer_strength=1e-2, tol=1e-9).fit(X, counts)
    assert multinomial.double_sum(X, counts, alpha=1.0).value == pytest.approx(multinomial.report_.objective, rel=1e-9)


@pytest.mark.thorough
def test_an_estimated_objective_has_a_standard_error(rng, monkeypatch):
    monkeypatch.setattr("glmfit.estimators.class_fit._CERTIFIABLE", 9_999)
    X, y = hard(rng, n=2000)
    model = SoftmaxGLM(solver_name="ImplicitSGD", regularizer_strength=1e-3).fit(X, y)
    report, truth = model.report_, model.double_sum(X, y).value
    assert 0 < report.objective_error < 0.2 and abs(report.objective - truth) < 4 * report.objective_error
    assert "of some rows, standard error" in str(report) and not report.gap_is_bound
    whole = model.set_params(solver_name="auto").fit(X, y).report_
    assert whole.objective_error == 0 and "standard error" not in str(whole)


def test_a_stream_refuses_a_spectral_basis(data):
    X, y = data
    model = SoftmaxGLM(solver_name="UMax", solver_kwargs={"basis": "spectral"}, regularizer_strength=1e-3)
    with pytest.raises(ValueError, match=r'basis is "spectral" with partial_fit.*use "raw"'):
        model.partial_fit(X, y, classes=range(K))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver", ["ImplicitSGD", "UMax"])
def test_early_stopping_costs_little_if_nothing_overfits(solver, rng):
    X = rng.normal(size=(2500, 8))
    S = X @ rng.normal(size=(8, 20))
    y = np.argmax(S + rng.gumbel(size=S.shape), axis=1)
    loss = {}
    for stopped in (False, True):
        model = SoftmaxGLM(regularizer_strength=1e-4, solver_name=solver, early_stopping=stopped, certify=False)
        model.fit(X[:1500], y[:1500])
        loss[stopped] = -model.score(X[1500:], y[1500:], score_type="log-likelihood")
    assert loss[True] < 1.03 * loss[False]


@pytest.mark.parametrize("unseen", [0, 2])
def test_rows_of_classes_unseen_in_the_fit_have_no_likelihood(unseen, rng):
    X, y = hard(rng, K=3)
    model = SoftmaxGLM(regularizer_strength=1e-2).fit(X, y, sample_weight=(y != unseen).astype(float))
    seen = y != unseen
    for evaluate in (
        lambda X, y: model.double_sum(X, y).value,
        lambda X, y: model.score(X, y, score_type="log-likelihood"),
        lambda X, y: model.score(X, y, score_type="pseudo-r2-McFadden"),
    ):
        assert np.isfinite(evaluate(X[seen], y[seen]))
        with pytest.raises(ValueError, match=rf"y has rows or counts of \[{unseen}\], which had none in the fit"):
            evaluate(X, y)
    assert model.double_sum(X[seen], y[seen]).value == pytest.approx(model.report_.objective, rel=1e-6)
    counts = np.eye(3)[y]
    shares = MultinomialGLM(regularizer_strength=1e-2)
    with pytest.warns(UserWarning, match="no counts"):
        shares.fit(X, counts * (np.arange(3) != unseen))
    for evaluate in (shares.score, shares.double_sum):
        with pytest.raises(ValueError, match=rf"y has rows or counts of \[{unseen}\], which had none in the fit"):
            evaluate(X, counts)


@pytest.mark.thorough
@pytest.mark.parametrize("solver", ["ImplicitSGD", "UMax", "SoftmaxProx"])
def test_features_far_from_zero_are_no_harder_than_features_near_zero(solver, rng):
    X, y = hard(rng, n=600, K=4)
    missed = []
    for shift in (0.0, 1e8):
        exact = SoftmaxGLM(regularizer_strength=1e-2).fit(X, y).report_  # the same model, wherever the features are
        model = SoftmaxGLM(regularizer_strength=1e-2, solver_name=solver, certify=False).fit(X + shift, y)
        missed.append((model.report_.objective - exact.objective) / (exact.null_objective - exact.objective))
    assert abs(missed[1] - missed[0]) < 2e-3, missed


def test_a_constant_feature_may_be_the_only_intercept(rng):
    X, y = hard(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SoftmaxGLM(regularizer_strength=1e-2, fit_intercept=False).fit(np.column_stack([X, np.ones(len(X))]), y)


@pytest.mark.thorough
def test_small_shares_are_fitted_as_well_as_counts(rng):
    X, y = hard(rng, K=3)
    counts = rng.multinomial(5, [0.2, 0.3, 0.5], size=len(X)) + 2.0 * np.eye(3)[y]
    one = MultinomialGLM(regularizer_strength=1e-3).fit(X, counts)
    small = MultinomialGLM(regularizer_strength=1e-9).fit(X, 1e-6 * counts)
    np.testing.assert_allclose(small.coef_, one.coef_, atol=1e-2 * np.abs(one.coef_).max())
    few = MultinomialGLM(regularizer_strength=1e-9, solver_name="UMax", certify=False).fit(X, 1e-6 * counts)
    learnt, least = small.report_.null_objective - small.report_.objective, small.report_.objective
    assert few.report_.objective - least < 0.05 * learnt
    with pytest.raises(ValueError, match=r"to sample classes they must lie between 1e-15 and 1e\+15"):
        MultinomialGLM(solver_name="ImplicitSGD").fit(X, 1e60 * counts)
    weight = np.where(np.arange(len(X)) < 10, 1e-30, 1.0)  # practically the same as dropping those rows
    weighted = SoftmaxGLM(solver_name="ImplicitSGD", certify=False).fit(X, y, sample_weight=weight)
    assert weighted.report_.objective < np.log(3)
    with pytest.raises(ValueError, match=r"total is 1e\+30 in a row; at most"):
        one.simulate(X, np.full(len(X), 1e30))


@pytest.mark.parametrize("solver", ["ConjugateGradients", "BoundMajorization"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_a_fit_may_start_where_another_ended(solver, fit_intercept, data):
    X, y = data
    given = {"regularizer_strength": 1e-3, "solver_name": solver, "fit_intercept": fit_intercept}
    plain = SoftmaxGLM(**given).fit(X, y)
    again = SoftmaxGLM(**given).fit(X, y, init_params=(plain.coef_, plain.intercept_))
    assert again.report_.converged and again.report_.gap_is_bound and again.n_iter_ < plain.n_iter_
    assert abs(again.report_.objective - plain.report_.objective) <= plain.report_.gap + again.report_.gap + 1e-12


def test_a_start_worse_than_class_frequencies_is_ignored(data):
    X, y = data
    plain = SoftmaxGLM(regularizer_strength=1e-3).fit(X, y)
    for start in ((1e6 * plain.coef_, plain.intercept_), (np.full_like(plain.coef_, np.nan), plain.intercept_)):
        again = SoftmaxGLM(regularizer_strength=1e-3).fit(X, y, init_params=start)
        np.testing.assert_array_equal(again.coef_, plain.coef_)
        assert again.n_iter_ == plain.n_iter_


def test_an_invalid_start_is_refused(data):
    X, y = data
    with pytest.raises(ValueError, match=r"init_params has shapes .*; it must be \(coef, intercept\) of shapes"):
        SoftmaxGLM().fit(X, y, init_params=(np.zeros((1, 1)), np.zeros(1)))
    plain = SoftmaxGLM(regularizer_strength=1e-3).fit(X, y)
    model = SoftmaxGLM(solver_name="ImplicitSGD")
    with pytest.raises(ValueError, match=r"the solver is ImplicitSGD, which samples; it needs one of 'Conjugate"):
        model.fit(X, y, init_params=(plain.coef_, plain.intercept_))
    assert not hasattr(model, "coef_")


def test_coefficients_are_a_frame_of_named_features_and_classes(data, counts):
    X, y = data
    names = [f"f{k}" for k in range(X.shape[1])]
    model = SoftmaxGLM().fit(pd.DataFrame(X, columns=names), y)
    frame = model.coef_frame()
    assert [*frame.index] == [*names, "intercept"] and [*frame.columns] == [*model.classes_]
    np.testing.assert_array_equal(frame.to_numpy(), np.vstack([model.coef_, model.intercept_]))
    several = np.empty(len(y), object)
    several[:] = [("place", int(label)) for label in np.unique(y, return_inverse=True)[1]]
    assert SoftmaxGLM().fit(X, several).coef_frame().columns[0] == ("place", 0)  # labels may be tuples
    assert MultinomialGLM().fit(*counts[:2]).coef_frame().shape == (counts[0].shape[1] + 1, counts[1].shape[1])
    with pytest.raises(NotFittedError):
        SoftmaxGLM().coef_frame()


@pytest.mark.parametrize("method", ["fit", "score", "predict"])
def test_rows_that_are_read_when_needed_are_refused(method, rng):
    """Neither columns without names nor what scikit-learn says of scalars hides what to do."""
    X, y = rng.normal(size=(60, 2)), np.arange(60) % 3
    model, source = SoftmaxGLM().fit(X, y), hstack([X])
    with pytest.raises(TypeError, match=r"load them: X\.to_array\(\)"):
        getattr(model, method)(*(source, y)[: 1 if method == "predict" else 2])
