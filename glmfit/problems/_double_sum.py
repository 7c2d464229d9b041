"""The softmax likelihood as a sum over rows and classes, which sampling both leaves unbiased.

With ``-log a = max_v (1 - v - a exp(-v))`` the negative log-likelihood of the labels becomes, up to the constant N,
the minimum over one auxiliary number per row of

    f(v, W) = sum_i v_i - alpha s_i,y + exp(alpha s_i,y - v_i) + sum_{k != y} exp(s_i,k - (1 - alpha) s_i,y - v_i)

jointly convex in v and W, for any alpha: 0 measures scores from the label's (v is then called u, and is at least 0),
1 takes them as they are (v estimates the log of the normaliser). Derivations: docs/theory/double_sum.md.

References
----------
F. Fagan, G. Iyengar, Unbiased scalable softmax optimization (2018); P. Raman et al., DS-MLR (2016), for alpha = 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._lambert import log1p_sum_exp
from .._numerics import namespace


class SamplingWeights(NamedTuple):
    """What makes a sampled gradient unbiased.

    Attributes
    ----------
    row : float
        Multiplies what a sampled row contributes by itself.
    negative : float
        Multiplies each sampled exponential.
    touched : numpy.ndarray
        Probability that a step touches each class, (class,): a ridge on touched classes only is divided by it.
    """

    row: float
    negative: float
    touched: np.ndarray


def negative_weight(n_classes: int, m: int, shared: bool) -> float:
    """Weight of a sampled exponential beside what the row contributes by itself.

    Parameters
    ----------
    n_classes : int
        K.
    m : int
        Sampled classes.
    shared : bool
        Whether they are drawn from all classes, a row's own label counting nothing, rather than from the others.
    """
    return (n_classes if shared else n_classes - 1) / m


def single_row_weights(label_counts, m: int) -> SamplingWeights:
    """Weights of one row and m distinct negatives other than its label, both uniform.

    Parameters
    ----------
    label_counts : array
        Rows with each label, (class,).
    m : int
        Negatives, 1 to the number of classes less one.
    """
    label_counts = np.asarray(label_counts, np.float64)
    n_rows, n_classes = label_counts.sum(), len(label_counts)
    share = label_counts / n_rows
    touched = share + (1 - share) * m / (n_classes - 1)
    return SamplingWeights(n_rows, n_rows * negative_weight(n_classes, m, False), touched)


def with_replacement_weights(label_counts, m: int) -> SamplingWeights:
    """Weights of one row and m negatives other than its label, drawn with replacement."""
    label_counts = np.asarray(label_counts, np.float64)
    n_rows, n_classes = label_counts.sum(), len(label_counts)
    share = label_counts / n_rows
    touched = share + (1 - share) * (1 - (1 - 1 / (n_classes - 1)) ** m)
    return SamplingWeights(n_rows, n_rows * negative_weight(n_classes, m, False), touched)


def shared_weights(label_counts, n: int, m: int) -> SamplingWeights:
    """Weights of n distinct rows that share m distinct classes out of all, a row's own label counting nothing."""
    label_counts = np.asarray(label_counts, np.float64)
    n_rows, n_classes = label_counts.sum(), len(label_counts)
    as_negative = m / n_classes
    missed = np.prod([1 - label_counts / (n_rows - j) for j in range(n)], axis=0)
    as_label = 1 - np.maximum(missed, 0.0)
    touched = as_negative + as_label - as_negative * as_label
    return SamplingWeights(n_rows / n, n_rows / n * negative_weight(n_classes, m, True), touched)


def best_auxiliary(score, label, alpha: float = 0.0):
    """Minimiser of the double sum in the auxiliary variables: the log of the normaliser, relative to the label's score.

    Parameters
    ----------
    score : array
        (row, class).
    label : array
        (row,).
    alpha : float
        Of the family, 0 to 1.

    Returns
    -------
    array
        (row,); at least 0 for alpha = 0.
    """
    delta, own = _relative(score, label)
    return log1p_sum_exp(delta) + alpha * own


def double_sum_rows(score, label, v, alpha: float = 0.0):
    """Terms of the double sum, one per row: (row,). At the best v they are the negative log-likelihoods plus 1."""
    xp = namespace(score)
    delta, own = _relative(score, label)
    return v - alpha * own + xp.exp(log1p_sum_exp(delta) + alpha * own - v)


def _relative(score, label):
    """Scores relative to the label's, -inf at the label itself, and the label's score."""
    xp = namespace(score)
    is_label = xp.arange(score.shape[1])[None] == xp.asarray(label)[:, None]
    own = xp.sum(xp.where(is_label, score, 0.0), axis=1)
    return xp.where(is_label, -xp.inf, score - own[:, None]), own
