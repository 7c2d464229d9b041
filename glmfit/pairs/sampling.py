"""First-order solvers of two-tower models, with gradients of all pairs, of batches, or of sampled pairs."""

import functools
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ..checks import check_at_least_zero, check_choice, check_positive, check_whole
from ..compilation import jit
from ..numerics import seed_of
from ..status import Status
from .descent import Memory, TowerLBFGS
from .objective import norm
from .problem import AllPairsProblem
from .stationary import StationaryState, TwoSidedSolver

_STEPS = 10  # Adam steps per epoch, in one program


@dataclass(frozen=True)
class TowerAdam(TwoSidedSolver):
    r"""Adam (optax) with exact gradients of all pairs, then L-BFGS from the best point: the default for perceptrons.

    Parameters
    ----------
    learning_rate : float
        Learning rate of Adam: about how far every parameter moves per step.
    n_steps : int
        Steps of Adam, rounded up to whole epochs of 10.
    polish : {"lbfgs"} or None
        Solver that follows, until it converges or the epochs end; None for none.
    history_size : int
        Pairs of vectors that L-BFGS stores.

    Notes
    -----
    Guarantee: a state holds the best parameters so far, so their objective never rises. Adam's own path may go uphill;
    if it overflows, the polish takes over from the best point. Deterministic.

    An epoch is 10 steps of Adam in one program, later one step of L-BFGS; each is a pass for objective and gradient.
    To shorten Adam, lower ``n_steps``, not ``max_epochs``, which would skip the polish. Source: Kingma and Ba (2015),
    Adam: a method for stochastic optimization.
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
    def ends(self) -> Status:
        """Status of a run whose epochs have ended."""
        return Status.SCHEDULE_DONE if self.polish is None else Status.MAX_EPOCHS

    def descends(self, state: StationaryState) -> bool:
        """Whether the polish has begun."""
        return isinstance(state.memory, Memory)

    @property
    def most_epochs(self) -> float:
        """Epochs after which nothing is left to do: those of Adam if no polish follows."""
        return math.ceil(self.n_steps / _STEPS) if self.polish is None else math.inf

    def prepare(self, problem: AllPairsProblem, state: StationaryState, gradient, key) -> StationaryState:
        """Store the current point of Adam, separate from the best one, and its moments."""
        return state._replace(memory=(state.theta, moments_of(state.theta, "adam")))

    def advance(self, problem: AllPairsProblem, state: StationaryState, target: float, most: int) -> StationaryState:
        """Take some steps of Adam, or of L-BFGS as `TowerLBFGS` does."""
        polish = TowerLBFGS(self.history_size)
        return (polish if self.descends(state) else super()).advance(problem, state, target, most)

    def update(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        """Take some steps of Adam, or one of L-BFGS."""
        polish = TowerLBFGS(self.history_size)
        if self.descends(state):
            return polish.update(problem, state)
        if self.polish is not None and state.epoch >= math.ceil(self.n_steps / _STEPS):
            return polish.update(problem, polish.start_at(problem, state))
        real = state.dtype.type
        best = (state.theta, real(state.objective), real(state.gradient_norm))
        best, *memory, finite = _adam_steps(problem.data, best, *state.memory, real(self.learning_rate))
        state = state.at(*best, _STEPS, memory=tuple(memory))
        if finite:
            return state
        return state._replace(objective=math.nan) if self.polish is None else polish.start_at(problem, state)


class _Sampler(TwoSidedSolver):
    """Optax optimizer with a decaying rate; its memory holds moments and a key."""

    usual_epochs: ClassVar[int] = 100
    look_every: ClassVar[int] = 5
    ends: ClassVar[Status] = Status.SCHEDULE_DONE

    learning_rate: float
    decay: float
    optimizer: str

    def __post_init__(self):
        check_positive("learning_rate", self.learning_rate)
        check_at_least_zero("decay", self.decay)
        check_choice("optimizer", self.optimizer, ("adam", "sgd"))

    def descends(self, state: StationaryState) -> bool:
        return False

    def prepare(self, problem: AllPairsProblem, state: StationaryState, gradient, key) -> StationaryState:
        return state._replace(memory=(moments_of(state.theta, self.optimizer), key))

    @abstractmethod
    def batches(self, problem: AllPairsProblem, key: jax.Array) -> tuple[Any, tuple, float]:
        """Draw an epoch: its batches; pairs to draw from and numbers to draw, or nothing; and its number of passes."""

    def update(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        """Take a step per batch."""
        moments, key = state.memory
        batches, drawn, passes = self.batches(problem, jax.random.fold_in(key, state.epoch))
        rate = state.dtype.type(self.learning_rate / (1 + self.decay * state.epoch))
        theta, moments = _epoch(problem.data, state.theta, moments, batches, rate, self.optimizer, *drawn)
        n = state.evaluations + passes
        return state._replace(theta=theta, evaluations=n, fresh=False, memory=(moments, key))


@dataclass(frozen=True)
class LeftBatches(_Sampler):
    r"""Minibatches over left entities (stimuli), each with all its observed pairs and all right entities (neurons).

    Parameters
    ----------
    batch_size : int
        Left entities per step; all of them if there are fewer. Those that fill no whole batch wait for another epoch,
        in a new order.
    learning_rate : float
        Rate of the first epoch. For "sgd" it multiplies the gradient of a sum over all pairs and must be far smaller.
    decay : float
        The rate of an epoch is ``learning_rate / (1 + decay * epoch)``.
    optimizer : {"adam", "sgd"}
        Update rule (optax).

    Notes
    -----
    The imputed part of a batch is exact over the right entities, by their Gram matrix: the gradient is unbiased for
    both towers, and its curvature is never negative. For a tight tolerance, which it does not reach, finish with
    `TowerLBFGS`.

    An epoch costs about a pass over the observed pairs, the left tower once, and the right tower and its Gram matrix
    once per step. The objective of all pairs is evaluated every 5 epochs. Theory and source: docs/theory/all_pairs.md.
    """

    batch_size: int = 128
    learning_rate: float = 0.03
    decay: float = 0.03
    optimizer: str = "adam"

    def __post_init__(self):
        super().__post_init__()
        check_whole("batch_size", self.batch_size, 1)

    def batches(self, problem, key):
        """Visit every left entity once, except those that fill no whole batch."""
        batches = problem.left_batches(min(self.batch_size, problem.n_left), seed_of(key))
        return batches, (), batches[0].size / problem.n_left


@dataclass(frozen=True)
class SampledPairs(_Sampler):
    r"""Steps from sampled pairs: observed ones drawn uniformly, imputed ones by cost, weighted to be unbiased.

    Parameters
    ----------
    n_observed : int
        Observed pairs per step.
    n_imputed : int
        Imputed pairs per step.
    learning_rate : float
        Rate of the first epoch. For "sgd" it multiplies the gradient of a sum over all pairs and must be far smaller.
    decay : float
        The rate of an epoch is ``learning_rate / (1 + decay * epoch)``.
    optimizer : {"adam", "sgd"}
        Update rule (optax).

    Notes
    -----
    This is the usual way to fit such models, provided for comparison. The estimates of the objective and its gradient
    are unbiased, but the noisiest of all solvers: this one approaches an optimum and does not converge. The curvature
    may be negative because observed and imputed pairs are drawn separately. If you need batches, use `LeftBatches`.

    A step evaluates the towers of ``n_observed + n_imputed`` pairs; the steps of an epoch make a pass over the
    observed pairs. The objective of all pairs is evaluated every 5 epochs. Theory: docs/theory/all_pairs.md; see also
    Krichene et al. (2019), Efficient training on very large corpora via Gramian estimation.
    """

    n_observed: int = 1024
    n_imputed: int = 4096
    learning_rate: float = 0.03
    decay: float = 0.1
    optimizer: str = "adam"

    def __post_init__(self):
        super().__post_init__()
        check_whole("n_observed", self.n_observed, 1)
        check_whole("n_imputed", self.n_imputed, 1)

    def batches(self, problem, key):
        """Draw about as many observed pairs as there are."""
        n_steps = max(1, problem.n_pairs // self.n_observed)
        drawn = problem.observed_pairs, (self.n_observed, self.n_imputed)
        return jax.random.split(key, n_steps), drawn, n_steps * self.n_observed / problem.n_pairs


def _transformation(optimizer: str):
    """Optax's rule, without a learning rate."""
    import optax

    return optax.scale_by_adam() if optimizer == "adam" else optax.identity()


