"""Newton and SAGA over a grid of shapes, warm, and the choices of the rule of ``solver_name="auto"``.

    python benchmarks/auto_rule.py [--links softplus,exp] [--resume] [--score-only]

Every cell is written as soon as it is measured; --resume continues an interrupted run. The rule is in
glmfit/estimators/parameters.py; its choice is evaluated without conjugate gradients as an option: without a penalty, on
features that do not have full rank. Regret is the time of its choice over that of the faster solver.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from _common import RESULTS, environment, interleaved, median, plain, timed, write_json
from _models import fit_summary, timed_fit
from _problems import N_BASIS, STRENGTH, Problem, draw_counts, history_design

N_ROWS = (2_000, 20_000, 100_000)
N_SOURCES = (2, 8, 24)  # of eight features each
N_NEURONS = (1, 3, 4, 8, 32, 128)
KEYS = ("link", "n_rows", "n_features", "n_neurons")
SOLVERS = ("Newton", "SAGA")
MOST_WORK = 2e11  # multiplications per round of Newton's Hessians beyond which it is not tried


def measure(problem: Problem, repeats: int) -> dict:
    """First-fit and warm seconds of each solver on one problem; None for a solver that was not tried."""
    work = problem.Y.shape[1] * problem.X.shape[0] * (problem.X.shape[1] + 1) ** 2
    tried = [name for name in SOLVERS if name != "Newton" or work <= MOST_WORK]
    first, models = {}, {}
    for name in tried:
        first[name], models[name] = timed_fit("glmfit", problem, solver_name=name)
    slow = max(first.values()) > 10
    seconds = interleaved(
        {name: lambda name=name: timed_fit("glmfit", problem, solver_name=name) for name in tried},
        1 if slow else repeats,
        settle_s=0.02,
    )
    return {
        "first": first,
        "warm": {name: median(values) for name, values in seconds.items()},
        "fits": {name: fit_summary(model) for name, model in models.items()},
    }


def present_choice(cell: dict) -> str:
    """Choice of the current rule for a shape; the data are placeholders of that shape and of rank zero."""
    from glmfit import observations, penalties
    from glmfit.engine.population import PopulationProblem
    from glmfit.estimators import choose_solver

    T, d, N = cell["n_rows"], cell["n_features"], cell["n_neurons"]
    X, Y = np.broadcast_to(np.float32(0), (T, d)), np.broadcast_to(np.float32(1), (T, N))
    observation = observations.from_inverse_link(cell["link"])
    return choose_solver(PopulationProblem(X, Y, observation, penalties.make("UnRegularized", None, d, N)))


def regret(cell: dict, choice: str, when: str = "warm") -> float:
    """Time of a choice over that of the faster solver; infinite for a solver too slow to be tried."""
    return cell[when].get(choice, float("inf")) / min(cell[when].values())


def candidate(cell: dict, few: int, rows_per_feature: int, work: float) -> str:
    """The family of rules: Newton for few neurons, few rows per feature, or little work."""
    done = float(cell["n_neurons"]) * cell["n_rows"] * (cell["n_features"] + 56)
    short = cell["n_rows"] < rows_per_feature * cell["n_features"]
    return "Newton" if cell["n_neurons"] <= few or short or done <= work else "SAGA"


def mean_regret(cells: list[dict], choices, when: str = "warm") -> float:
    """Geometric mean over the cells."""
    return float(np.exp(np.mean([np.log(regret(c, choice, when)) for c, choice in zip(cells, choices, strict=True)])))


def score(cells: list[dict]) -> dict:
    """Print every cell with the rule's choice; find the best thresholds of the same family."""
    print("  link        T    d    N |  Newton s    SAGA s | faster   auto     regret")
    for cell in cells:
        cell["auto"] = present_choice(cell)
        cell["regret"] = regret(cell, cell["auto"])
        faster = min(cell["warm"], key=cell["warm"].get)
        newton, saga = (f"{cell['warm'][name]:9.4f}" if name in cell["warm"] else "not tried" for name in SOLVERS)
        print(
            f"{cell['link']:>9} {cell['n_rows']:6d} {cell['n_features']:4d} {cell['n_neurons']:4d} | {newton} {saga} | "
            f"{faster:<8} {cell['auto']:<8} {cell['regret']:.2f}"
        )

    family = list(itertools.product((0, 1, 2, 3, 4, 6), (0, 8, 16, 32, 64), np.logspace(4, 9, 21)))
    means = [mean_regret(cells, [candidate(c, *rule) for c in cells]) for rule in family]
    few, rows_per_feature, work = rule = family[int(np.argmin(means))]
    worst = max(cells, key=lambda c: c["regret"])
    summary = {
        "mean_regret": mean_regret(cells, [c["auto"] for c in cells]),
        "mean_regret_of_first_fits": mean_regret(cells, [c["auto"] for c in cells], "first"),
        "worst_regret": worst["regret"],
        "worst_at": [worst[key] for key in KEYS],
        "best_of_family": {
            "few_neurons": few,
            "rows_per_feature": rows_per_feature,
            "newton_work": work,
            "mean_regret": min(means),
            "worst_regret": max(regret(c, candidate(c, *rule)) for c in cells),
        },
    }
    best = summary["best_of_family"]
    print(
        f"current rule: regret {summary['mean_regret']:.3f} in the geometric mean "
        f"({summary['mean_regret_of_first_fits']:.3f} for first fits, compilation included), "
        f"worst {worst['regret']:.2f} at {tuple(summary['worst_at'])}\n"
        f"best of the family, warm (Newton if N <= {few}, or T < {rows_per_feature} d, or N T (d + 56) <= {work:.1e}): "
        f"{best['mean_regret']:.3f}, worst {best['worst_regret']:.2f}"
    )
    return summary


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--score-only", action="store_true", help="evaluate the rule on the stored timings")
    parser.add_argument("--resume", action="store_true", help="keep the stored cells")
    parser.add_argument("--links", default="softplus")
    parser.add_argument("--neurons", default=",".join(map(str, N_NEURONS)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", help="JSON file")
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    scaled = options.scale != 1
    path = Path(tempfile.gettempdir()) / "auto_rule.scaled.json" if scaled else RESULTS / "auto_rule.json"
    path = Path(options.results) if options.results else path
    kept = options.resume or options.score_only
    content = json.loads(path.read_text()) if kept else {"environment": environment(), "cells": []}
    if not options.score_only:
        run_grid(options, path, content)
    write_json(path, content | {"summary": score(content["cells"])})
    return 0


def run_grid(options, path: Path, content: dict) -> None:
    """Measure every missing cell."""
    done = [tuple(cell[key] for key in KEYS) for cell in content["cells"]]
    for n_rows, n_sources in itertools.product(N_ROWS, N_SOURCES):
        n_rows = max(1000, round(n_rows * options.scale))
        X = history_design(n_rows, n_sources, N_BASIS, 0)
        for link, n_neurons in itertools.product(options.links.split(","), map(int, options.neurons.split(","))):
            shape = dict(zip(KEYS, (link, n_rows, X.shape[1], n_neurons), strict=True))
            if tuple(shape.values()) in done:
                continue
            problem = Problem("cell", link, STRENGTH, X, draw_counts(X, n_neurons, link))
            spent, cell = timed(lambda problem=problem: measure(problem, options.repeats))
            content["cells"].append(plain(shape | cell))
            write_json(path, content)
            print(f"{shape}: {cell['warm']} ({spent:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
