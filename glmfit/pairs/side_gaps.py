"""How far an all-pairs model is from the best one that differs on one side only: proved, on the host, in float64.

With one side fixed and a linear tower on the other the objective is convex, and strongly so by the ridge.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse

from .observed import value_and_slope
from .responses import Triples
from .towers import Tower, TwoTowers

_THEOREM = "strong convexity in one side's parameters by their ridge (docs/theory/all_pairs.md, Proposition 2)"
_AT_ONCE = 2**18
_EPS = np.finfo(np.float64).eps


class SideGaps(NamedTuple):
    """Bounds of how much the objective can fall by changes of one side.

    Attributes
    ----------
    objective : float
        Of the parameters, in float64, with the data as given.
    left, right : float
        Bounds; nan where nothing is proved (hidden layers, or no ridge).
    per_right : numpy.ndarray
        (n,): the same for the parameters of one right entity alone, which add up to ``right``; nan where entities share
        parameters.
    """

    objective: float
    left: float
    right: float
    per_right: np.ndarray

    @property
    def theorem(self) -> str:
        """What the bounds rest on."""
        return _THEOREM if np.isfinite([self.left, self.right]).any() else ""


class _Side(NamedTuple):
    """Embeddings of a side beside a column of ones, and norms."""

    rows: np.ndarray  # (entity, k + 1), float64
    norm: np.ndarray  # of the rows, (entity,)
    size: np.ndarray  # at least the norm of the sums of absolute terms behind a row, (entity,)


def side_gaps(problem, theta: TwoTowers) -> SideGaps:
    """Evaluate parameters in float64 and bound what each side could still gain.

    Rounding is included: every sum of n terms is taken to be wrong by n + 64 epsilons of the sum of their absolute
    values, from the embeddings to the gradient.
    """
    theta = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), theta)
    left, right = _side(theta.left, problem.given[0]), _side(theta.right, problem.given[1])
    biased = theta.left_bias is not None
    s = theta.left_bias if biased else np.zeros(problem.n_left)
    c = problem.base + theta.right_bias if biased else np.zeros(problem.n_right)
    width = max(max(leaf.shape) for leaf in jax.tree.leaves(theta.parts[0]))  # longest sum within a tower's layer
    unit = _EPS * (64 + problem.n_left + problem.n_right + width)
    sums = _Sums(left, right, s, c, unit)
    for pairs, count in problem.merged.chunks(_AT_ONCE):
        sums.add_observed(problem.loss, pairs, count, problem.cost, problem.prior)
    _add_imputed(sums, problem, theta, biased)
    strengths = problem.strength, problem.bias_strength
    penalty = sum(0.5 * strength * _square(part) for strength, part in zip(strengths, theta.parts, strict=True))
    objective = sums.value + penalty + problem.loss.spread_constant(problem.merged.spread)
    bounds = [
        _bound(tower, given, slope, error, bias, strengths, unit)
        for tower, given, slope, error, bias in (
            (theta.left, problem.given[0], sums.left_slope, sums.left_error, theta.left_bias),
            (theta.right, problem.given[1], sums.right_slope, sums.right_error, theta.right_bias),
        )
    ]
    return SideGaps(float(objective), bounds[0][0], *bounds[1])


def _square(tree: Any) -> float:
    return float(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def _side(tower: Tower, given) -> _Side:
    """Embeddings by NumPy; those of a perceptron are what they come out as, since that side stays fixed."""
    own, (weight, constant) = isinstance(given, int | np.integer), tower.maps[0]
    values = tower(None if own else given)
    if own or not tower.is_linear:
        size = np.linalg.norm(values, axis=1)
    else:
        size = _row_norms(given) * np.linalg.norm(weight) + np.linalg.norm(constant)
    rows = np.concatenate([values, np.ones((len(values), 1))], axis=1)
    return _Side(rows, np.linalg.norm(rows, axis=1), np.sqrt(size**2 + 1))


def _row_norms(given) -> np.ndarray:
    if scipy.sparse.issparse(given):
        return np.sqrt(np.asarray(given.multiply(given).sum(axis=1)).ravel().astype(np.float64))
    return np.linalg.norm(np.asarray(given, np.float64), axis=1)


class _Sums:
    """Value, slopes of all embeddings (the bias being the last column), and bounds of the slopes' rounding."""

    def __init__(self, left: _Side, right: _Side, s, c, unit: float):
        self.left, self.right, self.s, self.c, self.unit = left, right, s, c, unit
        self.value = 0.0
        self.left_slope, self.right_slope = np.zeros(left.rows.shape), np.zeros(right.rows.shape)
        self.left_error, self.right_error = np.zeros(len(s)), np.zeros(len(c))

    def add_observed(self, loss, pairs: Triples, count, cost_factors, prior) -> None:
        """Add the losses of some observed pairs, less what imputation would cost there."""
        i, j, y = pairs
        p, q = self.left.rows[i], self.right.rows[j]
        z = np.einsum("rk,rk->r", p[:, :-1], q[:, :-1]) + self.s[i] + self.c[j]
        size = self.left.size[i] * self.right.size[j] + np.abs(self.s[i]) + np.abs(self.c[j])
        wrong = loss.curvature_bound(y, z - self.unit * size, z + self.unit * size) * size + 1 + np.abs(y)
        wrong = wrong if count is None else count * wrong
        cost, known = None, 0.0
        if cost_factors is not None:
            cost = cost_factors[0][i] * cost_factors[1][j]
            known = 0.0 if prior is None else np.einsum("rk,rk->r", prior[0][i], prior[1][j])
            wrong = wrong + cost * (size + np.abs(known))
        value, slope = value_and_slope(loss, y, count, z, cost, z - known)
        wrong = self.unit * (wrong + np.abs(slope))
        self.value += float(np.sum(value))
        table = scipy.sparse.csr_array((slope, (i, j)), shape=(len(self.s), len(self.c)))
        self.left_slope += table @ self.right.rows
        self.right_slope += table.T @ self.left.rows
        self.left_error += np.bincount(i, wrong * self.right.norm[j], len(self.s))
        self.right_error += np.bincount(j, wrong * self.left.norm[i], len(self.c))


