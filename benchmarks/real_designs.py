"""Seconds of fits of seven recorded designs: glmfit, the version before it, Newton, NeMoS, scikit-learn and glum.

    python benchmarks/real_designs.py --data FOLDER --before CHECKOUT [--sections w_maze_place,...]
        [--penalties ridge-1e-4,lasso,...] [--links softplus,exp] [--contenders glmfit,before,...] [--time-limit 600]
    python benchmarks/table.py --write

A figure is a design, a link and a penalty. All contenders of a figure are fresh processes that take turns: first fits,
then up to three later fits within the time limit. A fit that takes longer than the limit is ended and recorded as
"over 600 s". Every figure is written as soon as it is complete; the same code on the same machine resumes from the
written figures. Sections P1, P2, P512 and W32 are simulated designs (_problems.py) for the same comparison. Gaps are
true gaps, in float64, against a Newton method of the benchmark. NeMoS runs the solver and the smallest number of
iterations of a ladder that reach a relative gap of 1e-6, at most 400, because its tolerance does not tell this.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import _problems
import numpy as np
from _common import Contender, Section, commit, run_sections, subject
from _designs import DESIGNS, groups
from _references import Reference
from table import later

PENALTIES = {
    "ridge-1e-4": ("Ridge", 1e-4),
    "ridge-1e-6": ("Ridge", 1e-6),
    "lasso": ("Lasso", 1e-4),
    "group-lasso": ("GroupLasso", 1e-4),
    "cv": (None, None),  # cross-validated ridge, eight strengths and five folds
}
LINKS = ("softplus", "exp")
NAMES = {
    "glmfit": "glmfit",
    "before": "the version before",
    "newton": "glmfit, Newton per neuron",
    "numpy": "NumPy, Newton per neuron",
    "nemos": "NeMoS",
    "sklearn": "scikit-learn newton-cholesky per neuron",
    "glum": "glum per neuron",
    "ridge": "glmfit, ridge 1e-4",
    "separate": "40 separate fits",
}
RIVALS = ("nemos", "sklearn", "glum")
NEWTONS = ("newton", "numpy", "sklearn", "glum")  # all in float64
LATER, SETTLE_S = 3, 0.3  # pause in which threads of the previous contender stop spinning
NEMOS, LADDER, GOAL = ("LBFGS", "SVRG"), (25, 50, 100, 200, 400), 1e-6  # iterations; for SVRG, passes
GLUM = {"Ridge": {"l1_ratio": 0, "solver": "irls-ls", "gradient_tol": 1e-4},
        "Lasso": {"l1_ratio": 1, "solver": "irls-cd", "gradient_tol": 1e-5}}  # fmt: skip

SIMULATED = ("P1", "P2", "P512", "W32")
OVER_BEFORE = {"w_maze_place": 1 / 10, "open_field_place": 1 / 10, "open_field_coupling": 1 / 6,
               "P1": 0.4, "P2": 0.4, "P512": 0.35, "W32": 0.12}  # 1/2 elsewhere  # fmt: skip
FIRST_OVER_BEFORE = {"P1": 1 / 4, "P2": 1 / 4}
CV_OVER_BEFORE = {"w_maze_place": 1 / 10, "w_maze_place_and_history": 1 / 10}


@dataclass(frozen=True)
class Figure:
    """A design with a link and a penalty."""

    problem: _problems.Problem
    penalty: str
    groups: list[int]
    cache: Path
    before: Path | None
    limit_s: float

    @property
    def what(self) -> str:
        """Name in the requirements."""
        return f"{self.problem.name}, {self.problem.link}, {self.penalty}"

    def contenders(self) -> dict[str, dict]:
        """Contenders for this model by name, and how each is started."""
        regularizer, strength = PENALTIES[self.penalty]
        if regularizer is None:
            found = {"glmfit": {"kind": "cv"}, "before": {"kind": "cv"}, "separate": {"kind": "separate"}}
        else:
            model = {"kind": "glmfit", "strength": strength, "regularizer": regularizer}
            model |= {"groups": self.groups} if regularizer == "GroupLasso" else {}
            found = {"glmfit": model, "before": model, "newton": model | {"solver_name": "Newton"}}
        alone = {"strength": strength, "compiles": False}
        if regularizer == "Ridge":
            found |= {"numpy": {"kind": "each-newton"} | alone, "nemos": {"kind": "nemos", "strength": strength}}
        if regularizer in ("Lasso", "GroupLasso"):
            found["ridge"] = {"kind": "glmfit", "strength": PENALTIES["ridge-1e-4"][1]}
        if self.problem.link == "exp" and regularizer == "Ridge":
            found["sklearn"] = {"kind": "each-sklearn"} | alone
        if self.problem.link == "exp" and regularizer in GLUM:
            found["glum"] = {"kind": "each-glum"} | alone | GLUM[regularizer]
        if self.before is None:
            del found["before"]
        else:
            found["before"] = found["before"] | {"checkout": self.before}
        return {name: how for name, how in found.items() if name not in RIVALS or find_spec(name)}

    def answer(self, name: str) -> Path:
        """File of the parameters that a contender found last."""
        return self.cache / f"{self.problem.name}-{name}.npz"

    def start(self, name: str, how: dict) -> Contender:
        """Start the fresh process of a contender."""
        files = {"x_file": str(self.problem.x_file), "y_file": str(self.problem.y_file), "out": str(self.answer(name))}
        return Contender(self.limit_s, link=self.problem.link, **files, **how)

    def reference(self) -> Reference:
        """Make the reference for the true gaps."""
        regularizer, _ = PENALTIES[self.penalty]
        labels = {"Lasso": list(range(self.problem.X.shape[1])), "GroupLasso": self.groups}
        return Reference(self.problem, labels.get(regularizer))

    def gaps(self, name: str, reference: Reference) -> dict:
        """Return the true gaps of a contender's last fit."""
        if name in ("ridge", "separate"):  # a different problem, or many
            return {}
        with np.load(self.answer(name)) as answer:
            return reference.gaps(**answer)


