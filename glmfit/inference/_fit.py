"""The data of a fit, checked to be those, and their information on its coefficients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .. import observations, penalties
from .._status import Status
from ..data.counts import Training, read_training
from ..design import as_source
from ..estimators import PopulationGLM
from ..estimators._model import check_is_fitted
from ..estimators._streaming import as_arrays, bytes_in_memory
from ..problems import Params, PopulationProblem, _host

if TYPE_CHECKING:
    import pandas as pd

NO_OPTIMUM = (Status.NO_SPIKES, Status.SEPARABLE, Status.NON_FINITE)
_MOST_FEATURES = 2000
_SMOOTH = ("UnRegularized", "Ridge")
_ROUNDING = 1e-6  # of objectives of the same data
_ABSENT = 1e-12  # curvature below this share of the largest, diagonal scaled to one: the data do not see it


def data_of_fit(model, X, y, sample_weight, offset, exposure) -> Training:
    """Check the model and that these are the rows it was fitted to."""
    if not isinstance(model, PopulationGLM):
        of = f"{type(model).__module__.partition('.')[0]}.{type(model).__name__}"
        raise TypeError(
            f"model is a {of}; it must be a fitted glmfit.PopulationGLM, of which standard errors are known."
        )
    if model.regularizer not in (*_SMOOTH, None):
        raise ValueError(
            f"the model was fitted with {model.regularizer}, which selects coefficients, so that they have no standard "
            "errors of this kind; fit the selected features again with UnRegularized or Ridge."
        )
    X, y = _load(model, X, y)
    check_is_fitted(model)
    rows = read_training(model, X, y, sample_weight, offset, exposure, reset=False)
    if rows.X.shape[1] > _MOST_FEATURES:
        raise ValueError(f"X has {rows.X.shape[1]} features; the information matrix is formed up to {_MOST_FEATURES}.")
    report = model.report_
    if len(rows.X) != report.n_rows:
        raise ValueError(f"X has {len(rows.X)} rows that count, the fit had {report.n_rows}; give the data of the fit.")
    if not np.allclose(rows.spike_count, report.spike_count, rtol=1e-5):
        raise ValueError("y holds other numbers of spikes than the fit had; give the data of the fit.")
    weights, exposure = (np.ones(len(rows.X)) if a is None else a for a in (rows.weights, rows.exposure))
    data = replace(rows, weights=weights / np.mean(weights / exposure))  # of mean one, times the exposure
    _check_objective(model, data)
    return data


def _load(model, X, y):
    """Load what rows are read from, as the fit did where it fits in memory."""
    source = as_source(X)
    if source is not None and hasattr(model, "report_"):
        needed = bytes_in_memory(source.shape, len(model.report_.neuron), source.dtype)
        if needed > model.max_memory:
            raise ValueError(
                f"X is {source!r}, of which standard errors need all rows in memory: {needed} bytes, and max_memory "
                f"is {model.max_memory:g}. Raise it, model.set_params(max_memory={needed}), or fit some of the "
                "rows and give those."
            )
    return as_arrays(X, y)


def _check_objective(model, data: Training) -> None:
    """Raise unless the objective is the one the fit ended with: the same numbers in another place are other data."""
    params, report = Params(*model._matrix()), model.report_
    observation = observations.from_inverse_link(model.inverse_link_function)
    penalty = penalties.make(model.regularizer, model.strength_, *params.coef.shape)
    problem = PopulationProblem(data.X, data.Y, observation, penalty, data.weights, offset=data.offset)
    objective = problem.evaluate(params).objective
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


def feature_names(model) -> list:
    names = getattr(model, "feature_names_in_", range(model.n_features_in_))
    return [str(name) for name in names]


def strength_of(model, n_features: int, n_neurons: int) -> np.ndarray:
    """Ridge per coefficient, (feature, neuron)."""
    penalty = penalties.make(model.regularizer, model.strength_, n_features, n_neurons)
    return np.broadcast_to(np.asarray(penalty.ridge_strength, np.float64), (n_features, n_neurons))


def moments(data: Training) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the features, 1 for a constant one."""
    mean = np.average(data.X, axis=0, weights=data.weights).astype(np.float64)
    square = np.average((np.asarray(data.X, np.float64) - mean) ** 2, axis=0, weights=data.weights)
    return mean, np.sqrt(np.where(square > 0, square, 1.0))


