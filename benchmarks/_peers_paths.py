"""Sections of peers.py: paths of lasso and group lasso of adelie, compared with glmfit.

Both minimise mean(exp(eta) - y eta) + strength * (sum of |w|, or sum over groups of sqrt(size) times their norm), the
intercept free, nothing standardised, at the same 30 strengths of every neuron: from 0.95 down to 0.001 times the
smallest strength that removes all features. adelie has only the log link, so P1 here means its features and counts.

adelie fits the path of one neuron after another, each strength from the previous solution. Every neuron counts with
its fastest setting that reaches a gap: a tolerance (of coordinate descent and of IRLS), in single precision or, if that
does not reach it, in double precision; with one thread or, for a single neuron, two. Its loop runs on one core; two
processes would halve its seconds on two. Neurons for which no setting reaches the gap are counted, and cost adelie
nothing: if spikes are few, it fails with an infinite "IRLS lambda". glmfit's `PopulationGLM.path` fits all neurons, and
all count.

Gaps are true gaps in float64: the distance from the largest dual value of any fit, relative to the improvement on the
null model at that strength, or to a hundredth of a nat over the recording if that is more. "every fit" is the worst
strength of a neuron; "together" is the sum of its distances over the sum of its improvements.
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
TOLS = tuple(10.0**-k for k in range(4, 12))
OURS = tuple(10.0**-k for k in range(1, 9))
LIMIT_S = 30.0  # of the path of a neuron
REPEATS = 3
CHUNK = 4096


class Paths:
    """Strengths of every neuron, (strength, neuron), and the float64 gaps of fits at all of them."""

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
        """Arrays for a process that fits."""
        return {"X": self.X, "Y": self.Y, "strengths": self.strengths, "groups": self.starts}

    def _norms(self, coef):
        """Norm of every group of features, (group, column)."""
        return np.sqrt(np.add.reduceat(np.asarray(coef, np.float64) ** 2, self.starts, axis=0))

    def _slope(self, residual):
        """X'r / T in float64, some rows at a time."""
        parts = (slice(k, k + CHUNK) for k in range(0, len(self.X), CHUNK))
        return sum(self.X[p].T.astype(np.float64) @ residual[p] for p in parts) / len(self.X)

    def values(self, coef, intercept, neurons=None) -> np.ndarray:
        """F of fits (strength, feature, neuron) of some neurons, (strength, neuron); their dual values raise ``lower``.

        The dual point: the optimal intercept makes the residuals sum to zero, and they are shrunk until the slope is
        feasible; then -mean of the conjugate, (r + y) log(r + y) - (r + y), is a lower bound of the optimum.
        """
        neurons = np.arange(self.Y.shape[1]) if neurons is None else neurons
        objective = np.full((len(self.strengths), len(neurons)), np.inf)
        for i, n in enumerate(neurons):
            if np.all(np.isfinite(coef[:, :, i])):
                given = coef[:, :, i].T.astype(np.float64), intercept[:, i]
                objective[:, i], lower = self._of_neuron(n, *given, self.strengths[:, n])
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

    def gaps(self, objective, neurons=slice(None)) -> dict:
        """Relative gaps of objectives of some neurons above ``lower``, (neuron,)."""
        lower, least = self.lower[:, neurons], 1e-2 / len(self.X)
        distance, improvement = objective - lower, self.null[neurons] - lower
        return {
            "every fit": np.max(distance / np.maximum(improvement, least), axis=0),
            "together": distance.sum(axis=0) / np.maximum(improvement.sum(axis=0), least),
        }


def climb_ours(paths: Paths, repeats: int) -> list[dict]:
    """Fit by glmfit, looser tolerances first, until every fit is good enough."""
    rungs, ours = [], Foreign(None, "glmfit")
    best = ours.call("glmfit_paths", paths.arrays(), tol=1e-12)
    paths.values(best["coef"], best["intercept"])  # a lower bound of the optimum
    for tol in OURS:
        made = ours.call("glmfit_paths", paths.arrays(), tol=tol, repeats=repeats + 1)
        objective = paths.values(made["coef"], made["intercept"])
        seconds = made["seconds"]
        rungs.append({"tol": tol, "objective": objective, "first": seconds[0], "later": median(seconds[1:])})
        worst = {kind: float(gap.max()) for kind, gap in paths.gaps(objective).items()}
        print(f"    glmfit, tol {tol:g}: {seconds[0]:.3g} s, then {rungs[-1]['later']:.3g} s, {worst}", flush=True)
        if worst["every fit"] <= min(GOALS):
            break
    return rungs


