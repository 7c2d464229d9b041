"""glmfit as a solver of NeMoS, glmfit alone and NeMoS' own L-BFGS in one run; see README.md in this folder.

    python benchmarks/nemos_backend.py [--scale 1.0] [--data FOLDER] [--hmm-tree PATH] [--stochastic-tree PATH]

"overhead" compares the time inside our solver with glmfit alone to the same tolerance, also on a recording. "hmm" needs
a NeMoS with GLMHMM (0.2.9), "stochastic" one with `stochastic_fit` (development): give the folder of its source that
contains nemos.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

import _problems
import numpy as np
from _common import CompileCount, Section, fresh, median, run_sections, timed
from _designs import DESIGNS
from _models import fit_quietly, judge, make_model, timed_fit

GAP, REPEATS = 1e-6, 5
KINDS = {"glmfit": {"solver_name": "SAGA"}, "nemos+glmfit": {}, "nemos": {}}


def p1(cache: Path, scale: float, section: Section) -> None:
    """P1 in three interleaved ways; gaps against the float64 reference."""
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
    """One neuron, 5 000 rows, 20 features: time of the second fit, and memory that remains after 100 fits."""
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


def overhead(cache: Path, scale: float, section: Section, data: Path | None = None) -> None:
    """Time inside our solver, later fits, compared with glmfit alone; P1 and place on a W-maze."""
    from glmfit.plugins.nemos.solver import Solver

    run, inside = Solver.run, []

    def timed_run(self, *given):
        spent, found = timed(lambda: run(self, *given))
        inside.append(spent)
        return found

    p1_ = _problems.load("P1", cache, scale)
    problems = {"P1": (p1_.X, p1_.Y)}
    if data is not None:
        problems["place on a W-maze"] = DESIGNS["w_maze_place"](data)
    Solver.run = timed_run
    try:
        for name, (X, Y) in problems.items():
            _compare_with_alone(name, X, Y, inside, section)
    finally:
        Solver.run = run


def _compare_with_alone(name: str, X, Y, inside: list, section: Section) -> None:
    inside.clear()
    alone, whole, programs = [], [], []
    for _ in range(REPEATS + 1):
        model = make_model("glmfit", solver_name="ConjugateGradients", tol=1e-6)
        alone.append(timed(functools.partial(fit_quietly, model, X, Y))[0])
        model = make_model("nemos+glmfit", solver_name="NonlinearCG[glmfit]")
        with CompileCount() as compiled:
            whole.append(timed(functools.partial(fit_quietly, model, X, Y))[0])
        programs.append(compiled.programs)
    ours, theirs, all_ = (median(a[1:]) for a in (inside, alone, whole))
    section.note(**{name: {"inside_s": inside[1:], "alone_s": alone[1:], "whole_s": whole[1:]}})
    against, allowed = {"against": "glmfit alone"}, max(1.1, 1 + 0.02 / theirs)
    section.require(f"{name}, our solver in NeMoS, later fits", ours, theirs, limit=allowed, **against)
    section.require(f"{name}, NeMoS as a whole, later fits", all_, theirs, limit=1.5, **against, aim=True)
    what = f"{name}, programs that a later fit compiles"
    section.require(what, max(programs[1:]), 0, limit=1, against="limit", unit="")


def hmm(_cache: Path, _scale: float, section: Section, hmm_tree: Path | None = None) -> None:
    """A hidden Markov model of choices, our solver in the M-step compared with NeMoS's own, later fits."""
    if hmm_tree is None:
        section.note(absent="no NeMoS with GLMHMM given (--hmm-tree)")
        return
    found = fresh("nemos_hmm", tree=hmm_tree, repeats=REPEATS)
    ours, own = (found[name] for name in ("SAGA[glmfit]", "own"))
    section.note(**found)
    what = f"GLMHMM of NeMoS {found['nemos']}, {found['rows']} x {found['features']}, two states"
    section.require(f"{what}, later fits", median(ours["seconds"][1:]), median(own["seconds"][1:]), limit=1,
                    against="its own solver")  # fmt: skip
    section.require(f"{what}, log-likelihood below that of its own solver", own["score"] - ours["score"], 1.0, limit=1,
                    against="limit", unit="nats", topic="gap")  # fmt: skip


def stochastic(cache: Path, scale: float, section: Section, stochastic_tree: Path | None = None) -> None:
    """P1 from a data loader of shuffled batches: passes, time and true gap, compared with NeMoS's SVRG."""
    if stochastic_tree is None:
        section.note(absent="no NeMoS with stochastic_fit given (--stochastic-tree)")
        return
    problem = _problems.load("P1", cache, scale)
    optimum, out = _problems.reference(problem, cache), cache / "stochastic.npz"
    files = {"x_file": str(problem.x_file), "y_file": str(problem.y_file), "out": str(out)}
    found = fresh("nemos_stochastic", tree=stochastic_tree, strength=problem.strength, batch_size=1000, **files)
    with np.load(out) as answers:
        for name in ("ours", "own"):
            given = answers[f"{name}_coef"], answers[f"{name}_intercept"]
            found[name]["true_gap"] = float(_problems.gaps(problem, *given, optimum)["gap"])
    section.note(**found)
    ours, own = found["ours"], found["own"]
    section.require(
        "P1 from a data loader, true gap", ours["true_gap"], GAP, limit=1, against="limit", unit="", topic="gap"
    )
    section.require(
        "P1 from a data loader, passes until all is proved", ours["passes"], 20, limit=1, against="limit", unit=""
    )
    section.require("P1 from a data loader, true gap", ours["true_gap"], own["true_gap"], limit=1e-3,
                    against=f"NeMoS SVRG, {own['passes']} passes", unit="", topic="gap")  # fmt: skip


SECTIONS = {"p1": p1, "small": small, "overhead": overhead, "hmm": hmm, "stochastic": stochastic}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path, help="folder of the recordings")
    for option in ("--hmm-tree", "--stochastic-tree"):
        parser.add_argument(option, type=Path, help="source of a NeMoS: the folder with nemos in it")
    given, rest = parser.parse_known_args()
    options = {"overhead": {"data": given.data}, "hmm": {"hmm_tree": given.hmm_tree}}
    options["stochastic"] = {"stochastic_tree": given.stochastic_tree}
    made = {name: functools.partial(of, **options.get(name, {})) for name, of in SECTIONS.items()}
    for name, of in made.items():
        of.__doc__ = SECTIONS[name].__doc__
    sys.exit(run_sections(__doc__, made, "nemos_backend.json", rest))
