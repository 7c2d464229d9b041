"""Solvers of nonconvex problems: the loop, its verdict and its solution."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from ..checks import check_real, check_whole
from ..compilation import Clock, jit
from ..display import ProgressBar, counted
from ..engine.result import Solution
from ..status import Status
from .objective import evaluate, magnitude
from .problem import AllPairsProblem


@dataclass(frozen=True)
class StationaryOptions:
    """When to stop the search for a stationary point, and what to show.

    Attributes
    ----------
    tol : float
        A fit has converged if the norm of the gradient is at most ``tol`` times that at the start (that of the observed
        pairs alone, if it is smaller).
    max_epochs : int, optional
        Budget; default `TwoSidedSolver.usual_epochs` of the solver.
    verbose : bool
        Show a progress bar.
    callback : callable, optional
        Called as ``callback(epoch, seconds, theta, state)`` after every epoch; the seconds exclude its own.
    """

    tol: float = 1e-4
    max_epochs: int | None = None
    verbose: bool = False
    callback: Callable | None = None

    def __post_init__(self):
        check_real("tol", self.tol, 1.0)
        if self.max_epochs is not None:
            check_whole("max_epochs", self.max_epochs, 0)


@dataclass(frozen=True, kw_only=True)
class StationarySolution(Solution):
    """Outcome of a search for a stationary point: parameters in the structure of the start, always finite.

    The status is NON_FINITE, CONVERGED, PRECISION_FLOOR, MAX_EPOCHS (a descent method ran out of its budget),
    SCHEDULE_DONE (a sampling method has run its epochs) or INTERRUPTED. The history has ``epoch``, ``seconds``
    (compilation included, callbacks not), ``objective`` and ``gradient_norm``, one row per evaluation.

    Attributes
    ----------
    gradient_norm : float
        Norm of the gradient of the objective of all pairs, at ``params``.
    start_objective, start_gradient_norm : float
        Values at the start. ``tol`` multiplies the norm, which is that of the observed pairs alone if it is smaller.
    evaluations : float
        Passes over the observed pairs for the objective or its gradient, checks included.
    products : int
        Products with the Gauss-Newton matrix, or the Hessian.
    """

    gradient_norm: float
    start_objective: float
    start_gradient_norm: float
    evaluations: float
    products: int


class StationaryState(NamedTuple):
    """State of a run: everything the next epoch depends on."""

    epoch: int
    theta: Any
    objective: float  # this and the next belong to theta if ``fresh``
    gradient_norm: float
    magnitude: float  # size of the terms of the objective
    evaluations: float
    products: int
    fresh: bool
    memory: Any  # the solver's own
    passed: tuple[tuple[float, float], ...] = ()  # objective and norm after epochs that came with the last, before it

    def at(self, theta: Any, objective: Any, gradient_norm: Any, evaluations: int, **more: Any) -> Self:
        """Return the state at parameters whose objective and gradient are known, after some more evaluations."""
        more |= {"objective": float(objective), "gradient_norm": float(gradient_norm), "fresh": True}
        return self._replace(theta=theta, evaluations=self.evaluations + evaluations, **more)

    @property
    def dtype(self) -> np.dtype:
        """Precision of the parameters."""
        return jax.tree.leaves(self.theta)[0].dtype

    @property
    def is_finite(self) -> bool:
        """Whether objective, gradient and parameters are finite."""
        return bool(np.isfinite([self.objective, self.gradient_norm]).all() and _all_finite(self.theta))


class TwoSidedSolver(ABC):
    """Solver of a two-sided problem, which guarantees no more than a vanishing gradient.

    Attributes
    ----------
    usual_epochs, most_epochs : int
        Default budget of a run, and the largest one.
    look_every : int
        Epochs between evaluations of the objective of all pairs, if a state does not include it.
    patience : int
        Evaluations in a row without progress above rounding after which a run ends.
    ends : Status
        Status of a run whose epochs have ended.
    """

    usual_epochs: ClassVar[int] = 500
    most_epochs: ClassVar[float] = math.inf
    look_every: ClassVar[int] = 1
    patience: ClassVar[int] = 5
    ends: ClassVar[Status] = Status.MAX_EPOCHS

    @abstractmethod
    def prepare(self, problem: AllPairsProblem, state: StationaryState, gradient: Any, key) -> StationaryState:
        """Fill in the memory at the start."""

    @abstractmethod
    def update(self, problem: AllPairsProblem, state: StationaryState) -> StationaryState:
        """Do one epoch; the caller counts it."""

    def advance(self, problem: AllPairsProblem, state: StationaryState, target: float, most: int) -> StationaryState:
        """Do an epoch, or several of at most ``most`` without a look, and count them.

        ``target`` is the norm of the gradient at which the run has converged.
        """
        return self.update(problem, state)._replace(epoch=state.epoch + 1, passed=())

    def descends(self, state: StationaryState) -> bool:
        """Whether the objective of all pairs falls from epoch to epoch from here on."""
        return True

    def run(
        self, problem: AllPairsProblem, theta: Any, *, key: jax.Array, options: StationaryOptions | None = None
    ) -> StationarySolution:
        """Iterate until the gradient vanishes, only rounding is left, or the epochs end.

        Parameters
        ----------
        problem : AllPairsProblem
        theta : TwoTowers
            Start; all zeros are a stationary point of a product of towers.
        key : jax key
            Key of all draws: the same key gives the same answer.
        options : StationaryOptions, optional
        """
        return _Run(self, problem, options or StationaryOptions()).solve(theta, key)

    def init_state(self, problem: AllPairsProblem, theta: Any, *, key) -> StationaryState:
        """Evaluate the start, and prepare the first epoch."""
        value, size, gradient = evaluate(problem.data, theta)
        terms = float(magnitude(problem.data, theta))
        state = StationaryState(0, theta, float(value), float(size), terms, 1, 0, True, None)
        return self.prepare(problem, state, gradient, key)


class _Run:
    """One run: its clock, its trace, and the last finite state."""

    def __init__(self, solver: TwoSidedSolver, problem: AllPairsProblem, options: StationaryOptions):
        self.solver, self.problem, self.options = solver, problem, options
        self.budget = min(solver.usual_epochs if options.max_epochs is None else options.max_epochs, solver.most_epochs)
        self.clock = Clock()
        self.bar = ProgressBar(f"fitting {counted(problem.n_pairs, 'response')}", self.budget, "epoch", options.verbose)
        self.history: dict[str, list] = {"epoch": [], "seconds": [], "objective": [], "gradient_norm": []}
        self.state: Any = None
        self.kept: Any = None
        self.lowest, self.flattest, self.since = np.inf, np.inf, 0

    def solve(self, theta: Any, key) -> StationarySolution:
        """Run, and return the last finite parameters."""
        try:
            self.state = self.kept = start = self.solver.init_state(self.problem, theta, key=key)
            self.first = start.gradient_norm
            if start.is_finite and self.first:
                # That of the observed pairs alone if it is smaller: otherwise imputation or a ridge, large at first
                # and soon satisfied, would end a fit before it accounts for those pairs.
                alone = float(evaluate(self.problem.data.observed_alone(), theta)[1])
                self.first = min(self.first, alone) if alone > 0 else self.first
            status = self._go()
            if status != Status.NON_FINITE:
                self.bar.finish(status != Status.MAX_EPOCHS)
        except KeyboardInterrupt:
            if self.kept is None:
                raise  # nothing was evaluated yet
            status = Status.INTERRUPTED
            self._look()
            self.kept = self.state if self.state.is_finite else self.kept
        finally:
            self.bar.close()
        kept, params = self.kept, self.kept.theta
        interrupted, compiling = status == Status.INTERRUPTED, self.clock.compiling
        if not kept.is_finite:  # the start was not
            status = Status.NON_FINITE
            params = jax.tree.map(lambda leaf: jnp.nan_to_num(leaf, nan=0.0, posinf=0.0, neginf=0.0), params)
        return StationarySolution(
            params=params, status=status, objective=kept.objective, gradient_norm=kept.gradient_norm,
            start_objective=start.objective, start_gradient_norm=self.first, epochs=self.state.epoch,
            evaluations=self.state.evaluations, products=self.state.products,
            history={name: np.asarray(column) for name, column in self.history.items()},
            seconds_run=self.clock.seconds - compiling, seconds_compile=compiling,
            solver_name=type(self.solver).__name__, interrupted=interrupted,
        )  # fmt: skip

    def _go(self) -> Status:
        """Run epochs until an evaluation or the schedule ends the run."""
        solver, tell = self.solver, self.options.callback
        while True:
            epoch, last = self.state.epoch, self.state.epoch >= self.budget
            if (self.state.fresh or last or epoch % solver.look_every == 0) and (status := self._judge()) is not None:
                return status
            if last:
                return solver.ends
            # A callback sees every epoch.
            most = 1 if tell is not None else self.budget - epoch
            state = self.state = solver.advance(self.problem, self.state, self.options.tol * self.first, most)
            for _ in range(state.epoch - epoch):
                self.bar.advance()
            if tell is not None:
                jax.block_until_ready(state.theta)  # its work is this epoch's, not the callback's
                with self.clock.paused():
                    tell(state.epoch, self.clock.seconds, state.theta, state)

    def _look(self) -> None:
        """Fill in the objective of all pairs and the norm of its gradient."""
        if not self.state.fresh:
            seen = evaluate(self.problem.data, self.state.theta)[:2]
            self.state = self.state.at(self.state.theta, *seen, 1)

    def _judge(self) -> Status | None:
        """Evaluate the state: non-finite, then converged, then only rounding left; None to continue."""
        self._look()
        state, flat = self.state, self.state.gradient_norm
        seconds, seen = self.clock.seconds, (*state.passed, (state.objective, flat))
        for ago, of_epoch in zip(reversed(range(len(seen))), seen, strict=True):
            for column, value in zip(self.history.values(), (state.epoch - ago, seconds, *of_epoch), strict=True):
                column.append(value)
        self.bar.say(f"objective {state.objective:.6g}, gradient {flat / max(self.first, 1e-300):.1e} of the start's")
        if not state.is_finite:
            return Status.NON_FINITE
        self.kept = state
        if flat <= self.options.tol * self.first:
            return Status.CONVERGED
        if not self.solver.descends(state):
            return None
        rounding = float(jnp.finfo(state.dtype).eps) * state.magnitude
        for value, norm in seen:
            if value < self.lowest - rounding or norm < 0.9 * self.flattest:
                self.since = 0
                self.lowest, self.flattest = min(self.lowest, value), min(self.flattest, norm)
            else:
                self.since += 1
        return Status.PRECISION_FLOOR if self.since >= self.solver.patience else None


@jit
def _all_finite(theta):
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(theta)]))
