"""Objective of an all-pairs model on the device, with gradient and Gauss-Newton product, in time linear in m + n."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from ..compilation import jit
from ..numerics import namespace
from ..observations import Observation
from .observed import Imputation, inner, observed_curvatures, observed_product, sum_observed, value_and_slope
from .responses import Piece
from .towers import Features, TwoTowers


class Tables(NamedTuple):
    """Rows of both sides whose inner products are all that the objective uses."""

    P: Any  # the linear predictor is P Q'
    Q: Any
    S: Any = None  # residual factors: S T' is what imputation squares, the linear predictor less the prior
    T: Any = None


class PairSample(NamedTuple):
    """A draw of pairs."""

    observed: Piece  # drawn uniformly with replacement
    n_pairs: jax.Array  # number of pairs drawn from
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
        Loss of the observed pairs.
    left, right : Features
        Inputs of the towers.
    observed : tuple of Piece
        The observed pairs, each once: blocks of equal shape, or scattered pairs, one step of a scan after the other.
    imputation : Imputation or None
        ``omega a_i``, of the left entities included, and ``b_j``; None if omega is 0.
    base : jax.Array or None
        t, (n,): the linear predictor of every right entity's mean response; None in a model without biases.
    Pt, Qt : jax.Array or None
        Prior ``Pt Qt'`` of unobserved pairs; None if it is ``base`` or 0.
    prior_is_base : bool
        Whether the prior is ``base``, which is then omitted from the residual factors exactly.
    strength, bias_strength : jax.Array
        lambda and lambda_b.
    constant : jax.Array
        Added to the objective: the part that merging repeated trials removed.
    scale : jax.Array
        Factor of all but the penalty: m/r if only r left entities are included.
    rows : jax.Array or None
        Left entities included, which ``observed`` numbers from 0; None for all.
    """

    loss: Observation
    left: Features
    right: Features
    observed: tuple[Piece, ...]
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

    def embeddings(self, theta: TwoTowers) -> tuple[jax.Array, jax.Array]:
        """Embeddings of the left entities included and of the right ones, (m, k) and (n, k)."""
        return theta.left(self.left, self.rows), theta.right(self.right)

    def tables(self, theta: TwoTowers) -> Tables:
        """Combine embeddings, biases and prior into tables."""
        s = theta.left_bias if self.rows is None or self.base is None else theta.left_bias[self.rows]
        prior = None if self.Pt is None else (self.Pt, self.Qt)
        known = self.base, self.imputation is not None, prior, self.prior_is_base
        return make_tables(*self.embeddings(theta), (s, theta.right_bias), *known)

    def imputed(self, part: Piece, z: jax.Array) -> tuple[jax.Array | None, jax.Array | None]:
        """Costs of a piece's pairs in the imputation of all pairs, and differences of their z from the prior."""
        if self.imputation is None:
            return None, None
        a, b = self.imputation.a[part.left], self.imputation.b[part.right]
        cost = a[:, :, None] * b[:, None, :] if a.ndim == 2 else a * b
        Pt, Qt = self.Pt, self.Qt
        if self.prior_is_base:
            Pt, Qt = jnp.ones_like(self.imputation.a)[:, None], self.base[:, None]
        return cost, z if Pt is None else z - inner(Pt[part.left], Qt[part.right])

    def sums(self, tables: Tables) -> tuple[jax.Array, Tables]:
        """Compute both parts of L (Proposition 1) and their gradient in the tables."""
        P, Q, S, T = tables
        value, slopes = sum_observed(self.observed, P, Q, self.loss, self.imputed)
        if self.imputation is None:
            return value, Tables(*slopes)
        aS, bT = _weighted(tables, self.imputation)
        left, right = S.T @ aS, T.T @ bT
        return value + 0.5 * jnp.sum(left * right), Tables(*slopes, aS @ right, bT @ left)

    def penalty(self, theta: TwoTowers) -> jax.Array:
        """Penalty of towers and biases."""
        towers, biases = (sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(part)) for part in theta.parts)
        return 0.5 * (self.strength * towers + self.bias_strength * biases)

    def objective(self, theta: TwoTowers) -> jax.Array:
        """Objective alone; its derivative by JAX takes the gradient in the tables from the same pass."""
        return self.scale * _sum(self.tables(theta), self) + self.penalty(theta) + self.constant

    def value_and_gradient(self, theta: TwoTowers) -> tuple[jax.Array, TwoTowers]:
        """Objective and its gradient, in the structure of the parameters."""
        return jax.value_and_grad(self.objective)(theta)

    def observed_alone(self) -> Self:
        """Return the objective of the observed pairs, without imputation and penalty, in the same structure."""
        nothing, cost = jnp.zeros_like(self.strength), self.imputation
        cost = cost and cost._replace(a=jnp.zeros_like(cost.a))
        return replace(self, strength=nothing, bias_strength=nothing, imputation=cost)

    def magnitude(self, theta: TwoTowers) -> jax.Array:
        """Size of the terms of the objective, to judge its rounding."""
        P, Q, S, T = tables = self.tables(theta)
        size = jnp.abs(sum_observed(self.observed, P, Q, self.loss, self.imputed)[0])
        if self.imputation is not None:
            aS, bT = _weighted(tables, self.imputation)
            size = size + 0.5 * jnp.sum(jnp.abs((S.T @ aS) * (T.T @ bT)))  # which may cancel
        return self.scale * size + self.penalty(theta) + jnp.abs(self.constant)

    def curvatures(self, tables: Tables) -> tuple[jax.Array, ...]:
        """Second derivatives of the observed part of L in the linear predictors, of all pieces."""
        return observed_curvatures(self.observed, tables.P, tables.Q, self.loss, self.imputed)

    def gauss_newton(self, theta: TwoTowers) -> Callable[[TwoTowers], TwoTowers]:
        """Return the product with the Gauss-Newton matrix at ``theta``, penalty included: positive semi-definite."""
        tables, push = jax.linearize(self.tables, theta)
        pull = jax.linear_transpose(push, theta)
        (P, Q, S, T), at_pairs = tables, self.curvatures(tables)

        def product(direction: TwoTowers) -> TwoTowers:
            dP, dQ, dS, dT = push(direction)
            up = observed_product(self.observed, at_pairs, P, Q, dP, dQ)
            if self.imputation is not None:  # the change of S T' is dS T' + S dT'
                a, b = (factor[:, None] for factor in self.imputation)
                aS, bT = a * S, b * T
                left = a * (dS @ (T.T @ bT) + S @ (dT.T @ bT))
                up = *up, left, b * (dT @ (S.T @ aS) + T @ (dS.T @ aS))
            (out,) = pull(Tables(*up))
            ridge = jax.grad(self.penalty)(direction)
            return jax.tree.map(lambda one, other: self.scale * one + other, out, ridge)

        return product

    def hessian(self, theta: TwoTowers) -> Callable[[TwoTowers], TwoTowers]:
        """Return the product with the Hessian at ``theta``, which may be indefinite."""
        return jax.linearize(jax.grad(self.objective), theta)[1]

    def draw(self, key, pairs: Piece, n_observed: int, n_imputed: int) -> PairSample:
        """Draw observed pairs uniformly, and pairs to impute by their cost, for `sampled`."""
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
        """Estimate the objective from drawn pairs, unbiased like its gradient; only their towers are evaluated."""
        pairs, n_drawn = sample.observed, sample.observed.y.shape[0]
        left, right = (jnp.concatenate(both) for both in ((pairs.left, sample.left), (pairs.right, sample.right)))
        z, imputed = inner(theta.left(self.left, left), theta.right(self.right, right)), 0.0
        if self.base is not None:
            z = z + theta.left_bias[left] + theta.right_bias[right] + self.base[right]
        cost, off = self.imputed(Piece(left, right, None), z)
        if self.imputation is not None:
            a, b = self.imputation
            imputed = jnp.sum(a) * jnp.sum(b) * jnp.mean(0.5 * off[n_drawn:] ** 2)
            cost, off = cost[:n_drawn], off[:n_drawn]
        values = value_and_slope(self.loss, pairs.y, pairs.count, z[:n_drawn], cost, off)[0]
        return sample.n_pairs * jnp.mean(values) + imputed + self.penalty(theta) + self.constant

    def take(self, rows: jax.Array, observed: tuple[Piece, ...]) -> Self:
        """Restrict to left entities ``rows``, (r,), and their pairs: unbiased if they are drawn uniformly."""
        return replace(
            self, rows=rows, observed=observed, scale=self.scale * (self.left.n / rows.shape[0]),
            imputation=self.imputation and self.imputation._replace(a=self.imputation.a[rows]),
            Pt=None if self.Pt is None else self.Pt[rows],
        )  # fmt: skip


