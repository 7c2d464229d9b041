"""Least squares with a ridge: normal responses, fitted exactly from the moments of the rows.

One factorisation serves all fits that weight the rows alike; theory: docs/theory/observation_models.md.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...status import Status
from ...threads import one_thread_each, small_blas
from ..loop import Run
from ..metric import rank_of, rough_standard
from ..problem import Params
from ..result import Solution
from ..tiles import rows_at_once, sums_over_tiles

_EPS = np.finfo(float).eps
_ROUNDINGS = 64  # units in the last place of the terms of a moment, which tiles add up
_ABSENT = 1e-13  # share of the largest eigenvalue: smaller ones are the rounding of the moments
_NEAR = 256  # rows whose mean response is subtracted
_SHARED = 4  # tiles, or a multiple
_PAYS = 40  # fits for each set of rows and feature, from which on steps of all fits would be cheaper


class Moments(NamedTuple):
    """Weighted moments of rows: of centred features, and of responses minus the known part of their predictors."""

    mean: np.ndarray  # (feature,)
    gram: np.ndarray  # (feature, feature), centred
    response: np.ndarray  # mean, (neuron,)
    cross: np.ndarray  # (feature, neuron), centred
    square: np.ndarray  # of responses, centred, (neuron,)
    sizes: tuple[np.ndarray, np.ndarray]  # of features and responses as they were added up, (feature,) and (neuron,)

    @classmethod
    def of(cls, X, Y, weights: np.ndarray | None = None, offset: np.ndarray | None = None, columns=slice(None)):
        """Compute moments of rows in double precision, in one pass, for some of the columns of Y.

        Weights are (row,), at least one positive; offsets (row, 1 or neuron).
        """
        start = 0 if weights is None else int(np.argmax(weights > 0))
        some = slice(start, start + _NEAR)

        def near(rows):  # a mean to subtract against cancellation, of rows that count
            rows = np.asarray(rows, np.float64)
            return (rows if weights is None else rows[weights[some] > 0]).mean(axis=0)

        shift = rough_standard(X, weights)[0] if isinstance(X, np.ndarray) else near(X[some])
        first = near(Y[some])[columns]

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
        if isinstance(X, np.ndarray) and len(Y) > size:  # as many tiles for every thread, of one size
            size = -(-len(Y) // (_SHARED * -(-len(Y) // (_SHARED * size))))
        total, x, xx, y, xy, yy = sums_over_tiles(tile, len(Y), size)
        x, y, sizes = x / total, y / total, (np.sqrt(np.diag(xx) / total), np.sqrt(yy / total))
        moments = xx / total - np.outer(x, x), first + y, xy / total - np.outer(x, y), yy / total - y**2
        return cls(shift + x, *moments, sizes)

    def misfit(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Mean squared residual of models, coef (feature, ..., neuron), intercept (..., neuron)."""
        inside = np.tensordot(self.gram, coef, 1) - 2 * self.cross.reshape(len(coef), *[1] * (coef.ndim - 2), -1)
        left = self.response - intercept - np.tensordot(self.mean, coef, 1)
        return np.maximum(self.square + np.einsum("f...,f...->...", coef, inside) + left**2, 0.0)


