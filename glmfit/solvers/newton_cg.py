"""Newton's method with conjugate gradients for softmax models: exact, in float64, nothing to compile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .._checks import check_whole
from ..bounds import GapCertificate
from ..problems.base import CoupledClasses, Params
from .base import OptStep, Solver


class NewtonCGState(NamedTuple):
    """Everything a resumed fit needs."""

    epoch: int
    row_evals: int
    point: Any  # the problem's
    inverse: Any  # the problem's preconditioner, if it made one
    objective: np.ndarray
    estimate: np.ndarray
    active: np.ndarray
    fresh: bool


@dataclass(frozen=True)
class NewtonCG(Solver):
    """Newton's method for softmax models, each step by conjugate gradients in the spectral basis.

    Parameters
    ----------
    max_products : int
        Products with the Hessian per step, at most; each is a pass over the rows.

    Notes
    -----
    Runs on the host (BLAS) in float64 whatever jax's precision mode is, on dense and sparse features; compiles
    nothing. Never goes uphill; near the optimum every step squares, nearly, what is left. An epoch is one step. Cost
    per product: 4 N D K flops (nonzeros in place of N D). Memory: 4 numbers per row and class.
    """

    on_host: ClassVar[bool] = True
    max_products: int = 100

    def __post_init__(self):
        check_whole("max_products", self.max_products, 1)

    def init_state(self, problem: CoupledClasses, params: Params, *, key=None) -> OptStep:
        """Evaluate the start."""
        point = problem.start_newton(params)
        objective, estimate = np.array([point.objective]), np.array([point.norm / 2])
        state = NewtonCGState(0, problem.n_rows, point, None, objective, estimate, np.ones(1, bool), True)
        return OptStep(point.v, state)

    def update(self, problem: CoupledClasses, params, state: NewtonCGState) -> OptStep:
        """Take one step."""
        step = problem.newton_step(state.point, self.max_products, state.inverse)
        state = state._replace(
            epoch=state.epoch + 1,
            row_evals=state.row_evals + step.passes * problem.n_rows,
            point=step.point,
            inverse=step.inverse,
            objective=np.array([step.point.objective]),
            estimate=np.array([step.estimate]),
        )
        return OptStep(step.point.v, state)

    def user_params(self, problem: CoupledClasses, params, state: NewtonCGState) -> Params:
        """Coefficients (feature, class) and intercepts (class,)."""
        return problem.user_params(params)

    def certify_gap(self, problem: CoupledClasses, params, state: NewtonCGState, attempt: int = 1) -> GapCertificate:
        """Ask the problem for its bound at the parameters that would be returned."""
        return problem.certify_gap(problem.user_params(params))
