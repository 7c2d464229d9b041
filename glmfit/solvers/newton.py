"""Newton's method, one neuron at a time: the best choice for few neurons or few features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..bounds import GAP_THEOREM, GapCertificate
from ..problems.base import ExactHessian, Params
from .base import OptStep, Solver


class NewtonState(NamedTuple):
    """Everything a resumed fit needs."""

    epoch: int
    row_evals: int
    iterates: Any  # the problem's iterate, every field stacked over neurons
    objective: np.ndarray
    estimate: np.ndarray
    active: np.ndarray
    fresh: bool


@dataclass(frozen=True)
class Newton(Solver):
    """Newton's method with exact Hessians in float64, re-used while they serve, and steps that never go uphill.

    Notes
    -----
    Runs on the host (BLAS) in float64 whatever jax's precision mode is; compiles nothing. The full step is
    tried first; where it fails, the length ``log(1 + S)/S`` that self-concordance proves to descend is taken
    (S the largest change of eta). An epoch is one step of every neuron. Cost per Hessian: T d^2 per neuron.
    The gap bound comes with the Hessian and is exact-Hessian (no failure probability).
    """

    exact_hessian: ClassVar[bool] = True
    on_host: ClassVar[bool] = True

    def init_state(self, problem: ExactHessian, params: Params, *, key=None) -> OptStep:
        """Evaluate the start."""
        n = problem.n_neurons
        iterates = _stack([problem.start_newton(params, i) for i in range(n)])
        state = NewtonState(0, problem.n_rows, iterates, np.zeros(n), np.zeros(n), np.ones(n, bool), False)
        return OptStep(params, _read(problem, state)._replace(fresh=False))

    def update(self, problem: ExactHessian, params: Params, state: NewtonState) -> OptStep:
        """One Newton step of every active neuron."""
        iterates = [
            problem.newton_step(at, i) if state.active[i] and not at.stuck else at
            for i, at in enumerate(_unstack(state.iterates))
        ]
        state = _read(problem, state._replace(epoch=state.epoch + 1, iterates=_stack(iterates)))
        return OptStep(self.user_params(problem, params, state), state)

    def user_params(self, problem: ExactHessian, params: Params, state: NewtonState) -> Params:
        """Coefficients and intercepts."""
        return Params(state.iterates.coef.T.copy(), state.iterates.intercept.copy())

    def is_stuck(self, state: NewtonState) -> np.ndarray:
        """Whether a neuron's steps end in rounding, or lead nowhere because there is no optimum."""
        return np.asarray(state.iterates.stuck)

    def certify_gap(
        self, problem: ExactHessian, params: Params, state: NewtonState, attempt: int = 1
    ) -> GapCertificate:
        """Bounds from the Hessians at hand."""
        at = state.iterates
        zeros = np.zeros(problem.n_neurons)
        return GapCertificate(at.bound, at.estimate, at.objective, zeros, zeros == 0, GAP_THEOREM, 0.0)


def _read(problem, state: NewtonState) -> NewtonState:
    at = state.iterates
    return state._replace(
        row_evals=int(problem.n_rows * at.passes.mean()),
        objective=at.objective,
        estimate=at.estimate,
        fresh=True,
    )


def _stack(iterates):
    return type(iterates[0])(*(np.stack([np.asarray(v) for v in field]) for field in zip(*iterates, strict=True)))


def _unstack(stacked):
    n = len(stacked.objective)
    return [type(stacked)(*(_item(field[i]) for field in stacked)) for i in range(n)]


def _item(value):
    return value if value.ndim else value.item()
