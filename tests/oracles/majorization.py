"""Quadratic bounds of log-partition functions written down slowly: outcome after outcome, every matrix formed."""

import mpmath as mp
import numpy as np
from scipy.special import logsumexp, softmax


def beta(d):
    """tanh(|d|/2) / (2|d|) with 50 digits, its limits at 0 and at infinity."""
    if d == 0:
        return mp.mpf(1) / 4
    if np.isinf(d):
        return mp.mpf(0)
    with mp.workdps(50):
        d = abs(mp.mpf(float(d)))
        return mp.tanh(d / 2) / (2 * d)


def log_partition(features, theta, log_h):
    return logsumexp(features @ theta + log_h)


def moments(features, theta, log_h):
    """Gradient and Hessian of the log-partition function: mean and covariance of the features."""
    p = softmax(features @ theta + log_h)
    mean = p @ features
    return mean, (features - mean).T @ ((features - mean) * p[:, None])


def bound(features, theta, log_h):
    """Value, gradient and curvature by the sequential listing, with the exact limit z -> 0."""
    log_z, g, S = -np.inf, np.zeros(len(theta)), np.zeros((len(theta), len(theta)))
    for f, lh in zip(features, log_h, strict=True):
        if lh == -np.inf:
            continue
        log_alpha, l = lh + theta @ f, f - g
        if log_z == -np.inf:
            kappa = 1.0
        else:
            S = S + float(beta(log_alpha - log_z)) * np.outer(l, l)
            kappa = np.exp(log_alpha - np.logaddexp(log_z, log_alpha))
        g = g + kappa * l
        log_z = np.logaddexp(log_z, log_alpha)
    return log_z, g, S


def printed_bound(features, theta, h, z):
    """Algorithm 1 to the letter, starting from a small z > 0 instead of the limit."""
    g, S = np.zeros(len(theta)), z * np.eye(len(theta))
    for f, weight in zip(features, h, strict=True):
        alpha, l = weight * np.exp(theta @ f), f - g
        S = S + float(beta(np.log(alpha) - np.log(z))) * np.outer(l, l)
        g = g + alpha / (z + alpha) * l
        z = z + alpha
    return np.log(z), g, S


def softmax_curvature(s):
    """C (class, class) of one row of scores: a rank-one matrix for every class but the first."""
    C = np.zeros((len(s), len(s)))
    for y in range(1, len(s)):
        if s[y] == -np.inf or np.all(s[:y] == -np.inf):
            continue
        l = np.zeros(len(s))
        l[y] = 1.0
        l[:y] = -softmax(s[:y])
        C += float(beta(s[y] - logsumexp(s[:y]))) * np.outer(l, l)
    return C


def one_pass(features, labels, theta, ridge, printed=False):
    """Algorithm 2 over all rows with theta fixed: phi and the step it should be; features (row, outcome, parameter).

    printed: the update of the paper, which adds the label's and the ridge's part once per outcome.
    """
    M, mu, phi = np.eye(len(theta)) / ridge, np.zeros(len(theta)), np.zeros(len(theta))
    total, gradient = ridge * np.eye(len(theta)), ridge * theta
    for f, label in zip(features, labels, strict=True):
        once = ridge * theta / len(features) - f[label]
        log_z, g = -np.inf, np.zeros(len(theta))
        for y in range(len(f)):
            log_alpha, l = theta @ f[y], f[y] - g
            b = 0.0 if y == 0 else float(beta(log_alpha - log_z))
            log_z = np.logaddexp(log_z, log_alpha)
            step = np.exp(log_alpha - log_z) * l
            xi = step + (once if printed else once / len(f))
            N = b * np.outer(M @ l, M @ l) / (1 + b * l @ M @ l)
            M = M - N
            phi = phi + M @ xi - N @ mu
            mu, g = mu + xi, g + step
            total = total + b * np.outer(l, l)
        gradient = gradient + g - f[label]
    return phi, np.linalg.solve(total, gradient)
