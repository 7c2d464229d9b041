"""The spectral view of a design: rows laid out on the device in whitened coordinates, and the way back.

What is fitted to the rows is another matter; docs/theory/spectral_basis.md has the mathematics.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike

from ..observations import Observation
from ..penalties import Penalty
from ._basis import floored_basis, spectral_basis
from ._chunks import aligned_empty, over_chunks
from ._placement import Placement
from ._rows import Rows, Splitting
from .base import Evaluation, Params

_ADMM_RHO, _ADMM_INNER = 0.2, 10


class SpectralView:
    """Data and penalty seen in the spectral basis; parameters as in :class:`PopulationProblem`."""

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
    ):
        self.X, self.Y, self.observation, self.penalty = X, Y, observation, penalty
        self.dtype = np.dtype(dtype)
        self._kept_rows = None
        self.n_rows, self.n_features = X.shape
        self.n_neurons = Y.shape[1]
        self.weights = None if weights is None else np.asarray(weights, np.float64) * (len(X) / np.sum(weights))
        self.offset, self.placement = offset, Placement(devices)
        self.row_weights = None if self.weights is None else self.weights[:, None]  # one column, or one for each

    @property
    def in_memory(self) -> bool:
        """Whether rows are arrays; otherwise they are read as they are needed, a slice at a time."""
        return isinstance(self.X, np.ndarray)

    @property
    def default_batch_size(self) -> int:
        """Rows per block when nobody names a number: 1/50 of the recording, between 256 and 4096."""
        return int(min(self.n_rows, max(256, min(4096, self.n_rows // 50))))

    @cached_property
    def design(self) -> dict:
        """What was computed of the features alone; the problems of single neurons share it."""
        return {}

    @property
    def basis(self):
        """Spectral basis of the design; see docs/theory/spectral_basis.md."""
        if "basis" not in self.design:
            self.design["basis"] = self._make_basis()
        return self.design["basis"]

    def _make_basis(self):
        units = self.penalty.units
        if units is not None:
            return spectral_basis(self.X, self.weights, units=units)
        groups = getattr(self.penalty, "groups", None)
        labels = np.arange(self.n_features) if groups is None else np.asarray(groups)
        # An unpenalised feature (label -1) shares its scale with nobody.
        return floored_basis(self.X, self.weights, np.where(labels < 0, -1 - np.arange(len(labels)), labels))

    def rows(self, batch_size: int, seed: int) -> Rows:
        """Return whitened rows on the device, permuted by ``seed``, in blocks of about ``batch_size`` (kept)."""
        if self._kept_rows is None or self._kept_rows[0] != (batch_size, seed):
            self._kept_rows = None  # let go before building anew
            self._kept_rows = (batch_size, seed), self._build_rows(batch_size, seed)
        return self._kept_rows[1]

    def _build_rows(self, batch_size: int, seed: int) -> Rows:
        n_blocks = -(-self.n_rows // batch_size)
        size = -(-self.n_rows // n_blocks)
        n_weights = 1 if self.row_weights is None else self.row_weights.shape[1]
        n_offsets = 0 if self.offset is None else self.offset.shape[1]
        widths = self.n_features + 1, self.Y.shape[1], n_weights, n_offsets
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
            Y[rows] = self.Y[chosen]
            weight[rows] = 1 if self.row_weights is None else self.row_weights[chosen]
            if self.offset is not None:
                offset[rows] = self.offset[chosen]

        list(over_chunks(chunk, self.n_rows))
        free = slice(self.n_rows, n_blocks * size)
        self.pad(free, Z, Y, weight)
        offset[free] = 0
        Z, Y, weight, offset = (
            self.placement.put(a.reshape(n_blocks, size, n)) if n else None
            for a, n in zip((Z, Y, weight, offset), widths, strict=True)
        )
        return Rows(
            Z=Z,
            Y=Y,
            weight=weight,
            offset=offset,
            ridge=jax.device_put(self._column_ridge().astype(self.dtype)),
            penalty=self.penalty,
            splitting=self._splitting(),
            observation=self.observation,
            n_rows=self.n_rows,
            n_blocks=n_blocks,
        )

    def pad(self, free, Z, Y, weight) -> None:
        """Fill the last block up with rows that count nothing."""
        for array in (Z, Y, weight):
            array[free] = 0

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
        gain = expand / (1 + _ADMM_RHO * np.sum(expand**2, axis=0))  # B'B is diagonal in this basis
        constants = (expand, basis.unwhiten / basis.scale, gain, _ADMM_RHO * gain @ expand.T, basis.scale)
        return Splitting(*(jax.device_put(c.astype(self.dtype)) for c in constants), _ADMM_RHO, _ADMM_INNER)

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

    def residual_columns(self, params: Params, evaluation: Evaluation) -> tuple[np.ndarray, np.ndarray]:
        """Gradient plus smallest subgradient in whitened coordinates, and its part outside of them.

        Returns
        -------
        columns, outside :
            (column, neuron), and what no kept direction sees, (feature, neuron).
        """
        g = self.penalty.subgradient_residual(params.coef, evaluation.grad_coef)
        g = np.asarray(g, np.float64) - self.basis.mean[:, None] * evaluation.grad_intercept
        columns = self.basis.whiten.T @ g
        return np.concatenate([columns, evaluation.grad_intercept[None]]), g - self.basis.unwhiten.T @ columns
