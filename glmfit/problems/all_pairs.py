"""Responses of all pairs of two kinds of entities (stimuli and neurons) as inner products of two towers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..observations import RESPONSE_LOSSES, ResponseLoss
from ._observed import Imputation, Observed, ObservedBlocks, ObservedTriples, Tables
from ._pair_samples import ObservedPairs, PairSample, draw_pairs
from ._responses import Merged, SessionBlock, Triples, as_triples, merge_blocks, merge_triples, rounded
from ._side_gaps import SideGaps, side_gaps
from ._towers import Features, TwoTowers, draw_tower, make_features
from .base import TwoSided

LAYOUTS = ("auto", "blocks", "triples", "dense")
_DENSE_SHARE = 0.01  # of all pairs observed, from which a dense table beats triples
_DENSE_ENTRIES = 2.5e8
_START = 0.2  # root mean square of the embeddings a fit begins with


class Imputed(NamedTuple):
    """Residual factors: ``S T'`` is what imputation squares, the linear predictor less the prior."""

    S: jax.Array
    T: jax.Array


class AllPairs(eqx.Module):
    r"""Objective of an all-pairs model on the device, in time linear in m + n and in the number of observed pairs.

    With linear predictors :math:`z_{ij} = p_i^\top q_j + s_i + t_j + \delta_j`

    .. math:: L = \sum_{(i,j) \in O}\sum_{\text{trials}} \ell(y, z_{ij})
              + \frac\omega2\sum_{(i,j) \notin O} a_i b_j (z_{ij} - \tilde y_{ij})^2
              + \frac\lambda2|\theta|^2 + \frac{\lambda_b}2(|s|^2 + |\delta|^2)

    Attributes
    ----------
    loss : ResponseLoss
        Of the observed pairs.
    left, right : Features
        What the towers see.
    observed : Observed
        The observed pairs.
    imputation : Imputation or None
        ``omega a_i`` and ``b_j``; None where omega is 0.
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
    """

    loss: ResponseLoss
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

    def embeddings(self, theta: TwoTowers) -> tuple[jax.Array, jax.Array]:
        """Embeddings of the left entities seen and of the right ones, (m, k) and (n, k)."""
        return theta.left(self.left, self.rows), theta.right(self.right)

    def tables(self, theta: TwoTowers) -> tuple[Tables, Imputed | None]:
        """Inner products of which rows are linear predictors, and residual factors if anything is imputed."""
        P, Q = self.embeddings(theta)
        with_bias = self.base is not None
        Qr = Q
        if with_bias:
            s = theta.left_bias if self.rows is None else theta.left_bias[self.rows]
            one_left, one_right = jnp.ones_like(P[:, :1]), jnp.ones_like(Q[:, :1])
            P = jnp.concatenate([P, one_left, s[:, None]], axis=1)
            Qr = jnp.concatenate([Q, theta.right_bias[:, None], one_right], axis=1)
            Q = jnp.concatenate([Q, (self.base + theta.right_bias)[:, None], one_right], axis=1)
        if self.imputation is None:
            return Tables(P, Q), None
        if self.prior_is_base:  # the prior is in the bias already: nothing cancels
            base = self.base[:, None]
            return Tables(P, Q, jnp.ones_like(P[:, :1]), base), Imputed(P, Qr)
        if self.Pt is None:
            return Tables(P, Q), Imputed(P, Q)
        Pt, Qt = (self.Pt if self.rows is None else self.Pt[self.rows]), self.Qt
        if Pt.shape[1] == P.shape[1]:  # the difference form: exact however near P is to Pt
            factors = jnp.concatenate([P - Pt, Pt], axis=1), jnp.concatenate([Q, Q - Qt], axis=1)
        else:
            factors = jnp.concatenate([P, -Pt], axis=1), jnp.concatenate([Q, Qt], axis=1)
        return Tables(P, Q, Pt, Qt), Imputed(*factors)

    def cost(self) -> Imputation | None:
        """Cost factors of the left entities seen."""
        if self.imputation is None or self.rows is None:
            return self.imputation
        return Imputation(self.imputation.a[self.rows], self.imputation.b)

    def penalty(self, theta: TwoTowers) -> jax.Array:
        """Penalty of towers and biases."""
        return _half_square(theta, self.strength, self.bias_strength)

    def value_and_gradient(self, theta: TwoTowers) -> tuple[jax.Array, TwoTowers]:
        """Objective and its gradient, in the structure of the parameters."""
        (tables, factors), pull = jax.vjp(self.tables, theta)
        value, GP, GQ = self.observed.value_and_gradient(tables, self.loss, self.cost())
        up = Tables(GP, GQ, *(None if t is None else jnp.zeros_like(t) for t in (tables.Pt, tables.Qt)))
        up_factors = None
        if factors is not None:
            imputed, up_factors = _imputed(factors, self.cost())
            value = value + imputed
        (gradient,) = pull((up, up_factors))
        value = self.scale * value + self.penalty(theta) + self.constant
        return value, _shrunk(theta, self.strength, self.bias_strength, gradient, self.scale)

    def objective(self, theta: TwoTowers) -> jax.Array:
        """Objective alone; what XLA does not need for it is left out."""
        tables, factors = self.tables(theta)
        value = self.observed.value_and_gradient(tables, self.loss, self.cost())[0]
        if factors is not None:
            value = value + _imputed(factors, self.cost())[0]
        return self.scale * value + self.penalty(theta) + self.constant

    def magnitude(self, theta: TwoTowers) -> jax.Array:
        """Sum of the sizes of L+ and L- and of the penalty, to judge the rounding of the objective.

        Of L-, the products of the entries of the two Gram matrices are summed without their signs: where embeddings
        are large and nearly orthogonal, they cancel.
        """
        tables, factors = self.tables(theta)
        size = jnp.abs(self.observed.value_and_gradient(tables, self.loss, self.cost())[0])
        if factors is not None:
            left, right = _grams(factors, self.cost())
            size = size + 0.5 * jnp.sum(jnp.abs(left * right))
        return self.scale * size + self.penalty(theta) + jnp.abs(self.constant)

    def gauss_newton(self, theta: TwoTowers) -> Callable[[TwoTowers], TwoTowers]:
        """Return the product with the Gauss-Newton matrix at ``theta``, penalty included.

        Its curvature in z is that of the loss where a pair was observed and ``omega a_i b_j`` elsewhere, never
        negative: the matrix is positive semi-definite, and definite with a ridge.
        """
        (tables, factors), push = jax.linearize(self.tables, theta)
        pull = jax.linear_transpose(push, theta)
        cost = self.cost()
        curvatures = self.observed.curvatures(tables, self.loss, cost)

        def product(direction: TwoTowers) -> TwoTowers:
            change, change_factors = push(direction)
            RP, RQ = self.observed.product(curvatures, tables, change.P, change.Q)
            up = Tables(RP, RQ, *(None if t is None else jnp.zeros_like(t) for t in (tables.Pt, tables.Qt)))
            up_factors = None
            if factors is not None:
                up_factors = _imputed_product(factors, change_factors, cost)
            (out,) = pull((up, up_factors))
            return _shrunk(direction, self.strength, self.bias_strength, out, self.scale)

        return product

    def pair_predictors(self, theta: TwoTowers, left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Linear predictors of some pairs, and what imputation squares: how far they are from the prior."""
        z = jnp.sum(theta.left(self.left, left) * theta.right(self.right, right), axis=1)
        if self.base is None:
            off = z
        else:
            off = z + theta.left_bias[left] + theta.right_bias[right]
            z = off + self.base[right]
        if self.Pt is not None:
            off = z - jnp.sum(self.Pt[left] * self.Qt[right], axis=1)
        elif not self.prior_is_base:
            off = z
        return z, off

    def draw(self, key, pairs: ObservedPairs, n_observed: int, n_imputed: int) -> PairSample:
        """Draw pairs for `sampled`."""
        return draw_pairs(key, pairs, self.imputation, n_observed, n_imputed)

    def sampled(self, theta: TwoTowers, sample: PairSample) -> jax.Array:
        """Estimate of the objective from drawn pairs, unbiased as its gradient is; only their towers are evaluated."""
        pairs, n_drawn = sample.observed, sample.observed.y.shape[0]
        left, right = (jnp.concatenate(both) for both in ((pairs.left, sample.left), (pairs.right, sample.right)))
        z, off = self.pair_predictors(theta, left, right)
        values = self.loss.loss_and_derivative(pairs.y, z[:n_drawn])[0]
        values = values if pairs.count is None else pairs.count * values
        imputed = 0.0
        if self.imputation is not None:
            a, b = self.imputation
            values = values - 0.5 * a[pairs.left] * b[pairs.right] * off[:n_drawn] ** 2
            imputed = jnp.sum(a) * jnp.sum(b) * jnp.mean(0.5 * off[n_drawn:] ** 2)
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
        m = self.left.n_entities
        return eqx.tree_at(
            lambda data: (data.rows, data.observed, data.scale),
            self,
            (rows, observed, self.scale * (m / rows.shape[0])),
            is_leaf=lambda leaf: leaf is None,
        )


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


def _biases(theta: TwoTowers) -> list[jax.Array]:
    return [b for b in (theta.left_bias, theta.right_bias) if b is not None]


def _half_square(theta: TwoTowers, strength, bias_strength) -> jax.Array:
    towers = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves((theta.left, theta.right)))
    return 0.5 * (strength * towers + bias_strength * sum(jnp.sum(b**2) for b in _biases(theta)))


def _shrunk(theta: TwoTowers, strength, bias_strength, rest: TwoTowers, scale) -> TwoTowers:
    """``scale * rest`` plus the penalty's part, strength times the parameters."""

    def plus(number):
        return lambda t, r: scale * r + number * t

    towers = jax.tree.map(plus(strength), (theta.left, theta.right), (rest.left, rest.right))
    biases = jax.tree.map(
        plus(bias_strength), (theta.left_bias, theta.right_bias), (rest.left_bias, rest.right_bias)
    )  # fmt: skip
    return TwoTowers(*towers, *biases)


# ------------------------------------------------------------------------------------------ problem


class AllPairsProblem(TwoSided):
    r"""Two-tower model of responses of n right entities (neurons) to m left ones (stimuli), of which some were seen.

    See `AllPairs` for the objective; it is a sum, not a mean, so that strengths need no change as data grow.

    Parameters
    ----------
    left, right : array, SciPy sparse matrix or int
        Features (entity, feature) of both sides; an integer is a number of entities each of which is its own feature.
    responses : list of SessionBlock, Triples or numpy.ndarray
        What was observed; an array is a table (m, n) with NaN where nothing was. Pairs that stand twice are repeated
        trials: every trial has its loss, the pair is imputed nowhere.
    loss : {"poisson", "logistic", "squared"}
        Of an observed response: counts with rate softplus(z), 0 or 1, measured values.
    imputation_weight : float
        omega >= 0: weight of unobserved pairs. 0 means that they are missing, no more.
    left_weight, right_weight : numpy.ndarray, optional
        a_i >= 0, (m,), and b_j >= 0, (n,): factors of omega; 1 when left out.
    prior : {"mean", "zero"} or tuple of numpy.ndarray
        What unobserved pairs are drawn to, in link space: every right entity's mean response, 0, or the products of
        rows of two arrays, (m, any) and (n, any).
    strength : float
        Ridge lambda >= 0 of the towers' parameters.
    biases : bool
        Whether entities have a number of their own added to the linear predictor, the right ones beside the mean.
    bias_strength : float
        Ridge of the biases.
    layout : {"auto", "blocks", "triples", "dense"}
        How observed pairs are kept. "auto" keeps blocks as they are, and other pairs as a dense table where at least
        one in a hundred is observed.
    dtype : dtype
        Of all passes.

    Attributes
    ----------
    data : AllPairs
        Objective on the device: what solvers compile.
    n_left, n_right, n_pairs : int
        Entities, and observed pairs.

    Raises
    ------
    ValueError
        For sizes that do not fit, a layout that is unknown, or no observed pair.

    Notes
    -----
    Cost of objective and gradient: O(pairs k + (m + n) k^2) and the towers; the table of all pairs is never formed.

    References
    ----------
    Yuan, Li, Quan, Lin, Efficient optimization methods for extreme similarity learning with nonlinear embeddings,
    KDD 2021, sec. 3; docs/theory/all_pairs.md.
    """

    def __init__(
        self,
        left,
        right,
        responses,
        loss: str = "poisson",
        imputation_weight: float = 0.0,
        left_weight=None,
        right_weight=None,
        prior="mean",
        strength: float = 1.0,
        biases: bool = True,
        bias_strength: float = 0.1,
        layout: str = "auto",
        dtype=np.float32,
    ):
        if layout not in LAYOUTS:
            raise ValueError(f"layout is {layout!r}; it must be one of {', '.join(LAYOUTS)}.")
        self.dtype, self.loss = dtype, RESPONSE_LOSSES[loss]
        self.given = left, right
        self._left, self.n_left, self.n_left_features = make_features(left, dtype)
        self._right, self.n_right, self.n_right_features = make_features(right, dtype)
        self._merged, blocks = _merge(responses, self.n_left, self.n_right, layout)
        self._triples: tuple[Triples, Any] | None = None
        if isinstance(self._merged.parts, Triples):
            self.n_pairs = len(self._merged.parts.y)
        else:
            self.n_pairs = sum(int(np.sum(~np.isnan(block.y))) for block in self._merged.parts)
        if not self.n_pairs:
            raise ValueError("no pair has a response; a fit needs at least one.")
        self.mean = self._means()
        observed = ObservedBlocks.of(self._merged, dtype) if blocks else ObservedTriples.of(*self._merged[:2], dtype)
        self.strength, self.bias_strength = float(strength), float(bias_strength)
        trials = np.where(self.n_trials > 0, self.n_trials, self.n_trials.sum())
        self.base = base = self.loss.link(self.mean, trials)
        imputation = Pt = Qt = None
        if imputation_weight > 0:
            a = np.ones(self.n_left) if left_weight is None else np.asarray(left_weight)
            b = np.ones(self.n_right) if right_weight is None else np.asarray(right_weight)
            imputation = Imputation(jnp.asarray(imputation_weight * a, dtype), jnp.asarray(b, dtype))
            if not isinstance(prior, str):
                Pt, Qt = (jnp.asarray(np.asarray(side), dtype) for side in prior)
            elif prior == "mean" and not biases:
                Pt, Qt = jnp.ones((self.n_left, 1), dtype), jnp.asarray(base[:, None], dtype)
        self.data = AllPairs(
            loss=self.loss,
            left=self._left,
            right=self._right,
            observed=observed,
            imputation=imputation,
            base=jnp.asarray(base, dtype) if biases else None,
            Pt=Pt,
            Qt=Qt,
            prior_is_base=bool(biases and isinstance(prior, str) and prior == "mean"),
            strength=jnp.asarray(strength, dtype),
            bias_strength=jnp.asarray(bias_strength, dtype),
            constant=jnp.asarray(self.loss.spread_constant(self._merged.spread), dtype),
            scale=jnp.asarray(1.0, dtype),
        )

    def _means(self) -> np.ndarray:
        """Mean response of every right entity, that of all where it has none; counts trials and pairs on the way."""
        triples = isinstance(self._merged.parts, Triples)
        parts = [self._merged.parts] if triples else self._merged.parts
        counts = self._merged.counts
        counts = [None] * len(parts) if counts is None else [counts] if triples else counts
        total, self.n_trials = np.zeros(self.n_right), np.zeros(self.n_right)
        self.pairs_left, self.pairs_right = np.zeros(self.n_left, int), np.zeros(self.n_right, int)
        for part, count in zip(parts, counts, strict=True):
            if triples:
                weight = np.ones(len(part.y)) if count is None else count
                total += np.bincount(part.right, weight * part.y, self.n_right)
                self.n_trials += np.bincount(part.right, weight, self.n_right)
                self.pairs_left += np.bincount(part.left, minlength=self.n_left)
                self.pairs_right += np.bincount(part.right, minlength=self.n_right)
                continue
            seen = ~np.isnan(part.y)
            weight = seen if count is None else count
            total[part.right] += np.sum(np.where(seen, weight * part.y, 0.0), axis=0)
            self.n_trials[part.right] += np.sum(weight, axis=0)
            self.pairs_left[part.left] += np.sum(seen, axis=1)
            self.pairs_right[part.right] += np.sum(seen, axis=0)
        return np.where(self.n_trials > 0, total / np.maximum(self.n_trials, 1), total.sum() / self.n_trials.sum())

    def null_params(self, towers: TwoTowers) -> TwoTowers:
        """Return parameters of the same structure that are all 0: with biases, every right entity at its mean."""
        return jax.tree.map(jnp.zeros_like, towers)

    def draw_params(
        self, key, k: int, hidden_left: tuple[int, ...] = (), hidden_right: tuple[int, ...] = (), scale: float = _START
    ) -> TwoTowers:
        """Draw where a fit begins: small embeddings (all 0 would be a stationary point), no biases.

        Parameters
        ----------
        key : jax key
            Of the draws.
        k : int
            Columns of the embeddings.
        hidden_left, hidden_right : tuple of int
            Widths of the hidden layers of the towers; none for linear ones.
        scale : float
            Root mean square of the embeddings' entries.

        Returns
        -------
        TwoTowers
        """
        keys = jax.random.split(key, 2)
        left = draw_tower(keys[0], self._left, self.n_left_features, k, hidden_left, scale, self.dtype)
        right = draw_tower(keys[1], self._right, self.n_right_features, k, hidden_right, scale, self.dtype)
        if self.data.base is None:
            return TwoTowers(left, right, None, None)
        return TwoTowers(left, right, jnp.zeros(self.n_left, self.dtype), jnp.zeros(self.n_right, self.dtype))

    def certify_sides(self, theta: TwoTowers) -> SideGaps:
        """Bound how much the objective could fall by changing one side alone, in float64 on the host.

        Parameters
        ----------
        theta : TwoTowers
            Parameters.

        Returns
        -------
        SideGaps
            Proved for linear towers with a ridge (and ridged biases); one pass over the observed pairs in NumPy.

        Notes
        -----
        The objective is not convex in both sides together: nothing bounds the distance from the best model of all.
        """
        return side_gaps(self, theta)

    @property
    def triples(self) -> tuple[Triples, np.ndarray | None]:
        """Observed pairs as triples on the host, sorted by left entity, with their numbers of trials."""
        if self._triples is None:
            triples, count = as_triples(self._merged)
            order = np.argsort(triples.left, kind="stable")
            self._triples = Triples(*(a[order] for a in triples)), None if count is None else count[order]
        return self._triples

    @property
    def observed_pairs(self) -> ObservedPairs:
        """Observed pairs on the device: what `AllPairs.draw` draws from."""
        triples, count = self.triples
        left, right = (jnp.asarray(ids, np.int32) for ids in triples[:2])
        return ObservedPairs(
            left, right, jnp.asarray(triples.y, self.dtype), None if count is None else jnp.asarray(count, self.dtype)
        )

    def left_batches(self, size: int, seed: int) -> tuple[jax.Array, ObservedTriples]:
        """Cut the left entities, in an order drawn by ``seed``, into batches with all their observed pairs.

        Parameters
        ----------
        size : int
            Left entities in a batch, at most m; those that are left over after whole batches are not in any.
        seed : int
            Of the order.

        Returns
        -------
        rows : jax.Array of int
            (batch, size).
        observed : ObservedTriples
            With a leading axis of batches: what `AllPairs.take` takes, filled up to one length, the same for nearly
            all seeds.
        """
        triples, count = self.triples
        n_batches = self.n_left // size
        rows = np.random.default_rng(seed).permutation(self.n_left)[: n_batches * size].reshape(n_batches, size)
        start = np.searchsorted(triples.left, np.arange(self.n_left + 1))
        length = np.diff(start)
        # Four standard errors above the mean are enough for nearly all draws: other lengths are compiled anew.
        usual = np.ceil(size * length.mean() + 4 * np.sqrt(size) * length.std())
        usual = min(int(usual), int(np.sort(length)[-size:].sum()))
        most = int(length[rows].sum(axis=1).max(initial=0))
        most = usual if most <= usual else rounded(most)
        batches = []
        for some in rows:
            places = np.concatenate([np.arange(start[i], start[i + 1]) for i in some])
            local = np.repeat(np.arange(size, dtype=np.int32), length[some])
            part = Triples(local, triples.right[places], triples.y[places])
            batches.append(ObservedTriples.of(part, None if count is None else count[places], self.dtype, most))
        return jnp.asarray(rows, np.int32), jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)


