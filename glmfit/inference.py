"""How certain a fitted `PopulationGLM` is: standard errors, intervals, degrees of freedom, what features explain.

Theory: docs/theory/inference.md.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.stats

from . import observations, penalties
from ._status import Status
from .estimators import PopulationGLM
from .estimators._validation import check_scoring
from .problems._chunks import over_chunks
from .problems._host import hessian

COVARIANCES = ("fisher", "observed", "robust")
_MOST_FEATURES = 2000
_SMOOTH = ("UnRegularized", "Ridge")
_NO_OPTIMUM = (Status.NO_SPIKES, Status.SEPARABLE, Status.NON_FINITE)
_ABSENT = 1e-12  # curvature below this share of the largest, diagonal scaled to one: the data do not see it


class Data(NamedTuple):
    """Rows of a fit, checked to be those."""

    X: np.ndarray  # (time, feature)
    Y: np.ndarray  # (time, neuron)
    weights: np.ndarray | None  # (time,), of mean one


@dataclass(frozen=True)
class WaldTable:
    """Standard errors and Wald intervals of a fit's coefficients.

    Attributes
    ----------
    neuron, feature : list of str
        Names.
    coef, standard_error, low, high, z, p_value : numpy.ndarray
        (feature, neuron): estimate, its standard error (infinite where the data do not determine the coefficient, nan
        for a neuron without an optimum, silent or separable), interval, estimate over standard error, two-sided p-value
        of 0.
    intercept, intercept_standard_error, intercept_low, intercept_high : numpy.ndarray
        (neuron,).
    effective_df : numpy.ndarray
        Effective degrees of freedom, intercept included, (neuron,): directions the data have without a penalty, fewer
        with a ridge.
    dispersion : numpy.ndarray
        Pearson's statistic over the residual degrees of freedom, (neuron,): 1 for Poisson counts; well above it
        "robust" errors are in place.
    level : float
        Of the intervals.
    covariance : str
        What the errors rest on.
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

    def to_frame(self):
        """Return one row per neuron and feature as a pandas DataFrame."""
        import pandas as pd

        index = pd.MultiIndex.from_product([self.neuron, self.feature], names=["neuron", "feature"])
        columns = ("coef", "standard_error", "low", "high", "z", "p_value")
        return pd.DataFrame({name: getattr(self, name).T.ravel() for name in columns}, index=index)


@dataclass(frozen=True)
class GroupTable:
    """What a model loses when a group of features is left out and the rest is fitted anew.

    Attributes
    ----------
    group, neuron : list of str
        Names.
    deviance_explained : numpy.ndarray
        Of the whole model on its training rows, (neuron,).
    deviance_explained_without : numpy.ndarray
        Of the model without the group, (group, neuron).
    statistic : numpy.ndarray
        Likelihood ratio, twice the log-likelihood lost, (group, neuron).
    statistic_low, statistic_high : numpy.ndarray
        Where the statistic of the exact optima is proved to lie, (group, neuron); nan where a gap is an estimate or
        there is a ridge.
    df : numpy.ndarray
        Degrees of freedom lost, (group, neuron).
    p_value : numpy.ndarray
        Of the statistic under a chi-squared distribution with ``df`` degrees of freedom, (group, neuron).
    converged : numpy.ndarray
        Whether the neuron converged with and without the group, (group, neuron).
    approximate : bool
        Whether a ridge makes the p-values approximate.
    """

    group: list
    neuron: list
    deviance_explained: np.ndarray
    deviance_explained_without: np.ndarray
    statistic: np.ndarray
    statistic_low: np.ndarray
    statistic_high: np.ndarray
    df: np.ndarray
    p_value: np.ndarray
    converged: np.ndarray
    approximate: bool

    def to_frame(self):
        """Return one row per neuron and group as a pandas DataFrame."""
        import pandas as pd

        index = pd.MultiIndex.from_product([self.neuron, self.group], names=["neuron", "group"])
        unique = self.deviance_explained - self.deviance_explained_without
        columns = {
            "deviance_explained_without": self.deviance_explained_without,
            "unique_deviance_explained": unique,
            "statistic": self.statistic,
            "df": self.df,
            "p_value": self.p_value,
            "converged": self.converged,
        }
        return pd.DataFrame({name: values.T.ravel() for name, values in columns.items()}, index=index)


