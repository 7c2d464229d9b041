"""Stability of coupled models: gains and bounds compared with loops, exact arithmetic, closed forms, simulations."""

from fractions import Fraction

import numpy as np
import pytest

from glmfit import PopulationGLM
from glmfit.design import Convolution
from glmfit.inference import coupling_stability, simulate_recurrent, stability
from glmfit.inference.stability import bound_spectral_radius

BASIS = np.exp(-np.arange(6)[:, None] / [1.0, 4.0])  # (lag, kernel)
LINKS = {"Poisson": "softplus", "Bernoulli": "logistic", "NegativeBinomial": "exp", "Gamma": "exp"}


def coupled(family="Poisson", link=None, N=3, more=0, scale=0.1, seed=0):
    """A model of histories and other features, fitted to noise, with random coefficients."""
    rng = np.random.default_rng(seed)
    y = (rng.random((200, N)) < 0.4).astype(float) + 0.1 * (family == "Gamma")
    X = np.column_stack([Convolution(y, BASIS).to_array(), rng.normal(size=(200, more))])
    model = PopulationGLM(link or LINKS[family], regularizer_strength=0.1, observation_model=family, tol=1e-3)
    model.fit(X, y)
    model.coef_ = scale * rng.normal(size=model.coef_.shape)
    model.intercept_ = rng.normal(size=N) - 1.5
    return model


def gains(model, steepest):
    """Positive parts of the filters, added up lag by lag, exactly."""
    lags, n_kernels = BASIS.shape
    N = len(model.intercept_)
    total = [[Fraction(0)] * N for _ in range(N)]
    for i in range(N):
        for j in range(N):
            for k in range(lags):
                terms = (Fraction(BASIS[k, b]) * Fraction(model.coef_[i * n_kernels + b, j]) for b in range(n_kernels))
                total[i][j] += max(sum(terms), Fraction(0))
    return [[Fraction(steepest) * value for value in row] for row in total]


@pytest.mark.parametrize(("family", "steepest"), [("Poisson", 1.0), ("Bernoulli", 0.25)])
def test_gains_exceed_the_exact_ones_by_rounding_only(family, steepest):
    for seed in range(5):
        model = coupled(family, seed=seed)
        found, exact = coupling_stability(model, BASIS), gains(model, steepest)
        for i in range(3):
            for j in range(3):
                assert (
                    exact[i][j]
                    <= Fraction(found.gain[i, j])
                    <= exact[i][j] * (1 + Fraction(1, 10**12)) + Fraction(1, 10**14)
                )
        filters = np.einsum("lb,ibj->lij", BASIS, model.coef_.reshape(3, 2, 3))
        np.testing.assert_allclose(found.filters, filters, atol=1e-15)
        radius = np.abs(np.linalg.eigvals(found.gain)).max()
        assert radius * (1 - 1e-13) <= found.spectral_radius <= radius * (1 + 1e-8)


def test_the_bound_solves_its_equation_and_uses_the_largest_inputs():
    model = coupled(more=2, scale=0.06)
    inputs = np.random.default_rng(1).normal(size=(50, 2))
    found = coupling_stability(model, BASIS, inputs=inputs, columns=slice(6))
    assert found.is_proved and found.verdict == "stable" and found.spectral_radius < 1
    alone = np.logaddexp(0, inputs @ model.coef_[6:] + model.intercept_).max(axis=0)
    exact = np.linalg.solve(np.eye(3) - found.gain.T, alone)
    assert np.all(found.mean_bound >= exact) and np.allclose(found.mean_bound, exact, rtol=1e-9)
    gain = [[Fraction(a) for a in row] for row in found.gain]
    w = [Fraction(x) for x in found.mean_bound]
    assert all(w[j] - sum(gain[i][j] * w[i] for i in range(3)) >= Fraction(alone[j]) for j in range(3))
    assert "stable" in str(found) and list(found.to_frame()["mean_bound"]) == list(found.mean_bound)


