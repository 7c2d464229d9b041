"""Exact Newton steps on one neuron in float64, and the gap bound that comes with its Hessian.

Theory: docs/theory/self_concordance.md. All on the host: one neuron's Hessian is one BLAS product.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from ..bounds import descent_step, gap_bound
from ._chunks import small_blas
from .base import Params

_FAR = 1e-2  # of what the model explains, still to be gained
CLOSE = 1e-2  # nats of the recording, still to be gained
_REUSE = 0.05  # a Hessian is used again while it shrinks the squared decrement by this factor


class NewtonSystem:
    """Factorised Hessian of one neuron in centred coordinates.

    Parameters
    ----------
    matrix :
        Hessian with the ridge inside, (column, column), intercept last.
    reach :
        Largest squared norm of a row in the same coordinates.
    mean, scale :
        Rows are ``[(x - mean) / scale, 1]``.

    Notes
    -----
    Directions whose curvature is below 1e-13 of the largest, after scaling the diagonal to one, are left out:
    the data do not see them (duplicate or constant columns), or the neuron is separable.
    """

    def __init__(self, matrix, reach, mean, scale):
        self.matrix, self.reach, self.mean, self.scale = matrix, reach, mean, scale

    @cached_property
    def factor(self) -> np.ndarray:
        """A with ``A H A' = I`` on the directions kept, (direction, column)."""
        diagonal = np.diag(self.matrix)
        root = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        scaled = self.matrix / np.outer(root, root)
        with small_blas(len(scaled)):
            try:
                lower = np.linalg.cholesky(scaled)
                if np.diag(lower).min() > 1e-5:
                    return solve_triangular(lower, np.eye(len(lower)), lower=True) / root
            except np.linalg.LinAlgError:
                pass
            values, vectors = np.linalg.eigh(scaled)
        keep = values > 1e-13 * max(values[-1], 0.0)
        return (vectors[:, keep] / np.sqrt(values[keep])).T / root

    @property
    def n_directions(self) -> int:
        """Number of directions with curvature."""
        return len(self.factor)

    def direction(self, grad_coef, grad_intercept) -> tuple[np.ndarray, float, float]:
        """Newton direction in coefficients and intercept, and the squared decrement g'H^-1 g."""
        half = self.factor @ self._centred(grad_coef, grad_intercept)
        step = -(half @ self.factor)
        coef = step[:-1] / self.scale
        return coef, float(step[-1] - self.mean @ coef), float(half @ half)

    def misses(self, grad_coef, grad_intercept) -> bool:
        """Whether part of a gradient lies along the directions left out, where nothing limits the descent."""
        g = self._centred(grad_coef, grad_intercept)
        outside = g - self.matrix @ (self.factor.T @ (self.factor @ g))
        return bool(np.max(np.abs(outside)) > 1e-10 * np.max(np.abs(g)) + 1e-15)

    def _centred(self, grad_coef, grad_intercept) -> np.ndarray:
        return np.append((grad_coef - self.mean * grad_intercept) / self.scale, grad_intercept)

    @cached_property
    def radius_squared(self) -> float:
        """Upper bound of ``max_t x_t'H^-1 x_t``: largest row over smallest curvature."""
        return float(self.reach * np.linalg.eigvalsh(self.factor @ self.factor.T)[-1])


class Iterate(NamedTuple):
    """One neuron on its way: parameters, objective, residual, and the Hessian last formed."""

    coef: np.ndarray  # (feature,)
    intercept: float
    objective: float
    grad_coef: np.ndarray  # gradient plus smallest subgradient
    grad_intercept: float
    matrix: np.ndarray  # (column, column); nan where none is at hand
    reach: float
    proves: bool  # whether the matrix is in float64: one in float32 only guides
    anchor_coef: np.ndarray  # where the matrix was formed
    anchor_intercept: float
    bound: float  # of F - F*; inf where there is none
    estimate: float
    passes: int  # over the rows, so far
    stuck: bool = False  # no step descends any more: rounding; or steps would go on for ever


def start(problem, coef, intercept, near: bool = False) -> Iterate:
    """First iterate of a one-neuron problem: near the optimum judged by its Hessian, elsewhere none yet."""
    empty = np.full((len(coef) + 1, len(coef) + 1), np.nan)
    if near:
        nowhere = np.nan, np.full_like(coef, np.nan), np.nan
        at = Iterate(coef, intercept, *nowhere, empty, np.inf, False, coef, intercept, np.inf, np.inf, 0)
        return judge_exactly(problem, at)
    if problem.X.dtype == np.float32 and not np.any(coef) and intercept == problem.null_params().intercept[0]:
        # The objective of the null model is known, and a gradient in single precision shows the way from there.
        _, grad_coef, grad_intercept = _evaluate(problem, coef, intercept, np.float32)
        value = float(problem.null_objective[0]), grad_coef, grad_intercept
    else:
        value = _evaluate(problem, coef, intercept)
    return Iterate(coef, intercept, *value, empty, np.inf, False, coef, intercept, np.inf, np.inf, 1)


