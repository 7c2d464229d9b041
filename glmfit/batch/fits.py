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
from .held_out.explained import explain_built, to_file
from .held_out.scores import SCORES, score_built
from .models import make_estimator
from .plan import Receipt, Task
from .process import is_stopped, machine_type, stop
from .results import is_whole, write_failure, write_result
from .sources import DataChanged, load_planned

_last: dict[Callable, tuple[dict, Any]] = {}  # session and design, with what they were made of
_lock = threading.RLock()
_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "scikit-learn", "equinox", "pynapple")


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


def _fit(spec: dict) -> tuple[Any, dict, dict]:
    built = _remembered(_design, {name: spec[name] for name in ("source", "design", "estimator", "precision")})
    compiled, programs = compile_seconds(), compiled_programs()
    double = jax.enable_x64(True) if spec["precision"] == "double" else nullcontext()
    with double, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = _fit_built(spec, built)
        explanation, arrays = _explain(spec, built)
        scored, scores = _score(spec, built)
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
    names = built.feature_names + built.notes.get("own_names", [])
    return model, facts, {"design.feature_names": np.asarray(names, str), **arrays, **scores}


def _fit_built(spec: dict, built: Built) -> Any:
    """Fit one model to all neurons, or one to each with its own history."""
    models = []
    for X, y in _inputs(built):
        models.append(_fit_rows(spec, built, X, y, _given(built)))
        n_rows, n_features = X.shape
        if n_rows < n_features:
            warn_user(f"{n_rows} rows for {n_features} features: only the penalty makes the fit unique.")
    return models[0] if built.own is None else _join_neurons(models, built.target_names)


def _fit_rows(spec: dict, built: Built, X: Any, y: Any, given: dict[str, Any]) -> Any:
    """Fit one model to some rows of a design."""
    made = {"terms": built.smooth_terms, "feature_mask": built.feature_mask} if built.smooth_terms else {}
    model = make_estimator(spec, **made).fit(X, y, **given)
    if np.any(np.asarray(model.report_.status) == Status.INTERRUPTED):
        stop()  # a fit that was stopped half-way is not a result
    return model


def _score(spec: dict, built: Built) -> tuple[dict, dict]:
    """Score the model on held-out rows if the manifest asks for it; return entries of the header, and arrays."""
    if "score" not in spec:
        return {}, {}
    start, epochs = time.perf_counter(), _remembered(load_planned, spec["source"]).epochs
    fit = functools.partial(_fit_rows, spec, built)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores = score_built(spec["score"], built, _inputs(built), fit, _given(built), epochs)
    for text in sorted({str(w.message) for w in caught}):
        warn_user(f"in the fits of [model.score]: {text}")
    return {"seconds_score": time.perf_counter() - start}, {SCORES: scores}


def _explain(spec: dict, built: Built) -> tuple[dict, dict]:
    """Explain the responses if the manifest asks for it; return entries of the file's header, and arrays."""
    if "explain" not in spec:
        return {}, {}
    start, epochs = time.perf_counter(), _remembered(load_planned, spec["source"]).epochs
    found = explain_built(spec, built, _inputs(built), functools.partial(make_estimator, spec), _given(built), epochs)
    header, arrays = to_file(found)
    return {"explain": header, "seconds_explain": time.perf_counter() - start}, arrays


def _given(built: Built) -> dict[str, Any]:
    parts = {name: getattr(built, name) for name in ("sample_weight", "offset", "exposure")}
    return {name: value for name, value in parts.items() if value is not None}


def _inputs(built: Built) -> Iterator[tuple[Any, Any]]:
    """Yield features and responses of each fit: all neurons together, or each with its own history."""
    if built.own is None:
        has_names = built.target_names is not None and np.ndim(built.y) == 2
        y = _named(built.y, built.target_names) if has_names else built.y
        yield _named(built.X, built.feature_names), y
        return
    names = built.feature_names + built.notes["own_names"]
    for n, own in enumerate(built.own):
        yield _named(np.concatenate([built.X, own], axis=1), names), built.y[:, [n]]


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
