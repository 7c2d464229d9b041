"""Strengths chosen by cross-validation: one solve, separate fits, a grid search around NeMoS.

    python benchmarks/cross_validation.py [--sections p1,lasso,loop_p1,...] [--data FOLDER] [--before CHECKOUT]

P1 (100 000 bins, 192 features, 32 neurons) with 8 strengths and 5 contiguous folds: 1 280 fits of a neuron. Ours makes
256 more on all rows, and the final fit. A grid search makes 40 fits of the population, one strength for all neurons;
its time is extrapolated from fits of the first fold at three strengths, already compiled, and so is that of our own
separate fits. The lasso has twelve strengths and is compared with our own separate fits.

The sections that begin with "loop" compare with the same fits by the same engine, to the same tolerance, one after
another: each strength with each fold held out, and the final fit. Fits are made strength by strength, fold by fold, up
to a time limit; the rest is extrapolated from whole folds. Recorded designs need the folder of the recordings.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from pathlib import Path

import _problems
import numpy as np
from _common import Contender, Section, commit, median, run_sections, subject, timed
from _designs import DESIGNS
from _models import fit_quietly

STRENGTHS, FOLDS, GAP = np.logspace(-6, 0, 8), 5, 1e-4
SOME = (0, 3, 7)  # strengths at which separate fits are timed
LOOPS = ("w_maze_place", "w_maze_place_and_history", "P1")
LOOP_S, LIMIT_S = 30.0, 240.0  # for all separate fits of a figure (at least one fold); for a fit of the version before
OVER_BEFORE = {"w_maze_place": 1 / 10, "w_maze_place_and_history": 1 / 10, "P1": 0.4}  # for a ridge


def p1(cache, scale: float, section: Section) -> None:
    """P1, 8 strengths, 5 folds: seconds to a relative gap of 1e-4 in every column."""
    import jax
    import nemos

    from glmfit import PopulationGLM, PopulationGLMCV

    problem = _problems.load("P1", cache, scale)
    X, Y = problem.X, problem.Y
    model = PopulationGLMCV(strengths=STRENGTHS, cv=FOLDS, cv_tol=GAP, tol=GAP)
    cold, _ = timed(lambda: fit_quietly(model, X, Y))
    warm, _ = timed(lambda: fit_quietly(model, X, Y))
    section.note(
        seconds_cold=cold, seconds_warm=warm, converged=float(model.cv_converged_.mean()),
        proved=float(model.cv_gap_is_bound_.mean()), chosen=np.unique(model.strength_, return_counts=True),
    )  # fmt: skip

    train = np.arange(len(X)) >= len(X) // FOLDS
    x, y = np.ascontiguousarray(X[train]), np.ascontiguousarray(Y[train])

    def alone(s):
        return PopulationGLM(regularizer_strength=float(STRENGTHS[s]), tol=GAP, solver_name="SAGA")

    def nemos_model(s):
        return nemos.glm.PopulationGLM(
            inverse_link_function=jax.nn.softplus, regularizer="Ridge", regularizer_strength=float(STRENGTHS[s])
        )

    seconds = {}
    for name, make in (("separate", alone), ("nemos", nemos_model)):
        fit_quietly(make(SOME[0]), x, y)  # compiles
        seconds[name] = [timed(lambda s=s, make=make: fit_quietly(make(s), x, y))[0] for s in SOME]
    grid = {name: len(STRENGTHS) * FOLDS * float(np.mean(spent)) for name, spent in seconds.items()}
    section.note(seconds_of_a_fit=seconds, seconds_of_the_grid=grid)
    section.require("P1, share of columns below 1e-4", float(model.cv_converged_.mean()), 1, limit=1, against="all",
                    unit="", topic="gap", at_least=True)  # fmt: skip
    section.require("P1, 8 strengths x 5 folds, cold", cold, grid["nemos"], limit=1 / 20, against="grid search, NeMoS")
    section.require("P1, 8 strengths x 5 folds, warm", median([warm]), grid["separate"], limit=0.6,
                    against="40 separate fits")  # fmt: skip


def lasso(cache, scale: float, section: Section) -> None:
    """P1 with a lasso, its 12 default strengths, 5 folds: seconds to a relative gap of 1e-4 in every column."""
    from glmfit import PopulationGLM, PopulationGLMCV

    problem = _problems.load("P1", cache, scale)
    X, Y = problem.X, problem.Y
    model = PopulationGLMCV(regularizer="Lasso", cv=FOLDS, cv_tol=GAP, tol=GAP)
    cold, _ = timed(lambda: fit_quietly(model, X, Y))
    warm, _ = timed(lambda: fit_quietly(model, X, Y))
    section.note(
        seconds_cold=cold, seconds_warm=warm, converged=float(model.cv_converged_.mean()),
        proved=float(model.cv_gap_is_bound_.mean()), strengths=model.strengths_,
        nonzero=np.mean(model.coef_path_ != 0, axis=(1, 2)),
    )  # fmt: skip
    train = np.arange(len(X)) >= len(X) // FOLDS
    x, y = np.ascontiguousarray(X[train]), np.ascontiguousarray(Y[train])

    def alone(s):
        return PopulationGLM(regularizer="Lasso", regularizer_strength=float(model.strengths_[s]), tol=GAP)

    some = (1, 6, 10)
    fit_quietly(alone(6), x, y)  # compiles
    seconds = [timed(lambda s=s: fit_quietly(alone(s), x, y))[0] for s in some]
    grid = len(model.strengths_) * FOLDS * float(np.mean(seconds))
    section.note(seconds_of_a_fit=seconds, seconds_of_the_grid=grid)
    section.require("P1 with a lasso, share of columns below 1e-4", float(model.cv_converged_.mean()), 1, limit=1,
                    against="all", unit="", topic="gap", at_least=True)  # fmt: skip
    section.require("P1 with a lasso, 12 strengths x 5 folds, warm", median([warm]), grid, limit=0.6,
                    against="60 separate fits")  # fmt: skip


def loop(cache, scale: float, section: Section, *, name: str, options: argparse.Namespace) -> None:
    """Seconds of a cross-validation and of the same fits of the engine one by one, for a ridge and a lasso."""
    from glmfit import PopulationGLM, PopulationGLMCV

    if name in DESIGNS:
        if options.data is None:
            raise SystemExit(f"loop_{name} needs --data, the folder of the recordings.")
        X, Y = (a[: int(scale * len(a))] for a in DESIGNS[name](options.data))
    else:
        problem = _problems.load(name, cache, scale)
        X, Y = problem.X, problem.Y
    files = [_problems.save_array(cache / f"cv-{name}-{k}.npy", a) for k, a in (("X", X), ("Y", Y))]
    number = np.arange(len(X)) * FOLDS // len(X)
    if options.before:
        section.note(before=commit(options.before) | {"subject": subject(options.before)})
    for regularizer in ("Ridge", "Lasso"):
        model = PopulationGLMCV(regularizer=regularizer, cv=FOLDS)
        fit_quietly(model, X, Y)  # compiles
        ours, _ = timed(lambda model=model: fit_quietly(model, X, Y))

        def separate(strength, rows, tol, regularizer=regularizer):
            one = PopulationGLM(regularizer=regularizer, regularizer_strength=strength, tol=tol)
            return timed(lambda: fit_quietly(one, np.ascontiguousarray(X[rows]), np.ascontiguousarray(Y[rows])))[0]

        last, began, seconds = separate(model.strength_, slice(None), model.tol), time.perf_counter(), []
        for fold in range(FOLDS):
            seconds.append([separate(float(s), number != fold, model.cv_tol) for s in model.strengths_])
            if time.perf_counter() - began > LOOP_S:
                break
        all_of_them = FOLDS * float(np.mean(np.sum(seconds, axis=1))) + last
        proved = float((model.cv_converged_ & model.cv_gap_is_bound_).mean())
        figures = {"seconds": ours, "seconds_of_fits": seconds, "seconds_of_the_loop": all_of_them, "proved": proved}
        what = f"{name}, {regularizer.lower()}"
        section.require(f"{what}: share of fits proved", proved, 1, limit=1, against="all", unit="", topic="gap",
                        at_least=True)  # fmt: skip
        section.require(f"{what}: cross-validation", ours, all_of_them, limit=1 / 3, against="separate fits")
        if options.before:
            where = {"checkout": options.before, "out": str(cache / f"cv-{name}.npz"), "regularizer": regularizer}
            run = Contender(LIMIT_S, kind="cv", x_file=str(files[0]), y_file=str(files[1]), **where)
            run.wait()
            run.fit(), run.fit()
            figures["before"] = run.figures()
            run.close()
            rival, ended = (run.seconds[1], "") if len(run.seconds) == 2 else (LIMIT_S, f", over {LIMIT_S:g} s")
            limit = OVER_BEFORE[name] if regularizer == "Ridge" else 1
            section.require(f"{what}: cross-validation", ours, rival, limit=limit,
                            against="the version before" + ended, aim=regularizer != "Ridge")  # fmt: skip
        section.note(**{regularizer.lower(): figures})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path, help="folder of the recordings")
    parser.add_argument("--before", type=Path, help="checkout of the version to compare with")
    options, rest = parser.parse_known_args()
    loops = {f"loop_{name}": functools.partial(loop, name=name, options=options) for name in LOOPS}
    for function in loops.values():
        function.__doc__ = loop.__doc__
    sys.exit(run_sections(__doc__, {"p1": p1, "lasso": lasso} | loops, "cross_validation.json", rest))