def _add_imputed(sums: _Sums, problem, theta: TwoTowers, biased: bool) -> None:
    """Add the imputation of all pairs, by the products of the residual factors."""
    if problem.cost is None:
        return
    (a, b), left, right, prior = problem.cost, sums.left, sums.right, problem.prior
    S = np.concatenate([left.rows, sums.s[:, None]], axis=1)
    shift = sums.c
    if problem.data.prior_is_base:  # taken out of the bias exactly
        shift, prior = theta.right_bias, None
    T = np.concatenate([right.rows[:, :-1], shift[:, None], np.ones((len(shift), 1))], axis=1)
    if prior is not None:
        S, T = np.concatenate([S, -prior[0]], axis=1), np.concatenate([T, prior[1]], axis=1)
    if not biased:
        keep = [*range(left.rows.shape[1] - 1), *range(left.rows.shape[1] + 1, S.shape[1])]
        S, T = S[:, keep], T[:, keep]
    bT, aS = b[:, None] * T, a[:, None] * S
    sums.value += 0.5 * float(np.sum((S.T @ aS) * (T.T @ bT)))
    sums.left_slope += aS @ (T.T @ (b[:, None] * right.rows))
    sums.right_slope += bT @ (S.T @ (a[:, None] * left.rows))
    # |S| and |T| are at most the sizes behind them.
    size_S = np.linalg.norm(S, axis=1) + left.size
    size_T = np.linalg.norm(T, axis=1) + right.size
    sums.left_error += 4 * sums.unit * a * size_S * np.sum(b * size_T * right.norm)
    sums.right_error += 4 * sums.unit * b * size_T * np.sum(a * size_S * left.norm)


def _bound(tower: Tower, given, slope, error, bias, strengths, unit) -> tuple[float, np.ndarray]:
    """Half the squared gradient over the ridge: for the whole side, and for each entity where they share nothing."""
    nothing = np.full(len(error), np.nan)
    strength, bias_strength = strengths
    if not tower.is_linear or strength <= 0 or (bias is not None and bias_strength <= 0):
        return np.nan, nothing
    own = np.zeros(len(error))
    if bias is not None:
        pull = bias_strength * bias
        own = (np.abs(slope[:, -1] + pull) + error + 4 * _EPS * np.abs(pull)) ** 2 / (2 * bias_strength)
    G, (weight, constant) = slope[:, :-1], tower.maps[0]
    if isinstance(given, int | np.integer):
        pull = strength * weight
        length = np.linalg.norm(G + pull, axis=1) + error + 4 * _EPS * np.linalg.norm(pull, axis=1)
        own = (own + length**2 / (2 * strength)) * (1 + 1e-12)
        return float(own.sum() * (1 + 1e-12)), own
    norms = np.sqrt(_row_norms(given) ** 2 + 1)  # the constant is a feature of ones
    gradient = np.concatenate([np.asarray(given.T @ G), G.sum(axis=0)[None, :]])
    gradient += strength * np.concatenate([weight, constant[None, :]])
    wrong = norms @ (error + unit * np.linalg.norm(G, axis=1))
    wrong += 4 * _EPS * strength * np.sqrt(_square((weight, constant)))
    total = (np.linalg.norm(gradient) + wrong) ** 2 / (2 * strength) + own.sum()
    return float(total * (1 + 1e-12)), nothing
