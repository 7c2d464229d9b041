"""Fits of softmax models: exact compared with scikit-learn, the crossover to sampling, which of 20 000 neurons fired.

    python benchmarks/softmax_fits.py [--sections standardised,unscaled,simulated,crossover,neurons]

The first three sections climb the ladders of peers.py: the time to a gap, (F - F*) / (F_null - F*) in float64, is the
least of the tolerances that reach it, and first fits are those of fresh processes. Each section prints one line per
requirement and is merged into results/softmax_fits.json. Close everything else first.
"""

from __future__ import annotations

import sys

import jax
import numpy as np
from _common import Section, fresh, run_sections
from peers import compare

from glmfit.solvers import ConjugateGradients, ImplicitSGD, Schedule
from glmfit.stochastic import Pairs, SoftmaxProblem

ONLY = ("glmfit auto", "sklearn lbfgs", "sklearn newton-cg", "sklearn newton-cholesky")


def exact(name: str, what: str):
    """Section that compares exact fits of a problem of peers.py with those of scikit-learn."""

    def section_of(cache, scale: float, section: Section) -> None:
        compare(name, cache, scale, section, ONLY, required=(1e-4, 1e-6))

    section_of.__doc__ = f"{what}: seconds to relative gaps of 1e-4 and 1e-6 compared with scikit-learn."
    return section_of


def crossover(_cache, scale: float, section: Section) -> None:
    """20 000 rows, 32 features, 30 to 4 000 classes: the exact solver until it passes the best of sampled classes."""
    rng, n, d = np.random.default_rng(0), int(20_000 * scale), 32
    X = rng.normal(size=(n, d)).astype(np.float32)
    ratios = {}
    for K in (30, 300, 1000, 4000):
        W = 2 * rng.normal(size=(d, K)) / np.sqrt(d)
        y = np.argmax(X @ W + rng.gumbel(size=(n, K)), axis=1)
        y = np.unique(y, return_inverse=True)[1]  # classes that occur
        problem = SoftmaxProblem(X, Pairs(np.arange(n), y, np.ones(n)), int(y.max()) + 1, 1e-4)
        sampled = {}
        for step in (0.01, 0.1, 1.0):
            run = ImplicitSGD(n_negatives=5).run(
                problem, problem.null_params(), key=jax.random.key(0), schedule=Schedule(50, step)
            )
            sampled[f"{step:g}"] = {"seconds": run.seconds_run, "objective": problem.objective(run.params)}
        solution = ConjugateGradients().run(problem, key=jax.random.key(0))
        history = solution.history
        best = min(sampled.values(), key=lambda run: run["objective"])
        passed = history["seconds"][np.argmax(history["objective"][:, 0] <= best["objective"])]
        ratios[K] = passed / best["seconds"]
        section.note(**{
            f"{K} classes": {
                "null": problem.null_objective, "optimum": solution.objective[0], "gap": solution.gap[0],
                "exact_seconds": history["seconds"], "exact_objective": history["objective"][:, 0],
                "exact_seconds_to_pass_the_sampled": passed, "sampled_50_epochs": sampled,
            }
        })  # fmt: skip
    section.note(seconds_to_pass_over_seconds_sampled=ratios)


def neurons(_cache, scale: float, section: Section) -> None:
    """20 000 units, 16 covariates, 2e6 simulated spikes: minutes, memory, held-out log-loss of which one fired."""
    report = fresh("which_neuron", n_spikes=int(2_000_000 * scale), n_units=int(20_000 * scale))
    section.note(**report)
    closed = (report["null_loss"] - report["loss"]) / (report["null_loss"] - report["generating_loss"])
    section.require(
        "20 000 units, share of the held-out log-loss between frequencies and truth that is closed", closed, 0.8,
        limit=1, against="limit", unit="", topic="loss", at_least=True,
    )  # fmt: skip
    section.require("20 000 units, 2e6 spikes, fit from cold", report["seconds"], 600, limit=1, against="limit")
    section.require(
        "20 000 units, 2e6 spikes, peak memory of the process", report["peak_bytes"], 3e9, limit=1, against="limit",
        unit="bytes", topic="memory",
    )  # fmt: skip


SECTIONS = {
    "standardised": exact("softmax-standardised", "Standardised digits (1 797 x 64, 10 classes), ridge 1e-3"),
    "unscaled": exact("softmax-unscaled", "Digits with pixels from 0 to 16, ridge 1e-4"),
    "simulated": exact("softmax-10", "30 000 x 64, 10 classes, ridge 1e-4"),
    "crossover": crossover,
    "neurons": neurons,
}

if __name__ == "__main__":
    sys.exit(run_sections(__doc__, SECTIONS, "softmax_fits.json"))