def mean(data: Training, values) -> np.ndarray:
    return np.average(np.asarray(values, np.float64), axis=0, weights=data.weights)


def mean_loss(data: Training, observation, coef, intercept) -> np.ndarray:
    """Mean loss without penalty, (neuron,)."""
    return mean(data, observation.loss(np.asarray(data.Y, np.float64), predictor(data.X, coef, intercept, data.offset)))


def predictor(X, coef, intercept, offset=None) -> np.ndarray:
    """Linear predictor in float64, (time, ...)."""
    eta = _host.predictor(X, coef, intercept)
    return eta if offset is None else eta + offset


class _Given:
    """An observation whose curvature is what stands in the place of the counts."""

    @staticmethod
    def curvature(y, eta):
        return y


def information(model, data: Training, i: int, coef, intercept, mean, scale, strength, covariance, combinations=None):
    """Compute standard errors (feature or combination,) and of the intercept, degrees of freedom, dispersion."""
    observation = observations.from_inverse_link(model.inverse_link_function)
    y = np.asarray(data.Y[:, i], np.float64)
    offset = None if data.offset is None else data.offset[:, i if data.offset.shape[1] > 1 else 0]
    eta = predictor(data.X, coef, intercept, offset)
    rate = np.asarray(observation.rate(eta), np.float64)
    place = observation, coef, intercept, mean, scale, np.float64, offset
    n_rows, total = len(data.X), data.weights.sum()
    # The curvature is linear in y: at the expected counts it is the expected one.
    J = n_rows * _host.hessian(data.X, y if covariance == "observed" else rate, data.weights, *place)[0]
    H = J + np.diag(np.append(total * strength / scale**2, 0.0))
    inverse, outside = _inverse(H)
    spread = inverse
    if covariance == "robust":
        square = data.weights * np.asarray(observation.derivative(y, eta), np.float64) ** 2  # times the weights again
        middle = n_rows * _host.hessian(data.X, square, data.weights, _Given, *place[1:])[0]
        spread = inverse @ middle @ inverse
    # From standardised features to the user's: coef = v / scale, intercept = v_0 - (mean / scale) v.
    wanted = np.diag(1 / scale) if combinations is None else combinations / scale
    back = np.vstack([np.append(wanted, np.zeros((len(wanted), 1)), axis=1), np.append(-mean / scale, 1.0)])
    variance = np.einsum("ij,jk,ik->i", back, spread, back)
    undetermined = np.linalg.norm(back @ outside, axis=1) > 1e-6 * np.linalg.norm(back, axis=1)
    error = np.where(undetermined, np.inf, np.sqrt(np.maximum(variance, 0.0)))
    df = float(np.sum(inverse * J.T))
    with np.errstate(divide="ignore", invalid="ignore"):
        pearson = np.sum(data.weights * np.where(rate > 0, (y - rate) ** 2 / np.maximum(rate, 1e-300), 0.0))
    return error[:-1], error[-1], df, pearson / (n_rows - df) if n_rows > df else np.nan


def _inverse(H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverse of a Hessian on the directions that have curvature, and the others, (column, direction)."""
    diagonal = np.diag(H)
    root = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh(H / np.outer(root, root))
    kept = values > _ABSENT * max(values[-1], 0.0)
    inside = vectors[:, kept] / np.sqrt(values[kept]) / root[:, None]
    return inside @ inside.T, vectors[:, ~kept] / root[:, None]


def degrees(model, data: Training) -> np.ndarray:
    """Effective degrees of freedom of every neuron, intercept included."""
    coef, intercept = model._matrix()
    strength, (mean, scale) = strength_of(model, *coef.shape), moments(data)
    return np.array([
        0.0 if model.report_.status[i] in NO_OPTIMUM else
        information(model, data, i, coef[:, i], intercept[i], mean, scale, strength[:, i], "fisher")[2]
        for i in range(coef.shape[1])
    ])  # fmt: skip


def to_frame(neuron: list, second: str, names: list, values: dict) -> pd.DataFrame:
    """Rows of (second, neuron) arrays as a pandas DataFrame, one per neuron and name."""
    import pandas as pd

    index = pd.MultiIndex.from_product([neuron, names], names=["neuron", second])
    return pd.DataFrame({name: array.T.ravel() for name, array in values.items()}, index=index)
