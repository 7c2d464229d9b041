"""Solvers of problems that are not convex: the loop, its verdict, and what it hands back."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from .._checks import check_real, check_whole
from .._compile import compile_seconds, jit
from .._progress import ProgressBar
from .._status import Status
from ..solvers._result import Solution
from .base import TwoSided

SLACK = 10  # times the rounding of the objective's terms: what a step may seem to go uphill


@dataclass(frozen=True)
class StationaryOptions:
    """When to stop looking for a stationary point, and what to show.

    Attributes
    ----------
    tol : float
        Converged is where the norm of the gradient is at most ``tol`` times that at the start (that of the observed
        pairs alone, if it is less).
    max_epochs : int, optional
        Budget; the solver's own (`TwoSidedSolver.usual_epochs`) by default.
    verbose : bool
        Show a progress bar.
    callback : callable, optional
        Called as ``callback(epoch, seconds, theta, state)`` after every epoch, the seconds without its own.
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
    """Outcome of looking for a stationary point: parameters in the structure of the start, always finite.

    The status is NON_FINITE, CONVERGED, PRECISION_FLOOR, MAX_EPOCHS (a method that descends ran out of its budget),
    SCHEDULE_DONE (one that samples has run its epochs) or INTERRUPTED. The history has ``epoch``, ``seconds``
    (compilation included, callbacks not), ``objective`` and ``gradient_norm``, one row per look.

    Attributes
    ----------
    gradient_norm : float
        Of the objective of all pairs, at ``params``.
    start_objective, start_gradient_norm : float
        At the start; the gradient is that of the observed pairs alone, if its norm is less: what ``tol`` multiplies.
    evaluations : float
        Passes over the observed pairs for the objective or its gradient, looks at it included.
    products : int
        Products with the Gauss-Newton matrix.
    """

    gradient_norm: float
    start_objective: float
    start_gradient_norm: float
    evaluations: float
    products: int


class TwoSidedSolver(ABC):
    """Solver of a problem of two sides: where its gradient vanishes, no more can be asked for.

    A state is a NamedTuple with at least the fields ``epoch``, ``theta``, ``objective`` and ``gradient_norm`` (floats;
    of theta where ``fresh``), ``magnitude`` (size of the terms of the objective), ``evaluations``, ``products`` and
    ``fresh``.

    Attributes
    ----------
    usual_epochs : int
        Budget of a run that says nothing else.
    look_every : int
        Epochs between looks at the objective of all pairs, where a state does not come with it.
    patience : int
        Looks in a row without progress above rounding after which no more progress is possible.
    """

    usual_epochs: ClassVar[int] = 500
    look_every: ClassVar[int] = 1
    patience: ClassVar[int] = 5

    @abstractmethod
    def init_state(self, problem: TwoSided, theta: Any, *, key) -> Any:
        """Prepare the first epoch."""

    @abstractmethod
    def update(self, problem: TwoSided, state: Any) -> Any:
        """Do one epoch."""

    def descends(self, state: Any) -> bool:
        """Whether the objective of all pairs falls from epoch to epoch from here on."""
        return True

    def is_done(self, state: Any) -> bool:
        """Whether there is no more to do, whatever the budget."""
        return False

    def end(self) -> Status:
        """Status of a run whose epochs have ended."""
        return Status.MAX_EPOCHS

    def look(self, problem: TwoSided, state: Any) -> Any:
        """Fill in the objective of all pairs and the norm of its gradient."""
        if state.fresh:
            return state
        seen = evaluate(problem.data, state.theta)
        return state._replace(
            objective=float(seen[0]),
            gradient_norm=float(seen[1]),
            evaluations=state.evaluations + 1,
            fresh=True,
        )

    def run(
        self, problem: TwoSided, theta: Any, *, key: jax.Array, options: StationaryOptions | None = None
    ) -> StationarySolution:
        """Go on until the gradient vanishes, nothing but rounding is left, or the epochs end.

        Parameters
        ----------
        problem : TwoSided
            What to minimise.
        theta :
            Where to start; all 0 is a stationary point of a product of towers.
        key : jax key
            Of all draws: the same key gives the same answer.
        options : StationaryOptions, optional
            When to stop.

        Returns
        -------
        StationarySolution
        """
        options = options or StationaryOptions()
        budget = self.usual_epochs if options.max_epochs is None else options.max_epochs
        clock, compiled = time.perf_counter(), compile_seconds()
        told, interrupted = 0.0, False
        rows: list[tuple] = []
        state = kept = None
        verdict = _Verdict(options.tol, self.patience, float(jnp.finfo(jax.tree.leaves(theta)[0].dtype).eps))
        bar = ProgressBar(f"fitting {problem.subject}", budget, "epoch", options.verbose)

        def seconds():
            return time.perf_counter() - clock - told

        try:
            state = kept = self.look(problem, self.init_state(problem, theta, key=key))
            start, first = state, _reference(problem, state)
            while True:
                last = state.epoch >= budget or self.is_done(state)
                if state.fresh or last or state.epoch % self.look_every == 0:
                    state = self.look(problem, state)
                    rows.append((state.epoch, seconds(), state.objective, state.gradient_norm))
                    status = verdict.of(state, first, self.descends(state))
                    if status != Status.NON_FINITE:
                        kept = state
                    if verdict.words:
                        bar.say(verdict.words)
                    if status is not None:
                        if status != Status.NON_FINITE:
                            bar.finish()
                        break
                if last:
                    status = self.end()
                    bar.finish(status != Status.MAX_EPOCHS)
                    break
                state = self.update(problem, state)
                bar.advance()
                if options.callback is not None:
                    jax.block_until_ready(state.theta)  # its work is this epoch's, not the callback's
                    before = time.perf_counter()
                    try:
                        options.callback(state.epoch, before - clock - told, state.theta, state)
                    finally:
                        told += time.perf_counter() - before
        except KeyboardInterrupt:
            if kept is None:
                raise  # nothing was evaluated yet
            status, interrupted = Status.INTERRUPTED, True
            state = self.look(problem, state)
            if _is_finite(state):
                kept = state
        finally:
            bar.close()
        params = kept.theta
        if not _is_finite(kept):  # the start was not
            status = Status.NON_FINITE
            params = jax.tree.map(lambda leaf: jnp.nan_to_num(leaf, nan=0.0, posinf=0.0, neginf=0.0), params)
        compiling = compile_seconds() - compiled
        names = ("epoch", "seconds", "objective", "gradient_norm")
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        return StationarySolution(
            params=params,
            status=status,
            objective=kept.objective,
            gradient_norm=kept.gradient_norm,
            start_objective=start.objective,
            start_gradient_norm=first,
            epochs=state.epoch,
            evaluations=state.evaluations,
            products=state.products,
            history={name: np.asarray(column) for name, column in zip(names, columns, strict=True)},
            seconds_run=seconds() - compiling,
            seconds_compile=compiling,
            solver_name=type(self).__name__,
            interrupted=interrupted,
        )


