"""A softmax problem as exact solvers see it: one thing to converge, with certificates.

Newton's method with conjugate gradients works on the host in float64; SAGA on the device, in the spectral basis.
For the loop's book-keeping the model counts as one column: status, gap, step are arrays of one number.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..bounds import LOG_PARTITION_THEOREM, GapCertificate, StepCertificate, bound_largest_eigenvalue
from ..observations.softmax import Multinomial, OffsetMultinomial
from ..penalties import Ridge
from ._blocks import a_twentieth
from ._joint_rows import JointSweep, bohning_blocks, bohning_row, joint_blocks, joint_range, joint_sweep
from ._metric import Metric
from ._rows import Rows
from ._softmax_majorization import MajorizedSoftmax, majorize_softmax
from ._softmax_newton import NewtonCGStep, cool, newton_cg_step, newton_gap
from ._softmax_surrogates import Surrogates, SurrogateSum
from ._softmax_view import HESSIAN_THEOREM, SoftmaxPoint, SoftmaxView
from ._spectral_view import SpectralView
from .base import CoupledClasses, Evaluation, FiniteSum, Majorizable, Params, SumOfSurrogates

_FINISH_SCORES = 20_000_000  # scores up to which Newton steps in float64 end what single precision began
_FINISH_STEPS, _PRODUCTS, _THOROUGH = 30, 100, 1e-4
_SETTLED = 1e-10  # of the improvement: what more Newton steps will not change
_GOOD_ENOUGH = 1e-6  # of the improvement: a bound below needs no second one
_NEGLIGIBLE = 1e-2  # nats over all rows: nor does a bound below this


# Classes as they come took twice as many products on digits (benchmarks/majorization_paper.py, section batch_pcg).
_ORDER, _MAJORIZING_PRODUCTS = "descending", 20


class SoftmaxSmoothness(NamedTuple):
    """Certified smoothness in the metric, (1,); ``kappa`` is not known."""

    full: np.ndarray
    block: np.ndarray
    row: np.ndarray
    kappa: np.ndarray


class FinishedSoftmax(NamedTuple):
    """What Newton steps made of the parameters."""

    params: Params
    objective: np.ndarray
    bound: float
    estimate: float


class ExactSoftmax(FiniteSum, CoupledClasses, Majorizable, SumOfSurrogates):
    """A `SoftmaxProblem` with what SAGA, NewtonCG and the methods of majorization ask for.

    Parameters
    ----------
    problem : SoftmaxProblem
        Data and ridge.
    """

    n_neurons = 1

    def __init__(self, problem):
        self.problem, self.dtype, self.n_rows = problem, problem.dtype, problem.n_rows

    @property
    def subject(self) -> str:
        """What a progress bar says is fitted."""
        return self.problem.subject

    @cached_property
    def view(self) -> SoftmaxView:
        """The problem in float64 on the host."""
        return SoftmaxView(self.problem)

    @cached_property
    def null_objective(self) -> np.ndarray:
        """F of the model of class frequencies, (1,)."""
        return np.array([self.problem.null_objective])

    @property
    def saturated_loss(self) -> np.ndarray:
        """Mean loss of a model that is right about every row, (1,)."""
        return np.array([self.problem.saturated_loss])

    @property
    def penalty(self) -> Ridge:
        """Of the coefficients."""
        return Ridge(np.asarray(self.problem.strength))

    @property
    def mean_count(self) -> np.ndarray:
        """Mean weight of a row, (1,)."""
        return np.array([self.problem.totals.mean()])

    def null_params(self) -> Params:
        """Model of class frequencies."""
        return self.problem.null_params()

    def rounding_of(self, params: Params, objective: np.ndarray) -> np.ndarray:
        """Allow for the rounding of an objective in float64, (1,): about what is added to bounds."""
        return 128 * np.finfo(float).eps * np.abs(objective) + self.problem.rounding_of_scores(params)

    def start_params(self) -> Params:
        """Parameters to begin with: the model of class frequencies, or a better one where offsets are large."""
        return cool(self.problem, self.problem.soften) or self.null_params()

    def evaluate(self, params: Params) -> Evaluation:
        """Compute F and its gradient in float64."""
        return self.problem.evaluate(params)

    # ------------------------------------------------------------------------------- Newton, on the host

    def start_newton(self, params: Params) -> SoftmaxPoint:
        """Evaluate a start, in the view's coordinates."""
        return self.view.at(self.view.to_columns(params))

    def newton_step(self, point: SoftmaxPoint, max_products: int, inverse=None) -> NewtonCGStep:
        """Take one step; see docs/theory/softmax_newton.md."""
        return newton_cg_step(self.view, point, max_products, inverse)

    # ----------------------------------------------------------------------- bound majorization, on the host

    def start_majorization(self, params: Params) -> MajorizedSoftmax:
        """Evaluate a start, in the view's coordinates."""
        point = self.start_newton(params)
        return MajorizedSoftmax(point, np.nan, point.norm / 2, False, 1)

    def majorize(self, point, relaxation: float, order=None, max_products=None) -> MajorizedSoftmax:
        """Take one step; see docs/theory/bound_majorization.md."""
        return majorize_softmax(self.view, point, relaxation, order or _ORDER, max_products or _MAJORIZING_PRODUCTS)

    def certify_majorized(self, point, attempt: int) -> GapCertificate:
        """Bound the gap at a point."""
        return self.certify_gap(self.user_params(point.v))

    def certify_majorization(self, point, relaxation: float) -> StepCertificate:
        """Say by which theorem no step goes up; step and smoothness are in the metric of the bound."""
        one = np.ones(1)
        return StepCertificate(
            step=relaxation * one,
            L=one,
            L_max=one,
            L_b=one,
            mu=0 * one,
            batch_size=self.n_rows,
            n_rows=self.n_rows,
            theorem=LOG_PARTITION_THEOREM,
            assumptions=("step below 2 in the metric of the bound",),
            failure_probability=0.0,
            anchor_radius=np.inf * one,
        )

    @cached_property
    def surrogate_sum(self) -> SurrogateSum:
        """Quadratic bounds of the rows, and their sum."""
        return SurrogateSum(self.view)

    def start_surrogates(self, params: Params, order: str) -> Surrogates:
        """Let the bounds of all rows touch at a start."""
        return self.surrogate_sum.start(self.view.to_columns(params), order)

    def visit_rows(self, surrogates: Surrogates, blocks, order: str, lead: float) -> Surrogates:
        """Take a pass; see docs/theory/bound_majorization.md, Proposition 4."""
        return self.surrogate_sum.visit(surrogates, blocks, order, lead)

    def look_at_surrogates(self, surrogates: Surrogates) -> Surrogates:
        """Evaluate F: one pass."""
        return self.surrogate_sum.look(surrogates)

    def user_params(self, v) -> Params:
        """Parameters of the view's coordinates."""
        return self.view.from_columns(v)

    def newton_is_cheap(self, params: Params, left, final: bool, passes: float) -> bool:
        """Whether Newton steps may end a fit that stands near the optimum."""
        return bool(left.any()) and (final or self.problem.n_rows * self.problem.n_classes <= _FINISH_SCORES)

    def finish_neuron(self, params: Params, neuron: int, target: float) -> FinishedSoftmax:
        """Take Newton steps until the bound is below the target, or nothing helps."""
        point, estimate, inverse = self.start_newton(params), np.inf, None
        for _ in range(_FINISH_STEPS):
            if self._foresee_bound(point) <= target / 2 or estimate <= 1e-16 * abs(point.objective):
                break
            step = newton_cg_step(self.view, point, _PRODUCTS, inverse, _THOROUGH)
            point, estimate, inverse = step.point, step.decrease, step.inverse
            if step.stuck:
                break
        params = self.user_params(point.v)
        gap = self.certify_gap(params)
        return FinishedSoftmax(params, gap.objective, float(gap.bound[0]), float(gap.estimate[0]))

    def _foresee_bound(self, point: SoftmaxPoint) -> float:
        """Say about how large the bound by duality will be; no certificate."""
        problem, strength = self.problem, self.problem.strength
        if not strength > 0:
            return np.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            excess = np.max(np.nan_to_num(self.n_rows * point.gradient[-1] / problem.class_totals, posinf=1.0))
        mixing = min(max(excess, 0.0), 1.0) * problem.totals.mean() * np.log(problem.n_classes)
        return float(np.sum(point.gradient[:-1] ** 2)) / (2 * strength) + mixing

    def is_separable(self, params: Params, neuron: int) -> bool:
        """Whether classes can be set apart, so that no finite model is the best, as far as the view can tell."""
        if self.problem.strength > 0:
            return False
        return self.view.is_separated(self.start_newton(params)) or self.view.recedes is True

    # ---------------------------------------------------------------------------- how far from the optimum

    def certify_gap(self, params: Params, **_) -> GapCertificate:
        """Bound F - F* in float64: by duality, and for small models without ridge, or a weak one, by their Hessian.

        The estimate, for use where there is no bound, is what a Newton step promises.
        """
        gap = self.problem.certify_gap(params)
        bound, theorem, estimate = gap.bound, gap.theorem, gap.bound
        improvement = max(self.problem.null_objective - gap.objective, 0.0)
        enough = max(_GOOD_ENOUGH * improvement, _NEGLIGIBLE / self.n_rows)
        if not bound <= enough and np.isfinite(gap.objective):
            point = self.start_newton(params)
            estimate = newton_gap(self.view, point, _PRODUCTS)
            # A ridge makes the first bound good after one more step, which is cheaper; unless it is next to none.
            near = enough if self.problem.strength == 0 else _SETTLED * improvement
            small = estimate <= near and self.view.has_small_hessian
            if small and not self.view.is_separated(point):  # there is no optimum: what says otherwise is rounding
                by_hessian = self.view.bound_by_hessian(point) + self.problem.rounding_of_scores(params)
                if by_hessian < bound:
                    bound, theorem = by_hessian, HESSIAN_THEOREM
        one = np.ones(1)
        return GapCertificate(bound * one, estimate * one, gap.objective * one, 0 * one, one > 0, theorem, 0.0)

    # ---------------------------------------------------------------------------------- SAGA, on the device

    @cached_property
    def spectral(self) -> SpectralView:
        """Rows in the spectral basis, for the device."""
        problem, K = self.problem, self.problem.n_classes
        if self.view_is_sparse or not problem.fit_intercept:
            what = "sparse features" if self.view_is_sparse else "a model without intercepts"
            raise ValueError(
                f"SAGA works in a dense, centred basis, and this is {what}. Use NewtonCG (exact) or ImplicitSGD."
            )
        Y, observation = problem.counts.toarray(), Multinomial(K)
        if problem.offset is not None:
            Y, observation = np.hstack([Y, problem.offset]), OffsetMultinomial(K)
        view = SpectralView(problem.X, Y, observation, self.penalty, None, self.dtype)
        view.n_neurons = K
        return view

    @property
    def view_is_sparse(self) -> bool:
        """Whether features are sparse."""
        return hasattr(self.problem.X, "nnz")

    @property
    def default_batch_size(self) -> int:
        """Rows per block: 1/20 of them, between 32 and 4096."""
        return a_twentieth(self.n_rows)

    def rows(self, batch_size: int, seed: int) -> Rows:
        """Rows on the device, permuted by ``seed``, in blocks."""
        return self.spectral.rows(batch_size, seed)

    def to_columns(self, params: Params) -> np.ndarray:
        """Whitened coordinates of parameters, the common shift taken away, (column, class)."""
        coef, intercept = params
        return self.spectral.to_columns(Params(coef - coef.mean(axis=1, keepdims=True), intercept - intercept.mean()))

    def from_columns(self, v, memory=None) -> Params:
        """Parameters of whitened coordinates, the common shift taken away."""
        coef, intercept = self.spectral.from_columns(v)
        return Params(coef - coef.mean(axis=1, keepdims=True), intercept - intercept.mean())

    @staticmethod
    def sweep(rows: Rows, v) -> JointSweep:
        """Loss, derivatives, gradient and mean curvature at v, in one pass."""
        return joint_sweep(rows, v)

    def objective(self, v, memory, pass_: JointSweep) -> np.ndarray:
        """F, (1,): the loss in the solver's precision, the ridge in float64."""
        coef = self.from_columns(v).coef
        return np.array([float(pass_.loss) + self.problem.strength / 2 * float(np.sum(coef**2))])

    def descend_surely(self, rows: Rows, v, memory, radius: float, max_steps: int):
        """Take no steps: the start's curvature, bounded for every class, is the scale to begin with."""
        pass_ = self.sweep(rows, v)
        bend = max(float(np.mean(np.abs(np.asarray(pass_.bend, np.float64)))), 1e-12)
        scale = 1 / (bend + np.asarray(rows.ridge, np.float64))
        metric = Metric(scale.astype(self.dtype), np.zeros_like(scale[:-1], dtype=self.dtype))
        return v, memory, pass_, metric, 0

    def move(self, rows: Rows, v, anchor) -> np.ndarray:
        """Largest range over the classes of a row's change of scores, (1,): what bounds the change of curvature."""
        return np.array([float(joint_range(rows, np.asarray(v) - np.asarray(anchor)))])

    def certify_smoothness(self, rows: Rows, v, radius, n_steps, failure_probability, seed, number, metric):
        """Bound the smoothness of blocks: everywhere by Bohning, or within a finite ``radius`` by self-concordance.

        A row whose scores change by values of range r has at most exp(r) times its curvature; see
        docs/theory/softmax_newton.md.
        """
        spectral, anchored = self.spectral, bool(np.isfinite(radius[0]))
        kept = np.r_[: spectral.basis.rank, spectral.n_features]
        start = np.zeros(v.shape if anchored else (v.shape[0], 1))
        start[kept] = np.random.default_rng([int(seed), 1, int(number)]).normal(size=(len(kept), start.shape[1]))
        dimension, share, growth = len(kept), failure_probability / rows.n_blocks, 1.0
        one_class = np.asarray(metric.scale)[:, :1]
        if anchored:
            # Curvature vanishes along the common shift, so the start need not look there.
            start -= start.mean(axis=1, keepdims=True)
            dimension *= start.shape[1] - 1
            rounding = 128 * np.finfo(self.dtype).eps * (1 + float(joint_range(rows, v)))  # of scores
            growth = np.exp(radius[0] + rounding)
        start = (start / np.linalg.norm(start)).astype(self.dtype).reshape(-1, 1)
        if anchored:
            spectra = joint_blocks(rows, v, metric.scale, start, n_steps=n_steps)
        else:
            spectra = bohning_blocks(rows, one_class, start, n_steps=n_steps)
        alpha, beta = (np.asarray(a).T for a in spectra)
        block = growth * bound_largest_eigenvalue(alpha, beta, dimension, share)
        row = float(bohning_row(rows, one_class)) * (1 + 1e-5)
        mean = block.mean()
        return SoftmaxSmoothness(*(np.array([x]) for x in (mean, block.max(), max(row, mean), 0.0)))

    def estimate_gap(self, v, memory, pass_: JointSweep, metric: Metric, kappa) -> np.ndarray:
        """Half the squared norm of the gradient in the metric, (1,); not a bound, and often too small."""
        g = np.array(pass_.gradient, np.float64)
        # The ridge is diagonal in the basis.
        variance = self.spectral.basis.variance
        inverse = np.where(variance > 0, self.problem.strength / np.where(variance > 0, variance, 1.0), 0.0)
        g[:-1] += inverse[:, None] * np.asarray(v, np.float64)[:-1]
        return np.array([np.sum(np.asarray(metric.scale, np.float64) * g**2) / 2])
