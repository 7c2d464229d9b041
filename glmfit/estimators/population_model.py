"""What estimators of populations of neurons share: prediction, scores, simulation, files, the report."""

import jax
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from .. import observations
from ..checks import check_choice, check_positive, check_whole, warn_user
from ..data.features import check_columns, read_exposure, read_features, read_offset
from ..data.times import TimeAxis, check_same_rows, time_axis, wrap
from ..design import as_source
from ..engine.result import LoopOptions
from ..engine.tiles import tiles_of
from ..numerics import ArrayOrTsd, DataLike, PerRow, Seed
from ..status import Status
from .default_strength import ranges_of
from .model import Model
from .parameters import read_verbose
from .report import FitReport, null_is_best, relative_gap, report_of
from .scores import NO_DEVIANCE, score_sums, share_explained, spike_sums
from .streaming import read_scored

PROVED = (Status.CONVERGED, Status.NO_SPIKES)
SILENT_INTERCEPT = -1e4  # rate exactly 0, and finite
_RUNAWAY = 15.0  # change of the linear predictor over the rows by one feature: of the rate, by a factor of e^15
_HELD = 10.0  # nats by which rows hold a coefficient
_CANCELS = 100.0  # effect of a feature over that of all together


class PopulationModel(RegressorMixin, Model):
    """Common part of `PopulationGLM` and `PopulationGLMCV`: everything but the fit."""

    report_class = FitReport

    def _keep(self, problem, solution, data) -> None:
        """Take over the outcome of a fit of the whole population."""
        silent = solution.status == Status.NO_SPIKES
        coef = np.where(silent, 0.0, solution.params.coef)
        intercept = np.where(silent, SILENT_INTERCEPT, solution.params.intercept)
        self.coef_ = coef[:, 0] if data.one_neuron else coef
        self.intercept_ = float(intercept[0]) if data.one_neuron else intercept
        self._neurons = data.neurons
        objectives = solution.objective, solution.null_objective
        penalty, saturated = np.asarray(problem.penalty.value(coef), np.float64), problem.saturated_loss
        null = solution.null_objective - saturated
        explained = 1 - (solution.objective - penalty - saturated) / np.where(null > NO_DEVIANCE, null, np.nan)
        features = getattr(self, "feature_names_in_", range(len(coef)))
        self.report_ = report_of(
            FitReport, solution, data, neuron=data.neuron_names,
            relative_gap=relative_gap(solution.status, solution.gap, *objectives),
            pseudo_r2=np.where(null_is_best(solution.status, *objectives), 0.0, explained),
            row_evals=solution.row_evals * problem.n_counted // problem.n_rows, n_rows=problem.n_counted,
            rank=problem.design_rank, n_features=problem.n_features,
            runaway=_runaway(problem, coef, intercept, data.neuron_names, features) if problem.in_memory else {},
        )  # fmt: skip

    def _read_options(self) -> LoopOptions:
        return LoopOptions(
            tol=check_positive("tol", self.tol),
            max_epochs=check_whole("max_epochs", self.max_epochs),
            verbose=read_verbose(self.verbose),
            max_memory=check_positive("max_memory", self.max_memory),
        )

    def predict(self, X: DataLike, offset: PerRow = None) -> ArrayOrTsd:
        """Compute the expected count per whole bin.

        Parameters
        ----------
        X, offset :
            As in :meth:`fit`; NaN rows are allowed. There is no offset by default, also after a fit with one.

        Returns
        -------
        array or pynapple Tsd / TsdFrame
            Rates (time,) or (time, neuron), NaN where X has a NaN; a pynapple object with the times of X (and the
            columns and metadata y had in :meth:`fit`) when X is one. Times the exposure they are expected counts.
        """
        eta, axis = self._predictor(X, offset)
        rate = observations.from_inverse_link(self.inverse_link_function).rate(eta)
        # A silent neuron has rate 0, not the smallest number.
        rate = np.where(self._silent & ~np.isnan(eta), 0.0, rate)
        return wrap(rate, axis, self._neurons, self.report_.neuron)

    @property
    def _silent(self) -> np.ndarray:
        """Which neurons had no spikes in the fit, (neuron,)."""
        return np.asarray(self.report_.status == Status.NO_SPIKES)

    def _predictor(self, X, offset):
        check_is_fitted(self)
        check_same_rows(X, offset=offset)
        source, axis = as_source(X), time_axis(X)
        with np.errstate(invalid="ignore"):
            if source is None:
                X = read_features(self, X, reset=False)
                eta = np.asarray(X, np.float64) @ self.coef_ + self.intercept_
            else:
                check_columns(self, source, reset=False)
                parts = (np.asarray(source.fetch(rows), np.float64) for rows in tiles_of(len(source)))
                eta = np.concatenate([x @ self.coef_ + self.intercept_ for x in parts])
            if offset is not None:
                offset = read_offset(offset, len(eta), 1 if eta.ndim == 1 else eta.shape[1])
                eta = eta + (offset if eta.ndim == 2 else offset[:, 0])
        return eta, axis

    def score(
        self,
        X: DataLike,
        y: DataLike,
        sample_weight: PerRow = None,
        score_type: str = "D2",
        per_neuron: bool = False,
        offset: PerRow = None,
        exposure: PerRow = None,
    ) -> float | np.ndarray:
        """Score the predictions of counts.

        Parameters
        ----------
        X, y, sample_weight, offset, exposure :
            As in :meth:`fit`; rows with NaN are left out.
        score_type : {"D2", "pseudo-r2-McFadden", "log-likelihood"}
            D2: share of the Poisson deviance explained over the best constant rate of these rows (with an offset, over
            the best intercept). McFadden: 1 - log-likelihood / log-likelihood of that constant. log-likelihood: mean
            per bin (by weight), with the log-factorial.
        per_neuron : bool
            Return one score per neuron instead of one over the population (deviances and log-likelihoods are
            summed over neurons before the ratio; for the log-likelihood the mean over neurons is returned).

        Returns
        -------
        float or numpy.ndarray of shape (neuron,)
            Larger is better; D2 and McFadden are at most 1, and nan for a neuron without spikes in these rows.

        Warns
        -----
        UserWarning
            If neurons without spikes in the fit have some in these rows: their rate is 0, so that their score is -inf,
            and they are left out of that of the population.
        """
        check_choice("score_type", score_type, ("D2", "pseudo-r2-McFadden", "log-likelihood"))
        check_is_fitted(self)
        data = read_scored(self, X, y, sample_weight, offset, exposure)
        observation, silent = observations.from_inverse_link(self.inverse_link_function), self._silent
        model, null = score_sums(observation, data, *self._matrix(), score_type, silent)
        # A neuron without spikes in the fit has rate 0: silence costs it nothing, any spike infinitely much.
        impossible = silent & (spike_sums(data) > 0) if silent.any() else silent
        if impossible.any():
            model = np.where(impossible, np.inf if score_type == "D2" else -np.inf, model)
            if not per_neuron:
                names = [str(self.report_.neuron[n]) for n in np.flatnonzero(impossible)]
                shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                warn_user(
                    f"{len(names)} of {len(impossible)} neurons had no spikes in the fit but have some in these rows "
                    f"({shown}): their rate is 0 and their score -inf. They are left out of the score of the "
                    "population."
                )
                model, null = (a if a is None else a[~impossible] for a in (model, null))
        if score_type == "log-likelihood":
            return model if per_neuron else float(model.mean()) if len(model) else np.nan
        if not per_neuron:
            model, null = model.sum(), null.sum()
        value = share_explained(model, null)
        return value if per_neuron else float(value)

    def simulate(
        self, X: DataLike, random_state: Seed = None, offset: PerRow = None, exposure: PerRow = None
    ) -> ArrayOrTsd:
        """Draw spike counts from the fitted model.

        Parameters
        ----------
        X, offset, exposure :
            As in :meth:`fit`; NaN rows are allowed.
        random_state : optional
            Seed as in the constructor; None takes the constructor's.

        Returns
        -------
        array or pynapple Tsd / TsdFrame
            Counts (time,) or (time, neuron), float, NaN where X or offset has a NaN; the same seed draws the same
            counts.
        """
        check_same_rows(X, exposure=exposure)
        eta, axis = self._predictor(X, offset)
        unknown = np.isnan(eta)
        eta = np.where(unknown | self._silent, SILENT_INTERCEPT, eta)
        observation = observations.from_inverse_link(self.inverse_link_function)
        exposure = read_exposure(exposure, len(eta))
        if exposure is not None:
            expected = (np.asarray(observation.rate(eta), np.float64).T * exposure).T
            eta = np.where(expected > 0, observation.intercept(expected), SILENT_INTERCEPT)
        key = jax.random.key(self._seed(random_state))
        counts = np.asarray(observation.sample(key, eta.astype(np.float32)), np.float64)
        return wrap(np.where(unknown, np.nan, counts), axis, self._neurons, self.report_.neuron)

    def _matrix(self):
        return (self.coef_.reshape(self.n_features_in_, -1), np.atleast_1d(self.intercept_))

    def _write_state(self, header: dict, arrays: dict) -> None:
        columns = getattr(self._neurons, "columns", None)
        columns = [] if columns is None else [c.item() if isinstance(c, np.generic) else c for c in columns]
        if columns and all(isinstance(c, int | float | str) for c in columns):
            header["columns"] = columns

    def _read_state(self, header: dict, arrays: dict) -> None:
        if not len(self.report_.neuron) == len(self.report_.status) == np.size(self.intercept_):
            raise ValueError(f"{len(self.report_.neuron)} neurons, but intercepts of {np.size(self.intercept_)}")
        if self.coef_.ndim == 1:
            self.intercept_ = float(self.intercept_)
        columns = header.get("columns")
        self._neurons = None if columns is None else TimeAxis(np.empty(0), None, np.asarray(columns))

    def __sklearn_tags__(self):
        """Tags: NaN rows are allowed, y is non-negative and may have many columns."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.multi_output = tags.target_tags.single_output = tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True
        return tags


def _runaway(problem, coef, intercept, neurons, features) -> dict[str, np.ndarray]:
    """Coefficients with a large effect on the linear predictor that the rows hardly determine.

    These are few nats from 0, all else being equal, or their effect nearly cancels with that of others.
    """
    X = problem.X
    effect = np.abs(coef) * ranges_of(X, None)[:, None]
    some = np.flatnonzero((effect > _RUNAWAY).any(axis=0))
    if not len(some):
        return {}
    eta = np.asarray(X @ coef[:, some].astype(X.dtype), np.float64) + intercept[some]
    if problem.offset is not None:
        eta += problem.offset[:, some if problem.offset.shape[1] > 1 else [0]]
    with np.errstate(over="ignore", invalid="ignore"):
        curvature = problem.observation.curvature(problem.Y[:, some].astype(np.float64), eta)
        curvature = curvature if problem.weights is None else curvature * problem.weights[:, None]
        centred = X - np.asarray(X.mean(axis=0), np.float64)
        mean = centred.T @ curvature / np.maximum(curvature.sum(axis=0), np.finfo(float).tiny)
        held = (np.square(centred).T @ curvature - curvature.sum(axis=0) * mean**2) * coef[:, some] ** 2
    loose = (held < _HELD) | (effect[:, some] > _CANCELS * np.ptp(eta, axis=0))
    feature, place = np.nonzero((effect[:, some] > _RUNAWAY) & loose)
    if not len(feature):
        return {}
    neuron = some[place]
    return {
        "neuron": np.array([str(neurons[n]) for n in neuron]),
        "feature": np.array([str(features[j]) for j in feature]),
        "coef": coef[feature, neuron],
        "n_rows": np.count_nonzero(X != np.median(X, axis=0), axis=0)[feature],
    }
