"""Common parts of all estimators: fits that complete or change nothing, and files of a JSON header and arrays."""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from abc import abstractmethod
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from ..bounds import StepCertificate
from ..checks import warn_user
from ..design import Basis, Term
from ..files import DAMAGED, load_npz, save_npz
from ..numerics import Seed
from .parameters import read_seed
from .report import report_of
from .scores import are_epochs, is_epochs

if TYPE_CHECKING:
    import pandas as pd

_OF_EVERY_MODEL = """
solver_kwargs : dict, optional
    Hyper-parameters of the named solver, such as ``{"batch_size": 2000}``.
random_state : int, numpy.random.RandomState, numpy.random.Generator, jax key or None
    Seed of all draws. None is 0: the same call gives the same answer.
verbose : bool
    Show a progress bar; it ends at 100 % as soon as all is decided.

Attributes
----------
report_ : FitReport, ClassReport or ResponseReport
    Status, distance from the optimum and more; ``print(model.report_)``.
n_iter_ : int
    Epochs of the fit."""
_OF_EVERY_FIT = """

Returns
-------
self
    Fitted. Ctrl-C leaves a usable model whose report says so.

Raises
------
ValueError, TypeError
    For invalid data or parameters; the message says what to do. The model is unchanged."""


class Model(BaseEstimator):
    """Common part of all estimators; their fits set ``report_``, and the state that `_write_state` saves."""

    report_class: ClassVar[type]

    def __init_subclass__(cls, **options):
        """Let constructors only list their parameters: these are stored as given, and others are refused."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _keeping(cls.__init__)
        if cls.__module__.partition(".")[0] == "glmfit":
            _complete(cls, r"\n\nAttributes\n-+", _OF_EVERY_MODEL)
            for name in vars(cls).keys() & {"fit", "partial_fit"}:  # further exceptions follow
                _complete(vars(cls)[name], r"\n\nRaises\n-+(?=\n)|(?=\n\n(?:Warns|Notes)\n)|$", _OF_EVERY_FIT)

    @property
    def n_iter_(self) -> int:
        """Epochs of the fit; for a population, those of the neuron that took most."""
        return int(np.max(self.report_.epochs))

    def _get_params_html(self, *args, **kwargs):
        """Parameters as scikit-learn shows them in a notebook: it compares intervals by NumPy, which warns."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Converting IntervalSet", UserWarning)
            return super()._get_params_html(*args, **kwargs)

    def _seed(self, random_state: Seed = None) -> int:
        """Seed of a draw; None takes the constructor's."""
        return read_seed(self.random_state if random_state is None else random_state)

    def save(self, path: str | Path) -> Path:
        """Save the fitted model to one .npz file (arrays and a JSON header; no pickle), atomically.

        Parameters
        ----------
        path : str or pathlib.Path
            File to write, ending in ".npz", which is added to a name without an extension.

        Returns
        -------
        pathlib.Path
            The file written.

        Raises
        ------
        NotFittedError, FileNotFoundError, ValueError, TypeError
            Before anything is written: for another extension, or parameters or labels that need pickle (TypeError).
        """
        check_is_fitted(self)
        return save_npz(path, *model_to_file(self))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a model that :meth:`save` wrote.

        Parameters
        ----------
        path : str or pathlib.Path
            The file.

        Returns
        -------
        PopulationGLM, SoftmaxGLM, MultinomialGLM or ResponseModel
            Fitted: coefficients, report and names. Pynapple metadata is not stored, nor is a ``cv`` that files cannot
            keep (a splitter, row indices): it becomes 5, with a warning.

        Raises
        ------
        ValueError
            If the file is not such a model.
        """
        return model_from_file(cls, *load_npz(path), what=str(path))

    @abstractmethod
    def _write_state(self, header: dict, arrays: dict) -> None:
        """Add to a file the state other than parameters and report."""

    @abstractmethod
    def _read_state(self, header: dict, arrays: dict) -> None:
        """Restore the state that `_write_state` wrote."""


class WholeFit:
    """Context of a fit that completes or leaves the model unchanged; it warns of fits that did not converge."""

    def __init__(self, model: Model):
        self._model, self._before = model, dict(vars(model))

    def __enter__(self) -> None: ...

    def __exit__(self, kind, *error) -> None:
        if kind is not None:  # checks have set n_features_in_ already
            vars(self._model).clear()
            vars(self._model).update(self._before)
        elif failure := self._model.report_._failure():
            warn_user(failure, ConvergenceWarning)


def _complete(documented, place: str, shared: str) -> None:
    """Insert text shared by many docstrings into one, at a pattern."""
    if documented.__doc__:
        documented.__doc__ = re.sub(place, shared, inspect.cleandoc(documented.__doc__), count=1)


def _keeping(init):
    """Make a constructor of the same signature that stores its parameters as given, as scikit-learn requires."""
    signature = inspect.signature(init)
    known = [
        name
        for name, one in list(signature.parameters.items())[1:]
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]

    @functools.wraps(init)
    def keep(self, *args, **parameters):
        try:
            given = signature.bind(self, *args, **parameters)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}; its parameters are {', '.join(known)}.") from None
        given.apply_defaults()
        vars(self).update((name, given.arguments[name]) for name in known)
        init(self, *args, **parameters)  # of a user's subclass, which may do more

    return keep


def rows_of_coefficients(model) -> pd.Index:
    """Name the rows of a frame of coefficients: features by name or number, then the intercept."""
    import pandas as pd

    names = getattr(model, "feature_names_in_", range(model.n_features_in_))
    return pd.Index([*names, "intercept"], name="feature", dtype=object)


# --------------------------------------------------------------------------------------------- files


def model_to_file(model) -> tuple[dict, dict[str, np.ndarray]]:
    """Return header and arrays of a fitted model."""
    arrays: dict[str, np.ndarray] = {}
    header = {
        "class": type(model).__name__,
        "parameters": {name: to_json(value, name) for name, value in model.get_params(deep=False).items()},
        "report": _record_to_file(model.report_, "report", arrays),
    }
    if hasattr(model, "coef_"):
        arrays.update(coef=model.coef_, intercept=np.asarray(model.intercept_))
    if hasattr(model, "feature_names_in_"):
        header["feature_names"] = [str(n) for n in model.feature_names_in_]
    model._write_state(header, arrays)
    return header, arrays


def model_from_file(cls, header: dict, arrays: dict[str, np.ndarray], what: str = "the file"):
    """Rebuild the model from header and arrays of a file, which errors name."""
    if header.get("class") != cls.__name__:
        raise ValueError(f"{what} holds a {header.get('class')}, not a {cls.__name__}; load it with that class.")
    try:
        model = cls(**{name: from_json(value) for name, value in header["parameters"].items()})
        tables = {f.name: _section(arrays, f"{f.name}.") for f in fields(cls.report_class) if f.default_factory is dict}
        report = {**header["report"], **_section(arrays, "report."), **tables}
        if report.get("step_certificate") is not None:
            step = {**report["step_certificate"], **_section(arrays, "step.")}
            report["step_certificate"] = StepCertificate(**step | {"assumptions": tuple(step["assumptions"])})
        model.report_ = report_of(cls.report_class, **report)
        if "coef" in arrays:
            _set_coefficients(model, header, arrays["coef"], arrays["intercept"])
        model._read_state(header, arrays)
    except DAMAGED as error:
        raise ValueError(f"{what} is not a complete {cls.__name__} ({type(error).__name__}: {error}).") from error
    return model


def _record_to_file(record, prefix: str, arrays: dict) -> dict:
    """Return scalars of a report, or of its certificate; arrays go to ``arrays``."""
    scalars: dict[str, Any] = {}
    for f in fields(record):
        value = getattr(record, f.name)
        if f.default_factory is dict:
            arrays.update({f"{f.name}.{k}": v for k, v in value.items()})
        elif isinstance(value, StepCertificate):
            scalars[f.name] = _record_to_file(value, "step", arrays)
        elif isinstance(value, np.ndarray):
            arrays[f"{prefix}.{f.name}"] = value.astype(int) if value.dtype == object else value  # statuses
        else:
            scalars[f.name] = value.item() if isinstance(value, np.generic) else value
    return scalars


def _section(arrays: dict, prefix: str) -> dict:
    """Select arrays whose names begin with the prefix, and remove it."""
    return {name[len(prefix) :]: value for name, value in arrays.items() if name.startswith(prefix)}


def _set_coefficients(model, header: dict, coef: np.ndarray, intercept: np.ndarray) -> None:
    if coef.dtype.kind != "f" or intercept.dtype.kind != "f" or not coef.ndim or intercept.shape != coef.shape[1:]:
        raise ValueError(
            f"coefficients are {coef.dtype} of shape {coef.shape}, intercepts {intercept.dtype} of {intercept.shape}"
        )
    model.coef_, model.intercept_ = coef, intercept
    model.n_features_in_ = len(model.coef_)
    if "feature_names" in header:
        model.feature_names_in_ = np.asarray(header["feature_names"], object)


def to_json(value: Any, name: str) -> Any:
    """Turn constructor parameters into JSON; arrays and tuples are tagged so that they come back as they were."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if is_epochs(value):
        return {"epochs": [np.asarray(ends, np.float64).tolist() for ends in (value.start, value.end)]}
    if name in ("random_state", "devices") or (name == "cv" and not are_epochs(value)):
        return None  # a generator has advanced since the fit, indices are of its rows, devices of one machine
    if isinstance(value, Basis):
        return {"basis": value.to_dict()}
    if isinstance(value, Term):
        known = value.basis is not None and value == Term._of_basis(value.features, value.basis.penalties, value.basis)
        of = [value.features, None if known else [S.tolist() for S in value.penalties], value.basis]
        return {"term": [to_json(part, name) for part in of]}
    if isinstance(value, dict):
        return {"items": [[to_json(k, name), to_json(v, name)] for k, v in value.items()]}
    if isinstance(value, slice):
        return {"slice": [to_json(part, name) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, list | tuple) or (isinstance(value, range) and name != "classes_"):
        values = [to_json(v, name) for v in value]
        return {"tuple": values} if isinstance(value, tuple) else values
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
    if not isinstance(value, dict):
        return value
    if "slice" in value:
        return slice(*value["slice"])
    if "tuple" in value:
        return tuple(from_json(value["tuple"]))
    if "array" in value:
        return np.asarray(value["array"], dtype=value["dtype"])
    if "basis" in value:
        return Basis.from_dict(value["basis"])
    if "term" in value:
        features, penalties, basis = (from_json(part) for part in value["term"])
        return (
            Term._of_basis(features, basis.penalties, basis) if penalties is None else Term(features, penalties, basis)
        )
    if "epochs" in value:
        from pynapple import IntervalSet  # which it was

        return IntervalSet(*value["epochs"])
    return {from_json(k): from_json(v) for k, v in value["items"]}