@jax.custom_vjp
def _sum(tables: Tables, data: AllPairs) -> jax.Array:
    """Both parts of L. A scan differentiated by JAX would store all intermediates."""
    return data.sums(tables)[0]


_sum.defvjp(
    lambda tables, data: data.sums(tables),
    lambda slopes, up: (jax.tree.map(lambda slope: up * slope, slopes), None),
)


def make_tables(P, Q, biases, base, imputes: bool, prior, prior_is_base: bool) -> Tables:
    """Make tables of embeddings and, with a ``base``, biases, in the arrays' namespace; ``prior`` None is 0."""
    xp, own = namespace(P), Q
    if base is not None:
        s, t = biases
        one_left, one_right = xp.ones_like(P[:, :1]), xp.ones_like(Q[:, :1])
        P = xp.concatenate([P, one_left, s[:, None]], axis=1)
        own = xp.concatenate([Q, t[:, None], one_right], axis=1)
        Q = xp.concatenate([Q, (base + t)[:, None], one_right], axis=1)
    if not imputes:
        return Tables(P, Q)
    if prior_is_base:  # the prior is in the bias already: nothing cancels
        return Tables(P, Q, P, own)
    if prior is None:
        return Tables(P, Q, P, Q)
    Pt, Qt = prior
    if Pt.shape[1] == P.shape[1]:  # the difference form: exact however near P is to Pt
        return Tables(P, Q, xp.concatenate([P - Pt, Pt], axis=1), xp.concatenate([Q, Q - Qt], axis=1))
    return Tables(P, Q, xp.concatenate([P, -Pt], axis=1), xp.concatenate([Q, Qt], axis=1))


def _weighted(tables: Tables, cost: Imputation) -> tuple[jax.Array, jax.Array]:
    """Residual factors times the cost factors."""
    return cost.a[:, None] * tables.S, cost.b[:, None] * tables.T


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


magnitude = jit(AllPairs.magnitude)
