"""Proximal Newton steps on one neuron in float64, for penalties with kinks: the quadratic model and the penalty whole.

Only features that are not zero, or should not be, enter the model. Theory: docs/theory/duality.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..bounds import descent_step
from . import _host, _newton
from ._active_set import minimise_groups, minimise_l1
from ._newton import CLOSE
from .base import Params

_LIFT = 1e-9  # of the scaled diagonal: of duplicates any share will do


class ProximalIterate(NamedTuple):
    """One neuron on its way: parameters, objective, residual, and what is known of the gap."""

    coef: np.ndarray  # (feature,)
    intercept: float
    objective: float
    grad_coef: np.ndarray  # of the smooth part
    grad_intercept: float
    bound: float  # of F - F*; inf where there is none
    estimate: float
    passes: int  # over the rows, so far
    stuck: bool = False  # no step descends any more: rounding


def start(problem, coef, intercept, near: bool = False) -> ProximalIterate:
    """First iterate of a one-neuron problem; near the optimum or not is the same here."""
    return _look(problem, np.asarray(coef, np.float64), float(intercept), np.inf, 0)


def iterate(problem, at: ProximalIterate) -> ProximalIterate:
    """One proximal Newton step of a one-neuron problem, never uphill."""
    if not np.isfinite(at.objective):
        return at._replace(stuck=True)
    step, step_intercept, slope, curvature = _direction(problem, at)
    at = at._replace(passes=at.passes + 1)
    rounding = 4e-16 * max(abs(at.objective), 1.0)
    if not slope > rounding:
        # Objectives no longer tell one from the other; how far the conditions of the optimum are from holding does.
        after = _look(problem, at.coef + step, at.intercept + step_intercept, abs(slope), at.passes)
        after = after if after.objective <= at.objective + rounding else at
        if not problem.penalty.penalises_all:
            after = _prove_by_hessian(problem, after)
        if after.bound < at.bound:
            return after
        return (after if after.estimate < at.estimate else at)._replace(stuck=True)
    length = 1.0
    while True:
        after = _look(problem, at.coef + length * step, at.intercept + length * step_intercept, slope, at.passes)
        if after.objective <= at.objective - 1e-4 * length * slope + rounding:
            break
        if length == 1.0:  # the length that is sure to descend
            reach = problem.largest_move(step, step_intercept)
            sure = min(float(descent_step(*(np.asarray([a]) for a in (slope, curvature, reach)))[0]), 0.5)
        at = at._replace(passes=after.passes)
        if length <= sure:
            return at._replace(stuck=True)
        length = max(length / 2, sure)
    if not problem.penalty.penalises_all and slope <= CLOSE / problem.n_rows:
        after = _prove_by_hessian(problem, after)
    return after


def _look(problem, coef, intercept, slope, passes) -> ProximalIterate:
    """Take a pass."""
    value, bound = problem.evaluate_with_dual(Params(coef[:, None], np.array([intercept])))
    gap, objective = float(bound[0]), float(value.objective[0])
    return ProximalIterate(
        coef, intercept, objective, value.grad_coef[:, 0], float(value.grad_intercept[0]), gap, min(gap, slope),
        passes + 1,
    )  # fmt: skip


def _direction(problem, at: ProximalIterate):
    """Step to the least of the quadratic model plus the penalty, its slope (above 0 downhill) and curvature."""
    penalty, (mean, scale) = problem.penalty, problem.standard
    labels, strength = penalty.blocks(len(at.coef))
    missed = np.asarray(penalty.subgradient_residual(at.coef[:, None], at.grad_coef[:, None]), np.float64)[:, 0]
    inside = np.flatnonzero((labels < 0) | np.isin(labels, labels[(at.coef != 0) | (missed != 0)]))
    labels, mean, scale = labels[inside], mean[inside], np.append(scale[inside], 1.0)
    ridge = np.broadcast_to(np.ravel(penalty.ridge_strength), len(at.coef))
    H, _ = _host.hessian(
        _Columns(problem.X, inside), problem.Y[:, 0], problem.weights, problem.observation, at.coef[inside],
        at.intercept, mean, scale[:-1], offset=None if problem.offset is None else problem.offset[:, 0],
    )  # fmt: skip
    Q = H * np.outer(scale, scale) + np.diag(np.append(ridge[inside], 0.0))
    flat = np.diag(Q) == 0  # constant features: nothing but their penalty moves them, and rounding of no gradient
    Q[np.diag_indices_from(Q)] = np.where(flat, 1.0, (1 + _LIFT) * np.diag(Q))
    if not np.all(np.isfinite(Q)):
        return np.zeros(len(at.coef)), 0.0, 0.0, 0.0
    g = np.where(flat, 0.0, np.append(at.grad_coef[inside] - mean * at.grad_intercept, at.grad_intercept))
    before = np.append(at.coef[inside], 0.0)
    move = least_of_model(Q, Q @ before - g, labels, strength, before) - before
    step = np.zeros(len(at.coef))
    step[inside] = move[:-1]
    kinks = [float(penalty.value(w[:, None])[0]) - ridge @ w**2 / 2 for w in (at.coef, at.coef + step)]
    slope, curvature = kinks[0] - kinks[1] - g @ move, move @ Q @ move
    return step, float(move[-1] - mean @ move[:-1]), float(slope), float(curvature)


def least_of_model(Q, c, labels, strength, before):
    """Minimise ``w'Q w / 2 - c'w`` plus the norms of the blocks; the last variable is free."""
    unit = 1 / np.sqrt(np.maximum(np.diag(Q), np.finfo(float).tiny))
    single = len(np.unique(labels)) == len(labels) and np.all(labels >= 0)
    if not single:  # the features of a group keep their proportions
        for label in np.unique(labels[labels >= 0]):
            members = np.flatnonzero(labels == label)
            unit[members] = unit[members].min()
    Q = Q * unit * unit[:, None]
    c, before = c * unit, before / unit
    if single:
        return unit * minimise_l1(Q, c, np.append(strength[labels], 0.0) * unit, before)
    known, group = np.unique(np.append(labels, -1), return_inverse=True)  # that of the free ones is the first
    norms = np.zeros(len(known))
    norms[group[:-1]] = unit[:-1] * strength[labels] * (labels >= 0)
    return unit * minimise_groups(Q, c, group, norms, before)


def _prove_by_hessian(problem, at: ProximalIterate) -> ProximalIterate:
    """Bound the gap by self-concordance, where features without a penalty leave nothing to duality."""
    judged = _newton.start(problem, at.coef, at.intercept, near=True)
    return at._replace(bound=judged.bound, estimate=judged.estimate, passes=at.passes + judged.passes)


class _Columns:
    """Some columns of a design, as chunks of rows are asked for."""

    def __init__(self, X, columns):
        self.X, self.columns = X, columns if len(columns) < X.shape[1] else slice(None)

    def __getitem__(self, rows):
        return self.X[rows][:, self.columns]
