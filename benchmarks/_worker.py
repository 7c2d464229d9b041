"""Runs one task in a fresh process: ``python _worker.py TASK JSON``; the last line it prints is its report as JSON.

Seconds are those of ``fit`` alone: imports are done and the data in memory before the clock starts, compilation is
inside.
"""

from __future__ import annotations

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


TASKS = {"fit": fit}

if __name__ == "__main__":
    print(json.dumps(plain(TASKS[sys.argv[1]](**json.loads(sys.argv[2])))))
