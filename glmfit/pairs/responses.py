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

    def chunks(self, size: int) -> Iterator[tuple[Triples, np.ndarray | None]]:
        """Go through the observed pairs with their numbers of trials, at most about ``size`` at a time."""
        scattered = isinstance(self.parts, Triples)
        parts = [self.parts] if scattered else self.parts
        for index, part in enumerate(parts):
            counts = self.counts if scattered or self.counts is None else self.counts[index]
            height = size if scattered else max(1, size // max(1, len(part.right)))
            for start in range(0, len(part.left), height):
                some = slice(start, start + height)
                right = part.right[some] if scattered else part.right
                chunk = type(part)(part.left[some], right, part.y[some])
                yield flat(chunk, None if counts is None else counts[some])


def merge_triples(records: Triples, n: int) -> Merged:
    """Merge the trials of every pair; pairs come out by cells of entities near each other, sorted by the right one."""
    left, right = (np.asarray(ids, np.int64) for ids in records[:2])
    (tall, wide), n_cells = _CELL, n // _CELL[1] + 1
    key = ((left // tall * n_cells + right // wide) * wide + right % wide) * tall + left % tall
    place, mean, count, spread = merge_trials(key, np.asarray(records.y, np.float64))
    triples = Triples(left[place].astype(np.int32), right[place].astype(np.int32), mean)
    return Merged(triples, count if (count > 1).any() else None, spread)


def merge_blocks(blocks: list[SessionBlock]) -> Merged:
    """Merge the trials of every pair within and between blocks; what a later block repeats goes to an earlier one."""
    parts, met, spread = list(blocks), _repeating(blocks), 0.0
    counts = [(~np.isnan(block.y)).astype(np.int32) for block in blocks]
    if len(met):
        records = [flat(blocks[b])[0] for b in met]
        owner = np.repeat(met, [len(part.y) for part in records])
        left, right, y = (np.concatenate(column) for column in zip(*records, strict=True))
        key = left.astype(np.int64) * (int(right.max(initial=0)) + 1) + right
        place, mean, count, spread = merge_trials(key, np.asarray(y, np.float64))
        for b in met:
            ids, mine = [np.unique(given) for given in blocks[b][:2]], owner[place] == b
            at = tuple(np.searchsorted(u, of[place[mine]]) for u, of in zip(ids, (left, right), strict=True))
            table, counts[b] = np.full([len(u) for u in ids], np.nan), np.zeros([len(u) for u in ids], np.int32)
            table[at], counts[b][at] = mean[mine], count[mine]
            parts[b] = SessionBlock(*ids, table)
    return Merged(parts, counts if any(count.max(initial=0) > 1 for count in counts) else None, spread)


def merge_trials(key: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """First place, mean and number of the trials of every key, sorted by key; and the spread around the means."""
    place = np.argsort(key, kind="stable")
    key, y = key[place], y[place]
    start = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(y)])
    count = np.diff(np.append(start, len(y)))
    mean = np.add.reduceat(y, start) / count
    return place[start], mean, count, float(np.sum((y - np.repeat(mean, count)) ** 2))


def _repeating(blocks: list[SessionBlock]) -> np.ndarray:
    """Blocks that name an entity twice, or share one on both sides with another block."""
    import scipy.sparse

    def shared(side):
        ids = [getattr(block, side) for block in blocks]
        owner = np.repeat(np.arange(len(ids)), [len(i) for i in ids])
        flat = np.concatenate(ids)
        incidence = scipy.sparse.csr_array(
            (np.ones(len(flat), np.int64), (owner, flat)), shape=(len(ids), int(flat.max(initial=-1)) + 1)
        )
        return incidence @ incidence.T

    both = shared("left").multiply(shared("right")).tocoo()
    met = both.row[both.row != both.col]
    twice = [b for b, block in enumerate(blocks) if any(len(np.unique(ids)) < len(ids) for ids in block[:2])]
    return np.unique(np.concatenate([met, np.array(twice, int)])).astype(int)


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


def as_table(merged: Merged, m: int, n: int) -> Merged:
    """Lay merged triples out as one block of all pairs."""
    triples, count = merged.parts, merged.counts
    y = np.full((m, n), np.nan)
    y[triples.left, triples.right] = triples.y
    counts = None
    if count is not None:
        table = np.zeros((m, n), np.int32)
        table[triples.left, triples.right] = count
        counts = [table]
    return Merged([SessionBlock(np.arange(m), np.arange(n), y)], counts, merged.spread)


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
