"""Cross-validation of strengths over blocks of rows, for quadratic models of many fits at once.

Theory: docs/theory/smooth_terms.md. The losses of all blocks are taken as quadratic about the fit to all rows, so that
a fit without a block is one Newton step away, and the loss of the block it leaves out is known there.
"""

from typing import NamedTuple, Self

import numpy as np

from .coordinates import Coordinates
from .evidence import Optimum, Quadratic, optimum, times


class HeldOut(NamedTuple):
    """Quadratic models of the losses of all rows, and of the rows fitted and left out in every fold.

    Nats, in coordinates, intercept last; ``fitted`` and ``test`` are Hessians (fit, fold, coordinate + 1,
    coordinate + 1) and gradients at ``start`` (fit, fold, coordinate + 1).
    """

    whole: Quadratic
    start: np.ndarray  # (fit, coordinate + 1)
    fitted: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    share: np.ndarray  # of all responses that a fold fits, by which its penalty is less, (fit, fold)

    def take(self, some) -> Self:
        """Take those of some fits."""
        fitted, test = ((of[0][some], of[1][some]) for of in (self.fitted, self.test))
        return HeldOut(self.whole.take(some), self.start[some], fitted, test, self.share[some])


def evaluate_held_out(model: HeldOut, space: Coordinates, rho: np.ndarray) -> Optimum:
    """Loss of the blocks left out, with derivatives by the logarithms of strengths, (fit, penalty); see `Optimum`."""
    strengths, p = np.exp(rho), space.n_coordinates
    n, n_folds = model.share.shape
    criterion = np.zeros(n)
    gradient, curvature = np.zeros((n, space.n_penalties)), np.zeros((n, space.n_penalties, space.n_penalties))
    for k in range(n_folds):
        H, g = model.fitted[0][:, k], model.fitted[1][:, k]
        less = strengths * model.share[:, k, None]
        at, inverse, _ = optimum(model.whole._replace(hessian=H, z=times(H, model.start) - g), space, less)
        away = at - model.start
        H_test, slope = model.test[0][:, k], model.test[1][:, k]
        pushed = times(H_test, away)
        criterion += np.einsum("np,np->n", slope + 0.5 * pushed, away)
        pulls = np.zeros((n, space.n_penalties, p + 1))
        for j in range(space.n_penalties):  # of one penalty by itself
            alone = np.zeros_like(less)
            alone[:, j] = less[:, j]
            pulls[:, j, :p] = space.pull(alone, at[:, :p])
        if model.whole.inside is not None:
            pulls[:, :, :p] *= model.whole.inside[:, None, :]
        moved = -(pulls @ inverse)  # derivatives of the fit
        gradient += np.einsum("njp,np->nj", moved, slope + pushed)
        curvature += moved @ H_test @ moved.transpose(0, 2, 1)
    at, inverse, _ = optimum(model.whole, space, strengths)
    return Optimum(at, inverse, criterion, gradient, curvature, np.ones_like(gradient))
