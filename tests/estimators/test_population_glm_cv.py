"""Cross-validated strengths: every fit matches a separate one, folds are as requested, choices are right."""

import re
import signal
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from oracles import population as oracle
from sklearn.base import clone
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from glmfit import PopulationGAM, PopulationGLM, PopulationGLMCV, Status
from glmfit.engine.host import HostRows
from glmfit.engine.population import FoldedProblem
from glmfit.estimators import cv_fits, population_glm_cv
from glmfit.estimators.scores import Folds, choose_strengths
from glmfit.observations import PoissonSoftplus
from glmfit.penalties.by_name import PenaltyFamily
from glmfit.solvers import LoopOptions

T, D, N = 500, 6, 3
STRENGTHS = [1e-3, 1e-1, 1.0]
TIGHT = {"strengths": STRENGTHS, "cv_tol": 1e-12, "tol": 1e-9}
EXPECTED_FAILURES = {"check_regressor_multioutput": "passes negative counts although the tag positive_only is set"}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(T, D)) @ (np.eye(D) + 0.4)
    W = np.zeros((D, N))
    W[:2] = 0.3 * rng.normal(size=(2, N))
    return X, rng.poisson(np.logaddexp(0, X @ W - 0.5))


@pytest.fixture(scope="module")
def fitted(data):
    return PopulationGLMCV(**TIGHT, cv=4).fit(*data)


def blocks(n):
    number = np.arange(T) * n // T
    return [(np.flatnonzero(number != f), np.flatnonzero(number == f)) for f in range(n)]


def exact(X, Y, strength, train, test, weights=None):
    """Coefficients by Newton's method in NumPy and mean log-likelihood of the held-out rows, without factorials."""
    w = None if weights is None else weights[train]
    found = oracle.newton("softplus", X[train], Y[train], strength, w)
    value = -oracle.loss("softplus", Y[test], X[test] @ found[0] + found[1])
    return found, np.average(value, axis=0, weights=None if weights is None else weights[test])


def factorials(Y, test, weights=None):
    from scipy.special import gammaln

    return np.average(gammaln(Y[test] + 1), axis=0, weights=None if weights is None else weights[test])


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_match_separate_fits(data, fitted, weighted):
    X, Y = data
    weights = np.random.default_rng(1).uniform(0.3, 2, T) if weighted else None
    model = PopulationGLMCV(**TIGHT, cv=4).fit(X, Y, weights) if weighted else fitted
    assert model.cv_scores_.shape == (3, 4, N) and model.cv_gap_is_bound_.all() and model.cv_converged_.all()
    for s, strength in enumerate(STRENGTHS):
        for f, (train, test) in enumerate(blocks(4)):
            _, score = exact(X, Y, strength, train, test, weights)
            score = score - factorials(Y, test, weights)
            np.testing.assert_allclose(model.cv_scores_[s, f], score, atol=5e-5)


def test_the_path_and_the_last_fit_use_all_rows(data, fitted):
    X, Y = data
    for s, strength in enumerate(STRENGTHS):
        coef, intercept = oracle.newton("softplus", X, Y, strength)[:2]
        np.testing.assert_allclose(fitted.coef_path_[s], coef, atol=1e-4)
        np.testing.assert_allclose(fitted.intercept_path_[s], intercept, atol=1e-4)
    again = PopulationGLM(regularizer_strength=fitted.strength_, tol=1e-9).fit(X, Y)
    np.testing.assert_allclose(fitted.coef_, again.coef_, atol=1e-4)
    assert np.all(fitted.report_.status == Status.CONVERGED) and fitted.report_.gap_is_bound.all()
    np.testing.assert_allclose(fitted.predict(X), again.predict(X), rtol=1e-3)


def test_strengths_are_chosen_by_the_mean_and_by_the_one_standard_error_rule(fitted):
    """Compare with the rules written as loops."""
    for n in range(N):
        scores = fitted.cv_scores_[:, :, n]
        mean = scores.mean(axis=1)
        best = int(np.argmax(mean))
        assert fitted.best_strength_[n] == STRENGTHS[best]
        error = [np.std(scores[best] - scores[s], ddof=1) / 2 for s in range(3)]  # fold by fold
        within = [s for s in range(3) if mean[s] >= mean[best] - error[s]]
        assert fitted.one_se_strength_[n] == STRENGTHS[max(within)]
    np.testing.assert_array_equal(fitted.strength_, fitted.best_strength_)


def test_folds_with_different_rates_do_not_hide_that_a_strength_is_worse():
    """The stronger penalty costs every fold about 0.1, whatever its rate."""
    rates = np.array([-3.0, -1.0, -2.0, -0.5])
    scores = np.stack([rates, rates - 0.1 - 0.01 * np.arange(4)])[:, :, None]
    best, one_se = choose_strengths(scores, np.ones((2, 1), bool))
    assert best == one_se == 0
    best, one_se = choose_strengths(
        np.stack([rates, rates - [0.3, -0.2, 0.1, -0.1]])[:, :, None], np.ones((2, 1), bool)
    )
    assert (best, one_se) == (0, 1)
    unscored = np.stack([rates, np.full(4, -np.inf)])[:, :, None]
    assert choose_strengths(unscored, np.ones((2, 1), bool))[1] == 0


