"""Progress of a batch, read from its output folder."""

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..display import counted, one_line
from .at_work import begun, deaths
from .plan import read_plan
from .results import failure_path, read_error, read_facts, result_path

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
        Results of missing tasks that cannot be read, and why. The next run repeats them.
    begun : list of (str, int)
        Missing fits that were begun and have not ended, and how many attempts at them ended their process. If 0, they
        are running, or were stopped.
    eta_s, seconds : float or None, float
        Estimated seconds until the missing ones are done, at the pace of the last ten minutes of work, None before two
        are done; total seconds of all fits, with loading and writing.
    slowest, failures : list of (str, float), list of (str, str)
        Names and seconds of the slowest fits; names and errors of those that failed.
    n_compilations, n_programs, n_warned : int
        Fits that had to compile; programs compiled (or taken from the folder of compiled ones), in all fits; results
        whose fit warned, for example of neurons that did not converge.
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
            lines.append(f"about {_duration(self.eta_s)} to go at the recent pace")
        if len(self.by_model) > 1:
            wide = max(map(len, self.by_model))
            counts = "{} done, {} failed, {} missing"
            lines += [f"  {name:<{wide}}  {counts.format(*of)}" for name, of in self.by_model.items()]
        if self.n_done:
            lines.append(f"{_duration(self.seconds)} of fitting in total; slowest:")
            lines += [f"  {seconds:8.1f} s  {name}" for name, seconds in self.slowest]
        if self.n_programs:
            lines.append(f"compiled: {counted(self.n_programs, 'program')} in {counted(self.n_compilations, 'fit')}")
        if self.n_warned:
            lines.append(f"{counted(self.n_warned, 'fit')} warned (column 'warnings' of what collect writes)")
        if self.failures:
            lines += _listed("failed:", [f"{name}: {error}" for name, error in self.failures])
            lines.append("tracebacks are in failed/; run 'retry' to try them again")
        return "\n".join(map(one_line, lines))


def shorten(entries: Iterable[str]) -> list[str]:
    entries = list(entries)
    return entries[:_MOST_NAMED] + ([f"and {len(entries) - _MOST_NAMED} more"] if len(entries) > _MOST_NAMED else [])


def _listed(title: str, entries: list[str]) -> list[str]:
    return [title, *(f"  {entry}" for entry in shorten(entries))] if entries else []


def status(out: str | Path) -> Progress:
    """Read the progress of a batch.

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
            failures.append((name, " ".join(read_error(failed).split())[:300]))
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
