"""Standard errors and Wald intervals of coefficients, from the data of a fit, which are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from .. import penalties
from ..checks import as_numbers, check_choice, check_model, check_real
from ..data.counts import Training, read_training, weights_of
from ..data.standard_form import StandardForm
from ..design import as_source
from ..display import Display, Summary, counted, frame_by_neuron
from ..engine import passes
from ..engine.population import PopulationProblem
from ..engine.problem import Params
from ..estimators import PopulationGLM, PopulationGLMCV
from ..estimators.model import check_is_fitted
from ..estimators.scores import as_given
from ..estimators.streaming import as_arrays, bytes_in_memory
from ..numerics import DataLike, PerRow
from ..observations import NegativeBinomial
from ..status import Status
from ..threads import one_thread_each

if TYPE_CHECKING:
    import pandas as pd

COVARIANCES = ("fisher", "observed", "robust")
NO_OPTIMUM = (Status.NO_SPIKES, Status.ALL_ONES, Status.NO_DATA, Status.SEPARABLE, Status.NON_FINITE)
_MOST_FEATURES = 2000
_SMOOTH = ("UnRegularized", "Ridge")
_ROUNDING = 1e-6  # of objectives of the same data
_GIVEN = SimpleNamespace(curvature=lambda y, eta: y)  # an observation whose curvature stands in for the counts
_ABSENT = 1e-12  # curvature below this share of the largest, diagonal scaled to one: the data do not determine it


@dataclass(frozen=True, repr=False)
class WaldTable(Display):
    """Standard errors and Wald intervals of a fit's coefficients.

    Attributes
    ----------
    neuron, feature : list of str
        Names; for linear combinations their numbers.
    coef, standard_error, low, high, z, p_value : numpy.ndarray
        (feature, neuron): estimate, its standard error (infinite where the data do not determine the coefficient, nan
        for a neuron without an optimum, silent or separable), interval, estimate over standard error, two-sided p-value
        of 0.
    intercept, intercept_standard_error, intercept_low, intercept_high : numpy.ndarray
        The same for the intercept, (neuron,).
    effective_df : numpy.ndarray
        Effective degrees of freedom, intercept included, (neuron,): directions the data determine without a penalty,
        fewer with a ridge.
    dispersion : numpy.ndarray
        Pearson's statistic over the residual degrees of freedom, (neuron,): 1 if the model is right. If it is well
        above 1, use "robust" errors. Variances of Gaussian and gamma responses include their estimated dispersion.
    level, covariance : float, str
        Coverage of the intervals, and covariance of the errors, one of `COVARIANCES`.
    """

    neuron: list
    feature: list
    coef: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    z: np.ndarray
    p_value: np.ndarray
    intercept: np.ndarray
    intercept_standard_error: np.ndarray
    intercept_low: np.ndarray
    intercept_high: np.ndarray
    effective_df: np.ndarray
    dispersion: np.ndarray
    level: float
    covariance: str

    def _summary(self) -> Summary:
        head = (
            f"{100 * self.level:g} % Wald intervals, {self.covariance} covariance; "
            f"{counted(len(self.neuron), 'neuron')}, {counted(len(self.feature), 'coefficient')} each"
        )
        return Summary([head], self.to_frame())

    def to_frame(self) -> pd.DataFrame:
        """Return one row per neuron and feature as a pandas DataFrame."""
        names = ("coef", "standard_error", "low", "high", "z", "p_value")
        return frame_by_neuron(self.neuron, {name: getattr(self, name) for name in names}, feature=self.feature)


def wald_table(
    model: PopulationGLM | PopulationGLMCV,
    X: DataLike,
    y: DataLike,
    sample_weight: PerRow = None,
    level: float = 0.95,
    covariance: str = "fisher",
    offset: PerRow = None,
    exposure: PerRow = None,
    combinations: ArrayLike | None = None,
    epochs: Mapping[Any, Any] | None = None,
) -> WaldTable:
    r"""Compute standard errors and Wald intervals of the coefficients of a fit, or of sums of them.

    Parameters
    ----------
    model : PopulationGLM or PopulationGLMCV
        Fitted without a penalty or with a ridge. Strengths chosen by cross-validation are taken as given.
    X, y, sample_weight, offset, exposure, epochs :
        The data of the fit, in any form that ``fit`` takes; a source of rows must fit in the model's ``max_memory``.
    level : float
        Coverage of the intervals, in (0, 1).
    covariance : {"fisher", "observed", "robust"}
        From the expected information, from that at the counts seen, or the sandwich with the squared gradients of the
        rows, which remains valid if counts vary more than Poisson counts but are independent
        (docs/theory/inference.md).
    combinations : array-like of shape (combination, feature), optional
        Linear combinations of the coefficients to compute intervals for, instead of the coefficients. For a filter:
        the values of its basis functions, (lag, basis function), in the columns of their features and 0 elsewhere.

    Returns
    -------
    WaldTable

    Raises
    ------
    ValueError
        For a penalty that is not smooth, more than 2 000 features, invalid options, or data that are not those of the
        fit.
    NotFittedError
        Before a fit.

    Notes
    -----
    Asymptotic, hence approximate. With a ridge the first two are the covariance of a Gaussian posterior, whose
    intervals cover on average over coefficients; no standard error includes the bias of a ridge. Weights count as in
    the fit, rescaled to mean one. Float64 on the host; cost T d^2 per neuron.

    References
    ----------
    P. McCullagh, J. Nelder, Generalized linear models (1989); H. White, Maximum likelihood estimation of misspecified
    models (1982); D. Nychka, Bayesian confidence intervals for smoothing splines (1988).

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import PopulationGLM
    >>> from glmfit.inference import wald_table
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 2))
    >>> counts = rng.poisson(np.exp(0.5 * X[:, 0] - 1))
    >>> model = PopulationGLM("exp", "UnRegularized").fit(X, counts)
    >>> table = wald_table(model, X, counts)
    >>> bool(table.low[0, 0] < 0.5 < table.high[0, 0])
    True
    """
    check_choice("covariance", covariance, COVARIANCES)
    check_real("level", level, 1.0, hint="The usual one is 0.95.")
    fit = data_of_fit(model, X, y, sample_weight, offset, exposure, epochs)
    (coef, intercept), names = fit.params, fit.features
    intercept = intercept + fit.form.shift
    if combinations is not None:
        combinations = as_numbers("combinations", combinations)
        if combinations.ndim != 2 or combinations.shape[1] != len(coef) or not np.isfinite(combinations).all():
            raise ValueError(
                f"combinations has shape {combinations.shape}; it must be (combination, {len(coef)}), with a finite "
                "weight for every feature of the fit."
            )
    found = [fit.information(i, covariance, combinations) for i in range(len(intercept))]
    error, error_b, df, dispersion = (np.stack(part, axis=-1) for part in zip(*found, strict=True))
    if combinations is not None:
        coef, names = combinations @ coef, [str(k) for k in range(len(combinations))]
    quantile = scipy.stats.norm.isf((1 - level) / 2)
    with np.errstate(invalid="ignore"):
        z = coef / error
    return WaldTable(
        neuron=list(model.report_.neuron), feature=names,
        coef=coef, standard_error=error, low=coef - quantile * error, high=coef + quantile * error,
        z=z, p_value=2 * scipy.stats.norm.sf(np.abs(z)),
        intercept=intercept, intercept_standard_error=error_b,
        intercept_low=intercept - quantile * error_b, intercept_high=intercept + quantile * error_b,
        effective_df=df, dispersion=dispersion,
        level=float(level), covariance=covariance,
    )  # fmt: skip


def _of_mean_one(rows: Training) -> Training:
    """Rescale weights to mean one over the rows that count, times the exposure, for each neuron if it has its own."""
    rows = replace(rows, weights=np.ones(len(rows.X)) if rows.weights is None else rows.weights)
    rows = replace(rows, weights=rows.weights / np.mean(as_given(rows).weights))
    if rows.own is None:
        return rows
    total = weights_of(as_given(rows), slice(None)).sum(axis=0)
    mean = total / np.maximum(np.count_nonzero(rows.own, axis=0), 1)
    return replace(rows, own=rows.own / np.where(mean > 0, mean, 1.0))


class _Curvature(NamedTuple):
    """Curvature of one neuron in standardised features, the intercept last."""

    hessian: np.ndarray  # of all responses, without the ridge
    inverse: np.ndarray  # with the ridge, on the directions that have curvature
    outside: np.ndarray  # the others, (column, direction)
    covariance: np.ndarray
    seen: np.ndarray  # weights of the rows, (time,)
    predictor: np.ndarray


class FittedData:
    """A fitted model and the rows of its fit, in standard form; weights have mean one, times the exposure."""

    def __init__(self, model: PopulationGLM | PopulationGLMCV, data: Training):
        self.model, self.data, self.observation = model, data, model._observation()
        self.form = StandardForm.of(data, self.observation)
        coef, intercept = model._matrix()
        self.params = Params(coef, intercept - self.form.shift)
        self.features = [str(name) for name in getattr(model, "feature_names_in_", range(model.n_features_in_))]
        shape = self.params.coef.shape
        strength = np.nan_to_num(model.strength_)  # nan for a neuron without a score, which has no slopes
        self.penalty = penalties.make(model.regularizer, strength, *shape)
        self.ridge = np.broadcast_to(np.asarray(self.penalty.ridge_strength, np.float64), shape)
        common = {"offset": self.form.offset, "own": self.form.own}
        free = penalties.Ridge(0.0)
        self.problem = PopulationProblem(data.X, self.form.Y, self.form.observation, free, data.weights, **common)
        # Ratio of F to nats of one response: 1 unless responses have a scale.
        self.scale = np.broadcast_to(np.asarray(model.dispersion_) if self.observation.has_scale else 1.0, shape[1:])

    @cached_property
    def loss(self) -> np.ndarray:
        """Mean loss without penalty, (neuron,)."""
        return self.problem.evaluate(self.params).objective * self.form.unit + self.form.constant

    @property
    def saturated_loss(self) -> np.ndarray:
        """Mean loss of a model that predicts every response, (neuron,)."""
        return self.problem.saturated_loss * self.form.unit + self.form.constant

    @one_thread_each()
    def group_statistics(self, i: int, groups: list[np.ndarray]) -> list[tuple[float, np.ndarray]]:
        """Compute statistics of groups of features of one neuron, and the weights of squares of normals in their nulls.

        The ridge shrinks the group alone: with u its score at 0, from which the score of the other features is
        projected, whatever the ridge has taken from these, and J the variance of u, the statistic is
        ``u' (J + S)^-1 u`` and the weights are the eigenvalues of ``(J + S)^-1 J``, S the ridge of the group.
        """
        at, scale = self._curvature(i, "fisher"), self.problem.standard[1]
        ridge = np.append(at.seen.sum() * self.ridge[:, i] / scale**2, 0.0)
        score, H = ridge * np.append(self.params.coef[:, i] * scale, 0.0), at.hessian  # of the loss at the optimum
        found = []
        for members in groups:
            rest = np.setdiff1d(np.arange(len(H)), members)
            project = H[np.ix_(members, rest)] @ _inverse(H[np.ix_(rest, rest)])[0]
            J = H[np.ix_(members, members)] - project @ H[np.ix_(rest, members)]
            whole = J + np.diag(ridge[members])
            u = whole @ (self.params.coef[members, i] * scale[members]) - project @ score[rest]
            inverse = _inverse(whole)[0]
            values, axes = np.linalg.eigh(inverse)
            root = np.sqrt(np.maximum(values, 0.0))[:, None] * axes.T
            weights = np.clip(np.linalg.eigvalsh(root @ J @ root.T), 0.0, 1.0)
            found.append((float(u @ inverse @ u) / self.scale[i], weights))
        return found

    def _curvature(self, i: int, covariance: str) -> _Curvature:
        """Compute the Hessian of one neuron, in standardised features, and its inverse with the ridge."""
        data, (coef, intercept), standard = self.data, self.params, self.form.observation
        y, (mean, scale) = np.asarray(self.form.Y[:, i], np.float64), self.problem.standard
        eta, known = self._predictor(i)
        whole = eta + known + self.form.shift[i]
        offset = None if self.form.offset is None else known  # of the standard form
        eta = eta if offset is None else eta + offset
        seen = data.weights if data.own is None else data.weights * data.own[:, i]
        weights = data.weights if self.form.own is None else data.weights * self.form.own[:, i]
        place = coef[:, i], intercept[i], mean, scale, np.float64, offset
        n_rows = len(data.X)
        # The curvature is linear in y: at the expected responses it is the expected one.
        expected = np.asarray(standard.mean(eta), np.float64)
        of_neuron = self._observation_of(i)
        rate = np.asarray(of_neuron.mean(whole), np.float64)
        at = (y, weights) if covariance == "observed" else (expected, weights)
        if covariance != "observed" and isinstance(self.observation, NegativeBinomial):
            at = expected, seen * (rate + 1 / of_neuron.dispersion)  # trials, too, are counts
        J = n_rows * passes.hessian(data.X, *at, standard, *place)[0]
        inverse, outside = _inverse(J + np.diag(np.append(seen.sum() * self.ridge[:, i] / scale**2, 0.0)))
        spread = inverse * self.scale[i]
        if covariance == "robust":
            square = weights * np.asarray(standard.derivative(y, eta), np.float64) ** 2  # times the weights again
            spread = inverse @ (n_rows * passes.hessian(data.X, square, weights, _GIVEN, *place)[0]) @ inverse
        return _Curvature(J, inverse, outside, spread, seen, whole)

    @one_thread_each()  # others, once woken for a small product, would take time from the pass over the rows
    def information(self, i: int, covariance: str = "fisher", combinations: np.ndarray | None = None):
        """Compute standard errors of one neuron, (feature or combination,) and intercept, degrees and dispersion."""
        if self.model.report_.status[i] in NO_OPTIMUM:
            n = self.params.coef.shape[0] if combinations is None else len(combinations)
            return np.full(n, np.nan), np.nan, 0.0, np.nan
        J, inverse, outside, spread, seen, whole = self._curvature(i, covariance)
        mean, scale = self.problem.standard
        # From standardised features to the user's: coef = v / scale, intercept = v_0 - (mean / scale) v.
        wanted = np.diag(1 / scale) if combinations is None else combinations / scale
        back = np.vstack([np.append(wanted, np.zeros((len(wanted), 1)), axis=1), np.append(-mean / scale, 1.0)])
        variance_of = np.sum((back @ spread) * back, axis=1)
        undetermined = np.linalg.norm(back @ outside, axis=1) > 1e-6 * np.linalg.norm(back, axis=1)
        error = np.where(undetermined, np.inf, np.sqrt(np.maximum(variance_of, 0.0)))
        df, n_seen = float(np.sum(inverse * J.T)), int(np.count_nonzero(seen))
        pearson = np.sum(self._residuals(i, whole, seen) ** 2)
        return error[:-1], error[-1], df, pearson / (n_seen - df) if n_seen > df else np.nan

    def pearson_residuals(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Compute the Pearson residuals of one neuron as in `_residuals`, and which rows count, bool (time,)."""
        eta, known = self._predictor(i)
        seen = self.data.weights if self.data.own is None else self.data.weights * self.data.own[:, i]
        return self._residuals(i, eta + known + self.form.shift[i], seen), seen > 0

    def _residuals(self, i: int, eta: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Pearson residuals at a predictor, times the roots of the weights; 0 where rows do not count, (time,)."""
        of, y = self._observation_of(i), np.asarray(self.data.Y[:, i], np.float64)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            mean, variance = (np.asarray(a, np.float64) for a in (of.mean(eta), of.variance(eta)))
            usable = (seen > 0) & (variance > 0)
            return np.where(usable, np.sqrt(seen) * (y - mean) / np.sqrt(np.maximum(variance, 1e-300)), 0.0)

    def _predictor(self, i: int) -> tuple:
        """Linear predictor of one neuron in standard form, float64 (time,), and its offset, 0 without one."""
        (coef, intercept), offset = self.params, self.data.offset
        known = 0.0 if offset is None else offset[:, i if offset.shape[1] > 1 else 0]
        return passes.predictor(self.data.X, coef[:, i], intercept[i]), known

    def _observation_of(self, i: int):
        """Observation model of one neuron, at its dispersion."""
        dispersion = getattr(self.observation, "dispersion", 0.0)
        return self.observation if np.ndim(dispersion) == 0 else self.observation.with_dispersion(dispersion[i])


def _inverse(H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverse of a Hessian on the directions that have curvature, and the others, (column, direction)."""
    diagonal = np.diag(H)
    root = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh(H / np.outer(root, root))
    kept = values > _ABSENT * max(values[-1], 0.0)
    inside = vectors[:, kept] / np.sqrt(values[kept]) / root[:, None]
    return inside @ inside.T, vectors[:, ~kept] / root[:, None]


def data_of_fit(model, X, y, sample_weight, offset, exposure, epochs=None) -> FittedData:
    """Check the model and that these are the rows it was fitted to: the same numbers in another place are others."""
    needs = "glmfit.PopulationGLM or PopulationGLMCV, for which standard errors are known."
    check_model(model, PopulationGLM | PopulationGLMCV, needs)
    if getattr(model, "feature_mask", None) is not None:
        raise ValueError(
            "the model was fitted with a feature_mask, which standard errors do not support; fit neurons with the same "
            "features separately, or fit a PopulationGAM, whose terms have intervals (model.term)."
        )
    if model.regularizer not in (*_SMOOTH, None):
        raise ValueError(
            f"the model was fitted with {model.regularizer}, which selects coefficients, so that they have no standard "
            "errors of this kind; fit the selected features again with UnRegularized or Ridge."
        )
    source = as_source(X)
    if source is not None and hasattr(model, "report_"):
        needed = bytes_in_memory(source.shape, len(model.report_.neuron), source.dtype)
        if needed > model.max_memory:
            raise ValueError(
                f"X is {source!r}; standard errors need all rows in memory: {needed} bytes, but max_memory "
                f"is {model.max_memory:g}. Raise it, model.set_params(max_memory={needed}), or fit some of the "
                "rows and pass those."
            )
    X, y = as_arrays(X, y)
    check_is_fitted(model)
    rows = read_training(model, X, y, sample_weight, offset, exposure, epochs, reset=False)
    report = model.report_
    if rows.X.shape[1] > _MOST_FEATURES:
        raise ValueError(f"X has {rows.X.shape[1]} features; the information matrix is formed up to {_MOST_FEATURES}.")
    if len(rows.X) != report.n_rows:
        raise ValueError(f"X has {len(rows.X)} rows that count, the fit had {report.n_rows}; give the data of the fit.")
    if not np.allclose(rows.spike_count, report.spike_count, rtol=1e-5):
        raise ValueError("y has other spike counts than the fit had; give the data of the fit.")
    fit = FittedData(model, _of_mean_one(rows))
    objective = fit.loss + np.asarray(fit.penalty.value(fit.params.coef))
    scale = np.maximum(np.abs(report.objective), report.null_objective - report.objective)
    other = ~(np.abs(objective - report.objective) <= _ROUNDING * scale) & ~np.isin(report.status, NO_OPTIMUM)
    if other.any():
        n = int(np.argmax(other))
        raise ValueError(
            f"the objective of neuron {report.neuron[n]} is {objective[n]:.6g} on these data and was "
            f"{report.objective[n]:.6g} in the fit: X, y, weights, offset or exposure are not those of the fit (other "
            "rows, another order, another scale of the features), or the model was changed since. Give the data of the "
            "fit."
        )
    return fit