def _merge(responses, m: int, n: int, layout: str) -> tuple[Merged, bool]:
    """Merge repeated trials; whether blocks are to be used."""
    if isinstance(responses, np.ndarray):
        share = np.mean(~np.isnan(responses))
        if layout != "triples" and (layout != "auto" or share >= _DENSE_SHARE):
            return merge_blocks([SessionBlock(np.arange(m), np.arange(n), responses)]), True
        row, column = np.nonzero(~np.isnan(responses))
        responses = Triples(row, column, responses[row, column])
    if isinstance(responses, Triples):
        merged = merge_triples(responses, n)
        dense = layout == "dense" or (
            layout == "auto" and len(merged.parts.y) >= _DENSE_SHARE * m * n and m * n <= _DENSE_ENTRIES
        )
        if layout == "blocks":
            raise ValueError('layout is "blocks", but the responses are triples; use "triples", "dense" or "auto".')
        return (_as_table(merged, m, n), True) if dense else (merged, False)
    merged = merge_blocks(list(responses))
    if layout in ("auto", "blocks"):
        return merged, True
    triples, count = as_triples(merged)
    if layout == "dense":
        return _as_table(Merged(triples, count, merged.spread), m, n), True
    order = merge_triples(triples, n)
    if count is not None:  # merged already: the same order for the numbers of trials
        count = merge_triples(Triples(triples.left, triples.right, count), n).parts.y
    return Merged(order.parts, count, merged.spread), False


def _as_table(merged: Merged, m: int, n: int) -> Merged:
    """Lay merged triples out as one block of all pairs."""
    triples, count = merged.parts, merged.counts
    y = np.full((m, n), np.nan)
    y[triples.left, triples.right] = triples.y
    counts = None
    if count is not None:
        table = np.zeros((m, n), np.int32)
        table[triples.left, triples.right] = count
        counts = [table]
    return Merged([SessionBlock(np.arange(m), np.arange(n), y)], counts, merged.spread)
