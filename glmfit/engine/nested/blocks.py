"""Rows in blocks: the folds of a cross-validation, each a run of rows, and the sets of blocks that are fitted."""

import copy
import itertools
from typing import Any, Self

import numpy as np

from ..metric import rough_standard
from ..tiles import ROWS_OF_A_TILE, tiles_of

_MOST_BYTES = 2e9  # of standardised features that are kept; if there are more, every tile is computed again


class Blocks:
    """Standardised features and a column of ones, (row, feature + 1), rows of a block together.

    ``number`` (time,) is the block of every row, of which ``n_blocks`` are held out; it is ``n_blocks`` for rows that
    are in none, which count in every fit. Row weights are positive.
    """

    def __init__(self, X: np.ndarray, number: np.ndarray, n_blocks: int, weights: np.ndarray | None = None):
        self.X, self.number, self.n_held = X, number, n_blocks
        self.order = np.argsort(number, kind="stable")
        n_all = n_blocks + bool((number == n_blocks).any())
        ends = np.searchsorted(number[self.order], np.arange(n_all + 1))
        self.slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
        self.n_rows, self.n_columns = len(X), X.shape[1] + 1
        self.weights = None if weights is None else np.asarray(weights, np.float64)[self.order]
        self.mean, self.scale = rough_standard(X, weights)
        self.in_order = bool(np.all(np.diff(self.order) == 1))
        self._kept: dict = {}
        if self.n_rows * self.n_columns * 12 <= _MOST_BYTES:
            whole = np.concatenate([self._make(rows) for rows in tiles_of(self.n_rows)])
            self._kept = {np.dtype(np.float64): whole, np.dtype(np.float32): whole.astype(np.float32)}

    @property
    def n_blocks(self) -> int:
        """Number of blocks, including that of the rows that are never held out."""
        return len(self.slices)

    def take(self, of_rows: Any) -> Any:
        """Bring an array (time, ...) into the order of the blocks; None stays None."""
        return of_rows if of_rows is None or self.in_order else of_rows[self.order]

    def rows(self, rows: slice, dtype=np.float64) -> np.ndarray:
        """Return some rows, in the order of the blocks."""
        kept = self._kept.get(np.dtype(dtype))
        return self._make(rows).astype(dtype, copy=False) if kept is None else kept[rows]

    def reordered(self, order: np.ndarray) -> Self:
        """Return these rows in another order within the blocks, (row,)."""
        other = copy.copy(self)
        other.order, other.in_order = self.order[order], False
        other.weights = None if self.weights is None else self.weights[order]
        other._kept = {dtype: rows[order] for dtype, rows in self._kept.items()}
        return other

    @property
    def are_kept(self) -> bool:
        """Whether all rows are in memory."""
        return bool(self._kept)

    def _make(self, rows: slice) -> np.ndarray:
        x = self.X[rows] if self.in_order else self.X[self.order[rows]]
        z = np.ones((len(x), self.n_columns))
        np.subtract(x, self.mean, out=z[:, :-1], dtype=np.float64)
        z[:, :-1] /= self.scale
        return z

    def standard(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Turn parameters (feature, fit), (fit,) into those of standardised features, (fit, feature + 1)."""
        return np.column_stack([(coef * self.scale[:, None]).T, intercept + self.mean @ coef])

    def plain(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients (feature, fit) and intercepts (fit,) of the features as they were given."""
        coef = (at[:, :-1] / self.scale).T
        return coef, at[:, -1] - self.mean @ coef


def tiles_within(block: slice, size: int = ROWS_OF_A_TILE) -> list[slice]:
    """Slices of the rows of a block."""
    return [slice(i, min(i + size, block.stop)) for i in range(block.start, block.stop, size)]


def sets_of_blocks(n_held: int, n_blocks: int, pairs: bool) -> np.ndarray:
    """Return the sets of blocks that are fitted, bool (set, block): all, all but one, on request all but two."""
    without = [(), *((k,) for k in range(n_held))]
    if pairs:
        without += itertools.combinations(range(n_held), 2)
    return np.array([[k not in some for k in range(n_blocks)] for some in without])
