"""Data of a session, whatever they were read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..data.arrays import numbers
from ..display import counted

if TYPE_CHECKING:
    import pynapple as nap

_REPEATED = 0.01  # of the samples of a signal: so many may have the time of another, whose value is kept


class Signal(NamedTuple):
    """Samples of a quantity over time."""

    times: np.ndarray  # (sample,) s, increasing
    values: np.ndarray  # (sample, column)
    columns: tuple[str, ...]  # empty for a signal without columns
    support: np.ndarray  # (interval, 2) s


class Session:
    """The data of one session: a recording, or a design that is ready.

    Parameters
    ----------
    spikes : pynapple.TsGroup, dict or tuple, optional
        Spike times in s: of each unit by name; or ``(times, unit)``, two arrays with an entry per spike.
    signals : dict, optional
        Name -> pynapple Tsd or TsdFrame, or ``(times, values)`` with values (sample,) or (sample, column).
    epochs : dict, optional
        Name -> pynapple IntervalSet, or an array of starts and stops in s, (epoch, 2).
    X, y, sample_weight, offset, exposure : array-like, optional
        Arguments of the estimator's ``fit``, instead of a recording.
    feature_names, neuron_names : sequence of str, optional
        Names of the columns of X and of y.
    min_spikes : int
        Units with fewer spikes are excluded.

    Attributes
    ----------
    spikes, signals, epochs : dict
        By name: sorted times of a unit, s; times, values (sample, column), names of columns and support of a signal;
        (epoch, 2), s. Empty for matrices.
    few_spikes : dict of int
        Units excluded, with the number of their spikes.
    support : numpy.ndarray or None
        Time support of the spikes, (interval, 2), s: that of a TsGroup, else from the first to the last spike.
    matrices : dict of numpy.ndarray, or None
        X, y and the rest of what was given; None for a recording.

    Raises
    ------
    TypeError, ValueError
        If anything does not have these forms; the message names the problem.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit.design import Session
    >>> session = Session(
    ...     spikes={"a": [0.1, 0.5], "b": [0.2]}, signals={"speed": ([0.0, 0.5, 1.0], [1.0, 2.0, 3.0])}
    ... )
    >>> session.signals["speed"].values.shape
    (3, 1)
    >>> Session(X=np.ones((5, 2)), y=np.ones(5)).matrices["X"].shape
    (5, 2)
    """

    def __init__(
        self,
        spikes: nap.TsGroup | Mapping[Any, Any] | tuple[ArrayLike, ArrayLike] | None = None,
        signals: Mapping[str, Any] | None = None,
        epochs: Mapping[str, Any] | None = None,
        *,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
        neuron_names: Sequence[str] | None = None,
        min_spikes: int = 0,
    ):
        parts = {"X": X, "y": y, "sample_weight": sample_weight, "offset": offset, "exposure": exposure}
        parts |= {"feature_names": feature_names, "neuron_names": neuron_names}
        given = {name: value for name, value in parts.items() if value is not None}
        recording = {"spikes": spikes, "signals": signals, "epochs": epochs}
        recorded = [name for name, value in recording.items() if value is not None]
        if given and recorded:
            needs = "a session is a recording (spikes, signals, epochs) or matrices (X, y and related arrays)."
            raise ValueError(f"{', '.join(recorded)} and {', '.join(given)} are given; {needs}")
        if not given and not recorded:
            raise ValueError("nothing is given; a session needs spikes, or X and y.")
        self.matrices = _matrices(given) if given else None
        trains, self.support = _spikes(spikes) if spikes is not None else ({}, None)
        self.few_spikes = {name: len(t) for name, t in trains.items() if len(t) < min_spikes}
        self.spikes = {name: t for name, t in trains.items() if name not in self.few_spikes}
        self.signals = {str(name): _signal(name, value) for name, value in _mapping("signals", signals).items()}
        self.epochs = {str(name): intervals(f"epochs {name!r}", v) for name, v in _mapping("epochs", epochs).items()}

    def __repr__(self) -> str:
        if self.matrices is not None:
            return f"<Session of matrices: {', '.join(f'{k} {np.shape(v)}' for k, v in self.matrices.items())}>"
        names = ", ".join([*self.signals, *self.epochs])
        return f"<Session of {len(self.spikes)} units{names and f': {names}'}>"


def intervals(what: str, value: Any) -> np.ndarray:
    """Return starts and stops in s, (interval, 2), increasing without overlap."""
    if hasattr(value, "start") and hasattr(value, "end"):
        value = np.column_stack([value.start, value.end])
    found = np.round(numbers(value, what, "starts and stops in s, (interval, 2)"), 9)
    if found.ndim != 2 or found.shape[1] != 2 or not len(found):
        if found.size == 0:
            raise ValueError(f"{what} has no interval.")
        raise ValueError(f"{what} has shape {found.shape}; it needs a start and a stop per interval, (interval, 2).")
    if not np.isfinite(found).all():
        raise ValueError(f"{what} has starts or stops that are NaN or infinite.")
    starts, stops = found.T
    for i in np.flatnonzero(stops <= starts)[:1]:
        raise ValueError(f"{what}: interval {i + 1} starts at {starts[i]:g} s and stops at {stops[i]:g} s.")
    for i in np.flatnonzero(starts[1:] < stops[:-1])[:1]:
        why = f"starts at {starts[i + 1]:g} s, before the previous one stops, at {stops[i]:g} s."
        raise ValueError(f"{what}: interval {i + 2} {why} Intervals must increase and not overlap.")
    return found


def _mapping(what: str, value: Any) -> dict:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} is a {type(value).__name__}; it must be a dict with names as keys.")
    _refuse_equal(what, list(map(str, value)))
    return dict(value)


def _refuse_equal(what: str, names: list[str]) -> None:
    """Raise for names that are equal as strings, such as 1 and "1"."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what} has two entries called {', '.join(twice)}; names must differ as strings.")


