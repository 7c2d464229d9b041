"""Worker processes on this machine, each a fresh interpreter that is started again when it dies.

Dask's own local workers are children of `multiprocessing`, which imports the user's main script again, and with it jax,
before the environment of the worker is set: too late for everything that jax reads on import. A fresh interpreter has
its environment from its first instruction.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections import Counter
from pathlib import Path

from distributed import Scheduler, Security, SpecCluster
from distributed.deploy.spec import ProcessInterface
from distributed.diagnostics.plugin import SchedulerPlugin

from ..files import open_to_append
from .at_work import forget_all, text_of

# By default, the HTTP server of a worker listens on every interface of its machine.
HTTP_ON_LOOPBACK = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")
_QUICK_DEATHS = 3  # this many in a row, without the worker ever reaching the scheduler, are trouble


class Arrivals(SchedulerPlugin):
    """Count how often the worker of each name has reached the scheduler."""

    def __init__(self):
        self.count: Counter[str] = Counter()

    def add_worker(self, scheduler, worker):
        self.count[str(scheduler.workers[worker].name)] += 1


def last_lines(path: Path) -> str:
    """Read the end of a log; empty if there is none."""
    return "\n".join((text_of(path) or "").splitlines()[-5:])


class LocalWorker(ProcessInterface):
    """One worker process, kept alive."""

    def __init__(self, scheduler, name, *, scratch: Path, env: dict[str, str], log: Path, arrivals: Arrivals):
        super().__init__(scheduler=scheduler, name=name)
        self.name, self.env, self.log, self.arrivals = str(name), env, log, arrivals
        self.command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, "--name", self.name]
        self.command += ["--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--memory-limit", "0"]
        self.command += [*HTTP_ON_LOOPBACK, "--death-timeout", "60", "--local-directory", str(scratch)]
        self.command += ["--preload", __name__]
        self.trouble: str | None = None
        self._process = self._task = None

    async def start(self):
        self._task = asyncio.create_task(self._keep_alive())
        await super().start()

    async def _keep_alive(self) -> None:
        """Start the process, and again whenever it has ended; more slowly if it never reaches the scheduler."""
        failures = 0
        while True:
            arrived = self.arrivals.count[self.name]
            with open_to_append(self.log) as log:
                # A session of its own: Ctrl-C is for the driver, which ends its workers in order.
                given = {"stdin": asyncio.subprocess.PIPE, "stdout": log, "stderr": log, "start_new_session": True}
                self._process = await asyncio.create_subprocess_exec(*self.command, env=self.env, **given)
            code = await self._process.wait()
            failures = failures + 1 if self.arrivals.count[self.name] == arrived else 0
            what = f"the worker processes end before they reach the scheduler (exit code {code}); the end of {self.log}"
            self.trouble = f"{what}:\n{last_lines(self.log)}" if failures >= _QUICK_DEATHS else None
            await asyncio.sleep(min(30.0, 0.1 * 2**failures))

    async def close(self):
        """End the process at once: everything it has is in files."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await super().close()


class LocalProcesses(SpecCluster):
    """A scheduler in this process and workers in others, all of them on 127.0.0.1 and behind TLS."""

    waits_in_queue = False  # workers either come within seconds or never

    def __init__(self, *, environments: list[dict], security: Security, scratch: Path, logs: Path, dashboard: bool):
        arrivals = Arrivals()
        shared = {"scratch": scratch, "arrivals": arrivals}
        workers = {
            f"local-{i}": {"cls": LocalWorker, "options": shared | {"env": env, "log": logs / f"local-{i}.log"}}
            for i, env in enumerate(environments)
        }
        options = {"host": "127.0.0.1", "port": 0, "protocol": "tls://", "security": security, "plugins": [arrivals]}
        options |= {"dashboard": dashboard, "dashboard_address": "127.0.0.1:0"}
        self.log_directory = str(logs)
        logs.mkdir(parents=True, exist_ok=True)
        scheduler = {"cls": Scheduler, "options": options}
        super().__init__(workers=workers, scheduler=scheduler, security=security, silence_logs="CRITICAL")

    @property
    def trouble(self) -> str | None:
        """Reason why no worker can be expected any more, or None."""
        found = [getattr(worker, "trouble", None) for worker in self.workers.values()]
        return found[0] if found and all(found) else None


def dask_setup(worker: object) -> None:
    """Let this process end as soon as the one that started it is gone; Dask calls this in a worker when it starts."""
    threading.Thread(target=_end_with_the_input, name="watch-the-driver", daemon=True).start()


def _end_with_the_input() -> None:
    """Exit when the standard input, held by the driver, ends; fits begun here are not the cause."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    forget_all()
    os._exit(1)
