"""Data of figures of terms in addition to a model: rows, the values of their covariates, and words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import check_positive, check_whole
from ..data.arrays import numbers
from ..estimators import PopulationGAM, TermCurve
from ..estimators.gam.posterior import has_lags, inputs_of
from ..estimators.streaming import as_arrays

FINER = 2  # cells of a fitted map in one of a counted map, along each axis
COUNTS = ("Poisson", "NegativeBinomial")
_QUANTILES = 400  # of the other terms, over which rates are averaged


@dataclass(frozen=True)
class TermData:
    """Data drawn in addition to the model: the rows, the values of their covariates, and words."""

    model: PopulationGAM
    rest: Any  # function of a term and a neuron: quantiles of the predictor without it, or None
    y: np.ndarray | None
    covariates: dict[str, tuple[np.ndarray, ...]]
    bin_s: float | None
    units: dict[str, str]
    n_bins: int
    min_bins: int

    @classmethod
    def of(cls, model, X, y, covariates, bin_s, units, n_bins, min_bins) -> TermData:
        """Check the arguments of a user."""
        n_bins, min_bins = check_whole("n_bins", n_bins, 2), check_whole("min_bins", min_bins, 0)
        if bin_s is not None:
            check_positive("bin_s", bin_s)
        X, y = as_arrays(X, y)
        y, n = None if y is None else numbers(y, "y", "responses, (time,) or (time, neuron)"), len(model.report_.neuron)
        if y is not None:
            y = y[:, None] if y.ndim == 1 else y
            if y.ndim != 2 or y.shape[1] != n:
                raise ValueError(f"y has shape {y.shape}; the model has {n} neurons, so that it needs (time, {n}).")
        values = {}
        for name, given in dict(covariates or {}).items():
            inputs = inputs_to_count(model, name)
            given = (given,) if len(inputs) == 1 and not isinstance(given, tuple) else given
            if len(given) != len(inputs):
                raise ValueError(
                    f"covariates has {len(given)} arrays for the term {name!r}; it has {', '.join(inputs)}."
                )
            shape = (len(given[0]) if y is None else len(y),)
            needs = f"one number for each row, {shape}"
            values[name] = tuple(numbers(v, f"covariates[{name!r}]", needs, shape=shape) for v in given)
        return cls(model, None if X is None else _others(model, X), y, values, bin_s, units, n_bins, min_bins)

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
        return tuple(_centres(np.linspace(*ends, FINER * self.n_bins + 1)) for ends in self.ends(name))

    def ends(self, name: str) -> list[tuple[float, float]]:
        """Range of every input."""
        return [(axis[0], axis[-1]) for axis in self.model.terms_[name].basis.axes(2)]

    def per_s(self, values):
        """Rates in spikes/s, or per bin."""
        return values if self.bin_s is None else values / self.bin_s

    def rates(self, curve: TermCurve, n: int) -> dict[str, np.ndarray]:
        """Rates and their intervals, without the axis of neurons; averaged over the rows if there are any."""
        keys = {"rate": "curve"} | {
            f"rate_{end}": end for end in ("low", "high", "low_simultaneous", "high_simultaneous")
        }
        if self.rest is None:
            found = {key: getattr(curve, key) for key in keys}
            return {key: self.per_s(of[..., 0]) for key, of in found.items() if of is not None}
        rest, mean = self.rest(curve.name, n), self.model._family().mean
        ends = {key: getattr(curve, of) for key, of in keys.items()}
        return {
            key: self.per_s(np.mean(np.asarray(mean(of[..., 0, None] + rest), np.float64), axis=-1))
            for key, of in ends.items()
            if of is not None
        }

    def places(self, name: str, cells: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Edges of cells, and the cell of each row, (input, row), -1 for values out of range or unknown."""
        basis = self.model.terms_[name].basis
        factors = getattr(basis, "factors", (basis,) * basis.n_inputs)
        edges, places = [], []
        for factor, ends, values in zip(factors, self.ends(name), self.covariates[name], strict=True):
            values = around(factor, ends, values)
            edges.append(np.linspace(*ends, cells + 1))
            with np.errstate(invalid="ignore"):
                place = np.clip(np.searchsorted(edges[-1], values, side="right") - 1, -1, cells)
                places.append(np.where(values == ends[1], cells - 1, np.where(place == cells, -1, place)))
        return edges, np.where(np.all(np.array(places) >= 0, axis=0), places, -1)

    def counted(self, name: str, n: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Time bins in every cell of a map, and the rate counted there."""
        shape = (self.n_bins, self.n_bins)
        _, places = self.places(name, self.n_bins)
        known = places[0] >= 0 if n is None else (places[0] >= 0) & np.isfinite(self.y[:, n])
        flat = np.ravel_multi_index(tuple(places[:, known]), shape)
        occupancy = np.bincount(flat, minlength=self.n_bins**2).reshape(shape)
        total = np.bincount(flat, None if n is None else self.y[known, n], minlength=self.n_bins**2).reshape(shape)
        with np.errstate(invalid="ignore"):
            return occupancy, self.per_s(np.where(occupancy > 0, total / np.maximum(occupancy, 1), np.nan))

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


def _centres(edges: np.ndarray) -> np.ndarray:
    return (edges[:-1] + edges[1:]) / 2


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
        return np.quantile(rest[np.isfinite(rest)], share)

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
