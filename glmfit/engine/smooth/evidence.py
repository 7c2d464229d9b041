"""Marginal likelihood of strengths, for quadratic models of many fits at once.

Theory: docs/theory/smooth_terms.md. With the Hessian H of the loss (nats) and z = H g - gradient at the point where
both were taken, the penalised optimum of the quadratic model at strengths exp(rho) is g = A^-1 z, A = H + S, and minus
the logarithm of the marginal likelihood is, up to constants, -z'g / 2 + log det A / 2 - log det+ S / 2.
"""

from typing import NamedTuple

import numpy as np

from ..small_systems import times
from .coordinates import Coordinates

FLOOR, SINGLE_FLOOR = 1e-12, 1e-6  # of eigenvalues of scaled Hessians, in double and in single precision


class Quadratic(NamedTuple):
    """Quadratic models of the losses of fits, in coordinates, intercept last; ``scale`` divides losses into nats."""

    hessian: np.ndarray  # (fit, coordinate + 1, coordinate + 1)
    z: np.ndarray  # (fit, coordinate + 1)
    bend: np.ndarray | None = None  # third derivatives times leverages, (fit, coordinate + 1)
    inside: np.ndarray | None = None  # which coordinates a fit has, bool (fit, coordinate)
    floor: float | np.ndarray = FLOOR  # rounding of the eigenvalues of Hessians, for all or (fit,)

    def take(self, some) -> "Quadratic":
        """Take those of some fits."""
        floor = self.floor[some] if isinstance(self.floor, np.ndarray) else self.floor
        return Quadratic(*(None if a is None else a[some] for a in self[:4]), floor)


class Optimum(NamedTuple):
    """Penalised optimum of quadratic models at some strengths, and the marginal likelihood there."""

    at: np.ndarray  # (fit, coordinate + 1)
    inverse: np.ndarray  # of A, (fit, coordinate + 1, coordinate + 1)
    criterion: np.ndarray  # minus the log marginal likelihood, nats up to a constant, (fit,)
    gradient: np.ndarray  # by log strengths, (fit, penalty)
    curvature: np.ndarray  # (fit, penalty, penalty)
    ratio: np.ndarray  # factor of generalised Fellner-Schall for each strength, (fit, penalty)


def with_penalty(model: Quadratic, space: Coordinates, strengths: np.ndarray) -> np.ndarray:
    """Hessians of the penalised losses, (fit, coordinate + 1, coordinate + 1); 1 for coordinates that a fit lacks."""
    A, p = model.hessian.copy(), space.n_coordinates
    i = np.arange(p)
    if space.mixed:
        A[:, :p, :p] += space.penalty(strengths, model.inside)
    else:
        size = strengths @ space.diagonal
        A[:, i, i] += size if model.inside is None else size * model.inside
    if model.inside is not None:
        A[:, i, i] += ~model.inside
    return A


