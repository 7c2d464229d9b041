"""A softmax model as a fit of the engine: its classes share one verdict."""

from dataclasses import replace

import numpy as np

from ...status import Status
from ..cg import Descent
from ..exact.recession import may_be_separated
from ..loop import Run
from ..problem import Evaluation, Params
from ..result import LoopOptions, Solution
from .bounds import bound_by_hessian, is_separated
from .descent import ClassDescent
from .rows import ClassRows, LeanClassRows

_KEPT = 2e6  # scores of all rows up to which they are kept: memory is slower than products with the features
_PROOFS = 4  # failed proofs after which a fit stays unproved
_ROUNDING = 1e-14  # of F
_TIGHTER = 0.1  # factor of the aim after a proof that failed
_LARGE = 1e12  # number whose cube single precision holds
# Offsets with a range beyond the first are cooled, from a temperature at which it is the second; the rest are settings.
_FAR_APART, _CLOSE_TOGETHER, _COOLING, _COOL, _COOLING_STEPS = 20.0, 5.0, 4.0, 1e-3, 30


class ClassRun(Run):
    """One fit of a softmax problem.

    Its bounds are by weak duality; for small models without a ridge, or next to none, by the whole Hessian.
    """

    def __init__(self, problem, options: LoopOptions, seed: int = 0, start: Params | None = None, descent=ClassDescent):
        if not problem.penalty.smooth:
            raise ValueError(f"the penalty is {problem.penalty.name}, which has kinks; use ProximalNewton.")
        self.softmax, self._descent = problem, descent
        super().__init__(_Classes(problem), options, seed, start, None)
        self.gap[self.open] = problem.null_objective - problem.saturated_loss  # no loss is below the smallest
        self.most_steps, self._lowest = options.max_epochs, np.inf

    def run(self) -> Solution:
        """Fit; the solution has one entry where that of a population has one for each neuron."""
        found = super().run()
        history = {k: v[:, :1] if v.ndim == 2 else v for k, v in found.history.items()}
        return replace(found.each(lambda of_classes: of_classes[:1]), history=history)

    def _begin(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def rows(self, fits=None) -> ClassRows:
        """Return the rows, which have no position yet."""
        # A ridge lets weak duality prove, in double precision, the result of steps in single precision.
        single = self._descent is ClassDescent and self.softmax.strength > 0 and self.softmax.offset is None
        single = single and _holds_in_single(self.softmax)
        lean = self._descent is ClassDescent and self.softmax.n_rows * self.softmax.n_classes > _KEPT
        return (LeanClassRows if lean else ClassRows)(self.softmax, self.problem.basis.mean, single)

    def descent(self, rows: ClassRows, fits=None) -> Descent:
        """Place the model at its start; conjugate gradients start at class frequencies if those are better."""
        start, free = self.start, self._descent is ClassDescent
        if start is None or (free and not self.softmax.objective(start) <= self.softmax.null_objective):
            start = self._cooled()
        coef, intercept = start
        coef = np.asarray(coef, np.float64)
        coef = coef - coef.mean(axis=1, keepdims=True)
        basis = self.problem.basis
        if basis.rank < len(coef) and self.softmax.strength > 0:  # along what rows do not show, only the ridge acts
            coef = basis.whiten @ (basis.unwhiten @ coef)
        intercept = np.asarray(intercept, np.float64) + rows.mean @ coef
        intercept = (intercept - intercept.mean()) * rows.fit_intercept
        at = np.vstack([coef, intercept])
        group = self._descent(rows, basis, self.softmax.strength, self.problem.null_objective, at)
        if self.softmax.strength > 0:
            group.lowest = self.softmax.saturated_loss
        return group

    def _cooled(self) -> Params:
        """Return the start: class frequencies, or a nearer model if offsets set classes far apart.

        Rows that are nearly certain have almost no curvature, and steps based on it make no progress. With scores
        divided by a temperature, which falls to 1, they are not certain (docs/theory/softmax_newton.md).
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

    def _step(self, group: Descent, moving: np.ndarray, target: np.ndarray) -> None:
        super()._step(group, moving, target)
        n = len(moving)
        self.bar.say(f"gap estimate {group.decrement:.1e}")
        if not group.stale:
            row_evals = int((self.passes + group.rows.passes) * self.problem.n_rows)
            known = np.full(n, group.objective), np.full(n, group.decrement), np.zeros(n, bool)
            self.history.add(group.n_steps[0], row_evals, self.clock.seconds, *known)

    def _renew(self, group: Descent, which: np.ndarray, alone: bool = False) -> None:
        super()._renew(group, which, alone=True)

    def params_of(self, cg: Descent) -> Params:
        """Parameters of the original features, without the shift that all classes may share."""
        coef = cg.coef - cg.coef.mean(axis=1, keepdims=True)
        intercept = cg.intercept - cg.rows.mean @ coef
        return Params(coef, (intercept - intercept.mean()) * cg.rows.fit_intercept)

    # ---------------------------------------------------------------- proofs

    def _look(self, group: Descent, dual: bool = False) -> np.ndarray:
        """Bound the gap by duality, and keep the point of the fit unless it is worse than before."""
        params = self.params_of(group)
        gap = self.softmax.certify_gap(params)
        objective = np.full(len(group.intercept), gap.objective)
        self.passes += group.rows.passes + 1
        group.rows.passes = 0.0
        worse = not gap.objective <= self.objective[0] + self.problem.rounding_of(params, objective)[0]
        if not worse:
            self.params, self.objective = params, objective
        group.by_duality = np.full(len(group.intercept), np.inf if worse else min(gap.bound, self._above_lowest()))
        group.looks += 1
        return np.full(len(group.intercept), worse)

    def _above_lowest(self) -> float:
        """Bound the gap by the loss of a model that is right about every row, F's lower bound; inf without a ridge."""
        if self.softmax.strength == 0:
            return np.inf
        rounding = self.problem.rounding_of(self.params, self.objective)[0]
        return float(self.objective[0] - self.softmax.saturated_loss + rounding)

    def _keep_interrupted(self) -> None:
        bound, at = self.gap[0] if self.is_bound[0] else np.inf, self.objective[0]
        super()._keep_interrupted()
        if self.groups and np.isfinite(self.objective[0]):  # a proof still holds if F has fallen since
            bound = min(bound + self.objective[0] - at, self._above_lowest())
            if np.isfinite(bound):
                self.gap[:], self.is_bound[:] = bound, True

    def _sharpened(self, group: Descent, astray: bool) -> Descent:
        """Continue in double precision, from the best known point if steps in single precision failed."""
        if astray:
            coef, intercept = self.params
            group.at = np.vstack([coef, intercept + group.rows.mean @ coef])
        group.rows.sharpen()
        group.refresh()
        group.forget()
        group.trace = [group.estimate]
        return group

    def _prove(self, group: Descent, target: np.ndarray) -> list[Descent]:
        """Bound the gap; if the bound is too large, and more steps may help, the fit continues."""
        fits = group.fits
        if group.stale:
            group.refresh()
        broken, stalled = not np.isfinite(group.estimate[0]), bool(group.estimate[0] > group.aims[0] * target[0])
        worse = bool(self._look(group)[0])
        bound, estimate = group.by_duality[0], group.decrement
        spent_single = worse or broken or stalled or group.rows.keeps or group.is_small  # no more to gain from it
        if group.rows.is_single and spent_single and not bound <= self._targets(fits, self.objective)[0]:
            return [self._sharpened(group, worse or broken)]
        spent = group.n_steps[0] >= self.most_steps
        target, group.proofs = self._targets(fits, self.objective), group.proofs + 1
        apart = not broken and not worse and self.softmax.strength == 0 and is_separated(self.softmax, group.rows)
        if not (bound <= target[0] or broken or worse or apart):
            estimate = group.newton_gap() if group.is_small or not np.isfinite(bound) else group.decrement
            near = target[0] * (1 if self.softmax.strength == 0 else group.settled)
            if (estimate <= near or stalled or spent) and group.is_small:
                rounding = self.softmax.rounding_of_scores(self.params)
                bound = min(bound, bound_by_hessian(group, self.objective[0]) + rounding)
        known = bool(np.isfinite(bound))
        if not (worse and group.may_rise and self.is_bound[0]):  # else the proof of a better point stays
            self.gap[:], self.is_bound[:] = bound if known else estimate, known
        self.target[:], self.epochs[:], worse = target, group.n_steps, worse and not group.may_rise
        stuck = stalled and not self.objective[0] < self._lowest - _ROUNDING * abs(self.objective[0])
        self._lowest = min(self._lowest, self.objective[0])
        near = self.gap[0] <= target[0]
        if near and known:
            self.status[:] = Status.CONVERGED
        elif (broken and not worse) or not np.isfinite(self.objective[0]):
            self.status[:] = Status.NON_FINITE
        elif not (spent or stuck or worse or apart or (near and group.proofs[0] >= _PROOFS)):
            self._note(int(group.n_steps[0]))
            group.aims *= 1 if stalled else _TIGHTER
            if group.rows.keeps:
                group.refresh()
                group.forget()
            group.advance(np.ones(len(fits), bool))
            return [group]
        elif (
            self.softmax.strength == 0
            and not known
            and (apart or may_be_separated(self.softmax, group.rows.columns) is True)
        ):
            self.status[:] = Status.SEPARABLE
        elif near:
            self.status[:] = Status.UNPROVED
        elif not spent:
            self.status[:] = Status.PRECISION_FLOOR
        self.open[:] = False
        self._note(int(group.n_steps[0]))
        return []


def _holds_in_single(problem) -> bool:
    """Whether features, counts and products of them stay well within the range of single precision."""
    basis, largest = problem.basis, max(float(problem.totals.max()), 1.0)
    varies = basis.deviation[basis.deviation > 0]
    largest = max(largest, float(np.max(np.abs(basis.mean) + basis.deviation, initial=0.0)))
    return largest < _LARGE and float(np.min(varies, initial=1.0)) > 1 / _LARGE


class _Classes:
    """Interface of a softmax problem to a run: as many fits as classes, one kin."""

    def __init__(self, problem):
        self.softmax, self.n_neurons = problem, problem.n_classes
        self.n_rows, self.n_features, self.dtype = problem.n_rows, problem.n_features, np.dtype(np.float64)
        self.subject, self.penalty = problem.subject, problem.penalty
        self.basis = problem.basis
        self.in_memory, self.silent = True, np.zeros(problem.n_classes, bool)
        self.kin = np.zeros(problem.n_classes, int)
        self.null_objective = np.full(problem.n_classes, problem.null_objective)
        self.size_of_counts = np.full(problem.n_classes, problem.totals.mean())

    def first_status(self) -> np.ndarray:
        return np.full(self.n_neurons, int(Status.MAX_EPOCHS))

    def null_params(self) -> Params:
        return self.softmax.null_params()

    def evaluate(self, params: Params) -> Evaluation:
        found = self.softmax.evaluate(params)
        return found._replace(objective=np.full(self.n_neurons, found.objective))

    def rounding_of(self, params: Params, objective: np.ndarray, fits=None) -> np.ndarray:
        return 128 * np.finfo(float).eps * np.abs(objective) + self.softmax.rounding_of_scores(params)
