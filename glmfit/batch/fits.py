"""One task: load the session, build the design, fit, write one file; errors are kept and reported."""

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
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import glmfit

from ..checks import warn_user
from ..compilation import compile_seconds, compiled_programs
from ..design.builder import Built, build
from ..status import Status
from .at_work import Attempt, deaths, ended, reason
from .held_out.explained import explain_task, to_file
from .held_out.scores import SCORES, score_task
from .models import make_estimator
from .plan import Receipt, Task
from .process import NEEDS_GPU, is_stopped, machine_type, stop
from .results import is_whole, write_failure, write_result
from .sources import DataChanged, load_planned

_last: dict[Callable, tuple[dict, Any]] = {}  # session and design, with what they were made of
_lock = threading.RLock()
_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "scikit-learn", "equinox", "pynapple")


def _refuse_other_devices() -> None:
    """Raise RuntimeError in a worker for a GPU that has none: jax would use the CPU without a word."""
    if NEEDS_GPU in os.environ and jax.default_backend() != "gpu":
        raise RuntimeError("a GPU is requested, but jax finds none here: install jax[cuda12], or omit gpus.")


def run_one(task: Task, out: str | Path, manifest: str = "", tries: int = 3) -> Receipt:
    """Fit one model to one session, and write the result to one file.

    Parameters
    ----------
    task, out : Task, str or pathlib.Path
        A task of :meth:`Manifest.tasks`; output folder, in which ``results`` and ``failed`` are made.
    manifest : str
        Digest of the manifest, for the record.
    tries : int
        Number of attempts that ended their process, here or elsewhere, after which the fit has failed.

    Returns
    -------
    Receipt
        Outcome: "done", "found" (a whole result was there already) or "failed", with the traceback in
        ``failed/KEY.json``.

    Notes
    -----
    Errors of the data or the fit are kept and not raised; Ctrl-C and SIGTERM are raised. The file is written whole or
    not at all, named by a hash of configuration and data, so a task may be done twice, anywhere, without harm.
    """
    out, host = Path(out), socket.gethostname()
    receipt = functools.partial(Receipt, task.key, task.session, task.model, worker=f"{host}:{os.getpid()}")
    if is_whole(out, task.key):
        return receipt("found")
    start = time.perf_counter()
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    facts = {"manifest": manifest, "worker": f"{host}:{os.getpid()}", "host": host, "began": began}
    if "SLURM_JOB_ID" in os.environ:
        facts["slurm_job"] = os.environ["SLURM_JOB_ID"]
    attempt, writing = None, False
    try:
        _refuse_other_devices()
        earlier = deaths(out, task.key)
        if len(earlier) >= tries:
            raise RuntimeError(reason(earlier))
        writing = True
        for folder in ("results", "failed"):
            (out / folder).mkdir(parents=True, exist_ok=True)
        attempt = Attempt(out, task.key)
        writing = False
        model, more, arrays = _fit(task.spec)
        facts |= more | {"versions": _versions(), "machine": machine_type(), "seconds": time.perf_counter() - start}
        writing = True
        write_result(out, task, model, facts, arrays)
        attempt.end()
    except BaseException as error:  # of any kind, even sys.exit in a loader: the others continue
        if attempt is not None:
            (attempt.forget if is_stopped() else attempt.end)()
        if is_stopped():
            raise
        unwritten = writing and isinstance(error, OSError)
        text = f"{type(error).__name__}: {error}"
        facts |= {"error": text, "traceback": traceback.format_exc(), "seconds": time.perf_counter() - start}
        try:
            if isinstance(error, DataChanged):
                ended(out, task.key)  # missing, not failed: the next run knows the data
            else:
                write_failure(out, task, facts)
        except OSError as second:  # a full disk: the receipt still reports it
            text += f" (and its traceback could not be kept: {second})"
        return receipt("failed", facts["seconds"], text, unwritten=unwritten)
    return receipt("done", facts["seconds"], warned=bool(facts["warnings"]))


class Work:
    """What a task's fit, its scores on held-out rows and its explanation share."""

    def __init__(self, spec: dict):
        self.spec = spec
        asked = {name: spec[name] for name in ("source", "design", "estimator", "precision")}
        self.built: Built = _remembered(_design, asked)
        self.names: list[str] = self.built.feature_names + self.built.notes.get("own_names", [])  # of features
        parts = {name: getattr(self.built, name) for name in ("sample_weight", "offset", "exposure")}
        self.given = {name: value for name, value in parts.items() if value is not None}  # arguments of ``fit``

    @property
    def epochs(self) -> dict[str, np.ndarray]:
        """Sets of intervals of the session."""
        return _remembered(load_planned, self.spec["source"]).epochs

    def inputs(self) -> Iterator[tuple[Any, Any]]:
        """Yield features and responses of each fit: all neurons together, or each with its own history."""
        built = self.built
        if built.own is None:
            has_names = built.target_names is not None and np.ndim(built.y) == 2
            y = _named(built.y, built.target_names) if has_names else built.y
            yield _named(built.X, self.names), y
            return
        for n, own in enumerate(built.own):
            yield _named(np.concatenate([built.X, own], axis=1), self.names), built.y[:, [n]]

    def fit(self, X: Any, y: Any, given: dict[str, Any]) -> Any:
        """Fit one model to some rows of the design."""
        terms = self.built.smooth_terms
        made = {"terms": terms, "feature_mask": self.built.feature_mask} if terms else {}
        model = make_estimator(self.spec, **made).fit(X, y, **given)
        if np.any(np.asarray(model.report_.status) == Status.INTERRUPTED):
            stop()  # a fit that was stopped half-way is not a result
        return model


