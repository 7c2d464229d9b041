"""A batch from beginning to end: plan, skip what is done, carry tasks to workers, say what became of them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._progress import ProgressBar
from ._lock import RunLock, lock_of
from ._manifest import Manifest
from ._plan import default_out, plan, read_known, share
from ._receipt import Receipt, Work
from ._results import failure_path, is_whole, make_folders, read_failure, result_path, write_failure
from ._stop import signals_noted, stop_if_told
from ._task import Task

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class Summary:
    """What a run came to.

    Attributes
    ----------
    out : pathlib.Path
        Output folder.
    n_tasks : int
        Tasks of the run (of the shard).
    n_found : int
        Done before.
    n_done : int
        Done by this run.
    failed : list of Receipt
        Failed by this run, or earlier and not tried again.
    n_missing : int
        Neither done nor failed: a run that was stopped leaves some.
    n_damaged : int
        Results that were damaged, and were to be redone.
    seconds : float
        Wall time.
    """

    out: Path
    n_tasks: int
    n_found: int
    n_done: int
    failed: list[Receipt] = field(repr=False)
    n_missing: int
    n_damaged: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every task is done."""
        return not self.failed and not self.n_missing

    def __str__(self) -> str:
        """Readable summary."""
        parts = [f"{self.n_found + self.n_done} of {self.n_tasks} fits done"]
        if self.n_found:
            parts[0] += f" ({self.n_found} of them before)"
        if self.n_damaged:
            parts.append(f"{self.n_damaged} results were damaged")
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        if self.n_missing:
            parts.append(f"{self.n_missing} missing: run again to go on")
        lines = [", ".join(parts) + f"; {self.seconds:.1f} s, results in {self.out / 'results'}"]
        lines += [f"failed: {r.session}, {r.model}: {(r.error or '?').splitlines()[0]}" for r in self.failed[:10]]
        if len(self.failed) > 10:
            lines.append(f"and {len(self.failed) - 10} more")
        if self.failed:
            lines.append(f"tracebacks are in {self.out / 'failed'}; mend the cause, then 'retry'")
        return "\n".join(lines)


def run(
    manifest: str | Path | Manifest,
    client: Client | None = None,
    *,
    out: str | Path | None = None,
    scheduler: str = "local",
    workers: int = 2,
    gpus: int = 0,
    slurm: Mapping[str, Any] | None = None,
    allowed_failures: int = 10,
    shard: tuple[int, int] | None = None,
    retry: bool = False,
    progress: bool = True,
) -> Summary:
    """Fit every model of a manifest to every session.

    Parameters
    ----------
    manifest : str, pathlib.Path or Manifest
        TOML or JSON file; see the how-to.
    client : distributed.Client, optional
        A Dask cluster of yours, left open. Its workers need glmfit and see the same files.
    out : str or pathlib.Path, optional
        Output folder; ``NAME_results`` beside the manifest NAME.toml when left out.
    scheduler : {"local", "serial", "slurm"} or str
        Where to work when there is no client: processes of this machine, this process, jobs of SLURM, or the address
        of a Dask scheduler ("tls://...").
    workers : int
        Processes, or jobs of SLURM.
    gpus : int
        GPUs of this machine to use, one worker each; with SLURM any number asks for one GPU per job.
    slurm : dict, optional
        partition, account, walltime ("2:00:00"), memory ("4GB"), extra (list of further sbatch options), prologue
        (list of shell commands before Python), interface (network of scheduler and workers) or host (address of this
        machine as the nodes see it).
    allowed_failures : int
        A fit is given up after this many of its workers have died, and one more.
    shard : (int, int), optional
        (i, n): do part i of n, i from 1; other parts may be at work at the same time, here or elsewhere.
    retry : bool
        Do the failed ones again too.
    progress : bool
        Show a bar.

    Returns
    -------
    Summary
        What was done; ``summary.ok`` if all of it. Failed tasks do not raise.

    Raises
    ------
    ManifestError
        Before anything runs, with every problem and its line.
    BusyFolder
        If another run is at work in the output folder.
    RuntimeError
        If no worker can be had.

    Notes
    -----
    A task is named by a hash of model, parameters, design and data. One whose result is there and undamaged is skipped,
    so a run that was stopped, in whatever way, goes on where it was; a result is there whole or not at all. With
    single-threaded workers (those that are started here) the results do not depend on the engine, to the last bit, on
    machines of one type.

    Ctrl-C comes out as KeyboardInterrupt, after the workers are gone.
    """
    start = time.perf_counter()
    path = manifest.path if isinstance(manifest, Manifest) else Path(manifest)
    out = (default_out(path) if out is None else Path(out)).resolve()
    manifest = manifest if isinstance(manifest, Manifest) else read_known(path, out)
    make_folders(out)
    if client is None:
        _check_scheduler(str(scheduler))
    with signals_noted(), RunLock(lock_of(out, shard)):
        tasks = plan(manifest, out)
        tasks = tasks if shard is None else share(tasks, shard)
        todo, failed, n_damaged = sort_out(tasks, out, retry)
        book = _Book(out, len(tasks), len(todo), n_damaged, failed, start, progress)
        works = [Work(task, str(out), manifest.digest) for task in todo]
        with book:
            if works and client is None and scheduler == "serial":
                from ._fit import do

                for work in works:
                    book.add(work, do(work))
            elif works:
                options = {"workers": workers, "gpus": gpus, "slurm": slurm, "allowed_failures": allowed_failures}
                _drive(works, book, client or scheduler, out=out, **options)
        return book.summary()


