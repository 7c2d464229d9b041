"""Losses known by their value alone: of a row's whole linear predictor, whose outputs may be coupled."""

import abc

import jax
import jax.numpy as jnp

from glmfit._types import Array


class RowLoss(abc.ABC):
    """Loss of one row as a function of its linear predictor of all outputs, in JAX.

    Unlike an `Observation` it promises nothing of its curvature: derivatives come from automatic
    differentiation, and what rests on them is an estimate. A subclass must be hashable and equal to every
    instance that computes the same, so that it can be a static argument of `jax.jit`.

    Attributes
    ----------
    n_coupled : int
        Outputs that are coupled: the columns come in consecutive sets of this size (the classes of a softmax),
        1 where every column has a loss of its own.
    """

    n_coupled: int = 1

    @abc.abstractmethod
    def total(self, y: Array, eta: Array, weight: Array) -> jax.Array:
        """Sum the weighted losses of rows.

        Parameters
        ----------
        y : jax.Array
            Targets, (row, target).
        eta : jax.Array
            Linear predictor, (row, column).
        weight : jax.Array
            Of the rows, (row, 1).

        Returns
        -------
        jax.Array
            Number.
        """

    def derivative(self, y: Array, eta: Array) -> jax.Array:
        """Compute the gradient of every row's loss in its linear predictor, (row, column)."""
        ones = jnp.ones((eta.shape[0], 1), eta.dtype)
        return jax.grad(lambda e: self.total(y, e, ones))(eta)
