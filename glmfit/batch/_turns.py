"""Workers of one machine, or of one shared folder, take turns in compiling: nobody compiles what another is at."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from .._compile import take_turns
from .._files import open_to_append

_PATIENCE_S = 60.0  # whoever takes longer may be gone, on a host whose locks do not end with the process
_LOOK_S = 0.02


def share_compilation() -> None:
    """Take turns with other processes that keep compiled programs in the same folder, if this one keeps them."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if folder:
        take_turns(lambda name: _turn(Path(folder) / "turns", name))


@contextlib.contextmanager
def _turn(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of a program; without one where the file system has none, or if it takes too long."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, ImportError):
            import fcntl

            folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(open_to_append(folder / name))
            until = time.monotonic() + _PATIENCE_S
            while time.monotonic() < until:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOOK_S)
        yield
