"""Common parts of softmax and multinomial estimators: parameters, fits and streams, scores of rows, files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax
from sklearn.utils.validation import check_is_fitted

from .. import penalties
from ..checks import check_choice, check_flag, check_positive, check_real, check_whole, shorten
from ..data.classes import ClassTraining
from ..data.features import read_features, read_offset, warn_of_constant
from ..data.times import TimeAxis, check_same_rows, time_axis
from ..engine import ProximalNewton
from ..engine.problem import Params
from ..numerics import DataLike, PerRow, Seed
from ..penalties import Penalty
from ..penalties.by_name import BY_NAME
from ..status import Status
from ..stochastic import DoubleSum, Pairs, Schedule, SoftmaxProblem, double_sum, tune_step, untuned_step
from . import class_fit as fits
from .default_strength import name_strength, warn_if_flat
from .model import Model, WholeFit, from_json, rows_of_coefficients, to_json
from .model_reports import ClassReport
from .parameters import check_ratio, key_for, precision, read_pair, read_solver, read_strengths, read_verbose

if TYPE_CHECKING:
    import pandas as pd

_UNSEEN = -1e4  # score of a class that was never seen: probability exactly 0, and finite
_TUNABLE_ROWS = 100


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
        fit_intercept: bool = True,
        early_stopping: bool = False,
        groups: ArrayLike | Mapping[str, Any] | None = None,
        l1_ratio: float = 0.5,
    ): ...

    def fit(
        self,
        X: DataLike,
        y: DataLike,
        sample_weight: PerRow = None,
        offset: PerRow = None,
        init_params: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Fit the coefficients of all classes.

        Parameters
        ----------
        X : array-like or SciPy sparse, (row, feature)
            Features: NumPy, JAX, lists, pandas, pynapple TsdFrame, or sparse (kept sparse).
        y : array-like
            For `SoftmaxGLM` labels, (row,): integers, strings, or anything hashable, or a pynapple Tsd. For
            `MultinomialGLM` counts >= 0, (row, category), fractions included, also as SciPy sparse or a pynapple
            TsdFrame. Times of pynapple objects must be those of X.
        sample_weight : array-like, (row,), optional
            Weight of each row, >= 0. The loss is divided by their sum, so a common factor changes only the default
            strength, which is one over that sum, as with scikit-learn's ``C = 1``.
        offset : array-like, (row, class), optional
            Added to the scores, classes in the order of ``classes_``; a row with a NaN is dropped.
        init_params : tuple of array, optional
            Coefficients and intercepts to start from, as ``(model.coef_, model.intercept_)`` of a fit to the same
            classes; for solvers that do not sample. If they are worse than class frequencies, or not finite, the fit
            starts at these. It ends as near to the optimum, and as proved, as from any other start.

        Warns
        -----
        ConvergenceWarning
            If an exact solver did not converge, numbers overflowed, or a sampling solver gained nothing or has no
            useful bound.
        UserWarning
            If there is one class only, or a category without counts; if an exact fit converged and the penalty leaves
            next to nothing of the coefficients although the features are informative; with a sampling solver, if X has
            columns far from 0 or of very different scales.
        """
        with WholeFit(self):
            data, y = self._read(X, y, sample_weight, offset, reset=True)
            self._warn_of_columns(data)
            self._fit(data, init_params)
            self._warn_of_classes(data, y)
        return self

    @abstractmethod
    def _read(self, X, y, sample_weight, offset, reset: bool, **more) -> tuple[ClassTraining, np.ndarray]:
        """Check data, of a fit or with the classes of the fit; return the rows that count, and y as it was read."""

    @abstractmethod
    def _warn_of_classes(self, data: ClassTraining, y: np.ndarray) -> None:
        """Warn of classes about which nothing was learnt."""

    def _fit(self, data: ClassTraining, init_params: tuple[ArrayLike, ArrayLike] | None = None) -> None:
        """Fit classes that were seen; the others get probability 0."""
        solver = self._make_solver()
        how = self._read_parameters()
        seed, self.strength_ = self._seed(), self._strength(data.total_weight)
        vars(self).pop("_streamed", None)  # of a model that is replaced
        seen = data.class_totals > 0
        given = None if init_params is None else read_pair(init_params, (data.X.shape[1], len(seen)), (len(seen),))
        problem = self._make_problem(data, seen)
        if problem.n_classes < 2:
            self._keep(*fits.judge_certain(problem, data), seen)
            return
        solver = fits.auto_solver(problem) if solver is None else solver
        self._check_solver(solver, problem)
        key, exact = key_for(solver, seed), type(solver) in fits.EXACT.values()
        if given is not None and not exact:
            raise ValueError(
                f"init_params is given, and the solver is {type(solver).__name__}, which samples; it needs one of "
                f"{', '.join(map(repr, fits.EXACT))}, or None."
            )
        if exact:
            options = fits.exact_options(problem, how.tol, how.epochs, how.verbose)
            start = None if given is None else fits.no_worse_than_null(problem, Params(*(a[..., seen] for a in given)))
            solution = solver.run(problem, start, key=key, options=options).only()
            params, report = fits.judge_exact(problem, solution, data)
        else:
            solution, steps = fits.run_sampled(problem, solver, key, how)
            params, report = fits.judge_sampled(problem, solver, solution, data, how.certify, **steps)
        self._keep(params, report, seen)
        raw = not exact and getattr(solver, "basis", "raw") == "raw"
        if raw and report.status not in (Status.NO_GAIN, Status.NON_FINITE):  # whose advice says more
            fits.warn_of_scales(data.X, report.solver_name)
        if report.converged and self.strength_ > 0:
            given = name_strength(self.strength_, self.regularizer_strength is None)
            warn_if_flat(data.X, params.coef, partial(fits.class_residual, problem, params), *given)

    def _keep(self, params: Params, report: ClassReport, seen: np.ndarray) -> None:
        self.coef_ = np.zeros((len(params.coef), len(seen)))
        self.intercept_ = np.full(len(seen), _UNSEEN)
        self.coef_[:, seen], self.intercept_[seen] = params
        self.report_ = report

    def _warn_of_columns(self, data: ClassTraining) -> None:
        """Warn of constant columns; without intercepts such a column may be meant as one."""
        if self.fit_intercept:
            warn_of_constant(data.X)

    def _make_problem(self, data: ClassTraining, seen: np.ndarray) -> SoftmaxProblem:
        """Lay out the classes that were seen, bool (class,)."""
        pairs, offset = data.pairs, data.offset
        if not seen.all():
            pairs = Pairs(pairs.row, (np.cumsum(seen) - 1)[pairs.label], pairs.weight)
            offset = None if offset is None else offset[:, seen]
        free = check_flag("fit_intercept", self.fit_intercept)
        ridge, penalty = self._penalty(data.X.shape[1], self.strength_)
        return SoftmaxProblem(data.X, pairs, seen.sum(), ridge, free, offset, precision(data.X.dtype), penalty)

    def _penalty(self, n_features: int, strength: float) -> tuple[float, Penalty | None]:
        """Return the strength of the ridge, and a penalty that has kinks."""
        check_ratio(self.l1_ratio)
        given = (strength, self.l1_ratio) if self.regularizer == "ElasticNet" else strength
        names = getattr(self, "feature_names_in_", None)
        penalty = penalties.make(self.regularizer, given, n_features, 1, self.groups, names)
        return float(penalty.ridge_strength), None if penalty.smooth or not strength else penalty

    def _check_solver(self, solver, problem: SoftmaxProblem) -> None:
        if not problem.penalty.smooth and not isinstance(solver, ProximalNewton):
            raise ValueError(
                f"regularizer is {self.regularizer!r}, which has kinks, and the solver is {type(solver).__name__}; it "
                'needs solver_name="auto" or "ProximalNewton".'
            )

    def _make_solver(self, allowed: Mapping[str, type] = fits.SOLVERS, what: str = "solver_name"):
        return read_solver(self.solver_name, self.solver_kwargs, allowed, self._get_param_names(), what)

    def _strength(self, total_weight: float = 1) -> float:
        """Return the strength, by default one over the sum of weights or number of rows, scikit-learn's ``C = 1``."""
        regularizer = "UnRegularized" if self.regularizer is None else self.regularizer
        check_choice("regularizer", regularizer, BY_NAME)
        given = self.regularizer_strength
        if regularizer == "UnRegularized":
            if given not in (None, 0):
                raise ValueError(f"regularizer_strength is {given!r} with UnRegularized; omit it, or use Ridge.")
            return 0.0
        if given is None:
            return 1.0 / total_weight
        needs = "one finite number of at least 0, such as 0.1"
        return float(read_strengths("regularizer_strength", given, needs, 0)[0])

    def _read_parameters(self) -> fits.Settings:
        check_real("step_decay", self.step_decay, 1.0, closed=True)
        return fits.Settings(
            None if self.max_epochs is None else check_whole("max_epochs", self.max_epochs),
            check_positive("tol", self.tol),
            self._read_step(),
            float(self.step_decay),
            check_flag("certify", self.certify),
            check_flag("early_stopping", self.early_stopping),
            read_verbose(self.verbose),
        )

    def _read_step(self) -> float | None:
        if not isinstance(self.step, str):
            return check_positive("step", self.step)
        if self.step != "tune":
            raise ValueError(f'step is {self.step!r}; it must be "tune" or a positive number.')
        return None

    def _stream(self, data: ClassTraining) -> None:
        """Make one pass over more rows, from the current coefficients."""
        solver = self._make_solver(fits.SAMPLING, "partial_fit needs a solver that samples: solver_name")
        solver = fits.auto_solver() if solver is None else solver
        if (self.solver_kwargs or {}).get("basis") == "spectral":
            raise ValueError('basis is "spectral" with partial_fit, which does not know the rows to come; use "raw".')
        if self.regularizer not in (None, "UnRegularized", "Ridge"):
            raise ValueError(f"regularizer is {self.regularizer!r}; partial_fit takes a ridge or no penalty.")
        solver = replace(solver, basis="raw")
        how = self._read_parameters()
        rows, totals = data.total_weight, data.class_totals
        batches, before, past, tuned_step = getattr(self, "_streamed", (0, 0.0, np.zeros(len(totals)), None))
        self.strength_, everything = self._strength(before + rows), np.ones(len(totals), bool)
        problem = self._make_problem(data, everything)
        if problem.n_classes < 2:
            self._keep(*fits.judge_certain(problem, data), everything)
            return
        key = jax.random.fold_in(key_for(solver, self._seed()), batches)
        step, tuned, many = how.step, how.step is None, problem.n_rows >= _TUNABLE_ROWS
        if tuned:
            if tuned_step is None:
                trial = {"key": key, "schedule": Schedule(1, 1.0, 1.0), "epochs": 1, "judge": "held-out"}
                tuned_step = tune_step(solver, problem, **trial).step if many else untuned_step(solver, problem)
            step = tuned_step
        start = problem.null_params()
        if not many:  # too few rows for frequencies
            start = Params(start.coef, np.zeros_like(start.intercept))
        if hasattr(self, "coef_"):  # a class the fit gave no probability gets the least of the others
            least = np.min(self.intercept_[~self._unseen], initial=0.0)
            start = Params(self.coef_, np.where(self._unseen, least, self.intercept_))
        # As if all rows seen were those of one epoch: steps fall as one over their number.
        schedule = Schedule(1, step * rows / (before + rows), 1.0)
        solution = solver.run(problem, start, key=key, schedule=schedule)
        finite, steps = solution.status != Status.NON_FINITE, {"step": step, "step_tuned": tuned}
        params, report = fits.judge_sampled(problem, solver, solution, data, how.certify, keep=finite, **steps)
        self._streamed = batches + 1, before + rows, past + totals, tuned_step
        # Gain and proof of one batch are no verdict on the stream.
        self._keep(params, replace(report, status=solution.status, class_totals=past + totals), everything)

    def double_sum(
        self,
        X: DataLike,
        y: DataLike,
        auxiliary: ArrayLike | None = None,
        alpha: float = 0.0,
        sample_weight: PerRow = None,
        offset: PerRow = None,
    ) -> DoubleSum:
        """Evaluate the sum over rows and classes that sampling solvers minimise, at the coefficients of the fit.

        Parameters
        ----------
        X, y, sample_weight, offset :
            As in :meth:`fit`.
        auxiliary, alpha :
            As in :func:`glmfit.stochastic.double_sum`; by default the best auxiliary variables, at which it is F.

        Returns
        -------
        DoubleSum
            Value, auxiliary variables and gradients; rows with a NaN are dropped.

        Raises
        ------
        ValueError
            If y has classes without rows in the fit.
        """
        check_is_fitted(self)
        if self.regularizer not in (None, "UnRegularized", "Ridge"):
            raise ValueError(f"regularizer is {self.regularizer!r}; the double sum has a ridge or no penalty.")
        data, _ = self._read(X, y, sample_weight, offset, reset=False)
        self._refuse_unseen(data)
        seen = ~self._unseen
        params = Params(self.coef_[:, seen], self.intercept_[seen])
        return double_sum(self._make_problem(data, seen), params, auxiliary, alpha)

    def coef_frame(self) -> pd.DataFrame:
        """Return the coefficients as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            A row per feature, named as the columns of X or numbered, and the intercept last; a column per class.

        Raises
        ------
        NotFittedError
            Before a fit.
        """
        import pandas as pd

        check_is_fitted(self)
        columns = pd.Index(self.classes_.tolist(), name="class", tupleize_cols=False)
        return pd.DataFrame(np.vstack([self.coef_, self.intercept_]), rows_of_coefficients(self), columns)

    def _prepare(self, X, offset):
        check_is_fitted(self)
        check_same_rows(X, offset=offset)
        axis, X = time_axis(X), read_features(self, X, reset=False, sparse=True)
        return X, read_offset(offset, X.shape[0], len(self.intercept_), of_classes=True), axis

    def _tiles(self, X, offset):
        """Scores of tiles of rows, float64, with the rows' slices."""
        unseen = self._unseen
        for rows, scores in fits.tiles_of_scores(X, offset, self.coef_, self.intercept_):
            if unseen.any():  # whatever the offsets and the others' scores
                with np.errstate(invalid="ignore"):
                    scores[:, unseen] = scores[:, ~unseen].max(axis=1, keepdims=True) + _UNSEEN
            yield rows, scores

    def _of_scores(self, function: Callable, X, offset) -> tuple[np.ndarray, TimeAxis | None]:
        """Compute a function of the scores of every row, (row, ...); return it with the times of the rows."""
        X, offset, axis = self._prepare(X, offset)
        out = None
        for rows, scores in self._tiles(X, offset):
            with np.errstate(invalid="ignore"):  # rows with NaN
                part = function(scores)
            out = np.empty((X.shape[0], *part.shape[1:]), part.dtype) if out is None else out
            out[rows] = part
        return out, axis

    @property
    def _unseen(self) -> np.ndarray:
        """Which classes had no rows in the fit, (class,); a stream has given them scores since."""
        return (self.report_.class_totals == 0) & (self.intercept_ == _UNSEEN)

    def _refuse_unseen(self, data: ClassTraining) -> None:
        """Raise if there are rows of classes that have probability 0."""
        there = self._unseen & (data.class_totals > 0)
        if there.any():
            raise ValueError(
                f"y has rows or counts of {shorten(self.classes_[there].tolist())}, which had none in the fit, so "
                "their probability is 0. Drop them, or fit with rows of them that have a weight."
            )

    def _write_state(self, header: dict, arrays: dict) -> None:
        header["strength"] = self.strength_
        if hasattr(self, "_streamed"):
            *header["stream"], arrays["stream_totals"], header["stream_step"] = self._streamed
        if self.classes_.dtype.kind == "O":
            header["classes"] = [to_json(label, "classes_") for label in self.classes_.tolist()]
        else:
            arrays["classes"] = self.classes_

    def _read_state(self, header: dict, arrays: dict) -> None:
        self.strength_ = header.get("strength", self._strength())  # a file of version 0.1 has none
        if "classes" in arrays:
            self.classes_ = arrays["classes"]
        else:
            self.classes_ = np.empty(len(header["classes"]), object)
            self.classes_[:] = [from_json(label) for label in header["classes"]]
        if self.intercept_.shape != self.classes_.shape:
            raise IndexError(f"{len(self.classes_)} classes, but coefficients of shape {self.coef_.shape}")
        if "stream_totals" in arrays:
            self._streamed = (*header["stream"], arrays["stream_totals"], header.get("stream_step"))

    def __sklearn_tags__(self):
        """Tags: NaN rows are allowed, sparse features too."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        return tags


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Compute the probability of every class, (row, class); NaN where scores are."""
    return np.exp(log_softmax(scores, axis=1))


def known(scores: np.ndarray) -> np.ndarray:
    """Return scores (row, class) unchanged; raise ValueError if the features or offsets make some NaN."""
    n_unknown = int(np.isnan(scores).any(axis=1).sum())
    if n_unknown:
        raise ValueError(
            f"X or offset contains NaN in {n_unknown} rows; no label can be given there. Drop them, or use "
            "predict_proba, which returns NaN."
        )
    return scores