@functools.partial(jit, static_argnames="optimizer")
def moments_of(theta, optimizer: str):
    """Return the initial state of the rule."""
    return _transformation(optimizer).init(theta)


def move(theta, moments, gradient, rate, optimizer: str) -> tuple[Any, Any]:
    """Take a step along a gradient."""
    change, moments = _transformation(optimizer).update(gradient, moments)
    return jax.tree.map(lambda t, c: jnp.subtract(t, rate * c).astype(t.dtype), theta, change), moments


@functools.partial(jit, static_argnames=("optimizer", "sizes"))
def _epoch(data, theta, moments, batches, rate, optimizer: str, pairs=None, sizes: tuple[int, int] = (0, 0)):
    """Take a step per batch of left entities or, if ``pairs`` to draw from are given, per key of a draw."""

    def one(carry, batch):
        if pairs is None:
            gradient = data.take(*batch).value_and_gradient(carry[0])[1]
        else:
            gradient = jax.grad(data.sampled)(carry[0], data.draw(batch, pairs, *sizes))
        return move(*carry, gradient, rate, optimizer), None

    return jax.lax.scan(one, (theta, moments), batches)[0]


@jit
def _adam_steps(data, best, theta, moments, rate):
    """Take the steps of an epoch; the next call evaluates the last point. ``best`` is parameters, value and norm."""

    def one(carry, _):
        best, theta, moments, _ = carry
        value, gradient = data.value_and_gradient(theta)
        size = norm(gradient)
        better = (value < best[1]) & jnp.isfinite(size)
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), (theta, value, size), best)
        return (best, *move(theta, moments, gradient, rate, "adam"), jnp.isfinite(value)), None

    return jax.lax.scan(one, (best, theta, moments, jnp.asarray(True)), None, _STEPS)[0]
