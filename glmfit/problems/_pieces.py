"""Rows cut into pieces that several sets of rows share."""

from __future__ import annotations

import numpy as np

_MANY = 2  # pieces per set of rows, beyond which every set is a piece of its own


def split_rows(train: np.ndarray, size: int) -> tuple[list, np.ndarray]:
    """Chunks of rows that are in the same sets, as (piece, rows), and which sets hold each piece (piece, fold)."""
    patterns, of = np.unique(np.packbits(train, axis=1), axis=0, return_inverse=True)
    of = of.ravel()
    if len(patterns) <= _MANY * train.shape[1]:
        member = np.array([train[np.flatnonzero(of == p)[0]] for p in range(len(patterns))])
        rows = [np.flatnonzero(of == p) for p in range(len(patterns))]
    else:
        member = np.eye(train.shape[1], dtype=bool)
        rows = [np.flatnonzero(train[:, f]) for f in range(train.shape[1])]
    tasks = []
    for p, r in enumerate(rows):
        for start in range(0, len(r), size):
            part = r[start : start + size]
            whole = part[-1] - part[0] + 1 == len(part)
            tasks.append((p, slice(int(part[0]), int(part[-1]) + 1) if whole else part))
    return tasks, member
