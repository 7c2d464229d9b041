"""Stochastic bound majorization of softmax models: second-order steps from one pass over the rows."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .._checks import check_choice, check_flag, check_positive, check_whole
from ..bounds import ORDERS
from .row_visits import RowVisitor, VisitState


class Majorization(NamedTuple):
    """Sum of the quadratic bounds of all visits since the beginning, or the last restart."""

    curvature: Any  # Sigma: ``add_many(Q)`` adds rank-one terms, ``solve(u)`` applies its inverse
    mu: np.ndarray  # sum of the gradients, (parameter,)
    phi: np.ndarray  # Sigma^-1 mu, (parameter,)


@dataclass(frozen=True)
class StochasticMajorization(RowVisitor):
    r"""Stochastic bound majorization, a one-pass method for softmax models with a ridge.

    Every visit adds the quadratic bound of its rows' losses at the current parameters to a running sum, and takes a
    short step towards its minimum:

    .. math:: \Sigma \mathrel{+}= \sum_{i \in B} n_i C_i \otimes z_i z_i', \quad
              \mu \mathrel{+}= \sum_{i \in B} \big[(n_i \pi_i - y_i) \otimes z_i + \text{strength}\,\theta\big], \quad
              \theta \mathrel{-}= \text{gain}\,\frac{|B|}{N}\,\Sigma^{-1}\mu

    At full rank there is nothing to tune.

    Parameters
    ----------
    batch_size : int
        Rows per step (of the batch B). Where a pass ends hardly depends on it; tens of rows at a time cost less than
        single ones.
    rank : int, optional
        Of the curvature beside its diagonal, for many parameters: never less than the sum itself, so the bounds
        stay bounds and steps are shorter, and a larger ``gain`` may pay. None keeps the whole inverse, for up to 3000
        parameters, (features + 1)(classes - 1).
    gain : float
        Length of the steps; 1 is the paper's.
    restart : bool
        Whether to forget all bounds at the beginning of every epoch.
    order : {"given", "descending", "ascending", "averaged"}
        In which a bound takes in the classes; see `glmfit.bounds.softmax_bound`. "averaged" costs twice as much.

    Notes
    -----
    For one epoch, to end with or to start another solver from; `IncrementalMajorization` and `ConjugateGradients`
    converge. On a quadratic the error after tau epochs is J_0(2 sqrt(tau)) of the first one (a Bessel function): 0.22
    after one, then it oscillates and decays like tau^(-1/4), because gradients at parameters long left are never
    forgotten. With
    ``restart`` it is 0.22^tau there, and a floor of noise is left on other problems.

    Host, float64, whatever the precision of the data; nothing is compiled. Cost of a row with P parameters and K
    classes: 3 (K - 1) P^2 flops at full rank and memory for P^2 numbers; at rank k, O((K - 1) k^2 P) flops and, with
    single rows of two classes, memory for about (4 k + 15) P numbers. Dense features are copied once, centred, in
    float64; sparse ones are not. Sigma begins with the ridge, which must therefore be positive (and with a 1e-10th of
    what the data may add, at least); intercepts have none and begin with as much, or with the weight of one row if that
    is less.

    The step of a schedule is not used, its number of epochs is. Theory: docs/theory/bound_majorization.md, "The
    stochastic listing".

    References
    ----------
    A. Choromanska, T. Jebara, Stochastic bound majorization (2013), Algorithm 2, with each row's gradient counted once
    (as printed it counts observed features and ridge once per class).
    """

    usual_epochs: ClassVar[int] = 1
    has_step: ClassVar[bool] = False
    rank: int | None = None
    gain: float = 1.0
    restart: bool = False
    order: str = "given"

    def __post_init__(self):
        super().__post_init__()
        if self.rank is not None:
            check_whole("rank", self.rank, 0)
        check_positive("gain", self.gain)
        check_flag("restart", self.restart)
        check_choice("order", self.order, ORDERS)

    def longest_step(self, problem) -> float:
        """Return infinity: there is no step."""
        return math.inf

    def _begin_epoch(self, rows, memory: Majorization | None) -> Majorization:
        if memory is None or self.restart:
            zero = np.zeros(rows.n_parameters)
            return Majorization(rows.start_curvature(self.rank), zero, zero)
        return memory._replace(curvature=copy.deepcopy(memory.curvature))

    def _step(self, rows, seen, state: VisitState, c: float) -> tuple[np.ndarray, Majorization]:
        curvature, mu, _ = state.memory
        for q in rows.factors(seen, self.order):
            curvature.add_many(q)
        mu = mu + seen.gradient
        phi = curvature.solve(mu)
        step = self.gain * len(seen.z) / rows.n_rows
        return state.theta - step * phi, Majorization(curvature, mu, phi)
