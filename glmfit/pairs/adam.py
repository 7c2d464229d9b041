"""Adam with gradients of all pairs, then L-BFGS, on all parameters of a two-tower model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from .._checks import check_choice, check_positive, check_whole
from .._compile import jit
from .._status import Status
from .lbfgs import Memory, TowerLBFGS
from .objective import norm
from .problem import AllPairsProblem
from .sampling import moments_of, move
from .stationary import StationaryState, TwoSidedSolver

_STEPS = 10  # of Adam in an epoch: one program


@dataclass(frozen=True)
class TowerAdam(TwoSidedSolver):
    r"""Adam (optax) with exact gradients of all pairs, then L-BFGS from the best point: the default for perceptrons.

    Parameters
    ----------
    learning_rate : float
        Of Adam: about how far every parameter moves per step.
    n_steps : int
        Of Adam, rounded up to whole epochs of 10.
    polish : {"lbfgs"} or None
        What follows, until converged or the epochs end; None for nothing.
    history_size : int
        Pairs of vectors that L-BFGS remembers.

    Notes
    -----
    Guarantee: the parameters of a state are the best that were seen, so their objective never rises. Adam's own path
    may go uphill; if it overflows, the polish takes over from the best point. Deterministic.

    An epoch is 10 steps of Adam in one program, then one step of L-BFGS; each is a pass for objective and gradient.
    Where Adam is to be short, lower ``n_steps``, not ``max_epochs``, which would leave the polish out.

    References
    ----------
    Kingma and Ba (2015), Adam: a method for stochastic optimization.
    """

    usual_epochs: ClassVar[int] = 2000
    patience: ClassVar[int] = 60

    learning_rate: float = 0.01
    n_steps: int = 1000
    polish: str | None = "lbfgs"
    history_size: int = 8

    def __post_init__(self):
        check_positive("learning_rate", self.learning_rate)
        check_whole("n_steps", self.n_steps, 1)
        if self.polish is not None:
            check_choice("polish", self.polish, ("lbfgs",))
        check_whole("history_size", self.history_size, 1)

    @property
    def _lbfgs(self) -> TowerLBFGS:
        return TowerLBFGS(self.history_size)

    @property
    def _adam_epochs(self) -> int:
        return math.ceil(self.n_steps / _STEPS)

    def descends(self, state: StationaryState) -> bool:
        """Whether the polish has begun."""
        return isinstance(state.memory, Memory)

    def is_done(self, state: StationaryState) -> bool:
        """Whether Adam has taken its steps and nothing follows."""
        return self.polish is None and state.epoch >= self._adam_epochs

    def end(self) -> Status:
        return Status.SCHEDULE_DONE if self.polish is None else Status.MAX_EPOCHS

    def prepare(self, problem: AllPairsProblem, state: StationaryState, gradient, key) -> StationaryState:
        """Remember where Adam is, apart from the best point, and its moments."""
        return state._replace(memory=(state.theta, moments_of(state.theta, "adam")))

    def update(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        """Take some steps of Adam, or one of L-BFGS."""
        if not self.descends(state):
            if state.epoch < self._adam_epochs or self.polish is None:
                return self._adam(problem, state)
            state = self._start_polish(problem, state)
        return self._lbfgs.update(problem, state)

    def _start_polish(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        begun = self._lbfgs.init_state(problem, state.theta, key=None)
        n = state.evaluations + 2
        return state._replace(magnitude=begun.magnitude, evaluations=n, memory=begun.memory)

    def _adam(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        real = state.dtype.type
        best = (state.theta, real(state.objective), real(state.gradient_norm))
        best, *memory, finite = _adam_steps(problem.data, best, *state.memory, real(self.learning_rate))
        state = state.at(*best, _STEPS, memory=tuple(memory))
        if finite:
            return state
        if self.polish is None:
            return state._replace(objective=math.nan)
        return self._start_polish(problem, state)


@jit
def _adam_steps(data, best, theta, moments, rate):
    """Take the steps of an epoch, the last point being seen by the next call; best are parameters, value and norm."""

    def one(carry, _):
        best, theta, moments, _ = carry
        value, gradient = data.value_and_gradient(theta)
        size = norm(gradient)
        better = (value < best[1]) & jnp.isfinite(size)
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), (theta, value, size), best)
        return (best, *move(theta, moments, gradient, rate, "adam"), jnp.isfinite(value)), None

    return jax.lax.scan(one, (best, theta, moments, jnp.asarray(True)), None, _STEPS)[0]
