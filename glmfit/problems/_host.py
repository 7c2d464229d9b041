"""Float64 passes over the data as the user gave them: the reference every reported number rests on.

NumPy and BLAS, in chunks that stay in cache, whatever jax's precision mode is; nothing is compiled.
"""

from __future__ import annotations

import numpy as np

from ..observations import Observation
from ._basis import chunks


def evaluate_loss(X, Y, weights, observation: Observation, coef, intercept):
    """Mean loss (neuron,) and its gradient in coef (feature, neuron) and intercept (neuron,), float64."""
    n_rows, n_neurons = Y.shape
    loss, grad_intercept, grad_coef = np.zeros(n_neurons), np.zeros(n_neurons), np.zeros(coef.shape)
    for rows in chunks(n_rows):
        x = np.asarray(X[rows], np.float64)
        value, r = observation.loss_and_derivative(np.asarray(Y[rows], np.float64), x @ coef + intercept)
        if weights is not None:
            w = weights[rows][:, None]
            value, r = value * w, r * w
        loss += value.sum(axis=0)
        grad_intercept += r.sum(axis=0)
        grad_coef += x.T @ r
    return loss / n_rows, grad_coef / n_rows, grad_intercept / n_rows


def hessian(X, y, weights, observation: Observation, coef, intercept, mean, scale, dtype=np.float64):
    """Hessian of the mean loss of one neuron in standardised coordinates, and the largest squared row norm.

    Rows are ``[(x - mean) / scale, 1]``; y is (time,), coef (feature,), the Hessian float64
    (feature + 1, feature + 1), intercept last. ``dtype`` is the precision of the products within a chunk.
    """
    d = len(coef)
    total, reach = np.zeros((d + 1, d + 1)), 0.0
    for rows in chunks(len(y)):
        x = np.empty((rows.stop - rows.start, d + 1), dtype)
        x[:, :d] = (X[rows] - mean.astype(dtype)) / scale.astype(dtype)
        x[:, d] = 1
        eta = x[:, :d] @ (coef * scale).astype(dtype) + dtype(intercept + mean @ coef)
        bend = observation.curvature(np.asarray(y[rows], dtype), eta)
        if weights is not None:
            bend = bend * weights[rows].astype(dtype)
        reach = max(reach, float(np.einsum("ij,ij->i", x, x).max()))
        x *= np.sqrt(bend)[:, None]
        total += x.T @ x
    return total / len(y), reach


def largest_leverage(X, mean, scale, factor) -> float:
    """``max_t |factor [(x_t - mean)/scale, 1]|^2`` in float64."""
    worst = 0.0
    for rows in chunks(len(X)):
        x = (np.asarray(X[rows], np.float64) - mean) / scale
        reach = x @ factor[:, :-1].T + factor[:, -1]
        worst = max(worst, float(np.einsum("ij,ij->i", reach, reach).max()))
    return worst


def largest_move(X, change_coef, change_intercept) -> np.ndarray:
    """``max_t |change of eta_t|`` per neuron in float64, (neuron,)."""
    worst = np.zeros(change_coef.shape[1])
    for rows in chunks(len(X)):
        eta = np.asarray(X[rows], np.float64) @ change_coef + change_intercept
        worst = np.maximum(worst, np.abs(eta).max(axis=0))
    return worst
