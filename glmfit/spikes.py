"""From spike trains to rows of a softmax model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .checks import check_choice, check_positive, warn_user

if TYPE_CHECKING:
    import pynapple as nap

_ENOUGH = 20  # spikes that are spread over what was recorded
_NARROW = 0.01  # share of the features' time


def spike_identities(
    spikes: nap.TsGroup,
    features: nap.Tsd | nap.TsdFrame,
    ep: nap.IntervalSet | None = None,
    method: str = "nearest",
    max_distance_s: float | None = None,
) -> tuple[nap.TsdFrame, nap.Tsd]:
    """Make one row per spike: the covariates at its time, and which unit fired it.

    Parameters
    ----------
    spikes : pynapple.TsGroup
        Spike times of every unit.
    features : pynapple.Tsd or pynapple.TsdFrame
        Covariates over time, (time,) or (time, feature), at any sampling.
    ep : pynapple.IntervalSet, optional
        Spikes outside are left out. Those outside of the features' time support always are.
    method : {"nearest", "linear"}
        Whether a spike gets the covariates of the sample nearest in time, within the epoch, or those interpolated
        between two samples.
    max_distance_s : float, optional
        Spikes farther than this from the nearest sample (a lost tracker) are left out.

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
        If 20 spikes or more lie within a hundredth of the time that the features take, as where those are in ms.

    Notes
    -----
    The softmax of the units' log-rates is the probability that a given spike is theirs, whatever the overall rate: if
    units fire as independent Poisson processes of rate exp(w'x + b), which one fired is exactly softmax(W'x + b). The
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
        check_positive("max_distance_s", max_distance_s, "None is no limit.")
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
    every = np.concatenate([unit.t for unit in spikes.values()])  # ep may well be short
    span, whole = np.ptp(every), np.ptp(features.t)
    if len(every) >= _ENOUGH and span < _NARROW * whole:
        warn_user(
            f"all {len(every)} spikes lie within {span:.3g} s, and the features take {whole:.3g} s. Are both on the "
            "same clock, in seconds? Divide times in ms by 1000."
        )
    # Each time once: what to do with equal ones is not for the library to guess.
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
