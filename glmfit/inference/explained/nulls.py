"""Null distributions for time series that keep the autocorrelation of counts and features and break their relation.

For the choice of a null see docs/how_to/explain.md.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...checks import check_choice, check_whole
from ...data.times import TimeAxis
from ...display import counted
from ...estimators.scores import are_epochs, is_epochs


class Rows(NamedTuple):
    """Rows of a fit, as nulls see them."""

    given: np.ndarray  # which of the rows given, (time,)
    n_given: int
    n_features: int
    n_neurons: int
    axis: TimeAxis | None  # of the rows given


class Draw(NamedTuple):
    """One draw of a null, which replaces counts or features."""

    source: np.ndarray | None = None  # row that each row gets its counts (features of the group) from, (row,)
    Y: np.ndarray | None = None  # counts, (row, neuron)
    X: np.ndarray | None = None  # features, (row, feature)


class Null(abc.ABC):
    """Null distribution: a number of draws, and their p-value.

    Attributes
    ----------
    n : int
        Draws, or shifts each way.
    of : {"counts", "features", "designs"}
        What a draw moves: the counts, the features of one group while the others stay, or all features.
    needs_all : bool
        Whether a p-value needs all draws, or enough draws that are not below the recording.
    """

    n: int
    of: str = "counts"
    needs_all = False

    @property
    def n_draws(self) -> int:
        """Number of draws."""
        return self.n

    @property
    def moves_counts(self) -> bool:
        """Whether every draw gives rows the counts of other rows."""
        return self.of == "counts"

    @abc.abstractmethod
    def draws(self, rows: Rows) -> Iterator[Draw]:
        """Yield the draws, the same ones every time."""

    def used(self, rows: Rows) -> np.ndarray | None:
        """Rows that statistics are computed from, as indices of those of the fit; None for all."""
        return None

    def p_value(self, n_above: np.ndarray, n_done: np.ndarray) -> np.ndarray:
        """Return the p-value after some draws, of which some were not below the observed statistic."""
        return (n_above + 1) / (n_done + 1)

    def enough(self, level: float) -> int:
        """Return how many draws not below the observed statistic put the p-value above a level, whatever follows."""
        return int(np.floor(level * (self.n + 1) + 1e-9))


@dataclass(frozen=True)
class CircularShift(Null):
    """Counts (or the features of a group) shifted circularly, within trials or sessions.

    Parameters
    ----------
    n : int
        Draws, default 100.
    within : IntervalSet, list of them, or array (time,), optional
        Trials or sessions, each shifted separately: an IntervalSet of epochs, or a label per row. Default all rows.
    least : int
        Smallest shift, in rows, default 1. Choose at least the memory of counts and features, so that no draw nearly
        equals the recording.
    of : {"counts", "features"}
        Whether to shift the counts, all neurons alike, or the features of each group separately.
    random_state : int
        Seed of the shifts, default 0.

    Notes
    -----
    Guarantee: the p-value is valid if the series within every trial or session looks the same from any point of the
    circle. A stationary series does, except where its ends meet. Drifts over a session violate this: use a
    `LinearShift`, or designs of other sessions.
    """

    n: int = 100
    within: Any = None
    least: int = 1
    of: str = "counts"
    random_state: int = 0

    def __post_init__(self):
        check_whole("n", self.n)
        check_whole("least", self.least)
        check_whole("random_state", self.random_state, 0)
        check_choice("of", self.of, ("counts", "features"))

    def draws(self, rows: Rows) -> Iterator[Draw]:
        """Yield the draws, the same ones every time."""
        rng, parts = np.random.default_rng(self.random_state), segments_of(self.within, rows)
        lengths = [len(part) for part in parts]
        if max(lengths) < 2 * self.least:
            raise ValueError(
                f"least is {self.least}, and no part of the recording is longer than {max(lengths)} rows (the "
                f"shortest has {min(lengths)}): nothing can be shifted that far in a circle. Give a smaller least."
            )
        for _ in range(self.n):
            source = np.arange(len(rows.given))
            for part in parts:
                if len(part) >= 2 * self.least:
                    source[part] = np.roll(part, rng.integers(self.least, len(part) - self.least + 1))
            yield Draw(source)


@dataclass(frozen=True)
class LinearShift(Null):
    """Counts shifted by whole rows, in both directions and not circularly, against the middle rows (Harris 2020).

    Parameters
    ----------
    largest : int
        Largest shift, in rows; as many rows are lost at each end of the recording.
    n : int
        Shifts in each direction, evenly spaced, default 100: 2 n draws, and 1 / (n + 1) as the smallest p-value.

    Notes
    -----
    Guarantee: the p-value is valid for stationary counts and any features, whatever their autocorrelation, and
    conservative by up to a factor of two (docs/theory/nested_models.md).
    """

    largest: int
    n: int = 100
    needs_all = True

    def __post_init__(self):
        check_whole("largest", self.largest)
        check_whole("n", self.n)
        if self.n > self.largest:
            raise ValueError(f"n is {self.n}, more than there are shifts of whole rows up to largest={self.largest}.")

    @property
    def n_draws(self) -> int:
        """Number of draws: shifts in both directions."""
        return 2 * self.n

    def _shifts(self) -> np.ndarray:
        step = self.largest // self.n
        each = step * np.arange(1, self.n + 1)
        return np.stack([each, -each], axis=1).ravel()

    def used(self, rows: Rows) -> np.ndarray:
        """Return the rows that all shifts leave in the recording."""
        far = int(np.abs(self._shifts()).max())
        if len(rows.given) <= 4 * far:
            raise ValueError(
                f"largest is {self.largest}, of {len(rows.given)} rows: less than half would remain. Shift by at most "
                f"{(len(rows.given) - 1) // 4} rows."
            )
        return np.arange(far, len(rows.given) - far)

    def draws(self, rows: Rows) -> Iterator[Draw]:
        """Yield the draws, the same ones every time."""
        middle = self.used(rows)
        for shift in self._shifts():
            yield Draw(middle + shift)

    def p_value(self, n_above, n_done):
        """Return the p-value after all shifts, or a lower bound of it after some of them."""
        return np.minimum((n_above + 1) / (self.n + 1), 1.0)


@dataclass(frozen=True)
class Permutation(Null):
    """Sessions or trials of one length, with the counts of each paired with the features of another.

    Parameters
    ----------
    within : IntervalSet, list of them, or array (time,)
        Sessions or trials: an IntervalSet of epochs, or a label per row.
    n : int
        Draws, default 100.
    random_state : int
        Seed of the permutations, default 0.

    Notes
    -----
    Guarantee: the p-value is valid if sessions (trials) are exchangeable, whatever happens within them; with k of them
    there are k! permutations. Rows beyond the length of the shortest stay in place.
    """

    within: Any
    n: int = 100
    random_state: int = 0

    def __post_init__(self):
        check_whole("n", self.n)
        check_whole("random_state", self.random_state, 0)

    def draws(self, rows: Rows) -> Iterator[Draw]:
        """Yield the draws, the same ones every time."""
        rng, parts = np.random.default_rng(self.random_state), segments_of(self.within, rows)
        if len(parts) < 2:
            raise ValueError("within has one session; there is nothing to permute. Give at least two.")
        length = min(map(len, parts))
        for _ in range(self.n):
            source = np.arange(len(rows.given))
            for part, other in zip(parts, rng.permutation(len(parts)), strict=True):
                source[part[:length]] = parts[other][:length]
            yield Draw(source)


class _Given(Null):
    moves_counts = False

    def __init__(self, arrays: Iterable, n: int | None = None):
        if n is None and not hasattr(arrays, "__len__"):
            raise ValueError(f"n is None; give the number of arrays in {type(arrays).__name__}, such as n=100.")
        self.arrays, self.n = arrays, check_whole("n", len(arrays) if n is None else n)  # type: ignore[arg-type]

    def _each(self, rows: Rows, what: str, n_columns: int) -> Iterator[np.ndarray]:
        k = -1
        for k, given in zip(range(self.n), self.arrays, strict=False):
            array = np.asarray(given)
            array = array[:, None] if array.ndim == 1 else array
            if array.shape != (rows.n_given, n_columns):
                raise ValueError(
                    f"{what} {k} of the null have shape {array.shape}; those of the fit have "
                    f"{(rows.n_given, n_columns)}."
                )
            array = array[rows.given]
            if not np.isfinite(array).all():
                raise ValueError(f"{what} {k} of the null are not finite in rows that count for the fit.")
            yield array
        if k + 1 < self.n:
            raise ValueError(f"the null gives {k + 1} arrays of {what} instead of n={self.n}.")


class Designs(_Given):
    """Pseudosessions, or designs of other sessions, that replace the features of the recording (Harris 2020).

    Parameters
    ----------
    arrays : iterable of array (time, feature)
        Features with the rows and columns of X. An iterator is consumed once.
    n : int, optional
        Number of arrays, if the iterable has no length.

    Notes
    -----
    Guarantee: the p-value is valid if the features of the recording are one more draw from the process that made the
    arrays, and otherwise independent of the counts.
    """

    of = "designs"

    def draws(self, rows: Rows) -> Iterator[Draw]:
        """Yield the draws, the same ones every time."""
        yield from (Draw(X=array) for array in self._each(rows, "features", rows.n_features))


class Counts(_Given):
    """Counts that replace those of the recording: simulated, or shuffled as the experiment allows.

    Parameters
    ----------
    arrays : iterable of array (time, neuron)
        Counts with the rows and columns of y. An iterator is consumed once.
    n : int, optional
        Number of arrays, if the iterable has no length.
    """

    def draws(self, rows: Rows) -> Iterator[Draw]:
        """Yield the draws, the same ones every time."""
        yield from (Draw(Y=array) for array in self._each(rows, "counts", rows.n_neurons))


def segments_of(within: Any, rows: Rows) -> list[np.ndarray]:
    """List the rows of every trial or session, in their order, as indices into those of the fit; drop other rows."""
    if within is None:
        return [np.arange(len(rows.given))]
    if is_epochs(within) or are_epochs(within):
        if rows.axis is None:
            raise ValueError("within has epochs, but neither X nor y has times; give a label per row.")
        t, epochs = rows.axis.t[rows.given], [within] if is_epochs(within) else within
        ends = [(a, b) for some in epochs for a, b in zip(some.start, some.end, strict=True)]
        parts = [np.flatnonzero((t >= a) & (t <= b)) for a, b in ends]
    else:
        labels = np.asarray(within)
        if labels.shape != (rows.n_given,):
            raise ValueError(f"within has shape {labels.shape}; it must be a label per row, ({rows.n_given},).")
        labels = labels[rows.given]
        parts = [np.flatnonzero(labels == label) for label in dict.fromkeys(labels.tolist())]
    parts = [part for part in parts if len(part)]
    if not parts:
        raise ValueError("within has no row that counts for the fit.")
    if shared := sum(map(len, parts)) - len(np.unique(np.concatenate(parts))):
        raise ValueError(
            f"within has epochs that overlap or touch: {counted(shared, 'row')} would belong to two of them. Give "
            "epochs without rows in common, or a label per row."
        )
    return parts
