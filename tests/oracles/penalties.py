"""Penalties from their definitions, neuron by neuron. Never imports glmfit."""

import numpy as np


def value(name, coef, strength, ratio=0.5, groups=None):
    """R_n(w_n) for each column of coef (feature, neuron)."""
    return smooth(name, coef, strength, ratio) + nonsmooth(name, coef, strength, ratio, groups)


def smooth(name, coef, strength, ratio=0.5):
    """The ridge part of each neuron."""
    share = {"Ridge": 1.0, "ElasticNet": 1.0 - np.asarray(ratio)}.get(name, 0.0)
    return share * strength * np.array([w @ w / 2 for w in coef.T])


def nonsmooth(name, coef, strength, ratio=0.5, groups=None):
    """The l1 or group part of each neuron."""
    if name == "Lasso":
        return strength * np.array([np.abs(w).sum() for w in coef.T])
    if name == "ElasticNet":
        return strength * ratio * np.array([np.abs(w).sum() for w in coef.T])
    if name == "GroupLasso":
        labels = np.asarray(groups)
        return strength * np.array([_group_sum(w, labels) for w in coef.T])
    return np.zeros(coef.shape[1])


def prox_objective(name, v, at, step, scale, **penalty):
    """||v - at||^2 / (2 step) + nonsmooth(v / scale), for each neuron."""
    quadratic = ((v - at) ** 2 / (2 * step)).sum(axis=0)
    return quadratic + nonsmooth(name, v / scale[:, None], **penalty)


def directional_derivative(name, coef, grad, direction, **penalty):
    """Slope along direction of each neuron's objective, whose smooth part has gradient grad at coef."""
    t = 1e-7
    change = nonsmooth(name, coef + t * direction, **penalty) - nonsmooth(name, coef, **penalty)
    return (grad * direction).sum(axis=0) + change / t


def _group_sum(w, labels):
    total = 0.0
    for label in set(labels.tolist()) - {-1}:
        members = w[labels == label]
        total += np.sqrt(len(members)) * np.sqrt(members @ members)
    return total
