"""Sections of peers.py: paths of lasso and group lasso of adelie, compared with glmfit.

Both minimise mean(exp(eta) - y eta) + strength * (sum of |w|, or sum over groups of sqrt(size) times their norm), the
intercept free, nothing standardised, at the same 30 strengths of every neuron: from 0.95 of the smallest that leaves
nothing down to a thousandth of it. adelie has the log link only, so P1 means its features and its counts here.

adelie goes down the path of one neuron after the other, each strength from the one before; its ladder is one tolerance
(of coordinate descent and of IRLS) in two precisions with one and two threads. glmfit has no path: its fastest public
way is one fit of the neurons repeated for every strength. Neurons for which adelie gives up (an "IRLS lambda" that is
infinite, where spikes are few) are named and left to neither side. Its loop runs on one core; two processes would
halve its seconds on two.

Gaps are true ones in float64: above the largest dual value that any answer gives, over the improvement on the null
model at that strength, or over a hundredth of a nat over the recording if that is more. "every fit" is the worst of all
neurons and strengths; "together" the sum of distances over the sum of improvements.
"""

from __future__ import annotations

from pathlib import Path

import _problems
import numpy as np
from _common import Section, median
from _designs import DESIGNS, groups
from _foreign import Foreign, find

N_STRENGTHS, WEAKEST = 30, 1e-3
GOALS = (1e-4, 1e-6)
TOLS = tuple(10.0**-k for k in range(5, 13))
CAP_S = 120.0  # of a loop: the ladder ends there
REPEATS = 3
CHUNK = 4096


class Paths:
    """Strengths of every neuron, (strength, neuron), and the float64 gaps of answers at all of them."""

    def __init__(self, X, Y, labels=None):
        self.X, self.Y = X, Y
        d = X.shape[1]
        labels = np.arange(d) if labels is None else np.asarray(labels)
        self.starts = np.unique(labels, return_index=True)[1]
        self.weight = np.sqrt(np.diff(np.append(self.starts, d)))[:, None]
        self.mean = Y.mean(axis=0, dtype=np.float64)
        slope = self._slope(self.mean[None] - Y)
        strongest = (self._norms(slope) / self.weight).max(axis=0)
        self.strengths = strongest * np.geomspace(0.95, WEAKEST, N_STRENGTHS)[:, None]
        self.null = self.mean - self.mean * np.log(self.mean)
        self.lower = np.full(self.strengths.shape, -np.inf)

    def arrays(self) -> dict:
        """What a process that fits is given."""
        return {"X": self.X, "Y": self.Y, "strengths": self.strengths, "groups": self.starts}

    def _norms(self, coef):
        """Norm of every group of features, (group, column)."""
        return np.sqrt(np.add.reduceat(np.asarray(coef, np.float64) ** 2, self.starts, axis=0))

    def _slope(self, residual):
        """X'r / T in float64, some rows at a time."""
        parts = (slice(k, k + CHUNK) for k in range(0, len(self.X), CHUNK))
        return sum(self.X[p].T.astype(np.float64) @ residual[p] for p in parts) / len(self.X)

    def values(self, coef, intercept) -> np.ndarray:
        """F of answers (strength, feature, neuron), (strength, neuron); their dual values raise ``lower``.

        The dual point: the intercept at its best makes residuals add up to zero, and they are shrunk until the slope
        fits the penalty; then -mean of the conjugate, (r + y) log(r + y) - (r + y), is below the optimum.
        """
        objective = np.full(self.strengths.shape, np.inf)
        for n, s in enumerate(self.strengths.T):
            if not np.all(np.isfinite(coef[:, :, n])):
                continue
            objective[:, n], lower = self._of_neuron(n, coef[:, :, n].T.astype(np.float64), intercept[:, n], s)
            self.lower[:, n] = np.maximum(self.lower[:, n], lower)
        return objective

    def _of_neuron(self, n, coef, intercept, strengths):
        y = self.Y[:, n].astype(np.float64)[:, None]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            eta = np.concatenate([self.X[k : k + CHUNK].astype(np.float64) @ coef for k in range(0, len(y), CHUNK)])
            eta += intercept
            rate = np.exp(eta)
            kinks = strengths * np.sum(self.weight * self._norms(coef), axis=0)
            objective = (rate - y * eta).mean(axis=0) + kinks
            rate *= self.mean[n] / rate.mean(axis=0)
            slope = self._norms(self._slope(rate - y)) / self.weight
            share = np.minimum(1.0, strengths / slope.max(axis=0))
            there = y + share * (rate - y)
            lower = (there - np.where(there > 0, there * np.log(there), 0.0)).mean(axis=0)
        return np.where(np.isfinite(objective), objective, np.inf), np.where(np.isfinite(lower), lower, -np.inf)

    def gaps(self, objective) -> dict:
        """Relative gaps of objectives above ``lower``: of the worst fit, and of all together."""
        distance, improvement = objective - self.lower, self.null - self.lower
        least = 1e-2 / len(self.X)
        return {
            "every fit": float(np.max(distance / np.maximum(improvement, least))),
            "together": float(distance.sum() / improvement.sum()),
        }

    def select(self, neurons) -> Paths:
        """Paths of some neurons."""
        part = object.__new__(Paths)
        vars(part).update(vars(self), Y=np.ascontiguousarray(self.Y[:, neurons]), mean=self.mean[neurons])
        part.strengths, part.null, part.lower = self.strengths[:, neurons], self.null[neurons], self.lower[:, neurons]
        return part


