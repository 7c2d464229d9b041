"""Time rescaling for binned counts: a test of the rate against the spike times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from ..checks import warn_user
from ..data.arrays import numbers, refuse_negative
from ..data.times import check_aligned
from ..display import Display, Summary, frame_by_neuron
from ..estimators.parameters import read_seed
from ..numerics import Seed

if TYPE_CHECKING:
    import pandas as pd

_FACTOR = 5  # between expected and observed spikes, beyond which the rate has another unit
_ENOUGH = 20  # spikes that make this factor informative


@dataclass(frozen=True, repr=False)
class TimeRescaling(Display):
    """Intervals between spikes in the time of the model, and their distance from the uniform distribution.

    Attributes
    ----------
    uniform : tuple of numpy.ndarray
        Per neuron, in increasing order, (interval,): uniform on (0, 1) if the rates are right.
    n_intervals : numpy.ndarray
        Intervals, as many as spikes, (neuron,).
    statistic, p_value : numpy.ndarray
        Kolmogorov-Smirnov distance of their distribution from the uniform one, and the probability of such a distance
        or a larger one under the right rates, (neuron,); nan without spikes.
    """

    uniform: tuple
    n_intervals: np.ndarray
    statistic: np.ndarray
    p_value: np.ndarray

    def _summary(self) -> Summary:
        head = f"intervals between spikes in the time of the model; {len(self.uniform)} neurons"
        return Summary([head], self.to_frame())

    def to_frame(self) -> pd.DataFrame:
        """Return one row per neuron as a pandas DataFrame: n_intervals, statistic, p_value."""
        columns = {"n_intervals": self.n_intervals, "statistic": self.statistic, "p_value": self.p_value}
        return frame_by_neuron(range(len(self.uniform)), columns)

    def band(self, level: float = 0.95) -> np.ndarray:
        """Compute the half-width of the band around the diagonal that contains the whole curve of a correct model.

        Parameters
        ----------
        level : float
            Probability that it does, in (0, 1).

        Returns
        -------
        numpy.ndarray
            Quantile of the Kolmogorov-Smirnov distance, (neuron,); about 1.36 / sqrt(intervals) at 0.95.
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level!r}; it must be a number between 0 and 1, such as 0.95.")
        return np.array([scipy.stats.kstwo.ppf(level, n) if n else np.nan for n in self.n_intervals])


