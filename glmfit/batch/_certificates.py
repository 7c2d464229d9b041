"""The certificates of one cluster, as files that only their owner can read."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ._lock import RunLock

if TYPE_CHECKING:
    from distributed import Security

_OWNER = "owner.lock"
_STALE_S = 3600.0  # what was heard of within that time is left alone, whatever clocks and process numbers say


class Certificates:
    """Certificates of one cluster in a folder that only its owner can read, removed on exit."""

    def __init__(self, security: Security | None, parent: Path | None):
        from distributed import Security

        self.security = security or Security.temporary()
        self.parent = parent
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Certificates:
        _tidy_up(self.parent or Path(tempfile.gettempdir()))
        # mkdtemp gives the mode 0700, in a shared folder too.
        self.folder = Path(tempfile.mkdtemp(prefix=".tls-", dir=self.parent))
        self._owner = RunLock(self.folder / _OWNER)
        self._owner.__enter__()
        self.files = {role: self._write(role) for role in ("scheduler", "worker")}
        names = {"cert": "cert", "key": "key", "ca-file": "ca_file"}
        where = "distributed.scheduler.dashboard.tls"
        self.settings = {f"{where}.{name}": self.files["scheduler"][key] for name, key in names.items()}
        # The HTTP servers of workers read the same, though it is named after the scheduler's.
        self.environment = {
            "DASK_" + f"{where}.{name}".replace(".", "__").replace("-", "_").upper(): self.files["worker"][key]
            for name, key in names.items()
        }
        return self

    def _write(self, role: str) -> dict[str, str]:
        """Files of one role; those that are files already stay where they are."""
        files = {}
        for what, value in self.security.get_tls_config_for_role(role).items():
            if what == "ciphers" or value is None:
                continue
            if "\n" in value:
                path = self.folder / f"{role}-{what}.pem"
                path.touch(mode=0o600)
                path.write_text(value, encoding="ascii")
                value = str(path)
            files[what] = value
        if set(files) != {"ca_file", "cert", "key"}:
            raise ValueError(
                f"security has no certificate, key and CA for the {role}; give all of them, or none for temporary ones"
            )
        return files

    def on_disk(self) -> Security:
        """Return the same certificates by the names of their files, as jobs need them."""
        from distributed import Security

        roles = {"scheduler": "scheduler", "worker": "worker", "client": "scheduler"}
        names = {f"tls_{role}_{w}": self.files[like][w] for role, like in roles.items() for w in ("cert", "key")}
        return Security(require_encryption=True, tls_ca_file=self.files["worker"]["ca_file"], **names)

    def __exit__(self, *exc: object) -> None:
        self._owner.__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)


def _tidy_up(parent: Path) -> None:
    """Remove the folders of this user's processes that were killed."""
    for lock in parent.glob(f".tls-*/{_OWNER}"):
        with contextlib.suppress(OSError):
            is_ours = lock.parent.lstat().st_uid == os.getuid()  # others may write to a folder for temporary files
            if is_ours and time.time() - lock.stat().st_mtime > _STALE_S and RunLock(lock).holder() is None:
                shutil.rmtree(lock.parent)
