"""All fits of a cross-validation: strengths, folds and neurons at once; and its state in files."""

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from ..checks import check_choice, warn_user
from ..data.counts import Training
from ..data.standard_form import StandardForm
from ..display import ProgressBar, counted
from ..engine import ConjugateGradients, LeastSquares, Newton, ProximalNewton
from ..engine.devices import devices_for, newton_pays
from ..engine.exact.least_squares import least_squares_serves
from ..engine.population import FoldedProblem, PopulationProblem
from ..engine.problem import Params
from ..engine.result import Hints, History, LoopOptions, Solution, stopping_target
from ..observations import Observation
from ..penalties import ElasticNet, GroupLasso, Lasso, Penalty, Ridge
from ..penalties.by_name import PenaltyFamily
from ..status import Status
from .default_strength import residual, warn_if_flat
from .parameters import SOLVERS, by_name, choose_solver, key_for, precision, read_strengths
from .population_model import PROVED
from .scores import Folds

PENALTIES = by_name(Ridge, Lasso, ElasticNet, GroupLasso)
_OF_COUNTS = "mean_count", "size_of_counts", "saturated_loss", "_null"  # of a problem


class ManyFits:
    """Fits to one recording at many strengths, some at a time, in standard form; they share what the data tell."""

    def __init__(self, data: Training, observation: Observation, penalty: PenaltyFamily, options: LoopOptions):
        self.data, self.penalty, self.form = data, penalty, StandardForm.of(data, observation)
        # F is per whole bin; and one bar shows all fits.
        self.options = self.form.options(
            replace(options, negligible=options.negligible / data.mean_exposure, verbose=False)
        )
        self._designs: dict = {True: {}, False: {}}  # of the features alone; by whether the penalty is smooth
        self._of_counts: dict = {}  # results of passes over the counts alone, by the key of a problem

    def _problem(self, key, penalty: Penalty, neuron: np.ndarray, *folds: np.ndarray) -> FoldedProblem:
        """Lay out fits of some neurons; problems of one key have the same neurons and rows."""
        data, form = self.data, self.form
        problem = FoldedProblem(
            data.X, form.Y, form.observation, penalty, neuron, *folds,
            weights=data.weights, dtype=precision(data.X.dtype), offset=form.offset, own=form.own,
        )  # fmt: skip
        problem.design = self._designs[penalty.smooth]
        vars(problem).update(self._of_counts.get(key, {}))
        return problem

    def _run(self, key, solver, problem: FoldedProblem, start: Params | None, options: LoopOptions, bar) -> Solution:
        solution = run_counted(solver, problem, start, options, bar)
        self._of_counts[key] = {name: value for name, value in vars(problem).items() if name in _OF_COUNTS}
        return solution


