"""Proved distance of an all-pairs model from the best one that differs on one side only, on the host, in float64.

With one side fixed and a linear tower on the other, the objective is convex; a ridge makes it strongly convex.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse

from .objective import make_tables
from .observed import value_and_slope
from .towers import Tower, TwoTowers

_THEOREM = "strong convexity in one side's parameters by their ridge (docs/theory/all_pairs.md, Proposition 2)"
_AT_ONCE = 2**18
_EPS = np.finfo(np.float64).eps


class SideGaps(NamedTuple):
    """Bounds of how much the objective can fall by changes of one side; nan if nothing is proved."""

    objective: float  # at the parameters, in float64, with the data as given
    left: float  # bound; nothing is proved with hidden layers, or without a ridge
    right: float
    per_right: np.ndarray  # of one right entity alone, (n,), which add up to `right`; nan if they share parameters

    @property
    def theorem(self) -> str:
        """Theorem that the bounds rest on."""
        return _THEOREM if np.isfinite([self.left, self.right]).any() else ""


class _Side:
    """A side: embeddings and a column of ones for the bias; slopes of both, and bounds of the slopes' rounding."""

    def __init__(self, tower: Tower, bias: np.ndarray | None, features: Any):
        self.tower, self.bias, self.features = tower, bias, features
        self.has_own = isinstance(features, int | np.integer)
        # A perceptron's embeddings are taken as computed, because that side stays fixed.
        self.embeddings = values = tower(None if self.has_own else features)
        if self.has_own or not tower.is_linear:
            size = np.linalg.norm(values, axis=1)
        else:
            (weight, constant), *_ = tower.maps
            size = _row_norms(features) * np.linalg.norm(weight) + np.linalg.norm(constant)
        self.size = np.sqrt(size**2 + 1)  # at least the norm of the sums of absolute terms behind a row
        self.rows = np.concatenate([values, np.ones((len(values), 1))], axis=1)
        self.norm = np.linalg.norm(self.rows, axis=1)
        self.slope, self.error = np.zeros(self.rows.shape), np.zeros(len(values))


def side_gaps(problem, theta: TwoTowers) -> SideGaps:
    """Evaluate parameters in float64 and bound what each side could still gain."""
    theta = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), theta)
    left = _Side(theta.left, theta.left_bias, problem.given[0])
    right = _Side(theta.right, theta.right_bias, problem.given[1])
    width = max(max(leaf.shape) for leaf in jax.tree.leaves(theta.parts[0]))  # longest sum within a tower's layer
    # Every sum of n terms, from embeddings to gradient, is assumed to err by n + 64 epsilons of its absolute terms.
    unit = _EPS * (64 + problem.n_left + problem.n_right + width)
    value = _add_observed(left, right, problem, unit)
    if problem.cost is not None:
        value += _add_imputed(left, right, problem, unit)
    strengths = problem.strength, problem.bias_strength
    value += sum(0.5 * strength * _square(part) for strength, part in zip(strengths, theta.parts, strict=True))
    bounds = _bound(left, *strengths, unit), _bound(right, *strengths, unit)
    return SideGaps(float(value + problem.loss.spread_constant(problem.merged.spread)), bounds[0][0], *bounds[1])


def _square(tree: Any) -> float:
    return float(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def _row_norms(features) -> np.ndarray:
    if scipy.sparse.issparse(features):
        return np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel().astype(np.float64))
    return np.linalg.norm(np.asarray(features, np.float64), axis=1)


