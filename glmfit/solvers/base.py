"""The solver contract: frozen hyper-parameters, ``init_state`` / ``update`` / ``run``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from ..bounds import GapCertificate, StepCertificate
from ..problems.base import Params, Problem
from ._loop import fit_loop
from ._result import LoopOptions, Solution


class OptStep(NamedTuple):
    """Step of a solver: ``params`` in the problem's coordinates, and the solver's ``state``."""

    params: Any
    state: Any


class Solver(ABC):
    """Hyper-parameters of an algorithm and its two verbs; a solver never holds data.

    A state is a NamedTuple of arrays with at least the fields ``epoch``, ``row_evals``, ``objective``, ``estimate``,
    ``active`` and ``fresh``, so that saving its leaves
    and loading them again continues the same fit bit for bit.

    Attributes
    ----------
    exact_hessian : bool
        Whether the solver's own certificates use exact Hessians, so that finishing neurons with them adds nothing.
    finish_with_newton : bool
        Whether Newton steps may end what the solver began, where they are cheap.
    on_host : bool
        Whether the solver computes with NumPy alone: it compiles nothing, needs no key, and runs in forked processes.
    """

    exact_hessian: ClassVar[bool] = False
    finish_with_newton: ClassVar[bool] = True
    on_host: ClassVar[bool] = False

    @abstractmethod
    def init_state(self, problem: Problem, params: Params, *, key) -> OptStep:
        """Prepare everything that depends on the data and return the first step."""

    @abstractmethod
    def update(self, problem: Problem, params: Any, state: Any) -> OptStep:
        """Do one epoch of work: about one pass over the rows."""

    @abstractmethod
    def user_params(self, problem: Problem, params: Any, state: Any) -> Params:
        """Map the solver's coordinates to the parameters the user sees."""

    def refresh(self, problem: Problem, params: Any, state: Any) -> OptStep:
        """Bring ``state.objective`` and ``state.estimate`` up to date (``state.fresh``), without other work."""
        return OptStep(params, state)

    @abstractmethod
    def certify_gap(self, problem: Problem, params: Any, state: Any, attempt: int = 1) -> GapCertificate:
        """Ask the problem for its gap certificate at the parameters that would be returned.

        ``attempt`` counts the certificates of a fit: each has its own randomness, and their failure
        probabilities add up to no more than the solver's.
        """

    def is_stuck(self, state: Any) -> np.ndarray | bool:
        """Whether no step changes anything any more, (neuron,)."""
        return False

    def pack(self, params: Any, state: Any) -> dict[str, np.ndarray]:
        """Arrays by name from which `unpack` restores a fresh step, without what the problem can compute again."""
        raise NotImplementedError(f"{type(self).__name__} writes no checkpoints")

    def unpack(self, problem: Problem, arrays: dict[str, np.ndarray]) -> OptStep:
        """Restore the step that `pack` was given, bit for bit."""
        raise NotImplementedError(f"{type(self).__name__} writes no checkpoints")

    def certify_step(self, state: Any) -> StepCertificate | None:
        """Certificate of the step in use, or None for a solver without a step size."""
        return None

    def run(
        self, problem: Problem, params: Params | None = None, *, key: jax.Array, options: LoopOptions | None = None
    ) -> Solution:
        """Fit until every neuron is converged or the budget is spent; see :class:`LoopOptions`.

        Returns
        -------
        Solution
        """
        return fit_loop(self, problem, params, key=key, options=options or LoopOptions())


__all__ = ["OptStep", "Solution", "Solver"]
