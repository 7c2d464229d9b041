"""Sections of peers.py on softmax of few classes: cyanure and scikit-learn, compared with glmfit.

All packages minimise F = mean of -log p(label) + strength/2 ||W||^2, with free intercepts. cyanure is a package of
incremental and quasi-Newton solvers with duality gaps; every solver of every package climbs a ladder of tolerances in
both precisions (glmfit only in single precision). A gap is relative to the improvement on class frequencies, and is
measured from a lower bound of F*: with optimal intercepts, F* is at least F - ||slope||^2 / (2 strength).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from _common import Section, median
from _foreign import find

GOALS = (1e-4, 1e-6)
TOLS = tuple(10.0**-k for k in range(2, 11))
LIMIT_S, PROCESS_S = 8.0, 240.0  # of one fit (a longer one is the last); of all fits of a solver
SOLVERS = {
    "glmfit": ("auto",),
    "cyanure": ("auto", "qning-svrg", "catalyst-miso", "acc-svrg"),
    "sklearn": ("lbfgs", "newton-cg", "newton-cholesky"),
}


def digits(_data, _scale: float):
    """Digits of scikit-learn, pixels from 0 to 1: features, labels, strength."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32), y, 1e-3


def places(data, scale: float):
    """Position in one of 36 squares of a box, from the spikes of all neurons in half a second."""
    with np.load(Path(data) / "place_cells.npz") as z:
        counts, xy = z["counts"].astype(np.float32), z["xy"]
    n = round(scale * len(xy))
    total = np.cumsum(np.vstack([np.zeros((1, counts.shape[1]), np.float32), counts]), axis=0)
    X = total[WINDOW:] - total[:-WINDOW]
    inner = np.arange(1, 6) / 6
    cell = [np.searchsorted(np.quantile(side, inner), side) for side in xy[WINDOW - 1 :].T]
    known = np.isfinite(xy[WINDOW - 1 :]).all(axis=1)
    label = (6 * cell[0] + cell[1])[known][:n]
    return np.sqrt(X[known][:n]), np.unique(label, return_inverse=True)[1], 1e-4


WINDOW = 10  # bins


class Gaps:
    """Gaps of softmax fits in float64, measured from a lower bound."""

    def __init__(self, X, y, strength: float):
        self.X, self.y, self.strength = X.astype(np.float64), y, strength
        self.share = np.bincount(y) / len(y)
        self.hit = np.eye(len(self.share))[y]
        self.null, self.lower = -float(self.share @ np.log(self.share)), -np.inf

    def value(self, coef, intercept) -> float:
        """F of a fit with its own intercepts; its lower bound of the optimum may raise ``lower``."""
        coef, b = np.asarray(coef, np.float64), np.asarray(intercept, np.float64)
        if not (np.all(np.isfinite(coef)) and np.all(np.isfinite(b))):
            return np.inf
        scores = self.X @ coef
        found, best = self._loss(scores, b, coef)[0], None
        for _ in range(200):  # optimal intercepts: predicted shares of the classes equal the true ones
            best, p = self._loss(scores, b, coef)
            ratio = self.share / p.mean(axis=0)
            if np.abs(ratio - 1).max() < 1e-12:
                break
            b = b + np.log(ratio)
        slope = self.X.T @ (p - self.hit) / len(self.y) + self.strength * coef
        left = np.abs(p.mean(axis=0) - self.share).sum() * np.abs(b).max()  # error of the intercepts, to first order
        self.lower = max(self.lower, best - np.sum(slope**2) / (2 * self.strength) - left)
        return found

    def _loss(self, scores, b, coef):
        s = scores + b
        s -= s.max(axis=1, keepdims=True)
        p = np.exp(s)
        total = p.sum(axis=1, keepdims=True)
        loss = np.log(total[:, 0]) - s[np.arange(len(s)), self.y]
        return loss.mean() + self.strength / 2 * np.sum(coef**2), p / total

    def gap(self, value: float) -> float:
        """Relative gap of a value of F."""
        return (value - self.lower) / (self.null - self.lower)


