r"""Majorization of softmax models: descend a quadratic that touches the objective from above, then the next one.

The bound of a row's log-sum-exp has curvature C (x) xx'. `BoundMajorization` updates the bounds of all rows at once,
`IncrementalMajorization` those of the rows it visits. Derivation: docs/theory/bound_majorization.md.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from ..bounds import LOG_PARTITION_THEOREM, ORDERS, StepCertificate, check_batch_size, softmax_bound
from ..checks import check_choice, check_flag, check_real, check_share, check_whole
from ..engine.classes.descent import ClassDescent
from ..engine.classes.run import ClassRun
from ..engine.exact.quadratic import minimise
from ..engine.problem import Params
from ..engine.result import LoopOptions, Solution
from ..engine.tiles import a_twentieth
from ..numerics import seed_of
from ..threads import small_blas
from .contrast_rows import SurrogateSum
from .log_linear import BoundDescent, LogLinear

_LEFT = 0.5  # of the gradient's norm: the next bound is more useful than the minimum of this one
_NOTHING, _PATIENCE = 1e-13, 20  # the same for exact steps; maximum products per parameter
_COUPLED_CLASSES = 512  # classes up to which the preconditioner couples them
_SAMPLED_ROWS, _SAMPLED = 512, 2e7  # rows for the preconditioner, and numbers in their matrices
_AT_ONCE = 2e6
_FLOOR = 1e-10  # of the largest curvature across classes
_PATIENT, _STOPPED = 4, 1e-14  # passes in which a sum of bounds falls by no more than this share: rounding


@dataclass(frozen=True)
class BoundMajorization:
    r"""Monotone second-order steps: to or near the minimum of a quadratic bound, then of the next one.

    Parameters
    ----------
    relaxation : float
        Step length in (0, 2), in units of the step to the bound's minimum. Every value lowers the objective in every
        step. 1.9 is best if the bound is far above the objective (certain rows, weak ridges), and close to the worst
        otherwise; 1.5 is never far from the best.
    order : {"descending", "given", "ascending", "averaged"}
        Order in which the bound adds classes. "descending" (by score) usually needs no more steps than "given";
        "averaged" needs as few, each with twice the work.
    max_products : int
        Maximum number of products with the bound's curvature per step, unless steps are exact.
    exact : bool
        Whether every step uses the minimum of its bound, up to rounding: equation (2) of Choromanska and Jebara. By
        default it stops when half of the gradient's norm is left, which takes more steps and less work.

    Notes
    -----
    Guarantee: the objective never rises, for any start and data: no line search, no step to tune. Linear
    convergence: a step shrinks the gap by a factor that depends on how far the bound lies above the Hessian.

    Host, float64; nothing is compiled. The bound of a softmax model (Jebara and Choromanska) is minimised by
    preconditioned conjugate gradients, each of whose iterates lowers it. An epoch is one step: half a pass, and one per
    product. Log-linear models with features of any kind (`glmfit.stochastic.LogLinearProblem`, `LabelChains`) form the
    bound's matrix, and all their steps are exact; the options ``checkpoint`` and ``max_memory`` do not apply to them.
    Theory and sources: docs/theory/bound_majorization.md, Propositions 1 to 3, 6 and 7.
    """

    relaxation: float = 1.5
    order: str = "descending"
    max_products: int = 20
    exact: bool = False
    on_host: ClassVar[bool] = True

    def __post_init__(self):
        check_real("relaxation", self.relaxation, 2.0)
        check_choice("order", self.order, ORDERS)
        check_whole("max_products", self.max_products, 1)
        check_flag("exact", self.exact)

    def run(self, problem, params: Params | None = None, *, key=None, options: LoopOptions | None = None) -> Solution:
        """Fit a softmax or log-linear problem until it is converged or the budget is spent; see :class:`LoopOptions`.

        ``params`` is the start. For a log-linear problem, start and solution are a vector, (parameter,).
        """
        options = options or LoopOptions()
        if isinstance(problem, LogLinear):
            found = BoundDescent(problem, options, self.relaxation, self.order).run(params)
        else:
            descent = partial(MajorizedDescent, method=self)
            found = ClassRun(problem, options, start=params, descent=descent).run()
        step, assumed = np.full(1, float(self.relaxation)), "step below 2 in the metric of the bound"
        return certify_steps(self, found, problem.n_rows, step=step, assumptions=(assumed,))


def certify_steps(solver, found: Solution, n_rows: int, **certified) -> Solution:
    """Certify the steps of a descent along bounds: in the metric of the bounds the smoothness is 1."""
    one = np.ones(1)
    usual = {"step": one, "L": one, "L_max": one, "L_b": one, "mu": 0 * one, "batch_size": n_rows, "n_rows": n_rows}
    usual |= {"theorem": LOG_PARTITION_THEOREM, "failure_probability": 0.0, "anchor_radius": np.inf * one}
    return replace(found, solver_name=type(solver).__name__, step_certificate=StepCertificate(**(usual | certified)))


class MajorizedDescent(ClassDescent):
    """Descent of a softmax model along its quadratic bounds; ``promised`` is the fall of the last one."""

    def __init__(self, *where, method: BoundMajorization):
        super().__init__(*where)
        self.method, self.promised = method, np.nan
        self.hessian_cost = np.full_like(self.hessian_cost, np.inf)

    def advance(self, moving: np.ndarray, goal=None, most_steps: int | None = None) -> None:
        """Take ``relaxation`` times the step that conjugate gradients find to the minimum of the bound."""
        bounds, how = _Bounds(self, self.method.order), self.method
        most, left = (_PATIENCE * self.at.size, _NOTHING) if how.exact else (how.max_products, _LEFT)
        x, self.promised, _ = minimise(
            bounds.product, bounds.precondition, self.gradient, most, left, went=bounds.follow
        )
        self.at, self.n_steps = self.at + self.method.relaxation * x, self.n_steps + 1
        self.arrive(self.rows.move(np.full(len(self.intercept), self.method.relaxation)))
        self.gained = self._null_objective - self.objective
        self._renew_shared()
        self.trace.append(self.estimate)


class _Bounds:
    """The rows' bounds at a point: products with their curvature, and an approximate inverse of its sum."""

    def __init__(self, at: ClassDescent, order: str):
        self._at, rows = at, at.rows
        self._of_rows = dict(rows._over(lambda tile: (tile.start, softmax_bound(rows.eta[tile], order))))
        K = len(at.intercept)
        self._change = np.empty((K, rows.n_rows))  # of scores along the direction of the last product
        rows.D[:] = 0.0
        if K <= _COUPLED_CLASSES:
            # If all rows' C were the same: their mean (x) the covariance, diagonal in the eigenvectors of both.
            bend, self._classes = np.linalg.eigh(self._mean_curvature(K, order))
            bend = np.maximum(bend, _FLOOR * bend[-1])
        else:
            bend, self._classes = rows.mean_curvature(), None
        self._metric = at.metric(bend)

    def _mean_curvature(self, K: int, order: str) -> np.ndarray:
        """Mean of the rows' C, over evenly spaced rows if there are many: a preconditioner need not be exact."""
        rows, most = self._at.rows, int(max(1, min(_SAMPLED_ROWS, _SAMPLED // K**2)))
        counted = np.flatnonzero(rows.totals > 0)  # rows of no weight would leave a curvature of 0
        some, total = counted[:: -(-len(counted) // most)], np.zeros((K, K))
        for piece in np.array_split(some, max(1, int(len(some) * K**2 / _AT_ONCE))):
            total += np.einsum("i,ikl->kl", rows.totals[piece], softmax_bound(rows.eta[piece], order).matrices())
        return total / len(some)

    def product(self, p: np.ndarray) -> np.ndarray:
        """Every row's C times the change of its scores along p, as a direction."""
        rows = self._at.rows

        def curve(tile, change):
            self._change[:, tile] = change
            return rows.totals[tile] * self._of_rows[tile.start].product(change.T).T

        return rows.curve_by(curve, p) + self._at.ridge * p

    def follow(self, length: float) -> None:
        """Let the rows' D follow a step along the last product: no other product with the features is needed."""
        self._at.rows.D += length * self._change.T

    def precondition(self, r: np.ndarray) -> np.ndarray:
        """Divide by the approximate curvature, orthogonally to the shift common to all classes, which r lacks."""
        r = r if self._classes is None else r @ self._classes
        z = self._metric.solve(r)
        z = z if self._classes is None else z @ self._classes.T
        z = z - z.mean(axis=1, keepdims=True)
        z[-1] *= self._at.rows.fit_intercept
        return z


@dataclass(frozen=True)
class IncrementalMajorization:
    r"""Bound majorization of softmax models, row by row: no step size, and the sum of bounds never rises.

    Parameters
    ----------
    batch_size : int, optional
        Rows per visit; default 1/20 of them, 32 to 4096. All rows at once is batch majorization.
    order : {"descending", "given", "ascending", "averaged"}
        Order in which a bound adds the classes: see `glmfit.bounds.softmax_bound`.
    lead : float
        In [0, 1): how far beyond the scores of a visited row its new bound may touch, as a share of their change since
        its last visit. It grows to this value over the passes. 0 is the plain method.
    check_every : int
        Epochs between evaluations of F, a pass each.

    Notes
    -----
    Guarantee: F is at most the sum of the rows' bounds, which no visit raises, from any start and with nothing to tune.
    An epoch visits every row once, in random order; the first one minimises the bounds formed at the start.

    Host, float64, dense and sparse features; nothing is compiled. With P = (features + 1) (classes - 1) at most 5000
    parameters, cost per epoch: N P^2 flops and P^3 / 3. Memory: some matrices of P^2, and 2 numbers per row and class.
    With many parameters ConjugateGradients, which forms no such matrix, is faster. Directions with less than 1e-14 of
    the largest curvature count as flat: first rescale features whose scales differ by more than 1e6-fold.
    Theory and sources: docs/theory/bound_majorization.md, Proposition 4.
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
        how = {"method": replace(self, batch_size=batch_size), "seed": 0 if key is None else seed_of(key)}
        descent = partial(_Visits, **how, bounds=SurrogateSum(problem))
        assumed = (
            "F is at most the sum of the rows' bounds, which never rises: a bound is replaced only by one that is not "
            "higher at the parameters (checked row by row), and every step lowers the sum"
        )
        theorem = f"{LOG_PARTITION_THEOREM}, minimised incrementally (docs/theory/bound_majorization.md, Proposition 4)"
        # In the metric of the sum no row's bound, of curvature N times its own, exceeds N.
        certified = {"L_max": np.full(1, float(problem.n_rows)), "theorem": theorem, "assumptions": (assumed,)}
        found = ClassRun(problem, options or LoopOptions(), start=params, descent=descent).run()
        return certify_steps(self, found, problem.n_rows, batch_size=batch_size, **certified)


class _Visits(ClassDescent):
    """Descent of a softmax model that visits its rows a block at a time, with their bounds (``surrogates``)."""

    may_rise = True

    def __init__(self, *where, method: IncrementalMajorization, seed: int, bounds: SurrogateSum):
        super().__init__(*where)
        self._method, self._seed, self._sum = method, seed, bounds
        start = Params(self.coef, self.intercept - self.rows.mean @ self.coef)
        with self._few_threads():
            self.surrogates = bounds.start(start, method.order)
        self._sums = [self.surrogates.bound]  # of the last passes
        self.hessian_cost = np.full_like(self.hessian_cost, np.inf)

    def advance(self, moving: np.ndarray, goal=None, most_steps: int | None = None) -> None:
        """Visit every row once."""
        epoch = int(self.n_steps[0]) + 1
        # All bounds are new at the start: the first time there is nothing to replace.
        rows = np.random.default_rng([self._seed, epoch]).permutation(self.rows.n_rows if epoch > 1 else 0)
        blocks = np.array_split(rows, max(1, -(-len(rows) // self._method.batch_size)))
        before, lead = self.surrogates, min(self._method.lead, epoch / (epoch + 4))
        with self._few_threads():
            self.surrogates = self._sum.visit(before, blocks, self._method.order, lead)
        self._sums = [*self._sums[-_PATIENT:], self.surrogates.bound]
        params = self._sum.to_params(self.surrogates.theta)
        self.at = np.vstack([params.coef, params.intercept + self.rows.mean @ params.coef])
        self.rows.passes += self.surrogates.passes - before.passes
        self.gained, self.n_steps, self.stale = self._null_objective - self.surrogates.bound, self.n_steps + 1, True
        if epoch % self._method.check_every == 0:
            self.refresh()
        self.trace.append(self.estimate)

    def is_ready(self, target: np.ndarray) -> np.ndarray:
        """Whether the estimated gap is small enough or not finite, or the sum of bounds has stopped falling.

        Meanwhile its gradient, and F, may go up and down for many passes.
        """
        near, sums = (self.estimate <= self.aims * target) | ~np.isfinite(self.estimate), self._sums
        return near | (len(sums) > _PATIENT and sums[0] - sums[-1] <= _STOPPED * abs(sums[-1]))

    def _few_threads(self):
        """Context in which BLAS does not share products too small for it."""
        return small_blas(math.isqrt(self._sum.shape[0] * self._sum.shape[1] ** 2))

    def refresh(self) -> None:
        """Evaluate F and its gradient: one pass."""
        super().refresh()
        self._renew_shared()
        self.stale = False