class Fits(ManyFits):
    """Fits of a cross-validation, and results so far: nan, and INTERRUPTED, for missing ones.

    Parameters and gaps are those of the standard form.

    The last fold holds all rows; its fits may be returned, so they obey ``options.tol`` as well as ``cv_tol``. The
    strengths increase.
    """

    def __init__(
        self, data: Training, observation: Observation, penalty: PenaltyFamily, strengths: np.ndarray, folds: Folds,
        solver, options: LoopOptions, cv_tol: float,
    ):  # fmt: skip
        super().__init__(data, observation, penalty, options)
        self.observation, self.strengths, self.folds, self._began = observation, strengths, folds, time.perf_counter()
        self._chooses = solver is None
        self.solver = solver or (ConjugateGradients() if penalty.smooth else ProximalNewton())
        self.solver_name = type(self.solver).__name__  # of the last fits
        self._train = np.column_stack([folds.train, np.ones(len(data.X), bool)])
        self._tol = np.append(np.full(folds.train.shape[1], cv_tol), min(cv_tol, options.tol))
        self._devices = devices_for(data.X.size * data.Y.shape[1] * len(self._tol) * len(strengths))
        self.unit = self._units()  # of the standard form, (fold, neuron)
        shape = len(strengths), len(self._tol), data.Y.shape[1]
        self.coef = np.full((*shape[:2], data.X.shape[1], shape[2]), np.nan)  # (strength, fold, feature, neuron)
        self.intercept, self.gap = np.full((2, *shape), np.nan)  # (strength, fold, neuron), as all that follow
        self.status, self.epochs = np.full(shape, int(Status.INTERRUPTED)), np.zeros(shape, int)
        self.gap_is_bound = np.zeros(shape, bool)

    def _units(self) -> np.ndarray:
        """Units of the standard form in every fold, (fold, neuron): mean trials of a negative binomial."""
        data, form, train = self.data, self.form, self._train
        if np.all(form.unit == 1):
            return np.ones((train.shape[1], len(form.unit)))
        counted = train * (1.0 if data.weights is None else data.weights[:, None])
        seen = np.ones(data.Y.shape) if data.own is None else np.asarray(data.own, np.float64)
        total, trials = counted.T @ seen, counted.T @ form.own
        return np.where(total > 0, trials / np.where(total > 0, total, 1.0), form.unit)

    @property
    def comparable(self) -> np.ndarray:
        """Strengths to choose from, (strength, neuron): those whose fits all ended; if there are none, all began."""
        ended = self.status != Status.INTERRUPTED
        began = (ended | np.isfinite(self.gap)).all(axis=1)
        ended = ended.all(axis=1)
        return np.where(ended.any(axis=0), ended, began)

    def run(self, bar: ProgressBar) -> bool:
        """Fit the strongest strength first, to all rows, then to the folds from there; return True after Ctrl-C."""
        n_folds, smooth = self.folds.train.shape[1], self.penalty.smooth
        lead = others = before = None
        try:
            for s in reversed(range(len(self.strengths))):
                lead = self._solve(s, np.array([n_folds]), lead and lead.params, lead and lead.state, bar)
                near = Params(*(np.tile(a, n_folds) for a in lead.params))
                begin = others.params if others else near
                if others:
                    # How far a fold is from all rows changes slowly with the strength.
                    begin = Params(*(a + (b - c) for a, b, c in zip(near, others.params, before, strict=True)))
                    if not smooth:  # zeros stay, and signs
                        begin.coef[begin.coef * near.coef <= 0] = 0.0
                hints = lead.state and lead.state.repeated(n_folds)
                if hints and others and others.state:
                    hints = hints._replace(fall=others.state.fall)
                others = self._solve(s, np.arange(n_folds), begin, hints, bar)
                before = near
        except KeyboardInterrupt:
            if not self.comparable.any():
                raise
            return True
        return False

    def _solve(
        self, s: int, folds: np.ndarray, start: Params | None, hints: Hints | None, bar: ProgressBar
    ) -> Solution:
        """Fit all neurons in some folds at one strength."""
        shape = len(folds), self.data.Y.shape[1]
        fold, neuron = np.repeat(folds, shape[1]), np.tile(np.arange(shape[1]), len(folds))
        penalty, solver = self.penalty(self.strengths[s] / self.unit[fold, neuron]), self.solver
        if penalty.smooth and not self.penalty.smooth:  # a strength of 0
            solver = ConjugateGradients()
        problem = self._problem(folds.tobytes(), penalty, neuron, fold, self._train)
        problem.devices = self._devices
        scale = (self.form.unit / self.unit)[fold, neuron]
        negligible = np.broadcast_to(self.options.negligible, shape[1])[neuron] * scale
        options = replace(self.options, tol=self._tol[fold], negligible=negligible)
        if self._chooses and least_squares_serves(problem):
            solver = LeastSquares()
        else:
            solver = Newton() if self._chooses and newton_pays(problem) else replace(solver, hints=hints)
        solution = self._run(folds.tobytes(), solver, problem, start, options, bar)
        self.solver_name = type(solver).__name__
        self.coef[s, folds] = np.moveaxis(solution.params.coef.reshape(-1, *shape), 0, 1)
        self.intercept[s, folds] = solution.params.intercept.reshape(shape)
        # A fit that was stopped before its first step is a constant rate, and nothing to compare.
        gap = np.where((solution.status == Status.INTERRUPTED) & (solution.epochs == 0), np.nan, solution.gap)
        self.gap[s, folds], self.gap_is_bound[s, folds] = gap.reshape(shape), solution.gap_is_bound.reshape(shape)
        self.status[s, folds] = solution.status.reshape(shape)
        self.epochs[s, folds] = np.maximum(solution.epochs, 1).reshape(shape)
        if solution.interrupted:
            raise KeyboardInterrupt
        return solution

    def finish(self, chosen, interrupted: bool, seed: int, bar: ProgressBar) -> tuple[PopulationProblem, Solution]:
        """Return the problem of all rows at strengths given by their index, (neuron,), and the outcome of its fit."""
        data, form, penalty = self.data, self.form, self.penalty(self.strengths[chosen] / self.form.unit)
        common = data.X, form.Y, form.observation, penalty, data.weights, precision(data.X.dtype), form.offset
        problem = PopulationProblem(*common, own=form.own)
        problem.design = self._designs[penalty.smooth]
        neurons = np.arange(len(chosen))
        coef = np.ascontiguousarray(self.coef[chosen, -1, :, neurons].T)
        start = Params(coef, self.intercept[chosen, -1, neurons])
        if not interrupted:
            with suppress(KeyboardInterrupt):
                if self.have_converged(chosen):
                    return problem, self._outcome(problem, start, chosen)
                with bar.phase(f"last fit, {problem.subject}"):
                    solver = SOLVERS[choose_solver(problem)]()
                    return problem, run_counted(solver, problem, start, self.options, bar, key_for(solver, seed))
        return problem, self._outcome(problem, start, chosen, interrupted=True)

    def have_converged(self, chosen: np.ndarray) -> bool:
        """Tell whether the fits to all rows at the strengths chosen are as near the optimum as possible."""
        return bool(np.isin(self.status[chosen, -1, np.arange(len(chosen))], PROVED).all())

    def _outcome(self, problem, params: Params, chosen: np.ndarray, interrupted: bool = False) -> Solution:
        """Return the outcome of fits to all rows at the strengths chosen; after Ctrl-C, missing ones are constant."""
        at = chosen, -1, np.arange(len(chosen))
        known, silent = ~np.isnan(self.intercept[at]) & self.comparable.any(axis=0), problem.silent
        constant = problem.null_params()
        params = Params(*(np.where(known, of, null) for of, null in zip(params, constant, strict=True)))
        objective = problem.evaluate(params).objective
        target = stopping_target(problem, objective, self.options, 2 * problem.rounding_of(params, objective))
        gap = np.where(silent, 0.0, np.where(known, self.gap[at], np.nan))
        is_bound = silent | (known & self.gap_is_bound[at])
        converged = (is_bound & (gap <= target)) | (not interrupted)
        status = np.where(converged, int(Status.CONVERGED), int(Status.INTERRUPTED))
        seconds, epochs = time.perf_counter() - self._began, self.epochs[at]
        row_evals, history = int(epochs.max()) * problem.n_rows, History()
        history.add(epochs.max(), row_evals, seconds, objective, gap, is_bound)
        return Solution(
            params=params, status=np.where(silent | problem.unseen, problem.first_status(), status), gap=gap,
            gap_is_bound=is_bound,
            target=target, objective=objective, null_objective=problem.null_objective, epochs=epochs,
            row_evals=row_evals, history=history.arrays(), seconds_run=seconds, seconds_compile=0.0,
            solver_name=self.solver_name, interrupted=interrupted,
        )  # fmt: skip

    def warn(self, problem: PopulationProblem, scores: np.ndarray, interrupted: bool) -> None:
        """Warn of fits that are missing, not scored or not proved, and of strengths that leave nothing."""
        status = self.status[:, :-1]
        if interrupted:
            self._warn_of_interruption()
        silent = (np.isnan(scores) & self.comparable[:, None]).any(axis=(0, 1))
        if silent.any():
            warn_user(
                f"{int(silent.sum())} of {len(silent)} neurons have folds without a spike that cannot be scored; those "
                "folds are skipped for them (cv_scores_ is nan there). Use fewer folds, or longer ones."
            )
        failed = ~np.isin(status, (*PROVED, Status.UNPROVED, Status.INTERRUPTED))
        unproved = (status == Status.UNPROVED) & (not interrupted)  # what is interrupted has not come to its proofs
        why = ": along some direction the features vary too little. Drop a strength of 0, or features that nearly"
        warn_of_fits(failed, unproved, f"{why} repeat others.")
        if self.strengths[0] > 0 and np.isin(self.status[0, -1], PROVED).all():
            if problem.observation.is_quadratic or self.penalty.mask is not None:
                return  # predictors are in units of the responses; the informative features may be masked
            weakest = Params(self.coef[0, -1], self.intercept[0, -1])
            tried = f"strengths of {self.strengths[0]:.2g} and more", "Pass smaller ones."
            warn_if_flat(problem.X, weakest.coef, partial(residual, problem, weakest), *tried)

    def _warn_of_interruption(self) -> None:
        scored = self.comparable.sum(axis=0)
        least, most, none = scored.min(), scored.max(), int(np.sum(scored == 0))
        halfway = int(np.sum((self.status == Status.INTERRUPTED).any(axis=1) & self.comparable))
        text = (
            f"Ctrl-C stopped the cross-validation with {least if least == most else f'{least} to {most}'} of "
            f"{len(self.strengths)} strengths scored on every fold (the strongest are fitted first): strength_ is "
            "chosen among these, coef_ is the fit to all rows there, and report_ says whether it has converged."
        )
        if none:
            text += f" Nothing is scored for {counted(none, 'neuron')}: strength_ is nan, the rate constant."
        if halfway:
            text += f" {halfway} of the scores are of unfinished fits; cv_gap_ says how far they are."
        warn_user(text)


