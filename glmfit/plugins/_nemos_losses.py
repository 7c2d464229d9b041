"""What the loss of a row may be in a NeMoS model.

One of glmfit, of NeMoS's observation model, or of the function NeMoS gave: `_nemos_view` compares each with NeMoS's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import nemos
import numpy as np
from nemos import inverse_link_function_utils

from ..observations import PoissonExp, PoissonSoftplus
from ..observations.base import RowLoss

# A link is known by what it is, not by its name: a user's own `softplus` may bend anywhere.
_LINKS = inverse_link_function_utils.LINK_NAME_TO_FUNC
_SOFTPLUS, _EXP, _LOG_SOFTMAX = (
    [function, *(f for name, f in _LINKS.items() if name.rsplit(".", 1)[-1] == function.__name__)]
    for function in (jax.nn.softplus, jnp.exp, jax.nn.log_softmax)
)


def candidates(solver: Any, model, params, args, out, Y):
    """Propose what the loss of a row may be, the best first; each is verified before it is used."""
    observation, link = getattr(model, "observation_model", None), getattr(model, "inverse_link_function", None)
    if observation is not None and callable(link):
        poisson = type(observation) is nemos.observation_models.PoissonObservations
        ours = PoissonSoftplus() if _computes(link, _SOFTPLUS) else PoissonExp() if _computes(link, _EXP) else None
        if poisson and ours is not None and Y.min() >= 0:
            yield ours
        coupled = isinstance(observation, nemos.observation_models.CategoricalObservations)
        settings = _settings(observation)
        if settings is not None:
            yield _NemosLoss(type(observation), settings, link, out, out[-1] if coupled else 1)
    if jax.tree.structure(params) == jax.tree.structure(type(params)(params.coef, params.intercept)):
        yield _GivenLoss(solver.unregularized_loss, params, args, out)


def _is_one_of(link, functions) -> bool:
    return any(link is function for function in functions)


def _computes(link, functions) -> bool:
    """Whether a link is one of these functions, or a copy: what joblib sends to another process is one."""
    return _is_one_of(link, functions) or _steps_of(link) == _steps_of(functions[0])


def _steps_of(function) -> str:
    """Write what jax makes of a function, traced anew: it may read what changes."""
    return str(jax.make_jaxpr(lambda x: function(x))(np.zeros(2, np.float32)))


def never_changes(loss) -> bool:
    """Whether a loss is made of NeMoS's and jax's own functions alone, so that what is compiled for it stays right."""
    if isinstance(loss, _GivenLoss):
        return False
    if not isinstance(loss, _NemosLoss):
        return True
    name = getattr(loss.link, "__name__", "")
    of_jax = [getattr(module, name, None) for module in (jax.nn, jnp, jax.scipy.stats.norm, jax.scipy.special)]
    own_model = getattr(nemos.observation_models, loss.observation.__name__, None) is loss.observation
    return own_model and _is_one_of(loss.link, [*_LINKS.values(), *of_jax])


def _settings(observation) -> tuple | None:
    """Read the constructor parameters of an observation model, hashable."""
    try:
        return tuple(sorted((name, float(value)) for name, value in observation.get_params().items()))
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True)
class _NemosLoss(RowLoss):
    """Loss of a row by a NeMoS observation model; equal for equal models, so that nothing is compiled twice."""

    observation: type
    settings: tuple
    link: Callable
    out: tuple[int, ...]
    n_coupled: int

    @property
    def shift_invariant(self) -> bool:
        """Whether the linear predictors of coupled columns matter only up to a common constant."""
        return self.n_coupled > 1 and _computes(self.link, _LOG_SOFTMAX)

    @property
    def n_classes(self) -> int:
        """Columns of a neuron."""
        return self.n_coupled

    @property
    def is_softmax(self) -> bool:
        """Whether rows are labels, one-hot, and their probabilities a softmax."""
        categorical = nemos.observation_models.CategoricalObservations
        return self.shift_invariant and self.observation is categorical

    def total(self, y, eta, weight):
        model = self.observation(**dict(self.settings))
        shape = (-1, *self.out)

        def add(scores):
            return jnp.sum(scores * weight.reshape((-1,) + (1,) * (scores.ndim - 1)))

        return model._negative_log_likelihood(
            y.reshape(shape), self.link(eta.reshape(shape)), aggregate_sample_scores=add
        )

    def select(self, n_columns: int) -> _NemosLoss:
        """Return the loss of fewer columns of the same kind."""
        whole = int(np.prod(self.out, dtype=int))
        if n_columns == whole:
            return self
        out = (n_columns // self.n_coupled, self.n_coupled) if self.n_coupled > 1 else (n_columns,)
        return _NemosLoss(self.observation, self.settings, self.link, out, self.n_coupled)


class _GivenLoss(RowLoss):
    """Loss of a row by the function NeMoS gave, at coefficients 0: the intercept is the linear predictor."""

    shift_invariant = is_softmax = False

    def __init__(self, loss, params, args, out):
        self.loss, self.out = loss, out
        self.n_coupled = int(np.prod(out, dtype=int))
        self.params = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), params)
        self.X = jax.tree.map(lambda a: np.zeros((1, a.shape[1]), a.dtype), args[0])

    def total(self, y, eta, weight):
        def one(y, eta):
            params = eqx.tree_at(lambda p: p.intercept, self.params, eta.reshape(self.params.intercept.shape))
            return self.loss(params, self.X, y.reshape((1, *self.out)))

        return jnp.sum(jax.vmap(one)(y, eta) * weight[:, 0])

    def select(self, n_columns: int) -> _GivenLoss:
        """Return the loss itself: its columns stay together."""
        return self