def iterate(problem, at: Iterate) -> Iterate:
    """One Newton step of a one-neuron problem, with the Hessian at hand or a new one, never uphill."""
    fresh = not np.isfinite(at.matrix[0, 0])
    if fresh:
        # Far from the optimum single precision serves.
        far = not at.estimate <= max(_FAR * (problem.null_objective[0] - at.objective), CLOSE / problem.n_rows)
        single = problem.X.dtype == np.float32 and far
        at = _form(problem, at, np.float32 if single else np.float64)
    if not np.all(np.isfinite(at.matrix)):
        return at._replace(objective=np.nan, estimate=np.nan, stuck=True)
    system = _system(problem, at)
    step, step_intercept, decrement = system.direction(at.grad_coef, at.grad_intercept)
    rounding = 4e-16 * max(abs(at.objective), 1.0)

    def tried(length):
        return _evaluate(problem, at.coef + length * step, at.intercept + length * step_intercept)

    def falls(length, moved):
        return moved[0] <= at.objective - 1e-4 * length * decrement + rounding

    length = 1.0
    moved = tried(length)
    if not falls(length, moved) and not fresh:
        return iterate(problem, _forget(at)._replace(passes=at.passes + 1))
    if not falls(length, moved):
        # The step that is sure to descend; where predictors have far to go it is tiny, and halving finds a longer one.
        reach = problem.largest_move(step, step_intercept)
        sure = float(descent_step(*(np.asarray([a]) for a in (decrement, decrement, reach)))[0])
        passes = at.passes + 1
        while not falls(length, moved) and length > sure:
            length = max(length / 2, sure)
            moved, passes = tried(length), passes + 1
        at = at._replace(passes=passes)
        if not moved[0] <= at.objective + rounding:
            if at.proves:
                return at._replace(stuck=True)
            return judge_exactly(problem, at)  # single precision shows no way down
    objective, grad_coef, grad_intercept = moved
    after = at._replace(
        coef=at.coef + length * step,
        intercept=at.intercept + length * step_intercept,
        objective=objective,
        grad_coef=grad_coef,
        grad_intercept=grad_intercept,
        passes=at.passes + 1,
    )
    return _judge(problem, after, system, decrement)


def judge_exactly(problem, at: Iterate) -> Iterate:
    """Form gradient and Hessian in double precision, and judge: those that only show the way prove nothing."""
    objective, grad_coef, grad_intercept = _evaluate(problem, at.coef, at.intercept)
    at = at._replace(objective=objective, grad_coef=grad_coef, grad_intercept=grad_intercept, passes=at.passes + 1)
    at = _form(problem, at, np.float64)
    return _judge(problem, at, _system(problem, at), np.inf)


def _judge(problem, at: Iterate, system: NewtonSystem, before: float) -> Iterate:
    """Bound and estimate at an iterate, and whether its Hessian is worth using again."""
    _, _, decrement = system.direction(at.grad_coef, at.grad_intercept)
    close = decrement / 2 <= CLOSE / problem.n_rows or not np.isfinite(before)
    gap = _bound(problem, at, system, decrement) if close and at.proves else np.inf
    if close and at.proves and not np.isfinite(gap) and problem.penalty.smooth:
        # What the Hessian does not show a penalty on all coefficients may.
        gap = float(problem.evaluate_with_dual(Params(at.coef[:, None], np.array([at.intercept])))[1][0])
    at = at._replace(bound=gap, estimate=decrement / 2, stuck=problem.has_no_optimum)
    if decrement > _REUSE * before or (close and not np.isfinite(gap)):
        return _forget(at)
    return at


def _bound(problem, at: Iterate, system: NewtonSystem, decrement: float) -> float:
    """Bound of F - F* from a Hessian formed nearby: H here >= exp(-largest move of eta) H there."""
    problem.note_rank(None)
    if system.n_directions < len(at.matrix):
        if system.n_directions < problem.basis.rank + 1:
            if not _may_be_separable(problem, at):
                problem.note_rank(system.n_directions - 1)
            return np.inf  # curvature vanishes along a direction the data see
        settled = problem.left_out_is_settled(at.coef[:, None])[0]
        if not settled or system.misses(at.grad_coef, at.grad_intercept):
            return np.inf  # they see more than they resolve; or duplicates, between which the penalty decides
    if _may_be_separable(problem, at):
        return np.inf  # there is no optimum: what says otherwise is rounding
    drift = problem.largest_move(at.coef - at.anchor_coef, at.intercept - at.anchor_intercept)
    with np.errstate(over="ignore"):
        growth = np.exp(drift)  # infinite far away: no bound
    rounding = problem.rounding_of(Params(at.coef[:, None], np.array([at.intercept])), at.objective)
    bound = gap_bound(growth * decrement, growth * system.radius_squared, problem.penalty.penalises_all)
    return float(bound + rounding[0])


def _may_be_separable(problem, at: Iterate) -> bool:
    return bool(problem.may_be_separable(Params(at.coef[:, None], np.array([at.intercept])))[0])


def _system(problem, at: Iterate) -> NewtonSystem:
    return NewtonSystem(at.matrix, at.reach, *problem.standard)


def _forget(at: Iterate) -> Iterate:
    return at._replace(matrix=np.full_like(at.matrix, np.nan))


def _evaluate(problem, coef, intercept, dtype=np.float64):
    """Objective, and gradient plus smallest subgradient, of a one-neuron problem."""
    value = problem.evaluate(Params(coef[:, None], np.array([intercept])), dtype)
    residual = problem.penalty.subgradient_residual(coef[:, None], value.grad_coef)
    return float(value.objective[0]), np.asarray(residual, np.float64)[:, 0], float(value.grad_intercept[0])


def _form(problem, at: Iterate, dtype) -> Iterate:
    matrix, reach = problem.hessian_of_one(at.coef, at.intercept, dtype)
    return at._replace(
        matrix=matrix,
        reach=reach,
        proves=dtype is np.float64,
        anchor_coef=at.coef,
        anchor_intercept=at.intercept,
        passes=at.passes + 1,
    )
