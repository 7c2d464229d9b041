"""Observed pairs on the host: repeated trials merged, responses rescaled, and cut into pieces for the device."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import scipy.sparse

from ..compilation import default_device
from ..engine.tiles import tiles_of

LAYOUTS = ("auto", "blocks", "triples", "dense")
_DENSE_SHARE = 0.01  # share of pairs observed from which a dense table beats triples
_DENSE_ENTRIES = 2.5e8
_ENTRIES = 2**18  # per piece, so that the data of a step stay in the cache
_TRIPLES = 2**14  # per step, so that their embeddings stay in the cache
_OF_A_GPU = 2**6  # times as many on a GPU, which processes them at once
_CELL = 8192, 1024  # left and right entities whose embeddings stay in the cache together


class SessionBlock(NamedTuple):
    """Responses of some right entities (neurons) to some left ones (stimuli).

    Attributes
    ----------
    left, right : numpy.ndarray of int
        Entities, (I,) and (J,); repeated ones are repeated trials.
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
        Entities of every record, (N,); repeated pairs are repeated trials.
    y : numpy.ndarray
        Responses, (N,).
    """

    left: np.ndarray
    right: np.ndarray
    y: np.ndarray


class Piece(NamedTuple):
    """Mean responses and their numbers of trials, of a block of pairs or of scattered ones; on the device of steps."""

    left: Any  # (I,), or (pair,)
    right: Any  # (J,), or (pair,)
    y: Any  # (I, J), or (pair,); NaN where nothing was observed or in padding
    count: Any = None  # of trials, like y; None if every pair has one

    def scattered(self) -> Self:
        """Return the observed pairs, one by one."""
        if self.y.ndim == 1:
            return self
        row, column = seen = np.nonzero(~np.isnan(self.y))
        count = None if self.count is None else self.count[seen]
        return Piece(self.left[row], self.right[column], self.y[seen], count)

    def rows(self, some: slice) -> Self:
        """Take some rows of a block, or some of the pairs."""
        right = self.right if self.y.ndim == 2 else self.right[some]
        return Piece(self.left[some], right, self.y[some], None if self.count is None else self.count[some])


class Merged(NamedTuple):
    """Mean response and number of trials of every observed pair, each pair once."""

    parts: list[Piece]  # blocks, or one of scattered pairs; all have counts or none has
    spread: float  # sum of squared differences between the responses and the means of their pairs

    def tiles_of(self, size: int) -> Iterator[Piece]:
        """Iterate over the observed pairs, scattered, at most about ``size`` at a time."""
        for part in self.parts:
            height = max(1, size // max(1, math.prod(part.y.shape[1:])))
            yield from (part.rows(some).scattered() for some in tiles_of(len(part.left), height))

    def scattered(self) -> Piece:
        """All observed pairs, one by one."""
        parts = [part.scattered() for part in self.parts]
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *columns: np.concatenate(columns), *parts)


# --------------------------------------------------------------------------------------- trials merged


def merge(responses: list[SessionBlock] | Triples | np.ndarray, m: int, n: int, layout: str) -> Merged:
    """Merge repeated trials, in the requested layout."""
    if isinstance(responses, Triples):
        if layout == "blocks":
            raise ValueError('layout is "blocks", but the responses are triples; use "triples", "dense" or "auto".')
        records = Piece(*responses)
    else:
        blocks, kept = responses, {"auto", "blocks"}
        if isinstance(responses, np.ndarray):
            blocks = [SessionBlock(np.arange(m), np.arange(n), responses)]
            kept = {"blocks", "dense"} | ({"auto"} if np.mean(~np.isnan(responses)) >= _DENSE_SHARE else set())
        if layout in kept:
            return merge_blocks(blocks)
        records = Merged([Piece(*block) for block in blocks], 0.0).scattered()
    # Pairs come out by cells of entities near each other, sorted by the right one.
    left, right = (np.asarray(ids, np.int64) for ids in records[:2])
    (tall, wide), n_cells = _CELL, n // _CELL[1] + 1
    key = ((left // tall * n_cells + right // wide) * wide + right % wide) * tall + left % tall
    place, mean, count, spread = merge_trials(key, np.asarray(records.y, np.float64))
    pairs = Piece(left[place].astype(np.int32), right[place].astype(np.int32), mean)
    pairs = pairs._replace(count=count) if (count > 1).any() else pairs
    dense = _DENSE_SHARE * m * n <= len(pairs.y) and m * n <= _DENSE_ENTRIES
    if layout != "triples" and (layout != "auto" or dense):
        pairs = Piece(np.arange(m), np.arange(n), *_table(pairs[:2], pairs, (m, n)))
    return Merged([pairs], spread)


def merge_blocks(blocks: list[SessionBlock]) -> Merged:
    """Merge the trials of every pair within and between blocks; repeats in a later block go to an earlier one."""
    parts, met = [Piece(*block) for block in blocks], _repeating(blocks)
    if not len(met):
        return Merged(parts, 0.0)
    records = [parts[b].scattered() for b in met]
    owner = np.repeat(met, [len(part.y) for part in records])
    left, right, y = (np.concatenate(column) for column in list(zip(*records, strict=True))[:3])
    key = left.astype(np.int64) * (int(right.max(initial=0)) + 1) + right
    place, mean, count, spread = merge_trials(key, np.asarray(y, np.float64))
    for b in met:
        mine = owner[place] == b
        pairs = Piece(left[place[mine]], right[place[mine]], mean[mine], count[mine])
        ids = [np.unique(given) for given in blocks[b][:2]]
        at = tuple(map(np.searchsorted, ids, pairs[:2]))
        parts[b] = Piece(*ids, *_table(at, pairs, tuple(map(len, ids))))
    if (count > 1).any():
        parts = [p if p.count is not None else p._replace(count=(~np.isnan(p.y)).astype(np.int32)) for p in parts]
    else:
        parts = [part._replace(count=None) for part in parts]
    return Merged(parts, spread)


def _table(at: tuple, pairs: Piece, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray | None]:
    """Lay scattered pairs out in a table, and their numbers of trials in another."""
    y = np.full(shape, np.nan)
    y[at] = pairs.y
    if pairs.count is None:
        return y, None
    count = np.zeros(shape, np.int32)
    count[at] = pairs.count
    return y, count


def merge_trials(key: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Return first place, mean and number of trials of every key, sorted by key, and the spread around the means."""
    place = np.argsort(key, kind="stable")
    key, y = key[place], y[place]
    start = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(y)])
    count = np.diff(np.append(start, len(y)))
    mean = np.add.reduceat(y, start) / count
    return place[start], mean, count, float(np.sum((y - np.repeat(mean, count)) ** 2))


