"""Newton's method on rows that arrive in batches, in a different order in every pass, as from a data loader.

A pass sums all terms that a step of every fit needs, and those that bound the gap at its start. No row is kept, or
recognised in a later pass.
Theory: docs/theory/self_concordance.md and duality.md.
"""

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Self

import numpy as np

from ...bounds import ResidualSums, dual_gap, gap_bound
from ...observations import Observation
from ...penalties import Penalty
from ...status import Status
from ...threads import Workers, small_blas
from .. import passes
from ..population import PopulationProblem, select
from ..problem import Params
from ..result import LoopOptions, Solution, reported_target
from ..tiles import tiles_of
from .newton import Iterate, NewtonSystem, Step
from .proximal_newton import model_step

_SAMPLE = 8192  # rows kept of the first pass, plus the following number per feature
_SAMPLE_PER_FEATURE, _LEAST = 40, 200
_SHORTER, _SHORTEST = 0.25, 1e-5  # factor of a step that went uphill; smallest length
_FAR = 20.0  # linear predictor beyond which an unpenalised fit may diverge
_SAME = 1e-9  # of the sum of magnitudes, by which sums in another order may differ
_SHARED = 2e7  # products of a tile above which sharing among threads pays
_HESSIANS = 2e9  # bytes of the Hessians of a pass; further fits wait for a later one


class Survey:
    """Summary of the design and the responses from one pass, with a sample of its rows.

    Parameters
    ----------
    observation : Observation
        Loss of a response.
    n_rows : int
        Approximate number of rows to come, for the share that is kept.
    seed : int
        Seed of the choice of these rows.
    """

    def __init__(self, observation: Observation, n_rows: int, seed: int):
        self.observation, self._expected, self._rng = observation, max(1, n_rows), np.random.default_rng([seed, 5])
        self.n_rows, self._kept = 0, []
        self._sums: list[np.ndarray] | None = None

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Take a batch, (row, feature) and (row, neuron)."""
        x64, y64 = x.astype(np.float64), y.astype(np.float64)
        if not self.n_rows:
            self._shift, self.fingerprint = x64.mean(axis=0), Fingerprint(x.shape[1])
            self._range = np.stack([np.full(x.shape[1], np.inf), np.full(x.shape[1], -np.inf)])
        self.n_rows += len(x)
        self.fingerprint.add(x64, y64)
        self._range = np.stack([np.minimum(self._range[0], x.min(axis=0)), np.maximum(self._range[1], x.max(axis=0))])
        z = x64 - self._shift
        found = [z.sum(axis=0), (z * z).sum(axis=0), y64.sum(axis=0), np.abs(y64).sum(axis=0)]
        found.append(np.sum(self.observation.saturated_loss(y64), axis=0))
        self._sums = found if self._sums is None else [a + b for a, b in zip(self._sums, found, strict=True)]
        share = (_SAMPLE + _SAMPLE_PER_FEATURE * x.shape[1]) / self._expected
        chosen = self._rng.random(len(x)) < share
        if not self._kept:
            chosen[:_LEAST] = True
        self._kept.append((x[chosen], y[chosen]))

    def problem(self, penalty: Penalty) -> PopulationProblem:
        """Build the problem of the kept rows, with means over all rows."""
        if not self.n_rows:
            raise ValueError("a pass over the loader gave no rows; the loader must give all rows at every iteration.")
        X, Y = (np.concatenate(parts) for parts in zip(*self._kept, strict=True))
        problem = PopulationProblem(X, Y, self.observation, penalty, None, X.dtype)
        shift, square, count, size, saturated = (a / self.n_rows for a in self._sums)
        constant = self._range[0] == self._range[1]
        variance = np.where(constant, 1.0, square - shift**2)
        scale = np.sqrt(np.where(variance > 0, variance, 1.0))
        problem.design["standard"] = np.where(constant, self._range[0], self._shift + shift), scale
        vars(problem).update(mean_count=count, size_of_counts=size, saturated_loss=saturated, n_rows=self.n_rows)
        return problem


class Fingerprint:
    """Sums that detect a pass over different rows, in any order: of responses and of a random projection.

    Sums of responses, of a projection of the features, of its square, and of its products with the responses.
    """

    def __init__(self, n_features: int):
        self._direction = np.random.default_rng(n_features).normal(size=n_features)
        self._sums: list[np.ndarray] | None = None

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Take rows in double precision, (row, feature) and (row, neuron)."""
        p = (x @ self._direction)[:, None]
        some = y, p, p * p, p * y
        found = [f(part).sum(axis=0) for part in some for f in (np.asarray, np.abs)]
        self._sums = found if self._sums is None else [a + b for a, b in zip(self._sums, found, strict=True)]

    def agrees(self, other: Self) -> bool:
        """Whether the sums are the same up to rounding."""
        if self._sums is None or other._sums is None:
            return self._sums is other._sums
        pairs = zip(self._sums[::2], other._sums[::2], other._sums[1::2], strict=True)
        return all(np.all(np.abs(a - b) <= _SAME * size) for a, b, size in pairs)