def _spikes(value: Any) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Return times of each unit by name, and their time support."""
    if isinstance(value, tuple) and len(value) == 2:
        times, unit = numbers(value[0], "the spike times", "one time per spike, in s"), np.asarray(value[1])
        if times.ndim != 1 or times.shape != unit.shape:
            raise ValueError(f"the spikes have times {times.shape} and units {unit.shape}; both need one per spike.")
        if unit.dtype.kind == "f" and np.isnan(unit).any():
            raise ValueError(f"the unit of {int(np.isnan(unit).sum())} spikes is NaN; remove those spikes.")
        groups = {_word(name): times[unit == name] for name in np.unique(unit)}
    elif hasattr(value, "items"):
        given = [(_word(name), name, getattr(times, "t", times)) for name, times in value.items()]
        _refuse_equal("spikes", [word for word, *_ in given])
        groups = {word: numbers(times, f"unit {name!r}", "its spike times in s") for word, name, times in given}
    else:
        raise TypeError(f"spikes is a {type(value).__name__}; it must be a TsGroup, a dict or a pair (times, unit).")
    for name, times in groups.items():
        if times.ndim != 1 or not np.isfinite(times).all():
            raise ValueError(f"unit {name!r} has times of shape {times.shape}, or not finite; it needs (spike,), in s.")
    # As pynapple does: whole nanoseconds, so that a spike on the edge of a bin is on it.
    groups = {name: np.sort(np.round(times, 9)) for name, times in groups.items()}
    support = getattr(value, "time_support", None)
    if support is not None:
        return groups, intervals("the time support of the spikes", support)
    ends = [t[[0, -1]] for t in groups.values() if len(t)]
    return groups, np.array([[min(e[0] for e in ends), max(e[1] for e in ends)]]) if ends else None


def _signal(name: Any, value: Any) -> Signal:
    what = f"the signal {name!r}"
    if hasattr(value, "t") and hasattr(value, "values"):
        times, values, columns = value.t, value.values, [str(column) for column in getattr(value, "columns", ())]
    elif isinstance(value, tuple) and len(value) in (2, 3):
        times, values, columns = (*value, ())[:3]
    else:
        raise TypeError(f"{what} is a {type(value).__name__}; it must be a Tsd, a TsdFrame or a pair (times, values).")
    times = np.round(numbers(times, f"the times of {what}", "one time per sample, in s"), 9)
    values = numbers(values, what, "values, (sample,) or (sample, column)")
    if values.ndim not in (1, 2) or times.shape != values.shape[:1] or not len(times):
        needs = "it needs (sample,) and (sample,) or (sample, column), at least one sample."
        raise ValueError(f"{what} has times {times.shape} and values {values.shape}; {needs}")
    if not np.isfinite(times).all():
        raise ValueError(f"the times of {what} are not all finite.")
    values = values.reshape(len(times), -1)
    if np.isinf(values).any():
        raise ValueError(f"{what} is infinite at {times[np.isinf(values).any(axis=1)][0]:g} s.")
    n = values.shape[1]
    columns = () if columns is None else tuple(columns)
    columns = columns or (tuple(map(str, range(n))) if n > 1 else ())
    if columns and len(columns) != n:
        raise ValueError(f"{what} has {counted(n, 'column')}, but {counted(len(columns), 'name')} of columns.")
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    again = np.append(False, np.diff(times) == 0)
    before, after = values[np.flatnonzero(again) - 1], values[again]
    differ = int(np.sum(np.any((before != after) & ~(np.isnan(before) & np.isnan(after)), axis=1)))
    if differ > _REPEATED * len(times):
        raise ValueError(
            f"{what} has {differ} of {len(times)} samples at the time of another, with other values. Did a clock "
            "restart between recordings? Add to the times of each what came before."
        )
    times, values = times[~again], values[~again]
    support = getattr(value, "time_support", None)
    support = np.array([[times[0], times[-1]]]) if support is None else intervals(f"the support of {what}", support)
    return Signal(times, values, columns, support)


def _matrices(given: dict[str, Any]) -> dict[str, Any]:
    """Check the shapes of matrices; the estimator checks the rest."""
    missing = [name for name in ("X", "y") if name not in given]
    if missing:
        raise ValueError(f"{' and '.join(missing)} is missing; a session of matrices needs both X and y.")
    X = np.asarray(getattr(given["X"], "values", given["X"]))
    if X.ndim != 2:
        raise ValueError(f"X has shape {X.shape}; it needs (time, feature).")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name.endswith("_names"):
            found[name] = [_word(entry) for entry in value]
            _refuse_equal(name, found[name])
            continue
        array = found[name] = np.asarray(getattr(value, "values", value))
        if array.dtype == object:
            raise TypeError(f"{name} holds objects, not numbers.")
        if array.ndim == 0 or len(array) != len(X):
            raise ValueError(f"{name} has shape {array.shape}, X has {len(X)} rows; both need one row per time bin.")
    for name, matrix in (("feature_names", "X"), ("neuron_names", "y")):
        columns = found[matrix].shape[1] if found[matrix].ndim == 2 else 1
        if name in found and len(found[name]) != columns:
            raise ValueError(f"{name} has {len(found[name])} names, {matrix} has {columns} columns.")
    return found


def _word(name: Any) -> str:
    """Return the name of a unit or column: strings unchanged, whole floats as integers."""
    name = getattr(name, "item", lambda: name)()
    name = name.decode() if isinstance(name, bytes) else name
    return str(int(name)) if isinstance(name, float) and name.is_integer() else str(name)
