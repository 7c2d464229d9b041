"""Deviances and log-likelihoods of counts given a model."""

from __future__ import annotations

import numpy as np
import scipy.special

from ..problems._chunks import over_chunks
from ..problems._host import fit_intercept


def score_sums(observation, data, coef, intercept, score_type, silent=None):
    """Weighted (deviance, null deviance), log-likelihoods, or mean log-likelihood per neuron.

    Whatever their offsets, the predictors of ``silent`` neurons, bool (neuron,), are their intercepts.
    """
    w, e = data.weights, data.exposure
    seen = w * e
    of = _deviance if score_type == "D2" else _log_likelihood
    if data.offset is None:
        null_eta = observation.intercept(spike_sums(data) / seen.sum())
    else:
        per_unit = data.Y[:] / np.where(e > 0, e, 1.0)[:, None]
        null_eta = fit_intercept(per_unit, seen * (len(seen) / seen.sum()), observation, data.offset)[0]
    totals = np.zeros((2, data.Y.shape[1]))
    size = 8192
    for start in range(0, len(w), size):
        rows = slice(start, start + size)
        y, known = np.asarray(data.Y[rows], np.float64), 0.0 if data.offset is None else data.offset[rows]
        eta = np.asarray(data.X[rows], np.float64) @ coef + intercept + known
        if silent is not None:
            eta = np.where(silent, intercept, eta)
        for k, at in enumerate((eta, np.broadcast_to(null_eta + known, y.shape))):
            # Rows that do not count may have infinite rates, which 0 times is not 0.
            totals[k] += w[rows] @ np.where(seen[rows, None] > 0, of(observation, y, at, e[rows, None]), 0.0)
    if score_type == "log-likelihood":
        return totals[0] / w[e > 0].sum(), None  # per bin that was observed
    return totals


def spike_sums(data) -> np.ndarray:
    """Sum the counts by their weights, (neuron,)."""
    return sum(over_chunks(lambda rows: data.weights[rows] @ np.asarray(data.Y[rows], np.float64), len(data.weights)))


def _deviance(observation, y, eta, exposure):
    """Compute the unit deviance of a count whose expectation is exposure times the rate."""
    with np.errstate(invalid="ignore"):
        return exposure * observation.deviance(y / np.where(exposure > 0, exposure, 1.0), eta)


def _log_likelihood(observation, y, eta, exposure):
    """Compute the log-probability of a count whose expectation is exposure times the rate."""
    rate = observation.rate(eta)
    with np.errstate(invalid="ignore"):
        value = observation.log_likelihood(y, eta) + (1 - exposure) * rate + scipy.special.xlogy(y, exposure)
    return np.where(np.isinf(rate), -np.inf, value)  # no count is that large
