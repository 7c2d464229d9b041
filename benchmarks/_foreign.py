"""Fits in another Python whose packages conflict with ours: arrays are exchanged as .npz, only fits are timed.

The functions that run there are in _foreign_fits.py.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _common import CHECKOUT

FITS = Path(__file__).with_name("_foreign_fits.py")


class Foreign:
    """A Python interpreter, our own or another, that fits in fresh processes.

    Parameters
    ----------
    python : str or Path, optional
        The interpreter; None is the current one.
    package : str
        Package that it must have.
    limit_s : float
        Time limit of a process, in seconds.

    Raises
    ------
    LookupError
        If the interpreter does not exist or does not have the package.
    """

    def __init__(self, python, package: str, limit_s: float = 1800.0):
        self.python, self.package, self.limit_s = str(python or sys.executable), package, limit_s
        try:
            self.version = str(self.call("version", package=package)["version"])
        except (OSError, RuntimeError) as error:
            raise LookupError(f"{package} is not there: {str(error)[-200:]}") from None

    def call(self, fit: str, arrays: dict | None = None, **arguments) -> dict[str, np.ndarray]:
        """Call a function of _foreign_fits.py in a fresh process with arrays and plain arguments; return its result."""
        with tempfile.TemporaryDirectory() as folder:
            given, made = Path(folder, "given.npz"), Path(folder, "made.npz")
            np.savez(given, **(arrays or {}))
            command = [self.python, str(FITS), fit, str(given), str(made), json.dumps(arguments)]
            clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            if self.python == sys.executable:
                clean["PYTHONPATH"] = str(CHECKOUT)
            try:
                done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=self.limit_s)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"{fit} of {self.package} took over {self.limit_s:g} s") from None
            if done.returncode or not made.exists():
                raise RuntimeError(f"{fit} of {self.package} ended with status {done.returncode}: {done.stderr[-500:]}")
            with np.load(made, allow_pickle=False) as stored:
                return dict(stored)


@functools.cache
def find(pythons, package: str, limit_s: float = 1800.0) -> Foreign | None:
    """Return the first Python that has a package, or None; our own is tried last.

    ``pythons`` is a path, several paths separated by commas, or None.
    """
    for python in [*(p for p in str(pythons or "").split(",") if p), None]:
        try:
            return Foreign(python, package, limit_s)
        except LookupError:
            continue
    return None
