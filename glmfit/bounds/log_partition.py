"""Quadratic upper bounds of log-partition functions, on the host: docs/theory/bound_majorization.md has the proofs."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_choice

LOG_PARTITION_THEOREM = (
    "quadratic bound of the log-partition function (Jebara and Choromanska 2012, Theorem 1; "
    "docs/theory/bound_majorization.md, Proposition 1)"
)
ORDERS = ("given", "descending", "ascending", "averaged")
_SMALL = 1e-2


def curvature_of_gap(d):
    """Curvature in [0, 1/4] of the tightest quadratic that bounds ``log(1 + exp(x))`` and touches it at d and -d.

    It is ``tanh(|d| / 2) / (2 |d|)`` (Jaakkola and Jordan 1997); near 0, where the quotient loses digits, its series.
    """
    d = np.abs(np.asarray(d))
    d = d if d.dtype == np.float32 else d.astype(np.float64)
    square = np.minimum(d, _SMALL) ** 2
    series = 0.25 - square / 48 + square**2 / 480 - 17 * square**3 / 80640
    safe = np.maximum(d, _SMALL)
    return np.where(d < _SMALL, series, np.tanh(safe / 2) / safe / 2).astype(d.dtype)


class LogPartitionBound(NamedTuple):
    """Quadratic upper bound of a log-partition function around a point: `LOG_PARTITION_THEOREM`.

    For ``log Z(theta) = log sum_y h(y) exp(theta' f(y))`` and every theta

        log Z(theta) <= value + (theta - self.theta)' gradient + (theta - self.theta)' S (theta - self.theta) / 2

    Attributes
    ----------
    theta : numpy.ndarray
        The point, (parameter,).
    value : float
        log Z there.
    gradient : numpy.ndarray
        Of log Z there, (parameter,).
    factors : numpy.ndarray
        (outcome, parameter): the curvature S is ``factors.T @ factors``, that of the first outcome 0.
    """

    theta: np.ndarray
    value: float
    gradient: np.ndarray
    factors: np.ndarray

    @property
    def curvature(self) -> np.ndarray:
        """The matrix S, (parameter, parameter); cost: outcomes times parameters squared."""
        return self.factors.T @ self.factors

    def product(self, v: np.ndarray) -> np.ndarray:
        """S times v without S, (parameter,); cost: outcomes times parameters."""
        return (self.factors @ v) @ self.factors

    def at(self, theta: np.ndarray) -> float:
        """Value of the bound at any parameters."""
        d = np.asarray(theta, np.float64) - self.theta
        return float(self.value + d @ self.gradient + np.sum((self.factors @ d) ** 2) / 2)


def log_partition_bound(
    features: ArrayLike, theta: ArrayLike, log_weights: ArrayLike | None = None, order: str = "given"
) -> LogPartitionBound:
    r"""Bound the log-partition function of any log-linear model from above.

    Parameters
    ----------
    features : array_like
        f, (outcome, parameter), finite.
    theta : array_like
        Point where the bound touches, (parameter,), finite.
    log_weights : array_like, optional
        log h, (outcome,); -inf excludes an outcome. Default all 0.
    order : {"given", "descending", "ascending"}
        Order in which outcomes are added: as given, or by weight at theta. Value and gradient do not depend on it; the
        curvature does, and every order gives a bound.

    Returns
    -------
    LogPartitionBound
        In float64. Cost: outcomes times parameters.

    Raises
    ------
    ValueError
        If shapes do not fit, numbers are not finite, or every outcome is excluded.

    References
    ----------
    Jebara and Choromanska (2012), Algorithm 1 and Theorem 1; proof in docs/theory/bound_majorization.md.
    """
    features, theta = np.asarray(features, np.float64), np.array(theta, np.float64)
    if features.ndim != 2 or theta.shape != features.shape[1:] or not len(features):
        raise ValueError(
            f"features has shape {features.shape} and theta {theta.shape}; they must be (outcome, parameter) and "
            "(parameter,)."
        )
    check_choice("order", order, ORDERS[:3])
    with np.errstate(over="ignore", invalid="ignore"):
        scores = features @ theta
    if not (np.isfinite(features).all() and np.isfinite(theta).all() and np.isfinite(scores).all()):
        raise ValueError(
            "features, theta and their products must be finite; exclude an outcome by a log weight of -inf."
        )
    if log_weights is not None:
        log_weights = np.asarray(log_weights, np.float64)
        if log_weights.shape != scores.shape:
            raise ValueError(f"log_weights has shape {log_weights.shape}; one per outcome is needed, {scores.shape}.")
        if not (log_weights < np.inf).all():
            raise ValueError("log_weights hold nan or +inf; they must be finite, or -inf where an outcome is excluded.")
        scores = scores + log_weights
    found = partition_bounds(features[None], scores[None], order)
    return LogPartitionBound(theta, float(found.log_norm[0]), found.gradient[0], found.factors[0])


class PartitionBounds(NamedTuple):
    """Quadratic upper bounds of many log-partition functions, each around its own point."""

    log_norm: np.ndarray  # log Z there, (row,)
    gradient: np.ndarray  # of log Z there, (row, parameter)
    factors: np.ndarray  # whose products add up to the curvature, (row, factor, parameter)


def partition_bounds(features: np.ndarray, scores: np.ndarray, order: str = "given") -> PartitionBounds:
    """Bound log-partition functions of equally many outcomes from above; a score of -inf excludes one.

    ``features`` are (row, outcome, parameter), ``scores`` with the log weights in them (row, outcome), both float64.
    With the order "averaged" there are two factors per outcome. Cost and memory: those of the features.
    """
    parts = [_swept(features, _sweep(scores, each)) for each in _each(order)]
    factors = [part.factors for part in parts]
    if len(factors) > 1:
        factors = [np.concatenate(factors, axis=1) / np.sqrt(len(factors))]
    return parts[0]._replace(factors=factors[0])


def _each(order: str) -> tuple[str, ...]:
    return ("descending", "ascending") if order == "averaged" else (order,)


def _swept(features: np.ndarray, sweep: "_Sweep") -> PartitionBounds:
    """Add the outcomes of every row one after the other."""
    n, n_outcomes, n_parameters = features.shape
    rows, g, factors = np.arange(n), np.zeros((n, n_parameters)), np.empty(features.shape)
    for y in range(n_outcomes):
        outcome = y if sweep.place is None else sweep.place[y] // n
        away = features[rows, outcome] - g
        factors[rows, outcome] = np.sqrt(sweep.beta[y])[:, None] * away
        g += sweep.kappa[y][:, None] * away
    return PartitionBounds(sweep.log_norm, g, factors)


class SoftmaxBound:
    r"""Curvature of the bounds of many softmax rows: C of every row, whose whole bound has curvature C (x) xx'.

    C is positive semi-definite, C 1 = 0, and at least diag(p) - pp', the Hessian of the log-sum-exp.

    Attributes
    ----------
    log_norm : numpy.ndarray
        log of the sum of exponentials of the scores, (row,).
    """

    def __init__(self, sweeps: "tuple[_Sweep, ...]"):
        self._sweeps = sweeps
        self.log_norm = sweeps[0].log_norm

    def product(self, v: np.ndarray) -> np.ndarray:
        """C times v for every row, (row, class); cost and memory: rows times classes, no C is formed."""
        rows_and_classes = self._sweeps[0].scores.shape[::-1]
        if np.shape(v) != rows_and_classes:
            raise ValueError(f"v has shape {np.shape(v)}; it must be (row, class), {rows_and_classes}.")
        return _mean([_product(sweep, v) for sweep in self._sweeps])

    def matrices(self) -> np.ndarray:
        """Every row's C, (row, class, class); cost and memory: rows times classes squared."""
        return _mean([_matrices(sweep) for sweep in self._sweeps])

    def factors(self) -> np.ndarray:
        """Factors A of every row's C = A'A, (row, factor, class): one per class except the first, for each order used.

        Cost and memory: rows times classes squared.
        """
        share = 1 / np.sqrt(len(self._sweeps)).astype(self.log_norm.dtype)
        return np.concatenate([share * _factors(sweep) for sweep in self._sweeps], axis=1)


def softmax_bound(scores: ArrayLike, order: str = "given") -> SoftmaxBound:
    r"""Bound log-sum-exp of many rows of scores from above by quadratics.

    Parameters
    ----------
    scores : array_like
        (row, class), of any size; -inf excludes a class. Single precision stays single.
    order : {"given", "descending", "ascending", "averaged"}
        Order in which classes are added: as given, by score, or the mean of the curvatures of the two orders by score.
        The mean is also a bound, and often needs the fewest products, with twice the work in each.

    Returns
    -------
    SoftmaxBound
        Cost: rows times classes.

    Raises
    ------
    ValueError
        If scores are not (row, class), hold nan or +inf, or exclude every class of a row.

    References
    ----------
    Jebara and Choromanska (2012), Theorem 1; the structure for softmax: docs/theory/bound_majorization.md,
    Proposition 2.
    """
    scores = np.asarray(scores)
    scores = scores if scores.dtype == np.float32 else scores.astype(np.float64)
    if scores.ndim != 2 or not scores.shape[1]:
        raise ValueError(f"scores has shape {scores.shape}; it must be (row, class).")
    check_choice("order", order, ORDERS)
    return SoftmaxBound(tuple(_sweep(scores, each) for each in _each(order)))


class _Sweep(NamedTuple):
    """One pass over the classes, (class, row) each."""

    log_norm: np.ndarray  # (row,)
    scores: np.ndarray  # minus the largest of the row
    partial: np.ndarray  # log of the sum over the classes so far
    beta: np.ndarray
    kappa: np.ndarray  # share of a class in the sum so far
    place: np.ndarray | None  # flat index of the class at this place, None if classes are in the order given


def _sweep(scores: np.ndarray, order: str) -> _Sweep:
    scores = np.ascontiguousarray(scores.T)
    top = scores.max(axis=0)
    if np.isneginf(top).any():
        raise ValueError("every outcome of some row is excluded (log weight or score -inf).")
    if not np.isfinite(top).all():
        raise ValueError("scores hold nan or +inf; they must be finite, or -inf where a class is excluded.")
    place = None
    if order != "given":
        place = np.argsort(scores if order == "ascending" else -scores, axis=0, kind="stable")
        place = place * scores.shape[1] + np.arange(scores.shape[1])
        scores = scores.ravel()[place]
    with np.errstate(over="ignore", invalid="ignore"):  # -inf - -inf where nothing has been taken in yet
        scores = scores - top
        if order == "descending":  # the first is the largest and counts 1
            terms = np.exp(scores)
            terms[0] = 0
            partial = np.log1p(np.cumsum(terms, axis=0))
        else:
            partial = np.logaddexp.accumulate(scores, axis=0)
        before = np.concatenate([np.full_like(partial[:1], -np.inf), partial[:-1]])
        beta = np.where(np.isneginf(before), 0.0, curvature_of_gap(scores - before))
        kappa = np.where(np.isneginf(scores), 0.0, np.exp(scores - partial))
    beta, kappa = beta.astype(scores.dtype), kappa.astype(scores.dtype)
    return _Sweep(top + partial[-1], scores, partial, beta, kappa, place)


def _product(sweep: _Sweep, v: np.ndarray) -> np.ndarray:
    """Apply sum_y beta_y l_y l_y': means over the classes so far, then what later ones give back."""
    v = np.ascontiguousarray(np.asarray(v).T)
    if sweep.place is not None:
        v = v.ravel()[sweep.place]
    pull = np.empty_like(v, dtype=np.result_type(v, sweep.beta))
    mean = np.zeros_like(pull[0])
    for y in range(len(v)):
        away = v[y] - mean
        np.multiply(sweep.beta[y], away, out=pull[y])
        mean += sweep.kappa[y] * away
    later = np.zeros_like(mean)
    for y in range(len(v) - 1, -1, -1):
        own = pull[y].copy()
        pull[y] -= sweep.kappa[y] * later
        later = own + (1 - sweep.kappa[y]) * later
    if sweep.place is None:
        return pull.T
    out = np.empty_like(pull)
    out.ravel()[sweep.place] = pull  # in the order given
    return out.T


def _matrices(sweep: _Sweep) -> np.ndarray:
    """C of every row from the same recursions, (row, class, class)."""
    K, n = sweep.scores.shape
    rest = np.zeros((K, n), sweep.scores.dtype)
    for y in range(K - 2, -1, -1):
        rest[y] = sweep.beta[y + 1] + (1 - sweep.kappa[y + 1]) ** 2 * rest[y + 1]
    C = np.zeros((K, K, n), sweep.scores.dtype)
    for l in range(K):
        C[l, l] = sweep.beta[l] + sweep.kappa[l] ** 2 * rest[l]
        if l == 0:
            continue
        before = sweep.partial[l - 1]
        share = np.exp(sweep.scores[:l] - np.where(np.isneginf(before), 0.0, before))  # of those so far
        remaining = share * (1 - sweep.kappa[l])  # of those with this one
        C[:l, l] = C[l, :l] = remaining * sweep.kappa[l] * rest[l] - sweep.beta[l] * share
    C = C.transpose(2, 0, 1)
    if sweep.place is None:
        return C
    back = np.argsort(sweep.place // n, axis=0).T
    return np.take_along_axis(np.take_along_axis(C, back[:, :, None], axis=1), back[:, None, :], axis=2)


def _factors(sweep: _Sweep) -> np.ndarray:
    """sqrt(beta_y) (e_y - g_y), g_y the shares of the classes before y, for every y but the first."""
    K = len(sweep.scores)
    before = np.where(np.isneginf(sweep.partial[:-1]), 0.0, sweep.partial[:-1]).T[:, :, None]
    earlier = np.tri(K - 1, K, dtype=bool)
    away = -np.exp(np.where(earlier, sweep.scores.T[:, None] - before, -np.inf))
    away[:, range(K - 1), range(1, K)] = 1
    away *= np.sqrt(sweep.beta[1:]).T[:, :, None]
    away = away.astype(sweep.scores.dtype, copy=False)
    return away if sweep.place is None else np.take_along_axis(away, np.argsort(sweep.place, axis=0).T[:, None], axis=2)


def _mean(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else sum(arrays) / len(arrays)
