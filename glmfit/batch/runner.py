"""A batch from beginning to end: plan, skip finished tasks, send the others to workers, report the outcome."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import check_whole
from ..display import ProgressBar, counted, one_line, printable
from .at_work import RunLock, begun, deaths, ended, lock_of, take_back
from .manifest import Manifest, read_known
from .overview import shorten
from .plan import Receipt, Task, plan, share
from .process import default_out, signals_noted, stop_if_told
from .results import failure_path, forget_failure, is_whole, make_folders, read_error, result_path, write_failure

if TYPE_CHECKING:
    from distributed import Client

_UNWRITTEN = 3  # the run ends if every host failed to write this many results in a row
_MANY_UNWRITTEN = 10  # or this many in a row of all hosts: those that wrote before may have left


@dataclass(frozen=True)
class Summary:
    """Outcome of a run.

    Attributes
    ----------
    out : pathlib.Path
        Output folder.
    n_tasks, n_found, n_done : int
        Tasks of the run (of the shard); those done before, and by this run.
    failed : list of Receipt
        Tasks that failed in this run, or earlier and were not tried again.
    n_missing, n_damaged : int
        Tasks neither done nor failed, such as those of a stopped run; results that were damaged, to be redone.
    seconds, stopped : float, str or None
        Wall time, s; why the run ended early, if it did.
    n_warned : int
        Tasks done in this run whose fit warned, for example of neurons that did not converge.
    """

    out: Path
    n_tasks: int
    n_found: int
    n_done: int
    failed: list[Receipt] = field(repr=False)
    n_missing: int
    n_damaged: int
    seconds: float
    stopped: str | None = None
    n_warned: int = 0

    @property
    def ok(self) -> bool:
        """Whether every task is done."""
        return not self.failed and not self.n_missing

    def __str__(self) -> str:
        before = f" ({self.n_found} of them before)" if self.n_found else ""
        parts = [f"{self.n_found + self.n_done} of {self.n_tasks} fits done{before}"]
        parts += [f"{counted(self.n_damaged, 'result')} damaged"] if self.n_damaged else []
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        parts += [f"{self.n_missing} missing: run again to continue"] if self.n_missing else []
        lines = [", ".join(parts) + f"; {self.seconds:.1f} s, results in {self.out / 'results'}"]
        lines += [f"{counted(self.n_warned, 'fit')} warned (column 'warnings' of the index)"] if self.n_warned else []
        lines += [f"stopped: {self.stopped}"] if self.stopped else []
        lines += shorten(map(_failed, self.failed))
        lines += [f"tracebacks are in {self.out / 'failed'}; fix the cause, then run 'retry'"] if self.failed else []
        return "\n".join(map(one_line, lines))


def run(
    manifest: str | Path | Manifest,
    client: Client | None = None,
    *,
    out: str | Path | None = None,
    scheduler: str = "local",
    workers: int = 2,
    gpus: int = 0,
    slurm: Mapping[str, Any] | None = None,
    allowed_failures: int = 2,
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
        Client of an existing Dask cluster, left open. Its workers need glmfit and access to the same files.
    out : str or pathlib.Path, optional
        Output folder; ``NAME_results`` next to the manifest NAME.toml by default.
    scheduler : {"local", "serial", "slurm"} or str
        Where to work without a client: processes on this machine, this process, SLURM jobs, or the address of a Dask
        scheduler ("tls://...").
    workers : int
        Number of processes, or of SLURM jobs.
    gpus : int
        GPUs of this machine to use, one worker each; with SLURM any number requests one GPU per job.
    slurm : dict, optional
        partition, account, walltime ("2:00:00"), memory ("4GB"), extra (list of further sbatch options), prologue
        (list of shell commands before Python), interface (network of scheduler and workers) or host (address of this
        machine as the nodes see it).
    allowed_failures : int
        How often a fit that ends its process (a crash, too much memory, too short a walltime) is tried again, in this
        run or a later one, before it is given up.
    shard : (int, int), optional
        (i, n): do part i of n, i from 1; other parts may run at the same time, here or elsewhere.
    retry, progress : bool
        Try failed tasks again; show a progress bar.

    Returns
    -------
    Summary
        Counts and failures; ``summary.ok`` if every task is done. Failed tasks do not raise.

    Raises
    ------
    ManifestError, BusyFolder, RuntimeError
        Before anything runs, with every problem, its table and its key; if another run is at work in the output folder;
        if no worker is available.
    ValueError, TypeError
        For numbers of workers, GPUs, failures or shards, and paths, that are none.

    Notes
    -----
    A task is named by a hash of model, parameters, design and data. A task with an undamaged result is skipped, so a
    run that was stopped, in whatever way, continues where it was. A result is written whole or not at all. With
    single-threaded workers (those that are started here) the results are bitwise independent of the engine on machines
    of one type.

    Ctrl-C raises KeyboardInterrupt after the workers have ended. The run ends when every host that has answered fails
    to write three results in a row, or when ten in a row (three per host, if that is more) cannot be written.
    """
    start, scheduler = time.perf_counter(), str(scheduler)
    known = scheduler in ("serial", "local", "slurm") or "://" in scheduler or Path(scheduler).is_file()
    if client is None and not known:
        allowed = "'local', 'serial', 'slurm', an address such as 'tls://host:8786', or a scheduler file that exists."
        raise ValueError(f"scheduler is {scheduler!r}; it must be {allowed}")
    for name, value, least in (("workers", workers, 1), ("gpus", gpus, 0), ("allowed_failures", allowed_failures, 0)):
        check_whole(name, value, least)
    if shard is not None:
        pair = isinstance(shard, tuple | list) and len(shard) == 2 and all(isinstance(i, int) for i in shard)
        if not (pair and 1 <= shard[0] <= shard[1]):
            raise ValueError(f"shard is {shard!r}; it must be (i, n), part i of n, with 1 <= i <= n.")
    for name, value, kinds in (("manifest", manifest, str | Path | Manifest), ("out", out, str | Path | None)):
        if not isinstance(value, kinds):
            raise TypeError(f"{name} is a {type(value).__name__}; it must be a path.")
    path = manifest.path if isinstance(manifest, Manifest) else Path(manifest)
    out = (default_out(path) if out is None else Path(out)).resolve()
    manifest = manifest if isinstance(manifest, Manifest) else read_known(path, out)
    make_folders(out)
    with signals_noted(), RunLock(lock_of(out, shard)):
        book = Book(manifest, out, shard, retry, progress, start)
        if book.todo:
            from .fits import run_one

            function = partial(run_one, out=str(out), manifest=manifest.digest, tries=allowed_failures + 1)
            options = {"workers": workers, "gpus": gpus, "slurm": slurm, "allowed_failures": allowed_failures}
            try:
                if client is None and scheduler == "serial":
                    for task in book.todo:
                        book.add(task, function(task))
                else:
                    _drive(function, book, client or scheduler, out=out, **options)
            except _CannotWriteError as error:
                book.stopped = str(error)
            finally:
                book.bar.close()
        return book.summary()


