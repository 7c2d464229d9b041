"""What softmax and multinomial estimators share: choosing a solver, fitting, reporting, predicting, files."""

from __future__ import annotations

import numbers
import sys
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self

import jax
import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from scipy.special import log_softmax, softmax
from sklearn.utils.validation import check_is_fitted

from .._checks import check_choice, check_real, not_text, shorten
from .._status import Status
from .._types import DataLike, Seed
from .._warn import warn_user
from ..data.classes import ClassTraining
from ..data.features import read_features
from ..data.rows import read_offset
from ..data.times import check_same_rows, time_axis
from ..engine import ConjugateGradients
from ..problems import Params
from ..solvers import LoopOptions, Solution
from ..solvers._seed import key_for
from ..stochastic import (
    NCE,
    OVE,
    SGD,
    BoundMajorization,
    ImplicitSGD,
    ImportanceSampling,
    IncrementalMajorization,
    Pairs,
    Schedule,
    SoftmaxProblem,
    SoftmaxProx,
    SoftmaxSGD,
    StochasticMajorization,
    UMax,
    tune_step,
    untuned_step,
)
from ._auto import choose_class_solver
from ._default_strength import name_strength, warn_if_flat
from ._model import Model, coefficients_from_file, coefficients_to_file, from_json, to_json
from ._parameters import precision, read_count, read_flag, read_number, read_seed, read_solver, read_verbose
from .model_reports import ClassReport
from .report import null_is_best, relative_gap, report_of

EXACT = {
    "ConjugateGradients": ConjugateGradients,
    "NewtonCG": ConjugateGradients,  # its name in version 0.1
    "BoundMajorization": BoundMajorization,
    "IncrementalMajorization": IncrementalMajorization,
}
SAMPLING = {
    "ImplicitSGD": ImplicitSGD,
    "UMax": UMax,
    "SoftmaxProx": SoftmaxProx,
    "SGD": SGD,
    "OVE": OVE,
    "NCE": NCE,
    "ImportanceSampling": ImportanceSampling,
}
# They see all classes of the rows they visit, and begin anew with every run: nothing for a stream.
VISITING = {"StochasticMajorization": StochasticMajorization, "SoftmaxSGD": SoftmaxSGD}
SOLVERS = {**EXACT, **SAMPLING, **VISITING}
# More negatives than by default: with classes so many that nothing exact can be done, five see little of them.
_AUTO = {"ImplicitSGD": {"n_negatives": 20}}
REGULARIZERS = ("Ridge", "UnRegularized")
_EXACT_EPOCHS = 500
_CERTIFIABLE = 2e9  # scores a float64 pass over which is worth a gap
_UNSEEN = -1e4  # score of a class that was never seen: probability exactly 0, and finite
_SCORES_AT_ONCE = 4_000_000
_TUNABLE_ROWS = 100
_ROUNDING = 1e-12  # of an objective, relative
_NO_DEVIANCE = 1e-12  # of a null model that is exact, in nats per row
_LITTLE = 1e-3  # share of the loss of class frequencies
# Size of a column over this quantile of standard deviations, from which on sampling solvers learn little.
_FAR, _SMALL = 30.0, 0.25
_THEOREM = "weak duality, or self-concordance by the whole Hessian (docs/theory/softmax_gap.md, Propositions 1 and 2)"


