"""Metrics: what turns a gradient into a direction. One that all fits share, or one of a fit's own.

Small arrays only, float64 on the host. Coordinates are coefficients of centred features, and the intercept there.
"""

from typing import Self

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from .basis import SpectralBasis

_LIFT = 1e-7  # of the scaled diagonal: what single precision makes of a Hessian that is nearly singular


class SharedMetric:
    """The spectral basis times the curvature of each fit: right where curvature is spread evenly over the rows.

    Curvature is the mean of each fit, (fit,), and the ridge is along the directions of the basis, (direction, fit).
    """

    def __init__(self, basis: SpectralBasis, curvature, ridge):
        self.basis, self.curvature = basis, curvature
        self.ridge, self.scale = ridge, 1 / (curvature + ridge)

    def solve(self, g: np.ndarray) -> np.ndarray:
        """Apply the inverse to gradients, (feature + 1, fit)."""
        inside = self.basis.whiten.T @ g[:-1]
        return np.vstack([self.basis.whiten @ (self.scale * inside), g[-1] / self.curvature])

    def part(self, index: np.ndarray) -> Self:
        """Return that of some of the fits."""
        return SharedMetric(self.basis, self.curvature[index], self.ridge[:, index])


class OwnMetric:
    """The Hessian of one fit: ``matrix`` in features divided by ``scale``, intercept last, and the ridge (feature,)."""

    def __init__(self, matrix, ridge, scale):
        inside = np.arange(len(scale))
        matrix[inside, inside] += ridge / scale**2
        diagonal = np.diag(matrix)
        self._root = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        scaled = matrix / np.outer(self._root, self._root)
        inside = np.arange(len(scaled))
        lift = _LIFT
        while True:
            scaled[inside, inside] = 1 + lift
            try:
                self._lower = np.linalg.cholesky(scaled)
                break
            except np.linalg.LinAlgError:
                lift = max(10 * lift, 1e-12)
                if lift > 1:
                    self._lower = np.eye(len(scaled))
                    break
        self._unit = self._root * np.append(scale, 1.0)

    def solve(self, gradient) -> np.ndarray:
        """Apply the inverse to one gradient, intercept last."""
        return cho_solve((self._lower, True), gradient / self._unit, check_finite=False) / self._unit

    def factor(self) -> np.ndarray:
        """Return F with F'F the inverse, intercept last."""
        return solve_triangular(self._lower, np.diag(1 / self._unit), lower=True, check_finite=False)
