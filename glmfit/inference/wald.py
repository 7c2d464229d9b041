"""Standard errors and Wald intervals of coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from .._checks import check_choice, check_real
from .._display import Display, Summary
from .._types import DataLike
from ..estimators import PopulationGLM
from ._fit import data_of_fit, to_frame

if TYPE_CHECKING:
    import pandas as pd

COVARIANCES = ("fisher", "observed", "robust")


@dataclass(frozen=True, repr=False)
class WaldTable(Display):
    """Standard errors and Wald intervals of a fit's coefficients.

    Attributes
    ----------
    neuron, feature : list of str
        Names; of linear combinations their numbers.
    coef, standard_error, low, high, z, p_value : numpy.ndarray
        (feature, neuron): estimate, its standard error (infinite where the data do not determine the coefficient, nan
        for a neuron without an optimum, silent or separable), interval, estimate over standard error, two-sided p-value
        of 0.
    intercept, intercept_standard_error, intercept_low, intercept_high : numpy.ndarray
        (neuron,).
    effective_df : numpy.ndarray
        Effective degrees of freedom, intercept included, (neuron,): directions the data have without a penalty, fewer
        with a ridge.
    dispersion : numpy.ndarray
        Pearson's statistic over the residual degrees of freedom, (neuron,): 1 for Poisson counts; well above it
        "robust" errors are in place.
    level, covariance : float, str
        Coverage of the intervals, and what the errors rest on.
    """

    neuron: list
    feature: list
    coef: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    z: np.ndarray
    p_value: np.ndarray
    intercept: np.ndarray
    intercept_standard_error: np.ndarray
    intercept_low: np.ndarray
    intercept_high: np.ndarray
    effective_df: np.ndarray
    dispersion: np.ndarray
    level: float
    covariance: str

    def _summary(self) -> Summary:
        head = (
            f"{100 * self.level:g} % Wald intervals, {self.covariance} covariance; {len(self.neuron)} neurons, "
            f"{len(self.feature)} coefficients each"
        )
        return Summary([head], self.to_frame())

    def to_frame(self) -> pd.DataFrame:
        """Return one row per neuron and feature as a pandas DataFrame."""
        columns = ("coef", "standard_error", "low", "high", "z", "p_value")
        return to_frame(self.neuron, "feature", self.feature, {name: getattr(self, name) for name in columns})


def wald_table(
    model: PopulationGLM,
    X: DataLike,
    y: DataLike,
    sample_weight: ArrayLike | None = None,
    level: float = 0.95,
    covariance: str = "fisher",
    offset: ArrayLike | None = None,
    exposure: ArrayLike | None = None,
    combinations: ArrayLike | None = None,
) -> WaldTable:
    r"""Compute standard errors and Wald intervals of the coefficients of a fit, or of sums of them.

    Parameters
    ----------
    model : PopulationGLM
        Fitted without a penalty or with a ridge.
    X, y, sample_weight, offset, exposure :
        The data of the fit, in any form that it takes; what rows are read from must fit in the model's ``max_memory``.
    level : float
        Coverage of the intervals, in (0, 1).
    covariance : {"fisher", "observed", "robust"}
        With J the information of all rows and P the ridge, T times its strength: "fisher" takes ``(J + P)^-1`` with
        the expected information, "observed" with the Hessian at the counts seen, and "robust" the sandwich
        ``(J + P)^-1 S (J + P)^-1`` with S the sum of the rows' squared gradients, which stays right where counts vary
        more than Poisson's but are independent.
    combinations : array-like of shape (combination, feature), optional
        Linear combinations of the coefficients to have intervals for, in the place of the coefficients: for a filter
        the values of its basis functions, (lag, basis function), in the columns of their features and 0 elsewhere.

    Returns
    -------
    WaldTable

    Raises
    ------
    ValueError
        For a penalty that is not smooth, more than 2 000 features, options that make no sense, or data that are not
        those of the fit.
    NotFittedError
        Before a fit.

    Notes
    -----
    Asymptotic, hence approximate. With a ridge the first two are the covariance of a Gaussian posterior, whose
    intervals cover on average over coefficients; no standard error knows the bias of a ridge. Weights count as in the
    fit, rescaled to mean one. Float64 on the host; cost T d^2 per neuron.

    References
    ----------
    P. McCullagh, J. Nelder, Generalized linear models (1989); H. White, Maximum likelihood estimation of misspecified
    models (1982); D. Nychka, Bayesian confidence intervals for smoothing splines (1988).

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import PopulationGLM
    >>> from glmfit.inference import wald_table
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 2))
    >>> counts = rng.poisson(np.exp(0.5 * X[:, 0] - 1))
    >>> model = PopulationGLM("exp", "UnRegularized").fit(X, counts)
    >>> table = wald_table(model, X, counts)
    >>> bool(table.low[0, 0] < 0.5 < table.high[0, 0])
    True
    """
    check_choice("covariance", covariance, COVARIANCES)
    check_real("level", level, 1.0, hint="The usual one is 0.95.")
    fit = data_of_fit(model, X, y, sample_weight, offset, exposure)
    (coef, intercept), names = fit.params, fit.features
    if combinations is not None:
        combinations = np.asarray(combinations, np.float64)
        if combinations.ndim != 2 or combinations.shape[1] != len(coef) or not np.isfinite(combinations).all():
            raise ValueError(
                f"combinations has shape {combinations.shape}; it must be (combination, {len(coef)}), a finite weight "
                "for every feature of the fit."
            )
    found = [fit.information(i, covariance, combinations) for i in range(len(intercept))]
    error, error_b, df, dispersion = (np.stack(part, axis=-1) for part in zip(*found, strict=True))
    if combinations is not None:
        coef, names = combinations @ coef, [str(k) for k in range(len(combinations))]
    quantile = scipy.stats.norm.isf((1 - level) / 2)
    with np.errstate(invalid="ignore"):
        z = coef / error
    return WaldTable(
        neuron=list(model.report_.neuron),
        feature=names,
        coef=coef,
        standard_error=error,
        low=coef - quantile * error,
        high=coef + quantile * error,
        z=z,
        p_value=2 * scipy.stats.norm.sf(np.abs(z)),
        intercept=intercept,
        intercept_standard_error=error_b,
        intercept_low=intercept - quantile * error_b,
        intercept_high=intercept + quantile * error_b,
        effective_df=df,
        dispersion=dispersion,
        level=float(level),
        covariance=covariance,
    )
