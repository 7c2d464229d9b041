"""Common parts of estimators of populations of neurons: prediction, scores, simulation, files, the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from .. import observations
from ..checks import check_choice, check_flag, check_positive, check_real, check_whole, warn_user
from ..data import counts as door
from ..data.features import check_columns, read_features, read_offset, read_response_weights, warn_of_codes
from ..data.times import TimeAxis, check_same_rows, time_axis, wrap
from ..design import as_source
from ..engine.passes import predictor
from ..engine.result import LoopOptions
from ..engine.tiles import over_tiles, tiles_of
from ..numerics import ArrayOrTsd, DataLike, PerRow, Seed
from ..observations import Observation
from ..status import Status
from ..threads import one_thread_each
from .dispersion import pearson, scale_of
from .model import Model, rows_of_coefficients
from .parameters import read_verbose
from .report import FitReport, null_is_best, relative_gap, report_of
from .scores import NO_DEVIANCE, score_sums, share_explained, spike_sums
from .streaming import read_scored

if TYPE_CHECKING:
    import pandas as pd

PROVED = (Status.CONVERGED, Status.NO_SPIKES, Status.ALL_ONES)
NO_SLOPE = (Status.NO_SPIKES, Status.ALL_ONES)
SILENT_INTERCEPT = -1e4  # rate exactly 0, and finite
_END_INTERCEPTS = SILENT_INTERCEPT, -SILENT_INTERCEPT
_RUNAWAY = 15.0  # change of the linear predictor over the rows by one feature: of the rate, by a factor of e^15
_HELD = 10.0  # nats by which rows hold a coefficient
_CANCELS = 100.0  # effect of a feature over that of all together


def at_ends(status, coef, intercept) -> tuple[np.ndarray, np.ndarray]:
    """Set coefficients (..., feature, neuron) and intercepts: nan without data, a limit where there is no optimum."""
    unknown, limits = status == Status.NO_DATA, (status == Status.NO_SPIKES, status == Status.ALL_ONES)
    none = np.expand_dims(np.isin(status, NO_SLOPE), -2)
    coef = np.where(np.expand_dims(unknown, -2), np.nan, np.where(none, 0.0, coef))
    return coef, np.select([*limits, unknown], [*_END_INTERCEPTS, np.nan], intercept)


class PopulationModel(RegressorMixin, Model):
    """Common part of `PopulationGLM` and `PopulationGLMCV`: everything but the fit."""

    report_class = FitReport

    def _family(self) -> Observation:
        """Observation model, at any dispersion."""
        return observations.find(self.observation_model, self.inverse_link_function)

    def _observation(self) -> Observation:
        """Observation model at the dispersion of the fit."""
        family = self._family()
        return family.with_dispersion(self.dispersion_) if hasattr(self, "dispersion_") else family

    @one_thread_each()  # threads of BLAS, once woken, would take time from the next fit
    def _keep(self, problem, solution, data, observation, form) -> None:
        """Store the outcome of a fit of the whole population, of a problem in standard form."""
        penalty, saturated = np.asarray(problem.penalty.value(solution.params.coef), np.float64), problem.saturated_loss
        null = solution.null_objective - saturated
        explained = 1 - (solution.objective - penalty - saturated) / np.where(null > NO_DEVIANCE, null, np.nan)
        n_used = solution.row_evals * problem.n_counted // problem.n_rows
        solution = form.solution(solution)
        status = solution.status
        unknown = status == Status.NO_DATA
        coef, intercept = at_ends(status, *solution.params)
        self.coef_ = coef[:, 0] if data.one_neuron else coef
        self.intercept_ = float(intercept[0]) if data.one_neuron else intercept
        self._neurons = data.neurons
        objectives = solution.objective / form.scale, solution.null_objective / form.scale  # in nats
        if observation.has_scale:
            loss = solution.objective - penalty * form.unit
            observation = observation.with_dispersion(scale_of(problem, data, observation, solution.params, loss))
        if hasattr(observation, "dispersion"):
            self.dispersion_ = float(observation.dispersion[0]) if data.one_neuron else observation.dispersion
        elif hasattr(self, "dispersion_"):
            del self.dispersion_
        spread, refuted = pearson(problem, data, observation, solution.params, status)
        features = getattr(self, "feature_names_in_", range(len(coef)))
        if problem.in_memory:
            warn_of_codes(problem.X, problem.weights, problem.ranges, features)
        self.report_ = report_of(
            FitReport, solution, data, neuron=data.neuron_names,
            relative_gap=relative_gap(status, solution.gap / form.scale, *objectives),
            pseudo_r2=np.where(unknown, np.nan, np.where(null_is_best(status, *objectives), 0.0, explained)),
            row_evals=n_used, n_rows=problem.n_counted, rank=problem.design_rank, n_features=problem.n_features,
            runaway=_runaway(problem, coef, intercept, data.neuron_names, features) if problem.in_memory else {},
            observation_model=self.observation_model, dispersion=spread, is_overdispersed=refuted,
        )  # fmt: skip

    def _read_options(self) -> LoopOptions:
        return LoopOptions(
            tol=check_positive("tol", self.tol),
            max_epochs=check_whole("max_epochs", self.max_epochs),
            verbose=read_verbose(self.verbose),
            max_memory=check_positive("max_memory", self.max_memory),
        )

    def predict(self, X: DataLike, offset: PerRow = None) -> ArrayOrTsd:
        """Compute the expected response: the expected count per whole bin, or trial.

        Parameters
        ----------
        X, offset :
            As in :meth:`fit`; NaN rows are allowed. By default there is no offset, even after a fit with one.

        Returns
        -------
        array or pynapple Tsd / TsdFrame
            Means (time,) or (time, neuron), NaN where X has a NaN; a pynapple object with the times of X (and the
            columns and metadata y had in :meth:`fit`) if X is one. Multiplied by the exposure they are expected counts.
        """
        eta, axis = self._predictor(X, offset)
        return wrap(self._mean(eta), axis, self._neurons, self.report_.neuron)

    def _mean(self, eta: np.ndarray) -> np.ndarray:
        """Return the means at some predictors; a silent neuron has rate 0, not the smallest number."""
        return np.where(self._silent & ~np.isnan(eta), 0.0, self._observation().mean(eta))

    @property
    def _silent(self) -> np.ndarray:
        """Whether each neuron had no spikes in the fit, (neuron,)."""
        return np.asarray(self.report_.status == Status.NO_SPIKES)

    def _predictor(self, X, offset):
        check_is_fitted(self)
        check_same_rows(X, offset=offset)
        source, axis = as_source(X), time_axis(X)
        with np.errstate(invalid="ignore"):
            if source is None:
                X = read_features(self, X, reset=False)
                eta = predictor(X, self.coef_, self.intercept_)
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
        epochs: Mapping[Any, Any] | None = None,
    ) -> float | np.ndarray:
        """Score the predictions of counts, or other responses.

        Parameters
        ----------
        X, y, sample_weight, offset, exposure, epochs :
            As in :meth:`fit`; rows with NaN in X are dropped, and bins with NaN in y for that neuron.
        score_type : {"D2", "pseudo-r2-McFadden", "log-likelihood"}
            D2: share of the deviance explained over the best constant mean of these rows (with an offset, over the best
            intercept); of Gaussian responses this is R2. McFadden: 1 - log-likelihood / log-likelihood of that constant
            at the same dispersion. log-likelihood: mean per bin (by weight), with the log-factorial.
        per_neuron : bool
            Return one score per neuron instead of one over the population (deviances and log-likelihoods are
            summed over neurons before the ratio; for the log-likelihood the mean over neurons is returned).

        Returns
        -------
        float or numpy.ndarray of shape (neuron,)
            Larger is better; D2 and McFadden are at most 1, and nan for a neuron without spikes in these rows. A neuron
            whose bins are all masked, here or in the fit, has nan, and is excluded from the score of the population.

        Warns
        -----
        UserWarning
            If neurons without spikes in the fit have some in these rows: their rate is 0, so their score is -inf,
            and they are excluded from that of the population.
        """
        check_choice("score_type", score_type, ("D2", "pseudo-r2-McFadden", "log-likelihood"))
        check_flag("per_neuron", per_neuron)
        check_is_fitted(self)
        data = read_scored(self, X, y, sample_weight, offset, exposure, epochs)
        observation, silent = self._observation(), self._silent
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
                    f"({shown}): their rate is 0 and their score -inf. They are excluded from the score of the "
                    "population."
                )
                model, null = (a if a is None else a[~impossible] for a in (model, null))
        known = ~np.isnan(model)
        if score_type == "log-likelihood":
            return model if per_neuron else float(model[known].mean()) if known.any() else np.nan
        if not per_neuron:
            model, null = model[known].sum(), null[known].sum()
        value = share_explained(model, null)
        return value if per_neuron else float(value)

    def simulate(
        self, X: DataLike, random_state: Seed = None, offset: PerRow = None, exposure: PerRow = None
    ) -> ArrayOrTsd:
        """Draw spike counts, or other responses, from the fitted model.

        Parameters
        ----------
        X, offset, exposure :
            As in :meth:`fit`; NaN rows are allowed.
        random_state : optional
            Seed as in the constructor; None takes the constructor's.

        Returns
        -------
        array or pynapple Tsd / TsdFrame
            Responses (time,) or (time, neuron), float, NaN where X or offset has a NaN; the same seed draws the same.
        """
        exposed = self._exposed(X, offset, exposure)
        key = jax.random.key(self._seed(random_state))
        return self._responses(partial(self._observation().draw, key), *exposed)

    def predict_interval(
        self, X: DataLike, level: float = 0.95, offset: PerRow = None, exposure: PerRow = None
    ) -> tuple[ArrayOrTsd, ArrayOrTsd]:
        """Compute an interval that contains a response with at least a given probability, if the model is right.

        Parameters
        ----------
        X, offset, exposure :
            As in :meth:`fit`; NaN rows are allowed.
        level : float
            The probability, in (0, 1).

        Returns
        -------
        low, high : array or pynapple Tsd / TsdFrame
            Quantiles (1 - level) / 2 and (1 + level) / 2 of the response at its predicted mean, (time,) or (time,
            neuron); integers for counts. They do not include the uncertainty of the coefficients.
        """
        check_real("level", level, 1.0)
        exposed, quantile = self._exposed(X, offset, exposure), self._observation().quantile
        low, high = (self._responses(partial(quantile, q), *exposed) for q in ((1 - level) / 2, (1 + level) / 2))
        return low, high

    def _responses(self, function: Callable, eta: np.ndarray, exposure, axis: TimeAxis | None) -> ArrayOrTsd:
        """Return what a function computes from predictors and exposures; NaN where a predictor is."""
        unknown = np.isnan(eta)
        values = function(np.where(unknown | self._silent, SILENT_INTERCEPT, eta), exposure)
        return wrap(np.where(unknown, np.nan, values), axis, self._neurons, self.report_.neuron)

    def residuals(
        self,
        X: DataLike,
        y: DataLike,
        kind: str = "pearson",
        offset: PerRow = None,
        exposure: PerRow = None,
        epochs: Mapping[Any, Any] | None = None,
    ) -> ArrayOrTsd:
        """Compute how far responses are from their predicted means.

        Parameters
        ----------
        X, y, offset, exposure, epochs :
            As in :meth:`fit`.
        kind : {"pearson", "deviance", "response"}
            Difference over the standard deviation of the model; signed root of the unit deviance; the difference.

        Returns
        -------
        array or pynapple Tsd / TsdFrame
            (time,) or (time, neuron), as y, NaN where X, y or offset has a NaN and in bins that are masked.
        """
        check_choice("kind", kind, ("pearson", "deviance", "response"))
        Y, eta, over, axis = self._observed(X, y, offset, exposure, epochs)
        observation = self._observation()
        with np.errstate(invalid="ignore", divide="ignore"):
            difference = Y - over * self._mean(eta)
            if kind == "pearson":
                difference = difference / np.sqrt(over * observation.variance(eta))
            elif kind == "deviance":
                unit = over * observation.deviance(np.where(np.isnan(Y), observation.neutral, Y / over), eta)
                difference = np.sign(difference) * np.sqrt(unit)
        return wrap(difference, axis, self._neurons, self.report_.neuron)

    def _observed(self, X, y, offset, exposure, epochs):
        """Return responses, NaN where masked, their predictors, the exposure as in `_exposed`, and the axis."""
        eta, over, axis = self._exposed(X, offset, exposure)
        data = door.read_recording(self, X, y, None, offset, exposure, epochs, reset=False)
        Y = np.asarray(data.Y[:], np.float64)
        Y = Y if data.own is None else np.where(data.own, Y, np.nan)
        return Y[:, 0] if eta.ndim == 1 else Y, eta, over, axis or data.neurons

    def _exposed(self, X, offset, exposure):
        """Return the linear predictor, the exposure in a matching shape (1 without one), and the axis of X."""
        check_same_rows(X, exposure=exposure)
        observation = self._family()
        door.check_exposure(exposure, observation, self.observation_model)
        eta, axis = self._predictor(X, offset)
        exposure = read_response_weights(exposure, "exposure", len(eta), 1 if eta.ndim == 1 else eta.shape[1])
        if exposure is None:
            return eta, 1.0, axis
        exposure = exposure.astype(np.float64).reshape(len(eta), -1)
        return eta, exposure[:, 0] if eta.ndim == 1 else exposure, axis

    def coef_frame(self) -> pd.DataFrame:
        """Return the coefficients as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            A row per feature, named as the columns of X or numbered, and the intercept last; a column per neuron. For a
            `PopulationGAM` rows have two names, of the term ("" for features in none) and of the feature.

        Raises
        ------
        NotFittedError
            Before a fit.
        """
        import pandas as pd

        check_is_fitted(self)
        coef, intercept = self._matrix()
        columns = pd.Index(self.report_.neuron, name="neuron")
        return pd.DataFrame(np.vstack([coef, intercept]), index=self._labels(), columns=columns)

    def _labels(self) -> pd.Index:
        """Rows of `coef_frame`."""
        return rows_of_coefficients(self)

    def _matrix(self):
        return (self.coef_.reshape(self.n_features_in_, -1), np.atleast_1d(self.intercept_))

    def _write_state(self, header: dict, arrays: dict) -> None:
        columns = getattr(self._neurons, "columns", None)
        columns = [] if columns is None else [c.item() if isinstance(c, np.generic) else c for c in columns]
        if columns and all(isinstance(c, int | float | str) for c in columns):
            header["columns"] = columns
        if hasattr(self, "dispersion_"):
            arrays["dispersion"] = np.asarray(self.dispersion_)

    def _read_state(self, header: dict, arrays: dict) -> None:
        if not len(self.report_.neuron) == len(self.report_.status) == np.size(self.intercept_):
            raise ValueError(f"{len(self.report_.neuron)} neurons, but intercepts of {np.size(self.intercept_)}")
        if self.coef_.ndim == 1:
            self.intercept_ = float(self.intercept_)
        if "dispersion" in arrays:
            self.dispersion_ = arrays["dispersion"] if self.coef_.ndim == 2 else float(arrays["dispersion"])
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
    """Find coefficients with a large effect on the linear predictor that the rows hardly determine.

    These are a few nats from 0, all else being equal, or their effect nearly cancels with that of others.
    """
    X = problem.X
    effect = np.abs(coef) * problem.ranges[:, None]
    some = np.flatnonzero((effect > _RUNAWAY).any(axis=0))
    if not len(some):
        return {}
    centre = problem.standard[0]

    def tile(rows):
        x = np.array(X[rows], np.float64)  # a copy
        eta = x @ coef[:, some] + intercept[some]
        if problem.offset is not None:
            eta += problem.offset[rows][:, some if problem.offset.shape[1] > 1 else [0]]
        curvature = problem.observation.curvature(np.asarray(problem.Y[rows][:, some], np.float64), eta)
        if problem.row_weights is not None:
            weights = problem.row_weights[rows]
            curvature = curvature * (weights if weights.shape[1] == 1 else weights[:, some])
        x -= centre
        return curvature.sum(axis=0), x.T @ curvature, np.square(x).T @ curvature, eta.max(axis=0), eta.min(axis=0)

    with np.errstate(over="ignore", invalid="ignore"):
        *sums, high, low = zip(*over_tiles(tile, len(X)), strict=True)
        total, first, second = map(sum, sums)
        mean = first / np.maximum(total, np.finfo(float).tiny)
        held = (second - total * mean**2) * coef[:, some] ** 2
    loose = (held < _HELD) | (effect[:, some] > _CANCELS * (np.max(high, axis=0) - np.min(low, axis=0)))
    feature, place = np.nonzero((effect[:, some] > _RUNAWAY) & loose)
    if not len(feature):
        return {}
    neuron, (which, at) = some[place], np.unique(feature, return_inverse=True)
    X = X[:, which]
    return {
        "neuron": np.array([str(neurons[n]) for n in neuron]),
        "feature": np.array([str(features[j]) for j in feature]),
        "coef": coef[feature, neuron],
        "n_rows": np.count_nonzero(X != np.median(X, axis=0), axis=0)[at],
    }
