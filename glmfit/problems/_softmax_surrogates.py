r"""Quadratic surrogates of the rows of a softmax model, and their sum: what incremental majorization asks.

Every row has a quadratic that is at least its loss everywhere and touches it at the row's anchor, with curvature
``C_i (x) z_i z_i'``. Their sum, with the ridge, is at least F. Visiting rows moves their anchors to where the
parameters are, or a share beyond, and then the parameters to the minimiser of the sum. It never goes up, because a
surrogate gives way only to one that is not higher at the parameters: docs/theory/bound_majorization.md, Proposition 4.

Parameters are those of `SoftmaxView`, the classes in orthonormal contrasts: one less, and no common shift.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.linalg

from ..bounds import softmax_bound
from ._chunks import small_blas
from ._softmax_view import SoftmaxView

_PARAMETERS = 5000  # whose square matrix takes 200 MB
_AT_ONCE = 4_000_000  # numbers in memory for some rows
_FORM_ANEW = 16  # passes after which rounding of the differences is dropped
_FORCING = 0.1  # of the gradient's norm that a visit may leave
_STEPS = 50
_FLOOR, _FLAT = 1e-12, 1e-14  # of the largest curvature: what the factor is kept off 0 by, and what counts as none


class Surrogates(NamedTuple):
    """Parameters, anchors of all rows, and the sum of their surrogates there.

    Attributes
    ----------
    v : numpy.ndarray
        Parameters, (feature + 1, class).
    anchor : numpy.ndarray
        Scores at which the surrogate of each row touches, (row, class). Kept as they were, so that classes of equal
        score come in the same order when its curvature is computed again to be taken away.
    bound : float
        Value of the sum at v: at least F.
    gradient : numpy.ndarray
        Of the sum at v, (contrast, feature + 1).
    curvature : numpy.ndarray
        Of the sum, over all contrasts times features, square.
    objective : float
        F at v; nan until somebody looks.
    estimate : float
        Of F - F*, by this curvature: not a bound, and usually too small; nan until somebody looks.
    age : int
        Passes since the sum was formed from its anchors.
    passes : int
        Over the rows, all in all.
    """

    v: np.ndarray
    anchor: np.ndarray
    bound: float
    gradient: np.ndarray
    curvature: np.ndarray
    objective: float
    estimate: float
    age: int
    passes: int


class _Quadratics(NamedTuple):
    """Surrogates of some rows, at given scores and in contrasts of classes."""

    value: np.ndarray  # (row,)
    slope: np.ndarray  # (row, contrast)
    curvature: np.ndarray  # (row, contrast, contrast)


class SurrogateSum:
    """Forms and minimises the sum of the surrogates of a `SoftmaxView`.

    Parameters
    ----------
    view : SoftmaxView
        Rows, counts and ridge.

    Raises
    ------
    ValueError
        If there are too many parameters for a matrix over all of them.
    """

    def __init__(self, view: SoftmaxView):
        self.view, n_columns, n_contrasts = view, len(view.variance) + 1, view.n_classes - 1
        self.shape = n_contrasts, n_columns
        if n_contrasts * n_columns > _PARAMETERS:
            raise ValueError(
                f"{n_columns - 1} features and {view.n_classes} classes make {n_contrasts * n_columns} parameters, "
                "(features + 1) * (classes - 1); IncrementalMajorization keeps a matrix over all of them and takes at "
                f"most {_PARAMETERS}. Use BoundMajorization or NewtonCG, which form none."
            )
        self.contrast = scipy.linalg.helmert(view.n_classes)
        self.counts, self.weight = view.counts.toarray() / view.n_rows, view.totals / view.n_rows
        self.ridge = np.append(np.full(n_columns - 1, view.strength), 0.0)

    def start(self, v: np.ndarray, order: str) -> Surrogates:
        """Let the surrogates of all rows touch at v: one pass over the rows."""
        with self._few_threads():
            anchor = self.view.scores(v)
            bound, gradient, curvature = self._form(v, anchor, order)
            estimate = self._estimate(gradient, _factor(curvature))
        return Surrogates(v, anchor, bound, gradient, curvature, bound, estimate, 0, 1)

    def visit(self, at: Surrogates, blocks: list[np.ndarray], order: str, lead: float) -> Surrogates:
        """Replace the surrogates of each block of rows, minimise the sum after each.

        Parameters
        ----------
        at : Surrogates
            Left as it is.
        blocks : list of numpy.ndarray
            Rows, each at most once; an empty block only minimises.
        order : str
            Of the classes in the bounds.
        lead : float
            Where new surrogates touch: beyond the scores by this share of the way from the old anchor, in [0, 1).

        Returns
        -------
        Surrogates
            Its ``bound`` is not above the one given, but for rounding.
        """
        with self._few_threads():
            return self._visit(at, blocks, order, lead)

    def _visit(self, at: Surrogates, blocks, order: str, lead: float) -> Surrogates:
        passes, age = at.passes + any(len(rows) for rows in blocks), at.age + 1
        bound, gradient, curvature = at.bound, at.gradient, at.curvature.copy()
        if at.age >= _FORM_ANEW:
            passes, age = passes + 1, 1
            bound, gradient, curvature = self._form(at.v, at.anchor, order)
        v, anchor, factor = at.v, at.anchor.copy(), None
        for rows in blocks:
            down, turn = self._replace(v, anchor, curvature, rows, order, lead)
            gradient = gradient + turn
            # Made once: the curvature changes little in a pass.
            factor = _factor(curvature) if factor is None else factor
            step, further_down, gradient = _minimise(curvature, gradient, factor)
            v, bound = v + step.T @ self.contrast, bound - down - further_down
        return Surrogates(v, anchor, bound, gradient, curvature, np.nan, np.nan, age, passes)

    def look(self, at: Surrogates) -> Surrogates:
        """Evaluate F, and estimate how far it is from the optimum: one pass over the rows."""
        with self._few_threads():
            point = self.view.at(at.v)
            estimate = self._estimate((point.gradient @ self.contrast.T).T, _factor(at.curvature))
        return at._replace(objective=point.objective, estimate=estimate, passes=at.passes + 1)

    def _few_threads(self):
        """Context in which BLAS does not share products too small for it."""
        return small_blas(math.isqrt(self.shape[0] * self.shape[1] ** 2))

    # ----------------------------------------------------------------------------------------- rows

    def _form(self, v, anchor, order: str):
        """Value, gradient and curvature of the sum at v."""
        u = self.contrast @ v.T
        bound, gradient = float(np.sum(self.ridge * u**2)) / 2, self.ridge * u
        curvature, scores = np.diag(np.tile(self.ridge, len(u))), self.view.scores(v)
        for rows in self._parts():
            z = self._columns(rows)
            own = self._quadratics(rows, anchor[rows], scores[rows], order)
            bound += float(np.sum(own.value))
            gradient += own.slope.T @ z
            self._add(curvature, z, own.curvature)
        return bound, gradient, curvature

    def _replace(self, v, anchor, curvature, rows, order: str, lead: float):
        """Move anchors of rows, adding to the curvature in place; how far the sum falls, how its gradient turns."""
        down, turn = 0.0, np.zeros(self.shape)
        for part in self._parts(rows):
            z, before = self._columns(part), anchor[part]
            now = self._scores(z, part, v)
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
        bounds, counts, weight = softmax_bound(anchor, order), self.counts[rows], self.weight[rows]
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

    def _columns(self, rows) -> np.ndarray:
        """Features and a 1 of some rows, dense."""
        x = self.view.rows[rows]
        x = x.toarray() - self.view.mean if self.view.sparse else x
        return np.hstack([x, np.full((len(rows), 1), float(self.view.fit_intercept))])

    def _scores(self, z, rows, v) -> np.ndarray:
        return z @ v if self.view.offset is None else z @ v + self.view.offset[rows]

    def _parts(self, rows=None) -> list[np.ndarray]:
        """Rows, as many at a time as memory likes."""
        rows = np.arange(self.view.n_rows) if rows is None else rows
        size = max(1, _AT_ONCE // max(self.shape[0] * self.shape[1], self.view.n_classes**2))
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    @staticmethod
    def _estimate(gradient, factor) -> float:
        return float(np.sum(gradient.ravel() * _solve(factor, gradient.ravel()))) / 2


def _contrasts(values: np.ndarray) -> np.ndarray:
    """Helmert's contrasts along the last axis, by sums: every class but the first against the mean of those before."""
    k = np.arange(1, values.shape[-1])
    return (np.cumsum(values, axis=-1)[..., :-1] - k * values[..., 1:]) / np.sqrt(k * (k + 1.0))


