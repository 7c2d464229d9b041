"""SoftmaxGLMCV and MultinomialGLMCV: every fit matches a separate one, scores are held out, choices are right."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from oracles import softmax as oracle
from scipy.special import gammaln, log_softmax, softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.utils.estimator_checks import check_estimator

from glmfit import MultinomialGLM, MultinomialGLMCV, SoftmaxGLM, SoftmaxGLMCV, Status, plotting
from glmfit.engine.classes import ClassRun
from glmfit.engine.classes.descent import ClassDescent
from glmfit.estimators.class_cv.fits import default_strengths
from glmfit.stochastic import SoftmaxProblem

# Few strengths are tried here, so the best is often at an end; sampled fits are short.
pytestmark = pytest.mark.filterwarnings("ignore:the best strength", "ignore:the fit has no useful bound")
N, D, K = 120, 5, 4
STRENGTHS = [1e-4, 1e-2, 1.0]
TIGHT = {"strengths": STRENGTHS, "cv_tol": 1e-13, "tol": 1e-10}
BLOCKS = [(np.flatnonzero(np.arange(N) * 3 // N != f), np.flatnonzero(np.arange(N) * 3 // N == f)) for f in range(3)]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) @ (np.eye(D) + 0.3) + 1
    return X, np.argmax(X[:, :K] * 1.2 + rng.gumbel(size=(N, K)), axis=1)


@pytest.fixture(scope="module")
def counts(data):
    rng = np.random.default_rng(1)
    p = softmax(data[0] @ rng.normal(size=(D, K)) * 0.5, axis=1)
    return np.stack([rng.multinomial(n, q) for n, q in zip(rng.integers(1, 6, N), p, strict=True)])


@pytest.fixture(scope="module")
def fitted(data):
    return SoftmaxGLMCV(**TIGHT, cv=3).fit(*data)


# ---------------------------------------------------------------------------------------- oracles


@pytest.mark.thorough
def test_scores_match_newtons_method_in_numpy(data, fitted):
    X, y = data
    wide, Y = np.column_stack([X, np.ones(N)]), oracle.one_hot(y, K)
    for s, strength in enumerate(STRENGTHS):
        for f, (train, test) in enumerate(BLOCKS):
            W, _ = oracle.newton(wide[train], Y[train], strength=strength)
            score = -oracle.nll(W, wide[test], Y[test]) / len(test)
            assert fitted.cv_scores_[s, f] == pytest.approx(score, abs=1e-6)
    assert fitted.cv_converged_.all() and fitted.cv_gap_is_bound_.all() and fitted.cv_gap_.shape == (3, 3)


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_and_the_last_fit_match_separate_models_and_scikit_learn(data, fitted, weighted):
    X, y = data
    w = np.random.default_rng(2).uniform(0.2, 2, N) if weighted else np.ones(N)
    model = SoftmaxGLMCV(**TIGHT, cv=3).fit(X, y, w) if weighted else fitted
    for s, strength in enumerate(STRENGTHS):
        train, test = BLOCKS[s]  # a different fold for every strength
        alone = SoftmaxGLM(regularizer_strength=strength, tol=1e-12).fit(X[train], y[train], w[train])
        score = alone.score(X[test], y[test], w[test], score_type="log-likelihood")
        assert model.cv_scores_[s, s] == pytest.approx(score, abs=1e-6)
        theirs = LogisticRegression(C=1 / (strength * w[train].sum()), tol=1e-10, max_iter=2000)
        log_p = theirs.fit(X[train], y[train], w[train]).predict_log_proba(X[test])
        score = np.average(log_p[np.arange(len(test)), y[test]], weights=w[test])
        assert model.cv_scores_[s, s] == pytest.approx(score, abs=1e-6)
    again = SoftmaxGLM(regularizer_strength=model.strength_, tol=1e-10).fit(X, y, w)
    np.testing.assert_allclose(model.coef_, again.coef_, atol=1e-4)
    np.testing.assert_allclose(model.predict_proba(X), again.predict_proba(X), atol=1e-4)
    assert model.report_.converged and model.report_.gap_is_bound
    assert model.report_.objective == pytest.approx(again.report_.objective, abs=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("scoring", ["log-likelihood", "D2"])
def test_scores_of_counts_match_separate_models(data, counts, scoring):
    X, offset = data[0], np.random.default_rng(3).normal(size=(N, K))
    for y in (counts, sp.csr_array(counts)):
        model = MultinomialGLMCV(**TIGHT, cv=3, scoring=scoring).fit(X, y, offset=offset)
        for s, strength in enumerate(STRENGTHS):
            train, test = BLOCKS[s]
            alone = MultinomialGLM(regularizer_strength=strength, tol=1e-12)
            alone.fit(X[train], counts[train], offset=offset[train])
            score = alone.score(X[test], counts[test], score_type=scoring, offset=offset[test])
            assert model.cv_scores_[s, s] == pytest.approx(score, abs=1e-6)
    assert model.predict(X, offset=offset).shape == (N, K)


def test_accuracy_is_the_share_of_correct_labels(data):
    X, y = data
    model = SoftmaxGLMCV(**TIGHT, cv=3, scoring="accuracy").fit(X, y)
    train, test = BLOCKS[1]
    alone = SoftmaxGLM(regularizer_strength=STRENGTHS[1]).fit(X[train], y[train])
    assert model.cv_scores_[1, 1] == pytest.approx(alone.score(X[test], y[test]))


def test_the_choice_follows_the_mean_or_the_one_standard_error_rule(data, fitted):
    scores = fitted.cv_scores_
    best = int(np.argmax(scores.mean(axis=1)))
    assert fitted.best_strength_ == fitted.strength_ == STRENGTHS[best]
    error = np.std(scores[best] - scores, axis=1, ddof=1) / np.sqrt(3)
    within = np.flatnonzero(scores.mean(axis=1) >= scores[best].mean() - error)
    assert fitted.one_se_strength_ == STRENGTHS[within.max()]
    model = SoftmaxGLMCV(**TIGHT, cv=3, rule="one-se").fit(*data)
    assert model.strength_ == model.one_se_strength_ == fitted.one_se_strength_


# ------------------------------------------------------------------------------------------- laws


def test_the_order_of_strengths_and_how_folds_are_given_do_not_matter(data, fitted):
    for change in ({"strengths": [1.0, 1e-4, 1e-2, 1.0]}, {"cv": KFold(3)}, {"cv": BLOCKS}):
        model = SoftmaxGLMCV(**{**TIGHT, "cv": 3, **change}).fit(*data)
        np.testing.assert_array_equal(model.strengths_, STRENGTHS)
        np.testing.assert_array_equal(model.cv_scores_, fitted.cv_scores_)
        np.testing.assert_array_equal(model.coef_, fitted.coef_)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["labels", "counts"])
def test_a_weight_of_two_equals_repeating_the_row_in_its_fold(data, counts, kind):
    X, y = data[0], data[1] if kind == "labels" else counts
    cls = SoftmaxGLMCV if kind == "labels" else MultinomialGLMCV
    twice = np.random.default_rng(4).choice(N, 30, replace=False)
    w = np.ones(N)
    w[twice] = 2
    every = np.append(np.arange(N), twice)
    folds = [(np.flatnonzero(np.isin(every, a)), np.flatnonzero(np.isin(every, b))) for a, b in BLOCKS]
    weighted = cls(**TIGHT, cv=3).fit(X, y, w)
    repeated = cls(**TIGHT, cv=folds).fit(X[every], y[every])
    np.testing.assert_allclose(weighted.cv_scores_, repeated.cv_scores_, atol=1e-6)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-4)
    np.testing.assert_allclose(cls(**TIGHT, cv=3).fit(X, y, 7 * w).cv_scores_, weighted.cv_scores_, atol=1e-6)


def test_a_class_missing_from_a_training_fold_does_not_spoil_the_score(data):
    X, y = data
    y = y.copy()
    y[0:3] = K  # a fifth class, only in the first fold
    with pytest.warns(UserWarning, match=r"1 of 3 folds have held-out rows of classes .* \(up to 7.5 % of a fold\)"):
        model = SoftmaxGLMCV(**TIGHT, cv=3).fit(X, y)
    assert np.isfinite(model.cv_scores_).all()
    train, test = BLOCKS[0]
    alone = SoftmaxGLM(regularizer_strength=STRENGTHS[1], tol=1e-12).fit(X[train], y[train])
    assert K not in alone.classes_
    score = alone.score(X[test[3:]], y[test[3:]], score_type="log-likelihood")
    assert model.cv_scores_[1, 0] == pytest.approx(score, abs=1e-6)
    again = SoftmaxGLM(regularizer_strength=model.strength_, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), again.predict_proba(X), atol=1e-4)


def test_counts_of_a_category_missing_from_a_training_fold_are_excluded(data, counts):
    X, y = data[0], np.column_stack([counts, np.zeros(N, int)])
    y[:5, K] = 2
    y[0, :K] = 0
    with pytest.warns(UserWarning, match="1 of 3 folds have held-out rows of classes"):
        model = MultinomialGLMCV(**TIGHT, cv=3).fit(X, y)
    train, test = BLOCKS[0]
    alone = MultinomialGLM(regularizer_strength=STRENGTHS[1], tol=1e-12).fit(X[train], counts[train])
    score = alone.score(X[test[1:]], counts[test[1:]], score_type="log-likelihood")
    assert model.cv_scores_[1, 0] == pytest.approx(score, abs=1e-6)


def test_folds_without_anything_to_score_are_nan_or_refused():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), np.repeat(np.arange(3), 20)
    model = SoftmaxGLMCV(cv=3)
    with pytest.raises(ValueError, match=r"no fold of cv can be scored.*StratifiedKFold\(5\)"):
        model.fit(X, y)  # a class in every fold
    assert not hasattr(model, "classes_")
    y[10:20] = 2  # the class is also in the last fold
    with pytest.warns(UserWarning) as caught:
        model = SoftmaxGLMCV(strengths=[0.1, 1], cv=3).fit(X, y)
    assert any("2 of 3 folds have held-out rows" in str(w.message) for w in caught)
    assert np.isnan(model.cv_scores_[:, 1]).all() and np.isfinite(model.cv_scores_[:, [0, 2]]).all()
    best = np.argmax(model.cv_scores_[:, [0, 2]].mean(axis=1))
    assert model.best_strength_ == model.strengths_[best]


def test_one_class_is_certain(data):
    with pytest.warns(UserWarning, match="one class only"):
        model = SoftmaxGLMCV(cv=2).fit(data[0], np.zeros(N))
    assert not model.cv_scores_.any() and model.cv_converged_.all() and model.report_.converged
    np.testing.assert_array_equal(model.predict_proba(data[0]), 1)


# --------------------------------------------------------------------------------- strengths to try


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [1.0, 1e-3, 50.0])
def test_default_strengths_follow_the_feature_units_and_start_where_almost_nothing_is_learnt(data, scale):
    X, y = data
    model = SoftmaxGLMCV(cv=3).fit(X * scale + 3, y)
    reference = SoftmaxGLMCV(cv=3).fit(X, y)
    np.testing.assert_allclose(model.strengths_, reference.strengths_ * scale**2, rtol=1e-6)
    np.testing.assert_allclose(model.strengths_[-1] / model.strengths_, np.logspace(0, 6, 8)[::-1])
    # Share of the null objective that the strongest penalty explains, from a separate fit.
    weak = SoftmaxGLM(regularizer_strength=model.strengths_[-1], tol=1e-9).fit(X * scale + 3, y).report_
    share = (weak.null_objective - weak.objective) / weak.null_objective
    assert 1e-4 < share <= 0.01


def test_uninformative_features_still_have_default_strengths(data):
    pairs = SoftmaxGLM().fit(*data)._read(*data, None, None, reset=False)[0].pairs
    for X in (np.zeros((N, 2)), np.full((N, 2), 1e3)):
        np.testing.assert_allclose(default_strengths(SoftmaxProblem(X, pairs, K, 0.0)), np.logspace(-6, 0, 8))


def test_a_best_strength_at_an_end_raises_a_warning_unless_the_next_is_as_good(data):
    X, y = data
    with pytest.warns(UserWarning, match="best strength, 1, is the smallest of those tried: a smaller one"):
        SoftmaxGLMCV(strengths=[1, 10, 100], cv=3).fit(X, y)
    with pytest.warns(UserWarning, match="best strength, 0.0001, is the largest of those tried: a larger one"):
        SoftmaxGLMCV(strengths=[1e-6, 1e-5, 1e-4], cv=3, cv_tol=1e-10).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SoftmaxGLMCV(strengths=[0.02, 0.0200001, 5], cv=3).fit(X, y)


# ---------------------------------------------------------------------------------------------- fits


def test_fits_start_where_the_previous_one_ended(data, monkeypatch):
    starts, run = [], ClassRun.__init__

    def spy(self, problem, options, seed=0, start=None, *more, **named):
        starts.append((problem.strength, problem.n_rows, start))
        run(self, problem, options, seed, start, *more, **named)

    monkeypatch.setattr(ClassRun, "__init__", spy)
    model = SoftmaxGLMCV(**TIGHT, cv=3).fit(*data)
    assert [s for s, *_ in starts] == [*STRENGTHS[::-1] * 3, model.strength_]
    assert [start is None for *_, start in starts] == [True, False, False] * 3 + [False]
    assert starts[-1][1] == N and starts[0][1] == N * 2 // 3
    # The last fit starts near its optimum.
    problem = SoftmaxProblem(data[0], model._read(*data, None, None, reset=False)[0].pairs, K, model.strength_)
    assert problem.objective(starts[-1][2]) - model.report_.objective < 1e-2


def test_fits_that_do_not_converge_are_reported(data):
    X, y = data
    with pytest.warns(UserWarning, match="of 9 fits of the cross-validation did not converge"):
        model = SoftmaxGLMCV(strengths=STRENGTHS, cv=3, max_epochs=2, cv_tol=1e-12, tol=1).fit(X, y)
    assert not model.cv_converged_[0].any()
    assert f"{model.cv_converged_.sum()} of 9 fits to them converged" in str(model.report_)


def test_separable_rows_have_a_score_at_strength_zero():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 1))
    y = np.digitize(x[:, 0], [-0.5, 0.5])
    with pytest.warns(UserWarning, match="did not converge"):
        model = SoftmaxGLMCV(strengths=[0, 1e-3], cv=3, max_epochs=30).fit(x, y)
    assert np.isfinite(model.cv_scores_).all() and model.cv_converged_[1].all()


@pytest.mark.thorough
def test_a_sampling_solver_runs_every_fit_independently(data):
    X, y = data
    how = {"solver_name": "ImplicitSGD", "solver_kwargs": {"n_negatives": 2}, "step": 1.0, "max_epochs": 20}
    model = SoftmaxGLMCV(strengths=STRENGTHS, cv=3, **how).fit(X, y)
    for s, strength in enumerate(STRENGTHS):
        train, test = BLOCKS[s]
        alone = SoftmaxGLM(regularizer_strength=strength, **how).fit(X[train], y[train])
        score = alone.score(X[test], y[test], score_type="log-likelihood")
        assert model.cv_scores_[s, s] == pytest.approx(score, abs=1e-6)
    again = SoftmaxGLM(regularizer_strength=model.strength_, **how).fit(X, y)
    np.testing.assert_array_equal(model.coef_, again.coef_)
    assert model.report_.status == again.report_.status
    assert not model.cv_converged_.any() and "fits to them" not in str(model.report_)


@pytest.mark.thorough
def test_auto_chooses_the_solver_for_all_rows(data, monkeypatch):
    # A fold has fewer rows.
    monkeypatch.setattr("glmfit.estimators.parameters._EXACT_WORK", N * (data[0].shape[1] + 30) * K - 1)
    model = SoftmaxGLMCV(strengths=[1e-2, 1], cv=3, max_epochs=5).fit(*data)
    assert model.report_.solver_name == "SampledSoftmax" and np.isfinite(model.cv_scores_).all()


@pytest.mark.parametrize("at", ["first fold", "second fold", "last fit"])
def test_ctrl_c_keeps_finished_folds(data, fitted, monkeypatch, at):
    X, y = data
    run, n = ClassRun.run, {"first fold": 2, "second fold": 5, "last fit": 10}[at]
    calls = []

    def interrupted(self):
        calls.append(1)
        if len(calls) == n:
            raise KeyboardInterrupt
        return run(self)

    monkeypatch.setattr(ClassRun, "run", interrupted)
    model = SoftmaxGLMCV(**TIGHT, cv=3)
    if at == "first fold":
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y)
        assert not hasattr(model, "coef_")
        return
    if at == "second fold":
        stopped = pytest.warns(UserWarning, match="Ctrl-C stopped the cross-validation with 1 of 3 folds scored")
        with stopped, pytest.warns(ConvergenceWarning, match="interrupted"):
            model.fit(X, y)
        np.testing.assert_array_equal(model.cv_scores_[:, 0], fitted.cv_scores_[:, 0])
        assert np.isnan(model.cv_scores_[:, 1:]).all() and not model.cv_converged_[:, 1:].any()
        assert model.strength_ == STRENGTHS[int(np.argmax(fitted.cv_scores_[:, 0]))]
    else:
        with pytest.warns(ConvergenceWarning, match="interrupted"):
            model.fit(X, y)
        np.testing.assert_array_equal(model.cv_scores_, fitted.cv_scores_)
    # The model is usable and its bound holds.
    report = model.report_
    best = SoftmaxGLM(regularizer_strength=model.strength_, tol=1e-12).fit(X, y).report_.objective
    assert report.status == Status.INTERRUPTED and report.gap_is_bound
    assert 0 < report.objective - best <= report.gap


def test_ctrl_c_within_a_fit_ends_the_cross_validation(data, monkeypatch):
    advance, calls = ClassDescent.advance, []

    def interrupted(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return advance(self, *args, **kwargs)

    monkeypatch.setattr(ClassDescent, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SoftmaxGLMCV(**TIGHT, cv=3).fit(*data)
    assert len(calls) == 3


# -------------------------------------------------------------------------------------- interfaces


def test_sparse_and_single_precision_features_give_the_same_scores(data, fitted):
    X, y = data
    sparse = SoftmaxGLMCV(**TIGHT, cv=3).fit(sp.csr_array(X), y)
    np.testing.assert_allclose(sparse.cv_scores_, fitted.cv_scores_, atol=1e-5)
    single = SoftmaxGLMCV(strengths=STRENGTHS, cv=3).fit(X.astype(np.float32), y)
    np.testing.assert_allclose(single.cv_scores_, fitted.cv_scores_, atol=2e-3)
    assert single.cv_gap_is_bound_.all() and single.strength_ == fitted.strength_


def test_rows_with_nan_are_dropped_and_fold_indices_refer_to_the_given_rows(data, fitted):
    X, y = data
    with_nan, labels = np.insert(X, 50, np.nan, axis=0), np.insert(y, 50, 1)
    shifted = [tuple(i + (i >= 50) for i in pair) for pair in BLOCKS]
    model = SoftmaxGLMCV(**TIGHT, cv=shifted).fit(with_nan, labels)
    np.testing.assert_allclose(model.cv_scores_, fitted.cv_scores_, atol=1e-9)
    assert model.report_.n_dropped == 1


def test_splitters_see_the_labels(data):
    X, y = data
    order = np.argsort(y, kind="stable")
    names = np.array(["a", "b", "c", "d"])[y[order]]
    model = SoftmaxGLMCV(**TIGHT, cv=StratifiedKFold(3)).fit(X[order], names)
    train, test = next(iter(StratifiedKFold(3).split(X, names)))
    alone = SoftmaxGLM(regularizer_strength=1e-2, tol=1e-10).fit(X[order][train], names[train])
    score = alone.score(X[order][test], names[test], score_type="log-likelihood")
    assert model.cv_scores_[1, 0] == pytest.approx(score, abs=1e-4)
    assert set(model.predict(X)) <= set("abcd")


def test_epochs_are_folds_and_predictions_keep_their_times(data):
    import pynapple as nap

    X, y = data
    t = np.arange(N) * 0.1
    epochs = nap.IntervalSet(start=[0, 4.0, 8.0], end=[3.95, 7.95, 12.0])
    model = SoftmaxGLMCV(**TIGHT, cv=epochs).fit(nap.TsdFrame(t=t, d=X), nap.Tsd(t=t, d=y))
    np.testing.assert_allclose(model.cv_scores_, SoftmaxGLMCV(**TIGHT, cv=BLOCKS).fit(X, y).cv_scores_, atol=1e-12)
    found = model.predict_proba(nap.TsdFrame(t=t, d=X))
    assert isinstance(found, nap.TsdFrame) and list(found.columns) == [0, 1, 2, 3]
    np.testing.assert_allclose(found.t, t, rtol=0, atol=1e-9)  # pynapple rounds


@pytest.mark.thorough
@pytest.mark.parametrize("cv", [3, "splitter"])
def test_files_keep_everything(data, fitted, counts, tmp_path, cv):
    X, y = data
    names = ("strengths_", "cv_scores_", "cv_gap_", "cv_gap_is_bound_", "cv_converged_", "coef_")
    models = (fitted, SoftmaxGLMCV), (MultinomialGLMCV(**TIGHT, cv=3).fit(X, counts), MultinomialGLMCV)
    for model, cls in models:
        model = clone(model).set_params(cv=KFold(3)).fit(X, y if cls is SoftmaxGLMCV else counts) if cv != 3 else model
        path = model.save(tmp_path / "cv")
        if cv != 3:
            with pytest.warns(UserWarning, match=r"cv of this model was not saved, .* cv is 5, the default"):
                assert cls.load(path).cv == 5
            continue
        again = cls.load(path)
        for name in names:
            np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
        for name in ("strength_", "best_strength_", "one_se_strength_"):
            assert type(getattr(again, name)) is float and getattr(again, name) == getattr(model, name)
        assert str(again.report_) == str(model.report_) and again.cv == 3
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        np.testing.assert_array_equal(again.fit(X, y if cls is SoftmaxGLMCV else counts).coef_, model.coef_)
    with pytest.raises(ValueError, match="holds a MultinomialGLMCV, not a MultinomialGLM"):
        MultinomialGLM.load(path)


def test_the_report_names_the_choice(fitted):
    text = str(fitted.report_)
    mean = fitted.cv_scores_.mean(axis=1).max()
    line = f"ridge {fitted.strength_:.3g} chosen among 3 by 3 held-out folds (mean score {mean:.4f}); 9 of 9 fits"
    assert line in text and "gap bound: weak duality" in text
    np.testing.assert_array_equal(fitted.report_.tuning["score"], fitted.cv_scores_)
    assert not SoftmaxGLM().fit(np.eye(3), [0, 1, 2]).report_.tuning


def test_a_stream_has_no_folds(fitted):
    assert not hasattr(fitted, "partial_fit") and not hasattr(SoftmaxGLMCV, "partial_fit")
    with pytest.raises(AttributeError, match="SoftmaxGLMCV has no partial_fit, because a stream has no folds"):
        _ = fitted.partial_fit


def test_clone_search_and_frames(data):
    X, y = data
    model = SoftmaxGLMCV(strengths=STRENGTHS, cv=3)
    assert clone(model).get_params() == model.get_params() and "regularizer_strength" not in model.get_params()
    frame = pd.DataFrame(X, columns=list("abcde"))
    assert list(clone(model).fit(frame, y).feature_names_in_) == list("abcde")
    search = GridSearchCV(model, {"rule": ["best", "one-se"]}, cv=2).fit(X, y)
    assert search.best_estimator_.strength_ in STRENGTHS
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_curves_are_drawn(fitted, data):
    ax = plotting.plot_cv_curves(fitted)
    mean = fitted.cv_scores_.mean(axis=1)
    np.testing.assert_allclose(ax.containers[0][0].get_ydata(), mean - mean.max())
    assert ax.get_ylabel() == "held-out log-likelihood per row\nminus the best" and ax.get_legend() is None
    with pytest.raises(TypeError, match="SoftmaxGLMCV has one strength for all classes; plot_cv_curves draws"):
        plotting.plot_strengths(fitted)


def test_the_progress_bar_counts_fits(data, capsys):
    SoftmaxGLMCV(strengths=STRENGTHS, cv=3, verbose=True).fit(*data)
    shown = capsys.readouterr().err
    assert "3 strengths x 3 folds, 4 classes: 100%" in shown.replace("glmfit: ", "") and "10/10" in shown


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"strengths": [0.1]}, "needs at least two different ones. For one, use SoftmaxGLM."),
        ({"strengths": [0.1, -1]}, "finite numbers of at least 0"),
        ({"cv": 1}, "cv is 1; contiguous blocks must be at least 2 and at most n_samples=120"),
        ({"cv": [([0, 1], [2]), ([0, 1], [500])]}, "rows that do not exist, in fold 1"),
        ({"scoring": "D2"}, "scoring is 'D2'; it must be one of 'log-likelihood', 'accuracy'"),
        ({"rule": "min"}, "rule is 'min'; it must be one of 'best', 'one-se'"),
        ({"cv_tol": 0}, "cv_tol is 0"),
        ({"max_epochs": 0}, "max_epochs is 0"),
        ({"solver_name": "SAGA"}, "version 0.2 no longer has"),
        ({"solver_kwargs": {"rank": 3}}, "name the solver they are for"),
    ],
)
def test_invalid_parameters_are_refused_and_change_nothing(parameters, message, data):
    model = SoftmaxGLMCV(**parameters)
    before = set(vars(model))
    with pytest.raises(ValueError, match=message):
        model.fit(*data)
    assert set(vars(model)) == before


EXPECTED = {
    SoftmaxGLMCV: {"check_estimators_pickle": "predicts labels for rows with NaN, which have none: that is an error"},
    MultinomialGLMCV: {"check_regressor_multioutput": "passes a normal y although the tag positive_only is set"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("cls", [SoftmaxGLMCV, MultinomialGLMCV])
def test_check_estimator_passes_except_for_the_expected_failures(cls):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = cls(strengths=[1.0, 10.0], cv=2, cv_tol=1e-14, tol=1e-14)
        results = check_estimator(model, expected_failed_checks=EXPECTED[cls], on_fail=None, on_skip=None)
    wrong = {r["check_name"]: r["exception"] for r in results if r["status"] not in ("passed", "xfail", "skipped")}
    assert not wrong and len(results) > 40
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(EXPECTED[cls])


@pytest.mark.thorough
def test_with_many_classes_a_weak_ridge_overfits_and_the_chosen_one_does_not():
    rng = np.random.default_rng(5)
    n_classes, n = 60, 900
    centre = rng.normal(size=(n_classes, 10))
    y = rng.integers(0, n_classes, n)
    X = centre[y] + 1.5 * rng.normal(size=(n, 10))
    fresh = rng.integers(0, n_classes, n)
    new = centre[fresh] + 1.5 * rng.normal(size=(n, 10))
    model = SoftmaxGLMCV(cv=5).fit(X, y)

    def held(of):
        return -log_softmax(of.decision_function(new), axis=1)[np.arange(n), fresh].mean()

    weak = SoftmaxGLM(regularizer_strength=1e-6).fit(X, y)
    fixed = [held(SoftmaxGLM(regularizer_strength=s).fit(X, y)) for s in model.strengths_]
    assert held(model) < held(weak) - 0.2 and held(model) < min(fixed) + 0.05
    assert model.strengths_[0] < model.strength_ < model.strengths_[-1]


# ---------------------------------------------------------------------------------------- penalties with kinks


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [SoftmaxGLMCV, MultinomialGLMCV])
@pytest.mark.parametrize("regularizer", ["Lasso", "ElasticNet", "GroupLasso"])
def test_sparse_fits_of_a_fold_match_separate_ones(kind, regularizer, data, counts):
    X, Y = data[0], data[1] if kind is SoftmaxGLMCV else counts
    given = {"regularizer": regularizer, "l1_ratio": 0.7}
    given |= {"groups": [0, 0, 1, 1, 2]} if regularizer == "GroupLasso" else {}
    model = kind(strengths=[0, 1e-2, 5e-2], cv=3, cv_tol=1e-10, tol=1e-10, **given).fit(X, Y)
    assert model.cv_converged_.all() and model.cv_gap_is_bound_.all() and model.report_.converged
    alone = {SoftmaxGLMCV: SoftmaxGLM, MultinomialGLMCV: MultinomialGLM}[kind]
    for s, strength in enumerate(model.strengths_):
        for f, (train, test) in enumerate(BLOCKS):
            one = alone(regularizer_strength=strength, tol=1e-10, **given).fit(X[train], Y[train])
            wide = oracle.one_hot(Y[test], K) if kind is SoftmaxGLMCV else Y[test]
            ways = gammaln(wide.sum(axis=1) + 1) - gammaln(wide + 1).sum(axis=1)  # 0 for labels
            p = log_softmax(X[test] @ one.coef_ + one.intercept_, axis=1)
            score = ((wide * p).sum(axis=1) + ways).mean()
            np.testing.assert_allclose(model.cv_scores_[s, f], score, atol=1e-3 if strength == 0 else 1e-4)
    one = alone(regularizer_strength=model.strength_, tol=1e-10, **given).fit(X, Y)
    np.testing.assert_allclose(model.report_.objective, one.report_.objective, rtol=1e-8)
    assert model.report_.objective - model.report_.gap <= one.report_.objective


@pytest.mark.parametrize("regularizer", ["Lasso", "ElasticNet", "GroupLasso"])
def test_default_strengths_of_a_sparse_model_begin_where_nothing_is_left(data, regularizer):
    given = {"regularizer": regularizer}
    given |= {"groups": [0, 0, 1, 1, 2]} if regularizer == "GroupLasso" else {}
    model = SoftmaxGLMCV(cv=3, **given).fit(*data)
    np.testing.assert_allclose(model.strengths_, model.strengths_[-1] * np.logspace(-3, 0, 12))
    above, below = (SoftmaxGLM(regularizer_strength=model.strengths_[-1] * f, tol=1e-9, **given) for f in (1.001, 0.98))
    assert not above.fit(*data).coef_.any()
    assert below.fit(*data).coef_.any()


def test_a_sparse_model_names_the_solver_it_needs(data):
    with pytest.raises(ValueError, match=r"regularizer is 'Lasso', which has kinks, and the solver is UMax; it needs"):
        SoftmaxGLMCV(regularizer="Lasso", solver_name="UMax").fit(*data)
    with pytest.raises(ValueError, match=r"regularizer is 'UnRegularized'; it must be one of"):
        SoftmaxGLMCV(regularizer="UnRegularized").fit(*data)
