"""Proximal Newton steps on one neuron in float64, for penalties with kinks: a quadratic model plus the exact penalty.

Only features whose coefficients are not zero, or should not be, enter the model. Theory: docs/theory/duality.md.
"""

import numpy as np

from .kinked import least_of_models
from .newton import CLOSE, Iterate, Step, judge_exactly, search

_LIFT = 1e-9  # of the scaled diagonal: duplicates may share a coefficient in any way


def start(problem, at: np.ndarray, near: bool = False) -> Iterate:
    """Return the first iterate of a one-neuron problem; ``near`` makes no difference here."""
    return _look(problem, Iterate(at), np.inf)


def iterate(problem, at: Iterate) -> Iterate:
    """Take one proximal Newton step of a one-neuron problem, never uphill but for rounding."""
    if not np.isfinite(at.objective):
        return at._replace(stuck=True)
    step = model_step(problem, at)
    at = at._replace(passes=at.passes + 1)
    if not step.slope > at.rounding:
        # Objectives no longer distinguish the points; the violation of the optimality conditions does.
        after = _look(problem, at.towards(step), abs(step.slope))
        rounding = problem.rounding_of(at.params, np.array([at.objective]))[0]
        after = _proved(problem, after if after.objective <= at.objective + rounding else at)
        if after.bound < at.bound:
            return after
        lower = after.objective <= at.objective + at.rounding and after.estimate < at.estimate
        return (after if lower else _proved(problem, at))._replace(stuck=True)
    after = search(problem, at, step, lambda problem, there: _look(problem, there, step.slope))
    return _proved(problem, after) if step.slope <= CLOSE / problem.n_rows else after


def _look(problem, at: Iterate, slope: float) -> Iterate:
    """Compute objective, gradient and a bound by duality in one pass."""
    value, bound = problem.evaluate_with_dual(at.params)
    return at.seen(value)._replace(bound=float(bound[0]), estimate=min(float(bound[0]), slope))


def _proved(problem, at: Iterate) -> Iterate:
    """Bound the gap by self-concordance if features without a penalty rule out duality."""
    if problem.penalty.penalises_all:
        return at
    judged = judge_exactly(problem, at)
    return at._replace(bound=judged.bound, estimate=judged.estimate, passes=judged.passes)


def model_step(problem, at: Iterate) -> Step:
    """Return the step to the minimum of the quadratic model plus the penalty."""
    penalty, (mean, scale), (coef, gradient) = problem.penalty, problem.standard, (at.at[:-1], at.gradient[:-1])
    labels, strength = penalty.blocks(len(coef))
    missed = np.asarray(penalty.subgradient_residual(coef[:, None], gradient[:, None]), np.float64)[:, 0]
    inside = np.flatnonzero((labels < 0) | np.isin(labels, labels[(coef != 0) | (missed != 0)]))
    labels, mean, scale = labels[inside], mean[inside], np.append(scale[inside], 1.0)
    H, _ = problem.hessian_of_one(at.at, np.float64, inside)
    Q, step = H * np.outer(scale, scale), np.zeros(len(at.at))
    flat = np.diag(Q) == 0  # constant features: 0 is as good as any coefficient, and what a penalty wants
    Q[np.diag_indices_from(Q)] = np.where(flat, 1.0, (1 + _LIFT) * np.diag(Q))
    if not np.all(np.isfinite(Q)):
        return Step(step, 0.0, 0.0)
    g = np.where(flat, 0.0, np.append(gradient[inside] - mean * at.gradient[-1], at.gradient[-1]))
    before = np.append(coef[inside], 0.0)
    every = np.append(labels, -1)
    after = least_of_models(*(a[None] for a in (Q, Q @ before - g, every, strength, before)))[0]
    move = np.where(flat, 0.0, after) - before
    step[inside], step[-1] = move[:-1], move[-1] - mean @ move[:-1]
    ridge = np.ravel(penalty.ridge_strength)
    kinks = [float(penalty.value(w[:, None])[0]) - np.sum(ridge * w**2) / 2 for w in (coef, coef + step[:-1])]
    return Step(step, float(kinks[0] - kinks[1] - g @ move), float(move @ Q @ move))
