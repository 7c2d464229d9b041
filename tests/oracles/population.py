"""Population Poisson GLMs from their definitions, in float64, slow and plain. Never imports glmfit.

F_n(w, b) = (1/T) sum_t weight_t phi(x_t'w + b; y_tn) + penalty_n(w), weights of mean one.
"""

from itertools import combinations
from typing import NamedTuple

import mpmath as mp
import numpy as np
from oracles import penalties
from scipy.special import expit

C_STAR = 0.16709557267051664  # maximum of h, rounded up; tests/oracles/poisson.py has its 40 digits


class Optimum(NamedTuple):
    coef: np.ndarray  # (feature, neuron)
    intercept: np.ndarray  # (neuron,)
    objective: np.ndarray  # (neuron,)
    residual: np.ndarray  # (neuron,) largest entry of the gradient (smallest subgradient) there


# -------------------------------------------------------------------------------- one bin


def rate(link, eta):
    return np.exp(eta) if link == "exp" else np.logaddexp(0, eta)


def log_rate(link, eta):
    return eta if link == "exp" else np.where(eta < -30, eta, np.log(rate(link, np.maximum(eta, -30))))


def loss(link, y, eta):
    return rate(link, eta) - y * log_rate(link, eta)


def derivative(link, y, eta):
    return np.exp(eta) - y if link == "exp" else expit(eta) - y * slope(eta)


def curvature(link, y, eta):
    if link == "exp":
        return np.exp(eta) + 0 * y
    r = slope(eta)
    h = np.where(eta < -12, np.exp(np.minimum(eta, 0)) / 2, r * (r - expit(-eta)))
    return expit(eta) * expit(-eta) + y * h


def slope(eta):
    """(log softplus)', 1 far on the left."""
    return np.where(eta < -30, 1.0, expit(eta) / np.logaddexp(0, np.maximum(eta, -30)))


def curvature_ceiling(link, y, low, high, points=400):
    """Supremum of the curvature over [low, high], or slightly less: the largest of many points."""
    if np.all(np.isinf(low)) and np.all(np.isinf(high)):
        low, high = np.full(y.shape, -30.0), np.full(y.shape, 30.0)
    return np.max([curvature(link, y, low + u * (high - low)) for u in np.linspace(0, 1, points)], axis=0)


# -------------------------------------------------------------------------------- one objective


def mean_one(weights, n_rows):
    return np.ones(n_rows) if weights is None else np.asarray(weights, float) * n_rows / np.sum(weights)


def objective(link, X, Y, coef, intercept, weights=None, name="Ridge", **penalty):
    """F of every neuron, (neuron,); ``penalty`` has strength, ratio, groups as oracles.penalties takes them.

    Summed in extended precision: a gap is the difference of two such sums, and running sums of 8 000 terms in
    float64 differ by 4e-14 where the rows repeat.
    """
    X, Y = np.asarray(X, float), np.asarray(Y, float)
    terms = mean_one(weights, len(X))[:, None] * loss(link, Y, X @ coef + intercept)
    value = (terms.sum(axis=0, dtype=np.longdouble) / len(X)).astype(float)
    return value + (penalties.value(name, coef, **penalty) if penalty else 0)


def gradient(link, X, Y, coef, intercept, weights=None, ridge=0.0):
    """Gradient of the mean loss plus ridge: (feature, neuron) and (neuron,)."""
    X, Y = np.asarray(X, float), np.asarray(Y, float)
    r = mean_one(weights, len(X))[:, None] * derivative(link, Y, X @ coef + intercept)
    return X.T @ r / len(X) + ridge * coef, r.mean(axis=0)


def hessian(link, X, y, coef, intercept, weights=None, ridge=0.0):
    """Hessian of one neuron in (coefficients, intercept)."""
    bend = mean_one(weights, len(X)) * curvature(link, y, X @ coef + intercept)
    rows = with_ones(X)
    return (rows.T * bend) @ rows / len(X) + np.diag(np.append(np.full(X.shape[1], ridge), 0.0))


def with_ones(X):
    return np.column_stack([np.asarray(X, float), np.ones(len(X))])


def saturated(Y, weights=None):
    """Smallest conceivable mean loss, y - y log y, (neuron,)."""
    return mean_one(weights, len(Y)) @ (Y - Y * np.log(np.where(Y > 0, Y, 1))) / len(Y)


def null_intercept(link, Y, weights=None):
    mean = mean_one(weights, len(Y)) @ Y / len(Y)
    return np.log(mean) if link == "exp" else mean + np.log(-np.expm1(-mean))


# -------------------------------------------------------------------------------- optima