def optimum(model: Quadratic, space: Coordinates, strengths) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find optima of penalised models, inverses of their Hessians, 0 for coordinates that a fit lacks, and log dets."""
    inverse, log = invert(with_penalty(model, space, strengths), model.floor)
    if model.inside is not None:
        inverse[:, :-1] *= model.inside[:, :, None]
        inverse[:, :, :-1] *= model.inside[:, None]
    return times(inverse, model.z), inverse, log


def invert(matrices: np.ndarray, floor: float | np.ndarray = FLOOR) -> tuple[np.ndarray, np.ndarray]:
    """Inverses of positive definite matrices, and the logarithms of their determinants.

    With diagonals scaled to 1, eigenvalues below a share of the largest are rounding, and are raised to that share.
    """
    i = np.arange(matrices.shape[-1])
    root = np.sqrt(np.maximum(matrices[:, i, i], 1e-300))
    scaled = matrices / root[:, :, None]
    scaled /= root[:, None, :]
    try:
        diagonal = np.linalg.cholesky(scaled)[:, i, i]
        log = 2 * np.log(diagonal).sum(axis=1)
        inverse = np.linalg.inv(scaled)
        singular = np.flatnonzero(diagonal.min(axis=1) ** 2 < floor)
    except np.linalg.LinAlgError:
        log, inverse, singular = np.zeros(len(scaled)), np.empty_like(scaled), np.arange(len(scaled))
    for k in singular:
        inverse[k], log[k] = _lifted(scaled[k], float(np.broadcast_to(floor, len(scaled))[k]))
    inverse /= root[:, :, None]
    inverse /= root[:, None, :]
    return inverse, log + 2 * np.log(root).sum(axis=1)


def _lifted(scaled: np.ndarray, floor: float) -> tuple[np.ndarray, float]:
    """Inverse and log determinant of a matrix whose lowest eigenvalues are raised."""
    values, vectors = np.linalg.eigh(scaled)
    values = np.maximum(values, floor * max(values[-1], 1e-300))
    return (vectors / values) @ vectors.T, float(np.log(values).sum())


def evaluate(model: Quadratic, space: Coordinates, rho: np.ndarray) -> Optimum:
    """Find the optimum of quadratic models at strengths exp(rho), (fit, penalty), and derivatives of the evidence."""
    strengths, p, D = np.exp(rho), space.n_coordinates, space.diagonal
    at, inverse, log = optimum(model, space, strengths)
    g = at[:, :p]
    inner = inverse[:, :p, :p]
    W = strengths[:, :, None] * D  # (fit, penalty, coordinate)
    if model.inside is not None:
        W = W * model.inside[:, None, :]
    size = W.sum(axis=1)
    held = np.where(size > 0, size, 1.0)
    pull = W * g[:, None, :]  # S_j g
    traces = W @ np.einsum("nii->ni", inner)[..., None]
    ranks = (W / held[:, None, :]).sum(axis=2)
    across = 0.5 * _outer(W / held[:, None, :])
    traces, logs = traces[..., 0], np.log(held).sum(axis=1)
    if space.mixed:
        solved = W[..., None] * inner[:, None]  # (fit, penalty, coordinate, coordinate)
        for block in space.mixed:
            _add_mixed(block, strengths, model.inside, g, inner, pull, traces, ranks, across, logs, solved)
        across -= 0.5 * np.einsum("njab,nkba->njk", solved, solved)
    else:
        across -= 0.5 * np.einsum("njp,nkp->njk", W @ inner**2, W)
    energy = np.einsum("njp,np->nj", pull, g)
    moved = pull @ inverse[:, :p, :]  # (fit, penalty, coordinate + 1): minus the derivatives of the optimum
    gradient = 0.5 * (energy + traces - ranks)
    curvature = across - np.einsum("njp,nkp->njk", pull, moved[..., :p])
    if model.bend is not None:  # the Hessian follows the optimum
        gradient = gradient - 0.5 * np.einsum("njp,np->nj", moved, model.bend)
    j = np.arange(len(D))
    curvature[:, j, j] += gradient
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(energy > 0, (energy - 2 * gradient) / energy, np.inf)
    criterion = 0.5 * (-np.einsum("np,np->n", model.z, at) + log - logs)
    if model.bend is not None:
        criterion = criterion + 0.5 * np.einsum("np,np->n", model.bend, at)
    return Optimum(at, inverse, criterion, gradient, curvature, ratio)


def _outer(values: np.ndarray) -> np.ndarray:
    return values @ values.transpose(0, 2, 1)


def _add_mixed(block, strengths, inside, g, inner, pull, traces, ranks, across, logs, solved) -> None:
    """Add the parts of penalties without common eigenvectors; ``solved`` are all penalties times inverses."""
    place, which = block.place, block.which
    M = strengths[:, which, None, None] * block.matrices  # (fit, penalty, coordinate, coordinate)
    if inside is not None:  # a term with such penalties is present as a whole or not at all
        M = M * inside[:, place].any(axis=1)[:, None, None, None]
    some = np.einsum("kii->i", block.matrices) > 0
    total = M.sum(axis=1)[:, some][:, :, some]
    total[~np.any(total, axis=(1, 2))] = np.eye(some.sum())
    inverse, log = invert(total)
    turned = inverse[:, None] @ M[:, :, some][:, :, :, some]
    ranks[:, which] = np.einsum("njii->nj", turned)
    pull[:, which, place] = np.einsum("njab,nb->nja", M, g[:, place])
    traces[:, which] = np.einsum("njab,nba->nj", M, inner[:, place, place])
    logs += log
    solved[:, which, place] = M @ inner[:, None, place]
    across[np.ix_(range(len(M)), which, which)] += 0.5 * np.einsum("njab,nkba->njk", turned, turned)
