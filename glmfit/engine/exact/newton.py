"""Exact Newton steps on one neuron in float64, and the gap bound that comes with its Hessian.

Theory: docs/theory/self_concordance.md. All on the host: one neuron's Hessian is one BLAS product.
"""

from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from scipy.linalg import solve_triangular

from ...bounds import descent_step, gap_bound
from ...threads import small_blas
from ..problem import Evaluation, Params

_FAR = 1e-2  # still missing, as a share of the gain over the null model
CLOSE = 1e-2  # nats of the recording that are still missing
_REUSE = 0.05  # a Hessian is used again while it shrinks the squared decrement by this factor


class Step(NamedTuple):
    """Step to the minimum of a quadratic model of one neuron."""

    move: np.ndarray  # intercept last
    slope: float  # above 0 downhill
    curvature: float


class NewtonSystem:
    """Factorised Hessian of one neuron in centred coordinates, and where it was formed.

    ``matrix`` includes the ridge, (column, column), intercept last; ``reach`` is the largest squared norm of a row
    ``[(x - mean) / scale, 1]``. A matrix in single precision only guides and ``proves`` nothing.

    Directions whose curvature is below 1e-13 of the largest, after scaling the diagonal to one, are excluded:
    the data do not see them (duplicate or constant columns), or the neuron is separable.
    """

    def __init__(self, matrix, reach, mean, scale, anchor: np.ndarray | None = None, proves=True):
        self.matrix, self.reach, self.mean, self.scale = matrix, reach, mean, scale
        self.anchor, self.proves = anchor, proves

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

    def step(self, gradient: np.ndarray) -> Step:
        """Return the Newton step, whose slope and curvature are the squared decrement g'H^-1 g."""
        half = self.factor @ self._centred(gradient)
        step, decrement = -(half @ self.factor), float(half @ half)
        coef = step[:-1] / self.scale
        return Step(np.append(coef, step[-1] - self.mean @ coef), decrement, decrement)

    def misses(self, gradient: np.ndarray) -> bool:
        """Whether part of a gradient lies along the excluded directions, where nothing limits the descent."""
        g = self._centred(gradient)
        outside = g - self.matrix @ (self.factor.T @ (self.factor @ g))
        return bool(np.max(np.abs(outside)) > 1e-10 * np.max(np.abs(g)) + 1e-15)

    def _centred(self, g: np.ndarray) -> np.ndarray:
        return np.append((g[:-1] - self.mean * g[-1]) / self.scale, g[-1])

    @cached_property
    def radius_squared(self) -> float:
        """Upper bound of ``max_t x_t'H^-1 x_t``: largest row over smallest curvature."""
        return float(self.reach * np.linalg.eigvalsh(self.factor @ self.factor.T)[-1])


class Iterate(NamedTuple):
    """State of one neuron: parameters, objective, gradient, and the last Hessian."""

    at: np.ndarray  # (feature + 1,), intercept last
    objective: float = np.nan
    gradient: np.ndarray | None = None  # of the smooth part
    system: NewtonSystem | None = None  # None if the last one is no longer useful
    bound: float = np.inf  # of F - F*; inf if there is none
    estimate: float = np.inf
    passes: int = 0  # over the rows, so far
    n_steps: int = 0
    stuck: bool = False  # no step descends any more: rounding; or steps would continue indefinitely

    @property
    def params(self) -> Params:
        """Parameters of a problem of one neuron."""
        return Params(self.at[:-1, None], self.at[-1:])

    @property
    def rounding(self) -> float:
        """Difference up to which objectives count as equal."""
        return 4e-16 * max(abs(self.objective), 1.0)

    def towards(self, step: Step, length: float = 1.0) -> Self:
        """Move along a step, to a point that is not evaluated yet."""
        return self._replace(at=self.at + length * step.move)

    def seen(self, value: Evaluation) -> Self:
        """Store the objective and the gradient of a pass."""
        gradient = np.append(value.grad_coef[:, 0], value.grad_intercept[0])
        return self._replace(objective=float(value.objective[0]), gradient=gradient, passes=self.passes + 1)


def start(problem, at: np.ndarray, near: bool = False) -> Iterate:
    """Return the first iterate of a one-neuron problem; only near the optimum it is judged by its Hessian."""
    if near:
        return judge_exactly(problem, Iterate(at))
    is_null = not np.any(at[:-1]) and at[-1] == problem.null_params().intercept[0]
    if problem.X.dtype == np.float32 and is_null:
        # The objective of the null model is known, and a gradient in single precision is enough for a step from there.
        return evaluate(problem, Iterate(at), np.float32)._replace(objective=float(problem.null_objective[0]))
    return evaluate(problem, Iterate(at))


def evaluate(problem, at: Iterate, dtype=np.float64) -> Iterate:
    """Compute objective and gradient in one pass."""
    return at.seen(problem.evaluate(at.params, dtype))


