"""Steps of L-BFGS by optax on all parameters of a two-sided problem: one program per step."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from .._compile import jit
from .stationary import SLACK, magnitude, norm

MOST_TRIALS = 20  # of a line search
_WEIGH_EVERY = 20  # epochs between looks at the size of the objective's terms, where steps are easily found


class LbfgsPoint(NamedTuple):
    """Where L-BFGS stands.

    Attributes
    ----------
    theta :
        Parameters.
    value, norm : jax.Array
        Objective there and norm of its gradient.
    gradient : jax.Array
        All of it in one vector.
    memory :
        Optax's.
    """

    theta: Any
    value: jax.Array
    norm: jax.Array
    gradient: jax.Array
    memory: Any


def _empty(x, history_size: int):
    import optax

    memory = optax.scale_by_lbfgs(history_size).init(x)
    return jax.tree.map(lambda a: a.astype(x.dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, memory)


@functools.partial(jit, static_argnames="history_size")
def start(data, theta, history_size: int) -> LbfgsPoint:
    """Evaluate a start, with nothing remembered."""
    value, gradient = data.value_and_gradient(theta)
    return LbfgsPoint(
        theta, value, norm(gradient), ravel_pytree(gradient)[0], _empty(ravel_pytree(theta)[0], history_size)
    )


@functools.partial(jit, static_argnames=("history_size", "max_line_search"))
def step(data, point: LbfgsPoint, size, history_size: int, max_line_search: int) -> tuple[LbfgsPoint, jax.Array]:
    """Take a step that meets the strong Wolfe conditions, and count the evaluations it took.

    A step that would go uphill by more than the rounding of terms of that ``size`` is not taken; then, and where
    the curvature condition could not be met, what was remembered is forgotten.
    """
    import optax

    x, back = ravel_pytree(point.theta)

    def both(x):
        value, gradient = data.value_and_gradient(back(x))
        return value, ravel_pytree(gradient)[0]

    @jax.custom_vjp
    def objective(x):
        return both(x)[0]

    objective.defvjp(both, lambda gradient, up: (up * gradient,))
    slack = SLACK * jnp.finfo(x.dtype).eps * size
    search = optax.scale_by_zoom_linesearch(
        max_line_search,
        initial_guess_strategy="one",
        approx_dec_rtol=slack / jnp.maximum(jnp.abs(point.value), jnp.finfo(x.dtype).tiny),
    )
    direction, memory = optax.scale_by_lbfgs(history_size).update(point.gradient, point.memory, x)
    change, found = search.update(
        -direction, search.init(x), x, value=point.value, grad=point.gradient, value_fn=objective
    )
    good = (found.value <= point.value + slack) & jnp.all(jnp.isfinite(found.grad))
    keep = good & (found.info.curvature_error <= 0)
    memory = memory._replace(  # pairs of weight 0 are as if they were not there
        count=jnp.where(keep, memory.count, 0), weights_memory=jnp.where(keep, memory.weights_memory, 0.0)
    )
    memory = jax.tree.map(lambda new, old: new.astype(old.dtype), memory, point.memory)
    moved = jnp.where(good, x + change.astype(x.dtype), x)
    value = jnp.where(good, found.value, point.value)
    gradient = jnp.where(good, found.grad, point.gradient)
    return LbfgsPoint(back(moved), value, norm(gradient), gradient, memory), found.info.num_linesearch_steps


def advance(data, state: Any, history_size: int, max_line_search: int) -> Any:
    """Take a step and tell the state, which has ``point`` and ``trials`` (of the last line search) besides."""
    size, n_weighed = state.magnitude, 0
    if state.trials > 2 or (state.epoch and state.epoch % _WEIGH_EVERY == 0):
        size, n_weighed = float(magnitude(data, state.theta)), 1
    point, n = step(data, state.point, state.point.value.dtype.type(size), history_size, max_line_search)
    return state._replace(
        epoch=state.epoch + 1,
        theta=point.theta,
        objective=float(point.value),
        gradient_norm=float(point.norm),
        magnitude=size,
        evaluations=state.evaluations + int(n) + n_weighed,
        point=point,
        trials=int(n),
    )
