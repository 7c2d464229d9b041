"""Third derivatives of losses."""

import jax.numpy as jnp
import numpy as np
import pytest
from cases import LOSSES
from oracles import responses
from oracles import smooth_terms as oracle

from glmfit.observations import Bernoulli, Observation

NAMES = {
    "softplus": ("softplus", 1.0), "exp": ("exp", 1.0), "logistic": ("Bernoulli", 1.0), "squared": ("Gaussian", 1.0),
    "binomial": ("Binomial", 1.0), "negative binomial": ("NegativeBinomial", 0.5), "gamma": ("Gamma", 1.0),
    "nearly Poisson": ("NegativeBinomial", 1e-3),
}  # fmt: skip
ETA = np.concatenate([np.linspace(-25, 25, 41), [-300, -80, -40, 40, 80, 300]])


def grid(loss, dtype):
    eta, y = np.meshgrid(ETA, loss.responses, indexing="ij")
    if loss.model.name in ("exp", "gamma"):
        eta = np.clip(eta, -80, 80)
    return y.astype(dtype), eta.astype(dtype)


def exact(name, y, eta):
    """Third and second derivative, float64."""
    given = NAMES[name][0], y.astype(float), eta.astype(float), NAMES[name][1]
    return oracle.curvature_slope(*given), responses.slopes(*given)[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_third_derivatives_match_the_formula(name, dtype):
    loss = LOSSES[name]
    y, eta = grid(loss, dtype)
    true, curvature = exact(name, y, eta)
    found = loss.model.curvature_slope(y, eta)
    assert found.dtype == dtype and found.shape == y.shape and np.isfinite(found).all()
    # Errors are relative to the terms: curvatures, and counts for the softplus.
    size = np.abs(true) + np.abs(curvature) + y * (name == "softplus")
    ends = 1e-18 if dtype == np.float32 else 1e-100  # where the softplus keeps its slope far from 0
    assert np.all(np.abs(found - true) <= 40 * np.finfo(dtype).eps * size + ends)


@pytest.mark.parametrize("name", LOSSES)
def test_third_derivatives_are_bounded_by_the_constant_of_self_concordance(name):
    loss = LOSSES[name]
    y, eta = grid(loss, np.float64)
    third, second = loss.model.curvature_slope(y, eta), loss.model.curvature(y, eta)
    assert np.all(np.abs(third) <= loss.model.constant * second * (1 + 1e-9) + 1e-14 * (1 + np.abs(y)))


@pytest.mark.parametrize("name", LOSSES)
def test_third_derivatives_match_differences_of_curvatures(name):
    loss = LOSSES[name]
    eta, y = np.meshgrid(np.linspace(-6, 6, 25), loss.responses, indexing="ij")
    step = 1e-4
    above, below = loss.model.curvature(y, eta + step), loss.model.curvature(y, eta - step)
    size = np.abs(above) + np.abs(below)
    np.testing.assert_array_less(
        np.abs(loss.model.curvature_slope(y, eta) - (above - below) / (2 * step)), 1e-7 * size + 1e-9
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOSSES)
def test_numpy_and_jax_agree_and_shapes_broadcast(name):
    model, y = LOSSES[name].model, np.float32(LOSSES[name].responses[-1])
    eta = np.linspace(-3, 3, 7, dtype=np.float32)
    by_numpy = model.curvature_slope(y, eta)
    by_jax = model.curvature_slope(y, jnp.asarray(eta))
    assert by_numpy.shape == by_jax.shape == (7,) and by_jax.dtype == np.float32
    np.testing.assert_allclose(by_jax, by_numpy, rtol=1e-5, atol=1e-6)


def test_class_without_a_formula_uses_differences():
    y, eta = np.array([0.0, 1.0]), np.array([0.3, -2.0])
    by_differences = Observation.curvature_slope(Bernoulli(), y, eta)
    np.testing.assert_allclose(by_differences, Bernoulli().curvature_slope(y, eta), atol=1e-9)
