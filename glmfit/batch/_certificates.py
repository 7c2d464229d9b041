"""The certificates of one cluster, as files that only their owner can read."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ._lock import RunLock

if TYPE_CHECKING:
    from distributed import Security

_OWNER = "owner.lock"
_STALE_S = 3600.0  # what was heard of within that time is left alone, whatever clocks and process numbers say


class Certificates(NamedTuple):
    """New certificates, for all connections of a cluster."""

    folder: Path
    security: Security  # for the scheduler and the client
    settings: dict[str, str]  # of Dask, in their process
    environment: dict[str, str]  # the same for workers, which have no secret on their command line


@contextlib.contextmanager
def certificates(parent: Path | None) -> Iterator[Certificates]:
    """Make certificates in a folder that only this user can read, and remove it in the end."""
    from distributed import Security

    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    _tidy_up(parent or Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=".tls-", dir=parent))  # mode 0700, in a shared folder too
    security, files = Security.temporary(), {}
    try:
        with RunLock(folder / _OWNER):
            for what in ("ca_file", "cert", "key"):
                file = folder / f"{what}.pem"
                file.touch(mode=0o600)
                file.write_text(security.get_tls_config_for_role("worker")[what], encoding="ascii")
                files[what.replace("_", "-")] = str(file)
            # HTTP servers, of workers too, read what is named after the scheduler's dashboard.
            http = {f"distributed.scheduler.dashboard.tls.{what}": file for what, file in files.items()}
            talk = {"distributed.comm.tls.ca-file": files.pop("ca-file")}
            talk |= {f"distributed.comm.tls.worker.{what}": file for what, file in files.items()}
            variables = {
                name.replace(".", "__").replace("-", "_").upper(): file for name, file in (http | talk).items()
            }
            environment = {f"DASK_{name}": file for name, file in variables.items()}
            yield Certificates(folder, security, http, environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tidy_up(parent: Path) -> None:
    """Remove the folders of this user's processes that were killed."""
    for lock in parent.glob(f".tls-*/{_OWNER}"):
        with contextlib.suppress(OSError):
            is_ours = lock.parent.lstat().st_uid == os.getuid()  # others may write to a folder for temporary files
            if is_ours and time.time() - lock.stat().st_mtime > _STALE_S and RunLock(lock).holder() is None:
                shutil.rmtree(lock.parent)
