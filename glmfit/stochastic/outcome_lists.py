"""Log-linear models whose outcomes are listed, row by row, with their features."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax

from ..bounds.log_partition import partition_bounds
from ..checks import as_numbers, shorten
from ..engine.tiles import tiles_of
from .log_linear import LogLinear, add_products, read_strength, read_weights, refuse_size

AT_ONCE = 2_000_000  # numbers in the features of the rows taken at a time


class _Block(NamedTuple):
    """Rows with equally many outcomes."""

    features: np.ndarray  # less those of the observed outcome, (row, outcome, parameter)
    log_weights: np.ndarray  # less that of the observed outcome, (row, outcome)
    weight: np.ndarray  # c_i / N, (row,)


class LogLinearProblem(LogLinear):
    """Log-linear model whose outcomes are listed, row by row, with a ridge; for `BoundMajorization`.

    Parameters
    ----------
    features : array_like or sequence of array_like
        f of every row, (outcome, parameter): an array (row, outcome, parameter), or one array per row if rows have
        different numbers of outcomes.
    observed : array_like
        Index of the observed outcome of each row, integer (row,).
    strength : float or array_like
        Strength of the ridge, at least 0: one number, or one per parameter.
    log_weights : array_like or sequence of array_like, optional
        log h, (outcome,) of every row; -inf excludes an outcome. Default all 0.
    sample_weight : array_like, optional
        How often each row counts, at least 0, (row,). F is divided by the number of rows in any case.

    Raises
    ------
    ValueError
        If shapes do not match, numbers are not finite, or an observed outcome does not exist.

    Notes
    -----
    F = (1/N) sum_i c_i [log sum_y h_i(y) exp(theta'f_i(y)) - log h_i(y_i) - theta'f_i(y_i)]
    + sum_j strength_j theta_j^2 / 2, in float64 on the host. Memory: a copy of the features. Cost of a bound: outcomes
    of all rows times parameters squared. The bound suits few outcomes: n equally likely ones have about n / (2 log n)
    times the curvature of F, and steps are shorter by this factor. Chains of labels have a better one: `LabelChains`.
    """

    def __init__(
        self,
        features: ArrayLike | Sequence[ArrayLike],
        observed: ArrayLike,
        strength: float | ArrayLike,
        log_weights: ArrayLike | Sequence[ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
    ):
        rows = _read_features(features)
        self.n_rows = len(rows)
        self.strength = read_strength(strength, rows[0].shape[1])
        log_h = _read_log_weights(log_weights, rows)
        weight = read_weights(sample_weight, self.n_rows) / self.n_rows
        observed = _read_observed(observed, log_h)
        self._blocks = []
        counts = np.array([len(f) for f in rows])
        for n in np.unique(counts):
            some = np.flatnonzero(counts == n)
            f, h = np.stack([rows[i] for i in some]), np.stack([log_h[i] for i in some])
            at, y = np.arange(len(some)), observed[some]
            self._blocks.append(_Block(f - f[at, y][:, None], h - h[at, y][:, None], weight[some]))

    def _tiles(self) -> Iterator[_Block]:
        """Yield some rows at a time."""
        for block in self._blocks:
            size = max(1, AT_ONCE // block.features[0].size)
            yield from (_Block(*(a[tile] for a in block)) for tile in tiles_of(len(block.weight), size))

    def _loss(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = 0.0, np.zeros_like(theta)
        for f, log_h, weight in self._tiles():
            s = f @ theta + log_h
            value += float(weight @ logsumexp(s, axis=1))
            gradient += np.einsum("i,iy,iyp->p", weight, softmax(s, axis=1), f, optimize=True)
        return value, gradient

    def _loss_bound(self, theta: np.ndarray, order: str) -> tuple[float, np.ndarray, np.ndarray]:
        value, gradient, curvature = 0.0, np.zeros_like(theta), np.zeros((len(theta), len(theta)))
        for f, log_h, weight in self._tiles():
            bounds = partition_bounds(f, f @ theta + log_h, order)
            value += float(weight @ bounds.log_norm)
            gradient += weight @ bounds.gradient
            add_products(curvature, bounds.factors, weight)
        return value, gradient, curvature

    @cached_property
    def _sizes(self) -> np.ndarray:
        return sum(tile.weight @ np.abs(tile.features).max(axis=1) for tile in self._tiles())

    def _curved(self, theta: np.ndarray) -> tuple[np.ndarray, Iterator[np.ndarray]]:
        hessian = np.zeros((len(theta), len(theta)))
        for f, log_h, weight in self._tiles():
            p = softmax(f @ theta + log_h, axis=1)
            mean = np.einsum("iy,iyp->ip", p, f)
            add_products(hessian, np.sqrt(p)[:, :, None] * (f - mean[:, None]), weight)
        return hessian, self._centred()

    def _centred(self) -> Iterator[np.ndarray]:
        """Features of rows of positive weight, relative to the mean of their outcomes; 0 for excluded outcomes."""
        for f, log_h, weight in self._tiles():
            there = np.isfinite(log_h)[:, :, None]
            middle = np.sum(f * there, axis=1, keepdims=True) / np.sum(there, axis=1, keepdims=True)
            if np.any(weight > 0):
                yield ((f - middle) * there)[weight > 0]


def outcome_probabilities(
    features: ArrayLike | Sequence[ArrayLike],
    theta: ArrayLike,
    log_weights: ArrayLike | Sequence[ArrayLike] | None = None,
) -> list[np.ndarray]:
    """Probabilities of the outcomes of any rows under a log-linear model.

    Parameters
    ----------
    features, log_weights : array_like or sequence of array_like
        As for `LogLinearProblem`.
    theta : array_like
        Parameters, (parameter,).

    Returns
    -------
    list of numpy.ndarray
        One (outcome,) per row, each summing to 1.

    Raises
    ------
    ValueError
        If shapes do not fit or numbers are not finite.
    """
    rows, theta = _read_features(features), as_numbers("theta", theta)
    if not np.isfinite(theta).all():
        raise ValueError(f"theta is {shorten(theta.tolist())}; it must be finite.")
    if theta.shape != rows[0].shape[1:]:
        raise ValueError(f"theta has shape {theta.shape}; features have {rows[0].shape[1]} parameters.")
    return [softmax(f @ theta + h) for f, h in zip(rows, _read_log_weights(log_weights, rows), strict=True)]


# ---------------------------------------------------------------------------------- what users pass


def _read_features(features) -> list[np.ndarray]:
    rows = [as_numbers(f"features of row {i}", f) for i, f in enumerate(features)]
    if not rows:
        raise ValueError("features are empty; they need at least one row.")
    for i, f in enumerate(rows):
        if f.ndim != 2 or not f.size or f.shape[1] != rows[0].shape[-1]:
            raise ValueError(
                f"features of row {i} have shape {f.shape}; they must be (outcome, parameter), with at least "
                "one outcome, and equally many parameters in every row."
            )
        if not np.isfinite(f).all():
            raise ValueError(
                f"features of row {i} are not finite; exclude an outcome by a log weight of -inf and features of 0."
            )
        refuse_size(f"features of row {i}", f)
    return rows


def _read_log_weights(log_weights, rows: list[np.ndarray]) -> list[np.ndarray]:
    if log_weights is None:
        return [np.zeros(len(f)) for f in rows]
    found = [as_numbers(f"log_weights of row {i}", h) for i, h in enumerate(log_weights)]
    if len(found) != len(rows):
        raise ValueError(f"log_weights have {len(found)} rows, but features have {len(rows)}.")
    for i, (h, f) in enumerate(zip(found, rows, strict=True)):
        if h.shape != f.shape[:1]:
            raise ValueError(f"log_weights of row {i} have shape {h.shape}; one per outcome is needed, {f.shape[:1]}.")
        if not (h < np.inf).all() or np.isneginf(h).all():
            raise ValueError(
                f"log_weights of row {i} must be finite, or -inf to exclude an outcome, but not all of them -inf."
            )
    return found


def _read_observed(observed, log_h: list[np.ndarray]) -> np.ndarray:
    observed = np.asarray(observed)
    if observed.shape != (len(log_h),) or observed.dtype.kind not in "iu":
        raise ValueError(
            f"observed has shape {observed.shape} and dtype {observed.dtype}; it must be an integer per row, "
            f"({len(log_h)},)."
        )
    for i, (y, h) in enumerate(zip(observed, log_h, strict=True)):
        if not 0 <= y < len(h) or np.isneginf(h[y]):
            raise ValueError(f"observed is {y} at row {i}, which has {len(h)} outcomes, or excludes this one.")
    return observed
