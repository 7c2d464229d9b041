"""Search for the strengths that minimise a criterion of quadratic models: marginal likelihood or held-out loss."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...threads import Fitters
from ..tiles import tiles_of
from .coordinates import Coordinates
from .evidence import Optimum, Quadratic, evaluate, optimum
from .held_out import HeldOut, evaluate_held_out

_LONGEST = 3.0  # of a step, in logarithms of strengths
_LEAST_BEND = 1e-2  # of the largest curvature of the criterion, or of 0.1: flatter directions are not trusted
_WORSE = 1e-3  # nats that a step may lose
_TRIES = 12
_THOROUGH = 5  # steps: with more, ends are also tried one by one
_TRIES_AT_ENDS = 2  # steps: with more the search is meant to end
_FLAT = 0.2  # nats: slope and curvature of a criterion that may level off
_FEW = 12  # maximum number of strengths that are tried one by one
_SPREAD = 2.0  # variance of Student's t with four degrees of freedom
_PRIOR = 0.1  # prior precision of log strengths: a standard deviation of a factor of 24
_WEAKEST, _STRONGEST = 10.0, 16.0  # logarithms, relative to where penalty and data hold a term alike
_TINY = 1e-9  # of the largest size of a penalty: smaller ones count as 0
_HELD = 1e-10  # of all curvature: least part that the data have in a penalty's coordinates
_AT_ONCE = 32  # fits


def in_chunks(function: Callable[[slice], Any], n_fits: int) -> Any:
    """Apply a function to chunks of fits whose matrices stay in the cache, shared among threads, and join the results.

    It returns an array, or arrays in a tuple, whose first axis is the fit.
    """
    with Fitters() as workers:
        found = list(workers.each(function, tiles_of(n_fits, _AT_ONCE)))
    if isinstance(found[0], tuple):
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))
    return np.concatenate(found)


def improve(
    model: Quadratic | HeldOut,
    space: Coordinates,
    rho: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    tol: float,
    most: int,
    reach: np.ndarray | float = np.inf,
) -> tuple[np.ndarray, Optimum, np.ndarray]:
    """Lower the criterion of quadratic models until its gradient, bounds aside, is below ``tol`` nats.

    Steps are those of Newton's method if the criterion is convex, and otherwise those of generalised Fellner-Schall in
    all strengths if they descend, shortened if the criterion rises. Strengths stay within their ``reach``, (fit, 1).
    Returns log strengths (fit, penalty), the optimum there, and the decrease of the criterion, (fit,).
    """
    low, high = np.maximum(low, rho - reach), np.minimum(high, rho + reach)
    reach = np.broadcast_to(reach, (len(rho), 1))

    def some(fits):
        part = model.take(fits), space, rho[fits], low[fits], high[fits], tol, most, reach[fits]
        after, best, gained = _improve(*part)
        return after, gained, *best

    after, gained, *best = in_chunks(some, len(rho))
    return after, Optimum(*best), gained


def _improve(
    model: Quadratic | HeldOut, space: Coordinates, rho, low, high, tol: float, most: int, reach: np.ndarray
) -> tuple[np.ndarray, Optimum, np.ndarray]:
    rho = rho.copy()
    best = _evaluate(model, space, rho)
    first = best.criterion.copy()
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
        found = _evaluate(model.take(active), space, tried)
        good = found.criterion <= best.criterion[active] + _WORSE
        length[active] = np.where(good, np.minimum(1.0, 2 * length[active]), length[active] / 4)
        done = active[good]
        rho[done] = tried[good]
        for whole, part in zip(best, found, strict=True):
            whole[done] = part[good]
    if most > _TRIES_AT_ENDS:
        _try_ends(model, space, rho, best, low, high, most, reach)
    return rho, best, first - best.criterion


def _try_ends(model: Quadratic | HeldOut, space: Coordinates, rho, best: Optimum, low, high, most: int, reach) -> None:
    """Move strengths at which the criterion levels off to the end of their range, if it does not rise there."""
    slope, bend = best.gradient, np.einsum("njj->nj", best.curvature)
    inner = (rho > low + 1e-9) & (rho < high - 1e-9) & np.isinf(reach)
    leaving = inner & (np.abs(slope) <= _FLAT) & (np.abs(bend) <= _FLAT) & (slope != 0)
    ends = np.where(leaving, np.where(slope < 0, high, low), rho)
    single = np.flatnonzero(leaving.any(axis=0)) if most > _THOROUGH and rho.shape[1] <= _FEW else []
    for which in [slice(None), *([j] for j in single)]:
        tried = rho.copy()
        tried[:, which] = ends[:, which]
        some = np.flatnonzero(np.any(tried != rho, axis=1))
        if not len(some):
            continue
        found = _evaluate(model.take(some), space, tried[some])
        good = found.criterion <= best.criterion[some]
        done = some[good]
        rho[done] = tried[done]
        for whole, part in zip(best, found, strict=True):
            whole[done] = part[good]


def range_of_strengths(space: Coordinates, H: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log strengths (fit, penalty) at which penalties and data, with Hessians H, hold a term alike; and both ends."""
    sizes = space.sizes()
    held = np.einsum("nii->ni", H)[:, :-1] @ (sizes > 0).T
    held = np.maximum(held, _HELD * np.einsum("nii->n", H)[:, None])  # of features that hardly vary
    total, number = np.maximum(sizes.sum(axis=1), 1e-300), np.maximum((sizes > 0).sum(axis=1), 1)
    middle = np.where(total > 1e-290, np.log(np.maximum(held, 1e-300) / total), 0.0)  # 0 if a penalty holds nothing
    least = np.where(sizes > _TINY * sizes.max(axis=1, keepdims=True, initial=0.0), sizes, np.inf).min(
        axis=1, initial=np.inf
    )
    spread = np.maximum(np.log(total / number / np.where(np.isfinite(least), least, 1.0)), 0.0)
    return middle, middle - _WEAKEST, middle + _STRONGEST + spread


