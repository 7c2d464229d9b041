"""Many fits of one design in one problem: every column has a neuron, a set of rows to be fitted to, and a strength.

In the spectral basis of the whole design such fits are columns like neurons are: docs/theory/spectral_basis.md.
"""

from __future__ import annotations

from functools import cached_property

import jax
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .._progress import counted
from ..observations import Observation
from ..penalties import Penalty
from ._chunks import over_chunks
from ._population import PopulationProblem


class _View:
    """Columns of an array, looked up a chunk of rows at a time: (row, column) without holding it."""

    def __init__(self, array, column, scale=None):
        self.array, self.column, self.scale = array, column, scale
        self.shape = len(array), len(column)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        values = self.array[rows][:, self.column]
        return values if self.scale is None else values * self.scale


class FoldedProblem(PopulationProblem):
    """Fits of the same design to different neurons, rows and strengths, as columns of one problem.

    Parameters
    ----------
    X, Y, observation, dtype, offset :
        As in :class:`PopulationProblem`.
    penalty : Penalty
        Strengths shared or per column. One that is not smooth acts in a basis of all rows, too.
    neuron : numpy.ndarray
        Column of Y that each column fits, (column,).
    fold : numpy.ndarray
        Column of ``train`` that each column obeys, (column,).
    train : numpy.ndarray
        Which rows count in each fold, bool (time, fold); every fold has some.
    weights : numpy.ndarray, optional
        Row weights (time,) besides; in every fold those that count are rescaled to mean one over all rows.

    Notes
    -----
    A column's objective is the mean over the rows of its fold. The basis is that of all rows: any basis is allowed, and
    one near the folds' own serves as well.
    """

    def __init__(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        observation: Observation,
        penalty: Penalty,
        neuron: ArrayLike,
        fold: ArrayLike,
        train: ArrayLike,
        weights: np.ndarray | None = None,
        dtype: DTypeLike = np.float32,
        offset: np.ndarray | None = None,
    ):
        super().__init__(X, Y, observation, penalty, weights, dtype, offset)
        self.neuron, self.fold, self.train = np.asarray(neuron), np.asarray(fold), np.asarray(train, bool)
        self.counts, self.n_neurons = Y, len(self.neuron)
        self.Y = _View(Y, self.neuron)
        self.known = offset
        if offset is not None:
            self.offset = _View(offset, self.neuron if offset.shape[1] > 1 else np.zeros_like(self.neuron))
        base = np.ones(len(X)) if self.weights is None else self.weights
        self._in_fold = self.train * base[:, None]  # (time, fold)
        self._fold_scale = len(X) / self._in_fold.sum(axis=0)
        self.row_weights = _View(self._in_fold, self.fold, self._fold_scale[self.fold])

    @property
    def subject(self) -> str:
        """What a progress bar says is fitted."""
        return counted(self.n_neurons, "fit")

    @property
    def kin(self) -> np.ndarray:
        """Which neuron each fit is of, (fit,)."""
        return self.neuron

    def rows_of(self, fits: np.ndarray) -> dict:
        """Return what :class:`glmfit.engine.host.HostRows` takes, for some fits."""
        weights = self._in_fold * self._fold_scale
        common = {"X": self.X, "Y": self.counts, "neuron": self.neuron[fits], "offset": self.known}
        return common | {"weights": weights, "rows": self.fold[fits]}

    @cached_property
    def mean_count(self) -> np.ndarray:
        """Weighted mean count per bin of each column's rows, (column,)."""
        sums = self._in_fold.T @ np.asarray(self.counts, np.float64)  # (fold, neuron)
        return (sums * self._fold_scale[:, None] / self.n_rows)[self.fold, self.neuron]

    @cached_property
    def saturated_loss(self) -> np.ndarray:
        """Mean loss of the model that predicts every count exactly, (column,)."""

        def chunk(rows):
            loss = self.observation.saturated_loss(np.asarray(self.counts[rows], np.float64))
            return self._in_fold[rows].T @ loss

        sums = sum(over_chunks(chunk, self.n_rows))
        return (sums * self._fold_scale[:, None] / self.n_rows)[self.fold, self.neuron]

    def select(self, neuron: int) -> PopulationProblem:
        """Return the problem of one column, on the rows of its fold alone."""
        kept = np.flatnonzero(self._in_fold[:, self.fold[neuron]] > 0)
        penalty = jax.tree.map(lambda a: a[..., neuron : neuron + 1] if np.ndim(a) else a, self.penalty)
        Y = np.ascontiguousarray(self.counts[kept, self.neuron[neuron]][:, None])
        weights = None if self.weights is None else self.weights[kept]
        offset = None
        if self.known is not None:
            offset = self.known[kept][:, [self.neuron[neuron] if self.known.shape[1] > 1 else 0]]
        return PopulationProblem(self.X[kept], Y, self.observation, penalty, weights, self.dtype, offset)
