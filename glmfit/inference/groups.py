"""Loss of fit of a model without each group of features."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from ..checks import warn_user
from ..data.counts import weights_of
from ..display import Display, Summary, counted, frame_by_neuron
from ..estimators import PopulationGLM, PopulationGLMCV
from ..estimators.gam.smooth_tests import UNSEEN, tail
from ..estimators.scores import as_given
from ..numerics import DataLike, PerRow
from ..observations import NegativeBinomial
from .autocorrelation import Autocorrelation, autocorrelation
from .explained.models import read_groups
from .wald import NO_OPTIMUM, FittedData, data_of_fit

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class GroupTable(Display):
    """Loss of fit of a model when a group of features is dropped and the others are refitted.

    Attributes
    ----------
    group, neuron : list of str
        Names.
    deviance_explained, deviance_explained_without : numpy.ndarray
        On the training rows, of the whole model, (neuron,), and without the group, (group, neuron).
    statistic, df, p_value : numpy.ndarray
        Likelihood ratio, twice the log-likelihood that is lost, or its approximation with a ridge; degrees of freedom
        of the group; p-value of the statistic if the group has no effect, (group, neuron) each.
    statistic_low, statistic_high : numpy.ndarray
        Proved bounds of the statistic of the exact optima, (group, neuron); nan if a gap is an estimate or there is a
        ridge.
    converged, approximate : numpy.ndarray, bool
        Whether the neuron converged with and without the group, (group, neuron); whether a ridge makes the p-values
        approximate.
    variance_inflation : numpy.ndarray
        Estimated variance of sums of the full model's residuals, relative to that of sums of independent ones,
        (neuron,), in blocks of the length that shows it most clearly. nan for a neuron without an optimum, and with
        fewer than 32 bins.
    autocorrelation_p_value : numpy.ndarray
        p-value of a test of independent bins against a variance inflation above 1, corrected for the number of block
        lengths tried, (neuron,).
    autocorrelated : numpy.ndarray, bool
        Whether the p-value is below 1e-5 and the inflation at least 1.2, (neuron,). Then the likelihood ratio of a
        feature that changes slowly tends to be too large, by up to about the inflation, and its p-value too small.
    """

    group: list
    neuron: list
    deviance_explained: np.ndarray
    deviance_explained_without: np.ndarray
    statistic: np.ndarray
    statistic_low: np.ndarray
    statistic_high: np.ndarray
    df: np.ndarray
    p_value: np.ndarray
    converged: np.ndarray
    approximate: bool
    variance_inflation: np.ndarray
    autocorrelation_p_value: np.ndarray
    autocorrelated: np.ndarray

    def _summary(self) -> Summary:
        groups, neurons = counted(len(self.group), "group"), counted(len(self.neuron), "neuron")
        head = f"deviance explained without each group of features, and lost with it; {groups}, {neurons}"
        ridge = ["p-values are approximate: the fit has a ridge"] if self.approximate else []
        lost = int(np.sum(~self.converged))
        failed = [f"{lost} of {self.converged.size} rows rest on a fit that did not converge"] if lost else []
        found = [f"{line}: their p-values are too small for slow features" for line in self._autocorrelation()]
        return Summary([head], self.to_frame(), ridge + failed + found)

    def _autocorrelation(self) -> list:
        """Report for how many neurons residuals are autocorrelated: a line, or none."""
        if not self.autocorrelated.any():
            return []
        most = self.variance_inflation[self.autocorrelated].max()
        return [
            f"residuals of {self.autocorrelated.sum()} of {counted(len(self.neuron), 'neuron')} are autocorrelated "
            f"(their sums vary up to {most:.2g} times as much as those of independent ones)"
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per neuron and group as a pandas DataFrame."""
        without = self.deviance_explained_without
        explained = {
            "deviance_explained_without": without,
            "unique_deviance_explained": self.deviance_explained - without,
        }
        columns = {name: getattr(self, name) for name in ("statistic", "df", "p_value", "converged")}
        return frame_by_neuron(self.neuron, explained | columns, group=self.group)


