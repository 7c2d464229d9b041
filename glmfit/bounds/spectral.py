"""Certified extreme eigenvalues of many symmetric matrices at once, from a few matrix products.

The largest eigenvalue cannot lie far above the largest Ritz value of a Lanczos recursion, unless its random start was
nearly orthogonal to the eigenvector, and the probability of that is known: docs/theory/lanczos_certificate.md.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from ..compilation import full_precision

_PARTS = np.arange(1, 16) / 16  # of an interval, tried at once


@full_precision
def lanczos(matvec: Callable, start: jax.Array, n_steps: int) -> tuple[jax.Array, jax.Array]:
    """Run the Lanczos recursion on one symmetric matrix per column, all columns together.

    Parameters
    ----------
    matvec :
        Maps (dimension, column) to (dimension, column), column by column with that column's matrix.
    start :
        Start vectors of unit norm, (dimension, column).
    n_steps :
        Number of products with the matrices.

    Returns
    -------
    alpha, beta :
        Diagonals and residual norms, both (step, column); ``beta[j]`` is the norm left after step j.

    Notes
    -----
    Full re-orthogonalisation keeps the recursion exact up to rounding. If the Krylov space is exhausted, the next
    direction is set to zero, and every later alpha and beta of that column is zero.
    """

    def step(j, state):
        basis, v, alpha, beta, scale = state
        basis, w = basis.at[j].set(v), matvec(v)
        a = jnp.sum(v * w, axis=0)
        # Subtract the large parts first: then the sweep over the basis removes only rounding.
        w = w - a[None] * v - jnp.where(j > 0, beta[j - 1][None] * basis[j - 1], 0)
        overlap = jnp.einsum("kpn,pn->kn", basis, w)
        w = w - jnp.einsum("kpn,kn->pn", basis, overlap)
        largest = jnp.max(jnp.abs(w), axis=0)  # squares of large or small numbers overflow or vanish
        unit = jnp.where(largest > 0, largest, 1)
        b = unit * jnp.sqrt(jnp.sum((w / unit[None]) ** 2, axis=0))
        scale = jnp.maximum(scale, jnp.abs(a) + b)
        alive = b > 8 * jnp.finfo(v.dtype).eps * scale
        v = jnp.where(alive[None], w / jnp.where(alive, b, 1)[None], 0)
        exhausted = ~alive & jnp.isfinite(scale)  # non-finite values stay, and give no bound
        return basis, v, alpha.at[j].set(a), beta.at[j].set(jnp.where(exhausted, 0, b)), scale

    zeros = jnp.zeros((n_steps, start.shape[1]), start.dtype)
    state = jnp.zeros((n_steps, *start.shape), start.dtype), start, zeros, zeros, zeros[0]
    _, _, alpha, beta, _ = jax.lax.fori_loop(0, n_steps, step, state)
    return alpha, beta


def random_start(rng: np.random.Generator, dimension: int, dtype: DTypeLike) -> np.ndarray:
    """Draw one vector uniformly on the unit sphere, which all columns of one certificate may share.

    Parameters
    ----------
    rng : numpy.random.Generator
        Fresh for every certificate whose matrices depend on earlier starts.
    dimension : int
    dtype : numpy dtype

    Returns
    -------
    numpy.ndarray
        (dimension, 1).
    """
    v = rng.standard_normal((dimension, 1))
    return (v / np.linalg.norm(v)).astype(dtype)


def bound_largest_eigenvalue(
    alpha: np.ndarray, beta: np.ndarray, dimension: int, failure_probability: float
) -> np.ndarray:
    r"""Bound the largest eigenvalue of each matrix from above, given its Lanczos coefficients.

    Parameters
    ----------
    alpha, beta :
        Lanczos coefficients, (step, ...), from :func:`lanczos` with a start uniform on the sphere.
    dimension :
        Dimension of the matrices.
    failure_probability :
        Probability, per matrix, that the returned value is *below* the largest eigenvalue. Divide by the
        number of matrices (and of ends) for a statement about all of them.

    Returns
    -------
    numpy.ndarray
        float64 upper bounds, (...), at least the largest Ritz value; infinite where a coefficient is not finite.

    Raises
    ------
    ValueError
        If the failure probability is not in (0, 1).

    Notes
    -----
    The bound is the value x above the largest Ritz value at which some Lanczos polynomial :math:`|q_j(x)|/\beta_j`
    reaches :math:`1/\delta`, :math:`\delta = p\sqrt{\pi/(2m)}` in dimension m: proof in
    docs/theory/lanczos_certificate.md. It is inflated by 1e-3 for coefficients in float32 (1e-9 in float64) to cover
    the rounding of the matrix products. Cost: some searches among 15 points, each of O(steps), on the host in float64.
    """
    if not 0 < failure_probability < 1:
        raise ValueError(f"failure_probability is {failure_probability}; it must lie in (0, 1), for example 1e-3")
    single = np.asarray(alpha).dtype == np.float32
    unit = np.finfo(np.float32 if single else np.float64).eps
    shape = np.shape(alpha)[1:]
    alpha, beta, used, bad = _read(alpha, beta)
    scale = np.max(np.abs(alpha) + beta, axis=0)
    floor = 8 * unit * scale + np.finfo(np.float64).tiny
    beta_up = np.maximum(beta, floor)  # the rounding of the products, where the Krylov space is exhausted
    log_inverse_delta = -np.log(failure_probability * np.sqrt(np.pi / (2 * dimension)))

    low = _largest_ritz(alpha, beta, used)
    high = low + floor
    gap = np.maximum(np.abs(low), scale) + floor
    for _ in range(200):  # double the distance until certified
        short = ~_reaches(high, alpha, beta_up, used, log_inverse_delta)
        if not short.any():
            break
        high = np.where(short, low + gap, high)
        gap = np.where(short, 2 * gap, gap)
    margin = 1e-3 if single else 1e-9
    for _ in range(15):  # any value that reaches is a bound: what the margin hides need not be found
        if np.all(high - low <= margin / 16 * np.abs(high) + floor):
            break
        points = np.stack([low, *(low + part * (high - low) for part in _PARTS), high])
        enough = _reaches(points[1:-1], alpha, beta_up, used, log_inverse_delta)
        first = np.argmax(np.concatenate([enough, np.ones((1, len(low)), bool)]), axis=0)
        low, high = (np.take_along_axis(points, (first + side)[None], axis=0)[0] for side in (0, 1))
    high = np.where(bad, np.inf, high)
    return (high + margin * np.abs(high) + (8 * unit) * scale).reshape(shape)


def bound_smallest_eigenvalue(
    alpha: np.ndarray, beta: np.ndarray, dimension: int, failure_probability: float
) -> np.ndarray:
    """Bound the smallest eigenvalue of each matrix from below.

    Parameters
    ----------
    alpha, beta, dimension, failure_probability :
        As in :func:`bound_largest_eigenvalue`, whose proof is that of the negative matrix; the probability is that the
        value is above the smallest eigenvalue.

    Returns
    -------
    numpy.ndarray
        float64 lower bounds, (...); a negative one means "no bound" for a positive semi-definite matrix.
    """
    return -bound_largest_eigenvalue(-np.asarray(alpha), beta, dimension, failure_probability)


def _read(alpha, beta):
    """Coefficients (step, matrix) in float64, which of them count, and the matrices with a nan or inf, given zeros."""
    alpha, beta = (np.asarray(a, np.float64).reshape(len(a), -1) for a in (alpha, beta))
    bad = ~np.all(np.isfinite(alpha) & np.isfinite(beta), axis=0)
    alpha, beta = np.where(bad, 0.0, alpha), np.where(bad, 0.0, beta)
    # After an exhausted Krylov space (beta = 0) nothing further counts.
    used = np.cumprod(np.concatenate([np.ones((1, len(bad)), bool), beta[:-1] > 0]), axis=0).astype(bool)
    return alpha, beta, used, bad


def _largest_ritz(alpha, beta, used):
    """Largest eigenvalue of each leading tridiagonal matrix, exhausted steps excluded."""
    n_steps, n = alpha.shape
    matrix = np.zeros((n, n_steps, n_steps))
    steps = np.arange(n_steps)
    matrix[:, steps, steps] = np.where(used, alpha, alpha[0]).T
    off = np.where(used[1:], beta[:-1], 0.0).T
    matrix[:, steps[:-1], steps[1:]] = matrix[:, steps[1:], steps[:-1]] = off
    return np.linalg.eigvalsh(matrix)[:, -1]


def _reaches(x, alpha, beta, used, log_target):
    """Whether some Lanczos polynomial reaches the target at x (x above every Ritz value), in the log domain."""
    # With x above all Ritz values every p_j(x) is positive and their ratios r_j = p_(j+1)/p_j obey
    # r_j = (x - alpha_j - beta_(j-1)/r_(j-1)) / beta_j, which cannot overflow as the polynomials do.
    log_p, correction, reached = np.zeros(x.shape), np.zeros(x.shape), np.zeros(x.shape, bool)
    for a, b, counts in zip(alpha, beta, used, strict=True):
        ratio = (x - a - correction) / b
        positive = ratio > 0
        ratio = np.where(positive, ratio, 1.0)
        log_p = np.where(counts, np.where(positive, log_p + np.log(ratio), -np.inf), log_p)
        reached |= counts & (log_p >= log_target)
        correction = b / ratio
    return reached
