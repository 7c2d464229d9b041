"""Input that `PopulationGAM` refuses; messages state what was given, what is allowed and what to do."""

import warnings

import numpy as np
import pytest

from glmfit import PopulationGAM
from glmfit.design import BSpline, Term

BASIS = BSpline(8, (0, 1), name="x")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return BASIS.features(rng.uniform(0, 1, 100)), rng.poisson(1, (100, 3)).astype(float)


TERMS = [
    (BSpline(5, (0, 1), name="x"), "X has 8 features, but terms is a basis of 5"),
    ("x", "terms is a str; it must be a glmfit.design.Basis"),
    ([[0, 1]], "terms is a list; it must be a glmfit.design.Basis"),
    ({"a": BASIS}, "term 'a' is a basis, which does not say where its features are"),
    ({1: [0]}, "terms has the name 1; names of terms are non-empty strings"),
    ({"": [0]}, "terms has the name ''; names of terms are non-empty strings"),
    ({"a": [0, 9]}, "'a' has the feature index 9; X has 8 features, so allowed are 0 to 7"),
    ({"a": Term.ridge([0, 9])}, "term 'a' has the feature 9; X has 8 features, so allowed are 0 to 7"),
    ({"a": [-1]}, "'a' has the feature index -1"),
    ({"a": []}, "'a' is empty"),
    ({"a": [0, 1], "b": [1]}, "feature 1 is in term 'a' and again in 'b'"),
]


@pytest.mark.parametrize("terms, message", TERMS, ids=range(len(TERMS)))
def test_invalid_terms_are_refused(terms, message, data):
    with pytest.raises((TypeError, ValueError), match=message):
        PopulationGAM(terms).fit(*data)


STRENGTHS = [
    (-1.0, "strengths is -1.0; strengths must be finite and >= 0"),
    (np.nan, "strengths is nan; strengths must be finite"),
    ("reml", "strengths is 'reml'; allowed are 'marginal-likelihood', 'cross-validation', or numbers"),
    ([1.0, 2.0], r"strengths has shape \(2,\); allowed are a number, one for each of the 1 penalties"),
    (np.ones((3, 1)), r"strengths has shape \(3, 1\); .* one for each penalty and neuron, \(1, 3\)"),
    ({"y": 1.0}, "strengths names 'y', which is not a term; it needs the terms x"),
    ({}, "strengths lacks 'x'; it needs the terms x"),
    ({"x": -1}, "the strength of 'x' is -1; strengths must be finite and >= 0"),
    ({"x": "a"}, "the strength of 'x' is 'a'; it must be an array of numbers"),
    ({"x": [[1, 2]]}, r"the strength of 'x' has shape \(1, 2\)"),
]


@pytest.mark.parametrize("strengths, message", STRENGTHS, ids=range(len(STRENGTHS)))
def test_invalid_strengths_are_refused(strengths, message, data):
    with pytest.raises((TypeError, ValueError), match=message):
        PopulationGAM(BASIS, strengths).fit(*data)


PARTLY = np.ones((8, 3))
PARTLY[0, 1] = 0
MASKS = [
    (np.ones((3, 8)), r"feature_mask has shape \(3, 8\); it needs \(feature, neuron\), \(8, 3\)"),
    (np.full((8, 3), 2), "feature_mask has values other than 0 and 1"),
    (PARTLY, "feature_mask leaves neuron 1 some features of term 'x' and not others"),
    ({"q": [1, 1, 1]}, "feature_mask names 'q', which is not a term; terms are x"),
    ({"x": [1, 1]}, r"feature_mask of 'x' has shape \(2,\); it needs \(neuron,\), \(3,\)"),
    ({"x": [1, np.nan, 1]}, "feature_mask of 'x' has values other than 0 and 1"),
]


@pytest.mark.parametrize("mask, message", MASKS, ids=range(len(MASKS)))
def test_invalid_masks_are_refused(mask, message, data):
    with pytest.raises((TypeError, ValueError), match=message):
        PopulationGAM(BASIS, feature_mask=mask).fit(*data)


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"tol": 0}, "tol is 0; it must be a finite number above 0"),
        ({"max_epochs": 0}, "max_epochs is 0; it must be a whole number of at least 1"),
        ({"max_memory": "1"}, "max_memory is '1'; it must be a finite number above 0"),
        ({"observation_model": "softmax"}, "observation_model is 'softmax'; allowed are 'Poisson'"),
        ({"inverse_link_function": "probit"}, "inverse_link_function is 'probit'"),
        ({"strengths": "cross-validation", "cv": 1}, "cv is 1"),
    ],
    ids=lambda of: next(iter(of)) if isinstance(of, dict) else "",
)
def test_invalid_parameters_are_refused(parameters, message, data):
    with pytest.raises((TypeError, ValueError), match=message):
        PopulationGAM(BASIS, **parameters).fit(*data)


def test_an_unknown_parameter_is_refused():
    with pytest.raises(TypeError, match=r"PopulationGAM: .*'strength'; its parameters are terms, strengths"):
        PopulationGAM(BASIS, strength=1)


def test_strengths_given_in_any_shape_are_kept(data):
    terms = {"a": Term([0, 1, 2], (np.eye(3), np.ones((3, 3)))), "b": Term.ridge([3, 4]), "c": Term([5], ())}
    wanted = {"a": np.array([[0.1] * 3, [0.2] * 3]), "b": np.array([[0.3] * 3])}
    for given in ([0.1, 0.2, 0.3], {"a": [0.1, 0.2], "b": 0.3}, {"b": [0.3], "a": wanted["a"]}):
        model = PopulationGAM(terms, given).fit(*data)
        for name, of in wanted.items():
            np.testing.assert_allclose(model.strengths_[name], of)
        assert model.strengths_["c"].shape == (0, 3)
    alone = PopulationGAM(terms, given).set_params(strengths=0.1).fit(data[0], data[1][:, 0])
    np.testing.assert_allclose(alone.strengths_["a"], [0.1, 0.1])
    assert isinstance(alone.edf_["a"], float)


def test_a_term_may_have_the_name_of_an_array_in_the_file(data, tmp_path):
    model = PopulationGAM({"covariance.x": [0, 1], "a b": [2]}).fit(*data)
    loaded = PopulationGAM.load(model.save(tmp_path / "model"))
    assert list(loaded.strengths_) == ["covariance.x", "a b"]
    np.testing.assert_array_equal(loaded.edf_["covariance.x"], model.edf_["covariance.x"])


def test_little_memory_gives_the_same_fits(data):
    one, many = PopulationGAM(BASIS, max_memory=1).fit(*data), PopulationGAM(BASIS).fit(*data)
    np.testing.assert_allclose(one.predict(data[0]), many.predict(data[0]), rtol=1e-3)
    np.testing.assert_allclose(one.edf_["x"], many.edf_["x"], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("max_epochs", [1, 2, 4])
def test_an_exhausted_budget_leaves_a_usable_model(max_epochs, data):
    X, Y = data[0], np.random.default_rng(1).poisson(np.exp(3 * data[0] @ np.arange(8.0)[:, None] / 8 - 1))
    model = PopulationGAM(BASIS, max_epochs=max_epochs, inverse_link_function="exp")
    if max_epochs == 1:
        with pytest.warns(UserWarning, match="max epochs"):
            model.fit(X, Y)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, Y)
    assert np.isfinite(model.predict(X)).all() and np.isfinite(model.coef_).all()
    assert np.all(model.report_.objective <= model.report_.null_objective + 1e-9) or max_epochs == 1
    str(model.report_)