def measure(figure: Figure, chosen: list[str]) -> dict[str, dict]:
    """Seconds, reports and true gaps of the chosen contenders, which take turns."""
    entrants = {name: how for name, how in figure.contenders().items() if name in chosen}
    runs = {name: figure.start(name, how) for name, how in entrants.items()}
    reference, changes, found = figure.reference(), {}, {}

    def fit(name):
        time.sleep(SETTLE_S)
        runs[name].fit(**changes.get(name, {}))

    try:
        for run in runs.values():
            run.wait()
        for name in runs:
            if name == "nemos":
                changes[name] = fastest_of_nemos(figure, entrants[name], reference)
            fit(name)
            if name == "glmfit" and runs[name].seconds:
                figure.gaps(name, reference)  # starts the search for the optimum from here
        while due := [name for name, run in runs.items() if run.has_time(LATER)]:
            for name in due:
                fit(name)
        for name, run in runs.items():
            found[name] = run.figures() | changes.get(name, {})
            found[name] |= figure.gaps(name, reference) if run.seconds else {}
            print(f"    {figure.what}: {NAMES[name]}: {_in_words(found[name])}", flush=True)
    finally:
        for run in runs.values():
            run.close()
    return found


def fastest_of_nemos(figure: Figure, how: dict, reference: Reference) -> dict:
    """Solver and iterations that reach the goal fastest; those with the smallest gap if none does."""
    found = [(np.inf, np.inf, {"solver_name": NEMOS[0], "solver_kwargs": {"maxiter": LADDER[-1], "tol": 1e-12}})]
    for solver in NEMOS:
        climber = figure.start("nemos", how)
        climber.wait()
        for most in LADDER:
            setting = {"solver_name": solver, "solver_kwargs": {"maxiter": most, "tol": 1e-12}}
            climber.fit(**setting)
            if climber.ended:
                break
            gap = figure.gaps("nemos", reference)["gap"]
            found.append((max(gap, GOAL) if np.isfinite(gap) else np.inf, climber.seconds[-1], setting))
            best = min(found, key=lambda rung: rung[:2])
            if gap <= GOAL or (best[0] <= GOAL and climber.seconds[-1] > best[1]):
                break
        climber.close()
    return min(found, key=lambda rung: rung[:2])[2]


