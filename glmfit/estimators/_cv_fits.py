"""All fits of a cross-validation: strengths, folds and neurons at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .. import penalties
from .._status import Status
from ..penalties import Penalty
from ..problems import FoldedProblem, Params, PathProblem
from ..solvers import SAGA, LoopOptions, Newton, SharedNewton, Solution
from ._folds import Folds

REGULARIZERS = ("Ridge", "Lasso", "ElasticNet")
_COPIES = 7  # arrays of rows times columns alive at a time in SAGA: counts, weights, table, and what warm-up adds
_FEATURES_PER_FIT = 30  # of a neuron, up to which its Hessians cost less than passes


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
    solver : SAGA, SharedNewton or None
        Which solves them; None chooses.
    options, last : LoopOptions
        When to stop, and when the fits to all rows stop if they may be returned.
    key :
        Of the solver's randomness.
    max_memory : float
        Bytes.
    dtype : numpy dtype
        Of SAGA's passes and of Hessians.
    """

    data: Any
    observation: Any
    penalty: Callable[[Any], Penalty]
    strengths: np.ndarray
    folds: Folds
    solver: SAGA | SharedNewton | None
    options: LoopOptions
    last: LoopOptions
    key: Any
    max_memory: float
    dtype: Any

    def run(self):
        """Fit to all folds and, last, to all rows.

        Returns
        -------
        coef, intercept, status, gap, is_bound, target, passes
            Coefficients (strength, fold, feature, neuron), the others (strength, fold, neuron). The passes of fits that
            are not to be returned as they are, are 0.
        """
        solver = self.solver or self._choose()
        per_neuron = self._bytes_of_hessians() if isinstance(solver, SharedNewton) else self._bytes_of_columns()
        n_neurons = self.data.Y.shape[1]
        n_groups = -(-n_neurons // max(1, int(self.max_memory // per_neuron)))
        one = self._shared if isinstance(solver, SharedNewton) else self._columns
        parts = [one(solver, neurons) for neurons in np.array_split(np.arange(n_neurons), n_groups)]
        return tuple(np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))

    @property
    def _train(self) -> np.ndarray:
        return np.column_stack([self.folds.train, np.ones(len(self.data.X), bool)])

    @property
    def _n_fits(self) -> int:
        """Of a neuron."""
        return len(self.strengths) * (self.folds.train.shape[1] + 1)

    def _choose(self):
        """Hessians where a neuron has many fits to share them; SAGA for wide designs, and on a GPU."""
        few = self.data.X.shape[1] <= _FEATURES_PER_FIT * self._n_fits
        small = self._bytes_of_hessians() <= max(self.max_memory, self._bytes_of_columns())
        return SharedNewton() if few and small and jax.default_backend() == "cpu" else SAGA()

    def _bytes_of_hessians(self) -> float:
        """Per neuron: pieces, and for each set of rows what is made of them."""
        n_folds = self.folds.train.shape[1] + 1
        return 8.0 * (self.data.X.shape[1] + 1) ** 2 * (2 * n_folds + 3 * n_folds)

    def _bytes_of_columns(self) -> float:
        columns = self._n_fits
        if not self.penalty(1.0).smooth:
            columns //= len(self.strengths)  # one strength at a time
        return _COPIES * columns * self.data.X.shape[0] * float(np.dtype(self.dtype).itemsize)

    # ------------------------------------------------------------------------------------------ Newton

    def _shared(self, solver: SharedNewton, neurons):
        data = self.data
        Y, offset = data.Y[:, neurons], data.offset
        if offset is not None and offset.shape[1] > 1:
            offset = offset[:, neurons]
        common = data.X, Y, self.observation, self.penalty, self._train, data.weights, self.dtype, offset
        problem = PathProblem(*common)
        found = solver.run(problem, self.strengths, self.options, self.last)
        self._finish(found, neurons)
        return found[:7]

    def _finish(self, found, neurons) -> None:
        """Finish by exact Hessians what the shared ones did not."""
        unfinished = np.isin(found.status, (Status.PRECISION_FLOOR, Status.UNPROVED)) | ~np.isfinite(found.gap)
        s, f, n = np.nonzero(unfinished)
        if not len(s):
            return
        problem = self._folded(self.strengths[s], f, neurons[n])
        solution = Newton().run(problem, key=self.key, options=self.options)
        better = np.isfinite(solution.objective) & np.isfinite(solution.gap)
        s, f, n = (a[better] for a in (s, f, n))
        found.coef[s, f, :, n] = solution.params.coef[:, better].T
        found.intercept[s, f, n] = solution.params.intercept[better]
        for name in ("gap", "gap_is_bound", "status", "target"):
            getattr(found, name)[s, f, n] = getattr(solution, name)[better]

    # ------------------------------------------------------------------------------------------ SAGA

    def _folded(self, strength, fold, neuron) -> FoldedProblem:
        data = self.data
        return FoldedProblem(
            data.X, data.Y, self.observation, self.penalty(strength), neuron, fold, self._train,
            weights=data.weights, dtype=self.dtype, offset=data.offset,
        )  # fmt: skip

    def _columns(self, solver: SAGA, neurons):
        if self.penalty(1.0).smooth:
            return self._solve(solver, neurons, self.strengths, None)
        # Steps of a penalty that is not smooth are dear, and near starts worth it: the strongest first.
        done, start = [], None
        for strength in self.strengths[::-1]:
            done.append(self._solve(solver, neurons, np.array([strength]), start))
            coef, intercept = done[-1][0][0], done[-1][1][0]
            start = Params(np.moveaxis(coef, 1, 0).reshape(coef.shape[1], -1), intercept.ravel())
        return tuple(np.concatenate(part) for part in zip(*done[::-1], strict=True))

    def _solve(self, solver: SAGA, neurons, strengths, start):
        """All columns of some strengths in one problem."""
        shape = len(strengths), self._train.shape[1], len(neurons)
        strength, fold, neuron = (a.ravel() for a in np.meshgrid(strengths, range(shape[1]), neurons, indexing="ij"))
        problem = self._folded(strength, fold, neuron)
        solution = solver.run(problem, start, key=self.key, options=self.options)
        coef = np.moveaxis(solution.params.coef.reshape(-1, *shape), 0, -2)
        rest = (solution.params.intercept, solution.status, solution.gap, solution.gap_is_bound, solution.target)
        return coef, *(a.reshape(shape) for a in rest), np.zeros(shape, int)


