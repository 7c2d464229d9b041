"""Paths of strengths: every fit matches the separate fit of `PopulationGLM`."""

import numpy as np
import pytest
from cases import recording

from glmfit import PopulationGLM, Status
from glmfit.estimators import cv_fits, paths

STRENGTHS = np.array([0.1, 0.02, 0.003])


@pytest.fixture
def rows():
    return recording(seed=3, t=400, d=6, n=3)


def alone(strength, X, Y, regularizer="Lasso", ratio=None, **more):
    strength = strength if ratio is None else (strength, ratio)
    given = {k: more.pop(k) for k in ("sample_weight", "offset", "exposure") if k in more}
    return PopulationGLM(regularizer=regularizer, regularizer_strength=strength, tol=1e-9, **more).fit(X, Y, **given)


@pytest.mark.thorough
@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso", "ElasticNet", "GroupLasso"])
@pytest.mark.parametrize("link", ["softplus", "exp"])
def test_every_fit_matches_a_separate_fit(regularizer, link, rows):
    X, Y = rows
    more = {"groups": [0, 0, 1, 1, 2, -1]} if regularizer == "GroupLasso" else {}
    model = PopulationGLM(link, regularizer=regularizer, tol=1e-9, **more)
    path = model.path(X, Y, STRENGTHS[::-1])
    assert path.converged.all() and path.gap_is_bound.all() and not hasattr(model, "coef_")
    np.testing.assert_array_equal(path.strengths, np.repeat(STRENGTHS[:, None], 3, axis=1))
    for k, strength in enumerate(STRENGTHS):
        one = alone(strength, X, Y, regularizer, inverse_link_function=link, **more)
        np.testing.assert_allclose(path.coef[k], one.coef_, atol=2e-4)
        np.testing.assert_allclose(path.objective[k], one.report_.objective, rtol=1e-7)
        assert np.all(path.objective[k] - one.report_.objective <= path.gap[k] + 1e-9)


