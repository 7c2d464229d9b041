"""Fits in arrays with room to spare: what may be padded, and what is reported of it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from ..problems import PaddedProblem, PopulationProblem
from ..solvers import SAGA, Solution


def may_pad(solver, problem: PopulationProblem, checkpoint: bool) -> bool:
    """Whether padding saves programs: a solver that compiles some, on rows that lie in memory, on one device.

    Subsets are drawn from all rows of an array, and a checkpoint is to serve the fit without padding, too.
    """
    subsets = getattr(solver, "sampling", None) == "subsets"
    in_place = problem.in_memory and not problem.placement.devices
    return isinstance(solver, SAGA) and in_place and not (subsets or checkpoint)


def run_padded(solver, problem: PopulationProblem, *, key, options) -> tuple[Solution, str]:
    """Fit the problem in the shapes of its bucket; returns the outcome and the name of what shares its programs."""
    padded = PaddedProblem(problem, solver.batch_size)
    solution = solver.run(padded, key=key, options=options)
    bucket = padded.bucket
    return _cut(solution, problem.n_neurons, padded.share), f"{bucket.rows}x{bucket.neurons}x{problem.n_features}"


def _cut(solution: Solution, n_neurons: int, batch_size: int) -> Solution:
    """Outcome of the neurons there are, which come first."""

    def first(a):
        return a[..., :n_neurons] if isinstance(a, np.ndarray) and a.ndim else a

    step = solution.step_certificate
    if step is not None:
        per_neuron = {f.name: first(getattr(step, f.name)) for f in fields(step)}
        step = replace(step, **per_neuron | {"batch_size": batch_size})
    per_neuron = ("status", "gap", "gap_is_bound", "target", "objective", "null_objective", "epochs")
    history = {name: first(a) if a.ndim > 1 else a for name, a in solution.history.items()}
    return replace(
        solution,
        params=type(solution.params)(*map(first, solution.params)),
        step_certificate=step,
        history=history,
        state=None,
        **{name: first(getattr(solution, name)) for name in per_neuron},
    )
