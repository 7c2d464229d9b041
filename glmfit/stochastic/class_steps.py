"""Solvers of softmax models that sample classes, and the formulas of their steps; batches are in ``class_kernels``."""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp

from ..checks import check_choice, check_flag, check_positive, check_whole
from . import class_kernels as kernels
from .class_sampler import ClassSampler, Step
from .implicit import implicit_counts, implicit_step, log1p_sum_exp, softmax_prox

_STEP_OF_ROW, _WIDE, _OF_LARGEST = 0.2, 64, 4.0  # first c of a batch, over its rows; columns; over the largest share
MINIBATCHES = ("averaged", "shared", *kernels.COUPLED)


@dataclass(frozen=True)
class ImplicitSGD(ClassSampler):
    """Implicit stochastic gradient steps: exact proximal steps of the sampled double sum, stable at any length.

    Parameters
    ----------
    n_negatives : int, optional
        Classes sampled per step in addition to the label; default 20, or 60 for more than 500 classes.
    batch_size : int
        Rows per step.
    minibatch : str
        With more than one row: "averaged" (each row with its own negatives, and the mean of their steps),
        "shared" (the same with shared negatives: two matrix products, for a GPU), or the exact step of the batch with
        shared negatives by "dual" block ascent, "jacobi" sweeps or "newton".
    sweeps : int
        Sweeps of "dual" and "jacobi"; "newton" runs to the exact step. One dual sweep is as good as single steps; 3 to
        5 Jacobi sweeps are a conservative step.
    alpha : float
        0 for scores relative to the label's, 1 for absolute ones (single rows, "averaged" and "shared" only).
    visit : str
        For a row of counts: "pair" visits one class with counts at a time, "row" all at once (``alpha=1`` only,
        averaged over a batch). A row then costs as much as the one with the most classes.
    auxiliary_step : float or None
        Step of the auxiliary variables in the first epoch, relative to a row's own curvature; the decay of the schedule
        also shortens it. A row's variable is visited once per epoch, coefficients in every step: one step for both
        would slow down either. None is the paper's form: the step of the coefficients.
    basis : {"spectral", "raw"}
        Coordinates of the steps: centred and whitened features, where a step of 0.1 suits any data
        (docs/theory/class_coordinates.md), or the features as they are.

    Notes
    -----
    Cost per step O(m D), for any number of classes and rows. Unbiased: the sampled objective's mean is the softmax
    likelihood's. Tolerates steps a hundred times too long. Theory: docs/theory/implicit_sgd.md. Source: F. Fagan, G.
    Iyengar, Unbiased scalable softmax optimization (2018), section 3.2.
    """

    implicit: ClassVar[bool] = True
    auxiliary: ClassVar[bool] = True
    n_negatives: int | None = None
    minibatch: str = "averaged"
    sweeps: int = 3
    alpha: float = 0.0
    visit: str = "pair"
    auxiliary_step: float | None = field(default=1.0, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        check_whole("sweeps", self.sweeps, 1)
        check_choice("minibatch", self.minibatch, MINIBATCHES)
        given = isinstance(self.alpha, numbers.Real) and self.alpha in (0, 1)
        if not given or (self.alpha == 1 and self.batch_size > 1 and self.minibatch in kernels.COUPLED):
            raise ValueError(
                f"alpha is {self.alpha!r} with minibatch={self.minibatch!r}; it must be 0, or 1 with single rows or "
                'minibatch="averaged" or "shared".'
            )
        if self.visit == "row" and self.minibatch == "shared":
            raise ValueError(
                'visit is "row" with minibatch="shared"; rows of counts have their own negatives: use "averaged".'
            )
        if self.visit == "row" and self.alpha != 1:
            raise ValueError(
                f'visit is "row" with alpha={self.alpha!r}; implicit steps on rows of counts need alpha=1.'
            )

    def step(self, c, tau, log_a, score, target, mobility, u) -> Step:
        # In units of the auxiliary variable's step, coefficients are c / tau times as easy to move.
        share = 1.0 if self.auxiliary_step is None else c / tau
        mobility = share * mobility
        if self.alpha == 1:
            target = shares_of(target, score)
            push, after = implicit_counts(tau, log_a, score, target, mobility, u)
            return Step(c * target - share * push, u, after)
        push, pull, after = implicit_step(tau, log_a[:-1], score[:-1] - score[-1], mobility, u)
        return Step.of_pair(share * push, share * pull, u, after)

    def _visit(self, n: int) -> Callable:
        if n == 1:
            return kernels.one_row
        return {"averaged": kernels.averaged, "shared": kernels.shared}.get(self.minibatch, kernels.coupled)


@dataclass(frozen=True)
class SoftmaxProx(ClassSampler):
    """Exact proximal steps of the rows' softmax losses over all classes; only rows are sampled.

    Parameters
    ----------
    n_negatives : int
        Not used: all other classes are negatives.
    batch_size : int
        Rows per step, which takes the mean of their own steps.

    Notes
    -----
    Cost per row O(K D): for few classes, where it has less noise than any method that samples them. Stable at any
    step length. Theory: docs/theory/implicit_sgd.md, last section.
    """

    implicit: ClassVar[bool] = True
    n_negatives: int = 1

    def step(self, c, tau, log_a, score, target, mobility, u) -> Step:
        return Step(c * target - softmax_prox(c, score, target, mobility), u, u)

    def _visit(self, n: int) -> Callable:
        return kernels.all_classes


def shares_of(target, score):
    """Shares of a row's classes; in a pair, whose target is None, the last class has all."""
    return jax.nn.one_hot(len(score) - 1, len(score), dtype=score.dtype) if target is None else target


class _Explicit(ClassSampler):
    """Gradient steps of a member of the family of sampled double sums."""

    auxiliary: ClassVar[bool] = True
    delta = math.inf  # how far too low an auxiliary variable may be before it is raised

    def step(self, c, tau, log_a, score, target, mobility, u) -> Step:
        """Step whose exponentials all use the old weights; U-max's are at most ``exp(delta)``.

        Scores are relative to their mean over the target (alpha = 0), absolute (1), or in between.
        """
        alpha = float(self.alpha)
        relative = score - (1 - alpha) * (score[-1] if target is None else jnp.sum(target * score))
        target = shares_of(target, score)
        if self.delta < math.inf:
            # Distinct classes only: repeated ones would prove too much.
            proved = jax.nn.logsumexp(jnp.where(log_a > -jnp.inf, relative, -jnp.inf))
            u = jnp.where(u < proved - float(self.delta), proved, u)
        push = jnp.exp(log_a + relative - u)
        total = jnp.sum(push)
        amount = c * ((alpha + (1 - alpha) * total) * target - push)
        # The optimum of u is at least 0 for any weights if alpha = 0 (the counts' entropy).
        after = u - tau * (1 - total)
        return Step(amount, u, jnp.maximum(after, 0.0) if self.alpha == 0 else after)


@dataclass(frozen=True)
class UMax(_Explicit):
    """Explicit stochastic gradient steps whose auxiliary variables are first raised to a bound that the sample proves.

    Parameters
    ----------
    n_negatives : int
        Classes sampled per step in addition to the label.
    batch_size : int
        Rows per step; they share their negatives, and a step is two matrix products.
    delta : float
        An auxiliary variable is raised if it is too low by this much, so that no exponential exceeds ``exp(delta)``.
    alpha : float
        Member of the family of double sums: 0 for scores relative to the label's, 1 for absolute ones.
    visit : str
        For a row of counts: "pair" visits one class with counts at a time, "row" all at once (averaged over a batch,
        each row with its own negatives; for ``alpha=0`` scores are relative to their mean over the counts). A row
        then costs as much as the one with the most classes.
    bounded : bool
        Whether to keep auxiliary variables (after every step; without intercepts only) and coefficients (after every
        epoch) within bounds that the optimum is proved to satisfy. They need a ridge, and are very loose.
    auxiliary_step, basis :
        As in `ImplicitSGD`.

    Notes
    -----
    Cost per step O(m D). The direction is unbiased once no variable is raised, as at the optimum, and biased before.
    Source: F. Fagan, G. Iyengar, Unbiased scalable softmax optimization (2018), Algorithm 2, with distinct negatives
    (with repeated ones a raise can go too far).
    """

    delta: float = 1.0
    alpha: float = 0.0
    bounded: bool = False
    visit: str = "pair"
    auxiliary_step: float | None = field(default=1.0, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        check_positive("delta", self.delta)
        check_flag("bounded", self.bounded)
        if not isinstance(self.alpha, numbers.Real) or not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is {self.alpha!r}; it must be between 0 and 1.")


@dataclass(frozen=True)
class SGD(_Explicit):
    """Plain stochastic gradient steps of the double sum, for comparison: they overflow unless very short.

    Parameters
    ----------
    n_negatives, batch_size, auxiliary_step, basis :
        As in `UMax`.

    Notes
    -----
    An auxiliary variable that a step would make negative is set to 0, which lowers the objective (its optimum is not
    negative) and is not in the paper.
    """

    auxiliary_step: float | None = field(default=1.0, kw_only=True)


@dataclass(frozen=True)
class OVE(ClassSampler):
    """Stochastic gradient steps of the one-versus-each bound, for comparison: its optimum is not that of softmax.

    Source: M. Titsias, One-vs-each approximation to softmax for scalable estimation of probabilities (2016).
    """

    def step(self, c, tau, log_a, score, target, mobility, u) -> Step:
        push = c * jnp.exp(log_a[:-1]) * jax.nn.sigmoid(score[:-1] - score[-1])
        return Step.of_pair(push, jnp.sum(push), u, u)


@dataclass(frozen=True)
class NCE(ClassSampler):
    """Noise-contrastive estimation with uniform noise, for comparison: biased for finitely many negatives.

    The normaliser is fixed at 1, and a negative that is the label still counts as noise. Source: M. Gutmann,
    A. Hyvarinen, Noise-contrastive estimation (2012).
    """

    hits: ClassVar[bool] = True

    def log_weight(self, n_classes: int, m: int, n: int) -> float:
        return math.log(m / n_classes)  # of a class's expected count among the negatives

    def step(self, c, tau, log_a, score, target, mobility, u) -> Step:
        push, pull = jax.nn.sigmoid(score[:-1] - log_a[:-1]), jax.nn.sigmoid(log_a[0] - score[-1])
        return Step.of_pair(c * push, c * pull, u, u)


@dataclass(frozen=True)
class ImportanceSampling(ClassSampler):
    """Softmax over the label and the sampled classes only, for comparison: biased for finitely many negatives.

    Source: Y. Bengio, J.-S. Senecal, Adaptive importance sampling to accelerate training of a neural probabilistic
    language model (2008).

    Parameters
    ----------
    weighted : bool
        Weight the negatives by the inverse of their sampling probability. Otherwise negatives that are the label also
        take part.
    """

    weighted: bool = False

    @property
    def hits(self) -> bool:
        """Whether shared negatives equal to a row's own label take part."""
        return not self.weighted

    def step(self, c, tau, log_a, score, target, mobility, u) -> Step:
        delta = score[:-1] - score[-1] + (log_a[:-1] if self.weighted else 0.0)
        total = log1p_sum_exp(delta)
        return Step.of_pair(c * jnp.exp(delta - total), -c * jnp.expm1(-total), u, u)


@dataclass(frozen=True)
class SampledSoftmax(ImportanceSampling):
    """Steps of batches by the softmax over their labels and shared negatives: two matrix products, for most classes.

    Parameters
    ----------
    n_negatives : int
        Classes sampled per step, shared by its rows.
    batch_size : int
        Rows per step.
    weighted : bool
        Weight the negatives by the inverse of their sampling probability.
    basis :
        As in `ImplicitSGD`.

    Notes
    -----
    Steps use the exact gradient if there are no more classes than negatives. With more classes, the estimate of the
    normaliser is unbiased and its logarithm is not: its bias is of the order of the relative variance of the estimate,
    which falls with the number of negatives. `ImplicitSGD` and `UMax` are unbiased, but further from the optimum after
    the same time. Cost per step O(n m + (n + m) D), for any number of classes. Source: S. Jean et al., On using very
    large target vocabulary for neural machine translation (2015), with uniform negatives, distinct and shared.
    """

    n_negatives: int = 1024
    batch_size: int = 256
    weighted: bool = True

    def first_step(self, problem) -> float:
        """Return a step that rows of one size and the most frequent class tolerate (measured)."""
        if self.basis == "raw":
            return super().first_step(problem)
        n, d = min(self.batch_size, self.n_visits(problem)), len(self.coordinates(problem).units) + 1
        largest = problem.class_totals.max() / problem.class_totals.sum()
        return min(_STEP_OF_ROW * n * min(1.0, _WIDE / d), _OF_LARGEST / largest) / self.visit_weight(problem)
