"""Cost of a step that samples classes, for any number of classes, also on sparse features; see README.md here.

python benchmarks/softmax_steps.py [--sections bibtex,growth]

The section "bibtex" needs bibtex_train.npz in ../shared/data next to the checkout.
"""

from __future__ import annotations

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from _common import ROOT, Section, median, run_sections, timed

from glmfit.solvers import ImplicitSGD, Schedule, UMax
from glmfit.stochastic import Pairs, SoftmaxProblem
from glmfit.stochastic import class_kernels as kernels

METHODS = {
    "Implicit, n = m = 1": ImplicitSGD(n_negatives=1),
    "Implicit, m = 5": ImplicitSGD(n_negatives=5),
    "U-max, m = 5": UMax(n_negatives=5),
}


class Stepper:
    """Timer of single compiled steps of a solver on a problem, with draws timed separately."""

    def __init__(self, solver, problem, n_steps: int):
        self.n_steps, self.solver = n_steps, solver
        self.weights = solver.init_state(problem, None, key=jax.random.key(0)).weights
        m, f32 = min(solver.n_negatives, problem.n_classes - 1), np.float32
        log_a = f32(math.log((problem.n_classes - 1) / m))
        self.span = kernels.Span(0, n_steps, f32(1.0), solver.ridge(problem).astype(f32), log_a, f32(np.inf))
        self.data = kernels.measure(problem.class_data(solver.basis, solver.implicit), self.span, solver)
        n_pairs, n_classes = problem.n_pairs, problem.n_classes

        @jax.jit
        def draw(key, label):
            order = jax.random.randint(key, n_steps, 0, n_pairs, jnp.int32)
            return order, kernels.distinct_negatives(key, label[order][:, None], n_classes, m)

        self.draw = draw
        self.once(0)  # compiles
        self.seconds = {"draws": [], "steps": []}

    def once(self, seed: int) -> tuple[float, float]:
        """Seconds per step of the draws and of the steps."""
        key = jax.random.key(seed)
        draws, (order, negatives) = timed(lambda: jax.block_until_ready(self.draw(key, self.data.label)))
        how = self.span, kernels.one_row, self.solver

        def go():
            seen = kernels.look_up(self.data, order, negatives)
            return jax.block_until_ready(kernels.take_steps(seen, self.weights, None, None, *how))

        steps, self.weights = timed(go)
        return draws / self.n_steps, steps / self.n_steps

    def note(self, seed: int) -> None:
        """Time once more."""
        for name, spent in zip(self.seconds, self.once(seed), strict=True):
            self.seconds[name].append(spent)


def bibtex_problem(strength: float = 0.0) -> SoftmaxProblem:
    """Bibtex with rows of norm 1 and no intercept, as in the paper."""
    path = ROOT.parent / "shared" / "data" / "bibtex_train.npz"
    if not path.exists():
        raise SystemExit(f"{path.name} is not in ../shared/data next to the checkout; see ../shared/data/README.md.")
    with np.load(path, allow_pickle=False) as file:
        X = scipy.sparse.csr_array((file["data"], file["indices"], file["indptr"]), tuple(file["shape"]))
        label = np.unique(file["first_label"], return_inverse=True)[1]
    X = scipy.sparse.csr_array(X / np.sqrt(X.multiply(X).sum(axis=1))[:, None])
    n = X.shape[0]
    return SoftmaxProblem(X, Pairs(np.arange(n), label, np.ones(n)), int(label.max()) + 1, strength, False)


def bibtex(_cache, scale: float, section: Section) -> None:
    """Bibtex, 4 880 x 1 836 sparse, 146 classes: microseconds per step, and 50 epochs."""
    problem = bibtex_problem()
    limits = {"Implicit, n = m = 1": 8e-6, "U-max, m = 5": 10e-6}
    steppers = {name: Stepper(solver, problem, int(problem.n_rows * scale)) for name, solver in METHODS.items()}
    for round_ in range(25):
        for stepper in steppers.values():
            stepper.note(round_)
    for name, stepper in steppers.items():
        section.note(**{name: stepper.seconds})
        if name in limits:
            spent = median(stepper.seconds["steps"])
            section.require(f"Bibtex, {name}, a step", spent, limits[name], limit=1, against="limit")
    for name, step in (("Implicit, n = m = 1", 0.1), ("U-max, m = 5", 0.01)):
        runs = [METHODS[name].run(problem, key=jax.random.key(k), schedule=Schedule(50, step)) for k in range(4)][1:]
        losses = [problem.objective(run.params) for run in runs]
        section.note(**{f"50 epochs, {name}": {"seconds": [r.seconds_run for r in runs], "log_loss": losses}})
        spent = median(run.seconds_run for run in runs)
        section.require(f"Bibtex, {name}, 50 epochs, draws included", spent, 3.0, limit=1, against="limit")


def growth(_cache, scale: float, section: Section) -> None:
    """64 features, 1 000 to 1 000 000 classes and rows: a step does not grow with either."""
    rng, large = np.random.default_rng(0), int(1_000_000 * scale)
    steppers = {name: {} for name in METHODS}
    for n_rows, n_classes in ((1000, 1000), (large, 1000), (1000, large), (large, large)):
        X = (rng.normal(size=(n_rows, 64)) / 8).astype(np.float32)
        pairs = Pairs(np.arange(n_rows), rng.integers(0, n_classes, n_rows), np.ones(n_rows))
        # No intercept: a class then has 64 numbers, four cache lines.
        problem = SoftmaxProblem(X, pairs, n_classes, 1e-6, False)
        for name, solver in METHODS.items():
            steppers[name][f"N = {n_rows}, K = {n_classes}"] = Stepper(solver, problem, 30_000)
    for round_ in range(15):  # interleave all sizes, so that a slow phase of the machine affects all equally
        for sizes in steppers.values():
            for stepper in sizes.values():
                stepper.note(round_)
    for name, sizes in steppers.items():
        section.note(**{name: {size: stepper.seconds for size, stepper in sizes.items()}})
    for name, limit in (("Implicit, m = 5", 10e-6), ("U-max, m = 5", 5e-6)):
        steps = [median(stepper.seconds["steps"]) for stepper in steppers[name].values()]
        section.require(f"{name}, a step at N = K = {large}", steps[-1], limit, limit=1, against="limit")
        section.require(f"{name}, a step", max(steps), min(steps), limit=3, against="the cheapest N and K")


SECTIONS = {"bibtex": bibtex, "growth": growth}

if __name__ == "__main__":
    sys.exit(run_sections(__doc__, SECTIONS, "softmax_steps.json"))
