"""The loop: steps of all fits, proofs as soon as they can be had, a verdict for each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from .._compile import compile_seconds
from .._progress import ProgressBar
from .._status import Status
from ..problems.base import Params
from ..solvers._result import History, LoopOptions, Solution
from ..solvers._seed import seed_of
from .certify import RidgeFloor, SpectralFloor, bound_gaps
from .cg import Descent
from .host import HostRows
from .metric import SharedMetric

_AIM = 0.3  # of the target: an estimate below it asks for a proof
_TIGHTER = 0.03  # factor of the aim after a proof that failed
_PROOFS = 4  # before the exact Hessian of the fit decides
_LOOK_BACK = 3  # steps over which contraction is measured
_STALLED = 4  # steps without a smaller estimate: rounding
_FAILURE = 1e-3  # probability, over all fits and proofs, that some bound fails
_COPIES = 4  # arrays of rows times fits


@dataclass(frozen=True)
class ConjugateGradients:
    """Conjugate gradients of all neurons at once, in a metric that they share or in one of a neuron's own.

    Notes
    -----
    Runs on the host: BLAS for the two products of a step, one compiled program for the loss, whatever the shapes. The
    shared metric is the spectral basis of the features times the mean curvature of each neuron; a neuron that it does
    not serve gets its Hessian as a metric. Steps are Newton's along the direction, corrected by the slope at their end,
    and at the least as long as self-concordance proves to descend. Bounds of the gap rest on a float64 gradient, some
    products and the ridge; where that is too little, on Lanczos steps with a tenth of the rows, or on the exact Hessian
    of the neuron. Cost: T d^2 once, then two products of T d N a step.
    """

    on_host: ClassVar[bool] = True

    def run(self, problem, params: Params | None = None, *, key=None, options: LoopOptions | None = None) -> Solution:
        """Fit until every neuron is converged or the budget is spent; see :class:`LoopOptions`."""
        return solve(problem, options or LoopOptions(), seed=0 if key is None else seed_of(key), start=params)


def solve(problem, options: LoopOptions, *, seed: int = 0, start: Params | None = None) -> Solution:
    """Fit every neuron of a population, each to a proved distance from its optimum.

    Parameters
    ----------
    problem : PopulationProblem
        Data, observation model and penalty, which must be smooth.
    options : LoopOptions
        When to stop.
    seed : int
        Of the random starts of certificates.
    start : Params, optional
        Where to begin; the models without features by default.

    Returns
    -------
    Solution
    """
    return _Run(problem, options, seed, start).run()


class Progress(NamedTuple):
    """What a callback is told besides parameters."""

    epoch: int
    active: np.ndarray  # which neurons are still stepped, bool (neuron,)


class _Run:
    """One call of `solve`: outcome per neuron, filled in as it becomes known."""

    def __init__(self, problem, options: LoopOptions, seed: int, start: Params | None):
        self.problem, self.options, self.seed, self.start = problem, options, seed, start
        self.clock, self.compiled = time.perf_counter(), compile_seconds()
        n = problem.n_neurons
        silent = problem.mean_count <= 0
        self.params = problem.null_params()
        self.status = np.where(silent, int(Status.NO_SPIKES), int(Status.MAX_EPOCHS))
        self.gap, self.is_bound = np.where(silent, 0.0, np.nan), silent.copy()
        self.objective = problem.null_objective.copy()
        self.target = self._targets(np.arange(n), self.objective)
        self.epochs, self.passes, self.history = np.zeros(n, int), 0.0, History()
        self.failure_probability, self.exact, self.attempts = 0.0, False, 0

    def run(self) -> Solution:
        """Fit groups of neurons, as many at a time as memory allows."""
        problem, options = self.problem, self.options
        todo = np.flatnonzero(self.status != Status.NO_SPIKES)
        bytes_of_one = _COPIES * problem.n_rows * problem.dtype.itemsize
        most = max(1, int(min(options.max_memory / bytes_of_one, len(todo))))
        interrupted, self.group = False, None
        self.bar = ProgressBar(f"fitting {problem.subject}", options.max_epochs, "epoch", options.verbose)
        try:
            self._note()
            for neurons in np.array_split(todo, -(-len(todo) // most) or 1):
                if len(neurons) and options.max_epochs:
                    self._fit(neurons)
            self.bar.finish(bool(np.all(self.status != Status.MAX_EPOCHS)))
        except KeyboardInterrupt:
            if self.group is None:
                raise  # nothing was fitted yet
            interrupted = True
            self._keep_interrupted()
        finally:
            self.bar.close()
        seconds_compile = compile_seconds() - self.compiled
        return Solution(
            params=self.params,
            status=self.status,
            gap=self.gap,
            gap_is_bound=self.is_bound,
            target=self.target,
            objective=self.objective,
            null_objective=problem.null_objective,
            epochs=self.epochs,
            row_evals=int(self.passes * problem.n_rows),
            step_certificate=None,
            history=self.history.arrays(),
            seconds_run=time.perf_counter() - self.clock - seconds_compile,
            seconds_compile=seconds_compile,
            solver_name="ConjugateGradients+Newton" if self.exact else "ConjugateGradients",
            interrupted=interrupted,
            failure_probability=self.failure_probability,
        )

    # ---------------------------------------------------------------- a group of fits

    def _fit(self, neurons: np.ndarray) -> None:
        with self._rows(neurons) as rows:
            self._descend(self._start(rows, neurons), neurons)

    def _descend(self, cg: Descent, neurons: np.ndarray) -> None:
        problem, options = self.problem, self.options
        self.group = cg, neurons
        aim = np.full(len(neurons), _AIM)
        proofs = np.zeros(len(neurons), int)
        traces: list[np.ndarray] = [cg.estimate]
        scale = problem.basis.deviation
        while True:
            target = self._targets(neurons, problem.null_objective[neurons] - cg.gained)
            out = cg.n_steps >= options.max_epochs
            broken = ~np.isfinite(cg.estimate)
            ready = (cg.estimate <= aim * target) | _stalled(traces) | out | broken
            if ready.all():
                proofs += 1
                left = self._prove(cg, neurons, target, proofs, out, broken)
                if not len(left):
                    return
                cg.take(left)
                neurons, aim, proofs = neurons[left], aim[left] * _TIGHTER, proofs[left]
                self.group = cg, neurons
                cg.renew_metrics(np.arange(len(left)), scale)
                traces = [cg.estimate]
                ready = np.zeros(len(left), bool)
            else:
                slow = ~ready & self._is_slow(cg, traces, aim * target)
                if slow.any():
                    cg.renew_metrics(np.flatnonzero(slow), scale)
                    traces = [np.where(slow, np.inf, t) for t in traces[:-1]] + [cg.estimate]
            cg.step(~ready)
            traces = [*traces[-2 * _STALLED :], cg.estimate]
            self.bar.to(int(cg.n_steps.max()))
            self.bar.say(f"{int(np.sum(~ready))} of {problem.n_neurons} open, estimate {np.nanmax(cg.estimate):.1e}")
            if options.callback is not None:
                active = np.zeros(problem.n_neurons, bool)
                active[neurons] = ~ready
                state = Progress(int(cg.n_steps.max()), active)
                options.callback(state.epoch, time.perf_counter() - self.clock, self._params_of(cg), state)

    def _rows(self, neurons) -> HostRows:
        p = self.problem
        return HostRows(p.X, p.Y, p.observation, neurons, p.basis.mean, p.weights, None, p.offset, p.dtype)

    def _start(self, rows: HostRows, neurons) -> Descent:
        p, basis = self.problem, self.problem.basis
        ridge = np.broadcast_to(np.asarray(p.penalty.ridge_strength, np.float64), (p.n_features, p.n_neurons))
        ridge = ridge[:, neurons]
        curvature = np.maximum(p.null_curvature[neurons], 1e-3 / p.n_rows)
        metric = SharedMetric(basis, curvature, (basis.whiten**2).T @ ridge)
        start = self.start or p.null_params()
        coef = np.array(start.coef[:, neurons], np.float64)
        return Descent(rows, metric, ridge, coef, start.intercept[neurons] + basis.mean @ coef)

    def _is_slow(self, cg: Descent, traces, aim) -> np.ndarray:
        """Which fits a metric of their own would bring to their aim with less work than the steps to come."""
        if len(traces) <= _LOOK_BACK:
            return np.zeros(len(aim), bool)
        d = self.problem.n_features
        with np.errstate(divide="ignore", invalid="ignore"):
            fall = np.log(traces[-1 - _LOOK_BACK] / cg.estimate) / _LOOK_BACK  # per step
            ahead = np.log(cg.estimate / aim) / np.maximum(fall, 1e-2)
        own = 3 + d * (d + 8) / (4 * d + 150)
        return np.isfinite(ahead) & (ahead > own)

    # ---------------------------------------------------------------- proofs

    def _prove(self, cg: Descent, neurons, target, proofs, out, broken) -> np.ndarray:
        """Bound all gaps; returns the fits that go on, as indices."""
        problem = self.problem
        self.attempts += 1
        loss, gradient = cg.rows.evaluate(cg.coef, cg.intercept)
        cg.arrive(gradient)
        params = self._params_of(cg)
        value = np.broadcast_to(np.asarray(self._penalty_of(params, neurons), np.float64), loss.shape)
        objective = loss + value
        cg.gained = problem.null_objective[neurons] - objective
        target = self._targets(neurons, objective)
        rounding = self._rounding(params, neurons, objective)
        bound, estimate = self._bounds(cg, neurons, target - rounding, params)
        bound = bound + rounding
        known = np.isfinite(bound)
        gap = np.where(known, bound, np.maximum(estimate, rounding))
        self._keep(neurons, params, objective, gap, known, target)
        self.epochs[neurons] = cg.n_steps
        self.passes += cg.rows.passes
        cg.rows.passes = 0.0
        status = np.full(len(neurons), int(Status.MAX_EPOCHS))
        proved = known & (bound <= target)
        status[proved] = Status.CONVERGED
        bad = broken | ~np.isfinite(objective) | ~np.isfinite(gap)
        status[bad] = Status.NON_FINITE
        self.status[neurons] = status
        self._note(int(cg.n_steps.max()))
        open_ = ~(proved | bad)
        for k in np.flatnonzero(open_ & ((proofs >= _PROOFS) | out)):
            self._finish_exactly(int(neurons[k]))
            open_[k] = False
        return np.flatnonzero(open_)

    def _bounds(self, cg, neurons, target, params: Params):
        """Bounds from the ridge, and from the spectrum of some rows where it says too little."""
        problem = self.problem
        bound, estimate = np.full(len(neurons), np.inf), np.full(len(neurons), np.inf)
        some = np.all(cg.ridge > 0, axis=0)
        if some.any():
            bound, estimate = bound_gaps(cg, some, target, RidgeFloor(cg, self._longest(cg)))
        left = ~(bound <= target)
        near = ~some | (estimate <= target)
        if not (left & near).any():
            return bound, estimate
        seed = int(self.seed), 1, self.attempts
        share = _FAILURE / 2**self.attempts * len(neurons) / problem.n_neurons
        floor = SpectralFloor(cg, seed, share, problem.penalty.rotation_invariant)
        self.failure_probability += floor.failure_probability
        found, second = bound_gaps(cg, left & near, target, floor, problem.penalty.penalises_all)
        found = np.where(problem.basis.settles(problem.penalty.rotation_invariant, params.coef), found, np.inf)
        found = np.where(left & near, found, np.inf)
        if not problem.penalty.penalises_all and np.isfinite(found).any():
            everywhere = Params(*(a.copy() for a in self.params))
            everywhere.coef[:, neurons], everywhere.intercept[neurons] = params
            among = np.zeros(problem.n_neurons, bool)
            among[neurons] = np.isfinite(found)
            found = np.where(problem.may_be_separable(everywhere, among)[neurons], np.inf, found)
        return np.minimum(bound, found), np.where(some, estimate, second)

    def _longest(self, cg: Descent) -> np.ndarray:
        """Largest norm of a centred row in the inverse of each fit's ridge, (fit,)."""
        least = cg.ridge.min(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            shape = cg.ridge / least
            if not np.all(np.abs(shape - shape[:, :1]) <= 1e-12 * shape[:, :1]):
                shape = np.ones_like(shape)
            return cg.rows.longest(np.sqrt(shape[:, 0])) / np.sqrt(least)

    def _finish_exactly(self, neuron: int) -> None:
        """Newton steps on one neuron with its exact Hessian in float64, which also bounds its gap."""
        problem, self.exact = self.problem, True
        outcome = problem.finish_neuron(self.params, neuron, self.target[neuron])
        self.params = outcome.params
        known = bool(np.isfinite(outcome.bound))
        self.objective[neuron], self.is_bound[neuron] = outcome.objective, known
        self.gap[neuron] = outcome.bound if known else outcome.estimate
        self.target[neuron] = self._targets(np.array([neuron]), self.objective[[neuron]])[0]
        if known and self.gap[neuron] <= self.target[neuron]:
            self.status[neuron] = Status.CONVERGED
        elif problem.is_separable(self.params, neuron):
            self.status[neuron] = Status.SEPARABLE
        elif not known and self.gap[neuron] <= self.target[neuron]:
            self.status[neuron] = Status.UNPROVED
        else:
            self.status[neuron] = Status.PRECISION_FLOOR

    # ---------------------------------------------------------------- what is known

    def _params_of(self, cg: Descent) -> Params:
        return Params(cg.coef, cg.intercept - cg.rows.mean @ cg.coef)

    def _penalty_of(self, params: Params, neurons) -> np.ndarray:
        coef = np.zeros_like(self.params.coef)
        coef[:, neurons] = params.coef
        return np.asarray(self.problem.penalty.value(coef))[neurons]

    def _keep(self, neurons, params: Params, objective, gap, is_bound, target) -> None:
        self.params.coef[:, neurons], self.params.intercept[neurons] = params
        self.objective[neurons], self.gap[neurons] = objective, gap
        self.is_bound[neurons], self.target[neurons] = is_bound, target

    def _keep_interrupted(self) -> None:
        """Return where the open fits are, with what can be said of it."""
        cg, neurons = self.group
        open_ = np.isin(self.status[neurons], (Status.MAX_EPOCHS,))
        params = Params(*(a[..., open_] for a in self._params_of(cg)))
        neurons = neurons[open_]
        self.params.coef[:, neurons], self.params.intercept[neurons] = params
        objective = self.problem.evaluate(self.params).objective
        self.objective[neurons] = objective[neurons]
        self.gap[neurons], self.is_bound[neurons] = cg.estimate[open_], False
        self.epochs[neurons] = cg.n_steps[open_]
        self.status[self.status == Status.MAX_EPOCHS] = Status.INTERRUPTED

    def _rounding(self, params: Params, neurons, objective) -> np.ndarray:
        whole = Params(*(a.copy() for a in self.params))
        whole.coef[:, neurons], whole.intercept[neurons] = params
        values = self.objective.copy()
        values[neurons] = objective
        return self.problem.rounding_of(whole, values)[neurons]

    def _targets(self, neurons, objective) -> np.ndarray:
        """Gap below which a neuron counts as converged, (fit,)."""
        problem, options = self.problem, self.options
        improvement = np.maximum(problem.null_objective[neurons] - objective, 0.0)
        negligible = options.negligible / problem.n_rows * min(1.0, options.tol / 1e-6)
        rounding = 64e-16 * (np.abs(objective) + problem.mean_count[neurons])
        return np.maximum(np.maximum(options.tol * improvement, negligible), rounding)

    def _note(self, epoch: int = 0) -> None:
        seconds = time.perf_counter() - self.clock
        row_evals = int(self.passes * self.problem.n_rows)
        self.history.add(epoch, row_evals, seconds, self.objective.copy(), self.gap.copy(), self.is_bound.copy())


def _stalled(traces) -> np.ndarray:
    """Which fits have not come nearer for some steps: what is left is rounding."""
    if len(traces) <= _STALLED:
        return np.zeros(len(traces[-1]), bool)
    return np.min(traces[-_STALLED:], axis=0) >= 0.9 * traces[-_STALLED - 1]
