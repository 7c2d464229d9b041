"""All fits of a cross-validation of classes, fold by fold: their default strengths, scores and warnings."""

import warnings
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
from scipy.special import gammaln, log_softmax

from ...checks import warn_user
from ...data.classes import ClassTraining
from ...display import ProgressBar
from ...engine import ConjugateGradients, ProximalNewton
from ...engine.problem import Params
from ...engine.result import LoopOptions, Solution
from ...status import Status
from ...stochastic import SoftmaxProblem
from ..class_fit import NO_DEVIANCE, tiles_of_scores
from ..cv_fits import warn_of_fits
from ..scores import Folds

_KEPT = 1e8  # coefficients of all strengths, at most, whose mean over the folds is kept to start the last fit
_FLAT = 1e-3  # of the range of the scores: a gain over the next strength that does not count
_LITTLE = 0.01  # share of what could be explained
_ROUNDING = 1e-12  # of means of the features
_TRIED, _DECADES = 8, 6
_OF_KINKS, _DECADES_OF_KINKS = 12, 3


class ExactPath:
    """Fits by an exact solver, each starting from the one before; the first starts at class frequencies.

    ``penalty`` returns the strength of the ridge and the penalty that has kinks, for a number of features and a
    strength.
    """

    def __init__(self, solver, penalty: Callable, options: LoopOptions, key=None):
        self._solver, self._penalty, self._options, self._key = solver, penalty, options, key
        self.name = type(solver).__name__

    def run(self, problem: SoftmaxProblem, start: Params | None, options: LoopOptions) -> Solution:
        """Fit a problem."""
        without = problem.penalty.smooth and isinstance(self._solver, ProximalNewton)  # a strength of 0 has no kinks
        solver = ConjugateGradients() if without else self._solver
        return solver.run(problem, start, key=self._key, options=options).only()

    def fit(self, problem, train, seen, strength: float, start: Params | None) -> tuple[Params, Status, float, bool]:
        """Fit the problem of a fold: parameters, status, gap and whether it is a bound; Ctrl-C raises."""
        if problem.n_classes < 2:
            return problem.null_params(), Status.CONVERGED, 0.0, True
        problem = problem.at_strength(*self._penalty(problem.n_features, strength))
        solution = self.run(problem, start, self._options)
        if solution.interrupted:
            raise KeyboardInterrupt
        return solution.params, Status(solution.status), solution.gap, solution.gap_is_bound


class SampledFits:
    """Fits by a solver that follows a schedule, each on its own: its result depends on its start."""

    def __init__(self, kind: type, solver, **parameters):
        own = {f.name: getattr(solver, f.name) for f in fields(solver) if f.init}
        self._kind, self.name = kind, type(solver).__name__
        self._parameters = {**parameters, "solver_name": self.name, "solver_kwargs": own}

    def model(self, strength: float):
        """Estimator of one strength, not fitted."""
        return self._kind(regularizer_strength=strength, **self._parameters)

    def fit(self, problem, train: ClassTraining, seen: np.ndarray, strength: float, start=None):
        """Fit the rows of a fold, as `ExactPath.fit` does."""
        model = self.model(strength)
        with warnings.catch_warnings():  # the last fit warns of it
            warnings.filterwarnings("ignore", "X has columns far from 0", UserWarning)
            model._fit(train)
        report = model.report_
        if report.status == Status.INTERRUPTED:
            raise KeyboardInterrupt
        params = Params(model.coef_[:, seen], model.intercept_[seen])
        return params, report.status, report.gap, report.gap_is_bound


