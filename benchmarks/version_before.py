"""Speed that a redesign must keep: SAGA, glmfit in NeMoS, all pairs and 1 000 tiny fits, compared with a checkout.

    python benchmarks/version_before.py --before CHECKOUT [--sections saga,nemos,pairs,tiny_fits]

Versions take turns, each in fresh processes; figures are medians, of first fits and of later ones. Objectives are noted
if a result could be worse.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import _problems
import numpy as np
from _common import ROOT, Section, commit, fresh, median, run_sections, subject, timed

ROUNDS, LATER = 3, 3
LIMIT = 1.1
N_TINY, WORKERS = 1000, 2
SOLVERS = ("TowerLBFGS", "GaussNewton", "SampledPairs", "LeftBatches", "TowerAdam")


def compared(section: Section, what: str, seconds: dict[str, list[float]]) -> None:
    """Note the seconds of both versions, and require that the current one is at most a tenth slower."""
    section.note(**{what: seconds})
    now, then = median(seconds["now"]), median(seconds["before"])
    section.require(what, now, then, limit=LIMIT, against="the version before")


def in_turns(section: Section, before: Path, run, rounds: int = ROUNDS) -> dict[str, list]:
    """Run with both checkouts in turns; return all results."""
    section.note(before=commit(before) | {"subject": subject(before)})
    found = {"before": [], "now": []}
    for _ in range(rounds):
        for which, checkout in (("before", before), ("now", ROOT)):
            found[which].append(run(checkout))
    return found


def population(cache, scale: float, section: Section, checkout: Path, what: str, **model) -> None:
    """Time first fits of a process, and later ones, of P1; note the report of the last one."""
    problem = _problems.load("P1", cache, scale)
    model |= {"x_file": str(problem.x_file), "y_file": str(problem.y_file), "fits": 1 + LATER}
    told = in_turns(section, checkout, lambda path: fresh("fit", checkout=path, **model))
    compared(section, f"{what}, first fit", {of: [run["seconds"][0] for run in runs] for of, runs in told.items()})
    later = {of: [seconds for run in runs for seconds in run["seconds"][1:]] for of, runs in told.items()}
    compared(section, f"{what}, later fits", later)
    section.note(told={of: runs[-1] for of, runs in told.items()})


def saga(cache, scale: float, section: Section, checkout: Path) -> None:
    """P1 by SAGA."""
    population(cache, scale, section, checkout, "P1 by SAGA", kind="glmfit", solver_name="SAGA")


def nemos(cache, scale: float, section: Section, checkout: Path) -> None:
    """P1 by NeMoS with SAGA[glmfit]."""
    population(cache, scale, section, checkout, "P1 by NeMoS with SAGA[glmfit]", kind="nemos+glmfit")


def pairs(_cache, scale: float, section: Section, checkout: Path) -> None:
    """942 by 1 447 embeddings of positive pairs, fixed epochs of every solver: later runs, and the objective."""
    for solver in SOLVERS:
        task = functools.partial(fresh, "pairs", solver=solver)
        told = in_turns(section, checkout, lambda path, task=task: task(checkout=path))
        seconds = {of: [took for run in runs for took in run["seconds"]] for of, runs in told.items()}
        compared(section, f"all pairs by {solver}", seconds)
        section.note(**{f"{solver}, objective": {of: runs[-1]["objective"] for of, runs in told.items()}})


def tiny_fits(cache: Path, scale: float, section: Section, checkout: Path) -> None:
    """1 000 sessions of 300 bins, 5 neurons and 8 features by the command, on two local workers."""
    folder = cache / "tiny-sessions"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for k in range(round(N_TINY * scale)):
        rng = np.random.default_rng([11, k])
        X = rng.normal(size=(300, 8)).astype(np.float32)
        counts = rng.poisson(np.logaddexp(0, X[:, :5] - 0.5)).astype(np.uint8)
        np.savez(folder / f"{k:04d}.npz", X=X, counts=counts)
    source = {"name": "sim", "files": f"{folder}/*.npz", "X": "X", "y": "counts"}
    parameters = {"regularizer": "Ridge", "regularizer_strength": 1e-3}
    model = {"name": "tiny", "estimator": "PopulationGLM", "parameters": parameters}
    manifest, out = cache / "tiny.json", cache / "tiny-out"
    manifest.write_text(json.dumps({"name": "tiny", "data": [source], "model": [model]}))
    command = [sys.executable, "-m", "glmfit.batch", "run", str(manifest), "--out", str(out), "--workers", str(WORKERS)]

    def run(path):
        shutil.rmtree(out, ignore_errors=True)
        environment = os.environ | {"PYTHONPATH": str(path)}
        call = functools.partial(subprocess.run, [*command, "--quiet"], check=True, env=environment, cwd=cache)
        return timed(lambda: call(stdout=subprocess.DEVNULL))[0]

    compared(section, f"{round(N_TINY * scale)} tiny fits on {WORKERS} workers", in_turns(section, checkout, run, 2))


SECTIONS = {"saga": saga, "nemos": nemos, "pairs": pairs, "tiny_fits": tiny_fits}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the version to compare with")
    options, rest = parser.parse_known_args()
    sections = {name: functools.partial(run, checkout=options.before.resolve()) for name, run in SECTIONS.items()}
    for name, run in sections.items():
        run.__doc__ = SECTIONS[name].__doc__
    sys.exit(run_sections(__doc__, sections, "version_before.json", rest))
