"""Embeddings of a fitted model on the host, in float64: linear predictors, and how well they predict."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse

from ..engine.chunks import chunks
from ..observations import Observation
from .responses import Triples, merge_trials

SCORES = ("D2", "correlation", "recall")
_AT_ONCE = 2**22  # numbers of a chunk
_LEAST_PAIRS = 3  # of a correlation


def canonical_rotation(P: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """Rotation (k, k) of embeddings (m, k) and (n, k) after which models that are equal look equal.

    Inner products, and penalties of linear towers, are the same after any rotation of both sides; this one makes
    ``P'P + Q'Q`` diagonal, decreasing, with the entry of largest magnitude of every column of Q positive.
    """
    _, vectors = np.linalg.eigh(P.T @ P + Q.T @ Q)
    rotation = vectors[:, ::-1]
    turned = Q @ rotation
    most = np.take_along_axis(turned, np.argmax(np.abs(turned), axis=0)[None, :], axis=0)[0]
    return rotation * np.where(most < 0, -1.0, 1.0)


class Predictor(NamedTuple):
    """Linear predictors ``P Q' + s + t`` on the host."""

    P: np.ndarray  # embeddings of stimuli, (stimulus, k)
    s: np.ndarray  # biases, (stimulus,)
    Q: np.ndarray  # of neurons
    t: np.ndarray
    null: np.ndarray  # linear predictor of every neuron's mean response in training, (neuron,)

    def table(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Compute those of some stimuli and all neurons."""
        return self.P[rows] @ self.Q.T + self.s[rows, None] + self.t[None, :]

    def of_pairs(self, stimuli: np.ndarray, neurons: np.ndarray) -> np.ndarray:
        """Compute those of scattered pairs, some at a time."""
        out = np.empty(len(stimuli))
        for some in chunks(len(out), max(1, _AT_ONCE // max(1, self.P.shape[1]))):
            i, j = stimuli[some], neurons[some]
            out[some] = np.sum(self.P[i] * self.Q[j], axis=1) + self.s[i] + self.t[j]
        return out


def deviance_explained(loss: Observation, records: Triples, predictor: Predictor) -> float:
    """1 - deviance / deviance of every neuron's mean in training; nan where that is 0."""
    z = predictor.of_pairs(records.left, records.right)
    deviance = float(np.sum(loss.deviance(records.y, z)))
    null = float(np.sum(loss.deviance(records.y, predictor.null[records.right])))
    # Constant responses differ from their mean by its rounding.
    return 1 - deviance / null if null > 1e-24 * float(np.sum(records.y**2)) else np.nan


def correlations(loss: Observation, records: Triples, predictor: Predictor) -> np.ndarray:
    """Pearson correlation over the pairs of every neuron, (neuron,); nan with fewer than 3 or where one is constant."""
    n = len(predictor.t)
    place, y, *_ = merge_trials(records.left.astype(np.int64) * n + records.right, records.y)
    i, j = records.left[place], records.right[place]
    expected = loss.mean(predictor.of_pairs(i, j))
    count = np.bincount(j, minlength=n)

    def centred(values):
        mean = np.bincount(j, values, n) / np.maximum(count, 1)
        rest = values - mean[j]
        square = np.bincount(j, rest**2, n)
        # A constant is one up to the rounding of its mean.
        size = np.bincount(j, values**2, n)
        return rest, np.where(square > 1e-24 * size, square, np.nan)

    (dy, yy), (de, ee) = centred(y), centred(expected)
    return np.where(count >= _LEAST_PAIRS, np.bincount(j, dy * de, n) / np.sqrt(yy * ee), np.nan)


def recall(records: Triples, predictor: Predictor, k: int, exclude: Triples | None) -> float:
    """Mean over stimuli of the share of neurons that responded among the k predicted first, without ``exclude``."""
    shape = len(predictor.s), len(predictor.t)

    def table(given):
        return scipy.sparse.csr_array((given.y, (given.left, given.right)), shape)  # trials are added up

    positive = table(records) > 0
    out = None if exclude is None else table(exclude._replace(y=np.ones(len(exclude.y), bool)))
    positive = positive if out is None else positive > out
    per_stimulus = positive.sum(axis=1)
    asked = np.flatnonzero(per_stimulus)
    if not len(asked):
        raise ValueError(
            "no pair that is left (exclude leaves out its own) has a response above 0; recall needs at least one."
        )
    k = min(k, shape[1])
    hits = np.empty(len(asked))
    for some in chunks(len(asked), max(1, _AT_ONCE // shape[1])):
        rows = asked[some]
        z = predictor.table(rows)
        if out is not None:
            z[out[rows].toarray()] = -np.inf
        top = np.argpartition(-z, k - 1, axis=1)[:, :k]
        hits[some] = np.take_along_axis(positive[rows].toarray(), top, axis=1).sum(axis=1)
    return float(np.mean(hits / np.minimum(k, per_stimulus[asked])))


def hold_out(records: Triples, pair: Callable, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Draw numbers of pairs (as ``pair`` gives them) to leave out, such that every stimulus and neuron keeps one."""
    pairs, first = np.unique(pair(records.left, records.right), return_index=True)
    order = rng.permutation(len(pairs))
    left, right = records.left[first][order], records.right[first][order]
    kept = np.zeros(len(pairs), bool)  # in the order drawn: the first of every stimulus and of every neuron stays
    for side in (left, right):
        kept[np.unique(side, return_index=True)[1]] = True
    free = order[~kept]
    return np.sort(pairs[free[: round(fraction * len(pairs))]])
