r"""Coordinates in which solvers that sample classes take their steps: features centred and whitened, or as they are.

Rows are ``z = diag(1/size) Q'(x - mean)``, with the directions Q orthonormal, and scores ``V'z + a``: the model with
``W = Q diag(1/size) V`` and ``b = a - W'mean``. The double sum and the formulas of the steps are those of the rows z.
The ridge stays the user's: ``|W|^2 = sum_j |V_j|^2 / size_j^2``, a number per column.
Derivation: docs/theory/class_coordinates.md.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse

from ..engine.problem import Params
from ..engine.tiles import over_tiles, rows_at_once

BASES = "spectral", "raw"
_FAR = 9.0  # times the mean a row's squared length may be, before the row counts for less
_TOO_MUCH = 0.2  # share of the second moments that such rows may have
_SEEN = 1e-8  # of the largest weight: rows with less do not show directions
_ROUNDS = 20  # maximum rounds of down-weighting rows


class Coordinates(NamedTuple):
    """Origin, directions and units in which features are measured."""

    mean: np.ndarray  # origin, (feature,)
    directions: np.ndarray | scipy.sparse.csr_array | None  # orthonormal, (feature, column); None: the features
    size: np.ndarray  # units, (column,)

    @property
    def units(self) -> np.ndarray:
        """Factor of the ridge of every column, (column,)."""
        return 1 / self.size**2

    def rows(self, X, dtype):
        """Rows in these coordinates, (row, column), sparse where X is. Cost: a product with the directions."""
        if self.directions is None:
            return X
        whiten = self.directions * (1 / self.size)
        if scipy.sparse.issparse(X):
            return scipy.sparse.csr_array(X @ whiten)
        out = np.empty((X.shape[0], len(self.size)), dtype)

        def tile(rows):
            out[rows] = (np.asarray(X[rows], np.float64) - self.mean) @ whiten

        for _ in over_tiles(tile, X.shape[0], rows_at_once(X)):
            pass
        return out

    def inside(self, params: Params) -> Params:
        """Coefficients (column, class) and intercepts in these coordinates, without what no row shows."""
        coef, intercept = (np.asarray(a, np.float64) for a in params)
        along = coef if self.directions is None else self.directions.T @ coef
        return Params(self.size[:, None] * along, intercept + self.mean @ coef)

    def outside(self, params: Params) -> Params:
        """Map coefficients and intercepts back."""
        coef = np.asarray(params.coef, np.float64) / self.size[:, None]
        coef = coef if self.directions is None else self.directions @ coef
        return Params(coef, params.intercept - self.mean @ coef)


def coordinates_of(problem, basis: str, robust: bool) -> Coordinates:
    """Coordinates of a softmax problem: "raw", or "spectral".

    In the latter the features are uncorrelated over the rows, weighted by their counts; sparse or very many features
    are only scaled to one size, sparse ones without a shift. The variance of each direction is increased by the one at
    which, with equally frequent classes, the loss is as curved as the ridge: beyond it there is little to be learnt,
    and explicit steps shorter than the number of classes are stable. Robust coordinates hardly use rows that account
    for nearly all of a variance: implicit steps need not be short along them.
    """
    if basis == "raw":
        return Coordinates(np.zeros(problem.n_features), None, np.ones(problem.n_features))
    floor = problem.strength * problem.n_classes / problem.totals.mean()
    found, of_rows = _parts(problem, problem.basis), None
    for _ in range(_ROUNDS if robust else 1):
        coordinates = Coordinates(found.mean, found.directions, np.sqrt(found.size + floor))
        if scipy.sparse.issparse(problem.X) or not robust:
            break
        counted = problem.totals if of_rows is None else of_rows
        length = np.sum(coordinates.rows(problem.X, np.float64) ** 2, axis=1)
        moments = counted @ length
        share = np.minimum(1, _FAR * moments / counted.sum() / np.maximum(length, np.finfo(float).tiny))
        if counted @ (share * length) >= (1 - _TOO_MUCH) * moments:
            break
        of_rows = counted * share
        if np.sum(of_rows > _SEEN * of_rows.max()) <= len(found.size):  # one row has nearly all the weight
            break
        found = _parts(problem, problem.basis_by(of_rows))
    return coordinates


def _parts(problem, basis) -> Coordinates:
    """Mean, directions with variance, and variances of a basis."""
    if not scipy.sparse.issparse(basis.whiten):
        variance = basis.variance[: basis.rank]
        return Coordinates(basis.mean, basis.whiten[:, : basis.rank] * np.sqrt(variance), variance)
    varies = np.flatnonzero(basis.whiten.diagonal())
    directions = scipy.sparse.eye_array(problem.n_features, format="csr")[:, varies]
    if scipy.sparse.issparse(problem.X):  # a shift would make it dense
        return Coordinates(0 * basis.mean, directions, (basis.deviation**2 + basis.mean**2)[varies])
    return Coordinates(basis.mean, directions, basis.deviation[varies] ** 2)
