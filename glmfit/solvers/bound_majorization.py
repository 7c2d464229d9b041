"""Bound majorization: minimise a quadratic that lies above the objective, and touches it, again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .._checks import check_choice, check_real, check_whole
from ..bounds import ORDERS, GapCertificate, StepCertificate
from ..problems.base import Majorizable, Params
from .base import OptStep, Solver

_WORTH_A_LOOK = 0.8


class BoundMajorizationState(NamedTuple):
    """Everything a resumed fit needs."""

    epoch: int
    row_evals: int
    point: Any  # the problem's
    decrease: np.ndarray  # what the last bound promised, (neuron,)
    seen: np.ndarray  # promise at the last look, (neuron,)
    stuck: np.ndarray  # whether a step since then found nothing but rounding, (neuron,)
    objective: np.ndarray
    estimate: np.ndarray
    active: np.ndarray
    fresh: bool
    certificate: StepCertificate


@dataclass(frozen=True)
class BoundMajorization(Solver):
    r"""Monotone second-order steps without a step size: down a quadratic bound, towards its minimum, then the next.

    Parameters
    ----------
    relaxation : float
        In (0, 2): how far to go, in units of the way to the bound's minimum. Every value in the range lowers the
        objective in every step; 1 goes to the minimum. 1.9 is best where the bound is far above the objective (certain
        rows, weak ridges), and close to the worst where it is not; 1.5 is never far from the best.
    order : {"descending", "given", "ascending", "averaged"}, optional
        The order in which the bound takes in classes. "descending" (by score, the default)
        needs no more steps than "given", as a rule; "averaged" as few products, each with twice the elementwise work.
    max_products : int, optional
        Products with the bound's curvature per step, at most (20 by default).

    Notes
    -----
    Guarantee: the objective never goes up, whatever the start and the data: no line search, no step to tune. Linear
    convergence: a step shrinks the gap by a factor that depends on how far the bound lies above the Hessian.

    For softmax and multinomial models. The bound is that of Jebara and Choromanska, on the host in float64, minimised
    by preconditioned conjugate gradients; any of their iterates lowers it. Nothing is compiled. An epoch is one step,
    its cost one pass and one more per product.

    References
    ----------
    Choromanska and Jebara (2012), Stochastic bound majorization; Salakhutdinov and Roweis (2003) for relaxation;
    docs/theory/bound_majorization.md, Propositions 1 to 3.
    """

    relaxation: float = 1.5
    order: str | None = None
    max_products: int | None = None
    finish_with_newton: ClassVar[bool] = False

    def __post_init__(self):
        check_real("relaxation", self.relaxation, 2.0)
        if self.order is not None:
            check_choice("order", self.order, ORDERS)
        if self.max_products is not None:
            check_whole("max_products", self.max_products, 1)

    def init_state(self, problem: Majorizable, params: Params, *, key) -> OptStep:
        """Evaluate the start."""
        start = problem.start_majorization(params)
        n = problem.n_neurons
        state = BoundMajorizationState(
            epoch=0,
            row_evals=start.passes * problem.n_rows,
            point=start.point,
            decrease=np.full(n, np.nan),
            seen=np.full(n, np.inf),
            stuck=np.zeros(n, bool),
            objective=np.asarray(start.point.objective).reshape(n),
            estimate=np.asarray(start.estimate).reshape(n),
            active=np.ones(n, bool),
            fresh=True,
            certificate=problem.certify_majorization(start.point, self.relaxation),
        )
        return OptStep(start.point.v, state)

    def update(self, problem: Majorizable, params, state: BoundMajorizationState) -> OptStep:
        """Take one step."""
        n = problem.n_neurons
        step = problem.majorize(state.point, self.relaxation, self.order, self.max_products)
        decrease, promise = (np.asarray(a, np.float64).reshape(n) for a in (step.decrease, step.estimate))
        with np.errstate(invalid="ignore", divide="ignore"):
            # Where F bends a share as much as the bound, the promise is that share of the gap, and a step leaves
            # 1 - relaxation * share of the way to the optimum and the square of it of the promise.
            left = np.sqrt(np.clip(decrease / state.decrease, 0.0, 0.999))
        share = np.fmin((1 - left) / self.relaxation, 1.0)  # 1 where there was no promise before
        estimate = promise / share
        # Progress may be slow and is sure: a look is due when there is some, or none whatever.
        stuck = state.stuck | np.asarray(step.stuck).reshape(n)
        fresh = bool(np.all((stuck | (promise < _WORTH_A_LOOK * state.seen))[state.active]))
        state = state._replace(
            epoch=state.epoch + 1,
            row_evals=state.row_evals + step.passes * problem.n_rows,
            point=step.point,
            decrease=decrease,
            seen=promise if fresh else state.seen,
            stuck=stuck & (not fresh),
            objective=np.asarray(step.point.objective).reshape(n),
            estimate=estimate,
            fresh=fresh,
        )
        return OptStep(step.point.v, state)

    def refresh(self, problem: Majorizable, params, state: BoundMajorizationState) -> OptStep:
        """Have a look: all that is to be seen is at hand."""
        return OptStep(params, state._replace(fresh=True))

    def user_params(self, problem: Majorizable, params, state: BoundMajorizationState) -> Params:
        """Coefficients (feature, neuron or class) and intercepts."""
        return problem.user_params(params)

    def certify_gap(self, problem: Majorizable, params, state: BoundMajorizationState, attempt=1) -> GapCertificate:
        """Ask the problem for its bound at the parameters that would be returned."""
        return problem.certify_majorized(state.point, attempt)

    def certify_step(self, state: BoundMajorizationState) -> StepCertificate:
        """Theorem by which no step goes up."""
        return state.certificate
