"""Repeated rows: those with the same features are found and pooled, since every loss is linear in the response."""

from typing import NamedTuple, Self

import numpy as np
import scipy.sparse

from .tiles import over_tiles

_SHARE = 0.75  # of the rows: if more of them differ, pooling takes longer than it saves
_DRAWS, _FEW = 8, 4  # times the square root of the number of rows: at least so many of these must repeat others
_LEAST_ROWS = 4096
_GROUPS = 4096  # at a time


class PooledRows(NamedTuple):
    """Rows that differ in features, offset or sets of rows, each standing for all rows that equal it.

    Attributes
    ----------
    X, offset :
        Features (row, feature) and offsets, as given.
    Y : numpy.ndarray
        Weighted mean responses, (row, neuron), float64.
    weights : numpy.ndarray
        Sums of row weights, of mean one, (row,).
    sets : numpy.ndarray
        Sums of the weights in each set of rows, of mean one, (row, set).
    """

    X: np.ndarray
    Y: np.ndarray
    weights: np.ndarray
    sets: np.ndarray
    offset: np.ndarray | None

    @classmethod
    def of(cls, X, Y, weights, sets, offset) -> Self | None:
        """Pool rows in memory: row weights (row,) and sets (row, set) are of mean one, or None; None if few repeat.

        In every set, the weights of rows that belong to the same sets are proportional to their row weights.
        """
        n = len(X)
        keys = [X, *([] if offset is None else [offset]), *([] if sets is None else [sets > 0])]
        if n < _LEAST_ROWS or (found := _groups_of(keys)) is None:
            return None
        order, starts = found
        weights = np.ones(n) if weights is None else weights
        sets = weights[:, None] if sets is None else sets

        def sums(groups):
            ends = starts[groups.start : groups.stop + 1]
            rows = order[ends[0] : ends[-1]]
            where = np.arange(len(rows)), ends - ends[0]
            weighs, adds = (scipy.sparse.csr_array((a, *where)) for a in (weights[rows], np.ones(len(rows))))
            mass = weighs.sum(axis=1)
            return weighs @ Y[rows] / np.where(mass > 0, mass, 1.0)[:, None], mass, adds @ sets[rows]

        n_groups = len(starts) - 1
        mean, mass, of_sets = (np.concatenate(a) for a in zip(*over_tiles(sums, n_groups, _GROUPS), strict=True))
        share, first = n_groups / n, order[starts[:-1]]
        return cls(X[first], mean, mass * share, of_sets * share, None if offset is None else offset[first])


def _groups_of(keys: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    """Order the rows so that equal ones follow each other, from these starts on, and to the end; None if few repeat."""
    n, rng = len(keys[0]), np.random.default_rng(0)
    factors = [rng.integers(1 << 62, size=key.shape[1], dtype=np.uint64) * 2 + 1 for key in keys]

    def hashes(rows):
        return sum(_bits(key[rows]) @ of_key for key, of_key in zip(keys, factors, strict=True))

    some = np.unique(rng.integers(n, size=_DRAWS * int(np.sqrt(n))))
    if len(some) - len(np.unique(hashes(some))) < _FEW:
        return None
    found = np.concatenate(list(over_tiles(hashes, n)))
    order = np.argsort(found, kind="stable")
    found = found[order]
    starts = np.append(np.flatnonzero(np.append(True, found[1:] != found[:-1])), n)
    if len(starts) > _SHARE * n:
        return None
    first = np.empty_like(order)  # of the rows like each row
    first[order] = np.repeat(order[starts[:-1]], np.diff(starts))

    def are_equal(rows):
        return all(np.array_equal(key[rows], key[first[rows]]) for key in keys)

    return (order, starts) if all(over_tiles(are_equal, n)) else None  # else hashes are equal by accident


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").astype(np.uint64)
