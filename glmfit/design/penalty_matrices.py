"""Penalty matrices of smooth terms: differences of coefficients, of splines with any knots, and of tensor products."""

from collections.abc import Sequence
from functools import reduce

import numpy as np


def gram(differences: np.ndarray) -> np.ndarray:
    """Return D'D, symmetric to the last bit."""
    found = differences.T @ differences
    return (found + found.T) / 2


def differences(n: int, order: int) -> np.ndarray:
    """Ordinary differences of n coefficients, (n - order, n)."""
    return np.diff(np.eye(n), order, axis=0)


def circular_differences(n: int, order: int) -> np.ndarray:
    """Differences of n coefficients around a circle, (n, n)."""
    around = np.roll(np.eye(n), 1, axis=1) - np.eye(n)
    return np.linalg.matrix_power(around, order)


def clamped_knots(n: int, order: int) -> np.ndarray:
    """Knots of n splines that all end at the borders, in units of the distance of inner knots."""
    intervals = n - order + 1
    return np.r_[np.zeros(order - 1), np.arange(intervals + 1.0), np.full(order - 1, float(intervals))]


def even_knots(n: int, order: int) -> np.ndarray:
    """Evenly spaced knots of n splines, order - 1 of them beyond each border, in units of their distance."""
    return np.arange(1.0 - order, n + 1)


def spline_differences(knots: np.ndarray, order: int, times: int) -> np.ndarray:
    """General differences of B-splines, (n - times, n): coefficients of a derivative as splines of a lower order.

    Each difference of neighbouring coefficients is divided by the mean distance of the knots between them (Li and Cao
    2022, General P-splines for non-uniform B-splines, arXiv:2201.06808; de Boor 2001, chapter X). Polynomials of a
    degree below ``times`` have derivative 0, so they are the null space whatever the knots; evenly spaced knots with
    distance 1 give ordinary differences.
    """
    n = len(knots) - order
    found = np.eye(n)
    for i in range(1, times + 1):
        low = np.arange(i, n)
        distance = (knots[low + order - i] - knots[low]) / (order - i)
        found = np.diff(found, axis=0) / distance[:, None]
    return found


def in_tensor(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """Kronecker product of any number of matrices, the first one's index slowest."""
    return reduce(np.kron, matrices)


def of_factor(matrix: np.ndarray, sizes: Sequence[int], which: int) -> np.ndarray:
    """Penalty of one factor of a tensor product: I x ... matrix ... x I."""
    return in_tensor([matrix if i == which else np.eye(size) for i, size in enumerate(sizes)])


def isotropic(first: Sequence[np.ndarray], second: Sequence[np.ndarray], spacing: Sequence[float]) -> np.ndarray:
    """Penalise all second derivatives alike, in the units of the features.

    ``first`` and ``second`` are differences of each factor, (difference, size), ``spacing`` its knot distance. Unequal
    distances are compensated, in units of their geometric mean, so that equal ones leave all weights 1 and 2.
    """
    sizes = [matrix.shape[1] for matrix in first]
    scale = np.exp(np.mean(np.log(spacing))) / np.asarray(spacing)
    total = sum(of_factor(gram(d) * scale[i] ** 4, sizes, i) for i, d in enumerate(second))
    for i in range(len(sizes)):
        for j in range(i):
            mixed = [gram(d) if k in (i, j) else np.eye(d.shape[1]) for k, d in enumerate(first)]
            total = total + 2 * (scale[i] * scale[j]) ** 2 * in_tensor(mixed)
    return total
