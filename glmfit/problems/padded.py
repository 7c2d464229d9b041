"""A population GLM in arrays with room to spare, so that problems of similar size share compiled programs.

Why nothing else changes: docs/theory/saga.md, "Room to spare".
"""

from __future__ import annotations

from functools import cached_property

import jax
import numpy as np

from .._compile import compiled
from ._blocks import Used
from ._bucket import Slots, bucket
from ._population import PopulationProblem, Smoothness
from ._rows import BlockSpectra, Rows, Sweep, Track, start_track, sure_step, sweep
from ._spectral_view import Shapes
from .base import Evaluation, Params


class PaddedProblem(PopulationProblem):
    """A population GLM with silent neurons and empty blocks added, up to the shapes of its bucket.

    Parameters
    ----------
    plain : PopulationProblem
        What is to be fitted, in memory and on one device. Everything computed on the host is computed by it.
    batch_size : int, optional
        Rows of a block, chosen by the bucket by default.

    Attributes
    ----------
    bucket : Bucket
        Sizes of the arrays on the device.

    Notes
    -----
    Kernels visit the blocks in use only, so room costs addresses and no time. Silent neurons come last, and are ready
    from the start. Sampling by subsets of rows draws from all places of a block, and is not for these problems.
    """

    def __init__(self, plain: PopulationProblem, batch_size: int | None = None):
        self.bucket = bucket(plain.n_rows, plain.n_neurons, batch_size)
        self._missing = self.bucket.neurons - plain.n_neurons
        penalty = jax.tree.map(lambda a: self._append(a, mode="edge") if np.ndim(a) else a, plain.penalty)
        super().__init__(plain.X, plain.Y, plain.observation, penalty, plain.weights, plain.dtype, plain.offset)
        self.plain, self.n_neurons = plain, self.bucket.neurons

    @property
    def subject(self) -> str:
        """Neurons there are."""
        return self.plain.subject

    def _append(self, array, **how) -> np.ndarray:
        """Array (..., neuron) with entries for the silent neurons, zeros unless told how."""
        array = np.asarray(array)
        return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, self._missing)], **how)

    def _without(self, params: Params) -> Params:
        """Parameters of the neurons there are."""
        return Params(*(a[..., : self.plain.n_neurons] for a in params))

    # ---------------------------------------------------------------- layout

    @property
    def share(self) -> int:
        """Rows of the recording in each block in use, fewer in the last."""
        return self._slots(self.bucket.batch_size).share

    @property
    def default_batch_size(self) -> int:
        """That of the bucket."""
        return min(self.n_rows, self.bucket.batch_size)

    @property
    def basis(self):
        """Spectral basis of the design."""
        return self.plain.basis

    def _slots(self, batch_size: int) -> Slots:
        used = -(-self.n_rows // self.bucket.batch_size)
        return Slots(self.bucket.n_blocks, self.bucket.batch_size, used, -(-self.n_rows // used))

    def _extent(self, slots: Slots) -> Used:
        return Used(np.int32(self.n_rows), np.int32(slots.used))

    def _width(self, n_columns: int) -> int:
        return n_columns if n_columns <= 1 else self.n_neurons

    # ---------------------------------------------------------------- on the host, by the plain problem

    @cached_property
    def mean_count(self) -> np.ndarray:
        """Weighted mean count per bin, (neuron,), 0 for neurons added."""
        return self._append(self.plain.mean_count)

    @cached_property
    def _null(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        silent = np.zeros(self._missing)
        eta = self.observation.intercept(silent) - (0.0 if self.offset is None else np.max(self.offset))
        added = eta, self.observation.loss(silent, eta), self.observation.curvature(silent, eta)
        return tuple(np.concatenate(pair) for pair in zip(self.plain._null, added, strict=True))

    @property
    def saturated_loss(self) -> np.ndarray:
        """Mean loss of the model that predicts every count exactly, (neuron,), 0 for neurons added."""
        return self._append(self.plain.saturated_loss)

    def evaluate_with_dual(self, params: Params) -> tuple[Evaluation, np.ndarray]:
        """`evaluate`, and a bound by duality, (neuron,); zeros for neurons added."""
        evaluation, bound = self.plain.evaluate_with_dual(self._without(params))
        return Evaluation(*map(self._append, evaluation)), self._append(bound)

    def evaluate(self, params: Params, dtype=np.float64) -> Evaluation:
        """Compute objective and gradient of the smooth part on the data as given; zeros for neurons added."""
        return Evaluation(*map(self._append, self.plain.evaluate(self._without(params), dtype)))

    def select(self, neuron: int) -> PopulationProblem:
        """Return the problem of one neuron, sharing what is known of the design."""
        return self.plain.select(neuron)

    def newton_is_cheap(self, params: Params, left, final: bool, passes: float) -> bool:
        """Whether the neurons left are few, or their Hessians not much work."""
        return self.plain.newton_is_cheap(self._without(params), left[: self.plain.n_neurons], final, passes)

    # ---------------------------------------------------------------- passes of the solver

    def calls_of_a_fit(self, shapes: Shapes, n_steps: int) -> list:
        """List the calls of kernels that a fit will make, from guaranteed descent to certificate, in that order."""
        rows, v = shapes.rows, shapes.columns
        (_, (*others, track), _), _, *rest = super().calls_of_a_fit(shapes, n_steps)
        step = sure_step, (*others, track._replace(along=rows.Y)), {}
        return [(start_track, (rows, v), {}), step, (sweep, (rows, v, rows.Y), {}), *rest]

    @staticmethod
    def sweep(rows: Rows, v, table=None) -> Sweep:
        """Loss, derivatives, gradient and mean curvature at v, in one pass; ``table``, that has served, is gone."""
        return compiled(sweep)(rows, v) if table is None else compiled(sweep)(rows, v, table)

    def _start_track(self, rows: Rows, v) -> Track:
        return compiled(start_track)(rows, v)

    def _table_of(self, track: Track):
        return track.eta

    def visit(self, kernel, rows: Rows, v, table, mean_gradient, *arguments, **static) -> tuple:
        """Run the kernel of an epoch; the order of the blocks is filled up with what is not looked at."""
        *others, order = arguments
        room = np.zeros(len(rows.Z), order.dtype)
        room[: len(order)] = order
        return super().visit(kernel, rows, v, table, mean_gradient, *others, room, **static)

    def certify_smoothness(self, *arguments) -> Smoothness:
        """Bound the smoothness of every neuron's blocks; 1 for neurons added, which take no steps."""
        metric, *facts = super().certify_smoothness(*arguments)
        return Smoothness(metric, *(self._append(a, constant_values=1.0) for a in facts))

    def _block_spectra(self, rows: Rows, v, radius, metric, start, n_steps) -> BlockSpectra:
        spectra = map(np.asarray, super()._block_spectra(rows, v, radius, metric, start, n_steps))
        alpha, beta, row = (a[..., : self.plain.n_neurons] for a in spectra)
        return BlockSpectra(alpha[: rows.n_blocks], beta[: rows.n_blocks], row)
