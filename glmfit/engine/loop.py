"""The loop: steps of all fits, proofs as soon as they can be had, a verdict for each."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..bounds import dual_gap
from ..compilation import Clock
from ..progress import ProgressBar
from ..status import Status
from .beginning import Beginning
from .certify import RidgeFloor, SpectralFloor, bound_gaps, bound_gaps_at_once
from .cg import Descent, steps_of_a_hessian
from .exact.neuron import Finished
from .group import Group
from .problem import Params
from .proximal import select
from .result import History, LoopOptions, Solution, stopping_target
from .resumption import Notebook
from .tiles import Slopes

_TIGHTER = 0.03  # factor of the aim after a proof that failed
_PROOFS = 4  # before the exact Hessian of the fit decides
_CHEAP = 15  # steps: a Hessian that costs less is worth having after the first proof that failed
_CHEAP_FLOOR = 6  # steps: that of some rows is worth having at once if it costs less
_FREE_STEPS, _LOOK = 60, 10  # where there may be no optimum to come to; steps between looks in float64 there
_LEAST = 64e-16  # of an objective: a smaller gap is nobody's goal
_FEW = 64  # fits that are not worth a group of their own
_FAILURE = 1e-3  # probability, over all fits and proofs, that some bound fails
_COPIES = 3  # arrays of rows times fits
_SAMPLE = LoopOptions(tol=1e-4)  # of a fit that another one begins at


class Progress(NamedTuple):
    """What a callback is told besides parameters."""

    epoch: int
    active: np.ndarray  # which neurons are still stepped, bool (neuron,)


class Run:
    """One run of a solver: outcome per neuron, filled in as it becomes known."""

    def __init__(self, problem, options: LoopOptions, seed: int, start: Params | None = None, curved=None, begin=None):
        self.problem, self.options, self.seed, self.start, self.make = problem, options, seed, start, begin
        self.curved = np.zeros(problem.n_neurons, bool) if curved is None else curved.copy()
        self.clock = Clock()
        n, silent = problem.n_neurons, problem.silent
        self.params = problem.null_params()
        self.status = np.where(silent, int(Status.NO_SPIKES), int(Status.MAX_EPOCHS))
        self.gap, self.is_bound = np.where(silent, 0.0, np.nan), silent.copy()
        self.objective = problem.null_objective.copy()
        self.target = self._targets(np.arange(n), self.objective)
        self.epochs, self.passes, self.history = np.zeros(n, int), 0.0, History()
        self.failure_probability, self.exact, self.attempts = 0.0, False, 0
        self.open = ~silent
        self.most_steps = options.max_epochs if problem.penalty.penalises_all else min(options.max_epochs, _FREE_STEPS)
        self.beginning: Beginning | None = None
        self.promised = np.zeros(n)  # estimate of what the start gains over the null model
        self.groups: list[Group] = []
        self.notebook = Notebook(options.checkpoint)
        self.notebook.restore(self)

    def run(self) -> Solution:
        """Fit groups of neurons, as many at a time as memory allows."""
        problem, options = self.problem, self.options
        todo = np.flatnonzero(self.status == Status.MAX_EPOCHS)
        bytes_of_one = _COPIES * problem.n_rows * problem.dtype.itemsize
        kin, place = np.unique(problem.kin[todo], return_inverse=True)  # fits of a neuron stay together
        share = options.max_memory / (bytes_of_one * max(1, len(todo) / max(1, len(kin))))
        most = max(1, int(min(share, len(kin))) if problem.in_memory else len(kin))
        interrupted = False
        self.bar = ProgressBar(f"fitting {problem.subject}", options.max_epochs, "epoch", options.verbose)
        try:
            if len(todo) and options.max_epochs:
                self._begin()
            if not self.history.epoch:
                self._note()
            for some in np.array_split(np.arange(len(kin)), -(-len(kin) // most) or 1):
                if len(some) and options.max_epochs:
                    self._fit(todo[np.isin(place, some)])
            self.notebook.note(self, last=True)
            self.bar.finish(bool(np.all(self.status != Status.MAX_EPOCHS)))
        except KeyboardInterrupt:
            if not self.groups and not self.epochs.any():
                raise  # nothing was fitted yet
            interrupted = True
            self._keep_interrupted()
        finally:
            self.bar.close()
        seconds_compile = self.clock.compiling
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
            seconds_run=self.clock.seconds - seconds_compile,
            seconds_compile=seconds_compile,
            solver_name=self.name,
            interrupted=interrupted,
            failure_probability=self.failure_probability,
            state=self.curved,
            memory_bytes=self.beginning.held_bytes if self.beginning else None,
        )

    # ---------------------------------------------------------------- groups of fits

    def _begin(self) -> None:
        """Say where fits begin; where rows are read in every pass, at the fits of some of them."""
        problem, options = self.problem, self.options
        begin = self.beginning = Beginning(self)
        if problem.in_memory:
            return
        # A metric of its own for every fit, from some rows, if there is room: it saves readings.
        self.curved |= 16.0 * problem.n_neurons * (problem.n_features + 1) ** 2 <= options.max_memory / 8
        if self.start is None:
            begin.take(Run(begin.sample, replace(_SAMPLE, max_memory=options.max_memory / 8), self.seed).run())

    def _fit(self, fits: np.ndarray) -> None:
        """Step groups of fits, which part when half of one are ready for their proofs."""
        with self.beginning.rows(fits) as rows:
            group = Group(self.beginning.descent(rows, fits), fits)
            group.descent.n_steps[:] = self.epochs[fits]
            if self.curved[fits].any():
                self._renew(group, self.curved[fits])
            self.groups = [group]
            while self.groups:
                group = self.groups[-1]
                target = self._goals(group.fits, self.problem.null_objective[group.fits] - group.descent.gained)
                ready = group.is_ready(target) | (group.descent.n_steps >= self.most_steps)
                if ready.all() and group.first_order and not group.looks:
                    # Bounds by duality are as near as the gradient is, which single precision does not show.
                    group.descent.goal = np.zeros(len(ready))  # the step to come is to be as good as one can be
                    self._look(group)
                    group.step(np.ones(len(ready), bool), target, self.most_steps)
                elif ready.all():
                    self.groups[-1:] = self._prove(group, target)
                elif not self.problem.penalty.penalises_all and group.looks < group.descent.n_steps.max() // _LOOK:
                    self._look(group)
                elif self.problem.in_memory and ready.sum() >= max(len(ready) / 2, _FEW):
                    self.groups[-1:] = group.split(~ready, ready)
                else:
                    self._step(group, ~ready, target)
                self.notebook.note(self)

    def _step(self, group: Group, moving: np.ndarray, target: np.ndarray) -> None:
        descent = group.descent
        slow = group.is_slow(target, moving)
        if slow.any():
            self.curved[group.fits[slow]] = True
            if not self.problem.in_memory:
                descent.doubt(slow & [own is not None for own in descent.own])
            self._renew(group, slow)
        group.step(moving, target, self.most_steps)
        epoch = int(descent.n_steps.max())
        self.open[group.fits] = moving
        self._tell(epoch, f"estimate {np.nanmax(descent.estimate):.1e}", self.params_of(descent))

    def _tell(self, epoch: int, words: str, params: Params) -> None:
        """Show how far the fits have come."""
        self.bar.to(max(self.bar.n, epoch))
        self.bar.say(f"{int(self.open.sum())} open, {words}")
        if self.options.callback is not None:
            self.options.callback(epoch, self.clock.seconds, params, Progress(epoch, self.open))

    def _renew(self, group: Group, which: np.ndarray, alone: bool = False) -> None:
        """Give some fits metrics of their own; those of a neuron share one unless each is to stand ``alone``."""
        kin = None if alone else self.problem.kin[group.fits]
        first = which & [own is None for own in group.descent.own]  # what was estimated before is no measure
        group.descent.renew_metrics(np.flatnonzero(which), self.problem.basis.deviation, kin)
        group.trace = [np.where(first, np.inf, t) for t in group.trace[:-1]] + [group.descent.estimate]

    # ---------------------------------------------------------------- proofs

    def _look(self, group: Group, dual: bool = False) -> np.ndarray:
        """Evaluate a group in float64 and keep where it is; returns the fits that are worse there than before.

        Where products in single precision led astray, the last point that was looked at in double stands. Bounds by
        duality are had where they are asked for.
        """
        cg, fits = group.descent, group.fits
        loss, gradient, sums = cg.rows.evaluate(cg.coef, cg.intercept, dual=dual)
        cg.arrive(gradient)
        params = self.params_of(cg)
        penalty = select(self.problem.penalty, fits)
        objective = loss + np.asarray(penalty.value(params.coef), np.float64)
        group.by_duality = dual_gap(objective, sums, penalty) if dual else None
        worse = ~(objective <= self.objective[fits] + self._rounding(params, fits, objective))
        better = fits[~worse]
        self.params.coef[:, better], self.params.intercept[better] = (a[..., ~worse] for a in params)
        self.objective[better] = objective[~worse]
        cg.gained = self.problem.null_objective[fits] - self.objective[fits]
        group.looks += 1
        return worse

    def _prove(self, group: Group, target: np.ndarray) -> list[Group]:
        """Bound the gaps of a group; what is not proved to be near enough is returned, or ends by its exact Hessian."""
        problem, cg, fits = self.problem, group.descent, group.fits
        self.attempts += 1
        broken, stalled = ~np.isfinite(cg.estimate), cg.estimate > group.aim * target
        worse = self._look(group, dual=group.first_order or (not problem.penalty.smooth and group.proofs.any()))
        params = Params(self.params.coef[:, fits], self.params.intercept[fits])
        objective = self.objective[fits]
        target = self._targets(fits, objective)
        rounding = self._rounding(params, fits, objective)
        bound, estimate = self._bounds(group, target - rounding, params)
        bound = np.where(worse, np.inf, bound + rounding)
        known = np.isfinite(bound)
        self.gap[fits] = np.where(known, bound, np.maximum(estimate, rounding))
        self.is_bound[fits], self.target[fits], self.epochs[fits] = known, target, cg.n_steps
        self.passes += cg.rows.passes * len(fits) / problem.n_neurons
        cg.rows.passes = 0.0
        proved = known & (bound <= self._goals(fits, objective))
        bad = (broken & ~worse) | ~np.isfinite(objective)
        self.status[fits[proved]], self.status[fits[bad]] = Status.CONVERGED, Status.NON_FINITE
        self.open[fits] = ~(proved | bad)
        self._note(int(cg.n_steps.max()))
        group.proofs += 1
        ended = worse | (group.proofs >= np.where(stalled, 2, _PROOFS)) | (cg.n_steps >= self.most_steps)
        for fit in fits[self.open[fits] & ended]:
            self._finish_exactly(int(fit))
        left = self.open[fits] & ~ended
        if not left.any():
            return []
        (group,) = group.split(left)
        group.aim = group.aim * _TIGHTER
        again, all_ = bool(np.any(group.proofs > 1)), np.ones(len(group.fits), bool)
        if again or not problem.penalty.smooth or steps_of_a_hessian(problem.n_features) < _CHEAP:
            self.curved[group.fits] = True
            self._renew(group, all_, alone=again)
        group.step(all_, target[left], self.most_steps)  # from a gradient in double precision
        return [group]

    def _bounds(self, group: Group, target, params: Params):
        """Bounds by duality or from the ridge, and from the spectrum of some rows where they say too little."""
        problem, cg, fits = self.problem, group.descent, group.fits
        smooth, bound, estimate = problem.penalty.smooth, *np.full((2, len(fits)), np.inf)
        some = np.all(cg.ridge > 0, axis=0) & smooth
        if not smooth:
            estimate = cg.estimate
            # Rounding of the gradient of coefficients without a penalty takes a bound by duality away.
            bound = group.by_duality if group.by_duality is not None and problem.penalty.penalises_all else bound
            if group.first_order:
                return bound, estimate
        if some.any():
            bound, estimate = bound_gaps(cg, some, target, RidgeFloor(cg, *self._longest(cg)))
        # With a ridge a nearer point may do without, at the cost of some steps; and a metric of a fit's own says that
        # the shared one knows little of it.
        first = SpectralFloor.cost_in_steps(problem.n_rows, problem.n_features, len(fits)) < _CHEAP_FLOOR
        useful = (estimate <= target) & ~self.curved[fits] & (first | (group.proofs > 0))
        left = ~(bound <= target) & (~some | useful | (not smooth))
        # Products in single precision must show every direction; those left out must be 0 where features are centred.
        shown = problem.basis.tame or cg.rows.dtype == np.float64
        centred = problem.basis.rank == problem.n_features or np.all(cg.rows.mean == problem.basis.mean)
        if not (shown and centred and left.any()):
            return bound, estimate
        seed = int(self.seed), 1, self.attempts
        share = _FAILURE / 2**self.attempts * len(fits) / problem.n_neurons
        floor = SpectralFloor(cg, seed, share, problem.penalty.rotation_invariant)
        self.failure_probability += floor.failure_probability
        if smooth:
            found, second = bound_gaps(cg, left, target, floor, problem.penalty.penalises_all)
        else:
            g = np.asarray(cg.penalty.subgradient_residual(cg.coef, cg.gradient.coef), np.float64)
            residual, second = Slopes(g, cg.gradient.intercept), estimate
            found = bound_gaps_at_once(cg, residual, floor, problem.penalty.penalises_all)
        found = np.where(problem.basis.settles(problem.penalty.rotation_invariant, params.coef), found, np.inf)
        found = np.where(left, found, np.inf)
        if not problem.penalty.penalises_all and np.isfinite(found).any():
            among = np.zeros(problem.n_neurons, bool)
            among[fits] = np.isfinite(found)
            found = np.where(problem.may_be_separable(self.params, among)[fits], np.inf, found)
        return np.minimum(bound, found), np.where(some, estimate, second)

    def _longest(self, cg: Descent) -> tuple[np.ndarray, np.ndarray]:
        """Largest norm of a centred row in the inverse of each fit's ridge, and mean of curvature times its square."""
        least = cg.ridge.min(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            shape = cg.ridge / least
            if not np.all(np.abs(shape - shape[:, :1]) <= 1e-12 * shape[:, :1]):
                shape = np.ones_like(shape)
            longest, spread = cg.rows.longest(np.sqrt(shape[:, 0]))
            return longest / np.sqrt(least), spread / least

    def _finish_exactly(self, neuron: int, **how) -> Finished:
        """Newton steps on one neuron with its exact Hessian in float64, which also bounds its gap."""
        problem, self.exact = self.problem, True
        goal = self._goals(np.array([neuron]), self.objective[[neuron]])[0]
        outcome = problem.finish_neuron(self.params, neuron, goal, **how)
        self.passes += outcome.passes / problem.n_neurons
        slack = self.target[neuron] if np.isfinite(outcome.bound) else 1e-13 * abs(self.objective[neuron])
        if outcome.objective <= self.objective[neuron] + slack:  # or not a number
            self.params, self.objective[neuron] = outcome.params, outcome.objective
            known = bool(np.isfinite(outcome.bound))
            self.is_bound[neuron], self.gap[neuron] = known, outcome.bound if known else outcome.estimate
        known = bool(self.is_bound[neuron])
        self.target[neuron] = self._targets(np.array([neuron]), self.objective[[neuron]])[0]
        if known and self.gap[neuron] <= self.target[neuron]:
            self.status[neuron] = Status.CONVERGED
        elif problem.is_separable(self.params, neuron):
            self.status[neuron] = Status.SEPARABLE
        elif not known and self.gap[neuron] <= self.target[neuron]:
            self.status[neuron] = Status.UNPROVED
        else:
            self.status[neuron] = Status.PRECISION_FLOOR
        return outcome

    # ---------------------------------------------------------------- what is known

    @property
    def name(self) -> str:
        """What has run."""
        return ("ConjugateGradients" if self.problem.penalty.smooth else "ProximalNewton") + "+Newton" * self.exact

    def params_of(self, cg: Descent) -> Params:
        """Parameters of the features as they are, of a group of fits."""
        return Params(cg.coef, cg.intercept - cg.rows.mean @ cg.coef)

    def _keep_interrupted(self) -> None:
        """Return where the open fits are, with what can be said of it."""
        for group in self.groups:
            self.params.coef[:, group.fits], self.params.intercept[group.fits] = self.params_of(group.descent)
            self.gap[group.fits], self.is_bound[group.fits] = group.descent.estimate, False
            self.epochs[group.fits] = group.descent.n_steps
        if self.groups:
            moved = np.concatenate([group.fits for group in self.groups])
            self.objective[moved] = self.problem.evaluate(self.params).objective[moved]
        self.status[self.status == Status.MAX_EPOCHS] = Status.INTERRUPTED

    def _rounding(self, params: Params, fits, objective) -> np.ndarray:
        whole = Params(*(a.copy() for a in self.params))
        whole.coef[:, fits], whole.intercept[fits] = params
        return self.problem.rounding_of(whole, self._values(fits, objective))[fits]

    def _values(self, fits, objective) -> np.ndarray:
        """Objectives of all fits, of some as they are given."""
        values = self.objective.copy()
        values[fits] = objective
        return values

    def _goals(self, fits, objective) -> np.ndarray:
        """Gap to go for, (fit,): what the target allows for rounding may be none, and is taken only in the end."""
        values = self._values(fits, objective)
        least = _LEAST * (np.abs(values) + np.abs(self.problem.mean_count))
        return stopping_target(self.problem, values, self.options, least)[fits]

    def _targets(self, fits, objective) -> np.ndarray:
        """Gap below which a neuron counts as converged, (fit,)."""
        problem, values = self.problem, self._values(fits, objective)
        rounding = 2 * problem.rounding_of(self.params, values)
        # Where parameters ran away rounding is no excuse.
        rounding = np.minimum(rounding, 1e-9 * (np.abs(values) + np.abs(problem.mean_count)))
        return stopping_target(problem, values, self.options, rounding)[fits]

    def _note(self, epoch: int = 0) -> None:
        row_evals, known = int(self.passes * self.problem.n_rows), (self.objective, self.gap, self.is_bound)
        self.history.add(epoch, row_evals, self.clock.seconds, *(numbers.copy() for numbers in known))
