"""Solvers of models of classes, and their results: centred parameters and a report."""

from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy.sparse
from scipy.special import softmax

from .. import stochastic
from ..checks import warn_user
from ..compilation import Clock
from ..data.classes import ClassTraining
from ..display import ProgressBar
from ..engine import ConjugateGradients, ProximalNewton
from ..engine.problem import Params
from ..engine.result import LoopOptions, Solution
from ..engine.tiles import tiles_of
from ..numerics import seed_of
from ..status import Status
from ..stochastic import Schedule, SoftmaxProblem, tune_step
from ..stochastic.class_gap import KINKS_THEOREM
from ..stochastic.step_search import FACTOR, times
from .model_reports import ClassReport
from .parameters import by_name, choose_class_solver
from .report import null_is_best, relative_gap, report_of

EXACT = {
    "ConjugateGradients": ConjugateGradients,
    "NewtonCG": ConjugateGradients,  # its name in version 0.1
    **by_name(ProximalNewton, stochastic.BoundMajorization, stochastic.IncrementalMajorization),
}
SAMPLING = by_name(
    stochastic.ImplicitSGD, stochastic.UMax, stochastic.SampledSoftmax, stochastic.SoftmaxProx,
    stochastic.SGD, stochastic.OVE, stochastic.NCE, stochastic.ImportanceSampling,
)  # fmt: skip
# They see all classes of the rows they visit, and start over with every run: unsuitable for a stream.
VISITING = by_name(stochastic.StochasticMajorization, stochastic.SoftmaxSGD)
SOLVERS = {**EXACT, **SAMPLING, **VISITING}

_EXACT_EPOCHS = 500
_SCORES_AT_ONCE = 4_000_000
_CERTIFIABLE = 2e9  # scores, at most, for which a float64 pass is worth a gap
_ROUNDING = 1e-12  # of an objective, relative
NO_DEVIANCE = 1e-12  # of a null model that is exact, in nats per row
_HELD_OUT, _PATIENCE = 0.1, 5  # share of rows, and epochs without a better one, of early stopping
_AGAIN = 4  # times shorter steps are tried if the chosen one was too long
_LITTLE = 1e-3  # share of the loss of class frequencies
# Size of a column over this quantile of standard deviations, from which on sampling solvers learn little.
_FAR, _SMALL = 30.0, 0.25
_THEOREM = "weak duality, or self-concordance by the whole Hessian (docs/theory/softmax_gap.md, Propositions 1 and 2)"


def auto_solver(problem: SoftmaxProblem | None = None):
    """Return the solver that "auto" stands for, for a fit or a stream."""
    return SOLVERS["ImplicitSGD" if problem is None else choose_class_solver(problem)]()


def exact_options(problem: SoftmaxProblem, tol: float, epochs: int | None, verbose: bool = False) -> LoopOptions:
    """Make the options of an exact solver; if rows have less than one count, less is negligible."""
    negligible = LoopOptions.negligible * min(1.0, float(problem.totals.mean()))
    return LoopOptions(tol=tol, max_epochs=epochs or _EXACT_EPOCHS, negligible=negligible, verbose=verbose)


def no_worse_than_null(problem: SoftmaxProblem, start: Params) -> Params | None:
    """Return a start, or None if it is not finite, or worse than class frequencies."""
    if not all(np.isfinite(part).all() for part in start):
        return None
    start = Params(start.coef, start.intercept * problem.fit_intercept)
    with np.errstate(over="ignore", invalid="ignore"):
        return start if problem.objective(start) < problem.null_objective else None