def drop_groups(
    model: PopulationGLM,
    X: DataLike,
    y: DataLike,
    groups: ArrayLike | Mapping[str, Any] | None = None,
    sample_weight: PerRow = None,
    offset: PerRow = None,
    exposure: PerRow = None,
    epochs: Mapping[Any, Any] | None = None,
) -> GroupTable:
    r"""Refit the model without each group of features, and test the loss of fit.

    Parameters
    ----------
    model : PopulationGLM
        Fitted without a penalty or with a ridge.
    X, y, sample_weight, offset, exposure, epochs :
        The data of the fit, in any form that ``fit`` takes; a source of rows must fit in the model's ``max_memory``.
    groups : dict or array, optional
        Group name -> feature indices or names (one, a list or a slice); or a label per feature, (feature,). By default
        each feature is a group.

    Returns
    -------
    GroupTable

    Raises
    ------
    ValueError
        As `wald_table`, and for groups that name no feature of the model.

    Warns
    -----
    UserWarning
        If the residuals of the full model are autocorrelated, so that p-values of slow features are too small.

    Notes
    -----
    Guarantee: without a ridge the statistic is the deviance that is lost, whose distribution is chi-squared (Wilks;
    asymptotic); that of the exact optima is between ``statistic_low`` and ``statistic_high`` if both fits have a bound
    of their gap. With a ridge the statistic is approximately the penalised deviance that is lost if the ridge shrinks
    the group alone; without an effect it is about a sum of squares of normals, each weighted by the degrees of freedom,
    0 to 1, that the ridge leaves to a direction (after Wood 2013). What the ridge has taken from other features is
    projected out. One fit per group, all neurons at once.

    The p-values assume independent bins: if the rate drifts, any feature that changes slowly may seem significant
    (Harris 2020; docs/how_to/uncertainty.md), while those of features that are independent from bin to bin remain
    correct. Residuals are tested in blocks of 2, 4, 8, ... bins, in the order of the rows, whatever the gaps between
    them.

    References
    ----------
    K. Harris, Nonsense correlations in neuroscience, bioRxiv 2020.11.29.402719.

    S. Wood, A simple test for random effects in regression models, Biometrika 100 (2013).
    """
    if isinstance(model, PopulationGLMCV):
        raise TypeError(
            "model is a PopulationGLMCV; drop_groups takes a PopulationGLM, whose strength is given, without a penalty "
            "or with a ridge. Fit one, or compare held-out scores by explain(model, ...)."
        )
    fit = data_of_fit(model, X, y, sample_weight, offset, exposure, epochs)
    named = read_groups(groups, len(fit.features), fit.features)
    full, ridge, rank = model.report_, bool(np.any(fit.ridge > 0)), model.report_.rank
    loss, saturated = fit.loss, fit.saturated_loss
    scale = 2 * weights_of(fit.data, slice(None)).sum(axis=0) / fit.scale  # from F to twice the nats of all responses
    rests = [_without(fit, members) for members in named.values()]
    loss_rest, gap, proved, converged, left = (np.stack(part) for part in zip(*rests, strict=True))  # (group, neuron)
    silent = np.isin(full.status, NO_OPTIMUM)
    known = proved & full.gap_is_bound & (not ridge)
    if ridge:
        lost, df, p = _shrunken_tests(fit, list(named.values()))
    else:
        lost = np.where(silent, np.nan, scale * (loss_rest - loss))
        df = np.maximum(rank + 1.0 - left, 0.0)
        p = np.where(df > 0, scipy.stats.chi2.sf(np.maximum(lost, 0.0), np.maximum(df, 1e-12)), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        explained, without = (
            np.where(silent, np.nan, 1 - (of - saturated) / (full.null_objective - saturated))
            for of in (loss, loss_rest)
        )
    inflation, inflation_p, autocorrelated = zip(*(_autocorrelation(fit, i) for i in range(len(silent))), strict=True)
    table = GroupTable(
        group=list(named), neuron=list(full.neuron),
        deviance_explained=explained, deviance_explained_without=without,
        statistic=lost, df=df, p_value=np.where(silent, np.nan, p),
        statistic_low=np.where(known, lost - scale * gap, np.nan),
        statistic_high=np.where(known, lost + scale * full.gap, np.nan),
        converged=converged & full.converged, approximate=ridge,
        variance_inflation=np.array(inflation), autocorrelation_p_value=np.array(inflation_p),
        autocorrelated=np.array(autocorrelated),
    )  # fmt: skip
    for line in table._autocorrelation():
        warn_user(
            f"{line}: the p-values of these neurons rest on independent bins and are too small for features that "
            "change slowly. glmfit.inference.explain scores held-out data and compares with shifted counts."
        )
    return table


def _shrunken_tests(fit: FittedData, groups: list) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute statistics, degrees of freedom and p-values of groups that a ridge shrinks, (group, neuron) each."""
    status = fit.model.report_.status
    statistic, df, p = np.full((3, len(groups), len(status)), np.nan)
    for i in np.flatnonzero(~np.isin(status, NO_OPTIMUM)):
        for g, (found, of) in enumerate(fit.group_statistics(i, groups)):
            of = of[of > UNSEEN]
            statistic[g, i], df[g, i], p[g, i] = found, of.sum(), tail(found, of) if len(of) else 1.0
    return statistic, np.nan_to_num(df), p


def _autocorrelation(fit: FittedData, i: int) -> Autocorrelation:
    """Test the residuals of one neuron."""
    if fit.model.report_.status[i] in NO_OPTIMUM:
        return Autocorrelation(np.nan, np.nan, False)
    return autocorrelation(*fit.pearson_residuals(i))


def _without(fit: FittedData, members) -> tuple:
    """Fit the other features: loss, gap, whether it is proved, converged, degrees without a ridge, (neuron,) each."""
    model, data, full = fit.model, fit.data, fit.model.report_
    rest = np.setdiff1d(np.arange(len(fit.features)), members)
    if not len(rest):  # a constant rate, known exactly
        ones = np.ones(len(full.neuron))
        return full.null_objective, 0 * ones, ones > 0, ones > 0, ones
    strength = model.strength_
    strength = np.asarray(strength)[rest] if np.ndim(strength) == 2 else strength
    changes = {"regularizer_strength": strength}
    if isinstance(fit.observation, NegativeBinomial):
        changes["dispersion"] = model.dispersion_  # the test is at one dispersion
    smaller = PopulationGLM(**model.get_params(deep=False) | changes)
    data = replace(data, X=data.X[:, rest])
    given = as_given(data)
    weights = given.weights if given.own is None else given.weights[:, None] * given.own
    with warnings.catch_warnings():  # the table reports what does not converge
        warnings.simplefilter("ignore", UserWarning)
        smaller.fit(data.X, given.Y, weights, given.offset, given.exposure)
    report, fit = smaller.report_, FittedData(smaller, data)
    left = np.full(len(full.neuron), report.rank + 1.0)
    return fit.loss, report.gap, report.gap_is_bound, report.converged, left
