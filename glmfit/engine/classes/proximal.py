"""Proximal Newton steps of a softmax model whose penalty has kinks: a quadratic model of the loss, with the penalty.

Theory: docs/theory/softmax_gap.md (the bound), docs/theory/duality.md (the steps).
"""

from contextlib import closing
from typing import NamedTuple

import numpy as np
import scipy.sparse
from scipy.special import softmax

from ...compilation import Clock
from ...display import ProgressBar
from ...status import Status
from ..exact.kinked import least_of_models
from ..problem import Params
from ..result import History, LoopOptions, Solution, solution_of, stopping_target
from ..tiles import sums_over_tiles
from .bounds import curvature_of_rows

_WHOLE, _WORK = 1500, 5e10  # parameters of one model of all classes, and operations that form it, at most
_NEAR = 0.6  # of its threshold: features with a larger gradient may soon have to move
_LIFT = 1e-9  # of the diagonal: duplicates may share a coefficient in any way
_ROWS = 256  # rows whose Hessians are formed at a time
_SWEEPS, _SETTLED = 100, 1e-8  # over the classes, at most; share of the squared length of the longest, which ends them
_LEFT = 0.01  # of what a model promises, where its minimum is approached
_SHIFTED, _SHIFTED_LESS = 1e-3, 0.3  # of the mean curvature of classes: added along a shift of all; factor of a step
_HALVINGS, _ENOUGH = 30, 1e-4  # of a step; share of the promised decrease with which it is content
_TIGHTER, _POLISHED = 0.1, 6  # factor of the aim after a proof that failed; steps that objectives do not resolve
_CONSTANT = 1e-7  # deviation over mean of a feature that counts as constant


class _Point(NamedTuple):
    """Parameters, and what a pass finds there."""

    params: Params
    objective: float
    gradient: Params  # of the loss
    rounding: float  # of the objective


