"""A population GLM of a recording that does not fit in memory: rows are read, whitened and let go, portion by portion.

Theory: docs/theory/streaming.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import jax
import numpy as np
from numpy.typing import DTypeLike

from .._compile import jit
from ..bounds import lanczos_step, start_lanczos
from ..observations import Observation
from ..penalties import Penalty
from ._chunks import aligned_empty, over_chunks
from ._population import PopulationProblem
from ._portions import lay_out, read_ahead
from ._rows import (
    BlockSpectra,
    HessianSpectrum,
    Rows,
    Sweep,
    block_spectra,
    hessian_product,
    largest_change,
    sweep,
)
from ._scratch import mapped_zeros


class StreamedRows:
    """The rows of a `StreamedProblem`: portions of whitened blocks as they are asked for, and a solver's table.

    Attributes
    ----------
    layout : Layout
        Which rows make up which block.
    table : numpy.ndarray
        (block, row, neuron), in memory or mapped to a file that is gone with it.
    """

    def __init__(self, problem: StreamedProblem, batch_size: int, seed: int):
        self.problem, self.seed = problem, seed
        blocks = problem.max_portion_bytes // (problem.row_bytes * batch_size)
        self.layout = lay_out(problem.n_rows, problem.run_rows, batch_size, seed, max(1, int(min(blocks, 8))))
        self.n_blocks, self.n_rows = self.layout.n_blocks, problem.n_rows
        self.batch_size = problem.placement.block_rows(self.layout.block_rows)
        self.ridge = problem._column_ridge().astype(problem.dtype)
        self._fixed = {
            "ridge": jax.device_put(self.ridge),
            "penalty": problem.penalty,
            "splitting": problem._splitting(),
            "observation": problem.observation,
            "n_rows": problem.n_rows,
            "n_blocks": self.n_blocks,
        }
        single = problem.X.dtype == problem.dtype == np.float32 and problem.basis.tame
        self._precision = np.dtype(np.float32 if single else np.float64)

    @cached_property
    def table(self) -> np.ndarray:
        """One array that every pass overwrites."""
        shape = self.n_blocks, self.batch_size, self.problem.n_neurons
        if self.table_bytes <= self.problem.max_table_bytes:
            return np.zeros(shape, self.problem.dtype)
        return mapped_zeros(shape, self.problem.dtype)

    @property
    def table_bytes(self) -> int:
        """Size of the table."""
        return self.n_blocks * self.batch_size * self.problem.n_neurons * self.problem.dtype.itemsize

    @property
    def portion_bytes(self) -> int:
        """Size of the whitened blocks of a portion and of what they are made from."""
        return self.layout.portion * self.batch_size * self.problem.row_bytes

    def start_memory(self, v):
        """Warm start of the proximal step at columns v."""
        return next(self.portions([[]])).start_memory(v)

    def portions(self, requests) -> Iterator[Rows]:
        """Read the blocks of each request, at most a portion, in order and ahead of need."""
        return read_ahead(self._read, requests)

    def whole(self) -> Iterator[tuple[slice, Rows]]:
        """All blocks once, portion by portion: their numbers, and the rows."""
        step = self.layout.portion
        places = [slice(i, i + step) for i in range(0, self.n_blocks, step)]
        yield from zip(places, self.portions(range(p.start, p.stop) for p in places), strict=True)

    def _read(self, blocks) -> Rows:
        p, (portion, size) = self.problem, (self.layout.portion, self.batch_size)
        n_weights = 1 if p.row_weights is None else p.row_weights.shape[1]
        widths = p.n_features + 1, p.Y.shape[1], n_weights, 0 if p.offset is None else p.offset.shape[1]
        arrays = [aligned_empty((portion, size, n), p.dtype) for n in widths]
        for k, block in enumerate(blocks):
            self._fill(block, *(a[k] for a in arrays))
        for a in arrays:
            a[len(blocks) :] = 0
        Z, Y, weight, offset = (p.placement.put(a) if n else None for a, n in zip(arrays, widths, strict=True))
        return Rows(Z=Z, Y=Y, weight=weight, offset=offset, **self._fixed)

    def _fill(self, block: int, Z, Y, weight, offset) -> None:
        p, d = self.problem, self.problem.n_features
        raw = np.zeros((len(Z), d), self._precision)
        filled = np.zeros(len(Z), bool)
        Y[:], weight[:], offset[:] = 0, 0, 0
        for rows, place in self.layout.pieces(block):
            np.subtract(p.X[rows], p.basis.mean, out=raw[place], casting="same_kind")
            Y[place] = p.Y[rows]
            weight[place] = 1 if p.row_weights is None else p.row_weights[rows]
            if offset.size:
                offset[place] = p.offset[rows]
            filled[place] = True
        Z[:, :d] = raw @ self._whiten
        Z[:, d] = filled

    @cached_property
    def _whiten(self) -> np.ndarray:
        return self.problem.basis.whiten.astype(self._precision)


class StreamedProblem(PopulationProblem):
    """A population GLM whose rows are read as they are needed, again in every pass.

    Parameters
    ----------
    X, Y :
        Features (time, feature) and counts (time, neuron): what gives rows for a slice or for increasing indices, and
        has ``shape``, ``dtype`` and a length. From several threads.
    observation, penalty, weights, dtype, offset, devices :
        As in :class:`PopulationProblem`.
    run_rows : int
        Neighbouring rows that are read at once.
    max_table_bytes : float
        A solver's table larger than that is mapped to a temporary file.
    max_portion_bytes : float
        Of the blocks that are read at once; one block at least, and runs are cut to it.

    Notes
    -----
    Objective, bounds and certificates are those of :class:`PopulationProblem`; a block is a fixed random choice of runs
    of neighbouring rows instead of single rows. Memory: some portions of blocks, and the table where it is small
    enough; see :attr:`peak_bytes`.
    """

    in_memory: ClassVar[bool] = False

    def __init__(
        self,
        X: Any,
        Y: Any,
        observation: Observation,
        penalty: Penalty,
        weights: np.ndarray | None = None,
        dtype: DTypeLike = np.float32,
        offset: np.ndarray | None = None,
        devices: Sequence[jax.Device] | None = None,
        run_rows: int = 256,
        max_table_bytes: float = np.inf,
        max_portion_bytes: float = 1e12,
    ):
        super().__init__(X, Y, observation, penalty, weights, dtype, offset, devices)
        self.max_table_bytes, self.max_portion_bytes, self._sample_bytes = max_table_bytes, max_portion_bytes, 0
        self.run_rows = max(16, min(run_rows, int(max_portion_bytes // self.row_bytes)))

    @property
    def row_bytes(self) -> int:
        """Size of a row whitened, and of what it is made from."""
        return (2 * self.n_features + self.n_neurons + 2) * self.dtype.itemsize

    @property
    def n_counted(self) -> int:
        """Rows of positive weight."""
        return self.n_rows if self.weights is None else int(np.count_nonzero(self.weights))

    @property
    def default_batch_size(self) -> int:
        """As in memory, a run at least and a portion at most."""
        most = max(self.run_rows, int(min(self.max_portion_bytes // self.row_bytes, self.n_rows)))
        return min(max(super().default_batch_size, self.run_rows), most, self.n_rows)

    def _build_rows(self, batch_size: int, seed: int) -> StreamedRows:
        return StreamedRows(self, batch_size, seed)

    @property
    def peak_bytes(self) -> int:
        """Bytes of rows and table held at a time: of the sample a fit begins with, or of portions and table."""
        if self._kept_rows is None:
            return self._sample_bytes
        rows = self._kept_rows[1]
        in_memory = rows.table_bytes if rows.table_bytes <= self.max_table_bytes else 0
        return max(self._sample_bytes, in_memory + 4 * rows.portion_bytes)

    @cached_property
    def mean_count(self) -> np.ndarray:
        """Weighted mean count per bin, (neuron,)."""

        def chunk(rows):
            y = np.asarray(self.Y[rows], np.float64)
            return y.sum(axis=0) if self.weights is None else self.weights[rows] @ y

        return sum(over_chunks(chunk, self.n_rows)) / self.n_rows

    @property
    def standard(self):
        """Shift and scale of the coordinates in which Hessians are formed: the basis has them."""
        return self.basis.mean, self.basis.deviation

    def sample(self, n_rows: int, seed: int) -> PopulationProblem | None:
        """Return the problem of some runs drawn at random, in memory, at most ``n_rows`` rows; None if too few."""
        runs = np.arange(-(-self.n_rows // self.run_rows))
        if self.weights is not None:
            runs = runs[np.add.reduceat(self.weights, runs * self.run_rows) > 0]
        wanted = min(len(runs), n_rows // self.run_rows)
        if wanted * self.run_rows < 2 * self.n_features:
            return None
        runs = np.sort(np.random.default_rng([int(seed), 4]).choice(runs, wanted, replace=False))
        slices = [slice(r * self.run_rows, min((r + 1) * self.run_rows, self.n_rows)) for r in runs.tolist()]

        def gather(a):
            return None if a is None else np.concatenate([a[rows] for rows in slices])

        X, Y, weights, offset = (gather(a) for a in (self.X, self.Y, self.weights, self.offset))
        # Features as they come and whitened, and what a fit keeps of the size of the counts.
        self._sample_bytes = 2 * X.nbytes + 8 * Y.nbytes
        if weights is not None and not weights.all():
            X, Y, offset, weights = (a if a is None else a[weights > 0] for a in (X, Y, offset, weights))
            if len(X) < 2 * self.n_features:
                return None
        devices = self.placement.devices
        return PopulationProblem(X, Y, self.observation, self.penalty, weights, self.dtype, offset, devices)

    # ---------------------------------------------------------------- passes of the solver

    def visit(self, kernel, rows: StreamedRows, v, table, mean_gradient, memory, metric, step, order, **static):
        """Run an epoch portion by portion; a block drawn twice in a portion is read once."""
        size = rows.layout.portion
        draws = [np.unique(order[i : i + size], return_inverse=True) for i in range(0, len(order), size)]
        for (blocks, place), part in zip(draws, rows.portions([b.tolist() for b, _ in draws]), strict=True):
            own = np.zeros((size, *table.shape[1:]), table.dtype)
            own[: len(blocks)] = table[blocks]
            v, own, mean_gradient, memory = kernel(
                part, v, own, mean_gradient, memory, metric, step, place.astype(np.int32), **static
            )
            table[blocks] = np.asarray(own)[: len(blocks)]
        return v, table, mean_gradient, memory

    def sweep(self, rows: StreamedRows, v) -> Sweep:
        """Loss, derivatives, gradient and mean curvature at v, in one pass; the table is overwritten."""
        return self.sweep_and_move(rows, v, None)[0]

    def sweep_and_move(self, rows: StreamedRows, v, anchor) -> tuple[Sweep, np.ndarray | None]:
        """Take a pass at v, and find how far eta has moved from the anchor, in one reading."""
        change = None if anchor is None else np.asarray(v) - np.asarray(anchor)
        totals, moved = [0.0, 0.0, 0.0], np.zeros(self.n_neurons, self.dtype)
        for place, part in rows.whole():
            pass_ = sweep(part, v)
            if change is not None:
                moved = np.maximum(moved, np.asarray(largest_change(part, change)))
            rows.table[place] = np.asarray(pass_.table)
            totals = [t + np.asarray(a, np.float64) for t, a in zip(totals, pass_[1:], strict=True)]
        gradient, loss, bend = totals
        pass_ = Sweep(rows.table, gradient.astype(self.dtype), loss, bend.astype(self.dtype))
        return pass_, None if anchor is None else moved

    def move(self, rows: StreamedRows, v, anchor) -> np.ndarray:
        """``max_t |eta_t - eta_t at the anchor|``, (neuron,)."""
        change = np.asarray(v) - np.asarray(anchor)
        return np.max([np.asarray(largest_change(part, change)) for _, part in rows.whole()], axis=0)

    def descend_surely(self, rows: StreamedRows, v, memory, radius: float, max_steps: int):
        """Start where asked, or at the null model where that is better: steps here would take two passes each."""
        pass_ = self.sweep(rows, v)
        worse = ~(self.objective(v, memory, pass_) <= self.null_objective)  # or not a number
        if worse.any():
            null = self.to_columns(self.null_params())
            v = np.where(worse, null, v)
            memory = jax.tree.map(lambda a, b: np.where(worse, b, a), memory, rows.start_memory(null))
            pass_ = self.sweep(rows, v)
        return v, memory, pass_, self.metric_at(rows, pass_), 0

    def _block_spectra(self, rows: StreamedRows, v, radius, metric, start, n_steps) -> BlockSpectra:
        parts = []
        for _, part in rows.whole():
            spectra = block_spectra(part, v, radius, metric, start, n_steps=n_steps)
            parts.append(BlockSpectra(*(np.asarray(a) for a in spectra)))
        alpha, beta = (np.concatenate([getattr(p, name) for p in parts]) for name in ("alpha", "beta"))
        return BlockSpectra(alpha, beta, np.max([p.row for p in parts], axis=0))

    def _hessian_spectrum(self, rows: StreamedRows, v, metric, start, n_steps) -> HessianSpectrum:
        state = start_lanczos(np.broadcast_to(start, v.shape).astype(self.dtype), n_steps)
        for j in range(n_steps):
            x = metric.root(np.asarray(state.v))
            parts = [hessian_product(part, v, x) for _, part in rows.whole()]
            product = np.sum([np.asarray(p, np.float64) for p, _ in parts], axis=0).astype(self.dtype)
            longest = max(float(far) for _, far in parts)
            state = _one_step(j, state, metric.root_transposed(product + rows.ridge * x))
        return HessianSpectrum(state.alpha, state.beta, metric.bound_leverage(longest))

    # ---------------------------------------------------------------- one neuron

    def select(self, neuron: int) -> PopulationProblem:
        """Return the problem of one neuron, sharing what is known of the design; its counts are read into memory."""
        y = np.concatenate(list(over_chunks(lambda rows: np.asarray(self.Y[rows])[:, [neuron]], self.n_rows)))
        penalty = jax.tree.map(lambda a: a[..., neuron : neuron + 1] if np.ndim(a) else a, self.penalty)
        offset = None if self.offset is None else self.offset[:, [neuron if self.offset.shape[1] > 1 else 0]]
        one = StreamedProblem(
            self.X,
            y,
            self.observation,
            penalty,
            self.weights,
            self.dtype,
            offset,
            self.placement.devices,
            self.run_rows,
            self.max_table_bytes,
            self.max_portion_bytes,
        )
        one.__dict__["design"] = self.design
        return one


@jit
def _one_step(j, state, product):
    return lanczos_step(j, state, product)