def wald_table(model: PopulationGLM, X, y, sample_weight=None, level=0.95, covariance="fisher") -> WaldTable:
    r"""Compute standard errors and Wald intervals of the coefficients of a fit.

    Parameters
    ----------
    model : PopulationGLM
        Fitted without a penalty or with a ridge.
    X, y, sample_weight :
        The data of the fit.
    level : float
        Coverage of the intervals, in (0, 1).
    covariance : {"fisher", "observed", "robust"}
        With J the information of all rows and P the ridge, T times its strength: "fisher" takes ``(J + P)^-1`` with
        the expected information, "observed" with the Hessian at the counts seen, and "robust" the sandwich
        ``(J + P)^-1 S (J + P)^-1`` with S the sum of the rows' squared gradients, which stays right where counts vary
        more than Poisson's but are independent.

    Returns
    -------
    WaldTable

    Raises
    ------
    ValueError
        For a penalty that is not smooth, more than 2 000 features, options that make no sense, or data that are not
        those of the fit.
    NotFittedError
        Before a fit.

    Notes
    -----
    Asymptotic, hence approximate. With a ridge the first two are the covariance of a Gaussian posterior, whose
    intervals cover on average over coefficients; no standard error knows the bias of a ridge. Weights count as in the
    fit, rescaled to mean one. Float64 on the host; cost T d^2 per neuron.

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
    if covariance not in COVARIANCES:
        raise ValueError(f"covariance is {covariance!r}; it must be one of {', '.join(COVARIANCES)}.")
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise ValueError(f"level is {level!r}; it must be a number between 0 and 1, such as 0.95.")
    data = _data_of_fit(model, X, y, sample_weight)
    coef, intercept = _coefficients(model)
    d, n = coef.shape
    error, error_b, df, dispersion = np.empty((d, n)), np.empty(n), np.empty(n), np.empty(n)
    mean, scale = _moments(data)
    strength = _strength(model, d, n)
    for i in range(n):
        if model.report_.status[i] in _NO_OPTIMUM:
            error[:, i], error_b[i], df[i], dispersion[i] = np.nan, np.nan, 0.0, np.nan
            continue
        of = _information(model, data, i, coef[:, i], intercept[i], mean, scale, strength[:, i], covariance)
        error[:, i], error_b[i], df[i], dispersion[i] = of
    quantile = scipy.stats.norm.isf((1 - level) / 2)
    with np.errstate(invalid="ignore"):
        z = coef / error
    return WaldTable(
        neuron=list(model.report_.neuron),
        feature=_feature_names(model),
        coef=coef,
        standard_error=error,
        low=coef - quantile * error,
        high=coef + quantile * error,
        z=z,
        p_value=2 * scipy.stats.norm.sf(np.abs(z)),
        intercept=intercept,
        intercept_standard_error=error_b,
        intercept_low=intercept - quantile * error_b,
        intercept_high=intercept + quantile * error_b,
        effective_df=df,
        dispersion=dispersion,
        level=float(level),
        covariance=covariance,
    )


def drop_groups(model: PopulationGLM, X, y, groups=None, sample_weight=None) -> GroupTable:
    r"""Fit the model anew without each group of features, and test what is lost.

    Parameters
    ----------
    model : PopulationGLM
        Fitted without a penalty or with a ridge.
    X, y, sample_weight :
        The data of the fit.
    groups : dict or array, optional
        Name -> feature indices or names; or a label per feature, (feature,); each feature by itself when left out.

    Returns
    -------
    GroupTable

    Raises
    ------
    ValueError
        As `wald_table`, and for groups that name no feature of the model.

    Notes
    -----
    Guarantee: without a ridge the statistic of the exact optima is within the stated ends, where both fits have a
    bound of their gap. That the statistic is chi-squared is asymptotic (Wilks), and approximate with a ridge, where the
    degrees of freedom are differences of effective ones. One fit per group, all neurons at once.
    """
    data = _data_of_fit(model, X, y, sample_weight)
    named = _groups(model, groups)
    full, d, n = model.report_, model.n_features_in_, len(model.report_.neuron)
    coef, intercept = _coefficients(model)
    ridge = bool(np.any(_strength(model, d, n) > 0))
    observation = observations.from_inverse_link(model.inverse_link_function)
    saturated = _mean(data, observation.saturated_loss(data.Y))
    loss = _mean_loss(data, observation, coef, intercept)
    whole = _degrees(model, data) if ridge else np.full(n, full.rank + 1.0)
    shape = (len(named), n)
    lost, low, high, df, converged = (np.full(shape, np.nan) for _ in range(5))
    without = np.empty(shape)
    null = full.null_objective - saturated
    for g, members in enumerate(named.values()):
        rest = np.setdiff1d(np.arange(d), members)
        smaller = _fit_rest(model, data, rest) if len(rest) else None
        if smaller is None:  # a constant rate, known exactly
            loss_rest, gap, proved = full.null_objective, np.zeros(n), np.ones(n, bool)
            left, fine = np.ones(n), np.ones(n, bool)
        else:
            report = smaller.report_
            loss_rest = _mean_loss(data._replace(X=data.X[:, rest]), observation, *_coefficients(smaller))
            gap, proved, fine = report.gap, report.gap_is_bound, report.converged
            left = _degrees(smaller, data._replace(X=data.X[:, rest])) if ridge else np.full(n, report.rank + 1.0)
        lost[g], df[g] = 2 * len(data.X) * (loss_rest - loss), np.maximum(whole - left, 0.0)
        known = proved & full.gap_is_bound & (not ridge)
        low[g] = np.where(known, lost[g] - 2 * len(data.X) * gap, np.nan)
        high[g] = np.where(known, lost[g] + 2 * len(data.X) * full.gap, np.nan)
        converged[g] = fine & full.converged
        with np.errstate(divide="ignore", invalid="ignore"):
            without[g] = 1 - (loss_rest - saturated) / null
    silent = np.isin(full.status, _NO_OPTIMUM)
    lost[:, silent] = low[:, silent] = high[:, silent] = without[:, silent] = np.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        explained = np.where(silent, np.nan, 1 - (loss - saturated) / null)
        p = np.where(df > 0, scipy.stats.chi2.sf(np.maximum(lost, 0.0), np.maximum(df, 1e-12)), 1.0)
    p[:, silent] = np.nan
    return GroupTable(
        group=list(named),
        neuron=list(full.neuron),
        deviance_explained=explained,
        deviance_explained_without=without,
        statistic=lost,
        statistic_low=low,
        statistic_high=high,
        df=df,
        p_value=p,
        converged=converged.astype(bool),
        approximate=ridge,
    )


# ------------------------------------------------------------------------- one neuron


class _Given:
    """An observation whose curvature is what stands in the place of the counts."""

    @staticmethod
    def curvature(y, eta):
        return y


def _information(model, data: Data, i: int, coef, intercept, mean, scale, strength, covariance):
    """Compute standard errors (feature,) and of the intercept, effective degrees of freedom, dispersion."""
    observation = observations.from_inverse_link(model.inverse_link_function)
    n_rows = len(data.X)
    y = np.asarray(data.Y[:, i], np.float64)
    eta = _predictor(data.X, coef, intercept)
    rate = np.asarray(observation.rate(eta), np.float64)
    place = coef, intercept, mean, scale
    # The curvature is linear in y: at the expected counts it is the expected one.
    J = n_rows * hessian(data.X, y if covariance == "observed" else rate, data.weights, observation, *place)[0]
    H = J + np.diag(np.append(n_rows * strength / scale**2, 0.0))
    inverse, outside = _inverse(H)
    spread = inverse
    if covariance == "robust":
        w = np.ones(n_rows) if data.weights is None else data.weights
        square = w * np.asarray(observation.derivative(y, eta), np.float64) ** 2  # times w again as a row weight
        spread = inverse @ (n_rows * hessian(data.X, square, data.weights, _Given, *place)[0]) @ inverse
    # From standardised features to the user's: coef = v / scale, intercept = v_0 - (mean / scale) v.
    back = np.vstack([np.append(np.diag(1 / scale), np.zeros((len(scale), 1)), axis=1), np.append(-mean / scale, 1.0)])
    variance = np.einsum("ij,jk,ik->i", back, spread, back)
    undetermined = np.linalg.norm(back @ outside, axis=1) > 1e-6 * np.linalg.norm(back, axis=1)
    error = np.where(undetermined, np.inf, np.sqrt(np.maximum(variance, 0.0)))
    df = float(np.sum(inverse * J.T))
    w = 1.0 if data.weights is None else data.weights
    with np.errstate(divide="ignore", invalid="ignore"):
        pearson = np.sum(w * np.where(rate > 0, (y - rate) ** 2 / np.maximum(rate, 1e-300), 0.0))
    return error[:-1], error[-1], df, pearson / (n_rows - df) if n_rows > df else np.nan


def _inverse(H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverse of a Hessian on the directions that have curvature, and the others, (column, direction)."""
    diagonal = np.diag(H)
    root = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh(H / np.outer(root, root))
    kept = values > _ABSENT * max(values[-1], 0.0)
    inside = vectors[:, kept] / np.sqrt(values[kept]) / root[:, None]
    return inside @ inside.T, vectors[:, ~kept] / root[:, None]


