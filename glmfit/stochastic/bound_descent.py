"""Descent of a log-linear model along its quadratic bounds: exact steps, proofs as early as possible, a verdict."""

from types import SimpleNamespace

import numpy as np

from ..compilation import Clock
from ..display import ProgressBar
from ..engine.result import History, LoopOptions, Solution, stopping_target
from ..status import Status
from .log_linear import LogLinear, QuadraticBound, bound_minimum

_AIM, _TIGHTER = 0.5, 0.3  # of the target: a lower estimate triggers a proof; factor after one
_PROOFS = 4  # without a bound, after which a fit ends unproved
_EPS = float(np.finfo(float).eps)


class BoundDescent:
    """One fit of a log-linear model, by ``relaxation`` times the steps to the minima of its bounds.

    F never rises, so a bound of the gap holds for all later steps.
    """

    def __init__(self, problem: LogLinear, options: LoopOptions, relaxation: float, order: str):
        self.problem, self.options, self.relaxation, self.order = problem, options, relaxation, order
        self.history, self.clock, self.passes = History(), Clock(), 0
        self.status, self.gap, self.is_bound, self.target = Status.MAX_EPOCHS, np.nan, False, np.nan
        self.objective, self.epoch, self.aim, self.proofs = np.nan, 0, _AIM, 0

    def run(self, start=None) -> Solution:
        """Fit until it is converged or the budget is spent."""
        problem, most = self.problem, self.options.max_epochs
        theta = np.zeros(problem.n_parameters) if start is None else problem.read_parameters(start)
        bar = ProgressBar(f"fitting {problem.n_rows} rows", most, "epoch", self.options.verbose)
        try:
            while not self._ends(problem.bound(theta, self.order)):
                theta, self.epoch = theta + self.relaxation * self._way, self.epoch + 1
                bar.advance()
                if self.options.callback is not None:
                    with self.clock.paused():
                        self.options.callback(self.epoch, self.clock.seconds, theta, None)
            bar.finish(self.status != Status.MAX_EPOCHS)
        finally:
            bar.close()
        return Solution(
            params=theta, status=np.array([int(self.status)]), gap=np.full(1, self.gap),
            gap_is_bound=np.full(1, self.is_bound), target=np.full(1, self.target),
            objective=np.full(1, self.objective), null_objective=np.full(1, problem.null_objective),
            epochs=np.array([self.epoch]), row_evals=self.passes * problem.n_rows, history=self.history.arrays(),
            seconds_run=self.clock.seconds, seconds_compile=0.0, solver_name="BoundMajorization",
        )  # fmt: skip

    def _ends(self, at: QuadraticBound) -> bool:
        """Judge the current parameters; return whether the fit ends."""
        self.passes, self.objective = self.passes + 1, at.value
        (self._way, estimate), last = bound_minimum(at), self.epoch >= self.options.max_epochs
        self.target = self._target(at.value, 2 * self.problem.rounding_of(at.theta, at.value))
        # No further step will lower F by more than its rounding.
        stuck = self.relaxation * (2 - self.relaxation) * estimate <= _EPS * abs(at.value)
        if not self.is_bound:
            self.gap = estimate
        if estimate <= self.aim * self.target or stuck or last:
            self._prove(at.theta, estimate, stuck, last)
        numbers = np.full(1, at.value), np.full(1, self.gap), np.full(1, self.is_bound)
        self.history.add(self.epoch, self.passes * self.problem.n_rows, self.clock.seconds, *numbers)
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

    def _target(self, objective: float, rounding: float) -> float:
        asked = SimpleNamespace(null_objective=np.full(1, self.problem.null_objective), n_rows=self.problem.n_rows)
        return float(stopping_target(asked, np.full(1, objective), self.options, np.full(1, rounding))[0])
