"""Filters of a fitted model, sums of the functions of a basis, with Wald intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import check_model
from ..design.convolution import kernels_of
from ..display import Display, Summary, frame_by_neuron
from ..estimators import PopulationGLM, PopulationGLMCV
from ..estimators.model import check_is_fitted
from ..numerics import DataLike, PerRow
from ..penalties.by_name import read_members
from .wald import wald_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class FilterTable(Display):
    """Filters of a fit at every lag, with Wald intervals.

    Attributes
    ----------
    neuron, source : list of str
        Names of the neurons, and of what the filters are of.
    lag : numpy.ndarray
        Lags, (lag,): in s if the basis knows the width of a bin, else in bins. The first is one bin.
    filter, standard_error, low, high : numpy.ndarray
        Effect on the linear predictor, its standard error and its interval, (lag, source, neuron).
    area, area_standard_error, area_low, area_high, p_value : numpy.ndarray
        The same for the sum over the lags, (source, neuron), and a two-sided p-value of 0.
    level, covariance : float, str
        Coverage of the intervals, and covariance of the errors, as in `WaldTable`.
    """

    neuron: list
    source: list
    lag: np.ndarray
    filter: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    area: np.ndarray
    area_standard_error: np.ndarray
    area_low: np.ndarray
    area_high: np.ndarray
    p_value: np.ndarray
    level: float
    covariance: str

    def _summary(self) -> Summary:
        size = f"{len(self.source)} filters of {len(self.lag)} lags, {len(self.neuron)} neurons"
        head = f"{size}: {100 * self.level:g} % Wald intervals at each lag, {self.covariance} covariance"
        return Summary([head], self.to_frame())

    def to_frame(self) -> pd.DataFrame:
        """Return one row per neuron, source and lag as a pandas DataFrame."""
        columns = {name: getattr(self, name) for name in ("filter", "standard_error", "low", "high")}
        return frame_by_neuron(self.neuron, columns, source=self.source, lag=self.lag)


def filter_table(
    model: PopulationGLM | PopulationGLMCV,
    X: DataLike,
    y: DataLike,
    basis: Any,
    *,
    columns: Any = None,
    level: float = 0.95,
    covariance: str = "fisher",
    sample_weight: PerRow = None,
    offset: PerRow = None,
    exposure: PerRow = None,
    epochs: Mapping[Any, Any] | None = None,
) -> FilterTable:
    r"""Compute filters from the coefficients of their basis functions, with Wald intervals.

    Parameters
    ----------
    model, X, y, sample_weight, offset, exposure, epochs, level, covariance :
        As in `wald_table`: a fitted model without a penalty or with a ridge, and the data of its fit.
    basis :
        Basis of the filters: values (lag, basis function), or a basis of `glmfit.design` or NeMoS, as in
        `glmfit.design.Convolution`.
    columns : list of int or str, or slice, optional
        Features that are the basis functions of one source, or source by source, as `glmfit.design.Convolution` orders
        them; by default all.

    Returns
    -------
    FilterTable
        A source is named as its features without the number at their end, or else numbered.

    Raises
    ------
    ValueError, TypeError
        As `wald_table`, and if the columns are not a multiple of the functions of the basis.
    NotFittedError
        Before a fit.

    Notes
    -----
    Intervals hold for each lag by itself, and do not include the bias of filters that the basis cannot follow, or of a
    ridge; `glmfit.PopulationGAM` also has bands for whole filters (docs/how_to/filters.md). Cost: as `wald_table`, and
    the square of the features for every lag and source.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import PopulationGLM
    >>> from glmfit.design import Convolution, RaisedCosineLog
    >>> from glmfit.inference import filter_table
    >>> counts = np.random.default_rng(0).poisson(0.2, size=(2000, 2))
    >>> basis = RaisedCosineLog(3, window_s=0.1, bin_s=0.01, name="history")
    >>> X = Convolution(counts, basis).to_array()
    >>> model = PopulationGLM().fit(X, counts)
    >>> table = filter_table(model, X, counts, basis)
    >>> table.filter.shape, bool(np.all(table.low <= table.high))
    ((10, 2, 2), True)
    """
    needs = "glmfit.PopulationGLM or PopulationGLMCV. The terms of a PopulationGAM have intervals: model.term(name)."
    check_model(model, PopulationGLM | PopulationGLMCV, needs)
    check_is_fitted(model)
    kernels = kernels_of(basis, np.float64)
    lags, n_kernels = kernels.shape
    names = getattr(model, "feature_names_in_", None)
    chosen = slice(None) if columns is None else columns
    features = np.array(read_members("filter", chosen, model.n_features_in_, names, "columns"))
    if len(features) % n_kernels or len(np.unique(features)) < len(features):
        raise ValueError(
            f"columns has {len(np.unique(features))} different features of {len(features)}; it must name a multiple of "
            f"the {n_kernels} functions of the basis, each once, source by source."
        )
    of_source = features.reshape(-1, n_kernels)
    n_sources = len(of_source)
    sums = np.zeros((n_sources, lags + 1, model.n_features_in_))
    for combination, own in zip(sums, of_source, strict=True):
        combination[:lags, own], combination[lags, own] = kernels, kernels.sum(axis=0)
    found = wald_table(
        model, X, y, sample_weight, level, covariance, offset, exposure, sums.reshape(-1, sums.shape[-1]), epochs
    )

    def part(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = values.reshape(n_sources, lags + 1, -1)
        return np.ascontiguousarray(values[:, :lags].transpose(1, 0, 2)), values[:, lags]

    parts = [part(getattr(found, name)) for name in ("coef", "standard_error", "low", "high", "p_value")]
    (curve, area), (error, area_error), (low, area_low), (high, area_high), (_, p_value) = parts
    return FilterTable(
        neuron=found.neuron, source=_names(of_source, names),
        lag=np.arange(1, lags + 1) * float(getattr(basis, "bin_s", 1)),
        filter=curve, standard_error=error, low=low, high=high,
        area=area, area_standard_error=area_error, area_low=area_low, area_high=area_high,
        p_value=p_value,
        level=found.level, covariance=found.covariance,
    )  # fmt: skip


def _names(of_source: np.ndarray, names: Any) -> list[str]:
    """Name sources after their features, if these differ in a number at the end only."""
    if names is not None:
        stems = [{re.sub(r"[ _]?\d+$", "", str(names[k])) for k in own} for own in of_source]
        found = [next(iter(stem)) for stem in stems if len(stem) == 1]
        if len(set(found)) == len(of_source) and all(found):
            return found
    return [str(k) for k in range(len(of_source))]
