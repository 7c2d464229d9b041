"""Proximal Newton steps of many independent fits at once, for penalties with kinks.

The quadratic model of each fit, with the full penalty, is minimised on the host. As in conjugate gradients, a step
takes two products with the rows, and past steps correct the model, as they correct the metric there. Models of similar
size are minimised together. Theory: docs/theory/duality.md.
"""

import functools
from typing import NamedTuple, Self

import numpy as np

from ..cholesky import is_definite
from ..penalties import Penalty
from ..threads import n_cores
from .cg import Descent, steps_of_a_hessian, steps_of_a_sample
from .exact.kinked import least_of_models
from .host import HostRows
from .metric import SharedMetric
from .population import select
from .small_systems import times

_LIFT = 1e-7  # of the diagonal of a Hessian in single precision, at least
_NEAR = 0.6  # of its threshold: features with a larger gradient are in a Hessian, so they need not be added soon
_NUMBERS = 1 << 22  # of Hessians at a time
_FEW_PRODUCTS = 1e7  # in factors of Hessians, finished before threads have started
_LEFT = 0.01  # of what a model promises, where its minimum is approached
_RESCALED = 10.0  # largest factor by which a step changes the curvature of the shared model


class Model(NamedTuple):
    """Hessian of the loss of one fit in some features, the intercept, and what is past the end, where it is 0."""

    features: np.ndarray
    matrix: np.ndarray


