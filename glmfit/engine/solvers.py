"""The solvers of the engine: all neurons at once, or by Newton's method one by one, each step on all rows."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..bounds import gap_bound
from ..numerics import seed_of
from ..penalties.base import PROHIBITIVE
from ..status import Status
from .classes.proximal import ProximalClassRun
from .classes.run import ClassRun
from .devices import DeviceNewton, Judgement, layout_of, newton_serves
from .devices.newton import STEPS
from .exact.least_squares import LeastSquaresRun
from .loop import Run
from .passes import N_TERMS
from .problem import Params
from .result import Hints, LoopOptions, Solution

_STALLED = 3  # iterations on devices without a smaller decrement or a lower objective


@dataclass(frozen=True)
class ConjugateGradients:
    """Conjugate gradients of all neurons at once, in a metric that they share or in a neuron's own.

    Parameters
    ----------
    hints : Hints, optional
        ``state`` of the solution of similar fits: those that needed their own metric start with it.

    Notes
    -----
    Runs on the host, where nothing is compiled: BLAS for the two products of a step, NumPy for the loss. On
    devices that the problem names, or on a GPU, ten steps are one program, compiled for the shapes. The shared metric
    is the spectral basis of the features times the mean curvature of each neuron; a neuron that it does not suit gets
    its own Hessian, with a ridge that of some rows. Directions remember eight steps on the host (limited-memory BFGS,
    conjugate on a quadratic; Nocedal 1980), one on devices. A step is a Newton step along the direction, corrected
    by the slope at its end, and at least as long as self-concordance proves to descend. First steps on the host try
    lengths that are 1 or come from some rows, and the slope at their end corrects these. Bounds use a float64
    gradient, some products and the ridge; if these do not suffice, Lanczos steps with a tenth of the rows, or the
    neuron's exact Hessian. Cost: T d^2 once, then two products of T d N per step.
    """

    hints: Hints | None = field(default=None, repr=False, compare=False, kw_only=True, metadata={"option": False})
    on_host: ClassVar[bool] = True
    smooth: ClassVar[bool] = True

    def run(self, problem, params: Params | None = None, *, key=None, options: LoopOptions | None = None) -> Solution:
        """Fit until every neuron is converged or the budget is spent; see :class:`LoopOptions`.

        Raises
        ------
        ValueError
            If the penalty needs the other solver of the engine.
        """
        if problem.penalty.smooth != self.smooth:
            kinds = (
                "a penalty with kinks (Lasso, ElasticNet or GroupLasso)",
                "a smooth penalty (UnRegularized or Ridge)",
            )
            other = ("ConjugateGradients", "ProximalNewton")[self.smooth]
            masked = np.any(np.asarray(problem.penalty.strength) >= PROHIBITIVE)
            raise ValueError(
                f"{type(self).__name__} needs {kinds[self.smooth]}; this problem has "
                f"{'a feature_mask, which has kinks' if masked else problem.penalty.name}. "
                f'Use solver_name="auto" or "{other}".'
            )
        seed, options = 0 if key is None else seed_of(key), options or LoopOptions()
        if hasattr(problem, "n_classes"):
            return self._run_classes(problem, options, seed, params)
        return Run(problem, options, seed, params, self.hints).run()

    def _run_classes(self, problem, options: LoopOptions, seed: int, start: Params | None) -> Solution:
        """Fit a softmax problem."""
        return ClassRun(problem, options, seed, start).run()


@dataclass(frozen=True)
class ProximalNewton(ConjugateGradients):
    """Proximal Newton steps of all neurons at once, for penalties with kinks: lasso, elastic net, group lasso.

    Notes
    -----
    The quadratic model of each neuron uses the spectral basis or its own Hessian, corrected by its last steps (BFGS).
    It is minimised with the full penalty on the host. Bounds on the gap are by duality, from one pass in float64; if
    single precision resolves all directions of the features, those of :class:`ConjugateGradients` are tried first,
    except for folds.
    The rest is as for :class:`ConjugateGradients`. A softmax problem has one model of all classes, with their
    Hessian; steps are in double precision.
    """

    smooth: ClassVar[bool] = False

    def _run_classes(self, problem, options: LoopOptions, seed: int, start: Params | None) -> Solution:
        """Fit a softmax problem."""
        return ProximalClassRun(problem, options, start).run()


@dataclass(frozen=True)
class LeastSquares:
    """Exact fits of normal responses (Gaussian, identity link) with a ridge or no penalty, from moments of the rows.

    Notes
    -----
    Runs on the host in float64. Cost: one pass for the moments of each set of rows that counts (a fold, a mask),
    T d (d + N), and an eigendecomposition, d^3, which serves all neurons and strengths. The gap is bounded by the
    gradient that remains after one correction, and the rounding of the moments.
    """

    on_host: ClassVar[bool] = True

    def run(self, problem, params: Params | None = None, *, key=None, options: LoopOptions | None = None) -> Solution:
        """Fit all neurons; see :class:`LoopOptions`.

        Raises
        ------
        ValueError
            For other observation models, and for penalties with kinks.
        """
        if not problem.observation.is_quadratic or not problem.penalty.smooth:
            raise ValueError(
                "LeastSquares needs Gaussian responses and a smooth penalty (UnRegularized or Ridge); this problem has "
                f'the loss {problem.observation.name!r} and the penalty {problem.penalty.name}. Use solver_name="auto".'
            )
        return LeastSquaresRun(problem, options or LoopOptions(), seed=0).run()


@dataclass(frozen=True)
class Newton:
    """Newton's method with exact Hessians in float64, reused while they work, and steps that never go uphill.

    Notes
    -----
    Runs on the host (BLAS) in float64 whatever jax's precision mode is; compiles nothing. The full step is
    tried first; if it fails, the step has the length ``log(1 + S)/S``, which self-concordance proves to descend
    (S is the largest change of eta). An epoch is one step of a neuron. Cost per Hessian: T d^2 per neuron.
    The gap bound comes with the exact Hessian and has no failure probability. Penalties with kinks are minimised in
    full in every step, and their bounds are by duality.

    On devices that the problem names, or on a GPU, all neurons are fitted at once if the penalty is smooth, also in
    double precision: an epoch is one Hessian and four steps of each, in one program compiled for the shapes. Neurons
    whose Hessian is singular there end on the host.
    """

    on_host: ClassVar[bool] = True

    def run(self, problem, params: Params | None = None, *, key=None, options: LoopOptions | None = None) -> Solution:
        """Fit every neuron until it is converged or the budget is spent; see :class:`LoopOptions`."""
        kind = NewtonOnDevices if newton_serves(problem) else NewtonRun
        return kind(problem, options or LoopOptions(), seed=0, start=params).run()


class NewtonRun(Run):
    """Run of one neuron after the other, each to its verdict."""

    name = "Newton"

    def _begin(self) -> None:
        """Begin at the models without features, or at the user's start."""
        if self.start is not None:
            self.params.coef[:, self.open], self.params.intercept[self.open] = (a[..., self.open] for a in self.start)

    def _fit(self, fits: np.ndarray) -> None:
        for neuron in fits:
            self._finish(int(neuron))
            self._show()
        self._note(int(self.epochs.max()))

    def _finish(self, neuron: int) -> None:
        """Take steps of one neuron to its verdict."""
        most_steps = self.options.max_epochs - int(self.epochs[neuron])
        outcome = self._finish_exactly(neuron, most_steps=most_steps, near=False)
        self.epochs[neuron] += outcome.n_steps
        if not np.isfinite(outcome.objective):
            self.status[neuron] = Status.NON_FINITE
        elif self.status[neuron] == Status.PRECISION_FLOOR and not outcome.stuck:
            self.status[neuron] = Status.MAX_EPOCHS
        self.open[neuron] = self.status[neuron] == Status.MAX_EPOCHS

    def _show(self) -> None:
        here = Params(*(a.copy() for a in self.params))
        self._tell(int(self.epochs.max()), f"worst gap {np.nanmax(self.gap):.1e}", lambda: here)
        self.notebook.note(self)


