"""Ridge that maximises the marginal likelihood, one neuron at a time, by dense matrices. Never imports glmfit."""

import numpy as np
from oracles import population as oracle
from scipy.optimize import brentq, minimize_scalar


def units(X):
    """Half the range of every feature, or a tenth of the (lower) median of these."""
    half = np.ptp(X, axis=0) / 2
    return np.maximum(half, 0.1 * np.sort(half)[(len(half) - 1) // 2])


def strength(link, X, y, weights=None, offset=None, exposure=1.0):
    """Strength of every coefficient, (feature,); ``weights`` have the exposure inside, ``offset`` is (row,)."""
    X, y = np.asarray(X, float), np.asarray(y, float)
    w = np.ones(len(X)) if weights is None else np.asarray(weights, float)
    alone = w / exposure
    known, observed = (0.0 if offset is None else offset), w.sum() * alone.sum() / np.sum(alone**2)
    w = w / w.sum()
    intercept = brentq(lambda b: w @ oracle.derivative(link, y, b + known), -30, 30, xtol=1e-12)
    u = units(X[w > 0])
    centred = (X - w @ X) / u
    C = centred.T @ (w[:, None] * centred)
    g = centred.T @ (w * oracle.derivative(link, y, intercept + known))
    h = w @ oracle.curvature(link, y, intercept + known)
    identity, variances = np.eye(len(C)), np.linalg.eigvalsh(C)
    variances = variances[variances > 1e-12 * variances[-1]]

    def minus_twice_log_evidence(log_strength):
        alpha = np.exp(log_strength)
        spread = np.linalg.slogdet(identity + h * C / alpha)[1]
        return spread - observed * g @ np.linalg.solve(h * C + alpha * identity, g)

    def explained(log_strength):
        """Twice the gain of the expanded log-likelihood at the penalised optimum."""
        v = np.linalg.solve(h * C + np.exp(log_strength) * identity, g)
        return observed * (2 * g @ v - h * v @ C @ v)

    grid = np.linspace(np.log(1e-4 * h * variances[0]), np.log(10 * h * variances[-1]), 500)
    best = int(np.argmin([minus_twice_log_evidence(a) for a in grid]))
    likely = grid[best]
    if 0 < best < 499:
        bounds = grid[best - 1], grid[best + 1]
        likely = minimize_scalar(minus_twice_log_evidence, bounds=bounds, method="bounded").x
    enough = max((a for a in grid if explained(a) >= 0.5 * explained(likely)), default=grid[0])
    weakest = np.log(1.5 * np.trace(C) / observed)
    return np.exp(max(likely, min(weakest, enough))) * u**2
