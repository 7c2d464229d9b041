"""Strengths nobody gave: they suit the features, and a penalty that leaves nothing is named."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from oracles import default_strength as oracle

from glmfit import MultinomialGLM, PopulationGLM, SoftmaxGLM

FLAT = "next to nothing of the coefficients, although the features tell something"


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 3))
    return X, rng.poisson(np.exp(X @ [[0.5, 0.0], [-0.3, 0.2], [0.0, 0.1]] - 1)).astype(float)


def near(strengths, expected):
    """Whether strengths agree to the parabola through the best of 64."""
    return np.all(np.abs(np.log10(strengths) - np.log10(expected)) < 0.01)


@pytest.mark.parametrize("link", ["exp", "softplus"])
@pytest.mark.parametrize("n_rows, n_features", [(400, 6), (30, 50)])
def test_the_default_ridge_has_the_greatest_marginal_likelihood(rng, link, n_rows, n_features):
    X = rng.normal(size=(n_rows, n_features)) @ rng.normal(size=(n_features, n_features))
    Y = rng.poisson(np.exp(np.clip(X @ rng.normal(size=(n_features, 4)) * [0.0, 0.01, 0.05, 0.3] - 1, -9, 2)))
    Y[0] += 1  # no silent neuron
    expected = [oracle.strength(link, X, y) for y in Y.T]
    assert near(PopulationGLM(link).fit(X, Y).strength_, expected)
    assert len(set(expected)) > 1
    alone = PopulationGLM(link).fit(X, Y[:, 1]).strength_
    assert isinstance(alone, float)
    assert near(alone, expected[1])


@pytest.mark.parametrize("link", ["exp", "softplus"])
def test_the_default_ridge_knows_weights_exposure_and_offsets(rng, link):
    X = 3 + rng.normal(size=(300, 5))
    offset, weights, exposure = 0.5 * X[:, 0], rng.integers(0, 4, 300), rng.uniform(0.3, 1, 300)
    y = rng.poisson(np.exp(0.2 * X[:, 1] + offset - 2))
    model = PopulationGLM(link).fit(X, y, sample_weight=weights, offset=offset, exposure=exposure)
    assert near(model.strength_, oracle.strength(link, X, y / exposure, weights * exposure, offset))


def test_the_default_ridge_is_the_weakest_allowed_where_tuning_is_strong(rng):
    X = rng.normal(size=(500, 6)) @ rng.normal(size=(6, 6))
    variances = np.linalg.eigvalsh(np.cov(X.T, bias=True))
    model = PopulationGLM().fit(X, np.where(X[:, 0] > 0, 20.0, 0.0))
    np.testing.assert_allclose(model.strength_, min(variances.sum() / 500, np.median(variances) / 20), rtol=1e-6)


def test_counts_that_do_not_follow_the_features_leave_little_of_them(rng):
    X, Y = rng.normal(size=(5000, 100)), rng.poisson(1.0, size=(5000, 10))
    shrunk, free = (np.std(X @ PopulationGLM(regularizer_strength=s).fit(X, Y).coef_) for s in (None, 1e-6))
    assert shrunk < 0.3 * free


def test_a_silent_neuron_changes_no_strength(rng):
    X, y = rng.normal(size=(300, 4)), rng.poisson(0.5, 300)
    strengths = PopulationGLM().fit(X, np.c_[y, 0 * y]).strength_
    np.testing.assert_allclose(strengths[0], PopulationGLM().fit(X, y).strength_, rtol=1e-5)
    assert np.isfinite(strengths).all()


def test_the_default_ridge_follows_scale_and_nothing_else(rng):
    X, Y = rng.normal(size=(300, 5)) * [1, 2, 3, 4, 5], rng.poisson(0.5, (300, 3))
    turned, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    strength = PopulationGLM().fit(X, Y).strength_
    np.testing.assert_allclose(PopulationGLM().fit(100 + X @ turned, Y).strength_, strength, rtol=1e-3)
    np.testing.assert_allclose(PopulationGLM().fit(7 * X, Y).strength_, 49 * strength, rtol=1e-3)


def test_a_weight_is_a_number_of_rows_for_the_default_ridge(rng):
    X, y, weights = rng.normal(size=(50, 4)), rng.poisson(1.0, 50), rng.integers(0, 4, 50)
    repeated = PopulationGLM().fit(np.repeat(X, weights, axis=0), np.repeat(y, weights)).strength_
    np.testing.assert_allclose(PopulationGLM().fit(X, y, sample_weight=weights).strength_, repeated, rtol=1e-4)


def test_constant_features_get_the_strength_of_nemos(rng):
    with pytest.warns(UserWarning, match="constant columns"):
        assert PopulationGLM().fit(np.full((10, 2), 3.0), rng.poisson(1.0, 10)).strength_ == 1.0


def test_strengths_of_every_neuron_are_saved(rng, tmp_path):
    X, Y = rng.normal(size=(100, 3)), rng.poisson(1.0, (100, 2))
    model = PopulationGLM().fit(X, Y)
    model.save(tmp_path / "model.npz")
    np.testing.assert_array_equal(PopulationGLM.load(tmp_path / "model.npz").strength_, model.strength_)


def test_rows_that_are_read_get_the_same_default(rng, tmp_path):
    X, Y = rng.normal(size=(20_000, 4)).astype(np.float32), rng.poisson(0.5, (20_000, 3)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    read = PopulationGLM(max_memory=2e5).fit(np.load(tmp_path / "X.npy", mmap_mode="r"), Y)
    np.testing.assert_allclose(read.strength_, PopulationGLM().fit(X, Y).strength_, rtol=1e-3)


def test_the_default_of_classes_is_that_of_scikit_learn(rng):
    X, labels = rng.normal(size=(60, 2)), rng.integers(0, 3, 60)
    assert SoftmaxGLM().fit(X, labels).strength_ == 1 / 60
    weights = rng.integers(0, 3, 60)
    weighted = SoftmaxGLM(tol=1e-12).fit(X, labels, sample_weight=weights)
    repeated = SoftmaxGLM(tol=1e-12).fit(np.repeat(X, weights, axis=0), np.repeat(labels, weights))
    assert weighted.strength_ == 1 / weights.sum() == repeated.strength_
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-5)


@pytest.mark.parametrize("regularizer, groups", [("Ridge", None), ("Lasso", None), ("GroupLasso", [0, 0, 1])])
def test_a_penalty_that_leaves_nothing_is_named_once(data, regularizer, groups):
    model = PopulationGLM(regularizer=regularizer, regularizer_strength=1e3, groups=groups)
    with pytest.warns(UserWarning, match=FLAT) as caught:
        model.fit(*data)
    assert len([w for w in caught if "next to nothing" in str(w.message)]) == 1
    assert "regularizer_strength 1e+03" in str(caught[0].message)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_penalty_of_classes_that_leaves_nothing_is_named(rng, sparse):
    X = rng.normal(size=(500, 3))
    labels = (X[:, 0] + rng.normal(size=500) > 0).astype(int)
    features = scipy.sparse.csr_array(X) if sparse else X
    with pytest.warns(UserWarning, match=FLAT):
        SoftmaxGLM(regularizer_strength=1e3).fit(features, labels)
    with pytest.warns(UserWarning, match=FLAT):
        MultinomialGLM(regularizer_strength=1e3).fit(features, np.eye(2)[labels] * 5)


def test_features_that_tell_nothing_are_not_the_fault_of_the_penalty(rng):
    X, Y = rng.normal(size=(1000, 4)), rng.poisson(0.5, (1000, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PopulationGLM(regularizer_strength=1e3).fit(X, Y)
        PopulationGLM(regularizer="Lasso", regularizer_strength=1e3).fit(X, Y[:, 0])
        SoftmaxGLM(regularizer_strength=1e3).fit(X, rng.integers(0, 3, 1000))
        # What an offset explains leaves nothing for a feature that goes with it.
        known = 0.5 * X[:, 0]
        PopulationGLM("exp", regularizer_strength=1e3).fit(X, rng.poisson(np.exp(known)), offset=known)
