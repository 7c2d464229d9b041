"""Fits of recordings without a penalty: what "auto" runs, and the solvers it does not take.

    python benchmarks/free_coefficients.py --data FOLDER [--sections w_maze_place,...]

Without a penalty many neurons have no optimum: some place is never visited while they fire. Then a fit takes as long
as it takes to find that out. Features of place depend on each other where the animal never is.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

import numpy as np
from _common import Section, interleaved, median, run_sections, timed
from _designs import DESIGNS
from _models import fit_quietly

FREE = ("w_maze_place", "open_field_place", "motor_cortex_velocity_lags")
SOLVERS, REPEATS, LONG_S = ("auto", "SAGA", "Newton"), 3, 10.0


def free(cache, scale: float, section: Section, *, name: str, folder: Path) -> None:
    """Seconds of the first fit by each solver and of later ones, in turns, with the verdicts of each."""
    from glmfit import PopulationGLM

    X, Y = (a[: int(scale * len(a))] for a in DESIGNS[name](folder))
    models = {solver: PopulationGLM(regularizer="UnRegularized", solver_name=solver) for solver in SOLVERS}
    first = {solver: timed(lambda m=model: fit_quietly(m, X, Y))[0] for solver, model in models.items()}
    calls = {solver: lambda m=model: fit_quietly(m, X, Y) for solver, model in models.items()}
    later = interleaved(calls, 1 if max(first.values()) > LONG_S else REPEATS)
    seconds = {solver: median(values) for solver, values in later.items()}
    verdicts = {
        solver: dict(zip(*(a.tolist() for a in np.unique([str(s) for s in m.report_.status], return_counts=True))))
        for solver, m in models.items()
    }
    section.note(seconds_first=first, seconds=seconds, verdicts=verdicts, ran=models["auto"].report_.solver_name)
    ends = {solver: sum(of.get(word, 0) for word in ("converged", "separable")) for solver, of in verdicts.items()}
    for rival in SOLVERS[1:]:
        section.require(f"{name}, auto", seconds["auto"], seconds[rival], limit=1.1, against=rival)
    section.require(f"{name}, auto, neurons proved or without an optimum", ends["auto"], max(ends.values()), limit=0.97,
                    against="the best solver", unit="", topic="gap", at_least=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path, help="folder of the recordings", required=True)
    options, rest = parser.parse_known_args()
    sections = {name: functools.partial(free, name=name, folder=options.data) for name in FREE}
    for function in sections.values():
        function.__doc__ = free.__doc__
    sys.exit(run_sections(__doc__, sections, "free_coefficients.json", rest))
