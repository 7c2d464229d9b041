"""Possible losses of a row and penalties of a NeMoS model.

Losses are glmfit's, those of NeMoS's observation models, or the function NeMoS gave, and `view` compares each with
NeMoS's. A regularizer other than the five, or a group that extends over columns, has no penalty here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import nemos
import numpy as np
from nemos import inverse_link_function_utils

from ... import penalties
from ...data.standard_form import StandardForm
from ...observations import (
    Bernoulli,
    Gamma,
    Gaussian,
    NegativeBinomial,
    Observation,
    PoissonExp,
    PoissonSoftplus,
)
from ...observations.base import RowLoss
from .proximal import pieces_of
from .smooth import stacked

REGULARIZERS = ("UnRegularized", "Ridge", "Lasso", "ElasticNet", "GroupLasso")
# A link is identified by its function, not by its name: a user's own `softplus` may bend anywhere.
_LINKS = inverse_link_function_utils.LINK_NAME_TO_FUNC
_SOFTPLUS, _EXP, _LOG_SOFTMAX, _LOGISTIC = (
    [function, *(f for name, f in _LINKS.items() if name.rsplit(".", 1)[-1] == function.__name__)]
    for function in (jax.nn.softplus, jnp.exp, jax.nn.log_softmax, jax.scipy.special.expit)
)
_LOGISTIC += [jax.nn.sigmoid, jax.lax.logistic]
_KNOWN = (
    ("PoissonObservations", _SOFTPLUS, PoissonSoftplus),
    ("PoissonObservations", _EXP, PoissonExp),
    ("GaussianObservations", [lambda x: x], Gaussian),
    ("BernoulliObservations", _LOGISTIC, Bernoulli),
    ("GammaObservations", _EXP, Gamma),
    ("NegativeBinomialObservations", _EXP, NegativeBinomial),
)
"""Observation model of NeMoS, whose versions have some of them, its link, and our model."""


def candidates(solver: Any, model, params, args, out, Y):
    """Propose possible losses of a row, the best first; each is verified before it is used."""
    observation, link = getattr(model, "observation_model", None), getattr(model, "inverse_link_function", None)
    if observation is not None and callable(link):
        ours = known_loss(observation, link)
        if ours is not None and not ours.observation.wrong(Y)[0].any():
            yield ours
        coupled = isinstance(observation, nemos.observation_models.CategoricalObservations)
        settings = _settings(observation)
        if settings is not None:
            yield _NemosLoss(type(observation), settings, link, out, out[-1] if coupled else 1)
    if jax.tree.structure(params) == jax.tree.structure(type(params)(params.coef, params.intercept)):
        yield _GivenLoss(solver.unregularized_loss, params, args, out)


@dataclass(frozen=True)
class KnownLoss:
    """An observation model with proved bounds; NeMoS's loss of a response is ``factor`` times ours plus a term in y."""

    observation: Observation
    factor: float = 1.0

    def loss(self, y, eta):
        """Compute NeMoS's loss of responses."""
        return self.factor * self.observation.loss(y, eta) + self.extra(y)

    def extra(self, y):
        """Compute the part of NeMoS's loss of responses that does not depend on the linear predictor."""
        if isinstance(self.observation, Gaussian):
            return y * y
        r = 1 / self.observation.dispersion if isinstance(self.observation, NegativeBinomial) else 1.0
        return y * np.log(r)

    def standard_form(self, Y: np.ndarray) -> StandardForm:
        """Bring responses (time, neuron) to the form that the engine fits, with NeMoS's objective."""
        form = StandardForm.of(SimpleNamespace(Y=Y, weights=None, own=None), self.observation)
        constant = self.factor * form.constant
        if isinstance(self.observation, NegativeBinomial):
            constant = constant + self.extra(np.mean(Y, axis=0, dtype=np.float64))
        return replace(form, unit=self.factor * form.unit, constant=constant, scale=self.factor * form.scale)


def known_loss(observation, link) -> KnownLoss | None:
    """Find our observation model for one of NeMoS's and its link."""
    for name, links, kind in _KNOWN:
        if type(observation) is getattr(nemos.observation_models, name, None) and _computes(link, links):
            if kind is not NegativeBinomial:
                return KnownLoss(kind(), 2.0 if kind is Gaussian else 1.0)
            scale = observation.scale
            return None if scale is None or not float(scale) > 0 else KnownLoss(NegativeBinomial(float(scale)))
    return None


def _computes(link, functions) -> bool:
    """Whether a link is one of these functions, or a copy, such as joblib sends to another process."""
    if any(link is function for function in functions):
        return True
    # Compare the programs jax makes of them, traced again: functions may read values that change.
    steps = [jax.make_jaxpr(lambda x, of=of: of(x))(np.zeros(2, np.float32)) for of in (link, functions[0])]
    return str(steps[0]) == str(steps[1])


