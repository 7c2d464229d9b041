"""Which rows an epoch visits, as a function of the seed and the epoch alone, so that a resumed fit repeats it."""

from __future__ import annotations

import numpy as np

SAMPLINGS = ("partition", "subsets", "shuffle")


def epoch_order(sampling: str, seed: int, epoch: int, n_blocks: int, batch_size: int, n_rows: int) -> np.ndarray:
    """Draw the visiting order of one epoch.

    Parameters
    ----------
    sampling :
        "partition": blocks of the fixed random partition, independently and uniformly, (n_blocks,).
        "shuffle": every block once, in random order, (n_blocks,).
        "subsets": independent uniform subsets of rows without replacement, (n_blocks, batch_size).
    seed, epoch :
        The draw depends on nothing else.
    n_blocks, batch_size, n_rows :
        Layout of the rows.

    Returns
    -------
    numpy.ndarray
        int32 block or row numbers.
    """
    rng = np.random.default_rng([int(seed), 2, int(epoch)])
    if sampling == "partition":
        order = rng.integers(0, n_blocks, n_blocks)
    elif sampling == "shuffle":
        order = rng.permutation(n_blocks)
    else:
        order = np.stack([rng.choice(n_rows, batch_size, replace=False, shuffle=False) for _ in range(n_blocks)])
    return order.astype(np.int32)
