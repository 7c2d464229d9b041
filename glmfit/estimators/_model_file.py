"""A fitted model as a JSON header and arrays, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from .._files import DAMAGED
from .._status import Status, as_statuses
from ..bounds import StepCertificate
from ._folds import are_epochs, is_epochs


def model_to_file(model) -> tuple[dict, dict[str, np.ndarray]]:
    """Header and arrays of a fitted model."""
    header: dict[str, Any] = {"class": type(model).__name__}
    header["parameters"] = {name: to_json(value, name) for name, value in model.get_params(deep=False).items()}
    arrays: dict[str, np.ndarray] = {}
    header["report"] = _report_to_file(model.report_, arrays)
    model._write_state(header, arrays)
    return header, arrays


def model_from_file(cls, header: dict, arrays: dict[str, np.ndarray]):
    """Rebuild the model."""
    if header.get("class") != cls.__name__:
        raise ValueError(f"the file holds a {header.get('class')}, not a {cls.__name__}; load it with that class.")
    try:
        model = cls(**{name: from_json(value) for name, value in header["parameters"].items()})
        model.report_ = _report_from_file(cls.report_class, header["report"], arrays)
        model._read_state(header, arrays)
    except DAMAGED as error:
        raise ValueError(f"the file is not a whole {cls.__name__} ({type(error).__name__}: {error}).") from error
    return model


def coefficients_to_file(model, header: dict, arrays: dict) -> None:
    """Write coefficients, intercepts and names of features."""
    arrays.update(coef=model.coef_, intercept=np.asarray(model.intercept_))
    if hasattr(model, "feature_names_in_"):
        header["feature_names"] = [str(n) for n in model.feature_names_in_]


def coefficients_from_file(model, header: dict, arrays: dict) -> None:
    """Set what `coefficients_to_file` wrote."""
    model.coef_, model.intercept_ = arrays["coef"], arrays["intercept"]
    model.n_features_in_ = len(model.coef_)
    if "feature_names" in header:
        model.feature_names_in_ = np.asarray(header["feature_names"], object)


def _report_to_file(report, arrays: dict) -> dict:
    """Scalars of a report; its arrays go to ``arrays``."""
    scalars = {}
    for f in fields(report):
        value = getattr(report, f.name)
        if f.default_factory is dict:
            arrays.update({f"{f.name}.{k}": v for k, v in value.items()})
        elif f.name == "step_certificate":
            scalars[f.name] = None if value is None else certificate_to_file(value, arrays)
        elif isinstance(value, np.ndarray):
            arrays[f"report.{f.name}"] = value.astype(int) if f.name == "status" else value
        else:
            scalars[f.name] = value.item() if isinstance(value, np.generic) else value
    return scalars


def _report_from_file(cls, scalars: dict, arrays: dict):
    scalars = dict(scalars)
    if scalars.get("step_certificate") is not None:
        scalars["step_certificate"] = certificate_from_file(scalars["step_certificate"], arrays)
    if "status" in scalars:
        scalars["status"] = Status(scalars["status"])
    arrays = {name: as_statuses(a) if name == "report.status" else a for name, a in arrays.items()}
    tables = {f.name: section(arrays, f"{f.name}.") for f in fields(cls) if f.default_factory is dict}
    return cls(**scalars, **section(arrays, "report."), **tables)


def certificate_from_file(scalars: dict, arrays: dict) -> StepCertificate:
    """Rebuild a certificate."""
    scalars = {**scalars, "assumptions": tuple(scalars["assumptions"])}
    return StepCertificate(**scalars, **section(arrays, "step."))


def certificate_to_file(certificate: StepCertificate, arrays: dict) -> dict:
    """Scalars of a certificate; its arrays go to ``arrays``."""
    scalars = {}
    for f in fields(StepCertificate):
        value = getattr(certificate, f.name)
        if isinstance(value, np.ndarray):
            arrays[f"step.{f.name}"] = value
        else:
            scalars[f.name] = list(value) if isinstance(value, tuple) else value
    return scalars


def section(arrays: dict, prefix: str) -> dict:
    """Arrays whose names begin with the prefix, without it."""
    return {name[len(prefix) :]: value for name, value in arrays.items() if name.startswith(prefix)}


def to_json(value: Any, name: str) -> Any:
    """Turn constructor parameters into JSON; arrays and tuples are tagged so that they come back as they were."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if is_epochs(value):
        return {"epochs": [np.asarray(ends, np.float64).tolist() for ends in (value.start, value.end)]}
    if name in ("random_state", "devices") or (name == "cv" and not are_epochs(value)):
        return None  # a generator has moved on since the fit, indices are of its rows, devices of one machine
    if isinstance(value, tuple):
        return {"tuple": [to_json(v, name) for v in value]}
    if isinstance(value, list):
        return [to_json(v, name) for v in value]
    if isinstance(value, dict):
        return {"items": [[to_json(k, name), to_json(v, name)] for k, v in value.items()]}
    if isinstance(value, range) and name != "classes_":
        return list(value)
    if hasattr(value, "__array__") and np.asarray(value).dtype != object:
        return {"array": np.asarray(value).tolist(), "dtype": str(np.asarray(value).dtype)}
    if callable(value) and hasattr(value, "__name__") and name != "classes_":
        return value.__name__  # a link
    raise TypeError(
        f"{name} holds {value!r}, a {type(value).__name__}, which a file without pickle cannot keep. Use numbers, "
        "strings, lists, tuples, dicts or arrays."
    )


def from_json(value: Any) -> Any:
    """Undo `to_json`."""
    if isinstance(value, list):
        return [from_json(v) for v in value]
    if isinstance(value, dict):
        if "tuple" in value:
            return tuple(from_json(v) for v in value["tuple"])
        if "array" in value:
            return np.asarray(value["array"], dtype=value["dtype"])
        if "epochs" in value:
            from pynapple import IntervalSet  # which it was

            return IntervalSet(*value["epochs"])
        return {from_json(k): from_json(v) for k, v in value["items"]}
    return value
