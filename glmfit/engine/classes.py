"""A softmax model as a fit of the engine: its classes share every step, and one verdict."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import scipy.sparse

from .._status import Status
from ..problems._basis import spectral_basis
from ..problems.base import Evaluation, Params
from ..solvers._result import LoopOptions, Solution
from .cg import Descent
from .class_bounds import WholeHessian, bound_by_hessian, has_small_hessian, is_separated, may_be_separated
from .class_rows import ClassRows
from .group import Group
from .loop import Run
from .metric import OwnMetric, SharedMetric
from .tiles import Slopes

_ROTATED = 2048  # features up to which eigenvectors are worth their price
_SETTLED = 1e-4  # of the target: an estimate that more steps will not change
_PROOFS = 4  # that failed, before what cannot be proved is left at that
_FAR = 30.0  # change of a row's scores that turns any probability into any other
_ROUNDING, _ROUNDING_OF_SINGLES = 1e-14, 1e-3  # of F
_TIGHTER = 0.1  # factor of the aim after a proof that failed
_NEWTON_PRODUCTS, _LEFT = 100, 0.1  # with the Hessian, for an estimate of the gap; share of the gradient it may leave
# Offsets whose range is beyond the first are cooled, from a temperature at which it is the second; the rest is how.
_FAR_APART, _CLOSE_TOGETHER, _COOLING, _COOL, _COOLING_STEPS = 20.0, 5.0, 4.0, 1e-3, 30


class ClassDescent(Descent):
    """Descent of all classes together: their gradients are one, and they take steps of one length.

    Arrays (class,) of lengths, slopes and estimates have the same value for all.

    Parameters
    ----------
    rows : ClassRows
        Where they are.
    basis : SpectralBasis
        Of the features.
    strength : float
        Of the ridge.
    null_objective : numpy.ndarray
        F of the model of class frequencies, (class,): gains are measured from there.
    coef, intercept : numpy.ndarray
        Of centred features, float64.

    Attributes
    ----------
    objective : float
        F where it is.
    is_small : bool
        Whether the whole Hessian may be formed.
    """

    aim = 0.9
    slack = 1.0  # gradients need not fall in every step
    stale = False  # whether steps leave the gradient as it was

    def __init__(self, rows: ClassRows, basis, strength: float, null_objective, coef, intercept):
        self.basis, self.strength, self._null_objective = basis, strength, null_objective
        self.ridge, self._whole = np.full(coef.shape, strength), None
        self.is_small = has_small_hessian(rows.n_rows, len(coef) + rows.fit_intercept, len(intercept))
        super().__init__(rows, self.metric(np.ones(len(intercept))), self.ridge, coef, intercept)
        self.gained = self._null_objective - self.objective
        self._renew_shared()
        cost = coef.shape[0] / 2 if rows.has_blocks else np.inf
        self.hessian_cost = np.full(len(intercept), cost)

    def metric(self, curvature) -> SharedMetric:
        """Metric of the spectral basis and a mean curvature of every class, (class,)."""
        whiten = self.basis.whiten
        squares = whiten.power(2) if scipy.sparse.issparse(whiten) else whiten**2
        return SharedMetric(self.basis, curvature, squares.T @ self.ridge)

    def _renew_shared(self) -> None:
        self.shared = self.metric(self.rows.mean_curvature())
        self.judge()
        self.forget()

    def arrive(self, loss_gradient: Slopes) -> None:
        """Take over gradient and value of the loss at the parameters."""
        self.objective = self._value(self.coef)
        super().arrive(loss_gradient)

    def _value(self, coef) -> float:
        """F where the rows are, which has these coefficients."""
        return self.rows.loss + self.strength / 2 * float(np.sum(coef**2))

    def first_length(self, slope, bend) -> np.ndarray:
        """Length of a Newton step along the line, or of one that moves scores by much, where that promises too much."""
        length = super().first_length(slope, bend)
        if not -length[0] * slope[0] / 2 <= self.objective:  # no loss is below 0
            with np.errstate(divide="ignore"):
                length = np.fmin(length, _FAR / self.rows.reach(np.arange(len(length))))
        return length

    def rises(self, p: Slopes, lengths: np.ndarray) -> np.ndarray:
        """Whether F is higher at lengths along p: where rows are all but certain, slopes turn at once."""
        after = self._value(self.coef + lengths * p.coef)
        rounding = _ROUNDING_OF_SINGLES if self.rows.is_single else _ROUNDING
        return np.full(len(lengths), not after <= self.objective + rounding * abs(self.objective))

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
        """What a bound of the gap by duality will be, about; by the whole Hessian where there is next to no ridge."""
        estimate = self.decrement
        if self.strength > 0:
            by_duality = float(np.sum(self.gradient.coef**2)) / (2 * self.strength)
            estimate = min(by_duality, estimate / self.settled)
        return np.full(len(self.intercept), estimate)

    def inner(self, a: Slopes, b: Slopes) -> np.ndarray:
        """Inner product of all classes together, (class,)."""
        return np.full(len(self.intercept), super().inner(a, b).sum())

    def ridge_between(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Product of all classes' coefficients weighted by the ridge, (class,)."""
        return np.full(len(self.intercept), super().ridge_between(a, b).sum())

    def precondition(self, g: Slopes) -> Slopes:
        """Divide by the curvature of classes by themselves, across the shift that all may share."""
        z = super().precondition(g) if self._whole is None else self._whole.solve(g)
        intercept = z.intercept - z.intercept.mean() if self.rows.fit_intercept else np.zeros_like(z.intercept)
        return Slopes(z.coef - z.coef.mean(axis=1, keepdims=True), intercept)

    def renew_metrics(self, fits: np.ndarray, scale: np.ndarray, kin: np.ndarray | None = None) -> None:
        """Take every class's own block of the Hessian as its metric, or the whole where they did not serve."""
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

    def step(self, moving: np.ndarray) -> None:
        """Take one step, and now and then the classes' curvature for a new metric."""
        super().step(moving)
        self.gained, n = self._null_objective - self.objective, int(self.n_steps[0])
        if self.own[0] is None and n & (n - 1) == 0:
            self._renew_shared()

    def part(self, index: np.ndarray) -> ClassDescent:
        """Return itself: classes stay together."""
        return self

    def refresh(self) -> None:
        """Evaluate all there is anew: one pass."""
        self.arrive(self.rows.place(self.coef, self.intercept))

    def newton_gap(self) -> float:
        """Estimate the gap to second order, by conjugate gradients on the model of the present Hessian; not a bound."""
        _, gain, _ = minimise(
            lambda p: self.with_ridge(self.rows.products(p[:-1], p[-1]), p),
            lambda r: stacked(self.precondition(Slopes(r[:-1], r[-1]))),
            stacked(self.gradient), _NEWTON_PRODUCTS, _LEFT,
        )  # fmt: skip
        return max(gain, self.decrement)

    def with_ridge(self, curved: Slopes, p: np.ndarray) -> np.ndarray:
        """Add the product of the ridge and a direction to that of the loss; both (feature + 1, class)."""
        return np.vstack([curved.coef + self.ridge * p[:-1], curved.intercept])


