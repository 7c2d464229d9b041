"""Counts and other responses of populations, checked for fits and scores, with weights, offset and exposure."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_array

from ..checks import warn_user
from ..design import RowSource
from ..engine.tiles import tiles_of
from ..observations import MODELS, Binomial, Observation
from ..observations.poisson import Poisson
from . import arrays, features
from .times import TimeAxis, check_same_rows, mask_of_epochs, plain, time_axis

_SQUARES = 1e140  # of the responses
_PIECE = 65_536  # rows at a time
_LARGEST = 1e37  # of the features: differences and centred values must be numbers in single precision
_NEEDS = "counts, one row per time bin: (time,) or (time, neuron)"
_TRIALS = "observation_model='Binomial' needs the trials of every bin: pass exposure, (time,) or (time, neuron)."
_NO_EXPOSURE = (
    "exposure is given, but observation_model is {!r}: it is for Poisson counts, and for the trials of Binomial ones. "
    "With a log link pass offset=numpy.log(exposure), and sample_weight 0 where exposure is 0."
)
_NOT_INTEGER = (
    "{} has counts that are not integers, in {} of {} neurons: fitting the Poisson quasi-likelihood. This is right for "
    "deconvolved calcium; if you passed firing rates, multiply by the bin width (and check the scale)."
)
_TIMES = (
    "y increases from row to row and has fractions, like spike times; counts per time bin are needed. Count them in "
    "the bins of X, for example by numpy.histogram(y, edges)[0]. (The Poisson quasi-likelihood is fitted anyway.)"
)


@dataclass(frozen=True)
class Recording:
    """Features, responses, weights, offset and exposure, all of one length; X and Y may be read on demand.

    Masked entries of Y (``own`` is 0) hold some number that the observation model allows.
    """

    X: Any  # (time, feature)
    Y: Any  # (time, neuron)
    weights: np.ndarray | None  # (time,)
    offset: np.ndarray | None  # (time, 1 or neuron)
    exposure: np.ndarray | None  # (time,) or (time, neuron)
    one_neuron: bool  # y was 1-D
    neurons: TimeAxis | None  # y's axis when it was a pynapple object
    neuron_names: list
    own: Any  # weights of single responses (time, neuron), bool if there is only a mask
    lengths: tuple[float, float]  # of X and Y as given (`arrays.length_of`)

    def take(self, rows) -> Self:
        """Take some rows, indices or bool (time,)."""
        parts = {name: getattr(self, name) for name in ("X", "Y", "weights", "offset", "exposure", "own")}
        return replace(self, **{name: None if a is None else a[rows] for name, a in parts.items()})


@dataclass(frozen=True)
class Training(Recording):
    """Checked data of a fit: finite rows of positive weight, exposure included; counts per unit of exposure.

    The exposure is in ``own`` if neurons have their own.
    """

    n_dropped: int  # rows with a NaN
    spike_count: np.ndarray  # as given, without weights and exposure, (neuron,)
    n_masked: np.ndarray  # rows that count for others and not for the neuron, (neuron,)
    rows: np.ndarray | None = None  # their indices among the rows given, (time,)
    n_given: int = 0  # rows given

    @property
    def mean_exposure(self) -> float | np.ndarray:
        """Weighted mean exposure of the rows, 1 without exposure; (neuron,) if neurons have their own."""
        if self.exposure is None:
            return 1.0
        if self.exposure.ndim == 2:
            sums = np.zeros((2, self.exposure.shape[1]))
            for rows in tiles_of(len(self.exposure), _PIECE):
                weights = self.own[rows] * (1.0 if self.weights is None else self.weights[rows, None])
                e = self.exposure[rows]
                sums += weights.sum(axis=0), np.divide(weights, e, out=np.zeros(e.shape), where=e > 0).sum(axis=0)
            return np.where(sums[1] > 0, sums[0] / np.where(sums[1] > 0, sums[1], 1.0), 1.0)
        seen = self.exposure > 0
        return float(self.weights.sum() / (self.weights[seen] / self.exposure[seen]).sum())


def read_recording(estimator, X, y, sample_weight, offset, exposure, epochs, reset: bool) -> Recording:
    """Check features, responses, weights, offset and exposure, given in memory or as a RowSource.

    Parameters are those of :meth:`glmfit.PopulationGLM.fit`. A fit (``reset``) sets ``n_features_in_`` and, for named
    columns, ``feature_names_in_`` of the estimator; later features and neurons must be those of the fit. NaN in X, Y
    and offset is kept.
    """
    arrays.refuse_none(y, "give the spike counts, (time,) or (time, neuron).")
    observation = estimator._family()
    check_exposure(exposure, observation, estimator.observation_model)
    check_same_rows(X, y, sample_weight=sample_weight, offset=offset, exposure=exposure)
    axis = time_axis(X) or time_axis(y)
    length, small = np.nan, isinstance(X, RowSource)
    if isinstance(X, RowSource):
        features.check_columns(estimator, X, reset)
    else:
        X, length = features.read_measured(estimator, X, reset)
    counts, length_y = (y, np.nan) if isinstance(y, RowSource) else _read_counts(y, small)
    features.refuse_lengths(X, counts)
    one_neuron = y.one_column if isinstance(y, RowSource) else counts.ndim == 1
    counts = counts[:, None] if len(counts.shape) == 1 else counts
    named = getattr(y, "name", None) is not None and getattr(y, "ndim", 2) == 1
    columns = getattr(y, "columns", [y.name] if named else None)
    n, names = len(X), None if columns is None else [str(c) for c in columns]
    if not reset:
        fitted = estimator.report_.neuron
        unnamed = fitted == [str(i) for i in range(len(fitted))]
        features.check_same_columns(counts.shape[1], fitted, None if unnamed else names, "neuron", "report_.neuron")
    if not isinstance(counts, RowSource) and not isinstance(X, RowSource):
        _refuse_wrong(observation, counts)
    names = names or [str(i) for i in range(counts.shape[1])]
    weights = features.read_response_weights(sample_weight, "sample_weight", n, counts.shape[1])
    weights, own = (None, weights) if np.ndim(weights) == 2 else (weights, None)
    offset = features.read_offset(offset, n, counts.shape[1])
    exposure = features.read_response_weights(exposure, "exposure", n, counts.shape[1])
    if epochs is not None:
        seen = mask_of_epochs(epochs, axis, names)
        own = seen if own is None else np.where(seen, own, 0.0)
    lengths = length, length_y
    return Recording(X, counts, weights, offset, exposure, one_neuron, time_axis(y), names, own, lengths)


def read_training(
    estimator, X, y, sample_weight=None, offset=None, exposure=None, epochs=None, reset: bool = True
) -> Training:
    """Check the data of a fit, or (``reset=False``) data said to be the same; only a fit warns of likely mistakes."""
    given = read_recording(estimator, X, y, sample_weight, offset, exposure, epochs, reset)
    rows, data = _without_nan(given, estimator._family().neutral)
    n_dropped, observation = len(given.X) - len(rows), estimator._family()
    if reset and observation.counts and data.Y.dtype.kind == "f":
        if not np.array_equal(data.Y, whole := np.rint(data.Y)):
            warn_of_fractions(np.any(data.Y != whole, axis=0), data.Y)
    exposure = data.exposure
    if exposure is not None:
        check_unexposed(data.Y, exposure, rows, observation)
    weights, own = total_weights(data, epochs is not None)
    data = replace(data, weights=weights, own=own)
    counted = np.ones(len(rows), bool) if weights is None else weights > 0
    counted &= True if own is None else np.any(own > 0, axis=1)
    if not counted.all():
        # Nothing may depend on rows that count for no neuron, not even by 0 times infinity.
        rows, data = rows[counted], data.take(counted)
    if len(rows) < 2:
        what = f"{len(rows)} usable rows (time bins) after dropping {n_dropped} with NaN"
        raise ValueError(f"Found array with n_samples = {what}; a fit needs at least 2, of positive weight.")
    arrays.refuse_large(data.X, "X", _LARGEST, "too large for single precision", data.lengths[0])
    arrays.refuse_large(data.Y, "y", _SQUARES, "whose squares cannot be summed", data.lengths[1])
    if reset:
        features.warn_if_turned(data.X, data.Y)
        features.warn_of_constant(data.X)
    seen = None if data.own is None else data.own > 0
    spikes = (data.Y if seen is None else np.where(seen, data.Y, 0)).sum(axis=0, dtype=np.float64)
    n_masked = np.zeros(data.Y.shape[1], int) if seen is None else len(rows) - seen.sum(axis=0)
    # Always in float64: rounded to single precision they would be the counts of another recording.
    with np.errstate(over="ignore"):
        Y = data.Y if exposure is None else per_unit(data.Y, data.exposure)
    of = {**vars(data), "Y": Y, "n_dropped": n_dropped, "spike_count": spikes, "n_masked": n_masked}
    return Training(**of, rows=rows, n_given=len(given.X))


def read_scoring(estimator, X, y, sample_weight=None, offset=None, exposure=None, epochs=None) -> Recording:
    """Check features, responses and weights for a score; rows with NaN are dropped, single responses masked."""
    data = read_recording(estimator, X, y, sample_weight, offset, exposure, epochs, reset=False)
    rows, data = _without_nan(data, estimator._family().neutral)
    total_weights(data)
    if data.exposure is not None:
        check_unexposed(data.Y, data.exposure, rows, estimator._family())
    return data


def weights_of(data, rows) -> np.ndarray:
    """Return the weights of some rows, (row, 1), or of their responses, (row, neuron), if neurons have their own."""
    n = len(range(*rows.indices(len(data.Y)))) if isinstance(rows, slice) else len(rows)
    weights = np.ones((n, 1)) if data.weights is None else data.weights[rows, None]
    return weights if data.own is None else weights * data.own[rows]


def exposure_of(data, rows) -> np.ndarray:
    """Return the exposure of some rows, (row, 1), or of their responses, (row, neuron); (1, 1) if there is none."""
    if data.exposure is None:
        return np.ones((1, 1))
    exposure = data.exposure[rows]
    return exposure.reshape(len(exposure), -1)


def check_exposure(exposure, observation: Observation, name: str) -> None:
    """Raise if an exposure is missing, or has no meaning."""
    if exposure is not None and not observation.takes_exposure:
        raise ValueError(_NO_EXPOSURE.format(name))
    if exposure is None and isinstance(observation, Binomial):
        raise ValueError(_TRIALS)


def per_unit(Y, exposure) -> np.ndarray:
    """Divide counts by their exposure, (time,) or (time, neuron), where it is positive."""
    exposure = exposure[:, None] if exposure.ndim == 1 else exposure
    return Y / np.where(exposure > 0, exposure, 1.0)


def total_weights(data: Recording, masked: bool = False) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Multiply weights of rows and of single responses by the exposure; an error mentions epochs if ``masked``.

    Raises if they cannot be summed or divided by, or if no row counts.
    """
    weights, exposure, own = data.weights, data.exposure, data.own
    _refuse_extremes(weights, "sample_weight", "Only ratios count: divide all by the largest.")
    _refuse_extremes(own, "sample_weight", "Only ratios count: divide all by the largest.")
    _refuse_extremes(exposure, "exposure", "Use another unit for the duration of the bins.")
    if exposure is not None:
        with np.errstate(over="ignore"):
            if exposure.ndim == 2:
                own = exposure if own is None else own * exposure
            else:
                weights = exposure if weights is None else weights * exposure
        total = own if exposure.ndim == 2 else weights
        _refuse_extremes(total, "sample_weight times exposure", "Divide sample_weight by its largest.")
    for counts in (weights, own):
        if counts is not None and not counts.sum() > 0:
            what = "sample_weight" if exposure is None else "sample_weight times exposure"
            if masked:
                what = f"{what}, 0 outside the epochs of units,"
            advice = "at least one of them needs a positive weight."
            raise ValueError(f"{what} is zero on all {len(counts)} rows without NaN; {advice}")
    return weights, own


