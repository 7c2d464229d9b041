"""All fits of a cross-validation: strengths, folds and neurons at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .. import penalties
from .._checks import not_text, shorten
from .._progress import ProgressBar
from .._status import Status
from ..engine import ConjugateGradients, ProximalNewton
from ..penalties import Penalty
from ..problems import FoldedProblem, Params, PopulationProblem
from ..solvers import LoopOptions, Solution
from ..solvers._result import stopping_target
from ..solvers._seed import key_for
from ._folds import Folds

REGULARIZERS = ("Ridge", "Lasso", "ElasticNet")


class Found(NamedTuple):
    """What was found so far; where there is nothing yet, nan, and the status is INTERRUPTED.

    Attributes
    ----------
    coef : numpy.ndarray
        (strength, fold, feature, neuron); the last fold holds all rows.
    intercept, status, gap, gap_is_bound, target, passes : numpy.ndarray
        (strength, fold, neuron). The passes of fits that are not to be returned as they are, are 0.
    """

    coef: np.ndarray
    intercept: np.ndarray
    status: np.ndarray
    gap: np.ndarray
    gap_is_bound: np.ndarray
    target: np.ndarray
    passes: np.ndarray

    @classmethod
    def nothing(cls, n_strengths: int, n_folds: int, n_features: int, n_neurons: int) -> Found:
        """Where all begin."""
        shape = n_strengths, n_folds, n_neurons
        return cls(
            coef=np.full((n_strengths, n_folds, n_features, n_neurons), np.nan),
            intercept=np.full(shape, np.nan),
            status=np.full(shape, int(Status.INTERRUPTED)),
            gap=np.full(shape, np.nan),
            gap_is_bound=np.zeros(shape, bool),
            target=np.full(shape, np.nan),
            passes=np.zeros(shape, int),
        )

    def keep(self, s: int, folds: np.ndarray, *parts) -> None:
        """Take over the outcome of some folds at a strength."""
        for whole, new in zip(self, parts, strict=True):
            whole[s, folds] = new

    def params(self, chosen) -> Params:
        """Of the fits to all rows at one strength of every neuron, (neuron,) index."""
        neurons = np.arange(len(chosen))
        coef = np.ascontiguousarray(self.coef[chosen, -1, :, neurons].T)
        return Params(coef, self.intercept[chosen, -1, neurons])

    @property
    def comparable(self) -> np.ndarray:
        """Strengths to choose from, (strength, neuron): those of which all fits ended; if there are none, began."""
        ended = self.status != Status.INTERRUPTED
        began = (ended | np.isfinite(self.gap)).all(axis=1)
        ended = ended.all(axis=1)
        return np.where(ended.any(axis=0), ended, began)


@dataclass(frozen=True)
class Fits:
    """What the fits have in common.

    Attributes
    ----------
    data : Training
        X, Y, weights of the rows that are fitted.
    observation : Observation
        Of the counts.
    penalty : callable
        Penalty of a strength, or of one per column.
    strengths : numpy.ndarray
        Increasing.
    folds : Folds
        Of the rows.
    solver : ConjugateGradients, ProximalNewton or None
        Which solves them; None chooses.
    options, last : LoopOptions
        When to stop, and when the fits to all rows stop if they may be returned.
    seed : int
        Of the solver's randomness.
    max_memory : float
        Bytes.
    dtype : numpy dtype
        Of the passes.
    """

    data: Any
    observation: Any
    penalty: Callable[[Any], Penalty]
    strengths: np.ndarray
    folds: Folds
    solver: ConjugateGradients | None
    options: LoopOptions
    last: LoopOptions
    seed: int
    max_memory: float
    dtype: Any

    def run(self, bar: ProgressBar) -> tuple[Found, bool]:
        """Fit to all folds and, last, to all rows.

        Parameters
        ----------
        bar : ProgressBar
            Counts the fits that are done.

        Returns
        -------
        found : Found
            The outcome.
        interrupted : bool
            Whether Ctrl-C came first. If no strength can be scored then, KeyboardInterrupt is raised instead.
        """
        found = Found.nothing(len(self.strengths), self._n_folds, self.data.X.shape[1], self.data.Y.shape[1])
        try:
            self._along(found, bar)
        except KeyboardInterrupt:
            if not found.comparable.any():
                raise
            return found, True
        return found, False

    def solution(
        self, problem, found: Found, chosen, began: float, stopped: LoopOptions | None = None
    ) -> Solution | None:
        """Turn the fits to all rows at one strength of every neuron, (neuron,) index, into the outcome of a fit.

        None where they are not as near the optimum as they could be. With ``stopped``, the options of a last fit that
        is not to be made, those are converged that are proved to be near enough, and a neuron without a fit has a
        constant rate.
        """
        neurons = np.arange(len(chosen))
        intercept, status, gap, is_bound, target, passes = (a[chosen, -1, neurons] for a in found[1:])
        params = found.params(chosen)
        if stopped is None:
            if not np.all(((status == Status.CONVERGED) & (passes > 0)) | (status == Status.NO_SPIKES)):
                return None
            objective = problem.evaluate(params).objective
        else:
            known, silent = ~np.isnan(intercept) & found.comparable.any(axis=0), problem.mean_count <= 0
            gap, is_bound = np.where(known, gap, np.nan), is_bound & known
            params = Params(*(np.where(known, a, null) for a, null in zip(params, problem.null_params(), strict=True)))
            objective = problem.evaluate(params).objective
            target = stopping_target(problem, objective, stopped, 2 * problem.rounding_of(params, objective))
            gap, is_bound = np.where(silent, 0.0, gap), is_bound | silent
            status = np.where(is_bound & (gap <= target), int(Status.CONVERGED), int(Status.INTERRUPTED))
            status = np.where(silent, int(Status.NO_SPIKES), status)
        seconds, row_evals = time.perf_counter() - began, int(passes.max()) * problem.n_rows
        trace = {"epoch": passes.max(), "row_evals": row_evals, "seconds": seconds, "objective": objective}
        trace |= {"gap": gap, "gap_is_bound": is_bound}
        return Solution(
            params=params,
            status=status,
            gap=gap,
            gap_is_bound=is_bound,
            target=target,
            objective=objective,
            null_objective=problem.null_objective,
            epochs=passes,
            row_evals=row_evals,
            step_certificate=None,
            history={name: np.asarray(value)[None] for name, value in trace.items()},
            seconds_run=seconds,
            seconds_compile=0.0,
            solver_name=type(self.chosen).__name__,
            interrupted=stopped is not None,
        )

    @property
    def chosen(self) -> ConjugateGradients:
        """Solver of the cross-validation."""
        return self.solver or (ConjugateGradients() if self.penalty(1.0).smooth else ProximalNewton())

    @cached_property
    def designs(self) -> dict[bool, dict]:
        """What is computed of the features alone, for penalties without kinks (True) and with: all fits share it."""
        return {True: {}, False: {}}

    @cached_property
    def _train(self) -> np.ndarray:
        """Rows of every fold, all of them last, bool (time, fold)."""
        return np.column_stack([self.folds.train, np.ones(len(self.data.X), bool)])

    @property
    def _n_folds(self) -> int:
        return self._train.shape[1]

    @property
    def count(self) -> int:
        """Fits in all, the last one of every neuron included."""
        return (len(self.strengths) * self._n_folds + 1) * self.data.Y.shape[1]

    def _along(self, found: Found, bar: ProgressBar) -> None:
        """Fit strength after strength, the strongest first: all rows, and then the folds from there."""
        smooth, lead, others, apart = self.penalty(1.0).smooth, None, None, None
        for s in range(len(self.strengths))[::-1]:
            lead = self._solve(s, [self._n_folds - 1], lead and lead.params, lead and lead.state, found, bar)
            start, curved = self._in_folds(lead)
            if apart is not None:  # how far a fold is from all rows changes slowly with the strength
                begin = Params(start.coef + apart.coef, start.intercept + apart.intercept)
            else:
                begin = others.params if others else start
            others = self._solve(s, range(self._n_folds - 1), begin, curved, found, bar)
            if smooth:  # elsewhere it would lead away from zeros
                apart = Params(others.params.coef - start.coef, others.params.intercept - start.intercept)

    def _in_folds(self, lead: Solution) -> tuple[Params, np.ndarray]:
        """Repeat what the fits to all rows have found for every other fold."""
        coef, intercept, curved = (np.tile(a, self._n_folds - 1) for a in (*lead.params, lead.state))
        return Params(coef, intercept), curved

    def _solve(self, s: int, folds, start: Params | None, curved, found: Found, bar: ProgressBar) -> Solution:
        """All neurons in some folds at one strength."""
        data, folds = self.data, np.asarray(folds)
        shape = len(folds), data.Y.shape[1]
        fold, neuron = (a.ravel() for a in np.meshgrid(folds, np.arange(shape[1]), indexing="ij"))
        strength = np.full(len(fold), self.strengths[s])
        penalty, solver = self.penalty(strength), self.chosen
        if not penalty.smooth and self.strengths[s] == 0:  # there are no kinks without a strength
            penalty, solver = penalties.Ridge(strength), ConjugateGradients()
        problem = FoldedProblem(
            data.X, data.Y, self.observation, penalty, neuron, fold, self._train,
            weights=data.weights, dtype=self.dtype, offset=data.offset,
        )  # fmt: skip
        problem.design = self.designs[penalty.smooth]
        tol = np.where(fold < self._n_folds - 1, self.options.tol, self.last.tol)
        options = replace(self.options, max_memory=self.max_memory, tol=tol)
        solution = run_counted(replace(solver, curved=curved), problem, start, self.seed, options, bar)
        # A fit that was stopped before its first step is a constant rate, and nothing to compare.
        gap = np.where((solution.status == Status.INTERRUPTED) & (solution.epochs == 0), np.nan, solution.gap)
        rest = solution.params.intercept, solution.status, gap, solution.gap_is_bound, solution.target
        coef = np.moveaxis(solution.params.coef.reshape(-1, *shape), 0, 1)
        found.keep(s, folds, coef, *(a.reshape(shape) for a in rest), np.maximum(solution.epochs, 1).reshape(shape))
        if solution.interrupted:
            raise KeyboardInterrupt
        return solution


def run_counted(solver, problem, start: Params | None, seed: int, options: LoopOptions, bar: ProgressBar) -> Solution:
    """Run a solver, and count the columns that are done on a bar."""
    before = bar.n

    def after_epoch(epoch, seconds, columns, state):
        bar.say(f"epoch {epoch}")
        bar.to(before + int(np.sum(~state.active)))

    options = replace(options, callback=after_epoch)
    solution = solver.run(problem, start, key=key_for(solver, seed), options=options)
    if not solution.interrupted:
        bar.to(before + problem.n_neurons)
    return solution


def penalty_maker(regularizer: str, l1_ratio: float) -> Callable[[Any], Penalty]:
    """Return the penalty as a function of the strength."""

    def make(strength) -> Penalty:
        strength = np.asarray(strength, np.float64)
        if regularizer == "ElasticNet":
            return penalties.ElasticNet(strength, np.float64(l1_ratio))
        return (penalties.Ridge if regularizer == "Ridge" else penalties.Lasso)(strength)

    return make


def read_strengths(given) -> np.ndarray | None:
    """Strengths in increasing order, each once; None stays."""
    if given is None:
        return None
    try:
        strengths = np.asarray(given)
    except ValueError:  # lists of different lengths
        strengths = np.empty(0, object)
    if (
        strengths.dtype.kind not in "fiu"
        or strengths.ndim != 1
        or any(isinstance(strength, bool | np.bool_) for strength in given)
        or not np.all(np.isfinite(strengths) & (strengths >= 0))
    ):
        raise ValueError(
            f"strengths is {shorten(given)}; it must be a list of finite numbers of at least 0, such as "
            f"[1e-4, 1e-2, 1]{not_text(given)}."
        )
    strengths = np.unique(strengths.astype(np.float64))
    if len(strengths) < 2:
        raise ValueError(
            f"strengths is {given!r}; it takes at least two different ones to choose. For one, use PopulationGLM."
        )
    return strengths


def default_strengths(regularizer: str, penalty, data, observation) -> np.ndarray:
    """Eight from 1e-6 to 1 for a ridge; else twelve, from the smallest that leaves no neuron a coefficient down."""
    if regularizer == "Ridge":
        return np.logspace(-6, 0, 8)
    problem = PopulationProblem(data.X, data.Y, observation, penalty(1.0), data.weights, data.X.dtype, data.offset)
    gradient = problem.null_gradient()
    strongest = float(np.max(penalty(1.0).maximal_strength(gradient)))
    rounding = 1e-12 * float(np.max(problem.null_objective, initial=0.0))
    return (strongest if strongest > rounding else 1.0) * np.logspace(-3, 0, 12)