def rescale_time(counts: ArrayLike, rate: ArrayLike, random_state: Seed = 0) -> TimeRescaling:
    r"""Rescale the intervals between the spikes of binned neurons by their rates.

    With :math:`\lambda_t` the expected count of bin t, each of its spikes is put at :math:`\sum_{s < t} \lambda_s +
    \lambda_t r`, where the r are independent and uniform on (0, 1). With all of these in order, :math:`\tau_1 < \tau_2
    < \dots` and :math:`\tau_0 = 0`, the rescaled intervals are :math:`u_k = 1 - e^{-(\tau_k - \tau_{k-1})}`.

    Parameters
    ----------
    counts : array-like of shape (time,) or (time, neuron)
        Spikes per bin, whole numbers; preferably of bins that the model was not fitted to.
    rate : array-like of the same shape
        Expected counts per bin, as ``predict`` returns them, times the exposure if there is one.
    random_state : int, numpy.random.RandomState, numpy.random.Generator, jax key or None
        Seed of the places within bins; None is 0, so that the same call gives the same result. The places of a neuron
        do not depend on the other neurons.

    Returns
    -------
    TimeRescaling

    Raises
    ------
    ValueError, TypeError
        If counts or rate is something else, such as a model, has no bins or is infinite, or their shapes differ.

    Warns
    -----
    UserWarning
        If there are at least 20 spikes, and the rates expect over five times as many or under a fifth of them in total:
        rates per second are not expected counts per bin.

    Notes
    -----
    If counts are Poisson with these rates given the past, the u are independent and uniform, whatever the width of the
    bins (docs/theory/inference.md). Bins with a NaN are dropped, and time is closed over them. The last interval, cut
    off by the end of the recording, is not used. Rates fitted to the same spikes follow them a little too closely, so
    that p-values are somewhat too large. For a Bernoulli model of short bins pass ``-log(1 - p)``, the rate at which a
    bin has a spike with probability p. Negative binomial counts are not Poisson given the past: see
    `glmfit.plotting.plot_calibration`. Cost: a sort of the spikes.

    References
    ----------
    R. Haslinger, G. Pipa, E. Brown, Discrete time rescaling theorem: determining goodness of fit for discrete time
    statistical models of neural spiking, Neural Computation 22 (2010) 2477-2506; E. Brown et al., The time-rescaling
    theorem and its application to neural spike train data analysis, Neural Computation 14 (2002) 325-346.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit.inference import rescale_time
    >>> rng = np.random.default_rng(0)
    >>> rate = 0.2 + 0.1 * np.sin(np.arange(5000) / 50)
    >>> counts = rng.poisson(rate)
    >>> bool(rescale_time(counts, rate).p_value[0] > 0.05)
    True
    >>> bool(rescale_time(counts, 0.8 * rate).p_value[0] > 0.05)
    False
    """
    for name, value in (("counts", counts), ("rate", rate)):
        if hasattr(value, "predict"):
            raise TypeError(
                f"{name} is a {type(value).__name__}; rescale_time takes counts, and the rate that a model predicts "
                "for them: rescale_time(counts, model.predict(X))."
            )
    check_aligned(counts, "counts", rate, "rate")
    needs = "numbers per bin, (time,) or (time, neuron)"
    counts, rate = numbers(counts, "counts", needs), numbers(rate, "rate", needs)
    if counts.ndim not in (1, 2) or counts.shape != rate.shape:
        raise ValueError(
            f"counts has shape {counts.shape} and rate {rate.shape}; both must be (time,) or both (time, neuron)."
        )
    if not len(counts):
        raise ValueError("counts and rate have no bins; they need at least one, (time,) or (time, neuron).")
    counts, rate = counts.reshape(len(counts), -1), rate.reshape(len(rate), -1)
    known = ~(np.isnan(counts) | np.isnan(rate))
    refuse_negative(counts, "neuron", name="counts")
    with np.errstate(invalid="ignore"):  # of infinite values
        wrong, whole = counts[known & (counts % 1 != 0)], not np.any(rate[known] % 1)
    if len(wrong):
        swapped = " Are counts and rate swapped?" if whole else ""
        raise ValueError(
            f"counts has {wrong[0]:g}; it must have numbers of spikes per bin: 0, 1, 2 and so on.{swapped}"
        )
    if np.any(rate[known] < 0):
        raise ValueError("rate has negative values; it must be the expected count of each bin, as predict returns it.")
    if np.isinf(rate[known]).any():
        raise ValueError(
            f"rate is infinite in {np.isinf(rate[known]).sum()} bins; it must be the expected count of each bin. If a "
            "model predicts it, its linear predictor overflows; to drop a bin, make it NaN."
        )
    spikes, expected = counts[known].sum(), rate[known].sum()
    if spikes >= _ENOUGH and not spikes / _FACTOR <= expected <= spikes * _FACTOR:
        warn_user(
            f"rate expects {expected:.3g} spikes but counts has {spikes:.0f}; it must be the expected count of each "
            "bin, as predict returns it. Multiply a rate in Hz by the width of the bins in s."
        )
    seed = read_seed(random_state)
    uniform = tuple(
        _intervals(counts[known[:, n], n].astype(int), rate[known[:, n], n], np.random.default_rng([seed, n]))
        for n in range(counts.shape[1])
    )
    tests = [tuple(scipy.stats.kstest(u, "uniform")) if len(u) else (np.nan, np.nan) for u in uniform]
    statistic, p_value = np.reshape(tests, (-1, 2)).T
    return TimeRescaling(uniform, np.array([len(u) for u in uniform]), statistic, p_value)


def _intervals(counts: np.ndarray, rate: np.ndarray, rng) -> np.ndarray:
    """Compute the rescaled intervals of one neuron in increasing order, (interval,)."""
    bins = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(rate) - rate
    place = np.sort(before[bins] + rate[bins] * rng.random(len(bins)))
    return np.sort(-np.expm1(-np.diff(place, prepend=0.0)))