class ProximalClassRun:
    """One fit of a softmax problem with a lasso, an elastic net or a group lasso.

    A step goes to the minimum of a quadratic model of the loss with the whole penalty, in features that are not zero or
    may have to move. The Hessian of all classes is formed or, if it is large, used class by class. If its step does not
    descend, a bound of the Hessian takes its place. Every iterate is lower than the one before, up to rounding.
    """

    name = "ProximalNewton"

    def __init__(self, problem, options: LoopOptions, start: Params | None = None):
        self.problem, self.options, self.clock = problem, options, Clock()
        self.penalty, self.d, self.K = problem.penalty, problem.n_features, problem.n_classes
        labels, strength = self.penalty.blocks(self.d)
        self._labels, self._strength = labels, np.asarray(strength, np.float64)
        self._ridge, basis = float(np.max(self.penalty.ridge_strength)), problem.basis
        self._mean, spread = basis.mean, basis.deviation
        if scipy.sparse.issparse(problem.X):  # whose basis knows only scales
            square = np.asarray(problem.X.multiply(problem.X).mean(axis=0), np.float64).ravel()
            spread = np.sqrt(np.maximum(square - np.asarray(problem.X.mean(axis=0), np.float64).ravel() ** 2, 0.0))
        self._varies = spread > _CONSTANT * np.abs(self._mean)
        self.start = problem.null_params() if start is None else start
        self.passes, self.epochs, self.promised, self.history = 0.0, 0, np.inf, History()
        self.gap, self.is_bound, self.status = np.inf, False, Status.MAX_EPOCHS

    def run(self) -> Solution:
        """Fit; Ctrl-C keeps the last iterate."""
        interrupted = False
        bar = ProgressBar(f"fitting {self.problem.subject}", self.options.max_epochs, "step", self.options.verbose)
        with closing(bar):
            try:
                self.at = self._look(self.start)
                self._steps(bar)
                bar.finish(self.status != Status.MAX_EPOCHS)
            except KeyboardInterrupt:
                if not self.epochs:
                    raise
                interrupted, self.status = True, Status.INTERRUPTED
        return solution_of(self, self.at.params, self.at.objective, interrupted=interrupted)

    def _look(self, params: Params) -> _Point:
        """Make a pass at some parameters."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = self.problem.sums_at(params)
        self.passes += 1
        rounding = 1e-14 * abs(sums.objective) + self.problem.rounding_of_scores(params)
        return _Point(params, sums.objective, sums.gradient, rounding)

    @property
    def _is_small(self) -> bool:
        """Whether the Hessian of all classes is cheap to form, if all features are in it."""
        size = self.K * (np.count_nonzero(self._concerned(self._slopes)) + 1)
        return size <= _WHOLE and self.problem.n_rows * size**2 <= _WORK

    @property
    def _slopes(self) -> np.ndarray:
        """Gradient of the loss and the ridge in the coefficients."""
        return self.at.gradient.coef + self._ridge * self.at.params.coef

    @property
    def target(self) -> float:
        """Gap below which the fit has converged."""
        return float(stopping_target(self.problem, self.at.objective, self.options, self.at.rounding))

    def _steps(self, bar: ProgressBar) -> None:
        """Take steps until a proof ends the fit, or nothing descends."""
        aim, polished = 1.0, 0
        while np.isfinite(self.at.objective):
            move, slope = self._model(self._together if self._is_small else self._in_turn)
            self.gap, self.is_bound = self.promised, False
            resolved = self.promised > self.at.rounding
            if self.promised <= aim * self.target or not resolved or self.epochs >= self.options.max_epochs:
                aim *= _TIGHTER
                if self._prove():
                    return
            self._note(bar)
            if self.epochs >= self.options.max_epochs:
                return
            if resolved and self._go(move, slope):
                continue
            bounded, slope = self._model(self._bounded)
            if self.promised > self.at.rounding and self._go(bounded, slope):
                continue
            polished += 1
            if polished > _POLISHED or not self._polish(move):
                self.status = Status.PRECISION_FLOOR
                self._prove()
            if self.status != Status.MAX_EPOCHS:
                return
        self.status = Status.NON_FINITE

    def _prove(self) -> bool:
        """Bound the gap; return whether the fit ends with it."""
        found = self.problem.certify_gap(self.at.params)
        self.passes += 1
        if np.isfinite(found.bound):
            self.gap, self.is_bound = float(found.bound), True
            if self.gap <= self.target:
                self.status = Status.CONVERGED
        elif not self.penalty.penalises_all and self.promised <= self.target:  # no bound is to come
            self.status = Status.UNPROVED
        return self.status in (Status.CONVERGED, Status.UNPROVED)

    def _note(self, bar: ProgressBar) -> None:
        bar.to(self.epochs)
        bar.say(f"gap estimate {self.promised:.1e}")
        row_evals = int(self.passes * self.problem.n_rows)
        self.history.add(self.epochs, row_evals, self.clock.seconds, self.at.objective, self.gap, self.is_bound)
        if self.options.callback is not None:
            with self.clock.paused():
                self.options.callback(self.epochs, self.clock.seconds, self.at.params, None)

    # ---------------------------------------------------------------- steps

    def _along(self, move: Params, length: float) -> _Point:
        coef, intercept = self.at.params
        return self._look(Params(coef + length * move.coef, intercept + length * move.intercept))

    def _go(self, move: Params, slope: float) -> bool:
        """Go along a move, never uphill; return whether that was possible."""
        length = 1.0
        for _ in range(_HALVINGS):
            there = self._along(move, length)
            if there.objective <= self.at.objective + _ENOUGH * length * slope and there.objective < self.at.objective:
                self.at, self.epochs = there, self.epochs + 1
                return True
            length /= 2
        return False

    def _polish(self, move: Params) -> bool:
        """Take a step that objectives no longer resolve, and keep it if the bound is smaller there."""
        before, gap, is_bound = self.at, self.gap, self.is_bound
        there = self._along(move, 1.0)
        if there.objective <= before.objective + before.rounding:
            self.at = there
            self._prove()
            if self.status == Status.CONVERGED or (self.is_bound and self.gap < gap):
                self.epochs += 1
                return True
        self.at, self.gap, self.is_bound = before, gap, is_bound
        return False

    def _model(self, minimise) -> tuple[Params, float]:
        """Minimise the model; returns the move and the slope up to its end, and sets the decrease it promises."""
        coef, gradient, slopes, K = self.at.params.coef, self.at.gradient, self._slopes, self.K
        inside = np.flatnonzero(self._concerned(slopes))
        n, mean = len(inside) + 1, self._mean[inside]
        g = np.vstack([slopes[inside] - np.outer(mean, gradient.intercept), gradient.intercept]).T
        g[:, :-1] *= self._varies[inside]  # a constant feature is moved by its penalty only
        before = np.append(coef[inside].T, np.zeros((K, 1)), axis=1)  # (class, variable), the intercept last
        ridge = np.append(np.full(n - 1, self._ridge), 0.0)
        step, bend = minimise(inside, before, g, ridge)
        self.passes += 1
        move = np.zeros((self.d, K))
        move[inside] = step[:, :-1].T
        kinks = [float(np.sum(self.penalty.value(w))) - self._ridge / 2 * np.sum(w**2) for w in (coef, coef + move)]
        down = float(np.sum(g * step)) + kinks[1] - kinks[0]
        self.promised = float(np.maximum(-down - bend / 2, 0.0))  # nan stays nan
        return Params(move, (step[:, -1] - mean @ step[:, :-1].T) * self.problem.fit_intercept), down

    def _together(self, inside, before, g, ridge) -> tuple[np.ndarray, float]:
        """Minimise the model of all classes by its whole Hessian; returns the step and the curvature along it."""
        K, n = before.shape
        Q = self._hessian(inside).reshape(K * n, K * n)
        last = np.arange(n - 1, K * n, n)
        Q[np.ix_(last, last)] += np.mean(np.diag(Q)[last])  # no curvature along a shift of all intercepts
        if self._shifts:
            # Nor is there any along that of a feature. Some is added in the first steps, around where the model is
            # made: without it, hundreds of changes of signs and zeros lead to the minimum.
            of_features = Q.reshape(K, n, K, n)
            added = _SHIFTED * _SHIFTED_LESS**self.epochs / K * np.einsum("knkn->n", of_features)
            np.einsum("knjn->kjn", of_features)[:] += added
        Q, g = self._solvable(Q, g.ravel(), np.tile(ridge, K), last)
        after = self._least(Q, Q @ before.ravel() - g, inside, before.ravel()).reshape(K, n)
        self._centre(after)
        step = (after - before).ravel()
        return step.reshape(K, n), float(step @ Q @ step)

    def _in_turn(self, inside, before, g, ridge) -> tuple[np.ndarray, float]:
        """Minimise the same model class by class, again and again, by the block of each; returns the same."""
        n = before.shape[1]
        z, p = self._columns(slice(None), inside), self._probabilities(slice(None)).T
        weight, after = self.problem.totals / self.problem.n_rows, before.copy()
        models = [self._solvable((z.T * (weight * q * (1 - q))) @ z, np.zeros(n), ridge, [n - 1])[0] for q in p]
        changes, mean, first = np.zeros_like(p), np.zeros(len(z)), 0.0
        free = self.problem.fit_intercept
        for _ in range(_SWEEPS):
            moved = 0.0
            for k, Q in enumerate(models):
                slope = g[k] + z.T @ (weight * p[k] * (changes[k] - mean)) + ridge * (after[k] - before[k])
                slope[-1] *= free
                change = self._least(Q, Q @ after[k] - slope, inside, after[k]) - after[k]
                along = z @ change
                changes[k] += along
                mean += p[k] * along
                after[k] += change
                moved += float(change @ Q @ change)
            self._centre(after)
            first = max(first, moved)
            if moved <= _SETTLED * first:
                break
        step = after - before
        bend = np.sum(weight * (np.einsum("ki,ki,ki->i", p, changes, changes) - mean**2)) + np.sum(ridge * step**2)
        return step, float(bend)

    def _centre(self, after: np.ndarray) -> None:
        """Shift the coefficients of each feature, (class, variable), for all classes alike, to the least lasso.

        The loss does not change. A lasso is least where a median is 0, of which an even number of classes has many:
        the largest.
        """
        if self._shifts:
            after[:, :-1] -= np.sort(after[:, :-1], axis=0)[(self.K - 1) // 2]

    def _bounded(self, inside, before, g, ridge) -> tuple[np.ndarray, float]:
        """Minimise a model whose Hessian is at least that of the loss anywhere; returns the same.

        The curvature of a row, diag(p) - pp', is at most 1/2 (Boehning 1992).
        """
        n = before.shape[1]
        z, weight = self._columns(slice(None), inside), self.problem.totals / self.problem.n_rows
        Q = self._solvable((z.T * (0.5 * weight)) @ z, np.zeros(n), ridge, [n - 1])[0]
        g = np.where(np.arange(n) < n - 1, g, g * self.problem.fit_intercept)
        step = np.stack([self._least(Q, Q @ w - slope, inside, w) for w, slope in zip(before, g, strict=True)]) - before
        return step, float(np.sum((step @ Q) * step))

    def _solvable(self, Q: np.ndarray, g: np.ndarray, ridge: np.ndarray, intercepts) -> tuple[np.ndarray, np.ndarray]:
        """Add the ridge; hold intercepts at 0 that are not fitted, and directions without curvature where they are."""
        diagonal = np.einsum("ii->i", Q)
        diagonal += ridge
        flat = diagonal <= 0  # only its penalty moves a feature without curvature
        diagonal *= 1 + _LIFT
        diagonal[flat] = 1.0
        g = np.where(flat, 0.0, g)
        if not self.problem.fit_intercept:
            Q[intercepts], Q[:, intercepts], g[intercepts] = 0.0, 0.0, 0.0
            Q[intercepts, intercepts] = 1.0
        return Q, g

    def _concerned(self, slopes: np.ndarray) -> np.ndarray:
        """Which features are not zero or may have to move in some class, in whole groups, bool (feature,)."""
        inside = self._labels >= 0
        size, active = np.zeros((2, len(self._strength), self.K))
        np.add.at(size, self._labels[inside], slopes[inside] ** 2)
        np.add.at(active, self._labels[inside], self.at.params.coef[inside] != 0)
        chosen = ((active > 0) | ~(np.sqrt(size) <= _NEAR * self._strength[:, None])).any(axis=1)
        return np.where(inside, np.append(chosen, True)[self._labels], True)

    @property
    def _shifts(self) -> bool:
        """Whether only a lasso keeps the coefficients of a feature from shifting for all classes alike."""
        return self._ridge == 0 and np.array_equal(self._labels, np.arange(self.d))

    def _least(self, Q, c, inside: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Minimise a model of one class, or of all together, plus the norms of its blocks, (variable,)."""
        labels, K = self._labels[inside], len(Q) // (len(inside) + 1)  # classes of the model
        m = len(self._strength)
        every = np.concatenate([np.append(np.where(labels < 0, -1, labels + k * m), -1) for k in range(K)])
        return least_of_models(*(a[None] for a in (Q, c, every, np.tile(self._strength, K), before)), left=_LEFT)[0]

    # ---------------------------------------------------------------- curvature

    def _columns(self, rows: slice, inside: np.ndarray) -> np.ndarray:
        """Centred features of some rows, and a 1, (row, variable)."""
        x = self.problem.X[rows][:, inside]
        x = np.asarray(x.toarray() if scipy.sparse.issparse(x) else x, np.float64) - self._mean[inside]
        x *= self._varies[inside]
        return np.append(x, np.ones((len(x), 1)), axis=1)

    def _probabilities(self, rows: slice) -> np.ndarray:
        return softmax(self.problem.scores(self.at.params, rows), axis=1)

    def _hessian(self, inside: np.ndarray) -> np.ndarray:
        """Hessian of the loss in some features of all classes, (class, variable, class, variable)."""

        def tile(rows):
            z = self._columns(rows, inside)
            return (curvature_of_rows(z, self._probabilities(rows), self.problem.totals[rows]),)

        return sums_over_tiles(tile, self.problem.n_rows, _ROWS)[0] / self.problem.n_rows
