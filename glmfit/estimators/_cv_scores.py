"""Scores of the held-out rows, and the strengths they choose."""

from __future__ import annotations

import numpy as np

from ._folds import Folds
from ._scores import score_sums
from ._validation import Scoring


def score_folds(observation, data, folds: Folds, coef, intercept, scoring: str) -> np.ndarray:
    """Scores of the held-out rows, (strength, fold, neuron); coef is (strength, fold, feature, neuron)."""
    S, F, d, N = coef.shape
    out = np.empty((S, F, N))
    for f in range(F):
        rows = np.flatnonzero(folds.test[:, f])
        left_out = _left_out(data, rows, S)
        # All strengths at once: as neurons beside each other.
        flat = np.moveaxis(coef[:, f], 0, 1).reshape(d, S * N), intercept[:, f].reshape(S * N)
        model, null = score_sums(observation, left_out, *flat, scoring)
        if scoring == "D2":
            with np.errstate(divide="ignore", invalid="ignore"):
                model = np.where(left_out.Y.sum(axis=0) > 0, 1 - model / null, np.nan)
        out[:, f] = model.reshape(S, N)
    return out


def _left_out(data, rows, n_strengths: int) -> Scoring:
    """Take some rows of the training data, counts as they were given, once for every strength."""
    exposure = np.ones(len(rows)) if data.exposure is None else data.exposure[rows]
    weights = np.ones(len(rows)) if data.weights is None else data.weights[rows] / exposure
    Y = np.tile(data.Y[rows] * exposure[:, None].astype(data.Y.dtype), (1, n_strengths))
    offset = None if data.offset is None else data.offset[rows]
    if offset is not None and offset.shape[1] > 1:
        offset = np.tile(offset, (1, n_strengths))
    return Scoring(data.X[rows], Y, weights, offset, exposure)


def choose_strengths(scores: np.ndarray, comparable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the best mean score, and of the strongest strength within a standard error of it, (neuron,).

    Among the ``comparable`` ones of every neuron, bool (strength, neuron); where there are none, of the strongest. The
    standard error is that of the difference from the best, fold by fold: that folds differ in their rates says nothing
    about strengths.
    """
    known = ~np.isnan(scores) | ~comparable[:, None]
    n = known.all(axis=0).sum(axis=0)  # folds, (neuron,)
    usable = known.all(axis=0) & comparable[:, None]  # the same folds for all strengths
    mean = np.sum(np.where(usable, scores, 0.0), axis=1) / np.maximum(n, 1)
    mean = np.where(comparable, mean, -np.inf)
    strongest = len(scores) - 1
    best = strongest - np.argmax(mean[::-1], axis=0)  # of equal ones the strongest
    neurons = np.arange(scores.shape[2])
    with np.errstate(invalid="ignore"):  # of a strength that scores -inf there is no error, nor is it chosen
        lost = np.where(usable, scores[best, :, neurons].T - scores, 0.0)
        spread = np.sum((lost - lost.sum(axis=1, keepdims=True) / np.maximum(n, 1)) ** 2 * usable, axis=1)
        error = np.sqrt(spread / np.maximum(n - 1, 1) / np.maximum(n, 1))
        within = mean >= mean[best, neurons] - error
    one_se = strongest - np.argmax(within[::-1], axis=0)
    return best, one_se
