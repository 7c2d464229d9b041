"""Inputs of an estimator, built from a session and a design."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..display import counted
from . import bins as _bins
from .bins import Bins
from .covariates import Part, Recorded, covariate_part, history_part, product_part
from .rules import Problems, guess
from .schema import COUNT_ESTIMATORS, COUNTS, GAM, read_design
from .sessions import Session, Signal
from .terms import Term

_MOST_INTERVALS = 100  # written in the notes
_NAMED = 5  # units in a message


@dataclass(frozen=True)
class Built:
    """Inputs that an estimator is fitted to.

    Attributes
    ----------
    X, y : numpy.ndarray
        Features (time, feature); counts (time, neuron), or labels (time,).
    sample_weight, offset, exposure : numpy.ndarray or None
        As ``fit`` takes them.
    feature_names, target_names : list of str, list of str or None
        Names of the columns of X and of y.
    notes : dict
        How the inputs were made, as JSON values.
    own : list of numpy.ndarray or None
        History of each neuron separately, (time, basis) each. None for `PopulationGAM`, whose X has all histories.
    times, terms : numpy.ndarray or None, dict of list of str or None
        Centre of each row's bin, s; names of the features of every covariate and of the history. None for matrices.
    smooth_terms, feature_mask : dict of Term or None, dict of numpy.ndarray or None
        For `PopulationGAM`, which takes them as ``terms`` and ``feature_mask``: terms by name; which neurons have a
        history, by term, None if all have all. None for other estimators and for matrices.
    """

    X: np.ndarray
    y: np.ndarray
    sample_weight: np.ndarray | None
    offset: np.ndarray | None
    exposure: np.ndarray | None
    feature_names: list[str]
    target_names: list[str] | None
    notes: dict[str, Any]
    own: list[np.ndarray] | None = None
    times: np.ndarray | None = None
    terms: dict[str, list[str]] | None = None
    smooth_terms: dict[str, Term] | None = None
    feature_mask: dict[str, np.ndarray] | None = None


def build(
    session: Session, design: dict[str, Any] | None, estimator: str = "PopulationGLM", dtype: DTypeLike = np.float32
) -> Built:
    """Build the inputs that an estimator is fitted to.

    Parameters
    ----------
    session : Session
        A recording, or ready matrices.
    design : dict or None
        Bins, covariates and history, with the keys of ``[model.design]`` of a manifest; None for matrices. Tuples,
        arrays and numbers of NumPy are accepted as lists and numbers.
    estimator, dtype : str, {numpy.float32, numpy.float64}
        Name of the estimator that will be fitted; type of the features.

    Returns
    -------
    Built
        Features, counts or labels, and notes on how they were made.

    Raises
    ------
    TypeError, ValueError
        If the design is not a dict, or has a key or a value that is not allowed; if the session lacks what it names, or
        nothing is left to fit.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit.design import Session, build
    >>> time = np.arange(0, 10, 0.05)
    >>> speed = np.sin(time)
    >>> session = Session(spikes={"a": np.arange(0.1, 10, 0.3)}, signals={"speed": (time, speed)})
    >>> history = {"basis": {"kind": "raised_cosine_log", "n": 2, "window_s": 0.5}}
    >>> built = build(session, {"bin_s": 0.1, "covariates": [{"signal": "speed"}], "history": history})
    >>> built.X.shape, built.feature_names
    ((99, 3), ['speed', 'history_a_0', 'history_a_1'])
    """
    if session.matrices is None and design is None:
        raise ValueError("the session is a recording, but the model has no design: add [model.design] with bin_s.")
    if session.matrices is None:
        return _of_recording(session, _checked(design, estimator), dtype, estimator)
    if design is not None:
        raise ValueError("the session has matrices X and y, but the model has a design; omit the design.")
    given = session.matrices
    if "exposure" in given and estimator not in COUNT_ESTIMATORS:
        raise ValueError(f"the session has an exposure, which {estimator} does not support.")
    X, y = given["X"].astype(dtype, copy=False), given["y"]
    names = given.get("feature_names") or [f"x{i}" for i in range(X.shape[1])]
    rest = (given.get(name) for name in ("sample_weight", "offset", "exposure"))
    return Built(X, y, *rest, names, given.get("neuron_names"), {"kind": "matrices", "rows": len(X)})


def _checked(design: dict[str, Any], estimator: str) -> dict[str, Any]:
    """Check a design by itself, and fill in its defaults."""
    if not isinstance(design, dict):
        raise TypeError(f"design is a {type(design).__name__}; it must be a dict, with the keys of [model.design].")
    given = _as_read({key: value for key, value in design.items() if value is not None})
    problems = Problems("design", given)
    # Designs that other estimators cannot fit are built for them all the same, for inspection.
    found = read_design(problems, (), given, (), estimator if estimator == GAM else None)
    if found.get("history", {}).get("of") == "others" and estimator != GAM:
        problems.add(("history",), f'of is "others", which {estimator} cannot fit; use {GAM}, or "all".')
    if problems:
        raise ValueError("\n".join(problems.texts))
    return found


def _as_read(value: Any) -> Any:
    """Turn tuples and values of NumPy into what a manifest would have instead."""
    if isinstance(value, dict):
        return {key: _as_read(entry) for key, entry in value.items()}
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return [_as_read(entry) for entry in value] if isinstance(value, list | tuple) else value


def _of_recording(session: Session, design: dict[str, Any], dtype, estimator: str) -> Built:
    factors = [factor for product in design.get("products", ()) for factor in product["factors"]]
    named = [covariate["signal"] for covariate in (*design["covariates"], *factors)] + [design["target"]]
    for name in named:
        if name != COUNTS and name not in session.signals:
            raise ValueError(f'the session has no signal "{name}"{guess(name, session.signals)}')
    signals = {name: session.signals[name] for name in dict.fromkeys(named) if name != COUNTS}
    epochs, origin = _epochs(session, design, signals)
    bins = _bins.make_bins(epochs, design["bin_s"], design["partial_bins"] == "exposure")
    if not len(bins.starts):
        raise ValueError(f"no epoch is as long as a bin of {design['bin_s']:g} s (epochs: {origin}).")
    seconds = float((bins.stops - bins.starts).sum())
    counts, units, left_out = _counts(session, design, bins, seconds)
    recorded = Recorded(bins, signals, counts, units, dtype)
    covariates = [covariate_part(covariate, recorded) for covariate in design["covariates"]]
    covariates += [product_part(product, recorded) for product in design.get("products", ())]
    made, own = list(covariates), None
    if "history" in design:
        made.append(history_part(design["history"], recorded))
        own = made[-1] if design["history"]["of"] == "own" and estimator != GAM else None
    parts = covariates if own else made
    names = [name for part in parts for name in part.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"several features are called {', '.join(twice)}; give their covariates different names.")
    X = np.empty((len(counts), len(names)), dtype)
    np.concatenate([X[:, :0], *(part.values for part in parts)], axis=1, out=X, casting="same_kind")
    y = counts if design["target"] == COUNTS else _labels(bins, design["target"], signals)
    missing = {part.name: np.isnan(part.values).any(axis=1) for part in made}
    missing_by = {name: int(rows.sum()) for name, rows in missing.items()}
    complete = np.isfinite(X).all(axis=1) & np.isfinite(y.reshape(len(y), -1)).all(axis=1)
    complete &= ~np.any(list(missing.values()), axis=0)
    if not complete.any():
        parts_of = ", ".join(f"{name} in {n}" for name, n in missing_by.items() if n)
        raise ValueError(
            f"none of {counted(len(X), 'bin')} has all features. Missing: {parts_of or 'the target'}. Are signals NaN "
            "there, lags longer than epochs, or samples further away than max_gap_s?"
        )
    notes = {
        "kind": "recording",
        "bin_s": bins.bin_s,
        "bins": len(X),
        "seconds": seconds,
        "epochs": {"from": origin, "number": len(epochs), "intervals": epochs[:_MOST_INTERVALS].tolist()},
        "partial_bins": {"handled": design["partial_bins"], "number": bins.n_partial, "seconds": bins.partial_s},
        "rows_left_out": int((~complete).sum()),
        "rows_left_out_by": missing_by,
        "units_left_out": left_out,
        "covariates": [part.note for part in covariates],
        "standardized": _standardize(X, parts, complete),
    }
    terms = {part.name: part.names for part in made}
    if own:
        notes["own_names"] = terms["history"] = [f"history_{end}" for end in own.bases[0]._ends]
    exposure = bins.share if design["partial_bins"] == "exposure" and bins.n_partial else None
    of_each = np.split(own.values, len(units), axis=1) if own else None
    targets = units if design["target"] == COUNTS else None
    smooth = _smooth(made, design, units, notes) if estimator == GAM else ()
    return Built(X, y, None, None, exposure, names, targets, notes, of_each, bins.centres, terms, *smooth)


def _smooth(parts: list[Part], design: dict[str, Any], units: list[str], notes: dict) -> tuple[dict, dict | None]:
    """Make terms of an additive model, and which neurons have which history; the notes list the terms of each part."""
    found, at, of_parts = {}, 0, {}
    for part in parts:
        terms, at = part.terms(at), at + len(part.names)
        if twice := [name for name in terms if name in found]:
            raise ValueError(f"several terms are called {', '.join(twice)}; give their covariates different names.")
        found |= terms
        of_parts[part.name] = list(terms)
    notes["smooth_terms"] = of_parts
    histories, of = of_parts.get("history", []), design.get("history", {}).get("of", "all")
    if of == "all":
        return found, None
    if of == "others" and len(units) < 2:
        raise ValueError('the history is of "others", but there is one unit; use "own".')
    own = np.eye(len(units), dtype=bool)
    return found, dict(zip(histories, own if of == "own" else ~own, strict=True))


def _standardize(X: np.ndarray, parts: list[Part], complete: np.ndarray) -> dict[str, list[float]]:
    """Scale columns to mean 0 and standard deviation 1 over complete rows; return mean and deviation by name."""
    used, at = {}, 0
    for part in parts:
        columns, at = slice(at, at + len(part.names)), at + len(part.names)
        if part.standardize:
            values = part.values.astype(np.float64)  # as they were before rounding to the type of X
            known = np.ascontiguousarray(values[complete].T)
            mean, deviation = known.mean(axis=1), known.std(axis=1)
            deviation[deviation <= 1e-12 * np.abs(known).max(axis=1)] = 1.0  # a constant stays constant
            X[:, columns] = (values - mean) / deviation
            used |= dict(zip(part.names, np.stack([mean, deviation], axis=1).tolist(), strict=True))
    return used


def _epochs(session: Session, design: dict[str, Any], signals: dict[str, Signal]) -> tuple[np.ndarray, str]:
    """Return the epochs (epoch, 2) of a design, and their origin."""
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
    epochs = _bins.intersect([signal.support for signal in signals.values()])
    origin = f"the time supports of {', '.join(signals)}"
    if not len(epochs):
        raise ValueError(f"{origin} do not overlap; are all on the same clock, in seconds?")
    return epochs, origin


def _counts(session: Session, design: dict, bins: Bins, seconds: float) -> tuple[np.ndarray, list[str], dict]:
    """Count spikes, (bin, unit), of a design's units; return also these units, and the excluded ones with reasons."""
    left_out = {unit: f"{n} spikes" for unit, n in session.few_spikes.items()}
    units = list(session.spikes)
    if "units" in design:
        missing = [unit for unit in design["units"] if unit not in units]
        if missing:
            few = [f"{unit} ({left_out[unit]})" for unit in missing if unit in left_out]
            reason = f" Excluded by min_spikes: {', '.join(few)}." if few else ""
            raise ValueError(f"the design names units that the session does not have: {', '.join(missing)}.{reason}")
        units, left_out = [unit for unit in units if unit in design["units"]], {}
    trains = [session.spikes[unit] for unit in units]
    counts = _bins.count(bins, trains)
    n_spikes, ends = sum(map(len, trains)), [end for train in trains if len(train) for end in train[[0, -1]]]
    if n_spikes and not counts.any() and (design["target"] == COUNTS or "history" in design):
        raise ValueError(
            f"none of {counted(n_spikes, 'spike')} is in a bin: spikes are from {min(ends):g} to {max(ends):g} s, bins "
            f"from {bins.starts[0]:g} to {bins.stops[-1]:g} s. Are both on the same clock, in seconds?"
        )
    if "min_rate_hz" in design:
        rates = counts.sum(axis=0) / seconds
        kept = rates >= design["min_rate_hz"]
        left_out |= {unit: f"{rate:.3g} Hz" for unit, rate, keep in zip(units, rates, kept, strict=True) if not keep}
        counts, units = counts[:, kept], [unit for unit, keep in zip(units, kept, strict=True) if keep]
    if not units and (design["target"] == COUNTS or "history" in design):
        if not left_out:
            raise ValueError("the session has no spikes.")
        some = ", ".join(f"{unit} ({reason})" for unit, reason in list(left_out.items())[:_NAMED])
        more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
        raise ValueError(f"no unit is left: min_spikes or min_rate_hz excludes {some}{more}. Lower that limit.")
    return counts, units, left_out


def _labels(bins: Bins, target: str, signals: dict[str, Signal]) -> np.ndarray:
    """Return labels (bin,): whole numbers, or floats with NaN where there is none."""
    values = _bins.resample(bins, signals[target], "nearest", None)
    if values.shape[1] != 1:
        raise ValueError(f'the target "{target}" has {values.shape[1]} columns; labels need one.')
    values, known = values[:, 0], ~np.isnan(values[:, 0])
    if not np.array_equal(values[known], np.rint(values[known])):
        raise ValueError(f'the target "{target}" has values that are not whole numbers; labels are. Bin it first.')
    return values.astype(np.int64) if known.all() else values
