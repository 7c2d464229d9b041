"""Cross-validation of strengths: fits that each omit a block of rows, and the loss of these rows.

Theory: docs/theory/smooth_terms.md. The losses of the rows that a fold fits, and of those it omits, are approximated
as quadratic about the current fit of that fold; at the end they are the losses themselves.
"""

from typing import NamedTuple, Self

import numpy as np

from ..small_systems import times
from .coordinates import Coordinates
from .evidence import FLOOR, Optimum, Quadratic, optimum


class HeldOut(NamedTuple):
    """Quadratic models of the losses of the rows fitted, and held out, in every fold; nats, in coordinates.

    Hessians (fit, fold, coordinate + 1, coordinate + 1) and gradients (fit, fold, coordinate + 1) at ``start``.
    """

    start: np.ndarray  # (fit, fold, coordinate + 1)
    fitted: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    share: np.ndarray  # share of all responses that a fold fits, which scales its penalty, (fit, fold)
    inside: np.ndarray | None = None  # which coordinates a fit has, bool (fit, coordinate)
    floor: float = FLOOR

    def take(self, some) -> Self:
        """Take those of some fits."""
        fitted, test = ((of[0][some], of[1][some]) for of in (self.fitted, self.test))
        inside = None if self.inside is None else self.inside[some]
        return HeldOut(self.start[some], fitted, test, self.share[some], inside, self.floor)

    def fold(self, k: int) -> Quadratic:
        """Model of the rows that a fold fits."""
        H, gradient = self.fitted[0][:, k], self.fitted[1][:, k]
        return Quadratic(H, times(H, self.start[:, k]) - gradient, None, self.inside, self.floor)


def evaluate_held_out(model: HeldOut, space: Coordinates, rho: np.ndarray) -> Optimum:
    """Loss of the held-out rows, with derivatives by log strengths (fit, penalty); optima are (fit, fold, ...)."""
    strengths, p = np.exp(rho), space.n_coordinates
    n, n_folds = model.share.shape
    criterion, at, inverses = np.zeros(n), np.zeros_like(model.start), np.zeros_like(model.fitted[0])
    gradient, curvature = np.zeros((n, space.n_penalties)), np.zeros((n, space.n_penalties, space.n_penalties))
    for k in range(n_folds):
        less = strengths * model.share[:, k, None]
        at[:, k], inverses[:, k], _ = optimum(model.fold(k), space, less)
        away = at[:, k] - model.start[:, k]
        H, slope = model.test[0][:, k], model.test[1][:, k]
        pushed = times(H, away)
        criterion += np.einsum("np,np->n", slope + 0.5 * pushed, away)
        pulls = np.zeros((n, space.n_penalties, p + 1))
        for j in range(space.n_penalties):  # of one penalty by itself
            alone = np.zeros_like(less)
            alone[:, j] = less[:, j]
            pulls[:, j, :p] = space.pull(alone, at[:, k, :p])
        if model.inside is not None:
            pulls[:, :, :p] *= model.inside[:, None, :]
        moved = -(pulls @ inverses[:, k])  # derivatives of the fit
        gradient += np.einsum("njp,np->nj", moved, slope + pushed)
        curvature += moved @ H @ moved.transpose(0, 2, 1)
    return Optimum(at, inverses, criterion, gradient, curvature, np.ones_like(gradient))