def stacked(slopes: Slopes) -> np.ndarray:
    """Coefficients, and intercepts below, (feature + 1, class)."""
    return np.vstack(slopes)


def minimise(product, precondition, gradient: np.ndarray, most: int, left: float, flat: float = 0.0):
    """Minimise a quadratic by conjugate gradients, every iterate of which is lower than the one before.

    Parameters
    ----------
    product, precondition : callable
        Multiply the curvature, and an approximate inverse, with an array like the gradient.
    gradient : numpy.ndarray
        At 0.
    most : int
        Products.
    left : float
        Share of the gradient's norm, in the preconditioner, at which to stop.
    flat : float
        Curvature that counts as none.

    Returns
    -------
    x, down, gradient :
        Where it ends, by how much lower that is, and the gradient there.
    """
    r = -gradient
    x, down = np.zeros_like(r), 0.0
    z = p = precondition(r)
    rz = float(np.vdot(r, z))
    enough = left**2 * rz
    for _ in range(most):
        if not rz > 0:
            break
        curved = product(p)
        bend = float(np.vdot(p, curved))
        if not bend > flat * float(np.vdot(p, p)):
            break  # nothing is left, or nothing bends: such directions stay where they are
        a = rz / bend
        x, r, down = x + a * p, r - a * curved, down + a * rz / 2
        z = precondition(r)
        new = float(np.vdot(r, z))
        if new <= enough:
            break
        p, rz = z + new / rz * p, new
    return x, down, -r


