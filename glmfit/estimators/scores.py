"""Scores of counts given a model; folds of a cross-validation, their scores, and the choice of strengths."""

import numbers
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..checks import warn_user
from ..data import counts as door
from ..data.classes import ClassTraining
from ..data.counts import Training
from ..data.times import TimeAxis
from ..display import counted
from ..engine.exact.least_squares import Moments
from ..engine.passes import fit_intercept
from ..engine.tiles import over_tiles, rows_at_once
from ..observations import Gaussian
from ..observations.poisson import Poisson

NO_DEVIANCE = 1e-100  # a null model without spikes has the smallest rate there is, not 0
_MANY = 20  # epochs, each a fold; more are hardly ever intended


def score_sums(observation, data, coef, intercept, score_type, silent=None):
    """Compute weighted (deviance, null deviance), log-likelihoods, or mean log-likelihood; silent have no offset.

    One of each per neuron; a neuron without a response that counts gets nan.
    """
    n, n_neurons = data.Y.shape

    def weights_of(rows):  # without exposure, and the exposure, (row, 1 or neuron)
        return door.weights_of(data, rows), door.exposure_of(data, rows)

    def total_of(rows):
        w, e = weights_of(rows)
        return np.stack([(w * e).sum(axis=0), (w * (e > 0)).sum(axis=0)])

    seen, observed = sum(over_tiles(total_of, n))  # (1 or neuron,)
    of = _deviance if score_type == "D2" else _log_likelihood
    if score_type == "log-likelihood":
        null_eta = None  # nothing is compared with it
    elif data.offset is None:
        with np.errstate(invalid="ignore", divide="ignore"):
            null_eta = observation.intercept(spike_sums(data) / seen)
    else:
        weights = np.multiply(*weights_of(slice(None)))
        per_unit = data.Y[:] if data.exposure is None else door.per_unit(data.Y[:], data.exposure)
        with np.errstate(invalid="ignore", divide="ignore"):
            weights = weights * (n / weights.sum(axis=0))
        null_eta = fit_intercept(per_unit, weights, observation, data.offset)[0]

    def tile(rows):
        y, known = np.asarray(data.Y[rows], np.float64), 0.0 if data.offset is None else data.offset[rows]
        eta = np.asarray(data.X[rows], np.float64) @ coef + intercept + known
        if silent is not None:
            eta = np.where(silent, intercept, eta)
        at = [eta] if null_eta is None else [eta, np.broadcast_to(null_eta + known, y.shape)]
        # Rows that do not count may have infinite rates, and 0 times infinity is not 0.
        w, e = weights_of(rows)
        counts = w * e > 0
        values = (np.where(counts, of(observation, y, z, e), 0.0) for z in at)
        return [w[:, 0] @ value if w.shape[1] == 1 else np.einsum("tn,tn->n", w, value) for value in values]

    totals = sum(map(np.array, over_tiles(tile, n, rows_at_once(data.X, n_neurons))))
    totals = np.where(seen > 0, totals, np.nan)
    if score_type == "log-likelihood":
        return totals[0] / np.where(observed > 0, observed, np.nan), None  # per bin that was observed
    return totals


