"""Single pairs of a two-tower model, drawn with replacement: the method everything else is compared with."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax

from .._checks import check_whole
from .._compile import jit
from .base import TwoSided
from .tower_sampling import TowerSampler, TowerSamplerState, move


@dataclass(frozen=True)
class SampledPairs(TowerSampler):
    r"""Steps from drawn pairs: observed ones evenly, imputed ones by their cost, with weights that make it unbiased.

    Parameters
    ----------
    n_observed : int
        Observed pairs per step.
    n_imputed : int
        Imputed pairs per step.
    learning_rate : float
        Of the first epoch. For "sgd" it multiplies the gradient of a sum over all pairs and has to be far smaller.
    decay : float
        The rate of an epoch is ``learning_rate / (1 + decay * epoch)``.
    optimizer : {"adam", "sgd"}
        What is done with a gradient (optax).

    Notes
    -----
    This is how such models are usually fitted; it is here for comparison. The estimate of the objective and of its
    gradient is unbiased, and the noisiest there is: it comes near an optimum and does not converge. Its curvature may
    be negative, as observed and imputed pairs are drawn apart. Use `LeftBatches` where batches are needed at all.

    A step evaluates the towers of ``n_observed + n_imputed`` pairs; an epoch is as many steps as make a pass over the
    observed pairs. The objective of all pairs is looked at every 5 epochs.

    References
    ----------
    Krichene et al. (2019), Efficient training on very large corpora via Gramian estimation;
    docs/theory/all_pairs.md.
    """

    n_observed: int = 1024
    n_imputed: int = 4096
    learning_rate: float = 0.03
    decay: float = 0.1
    optimizer: str = "adam"

    def __post_init__(self):
        super().__post_init__()
        check_whole("n_observed", self.n_observed, 1)
        check_whole("n_imputed", self.n_imputed, 1)

    def init_state(self, problem: TwoSided, theta, *, key) -> TowerSamplerState:
        """Evaluate the start, and lay the observed pairs out."""
        return super().init_state(problem, theta, key=key)._replace(pairs=problem.observed_pairs)

    def update(self, problem: TwoSided, state: TowerSamplerState) -> TowerSamplerState:
        """Draw about as many observed pairs as there are."""
        n_steps = max(1, problem.n_pairs // self.n_observed)
        theta, moments = _epoch(
            problem.data,
            state.pairs,
            state.theta,
            state.moments,
            jax.random.split(jax.random.fold_in(state.key, state.epoch), n_steps),
            self.rate(state),
            self.optimizer,
            (self.n_observed, self.n_imputed),
        )
        return state._replace(
            epoch=state.epoch + 1,
            theta=theta,
            moments=moments,
            evaluations=state.evaluations + n_steps * self.n_observed / problem.n_pairs,
            fresh=False,
        )


@functools.partial(jit, static_argnames=("optimizer", "sizes"))
def _epoch(data, pairs, theta, moments, keys, rate, optimizer: str, sizes: tuple[int, int]):
    """Take a step per key."""

    def one(carry, key):
        theta, moments = carry
        sample = data.draw(key, pairs, *sizes)
        gradient = jax.grad(data.sampled)(theta, sample)
        return move(theta, moments, gradient, rate, optimizer), None

    return jax.lax.scan(one, (theta, moments), keys)[0]