class ClassRun(Run):
    """One call of `solve` for a softmax problem.

    Its bounds are by weak duality; for small models without a ridge, or next to none, by the whole Hessian.
    """

    def __init__(self, problem, options: LoopOptions, seed: int = 0, start: Params | None = None, descent=ClassDescent):
        self.softmax, self._descent, self.held_bytes = problem, descent, None
        super().__init__(_Classes(problem), options, seed, start, None)
        self.gap[:] = problem.null_objective - problem.saturated_loss  # no loss is below the smallest
        self.most_steps, self._lowest = options.max_epochs, np.inf

    def run(self) -> Solution:
        """Fit; the solution has one entry where that of a population has one for each neuron."""
        found = super().run()
        history = {k: v[:, :1] if v.ndim == 2 else v for k, v in found.history.items()}
        names = ("status", "gap", "gap_is_bound", "target", "objective", "null_objective", "epochs")
        return replace(found, history=history, **{n: getattr(found, n)[:1] for n in names})

    def _begin(self) -> None:
        self.beginning = self

    def rows(self, fits=None) -> ClassRows:
        """Return the rows, which are nowhere yet."""
        # A ridge lets weak duality prove, in double precision, what steps in single precision come to.
        single = self._descent is ClassDescent and self.softmax.strength > 0 and self.softmax.offset is None
        return ClassRows(self.softmax, self.problem.basis.mean, single)

    def descent(self, rows: ClassRows, fits=None) -> Descent:
        """Put the model at its start; conjugate gradients begin at class frequencies where those are better."""
        start, free = self.start, self._descent is ClassDescent
        if start is None or (free and not self.softmax.objective(start) <= self.softmax.null_objective):
            start = self._cooled()
        coef, intercept = start
        coef = np.asarray(coef, np.float64)
        coef = coef - coef.mean(axis=1, keepdims=True)
        basis = self.problem.basis
        if basis.rank < len(coef) and self.softmax.strength > 0:  # along what rows do not show there is the ridge alone
            coef = basis.whiten @ (basis.unwhiten @ coef)
        intercept = np.asarray(intercept, np.float64) + rows.mean @ coef
        intercept = (intercept - intercept.mean()) * rows.fit_intercept
        return self._descent(rows, basis, self.softmax.strength, self.problem.null_objective, coef, intercept)

    def _cooled(self) -> Params:
        """Where to begin: at class frequencies, or nearer where offsets set classes far apart.

        Rows that are all but certain have next to no curvature, and steps made for it go nowhere. With scores divided
        by a temperature they are not certain; it falls to 1 (docs/theory/softmax_newton.md).
        """
        problem, params = self.softmax, self.softmax.null_params()
        spread = 0.0 if problem.offset is None else float(np.max(np.ptp(problem.offset, axis=1)))
        temperature = spread / _CLOSE_TOGETHER if _FAR_APART < spread < np.inf else 0.0
        options = LoopOptions(max_epochs=_COOLING_STEPS, negligible=_COOL * problem.n_rows)
        while temperature > 1:
            start = Params(*(a / temperature for a in params))
            soft = ClassRun(problem.soften(temperature), options, self.seed, start).run()
            params = Params(*(temperature * a for a in soft.params))
            temperature /= _COOLING
        return params

    def _step(self, group: Group, moving: np.ndarray, target: np.ndarray) -> None:
        super()._step(group, moving, target)
        cg, n = group.descent, len(moving)
        self.bar.say(f"gap estimate {cg.decrement:.1e}")
        if not cg.stale:
            row_evals = int((self.passes + cg.rows.passes) * self.problem.n_rows)
            known = np.full(n, cg.objective), np.full(n, cg.decrement), np.zeros(n, bool)
            self.history.add(cg.n_steps[0], row_evals, time.perf_counter() - self.clock, *known)

    def _goals(self, fits, objective) -> np.ndarray:
        return self._targets(fits, objective)

    def _renew(self, group: Group, which: np.ndarray, alone: bool = False) -> None:
        super()._renew(group, which, alone=True)

    def params_of(self, cg: Descent) -> Params:
        """Parameters of the features as they are, without the shift that all classes may share."""
        coef = cg.coef - cg.coef.mean(axis=1, keepdims=True)
        intercept = cg.intercept - cg.rows.mean @ coef
        return Params(coef, (intercept - intercept.mean()) * cg.rows.fit_intercept)

    # ---------------------------------------------------------------- proofs

    def _look(self, group: Group, dual: bool = False) -> np.ndarray:
        """Bound the gap by duality, and keep where the fit is unless that is worse than before."""
        cg = group.descent
        params = self.params_of(cg)
        gap = self.softmax.certify_gap(params)
        objective, bound = np.full(len(cg.intercept), gap.objective), gap.bound
        self.passes += cg.rows.passes + 1
        cg.rows.passes = 0.0
        worse = not gap.objective <= self.objective[0] + self.problem.rounding_of(params, objective)[0]
        if not worse:
            self.params, self.objective = params, objective
        group.by_duality = np.full(len(cg.intercept), np.inf if worse else bound)
        group.looks += 1
        return np.full(len(cg.intercept), worse)

    def _sharpened(self, group: Group, astray: bool) -> Group:
        """Go on in double precision, from the best point that is known if steps in single led astray."""
        cg = group.descent
        if astray:
            cg.coef, cg.intercept = self.params.coef, self.params.intercept + cg.rows.mean @ self.params.coef
        cg.rows.sharpen()
        cg.refresh()
        cg.forget()
        group.trace = [cg.estimate]
        return group

    def _prove(self, group: Group, target: np.ndarray) -> list[Group]:
        """Bound the gap; where the bound is too large, and more steps may help, the fit goes on."""
        cg, fits = group.descent, group.fits
        if cg.stale:
            cg.refresh()
        broken, stalled = not np.isfinite(cg.estimate[0]), bool(cg.estimate[0] > group.aim[0] * target[0])
        worse = bool(self._look(group)[0])
        bound, estimate = group.by_duality[0], cg.decrement
        if cg.rows.is_single and not bound <= self._targets(fits, self.objective)[0]:
            return [self._sharpened(group, worse or broken)]
        spent = cg.n_steps[0] >= self.most_steps
        target, group.proofs = self._targets(fits, self.objective), group.proofs + 1
        apart = not broken and not worse and self.softmax.strength == 0 and is_separated(self.softmax, cg.rows)
        if not (bound <= target[0] or broken or worse or apart):
            estimate = cg.newton_gap()
            near = target[0] * (1 if self.softmax.strength == 0 else cg.settled)
            if (estimate <= near or stalled or spent) and cg.is_small:
                bound = min(
                    bound, bound_by_hessian(cg, self.objective[0]) + self.softmax.rounding_of_scores(self.params)
                )
        known = bool(np.isfinite(bound))
        self.gap[:], self.is_bound[:] = bound if known else estimate, known
        self.target[:], self.epochs[:] = target, cg.n_steps
        stuck = stalled and not self.objective[0] < self._lowest - _ROUNDING * abs(self.objective[0])
        self._lowest = min(self._lowest, self.objective[0])
        near = self.gap[0] <= target[0]
        if near and known:
            self.status[:] = Status.CONVERGED
        elif (broken and not worse) or not np.isfinite(self.objective[0]):
            self.status[:] = Status.NON_FINITE
        elif not (spent or stuck or worse or apart or (near and group.proofs[0] >= _PROOFS)):
            self._note(int(cg.n_steps[0]))
            group.aim = group.aim * (1 if stalled else _TIGHTER)
            cg.refresh()
            cg.forget()
            group.step(np.ones(len(fits), bool), target, self.most_steps)
            return [group]
        elif self.softmax.strength == 0 and not known and (apart or may_be_separated(self.softmax, cg.rows) is True):
            self.status[:] = Status.SEPARABLE
        elif near:
            self.status[:] = Status.UNPROVED
        elif not spent:
            self.status[:] = Status.PRECISION_FLOOR
        self.open[:] = False
        self._note(int(cg.n_steps[0]))
        return []


