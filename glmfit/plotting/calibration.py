"""Residuals and distribution of responses, compared with a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.stats

from ..checks import check_real, check_whole
from ..data.arrays import numbers
from ..data.times import time_axis
from ..estimators import PopulationGLM, PopulationGLMCV
from ..estimators.model import check_is_fitted
from ..estimators.streaming import as_arrays
from ..observations import Bernoulli, Binomial, Observation
from .axes import axes_or_new, legend, name_axes, on_axes
from .colors import BLACK, BLUE, GREY, colors_of_models
from .scores import draw_shares

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType

    from ..numerics import DataLike, PerRow

_MOST_COUNTS = 20  # intervals of counts
_FEW = 12  # counts that are shown separately whatever their share of the bins
_WIDE = 20.0  # ratio of means above which they are drawn on a logarithmic axis


class _Seen(NamedTuple):
    """Responses of a neuron in the bins that count, and predictions of the model there, (time,) each."""

    y: np.ndarray
    eta: np.ndarray
    exposure: np.ndarray
    observation: Observation


@on_axes
def plot_binned_residuals(
    model: PopulationGLM | PopulationGLMCV,
    X: DataLike,
    y: DataLike,
    *,
    neuron: int = 0,
    against: Any = "mean",
    n_bins: int = 20,
    offset: PerRow = None,
    exposure: PerRow = None,
    epochs: Mapping[Any, Any] | None = None,
    xlabel: str | None = None,
    color: ColorType = BLUE,
    ax: Axes | None = None,
) -> Axes:
    """Draw mean Pearson residuals of a neuron against the predicted mean, a feature, or time.

    A Pearson residual is the response minus its predicted mean, divided by its standard deviation under the model.
    Dots with bars: means over intervals that hold equally many time bins, and two standard errors of each, from the
    spread of the residuals as if time bins were independent. If the mean of the model is right, about one bar in twenty
    misses the line at 0; dots on a curve show that it is wrong.

    Parameters
    ----------
    model : PopulationGLM or PopulationGLMCV
        Fitted, with any observation model.
    X, y, offset, exposure, epochs :
        As in :meth:`glmfit.PopulationGLM.fit`, of the fit or held out. Time bins with a NaN, and those that are masked
        for the neuron, are dropped.
    neuron : int
        Number of the neuron.
    against : {"mean", "time"}, int, str or array-like of shape (time,)
        Quantity on the x-axis: the predicted mean; the time of pynapple objects, otherwise the row number; a feature,
        by its number or name; or other values, such as a covariate that the model lacks.
    n_bins : int
        Number of intervals. A few distinct values, such as 0 and 1, have one each.
    xlabel : str, optional
        Name, and unit, of the x-axis; by default that of `against`.
    """
    check_whole("n_bins", n_bins)
    n = _check_neuron(model, neuron)
    axis = time_axis(X) or time_axis(y)
    X, y = as_arrays(X, y)
    residual = np.asarray(model.residuals(X, y, "pearson", offset, exposure, epochs), np.float64)
    residual = residual if residual.ndim == 1 else residual[:, n]
    x, name = _values_of(model, X, against, n, offset, axis, len(residual))
    known = np.isfinite(residual) & np.isfinite(x)
    if not known.any():
        raise ValueError(f"neuron {n} has no bin where residual and {name} are known; there is nothing to draw.")
    x, residual = x[known], residual[known]
    groups = _of_equal_size(x, n_bins)
    centre, mean = (np.array([values[g].mean() for g in groups]) for values in (x, residual))
    error = [2 * residual[g].std(ddof=1) / np.sqrt(len(g)) if len(g) > 1 else np.nan for g in groups]
    ax = axes_or_new(ax, (4.5, 2.6))
    ax.axhline(0, color=GREY, lw=0.8, zorder=0)
    ax.errorbar(centre, mean, error, fmt="o", ms=3.5, color=color, elinewidth=0.8, capsize=0, label="mean residual")
    if isinstance(against, str) and against == "mean" and centre[0] > 0 and centre[-1] > _WIDE * centre[0]:
        ax.set_xscale("log")
    name_axes(ax, name if xlabel is None else xlabel, "mean residual (SD)")
    return ax


@on_axes
def plot_calibration(
    model: Any,
    X: DataLike,
    y: DataLike,
    *,
    neuron: int = 0,
    level: float = 0.95,
    n_bins: int = 10,
    offset: PerRow = None,
    exposure: PerRow = None,
    epochs: Mapping[Any, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the distribution of the responses of a neuron against that of models.

    Counts (Poisson, negative binomial, binomial): dots are the numbers of time bins with 0, 1, 2, ... events, on a
    logarithmic axis; lines and bands those that a model expects, with the range of chance. The last interval holds all
    larger counts, and if counts are large, every interval holds several. Yes or no (Bernoulli): the share of yes
    against the predicted probability, in intervals of equally many bins, with the range of chance about the diagonal.
    Measured values (Gaussian, gamma): the cumulative share of the bins against the probability, under the model, of a
    response at most as large; a correct model is on the diagonal, within the band of the Kolmogorov-Smirnov test.

    Parameters
    ----------
    model : PopulationGLM, PopulationGLMCV, or dict of str to such
        Fitted; a dict gives names for the legend. The last is drawn strongest.
    X, y, offset, exposure, epochs :
        As in :meth:`glmfit.PopulationGLM.fit`, of the fit or held out. Time bins with a NaN, and those that are masked
        for the neuron, are dropped. Counts must be whole numbers.
    neuron : int
        Number of the neuron.
    level : float
        Probability of a band, in (0, 1): of every point, or of the whole curve for measured values. Bins are taken as
        independent, and the coefficients as known.
    n_bins : int
        Number of intervals of the predicted probability of a yes.
    """
    models = model if isinstance(model, dict) else {"model": model}
    if not models:
        raise ValueError("model is an empty dict; it must be a fitted model, or a dict from names to such.")
    check_real("level", level, 1)
    check_whole("n_bins", n_bins)
    for one in models.values():
        _check_neuron(one, neuron)
    kinds = {_kind(one._family()) for one in models.values()}
    if len(kinds) > 1:
        raise ValueError(f"models of {' and of '.join(sorted(kinds))} have no figure in common; draw one of each.")
    X, y = as_arrays(X, y)
    seen = {name: _look(one, X, y, neuron, offset, exposure, epochs) for name, one in models.items()}
    ax = axes_or_new(ax, (4.0, 3.0))
    kind = kinds.pop()
    if kind == "counts":
        _draw_counts(ax, seen, level)
    elif kind == "yes or no":
        _draw_shares(ax, seen, level, n_bins)
    else:
        _draw_probabilities(ax, seen, level)
    return ax


