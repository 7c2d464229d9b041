"""Proximal Newton steps of a softmax model whose penalty has kinks: a quadratic model of the loss, with the penalty.

Theory: docs/theory/softmax_gap.md (the bound), docs/theory/duality.md (the steps).
"""

from contextlib import closing

import numpy as np
import scipy.sparse
from scipy.special import softmax

from ...compilation import Clock
from ...display import ProgressBar
from ...status import Status
from ..exact.proximal_newton import least_of_l1_models, least_of_model
from ..problem import Params
from ..result import History, LoopOptions, Solution, stopping_target
from ..tiles import sums_over_tiles
from .bounds import curvature_of_rows

_WHOLE, _WORK = 1500, 5e10  # parameters of one model of all classes, and operations that form it, at most
_NEAR = 0.6  # of its threshold: features with a larger gradient may soon have to move
_LIFT = 1e-9  # of the diagonal: duplicates may share a coefficient in any way
_ROWS = 256  # rows whose Hessians are formed at a time
_SWEEPS, _SETTLED = 100, 1e-8  # over the classes, at most; share of the squared length of the longest, which ends them
_HALVINGS, _ENOUGH = 30, 1e-4  # of a step; share of the promised decrease with which it is content
_TIGHTER, _PROOFS = 0.1, 6  # factor of the aim after a proof that failed, and proofs that may fail


