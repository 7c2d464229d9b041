"""Many small systems of linear equations at once, (fit, ...)."""

import numpy as np

_INFLATED = 1e-4  # of a squared norm: more than the rounding of products with a nearly singular matrix


def times(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Multiply every matrix by a vector."""
    return (matrices @ vectors[..., None])[..., 0]


def solve(matrices: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve every system for one right side."""
    return np.linalg.solve(matrices, right[..., None])[..., 0]


def solve_bounded(A: np.ndarray, inverse: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solve A x = g by rounded inverses; also returns bounds of g'A^-1 g, (fit,), inf where there is none."""
    x = times(inverse, g)
    x = x + times(inverse, g - times(A, x))
    left = g - times(A, x)
    squared = np.sum(x * (g + left), axis=1) + 2 * np.abs(np.sum(left * times(inverse, left), axis=1))
    return x, np.where(squared >= 0, squared * (1 + _INFLATED), np.inf)
