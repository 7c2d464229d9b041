"""Dask clusters: processes on this machine, SLURM jobs, or an existing cluster; new ones are behind TLS."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import check_installed
from .at_work import RunLock
from .process import machine_type, signals_noted, visible_gpus, worker_environment

if TYPE_CHECKING:
    from distributed import Client, Security, SpecCluster

# Settings in the environment of our workers, in addition to `worker_environment`.
_WORKER_SETTINGS = {
    # Dask samples the stack every 10 ms; a fit gains nothing from it.
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    # A worker above 80 % of its memory would be paused, but here it keeps nothing that it could release: it would stay
    # paused indefinitely. One above 95 % is still ended and started again if there is a limit.
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",
    # Its HTTP server always listens: without any page, and (see `certificates`) behind TLS.
    "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": "[]",
}
_OWNER = "owner.lock"
_STALE_S = 3600.0  # certificates used within this time are kept, whatever clocks and process numbers suggest


@contextlib.contextmanager
def open_client(
    scheduler: str | os.PathLike | Client = "local",
    *,
    out: Path | None = None,
    workers: int = 1,
    gpus: int = 0,
    slurm: dict[str, Any] | None = None,
    security: Security | None = None,
    allowed_failures: int = 2,
) -> Iterator[Client]:
    """Open a Dask client, with a cluster if none exists, and close what was opened.

    The scheduler is that of `run`, or a client, which is passed through; `security` are the certificates of a cluster
    that runs already, by default those of Dask's configuration. Our own workers have logs in out/logs and compiled
    programs in out/compiled, which SLURM's nodes must share; `drive` waits for them. The dashboard needs bokeh.
    """
    if not isinstance(scheduler, str | os.PathLike):
        yield scheduler
        return
    check_installed(("distributed", "cryptography"), "batch", "  (or run serially)")
    if scheduler not in ("local", "slurm"):
        with _connect(os.fspath(scheduler), security) as client:
            yield client
        return
    import dask
    from distributed import Client

    dashboard = importlib.util.find_spec("bokeh") is not None
    settings = {
        "distributed.scheduler.allowed-failures": allowed_failures,
        # SLURM: a job whose worker is lost is cancelled and replaced after this. Local workers come back by themselves.
        "distributed.deploy.lost-worker-timeout": "2s" if scheduler == "slurm" else "365 days",
        # A short task that waits behind a long one goes to the first idle worker.
        "distributed.scheduler.work-stealing-interval": "100ms",
        "distributed.dashboard.link": "{scheme}://127.0.0.1:{port}/status",
    }
    settings |= {} if dashboard else {"distributed.scheduler.http.routes": []}
    with contextlib.ExitStack() as stack:
        stack.enter_context(signals_noted())  # SIGTERM ends in order, too: workers and jobs are ended, files removed
        shared = out if scheduler == "slurm" else None
        folder, security, http, environment = stack.enter_context(certificates(shared))
        stack.enter_context(dask.config.set(settings | http))
        # So that a worker also finds the user's own loaders.
        paths = dict.fromkeys(str(Path(place).absolute()) for place in sys.path)
        env = _WORKER_SETTINGS | environment | {"PYTHONPATH": os.pathsep.join(paths)}
        given = {"security": security, "logs": out / "logs", "dashboard": dashboard}
        if scheduler == "slurm":
            from .slurm import Jobs

            env |= worker_environment(gpu="0" if gpus else None, cache=out / "compiled")
            env.pop("CUDA_VISIBLE_DEVICES", None)  # SLURM chooses the GPU of each job
            cluster = Jobs(n_jobs=workers, gpu=bool(gpus), options=dict(slurm or {}), env=env, **given)
        else:
            from .local import LocalProcesses

            names = visible_gpus(gpus) if gpus else [None] * workers
            cache = out / "compiled" / machine_type()
            envs = [os.environ | worker_environment(gpu=name, cache=cache) | env for name in names]
            cluster = LocalProcesses(environments=envs, scratch=folder, **given)
        stack.enter_context(_closed(cluster))
        yield stack.enter_context(Client(cluster, security=cluster.security, set_as_default=False))


@contextlib.contextmanager
def _closed(cluster: SpecCluster) -> Iterator[None]:
    """Close a cluster; warn of an error, which does not replace an earlier result or error."""
    try:
        yield
    finally:
        try:
            cluster.close()
        except Exception as error:
            what = f"the cluster did not close in order ({type(error).__name__}: {error}); completed fits are kept. "
            advice = "Check whether its processes or jobs are left (on SLURM: squeue --me)."
            warnings.warn(what + advice, UserWarning, stacklevel=2)


@contextlib.contextmanager
def certificates(parent: Path | None) -> Iterator[tuple[Path, Security, dict[str, str], dict[str, str]]]:
    """Make certificates for all connections of a cluster in a folder that only this user can read, removed at the end.

    Yields the folder; security and settings of Dask for the scheduler and the client, in this process; the same as
    an environment for workers, which have no secret on their command line.
    """
    from distributed import Security

    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    _tidy_up(parent or Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=".tls-", dir=parent))  # mode 0700, in a shared folder too
    security, http, environment = Security.temporary(), {}, {}
    try:
        with RunLock(folder / _OWNER):
            for what, role in (("ca_file", ""), ("cert", "WORKER__"), ("key", "WORKER__")):
                file = folder / f"{what}.pem"
                file.touch(mode=0o600)
                file.write_text(security.get_tls_config_for_role("worker")[what], encoding="ascii")
                # HTTP servers, also of workers, read the settings of the scheduler's dashboard.
                http[f"distributed.scheduler.dashboard.tls.{what.replace('_', '-')}"] = str(file)
                environment[f"DASK_DISTRIBUTED__SCHEDULER__DASHBOARD__TLS__{what.upper()}"] = str(file)
                environment[f"DASK_DISTRIBUTED__COMM__TLS__{role}{what.upper()}"] = str(file)
            yield folder, security, http, environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tidy_up(parent: Path) -> None:
    """Remove the folders of this user's processes that were killed."""
    for lock in parent.glob(f".tls-*/{_OWNER}"):
        with contextlib.suppress(OSError):
            is_ours = lock.parent.lstat().st_uid == os.getuid()  # others may write to a folder for temporary files
            if is_ours and time.time() - lock.stat().st_mtime > _STALE_S and RunLock(lock).holder() is None:
                shutil.rmtree(lock.parent)


