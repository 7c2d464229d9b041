"""Fits of a population with quadratic penalties: strengths by marginal likelihood, optima that are proved.

Theory: docs/theory/smooth_terms.md. Losses are in nats of the recording, or in units of the scale.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...bounds import gap_bound
from ...display import ProgressBar
from ...status import Status
from ..population import PopulationProblem
from ..problem import Params
from ..result import LoopOptions, Solution, stopping_target
from .cells import Rows
from .coordinates import Coordinates
from .evidence import (
    Quadratic,
    evaluate,
    in_chunks,
    increase,
    invert,
    penalty_matrix,
    penalty_of,
    pull_of,
    with_penalty,
)

_WEAKEST, _STRONGEST = 14.0, 16.0  # of log strengths, about where penalty and data hold a term alike
_SETTLED = 5e-3  # nats: gradient of the evidence by the logarithm of a strength
_ROUGH = 0.1  # the same while the optimum is still far
_NEAR = 1e-4  # nats, still to be gained, from which on Hessians are those of the optimum
_CLOSE = 1.0  # nats: from here on the evidence takes into account how Hessians bend
_SAFE = 1.0  # change of a predictor up to which a whole Newton step is taken
_WATCHED = 0.1  # nats from which on steps are measured
_STEPS = 4, 8  # of the evidence at each Hessian, in the first rounds and later
_CHANGED = 0.02  # of a logarithm of a strength
_PROOFS = 6  # passes in double precision, at the most, for each Hessian
_COPIES = 14  # of the Hessian of a fit that are held at once
_INFLATED = 1e-6


@dataclass
class Outcome:
    """What the fits have come to, besides their solution.

    Attributes
    ----------
    strengths : numpy.ndarray
        Of the penalties, of mean losses, (penalty, neuron).
    gradient : numpy.ndarray
        Of minus the log marginal likelihood by the logarithms of strengths, nats, (penalty, neuron).
    at_end : numpy.ndarray
        -1 where a strength ran to its lower bound (no penalty), 1 to its upper bound, else 0, (penalty, neuron).
    penalty : numpy.ndarray
        Penalty of the mean loss of the population, (neuron,).
    degrees, degrees_of_tests : numpy.ndarray
        Effective degrees of freedom of coordinates, (coordinate, neuron): diagonals of F and 2F - FF.
    coordinates : numpy.ndarray
        The optimum, (neuron, coordinate + 1).
    covariance : dict of str to numpy.ndarray
        Of every term's coordinates and the intercept, (neuron, coordinate + 1, coordinate + 1), at a scale of 1.
    scale : numpy.ndarray
        Estimated, 1 for models without, (neuron,).
    """

    strengths: np.ndarray
    gradient: np.ndarray
    at_end: np.ndarray
    penalty: np.ndarray
    degrees: np.ndarray
    degrees_of_tests: np.ndarray
    coordinates: np.ndarray
    scale: np.ndarray
    covariance: dict[Any, np.ndarray] = field(default_factory=dict)


class SmoothPopulation:
    """Data and penalties of a population.

    Parameters
    ----------
    problem : PopulationProblem
        Data in standard form; its penalty says what `value` is at the strengths chosen.
    space : Coordinates
        Penalties.
    n_observed : numpy.ndarray
        Responses that a mean loss stands for, (neuron,).
    unit : numpy.ndarray
        Nats of the population's loss in one of the problem's, (neuron,).
    inside : numpy.ndarray, optional
        Which coordinates each neuron has, bool (coordinate, neuron).
    """

    def __init__(
        self, problem: PopulationProblem, space: Coordinates, groups, n_observed, unit, inside=None, test=None
    ):
        self.problem, self.space, self.inside = problem, space, None if inside is None else inside.T
        self.n_observed = np.broadcast_to(np.asarray(n_observed, np.float64), (problem.n_neurons,))
        self.unit = np.asarray(unit, np.float64)
        mean, scale = problem.standard
        shift = np.where(np.abs(mean) > 8 * scale, mean, 0.0)
        self.back = space.back(shift, scale)
        self.rows = Rows(
            problem.X, problem.Y, problem.observation, shift, scale, groups, problem.weights, problem.own,
            problem.offset,
        )  # fmt: skip
        own = np.ones(problem.n_neurons) if problem.scale is None else problem.scale
        # Of a sum over rows, whose weights have mean one.
        self.nats = self.n_observed * self.unit * own / problem.n_rows

    def fit(self, strengths: np.ndarray | None, options: LoopOptions) -> tuple[Solution, Outcome]:
        """Fit every neuron, at strengths of mean losses (penalty, neuron) or, of None, at those chosen."""
        began, problem, space = time.perf_counter(), self.problem, self.space
        status = problem.first_status()
        n, p, j = problem.n_neurons, space.n_coordinates, space.n_penalties
        state = _State(problem, p, j)
        state.status = status
        if strengths is not None:
            with np.errstate(divide="ignore"):
                state.rho[:] = np.log(strengths.T * self.n_observed[:, None])
        todo = np.flatnonzero(status == Status.MAX_EPOCHS)
        size = int(max(1, min(len(todo) or 1, options.max_memory // (8 * _COPIES * (p + 1) ** 2))))
        outcome = Outcome(
            np.full((j, n), np.nan), np.full((j, n), np.nan), np.zeros((j, n), int), np.zeros(n), np.zeros((p, n)), np.zeros((p, n)),
            state.at, state.scale, {name: np.full((n, *(2 * (s.stop - s.start + 1,))), np.nan) for name, s in space.places.items()},
        )  # fmt: skip
        with_bar = ProgressBar(problem.subject, len(todo), "fit", options.verbose)
        try:
            for first in range(0, len(todo), size):
                fits = todo[first : first + size]
                _Group(self, state, fits, strengths is None, options, outcome, with_bar).run()
        except KeyboardInterrupt:
            state.interrupted = True
            state.status[state.status == Status.MAX_EPOCHS] = int(Status.INTERRUPTED)
        finally:
            with_bar.close()
        coef, intercept = space.plain(state.at)
        known = np.isin(state.status, (Status.NO_SPIKES, Status.ALL_ONES, Status.NO_DATA))
        target = stopping_target(problem, state.objective, options, np.zeros(n))
        gap = np.where(known & (state.status != Status.NO_DATA), 0.0, state.gap)
        objective = np.where(known, problem.null_objective, state.objective)
        solution = Solution(
            params=Params(coef, intercept), status=state.status, gap=gap, gap_is_bound=np.isfinite(gap), target=target,
            objective=objective, null_objective=problem.null_objective, epochs=state.rounds,
            row_evals=int(state.rounds.max(initial=0)) * problem.n_rows, seconds_run=time.perf_counter() - began,
            seconds_compile=0.0, solver_name="Newton", interrupted=state.interrupted,
            history={"epoch": np.array([int(state.rounds.max(initial=0))]), "row_evals": np.array([0]),
                     "seconds": np.array([time.perf_counter() - began]), "objective": objective[None],
                     "gap": gap[None], "gap_is_bound": np.isfinite(gap)[None]},
        )  # fmt: skip
        return solution, outcome


class _State:
    """Where all fits are."""

    def __init__(self, problem, n_coordinates: int, n_penalties: int):
        n = problem.n_neurons
        self.at = np.zeros((n, n_coordinates + 1))
        self.at[:, -1] = problem.null_params().intercept
        self.rho = np.zeros((n, n_penalties))  # logarithms of strengths, of losses in nats times the scale
        self.scale, self.rounds = np.ones(n), np.zeros(n, int)
        self.gap, self.objective = np.full(n, np.inf), problem.null_objective.copy()
        self.status, self.interrupted = np.zeros(n, int), False


class _Group:
    """Some fits, which are stepped together."""

    def __init__(self, population: SmoothPopulation, state: _State, fits, choose: bool, options, outcome, bar):
        self.of, self.state, self.fits, self.choose = population, state, fits, choose
        self.options, self.outcome, self.bar = options, outcome, bar
        self.space, self.rows = population.space, population.rows
        n, p = len(fits), self.space.n_coordinates
        self.at, self.rho = state.at[fits], state.rho[fits]
        self.inside = None if population.inside is None else population.inside[fits]
        if self.inside is not None:
            self.at[:, :p] *= self.inside
        self.nats = population.nats[fits]
        self.phi, self.bend = np.ones(n), np.zeros((n, p + 1))
        self.bent = np.zeros(n, bool)
        self.gain = np.full(n, np.inf)  # nats that the last step promised, twice
        self.inverse = np.zeros((n, p + 1, p + 1))
        self.before = np.full(n, np.inf), self.at.copy(), np.full(n, np.nan)  # objective, place, of which strengths
        self.low = self.high = None

    def run(self) -> None:
        """Choose strengths, and go to the optimum and prove it."""
        active = np.arange(len(self.fits))
        for round_ in range(self.options.max_epochs):
            if not len(active):
                break
            near = self._round(active, round_)
            self._finish(active[near])
            active = active[~near]
        self._write(active, np.full(len(active), np.inf), Status.MAX_EPOCHS)

    # ---------------------------------------------------------------- on the way

    def _round(self, active: np.ndarray, round_: int) -> np.ndarray:
        """Form Hessians, choose strengths by them, and step; which fits are near their optimum, bool (fit,)."""
        model, loss = self._look(active)
        worse = self._is_worse(active, loss) if round_ else np.zeros(len(active), bool)
        changed = np.zeros(len(active), bool)
        if self.choose:
            fine = np.flatnonzero(~worse)
            changed[fine] = self._choose(active[fine], model if len(fine) == len(active) else model.take(fine), round_)
        else:
            self.inverse[active] = self._invert(with_penalty(model, self.space, np.exp(self.rho[active])))
        step = _times(self.inverse[active], model.z) - self.at[active]
        gain = np.einsum("ni,ni->n", step, _times(model.hessian, step)) + 2 * self._penalty(active, step)
        self.before[1][active[~worse]] = self.at[active[~worse]]
        self._move(active, step, gain, loss, worse)
        self.gain[active] = gain
        return (gain <= 2 * _NEAR) & ~changed & ~worse & (self.bent[active] | (not self.choose))

    def _look(self, active, dtype=np.float32) -> tuple[Quadratic, np.ndarray]:
        """Quadratic models of losses where some fits are, and the losses.

        Near the optimum the evidence is that of Hessians which follow it.
        """
        bent = self.choose & (self.gain[active] < _CLOSE) & (dtype == np.float32)
        parts = [self._sums(active[of], bend, dtype) for of, bend in ((bent, True), (~bent, False)) if of.any()]
        order = np.argsort(np.r_[np.flatnonzero(bent), np.flatnonzero(~bent)])
        loss, gradient, H = (np.concatenate(of)[order] for of in zip(*parts, strict=True))
        z = _times(H, self.at[active]) - gradient
        inside = None if self.inside is None else self.inside[active]
        return Quadratic(H, z, self.bend[active] if self.choose else None, inside), loss

    def _sums(self, some, bend: bool, dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Losses, gradients and Hessians of some fits, in nats and coordinates, and, kept, what bends the Hessians."""
        back, rows, nats = self.of.back, self.rows, self.nats[some]
        packed = self._packed(some) if bend else None
        sums = rows.sums(back @ self.at[some].T, self.fits[some], True, packed, dtype)
        H = np.concatenate(in_chunks(lambda of: self._turned(sums.hessian[:, of], nats[of]), len(some)))
        gradient = (back.T @ sums.gradient).T * nats[:, None]
        if bend:
            self.bent[some] = True
            self.bend[some] = (back.T @ sums.bend).T * nats[:, None]
        if self.inside is not None:
            has = np.append(self.inside[some], np.ones((len(some), 1), bool), axis=1)
            H *= has[:, :, None] & has[:, None, :]
            gradient *= has
            self.bend[some] *= has
        self._rescale(some, sums, H)
        return sums.loss * nats, gradient, H

    def _turned(self, packed: np.ndarray, nats: np.ndarray) -> np.ndarray:
        """Hessians in coordinates and nats, (fit, coordinate + 1, coordinate + 1)."""
        whole = self.rows.square(packed) * nats[:, None, None]
        half = (whole.reshape(-1, whole.shape[2]) @ self.of.back).reshape(*whole.shape[:2], -1)
        return self.of.back.T @ half

    def _packed(self, some) -> np.ndarray:
        """Inverses of Hessians as leverages take them, (pair, fit)."""
        back, inverse = self.of.back, self.inverse

        def part(of):
            return self.rows.pack(back @ inverse[some[of]] @ back.T)

        return np.concatenate(in_chunks(part, len(some)), axis=1)

    def _rescale(self, active, sums, H) -> None:
        """Estimate the scale of responses that have one, by Pearson's statistic."""
        if not self.rows.observation.has_scale:
            return
        trace = np.einsum("nij,nji->n", self.inverse[active], H)
        total = self.of.n_observed[self.fits[active]] * self.of.unit[self.fits[active]]
        self.phi[active] = np.maximum(sums.square * self.nats[active], 1e-300) / np.maximum(total - trace, 1.0)

    def _penalty(self, some, at) -> np.ndarray:
        """Penalties of parameters (fit, coordinate + 1) at the strengths of some fits, (fit,)."""
        return penalty_of(self.space, np.exp(self.rho[some]), at[:, :-1])

    def _is_worse(self, active, loss) -> np.ndarray:
        """Whether the last step led uphill, at its strengths: then half of it is taken back, bool (fit,)."""
        now = loss + self._penalty(active, self.at[active])
        return ~(now <= self.before[0][active] + 1e-6 * np.abs(now) + 1e-3)

    def _choose(self, some, model: Quadratic, round_: int) -> np.ndarray:
        """Raise the evidence of quadratic models; which strengths have changed by what matters, bool (fit,)."""
        if self.low is None:
            self._bracket(model.hessian)
        model, log = self._in_nats(some, model)
        before, bounds = self.rho[some] - log, (self.low[some] - log, self.high[some] - log)
        tol, most = (_ROUGH, _STEPS[0]) if round_ < 2 else (_SETTLED, _STEPS[1])
        rho, best = increase(model, self.space, before, *bounds, tol, most)
        self.rho[some], self.inverse[some] = rho + log, best.inverse / np.exp(log)[..., None]
        return np.abs(rho - before).max(axis=1, initial=0.0) > _CHANGED

    @staticmethod
    def _invert(A: np.ndarray) -> np.ndarray:
        return np.concatenate(in_chunks(lambda fits: invert(A[fits])[0], len(A)))

    def _in_nats(self, some, model: Quadratic) -> tuple[Quadratic, np.ndarray]:
        """Quadratic models of losses over their scale, and the logarithms of the scales, (fit, 1)."""
        phi = self.phi[some]
        if np.any(phi != 1):
            model = model._replace(hessian=model.hessian / phi[:, None, None], z=model.z / phi[:, None])
        return model, np.log(phi)[:, None]

    def _bracket(self, H: np.ndarray) -> None:
        """Bounds of strengths, and a first guess: where penalties and data hold a term alike."""
        sizes = self.space.sizes()
        held = np.einsum("nii->ni", H)[:, :-1] @ (sizes > 0).T
        total = np.maximum(sizes.sum(axis=1), 1e-300)
        guess = np.log(np.maximum(held, 1e-300) / total)
        least = np.where(sizes > 0, sizes, np.inf).min(axis=1, initial=np.inf)
        spread = np.log(np.maximum(total / np.maximum((sizes > 0).sum(axis=1), 1), 1e-300) / least)
        self.low, self.high = guess - _WEAKEST, guess + _STRONGEST + np.maximum(spread, 0.0)
        self.rho[:] = guess

    def _move(self, active, step, gain, loss, worse) -> None:
        """Take steps, shortened where predictors would move far, or half of the last one back."""
        length = np.ones(len(active))
        watched = np.flatnonzero((gain > _WATCHED) & ~worse)
        if len(watched) and self.rows.observation.constant:
            moved = self.rows.furthest(self.of.back @ step[watched].T) * self.rows.observation.constant
            with np.errstate(over="ignore", invalid="ignore"):
                length[watched] = np.where(moved > _SAFE, np.log1p(moved) / np.maximum(moved, 1e-300), 1.0)
        objective = loss + self._penalty(active, self.at[active])
        self.before[0][active] = np.where(worse, self.before[0][active], objective)
        self.at[active] = np.where(
            worse[:, None], 0.5 * (self.before[1][active] + self.at[active]), self.at[active] + length[:, None] * step
        )
        self.state.rounds[self.fits[active]] += 1

    # ---------------------------------------------------------------- at the end

    def _finish(self, some: np.ndarray) -> None:
        """Prove fits whose strengths are chosen, in double precision."""
        if not len(some):
            return
        model, _ = self._look(some, dtype=np.float64)
        strengths = np.exp(self.rho[some])
        A = with_penalty(model, self.space, strengths)
        self.inverse[some] = inverse = self._invert(A)
        anchor = self.at[some].copy()
        self.at[some] = _times(inverse, model.z)
        squares = in_chunks(lambda of: np.sum((self.of.back @ inverse[of]) * self.of.back, axis=2), len(some))
        root = np.sqrt(np.maximum(np.concatenate(squares).T, 0.0))
        reach = self.rows.longest(root * (1 + _INFLATED)) ** 2
        open_, bound = np.arange(len(some)), np.full(len(some), np.inf)
        for _ in range(_PROOFS):
            left = self._prove(some, open_, anchor, A, reach, bound, model)
            self.state.rounds[self.fits[some[open_]]] += 1
            if not len(left) or len(left) == len(open_) and _ > 2:
                break
            open_ = left
        self._conclude(some, model, bound)

    def _prove(self, some, open_, anchor, A, reach, bound, model) -> np.ndarray:
        """Evaluate some fits in double precision, bound their gaps, and step those that are not proved: which."""
        which, problem = some[open_], self.of.problem
        fits, nats = self.fits[which], self.nats[which]
        at, back = self.at[which], self.of.back
        sums = self.rows.sums(back @ at.T, fits, dtype=np.float64)
        pull = pull_of(self.space, np.exp(self.rho[which]), at[:, :-1])
        gradient = (back.T @ sums.gradient).T * nats[:, None]
        gradient[:, :-1] += pull
        if model.inside is not None:
            gradient[:, :-1] *= model.inside[open_]
        objective = sums.loss * nats + 0.5 * np.einsum("ni,ni->n", pull, at[:, :-1])
        rounding = self._rounding(at, fits, objective)
        step, squared = _solve(A[open_], self.inverse[which], gradient)
        constant = problem.observation.constant
        moved = self.rows.furthest(back @ (at - anchor[open_]).T)
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.exp(constant * moved) * (1 + _INFLATED)
            found = gap_bound(growth * (squared + 2 * rounding), growth * reach[open_], True, constant) + rounding
        per_row = self.of.n_observed[fits] * self.of.unit[fits]
        self.state.objective[fits], self.state.gap[fits] = objective / per_row, found / per_row
        bound[open_] = found
        target = stopping_target(problem, self.state.objective[fits], self.options, rounding / per_row, fits)
        left = np.flatnonzero(~(found / per_row <= target) & np.isfinite(squared))
        self.at[which[left]] -= step[left]
        return open_[left]

    def _rounding(self, at, fits, objective) -> np.ndarray:
        """Allow for the rounding of objectives and gradients, in nats, (fit,)."""
        coef, intercept = self.space.plain(at)
        per_row = self.of.n_observed[fits] * self.of.unit[fits]
        return self.of.problem.rounding_of(Params(coef, intercept), objective / per_row, fits) * per_row

    def _conclude(self, some, model: Quadratic, bound) -> None:
        """Keep what is known of fits at their end."""
        outcome, fits, phi = self.outcome, self.fits[some], self.phi[some]
        S = penalty_matrix(self.space, np.exp(self.rho[some]), model.inside)
        F = -np.matmul(self.inverse[some][:, :-1, :-1], S)
        i = np.arange(F.shape[1])
        F[:, i, i] += 1.0 if model.inside is None else model.inside
        outcome.degrees[:, fits] = np.einsum("nii->ni", F).T
        outcome.degrees_of_tests[:, fits] = (2 * np.einsum("nii->ni", F) - np.einsum("nij,nji->ni", F, F)).T
        if self.choose:
            self._judge(some, model)
        for name, place in self.space.places.items():
            which = np.append(np.arange(place.start, place.stop), -1)
            outcome.covariance[name][fits] = self.inverse[some][:, which][:, :, which]
        outcome.scale[fits] = phi
        per_row = self.of.n_observed[fits] * self.of.unit[fits]
        target = stopping_target(self.of.problem, self.state.objective[fits], self.options, 0.0, fits)
        self._write(some, bound, None)
        proved = self.state.gap[fits] <= np.maximum(target, 1e-300)
        del per_row
        self.state.status[fits] = np.where(proved, int(Status.CONVERGED), int(Status.UNPROVED))
        self.bar.advance(len(some)) if hasattr(self.bar, "advance") else None

    def _judge(self, some, model: Quadratic) -> None:
        """Keep the gradient of the evidence, and which strengths ran to a bound."""
        fits = self.fits[some]
        model, log = self._in_nats(some, model)
        rho = self.rho[some] - log
        gradients = in_chunks(lambda of: evaluate(model.take(of), self.space, rho[of]).gradient, len(some))
        self.outcome.gradient[:, fits] = np.concatenate(gradients).T
        low, high = self.rho[some] <= self.low[some] + 1e-9, self.rho[some] >= self.high[some] - 1e-9
        self.outcome.at_end[:, fits] = (high.astype(int) - low.astype(int)).T

    def _write(self, some, bound, status) -> None:
        fits = self.fits[some]
        self.state.at[fits], self.state.rho[fits] = self.at[some], self.rho[some]
        self.outcome.penalty[fits] = self._penalty(some, self.at[some]) / self.of.n_observed[fits]
        self.outcome.strengths[:, fits] = (np.exp(self.rho[some]) / self.of.n_observed[fits][:, None]).T
        if status is not None:
            self.state.status[fits] = int(status)


def _times(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return (matrices @ vectors[..., None])[..., 0]


def _solve(A, inverse, gradient) -> tuple[np.ndarray, np.ndarray]:
    """Solve A x = g for many fits by inverses that are rounded; bounds of g'A^-1 g, inf where there is none."""
    x = _times(inverse, gradient)
    x = x + _times(inverse, gradient - _times(A, x))
    left = gradient - _times(A, x)
    squared = np.einsum("ni,ni->n", x, gradient + left) + 2 * np.abs(np.einsum("ni,ni->n", left, _times(inverse, left)))
    return x, np.where(squared >= 0, squared * (1 + 1e-4), np.inf)
