"""The solvers of the engine: all neurons at once, or by Newton's method one by one, each step on all rows."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..numerics import seed_of
from ..status import Status
from .classes.run import ClassRun
from .loop import Run
from .problem import Params
from .result import LoopOptions, Solution


@dataclass(frozen=True)
class ConjugateGradients:
    """Conjugate gradients of all neurons at once, in a metric that they share or in one of a neuron's own.

    Parameters
    ----------
    curved : numpy.ndarray, optional
        Fits that the shared metric is known not to serve, bool (fit,): those begin with one of their own.

    Notes
    -----
    Runs on the host: BLAS for the two products of a step, one compiled program for the loss, whatever the shapes. Or on
    devices that the problem names, or a GPU: there ten steps are one program, compiled for the shapes. The shared
    metric is the spectral basis of the features times the mean curvature of each neuron; a neuron that it does not
    serve gets its Hessian. Directions remember eight steps on the host (BFGS with a limited memory, conjugate on a
    quadratic; Nocedal 1980), one on devices. Steps are Newton's along the direction, corrected by the slope at their
    end, at the least as long as self-concordance proves to descend. Bounds rest on a float64 gradient, some products
    and the ridge; where that is too little, on Lanczos steps with a tenth of the rows, or on the neuron's exact
    Hessian. Cost: T d^2 once, then two products of T d N a step.
    """

    curved: np.ndarray | None = field(default=None, repr=False, compare=False, kw_only=True)
    on_host: ClassVar[bool] = True
    smooth: ClassVar[bool] = True

    def run(self, problem, params: Params | None = None, *, key=None, options: LoopOptions | None = None) -> Solution:
        """Fit until every neuron is converged or the budget is spent; see :class:`LoopOptions`.

        Raises
        ------
        ValueError
            For a penalty that the other solver of the engine is for.
        """
        if problem.penalty.smooth != self.smooth:
            kinds = (
                "a penalty with kinks (Lasso, ElasticNet or GroupLasso)",
                "a smooth penalty (UnRegularized or Ridge)",
            )
            other = ("ConjugateGradients", "ProximalNewton")[self.smooth]
            raise ValueError(
                f"{type(self).__name__} needs {kinds[self.smooth]}; this problem has {problem.penalty.name}. "
                f'Use solver_name="auto" or "{other}".'
            )
        seed, options = 0 if key is None else seed_of(key), options or LoopOptions()
        if hasattr(problem, "n_classes"):
            return ClassRun(problem, options, seed, params).run()
        return Run(problem, options, seed, params, self.curved).run()


@dataclass(frozen=True)
class ProximalNewton(ConjugateGradients):
    """Proximal Newton steps of all neurons at once, for penalties with kinks: lasso, elastic net, group lasso.

    Notes
    -----
    The quadratic model of each neuron, that of the spectral basis or its own Hessian, corrected by its last steps
    (BFGS), is minimised with the penalty whole on the host. Bounds of the gap are by duality, from one pass in float64.
    The rest is as for :class:`ConjugateGradients`.
    """

    smooth: ClassVar[bool] = False


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
            elif self.status[neuron] == Status.PRECISION_FLOOR and not outcome.stuck:
                self.status[neuron] = Status.MAX_EPOCHS
            self.open[neuron] = self.status[neuron] == Status.MAX_EPOCHS
            here = Params(*(a.copy() for a in self.params))
            self._tell(int(self.epochs.max()), f"worst gap {np.nanmax(self.gap):.1e}", here)
            self.notebook.note(self)
        self._note(int(self.epochs.max()))
