"""Descent of a softmax model: its classes share every step, and a metric where all their curvature is cheap."""

import numpy as np
import scipy.sparse

from ..cg import LOOK_BACK, Descent
from ..exact.quadratic import minimise
from ..metric import OwnMetric, SharedMetric
from .bounds import WholeHessian, has_small_hessian
from .rows import ClassRows

_SETTLED = 1e-4  # of the target: an estimate that more steps will not change
_FAR = 30.0  # change of a row's scores that turns any probability into any other
_ROUNDING, _ROUNDING_OF_SINGLES = 1e-14, 1e-3  # of F
_FALL, _STEPS = 1e-6, 4  # relative fall of F, within this many steps, that is not rounding
_NEWTON_PRODUCTS, _LEFT = 100, 0.1  # with the Hessian, for an estimate of the gap; share of the gradient it may leave


class ClassDescent(Descent):
    """Joint descent of all classes: they have one gradient, and take steps of one length.

    Arrays (class,) of lengths, slopes and estimates have the same value for all, and gains are measured from the model
    of class frequencies. ``is_small`` states whether the whole Hessian may be formed.
    """

    aim = 0.9
    slack = 1.0  # gradients need not fall in every step
    stale = False  # whether steps leave the gradient as it was
    may_rise = False  # whether F may be higher after a step, though something above it is lower
    lowest = -np.inf  # lower bound of F
    _estimated: tuple = None, None  # the state that the last estimate is of, and the estimate

    def __init__(self, rows: ClassRows, basis, strength: float, null_objective, at: np.ndarray):
        self.basis, self.strength, self._null_objective = basis, strength, null_objective
        d, n = len(at) - 1, at.shape[1]
        self._objectives: list[float] = []  # of the last steps
        self._renewed = -LOOK_BACK  # step in which the classes got metrics of their own
        self._whole, self.is_small = None, has_small_hessian(rows.n_rows, d + rows.fit_intercept, n)
        super().__init__(rows, self.metric(np.ones(n)), np.full((d, n), strength), at)
        self.gained = self._null_objective - self.objective
        self._renew_shared()
        if not rows.has_blocks:
            self.hessian_cost[:] = np.inf

    def metric(self, curvature) -> SharedMetric:
        """Metric of the spectral basis and a mean curvature of every class, (class,)."""
        whiten = self.basis.whiten
        squares = whiten.power(2) if scipy.sparse.issparse(whiten) else whiten**2
        return SharedMetric(self.basis, curvature, self.strength * np.ravel(squares.sum(axis=0))[:, None])

    def is_ready(self, target: np.ndarray) -> np.ndarray:
        """Whether to attempt a proof: near enough, or no nearer for some steps in which F did not fall either."""
        ready, near = super().is_ready(target), self.estimate <= self.aims * target
        before = self._objectives[0] if len(self._objectives) > _STEPS else np.nan
        falls = bool(before - self.objective > _FALL * abs(before))
        return ready & (near | (not falls))

    def is_slow(self, target: np.ndarray, moving: np.ndarray) -> np.ndarray:
        """Whether new metrics would pay, once some steps have shown what the last ones are worth."""
        return super().is_slow(target, moving) & (self.n_steps >= self._renewed + LOOK_BACK)

    def _renew_shared(self) -> None:
        self.shared = self.metric(self.rows.mean_curvature())
        self.judge()
        self.forget()

    def arrive(self, loss_gradient: np.ndarray, *since: np.ndarray) -> None:
        """Store gradient and value of the loss at the parameters."""
        self.objective = self._value(self.coef)
        self._objectives = [*self._objectives[-_STEPS:], self.objective]
        super().arrive(loss_gradient, *since)

    def _value(self, coef) -> float:
        """Return F at the position of the rows, with its coefficients."""
        return self.rows.loss + self.strength / 2 * float(np.sum(coef**2))

    def first_length(self, slope, bend) -> np.ndarray:
        """Length of a Newton step along the line, limited to a large move of scores if it promises too much."""
        length = super().first_length(slope, bend)
        if not -length[0] * slope[0] / 2 <= self.objective:  # no loss is below 0
            with np.errstate(divide="ignore"):
                length = np.fmin(length, _FAR / self.rows.reach(np.arange(len(length))))
        return length

    def rises(self, p: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Whether F is higher at lengths along p: where rows are nearly certain, slopes change abruptly."""
        after = self._value(self.coef + lengths * p[:-1])
        rounding = _ROUNDING_OF_SINGLES if self.rows.is_single else _ROUNDING
        return np.full(len(lengths), not after <= self.objective + rounding * abs(self.objective))

    def _sure_step(self, fits: np.ndarray, slope, bend) -> np.ndarray:
        """Length that is proved to descend, of some fits; 0 if curvature is estimated from some rows."""
        return super()._sure_step(fits, slope, bend) if self.rows.keeps else np.zeros_like(slope)

    @property
    def decrement(self) -> float:
        """Half the squared norm of the gradient in the inverse metric: not a bound of the gap."""
        return float(self.squared_norm[0]) / 2

    @property
    def may_form_all(self) -> bool:
        """Whether the whole Hessian costs less than the steps so far, by flops."""
        size = self.coef.size
        return self.is_small and self.n_steps[0] > size / 4 + 3 * size**2 / self.rows.n_rows

    @property
    def settled(self) -> float:
        """Share of the target below which the decrement asks for a proof by the whole Hessian, if there is a ridge."""
        return 1.0 if self.may_form_all else _SETTLED

    @property
    def estimate(self) -> np.ndarray:
        """Estimate of the gap's bound by duality, or by the whole Hessian if there is almost no ridge."""
        now, (of, _) = (self.squared_norm, self.objective, int(self.n_steps[0]), self.lowest), self._estimated
        if of is None or of[0] is not now[0] or of[1:] != now[1:]:
            self._estimated = now, self._estimate()
        return self._estimated[1]

    def _estimate(self) -> np.ndarray:
        estimate = self.decrement
        if self.strength > 0:
            by_duality = float(np.vdot(self.gradient[:-1], self.gradient[:-1])) / (2 * self.strength)
            estimate = min(by_duality, estimate / self.settled)
        return np.full(len(self.intercept), min(estimate, self.objective - self.lowest))

    def inner(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Inner product of all classes together, (class,)."""
        return np.full(len(self.intercept), np.vdot(a, b))

    def precondition(self, g: np.ndarray) -> np.ndarray:
        """Divide by the curvature of each class, orthogonal to the shift that all may share."""
        z = super().precondition(g) if self._whole is None else self._whole.solve(g)
        z = z - z.mean(axis=1, keepdims=True)
        z[-1] *= self.rows.fit_intercept
        return z

    def renew_metrics(self, fits: np.ndarray, scale: np.ndarray, kin: np.ndarray | None = None) -> None:
        """Take every class's own block of the Hessian as its metric, or the whole if they did not help."""
        self._renewed = int(self.n_steps[0])
        if self.own[0] is None or not self.may_form_all:
            self._whole = None
            super().renew_metrics(fits, scale, kin)
        else:
            self._whole = WholeHessian(self)
            self.judge()
            self.forget()

    def metric_of(self, matrix: np.ndarray, k: int, scale: np.ndarray) -> OwnMetric:
        """Metric of one class from its block of the Hessian without the ridge."""
        matrix[np.diag_indices_from(matrix)] += self.rows.least_curvature[k]
        if not self.rows.fit_intercept:
            matrix[-1], matrix[:, -1], matrix[-1, -1] = 0, 0, 1
        return super().metric_of(matrix, k, scale)

    def advance(self, moving: np.ndarray, goal=None, most_steps: int | None = None) -> None:
        """Take one step, and sometimes a new metric from the classes' curvature."""
        before = self.at
        super().advance(moving)
        self.rows.guesses = not np.array_equal(self.at, before)  # else the guess was too far off
        self.gained, n = self._null_objective - self.objective, int(self.n_steps[0])
        if self.own[0] is None and n & (n - 1) == 0:
            self._renew_shared()
            self.trace[-1] = self.estimate

    def refresh(self) -> None:
        """Evaluate everything again: one pass."""
        self.arrive(self.rows.place(self.at))

    def newton_gap(self) -> float:
        """Estimate the gap to second order, by conjugate gradients on the model of the current Hessian; not a bound."""

        def product(p):
            return self.rows.products(p) + self.ridge * p

        _, gain, _ = minimise(product, self.precondition, self.gradient, _NEWTON_PRODUCTS, _LEFT)
        return max(gain, self.decrement)
