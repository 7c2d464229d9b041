"""Test of residuals for autocorrelation, which makes sums of them vary more than sums of independent ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.stats

_LEVEL = 1e-5  # per neuron: a thousand independent neurons cause a warning at most once in a hundred recordings
_MATTERS = 1.2  # with this inflation a p-value of 0.05 should be 0.07
_BLOCKS = 16  # of the longest kind: fewer give a poor estimate of a variance


class Autocorrelation(NamedTuple):
    """How much more sums of residuals vary than those of independent ones, its p-value, and whether it matters."""

    variance_inflation: float
    p_value: float
    found: bool


def autocorrelation(residual: np.ndarray, counts: np.ndarray) -> Autocorrelation:
    r"""Test whether residuals are positively autocorrelated, by the variance of their sums over blocks of rows.

    ``residual`` are Pearson residuals in the order of time, (time,), and ``counts`` says which of them count, bool
    (time,): others are in no pair, and gaps are ignored. The ratio returned is the largest of those that are
    significant at 1e-5, otherwise that of the smallest p-value; it is ``found`` if it is significant and at least 1.2.
    Both are nan, and nothing is found, if there are fewer than 32 rows or nothing varies.

    With :math:`S_j` the sum of the residuals of block j and :math:`Q_j` that of their squares, the ratio of the
    variances is :math:`I = \sum_j S_j^2 / \sum_j Q_j`: 1 plus twice the sum over lags of the autocorrelations, each
    times the share of a block's pairs that it has. Blocks have 2, 4, 8, ... rows, and there are at least 16 of each
    length: bursts show in short blocks and drifts in long ones. The sum over rows of feature times residual, on which a
    likelihood ratio rests, varies I times as much as the ratio assumes if the feature hardly changes within a block,
    and less if it changes faster. Negative autocorrelation, as after spikes, is not tested: it makes p-values of slow
    features too large.

    m I is compared with a chi-squared distribution with :math:`m = 2 (\sum_j Q_j)^2 / V` degrees of freedom, which has
    the same variance (Satterthwaite); p-values are multiplied by the number of lengths (Bonferroni). V, the variance of
    the sum over pairs, is the larger of two estimates: :math:`2 \sum_j (Q_j^2 - \sum_{t \in j} r_t^4)`, which is right
    for independent residuals however much their variances differ, and its expected value if the variances are equal,
    :math:`2 \sigma^4 \sum_j n_j (n_j - 1)`. If spikes are few, the first alone is too small if no two of them happen
    to share a block, and the second if some do. The chi-squared distribution is asymptotic; with few spikes the test is
    conservative, but a portmanteau statistic over some hundred lags would have p-values that are far too small, and
    less power against drifts. A negative result proves nothing. Cost: O(T). Theory: docs/theory/inference.md.
    """
    r = np.where(counts, residual, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        r = r / np.abs(r).max()  # whose fourth powers do not overflow
    square, n = np.square(r), counts.astype(np.float64)
    total, fourth, seen = square.sum(), np.square(square).sum(), n.sum()
    kinds = int(np.log2(max(len(r) // _BLOCKS, 1)))
    if kinds == 0 or not 0 < total < np.inf:
        return Autocorrelation(np.nan, np.nan, False)
    inflation, p_value = np.ones(kinds), np.ones(kinds)
    for k in range(kinds):
        r, square, n = (_pairwise(a) for a in (r, square, n))
        products = 2 * max(np.square(square).sum() - fourth, (total / seen) ** 2 * np.sum(n * (n - 1)))
        if products > 0:
            m = 2 * total**2 / products
            inflation[k] = 1 + (np.square(r).sum() - square.sum()) / total
            p_value[k] = scipy.stats.chi2.sf(m * inflation[k], m)
    p_value = kinds * p_value
    significant = p_value < _LEVEL
    best = int(np.argmax(np.where(significant, inflation, -np.inf)) if significant.any() else np.argmin(p_value))
    found = bool(significant[best] and inflation[best] >= _MATTERS)
    return Autocorrelation(inflation[best], min(p_value[best], 1.0), found)


def _pairwise(values: np.ndarray) -> np.ndarray:
    """Add up neighbours two by two; a last one without a neighbour stays."""
    return np.add.reduceat(values, np.arange(0, len(values), 2))
