"""The softmax objective as a sum over rows and classes, which solvers that sample classes minimise.

Derivation: docs/theory/double_sum.md.
"""

import numbers
from typing import NamedTuple

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from ..checks import as_numbers
from ..engine.problem import Params
from ..engine.tiles import tiles_of
from .class_problem import SoftmaxProblem

_SCORES = 4_000_000  # in memory at a time


class DoubleSum(NamedTuple):
    """Value and gradient of the double sum.

    Attributes
    ----------
    value : float
        At least the objective F; equal to it at the best auxiliary variables.
    auxiliary : numpy.ndarray
        Auxiliary variables: one for every pair of a row and a class with counts, in their order, (pair,).
    auxiliary_gradient : numpy.ndarray
        In the auxiliary variables, (pair,).
    gradient : Params
        In coefficients, (feature, class), and intercepts, (class,).
    """

    value: float
    auxiliary: np.ndarray
    auxiliary_gradient: np.ndarray
    gradient: Params


def double_sum(
    problem: SoftmaxProblem, params: Params, auxiliary: ArrayLike | None = None, alpha: float = 0.0
) -> DoubleSum:
    r"""Evaluate the double sum of a softmax problem and its gradient.

    .. math:: f = \frac1N\sum_p n_p \Big(v_p - \alpha s_{py} + \sum_k e^{s_{pk} - (1 - \alpha) s_{py} - v_p} - 1\Big)
              + \text{ridge}

    Parameters
    ----------
    problem : SoftmaxProblem
        Its pairs p have a row, a class y and a count n_p.
    params : Params
        Coefficients and intercepts.
    auxiliary : array-like, optional
        v, (pair,); default the optimal ones.
    alpha : float
        Member of the family, in [0, 1]: 0 takes scores relative to the class's own, 1 as they are.

    Returns
    -------
    DoubleSum
        In float64.

    Raises
    ------
    ValueError
        If there is not one finite auxiliary variable per pair, or alpha is out of its range.

    Notes
    -----
    Guarantee: jointly convex; its minimum over v is F, at any parameters. Cost: a pass over pairs and classes.
    Source: F. Fagan, G. Iyengar, Unbiased scalable softmax optimization (2018), section 2; Raman et al. (2016) for
    ``alpha=1``.
    """
    if not (isinstance(alpha, numbers.Real) and 0 <= alpha <= 1):
        raise ValueError(f"alpha is {alpha!r}; it must be between 0 and 1.")
    given = None if auxiliary is None else as_numbers("auxiliary", auxiliary)
    if given is not None and (given.shape != (problem.n_pairs,) or not np.isfinite(given).all()):
        raise ValueError(
            f"auxiliary has shape {given.shape}{'' if np.isfinite(given).all() else ' and is not finite'}; it must be "
            f"one finite number for each of the {problem.n_pairs} pairs of a row and a class with counts."
        )
    v, slope = np.empty(problem.n_pairs), np.empty(problem.n_pairs)
    coef, intercept, value = np.zeros((problem.n_features, problem.n_classes)), np.zeros(problem.n_classes), 0.0
    for part in tiles_of(problem.n_pairs, max(1, _SCORES // problem.n_classes)):
        row, label, weight = (a[part] for a in problem.pairs)
        place, s = np.arange(len(row)), problem.scores(params, row)
        own = s[place, label]
        s -= (1 - alpha) * own[:, None]
        v[part] = scipy.special.logsumexp(s, axis=1) if given is None else given[part]
        s -= v[part, None]
        e = np.exp(s, out=s)
        total = e.sum(axis=1)
        value += weight @ (v[part] - alpha * own + total - 1)
        slope[part] = weight * (1 - total)
        e[place, label] -= alpha + (1 - alpha) * total
        e *= weight[:, None]
        coef += np.asarray(problem.X[row].T @ e)
        intercept += e.sum(axis=0)
    n, W = problem.n_rows, np.asarray(params.coef, np.float64)
    gradient = Params(coef / n + problem.strength * W, intercept / n * problem.fit_intercept)
    return DoubleSum(value / n + problem.strength / 2 * float(np.sum(W**2)), v, slope / n, gradient)