def tiles_of_scores(X, offset: np.ndarray | None, coef: np.ndarray, intercept: np.ndarray):
    """Yield slices of the rows and their scores, float64, (row, class)."""
    for rows in tiles_of(X.shape[0], max(1, _SCORES_AT_ONCE // max(1, len(intercept)))):
        with np.errstate(invalid="ignore"):
            scores = np.asarray(X[rows] @ coef, np.float64) + intercept
            scores = scores if offset is None else scores + offset[rows]
        yield rows, scores


def judge_certain(problem: SoftmaxProblem, data: ClassTraining) -> tuple[Params, ClassReport]:
    """Return parameters and report of a model of one class, which has probability 1."""
    solution = Solution(
        params=problem.null_params(), status=Status.CONVERGED, gap=0.0, gap_is_bound=True, target=0.0, objective=0.0,
        epochs=0, seconds_run=0.0, seconds_compile=0.0, solver_name="none",
    )  # fmt: skip
    return solution.params, report_of_classes(problem, solution, data, gap_theorem="one class has probability 1")


def judge_exact(problem: SoftmaxProblem, solution: Solution, data: ClassTraining) -> tuple[Params, ClassReport]:
    """Return the parameters of an exact fit, and their report, which names what proves the bound, if there is one."""
    theorem = _THEOREM if problem.penalty.smooth else KINKS_THEOREM
    report = report_of_classes(problem, solution, data, gap_theorem=theorem if solution.gap_is_bound else "")
    return solution.params, report


class Settings(NamedTuple):
    """Parameters of an estimator, checked; a step of None is to be tuned."""

    epochs: int | None
    tol: float
    step: float | None
    decay: float
    certify: bool
    early_stopping: bool
    verbose: bool


def run_sampled(problem, solver, key, how: Settings) -> tuple[Solution, dict]:
    """Run a sampling solver; return its solution and facts about its step."""
    schedule, step, clock = Schedule(how.epochs or solver.usual_epochs, 1.0, how.decay), how.step, Clock()
    rows, held = _held_out(problem, key) if how.early_stopping else (problem, None)
    if step is None:
        step = solver.known_step(problem)
    tried, least = (), np.inf
    if step is None and solver.has_step:
        judge = "objective" if held is None else "held-out"
        step, tried, losses, _ = tune_step(solver, rows, key=key, schedule=schedule, judge=judge)
        least = np.min(losses, initial=np.inf)
    schedule = replace(schedule, step=step or 1.0)
    if held is None:
        solution, taken = _run_to_gain(problem, solver, key, schedule, least, how.verbose)
    else:
        again = _AGAIN if how.step is None and solver.has_step else 0
        solution, taken = _run_until_worse(held, solver, rows, key, schedule, how.verbose, again)
    if tried or len(taken) > 1:
        tried = tuple(sorted({*tried, *taken}))
    compiling, tuned = clock.compiling, how.step is None and solver.has_step
    used = float(solution.schedule.step) if solver.has_step else np.nan
    facts = {"step": used, "step_tuned": tuned, "steps_tried": tried}
    return replace(solution, seconds_run=clock.seconds - compiling, seconds_compile=compiling), facts


def _held_out(problem, key) -> tuple[SoftmaxProblem, SoftmaxProblem | None]:
    """Split the rows: most of them, and a tenth to judge by, if there are enough."""
    n = int(_HELD_OUT * problem.n_rows)
    order = np.random.default_rng(seed_of(key)).permutation(problem.n_rows)
    return (problem.subset(order[n:]), problem.subset(order[:n])) if n else (problem, None)


def _some_rows(problem) -> np.ndarray:
    """Choose as many rows as can be evaluated quickly; always the same ones."""
    n = min(problem.n_rows, max(1, int(_CERTIFIABLE / 50 // problem.n_classes)))
    return np.sort(np.random.default_rng(0).choice(problem.n_rows, n, replace=False))


def _run_to_gain(problem, solver, key, schedule, least: float, verbose: bool) -> tuple[Solution, list[float]]:
    """Follow a schedule, again with shorter steps if it ends worse than a short trial; return the best, and all steps.

    A step can be right for a few epochs, and too long for the sharper model after many.
    """
    start, rows, best, lowest, taken = problem.null_params(), _some_rows(problem), None, np.inf, []
    while len(taken) <= _AGAIN:
        solution = solver.run(problem, start, key=key, schedule=schedule, verbose=verbose)
        taken.append(schedule.step)
        if least == np.inf or solution.interrupted:
            return solution, taken
        objective = problem.objective(solution.params, rows)
        if best is None or objective < lowest:
            best, lowest = solution, objective
        if lowest <= least:
            break
        schedule = replace(schedule, step=times(schedule.step, 1 / FACTOR))
    return best, taken


def _run_until_worse(held, solver, problem, key, schedule, verbose: bool, again: int) -> tuple[Solution, list[float]]:
    """Follow a schedule up to the epoch that predicts held-out rows best; again with shorter steps while these improve.

    At a step that is too long for many epochs all of them are noise, and one may be too late already.
    """
    best, least, taken = None, np.inf, []
    while len(taken) <= again:
        solution, loss = _best_epoch(held, solver, problem, key, schedule, verbose)
        taken.append(schedule.step)
        better = best is None or loss < least
        best, least = (solution, loss) if better else (best, least)
        if solution.interrupted:
            return replace(best, status=solution.status, interrupted=True), taken
        if not better:
            break
        schedule = replace(schedule, step=times(schedule.step, 1 / FACTOR))
    return best, taken


def _best_epoch(held, solver, problem, key, schedule, verbose: bool) -> tuple[Solution, float]:
    """Follow a schedule until the held-out loss has not fallen for some epochs; return the best epoch and its loss."""
    state, best, least, solution = None, None, np.inf, None
    bar = ProgressBar(f"fitting {problem.subject}", schedule.epochs, "epoch", verbose, 0)
    with closing(bar):
        for epoch in range(1, schedule.epochs + 1):
            so_far = replace(schedule, epochs=epoch)
            solution = solver.run(problem, problem.null_params(), key=key, schedule=so_far, state=state)
            state = solution.state
            bar.advance()
            loss = held.loss(solution.params)
            if loss < least:
                best, least = solution, loss
            if solution.status != Status.SCHEDULE_DONE or best is None or epoch - best.epochs >= _PATIENCE:
                break
    return replace(best or solution, status=solution.status, interrupted=solution.interrupted), least


def judge_sampled(problem, solver, solution, data, certify, keep=False, **steps) -> tuple[Params, ClassReport]:
    """Return the parameters of a run, or class frequencies if better and the run is not kept; and their report."""
    rows, null = _some_rows(problem), problem.null_params()
    null_objective = problem.objective(null, rows)
    overshot = not keep and not problem.objective(solution.params, rows) <= null_objective
    coef, intercept = (np.asarray(a, np.float64) for a in (null if overshot else solution.params))
    # A common shift changes no probability and only adds to the ridge.
    params = Params(coef - coef.mean(axis=1, keepdims=True), intercept - intercept.mean())
    bound, theorem, error = np.nan, "", 0.0
    if certify and problem.n_rows * problem.n_classes <= _CERTIFIABLE:
        gap, rows, null_objective = problem.certify_gap(params), None, problem.null_objective
        objective = gap.objective
        if np.isfinite(gap.bound):
            bound, theorem = gap.bound, gap.theorem
    else:
        objective = problem.objective(params, rows)
        if len(rows) < problem.n_rows:
            error = float(np.std(problem.losses(params, rows)) / np.sqrt(len(rows)))
    status = solution.status
    if not status.is_failure and objective > null_objective * (1 - _LITTLE):
        status = Status.NO_GAIN
    row_evals = min(solution.steps * solver.batch_size, solution.epochs * solver.n_visits(problem))
    solution = replace(
        solution, params=params, status=status, objective=objective, gap=bound, gap_is_bound=not np.isnan(bound),
        row_evals=row_evals,
    )  # fmt: skip
    report = report_of_classes(
        problem, solution, data, rows, gap_theorem=theorem, overshot=overshot, objective_error=error, **steps
    )
    if not status.is_failure and report.gap_is_bound and report.relative_gap > 1:
        report = replace(report, status=Status.NO_USEFUL_BOUND)
    return params, report


def report_of_classes(problem, solution, data: ClassTraining, rows=None, **facts) -> ClassReport:
    """Make the report of a fit; the objective may be that of some rows only."""
    gap, of = solution.gap, (solution.objective, problem.null_objective)
    frequencies, saturated = data.extreme_losses(rows)
    if solution.gap_is_bound:  # no model has a smaller loss than one that is right about every row
        gap = min(gap, of[0] - saturated + _ROUNDING * (1 + abs(of[0])))
    no_gain = null_is_best(solution.status, *of) and data.offset is None
    explained = 0.0 if no_gain else frequencies - of[0] + problem.penalty_at(solution.params)
    explainable = frequencies - saturated
    return report_of(
        ClassReport, solution, data,
        gap=gap, relative_gap=float(relative_gap(solution.status, gap, *of)), null_objective=of[1],
        pseudo_r2=explained / explainable if explainable > NO_DEVIANCE else np.nan,
        n_features=problem.n_features, n_classes=len(data.class_totals), **facts,
    )  # fmt: skip


def warn_of_scales(X, solver_name: str) -> None:
    """Warn if steps along the raw features learn next to nothing from most of them."""
    n = X.shape[0]
    mean = np.asarray(X.sum(axis=0, dtype=np.float64)).ravel() / n
    squares = X.multiply(X) if scipy.sparse.issparse(X) else X**2
    size = np.sqrt(np.asarray(squares.sum(axis=0, dtype=np.float64)).ravel() / n)
    spread = np.sqrt(np.maximum(size**2 - mean**2, 0.0))
    varies = spread > 1e-6 * size
    if not varies.any():
        return
    far, usual = int(np.argmax(np.where(varies, size, 0.0))), float(np.quantile(spread[varies], _SMALL))
    if size[far] > _FAR * usual:
        shifted = abs(mean[far]) > spread[far]
        than = f"mean {mean[far]:.2g}" if shifted else f"a quarter of the columns {usual:.2g} or less"
        warn_user(
            f"X has columns far from 0 or of very different scales (column {far} has standard deviation "
            f"{spread[far]:.2g}, {than}), and {solver_name} takes steps along the columns as they are, so it "
            "learns little here. Standardise X, for example with sklearn.preprocessing.StandardScaler(); exact "
            "solvers, such as ConjugateGradients, do not need it."
        )


def class_residual(problem: SoftmaxProblem, params: Params, rows: slice) -> np.ndarray:
    """Compute expected minus observed counts of a slice of rows, each class over its standard deviation."""
    counts, p = problem.counts[rows].toarray(), softmax(problem.scores(params, rows), axis=1)
    total = counts.sum(axis=1, keepdims=True)
    return (total * p - counts) / np.sqrt(np.mean(total * p * (1 - p), axis=0))
