"""Default strengths suit the features, and a penalty that leaves nothing is reported."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from oracles import default_strength as oracle
from oracles import population

from glmfit import MultinomialGLM, PopulationGLM, PopulationGLMCV, SoftmaxGLM

FLAT = "next to nothing of the coefficients, although the features are informative"


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 3))
    return X, rng.poisson(np.exp(X @ [[0.5, 0.0], [-0.3, 0.2], [0.0, 0.1]] - 1)).astype(float)


def near(strengths, expected, decades=0.02):
    """Whether strengths agree up to the accuracy of the parabola through the best of 128."""
    return np.all(np.abs(np.log10(strengths) - np.log10(expected)) < decades)


@pytest.mark.thorough
@pytest.mark.parametrize("link", ["exp", "softplus"])
@pytest.mark.parametrize("n_rows, n_features", [(400, 6), (30, 50)])
def test_the_default_ridge_has_the_greatest_marginal_likelihood(rng, link, n_rows, n_features):
    X = rng.normal(size=(n_rows, n_features)) @ rng.normal(size=(n_features, n_features))
    Y = rng.poisson(np.exp(np.clip(X @ rng.normal(size=(n_features, 4)) * [0.0, 0.01, 0.05, 0.3] - 1, -9, 2)))
    Y[0] += 1  # no silent neuron
    expected = np.stack([oracle.strength(link, X, y) for y in Y.T], axis=1)
    got = PopulationGLM(link).fit(X, Y).strength_
    assert got.shape == expected.shape and near(got, expected, 0.1 if n_features > n_rows else 0.02)
    assert np.ptp(np.log(expected[0])) > 0.1
    np.testing.assert_allclose(PopulationGLM(link).fit(X, Y[:, 1]).strength_, got[:, [1]], rtol=1e-4)


@pytest.mark.parametrize("link", ["exp", "softplus"])
def test_the_default_ridge_accounts_for_weights_exposure_and_offsets(rng, link):
    X = 3 + rng.normal(size=(300, 5))
    offset, weights, exposure = 0.5 * X[:, 0], rng.integers(0, 4, 300), rng.uniform(0.3, 1, 300)
    y = rng.poisson(np.exp(0.2 * X[:, 1] + offset - 2))
    model = PopulationGLM(link).fit(X, y, sample_weight=weights, offset=offset, exposure=exposure)
    expected = oracle.strength(link, X, y / exposure, weights * exposure, offset, exposure)
    assert near(model.strength_, expected[:, None])
    scaled = PopulationGLM(link).fit(X, y, sample_weight=weights / 1e3, offset=offset, exposure=exposure)
    np.testing.assert_allclose(scaled.strength_, model.strength_, rtol=1e-5)


def test_strong_tuning_leaves_the_prior_of_the_features(rng):
    X = rng.uniform(-1, 1, size=(5000, 6))
    model = PopulationGLM().fit(X, np.where(X[:, 0] > 0, 9.0, 1.0))
    units = np.ptp(X, axis=0) / 2
    expected = 1.5 * np.sum(np.var(X / units, axis=0)) / 5000 * units**2
    np.testing.assert_allclose(model.strength_, expected[:, None], rtol=1e-6)


@pytest.mark.parametrize("clock", [0.05, 50.0, 1e6])
def test_features_in_other_units_do_not_prevent_fitting_a_feature(rng, clock):
    z = rng.normal(size=20_000)
    y = rng.poisson(np.logaddexp(0, z - 1))
    alone = PopulationGLM().fit(z[:, None], y).score(z[:, None], y)
    X = np.c_[clock * np.arange(20_000), rng.normal(size=(20_000, 3)), z]
    assert PopulationGLM().fit(X, y).score(X, y) > 0.99 * alone
    # If the informative feature is too small to be told from one that hardly varies, about half is left.
    small = np.c_[1e-4 * z, rng.normal(size=(20_000, 4))]
    assert PopulationGLM().fit(small, y).score(small, y) > 0.4 * alone


def test_counts_independent_of_the_features_shrink_their_coefficients(rng):
    X, Y = rng.normal(size=(5000, 100)), rng.poisson(1.0, size=(5000, 10))
    shrunk, free = (np.std(X @ PopulationGLM(regularizer_strength=s).fit(X, Y).coef_) for s in (None, 1e-6))
    assert shrunk < 0.3 * free


def test_a_silent_neuron_does_not_change_other_strengths(rng):
    X, y = rng.normal(size=(300, 4)), rng.poisson(0.5, 300)
    strengths = PopulationGLM().fit(X, np.c_[y, 0 * y]).strength_
    np.testing.assert_allclose(strengths[:, [0]], PopulationGLM().fit(X, y).strength_, rtol=1e-5)
    assert np.all(strengths > 0) and np.isfinite(strengths).all()


def test_the_default_ridge_follows_the_units_of_every_feature(rng):
    X, Y = rng.normal(size=(300, 5)) * [1, 2, 3, 4, 5], rng.poisson(0.5, (300, 3))
    strength, factors = PopulationGLM().fit(X, Y).strength_, np.array([7.0, 2.0, 1.0, 1.0, 0.5])
    other = PopulationGLM().fit(100 + X * factors, Y).strength_
    np.testing.assert_allclose(other, strength * factors[:, None] ** 2, rtol=1e-3)


def test_rows_of_weight_0_do_not_affect_the_units(rng):
    X, y, weights = rng.normal(size=(50, 4)), rng.poisson(1.0, 50), (np.arange(50) < 40).astype(float)
    X[45] = 1e6
    some = PopulationGLM().fit(X[:40], y[:40]).strength_
    np.testing.assert_allclose(PopulationGLM().fit(X, y, sample_weight=weights).strength_, some, rtol=1e-4)


def test_constant_features_get_the_default_strength_of_nemos(rng):
    with pytest.warns(UserWarning, match="constant columns"):
        assert np.all(PopulationGLM().fit(np.full((10, 2), 3.0), rng.poisson(1.0, 10)).strength_ == 1.0)


def test_strengths_of_every_neuron_are_saved(rng, tmp_path):
    X, Y = rng.normal(size=(100, 3)), rng.poisson(1.0, (100, 2))
    model = PopulationGLM().fit(X, Y)
    model.save(tmp_path / "model.npz")
    np.testing.assert_array_equal(PopulationGLM.load(tmp_path / "model.npz").strength_, model.strength_)


@pytest.mark.thorough
def test_streamed_rows_get_the_same_default(rng, tmp_path):
    X, Y = rng.normal(size=(20_000, 4)).astype(np.float32), rng.poisson(0.5, (20_000, 3)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    read = PopulationGLM(max_memory=2e5).fit(np.load(tmp_path / "X.npy", mmap_mode="r"), Y)
    np.testing.assert_allclose(read.strength_, PopulationGLM().fit(X, Y).strength_, rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("solver", ["SAGA", "Newton"])
def test_every_solver_reaches_the_optimum_at_the_default_strength(rng, solver):
    """Strengths in units of the features are a plain ridge in other coordinates."""
    X = rng.normal(size=(3000, 5)) * [0.1, 1, 10, 100, 100] + 3
    X[:, 4] = X[:, 3] - X[:, 2]  # and a direction that is excluded
    Y = rng.poisson(np.logaddexp(0, X @ [[3, 0], [0.3, 0.1], [0.03, 0.02], [0, 0], [0, 0]]))
    model = PopulationGLM(solver_name=solver, max_epochs=5000).fit(X, Y)
    assert model.report_.converged.all() and model.report_.gap_is_bound.all()
    units = np.sqrt(model.strength_[:, :1] / model.strength_.max(axis=0)[0])
    best = population.newton("softplus", X / units.T, Y, model.strength_.max(axis=0))
    excess = model.report_.objective - best.objective
    assert np.all(excess <= model.report_.gap) and np.all(excess > -1e-12)
    np.testing.assert_allclose(model.predict(X), np.logaddexp(0, X @ (best.coef / units) + best.intercept), rtol=0.02)


def test_the_default_strength_for_classes_matches_scikit_learn(rng):
    X, labels = rng.normal(size=(60, 2)), rng.integers(0, 3, 60)
    assert SoftmaxGLM().fit(X, labels).strength_ == 1 / 60
    weights = rng.integers(0, 3, 60)
    weighted = SoftmaxGLM(tol=1e-12).fit(X, labels, sample_weight=weights)
    repeated = SoftmaxGLM(tol=1e-12).fit(np.repeat(X, weights, axis=0), np.repeat(labels, weights))
    assert weighted.strength_ == 1 / weights.sum() == repeated.strength_
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-4)


@pytest.mark.parametrize("regularizer, groups", [("Ridge", None), ("Lasso", None), ("GroupLasso", [0, 0, 1])])
def test_a_penalty_that_leaves_nothing_is_reported_once(data, regularizer, groups):
    model = PopulationGLM(regularizer=regularizer, regularizer_strength=1e3, groups=groups)
    with pytest.warns(UserWarning, match=FLAT) as caught:
        model.fit(*data)
    assert len([w for w in caught if "next to nothing" in str(w.message)]) == 1
    assert "regularizer_strength 1e+03" in str(caught[0].message)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_penalty_on_classes_that_leaves_nothing_is_reported(rng, sparse):
    X = rng.normal(size=(500, 3))
    labels = (X[:, 0] + rng.normal(size=500) > 0).astype(int)
    features = scipy.sparse.csr_array(X) if sparse else X
    with pytest.warns(UserWarning, match=FLAT):
        SoftmaxGLM(regularizer_strength=1e3).fit(features, labels)
    with pytest.warns(UserWarning, match=FLAT):
        MultinomialGLM(regularizer_strength=1e3).fit(features, np.eye(2)[labels] * 5)


def test_uninformative_features_are_not_blamed_on_the_penalty(rng):
    X, Y = rng.normal(size=(1000, 4)), rng.poisson(0.5, (1000, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.all(np.abs(PopulationGLM(regularizer_strength=1e3).fit(X, Y).coef_) < 1e-3)
        assert not PopulationGLM(regularizer="Lasso", regularizer_strength=1e3).fit(X, Y[:, 0]).coef_.any()
        SoftmaxGLM(regularizer_strength=1e3).fit(X, rng.integers(0, 3, 1000))
        # A feature that the offset already contains has nothing left to explain.
        known = 0.5 * X[:, 0]
        PopulationGLM("exp", regularizer_strength=1e3).fit(X, rng.poisson(np.exp(known)), offset=known)


@pytest.mark.parametrize("regularizer, strengths", [("Ridge", [1e3, 1e4]), ("Lasso", [1.0, 10.0])])
def test_candidate_strengths_that_leave_nothing_are_reported(data, regularizer, strengths):
    with pytest.warns(UserWarning, match=f"{FLAT}: with strengths of .* and more .* Pass smaller ones"):
        PopulationGLMCV(regularizer=regularizer, strengths=strengths).fit(*data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PopulationGLMCV(regularizer=regularizer, strengths=[1e-3, *strengths]).fit(*data)


def test_a_default_strength_is_called_the_default(data):
    X, Y = data
    with pytest.warns(UserWarning, match=r"with the default strength \(strength_\) no .* smaller regularizer_strength"):
        PopulationGLM(regularizer="Lasso").fit(X, Y)


@pytest.mark.thorough
def test_fits_that_have_not_moved_are_not_blamed_on_the_penalty(data):
    X, _ = data
    labels = (X[:, 0] > 0).astype(int)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SoftmaxGLM(solver_name="SGD", regularizer_strength=1e-4, step=1e-6, max_epochs=1).fit(X + 100, labels)
    assert caught and not any("next to nothing" in str(warning.message) for warning in caught)
