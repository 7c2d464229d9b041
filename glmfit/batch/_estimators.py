"""Estimators that a manifest may name; they are imported when they are needed."""

from __future__ import annotations

import inspect
from typing import Any

import glmfit

from ..design.settings import COUNT_ESTIMATORS

ESTIMATORS = (*COUNT_ESTIMATORS, "SoftmaxGLM", "MultinomialGLM")
_SET_ELSEWHERE = {
    "random_state": "is set by the manifest's seed",
    "pad_shapes": "is without effect since version 0.2; leave it out",
    "devices": "is not for batches: a worker has one device",
    "verbose": "is not for batches: nobody would see it",
}


def parameters_of(estimator: str) -> list[str]:
    """Parameters that a manifest may set."""
    names = inspect.signature(getattr(glmfit, estimator)).parameters
    return [name for name in names if name not in _SET_ELSEWHERE]


def why_not(parameter: str) -> str | None:
    """Why a manifest may not set a parameter that the estimator has."""
    return _SET_ELSEWHERE.get(parameter)


def make_estimator(spec: dict[str, Any]) -> Any:
    """Make the estimator of a task's spec, not fitted.

    Lists of the manifest become what the estimator takes: a pair of strength and ratio for the elastic net.
    """
    parameters = dict(spec["parameters"])
    strength = parameters.get("regularizer_strength")
    if parameters.get("regularizer") == "ElasticNet" and isinstance(strength, list) and len(strength) == 2:
        parameters["regularizer_strength"] = tuple(strength)
    return getattr(glmfit, spec["estimator"])(**parameters, random_state=spec["seed"])