def _add_observed(left: _Side, right: _Side, problem, unit: float) -> float:
    """Add the slopes of the observed losses, less what imputation would cost there; return their value."""
    s = np.zeros(problem.n_left) if left.bias is None else left.bias
    c = np.zeros(problem.n_right) if right.bias is None else problem.base + right.bias
    total = 0.0
    for i, j, y, count in problem.merged.tiles_of(_AT_ONCE):
        z = np.einsum("rk,rk->r", left.embeddings[i], right.embeddings[j]) + s[i] + c[j]
        size = left.size[i] * right.size[j] + np.abs(s[i]) + np.abs(c[j])
        wrong = problem.loss.curvature_bound(y, z - unit * size, z + unit * size) * size + 1 + np.abs(y)
        wrong = wrong if count is None else count * wrong
        cost, known = None, 0.0
        if problem.cost is not None:
            cost = problem.cost[0][i] * problem.cost[1][j]
            known = 0.0 if problem.prior is None else np.einsum("rk,rk->r", problem.prior[0][i], problem.prior[1][j])
            wrong = wrong + cost * (size + np.abs(known))
        value, slope = value_and_slope(problem.loss, y, count, z, cost, z - known)
        wrong = unit * (wrong + np.abs(slope))
        total += float(np.sum(value))
        table = scipy.sparse.csr_array((slope, (i, j)), shape=(len(s), len(c)))
        left.slope += table @ right.rows
        right.slope += table.T @ left.rows
        left.error += np.bincount(i, wrong * right.norm[j], len(s))
        right.error += np.bincount(j, wrong * left.norm[i], len(c))
    return total


def _add_imputed(left: _Side, right: _Side, problem, unit: float) -> float:
    """Add the slopes of the imputation of all pairs, by the products of the residual factors; return its value."""
    base, biases = None if left.bias is None else problem.base, (left.bias, right.bias)
    known = base, True, problem.prior, problem.data.prior_is_base
    _, _, S, T = make_tables(left.embeddings, right.embeddings, biases, *known)
    a, b = problem.cost
    aS, bT = a[:, None] * S, b[:, None] * T
    left.slope += aS @ (T.T @ (b[:, None] * right.rows))
    right.slope += bT @ (S.T @ (a[:, None] * left.rows))
    # |S| and |T| are at most the sizes behind them.
    size_S = np.linalg.norm(S, axis=1) + left.size
    size_T = np.linalg.norm(T, axis=1) + right.size
    left.error += 4 * unit * a * size_S * np.sum(b * size_T * right.norm)
    right.error += 4 * unit * b * size_T * np.sum(a * size_S * left.norm)
    return 0.5 * float(np.sum((S.T @ aS) * (T.T @ bT)))


def _bound(side: _Side, strength: float, bias_strength: float, unit: float) -> tuple[float, np.ndarray]:
    """Half the squared gradient over the ridge: for the whole side, and for each entity if they share nothing."""
    error, nothing = side.error, np.full(len(side.error), np.nan)
    if not side.tower.is_linear or strength <= 0 or (side.bias is not None and bias_strength <= 0):
        return np.nan, nothing
    own = np.zeros(len(error))
    if side.bias is not None:
        pull = bias_strength * side.bias
        own = (np.abs(side.slope[:, -1] + pull) + error + 4 * _EPS * np.abs(pull)) ** 2 / (2 * bias_strength)
    G, (weight, constant) = side.slope[:, :-1], side.tower.maps[0]
    if side.has_own:
        pull = strength * weight
        length = np.linalg.norm(G + pull, axis=1) + error + 4 * _EPS * np.linalg.norm(pull, axis=1)
        own = (own + length**2 / (2 * strength)) * (1 + 1e-12)
        return float(own.sum() * (1 + 1e-12)), own
    norms = np.sqrt(_row_norms(side.features) ** 2 + 1)  # the constant is a feature of ones
    gradient = np.concatenate([np.asarray(side.features.T @ G), G.sum(axis=0)[None, :]])
    gradient += strength * np.concatenate([weight, constant[None, :]])
    wrong = norms @ (error + unit * np.linalg.norm(G, axis=1))
    wrong += 4 * _EPS * strength * np.sqrt(_square((weight, constant)))
    total = (np.linalg.norm(gradient) + wrong) ** 2 / (2 * strength) + own.sum()
    return float(total * (1 + 1e-12)), nothing
