"""Common parts of softmax and multinomial estimators with a cross-validation: choice of the strength, and files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from ...checks import check_choice, check_positive
from ...data.classes import ClassTraining
from ...data.times import time_axis
from ...display import ProgressBar
from ...engine.problem import Params
from ...engine.result import LoopOptions
from ...numerics import DataLike, PerRow, Seed
from ...status import Status
from ...stochastic import SoftmaxProblem
from .. import class_fit
from ..class_model import ClassModel
from ..cv_fits import CrossValidated, read_tried
from ..model import WholeFit
from ..model_reports import ClassReport
from ..parameters import key_for
from ..population_glm_cv import PENALTIES
from ..scores import choose_strengths, make_folds
from .fits import ClassFits, ExactPath, SampledFits, stopped
from .held_out import default_strengths

_SHARED = "tol", "max_epochs", "step", "step_decay", "certify", "fit_intercept"  # with the estimator of one strength


class NoStream:
    """Replacement of the ``partial_fit`` of a base class."""

    def __get__(self, model, kind: type):
        """Raise AttributeError: there is none."""
        raise AttributeError(
            f"{kind.__name__} has no partial_fit, because a stream has no folds; use a model with the strength_ found."
        )


class ClassModelCV(CrossValidated, ClassModel):
    """Common part of `SoftmaxGLMCV` and `MultinomialGLMCV`, which are also models of classes."""

    partial_fit = NoStream()
    early_stopping = False  # of no fit: folds choose the strength
    _alone: ClassVar[type]  # the estimator of one strength
    _scorings: ClassVar[tuple[str, ...]]
    _fitted = (
        "strengths_", "cv_scores_", "best_strength_", "one_se_strength_", "cv_gap_", "cv_gap_is_bound_",
        "cv_converged_",
    )  # fmt: skip

    def __init__(
        self,
        strengths: ArrayLike | None = None,
        cv: Any = 5,
        scoring: str = "log-likelihood",
        rule: str = "best",
        solver_name: str = "auto",
        solver_kwargs: Mapping[str, Any] | None = None,
        cv_tol: float = 1e-5,
        tol: float = 1e-6,
        max_epochs: int | None = None,
        step: str | float = "tune",
        step_decay: float = 0.9,
        certify: bool = True,
        random_state: Seed = 0,
        verbose: bool = False,
        fit_intercept: bool = True,
        regularizer: str = "Ridge",
        groups: ArrayLike | Mapping[str, Any] | None = None,
        l1_ratio: float = 0.5,
    ): ...

    def fit(self, X: DataLike, y: DataLike, sample_weight: PerRow = None, offset: PerRow = None) -> Self:
        """Choose the strength and fit the coefficients of all classes.

        Parameters
        ----------
        X, y, sample_weight, offset :
            As in :meth:`SoftmaxGLM.fit` and :meth:`MultinomialGLM.fit`. Weights count in fits and scores.

        Raises
        ------
        ValueError
            If no fold has held-out rows of classes that are in the rows fitted.
        KeyboardInterrupt
            If Ctrl-C came before any fold was scored (see Notes of the class).

        Warns
        -----
        ConvergenceWarning
            As in `SoftmaxGLM`, for the last fit.
        UserWarning
            If the best strength is the smallest or largest of those tried, where it gains more than a thousandth of
            their range over the next one; if some folds have held-out rows of classes that are not in the rows fitted,
            some fits of the cross-validation did not converge, Ctrl-C ended it early, or ``cv`` is an IntervalSet of
            more than 20 epochs; and as in `SoftmaxGLM`.
        """
        with WholeFit(self):
            self._check_words()
            tried, cv_tol = read_tried(self.strengths, self._alone.__name__), check_positive("cv_tol", self.cv_tol)
            axis = time_axis(X) or time_axis(y)
            data, y = self._read(X, y, sample_weight, offset, reset=True)
            self._warn_of_columns(data)
            self._fit_all(data, make_folds(self.cv, data, axis, self._split_by(data)), tried, cv_tol)
            self._warn_of_classes(data, y)
        return self

    def _check_words(self) -> None:
        check_choice("regularizer", self.regularizer, PENALTIES)
        check_choice("scoring", self.scoring, self._scorings)
        check_choice("rule", self.rule, ("best", "one-se"))

    @abstractmethod
    def _split_by(self, data: ClassTraining) -> np.ndarray:
        """Return the target that a splitter gets, (row,)."""

    def _strength(self, total_weight: float = 1) -> float:
        """Return the chosen strength."""
        return getattr(self, "strength_", np.nan)

    def _fit_all(self, data: ClassTraining, folds, tried: np.ndarray | None, cv_tol: float) -> None:
        """Fit all strengths to all folds, and the one chosen to all rows."""
        solver, (epochs, tol, *_, verbose) = self._make_solver(), self._read_parameters()
        seed, seen = self._seed(), data.class_totals > 0
        self.strength_ = 1.0  # of the problem that the others are made from
        problem = self._make_problem(data, seen)
        solver = class_fit.auto_solver(problem) if solver is None else solver
        self._check_solver(solver, problem)
        strengths = default_strengths(problem) if tried is None else tried
        options = class_fit.exact_options(problem, cv_tol, epochs)
        if type(solver) in class_fit.EXACT.values():
            path: Any = ExactPath(solver, self._penalty, options, key_for(solver, seed))
        else:
            same = {name: getattr(self, name) for name in _SHARED}
            path = SampledFits(self._alone, solver, random_state=seed, **same)
        fits = ClassFits(data, folds, strengths, path, self._make_problem, self.scoring)
        what = f"{len(strengths)} strengths x {folds.test.shape[1]} folds, {problem.subject}"
        with closing(ProgressBar(what, fits.status.size + 1, "fit", verbose)) as bar:
            interrupted = fits.run(bar)
            best, chosen = self._choose(fits)
            with bar.phase(f"last fit, {problem.subject}"):
                params, report = self._fit_last(fits, chosen, problem, seen, replace(options, tol=tol), interrupted)
            bar.advance()
            bar.finish(not interrupted and report.status not in (Status.INTERRUPTED, Status.MAX_EPOCHS))
        tuning = {"regularizer_strength": strengths, "score": fits.scores, "converged": self.cv_converged_}
        self._keep(params, replace(report, tuning=tuning | {"chosen": np.array(self.strength_)}), seen)
        fits.warn(best, interrupted)

    def _choose(self, fits: ClassFits) -> tuple[int, int]:
        """Set the results of the cross-validation, and return the indices of the best and of the chosen strength."""
        if np.isnan(fits.scores).any(axis=0).all():
            raise ValueError(
                "no fold of cv can be scored: none has held-out rows of classes that are in the rows it is fitted to "
                "(or, for D2, that differ in their shares). If rows are sorted by class, shuffle them, or pass "
                "cv=sklearn.model_selection.StratifiedKFold(5)."
            )
        among = np.ones((len(fits.strengths), 1), bool)
        best, one_se = (int(of[0]) for of in choose_strengths(fits.scores[:, :, None], among))
        chosen = best if self.rule == "best" else one_se
        self.strengths_, self.cv_scores_ = fits.strengths, fits.scores
        self.best_strength_, self.one_se_strength_, self.strength_ = (
            float(fits.strengths[which]) for which in (best, one_se, chosen)
        )
        self.cv_gap_, self.cv_gap_is_bound_ = fits.gap, fits.gap_is_bound
        self.cv_converged_ = fits.status == Status.CONVERGED
        return best, chosen

    def _fit_last(
        self, fits: ClassFits, chosen: int, problem: SoftmaxProblem, seen: np.ndarray, options: LoopOptions,
        interrupted: bool,
    ) -> tuple[Params, ClassReport]:  # fmt: skip
        """Fit all rows at the strength chosen, an exact solver from the mean of the folds' fits."""
        data, path = fits.data, fits.path
        problem = problem.at_strength(*self._penalty(problem.n_features, self.strength_))
        if problem.n_classes < 2:
            return class_fit.judge_certain(problem, data)
        if isinstance(path, SampledFits) and not interrupted:
            model = path.model(self.strength_)
            model._fit(data)
            return Params(model.coef_[:, seen], model.intercept_[seen]), model.report_
        start, solution = fits.mean_params(chosen, problem, seen), None
        if not interrupted:
            with suppress(KeyboardInterrupt):
                solution = path.run(problem, start, options)
        if solution is None:
            solution = stopped(problem, start or problem.null_params(), options.tol, path.name)
        theorem = class_fit.theorem_of(problem, solution)
        return solution.params, class_fit.report_of_classes(problem, solution, data, gap_theorem=theorem)

    def _read_state(self, header: dict, arrays: dict) -> None:
        super()._read_state(header, arrays)
        self.best_strength_, self.one_se_strength_ = float(self.best_strength_), float(self.one_se_strength_)
