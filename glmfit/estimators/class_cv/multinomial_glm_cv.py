"""The multinomial model of counts over categories with the strength of its penalty chosen by cross-validation."""

from __future__ import annotations

import numpy as np

from ...data.classes import ClassTraining
from ..multinomial_glm import MultinomialGLM
from .model import ClassModelCV


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
