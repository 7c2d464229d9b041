"""The softmax model of labels with the strength of its penalty chosen by cross-validation."""

from __future__ import annotations

import numpy as np

from ...data.classes import ClassTraining
from ..softmax_glm import SoftmaxGLM
from .model import ClassModelCV


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
        Folds, as in `PopulationGLMCV`: a number of contiguous blocks of rows; epochs; several IntervalSets; a
        scikit-learn splitter, which gets the labels (``StratifiedKFold(5)`` for rows sorted by label); or pairs of
        (train, test) row indices.
    scoring : {"log-likelihood", "accuracy"}
        Score of the held-out rows, weighted mean: log-probability of the label, or whether it is the most probable.
    rule : {"best", "one-se"}
        Take the strength of the best mean score, or the strongest one within a standard error of it. The standard
        error is that of the difference from the best over the folds.
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