class ProximalDescent(Descent):
    """State of a group of fits whose penalty has kinks; see :class:`Descent`.

    The model of a fit has the Hessian in ``own``, or that of the spectral basis, corrected by the steps since. The
    estimate is the decrease that the model promises.
    """

    of_fits = (
        *Descent.of_fits, "_curvature", "_strength", "_moves", "_stale", "_formed", "_rough", "_promised", "_slope",
    )  # fmt: skip
    begins_light = False
    first_order = True
    most_samples = 2
    extensions = 0  # slopes between two points of a kink show when to stop, not where the minimum is
    aim = 1e-2  # for bounds by duality, which are of first order

    def __init__(self, rows: HostRows, metric: SharedMetric, ridge, penalty: Penalty, at: np.ndarray):
        self.penalty, basis = penalty, metric.basis
        self._covariance, self._unit = np.zeros((len(ridge) + 2,) * 2), basis.deviation
        self._covariance[:-2, :-2], self._covariance[-2, -2] = basis.unwhiten.T @ basis.unwhiten, 1
        self._curvature = metric.curvature.copy()
        n = at.shape[1]
        blocks = [select(penalty, [k]).blocks(len(ridge)) for k in range(n)]
        self._labels, self._strength = blocks[0][0], np.stack([strength for _, strength in blocks], axis=1)
        self._single = self._labels.tolist() == list(range(len(self._strength)))
        self._moves = np.zeros_like(at)
        self._stale = np.ones(n, bool)  # whose model must be minimised
        self._formed = np.zeros(n, bool)  # whose Hessian is that of its current point
        self._rough = np.zeros(n, bool)  # whose Hessian is of some rows
        self._promised, self._slope = np.zeros((2, n))
        super().__init__(rows, metric, ridge, at)

    # ---------------------------------------------------------------- models

    def judge(self) -> None:
        """Minimise the model of every fit whose gradient or metric is new."""
        stale = np.flatnonzero(self._stale)
        near, missed = (self._concerned(stale, share) for share in (_NEAR, 1.0))
        d, n_near = len(self.coef), near.sum(axis=0)
        self.hessian_cost[stale] = steps_of_a_hessian(d, n_near)
        self.sample_cost[stale] = steps_of_a_sample(self.rows.n_rows, d, n_near)
        lacking = np.array([self._lacks(k, missed[:, i]) for i, k in enumerate(stale)], bool)
        self._form(stale[lacking], near[:, lacking])
        self._minimise(stale, missed)
        self._stale = np.zeros(len(self._stale), bool)
        kinks = self._kinks(self.at + self._moves) - self._kinks(self.at)
        self._slope = self.inner(self.gradient, self._moves) + kinks
        self.squared_norm = 2 * self._promised

    def _lacks(self, k: int, concerned) -> bool:
        """Whether the Hessian of a fit lacks a feature that may have to move."""
        if self.own[k] is None:
            return False
        concerned = concerned.copy()
        concerned[self.own[k].features] = False
        return bool(concerned.any())

    def _concerned(self, fits, share: float) -> np.ndarray:
        """Which features are not zero or may have to move, in whole groups, bool (feature, fit).

        A feature may have to move if its gradient exceeds a share of the threshold. A constant one does not leave 0.
        """
        return self._may_move(fits, share) & (~self.shared.basis.constant[:, None] | (self.coef[:, fits] != 0))

    def _may_move(self, fits, share: float) -> np.ndarray:
        if self._single:
            return (self.coef[:, fits] != 0) | ~(np.abs(self.gradient[:-1, fits]) <= share * self._strength[:, fits])
        labels, inside = self._labels, self._labels >= 0
        size, active = np.zeros((2, len(self._strength), len(fits)))
        np.add.at(size, labels[inside], self.gradient[:-1][np.ix_(inside, fits)] ** 2)
        np.add.at(active, labels[inside], self.coef[np.ix_(inside, fits)] != 0)
        chosen = (active > 0) | ~(np.sqrt(size) <= share * self._strength[:, fits])
        return np.where(inside[:, None], chosen[labels], True)

    def _form(self, fits, features) -> None:
        """Form or estimate the Hessians of some fits at their current point, in some features, bool (feature, fit)."""
        if not len(fits):
            return
        columns = [np.flatnonzero(some) for some in features.T]
        self._rough[fits] = self._may_be_sampled[fits]
        matrices = self.hessians(fits, self._unit, columns)
        for k, some, matrix in zip(fits, columns, matrices, strict=True):
            unit = np.append(self._unit[some], 1.0)
            self.own[k] = Model(some, np.pad(matrix * np.outer(unit, unit), (0, 1)))
        self._formed[fits] = True

    @property
    def _may_be_sampled(self) -> np.ndarray:
        """Whether the next model of each fit may be of some rows, (fit,): not near the end, after a failed proof."""
        return super()._may_be_sampled & (self.proofs == 0) & (self.sample_cost < self.hessian_cost)

    @property
    def bounded(self) -> np.ndarray:
        """Whether the penalty bounds each fit along directions that some rows do not show, (fit,)."""
        return np.full(self.at.shape[1], self.penalty.penalises_all)

    def doubt(self, which: np.ndarray) -> None:
        """Rebuild the models of some fits from all rows; see :meth:`Descent.doubt`."""
        super().doubt(which)
        self._formed &= ~which

    def renew_metrics(self, fits, scale, kin=None) -> None:
        """Give some fits the Hessian at their current point as their model; see :meth:`Descent.renew_metrics`."""
        near = self._concerned(fits, _NEAR)
        formed = self._formed[fits] & ~(self._rough[fits] & (self.proofs[fits] > 0))
        fits, near = fits[~formed], near[:, ~formed]
        if not len(fits):
            return
        kin = np.arange(len(self.own)) if kin is None else kin
        _, first, which = np.unique(kin[fits], return_index=True, return_inverse=True)
        shared = np.stack([near[:, which == i].any(axis=1) for i in range(len(first))], axis=1)
        self._form(fits[first], shared)
        for k, i in zip(fits, which, strict=True):
            self.own[k] = self.own[fits[first[i]]]
        for of in (self.n_samples, self._rough):
            of[fits] = of[fits[first]][which]
        self._formed[fits] = self._stale[fits] = True
        self.judge()

    def refine(self, times: int) -> None:
        """Correct the models by products with the rows along the next moves, and choose these again."""
        for _ in range(times):
            self.learn(self._moves, self.rows.products(self._moves)[0] + self.ridge * self._moves)
            self._stale[:] = True
            self.judge()

    @property
    def residual(self) -> np.ndarray:
        """Gradient with the subgradient that leaves least; see :attr:`Descent.residual`."""
        g = self.gradient
        return np.vstack([self.penalty.subgradient_residual(self.coef, g[:-1]), g[-1:]]).astype(np.float64)

    def direction(self, g: np.ndarray) -> np.ndarray:
        """Apply the inverse of the shared metric: models of single fits have some features only."""
        return self.shared.solve(g)

    def _minimise(self, fits, features) -> None:
        """Minimise the models of some fits over some features of each, bool (feature, fit), and those that moved."""
        finite = np.all(np.isfinite(self.gradient[:, fits]), axis=0)
        self._moves[:, fits[~finite]], self._promised[fits[~finite]] = 0.0, np.nan
        fits, features = fits[finite], features[:, finite]
        known = self._known_steps(fits)
        for (step, *_), which in zip(self.past, known, strict=True):
            features = features | ((step[:-1, fits] != 0) & which)
        size = features.sum(axis=0) + 1
        order, shares = np.argsort(size), []
        shared = np.sum(size**3) >= _FEW_PRODUCTS
        most = min(_NUMBERS, np.sum(size**2) // n_cores() + 1) if shared else _NUMBERS
        while len(order):  # each takes as much room as the largest
            room = np.arange(1, len(order) + 1) * size[order] ** 2
            alike = (room <= most) & (size[order] <= 1.5 * size[order[0]] + 8)
            share, order = np.split(order, [max(1, np.count_nonzero(alike))])
            shares.append(share)
        together = functools.partial(self._minimise_together, fits, features, known)
        if shared:
            list(self.rows.each(together, shares[::-1]))
        else:  # threads would wait for each other
            for share in shares:
                together(share)

    def _known_steps(self, fits) -> np.ndarray:
        """Which remembered steps inform the models of some fits, bool (step, fit)."""
        known = np.array([weight[fits] > 0 for *_, weight in self.past], bool).reshape(len(self.past), len(fits))
        for i, k in enumerate(fits):
            if self.own[k] is not None:  # a Hessian of some features cannot use steps in others
                others = np.delete(np.arange(len(self.coef)), self.own[k].features)
                known[:, i] &= np.array([not step[others, k].any() for step, *_ in self.past], bool)
        return known

    def _minimise_together(self, fits, features, known, share) -> None:
        """Minimise the models of a share of the fits, of similar size."""
        fits, features, known = fits[share], features[:, share], known[:, share]
        # Parameters of each fit: some features, one past the end if there are fewer, and the intercept.
        d, n = len(self.coef), len(fits)
        place = np.argsort(~features, axis=0, kind="stable")[: features.sum(axis=0).max()]
        place = np.where(np.take_along_axis(features, place, axis=0), place, d + 1)
        place = np.vstack([place, np.full(n, d)]).T

        def of(values):
            """Values of the parameters of each fit, 0 past the end, (fit, parameter)."""
            return np.vstack([values[:, fits], np.zeros((d + 2 - len(values), n))])[place.T, np.arange(n)].T

        (Q, flat), before = self._models(fits, place, known, of), of(self.coef)
        g = np.where(flat, 0.0, of(self.gradient))
        c = times(Q, before) - g
        labels = np.append(self._labels, [-1, len(self._strength)])[place]
        move = least_of_models(Q, c, labels, self._strength[:, fits].T, before, _LEFT) - before
        step = np.zeros((d + 2, n))
        step[place.T, np.arange(n)] = move.T
        kinks = [self._norms(coef) for coef in (self.coef[:, fits], self.coef[:, fits] + step[:d])]
        rise = np.sum(self._strength[:, fits] * (kinks[1] - kinks[0]), axis=0)
        promised = -np.einsum("ni,ni->n", g, move) - np.sum(move * times(Q, move), axis=1) / 2 - rise
        self._moves[:, fits], self._promised[fits] = step[:-1], np.maximum(promised, 0.0)

    def _models(self, fits, place, known, of) -> tuple[np.ndarray, np.ndarray]:
        """Hessians of fits in some parameters of each, corrected by the steps since (BFGS); where these are flat."""
        d = len(self.coef)
        Q = np.empty((*place.shape, place.shape[1]))
        for q, k, some in zip(Q, fits, place, strict=True):
            if self.own[k] is None:
                np.multiply(self._covariance.take(some, 0).take(some, 1), self._curvature[k], out=q)
            else:
                features, matrix = self.own[k]
                at = np.full(d + 2, len(matrix) - 1)
                at[np.append(features, d)] = np.arange(len(matrix) - 1)
                q[:] = matrix.take(at[some], 0).take(at[some], 1)
        diagonal = np.einsum("nii->ni", Q)
        diagonal += of(self.ridge)
        flat = diagonal <= 0  # nothing but its penalty moves a constant feature
        diagonal[flat] = 1.0
        return _definite(Q, _corrected(Q, self.past, known, fits, of) if known.any() else Q.copy()), flat

    def _kinks(self, coef: np.ndarray) -> np.ndarray:
        """Penalty without its ridge of coefficients, or of all parameters, (fit,)."""
        return np.sum(self._strength * self._norms(coef[: len(self._labels)]), axis=0)

    def _norms(self, coef: np.ndarray) -> np.ndarray:
        """Norm of every block of coefficients (feature, fit), (block, fit)."""
        if self._single:
            return np.abs(coef)
        squares, inside = np.zeros((len(self._strength), coef.shape[1])), self._labels >= 0
        np.add.at(squares, self._labels[inside], coef[inside] ** 2)
        return np.sqrt(squares)

    # ---------------------------------------------------------------- steps

    def arrive(self, loss_gradient: np.ndarray, *since: np.ndarray) -> None:
        """Take over the gradient of the loss at the parameters; see :meth:`Descent.arrive`."""
        if self._went is None:  # nothing has moved
            self._stale[:] = True
        else:
            self._stale, self._formed = self._stale | self._went, self._formed & ~self._went
        super().arrive(loss_gradient, *since)

    def choose(self, moving: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Directions, and slopes along them up to their ends."""
        return self._moves, self._slope

    def first_length(self, slope, bend) -> np.ndarray:
        """Go all the way, or as far as the curvature along it allows; it also corrects the shared model."""
        p = self._moves
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = self._curvature * self.inner(p, self._covariance[:-1, :-1] @ p)
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


def _corrected(Q, past, known, fits, of) -> np.ndarray:
    """Correct matrices by BFGS with the known steps of each fit, and the changes of its gradient.

    In the compact form of Byrd, Nocedal and Schnabel (1994, Representations of quasi-Newton matrices).
    """
    roots = [np.sqrt(weight[fits]) * which for (*_, weight), which in zip(past, known, strict=True)]
    S, Y = (np.stack([root[:, None] * of(step[i]) for root, step in zip(roots, past, strict=True)], 1) for i in (0, 1))
    bent, n = S @ Q, len(past)
    middle = np.zeros((len(fits), 2 * n, 2 * n))
    middle[:, :n, :n] = bent @ S.swapaxes(1, 2) + ~known.T[:, :, None] * np.eye(n)
    middle[:, :n, n:] = np.tril(S @ Y.swapaxes(1, 2), -1)
    middle[:, n:, :n] = middle[:, :n, n:].swapaxes(1, 2)
    middle[:, n:, n:] = -np.eye(n)
    both = np.concatenate([bent, Y], axis=1)
    change = both.swapaxes(1, 2) @ np.linalg.solve(middle, both)
    return np.subtract(Q, change, out=change)


def _definite(plain, corrected) -> np.ndarray:
    """Raise the diagonals of corrected models a little; one that rounding makes indefinite loses its correction."""
    for q, before in zip(corrected, plain, strict=True):
        q.flat[:: len(q) + 1] *= 1 + _LIFT
        lift = _LIFT
        while not is_definite(q):
            q[:] = before if np.all(np.isfinite(before)) else np.eye(len(q))
            q.flat[:: len(q) + 1] *= 1 + lift
            lift *= 100
    return corrected