def newton(link, X, Y, ridge=0.0, weights=None, max_steps=400):
    """Optimum with a ridge (0: none), by damped Newton steps, neuron by neuron.

    Coordinates are standardised first, so that a feature of scale 1e8 does no harm. Directions without
    curvature (duplicate columns) are left alone: the answer is one of the optima.
    """
    X, Y = np.asarray(X, float), np.asarray(Y, float)
    n_neurons, w = Y.shape[1], mean_one(weights, len(X))
    mean = w @ X / len(X)
    scale = np.sqrt(w @ (X - mean) ** 2 / len(X))
    scale = np.where(scale > 1e-12 * (1 + np.abs(mean)), scale, 1.0)
    Z, strengths = (X - mean) / scale, np.broadcast_to(np.asarray(ridge, float), n_neurons)
    solutions = []
    for n, y in enumerate(Y.T):
        start = np.append(np.zeros(X.shape[1]), null_intercept(link, Y[:, n : n + 1], weights))
        solutions.append(_newton_one(link, Z, y, strengths[n] / scale**2, w, start, max_steps))
    v = np.stack(solutions, axis=1)
    coef = v[:-1] / scale[:, None]
    intercept = v[-1] - mean @ coef
    grad_coef, grad_intercept = gradient(link, X, Y, coef, intercept, weights, strengths)
    return Optimum(
        coef,
        intercept,
        objective(link, X, Y, coef, intercept, weights, strength=strengths),
        np.maximum(np.abs(grad_coef / scale[:, None]).max(axis=0), np.abs(grad_intercept)),
    )


def _newton_one(link, Z, y, ridge, w, v, max_steps):
    rows, penalty = with_ones(Z), np.append(ridge, 0.0)

    def value(v):
        return w @ loss(link, y, rows @ v) / len(y) + penalty @ v**2 / 2

    for _ in range(max_steps):
        eta = rows @ v
        g = rows.T @ (w * derivative(link, y, eta)) / len(y) + penalty * v
        H = (rows.T * (w * curvature(link, y, eta))) @ rows / len(y) + np.diag(penalty)
        step = solve(H, g)
        at, reach = value(v), np.max(np.abs(rows @ step))
        # If the full step does not descend, log(1 + S)/S of it does (|phi'''| <= phi'').
        full = value(v - step) <= at + 1e-15 * abs(at)
        v = v - (1.0 if full else np.log1p(reach) / reach) * step
        if g @ step < 1e-24:
            break
    return v


def solve(H, g):
    """H^-1 g, or the shortest solution where H is singular."""
    if np.linalg.cond(H) < 1e13:
        return np.linalg.solve(H, g)
    return np.linalg.lstsq(H, g, rcond=1e-14)[0]


def proximal(link, X, Y, name, strength, ratio=0.5, groups=None, weights=None, max_steps=30_000, tol=1e-13):
    """Optimum with a lasso, elastic net or group lasso: FISTA with restarts, all neurons together.

    Constant steps from the exact largest eigenvalue; features are scaled to unit variance, and their strengths
    with them (the group lasso's are left as they are: its norms mix features).
    """
    X, Y = np.asarray(X, float), np.asarray(Y, float)
    w, mean, scale = mean_one(weights, len(X)), X.mean(axis=0), np.ones((X.shape[1], 1))
    if name != "GroupLasso":
        spread = X.std(axis=0)
        scale[:, 0] = np.where(spread > 1e-12 * np.abs(X).max(axis=0), spread, 1)
    rows = with_ones((X - mean) / scale[:, 0])
    ridge = (strength * (1 - np.asarray(ratio)) if name == "ElasticNet" else 0.0) / scale**2
    sharp = (strength * np.asarray(ratio) if name == "ElasticNet" else strength) / scale
    sharp = strength if name == "GroupLasso" else sharp
    top = 0.25 + C_STAR * Y.max() if link == "softplus" else 3 * max(Y.max(), 1.0)
    step = 1 / (np.linalg.eigvalsh((rows.T * w) @ rows / len(X))[-1] * top + np.max(ridge))
    v = np.vstack([np.zeros((X.shape[1], Y.shape[1])), null_intercept(link, Y, weights)])
    ahead, t = v.copy(), 1.0
    curb = np.vstack([np.broadcast_to(ridge, v[:-1].shape), np.zeros((1, Y.shape[1]))])

    def smooth_gradient(v):
        return rows.T @ (w[:, None] * derivative(link, Y, rows @ v)) / len(X) + curb * v

    for i in range(max_steps):
        half = ahead - step * smooth_gradient(ahead)
        new = np.vstack([shrink(name, half[:-1], step * sharp, groups), half[-1:]])
        if np.sum((ahead - new) * (new - v)) > 0:
            t, ahead, v = 1.0, new, new
            continue
        t, before = (1 + np.sqrt(1 + 4 * t * t)) / 2, t
        ahead, v = new + (before - 1) / t * (new - v), new
        if i % 50 == 0 and _kkt(name, v, smooth_gradient(v), sharp, groups).max() < tol:
            break
    coef = v[:-1] / scale
    intercept = v[-1] - mean @ coef
    parts = {"strength": strength, "ratio": ratio, "groups": groups}
    return Optimum(
        coef,
        intercept,
        objective(link, X, Y, coef, intercept, weights, name, **parts),
        _kkt(name, v, smooth_gradient(v), sharp, groups),
    )


