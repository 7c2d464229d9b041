"""Newton's method with conjugate gradients on a softmax problem, in float64.

Derivation and guarantee: docs/theory/softmax_newton.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._softmax_view import SoftmaxPoint, SoftmaxView
from .base import Params

_FORCING = 0.25  # of the gradient's norm that is left for the next step, at most
_ARMIJO = 1e-4
_HALVINGS = 40
# Offsets whose range is beyond the first are cooled, from a temperature at which it is the second; the rest is how.
_FAR_APART, _CLOSE_TOGETHER = 20.0, 5.0
_COOLING, _COOL, _COOLING_STEPS, _COOLING_PRODUCTS = 4.0, 1e-3, 30, 50
_PATIENCE = 10  # products more than columns, after which blocks are formed


class NewtonCGStep(NamedTuple):
    """Where a step led.

    Attributes
    ----------
    point : SoftmaxPoint
        Never higher than before.
    decrease : float
        What the quadratic model promised: nearly the gap before the step, once near.
    estimate : float
        Of the gap at the point, by the preconditioner: not a bound, and often too small.
    passes : int
        Over the rows.
    stuck : bool
        Whether rounding leaves nothing to gain.
    inverse : numpy.ndarray or None
        Inverses of the classes' blocks, if they were formed: for the next step.
    """

    point: SoftmaxPoint
    decrease: float
    estimate: float
    passes: int
    stuck: bool
    inverse: np.ndarray | None


def newton_cg_step(view: SoftmaxView, at: SoftmaxPoint, max_products: int, inverse=None, most=_FORCING) -> NewtonCGStep:
    """Take one step: conjugate gradients on the quadratic model, then a line search that never goes uphill.

    At most the share ``most`` of the gradient's norm is left by the former.
    """
    # Superlinear: what is left of the gradient falls like its power 3/2.
    forcing = min(most, np.sqrt(at.norm))
    direction, decrease, products = _solve(view, at, max_products, forcing, inverse)
    move, t, tried = _search(view, at, direction)
    passes = products + 1 + tried
    if t == 0:
        # Rows that are all but certain have next to no curvature here, and a lot of it farther on.
        direction = -_precondition(at._replace(scale=view.surest_scale), at.gradient, None)
        move, t, tried = _search(view, at, direction)
        passes += 1 + tried
    if t == 0:
        return NewtonCGStep(at, decrease, decrease, passes, True, inverse)
    after = view.at(at.v + t * direction, at.scores + t * move)
    columns = len(at.v)
    if products > columns + _PATIENCE and view.has_blocks:
        # Had they been at hand, this step would have cost less.
        inverse, passes = view.invert_blocks(after), passes + columns // 2
    estimate = float(np.sum(after.gradient * _precondition(after, after.gradient, inverse))) / 2
    return NewtonCGStep(after, decrease, estimate, passes, False, inverse)


def cool(problem, soften) -> Params | None:
    """Near-optimal parameters where offsets set classes far apart; None where they do not, or there are none.

    Rows that are all but certain have next to no curvature, and Newton's steps, made for a Hessian that says nothing of
    them, go nowhere. With scores divided by a temperature they are not certain: ``soften(temperature)`` is the problem
    whose parameters, times the temperature, are those of softer classes. The temperature falls to 1 in steps, from each
    of which the next is near (docs/theory/softmax_newton.md).
    """
    spread = 0.0 if problem.offset is None else float(np.max(np.ptp(problem.offset, axis=1)))
    if not _FAR_APART < spread < np.inf:
        return None
    temperature, params = spread / _CLOSE_TOGETHER, problem.null_params()
    while temperature > 1:
        view = SoftmaxView(soften(temperature))
        at = view.at(view.to_columns(Params(*(a / temperature for a in params))))
        for _ in range(_COOLING_STEPS):
            step = newton_cg_step(view, at, _COOLING_PRODUCTS)
            at = step.point
            if step.stuck or step.decrease <= _COOL:
                break
        params = Params(*(temperature * a for a in view.from_columns(at.v)))
        temperature /= _COOLING
    return params


def _search(view: SoftmaxView, at: SoftmaxPoint, direction):
    """Scores of the direction, a length that lowers F enough (0 if there is none), and how many were tried."""
    move = view.change_of_scores(direction)
    slope, t = float(np.sum(at.gradient * direction)), 1.0
    for tried in range(1, _HALVINGS + 1):
        if view.objective_along(at, direction, move, t) <= at.objective + _ARMIJO * t * slope:
            return move, t, tried
        t /= 2
    return move, 0.0, _HALVINGS


def newton_gap(view: SoftmaxView, at: SoftmaxPoint, max_products: int) -> float:
    """Second-order estimate of F - F*: what a Newton step from here promises. Not a bound."""
    # Where curvature vanishes next to the gradient the step promises nothing, and that is no news.
    return max(_solve(view, at, max_products, _FORCING / 2, None)[1], at.norm / 2)


def _precondition(at: SoftmaxPoint, r, inverse):
    """Divide by the curvature of classes by themselves, across the common shift, on both sides: r has no part in it."""
    z = r / at.scale if inverse is None else np.matmul(inverse, r.T[:, :, None])[:, :, 0].T
    return z - z.mean(axis=1, keepdims=True)


def _solve(view: SoftmaxView, at: SoftmaxPoint, max_products: int, forcing: float, inverse):
    """Solve for the Newton direction until this share of the gradient's norm is left, by preconditioned products."""
    x, r = np.zeros_like(at.v), -at.gradient
    z = _precondition(at, r, inverse)
    p, rz = z, float(np.sum(r * z))
    enough = max(forcing**2, 1e-28) * rz
    decrease = 0.0
    for product in range(1, max_products + 1):
        curved = view.curve(at, p)
        bend = float(np.sum(p * curved))
        if not bend > 1e-14 * float(np.sum(p**2 * at.scale)):
            # Flat to rounding; the gradient itself serves if there is nothing else yet.
            return (p if product == 1 else x), decrease, product
        a = rz / bend
        x = x + a * p
        decrease += a * rz / 2
        r = r - a * curved
        z = _precondition(at, r, inverse)
        new = float(np.sum(r * z))
        if new <= enough:
            break
        p, rz = z + new / rz * p, new
    return x, decrease, product
