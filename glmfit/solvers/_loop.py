"""The only loop: epochs, checks, verdicts, progress, interruption."""

from __future__ import annotations

import time

import numpy as np

from .._compile import compile_seconds
from .._progress import ProgressBar
from .._status import Status
from ..problems.base import Params
from ._result import History, LoopOptions, Solution, stopping_target
from .checkpoint import from_arrays, to_arrays

_STALLED = 8  # checks without a smaller estimate
_NEAR = 3  # epochs from the target, at the pace of late: look after each


def fit_loop(solver, problem, params: Params | None, *, key, options: LoopOptions) -> Solution:
    """Run a solver on a problem until every neuron is converged, hopeless, or out of budget."""
    clock, compiled = time.perf_counter(), compile_seconds()
    history = History()
    verdict = Verdict(solver, problem, options)
    interrupted = False
    columns = state = None
    saved = None if options.checkpoint is None else options.checkpoint.load()
    bar = ProgressBar(f"fitting {problem.subject}", options.max_epochs, "epoch", options.verbose)
    try:
        if saved is None:
            columns, state = solver.init_state(problem, params or problem.start_params(), key=key)
        else:
            columns, state = _resume(solver, problem, saved, verdict, history)
            clock -= history.seconds[-1]
            bar.advance(state.epoch)
        while True:
            out_of_budget = state.epoch >= options.max_epochs
            if out_of_budget and not state.fresh:
                columns, state = solver.refresh(problem, columns, state)
            if saved is not None:
                saved = None  # this state has been looked at
            elif state.fresh:
                verdict.look(columns, state, last=out_of_budget)
                seconds = time.perf_counter() - clock
                history.add(state.epoch, state.row_evals, seconds, verdict.objective, verdict.gap, verdict.is_bound)
                bar.say(verdict.words())
                if options.checkpoint is not None:
                    options.checkpoint.save(_pack(solver, columns, state, verdict, history))
            if verdict.finished.all() or out_of_budget:
                bar.finish(bool(verdict.finished.all()))
                break
            state = state._replace(active=~verdict.finished)
            columns, state = solver.update(problem, columns, state)
            if verdict.near and not state.fresh:
                columns, state = solver.refresh(problem, columns, state)
            bar.advance()
            if options.callback is not None:
                options.callback(state.epoch, time.perf_counter() - clock, columns, state)
    except KeyboardInterrupt:
        if not history.epoch:
            raise  # nothing was fitted yet
        interrupted = True
        verdict.interrupt()
    finally:
        bar.close()
    compile_time = compile_seconds() - compiled
    return Solution(
        params=verdict.params,
        status=verdict.status,
        gap=verdict.gap,
        gap_is_bound=verdict.is_bound,
        target=verdict.target,
        objective=verdict.objective,
        null_objective=problem.null_objective,
        epochs=verdict.epochs,
        row_evals=state.row_evals,
        step_certificate=solver.certify_step(state),
        history=history.arrays(),
        seconds_run=time.perf_counter() - clock - compile_time,
        seconds_compile=compile_time,
        solver_name=type(solver).__name__,
        interrupted=interrupted,
        failure_probability=verdict.failure_probability,
        state=state,
    )


def _pack(solver, columns, state, verdict: Verdict, history: History) -> dict[str, np.ndarray]:
    """Everything a fit needs to go on after a look, as named arrays."""
    parts = {"solver": solver.pack(columns, state), "verdict": verdict.pack(), "history": history.arrays()}
    return {f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()}


def _resume(solver, problem, saved: dict[str, np.ndarray], verdict: Verdict, history: History):
    """Put verdict and history back and return the solver's step."""
    parts: dict[str, dict[str, np.ndarray]] = {"solver": {}, "verdict": {}, "history": {}}
    for name, array in saved.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = array
    verdict.unpack(parts["verdict"])
    history.restore(parts["history"])
    return solver.unpack(problem, parts["solver"])