def _repeating(blocks: list[SessionBlock]) -> np.ndarray:
    """Find blocks that name an entity twice, or share one on each side with another block."""

    def shown(side):
        ids = [getattr(block, side) for block in blocks]
        place = np.repeat(np.arange(len(ids)), [len(i) for i in ids]), np.concatenate(ids)
        shape = len(ids), int(place[1].max(initial=-1)) + 1
        return scipy.sparse.csr_array((np.ones(len(place[1]), np.int64), place), shape=shape)

    sides = shown("left"), shown("right")
    both = (sides[0] @ sides[0].T).multiply(sides[1] @ sides[1].T).tocoo()
    twice = [np.flatnonzero(side.max(axis=1).toarray() > 1) for side in sides if side.shape[1]]
    return np.unique(np.concatenate([both.row[both.row != both.col], *twice])).astype(int)


# --------------------------------------------------------------------------------- pieces for the device


def cut(merged: Merged, dtype) -> tuple[Piece, ...]:
    """Put merged responses on the device: scattered pairs in steps, or blocks of about equal shape together."""
    if len(merged.parts) == 1 and merged.parts[0].y.ndim == 1:
        pieces = [cut_scattered(merged.parts[0], dtype)]
    else:
        groups: dict[tuple[int, int], list] = {}
        for block in merged.parts:
            n_left, n_right = block.y.shape
            if not n_left or not n_right:
                continue
            width = rounded(n_right)
            n_cuts = -(-n_left * width // at_once(_ENTRIES))
            height = rounded(-(-n_left // n_cuts))
            groups.setdefault((height, width), []).extend(map(block.rows, tiles_of(n_left, height)))
        pieces = [_stack(cuts, *shape, dtype) for shape, cuts in sorted(groups.items())]
    return tuple(jax.tree.map(jax.numpy.asarray, piece) for piece in pieces)


def at_once(n: int) -> int:
    """Return the number of responses per step if a CPU would take n."""
    return n if default_device().platform == "cpu" else n * _OF_A_GPU


def cut_scattered(pairs: Piece, dtype, size: int | None = None) -> Piece:
    """Cut scattered pairs into steps; ``size`` is the number of places, padding included (None: as needed)."""
    n = len(pairs.y) if size is None else size
    n_steps = max(1, -(-n // at_once(_TRIPLES)))
    width = -(-n // n_steps) if n else 1

    def laid(values, fill, dtype):
        flat = np.full(n_steps * width, fill, dtype)
        flat[: len(values)] = values
        return flat.reshape(n_steps, width)

    fills = (0, np.int32), (0, np.int32), (np.nan, dtype), (1, dtype)
    return Piece(*(a if a is None else laid(a, *fill) for a, fill in zip(pairs, fills, strict=True)))


def _stack(cuts: list[Piece], height: int, width: int, dtype) -> Piece:
    """Stack parts of blocks, padded to one shape, a few in each step."""
    together = max(1, min(len(cuts), at_once(_ENTRIES) // (height * width)))
    n_steps = -(-len(cuts) // together)
    together = -(-len(cuts) // n_steps)  # so that fewer are empty
    n = n_steps * together
    left, right = np.zeros((n, height), np.int32), np.zeros((n, width), np.int32)
    count = None if cuts[0].count is None else np.ones((n, height, width), dtype)
    out = Piece(left, right, np.full((n, height, width), np.nan, dtype), count)
    for place, part in enumerate(cuts):
        n_left, n_right = part.y.shape
        out.left[place, :n_left], out.right[place, :n_right] = part.left, part.right
        out.y[place, :n_left, :n_right] = part.y
        if part.count is not None:
            out.count[place, :n_left, :n_right] = np.maximum(part.count, 1)
    return jax.tree.map(lambda a: a.reshape(n_steps, together, *a.shape[1:]), out)


def rounded(n: int) -> int:
    """Round n up to three significant bits, so that few shapes occur."""
    step = 1 << max(0, int(n - 1).bit_length() - 3)
    return -(-n // step) * step


# ----------------------------------------------------------------------------------------- units


class Units(NamedTuple):
    """Responses are ``shift + size`` times those of the fit.

    With the squared loss the objective is ``size^2`` times that of the fit if the ridge is divided by the size,
    embeddings are multiplied by its root, and biases by the size. Single precision then never handles large responses.
    """

    shift: np.ndarray  # mean response of every neuron, the overall mean if it has none; zeros without biases
    size: float = 1.0  # a power of 4, near the root mean square of the remainder; 1 for nonlinear towers
    start: float = 0.2  # root mean square of the initial embeddings, in units of the fit

    @classmethod
    def of(cls, records: Triples, n_neurons: int, biases: bool, linear: bool) -> Self:
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
        """Return the responses of the fit, in the form given."""
        if isinstance(given, np.ndarray):
            return (given - self.shift) / self.size
        parts = [given] if isinstance(given, Triples) else given
        parts = [part._replace(y=(part.y - self.shift[part.right]) / self.size) for part in parts]
        return parts[0] if isinstance(given, Triples) else parts

    def prior(self, prior: Any, n_stimuli: int) -> Any:
        """Return the prior of the fit: "mean" stays, others become factors."""
        if isinstance(prior, str) and (prior == "mean" or not self.shift.any()):
            return prior
        left, right = np.ones((n_stimuli, 1)), -self.shift[:, None] / self.size
        if isinstance(prior, str):
            return left, right
        return np.concatenate([prior[0], left], axis=1), np.concatenate([prior[1] / self.size, right], axis=1)