def _fit(spec: dict) -> tuple[Any, dict, dict]:
    work = Work(spec)
    built = work.built
    compiled, programs = compile_seconds(), compiled_programs()
    double = jax.enable_x64(True) if spec["precision"] == "double" else nullcontext()
    with double, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = _fit_all(work)
        explanation, arrays = _explain(work)
        scored, scores = _score(work)
    facts = {
        "seconds_compile": compile_seconds() - compiled,
        "programs": compiled_programs() - programs,
        "warnings": sorted({str(w.message) for w in caught}),
        "notes": built.notes,
        "targets": built.target_names,
        "n_rows": len(built.y),
        **explanation,
        **scored,
    }
    return model, facts, {"design.feature_names": np.asarray(work.names, str), **arrays, **scores}


def _fit_all(work: Work) -> Any:
    """Fit one model to all neurons, or one to each with its own history."""
    models = []
    for X, y in work.inputs():
        models.append(work.fit(X, y, work.given))
        n_rows, n_features = X.shape
        if n_rows < n_features:
            warn_user(f"{n_rows} rows for {n_features} features: only the penalty makes the fit unique.")
    return models[0] if work.built.own is None else _join_neurons(models, work.built.target_names)


def _score(work: Work) -> tuple[dict, dict]:
    """Score the model on held-out rows if the manifest asks for it; return entries of the header, and arrays."""
    if "score" not in work.spec:
        return {}, {}
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores = score_task(work)
    for text in sorted({str(w.message) for w in caught}):
        warn_user(f"in the fits of [model.score]: {text}")
    return {"seconds_score": time.perf_counter() - start}, {SCORES: scores}


def _explain(work: Work) -> tuple[dict, dict]:
    """Explain the responses if the manifest asks for it; return entries of the file's header, and arrays."""
    if "explain" not in work.spec:
        return {}, {}
    start = time.perf_counter()
    header, arrays = to_file(explain_task(work))
    return {"explain": header, "seconds_explain": time.perf_counter() - start}, arrays


def _named(X: np.ndarray, names: list[str]):
    import pandas as pd

    return pd.DataFrame(X, columns=names, copy=False)


def _join_neurons(models: list, names: list[str]):
    """Join models of one neuron each, with equal numbers of features, to one PopulationGLM, without a history.

    The bounds are those of the single fits, and their failure probabilities are summed.
    """
    joined, reports = models[0], [m.report_ for m in models]
    steps = [report.step_certificate for report in reports]
    joined.coef_ = np.concatenate([m.coef_ for m in models], axis=1)
    joined.intercept_ = np.concatenate([m.intercept_ for m in models])
    if isinstance(joined.strength_, np.ndarray):  # chosen for every neuron
        joined.strength_ = np.concatenate([m.strength_ for m in models], axis=-1)
    joined.report_ = _side_by_side(
        reports,
        sums=("failure_probability", "seconds_run", "seconds_compile"),
        neuron=list(names),
        row_evals=max(r.row_evals for r in reports),
        rank=min(r.rank for r in reports),
        solver_name="/".join(sorted({r.solver_name for r in reports})),
        step_certificate=None
        if any(step is None for step in steps)
        else _side_by_side(
            steps,
            sums=("failure_probability",),
            assumptions=tuple(dict.fromkeys(a for step in steps for a in step.assumptions)),
            certified=all(step.certified for step in steps),
        ),
        history={},
    )
    return joined


def _side_by_side(parts: list, sums: tuple[str, ...], **changes: Any) -> Any:
    """Concatenate the arrays of records of one neuron each, sum some of their numbers, and set the rest."""
    arrays = [f.name for f in fields(parts[0]) if isinstance(getattr(parts[0], f.name), np.ndarray)]
    changes |= {name: sum(getattr(part, name) for part in parts) for name in sums}
    return replace(parts[0], **{name: np.concatenate([getattr(p, name) for p in parts]) for name in arrays}, **changes)


def _remembered(make: Callable[[dict], Any], spec: dict) -> Any:
    """Make something, or return the last one if its spec is the same: tasks come session by session."""
    with _lock:  # workers of a user's client may have several threads
        if make not in _last or _last[make][0] != spec:
            _last.pop(make, None)  # released before the next is loaded
            _last[make] = spec, make(spec)
        return _last[make][1]


def _design(spec: dict) -> Built:
    dtype = np.float64 if spec["precision"] == "double" else np.float32
    return build(_remembered(load_planned, spec["source"]), spec["design"], spec["estimator"], dtype=dtype)


@functools.cache
def _versions() -> dict[str, str]:
    found = {"glmfit": glmfit.__version__, "python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in _LIBRARIES}