class NewtonOnDevices(NewtonRun):
    """Run of all neurons at once on devices; those without a proof there end on the host."""

    def run(self) -> Solution:
        """Fit, and keep what is known then: degrees of freedom, if Hessians resolve them, and sums for the report."""
        self.degrees = np.where(self.open, np.nan, 1.0)  # a neuron without a fit has the intercept
        self.described = np.where(self.open, np.nan, np.zeros((1 + N_TERMS, len(self.open))))
        if self.epochs.any():  # fits that a checkpoint ended are not looked at again
            self.degrees[:], self.described[:] = np.nan, np.nan
        solution, problem = super().run(), self.problem
        if np.isfinite(self.degrees).all():
            problem.degrees = self.degrees
        if np.isfinite(self.described).all():
            problem.saturated_loss, *problem.pearson_sums = self.described
        return solution

    def _fit(self, fits: np.ndarray) -> None:
        there = DeviceNewton(self.problem, layout_of(self.problem), fits, self.params)
        since, best, lowest = np.zeros(len(fits), int), *np.full((2, len(fits)), np.inf)
        while (going := self.open[fits] & (self.epochs[fits] < self.options.max_epochs)).any():
            found = there.iterate()
            self.epochs[fits[going]] += 1
            self.degrees[fits[going]] = np.where(found.resolved, found.degrees, np.nan)[going]
            self.passes += (STEPS + 2) * going.sum() / self.problem.n_neurons
            better = (found.decrement < 0.9 * best) | (found.objective < lowest - 1e-2 * self.target[fits])
            since = np.where(better, 0, since + 1)
            best, lowest = np.fmin(best, found.decrement), np.fmin(lowest, found.objective)
            ended = ~(found.resolved & found.moved) | (since >= _STALLED)
            self._judge(fits[going], found.of(going), ended[going])
            self._note(int(self.epochs.max()))
            self._show()
        self.problem.of_design("rank", there.rank if self.problem.own is None else lambda: self.problem.basis.rank)
        for fit in fits[self.open[fits] & np.isnan(self.gap[fits])]:  # no budget was left for these
            self._finish(int(fit))
        if self.problem.fold is None:  # others have no report of their own
            self.described[:, fits], ranges = there.describe(self.params.of(fits))
            self.problem.of_design("ranges", lambda: ranges)

    def _judge(self, fits: np.ndarray, found: Judgement, ended: np.ndarray) -> None:
        """Store some fits, and bound their gaps by Hessians formed nearby, allowing for their change since."""
        problem, constant = self.problem, self.problem.observation.constant
        finite = np.isfinite(found.objective) & np.isfinite(found.params.coef).all(axis=0)
        at = fits[finite]
        self.params.coef[:, at], self.params.intercept[at] = (a[..., finite] for a in found.params)
        self.objective[at] = found.objective[finite]
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.exp(constant * found.drift)
        known = growth * found.decrement, growth * found.radius_squared
        bound = gap_bound(*known, problem.penalty.penalises_all, constant)
        bound = np.where(found.resolved, bound + problem.rounding_of(found.params, found.objective, fits), np.inf)
        if not problem.penalty.penalises_all and np.isfinite(bound).any():
            among = np.isin(np.arange(problem.n_neurons), fits[np.isfinite(bound)])
            bound = np.where(problem.may_be_separable(self.params, among)[fits], np.inf, bound)
        proves = np.isfinite(bound)
        estimate = np.where(finite, found.decrement / 2, self.gap[fits])
        self.gap[fits], self.is_bound[fits] = np.where(proves, bound, estimate), proves
        self.target[fits] = self._targets(fits, self.objective[fits])
        proved = bound <= np.where(ended, self.target[fits], self._goals(fits, self.objective[fits]))
        self.status[fits[proved]], self.open[fits[proved]] = Status.CONVERGED, False
        for fit in fits[(ended | ~finite) & ~proved]:
            self._finish(int(fit))