def _degrees(model, data: Data) -> np.ndarray:
    """Effective degrees of freedom of every neuron, intercept included."""
    coef, intercept = _coefficients(model)
    strength, (mean, scale) = _strength(model, *coef.shape), _moments(data)
    return np.array([
        0.0 if model.report_.status[i] in _NO_OPTIMUM else
        _information(model, data, i, coef[:, i], intercept[i], mean, scale, strength[:, i], "fisher")[2]
        for i in range(coef.shape[1])
    ])  # fmt: skip


# ------------------------------------------------------------------------- what was fitted


def _data_of_fit(model, X, y, sample_weight) -> Data:
    """Check the model and that these are the rows it was fitted to."""
    if not isinstance(model, PopulationGLM):
        raise TypeError(f"model is a {type(model).__name__}; standard errors are known for PopulationGLM.")
    if model.regularizer not in (*_SMOOTH, None):
        raise ValueError(
            f"the model was fitted with {model.regularizer}, which selects coefficients, so that they have no standard "
            "errors of this kind; fit the selected features again with UnRegularized or Ridge."
        )
    X, Y, weights = check_scoring(model, X, y, sample_weight)
    if X.shape[1] > _MOST_FEATURES:
        raise ValueError(f"X has {X.shape[1]} features; the information matrix is formed up to {_MOST_FEATURES}.")
    if weights is not None:
        X, Y, weights = (a[weights > 0] for a in (X, Y, weights))
        weights = weights / weights.max()
        weights = weights / weights.mean()
    report = model.report_
    if len(X) != report.n_rows:
        raise ValueError(f"X has {len(X)} rows that count, the fit had {report.n_rows}; give the data of the fit.")
    counts = Y.sum(axis=0, dtype=np.float64) if weights is None else weights @ Y
    if len(counts) != len(report.neuron) or not np.allclose(counts, report.spike_count, rtol=1e-5):
        raise ValueError("y holds other numbers of spikes than the fit had; give the data and weights of the fit.")
    return Data(X, Y, weights)