def test_the_one_standard_error_rule_chooses_stronger_ridges_and_fits_them(data, fitted):
    model = PopulationGLMCV(**TIGHT, cv=4, rule="one-se").fit(*data)
    np.testing.assert_array_equal(model.strength_, fitted.one_se_strength_)
    assert np.all(model.strength_ >= fitted.strength_) and np.any(model.strength_ > fitted.strength_)
    again = PopulationGLM(regularizer_strength=model.strength_, tol=1e-9).fit(*data)
    np.testing.assert_allclose(model.coef_, again.coef_, atol=3e-4)


def test_deviance_explained_ranks_like_the_likelihood_within_a_fold(data, fitted):
    model = PopulationGLMCV(**TIGHT, cv=4, scoring="D2").fit(*data)
    X, Y = data
    train, test = blocks(4)[0]
    alone = PopulationGLM(regularizer_strength=STRENGTHS[1], tol=1e-9).fit(X[train], Y[train])
    np.testing.assert_allclose(model.cv_scores_[1, 0], alone.score(X[test], Y[test], per_neuron=True), atol=1e-3)
    np.testing.assert_array_equal(np.argsort(model.cv_scores_, axis=0), np.argsort(fitted.cv_scores_, axis=0))


def test_groups_of_neurons_give_the_same_answer(data, fitted):
    small = PopulationGLMCV(**TIGHT, cv=4, max_memory=1).fit(*data)  # one neuron at a time
    np.testing.assert_allclose(small.cv_scores_, fitted.cv_scores_, atol=1e-4)
    np.testing.assert_array_equal(small.strength_, fitted.strength_)


def test_the_same_seed_gives_the_same_answer(data, fitted):
    again = clone(fitted).fit(*data)
    np.testing.assert_array_equal(again.cv_scores_, fitted.cv_scores_)
    np.testing.assert_array_equal(again.coef_, fitted.coef_)


def test_strengths_may_be_unsorted_and_repeated(data, fitted):
    model = PopulationGLMCV(**(TIGHT | {"strengths": [1.0, 1e-3, 1.0, 0.1]}), cv=4).fit(*data)
    np.testing.assert_array_equal(model.strengths_, STRENGTHS)
    np.testing.assert_array_equal(model.cv_scores_, fitted.cv_scores_)


def test_folds_may_be_a_splitter_or_pairs(data, fitted):
    X, Y = data
    pairs = PopulationGLMCV(**TIGHT, cv=blocks(4)).fit(X, Y)
    np.testing.assert_array_equal(pairs.cv_scores_, fitted.cv_scores_)
    split = PopulationGLMCV(**TIGHT, cv=KFold(4)).fit(X, Y)
    np.testing.assert_array_equal(split.cv_scores_, fitted.cv_scores_)
    apart = PopulationGLMCV(**TIGHT, cv=ShuffleSplit(3, test_size=0.2, train_size=0.5, random_state=0))
    apart.fit(X, Y)
    train, test = next(iter(apart.cv.split(X)))
    _, score = exact(X, Y, STRENGTHS[0], train, test)
    np.testing.assert_allclose(apart.cv_scores_[0, 0], score - factorials(Y, test), atol=5e-5)


def test_fold_indices_refer_to_the_given_rows_even_if_some_are_dropped(data):
    X, Y = data
    with_nan = np.insert(X, 100, np.nan, axis=0), np.insert(Y.astype(float), 100, 1, axis=0)
    shifted = [tuple(i + (i >= 100) for i in pair) for pair in blocks(4)]
    model = PopulationGLMCV(**TIGHT, cv=shifted).fit(*with_nan)
    reference = PopulationGLMCV(**TIGHT, cv=blocks(4)).fit(X, Y)
    np.testing.assert_allclose(model.cv_scores_, reference.cv_scores_, atol=1e-12)
    weights = np.ones(T + 1)
    weights[100] = 0
    none = np.insert(X, 100, 7.0, axis=0), with_nan[1]
    model = PopulationGLMCV(**TIGHT, cv=KFold(4)).fit(*none, weights)
    assert np.isfinite(model.cv_scores_).all() and model.report_.n_rows == T


def test_epochs_are_folds(data):
    import pynapple as nap

    X, Y = data
    t = np.arange(T) * 0.02
    features, counts = nap.TsdFrame(t=t, d=X), nap.TsdFrame(t=t, d=Y, columns=["a", "b", "c"])
    epochs = nap.IntervalSet(start=[0, 4.0], end=[3.999, 7.999])  # the last two seconds are always fitted
    model = PopulationGLMCV(**TIGHT, cv=epochs).fit(features, counts)
    masks = [(t >= 0) & (t <= 3.999), (t >= 4) & (t <= 7.999)]
    pairs = [(np.flatnonzero(~m), np.flatnonzero(m)) for m in masks]
    reference = PopulationGLMCV(**TIGHT, cv=pairs).fit(X, Y)
    np.testing.assert_array_equal(model.cv_scores_, reference.cv_scores_)
    assert list(model.predict(features).columns) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="cv is an IntervalSet, but neither X nor y has times"):
        PopulationGLMCV(cv=epochs).fit(X, Y)


