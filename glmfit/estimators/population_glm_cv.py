"""Penalty strengths chosen per neuron by cross-validation, all fits in one solve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_positive
from ..data.counts import read_training
from ..data.times import time_axis
from ..display import ProgressBar, counted
from ..engine import ConjugateGradients, ProximalNewton
from ..numerics import DataLike, PerRow, Seed
from ..status import Status
from .cv_fits import CrossValidated, Fits, default_strengths, read_tried
from .dispersion import NO_FIT
from .model import WholeFit
from .parameters import by_name, check_ratio, read_solver
from .population_glm import at_dispersion, penalty_family
from .population_model import PROVED, PopulationModel, at_ends
from .scores import choose_strengths, make_folds, score_folds
from .streaming import as_arrays

SOLVERS = by_name(ConjugateGradients, ProximalNewton)


class PopulationGLMCV(CrossValidated, PopulationModel):
    r"""GLM of one or many neurons, with a penalty strength per neuron chosen by cross-validation.

    All strengths, folds and neurons are fitted together and share computations; the model is then fitted to all rows
    at the strengths chosen. Objective and conventions are those of `PopulationGLM`.

    Parameters
    ----------
    inverse_link_function, regularizer : str or None, {"Ridge", "Lasso", "ElasticNet", "GroupLasso"}
        As in `PopulationGLM`.
    l1_ratio : float
        Ratio of the elastic net, in (0, 1].
    strengths : array of float, optional
        Strengths to try, >= 0, at least two different ones. By default, eight from 1e-6 to 1 for the ridge; for the
        others twelve, from the smallest at which no neuron has a coefficient down to a thousandth of it (that of a
        model without the features in no group).
    groups :
        For GroupLasso, as in `PopulationGLM`.
    cv : int, pynapple IntervalSet, splitter or iterable
        Folds: a number of contiguous blocks of rows (neighbouring bins are correlated, shuffled rows would leak);
        epochs, each held out in turn; several IntervalSets, each held out as a whole (``[epochs[i::5] for i in
        range(5)]`` makes five folds of many epochs); a scikit-learn splitter; or pairs of (train, test) row indices.
    scoring : {"log-likelihood", "D2"}
        Score of the held-out rows, per neuron: mean log-likelihood per bin, or share of the deviance explained over
        their own constant rate. Likelihoods of Gaussian and gamma responses use their dispersion without features.
    rule : {"best", "one-se"}
        Take the strength of the best mean score, or the strongest one within a standard error of it. The standard
        error is that of the difference from the best over the folds.
    solver_name : {"auto", "ConjugateGradients", "ProximalNewton"}
        Solver of the cross-validation. ConjugateGradients (for the ridge) and ProximalNewton (for the others) step all
        folds of a strength together, from the fits to all rows. "auto" chooses the one for the penalty.
    cv_tol, tol, max_epochs : float, float, int
        Relative gap at which the fits of the cross-validation stop; tolerance and budget of the last fit, as in
        `PopulationGLM`. The epochs (or steps) limit the cross-validation as well.
    max_memory : float
        Bytes for the fits of the cross-validation, without the design; neurons are fitted in groups that need no more.
    observation_model, dispersion :
        As in `PopulationGLM`. A dispersion that is not given is estimated once, with the default ridge and all rows.
    feature_mask : array of shape (n_features, n_neurons), optional
        As in `PopulationGLM`.

    Attributes
    ----------
    strengths_ : numpy.ndarray
        Strengths tried, increasing, (strength,).
    cv_scores_ : numpy.ndarray
        Scores of the held-out rows, (strength, fold, neuron); nan where the score is not defined: a neuron without
        spikes in the rows fitted, or for D2 in those held out. -inf where the rate of a held-out row overflows.
    strength_, best_strength_, one_se_strength_ : numpy.ndarray
        Strength chosen by ``rule``, and by each of the rules, (neuron,).
    coef_path_, intercept_path_ : numpy.ndarray
        Parameters of the fits to all rows, (strength, feature, neuron) and (strength, neuron).
    cv_gap_, cv_gap_is_bound_, cv_converged_ : numpy.ndarray
        Distance from the optimum of every fit, whether proved, and whether below its target, (strength, fold, neuron).
    coef_, intercept_ :
        As in `PopulationGLM`; these, ``report_`` and ``n_iter_`` are of the last fit.

    Notes
    -----
    Guarantee: for the last fit, as in `PopulationGLM`. The fits of the cross-validation have the same certificates, in
    ``cv_gap_``; for l1 penalties these are of the problem with all features. A fit that is proved leaves the
    computation. Cost: the steps of every fit, from a nearby start.

    Ctrl-C keeps the results so far; a warning says how many. Strengths are fitted from the strongest to the
    weakest. Those that were fitted to all folds are scored (a second Ctrl-C ends this), and ``strength_`` is chosen
    among them for every neuron. ``coef_`` is the current fit to all rows there: *interrupted* in ``report_`` unless it
    is proved to have converged. Missing results are nan (False in ``cv_converged_``); a neuron without a score has a
    constant rate. If no neuron has a score, KeyboardInterrupt is raised, and the model is unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import PopulationGLMCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(600, 20))
    >>> counts = rng.poisson(np.logaddexp(0, X[:, :2] @ [0.5, -0.5]))
    >>> model = PopulationGLMCV(strengths=[1e-4, 1e-2, 1]).fit(X, counts)
    >>> model.cv_scores_.shape
    (3, 5, 1)
    >>> float(model.strength_[0])
    0.01
    """

    _fitted = (
        "strengths_", "cv_scores_", "strength_", "best_strength_", "one_se_strength_", "coef_path_", "intercept_path_",
        "cv_gap_", "cv_gap_is_bound_", "cv_converged_",
    )  # fmt: skip
    _scorings = "log-likelihood", "D2"

    def __init__(
        self,
        inverse_link_function: str | Callable | None = None,
        regularizer: str = "Ridge",
        l1_ratio: float = 0.5,
        strengths: ArrayLike | None = None,
        cv: Any = 5,
        scoring: str = "log-likelihood",
        rule: str = "best",
        solver_name: str = "auto",
        solver_kwargs: Mapping[str, Any] | None = None,
        cv_tol: float = 1e-5,
        tol: float = 1e-6,
        max_epochs: int = 200,
        max_memory: float = 2e9,
        random_state: Seed = 0,
        verbose: bool = False,
        observation_model: str = "Poisson",
        dispersion: float | ArrayLike | None = None,
        groups: ArrayLike | Mapping[str, Any] | None = None,
        feature_mask: ArrayLike | None = None,
    ): ...

    def fit(
        self,
        X: DataLike,
        y: DataLike,
        sample_weight: PerRow = None,
        offset: PerRow = None,
        exposure: PerRow = None,
        epochs: Mapping[Any, Any] | None = None,
    ) -> Self:
        """Choose the strengths and fit the coefficients of every neuron.

        Parameters
        ----------
        X, y, sample_weight, offset, exposure, epochs :
            As in :meth:`PopulationGLM.fit`; in memory.

        Raises
        ------
        KeyboardInterrupt
            If Ctrl-C came before any strength could be scored (see Notes of the class).

        Warns
        -----
        ConvergenceWarning
            If some neurons did not converge in the last fit.
        UserWarning
            As in :meth:`PopulationGLM.fit`; if some neurons have no spikes in the rows fitted of some folds, which are
            skipped for them, some fits of the cross-validation did not converge, Ctrl-C ended it early, ``cv`` is an
            IntervalSet of more than 20 epochs, or even the smallest strength leaves next to nothing of the coefficients
            although the features are informative.
        """
        with WholeFit(self):
            self._check_words()
            check_ratio(self.l1_ratio)
            solver = read_solver(self.solver_name, self.solver_kwargs, SOLVERS, self._get_param_names())
            strengths, cv_tol = read_tried(self.strengths), check_positive("cv_tol", self.cv_tol)
            seed, options = self._seed(), self._read_options()
            data = read_training(self, *as_arrays(X, y), sample_weight, offset, exposure, epochs)
            folds = make_folds(self.cv, data, time_axis(X) or time_axis(y))
            observation = at_dispersion(self, data)
            penalty = penalty_family(self, data, self.l1_ratio)
            strengths = default_strengths(penalty, data, observation) if strengths is None else strengths

            fits = Fits(data, observation, penalty, strengths, folds, solver, options, cv_tol)
            n_neurons = data.Y.shape[1]
            what = f"{len(strengths)} strengths x {folds.test.shape[1]} folds, {counted(n_neurons, 'neuron')}"
            with closing(ProgressBar(what, fits.status.size + n_neurons, "fit", options.verbose)) as bar:
                scores, interrupted = self._score(fits, fits.run(bar))
                chosen = self._choose(fits, scores)
                problem, solution = fits.finish(chosen, interrupted, seed, bar)
                if not solution.interrupted:
                    bar.finish(not any(np.any(of.status == Status.MAX_EPOCHS) for of in (fits, solution)))
            self._keep(problem, solution, data, observation, fits.form)
            fits.warn(problem, scores, solution.interrupted)
        return self

    def _score(self, fits: Fits, interrupted: bool) -> tuple[np.ndarray, bool]:
        """Score the comparable strengths, and return whether Ctrl-C was pressed: the first one does not end this."""
        scores = np.full_like(fits.gap[:, :-1], np.nan)
        some = slice(np.argmax(fits.comparable.any(axis=1)), None)  # the strongest come first
        try:
            coef, intercept = fits.coef[some, :-1], fits.intercept[some, :-1] + fits.form.shift
            observation = fits.observation
            if observation.has_scale:
                observation = observation.with_dispersion(fits.form.scale)
            scores[some] = score_folds(observation, fits.data, fits.folds, coef, intercept, self.scoring)
        except KeyboardInterrupt:
            if interrupted:
                raise
            return self._score(fits, True)
        unfitted = np.isin(fits.status[:, :-1], NO_FIT)
        scores[unfitted | ~fits.comparable[:, None]] = np.nan
        return scores, interrupted

    def _choose(self, fits: Fits, scores: np.ndarray) -> np.ndarray:
        """Set the results of the cross-validation, and return the index of the strength of every neuron, (neuron,)."""
        best, one_se = choose_strengths(scores, fits.comparable)
        chosen = best if self.rule == "best" else one_se
        there = fits.comparable.any(axis=0)
        self.strengths_, self.cv_scores_ = fits.strengths, scores
        self.best_strength_, self.one_se_strength_, self.strength_ = (
            np.where(there, fits.strengths[which], np.nan) for which in (best, one_se, chosen)
        )
        path = fits.coef[:, -1], fits.intercept[:, -1] + fits.form.shift
        self.coef_path_, self.intercept_path_ = at_ends(fits.status[:, -1], *path)
        self.cv_gap_ = fits.gap[:, :-1] * fits.unit[:-1]
        self.cv_gap_is_bound_ = fits.gap_is_bound[:, :-1]
        self.cv_converged_ = np.isin(fits.status[:, :-1], PROVED)
        return chosen
