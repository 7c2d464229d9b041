"""Simulation of models that are driven by their own spikes, bin by bin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_positive, check_whole, warn_user
from ..data.arrays import numbers
from ..display import Display, Summary, counted, frame_by_neuron
from ..estimators.parameters import read_seed
from ..numerics import Seed
from ..observations import Observation
from .coupled import Coupled, read_coupled

if TYPE_CHECKING:
    import pandas as pd

# Means and draws in plain NumPy: a bin takes microseconds, and dispatch on types would take most of them.
_MEAN: dict[str, Callable] = {
    "exp": np.exp,
    "softplus": lambda eta: np.logaddexp(0.0, eta),
    "logistic": lambda eta: 0.5 + 0.5 * np.tanh(0.5 * eta),
    "squared": lambda eta: eta,
    "negative-binomial": np.exp,
    "gamma": np.exp,
}
_DRAW: dict[str, Callable] = {
    "exp": lambda rng, mean, _: rng.poisson(mean),
    "softplus": lambda rng, mean, _: rng.poisson(mean),
    "logistic": lambda rng, mean, _: rng.random(len(mean)) < mean,
    "negative-binomial": lambda rng, mean, spread: rng.poisson(_gamma(rng, mean, spread)),
    "gamma": lambda rng, mean, spread: _gamma(rng, mean, spread),
    "squared": lambda rng, mean, spread: rng.normal(mean, np.sqrt(spread)),
}


@dataclass(frozen=True, repr=False)
class RecurrentSimulation(Display):
    """Counts simulated by a coupled model from its own past, and the rates they were drawn from.

    Attributes
    ----------
    neuron : list
        Names.
    counts, rates : numpy.ndarray
        Counts, or other responses, and their expected values given the bins before, (time, neuron). Shorter than
        ``n_bins`` if the simulation diverged.
    n_bins : int
        Requested number of bins.
    diverged_at : int or None
        Bin at which the expected count exceeded the limit.
    """

    neuron: list
    counts: np.ndarray
    rates: np.ndarray
    n_bins: int
    diverged_at: int | None = None

    def _summary(self) -> Summary:
        size = f"{counted(len(self.neuron), 'neuron')}, {self.n_bins} bins"
        end = "" if self.diverged_at is None else f"; diverged at bin {self.diverged_at}"
        return Summary([f"recurrent simulation of {size}{end}"], self.to_frame())

    def to_frame(self) -> pd.DataFrame:
        """Return one row per neuron as a pandas DataFrame: mean_count and largest_rate, nan if there is no bin."""
        some = len(self.counts) > 0
        columns = {
            "mean_count": self.counts.mean(axis=0) if some else np.nan,
            "largest_rate": self.rates.max(axis=0) if some else np.nan,
        }
        return frame_by_neuron(self.neuron, columns)


def simulate_recurrent(
    model: Any,
    basis: Any,
    n_bins: int,
    *,
    inputs: ArrayLike | None = None,
    columns: Any = None,
    start: ArrayLike | None = None,
    limit: float = 1e4,
    random_state: Seed = 0,
) -> RecurrentSimulation:
    """Simulate a population whose features are its own spike histories, each bin given those drawn before.

    Parameters
    ----------
    model : PopulationGLM, PopulationGLMCV or PopulationGAM
        Fitted model. Its features are the histories of all its neurons, made from their counts by
        `glmfit.design.Convolution`, and possibly others.
    basis : array or convolutional basis object
        Basis of these histories, as in `Convolution`: kernels (lag, basis); the first lag is that of the bin before.
    n_bins : int
        Bins to simulate.
    inputs : array-like of shape (time, feature), optional
        The other features of the fit in their order, one row per bin.
    columns : slice, list of int or list of str, optional
        Features that are histories, source by source; `Convolution` has their names as ``columns``. All by default.
    start : array-like of shape (lag, neuron), optional
        Counts of the bins before the first, the oldest first; none by default.
    limit : float
        Expected count of a bin beyond which the simulation has diverged.
    random_state : int, numpy.random.RandomState, numpy.random.Generator, jax key or None
        Seed; None is 0. The same seed draws the same.

    Returns
    -------
    RecurrentSimulation

    Raises
    ------
    ValueError, TypeError
        For a model with other features, and for inputs or a start of another shape.
    NotFittedError
        Before a fit.

    Warns
    -----
    UserWarning
        If the simulation diverges, with the bin. The bins simulated until then are returned.

    Notes
    -----
    Rates equal those of ``predict`` for the histories of the simulated counts, up to rounding, in float64. A fit that
    predicts well one bin ahead may still diverge; `coupling_stability` can prove that it does not. Bins are whole,
    without an offset. Cost of a bin: lag x basis x neuron + basis x neuron^2 products, in NumPy; nothing is compiled.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import PopulationGLM
    >>> from glmfit.design import Convolution
    >>> from glmfit.inference import simulate_recurrent
    >>> counts = np.random.default_rng(0).poisson(0.2, size=(2000, 2))
    >>> basis = np.exp(-np.arange(10) / [[2.0], [5.0]]).T  # (lag, basis)
    >>> X = Convolution(counts, basis).to_array()
    >>> model = PopulationGLM(regularizer_strength=1e-2).fit(X, counts)
    >>> simulated = simulate_recurrent(model, basis, 500)
    >>> simulated.counts.shape, simulated.diverged_at
    ((500, 2), None)
    """
    n_bins, limit = check_whole("n_bins", n_bins), check_positive("limit", limit)
    coupled = read_coupled(model, basis, columns, inputs)
    if coupled.observation.name == "binomial":
        raise ValueError("the model has Binomial counts, and the trials of a bin to simulate are unknown.")
    if inputs is not None and len(coupled.base) != n_bins:
        raise ValueError(f"inputs has {len(coupled.base)} rows; each of the {n_bins} bins needs one.")
    past = _start(start, len(coupled.kernels), len(coupled.neuron))
    if past.min(initial=0.0) < 0 and coupled.observation.name != "squared":
        raise ValueError(f"start has {past.min():g}; no response of this model is below 0.")
    done, counts, rates = _simulate(coupled, past, n_bins, limit, np.random.default_rng(read_seed(random_state)))
    if done < n_bins:
        n = int(np.argmax(np.where(np.isnan(rates[done]), np.inf, np.abs(rates[done]))))
        warn_user(
            f"the simulation diverged at bin {done} of {n_bins}: {rates[done, n]:.3g} counts are expected of neuron "
            f"{coupled.neuron[n]}, above limit={limit:g}. The bins before it are returned. Fit with the softplus "
            "link and a stronger penalty, until coupling_stability of glmfit.inference proves the model stable; or "
            "raise limit if such counts are plausible."
        )
    return RecurrentSimulation(
        coupled.neuron, counts[:done], rates[:done], n_bins, diverged_at=None if done == n_bins else done
    )


def _start(start: Any, lags: int, n_neurons: int) -> np.ndarray:
    """Check the counts before the first bin, (lag, neuron)."""
    if start is None:
        return np.zeros((lags, n_neurons))
    needs = f"finite counts of the {lags} bins before the first, (lag, neuron)"
    counts = numbers(start, "start", needs)
    counts = counts[:, None] if counts.ndim == 1 and n_neurons == 1 else counts
    if counts.shape != (lags, n_neurons) or not np.isfinite(counts).all():
        raise ValueError(f"start has shape {counts.shape}; it must be ({lags}, {n_neurons}): {needs}.")
    return counts


def _simulate(coupled: Coupled, start: np.ndarray, n_bins: int, limit: float, rng: np.random.Generator) -> tuple:
    """Draw bin by bin; return the number of bins before a rate beyond the limit, counts, and rates up to that one."""
    lags, n_neurons = start.shape
    counts, rates = np.concatenate([start, np.zeros((n_bins, n_neurons))]), np.zeros((n_bins, n_neurons))
    kernels = np.ascontiguousarray(coupled.kernels[::-1].T)  # (kernel, lag), the oldest first, as counts are
    coef = coupled.coef.reshape(-1, n_neurons)
    base = np.broadcast_to(coupled.base, (n_bins, n_neurons))
    name, spread = coupled.observation.name, getattr(coupled.observation, "dispersion", None)
    mean, draw = _MEAN.get(name, coupled.observation.mean), _DRAW.get(name, partial(_by_quantile, coupled.observation))
    silent = coupled.silent if coupled.silent.any() else None
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(n_bins):
            features = kernels @ counts[t : t + lags]  # (kernel, source)
            rate = mean(base[t] + features.ravel() @ coef)
            if silent is not None:
                rate[silent] = 0.0
            rates[t] = rate
            if not np.abs(rate).max() <= limit:  # nor of nan
                return t, counts[lags:], rates
            counts[lags + t] = draw(rng, rate, spread)
    return n_bins, counts[lags:], rates


def _by_quantile(observation: Observation, rng: np.random.Generator, mean: np.ndarray, _: Any) -> np.ndarray:
    """Draw responses of any model, by its quantiles at uniform numbers; a mean of 0 has no other response."""
    with np.errstate(divide="ignore"):
        drawn = observation.quantile(rng.random(len(mean)), observation.link(mean))
    return np.where(mean == 0, 0.0, drawn)


def _gamma(rng: np.random.Generator, mean: np.ndarray, spread: Any) -> np.ndarray:
    """Draw gamma values of this mean and of variance spread mean^2."""
    return rng.gamma(1 / np.maximum(spread, 1e-12), mean * np.maximum(spread, 1e-12))
