"""Strengths chosen by cross-validation: one solve, separate fits, a grid search around NeMoS.

    python benchmarks/cross_validation.py [--sections p1 lasso]

P1 (100 000 bins, 192 features, 32 neurons) with 8 strengths and 5 contiguous folds: 1 280 fits of a neuron. Ours makes
256 more, of all rows, and the last fit. A grid search makes 40 fits of the population, one strength for all neurons; it
is extrapolated from fits of the first fold at three strengths, compiled before, and so are our own separate fits.
The lasso has twelve strengths, and our own separate fits for comparison.
"""

from __future__ import annotations

import sys

import _problems
import numpy as np
from _common import Section, median, run_sections, timed
from _models import fit_quietly

STRENGTHS, FOLDS, GAP = np.logspace(-6, 0, 8), 5, 1e-4
SOME = (0, 3, 7)  # strengths that separate fits are timed at


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


if __name__ == "__main__":
    sys.exit(run_sections(__doc__, {"p1": p1, "lasso": lasso}, "cross_validation.json"))