def _refuse_wrong(observation: Observation, Y, first_row: int = 0) -> None:
    """Raise for responses that the model cannot take, saying where the first is."""
    if isinstance(observation, Poisson):  # whose message is that of other models of counts
        arrays.refuse_negative(Y, "neuron", first_row)
        return
    bad, needs = observation.wrong(Y)
    bad &= ~np.isnan(Y)
    name = next(name for name, kinds in MODELS.items() if type(observation) in kinds.values())
    arrays.refuse_some(
        bad, Y, "neuron",
        f"y has {{n}} responses (first at {{at}}, value {{first:g}}) that {name} cannot be; it needs {needs}.",
        first_row,
    )  # fmt: skip


def _read_counts(y, small: bool) -> tuple[np.ndarray, float]:
    """Return counts, (time,) or (time, neuron), as floats or in their own integers, and their length."""
    arrays.refuse_mistakes(y, "y", _NEEDS)
    if len(getattr(y, "shape", ())) == 2 and y.shape[1] == 0:
        raise ValueError(f"y has shape {y.shape}, so it has no neurons. It needs (time,) or (time, neuron).")
    kinds: Any = "numeric" if small else [np.float64, np.float32]
    with arrays.no_overflow("y"):
        Y = check_array(plain(y), dtype=kinds, ensure_2d=False, ensure_all_finite=False, input_name="y")
    return Y, arrays.refuse_infinity(Y, "y", "neuron")


