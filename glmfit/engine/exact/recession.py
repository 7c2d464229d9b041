"""Existence of a likelihood's maximum: there is none if a direction worsens no row and improves some indefinitely.

Such a direction exists exactly if a linear programme has a solution (Albert and Anderson, On the existence of
maximum likelihood estimates in logistic regression models, 1984). Theory: docs/theory/self_concordance.md.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import linprog

_OPTIONS = {"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9}
_FIRST = 1000  # inequalities of the first programme, and those added to the next
_MOST = 3e6  # numbers in all programmes together: some seconds
_NOTHING = 1e-11  # of the largest row: smaller ones do not move
_MOST_UNKNOWNS, _MOST_ENTRIES = 1000, 3e7  # of a programme of classes
_ZERO = 1e-7  # of a row's own length: a smaller move is none, and may seem to violate an inequality
_ROUNDS, _CHANGES = 8, 150  # of `_project`; changes of the set of rows that one of its sums has more of
_HEAVY = 1e-3  # of the largest weight in a sum: rows with a larger one span the face that is left next
_SPANNED = 1e-9  # of the largest singular value: directions above it move some heavy row
_ROUNDED, _MOVED = 1e-8, 1e-4  # of the largest entry of a direction: moves of rows below and above these


def recedes(inequalities: np.ndarray) -> bool | None:
    """Whether there is a direction of recession, see `find_recession`."""
    found = find_recession(inequalities)
    return True if isinstance(found, np.ndarray) else found


def find_recession(inequalities: np.ndarray) -> np.ndarray | bool | None:
    """Find a u with ``a @ u <= 0`` for every row a of a matrix, and ``a @ u < 0`` for one of them.

    False if there is none, None if the programmes become too large to tell. A projection finds most directions at once;
    what it does not find, programmes decide by cutting planes: a programme of some rows, to which the rows that its
    solution violates are added. If the only solutions of a programme move no row, and its rows span the space, the same
    is true of all rows together. Rows are scaled to length one, so that short ones count as much as long ones.
    """
    size = np.linalg.norm(inequalities, axis=1)
    moves = size > _NOTHING * np.max(size, initial=0.0)
    rows = inequalities[moves] / size[moves, None]
    if not len(rows):
        return False
    _, singular, directions = np.linalg.svd(rows.T @ rows)
    moving = directions[singular > _ZERO**2 * singular[0]].T  # other directions move no row
    rows = rows @ moving
    found = _project(rows)
    # All rows may move with a margin, which is found quickly. Otherwise some stay, and the others are treated together.
    for apart in (True, False):
        found = found if isinstance(found, np.ndarray) else _search(rows, apart)
    return moving @ found if isinstance(found, np.ndarray) else found


def _project(rows: np.ndarray) -> np.ndarray | None:
    """Look for a direction: minus the shortest sum of all rows with weights of at least 1.

    No row moves up along it, by the optimality conditions, and if it is not 0, some move down. Heavy rows nearly cancel
    each other; rounding may hide what is left. Every direction then moves them little, and those that do not move them
    at all are searched next (facial reduction). What is found must hold for all rows; else the programmes decide.
    """
    space = np.eye(rows.shape[1])
    for _ in range(_ROUNDS):
        inside = rows @ space
        size = np.linalg.norm(inside, axis=1)
        inside = inside[size > _ZERO] / size[size > _ZERO, None]
        if not len(inside):
            return None
        total, weights = _shortest_sum(inside)
        u = space @ -total
        moves, length = rows @ u, np.abs(u).max()
        if moves.max() <= _ROUNDED * length and moves.min() < -_MOVED * length:
            return u
        _, spread, directions = np.linalg.svd(inside[weights > _HEAVY * weights.max()])
        rank = np.count_nonzero(spread > _SPANNED * spread.max(initial=0.0))
        if rank in (0, space.shape[1]):
            return None
        space = space @ directions[rank:].T
    return None


def _shortest_sum(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shortest sum of all rows with weights of at least 1, and by how much weights exceed 1.

    By the active set method of Lawson and Hanson (Solving least squares problems, 1974), for some changes at most.
    """
    start = rows.sum(axis=0)
    total, weights, active = start, np.zeros(len(rows)), np.zeros(0, int)
    for _ in range(_CHANGES):
        gain = -(rows @ total)
        gain[active] = -np.inf
        if not gain.max() > 1e-12 * np.linalg.norm(start):
            break
        active = np.append(active, np.argmax(gain))
        while len(active):
            best = np.linalg.lstsq(rows[active].T, -start, rcond=None)[0]
            if best.min() > 0:
                break
            before, falls = weights[active], best <= 0
            share = np.min(before[falls] / np.maximum(before[falls] - best[falls], 1e-300))
            now = before + share * (best - before)
            weights[active] = np.where(now > 1e-14, now, 0.0)
            active = active[now > 1e-14]
        weights[active] = best[: len(active)]
        total = start + weights[active] @ rows[active]
    return total, weights