def sort_out(tasks: list[Task], out: Path, retry: bool) -> tuple[list[Task], list[Receipt], int]:
    """Tasks to do, those that failed and are left alone, and how many results are damaged."""
    todo, failed, n_damaged = [], [], 0
    for task in tasks:
        if is_whole(out, task.key):
            continue
        damaged = result_path(out, task.key).exists()
        n_damaged += damaged
        if not damaged and not retry and failure_path(out, task.key).exists():
            found = read_failure(failure_path(out, task.key))
            failed.append(Receipt(task.key, task.session, task.model, "failed", error=str(found.get("error"))))
        else:
            todo.append(task)
    return todo, failed, n_damaged


def _check_scheduler(scheduler: str) -> None:
    """Raise for what is no place to work, before anything is done."""
    if scheduler not in ("serial", "local", "slurm") and "://" not in scheduler and not Path(scheduler).is_file():
        raise ValueError(
            f"scheduler is {scheduler!r}; it must be 'local', 'serial', 'slurm', an address such as 'tls://host:8786', "
            "or a scheduler file that exists."
        )


def _drive(works: list[Work], book: _Book, where, **options) -> None:
    """Let Dask do the work."""
    from ._cluster import open_client
    from ._drive import drive
    from ._fit import do

    with open_client(where, cache=options["out"] / "compiled", **options) as client:
        if client.dashboard_link:
            book.say(f"Dask dashboard: {client.dashboard_link}")
        drive(client, do, works, on_receipt=book.add, on_lost=book.lost, say=book.say)


class _Book:
    """Keeps the receipts, and shows them."""

    def __init__(self, out, n_tasks, n_todo, n_damaged, failed, start, progress):
        n_found = n_tasks - n_todo - len(failed)
        self._facts = {"out": out, "n_tasks": n_tasks, "n_found": n_found, "n_damaged": n_damaged}
        self._failed, self._n_done, self._start = list(failed), 0, start
        quiet = not progress or not n_todo
        interval = 0.1 if sys.stderr.isatty() else 30.0
        self._bar = ProgressBar(f"batch {out.name}", n_todo, "fit", not quiet, mininterval=interval)

    def __enter__(self) -> _Book:
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def add(self, work: Work, receipt: Receipt) -> None:
        """Note what became of a task."""
        if receipt.state == "failed":
            self._failed.append(receipt)
            self.say(f"failed: {receipt.session}, {receipt.model}: {(receipt.error or '?').splitlines()[0]}")
        else:
            self._n_done += 1
        self._bar.say(f"{len(self._failed)} failed" if self._failed else "")
        self._bar.advance()
        stop_if_told()

    def lost(self, work: Work, error: BaseException | str) -> None:
        """Note a task whose workers died, again and again."""
        task = work.task
        died = type(error).__name__ == "KilledWorker"
        why = "its worker died every time it was tried (a crash, or more memory than allowed)"
        text = f"{why if died else 'it could not be done'}: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            write_failure(Path(work.out), task, {"error": text, "traceback": "", "manifest": work.manifest})
        self.add(work, Receipt(task.key, task.session, task.model, "failed", error=text))

    def say(self, text: str) -> None:
        """Print a line without tearing the bar."""
        self._bar.write(text)

    def summary(self) -> Summary:
        """Sum up what the run came to."""
        n_missing = self._facts["n_tasks"] - self._facts["n_found"] - self._n_done - len(self._failed)
        seconds = time.perf_counter() - self._start
        return Summary(**self._facts, n_done=self._n_done, failed=self._failed, n_missing=n_missing, seconds=seconds)
