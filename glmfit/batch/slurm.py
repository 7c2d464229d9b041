"""Workers as jobs of SLURM, one worker per job, replaced when they are lost."""

import asyncio
import shlex
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import dask
from dask_jobqueue import SLURMCluster
from dask_jobqueue.slurm import SLURMJob
from distributed import Security
from distributed.core import Status

from .local import HTTP_ON_LOOPBACK, Arrivals, last_lines
from .process import LIFETIME, SET_STARTED, SLURM_OPTIONS, directive, lifetime_of, log_file

CHECK_EVERY = 5.0  # seconds between checks of jobs whose worker has not arrived
CHECK_BROKEN_EVERY = 300.0  # the same after many of them ended without one
SECONDS_TO_ARRIVE = 15.0  # a job is not checked before
LOOK_EVERY = 1.0  # seconds between checks for jobs to submit
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds until a refused submission is tried again; they double
MARGIN = 120.0  # seconds before the walltime (see `lifetime_of`) at which a worker leaves
# Programs compiled for one type of node may not run on another; only the node itself knows its type.
_CACHE_OF_NODE = (
    'export JAX_COMPILATION_CACHE_DIR="$JAX_COMPILATION_CACHE_DIR/'
    "$( (uname -m; grep -m1 -E '^(flags|Features)' /proc/cpuinfo) | cksum | cut -d' ' -f1)\""
)


class Job(SLURMJob):
    """One worker. A submission that SLURM refuses raises nothing, but keeps the message of sbatch."""

    refusal: str | None = None

    async def start(self):
        """Submit the job, or keep the reason why that failed."""
        try:
            await super().start()
        except (RuntimeError, ValueError, OSError) as error:
            # Dask's message has the command and its output on both streams.
            self.refusal = str(error).rpartition("stderr:\n")[2].strip() or str(error)
            self.status = Status.running  # Dask closes only running jobs; this includes one that never started

    async def close(self):
        try:
            await super().close()
        finally:
            self.status = Status.closed


class Jobs(SLURMCluster):
    """A scheduler in this process and workers in jobs.

    Dask's adaptive scaling replaces a lost worker. This class notices a job that ends before its worker has arrived
    (cancelled in the queue, killed while it started), by asking SLURM, and a job that SLURM refuses.
    """

    job_cls = Job
    waits_in_queue = True

    def __init__(self, *, n_jobs: int, logs: Path, security: Security, **given):
        self.arrivals = Arrivals()
        self.n_jobs, self.log_directory = n_jobs, str(logs)
        self.trouble: str | None = None
        self.news: deque[str] = deque()  # sentences for the user
        self.reasons: list[str] = []  # why jobs wait, in SLURM's words
        logs.mkdir(parents=True, exist_ok=True)
        options = job_options(logs=logs, **given)
        options["scheduler_options"]["plugins"] = [self.arrivals]
        super().__init__(security=security, **options)
        self.adapt(minimum_jobs=n_jobs, maximum_jobs=n_jobs, interval=f"{LOOK_EVERY}s")
        self.loop.add_callback(self._look_after_jobs)
        self.loop.add_callback(self._look_after_refused)

    def _get_worker_security(self, security):
        """Leave the certificates out of the command, where Dask puts them unquoted: they are in the environment."""
        return None

    async def _is_open_after(self, seconds: float) -> bool:
        """Wait, and return whether the cluster is still open."""
        await asyncio.sleep(seconds)
        return self.status.name in ("created", "starting", "running")

    async def _look_after_refused(self) -> None:
        """Submit refused jobs again, after growing pauses; if SLURM never accepted a job, it never will."""
        accepted, pause = False, 0.0
        while await self._is_open_after(pause or LOOK_EVERY):
            accepted = accepted or any(job.job_id for job in self.workers.values())
            refused = self._refused()
            if refused and not accepted:
                self.trouble = f"SLURM refuses the jobs; sbatch said:\n{refused[0].refusal}"
                return
            if refused and not pause:
                self.news.append(f"SLURM refused a job, which will be retried; sbatch said:\n{refused[0].refusal}")
                pause = FIRST_PAUSE
                continue
            for job in refused:
                await self.workers.pop(job.name).close()
            if refused:
                await self._correct_state()
            if pause and not self._refused():
                self.news.append("SLURM accepts jobs again")
            pause = min(2 * pause, LONGEST_PAUSE) if self._refused() else 0.0

    def _refused(self) -> list[Job]:
        return [job for job in self.workers.values() if job.refusal]

    async def _look_after_jobs(self) -> None:
        """Forget jobs that SLURM no longer knows, so that new ones are submitted; many in a row are trouble."""
        arrived = n_gone = 0
        submitted: dict[str, float] = {}
        while await self._is_open_after(CHECK_EVERY if self.trouble is None else CHECK_BROKEN_EVERY):
            if self.arrivals.count.total() > arrived:
                arrived, n_gone, self.trouble = self.arrivals.count.total(), 0, None
            present = {str(worker.name) for worker in self.scheduler.workers.values()}
            absent = {name: job.job_id for name, job in self.workers.items() if str(name) not in present}
            missing = {job: name for name, job in absent.items() if job}
            now = time.monotonic()
            submitted = {job: submitted.get(job, now) for job in missing}
            old = [job for job, since in submitted.items() if now - since > SECONDS_TO_ARRIVE]
            known = await self._known_jobs() if old else {}
            if known is None:
                continue
            self.reasons = sorted({known[job] for job in old if job in known} - {"None"})
            for job in old:
                if job not in known and self.workers.pop(missing[job], None) is not None:
                    n_gone += 1
                    log = next(iter(sorted(Path(self.log_directory).glob(f"*-{job}.err"))), Path(self.log_directory))
            if n_gone >= 3 * self.n_jobs:  # no queue should be flooded with them
                self.trouble = f"{n_gone} jobs ended before their worker had started; see {log}:\n{last_lines(log)}"

    async def _known_jobs(self) -> dict[str, str] | None:
        """Return this user's jobs that wait or run, and why they wait; None if SLURM does not answer now."""
        try:
            async with self._lock:  # the cluster does not close meanwhile
                out = await SLURMJob._call(["squeue", "--me", "--noheader", "--format=%A|%r"])
        except (RuntimeError, OSError):
            return None
        return dict(line.split("|", 1) for line in out.splitlines() if "|" in line)


