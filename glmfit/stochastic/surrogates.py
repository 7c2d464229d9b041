r"""Quadratic surrogates of the rows of a softmax model, and their sum: what incremental majorization asks.

Every row has a quadratic that is at least its loss everywhere and touches it at the row's anchor, with curvature
``C_i (x) z_i z_i'``. Their sum, with the ridge, is at least F. Visiting rows moves their anchors to where the
parameters are, or a share beyond, and then the parameters to the minimiser of the sum. It never goes up, because a
surrogate gives way only to one that is not higher at the parameters: docs/theory/bound_majorization.md, Proposition 4.

Parameters are those of `ContrastRows`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.linalg

from ..bounds import softmax_bound
from ..problems._chunks import small_blas
from ..problems._quadratic import minimise
from ..problems.base import Params
from .contrast_rows import ContrastRows

_PARAMETERS = 5000  # whose square matrix takes 200 MB
_AT_ONCE = 4_000_000  # numbers in memory for some rows
_FORM_ANEW = 16  # passes after which rounding of the differences is dropped
_FORCING = 0.1  # of the gradient's norm that a visit may leave
_STEPS = 50
_FLOOR, _FLAT = 1e-12, 1e-14  # of the largest curvature: what the factor is kept off 0 by, and what counts as none


class Surrogates(NamedTuple):
    """Parameters, anchors of all rows, and the sum of their surrogates there."""

    theta: np.ndarray  # parameters, (contrast, column)
    # Scores at which the surrogate of each row touches, (row, class), kept as they were: classes of equal score then
    # come in the same order when its curvature is computed again to be taken away.
    anchor: np.ndarray
    bound: float  # value of the sum: at least F
    gradient: np.ndarray  # of the sum, (contrast, column)
    curvature: np.ndarray  # of the sum, over all parameters, square
    age: int  # passes since the sum was formed from its anchors
    passes: int  # over the rows, all in all


class _Quadratics(NamedTuple):
    """Surrogates of some rows, at given scores and in contrasts of classes."""

    value: np.ndarray  # (row,)
    slope: np.ndarray  # (row, contrast)
    curvature: np.ndarray  # (row, contrast, contrast)


class SurrogateSum(ContrastRows):
    """Forms and minimises the sum of the surrogates of a softmax problem's rows, if a matrix of all parameters fits."""

    def __init__(self, problem):
        super().__init__(problem)
        if self.n_parameters > _PARAMETERS:
            raise ValueError(
                f"{problem.n_features} features and {problem.n_classes} classes make {self.n_parameters} parameters, "
                "(features + 1) * (classes - 1); IncrementalMajorization keeps a matrix over all of them and takes at "
                f"most {_PARAMETERS}. Use BoundMajorization or ConjugateGradients, which form none."
            )
        self._counts, self._weight = problem.counts.toarray() / self.n_rows, problem.totals[:, None] / self.n_rows
        self._ridge = np.full(self.shape[1], problem.strength)
        self._ridge[problem.n_features :] = 0.0

    def start(self, params: Params, order: str) -> Surrogates:
        """Let the surrogates of all rows touch at a start: one pass over the rows."""
        theta = self.to_vector(params).reshape(self.shape)
        with self._few_threads():
            every = np.arange(self.n_rows)
            anchor = np.concatenate([self.scores(self.columns(some), theta, some) for some in self._parts(every)])
            return Surrogates(theta, anchor, *self._form(theta, anchor, order), 0, 1)

    def visit(self, at: Surrogates, blocks: list[np.ndarray], order: str, lead: float) -> Surrogates:
        """Replace the surrogates of each block of rows (an empty one none), and minimise the sum after each.

        New surrogates touch beyond the scores by ``lead``, a share in [0, 1) of the way from the old anchor. The bound
        of what is returned is not above that of ``at``, which is left as it is, but for rounding.
        """
        with self._few_threads():
            return self._visit(at, blocks, order, lead)

    def _visit(self, at: Surrogates, blocks, order: str, lead: float) -> Surrogates:
        passes, age = at.passes + any(len(rows) for rows in blocks), at.age + 1
        bound, gradient, curvature = at.bound, at.gradient, at.curvature.copy()
        if at.age >= _FORM_ANEW:
            passes, age = passes + 1, 1
            bound, gradient, curvature = self._form(at.theta, at.anchor, order)
        theta, anchor, solve = at.theta, at.anchor.copy(), None
        for rows in blocks:
            down, turn = self._replace(theta, anchor, curvature, rows, order, lead)
            # Made once: the curvature changes little in a pass.
            solve = _approximate_inverse(curvature) if solve is None else solve
            flat = _FLAT * float(np.max(curvature.diagonal()))
            step, further_down, gradient = minimise(
                lambda p: curvature @ p, solve, (gradient + turn).ravel(), _STEPS, _FORCING, flat
            )
            theta, gradient = theta + step.reshape(self.shape), gradient.reshape(self.shape)
            bound = bound - down - further_down
        return Surrogates(theta, anchor, bound, gradient, curvature, age, passes)

    def _few_threads(self):
        """Context in which BLAS does not share products too small for it."""
        return small_blas(math.isqrt(self.shape[0] * self.shape[1] ** 2))

    # ----------------------------------------------------------------------------------------- rows

    def _form(self, theta, anchor, order: str):
        """Value, gradient and curvature of the sum."""
        bound, gradient = float(np.sum(self._ridge * theta**2)) / 2, self._ridge * theta
        curvature = np.diag(np.tile(self._ridge, self.shape[0]))
        for rows in self._parts(np.arange(self.n_rows)):
            z = self.columns(rows)
            own = self._quadratics(rows, anchor[rows], self.scores(z, theta, rows), order)
            bound += float(np.sum(own.value))
            gradient = gradient + own.slope.T @ z
            self._add(curvature, z, own.curvature)
        return bound, gradient, curvature

    def _replace(self, theta, anchor, curvature, rows, order: str, lead: float):
        """Move anchors of rows, adding to the curvature in place; how far the sum falls, how its gradient turns."""
        down, turn = 0.0, np.zeros(self.shape)
        for part in self._parts(rows):
            z, before = self.columns(part), anchor[part]
            now = self.scores(z, theta, part)
            old = self._quadratics(part, before, now, order)
            after = now + lead * (now - before)
            new = self._quadratics(part, after, now, order)
            higher = new.value > old.value
            if lead > 0 and higher.any():
                # Touching right here is never higher.
                after[higher] = now[higher]
                here = self._quadratics(part[higher], now[higher], now[higher], order)
                for into, values in zip(new, here, strict=True):
                    into[higher] = values
            anchor[part] = after
            down += float(np.sum(old.value - new.value))
            turn += (new.slope - old.slope).T @ z
            self._add(curvature, z, new.curvature - old.curvature)
        return down, turn

    def _quadratics(self, rows, anchor, scores, order: str) -> _Quadratics:
        """Surrogates that touch at the anchors, seen from the scores."""
        bounds, counts, weight = softmax_bound(anchor, order), self._counts[rows], self._weight[rows]
        C = weight[:, :, None] * _contrasts(_contrasts(bounds.matrices()).transpose(0, 2, 1))
        slope = _contrasts(weight * np.exp(anchor - bounds.log_norm[:, None]) - counts)
        away = _contrasts(scores - anchor)
        bend = np.einsum("iab,ib->ia", C, away)
        value = weight[:, 0] * bounds.log_norm - np.sum(counts * anchor, axis=1)
        return _Quadratics(value + np.sum((slope + bend / 2) * away, axis=1), slope + bend, C)

    def _add(self, curvature, z, C) -> None:
        """Add the sum of C_i (x) z_i z_i' in place."""
        n_contrasts, n_columns = self.shape
        blocks = curvature.reshape(n_contrasts, n_columns, n_contrasts, n_columns)
        for a in range(n_contrasts):
            weighted = (C[:, a, a:, None] * z[:, None, :]).reshape(len(z), -1)
            product = (z.T @ weighted).reshape(n_columns, -1, n_columns)
            blocks[a, :, a:] += product
            blocks[a + 1 :, :, a] += product[:, 1:].transpose(1, 2, 0)

    def _parts(self, rows) -> list[np.ndarray]:
        """Rows, as many at a time as memory likes."""
        size = max(1, _AT_ONCE // max(self.n_parameters, self._counts.shape[1] ** 2))
        return [rows[i : i + size] for i in range(0, len(rows), size)]


def _contrasts(values: np.ndarray) -> np.ndarray:
    """Helmert's contrasts along the last axis, by sums: every class but the first against the mean of those before."""
    k = np.arange(1, values.shape[-1])
    return (np.cumsum(values, axis=-1)[..., :-1] - k * values[..., 1:]) / np.sqrt(k * (k + 1.0))


def _approximate_inverse(curvature: np.ndarray):
    """Divide by the curvature, kept off 0 where nothing bends, through a factor of it."""
    lifted = curvature.copy()
    lifted[np.diag_indices_from(lifted)] += _FLOOR * float(np.max(curvature.diagonal())) + 1e-100
    factor = scipy.linalg.cho_factor(lifted, overwrite_a=True, check_finite=False)
    return lambda r: scipy.linalg.cho_solve(factor, r, check_finite=False)