def _search(rows: np.ndarray, apart: bool) -> np.ndarray | bool | None:
    """Look for a direction with a margin to all inequalities, or for one along which rows move most."""
    n_rows, n_unknowns = rows.shape
    margin = np.ones((n_rows, int(apart)))
    cost = np.append(np.zeros(n_unknowns), -1.0) if apart else None
    taken = np.zeros(n_rows, bool)
    taken[np.random.default_rng(0).permutation(n_rows)[:_FIRST]] = True
    room = _MOST
    while True:
        some = rows[taken]
        room -= some.size
        if room < 0:
            return None
        found = linprog(
            cost if apart else some.sum(axis=0), np.hstack([some, margin[taken]]), np.zeros(len(some)),
            bounds=[(-1, 1)] * (n_unknowns + apart), options=_OPTIONS,
        )  # fmt: skip
        if found.status != 0:
            return None
        u = found.x[:n_unknowns]
        moves = rows @ u
        if moves[taken].min() >= -_ZERO:
            if apart or taken.all() or np.linalg.svd(some, compute_uv=False)[-1] > _ZERO:
                return False
            taken[np.flatnonzero(~taken)[:_FIRST]] = True
            continue
        worst = np.argsort(-moves)[:_FIRST]
        worst = worst[(moves[worst] > 0.1 * _ZERO) & ~taken[worst]]
        if not len(worst):
            return u
        taken[worst] = True


def may_be_separated(problem, columns: Callable[[np.ndarray], np.ndarray]) -> bool | None:
    """Whether classes' scores can grow apart while no row with counts gets worse; None if this is expensive to compute.

    ``columns(rows)`` returns dense, centred features of some rows of the softmax problem, and the intercept's 1.

    In every row, a direction changes the scores of all classes with counts equally, and those of others by no more.
    """
    K, (row, label, _) = problem.n_classes, problem.pairs
    row, first = np.unique(row, return_index=True)
    own = label[first]
    n_unknowns = (problem.n_features + problem.fit_intercept) * K
    n_inequalities = len(row) * (K - 1) + len(label) - len(row)
    if n_unknowns > _MOST_UNKNOWNS or n_unknowns * n_inequalities > _MOST_ENTRIES:
        return None
    x = columns(row)
    size = np.sqrt(np.mean(x**2, axis=0))
    x = x / np.where(size > 0, size, 1.0)
    x = x if problem.fit_intercept else x[:, :-1]
    counted = np.zeros((len(row), K), bool)
    counted[np.repeat(np.arange(len(row)), np.diff(np.append(first, len(label)))), label] = True
    parts = []
    for k in range(K):
        for sign, which in ((1, own != k), (-1, (own != k) & counted[:, k])):
            part = np.zeros((which.sum(), K, x.shape[1]))
            part[:, k] = sign * x[which]
            part[np.arange(len(part)), own[which]] = -sign * x[which]
            parts.append(part.reshape(len(part), n_unknowns))
    return recedes(np.concatenate(parts))