def search(problem, at: Iterate, step: Step, look) -> Iterate:
    """Take the whole step or, if that does not descend, halve it down to a length that is sure to descend.

    ``look(problem, iterate)`` evaluates. The iterate is stuck if even that length leads uphill.
    """
    length, sure, passes = 1.0, 0.0, at.passes
    while True:
        after = look(problem, at.towards(step, length)._replace(passes=passes))
        enough = 1e-4 * length * step.slope if length > sure else 0.0
        if after.objective <= at.objective - enough + at.rounding:
            return after
        passes = after.passes
        if length == 1.0:
            # If predictors move far, the length that is sure to descend is tiny, and halving finds a longer one.
            reach = problem.largest_move(step.move) * (problem.observation.constant or 1.0)
            known = step.slope, step.curvature, reach
            sure, passes = min(float(descent_step(*(np.asarray([a]) for a in known))[0]), 0.5), passes + 1
        if length <= sure:
            return at._replace(passes=passes, stuck=True)
        length = max(length / 2, sure)


def iterate(problem, at: Iterate) -> Iterate:
    """Take one Newton step of a one-neuron problem, with the current Hessian or a new one, never uphill."""
    if at.system is not None:
        step = at.system.step(at.gradient)
        after = evaluate(problem, at.towards(step))
        if after.objective <= at.objective - 1e-4 * step.slope + at.rounding:
            return _judge(problem, after, step.slope)
        at = at._replace(system=None, passes=after.passes)
    # Far from the optimum single precision suffices.
    far = not at.estimate <= max(_FAR * (problem.null_objective[0] - at.objective), CLOSE / problem.n_rows)
    at = form(problem, at, np.float32 if problem.X.dtype == np.float32 and far else np.float64)
    if not np.all(np.isfinite(at.system.matrix)):
        return at._replace(objective=np.nan, estimate=np.nan, stuck=True)
    step = at.system.step(at.gradient)
    after = search(problem, at, step, evaluate)
    if not after.stuck:
        return _judge(problem, after, step.slope)
    return after if at.system.proves else judge_exactly(problem, after)  # single precision finds no descent


def judge_exactly(problem, at: Iterate) -> Iterate:
    """Form gradient and Hessian in double precision, and judge by them: single precision proves nothing."""
    return _judge(problem, form(problem, evaluate(problem, at), np.float64), np.inf)


def form(problem, at: Iterate, dtype) -> Iterate:
    """Form the Hessian at an iterate."""
    formed = problem.hessian_of_one(at.at, dtype)
    system = NewtonSystem(*formed, *problem.standard, at.at, dtype is np.float64)
    return at._replace(system=system, passes=at.passes + 1)


def _judge(problem, at: Iterate, before: float) -> Iterate:
    """Compute bound and estimate at an iterate, and decide whether its Hessian is used again."""
    residual = at.gradient
    if not problem.penalty.smooth:
        missed = problem.penalty.subgradient_residual(at.at[:-1, None], at.gradient[:-1, None])
        residual = np.append(np.asarray(missed, np.float64), at.gradient[-1])
    decrement = at.system.step(residual).slope
    close = decrement / 2 <= CLOSE / problem.n_rows or not np.isfinite(before)
    gap = np.inf
    if close and at.system.proves:
        gap = _bound(problem, at, residual, decrement)
        if not np.isfinite(gap) and problem.penalty.smooth:
            # What the Hessian does not prove, a penalty on all coefficients may.
            gap = float(problem.evaluate_with_dual(at.params)[1][0])
    kept = None if decrement > _REUSE * before or (close and not np.isfinite(gap)) else at.system
    return at._replace(
        bound=gap, estimate=decrement / 2, stuck=isinstance(problem.found.get("recession"), np.ndarray), system=kept
    )


def _bound(problem, at: Iterate, residual: np.ndarray, decrement: float) -> float:
    """Bound of F - F* from a Hessian formed nearby: H here >= exp(-M largest move of eta) H there, M the constant."""
    system = at.system
    problem.found.pop("rank", None)
    if problem.may_be_separable(at.params)[0]:
        return np.inf  # there is no optimum: a bound would be rounding
    if system.n_directions < len(system.matrix):
        if system.n_directions < problem.basis.rank + 1:
            problem.found["rank"] = system.n_directions - 1
            return np.inf  # curvature vanishes along a direction the data see
        settled = problem.left_out_is_settled(at.params.coef)[0]
        if not settled or system.misses(residual):
            return np.inf  # the data see more than they resolve; or duplicates, between which the penalty decides
    constant = problem.observation.constant
    drift = problem.largest_move(at.at - system.anchor) * (constant or 0.0)
    with np.errstate(over="ignore"):
        growth = np.exp(drift)  # infinite far away: no bound
    bound = gap_bound(growth * decrement, growth * system.radius_squared, problem.penalty.penalises_all, constant)
    return float(bound + problem.rounding_of(at.params, at.objective)[0])
