"""200 fits on two local workers compared with the same fits one by one, and a second run that finds all of them done.

    python benchmarks/batch.py

200 simulated sessions of 3 000 to 30 000 bins and 10 to 60 neurons, 40 features (5 sources x 8 raised-cosine
histories), in files of single precision. The command is the one a user types; it starts with nothing compiled and ends
when its workers have exited. Single fits are timed in a process like a worker (one thread), already compiled, with
data in memory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import _problems
import numpy as np
from _common import ROOT, Section, fresh, interleaved, median, run_sections, timed

N_SESSIONS, N_SOURCES, WORKERS, STRENGTH = 200, 5, 2, 1e-3
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def sessions(cache: Path, n: int) -> Path:
    """Write the sessions' files; kept in the cache folder."""
    folder = cache / f"batch-sessions-{n}"
    if folder.exists():
        return folder
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for k in range(n):
        rng = np.random.default_rng([6, k])
        n_rows, n_neurons = int(rng.integers(3_000, 30_001)), int(rng.integers(10, 61))
        X = _problems.history_design(n_rows, N_SOURCES, _problems.N_BASIS, seed=k)
        counts = _problems.draw_counts(X, n_neurons, "softplus", seed=k)
        np.savez(part / f"{k:03d}.npz", X=X, counts=counts.astype(np.uint8))
    part.rename(folder)
    return folder


def fits(cache: Path, scale: float, section: Section) -> None:
    """200 fits by the command, then the same command again."""
    folder = sessions(cache, max(4, round(N_SESSIONS * scale)))
    files = [str(f) for f in sorted(folder.glob("*.npz"))]
    parameters = {"regularizer": "Ridge", "regularizer_strength": STRENGTH}
    os.environ.update(ONE_THREAD)
    single = sum(fresh("warm_fits", files=files, **parameters)["seconds"])
    for name in ONE_THREAD:
        del os.environ[name]
    manifest = cache / "batch.json"
    source = {"name": "sim", "files": f"{folder}/*.npz", "X": "X", "y": "counts"}
    model = {"name": "history", "estimator": "PopulationGLM", "parameters": parameters}
    manifest.write_text(json.dumps({"name": "benchmark", "data": [source], "model": [model]}, indent=1))
    out = cache / "batch-out"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "glmfit.batch", "run", str(manifest), "--out", str(out), "--workers", str(WORKERS)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def run():
        subprocess.run([*command, "--quiet"], check=True, env=environment, stdout=subprocess.DEVNULL)

    first, _ = timed(run)
    again = median(interleaved({"again": run}, 5, settle_s=2)["again"])
    from glmfit.batch import status

    progress = status(out)
    section.note(fits=len(files), seconds_single=single, seconds_in_workers=progress.seconds,
                 programs=progress.n_programs, compilations=progress.n_compilations)  # fmt: skip
    section.require(f"{len(files)} fits on {WORKERS} workers, all done", progress.n_done, len(files), limit=1,
                    against="all", unit="fits", topic="gap", at_least=True)  # fmt: skip
    section.require(f"{len(files)} fits on {WORKERS} workers, nothing compiled before", first,
                    1.25 * single / WORKERS + 20, limit=1,
                    against=f"1.25 x the sum of warm single fits / {WORKERS} + 20 s")  # fmt: skip
    section.require("the same command again", again, 3.0, limit=1, against="3 s")


if __name__ == "__main__":
    sys.exit(run_sections(__doc__, {"fits": fits}, "batch.json"))
