r"""Log-linear models: each row has one outcome of a finite set, whose probability depends on its own features.

F(theta) = (1/N) sum_i c_i [ log sum_y h_i(y) exp(theta'f_i(y)) - log h_i(y_i) - theta'f_i(y_i) ]
           + sum_j strength_j theta_j^2 / 2

What majorization requires of such an objective, bounds of its gap, and its descent along quadratic bounds:
docs/theory/bound_majorization.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..bounds import gap_bound
from ..bounds.log_partition import ORDERS
from ..checks import as_numbers, check_choice, shorten
from ..compilation import Clock
from ..display import ProgressBar
from ..engine.result import History, LoopOptions, Solution, solution_of, stopping_target
from ..status import Status

RIDGE_THEOREM = (
    "strong convexity of a ridge on every parameter: F - F* <= sum_j g_j^2 / (2 strength_j) "
    "(docs/theory/bound_majorization.md, Proposition 6)"
)
HESSIAN_THEOREM = (
    "generalised self-concordance of log-partition functions, from the whole Hessian "
    "(docs/theory/bound_majorization.md, Proposition 6)"
)
_EPS = float(np.finfo(float).eps)
_ROUNDING = 64 * _EPS
_LARGEST = 1e100  # feature, whose square and sums of squares are far from overflow
_AIM, _TIGHTER = 0.5, 0.3  # of the target: a lower estimate triggers a proof; factor after one
_PROOFS = 4  # without a bound, after which a fit ends unproved
_FLAT = 1e-13  # share of the largest curvature, at unit diagonal, that counts as none


class QuadraticBound(NamedTuple):
    """Quadratic that touches an objective F at a point and is above it everywhere.

    Attributes
    ----------
    theta : numpy.ndarray
        The point, (parameter,).
    value : float
        F there.
    gradient : numpy.ndarray
        Gradient of F there, (parameter,).
    curvature : numpy.ndarray
        Curvature of the quadratic, (parameter, parameter): at least the Hessian of F there.
    """

    theta: np.ndarray
    value: float
    gradient: np.ndarray
    curvature: np.ndarray

    def at(self, theta: np.ndarray) -> float:
        """Value of the quadratic at any parameters."""
        d = np.asarray(theta, np.float64) - self.theta
        return float(self.value + d @ self.gradient + d @ self.curvature @ d / 2)


class LogLinearGap(NamedTuple):
    """Distance from the optimum, also of a softmax model.

    Attributes
    ----------
    objective : float
        F.
    bound : float
        Proved upper bound of F - F*; infinite if nothing is proved.
    gradient_norm : float
        Norm of the gradient of F.
    theorem : str
        Theorem that the bound rests on.
    """

    objective: float
    bound: float
    gradient_norm: float
    theorem: str


class LogLinear(ABC):
    """Objective of a log-linear model with a ridge; parameters are one vector, (parameter,)."""

    n_rows: int
    strength: np.ndarray  # of every parameter's ridge, (parameter,)

    @abstractmethod
    def _loss_bound(self, theta: np.ndarray, order: str) -> tuple[float, np.ndarray, np.ndarray]:
        """Return value, gradient and the bound's curvature of F without its ridge."""

    def _loss(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return value and gradient of F without its ridge."""
        return self._loss_bound(theta, "given")[:2]

    @property
    @abstractmethod
    def _sizes(self) -> np.ndarray:
        """Largest absolute features of every row, weighted and summed, (parameter,), for rounding."""

    def _curved(self, theta: np.ndarray) -> tuple[np.ndarray, Iterator[np.ndarray]] | None:
        """Hessian of the loss, and the features (row, outcome, parameter) of some rows at a time, if they are known."""
        return None

    @property
    def n_parameters(self) -> int:
        """Length of the parameter vector."""
        return len(self.strength)

    def value_and_gradient(self, theta: ArrayLike) -> tuple[float, np.ndarray]:
        """Evaluate F and its gradient, (parameter,)."""
        theta = self.read_parameters(theta)
        value, gradient = self._loss(theta)
        return value + float(self.strength @ theta**2) / 2, gradient + self.strength * theta

    def objective(self, theta: ArrayLike) -> float:
        """Evaluate F."""
        return self.value_and_gradient(theta)[0]

    @cached_property
    def null_objective(self) -> float:
        """F where all parameters are 0."""
        return self.objective(np.zeros(self.n_parameters))

    def bound(self, theta: ArrayLike, order: str = "descending") -> QuadraticBound:
        """Bound F from above by a quadratic that touches it at some parameters.

        Parameters
        ----------
        theta : array_like
            The parameters, (parameter,).
        order : {"given", "descending", "ascending", "averaged"}
            Order in which outcomes are added; see `glmfit.bounds.softmax_bound`.

        Returns
        -------
        QuadraticBound
        """
        theta = self.read_parameters(theta)
        check_choice("order", order, ORDERS)
        value, gradient, curvature = self._loss_bound(theta, order)
        curvature[np.diag_indices_from(curvature)] += self.strength
        value += float(self.strength @ theta**2) / 2
        return QuadraticBound(theta, value, gradient + self.strength * theta, curvature)

    def rounding_of(self, theta: np.ndarray, value: float) -> float:
        """Allow for the rounding of F: measured, not derived."""
        return _ROUNDING * float(abs(value) + self.strength @ theta**2 + self._sizes @ np.abs(theta))

    def certify_gap(self, theta: ArrayLike) -> LogLinearGap:
        """Bound F - F* at any parameters.

        A ridge on every parameter gives a bound by strong convexity. If outcomes are listed, the Hessian also gives
        one near the optimum, for any ridge. The smaller bound is returned.

        Parameters
        ----------
        theta : array_like
            The parameters, (parameter,).

        Returns
        -------
        LogLinearGap
        """
        theta = self.read_parameters(theta)
        value, gradient = self.value_and_gradient(theta)
        size = np.abs(theta)
        error = _ROUNDING * ((1 + self._sizes @ size) * self._sizes + self.strength * size)
        rounding, norm = self.rounding_of(theta, value), float(np.linalg.norm(gradient))
        found = [(np.inf, "none: neither a ridge on every parameter nor the Hessian bounds the distance")]
        if np.all(self.strength > 0):
            found.append((float(np.sum((np.abs(gradient) + error) ** 2 / self.strength)) / 2, RIDGE_THEOREM))
        curved = self._curved(theta)
        if curved is not None:
            found.append((self._by_hessian(*curved, gradient, error), HESSIAN_THEOREM))
        bound, theorem = min(found, key=lambda pair: pair[0])
        return LogLinearGap(value, bound + rounding, norm, theorem)

    def _by_hessian(self, hessian, rows, gradient, error) -> float:
        """Bound F - F* by self-concordance; infinite if that proves nothing."""
        hessian = hessian + np.diag(self.strength)
        unit = 1 / np.sqrt(np.where(np.diag(hessian) > 0, np.diag(hessian), 1.0))
        values, vectors = np.linalg.eigh(unit[:, None] * hessian * unit)
        values = values - _ROUNDING * len(values) * values[-1]
        if not values[0] > 0:
            return np.inf
        whiten = unit[:, None] * vectors / np.sqrt(values)
        decrement = np.linalg.norm(gradient @ whiten) + np.linalg.norm(unit * error) / np.sqrt(values[0])
        reach = max((float(np.max(np.sum((f @ whiten) ** 2, axis=-1))) for f in rows), default=0.0)
        # Two outcomes of a row are at most twice as far apart as one from their middle.
        return float(gap_bound(decrement**2, 4 * reach, attained=bool(np.all(self.strength > 0))))

    def read_parameters(self, theta: ArrayLike) -> np.ndarray:
        """Check a parameter vector."""
        theta = as_numbers("theta", theta)
        if theta.shape != self.strength.shape or not np.isfinite(theta).all():
            raise ValueError(
                f"theta has shape {theta.shape}{'' if np.isfinite(theta).all() else ' and is not finite'}; it must be "
                f"{self.n_parameters} finite numbers."
            )
        return theta


class BoundDescent:
    """One fit of a log-linear model, by ``relaxation`` times the steps to the minima of its bounds.

    F never rises, so a bound of the gap holds for all later steps.
    """

    name = "BoundMajorization"

    def __init__(self, problem: LogLinear, options: LoopOptions, relaxation: float, order: str):
        self.problem, self.options, self.relaxation, self.order = problem, options, relaxation, order
        self.history, self.clock, self.passes = History(), Clock(), 0
        self.status, self.gap, self.is_bound, self.target = Status.MAX_EPOCHS, np.nan, False, np.nan
        self.objective, self.epochs, self.aim, self.proofs = np.nan, 0, _AIM, 0

    def run(self, start=None) -> Solution:
        """Fit until it is converged or the budget is spent."""
        problem, most = self.problem, self.options.max_epochs
        theta = np.zeros(problem.n_parameters) if start is None else problem.read_parameters(start)
        with closing(ProgressBar(f"fitting {problem.n_rows} rows", most, "epoch", self.options.verbose)) as bar:
            while not self._ends(problem.bound(theta, self.order)):
                theta, self.epochs = theta + self.relaxation * self._way, self.epochs + 1
                bar.advance()
                if self.options.callback is not None:
                    with self.clock.paused():
                        self.options.callback(self.epochs, self.clock.seconds, theta, None)
            bar.finish(self.status != Status.MAX_EPOCHS)
        return solution_of(self, theta, self.objective)

    def _ends(self, at: QuadraticBound) -> bool:
        """Judge the current parameters; return whether the fit ends."""
        self.passes, self.objective = self.passes + 1, at.value
        (self._way, estimate), last = bound_minimum(at), self.epochs >= self.options.max_epochs
        rounding = 2 * self.problem.rounding_of(at.theta, at.value)
        self.target = float(stopping_target(self.problem, at.value, self.options, rounding))
        # No further step will lower F by more than its rounding.
        stuck = self.relaxation * (2 - self.relaxation) * estimate <= _EPS * abs(at.value)
        if not self.is_bound:
            self.gap = estimate
        if estimate <= self.aim * self.target or stuck or last:
            self._prove(at.theta, estimate, stuck, last)
        row_evals = self.passes * self.problem.n_rows
        self.history.add(self.epochs, row_evals, self.clock.seconds, at.value, self.gap, self.is_bound)
        return last or self.status != Status.MAX_EPOCHS

    def _prove(self, theta: np.ndarray, estimate: float, stuck: bool, last: bool) -> None:
        """Bound the gap, and set the status if that ends the fit."""
        bound = self.problem.certify_gap(theta).bound
        self.passes, self.proofs, self.aim = self.passes + 1, self.proofs + 1, self.aim * _TIGHTER
        if np.isfinite(bound):  # of two bounds the smaller one
            self.gap, self.is_bound = min(bound, self.gap) if self.is_bound else bound, True
        if self.is_bound and self.gap <= self.target:
            self.status = Status.CONVERGED
        elif not self.is_bound and estimate <= self.target and (stuck or last or self.proofs >= _PROOFS):
            self.status = Status.UNPROVED
        elif stuck:
            self.status = Status.PRECISION_FLOOR


def add_products(curvature: np.ndarray, factors: np.ndarray, weight: np.ndarray) -> None:
    """Add in place the products of factors (row, factor, parameter), weighted by row."""
    factors = (np.sqrt(weight)[:, None, None] * factors).reshape(-1, factors.shape[-1])
    curvature += factors.T @ factors


def bound_minimum(at: QuadraticBound) -> tuple[np.ndarray, float]:
    """Return the step from where a quadratic touches to its minimum, and how much lower it is there.

    The step is 0 along directions with no curvature above rounding.
    """
    unit = 1 / np.sqrt(np.where(np.diag(at.curvature) > 0, np.diag(at.curvature), 1.0))
    matrix, g = unit[:, None] * at.curvature * unit, unit * at.gradient
    values, vectors = np.linalg.eigh(matrix)
    bent = values > _FLAT * values[-1]
    step = -vectors[:, bent] @ ((vectors[:, bent].T @ g) / values[bent])
    return unit * step, -float(g @ step) / 2


def read_strength(strength, n_parameters: int) -> np.ndarray:
    """Check strengths of a ridge, and give every parameter its own."""
    found = as_numbers("strength", strength)
    if found.shape not in ((), (n_parameters,)) or not (np.isfinite(found).all() and np.all(found >= 0)):
        raise ValueError(
            f"strength is {strength!r}; it must be a finite number of at least 0, or one per parameter, "
            f"({n_parameters},)."
        )
    return np.array(np.broadcast_to(found, (n_parameters,)))


def read_weights(sample_weight, n_rows: int) -> np.ndarray:
    """Check weights of rows, 1 by default."""
    weight = np.ones(n_rows) if sample_weight is None else as_numbers("sample_weight", sample_weight)
    if weight.shape != (n_rows,):
        raise ValueError(f"sample_weight has shape {weight.shape}; it must be one number per row, ({n_rows},).")
    if not (np.isfinite(weight).all() and np.all(weight >= 0) and weight.any()):
        raise ValueError(f"sample_weight is {shorten(weight.tolist())}; it must be finite, at least 0, and not all 0.")
    return weight


def refuse_size(name: str, values: np.ndarray) -> None:
    """Raise unless features and products of two of them are finite."""
    if not np.abs(values).max(initial=0.0) <= _LARGEST:  # also NaN
        raise ValueError(f"{name} must be finite and at most {_LARGEST:g} in size; scale larger ones.")