class ClassFits:
    """Fits of every strength to every fold, and their held-out scores: nan, and INTERRUPTED, for missing ones.

    The strengths increase. ``lay_out`` makes the problem of some rows and the classes in them.
    """

    def __init__(
        self, data: ClassTraining, folds: Folds, strengths: np.ndarray, path: ExactPath | SampledFits,
        lay_out: Callable[[ClassTraining, np.ndarray], SoftmaxProblem], scoring: str,
    ):  # fmt: skip
        self.data, self.folds, self.strengths, self.path = data, folds, strengths, path
        self._lay_out, self._scoring = lay_out, scoring
        shape = len(strengths), folds.train.shape[1]
        self.scores, self.gap = np.full((2, *shape), np.nan)  # (strength, fold), as all that follow
        self.status, self.gap_is_bound = np.full(shape, int(Status.INTERRUPTED)), np.zeros(shape, bool)
        self._left_out = np.zeros(shape[1])  # share of the held-out counts
        n_features, n_classes = data.X.shape[1], len(data.class_totals)
        keeps = shape[0] * (n_features + 1) * n_classes <= _KEPT
        self._sum = np.zeros((shape[0], n_features + 1, n_classes)) if keeps else None
        self._n_folds = np.zeros(n_classes)  # that have seen a class

    @property
    def is_done(self) -> np.ndarray:
        """Folds that were fitted and scored at every strength, (fold,)."""
        return (self.status != Status.INTERRUPTED).all(axis=0)

    def run(self, bar: ProgressBar) -> bool:
        """Fit and score fold after fold; True if Ctrl-C came after the first."""
        try:
            for f in range(self.scores.shape[1]):
                self._fit_fold(f, bar)
        except KeyboardInterrupt:
            if not self.is_done.any():
                raise
            return True
        return False

    def _fit_fold(self, f: int, bar: ProgressBar) -> None:
        """Fit one fold, the strongest strength first; nothing is kept of an unfinished fold."""
        train, test = (self.data.take(of[:, f]) for of in self.folds)
        seen = train.class_totals > 0
        held, problem = test.of_classes(seen), self._lay_out(train, seen)
        every, outcomes, scores, params = [], [], [], None
        for strength in self.strengths[::-1]:
            bar.say(f"fold {f + 1}, strength {strength:.2g}")
            params, *outcome = self.path.fit(problem, train, seen, float(strength), params)
            outcomes.append(outcome)
            scores.append(np.nan if held is None else score_rows(held, params, self._scoring))
            if self._sum is not None:
                every.append(np.vstack(params))
            bar.advance()
        self.status[::-1, f], self.gap[::-1, f], self.gap_is_bound[::-1, f] = zip(*outcomes, strict=True)
        self.scores[::-1, f] = scores
        self._left_out[f] = test.class_totals[~seen].sum() / test.class_totals.sum()
        if self._sum is not None:
            self._sum[:, :, seen] += np.array(every[::-1])
            self._n_folds += seen

    def mean_params(self, s: int, problem: SoftmaxProblem, seen: np.ndarray) -> Params | None:
        """Average the folds' fits at a strength, for the classes of all rows; None if these are not kept.

        A class that no fold has fitted gets its frequency.
        """
        if self._sum is None:
            return None
        n = self._n_folds[seen]
        mean = self._sum[s][:, seen] / np.maximum(n, 1)
        mean[-1] = np.where(n > 0, mean[-1], problem.null_params().intercept)
        if problem.penalty.smooth:
            mean -= mean.mean(axis=1, keepdims=True)
        return Params(mean[:-1], mean[-1])

    def warn(self, best: int, interrupted: bool) -> None:
        """Warn of fits that are missing, not scored or not proved, and of a best strength at the end of those tried."""
        done, n_folds = self.is_done, self.scores.shape[1]
        if interrupted:
            warn_user(
                f"Ctrl-C stopped the cross-validation with {int(done.sum())} of {n_folds} folds scored: strength_ is "
                "chosen by these, and report_ says how far from the optimum coef_ is."
            )
        lacking, share = int(np.sum(self._left_out > 0)), self._left_out.max()
        if lacking:
            warn_user(
                f"{lacking} of {n_folds} folds have held-out rows of classes that are not in the rows fitted, which no "
                f"strength can predict: they are excluded from the scores (up to {100 * share:.2g} % of a fold). If "
                "rows may be shuffled, cv=sklearn.model_selection.StratifiedKFold(5) puts all classes into all folds."
            )
        status = self.status[:, done]
        failed = np.isin(status, (Status.MAX_EPOCHS, Status.PRECISION_FLOOR, Status.SEPARABLE, Status.NON_FINITE))
        warn_of_fits(failed, status == Status.UNPROVED, "; drop the weakest strengths.")
        self._warn_of_the_end(best)

    def _warn_of_the_end(self, best: int) -> None:
        """Warn of a best strength at the end of those tried, unless the one next to it is as good."""
        mean, last = self.scores[:, ~np.isnan(self.scores).any(axis=0)].mean(axis=1), len(self.strengths) - 1
        if best not in (0, last) or self.strengths[best] == 0:
            return
        if not mean[best] - mean[1 if best == 0 else last - 1] > _FLAT * np.ptp(mean):
            return
        which, advice = "smallest", "a smaller one may predict better. Pass smaller ones as well"
        if best:
            which, advice = "largest", "a larger one may predict better, if the features matter. Pass larger ones"
        warn_user(f"the best strength, {self.strengths[best]:.2g}, is the {which} of those tried: {advice}.")