def judge(figure: Figure, found: dict[str, dict], section: Section) -> None:
    """Judge the figures of glmfit against the requirements."""
    section.requirements = [e for e in section.requirements if not e["what"].startswith(figure.what + ":")]
    if "glmfit" not in found:
        return
    name, ours = figure.problem.name, found["glmfit"]
    ridge, cv = figure.penalty.startswith("ridge"), figure.penalty == "cv"
    aim = ridge and figure.problem.link == "exp"
    section.require(f"{figure.what}: neurons proved", ours.get("proved", 0), figure.problem.Y.shape[1], limit=1,
                    against="all", unit="neurons", topic="score", at_least=True, aim=aim or cv)  # fmt: skip
    seconds = {k: _seconds(fit, figure.limit_s) for k, fit in found.items()}
    seconds = {k: value for k, value in seconds.items() if value is not None}
    if "glmfit" not in seconds:
        return
    unknown = later(ours) is None  # more than the limit, and not comparable with what took longer as well

    def against(rival: str | None, limit: float, aim: bool = aim) -> None:
        if rival in seconds and not (unknown and later(found[rival]) is None):
            ended = "" if later(found[rival]) is not None else f", {found[rival]['ended']}"
            section.require(f"{figure.what}: later fit", seconds["glmfit"], seconds[rival], limit=limit,
                            against=NAMES[rival] + ended, aim=aim)  # fmt: skip

    if ridge:
        against("before", OVER_BEFORE.get(name, 1 / 2))
        if name in FIRST_OVER_BEFORE and found.get("before", {}).get("seconds"):
            section.require(f"{figure.what}: first fit", ours["seconds"][0], found["before"]["seconds"][0],
                            limit=FIRST_OVER_BEFORE[name], against=NAMES["before"], aim=aim)  # fmt: skip
        if not unknown:
            section.require(f"{figure.what}: first fit", ours["seconds"][0], seconds["glmfit"] + 0.5, limit=1,
                            against="a later fit and half a second", aim=aim)  # fmt: skip
    elif cv:
        against("before", CV_OVER_BEFORE.get(name, 1), aim=name not in CV_OVER_BEFORE)
        against("separate", 1 / 3)
    else:
        against("before", 1, aim=True)
        against("ridge", 2)
    against(min((k for k in NEWTONS if k in seconds), key=seconds.get, default=None), 1.5, aim=False)
    for rival in RIVALS:
        against(rival, 1, aim=True)


def _seconds(fit: dict, limit_s: float) -> float | None:
    """Seconds of a later fit, the limit if it took longer, None if it failed."""
    ran_out = fit.get("ended", "").startswith("over")
    return limit_s if later(fit) is None and ran_out else later(fit)


def _in_words(fit: dict) -> str:
    facts = [f"{fit['seconds'][0]:.3g} s, later {later(fit) or np.nan:.3g} s"] if fit["seconds"] else []
    facts += [fit["solver_name"]] if "solver_name" in fit else []
    facts += [f"gap {fit['gap']:.1e}, worst neuron {fit['worst_neuron_gap']:.1e}"] if "gap" in fit else []
    facts += [f"{fit['proved']} of {fit['neurons']} proved"] if "proved" in fit else []
    return "; ".join(facts + ([fit["ended"]] if "ended" in fit else []))


def design(cache: Path, scale: float, section: Section, *, name: str, options: argparse.Namespace) -> None:
    """Seconds of first and later fits by every link and penalty, and their true gaps."""
    if name in SIMULATED:
        simulated = _problems.load(name, cache, scale)
        X, Y = simulated.X, simulated.Y
    else:
        X, Y = (a[: int(scale * len(a))] for a in DESIGNS[name](options.data))
    Y = np.ascontiguousarray(Y[:, Y.sum(axis=0) > 0])
    files = [_problems.save_array(cache / f"{name}-{k}.npy", array) for k, array in (("X", X), ("Y", Y))]
    labels = groups(name, X.shape[1])
    section.note(rows=len(X), features=X.shape[1], neurons=Y.shape[1], groups=max(labels) + 1)
    if options.before:
        section.note(before=commit(options.before) | {"subject": subject(options.before)})
    section.note(time_limit_s=options.time_limit)
    for link in options.links:
        for penalty in options.penalties:
            problem = _problems.Problem(name, link, PENALTIES[penalty][1] or 0.0, X, Y, *files)
            figure = Figure(problem, penalty, labels, cache, options.before, options.time_limit)
            found = measure(figure, options.contenders)
            section.figures.setdefault(link, {})[penalty] = found
            judge(figure, found, section)
            section.save()


def _some_of(names):
    """Make an option type: names separated by commas."""

    def read(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(names):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(names)}")
        return text.split(",")

    return read


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--before", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--penalties", type=_some_of(PENALTIES), default=list(PENALTIES))
    parser.add_argument("--links", type=_some_of(LINKS), default=list(LINKS))
    parser.add_argument("--contenders", type=_some_of(NAMES), default=list(NAMES))
    parser.add_argument("--time-limit", type=float, default=600.0, help="time limit of a fit, in seconds")
    options, rest = parser.parse_known_args()
    sections = {name: functools.partial(design, name=name, options=options) for name in (*DESIGNS, *SIMULATED)}
    for function in sections.values():
        function.__doc__ = design.__doc__
    sys.exit(run_sections(__doc__, sections, "real_designs.json", rest, resume=True))