def _factor(curvature: np.ndarray):
    """Cholesky's factor of the curvature, kept off 0 where nothing bends."""
    lifted = curvature.copy()
    lifted[np.diag_indices_from(lifted)] += _FLOOR * float(np.max(curvature.diagonal())) + 1e-100
    return scipy.linalg.cho_factor(lifted, overwrite_a=True, check_finite=False)


def _solve(factor, r: np.ndarray) -> np.ndarray:
    return scipy.linalg.cho_solve(factor, r, check_finite=False)


def _minimise(curvature, gradient, factor):
    """Step towards the minimiser of a quadratic, how far it goes down, and the gradient there.

    Conjugate gradients, preconditioned by a factor of nearly the same curvature: every iterate is lower than the one
    before.
    """
    r = -gradient.ravel()
    x, down = np.zeros_like(r), 0.0
    z = _solve(factor, r)
    p, rz = z, float(r @ z)
    enough, flat = _FORCING**2 * rz, _FLAT * float(np.max(curvature.diagonal()))
    for _ in range(_STEPS):
        curved = curvature @ p
        bend = float(p @ curved)
        if not bend > flat * float(p @ p):
            break  # nothing is left, or nothing bends: such directions stay where they are
        a = rz / bend
        x, r, down = x + a * p, r - a * curved, down + a * rz / 2
        z = _solve(factor, r)
        new = float(r @ z)
        if new <= enough:
            break
        p, rz = z + new / rz * p, new
    return x.reshape(gradient.shape), down, -r.reshape(gradient.shape)