# -- responses and predictions of models


def _check_neuron(model, neuron) -> int:
    """Return the number of a neuron of a fitted population; TypeError for another model."""
    if not isinstance(model, PopulationGLM | PopulationGLMCV):
        raise TypeError(f"model is a {type(model).__name__}; it must be a fitted PopulationGLM or PopulationGLMCV.")
    check_is_fitted(model)
    check_whole("neuron", neuron, 0)
    last = len(model.report_.neuron) - 1
    if neuron > last:
        raise ValueError(f"neuron is {neuron}; the model has neurons 0 to {last}.")
    return int(neuron)


def _look(model, X, y, n, offset, exposure, epochs) -> _Seen:
    """Return the responses of a neuron in the bins that count."""
    Y, eta, over, _ = model._observed(X, y, offset, exposure, epochs)
    observation = model._observation()
    over = np.broadcast_to(over, eta.shape)
    if eta.ndim == 2:
        Y, eta, over = Y[:, n], eta[:, n], over[:, n]
        if hasattr(observation, "dispersion"):
            observation = observation.with_dispersion(model.dispersion_[n])
    if model._silent[n]:
        eta = np.where(np.isnan(eta), eta, model._matrix()[1][n])  # whatever the offset
    known = np.isfinite(Y) & np.isfinite(eta) & (over > 0)
    if not known.any():
        raise ValueError(f"neuron {n} has no bin where response and predictor are known; there is nothing to draw.")
    Y, eta, over = Y[known], eta[known], over[known]
    if _kind(observation) == "counts" and np.any(Y != np.rint(Y)):
        raise ValueError("y has counts that are not whole numbers; models have no distribution of those.")
    return _Seen(Y, eta, over, observation)


def _kind(observation: Observation) -> str:
    if observation.counts or isinstance(observation, Binomial):
        return "counts"
    return "yes or no" if isinstance(observation, Bernoulli) else "measured values"


def _values_of(model, X, against, n, offset, axis, length) -> tuple[np.ndarray, str]:
    """Return the values on the x-axis, (time,), and their name."""
    if np.ndim(against) > 0:
        return numbers(against, "against", f"a value per time bin, ({length},)", shape=(length,)), "covariate"
    if against == "mean":
        mean = np.asarray(model.predict(X, offset), np.float64)
        return mean if mean.ndim == 1 else mean[:, n], "predicted mean"
    if against == "time":
        return (np.arange(float(length)), "row") if axis is None else (np.asarray(axis.t, np.float64), "time (s)")
    names = [str(name) for name in getattr(model, "feature_names_in_", [])]
    if against in names:
        column = names.index(against)
    elif isinstance(against, int | np.integer) and not isinstance(against, bool) and 0 <= against < len(model.coef_):
        column = int(against)
    else:
        named = f", by name {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}" if names else ""
        raise ValueError(
            f'against is {against!r}; it must be "mean", "time", a feature, 0 to {len(model.coef_) - 1}{named}, or a '
            f"value per time bin, ({length},)."
        )
    values = np.asarray(getattr(X, "values", X), np.float64)[:, column]
    return values, names[column] if names else f"feature {column}"