class BatchNewton:
    """Newton steps of all fits of a problem at once, each taken at the end of a pass over all batches.

    Parameters
    ----------
    problem : PopulationProblem
        Problem of the survey.
    options : LoopOptions
        Stopping rule of a fit.
    start : Params
        Parameters that the first pass evaluates.
    dtype : numpy dtype
        Precision of the returned parameters; gaps are those of the rounded parameters.
    fingerprint : Fingerprint
        Fingerprint of the survey's rows.

    Notes
    -----
    `add` takes a batch and `end` takes the step: to the minimum of a fit's quadratic model plus its penalty, or back to
    a quarter of the last step if that led uphill. Hessians are evaluated in float64 at the point itself, so that the
    bound of its gap is exact up to rounding. With a penalty with kinks it is by duality. A pass costs T d^2 per fit
    that is not proved, and memory of d^2 per fit.
    """

    name = "Newton"

    def __init__(self, problem: PopulationProblem, options: LoopOptions, start: Params, dtype, fingerprint):
        self.problem, self.options, self.dtype = problem, options, np.dtype(dtype)
        self.fingerprint = fingerprint
        n = problem.n_neurons
        self.status = problem.first_status()
        null = problem.null_params()
        self.params, self.objective = null, problem.null_objective.copy()
        self.gap = np.where(self.is_open, np.nan, 0.0)
        self.is_bound = ~self.is_open
        self.target = self._targets(np.arange(n))
        self.epochs, self.n_passes = np.zeros(n, int), 0
        self._step: list[Step | None] = [None] * n
        self._length = np.ones(n)
        self._trial = Params(*(np.where(self.is_open, a, b) for a, b in zip(start, null, strict=True)))
        self._first = np.ones(n, bool)
        self._begin()

    @property
    def is_open(self) -> np.ndarray:
        """Which fits still take steps, bool (fit,)."""
        return self.status == Status.MAX_EPOCHS

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Take a batch, (row, feature) and (row, neuron), of the pass."""
        with np.errstate(over="ignore", invalid="ignore"), small_blas(x.shape[1]):
            for rows in tiles_of(len(x)):
                self._add(x[rows].astype(np.float64), y[rows].astype(np.float64))

    def end(self) -> None:
        """Judge the points that the pass has evaluated, and choose those of the next pass."""
        problem, at = self.problem, self._fits
        self._compare()
        self.n_passes += 1
        if not len(at):
            return
        sums = [np.asarray(a) / self._rows for a in self._sums]
        loss, gradient, slope = sums[0], sums[1].T, sums[2]
        penalty = select(problem.penalty, at)
        trial = self._trial.of(at)
        objective = loss + np.asarray(penalty.value(trial.coef), np.float64)
        ridge = np.broadcast_to(np.asarray(penalty.ridge_strength, np.float64), trial.coef.shape)
        gradient = np.vstack([gradient + ridge * trial.coef, slope])
        by_duality = np.full(len(at), np.inf)
        if not problem.penalty.smooth and problem.penalty.penalises_all:
            by_duality = dual_gap(objective, ResidualSums(*sums[3:]), penalty)
        if self.dtype != np.float64:
            self._worse = (
                self._loss_of_kept / self._rows + np.asarray(penalty.value(self._kept(trial.coef))) - objective
            )
        else:
            self._worse = np.zeros(len(at))
        self.epochs[at] += 1
        for k, fit in enumerate(at):
            self._arrive(int(fit), k, objective[k], gradient[:, k], ridge[:, k], by_duality[k])
        self._begin()

    def solution(self) -> Solution:
        """Return the current outcome; before the first pass, only the point that it would evaluate."""
        problem, params, objective = self.problem, self.params, self.objective
        if not self.n_passes:
            params, objective = self._trial, np.where(self.is_open, np.nan, objective)
        return Solution(
            params=Params(*(self._kept(a) for a in params)), status=self.status.copy(),
            gap=self.gap.copy(), gap_is_bound=self.is_bound.copy(), target=self.target.copy(),
            objective=objective.copy(), null_objective=problem.null_objective, epochs=self.epochs.copy(),
            row_evals=self.n_passes * problem.n_rows, seconds_run=0.0, seconds_compile=0.0, solver_name=self.name,
        )  # fmt: skip

    # ---------------------------------------------------------------- a pass

    def _begin(self) -> None:
        """Choose the fits that the next pass evaluates."""
        d = self.problem.n_features
        most = max(1, int(_HESSIANS / (8 * (d + 1) ** 2)))
        self._fits = np.flatnonzero(self.is_open)[:most]
        self._sums, self._rows, self._reach, self._furthest = None, 0, 0.0, np.zeros(len(self._fits))
        self._print = Fingerprint(self.problem.n_features)
        self._loss_of_kept = np.zeros(len(self._fits))
        self._hessians = np.zeros((len(self._fits), d + 1, d + 1))

    def _compare(self) -> None:
        """Refuse a pass over rows other than those of the first: its means belong to another objective."""
        n_rows = self.problem.n_rows
        if self._rows != n_rows or not self._print.agrees(self.fingerprint):
            differ = "" if self._rows != n_rows else ", but they differ"
            raise ValueError(
                f"the first pass over the data had {n_rows} rows; a later pass had {self._rows}{differ}. Every "
                "pass must give the same rows, features with their responses, in any order: do not drop the last batch "
                "of shuffled rows, do not sample, and do not change the data between passes."
            )

    def _add(self, x: np.ndarray, y: np.ndarray) -> None:
        problem, at = self.problem, self._fits
        self._rows += len(x)
        self._print.add(x, y)
        if not len(at):
            return
        eta = x @ self._trial.coef[:, at] + self._trial.intercept[at]
        y = y[:, at]
        found = passes.sums_of(problem.observation, x, eta, eta, y, None, not problem.penalty.smooth)
        self._sums = found if self._sums is None else [a + b for a, b in zip(self._sums, found, strict=True)]
        self._furthest = np.maximum(self._furthest, np.abs(eta).max(axis=0))
        if self.dtype != np.float64:
            kept = x @ self._kept(self._trial.coef[:, at]) + self._kept(self._trial.intercept[at])
            self._loss_of_kept += problem.observation.loss(y, kept).sum(axis=0)
        mean, scale = problem.standard
        z = np.column_stack([(x - mean) / scale, np.ones(len(x))])
        self._reach = max(self._reach, float(np.einsum("ij,ij->i", z, z).max()))
        root = np.sqrt(problem.observation.curvature(y, eta))

        def add(k):
            part = z * root[:, k, None]
            self._hessians[k] += part.T @ part

        workers = Workers()
        shared = len(at) > 1 and len(x) * z.shape[1] ** 2 * len(at) > _SHARED
        with workers if shared else contextlib.nullcontext():
            for _ in workers.each(add, range(len(at))):
                pass

    # ---------------------------------------------------------------- a fit

    def _arrive(self, fit: int, k: int, objective: float, gradient, ridge, by_duality: float) -> None:
        """Accept the new point of a fit and bound its gap, or step back."""
        problem, first = self.problem, self._first[fit]
        limit = problem.null_objective[fit] if first else self.objective[fit]
        rounding = 4e-16 * max(abs(limit), 1.0)
        if not objective <= limit + rounding:
            return self._turn_back(fit)
        self._first[fit] = False
        at = np.append(self._trial.coef[:, fit], self._trial.intercept[fit])
        mean, scale = problem.standard
        H, inside = self._hessians[k] / self._rows, np.arange(len(mean))
        H[inside, inside] += ridge / scale**2
        if not (np.isfinite(H).all() and np.isfinite(gradient).all()):
            return self._turn_back(fit)
        self.params.coef[:, fit], self.params.intercept[fit], self.objective[fit] = at[:-1], at[-1], objective
        system = NewtonSystem(H, self._reach, mean, scale)
        smooth, residual = problem.penalty.smooth, gradient
        if smooth:
            step = system.step(gradient)
        else:
            penalty = select(problem.penalty, [fit])
            missed = penalty.subgradient_residual(at[:-1, None], gradient[:-1, None])
            residual = np.append(np.asarray(missed, np.float64), gradient[-1])
            shim = SimpleNamespace(
                penalty=penalty, standard=problem.standard, hessian_of_one=lambda _at, _dtype, i: (_part(H, i), None)
            )
            step = model_step(shim, Iterate(at, objective, gradient))
        bound = min(by_duality, self._bound(system, residual, self._furthest[k]))
        bound += problem.rounding_of(Params(at[:-1, None], at[-1:]), self.objective[[fit]], [fit])[0]
        known, estimate = bool(np.isfinite(bound)), max(step.slope / (2 if smooth else 1), 0.0)
        worse = max(self._worse[k], 0.0)  # what rounding the parameters costs
        bound, estimate = bound + worse, estimate + worse
        self.gap[fit], self.is_bound[fit] = (bound if known else estimate), known
        self.target[fit] = self._targets(np.array([fit]))[0]
        if known and bound <= self.target[fit]:
            self.status[fit] = Status.CONVERGED
            return None
        self._step[fit], self._length[fit] = step, 1.0
        return self._go(fit)

    def _bound(self, system: NewtonSystem, residual: np.ndarray, furthest: float) -> float:
        """Bound F - F* from the Hessian at the point, without the allowance for rounding."""
        attained = self.problem.penalty.penalises_all
        if system.n_directions < len(system.matrix) or (not attained and furthest > _FAR):
            return np.inf
        constant = self.problem.observation.constant
        return float(gap_bound(system.step(residual).slope, system.radius_squared, attained, constant))

    def _turn_back(self, fit: int) -> None:
        """Try a point nearer to the start of the last step."""
        if self._first[fit]:  # worse than a model without features: begin there
            self._first[fit], null = False, self.problem.null_params()
            self._trial.coef[:, fit], self._trial.intercept[fit] = null.coef[:, fit], null.intercept[fit]
            self.objective[fit] = np.inf  # as it is to rounding
            return
        self._length[fit] *= _SHORTER
        self._go(fit)

    def _go(self, fit: int) -> None:
        """Aim along the step of a fit; if nothing moves any more, the fit ends."""
        step = self._step[fit]
        here = np.append(self.params.coef[:, fit], self.params.intercept[fit])
        there = here if step is None else here + self._length[fit] * step.move
        if step is None or self._length[fit] < _SHORTEST or np.array_equal(here, there):
            near = not self.is_bound[fit] and self.gap[fit] <= self.target[fit]
            self.status[fit] = Status.UNPROVED if near else Status.PRECISION_FLOOR
        self._trial.coef[:, fit], self._trial.intercept[fit] = there[:-1], there[-1]

    def _kept(self, values) -> np.ndarray:
        return np.asarray(values).astype(self.dtype).astype(np.float64)

    def _targets(self, fits: np.ndarray) -> np.ndarray:
        return reported_target(self.problem, self.params.of(fits), self.objective[fits], self.options, fits)


def start_of_sample(problem: PopulationProblem, method, options: LoopOptions) -> Params:
    """Fit the rows that a survey kept; fits that do not converge start at the model without features."""
    sample = PopulationProblem(problem.X, problem.Y, problem.observation, problem.penalty, None, problem.dtype)
    found = method.run(sample, options=replace(options, tol=1e-4))
    settled = found.status == Status.CONVERGED
    return Params(*(np.where(settled, a, b) for a, b in zip(found.params, problem.null_params(), strict=True)))


def _part(H: np.ndarray, inside) -> np.ndarray:
    """Rows and columns of some features and of the intercept."""
    index = np.append(np.arange(len(H) - 1)[inside], len(H) - 1)
    return H[np.ix_(index, index)].copy()
