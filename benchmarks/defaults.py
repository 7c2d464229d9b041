"""Estimators with default settings compared with the best strength of a grid, by the score on held-out blocks.

    python benchmarks/defaults.py --data FOLDER [--sections w_maze_place ...]

The seven designs of recordings (see _designs.py) with `PopulationGLM()`, five contiguous folds, D2 of the whole
population on the held-out rows; the grid has a strength every half decade (`EVERY`: some neurons only, every decade).
The section `classes` does the same for `SoftmaxGLM()`, and compares held-out accuracy and log-loss with scikit-learn's
`LogisticRegression()`.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

import numpy as np
from _common import Section, run_sections
from _designs import DESIGNS
from _models import fit_quietly

GRID = np.logspace(-7, -1, 13)
FOLDS = 5
WITHIN = 0.98  # share of the best score of the grid
EVERY = {"motor_cortex_coupling": 24}  # of 171 neurons with 513 features; also every other strength (all take hours)


def deviance(Y, rate) -> np.ndarray:
    """Half the Poisson deviance, (neuron,)."""
    from scipy.special import xlogy

    return np.sum(xlogy(Y, Y) - xlogy(Y, rate) - Y + rate, axis=0)


def design(cache, scale: float, section: Section, *, make, folder: Path, every: int) -> None:
    """D2 of `PopulationGLM()` on held-out blocks compared with the grid."""
    from glmfit import PopulationGLM, PopulationGLMCV

    X, Y = (a[: int(scale * len(a))] for a in make(folder))
    Y = np.ascontiguousarray(Y[:, ::every])
    strengths = GRID[:: 1 if every == 1 else 2]
    grid = fit_quietly(PopulationGLMCV(strengths=strengths, cv=FOLDS, cv_tol=1e-3, tol=1e-2), X, Y)
    ours, null, by_strength, chosen = 0.0, 0.0, np.zeros(len(strengths)), []
    scored = np.isfinite(grid.cv_scores_).all(axis=(0, 1))  # neurons with spikes in every fold
    for f, test in enumerate(np.array_split(np.arange(len(X)), FOLDS)):
        train = np.setdiff1d(np.arange(len(X)), test)
        model = fit_quietly(PopulationGLM(), X[train], Y[train])
        y = Y[test].astype(float)
        ours += deviance(y, model.predict(X[test]))[scored].sum()
        flat = deviance(y, np.broadcast_to(y.mean(axis=0), y.shape))
        null += flat[scored].sum()
        best = log_likelihood(y, y)
        by_strength += len(y) * (best - grid.cv_scores_[:, f])[:, scored].sum(axis=1)
        chosen.append(np.median(model.strength_.max(axis=0)))
    scores = 1 - by_strength / null
    section.note(
        rows=len(X), features=X.shape[1], neurons=int(scored.sum()), strengths=strengths, d2_of_the_grid=scores,
        median_of_the_strongest_as_it_comes=chosen,
    )  # fmt: skip
    section.require("held-out D2 as it comes", 1 - ours / null, scores.max(), limit=WITHIN, against="best of the grid",
                    unit="", topic="score", at_least=True, aim=scores.max() < 0.01)  # fmt: skip


def log_likelihood(Y, rate) -> np.ndarray:
    """Mean Poisson log-likelihood per bin, (neuron,)."""
    from scipy.special import gammaln, xlogy

    return np.mean(xlogy(Y, rate) - rate - gammaln(Y + 1), axis=0)


def classes(cache, scale: float, section: Section, *, folder: Path) -> None:
    """Held-out accuracy and log-loss of `SoftmaxGLM()` on the class sets of scikit-learn and a box of places."""
    from sklearn import datasets
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold

    from glmfit import SoftmaxGLM

    digits = datasets.load_digits(return_X_y=True)
    z = np.load(folder / "place_cells.npz")
    place = np.clip((z["xy"] + 1) * 2, 0, 3).astype(int) @ [4, 1]
    running = slice(0, int(scale * 20_000))
    sets = {
        "digits": digits,
        "digits scaled to 1": (digits[0] / 16, digits[1]),
        "wine": datasets.load_wine(return_X_y=True),
        "iris": datasets.load_iris(return_X_y=True),
        "breast cancer": datasets.load_breast_cancer(return_X_y=True),
        "place from counts": (z["counts"][running].astype(float), place[running]),
    }
    figures = {}
    for name, (X, y) in sets.items():
        order = np.random.default_rng(0).permutation(len(y)) if name != "place from counts" else np.arange(len(y))
        X, y = X[order], y[order]
        folds = list(StratifiedKFold(FOLDS).split(X, y))

        def scores(make, X=X, y=y, folds=folds):
            accuracy, loss = [], []
            for train, test in folds:
                model = fit_quietly(make(), X[train], y[train])
                p = model.predict_proba(X[test])
                accuracy.append(np.mean(model.classes_[p.argmax(axis=1)] == y[test]))
                loss.append(log_loss(y[test], p, labels=model.classes_))
            return {"accuracy": float(np.mean(accuracy)), "log_loss": float(np.mean(loss))}

        grid = [scores(lambda s=s: SoftmaxGLM(regularizer_strength=float(s))) for s in GRID[::2]]
        ours = scores(SoftmaxGLM)
        figures[name] = {
            "as it comes": ours, "LogisticRegression": scores(lambda: LogisticRegression(max_iter=2000)),
            "strengths": GRID[::2], "grid": grid,
        }  # fmt: skip
        best = max(g["accuracy"] for g in grid)
        section.require(f"{name}, held-out accuracy as it comes", ours["accuracy"], best, limit=WITHIN,
                        against="best of the grid", unit="", topic="score", at_least=True)  # fmt: skip
    section.note(**{name.replace(" ", "_"): value for name, value in figures.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", type=Path, required=True, help="folder of the recordings")
    options, rest = parser.parse_known_args()
    sections = {
        name: functools.partial(design, make=make, folder=options.data, every=EVERY.get(name, 1))
        for name, make in DESIGNS.items()
    } | {"classes": functools.partial(classes, folder=options.data)}  # fmt: skip
    for function in sections.values():
        function.__doc__ = function.func.__doc__
    sys.exit(run_sections(__doc__, sections, "defaults.json", rest))
