"""Gauss-Newton, or Newton's method, with conjugate gradients on all parameters of a two-tower model."""

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..checks import check_at_least_zero, check_choice, check_real, check_whole
from ..compilation import jit
from ..engine.exact.quadratic import conjugate_gradients
from .objective import magnitude, norm
from .problem import AllPairsProblem
from .stationary import SLACK, StationaryState, TwoSidedSolver

CURVATURES = ("gauss-newton", "exact")
_ARMIJO = 1e-4
_HALVINGS = 20
_FLOOR = 1e-10  # of the damping


@dataclass(frozen=True)
class GaussNewton(TwoSidedSolver):
    r"""Gauss-Newton by conjugate gradients with Levenberg-Marquardt damping: no learning rate, few iterations.

    Parameters
    ----------
    max_products : int
        Products with the Gauss-Newton matrix per step, at most. Too few do harm with perceptrons.
    forcing : float
        In (0, 1): a system is solved to this residual relative to the gradient.
    damping : float
        First multiple of the identity that is added to the matrix, in units of its mean diagonal (estimated by one
        product with random signs); it then follows how well the quadratic model predicted the decrease. 0 for none
        at all.
    curvature : {"gauss-newton", "exact"}
        "exact" takes the Hessian in place of the Gauss-Newton matrix, so that convergence is fast where residuals are
        not small; conjugate gradients end where they meet a direction of negative curvature.

    Notes
    -----
    Guarantee: the objective never rises by more than ten times the rounding of its terms (Armijo's condition, at most
    20 halvings). The Gauss-Newton matrix is positive semi-definite whatever the imputation weight, as observed and
    imputed parts are summed and not clipped; any iterate of the conjugate gradients is therefore a direction of
    descent. So is any before negative curvature is met, which is all that the exact Hessian needs.

    An epoch is one step. Cost: a pass for objective and gradient, and a product for each iteration of the conjugate
    gradients, which costs about two passes. Memory: some vectors of all parameters, and with the exact Hessian some
    numbers for every observed pair. Near a solution with nonzero residual the convergence of Gauss-Newton is linear,
    not quadratic: for a tight tolerance `TowerLBFGS` is faster. Theory and source: docs/theory/all_pairs.md; see also
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
        check_choice("curvature", self.curvature, CURVATURES)

    def prepare(self, problem: AllPairsProblem, state: StationaryState, gradient, key) -> StationaryState:
        """Measure the matrix, and remember gradient and damping."""
        if not self.damping:
            return state._replace(memory=(gradient, 0.0))
        damping = self.damping * float(_mean_diagonal(problem.data, state.theta, key))
        return state._replace(memory=(gradient, damping), products=1)

    def update(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        """Take one step."""
        gradient, damping = state.memory
        numbers = map(state.dtype.type, (state.objective, state.magnitude, damping, self.forcing))
        point, gradient, damping, n_tried, products = _step(
            problem.data, state.theta, gradient, *numbers, self.max_products, self.curvature == "exact"
        )
        size, n = float(magnitude(problem.data, point[0])), state.products + int(products)
        return state.at(*point, int(n_tried) + 1, magnitude=size, products=n, memory=(gradient, float(damping)))


@jit
def _mean_diagonal(data, theta, key):
    """Estimate of the mean diagonal of the Gauss-Newton matrix, by random signs."""
    x, back = ravel_pytree(theta)
    signs = jax.random.rademacher(key, x.shape, x.dtype)
    return jnp.vdot(signs, ravel_pytree(data.gauss_newton(theta)(back(signs)))[0]) / x.size


@functools.partial(jit, static_argnames=("max_products", "exact"))
def _step(data, theta, gradient, value, size, damping, forcing, max_products: int, exact: bool):
    """Solve for a direction, search along it, and adapt the damping: point, gradient, damping, points, products."""
    (x, back), g = ravel_pytree(theta), ravel_pytree(gradient)[0]
    product = data.hessian(theta) if exact else data.gauss_newton(theta)
    enough = forcing**2 * jnp.vdot(g, g)
    direction, residual, products = conjugate_gradients(
        lambda d: ravel_pytree(product(back(d)))[0] + damping * d, -g, lambda r: enough, max_products
    )
    slope, slack = jnp.vdot(g, direction), SLACK * jnp.finfo(x.dtype).eps * size

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
