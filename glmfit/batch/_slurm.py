"""Workers as jobs of SLURM, one worker per job, replaced when they are lost."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import dask
from dask_jobqueue import SLURMCluster
from dask_jobqueue.slurm import SLURMJob
from distributed import Security

from ._attempts import LIFETIME
from ._directives import directive, lifetime_of, log_file
from ._local import HTTP_ON_LOOPBACK, Arrivals, last_lines

OPTIONS = ("partition", "account", "walltime", "memory", "interface", "host", "extra", "prologue", "python")
CHECK_EVERY = 5.0  # seconds between two looks at jobs whose worker has not arrived
CHECK_BROKEN_EVERY = 300.0  # the same after many of them ended without one
SECONDS_TO_ARRIVE = 15.0  # a job is not looked at before
MARGIN = 120.0  # seconds before the walltime (see `lifetime_of`) at which a worker leaves
# Programs compiled for one type of node may not run on another; which type it is, the node itself has to say.
_CACHE_OF_NODE = (
    'export JAX_COMPILATION_CACHE_DIR="$JAX_COMPILATION_CACHE_DIR/'
    "$( (uname -m; grep -m1 -E '^(flags|Features)' /proc/cpuinfo) | cksum | cut -d' ' -f1)\""
)


class Jobs(SLURMCluster):
    """A scheduler in this process and workers in jobs.

    Dask's adaptive scaling replaces a worker that was there and was lost. A job that ends before its worker has arrived
    (cancelled in the queue, killed while it started) is noticed here, by asking SLURM.
    """

    waits_in_queue = True

    def __init__(self, *, n_jobs: int, logs: Path, **options):
        self.arrivals = Arrivals()
        self.n_jobs, self.log_directory = n_jobs, str(logs)
        self.trouble: str | None = None
        self.n_gone = 0
        self.submitted: dict[str, float] = {}
        options["scheduler_options"]["plugins"] = [self.arrivals]
        super().__init__(**options)
        self.adapt(minimum_jobs=n_jobs, maximum_jobs=n_jobs, interval="1s")
        self.loop.add_callback(self._look_after_jobs)

    def _get_worker_security(self, security):
        """Leave the certificates out of the command, where Dask puts them unquoted: see `job_options`."""
        return None

    async def _look_after_jobs(self) -> None:
        """Forget jobs that SLURM does not know any more, so that new ones are submitted."""
        arrived = 0
        while self.status.name in ("created", "starting", "running"):
            # Where jobs cannot work, no queue is to be flooded with them.
            await asyncio.sleep(CHECK_EVERY if self.trouble is None else CHECK_BROKEN_EVERY)
            if sum(self.arrivals.count.values()) > arrived:
                arrived, self.n_gone, self.trouble = sum(self.arrivals.count.values()), 0, None
            now, missing = time.monotonic(), self._missing()
            self.submitted = {job: self.submitted.get(job, now) for job in missing}
            old = [job for job, since in self.submitted.items() if now - since > SECONDS_TO_ARRIVE]
            if not old:
                continue
            known = await self._known_jobs()
            for job in old:
                if known is not None and job not in known and self.workers.pop(missing[job], None) is not None:
                    self._count_as_gone(job)

    def _missing(self) -> dict[str, Any]:
        """Jobs whose worker is not with the scheduler: {number of the job: name of the worker}."""
        present = {str(worker.name) for worker in self.scheduler.workers.values()}
        jobs = ((name, job) for name, job in self.workers.items() if str(name) not in present)
        return {job.job_id: name for name, job in jobs if job.job_id}

    async def _known_jobs(self) -> set[str] | None:
        """Return the numbers of this user's jobs that wait or run; None if SLURM does not answer now."""
        try:
            out = await SLURMJob._call(["squeue", "--me", "--noheader", "--format=%A"])
        except (RuntimeError, OSError):
            return None
        return set(out.split())

    def _count_as_gone(self, job: str) -> None:
        """Notice that jobs end one after the other without a worker."""
        self.n_gone += 1
        if self.n_gone >= 3 * self.n_jobs:
            log = next(iter(sorted(Path(self.log_directory).glob(f"*-{job}.err"))), Path(self.log_directory))
            self.trouble = f"{self.n_gone} jobs ended before their worker had started; see {log}:\n{last_lines(log)}"


