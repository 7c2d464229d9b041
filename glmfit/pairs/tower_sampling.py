"""What solvers of two-tower models with noisy gradients have in common: an optimizer of optax, a rate that falls."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from .._checks import check_at_least_zero, check_choice, check_positive
from .._compile import jit
from .._status import Status
from .base import TwoSided
from .stationary import TwoSidedSolver, evaluate

OPTIMIZERS = ("adam", "sgd")


class TowerSamplerState(NamedTuple):
    """Everything the next epoch depends on."""

    epoch: int
    theta: Any
    objective: float
    gradient_norm: float
    magnitude: float
    evaluations: float
    products: int
    fresh: bool
    moments: Any
    key: Any
    pairs: Any


class TowerSampler(TwoSidedSolver):
    """Common part of the solvers with noisy gradients.

    Attributes
    ----------
    learning_rate : float
        Of the first epoch.
    decay : float
        The rate of an epoch is ``learning_rate / (1 + decay * epoch)``.
    optimizer : {"adam", "sgd"}
        What is done with a gradient.
    """

    usual_epochs: ClassVar[int] = 100
    look_every: ClassVar[int] = 5

    learning_rate: float
    decay: float
    optimizer: str

    def __post_init__(self):
        check_positive("learning_rate", self.learning_rate)
        check_at_least_zero("decay", self.decay)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)

    def descends(self, state: TowerSamplerState) -> bool:
        """No: single steps may go uphill."""
        return False

    def end(self) -> Status:
        """Status of a run whose epochs have ended: what was to be done was done."""
        return Status.SCHEDULE_DONE

    def init_state(self, problem: TwoSided, theta: Any, *, key) -> TowerSamplerState:
        """Evaluate the start."""
        value, size, _ = evaluate(problem.data, theta)
        moments = _moments(theta, self.optimizer)
        return TowerSamplerState(0, theta, float(value), float(size), 0.0, 1.0, 0, True, moments, key, None)

    def rate(self, state: TowerSamplerState) -> Any:
        """Learning rate of the next epoch, in the precision of the parameters."""
        dtype = jax.tree.leaves(state.theta)[0].dtype.type
        return dtype(self.learning_rate / (1 + self.decay * state.epoch))


def transformation(optimizer: str):
    """Optax's rule, without a learning rate."""
    import optax

    return optax.scale_by_adam() if optimizer == "adam" else optax.identity()


@functools.partial(jit, static_argnames="optimizer")
def _moments(theta, optimizer: str):
    return transformation(optimizer).init(theta)


def move(theta, moments, gradient, rate, optimizer: str) -> tuple[Any, Any]:
    """Take a step along a gradient."""
    change, moments = transformation(optimizer).update(gradient, moments)
    return jax.tree.map(lambda t, c: jnp.subtract(t, rate * c).astype(t.dtype), theta, change), moments
