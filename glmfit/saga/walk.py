"""Walks of fits in epochs of SAGA, and the certificates of their steps."""

from typing import NamedTuple

import jax
import numpy as np

from ..bounds import batch_smoothness, bound_largest_eigenvalue, check_batch_size, partition_step, subset_step
from ..engine.problem import Params
from .spectral_rows import Metric, Rows, block_spectra, largest_change, saga_epoch, sweep
from .spectral_view import SpectralView

SAMPLINGS = ("partition", "subsets", "shuffle")


class Position:
    """Where some fits are: columns, what the last pass over the rows found there, and epochs of SAGA from there on."""

    def __init__(self, view: SpectralView, batch_size: int | None, seed: int, kernels=None):
        size = batch_size or view.default_batch_size
        check_batch_size(size, view.n_rows)
        self.view, self.seed, self.rows, self.epoch = view, seed, view.rows(size, seed), 0
        self._sweep, self._saga_epoch = kernels or (sweep, saga_epoch)

    @property
    def params(self) -> Params:
        """Coefficients and intercepts in float64."""
        return self.view.from_columns(self.v, self.memory)

    def put(self, params: Params) -> None:
        """Go to some parameters."""
        self.v = self.view.to_columns(params)
        self.memory = self.rows.start_memory(self.v)
        self.look()

    def look(self) -> None:
        """Take a pass at the columns for table, gradient, curvature and objective."""
        self.table, self.mean_gradient, loss, self.bend = self._sweep(self.rows, self.v)
        self.gradient = np.asarray(self.mean_gradient, np.float64)
        self.objective = self.view.objective(np.asarray(loss, np.float64), self.params.coef)

    def keep(self) -> None:
        """Remember the columns: the next epoch gives their buffers away."""
        self.kept = jax.tree.map(np.array, (self.v, self.memory))

    def visit_rows(self, step: np.ndarray, metric: Metric, sampling: str = "partition") -> None:
        """Visit about every row once, in an order drawn for this epoch; fits that stay have steps (fit,) of length 0.

        "partition": blocks of the fixed random partition, independently and uniformly. "shuffle": every block once, in
        random order. "subsets": independent uniform subsets of rows.
        """
        rows, rng = self.rows, np.random.default_rng([self.seed, 2, self.epoch])
        n, size = rows.n_blocks, rows.batch_size
        if sampling == "partition":
            order = rng.integers(0, n, n)
        elif sampling == "shuffle":
            order = rng.permutation(n)
        else:
            order = np.stack([rng.choice(rows.n_rows, size, replace=False, shuffle=False) for _ in range(n)])
        self.v, self.table, self.mean_gradient, self.memory = self._saga_epoch(
            rows, self.v, self.table, self.mean_gradient, self.memory, metric, step.astype(self.view.dtype),
            order.astype(np.int32), subsets=sampling == "subsets",
        )  # fmt: skip
        self.epoch += 1


class Smoothness(NamedTuple):
    """Certified smoothness in a metric, per neuron."""

    full: np.ndarray
    block: np.ndarray
    row: np.ndarray


def certify_smoothness(view: SpectralView, rows: Rows, v, radius, metric, n_steps, failure_probability, seed, number):
    """Bound the smoothness of every neuron's blocks where eta stays within ``radius`` of its value at v.

    In ``metric``, with the ridge inside; ``full`` is the mean over blocks of their bounds, itself a bound because the
    largest eigenvalue is convex. Any metric is allowed; the nearer its curvature to the one at v, the better the
    constants.
    """
    start = view.random_column(seed, number)
    spectra = block_spectra(rows, v, radius.astype(view.dtype), metric, start, n_steps=n_steps)
    alpha, beta = (np.moveaxis(np.asarray(a), 1, 0) for a in spectra[:2])
    share = failure_probability / (rows.n_blocks * view.n_neurons)
    block = bound_largest_eigenvalue(alpha, beta, view.basis.rank + 1, share)
    row = np.asarray(spectra.row, np.float64) * (1 + 1e-5)
    return Smoothness(block.mean(axis=0), block.max(axis=0), np.maximum(row, block.mean(axis=0)))


class Walk(Position):
    """Some fits on their way with SAGA, and the step with its certificate."""

    def __init__(self, solver, view: SpectralView, params: Params, seed: int):
        super().__init__(view, solver.batch_size, seed)
        self.solver, n = solver, view.n_neurons
        self.put(params)
        bend = np.asarray(self.bend)
        self.metric: Metric = view.metric(self.rows, bend[-1], bend[:-1])
        self.curvature = bend[-1]  # where the walk began
        self.radius = np.full(n, solver.radius if solver.certificate == "anchored" else np.inf)
        self.step, self.L, self.L_max, self.L_b = np.zeros((4, n))
        self.left, self.n_certificates = np.zeros(n, int), 0
        self.keep()
        self.anchor = self.kept[0]
        self._certify(np.ones(n, bool))

    def visit(self, active: np.ndarray, n_epochs: int) -> None:
        """Go some epochs with the fits ``active``, bool (fit,), undo what went wrong, and certify anew who left."""
        for _ in range(n_epochs):
            self.visit_rows(np.where(active, self.step, 0.0), self.metric, self.solver.sampling)
        before = self.objective
        self.look()
        moved = np.asarray(largest_change(self.rows, np.asarray(self.v) - np.asarray(self.anchor)))
        slack = 8 * np.finfo(self.view.dtype).eps * np.abs(before)
        outside = ~(moved <= self.radius)
        undo = active & (~np.isfinite(self.objective) | (outside & (self.objective > before + slack)))
        self.left = self.left + (outside & active)
        renew = active & outside & np.isfinite(self.radius)
        if undo.any():
            now = self.v, self.memory
            self.v, self.memory = jax.tree.map(lambda new, old: np.where(undo, old, new), now, self.kept)
            self.look()
            renew |= undo & np.isfinite(self.radius)
            self.radius = np.where(undo, 1.5 * self.radius, self.radius)
        self.keep()
        if renew.any():
            self._certify(renew)

    def _certify(self, renew: np.ndarray) -> None:
        """Certify smoothness around the columns for the neurons to renew."""
        solver, rows = self.solver, self.rows
        self.n_certificates += 1
        number = self.n_certificates
        share = solver.failure_probability / (number * (number + 1))  # adds up to the whole over all certificates
        fresh = certify_smoothness(
            self.view, rows, self.v, self.radius, self.metric, solver.lanczos_steps, share, self.seed, 2 * number
        )
        if solver.sampling == "subsets":
            L_b = batch_smoothness(fresh.full, fresh.row, rows.n_rows, rows.batch_size)
            step = subset_step(L_b, fresh.row, 0.0, rows.n_rows, rows.batch_size)
        else:
            L_b = fresh.block
            step = partition_step(L_b, 0.0, rows.n_rows, rows.batch_size)
        step = np.minimum(solver.step_scale * step, solver.step_limit)
        found = {"anchor": self.kept[0], "step": step, "L": fresh.full, "L_max": fresh.row, "L_b": L_b}
        for name, new in found.items():
            setattr(self, name, np.where(renew, new, getattr(self, name)))
