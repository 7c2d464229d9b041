"""Autocorrelated residuals are found, independent ones are not: where p-values of `drop_groups` are valid."""

import warnings

import numpy as np
import pytest
import scipy.signal
import scipy.stats

from glmfit import PopulationGLM
from glmfit.inference import drop_groups
from glmfit.inference.autocorrelation import autocorrelation

WARNING = r"residuals of {} of {} neurons? are autocorrelated .*p-values .*too small .*glmfit\.inference\.explain"


def drifts(rng, T, n, tau):
    """Stationary processes of variance one that forget within tau bins, (T, n)."""
    a = np.exp(-1 / tau)
    return scipy.signal.lfilter([np.sqrt(1 - a * a)], [1, -a], rng.normal(size=(T + 20 * tau, n)), axis=0)[20 * tau :]


def test_drifting_neurons_raise_a_warning_and_others_do_not(rng):
    """Unrelated features as slow as the drift are too significant by about the inflation; white ones are not."""
    X = np.column_stack([drifts(rng, 4000, 2, 50), rng.normal(size=4000)])
    Y = rng.poisson(0.3 * np.exp(0.5 * np.column_stack([np.zeros((4000, 10)), drifts(rng, 4000, 30, 50)])))
    model = PopulationGLM("exp", "UnRegularized").fit(X, Y)
    with pytest.warns(UserWarning, match=WARNING.format(30, 40)) as said:
        table = drop_groups(model, X, Y, {"slow": [0, 1], "white": [2]})
    assert len(said) == 1 and said[0].filename == __file__
    np.testing.assert_array_equal(table.autocorrelated, np.arange(40) >= 10)
    ratio, inflation = table.statistic.mean(axis=1, where=table.autocorrelated), table.variance_inflation[10:].mean()
    assert 3 < ratio[0] / 2 < 1.5 * inflation and ratio[1] < 2
    assert np.mean(table.p_value[0, 10:] < 0.01) > 0.2
    assert (
        str(table).split("\n")[-1].startswith("residuals of 30 of 40 neurons are autocorrelated (their sums vary up to")
    )
    alone = PopulationGLM("exp", "UnRegularized").fit(X, Y[:, 0])
    assert "autocorrelated" not in str(drop_groups(alone, X, Y[:, 0], {"slow": [0, 1]}))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
