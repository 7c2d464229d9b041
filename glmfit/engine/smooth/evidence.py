"""Marginal likelihood of strengths, for quadratic models of many fits at once, and steps that increase it.

Theory: docs/theory/smooth_terms.md. With the Hessian H of the loss (nats) and z = H g - gradient at the point where
both were taken, the penalised optimum of the quadratic model at strengths exp(rho) is g = A^-1 z, A = H + S, and minus
the logarithm of the marginal likelihood is, but for constants, -z'g / 2 + log det A / 2 - log det+ S / 2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..tiles import Workers
from .coordinates import Coordinates

_LONGEST = 3.0  # of a step, in logarithms of strengths
_LEAST_BEND = 1e-2  # of the largest curvature of the criterion, or of 0.1: flatter directions are not trusted
_WORSE = 1e-3  # nats that a step may lose
_TRIES = 12
_AT_ONCE = 32  # fits


class Quadratic(NamedTuple):
    """Quadratic models of the losses of fits, in coordinates, intercept last; ``scale`` divides losses into nats."""

    hessian: np.ndarray  # (fit, coordinate + 1, coordinate + 1)
    z: np.ndarray  # (fit, coordinate + 1)
    bend: np.ndarray | None = None  # third derivatives times leverages, (fit, coordinate + 1)
    inside: np.ndarray | None = None  # which coordinates a fit has, bool (fit, coordinate)

    def take(self, some) -> "Quadratic":
        """Those of some fits."""
        return Quadratic(*(None if a is None else a[some] for a in self))


class Optimum(NamedTuple):
    """Penalised optimum of quadratic models at some strengths, and what the marginal likelihood says there."""

    at: np.ndarray  # (fit, coordinate + 1)
    inverse: np.ndarray  # of A, (fit, coordinate + 1, coordinate + 1)
    criterion: np.ndarray  # minus the log marginal likelihood, nats but for a constant, (fit,)
    gradient: np.ndarray  # by the logarithms of strengths, (fit, penalty)
    curvature: np.ndarray  # (fit, penalty, penalty)
    ratio: np.ndarray  # of generalised Fellner-Schall: by which it multiplies each strength, (fit, penalty)


def penalty_matrix(space: Coordinates, strengths: np.ndarray, inside=None) -> np.ndarray:
    """Sum of the penalties at strengths (fit, penalty), (fit, coordinate, coordinate)."""
    S = np.zeros((len(strengths), space.n_coordinates, space.n_coordinates))
    i = np.arange(space.n_coordinates)
    S[:, i, i] = strengths @ space.diagonal
    for block in space.mixed:
        S[:, block.place, block.place] += np.tensordot(strengths[:, block.which], block.matrices, 1)
    if inside is not None:
        S *= inside[:, :, None] & inside[:, None, :]
    return S


def pull_of(space: Coordinates, strengths: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Gradients of the penalties at strengths (fit, penalty) and coordinates (fit, coordinate)."""
    pull = (strengths @ space.diagonal) * at
    for block in space.mixed:
        part = np.einsum("kab,nb->nka", block.matrices, at[:, block.place])
        pull[:, block.place] += np.einsum("nk,nka->na", strengths[:, block.which], part)
    return pull


