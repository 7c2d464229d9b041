"""Incremental majorization of softmax models: every row has a quadratic bound, replaced when the row is visited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .._checks import check_choice, check_share, check_whole
from ..bounds import LOG_PARTITION_THEOREM, ORDERS, GapCertificate, StepCertificate, check_batch_size
from ..problems.base import Params, SumOfSurrogates
from ..solvers._seed import seed_of
from ..solvers.base import OptStep, Solver

_THEOREM = f"{LOG_PARTITION_THEOREM}, minimised incrementally (docs/theory/bound_majorization.md, Proposition 4)"
_ASSUMPTIONS = (
    "F is at most the sum of the rows' bounds, which never goes up: a bound gives way only to one that is not higher "
    "at the parameters (checked row by row), and every step lowers the sum",
)


class IncrementalMajorizationState(NamedTuple):
    """Everything a resumed fit needs."""

    epoch: int
    row_evals: int
    seed: int
    surrogates: Any  # the problem's
    objective: np.ndarray
    estimate: np.ndarray
    active: np.ndarray
    fresh: bool
    batch_size: int
    n_rows: int


@dataclass(frozen=True)
class IncrementalMajorization(Solver):
    r"""Bound majorization of softmax models, row by row: no step size, and what is minimised never goes up.

    Parameters
    ----------
    batch_size : int, optional
        Rows per visit; chosen by default (1/20 of them, 32 to 4096). All rows at once is batch majorization.
    order : {"descending", "given", "ascending", "averaged"}
        In which a bound takes in the classes: see `glmfit.bounds.softmax_bound`.
    lead : float
        In [0, 1): how far beyond the scores of a visited row its new bound may touch, as a share of the way they have
        come since its last visit. It grows to this value over the passes. 0 is the plain method.
    check_every : int
        Epochs between evaluations of F, a pass each.

    Notes
    -----
    Guarantee: F is at most the sum of the rows' bounds, which no visit raises, from any start and with nothing to tune.
    An epoch visits every row once, in random order; the first one moves to the minimiser of the bounds formed at the
    start, and forming those was its pass.

    Runs on the host (BLAS) in float64, on dense and sparse features; compiles nothing. With
    P = (features + 1) (classes - 1) at most 5000 parameters, cost per epoch: N P^2 flops and P^3 / 3. Memory: some
    matrices of P^2, and 2 numbers per row and class. With many parameters NewtonCG, which forms no such matrix, is
    faster. Features whose scales differ by more than a factor of 1e6 are to be scaled first: directions with less than
    1e-14 of the largest curvature count as flat.

    References
    ----------
    Jebara and Choromanska (2012), for the bound; Mairal (2015), Incremental majorization-minimization optimization.
    """

    finish_with_newton: ClassVar[bool] = False

    batch_size: int | None = None
    order: str = "descending"
    lead: float = 0.8
    check_every: int = 3

    def __post_init__(self):
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size, 1)
        check_choice("order", self.order, ORDERS)
        check_share("lead", self.lead)
        check_whole("check_every", self.check_every, 1)

    def init_state(self, problem: SumOfSurrogates, params: Params, *, key) -> OptStep:
        """Bound every row at the start."""
        batch_size = problem.default_batch_size if self.batch_size is None else self.batch_size
        check_batch_size(batch_size, problem.n_rows)
        surrogates = problem.start_surrogates(params, self.order)
        state = IncrementalMajorizationState(
            epoch=0,
            row_evals=0,
            seed=seed_of(key),
            surrogates=surrogates,
            objective=np.zeros(1),
            estimate=np.zeros(1),
            active=np.ones(1, bool),
            fresh=True,
            batch_size=batch_size,
            n_rows=problem.n_rows,
        )
        return OptStep(surrogates.v, _seen(surrogates, state))

    def update(self, problem: SumOfSurrogates, params, state: IncrementalMajorizationState) -> OptStep:
        """Visit every row once."""
        epoch = state.epoch + 1
        # All bounds are new at the start: the first time there is nothing to replace.
        rows = np.random.default_rng([state.seed, epoch]).permutation(problem.n_rows if epoch > 1 else 0)
        blocks = np.array_split(rows, max(1, -(-len(rows) // state.batch_size)))
        lead = min(self.lead, epoch / (epoch + 4))
        surrogates = problem.visit_rows(state.surrogates, blocks, self.order, lead)
        evals = surrogates.passes * problem.n_rows
        state = state._replace(epoch=epoch, row_evals=evals, surrogates=surrogates, fresh=False)
        step = OptStep(surrogates.v, state)
        return step if epoch % self.check_every else self.refresh(problem, *step)

    def refresh(self, problem: SumOfSurrogates, params, state: IncrementalMajorizationState) -> OptStep:
        """Evaluate F."""
        return OptStep(params, _seen(problem.look_at_surrogates(state.surrogates), state))

    def user_params(self, problem: SumOfSurrogates, params, state: IncrementalMajorizationState) -> Params:
        """Coefficients (feature, class) and intercepts (class,)."""
        return problem.user_params(params)

    def certify_gap(
        self, problem: SumOfSurrogates, params, state: IncrementalMajorizationState, attempt: int = 1
    ) -> GapCertificate:
        """Ask the problem for its bound at the parameters that would be returned."""
        return problem.certify_gap(problem.user_params(params))

    def certify_step(self, state: IncrementalMajorizationState) -> StepCertificate:
        """Step 1 in the metric of the sum of the bounds, in which no row, of curvature N times its own, exceeds N."""
        one = np.ones(1)
        return StepCertificate(
            step=one,
            L=one,
            L_max=state.n_rows * one,
            L_b=one,
            mu=0 * one,
            batch_size=state.batch_size,
            n_rows=state.n_rows,
            theorem=_THEOREM,
            assumptions=_ASSUMPTIONS,
            failure_probability=0.0,
            anchor_radius=np.inf * one,
        )


def _seen(surrogates, state: IncrementalMajorizationState) -> IncrementalMajorizationState:
    """State after a look."""
    return state._replace(
        surrogates=surrogates,
        row_evals=surrogates.passes * state.n_rows,
        objective=np.array([surrogates.objective]),
        estimate=np.array([surrogates.estimate]),
        fresh=True,
    )
