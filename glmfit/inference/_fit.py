"""The data of a fit, checked to be those, and what the fit says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import observations, penalties
from .._status import Status
from ..data.counts import read_training
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


class Data(NamedTuple):
    """Rows of a fit, checked to be those."""

    X: np.ndarray  # (time, feature)
    Y: np.ndarray  # (time, neuron), counts per unit of exposure
    weights: np.ndarray  # (time,), weights of mean one times exposure
    offset: np.ndarray | None  # (time, 1 or neuron)

    @property
    def total(self) -> float:
        """Sum of the weights: how many whole bins count."""
        return float(np.sum(self.weights))

    def offset_of(self, neuron: int):
        """Offset of one neuron, (time,), or None."""
        return None if self.offset is None else self.offset[:, neuron if self.offset.shape[1] > 1 else 0]


def data_of_fit(model, X, y, sample_weight, offset, exposure) -> Data:
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
    data = Data(rows.X, rows.Y, weights / np.mean(weights / exposure), rows.offset)
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


def _check_objective(model, data: Data) -> None:
    """Raise unless the objective is the one the fit ended with: the same numbers in another place are other data."""
    params, report = Params(*coefficients(model)), model.report_
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


def coefficients(model) -> tuple[np.ndarray, np.ndarray]:
    return model.coef_.reshape(model.n_features_in_, -1), np.atleast_1d(model.intercept_)


def feature_names(model) -> list:
    names = getattr(model, "feature_names_in_", range(model.n_features_in_))
    return [str(name) for name in names]


def strength_of(model, n_features: int, n_neurons: int) -> np.ndarray:
    """Ridge per coefficient, (feature, neuron)."""
    penalty = penalties.make(model.regularizer, model.strength_, n_features, n_neurons)
    return np.broadcast_to(np.asarray(penalty.ridge_strength, np.float64), (n_features, n_neurons))


def moments(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the features, 1 for a constant one."""
    mean = np.average(data.X, axis=0, weights=data.weights).astype(np.float64)
    square = np.average((np.asarray(data.X, np.float64) - mean) ** 2, axis=0, weights=data.weights)
    return mean, np.sqrt(np.where(square > 0, square, 1.0))


def mean(data: Data, values) -> np.ndarray:
    return np.average(np.asarray(values, np.float64), axis=0, weights=data.weights)


def mean_loss(data: Data, observation, coef, intercept) -> np.ndarray:
    """Mean loss without penalty, (neuron,)."""
    return mean(data, observation.loss(np.asarray(data.Y, np.float64), predictor(data.X, coef, intercept, data.offset)))


def predictor(X, coef, intercept, offset=None) -> np.ndarray:
    """Linear predictor in float64, (time, ...)."""
    eta = _host.predictor(X, coef, intercept)
    return eta if offset is None else eta + offset


def to_frame(neuron: list, second: str, names: list, values: dict) -> pd.DataFrame:
    """Rows of (second, neuron) arrays as a pandas DataFrame, one per neuron and name."""
    import pandas as pd

    index = pd.MultiIndex.from_product([neuron, names], names=["neuron", second])
    return pd.DataFrame({name: array.T.ravel() for name, array in values.items()}, index=index)