def _coefficients(model) -> tuple[np.ndarray, np.ndarray]:
    return model.coef_.reshape(model.n_features_in_, -1), np.atleast_1d(model.intercept_)


def _feature_names(model) -> list:
    names = getattr(model, "feature_names_in_", range(model.n_features_in_))
    return [str(name) for name in names]


def _strength(model, n_features: int, n_neurons: int) -> np.ndarray:
    """Ridge per coefficient, (feature, neuron)."""
    penalty = penalties.make(model.regularizer, model.regularizer_strength, n_features, n_neurons)
    return np.broadcast_to(np.asarray(penalty.ridge_strength, np.float64), (n_features, n_neurons))


def _moments(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the features, 1 for a constant one."""
    mean = np.average(data.X, axis=0, weights=data.weights).astype(np.float64)
    square = np.average((np.asarray(data.X, np.float64) - mean) ** 2, axis=0, weights=data.weights)
    return mean, np.sqrt(np.where(square > 0, square, 1.0))


def _mean(data: Data, values) -> np.ndarray:
    return np.average(np.asarray(values, np.float64), axis=0, weights=data.weights)


def _mean_loss(data: Data, observation, coef, intercept) -> np.ndarray:
    """Mean loss without penalty, (neuron,)."""
    return _mean(data, observation.loss(np.asarray(data.Y, np.float64), _predictor(data.X, coef, intercept)))


def _predictor(X, coef, intercept) -> np.ndarray:
    """Linear predictor in float64, without a float64 copy of X."""
    return np.concatenate(list(over_chunks(lambda rows: X[rows].astype(np.float64) @ coef + intercept, len(X))))


# ------------------------------------------------------------------------- groups


def _groups(model, groups) -> dict:
    """Name -> indices of the features."""
    names, d = _feature_names(model), model.n_features_in_
    if groups is None:
        return {name: [k] for k, name in enumerate(names)}
    if not hasattr(groups, "items"):
        labels = np.asarray(groups)
        if labels.shape != (d,):
            raise ValueError(f"groups has shape {labels.shape}; it needs a label per feature, ({d},), or be a dict.")
        return {str(label): np.flatnonzero(labels == label).tolist() for label in dict.fromkeys(labels.tolist())}
    place = {name: k for k, name in enumerate(names)}
    found = {}
    for name, members in groups.items():
        members = [members] if isinstance(members, str) else list(members)
        indices = [place.get(m, -1) if isinstance(m, str) else int(m) for m in members]
        bad = [m for m, k in zip(members, indices, strict=True) if not 0 <= k < d]
        if bad or not indices:
            raise ValueError(
                f"group {name!r} holds {bad or 'nothing'}; it needs names or indices (0 to {d - 1}) of features."
            )
        found[str(name)] = indices
    if not found:
        raise ValueError("groups is empty; name at least one group of features.")
    return found


def _fit_rest(model, data: Data, rest: np.ndarray):
    """Fit some of the features only; what does not converge is said by the table, not by a warning."""
    smaller = PopulationGLM(**model.get_params(deep=False))
    strength = model.regularizer_strength
    if strength is not None and np.ndim(strength) == 2:
        smaller.set_params(regularizer_strength=np.asarray(strength)[rest])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return smaller.fit(data.X[:, rest], data.Y, data.weights)
