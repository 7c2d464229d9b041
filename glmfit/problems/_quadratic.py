"""Minimum of a quadratic that is known by its products."""

import numpy as np


def minimise(product, precondition, gradient: np.ndarray, most: int, left: float, flat: float = 0.0, went=None):
    """Minimise a quadratic by conjugate gradients from 0, every iterate of which is lower than the one before.

    ``product`` and ``precondition`` multiply the curvature, and an approximate inverse, with an array like the
    gradient; at most ``most`` products are made. It ends where the gradient's norm in the preconditioner is below its
    share ``left``, or where a direction has no curvature above ``flat``. ``went`` is told how far each step goes.
    Returns where it ends, by how much lower that is, and the gradient there.
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
            break  # nothing is left, or nothing bends: such directions stay where they are
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
