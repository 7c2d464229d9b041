"""Proximal Newton steps of many independent fits at once, for penalties with kinks.

The quadratic model of each fit, with the penalty whole, is minimised on the host; the rows see two products a step as
those of conjugate gradients do. Theory: docs/theory/duality.md.
"""

from __future__ import annotations

import jax
import numpy as np

from ..penalties import Penalty
from ..problems._basis import SpectralBasis
from ..problems._proximal_newton import least_of_model
from .cg import Descent
from .host import HostRows
from .tiles import Slopes

_LIFT = 1e-7  # of the diagonal of a Hessian in single precision, at the least


class ProximalDescent(Descent):
    """Where a group of fits is whose penalty has kinks; see :class:`Descent`.

    Attributes
    ----------
    penalty : Penalty
        Of these fits.
    estimate : numpy.ndarray
        Decrease that the quadratic model of each fit promises, (fit,).
    """

    extensions = 0  # slopes between two points of a kink say when to stop, and not where the least is

    def __init__(self, rows: HostRows, basis: SpectralBasis, curvature, ridge, penalty: Penalty, coef, intercept):
        self.penalty = penalty
        self._covariance, self._curvature = basis.unwhiten.T @ basis.unwhiten, curvature
        n = len(intercept)
        self._blocks = [select(penalty, [k]).blocks(len(coef)) for k in range(n)]
        self._moves, self._stale = Slopes(np.zeros_like(coef), np.zeros(n)), np.ones(n, bool)
        self._promised, self._slope = np.zeros(n), np.zeros(n)
        super().__init__(rows, None, ridge, coef, intercept)

    def judge(self) -> None:
        """Minimise the model of every fit whose gradient or metric is new."""
        with np.errstate(over="ignore", invalid="ignore"):
            missed = np.asarray(self.penalty.subgradient_residual(self.coef, self.gradient.coef), np.float64)
        for k in np.flatnonzero(self._stale):
            step, promised = self._minimise(k, missed[:, k])
            self._moves.coef[:, k], self._moves.intercept[k] = step[:-1], step[-1]
            self._promised[k] = promised
        self._stale = np.zeros(len(self._stale), bool)
        moved = self._kinks(self.coef + self._moves.coef) - self._kinks(self.coef)
        self._slope = np.sum(self.gradient.coef * self._moves.coef, axis=0)
        self._slope = self._slope + self.gradient.intercept * self._moves.intercept + moved
        self.squared_norm = 2 * self._promised

    def _minimise(self, k: int, missed: np.ndarray) -> tuple[np.ndarray, float]:
        """Step to the least of the model of one fit, intercept last, and the decrease that it promises there."""
        labels, strength = self._blocks[k]
        coef, d = self.coef[:, k], len(self.coef)
        inside = np.flatnonzero((labels < 0) | np.isin(labels, labels[(coef != 0) | (missed != 0)]))
        with_intercept = np.append(inside, d)
        g = np.append(self.gradient.coef[inside, k], self.gradient.intercept[k])
        step = np.zeros(d + 1)
        if not np.all(np.isfinite(g)):
            return step, np.nan
        Q, before = self._model(k, inside, with_intercept), np.append(coef[inside], 0.0)
        lift = _LIFT
        while True:
            lifted = Q + np.diag(lift * np.diag(Q))
            try:
                move = least_of_model(lifted, lifted @ before - g, labels[inside], strength, before) - before
                break
            except np.linalg.LinAlgError:
                lift *= 100
        step[with_intercept] = move
        change = self._kink(k, coef + step[:-1]) - self._kink(k, coef)
        return step, max(float(-(g @ move) - move @ lifted @ move / 2 - change), 0.0)

    def _model(self, k: int, inside, with_intercept) -> np.ndarray:
        """Hessian of one fit in some features and the intercept; nothing but its penalty moves a constant feature."""
        if self.own[k] is not None:
            Q = self.own[k][np.ix_(with_intercept, with_intercept)]
        else:
            Q = np.zeros((len(inside) + 1,) * 2)
            Q[:-1, :-1] = self._curvature[k] * self._covariance[np.ix_(inside, inside)]
            Q[-1, -1] = self._curvature[k]
        diagonal = np.diag(Q).copy()
        diagonal[:-1] += self.ridge[inside, k]
        Q[np.diag_indices_from(Q)] = np.where(diagonal > 0, diagonal, 1.0)
        return Q

    def _kinks(self, coef: np.ndarray) -> np.ndarray:
        """Penalty of every fit without its ridge, (fit,)."""
        return np.asarray(self.penalty.value(coef), np.float64) - np.sum(self.ridge * coef**2, axis=0) / 2

    def _kink(self, k: int, coef: np.ndarray) -> float:
        """Penalty of one fit without its ridge."""
        labels, strength = self._blocks[k]
        norms = np.sqrt(np.bincount(labels[labels >= 0], coef[labels >= 0] ** 2, minlength=len(strength)))
        return float(strength @ norms)

    def metric_of(self, matrix: np.ndarray, k: int, scale: np.ndarray) -> np.ndarray:
        """Hessian in the features as they are, without the ridge."""
        unit = np.append(scale, 1.0)
        return matrix * np.outer(unit, unit)

    def renew_metrics(self, fits, scale, kin=None) -> None:
        """Give some fits the Hessian where they are as their model; see :meth:`Descent.renew_metrics`."""
        self._stale[fits] = True
        super().renew_metrics(fits, scale, kin)

    def arrive(self, loss_gradient: Slopes) -> None:
        """Take over the gradient of the loss at the parameters, and judge it."""
        self._stale = np.ones(len(self._stale), bool) if self._went is None else self._stale | self._went
        super().arrive(loss_gradient)

    def choose(self) -> tuple[Slopes, np.ndarray]:
        """Directions, and slopes along them up to their ends."""
        return self._moves, self._slope

    def first_length(self, slope, bend) -> np.ndarray:
        """Go all the way."""
        return np.ones_like(slope)

    def rise_of_kinks(self, p: Slopes, lengths: np.ndarray) -> np.ndarray:
        """Mean slope of the penalty's kinks on the way, (fit,)."""
        safe = np.where(lengths > 0, lengths, 1.0)
        return (self._kinks(self.coef + safe * p.coef) - self._kinks(self.coef)) / safe

    def part(self, index: np.ndarray) -> ProximalDescent:
        """Return some of the fits as a descent of their own."""
        part = super().part(index)
        part.penalty, part._curvature = select(self.penalty, index), self._curvature[index]
        part._blocks = [self._blocks[k] for k in index]
        part._moves = self._moves.part(index)
        part._stale, part._promised, part._slope = self._stale[index], self._promised[index], self._slope[index]
        return part


def select(penalty: Penalty, index) -> Penalty:
    """Return the penalty of some of the fits."""
    return jax.tree.map(lambda a: a[..., index] if np.ndim(a) else a, penalty)