def warn_of_fits(failed: np.ndarray, unproved: np.ndarray, advice: str) -> None:
    """Warn of fits of a cross-validation, bool, that did not converge, or only by an estimate."""
    if failed.any():
        warn_user(
            f"{int(failed.sum())} of {failed.size} fits of the cross-validation did not converge (cv_gap_ says how "
            "far they are); raise max_epochs, or drop the weakest strengths."
        )
    if unproved.any():
        warn_user(
            f"{int(unproved.sum())} of {unproved.size} fits of the cross-validation are below the tolerance by an "
            f"estimate only, without proof (cv_gap_is_bound_ is False there){advice}"
        )


class CrossValidated:
    """Part of an estimator that is cross-validated: checks of its words, and what its files keep."""

    _fitted: ClassVar[tuple[str, ...]]  # attributes that are arrays
    _scorings: ClassVar[tuple[str, ...]]

    def _check_words(self) -> None:
        check_choice("regularizer", self.regularizer, PENALTIES)
        check_choice("scoring", self.scoring, self._scorings)
        check_choice("rule", self.rule, ("best", "one-se"))

    def _write_state(self, header: dict, arrays: dict) -> None:
        super()._write_state(header, arrays)
        arrays.update({f"cv.{name}": getattr(self, name) for name in self._fitted})

    def _read_state(self, header: dict, arrays: dict) -> None:
        super()._read_state(header, arrays)
        if self.cv is None:
            self.cv = 5
            warn_user(
                "the cv of this model was not saved, because files keep numbers and IntervalSets, but not splitters or "
                "row indices: cv is 5, the default. Set it before fitting again: model.set_params(cv=...)."
            )
        for name in self._fitted:
            setattr(self, name, arrays[f"cv.{name}"])


