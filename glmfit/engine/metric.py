"""Metrics, which turn gradients into directions: the spectral basis that all fits share, or a fit's own Hessian.

In the spectral basis the columns of a design are uncorrelated (docs/theory/spectral_basis.md). Small arrays only,
float64 on the host.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Self

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrs

from ..threads import one_thread_each, scratch
from .tiles import ROWS_OF_A_TILE, column_sums, over_tiles, rows_at_once

_ABSENT = 1e-14  # share of the trace of a correlation matrix: smaller eigenvalues are rounding of the Gram matrix
_FLOOR = 1e-5  # share of the largest variance to which smaller ones are raised
_FEW_PRODUCTS = 1e8  # of features: double precision costs little
_ROUNDING = 64  # units in the last place of its terms by which a sum that should be 0 may differ from it
_LIFT = 1e-7  # of the scaled diagonal: the error of single precision in a nearly singular Hessian


@dataclass(frozen=True)
class SpectralBasis:
    """Basis of a centred design: columns of ``(X - mean) @ whiten`` are uncorrelated, of variance at most one.

    ``unwhiten @ whiten`` is the identity on the directions kept; both are zero on directions dropped.
    """

    mean: np.ndarray  # weighted, (feature,)
    deviation: np.ndarray  # standard deviation, 1 for a constant feature, (feature,)
    scale: np.ndarray  # divisor of a feature if a penalty acts on single coefficients, (feature,)
    variance: np.ndarray  # of the data along each direction before whitening, descending, (direction,)
    whiten: np.ndarray  # from whitened columns to coefficients, (feature, direction)
    unwhiten: np.ndarray  # and back
    rank: int  # directions that the data distinguish
    constant: np.ndarray  # features without variance, (feature,)
    look_beyond: Callable[[], bool]  # whether X is constant along the directions beyond the rank: a pass

    @cached_property
    def absent(self) -> bool:
        """Whether X is constant along the directions beyond the rank, up to rounding in double precision.

        Otherwise it varies there, by less than 1e-7 of its features, and the possible gain is not bounded.
        """
        return self.look_beyond()

    def settles(self, rotation_invariant: bool, coef: np.ndarray) -> np.ndarray:
        """Whether nothing can be gained along the excluded directions with such a penalty, (column,)."""
        if self.rank == len(self.variance):
            return np.ones(coef.shape[1], bool)
        if rotation_invariant:
            return np.full(coef.shape[1], self.absent)
        # The penalty alone decides between duplicates. It sets a constant feature to 0; the intercept does the rest.
        only_constants = self.absent and self.rank == np.sum(~self.constant)
        return only_constants & np.all(coef[self.constant] == 0, axis=0)

    @property
    def is_resolved(self) -> bool:
        """Whether single precision resolves all directions, and the data distinguish as many as there are features."""
        return self.tame and self.rank == len(self.variance)

    @property
    def tame(self) -> bool:
        """Whether rows may be whitened in single precision: rounding stays below 1e-4 of every column."""
        offset = np.max(np.abs(self.mean) / self.deviation, initial=0.0)
        spread = self.variance[: self.rank] / (self.variance[0] if self.rank else 1.0)
        return bool(np.sqrt(np.min(spread, initial=1.0)) > 1e-3 and offset < 1e2)


def _moments(X: np.ndarray, weights: np.ndarray | None, dtype) -> tuple[np.ndarray, np.ndarray]:
    """Mean (feature,) and centred Gram (feature, feature) of the rows, weights of mean one.

    Products and sums within a tile are taken in ``dtype``, sums over tiles in float64.
    """
    n_rows, n_features = X.shape
    # Against cancellation; from rows that count, so that a feature that is constant on these also looks constant.
    first = 0 if weights is None else int(np.argmax(weights > 0))
    some = slice(first, first + ROWS_OF_A_TILE)
    near = np.asarray(X[some] if weights is None else X[some][weights[some] > 0], np.float64)
    shift = np.where(np.ptp(near, axis=0) > 0, near.mean(axis=0), near[0]).astype(dtype)  # most constants become 0

    def tile(rows):
        some = X[rows]
        x = np.subtract(some, shift, out=scratch(some.shape, dtype, "x"), dtype=dtype)
        if weights is None:
            return column_sums(x), x.T @ x
        w = weights[rows].astype(dtype)
        total = w @ x
        x *= np.sqrt(w)[:, None]
        return total, x.T @ x

    total, gram = np.zeros(n_features), np.zeros((n_features, n_features))
    for sums, products in over_tiles(tile, n_rows, rows_at_once(X)):
        total += sums
        gram += products
    total /= n_rows
    return shift + total, gram / n_rows - np.outer(total, total)


def spectral_basis(
    X: np.ndarray, weights: np.ndarray | None, units: ArrayLike = 1.0, centred: bool = True
) -> SpectralBasis:
    """Basis for rotation-invariant penalties: eigenvectors of the Gram matrix, directions kept or dropped.

    The ridge of coefficients in ``units`` (feature,) stays diagonal in it: ``|units * coef|^2 = sum_j v_j^2 /
    variance_j``. The correlation matrix, which is free of scales, is decomposed first. Cost: T d^2 once.
    """
    mean, scale, correlation, constant = _correlation(X, weights, centred)
    with one_thread_each():
        c, Q = np.linalg.eigh(correlation)
    keep = _shown(c)
    rank = int(keep.sum())
    look_beyond = partial(_is_constant_along, X, weights, mean, scale, c, Q, keep)
    units = np.broadcast_to(units, scale.shape)
    with one_thread_each():
        _, root, Vt = np.linalg.svd(np.sqrt(np.where(keep, c, 0.0))[:, None] * Q.T * (scale / units))
    root[rank:] = 0.0
    inverse = np.where(root > 0, 1 / np.where(root > 0, root, 1.0), 0.0)
    whiten, unwhiten = Vt.T * inverse / units[:, None], root[:, None] * Vt * units
    return SpectralBasis(mean, scale, scale, root**2, whiten, unwhiten, rank, constant, look_beyond)


def plain_basis(X, weights: np.ndarray, centred: bool) -> SimpleNamespace:
    """Compute mean, deviation, whiten, unwhiten and rank of a basis from standard deviations alone.

    For dense or sparse features that are too many to rotate; weights have mean one.
    """
    mean = np.asarray(X.T @ weights, np.float64).ravel() / len(weights) * centred
    squares = X.multiply(X) if scipy.sparse.issparse(X) else np.square(X, dtype=np.float64)
    variance = np.asarray(squares.T @ weights, np.float64).ravel() / len(weights) - mean**2
    varies = variance > 1e-14 * variance.max(initial=0.0)
    deviation = np.sqrt(np.where(varies, variance, 1.0))
    whiten, unwhiten = (scipy.sparse.diags_array(varies * a).tocsr() for a in (1 / deviation, deviation))
    return SimpleNamespace(mean=mean, deviation=deviation, whiten=whiten, unwhiten=unwhiten, rank=int(varies.sum()))


def floored_basis(X: np.ndarray, weights: np.ndarray | None, groups: np.ndarray | None = None) -> SpectralBasis:
    """Basis for penalties on coefficients or groups of them: every direction kept, small variances raised.

    Each feature has its own scale, or with ``groups`` (feature,) that of its group, if its label is not negative: group
    norms keep their shape then, as SAGA's proximal step needs, but what varies little in its group is raised. Steps in
    the flattest directions are shorter than they could be; the map stays invertible whatever the design (duplicates,
    more features than rows).
    """
    mean, scale, correlation, constant = _correlation(X, weights)
    shared = scale.copy()
    for label in () if groups is None else np.unique(groups[groups >= 0]):
        shared[groups == label] = scale[groups == label].max()
    ratio = scale / shared
    with one_thread_each():
        s, Q = np.linalg.eigh(correlation * np.outer(ratio, ratio))
    s, Q = s[::-1], Q[:, ::-1]
    rank = int(np.sum(s > _ABSENT * max(np.sum(s), 0.0)))
    raised = np.maximum(s, _FLOOR * s[0]) if s[0] > 0 else np.ones_like(s)
    root = np.sqrt(raised)
    look_beyond = partial(_is_constant_along, X, weights, mean, shared, s, Q, np.arange(len(s)) < rank)
    whiten, unwhiten = Q / root / shared[:, None], root[:, None] * Q.T * shared
    return SpectralBasis(mean, scale, shared, raised, whiten, unwhiten, rank, constant, look_beyond)


def basis_of(X: np.ndarray, weights: np.ndarray | None, penalty, grouped: bool = False) -> SpectralBasis:
    """Return the basis of a design for a penalty: rotation-invariant, or acting on coefficients, perhaps in groups."""
    if penalty.units is not None:
        return spectral_basis(X, weights, units=penalty.units)
    groups = getattr(penalty, "groups", None) if grouped else None
    return floored_basis(X, weights, None if groups is None else np.asarray(groups))


def _is_constant_along(X, weights, mean, scale, values, vectors, keep) -> bool:
    """Whether no row that counts varies along the excluded eigenvectors, up to rounding: some units of its terms."""
    left_out = vectors[:, ~keep]
    if not left_out.shape[1]:
        return True

    def moves(directions):
        """Largest move in units of rounding, and the products of rows with their moves."""

        def tile(rows):
            x = np.asarray(X[rows], np.float64)
            terms = 1 + (np.abs(x) + np.abs(mean)) @ np.abs(directions / scale[:, None])  # about one per feature
            z = (x - mean) / scale
            move = z @ directions
            weight = np.ones(len(x)) if weights is None else np.asarray(weights[rows], np.float64)
            counts = np.where(weight[:, None] > 0, np.abs(move) / terms, 0.0)
            return counts.max(), weight.sum(), z.T @ (weight[:, None] * move)

        furthest, weight, product = zip(*over_tiles(tile, len(X), rows_at_once(X)), strict=True)
        return np.max(furthest) / np.finfo(float).eps, sum(product) / sum(weight)

    furthest, product = moves(left_out)
    if _ROUNDING < furthest < 1e5:
        # Kept directions of small variance have leaked in, by more than rounding; remove their part.
        kept = vectors[:, keep]
        left_out = left_out - kept @ (kept.T @ product / values[keep, None])
        furthest, _ = moves(left_out)
    return bool(furthest <= _ROUNDING)


def _shown(eigenvalues: np.ndarray) -> np.ndarray:
    """Which eigenvalues of a correlation matrix are more than rounding."""
    return eigenvalues > _ABSENT * eigenvalues.sum()


def rank_of(mean: np.ndarray, gram: np.ndarray, n_rows: float) -> int:
    """Count the directions that the data distinguish, from means of features and their covariance."""
    scale, _ = _scale(np.diag(gram), mean, n_rows)
    correlation = gram / np.outer(scale, scale)
    with one_thread_each():
        try:
            np.linalg.cholesky(correlation - _ABSENT * np.trace(correlation) * np.eye(len(correlation)))
        except np.linalg.LinAlgError:
            return int(_shown(np.linalg.eigvalsh(correlation)).sum())
    return len(mean)


def rough_standard(X, weights) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (1 where constant) of a few thousand rows: good enough for shifting and scaling."""
    rows = np.arange(len(X)) if weights is None else np.flatnonzero(weights > 0)
    sample = np.asarray(X[rows[:: max(1, len(rows) // ROWS_OF_A_TILE)]], np.float64)
    mean = sample.mean(axis=0)
    scale, _ = _scale(sample.var(axis=0), mean, len(sample))
    # A constant feature becomes exactly 0: its rounding error would look like a direction of its own.
    return np.where(np.ptp(sample, axis=0) == 0, sample[0], mean), scale


def ranges_of(X, weights: np.ndarray | None) -> np.ndarray:
    """Ranges of features over the rows that count, (feature,)."""

    def ends(rows):
        x = X[rows] if weights is None else X[rows][weights[rows] > 0]
        return x.min(axis=0, initial=np.inf), x.max(axis=0, initial=-np.inf)

    low, high = (np.array(list(of)) for of in zip(*over_tiles(ends, len(X), rows_at_once(X)), strict=True))
    return high.max(axis=0).astype(np.float64) - low.min(axis=0)


def _scale(variance, mean, n_rows):
    """Return standard deviations, 1 for constant columns, and which columns are constant up to rounding."""
    constant = variance <= (1e-15 * np.abs(mean)) ** 2 * n_rows
    return np.sqrt(np.where(constant, 1.0, variance)), constant


def _correlation(X, weights, centred=True):
    """Mean, standard deviation (1 where constant), correlation matrix, and which features are constant.

    In single precision if X is, products are many, and the result shows that this suffices: a basis need not be exact,
    only orthonormal, but directions weaker than 1e-5 would be rounding.
    """
    single = X.dtype == np.float32 and len(X) * X.shape[1] ** 2 > _FEW_PRODUCTS
    for dtype in (np.float32, np.float64) if single else (np.float64,):
        mean, gram = _moments(X, weights, dtype)
        if not centred:
            mean, gram = np.zeros_like(mean), gram + np.outer(mean, mean)
        variance = np.diag(gram)
        scale, constant = _scale(variance, mean, len(X))
        correlation = gram / np.outer(scale, scale)
        # What overflows in single precision may not in double.
        if dtype is np.float32 and np.isfinite(correlation).all() and np.all(variance > 1e-5 * mean**2):
            with one_thread_each():
                c = np.linalg.eigvalsh(correlation)
            if c[0] > 1e-5 * c[-1]:
                break
    return mean, scale, correlation, constant


class SharedMetric:
    """Spectral basis times the curvature of each fit: accurate if curvature is spread evenly over the rows.

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
        """Return the metric of some of the fits."""
        return SharedMetric(self.basis, self.curvature[index], self.ridge[:, index])


class OwnMetric:
    """Hessian of one fit: ``matrix`` in features divided by ``scale``, intercept last, and the ridge (feature,).

    Its inverse stays inside the directions of a basis, if it excludes any: along others gradients are rounding, and
    without a ridge nothing would keep fits from following it.
    """

    def __init__(self, matrix, ridge, scale, basis: SpectralBasis | None = None):
        self._basis = basis if basis is not None and basis.rank < len(scale) else None
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
                self._lower = np.asfortranarray(np.linalg.cholesky(scaled), np.float64)
                break
            except np.linalg.LinAlgError:
                lift = max(10 * lift, 1e-12)
                if lift > 1:
                    self._lower = np.asfortranarray(np.eye(len(scaled)))
                    break
        self._unit = self._root * np.append(scale, 1.0)

    def solve(self, gradient) -> np.ndarray:
        """Apply the inverse to one gradient, intercept last."""
        z = dpotrs(self._lower, gradient / self._unit, lower=True)[0] / self._unit  # SciPy's own checks take longer
        return z if self._basis is None else self._resolved(z)

    def _resolved(self, z) -> np.ndarray:
        """Part of directions, (feature + 1,) or more columns, inside the basis."""
        return np.concatenate([self._basis.whiten @ (self._basis.unwhiten @ z[:-1]), z[-1:]])

    def factor(self) -> np.ndarray:
        """Return F with F'F the inverse, intercept last."""
        factor = solve_triangular(self._lower, np.diag(1 / self._unit), lower=True, check_finite=False)
        return factor if self._basis is None else self._resolved(factor.T).T
