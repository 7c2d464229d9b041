"""Driver of a Dask cluster: send tasks to its workers and collect receipts, whatever happens to the workers."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from .process import stop_if_told

if TYPE_CHECKING:
    from distributed import Client, Future

PER_WORKER = 2  # tasks with the cluster: one that runs, and one so that the worker need not wait for the next
LOOK_EVERY = 1.0  # seconds between checks of the workers
SPEAK_AFTER = 60.0  # seconds without a worker before this is reported
FETCH_WITHIN = 10.0  # seconds for a receipt to arrive once it is there
RESUBMISSIONS = 5  # of one task whose result was lost or cancelled on the way


class ClusterLostError(RuntimeError):
    """No worker is left, and none will come; finished fits are in their files, and a new run does the rest."""


def drive(
    client: Client,
    function: Callable[[Any], Any],
    tasks: Iterable[Any],
    *,
    on_receipt: Callable[[Any, Any], None],
    on_lost: Callable[[Any, BaseException], None],
    say: Callable[[str], None] = lambda sentence: None,
    patience: float = 300.0,
) -> None:
    """Run ``function(task)``, which must be idempotent, on the workers of a cluster, and hand over the receipts.

    A task whose worker dies is run again elsewhere. A task that may have killed its workers is set aside, and run again
    at the end while nothing else runs; it is lost only if it kills them again. Receipts and losses are reported in this
    thread. ClusterLostError if the scheduler is gone, workers cannot start, or none was there for `patience` seconds
    (no limit for a cluster whose jobs wait in a queue). When the call ends, tasks still with the cluster are cancelled.
    """
    run, watch = _Run(client, function, tasks, on_receipt, on_lost), _Watch(client, say, patience)
    try:
        while run.waiting or run.flying or run.suspects:
            stop_if_told()
            watch.look()
            run.supply(watch.n_workers)
            with contextlib.suppress(Empty):
                run.land(run.landed.get(timeout=LOOK_EVERY))
    finally:  # cancel what is still with the cluster: nothing if all went well
        futures = [future for *_, future in run.flying.values()]
        run.flying.clear()
        if futures and client.status == "running":
            with contextlib.suppress(Exception):
                client.cancel(futures, reason="the run ended")


class _Run:
    def __init__(self, client: Client, function, tasks, on_receipt, on_lost):
        self.client, self.function = client, function
        self.on_receipt, self.on_lost = on_receipt, on_lost
        self.waiting = deque((task, 0) for task in tasks)  # and how often each was lost on the way
        self.suspects: deque[tuple[Any, int]] = deque()
        self.flying: dict[str, tuple[Any, int, bool, Future]] = {}
        self.landed: SimpleQueue[Future] = SimpleQueue()

    def supply(self, n_workers: int) -> None:
        if self.suspects and not self.waiting and not self.flying:
            self.submit(*self.suspects.popleft(), alone=True)
        while self.waiting and len(self.flying) < max(2, PER_WORKER * n_workers):
            self.submit(*self.waiting.popleft())

    def submit(self, task: Any, n_lost: int, alone: bool = False) -> None:
        try:
            # pure=False: a new key each time, so that no result of an earlier attempt is reused.
            future = self.client.submit(self.function, task, pure=False)
        except (OSError, RuntimeError, CancelledError) as error:
            if self.client.status not in ("closing", "closed"):
                raise
            raise ClusterLostError(f"the connection to the Dask scheduler is closed ({error})") from error
        self.flying[future.key] = task, n_lost, alone, future
        future.add_done_callback(self.landed.put)

    def land(self, future: Future) -> None:
        from distributed import KilledWorker

        if future.key not in self.flying:
            return
        task, n_lost, alone, _ = self.flying[future.key]
        error = None
        try:
            receipt = future.result(timeout=FETCH_WITHIN)
        except Exception as caught:
            error = caught
        is_own = future.status == "error"  # raised by the function, or reported by the scheduler
        if isinstance(error, TimeoutError) and not is_own:
            # The worker left with the receipt: Dask runs the task again, and we wait for it again.
            future.add_done_callback(self.landed.put)
            return
        del self.flying[future.key]
        future.release()
        if error is None:
            self.on_receipt(task, receipt)
        elif isinstance(error, KilledWorker) and not alone:
            self.suspects.append((task, n_lost))
        elif isinstance(error, CancelledError | OSError) and not is_own and n_lost < RESUBMISSIONS:
            (self.suspects if alone else self.waiting).appendleft((task, n_lost + 1))
        else:
            self.on_lost(task, error)


class _Watch:
    """Count of the workers, about once a second; reports if there are none, and finally gives up."""

    def __init__(self, client: Client, say: Callable[[str], None], patience: float):
        self.client, self.say, self.patience = client, say, patience
        self.n_workers, self.has_spoken = 0, False
        self.seen = time.monotonic()
        self.next = self.seen

    def look(self) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + LOOK_EVERY
        while self.about("news"):
            self.say(self.client.cluster.news.popleft())
        if self.client.status in ("closing", "closed"):
            raise ClusterLostError("the Dask scheduler is gone: the connection to it is closed")
        self.n_workers = 0
        with contextlib.suppress(OSError, RuntimeError, TimeoutError, CancelledError):  # it does not answer now
            self.n_workers = len(self.client.nthreads())
        if self.n_workers:
            if self.has_spoken:
                self.say(f"there are workers again: {self.n_workers}")
            self.seen, self.has_spoken = now, False
            return
        seconds, trouble = now - self.seen, self.about("trouble")
        if trouble:
            raise ClusterLostError(f"no worker can start: {trouble}")
        reasons, logs = self.about("reasons"), self.about("log_directory")
        hint = f"; SLURM's reason: {', '.join(reasons)}" if reasons else ""
        hint += f"; logs of workers are in {logs}" if logs else ""
        if seconds > self.patience and not self.about("waits_in_queue"):
            raise ClusterLostError(f"no worker for {seconds:.0f} s{hint}")
        if seconds > SPEAK_AFTER and not self.has_spoken:
            self.say(f"no worker for {seconds:.0f} s, still waiting{hint}")
            self.has_spoken = True

    def about(self, name: str) -> Any:
        return getattr(getattr(self.client, "cluster", None), name, None)
