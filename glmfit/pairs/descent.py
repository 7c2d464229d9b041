"""Descent on all parameters of a two-tower model at once: L-BFGS, or Gauss-Newton by conjugate gradients."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..checks import check_at_least_zero, check_choice, check_real, check_whole
from ..compilation import jit
from ..engine.exact.quadratic import conjugate_gradients
from .metric import in_metric, metric_of
from .objective import magnitude, norm
from .problem import AllPairsProblem
from .stationary import StationaryState, TwoSidedSolver
from .towers import TwoTowers

_SLACK = 10  # times the rounding of the objective's terms: how far a step may seem to go uphill
_WEIGH_EVERY = 20  # epochs between evaluations of the size of the objective's terms, if line searches are short
_ARMIJO, _CURVATURE, _HALVINGS = 1e-4, 0.9, 20
_MEASURE_AT = 5, 10  # early epochs at which the metric is measured again, besides those above
_PORTION = 10  # steps of L-BFGS that a GPU takes before the host reads anything
_FLOOR = 1e-10  # of the damping


class Memory(NamedTuple):
    """State of L-BFGS, in addition to that of the run."""

    gradient: jax.Array  # all of it in one vector
    steps: jax.Array  # the last ones, each at its number modulo their number, (pair, parameter)
    changes: jax.Array  # of the gradient
    weight: jax.Array  # one over the inner product of either; 0 for pairs that do not count, (pair,)
    number: jax.Array  # of the next step
    metric: TwoTowers | None
    trials: jax.Array  # of the last line search

    def direction(self, precondition: Callable) -> jax.Array:
        """Multiply the gradient by the inverse Hessian as the steps have shown it, from ``precondition`` on."""
        n, eps = len(self.weight), jnp.finfo(self.gradient.dtype).tiny
        order = (self.number + jnp.arange(n)) % n  # the oldest first

        def back(q, at):
            length = self.weight[at] * jnp.vdot(self.steps[at], q)
            return q - length * self.changes[at], length

        def forth(r, pair):
            at, length = pair
            return r + (length - self.weight[at] * jnp.vdot(self.changes[at], r)) * self.steps[at], None

        q, lengths = jax.lax.scan(back, self.gradient, order, reverse=True)
        weight, change = self.weight[order[-1]], self.changes[order[-1]]
        first = jnp.minimum(1.0, 1 / jnp.maximum(norm(self.gradient), eps)) if self.metric is None else 1.0
        size = weight * jnp.vdot(change, precondition(change))
        scale = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1.0), first).astype(q.dtype)
        return jax.lax.scan(forth, scale * precondition(q), (order, lengths))[0]

    def after(self, step: jax.Array, gradient: jax.Array, taken: Any, keep: Any, trials: Any) -> Self:
        """Return the memory after a step that may not have been taken; without ``keep`` only the gradient is left."""
        change, at = gradient - self.gradient, self.number % len(self.weight)
        product = jnp.vdot(step, change)
        curved = product > jnp.finfo(step.dtype).eps * norm(step) * norm(change)
        weight = self.weight.at[at].set(jnp.where(taken & curved, 1 / jnp.where(curved, product, 1.0), self.weight[at]))
        return self._replace(
            gradient=jnp.where(taken, gradient, self.gradient),
            steps=self.steps.at[at].set(jnp.where(taken, step, self.steps[at])),
            changes=self.changes.at[at].set(jnp.where(taken, change, self.changes[at])),
            weight=jnp.where(keep & (curved | ~taken), weight, 0.0),
            number=self.number + taken, trials=jnp.asarray(trials, self.trials.dtype),
        )  # fmt: skip


@dataclass(frozen=True)
class TowerLBFGS(TwoSidedSolver):
    r"""L-BFGS on all parameters of both towers at once, in a metric of their own: the default for linear towers.

    Parameters
    ----------
    history_size : int
        Pairs of vectors stored; each costs 4 flops per parameter in every iteration.
    max_line_search : int
        Maximum number of evaluations per step.

    Notes
    -----
    Guarantee: the objective never rises by more than ten times the rounding of its terms; every step meets the strong
    Wolfe conditions, or the approximate ones of Hager and Zhang where rounding hides the decrease. Deterministic; no
    learning rate.

    If much is imputed, directions of linear towers start from the mean curvature of the embeddings of a side, a matrix
    (k, k), which saves iterations (docs/theory/all_pairs.md). An epoch is one iteration: one
    pass for the objective and its gradient, rarely two. Memory: ``2 history_size`` times the parameters.

    With perceptrons, its long first steps can end at large embeddings that nearly cancel, where single precision has no
    digits left: there `TowerAdam` is the default. Sources: Liu and Nocedal (1989), On the limited memory BFGS method
    for large scale optimization; Hager and Zhang (2006), Algorithm 851.
    """

    usual_epochs: ClassVar[int] = 2000
    patience: ClassVar[int] = 60

    history_size: int = 8
    max_line_search: int = 20

    def __post_init__(self):
        check_whole("history_size", self.history_size, 1)
        check_whole("max_line_search", self.max_line_search, 1)

    def prepare(self, problem: AllPairsProblem, state: StationaryState, gradient, key) -> StationaryState:
        memory = _start(gradient, self.history_size)
        return state._replace(memory=memory._replace(metric=metric_of(problem.data, state.theta)))

    def start_at(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        """Start from the current point of another method."""
        begun = self.init_state(problem, state.theta, key=None)
        return state._replace(magnitude=begun.magnitude, evaluations=state.evaluations + 2, memory=begun.memory)

    def advance(self, problem: AllPairsProblem, state: StationaryState, target: float, most: int) -> StationaryState:
        """Take steps of length one on a GPU, up to ten at a time, and one with a line search where these end."""
        # After a search that had to shorten a step, the next one may have to as well.
        if most == 1 or not in_portions(problem.data) or int(state.memory.trials) > 1:
            return super().advance(problem, state, target, most)
        memory, size, n_weighed = state.memory, state.magnitude, 0
        if state.epoch % _WEIGH_EVERY >= _WEIGH_EVERY - _PORTION:
            size, n_weighed = magnitude(problem.data, state.theta), 1
        if memory.metric is not None and (n_weighed or state.epoch <= max(_MEASURE_AT)):
            memory = memory._replace(metric=metric_of(problem.data, state.theta) or memory.metric)
        numbers = (jnp.asarray(x, state.dtype) for x in (state.objective, state.gradient_norm, size, target))
        theta, memory, trace = _unit_steps(problem.data, state.theta, *numbers, min(most, _PORTION), memory)
        trace, size = jax.device_get((trace, size))  # the wait
        tried, taken = (int(n) for n in trace[:, 2:].sum(axis=0))
        seen = tuple((value, flat) for value, flat, *_ in trace[:taken].tolist())
        last = seen[-1] if taken else (state.objective, state.gradient_norm)
        state = state.at(theta, *last, _PORTION + n_weighed, magnitude=float(size), memory=memory)
        state = state._replace(epoch=state.epoch + taken, passed=seen[:-1])
        if 0 < tried == taken:
            return state
        return super().advance(problem, state, target, most - taken)._replace(passed=seen)

    def update(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        """Take one step."""
        memory, size, n_weighed = state.memory, state.magnitude, 0
        again = state.epoch > 0 and state.epoch % _WEIGH_EVERY == 0
        if int(memory.trials) > 2 or again:
            size, n_weighed = float(magnitude(problem.data, state.theta)), 1
        if memory.metric is not None and (again or state.epoch in _MEASURE_AT):
            memory = memory._replace(metric=metric_of(problem.data, state.theta) or memory.metric)
        numbers = state.dtype.type(state.objective), state.dtype.type(size)
        point, memory = _step(problem.data, state.theta, *numbers, memory, self.max_line_search)
        return state.at(*point, int(memory.trials) + n_weighed, magnitude=size, memory=memory)


@dataclass(frozen=True)
class GaussNewton(TwoSidedSolver):
    r"""Gauss-Newton by conjugate gradients with Levenberg-Marquardt damping: no learning rate, few iterations.

    Parameters
    ----------
    max_products : int
        Maximum number of products with the Gauss-Newton matrix per step. Too few do harm with perceptrons.
    forcing : float
        In (0, 1): residual to which a system is solved, relative to the gradient.
    damping : float
        Initial multiple of the identity that is added to the matrix, in units of its mean diagonal (estimated by one
        product with random signs); it then adapts to how well the quadratic model predicted the decrease. 0 for none.
    curvature : {"gauss-newton", "exact"}
        "exact" uses the Hessian instead of the Gauss-Newton matrix, for fast convergence if residuals are not small;
        conjugate gradients then stop at a direction of negative curvature.

    Notes
    -----
    Guarantee: the objective never rises by more than ten times the rounding of its terms (Armijo's condition, at most
    20 halvings). The Gauss-Newton matrix is positive semi-definite for any imputation weight because observed and
    imputed parts are summed and not clipped; any iterate of the conjugate gradients is therefore a descent direction.
    With the exact Hessian, so is any iterate before negative curvature is met, which is all it needs.

    An epoch is one step. Cost: a pass for objective and gradient, and a product (about two passes) for each iteration
    of the conjugate gradients. Memory: some vectors of all parameters and, with the exact Hessian, some numbers per
    observed pair. Near a solution with nonzero residual the convergence of Gauss-Newton is linear, not quadratic: for a
    tight tolerance `TowerLBFGS` is faster. Theory and source: docs/theory/all_pairs.md; see also
    Martens (2010), Deep learning via Hessian-free optimization.
    """

    usual_epochs: ClassVar[int] = 200

    max_products: int = 100
    forcing: float = 0.1
    damping: float = 1.0
    curvature: str = "gauss-newton"

    def __post_init__(self):
        check_whole("max_products", self.max_products, 1)
        check_real("forcing", self.forcing, 1.0)
        check_at_least_zero("damping", self.damping)
        check_choice("curvature", self.curvature, ("gauss-newton", "exact"))

    def prepare(self, problem: AllPairsProblem, state: StationaryState, gradient, key) -> StationaryState:
        """Measure the matrix, and store gradient and damping."""
        if not self.damping:
            return state._replace(memory=(gradient, 0.0))
        damping = self.damping * float(_mean_diagonal(problem.data, state.theta, key))
        return state._replace(memory=(gradient, damping), products=1)

    def update(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        """Take one step."""
        gradient, damping = state.memory
        numbers = map(state.dtype.type, (state.objective, state.magnitude, damping, self.forcing))
        point, gradient, damping, n_tried, products = _damped_step(
            problem.data, state.theta, gradient, *numbers, self.max_products, self.curvature == "exact"
        )
        size, n = float(magnitude(problem.data, point[0])), state.products + int(products)
        return state.at(*point, int(n_tried) + 1, magnitude=size, products=n, memory=(gradient, float(damping)))


@functools.partial(jit, static_argnames="history_size")
def _start(gradient: Any, history_size: int) -> Memory:
    """Initialise the memory with the gradient alone."""
    g = ravel_pytree(gradient)[0]
    pairs, whole = jnp.zeros((history_size, g.size), g.dtype), jnp.int32
    two = jnp.full((), 2, whole)  # the first step is searched for
    return Memory(g, pairs, pairs, pairs[:, 0], jnp.zeros((), whole), None, two)


def _by_metric(back: Callable, metric: TwoTowers | None) -> Callable:
    """Return the product of the metric with a vector."""
    return lambda x: x if metric is None else ravel_pytree(in_metric(metric, back(x)))[0]


@functools.partial(jit, static_argnames="max_line_search")
def _step(data, theta, value, size, memory: Memory, max_line_search: int):
    """Take a step that meets the strong Wolfe conditions: parameters, objective and norm of the gradient; the memory.

    A step that would go uphill by more than the rounding of terms of that ``size`` is rejected. Then, and if the
    curvature condition could not be met, the memory is cleared.
    """
    import optax

    (x, back), info = ravel_pytree(theta), jnp.finfo(value.dtype)
    slack = _SLACK * info.eps * size
    search = optax.scale_by_zoom_linesearch(
        max_line_search, initial_guess_strategy="one", approx_dec_rtol=slack / jnp.maximum(jnp.abs(value), info.tiny)
    )
    direction = memory.direction(_by_metric(back, memory.metric))
    known = {"value": value, "grad": memory.gradient, "value_fn": lambda x: data.objective(back(x))}
    change, found = search.update(-direction, search.init(x), x, **known)
    good, change = (found.value <= value + slack) & jnp.all(jnp.isfinite(found.grad)), change.astype(x.dtype)
    keep, trials = good & (found.info.curvature_error <= 0), found.info.num_linesearch_steps
    memory = memory.after(change, found.grad, good, keep, trials)
    value = jnp.where(good, found.value, value)
    return (back(jnp.where(good, x + change, x)), value, norm(memory.gradient)), memory


def in_portions(data: Any) -> bool:
    """Whether data are on a device whose work the host should not interrupt after every step."""
    return next(iter(data.strength.devices())).platform != "cpu"


@jit
def _unit_steps(data, theta, value, flat, size, target, most, memory: Memory):
    """Take up to ten steps of length one while each meets the Wolfe conditions and the gradient is above the target.

    There is no search, so that nothing is read in between: the first length nearly always serves. Returns parameters,
    the memory, and for every step the objective, the norm of the gradient, and whether it was tried and taken, (step,
    4). Conditions and ``size`` are those of `_step`.
    """
    (x, back), info = ravel_pytree(theta), jnp.finfo(value.dtype)
    slack, precondition = _SLACK * info.eps * size, _by_metric(back, memory.metric)

    def step(carry, k):
        x, value, flat, memory, going = carry
        direction = memory.direction(precondition)
        low, up = data.value_and_gradient(back(x - direction))
        up = ravel_pytree(up)[0]
        slope, after = -jnp.vdot(memory.gradient, direction), -jnp.vdot(up, direction)
        hidden = (low <= value + slack) & (after <= (2 * _ARMIJO - 1) * slope)
        lower = (low <= value + _ARMIJO * slope) | hidden
        tried = going & (flat > target) & (k < most)
        taken = tried & lower & (jnp.abs(after) <= -_CURVATURE * slope) & jnp.all(jnp.isfinite(up))
        memory = memory.after(-direction, up, taken, True, memory.trials)
        x = jnp.where(taken, x - direction, x)
        value, flat = jnp.where(taken, low, value), jnp.where(taken, norm(up), flat)
        return (x, value, flat, memory, taken), jnp.stack([value, flat, tried, taken]).astype(value.dtype)

    start = x, value, flat, memory, jnp.asarray(True)
    (x, _, _, memory, _), trace = jax.lax.scan(step, start, jnp.arange(_PORTION))
    return back(x), memory, trace


@jit
def _mean_diagonal(data, theta, key):
    """Estimate the mean diagonal of the Gauss-Newton matrix, by random signs."""
    x, back = ravel_pytree(theta)
    signs = jax.random.rademacher(key, x.shape, x.dtype)
    return jnp.vdot(signs, ravel_pytree(data.gauss_newton(theta)(back(signs)))[0]) / x.size


@functools.partial(jit, static_argnames=("max_products", "exact"))
def _damped_step(data, theta, gradient, value, size, damping, forcing, max_products: int, exact: bool):
    """Solve for a direction, search along it, and adapt the damping: point, gradient, damping, points, products."""
    (x, back), g = ravel_pytree(theta), ravel_pytree(gradient)[0]
    product = data.hessian(theta) if exact else data.gauss_newton(theta)
    enough = forcing**2 * jnp.vdot(g, g)
    direction, residual, products = conjugate_gradients(
        lambda d: ravel_pytree(product(back(d)))[0] + damping * d, -g, lambda r: enough, max_products
    )
    slope, slack = jnp.vdot(g, direction), _SLACK * jnp.finfo(x.dtype).eps * size

    def is_low(length, low):
        return low <= value + _ARMIJO * length * slope + slack

    def attempt(carry):
        length = 0.5 * carry[0]
        low, up = data.value_and_gradient(back(x + length * direction))
        return length, carry[1] + 1, low, ravel_pytree(up)[0]

    first = jnp.asarray(2.0, x.dtype), jnp.asarray(0), jnp.asarray(jnp.inf, x.dtype), g
    length, n, low, new = jax.lax.while_loop(lambda c: ~is_low(c[0], c[2]) & (c[1] <= _HALVINGS), attempt, first)
    good = is_low(length, low) & jnp.all(jnp.isfinite(new))
    promise = 0.5 * (jnp.vdot(direction, g - residual) - damping * jnp.vdot(direction, direction))
    ratio, hidden = (low - value) / promise, jnp.abs(promise) <= slack  # there the model cannot be judged
    short = (length < 1) | ((ratio < 0.25) & ~hidden)
    factor = jnp.where(short, 2.0, jnp.where((ratio > 0.75) & ~hidden, 1 / 3, 1.0))
    factor = jnp.where(good, factor, 10.0).astype(x.dtype)
    damping = jnp.where(damping > 0, jnp.maximum(factor * damping, _FLOOR), damping)
    x, value, g = (
        jnp.where(good, new, old) for new, old in ((x + length * direction, x), (low, value), (new, g))
    )  # fmt: skip
    return (back(x), value, norm(g)), back(g), damping, n, products
