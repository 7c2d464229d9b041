"""Stochastic gradient descent on softmax models, all classes at a time: to compare with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._checks import check_choice, check_positive
from .row_visits import RowVisitor, VisitState
from .schedule import check_explicit_step

GAINS = ("constant", "tau", "inverse")


@dataclass(frozen=True)
class SoftmaxSGD(RowVisitor):
    r"""Stochastic gradient steps on the softmax likelihood and its ridge, for comparison.

    .. math:: \theta \mathrel{-}= \eta_i \Big[\frac1{|B|}\sum_{j \in B} (n_j \pi_j - y_j) \otimes z_j
              + \text{strength}\cdot\theta\Big]

    with the gain of update i = 1, 2, ... constant (SGD), or falling (ASGD).

    Parameters
    ----------
    batch_size : int
        Rows per step (of the batch B).
    gain : {"constant", "tau", "inverse"}
        :math:`\eta_i = \eta_0`, :math:`\eta_0 \tau / (\tau + i)` or :math:`\eta_0 / i`; :math:`\eta_0` is the step
        of the schedule. Give the schedule a ``decay`` of 1, or the gain shrinks from epoch to epoch as well.
    tau : float
        Updates after which the gain "tau" is halved.

    Notes
    -----
    The paper's sum over a batch is a mean here, so that its gain is ``step / batch_size``. Same rows, coordinates
    (centred features) and loop as `StochasticMajorization`: for comparison with it. For use there is `ImplicitSGD`,
    or `SoftmaxProx` for all classes: they are compiled and take steps of any length.

    References
    ----------
    A. Choromanska, T. Jebara, Stochastic bound majorization (2013), section 2.1.
    """

    gain: str = "constant"
    tau: float = 1000.0

    def __post_init__(self):
        super().__post_init__()
        check_choice("gain", self.gain, GAINS)
        check_positive("tau", self.tau)

    def update(self, problem, state: VisitState, c: float) -> VisitState:
        """Do one epoch at step size c / N."""
        check_explicit_step(c, problem.strength)
        return super().update(problem, state, c)

    def _begin_epoch(self, rows, memory: None) -> None:
        return None

    def _step(self, rows, seen, state: VisitState, c: float) -> tuple[np.ndarray, None]:
        eta = c * self._share(state.steps + 1)
        return state.theta - eta / len(seen.z) * seen.gradient, None

    def _share(self, i: int) -> float:
        """Gain of update i relative to the first one's."""
        return {"constant": 1.0, "tau": self.tau / (self.tau + i), "inverse": 1 / i}[self.gain]
