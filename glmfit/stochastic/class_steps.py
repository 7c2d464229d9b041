"""Solvers of softmax models whose cost per step does not grow with the number of classes.

All of them follow a schedule: a number of epochs, a step that shrinks from one to the next. They come near the
optimum and do not converge to it in a finite time; how near is a matter for the problem's own certificate.
"""

from __future__ import annotations

import math
import numbers
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._checks import check_choice, check_flag, check_positive, check_whole
from .._compile import jit
from ..problems.base import Params
from ..solvers._seed import seed_of
from . import class_kernels as kernels
from . import class_rules as rules
from .base import ScheduledSolver
from .schedule import check_explicit_step

_PORTION = 1 << 24  # numbers looked up or drawn ahead of the steps that need them
_NEWTON_STEPS = 30
MINIBATCHES = ("averaged", "jacobi", "dual", "newton")
VISITS = ("pair", "row")


class SamplerState(NamedTuple):
    """Everything the next epoch depends on; its leaves can be saved and loaded.

    Attributes
    ----------
    weights : Weights
        On the device.
    epoch : int
        Epochs done.
    seed : int
        Of all draws.
    """

    weights: Any
    epoch: int
    seed: int


@dataclass(frozen=True)
class ClassSampler(ScheduledSolver):
    """Common part of the solvers that sample classes.

    Attributes
    ----------
    n_negatives : int
        Classes sampled per step in addition to the label; at most all others are.
    batch_size : int
        Rows per step.
    """

    n_negatives: int = 5
    batch_size: int = 1
    shared: ClassVar[bool] = True  # whether the rows of a batch share their negatives
    # Fields only where there is a choice: member of the family of double sums, and what a step visits.
    alpha = 0.0
    visit = "pair"

    def __post_init__(self):
        check_whole("n_negatives", self.n_negatives, 1)
        check_whole("batch_size", self.batch_size, 1)

    @abstractmethod
    def rule(self, problem) -> Any:
        """Return what a step does, hashable."""

    # ---------------------------------------------------------------- verbs

    def init_state(self, problem, params: Params | None, *, key) -> SamplerState:
        """Lay out weights and auxiliary variables: 0, or what suits the parameters if there are any."""
        V = np.zeros((problem.n_classes, problem.n_features + problem.fit_intercept), problem.dtype)
        if params is not None:
            V[:, : problem.n_features] = np.asarray(params.coef).T
            V[:, problem.n_features :] = np.asarray(params.intercept)[:, None]
        per_row = self._auxiliary == "row"
        size = (problem.n_rows if per_row else problem.n_pairs) if self.rule(problem).auxiliary else 0
        seed = seed_of(key)
        u = np.zeros(size, problem.dtype)
        if params is not None and size:
            best = problem.start_auxiliary(params, self.alpha, np.random.default_rng(seed))
            if per_row:  # the mean over counts: what is best for pairs is the log of the normaliser less their scores
                best = np.bincount(problem.pairs.row, problem.pairs.weight * best, size)
                best /= np.maximum(problem.totals, np.finfo(float).tiny)
            u[:] = best
        return SamplerState(kernels.Weights(jax.device_put(V), jax.device_put(u), jnp.ones((), problem.dtype)), 0, seed)

    def update(self, problem, state: SamplerState, c: float) -> SamplerState:
        """Do one epoch at step size c / N.

        Raises
        ------
        ValueError
            If an explicit step is so long that the ridge would turn the coefficients around.
        """
        rule, data = self.rule(problem), problem.class_data(self._auxiliary)
        # The ridge in terms of what is sampled: a row of counts is several pairs.
        n_visits = self.n_visits(problem)
        strength = problem.strength * problem.n_rows / n_visits
        change = c * strength
        if not rule.implicit:
            check_explicit_step(c, strength)
        key = jax.random.fold_in(jax.random.key(state.seed), state.epoch)
        m, n = min(self.n_negatives, problem.n_classes - 1), min(self.batch_size, n_visits)
        log_a = problem.dtype.type(math.log(problem.negative_weight(m, self._sharing(n))))
        # What steps need is laid out a portion of them at a time: for all it would take more room than the data.
        n_steps, by_row = n_visits // n, self.visit == "row"
        seen, width = problem.count_rows if by_row else (None, 1)
        most = max(1, _PORTION // (n * (m + width) + problem.n_features))
        size = -(-n_steps // -(-n_steps // most))
        for_order, for_classes = jax.random.split(key)
        order = _order(for_order, n_visits, n, size)
        # The scale may fall by this many steps before it has to be merged into the coefficients.
        safe = _orders_of_magnitude(problem.dtype) / max(abs(math.log1p(change if rule.implicit else -change)), 1e-300)
        stride = int(min(size, max(1.0, safe)))
        weights = state.weights
        for first in range(0, n_steps, size):
            draw = jax.random.fold_in(for_classes, first)
            if by_row:
                part, negatives = _draw_others(draw, data, seen, order, first, size, problem.n_classes, m, width)
                steps = partial(
                    kernels.count_steps, data, seen, order=part, negatives=negatives, rule=rule, width=width
                )
            else:
                part, negatives = _draw(draw, data.label, order, first, size, problem.n_classes, m, self._sharing(n))
                steps = self._steps(data, part, negatives, n, rule)
            last = min(size, n_steps - first)
            for start in range(0, last, stride):
                stop = min(start + stride, last)
                span = kernels.Span(start, stop, problem.dtype.type(c), problem.dtype.type(strength), log_a)
                weights = steps(weights=weights, span=span)
                if change > 0:
                    weights = kernels.merge_scale(weights, data.rows.penalised)
        return SamplerState(weights, state.epoch + 1, state.seed)

    # ---------------------------------------------------------------- how

    @property
    def _auxiliary(self) -> str:
        # In the absolute form the pairs of a row estimate the same number.
        return "row" if self.alpha == 1 or self.visit == "row" else "pair"

    def n_visits(self, problem) -> int:
        """Visits of an epoch: pairs of a row and a class with counts, or rows."""
        return problem.n_rows if self.visit == "row" else problem.n_pairs

    def n_steps(self, problem) -> int:
        """Whole batches of an epoch; visits that do not fill one wait for the next."""
        n_visits = self.n_visits(problem)
        return n_visits // min(self.batch_size, n_visits)

    def longest_step(self, problem) -> float:
        """Least c that is too long whatever the data; infinite for implicit steps."""
        return math.inf if self.rule(problem).implicit else super().longest_step(problem)

    def user_params(self, problem, state: SamplerState) -> Params:
        """Coefficients (feature, class) and intercepts (class,) of a state, intercepts centred."""
        V = np.array(state.weights.V)
        d = problem.n_features
        coef = V[:, :d].T * problem.dtype.type(state.weights.scale)
        if not problem.fit_intercept:
            return Params(coef, np.zeros(problem.n_classes, V.dtype))
        return Params(coef, V[:, d] - V[:, d].mean(dtype=np.float64).astype(V.dtype))

    def is_finite(self, state: SamplerState) -> bool:
        """Whether no number overflowed."""
        return bool(_finite(state.weights))

    def kept(self, state: SamplerState) -> SamplerState:
        """Return a copy, since updates use up the weights they are given; these may come from a file."""
        return SamplerState(jax.tree.map(jnp.array, state.weights), int(state.epoch), int(state.seed))

    def _check_visit(self) -> None:
        check_choice("visit", self.visit, VISITS)

    def _sharing(self, n: int) -> bool:
        return self.shared and n > 1

    def _steps(self, data, order, negatives, n: int, rule) -> Callable:
        """Return what takes some of the steps drawn, given weights and span."""
        if n == 1:
            return partial(kernels.visit_singly, kernels.look_up(data, order, negatives), rule=rule)
        kernel = kernels.shared_steps if self._sharing(n) else kernels.averaged_steps
        return partial(kernel, data, order=order, negatives=negatives, rule=rule)


@dataclass(frozen=True)
class ImplicitSGD(ClassSampler):
    """Implicit stochastic gradient steps: exact proximal steps of the sampled double sum, stable at any length.

    Parameters
    ----------
    n_negatives : int
        Classes sampled per step in addition to the label.
    batch_size : int
        Rows per step.
    minibatch : str
        With more than one row: "averaged" (each row by itself, with its own negatives, and the mean of what they would
        do), or the exact step of the batch with shared negatives by "dual" block ascent, "jacobi" sweeps or "newton"
        with conjugate gradients.
    sweeps : int
        Sweeps of "dual" and "jacobi"; "newton" goes on to the exact step. One dual sweep is as good as single steps; 3
        to 5 Jacobi sweeps are a conservative step.
    alpha : float
        0 for scores relative to the label's, 1 for absolute ones (single rows and "averaged" only).
    visit : str
        Of a row of counts: "pair" visits one class with counts at a time, "row" all of them at once (``alpha=1`` only,
        and the mean over a batch). A row then costs as much as the one with the most classes.

    Notes
    -----
    Cost per step O(m D), whatever the number of classes and rows. Unbiased: the sampled objective's mean is the softmax
    likelihood's. Tolerates steps a hundred times too long. Theory: docs/theory/implicit_sgd.md.

    References
    ----------
    F. Fagan, G. Iyengar, Unbiased scalable softmax optimization (2018), section 3.2; Algorithm 1 for one row and one
    negative.
    """

    minibatch: str = "averaged"
    sweeps: int = 3
    alpha: float = 0.0
    visit: str = "pair"

    def __post_init__(self):
        super().__post_init__()
        check_whole("sweeps", self.sweeps, 1)
        self._check_visit()
        check_choice("minibatch", self.minibatch, MINIBATCHES)
        given = isinstance(self.alpha, numbers.Real) and self.alpha in (0, 1)
        if not given or (self.alpha == 1 and self.batch_size > 1 and self.minibatch != "averaged"):
            raise ValueError(
                f"alpha is {self.alpha!r} with minibatch={self.minibatch!r}; it must be 0, or 1 with single rows or "
                'minibatch="averaged".'
            )
        if self.visit == "row" and self.alpha != 1:
            raise ValueError(
                f'visit is "row" with alpha={self.alpha!r}; implicit steps on rows of counts need alpha=1.'
            )

    def rule(self, problem) -> rules.ImplicitRule:
        """Return what a step does."""
        return rules.ImplicitRule(float(self.alpha))

    @property
    def _budget(self) -> int:
        # Newton's method ends by itself; cut short, its steps are no proximal steps.
        return max(self.sweeps, _NEWTON_STEPS) if self.minibatch == "newton" else self.sweeps

    def _sharing(self, n: int) -> bool:
        return n > 1 and self.minibatch != "averaged"

    def _steps(self, data, order, negatives, n: int, rule) -> Callable:
        if self._sharing(n):
            kernel = partial(kernels.coupled_steps, method=self.minibatch, budget=self._budget)
            return partial(kernel, data, order=order, negatives=negatives)
        return super()._steps(data, order, negatives, n, rule)


@dataclass(frozen=True)
class SoftmaxProx(ClassSampler):
    """Exact proximal steps of the rows' softmax losses over all classes: nothing sampled but the rows.

    Parameters
    ----------
    n_negatives : int
        Not used: every other class is one.
    batch_size : int
        Rows per step, which takes the mean of what they would do alone.

    Notes
    -----
    Cost per row O(K D): for few classes, where it has less noise than any method that samples them. Stable at any
    length of the step. Theory: docs/theory/implicit_sgd.md, last section.
    """

    n_negatives: int = 1

    def rule(self, problem) -> rules.AllClasses:
        """Return what a step is: implicit, without auxiliary variables."""
        return rules.AllClasses()

    def _steps(self, data, order, negatives, n: int, rule) -> Callable:
        return partial(kernels.all_class_steps, data, order=order.reshape(len(order), n))


@dataclass(frozen=True)
class UMax(ClassSampler):
    """Explicit stochastic gradient steps whose auxiliary variables are first raised to what the sample proves.

    Parameters
    ----------
    n_negatives : int
        Classes sampled per step in addition to the label.
    batch_size : int
        Rows per step; they share their negatives, and a step is two matrix products.
    delta : float
        An auxiliary variable is raised where it is this far too low, so that no exponential exceeds ``exp(delta)``.
    alpha : float
        Of the family of double sums: 0 for scores relative to the label's, 1 for absolute ones.
    visit : str
        Of a row of counts: "pair" visits one class with counts at a time, "row" all of them at once (of a batch, the
        mean, each row with its own negatives; for ``alpha=0`` scores are relative to their mean over the counts). A row
        then costs as much as the one with the most classes.
    bounded : bool
        Whether to keep auxiliary variables (after every step; without intercepts only) and coefficients (after every
        epoch) within bounds that the optimum is proved to obey. They need a ridge, and are very loose.

    Notes
    -----
    Cost per step O(m D). The direction is unbiased once no raise fires, which is so at the optimum; before, it is not.

    References
    ----------
    F. Fagan, G. Iyengar, Unbiased scalable softmax optimization (2018), Algorithm 2, with distinct negatives (with
    repeated ones a raise can go too far).
    """

    delta: float = 1.0
    alpha: float = 0.0
    bounded: bool = False
    visit: str = "pair"

    def __post_init__(self):
        super().__post_init__()
        check_positive("delta", self.delta)
        check_flag("bounded", self.bounded)
        if not isinstance(self.alpha, numbers.Real) or not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is {self.alpha!r}; it must be between 0 and 1.")
        self._check_visit()

    def rule(self, problem) -> rules.ExplicitRule:
        """Return what a step does."""
        limit = problem.auxiliary_bound if self.bounded and self.alpha == 0 else math.inf
        return rules.ExplicitRule(float(self.alpha), float(self.delta), limit)

    def update(self, problem, state: SamplerState, c: float) -> SamplerState:
        """Do one epoch at step size c / N; see `ClassSampler.update`."""
        state = super().update(problem, state, c)
        if not self.bounded or problem.coef_bound == math.inf:
            return state
        data = problem.class_data(self._auxiliary)
        weights = kernels.project(state.weights, data.rows.penalised, problem.dtype.type(problem.coef_bound))
        return state._replace(weights=weights)


@dataclass(frozen=True)
class SGD(ClassSampler):
    """Plain stochastic gradient steps of the double sum, for comparison: they overflow unless very short."""

    def rule(self, problem) -> rules.ExplicitRule:
        """Return what a step does."""
        return rules.ExplicitRule()


@dataclass(frozen=True)
class OVE(ClassSampler):
    """Stochastic gradient steps of the one-versus-each bound, for comparison: it has another optimum than softmax."""

    def rule(self, problem) -> rules.OneVersusEach:
        """Return what a step does."""
        return rules.OneVersusEach()


@dataclass(frozen=True)
class NCE(ClassSampler):
    """Noise-contrastive estimation with uniform noise, for comparison: biased for finitely many negatives."""

    def rule(self, problem) -> rules.NoiseContrastive:
        """Return what a step does."""
        return rules.NoiseContrastive(math.log(min(self.n_negatives, problem.n_classes - 1) / problem.n_classes))


@dataclass(frozen=True)
class ImportanceSampling(ClassSampler):
    """Softmax over the label and the sampled classes only, for comparison: biased for finitely many negatives.

    Parameters
    ----------
    weighted : bool
        Weight the negatives by the inverse of their probability to be sampled.
    """

    weighted: bool = False

    def rule(self, problem) -> rules.SampledSoftmax:
        """Return what a step does."""
        return rules.SampledSoftmax(bool(self.weighted))


# ------------------------------------------------------------------------- small things


def _orders_of_magnitude(dtype) -> float:
    """How far, as a logarithm, the scale may fall: coefficients over it must not overflow."""
    return 50.0 if dtype.itemsize == 4 else 500.0


@partial(jit, static_argnames=("n_pairs", "n", "size"))
def _order(key, n_pairs: int, n: int, size: int):
    """Order of an epoch, (step, row of the batch); pairs that do not fill a batch wait for the next.

    Filled up to a multiple of ``size`` steps, with steps never taken.
    """
    n_steps = n_pairs // n
    order = jax.random.permutation(key, n_pairs)[: n_steps * n].astype(jnp.int32).reshape(n_steps, n)
    return jnp.concatenate([order, order[: -n_steps % size]])


@partial(jit, static_argnames=("size", "n_classes", "m", "shared"))
def _draw(key, label, order, start, size: int, n_classes: int, m: int, shared: bool):
    """Pairs and negatives of some of an epoch's steps; single rows without the axis of the batch."""
    order = jax.lax.dynamic_slice_in_dim(order, start, size)
    if shared:  # out of all classes: as if the label were a class of its own
        none = jnp.full((size, 1), n_classes, jnp.int32)
        return order, kernels.distinct_negatives(key, none, n_classes + 1, m)
    negatives = kernels.distinct_negatives(key, label[order][..., None], n_classes, m)
    return (order[:, 0], negatives[:, 0]) if order.shape[1] == 1 else (order, negatives)


@partial(jit, static_argnames=("size", "n_classes", "m", "width"))
def _draw_others(key, data, seen, order, start, size: int, n_classes: int, m: int, width: int):
    """Rows of counts of some of an epoch's steps, and classes without counts in them."""
    order = jax.lax.dynamic_slice_in_dim(order, start, size)
    of_step = jax.vmap(kernels.support_of, (None, None, 0, None))
    known = jax.vmap(of_step, (None, None, 0, None))(data, seen, order, width)[0]
    return order, kernels.distinct_negatives(key, known, n_classes, m, seen.size[order])


@jit
def _finite(weights):
    return jnp.isfinite(jnp.sum(weights.V)) & jnp.isfinite(jnp.sum(weights.u)) & (weights.scale > 0)
