"""From a recording to features and counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import bins as _bins
from ._schema import guess
from .bases import CYCLIC, TIME_BASES, evaluate, names_of, time_kernels
from .bins import Bins
from .convolution import Convolution
from .sessions import Session, Signal
from .settings import COUNTS

_MOST_INTERVALS = 100  # written in the notes


class Features:
    """Columns of a design, gathered part by part."""

    def __init__(self, n_rows: int, dtype):
        self.blocks: list[np.ndarray] = [np.empty((n_rows, 0), dtype)]
        self.names: list[str] = []
        self.dtype = dtype
        self.incomplete: dict[str, int] = {}  # rows with NaN, by part
        self.scaled: dict[int, np.ndarray] = {}  # columns to be standardized, as they were before rounding to dtype

    def add(self, part: str, values: np.ndarray, names: list[str], standardize: bool = False) -> None:
        """Append columns."""
        if standardize:
            self.scaled |= {len(self.names) + i: column for i, column in enumerate(values.astype(np.float64).T)}
        self.blocks.append(values.astype(self.dtype, copy=False))
        self.names += names
        self.incomplete[part] = int(np.isnan(values).any(axis=1).sum())

    def standardize(self, X: np.ndarray, complete: np.ndarray) -> dict[str, list[float]]:
        """Bring columns to mean 0 and standard deviation 1 over complete rows; mean and deviation by name."""
        used = {}
        for column, values in self.scaled.items():
            known = values[complete]
            mean, deviation = float(known.mean()), float(known.std())
            deviation = deviation if deviation > 1e-12 * np.abs(known).max() else 1.0  # a constant stays one
            X[:, column] = (values - mean) / deviation
            used[self.names[column]] = [mean, deviation]
        return used


def build_recording(session: Session, design: dict[str, Any], dtype) -> dict[str, Any]:
    """Make all parts of what an estimator is fitted to, by name."""
    signals = _signals(session, design)
    epochs, origin = _epochs(session, design, signals)
    keep_partial = design["partial_bins"] == "exposure"
    bins = _bins.make_bins(epochs, design["bin_s"], keep_partial)
    if not len(bins.starts):
        raise ValueError(f"no epoch is as long as a bin of {design['bin_s']:g} s (epochs: {origin}).")
    units, left_out = _units(session, design)
    counts = _bins.count(bins, [session.spikes[unit] for unit in units])
    seconds = float((bins.stops - bins.starts).sum())
    if "min_rate_hz" in design:
        rates = counts.sum(axis=0) / seconds
        left_out |= {u: f"{r:.3g} Hz" for u, r in zip(units, rates) if r < design["min_rate_hz"]}
        counts = counts[:, [unit not in left_out for unit in units]]
        units = [unit for unit in units if unit not in left_out]
    if not units and (design["target"] == COUNTS or "history" in design):
        raise ValueError(f"no unit is left; left out are {left_out}." if left_out else "the session has no spikes.")
    features = Features(len(counts), dtype)
    used = [_add_covariate(features, bins, covariate, signals, counts, units) for covariate in design["covariates"]]
    own, own_names = _history(features, bins, design, counts, units)
    twice = sorted({name for name in features.names if features.names.count(name) > 1})
    if twice:
        raise ValueError(f"several features are called {', '.join(twice)}; give their covariates names of their own.")
    X = np.concatenate(features.blocks, axis=1)
    y = counts if design["target"] == COUNTS else _labels(bins, design["target"], signals)
    complete = np.isfinite(X).all(axis=1) & np.isfinite(y.reshape(len(y), -1)).all(axis=1)
    if own is not None:
        complete &= ~np.isnan(own[0]).any(axis=1)
    if not complete.any():
        raise ValueError(f"none of {len(X)} bins has all features; bins without, by part: {features.incomplete}.")
    standardized = features.standardize(X, complete)
    notes = {
        "kind": "recording",
        "bin_s": bins.bin_s,
        "bins": len(X),
        "seconds": seconds,
        "epochs": {"from": origin, "number": len(epochs), "intervals": epochs[:_MOST_INTERVALS].tolist()},
        "partial_bins": {"handled": design["partial_bins"], "number": bins.n_partial, "seconds": bins.partial_s},
        "rows_left_out": int((~complete).sum()),
        "rows_left_out_by": features.incomplete,
        "units_left_out": left_out,
        "covariates": used,
        "standardized": standardized,
    }
    if own is not None:
        notes["own_names"] = own_names
    return {
        "X": X,
        "y": y,
        "exposure": bins.share if keep_partial and bins.n_partial else None,
        "feature_names": features.names,
        "target_names": units if design["target"] == COUNTS else None,
        "notes": notes,
        "own": own,
    }


def _signals(session: Session, design: dict[str, Any]) -> dict[str, Signal]:
    """Signals that the design names."""
    named = [covariate["signal"] for covariate in design["covariates"]] + [design["target"]]
    for name in named:
        if name != COUNTS and name not in session.signals:
            raise ValueError(f'the session has no signal "{name}"{guess(name, session.signals)}')
    return {name: session.signals[name] for name in dict.fromkeys(named) if name != COUNTS}


def _epochs(session: Session, design: dict[str, Any], signals: dict[str, Signal]) -> tuple[np.ndarray, str]:
    """Epochs (epoch, 2) of a design, and where they are from."""
    given = design["epochs"]
    if isinstance(given, str):
        if given not in session.epochs:
            raise ValueError(f'the session has no epochs "{given}"{guess(given, session.epochs)}')
        return session.epochs[given], f'the interval set "{given}"'
    if given is not None:
        return np.array(given, np.float64), "the design"
    if not signals:
        if session.support is None:
            raise ValueError("the session has no spikes, and the design no epochs.")
        return session.support, "the time support of the spikes"
    epochs = None
    for signal in signals.values():
        epochs = signal.support if epochs is None else _bins.intersect(epochs, signal.support)
    origin = f"the time supports of {', '.join(signals)}"
    if not len(epochs):
        raise ValueError(f"{origin} have nothing in common; are all on the same clock, in seconds?")
    return epochs, origin


def _units(session: Session, design: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Units of a design, and those left out with the reason."""
    left_out = {unit: f"{n} spikes" for unit, n in session.few_spikes.items()}
    if "units" not in design:
        return list(session.spikes), left_out
    missing = [unit for unit in design["units"] if unit not in session.spikes]
    if missing:
        few = [f"{unit} ({left_out[unit]})" for unit in missing if unit in left_out]
        reason = f" Left out by min_spikes are {', '.join(few)}." if few else ""
        raise ValueError(f"the design names units that the session has not: {', '.join(missing)}.{reason}")
    return [unit for unit in session.spikes if unit in design["units"]], {}


