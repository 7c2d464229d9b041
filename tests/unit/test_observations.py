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


@pytest.mark.parametrize("inverse_link", ["Softplus", "relu", jnp.tanh, lambda x: x, None, 3, PoissonExp, PoissonExp()])
def test_unknown_inverse_links_are_refused(inverse_link):
    with pytest.raises(ValueError, match="allowed are 'softplus' and 'exp'"):
        from_inverse_link(inverse_link)


def test_models_are_values():
    """Equal by type, hashable, picklable: good as a static argument, which does not recompile."""
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
