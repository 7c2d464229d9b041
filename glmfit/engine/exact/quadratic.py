"""Minimum of a quadratic from its products alone: conjugate gradients, in NumPy and in JAX."""

import jax
import jax.numpy as jnp
import numpy as np


def minimise(product, precondition, gradient: np.ndarray, most: int, left: float, flat: float = 0.0, went=None):
    """Minimise a quadratic by conjugate gradients from 0; every iterate is lower than the one before.

    ``product`` and ``precondition`` multiply the curvature, and an approximate inverse, by an array like the gradient;
    at most ``most`` products are computed. The method stops when the gradient's norm in the preconditioner is below its
    share ``left``, or when a direction has no curvature above ``flat``. ``went`` is called with the length of each
    step. Returns the last point, the decrease, and the gradient there.
    """
    r = -gradient
    x, down = np.zeros_like(r), 0.0
    z = p = precondition(r)
    rz = float(np.vdot(r, z))
    enough = left**2 * rz
    for _ in range(most):
        if not rz > 0:
            break
        curved = product(p)
        bend = float(np.vdot(p, curved))
        if not bend > flat * float(np.vdot(p, p)):
            break  # nothing is left, or there is no curvature: such directions are not moved
        a = rz / bend
        x, r, down = x + a * p, r - a * curved, down + a * rz / 2
        if went is not None:
            went(a)
        z = precondition(r)
        new = float(np.vdot(r, z))
        if new <= enough:
            break
        p, rz = z + new / rz * p, new
    return x, down, -r


def conjugate_gradients(product, b, enough, most: int, inner=jnp.vdot):
    """Solve ``product(x) = b`` from 0 in JAX, where ``product`` is symmetric in an inner product.

    At most ``most`` products are computed. It stops when the residual's square is at most ``enough`` of the residual,
    or when a direction has no positive curvature; if that is b, its step is as long as with the opposite curvature.
    Returns x, the residual, and the number of products.
    """

    def goes_on(carry):
        _, r, _, square, n, bends = carry
        return bends & (square > enough(r)) & (n < most)

    def one(carry):
        x, r, p, square, n, _ = carry
        moved = product(p)
        curvature = inner(p, moved)
        bends = curvature > 0
        able = bends | ((n == 0) & (curvature < 0))
        length = jnp.where(able, square / jnp.where(able, jnp.abs(curvature), 1.0), 0.0)
        x, r = x + length * p, r - length * moved
        new = inner(r, r)
        return x, r, r + (new / square) * p, new, n + 1, bends

    start = jnp.zeros_like(b), b, b, inner(b, b), jnp.asarray(0), jnp.asarray(True)
    x, r, _, _, n, _ = jax.lax.while_loop(goes_on, one, start)
    return x, r, n
