"""Incremental majorization of softmax models: every row has a quadratic bound, replaced when the row is visited."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from .._checks import check_choice, check_share, check_whole
from ..bounds import LOG_PARTITION_THEOREM, ORDERS, check_batch_size
from ..engine.class_descent import ClassDescent
from ..problems._chunks import a_twentieth
from ..problems.base import Params
from ..solvers._result import LoopOptions, Solution
from ..solvers._seed import seed_of
from .bound_majorization import majorize
from .surrogates import SurrogateSum

_THEOREM = f"{LOG_PARTITION_THEOREM}, minimised incrementally (docs/theory/bound_majorization.md, Proposition 4)"
_ASSUMPTIONS = (
    "F is at most the sum of the rows' bounds, which never goes up: a bound gives way only to one that is not higher "
    "at the parameters (checked row by row), and every step lowers the sum",
)


@dataclass(frozen=True)
class IncrementalMajorization:
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
    matrices of P^2, and 2 numbers per row and class. With many parameters ConjugateGradients, which forms no such
    matrix, is faster. Features whose scales differ by more than a factor of 1e6 are to be scaled first: directions with
    less than 1e-14 of the largest curvature count as flat.

    References
    ----------
    Jebara and Choromanska (2012), for the bound; Mairal (2015), Incremental majorization-minimization optimization.
    """

    batch_size: int | None = None
    order: str = "descending"
    lead: float = 0.8
    check_every: int = 3
    on_host: ClassVar[bool] = True

    def __post_init__(self):
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size, 1)
        check_choice("order", self.order, ORDERS)
        check_share("lead", self.lead)
        check_whole("check_every", self.check_every, 1)

    def run(self, problem, params: Params | None = None, *, key=None, options: LoopOptions | None = None) -> Solution:
        """Fit a softmax problem until it is converged or the budget is spent; see :class:`LoopOptions`."""
        batch_size = a_twentieth(problem.n_rows) if self.batch_size is None else self.batch_size
        check_batch_size(batch_size, problem.n_rows)
        descent = partial(_Visits, method=replace(self, batch_size=batch_size), seed=0 if key is None else seed_of(key))
        descent = partial(descent, rows_of=SurrogateSum(problem))
        # In the metric of the sum no row's bound, of curvature N times its own, exceeds N.
        certified = {"L_max": np.full(1, problem.n_rows), "theorem": _THEOREM, "assumptions": _ASSUMPTIONS}
        return majorize(self, problem, params, options, descent, batch_size=batch_size, **certified)


class _Visits(ClassDescent):
    """Where a softmax model is whose rows are visited a block at a time; see :class:`ClassDescent`.

    Attributes
    ----------
    at : Surrogates
        Parameters, and the rows' bounds.
    """

    def __init__(self, *where, method: IncrementalMajorization, seed: int, rows_of: SurrogateSum):
        super().__init__(*where)
        self._method, self._seed, self._sum = method, seed, rows_of
        start = Params(self.coef, self.intercept - self.rows.mean @ self.coef)
        self.at = rows_of.start(start, method.order)
        self.hessian_cost = np.full_like(self.hessian_cost, np.inf)

    def step(self, moving: np.ndarray) -> None:
        """Visit every row once."""
        epoch = int(self.n_steps[0]) + 1
        # All bounds are new at the start: the first time there is nothing to replace.
        rows = np.random.default_rng([self._seed, epoch]).permutation(self.rows.n_rows if epoch > 1 else 0)
        blocks = np.array_split(rows, max(1, -(-len(rows) // self._method.batch_size)))
        before = self.at
        self.at = self._sum.visit(before, blocks, self._method.order, min(self._method.lead, epoch / (epoch + 4)))
        params = self._sum.to_params(self.at.theta)
        self.coef, self.intercept = params.coef, params.intercept + self.rows.mean @ params.coef
        self.rows.passes += self.at.passes - before.passes
        self.gained, self.n_steps, self.stale = self._null_objective - self.at.bound, self.n_steps + 1, True
        if epoch % self._method.check_every == 0:
            self.refresh()

    def refresh(self) -> None:
        """Evaluate F and its gradient: one pass."""
        super().refresh()
        self._renew_shared()
        self.stale = False
