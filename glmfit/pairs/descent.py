"""L-BFGS of optax on all parameters of a two-tower model, alone or after Adam with gradients of all pairs."""

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..checks import check_choice, check_positive, check_whole
from ..compilation import jit
from ..status import Status
from .objective import magnitude, norm
from .problem import AllPairsProblem
from .sampling import moments_of, move
from .stationary import SLACK, StationaryState, TwoSidedSolver

_STEPS = 10  # of Adam in an epoch: one program
_WEIGH_EVERY = 20  # epochs between looks at the size of the objective's terms, where steps are easily found


class Memory(NamedTuple):
    """What L-BFGS knows besides the state."""

    gradient: jax.Array  # all of it in one vector
    curvature: Any  # optax's memory
    trials: jax.Array  # of the last line search


@dataclass(frozen=True)
class TowerLBFGS(TwoSidedSolver):
    r"""L-BFGS (optax) on all parameters of both towers at once: the default for linear towers.

    Parameters
    ----------
    history_size : int
        Pairs of vectors remembered; each costs 4 flops per parameter in every iteration.
    max_line_search : int
        Evaluations per step, at most.

    Notes
    -----
    Guarantee: the objective never rises by more than ten times the rounding of its terms; every step meets the strong
    Wolfe conditions, or the approximate ones of Hager and Zhang where rounding hides the decrease. Deterministic; no
    learning rate.

    An epoch is one iteration: one pass for the objective and its gradient, rarely two. Memory: ``2 history_size``
    times the parameters.

    With perceptrons its first long steps can end among large embeddings that nearly cancel, where single precision has
    nothing left to go by: there `TowerAdam` is the default. Sources: Liu and Nocedal (1989), On the limited memory BFGS
    method for large scale optimization; Hager and Zhang (2006), Algorithm 851.
    """

    usual_epochs: ClassVar[int] = 2000
    patience: ClassVar[int] = 60

    history_size: int = 8
    max_line_search: int = 20

    def __post_init__(self):
        check_whole("history_size", self.history_size, 1)
        check_whole("max_line_search", self.max_line_search, 1)

    def prepare(self, problem: AllPairsProblem, state: StationaryState, gradient, key) -> StationaryState:
        return state._replace(memory=_start(state.theta, gradient, self.history_size))

    def start_at(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        """Begin where another method has got to."""
        begun = self.init_state(problem, state.theta, key=None)
        return state._replace(magnitude=begun.magnitude, evaluations=state.evaluations + 2, memory=begun.memory)

    def update(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        """Take one step."""
        memory, size, n_weighed = state.memory, state.magnitude, 0
        if int(memory.trials) > 2 or (state.epoch and state.epoch % _WEIGH_EVERY == 0):
            size, n_weighed = float(magnitude(problem.data, state.theta)), 1
        numbers = state.dtype.type(state.objective), state.dtype.type(size)
        settings = self.history_size, self.max_line_search
        point, memory = _step(problem.data, state.theta, *numbers, memory, *settings)
        return state.at(*point, int(memory.trials) + n_weighed, magnitude=size, memory=memory)


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
    Where Adam is to be short, lower ``n_steps``, not ``max_epochs``, which would leave the polish out. Source: Kingma
    and Ba (2015), Adam: a method for stochastic optimization.
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

    def is_done(self, state: StationaryState) -> bool:
        """Whether Adam has taken its steps and nothing follows."""
        return self.polish is None and state.epoch >= math.ceil(self.n_steps / _STEPS)

    def prepare(self, problem: AllPairsProblem, state: StationaryState, gradient, key) -> StationaryState:
        """Remember where Adam is, apart from the best point, and its moments."""
        return state._replace(memory=(state.theta, moments_of(state.theta, "adam")))

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


@functools.partial(jit, static_argnames="history_size")
def _start(theta: Any, gradient: Any, history_size: int) -> Memory:
    """Remember the gradient and nothing else."""
    import optax

    x = ravel_pytree(theta)[0]
    memory = optax.scale_by_lbfgs(history_size).init(x)
    memory = jax.tree.map(lambda a: a.astype(x.dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, memory)
    return Memory(ravel_pytree(gradient)[0], memory, jnp.asarray(1))


@functools.partial(jit, static_argnames=("history_size", "max_line_search"))
def _step(data, theta, value, size, memory: Memory, history_size: int, max_line_search: int):
    """Take a step that meets the strong Wolfe conditions: parameters, objective and norm of the gradient; the memory.

    A step that would go uphill by more than the rounding of terms of that ``size`` is not taken; then, and where
    the curvature condition could not be met, what was remembered is forgotten.
    """
    import optax

    (x, back), info = ravel_pytree(theta), jnp.finfo(value.dtype)
    slack = SLACK * info.eps * size
    search = optax.scale_by_zoom_linesearch(
        max_line_search, initial_guess_strategy="one", approx_dec_rtol=slack / jnp.maximum(jnp.abs(value), info.tiny)
    )
    direction, curvature = optax.scale_by_lbfgs(history_size).update(memory.gradient, memory.curvature, x)
    known = {"value": value, "grad": memory.gradient, "value_fn": lambda x: data.objective(back(x))}
    change, found = search.update(-direction, search.init(x), x, **known)
    good = (found.value <= value + slack) & jnp.all(jnp.isfinite(found.grad))
    keep = good & (found.info.curvature_error <= 0)
    curvature = curvature._replace(  # pairs of weight 0 are as if they were not there
        count=jnp.where(keep, curvature.count, 0), weights_memory=jnp.where(keep, curvature.weights_memory, 0.0)
    )
    curvature = jax.tree.map(lambda new, old: new.astype(old.dtype), curvature, memory.curvature)
    moved = jnp.where(good, x + change.astype(x.dtype), x)
    value = jnp.where(good, found.value, value)
    gradient = jnp.where(good, found.grad, memory.gradient)
    return (back(moved), value, norm(gradient)), Memory(gradient, curvature, found.info.num_linesearch_steps)


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