def run_counted(solver, problem, start, options: LoopOptions, bar: ProgressBar, key=None) -> Solution:
    """Run a solver, and count the columns that are done on a bar."""
    before = bar.n

    def after_epoch(epoch, seconds, columns, state):
        bar.say(f"epoch {epoch}")
        bar.to(before + int(np.sum(~state.active)))

    solution = solver.run(problem, start, key=key, options=replace(options, callback=after_epoch))
    if not solution.interrupted:
        bar.to(before + problem.n_neurons)
    return solution


def read_tried(given, alone: str = "PopulationGLM") -> np.ndarray | None:
    """Return distinct strengths in increasing order; None is kept."""
    if given is None:
        return None
    needs = "a list of finite numbers of at least 0, such as [1e-4, 1e-2, 1]"
    strengths = np.unique(read_strengths("strengths", given, needs, 1))
    if len(strengths) < 2:
        raise ValueError(
            f"strengths is {given!r}; cross-validation needs at least two different ones. For one, use {alone}."
        )
    return strengths


def default_strengths(penalty: PenaltyFamily, data: Training, observation: Observation) -> np.ndarray:
    """Choose eight from 1e-6 to 1 for a ridge, else twelve, down from the smallest without any coefficients."""
    if not penalty.selects:
        return np.logspace(-6, 0, 8)
    form = StandardForm.of(data, observation)
    given = penalty(np.ones(data.Y.shape[1])), data.weights, data.X.dtype, form.offset
    problem = PopulationProblem(data.X, form.Y, form.observation, *given, own=form.own)
    strongest = float(np.max(penalty.maximal_strength(problem.null_gradient() * form.unit)))
    rounding = 1e-12 * float(np.max(problem.null_objective, initial=0.0))
    return (strongest if strongest > rounding else 1.0) * np.logspace(-3, 0, 12)
