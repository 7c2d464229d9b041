"""Hessian of one neuron at a reference point, kept by pieces of rows, and what it says of fits to some of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from ._active_set import minimise_l1

_LIFT = 1e-9  # of the scaled diagonal, around the start: of duplicates any share will do


class Model(NamedTuple):
    """Hessian of one fit at the reference, ridge inside."""

    matrix: np.ndarray  # (column, column)
    lower: np.ndarray  # Cholesky factor
    proper: bool  # whether the matrix is positive definite as it stands: else the factor is only a guide

    @property
    def smallest(self) -> float:
        """Smallest eigenvalue."""
        return float(np.linalg.eigvalsh(self.matrix)[0])


class SharedHessian:
    """Sums of curvature at a reference point, one per piece of rows.

    Parameters
    ----------
    problem : PathProblem
        Whose rows and basis.
    coef, intercept :
        The reference, (feature,) and a number.
    pieces : numpy.ndarray
        In whitened coordinates, (piece, column, column).
    """

    def __init__(self, problem, coef, intercept, pieces):
        self.problem, self.coef, self.intercept, self.pieces = problem, coef, intercept, pieces
        self._smallest: dict[int, float] = {}
        self._models: dict[int, Model] = {}
        self._of_features: dict[int, np.ndarray] = {}
        self._ridge = None

    def rows_part(self, fold: int) -> np.ndarray:
        """Hessian of the mean loss over the rows of a fold."""
        held = np.flatnonzero(self.problem.member[:, fold])
        return self.pieces[held].sum(axis=0, dtype=np.float64) / self.problem.total[fold]

    def smallest(self, fold: int) -> float:
        """Smallest eigenvalue without a ridge."""
        if fold not in self._smallest:
            rows = self.rows_part(fold)
            # Curvature that overflowed at the reference proves nothing.
            self._smallest[fold] = float(np.linalg.eigvalsh(rows)[0]) if np.isfinite(rows).all() else 0.0
        return self._smallest[fold]

    def error(self, fold: int) -> float:
        """Bound of the norm of what rounding made of the part from the rows."""
        held = np.flatnonzero(self.problem.member[:, fold])
        trace = np.einsum("pkk->", self.pieces[held], dtype=np.float64) / self.problem.total[fold]
        return self.problem.rounding(self.pieces.dtype) * float(trace)

    def model(self, fold: int, ridge: float) -> Model:
        """Hessian of a fit, factorised; kept until another ridge is asked for."""
        if ridge != self._ridge:
            self._models, self._ridge = {}, ridge
        if fold not in self._models:
            rows = self.rows_part(fold)
            matrix = rows + ridge * self.problem.ridge_shape
            if not np.isfinite(matrix).all():
                matrix = np.eye(len(matrix))
                self._models[fold] = Model(matrix, matrix, False)
                return self._models[fold]
            try:
                lower, proper = np.linalg.cholesky(matrix), True
            except np.linalg.LinAlgError:
                lift = 1e3 * np.finfo(self.pieces.dtype).eps * max(np.trace(matrix), np.finfo(float).tiny)
                lower, proper = np.linalg.cholesky(matrix + lift * np.eye(len(matrix))), False
            self._models[fold] = Model(matrix, lower, proper)
        return self._models[fold]

    def decrement(self, fold: int, ridge: float, residual) -> float:
        """``r' H^-1 r``; where the Hessian is not proper an estimate, along the directions that have curvature."""
        model = self.model(fold, ridge)
        if model.proper:
            half = solve_triangular(model.lower, residual, lower=True, check_finite=False)
        else:
            values, vectors = np.linalg.eigh(model.matrix)
            seen = values > 1e3 * np.finfo(self.pieces.dtype).eps * values[-1]
            half = vectors[:, seen].T @ residual / np.sqrt(values[seen])
        with np.errstate(over="ignore"):
            return float(half @ half)

    def newton_step(self, fold: int, ridge: float, residual) -> np.ndarray:
        """Change of the whitened coordinates that minimises the quadratic model of a smooth objective."""
        return -cho_solve((self.model(fold, ridge).lower, True), residual, check_finite=False)

    def of_features(self, fold: int) -> np.ndarray:
        """Hessian of the mean loss in coefficients and centred intercept; a guide, lifted where it may be singular."""
        if fold not in self._of_features:
            rows = self.rows_part(fold)
            rows = rows if np.isfinite(rows).all() else np.eye(len(rows))
            rows += 1e2 * np.finfo(self.pieces.dtype).eps * np.trace(rows) / len(rows) * np.eye(len(rows))
            unwhiten = self.problem.basis.unwhiten
            rows[:-1] = unwhiten.T @ rows[:-1]
            rows[:, :-1] = rows[:, :-1] @ unwhiten
            self._of_features[fold] = rows
        return self._of_features[fold]

    def l1_step(self, fold: int, penalty, coef, gradient) -> tuple[np.ndarray, float]:
        """Coefficients that minimise the quadratic model plus the penalty, and the change of the centred intercept."""
        mean = self.problem.basis.mean
        g = np.append(gradient[:-1] - mean * gradient[-1], gradient[-1])
        start = np.append(coef, 0.0)
        Q = self.of_features(fold)
        c = Q @ start - g
        l1, ridge = (
            np.append(np.broadcast_to(np.asarray(a, np.float64), coef.shape), 0.0)
            for a in (penalty.l1_strength, penalty.ridge_strength)
        )
        # Features in their own units may differ by many powers of ten.
        unit = 1 / np.sqrt(np.maximum(np.diag(Q) + ridge, np.finfo(float).tiny))
        scaled = Q * unit * unit[:, None]
        scaled[np.diag_indices_from(scaled)] = 1 + _LIFT
        w = unit * minimise_l1(scaled, c * unit + _LIFT * start / unit, l1 * unit, start / unit)
        return w[:-1], float(w[-1])
