"""Fits of a recording that is read from a file in every pass: time per row, memory, a kill in the middle.

    python benchmarks/larger_than_memory.py [--sections fit,kill]

10 000 000 bins, 96 features (12 sources x 8 raised-cosine histories, the family of P1) and 16 neurons: 3.8 GB of
features in single precision, memory-mapped, counts in a file of bytes. RssAnon is the memory of the process
that is not backed by a file, as reported by Linux.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import _problems
import numpy as np
from _common import Section, fresh, run_sections, start_fresh, timed
from _models import fit_quietly

N_ROWS, N_SOURCES, N_NEURONS, GAP, MAX_MEMORY = 10_000_000, 12, 16, 1e-4, 2e9


def recording(cache: Path, scale: float) -> tuple[Path, Path]:
    """Write features and counts to files, a piece at a time; kept in the cache folder."""
    n_rows = max(20_000, round(N_ROWS * scale))
    x_file, y_file = cache / f"long-design-{n_rows}.npy", cache / f"long-counts-{n_rows}.npy"
    if x_file.exists() and y_file.exists():
        return x_file, y_file
    d, step = N_SOURCES * _problems.N_BASIS, 100_000
    parts = [p.with_suffix(".part") for p in (x_file, y_file)]
    X = np.lib.format.open_memmap(parts[0], "w+", np.float32, (n_rows, d))
    Y = np.lib.format.open_memmap(parts[1], "w+", np.uint8, (n_rows, N_NEURONS))
    for k, start in enumerate(range(0, n_rows, step)):
        rows = slice(start, min(start + step, n_rows))
        x = _problems.history_design(rows.stop - rows.start, N_SOURCES, _problems.N_BASIS, seed=k)
        W = (np.random.default_rng(1).normal(size=(d, N_NEURONS)) * 0.15).astype(np.float32)
        eta = x @ W / np.sqrt(_problems.N_BASIS) + np.linspace(-4, 0, N_NEURONS, dtype=np.float32)
        X[rows], Y[rows] = x, np.random.default_rng([2, k]).poisson(np.logaddexp(0, eta)).clip(max=255)
    del X, Y
    for part, file in zip(parts, (x_file, y_file), strict=True):
        part.rename(file)
    return x_file, y_file


def fit(cache: Path, scale: float, section: Section) -> None:
    """Seconds per row and memory of a fit to a gap of 1e-4 compared with P1 in memory."""
    from glmfit import PopulationGLM

    files = recording(cache, scale)
    problem = _problems.load("P1", cache)
    in_memory = PopulationGLM(regularizer_strength=problem.strength, solver_name="SAGA", tol=GAP)
    fit_quietly(in_memory, problem.X, problem.Y)  # compiles
    before, _ = timed(lambda: fit_quietly(in_memory, problem.X, problem.Y))
    told = fresh("stream", x_file=str(files[0]), y_file=str(files[1]), tol=GAP, max_memory=MAX_MEMORY * scale)
    after, _ = timed(lambda: fit_quietly(in_memory, problem.X, problem.Y))
    section.note(**told, seconds_p1=[before, after])
    n_rows = np.load(files[0], mmap_mode="r").shape[0]
    section.require("10 000 000 rows from a file, neurons proved below 1e-4", told["bounds"], N_NEURONS, limit=1,
                    against="all", unit="", topic="gap", at_least=True)  # fmt: skip
    section.require("10 000 000 rows from a file, RssAnon", told["peak_anonymous_bytes"], 2.5e9, limit=1,
                    against="2.5 GB", unit="B", topic="memory")  # fmt: skip
    per_row = (told["seconds"] - told["seconds_compile"]) / n_rows
    section.require("10 000 000 rows from a file, seconds per row", per_row, (before + after) / 2 / len(problem.X),
                    limit=2, against="P1 in memory by SAGA")  # fmt: skip


def kill(cache: Path, scale: float, section: Section) -> None:
    """A fit killed with -9 half-way and restarted, compared with an undisturbed one."""
    x_file, y_file = map(str, recording(cache, scale))
    common = {"x_file": x_file, "y_file": y_file, "tol": 1e-6, "max_memory": MAX_MEMORY * scale}
    alone = fresh("stream", **common, out=str(cache / "alone.npz"))
    checkpoint = cache / "checkpoint.npz"
    checkpoint.unlink(missing_ok=True)
    victim = start_fresh("stream", **common, checkpoint=str(checkpoint))
    start, written = time.perf_counter(), 0
    while victim.poll() is None and written < 2:
        time.sleep(0.05)
        if checkpoint.exists():
            with np.load(checkpoint) as file:
                written = int(file["run/epochs"].max())
    time.sleep(0.03 * (time.perf_counter() - start))
    died = victim.poll()
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    killed_after = time.perf_counter() - start
    again = fresh("stream", **common, checkpoint=str(checkpoint), out=str(cache / "again.npz"))
    with np.load(cache / "alone.npz") as a, np.load(cache / "again.npz") as b:
        same = bool(np.all(np.abs(a["objective"] - b["objective"]) <= a["gap"] + b["gap"]))
    section.note(seconds_alone=alone["seconds"], seconds_killed_after=killed_after, seconds_again=again["seconds"],
                 killed_while_running=died is None, epochs=alone["epochs"], steps_before_the_kill=written)  # fmt: skip
    section.require("killed with -9 and started again, the optimum of the undisturbed fit within the gaps proved",
                    float(same and died is None), 1, limit=1, against="the same", unit="", topic="gap",
                    at_least=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_sections(__doc__, {"fit": fit, "kill": kill}, "larger_than_memory.json"))