def few(name: str, load):
    """Section that compares the packages on one data set."""

    def measure(cache, scale: float, section: Section, data=None, other_python=None) -> None:
        if load is places and data is None:
            section.note(absent={name: "needs --data, the folder of the recordings"})
            return
        X, y, strength = load(data, scale)
        gaps, arrays = Gaps(X, y, strength), {"X": X, "y": y}
        repeats = 3 if scale == 1 else 1
        at, absent, values = {}, {}, {}
        for package, solvers in SOLVERS.items():
            foreign = find(other_python if package == "cyanure" else None, package, PROCESS_S)
            if foreign is None:
                absent[package] = "is in no Python given (--other-python)"
                continue
            how = {"package": package, "strength": strength, "limit_s": LIMIT_S}
            for solver in solvers:
                for precision in ("float32",) if package == "glmfit" else ("float32", "float64"):
                    how |= {"solver": solver, "precision": precision, "tols": TOLS, "repeats": repeats + 1}
                    try:
                        made = foreign.call("softmax", arrays, **how)
                    except TimeoutError as error:
                        absent[f"{package} {solver}, {precision}"] = str(error)
                        print(f"    {package} {solver}, {precision}: {error}", flush=True)
                        continue
                    for tol, coef, b, seconds in zip(
                        TOLS, *(made[k] for k in ("coef", "intercept", "seconds")), strict=False
                    ):
                        key = (package, solver, precision, tol)
                        at[key], values[key] = median(seconds[1:]), gaps.value(coef, b)
                    print(f"    {package} {solver}, {precision}: {np.median(made['seconds'], axis=1)}", flush=True)
        found = {key: gaps.gap(value) for key, value in values.items()}
        facts = {
            "title": f"softmax, {len(gaps.share)} classes, {name}", "rows": len(X), "features": X.shape[1],
            "outputs": len(gaps.share), "link": "softmax", "strength": strength,
        }  # fmt: skip
        peers = rows(at, found, other_python, arrays, strength)
        section.note(
            problem=facts, peers=peers, absent=absent, reference_left=min(found.values()),
            rungs=[[*key, found[key], at[key]] for key in at],
        )  # fmt: skip
        judge(section, f"softmax, {name}", peers)

    measure.__doc__ = f"Softmax, {name}: seconds to gaps, compared with cyanure and scikit-learn."
    return measure


def rows(at: dict, found: dict, other_python, arrays: dict, strength: float) -> dict:
    """Rows of peers: seconds of later fits to every gap, and of first fits of each package's fastest solver."""
    peers = {}
    for package, solver in dict.fromkeys(key[:2] for key in at):
        row = {"package": package, "solver": solver, "warm": {}, "cold": {}, "setting": {}, "ended": None}
        for goal in GOALS:
            able = [key for key in at if key[:2] == (package, solver) and found[key] <= goal]
            best = min(able, key=at.get, default=None)
            row["warm"][f"{goal:g}"] = at[best] if best else np.inf
            row["setting"][f"{goal:g}"] = best and {"precision": best[2], "tol": best[3]}
        row["smallest_gap"] = min(gap for key, gap in found.items() if key[:2] == (package, solver))
        peers[f"{package} {solver}"] = row
    for package in dict.fromkeys(row["package"] for row in peers.values()):
        foreign = find(other_python if package == "cyanure" else None, package)
        for goal in (f"{goal:g}" for goal in GOALS):
            row = min((r for r in peers.values() if r["package"] == package), key=lambda r: r["warm"][goal])
            if setting := row["setting"][goal]:
                how = {"package": package, "solver": row["solver"], "precision": setting["precision"]}
                how |= {"tols": [setting["tol"]], "strength": strength, "repeats": 1, "limit_s": LIMIT_S}
                firsts = [foreign.call("softmax", arrays, **how)["seconds"][0, 0] for _ in range(3)]
                row["cold"][goal] = median(firsts)
    return peers


def judge(section: Section, what: str, peers: dict) -> None:
    """Judge the ratio of glmfit to the fastest solver of every other package."""
    for when in ("warm", "cold"):
        for goal in (f"{goal:g}" for goal in GOALS):
            ours = peers["glmfit auto"][when].get(goal, np.inf)
            for package in SOLVERS:
                able = {k: r[when][goal] for k, r in peers.items() if r["package"] == package and goal in r[when]}
                best = min(able, key=able.get, default=None)
                if package != "glmfit" and best and np.isfinite(able[best]):
                    section.require(f"{what}, {when}, gap {goal}", ours, able[best], limit=1, against=best)


SECTIONS = {
    "classes-digits": few("digits, with cyanure", digits),
    "classes-place": few("place from spikes", places),
}
