"""One task: load the session, build the design, fit, write one file; what goes wrong is kept, and said."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import os
import platform
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import glmfit

from .._compile import compile_seconds, compiled_programs
from .._status import Status
from .._warn import warn_user
from ..design.builder import Built, build
from ._attempts import Attempt, deaths, ended, reason
from ._environment import machine_type
from ._estimators import make_estimator
from ._join import join_neurons
from ._results import check_result, is_whole, write_failure, write_result
from ._sources import identify, identity_of, load_session, stat_signature
from ._stop import is_stopped, stop
from ._task import Receipt, Task, Work

if TYPE_CHECKING:
    from ..estimators import MultinomialGLM, PopulationGLM, PopulationGLMCV, SoftmaxGLM

_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "scikit-learn", "equinox", "pynapple")


def do(work: Work) -> Receipt:
    """Do what was sent (the function that runs in workers)."""
    return run_one(work.task, work.out, work.manifest, work.tries)


def run_one(task: Task, out: str | Path, manifest: str = "", tries: int = 3) -> Receipt:
    """Fit one model to one session, and write the result to one file.

    Parameters
    ----------
    task : Task
        Of :meth:`Manifest.tasks`.
    out : str or pathlib.Path
        Output folder; ``results`` and ``failed`` below it are made.
    manifest : str
        Digest of the manifest, for the record.
    tries : int
        After so many attempts that ended their process, here or elsewhere, the fit has failed.

    Returns
    -------
    Receipt
        What became of it: "done", "found" (a whole result was there already) or "failed"; then the traceback is in
        ``failed/KEY.json``.

    Notes
    -----
    Whatever the data or the fit raise is kept and does not come out; Ctrl-C and SIGTERM do. The file appears whole or
    not at all, under the name of the content hash of configuration and data, so a task may be done twice, here or
    elsewhere, without harm.
    """
    out, worker = Path(out), f"{socket.gethostname()}:{os.getpid()}"
    if is_whole(out, task.key):
        return Receipt(task.key, task.session, task.model, "found", worker=worker)
    start = time.perf_counter()
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    facts = {"manifest": manifest, "worker": worker, "host": socket.gethostname(), "began": began}
    if "SLURM_JOB_ID" in os.environ:
        facts["slurm_job"] = os.environ["SLURM_JOB_ID"]
    attempt, writing = None, False
    try:
        earlier = deaths(out, task.key)
        if len(earlier) >= tries:
            raise RuntimeError(reason(earlier))
        writing = True
        for folder in ("results", "failed"):
            (out / folder).mkdir(parents=True, exist_ok=True)
        attempt = Attempt(out, task.key)
        writing = False
        model, more, arrays = _fit(task)
        facts |= more | {"versions": _versions(), "machine": machine_type()}
        facts["seconds"] = time.perf_counter() - start
        writing = True
        write_result(out, task, model, facts, arrays)
        attempt.end()
    except BaseException as error:  # of whatever kind, also sys.exit in a loader: the others go on
        if is_stopped():
            if attempt is not None:
                attempt.forget()
            raise
        if attempt is not None:
            attempt.end()
        unwritten = writing and isinstance(error, OSError)
        text = f"{type(error).__name__}: {error}"
        facts |= {"error": text, "traceback": traceback.format_exc(), "seconds": time.perf_counter() - start}
        try:
            if isinstance(error, DataChanged):
                ended(out, task.key)  # missing, not failed: the next run knows the data
            else:
                write_failure(out, task, facts)
        except OSError as second:  # a full disk: the receipt still tells
            text += f" (and its traceback could not be kept: {second})"
        return Receipt(task.key, task.session, task.model, "failed", facts["seconds"], text, worker, unwritten)
    return Receipt(task.key, task.session, task.model, "done", facts["seconds"], worker=worker)


def load_result(path: str | Path) -> PopulationGLM | PopulationGLMCV | SoftmaxGLM | MultinomialGLM:
    """Load the model of a result file.

    Parameters
    ----------
    path : str or pathlib.Path
        A file of ``OUT/results``.

    Returns
    -------
    PopulationGLM, PopulationGLMCV, SoftmaxGLM or MultinomialGLM
        Fitted.

    Raises
    ------
    ValueError
        If it is damaged or something else.
    """
    from .._files import DAMAGED, load_npz
    from ..estimators._model import model_from_file

    header, arrays = load_npz(path)
    try:
        check_result(header, arrays)
        return model_from_file(getattr(glmfit, header["class"]), header, arrays)
    except DAMAGED as error:
        raise ValueError(f"{path} is no whole result ({error}). Remove it and run the manifest again.") from error


def _fit(task: Task) -> tuple[Any, dict, dict]:
    """Fitted model, what is to be recorded of it, and arrays that go with it."""
    spec = task.spec
    built = _built(spec)
    compiled, programs = compile_seconds(), compiled_programs()
    double = jax.enable_x64(True) if spec["precision"] == "double" else nullcontext()
    with double, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = _fit_built(spec, built)
    said = sorted({str(w.message) for w in caught})
    facts = {
        "seconds_compile": compile_seconds() - compiled,
        "programs": compiled_programs() - programs,
        "warnings": said,
        "notes": built.notes,
        "targets": built.target_names,
        "n_rows": len(built.y),
    }
    names = built.feature_names + built.notes.get("own_names", [])
    return model, facts, {"design.feature_names": np.asarray(names, str)}


def _fit_built(spec: dict, built: Built) -> Any:
    """Fit one model to all neurons, or one to each with its own history."""
    given = {name: getattr(built, name) for name in ("sample_weight", "offset", "exposure")}
    given = {name: value for name, value in given.items() if value is not None}

    def fit(X, y):
        model = make_estimator(spec).fit(X, y, **given)
        _refuse_interrupted(model)
        n_rows, n_features = X.shape
        if n_rows < n_features:
            warn_user(f"{n_rows} rows for {n_features} features: only the penalty makes the fit unique.")
        return model

    if built.own is None:
        y = built.y
        if built.target_names is not None and np.ndim(y) == 2:
            y = _named(y, built.target_names)
        return fit(_named(built.X, built.feature_names), y)
    names = built.feature_names + built.notes["own_names"]
    models = [
        fit(_named(np.concatenate([built.X, own], axis=1), names), built.y[:, [n]]) for n, own in enumerate(built.own)
    ]
    return join_neurons(models, built.target_names)


def _named(X: np.ndarray, names: list[str]):
    """Columns with names, as estimators remember them."""
    import pandas as pd

    return pd.DataFrame(X, columns=names, copy=False)


def _refuse_interrupted(model) -> None:
    """Raise what the fit caught: a fit that was stopped half-way is not a result."""
    if np.any(np.asarray(model.report_.status) == Status.INTERRUPTED):
        stop()


class _LastOnly:
    """Remember the last session or design: tasks come session by session."""

    def __init__(self, make: Callable[[dict], Any]):
        self._make, self._kept, self._lock = make, None, threading.RLock()

    def __call__(self, spec: dict) -> Any:
        with self._lock:  # a client of the user's may have workers of several threads
            if self._kept is None or self._kept[0] != spec:
                self._kept = None  # let go before loading anew
                self._kept = spec, self._make(spec)
            return self._kept[1]


class DataChanged(RuntimeError):
    """The data are not those that the key of the task belongs to."""


def _load(source: dict):
    """Load the data that the key of the task belongs to, or raise: they may change at any time."""
    planned = source.get("planned")
    if planned is None:
        return load_session(source)
    before = stat_signature(source)  # None for a loader, whose module is quickly read
    if before is None or before != planned["files"]:
        before = _identify_again(source, planned["identity"])
    session = load_session(source)
    same = (
        identity_of(source, again=False) == planned["identity"] if before is None else stat_signature(source) == before
    )
    if not same:
        raise _changed(source)
    return session


def _identify_again(source: dict, identity: str) -> list | None:
    """Describe files that look other than they did and are the same; raise if they are not."""
    found, files = identify(source)
    if found != identity:
        raise _changed(source)
    return files


def _changed(source: dict) -> DataChanged:
    what = source.get("path") or f"loader {source['loader']}"
    return DataChanged(
        f"the data of this task, {what}, have changed since the run began. Run again: changed data are another task."
    )


_session = _LastOnly(_load)
_design = _LastOnly(lambda spec: build(_session(spec["source"]), spec["design"], spec["estimator"], dtype=_dtype(spec)))


def _built(spec: dict) -> Built:
    return _design({name: spec[name] for name in ("source", "design", "estimator", "precision")})


def _dtype(spec: dict) -> type:
    return np.float64 if spec["precision"] == "double" else np.float32


@functools.cache
def _versions() -> dict[str, str]:
    found = {"glmfit": glmfit.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "?"
    return found