@pytest.mark.parametrize("model", ["NegativeBinomial", "Gaussian", "Gamma", "Bernoulli"])
def test_other_responses_keep_their_own_units(model, rows):
    X, Y = rows
    Y = {"Gaussian": Y * 3.0 + 7, "Gamma": Y + 0.5, "Bernoulli": np.minimum(Y, 1)}.get(model, Y)
    more = {"observation_model": model} | ({"dispersion": 0.5} if model == "NegativeBinomial" else {})
    path = PopulationGLM(regularizer="Lasso", tol=1e-9, **more).path(X, Y, STRENGTHS)
    for k, strength in enumerate(STRENGTHS):
        one = alone(strength, X, Y, **more)
        np.testing.assert_allclose(path.coef[k], one.coef_, atol=3e-4 * max(1, np.abs(one.coef_).max()))
        np.testing.assert_allclose(path.intercept[k], one.intercept_, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(path.objective[k], one.report_.objective, rtol=1e-6)


@pytest.mark.parametrize("together", [1, 48])
def test_a_ridge_of_gaussian_responses_has_its_closed_form_at_every_strength(together, rows, monkeypatch):
    X, Y = rows
    monkeypatch.setattr(paths, "_FITS", together)
    path = PopulationGLM(observation_model="Gaussian").path(X, Y, STRENGTHS)
    Z, T = X - X.mean(axis=0), len(X)
    for k, strength in enumerate(STRENGTHS):
        exact = np.linalg.solve(Z.T @ Z / T + strength * np.eye(X.shape[1]), Z.T @ (Y - Y.mean(axis=0)) / T)
        np.testing.assert_allclose(path.coef[k], exact, atol=1e-4 * np.abs(exact).max())


def test_a_ratio_per_neuron_and_silent_neurons(rows):
    X, Y = rows
    ratio = np.array([0.5, 0.2, 0.9])
    model = PopulationGLM(regularizer="ElasticNet", regularizer_strength=(1.0, ratio), tol=1e-9)
    path = model.path(X, Y, STRENGTHS)
    np.testing.assert_allclose(path.coef[1], alone(STRENGTHS[1], X, Y, "ElasticNet", ratio).coef_, atol=2e-4)
    silent = PopulationGLM(regularizer="Lasso").path(X, Y * [1, 0, 1])
    assert not silent.coef[:, :, 1].any() and silent.strengths[0, 1] == pytest.approx(1.001)


def test_weights_offsets_exposure_and_masks_match_separate_fits(rows):
    X, Y = rows
    Y = Y.astype(float)
    Y[:50, 1] = np.nan
    rng = np.random.default_rng(0)
    given = {
        "sample_weight": rng.uniform(0.5, 2, len(X)), "offset": rng.normal(size=(len(X), 1)) * 0.3,
        "exposure": rng.uniform(0.5, 2, len(X)),
    }  # fmt: skip
    path = PopulationGLM("exp", regularizer="Lasso", tol=1e-9).path(X, Y, STRENGTHS, **given)
    for k, strength in enumerate(STRENGTHS):
        one = alone(strength, X, Y, inverse_link_function="exp", **given)
        np.testing.assert_allclose(path.coef[k], one.coef_, atol=5e-4)


def test_default_strengths_start_where_nothing_is_left(rows):
    X, Y = rows
    path = PopulationGLM(regularizer="Lasso").path(X, Y)
    assert path.strengths.shape == (30, 3) and not path.n_nonzero[0].any() and path.n_nonzero[-1].all()
    np.testing.assert_allclose(path.strengths[0] / path.strengths[-1], 1e3, rtol=2e-3)
    assert np.all(np.diff(path.objective, axis=0) <= path.gap[:-1] + 1e-12)  # a weaker penalty is never worse
    ridge = PopulationGLM().path(X, Y)
    assert ridge.strengths[0, 0] == 1 and ridge.converged.all()
    frame = path.to_frame()
    assert list(frame["neuron"][:31]) == [path.neuron[0]] * 30 + [path.neuron[1]]
    assert "90 of 90 fits converged" in str(path)


@pytest.mark.parametrize("together", [1, 1000])
def test_the_block_size_does_not_change_the_fits(together, rows, monkeypatch):
    X, Y = rows
    expected = PopulationGLM(regularizer="Lasso", tol=1e-9).path(X, Y, STRENGTHS)
    monkeypatch.setattr(paths, "_FITS", together)
    found = PopulationGLM(regularizer="Lasso", tol=1e-9).path(X, Y, STRENGTHS)
    np.testing.assert_allclose(found.coef, expected.coef, atol=5e-4)


def test_strengths_may_differ_per_neuron_and_be_zero(rows):
    X, Y = rows
    own = STRENGTHS[:, None] * [1.0, 2.0, 0.5]
    path = PopulationGLM(regularizer="Lasso", tol=1e-9).path(X, Y, own)
    np.testing.assert_allclose(path.coef[1], alone(own[1], X, Y).coef_, atol=2e-4)
    last = PopulationGLM(regularizer="Lasso", tol=1e-9).path(X, Y, [0.1, 0.0])
    free = PopulationGLM(regularizer="UnRegularized", tol=1e-9).fit(X, Y)
    np.testing.assert_allclose(last.coef[1], free.coef_, atol=1e-3)


@pytest.mark.parametrize("strengths", [[], [-1.0], [np.nan], "many", np.ones((2, 5)), 3.0])
def test_invalid_strengths_are_refused(strengths, rows):
    with pytest.raises(ValueError, match="strengths is"):
        PopulationGLM(regularizer="Lasso").path(*rows, strengths)


def test_a_path_needs_a_penalty(rows):
    with pytest.raises(ValueError, match="a path needs a penalty"):
        PopulationGLM(regularizer="UnRegularized").path(*rows)


def test_unconverged_and_missing_fits_are_reported(rows, monkeypatch):
    X, Y = rows
    first = np.arange(len(X)) < 100
    with pytest.warns(UserWarning, match="did not converge"):  # rates of 0 in the first rows are best
        path = PopulationGLM(regularizer="Lasso").path(np.column_stack([X, first]), Y * ~first[:, None], [0.1, 0.0])
    assert path.converged[0].all() and not path.converged[1].any()
    monkeypatch.setattr(paths, "_FITS", 1)
    run, calls = cv_fits.run_counted, []

    def stopped(*given):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(*given)

    monkeypatch.setattr(cv_fits, "run_counted", stopped)
    with pytest.warns(UserWarning, match="6 of 9 fits are missing"):
        path = PopulationGLM(regularizer="Lasso").path(X, Y, STRENGTHS)
    assert np.all(path.status[1:] == Status.INTERRUPTED) and np.isfinite(path.coef[0]).all()
    assert np.isnan(path.coef[1:]).all()
