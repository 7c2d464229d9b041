"""Seconds of a fit of recorded designs: glmfit by default and by Newton, NeMoS' L-BFGS, scikit-learn neuron by neuron.

    python benchmarks/real_designs.py --data FOLDER [--sections w_maze_place,...]
    python benchmarks/table.py --write

Ridge 1e-4, softplus and exp (scikit-learn has exp only). glmfit and NeMoS fit twice in a fresh process: the first fit
includes what it compiles. scikit-learn compiles nothing and fits once, in float32. Gaps are true gaps, in float64,
against a Newton reference. NeMoS gets the least number of iterations of a ladder that reaches a relative gap of 1e-6,
400 at most: no tolerance of its own says when that is.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

import _problems
import numpy as np
from _common import Section, fresh, run_sections, timed
from _designs import DESIGNS
from _models import sklearn_population

STRENGTH = 1e-4
LADDER, GOAL = (25, 50, 100, 200, 400), 1e-6
NAMES = {"nemos": "NeMoS L-BFGS", "sklearn": "scikit-learn newton-cholesky per neuron"}
FITS = {
    "glmfit": {"kind": "glmfit"},
    "newton": {"kind": "glmfit", "solver_name": "Newton"},
}
CHOSEN = ("w_maze_place", "open_field_place", "open_field_coupling", "motor_cortex_velocity_lags")


def design(cache: Path, scale: float, section: Section, *, name: str, folder: Path) -> None:
    """Seconds of the first and of the second fit, and the true gap that it ends with."""
    X, Y = (a[: int(scale * len(a))] for a in DESIGNS[name](folder))
    x_file = _problems.save_array(cache / f"{name}-X.npy", X)
    y_file = _problems.save_array(cache / f"{name}-Y.npy", Y)
    section.note(rows=len(X), features=X.shape[1], neurons=Y.shape[1], strength=STRENGTH)
    out = cache / f"{name}-answer.npz"
    for link in ("softplus", "exp"):
        problem = _problems.Problem(name, link, STRENGTH, X, Y, x_file, y_file)
        optimum, found = _problems.reference(problem, cache), {}

        def fit(link=link, problem=problem, optimum=optimum, **options):
            told = fresh("fit", x_file=str(x_file), y_file=str(y_file), out=str(out), fits=2, link=link,
                         strength=STRENGTH, **options)  # fmt: skip
            with np.load(out) as answer:
                return told | gaps(problem, answer["coef"], answer["intercept"], optimum)

        found |= {rival: fit(**options) for rival, options in FITS.items()}
        for most in LADDER:
            found["nemos"] = fit(kind="nemos", solver_kwargs={"maxiter": most, "tol": 1e-12}) | {"maxiter": most}
            if found["nemos"]["gap"] <= GOAL:
                break
        if link == "exp":
            whole, alone = timed(lambda problem=problem: sklearn_population(problem, range(Y.shape[1]), np.float32))
            found["sklearn"] = {"seconds": [whole]} | gaps(problem, alone["coef"], alone["intercept"], optimum)
        section.note(**{link: found})
        ours = found["glmfit"]
        for other in [kind for kind in found if kind in NAMES]:
            section.require(f"{name}, {link}, second fit", ours["seconds"][-1], found[other]["seconds"][-1], limit=1,
                            against=NAMES[other], aim=True)  # fmt: skip
        section.require(f"{name}, {link}, neurons converged", ours["settled"], Y.shape[1], limit=1, against="all",
                        unit="neurons", topic="score", at_least=True)  # fmt: skip


def gaps(problem, coef, intercept, optimum) -> dict:
    """True relative gaps of the population and of its worst neuron."""
    found = _problems.gaps(problem, coef, intercept, optimum)
    return {name: found[name] for name in ("gap", "worst_neuron_gap")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", type=Path, required=True, help="folder of the recordings")
    options, rest = parser.parse_known_args()
    sections = {name: functools.partial(design, name=name, folder=options.data) for name in CHOSEN}
    for function in sections.values():
        function.__doc__ = function.func.__doc__
    sys.exit(run_sections(__doc__, sections, "real_designs.json", rest))
