"""Responses of all pairs of two kinds of entities (stimuli and neurons) as inner products of two towers."""

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from ..checks import check_choice
from ..observations import RESPONSE_LOSSES, Observation
from .objective import AllPairs
from .observed import Imputation
from .responses import LAYOUTS, Piece, SessionBlock, Triples, cut, cut_scattered, merge, rounded
from .side_gaps import SideGaps, side_gaps
from .towers import TwoTowers, draw_tower, make_features

_AT_ONCE = 2**18  # pairs
_START = 0.2  # root mean square of the initial embeddings


class AllPairsProblem:
    r"""Two-tower model of responses of n right entities (neurons) to m left ones (stimuli), some of them observed.

    See `AllPairs` for the objective; it is a sum, not a mean, so that strengths need no change as data grow.

    Parameters
    ----------
    left, right : array, SciPy sparse matrix or int
        Features (entity, feature) of both sides; an integer is a number of entities, each its own feature.
    responses : list of SessionBlock, Triples or numpy.ndarray
        Observed responses; an array is a table (m, n) with NaN where nothing was observed. Repeated pairs are repeated
        trials: every trial has its loss, and the pair is never imputed.
    loss : {"poisson", "poisson-exp", "logistic", "squared"} or Observation
        Loss of an observed response: counts with rate softplus(z) or exp(z), 0 or 1, measured values; or any
        observation model with an elementwise loss.
    imputation_weight : float
        omega >= 0: weight of unobserved pairs. With 0 they are just missing.
    left_weight, right_weight : numpy.ndarray, optional
        a_i >= 0, (m,), and b_j >= 0, (n,): factors of omega; default 1.
    prior : {"mean", "zero"} or tuple of numpy.ndarray
        Target of unobserved pairs, in link space: every right entity's mean response, 0, or the products of rows of
        two arrays, (m, any) and (n, any).
    strength : float
        Ridge lambda >= 0 of the towers' parameters.
    biases : bool
        Whether every entity has a bias in the linear predictor, for right entities in addition to the mean.
    bias_strength : float
        Ridge of the biases.
    layout : {"auto", "blocks", "triples", "dense"}
        How observed pairs are stored. "auto" keeps blocks as given, and other pairs as a dense table if at least one
        in a hundred is observed.
    dtype : dtype
        Precision of all passes.

    Attributes
    ----------
    data : AllPairs
        Objective on the device: what solvers compile.
    n_left, n_right, n_pairs : int
        Entities, and observed pairs.

    Raises
    ------
    ValueError
        If sizes do not match, the layout is unknown, or no pair is observed.

    Notes
    -----
    Cost of objective and gradient: O(pairs k + (m + n) k^2) and the towers; the table of all pairs is never formed.
    Theory and source: docs/theory/all_pairs.md.
    """

    def __init__(
        self,
        left: Any,
        right: Any,
        responses: list[SessionBlock] | Triples | np.ndarray,
        loss: str | Observation = "poisson",
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
        self.dtype, self.loss = dtype, loss if isinstance(loss, Observation) else RESPONSE_LOSSES[loss]
        self.given = left, right
        features = make_features(left, dtype), make_features(right, dtype)
        self.n_left, self.n_right = (side.n for side in features)
        self.merged = merge(responses, self.n_left, self.n_right, layout)
        self.mean = self._means()
        self.strength, self.bias_strength = float(strength), float(bias_strength)
        prior_is_base = bool(biases) and isinstance(prior, str) and prior == "mean"
        trials = np.where(self.n_trials > 0, self.n_trials, self.n_trials.sum())
        self.base = base = self.loss.intercept(self.mean, trials)
        imputation = None
        self.cost = self.prior = None  # in float64, for certificates
        if imputation_weight > 0:
            a = np.ones(self.n_left) if left_weight is None else np.asarray(left_weight)
            b = np.ones(self.n_right) if right_weight is None else np.asarray(right_weight)
            self.cost = np.float64(imputation_weight) * a, b
            imputation = Imputation(*(jnp.asarray(factor, dtype) for factor in self.cost))
            if not isinstance(prior, str):
                self.prior = tuple(np.asarray(side, np.float64) for side in prior)
            elif prior == "mean":
                self.prior = np.ones((self.n_left, 1)), base[:, None]
        Pt, Qt = (None, None) if self.prior is None or prior_is_base else self.prior
        numbers = strength, bias_strength, self.loss.spread_constant(self.merged.spread), 1.0
        Pt, Qt, base, *numbers = (
            a if a is None else jnp.asarray(a, dtype) for a in (Pt, Qt, base if biases else None, *numbers)
        )
        pieces = cut(self.merged, dtype)
        self.data = AllPairs(self.loss, *features, pieces, imputation, base, Pt, Qt, prior_is_base, *numbers)

    def _means(self) -> np.ndarray:
        """Compute every right entity's mean response, the overall mean if it has none; also count trials and pairs."""
        m, n = self.n_left, self.n_right
        total, self.n_trials = np.zeros(n), np.zeros(n)
        self.pairs_left, self.pairs_right = np.zeros(m, int), np.zeros(n, int)
        for left, right, y, count in self.merged.tiles_of(_AT_ONCE):
            weight = np.ones(len(y)) if count is None else count
            total += np.bincount(right, weight * y, n)
            self.n_trials += np.bincount(right, weight, n)
            self.pairs_left += np.bincount(left, minlength=m)
            self.pairs_right += np.bincount(right, minlength=n)
        self.n_pairs = int(self.pairs_left.sum())
        if not self.n_pairs:
            raise ValueError("no pair has a response; a fit needs at least one.")
        return np.where(self.n_trials > 0, total / np.maximum(self.n_trials, 1), total.sum() / self.n_trials.sum())

    def null_params(self, towers: TwoTowers) -> TwoTowers:
        """Return parameters of the same structure that are all 0: with biases, every right entity at its mean."""
        return jax.tree.map(jnp.zeros_like, towers)

    def draw_params(
        self, key, k: int, hidden_left: tuple[int, ...] = (), hidden_right: tuple[int, ...] = (), scale: float = _START
    ) -> TwoTowers:
        """Draw the start of a fit: small embeddings (all 0 would be a stationary point), no biases.

        They have k columns and about the root mean square ``scale``; towers without ``hidden`` widths are linear.
        """
        sides = (self.data.left, hidden_left), (self.data.right, hidden_right)
        keys = jax.random.split(key, 2)
        towers = (draw_tower(one, *side, k, scale, self.dtype) for one, side in zip(keys, sides, strict=True))
        if self.data.base is None:
            return TwoTowers(*towers, None, None)
        return TwoTowers(*towers, *(jnp.zeros(n, self.dtype) for n in (self.n_left, self.n_right)))

    def certify_sides(self, theta: TwoTowers) -> SideGaps:
        """Bound how much the objective could fall by changing one side alone, in float64: one pass on the host.

        This is proved for linear towers with a ridge (and ridged biases). Nothing bounds the distance from the global
        optimum: the objective is not convex in both sides together.
        """
        return side_gaps(self, theta)

    @cached_property
    def triples(self) -> Piece:
        """Observed pairs on the host, one by one, sorted by left entity, with their numbers of trials."""
        pairs = self.merged.scattered()
        order = np.argsort(pairs.left, kind="stable")
        return jax.tree.map(lambda column: column[order], pairs)

    @cached_property
    def observed_pairs(self) -> Piece:
        """Observed pairs on the device, (pair,): what `AllPairs.draw` draws from."""
        kinds = np.int32, np.int32, self.dtype, self.dtype
        return Piece(*(a if a is None else jnp.asarray(a, kind) for a, kind in zip(self.triples, kinds, strict=True)))

    def left_batches(self, size: int, seed: int) -> tuple[jax.Array, tuple[Piece, ...]]:
        """Cut the left entities, in an order drawn by ``seed``, into whole batches with all their observed pairs.

        The result is what `AllPairs.take` takes, with a leading axis of batches: rows (batch, size), and pieces of one
        length, the same for nearly all seeds.
        """
        pairs, n_batches = self.triples, self.n_left // size
        rows = np.random.default_rng(seed).permutation(self.n_left)[: n_batches * size].reshape(n_batches, size)
        start = np.searchsorted(pairs.left, np.arange(self.n_left + 1))
        length = np.diff(start)
        # Four standard errors above the mean are enough for nearly all draws: other lengths are compiled again.
        usual = np.ceil(size * length.mean() + 4 * np.sqrt(size) * length.std())
        usual = min(int(usual), int(np.sort(length)[-size:].sum()))
        most = int(length[rows].sum(axis=1).max(initial=0))
        most = usual if most <= usual else rounded(most)
        batches = []
        for some in rows:
            places = np.concatenate([np.arange(start[i], start[i + 1]) for i in some])
            local = np.repeat(np.arange(size, dtype=np.int32), length[some])
            part = jax.tree.map(lambda column, places=places: column[places], pairs)
            batches.append(cut_scattered(part._replace(left=local), self.dtype, most))
        piece = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *batches)
        return jnp.asarray(rows, np.int32), (piece,)
