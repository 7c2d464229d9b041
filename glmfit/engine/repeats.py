"""Repeated rows: those with the same features are found and pooled, since every loss is linear in the response."""

from typing import NamedTuple, Self

import numpy as np
import scipy.sparse

from .tiles import over_tiles

_SHARE = 0.5  # of the rows: if more of them differ, pooling takes about as long as it saves
_SHARE_IN_FOLDS = 0.8  # likewise, if all strengths and folds of a cross-validation use the same rows
_SEEM = 1.2  # times these shares: if more rows seem to differ, nothing else is tried
_DRAWS = 8  # times the square root of the number of rows
_OFTEN = 5  # times in which a row that is common is drawn, at least
_LEAST_ROWS = 4096
_PIECE = 64  # rows that are added up one after the other: more would round too much
_FREE = 1e8  # bytes that pooled rows may take; otherwise half of what the data take
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd


class PooledRows(NamedTuple):
    """Rows that differ in features, offset or sets of rows, each standing for all rows that equal it.

    Attributes
    ----------
    X, offset :
        Features (row, feature) and offsets, as given.
    Y : numpy.ndarray
        Weighted mean responses, (row, neuron), float64.
    sets : numpy.ndarray
        Sums of the weights in each set of rows, of mean one, (row, set).
    own : numpy.ndarray, optional
        Mean weights of single responses, (row, neuron).
    """

    X: np.ndarray
    Y: np.ndarray
    sets: np.ndarray
    offset: np.ndarray | None
    own: np.ndarray | None

    @classmethod
    def of(cls, X, Y, weights=None, sets=None, offset=None, own=None) -> Self | None:
        """Pool rows in memory, or return None if few of them repeat.

        Row weights (row,) and sets (row, set) are of mean one; in a set, the weights of rows that belong to the same
        sets are proportional to their row weights. ``own`` are weights of single responses.
        """
        n, arrays = len(X), [a for a in (X, Y, own) if a is not None]
        keys = [X, *([] if offset is None else [offset]), *([] if sets is None else [sets > 0])]
        most = _SHARE if sets is None or sets.shape[1] == 1 else _SHARE_IN_FOLDS
        if n < _LEAST_ROWS or (found := _groups_of(keys, most)) is None:
            return None
        order, starts = found
        n_groups, n_neurons = len(starts) - 1, Y.shape[1]
        weights = np.ones(n) if weights is None else weights
        sets = weights[:, None] if sets is None else sets
        others = [a for a in (sets, offset) if a is not None]
        size = n_groups * (
            X.shape[1] * X.itemsize + 8 * n_neurons * (len(arrays) - 1) + 8 * sum(a.shape[1] for a in others)
        )
        if size > max(_FREE, sum(a.nbytes for a in arrays + others) / 2):
            return None
        group = np.repeat(np.arange(n_groups), np.diff(starts))

        def sums(places):
            rows, some = order[places], group[places]
            begins = np.append(True, some[1:] != some[:-1]) | (np.arange(len(some)) % _PIECE == 0)
            to_pieces, to_groups = _adder(np.cumsum(begins) - 1), _adder(some[begins] - some[0])
            w = weights[rows, None]
            of_own = [] if own is None else [own[rows] * w]
            of_y = Y[rows] * (w if own is None else of_own[0])
            return some[0], *(to_groups @ (to_pieces @ a) for a in (np.column_stack([w, sets[rows]]), of_y, *of_own))

        mass, totals = np.zeros((n_groups, 1 + sets.shape[1])), np.zeros((len(arrays) - 1, n_groups, n_neurons))
        for first, part, *parts in over_tiles(sums, n):
            some = slice(first, first + len(part))
            mass[some] += part
            for total, of_rows in zip(totals, parts, strict=True):
                total[some] += of_rows
        over = mass[:, :1] if own is None else totals[1]
        totals[0] /= np.where(over > 0, over, 1.0)
        if own is not None:
            totals[1] /= np.where(mass[:, :1] > 0, mass[:, :1], 1.0)
        rows = order[starts[:-1]]
        known, of_own = None if offset is None else offset[rows], None if own is None else totals[1]
        return cls(X[rows], totals[0], mass[:, 1:] * (n_groups / n), known, of_own)


def _adder(labels: np.ndarray) -> scipy.sparse.csc_array:
    """Make the matrix that adds up rows of the same label, 0 to the last."""
    n = len(labels)
    return scipy.sparse.csc_array((np.ones(n), labels, np.arange(n + 1)), shape=(labels[-1] + 1, n))


def _groups_of(keys: list[np.ndarray], most: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Order the rows so that equal ones follow each other, from these starts on, and to the end.

    Return None if more than a share of the rows differ.
    """
    n, rng = len(keys[0]), np.random.default_rng(0)
    factors = [rng.integers(1 << 62, size=key.shape[1], dtype=np.uint64) * 2 + 1 for key in keys]

    def hashes(rows):
        return sum(_bits(key[rows]) @ of_key for key, of_key in zip(keys, factors, strict=True))

    if _share_that_differs(hashes(np.unique(rng.integers(n, size=_DRAWS * int(np.sqrt(n))))), n) > _SEEM * most:
        return None
    found = np.concatenate(list(over_tiles(hashes, n)))
    order = np.argsort(found, kind="stable")
    starts = _starts_of(found[order])
    if len(starts) > most * n:
        return None
    first = np.empty_like(order)  # of the rows like each row
    first[order] = np.repeat(order[starts[:-1]], np.diff(starts))

    def are_equal(rows):
        return np.all([np.all(key[rows] == key[first[rows]], axis=1) for key in keys], axis=0)

    same = np.concatenate(list(over_tiles(are_equal, n)))
    if not same.all():  # rows whose hashes are equal by accident stay alone
        others, order = np.flatnonzero(~same), order[same[order]]
        starts = np.append(_starts_of(found[order])[:-1], len(order) + np.arange(len(others) + 1))
        order = np.append(order, others)
    return (order, starts) if len(starts) <= most * n else None


def _share_that_differs(hashes: np.ndarray, n_rows: int) -> float:
    """Estimate the share of rows that differ, from hashes of some rows: common ones show, others repeat in pairs."""
    counts = np.unique(hashes, return_counts=True)[1]
    common, others = counts[counts >= _OFTEN], counts[counts < _OFTEN]
    pairs = np.sum(others * (others - 1)) * n_rows / (len(hashes) * max(1, np.sum(others)))
    return (1 - np.sum(common) / len(hashes)) / (1 + pairs)


def _starts_of(found: np.ndarray) -> np.ndarray:
    """Places where sorted hashes change, and the end."""
    return np.append(np.flatnonzero(np.append(True, found[1:] != found[:-1])), len(found))


def _bits(values: np.ndarray) -> np.ndarray:
    """Turn numbers into whole ones that differ in their low bits, too: many floating numbers end in zeros."""
    values = np.ascontiguousarray(values)
    values = values if values.dtype == bool else values + values.dtype.type(0)  # -0 is 0
    bits = values.view(f"u{values.dtype.itemsize}").astype(np.uint64)
    bits ^= bits >> np.uint64(32)
    bits *= _MIX
    bits ^= bits >> np.uint64(32)
    return bits
