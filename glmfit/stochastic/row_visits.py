"""Solvers of softmax models that visit rows, a few at a time and all classes at once, on the host in float64."""

import copy
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.linalg.blas import dsymm, dsymv, dsyrk, dtrsm

from ..bounds import ORDERS, LowRankPlusDiagonal
from ..checks import check_choice, check_flag, check_positive, check_whole
from ..engine.problem import Params
from ..numerics import seed_of
from ..threads import one_thread_each
from .schedule import ScheduledSolver

GAINS = ("constant", "tau", "inverse")
_MOST_FULL = 3000  # parameters up to which an inverse is kept: 72 MB
_CONDITION = 1e10  # maximum ratio of the data's curvature to the initial one, so that an inverse keeps digits


class VisitState(NamedTuple):
    """Everything the next visit depends on."""

    theta: np.ndarray  # parameters in the problem's coordinates, (parameter,)
    memory: Any  # other state of the solver; the next step may overwrite it
    epoch: int  # done
    steps: int  # done
    seed: int  # of the orders of the rows


@dataclass(frozen=True)
class RowVisitor(ScheduledSolver):
    """Common part of the solvers that visit rows."""

    batch_size: int = 1  # rows per step; the last batch of an epoch may be smaller

    def __post_init__(self):
        check_whole("batch_size", self.batch_size, 1)

    def _begin_epoch(self, rows, memory) -> Any:
        """Return the memory for an epoch, sharing nothing that a step will overwrite."""
        return memory

    @abstractmethod
    def _step(self, rows, seen, state: VisitState, c: float) -> tuple[np.ndarray, Any]:
        """Return new parameters and memory after a batch."""

    def init_state(self, problem, params: Params | None, *, key) -> VisitState:
        rows = problem.contrast_rows
        theta = np.zeros(rows.n_parameters) if params is None else rows.to_vector(params)
        return VisitState(theta, None, 0, 0, seed_of(key))

    def visits(self, problem, state: VisitState, c: float = 1.0) -> Iterator[VisitState]:
        """Visit every row once, in a random order, and yield the state after every step, up to one that overflows."""
        rows = problem.contrast_rows
        state = state._replace(memory=self._begin_epoch(rows, state.memory))
        order = np.random.default_rng([state.seed, state.epoch]).permutation(problem.n_rows)
        for start in range(0, len(order), self.batch_size):
            with np.errstate(over="ignore", invalid="ignore"):
                seen = rows.visit(state.theta, order[start : start + self.batch_size])
                overflowed = not np.isfinite(seen.gradient).all()
                theta, memory = (seen.gradient, state.memory) if overflowed else self._step(rows, seen, state, c)
            state = state._replace(theta=theta, memory=memory, steps=state.steps + 1)
            yield state
            if overflowed:
                return

    def update(self, problem, state: VisitState, c: float, share: float) -> VisitState:
        with one_thread_each():  # waking others costs more than it saves
            last = deque(self.visits(problem, state, c), maxlen=1)[0]
        return last._replace(epoch=state.epoch + 1)

    def user_params(self, problem, state: VisitState) -> Params:
        return problem.contrast_rows.to_params(state.theta)

    def is_finite(self, state: VisitState) -> bool:
        return bool(np.isfinite(state.theta).all())

    def n_steps(self, problem) -> int:
        """Batches of an epoch, the last perhaps a smaller one."""
        return -(-problem.n_rows // self.batch_size)


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
    The sum over a batch of the source (A. Choromanska, T. Jebara, Stochastic bound majorization, 2013, section 2.1) is
    a mean here, so that its gain is ``step / batch_size``. In practice, use `ImplicitSGD` or `SoftmaxProx`.
    """

    gain: str = "constant"
    tau: float = 1000.0

    def __post_init__(self):
        super().__post_init__()
        check_choice("gain", self.gain, GAINS)
        check_positive("tau", self.tau)

    def _step(self, rows, seen, state: VisitState, c: float) -> tuple[np.ndarray, Any]:
        i = state.steps + 1
        gain = c * {"constant": 1.0, "tau": self.tau / (self.tau + i), "inverse": 1 / i}[self.gain]
        return state.theta - gain / len(seen.z) * seen.gradient, state.memory


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

    Parameters
    ----------
    batch_size : int
        Rows per step (of the batch B). The result of a pass hardly depends on it; tens of rows at a time cost less than
        single ones.
    rank : int, optional
        Rank of the off-diagonal curvature, for many parameters. Its approximation is never less than the sum, so
        the bounds stay bounds; steps are shorter, and a larger ``gain`` may help. None keeps the whole inverse, for
        up to 3000 parameters, (features + 1)(classes - 1).
    gain : float
        Length of the steps; 1 is the paper's.
    restart : bool
        Whether to forget all bounds at the beginning of every epoch.
    order : {"given", "descending", "ascending", "averaged"}
        Order in which a bound adds the classes; see `glmfit.bounds.softmax_bound`. "averaged" costs twice as much.

    Notes
    -----
    Meant for one epoch, on its own or to start another solver; `IncrementalMajorization` and `ConjugateGradients`
    converge. The step of a schedule is not used. On a quadratic, 0.22 of the error is left after an epoch; without a
    ``restart`` it then oscillates, because old gradients are never forgotten.

    Host, float64; nothing is compiled. Cost of a row with P parameters and K classes: 3 (K - 1) P^2 flops at full rank
    and memory for P^2 numbers; at rank k, O((K - 1) k^2 P) flops and, with single rows of two classes, memory for about
    (4 k + 15) P numbers. Dense features are copied once. Sigma begins with the ridge, which must therefore be positive.

    Source: A. Choromanska, T. Jebara, Stochastic bound majorization (2013), Algorithm 2, with each row's gradient
    counted once; docs/theory/bound_majorization.md, "The stochastic listing".
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

    def _begin_epoch(self, rows, memory: Majorization | None) -> Majorization:
        if memory is None or self.restart:
            zero = np.zeros(rows.n_parameters)
            return Majorization(self._start(rows), zero, zero)
        return memory._replace(curvature=copy.deepcopy(memory.curvature))

    def _start(self, rows) -> Any:
        """Curvature before any visit: the ridge's, or 1e-10 of the data's."""
        problem, n, (n_contrasts, n_columns) = rows.problem, rows.n_parameters, rows.shape
        if self.rank is None and n > _MOST_FULL:
            raise ValueError(
                f"rank is None and the model has {n} parameters ({n_columns} columns times {n_contrasts + 1} - 1 "
                f"classes); an inverse of the whole curvature is kept for at most {_MOST_FULL}. Give a rank, for "
                "example rank=10."
            )
        ridge, weight = rows.n_rows * problem.strength, float(problem.totals.mean())
        if not ridge > 0:
            raise ValueError(
                f"the ridge's strength is {problem.strength:g}; stochastic majorization starts from the curvature of "
                "the ridge, so it must be positive. A weak ridge is enough, for example 1e-6."
            )
        least = rows.n_rows * weight / 2 / _CONDITION
        column = np.maximum(ridge, least * np.append(rows.variance, 1.0))[:n_columns]
        if problem.fit_intercept:  # at most the weight of one row: a strong ridge should not hold intercepts back
            column[-1] = max(min(ridge, weight), least)
        diagonal = np.tile(column, n_contrasts)
        return InverseCurvature(diagonal) if self.rank is None else LowRankPlusDiagonal(diagonal, self.rank)

    def _step(self, rows, seen, state: VisitState, c: float) -> tuple[np.ndarray, Majorization]:
        curvature, mu, _ = state.memory
        for q in rows.factors(seen, self.order):
            curvature.add_many(q)
        mu = mu + seen.gradient
        phi = curvature.solve(mu)
        step = self.gain * len(seen.z) / rows.n_rows
        return state.theta - step * phi, Majorization(curvature, mu, phi)


class InverseCurvature:
    """Inverse of a positive diagonal, (parameter,), plus rank-one matrices, by Woodbury: its lower triangle."""

    def __init__(self, diagonal: np.ndarray):
        self._lower = np.asfortranarray(np.diag(1 / diagonal))

    def add_many(self, Q: np.ndarray) -> None:
        """Add ``Q'Q`` to the matrix whose inverse this is, in 3 flops per factor and pair of parameters."""
        U = dsymm(1.0, self._lower, Q.T, lower=1)
        inner = Q @ U
        inner.flat[:: len(inner) + 1] += 1
        W = dtrsm(1.0, np.linalg.cholesky(inner), U, side=1, lower=1, trans_a=1, overwrite_b=1)
        self._lower = dsyrk(-1.0, W, beta=1.0, c=self._lower, lower=1, overwrite_c=1)

    def solve(self, u: np.ndarray) -> np.ndarray:
        """Inverse times u."""
        return dsymv(1.0, self._lower, u, lower=1)
