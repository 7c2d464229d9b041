"""Fits in the spectral basis of their features, their walks in epochs of SAGA, and the certificates of their steps.

What is fitted to the rows is another matter; docs/theory/spectral_basis.md has the mathematics.
"""

import math
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import DTypeLike

from ..bounds import (
    batch_smoothness,
    bound_largest_eigenvalue,
    check_batch_size,
    partition_step,
    random_start,
    subset_step,
)
from ..engine.metric import SpectralBasis, basis_of
from ..engine.problem import Params
from ..engine.tiles import over_tiles
from ..penalties import Penalty
from .spectral_rows import ADMM_RHO, Metric, Rows, Splitting, block_spectra, largest_change, saga_epoch, sweep

SAMPLINGS = ("partition", "subsets", "shuffle")


class SpectralView:
    """Data, as in :class:`glmfit.engine.host.HostRows`, and penalty of some fits; ``dtype`` is that of device rows."""

    def __init__(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        observation: Any,
        penalty: Penalty,
        basis: SpectralBasis,
        dtype: DTypeLike = np.float32,
        neuron: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        rows: np.ndarray | None = None,
        offset: np.ndarray | None = None,
    ):
        self.X, self.Y, self.observation, self.penalty, self.basis = X, Y, observation, penalty, basis
        self.n_rows, self.n_features = X.shape
        self.dtype, self.neuron = np.dtype(dtype), np.arange(Y.shape[1]) if neuron is None else neuron
        self.n_neurons, self.weights, self.offset = len(self.neuron), weights, offset
        self._set = np.zeros(1, int) if rows is None else rows

    @classmethod
    def of(cls, problem) -> Self:
        """Take all fits of a problem."""
        given = problem.rows_of(np.arange(problem.n_neurons))
        own, _ = given.pop("own"), given.pop("scale")
        if own is not None:
            given |= {"weights": problem.row_weights[:], "rows": np.arange(problem.n_neurons)}
        penalty, basis = problem.penalty, problem.basis
        if getattr(penalty, "groups", None) is not None:
            basis = basis_of(problem.X, problem.weights, penalty, grouped=True)
        return cls(**given, observation=problem.observation, penalty=penalty, basis=basis, dtype=problem.dtype)

    @property
    def default_batch_size(self) -> int:
        """Default number of rows per block: 1/50 of the recording, between 256 and 4096."""
        return int(min(self.n_rows, max(256, min(4096, self.n_rows // 50))))

    def rows(self, batch_size: int, seed: int) -> Rows:
        """Return whitened rows on the device, permuted by ``seed``, in blocks of about ``batch_size``."""
        n_blocks = -(-self.n_rows // batch_size)
        size = -(-self.n_rows // n_blocks)
        known = np.zeros(1, int) if self.offset is not None and self.offset.shape[1] == 1 else self.neuron
        n_offsets = 0 if self.offset is None else len(known)
        widths = self.n_features + 1, len(self.neuron), len(self._set), n_offsets
        order = np.random.default_rng(int(seed)).permutation(self.n_rows)
        d, basis = self.n_features, self.basis
        Z, Y, weight, offset = (_aligned_empty((n_blocks * size, n), self.dtype) for n in widths)
        # Products in single precision if conditioning makes them harmless.
        single = self.X.dtype == self.dtype == np.float32 and basis.tame
        mean, whiten = (a.astype(np.float32 if single else np.float64) for a in (basis.mean, basis.whiten))

        def tile(rows):
            chosen = order[rows]
            Z[rows, :d] = (self.X[chosen] - mean) @ whiten
            Z[rows, d] = 1
            Y[rows] = self.Y[np.ix_(chosen, self.neuron)]
            weight[rows] = 1 if self.weights is None else self.weights[np.ix_(chosen, self._set)]
            if self.offset is not None:
                offset[rows] = self.offset[np.ix_(chosen, known)]

        list(over_tiles(tile, self.n_rows))
        free = slice(self.n_rows, n_blocks * size)
        # Copies of the first row, of weight 0: at a row of zeros the loss may be infinite.
        Z[free], Y[free], weight[free] = Z[0], Y[0], 0
        offset[free] = 0
        Z, Y, weight, offset = (
            jax.device_put(a.reshape(n_blocks, size, n)) if n else None
            for a, n in zip((Z, Y, weight, offset), widths, strict=True)
        )
        ridge = jax.device_put(self._column_ridge().astype(self.dtype))
        known = self.penalty, self._splitting(), self.observation, self.n_rows, n_blocks
        return Rows(Z, Y, weight, offset, ridge, *known)

    def _column_ridge(self) -> np.ndarray:
        ridge = np.zeros((self.n_features + 1, self.n_neurons))
        if self.penalty.rotation_invariant:
            variance = self.basis.variance
            inverse = np.where(variance > 0, 1 / np.where(variance > 0, variance, 1.0), 0.0)
            # Below the largest number of single precision, and strong enough to hold a column at 0.
            strength = np.asarray(self.penalty.ridge_strength, np.float64)
            strength = strength.max(axis=0) if strength.ndim == 2 else strength  # that of a feature of unit 1
            ridge[:-1] = np.minimum(strength * inverse[:, None], 1e30)
        return ridge

    def _splitting(self) -> Splitting | None:
        if self.penalty.rotation_invariant:
            return None
        basis = self.basis
        expand = basis.scale[:, None] * basis.whiten
        gain = expand / (1 + ADMM_RHO * np.sum(expand**2, axis=0))  # B'B is diagonal in this basis
        constants = (expand, basis.unwhiten / basis.scale, gain, ADMM_RHO * gain @ expand.T, basis.scale)
        return Splitting(*(jax.device_put(c.astype(self.dtype)) for c in constants))

    def objective(self, loss, coef) -> np.ndarray:
        """F of every fit, (fit,), given its mean loss."""
        return loss + self.penalty.value(coef)

    def to_columns(self, params: Params) -> np.ndarray:
        """Whitened coordinates of parameters, intercept last, (column, neuron)."""
        intercept = params.intercept + self.basis.mean @ params.coef
        return np.concatenate([self.basis.unwhiten @ params.coef, intercept[None]]).astype(self.dtype)

    def from_columns(self, v, memory=None) -> Params:
        """Parameters of whitened coordinates, in float64; exact zeros come from the proximal step's state."""
        v = np.asarray(v, np.float64)
        if memory is None:
            coef = self.basis.whiten @ v[:-1]
        else:
            coef = np.asarray(memory.z, np.float64) / self.basis.scale[:, None]
        return Params(coef, v[-1] - self.basis.mean @ coef)

    def metric(self, rows: Rows, mean_curvature, bend=None) -> Metric:
        """Metric of mean curvature (neuron,) and, if given, of rows times curvature averaged (column - 1, neuron)."""
        # Below a thousandth of a spike in the whole recording a neuron is silent.
        curvature = np.maximum(np.asarray(mean_curvature, np.float64), 1e-3 / self.n_rows)
        scale = 1 / (curvature + np.asarray(rows.ridge))
        centre = np.zeros_like(scale[:-1]) if bend is None else np.asarray(bend, np.float64) / curvature
        return Metric(scale.astype(self.dtype), centre.astype(self.dtype))

    def random_column(self, seed: int, number: int) -> np.ndarray:
        """Random unit start in the kept directions and the intercept, (column, 1); ``number`` is the certificate's."""
        start = np.zeros((self.n_features + 1, 1), self.dtype)
        kept = np.r_[: self.basis.rank, self.n_features]
        start[kept] = random_start(np.random.default_rng([int(seed), 1, int(number)]), len(kept), self.dtype)
        return start


class Position:
    """Position of some fits: columns, results of the last pass over the rows there, and epochs of SAGA from there."""

    def __init__(self, view: SpectralView, batch_size: int | None, seed: int, kernels=None):
        size = batch_size or view.default_batch_size
        check_batch_size(size, view.n_rows)
        self.view, self.seed, self.rows, self.epoch = view, seed, view.rows(size, seed), 0
        self._sweep, self._saga_epoch = kernels or (sweep, saga_epoch)

    @property
    def params(self) -> Params:
        """Coefficients and intercepts in float64."""
        return self.view.from_columns(self.v, self.memory)

    def put(self, params: Params) -> np.ndarray | float:
        """Move to some parameters, and return F there."""
        self.v = self.view.to_columns(params)
        self.memory = self.rows.start_memory(self.v)
        self.look()
        return self.objective

    def look(self) -> None:
        """Evaluate table, gradient, curvature and objective at the columns in one pass."""
        self.table, self.mean_gradient, loss, self.bend = self._sweep(self.rows, self.v)
        self.gradient = np.asarray(self.mean_gradient, np.float64)
        self.objective = self.view.objective(np.asarray(loss, np.float64), self.params.coef)

    def keep(self) -> None:
        """Copy the columns, because the next epoch donates their buffers."""
        self.kept = jax.tree.map(np.array, (self.v, self.memory))

    def visit_rows(self, step: np.ndarray, metric: Metric, sampling: str = "partition") -> None:
        """Visit about every row once, in an order drawn for this epoch; inactive fits have steps (fit,) of 0."""
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


def certify_smoothness(view: SpectralView, rows: Rows, v, radius, metric, n_steps, failure_probability, seed, number):
    """Bound the smoothness of every neuron's blocks, ridge included, if eta stays within ``radius`` of its value at v.

    Any metric will do; the closer its curvature to the one at v, the better the constants. Returns those of all rows
    together, of the worst block and of the worst row, (neuron,) each.
    """
    start = view.random_column(seed, number)
    *spectra, row = block_spectra(rows, v, radius.astype(view.dtype), metric, start, n_steps=n_steps)
    alpha, beta = (np.moveaxis(np.asarray(a), 1, 0) for a in spectra)
    share = failure_probability / (rows.n_blocks * view.n_neurons)
    block = bound_largest_eigenvalue(alpha, beta, view.basis.rank + 1, share)
    row = np.asarray(row, np.float64) * (1 + 1e-5)
    full = block.mean(axis=0)  # a bound of the whole: the largest eigenvalue is convex
    return full, block.max(axis=0), np.maximum(row, full)


class Walk(Position):
    """Fits that SAGA is running, and their steps with certificates."""

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
        """Run some epochs on the fits ``active``, bool (fit,), undo failures, and recertify those out of radius."""
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
        solver, rows, number = self.solver, self.rows, self.n_certificates + 1
        self.n_certificates = number
        share = solver.failure_probability / (number * (number + 1))  # adds up to the whole over all certificates
        L, L_b, L_max = certify_smoothness(
            self.view, rows, self.v, self.radius, self.metric, solver.lanczos_steps, share, self.seed, 2 * number
        )
        if solver.sampling == "subsets":
            L_b = batch_smoothness(L, L_max, rows.n_rows, rows.batch_size)
            step = subset_step(L_b, L_max, 0.0, rows.n_rows, rows.batch_size)
        else:
            step = partition_step(L_b, 0.0, rows.n_rows, rows.batch_size)
        step = np.minimum(solver.step_scale * step, solver.step_limit)
        found = {"anchor": self.kept[0], "step": step, "L": L, "L_max": L_max, "L_b": L_b}
        for name, new in found.items():
            setattr(self, name, np.where(renew, new, getattr(self, name)))


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uninitialised array that starts on a cache line, as XLA requires to use an array without copying."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(n_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes].view(dtype).reshape(shape)
