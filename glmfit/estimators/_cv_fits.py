"""All fits of a cross-validation: strengths, folds and neurons at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import penalties
from .._checks import not_text, shorten
from .._progress import ProgressBar
from .._status import Status
from ..engine import ConjugateGradients, ProximalNewton
from ..penalties import Penalty
from ..problems import FoldedProblem, Params, PopulationProblem
from ..solvers import SAGA, LoopOptions, Solution
from ..solvers._loop import stopping_target
from ..solvers._seed import key_for
from ._folds import Folds

REGULARIZERS = ("Ridge", "Lasso", "ElasticNet")
_COPIES = 7  # arrays of rows times columns alive at a time in SAGA: counts, weights, table, and what warm-up adds


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

    def keep(self, strengths: int | slice, neurons: np.ndarray, part) -> None:
        """Take over the outcome of some strengths and neurons."""
        for whole, new in zip(self, part, strict=True):
            whole[strengths][..., neurons] = new

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
    solver : ConjugateGradients, ProximalNewton, SAGA or None
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
    solver: ConjugateGradients | SAGA | None
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
        n_neurons = self.data.Y.shape[1]
        found = Found.nothing(len(self.strengths), self._train.shape[1], self.data.X.shape[1], n_neurons)
        n_groups = -(-n_neurons // max(1, int(self.max_memory // self._bytes_of_columns())))
        try:
            for neurons in np.array_split(np.arange(n_neurons), n_groups):
                self._columns(neurons, found, bar)
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
            known, silent = ~np.isnan(intercept), problem.mean_count <= 0
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

    @cached_property
    def chosen(self) -> ConjugateGradients | SAGA:
        """Solver of the cross-validation."""
        return self.solver or self._choose()

    @property
    def _train(self) -> np.ndarray:
        return np.column_stack([self.folds.train, np.ones(len(self.data.X), bool)])

    @property
    def count(self) -> int:
        """Fits in all, the last one of every neuron included."""
        return (self._n_fits + 1) * self.data.Y.shape[1]

    @property
    def _n_fits(self) -> int:
        """Of a neuron."""
        return len(self.strengths) * (self.folds.train.shape[1] + 1)

    def _choose(self):
        """Engine on a CPU, SAGA elsewhere."""
        if jax.default_backend() != "cpu":
            return SAGA()
        return ConjugateGradients() if self.penalty(1.0).smooth else ProximalNewton()

    @property
    def _at_once(self) -> bool:
        """Whether the fits of all strengths are made together; else a stronger one is the start of the next."""
        return self.penalty(1.0).smooth and isinstance(self.chosen, SAGA)

    def _bytes_of_columns(self) -> float:
        columns = self._n_fits if self._at_once else self._n_fits // len(self.strengths)
        return _COPIES * columns * self.data.X.shape[0] * float(np.dtype(self.dtype).itemsize)

    def _folded(self, strength, fold, neuron) -> FoldedProblem:
        data, penalty = self.data, self.penalty(strength)
        if not penalty.smooth and not np.any(strength):
            penalty = penalties.Ridge(strength)  # there are no kinks without a strength
        return FoldedProblem(
            data.X, data.Y, self.observation, penalty, neuron, fold, self._train,
            weights=data.weights, dtype=self.dtype, offset=data.offset,
        )  # fmt: skip

    def _columns(self, neurons, found: Found, bar: ProgressBar) -> None:
        if self._at_once:
            self._solve(neurons, slice(None), None, found, bar)
            return
        # The next stronger strength is a near start.
        start = curved = None
        for s in range(len(self.strengths))[::-1]:
            start, curved = self._solve(neurons, slice(s, s + 1), start, found, bar, curved)

    def _solve(self, neurons, which: slice, start, found: Found, bar: ProgressBar, curved=None):
        """All columns of some strengths in one problem; returns their parameters, and what the solver learnt."""
        strengths = self.strengths[which]
        shape = len(strengths), self._train.shape[1], len(neurons)
        strength, fold, neuron = (a.ravel() for a in np.meshgrid(strengths, range(shape[1]), neurons, indexing="ij"))
        problem = self._folded(strength, fold, neuron)
        solver, options, passes = self.chosen, self.options, np.zeros(len(neuron), int)
        if isinstance(solver, ConjugateGradients):
            if problem.penalty.smooth:  # whatever it is at other strengths
                solver = ConjugateGradients()
            solver = replace(solver, curved=curved)
            options = replace(
                options, max_memory=self.max_memory, tol=np.where(fold < shape[1] - 1, options.tol, self.last.tol)
            )
        solution = run_counted(solver, problem, start, self.seed, options, bar)
        if isinstance(solver, ConjugateGradients):
            passes = np.maximum(solution.epochs, 1)
        coef, intercept = solution.params
        # A fit that was stopped before its first step is a constant rate, and nothing to compare.
        gap = np.where((solution.status == Status.INTERRUPTED) & (solution.epochs == 0), np.nan, solution.gap)
        rest = intercept, solution.status, gap, solution.gap_is_bound, solution.target, passes
        coef = np.moveaxis(coef.reshape(-1, *shape), 0, -2)
        found.keep(which, neurons, (coef, *(a.reshape(shape) for a in rest)))
        if solution.interrupted:
            raise KeyboardInterrupt
        return solution.params, solution.state


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
