"""Recurrent simulation, compared with a loop over bins and lags, features of `Convolution` and closed forms."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from glmfit import PopulationGAM, PopulationGLM, SoftmaxGLM
from glmfit.design import Convolution, RaisedCosineLog
from glmfit.inference import recurrent, simulate_recurrent

BASIS = np.exp(-np.arange(6)[:, None] / [1.0, 4.0])  # (lag, kernel)
FAMILIES = {
    "Poisson": "softplus",
    "NegativeBinomial": "exp",
    "Bernoulli": "logistic",
    "Gaussian": "identity",
    "Gamma": "exp",
}


def fitted(link="softplus", family="Poisson", N=3, T=400, more=0, seed=0, **options):
    """A model of histories, then of other features, fitted to noise."""
    rng = np.random.default_rng(seed)
    draws = {"Bernoulli": lambda: rng.random((T, N)) < 0.3, "Gamma": lambda: 0.1 + rng.random((T, N))}
    y = draws.get(family, lambda: rng.poisson(0.6, (T, N)))().astype(float)
    X = Convolution(y, BASIS).to_array()
    X = np.column_stack([X, rng.normal(size=(T, more))])
    return PopulationGLM(link, regularizer_strength=1e-2, observation_model=family, **options).fit(X, y)


def loop(model, counts, start, inputs):
    """Predictors of simulated counts, bin by bin, lag by lag."""
    lags, n_kernels = BASIS.shape
    N = counts.shape[1]
    past, eta = np.concatenate([start, counts]), np.zeros(counts.shape)
    for t in range(len(counts)):
        for j in range(N):
            eta[t, j] = model.intercept_[j]
            for i in range(N):
                for b in range(n_kernels):
                    seen = sum(past[lags + t - 1 - k, i] * BASIS[k, b] for k in range(lags))
                    eta[t, j] += seen * model.coef_[i * n_kernels + b, j]
            for k in range(inputs.shape[1]):
                eta[t, j] += inputs[t, k] * model.coef_[N * n_kernels + k, j]
    return eta


def test_every_other_model_is_drawn_by_its_own_quantiles(monkeypatch):
    """A model that this file does not know is not Poisson."""
    model = fitted("exp", "NegativeBinomial", dispersion=2.0)
    model.coef_[:], model.intercept_[:] = 0.0, model._observation().link(np.array([0.3, 0.5, 0.8]))
    monkeypatch.delitem(recurrent._MEAN, "negative-binomial")
    monkeypatch.delitem(recurrent._DRAW, "negative-binomial")
    drawn = simulate_recurrent(model, BASIS, 4000).counts
    variance = model._observation().variance(model.intercept_)
    np.testing.assert_allclose(drawn.mean(axis=0), [0.3, 0.5, 0.8], atol=5 * np.sqrt(variance.max() / 4000))
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.3)


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_rates_match_a_loop_and_draws_match_the_model(family):
    model = fitted(FAMILIES[family], family, more=2)
    rng = np.random.default_rng(1)
    inputs, start = rng.normal(size=(40, 2)), rng.random((6, 3)).round(family != "Gamma")
    found = simulate_recurrent(model, BASIS, 40, inputs=inputs, columns=slice(6), start=start, random_state=3)
    eta = loop(model, found.counts, start, inputs)
    np.testing.assert_allclose(found.rates, model._observation().mean(eta), rtol=1e-10)
    # A long run without feedback has the distribution of the observation model.
    model.coef_[:] = 0.0
    model.intercept_[:] = model._observation().link(np.array([0.3, 0.5, 0.8]))
    drawn = simulate_recurrent(model, BASIS, 8000, inputs=np.zeros((8000, 2)), columns=slice(6)).counts
    variance = model._observation().variance(model.intercept_)
    np.testing.assert_allclose(drawn.mean(axis=0), [0.3, 0.5, 0.8], atol=5 * np.sqrt(variance.max() / 8000))
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.25)


@pytest.mark.parametrize("link", ["softplus", "exp"])
def test_features_match_convolution(link):
    model = fitted(link, N=4)
    start = np.random.default_rng(1).poisson(1.0, (6, 4))
    found = simulate_recurrent(model, BASIS, 3000, start=start, random_state=1)
    X = Convolution(np.concatenate([start, found.counts]), BASIS, dtype=np.float64).to_array()
    np.testing.assert_allclose(model.predict(X)[6:], found.rates, rtol=1e-12)
    again = simulate_recurrent(model, BASIS, 3000, start=start, random_state=1)
    other = simulate_recurrent(model, BASIS, 3000, start=start, random_state=2)
    np.testing.assert_array_equal(again.counts, found.counts)
    assert not np.array_equal(other.counts, found.counts)


@pytest.mark.thorough
def test_a_self_exciting_neuron_has_the_mean_of_its_equation():
    """With the identity link, m = b + a m; a Gaussian model also has the variance of an autoregression."""
    y = np.random.default_rng(0).normal(size=400)
    model = PopulationGLM(observation_model="Gaussian", regularizer_strength=1e-2).fit(np.roll(y, 1)[:, None], y)
    model.coef_, model.intercept_, model.dispersion_ = np.array([0.6]), 0.5, 2.0
    found = simulate_recurrent(model, np.ones((1, 1)), 60_000)
    assert found.counts.shape == (60_000, 1)
    assert found.counts.mean() == pytest.approx(0.5 / (1 - 0.6), abs=0.06)
    assert found.counts.var() == pytest.approx(2.0 / (1 - 0.6**2), rel=0.05)


def test_columns_may_be_anywhere_and_have_names(rng):
    counts = pd.DataFrame(rng.poisson(0.4, (300, 2)), columns=["a", "b"])
    history = Convolution(counts, BASIS, name="from ")
    speed = rng.normal(size=300)
    X = pd.DataFrame(history.to_array(), columns=history.columns)
    X.insert(0, "speed", speed)
    X.insert(3, "light", speed**2)
    model = PopulationGLM(regularizer_strength=1e-2).fit(X, counts)
    inputs = X[["speed", "light"]]
    named = simulate_recurrent(model, BASIS, 300, inputs=inputs, columns=history.columns)
    numbered = simulate_recurrent(model, BASIS, 300, inputs=inputs.to_numpy(), columns=[1, 2, 4, 5])
    np.testing.assert_array_equal(named.counts, numbered.counts)
    assert list(named.to_frame().index) == ["a", "b"]
    future = pd.DataFrame(Convolution(named.counts, BASIS, dtype=np.float64).to_array(), columns=history.columns)
    future.insert(0, "speed", speed)
    future.insert(3, "light", speed**2)
    np.testing.assert_allclose(model.predict(future)[6:], named.rates[6:], rtol=1e-9)
    with pytest.raises(ValueError, match=r"the columns \['light', 'speed'\]; the fit had \['speed', 'light'\]"):
        simulate_recurrent(model, BASIS, 300, inputs=inputs[["light", "speed"]], columns=history.columns)


def test_bases_of_kernels_and_smooth_models(rng):
    basis = RaisedCosineLog(3, 0.1, 0.01, name="history")
    counts = rng.poisson(0.3, (400, 2))
    history = Convolution(counts, basis)
    np.testing.assert_array_equal(history.to_array(), Convolution(counts, basis.kernels).to_array())
    model = PopulationGAM({"0": [0, 1, 2], "1": [3, 4, 5]}).fit(history.to_array(), counts)
    found = simulate_recurrent(model, basis, 200)
    X = Convolution(found.counts, basis, dtype=np.float64).to_array()
    np.testing.assert_allclose(model.predict(X)[10:], found.rates[10:], rtol=1e-9)


def test_silent_neurons_stay_silent(rng):
    counts = rng.poisson(0.5, (300, 2))
    counts[:, 1] = 0
    model = PopulationGLM(regularizer_strength=1e-2).fit(Convolution(counts, BASIS).to_array(), counts)
    found = simulate_recurrent(model, BASIS, 500)
    assert found.counts[:, 0].sum() > 0 and not found.counts[:, 1].any() and not found.rates[:, 1].any()


@pytest.mark.parametrize("limit", [1e4, 50.0])
def test_divergence_raises_a_warning_and_earlier_bins_are_kept(limit):
    model = fitted("exp")
    model.coef_[0, :] = 0.7
    with pytest.warns(UserWarning, match="diverged at bin") as told:
        found = simulate_recurrent(model, BASIS, 5000, limit=limit)
    at = found.diverged_at
    assert f"at bin {at} of 5000" in str(told[0].message) and "coupling_stability" in str(told[0].message)
    assert 0 < at < 5000 and len(found.counts) == len(found.rates) == at
    assert np.isfinite(found.counts).all() and found.rates.max() <= limit
    assert loop(model, found.counts, np.zeros((6, 3)), np.zeros((at, 0))).max() <= np.log(limit)
    around = np.concatenate([np.zeros((6, 3)), found.counts, np.zeros((1, 3))])
    X = Convolution(around, BASIS, dtype=np.float64).to_array()
    with np.errstate(over="ignore"):
        assert model.predict(X)[-1].max() > limit
    assert f"diverged at bin {at}" in str(found)
    model.intercept_[:] = 1e3
    with pytest.warns(UserWarning, match="at bin 0 of 5"):
        empty = simulate_recurrent(model, BASIS, 5)
    assert empty.counts.shape == (0, 3) and np.isnan(empty.to_frame()["mean_count"]).all()


def test_invalid_input_is_refused():
    model, more = fitted(), fitted(more=1)
    with pytest.raises(TypeError, match=r"model is a glmfit.SoftmaxGLM; it must be"):
        simulate_recurrent(SoftmaxGLM(), BASIS, 10)
    with pytest.raises(NotFittedError):
        simulate_recurrent(PopulationGLM(), BASIS, 10)
    for basis, message in ((BASIS[:, :1], "3 histories.*columns="), (np.eye(6), "the model has 6 features; it needs")):
        with pytest.raises(ValueError, match=message):
            simulate_recurrent(model, basis, 10)
    with pytest.raises(ValueError, match=r"columns=slice\(0, 6\) if they come first"):
        simulate_recurrent(more, BASIS, 10, inputs=np.zeros((10, 1)))
    inside = {"columns": slice(6)}
    with pytest.raises(ValueError, match="inputs is None; it must have 1 feature"):
        simulate_recurrent(more, BASIS, 10, **inside)
    with pytest.raises(ValueError, match=r"inputs has shape \(10, 2\)"):
        simulate_recurrent(more, BASIS, 10, inputs=np.zeros((10, 2)), **inside)
    with pytest.raises(ValueError, match="inputs has 9 rows; each of the 10 bins needs one"):
        simulate_recurrent(more, BASIS, 10, inputs=np.zeros((9, 1)), **inside)
    with pytest.raises(ValueError, match="NaN or infinite"):
        simulate_recurrent(more, BASIS, 10, inputs=np.full((10, 1), np.nan), **inside)
    with pytest.raises(ValueError, match="columns has 5 different features"):
        simulate_recurrent(more, BASIS, 10, inputs=np.zeros((10, 1)), columns=[0, 1, 2, 3, 4, 4])
    with pytest.raises(ValueError, match=r"start has shape \(5, 3\); it must be \(6, 3\)"):
        simulate_recurrent(model, BASIS, 10, start=np.zeros((5, 3)))
    with pytest.raises(ValueError, match="n_bins is 0"):
        simulate_recurrent(model, BASIS, 0)
    model.coef_[:, 1] = np.nan
    with pytest.raises(ValueError, match=r"neuron '?1'? has no coefficients"):
        simulate_recurrent(model, BASIS, 10)


def test_binomial_counts_are_refused(rng):
    counts = rng.binomial(5, 0.3, (200, 1))
    X = Convolution(counts, BASIS).to_array()
    model = PopulationGLM(observation_model="Binomial", regularizer_strength=0.1).fit(X, counts, exposure=5)
    with pytest.raises(ValueError, match="trials of a bin"):
        simulate_recurrent(model, BASIS, 10)


def test_a_start_of_negative_counts_is_refused():
    counts = np.random.default_rng(0).poisson(0.3, size=(400, 2))
    basis = np.ones((2, 1))
    model = PopulationGLM(regularizer_strength=1e-2).fit(Convolution(counts, basis).to_array(), counts)
    with pytest.raises(ValueError, match="no response of this model is below 0"):
        simulate_recurrent(model, basis, 10, start=-np.ones((2, 2)))
