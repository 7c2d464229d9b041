"""Fits of softmax models: exact compared with scikit-learn, the crossover to sampling, which of 20 000 neurons fired.

    python benchmarks/softmax_fits.py [--sections exact,crossover,neurons]

Each section prints one line per requirement and is merged into results/softmax_fits.json. Close everything else first.
"""

from __future__ import annotations

import sys
import warnings

import jax
import numpy as np
from _common import Section, fresh, interleaved, median, run_sections, timed
from scipy.special import logsumexp

from glmfit.problems import Pairs, SoftmaxProblem
from glmfit.solvers import ConjugateGradients, ImplicitSGD, LoopOptions, Schedule

STRENGTH = 1e-3


def digits():
    """Features and labels of scikit-learn's digits, pixels from 0 to 1."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X / 16.0, y


def exact(_cache, _scale: float, section: Section) -> None:
    """Digits (1 797 x 64, 10 classes), ridge 1e-3: seconds to a relative gap of 1e-6 compared with scikit-learn."""
    from sklearn.linear_model import LogisticRegression

    X, y = digits()
    n, K = len(y), 10
    reference = SoftmaxProblem(X, Pairs(np.arange(n), y, np.ones(n)), K, STRENGTH)
    best = ConjugateGradients().run(reference, key=jax.random.key(0), options=LoopOptions(tol=1e-13)).objective[0]
    null = reference.null_objective

    def objective(W, b):
        s = X @ W + b
        return np.mean(logsumexp(s, axis=1) - s[np.arange(n), y]) + STRENGTH / 2 * np.sum(W**2)

    def ours(solver, tol):
        problem = SoftmaxProblem(X, Pairs(np.arange(n), y, np.ones(n)), K, STRENGTH)
        options = LoopOptions(tol=tol, negligible=0.0, max_epochs=3000)
        solution = solver.run(problem, key=jax.random.key(0), options=options)
        return solution.params.coef, solution.params.intercept

    def theirs(solver, tol):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = LogisticRegression(C=1 / (n * STRENGTH), solver=solver, tol=tol, max_iter=20_000).fit(X, y)
        return model.coef_.T, model.intercept_

    fits = {
        "glmfit ConjugateGradients": lambda: ours(ConjugateGradients(), 1e-6),
    }
    cold = {name: timed(fit)[0] for name, fit in fits.items()}
    for solver in ("saga", "lbfgs", "newton-cg"):  # the loosest tolerance that reaches the gap
        for tol in (1e-3, 1e-4, 5e-5, 2e-5, 1e-5, 1e-6, 1e-7, 1e-8):
            if (objective(*theirs(solver, tol)) - best) / (null - best) <= 1e-6:
                break
        fits[f"scikit-learn {solver}"] = lambda solver=solver, tol=tol: theirs(solver, tol)
        section.note(**{f"tolerance of scikit-learn {solver}": tol})
    gaps = {name: (objective(*fit()) - best) / (null - best) for name, fit in fits.items()}
    seconds = interleaved(fits, 7)
    section.note(relative_gap=gaps, seconds=seconds, cold_seconds=cold)
    for name in ("glmfit ConjugateGradients",):
        spent = median(seconds[name])
        section.require(
            f"digits, {name}, true relative gap", gaps[name], 1e-6, limit=1, against="limit", unit="", topic="gap"
        )
        for rival, limit in (("saga", 1), ("lbfgs", 3), ("newton-cg", 3)):
            section.require(
                f"digits, {name}, warm, to a relative gap of 1e-6", spent, median(seconds[f"scikit-learn {rival}"]),
                limit=limit, against=f"scikit-learn {rival}", aim=rival == "newton-cg",
            )  # fmt: skip


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


SECTIONS = {"exact": exact, "crossover": crossover, "neurons": neurons}

if __name__ == "__main__":
    sys.exit(run_sections(__doc__, SECTIONS, "softmax_fits.json"))
