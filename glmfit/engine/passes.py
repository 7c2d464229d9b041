"""Float64 passes over the data as given: the reference for every reported number.

They use NumPy and BLAS, whatever jax's precision mode is; nothing is compiled.
"""

from typing import Any

import numpy as np

from ..bounds import ResidualSums
from ..numerics import few_nonzero, namespace
from ..observations import Observation
from ..threads import scratch
from .tiles import ROWS_OF_A_TILE, column_sums, over_tiles, rows_at_once, sums_over_tiles, weigh, weighted

_NEWTON_STEPS = 100
N_TERMS = 4  # of `pearson_terms`
KURTOSIS = 2.0  # variance of the square of a standard normal variable
LEAST_VARIANCE = 1e-3  # of a response, over the number of rows: rarer ones say little about their variance
_quietly = np.errstate(invalid="ignore", over="ignore")  # the caller sees non-finite results


@_quietly
def evaluate_loss(
    X, Y, weights, observation: Observation, coef, intercept, dtype=np.float64, offset=None, shift=None, dual=False
):
    """Mean loss (neuron,) and its gradient in coef (feature, neuron) and intercept (neuron,), float64.

    With ``dual``, the fourth value holds the sums of residuals that a dual bound needs, else None. ``weights`` are
    (time,) or (time, neuron), ``offset`` (time, 1 or neuron). ``dtype`` is the precision of the products within a tile;
    all else is float64. ``shift`` (feature,) is first subtracted from X, and then restored in the gradient, so that
    large means leave no rounding errors in products that should cancel.
    """
    product_coef = coef.astype(dtype)
    base = intercept if shift is None else intercept + shift @ coef

    def tile(rows):
        x = np.asarray(X[rows] if shift is None else X[rows] - shift, dtype)
        own = np.asarray(x @ product_coef, np.float64)
        own += base
        y, eta = np.ascontiguousarray(Y[rows], np.float64), own if offset is None else own + offset[rows]
        w = None if weights is None else weights[rows].reshape(len(y), -1)
        spikes = few_nonzero(y) if observation.skips_zeros else None
        return sums_of(observation, x, own, eta, y, w, dual, None, spikes)

    totals = sums_over_tiles(tile, len(Y), rows_at_once(X, Y.shape[1]))
    loss, G, grad_intercept, *rest = (total / len(Y) for total in totals)
    grad_coef = G.T if shift is None else G.T + np.outer(shift, grad_intercept)
    return loss, grad_coef, grad_intercept, ResidualSums(*rest) if dual else None


def sums_of(observation: Observation, x, own, eta, y, w, dual: bool, bend=None, spikes=None) -> list[np.ndarray]:
    """Sum loss and gradient, (neuron, feature) and (neuron,), over some rows, and if ``dual`` what a dual bound needs.

    x is (row, feature), the others (row, neuron): predictors without and with offsets, responses, weights or None. The
    curvature is written to ``bend``.
    """
    loss, r = (scratch(eta.shape, np.float64, name) for name in ("loss", "slope"))
    observation.evaluate_into(y, eta, r, bend, loss, spikes)
    same = None  # weights that all rows share: of their sums
    if w is not None:
        if bend is not None:
            weigh(bend, w.astype(bend.dtype))
        same = w[0] if len(w) == 1 else None
    w = None if same is not None else w
    for values in () if w is None else (loss, r):
        weigh(values, w)
    parts = [column_sums(loss), r.astype(x.dtype, copy=False).T @ x, column_sums(r)]
    if dual:
        parts += _sums_apart(observation, x, own, y, w, loss, r, *parts[1:])
    if same is not None:
        parts = [_times(part, same, -2 if k == 1 else -1) for k, part in enumerate(parts)]
    return parts


def _times(sums: np.ndarray, w: np.ndarray, axis: int) -> np.ndarray:
    """Multiply sums by the weights of neurons, which are on an axis; what has no weight may be infinite."""
    w = w if axis == -1 else w[:, None]
    return np.where(w > 0, sums * w, 0.0)


def _sums_apart(observation: Observation, x, own, y, w, loss, r, rx, g) -> list[np.ndarray]:
    """Sum residuals r, and terms of a dual bound, over rows with r > 0 and over the others, (side, ..., neuron)."""
    above, terms = (scratch(r.shape, np.float64, name) for name in ("above", "terms"))
    positive = np.maximum(r, 0, out=above)
    inside, total = positive.T @ x, column_sums(positive)
    parts = [np.stack([total, g - total]), np.stack([inside.T, (rx - inside).T])]
    np.greater(r, 0, out=above)

    def apart(values):  # by BLAS: faster than selecting
        inside = np.einsum("tn,tn->n", values, above)
        return np.stack([inside, column_sums(values) - inside])

    np.multiply(own, r, out=terms)
    terms -= loss
    if w is not None and not w.all():  # predictors there may be infinite
        np.copyto(terms, 0, where=w == 0)
    parts.append(apart(terms))
    saturated = least_losses(observation, y)
    return [*parts, apart(saturated if w is None else weighted(saturated, w))]