def _add_covariate(features: Features, bins: Bins, covariate: dict, signals, counts, units) -> dict[str, Any]:
    """Append the features of a covariate; how the signal came into bins."""
    signal_name, basis = covariate["signal"], covariate.get("basis")
    name = covariate.get("name", signal_name)
    if signal_name == COUNTS:
        how, values, columns = COUNTS, counts.astype(np.float64), tuple(units)
    else:
        signal = signals[signal_name]
        how = covariate.get("resample") or _default_resample(signal, bins.bin_s, basis)
        values, columns = _bins.resample(bins, signal, how, covariate.get("max_gap_s")), signal.columns
    if "columns" in covariate:
        chosen = [_column(column, columns, values.shape[1], signal_name) for column in covariate["columns"]]
        values, columns = values[:, chosen], tuple(columns[i] for i in chosen) if columns else ()
    prefixes = [f"{name}_{column}" for column in columns] or [name]
    lags = covariate.get("lags", [round(lag / bins.bin_s) for lag in covariate.get("lags_s", [])])
    if basis is not None and basis["kind"] in TIME_BASES:
        made, ends = _convolve(values, basis, bins, features.dtype, f'covariate "{name}"'), names_of(basis)
    elif basis is not None:
        made = np.concatenate([evaluate(basis, column) for column in values.T], axis=1)
        ends = names_of(basis)
        if np.isnan(made).all() and np.isfinite(values).any():
            raise ValueError(
                f'covariate "{name}": none of its values, {np.nanmin(values):g} to {np.nanmax(values):g}, is in the '
                f"range {basis['range']} of its basis."
            )
    elif lags:
        shifted = np.stack([_bins.lag(bins, values, by) for by in lags], axis=2)  # (bin, column, lag)
        made, ends = shifted.reshape(len(values), -1), [f"lag{by}" for by in lags]
    else:
        made, ends = values, [""]
    names = [f"{prefix}_{end}" if end else prefix for prefix in prefixes for end in ends]
    features.add(name, made, names, covariate.get("standardize", False))
    return {"name": name, "signal": signal_name, "resample": how, "columns": list(columns)}


def _default_resample(signal: Signal, bin_s: float, basis: dict | None) -> str:
    """Mean of samples where bins have several; values around a circle have no mean."""
    if basis is not None and basis["kind"] in CYCLIC:
        return "nearest"
    interval = np.median(np.diff(signal.times)) if len(signal.times) > 1 else np.inf
    return "mean" if interval <= bin_s / 2 * (1 + 1e-6) else "linear"


def _column(column: Any, columns: tuple[str, ...], n: int, signal: str) -> int:
    """Index of a column given by number or name."""
    if isinstance(column, str):
        if column in columns:
            return columns.index(column)
        raise ValueError(f'the signal "{signal}" has no column "{column}"{guess(column, columns)}')
    if column >= n:
        raise ValueError(f'the signal "{signal}" has {n} columns, 0 to {n - 1}; column {column} is asked for.')
    return column


def _history(features: Features, bins: Bins, design: dict, counts, units) -> tuple[list | None, list[str]]:
    """Append the history of all units, or return that of each by itself."""
    history = design.get("history")
    if history is None:
        return None, []
    made = _convolve(counts, history["basis"], bins, features.dtype, "history")
    ends = names_of(history["basis"])
    if history["of"] == "all":
        features.add("history", made, [f"history_{unit}_{end}" for unit in units for end in ends])
        return None, []
    features.incomplete["history"] = int(np.isnan(made).any(axis=1).sum())
    return list(np.split(made, len(units), axis=1)), [f"history_{end}" for end in ends]


def _convolve(values: np.ndarray, basis: dict, bins: Bins, dtype, what: str) -> np.ndarray:
    """Causal convolution with kernels within epochs, (bin, column * kernel)."""
    kernels = time_kernels(basis, bins.bin_s)
    try:
        return Convolution(values, kernels, epochs=bins.first_rows, dtype=dtype).to_array()
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def _labels(bins: Bins, target: str, signals: dict[str, Signal]) -> np.ndarray:
    """Labels (bin,): whole numbers, floats with NaN where there is none."""
    values = _bins.resample(bins, signals[target], "nearest", None)
    if values.shape[1] != 1:
        raise ValueError(f'the target "{target}" has {values.shape[1]} columns; labels need one.')
    values, known = values[:, 0], ~np.isnan(values[:, 0])
    if not np.array_equal(values[known], np.rint(values[known])):
        raise ValueError(f'the target "{target}" has values that are not whole numbers; labels are. Bin it first.')
    return values.astype(np.int64) if known.all() else values
