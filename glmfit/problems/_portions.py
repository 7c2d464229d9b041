"""Rows that do not fit in memory: which belong together, and portions of them read ahead of need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

_PORTION = 8  # blocks on the device at a time
_AHEAD = 2  # portions read before they are asked for


class Layout(NamedTuple):
    """A fixed random partition of runs of neighbouring rows into blocks of equal shape."""

    runs: np.ndarray  # (block, run of the block), number of the run; -1 for none
    run_rows: int  # rows of a run
    n_rows: int  # of the whole
    portion: int  # blocks read at a time; their number is a multiple of it

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self.runs)

    @property
    def block_rows(self) -> int:
        """Rows of a block, padding included."""
        return self.runs.shape[1] * self.run_rows

    def pieces(self, block: int) -> Iterator[tuple[slice, slice]]:
        """Slices of the recording that make up a block, and where they lie in it."""
        for place, run in enumerate(self.runs[block]):
            if run >= 0:
                first = int(run) * self.run_rows
                rows = slice(first, min(first + self.run_rows, self.n_rows))
                yield rows, slice(place * self.run_rows, place * self.run_rows + rows.stop - rows.start)


def lay_out(n_rows: int, run_rows: int, batch_size: int, seed: int, portion: int = _PORTION) -> Layout:
    """Draw a partition with blocks of about ``batch_size`` rows.

    Parameters
    ----------
    n_rows, run_rows : int
        Rows of the recording, and neighbours that are read at once.
    batch_size : int
        Asked for; a run at least.
    seed : int
        The partition depends on nothing else.
    portion : int
        Most blocks to read at once.

    Returns
    -------
    Layout
    """
    run_rows = min(run_rows, batch_size, n_rows)
    n_runs = -(-n_rows // run_rows)
    wanted = -(-n_runs // max(1, round(batch_size / run_rows)))
    n_portions = -(-wanted // portion)
    portion = -(-wanted // n_portions)
    n_blocks = n_portions * portion
    per_block = -(-n_runs // n_blocks)
    order = np.full(n_blocks * per_block, -1)
    order[:n_runs] = np.random.default_rng(int(seed)).permutation(n_runs)
    # What is missing is missing from the last place of some blocks, not from a few blocks as a whole.
    return Layout(order.reshape(per_block, n_blocks).T, run_rows, n_rows, portion)


def read_ahead(read, requests: Iterable) -> Iterator:
    """Yield ``read(request)`` for every request, in order, reading in a thread before they are asked for.

    Whatever ``read`` raises is raised where its result would have come.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="glmfit-read")
    waiting: list[Future] = []
    try:
        for request in requests:
            waiting.append(pool.submit(read, request))
            if len(waiting) > _AHEAD:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
