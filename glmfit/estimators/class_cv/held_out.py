"""Scores of held-out rows of classes, and the default strengths to try."""

import numpy as np
from scipy.special import gammaln, log_softmax

from ...data.classes import ClassTraining
from ...engine.problem import Params
from ...engine.tiles import tiles_of
from ...stochastic import SoftmaxProblem

_SCORES_AT_ONCE = 4_000_000
_NO_DEVIANCE = 1e-12  # of constant shares that are exact, in nats per row
_LITTLE = 0.01  # share of what could be explained
_ROUNDING = 1e-12  # of means of the features
_TRIED, _DECADES = 8, 6
_OF_KINKS, _DECADES_OF_KINKS = 12, 3


def score_rows(data: ClassTraining, params: Params, scoring: str) -> float:
    """Score rows whose classes the parameters all have: weighted mean over rows.

    The log-likelihood includes the multinomial coefficient (0 for labels); D2 compares with the best constant shares of
    these rows, and is nan if those are exact.
    """
    row, label, weight = data.pairs
    n, total = data.n_rows, 0.0
    for rows in tiles_of(n, max(1, _SCORES_AT_ONCE // len(params.intercept))):
        scores = np.asarray(data.X[rows] @ params.coef, np.float64) + params.intercept
        scores = scores if data.offset is None else scores + data.offset[rows]
        some = slice(*np.searchsorted(row, (rows.start, rows.stop)))
        at, k = row[some] - rows.start, label[some]
        right = np.argmax(scores, axis=1)[at] == k if scoring == "accuracy" else log_softmax(scores, axis=1)[at, k]
        total += float(weight[some] @ right)
    if scoring == "accuracy":
        return total / n
    if scoring == "D2":
        constant, saturated = data.extreme_losses()
        explainable = constant - saturated
        return 1 - (-total / n - saturated) / explainable if explainable > _NO_DEVIANCE else np.nan
    count = weight / data.weight[row]
    totals = np.bincount(row, count, n)
    return (total + float(data.weight @ gammaln(totals + 1) - data.weight[row] @ gammaln(count + 1))) / n


def unseen_share(data: ClassTraining, seen: np.ndarray) -> float:
    """Compute the share of counts of classes other than those ``seen``, bool (class,)."""
    return float(data.class_totals[~seen].sum() / data.class_totals.sum())


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
    learnable = explainable > _NO_DEVIANCE and squared > _ROUNDING**2 * size
    strongest = squared / (2 * _LITTLE * explainable) if learnable else 1.0
    return strongest * np.logspace(-_DECADES, 0, _TRIED)
