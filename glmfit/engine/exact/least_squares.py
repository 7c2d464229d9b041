"""Least squares with a ridge: normal responses, fitted exactly from the moments of the rows.

One factorisation serves all fits that weight the rows alike; theory: docs/theory/observation_models.md.
"""

import hashlib
from typing import NamedTuple

import numpy as np

from ...status import Status
from ..loop import Run
from ..metric import rank_of, rough_standard
from ..problem import Params
from ..tiles import n_cores, one_thread_each, rows_at_once, small_blas, sums_over_tiles

_EPS = np.finfo(float).eps
_ROUNDINGS = 64  # units in the last place of the terms of a moment, which tiles add up
_ABSENT = 1e-13  # share of the largest eigenvalue: smaller ones are the rounding of the moments
_NEAR = 256  # rows whose mean response is subtracted
_PAYS = 40  # fits for each set of rows and feature, from which on steps of all fits would be cheaper


class Moments(NamedTuple):
    """Weighted moments of rows: of centred features, and of responses minus the known part of their predictors."""

    mean: np.ndarray  # (feature,)
    gram: np.ndarray  # (feature, feature), centred
    response: np.ndarray  # mean, (neuron,)
    cross: np.ndarray  # (feature, neuron), centred
    square: np.ndarray  # of responses, centred, (neuron,)

    @classmethod
    def of(cls, X, Y, weights: np.ndarray | None = None, offset: np.ndarray | None = None, columns=slice(None)):
        """Compute moments of rows in double precision, in one pass, for some of the columns of Y.

        Weights are (row,), at least one positive; offsets (row, 1 or neuron).
        """
        shift = rough_standard(X, weights)[0] if isinstance(X, np.ndarray) else np.zeros(X.shape[1])
        start = 0 if weights is None else int(np.argmax(weights > 0))
        some = slice(start, start + _NEAR)
        near = np.asarray(Y[some], np.float64)[:, columns]  # against cancellation; of rows that count
        first = (near if weights is None else near[weights[some] > 0]).mean(axis=0)

        def tile(rows):
            x, y = np.subtract(X[rows], shift, dtype=np.float64), np.asarray(Y[rows], np.float64)[:, columns] - first
            if offset is not None:
                y = y - (offset[rows] if offset.shape[1] == 1 else offset[rows][:, columns])
            if weights is None:
                total, root = len(x), np.ones(len(x))
            else:
                w = np.asarray(weights[rows], np.float64)
                x, y, w = (x, y, w) if w.all() else (x[w > 0], y[w > 0], w[w > 0])
                total, root = w.sum(), np.sqrt(w)
                x, y = x * root[:, None], y * root[:, None]
            return total, root @ x, x.T @ x, root @ y, x.T @ y, np.einsum("tn,tn->n", y, y)

        size = rows_at_once(X)
        if isinstance(X, np.ndarray):  # tiles of one size, as many for every thread
            size = min(size, -(-len(Y) // (n_cores() * -(-len(Y) // (size * n_cores())))))
        total, x, xx, y, xy, yy = sums_over_tiles(tile, len(Y), size)
        x, y = x / total, y / total
        return cls(shift + x, xx / total - np.outer(x, x), first + y, xy / total - np.outer(x, y), yy / total - y**2)

    def misfit(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Mean squared residual of models, coef (feature, ..., neuron), intercept (..., neuron)."""
        inside = np.tensordot(self.gram, coef, 1) - 2 * self.cross.reshape(len(coef), *[1] * (coef.ndim - 2), -1)
        left = self.response - intercept - np.tensordot(self.mean, coef, 1)
        return np.maximum(self.square + np.einsum("f...,f...->...", coef, inside) + left**2, 0.0)


class Factor:
    """Eigenvectors of a centred Gram matrix, in units in which a ridge is a single number."""

    def __init__(self, gram: np.ndarray, units: np.ndarray):
        self.units = units[:, None]
        with one_thread_each():
            values, self.vectors = np.linalg.eigh(gram / np.outer(units, units))
        self.values = np.maximum(values, 0.0)[:, None]
        self.least = _ABSENT * self.values[-1, 0]

    def solve(self, right: np.ndarray, ridge: np.ndarray) -> np.ndarray:
        """Solve for columns of a right-hand side (feature, fit), each with its ridge (fit,); 0 in absent directions."""
        return self.vectors @ (self._inverse(ridge) * (self.vectors.T @ (right / self.units))) / self.units

    def squared_norm(self, gradient: np.ndarray, ridge: np.ndarray) -> np.ndarray:
        """``g' H^-1 g`` of gradients (feature, fit)."""
        return np.sum(self._inverse(ridge) * (self.vectors.T @ (gradient / self.units)) ** 2, axis=0)

    def resolves(self, ridge: np.ndarray) -> np.ndarray:
        """Whether all directions exceed the rounding of the moments, with a ridge (fit,)."""
        return (self.values + ridge > self.least).all(axis=0)

    def largest(self, ridge: np.ndarray) -> np.ndarray:
        """Largest eigenvalue of the inverse, (fit,)."""
        return self._inverse(ridge).max(axis=0)

    def diagonal(self, ridge: np.ndarray) -> np.ndarray:
        """Diagonal of the inverse, (feature, fit)."""
        return self.vectors**2 @ self._inverse(ridge) / self.units**2

    def n_kept(self, ridge: np.ndarray) -> np.ndarray:
        """Count directions that are not absent, (fit,)."""
        return (self.values + ridge > self.least).sum(axis=0)

    def _inverse(self, ridge: np.ndarray) -> np.ndarray:
        whole = self.values + ridge
        kept = whole > self.least
        return np.where(kept, 1 / np.where(kept, whole, 1.0), 0.0)


class LeastSquaresRun(Run):
    """All fits of normal responses with a ridge, each set of rows at once."""

    @property
    def name(self) -> str:
        """Names of the solvers that have run."""
        return "LeastSquares" + "+Newton" * self.exact

    def _begin(self) -> None:
        """Begin without degrees of freedom, but those of neurons without a fit: the intercept."""
        self._degrees = np.where(self.open, np.nan, 1.0)

    def _fit(self, fits: np.ndarray) -> None:
        sets, of_fit = sets_of(self.problem)
        for key in dict.fromkeys(of_fit[fits].tolist()):
            with small_blas(self.problem.n_features):  # products of small arrays
                self._fit_set(sets[key], fits[of_fit[fits] == key])
        self.epochs[fits] = 1
        self.passes += len(fits) / self.problem.n_neurons
        if np.isfinite(self._degrees).all():
            self.problem.degrees = self._degrees
        self._note(1)
        self._tell(1, "solved", self.params)
        self.notebook.note(self)

    def _fit_set(self, key, fits: np.ndarray) -> None:
        problem, known = self.problem, self.problem.design
        at = "moments", key
        if at not in known:
            weights = None if problem.row_weights is None else problem._weights_of(int(fits[0]))
            known[at] = Moments.of(problem.X, problem.counts, weights, problem.known)
        moments = known[at]
        if problem.own is None and problem.fold is None:
            problem.of_design("rank", lambda: rank_of(moments.mean, moments.gram, problem.n_counted))
        ridge = np.broadcast_to(np.asarray(problem.penalty.ridge_strength, np.float64), self.params.coef.shape)[:, fits]
        if (units := problem.penalty.units) is not None:
            units = np.broadcast_to(np.where(units > 0, units, 1.0), len(ridge))
            at = "factor", key, units.tobytes()
            if at not in known:
                known[at] = Factor(moments.gram, units)
            strength = ridge.max(axis=0)
            clear = known[at].resolves(strength)
            if clear.any():
                self._solve(moments, known[at], fits[clear], ridge[:, clear], strength[clear])
            fits, ridge = fits[~clear], ridge[:, ~clear]
        # One strength per coefficient, or features with scales so different that a ridge alone does not resolve them.
        alike, which = np.unique(ridge, axis=1, return_inverse=True)
        for column in range(alike.shape[1]):
            some = np.flatnonzero(which.ravel() == column)
            whole = moments.gram + np.diag(alike[:, column])
            diagonal = np.diag(whole)
            factor = Factor(whole, np.sqrt(np.where(diagonal > 0, diagonal, 1.0)))
            self._solve(moments, factor, fits[some], ridge[:, some], np.zeros(len(some)))

    def _solve(self, moments: Moments, factor: Factor, fits, ridge, plain: np.ndarray) -> None:
        """Solve, correct once with the remaining gradient, and bound the gap with the gradient that then remains.

        Products include all neurons, so that no bit of one depends on which others have the same rows. ``plain`` is the
        part of the ridge that is not in the factor, (fit,).
        """
        neurons = self.problem.neuron[fits]
        problem, right = self.problem, moments.cross
        every, strength = np.zeros_like(right), np.ones(right.shape[1])
        every[:, neurons], strength[neurons] = ridge, plain

        def left(coef):
            return moments.gram @ coef + every * coef - right

        coef = factor.solve(right, strength)
        coef -= factor.solve(left(coef), strength)
        gradient = left(coef)
        # Rounding of the moments, which the gradient rests on.
        size = np.sqrt(np.maximum(np.diag(moments.gram), 0.0))[:, None]
        terms = size * (np.sqrt(np.maximum(moments.square, 0.0)) + np.sum(size * np.abs(coef), axis=0))
        slack = _ROUNDINGS * _EPS * np.linalg.norm((terms + every * np.abs(coef)) / factor.units, axis=0)
        decrement = (np.sqrt(factor.squared_norm(gradient, strength)) + slack * np.sqrt(factor.largest(strength))) ** 2
        inside = np.sum(coef * (0.5 * (moments.gram @ coef + every * coef) - right), axis=0)
        intercept = moments.response - moments.mean @ coef
        coef, intercept, decrement = coef[:, neurons], intercept[neurons], decrement[neurons]
        self.params.coef[:, fits], self.params.intercept[fits] = coef, intercept
        self.objective[fits] = problem.null_objective[fits] + inside[neurons]
        n_kept, inverse = factor.n_kept(plain), factor.diagonal(plain)
        self._degrees[fits] = 1.0 + n_kept - np.sum(ridge * inverse, axis=0)
        self._judge(fits, Params(coef, intercept), decrement, n_kept)

    def _judge(self, fits, params: Params, decrement: np.ndarray, n_kept: np.ndarray) -> None:
        """Bound the gaps; if directions were excluded, only where these are exactly those that the features lack.

        Exact Newton steps finish the fits that are not proved.
        """
        problem = self.problem
        bound = decrement / 2 + problem.rounding_of(params, self.objective[fits], fits)
        lacks = n_kept < problem.n_features
        if lacks.any():
            settled = (n_kept >= problem.basis.rank) & problem.left_out_is_settled(params.coef)
            bound = np.where(~lacks | settled, bound, np.inf)
        self.is_bound[fits] = np.isfinite(bound)
        self.target[fits] = self._targets(fits, self.objective[fits])
        self.gap[fits] = np.where(self.is_bound[fits], bound, decrement / 2)
        proved = bound <= self.target[fits]
        self.status[fits] = np.where(proved, int(Status.CONVERGED), int(Status.UNPROVED))
        self.open[fits] = False
        for fit in fits[~proved]:
            self._finish_exactly(int(fit))


def sets_of(problem) -> tuple[list, np.ndarray]:
    """Return the keys of the sets of rows that are weighted alike, and the index of the set of every fit, (fit,)."""
    fold = np.zeros(problem.n_neurons, int) if problem.fold is None else problem.fold
    if problem.own is None:
        pattern = np.zeros(problem.n_neurons, int)
    else:
        if "patterns" not in problem.design:
            columns = (np.ascontiguousarray(problem.own[:, n]) for n in range(problem.own.shape[1]))
            digests = [hashlib.sha256(column).hexdigest() for column in columns]
            problem.design["patterns"] = np.unique(digests, return_inverse=True)[1]
        pattern = problem.design["patterns"][problem.neuron]
    whole = -1 if problem.fold is None else 0
    keys = [(int(f) + whole, int(p)) for f, p in zip(fold, pattern, strict=True)]
    sets = list(dict.fromkeys(keys))
    place = {key: i for i, key in enumerate(sets)}
    return sets, np.array([place[key] for key in keys])


def least_squares_serves(problem) -> bool:
    """Whether a problem has normal responses, a ridge or no penalty, and few sets of rows."""
    if not problem.observation.is_quadratic or not problem.penalty.smooth or len(problem.devices) > 1:
        return False
    fits = problem.neuron if problem.fold is None else np.stack([problem.neuron, problem.fold])
    if np.unique(fits, axis=-1).shape[-1] < problem.n_neurons:  # moments are laid out by neurons
        return False
    if problem.own is None:
        return True
    if not isinstance(problem.own, np.ndarray):
        return False
    return len(sets_of(problem)[0]) * (problem.n_features + 1) <= _PAYS * problem.n_neurons
