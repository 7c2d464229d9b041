"""Strengths nobody gave: they suit the features, and a penalty that leaves nothing is named."""

import warnings

import numpy as np
import pytest
import scipy.sparse

from glmfit import MultinomialGLM, PopulationGLM, SoftmaxGLM
from glmfit.estimators._default_strength import default_ridge

FLAT = "next to nothing of the coefficients, although the features tell something"


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 3))
    return X, rng.poisson(np.exp(X @ [[0.5, 0.0], [-0.3, 0.2], [0.0, 0.1]] - 1)).astype(float)


def test_the_default_ridge_is_the_smaller_of_two_shares_of_the_covariance(rng):
    for n_rows, n_features in ((500, 6), (20, 50)):
        X = rng.normal(size=(n_rows, n_features)) @ rng.normal(size=(n_features, n_features))
        variances = np.linalg.eigvalsh(np.cov(X.T, bias=True))[-min(n_features, n_rows - 1) :]
        expected = min(variances.sum() / n_rows, np.median(variances) / 20)
        np.testing.assert_allclose(default_ridge(X, None), expected, rtol=1e-9)


def test_the_default_ridge_follows_scale_and_nothing_else(rng):
    X = rng.normal(size=(300, 5)) * [1, 2, 3, 4, 5]
    turned, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    strength = default_ridge(X, None)
    np.testing.assert_allclose(default_ridge(100 + X @ turned, None), strength, rtol=1e-9)
    np.testing.assert_allclose(default_ridge(7 * X, None), 49 * strength, rtol=1e-9)


def test_a_weight_is_a_number_of_rows_for_the_default_ridge(rng):
    X, weights = rng.normal(size=(50, 4)), rng.integers(0, 4, 50)
    expected = default_ridge(np.repeat(X, weights, axis=0), None)
    np.testing.assert_allclose(default_ridge(X, weights.astype(float)), expected, rtol=1e-9)


def test_constant_features_get_the_strength_of_nemos(rng):
    assert default_ridge(np.full((10, 2), 3.0), None) == 1.0


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
