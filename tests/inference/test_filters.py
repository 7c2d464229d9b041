"""Filters with intervals: sums of basis functions and their Wald tables, source by source."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from glmfit import PopulationGAM, PopulationGLM, PopulationGLMCV
from glmfit.design import Convolution, RaisedCosineLog
from glmfit.inference import drop_groups, filter_table, wald_table

BASIS = RaisedCosineLog(3, window_s=0.06, bin_s=0.01, name="history")
LAGS = 6


@pytest.fixture(scope="module")
def data():
    """Histories of two neurons, one more feature in front of them, and counts."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.3, size=(1500, 2))
    history = Convolution(counts, BASIS)
    X = np.column_stack([rng.normal(size=1500), history.to_array()])
    return X, counts


@pytest.fixture(scope="module")
def model(data):
    return PopulationGLM(regularizer_strength=1e-3).fit(*data)


@pytest.mark.parametrize("covariance", ["fisher", "robust"])
def test_filters_and_areas_match_a_wald_table_of_their_sums(data, model, covariance):
    table = filter_table(model, *data, BASIS, columns=slice(1, None), level=0.9, covariance=covariance)
    assert table.filter.shape == table.low.shape == (LAGS, 2, 2) and table.area.shape == table.p_value.shape == (2, 2)
    for source in range(2):
        sums = np.zeros((LAGS + 1, 7))
        sums[:LAGS, 1 + 3 * source : 4 + 3 * source] = BASIS.kernels
        sums[LAGS] = sums[:LAGS].sum(axis=0)
        of = wald_table(model, *data, level=0.9, covariance=covariance, combinations=sums)
        for name, values in {"filter": of.coef, "standard_error": of.standard_error, "low": of.low}.items():
            np.testing.assert_allclose(getattr(table, name)[:, source], values[:LAGS], rtol=1e-9)
        np.testing.assert_allclose(table.area[source], of.coef[LAGS], rtol=1e-9)
        np.testing.assert_allclose(table.p_value[source], of.p_value[LAGS], rtol=1e-7)
    np.testing.assert_allclose(
        table.area_high - table.area, scipy.stats.norm.ppf(0.95) * table.area_standard_error, rtol=1e-7
    )


def test_standard_errors_are_those_of_the_covariance_of_the_coefficients(data, model):
    """Independent: the variance of the sum from the Hessian of the objective, by NumPy."""
    X, Y = data
    kept = ~np.isnan(X).any(axis=1)
    Z = np.column_stack([X[kept], np.ones(kept.sum())])
    eta = Z @ np.append(model.coef_[:, 0], model.intercept_[0])
    slope, rate = 1 / (1 + np.exp(-eta)), np.logaddexp(0, eta)
    H = Z.T @ (Z * (slope**2 / rate)[:, None])
    H[:7, :7] += 1e-3 * len(Z) * np.eye(7)
    weights = np.zeros((LAGS, 8))
    weights[:, 4:7] = BASIS.kernels
    expected = np.sqrt(np.diag(weights @ np.linalg.inv(H) @ weights.T))
    table = filter_table(model, X, Y, BASIS, columns=range(1, 7))
    np.testing.assert_allclose(table.standard_error[:, 1, 0], expected, rtol=1e-5)


def test_lags_and_names_come_from_the_basis_and_the_features(data):
    X, Y = data
    names = ["speed", *(f"from_{unit}_{k}" for unit in "ab" for k in range(3))]
    frame = pd.DataFrame(X, columns=names)
    named = PopulationGLM().fit(frame, Y)
    table = filter_table(named, frame, Y, BASIS, columns=names[1:])
    assert table.source == ["from_a", "from_b"] and table.neuron == ["0", "1"]
    np.testing.assert_allclose(table.lag, 0.01 * np.arange(1, LAGS + 1))
    rows = table.to_frame()
    assert rows.index.names == ["neuron", "source", "lag"] and len(rows) == 2 * 2 * LAGS
    assert rows.loc[("1", "from_a")]["low"].to_numpy() == pytest.approx(table.low[:, 0, 1])
    unnamed = PopulationGLM().fit(X[:, 1:], Y)
    bins = filter_table(unnamed, X[:, 1:], Y, BASIS.kernels)
    assert bins.source == ["0", "1"] and list(bins.lag) == list(range(1, LAGS + 1))
    assert "2 filters of 6 lags, 2 neurons: 95 % Wald intervals at each lag, fisher covariance" in str(bins)


def test_cross_validated_models_have_intervals_at_their_strengths(data):
    X, Y = data
    model = PopulationGLMCV(strengths=[1e-3, 1e-1], cv=3, tol=1e-9).fit(X, Y)
    same = PopulationGLM(regularizer_strength=model.strength_, tol=1e-9).fit(X, Y)
    found, expected = (filter_table(one, X, Y, BASIS, columns=slice(1, 7)) for one in (model, same))
    np.testing.assert_allclose(found.filter, expected.filter, atol=1e-4)
    np.testing.assert_allclose(found.standard_error, expected.standard_error, rtol=1e-3)
    with pytest.raises(TypeError, match="drop_groups takes a PopulationGLM, whose strength is given"):
        drop_groups(model, X, Y)


def test_wrong_columns_and_models_are_refused(data, model):
    X, Y = data
    with pytest.raises(ValueError, match=r"7 different features of 7; it must name a multiple of the 3 functions"):
        filter_table(model, X, Y, BASIS)
    with pytest.raises(ValueError, match=r"5 different features of 6; .* each once, source by source"):
        filter_table(model, X, Y, BASIS, columns=[1, 2, 3, 4, 5, 5])
    with pytest.raises(ValueError, match="columns 'filter' has the feature index 9"):
        filter_table(model, X, Y, BASIS, columns=[1, 2, 9])
    with pytest.raises(ValueError, match=r"basis has shape \(6,\); it must be \(lag, basis\)"):
        filter_table(model, X, Y, BASIS.kernels[:, 0], columns=[1])
    with pytest.raises(TypeError, match=r"model is a glmfit\.PopulationGAM; .* model\.term\(name\)"):
        filter_table(PopulationGAM(), X, Y, BASIS)
    with pytest.raises(ValueError, match="the model was fitted with Lasso"):
        filter_table(
            PopulationGLM(regularizer="Lasso", regularizer_strength=1e-3).fit(X, Y), X, Y, BASIS.kernels[:, :1]
        )