def share_explained(of_model, of_null) -> np.ndarray:
    """``1 - of_model / of_null`` of deviances or log-likelihoods, nan where there is nothing to explain."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.abs(of_null) < NO_DEVIANCE, np.nan, 1 - of_model / of_null)


def spike_sums(data) -> np.ndarray:
    """Sum the responses by their weights, (neuron,)."""
    n = len(data.Y)
    weights = np.ones(n) if data.weights is None else data.weights

    def tile(rows):
        y = np.asarray(data.Y[rows], np.float64)
        return weights[rows] @ (y if data.own is None else y * data.own[rows])

    return sum(over_tiles(tile, n))


def _deviance(observation, y, eta, exposure):
    """Compute the unit deviance of a response whose expectation is exposure times the mean."""
    with np.errstate(invalid="ignore"):
        return exposure * observation.deviance(y / np.where(exposure > 0, exposure, 1.0), eta)


def _log_likelihood(observation, y, eta, exposure):
    """Compute the log-probability of a response whose expectation is exposure times the mean."""
    with np.errstate(invalid="ignore"):
        if isinstance(observation, Poisson) and np.all(exposure == 1):
            value = observation.log_likelihood(y, eta)
            if np.isfinite(value).all():
                return value
        return observation.total_log_likelihood(y, eta, exposure)


class Folds(NamedTuple):
    """Rows to fit and rows to score of every fold."""

    train: np.ndarray  # bool, (time, fold)
    test: np.ndarray


def make_folds(cv, data: Training | ClassTraining, axis: TimeAxis | None, target: np.ndarray | None = None) -> Folds:
    """Read ``cv`` of an estimator: masks are of the rows fitted, indices and ``axis`` of the rows given.

    A splitter sees the ``target`` of the rows fitted, by default the counts of all neurons, and 0 for other rows.
    """
    rows, n_given = data.rows, data.n_given
    n = len(rows)
    if isinstance(cv, numbers.Integral) and not isinstance(cv, bool):
        if not 2 <= cv <= n:
            raise ValueError(
                f"cv is {cv}; contiguous blocks must be at least 2 and at most n_samples={n}, the rows that count."
            )
        number = np.arange(n) * int(cv) // n
        test = number[:, None] == np.arange(cv)
        return Folds(~test, test)
    if is_epochs(cv):
        if len(cv) > _MANY:
            warn_user(
                f"cv has {len(cv)} epochs, and each is a fold: everything is fitted {len(cv) + 1} times at every "
                "strength. For 5 folds of whole epochs pass cv=[epochs[i::5] for i in range(5)], where epochs is the "
                "IntervalSet."
            )
        return _of_epochs(list(zip(cv.start, cv.end, strict=True)), rows, axis, "an IntervalSet", "epoch")
    if hasattr(cv, "split") and not isinstance(cv, str):
        target = data.Y.sum(axis=1, dtype=np.float64) if target is None else target
        full = np.zeros(n_given, target.dtype)
        full[rows] = target
        try:
            pairs = list(cv.split(np.zeros((n_given, 1)), full))
        except ValueError as error:
            raise ValueError(
                f"cv is {cv!r}, which cannot split {n_given} rows by X and y alone ({error}). For a splitter that "
                "needs groups pass the pairs: list(cv.split(X, y, groups))."
            ) from error
    elif np.iterable(cv) and not isinstance(cv, str):
        given = list(cv)
        if are_epochs(given):
            return _of_epochs([(e.start, e.end) for e in given], rows, axis, "a list of IntervalSets", "fold")
        if any(map(is_epochs, given)):
            raise ValueError(
                "cv has IntervalSets and other folds; give IntervalSets only, or pairs of row indices only."
            )
        pairs = [tuple(pair) if np.iterable(pair) else (pair,) for pair in given]
    else:
        raise ValueError(
            f"cv is {cv!r}; it must be a number of contiguous blocks, a pynapple IntervalSet, a list of them, a "
            "scikit-learn splitter, or pairs of (train, test) row indices."
        )
    return _of_pairs(pairs, rows, n_given)


def is_epochs(value) -> bool:
    """Tell whether a value is an IntervalSet of pynapple."""
    return hasattr(value, "start") and hasattr(value, "end") and hasattr(value, "in_interval")


def are_epochs(value) -> bool:
    """Tell whether a value is a list of IntervalSets."""
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(is_epochs, value))


def _of_epochs(folds: list, rows, axis, given: str, what: str) -> Folds:
    if axis is None:
        raise ValueError(f"cv is {given}, but neither X nor y has times; give pynapple objects, or row indices.")
    t = axis.t[rows][:, None]
    test = np.column_stack([((t >= np.asarray(start)) & (t <= np.asarray(end))).any(axis=1) for start, end in folds])
    again = int(np.sum(test.sum(axis=1) > 1))
    if again:
        warn_user(
            f"{what}s of cv overlap, so that rows ({again} of {len(test)}) are scored more than once. Make them "
            "disjoint, for example by IntervalSet.set_diff."
        )
    return _checked(~test, test, what)


def _of_pairs(pairs, rows, n_given) -> Folds:
    masks = np.zeros((2, n_given, len(pairs)), bool)
    for f, pair in enumerate(pairs):
        if len(pair) != 2:
            raise ValueError(f"cv has {len(pair)} entries in fold {f}; it needs two, train and test row indices.")
        for mask, chosen in zip(masks, pair, strict=True):
            chosen = np.asarray(chosen)
            if chosen.dtype == bool and chosen.shape == (n_given,):
                chosen = np.flatnonzero(chosen)
            if chosen.dtype.kind not in "iu" and chosen.size:
                raise ValueError(f"cv has {chosen.dtype} row indices in fold {f}; they must be whole numbers, or bool.")
            if chosen.size == 0 or chosen.min() < 0 or chosen.max() >= n_given:
                raise ValueError(
                    f"cv holds no rows, or rows that do not exist, in fold {f}; indices go from 0 to {n_given - 1}."
                )
            mask[chosen, f] = True
    return _checked(*masks[:, rows], "fold")


def _checked(train, test, what: str) -> Folds:
    if train.shape[1] < 2:
        raise ValueError(f"cv has {counted(train.shape[1], what)}; comparing strengths needs at least two.")
    both = np.flatnonzero((train & test).any(axis=0))
    if both.size:
        raise ValueError(f"{what} {both[0]} of cv has rows both to fit and to score; they must be disjoint.")
    empty = np.flatnonzero((train.sum(axis=0) < 2) | ~test.any(axis=0))
    if empty.size:
        raise ValueError(
            f"{what} {empty[0]} of cv has {train[:, empty[0]].sum()} rows to fit and {test[:, empty[0]].sum()} to score"
            " (rows with NaN and of weight 0 do not count); drop it."
        )
    return Folds(train, test)


def as_given(data: Training) -> Training:
    """Return counts and weights as they were given, of data per unit of exposure."""
    e = data.exposure
    if e is None:
        return data
    if e.ndim == 1:
        return replace(data, Y=data.Y * e[:, None].astype(data.Y.dtype), weights=data.weights / e)
    own = np.divide(data.own, e, out=np.zeros(e.shape), where=e > 0)
    return replace(data, Y=np.where(e > 0, data.Y * e, data.Y), own=own)


def score_folds(observation, data: Training, folds: Folds, coef, intercept, scoring: str) -> np.ndarray:
    """Score the held-out rows, (strength, fold, neuron); coef is (strength, fold, feature, neuron)."""
    S, F, d, N = coef.shape
    per_neuron = np.ndim(getattr(observation, "dispersion", 0.0)) > 0
    scores = np.empty((S, F, N))
    data = as_given(data)
    if isinstance(observation, Gaussian) and data.own is None:
        return _score_by_moments(observation, data, folds, coef, intercept, scoring)
    for f, test in enumerate(folds.test.T):
        left_out = data.take(np.flatnonzero(test))
        # All strengths at once: as neurons next to each other.
        flat = np.moveaxis(coef[:, f], 0, 1).reshape(d, S * N), intercept[:, f].reshape(S * N)
        given = {name: getattr(left_out, name) for name in ("Y", "offset", "own", "exposure")}
        wide = {
            name: np.tile(a, (1, S)) for name, a in given.items() if (np.ndim(a) == 2 and a.shape[1] > 1) or name == "Y"
        }
        many = observation.with_dispersion(np.tile(observation.dispersion, S)) if per_neuron else observation
        model, null = score_sums(many, replace(left_out, **wide), *flat, scoring)
        scores[:, f] = (share_explained(model, null) if scoring == "D2" else model).reshape(S, N)
    return scores


def _score_by_moments(observation, data: Training, folds: Folds, coef, intercept, scoring: str) -> np.ndarray:
    """Score as `score_folds` for normal responses, from the moments of the rows of each fold."""
    scores = np.empty((coef.shape[0], coef.shape[1], coef.shape[3]))
    variance = np.asarray(observation.dispersion, np.float64)
    for f, test in enumerate(folds.test.T):
        held = data.take(np.flatnonzero(test))
        moments = Moments.of(held.X, held.Y, held.weights, held.offset)
        misfit = moments.misfit(np.moveaxis(coef[:, f], 0, 1), intercept[:, f])
        if scoring == "D2":
            scores[:, f] = share_explained(misfit, np.broadcast_to(moments.square, misfit.shape))
        else:
            scores[:, f] = -0.5 * (np.log(2 * np.pi * variance) + misfit / variance)
    return scores


def choose_strengths(scores: np.ndarray, comparable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the best mean score, and of the strongest strength within a standard error of it, (neuron,).

    Among the ``comparable`` ones of every neuron, bool (strength, neuron), or else the strongest. The standard error is
    that of the difference from the best, fold by fold: differences in rate between folds do not matter for strengths.
    """
    known = ~np.isnan(scores) | ~comparable[:, None]
    n = known.all(axis=0).sum(axis=0)  # folds, (neuron,)
    usable = known.all(axis=0) & comparable[:, None]  # the same folds for all strengths
    mean = np.sum(np.where(usable, scores, 0.0), axis=1) / np.maximum(n, 1)
    mean = np.where(comparable, mean, -np.inf)
    strongest = len(scores) - 1
    best = strongest - np.argmax(mean[::-1], axis=0)  # of equal ones the strongest
    neurons = np.arange(scores.shape[2])
    with np.errstate(invalid="ignore"):  # of a strength that scores -inf there is no error, nor is it chosen
        lost = np.where(usable, scores[best, :, neurons].T - scores, 0.0)
        spread = np.sum((lost - lost.sum(axis=1, keepdims=True) / np.maximum(n, 1)) ** 2 * usable, axis=1)
        error = np.sqrt(spread / np.maximum(n - 1, 1) / np.maximum(n, 1))
        within = mean >= mean[best, neurons] - error
    one_se = strongest - np.argmax(within[::-1], axis=0)
    return best, one_se