def _reference(problem: TwoSided, start: Any) -> float:
    """Norm of the gradient at the start, of the observed pairs alone where that is less.

    Otherwise a weight of imputation or a ridge that is large at the start, and soon obeyed, would let a fit end before
    it has looked at the observed pairs.
    """
    if not _is_finite(start) or not start.gradient_norm:
        return start.gradient_norm
    alone = float(evaluate(problem.data.observed_alone(), start.theta)[1])
    return min(start.gradient_norm, alone) if alone > 0 else start.gradient_norm


class _Verdict:
    """Judges a look: non-finite first, then converged, then nothing left but rounding."""

    def __init__(self, tol: float, patience: int, eps: float):
        self.tol, self.patience, self.eps = tol, patience, eps
        self.words = ""
        self._lowest, self._flattest, self._since = np.inf, np.inf, 0

    def of(self, state: Any, first: float, descends: bool) -> Status | None:
        """Status that ends the run, None to go on; ``first`` is the norm of the gradient at the start."""
        norm = state.gradient_norm
        self.words = f"objective {state.objective:.6g}, gradient {norm / max(first, 1e-300):.1e} of the start's"
        if not _is_finite(state):
            return Status.NON_FINITE
        if norm <= self.tol * first:
            return Status.CONVERGED
        if not descends:
            return None
        falls = state.objective < self._lowest - self.eps * state.magnitude
        if falls or norm < 0.9 * self._flattest:
            self._since = 0
            self._lowest, self._flattest = min(self._lowest, state.objective), min(self._flattest, norm)
        else:
            self._since += 1
        return Status.PRECISION_FLOOR if self._since >= self.patience else None


def _is_finite(state: Any) -> bool:
    """Whether objective, gradient and parameters are numbers."""
    numbers = np.isfinite([state.objective, state.gradient_norm]).all()
    return bool(numbers) and bool(_all_finite(state.theta))


@jit
def _all_finite(theta):
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(theta)]))


def norm(tree: Any) -> jax.Array:
    """Euclidean norm of all leaves together, without overflow of the squares."""
    leaves = jax.tree.leaves(tree)
    most = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]))
    scale = jnp.where(most > 0, most, 1.0)
    return most * jnp.sqrt(sum(jnp.sum((leaf / scale) ** 2) for leaf in leaves))


@jit
def evaluate(data, theta):
    """Objective, norm of the gradient and gradient."""
    value, gradient = data.value_and_gradient(theta)
    return value, norm(gradient), gradient


@jit
def magnitude(data, theta):
    """Size of the terms of the objective."""
    return data.magnitude(theta)