def test_independent_counts_raise_no_warning(seed):
    """Rates from almost no spikes to two per bin, some overdispersed, and features as slow as drifts."""
    rng = np.random.default_rng(seed)
    T = 3000
    X = np.column_stack([drifts(rng, T, 2, 100), rng.normal(size=T)])
    rate = np.geomspace(0.003, 2, 40) * np.exp(0.5 * X[:, :1] + 0.3 * X[:, 2:])
    Y = rng.poisson(rate * np.where(np.arange(40) % 2, 1.0, rng.gamma(1.0, 1.0, (T, 40))))
    Y = Y[:, Y.sum(axis=0) > 0]
    model = PopulationGLM("exp", regularizer_strength=1e-4).fit(X, Y)
    table = drop_groups(model, X, Y, {"slow": [0, 1]})
    assert not table.autocorrelated.any() and np.all(table.autocorrelation_p_value > 1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("rate", [0.001, 0.01, 1.0])
def test_false_positives_are_as_rare_as_the_level_states(rate):
    """At most 5 % of 1 000 independent neurons, plus four standard errors, have p < 0.05, even at five spikes each."""
    rng = np.random.default_rng(0)
    truth = rate * np.exp(np.sin(np.arange(4000) / 200))
    counts = [y for y in rng.poisson(truth, (1000, 4000)) if y.any()]
    means = [truth * y.sum() / truth.sum() for y in counts]
    every = np.ones(4000, bool)
    p = [autocorrelation((y - mean) / np.sqrt(mean), every).p_value for y, mean in zip(counts, means, strict=True)]
    assert np.mean(np.less(p, 0.05)) < 0.078 and np.min(p) > 1e-5


def by_pairs(r, counts):
    """Variance inflation and p-value of sums over blocks of 2, 4 and 8 rows, pair by pair."""
    square = [r[t] ** 2 for t in range(len(r)) if counts[t]]
    found = []
    for length in (2, 4, 8):
        pairs = [(s, t) for s in range(len(r)) for t in range(len(r))
                 if s != t and s // length == t // length and counts[s] and counts[t]]  # fmt: skip
        variance = 2 * max(sum((r[s] * r[t]) ** 2 for s, t in pairs), len(pairs) * np.mean(square) ** 2)
        inflation, m = 1 + sum(r[s] * r[t] for s, t in pairs) / sum(square), 2 * sum(square) ** 2 / variance
        found.append((inflation, 3 * scipy.stats.chi2.sf(m * inflation, m)))
    return found


def test_the_inflation_matches_a_loop_over_pairs_that_count(rng):
    r, counts = drifts(rng, 203, 1, 10)[:, 0] + 0.3, rng.random(203) < 0.8
    found = autocorrelation(r, counts)
    assert found.found and found[:2] == pytest.approx(max(by_pairs(r, counts)))
    bursts = np.where(np.arange(203) % 20 < 3, 2.0, -0.3) * rng.choice([1, -1], 203, p=[0.9, 0.1])
    signs = np.sign(rng.normal(size=203) + 0.5 * drifts(rng, 203, 1, 10)[:, 0])
    independent = rng.normal(size=203)
    for residual in (bursts, signs, independent):
        inflation, p_value = min(by_pairs(residual, counts), key=lambda pair: pair[1])
        assert autocorrelation(residual, counts)[:2] == pytest.approx((inflation, min(p_value, 1))) and p_value > 1e-5
    other = np.where(counts, r, 1e200 * rng.normal(size=203))
    assert autocorrelation(other, counts) == found
    assert autocorrelation(1e-200 * r, counts) == pytest.approx(found)


def test_masked_rows_form_no_pairs(rng):
    """A period of higher rates does not affect a neuron that was not recorded in it."""
    X = rng.normal(size=(2000, 2))
    Y = rng.poisson(1.0, (2000, 2)).astype(float)
    Y[500:800] += 3
    masked = Y.copy()
    masked[500:800, 1] = np.nan
    weights = np.where(np.isnan(masked), 0.0, 1.0)
    model = PopulationGLM("exp", "UnRegularized").fit(X, masked)
    with pytest.warns(UserWarning, match=WARNING.format(1, 2)):
        table = drop_groups(model, X, masked)
    np.testing.assert_array_equal(table.autocorrelated, [True, False])
    with pytest.warns(UserWarning, match=WARNING.format(1, 2)):
        again = drop_groups(PopulationGLM("exp", "UnRegularized").fit(X, Y, weights), X, Y, sample_weight=weights)
    np.testing.assert_allclose(again.variance_inflation, table.variance_inflation, rtol=1e-4)


def test_residuals_match_those_of_the_model(rng):
    """Weights enter as square roots, an exposure through its expected counts."""
    X, exposure, weights = rng.normal(size=(500, 2)), rng.uniform(0.5, 2, 500), rng.uniform(0.5, 2, 500)
    Y = rng.poisson(exposure[:, None] * np.exp(0.3 * X[:, :1] + drifts(rng, 500, 2, 30)))
    model = PopulationGLM("softplus", "UnRegularized").fit(X, Y, weights, exposure=exposure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        table = drop_groups(model, X, Y, sample_weight=weights, exposure=exposure)
    expected = np.sqrt(weights)[:, None] * model.residuals(X, Y, exposure=exposure)
    every = np.ones(500, bool)
    found = [autocorrelation(expected[:, n], every) for n in range(2)]
    np.testing.assert_allclose(table.variance_inflation, [f.variance_inflation for f in found], rtol=1e-6)
    np.testing.assert_array_equal(table.autocorrelated, [f.found for f in found])


def test_weak_autocorrelation_is_ignored_and_short_recordings_are_not_tested(rng):
    noise = rng.normal(size=200_001)
    weak = noise[1:] + 0.05 * noise[:-1]
    found = autocorrelation(weak, np.ones(200_000, bool))
    assert found.p_value < 1e-5 and 1.03 < found.variance_inflation < 1.2 and not found.found
    refractory = noise[1:] - 0.3 * noise[:-1]
    assert not autocorrelation(refractory, np.ones(200_000, bool)).found
    for r in (np.ones(31), np.zeros(100), np.full(100, np.nan)):
        inflation, p_value, is_found = autocorrelation(r, np.ones(len(r), bool))
        assert np.isnan(inflation) and np.isnan(p_value) and not is_found


def test_a_neuron_without_spikes_is_not_tested(rng):
    X, Y = rng.normal(size=(300, 2)), np.column_stack([rng.poisson(1.0, 300), np.zeros(300)])
    table = drop_groups(PopulationGLM(regularizer="UnRegularized").fit(X, Y), X, Y)
    assert np.isfinite(table.variance_inflation[0]) and np.isnan(table.variance_inflation[1])
    assert np.isnan(table.autocorrelation_p_value[1]) and not table.autocorrelated.any()
