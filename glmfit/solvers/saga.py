"""SAGA for generalised linear models: one scalar per row and neuron remembers the last gradient seen.

Algorithm, unbiasedness, sampling and the anchored certificate: docs/theory/saga.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from .._checks import check_choice, check_positive, check_real, check_whole
from ..bounds import (
    PARTITION_THEOREM,
    SUBSET_THEOREM,
    StepCertificate,
    batch_smoothness,
    check_batch_size,
    partition_step,
    subset_step,
)
from ..problems._metric import Metric
from ..problems._rows import AdmmState
from ..problems.base import FiniteSum, Params
from ._epoch import saga_epoch
from ._sampling import SAMPLINGS, epoch_order
from ._seed import seed_of
from .base import OptStep, Solver
from .checkpoint import from_arrays, to_arrays

_COUNTS = ("epoch", "row_evals", "seed", "n_certificates", "n_rows")


class SagaState(NamedTuple):
    """Everything a resumed fit needs; arrays of the device and of the host."""

    epoch: int
    row_evals: int
    seed: int
    table: jax.Array  # (block, row, neuron) weighted derivative at the last visit
    mean_gradient: jax.Array  # (column, neuron) of the table
    memory: Any  # warm start of the proximal step
    anchor: jax.Array  # (column, neuron) where the step was certified
    metric: Any  # what steps, constants and gaps are measured in
    radius: np.ndarray  # (neuron,) change of eta the certificate allows
    step: np.ndarray  # (neuron,)
    L: np.ndarray
    L_max: np.ndarray
    L_b: np.ndarray
    checked: Any  # (columns, memory) at the last check
    objective: np.ndarray  # (neuron,) at the last check
    estimate: np.ndarray  # (neuron,) gap estimate at the last check
    kappa: np.ndarray  # (neuron,) estimate of strong convexity in the metric
    active: np.ndarray  # (neuron,) columns still moving
    left: np.ndarray  # (neuron,) times eta was found outside of the certified set
    n_certificates: int  # of smoothness, so far
    n_rows: int
    fresh: bool  # whether the last check belongs to the present columns


@dataclass(frozen=True)
class SAGA(Solver):
    r"""SAGA with certified steps in the spectral basis.

    Parameters
    ----------
    batch_size : int, optional
        Rows per step; chosen by default (1/50 of the recording, 256 to 4096).
    sampling : {"partition", "subsets", "shuffle"}
        Blocks of a fixed random partition drawn independently (theorem, contiguous memory); uniform subsets of
        rows (theorem, gathers: about twice the time per pass); each block once per epoch in random order
        (no theorem at this step, labelled so).
    certificate : {"anchored", "global"}
        Whether smoothness is bounded where eta stays near its present value, re-certified as the fit
        moves, or everywhere. The exp link has no global bound.
    radius : float
        Change of eta the anchored certificate allows at first.
    step_scale : float
        Multiplies the certified step; above 1 the step is guarded but not certified. At most 2.
    step_limit : float
        No step is longer; one shorter than the theorem allows is as certified.
    failure_probability : float
        Over the population, that some smoothness bound is below the truth.
    lanczos_steps, check_every, warmup : int
        Matrix products per certificate, epochs between checks, most guaranteed-descent steps before the first
        certificate (they end when eta moves by less than ``radius`` in a step).

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

    # ------------------------------------------------------------------------------------- contract

    def init_state(self, problem: FiniteSum, params: Params, *, key) -> OptStep:
        """Lay the rows out, take the guaranteed-descent steps, certify the first step size."""
        seed = seed_of(key)
        rows = self._rows(problem, seed)
        n = problem.n_neurons
        v = problem.to_columns(params)
        memory = rows.start_memory(v)
        v, memory, pass_, metric, n_steps = problem.descend_surely(rows, v, memory, self.radius / 4, self.warmup)
        zeros = np.zeros(n)
        state = SagaState(
            epoch=0,
            row_evals=(2 * n_steps + 1) * problem.n_rows,
            seed=seed,
            table=pass_.table,
            mean_gradient=pass_.gradient,
            memory=memory,
            anchor=v,
            metric=metric,
            radius=np.full(n, self.radius if self.certificate == "anchored" else np.inf),
            step=zeros,
            L=zeros,
            L_max=zeros,
            L_b=zeros,
            checked=jax.tree.map(np.array, (v, memory)),
            objective=problem.objective(v, memory, pass_),
            estimate=np.full(n, np.nan),
            kappa=zeros,
            active=np.ones(n, bool),
            left=np.zeros(n, int),
            n_certificates=0,
            n_rows=problem.n_rows,
            fresh=True,
        )
        state = self._anchor(problem, rows, v, state, np.ones(n, bool))
        estimate = problem.estimate_gap(v, memory, pass_, state.metric, state.kappa)
        return OptStep(v, state._replace(estimate=estimate))

    def update(self, problem: FiniteSum, params, state: SagaState) -> OptStep:
        """Visit about every row once; every ``check_every`` epochs also check the certificate's set."""
        rows = self._rows(problem, state.seed)
        order = epoch_order(self.sampling, state.seed, state.epoch, rows.n_blocks, rows.batch_size, problem.n_rows)
        step = np.where(state.active, state.step, 0.0).astype(problem.dtype)
        v, table, mean_gradient, memory = saga_epoch(
            rows, params, state.table, state.mean_gradient, state.memory, state.metric, step,
            order, subsets=self.sampling == "subsets",
        )  # fmt: skip
        state = state._replace(
            epoch=state.epoch + 1,
            row_evals=state.row_evals + problem.n_rows,
            table=table,
            mean_gradient=mean_gradient,
            memory=memory,
            fresh=False,
        )
        if state.epoch % self.check_every == 0:
            return self._check(problem, rows, v, state)
        return OptStep(v, state)

    def refresh(self, problem: FiniteSum, params, state: SagaState) -> OptStep:
        """Bring objective and gap estimate up to date."""
        return (
            OptStep(params, state)
            if state.fresh
            else self._check(problem, self._rows(problem, state.seed), params, state)
        )

    def user_params(self, problem: FiniteSum, params, state: SagaState) -> Params:
        """Coefficients and intercepts in float64."""
        return problem.from_columns(params, state.memory)

    def certify_gap(self, problem: FiniteSum, params, state: SagaState, attempt: int = 1):
        """Ask for the population form of the gap certificate, at the parameters that would be returned."""
        return problem.certify_gap(
            self.user_params(problem, params, state),
            rows=self._rows(problem, state.seed),
            metric=state.metric,
            failure_probability=self.failure_probability / (attempt * (attempt + 1)),
            seed=state.seed,
            number=2 * attempt + 1,
            thorough=attempt > 1,
        )

    def pack(self, params, state: SagaState) -> dict[str, np.ndarray]:
        """Columns and state but for the table, which right after a check is what a pass at the columns gives."""
        if not state.fresh:
            raise ValueError("only a fresh state is worth keeping: its table can be computed again from the columns.")
        return to_arrays((params, state._replace(table=None)))

    def unpack(self, problem: FiniteSum, arrays: dict[str, np.ndarray]) -> OptStep:
        """Restore a packed step; one pass over the rows for the table."""
        array = np.zeros(0)  # of the state only the structure is asked for
        memory = None if problem.penalty.rotation_invariant else AdmmState(array, array)
        fields = dict.fromkeys(SagaState._fields, array) | dict.fromkeys(_COUNTS, 0)
        fields |= {
            "memory": memory,
            "metric": Metric(array, array),
            "checked": (array, memory),
            "table": None,
            "fresh": True,
        }
        params, state = from_arrays(arrays, (array, SagaState(**fields)))
        table = problem.sweep(self._rows(problem, state.seed), params).table
        return OptStep(params, state._replace(table=table))

    # ------------------------------------------------------------------------------------- pieces

    def _rows(self, problem, seed):
        return problem.rows(self._batch_size(problem), seed)

    def _batch_size(self, problem) -> int:
        size = self.batch_size or problem.default_batch_size
        check_batch_size(size, problem.n_rows)
        return size

    def _check(self, problem, rows, v, state: SagaState) -> OptStep:
        """Refresh the table, see which neurons left their set, undo what went wrong, certify anew."""
        memory = state.memory
        pass_, moved = problem.sweep(rows, v), problem.move(rows, v, state.anchor)
        objective = problem.objective(v, memory, pass_)
        evals = 2 * problem.n_rows
        slack = 8 * np.finfo(problem.dtype).eps * np.abs(state.objective)
        outside = ~(moved <= state.radius)
        undo = state.active & (~np.isfinite(objective) | (outside & (objective > state.objective + slack)))
        radius = np.where(undo, 1.5 * state.radius, state.radius)
        if undo.any():
            v, memory = jax.tree.map(lambda new, old: np.where(undo, old, new), (v, memory), state.checked)
            pass_ = problem.sweep(rows, v)
            objective = problem.objective(v, memory, pass_)
            evals += problem.n_rows
        state = state._replace(
            row_evals=state.row_evals + evals,
            table=pass_.table,
            mean_gradient=pass_.gradient,
            memory=memory,
            radius=radius,
            left=state.left + (outside & state.active),
            objective=objective,
            checked=jax.tree.map(np.array, (v, memory)),
            fresh=True,
        )
        renew = state.active & (outside | undo) & np.isfinite(state.radius)
        if renew.any():
            state = self._anchor(problem, rows, v, state, renew)
        estimate = problem.estimate_gap(v, memory, pass_, state.metric, state.kappa)
        return OptStep(v, state._replace(estimate=estimate))

    def _anchor(self, problem, rows, v, state: SagaState, renew) -> SagaState:
        """Certify smoothness around v for the neurons to renew."""
        number = state.n_certificates + 1
        share = self.failure_probability / (number * (number + 1))  # adds up to the whole over all certificates
        fresh = problem.certify_smoothness(
            rows, v, state.radius, self.lanczos_steps, share, state.seed, 2 * number, state.metric
        )
        if self.sampling == "subsets":
            L_b = batch_smoothness(fresh.full, fresh.row, problem.n_rows, rows.batch_size)
            step = subset_step(L_b, fresh.row, 0.0, problem.n_rows, rows.batch_size)
        else:
            L_b = fresh.block
            step = partition_step(L_b, 0.0, problem.n_rows, rows.batch_size)

        def merge(new, old):
            return np.where(renew, new, old)

        return state._replace(
            row_evals=state.row_evals + (self.lanczos_steps + 1) * problem.n_rows,
            anchor=merge(v, state.anchor),
            step=merge(np.minimum(self.step_scale * step, self.step_limit), state.step),
            L=merge(fresh.full, state.L),
            L_max=merge(fresh.row, state.L_max),
            L_b=merge(L_b, state.L_b),
            kappa=merge(fresh.kappa, state.kappa),
            n_certificates=number,
        )

    def certify_step(self, state: SagaState) -> StepCertificate:
        """Return the step in use, its constants and the theorem that allows it."""
        n_rows, batch = state.n_rows, state.table.shape[1]
        theorem = {
            "partition": PARTITION_THEOREM,
            "subsets": SUBSET_THEOREM,
            "shuffle": "no theorem: blocks in random order without replacement, at the step of partition sampling",
        }[self.sampling]
        assumptions = ["loss of every neuron convex, smoothness bounded in the metric of the spectral basis"]
        if self.certificate == "anchored":
            assumptions.append(
                "linear predictors stay within radius of their values where the step was certified; looked at "
                f"each check (check_every = {self.check_every}). Neurons that left and were certified anew: "
                f"{int(np.sum(state.left > 0))}"
            )
        if self.step_scale > 1:
            theorem = f"no theorem: {self.step_scale:g} times the step of {theorem}"
        return StepCertificate(
            step=state.step,
            L=state.L,
            L_max=state.L_max,
            L_b=state.L_b,
            mu=np.zeros_like(state.step),
            batch_size=batch,
            n_rows=n_rows,
            theorem=theorem,
            assumptions=tuple(assumptions),
            failure_probability=self.failure_probability,
            anchor_radius=state.radius,
            certified=self.sampling != "shuffle" and self.step_scale <= 1,
        )
