"""Solvers of models of classes, and what their solutions say: centred parameters and a report."""

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
from ..engine import ConjugateGradients
from ..engine.problem import Params
from ..engine.result import Solution
from ..numerics import seed_of
from ..status import Status
from ..stochastic import Schedule, SoftmaxProblem, tune_step
from .model_reports import ClassReport
from .parameters import by_name, choose_class_solver
from .report import null_is_best, relative_gap, report_of

EXACT = {
    "ConjugateGradients": ConjugateGradients,
    "NewtonCG": ConjugateGradients,  # its name in version 0.1
    **by_name(stochastic.BoundMajorization, stochastic.IncrementalMajorization),
}
SAMPLING = by_name(
    stochastic.ImplicitSGD, stochastic.UMax, stochastic.SoftmaxProx,
    stochastic.SGD, stochastic.OVE, stochastic.NCE, stochastic.ImportanceSampling,
)  # fmt: skip
# They see all classes of the rows they visit, and begin anew with every run: nothing for a stream.
VISITING = by_name(stochastic.StochasticMajorization, stochastic.SoftmaxSGD)
SOLVERS = {**EXACT, **SAMPLING, **VISITING}

_CERTIFIABLE = 2e9  # scores a float64 pass over which is worth a gap
_ROUNDING = 1e-12  # of an objective, relative
_NO_DEVIANCE = 1e-12  # of a null model that is exact, in nats per row
_HELD_OUT, _PATIENCE = 0.1, 5  # share of rows, and epochs without a better one, of early stopping
_LITTLE = 1e-3  # share of the loss of class frequencies
# Size of a column over this quantile of standard deviations, from which on sampling solvers learn little.
_FAR, _SMALL = 30.0, 0.25
THEOREM = "weak duality, or self-concordance by the whole Hessian (docs/theory/softmax_gap.md, Propositions 1 and 2)"


def auto_solver(problem: SoftmaxProblem | None = None):
    """Solver that "auto" is, for a fit or a stream."""
    return SOLVERS["ImplicitSGD" if problem is None else choose_class_solver(problem)]()


def judge_certain(problem: SoftmaxProblem, data: ClassTraining) -> tuple[Params, ClassReport]:
    """Parameters and report of a model of one class, which is certain of it."""
    solution = Solution(
        params=problem.null_params(), status=Status.CONVERGED, gap=0.0, gap_is_bound=True, target=0.0, objective=0.0,
        epochs=0, seconds_run=0.0, seconds_compile=0.0, solver_name="none",
    )  # fmt: skip
    return solution.params, report_of_classes(problem, solution, data, gap_theorem="one class has probability 1")


class Sampling(NamedTuple):
    """How a sampling solver is run: what the estimator's parameters say, None for a step to be found."""

    epochs: int | None
    step: float | None
    decay: float
    early_stopping: bool
    verbose: bool


def run_sampled(problem, solver, key, how: Sampling) -> tuple[Solution, dict]:
    """Solution of a sampling solver, with what was found out of its step."""
    schedule, tried, seconds = Schedule(how.epochs or solver.usual_epochs, 1.0, how.decay), (), 0.0
    rows, held = problem, None
    if how.early_stopping and problem.n_rows > 1:
        order = np.random.default_rng(seed_of(key)).permutation(problem.n_rows)
        n = max(1, int(_HELD_OUT * problem.n_rows))
        held, rows = problem.subset(order[:n]), problem.subset(order[n:])
    step = how.step
    if step is None and solver.has_step:
        step = None if held else solver.known_step(problem)
        if step is None:
            judge = "held-out" if held else "objective"
            step, tried, _, seconds = tune_step(solver, rows, key=key, schedule=schedule, judge=judge)
    schedule = replace(schedule, step=step or 1.0)
    given = rows, rows.null_params()
    if held:
        solution = _run_until_worse(held, solver, *given, key, schedule, how.verbose)
    else:
        solution = solver.run(*given, key=key, schedule=schedule, verbose=how.verbose)
    solution = replace(solution, seconds_run=solution.seconds_run + seconds)
    facts = {"step": float(step) if solver.has_step else np.nan, "step_tuned": bool(tried), "steps_tried": tried}
    return solution, facts


