"""Whether a likelihood has a maximum: a direction in which no row gets worse, and some get better for ever.

Such a direction exists exactly where a linear programme has a solution (Albert and Anderson, On the existence of
maximum likelihood estimates in logistic regression models, 1984). Theory: docs/theory/self_concordance.md.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

_FIRST = 5000  # inequalities of the first programme, and those added to the next
_ROUNDS = 20
_SECONDS = 10.0  # of one programme
_ZERO = 1e-7  # of the largest: what is less is 0


def recedes(inequalities: np.ndarray) -> bool | None:
    """Whether some u has ``a @ u <= 0`` for every row a of a matrix, and ``a @ u < 0`` for one of them.

    Parameters
    ----------
    inequalities :
        Rows a, float64 (row, unknown).

    Returns
    -------
    bool or None
        None where the programmes took too long to tell.

    Notes
    -----
    Cutting planes: a programme of some rows, to which those that its solution violates are added. Where a programme has
    no solution but those that move no row, and its rows span the space, neither have all rows together.
    """
    size = np.linalg.norm(inequalities, axis=1)
    rows = inequalities[size > _ZERO * np.max(size, initial=0.0)]
    rows = rows / np.linalg.norm(rows, axis=1)[:, None]
    if not len(rows):
        return False
    _, singular, directions = np.linalg.svd(rows.T @ rows)
    rows = rows @ directions[singular > _ZERO**2 * singular[0]].T  # others move no row
    taken = np.zeros(len(rows), bool)
    taken[np.random.default_rng(0).permutation(len(rows))[:_FIRST]] = True
    for _ in range(_ROUNDS):
        some = rows[taken]
        found = linprog(some.sum(axis=0), some, np.zeros(len(some)), bounds=(-1, 1), options={"time_limit": _SECONDS})
        if found.status != 0:
            return None
        moves = rows @ found.x
        if moves[taken].min() >= -_ZERO:
            if taken.all() or np.linalg.svd(some, compute_uv=False)[-1] > _ZERO:
                return False
            taken[np.flatnonzero(~taken)[:_FIRST]] = True
            continue
        if moves.max() <= _ZERO * 10:
            return True
        worst = np.argsort(-moves)[:_FIRST]
        taken[worst[moves[worst] > _ZERO]] = True
    return None
