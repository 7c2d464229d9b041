"""Options and outcome of a fit."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from ..bounds import StepCertificate

_DEFAULT_TOL = 1e-6
PER_FIT = "status", "gap", "gap_is_bound", "target", "objective", "null_objective", "epochs"  # of a solution


@dataclass(frozen=True)
class LoopOptions:
    """Options of a fit: when to stop and what to show.

    Attributes
    ----------
    tol :
        Relative gap ``(F - F*) / (F_null - F)`` per neuron at which to stop; the engine also accepts one value per
        fit, as for ``negligible``.
    max_epochs :
        Budget in passes over the data.
    negligible :
        Log-likelihood of all rows, in nats, that is not worth more work; it shrinks with ``tol`` below 1e-6. If rows
        have an exposure, so that F is per unit of exposure, it is divided by the mean exposure.
    verbose :
        Show a progress bar.
    callback :
        Called as ``callback(epoch, seconds, params, state)`` after every epoch (benchmarks, plots).
    checkpoint :
        Object with ``save(arrays)``, called with named arrays after every check, and ``load()``, which returns them
        (or None) at the start; a fit continues from there and ends with the same proof (SAGA: bit for bit).
    max_memory :
        Bytes for arrays as long as the recording, if a solver can work with fewer at a time.
    proves :
        Whether to bound the gaps; otherwise conjugate gradients end when the estimate is below the target, with
        status UNPROVED, for a caller that continues from there.
    handed_over :
        Precision to which parameters will be rounded: proofs by steps of all neurons on the host hold for the rounded
        parameters. Those of neurons that end by their exact Hessian are not rounded.
    """

    tol: float | np.ndarray = 1e-6
    max_epochs: int = 200
    negligible: float | np.ndarray = 1e-2
    verbose: bool = False
    callback: Callable | None = None
    checkpoint: Any = None
    max_memory: float = np.inf
    proves: bool = True
    handed_over: Any = None


def stopping_target(problem, objective, options: LoopOptions, rounding: np.ndarray, fits=...) -> np.ndarray:
    """Gap below which some fits count as converged, (fit,), or () if the objectives of the problem are numbers.

    The largest of ``tol`` times the improvement over the null model, what is negligible over the whole
    recording (default 0.01 nats; it tightens with ``tol`` below 1e-6), and ``rounding``.
    """
    tol, least = (np.broadcast_to(a, np.shape(problem.null_objective))[fits] for a in (options.tol, options.negligible))
    improvement = np.maximum(np.asarray(problem.null_objective)[fits] - objective, 0.0)
    negligible = least / problem.n_rows * np.minimum(1.0, tol / _DEFAULT_TOL)
    return np.maximum(np.maximum(tol * improvement, negligible), rounding)


def reported_target(problem, params, objective, options: LoopOptions, fits) -> np.ndarray:
    """Return `stopping_target` of some fits with the rounding at their parameters, (fit,)."""
    rounding = 2 * problem.rounding_of(params, objective, fits)
    # If parameters diverged, rounding is no excuse.
    rounding = np.minimum(rounding, 1e-9 * (np.abs(objective) + problem.size_of_counts[fits]))
    return stopping_target(problem, objective, options, rounding, fits)


@dataclass
class History:
    """Trace of a fit; arrays have one row per check."""

    epoch: list[int] = field(default_factory=list)
    row_evals: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    objective: list[np.ndarray] = field(default_factory=list)
    gap: list[np.ndarray] = field(default_factory=list)
    gap_is_bound: list[np.ndarray] = field(default_factory=list)

    def add(self, epoch: int, row_evals: int, seconds: float, *per_fit) -> None:
        """Append one check: a value for each field, in their order; numbers of a single fit become arrays of one."""
        check = epoch, row_evals, seconds, *map(np.atleast_1d, per_fit)
        for values, value in zip(vars(self).values(), check, strict=True):
            values.append(value)

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Put back what `arrays` gave."""
        for name, values in arrays.items():
            getattr(self, name)[:] = values.tolist() if values.ndim == 1 else list(values)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the trace as arrays, one row per check; objective, gap and gap_is_bound are (check, neuron)."""
        return {name: np.asarray(values) for name, values in vars(self).items()}


class Hints(NamedTuple):
    """What a run has learned about its fits that serves similar ones: at a nearby strength, or in a fold; (fit,)."""

    curved: np.ndarray  # whether the fit needed its own metric
    fall: np.ndarray  # factor by which the first step changed its estimate

    def repeated(self, n: int) -> Self:
        """Return those of the same fits n times."""
        return Hints(*(np.tile(of, n) for of in self))


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Outcome of fits, one entry per neuron unless stated otherwise; nan where nothing is known.

    Attributes
    ----------
    params :
        Coefficients and intercepts, float64.
    status :
        :class:`glmfit.status.Status` values, integer (neuron,).
    gap, gap_is_bound :
        Certified bound on F - F* where ``gap_is_bound``, else an estimate (nan if there is none).
    target :
        The gap below which a neuron counts as converged.
    objective, null_objective :
        F at ``params`` and at the intercept-only model.
    epochs, row_evals :
        Epoch at which each neuron was last worked on; rows evaluated per neuron, all passes counted.
    step_certificate :
        Certificate of the step used, or None.
    history :
        See :class:`History`.
    seconds_run, seconds_compile :
        Wall time without compilation, and of compilation.
    solver_name :
        Name of the solver that ran.
    interrupted :
        Whether the user stopped the fit.
    failure_probability :
        Probability that some gap bound of the population fails; 0 if all came from exact Hessians.
    state :
        Final solver state.
    memory_bytes :
        Bytes of rows held at a time, if rows were read in every pass.
    """

    params: Any
    status: Any
    gap: Any = np.nan
    gap_is_bound: Any = False
    target: Any = np.nan
    objective: Any = np.nan
    null_objective: Any = np.nan
    epochs: Any
    row_evals: int = 0
    step_certificate: StepCertificate | None = None
    history: dict[str, np.ndarray] = field(default_factory=dict)
    seconds_run: float
    seconds_compile: float
    solver_name: str
    interrupted: bool = False
    failure_probability: float = 0.0
    state: Any = None
    memory_bytes: int | None = None

    def each(self, change: Callable) -> Self:
        """Return the outcome with a change to everything that has one entry per neuron, its parameters excepted."""
        return replace(self, **{name: change(getattr(self, name)) for name in PER_FIT})

    def only(self) -> Self:
        """Return the outcome of a single fit, with numbers instead of arrays."""
        return self.each(lambda values: values[0].item())


def solution_of(run, params: Any, objective, **more: Any) -> Solution:
    """Return the outcome of a run at some parameters; numbers of a single fit become arrays of one."""
    compiling = run.clock.compiling
    found = Solution(
        params=params, status=run.status, gap=run.gap, gap_is_bound=run.is_bound, target=run.target,
        objective=objective, null_objective=run.problem.null_objective, epochs=run.epochs,
        row_evals=int(run.passes * run.problem.n_rows), history=run.history.arrays(),
        seconds_run=run.clock.seconds - compiling, seconds_compile=compiling, solver_name=run.name, **more,
    )  # fmt: skip
    return found.each(np.atleast_1d)
