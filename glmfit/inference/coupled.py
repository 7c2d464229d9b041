"""Fitted models with histories of their own neurons as features: filters, and the predictor without past spikes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import check_model
from ..data.arrays import numbers
from ..design.convolution import kernels_of
from ..display import counted
from ..estimators.model import check_is_fitted
from ..estimators.population_model import PopulationModel
from ..observations import Observation
from ..penalties.by_name import read_members


@dataclass(frozen=True)
class Coupled:
    """Model that is driven by its own counts.

    The predictor of target j at bin t is ``base[t, j] + sum over k, b, i of y[t - 1 - k, i] kernels[k, b] coef[b, i,
    j]``.
    """

    neuron: list
    observation: Observation
    silent: np.ndarray  # neurons whose rate is 0, (neuron,)
    kernels: np.ndarray  # (lag, kernel)
    coef: np.ndarray  # (kernel, source, target)
    base: np.ndarray  # predictor without any spike in the past, (time, target); one row if there are no inputs
    base_error: np.ndarray  # bound of its rounding, as base


def read_coupled(model: Any, basis: Any, columns: Any, inputs: Any) -> Coupled:
    """Check a fitted model and split its features into histories of every neuron, by this basis, and inputs."""
    check_model(model, PopulationModel, "glmfit.PopulationGLM, PopulationGLMCV or PopulationGAM.")
    check_is_fitted(model)
    kernels = kernels_of(basis, np.float64)
    coef, intercept = (np.asarray(part, np.float64) for part in model._matrix())
    neuron = list(model.report_.neuron)
    history, others = _columns(model, columns, len(neuron), kernels.shape[1])
    unknown = ~(np.isfinite(coef).all(axis=0) & np.isfinite(intercept))
    if unknown.any():
        name = neuron[int(np.argmax(unknown))]
        raise ValueError(f"neuron {name!r} has no coefficients, as after a fit without data; drop it and fit again.")
    driven = inputs is not None or len(others)
    values = _inputs(model, inputs, others) if driven else np.zeros((1, 0))
    rounding = (len(others) + 4) * np.finfo(np.float64).eps
    return Coupled(
        neuron=neuron,
        observation=model._observation(),
        silent=model._silent,
        kernels=kernels,
        coef=coef[history].reshape(len(neuron), kernels.shape[1], -1).transpose(1, 0, 2),
        base=values @ coef[others] + intercept,
        base_error=rounding * (np.abs(values) @ np.abs(coef[others]) + np.abs(intercept)),
    )


def _columns(model: Any, columns: Any, n_neurons: int, n_kernels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the features that are histories, by source and kernel, and the others in their order."""
    n_features, needed = model.n_features_in_, n_neurons * n_kernels
    names = getattr(model, "feature_names_in_", None)
    sizes = f"{n_neurons} neurons and {n_kernels} kernels of the basis make {needed} histories"
    if columns is None:
        if n_features < needed:
            raise ValueError(
                f"{sizes}, and the model has {n_features} features; it needs the history of every neuron. Give the "
                "basis of the fit, as (lag, basis)."
            )
        if n_features > needed:
            raise ValueError(
                f"{sizes}, and the model has {n_features} features: name the histories by columns=history.columns if "
                f"the fit had names, or columns=slice(0, {needed}) if they come first."
            )
        columns = slice(None)
    history = np.array(read_members("history", columns, n_features, names, "columns"))
    if len(history) != needed or len(np.unique(history)) != needed:
        raise ValueError(
            f"{sizes}, and columns has {len(np.unique(history))} different features; it must name each of them once, "
            "source by source as glmfit.design.Convolution orders them."
        )
    return history, np.setdiff1d(np.arange(n_features), history)


def _inputs(model: Any, inputs: Any, others: np.ndarray) -> np.ndarray:
    """Return the features that are not histories, float64 (time, input)."""
    what = f"{counted(len(others), 'feature')} of the fit, which are not histories"
    if inputs is None:
        raise ValueError(f"inputs is None; it must have {what}, (time, feature), in their order in the fit.")
    names = getattr(model, "feature_names_in_", None)
    given = getattr(inputs, "columns", None)
    values = numbers(inputs, "inputs", f"{what}, (time, feature)", "time", "feature")
    if values.shape[1] != len(others):
        raise ValueError(f"inputs has shape {values.shape}; it must be (time, {len(others)}): {what}.")
    if names is not None and given is not None and [str(c) for c in given] != [str(names[k]) for k in others]:
        raise ValueError(f"inputs has the columns {list(given)}; the fit had {[str(names[k]) for k in others]}.")
    if not len(values) or not np.isfinite(values).all():
        raise ValueError("inputs has no rows, or NaN or infinite values; every bin needs finite inputs.")
    return values