def warn_of_fractions(fraction: np.ndarray, Y=None, name: str = "y") -> None:
    """Warn of neurons, bool (neuron,), with counts that are not integers."""
    if fraction.any():
        said = _NOT_INTEGER.format(name, int(fraction.sum()), len(fraction))
        warn_user(_TIMES if arrays.looks_like_times(Y) else said)


def check_unexposed(Y, exposure, rows, observation: Observation) -> None:
    """Raise for counts in bins that were not observed, or above the number of trials."""
    exposure = exposure[:, None] if exposure.ndim == 1 else exposure
    if isinstance(observation, Binomial):
        for row, column in np.argwhere(exposure != np.rint(exposure))[:1]:
            raise ValueError(
                f"exposure is {exposure[row, column]:g} at row {rows[row]}: for Binomial counts it is the number of "
                "trials, an integer."
            )
        bad = np.argwhere(Y > exposure)[:1]
        for row, neuron in bad:
            trials = np.broadcast_to(exposure, Y.shape)[row, neuron]
            raise ValueError(
                f"y is {Y[row, neuron]:g} at row {rows[row]}, neuron {neuron}, more than its {trials:g} trials "
                "(exposure)."
            )
    for bad in np.flatnonzero(((exposure == 0) & (Y > 0)).any(axis=1))[:1]:
        why = "nothing can be counted in a bin that was not observed."
        raise ValueError(f"row {rows[bad]} has spikes but exposure 0: {why}")


