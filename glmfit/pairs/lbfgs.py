"""L-BFGS of optax on all parameters of a two-tower model: one program per step."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from .._checks import check_whole
from .._compile import jit
from .objective import magnitude, norm
from .problem import AllPairsProblem
from .stationary import SLACK, StationaryState, TwoSidedSolver

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
    nothing left to go by: there `TowerAdam` is the default.

    References
    ----------
    Liu and Nocedal (1989), On the limited memory BFGS method for large scale optimization; Hager and Zhang (2006),
    Algorithm 851.
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

    def update(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        """Take one step."""
        memory, size, n_weighed = state.memory, state.magnitude, 0
        if int(memory.trials) > 2 or (state.epoch and state.epoch % _WEIGH_EVERY == 0):
            size, n_weighed = float(magnitude(problem.data, state.theta)), 1
        numbers = state.dtype.type(state.objective), state.dtype.type(size)
        settings = self.history_size, self.max_line_search
        point, memory = _step(problem.data, state.theta, *numbers, memory, *settings)
        return state.at(*point, int(memory.trials) + n_weighed, magnitude=size, memory=memory)


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
