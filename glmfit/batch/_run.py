"""A batch from beginning to end: plan, skip what is done, carry tasks to workers, say what became of them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._display import one_line, printable
from .._progress import ProgressBar
from ._attempts import begun, deaths, ended, take_back
from ._lock import RunLock, lock_of
from ._manifest import Manifest
from ._plan import default_out, plan, read_known, share
from ._results import failure_path, forget_failure, is_whole, make_folders, read_failure, result_path, write_failure
from ._stop import signals_noted, stop_if_told
from ._task import Receipt, Task, Work

if TYPE_CHECKING:
    from distributed import Client

_UNWRITTEN = 3  # results in a row that no host of the run can write end it
_MANY_UNWRITTEN = 10  # or so many that came in a row, whoever wrote before: they may have left


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
    stopped : str or None
        Why the run ended before its work was done, if it did.
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
        lines += [f"stopped: {self.stopped}"] if self.stopped else []
        lines += [_failed(receipt) for receipt in self.failed[:10]]
        if len(self.failed) > 10:
            lines.append(f"and {len(self.failed) - 10} more")
        if self.failed:
            lines.append(f"tracebacks are in {self.out / 'failed'}; fix the cause, then 'retry'")
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
        A Dask cluster of yours, left open. Its workers need glmfit and see the same files.
    out : str or pathlib.Path, optional
        Output folder; ``NAME_results`` next to the manifest NAME.toml by default.
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
        A fit that ends its process (a crash, too much memory, a walltime that is too short) is tried again as often,
        in this run or a later one, and given up the next time.
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
        Before anything runs, with every problem, its table and its key.
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

    Ctrl-C comes out as KeyboardInterrupt, after the workers are gone. The run ends when every host that has answered
    fails to write three results in a row, or when ten in a row (three per host, if that is more) cannot be written: on
    a full disk nothing is computed for nothing.
    """
    start = time.perf_counter()
    if client is None:
        _check_scheduler(str(scheduler))
    path = manifest.path if isinstance(manifest, Manifest) else Path(manifest)
    out = (default_out(path) if out is None else Path(out)).resolve()
    manifest = manifest if isinstance(manifest, Manifest) else read_known(path, out)
    make_folders(out)
    with signals_noted(), RunLock(lock_of(out, shard)):
        book = look(manifest, out, shard, retry, progress, start)
        works = [Work(task, str(out), manifest.digest, allowed_failures + 1) for task in book.todo]
        with book:
            if works and client is None and scheduler == "serial":
                from ._fit import do

                for work in works:
                    book.add(work, do(work))
            elif works:
                options = {"workers": workers, "gpus": gpus, "slurm": slurm, "allowed_failures": allowed_failures}
                _drive(works, book, client or scheduler, out=out, **options)
        return book.summary()


def look(manifest: Manifest, out: Path, shard, retry: bool, progress: bool = False, start: float | None = None) -> Book:
    """Plan, and read every result that is there; the book knows what is to be done, and sums up."""
    tasks = plan(manifest, out)
    tasks = tasks if shard is None else share(tasks, shard)
    left, attempted = {path.stem for path in (out / "failed").glob("*.json")}, begun(out)
    todo, found, failed, n_damaged = [], [], [], 0
    for task in tasks:
        key = task.key
        if is_whole(out, key):
            found.append(key)
            if key in left:  # of an attempt whose result was there, though the file system said it was not
                forget_failure(out, key)
            continue
        damaged = result_path(out, key).exists()
        n_damaged += damaged
        if key in left and not damaged and not retry:
            error = str(read_failure(failure_path(out, key)).get("error"))
            failed.append(Receipt(key, task.session, task.model, "failed", error=error))
            continue
        todo.append(task)
        if retry and key in attempted:
            ended(out, key)
    if not retry:
        # What ends its process, or may be what does, is not to keep the others from being done.
        todo.sort(key=lambda task: task.key in attempted and bool(deaths(out, task.key)))
    return Book(out, todo, found, failed, n_damaged, progress, time.perf_counter() if start is None else start)