def derivatives(model: Quadratic | HeldOut, space: Coordinates, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients (fit, penalty) and curvatures (fit, penalty, penalty) of the criterion by log strengths."""

    def some(fits):
        here = _evaluate(model.take(fits), space, rho[fits])
        return here.gradient, here.curvature

    return in_chunks(some, len(rho))


def with_uncertain_strengths(model: Quadratic, space: Coordinates, rho: np.ndarray, curvature) -> np.ndarray:
    """Covariance of coordinates if log strengths are uncertain, (fit, coordinate + 1, coordinate + 1).

    These have a Student's t distribution about rho, because the criterion levels off far from it. Its curvature at the
    centre is that of the criterion plus a prior. The corners of a simplex with its mean and covariance represent it.
    """
    n = space.n_penalties
    values, vectors = np.linalg.eigh(np.where(np.isfinite(curvature), curvature, 0.0))
    root = vectors / np.sqrt(np.maximum(values, 0.0) + _PRIOR)[:, None, :]
    corners = np.sqrt(_SPREAD) * _simplex(n)  # (corner, penalty)

    def some(fits):
        part = model.take(fits)
        middle, total = optimum(part, space, np.exp(rho[fits]))[0], 0.0
        for corner in corners:
            at, inverse, _ = optimum(part, space, np.exp(rho[fits] + root[fits] @ corner))
            away = at - middle
            total = total + inverse + away[:, :, None] * away[:, None, :]
        return total / len(corners)

    return in_chunks(some, len(rho))


def _simplex(n: int) -> np.ndarray:
    """Corners of a regular simplex about 0, (n + 1, n), whose mean square is the identity."""
    centred = np.eye(n + 1) - 1 / (n + 1)
    _, vectors = np.linalg.eigh(centred)
    return vectors[:, 1:] * np.sqrt(n + 1)


def _evaluate(model: Quadratic | HeldOut, space: Coordinates, rho: np.ndarray) -> Optimum:
    return (evaluate_held_out if isinstance(model, HeldOut) else evaluate)(model, space, rho)


def free_of_bounds(gradient: np.ndarray, rho: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Which strengths are not at a bound beyond which the evidence would rise, (fit, penalty)."""
    return ~((rho <= low + 1e-9) & (gradient > 0)) & ~((rho >= high - 1e-9) & (gradient < 0))


def _step(here: Optimum, rho, low, high) -> tuple[np.ndarray, np.ndarray]:
    """Choose a step of the log strengths, (fit, penalty); returns which of them are free, and the step."""
    free = free_of_bounds(here.gradient, rho, low, high)
    gradient = np.where(free, here.gradient, 0.0)
    curvature = np.where(free[:, :, None] & free[:, None, :], here.curvature, 0.0)
    values, vectors = np.linalg.eigh(np.where(np.isfinite(curvature), curvature, 0.0))
    size = np.abs(values).max(axis=1, keepdims=True, initial=0.1)
    convex = values.min(axis=1, initial=0.0) >= -1e-3 * size[:, 0]
    values = np.maximum(np.abs(values), _LEAST_BEND * size)
    newton = -np.einsum("nij,nj->ni", vectors, np.einsum("nij,ni->nj", vectors, gradient) / values)
    with np.errstate(divide="ignore", invalid="ignore"):
        schall = np.where(here.ratio > 0, np.log(here.ratio), -_LONGEST)
    schall = np.clip(np.where(free & ~np.isnan(schall), schall, 0.0), -_LONGEST, _LONGEST)
    downhill = np.einsum("nj,nj->n", schall, gradient) < 0  # or not, because these steps ignore how Hessians bend
    steep = np.abs(gradient).max(axis=1, initial=0.0) > _FLAT
    step = np.where(free, np.where((convex | (steep & ~downhill))[:, None], newton, schall), 0.0)
    longest = np.abs(step).max(axis=1, keepdims=True, initial=0.0)
    return free, step * np.minimum(1.0, _LONGEST / np.maximum(longest, 1e-300))
