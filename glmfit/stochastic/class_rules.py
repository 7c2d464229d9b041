"""What one step of each solver that samples classes does: the only place where their formulas stand.

A rule sees scores and returns pushes; it knows neither features nor weights. It says whether its steps are
``implicit``, use an ``auxiliary`` variable, and count ``hits``, shared negatives that are a row's own label. Those of
the double sum also know steps on whole rows of counts. Rules are static arguments of the kernels, so they hold what
never changes during a fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from .implicit import Impulse, implicit_counts, implicit_pair, implicit_step
from .lambert import log1p_sum_exp


class CountStep(NamedTuple):
    """Step on a row of counts.

    Attributes
    ----------
    amount : jax.Array
        What is added per class touched, in rows, (class,).
    raised : number
        Auxiliary variable before the step proper.
    u : number
        Auxiliary variable after it.
    """

    amount: jax.Array
    raised: jax.Array
    u: jax.Array


@dataclass(frozen=True)
class ImplicitRule:
    """Exact proximal step of the sampled double sum.

    Attributes
    ----------
    alpha : float
        0 for the form relative to the label's score, 1 for the absolute one.
    """

    alpha: float = 0.0
    implicit: ClassVar[bool] = True
    auxiliary: ClassVar[bool] = True
    hits: ClassVar[bool] = False

    def step(self, c, log_a, score, score_label, mobility, u) -> Impulse:
        """Step of one row: scores of its negatives and of its label, all at weights already shrunk."""
        if self.alpha == 1:
            score, log_a = jnp.append(score, score_label), jnp.append(jnp.full_like(score, log_a), 0.0)
            target = jnp.zeros_like(score).at[-1].set(1.0)
            step = self.step_counts(c, log_a, score, target, mobility, u)
            return Impulse(-step.amount[:-1], step.amount[-1], step.u)
        delta = score - score_label
        if delta.shape[-1] == 1:
            pair = implicit_pair(c, log_a, delta[0], 2 * mobility, u)
            return Impulse(pair.push[None], pair.pull, pair.u)
        return implicit_step(c, log_a, delta, mobility, mobility, u)

    def step_counts(self, c, log_a, score, target, mobility, u) -> CountStep:
        """Step of a row of counts, absolute form."""
        step = implicit_counts(c, log_a, score, target, mobility, u)
        return CountStep(c * target - step.push, u, step.v)


@dataclass(frozen=True)
class AllClasses:
    """Exact proximal step over all classes: it needs the scores of all, so the formula stands with the kernel."""

    implicit: ClassVar[bool] = True
    auxiliary: ClassVar[bool] = False


@dataclass(frozen=True)
class ExplicitRule:
    """Gradient step of the sampled double sum; with ``raise_at`` the step of U-max.

    Attributes
    ----------
    alpha : float
        Of the family of double sums, 0 to 1.
    raise_at : float
        The auxiliary variable is first raised to what the sampled classes prove where it is this far below; inf for
        plain stochastic gradients.
    u_bound : float
        Upper limit of the auxiliary variable.
    """

    alpha: float = 0.0
    raise_at: float = float("inf")
    u_bound: float = float("inf")
    implicit: ClassVar[bool] = False
    auxiliary: ClassVar[bool] = True
    hits: ClassVar[bool] = False

    def step(self, c, log_a, score, score_label, mobility, u) -> Impulse:
        """Step of one row; all exponentials use the old weights, and U-max's are at most ``exp(raise_at)``."""
        delta, own = score - (1 - self.alpha) * score_label, self.alpha * score_label
        if self.raise_at < jnp.inf:
            # Distinct classes only: repeated ones would prove too much.
            known = own + log1p_sum_exp(delta - own)
            u = jnp.where(u < known - self.raise_at, known, u)
        push, label = jnp.exp(log_a + delta - u), jnp.exp(own - u)
        total = jnp.sum(push)
        moved = u - c * (1 - label - total)
        if self.alpha == 0:
            moved = jnp.maximum(moved, 0.0)  # where its optimum lies, whatever the weights
        pull = self.alpha * (1 - label) + (1 - self.alpha) * total
        return Impulse(c * push, c * pull, jnp.minimum(moved, self.u_bound))

    def step_counts(self, c, log_a, score, target, mobility, u) -> CountStep:
        """Step of a row of counts; scores are relative to their mean over the counts (alpha = 0) or absolute (1)."""
        relative = score - (1 - self.alpha) * jnp.sum(target * score)
        if self.raise_at < jnp.inf:
            known = jax.nn.logsumexp(jnp.where(log_a > -jnp.inf, relative, -jnp.inf))
            u = jnp.where(u < known - self.raise_at, known, u)
        push = jnp.exp(log_a + relative - u)
        total = jnp.sum(push)
        moved = u - c * (1 - total)
        if self.alpha == 0:
            moved = jnp.maximum(moved, 0.0)  # its optimum is at least the entropy of the counts
        amount = c * ((self.alpha + (1 - self.alpha) * total) * target - push)
        return CountStep(amount, u, jnp.minimum(moved, self.u_bound))


@dataclass(frozen=True)
class OneVersusEach:
    """Gradient step of the one-versus-each bound of the likelihood, which is not the likelihood.

    References
    ----------
    M. Titsias, One-vs-each approximation to softmax for scalable estimation of probabilities (2016).
    """

    implicit: ClassVar[bool] = False
    auxiliary: ClassVar[bool] = False
    hits: ClassVar[bool] = False

    def step(self, c, log_a, score, score_label, mobility, u) -> Impulse:
        """Step of one row."""
        push = c * jnp.exp(log_a) * jax.nn.sigmoid(score - score_label)
        return Impulse(push, jnp.sum(push), u)


@dataclass(frozen=True)
class NoiseContrastive:
    """Gradient step of noise-contrastive estimation with uniform noise and the normaliser fixed at 1.

    Attributes
    ----------
    log_expected : float
        Logarithm of a class's expected count among the negatives, m/K.

    References
    ----------
    M. Gutmann, A. Hyvarinen, Noise-contrastive estimation (2012).
    """

    log_expected: float
    implicit: ClassVar[bool] = False
    auxiliary: ClassVar[bool] = False
    hits: ClassVar[bool] = True

    def step(self, c, log_a, score, score_label, mobility, u) -> Impulse:
        """Step of one row; a negative that is the label counts as noise all the same."""
        push = c * jax.nn.sigmoid(score - self.log_expected)
        return Impulse(push, c * jax.nn.sigmoid(self.log_expected - score_label), u)


@dataclass(frozen=True)
class SampledSoftmax:
    """Gradient step of a softmax over the label and the negatives only (importance sampling).

    Attributes
    ----------
    weighted : bool
        Whether negatives are weighted by ``exp(log_a)`` and those equal to the label left out.

    References
    ----------
    Y. Bengio, J.-S. Senecal, Adaptive importance sampling to accelerate training of a neural probabilistic
    language model (2008).
    """

    weighted: bool = False
    implicit: ClassVar[bool] = False
    auxiliary: ClassVar[bool] = False

    @property
    def hits(self) -> bool:
        """Whether negatives equal to the label take part."""
        return not self.weighted

    def step(self, c, log_a, score, score_label, mobility, u) -> Impulse:
        """Step of one row."""
        delta = score - score_label + (log_a if self.weighted else 0.0)
        total = log1p_sum_exp(delta)
        push = c * jnp.exp(delta - total)
        return Impulse(push, -c * jnp.expm1(-total), u)
