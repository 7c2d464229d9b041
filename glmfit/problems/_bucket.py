"""Buckets: fits of similar size are laid out in arrays of the same shapes, and so share compiled programs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_ROWS, _GROWTH = 32768, 4
_LONG = 524288  # from here on room costs gigabytes: twice as many rows from one to the next
_BATCH, _LARGEST_BATCH = 256, 4096


class Bucket(NamedTuple):
    """Shapes that all problems up to a size share."""

    rows: int  # most rows
    batch_size: int  # rows of a block
    n_blocks: int  # room for blocks
    neurons: int


def bucket(n_rows: int, n_neurons: int, batch_size: int | None = None) -> Bucket:
    """Find the smallest bucket for a problem; ``batch_size`` rows in a block, if somebody named a number.

    Rows: 32768, and four times as many from one to the next, twice from 524288; blocks of 256 rows in the first and of
    up to 4096 in larger ones. Neurons: powers of two, and what lies halfway between them from 64 on.
    """
    rows, size = _ROWS, _BATCH
    while rows < n_rows:
        rows, size = (_GROWTH if rows < _LONG else 2) * rows, min(_GROWTH * size, _LARGEST_BATCH)
    size = batch_size or size
    neurons = 1
    while neurons < n_neurons:
        halfway = neurons * 3 // 2
        neurons = halfway if neurons >= 64 and halfway >= n_neurons else 2 * neurons
    return Bucket(rows, size, -(-rows // size), neurons)


class Slots(NamedTuple):
    """Where rows lie in blocks: ``share`` of them in each of the first ``used`` blocks, the last one with the rest."""

    n_blocks: int
    size: int
    used: int
    share: int

    def of(self, rows: slice):
        """Places of rows in an array (block times row, ...)."""
        if self.share == self.size:
            return rows
        numbers = np.arange(rows.start, rows.stop)
        return numbers + numbers // self.share * (self.size - self.share)

    def free(self, n_rows: int):
        """Places in the blocks used that are left."""
        if self.share == self.size:
            return slice(n_rows, self.used * self.size)
        is_free = np.ones(self.used * self.size, bool)
        is_free[self.of(slice(0, n_rows))] = False
        return np.flatnonzero(is_free)