def _run_until_worse(held, solver, problem, params, key, schedule, verbose: bool) -> Solution:
    """Follow a schedule, and return the epoch that predicts held-out rows best; end some epochs after it."""
    state, best, least, solution = None, None, np.inf, None
    bar = ProgressBar(f"fitting {problem.subject}", schedule.epochs, "epoch", verbose, 0)
    clock = Clock()
    with closing(bar):
        for epoch in range(1, schedule.epochs + 1):
            so_far = replace(schedule, epochs=epoch)
            solution = solver.run(problem, params, key=key, schedule=so_far, state=state)
            state = solution.state
            bar.advance()
            loss = held.loss(solution.params)
            if loss < least:
                best, least = solution, loss
            if solution.status != Status.SCHEDULE_DONE or best is None or epoch - best.epochs >= _PATIENCE:
                break
    kept, compiling = best or solution, clock.compiling
    times = {"seconds_run": clock.seconds - compiling, "seconds_compile": compiling}
    return replace(kept, status=solution.status, interrupted=solution.interrupted, **times)


def judge_sampled(problem, solver, solution, data, certify, keep=False, **steps) -> tuple[Params, ClassReport]:
    """Parameters of a run, or class frequencies where those are better and the run is not kept; and their report."""
    # As many rows as are quickly seen; always the same ones.
    n = min(problem.n_rows, max(1, int(_CERTIFIABLE / 50 // problem.n_classes)))
    rows, null = np.sort(np.random.default_rng(0).choice(problem.n_rows, n, replace=False)), problem.null_params()
    null_objective = problem.objective(null, rows)
    overshot = not keep and not problem.objective(solution.params, rows) <= null_objective
    coef, intercept = (np.asarray(a, np.float64) for a in (null if overshot else solution.params))
    # A common shift changes no probability and only adds to the ridge.
    params = Params(coef - coef.mean(axis=1, keepdims=True), intercept - intercept.mean())
    bound, theorem = np.nan, ""
    if certify and problem.n_rows * problem.n_classes <= _CERTIFIABLE:
        gap, rows, null_objective = problem.certify_gap(params), None, problem.null_objective
        objective = gap.objective
        if np.isfinite(gap.bound):
            bound, theorem = gap.bound, gap.theorem
    else:
        objective = problem.objective(params, rows)
    status = solution.status
    if not status.is_failure and objective > null_objective * (1 - _LITTLE):
        status = Status.NO_GAIN
    row_evals = min(solution.steps * solver.batch_size, solution.epochs * solver.n_visits(problem))
    solution = replace(
        solution, params=params, status=status, objective=objective, gap=bound, gap_is_bound=not np.isnan(bound),
        row_evals=row_evals,
    )  # fmt: skip
    report = report_of_classes(problem, solution, data, rows, gap_theorem=theorem, overshot=overshot, **steps)
    if not status.is_failure and report.gap_is_bound and report.relative_gap > 1:
        report = replace(report, status=Status.NO_USEFUL_BOUND)
    return params, report


def report_of_classes(problem, solution, data: ClassTraining, rows=None, **facts) -> ClassReport:
    """Report of a fit; the objective may be that of some rows only."""
    gap, of = solution.gap, (solution.objective, problem.null_objective)
    frequencies, saturated = data.extreme_losses(rows)
    if solution.gap_is_bound:  # nor does any model lose less than one that is right about every row
        gap = min(gap, of[0] - saturated + _ROUNDING * (1 + abs(of[0])))
    no_gain = null_is_best(solution.status, *of) and data.offset is None
    explained = 0.0 if no_gain else frequencies - of[0] + problem.strength / 2 * float(np.sum(solution.params.coef**2))
    explainable = frequencies - saturated
    return report_of(
        ClassReport, solution, data,
        gap=gap, relative_gap=float(relative_gap(solution.status, gap, *of)), null_objective=of[1],
        pseudo_r2=explained / explainable if explainable > _NO_DEVIANCE else np.nan,
        n_features=problem.n_features, n_classes=len(data.class_totals), **facts,
    )  # fmt: skip


def warn_of_scales(X, solver_name: str) -> None:
    """Warn where steps along the features as they are learn next to nothing from most of them."""
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
            f"{spread[far]:.2g}, {than}), and {solver_name} takes steps along the columns as they are, so that it "
            "learns little here. Standardise X, for instance with sklearn.preprocessing.StandardScaler(); exact "
            "solvers, such as ConjugateGradients, do not need it."
        )


def class_residual(problem: SoftmaxProblem, params: Params, rows: slice) -> np.ndarray:
    """Compute expected minus observed counts of a slice of rows, each class over its standard deviation."""
    counts, p = problem.counts[rows].toarray(), softmax(problem.scores(params, rows), axis=1)
    total = counts.sum(axis=1, keepdims=True)
    return (total * p - counts) / np.sqrt(np.mean(total * p * (1 - p), axis=0))
