"""True gaps of ridge, lasso and group lasso fits, against optima in float64; nothing here imports glmfit.

F is that of `_problems`; with groups its penalty is strength sum_g sqrt(|g|) ||w_g||, which is the lasso for groups of
one feature. The optimum is found from a given fit by Newton's method, or by its proximal version for a non-smooth
penalty. The evidence of optimality, the squared decrement or the residual of the subgradient, is computed here.
"""

from __future__ import annotations

from dataclasses import replace

import _problems
import numpy as np
from _problems import Problem
from scipy.linalg import cho_factor, cho_solve

RESIDUAL = 1e-7  # of the subgradient over the strength, at which a non-smooth reference has converged


class Reference:
    """Optima of a problem, found once for every requested strength, and the gaps of fits to them."""

    def __init__(self, problem: Problem, groups=None):
        self.problem, self.groups, self._optima = problem, groups, {}

    def gaps(self, coef, intercept, strength=None) -> dict:
        """Relative gap of the population and of its worst neuron, and the remaining error of the reference.

        The worst neuron is relative to its improvement over the best constant rate, or to a hundredth of a nat over the
        recording if it improves by less.
        """
        problem = self.problem if strength is None else replace(self.problem, strength=np.asarray(strength))
        key = np.asarray(problem.strength).tobytes()
        if key not in self._optima:
            self._optima[key] = optimum(problem, self.groups, np.vstack([coef, intercept]))
        best, left = self._optima[key]
        distance = objective(problem, self.groups, coef, intercept) - best
        improvement = _problems.null_objective(problem) - best
        return {
            "gap": float(distance.sum() / improvement.sum()),
            "worst_neuron_gap": float(np.max(distance / np.maximum(improvement, 1e-2 / len(problem.X)))),
            "reference_left": float(left.max()),
        }


def objective(problem: Problem, groups, coef, intercept) -> np.ndarray:
    """F per neuron in float64, (neuron,); infinite if parameters are not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if groups is None:
            value = _problems.objective(problem, coef, intercept)
        else:
            smooth = _problems.objective(replace(problem, strength=0.0), coef, intercept)
            value = smooth + _threshold(problem, groups) @ _norms(np.asarray(coef, np.float64), groups)
    return np.where(np.isfinite(value), value, np.inf)


def optimum(problem: Problem, groups, start) -> tuple[np.ndarray, np.ndarray]:
    """F* of every neuron, and the final squared decrement or residual, (neuron,).

    Each neuron starts from ``start``, or from its null model if that is better.
    """
    null = _problems.null_parameters(problem)
    worse = objective(problem, groups, start[:-1], start[-1]) >= _problems.null_objective(problem)
    start = np.where(worse, null, start)
    if groups is None:
        return _problems.newton(problem, start)[1:]
    X1, pull = _problems._with_ones(problem.X), np.append(_threshold(problem, groups), 0.0)
    labels = np.append(groups, max(groups) + 1)  # the intercept is a group without a penalty
    found = [
        _proximal_newton(X1, y.astype(np.float64), problem.link, labels, pull, w)
        for y, w in zip(problem.Y.T, start.T, strict=True)
    ]
    return tuple(np.array(found).T)


def _threshold(problem, groups) -> np.ndarray:
    return problem.strength * np.sqrt(np.bincount(groups))


def _norms(w, labels) -> np.ndarray:
    """Norm of every group of rows, (group,) or (group, column)."""
    squares = np.zeros((max(labels) + 1, *w.shape[1:]))
    np.add.at(squares, np.asarray(labels), w**2)
    return np.sqrt(squares)


# ---------------------------------------------------------------------------------- proximal Newton


def _proximal_newton(X1, y, link, labels, pull, w):
    """F* of one neuron, and the final residual over the smallest strength of a group."""
    flat, best = np.zeros(len(w)), np.inf
    for _ in range(40):
        value, g, H = _problems._expand(X1, y, link, flat, w)
        value += pull @ _norms(w, labels)
        residual = np.abs(_subgradient(w, g, labels, pull)).max() / pull[:-1].min()
        if residual < RESIDUAL or not value < best:
            break
        best, step, length = value, _least_quadratic(H, g - H @ w, labels, pull, w) - w, 1.0
        while length > 1e-6:
            trial = w + length * step
            if _problems._value(X1, y, link, flat, trial) + pull @ _norms(trial, labels) <= value:
                break
            length /= 2
        w = trial
    return min(best, value), residual


def _subgradient(w, g, labels, pull):
    """The smallest subgradient: for a group at zero, the part that exceeds its penalty."""
    size, slope = _norms(w, labels)[labels], _norms(g, labels)[labels]
    pull = pull[labels]
    at_zero = g * np.maximum(1 - pull / np.where(slope > 0, slope, 1), 0)
    return np.where(size > 0, g + pull * w / np.where(size > 0, size, 1), at_zero)


def _least_quadratic(H, c, labels, pull, w):
    """Minimise x'Hx/2 + c'x + sum_g pull_g ||x_g||: by ADMM, then Newton on the non-zero groups."""
    weight = np.median(np.diag(H))
    factor = cho_factor(H + weight * np.eye(len(w)))
    z, dual = w, -(H @ w + c) / weight
    for _ in range(100):
        for _ in range(30):
            x = cho_solve(factor, weight * (z - dual) - c)
            size = _norms(x + dual, labels)
            keep = np.maximum(1 - pull / weight / np.where(size > 0, size, 1), 0)
            z = (x + dual) * keep[labels]
            dual = dual + x - z
        exact = _on_groups(H, c, labels, pull, z)
        if exact is not None:
            return exact
    return z


def _on_groups(H, c, labels, pull, z):
    """The minimum if its non-zero groups are exactly those of ``z``; None otherwise."""
    on = (_norms(z, labels) > 0)[labels]
    A, b, groups, x = H[np.ix_(on, on)], c[on], labels[on], z[on].copy()
    together = groups[:, None] == groups
    for _ in range(12):
        size = _norms(x, labels=groups)[groups]
        if not np.all(size > 0):
            return None
        bend, unit = pull[groups] / size, x / size
        g = A @ x + b + pull[groups] * unit
        curved = A + np.diag(bend) - together * bend[:, None] * np.outer(unit, unit)
        try:
            x = x - np.linalg.solve(curved, g)
        except np.linalg.LinAlgError:
            return None
    full = np.zeros(len(z))
    full[on] = x
    left = np.abs(_subgradient(full, H @ full + c, labels, pull)).max()
    return full if left < 0.1 * RESIDUAL * pull[:-1].min() else None
