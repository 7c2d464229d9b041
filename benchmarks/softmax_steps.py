"""What a step costs that samples classes, however many, also on sparse features: see README.md beside this file.

python benchmarks/softmax_steps.py [--sections bibtex,growth,baselines]

The section "bibtex" needs bibtex_train.npz in ../shared/data beside the checkout.
"""

from __future__ import annotations

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from _common import ROOT, Section, median, run_sections, timed

from glmfit.problems.softmax import Pairs, SoftmaxProblem
from glmfit.solvers import NCE, OVE, ImplicitSGD, ImportanceSampling, Schedule, UMax
from glmfit.solvers import _class_sampling as kernels

METHODS = {
    "Implicit, n = m = 1": ImplicitSGD(n_negatives=1),
    "Implicit, m = 5": ImplicitSGD(n_negatives=5),
    "U-max, m = 5": UMax(n_negatives=5),
}


def step_seconds(solver, problem, n_steps: int, repeats: int = 9) -> dict[str, list[float]]:
    """Seconds per step of the draws and of the steps themselves, compiled, as medians can be taken of."""
    data, rule = problem.class_data(), solver.rule(problem)
    state = solver.init_state(problem, None, key=jax.random.key(0))
    weights, m = state.weights, min(solver.n_negatives, problem.n_classes - 1)
    f32 = np.float32
    span = kernels.Schedule(0, n_steps, f32(1.0), f32(problem.strength), f32(math.log((problem.n_classes - 1) / m)))

    @jax.jit
    def draw(key):
        order = jax.random.randint(key, n_steps, 0, problem.n_pairs, jnp.int32)
        return order, kernels.distinct_negatives(key, data.label[order], problem.n_classes, m)

    seconds = {"draws": [], "steps": []}
    for k in range(repeats + 1):
        key = jax.random.key(k)
        spent, (order, negatives) = timed(lambda key=key: jax.block_until_ready(draw(key)))
        spent_steps, weights = timed(
            lambda w=weights, o=order, n=negatives: jax.block_until_ready(
                kernels.single_steps(data, w, o, n, span, rule)
            )
        )
        if k:  # the first compiles
            seconds["draws"].append(spent / n_steps)
            seconds["steps"].append(spent_steps / n_steps)
    return seconds


def bibtex_problem(strength: float = 0.0) -> SoftmaxProblem:
    """Bibtex with rows of norm 1 and no intercept, as in the paper."""
    path = ROOT.parent / "shared" / "data" / "bibtex_train.npz"
    if not path.exists():
        raise SystemExit(f"{path.name} is not in ../shared/data beside the checkout; see ../shared/data/README.md.")
    with np.load(path, allow_pickle=False) as file:
        X = scipy.sparse.csr_array((file["data"], file["indices"], file["indptr"]), tuple(file["shape"]))
        label = np.unique(file["first_label"], return_inverse=True)[1]
    X = scipy.sparse.csr_array(X / np.sqrt(X.multiply(X).sum(axis=1))[:, None])
    n = X.shape[0]
    return SoftmaxProblem(X, Pairs(np.arange(n), label, np.ones(n)), int(label.max()) + 1, strength, False)


def bibtex(_cache, scale: float, section: Section) -> None:
    """Bibtex, 4 880 x 1 836 sparse, 146 classes: microseconds per step, and 50 epochs."""
    problem = bibtex_problem()
    n_steps = int(problem.n_rows * scale)
    limits = {"Implicit, n = m = 1": 8e-6, "U-max, m = 5": 10e-6}
    for name, solver in METHODS.items():
        seconds = step_seconds(solver, problem, n_steps, 25)
        section.note(**{name: seconds})
        if name in limits:
            section.require(f"Bibtex, {name}, a step", median(seconds["steps"]), limits[name], limit=1, against="limit")
    for name, step in (("Implicit, n = m = 1", 1000.0), ("U-max, m = 5", 0.1)):
        runs = [METHODS[name].run(problem, key=jax.random.key(k), schedule=Schedule(50, step)) for k in range(4)][1:]
        losses = [problem.objective(run.params) for run in runs]
        section.note(**{f"50 epochs, {name}": {"seconds": [r.seconds_run for r in runs], "log_loss": losses}})
        spent = median(run.seconds_run for run in runs)
        section.require(f"Bibtex, {name}, 50 epochs, draws included", spent, 3.0, limit=1, against="limit")


def growth(_cache, scale: float, section: Section) -> None:
    """64 features, 1 000 to 1 000 000 classes and rows: a step does not grow with either."""
    rng, large = np.random.default_rng(0), int(1_000_000 * scale)
    cost = {name: {} for name in METHODS}
    for n_rows, n_classes in ((1000, 1000), (large, 1000), (1000, large), (large, large)):
        X = (rng.normal(size=(n_rows, 64)) / 8).astype(np.float32)
        pairs = Pairs(np.arange(n_rows), rng.integers(0, n_classes, n_rows), np.ones(n_rows))
        problem = SoftmaxProblem(X, pairs, n_classes, 1e-6)
        for name, solver in METHODS.items():
            seconds = step_seconds(solver, problem, 50_000)
            cost[name][f"N = {n_rows}, K = {n_classes}"] = {k: median(v) for k, v in seconds.items()}
    section.note(**cost)
    for name, limit in (("Implicit, m = 5", 10e-6), ("U-max, m = 5", 5e-6)):
        steps = [figures["steps"] for figures in cost[name].values()]
        section.require(f"{name}, a step at N = K = {large}", steps[-1], limit, limit=1, against="limit")
        section.require(f"{name}, a step", max(steps), min(steps), limit=3, against="the cheapest N and K")


def baselines(_cache, scale: float, section: Section) -> None:
    """Bibtex, 50 epochs, the best of steps 10^-3 to 10^3: log-loss beside the biased methods with 100 rows a step."""
    problem, epochs = bibtex_problem(), max(1, int(50 * scale))
    methods = {
        "Implicit, n = m = 1": ImplicitSGD(n_negatives=1),
        "Implicit, m = 5": ImplicitSGD(n_negatives=5),
        "U-max, m = 5": UMax(n_negatives=5),
        "OVE, n = 100": OVE(5, 100),
        "NCE, n = 100": NCE(5, 100),
        "importance sampling, n = 100": ImportanceSampling(5, 100),
    }
    losses = {}
    for name, solver in methods.items():
        found = {}
        for step in 10.0 ** np.arange(-3, 4):
            run = solver.run(problem, key=jax.random.key(0), schedule=Schedule(epochs, float(step)))
            found[f"{step:g}"] = float(problem.objective(run.params))
        losses[name] = found
    section.note(**losses)
    best = {name: min(found.values()) for name, found in losses.items()}
    rival = min(best[name] for name in methods if "100" in name)
    section.require(
        "Bibtex, log-loss of Implicit n = m = 1", best["Implicit, n = m = 1"], rival, limit=1 / 2.5,
        against="the best biased method with n = 100", unit="", topic="loss",
    )  # fmt: skip
    section.require(
        "Bibtex, log-loss of Implicit m = 5", best["Implicit, m = 5"], best["Implicit, n = m = 1"], limit=1,
        against="m = 1", unit="", topic="loss",
    )  # fmt: skip


SECTIONS = {"bibtex": bibtex, "growth": growth, "baselines": baselines}

if __name__ == "__main__":
    sys.exit(run_sections(__doc__, SECTIONS, "softmax_steps.json"))
