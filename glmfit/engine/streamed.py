"""Rows that are read again in every pass: fits keep their parameters only, and some rows in memory guide steps.

Theory: docs/theory/streaming.md.
"""

import copy
from typing import Any, Self

import jax
import numpy as np

from ..threads import Workers, n_cores
from .host import HostRows
from .population import PopulationProblem
from .tiles import ALL, rows_of_a_tile, tiles_of

_TILE_BYTES = 4e6  # bytes that are read at once, unless a source has larger chunks
_RUN = 256  # neighbouring rows of a sample
_LEAST_RUNS = 64
_PER_FEATURE = 20  # rows of a sample, at least


class StreamedRows(Workers):
    """Rows of independent fits that are read when needed, with the methods of :class:`HostRows`.

    No array as long as the recording is kept: predictors and curvature are recomputed when needed, which costs less
    than reading. A tile of rows is a :class:`HostRows` while a thread works on it. Metrics and step lengths come from
    the ``guide``, the same fits on some rows in memory, so that a step reads the rows once. The mean weight of these
    rows is ``share``, a number, or (fit,) if neurons have their ``own`` weights, which ``scale`` (fit,) rescales to
    mean one. Gradients and inputs of proofs come from all rows. A fit that makes slow progress stops trusting the
    guide, and all its passes read all rows. ``max_bytes`` limits what all threads read at a time.
    """

    waiting = 2
    selects, held = False, True

    def __init__(
        self, X, Y, guide: HostRows, share=1.0, weights=None, offset=None, own=None, scale=None, max_bytes=np.inf
    ):
        self.X, self.Y, self.weights, self.offset, self.own, self.n_rows = X, Y, weights, offset, own, len(X)
        self.scale = scale
        self.guide, self.share = guide, share
        self.observation, self.mean, self.dtype = guide.observation, guide.mean, guide.dtype
        self.passes = 0.0
        d, n = X.shape[1], len(guide.neuron)
        self._at, self._direction, self._slopes = np.full((3, d + 1, n), np.nan)
        self._seen: tuple | None = None  # centre, spread, furthest and longest
        self._unit, self._led = np.ones(d), False
        self._trusts = np.ones(n, bool)  # the guide
        row_bytes = d * (X.dtype.itemsize + self.dtype.itemsize) + n * (Y.dtype.itemsize + 4 * self.dtype.itemsize)
        tile, chunk = rows_of_a_tile(n), getattr(X, "chunk_rows", 1)
        size = tile * max(1, round(_TILE_BYTES / row_bytes / tile))
        size = size if size >= 4 * chunk else chunk * -(-size // chunk)  # chunks are read whole
        workers = n_cores() + self.waiting
        self.tile_rows = max(16, int(min(size, max_bytes / (row_bytes * workers))))
        self.held_bytes = self.tile_rows * row_bytes * workers
        self._most_hessians = max(1, int(min(n, max_bytes / (8 * (d + 1) ** 2 * 2 * (workers + 1)))))

    def __enter__(self) -> Self:
        """Start threads, some of which wait for rows while the others compute."""
        super().__enter__()
        self.lend_to(self.guide)
        return self

    def _there(self, fits, look):
        """Look at a tile at the parameters of some fits; proofs require the curvature of exact predictors."""
        at = self._at[:, fits]
        return lambda part: (part.put(at), look(part))[1]

    def _read(self, look, fits=ALL) -> tuple:
        """Read all rows once; ``look`` at a tile, as rows in memory, returns what is averaged and what is maximised."""
        pattern = copy.copy(self.guide)
        pattern.neuron = pattern.neuron[fits]
        pattern.scale = None if self.scale is None else self.scale[fits]

        def tile(rows):
            more = (None if a is None else a[rows] for a in (self.weights, self.offset, self.own))
            mean, most = look(pattern.with_rows(self.X[rows], self.Y[rows], *more))
            return jax.tree.map(lambda a: a * ((rows.stop - rows.start) / self.n_rows), mean), most

        found = None
        for here in self.each(tile, tiles_of(self.n_rows, self.tile_rows)):
            if found is None:
                found = here
            else:
                found = jax.tree.map(np.add, found[0], here[0]), jax.tree.map(np.maximum, found[1], here[1])
        return found

    # ---------------------------------------------------------------- passes that guide steps

    def place(self, at) -> np.ndarray:
        """Set the parameters of all fits; return the gradient there. Unchanged fits are not read."""
        moved = np.flatnonzero(np.any(at != self._at, axis=0))
        self._at, self._led = at.copy(), False
        if len(moved):
            self._slopes[:, moved], _ = self._read(lambda part: (part.place(at[:, moved]), None), moved)
            self._seen = None
            self.passes += len(moved) / at.shape[1]
        return self._slopes.copy()

    def along(self, p) -> np.ndarray:
        """Keep a direction; return the mean of curvature times its squared predictors, by the guide, (fit,)."""
        self._direction = p
        bend = self._guided.along(p)
        at = np.flatnonzero(~self._trusts & np.any(p != 0, axis=0))
        if len(at):
            look = self._there(at, lambda part: (part.along(p[:, at]), None))
            bend[at] = self._read(look, at)[0]
        return bend

    def move(self, step, at: np.ndarray | None = None) -> np.ndarray:
        """Go ``step`` (fit,) along the direction, and return the gradient of the mean loss there."""
        at = np.arange(len(self.guide.neuron)) if at is None else at
        lengths = np.zeros(len(self.guide.neuron))
        lengths[at] = step
        return self.place(self._at + lengths * self._direction)[:, at]

    @property
    def _guided(self) -> HostRows:
        """Guide at the parameters of the fits."""
        if not self._led:
            self.guide.put(self._at)
            self._led = True
        return self.guide

    def some(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the guide, at most about n: centred features (row, feature) and curvature (row, fit)."""
        x, curvature = self._guided.some(rng, n)
        return x, curvature * np.asarray(self.share, curvature.dtype)

    def hessians(self, fits, scale, columns=None) -> list[np.ndarray]:
        """Hessians of some fits, see :meth:`HostRows.hessians`: by the guide if the fit trusts it, else by all rows."""
        found, trusts = [None] * len(fits), self._trusts[fits]
        led, sure = np.flatnonzero(trusts), np.flatnonzero(~trusts)
        shares = [led] if len(led) else []
        shares += np.array_split(sure, -(-len(sure) // self._most_hessians)) if len(sure) else []
        for share in shares:
            some, own = fits[share], None if columns is None else [columns[i] for i in share]
            if trusts[share[0]]:
                matrices = self._guided.hessians(some, scale, own)
            else:
                every = np.arange(len(some))
                look = self._there(some, lambda part, k=every, c=own: (part.hessians(k, scale, c), None))
                matrices = self._read(look, some)[0]
            for i, matrix in zip(share, matrices, strict=True):
                found[i] = matrix
        return found

    def doubt(self, fits) -> None:
        """Read all rows for Hessians and lengths of some fits from now on: the guide does not suit them."""
        self._trusts[fits] = False

    # ---------------------------------------------------------------- passes that results rest on

    def evaluate(self, at, dual: bool = False):
        """Compute mean loss and gradient in float64, and the sums for a dual bound; see :meth:`HostRows.evaluate`."""

        def look(part):
            found = part.evaluate(at, dual)
            mean, most = self._survey(part)
            return (found, mean), most

        (found, mean), most = self._read(look)
        self._seen = mean, most
        self.passes += 1 + dual
        self._at, self._led, self._slopes = at.copy(), False, found[1].copy()
        return found

    def _survey(self, part: HostRows) -> tuple[tuple, tuple]:
        """Compute what proofs need of rows at the parameters: centre and spread, furthest and longest."""
        longest, spread = part.longest(self._unit)
        return (part.centre(), spread), (part.furthest(), longest)

    def _surveyed(self) -> tuple[tuple, tuple]:
        if self._seen is None:
            self._seen = self._read(self._there(ALL, self._survey))
        return self._seen

    def centre(self) -> np.ndarray:
        """Means of curvature times centred features, then of curvature itself, (feature + 1, fit)."""
        return self._surveyed()[0][0]

    def furthest(self) -> np.ndarray:
        """Largest ``|eta|`` of each fit over the rows that count, (fit,)."""
        return self._surveyed()[1][0]

    def longest(self, unit: np.ndarray) -> tuple[float, np.ndarray]:
        """Largest norm of a row divided by ``unit``, and mean curvature times its square; see `HostRows.longest`."""
        if np.any(unit != self._unit):
            self._unit, self._seen = unit, None
        (_, spread), (_, longest) = self._surveyed()
        return longest, spread

    def products(self, p, at: np.ndarray | None = None, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Hessians of the mean loss times a direction, and its reach; see :meth:`HostRows.products`."""
        fits = ALL if at is None else at
        self.passes += 1.5 * p.shape[1] / len(self.guide.neuron)
        return self._read(self._there(fits, lambda part: part.products(p, exact=exact)), fits)

    def reach(self, at) -> np.ndarray:
        """Largest ``|D|`` of some fits over the rows that count, by the guide if the fit trusts it, (fit,)."""
        reach, p = self._guided.reach(at), self._direction
        sure = np.flatnonzero(~self._trusts[at])
        if len(sure):
            fits, every = at[sure], np.arange(len(sure))
            look = self._there(fits, lambda part: (part.along(p[:, fits]), part.reach(every)))
            reach[sure] = self._read(look, fits)[1]
        return reach

    # ---------------------------------------------------------------- which fits

    def split(self, *indices: np.ndarray) -> list[Self]:
        """Return rows for the fits of each index array, with their parameters."""
        parts = [copy.copy(self) for _ in indices]
        for part, index, guide in zip(parts, indices, self._guided.split(*indices), strict=True):
            part.guide, part._trusts = guide, self._trusts[index]
            part._at, part._direction, part._slopes = (a[:, index] for a in (self._at, self._direction, self._slopes))
            part.scale, part.share = (a[index] if np.ndim(a) else a for a in (self.scale, self.share))
            part.passes, part._seen = 0.0, None
        return parts


def draw(problem: PopulationProblem, max_bytes: float, seed: int) -> tuple[PopulationProblem, Any]:
    """Read some of the rows: runs spread over the recording, as a problem in memory, and their mean weight.

    As many rows as fit in ``max_bytes``, but at most half of those that count, and at least some for every feature.
    """
    row_bytes = (2 * problem.n_features + 7 * problem.n_neurons + 1) * problem.dtype.itemsize
    n = int(min(max(max_bytes / row_bytes, _PER_FEATURE * (problem.n_features + 1)), problem.n_counted // 2))
    length = max(1, min(_RUN, n // _LEAST_RUNS))
    starts = np.arange(0, problem.n_rows, length)
    if problem.weights is not None:
        starts = starts[np.add.reduceat(problem.weights, starts) > 0]
    rng = np.random.default_rng([int(seed), 4])
    some = max(1, min(len(starts), n // length))
    chosen = np.unique(((np.arange(some) + rng.random(some)) * (len(starts) / some)).astype(int))
    rows = (starts[chosen][:, None] + np.arange(length)).ravel()
    rows = rows[rows < problem.n_rows]
    rows = rows if problem.weights is None else rows[problem.weights[rows] > 0]
    X, Y = (_gather(a, rows) for a in (problem.X, problem.Y))
    weights, offset = (None if a is None else a[rows] for a in (problem.weights, problem.offset))
    own = None if problem.own is None else _gather(problem.own, rows)
    sample = PopulationProblem(X, Y, problem.observation, problem.penalty, weights, problem.dtype, offset, own=own)
    share = 1.0 if weights is None else float(weights.mean())
    if own is not None:  # a neuron without weight there has no guide
        share = share * problem.scale / np.where(sample.scale > 0, sample.scale, np.inf)
    return sample, share


def _gather(rows_of, chosen: np.ndarray) -> np.ndarray:
    """Return rows of increasing indices; each chunk that has some of them is read once."""
    chunk = max(_RUN, getattr(rows_of, "chunk_rows", _RUN))
    edges = np.flatnonzero(np.diff(chosen // chunk)) + 1
    parts = []
    for some in np.split(chosen, edges):
        start = int(some[0])
        parts.append(rows_of[start : int(some[-1]) + 1][some - start])
    return np.concatenate(parts)
