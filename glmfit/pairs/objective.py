"""Objective of an all-pairs model on the device, with gradient and Gauss-Newton product, in time linear in m + n."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .._compile import jit
from ..observations import Observation
from .observed import Imputation, Observed, Piece, Tables, inner, value_and_slope
from .towers import Features, TwoTowers


class Imputed(NamedTuple):
    """Residual factors: ``S T'`` is what imputation squares, the linear predictor less the prior."""

    S: jax.Array
    T: jax.Array


class PairSample(NamedTuple):
    """A draw of pairs."""

    observed: Piece  # drawn evenly with replacement
    n_pairs: jax.Array  # out of how many
    left: jax.Array  # pairs to impute, drawn by the cost factors of either side whether observed or not
    right: jax.Array


class AllPairs(eqx.Module):
    r"""Objective of an all-pairs model on the device, in time linear in m + n and in the number of observed pairs.

    With linear predictors :math:`z_{ij} = p_i^\top q_j + s_i + t_j + \delta_j`

    .. math:: L = \sum_{(i,j) \in O}\sum_{\text{trials}} \ell(y, z_{ij})
              + \frac\omega2\sum_{(i,j) \notin O} a_i b_j (z_{ij} - \tilde y_{ij})^2
              + \frac\lambda2|\theta|^2 + \frac{\lambda_b}2(|s|^2 + |\delta|^2)

    Attributes
    ----------
    loss : Observation
        Of the observed pairs.
    left, right : Features
        What the towers see.
    observed : Observed
        The observed pairs.
    imputation : Imputation or None
        ``omega a_i`` and ``b_j`` of the entities seen; None where omega is 0.
    base : jax.Array or None
        t, (n,): the linear predictor of every right entity's mean response; None in a model without biases.
    Pt, Qt : jax.Array or None
        Prior ``Pt Qt'`` of unobserved pairs; None where it is ``base`` or 0.
    prior_is_base : bool
        Whether the prior is ``base``, which then is left out of the residual factors exactly.
    strength, bias_strength : jax.Array
        lambda and lambda_b.
    constant : jax.Array
        Added to the objective: what merging repeated trials took out.
    scale : jax.Array
        Factor of all but the penalty: m/r where only r left entities are seen.
    rows : jax.Array or None
        Which left entities are seen, and ``observed`` counts from 0; None for all.
    columns : jax.Array or None
        Which right entities are seen; None for all.
    """

    loss: Observation
    left: Features
    right: Features
    observed: Observed
    imputation: Imputation | None
    base: jax.Array | None
    Pt: jax.Array | None
    Qt: jax.Array | None
    prior_is_base: bool = eqx.field(static=True)
    strength: jax.Array
    bias_strength: jax.Array
    constant: jax.Array
    scale: jax.Array
    rows: jax.Array | None = None
    columns: jax.Array | None = None

    def embeddings(self, theta: TwoTowers) -> tuple[jax.Array, jax.Array]:
        """Embeddings of the left entities seen and of the right ones, (m, k) and (n, k)."""
        return theta.left(self.left, self.rows), theta.right(self.right, self.columns)

    def tables(self, theta: TwoTowers) -> tuple[Tables, Imputed | None]:
        """Inner products of which rows are linear predictors, and residual factors if anything is imputed."""
        P, Q = self.embeddings(theta)
        Qr = Q
        if self.base is not None:
            s, own = _some(theta.left_bias, self.rows), _some(theta.right_bias, self.columns)
            one_left, one_right = jnp.ones_like(P[:, :1]), jnp.ones_like(Q[:, :1])
            P = jnp.concatenate([P, one_left, s[:, None]], axis=1)
            Qr = jnp.concatenate([Q, own[:, None], one_right], axis=1)
            Q = jnp.concatenate([Q, (self.base + own)[:, None], one_right], axis=1)
        if self.imputation is None:
            return Tables(P, Q), None
        if self.prior_is_base:  # the prior is in the bias already: nothing cancels
            base = self.base[:, None]
            return Tables(P, Q, jnp.ones_like(P[:, :1]), base), Imputed(P, Qr)
        if self.Pt is None:
            return Tables(P, Q), Imputed(P, Q)
        Pt, Qt = self.Pt, self.Qt
        if Pt.shape[1] == P.shape[1]:  # the difference form: exact however near P is to Pt
            factors = jnp.concatenate([P - Pt, Pt], axis=1), jnp.concatenate([Q, Q - Qt], axis=1)
        else:
            factors = jnp.concatenate([P, -Pt], axis=1), jnp.concatenate([Q, Qt], axis=1)
        return Tables(P, Q, Pt, Qt), Imputed(*factors)

    def penalty(self, theta: TwoTowers) -> jax.Array:
        """Penalty of towers and biases."""
        towers, biases = (sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(part)) for part in theta.parts)
        return 0.5 * (self.strength * towers + self.bias_strength * biases)

    def _with_penalty(self, rest: TwoTowers, theta: TwoTowers) -> TwoTowers:
        """``scale * rest`` plus the penalty's part, strength times the parameters."""
        towers, biases = (
            jax.tree.map(lambda t, r, number=number: self.scale * r + number * t, ours, theirs)
            for number, ours, theirs in zip((self.strength, self.bias_strength), theta.parts, rest.parts, strict=True)
        )
        return TwoTowers(*towers, *biases)

    def value_and_gradient(self, theta: TwoTowers) -> tuple[jax.Array, TwoTowers]:
        """Objective and its gradient, in the structure of the parameters."""
        (tables, factors), pull = jax.vjp(self.tables, theta)
        value, GP, GQ = self.observed.value_and_gradient(tables, self.loss, self.imputation)
        up_factors = None
        if factors is not None:
            imputed, up_factors = _imputed(factors, self.imputation)
            value = value + imputed
        (gradient,) = pull((_upwards(tables, GP, GQ), up_factors))
        value = self.scale * value + self.penalty(theta) + self.constant
        return value, self._with_penalty(gradient, theta)

    def objective(self, theta: TwoTowers) -> jax.Array:
        """Objective alone; what XLA does not need for it is left out."""
        tables, factors = self.tables(theta)
        value = self.observed.value_and_gradient(tables, self.loss, self.imputation)[0]
        if factors is not None:
            value = value + _imputed(factors, self.imputation)[0]
        return self.scale * value + self.penalty(theta) + self.constant

    def observed_alone(self) -> AllPairs:
        """Return the objective of the observed pairs, without imputation and penalty, in the same structure."""
        nothing, cost = jnp.zeros_like(self.strength), self.imputation
        if cost is not None:
            cost = Imputation(jnp.zeros_like(cost.a), cost.b)
        return replace(self, strength=nothing, bias_strength=nothing, imputation=cost)

    def magnitude(self, theta: TwoTowers) -> jax.Array:
        """Size of the numbers the objective is the sum of, to judge its rounding: both parts of L and the penalty.

        Of L-, the products of the entries of the two Gram matrices are summed without their signs: where embeddings
        are large and nearly orthogonal, they cancel.
        """
        tables, factors = self.tables(theta)
        size = jnp.abs(self.observed.value_and_gradient(tables, self.loss, self.imputation)[0])
        if factors is not None:
            left, right = _grams(factors, self.imputation)
            size = size + 0.5 * jnp.sum(jnp.abs(left * right))
        return self.scale * size + self.penalty(theta) + jnp.abs(self.constant)

    def gauss_newton(self, theta: TwoTowers) -> Callable[[TwoTowers], TwoTowers]:
        """Return the product with the Gauss-Newton matrix at ``theta``, penalty included.

        Its curvature in z is that of the loss where a pair was observed and ``omega a_i b_j`` elsewhere, never
        negative: the matrix is positive semi-definite, and definite with a ridge.
        """
        (tables, factors), push = jax.linearize(self.tables, theta)
        pull = jax.linear_transpose(push, theta)
        cost = self.imputation
        curvatures = self.observed.curvatures(tables, self.loss, cost)

        def product(direction: TwoTowers) -> TwoTowers:
            change, change_factors = push(direction)
            RP, RQ = self.observed.product(curvatures, tables, change.P, change.Q)
            up_factors = None if factors is None else _imputed_product(factors, change_factors, cost)
            (out,) = pull((_upwards(tables, RP, RQ), up_factors))
            return self._with_penalty(out, direction)

        return product

    def hessian(self, theta: TwoTowers) -> Callable[[TwoTowers], TwoTowers]:
        """Return the product with the Hessian at ``theta``, which need not be positive."""
        return jax.linearize(lambda t: self.value_and_gradient(t)[1], theta)[1]

    def draw(self, key, pairs: Piece, n_observed: int, n_imputed: int) -> PairSample:
        """Draw observed pairs evenly, and pairs to impute by their cost, for `sampled`."""
        keys = jax.random.split(key, 3)
        n = pairs.y.shape[0]
        places = jax.random.randint(keys[0], (n_observed,), 0, n)
        left = right = jnp.zeros(0, pairs.left.dtype)
        if self.imputation is not None:
            left, right = (
                jax.random.choice(k, weight.shape[0], (n_imputed,), p=weight / jnp.sum(weight))
                for k, weight in zip(keys[1:], self.imputation, strict=True)
            )
        observed = jax.tree.map(lambda values: values[places], pairs)
        return PairSample(observed, jnp.asarray(n, pairs.y.dtype), left, right)

    def sampled(self, theta: TwoTowers, sample: PairSample) -> jax.Array:
        """Estimate of the objective from drawn pairs, unbiased as its gradient is; only their towers are evaluated."""
        pairs, n_drawn = sample.observed, sample.observed.y.shape[0]
        left, right = (jnp.concatenate(both) for both in ((pairs.left, sample.left), (pairs.right, sample.right)))
        tables, factors = self._see(left, right).tables(theta)
        z, cost, off, imputed = inner(tables.P, tables.Q), None, None, 0.0
        if factors is not None:
            (a, b), off = self.imputation, inner(*factors)
            imputed = jnp.sum(a) * jnp.sum(b) * jnp.mean(0.5 * off[n_drawn:] ** 2)
            cost, off = a[pairs.left] * b[pairs.right], off[:n_drawn]
        values = value_and_slope(self.loss, pairs.y, pairs.count, z[:n_drawn], cost, off)[0]
        return sample.n_pairs * jnp.mean(values) + imputed + self.penalty(theta) + self.constant

    def take(self, rows: jax.Array, observed: Observed) -> AllPairs:
        """Restrict to some left entities: an unbiased estimate of the objective where they are drawn evenly.

        Parameters
        ----------
        rows : jax.Array of int
            Which, (r,).
        observed : Observed
            All their observed pairs, left entities counted from 0 in the order of ``rows``.
        """
        scale = self.scale * (self.left.n_entities / rows.shape[0])
        return replace(self._see(rows), observed=observed, scale=scale)

    def _see(self, rows: jax.Array, columns: jax.Array | None = None) -> AllPairs:
        """See some left entities only, and some right ones."""
        return replace(
            self,
            imputation=self.imputation and Imputation(self.imputation.a[rows], _some(self.imputation.b, columns)),
            base=_some(self.base, columns),
            Pt=_some(self.Pt, rows),
            Qt=_some(self.Qt, columns),
            rows=rows,
            columns=columns,
        )


