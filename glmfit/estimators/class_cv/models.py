"""Softmax and multinomial models whose strength is chosen by cross-validation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from ...checks import check_positive
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
from ..multinomial_glm import MultinomialGLM
from ..parameters import key_for
from ..scores import choose_strengths, make_folds
from ..softmax_glm import SoftmaxGLM
from .fits import ClassFits, ExactPath, SampledFits, default_strengths, stopped

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

    @abstractmethod
    def _split_by(self, data: ClassTraining) -> np.ndarray:
        """Return the target that a splitter gets, (row,)."""

    def _strength(self, total_weight: float = 1) -> float:
        """Return the chosen strength."""
        return getattr(self, "strength_", np.nan)

    def _fit_all(self, data: ClassTraining, folds, tried: np.ndarray | None, cv_tol: float) -> None:
        """Fit all strengths to all folds, and the one chosen to all rows."""
        solver, how = self._make_solver(), self._read_parameters()
        seed, seen = self._seed(), data.class_totals > 0
        self.strength_ = 1.0  # of the problem that the others are made from
        problem = self._make_problem(data, seen)
        solver = class_fit.auto_solver(problem) if solver is None else solver
        self._check_solver(solver, problem)
        strengths = default_strengths(problem) if tried is None else tried
        options = class_fit.exact_options(problem, cv_tol, how.epochs)
        if type(solver) in class_fit.EXACT.values():
            path: Any = ExactPath(solver, self._penalty, options, key_for(solver, seed))
        else:
            same = {name: getattr(self, name) for name in _SHARED}
            path = SampledFits(self._alone, solver, random_state=seed, **same)
        fits = ClassFits(data, folds, strengths, path, self._make_problem, self.scoring)
        what = f"{len(strengths)} strengths x {folds.test.shape[1]} folds, {problem.subject}"
        with closing(ProgressBar(what, fits.status.size + 1, "fit", how.verbose)) as bar:
            interrupted = fits.run(bar)
            best, chosen = self._choose(fits)
            with bar.phase(f"last fit, {problem.subject}"):
                params, report = self._fit_last(fits, chosen, problem, seen, replace(options, tol=how.tol), interrupted)
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
        return class_fit.judge_exact(problem, solution, data)

    def _read_state(self, header: dict, arrays: dict) -> None:
        super()._read_state(header, arrays)
        self.best_strength_, self.one_se_strength_ = float(self.best_strength_), float(self.one_se_strength_)


class SoftmaxGLMCV(ClassModelCV, SoftmaxGLM):
    r"""Softmax model of labels whose penalty strength, one for all classes, is chosen by cross-validation.

    Every strength is fitted to every fold and scored on the rows held out from it; the model is then fitted to all rows
    at the strength chosen. Objective and conventions are those of `SoftmaxGLM`.

    Parameters
    ----------
    strengths : array of float, optional
        Strengths to try, >= 0, at least two different ones. By default, for a ridge, eight over six decades, down from
        the strength at which the objective is at most a hundredth of what it can be below that of class frequencies
        (proved without offsets); for the others twelve over three decades, down from the smallest at which there are no
        coefficients.
    cv : int, pynapple IntervalSet, splitter or iterable
        Folds, as in `PopulationGLMCV`; a splitter gets the labels (``StratifiedKFold(5)`` for rows sorted by label).
    scoring : {"log-likelihood", "accuracy"}
        Score of the held-out rows, weighted mean: log-probability of the label, or whether it is the most probable.
    rule : {"best", "one-se"}
        As in `PopulationGLMCV`.
    solver_name, step, step_decay, certify, fit_intercept :
        As in `SoftmaxGLM`, for all fits; "auto" chooses as for all rows. An exact solver fits a fold from the strongest
        strength, which starts at class frequencies, to the weakest, each starting from the one before, and all rows
        from the mean of the folds' fits. A solver that samples makes every fit on its own, with its own step.
    cv_tol, tol, max_epochs : float, float, int, optional
        Exact solvers: relative gap at which the fits of the cross-validation stop, and at which the last one does;
        budget of every fit, as in `SoftmaxGLM`.
    regularizer : {"Ridge", "Lasso", "ElasticNet", "GroupLasso"}
        Penalty; those with kinks need an exact solver.
    groups, l1_ratio :
        As in `SoftmaxGLM`.

    Attributes
    ----------
    classes_, coef_, intercept_, n_features_in_, feature_names_in_ :
        As in `SoftmaxGLM`; ``report_`` and ``n_iter_`` are of the last fit, and ``report_.tuning`` has what was tried.
    strengths_ : numpy.ndarray
        Strengths tried, increasing, (strength,).
    cv_scores_ : numpy.ndarray
        Scores of the held-out rows, (strength, fold); nan for a fold that cannot be scored, or was not reached.
    strength_, best_strength_, one_se_strength_ : float
        Strength chosen by ``rule``, and by each of the rules.
    cv_gap_, cv_gap_is_bound_, cv_converged_ : numpy.ndarray
        Distance from the optimum of every fit, whether proved, and whether below its target, (strength, fold). A fit
        that samples never converges.

    Notes
    -----
    Guarantee: for the last fit, as in `SoftmaxGLM`; the fits of the cross-validation have the same certificates, in
    ``cv_gap_``. That the strength chosen is the best is not proved: it rests on held-out scores.
    Held-out rows of a class that is not in the rows fitted are excluded from the score of their fold, at all
    strengths, with a warning: no strength can predict them, and they would make every score minus infinity. Rows with
    a NaN in X or offset, or without a label, are dropped.
    Cost: as of separate fits, from nearby starts; the rows of a fold are copied, one fold at a time.

    Ctrl-C keeps the folds that were fitted and scored at every strength, with a warning that says how many;
    ``strength_`` is chosen by them, and ``coef_`` is the mean of their fits: *interrupted* in ``report_`` unless it is
    proved to have converged. Missing results are nan (False in ``cv_converged_``). If no fold was finished,
    KeyboardInterrupt is raised, and the model is unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import SoftmaxGLMCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 20))
    >>> place = np.argmax(X[:, :3] + rng.gumbel(size=(300, 3)), axis=1)
    >>> model = SoftmaxGLMCV(strengths=[1e-4, 1e-2, 1]).fit(X, place)
    >>> model.cv_scores_.shape
    (3, 5)
    >>> model.strength_
    0.01
    """

    _alone = SoftmaxGLM
    _scorings = "log-likelihood", "accuracy"

    def _split_by(self, data: ClassTraining) -> np.ndarray:
        return data.pairs.label  # each row has one


class MultinomialGLMCV(ClassModelCV, MultinomialGLM):
    r"""Multinomial model of counts whose penalty strength, one for all categories, is chosen by cross-validation.

    Every strength is fitted to every fold and scored on the rows held out from it; the model is then fitted to all rows
    at the strength chosen. Objective and conventions are those of `MultinomialGLM`.

    Parameters
    ----------
    strengths, cv, rule :
        As in `SoftmaxGLMCV`; a splitter gets the total of every row.
    scoring : {"log-likelihood", "D2"}
        Score of the held-out rows: weighted mean log-likelihood per row, with the multinomial coefficient; or share of
        the deviance explained over their own constant shares.
    solver_name, step, step_decay, certify, fit_intercept, regularizer, groups, l1_ratio :
        As in `SoftmaxGLMCV`.
    cv_tol, tol, max_epochs :
        As in `SoftmaxGLMCV`.

    Attributes
    ----------
    classes_, coef_, intercept_, n_features_in_, feature_names_in_ :
        As in `MultinomialGLM`; ``report_`` and ``n_iter_`` are of the last fit.
    strengths_, cv_scores_, strength_, best_strength_, one_se_strength_ :
        As in `SoftmaxGLMCV`; for D2 a score is also nan where constant shares are exact.
    cv_gap_, cv_gap_is_bound_, cv_converged_ :
        As in `SoftmaxGLMCV`.

    Notes
    -----
    Guarantee, cost and Ctrl-C: as in `SoftmaxGLMCV`. Held-out counts of a category without counts in the rows fitted
    are excluded from the score of their fold, for all strengths, with a warning: the score is about the shares of the
    other counts of the row.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import MultinomialGLMCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 10))
    >>> drive = np.exp(X[:, :2] @ rng.normal(size=(2, 4)))
    >>> counts = np.stack([rng.multinomial(5, d / d.sum()) for d in drive])
    >>> model = MultinomialGLMCV(strengths=[1e-4, 1e-2, 1, 100]).fit(X, counts)
    >>> model.cv_scores_.shape
    (4, 5)
    """

    _alone = MultinomialGLM
    _scorings = "log-likelihood", "D2"

    def _split_by(self, data: ClassTraining) -> np.ndarray:
        row, _, weight = data.pairs
        return np.bincount(row, weight, data.n_rows) / data.weight