def climb(paths: Paths, foreign: Foreign, fit: str, settings, cap_s: float = CAP_S) -> list[dict]:
    """Seconds and gaps of one setting after the other, looser ones first, until one is good enough or slow."""
    rungs = []
    for setting in settings:
        made = foreign.call(fit, paths.arrays(), **setting)
        runs = made["seconds"] if made["seconds"].ndim == 1 else made["seconds"].sum(axis=1)
        objective = paths.values(made["coef"], made["intercept"])
        rungs.append({"setting": setting, "objective": objective, "first": float(runs[0]), "later": median(runs)})
        print(f"    {foreign.package} {setting}: {runs[0]:.3g} s, {paths.gaps(objective)}", flush=True)
        if paths.gaps(objective)["every fit"] <= min(GOALS) or runs[0] > cap_s:
            break
    return rungs


def fastest(paths: Paths, rungs: list[dict], gap: str, goal: float, when: str) -> dict | None:
    """The rung that reaches a gap first, with how long it took."""
    able = [rung for rung in rungs if paths.gaps(rung["objective"])[gap] <= goal]
    return min(able, key=lambda rung: rung[when], default=None)


def compare(paths: Paths, other_python, section: Section, what: str, limit: float, scale: float) -> None:
    """Seconds to have all strengths of all neurons below a gap: adelie's loop, and glmfit."""
    adelie = find(other_python, "adelie")
    if adelie is None:
        section.note(absent={"adelie": "in no Python given (--other-python); it needs numpy < 2"})
        return
    repeats = REPEATS if scale == 1 else 1
    ours, n_neurons = Foreign(None, "glmfit"), paths.Y.shape[1]
    trial = adelie.call("adelie_paths", paths.arrays(), tol=1e-5, precision="float64", n_threads=1)
    able = np.isfinite(trial["intercept"]).all(axis=0)
    spikes = paths.Y.sum(axis=0)
    section.note(
        rows=len(paths.X), features=paths.X.shape[1], neurons=int(able.sum()), strengths=N_STRENGTHS,
        groups=len(paths.starts), adelie=adelie.version, spikes_where_adelie_gives_up=spikes[~able],
    )  # fmt: skip
    if not able.any():
        return
    paths = paths if able.all() else paths.select(np.flatnonzero(able))
    rungs = {"glmfit": climb(paths, ours, "glmfit_paths", [{"tol": t, "repeats": repeats + 1} for t in TOLS[::2]])}
    best = ours.call("glmfit_paths", paths.arrays(), tol=1e-12)  # raises the bound from below
    section.note(reference_left=paths.gaps(paths.values(best["coef"], best["intercept"]))["every fit"])
    ladders = [("float32", 1), ("float64", 1)] + ([("float32", 2)] if n_neurons == 1 else [])
    rungs["adelie"] = [
        rung
        for precision, n_threads in ladders
        for rung in climb(paths, adelie, "adelie_paths",
                          [{"tol": t, "precision": precision, "n_threads": n_threads} for t in TOLS])
    ]  # fmt: skip
    section.note(ladders={
        package: [r["setting"] | paths.gaps(r["objective"]) | {k: r[k] for k in ("first", "later")} for r in of]
        for package, of in rungs.items()
    })  # fmt: skip
    for gap in ("every fit", "together"):
        for goal in GOALS:
            theirs = fastest(paths, rungs["adelie"], gap, goal, "later")
            for when, name in (("later", "warm"), ("first", "first fit")):
                mine = fastest(paths, rungs["glmfit"], gap, goal, when)
                if mine and theirs:
                    section.require(f"{what}, {gap} below {goal:g}, {name}", mine[when], theirs["later"],
                                    limit=limit, against="adelie, neuron by neuron", aim=gap == "together")  # fmt: skip


def measure_of(design: str, kind: str, limit: float, neurons=None):
    """Section that compares the paths of some neurons of a design."""

    def measure(cache, scale: float, section: Section, data=None, other_python=None) -> None:
        if design in DESIGNS:
            if data is None:
                section.note(absent={design: "needs --data, the folder of the recordings"})
                return
            X, Y = DESIGNS[design](Path(data))
            X, Y = X[: round(scale * len(X))], Y[: round(scale * len(X))]
            Y = Y[:, Y.sum(axis=0) > 0]
        else:
            problem = _problems.load(design, cache, scale)
            X, Y = problem.X, problem.Y
        Y = np.ascontiguousarray(Y if neurons is None else Y[:, neurons])
        labels = groups(design, X.shape[1]) if kind == "group-lasso" else None
        what = f"{design}, {kind}, {Y.shape[1]} neurons, {N_STRENGTHS} strengths"
        compare(Paths(X, Y, labels), other_python, section, what.replace(" 1 neurons", " 1 neuron"), limit, scale)

    many = "one neuron" if limit == 1 else "all neurons"
    measure.__doc__ = f"{design}, {kind}, {many}, {N_STRENGTHS} strengths: seconds to gaps, compared with adelie."
    return measure


SECTIONS = {
    "path-P1-lasso-1": measure_of("P1", "lasso", 1.0, [16]),
    "path-P1-lasso-32": measure_of("P1", "lasso", 1 / 3),
    "path-w_maze_place-lasso": measure_of("w_maze_place", "lasso", 1 / 3),
    "path-w_maze_place-group-lasso": measure_of("w_maze_place", "group-lasso", 1 / 3),
}