def least_losses(observation: Observation, y: np.ndarray) -> np.ndarray:
    """Compute the smallest loss that each response may have, float64; small whole counts are looked up."""
    if np.ndim(getattr(observation, "dispersion", 0.0)):  # one for each column
        return observation.saturated_loss(y)
    whole = y if y.dtype == np.uint8 else y.astype(np.uint8)
    if observation.counts and (whole is y or np.array_equal(whole, y)):
        return observation.saturated_loss(np.arange(whole.max(initial=0) + 1.0)).take(whole)
    spikes = np.flatnonzero(y)  # most bins of a recording are empty
    loss = np.full(y.size, 0.0 if len(spikes) == y.size else observation.saturated_loss(0.0))
    loss[spikes] = observation.saturated_loss(np.asarray(y.reshape(-1)[spikes], np.float64))
    return loss.reshape(y.shape)


@_quietly
def hessian(X, y, weights, observation: Observation, coef, intercept, mean, scale, dtype=np.float64, offset=None):
    """Hessian of the mean loss of one neuron at rows ``[(x - mean) / scale, 1]``, and their largest squared norm."""
    d = len(coef)
    shift, inverse = mean.astype(dtype), (1 / scale).astype(dtype)
    standard_coef, standard_intercept = (coef * scale).astype(dtype), dtype(intercept + mean @ coef)

    def tile(rows):
        x = np.empty((rows.stop - rows.start, d + 1), dtype)
        np.subtract(X[rows], shift, out=x[:, :d], casting="same_kind")
        x[:, :d] *= inverse
        x[:, d] = 1
        eta = x[:, :d] @ standard_coef + standard_intercept
        if offset is not None:
            eta += offset[rows].astype(dtype, copy=False)
        bend = observation.curvature(np.asarray(y[rows], dtype), eta)
        if weights is not None:
            bend = bend * weights[rows].astype(dtype)
        reach = np.einsum("ij,ij->i", x, x).max()
        x *= np.sqrt(bend)[:, None]
        return x.T @ x, reach

    total, reach = np.zeros((d + 1, d + 1)), 0.0
    for gram, far in over_tiles(tile, len(y), rows_at_once(X, 1)):
        total += gram
        reach = max(reach, float(far))
    return total / len(y), reach


def fit_intercept(Y, weights, observation: Observation, offset):
    """Best intercept of a model without features, its mean loss and mean curvature, (neuron,) float64 each.

    A neuron without counts, whose loss has no minimum, gets a rate of practically 0.
    """

    def sums(b):
        def tile(rows):
            y, eta = np.asarray(Y[rows], np.float64), b + offset[rows]
            w = 1.0 if weights is None else weights[rows].reshape(len(y), -1)
            parts = *observation.loss_and_derivative(y, eta), observation.curvature(y, eta), y, 1.0 - y
            return np.stack([np.sum(w * part, axis=0) for part in parts])

        return sum(over_tiles(tile, len(Y))) / len(Y)

    furthest = max(over_tiles(lambda rows: np.max(offset[rows]), len(Y)))
    mean, room = sums(np.zeros(Y.shape[1]))[3:]
    mean = observation.exact_mean(mean, lambda: room)
    with np.errstate(divide="ignore", invalid="ignore"):
        b = observation.intercept(mean) - furthest  # for silent neurons this is the answer
    b = np.where(np.isfinite(b), b, 0.0)
    low, high = np.full_like(b, -np.inf), np.full_like(b, np.inf)
    moving = np.asarray(observation.has_optimum(mean))
    for k in range(_NEWTON_STEPS):
        loss, slope, curvature, *_ = sums(b)
        if not moving.any():
            break
        low, high = np.where(slope <= 0, b, low), np.where(slope >= 0, b, high)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            limit = 4.0 * 2.0 ** min(k, 20)  # small curvature is a poor guide, except of a quadratic
            step = slope / curvature
            newton = b - (step if observation.is_quadratic else np.clip(step, -limit, limit))
            middle = (low + high) / 2
            middle = np.where(np.isfinite(middle), middle, b - np.sign(slope) * limit)
            after = np.where((newton >= low) & (newton <= high), newton, middle)
        moving &= np.abs(after - b) > 1e-13 * (1 + np.abs(b))
        b = np.where(moving, after, b)
    return b, loss, curvature


def pearson_terms(observation: Observation, y, eta, w, exposure, kurtosis: Any, least: Any) -> tuple:
    """Terms of Pearson's statistic and of its variance, arrays of NumPy or jax: rows of weight 0 may hold anything.

    They are weighted squared residuals over their variance v; weights per unit of exposure; their squares times the
    variance of such a square, ``kurtosis + 1 / v`` for counts, v at least ``least``; and which responses count.
    """
    xp, counts = namespace(eta), w > 0
    mean, variance = observation.mean_and_variance(eta)
    units = w / xp.where(exposure > 0, exposure, 1.0)
    square = xp.where(counts, (y - mean) ** 2 / xp.maximum(variance, 1e-300) * w, 0)
    noise = xp.where(counts, (kurtosis + 1 / xp.maximum(exposure * variance, least)) * units**2, 0)
    return square, units, noise, counts


def predictor(X, coef, intercept) -> np.ndarray:
    """Compute the linear predictor in float64 without a float64 copy of X, (time, ...)."""
    if len(X) <= ROWS_OF_A_TILE:
        return X.astype(np.float64) @ coef + intercept
    return np.concatenate(list(over_tiles(lambda rows: X[rows].astype(np.float64) @ coef + intercept, len(X))))
