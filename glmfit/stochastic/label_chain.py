r"""Chains of labels: conditional random fields on a line, bounded by dynamic programming.

A sequence of features x_1 ... x_T (time, feature) has labels y_1 ... y_T, with the score

    sum_t w(y_t)'x_t + sum_t A(y_(t-1), y_t)

The bound of log Z is built along the chain; docs/theory/bound_majorization.md, Proposition 7.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..bounds.log_partition import partition_bounds
from ..checks import as_numbers, check_whole
from ..engine.tiles import tiles_of
from .log_linear import LogLinear, add_products, read_strength, read_weights, refuse_size
from .outcome_lists import AT_ONCE, LogLinearProblem

_MOST_SEQUENCES = 20_000  # of labels that are listed for one sequence of features


class _Sequences(NamedTuple):
    """Sequences of one length."""

    X: np.ndarray  # (sequence, time, feature)
    labels: np.ndarray  # (sequence, time)
    weight: np.ndarray  # c_i / N, (sequence,)


class LabelChains(LogLinear):
    """Conditional random field on a line, with a ridge: labels that depend on those before; for `BoundMajorization`.

    Parameters
    ----------
    X : sequence of array_like
        Features of every sequence, (time, feature); lengths may differ. A feature that is always 1 gives every label an
        intercept.
    labels : sequence of array_like
        Label at every time, integer in [0, n_labels), (time,) each.
    n_labels : int
        Number of labels, at least 2.
    strength : float or array_like
        Strength of the ridge, at least 0: one number, or one per parameter. Only with a ridge on every parameter can
        the distance from the optimum be bounded.
    sample_weight : array_like, optional
        How often each sequence counts, at least 0, (sequence,).

    Raises
    ------
    ValueError
        If shapes do not match, numbers are not finite, or labels are out of range.

    Notes
    -----
    Parameters are the labels' weights (label, feature), then the transitions (from, to), in one vector; see `split`.
    Cost of a bound: time times labels squared times parameters squared, of all sequences. The bound is built along
    time, label by label, and is far lower than that of all listed sequences of labels, unless these are a dozen.
    """

    def __init__(
        self,
        X: Sequence[ArrayLike],
        labels: Sequence[ArrayLike],
        n_labels: int,
        strength: float | ArrayLike,
        sample_weight: ArrayLike | None = None,
    ):
        self.n_labels = check_whole("n_labels", n_labels, 2)
        X = [as_numbers(f"X of sequence {i}", x) for i, x in enumerate(X)]
        labels = [np.asarray(y) for y in labels]
        if not X or len(X) != len(labels):
            raise ValueError(f"X holds {len(X)} sequences and labels {len(labels)}; both need equally many (>= 1).")
        self.n_features = X[0].shape[-1] if X[0].ndim else 0
        for i, (x, y) in enumerate(zip(X, labels, strict=True)):
            self._check(i, x, y)
        self.n_rows = len(X)
        self.strength = read_strength(strength, n_labels * (self.n_features + n_labels))
        self._weight = read_weights(sample_weight, self.n_rows)
        self._X, self._labels, lengths = X, labels, np.array([len(x) for x in X])
        self._groups = []
        for length in np.unique(lengths):
            some = np.flatnonzero(lengths == length)
            arrays = np.stack([X[i] for i in some]), np.stack([labels[i] for i in some])
            self._groups.append(_Sequences(*arrays, self._weight[some] / self.n_rows))

    def _check(self, i: int, x: np.ndarray, y: np.ndarray) -> None:
        if x.ndim != 2 or not x.size or x.shape[1] != self.n_features or not np.isfinite(x).all():
            raise ValueError(
                f"X has shape {x.shape} at sequence {i}; it must be (time, feature), finite, with at least one time "
                "and equally many features in every sequence."
            )
        refuse_size(f"X of sequence {i}", x)
        needs = f"they must be {len(x)} integers from 0 to {self.n_labels - 1}."
        if y.shape != x.shape[:1] or y.dtype.kind not in "iu":
            raise ValueError(f"labels of sequence {i} have shape {y.shape} and dtype {y.dtype}; {needs}")
        outside = y[(y < 0) | (y >= self.n_labels)]
        if outside.size:
            raise ValueError(f"labels of sequence {i} hold {outside[0]}; {needs}")

    def split(self, theta: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Split a parameter vector.

        Parameters
        ----------
        theta : array_like
            Parameters, (parameter,).

        Returns
        -------
        numpy.ndarray, numpy.ndarray
            Weights of the labels, (label, feature), and of the transitions, (from, to).
        """
        theta, cut = self.read_parameters(theta), self.n_labels * self.n_features
        return theta[:cut].reshape(self.n_labels, -1), theta[cut:].reshape(self.n_labels, -1)

    def decode(self, theta: ArrayLike, X: ArrayLike) -> np.ndarray:
        """Find the most probable labels of a sequence (Viterbi algorithm).

        Parameters
        ----------
        theta : array_like
            Parameters, (parameter,).
        X : array_like
            Features, (time, feature).

        Returns
        -------
        numpy.ndarray
            Labels, integer (time,).
        """
        weights, transitions = self.split(theta)
        X = as_numbers("X", X)
        self._check(0, X, np.zeros(X.shape[:1], int))
        scores = X @ weights.T
        best, came = scores[0], []
        for score in scores[1:]:
            reached = best[:, None] + transitions
            came.append(np.argmax(reached, axis=0))
            best = reached.max(axis=0) + score
        labels = [int(np.argmax(best))]
        for from_ in reversed(came):
            labels.append(int(from_[labels[-1]]))
        return np.array(labels[::-1])

    def listed(self) -> LogLinearProblem:
        """List all sequences of labels, in the order of `itertools.product`: the same objective.

        Steps are shorter, but the Hessian is known and may prove the gap if the ridge is weak or absent.

        Returns
        -------
        LogLinearProblem

        Raises
        ------
        ValueError
            If there are more than 20 000 for one sequence of features.
        """
        longest = max(len(x) for x in self._X)
        if self.n_labels**longest > _MOST_SEQUENCES:
            raise ValueError(
                f"{self.n_labels} labels at {longest} times make {self.n_labels}^{longest} sequences; at most "
                f"{_MOST_SEQUENCES} are listed. Fit the chains directly."
            )
        features, observed = [], []
        for x, y in zip(self._X, self._labels, strict=True):
            ways = np.array(list(itertools.product(range(self.n_labels), repeat=len(x))))
            features.append(self._features(np.broadcast_to(x, (len(ways), *x.shape)), ways))
            observed.append(int(np.ravel_multi_index(tuple(y), (self.n_labels,) * len(x))))
        return LogLinearProblem(features, observed, self.strength, sample_weight=self._weight)

    def _features(self, X: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Sum features over time, of sequences of one length with their labels, (sequence, parameter)."""
        K = self.n_labels
        of_label = np.eye(K)[labels]  # (sequence, time, label)
        weights = np.einsum("itk,itd->ikd", of_label, X, optimize=True)
        transitions = np.einsum("itj,itk->ijk", of_label[:, :-1], of_label[:, 1:])
        return np.concatenate([weights.reshape(len(X), -1), transitions.reshape(len(X), -1)], axis=1)

    def _loss_bound(self, theta: np.ndarray, order: str) -> tuple[float, np.ndarray, np.ndarray]:
        value, gradient, curvature = 0.0, np.zeros_like(theta), np.zeros((len(theta), len(theta)))
        for X, labels, weight in self._tiles():
            own = self._features(X, labels)
            log_norm, mean = self._along(X, weight, theta, order, curvature)
            value += float(weight @ (log_norm - own @ theta))
            gradient += weight @ (mean - own)
        return value, gradient, curvature

    def _along(self, X, weight, theta, order: str, curvature) -> tuple[np.ndarray, np.ndarray]:
        """Log-partition functions (sequence,) and their gradients; their bounds' curvature is added in place.

        What comes before a label has a bound for each label. They share one curvature, the sum of what all labels need.
        """
        n, K, d = len(X), self.n_labels, self.n_features
        weights, transitions = self.split(theta)
        scores = X @ weights.T  # (sequence, time, label)
        step = np.zeros((K, K, len(theta)))  # features of a transition, (to, from, parameter)
        to, from_ = np.indices((K, K))
        step[to, from_, K * d + K * from_ + to] = 1
        mean, log_norm = np.zeros((n, K, len(theta))), np.zeros((n, K))
        place = np.arange(K)[:, None] * d + np.arange(d), np.arange(K)[:, None]
        for t in range(X.shape[1]):
            if t > 0:
                features = (mean[:, None] + step).reshape(n * K, K, -1)
                found = partition_bounds(features, (log_norm[:, None] + transitions.T).reshape(n * K, K), order)
                mean, log_norm = found.gradient.reshape(n, K, -1), found.log_norm.reshape(n, K)
                add_products(curvature, found.factors.reshape(n, -1, len(theta)), weight)
            mean[:, place[1], place[0]] += X[:, t, None, :]
            log_norm = log_norm + scores[:, t]
        found = partition_bounds(mean, log_norm, order)
        add_products(curvature, found.factors, weight)
        return found.log_norm, found.gradient

    def _tiles(self) -> Iterator[_Sequences]:
        """Yield some sequences at a time."""
        size = max(1, AT_ONCE // (self.n_labels**2 * self.n_parameters))
        for group in self._groups:
            yield from (_Sequences(*(a[tile] for a in group)) for tile in tiles_of(len(group.weight), size))

    @cached_property
    def _sizes(self) -> np.ndarray:
        sizes = np.zeros(self.n_parameters)
        for X, _, weight in self._tiles():
            between = np.full(self.n_labels**2, weight.sum() * (X.shape[1] - 1))
            sizes += np.append(np.tile(weight @ np.abs(X).sum(axis=1), self.n_labels), between)
        return sizes
