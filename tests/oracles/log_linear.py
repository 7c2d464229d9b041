"""Log-linear models written down slowly: sums over outcomes one by one, chains by listing all their labels."""

import itertools

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax


def objective(features, observed, strength, theta, log_h, weight):
    """Mean negative log-likelihood of the rows plus the ridge; features are a list of (outcome, parameter)."""
    total = 0.0
    for f, y, h, c in zip(features, observed, log_h, weight, strict=True):
        scores = [h[k] + sum(f[k, j] * theta[j] for j in range(len(theta))) for k in range(len(f))]
        total += c * (logsumexp(scores) - scores[y])
    return total / len(features) + np.sum(strength * theta**2) / 2


def derivatives(features, observed, strength, theta, log_h, weight):
    """Gradient and Hessian: means and covariances of the features under the model."""
    gradient, hessian = strength * theta, np.diag(strength * np.ones(len(theta)))
    for f, y, h, c in zip(features, observed, log_h, weight, strict=True):
        p = softmax(f @ theta + h)
        mean = p @ f
        gradient = gradient + c * (mean - f[y]) / len(features)
        hessian = hessian + c * ((f - mean).T * p) @ (f - mean) / len(features)
    return gradient, hessian


def optimum(*model):
    """Minimise by L-BFGS, then by Newton steps: (theta, objective)."""
    features, observed, strength, log_h, weight = model

    def value(theta):
        total = np.sum(strength * theta**2) / 2
        for f, y, h, c in zip(features, observed, log_h, weight, strict=True):
            scores = f @ theta + h
            total += c * (logsumexp(scores) - scores[y]) / len(features)
        return total, derivatives(features, observed, strength, theta, log_h, weight)[0]

    theta = minimize(value, np.zeros(features[0].shape[1]), jac=True, method="L-BFGS-B", options={"ftol": 1e-15}).x
    for _ in range(6):
        gradient, hessian = derivatives(features, observed, strength, theta, log_h, weight)
        after = theta - np.linalg.lstsq(hessian, gradient, rcond=1e-12)[0]
        theta = after if value(after)[0] <= value(theta)[0] else theta
    return theta, value(theta)[0]


def chain(X, labels, n_labels):
    """Features of every sequence of labels, (sequence, parameter), and the index of ``labels`` among them."""
    n_features = X.shape[1]
    ways = list(itertools.product(range(n_labels), repeat=len(X)))
    features = np.zeros((len(ways), n_labels * n_features + n_labels**2))
    for f, way in zip(features, ways, strict=True):
        for t, y in enumerate(way):
            f[y * n_features : (y + 1) * n_features] += X[t]
            if t > 0:
                f[n_labels * n_features + way[t - 1] * n_labels + y] += 1
    return features, ways.index(tuple(labels))