def test_one_neuron_in_closed_form():
    """Gain a of one lag: stable below 1, the bound is f(b) / (1 - a), and large counts grow by a from bin to bin."""
    y = np.random.default_rng(0).poisson(0.5, 300)
    history = Convolution(y, np.ones((1, 1))).to_array()
    model = PopulationGLM(regularizer_strength=0.1).fit(history, y)
    for a in (0.5, 0.999, 1.0, 1.2):
        model.coef_, model.intercept_ = np.array([a]), -1.0
        found = coupling_stability(model, np.ones((1, 1)))
        assert found.gain == pytest.approx(np.array([[a]]), rel=1e-14) and found.is_proved == (a < 1)
        if a < 1:
            assert found.mean_bound[0] == pytest.approx(np.logaddexp(0, -1) / (1 - a), rel=1e-9)
        else:
            assert np.isinf(found.mean_bound[0]) and "below 1 it would be proved" in found.reason
    with pytest.warns(UserWarning, match="diverged"):  # not proved stable, and it does diverge
        assert simulate_recurrent(model, np.ones((1, 1)), 400, start=[[1000.0]]).diverged_at is not None


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["Poisson", "Bernoulli"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_long_simulations_stay_below_the_bound_of_the_mean(family, seed):
    model = coupled(family, scale=0.07 if family == "Poisson" else 0.5, seed=seed)
    found = coupling_stability(model, BASIS)
    assert found.is_proved
    rates = simulate_recurrent(model, BASIS, 20_000, random_state=seed).rates
    blocks = rates.reshape(20, -1, 3).mean(axis=1)
    error = blocks.std(axis=0) / np.sqrt(20)
    assert np.all(rates.mean(axis=0) <= found.mean_bound + 4 * error)
    # The bound is informative: not many times the mean.
    assert family == "Bernoulli" or found.mean_bound.sum() < 3 * rates.mean(axis=0).sum()
    # The bound also holds in the long run from a distant start.
    full = np.full((6, 3), 1.0 if family == "Bernoulli" else 200.0)
    later = simulate_recurrent(model, BASIS, 20_000, start=full, random_state=seed).rates[1000:]
    assert np.all(later.mean(axis=0) <= found.mean_bound + 4 * error)


@pytest.mark.thorough
def test_mean_counts_never_exceed_the_bound_of_a_bin():
    """From an empty past, the mean of every bin is below the bound: averages over many runs of the first bins."""
    model = coupled(scale=0.07)
    bound = coupling_stability(model, BASIS).mean_bound
    counts = np.stack([simulate_recurrent(model, BASIS, 12, random_state=k).counts for k in range(1500)])
    error = counts.std(axis=0) / np.sqrt(1500)
    assert np.all(counts.mean(axis=0) <= bound + 4.5 * error)


@pytest.mark.parametrize("family", ["Poisson", "NegativeBinomial", "Gamma"])
def test_with_the_exp_link_only_inhibition_is_proved_stable(family):
    model = coupled(family, "exp")
    mixed = coupling_stability(model, BASIS)
    assert not mixed.is_proved and mixed.verdict == "not proved" and np.isinf(mixed.spectral_radius)
    assert "excited by spikes" in mixed.reason
    model.coef_[:, 0] = -abs(model.coef_[:, 0])
    one = coupling_stability(model, BASIS).mean_bound
    assert one[0] == pytest.approx(np.exp(model.intercept_[0]), rel=1e-10) and np.isinf(one[1:]).all()
    model.coef_ = -np.abs(model.coef_)
    model.coef_[2] = 0.0
    found = coupling_stability(model, BASIS)
    assert found.is_proved and found.spectral_radius == 0 and np.all(found.gain == 0)
    assert np.all(found.mean_bound >= np.exp(model.intercept_))
    rates = simulate_recurrent(model, BASIS, 2000).rates
    assert np.all(rates <= found.mean_bound)


def test_an_exponential_network_that_diverges_is_not_proved_stable_and_raises_a_warning():
    model = coupled("Poisson", "exp")
    model.coef_, model.intercept_ = np.abs(model.coef_) + 0.05, np.full(3, -1.0)
    assert not coupling_stability(model, BASIS).is_proved
    with pytest.warns(UserWarning, match="diverged at bin"):
        found = simulate_recurrent(model, BASIS, 20_000)
    assert 0 < found.diverged_at < 20_000


def test_binary_responses_are_bounded_for_any_coupling():
    model = coupled("Bernoulli", scale=5.0)
    found = coupling_stability(model, BASIS)
    assert found.is_proved and found.spectral_radius > 1 and np.all(found.mean_bound == 1.0)


def test_silent_neurons_are_bounded_by_zero(rng):
    counts = rng.poisson(0.5, (300, 2))
    counts[:, 1] = 0
    model = PopulationGLM(regularizer_strength=0.1).fit(Convolution(counts, BASIS).to_array(), counts)
    found = coupling_stability(model, BASIS)
    assert found.is_proved and found.mean_bound[1] < 1e-12 < found.mean_bound[0]


def test_responses_that_may_be_negative_are_refused():
    y = np.random.default_rng(0).normal(size=(200, 1))
    model = PopulationGLM(observation_model="Gaussian", regularizer_strength=0.1)
    model.fit(Convolution(y, BASIS).to_array(), y)
    with pytest.raises(ValueError, match="Gaussian responses may be negative"):
        coupling_stability(model, BASIS)


def test_a_model_without_a_proof_is_refused(monkeypatch):
    model = coupled()
    monkeypatch.setattr(stability, "_STEEPEST", {"logistic": 0.25})
    with pytest.raises(ValueError, match="'softplus'; coupling_stability has proofs for logistic, exp"):
        coupling_stability(model, BASIS)


MATRICES = {
    "zero": np.zeros((3, 3)),
    "identity": np.eye(2),
    "periodic": np.array([[0.0, 0.5], [0.5, 0.0]]),
    "reducible": np.array([[0.5, 10.0], [0.0, 0.5]]),
    "nilpotent": np.triu(np.full((6, 6), 3.0), 1),
    "scattered": np.array([[1e-9, 1e6], [1e-9, 1e-3]]),
    "large": np.random.default_rng(0).exponential(size=(60, 60)) * (np.random.default_rng(1).random((60, 60)) < 0.1),
}


@pytest.mark.parametrize("name", MATRICES)
def test_the_bound_of_the_spectral_radius_holds_in_exact_arithmetic(name):
    A = MATRICES[name]
    bound, v = bound_spectral_radius(A)
    assert np.all(v > 0)
    rows = [[Fraction(x) for x in row] for row in A]
    w = [Fraction(x) for x in v]
    assert all(sum(a * x for a, x in zip(row, w)) <= Fraction(bound) * y for row, y in zip(rows, w))
    radius = np.abs(np.linalg.eigvals(A)).max()
    slack = 0.05 if name == "nilpotent" else 1e-3
    assert bound <= radius * (1 + slack) + slack * A.max() * (name in ("nilpotent", "reducible"))
