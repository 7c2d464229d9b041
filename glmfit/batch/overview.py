"""What is in an output folder: how far a batch has come, and all its results in one table and one file of arrays."""

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..display import counted, one_line
from ..files import whole_or_absent
from .at_work import begun, deaths
from .plan import planned_keys, read_plan
from .results import failure_path, read_facts, read_failure, read_result, result_path

_SLOWEST, _MOST_NAMED = 5, 10
_RECENT_S = 600.0


@dataclass(frozen=True)
class Progress:
    """State of a batch, read from its output folder.

    Attributes
    ----------
    n_tasks, n_done, n_failed, n_missing : int
        Tasks of the manifest as last planned; a task is missing if it has neither result nor traceback.
    damaged : list of str
        Among the missing: results that cannot be read, and why. The next run does them again.
    begun : list of (str, int)
        Among the missing: fits that were begun and have not ended, and how many attempts at them ended their process.
        Without any they are being done, or were stopped.
    eta_s, seconds : float or None, float
        Seconds until the missing ones are done, at the pace of the last ten minutes of work, None before two are done;
        of all fits together, loading and writing included.
    slowest, failures : list of (str, float), list of (str, str)
        Names and seconds of the slowest fits; names and errors of those that failed.
    n_compilations, n_programs, n_warned : int
        Fits that had to compile; programs compiled (or taken from the folder of compiled ones), in all fits; results
        whose fit warned, of neurons that did not converge for example.
    by_model : dict
        Model -> (done, failed, missing).
    """

    n_tasks: int
    n_done: int
    n_failed: int
    n_missing: int
    damaged: list
    begun: list
    eta_s: float | None
    seconds: float
    slowest: list
    failures: list
    n_compilations: int
    n_programs: int
    n_warned: int
    by_model: dict = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every task is done."""
        return self.n_done == self.n_tasks

    @property
    def n_damaged(self) -> int:
        """How many results are damaged."""
        return len(self.damaged)

    def __str__(self) -> str:
        lines = [f"{self.n_done} of {self.n_tasks} fits done, {self.n_failed} failed, {self.n_missing} missing"]
        lines += _listed(f"{counted(self.n_damaged, 'damaged result')}, to be done again:", self.damaged)
        ends = [name + (f" ({counted(n, 'attempt')} ended its process)" if n else "") for name, n in self.begun]
        lines += _listed("begun and not ended:", ends)
        if self.n_missing and self.eta_s is not None:
            lines.append(f"about {_duration(self.eta_s)} to go, if work goes on at the pace of late")
        if len(self.by_model) > 1:
            wide = max(map(len, self.by_model))
            counts = "{} done, {} failed, {} missing"
            lines += [f"  {name:<{wide}}  {counts.format(*of)}" for name, of in self.by_model.items()]
        if self.n_done:
            lines.append(f"{_duration(self.seconds)} of fitting in all; slowest:")
            lines += [f"  {seconds:8.1f} s  {name}" for name, seconds in self.slowest]
        if self.n_programs:
            lines.append(f"compiled: {counted(self.n_programs, 'program')} in {counted(self.n_compilations, 'fit')}")
        if self.n_warned:
            lines.append(f"{self.n_warned} fits warned (column 'warnings' of what collect writes)")
        if self.failures:
            lines += _listed("failed:", [f"{name}: {error}" for name, error in self.failures])
            lines.append("tracebacks are in failed/; 'retry' does them again")
        return "\n".join(map(one_line, lines))


def shorten(entries: Iterable[str]) -> list[str]:
    entries = list(entries)
    return entries[:_MOST_NAMED] + ([f"and {len(entries) - _MOST_NAMED} more"] if len(entries) > _MOST_NAMED else [])


def _listed(title: str, entries: list[str]) -> list[str]:
    return [title, *(f"  {entry}" for entry in shorten(entries))] if entries else []


def status(out: str | Path) -> Progress:
    """Read how far a batch has come.

    Parameters
    ----------
    out : str or pathlib.Path
        Its output folder; a run may be at work in it.

    Returns
    -------
    Progress
        Print it, or read its attributes.

    Raises
    ------
    FileNotFoundError, ValueError
        If the folder is not the output of a batch.

    Notes
    -----
    Reads the header of every result: about a millisecond each.
    """
    out = Path(out)
    states: dict[str, Counter] = defaultdict(Counter)
    facts, failures, damaged, attempts = [], [], [], []
    tasks, attempted = read_plan(out), begun(out)
    for task in tasks:
        name, failed = f"{task.session}, {task.model}", failure_path(out, task.key)
        state, trouble = "done", None
        try:
            facts.append(read_facts(result_path(out, task.key)))
        except (FileNotFoundError, ValueError) as error:
            state, trouble = "failed" if failed.exists() else "missing", error
        states[task.model][state] += 1
        if state == "failed":
            failures.append((name, " ".join(str(read_failure(failed).get("error", "?")).split())[:300]))
        elif state == "missing":
            damaged += [] if isinstance(trouble, FileNotFoundError) else [str(trouble)]
            attempts += [(name, len(deaths(out, task.key)))] if task.key in attempted else []
    n_missing = len(tasks) - len(facts) - len(failures)
    slowest = sorted(facts, key=lambda f: -f["seconds"])[:_SLOWEST]
    return Progress(
        n_tasks=len(tasks),
        n_done=len(facts),
        n_failed=len(failures),
        n_missing=n_missing,
        damaged=damaged,
        begun=attempts,
        eta_s=_eta(facts, n_missing),
        seconds=sum(f["seconds"] for f in facts),
        slowest=[(f"{f['session']}, {f['model']}", f["seconds"]) for f in slowest],
        failures=failures,
        n_compilations=sum(f["programs"] > 0 for f in facts),
        n_programs=sum(f["programs"] for f in facts),
        n_warned=sum(bool(f["warnings"]) for f in facts),
        by_model={name: (n["done"], n["failed"], n["missing"]) for name, n in states.items()},
    )


def _eta(facts: list[dict], n_missing: int) -> float | None:
    if not n_missing:
        return 0.0
    ends = sorted(datetime.datetime.fromisoformat(f["began"]).timestamp() + f["seconds"] for f in facts)
    late = [end for end in ends if end > ends[-1] - _RECENT_S]
    if len(late) < 2 or late[-1] <= late[0]:
        return None
    return n_missing * (late[-1] - late[0]) / (len(late) - 1)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Collected(NamedTuple):
    """What `collect` wrote.

    Attributes
    ----------
    index, arrays : pathlib.Path
        Table, with strengths and held-out scores among its columns, and file of arrays.
    n_fits, n_units, n_absent : int
        Results in them; neurons (classes) of these together, rows of the table; tasks without a result.
    damaged : list of str
        Results that cannot be read, and why; they are not in the files.
    """

    index: Path
    arrays: Path
    n_fits: int
    n_units: int
    n_absent: int
    damaged: list[str]


def collect(out: str | Path) -> Collected:
    """Write the results of a batch to one table and one file of arrays.

    Parameters
    ----------
    out : str or pathlib.Path
        Output folder of a batch; what is missing or damaged is left out, counted and named.

    Returns
    -------
    Collected
        Names and numbers. The table, OUT/index.parquet, has a row per neuron (class, for class models) of every fit:
        session, model, unit, status, gap, gap_is_bound, pseudo_r2, spike_count, strength, held_out_score, held_out_se,
        scoring, seconds, warnings, key and more. The arrays, OUT/fits.nc (netCDF-4), have dimensions ``unit`` (the rows
        of the table, in order) and ``feature`` (every name that occurs): coef, nan where a model lacks the feature, and
        intercept.

    Raises
    ------
    ValueError, ImportError
        If there is no result; without the extra ``batch``.

    Notes
    -----
    strength is that of the unit's penalty, chosen by cross-validation or given; nan where coefficients have strengths
    of their own, as those of a default ridge do. Where it was chosen, held_out_score is the mean of its score over the
    folds, held_out_se the standard error of this mean (of folds as if independent, nan for a single one), and scoring
    says which score. Folds without a score (nan in ``cv_scores_``) are left out. Other models have nan, and scoring "".

    Both files are written whole or not at all. Cost: reads everything, and holds units times features in memory,
    plus some hundred bytes for each unit.
    """
    import pandas as pd

    out = Path(out)
    columns: dict[str, list] = defaultdict(list)  # of the table; a data frame for each fit would be much larger
    coefs, names, damaged, n_absent = [], {}, [], 0
    for key in planned_keys(out):
        try:
            arrays, facts = read_result(result_path(out, key))
        except (FileNotFoundError, ValueError) as error:
            n_absent += isinstance(error, FileNotFoundError)
            damaged += [] if isinstance(error, FileNotFoundError) else [str(error)]
            continue
        features = [_printable(str(name)) for name in arrays["design.feature_names"]]
        intercept = np.atleast_1d(arrays["intercept"])
        places = np.array([names.setdefault(name, len(names)) for name in features], np.int32)
        coefs.append((places, arrays["coef"].reshape(len(features), len(intercept))))
        for name, value in (facts | {"intercept": intercept}).items():
            value = _printable(value)
            columns[name].append(value if isinstance(value, list | np.ndarray) else [value] * len(intercept))
    if not coefs:
        n = n_absent + len(damaged)
        raise ValueError(f"there is no result in {out}: {n} tasks are still to be done. Run the manifest first.")
    joined = {}
    for name in list(columns):
        parts = columns.pop(name)
        joined[name] = np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [*chain.from_iterable(parts)]
    index = pd.DataFrame(joined)
    with whole_or_absent(out / "index.parquet") as file:
        index.to_parquet(file)
    with whole_or_absent(out / "fits.nc") as file:
        _dataset(index, coefs, names).to_netcdf(file.name, engine="h5netcdf")
    return Collected(out / "index.parquet", out / "fits.nc", len(coefs), len(index), n_absent, damaged)


def _printable(value: Any) -> Any:
    """Texts without what cannot be written, such as names of files that are not UTF-8, or a zero."""
    if isinstance(value, list):
        return [_printable(entry) for entry in value]
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", r"\x00")


def _dataset(index, coefs: list, names: dict[str, int]):
    """Coefficients of all units over the features of all models."""
    import xarray as xr

    values = np.full((len(index), len(names)), np.nan)
    at = 0
    for places, coef in coefs:
        values[at : at + coef.shape[1], places] = coef.T
        at += coef.shape[1]
    words = {"session": "session", "model": "model", "status": "status", "key": "key", "unit_name": "unit"}
    described = {name: ("unit", index[column].to_numpy(object).astype(str)) for name, column in words.items()}
    numbers = {name: ("unit", index[name].to_numpy(float)) for name in ("intercept", "gap", "pseudo_r2", "spike_count")}
    return xr.Dataset(
        {"coef": (("unit", "feature"), values), **numbers, "gap_is_bound": ("unit", index["gap_is_bound"].to_numpy())},
        coords={"feature": np.array(list(names), str), **described},
        attrs={"title": "glmfit batch", "coef": "nan where the unit's model does not have the feature"},
    )
