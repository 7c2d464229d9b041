"""Nested cross-validation of nested models from its definition, slow and plain. Never imports glmfit.

F(w, b) = sum_t v_t loss(y_t, x_t'w + b + offset_t) / sum_t v_t + strength |w|^2 / 2 over training rows, w of the
features of the model and v the weights, with exposures and trials. Losses are those of ``oracles.responses``; sums are
in extended precision.
"""

import itertools
from typing import NamedTuple

import numpy as np
from oracles import responses


class Fit(NamedTuple):
    """An optimum: parameters of the features as given, value of F times the sum of v, remaining distance."""

    coef: np.ndarray
    intercept: float
    value: float
    left: float  # norm of the last step in the Hessian: root of twice the remaining nats


def loss_of(name, y, eta, dispersion=1.0):
    """Losses in extended precision, whatever the predictor."""
    eta, y = np.asarray(eta, np.longdouble), np.asarray(y, np.longdouble)
    return responses.loss(name, y, eta, np.longdouble(dispersion))


def value_of(name, X, y, v, offset, coef, intercept, ridge, dispersion=1.0):
    """Sum of v times losses and ridge |coef|^2 / 2, in extended precision; ridge may be one per coefficient."""
    coef = np.asarray(coef, np.longdouble)
    eta = (np.asarray(X, np.longdouble) * coef).sum(axis=1) + np.longdouble(intercept) + offset
    return np.sum(v * loss_of(name, y, eta, dispersion)) + np.sum(ridge * coef**2) / 2


def fit(name, X, y, v, offset, ridge, dispersion=1.0, rounds=200, start=None) -> Fit:
    """Minimise sum of v loss + ridge |w|^2 / 2 by Newton steps whose Hessians are factored as their square roots."""
    keep = v > 0
    X, y, v, offset = np.asarray(X, np.float64)[keep], y[keep], v[keep], np.broadcast_to(offset, len(keep))[keep]
    d = X.shape[1]
    centre = np.average(X, axis=0, weights=v)
    spread = np.sqrt(np.average((X - centre) ** 2, axis=0, weights=v))
    spread = np.where(spread > 0, spread, 1.0)
    rows = np.column_stack([(X - centre) / spread, np.ones(len(X))])
    root = np.append(np.sqrt(np.broadcast_to(ridge, d)) / spread, 0.0)
    level = np.average(y, weights=v)
    if name == "Gaussian":
        first = np.average(y - offset, weights=v)
    elif name in ("Bernoulli", "Binomial"):
        first = np.log(level / (1 - level)) - np.average(offset, weights=v)
    elif name == "softplus":
        first = np.log(np.expm1(level)) if level < 30 else level
    else:
        first = np.log(level) - np.average(offset, weights=v)
    at = np.append(np.zeros(d), first) if start is None else np.append(start[0] * spread, start[1] + centre @ start[0])

    def value(z):
        with np.errstate(over="ignore", invalid="ignore"):
            return value_of(name, rows[:, :-1], y, v, offset, z[:-1], z[-1], root[:-1] ** 2, dispersion)

    here, left = value(at), np.inf
    for _ in range(rounds):
        eta = (rows.astype(np.longdouble) * at).sum(axis=1) + offset
        slope, curvature = responses.slopes(name, y, eta, dispersion)
        g = ((v * slope) @ rows.astype(np.longdouble) + root**2 * at).astype(float)
        square = np.vstack([np.sqrt(np.maximum(v * curvature, 0)).astype(float)[:, None] * rows, np.diag(root)])
        size = np.linalg.norm(square, axis=0)
        R = np.linalg.qr(square / size, mode="r")
        R += np.diag((np.abs(np.diag(R)) < 1e-15) * 1e-15)
        half = np.linalg.solve(R.T, g / size)
        step = np.linalg.solve(R, half) / size
        before, left, length = left, np.linalg.norm(half), 1.0
        new = value(at - step)
        while not new <= here - 0.1 * length * left**2 and length > 1e-8 and left > 1e-5:
            length /= 2
            new = value(at - length * step)
        if left <= 1e-5 and left > before / 2:  # rounding
            break
        at, here = at - length * step, new
        if left < 1e-11 or length <= 1e-8:
            break
    coef = at[:-1] / spread
    return Fit(coef, at[-1] - centre @ coef, float(here), float(left))


def fit_proximal(name, X, y, v, offset, strength, l1_ratio, dispersion=1.0) -> Fit:
    """Minimise with strength (ratio |w|_1 + (1 - ratio) |w|^2 / 2) times the sum of v, by `responses.optimum`."""
    keep = v > 0
    given = name, X[keep], y[keep], v[keep], np.broadcast_to(offset, len(keep))[keep]
    penalty = strength * (1 - l1_ratio), strength * l1_ratio
    coef, intercept = responses.optimum(*given, *penalty, dispersion)
    value = v.sum() * responses.objective(*given, coef, intercept, *penalty, dispersion)
    return Fit(coef, intercept, value, 0.0)


def held_out(name, X, y, v, offset, number, n_held, masks, strengths, dispersion=1.0, l1_ratio=None):
    """Held-out losses (model, fold), index of strengths chosen (model, fold), and their scores (model, strength, fold).

    The strength of a fold minimises the sum, over the other folds, of held-out losses of fits to the rows in neither of
    the two folds; fits that omit two folds serve both. Of equal strengths, the largest is chosen.
    """
    offset = np.broadcast_to(offset, len(y))
    loss, chosen = np.full((len(masks), n_held), np.nan), np.zeros((len(masks), n_held), int)
    scores = np.zeros((len(masks), len(strengths), n_held))

    def losses(model, strength, out):
        train = ~np.isin(number, out) & (v > 0)
        x = X[:, masks[model]]
        weight, given = np.where(train, v, 0.0), (name, x, y)
        if l1_ratio is None:
            found = fit(*given, weight, offset, strength * weight.sum(), dispersion)
        else:
            found = fit_proximal(*given, weight, offset, strength, l1_ratio, dispersion)
        eta = x @ found.coef + found.intercept + offset
        each = np.where(v > 0, v * loss_of(name, np.where(v > 0, y, 1.0), eta, dispersion), 0.0)
        return [float(each[number == k].sum()) for k in out]

    for model in range(len(masks)):
        if len(strengths) > 1:
            for (i, j), (s, strength) in itertools.product(
                itertools.combinations(range(n_held), 2), enumerate(strengths)
            ):
                of_i, of_j = losses(model, strength, [i, j])
                scores[model, s, i] += of_j
                scores[model, s, j] += of_i
            chosen[model] = len(strengths) - 1 - np.argmin(scores[model, ::-1], axis=0)
        for k in range(n_held):
            loss[model, k] = losses(model, strengths[chosen[model, k]], [k])[0]
    return loss, chosen, scores
