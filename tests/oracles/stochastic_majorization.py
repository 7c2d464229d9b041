"""Stochastic bound majorization, row by row and class by class, in all K (features + 1) coordinates at once.

A model is W (class, column), its rows x end with a 1 if there is an intercept; ``ridge`` and ``start`` are numbers per
column: the penalty of the sum over rows, and the initial curvature. Y (row, class) are counts.
"""

import numpy as np


def gap_curvature(d):
    return 0.25 if d == 0 else np.tanh(abs(d) / 2) / (2 * abs(d))


def rank_ones(W, x, offset=0.0):
    """Weight beta, share kappa and direction l = (e_y - g) (x) x of every class, in the exact limit z -> 0."""
    scores = W @ x + offset
    log_z, g = -np.inf, np.zeros(len(W))
    for y, s in enumerate(scores):
        away = np.eye(len(W))[y] - g
        if y == 0:
            beta, kappa, log_z = 0.0, 1.0, s
        else:
            beta, new = gap_curvature(s - log_z), np.logaddexp(log_z, s)
            kappa, log_z = np.exp(s - new), new
        yield beta, kappa, np.kron(away, x)
        g = g + kappa * away


def curvature(W, X, Y, offset=None):
    """Sum over rows of n_i C_i (x) x_i x_i'."""
    total = np.zeros((W.size, W.size))
    for i, x in enumerate(X):
        for beta, _, l in rank_ones(W, x, 0.0 if offset is None else offset[i]):
            total += Y[i].sum() * beta * np.outer(l, l)
    return total


def gradient(W, X, Y, ridge, offset=None):
    """Gradient of the sum over rows of the losses, plus the ridge."""
    scores = X @ W.T + (0.0 if offset is None else offset)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return ((Y.sum(axis=1, keepdims=True) * p - Y).T @ X + ridge * W).ravel()


def listing(W, X, Y, epochs, ridge, start, gain=1.0, offset=None, printed=False, restart=False, frozen=False):
    """Algorithm 2; ``epochs`` lists the batches of every epoch.

    Returns W, M, mu, phi. ``printed`` counts the observed features and the ridge once per class, as printed.
    """
    t, W = len(X), W.copy()
    M, mu, phi = np.diag(1 / np.tile(start, len(W))), np.zeros(W.size), np.zeros(W.size)
    for epoch, batches in enumerate(epochs):
        if restart and epoch > 0:
            M, mu, phi = np.diag(1 / np.tile(start, len(W))), np.zeros(W.size), np.zeros(W.size)
        for batch in batches:
            for j in batch:
                n, seen, shrink = Y[j].sum(), np.kron(Y[j], X[j]), (ridge * W).ravel() / t
                terms = list(rank_ones(W, X[j], 0.0 if offset is None else offset[j]))
                for y, (beta, kappa, l) in enumerate(terms):
                    xi = n * kappa * l
                    if printed or y == 0:
                        xi = xi - seen + shrink
                    Ml = M @ l
                    N = n * beta * np.outer(Ml, Ml) / (1 + n * beta * l @ Ml)
                    M = M - N
                    phi = phi + M @ xi - N @ mu
                    mu = mu + xi
            if not frozen:
                W = W - gain * len(batch) / t * phi.reshape(W.shape)
    return W, M, mu, phi


def logistic_listing(w, X, y, order, ridge, start, gain=1.0):
    """Two classes: Algorithm 2 for the log-odds w'x of y = 1, one rank-one update per row."""
    t, M, mu = len(X), np.diag(1 / start), np.zeros(len(w))
    for j in order:
        x, s = X[j], X[j] @ w
        Mx, beta = M @ x, gap_curvature(s)
        M = M - beta * np.outer(Mx, Mx) / (1 + beta * x @ Mx)
        mu = mu + (1 / (1 + np.exp(-s)) - y[j]) * x + ridge * w / t
        w = w - gain / t * M @ mu
    return w


def gradient_descent(W, X, Y, batches, ridge, gains):
    """Gradient steps on the mean over rows, one gain per batch; ``ridge`` is that of the sum."""
    t, W = len(X), W.copy()
    for batch, eta in zip(batches, gains, strict=True):
        step = gradient(W, X[batch], Y[batch], ridge * len(batch) / t) / len(batch)
        W = W - eta * step.reshape(W.shape)
    return W
