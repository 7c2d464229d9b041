"""Fits of a path at one strength: where they are, which steps are taken, when they are done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from .._status import Status
from ..problems.base import Params
from ._loop import stopping_target
from ._result import LoopOptions

_SHORTER = 20  # times a step is made shorter
_IDLE = 3  # steps with a Hessian of their own that gain nothing


class Fits(NamedTuple):
    """Fits at one strength, one per column."""

    params: Params
    gradient: np.ndarray  # of the mean loss, by piece: (piece, feature + 1, column)
    status: np.ndarray
    gap: np.ndarray
    gap_is_bound: np.ndarray
    target: np.ndarray
    passes: np.ndarray


class FitsOnTheWay:
    """Fits on their way at one strength."""

    def __init__(self, problem, columns, penalty, start: Params, fallback: Params, options: LoopOptions):
        C = len(columns)
        self.problem, self.columns, self.penalty, self.options = problem, columns, penalty, options
        self.null_objective = problem.null_objective(columns)
        self.params = Params(start.coef.copy(), start.intercept.copy())
        self.base = Params(fallback.coef.copy(), fallback.intercept.copy())
        self.move = Params(start.coef - fallback.coef, start.intercept - fallback.intercept)
        self.objective, self.before = np.full(C, np.inf), np.full(C, np.inf)
        self.gain = np.zeros(C)  # least decrease a step must bring
        self.gradient = np.zeros((len(problem.member), problem.n_features + 1, C))
        self.decrement, self.gap = np.full(C, np.inf), np.full(C, np.nan)
        self.bounded, self.slow = np.zeros(C, bool), np.zeros(C, bool)
        self.target = np.zeros(C)
        self.stuck, self.unproved = np.zeros(C, int), np.zeros(C, int)
        self.status, self.passes = np.full(C, int(Status.MAX_EPOCHS)), np.zeros(C, int)
        self.open = np.ones(C, bool)

    def at(self, which) -> Params:
        return Params(self.params.coef[:, which], self.params.intercept[which])

    def accept(self, which, pass_) -> np.ndarray:
        """Take steps that went down; the others are tried again at a quarter of their length."""
        objective = pass_.loss + np.asarray(self.penalty.value(self.params.coef[:, which]), np.float64)
        rounding = 4e-15 * np.maximum(np.abs(self.objective[which]), 1.0)
        with np.errstate(invalid="ignore"):
            good = np.isfinite(objective) & ~(objective > self.objective[which] - self.gain[which] + rounding)
        kept, back = which[good], which[~good]
        self.objective[kept] = objective[good]
        self.base.coef[:, kept], self.base.intercept[kept] = self.params.coef[:, kept], self.params.intercept[kept]
        self.gradient[:, :, kept] = pass_.pieces[:, :, good]
        goal = SimpleNamespace(null_objective=self.null_objective[kept], n_rows=self.problem.n_rows)
        self.target[kept] = stopping_target(
            goal, self.objective[kept], self.options, 4e-15 * np.abs(self.objective[kept])
        )
        self.stuck[back] += 1
        self.move.coef[:, back] *= 0.25
        self.move.intercept[back] *= 0.25
        self.gain[back] *= 0.25
        self._place(back)
        self.slow[back] = True
        hopeless = back[self.stuck[back] > _SHORTER]
        self.status[hopeless] = int(Status.PRECISION_FLOOR)
        self.open[hopeless] = False
        return good

    def judge(self, which, decrement, bound, drift, gain: float) -> None:
        """Finish what is proved, and see whose steps no longer gain."""
        known, fresh = np.isfinite(drift), drift < 1e-3
        self.slow[which] = (decrement > gain * self.decrement[which]) & known & ~fresh
        fell = self.before[which] - self.objective[which] > 1e-2 * self.target[which]
        idle = fresh & (decrement > 0.5 * self.decrement[which]) & ~fell
        self.stuck[which] = np.where(idle, self.stuck[which] + 1, 0)
        self.before[which], self.decrement[which] = self.objective[which], decrement
        self.bounded[which] = np.isfinite(bound)
        lowest = self.problem.saturated_loss[self.columns.fold[which], self.columns.neuron[which]]
        estimate = np.minimum(decrement / 2, np.maximum(self.objective[which] - lowest, 0.0))
        self.gap[which] = np.where(np.isfinite(bound), bound, estimate)
        # Where there is no bound, an estimate that steps do not improve proves nothing.
        small = ~np.isfinite(bound) & (decrement / 2 <= self.target[which]) & ~fell
        self.unproved[which] = np.where(small, self.unproved[which] + 1, 0)
        done = bound <= self.target[which]
        self.status[which[done]] = int(Status.CONVERGED)
        guessed = ~done & (self.unproved[which] > _IDLE)
        self.status[which[guessed]] = int(Status.UNPROVED)
        floor = ~done & ~guessed & (self.stuck[which] > _IDLE)
        self.status[which[floor]] = int(Status.PRECISION_FLOOR)
        self.open[which[done | guessed | floor]] = False

    def go(self, which, step: Params) -> None:
        """Step from where the columns are."""
        self.move.coef[:, which], self.move.intercept[which] = step.coef, step.intercept
        with np.errstate(invalid="ignore"):
            least = 1e-4 * self.decrement[which] if self.problem.smooth else np.zeros(len(which))
        self.gain[which] = np.where(np.isfinite(least), least, 0.0)
        self._place(which)

    def _place(self, which) -> None:
        self.params.coef[:, which] = self.base.coef[:, which] + self.move.coef[:, which]
        self.params.intercept[which] = self.base.intercept[which] + self.move.intercept[which]

    def result(self) -> Fits:
        return Fits(self.base, self.gradient, self.status, self.gap, self.bounded, self.target, self.passes)
