"""SAGA for generalised linear models: one scalar per row and neuron stores the last gradient.

SAGA takes the steps; proofs, verdicts and exact final steps are the engine's. Algorithm, unbiasedness, sampling and the
anchored certificate: docs/theory/saga.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import numpy as np

from ..bounds import PARTITION_THEOREM, SUBSET_THEOREM, StepCertificate
from ..checks import check_choice, check_positive, check_real, check_whole
from ..engine.cg import Descent
from ..engine.host import HostRows
from ..engine.loop import Run
from ..engine.metric import SharedMetric
from ..engine.problem import Params
from ..engine.proximal import select
from ..engine.result import LoopOptions, Solution
from ..numerics import seed_of
from .spectral_rows import Metric
from .walk import SAMPLINGS, SpectralView, Walk


@dataclass(frozen=True)
class SAGA:
    r"""SAGA with certified steps in the spectral basis.

    Parameters
    ----------
    batch_size : int, optional
        Rows per step; default 1/50 of the recording, 256 to 4096. Blocks have equal size: T rows are taken
        ``ceil(T / ceil(T / batch_size))`` at a time, never more than ``batch_size`` (50 for T = 100 and 60). Steps
        and the certificate are for the size used, which the certificate reports.
    sampling : {"partition", "subsets", "shuffle"}
        Blocks of a fixed random partition drawn independently (theorem, contiguous memory); uniform subsets of
        rows (theorem, gathers: about twice the time per pass); each block once per epoch in random order
        (no theorem at this step, labelled as such).
    certificate : {"anchored", "global"}
        Whether smoothness is bounded while eta stays near its current value, re-certified as the fit
        moves, or everywhere. The exp link has no global bound.
    radius : float
        Change of eta that the anchored certificate allows at first.
    step_scale : float
        Multiplies the certified step; above 1 the step is guarded but not certified. At most 2.
    step_limit : float
        Longest step; steps shorter than the theorem allows stay certified.
    failure_probability : float
        Probability, over the population, that some smoothness bound is below the truth.
    lanczos_steps, check_every, warmup : int
        Matrix products per certificate, epochs between checks, maximum conjugate gradient steps before the first
        certificate (they end when eta moves by less than a quarter of ``radius`` in a step; penalties with kinks have
        none).

    References
    ----------
    Defazio, Bach, Lacoste-Julien (2014), SAGA. Gazagnadou, Gower, Salmon (2019), Optimal mini-batch and step
    sizes for SAGA.
    """

    batch_size: int | None = None
    sampling: str = "partition"
    certificate: str = "anchored"
    radius: float = 0.5
    step_scale: float = 1.0
    step_limit: float = float("inf")
    failure_probability: float = 1e-3
    lanczos_steps: int = 10
    check_every: int = 3
    warmup: int = 10
    on_host: ClassVar[bool] = False

    def __post_init__(self):
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_choice("certificate", self.certificate, ("anchored", "global"))
        check_positive("radius", self.radius)
        check_real("step_scale", self.step_scale, 2.0, closed=True)
        check_real("step_limit", self.step_limit, float("inf"), closed=True)
        check_real("failure_probability", self.failure_probability, 1.0)
        for name, least in {"batch_size": 1, "lanczos_steps": 1, "check_every": 1, "warmup": 0}.items():
            if name != "batch_size" or self.batch_size is not None:
                check_whole(name, getattr(self, name), least)

    def run(
        self, problem, params: Params | None = None, *, key: jax.Array, options: LoopOptions | None = None
    ) -> Solution:
        """Fit until every neuron is converged or the budget is spent; see :class:`LoopOptions`.

        Raises
        ------
        ValueError
            If rows are not in memory, there are several devices, or a constant has no bound.
        """
        if not problem.in_memory:
            raise ValueError('SAGA needs rows in memory. Use solver_name="auto", which streams them.')
        if len(problem.devices) > 1:
            raise ValueError(
                f"SAGA runs on one device; devices names {len(problem.devices)}. Omit devices, or use "
                'solver_name="auto", which distributes the rows.'
            )
        if self.certificate == "global" and np.isinf(problem.observation.curvature_bound(1.0)):
            raise ValueError(
                f"the {problem.observation.name} link has no global bound on its curvature: a global certificate is "
                'impossible. Use certificate="anchored".'
            )
        walks: list[Walk] = []
        seed, options = seed_of(key), replace(options or LoopOptions(), max_memory=np.inf)  # one walk for all fits

        def begin(rows, metric, ridge, at, fits):
            descent = SagaDescent(self, problem, seed, fits, rows, metric, ridge, at)
            walks.append(descent.walk)
            return descent

        run = Run(problem, options, seed, params, begin=begin)
        solution = run.run()
        return replace(
            solution,
            step_certificate=self._step_certificate(walks[0]) if walks else None,
            solver_name="SAGA" + "+Newton" * run.exact,
        )

    def _step_certificate(self, walk: Walk) -> StepCertificate:
        """Return steps in use, their constants and the theorem that allows them."""
        theorem = {
            "partition": PARTITION_THEOREM,
            "subsets": SUBSET_THEOREM,
            "shuffle": "no theorem: blocks in random order without replacement, at the step of partition sampling",
        }[self.sampling]
        assumptions = ["loss of every neuron convex, smoothness bounded in the metric of the spectral basis"]
        if self.certificate == "anchored":
            assumptions.append(
                "linear predictors stay within radius of their values where the step was certified; tested at "
                f"each check (check_every = {self.check_every}). Neurons that left and were certified again: "
                f"{int(np.sum(walk.left > 0))}"
            )
        if self.step_scale > 1:
            theorem = f"no theorem: {self.step_scale:g} times the step of {theorem}"
        return StepCertificate(
            step=walk.step, L=walk.L, L_max=walk.L_max, L_b=walk.L_b, mu=np.zeros_like(walk.step),
            batch_size=walk.rows.batch_size, n_rows=walk.rows.n_rows, theorem=theorem, assumptions=tuple(assumptions),
            failure_probability=self.failure_probability, anchor_radius=walk.radius,
            certified=self.sampling != "shuffle" and self.step_scale <= 1,
        )  # fmt: skip


class SagaDescent(Descent):
    """Fits that run some epochs of SAGA at a time, all groups on one walk of all neurons: kernels compile once."""

    of_fits = (*Descent.of_fits, "index", "_null")
    begins_light = False

    def __init__(self, solver: SAGA, problem, seed: int, fits, rows, metric: SharedMetric, ridge, at):
        self.penalty = select(problem.penalty, fits)
        self.walk: Walk | None = None
        self.kinks = not self.penalty.smooth
        super().__init__(rows, metric, ridge, at)
        for _ in range(solver.warmup if not self.kinks else 0):
            before = rows.eta.copy()
            super().advance(np.ones(len(fits), bool))
            if not (np.abs(rows.eta - before).max(axis=0) > solver.radius / 4).any():
                break
        self.n_steps[:] = 0
        self.hessian_cost = np.full(len(fits), np.inf)  # no metric makes these steps longer
        view = SpectralView.of(problem)
        start = problem.null_params()
        start.coef[:, fits], start.intercept[fits] = self.coef, self.intercept - rows.mean @ self.coef
        self.walk, self.index, self._null = Walk(solver, view, start, seed), fits, problem.null_objective[fits]
        bend = self.walk.curvature[fits]
        self.shared = SharedMetric(view.basis, np.where(bend > 0, bend, metric.curvature), metric.ridge)
        self._read()

    def judge(self) -> None:
        """Measure how far the gradient, or the smallest subgradient, is from 0."""
        g = self.gradient
        if self.kinks:
            residual = np.asarray(self.penalty.subgradient_residual(self.coef, g[:-1]), np.float64)
            g = np.vstack([residual, g[-1]])
        self.towards = self.precondition(g)
        self.squared_norm = self.inner(g, self.towards)

    def precondition(self, g: np.ndarray) -> np.ndarray:
        """Apply the metric of the walk, in which every fit has its own centre."""
        if self.walk is None:
            return super().precondition(g)
        whiten = self.shared.basis.whiten
        metric = Metric(*(np.asarray(part, np.float64)[:, self.index] for part in self.walk.metric))
        x = metric.apply(np.vstack([whiten.T @ g[:-1], g[-1]]))
        return np.vstack([whiten @ x[:-1], x[-1]])

    def advance(self, moving: np.ndarray, goal: np.ndarray, most_steps: int) -> None:
        """Run the epochs between two checks, at most as many as remain."""
        active = np.zeros(self.walk.view.n_neurons, bool)
        active[self.index] = moving
        n_epochs = int(np.clip(most_steps - self.n_steps[moving].max(), 1, self.walk.solver.check_every))
        self.walk.visit(active, n_epochs)
        self.n_steps = self.n_steps + n_epochs * moving
        self.rows.passes += (n_epochs + 2) * moving.mean()
        self._read()
        self.trace.append(self.estimate)

    def _read(self) -> None:
        """Copy the position of the walk: parameters and gradient for centred features."""
        walk, basis, at = self.walk, self.walk.view.basis, self.index
        params, g = walk.params, walk.gradient[:, at]
        coef = params.coef[:, at]
        self.at = np.vstack([coef, params.intercept[at] + self.rows.mean @ coef])
        self.gained = self._null - walk.objective[at]
        away = np.outer(basis.mean - self.rows.mean, g[-1])  # what is taken off the features is rounded as they are
        self.arrive(np.vstack([basis.unwhiten.T @ g[:-1] + away, g[-1]]))

    def renew_metrics(self, fits: np.ndarray, scale: np.ndarray, kin: np.ndarray | None = None) -> None:
        """Keep the shared metric, which serves only for estimates."""

    def _part(self, index: np.ndarray, rows: HostRows) -> SagaDescent:
        """Return some of the fits as a descent of their own on the same walk."""
        part = super()._part(index, rows)
        part.penalty = select(self.penalty, index)
        return part