class Verdict:
    """Judges every neuron: non-finite first, then converged, then out of budget.

    A neuron is converged when the problem's gap certificate, taken at the parameters that will be returned, is
    below its target; those very parameters are kept. The solver's estimate decides when to ask, and nothing else:
    where it is all there is in the end, the neuron is unproved.
    """

    def __init__(self, solver, problem, options: LoopOptions):
        self.solver, self.problem, self.options = solver, problem, options
        n = problem.n_neurons
        silent = problem.mean_count <= 0
        self.params = problem.null_params()
        self.status = np.where(silent, int(Status.NO_SPIKES), int(Status.MAX_EPOCHS))
        self.finished = silent.copy()
        self.gap = np.where(silent, 0.0, np.nan)
        self.is_bound = silent.copy()
        self.objective = problem.null_objective.copy()
        self.target = self._target()
        self.epochs = np.zeros(n, int)
        self.attempts, self.failure_probability = 0, 0.0
        self.near = False  # whether every open neuron is about to be ready
        self._inflation = np.ones(n)  # bound over estimate, as last seen
        self._best, self._lowest, self._since = np.full(n, np.inf), np.full(n, np.inf), np.zeros(n, int)
        self._seen = (0, np.full(n, np.inf))  # epoch and estimate at the last look

    def pack(self) -> dict[str, np.ndarray]:
        """Everything it has found so far, as named arrays."""
        return to_arrays(self._findings())

    def unpack(self, arrays: dict[str, np.ndarray]) -> None:
        """Put back what `pack` gave."""
        vars(self).update(from_arrays(arrays, self._findings()))

    def _findings(self) -> dict:
        return {k: v for k, v in vars(self).items() if k not in ("solver", "problem", "options")}

    def look(self, columns, state, last: bool) -> None:
        """Read a fresh check of the solver, and certify when every open neuron looks ready."""
        open_ = ~self.finished
        self.epochs[open_] = state.epoch
        # The solver's own arrays may be gone if the user interrupts its next step.
        self._keep(open_, self.solver.user_params(self.problem, columns, state))
        self._record(open_, state.objective, state.estimate, False)
        broken = open_ & ~(np.isfinite(state.objective) & np.isfinite(state.estimate))
        self._finish(broken, Status.NON_FINITE)
        open_ &= ~broken
        # Far away the estimate may rise for long while the objective still falls.
        seen = 8 * np.finfo(self.problem.dtype).eps * np.abs(state.objective)
        falls = state.objective < self._lowest - np.maximum(1e-2 * self.target, seen)
        # An estimate that no sum in float64 resolves is rounding, and goes on falling by chance.
        resolved = self._best > np.finfo(float).eps * (np.abs(state.objective) + self.problem.mean_count)
        better = ((state.estimate < 0.9 * self._best) & resolved) | falls
        self._since = np.where(better, 0, self._since + 1)
        self._best = np.minimum(self._best, np.where(better, state.estimate, np.inf))
        self._lowest = np.minimum(self._lowest, np.where(better, state.objective, np.inf))
        stalled = (self._since >= _STALLED) | self.solver.is_stuck(state)
        ready = self._inflation * state.estimate <= self.target
        self.near = bool(np.all(self._is_near(state)[open_]))
        # Bounds of exact Hessians are at hand at every check: no neuron need wait for the others. Of penalties with
        # kinks the estimate says little, and steps with exact Hessians end what they begin.
        now = last or self.solver.exact_hessian or (ready | stalled)[open_].all()
        now = now or (not self.problem.penalty.smooth and self._may_finish(state, open_, False))
        if open_.any() and now:
            given_up = stalled if self.solver.exact_hessian else np.full_like(stalled, stalled[open_].all())
            self._certify(columns, state, open_, stalled, given_up | last)

    def _is_near(self, state) -> np.ndarray:
        """Whether each neuron will be ready within a few epochs if its estimate goes on falling as it did."""
        epoch, before = self._seen
        self._seen = state.epoch, state.estimate
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            fall = np.minimum(state.estimate / before, 1.0) ** (_NEAR / max(state.epoch - epoch, 1))
            return self._inflation * state.estimate * fall <= self.target

    def interrupt(self) -> None:
        """Label the open neurons; their parameters, objective and gap are those of the last check."""
        self._finish(~self.finished, Status.INTERRUPTED)

    def words(self) -> str:
        """Progress in a few words."""
        known = self.gap[np.isfinite(self.gap)]
        worst = f"{known.max():.1e}" if known.size else "?"
        open_ = f"{int((~self.finished).sum())} open, worst " if len(self.finished) > 1 else ""
        return f"{open_}gap {worst}"

    def _certify(self, columns, state, open_, stalled, final) -> None:
        """Ask for bounds at the parameters to return; what they do not settle is finished exactly or goes on.

        Nothing more is done for neurons that are ``final``, bool (neuron,), whatever comes of it.
        """
        self.attempts += 1
        certificate = self.solver.certify_gap(self.problem, columns, state, self.attempts)
        self.failure_probability += certificate.failure_probability
        bounded = np.isfinite(certificate.bound)
        gap = np.where(bounded, certificate.bound, certificate.estimate)
        self._record(open_, certificate.objective, gap, bounded)
        self._finish(open_ & bounded & (gap <= self.target), Status.CONVERGED)
        left = open_ & ~self.finished
        exactly = self._may_finish(state, left, bool(final[left].all()))
        if exactly:
            for neuron in np.flatnonzero(left):
                self._finish_exactly(int(neuron))
            left &= ~self.finished
        for neuron in np.flatnonzero(left & ~self.is_bound & (final | exactly)):
            if self.problem.is_separable(self.params, int(neuron)):
                self._finish(np.arange(len(left)) == neuron, Status.SEPARABLE)
        left &= ~self.finished
        self._finish(left & final & (self.gap <= self.target), Status.UNPROVED)
        self._finish(left & final & stalled & ~self.finished, Status.PRECISION_FLOOR)
        # Ask again when the bound, not just the estimate, can be expected below the target.
        seen = np.where(bounded, gap, 4 * self._inflation * state.estimate)
        with np.errstate(invalid="ignore", over="ignore"):
            ratio = seen / np.maximum(state.estimate, np.finfo(float).tiny)
        self._inflation = np.where(left, np.clip(ratio, 1.0, 1e6), self._inflation)

    def _may_finish(self, state, left, final: bool) -> bool:
        """Whether steps with exact Hessians may end what this solver began."""
        newton = self.solver.finish_with_newton and not self.solver.exact_hessian
        return newton and self.problem.newton_is_cheap(self.params, left, final, state.row_evals / self.problem.n_rows)

    def _finish_exactly(self, neuron: int) -> None:
        """Newton steps on one neuron with its exact Hessian, which also bounds its gap."""
        one = np.arange(len(self.finished)) == neuron
        outcome = self.problem.finish_neuron(self.params, neuron, self.target[neuron])
        self._keep(one, outcome.params)
        bounded = np.isfinite(outcome.bound)
        self._record(one, outcome.objective, outcome.bound if bounded else outcome.estimate, bounded)
        if bounded and outcome.bound <= self.target[neuron]:
            self._finish(one, Status.CONVERGED)

    def _target(self) -> np.ndarray:
        """Gap asked of every neuron where it is now."""
        rounding = 2 * self.problem.rounding_of(self.params, self.objective)
        # Where parameters ran away rounding is no excuse.
        rounding = np.minimum(rounding, 1e-9 * (np.abs(self.objective) + self.problem.mean_count))
        return stopping_target(self.problem, self.objective, self.options, rounding)

    def _record(self, where, objective, gap, is_bound) -> None:
        # No estimate is above what is known without looking: no loss is below the smallest there is.
        known = objective - self.problem.saturated_loss
        gap = np.where(is_bound, gap, np.fmin(gap, np.where(known > 0, known, np.inf)))
        self.objective = np.where(where, objective, self.objective)
        self.gap = np.where(where, gap, self.gap)
        self.is_bound = np.where(where, is_bound, self.is_bound)
        self.target = np.where(where, self._target(), self.target)

    def _keep(self, where, params: Params) -> None:
        self.params = Params(*(np.where(where, new, old) for new, old in zip(params, self.params, strict=True)))

    def _finish(self, where, status: Status) -> None:
        self.status = np.where(where, int(status), self.status)
        self.finished = self.finished | where
