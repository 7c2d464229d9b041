"""How well models fit: scores, rescaled times, and strengths chosen by cross-validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_real, check_whole
from ..estimators import MultinomialGLMCV, PopulationGLMCV, SoftmaxGLMCV
from ..estimators.model import check_is_fitted
from .axes import axes_or_new, legend, name_axes, on_axes, read_numbers, say, whole_ticks
from .colors import BLACK, BLUE, CYCLE, GREY, LIGHT, RED, colors_of_models

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@on_axes
def plot_scores(scores: ArrayLike, *, xlabel: str = "pseudo-$R^2$", ax: Axes | None = None) -> Axes:
    """Draw a histogram of one score per neuron, with its median.

    Parameters
    ----------
    scores : array-like of shape (neuron,)
        At most 1; NaN (a neuron without spikes) is omitted.
    """
    scores = read_numbers("scores", scores, "neuron")
    scores = scores[np.isfinite(scores)]
    ax = axes_or_new(ax, (3.0, 2.4))
    if len(scores):
        ax.hist(scores, bins=min(25, max(5, len(scores) // 4)), color=BLUE, alpha=0.75)
        median = float(np.median(scores))
        ax.axvline(median, ymax=0.85, color=BLACK, lw=1, ls="--", label=f"median {median:.3f}")
        ax.set_ylim(top=1.2 * ax.get_ylim()[1])  # room for it
        legend(ax, loc="upper right")
    else:
        say(ax, "no neuron with spikes")
    whole_ticks(ax.yaxis)
    name_axes(ax, xlabel, "neurons")
    return ax


@on_axes
def plot_time_rescaling(
    rescaled: Any, *, neuron: int = 0, level: float = 0.95, difference: bool = False, ax: Axes | None = None
) -> Axes:
    """Draw the distribution of rescaled intervals against the uniform one, with the band of a correct model.

    Line: cumulative share of the intervals against their rescaled length. Grey: the band of the Kolmogorov-Smirnov test
    around the diagonal, which the curve of a correct model follows. A neuron without spikes has words instead.

    Parameters
    ----------
    rescaled : glmfit.inference.TimeRescaling or dict of str to such
        Result of :func:`glmfit.inference.rescale_time`; a dict gives names of models for the legend. The last is
        drawn strongest.
    neuron : int
        Number of the neuron.
    level : float
        Probability that the whole curve of a correct model stays within its band, in (0, 1).
    difference : bool
        Whether to draw the distance from the diagonal instead, which shows more if there are many spikes.
    """
    models = rescaled if isinstance(rescaled, dict) else {"model": rescaled}
    what = "what glmfit.inference.rescale_time returns, or a dict from names to such"
    if not models:
        raise ValueError(f"rescaled is an empty dict; it must be {what}.")
    check_real("level", level, 1)
    check_whole("neuron", neuron, 0)
    for name, model in models.items():
        if not hasattr(model, "uniform"):
            raise TypeError(f"rescaled, {name}, is a {type(model).__name__}; it must be {what}.")
        if neuron >= len(model.uniform):
            raise ValueError(f"neuron is {neuron}; rescaled, {name}, has neurons 0 to {len(model.uniform) - 1}.")
    ax = axes_or_new(ax, (3.0, 3.0))
    half = max(float(np.nan_to_num(model.band(level)[neuron])) for model in models.values())
    draw_shares(ax, {name: model.uniform[neuron] for name, model in models.items()}, half, level, difference)
    share = "cumulative share of intervals"
    name_axes(ax, "rescaled interval", f"{share},\nminus the uniform" if difference else share)
    return ax


def draw_shares(ax, values: dict[str, np.ndarray], half: float, level: float, difference: bool = False) -> None:
    """Draw cumulative shares of values in (0, 1), sorted, with a band of this half width around those of a uniform.

    With ``difference``, their distance from the uniform is drawn.
    """
    ends = np.array([0.0, 1.0])
    diagonal = ends * (not difference)
    ax.fill_between(ends, diagonal - half, diagonal + half, color=LIGHT, alpha=0.6, lw=0, label=f"{level:.0%} band")
    ax.plot(ends, diagonal, color=GREY, lw=0.8)
    for (name, u), color in zip(values.items(), colors_of_models(len(values)), strict=True):
        if not len(u):
            say(ax, "no spikes")
            continue
        x, share = np.concatenate([[0.0], u, [1.0]]), np.concatenate([np.arange(len(u) + 1) / len(u), [1.0]])
        if difference:  # both ends of every jump
            x, share = np.repeat(x, 2)[1:], np.repeat(share, 2)[:-1]
            share = share - x
        ax.plot(x, share, color=color, lw=1.4, drawstyle="default" if difference else "steps-post", label=name)
    ax.set_xlim(0, 1)
    if not difference:
        ax.set(ylim=(0, 1), aspect="equal")
    legend(ax, loc="best" if difference else "lower right")


# -- strengths chosen by cross-validation


def _check_cv(model, one_strength: bool = False) -> None:
    """Raise TypeError unless the model has scores of strengths, and NotFittedError before its fit."""
    if isinstance(model, SoftmaxGLMCV | MultinomialGLMCV) and not one_strength:
        raise TypeError(f"a {type(model).__name__} has one strength for all classes; plot_cv_curves draws its scores.")
    if isinstance(model, PopulationGLMCV | SoftmaxGLMCV | MultinomialGLMCV):
        check_is_fitted(model)
    elif not hasattr(model, "cv_scores_"):
        raise TypeError(
            f"model is a {type(model).__name__}, which has no scores of strengths; pass a fitted PopulationGLMCV."
        )


@on_axes
def plot_cv_curves(
    model: PopulationGLMCV | SoftmaxGLMCV | MultinomialGLMCV,
    neurons: ArrayLike | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the held-out score of neurons against the strength, with standard errors of the difference from the best.

    A dot marks the best strength, a circle that of the one-standard-error rule.

    Parameters
    ----------
    model : PopulationGLMCV, SoftmaxGLMCV or MultinomialGLMCV
        Fitted; models of classes have one curve.
    neurons : int or sequence of int, optional
        Neurons to draw, by default the first eight at most. Each neuron's best score is subtracted, so that neurons of
        any rate fit one panel.
    """
    _check_cv(model, one_strength=True)
    every = model.cv_scores_.reshape(*model.cv_scores_.shape[:2], -1)  # (strength, fold, neuron)
    n_all, has_neurons = every.shape[2], hasattr(model.report_, "neuron")
    names = model.report_.neuron if has_neurons else ["all classes"]
    marks = [(np.atleast_1d(model.one_se_strength_), "white"), (np.atleast_1d(model.best_strength_), None)]
    neurons = np.arange(min(n_all, 8)) if neurons is None else np.atleast_1d(neurons)
    if neurons.dtype.kind not in "iu" or neurons.min(initial=0) < 0 or neurons.max(initial=0) >= n_all:
        raise ValueError(f"neurons is {neurons.tolist()}; the model has neurons 0 to {n_all - 1}.")
    ax = axes_or_new(ax)
    strengths = model.strengths_
    # A strength of 0 stands one decade below the others.
    place = np.log10(np.where(strengths > 0, strengths, strengths[strengths > 0].min() / 10))
    for k, n in enumerate(neurons):
        scores = every[:, :, n]
        there = ~np.isnan(scores).all(axis=1)  # a fit that was interrupted leaves strengths out
        scores = scores[there]
        scores = scores[:, ~np.isnan(scores).any(axis=0)]
        if not scores.size:
            continue  # a neuron that cannot be scored
        lost = scores - scores[np.argmax(scores.mean(axis=1))]
        mean, n_folds = lost.mean(axis=1), scores.shape[1]
        error = lost.std(axis=1, ddof=1) / np.sqrt(n_folds) if n_folds > 1 else np.zeros(len(mean))
        colour = CYCLE[k % len(CYCLE)]
        shift = 0.02 * (k - (len(neurons) - 1) / 2) * (place[-1] - place[0]) / max(len(place) - 1, 1)
        at = place[there] + shift
        ax.errorbar(at, mean, error, color=colour, lw=1, elinewidth=0.7, label=names[n])
        for chosen, face in marks:
            i = int(np.searchsorted(strengths[there], chosen[n]))
            ax.plot(at[i], mean[i], "o", ms=5, mfc=face or colour, mec=colour)
    some = np.arange(0, len(strengths), -(-len(strengths) // 7))
    ax.set_xticks(place[some], [f"{s:.2g}" for s in strengths[some]])
    unit = "bin" if has_neurons else "row"
    score = f"log-likelihood per {unit}" if model.scoring == "log-likelihood" else model.scoring
    name_axes(ax, _strength_words(model), f"held-out {score}\nminus the best")
    handles, labels = ax.get_legend_handles_labels()
    if handles and has_neurons:
        some = "neuron" if len(neurons) == n_all else f"neuron ({len(neurons)} of {n_all})"
        dots = [ax.plot([], [], "o", ms=5, mfc=face, mec=GREY)[0] for face in (GREY, "white")]
        legend(
            ax, handles=[*handles, *dots], labels=[*labels, "best", "one-se rule"], title=some, title_fontsize=8,
            ncols=2 if len(neurons) > 4 else 1,
        )  # fmt: skip
    return ax


@on_axes
def plot_strengths(model: PopulationGLMCV, *, ax: Axes | None = None) -> Axes:
    """Draw the held-out score of every neuron and strength as a map, with the strengths chosen.

    Neurons are in order of the strength chosen, from left to right. Colour is the mean score over folds minus the
    neuron's best, divided by the spread of its scores; a line marks the strength chosen.

    Parameters
    ----------
    model : PopulationGLMCV
        Fitted.
    """
    _check_cv(model)
    known = ~np.isnan(model.cv_scores_)
    there = known.any(axis=1, keepdims=True)  # a fit that was interrupted leaves strengths out
    usable = (known | ~there).all(axis=0, keepdims=True) & there
    count = usable.sum(axis=1)
    with np.errstate(invalid="ignore"):
        mean = np.sum(np.where(usable, model.cv_scores_, 0), axis=1) / np.where(count > 0, count, np.nan)
    best, worst = np.fmax.reduce(mean, axis=0), np.fmin.reduce(mean, axis=0)
    relative = (mean - best) / np.where(best > worst, best - worst, 1.0)
    order = np.argsort(model.strength_, kind="stable")
    ax = axes_or_new(ax)
    image = ax.imshow(relative[:, order], aspect="auto", origin="lower", cmap="viridis", interpolation="nearest")
    strength = model.strength_[order]
    chosen = np.where(np.isnan(strength), np.nan, np.searchsorted(model.strengths_, strength))
    ax.step(np.arange(len(order)), chosen, where="mid", color=RED, lw=1.2)
    ax.set_yticks(range(len(model.strengths_)), [f"{s:.2g}" for s in model.strengths_])
    whole_ticks(ax.xaxis)
    bar = ax.figure.colorbar(image, ax=ax, ticks=[-1, 0])
    bar.ax.set_yticklabels(["worst", "best"], fontsize=8)
    name_axes(ax, "neuron, by strength chosen (line)", _strength_words(model))
    return ax


def _strength_words(model) -> str:
    """Name the strength by its penalty."""
    return {"Lasso": "lasso strength", "ElasticNet": "elastic-net strength"}.get(
        getattr(model, "regularizer", "Ridge"), "ridge strength"
    )
