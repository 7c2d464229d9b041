"""Times of pynapple objects: kept for the outputs, compared if rows must be the same; rows of spikes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import check_choice, check_positive, warn_user

if TYPE_CHECKING:
    import pynapple as nap

_ENOUGH = 20  # spikes that should be spread over the recording
_NARROW = 0.01  # share of the features' time


@dataclass(frozen=True)
class TimeAxis:
    """Times, support and columns of a pynapple object, kept for the outputs."""

    t: np.ndarray
    time_support: Any
    columns: Any = None
    metadata: Any = None


def is_pynapple(value: Any, *types: str) -> bool:
    """Tell whether a value is a pynapple object of one of these types, by default a series (nothing is imported)."""
    if not type(value).__module__.startswith("pynapple."):
        return False
    return type(value).__name__ in types if types else hasattr(value, "t") and hasattr(value, "values")


def time_axis(value: Any) -> TimeAxis | None:
    """Return the time axis of a pynapple object, None for anything else."""
    if not is_pynapple(value):
        return None
    columns = getattr(value, "columns", None)
    has_metadata = columns is not None and len(getattr(value, "metadata_columns", ())) > 0
    metadata = value.metadata.copy() if has_metadata else None
    return TimeAxis(np.asarray(value.t), value.time_support, columns, metadata)


def plain(value: Any) -> Any:
    """Return the array of a pynapple object, a DataFrame if its columns are named; masked entries become NaN."""
    if isinstance(value, np.ma.MaskedArray):
        return value.astype(np.promote_types(value.dtype, np.float32)).filled(np.nan)
    if not is_pynapple(value):
        return value
    columns = getattr(value, "columns", None)
    if columns is not None and all(isinstance(c, str) for c in columns):
        import pandas as pd

        return pd.DataFrame(np.asarray(value.values), columns=list(columns))
    return np.asarray(value.values)


def wrap(values: np.ndarray, axis: TimeAxis | None, neurons: TimeAxis | None, names) -> Any:
    """Return values (time,) or (time, neuron) as a pynapple object with their time axis, if there is one."""
    if axis is None:
        return values
    import pynapple as nap

    if values.ndim == 1:
        return nap.Tsd(t=axis.t, d=values, time_support=axis.time_support)
    of = neurons or TimeAxis(axis.t, axis.time_support)
    columns = names if of.columns is None else of.columns
    return nap.TsdFrame(t=axis.t, d=values, time_support=axis.time_support, columns=columns, metadata=of.metadata)


def check_same_rows(X, y=None, **others) -> None:
    """Raise unless all inputs with times have the same; warn of tables with the same row labels in another order."""
    for name, rows in {"y": y, **others}.items():
        to = "X" if is_pynapple(X) or name == "y" else "y"
        check_aligned(X if to == "X" else y, to, rows, name)
        given, index = (
            getattr(a, "index", None) if type(a).__module__.startswith("pandas") else None for a in (X, rows)
        )
        if given is None or index is None or len(given) != len(index) or given.equals(index):
            continue
        times = [_numbers_of(labels) for labels in (given, index)]
        timed = all(values is not None for values in times)
        if timed and _are_close(*times):
            continue
        if given.is_unique and index.is_unique and given.isin(index).all():
            row = int(np.argmax(np.asarray(given) != np.asarray(index)))
            in_x, in_rows = (labels[row : row + 1].tolist()[0] for labels in (given, index))
            warn_user(  # no error: scikit-learn's permutation_test_score shuffles y this way
                f"the rows of X and {name} have the same labels in different orders (first at row {row}: {in_x!r} in "
                f"X, {in_rows!r} in {name}); rows are matched by position. If that is not intended, pass "
                f"{name}.loc[X.index].",
            )
        elif timed:
            warn_user(
                f"the indexes of X and {name}, which look like times, differ (X from {given[0]} to {given[-1]}, {name} "
                f"from {index[0]} to {index[-1]}); rows are matched by position. Align them, or reset both indexes."
            )


def _numbers_of(index) -> np.ndarray | None:
    """Return an index of dates, durations or floats as numbers of its unit, NaN if unknown; None for other labels."""
    import pandas as pd

    kind = getattr(index.dtype, "kind", "O")
    if kind == "f":
        return index.to_numpy(np.float64, na_value=np.nan)
    if kind not in "mM":
        return None
    index = pd.to_datetime(index, utc=True).tz_localize(None) if kind == "M" else pd.to_timedelta(index)
    values = index.to_numpy()
    return np.where(np.isnat(values), np.nan, values.astype(f"{kind}8[ns]").astype(np.int64))


def _are_close(times: np.ndarray, others: np.ndarray) -> bool:
    """Tell whether times agree to a thousandth of a bin, and are unknown in the same rows."""
    known = np.isfinite(times)
    if not np.array_equal(known, np.isfinite(others)) or known.sum() < 2:
        return np.array_equal(known, np.isfinite(others))
    bin_s = np.median(np.abs(np.diff(times[known])))
    return bool(np.all(np.abs(times[known] - others[known]) <= 1e-3 * bin_s))


def mask_of_epochs(epochs: Any, axis: TimeAxis | None, names: list[str]) -> np.ndarray:
    """Find the bins in which each neuron was recorded, bool (time, neuron), from epochs of some of them, by name."""
    if not hasattr(epochs, "items"):
        raise TypeError(
            f"epochs is a {type(epochs).__name__}; it must map units to the IntervalSet in which they were recorded, "
            "{unit: IntervalSet}, or be a TsGroup, or dict of Ts, with a time support of each."
        )
    if axis is None:
        raise ValueError("epochs are given, but neither X nor y has times; pass pynapple objects, or NaN in y.")
    seen = np.ones((len(axis.t), len(names)), bool)
    for unit, of in epochs.items():
        if str(unit) not in names:
            raise ValueError(
                f"epochs names unit {unit!r}, which y does not have; its units are {', '.join(names[:20])}."
            )
        of = getattr(of, "time_support", of)
        if not (hasattr(of, "start") and hasattr(of, "end")):
            raise TypeError(f"epochs of unit {unit!r} is a {type(of).__name__}; it must be an IntervalSet.")
        inside = (axis.t[:, None] >= np.asarray(of.start)) & (axis.t[:, None] <= np.asarray(of.end))
        seen[:, names.index(str(unit))] = inside.any(axis=1)
    return seen


def check_aligned(x, to: str, y, what: str) -> None:
    """Raise unless the times of both, if both have any, agree to a thousandth of a bin."""
    x, y = time_axis(x), time_axis(y)
    if x is None or y is None:
        return
    if len(x.t) != len(y.t):
        advice = f"restrict both to the same epochs, {what}.restrict({to}.time_support)."
        if what == "y":
            count = f"spikes.count(bin_size, ep={to}.time_support)"
            advice = f"count the spikes in the bins of {to}, {count}, or restrict both to the same epochs."
        raise ValueError(f"{to} has {_extent(x)} but {what} has {_extent(y)}. Both need the same bins: {advice}")
    if not len(x.t):
        raise ValueError(f"{to} and {what} are empty: no time bins. A fit needs at least 2.")
    shift = np.abs(x.t - y.t)
    bin_s = np.median(np.diff(x.t)) if len(x.t) > 1 else 1.0
    if shift.max() > 1e-3 * bin_s:
        first = int(np.argmax(shift > 1e-3 * bin_s))
        effect = "fitted to the wrong features" if what == "y" else f"taken for that of other rows of {to}"
        raise ValueError(
            f"the times of {to} and {what} differ (first at row {first}: {to} at {x.t[first]:g} s, {what} at "
            f"{y.t[first]:g} s; bins of {bin_s:g} s): {what} would be {effect}. Align them, for example with "
            f"{what}.value_from or by counting on the same epochs and bin size."
        )


def _extent(axis: TimeAxis) -> str:
    size = f" of {np.median(np.diff(axis.t)):g} s" if len(axis.t) > 1 else ""
    span = f" ({axis.t[0]:g} to {axis.t[-1]:g} s)" if len(axis.t) else ""
    return f"{len(axis.t)} time bins{size}{span}"


# -- rows of a softmax model


def spike_identities(
    spikes: nap.TsGroup,
    features: nap.Tsd | nap.TsdFrame,
    ep: nap.IntervalSet | None = None,
    method: str = "nearest",
    max_distance_s: float | None = None,
) -> tuple[nap.TsdFrame, nap.Tsd]:
    """Make one row per spike: the covariates at its time, and the unit that fired it.

    Parameters
    ----------
    spikes : pynapple.TsGroup
        Spike times of every unit.
    features : pynapple.Tsd or pynapple.TsdFrame
        Covariates over time, (time,) or (time, feature), at any sampling rate.
    ep : pynapple.IntervalSet, optional
        Spikes outside are ignored. Those outside the features' time support always are.
    method : {"nearest", "linear"}
        Whether a spike gets the covariates of the sample nearest in time, within the epoch, or those interpolated
        between two samples.
    max_distance_s : float, optional
        Spikes farther than this from the nearest sample (a lost tracker) are ignored.

    Returns
    -------
    X : pynapple.TsdFrame
        Covariates, (spike, feature), at the spikes' times in order.
    unit : pynapple.Tsd
        Unit of each spike, an index of the group, (spike,): the labels of a `SoftmaxGLM`.

    Raises
    ------
    TypeError, ValueError
        For anything but pynapple objects, and if no spike is left.

    Warns
    -----
    UserWarning
        If 20 spikes or more lie within a hundredth of the time span of the features, as when those are in ms.

    Notes
    -----
    The softmax of the units' log-rates is the probability that a given spike is theirs, whatever the overall rate: if
    units fire as independent Poisson processes of rate exp(w'x + b), which one fired is exactly softmax(W'x + b). A
    common factor of all rates cannot be seen this way. Spikes at the same time stay in the order of the units. Cost:
    sorting all spikes, and one row of features each.

    Examples
    --------
    >>> import numpy as np, pynapple as nap
    >>> from glmfit import spike_identities
    >>> spikes = nap.TsGroup({3: nap.Ts([0.1, 0.9]), 8: nap.Ts([0.4, 0.6])})
    >>> place = nap.Tsd(t=np.linspace(0, 1, 11), d=np.arange(11.0))
    >>> X, unit = spike_identities(spikes, place)
    >>> X.values.ravel().tolist(), unit.values.tolist()
    ([1.0, 4.0, 6.0, 9.0], [3, 8, 8, 3])
    """
    import pynapple as nap

    for name, value, kinds, allowed in (
        ("spikes", spikes, nap.TsGroup, "TsGroup: one Ts per unit"),
        ("features", features, nap.Tsd | nap.TsdFrame, "Tsd or TsdFrame"),
        ("ep", ep, nap.IntervalSet | None, "IntervalSet or None"),
    ):
        if not isinstance(value, kinds):
            raise TypeError(f"{name} is a {type(value).__name__}; it must be a pynapple {allowed}.")
    check_choice("method", method, ("nearest", "linear"))
    if max_distance_s is not None and max_distance_s != np.inf:
        check_positive("max_distance_s", max_distance_s, "None means no limit.")
    support = features.time_support if ep is None else features.time_support.intersect(ep)
    groups = {int(name): unit.restrict(support).t for name, unit in spikes.items()}
    times = np.concatenate([np.empty(0), *groups.values()])
    units = np.repeat(np.array(list(groups), int), [len(t) for t in groups.values()])
    order = np.argsort(times, kind="stable")
    times, units = times[order], units[order]
    if max_distance_s is not None:
        after = np.searchsorted(features.t, times)
        samples = np.r_[-np.inf, features.t, np.inf]
        close = np.minimum(times - samples[after], samples[after + 1] - times) <= max_distance_s
        times, units = times[close], units[close]
    if not len(times):
        epochs = "" if ep is None else " and ep"
        near = "" if max_distance_s is None else f" within max_distance_s = {max_distance_s:g} s of a sample"
        raise ValueError(
            f"no spike is left: none falls into the time support of the features{epochs}{near}. Are both on the same "
            "clock, in seconds?"
        )
    every = np.concatenate([unit.t for unit in spikes.values()])  # ep may be short
    span, whole = np.ptp(every), np.ptp(features.t)
    if len(every) >= _ENOUGH and span < _NARROW * whole:
        warn_user(
            f"all {len(every)} spikes lie within {span:.3g} s, but the features span {whole:.3g} s. Are both on the "
            "same clock, in seconds? Divide times in ms by 1000."
        )
    # Each time once, so that nothing depends on how the library treats equal ones.
    once, back = np.unique(times, return_inverse=True)
    ts = nap.Ts(t=once, time_support=support)
    at = ts.value_from(features, support) if method == "nearest" else features.interpolate(ts, support)
    place = np.searchsorted(at.t, once)
    found = (place < len(at.t)) & (at.t[np.minimum(place, len(at.t) - 1)] == once)  # none before the first sample
    kept = found[back]
    values = np.asarray(at.values).reshape(len(at.t), -1)[place[back[kept]]]
    columns = list(getattr(features, "columns", ["feature"]))
    X = nap.TsdFrame(t=times[kept], d=values, columns=columns, time_support=support)
    return X, nap.Tsd(t=times[kept], d=units[kept], time_support=support)
