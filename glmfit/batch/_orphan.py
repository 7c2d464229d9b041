"""Loaded by a local worker when it starts: end this process as soon as the one that started it is gone.

The driver holds the other end of this process's standard input and never writes to it, so the end of the input means
that the driver has ended, by whatever signal. The file imports nothing of glmfit: a worker loads it before anything.
"""

import contextlib
import os
import sys
import threading


def _end_with_the_input() -> None:
    """Wait for the end of the standard input, then leave at once; what was begun here is not why."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    attempts = sys.modules.get("glmfit.batch._attempts")  # nothing was begun without it
    if attempts is not None:
        attempts.forget_all()
    os._exit(1)


def dask_setup(worker: object) -> None:
    """Start to watch; Dask calls this when the worker starts."""
    threading.Thread(target=_end_with_the_input, name="watch-the-driver", daemon=True).start()
