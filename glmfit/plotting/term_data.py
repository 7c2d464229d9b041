"""Data of figures of terms in addition to a model: rows, the values of their covariates, and words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..checks import check_positive, check_whole, shorten
from ..data.arrays import numbers
from ..display import counted
from ..estimators import PopulationGAM, TermCurve
from ..estimators.gam.posterior import has_lags, inputs_of
from ..estimators.streaming import as_arrays

LINES = {"curve": "rate"} | {end: f"rate_{end}" for end in ("low", "high", "low_simultaneous", "high_simultaneous")}
"""Fields of a `TermCurve`, on the scale of the linear predictor and on that of rates."""
FINER = 2  # cells of a fitted map in one of a counted map, along each axis
COUNTS = ("Poisson", "NegativeBinomial")
_QUANTILES = 400  # of the other terms, over which rates are averaged


class TermData:
    """Data drawn in addition to the model: the rows, the values of their covariates, and words.

    Raises TypeError or ValueError for what a user may not give.
    """

    def __init__(self, model: PopulationGAM, X, y, covariates, bin_s, units, n_bins, min_bins):
        for what, value in {"units": units, "covariates": covariates}.items():
            if value is not None and not isinstance(value, Mapping):
                raise ValueError(f"{what} is {shorten(value)}; it must be a dict whose keys are names of terms.")
        self.model, self.bin_s, self.units = model, bin_s, dict(units or {})
        self.n_bins, self.min_bins = check_whole("n_bins", n_bins, 2), check_whole("min_bins", min_bins, 0)
        if bin_s is not None:
            check_positive("bin_s", bin_s)
        X, y = as_arrays(X, y)
        n = len(model.report_.neuron)
        if y is not None:
            y = numbers(y, "y", "responses, (time,) or (time, neuron)")
            y = y[:, None] if y.ndim == 1 else y
            if y.ndim != 2 or y.shape[1] != n:
                raise ValueError(f"y has shape {y.shape}; the model has {n} neurons, so that it needs (time, {n}).")
        self.y = y
        self.covariates: dict[str, tuple[np.ndarray, ...]] = {}
        for name, given in dict(covariates or {}).items():
            inputs = inputs_to_count(model, name)
            given = (given,) if len(inputs) == 1 and not isinstance(given, tuple) else given
            if not isinstance(given, list | tuple) or len(given) != len(inputs):
                n_given = counted(len(given), "array") if isinstance(given, list | tuple) else shorten(given)
                raise ValueError(f"covariates has {n_given} for the term {name!r}; it has {', '.join(inputs)}.")
            shape = (np.size(given[0]) if y is None else len(y),)
            needs = f"one number for each row, {shape}"
            self.covariates[name] = tuple(numbers(v, f"covariates[{name!r}]", needs, shape=shape) for v in given)
        # Function of a term and a neuron: quantiles of the predictor without the term.
        self.rest = None if X is None else _others(model, X)

    def panels(self, name: str) -> list[tuple[str, str]]:
        """Kinds of the panels of a term."""
        basis = self.model.terms_[name].basis
        if basis is None:
            return [("coefficients", name)]
        lags = has_lags(basis)
        if basis.n_inputs == 1:
            return [("filter" if lags else "curve", name)]
        if basis.n_inputs > 2:
            return [("many", name)]
        if lags:
            return [("filter map", name)]
        is_counted = self.y is not None and name in self.covariates
        return [("map", name), ("raw", name)] if is_counted else [("map", name)]

    def grid(self, name: str):
        """Axes on which to evaluate a term: for maps the centres of cells, several of which make one counted cell."""
        basis = self.model.terms_[name].basis
        if basis is None or basis.n_inputs != 2 or has_lags(basis):
            return None if basis is None or basis.n_inputs < 3 else 2
        edges = [np.linspace(*ends, FINER * self.n_bins + 1) for ends in self.ends(name)]
        return tuple((axis[:-1] + axis[1:]) / 2 for axis in edges)

    def ends(self, name: str) -> list[tuple[float, float]]:
        """Range of every input."""
        return [(axis[0], axis[-1]) for axis in self.model.terms_[name].basis.axes(2)]

    def per_s(self, values):
        """Rates in spikes/s, or per bin."""
        return values if self.bin_s is None else values / self.bin_s

    def rates(self, curve: TermCurve, n: int) -> dict[str, np.ndarray]:
        """Rates of the lines of a curve, without the axis of neurons; averaged over the rows if there are any."""
        if self.rest is None:
            found = {name: getattr(curve, rate) for name, rate in LINES.items()}
            return {name: self.per_s(of[..., 0]) for name, of in found.items() if of is not None}
        rest, mean = self.rest(curve.name, n), self.model._family().mean
        found = {name: getattr(curve, name) for name in LINES}
        found = {name: mean(of[..., 0, None] + rest) for name, of in found.items() if of is not None}
        return {name: self.per_s(np.mean(np.asarray(of, np.float64), axis=-1)) for name, of in found.items()}

    def occupancy(self, name: str, seen=slice(None), weights: np.ndarray | None = None) -> np.ndarray:
        """Time bins, among those seen, in every cell of a map, or the sum of their weights; unknown values in none."""
        basis, ends = self.model.terms_[name].basis, self.ends(name)
        factors = getattr(basis, "factors", (basis,) * basis.n_inputs)
        x, y = (around(*each)[seen] for each in zip(factors, ends, self.covariates[name], strict=True))
        return np.histogram2d(x, y, [np.linspace(*of, self.n_bins + 1) for of in ends], weights=weights)[0]

    def counted(self, name: str, n: int) -> np.ndarray:
        """Rate counted in every cell of a map, NaN where no time bin is."""
        y = self.y[:, n]
        known = np.isfinite(y)
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.per_s(self.occupancy(name, known, y[known]) / self.occupancy(name, known))

    def label(self, name: str) -> str:
        """Name an input, with its unit."""
        return f"{name} ({self.units[name]})" if name in self.units else name

    @property
    def rate_label(self) -> str:
        """Name of rates, with their unit."""
        if self.model.observation_model not in COUNTS:
            return "mean response"
        return "rate (spikes/bin)" if self.bin_s is None else "rate (spikes/s)"


def around(basis, ends, values: np.ndarray) -> np.ndarray:
    """Take values of an input into one turn if its basis goes around a circle."""
    if not getattr(basis, "_goes_around", False):
        return values
    return ends[0] + np.mod(values - ends[0], ends[1] - ends[0])


def _others(model: PopulationGAM, X):
    """Make a function that gives quantiles, over the rows, of the predictor of a neuron without a term."""
    eta = np.asarray(model._predictor(X, None)[0], np.float64)
    rows = np.asarray(X, np.float64)
    coef, _ = model._matrix()
    eta = eta.reshape(len(eta), -1)
    share = (np.arange(_QUANTILES) + 0.5) / _QUANTILES

    def without(name: str, n: int) -> np.ndarray:
        features = list(model.terms_[name].features)
        own = (rows[:, features] - model._smooth.mean[features]) @ coef[features, n]
        rest = eta[:, n] - own
        known = np.isfinite(rest)
        if not known.any():
            raise ValueError("X has no row without a NaN, over which rates could be averaged.")
        return np.quantile(rest[known], share)

    return without


def inputs_to_count(model: PopulationGAM, name: str) -> tuple[str, ...]:
    """Names of the inputs of a term whose rates can be counted."""
    if name not in model.terms_:
        raise ValueError(f"covariates names {name!r}; the model has the terms {', '.join(map(repr, model.terms_))}.")
    basis = model.terms_[name].basis
    if basis is None or has_lags(basis) or basis.n_inputs > 2:
        raise ValueError(
            f"covariates names {name!r}, whose rates cannot be counted: it needs a basis of one or two values, without "
            "lags."
        )
    return inputs_of(basis)
