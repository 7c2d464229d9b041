"""Posterior of the terms of a fitted additive model, and what it gives on grids: errors and quantiles of deviations."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

import numpy as np

from ...checks import as_numbers, check_whole
from ...design import Basis, Term

_POINTS = {1: 100, 2: 40}  # of an axis, by the number of inputs
_OF_MORE = 12
_NUMBERS = 100_000  # deviations at once, few enough for a cache
_BY_TERM = ("covariance", "wide")


@dataclass(frozen=True, kw_only=True)
class Smooth:
    """Terms of a fit, in coordinates in which penalties are diagonal; float64.

    The coefficients of a neuron are ``turn @ coordinates[:-1]``, its predictor at features x is
    ``(x - mean) @ turn @ coordinates[:-1] + coordinates[-1]``.
    """

    places: np.ndarray  # first and last + 1 coordinate of every term, (term, 2), in the order of `terms_`
    turn: np.ndarray  # (feature, coordinate)
    mean: np.ndarray  # (feature,)
    gram: np.ndarray  # second moments of the coordinates over the rows, (coordinate, coordinate)
    coordinates: np.ndarray  # (neuron, coordinate + 1), the intercept of centred features last
    degrees: np.ndarray  # effective degrees of freedom: the diagonal of F, (coordinate, neuron)
    degrees_of_tests: np.ndarray  # and that of 2 F - F F
    scale: np.ndarray  # dispersion that multiplies the covariance, 1 for models without a scale, (neuron,)
    # By term: posterior covariance of its coordinates and the intercept, at a scale of 1, (neuron, coordinate + 1,
    # coordinate + 1), at the strengths of the fit, nan for neurons without a fit or the term; and the same with the
    # uncertainty of strengths that were chosen.
    covariance: dict[str, np.ndarray] = field(default_factory=dict)
    wide: dict[str, np.ndarray] = field(default_factory=dict)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, as stored in a file."""
        arrays = {}
        for f in fields(self):
            value = getattr(self, f.name)
            of = {f".{name}": part for name, part in value.items()} if f.name in _BY_TERM else {"": value}
            arrays |= {f"smooth.{f.name}{name}": part for name, part in of.items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Self:
        """Undo `to_arrays`."""
        parts: dict = {name: {} for name in _BY_TERM}
        for name, array in arrays.items():
            first, _, rest = name.partition(".")
            if first == "smooth":
                of, _, term = rest.partition(".")
                if of in _BY_TERM:
                    parts[of][term] = array
                else:
                    parts[of] = array
        return cls(**parts)


class Grid(NamedTuple):
    """Grid on which a term is evaluated."""

    inputs: tuple[str, ...]
    axes: tuple[np.ndarray, ...]
    functions: np.ndarray  # values of the features' functions, (point, feature)
    is_filter: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Points of every axis."""
        return tuple(len(axis) for axis in self.axes)


def grid_of(name: str, term: Term, axes: Any, feature_names: list[str]) -> Grid:
    """Lay out a grid for a term: of its basis, or of its features if it has none."""
    if term.basis is None:
        if axes is not None:
            raise ValueError(
                f"axes is given for the term {name!r}, which has no basis: its curve is its coefficients. Omit axes, "
                "or fit with terms that have one."
            )
        names = np.array([feature_names[f] for f in term.features], object)
        return Grid(("feature",), (names,), np.eye(len(names)), True)
    basis = term.basis
    if axes is None:
        axes = basis.axes(_POINTS.get(basis.n_inputs, _OF_MORE))
    elif isinstance(axes, int | np.integer) and not isinstance(axes, bool):
        axes = basis.axes(check_whole("axes", axes, 2))
    else:
        axes = _read_axes(name, basis, axes)
    return Grid(inputs_of(basis), axes, basis.on_grid(*axes), has_lags(basis))


def _read_axes(name: str, basis: Basis, given: Any) -> tuple[np.ndarray, ...]:
    """Check the axes of a user: one array for each input, or a bare one if there is one input."""
    given = (given,) if basis.n_inputs == 1 and not isinstance(given, tuple) else given
    if not isinstance(given, tuple | list) or len(given) != basis.n_inputs:
        raise ValueError(
            f"axes of the term {name!r} must be {basis.n_inputs} array(s), one for each of "
            f"{', '.join(inputs_of(basis))}, or a whole number of points for each."
        )
    axes = tuple(as_numbers(f"axes[{k}]", axis) for k, axis in enumerate(given))
    for k, axis in enumerate(axes):
        if axis.ndim != 1 or not len(axis):
            raise ValueError(f"axes[{k}] has shape {axis.shape}; it needs (point,), at least one.")
    return axes


def has_lags(basis: Basis) -> bool:
    """Tell whether a basis uses the past of a signal, by itself or as a factor: its curves are filters."""
    return hasattr(basis, "kernels") or any(has_lags(factor) for factor in getattr(basis, "factors", ()))


def inputs_of(basis: Basis) -> tuple[str, ...]:
    """Name every input."""
    factors = getattr(basis, "factors", None)
    if factors:
        names = [name for factor in factors for name in inputs_of(factor)]
    elif hasattr(basis, "kernels"):
        names = ["lag_s"]
    elif basis.n_inputs == 1:
        names = [basis.name]
    else:
        names = [f"{basis.name}_{k}" for k in range(basis.n_inputs)]
    return tuple(f"{name}_{k}" if names.count(name) > 1 else name for k, name in enumerate(names))


def deviations(rows: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Compute standard deviations of linear combinations (point, coordinate) of normals, (point,)."""
    return np.sqrt(np.maximum(np.sum((rows @ covariance) * rows, axis=1), 0.0))


def largest(rows: np.ndarray, covariance: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Draw the largest deviation of combinations (point, coordinate) over their standard deviation, (draw,).

    ``normals`` are independent, (coordinate, draw), in single precision.
    """
    error = deviations(rows, covariance)
    some = error > 1e-12 * np.nanmax(error, initial=0.0)  # not NaN, either
    if not some.any():
        return np.zeros(normals.shape[1])
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    scaled = ((rows[some] @ root) / error[some][:, None]).astype(np.float32)
    found = np.empty(normals.shape[1], np.float32)
    size = max(16, _NUMBERS // len(scaled))
    for k in range(0, len(found), size):
        off = scaled @ normals[:, k : k + size]
        np.abs(off, out=off).max(axis=0, out=found[k : k + size])
    return found.astype(np.float64)


class Quantiles:
    """Quantiles of deviations, of one point and of the largest of a grid; one seed gives the same draws for all."""

    def __init__(self, level: float, n_draws: int, seed: int, n_coordinates: int):
        self.level, self._n_draws, self._seed = level, n_draws, seed
        self._normals = np.random.default_rng([seed, 0]).standard_normal((n_coordinates, n_draws), np.float32)

    def pointwise(self, residual_df: float) -> float:
        """Return the normal quantile, or Student's where a scale was estimated with finite degrees of freedom."""
        from scipy.special import ndtri, stdtrit

        share = (1 + self.level) / 2
        return float(ndtri(share) if np.isinf(residual_df) else stdtrit(residual_df, share))

    def simultaneous(self, rows: np.ndarray, covariance: np.ndarray, residual_df: float) -> float:
        """Estimate the quantile of the largest deviation of a grid, not below that of one point; NaN without draws."""
        if not self._n_draws:
            return np.nan
        drawn = largest(rows, covariance, self._normals[: rows.shape[1]])
        if np.isfinite(residual_df):
            squares = np.random.default_rng([self._seed, 1]).chisquare(residual_df, self._n_draws)
            drawn = drawn / np.sqrt(squares / residual_df)
        return max(float(np.quantile(drawn, self.level)), self.pointwise(residual_df))
