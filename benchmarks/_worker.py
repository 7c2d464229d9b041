"""Runs one task in a fresh process: ``python _worker.py TASK JSON``; the last line it prints is its report as JSON.

Seconds are those of ``fit`` alone: imports are done and the data in memory before the clock starts, compilation is
inside.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from _common import _plain, memory_bytes
from _models import fit_summary, make_model


def fit(kind: str, x_file: str, y_file: str, out: str | None = None, fits: int = 1, **parameters) -> dict:
    """Fit ``fits`` times; seconds of each, memory before the data and at its peak, parameters to ``out``."""
    make_model(kind, **parameters)  # imports
    before = memory_bytes("VmRSS")
    X, Y = np.load(x_file), np.load(y_file)
    seconds = []
    for _ in range(fits):
        model = make_model(kind, **parameters)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, Y)
        seconds.append(time.perf_counter() - start)
    peak = memory_bytes("VmHWM")
    if out is not None:
        np.savez(out, coef=np.asarray(model.coef_), intercept=np.asarray(model.intercept_))
    return {
        "seconds": seconds,
        "baseline_bytes": before,
        "peak_bytes": peak,
        **fit_summary(model),
    }


TASKS = {"fit": fit}

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    report = TASKS[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps(_plain(report)))
