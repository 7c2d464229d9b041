"""Responses of all pairs of two kinds of entities (stimuli and neurons) as inner products of two towers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from .._checks import check_choice
from ..observations import RESPONSE_LOSSES
from .base import TwoSided
from .objective import AllPairs
from .observed import Imputation, ObservedBlocks, ObservedTriples
from .responses import Merged, SessionBlock, Triples, as_triples, merge_blocks, merge_triples, rounded
from .samples import ObservedPairs
from .side_gaps import SideGaps, side_gaps
from .towers import TwoTowers, draw_tower, make_features

LAYOUTS = ("auto", "blocks", "triples", "dense")
_DENSE_SHARE = 0.01  # of all pairs observed, from which a dense table beats triples
_DENSE_ENTRIES = 2.5e8
_START = 0.2  # root mean square of the embeddings a fit begins with


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
        a_i >= 0, (m,), and b_j >= 0, (n,): factors of omega; default 1.
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
        left: Any,
        right: Any,
        responses: list[SessionBlock] | Triples | np.ndarray,
        loss: str = "poisson",
        imputation_weight: float = 0.0,
        left_weight: np.ndarray | None = None,
        right_weight: np.ndarray | None = None,
        prior: str | tuple[np.ndarray, np.ndarray] = "mean",
        strength: float = 1.0,
        biases: bool = True,
        bias_strength: float = 0.1,
        layout: str = "auto",
        dtype: DTypeLike = np.float32,
    ):
        check_choice("layout", layout, LAYOUTS)
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
        prior_is_mean = isinstance(prior, str) and prior == "mean"
        trials = np.where(self.n_trials > 0, self.n_trials, self.n_trials.sum())
        self.base = base = self.loss.link(self.mean, trials)
        imputation = Pt = Qt = None
        self.cost = self.prior = None  # in float64: what certificates are of
        if imputation_weight > 0:
            a = np.ones(self.n_left) if left_weight is None else np.asarray(left_weight)
            b = np.ones(self.n_right) if right_weight is None else np.asarray(right_weight)
            self.cost = np.float64(imputation_weight) * a, b
            imputation = Imputation(*(jnp.asarray(factor, dtype) for factor in self.cost))
            if not isinstance(prior, str):
                self.prior = tuple(np.asarray(side, np.float64) for side in prior)
            elif prior == "mean":
                self.prior = np.ones((self.n_left, 1)), base[:, None]
            if self.prior is not None and not (biases and prior_is_mean):
                Pt, Qt = (jnp.asarray(side, dtype) for side in self.prior)
        self.data = AllPairs(
            loss=self.loss,
            left=self._left,
            right=self._right,
            observed=observed,
            imputation=imputation,
            base=jnp.asarray(base, dtype) if biases else None,
            Pt=Pt,
            Qt=Qt,
            prior_is_base=bool(biases and prior_is_mean),
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