@contextlib.contextmanager
def _connect(where: str, security: Security | None) -> Iterator[Client]:
    """Connect to a cluster that runs already, and leave it running."""
    from distributed import Client, Security

    address = where
    if "://" not in where:
        try:
            address = json.loads(Path(where).read_text(encoding="utf-8"))["address"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{where} is not a scheduler file of Dask: it has no address") from None
    security = security or Security()
    _knock(address, security)
    if address.startswith("tcp://"):
        advice = "Start the scheduler and its workers with certificates, or let glmfit start them."
        what = f"{address} has no TLS: anybody who reaches that port can run code in your name. {advice}"
        warnings.warn(what, UserWarning, stacklevel=5)
    with Client(address, security=security, set_as_default=False) as client:
        yield client


def _knock(address: str, security: Security) -> None:
    """Raise unless a scheduler answers; a client that fails to connect may block another one when it is collected."""
    from distributed.comm import connect

    async def knock() -> None:
        comm = await connect(address, **security.get_connection_args("client"))
        comm.abort()

    try:
        with ThreadPoolExecutor(1) as thread:  # the caller may have an event loop of its own, as notebooks do
            thread.submit(asyncio.run, knock()).result()
    except (OSError, TypeError, ValueError) as error:
        # TypeError: an address with tls:// and no certificates in Dask's configuration.
        advice = "Is it running, and are its certificates named in Dask's configuration (distributed.comm.tls)?"
        raise ConnectionError(f"no Dask scheduler could be reached at {address}: {error}. {advice}") from error
