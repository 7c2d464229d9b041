"""Penalties from their definitions, neuron by neuron. Never imports glmfit."""

import numpy as np


def value(name, coef, strength, ratio=0.5, groups=None):
    """R_n(w_n) for each column of coef (feature, neuron); strengths (), (neuron,) or (feature or group, neuron)."""
    return smooth(name, coef, strength, ratio) + nonsmooth(name, coef, strength, ratio, groups)


def smooth(name, coef, strength, ratio=0.5):
    """The ridge part of each neuron."""
    if name not in ("Ridge", "ElasticNet"):
        return np.zeros(coef.shape[1])
    share = 1.0 if name == "Ridge" else 1.0 - np.asarray(ratio)
    return np.sum(share * strength * coef**2 / 2, axis=0)


def nonsmooth(name, coef, strength, ratio=0.5, groups=None):
    """The l1 or group part of each neuron."""
    if name == "Lasso":
        return np.sum(strength * np.abs(coef), axis=0)
    if name == "ElasticNet":
        return np.sum(strength * ratio * np.abs(coef), axis=0)
    if name == "GroupLasso":
        labels = np.asarray(groups)
        of_groups = np.array([_group_norms(w, labels) for w in coef.T]).T
        return np.sum(strength * of_groups, axis=0)
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


def _group_norms(w, labels):
    groups = [w[labels == label] for label in sorted(set(labels.tolist()) - {-1})]
    return [np.sqrt(len(members)) * np.sqrt(members @ members) for members in groups]
