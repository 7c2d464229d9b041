"""Choosing an observation model."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glmfit.observations import PoissonExp, PoissonSoftplus, from_inverse_link


@pytest.mark.parametrize(
    "inverse_link, expected",
    [
        ("softplus", PoissonSoftplus),
        (jax.nn.softplus, PoissonSoftplus),
        (copy.deepcopy(jax.nn.softplus), PoissonSoftplus),
        ("exp", PoissonExp),
        (jnp.exp, PoissonExp),
        (copy.deepcopy(jnp.exp), PoissonExp),
        (np.exp, PoissonExp),
    ],
)
def test_known_inverse_links(inverse_link, expected):
    assert type(from_inverse_link(inverse_link)) is expected


@pytest.mark.parametrize("inverse_link", ["Softplus", "relu", jnp.tanh, lambda x: x, 3, PoissonExp, PoissonExp()])
def test_unknown_inverse_links_are_refused(inverse_link):
    with pytest.raises(ValueError, match="allowed are 'softplus' and 'exp'"):
        from_inverse_link(inverse_link)


def test_models_are_values():
    """Equal by type, hashable, picklable: usable as static arguments without recompilation."""
    assert PoissonExp() == PoissonExp() and hash(PoissonExp()) == hash(PoissonExp())
    assert PoissonExp() != PoissonSoftplus()
    assert pickle.loads(pickle.dumps(PoissonSoftplus())) == PoissonSoftplus()
    traces = []

    def loss(model, y, eta):
        traces.append(model.name)
        return model.loss(y, eta)

    compiled = jax.jit(loss, static_argnums=0)
    for model in (PoissonExp(), PoissonExp(), PoissonSoftplus(), PoissonSoftplus()):
        compiled(model, jnp.ones(2), jnp.ones(2))
    assert traces == ["exp", "softplus"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bins_without_spikes_lose_no_accuracy(order, dtype):
    rng, observation = np.random.default_rng(0), PoissonSoftplus()
    y = np.asarray(rng.poisson(0.1, (50, 4)), dtype, order=order)
    eta = np.asarray(rng.normal(0, 20, (50, 4)), dtype, order=order)
    loss, slope = observation.loss_and_derivative(y, eta)
    one_by_one = np.array(
        [observation.loss_and_derivative(np.full(2, a), np.full(2, b)) for a, b in zip(y.flat, eta.flat)]
    )
    np.testing.assert_allclose(loss.ravel(), one_by_one[:, 0, 0], rtol=8 * np.finfo(dtype).eps)
    np.testing.assert_allclose(slope.ravel(), one_by_one[:, 1, 0], rtol=8 * np.finfo(dtype).eps)
    least = observation.saturated_loss(y)
    np.testing.assert_allclose(
        least, y - np.where(y > 0, y * np.log(np.maximum(y, 1)), 0), rtol=4 * np.finfo(dtype).eps
    )
    row = observation.loss_and_derivative(np.array([0, 1], dtype), dtype(0.5))  # one eta for all
    assert row[0].shape == (2,) and observation.saturated_loss(dtype(0)) == 0
