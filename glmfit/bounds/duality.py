"""Fenchel duality: distance from the optimum without any curvature, also for penalties with kinks.

Derivation: docs/theory/duality.md.
"""

from typing import NamedTuple

import numpy as np

from ..penalties import Penalty

DUALITY_THEOREM = (
    "Fenchel duality: F* >= the dual at residuals shrunk until they sum to 0 and the penalty allows them "
    "(docs/theory/duality.md)"
)


class ResidualSums(NamedTuple):
    """Means over the rows of a convex loss, separately for rows whose derivative is above 0 and for the others.

    Attributes
    ----------
    residual, excess, saturated : numpy.ndarray
        Means, (2, neuron): of the derivative r; of r times the linear predictor without its offset, minus the loss; of
        the smallest loss that the row can have.
    gradient : numpy.ndarray
        Means of r times the features, (2, feature, neuron).
    """

    residual: np.ndarray
    gradient: np.ndarray
    excess: np.ndarray
    saturated: np.ndarray


def dual_gap(objective: np.ndarray, sums: ResidualSums, penalty: Penalty) -> np.ndarray:
    r"""Bound ``F - F*`` by a feasible point of the dual: the residuals, shrunk.

    .. math:: F^\star \ge -\frac1T\sum_t \ell_t^*(s_t r_t) - R^*\Bigl(-\frac1T\sum_t s_t r_t x_t\Bigr),\qquad
              \sum_t s_t r_t = 0,\quad \ell_t^*(s r) \le s (r \eta - \ell) - (1 - s) \min \ell_t

    Parameters
    ----------
    objective :
        F at the parameters, penalty included, (neuron,).
    sums :
        Sums of the rows at these parameters.
    penalty :
        R.

    Returns
    -------
    numpy.ndarray
        float64 bounds, (neuron,); inf if the dual is not above the smallest loss that the rows can have, or an argument
        is not finite.

    Notes
    -----
    `DUALITY_THEOREM`: residuals of the dominant sign are shrunk until all sum to 0, as the free intercept requires;
    then all are shrunk until the penalty's conjugate is finite. The bound does not include the rounding of the sums;
    for that and for its order in the distance from the optimum see docs/theory/duality.md.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        up, down = np.abs(sums.residual)
        balance = np.stack([np.where(up > down, down / up, 1.0), np.where(down > up, up / down, 1.0)])
        dual = np.einsum("in,ifn->fn", balance, sums.gradient)
        floor = sums.saturated.sum(axis=0)
        gained = -np.sum(balance * (sums.excess + sums.saturated), axis=0)  # above the floor, per share
        values = [floor + share * gained - penalty.conjugate(-share * dual) for share in penalty.shares(dual)]
        best = np.max(values, axis=0)
        gap = np.maximum(objective - best, 0.0)
        return np.where((best > floor) & np.isfinite(gap), gap, np.inf)
