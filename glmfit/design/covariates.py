"""Features of one covariate, of a product of several, or of the history, and the terms they make."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from . import bins as _bins
from .bases import Basis, terms_of
from .bins import Bins
from .convolution import Convolution
from .kernels import TIME_BASES
from .products import product, row_products
from .rules import guess
from .schema import COUNTS
from .sessions import Signal
from .terms import Term


class Part(NamedTuple):
    """Features of one covariate, of a product, or of the history."""

    name: str
    values: np.ndarray  # (bin, feature), NaN where there is none
    names: list[str]
    note: dict[str, Any] | None = None  # how a signal was resampled to bins
    standardize: bool = False
    bases: tuple[Basis, ...] = ()  # of its terms, in the order of its features; empty without a basis
    ridge: bool = False  # of features without a basis

    def terms(self, first: int) -> dict[str, Term]:
        """Make its terms, whose features begin at column ``first``."""
        if not self.bases:
            features = range(first, first + len(self.names))
            return {self.name: Term.ridge(features) if self.ridge else Term(features)}
        return terms_of(self.bases, first)


class Recorded(NamedTuple):
    """Data that covariates are made of."""

    bins: Bins
    signals: Mapping[str, Signal]
    counts: np.ndarray  # (bin, unit)
    units: Sequence[str]
    dtype: Any


def covariate_part(covariate: dict[str, Any], of: Recorded) -> Part:
    """Make the features of one covariate."""
    name, bins, table = covariate.get("name", covariate["signal"]), of.bins, covariate.get("basis")
    values, columns, how = _values(covariate, of)
    prefixes = [name if column == name else f"{name}_{column}" for column in columns] or [name]
    lags = covariate.get("lags", [round(lag / bins.bin_s) for lag in covariate.get("lags_s", [])])
    basis, ends = None, [""]
    if table is not None:
        basis = basis_of(table, name, bins)
        made, ends = _functions(values, basis, name, of), basis._ends
    elif lags:
        shifted = np.stack([_bins.lag(bins, values, by) for by in lags], axis=2)  # (bin, column, lag)
        made, ends = shifted.reshape(len(values), -1), [f"lag{by}" for by in lags]
    else:
        made = values
    names = [f"{prefix}_{end}" if end else prefix for prefix in prefixes for end in ends]
    note = {"name": name, "signal": covariate["signal"], "resample": how, "columns": list(columns)}
    bases = () if basis is None else tuple(replace(basis, name=prefix) for prefix in prefixes)
    return Part(name, made, names, note, covariate.get("standardize", False), bases, covariate.get("ridge", False))


def product_part(table: dict[str, Any], of: Recorded) -> Part:
    """Make the features of a tensor product, the first factor changing slowest."""
    name, factors = table["name"], [covariate_part(factor, of) for factor in table["factors"]]
    for factor in factors:
        if len(factor.bases) > 1:
            several = f'"{factor.name}" has {len(factor.bases)} columns'
            raise ValueError(f'product "{name}": the factor {several}; select one of them by columns = [...].')
    values = row_products([factor.values for factor in factors])
    basis = product(*(factor.bases[0] for factor in factors), name=name, isotropic=table.get("isotropic", False))
    note = {"name": name, "factors": [factor.note for factor in factors]}
    return Part(name, values, basis.feature_names, note, bases=(basis,))


def history_part(table: dict[str, Any], of: Recorded) -> Part:
    """Make the history features of all units."""
    basis = basis_of(table["basis"], "history", of.bins)
    bases = tuple(replace(basis, name=f"history_{unit}") for unit in of.units)
    names = [name for one in bases for name in one.feature_names]
    return Part("history", _convolve(of.counts, basis, of, "history"), names, bases=bases)


def basis_of(table: dict[str, Any], name: str, bins: Bins) -> Basis:
    """Make the basis of a covariate or of the history; splines of low order have the highest possible penalty order."""
    given = {**table, "name": name}
    if table["kind"] in TIME_BASES:
        given["bin_s"] = bins.bin_s
    elif "order" in table:
        given["penalty_order"] = table.get("penalty_order", min(2, table["order"] - 1))
    return Basis.from_dict(given)


def _values(covariate: dict[str, Any], of: Recorded) -> tuple[np.ndarray, tuple[str, ...], str]:
    """Return values of a covariate in bins, (bin, column), names of the columns, and the resampling."""
    signal_name = covariate["signal"]
    if signal_name == COUNTS:
        how, values, columns = COUNTS, of.counts.astype(np.float64), tuple(of.units)
    else:
        signal = of.signals[signal_name]
        how = covariate.get("resample") or _bins.usual_resampling(signal, of.bins.bin_s, covariate.get("basis"))
        values, columns = _bins.resample(of.bins, signal, how, covariate.get("max_gap_s")), signal.columns
    if "columns" in covariate:
        chosen = [column_of(column, columns, values.shape[1], signal_name) for column in covariate["columns"]]
        values, columns = values[:, chosen], tuple(columns[i] for i in chosen) if columns else ()
    return values, columns, how


def column_of(column: int | str, columns: tuple[str, ...], n: int, signal: str) -> int:
    """Return the number of a column given by number or name; ValueError if the signal has no such column."""
    if isinstance(column, str) and column not in columns:
        raise ValueError(f'the signal "{signal}" has no column "{column}"{guess(column, columns)}')
    if not isinstance(column, str) and column >= n:
        raise ValueError(f'the signal "{signal}" has {n} columns, 0 to {n - 1}; column {column} is requested.')
    return columns.index(column) if isinstance(column, str) else column


def _functions(values: np.ndarray, basis: Basis, name: str, of: Recorded) -> np.ndarray:
    """Evaluate the functions of a basis for every column, (bin, column * function)."""
    if basis.kind in TIME_BASES:
        return _convolve(values, basis, of, f'covariate "{name}"')
    made = np.concatenate([basis.features(column) for column in values.T], axis=1)
    if np.isnan(made).all() and np.isfinite(values).any():
        span = f"{np.nanmin(values):g} to {np.nanmax(values):g}"
        where = f"is in the range [{basis.range[0]:g}, {basis.range[1]:g}] of its basis."
        raise ValueError(f'covariate "{name}": none of its values, {span}, {where}')
    return made


def _convolve(values: np.ndarray, basis: Basis, of: Recorded, what: str) -> np.ndarray:
    """Causal convolution with kernels within epochs, (bin, column * kernel)."""
    kernels, first_rows = basis.kernels, np.unique(of.bins.epoch, return_index=True)[1]
    try:
        return Convolution(values, kernels, epochs=first_rows, dtype=of.dtype).to_array()
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error
