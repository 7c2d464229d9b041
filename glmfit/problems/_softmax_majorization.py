"""One step of bound majorization on a softmax problem, in float64 on the host.

The quadratic bound of every row's log-sum-exp has curvature C (x) xx'; their sum is minimised by conjugate gradients.
Derivation and guarantee: docs/theory/bound_majorization.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..bounds import softmax_bound
from ._softmax_view import SoftmaxPoint, SoftmaxView

_LEFT = 0.5  # of the gradient's norm: the next bound is worth more than the minimum of this one
_COUPLED_CLASSES = 512  # classes up to which the preconditioner couples them
_SAMPLED_ROWS, _SAMPLED = 512, 2e7  # of which the preconditioner is made, and the numbers in their matrices
_AT_ONCE = 2e6
_FLOOR = 1e-10  # of the largest curvature across classes


class MajorizedSoftmax(NamedTuple):
    """Where a step led.

    Attributes
    ----------
    point : SoftmaxPoint
        Not higher than before.
    decrease : float
        Of F, which the bound promised: a lower bound of the gap before the step.
    estimate : float
        Of what the bound at the point will promise.
    stuck : bool
        Whether nothing but rounding is left to be gained.
    passes : int
        Over the rows.
    """

    point: SoftmaxPoint
    decrease: float
    estimate: float
    stuck: bool
    passes: int


def majorize_softmax(
    view: SoftmaxView, at: SoftmaxPoint, relaxation: float, order: str, max_products: int
) -> MajorizedSoftmax:
    """Go ``relaxation`` times the way to where conjugate gradients put the minimum of the bound."""
    bounds = _Bounds(view, at, order)
    x, move = np.zeros_like(at.v), np.zeros_like(at.scores)
    change = np.empty_like(at.scores)
    r = -at.gradient
    z = p = bounds.precondition(r)
    rz, decrease, products = float(np.sum(r * z)), 0.0, 0
    enough = _LEFT**2 * rz
    while products < max_products and rz > 0:
        curved = view.curve_by(bounds.product, p, change)
        products += 1
        bend = float(np.sum(p * curved))
        if not bend > 0:
            break  # flat to rounding
        length = rz / bend
        x += length * p
        move += length * change
        decrease += length * rz / 2
        r = r - length * curved
        z = bounds.precondition(r)
        new = float(np.sum(r * z))
        if new <= enough:
            break
        p, rz = z + new / rz * p, new
    after = view.at(at.v + relaxation * x, at.scores + relaxation * move)
    if not after.objective < at.objective:
        return MajorizedSoftmax(at, decrease, decrease, True, products + 1)
    estimate = float(np.sum(after.gradient * bounds.precondition(after.gradient))) / 2
    return MajorizedSoftmax(after, decrease, estimate, False, products + 1)


class _Bounds:
    """The rows' bounds at a point: products with their curvature, and an approximate inverse of its sum."""

    def __init__(self, view: SoftmaxView, at: SoftmaxPoint, order: str):
        self._of_rows = view.by_chunk(lambda rows: softmax_bound(at.scores[rows], order))
        variance = np.append(view.variance, 1.0)[:, None]
        if view.n_classes <= _COUPLED_CLASSES:
            # Were all rows' C the same: their mean (x) the covariance, diagonal in the eigenvectors of both.
            bend, self._classes = np.linalg.eigh(_mean_curvature(view, at, order))
            scale = variance * np.maximum(bend, _FLOOR * bend[-1])
        else:
            self._classes, scale = None, at.scale.copy()
            scale[:-1] -= view.strength
        scale[:-1] += max(view.strength, 1e-12 * scale.max())
        self._inverse = 1 / scale

    def product(self, rows: slice, change: np.ndarray) -> np.ndarray:
        """Every row's C times a change of its scores, (row, class)."""
        return self._of_rows[rows.start].product(change)

    def precondition(self, r: np.ndarray) -> np.ndarray:
        """Divide by the approximate curvature, across the shift common to all classes, of which r has no part."""
        if self._classes is None:
            z = self._inverse * r
        else:
            z = (self._inverse * (r @ self._classes)) @ self._classes.T
        return z - z.mean(axis=1, keepdims=True)


def _mean_curvature(view: SoftmaxView, at: SoftmaxPoint, order: str) -> np.ndarray:
    """Mean of the rows' C, of evenly spaced rows where they are many: a preconditioner need not be exact."""
    numbers = view.n_classes**2
    most = max(1, min(_SAMPLED_ROWS, _SAMPLED // numbers))
    counted = np.flatnonzero(view.totals[:, 0] > 0)  # rows of no weight would leave a curvature of 0
    some = counted[:: -(-len(counted) // int(most))]
    total = np.zeros((view.n_classes, view.n_classes))
    for piece in np.array_split(some, max(1, int(len(some) * numbers / _AT_ONCE))):
        C = softmax_bound(at.scores[piece], order).matrices()
        total += np.einsum("i,ikl->kl", view.totals[piece, 0], C)
    return total / len(some)
