"""Distance of fits from their optima, by nearby Hessians; theory: docs/theory/nested_models.md."""

from typing import Any

import numpy as np

from ...bounds import gap_bound

_INFLATED = 1e-4  # of a squared norm: more than the rounding of products with a nearly singular Hessian


class Nearness:
    """Known distance of some fits from their optima, by the Hessians of their anchors, (fit,) each."""

    def __init__(self, models: Any, leads: Any, lead, sets, reach, H, start):
        self._models, self._leads, self._lead, self._sets = models, leads, lead, sets
        self._reach, self._H, self._start = reach, H, start
        self.decrement, self.moved, self.bound, self.radius, self.growth = np.full((5, len(lead)), np.inf)

    def look(self, some: np.ndarray, at: np.ndarray, decrement: np.ndarray) -> None:
        """Store where some fits are; predictors have moved no more than their reach allows."""
        away = at - self._start[some]
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.sqrt(self._reach[some] * np.einsum("ni,ni->n", away, times(self._H[some], away)))
        self.decrement[some], self.moved[some] = decrement, moved
        self._bound(some, at)

    def look_again(self, at: np.ndarray, some: np.ndarray) -> None:
        """Measure how far predictors of some fits have actually moved."""
        if len(some):
            self.moved[some] = self._models.largest(at[some] - self._start[some])
            self._bound(some, at[some])

    def _bound(self, some: np.ndarray, at: np.ndarray) -> None:
        models, constant = self._models, self._models.constant
        with np.errstate(over="ignore", invalid="ignore"):
            log = models.log_growth(self._leads, self._lead[some], self._sets[some], self.moved[some])
            growth = np.exp(log)
            rounding = models.rounding(at)
            known = growth * (self.decrement[some] + 2 * rounding), growth * self._reach[some]
            self.bound[some] = gap_bound(*known, True, constant) + rounding
            self.radius[some], self.growth[some] = _radius(*known, constant), growth


def squared_norm(H, inverse, g, x) -> tuple[np.ndarray, np.ndarray]:
    """Bound ``g'H^-1 g`` from a rounded inverse, inf if that fails; and refine the solution, (fit, member)."""
    x = x + times(inverse, g - times(H, x))
    left = g - times(H, x)
    norm = np.sum(x * (g + left), axis=1) + 2 * np.abs(np.sum(left * times(inverse, left), axis=1))
    return np.where(norm >= 0, norm * (1 + _INFLATED), np.inf), x


def solve(H: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve many small systems, (fit, member)."""
    return np.linalg.solve(H, right[..., None])[..., 0]


def times(H: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Multiply many small matrices by a vector each, (fit, member)."""
    return (H @ vectors[..., None])[..., 0]


def _radius(decrement_squared, reach_squared, constant) -> np.ndarray:
    """Bound of the distance from the optimum in the norm of a Hessian, inf if there is none."""
    if constant == 0:
        return np.sqrt(decrement_squared)
    reach = constant * np.sqrt(reach_squared)
    q = reach * np.sqrt(decrement_squared)
    return np.where(q < 1, -np.log1p(-np.minimum(q, 1 - 1e-12)) / reach, np.inf) * (1 + 1e-9)
