"""Float64 passes over the data as the user gave them: the reference every reported number rests on.

NumPy and BLAS, whatever jax's precision mode is; nothing is compiled.
"""

from __future__ import annotations

import numpy as np

from ..observations import Observation
from ._chunks import over_chunks


def evaluate_loss(X, Y, weights, observation: Observation, coef, intercept, dtype=np.float64):
    """Mean loss (neuron,) and its gradient in coef (feature, neuron) and intercept (neuron,), float64.

    ``weights`` are (time,), or (time, neuron). ``dtype`` is the precision of the products within a chunk; all else is
    float64.
    """
    product_coef = coef.astype(dtype)

    def chunk(rows):
        x = np.asarray(X[rows], dtype)
        eta = np.asarray(x @ product_coef, np.float64) + intercept
        value, r = observation.loss_and_derivative(np.asarray(Y[rows], np.float64), eta)
        if weights is not None:
            w = weights[rows]
            w = w[:, None] if w.ndim == 1 else w
            value, r = value * w, r * w
        return value.sum(axis=0), x.T @ r.astype(dtype, copy=False), r.sum(axis=0)

    totals = _sum(over_chunks(chunk, len(Y)))
    return tuple(total / len(Y) for total in totals)


def hessian(X, y, weights, observation: Observation, coef, intercept, mean, scale, dtype=np.float64):
    """Hessian of the mean loss of one neuron in standardised coordinates, and the largest squared row norm.

    Rows are ``[(x - mean) / scale, 1]``; y is (time,), coef (feature,), the Hessian float64
    (feature + 1, feature + 1), intercept last. ``dtype`` is the precision of the products within a chunk.
    """
    d = len(coef)
    shift, inverse = mean.astype(dtype), (1 / scale).astype(dtype)
    standard_coef, standard_intercept = (coef * scale).astype(dtype), dtype(intercept + mean @ coef)

    def chunk(rows):
        x = np.empty((rows.stop - rows.start, d + 1), dtype)
        np.subtract(X[rows], shift, out=x[:, :d], casting="same_kind")
        x[:, :d] *= inverse
        x[:, d] = 1
        bend = observation.curvature(np.asarray(y[rows], dtype), x[:, :d] @ standard_coef + standard_intercept)
        if weights is not None:
            bend = bend * weights[rows].astype(dtype)
        reach = np.einsum("ij,ij->i", x, x).max()
        x *= np.sqrt(bend)[:, None]
        return x.T @ x, reach

    total, reach = np.zeros((d + 1, d + 1)), 0.0
    for gram, far in over_chunks(chunk, len(y)):
        total += gram
        reach = max(reach, float(far))
    return total / len(y), reach


def largest_move(X, change_coef, change_intercept) -> np.ndarray:
    """``max_t |change of eta_t|`` per neuron in float64, (neuron,)."""

    def chunk(rows):
        return np.abs(np.asarray(X[rows], np.float64) @ change_coef + change_intercept).max(axis=0)

    return np.max(list(over_chunks(chunk, len(X))), axis=0)


def _sum(pieces):
    totals = None
    for piece in pieces:
        totals = piece if totals is None else tuple(a + b for a, b in zip(totals, piece, strict=True))
    return totals
