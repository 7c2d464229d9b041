"""The information of a fit's rows on one neuron's coefficients."""

from __future__ import annotations

import numpy as np

from .. import observations
from ..problems._host import hessian
from ._fit import NO_OPTIMUM, Data, coefficients, moments, predictor, strength_of

_ABSENT = 1e-12  # curvature below this share of the largest, diagonal scaled to one: the data do not see it


class _Given:
    """An observation whose curvature is what stands in the place of the counts."""

    @staticmethod
    def curvature(y, eta):
        return y


def information(model, data: Data, i: int, coef, intercept, mean, scale, strength, covariance, combinations=None):
    """Compute standard errors (feature or combination,) and of the intercept, degrees of freedom, dispersion."""
    observation = observations.from_inverse_link(model.inverse_link_function)
    y = np.asarray(data.Y[:, i], np.float64)
    offset = data.offset_of(i)
    eta = predictor(data.X, coef, intercept, offset)
    rate = np.asarray(observation.rate(eta), np.float64)
    place = observation, coef, intercept, mean, scale, np.float64, offset
    n_rows, total = len(data.X), data.total
    # The curvature is linear in y: at the expected counts it is the expected one.
    J = n_rows * hessian(data.X, y if covariance == "observed" else rate, data.weights, *place)[0]
    H = J + np.diag(np.append(total * strength / scale**2, 0.0))
    inverse, outside = _inverse(H)
    spread = inverse
    if covariance == "robust":
        square = data.weights * np.asarray(observation.derivative(y, eta), np.float64) ** 2  # times the weights again
        middle = n_rows * hessian(data.X, square, data.weights, _Given, *place[1:])[0]
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


def degrees(model, data: Data) -> np.ndarray:
    """Effective degrees of freedom of every neuron, intercept included."""
    coef, intercept = coefficients(model)
    strength, (mean, scale) = strength_of(model, *coef.shape), moments(data)
    return np.array([
        0.0 if model.report_.status[i] in NO_OPTIMUM else
        information(model, data, i, coef[:, i], intercept[i], mean, scale, strength[:, i], "fisher")[2]
        for i in range(coef.shape[1])
    ])  # fmt: skip
