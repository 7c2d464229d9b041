"""glmfit as a solver of NeMoS, glmfit alone and NeMoS' own L-BFGS in one run: see README.md in this folder.

python benchmarks/nemos_backend.py [--scale 1.0]
"""

from __future__ import annotations

import sys
from pathlib import Path

import _problems
import numpy as np
from _common import CompileCount, Section, fresh, median, run_sections, timed
from _models import fit_quietly, judge, make_model, timed_fit

GAP = 1e-6
KINDS = {"glmfit": {"solver_name": "SAGA"}, "nemos+glmfit": {}, "nemos": {}}


def p1(cache: Path, scale: float, section: Section) -> None:
    """P1 three ways, in turns; gaps against the float64 reference."""
    problem = _problems.load("P1", cache, scale)
    optimum = _problems.reference(problem, cache)
    files = {"x_file": str(problem.x_file), "y_file": str(problem.y_file)}
    cold = {kind: [] for kind in KINDS}
    for kind in ("nemos+glmfit", "glmfit", "nemos", "nemos+glmfit", "glmfit"):
        cold[kind] += fresh("fit", kind=kind, **files, **KINDS[kind])["seconds"]
    warm, models, programs = {kind: [] for kind in KINDS}, {}, {}
    for round_ in range(4):
        for kind, parameters in KINDS.items():
            if kind == "nemos" and round_ > 1:
                continue
            with CompileCount() as compiled:
                spent, models[kind] = timed_fit(kind, problem, **parameters)
            if round_:  # the first compiles
                warm[kind].append(spent)
                programs[kind] = compiled.programs
    facts = {kind: judge(model, problem, optimum) for kind, model in models.items()}
    section.note(cold_seconds=cold, warm_seconds=warm, programs_compiled_by_last_fit=programs, **facts)
    ours, alone, rival = (median(warm[kind]) for kind in ("nemos+glmfit", "glmfit", "nemos"))
    section.require(
        "P1 through NeMoS, true gap", facts["nemos+glmfit"]["gap"], GAP, limit=1, against="limit", unit="", topic="gap"
    )
    section.require("P1 through NeMoS, warm", ours, alone, limit=1.3, against="glmfit alone")
    section.require("P1 through NeMoS, warm", ours, rival, limit=1 / 10, against="NeMoS L-BFGS, 400 iterations")
    section.require(
        "P1 through NeMoS, programs a second fit compiles",
        programs["nemos+glmfit"],
        0,
        limit=1,
        against="limit",
        unit="",
    )


def small(_cache: Path, _scale: float, section: Section) -> None:
    """One neuron, 5 000 rows, 20 features: the second fit; and what 100 fits leave in memory."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 20)).astype(np.float32)
    Y = rng.poisson(np.logaddexp(0, X @ rng.normal(size=(20, 1)) * 0.2 - 1)).astype(np.float32)
    seconds = {}
    for kind in ("nemos+glmfit", "nemos"):
        fit_quietly(make_model(kind), X, Y)
        seconds[kind] = [timed(lambda kind=kind: fit_quietly(make_model(kind), X, Y))[0] for _ in range(7)]
    grown = {}
    for kind, n_fits in (("nemos+glmfit", 100), ("nemos", 20)):
        facts = fresh("many_fits", kind=kind, n_fits=n_fits, n_rows=5000, n_features=20, n_neurons=1)
        grown[kind] = facts["bytes_at_the_end"] - facts["bytes_after_first"]
        section.note(**{f"memory of {n_fits} fits, {kind}": facts})
    section.note(seconds=seconds)
    section.require(
        "T = 5 000, d = 20, N = 1 through NeMoS, second fit",
        median(seconds["nemos+glmfit"]),
        0.06,
        limit=1,
        against="limit",
    )
    section.require(
        "100 such fits in one process, memory grown",
        grown["nemos+glmfit"],
        50e6,
        limit=1,
        against="limit",
        unit="bytes",
    )


SECTIONS = {"p1": p1, "small": small}


if __name__ == "__main__":
    sys.exit(run_sections(__doc__, SECTIONS, "nemos_backend.json"))
