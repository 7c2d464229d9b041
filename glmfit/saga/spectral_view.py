"""The spectral view of fits: rows laid out on the device in whitened coordinates, and the way back.

What is fitted to the rows is another matter; docs/theory/spectral_basis.md has the mathematics.
"""

from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike

from ..bounds import random_start
from ..engine.chunks import aligned_empty, over_chunks
from ..engine.metric import SpectralBasis
from ..engine.problem import Params
from ..penalties import Penalty
from .spectral_rows import ADMM_RHO, Metric, Rows, Splitting


class SpectralView:
    """Data and penalty of some fits, seen in the spectral basis of their features.

    X, Y, observation, neuron, weights, rows and offset are as in :class:`glmfit.engine.host.HostRows`; ``dtype`` is the
    precision of the rows on the device.
    """

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

    @property
    def default_batch_size(self) -> int:
        """Rows per block when nobody names a number: 1/50 of the recording, between 256 and 4096."""
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
        Z, Y, weight, offset = (aligned_empty((n_blocks * size, n), self.dtype) for n in widths)
        # Single precision products where conditioning leaves them harmless.
        single = self.X.dtype == self.dtype == np.float32 and basis.tame
        mean, whiten = (a.astype(np.float32 if single else np.float64) for a in (basis.mean, basis.whiten))

        def chunk(rows):
            chosen = order[rows]
            Z[rows, :d] = (self.X[chosen] - mean) @ whiten
            Z[rows, d] = 1
            Y[rows] = self.Y[np.ix_(chosen, self.neuron)]
            weight[rows] = 1 if self.weights is None else self.weights[np.ix_(chosen, self._set)]
            if self.offset is not None:
                offset[rows] = self.offset[np.ix_(chosen, known)]

        list(over_chunks(chunk, self.n_rows))
        free = slice(self.n_rows, n_blocks * size)
        # Copies of the first row, of weight 0: a row of zeros may be one the loss is infinite at.
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

    # ---------------------------------------------------------------- coordinates

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
        """Random unit start on the sphere of the kept directions and the intercept, (column, 1).

        A new ``number`` for every certificate: the matrix of a later one depends on the starts before it.
        """
        start = np.zeros((self.n_features + 1, 1), self.dtype)
        kept = np.r_[: self.basis.rank, self.n_features]
        start[kept] = random_start(np.random.default_rng([int(seed), 1, int(number)]), len(kept), self.dtype)
        return start
