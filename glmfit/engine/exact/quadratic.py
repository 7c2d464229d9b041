"""Minimum of a quadratic: from its products alone, or exactly, with an l1 norm or group norms, on what is nonzero."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg.lapack import dposv

_ROUNDS, _PATIENT = 40, 6
_SMALL = 64  # variables of systems that are solved together
_ROUNDING = 16 * float(np.finfo(float).eps)
_GROUP_ROUNDS, _GROUP_PATIENCE, _SECULAR_STEPS = 200, 20, 60
_FAST = 0.1  # of the gradient before: a Newton step that leaves more of it does not converge fast yet
_NEAR = 1e-9  # of the terms of the gradient: the step that has been taken from there leaves its square


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


def minimise_l1(Q, c, l1, start):
    """Minimise ``w'Q w / 2 - c'w + sum l1 |w|`` of several quadratics, (quadratic, variable).

    w has exact zeros; variables with l1 = 0 are free. Given zeros and signs, the optimum solves one linear system. At
    first all variables that have the wrong sign, or should not be zero, switch at once, which usually ends after a few
    rounds. Otherwise they then switch one by one along a path on which the objective falls, which must end (Lee,
    Battle, Raina, Ng 2007, Efficient sparse coding algorithms). The closer the zeros and signs of ``start``, the fewer
    rounds.
    """
    out, left, size = start.copy(), np.arange(len(c)), np.sqrt(np.einsum("nii->ni", Q))
    w, sign = start, np.where(l1 == 0, 0.0, np.sign(start))
    for round_ in range(_ROUNDS * c.shape[1]):
        free = l1 == 0
        inside = free | (sign != 0)
        target = _given_signs(Q, c, l1, sign, inside)
        wrong = (target * sign < 0) | (inside & ~free & (target == 0))
        if round_ < _PATIENT:
            crosses = np.zeros(len(c), bool)
            w, sign = np.where(wrong, 0.0, target), np.where(wrong, 0.0, sign)
        else:
            crosses = wrong.any(axis=1)
            w, sign = _to_first_crossing(w, target, sign, wrong)
        gradient = _times(Q, w) - c
        terms = size * np.sum(size * np.abs(w), axis=1, keepdims=True)  # at least |Q| |w|
        slack = 1e-10 * l1 + _ROUNDING * (terms + np.abs(c))  # each in its own units
        missed = ~free & (sign == 0) & ~wrong & (np.abs(gradient) > l1 + slack) & ~crosses[:, None]
        if round_ >= _PATIENT - 1:
            beyond = np.where(missed, np.abs(gradient) - l1, -np.inf)
            missed &= beyond == beyond.max(axis=1, keepdims=True)
        sign = np.where(missed, -np.sign(gradient), sign)
        out[left] = w
        goes_on = (wrong | missed).any(axis=1)
        if not goes_on.any():
            break
        if not goes_on.all():
            left, Q, c, l1, size, w, sign = (values[goes_on] for values in (left, Q, c, l1, size, w, sign))
    return out


def _times(Q, w):
    return (Q @ w[:, :, None])[:, :, 0]


def _given_signs(Q, c, l1, sign, inside):
    """Solve for the optima with the other variables at zero."""
    right = np.where(inside, c - l1 * sign, 0.0)
    if c.shape[1] <= _SMALL:
        outside = ~inside
        own = np.where(outside[:, :, None] | outside[:, None, :], np.eye(c.shape[1]), Q)
        return np.linalg.solve(own, right[:, :, None])[:, :, 0]
    for i, which in enumerate(inside):
        at = np.flatnonzero(which)
        if at.size:
            _, right[i, at], failed = dposv(Q[i][np.ix_(at, at)], right[i, at], lower=True)
            if failed:
                raise np.linalg.LinAlgError("the quadratic is not positive definite")
    return right


def _to_first_crossing(w, target, sign, wrong):
    """Move from w towards the target until a variable reaches zero, which leaves; all the way if none does."""
    with np.errstate(divide="ignore", invalid="ignore"):
        when = np.where(wrong, np.where(w == target, 0.0, w / (w - target)), np.inf)
    when = np.clip(when, 0.0, np.inf)
    t = when.min(axis=1, keepdims=True)
    gone = wrong & (when <= t)
    return np.where(gone, 0.0, w + np.minimum(t, 1.0) * (target - w)), np.where(gone, 0.0, sign)


def minimise_groups(Q, c, labels, strength, start):
    """Minimise ``w'Q w / 2 - c'w + sum_g strength_g |w_g|``, w with groups of exact zeros; those of 0 are free.

    Newton steps on the groups that are not zero, where the norms are smooth, are fast once the zeros are right. If the
    zeros are not, or if progress is slow, the objective is minimised over one group after the other, which finds the
    zeros and never increases it.
    """
    w, parts = start, None
    size = np.abs(c).max(initial=0.0) + strength.max(initial=0.0)
    best, since, before = np.inf, 0, np.inf
    for _ in range(_GROUP_ROUNDS):
        after, missed, released = _newton_of_groups(Q, c, labels, strength, w)
        if missed <= _NEAR * size and not released:
            return after
        since = 0 if missed < 0.5 * best else since + 1
        best = min(best, missed)
        if since >= _GROUP_PATIENCE:
            break
        if released or not missed <= _FAST * before:
            parts = parts or [_part(Q, np.flatnonzero(labels == k), s) for k, s in enumerate(strength)]
            for g, q, values, vectors, s in parts:
                after[g] = _least_of_group(values, vectors, c[g] - Q[g] @ after + q @ after[g], s)
        w, before = after, missed
    return w.copy()


def _part(Q, group, strength: float):
    """Variables of a group, their matrix, its eigenvalues and eigenvectors, and the strength."""
    q = Q[np.ix_(group, group)]
    return group, q, *np.linalg.eigh(q), strength


def _least_of_group(values, vectors, b, strength):
    """Minimise ``v'Q v / 2 - b'v + strength |v|``, given the eigenvalues and eigenvectors of Q."""
    if strength > 0 and b @ b <= strength**2:
        return np.zeros_like(b)
    b = b @ vectors
    if strength == 0:
        return vectors @ (b / values)
    # With t the norm of v, sum (b / (values t + strength))^2 = 1: a power mean of lines in t, concave and increasing,
    # so that Newton's steps come from below and never pass the root.
    t = 0.0
    for _ in range(_SECULAR_STEPS):
        line = values * t + strength
        ratio = b / line
        total = ratio @ ratio
        step = total * (math.sqrt(total) - 1) / (ratio @ (ratio * values / line))
        t += step
        if step <= 1e-15 * t:
            break
    return vectors @ (b * t / (values * t + strength))


def _newton_of_groups(Q, c, labels, strength, w):
    """Take a Newton step on the groups that are not zero, if it descends.

    Returns w after the step as a new array, the largest entry of the gradient before it, and whether some group was
    zero there that should not be.
    """
    gradient, n = Q @ w - c, len(strength)
    norms = np.sqrt(np.bincount(labels, w**2, n))
    smooth = (norms > 0) & (strength > 0)
    unit = w / np.where(norms > 0, norms, 1.0)[labels]
    bend = np.where(smooth, strength / np.where(smooth, norms, 1.0), 0.0)[labels]
    together = labels[:, None] == labels
    matrix = Q - together * np.outer(bend * unit, unit)
    matrix[np.diag_indices(len(c))] += bend
    zero = (norms == 0) & (strength > 0)
    released = bool(np.any(np.sqrt(np.bincount(labels, gradient**2, n))[zero] > strength[zero] * (1 + 1e-10)))
    gradient = gradient + strength[labels] * unit
    inside = ~zero[labels]
    at = np.flatnonzero(inside)
    if not at.size:
        return w.copy(), 0.0, released
    _, inner, failed = dposv(matrix[np.ix_(at, at)], gradient[at], lower=True)
    step = np.zeros_like(w)
    step[at] = inner
    missed = np.abs(gradient[at]).max()
    if failed:
        return w.copy(), missed, released
    push, bent = step @ (c - Q @ w), step @ Q @ step

    def change(length):
        """Objective after a part of the step minus that before, without the rounding of either."""
        moved = np.sqrt(np.bincount(labels, (w - length * step) ** 2, n)) - norms
        return length * (push + length / 2 * bent) + strength @ moved

    length = 1.0
    while not change(length) < 0 and length > 1e-6:
        length /= 2
    return w - (length if length > 1e-6 else 0.0) * step, missed, released
