"""The metric a solver steps in: one scale per column, and for every neuron a centre of its own.

Why the centre: docs/theory/spectral_basis.md, "A centre for every neuron".
"""

from __future__ import annotations

from typing import NamedTuple

import jax


class Metric(NamedTuple):
    """Positive definite matrix ``M = S diag(scale) S'`` per neuron, S the change of centre.

    Measured from its centre the row z reads ``S'z``: the intercept's column stays, the centre is taken off the
    others. NumPy or JAX arrays; every method works on either.
    """

    scale: jax.Array  # (column, neuron), positive, intercept last
    centre: jax.Array  # (column - 1, neuron)

    def apply(self, g):
        """``M g``, (column, neuron)."""
        return self._shift_intercept(self.scale * self._from_centre(g))

    def root(self, x):
        """``R x`` with ``M = R R'``, (column, neuron)."""
        return self._shift_intercept(self.scale**0.5 * x)

    def root_transposed(self, g):
        """``R' g``, (column, neuron)."""
        return self.scale**0.5 * self._from_centre(g)

    def squared_norm(self, g):
        """``g'M g``, (neuron,)."""
        return (self.scale * self._from_centre(g) ** 2).sum(axis=0)

    def leverage(self, z, dot):
        """``z'M z`` of rows z (row, column) whose last entry is 1, (row, neuron); ``dot`` multiplies matrices."""
        xp = self.scale.__array_namespace__()
        shifted = -2 * self.scale[:-1] * self.centre
        constant = self.scale[-1] + xp.sum(self.scale[:-1] * self.centre**2, axis=0)
        return dot(z[:, :-1] ** 2, self.scale[:-1]) + dot(z[:, :-1], shifted) + constant[None]

    def _from_centre(self, g):
        xp = g.__array_namespace__()
        return xp.concat([g[:-1] - self.centre * g[-1:], g[-1:]])

    def _shift_intercept(self, x):
        xp = x.__array_namespace__()
        return xp.concat([x[:-1], x[-1:] - (self.centre * x[:-1]).sum(axis=0, keepdims=True)])
