"""Scores of the rows left out, and the strengths they choose."""

from __future__ import annotations

import numpy as np

from ._folds import Folds


def score_folds(observation, data, folds: Folds, coef, intercept, scoring: str) -> np.ndarray:
    """Scores of the rows left out, (strength, fold, neuron); coef is (strength, fold, feature, neuron)."""
    S, F, _, N = coef.shape
    out = np.empty((S, F, N))
    of = observation.deviance if scoring == "D2" else observation.log_likelihood
    for f in range(F):
        rows = np.flatnonzero(folds.test[:, f])
        w = np.ones(len(rows)) if data.weights is None else data.weights[rows]
        mean = w @ data.Y[rows] / w.sum()
        total, null = np.zeros((S, N)), np.zeros(N)
        for start in range(0, len(rows), 8192):
            part = rows[start : start + 8192]
            x, y, weight = (
                np.asarray(data.X[part], np.float64),
                np.asarray(data.Y[part], np.float64),
                w[start : start + 8192],
            )
            for s in range(S):
                total[s] += weight @ of(y, x @ coef[s, f] + intercept[s, f])
            if scoring == "D2":
                null += weight @ of(y, np.broadcast_to(observation.intercept(mean), y.shape))
        with np.errstate(divide="ignore", invalid="ignore"):
            out[:, f] = np.where(mean > 0, 1 - total / null, np.nan) if scoring == "D2" else total / w.sum()
    return out


def choose_strengths(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the best mean score, and of the strongest strength within a standard error of it, (neuron,)."""
    known = ~np.isnan(scores)
    n = known.all(axis=0).sum(axis=0)  # folds, (neuron,)
    usable = known.all(axis=0)[None]  # of the same folds for all strengths
    mean = np.sum(np.where(usable, scores, 0.0), axis=1) / np.maximum(n, 1)
    spread = np.sum(np.where(usable, scores - mean[:, None], 0.0) ** 2, axis=1)
    error = np.sqrt(spread / np.maximum(n - 1, 1) / np.maximum(n, 1))
    strongest = len(scores) - 1
    best = strongest - np.argmax(mean[::-1], axis=0)  # of equal ones the strongest
    neurons = np.arange(scores.shape[2])
    within = mean >= (mean - error)[best, neurons]
    one_se = strongest - np.argmax(within[::-1], axis=0)
    return best, one_se
