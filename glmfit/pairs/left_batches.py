"""Minibatches over the left entities of a two-tower model, against all right ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax

from .._checks import check_whole
from .._compile import jit
from ..solvers._seed import seed_of
from .base import TwoSided
from .tower_sampling import TowerSampler, TowerSamplerState, move


@dataclass(frozen=True)
class LeftBatches(TowerSampler):
    r"""Minibatches over left entities (stimuli), each with all its observed pairs and all right entities (neurons).

    Parameters
    ----------
    batch_size : int
        Left entities per step; all of them if there are not so many. What is left over after whole batches waits for
        another epoch, in a new order.
    learning_rate : float
        Of the first epoch. For "sgd" it multiplies the gradient of a sum over all pairs and has to be far smaller.
    decay : float
        The rate of an epoch is ``learning_rate / (1 + decay * epoch)``.
    optimizer : {"adam", "sgd"}
        What is done with a gradient (optax).

    Notes
    -----
    The imputed part of a batch is exact in the right entities by their Gram matrix: the gradient is unbiased for both
    towers, and its curvature is never negative. It does not converge to a tight tolerance: finish with `TowerLBFGS`.

    An epoch costs about a pass over the observed pairs, the left tower once, and the right tower and its Gram matrix
    once per step. The objective of all pairs is looked at every 5 epochs.

    References
    ----------
    Yuan, Li, Quan, Lin, Efficient optimization methods for extreme similarity learning with nonlinear embeddings,
    KDD 2021; docs/theory/all_pairs.md.
    """

    batch_size: int = 128
    learning_rate: float = 0.03
    decay: float = 0.03
    optimizer: str = "adam"

    def __post_init__(self):
        super().__post_init__()
        check_whole("batch_size", self.batch_size, 1)

    def update(self, problem: TwoSided, state: TowerSamplerState) -> TowerSamplerState:
        """Visit every left entity once, but for what is left over."""
        seed = seed_of(jax.random.fold_in(state.key, state.epoch))
        rows, observed = problem.left_batches(min(self.batch_size, problem.n_left), seed)
        theta, moments = _epoch(
            problem.data, state.theta, state.moments, (rows, observed), self.rate(state), self.optimizer
        )
        return state._replace(
            epoch=state.epoch + 1,
            theta=theta,
            moments=moments,
            evaluations=state.evaluations + rows.size / problem.n_left,
            fresh=False,
        )


@functools.partial(jit, static_argnames="optimizer")
def _epoch(data, theta, moments, batches, rate, optimizer: str):
    """Take a step per batch."""

    def one(carry, batch):
        theta, moments = carry
        gradient = data.take(*batch).value_and_gradient(theta)[1]
        return move(theta, moments, gradient, rate, optimizer), None

    return jax.lax.scan(one, (theta, moments), batches)[0]