class Factor:
    """Eigenvectors of a centred Gram matrix of some rows, in units in which a ridge is a single number."""

    def __init__(self, moments: Moments, gram: np.ndarray, units: np.ndarray):
        self.moments, self.units = moments, units[:, None]
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
        """Do nothing: there is nothing to prepare."""

    def run(self) -> Solution:
        """Fit all, and keep their degrees of freedom and the rank of the features."""
        problem, fitted = self.problem, self.problem.first_status() == Status.MAX_EPOCHS
        self._degrees = np.where(fitted, np.nan, 1.0)  # a neuron without a fit has the intercept
        solution = super().run()
        if not solution.interrupted:
            restored = np.isnan(self._degrees)  # from a checkpoint, which has none
            for fits, *system in self._systems(np.flatnonzero(restored)):
                self._degrees[fits] = _degrees_of(*system)
            problem.degrees = self._degrees
            if problem.fold is None:
                problem.of_design("rank", self._rank)
        return solution

    def _rank(self) -> int:
        """Count the directions that the features distinguish, from their moments if there is one set of rows."""
        if self.problem.own is not None or not self.problem.in_memory:
            return self.problem.basis.rank
        moments = self._moments(sets_of(self.problem)[0][0], 0)
        return rank_of(moments.mean, moments.gram, self.problem.n_counted)

    def _fit(self, fits: np.ndarray) -> None:
        for some, ridge, factor, plain in self._systems(fits):
            with small_blas(self.problem.n_features):  # products of small arrays
                self._solve(factor, some, ridge, plain)
            self._degrees[some] = _degrees_of(ridge, factor, plain)
        self.epochs[fits] = 1
        self.passes += len(fits) / self.problem.n_neurons
        self._note(1)
        self._tell(1, "solved", lambda: self.params)
        self.notebook.note(self)

    def _systems(self, fits: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, Factor, np.ndarray]]:
        """Yield fits that share a factor, their ridge (feature, fit), the factor, and the ridge not in it, (fit,)."""
        sets, of_fit = sets_of(self.problem)
        for key in dict.fromkeys(of_fit[fits].tolist()):
            with small_blas(self.problem.n_features):
                systems = self._systems_of_set(sets[key], fits[of_fit[fits] == key])
            yield from systems

    def _moments(self, key, fit: int) -> Moments:
        """Moments of a set of rows, that of a fit, formed once."""
        problem, known = self.problem, self.problem.design
        at = "moments", key
        if at not in known:
            weights = None if problem.row_weights is None else problem._weights_of(fit)
            known[at] = Moments.of(problem.X, problem.counts, weights, problem.known)
        return known[at]

    def _systems_of_set(self, key, fits: np.ndarray) -> list:
        problem, known, systems = self.problem, self.problem.design, []
        moments = self._moments(key, int(fits[0]))
        ridge = np.broadcast_to(np.asarray(problem.penalty.ridge_strength, np.float64), self.params.coef.shape)[:, fits]
        if (units := problem.penalty.units) is not None:
            units = np.broadcast_to(np.where(units > 0, units, 1.0), len(ridge))
            at = "factor", key, units.tobytes()
            if at not in known:
                known[at] = Factor(moments, moments.gram, units)
            strength = ridge.max(axis=0)
            clear = known[at].resolves(strength)
            if clear.any():
                systems.append((fits[clear], ridge[:, clear], known[at], strength[clear]))
            fits, ridge = fits[~clear], ridge[:, ~clear]
        # One strength per coefficient, or features with scales so different that a ridge alone does not resolve them.
        alike, which = np.unique(ridge, axis=1, return_inverse=True)
        for column in range(alike.shape[1]):
            some = np.flatnonzero(which.ravel() == column)
            whole = moments.gram + np.diag(alike[:, column])
            diagonal = np.diag(whole)
            factor = Factor(moments, whole, np.sqrt(np.where(diagonal > 0, diagonal, 1.0)))
            systems.append((fits[some], ridge[:, some], factor, np.zeros(len(some))))
        return systems

    def _solve(self, factor: Factor, fits, ridge, plain: np.ndarray) -> None:
        """Solve, correct once with the remaining gradient, and bound the gap with the gradient that then remains.

        Products include all neurons, so that no bit of one depends on which others have the same rows. ``plain`` is the
        part of the ridge that is not in the factor, (fit,).
        """
        neurons = self.problem.neuron[fits]
        problem, moments, right = self.problem, factor.moments, factor.moments.cross
        every, strength = np.zeros_like(right), np.ones(right.shape[1])
        every[:, neurons], strength[neurons] = ridge, plain

        def left(coef):
            return moments.gram @ coef + every * coef - right

        coef = factor.solve(right, strength)
        coef -= factor.solve(left(coef), strength)
        gradient = left(coef)
        # Rounding of the moments, which the gradient rests on.
        size, size_of_responses = moments.sizes[0][:, None], moments.sizes[1]
        terms = size * (size_of_responses + np.sum(size * np.abs(coef), axis=0))
        slack = _ROUNDINGS * _EPS * np.linalg.norm((terms + every * np.abs(coef)) / factor.units, axis=0)
        decrement = (np.sqrt(factor.squared_norm(gradient, strength)) + slack * np.sqrt(factor.largest(strength))) ** 2
        inside = np.sum(coef * (0.5 * (moments.gram @ coef + every * coef) - right), axis=0)
        intercept = moments.response - moments.mean @ coef
        coef, intercept, decrement = coef[:, neurons], intercept[neurons], decrement[neurons]
        self.params.coef[:, fits], self.params.intercept[fits] = coef, intercept
        self.objective[fits] = problem.null_objective[fits] + inside[neurons]
        self._judge(fits, Params(coef, intercept), decrement, factor.n_kept(plain))

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


def _degrees_of(ridge: np.ndarray, factor: Factor, plain: np.ndarray) -> np.ndarray:
    """Compute degrees of freedom, intercept included, (fit,): the trace of the matrix from responses to predictions."""
    return 1.0 + factor.n_kept(plain) - np.sum(ridge * factor.diagonal(plain), axis=0)


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