class _Classes:
    """What a run asks of a softmax problem: as many fits as classes, one kin."""

    def __init__(self, problem):
        self.softmax, self.n_neurons = problem, problem.n_classes
        self.n_rows, self.n_features, self.dtype = problem.n_rows, problem.n_features, np.dtype(np.float64)
        self.subject, self.penalty = problem.subject, problem.penalty
        self.in_memory, self.silent, self.kin = (
            True,
            np.zeros(problem.n_classes, bool),
            np.zeros(problem.n_classes, int),
        )
        self.null_objective = np.full(problem.n_classes, problem.null_objective)
        self.mean_count = np.full(problem.n_classes, problem.totals.mean())

    def null_params(self) -> Params:
        return self.softmax.null_params()

    def evaluate(self, params: Params) -> Evaluation:
        found = self.softmax.evaluate(params)
        return found._replace(objective=np.full(self.n_neurons, found.objective))

    def rounding_of(self, params: Params, objective: np.ndarray) -> np.ndarray:
        return 128 * np.finfo(float).eps * np.abs(objective) + self.softmax.rounding_of_scores(params)

    @cached_property
    def basis(self):
        """Spectral basis of the features; of sparse or very many ones their standard deviations alone."""
        X, weight = self.softmax.X, self.softmax.totals / self.softmax.totals.mean()
        if not scipy.sparse.issparse(X) and X.shape[1] <= _ROTATED:
            even = np.all(weight == weight[0])
            return spectral_basis(X, None if even else weight, centred=self.softmax.fit_intercept)
        mean = np.asarray(X.T @ weight, np.float64).ravel() / self.n_rows * self.softmax.fit_intercept
        squares = X.multiply(X) if scipy.sparse.issparse(X) else np.square(X, dtype=np.float64)
        variance = np.asarray(squares.T @ weight, np.float64).ravel() / self.n_rows - mean**2
        varies = variance > 1e-14 * variance.max(initial=0.0)
        deviation = np.sqrt(np.where(varies, variance, 1.0))
        whiten, unwhiten = (scipy.sparse.diags_array(varies * a).tocsr() for a in (1 / deviation, deviation))
        return SimpleNamespace(mean=mean, deviation=deviation, whiten=whiten, unwhiten=unwhiten, rank=int(varies.sum()))