def job_options(
    *, gpu: bool, options: dict[str, Any], env: dict[str, str], logs: Path, dashboard: bool
) -> dict[str, Any]:
    """Translate the options of `run` into those of Dask's SLURMCluster.

    Missing options are taken from Dask's own configuration (jobqueue.slurm), where the default walltime is 30 minutes.
    Dask writes all of them into a script unchanged: values that must not be read as shell code are quoted here.
    """
    unknown = sorted(set(options) - set(SLURM_OPTIONS))
    if unknown:
        known = f"known are {list(SLURM_OPTIONS)}, and extra=['--name=value'] for all others"
        raise ValueError(f"slurm options {unknown} are not known; {known}")
    configured = dask.config.get("jobqueue.slurm")
    extra = [f"--{stream}={log_file(logs, f'glmfit-%J.{stream[:3]}')}" for stream in ("error", "output")]
    extra += [*_lines(options.get("extra", configured["job-extra-directives"])), *(["--gres=gpu:1"] if gpu else [])]
    for option in [*(f"--{name}={options.get(name)}" for name in ("partition", "account", "walltime")), *extra]:
        directive(option)  # raises unless it is a line
    walltime = options.get("walltime") or configured["walltime"]
    lifetime = lifetime_of(walltime, MARGIN)
    arguments = [*HTTP_ON_LOOPBACK]
    if lifetime is not None:
        # If a worker leaves by itself, its task does not fail: it starts again elsewhere.
        arguments += ["--lifetime", f"{lifetime:.0f}s"]
        env = env | {LIFETIME: f"{lifetime:.0f}"}
    scheduler, host = {"dashboard": dashboard, "dashboard_address": "127.0.0.1:0"}, options.get("host")
    scheduler |= {"host": host} if host else {}
    if host and host.startswith("127."):  # all nodes are this machine
        arguments += ["--host", host]
    return {
        "cores": 1,
        "processes": 1,
        "memory": options.get("memory") or configured["memory"] or "4GB",
        "walltime": walltime,
        "queue": options.get("partition"),
        "account": options.get("account"),
        "interface": options.get("interface") and shlex.quote(options["interface"]),
        # A command in Dask's configuration may have several words, and is not quoted.
        "python": configured["python"] or shlex.quote(sys.executable),
        "protocol": "tls://",
        "local_directory": f'"{configured["local-directory"] or "${TMPDIR:-/tmp}"}"',  # variables are for the node
        "job_script_prologue": [
            *_lines(options.get("prologue", configured["job-script-prologue"])),
            *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
            SET_STARTED,
            *([_CACHE_OF_NODE] if "JAX_COMPILATION_CACHE_DIR" in env else []),
        ],
        "job_directives_skip": [*configured["job-directives-skip"], "#SBATCH -e ", "#SBATCH -o "],
        "job_extra_directives": extra,
        "worker_extra_args": [shlex.quote(argument) for argument in arguments],
        "scheduler_options": scheduler,
        "job_name": "glmfit",
        "silence_logs": "CRITICAL",
    }


def _lines(given: str | list[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or [])
