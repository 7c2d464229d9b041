"""Loop of a solver: steps of all fits, proofs as soon as possible, a verdict for each."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..bounds import dual_gap
from ..compilation import Clock
from ..display import ProgressBar
from ..status import Status
from .beginning import Beginning
from .certify import bounds_of, may_be_spectral
from .cg import Descent, steps_of_a_hessian
from .checkpoint import Notebook
from .exact.newton import Iterate
from .problem import Params
from .proximal import select
from .result import Hints, History, LoopOptions, Solution, reported_target, solution_of, stopping_target

_TIGHTER = 0.03  # factor of the aim after a proof that failed
_SECOND = 10.0  # times the aim of proofs of first order: that of others
_PRODUCTS = 2  # before the step that leads to a proof of first order
_PROOFS = 4  # before the exact Hessian of the fit decides
_CHEAP = 15  # steps: a Hessian that costs less is formed after the first failed proof
_FREE_STEPS, _LOOK = 60, 10  # most steps if there may be no optimum; steps between looks in float64 then
_ROUGH = 1e-2  # tolerance from which on single precision suffices for a bound by duality
_LEAST = 64e-16  # of an objective: no goal is a smaller gap
_FEW = 64  # fewer fits are not worth a group of their own
_FEW_FITS, _LITTLE_WORK = 4, 1e8  # that are finished at once after a failed proof: products of one Hessian and a step
_CLOSER = 1e-4  # of their goal: usually one Newton step more
_COPIES = 3  # arrays of rows times fits


class Progress(NamedTuple):
    """Progress passed to a callback in addition to parameters."""

    epoch: int
    active: np.ndarray  # which neurons are still stepped, bool (neuron,)


class Run(Beginning):
    """One run of a solver: outcome per neuron, filled in as it becomes known."""

    def __init__(self, problem, options: LoopOptions, seed: int, start: Params | None = None, hints=None, begin=None):
        self.problem, self.options, self.seed, self.start, self.make = problem, options, seed, start, begin
        self.curved, self.fall = np.zeros(problem.n_neurons, bool), np.ones(problem.n_neurons)
        if hints is not None:
            self.curved, self.fall = hints.curved.copy(), hints.fall.copy()
        self.clock = Clock()
        n, silent, self.status = problem.n_neurons, problem.silent, problem.first_status()
        self.params = problem.null_params()
        self.gap, self.is_bound = np.where(silent, 0.0, np.nan), silent.copy()
        self.objective = problem.null_objective.copy()
        self.target = self._targets(np.arange(n), self.objective)
        self.epochs, self.passes, self.history = np.zeros(n, int), 0.0, History()
        self.failure_probability, self.exact, self.attempts = 0.0, False, 0
        self.open = self.status == Status.MAX_EPOCHS
        self.may_end_there = problem.in_memory and options.handed_over is None  # else rounded
        self.most_steps = options.max_epochs if problem.penalty.penalises_all else min(options.max_epochs, _FREE_STEPS)
        self.promised = np.zeros(n)  # estimate of what the start gains over the null model
        self.groups: list[Descent] = []
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
            self._note_end()
            self.notebook.note(self, last=True)
            self.bar.finish(bool(np.all(self.status != Status.MAX_EPOCHS)))
        except KeyboardInterrupt:
            if not self.groups and not self.epochs.any():
                raise  # nothing was fitted yet
            interrupted = True
            self._keep_interrupted()
            self._note_end()
        finally:
            self.bar.close()
        return solution_of(
            self, self.params, self.objective, interrupted=interrupted, state=Hints(self.curved, self.fall),
            failure_probability=self.failure_probability, memory_bytes=self.held_bytes,
        )  # fmt: skip

    # ---------------------------------------------------------------- groups of fits

    def _fit(self, fits: np.ndarray) -> None:
        """Step groups of fits; split a group when half of it is ready for proofs."""
        with self.rows(fits) as rows:
            group = self.descent(rows, fits)
            group.fits, group.trace, group.n_steps = fits, [group.estimate], self.epochs[fits]
            group.fall = self.fall[fits]
            if self.curved[fits].any():
                self._renew(group, self.curved[fits])
            self.groups = [group]
            while self.groups:
                group = self.groups[-1]
                target = self._goals(group.fits, self.problem.null_objective[group.fits] - group.gained)
                second = group.first_order and may_be_spectral(self, group)
                target = target * _SECOND if second else target
                ready = group.is_ready(target) | (group.n_steps >= self.most_steps)
                if ready.all() and not self.options.proves:
                    self._leave(self.groups.pop())
                elif ready.all() and group.first_order and not (group.looks or second):
                    # A bound by duality is only as tight as the gradient, which single precision does not resolve.
                    if np.min(self.options.tol) < _ROUGH:
                        self._look(group)
                    group.looks = max(group.looks, 1)
                    group.refine(_PRODUCTS)  # make the next step as good as possible
                    group.ends_there = self.may_end_there
                    group.advance(np.ones(len(ready), bool), group.aims * target, self.most_steps)
                elif ready.all() and group.moved.any() and not group.moved.all():
                    self._split(group.moved)
                elif ready.all():
                    self.groups[-1:] = self._prove(group, target)
                elif not self.problem.penalty.penalises_all and group.looks < group.n_steps.max() // _LOOK:
                    self._look(group)
                elif self._should_part(group, ready, target):
                    self._split(~ready)
                else:
                    self._step(group, ~ready, target)
                self.notebook.note(self)

    def _should_part(self, group: Descent, ready: np.ndarray, target: np.ndarray) -> bool:
        """Tell whether to prove the fits that are ready first: if they are many and seen, or the others far away."""
        many = self.problem.in_memory and ready.sum() >= max(len(ready) / 2, _FEW)
        return many and (group.seen is not None or not np.all(ready | group.is_almost_there(target)))

    def _split(self, which: np.ndarray) -> None:
        """Divide the last group: the other fits come first."""
        group = self.groups.pop()
        self._count_passes(group)
        self.groups += group.split(np.flatnonzero(which), np.flatnonzero(~which))

    def _count_passes(self, group: Descent) -> None:
        share = group.rows.n_rows / self.problem.n_rows  # if some are pooled
        self.passes += group.rows.passes * share * len(group.fits) / self.problem.n_neurons
        group.rows.passes = 0.0

    def _leave(self, group: Descent) -> None:
        """Accept fits as they are, without a proof."""
        fits = group.fits
        self.params.coef[:, fits], self.params.intercept[fits] = self.params_of(group)
        self.gap[fits], self.status[fits], self.open[fits] = group.estimate, int(Status.UNPROVED), False
        self.epochs[fits] = group.n_steps

    def _step(self, group: Descent, moving: np.ndarray, target: np.ndarray) -> None:
        slow = group.is_slow(target, moving)
        if slow.any():
            self.curved[group.fits[slow]] = True
            if not self.problem.in_memory:
                group.doubt(slow & [own is not None for own in group.own])
            self._renew(group, slow)
        group.ends_there = self.may_end_there and group.should_end(target, moving)
        first = moving & (group.n_steps == 0)
        group.advance(moving, group.aims * target, self.most_steps)
        with np.errstate(divide="ignore", invalid="ignore"):
            self.fall[group.fits[first]] = np.fmin(group.trace[-1] / group.trace[-2], 1.0)[first]
        self.open[group.fits] = moving
        words = f"estimate {np.nanmax(group.estimate):.1e}"
        self._tell(int(group.n_steps.max()), words, lambda: self.params_of(group))

    def _tell(self, epoch: int, words: str, params: Callable[[], Params]) -> None:
        """Show how far the fits have come."""
        self.bar.to(max(self.bar.n, epoch))
        self.bar.say(f"{int(self.open.sum())} open, {words}")
        if self.options.callback is not None:
            self.options.callback(epoch, self.clock.seconds, params(), Progress(epoch, self.open))

    def _renew(self, group: Descent, which: np.ndarray, alone: bool = False) -> None:
        """Give some fits metrics of their own; fits of a neuron share one unless ``alone``."""
        kin = None if alone else self.problem.kin[group.fits]
        first = which & [own is None for own in group.own]  # earlier estimates are not comparable
        group.renew_metrics(np.flatnonzero(which), self.problem.basis.deviation, kin)
        group.trace = [np.where(first, np.inf, t) for t in group.trace[:-1]] + [group.estimate]

    # ---------------------------------------------------------------- proofs

    def _look(self, group: Descent, dual: bool = False) -> np.ndarray:
        """Evaluate a group in float64; keep parameters unless they are worse than before; return which are."""
        fits, precision = group.fits, self.options.handed_over
        rounds = precision is not None and self._layout is None
        if rounds:
            coef, intercept = (a.astype(precision).astype(np.float64) for a in self.params_of(group))
            group.at = np.vstack([coef, intercept + group.rows.mean @ coef])
        if rounds or group.moved.any() or (dual and group.seen[1] is None):
            loss, gradient, sums = group.rows.evaluate(group.at, dual=dual)
            group.arrive(gradient)
        else:
            loss, sums = group.seen
        params = Params(coef, intercept) if rounds else self.params_of(group)
        penalty = select(self.problem.penalty, fits)
        objective = loss + np.asarray(penalty.value(params.coef), np.float64)
        group.by_duality = dual_gap(objective, sums, penalty) if dual else None
        worse = ~(objective <= self.objective[fits] + self.problem.rounding_of(params, objective, fits))
        better = fits[~worse]
        self.params.coef[:, better], self.params.intercept[better] = (a[..., ~worse] for a in params)
        self.objective[better] = objective[~worse]
        group.gained = self.problem.null_objective[fits] - self.objective[fits]
        group.looks += 1
        return worse

    def _prove(self, group: Descent, target: np.ndarray) -> list[Descent]:
        """Bound the gaps of a group; return the fits not proved near enough, or end them by their exact Hessians."""
        problem, fits = self.problem, group.fits
        self.attempts += 1
        broken, stalled = ~np.isfinite(group.estimate), group.estimate > group.aims * target
        second = may_be_spectral(self, group)
        dual = not problem.penalty.smooth and ((group.first_order and not second) or group.proofs.any())
        worse = self._look(group, dual=dual)
        params = self.params.of(fits)
        objective = self.objective[fits]
        target = self._targets(fits, objective)
        points = params, self.params_of(group)  # they differ where the group is worse
        rounding = np.fmax(*(problem.rounding_of(point, objective, fits) for point in points))
        bound, estimate = bounds_of(self, group, target - rounding, params)
        # What is lower than a point is nearer to the optimum, too; flat directions may matter at one of them only.
        flat = problem.basis.rank < problem.n_features and not problem.penalty.rotation_invariant
        lower_serves = problem.penalty.penalises_all and (group.first_order or not flat)
        lower_serves = lower_serves and self.options.handed_over is None  # else what is kept is rounded, too
        bound = np.where(worse & (not lower_serves), np.inf, bound + rounding)
        known = np.isfinite(bound)
        self.gap[fits] = np.where(known, bound, np.maximum(estimate, rounding))
        self.is_bound[fits], self.target[fits], self.epochs[fits] = known, target, group.n_steps
        self._count_passes(group)
        proved = known & (bound <= self._goals(fits, objective))
        bad = (broken & ~worse) | ~np.isfinite(objective)
        self.status[fits[proved]], self.status[fits[bad]] = Status.CONVERGED, Status.NON_FINITE
        self.open[fits] = ~(proved | bad)
        self._note(int(group.n_steps.max()))
        group.proofs += 1
        ended = worse | (group.proofs >= np.where(stalled, 2, _PROOFS)) | (group.n_steps >= self.most_steps)
        soon = self._may_soon_be_finished(np.count_nonzero(self.open[fits]))
        ended |= soon
        for fit in fits[self.open[fits] & ended]:
            self._finish_exactly(int(fit), _CLOSER if soon else 1.0)
        left = self.open[fits] & ~ended
        if not left.any():
            return []
        (group,) = group.split(np.flatnonzero(left))
        group.aims *= _TIGHTER
        again, all_ = bool(np.any(group.proofs > 1)), np.ones(len(group.fits), bool)
        if group.first_order and not again:
            group.refine(_PRODUCTS)
        elif again or not problem.penalty.smooth or steps_of_a_hessian(problem.n_features) < _CHEAP:
            self.curved[group.fits] = True
            self._renew(group, all_, alone=again)
        group.ends_there = group.first_order and self.may_end_there  # the next proof is of where the step ends
        group.advance(all_, group.aims * target[left], self.most_steps)  # from a gradient in double precision
        return [group]

    def _may_soon_be_finished(self, n_fits: int) -> bool:
        """Tell whether exact Newton steps of so many fits take less time than another attempt at proofs."""
        problem, d = self.problem, self.problem.n_features
        soon = n_fits <= _FEW_FITS and n_fits * problem.n_rows * d * (d + 56) <= _LITTLE_WORK
        return soon and problem.in_memory and problem.penalty.smooth

    def _finish_exactly(self, neuron: int, share: float = 1.0, **how) -> Iterate:
        """Take Newton steps on one neuron, to a share of its goal; its exact Hessian also bounds its gap."""
        problem, self.exact, one = self.problem, True, np.array([neuron])
        goal = share * self._goals(one, self.objective[one])[0]
        at = problem.finish_neuron(self.params, neuron, goal, **how)
        self.passes += at.passes / problem.n_neurons
        known = bool(np.isfinite(at.bound))
        slack = self.target[neuron] if known else 1e-13 * abs(self.objective[neuron])
        if at.objective <= self.objective[neuron] + slack:  # or not a number
            self.params.coef[:, neuron], self.params.intercept[neuron] = at.at[:-1], at.at[-1]
            self.objective[neuron], self.is_bound[neuron] = at.objective, known
            self.gap[neuron] = at.bound if known else at.estimate
        known = bool(self.is_bound[neuron])
        self.target[one] = self._targets(one, self.objective[one])
        if known and self.gap[neuron] <= self.target[neuron]:
            self.status[neuron] = Status.CONVERGED
        elif problem.is_separable(neuron):
            self.status[neuron] = Status.SEPARABLE
        elif not known and self.gap[neuron] <= self.target[neuron]:
            self.status[neuron] = Status.UNPROVED
        else:
            self.status[neuron] = Status.PRECISION_FLOOR
        return at

    # ---------------------------------------------------------------- what is known

    @property
    def name(self) -> str:
        """Names of the methods that ran."""
        return ("ConjugateGradients" if self.problem.penalty.smooth else "ProximalNewton") + "+Newton" * self.exact

    def params_of(self, group: Descent) -> Params:
        """Return the parameters of a group of fits for the features as given."""
        return Params(group.coef, group.intercept - group.rows.mean @ group.coef)

    def _keep_interrupted(self) -> None:
        """Keep the parameters of the open fits, with estimates of their gaps."""
        for group in self.groups:
            at = self.status[group.fits] == Status.MAX_EPOCHS  # proofs of the others hold
            fits, params = group.fits[at], self.params_of(group)
            self.params.coef[:, fits], self.params.intercept[fits] = (a[..., at] for a in params)
            self.gap[fits], self.is_bound[fits] = group.estimate[at], False
            self.epochs[fits] = group.n_steps[at]
        left = self.status == Status.MAX_EPOCHS
        self.objective[left] = self.problem.evaluate(self.params).objective[left]
        self.status[left] = Status.INTERRUPTED

    def _goals(self, fits, objective) -> np.ndarray:
        """Gap to aim for, (fit,): the target's allowance for rounding may not be needed; it counts only at the end."""
        least = _LEAST * (np.abs(objective) + self.problem.size_of_counts[fits])
        return stopping_target(self.problem, objective, self.options, least, fits)

    def _targets(self, fits, objective) -> np.ndarray:
        """Gap below which a neuron counts as converged, (fit,)."""
        return reported_target(self.problem, self.params.of(fits), objective, self.options, fits)

    def _note_end(self) -> None:
        """Add the end to the history, unless nothing has changed since its last row."""
        self.groups, history = [], self.history
        pairs = (history.gap, self.gap), (history.gap_is_bound, self.is_bound), (history.objective, self.objective)
        if not all(np.array_equal(noted[-1], now, equal_nan=True) for noted, now in pairs):
            self._note(int(self.epochs.max()))

    def _note(self, epoch: int = 0) -> None:
        """Add what is known to the history, with estimates of the gaps of open fits that have no proof yet."""
        gap, history = self.gap.copy(), self.history
        for group in self.groups:
            unknown = np.isnan(gap[group.fits]) & np.isfinite(group.estimate)
            gap[group.fits[unknown]] = group.estimate[unknown]
        epoch = max([epoch, *history.epoch[-1:]])  # groups take turns
        row_evals = int(self.passes * self.problem.n_rows)
        history.add(epoch, row_evals, self.clock.seconds, self.objective.copy(), gap, self.is_bound.copy())
