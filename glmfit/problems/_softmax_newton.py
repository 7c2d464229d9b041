"""Newton's method with conjugate gradients on a softmax problem, in float64.

Derivation and guarantee: docs/theory/softmax_newton.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._softmax_view import SoftmaxPoint, SoftmaxView

_FORCING = 0.25  # of the gradient's norm that is left for the next step, at most
_ARMIJO = 1e-4
_HALVINGS = 40


class NewtonCGStep(NamedTuple):
    """Where a step led.

    Attributes
    ----------
    point : SoftmaxPoint
        Never higher than before.
    decrease : float
        What the quadratic model promised: nearly the gap before the step, once near.
    passes : int
        Over the rows.
    stuck : bool
        Whether rounding leaves nothing to gain.
    """

    point: SoftmaxPoint
    decrease: float
    passes: int
    stuck: bool


def newton_cg_step(view: SoftmaxView, at: SoftmaxPoint, max_products: int) -> NewtonCGStep:
    """Take one step: conjugate gradients on the quadratic model, then a line search that never goes uphill."""
    direction, decrease, products = _solve(view, at, max_products)
    move = view.change_of_scores(direction)
    slope = float(np.sum(at.gradient * direction))
    t, passes = 1.0, products + 2
    for _ in range(_HALVINGS):
        new = view.objective_along(at, direction, move, t)
        if new <= at.objective + _ARMIJO * t * slope:
            break
        t, passes = t / 2, passes + 1
    else:
        return NewtonCGStep(at, decrease, passes, True)
    return NewtonCGStep(view.at(at.v + t * direction, at.scores + t * move), decrease, passes, False)


def _solve(view: SoftmaxView, at: SoftmaxPoint, max_products: int):
    """Solve for the Newton direction to a share of the gradient that shrinks with it; preconditioned by the scale."""
    x, r = np.zeros_like(at.v), -at.gradient
    z = r / at.scale
    p, rz = z, float(np.sum(r * z))
    start = rz
    # Superlinear: what is left of the gradient falls like its power 3/2.
    enough = min(_FORCING, np.sqrt(rz)) ** 2 * rz
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
        z = r / at.scale
        new = float(np.sum(r * z))
        if new <= enough or new <= 1e-28 * start:
            break
        p, rz = z + new / rz * p, new
    return x, decrease, product


def newton_gap(view: SoftmaxView, at: SoftmaxPoint, max_products: int) -> float:
    """Second-order estimate of F - F*: what a Newton step from here promises. Not a bound."""
    return _solve(view, at, max_products)[1]
