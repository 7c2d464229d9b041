r"""Incremental majorization of softmax models: every row has a quadratic bound, replaced when the row is visited.

Its curvature is ``C_i (x) z_i z_i'``, and it touches the row's loss at the row's anchor. Visiting rows moves their
anchors to where the parameters are, or a share beyond, and then the parameters to the minimiser of the sum, which never
goes up: docs/theory/bound_majorization.md, Proposition 4. Parameters are those of `ContrastRows`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.linalg

from ..bounds import LOG_PARTITION_THEOREM, ORDERS, check_batch_size, softmax_bound
from ..checks import check_choice, check_share, check_whole
from ..engine.chunks import a_twentieth, chunks, small_blas
from ..engine.classes.descent import ClassDescent
from ..engine.exact.quadratic import minimise
from ..engine.problem import Params
from ..engine.result import LoopOptions, Solution
from ..numerics import seed_of
from .bound_majorization import majorize
from .contrast_rows import ContrastRows

_PARAMETERS = 5000  # whose square matrix takes 200 MB
_AT_ONCE = 4_000_000  # numbers in memory for some rows
_FORM_ANEW = 16  # passes after which rounding of the differences is dropped
_FORCING = 0.1  # of the gradient's norm that a visit may leave
_STEPS = 50
_FLOOR, _FLAT = 1e-12, 1e-14  # of the largest curvature: what the factor is kept off 0 by, and what counts as none
_THEOREM = f"{LOG_PARTITION_THEOREM}, minimised incrementally (docs/theory/bound_majorization.md, Proposition 4)"
_ASSUMPTIONS = (
    "F is at most the sum of the rows' bounds, which never goes up: a bound gives way only to one that is not higher "
    "at the parameters (checked row by row), and every step lowers the sum",
)


@dataclass(frozen=True)
class IncrementalMajorization:
    r"""Bound majorization of softmax models, row by row: no step size, and what is minimised never goes up.

    Parameters
    ----------
    batch_size : int, optional
        Rows per visit; chosen by default (1/20 of them, 32 to 4096). All rows at once is batch majorization.
    order : {"descending", "given", "ascending", "averaged"}
        In which a bound takes in the classes: see `glmfit.bounds.softmax_bound`.
    lead : float
        In [0, 1): how far beyond the scores of a visited row its new bound may touch, as a share of the way they have
        come since its last visit. It grows to this value over the passes. 0 is the plain method.
    check_every : int
        Epochs between evaluations of F, a pass each.

    Notes
    -----
    Guarantee: F is at most the sum of the rows' bounds, which no visit raises, from any start and with nothing to tune.
    An epoch visits every row once, in random order; the first one minimises the bounds formed at the start.

    Host, float64, dense and sparse features; nothing is compiled. With P = (features + 1) (classes - 1) at most 5000
    parameters, cost per epoch: N P^2 flops and P^3 / 3. Memory: some matrices of P^2, and 2 numbers per row and class.
    With many parameters ConjugateGradients, which forms no such matrix, is faster. Directions with less than 1e-14 of
    the largest curvature count as flat: scale features whose scales differ by more than a factor of 1e6 first.
    Theory and sources: docs/theory/bound_majorization.md, Proposition 4.
    """

    batch_size: int | None = None
    order: str = "descending"
    lead: float = 0.8
    check_every: int = 3
    on_host: ClassVar[bool] = True

    def __post_init__(self):
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size, 1)
        check_choice("order", self.order, ORDERS)
        check_share("lead", self.lead)
        check_whole("check_every", self.check_every, 1)

    def run(self, problem, params: Params | None = None, *, key=None, options: LoopOptions | None = None) -> Solution:
        """Fit a softmax problem until it is converged or the budget is spent; see :class:`LoopOptions`."""
        batch_size = a_twentieth(problem.n_rows) if self.batch_size is None else self.batch_size
        check_batch_size(batch_size, problem.n_rows)
        how = {"method": replace(self, batch_size=batch_size), "seed": 0 if key is None else seed_of(key)}
        descent = partial(_Visits, **how, bounds=SurrogateSum(problem))
        # In the metric of the sum no row's bound, of curvature N times its own, exceeds N.
        certified = {"L_max": np.full(1, float(problem.n_rows)), "theorem": _THEOREM, "assumptions": _ASSUMPTIONS}
        return majorize(self, problem, params, options, descent, batch_size=batch_size, **certified)


class _Visits(ClassDescent):
    """Where a softmax model is whose rows are visited a block at a time, and with what bounds (``surrogates``)."""

    def __init__(self, *where, method: IncrementalMajorization, seed: int, bounds: SurrogateSum):
        super().__init__(*where)
        self._method, self._seed, self._sum = method, seed, bounds
        start = Params(self.coef, self.intercept - self.rows.mean @ self.coef)
        with bounds.few_threads():
            self.surrogates = bounds.start(start, method.order)
        self.hessian_cost = np.full_like(self.hessian_cost, np.inf)

    def advance(self, moving: np.ndarray, goal=None, most_steps: int | None = None) -> None:
        """Visit every row once."""
        epoch = int(self.n_steps[0]) + 1
        # All bounds are new at the start: the first time there is nothing to replace.
        rows = np.random.default_rng([self._seed, epoch]).permutation(self.rows.n_rows if epoch > 1 else 0)
        blocks = np.array_split(rows, max(1, -(-len(rows) // self._method.batch_size)))
        before, lead = self.surrogates, min(self._method.lead, epoch / (epoch + 4))
        with self._sum.few_threads():
            self.surrogates = self._sum.visit(before, blocks, self._method.order, lead)
        params = self._sum.to_params(self.surrogates.theta)
        self.at = np.vstack([params.coef, params.intercept + self.rows.mean @ params.coef])
        self.rows.passes += self.surrogates.passes - before.passes
        self.gained, self.n_steps, self.stale = self._null_objective - self.surrogates.bound, self.n_steps + 1, True
        if epoch % self._method.check_every == 0:
            self.refresh()
        self.trace.append(self.estimate)

    def refresh(self) -> None:
        """Evaluate F and its gradient: one pass."""
        super().refresh()
        self._renew_shared()
        self.stale = False


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
        parts = self._parts(np.arange(self.n_rows))
        anchor = np.concatenate([self.scores(self.columns(rows), theta, rows) for rows in parts])
        return Surrogates(theta, anchor, *self._form(theta, anchor, order), 0, 1)

    def visit(self, at: Surrogates, blocks: list[np.ndarray], order: str, lead: float) -> Surrogates:
        """Replace the surrogates of each block of rows, and minimise the sum after each; ``at`` is left as it is."""
        passes, age = at.passes + any(len(rows) for rows in blocks), at.age + 1
        bound, gradient, curvature = at.bound, at.gradient, at.curvature.copy()
        if at.age >= _FORM_ANEW:
            passes, age = passes + 1, 1
            bound, gradient, curvature = self._form(at.theta, at.anchor, order)
        theta, anchor, solve = at.theta, at.anchor.copy(), None
        for rows in blocks:
            down, turn = self._replace(theta, anchor, curvature, rows, order, lead)
            most = float(np.max(curvature.diagonal()))
            if solve is None:  # made once: the curvature changes little in a pass
                lifted = curvature.copy()  # off 0 where nothing bends
                lifted[np.diag_indices_from(lifted)] += _FLOOR * most + 1e-100
                factor = scipy.linalg.cho_factor(lifted, overwrite_a=True, check_finite=False)
                solve = partial(scipy.linalg.cho_solve, factor, check_finite=False)
            step, further_down, gradient = minimise(
                curvature.__matmul__, solve, (gradient + turn).ravel(), _STEPS, _FORCING, _FLAT * most
            )
            theta, gradient = theta + step.reshape(self.shape), gradient.reshape(self.shape)
            bound = bound - down - further_down
        return Surrogates(theta, anchor, bound, gradient, curvature, age, passes)

    def few_threads(self):
        """Context in which BLAS does not share products too small for it."""
        return small_blas(math.isqrt(self.shape[0] * self.shape[1] ** 2))

    # ----------------------------------------------------------------------------------------- rows

    def _form(self, theta, anchor, order: str):
        """Value, gradient and curvature of the sum."""
        bound, gradient = float(np.sum(self._ridge * theta**2)) / 2, self._ridge * theta
        curvature = np.diag(np.tile(self._ridge, self.shape[0]))
        for rows in self._parts(np.arange(self.n_rows)):
            z = self.columns(rows)
            value, slope, C = self._quadratics(rows, anchor[rows], self.scores(z, theta, rows), order)
            bound += float(np.sum(value))
            gradient = gradient + slope.T @ z
            self._add(curvature, z, C)
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
            higher = new[0] > old[0]
            if lead > 0 and higher.any():
                # Touching right here is never higher.
                after[higher] = now[higher]
                here = self._quadratics(part[higher], now[higher], now[higher], order)
                for into, values in zip(new, here, strict=True):
                    into[higher] = values
            anchor[part] = after
            value, slope, C = (b - a for a, b in zip(old, new, strict=True))
            down -= float(np.sum(value))
            turn += slope.T @ z
            self._add(curvature, z, C)
        return down, turn

    def _quadratics(self, rows, anchor, scores, order: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, slope and curvature, in contrasts, of the surrogates that touch at the anchors, at the scores."""
        bounds, counts, weight = softmax_bound(anchor, order), self._counts[rows], self._weight[rows]
        H = self.contrasts
        C = weight[:, :, None] * (H @ bounds.matrices() @ H.T)
        slope = (weight * np.exp(anchor - bounds.log_norm[:, None]) - counts) @ H.T
        away = (scores - anchor) @ H.T
        bend = np.einsum("iab,ib->ia", C, away)
        value = weight[:, 0] * bounds.log_norm - np.sum(counts * anchor, axis=1)
        return value + np.sum((slope + bend / 2) * away, axis=1), slope + bend, C

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
        return [rows[some] for some in chunks(len(rows), size)]