def never_changes(loss) -> bool:
    """Whether a loss is made only of NeMoS's and jax's own functions, so that code compiled for it stays valid."""
    if isinstance(loss, _GivenLoss):
        return False
    if not isinstance(loss, _NemosLoss):
        return True
    name = getattr(loss.link, "__name__", "")
    of_jax = [getattr(module, name, None) for module in (jax.nn, jnp, jax.scipy.stats.norm, jax.scipy.special)]
    own_model = getattr(nemos.observation_models, loss.observation.__name__, None) is loss.observation
    return own_model and any(loss.link is function for function in (*_LINKS.values(), *of_jax))


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

    def select(self, n_columns: int) -> Self:
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

    def select(self, n_columns: int) -> Self:
        """Return the loss itself: its columns stay together."""
        return self


@dataclass(frozen=True)
class Penalties:
    """Penalty of every coefficient, read off the gradient of NeMoS's own."""

    name: str
    l1: np.ndarray  # (feature, column); for the group lasso the strength of its group
    ridge: np.ndarray  # (feature, column)
    labels: np.ndarray | None = None  # (feature, column) group within its column, -1 without

    def make(self, features, columns):
        """Make our penalty for some features and columns."""
        at = np.ix_(features, columns)
        if not len(features) or self.name == "UnRegularized":
            return penalties.NoPenalty(np.zeros(()))
        l1, ridge = self.l1[at], self.ridge[at]
        if self.name == "Ridge":
            return penalties.Ridge(_shared(ridge))
        if self.name == "Lasso":
            return penalties.Lasso(_shared(l1))
        if self.name == "ElasticNet":
            strength = l1 + ridge
            ratio = np.where(strength > 0, l1 / np.where(strength > 0, strength, 1), 1.0)
            return penalties.ElasticNet(_shared(strength), _shared(ratio))
        labels = self.labels[features, columns[0]]
        found = np.unique(labels[labels >= 0])
        if not len(found):
            return penalties.NoPenalty(np.zeros(()))
        # A group keeps the weight of its full size if a mask has removed some of its features.
        whole = np.array([np.sum(self.labels[:, columns[0]] == g) for g in found])
        left = np.array([np.sum(labels == g) for g in found])
        strength = np.stack([l1[np.argmax(labels == g)] for g in found]) * np.sqrt(whole / left)[:, None]
        return penalties.GroupLasso(strength, tuple(labels.tolist()))


def in_units(penalty: Any, unit: Any) -> Any:
    """Return a penalty of our objective, of which NeMoS's is this multiple, shared or (column,)."""
    if np.all(unit == 1):
        return penalty
    return eqx.tree_at(lambda p: p.strength, penalty, np.asarray(penalty.strength, np.float64) / unit)


def _shared(strength: np.ndarray) -> np.ndarray:
    """Return one number, one per column or one per coefficient: the smallest form without loss."""
    if np.all(strength == strength[0, 0]):
        return strength[0, 0]
    return strength[0] if np.all(strength == strength[:1]) else strength


def read_penalty(solver: Any, params) -> Penalties | None:
    """Strengths per coefficient, from the gradient of NeMoS's penalty at all ones and all twos."""
    regularizer = solver.regularizer
    name = type(regularizer).__name__
    if name not in REGULARIZERS or type(regularizer) is not getattr(nemos.regularizer, name, None):
        return None
    _, _, value = pieces_of(solver, params)

    def slope(at):
        there = jax.tree.map(lambda a: jax.device_put(np.full(a.shape, at, a.dtype)), params)
        return stacked(jax.tree.map(lambda g: np.asarray(g, np.float64), jax.grad(value)(there).coef))

    one, labels = slope(1.0), None
    ridge = one if name == "Ridge" else np.zeros_like(one)
    if name == "ElasticNet":
        ridge = np.maximum(slope(2.0) - one, 0.0)
        ridge[ridge < 1e-6 * one] = 0.0
    if name == "GroupLasso" and (labels := _group_labels(regularizer.mask, params)) is None:
        return None
    return Penalties(name, one - ridge, ridge, labels)


def _group_labels(mask, params) -> np.ndarray | None:
    """Group of every coefficient within its column; None if a group extends over columns."""
    leaves = [np.asarray(m) for m in jax.tree.leaves(mask)]
    shapes = [c.shape for c in jax.tree.leaves(params.coef)]
    if [m.shape[1:] for m in leaves] != shapes:
        return None
    member = np.concatenate([m.reshape(len(m), shape[0], -1) for m, shape in zip(leaves, shapes, strict=True)], axis=1)
    if np.any(np.sum(np.any(member != 0, axis=1), axis=1) > 1):
        return None
    labels = np.where(np.any(member != 0, axis=0), np.argmax(member, axis=0), -1)
    # Numbered within a column in order of appearance, so that columns with the same groups look the same.
    for column in labels.T:
        found, first = np.unique(column[column >= 0], return_index=True)
        number = {g: i for i, g in enumerate(found[np.argsort(first)])}
        column[:] = [number.get(g, -1) for g in column]
    return labels
