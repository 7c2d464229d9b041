"""Many fits of one design in one problem: every column has a neuron, a set of rows to be fitted to, and a strength.

In the spectral basis of the whole design such fits are columns like neurons are: docs/theory/spectral_basis.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .._progress import counted
from ..observations import Observation
from ..penalties import Penalty
from ._population import PopulationProblem, select


class _View:
    """Columns of an array, looked up a chunk of rows at a time: (row, column) without holding it."""

    def __init__(self, array, column):
        self.array, self.column, self.shape = array, column, (len(array), len(column))

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        return self.array[rows][:, self.column]


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
        self.neuron, self.fold = np.asarray(neuron), np.asarray(fold)
        self.n_neurons, self.known = len(self.neuron), offset
        self.Y = _View(Y, self.neuron)
        if offset is not None:
            self.offset = _View(offset, self.neuron if offset.shape[1] > 1 else np.zeros_like(self.neuron))
        weights = np.asarray(train, bool) * (1.0 if self.weights is None else self.weights[:, None])
        self.sets = weights * (len(X) / weights.sum(axis=0))
        self.row_weights = _View(self.sets, self.fold)

    @property
    def subject(self) -> str:
        """What a progress bar says is fitted."""
        return counted(self.n_neurons, "fit")

    def rows_of(self, fits: np.ndarray) -> dict:
        """Return what :class:`glmfit.engine.host.HostRows` takes, for some fits."""
        common = {"X": self.X, "Y": self.counts, "neuron": self.neuron[fits], "offset": self.known}
        return common | {"weights": self.sets, "rows": self.fold[fits]}

    def select(self, neuron: int) -> PopulationProblem:
        """Return the problem of one column, on the rows of its fold alone."""
        kept, column = np.flatnonzero(self.sets[:, self.fold[neuron]] > 0), self.neuron[neuron]
        Y = np.ascontiguousarray(self.counts[kept, column][:, None])
        weights = None if self.weights is None else self.weights[kept]
        offset = None
        if self.known is not None:
            offset = self.known[kept][:, [column if self.known.shape[1] > 1 else 0]]
        penalty = select(self.penalty, [neuron])
        return PopulationProblem(self.X[kept], Y, self.observation, penalty, weights, self.dtype, offset)
