"""Safeguarded proximal gradient and Newton steps for any loss: the fallback if nothing is known about a problem.

Everything here can be traced by jax: no branch depends on a number.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ...compilation import full_precision

_LONGEST, _HALVINGS = 1e10, 60
FEW = 128  # parameters up to which a Hessian is cheap
_LIFT = 1e-6  # of the diagonal of a Hessian in single precision that is nearly singular


def pieces_of(solver: Any, params: Any) -> tuple[Callable, Callable, Callable]:
    """Make the loss without its auxiliary value, the proximal operator and the penalty for parameters like these."""
    regularizer, strength = solver.regularizer, solver.regularizer_strength
    prox = regularizer.get_proximal_operator(params=params, strength=strength)
    penalty = regularizer.penalized_loss(lambda *_: 0.0, params=params, strength=strength)

    def loss(params, *args):
        value = solver.unregularized_loss(params, *args)
        return value[0] if solver.has_aux else value

    return loss, lambda params, step: prox(params, None, scaling=step), penalty


class ProximalResult(NamedTuple):
    """Where the iterations ended."""

    params: Any  # best seen; the objective there is never above that of the start
    objective: jax.Array  # loss plus penalty there
    mapping: jax.Array  # norm of the gradient mapping: the gradient, without a penalty
    step: jax.Array  # last one
    n_steps: jax.Array
    converged: jax.Array  # the mapping is small enough, or nothing changes any more in this precision


@full_precision
def proximal_gradient(
    loss: Callable, prox: Callable, penalty: Callable, start: Any, tol: float, max_steps: int, step: float = 1.0
) -> ProximalResult:
    """Minimise ``loss(params) + penalty(params)`` by accelerated proximal gradient steps.

    Parameters are any tree of arrays; ``prox(params, step)`` minimises ``|. - params|^2/2 + step * penalty(.)``;
    ``tol`` is of the relative norm of the gradient mapping. The initial ``step`` adapts automatically.

    A step s from y to x is taken only if ``loss(x) <= loss(y) + g'(x - y) + |x - y|^2/(2s)``, halving s until it holds:
    with a convex loss the O(1/k^2) rate of Beck and Teboulle (2009) needs only this, whatever the smoothness. If the
    objective would rise, the momentum is dropped (O'Donoghue and Candes 2015), and the plain proximal gradient step
    that follows cannot raise it. Cost: two to three evaluations per iteration.
    """
    x0, unravel = ravel_pytree(start)
    eps = jnp.finfo(x0.dtype).eps

    def smooth(x):
        return jnp.asarray(loss(unravel(x)), x0.dtype)

    def total(x):
        return smooth(x) + jnp.asarray(penalty(unravel(x)), x0.dtype)

    def advance(y, s):
        """Take a proximal gradient step from y, halving s until it descends sufficiently."""
        f, g = jax.value_and_grad(smooth)(y)

        def attempt(s):
            x = ravel_pytree(prox(unravel(y - s * g), s))[0].astype(x0.dtype)
            d = x - y
            model = f + jnp.vdot(g, d) + jnp.vdot(d, d) / (2 * s)
            return x, smooth(x) <= model + 8 * eps * jnp.abs(f)

        def again(carry):
            s, _, _, k = carry
            return (s / 2, *attempt(s / 2), k + 1)

        first = (s, *attempt(s), 0)
        s, x, good, _ = jax.lax.while_loop(lambda c: ~c[2] & (c[3] < _HALVINGS), again, first)
        return x, s, good, jnp.linalg.norm(x - y) / s

    def body(carry):
        x, y, t, s, F, *_, n, still, _ = carry
        new, s, good, mapping = advance(y, s)
        F_new = total(new)
        taken = good & (F_new <= F)
        # If even the plain step (t of 1) gains nothing, the reason is rounding (or a loss that is not a number).
        still = jnp.where(taken & (F_new < F - 2 * eps * jnp.abs(F)), 0, still + ((t == 1) | taken))
        t_new = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        ahead = new + (t - 1) / t_new * (new - x)
        after, plain = (new, ahead, t_new, F_new), (x, x, jnp.ones_like(t), F)
        x, y, t, F = (jnp.where(taken, *either) for either in zip(after, plain, strict=True))
        residual = mapping / (1 + jnp.linalg.norm(new))
        done = (residual <= tol) & taken
        return x, y, t, jnp.minimum(1.1 * s, _LONGEST), F, residual, mapping, n + 1, still, done

    def go_on(carry):
        return ~carry[9] & (carry[8] < 20) & (carry[7] < max_steps)

    one = jnp.ones((), x0.dtype)
    far, none = one * jnp.inf, jnp.zeros((), int)
    first = (x0, x0, one, one * step, total(x0), far, far, none, none, jnp.array(False))
    x, _, _, s, F, residual, mapping, n, still, done = jax.lax.while_loop(go_on, body, first)
    # At the rounding of the objective no step descends any more; far from an optimum that would be a failure.
    settled = (still >= 20) & (residual <= jnp.sqrt(eps))
    return ProximalResult(unravel(x), F, mapping, s, n, jnp.isfinite(F) & (done | settled))


@full_precision
def newton(total: Callable, start: Any, tol: float, max_steps: int) -> ProximalResult:
    """Minimise a smooth function of few parameters by Newton steps that descend, halved if necessary.

    If the Newton direction does not descend, the step is along the gradient. ``tol`` is of the norm of the gradient,
    relative to that of the parameters plus one. Cost of a step: a Hessian by jax, which costs one gradient per
    parameter.
    """
    x0, unravel = ravel_pytree(start)
    eps = jnp.finfo(x0.dtype).eps
    lift = _LIFT if x0.dtype == jnp.float32 else _LIFT**2

    def value(x):
        return jnp.asarray(total(unravel(x)), x0.dtype)

    def body(carry):
        x, F, g, n, _ = carry
        H = jax.hessian(value)(x)
        H = H + lift * jnp.trace(jnp.abs(H)) / len(x) * jnp.eye(len(x), dtype=x.dtype)
        p = -jnp.linalg.solve(H, g)
        p = jnp.where(jnp.isfinite(p).all() & (g @ p < 0), p, -g)

        def again(carry):
            s, _, k = carry
            return s / 2, value(x + s / 2 * p), k + 1

        def go_on(carry):
            s, f, k = carry
            return ~(f <= F + 1e-4 * s * (g @ p) + 2 * eps * jnp.abs(F)) & (k < _HALVINGS)

        one = jnp.ones((), x.dtype)
        s, _, k = jax.lax.while_loop(go_on, again, (one, value(x + p), 0))
        taken = k < _HALVINGS
        after = jnp.where(taken, x + s * p, x)
        F_after, g_after = jax.value_and_grad(value)(after)
        return after, F_after, g_after, n + 1, ~taken | (F_after >= F - 2 * eps * jnp.abs(F))

    def go_on(carry):
        x, _, g, n, still = carry
        return (jnp.linalg.norm(g) > tol * (1 + jnp.linalg.norm(x))) & (n < max_steps) & ~still

    F, g = jax.value_and_grad(value)(x0)
    none = jnp.zeros((), int)
    x, F, g, n, still = jax.lax.while_loop(go_on, body, (x0, F, g, none, jnp.array(False)))
    residual = jnp.linalg.norm(g) / (1 + jnp.linalg.norm(x))
    good = (residual <= tol) | (still & (residual <= jnp.sqrt(eps)))  # at the rounding of the objective
    return ProximalResult(unravel(x), F, jnp.linalg.norm(g), jnp.ones((), x.dtype), n, jnp.isfinite(F) & good)
