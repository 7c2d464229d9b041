"""Distribution functions and quantiles agree with each other and with the log-likelihood."""

import numpy as np
import pytest
import scipy.integrate

from glmfit.observations import Bernoulli, Binomial, Gamma, Gaussian, NegativeBinomial, PoissonExp, PoissonSoftplus

ETA = np.array([-3.0, -0.4, 0.0, 1.3, 2.5])
COUNTED = [
    (PoissonSoftplus(), 1.0), (PoissonSoftplus(), 0.3), (PoissonExp(), 1.0),
    (PoissonExp(), np.array([1, 2, 0.1, 1, 3])),
    (NegativeBinomial(0.7), 1.0), (Bernoulli(), 1.0), (Binomial(), np.array([3.0, 1.0, 7.0, 20.0, 4.0])),
]  # fmt: skip
MEASURED = [Gaussian(2.5), Gamma(0.4)]


def names(cases):
    return [f"{type(model).__name__}-{k}" for k, (model, _) in enumerate(cases)]


@pytest.mark.parametrize(("model", "exposure"), COUNTED, ids=names(COUNTED))
def test_the_distribution_of_counts_is_the_sum_of_their_probabilities(model, exposure):
    most = np.broadcast_to(exposure if isinstance(model, Binomial) else 1 if isinstance(model, Bernoulli) else 30, (5,))
    total = np.zeros(5)
    for k in range(int(most.max()) + 1):
        possible = k <= most
        y = np.where(possible, k, most)
        each = np.exp(model.total_log_likelihood(y.astype(float), ETA, exposure * np.ones(5)))
        total += np.where(possible, each, 0.0)
        np.testing.assert_allclose(model.cdf(float(k), ETA, exposure), total, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.cdf(-1.0, ETA, exposure), 0.0)


@pytest.mark.parametrize(("model", "exposure"), COUNTED, ids=names(COUNTED))
@pytest.mark.parametrize("level", [0.025, 0.5, 0.975])
def test_quantile_of_counts_is_the_smallest_that_reaches_its_level(model, exposure, level):
    at = model.quantile(level, ETA, exposure)
    assert np.all(model.cdf(at, ETA, exposure) >= level - 1e-12)
    assert np.all(model.cdf(at - 1, ETA, exposure) < level)


@pytest.mark.parametrize("model", MEASURED, ids=lambda model: type(model).__name__)
def test_the_distribution_of_values_is_the_integral_of_their_density(model):
    for eta in ETA:
        low = 0.0 if isinstance(model, Gamma) else eta - 20
        y = model.quantile(0.8, np.array(eta))

        def density(v, eta=eta):
            return float(np.exp(model.log_likelihood(np.array(v), np.array(eta))))

        share = scipy.integrate.quad(density, low, float(y), epsabs=1e-11)[0]
        np.testing.assert_allclose([model.cdf(y, np.array(eta)), share], 0.8, rtol=1e-7)


def test_dispersion_per_neuron_applies_to_its_column():
    eta = np.tile(ETA[:, None], (1, 2))
    both = NegativeBinomial(np.array([0.2, 3.0])).cdf(2.0, eta)
    for n, dispersion in enumerate((0.2, 3.0)):
        np.testing.assert_array_equal(both[:, n], NegativeBinomial(dispersion).cdf(2.0, ETA))
