"""Newton steps along a path of strengths, for several sets of rows at once, with Hessians that are shared.

Why they may be shared, and what is proved: docs/theory/shared_hessians.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._checks import check_positive, check_real, check_whole
from .._status import Status
from ..problems.base import Params
from ._path_columns import Fits, FitsOnTheWay
from ._result import LoopOptions

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
        check_positive("drift", self.drift)
        check_real("gain", self.gain, 1.0)

    def run(
        self,
        problem: Any,
        strengths: ArrayLike,
        options: LoopOptions,
        lead: LoopOptions | None = None,
        callback: Callable[[int, PathSolution], None] | None = None,
    ) -> PathSolution:
        """Fit all sets of rows at all strengths.

        Parameters
        ----------
        problem : PathProblem
            Its last set of rows holds all that the others hold: the fits to it lead.
        strengths : numpy.ndarray
            In any order; worked through from the strongest to the weakest.
        options : LoopOptions
            ``max_epochs`` limits the steps of every fit; to show progress is left to ``callback``.
        lead : LoopOptions, optional
            Those of the fits to the last set of rows, where they differ.
        callback : callable, optional
            Called as ``callback(s, found)`` when the fits at strength number s are done, with what was found so far.
        """
        check_whole("max_epochs", options.max_epochs, 1)
        with np.errstate(over="ignore", invalid="ignore"):  # a step too long may overflow, and is shortened
            run = _Run(self, problem, options, lead or options)
            return run.along(np.asarray(strengths, np.float64), callback)


class _Run:
    """One path on its way: references, and the work done so far."""

    def __init__(self, rules: SharedNewton, problem, options: LoopOptions, lead: LoopOptions):
        self.rules, self.problem, self.options, self.lead = rules, problem, options, lead
        self.references: dict[int, object] = {}
        self.n_hessians = 0

    def along(self, strengths, callback) -> PathSolution:
        problem = self.problem
        S, F, N, d = len(strengths), problem.n_folds, problem.n_neurons, problem.n_features
        live = problem.mean_count > 0  # (fold, neuron)
        everywhere = problem.columns(*np.nonzero(np.ones((F, N), bool)))
        null = problem.null_params(everywhere)
        shape = S, F, N
        out = PathSolution(
            coef=np.zeros((S, F, d, N)), intercept=np.broadcast_to(null.intercept.reshape(F, N), shape).copy(),
            status=np.full(shape, int(Status.NO_SPIKES)), gap=np.zeros(shape), gap_is_bound=np.ones(shape, bool),
            target=np.zeros(shape), passes=np.zeros(shape, int), n_hessians=0,
        )  # fmt: skip
        leaders = problem.columns(*np.nonzero(live & (np.arange(F) == F - 1)[:, None]))
        others = problem.columns(*np.nonzero(live & (np.arange(F) < F - 1)[:, None]))
        if not len(leaders):
            return out
        place = np.searchsorted(leaders.neuron, others.neuron)
        lead = carry = None
        for s in np.argsort(-strengths, kind="stable"):
            penalty = problem.penalty(float(strengths[s]))
            lead = self._solve(
                leaders, penalty, self._next(leaders, penalty, lead), problem.null_params(leaders), self.lead
            )
            start = Params(lead.params.coef[:, place], lead.params.intercept[place])
            # Where sets overlap too much for common pieces, a pass over all rows says nothing of theirs.
            nested = problem.member[:, -1].all()
            guess = self._move(others, penalty, start, lead.gradient[:, :, place]) if nested else start
            if carry is None or not problem.smooth:
                carry = Params(0.0, 0.0)
            first = Params(guess.coef + carry.coef, guess.intercept + carry.intercept)
            fits = self._solve(others, penalty, first, start, self.options)
            # How wrong the guess was changes slowly with the strength.
            carry = Params(fits.params.coef - guess.coef, fits.params.intercept - guess.intercept)
            for columns, done in ((leaders, lead), (others, fits)):
                out.coef[s, columns.fold, :, columns.neuron] = done.params.coef.T
                out.intercept[s, columns.fold, columns.neuron] = done.params.intercept
                for name in ("status", "gap", "gap_is_bound", "target", "passes"):
                    getattr(out, name)[s, columns.fold, columns.neuron] = getattr(done, name)
            if callback is not None:
                callback(int(s), out)
        return out._replace(n_hessians=self.n_hessians)

    def _next(self, leaders, penalty, lead) -> Params:
        """Start of the fits to all rows: where the model of the strength before says."""
        if lead is None:
            return self.problem.null_params(leaders)
        return self._move(leaders, penalty, lead.params, lead.gradient)

    def _move(self, columns, penalty, params: Params, pieces) -> Params:
        """Least of the models around parameters, from gradients by piece."""
        known = np.array([n in self.references for n in columns.neuron], bool)
        moved = Params(params.coef.copy(), params.intercept.copy())
        if known.any():  # a neuron that no pass could be made of has none
            some, at = columns[known], Params(params.coef[:, known], params.intercept[known])
            held = self.problem.member[:, some.fold]
            gradient = np.einsum("pdc,pc->dc", pieces[:, :, known], held) / self.problem.total[some.fold]
            step = self.problem.step(some, penalty, at, gradient, self._of(some))
            moved.coef[:, known] += step.coef
            moved.intercept[known] += step.intercept
        return moved

    def _of(self, columns) -> list:
        return [self.references[n] for n in columns.neuron]

    def _solve(self, columns, penalty, start: Params, fallback: Params, options: LoopOptions) -> Fits:
        """Newton steps until the gap of every column is proved to be below its target."""
        fits = FitsOnTheWay(self.problem, columns, penalty, start, fallback, options)
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
            pass_ = pass_.take(good)._replace(drift=drift[good])
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

    def _renew(self, columns, fits: FitsOnTheWay, open_, good, drift):
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
