"""Proximal Newton steps of many independent fits at once, for penalties with kinks.

The quadratic model of each fit, with the penalty whole, is minimised on the host; the rows see two products a step as
those of conjugate gradients do. Most coefficients are zero, and a Hessian in the others is cheap: where it costs no
more than some steps, a fit has a new one as soon as the last is no longer good. Theory: docs/theory/duality.md.
"""

from typing import NamedTuple, Self

import numpy as np

from ..penalties import Penalty
from .cg import Descent, steps_of_a_hessian
from .exact.proximal_newton import least_of_model
from .host import HostRows
from .metric import SharedMetric
from .population import select

_LIFT = 1e-7  # of the diagonal of a Hessian in single precision, at the least
_NEAR = 0.6  # of its threshold: features with such a gradient are in a Hessian, lest they have to be added soon
_CHEAP = 2.0  # steps: a Hessian that costs less is formed as soon as the one before is no longer good
_GOOD = 0.01  # of the decrease promised before the last step: a model after which less is promised may stay
_RESCALED = 10.0  # most that the curvature of the shared model changes by in a step, as a factor


class Model(NamedTuple):
    """Hessian of the loss of one fit in some features and the intercept, which is last."""

    features: np.ndarray
    matrix: np.ndarray


class ProximalDescent(Descent):
    """Where a group of fits is whose penalty has kinks; see :class:`Descent`.

    The model of a fit has the Hessian in ``own``; where there is none, it is that of the spectral basis. The estimate
    is the decrease that it promises; below ``goal`` (fit,) no Hessian is formed for a better one.
    """

    of_fits = (
        *Descent.of_fits, "_curvature", "_strength", "_moves", "_stale", "_formed", "_promised", "_slope", "goal",
    )  # fmt: skip
    first_order = True
    extensions = 0  # slopes between two points of a kink say when to stop, and not where the least is
    aim = 1e-2  # bounds by duality are of first order

    def __init__(self, rows: HostRows, metric: SharedMetric, ridge, penalty: Penalty, at: np.ndarray):
        self.penalty, basis = penalty, metric.basis
        self._covariance, self._unit = basis.unwhiten.T @ basis.unwhiten, basis.deviation
        self._curvature = metric.curvature.copy()
        n = at.shape[1]
        blocks = [select(penalty, [k]).blocks(len(ridge)) for k in range(n)]
        self._labels, self._strength = blocks[0][0], np.stack([strength for _, strength in blocks], axis=1)
        self._moves = np.zeros_like(at)
        self._stale = np.ones(n, bool)  # whose model is to be minimised
        self._formed = np.zeros(n, bool)  # whose Hessian is of where it is
        self._promised, self._slope, self.goal = np.zeros((3, n))
        super().__init__(rows, metric, ridge, at)

    # ---------------------------------------------------------------- models

    def judge(self) -> None:
        """Minimise the model of every fit whose gradient or metric is new."""
        stale, before = np.flatnonzero(self._stale), self._promised.copy()
        near, missed = (self._concerned(stale, share) for share in (_NEAR, 1.0))
        self.hessian_cost[stale] = steps_of_a_hessian(len(self.coef), near.sum(axis=0))
        fresh = self._formed[stale] | (self.n_steps[stale] == 0)
        cheap = self.hessian_cost[stale] * len(stale) < _CHEAP * len(self.own)
        lacking = np.array([self._lacks(k, missed[:, i]) for i, k in enumerate(stale)], bool)
        lacking |= cheap & ~fresh & np.array([self.own[k] is None for k in stale], bool)
        self._form(stale[lacking], near[:, lacking])
        self._minimise(stale, missed)
        good = fresh | lacking | (self._promised[stale] <= _GOOD * before[stale])
        poor = cheap & ~good & (self._promised[stale] > self.goal[stale])
        self._form(stale[poor], near[:, poor])
        self._minimise(stale[poor], missed[:, poor])
        self._stale = np.zeros(len(self._stale), bool)
        kinks = self._kinks(self.at + self._moves) - self._kinks(self.at)
        self._slope = self.inner(self.gradient, self._moves) + kinks
        self.squared_norm = 2 * self._promised

    def _lacks(self, k: int, concerned) -> bool:
        """Whether the Hessian of a fit is without a feature that may have to move."""
        if self.own[k] is None:
            return False
        concerned = concerned.copy()
        concerned[self.own[k].features] = False
        return bool(concerned.any())

    def _concerned(self, fits, share: float) -> np.ndarray:
        """Which features are not zero or may have to move, whole norms at a time, bool (feature, fit).

        They may where the gradient is over a share of the threshold.
        """
        labels, inside = self._labels, self._labels >= 0
        size, active = np.zeros((2, len(self._strength), len(fits)))
        np.add.at(size, labels[inside], self.gradient[:-1][np.ix_(inside, fits)] ** 2)
        np.add.at(active, labels[inside], self.coef[np.ix_(inside, fits)] != 0)
        chosen = (active > 0) | ~(np.sqrt(size) <= share * self._strength[:, fits])
        return np.where(inside[:, None], chosen[labels], True)

    def _form(self, fits, features) -> None:
        """Form the Hessians of some fits where they are, in some features of each, bool (feature, fit)."""
        if not len(fits):
            return
        columns = [np.flatnonzero(some) for some in features.T]
        matrices = self.rows.hessians(fits, self._unit, columns)
        for k, some, matrix in zip(fits, columns, matrices, strict=True):
            unit = np.append(self._unit[some], 1.0)
            self.own[k] = Model(some, matrix * np.outer(unit, unit))
        self._formed[fits] = True

    def doubt(self, which: np.ndarray) -> None:
        """Form models of some fits anew, from all rows; see :meth:`Descent.doubt`."""
        super().doubt(which)
        self._formed &= ~which

    def renew_metrics(self, fits, scale, kin=None) -> None:
        """Give some fits the Hessian where they are as their model; see :meth:`Descent.renew_metrics`."""
        near = self._concerned(fits, _NEAR)
        fits, near = fits[~self._formed[fits]], near[:, ~self._formed[fits]]
        if not len(fits):
            return
        kin = np.arange(len(self.own)) if kin is None else kin
        _, first, which = np.unique(kin[fits], return_index=True, return_inverse=True)
        shared = np.stack([near[:, which == i].any(axis=1) for i in range(len(first))], axis=1)
        self._form(fits[first], shared)
        for k, i in zip(fits, which, strict=True):
            self.own[k] = self.own[fits[first[i]]]
        self._formed[fits] = self._stale[fits] = True
        self.judge()

    def _minimise(self, fits, features) -> None:
        """Minimise the models of some fits over some features of each, bool (feature, fit)."""
        for k, some in zip(fits, features.T, strict=True):
            self._moves[:, k], self._promised[k] = self._least(k, np.flatnonzero(some))

    def _least(self, k: int, inside) -> tuple[np.ndarray, float]:
        """Step to the least of the model of one fit, intercept last, and the decrease that it promises there."""
        coef, moved = self.coef[:, k], np.append(inside, len(self.coef))
        g, step = self.gradient[moved, k], np.zeros(len(self.at))
        if not np.all(np.isfinite(g)):
            return step, np.nan
        Q, before = self._model(k, inside), np.append(coef[inside], 0.0)
        labels, strength, lift = self._labels[inside], self._strength[:, k], _LIFT
        while True:
            lifted = Q + np.diag(lift * np.diag(Q))
            try:
                move = least_of_model(lifted, lifted @ before - g, labels, strength, before) - before
                break
            except np.linalg.LinAlgError:
                lift *= 100
        step[moved] = move
        kinks = np.diff(_norms(np.stack([coef, coef + step[:-1]], axis=1), self._labels, len(strength)), axis=1)[:, 0]
        return step, max(float(-(g @ move) - move @ lifted @ move / 2 - strength @ kinks), 0.0)

    def _model(self, k: int, inside) -> np.ndarray:
        """Hessian of one fit in some features and the intercept; nothing but its penalty moves a constant feature."""
        if self.own[k] is not None:
            features, matrix = self.own[k]
            at = np.append(np.searchsorted(features, inside), len(features))
            Q = matrix[np.ix_(at, at)]
        else:
            Q = np.zeros((len(inside) + 1,) * 2)
            Q[:-1, :-1] = self._covariance[np.ix_(inside, inside)]
            Q[-1, -1] = 1
            Q *= self._curvature[k]
        diagonal = np.diag(Q).copy()
        diagonal[:-1] += self.ridge[inside, k]
        Q[np.diag_indices_from(Q)] = np.where(diagonal > 0, diagonal, 1.0)
        return Q

    def _kinks(self, coef: np.ndarray) -> np.ndarray:
        """Penalty without its ridge of coefficients, or of all parameters, (fit,)."""
        return np.sum(self._strength * _norms(coef[: len(self._labels)], self._labels, len(self._strength)), axis=0)

    # ---------------------------------------------------------------- steps

    def advance(self, moving: np.ndarray, goal: np.ndarray | None = None, most_steps: int | None = None) -> None:
        """Take a step of the fits that move; see :meth:`Descent.advance`."""
        self.goal = self.goal if goal is None else goal
        super().advance(moving)

    def arrive(self, loss_gradient: np.ndarray) -> None:
        """Take over the gradient of the loss at the parameters, and judge it."""
        if self._went is None:  # nothing has moved
            self._stale[:] = True
        else:
            self._stale, self._formed = self._stale | self._went, self._formed & ~self._went
        super().arrive(loss_gradient)

    def choose(self) -> tuple[np.ndarray, np.ndarray]:
        """Directions, and slopes along them up to their ends."""
        return self._moves, self._slope

    def remember(self, at: np.ndarray, gradient: np.ndarray) -> None:
        """Keep nothing: models know more."""

    def first_length(self, slope, bend) -> np.ndarray:
        """Go all the way, or as far as the curvature along it says; it corrects the shared model, too."""
        p = self._moves
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = self._curvature * (np.sum(p[:-1] * (self._covariance @ p[:-1]), axis=0) + p[-1] ** 2)
            ratio = (bend - np.sum(self.ridge * p**2, axis=0)) / expected
            ratio = np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)
            self._curvature = self._curvature * np.clip(ratio, 1 / _RESCALED, _RESCALED)
            return np.minimum(-slope / bend, 1.0)

    def rise_of_kinks(self, p: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Mean slope of the penalty's kinks on the way, (fit,)."""
        safe = np.where(lengths > 0, lengths, 1.0)
        return (self._kinks(self.at + safe * p) - self._kinks(self.at)) / safe

    def _part(self, index: np.ndarray, rows: HostRows) -> Self:
        """Return some of the fits as a descent of their own, on their rows."""
        part = super()._part(index, rows)
        part.penalty = select(self.penalty, index)
        return part


def _norms(coef, labels, n: int) -> np.ndarray:
    """Norm of every block of coefficients (feature, fit), (block, fit)."""
    squares, inside = np.zeros((n, coef.shape[1])), labels >= 0
    np.add.at(squares, labels[inside], coef[inside] ** 2)
    return np.sqrt(squares)
