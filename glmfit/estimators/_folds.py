"""Which rows are fitted and which are scored in every fold of a cross-validation."""

from __future__ import annotations

import numbers
from typing import NamedTuple

import numpy as np

from .._progress import counted
from .._warn import warn_user
from ..data.counts import Training
from ..data.times import TimeAxis

_MANY = 20  # epochs, each a fold, that hardly anybody wants


class Folds(NamedTuple):
    """Rows to fit and rows to score of every fold."""

    train: np.ndarray  # bool, (time, fold)
    test: np.ndarray


def make_folds(cv, data: Training, axis: TimeAxis | None) -> Folds:
    """Read ``cv`` of `PopulationGLMCV`: rows are those that are fitted, indices and ``axis`` those that were given."""
    rows, n_given = data.rows, data.n_given
    n = len(rows)
    if isinstance(cv, numbers.Integral) and not isinstance(cv, bool):
        if not 2 <= cv <= n:
            raise ValueError(f"cv is {cv}; contiguous blocks must be at least 2 and at most the {n} rows that count.")
        number = np.arange(n) * int(cv) // n
        test = number[:, None] == np.arange(cv)
        return Folds(~test, test)
    if is_epochs(cv):
        if len(cv) > _MANY:
            warn_user(
                f"cv has {len(cv)} epochs, and each is a fold: every neuron is fitted {len(cv) + 1} times at every "
                "strength. For 5 folds of whole epochs pass cv=[epochs[i::5] for i in range(5)], where epochs is the "
                "IntervalSet."
            )
        return _of_epochs(list(zip(cv.start, cv.end, strict=True)), rows, axis, "an IntervalSet", "epoch")
    if hasattr(cv, "split") and not isinstance(cv, str):
        full = np.zeros(n_given)
        full[rows] = data.Y.sum(axis=1, dtype=np.float64)
        try:
            pairs = list(cv.split(np.zeros((n_given, 1)), full))
        except ValueError as error:
            raise ValueError(
                f"cv is {cv!r}, which cannot split {n_given} rows by X and y alone ({error}). For a splitter that "
                "needs groups pass the pairs: list(cv.split(X, y, groups))."
            ) from error
    elif np.iterable(cv) and not isinstance(cv, str):
        given = list(cv)
        if are_epochs(given):
            return _of_epochs([(e.start, e.end) for e in given], rows, axis, "a list of IntervalSets", "fold")
        if any(map(is_epochs, given)):
            raise ValueError(
                "cv has IntervalSets and other folds; give IntervalSets only, or pairs of row indices only."
            )
        pairs = [tuple(pair) if np.iterable(pair) else (pair,) for pair in given]
    else:
        raise ValueError(
            f"cv is {cv!r}; it must be a number of contiguous blocks, a pynapple IntervalSet, a list of them, a "
            "scikit-learn splitter, or pairs of (train, test) row indices."
        )
    return _of_pairs(pairs, rows, n_given)


def is_epochs(value) -> bool:
    """Whether a value is an IntervalSet of pynapple."""
    return hasattr(value, "start") and hasattr(value, "end") and hasattr(value, "in_interval")


def are_epochs(value) -> bool:
    """Whether a value is a list of them."""
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(is_epochs, value))


def _of_epochs(folds: list, rows, axis, given: str, what: str) -> Folds:
    if axis is None:
        raise ValueError(f"cv is {given}, but neither X nor y has times; give pynapple objects, or row indices.")
    t = axis.t[rows][:, None]
    test = np.column_stack([((t >= np.asarray(start)) & (t <= np.asarray(end))).any(axis=1) for start, end in folds])
    again = int(np.sum(test.sum(axis=1) > 1))
    if again:
        warn_user(
            f"{what}s of cv overlap, so that rows ({again} of {len(test)}) are scored more than once. Make them "
            "disjoint, for example by IntervalSet.set_diff."
        )
    return _checked(~test, test, what)


def _of_pairs(pairs, rows, n_given) -> Folds:
    masks = np.zeros((2, n_given, len(pairs)), bool)
    for f, pair in enumerate(pairs):
        if len(pair) != 2:
            raise ValueError(f"cv has {len(pair)} entries in fold {f}; it needs two, train and test row indices.")
        for mask, chosen in zip(masks, pair, strict=True):
            chosen = np.asarray(chosen)
            if chosen.dtype == bool and chosen.shape == (n_given,):
                chosen = np.flatnonzero(chosen)
            if chosen.dtype.kind not in "iu" or chosen.size == 0 or chosen.min() < 0 or chosen.max() >= n_given:
                raise ValueError(
                    f"cv holds no rows, or rows that do not exist, in fold {f}; indices go from 0 to {n_given - 1}."
                )
            mask[chosen, f] = True
    return _checked(*masks[:, rows], "fold")


def _checked(train, test, what: str) -> Folds:
    if train.shape[1] < 2:
        raise ValueError(f"cv has {counted(train.shape[1], what)}; it takes at least two to compare strengths.")
    both = np.flatnonzero((train & test).any(axis=0))
    if both.size:
        raise ValueError(f"{what} {both[0]} of cv has rows both to fit and to score, which says nothing.")
    empty = np.flatnonzero((train.sum(axis=0) < 2) | ~test.any(axis=0))
    if empty.size:
        raise ValueError(
            f"{what} {empty[0]} of cv has {train[:, empty[0]].sum()} rows to fit and {test[:, empty[0]].sum()} to score"
            " (rows with NaN and of weight 0 do not count); leave it out."
        )
    return Folds(train, test)
