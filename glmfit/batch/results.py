"""Output folder: one file per completed fit, one per failed fit; files are the only state.

A result is a saved model (`PopulationGLM.load` reads it) whose JSON header has one more entry, ``batch``.
"""

import contextlib
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..design.rules import guess
from ..design.schema import CLASS_ESTIMATORS, GAM, HISTORY
from ..files import DAMAGED, FORMAT, read_npz, read_regular, remove_stale_parts, save_npz
from ..status import Status
from .at_work import ended
from .held_out.explained import check_explanation
from .held_out.scores import SCORES
from .plan import Task, key_of, read_plan, write_text

_MOST = 2**53  # larger numbers do not come from a fit, and no table takes them
_FACTS = dict.fromkeys(("key", "session", "model", "began", "host", "worker"), str)
_FACTS |= {"spec": dict, "seconds": float | int, "programs": int, "n_rows": int, "warnings": list}
# Entries needed to load a model, by the class that wrote it; importing the classes would take longer than
# reading thousands of results.
_BOTH = (
    "status gap gap_is_bound relative_gap target objective null_objective pseudo_r2 epochs row_evals n_rows n_dropped "
    "n_features solver_name step_certificate failure_probability seconds_run seconds_compile"
).split()
_POPULATION = {*_BOTH, "neuron", "spike_count", "rank"}
_CLASSES = {*_BOTH, "gap_theorem", "class_totals", "n_empty", "n_classes", "classes"}
_CV = (
    "strengths_ cv_scores_ strength_ best_strength_ one_se_strength_ coef_path_ intercept_path_ cv_gap_ "
    "cv_gap_is_bound_ cv_converged_"
).split()
NEEDED = {"PopulationGLM": _POPULATION, "PopulationGLMCV": _POPULATION | {f"cv.{name}" for name in _CV}}
_SMOOTH = "places turn mean gram coordinates degrees degrees_of_tests scale".split()
NEEDED[GAM] = _POPULATION | {"strengths_by", "term", "edf", "strength_gradient", "at_end"}
NEEDED[GAM] |= {f"smooth.{name}" for name in _SMOOTH}
_CLASS_CV = {f"cv.{name}" for name in _CV} - {"cv.strength_", "cv.coef_path_", "cv.intercept_path_"}
NEEDED |= {"SoftmaxGLM": _CLASSES, "MultinomialGLM": _CLASSES | {"pynapple_columns"}}
NEEDED |= {f"{name}CV": NEEDED[name] | _CLASS_CV for name in ("SoftmaxGLM", "MultinomialGLM")}


def result_path(out: Path, key: str) -> Path:
    return out / "results" / f"{key}.npz"


def find_result(out: Path, session: str | None, model: str | None) -> Path:
    """Find the file of one fit by the names of its session and its model; raises as `load_result`."""
    left = read_plan(out)
    for kind, name in (("session", session), ("model", model)):
        names = dict.fromkeys(getattr(task, kind) for task in left)
        left = [task for task in left if name is None or getattr(task, kind) == name]
        if not left:
            of = f' for the session "{session}"' if kind == "model" and session is not None else ""
            raise ValueError(f'{out} has no {kind} "{name}"{of}{guess(str(name), names)[:300]}')
    if len(left) > 1:
        some = ", ".join(f'"{task.session}" and "{task.model}"' for task in left[:3])
        raise ValueError(f"{out} has {len(left)} such fits, of session and model {some}, ...: name both.")
    if not (path := result_path(out, left[0].key)).exists():
        why = "it failed" if failure_path(out, left[0].key).exists() else "it is still to be done"
        raise FileNotFoundError(f'{out} has no result of "{left[0].model}" on "{left[0].session}": {why}.')
    return path


def failure_path(out: Path, key: str) -> Path:
    return out / "failed" / f"{key}.json"


def make_folders(out: Path) -> None:
    """Make the output folder, and remove unfinished files of processes killed long ago."""
    for folder in (out / "results", out / "failed"):
        folder.mkdir(parents=True, exist_ok=True)
        remove_stale_parts(folder)