class ProximalClassRun:
    """One fit of a softmax problem with a lasso, an elastic net or a group lasso.

    A step goes to the minimum of a quadratic model of the loss with the whole penalty, in features that are not zero or
    may have to move. The Hessian of all classes is formed or, if it is large, used class by class. Every iterate is
    lower than the one before.
    """

    def __init__(self, problem, options: LoopOptions, start: Params | None = None):
        self.problem, self.options, self.clock = problem, options, Clock()
        self.penalty, self.d, self.K = problem.penalty, problem.n_features, problem.n_classes
        self.params = problem.null_params() if start is None else start
        labels, strength = self.penalty.blocks(self.d)
        self._labels, self._strength = labels, np.asarray(strength, np.float64)
        self._ridge = float(np.max(self.penalty.ridge_strength))
        self._mean, self.passes, self.history = problem.basis.mean, 0, History()
        self.gap, self.is_bound, self.status = np.inf, False, Status.MAX_EPOCHS
        self.aim, self.proofs, self.steps = 1.0, 0, 0

    def run(self) -> Solution:
        """Fit; Ctrl-C keeps the last iterate."""
        interrupted, most = False, self.options.max_epochs
        bar = ProgressBar(f"fitting {self.problem.subject}", most, "step", self.options.verbose)
        with closing(bar):
            try:
                self._look(self.params)
                while self._goes_on():
                    bar.to(self.steps)
                    bar.say(f"gap estimate {self.promised:.1e}")
                bar.finish(self.status != Status.MAX_EPOCHS)
            except KeyboardInterrupt:
                if not self.steps:
                    raise
                interrupted, self.status = True, Status.INTERRUPTED
        seconds = self.clock.seconds
        self._note()
        one = np.ones(1)
        return Solution(
            params=self.params, status=np.array([int(self.status)]), gap=self.gap * one,
            gap_is_bound=np.array([self.is_bound]), target=self.target * one, objective=self.objective * one,
            null_objective=self.problem.null_objective * one, epochs=np.array([self.steps]),
            row_evals=self.passes * self.problem.n_rows, history=self.history.arrays(),
            seconds_run=seconds - self.clock.compiling, seconds_compile=self.clock.compiling,
            solver_name="ProximalNewton", interrupted=interrupted,
        )  # fmt: skip

    def _look(self, params: Params) -> None:
        """Take over parameters and what a pass finds there."""
        self.params, sums = params, self.problem.sums_at(params)
        self.passes += 1
        self.objective, self.gradient = sums.objective, sums.gradient
        self.rounding = 1e-14 * abs(self.objective) + self.problem.rounding_of_scores(params)
        of_every_class = np.full(1, self.problem.null_objective)
        shape = _OneFit(of_every_class, self.problem.n_rows)
        self.target = float(stopping_target(shape, np.full(1, self.objective), self.options, np.zeros(1))[0])
        self.target = max(self.target, self.rounding)

    def _goes_on(self) -> bool:
        """Take a step, or prove that none is needed; return whether to continue."""
        if not np.isfinite(self.objective):
            self.status = Status.NON_FINITE
            return False
        move, slope = self._model()
        if self.promised <= self.aim * self.target or self.promised <= self.rounding:
            if self._prove():
                return False
        if self.steps >= self.options.max_epochs:
            return False
        if not self._go(move, slope):
            self._prove()
            if self.status == Status.MAX_EPOCHS:
                self.status = Status.PRECISION_FLOOR
            return False
        self._note()
        return True

    def _prove(self) -> bool:
        """Bound the gap; return whether the fit ends with it."""
        found = self.problem.certify_gap(self.params)
        self.passes, self.proofs, self.aim = self.passes + 1, self.proofs + 1, self.aim * _TIGHTER
        if np.isfinite(found.bound):
            self.gap, self.is_bound = float(found.bound), True
            if self.gap <= self.target:
                self.status = Status.CONVERGED
                return True
        elif self.promised <= self.target:  # features without a penalty leave no bound
            self.status = Status.UNPROVED
            return True
        if self.proofs >= _PROOFS and self.promised <= self.rounding:
            self.status = Status.PRECISION_FLOOR
            return True
        return False

    def _note(self) -> None:
        if not self.is_bound:
            self.gap = self.promised
        row_evals, at = self.passes * self.problem.n_rows, (self.objective, self.gap, self.is_bound)
        self.history.add(self.steps, row_evals, self.clock.seconds, *(np.full(1, value) for value in at))

    # ---------------------------------------------------------------- steps

    def _go(self, move: Params, slope: float) -> bool:
        """Go along a move, never uphill; return whether that was possible."""
        before, at, length = self.objective, self.params, 1.0
        for _ in range(_HALVINGS):
            there = Params(at.coef + length * move.coef, at.intercept + length * move.intercept)
            with np.errstate(over="ignore", invalid="ignore"):
                self._look(there)
            if self.objective <= before + _ENOUGH * length * slope and self.objective < before:
                self.steps += 1
                self.is_bound = False
                return True
            length /= 2
        self._look(at)
        return False

    def _model(self) -> tuple[Params, float]:
        """Minimise the model; returns the move and the slope up to its end, and sets the decrease it promises."""
        coef, K = self.params.coef, self.K
        slopes = self.gradient.coef + self._ridge * coef
        inside = np.flatnonzero(self._concerned(slopes))
        n, mean = len(inside) + 1, self._mean[inside]
        g = np.vstack([slopes[inside] - np.outer(mean, self.gradient.intercept), self.gradient.intercept]).T
        before = np.append(coef[inside].T, np.zeros((K, 1)), axis=1)  # (class, variable), the intercept last
        ridge = np.append(np.full(n - 1, self._ridge), 0.0)
        whole = K * n <= _WHOLE and self.problem.n_rows * (K * n) ** 2 <= _WORK
        step, bend = (self._together if whole else self._in_turn)(inside, before, g, ridge)
        self.passes += 1
        move = np.zeros_like(coef)
        move[inside] = step[:, :-1].T
        kinks = [float(np.sum(self.penalty.value(w))) - self._ridge / 2 * np.sum(w**2) for w in (coef, coef + move)]
        down = float(np.sum(g * step)) + kinks[1] - kinks[0]
        self.promised = max(-down - bend / 2, 0.0)
        return Params(move, (step[:, -1] - mean @ step[:, :-1].T) * self.problem.fit_intercept), down

    def _together(self, inside, before, g, ridge) -> tuple[np.ndarray, float]:
        """Minimise the model of all classes by its whole Hessian; returns the step and the curvature along it."""
        K, n = before.shape
        Q = self._hessian(inside).reshape(K * n, K * n)
        last = np.arange(n - 1, K * n, n)
        Q[np.ix_(last, last)] += np.mean(np.diag(Q)[last])  # no curvature along a shift of all intercepts
        Q, g = self._solvable(Q, g.ravel(), np.tile(ridge, K), last)
        step = self._least(Q, Q @ before.ravel() - g, inside, before.ravel()) - before.ravel()
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
            first = max(first, moved)
            if moved <= _SETTLED * first:
                break
        step = after - before
        bend = np.sum(weight * (np.einsum("ki,ki,ki->i", p, changes, changes) - mean**2)) + np.sum(ridge * step**2)
        return step, float(bend)

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
        np.add.at(active, self._labels[inside], self.params.coef[inside] != 0)
        chosen = ((active > 0) | ~(np.sqrt(size) <= _NEAR * self._strength[:, None])).any(axis=1)
        return np.where(inside, np.append(chosen, True)[self._labels], True)

    def _least(self, Q, c, inside: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Minimise a model of one class, or of all together, plus the norms of its blocks, (variable,)."""
        labels, K = self._labels[inside], len(Q) // (len(inside) + 1)  # classes of the model
        if np.array_equal(self._labels, np.arange(self.d)):
            l1 = np.tile(np.append(self._strength[labels], 0.0), K)
            return least_of_l1_models(Q[None], c[None], l1[None], before[None])[0]
        m = len(self._strength)
        every = np.concatenate([np.append(np.where(labels < 0, -1, labels + k * m), -1) for k in range(K)])
        return least_of_model(Q, c, every[:-1], np.tile(self._strength, K), before)

    # ---------------------------------------------------------------- curvature

    def _columns(self, rows: slice, inside: np.ndarray) -> np.ndarray:
        """Centred features of some rows, and a 1, (row, variable)."""
        x = self.problem.X[rows][:, inside]
        x = np.asarray(x.toarray() if scipy.sparse.issparse(x) else x, np.float64) - self._mean[inside]
        return np.append(x, np.ones((len(x), 1)), axis=1)

    def _probabilities(self, rows: slice) -> np.ndarray:
        return softmax(self.problem.scores(self.params, rows), axis=1)

    def _hessian(self, inside: np.ndarray) -> np.ndarray:
        """Hessian of the loss in some features of all classes, (class, variable, class, variable)."""

        def tile(rows):
            z = self._columns(rows, inside)
            return (curvature_of_rows(z, self._probabilities(rows), self.problem.totals[rows]),)

        return sums_over_tiles(tile, self.problem.n_rows, _ROWS)[0] / self.problem.n_rows


class _OneFit:
    """What the stopping rule reads of a problem."""

    def __init__(self, null_objective: np.ndarray, n_rows: int):
        self.null_objective, self.n_rows = null_objective, n_rows
