"""Fits by R's package mgcv, for comparison: data are exchanged as plain float64 files in a temporary folder."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from scipy.linalg import null_space

_PRELUDE = """suppressMessages(library(mgcv))
get <- function(name, ...) {
  v <- readBin(name, "double", file.size(name) / 8)
  if (...length()) matrix(v, ...) else v
}
put <- function(name, v) writeBin(as.double(v), name)
"""


_VERSION = """cat(R.version.string, ", mgcv ", as.character(packageVersion("mgcv")), ", ",
basename(extSoftVersion()["BLAS"]), sep="")"""


@functools.cache
def version() -> str | None:
    """Versions of R and mgcv, and the file of R's BLAS; None if they are not installed."""
    if shutil.which("Rscript") is None:
        return None
    done = subprocess.run(["Rscript", "-e", _VERSION], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


class Run:
    """A folder with arrays for a script of R; use it in a ``with`` block."""

    def __enter__(self) -> Run:
        self._folder = tempfile.TemporaryDirectory()
        self.path, self._lines = Path(self._folder.name), []
        return self

    def __exit__(self, *_) -> None:
        self._folder.cleanup()

    def give(self, name: str, array) -> str:
        """Pass an array to R under a name."""
        array = np.asarray(array, np.float64)
        array.ravel(order="F").tofile(self.path / name)
        shape = f", {array.shape[0]}, {array.shape[1]}" if array.ndim == 2 else ""
        self._lines.append(f'{name} <- get("{name}"{shape})')
        return name

    def call(self, script: str, limit_s: float = 3600.0) -> None:
        """Run a script with these arrays; the arrays that it puts can then be taken."""
        if version() is None:
            raise SystemExit("There is no R with its package mgcv, which this section needs (Debian: r-cran-mgcv).")
        file = self.path / "script.R"
        file.write_text("\n".join([_PRELUDE, *self._lines, script]) + "\n")
        done = subprocess.run(
            ["Rscript", file.name], cwd=self.path, capture_output=True, text=True, timeout=limit_s, check=False
        )
        if done.returncode:
            raise RuntimeError(f"R ended with status {done.returncode}: {done.stderr.strip()}")

    def take(self, name: str, *shape: int) -> np.ndarray:
        """Array that the script put under a name."""
        found = np.fromfile(self.path / name)
        return found.reshape(shape, order="F") if shape else found


class Parametric:
    """A term as mgcv's paraPen takes it: columns without the constant if data and penalties do not determine it.

    Parameters
    ----------
    features : numpy.ndarray
        Features of the term, (time, feature).
    penalties : sequence of numpy.ndarray
        Penalties of the term, (feature, feature).
    """

    def __init__(self, features: np.ndarray, penalties):
        k = features.shape[1]
        constant = np.ones((k, 1)) / np.sqrt(k)
        free = all(np.linalg.norm(S @ constant) < 1e-9 * np.linalg.norm(S) for S in penalties)
        level = features @ constant
        is_constant = np.ptp(level) <= 1e-9 * max(np.abs(level).max(), 1e-300)
        self.turn = null_space(constant.T) if free and is_constant else np.eye(k)
        X = features @ self.turn
        self.X, self.penalties = X - X.mean(axis=0), [self.turn.T @ S @ self.turn for S in penalties]

    def coef(self, found: np.ndarray) -> np.ndarray:
        """Coefficients of the features, (feature,); the curve is determined up to a constant."""
        return self.turn @ found