class ClassModel(Model):
    """Common part of `SoftmaxGLM` and `MultinomialGLM`."""

    report_class = ClassReport

    def __init__(
        self,
        regularizer: str | None = "Ridge",
        regularizer_strength: float | None = None,
        solver_name: str = "auto",
        solver_kwargs: Mapping[str, Any] | None = None,
        tol: float = 1e-6,
        max_epochs: int | None = None,
        step: str | float = "tune",
        step_decay: float = 0.9,
        certify: bool = True,
        random_state: Seed = 0,
        verbose: bool = False,
    ):
        self.regularizer = regularizer
        self.regularizer_strength = regularizer_strength
        self.solver_name = solver_name
        self.solver_kwargs = solver_kwargs
        self.tol = tol
        self.max_epochs = max_epochs
        self.step = step
        self.step_decay = step_decay
        self.certify = certify
        self.random_state = random_state
        self.verbose = verbose

    # ------------------------------------------------------------------------------------------ fit

    def _fit_training(self, data: ClassTraining) -> None:
        """Fit classes that were seen; the others get probability 0."""
        solver = self._make_solver()
        epochs, tol, step, decay, certify, verbose = self._read_parameters()
        seed, self.strength_ = read_seed(self.random_state), self._strength(data.total_weight)
        for name in ("_streamed", "_stream_step"):  # of a model that is replaced
            vars(self).pop(name, None)
        seen = np.flatnonzero(data.class_totals > 0)
        if len(seen) < 2:
            self._keep(data, Params(np.zeros((data.X.shape[1], len(seen))), np.zeros(len(seen))), seen)
            self.report_ = _trivial_report(data)
            return
        problem = self._make_problem(data, seen, self.strength_)
        if solver is None:
            name = choose_class_solver(problem)
            solver = SOLVERS[name](**_AUTO.get(name, {}))
        key = key_for(solver, seed)
        if type(solver) in EXACT.values():
            options = LoopOptions(tol=tol, max_epochs=epochs or _EXACT_EPOCHS, verbose=verbose)
            solution = solver.run(problem, key=key, options=options)
            params, report = solution.params, _exact_report(problem, solution, data)
        else:
            tuned, seconds = step == "tune" and solver.has_step, 0.0
            schedule = Schedule(epochs or solver.usual_epochs, 1.0 if step == "tune" else step, decay)
            if tuned:
                tuning = tune_step(solver, problem, key=key, schedule=schedule)
                schedule, seconds = replace(schedule, step=tuning.step), tuning.seconds
            start = problem.null_params()
            solution = solver.run(problem, start, key=key, schedule=schedule, verbose=verbose)
            params, overshot = _not_worse(problem, solution)
            params = _centred(params)
            solution = replace(solution, params=params, seconds_run=solution.seconds_run + seconds)
            step = schedule.step if solver.has_step else np.nan
            report = _sampled_report(problem, solver, solution, data, step, tuned, certify, overshot)
        self._keep(data, params, seen)
        self.report_ = report
        if report.status not in (Status.NO_GAIN, Status.NON_FINITE):  # whose advice says more
            if type(solver) not in EXACT.values():
                _warn_of_scales(data.X, report.solver_name)
        if report.converged and self.strength_ > 0:
            given = name_strength(self.strength_, self.regularizer_strength is None)
            warn_if_flat(data.X, params.coef, partial(_residual, data, params, seen), *given)

    def _keep(self, data, params: Params, seen) -> None:
        n_classes = len(data.class_totals)
        self.coef_ = np.zeros((data.X.shape[1], n_classes))
        self.intercept_ = np.full(n_classes, _UNSEEN)
        self.coef_[:, seen] = params.coef
        self.intercept_[seen] = params.intercept

    def _make_problem(self, data: ClassTraining, seen, strength: float) -> SoftmaxProblem:
        pairs, offset = data.pairs, data.offset
        if len(seen) < len(data.class_totals):
            place = np.full(len(data.class_totals), -1)
            place[seen] = np.arange(len(seen))
            pairs = Pairs(pairs.row, place[pairs.label], pairs.weight)
            offset = None if offset is None else offset[:, seen]
        return SoftmaxProblem(data.X, pairs, len(seen), strength, True, offset, precision(data.X.dtype))

    def _make_solver(self, streaming: bool = False):
        given, own = (self.solver_name, self.solver_kwargs), self._get_param_names()
        if self.solver_name == "SAGA":
            raise ValueError(
                'solver_name is "SAGA", which version 0.2 no longer has for models of classes. Use "auto" or '
                '"ConjugateGradients", which is faster, takes sparse features too, and proves how far from the optimum '
                "a fit is."
            )
        if not streaming:
            return read_solver(*given, SOLVERS, parameters=own)
        solver = read_solver(*given, SAMPLING, "partial_fit needs a solver that samples: solver_name", parameters=own)
        return ImplicitSGD(**_AUTO["ImplicitSGD"]) if solver is None else solver

    def _strength(self, total_weight: float = 1) -> float:
        """Strength given, or one over the weights' sum, the number of rows without any: scikit-learn's ``C = 1``."""
        regularizer = "UnRegularized" if self.regularizer is None else self.regularizer
        check_choice("regularizer", regularizer, REGULARIZERS)
        given = self.regularizer_strength
        if regularizer == "UnRegularized":
            if given not in (None, 0):
                raise ValueError(f"regularizer_strength is {given!r} with UnRegularized; leave it out, or use Ridge.")
            return 0.0
        if given is None:
            return 1.0 / total_weight
        number = isinstance(given, numbers.Real | np.ndarray) and np.ndim(given) == 0 and not isinstance(given, bool)
        if not number or not 0 <= given <= sys.float_info.max:
            raise ValueError(
                f"regularizer_strength is {shorten(given)}; a model of classes takes one finite number of at least 0, "
                f"such as 0.1{not_text(given)}."
            )
        return float(given)

    def _read_parameters(self) -> tuple:
        """Epochs, tol, step, decay, certify and verbose, checked."""
        check_real("step_decay", self.step_decay, 1.0, closed=True)
        return (
            None if self.max_epochs is None else read_count("max_epochs", self.max_epochs),
            read_number("tol", self.tol),
            self._read_step(),
            float(self.step_decay),
            read_flag("certify", self.certify),
            read_verbose(self.verbose),
        )

    def _read_step(self):
        if isinstance(self.step, str):
            if self.step != "tune":
                raise ValueError(f'step is {self.step!r}; it must be "tune" or a positive number.')
            return "tune"
        return read_number("step", self.step)

    def _stream(self, data: ClassTraining) -> None:
        """One pass over more rows, from where the model stands."""
        solver, (_, _, step, _, certify, _) = self._make_solver(streaming=True), self._read_parameters()
        before, rows, totals = getattr(self, "_streamed", (0, 0.0, None)), data.total_weight, data.class_totals
        batches, seen, past = before if before[2] is not None else (0, 0.0, np.zeros(len(totals)))
        if len(totals) < 2:
            self._keep(data, Params(np.zeros((data.X.shape[1], 1)), np.zeros(1)), np.arange(1))
            self.report_ = _trivial_report(data)
            return
        self.strength_ = self._strength(seen + rows)
        problem = self._make_problem(data, np.arange(len(totals)), self.strength_)
        key = jax.random.fold_in(key_for(solver, read_seed(self.random_state)), batches)
        tuned = step == "tune"
        if tuned:
            if batches == 0:
                self._stream_step = self._first_stream_step(solver, problem, key)
            step = self._stream_step
        # As if all rows seen were those of one epoch: steps fall as one over their number.
        schedule = Schedule(1, step * rows / (seen + rows), 1.0)
        solution = solver.run(problem, self._stream_start(problem), key=key, schedule=schedule)
        overflowed = solution.status == Status.NON_FINITE
        self.coef_, self.intercept_ = _centred(_not_worse(problem, solution)[0] if overflowed else solution.params)
        self._streamed = batches + 1, seen + rows, past + totals
        kept = replace(solution, params=Params(self.coef_, self.intercept_))
        report = _sampled_report(problem, solver, kept, data, step, tuned, certify)
        # What one batch gained and lets be proved is no verdict on the stream.
        self.report_ = replace(report, status=solution.status, class_totals=past + totals)

    @staticmethod
    def _first_stream_step(solver, problem, key) -> float:
        if problem.n_rows < _TUNABLE_ROWS:
            return untuned_step(solver, problem)
        return tune_step(solver, problem, key=key, schedule=Schedule(1, 1.0, 1.0), epochs=1).step

    def _stream_start(self, problem) -> Params:
        if not hasattr(self, "coef_"):
            return problem.null_params() if problem.n_rows >= _TUNABLE_ROWS else Params(
                np.zeros((problem.n_features, problem.n_classes)), np.zeros(problem.n_classes)
            )  # fmt: skip
        # A class the fit gave no probability gets the least of the others.
        unseen = self._unseen
        least = np.min(self.intercept_[~unseen], initial=0.0)
        return Params(self.coef_, np.where(unseen, least, self.intercept_))

    # -------------------------------------------------------------------------------------- predict

    def _chunks(self, X, offset):
        """Scores of chunks of rows, float64, with the rows' slices."""
        size, unseen = max(1, _SCORES_AT_ONCE // max(1, len(self.intercept_))), self._unseen
        for start in range(0, X.shape[0], size):
            rows = slice(start, min(start + size, X.shape[0]))
            with np.errstate(invalid="ignore"):
                scores = np.asarray(X[rows] @ self.coef_, np.float64) + self.intercept_
                scores = scores if offset is None else scores + offset[rows]
                if unseen.any():  # whatever the offsets and the others' scores
                    scores[:, unseen] = scores[:, ~unseen].max(axis=1, keepdims=True) + _UNSEEN
            yield rows, scores

    @property
    def _unseen(self) -> np.ndarray:
        """Which classes had no rows in the fit, (class,); a stream has given them scores since."""
        return (self.report_.class_totals == 0) & (self.intercept_ == _UNSEEN)

    def _prepare(self, X, offset):
        check_is_fitted(self)
        check_same_rows(X, offset=offset)
        axis, X = time_axis(X), read_features(self, X, reset=False, sparse=True)
        return X, read_offset(offset, X.shape[0], len(self.intercept_), of_classes=True), axis

    def _log_probabilities(self, X, offset) -> np.ndarray:
        out = np.empty((X.shape[0], len(self.intercept_)))
        for rows, scores in self._chunks(X, offset):
            with np.errstate(invalid="ignore"):  # rows with NaN
                out[rows] = log_softmax(scores, axis=1)
        return out

    # ------------------------------------------------------------------------------------------ files

    def _write_state(self, header: dict, arrays: dict) -> None:
        coefficients_to_file(self, header, arrays)
        header["strength"] = self.strength_
        if hasattr(self, "_streamed"):
            *header["stream"], arrays["stream_totals"] = self._streamed
        if hasattr(self, "_stream_step"):
            header["stream_step"] = self._stream_step
        if self.classes_.dtype.kind == "O":
            header["classes"] = [to_json(label, "classes_") for label in self.classes_.tolist()]
        else:
            arrays["classes"] = self.classes_

    def _read_state(self, header: dict, arrays: dict) -> None:
        coefficients_from_file(self, header, arrays)
        self.strength_ = header.get("strength", self._strength())  # a file of version 0.1 has none
        if "classes" in arrays:
            self.classes_ = arrays["classes"]
        else:
            self.classes_ = np.empty(len(header["classes"]), object)
            self.classes_[:] = [from_json(label) for label in header["classes"]]
        if self.coef_.shape[1] != len(self.classes_) or self.intercept_.shape != self.classes_.shape:
            raise IndexError(f"{len(self.classes_)} classes, but coefficients of shape {self.coef_.shape}")
        if "stream_totals" in arrays:
            self._streamed = (*header["stream"], arrays["stream_totals"])
        if "stream_step" in header:
            self._stream_step = header["stream_step"]

    @abstractmethod
    def fit(
        self, X: DataLike, y: DataLike, sample_weight: ArrayLike | None = None, offset: ArrayLike | None = None
    ) -> Self:
        """Fit the model."""

    def __sklearn_tags__(self):
        """Tags: NaN rows are allowed, sparse features too."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


def refuse_nan(scores: np.ndarray, why: str) -> None:
    """Refuse rows whose scores (row, class) are NaN, as their features or offsets are."""
    bad = np.isnan(scores).any(axis=1)
    if bad.any():
        raise ValueError(f"X or offset contains NaN in {int(bad.sum())} rows; {why}")


def _not_worse(problem: SoftmaxProblem, solution) -> tuple[Params, bool]:
    """Parameters of a run, or class frequencies where those are better, and whether they are."""
    null = problem.null_params()
    value, floor = (_estimate_objective(problem, params) for params in (solution.params, null))
    return (solution.params, False) if value <= floor else (null, True)


def _warn_of_scales(X, solver_name: str) -> None:
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


def _residual(data: ClassTraining, params: Params, seen, rows: slice) -> np.ndarray:
    """Compute expected minus observed counts of a slice of rows, each class over its standard deviation."""
    row, label, weight = data.pairs
    counts = scipy.sparse.csr_array((weight, (row, label)), shape=(data.n_rows, len(data.class_totals)))
    counts = counts[rows].toarray()[:, seen]
    scores = data.X[rows] @ params.coef + params.intercept
    if data.offset is not None:
        scores = scores + data.offset[rows][:, seen]
    total, p = counts.sum(axis=1, keepdims=True), softmax(scores, axis=1)
    return (total * p - counts) / np.sqrt(np.mean(total * p * (1 - p), axis=0))


def _centred(params: Params) -> Params:
    """Take away the common shift, which changes no probability and only adds to the ridge."""
    coef, intercept = (np.asarray(a, np.float64) for a in params)
    return Params(coef - coef.mean(axis=1, keepdims=True), intercept - intercept.mean())


def _estimate_objective(problem: SoftmaxProblem, params: Params) -> float:
    """F from as many rows as are quickly seen."""
    return problem.objective(params, _some_rows(problem))


def _some_rows(problem: SoftmaxProblem) -> np.ndarray:
    """As many rows as are quickly seen; always the same ones."""
    n = min(problem.n_rows, max(1, int(_CERTIFIABLE / 50 // problem.n_classes)))
    return np.sort(np.random.default_rng(0).choice(problem.n_rows, n, replace=False))


def _exact_report(problem: SoftmaxProblem, solution: Solution, data: ClassTraining) -> ClassReport:
    solution = solution.only()
    return _report(problem, data, solution, gap_theorem=_THEOREM if solution.gap_is_bound else "")


def _sampled_report(problem, solver, solution, data, step, tuned, certify: bool, overshot=False) -> ClassReport:
    gap, params = None, solution.params
    if certify and problem.n_rows * problem.n_classes <= _CERTIFIABLE:
        gap = problem.certify_gap(params)
    rows = None if gap is not None else _some_rows(problem)
    objective = problem.objective(params, rows) if gap is None else gap.objective
    bounded = gap is not None and np.isfinite(gap.bound)
    status = solution.status
    if not status.is_failure and objective > problem.objective(problem.null_params(), rows) * (1 - _LITTLE):
        status = Status.NO_GAIN
    solution = replace(
        solution, status=status, objective=objective, gap=gap.bound if bounded else np.nan, gap_is_bound=bounded,
        row_evals=min(solution.steps * solver.batch_size, solution.epochs * solver.n_visits(problem)),
    )  # fmt: skip
    steps = {"step": float(step), "step_tuned": tuned, "overshot": overshot}
    report = _report(problem, data, solution, rows, gap_theorem=gap.theorem if bounded else "", **steps)
    if not report.status.is_failure and report.gap_is_bound and report.relative_gap > 1:
        return replace(report, status=Status.NO_USEFUL_BOUND)
    return report


def _report(problem, data: ClassTraining, solution, rows=None, **facts) -> ClassReport:
    """Report of a fit; the objective may be that of some rows only."""
    gap, of = solution.gap, (solution.objective, problem.null_objective)
    frequencies, saturated = data.extreme_losses(rows)
    if solution.gap_is_bound:  # nor does any model lose less than one that is right about every row
        gap = min(gap, of[0] - saturated + _ROUNDING * (1 + abs(of[0])))
    no_gain = null_is_best(solution.status, *of) and data.offset is None
    explained = 0.0 if no_gain else frequencies - of[0] + problem.strength / 2 * float(np.sum(solution.params.coef**2))
    explainable = frequencies - saturated
    return report_of(
        ClassReport,
        solution,
        data,
        gap=gap,
        relative_gap=float(relative_gap(solution.status, gap, *of)),
        null_objective=of[1],
        pseudo_r2=explained / explainable if explainable > _NO_DEVIANCE else np.nan,
        n_features=problem.n_features,
        n_classes=len(data.class_totals),
        **facts,
    )


def _trivial_report(data: ClassTraining) -> ClassReport:
    """Report of a model of one class: it is certain of it."""
    certain = dict.fromkeys(("gap", "relative_gap", "target", "objective", "null_objective"), 0.0)
    return report_of(
        ClassReport,
        Solution(
            params=None, status=Status.CONVERGED, epochs=0, gap_is_bound=True, seconds_run=0.0, seconds_compile=0.0,
            solver_name="none",
        ),
        data, gap_theorem="one class has probability 1", pseudo_r2=np.nan, n_features=data.X.shape[1],
        n_classes=len(data.class_totals), **certain,
    )  # fmt: skip