def check_part(Y, exposure, first_row: int, observation: Observation) -> None:
    """Check some rows of responses that are read during the fit; a NaN is a mask."""
    arrays.refuse_some(np.isinf(Y), Y, "neuron", "y is {first} at {at}; it needs finite numbers, or NaN.", first_row)
    _refuse_wrong(observation, Y, first_row)
    if exposure is not None:
        check_unexposed(Y, exposure, np.arange(first_row, first_row + len(Y)), observation)


def _refuse_extremes(factor: np.ndarray | None, name: str, advice: str) -> None:
    """Raise for factors of rows that cannot be summed or divided by."""
    if factor is None:
        return
    with np.errstate(over="ignore"):
        total = factor.sum()
    if not np.isfinite(total) or 0 < total < 1e-290:
        what = "their sum overflows" if total > 1 else "too small to divide by"
        raise ValueError(f"{name} is up to {factor.max():g}, {what}. {advice}")


def _without_nan(data: Recording, neutral: float) -> tuple[np.ndarray, Recording]:
    """Find the rows without a NaN in X or offset that have a response; return them with missing responses masked.

    Returns indices and data, which are not copied if these are all rows.
    """
    if np.isfinite(data.lengths).all() and data.offset is None:
        return np.arange(len(data.X)), data
    complete = not arrays.rows_with_nan(data.Y, data.lengths[1]).any()
    missing = np.zeros(data.Y.shape, bool) if complete else np.isnan(data.Y)
    lacks = [arrays.rows_with_nan(data.X, data.lengths[0])]
    lacks += [] if data.offset is None else [arrays.rows_with_nan(data.offset)]
    bad = np.logical_or.reduce([*lacks, missing.all(axis=1)])
    if bad.all() and len(bad):
        columns = [f"feature {j}" for j in np.flatnonzero(np.isnan(data.X).all(axis=0))]
        columns += [f"neuron {j}" for j in np.flatnonzero(missing.all(axis=0))]
        more = f" and {len(columns) - 5} more" if len(columns) > 5 else ""
        causes = "A constant column divided by its standard deviation, or values outside the range of a basis?"
        blame = f" All NaN: {', '.join(columns[:5])}{more}. {causes}" if columns else ""
        raise ValueError(f"every row has a NaN in X, y or offset; no row is left.{blame}")
    missing[bad] = False
    if missing.any():
        own = ~missing if data.own is None else np.where(missing, 0, data.own)
        data = replace(data, Y=np.where(missing, np.asarray(neutral, data.Y.dtype), data.Y), own=own)
    rows = np.flatnonzero(~bad)
    return rows, data.take(rows) if bad.any() else data