def test_epochs_may_be_grouped_into_folds(data):
    import pynapple as nap

    X, Y = data
    t = np.arange(T) * 0.02
    features = nap.TsdFrame(t=t, d=X)
    epochs = nap.IntervalSet(start=np.arange(24) * 0.4 - 0.01, end=np.arange(24) * 0.4 + 0.385)
    with pytest.warns(UserWarning, match=r"cv has 24 epochs, .* fitted 25 times at every strength") as caught:
        PopulationGLMCV(strengths=[0.01, 1], cv=epochs).fit(features, Y)
    assert len(caught) == 1 and caught[0].filename == __file__
    advice = re.search(r"pass cv=(\[.*\]),", str(caught[0].message))[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PopulationGLMCV(**TIGHT, cv=eval(advice, {"epochs": epochs})).fit(features, Y)
    number = np.where(np.arange(T) < 480, np.arange(T) // 20 % 5, -1)  # rows in no epoch are always fitted
    pairs = [(np.flatnonzero(number != f), np.flatnonzero(number == f)) for f in range(5)]
    np.testing.assert_array_equal(model.cv_scores_, PopulationGLMCV(**TIGHT, cv=pairs).fit(X, Y).cv_scores_)


def test_models_with_epochs_are_displayed_without_a_warning():
    import pynapple as nap

    epochs = nap.IntervalSet(start=[0, 4.0], end=[3.0, 7.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for cv in (epochs, [epochs[:1], epochs[1:]]):
            model = PopulationGLMCV(cv=cv)
            assert "PopulationGLMCV" in repr(model) and "PopulationGLMCV" in model._repr_html_()
            assert "PopulationGLMCV" in make_pipeline(StandardScaler(), model)._repr_html_()
            assert "PopulationGAM" in PopulationGAM(cv=cv)._repr_html_()


def test_a_neuron_without_spikes_in_a_fold_is_scored_on_the_others(data):
    X, Y = data
    Y = Y.copy()
    Y[T // 4 :, 0] = 0  # spikes only in the first of four blocks: none to fit when it is held out
    Y[:, 2] = 0
    with pytest.warns(UserWarning, match="2 of 3 neurons have folds without a spike that cannot be scored"):
        model = PopulationGLMCV(**TIGHT, cv=4).fit(X, Y)
    assert np.isnan(model.cv_scores_[:, 0, 0]).all() and np.isfinite(model.cv_scores_[:, 1:, 0]).all()
    assert np.isnan(model.cv_scores_[:, :, 2]).all() and np.isfinite(model.cv_scores_[:, :, 1]).all()
    assert model.report_.status[2] == Status.NO_SPIKES and model.strength_[2] == 1.0
    assert model.best_strength_[0] == STRENGTHS[int(np.argmax(model.cv_scores_[:, 1:, 0].mean(axis=1)))]


@pytest.mark.parametrize("scoring", ["log-likelihood", "D2"])
def test_a_strength_that_fails_in_a_fold_is_not_scored_on_the_others(scoring):
    """A held-out row with a rate beyond any number; it would be no count at any other strength, either."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    y = rng.poisson(np.exp(X.sum(axis=1)))
    X[-1] = 1e4, 0
    with pytest.warns(UserWarning, match="feature 0 is 10000 in 1 row"):
        model = PopulationGLMCV("exp", strengths=[1e-3, 1e2], cv=3, scoring=scoring).fit(X, y)
    assert model.cv_scores_[0, 2] == -np.inf and not np.isnan(model.cv_scores_).any()
    assert model.strength_ == model.one_se_strength_ == 1e2


def test_one_neuron_and_exp_link(data):
    X, Y = data
    model = PopulationGLMCV("exp", **TIGHT, cv=3).fit(X, Y[:, 1])
    assert model.coef_.shape == (D,) and isinstance(model.intercept_, float) and model.cv_scores_.shape == (3, 3, 1)
    again = PopulationGLM("exp", regularizer_strength=float(model.strength_[0]), tol=1e-9).fit(X, Y[:, 1])
    np.testing.assert_allclose(model.coef_, again.coef_, atol=1e-4)


def test_files_keep_everything(fitted, data, tmp_path):
    path = fitted.save(tmp_path / "cv")
    again = PopulationGLMCV.load(path)
    for name in ("cv_scores_", "strength_", "one_se_strength_", "coef_path_", "cv_gap_", "strengths_", "coef_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(fitted, name))
    np.testing.assert_array_equal(again.predict(data[0]), fitted.predict(data[0]))
    for cv in (KFold(3), blocks(3)):  # a splitter is code, and row numbers belong to one recording
        model = PopulationGLMCV(**TIGHT, cv=cv).fit(*data)
        with pytest.warns(UserWarning, match=r"cv of this model was not saved, .* cv is 5, the default"):
            again = PopulationGLMCV.load(model.save(tmp_path / "cv"))
        assert again.cv == 5
    with pytest.raises(ValueError, match="holds a PopulationGLMCV, not a PopulationGLM"):
        PopulationGLM.load(fitted.save(tmp_path / "cv"))


@pytest.mark.parametrize("kind", ["epochs", "list", "tuple"])
def test_files_keep_epochs(data, tmp_path, kind):
    import pynapple as nap

    X, Y = data
    features = nap.TsdFrame(t=np.arange(T) * 0.02, d=X)
    epochs = nap.IntervalSet(start=[0, 1 / 3, 4.0], end=[0.1, 3.0, 7.0])
    cv = {"epochs": epochs, "list": [epochs[:2], epochs[2:]], "tuple": (epochs[::2], epochs[1:2])}[kind]
    model = PopulationGLMCV(strengths=[0.01, 1], cv=cv).fit(features, Y)
    again = PopulationGLMCV.load(model.save(tmp_path / "cv"))
    assert type(again.cv) is type(cv)
    np.testing.assert_array_equal(again.fit(features, Y).cv_scores_, model.cv_scores_)


def test_overlapping_epochs_raise_a_warning(data):
    import pynapple as nap

    X, Y = data
    t = np.arange(T) * 0.02
    cv = [nap.IntervalSet(start, end) for start, end in ((-0.01, 4.01), (3.99, 8.0))]
    with pytest.warns(UserWarning, match=r"folds of cv overlap, so that rows \(1 of 500\) are scored more than once"):
        PopulationGLMCV(strengths=[0.01, 1], cv=cv).fit(nap.TsdFrame(t=t, d=X), Y)
    with pytest.raises(ValueError, match="cv is a list of IntervalSets, but neither X nor y has times"):
        PopulationGLMCV(cv=cv).fit(X, Y)
    with pytest.raises(ValueError, match="cv has IntervalSets and other folds; give IntervalSets only"):
        PopulationGLMCV(cv=[cv[0], (np.arange(5), np.arange(5, 10))]).fit(X, Y)
    with pytest.raises(ValueError, match="cv has 1 fold; comparing strengths needs at least two"):
        PopulationGLMCV(cv=cv[:1]).fit(nap.TsdFrame(t=t, d=X), Y)


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"strengths": [0.1]}, "cross-validation needs at least two different ones"),
        ({"strengths": [0.1, -1]}, "finite numbers of at least 0"),
        ({"strengths": "auto"}, "strengths is 'auto'"),
        ({"strengths": [0.1, np.nan]}, "finite numbers of at least 0"),
        ({"cv": 1}, "cv is 1; contiguous blocks must be at least 2 and at most n_samples=500"),
        ({"cv": 501}, "cv is 501"),
        ({"cv": "blocks"}, "cv is 'blocks'; it must be a number of contiguous blocks"),
        ({"cv": [([0, 1], [2])]}, "cv has 1 fold; comparing strengths needs at least two"),
        ({"cv": [([0, 1], [1]), ([0, 1], [2])]}, "fold 0 of cv has rows both to fit and to score"),
        ({"cv": [([0, 1], [2]), ([0, 1], [500])]}, "rows that do not exist, in fold 1"),
        ({"cv": [([0, 1], [2]), ([0, 1], [])]}, "cv holds no rows"),
        ({"cv": [([0, 1], [2]), ([0], [2])]}, "fold 1 of cv has 1 rows to fit"),
        ({"scoring": "accuracy"}, "scoring is 'accuracy'; it must be one of 'log-likelihood', 'D2'"),
        ({"rule": "min"}, "rule is 'min'; it must be one of 'best', 'one-se'"),
        ({"max_memory": 0}, "max_memory is 0"),
        ({"regularizer": "UnRegularized"}, "it must be one of 'Ridge', 'Lasso', 'ElasticNet', 'GroupLasso'"),
        ({"regularizer": "GroupLasso"}, "regularizer is 'GroupLasso', but groups is None"),
        ({"regularizer": "GroupLasso", "groups": [0, 1]}, r"groups has shape \(2,\); it needs one label per feature"),
        ({"groups": [0] * 6}, "groups is given, but regularizer is 'Ridge'"),
        ({"regularizer": "ElasticNet", "l1_ratio": 1.5}, "l1_ratio is 1.5; it must be a number in"),
        ({"solver_kwargs": {"gain": 0.3}}, "name the solver they are for"),
        (
            {"solver_name": "ConjugateGradients", "solver_kwargs": {"steps": 3}},
            "solver_kwargs of ConjugateGradients may be",
        ),
    ],
)
def test_invalid_parameters_are_refused_and_change_nothing(parameters, message, data):
    model = PopulationGLMCV(**parameters)
    before = set(vars(model))
    with pytest.raises(ValueError, match=message):
        model.fit(*data)
    assert set(vars(model)) == before


# ---------------------------------------------------------------- penalties that are not smooth, and solvers


L1 = ("Lasso", "ElasticNet")


@pytest.fixture(scope="module", params=L1)
def sparse(request, data):
    return PopulationGLMCV(regularizer=request.param, l1_ratio=0.7, cv=4, cv_tol=1e-10, tol=1e-7).fit(*data)


@pytest.mark.thorough
def test_groups_are_chosen_as_by_separate_fits(data):
    X, Y = data
    groups, labels = {"driven": [0, 1], "pair": [2, 3], "others": [4, 5]}, (0, 0, 1, 1, 2, 2)
    model = PopulationGLMCV(regularizer="GroupLasso", groups=groups, cv=4, cv_tol=1e-9, tol=1e-8).fit(X, Y)
    assert len(model.strengths_) == 12 and model.cv_gap_is_bound_.all() and model.cv_converged_.all()
    assert not model.coef_path_[-1].any() and model.coef_path_[-2].any()
    test = np.arange(T) < T // 4
    for s in (4, 9):
        strength = model.strengths_[s]
        best = oracle.proximal("softplus", X, Y, "GroupLasso", strength, groups=labels)
        np.testing.assert_allclose(model.coef_path_[s], best.coef, atol=5e-4)
        at = oracle.proximal("softplus", X[~test], Y[~test], "GroupLasso", strength, groups=labels)
        score = -np.mean(oracle.loss("softplus", Y[test], X[test] @ at.coef + at.intercept), axis=0)
        np.testing.assert_allclose(model.cv_scores_[s, 0], score - factorials(Y, test), atol=1e-4)
    alone = PopulationGLM(regularizer="GroupLasso", groups=groups, regularizer_strength=model.strength_, tol=1e-8)
    np.testing.assert_allclose(model.coef_, alone.fit(X, Y).coef_, atol=1e-3)
    for members in groups.values():
        zero = model.coef_path_[:, members] == 0
        assert np.array_equal(zero.all(axis=1), zero.any(axis=1))  # whole groups only


@pytest.mark.thorough
@pytest.mark.thorough
@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso", "GroupLasso"])
def test_a_mask_gives_the_scores_of_each_neuron_with_its_features(data, regularizer):
    X, Y = data
    labels = np.arange(X.shape[1]) // 2
    mask = (labels[:, None] + np.arange(3)) % 3 != 0
    given = {"regularizer": regularizer, "strengths": [0, 1e-3, 1e-1], "cv_tol": 1e-8}
    groups = {"groups": labels} if regularizer == "GroupLasso" else {}
    model = PopulationGLMCV(feature_mask=mask, **groups, **given).fit(X, Y[:, :3])
    assert model.cv_converged_.all() and model.report_.converged.all()
    assert not model.coef_[~mask].any() and not model.coef_path_[:, ~mask].any()
    for n, own in enumerate(mask.T):
        groups = {"groups": labels[own]} if regularizer == "GroupLasso" else {}
        alone = PopulationGLMCV(**groups, **given).fit(X[:, own], Y[:, n])
        np.testing.assert_allclose(model.cv_scores_[:, :, n], alone.cv_scores_[:, :, 0], atol=3e-4)
        assert model.strength_[n] == alone.strength_[0]


def test_the_default_strengths_of_a_mask_are_those_of_the_features_it_leaves(data):
    X, Y = data
    mask = np.ones((X.shape[1], 1))
    mask[: X.shape[1] // 2] = 0
    model = PopulationGLMCV(regularizer="Lasso", feature_mask=mask).fit(X, Y[:, :1])
    alone = PopulationGLMCV(regularizer="Lasso").fit(X[:, X.shape[1] // 2 :], Y[:, :1])
    np.testing.assert_allclose(model.strengths_, alone.strengths_, rtol=1e-5)


def test_features_in_no_group_have_no_penalty(data):
    X, Y = data
    model = PopulationGLMCV(regularizer="GroupLasso", groups=[0, 0, 1, 1, 2, -1], cv=3).fit(X, Y)
    assert model.coef_path_[:, 5].all() and not model.coef_path_[-1].all()


def test_saved_groups_are_kept(data, tmp_path):
    model = PopulationGLMCV(regularizer="GroupLasso", groups=[0, 0, 1, 1, 2, 2], strengths=[1e-3, 1e-2]).fit(*data)
    again = PopulationGLMCV.load(model.save(tmp_path / "groups"))
    assert again.groups == [0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(again.fit(*data).strength_, model.strength_)


@pytest.mark.thorough(cases=1)
def test_a_sparse_path_starts_where_no_coefficient_is_left(data, sparse):
    """Twelve strengths span three decades; the strongest is the smallest that leaves no neuron a coefficient."""
    X, Y = data
    ratio = 0.7 if sparse.regularizer == "ElasticNet" else 1.0
    slope, _ = oracle.gradient("softplus", X, Y, np.zeros((D, N)), oracle.null_intercept("softplus", Y))
    assert sparse.strengths_[-1] == pytest.approx(np.abs(slope).max() / ratio, rel=1e-9)
    np.testing.assert_allclose(sparse.strengths_, sparse.strengths_[-1] * np.logspace(-3, 0, 12))
    assert not sparse.coef_path_[-1].any() and sparse.coef_path_[-2].any()
    assert np.all(np.diff((sparse.coef_path_ == 0).sum(axis=(1, 2))) >= -1)


@pytest.mark.slow
def test_every_fit_to_all_rows_matches_a_separate_fit_and_its_zeros(data, sparse):
    X, Y = data
    assert sparse.cv_gap_is_bound_.all() and sparse.cv_converged_.all()
    for s in (3, 8, 10):
        strength = sparse.strengths_[s]
        best = oracle.proximal("softplus", X, Y, sparse.regularizer, strength, 0.7)
        np.testing.assert_allclose(sparse.coef_path_[s], best.coef, atol=2e-4)
        np.testing.assert_array_equal(sparse.coef_path_[s] == 0, best.coef == 0)
    kind = strength if sparse.regularizer == "Lasso" else (strength, 0.7)
    alone = PopulationGLM(regularizer=sparse.regularizer, regularizer_strength=kind, tol=1e-7).fit(X, Y)
    np.testing.assert_allclose(sparse.coef_path_[s], alone.coef_, atol=1e-3)


@pytest.mark.thorough(cases=1)
def test_the_last_fit_uses_the_penalty_and_the_chosen_strengths(data, sparse):
    X, Y = data
    best = oracle.proximal("softplus", X, Y, sparse.regularizer, sparse.strength_, 0.7)
    np.testing.assert_allclose(sparse.coef_, best.coef, atol=2e-3)
    test = np.arange(T) < T // 4
    at = oracle.proximal("softplus", X[~test], Y[~test], sparse.regularizer, sparse.strengths_[8], 0.7)
    score = -np.mean(oracle.loss("softplus", Y[test], X[test] @ at.coef + at.intercept), axis=0)
    np.testing.assert_allclose(sparse.cv_scores_[8, 0], score - factorials(Y, test), atol=1e-4)


def test_a_removed_solver_raises_an_error_that_says_what_to_use(data):
    with pytest.raises(ValueError, match=r"SharedNewton.*ProximalNewton"):
        PopulationGLMCV(solver_name="SharedNewton").fit(*data)


def test_without_a_penalty_a_fit_that_has_no_optimum_raises_a_warning():
    """A feature that separates the spikes: strength 0 has no optimum, the others do."""
    rng = np.random.default_rng(3)
    x = np.repeat([0.0, 1.0], 200)[:, None]
    y = rng.poisson(x[:, 0] * 2.0)
    order = rng.permutation(400)
    with pytest.warns(UserWarning, match="did not converge"):
        model = PopulationGLMCV(strengths=[0.0, 0.01], cv=2, max_epochs=60).fit(x[order], y[order])
    assert model.cv_converged_[1].all() and not model.cv_converged_[0].all()
    assert model.cv_gap_is_bound_[1].all()


@pytest.mark.thorough
def test_check_estimator_passes_except_for_the_expected_failures():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PopulationGLMCV(strengths=[1e-2, 1.0], cv=2, cv_tol=1e-17, tol=1e-17)
        results = check_estimator(model, expected_failed_checks=EXPECTED_FAILURES, on_fail=None, on_skip=None)
    wrong = {r["check_name"]: r["exception"] for r in results if r["status"] not in ("passed", "xfail", "skipped")}
    assert not wrong and len(results) > 40
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(EXPECTED_FAILURES)


@pytest.mark.thorough
def test_offsets_and_exposure_enter_fits_and_scores():
    """Every fit of the cross-validation, and its score, matches the separate fit with the same offsets."""
    rng = np.random.default_rng(7)
    T, d, n = 900, 3, 2
    X, offset, exposure = rng.normal(size=(T, d)), 0.5 * rng.normal(size=(T, n)), rng.uniform(0.3, 1.2, T)
    Y = rng.poisson(exposure[:, None] * np.logaddexp(0, X @ (0.4 * rng.normal(size=(d, n))) + offset))
    weight = rng.uniform(0.5, 2, T)
    strengths = [1e-3, 1e-1]
    for scoring in ("log-likelihood", "D2"):
        model = PopulationGLMCV(strengths=strengths, cv=3, scoring=scoring, cv_tol=1e-10, tol=1e-10)
        model.fit(X, Y, weight, offset=offset, exposure=exposure)
        assert model.cv_converged_.all() and model.cv_gap_is_bound_.all()
        test = np.arange(T) < T // 3
        for s, strength in enumerate(strengths):
            alone = PopulationGLM(regularizer_strength=strength, tol=1e-10)
            alone.fit(X[~test], Y[~test], weight[~test], offset=offset[~test], exposure=exposure[~test])
            score = alone.score(X[test], Y[test], weight[test], scoring, True, offset[test], exposure[test])
            np.testing.assert_allclose(model.cv_scores_[s, 0], score, rtol=1e-4)
    whole = PopulationGLM(regularizer_strength=model.strength_, tol=1e-10).fit(
        X, Y, weight, offset=offset, exposure=exposure
    )
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-4)
    np.testing.assert_allclose(model.report_.objective, whole.report_.objective, rtol=1e-8)


def test_offsets_per_neuron_stay_with_their_neurons_when_memory_is_limited():
    rng = np.random.default_rng(0)
    X, offset, Y = rng.normal(size=(300, 2)), rng.normal(size=(300, 4)), rng.poisson(1.0, size=(300, 4))
    models = [
        PopulationGLMCV(strengths=[1e-3, 0.1], cv=3, max_memory=m, cv_tol=1e-9).fit(X, Y, offset=offset)
        for m in (2e9, 1.0)
    ]
    np.testing.assert_allclose(models[0].cv_scores_, models[1].cv_scores_, rtol=1e-6)


@pytest.mark.thorough
def test_one_diverging_column_does_not_stop_the_others():
    rng = np.random.default_rng(10)
    T, d = 40, int(rng.choice([1, 2, 6]))
    X = np.cumsum(rng.normal(size=(T, d)), 0) / np.sqrt(T)
    y = ((np.arange(T)[:, None] >= T - 6) * rng.poisson(1, size=(T, 1)))[:, 0].astype(float)
    Y = np.column_stack([y, rng.poisson(1.0, T)])
    cv = ShuffleSplit(3, test_size=0.5, random_state=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PopulationGLMCV("exp", strengths=[0, 1e-2], cv=cv).fit(X, Y)
    assert model.cv_converged_[1].all()
    assert model.cv_converged_[:, :, 1].all()


@pytest.mark.slow
def test_a_giant_count_is_fitted_eventually():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 1)), rng.poisson(0.5, size=40).astype(float)
    y[3] = 1e5
    for regularizer in ("Ridge", "Lasso"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = PopulationGLMCV(regularizer=regularizer, strengths=[1e-6, 1e-2], cv=3).fit(X, y)
        assert np.isfinite(model.cv_gap_).all()
        if regularizer == "Ridge":  # with hardly any penalty, separate fits do not converge either
            assert model.cv_converged_[1].all()


def test_the_last_fit_uses_its_own_tolerance_even_if_exact_hessians_finish_it():
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(40, 1)), rng.poisson(0.5, size=40).astype(float)
    y[3] = 1e5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PopulationGLMCV(strengths=[1e-6, 1e-2], cv=3, cv_tol=1e-2).fit(X, y)
        alone = PopulationGLM(regularizer_strength=model.strength_[0]).fit(X, y)
    np.testing.assert_allclose(model.report_.target, alone.report_.target, rtol=1e-3)
    assert not model.report_.converged[0] or model.report_.gap[0] <= model.report_.target[0]


def test_unobserved_bins_do_not_count_in_scores():
    rng = np.random.default_rng(3)
    T = 300
    X, exposure = rng.normal(size=(T, 2)), rng.choice([0.0, 1.0], T, p=[0.3, 0.7])
    y = rng.poisson(np.logaddexp(0, X[:, 0])) * (exposure > 0)
    model = PopulationGLMCV(strengths=[1e-3, 1e-1], cv=3, cv_tol=1e-9).fit(X, y, exposure=exposure)
    seen = np.flatnonzero(exposure > 0)
    test = seen[np.arange(len(seen)) * 3 // len(seen) == 0]
    train = np.setdiff1d(seen, test)
    alone = PopulationGLM(regularizer_strength=1e-3, tol=1e-9).fit(X[train], y[train])
    assert model.cv_scores_[0, 0, 0] == pytest.approx(
        alone.score(X[test], y[test], score_type="log-likelihood"), rel=1e-4
    )
    both = np.r_[test, np.flatnonzero(exposure == 0)]
    assert alone.score(X[both], y[both], score_type="log-likelihood", exposure=exposure[both]) == pytest.approx(
        alone.score(X[test], y[test], score_type="log-likelihood"), rel=1e-12
    )


# ---------------------------------------------------------------- interruption


STOPPED = "Ctrl-C stopped the cross-validation with "


def stop_at(monkeypatch, owner, name, call):
    """Raise Ctrl-C at the given call of a function."""
    own, calls = getattr(owner, name), []

    def stopped(*args, **options):
        calls.append(1)
        if len(calls) == call:
            before = signal.signal(signal.SIGINT, signal.default_int_handler)  # other tests leave handlers behind
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.signal(signal.SIGINT, before)
        return own(*args, **options)

    monkeypatch.setattr(owner, name, stopped)


def test_ctrl_c_keeps_finished_strengths(data, fitted, monkeypatch, tmp_path):
    X, Y = data
    stop_at(monkeypatch, cv_fits.Fits, "_solve", 5)  # the two strongest are finished, first on all rows, then on folds
    with pytest.warns(UserWarning, match=STOPPED + "2 of 3 strengths scored on every fold") as caught:
        model = PopulationGLMCV(**TIGHT, cv=4).fit(X, Y)
    assert len(caught) == 1 and caught[0].filename == __file__
    for name in ("cv_scores_", "coef_path_", "intercept_path_", "cv_gap_", "cv_converged_"):
        mine, whole = getattr(model, name), getattr(fitted, name)
        np.testing.assert_allclose(
            mine[1:], whole[1:], rtol=1e-12
        )  # as many strengths at a time are scored as there are
        assert not mine[0].any() if mine.dtype == bool else np.isnan(mine[0]).all()
    np.testing.assert_array_equal(model.strengths_, STRENGTHS)
    best = 1 + np.argmax(fitted.cv_scores_[1:].mean(axis=1), axis=0)
    np.testing.assert_array_equal(model.strength_, np.array(STRENGTHS)[best])
    np.testing.assert_array_equal(model.coef_, fitted.coef_path_[best, :, np.arange(N)].T)
    assert model.report_.converged.all() and model.report_.gap_is_bound.all()  # those fits were finished
    alone = PopulationGLM(regularizer_strength=model.strength_, tol=1e-9).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), alone.predict(X), rtol=1e-3)
    np.testing.assert_allclose(model.report_.target, alone.report_.target, rtol=1e-3)
    again = PopulationGLMCV.load(model.save(tmp_path / "cv"))
    np.testing.assert_array_equal(again.cv_scores_, model.cv_scores_)


def test_ctrl_c_before_anything_could_be_scored_leaves_the_old_model(data, fitted, monkeypatch):
    model = clone(fitted).fit(*data)
    before = dict(vars(model))
    stop_at(monkeypatch, cv_fits.Fits, "_solve", 1)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data)
    assert vars(model).keys() == before.keys() and all(vars(model)[name] is before[name] for name in before)


def test_neurons_not_reached_before_ctrl_c_have_a_constant_rate(data, monkeypatch):
    X, Y = data
    Y = np.column_stack([Y, np.zeros(T)])
    stop_at(monkeypatch, HostRows, "place", 5)  # in the folds of the second neuron, at the strongest strength
    with pytest.warns() as caught:
        model = PopulationGLMCV(**TIGHT, cv=4, max_memory=1).fit(X, Y)  # one neuron at a time
    interruption, *others = (str(w.message) for w in caught)
    assert interruption.startswith(STOPPED + "0 to 1 of 3 strengths")
    assert "Nothing is scored for 2 neurons: strength_ is nan, the rate constant." in interruption
    assert any(text.startswith("2 of 4 neurons did not converge: 2 interrupted") for text in others)
    np.testing.assert_array_equal(model.strength_, [STRENGTHS[2], np.nan, np.nan, STRENGTHS[2]])
    np.testing.assert_array_equal(model.best_strength_, model.strength_)
    alone = PopulationGLM(regularizer_strength=STRENGTHS[2], tol=1e-9).fit(X, Y[:, :1])
    np.testing.assert_allclose(model.coef_[:, :1], alone.coef_, atol=1e-4)
    assert list(model.report_.status) == [
        Status.CONVERGED, Status.INTERRUPTED, Status.INTERRUPTED, Status.NO_SPIKES
    ]  # fmt: skip
    assert "interrupted" in str(model.report_) and np.isfinite(model.score(X, Y))


def test_ctrl_c_while_exact_hessians_finish_the_fits_keeps_their_state(monkeypatch):
    """Fits of a strength of 0 that have no optimum are finished by exact Hessians; the other strength is scored."""
    x = np.repeat([0.0, 1.0], 100)[:, None]
    y = np.random.default_rng(3).poisson(x[:, 0] * 2.0)
    order = np.random.default_rng(4).permutation(200)
    stop_at(monkeypatch, FoldedProblem, "finish_neuron", 2)
    with pytest.warns(UserWarning) as caught:
        model = PopulationGLMCV(strengths=[0.0, 0.01], cv=2).fit(x[order], y[order])
    assert str(caught[0].message).startswith(STOPPED + "1 of 2 strengths")
    assert np.isfinite(model.cv_scores_[1]).all() and model.cv_converged_[1].all()
    assert np.isfinite(model.predict(x)).all()


def test_ctrl_c_while_folds_are_scored_stops_nothing_but_a_second_one_does(data, fitted, monkeypatch):
    stop_at(monkeypatch, population_glm_cv, "score_folds", 1)
    with pytest.warns(UserWarning, match=STOPPED + "3 of 3 strengths"):
        model = PopulationGLMCV(**TIGHT, cv=4).fit(*data)
    np.testing.assert_array_equal(model.cv_scores_, fitted.cv_scores_)
    np.testing.assert_array_equal(model.coef_, fitted.coef_)
    assert model.report_.converged.all()
    monkeypatch.undo()
    stop_at(monkeypatch, cv_fits.Fits, "_solve", 3)
    stop_at(monkeypatch, population_glm_cv, "score_folds", 1)
    with pytest.raises(KeyboardInterrupt):
        PopulationGLMCV(**TIGHT, cv=4).fit(*data)


def test_ctrl_c_in_the_last_fit_keeps_its_start(data, monkeypatch):
    X, Y = data
    run = cv_fits.Fits.run

    def loose(fits, bar):
        fits._tol[-1] = fits._tol[0]
        return run(fits, bar)

    monkeypatch.setattr(cv_fits.Fits, "run", loose)
    monkeypatch.setattr(cv_fits.Fits, "have_converged", lambda *_: False)
    stop_at(monkeypatch, HostRows, "place", 7)  # three strengths came before, all rows and folds
    with pytest.warns(UserWarning) as caught:
        model = PopulationGLMCV(strengths=STRENGTHS, cv_tol=0.5, tol=1e-14, cv=4).fit(X, Y)
    assert str(caught[0].message).startswith(STOPPED + "3 of 3 strengths")
    assert "interrupted" in str(caught[1].message) and np.any(model.report_.status == Status.INTERRUPTED)
    path_ = model.coef_path_[np.searchsorted(STRENGTHS, model.strength_), :, np.arange(N)].T
    np.testing.assert_allclose(model.coef_, path_, atol=1e-12)


def test_finished_strengths_are_compared_without_the_unfinished_one(data):
    X, Y = data
    recording = SimpleNamespace(X=X, Y=Y[:, :2], own=None, mean_exposure=1.0)
    folds = Folds(np.ones((T, 1), bool), np.ones((T, 1), bool))
    ridge = PenaltyFamily("Ridge", X.shape[1])
    fits = cv_fits.Fits(recording, PoissonSoftplus(), ridge, np.array(STRENGTHS), folds, None, LoopOptions(), 1e-5)
    assert not fits.comparable.any()
    fits.gap[1:, :, :] = 1e-3
    np.testing.assert_array_equal(fits.comparable, [[False, False], [True, True], [True, True]])
    fits.status[2, :, 0] = Status.MAX_EPOCHS
    np.testing.assert_array_equal(fits.comparable, [[False, False], [False, True], [True, True]])
