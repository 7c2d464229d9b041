"""Ridge of the greatest marginal likelihood, one neuron at a time, by dense matrices. Never imports glmfit."""

import numpy as np
from oracles import population as oracle
from scipy.optimize import brentq, minimize_scalar


def strength(link, X, y, weights=None, offset=None):
    """Strength by dense matrices; ``weights`` are numbers of rows, ``offset`` is (row,)."""
    X, y = np.asarray(X, float), np.asarray(y, float)
    w = np.ones(len(X)) if weights is None else np.asarray(weights, float)
    known, total = (0.0 if offset is None else offset), w.sum()
    intercept = brentq(lambda b: w @ oracle.derivative(link, y, b + known), -30, 30, xtol=1e-12)
    centred = X - w @ X / total
    C = centred.T @ (w[:, None] * centred) / total
    g = centred.T @ (w * oracle.derivative(link, y, intercept + known)) / total
    h = w @ oracle.curvature(link, y, intercept + known) / total
    variances = np.linalg.eigvalsh(C)
    variances = variances[variances > 1e-12 * variances[-1]]
    weakest = min(np.trace(C) / total, max(np.median(variances), 1e-6 * variances[-1]) / 20)

    def minus_twice_log_evidence(log_strength):
        precision = h * C + np.exp(log_strength) * np.eye(len(C))
        shrunk = np.linalg.slogdet(np.eye(len(C)) + h * C * np.exp(-log_strength))[1]
        return shrunk - total * g @ np.linalg.solve(precision, g)

    ends = np.log(weakest), np.log(max(weakest, 10 * h * variances[-1]))
    grid = np.linspace(*ends, 300)
    best = int(np.argmin([minus_twice_log_evidence(a) for a in grid]))
    if best in (0, 299):
        return np.exp(grid[best])
    bounds = grid[best - 1], grid[best + 1]
    return np.exp(minimize_scalar(minus_twice_log_evidence, bounds=bounds, method="bounded").x)
