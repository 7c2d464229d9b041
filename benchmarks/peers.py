"""glmfit compared with NeMoS, scikit-learn, statsmodels and glum: seconds to equal true gaps, recordings and P1.

    python benchmarks/peers.py --data FOLDER [--nemos-tree SOURCE] [--other-python PYTHON] [--sections P1-exp,...]
    python benchmarks/table.py --write

Every solver of every package that minimises the objective climbs a ladder of tolerances or of iterations in a separate
process; the gap of its result is computed in float64. A fit that takes longer than 20 s (`--cap-s`) is ended.
Then the fastest settings of every package take turns: three fresh processes each, with a first fit and later ones.
Loops over neurons that would take too long are timed on eight neurons. Merged into results/peers.json. `--nemos-tree`
is the folder that contains NeMoS' development branch as the package nemos (the src of a clone), which is also compared;
`--other-python` has packages that need a separate environment. Close everything else first.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import _peers_bands
import _peers_classes
import _peers_pairs
import _peers_paths
import _peers_sampling
import numpy as np
from _common import Contender, Section, commit, median, run_sections
from _peers_problems import NAMES, Gap, make_problem
from _rivals import PACKAGES, Rival, rivals, why_absent

MORE = (_peers_paths, _peers_classes, _peers_sampling, _peers_bands, _peers_pairs)  # modules with their own sections

GAPS = (1e-4, 1e-6)
ENOUGH = 3e-7  # a rung with a gap below this is the last
CAP_S = 20.0  # of one fit, by default
PART, LONG_S = 8, 10.0  # number of neurons timed if a loop over all would take longer than this
ROUNDS, LATER, SETTLE_S = 3, 2, 0.3  # later fits of a process; pause in which threads stop spinning
NEAR, MOST = 1.25, 2  # settings of a package that are timed again: within this factor of its fastest, at most this many


@dataclass
class Rung:
    """Result of one setting: gaps, seconds of its last fit, and of the fits of fresh processes."""

    rival: Rival
    precision: str
    setting: dict
    neurons: list | None  # the fitted neurons, if not all
    gap: float
    worst: float | None
    seconds: float
    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)

    @property
    def warm(self) -> float:
        """Seconds of a later fit."""
        return median(self.later) if self.later else self.seconds

    def words(self) -> dict:
        """Make it ready for JSON."""
        return {"precision": self.precision} | self.setting


@dataclass
class Race:
    """A problem, the folder of its results, and their gaps."""

    problem: object
    gap: Gap
    cache: Path
    cap_s: float = CAP_S

    def start(self, rival: Rival, precision: str, limit_s: float) -> Contender:
        """Start the fresh process of a rival; wait until it has its data."""
        files = {"x_file": str(self.problem.x_file), "y_file": str(self.problem.y_file), "out": str(self.answer)}
        how = {"package": rival.package, "name": rival.solver, "precision": precision}
        model = {"link": self.problem.link, "strength": self.problem.strength}
        run = Contender(limit_s, task="rival", tree=rival.tree, **files, **how, **model)
        run.wait()
        return run

    @property
    def answer(self) -> Path:
        """File of the last result."""
        return self.cache / "peers-answer.npz"

    def scaled(self, seconds: float, neurons: list | None) -> float:
        """Seconds of a fit, scaled to all neurons."""
        return seconds if neurons is None else seconds * self.problem.Y.shape[1] / len(neurons)

    def part(self, run: Contender, rival: Rival, setting: dict) -> list | None:
        """A sample of neurons, spread over their counts, if a loop over all would take too long; otherwise None."""
        if not rival.loops or self.problem.link == "softmax" or self.problem.Y.shape[1] <= 2 * PART:
            return None
        n = self.problem.Y.shape[1]
        part = np.argsort(self.problem.Y.sum(axis=0))[((np.arange(PART) + 0.5) * n / PART).astype(int)].tolist()
        run.fit(setting=setting, neurons=part)
        return part if run.ended or self.scaled(run.seconds[-1], part) > LONG_S else None

    def climb(self, rival: Rival) -> tuple[list[Rung], str | None]:
        """Try every rung until one is good enough or takes too long; return the rungs, and how the climb ended.

        A rung that reaches a new gap is run again if the first run may have compiled.
        """
        found, ended = [], None
        for precision, settings in rival.ladders:
            run, most = self.start(rival, precision, self.cap_s), 0
            part = self.part(run, rival, settings[0])
            for setting in settings:
                run.fit(setting=setting, neurons=part)
                if run.ended:
                    break
                with np.load(self.answer) as answer:
                    gap, worst = self.gap(answer["coef"], answer["intercept"], part)
                goals = sum(gap <= goal for goal in GAPS)
                if rival.compiles and goals > most:
                    run.fit(setting=setting, neurons=part)
                most = max(goals, most)
                found.append(Rung(rival, precision, setting, part, gap, worst, self.scaled(run.seconds[-1], part)))
                if gap <= ENOUGH or run.ended:
                    break
            ended = run.ended or ended
            run.close()
        return found, ended

    def take_turns(self, rungs: list[Rung], scale: float) -> None:
        """Time first and later fits of fresh processes, one process after another, in rounds."""
        for number in range(ROUNDS if scale == 1 else 1):
            for rung in rungs:
                if number and sum(rung.first + rung.later) > self.cap_s:
                    continue
                run = self.start(rung.rival, rung.precision, 6 * self.cap_s)
                for _ in range(1 + LATER):
                    time.sleep(SETTLE_S)
                    run.fit(setting=rung.setting, neurons=rung.neurons)
                run.close()
                if run.ended:
                    print(f"    {rung.rival.name} at {rung.words()}: {run.ended}", flush=True)
                    continue
                first, *later = run.seconds
                rung.later += [self.scaled(seconds, rung.neurons) for seconds in later]
                once = max(first - median(later), 0.0)  # one-off cost of a first fit, for any number of neurons
                rung.first.append(self.scaled(median(later), rung.neurons) + once if rung.neurons else first)


def fastest(rungs: list[Rung], package: str) -> list[Rung]:
    """Settings of a package (for glmfit, of "auto") that were fastest to a gap, and those close to them."""
    chosen = []
    rungs = [r for r in rungs if r.rival.package == package and (package != "glmfit" or r.rival.solver == "auto")]
    for goal in GAPS:
        able = sorted((r for r in rungs if r.gap <= goal), key=lambda r: r.seconds)
        chosen += [r for r in able[:MOST] if r.seconds <= NEAR * able[0].seconds and r not in chosen]
    return chosen


def figures(rival: Rival, rungs: list[Rung], ended: str | None, problem) -> dict:
    """Seconds of a solver to every gap, by the setting that is fastest to it."""
    row = {"package": rival.package, "solver": rival.solver, "ended": ended}
    row |= {"warm": {}, "cold": {}, "setting": {}, "worst_neuron_gap": {}}
    for goal in GAPS:
        able = [r for r in rungs if r.gap <= goal]
        best = min(able, key=lambda r: r.warm, default=None)
        row["warm"][f"{goal:g}"] = best.warm if best else np.inf
        row["setting"][f"{goal:g}"] = best.words() if best else None
        row["worst_neuron_gap"][f"{goal:g}"] = best.worst if best else None
        if first := [median(r.first) for r in able if r.first]:
            row["cold"][f"{goal:g}"] = min(first)
    parts = {len(r.neurons) for r in rungs if r.neurons}
    row["neurons_timed"] = min(parts) if parts else None if problem.link == "softmax" else problem.Y.shape[1]
    row["smallest_gap"] = min((r.gap for r in rungs), default=np.inf)
    row["rungs"] = [[r.words(), r.gap, r.worst, r.seconds, r.first, r.later] for r in rungs]
    return row


def compare(name, cache, scale, section, *, data=None, nemos_tree=None, cap_s=CAP_S, only=(), required=()) -> None:
    """Seconds to the gaps by every solver of every package, later fits and first ones."""
    problem = make_problem(name, cache, scale, data)
    race = Race(problem, Gap(problem, cache), cache, cap_s)
    climbed = {}
    for rival in rivals(problem.link, nemos_tree):
        if not only or rival.name in only:
            climbed[rival] = rungs, ended = race.climb(rival)
            best = min((rung.gap for rung in rungs), default=np.inf)
            print(f"    {rival.name}: {len(rungs)} rungs, smallest gap {best:.1e}; {ended or 'done'}", flush=True)
    tried = [rung for rungs, _ in climbed.values() for rung in rungs]
    race.take_turns([rung for package in ("glmfit", *PACKAGES) for rung in fastest(tried, package)], scale)
    peers = {rival.name: figures(rival, *found, problem) for rival, found in climbed.items()}
    facts = {
        "rows": len(problem.X),
        "features": problem.X.shape[1],
        "outputs": problem.n_classes if problem.link == "softmax" else problem.Y.shape[1],
        "link": problem.link,
        "strength": problem.strength,
    }
    section.note(problem=facts, peers=peers, absent=why_absent(problem.link, nemos_tree))
    if nemos_tree is not None:
        section.note(nemos_development=commit(nemos_tree)["commit"])
    _judge(name, peers, section, required)


def _judge(name: str, peers: dict, section: Section, required: tuple) -> None:
    """Judge the ratio of glmfit's "auto" to every other package's fastest solver; aims except at required gaps."""
    for when in ("warm", "cold"):
        for goal in (f"{gap:g}" for gap in GAPS):
            seconds = {rival: float(row[when].get(goal, np.inf)) for rival, row in peers.items()}
            for package in PACKAGES:
                able = [k for k, row in peers.items() if row["package"] == package and np.isfinite(seconds[k])]
                if able:
                    best, aim = min(able, key=seconds.get), float(goal) not in required
                    section.require(f"{name}, {when}, gap {goal}", seconds["glmfit auto"], seconds[best], limit=1,
                                    against=best, aim=aim)  # fmt: skip


def sections(**options) -> dict:
    """Map each section, of this and of other modules, to its function with the options that it takes."""
    measures = {name: functools.partial(compare, name) for name in NAMES}
    for module in MORE:
        measures |= module.SECTIONS
    found = {}
    for name, measure in measures.items():
        taken = {key: value for key, value in options.items() if key in inspect.signature(measure).parameters}
        found[name] = functools.partial(measure, **taken)
        found[name].__doc__ = getattr(measure, "func", measure).__doc__
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path, help="folder of the recordings")
    parser.add_argument(
        "--nemos-tree", type=Path, help="source of NeMoS' development branch: the folder that contains nemos"
    )
    parser.add_argument("--other-python", type=Path, help="Python of an environment with other packages")
    parser.add_argument("--cap-s", type=float, default=CAP_S, help="time limit of one fit, in seconds")
    given, rest = parser.parse_known_args()
    sys.exit(run_sections(__doc__, sections(**vars(given)), "peers.json", rest))