def _drive(function: Callable[[Task], Receipt], book: Book, where: Any, **options: Any) -> None:
    from .cluster import open_client
    from .driver import drive

    with open_client(where, **options) as client:
        if client.dashboard_link and book.bar.is_shown:
            book.say(f"Dask dashboard: {client.dashboard_link}")
        try:
            drive(client, function, book.todo, on_receipt=book.add, on_lost=book.lost, say=book.say)
        except BaseException:
            take_back(options["out"], [task.key for task in book.todo])  # before their workers are ended
            raise


class Book:
    """Tasks to be done, after all existing results are read, and their receipts, kept and shown."""

    def __init__(self, manifest: Manifest, out: Path, shard, retry: bool, progress: bool, start: float):
        self._out, self._digest, self._start = out, manifest.digest, start
        self.stopped: str | None = None  # why the run ended early
        self.todo: list[Task]
        self.todo, self._found, self._done, self._failed, self._n_damaged = [], [], [], [], 0
        self._n_warned = 0
        self._unwritten: dict[str, int] = {}  # per host: how many of its last results could not be written
        self._in_a_row = 0  # the same for all hosts together
        tasks = plan(manifest, out)
        tasks = tasks if shard is None else share(tasks, shard)
        self._n_tasks = len(tasks)
        self._look(tasks, retry)
        interval = 0.1 if sys.stderr is not None and sys.stderr.isatty() else 30.0
        show = progress and bool(self.todo)
        self.bar = ProgressBar(f"batch {out.name}", len(self.todo), "fit", show, mininterval=interval)

    def _look(self, tasks: list[Task], retry: bool) -> None:
        left, attempted = {path.stem for path in (self._out / "failed").glob("*.json")}, begun(self._out)
        for task in tasks:
            key = task.key
            if is_whole(self._out, key):
                self._found.append(key)
                if key in left:  # of an attempt whose result existed, although the file system reported none
                    forget_failure(self._out, key)
                continue
            damaged = result_path(self._out, key).exists()
            self._n_damaged += damaged
            if key in left and not damaged and not retry:
                error = read_error(failure_path(self._out, key))
                self._failed.append(Receipt(key, task.session, task.model, "failed", error=error))
                continue
            self.todo.append(task)
            if retry and key in attempted:
                ended(self._out, key)
        if not retry:
            # A fit that ends its process, or may do so, must not keep the others from being done.
            self.todo.sort(key=lambda task: task.key in attempted and bool(deaths(self._out, task.key)))

    def add(self, task: Task, receipt: Receipt) -> None:
        """Record the outcome of a task; _CannotWriteError if results cannot be written any more."""
        if receipt.state == "failed":
            self._failed.append(receipt)
            self.say(_failed(receipt))
        else:
            self._done.append(receipt.key)
            self._n_warned += receipt.warned
        self.bar.say(f"{len(self._failed)} failed" if self._failed else "")
        self.bar.advance()
        if receipt.worker:  # unknown if workers died
            host = receipt.worker.rpartition(":")[0]
            self._unwritten[host] = self._unwritten.get(host, 0) + 1 if receipt.unwritten else 0
            self._in_a_row = self._in_a_row + 1 if receipt.unwritten else 0
            # If one host can write, the fault lies with another host, not with the folder.
            every_host = min(self._unwritten.values()) >= _UNWRITTEN
            n = _UNWRITTEN if every_host else max(_MANY_UNWRITTEN, _UNWRITTEN * len(self._unwritten))
            if every_host or self._in_a_row >= n:
                raise _CannotWriteError(f"results cannot be written any more, {n} in a row: {receipt.error}")
        stop_if_told()

    def lost(self, task: Task, error: BaseException | str) -> None:
        died = type(error).__name__ == "KilledWorker"
        why = "its worker died every time it was tried (a crash, or more memory than allowed)"
        text = f"{why if died else 'it could not be done'}: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            write_failure(self._out, task, {"error": text, "traceback": "", "manifest": self._digest})
        self.add(task, Receipt(task.key, task.session, task.model, "failed", error=text))

    def say(self, text: str) -> None:
        """Print, without breaking the progress bar if there is one."""
        if self.bar.is_shown:
            self.bar.write(printable(text))
        else:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody listens
                print(printable(text), file=sys.stderr, flush=True)

    def summary(self) -> Summary:
        n, failed, seconds = self._n_tasks, self._failed, time.perf_counter() - self._start
        counts = [sum(result_path(self._out, key).exists() for key in keys) for keys in (self._found, self._done)]
        n_missing = n - sum(counts) - len(failed)
        return Summary(self._out, n, *counts, failed, n_missing, self._n_damaged, seconds, self.stopped, self._n_warned)


class _CannotWriteError(OSError):
    """The output folder is full, read-only or gone."""


def _failed(receipt: Receipt) -> str:
    error = ((receipt.error or "").splitlines() or ["?"])[0]
    return one_line(f"failed: {receipt.session}, {receipt.model}: {error}")