def shrink(name, V, threshold, groups=None):
    """Proximal operator of the non-smooth part, coefficient by coefficient or group by group."""
    if name != "GroupLasso":
        return np.sign(V) * np.maximum(np.abs(V) - threshold, 0)
    out, labels = V.copy(), np.asarray(groups)
    for label in set(labels.tolist()) - {-1}:
        norm = np.linalg.norm(V[labels == label], axis=0)
        keep = 1 - np.sqrt((labels == label).sum()) * threshold / np.where(norm > 0, norm, 1)
        out[labels == label] *= np.maximum(keep, 0)
    return out


def kkt_residual(link, X, Y, coef, intercept, name, strength, ratio=0.5, groups=None, weights=None):
    """Largest entry of the smallest subgradient, coefficients and intercept, (neuron,)."""
    ridge = strength * (1 - np.asarray(ratio)) if name == "ElasticNet" else 0.0
    sharp = strength * np.asarray(ratio) if name == "ElasticNet" else strength
    grad_coef, grad_intercept = gradient(link, X, Y, coef, intercept, weights, ridge)
    v, g = np.vstack([coef, intercept]), np.vstack([grad_coef, grad_intercept])
    return _kkt(name, v, g, sharp, groups)


def _kkt(name, v, g, sharp, groups):
    coef, grad = v[:-1], g[:-1]
    residual = np.empty_like(grad)
    if name == "GroupLasso":
        labels = np.asarray(groups)
        residual[labels == -1] = grad[labels == -1]
        for label in set(labels.tolist()) - {-1}:
            members = labels == label
            weight, norm = np.sqrt(members.sum()) * sharp, np.linalg.norm(coef[members], axis=0)
            length = np.linalg.norm(grad[members], axis=0)
            at_zero = grad[members] * np.maximum(1 - weight / np.where(length > 0, length, 1), 0)
            away = grad[members] + weight * coef[members] / np.where(norm > 0, norm, 1)
            residual[members] = np.where(norm > 0, away, at_zero)
    else:
        at_zero = np.sign(grad) * np.maximum(np.abs(grad) - sharp, 0)
        residual = np.where(coef == 0, at_zero, grad + sharp * np.sign(coef))
    return np.abs(np.vstack([residual, g[-1:]])).max(axis=0)


# -------------------------------------------------------------------------------- SAGA


def saga_estimate(Z, table, new, batch, factor):
    """Plain SAGA estimator of the gradient of the mean loss for one batch of rows: mean + correction."""
    correction = Z[batch].T @ (new[batch] - table[batch])
    return Z.T @ table / len(Z) + factor / len(Z) * correction


def every_subset(n_rows, size):
    return [np.array(chosen) for chosen in combinations(range(n_rows), size)]


def expected_smoothness(hessians, size):
    """Smallest c with E|H_S w|^2 <= c w'Hw for all w, S a uniform subset of ``size`` of the rows' Hessians."""
    total = np.mean(hessians, axis=0)
    second = np.mean(
        [hessians[s].mean(axis=0) @ hessians[s].mean(axis=0) for s in every_subset(len(hessians), size)], axis=0
    )
    root = np.linalg.inv(np.linalg.cholesky(total))
    return np.linalg.eigvalsh(root @ second @ root.T)[-1]


# -------------------------------------------------------------------------------- certificates


def gap_bound(decrement_squared, radius_squared):
    """(q + (1-q) log(1-q)) / R^2 with 60 digits, as an mpmath number; q < 1."""
    with mp.workdps(60):
        radius = mp.sqrt(mp.mpf(float(radius_squared)))
        q = radius * mp.sqrt(mp.mpf(float(decrement_squared)))
        return (q + (1 - q) * mp.log(1 - q)) / radius**2


def largest_reach(X, H):
    """max_t x_t'H^-1 x_t with the intercept's 1 in x_t."""
    rows = with_ones(X)
    return np.max(np.sum(rows * np.linalg.solve(H, rows.T).T, axis=1))