def penalty_of(space: Coordinates, strengths: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Values of the penalties, (fit,)."""
    return 0.5 * np.einsum("np,np->n", pull_of(space, strengths, at), at)


def with_penalty(model: Quadratic, space: Coordinates, strengths: np.ndarray) -> np.ndarray:
    """Hessians of the penalised losses, (fit, coordinate + 1, coordinate + 1); 1 for what a fit does not have."""
    A, p = model.hessian.copy(), space.n_coordinates
    i = np.arange(p)
    if space.mixed:
        A[:, :p, :p] += penalty_matrix(space, strengths, model.inside)
    else:
        size = strengths @ space.diagonal
        A[:, i, i] += size if model.inside is None else size * model.inside
    if model.inside is not None:
        A[:, i, i] += ~model.inside
    return A


def invert(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverses of positive definite matrices, and the logarithms of their determinants."""
    i = np.arange(matrices.shape[-1])
    root = np.sqrt(np.maximum(matrices[:, i, i], 1e-300))
    scaled = matrices / root[:, :, None]
    scaled /= root[:, None, :]
    try:
        lower = np.linalg.cholesky(scaled)
        log = 2 * np.log(lower[:, i, i]).sum(axis=1)
        inverse = np.linalg.inv(scaled)
    except np.linalg.LinAlgError:
        parts = zip(*map(_lifted, scaled), strict=True)
        inverse, log = (np.array(part) for part in parts)
    inverse /= root[:, :, None]
    inverse /= root[:, None, :]
    return inverse, log + 2 * np.log(root).sum(axis=1)


def in_chunks(function: Callable[[slice], Any], n_fits: int) -> list[Any]:
    """Apply a function to some fits at a time, whose matrices stay in the cache, shared among threads."""
    some = [slice(k, min(k + _AT_ONCE, n_fits)) for k in range(0, n_fits, _AT_ONCE)]
    with Workers() as workers:
        return list(workers.each(function, some))


def _lifted(scaled: np.ndarray) -> tuple[np.ndarray, float]:
    """Inverse on the directions that have curvature, where rounding leaves a matrix without its lowest ones."""
    values, vectors = np.linalg.eigh(scaled)
    values = np.maximum(values, 1e-13 * max(values[-1], 1e-300))
    return (vectors / values) @ vectors.T, float(np.log(values).sum())


def evaluate(model: Quadratic, space: Coordinates, rho: np.ndarray) -> Optimum:
    """Find the optimum of quadratic models at strengths exp(rho), (fit, penalty), and derivatives of the evidence."""
    strengths, p, D = np.exp(rho), space.n_coordinates, space.diagonal
    inverse, log = invert(with_penalty(model, space, strengths))
    if model.inside is not None:  # what a fit does not have is nowhere
        i = np.arange(p)
        inverse[:, i, i] -= ~model.inside
    at = (inverse @ model.z[..., None])[..., 0]
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
    across = -0.5 * np.einsum("njp,nkp->njk", W @ inner**2, W) + 0.5 * _outer(W / held[:, None, :])
    traces, logs = traces[..., 0], np.log(held).sum(axis=1)
    for block in space.mixed:
        _add_mixed(block, strengths, model.inside, g, inner, pull, traces, ranks, across, logs, W)
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


def _add_mixed(block, strengths, inside, g, inner, pull, traces, ranks, across, logs, W) -> None:
    """Add what penalties that share no eigenvectors contribute."""
    place, which = block.place, block.which
    M = strengths[:, which, None, None] * block.matrices  # (fit, penalty, coordinate, coordinate)
    some = np.einsum("kii->i", block.matrices) > 0
    total = M.sum(axis=1)[:, some][:, :, some]
    inverse, log = invert(total)
    turned = inverse[:, None] @ M[:, :, some][:, :, :, some]
    ranks[:, which] = np.einsum("njii->nj", turned)
    pull[:, which, place] = np.einsum("njab,nb->nja", M, g[:, place])
    traces[:, which] = np.einsum("njab,nba->nj", M, inner[:, place, place])
    logs += log
    for a, j in enumerate(which):
        solved = M[:, a] @ inner[:, place, :]  # (fit, coordinate of the term, coordinate)
        for k in range(across.shape[1]):
            if k in which:
                b = which.index(k)
                value = np.einsum("nab,nba->n", solved[:, :, place], M[:, b] @ inner[:, place, place])
                across[:, j, k] = -0.5 * value + 0.5 * np.einsum("nab,nba->n", turned[:, a], turned[:, b])
            else:
                value = -0.5 * np.einsum("nap,nap,np->n", solved, inner[:, place, :], W[:, k])
                across[:, j, k] = across[:, k, j] = value
    if inside is not None:  # a term with mixed penalties is there as a whole or not at all
        gone = ~inside[:, place].any(axis=1)
        logs[gone] -= log[gone]
        for values in (pull, traces, ranks, across):
            values[np.ix_(gone, which)] = 0.0


def increase(
    model: Quadratic, space: Coordinates, rho: np.ndarray, low: np.ndarray, high: np.ndarray, tol: float, most: int
) -> tuple[np.ndarray, Optimum]:
    """Raise the evidence of quadratic models until its gradient, bounds aside, is below ``tol`` nats.

    Newton steps where the criterion is convex, and otherwise those of generalised Fellner-Schall in all strengths,
    shortened where the criterion rises. Returns strengths (fit, penalty), logarithms, and the optimum there.
    """

    def some(fits):
        return _increase(model.take(fits), space, rho[fits], low[fits], high[fits], tol, most)

    found = in_chunks(some, len(rho))
    rhos, optima = zip(*found, strict=True)
    return np.concatenate(rhos), Optimum(*(np.concatenate(parts) for parts in zip(*optima, strict=True)))


def _increase(
    model: Quadratic, space: Coordinates, rho, low, high, tol: float, most: int
) -> tuple[np.ndarray, Optimum]:
    rho = rho.copy()
    best = evaluate(model, space, rho)
    active, length = np.arange(len(rho)), np.ones(len(rho))
    for _ in range(most):
        here = Optimum(*(a[active] for a in best))
        free, step = _step(here, rho[active], low[active], high[active])
        todo = np.abs(np.where(free, here.gradient, 0.0)).max(axis=1, initial=0.0) > tol
        todo &= length[active] > 0.5**_TRIES
        active, step = active[todo], step[todo]
        if not len(active):
            break
        tried = np.clip(rho[active] + length[active, None] * step, low[active], high[active])
        found = evaluate(model.take(active), space, tried)
        good = found.criterion <= best.criterion[active] + _WORSE
        length[active] = np.where(good, np.minimum(1.0, 2 * length[active]), length[active] / 4)
        done = active[good]
        rho[done] = tried[good]
        for whole, part in zip(best, found, strict=True):
            whole[done] = part[good]
    return rho, best


def free_of_bounds(gradient: np.ndarray, rho: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Which strengths are not at a bound beyond which the evidence would rise, (fit, penalty)."""
    return ~((rho <= low + 1e-9) & (gradient > 0)) & ~((rho >= high - 1e-9) & (gradient < 0))


def _step(here: Optimum, rho, low, high) -> tuple[np.ndarray, np.ndarray]:
    """Choose a step of the logarithms of strengths, (fit, penalty), and say which of them are free."""
    free = free_of_bounds(here.gradient, rho, low, high)
    gradient = np.where(free, here.gradient, 0.0)
    values, vectors = np.linalg.eigh(here.curvature * (free[:, :, None] & free[:, None, :]))
    size = np.abs(values).max(axis=1, keepdims=True, initial=0.1)
    convex = values.min(axis=1, initial=0.0) >= -1e-3 * size[:, 0]
    values = np.maximum(np.abs(values), _LEAST_BEND * size)
    newton = -np.einsum("nij,nj->ni", vectors, np.einsum("nij,ni->nj", vectors, gradient) / values)
    with np.errstate(divide="ignore", invalid="ignore"):
        schall = np.where(here.ratio > 0, np.log(here.ratio), -_LONGEST)
    schall = np.clip(np.where(free & ~np.isnan(schall), schall, 0.0), -_LONGEST, _LONGEST)
    step = np.where(free, np.where(convex[:, None], newton, schall), 0.0)
    longest = np.abs(step).max(axis=1, keepdims=True, initial=0.0)
    return free, step * np.minimum(1.0, _LONGEST / np.maximum(longest, 1e-300))