def write_result(out: Path, task: Task, model, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write the result of a task, whole or not at all; an earlier failure is forgotten."""
    from ..estimators.model import model_to_file

    header, model_arrays = model_to_file(model)
    header["batch"] = {"key": task.key, "session": task.session, "model": task.model, "spec": task.spec, **facts}
    save_npz(result_path(out, task.key), header, model_arrays | arrays)
    forget_failure(out, task.key)
    ended(out, task.key)


def forget_failure(out: Path, key: str) -> None:
    with contextlib.suppress(OSError):  # the result is there, and counts
        failure_path(out, key).unlink(missing_ok=True)


def read_result(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    """Read arrays of a result, its columns of the index, those of its terms, and its explanation, by checksums."""
    with _damage_told(path, "a complete result"):
        header, arrays = read_npz(path)
        facts = check_result(header, arrays, Path(path).stem)
        return arrays, facts, _facts_of_terms(header, arrays), header["batch"].get("explain")


def read_facts(path: Path) -> dict[str, Any]:
    """Read the facts about the fit from a result's header; ValueError for damage seen there."""
    with _damage_told(path, "a result"):
        header, _ = read_npz(path, header_only=True)
        _check_header(header, Path(path).stem)
        return header["batch"]


@contextlib.contextmanager
def _damage_told(path: Path, what: str) -> Iterator[None]:
    """Turn the errors of a damaged file into a ValueError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise
    except DAMAGED as error:
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise ValueError(f"{path} is not {what} of a batch ({said}).") from error


def is_whole(out: Path, key: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        read_result(result_path(out, key))
        return True
    return False


def check_result(header: dict, arrays: dict[str, np.ndarray], key: str | None = None) -> dict[str, Any]:
    """Raise one of `DAMAGED` if anything is missing for `collect` or `load_result`; return columns of the index.

    They are facts about the fit, or about each of its neurons (classes). A key is that of the file's name.
    """
    _check_header(header, key)
    coef, intercept, names = arrays["coef"], arrays["intercept"], arrays["design.feature_names"]
    if coef.dtype.kind != "f" or intercept.dtype.kind != "f" or names.dtype.kind != "U":
        raise ValueError("coef and intercept are not numbers, or names are not strings")
    if names.ndim != 1 or coef.shape[:1] != names.shape or coef.size != names.size * intercept.size:
        raise ValueError(f"coef has shape {coef.shape}, with {names.size} features and {intercept.size} intercepts")
    missing = NEEDED[header["class"]] - header["report"].keys() - header.keys() - arrays.keys()
    missing -= {name.removeprefix("report.") for name in arrays}
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    if "explain" in header["batch"]["spec"]:
        check_explanation(header["batch"].get("explain"), arrays, intercept.size)
    return _facts_of_units(header, arrays, intercept.size)


def write_failure(out: Path, task: Task, facts: dict[str, Any]) -> None:
    kept = {"key": task.key, "session": task.session, "model": task.model, **facts}
    write_text(failure_path(out, task.key), json.dumps(kept, indent=1))
    ended(out, task.key)


def read_error(path: Path) -> str:
    """Read the error of a failed task from the file with its traceback."""
    with contextlib.suppress(*DAMAGED):
        return str(json.loads(read_regular(path))["error"])
    return "the file with the traceback cannot be read"


def _check_header(header: dict, key: str | None) -> None:
    """Raise unless the header describes a fit completely, and is that of a task."""
    if header.get("format") != FORMAT:
        raise ValueError(f"its format is {header.get('format')!r}; this version of glmfit reads {FORMAT!r}")
    batch, report = header.get("batch"), header.get("report")
    if not isinstance(batch, dict) or key not in (None, batch.get("key")):
        raise ValueError("it does not belong to the task of its file name")
    wrong = [name for name, kind in _FACTS.items() if not isinstance(batch.get(name), kind)]
    wrong += [name for name in ("report", "parameters") if not isinstance(header.get(name), dict)]
    if wrong:
        raise ValueError(f"its description of the fit is incomplete or invalid ({', '.join(wrong)})")
    if key_of(batch["spec"]) != batch["key"] or header.get("class") != batch["spec"]["estimator"]:
        raise ValueError("its configuration is not that of the task of its file name")
    numbers = (batch["seconds"], batch["programs"], batch["n_rows"], report.get("n_rows"), report.get("n_dropped"))
    texts = (report.get("solver_name"), *batch["warnings"])
    if not (all(0 <= number < _MOST for number in numbers) and all(isinstance(text, str) for text in texts)):
        raise ValueError(f"{numbers} are not seconds, programs and rows, or its solver or warnings are not strings")
    if not 1970 <= datetime.datetime.fromisoformat(batch["began"]).year < 9999:
        raise ValueError(f"it began in {batch['began']}")


def _facts_of_units(header: dict, arrays: dict, n_units: int) -> dict[str, Any]:
    batch, report = header["batch"], header["report"]

    def per_unit(name, default=np.nan):
        return _per_unit(arrays.get(f"report.{name}", report.get(name)), n_units, default)

    units = report.get("neuron") or batch.get("targets") or list(range(n_units))
    if len(units) != n_units:
        raise ValueError(f"it names {len(units)} of {n_units} neurons")
    numbers = ("gap", "gap_is_bound", "relative_gap", "objective", "pseudo_r2", "spike_count")
    return {
        "session": batch["session"],
        "model": batch["model"],
        "unit": [str(unit) for unit in units],
        "status": [Status(int(s)).label if s >= 0 else "?" for s in per_unit("status", -1)],
        **{name: per_unit(name).astype(float) for name in numbers},
        "gap_is_bound": per_unit("gap_is_bound", False).astype(bool),
        **_strengths_of_units(header, arrays, n_units),
        "n_rows": report["n_rows"],
        "n_dropped": report["n_dropped"],
        "n_features": len(arrays["design.feature_names"]),
        "solver": report["solver_name"],
        "seconds": batch["seconds"],
        "host": batch["host"],
        "warnings": "; ".join(batch["warnings"]),
        "seed": batch["spec"]["seed"],
        "key": batch["key"],
        "path": f"results/{batch['key']}.npz",
    }


def _per_unit(value: Any, n_units: int, default: Any = np.nan) -> np.ndarray:
    """Return one number per unit, or the default for each if the value is neither that nor one number."""
    value = np.asarray(default if value is None else value)
    return np.broadcast_to(value if value.shape in ((), (n_units,)) else default, n_units)


def _strengths_of_units(header: dict, arrays: dict, n_units: int) -> dict[str, Any]:
    """Return the penalty strength of every unit and, if there is one, its held-out score with a standard error."""
    of = header.get("strength")  # as `to_json` writes it; files of version 0.1 have none
    if isinstance(of, dict) and "tuple" in of:
        of, _ = of["tuple"]  # of the elastic net, and its ratio
    strength = _per_unit(arrays.get("cv.strength_", of["array"] if isinstance(of, dict) else of), n_units).astype(float)
    scoring, scores = held_out(header, arrays, strength)
    known = ~np.isnan(scores)
    n = known.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):  # nan without folds; no error for a single fold
        mean = np.where(known, scores, 0.0).sum(axis=1) / n
        spread = np.where(known, (scores - mean[:, None]) ** 2, 0.0).sum(axis=1)
        error = np.sqrt(spread / (n - 1) / n)
    return {"strength": strength, "held_out_score": mean, "held_out_se": error, "scoring": scoring}


def held_out(header: dict, arrays: dict, strength: np.ndarray) -> tuple[str, np.ndarray]:
    """Return the name of a score and the scores of held-out rows, (unit, fold), nan for a fold without one.

    These are the scores that the manifest asks for, or those at the strength that was chosen by cross-validation.
    """
    n_units, asked = len(strength), header["batch"]["spec"].get("score")
    if asked is not None:
        scores = arrays[SCORES]
        if scores.ndim != 2 or scores.shape[1] not in (1, n_units) or scores.dtype.kind != "f":
            raise ValueError(f"held-out scores have shape {scores.shape}, with {n_units} units")
        return str(asked["scoring"]), np.broadcast_to(scores, (len(scores), n_units)).T
    if "cv.cv_scores_" not in arrays:
        return "", np.empty((n_units, 0))
    scores, tried = arrays["cv.cv_scores_"], arrays["cv.strengths_"]
    if scores.ndim == 2 and header["class"] in CLASS_ESTIMATORS:  # one strength for all classes
        scores = np.repeat(scores[:, :, None], n_units, axis=2)
    if scores.shape != (tried.size, *scores.shape[1:2], n_units):
        raise ValueError(f"scores have shape {scores.shape}, with {tried.size} strengths and {n_units} neurons")
    is_chosen = tried[:, None] == strength
    chosen = scores[np.argmax(is_chosen, axis=0), :, np.arange(n_units)]
    return str(header["parameters"].get("scoring")), np.where(is_chosen.any(axis=0)[:, None], chosen, np.nan)


def _facts_of_terms(header: dict, arrays: dict) -> dict[str, np.ndarray]:
    """Columns of the index of a model with smooth terms, (unit,) each: degrees of freedom, strengths, their gradient.

    The histories of single units share a column; it has a strength if each unit has only its own history.
    """
    if header["class"] != GAM:
        return {}
    batch, n_units, terms = header["batch"], arrays["intercept"].size, header["report"]["term"]
    edf = dict(zip(terms, arrays["report.edf"].reshape(len(terms), n_units), strict=True))
    histories = (batch.get("notes") or {}).get("smooth_terms", {}).get(HISTORY, [])
    columns = {
        "edf": 1.0 + arrays["smooth.degrees"].sum(axis=0),
        "strength_gradient": arrays["report.strength_gradient"],
    }
    columns |= {f"edf.{name}": of for name, of in edf.items() if name not in histories}
    for name in (name for name in terms if name not in histories):
        strengths = _strengths(arrays, name, n_units)
        ends = [f".{i}" for i in range(len(strengths))] if len(strengths) > 1 else [""]
        columns |= {f"strength.{name}{end}": of for end, of in zip(ends, strengths, strict=False)}
    if histories:
        columns[f"edf.{HISTORY}"] = sum(edf[name] for name in histories)
    if histories and batch["spec"]["design"][HISTORY]["of"] == "own":
        own = [_strengths(arrays, name, n_units)[:, i] for i, name in enumerate(histories)]
        columns[f"strength.{HISTORY}"] = np.concatenate(own)
    return columns


def _strengths(arrays: dict, term: str, n_units: int) -> np.ndarray:
    """Strengths of a term, (penalty, unit)."""
    return arrays[f"strengths.{term}"].reshape(-1, n_units)
