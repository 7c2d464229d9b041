"""The rule of ``solver_name="auto"``, at the shapes its benchmark names."""

import jax
import numpy as np
import pytest
from cases import penalty

from glmfit import observations
from glmfit.engine.population import PopulationProblem
from glmfit.estimators import choose_solver


@pytest.mark.parametrize(
    ("n_rows", "n_features", "n_neurons", "name", "chosen"),
    [
        (100_000, 192, 32, "Ridge", "ConjugateGradients"),
        (100_000, 192, 32, "Lasso", "ProximalNewton"),
        (100_000, 192, 3, "Lasso", "ProximalNewton"),
        (12_411, 20, 171, "Lasso", "ProximalNewton"),  # the motor cortex recording
        (2_000, 20, 3, "Lasso", "Newton"),  # few and short
        (2_000, 192, 128, "Lasso", "ProximalNewton"),
        (5_000, 20, 10, "Lasso", "ProximalNewton"),
        (5_000, 20, 10, "UnRegularized", "ConjugateGradients"),
    ],
)
def test_auto_chooses_the_expected_solver(n_rows, n_features, n_neurons, name, chosen):
    X, Y = np.broadcast_to(np.float32(0), (n_rows, n_features)), np.broadcast_to(np.float32(1), (n_rows, n_neurons))
    made = penalty(name, 0.0 if name == "UnRegularized" else 0.1, d=n_features, n=n_neurons)
    link = observations.from_inverse_link("exp")
    for devices in (None, jax.devices()):
        assert choose_solver(PopulationProblem(X, Y, link, made, devices=devices)) == chosen