def stopped(problem: SoftmaxProblem, params: Params, tol: float, solver_name: str) -> Solution:
    """Make the outcome of a fit that Ctrl-C prevented: its start, with the bound that is proved for it."""
    gap = problem.certify_gap(params)
    known, target = bool(np.isfinite(gap.bound)), tol * max(problem.null_objective - gap.objective, 0.0)
    solution = Solution(
        params=params, status=Status.INTERRUPTED, gap_is_bound=known, target=target, objective=gap.objective,
        null_objective=problem.null_objective, epochs=0, seconds_run=0.0, seconds_compile=0.0,
        solver_name=solver_name, interrupted=True,
    )  # fmt: skip
    if not known:
        return solution
    return replace(solution, gap=gap.bound, status=Status.CONVERGED if gap.bound <= target else Status.INTERRUPTED)


def score_rows(data: ClassTraining, params: Params, scoring: str) -> float:
    """Score rows whose classes the parameters all have: weighted mean over rows.

    The log-likelihood includes the multinomial coefficient (0 for labels); D2 compares with the best constant shares of
    these rows, and is nan if those are exact.
    """
    row, label, weight = data.pairs
    n, total = data.n_rows, 0.0
    for rows, scores in tiles_of_scores(data.X, data.offset, *params):
        some = slice(*np.searchsorted(row, (rows.start, rows.stop)))
        at, k = row[some] - rows.start, label[some]
        right = np.argmax(scores, axis=1)[at] == k if scoring == "accuracy" else log_softmax(scores, axis=1)[at, k]
        total += float(weight[some] @ right)
    if scoring == "accuracy":
        return total / n
    if scoring == "D2":
        constant, saturated = data.extreme_losses()
        explainable = constant - saturated
        return 1 - (-total / n - saturated) / explainable if explainable > NO_DEVIANCE else np.nan
    count = weight / data.weight[row]
    totals = np.bincount(row, count, n)
    return (total + float(data.weight @ gammaln(totals + 1) - data.weight[row] @ gammaln(count + 1))) / n


def default_strengths(problem: SoftmaxProblem) -> np.ndarray:
    """Choose eight over six decades, down from the one at which next to nothing is learnt.

    If the penalty has kinks, twelve over three decades, down from the smallest without coefficients. For a ridge, by
    convexity ``F_null - F <= |G|^2 / (2 strength)``, with G the gradient in the coefficients at class frequencies
    (without offsets their intercepts are optimal): at the strongest this is a hundredth of the difference between the
    loss of class frequencies and that of a model that is right about every row.
    """
    slope = problem.evaluate(problem.null_params()).grad_coef
    if not problem.penalty.smooth:
        strongest = float(np.max(problem.penalty.maximal_strength(slope)))
        largest = float(np.max(np.abs(problem.class_sums))) / problem.n_rows
        return (strongest if strongest > _ROUNDING * largest else 1.0) * np.logspace(-_DECADES_OF_KINKS, 0, _OF_KINKS)
    explainable = problem.null_objective - problem.saturated_loss
    squared, size = float(np.sum(slope**2)), float(np.sum((problem.class_sums / problem.n_rows) ** 2))
    learnable = explainable > NO_DEVIANCE and squared > _ROUNDING**2 * size
    strongest = squared / (2 * _LITTLE * explainable) if learnable else 1.0
    return strongest * np.logspace(-_DECADES, 0, _TRIED)
