"""Observed pairs on the host: repeated trials merged, brought to units, and cut into pieces for the device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

_ENTRIES = 2**18  # of a piece: what a step works on stays in the cache
_TRIPLES = 2**14  # of a step: their embeddings stay in the cache
_CELL = 8192, 1024  # left and right entities whose embeddings stay in the cache together


class SessionBlock(NamedTuple):
    """Responses of some right entities (neurons) to some left ones (stimuli).

    Attributes
    ----------
    left, right : numpy.ndarray of int
        Which, (I,) and (J,); those that stand twice are repeated trials.
    y : numpy.ndarray
        Responses (I, J), NaN where there is none.
    """

    left: np.ndarray
    right: np.ndarray
    y: np.ndarray


class Triples(NamedTuple):
    """Responses of scattered pairs.

    Attributes
    ----------
    left, right : numpy.ndarray of int
        Entities of every record, (N,); pairs that stand twice are repeated trials.
    y : numpy.ndarray
        Responses, (N,).
    """

    left: np.ndarray
    right: np.ndarray
    y: np.ndarray


class Merged(NamedTuple):
    """Mean response and number of trials of every observed pair, each pair once.

    Attributes
    ----------
    parts : list of SessionBlock, or Triples
        Means; NaN in a block where there is none.
    counts : list of numpy.ndarray, numpy.ndarray or None
        Trials, of the shapes of the means; None if every pair has one.
    spread : float
        Sum of squared differences between the responses and the means of their pairs.
    """

    parts: list[SessionBlock] | Triples
    counts: list[np.ndarray] | np.ndarray | None
    spread: float

    def chunks(self, size: int) -> Iterator[tuple[SessionBlock | Triples, np.ndarray | None]]:
        """Go through means and numbers of trials, about ``size`` at a time."""
        scattered = isinstance(self.parts, Triples)
        parts = [self.parts] if scattered else self.parts
        for index, part in enumerate(parts):
            counts = self.counts if scattered or self.counts is None else self.counts[index]
            height = size if scattered else max(1, size // max(1, len(part.right)))
            for start in range(0, len(part.left), height):
                some = slice(start, start + height)
                chunk = part._replace(left=part.left[some], y=part.y[some])
                yield (
                    chunk._replace(right=part.right[some]) if scattered else chunk,
                    None if counts is None else counts[some],
                )


def merge_triples(records: Triples, n: int) -> Merged:
    """Merge the trials of every pair; pairs come out by cells of entities near each other, sorted by the right one."""
    left, right = (np.asarray(ids, np.int64) for ids in records[:2])
    (tall, wide), n_cells = _CELL, n // _CELL[1] + 1
    key = ((left // tall * n_cells + right // wide) * wide + right % wide) * tall + left % tall
    order = np.argsort(key)
    key, y = key[order], np.asarray(records.y, np.float64)[order]
    new = np.ones(len(y), bool)
    new[1:] = key[1:] != key[:-1]
    count, spread = None, 0.0
    if not new.all():
        start = np.flatnonzero(new)
        count = np.diff(np.append(start, len(y)))
        mean = np.add.reduceat(y, start) / count
        spread = float(np.sum((y - np.repeat(mean, count)) ** 2))
        key, y = key[start], mean
    cell = key // (tall * wide)
    left = cell // n_cells * tall + key % tall
    right = cell % n_cells * wide + key // tall % wide
    return Merged(Triples(left.astype(np.int32), right.astype(np.int32), y), count, spread)


def merge_blocks(blocks: list[SessionBlock]) -> Merged:
    """Merge the trials of every pair within and between blocks; what a later block repeats goes to an earlier one."""
    tables = [_Table(block) for block in blocks]
    for earlier, later in _meetings(tables):
        tables[earlier].take_over(tables[later])
    parts, counts, spread = [], [], 0.0
    for table in tables:
        parts.append(SessionBlock(table.left, table.right, table.mean()))
        counts.append(table.count)
        spread += table.spread()
    repeated = any(count.max(initial=0) > 1 for count in counts)
    return Merged(parts, counts if repeated else None, spread)


class _Table:
    """Means, numbers of the trials and sums of squared differences from the mean of the pairs of a block."""

    def __init__(self, block: SessionBlock):
        seen = ~np.isnan(block.y)
        y = np.where(seen, block.y, 0.0)
        self.left, row = np.unique(block.left, return_inverse=True)
        self.right, column = np.unique(block.right, return_inverse=True)
        shape, at = (len(self.left), len(self.right)), (row[:, None], column[None, :])
        self.average, self.count, self.squares = np.zeros(shape), np.zeros(shape, np.int32), None
        if len(self.left) == len(row) and len(self.right) == len(column):
            self.average[at], self.count[at] = y, seen
            return
        np.add.at(self.average, at, y)
        np.add.at(self.count, at, seen)
        self.average /= np.maximum(self.count, 1)
        self.squares = np.zeros(shape)
        np.add.at(self.squares, at, np.where(seen, y - self.average[at], 0.0) ** 2)

    def take_over(self, other: _Table) -> None:
        """Take the trials of the pairs that both have; the other forgets them."""
        _, row, other_row = np.intersect1d(self.left, other.left, assume_unique=True, return_indices=True)
        _, column, other_column = np.intersect1d(self.right, other.right, assume_unique=True, return_indices=True)
        here, there = np.ix_(row, column), np.ix_(other_row, other_column)
        theirs = np.where(self.count[here] > 0, other.count[there], 0)  # whose pairs are here, too
        if not theirs.any():
            return
        for table in (self, other):
            if table.squares is None:
                table.squares = np.zeros(table.average.shape)
        mine, apart = self.count[here], other.average[there] - self.average[here]
        share = theirs / np.maximum(mine + theirs, 1)
        self.squares[here] += np.where(theirs > 0, other.squares[there] + apart**2 * mine * share, 0.0)
        self.average[here] += apart * share
        self.count[here] += theirs
        other.squares[there] = np.where(theirs > 0, 0.0, other.squares[there])
        other.count[there] -= theirs

    def mean(self) -> np.ndarray:
        """Mean of every pair, NaN without a trial."""
        return np.where(self.count > 0, self.average, np.nan)

    def spread(self) -> float:
        """Sum of squared differences from the means."""
        return 0.0 if self.squares is None else float(np.sum(self.squares))


def _meetings(tables: list[_Table]) -> list[tuple[int, int]]:
    """Pairs of blocks, the earlier first, that share an entity on both sides."""
    import scipy.sparse

    def shared(side):
        ids = [getattr(table, side) for table in tables]
        owner = np.repeat(np.arange(len(ids)), [len(i) for i in ids])
        flat = np.concatenate(ids)
        incidence = scipy.sparse.csr_array(
            (np.ones(len(flat), np.int64), (owner, flat)), shape=(len(ids), int(flat.max(initial=-1)) + 1)
        )
        return incidence @ incidence.T

    both = scipy.sparse.triu(shared("left").multiply(shared("right")), k=1).tocoo()
    return sorted(zip(both.row.tolist(), both.col.tolist(), strict=True))


# --------------------------------------------------------------------------------- pieces for the device


class Piece(NamedTuple):
    """Blocks of one shape, ``together`` of them in each of some steps, or scattered pairs, some in each step."""

    left: Any  # (step, together, I), or (step, pair); int32
    right: Any  # (step, together, J), or (step, pair)
    y: Any  # (step, together, I, J), or (step, pair); NaN where nothing was observed or the place only fills up
    count: Any  # trials, like y; None if every pair has one


def cut_triples(triples: Triples, count, dtype, size: int | None = None) -> Piece:
    """Cut scattered pairs into steps; ``size`` is the number of places, filled up (None: as many as needed)."""
    n = len(triples.y) if size is None else size
    n_steps = max(1, -(-n // _TRIPLES))
    width = -(-n // n_steps) if n else 1

    def laid(values, fill, dtype):
        flat = np.full(n_steps * width, fill, dtype)
        flat[: len(values)] = values
        return flat.reshape(n_steps, width)

    left, right = (laid(ids, 0, np.int32) for ids in triples[:2])
    return Piece(left, right, laid(triples.y, np.nan, dtype), None if count is None else laid(count, 1, dtype))


def cut_blocks(merged: Merged, dtype) -> list[Piece]:
    """Cut blocks into pieces of at most some hundred thousand entries, those of about equal shape together."""
    groups: dict[tuple[int, int], list] = {}
    for index, block in enumerate(merged.parts):
        n_left, n_right = block.y.shape
        if not n_left or not n_right:
            continue
        width = rounded(n_right)
        n_cuts = -(-n_left * width // _ENTRIES)
        height = rounded(-(-n_left // n_cuts))
        for start in range(0, n_left, height):
            groups.setdefault((height, width), []).append((index, slice(start, min(start + height, n_left))))
    return [_stack(merged, cuts, *shape, dtype) for shape, cuts in sorted(groups.items())]


def _stack(merged: Merged, cuts: list, height: int, width: int, dtype) -> Piece:
    """Stack parts of blocks, filled up to one shape."""
    together = max(1, min(len(cuts), _ENTRIES // (height * width)))
    n_steps = -(-len(cuts) // together)
    left = np.zeros((n_steps * together, height), np.int32)
    right = np.zeros((n_steps * together, width), np.int32)
    y = np.full((n_steps * together, height, width), np.nan, dtype)
    count = None if merged.counts is None else np.ones(y.shape, dtype)
    for place, (index, rows) in enumerate(cuts):
        block = merged.parts[index]
        n_left, n_right = rows.stop - rows.start, len(block.right)
        left[place, :n_left], right[place, :n_right] = block.left[rows], block.right
        y[place, :n_left, :n_right] = block.y[rows]
        if count is not None:
            count[place, :n_left, :n_right] = np.maximum(merged.counts[index][rows], 1)
    shape = (n_steps, together)
    return Piece(
        left.reshape(*shape, height),
        right.reshape(*shape, width),
        y.reshape(*shape, height, width),
        None if count is None else count.reshape(*shape, height, width),
    )


def rounded(n: int) -> int:
    """Least number of at least n with three significant bits, so that few shapes occur."""
    step = 1 << max(0, int(n - 1).bit_length() - 3)
    return -(-n // step) * step


def flat(part: SessionBlock | Triples, count: np.ndarray | None = None) -> tuple[Triples, np.ndarray | None]:
    """Observed pairs of a block as triples, with their numbers of trials."""
    if isinstance(part, Triples):
        return part, count
    row, column = np.nonzero(~np.isnan(part.y))
    triples = Triples(part.left[row], part.right[column], part.y[row, column])
    return triples, None if count is None else count[row, column]


def as_triples(merged: Merged) -> tuple[Triples, np.ndarray | None]:
    """All observed pairs as triples, with their numbers of trials."""
    if isinstance(merged.parts, Triples):
        return merged.parts, merged.counts
    parts, counts = zip(*map(flat, merged.parts, merged.counts or [None] * len(merged.parts)), strict=True)
    left, right, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Triples(left.astype(np.int32), right.astype(np.int32), y), merged.counts and np.concatenate(counts)


# ----------------------------------------------------------------------------------------- units


class Units(NamedTuple):
    """Responses are ``shift + size`` times those of the fit.

    With the squared loss this changes nothing but numbers: the objective is ``size^2`` times that of the fit if the
    ridge is divided by the size, embeddings are multiplied by its root, and biases by itself. Single precision then
    does not see how large the responses are, nor how far from 0.
    """

    shift: np.ndarray  # mean response of every neuron, that of all where it has none; zeros without biases
    size: float = 1.0  # a power of 4, near the root mean square of what is left; 1 for towers that are not linear
    start: float = 0.2  # root mean square of the embeddings a fit begins with, in its own units

    @classmethod
    def of(cls, records: Triples, n_neurons: int, biases: bool, linear: bool) -> Units:
        """Measure the records of a fit with the squared loss."""
        count = np.bincount(records.right, minlength=n_neurons)
        shift = np.zeros(n_neurons)
        if biases:
            total = np.bincount(records.right, records.y, n_neurons)
            shift = np.where(count > 0, total / np.maximum(count, 1), records.y.mean())
        size = float(np.sqrt(np.mean((records.y - shift[records.right]) ** 2)))
        rounding = 1e-12 * float(np.max(np.abs(records.y), initial=0.0))
        if size <= rounding:
            return cls(shift)
        if not linear:
            return cls(shift, start=cls(shift).start * math.sqrt(size))
        return cls(shift, 4.0 ** round(math.log(size, 4)))

    def responses(self, given: Any) -> Any:
        """Responses of the fit, in the form they came in."""
        if isinstance(given, np.ndarray):
            return (given - self.shift) / self.size
        if isinstance(given, Triples):
            return given._replace(y=(given.y - self.shift[given.right]) / self.size)
        return [SessionBlock(b.left, b.right, (b.y - self.shift[b.right]) / self.size) for b in given]

    def prior(self, prior: Any, n_stimuli: int) -> Any:
        """Prior of the fit: "mean" stays, others become factors."""
        if isinstance(prior, str) and (prior == "mean" or not self.shift.any()):
            return prior
        left, right = np.ones((n_stimuli, 1)), -self.shift[:, None] / self.size
        if isinstance(prior, str):
            return left, right
        return np.concatenate([prior[0], left], axis=1), np.concatenate([prior[1] / self.size, right], axis=1)
