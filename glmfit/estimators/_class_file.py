"""A fitted model of classes as a JSON header and arrays, and back."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from .._status import Status
from ._class_report import ClassReport
from ._model_file import certificate_from_file, certificate_to_file, from_json, section, to_json
from ._validation import TimeAxis


def class_model_to_file(model) -> tuple[dict, dict[str, np.ndarray]]:
    """Header and arrays of a fitted model."""
    header = {"class": type(model).__name__}
    header["parameters"] = {name: to_json(value, name) for name, value in model.get_params(deep=False).items()}
    header["pynapple_columns"] = getattr(model, "_columns", None) is not None
    if hasattr(model, "feature_names_in_"):
        header["feature_names"] = [str(n) for n in model.feature_names_in_]
    arrays = {"coef": model.coef_, "intercept": model.intercept_}
    if hasattr(model, "stream_"):
        *header["stream"], arrays["stream_totals"] = model.stream_
    if hasattr(model, "stream_step_"):
        header["stream_step"] = model.stream_step_
    if model.classes_.dtype.kind == "O":
        header["classes"] = [to_json(label, "classes_") for label in model.classes_.tolist()]
    else:
        arrays["classes"] = model.classes_
    report = {}
    for f in fields(ClassReport):
        value = getattr(model.report_, f.name)
        if f.name == "history":
            arrays.update({f"history.{k}": v for k, v in value.items()})
        elif f.name == "step_certificate":
            report[f.name] = None if value is None else certificate_to_file(value, arrays)
        elif isinstance(value, np.ndarray):
            arrays[f"report.{f.name}"] = value
        else:
            report[f.name] = value.item() if isinstance(value, np.generic) else value
    header["report"] = report
    return header, arrays


def class_model_from_file(cls, header: dict, arrays: dict[str, np.ndarray]):
    """Rebuild the model."""
    if header.get("class") != cls.__name__:
        raise ValueError(f"the file holds a {header.get('class')}, not a {cls.__name__}; load it with that class.")
    try:
        return _rebuild(cls, header, arrays)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"the file is not a whole {cls.__name__} ({type(error).__name__}: {error}).") from error


def _rebuild(cls, header: dict, arrays: dict[str, np.ndarray]):
    model = cls(**{name: from_json(value) for name, value in header["parameters"].items()})
    model.coef_, model.intercept_ = arrays["coef"], arrays["intercept"]
    model.n_features_in_ = len(model.coef_)
    if "feature_names" in header:
        model.feature_names_in_ = np.asarray(header["feature_names"], object)
    if "classes" in arrays:
        model.classes_ = arrays["classes"]
    else:
        model.classes_ = np.empty(len(header["classes"]), object)
        model.classes_[:] = [from_json(label) for label in header["classes"]]
    if "stream_totals" in arrays:
        model.stream_ = (*header["stream"], arrays["stream_totals"])
    if "stream_step" in header:
        model.stream_step_ = header["stream_step"]
    if cls.__name__ == "MultinomialGLM":
        model._columns = TimeAxis(np.empty(0), None, model.classes_) if header["pynapple_columns"] else None
    report = dict(header["report"])
    report["status"] = Status(report["status"])
    if report["step_certificate"] is not None:
        report["step_certificate"] = certificate_from_file(report["step_certificate"], arrays)
    model.report_ = ClassReport(**report, **section(arrays, "report."), history=section(arrays, "history."))
    return model
