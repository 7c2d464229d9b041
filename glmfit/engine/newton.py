"""Newton's method, one neuron at a time: the best choice for few neurons, or features that nearly repeat others."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .._status import Status
from ..problems.base import Params
from ..solvers._result import LoopOptions, Solution
from .loop import Run


@dataclass(frozen=True)
class Newton:
    """Newton's method with exact Hessians in float64, re-used while they serve, and steps that never go uphill.

    Notes
    -----
    Runs on the host (BLAS) in float64 whatever jax's precision mode is; compiles nothing. The full step is
    tried first; where it fails, the length ``log(1 + S)/S`` that self-concordance proves to descend is taken
    (S the largest change of eta). An epoch is one step of a neuron. Cost per Hessian: T d^2 per neuron.
    The gap bound comes with the Hessian and is exact-Hessian (no failure probability). Penalties with kinks are
    minimised whole in every step, and their bounds are by duality.
    """

    on_host: ClassVar[bool] = True

    def run(self, problem, params: Params | None = None, *, key=None, options: LoopOptions | None = None) -> Solution:
        """Fit every neuron until it is converged or the budget is spent; see :class:`LoopOptions`."""
        return NewtonRun(problem, options or LoopOptions(), seed=0, start=params).run()


class NewtonRun(Run):
    """One neuron after the other, each to its verdict."""

    name = "Newton"

    def _begin(self) -> None:
        """Begin at the models without features, or where the user says."""
        if self.start is not None:
            self.params.coef[:, self.open], self.params.intercept[self.open] = (a[..., self.open] for a in self.start)

    def _fit(self, fits: np.ndarray) -> None:
        for neuron in fits:
            outcome = self._finish_exactly(int(neuron), most_steps=self.options.max_epochs, near=False)
            self.epochs[neuron] = outcome.n_steps
            if not np.isfinite(outcome.objective):
                self.status[neuron] = Status.NON_FINITE
            elif self.status[neuron] == Status.PRECISION_FLOOR and not outcome.is_stuck:
                self.status[neuron] = Status.MAX_EPOCHS
            self.open[neuron] = self.status[neuron] == Status.MAX_EPOCHS
            self._tell(int(self.epochs.max()), f"worst gap {np.nanmax(self.gap):.1e}", self.params)
            self.notebook.note(self)
        self._note(int(self.epochs.max()))
