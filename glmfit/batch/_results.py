"""The output folder: one file per fit that ended, one per fit that failed; files are the only state there is.

A result is a saved model (`PopulationGLM.load` reads it) whose JSON header has one entry more, ``batch``.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from .._files import DAMAGED, load_npz, open_regular, read_regular, remove_stale_parts, save_npz, whole_or_absent
from ._attempts import ended
from ._task import Task

_FACTS = {
    **dict.fromkeys(("key", "session", "model", "began", "host", "worker"), str),
    "spec": dict,
    "seconds": float | int,
    "bucket": str | None,
    "programs": int,
    "warnings": list,
    "n_rows": int,
}
_ARRAYS = ("coef", "intercept", "design.feature_names")


def result_path(out: Path, key: str) -> Path:
    """Where the result of a task lies."""
    return Path(out) / "results" / f"{key}.npz"


def failure_path(out: Path, key: str) -> Path:
    """Where the traceback of a task lies."""
    return Path(out) / "failed" / f"{key}.json"


def make_folders(out: Path) -> None:
    """Make the output folder, and remove what a process killed long ago was writing."""
    for folder in (Path(out) / "results", Path(out) / "failed"):
        folder.mkdir(parents=True, exist_ok=True)
        remove_stale_parts(folder)


def write_result(out: Path, task: Task, model, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Path:
    """Write the result of a task, whole or not at all; an earlier failure is forgotten."""
    from ..estimators._model_file import model_to_file

    header, model_arrays = model_to_file(model)
    header["batch"] = {"key": task.key, "session": task.session, "model": task.model, "spec": task.spec, **facts}
    path = save_npz(result_path(out, task.key), header, model_arrays | arrays)
    forget_failure(out, task.key)
    ended(out, task.key)
    return path


def forget_failure(out: Path, key: str) -> None:
    """Remove a kept traceback."""
    with contextlib.suppress(OSError):  # the result is there, and counts
        failure_path(out, key).unlink(missing_ok=True)


def read_result(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Read a result; every byte is checked on the way (the archive has checksums).

    Raises
    ------
    ValueError
        If the file is truncated, damaged or not a result.
    """
    try:
        header, arrays = load_npz(path)
        _check(header, Path(path))
        _check_arrays(*(arrays[name] for name in _ARRAYS))
    except FileNotFoundError:
        raise
    except DAMAGED as error:
        raise ValueError(f"{path} is not a whole result of a batch ({_said(error)}).") from error
    return header, arrays


def read_facts(path: Path) -> dict[str, Any]:
    """Read what a result's header says of the fit, without the arrays.

    Raises
    ------
    ValueError
        As `read_result`, as far as it is seen without reading all of it.
    """
    try:
        with open_regular(path) as raw, np.load(raw, allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes().decode())
    except DAMAGED as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is not a result of a batch ({_said(error)}).") from error
    _check(header, Path(path))
    return header["batch"]


def is_whole(out: Path, key: str) -> bool:
    """Whether a task's result is there and undamaged."""
    path = result_path(out, key)
    try:
        with (
            open_regular(path) as raw,
            zipfile.ZipFile(raw) as archive,
        ):  # every byte is read and checked, no arrays are built
            found = {name: archive.read(name) for name in archive.namelist()}
        header, *arrays = (
            np.lib.format.read_array(io.BytesIO(found[f"{name}.npy"]), allow_pickle=False)
            for name in ("header", *_ARRAYS)
        )
        _check(json.loads(header.tobytes()), path)
        _check_arrays(*arrays)
    except DAMAGED:
        return False
    return True


def write_failure(out: Path, task: Task, facts: dict[str, Any]) -> Path:
    """Keep the error and traceback of a task."""
    path = failure_path(out, task.key)
    write_text(path, json.dumps({"key": task.key, "session": task.session, "model": task.model, **facts}, indent=1))
    ended(out, task.key)
    return path


def read_failure(path: Path) -> dict[str, Any]:
    """Read a kept traceback; one that cannot be read says so."""
    try:
        found = json.loads(read_regular(path))
        if isinstance(found, dict):
            return found
    except DAMAGED:
        pass
    return {"key": Path(path).stem, "error": "the file with the traceback cannot be read", "traceback": ""}


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with whole_or_absent(path) as file:
        file.write(text.encode())


def _check(header: dict, path: Path) -> None:
    """Raise unless the header is that of the task the file is named after."""
    batch = header.get("batch")
    if not isinstance(batch, dict) or batch.get("key") != path.stem:
        raise ValueError(f"{path} is not the result of the task it is named after.")
    wrong = [name for name, kind in _FACTS.items() if not isinstance(batch.get(name), kind)]
    if wrong or not isinstance(header.get("report"), dict):
        raise ValueError(f"{path} does not say all of its fit, or not as it should ({', '.join(wrong) or 'report'}).")
    datetime.datetime.fromisoformat(batch["began"])
    if "seed" not in batch["spec"] or not all(isinstance(text, str) for text in batch["warnings"]):
        raise ValueError(f"{path} does not say all of its fit (seed, warnings).")


def _check_arrays(coef: np.ndarray, intercept: np.ndarray, names: np.ndarray) -> None:
    """Raise unless coefficients, intercepts and names of features fit together."""
    if coef.dtype.kind != "f" or intercept.dtype.kind != "f":
        raise ValueError("coef and intercept are not numbers")
    if coef.size != names.size * intercept.size or coef.shape[:1] != names.shape:
        raise ValueError(f"coef has shape {coef.shape}, with {names.size} features and {intercept.size} intercepts")


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