def _check_scheduler(scheduler: str) -> None:
    """Raise for what is no place to work, before anything is done."""
    if scheduler not in ("serial", "local", "slurm") and "://" not in scheduler and not Path(scheduler).is_file():
        raise ValueError(
            f"scheduler is {scheduler!r}; it must be 'local', 'serial', 'slurm', an address such as 'tls://host:8786', "
            "or a scheduler file that exists."
        )


def _drive(works: list[Work], book: Book, where, **options) -> None:
    """Let Dask do the work."""
    from ._cluster import open_client
    from ._drive import drive
    from ._fit import do

    with open_client(where, cache=options["out"] / "compiled", **options) as client:
        if client.dashboard_link and book.is_shown:
            book.say(f"Dask dashboard: {client.dashboard_link}")
        try:
            drive(client, do, works, on_receipt=book.add, on_lost=book.lost, say=book.say)
        except BaseException:
            take_back(options["out"], [work.key for work in works])  # before their workers are ended
            raise


class Book:
    """Keeps the receipts, and shows them."""

    def __init__(self, out, todo: list[Task], found: list[str], failed: list[Receipt], n_damaged, progress, start):
        self.todo, self._out, self._found, self._n_damaged, self._start = todo, out, found, n_damaged, start
        self._failed, self._done, self._stopped = list(failed), [], None
        self._unwritten: dict[str, int] = {}  # per host: its last results, as far as they could not be written
        self._in_a_row = 0  # the same of all hosts
        self._n_tasks = len(todo) + len(found) + len(failed)
        interval = 0.1 if sys.stderr is not None and sys.stderr.isatty() else 30.0
        self._bar = ProgressBar(f"batch {out.name}", len(todo), "fit", progress and bool(todo), mininterval=interval)

    @property
    def is_shown(self) -> bool:
        """Whether there is a bar."""
        return self._bar.is_shown

    def __enter__(self) -> Book:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        self._bar.close()
        if isinstance(error, _CannotWriteError):
            self._stopped = str(error)
        return self._stopped is not None

    def add(self, work: Work, receipt: Receipt) -> None:
        """Note what became of a task."""
        if receipt.state == "failed":
            self._failed.append(receipt)
            self.say(_failed(receipt))
        else:
            self._done.append(receipt.key)
        if receipt.worker:  # unknown where workers died
            host = receipt.worker.rpartition(":")[0]
            self._unwritten[host] = self._unwritten.get(host, 0) + 1 if receipt.unwritten else 0
            self._in_a_row = self._in_a_row + 1 if receipt.unwritten else 0
        self._bar.say(f"{len(self._failed)} failed" if self._failed else "")
        self._bar.advance()
        # Where one host writes, it is another host that is sick, not the folder.
        of_each = min(self._unwritten.values(), default=0)
        many = max(_MANY_UNWRITTEN, _UNWRITTEN * len(self._unwritten))
        if receipt.unwritten and (of_each >= _UNWRITTEN or self._in_a_row >= many):
            n = _UNWRITTEN if of_each >= _UNWRITTEN else many
            raise _CannotWriteError(f"results cannot be written any more, {n} in a row: {receipt.error}")
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
        """Print, without tearing the bar if there is one."""
        if self._bar.is_shown:
            self._bar.write(printable(text))
        else:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody listens
                print(printable(text), file=sys.stderr, flush=True)

    def summary(self) -> Summary:
        """Sum up what the run came to, by the results that are there now."""
        n_found, n_done = (
            sum(result_path(self._out, key).exists() for key in keys) for keys in (self._found, self._done)
        )
        return Summary(
            self._out,
            self._n_tasks,
            n_found,
            n_done,
            self._failed,
            n_missing=self._n_tasks - n_found - n_done - len(self._failed),
            n_damaged=self._n_damaged,
            seconds=time.perf_counter() - self._start,
            stopped=self._stopped,
        )


class _CannotWriteError(OSError):
    """The output folder is full, read-only or gone."""


def _failed(receipt: Receipt) -> str:
    error = ((receipt.error or "").splitlines() or ["?"])[0]
    return one_line(f"failed: {receipt.session}, {receipt.model}: {error}")
