"""What the report states about the dispersion of counts."""

import numpy as np
import pytest

from glmfit import PopulationGLM


def counts_of(rng, dispersion, T=3000, n=60):
    X = rng.normal(size=(T, 2))
    mean = np.exp(X @ [0.4, 0.2] + 0.5)[:, None] * np.ones(n)
    noise = rng.gamma(1 / dispersion, dispersion, mean.shape) if dispersion else 1.0
    return X, rng.poisson(mean * noise).astype(float)


@pytest.mark.parametrize("dispersion", [0.3, 4.0])
def test_a_correct_negative_binomial_is_not_called_overdispersed(dispersion, rng):
    X, y = counts_of(rng, dispersion)
    right = PopulationGLM(observation_model="NegativeBinomial", dispersion=dispersion).fit(X, y)
    assert not right.report_.is_overdispersed.any()
    mean = right.predict(X)
    expected = np.sqrt(np.mean(2 + 6 * dispersion + 1 / (mean + dispersion * mean**2), axis=0) / len(X))
    z = (right.report_.dispersion - 1) / expected  # the fitted mean absorbs some of it
    assert 0.5 < z.std() < 1.3 and np.abs(z).max() < 5
    narrow = PopulationGLM(observation_model="NegativeBinomial", dispersion=dispersion / 3).fit(X, y)
    assert narrow.report_.is_overdispersed.mean() > 0.9
    assert "vary more than the model" in str(narrow.report_)


def test_weights_that_leave_few_bins_make_the_statistic_uncertain(rng):
    X, y = counts_of(rng, 0.0)
    weight = np.where(rng.random(len(X)) < 0.02, 1000.0, 1.0)  # worth about sixty bins
    fit = PopulationGLM("exp").fit(X, y, sample_weight=weight)
    assert not fit.report_.is_overdispersed.any()
