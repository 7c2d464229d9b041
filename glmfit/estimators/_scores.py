"""Deviances and log-likelihoods of counts given a model, of held-out rows too, and the strengths that they choose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.special

from ..data.counts import Training
from ..problems._chunks import over_chunks, rows_at_once
from ..problems._host import fit_intercept
from ._folds import Folds

NO_DEVIANCE = 1e-100  # a null model without spikes has the smallest rate there is, not 0


def score_sums(observation, data, coef, intercept, score_type, silent=None):
    """Weighted (deviance, null deviance), log-likelihoods, or mean log-likelihood per neuron; silent have no offset."""
    w, e = data.weights, data.exposure
    seen = w * e
    of = _deviance if score_type == "D2" else _log_likelihood
    if score_type == "log-likelihood":
        null_eta = None  # nothing is compared with it
    elif data.offset is None:
        null_eta = observation.intercept(spike_sums(data) / seen.sum())
    else:
        per_unit = data.Y[:] / np.where(e > 0, e, 1.0)[:, None]
        null_eta = fit_intercept(per_unit, seen * (len(seen) / seen.sum()), observation, data.offset)[0]

    def chunk(rows):
        y, known = np.asarray(data.Y[rows], np.float64), 0.0 if data.offset is None else data.offset[rows]
        eta = np.asarray(data.X[rows], np.float64) @ coef + intercept + known
        if silent is not None:
            eta = np.where(silent, intercept, eta)
        at = [eta] if null_eta is None else [eta, np.broadcast_to(null_eta + known, y.shape)]
        # Rows that do not count may have infinite rates, which 0 times is not 0.
        counts = seen[rows, None] > 0
        return [w[rows] @ np.where(counts, of(observation, y, z, e[rows, None]), 0.0) for z in at]

    totals = sum(map(np.array, over_chunks(chunk, len(w), rows_at_once(data.X))))
    if score_type == "log-likelihood":
        return totals[0] / w[e > 0].sum(), None  # per bin that was observed
    return totals


def share_explained(of_model, of_null) -> np.ndarray:
    """``1 - of_model / of_null`` of deviances or log-likelihoods, nan where there is nothing to explain."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.abs(of_null) < NO_DEVIANCE, np.nan, 1 - of_model / of_null)


def spike_sums(data) -> np.ndarray:
    """Sum the counts by their weights, (neuron,)."""
    return sum(over_chunks(lambda rows: data.weights[rows] @ np.asarray(data.Y[rows], np.float64), len(data.weights)))


def _deviance(observation, y, eta, exposure):
    """Compute the unit deviance of a count whose expectation is exposure times the rate."""
    with np.errstate(invalid="ignore"):
        return exposure * observation.deviance(y / np.where(exposure > 0, exposure, 1.0), eta)


def _log_likelihood(observation, y, eta, exposure):
    """Compute the log-probability of a count whose expectation is exposure times the rate."""
    with np.errstate(invalid="ignore"):
        value = observation.log_likelihood(y, eta)
        if np.all(exposure == 1) and np.isfinite(value).all():
            return value
        rate = observation.rate(eta)
        value += (1 - exposure) * rate + scipy.special.xlogy(y, exposure)
    return np.where(np.isinf(rate), -np.inf, value)  # no count is that large


def score_folds(observation, data: Training, folds: Folds, coef, intercept, scoring: str) -> np.ndarray:
    """Scores of the held-out rows, (strength, fold, neuron); coef is (strength, fold, feature, neuron)."""
    S, F, d, N = coef.shape
    exposure = np.ones(len(data.X)) if data.exposure is None else data.exposure
    weights = np.ones(len(data.X)) if data.weights is None else data.weights / exposure
    counts = data.Y if data.exposure is None else data.Y * exposure[:, None].astype(data.Y.dtype)  # as they were given
    given, scores = replace(data, Y=counts, weights=weights, exposure=exposure), np.empty((S, F, N))
    for f, test in enumerate(folds.test.T):
        left_out = given.take(np.flatnonzero(test))
        # All strengths at once: as neurons next to each other.
        flat = np.moveaxis(coef[:, f], 0, 1).reshape(d, S * N), intercept[:, f].reshape(S * N)
        wide = {"Y": np.tile(left_out.Y, (1, S))}
        if data.offset is not None and data.offset.shape[1] > 1:
            wide["offset"] = np.tile(left_out.offset, (1, S))
        model, null = score_sums(observation, replace(left_out, **wide), *flat, scoring)
        scores[:, f] = (share_explained(model, null) if scoring == "D2" else model).reshape(S, N)
    return scores


def choose_strengths(scores: np.ndarray, comparable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the best mean score, and of the strongest strength within a standard error of it, (neuron,).

    Among the ``comparable`` ones of every neuron, bool (strength, neuron), or else the strongest. The standard error is
    that of the difference from the best, fold by fold: that folds differ in their rates says nothing about strengths.
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