def _some(values: Any, places: jax.Array | None) -> Any:
    """Select some entities, all if None."""
    return values if values is None or places is None else values[places]


def norm(tree: Any) -> jax.Array:
    """Euclidean norm of all leaves together, without overflow of the squares."""
    leaves = jax.tree.leaves(tree)
    most = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]))
    scale = jnp.where(most > 0, most, 1.0)
    return most * jnp.sqrt(sum(jnp.sum((leaf / scale) ** 2) for leaf in leaves))


@jit
def evaluate(data: AllPairs, theta: TwoTowers):
    """Objective, norm of the gradient and gradient."""
    value, gradient = data.value_and_gradient(theta)
    return value, norm(gradient), gradient


@jit
def magnitude(data: AllPairs, theta: TwoTowers):
    """Size of the terms of the objective."""
    return data.magnitude(theta)


def _upwards(tables: Tables, P, Q) -> Tables:
    """Cotangent of tables whose priors are fixed."""
    return Tables(P, Q, *(None if t is None else jnp.zeros_like(t) for t in (tables.Pt, tables.Qt)))


def _grams(factors: Imputed, cost: Imputation) -> tuple[jax.Array, jax.Array]:
    """Weighted Gram matrices of the residual factors."""
    S, T = factors
    return S.T @ (cost.a[:, None] * S), T.T @ (cost.b[:, None] * T)


def _imputed(factors: Imputed, cost: Imputation) -> tuple[jax.Array, Imputed]:
    """Half the weighted sum of squares of S T', eq. (13), and its gradient."""
    S, T = factors
    left, right = _grams(factors, cost)
    gradient = Imputed((cost.a[:, None] * S) @ right, (cost.b[:, None] * T) @ left)
    return 0.5 * jnp.sum(left * right), gradient


def _imputed_product(factors: Imputed, change: Imputed, cost: Imputation) -> Imputed:
    """Gauss-Newton product of the same: the change of S T' is dS T' + S dT'."""
    (S, T), (dS, dT) = factors, change
    a, b = cost.a[:, None], cost.b[:, None]
    bT, aS = b * T, a * S
    left = a * (dS @ (T.T @ bT) + S @ (dT.T @ bT))
    right = b * (dT @ (S.T @ aS) + T @ (dS.T @ aS))
    return Imputed(left, right)