def submit_jobs(*, n_jobs: int, logs: Path, **given: Any) -> Jobs:
    """Submit `n_jobs` jobs, and keep as many running or waiting until the cluster is closed."""
    logs.mkdir(parents=True, exist_ok=True)
    return Jobs(n_jobs=n_jobs, logs=logs, **job_options(logs=logs, **given))


def job_script(**given: Any) -> str:
    """Return the script of such a job, without submitting anything."""
    options = job_options(**given)
    for of_the_cluster in ("scheduler_options", "silence_logs", "security"):
        del options[of_the_cluster]
    return SLURMJob("tls://scheduler:port", name="worker", **options).job_script()


def job_options(
    *, gpu: bool, options: dict[str, Any], env: dict[str, str], security: Security, logs: Path, dashboard: bool
) -> dict[str, Any]:
    """Translate the options of the user into those of Dask's SLURMCluster.

    The user's are those of sbatch, by name: partition, account, walltime ("HH:MM:SS"), memory ("4GB"), and extra, a
    list of others ("--constraint=avx2"). prologue: lines of shell that come first in the job ("module load cuda").
    interface: network interface of the nodes and of this machine ("ib0"); host: address of this machine instead.
    python: interpreter of the workers, by default this one. What is not given is taken from Dask's own configuration
    (jobqueue.slurm), where the walltime is 30 minutes unless it was changed; it must be longer than the longest fit.

    Dask puts all of it into a script as it is: what must not be read as shell is quoted here.
    """
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise ValueError(
            f"slurm options {unknown} are not known; known are {list(OPTIONS)}, "
            "and extra=['--name=value'] for all others"
        )
    configured = dask.config.get("jobqueue.slurm")
    extra = [f"--{stream}={log_file(logs, f'glmfit-%J.{stream[:3]}')}" for stream in ("error", "output")]
    extra += [*_lines(options.get("extra", configured["job-extra-directives"])), *(["--gres=gpu:1"] if gpu else [])]
    for option in [*(f"--{name}={options.get(name)}" for name in ("partition", "account", "walltime")), *extra]:
        directive(option)  # raises unless it is a line
    walltime = options.get("walltime") or configured["walltime"]
    lifetime = lifetime_of(walltime, MARGIN)
    arguments = [*HTTP_ON_LOOPBACK]
    if lifetime is not None:
        # To leave by itself is no failure of the task that runs: it starts again elsewhere.
        arguments += ["--lifetime", f"{lifetime:.0f}s"]
        env = env | {LIFETIME: f"{lifetime:.0f}"}
    scheduler = {"dashboard": dashboard, "dashboard_address": "127.0.0.1:0"}
    if options.get("host"):
        scheduler["host"] = options["host"]
        if options["host"].startswith("127."):  # all nodes are this machine
            arguments += ["--host", options["host"]]
    # What Dask's configuration names may be a command of several words, and stays as it is.
    python = options.get("python") or (None if configured["python"] else sys.executable)
    files = security.get_tls_config_for_role("worker")
    arguments += ["--tls-ca-file", files["ca_file"], "--tls-cert", files["cert"], "--tls-key", files["key"]]
    return {
        "cores": 1,
        "processes": 1,
        "memory": options.get("memory") or configured["memory"] or "4GB",
        "walltime": walltime,
        "queue": options.get("partition"),
        "account": options.get("account"),
        "interface": options.get("interface"),
        "python": python and shlex.quote(python),
        "protocol": "tls://",
        "security": security,
        "local_directory": f'"{configured["local-directory"] or "${TMPDIR:-/tmp}"}"',  # variables are for the node
        "job_script_prologue": [
            *_lines(options.get("prologue", configured["job-script-prologue"])),
            *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
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
    """Accept one line for a list of one."""
    return [given] if isinstance(given, str) else list(given or [])