def _of_equal_size(x, n_bins) -> list[np.ndarray]:
    """Return indices of values in intervals of equal size, in order; one per distinct value if these are few."""
    values = np.unique(x)
    if len(values) <= n_bins:
        return [np.flatnonzero(x == value) for value in values]
    edges = np.unique(np.quantile(x, np.linspace(0, 1, n_bins + 1)))
    place = np.searchsorted(edges[1:-1], x, side="right")
    groups = [np.flatnonzero(place == k) for k in range(len(edges) - 1)]
    return [group for group in groups if len(group)]


# -- three drawings of a distribution


def _draw_counts(ax, seen, level) -> None:
    """Draw the number of bins with every count, and what models expect."""
    y = next(iter(seen.values())).y
    low = _intervals(y)
    came = np.bincount(np.searchsorted(low, y, side="right") - 1, minlength=len(low))
    at = np.arange(len(low))
    for (name, of), color in zip(seen.items(), colors_of_models(len(seen)), strict=True):
        expected, ends = _expected(of, low, level)
        ax.fill_between(at, *ends, color=color, alpha=0.2, lw=0)
        ax.plot(at, expected, color=color, lw=1.4, label=name)
    ax.plot(at[came > 0], came[came > 0], "o", ms=3.5, color=BLACK, label="counted")
    ax.set_yscale("log")
    ax.set_ylim(0.5, 2 * len(y))
    step = -(-len(low) // 12)
    some = np.append(np.arange(0, len(low) - step, step), len(low) - 1)
    ax.set_xticks(some, [f"{k}+" if k == low[-1] else f"{k}" for k in low[some]])
    legend(ax, loc="upper right")
    each = low[-1] == len(low) - 1
    name_axes(ax, "count" if each else "count (lower end of the interval)", "number of bins")


def _intervals(y) -> np.ndarray:
    """Choose the first count of every interval, the last of which has no end: 0, 1, 2, ... if counts are small."""
    last = max(min(int(y.max()), _FEW), int(np.quantile(y, 0.999)))
    first = int(np.quantile(y, 0.001)) if last >= _MOST_COUNTS else 0
    width = -(-(last + 1 - first) // _MOST_COUNTS)
    low = np.arange(first, last + 1, width)
    low[0] = 0
    return low


def _expected(of: _Seen, low, level) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Compute how many bins the model expects in every interval of counts, and the range of chance.

    A sum of independent events of probabilities p has the mean sum p and the variance sum p (1 - p): its range is that
    of the binomial distribution with these two.
    """
    below = [np.zeros(len(of.y)), *(of.observation.cdf(k - 1.0, of.eta, of.exposure) for k in low[1:])]
    p = np.maximum(np.diff(np.array(below), axis=0, append=1.0), 0.0)
    mean, square = p.sum(axis=1), np.square(p).sum(axis=1)
    trials = np.maximum(np.rint(mean**2 / np.maximum(square, 1e-300)), np.ceil(mean))
    share = np.where(trials > 0, mean / np.where(trials > 0, trials, 1.0), 0.0)
    return mean, tuple(scipy.stats.binom.ppf(q, trials, share) for q in ((1 - level) / 2, (1 + level) / 2))


def _draw_shares(ax, seen, level, n_bins) -> None:
    """Draw the share of yes against the predicted probability."""
    largest = 0.0
    for (name, of), color in zip(seen.items(), colors_of_models(len(seen)), strict=True):
        p = of.observation.mean(of.eta)
        groups = _of_equal_size(p, n_bins)
        centre, share = (np.array([values[g].mean() for g in groups]) for values in (p, of.y))
        size = np.array([len(g) for g in groups])
        low, high = (scipy.stats.binom.ppf(q, size, centre) / size for q in ((1 - level) / 2, (1 + level) / 2))
        ax.vlines(centre, low, high, color=color, alpha=0.3, lw=5, label=f"{level:.0%} range")
        ax.plot(centre, share, "o", ms=3.5, color=color, label=name)
        largest = max(largest, high.max(), share.max(), centre.max())
    largest = min(1.05 * largest, 1.0)
    ax.plot([0, largest], [0, largest], color=GREY, lw=0.8, zorder=0)
    ax.set(xlim=(0, largest), ylim=(0, largest), aspect="equal")
    legend(ax, loc="upper left")
    name_axes(ax, "predicted probability", "share of yes")


def _draw_probabilities(ax, seen, level) -> None:
    """Draw the cumulative share of the bins against the probability of a response at most as large."""
    half = float(scipy.stats.kstwo.ppf(level, len(next(iter(seen.values())).y)))
    below = {name: np.sort(of.observation.cdf(of.y, of.eta, of.exposure)) for name, of in seen.items()}
    draw_shares(ax, below, half, level)
    name_axes(ax, "probability under the model", "cumulative share of bins")