def as_solution(problem, fits, strength, seconds: float) -> Solution | None:
    """Fits to all rows at one strength of every neuron, (neuron,) index, as the outcome of a fit.

    None where they are not as near the optimum as they could be.
    """
    at = strength, -1, np.arange(len(strength))
    coef, intercept, status, gap, is_bound, target, passes = fits
    if not np.all(((status[at] == Status.CONVERGED) & (passes[at] > 0)) | (status[at] == Status.NO_SPIKES)):
        return None
    params = Params(np.ascontiguousarray(coef[strength, -1, :, at[2]].T), intercept[at])
    objective = problem.evaluate(params).objective
    row_evals = int(passes[at].max()) * problem.n_rows
    trace = {"epoch": passes[at].max(), "row_evals": row_evals, "seconds": seconds, "objective": objective}
    trace |= {"gap": gap[at], "gap_is_bound": is_bound[at]}
    return Solution(
        params=params,
        status=status[at],
        gap=gap[at],
        gap_is_bound=is_bound[at],
        target=target[at],
        objective=objective,
        null_objective=problem.null_objective,
        epochs=passes[at],
        row_evals=row_evals,
        step_certificate=None,
        history={name: np.asarray(value)[None] for name, value in trace.items()},
        seconds_run=seconds,
        seconds_compile=0.0,
        solver_name="SharedNewton",
    )


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
        or not np.all(np.isfinite(strengths) & (strengths >= 0))
    ):
        raise ValueError(
            f"strengths is {given!r}; it must be a list of finite numbers of at least 0, such as [1e-4, 1e-2, 1], and "
            "not text."
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
    problem = PathProblem(data.X, data.Y, observation, penalty, np.ones((len(data.X), 1), bool), data.weights,
                          offset=data.offset)  # fmt: skip
    columns = problem.columns(np.zeros(data.Y.shape[1], int), np.arange(data.Y.shape[1]))
    null = problem.null_params(columns)
    gradient = problem.evaluate(columns, null, null).gradient[:-1]
    strongest = float(np.max(penalty(1.0).maximal_strength(gradient)))
    rounding = 1e-12 * float(np.max(problem.null_objective(columns), initial=0.0))
    return (strongest if strongest > rounding else 1.0) * np.logspace(-3, 0, 12)