def climb_theirs(paths: Paths, adelie: Foreign, repeats: int, n_threads: int) -> list[dict]:
    """Paths by adelie of the neurons that are not good enough yet, one setting after another."""
    rungs, todo = [], np.arange(paths.Y.shape[1])
    for precision in ("float32", "float64"):
        able = todo  # neurons left to this precision
        for tol in TOLS:
            if not len(able):
                break
            part = {"X": paths.X, "Y": paths.Y[:, able], "strengths": paths.strengths[:, able], "groups": paths.starts}
            how = {"tol": tol, "precision": precision, "n_threads": n_threads}
            try:
                made = adelie.call("adelie_paths", part, limit_s=LIMIT_S, repeats=repeats, **how)
            except (TimeoutError, RuntimeError) as error:
                print(f"    adelie, {how}: {error}", flush=True)
                break
            objective = paths.values(made["coef"], made["intercept"], able)
            seconds = np.median(made["seconds"], axis=0)
            rungs.append({"setting": how, "neurons": able, "objective": objective, "seconds": seconds})
            gap = paths.gaps(objective, able)["every fit"]
            print(
                f"    adelie, {how}: {len(able)} neurons, {seconds.sum():.3g} s, gaps {np.sort(gap)[-3:]}", flush=True
            )
            todo = np.setdiff1d(todo, able[gap <= min(GOALS)])
            able = able[np.isfinite(gap) & (gap > min(GOALS)) & (seconds <= LIMIT_S)]
    return rungs


def least_seconds(paths: Paths, rungs: list[dict], kind: str, goal: float) -> np.ndarray:
    """Seconds of the fastest setting that reaches a gap, (neuron,); infinite if none does."""
    least = np.full(paths.Y.shape[1], np.inf)
    for rung in rungs:
        there = paths.gaps(rung["objective"], rung["neurons"])[kind] <= goal
        chosen = rung["neurons"][there]
        least[chosen] = np.minimum(least[chosen], rung["seconds"][there])
    return least


def compare(paths: Paths, other_python, section: Section, what: str, limit: float, scale: float) -> None:
    """Seconds until all strengths of all neurons are below a gap: adelie's loop, and glmfit."""
    adelie = find(other_python, "adelie")
    if adelie is None:
        section.note(absent={"adelie": "in no Python given (--other-python); it needs numpy < 2"})
        return
    alone = paths.Y.shape[1] == 1
    ours = climb_ours(paths, 1 if scale < 1 else REPEATS)
    theirs = [
        rung
        for n_threads in ((1, 2) if alone else (1,))
        for rung in climb_theirs(paths, adelie, REPEATS if alone and scale == 1 else 1, n_threads)
    ]
    section.note(
        rows=len(paths.X), features=paths.X.shape[1], neurons=paths.Y.shape[1], strengths=N_STRENGTHS,
        groups=len(paths.starts), adelie=adelie.version,
        glmfit_rungs=[
            {k: r[k] for k in ("tol", "first", "later")} | {k: g.max() for k, g in paths.gaps(r["objective"]).items()}
            for r in ours
        ],
        adelie_rungs=[
            r["setting"] | {k: r[k] for k in ("neurons", "seconds")} | paths.gaps(r["objective"], r["neurons"])
            for r in theirs
        ],
    )  # fmt: skip
    for kind in ("every fit", "together"):
        for goal in GOALS:
            least = least_seconds(paths, theirs, kind, goal)
            reached = np.isfinite(least)
            section.note(**{f"adelie, {kind} below {goal:g}": {
                "neurons reached": int(reached.sum()), "spikes of the others": paths.Y[:, ~reached].sum(axis=0),
            }})  # fmt: skip
            for when, name in (("later", "warm"), ("first", "first fit")):
                able = [r[when] for r in ours if paths.gaps(r["objective"])[kind].max() <= goal]
                if able and reached.any():
                    section.require(f"{what}, {kind} below {goal:g}, {name}", min(able), least[reached].sum(),
                                    limit=limit, against="adelie, one by one", aim=kind == "together")  # fmt: skip


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

    many = "all neurons" if neurons is None else "one neuron" if limit == 1 else f"{len(neurons)} neurons"
    measure.__doc__ = f"{design}, {kind}, {many}, {N_STRENGTHS} strengths: seconds to gaps, compared with adelie."
    return measure


SECTIONS = {
    "path-P1-lasso-1": measure_of("P1", "lasso", 1.0, [16]),
    "path-P1-lasso-8": measure_of("P1", "lasso", 1 / 3, range(0, 32, 4)),  # adelie's loop over 32 takes half an hour
    "path-w_maze_place-lasso": measure_of("w_maze_place", "lasso", 1 / 3),
    "path-w_maze_place-group-lasso": measure_of("w_maze_place", "group-lasso", 1 / 3),
}
