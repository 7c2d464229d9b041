"""Newton steps along a path of strengths, for several sets of rows at once, with Hessians that are shared.

Why they may be shared, and what is proved: docs/theory/shared_hessians.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

from .._status import Status
from ..problems.base import Params
from ._check import check_real, check_whole
from ._loop import stopping_target
from ._result import LoopOptions

_SHORTER = 20  # times a step is made shorter
_IDLE = 3  # steps with a Hessian of their own that gain nothing
_STEPS = 50  # of one fit, before it counts as one that Newton steps do not finish


class PathSolution(NamedTuple):
    """Outcome of a path.

    Attributes
    ----------
    coef : numpy.ndarray
        (strength, fold, feature, neuron).
    intercept, status, gap, gap_is_bound, target :
        (strength, fold, neuron); as in :class:`Solution`.
    passes : numpy.ndarray
        How often the rows of a fit were looked at, (strength, fold, neuron).
    n_hessians : int
        Hessians of a neuron formed.
    """

    coef: np.ndarray
    intercept: np.ndarray
    status: np.ndarray
    gap: np.ndarray
    gap_is_bound: np.ndarray
    target: np.ndarray
    passes: np.ndarray
    n_hessians: int


class _Fits(NamedTuple):
    """Fits at one strength, one per column."""

    params: Params
    gradient: np.ndarray  # of the mean loss, by piece: (piece, feature + 1, column)
    status: np.ndarray
    gap: np.ndarray
    bounded: np.ndarray
    target: np.ndarray
    passes: np.ndarray


@dataclass(frozen=True)
class SharedNewton:
    """Newton steps with one Hessian for many fits.

    A neuron's Hessian is formed at some reference point and kept in pieces of rows. Every set of rows takes its sum of
    pieces, every strength adds its ridge. A new one is formed where steps no longer gain enough, or eta has moved
    too far for a proof.

    Parameters
    ----------
    drift : float
        Change of eta beyond which a new Hessian is formed for the fit to all rows.
    gain : float
        A step that does not shrink the squared decrement to this share asks for a new Hessian.
    """

    drift: float = 2.0
    gain: float = 0.5

    def __post_init__(self):
        check_real("drift", self.drift, float("inf"))
        check_real("gain", self.gain, 1.0)

    def run(self, problem, strengths, options: LoopOptions, lead: LoopOptions | None = None) -> PathSolution:
        """Fit all sets of rows at all strengths.

        Parameters
        ----------
        problem : PathProblem
            Its last set of rows holds all that the others hold: the fits to it lead.
        strengths : numpy.ndarray
            In any order; worked through from the strongest to the weakest.
        options : LoopOptions
            ``max_epochs`` limits the steps of every fit.
        lead : LoopOptions, optional
            Those of the fits to the last set of rows, where they differ.
        """
        check_whole("max_epochs", options.max_epochs, 1)
        return _Run(self, problem, options, lead or options).along(np.asarray(strengths, np.float64))


class _Run:
    """One path on its way: references, and the work done so far."""

    def __init__(self, rules: SharedNewton, problem, options: LoopOptions, lead: LoopOptions):
        self.rules, self.problem, self.options, self.lead = rules, problem, options, lead
        self.references: dict[int, object] = {}
        self.n_hessians = 0

    def along(self, strengths) -> PathSolution:
        problem = self.problem
        S, F, N, d = len(strengths), problem.n_folds, problem.n_neurons, problem.n_features
        live = problem.mean_count > 0  # (fold, neuron)
        everywhere = problem.columns(*np.nonzero(np.ones((F, N), bool)))
        null = problem.null_params(everywhere)
        coef = np.zeros((S, F, d, N))
        intercept = np.broadcast_to(null.intercept.reshape(F, N), (S, F, N)).copy()
        status = np.full((S, F, N), int(Status.NO_SPIKES))
        gap, bounded, target = np.zeros((S, F, N)), np.ones((S, F, N), bool), np.zeros((S, F, N))
        leaders = problem.columns(*np.nonzero(live & (np.arange(F) == F - 1)[:, None]))
        others = problem.columns(*np.nonzero(live & (np.arange(F) < F - 1)[:, None]))
        passes = np.zeros((S, F, N), int)
        out = PathSolution(coef, intercept, status, gap, bounded, target, passes, 0)
        if not len(leaders):
            return out
        place = np.searchsorted(leaders.neuron, others.neuron)
        lead = carry = None
        bar = tqdm(total=S, disable=not self.options.verbose, unit="strength", desc="glmfit")
        for s in np.argsort(-strengths, kind="stable"):
            penalty = problem.penalty(float(strengths[s]))
            lead = self._solve(
                leaders, penalty, self._next(leaders, penalty, lead), problem.null_params(leaders), self.lead
            )
            start = Params(lead.params.coef[:, place], lead.params.intercept[place])
            guess = self._move(others, penalty, start, lead.gradient[:, :, place])
            if carry is None or not problem.smooth:
                carry = Params(0.0, 0.0)
            first = Params(guess.coef + carry.coef, guess.intercept + carry.intercept)
            fits = self._solve(others, penalty, first, start, self.options)
            # How wrong the guess was changes slowly with the strength.
            carry = Params(fits.params.coef - guess.coef, fits.params.intercept - guess.intercept)
            for columns, done in ((leaders, lead), (others, fits)):
                coef[s, columns.fold, :, columns.neuron] = done.params.coef.T
                at = s, columns.fold, columns.neuron
                intercept[at], status[at] = done.params.intercept, done.status
                gap[at], bounded[at], target[at], passes[at] = done.gap, done.bounded, done.target, done.passes
            bar.update(1)
        bar.close()
        return out._replace(n_hessians=self.n_hessians)

    def _next(self, leaders, penalty, lead) -> Params:
        """Start of the fits to all rows: where the model of the strength before says."""
        if lead is None:
            return self.problem.null_params(leaders)
        return self._move(leaders, penalty, lead.params, lead.gradient)

    def _move(self, columns, penalty, params: Params, pieces) -> Params:
        """Least of the models around parameters, from gradients by piece."""
        held = self.problem.member[:, columns.fold]
        gradient = np.einsum("pdc,pc->dc", pieces, held) / self.problem.total[columns.fold]
        step = self.problem.step(columns, penalty, params, gradient, self._of(columns))
        return Params(params.coef + step.coef, params.intercept + step.intercept)

    def _of(self, columns) -> list:
        return [self.references[n] for n in columns.neuron]

    def _solve(self, columns, penalty, start: Params, fallback: Params, options: LoopOptions) -> _Fits:
        """Newton steps until the gap of every column is proved to be below its target."""
        fits = _Columns(self.problem, columns, penalty, start, fallback, options)
        for _ in range(min(options.max_epochs, _STEPS)):
            open_ = np.flatnonzero(fits.open)
            if not open_.size:
                break
            some = columns[open_]
            pass_ = self.problem.evaluate(some, fits.at(open_), self._points(some, fits.at(open_)))
            fits.passes[open_] += 1
            good = fits.accept(open_, pass_)
            if not good.any():
                continue
            drift = self._renew(some, fits, open_, good, pass_.drift)
            keep = open_[good]
            pass_ = pass_._replace(gradient=pass_.gradient[:, good], drift=drift[good])
            some, references = columns[keep], self._of(columns[keep])
            decrement, bound = self.problem.look(some, penalty, fits.at(keep), pass_, references, fits.target[keep])
            fits.judge(keep, decrement, bound, pass_.drift, self.rules.gain)
            left = fits.open[keep]
            if left.any():
                references = [r for r, stays in zip(references, left, strict=True) if stays]
                gradient = pass_.gradient[:, left]
                fits.go(keep[left], self.problem.step(some[left], penalty, fits.at(keep[left]), gradient, references))
        if options.max_epochs >= _STEPS:
            fits.status[fits.open] = int(Status.PRECISION_FLOOR)
        return fits.result()

    def _points(self, columns, own: Params) -> Params:
        """Give the reference of every column; where there is none, the column's own parameters."""
        coef, intercept = own.coef.copy(), own.intercept.copy()
        for i, n in enumerate(columns.neuron):
            if n in self.references:
                coef[:, i], intercept[i] = self.references[n].coef, self.references[n].intercept
        return Params(coef, intercept)

    def _renew(self, columns, fits: _Columns, open_, good, drift):
        """Form new Hessians where they are asked for; returns the drift of every column from its reference."""
        missing = np.array([n not in self.references for n in columns.neuron])
        leads = columns.fold == self.problem.n_folds - 1
        wanted = good & (missing | fits.slow[open_] | (leads & (drift > self.rules.drift)))
        if not wanted.any():
            return drift
        # One per neuron, where the column farthest from its optimum is.
        order = np.flatnonzero(wanted)[np.argsort(-fits.decrement[open_][wanted], kind="stable")]
        neurons, first = np.unique(columns.neuron[order], return_index=True)
        chosen = order[first]
        made = self.problem.hessians(neurons, fits.at(open_[chosen]))
        self.references.update(zip(neurons.tolist(), made, strict=True))
        self.n_hessians += len(made)
        # Of the neuron's other columns the distance from it is not known before the next pass.
        drift = np.where(np.isin(columns.neuron, neurons), np.inf, drift)
        drift[chosen] = 0.0
        fits.slow[np.isin(fits.columns.neuron, neurons)] = False
        return drift


class _Columns:
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
        self.target[kept] = stopping_target(goal, self.objective[kept], self.options)
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
        self.gap[which] = np.where(np.isfinite(bound), bound, decrement / 2)
        # Where no bound is to be had, an estimate that steps do not improve has to do, and is called one. (Without a
        # penalty there may be no optimum at all.)
        small = ~np.isfinite(bound) & (decrement / 2 <= self.target[which]) & ~fell
        self.unproved[which] = np.where(small, self.unproved[which] + 1, 0)
        guessed = self.unproved[which] > _IDLE
        may_guess = not self.problem.smooth and np.all(np.asarray(self.penalty.strength) > 0)
        done = (bound <= self.target[which]) | (guessed & may_guess)
        self.status[which[done]] = int(Status.CONVERGED)
        floor = ~done & (guessed | (self.stuck[which] > _IDLE))
        self.status[which[floor]] = int(Status.PRECISION_FLOOR)
        self.open[which[done | floor]] = False

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

    def result(self) -> _Fits:
        return _Fits(self.base, self.gradient, self.status, self.gap, self.bounded, self.target, self.passes)
