"""Runs one task in a fresh process: ``python _worker.py TASK JSON``; the last line it prints is its report as JSON.

Seconds are those of ``fit`` alone: imports are done and the data in memory before the clock starts, compilation is
inside.
"""

from __future__ import annotations

import gc
import json
import sys

import numpy as np
from _common import memory_bytes, plain, timed
from _models import fit_quietly, fit_summary, make_model


def fit(kind: str, x_file: str, y_file: str, out: str | None = None, fits: int = 1, **parameters) -> dict:
    """Fit ``fits`` times; seconds of each, memory before the data and at its peak, parameters to ``out``."""
    make_model(kind, **parameters)  # imports
    before = memory_bytes("VmRSS")
    X, Y = np.load(x_file), np.load(y_file)
    models = [make_model(kind, **parameters) for _ in range(fits)]
    seconds = [timed(lambda model=model: fit_quietly(model, X, Y))[0] for model in models]
    peak = memory_bytes("VmHWM")
    if out is not None:
        np.savez(out, coef=np.asarray(models[-1].coef_), intercept=np.asarray(models[-1].intercept_))
    summary = fit_summary(models[-1])
    return {"seconds": seconds, "baseline_bytes": before, "peak_bytes": peak, **summary}


def many_fits(kind: str, n_fits: int, n_rows: int, n_features: int, n_neurons: int) -> dict:
    """Fit fresh models of one shape again and again; memory after the first tenth and at the end."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    after = []
    for k in range(n_fits):
        Y = rng.poisson(np.logaddexp(0, X[:, :n_neurons] - 1)).astype(np.float32)
        fit_quietly(make_model(kind), X, Y)
        if k + 1 in (1, n_fits // 10, n_fits):
            gc.collect()
            after.append(memory_bytes("VmRSS"))
    return {"bytes_after_first": after[0], "bytes_after_tenth": after[1], "bytes_at_the_end": after[2]}


TASKS = {"fit": fit, "many_fits": many_fits}

if __name__ == "__main__":
    print(json.dumps(plain(TASKS[sys.argv[1]](**json.loads(sys.argv[2])))))
