r"""Softmax and multinomial models: rows, labels or counts, a ridge.

F(W, b) = (1/N) sum_i [ n_i log sum_k exp(s_ik) - sum_k y_ik s_ik ] + (strength / 2) |W|^2,   s_i = W'x_i + b + o_i

with n_i = sum_k y_ik. Rows of one label have one y_ik = 1.
"""

from functools import cached_property
from typing import NamedTuple, Self

import jax
import numpy as np
import scipy.sparse
import scipy.special
from numpy.typing import DTypeLike

from ..compilation import default_device
from ..display import counted
from ..engine.metric import plain_basis, spectral_basis
from ..engine.problem import Evaluation, Params
from ..engine.tiles import MANY_CLASSES, sums_over_tiles, tiles_of
from ..penalties import NoPenalty, Penalty, Ridge
from .class_gap import certify_gap
from .class_rows import ClassData, dense_rows, row_products, sparse_rows
from .contrast_rows import ROTATED, ContrastRows
from .coordinates import Coordinates, coordinates_of
from .log_linear import LogLinearGap

_SCORES = 4_000_000  # scores in memory at a time
_AT_ONCE = 1 << 18  # scores that a pass processes at a time
_SAMPLED_CLASSES = 64
_LARGEST = 1e15  # count, whose products with features single precision can hold
# Attributes that do not depend on the strength.
_OF_ROWS = (
    "offset", "basis", "totals", "class_totals", "counts", "null_objective", "saturated_loss", "_mean_sizes",
    "class_sums", "first_pairs",
)  # fmt: skip


class Pairs(NamedTuple):
    """Rows and classes that were seen together.

    Attributes
    ----------
    row, label : numpy.ndarray
        (pair,), each combination once, sorted by row and then label.
    weight : numpy.ndarray
        Count times weight of the row, (pair,), positive.
    """

    row: np.ndarray
    label: np.ndarray
    weight: np.ndarray


class Sums(NamedTuple):
    """Results of one pass over rows and classes."""

    objective: float  # F
    gradient: Params  # of its loss alone
    entropy: float  # mean of the probabilities' entropies
    tilt: float  # mean product of residuals and offsets
    bend: np.ndarray  # Hessian of the loss in the intercepts alone, if requested, or its diagonal


class SoftmaxProblem:
    """Data and ridge of a softmax model; parameters are coefficients (feature, class) and intercepts (class,).

    Parameters
    ----------
    X : numpy.ndarray or scipy.sparse.csr_array
        Features, (row, feature), finite.
    pairs : Pairs
        Labels or counts.
    n_classes : int
        Number of classes, at least 2.
    strength : float
        Strength of the ridge, at least 0.
    fit_intercept : bool
        Whether intercepts are fitted (never penalised) or stay 0.
    offset : numpy.ndarray, optional
        Added to the scores, (row, class).
    dtype : numpy dtype
        Precision of solvers on the device; objectives and gaps are always float64.
    penalty : Penalty, optional
        Penalty with kinks, with one strength for all classes; ``strength`` is then that of its ridge.
    """

    def __init__(
        self,
        X: np.ndarray | scipy.sparse.csr_array,
        pairs: Pairs,
        n_classes: int,
        strength: float,
        fit_intercept: bool = True,
        offset: np.ndarray | None = None,
        dtype: DTypeLike = np.float32,
        penalty: Penalty | None = None,
    ):
        self.X, self.pairs, self.n_classes, self.strength = X, pairs, int(n_classes), float(strength)
        self.fit_intercept, self.dtype = bool(fit_intercept), np.dtype(dtype)
        # A shift common to a row's offsets changes no probability, and would cost digits.
        self.offset = None if offset is None else offset - np.mean(offset, axis=1, keepdims=True)
        self.n_rows, self.n_features = X.shape
        self.n_pairs = len(pairs.label)  # the rows, if each has one label
        self.penalty = penalty or (Ridge(np.asarray(self.strength)) if self.strength else NoPenalty())
        self.subject = counted(self.n_classes, "class")  # shown by progress bars
        self._found = {}  # coordinates, and data in them
        self._rows_at_once = int(np.clip(_AT_ONCE // self.n_classes, 64, 4096))  # whose scores stay in the cache

    @cached_property
    def contrast_rows(self) -> ContrastRows:
        """The rows in the form that StochasticMajorization and SoftmaxSGD use."""
        return ContrastRows(self)

    @cached_property
    def basis(self):
        """Spectral basis of the features; for sparse or very many ones, only their standard deviations."""
        return self.basis_by(self.totals)

    def basis_by(self, weight: np.ndarray):
        """Return the basis over the rows with given weights (row,)."""
        weight = weight / weight.mean()
        if scipy.sparse.issparse(self.X) or self.n_features > ROTATED:
            return plain_basis(self.X, weight, self.fit_intercept)
        weight = None if np.all(weight == weight[0]) else weight
        return spectral_basis(self.X, weight, centred=self.fit_intercept)

    def coordinates(self, basis: str, robust: bool = False) -> Coordinates:
        """Coordinates "spectral", perhaps robust ones, or "raw", in which steps are taken; found once."""
        return self._once(("coordinates", basis, robust), lambda: coordinates_of(self, basis, robust))

    def class_data(self, basis: str, robust: bool = False) -> ClassData:
        """Lay out the data on jax's default device, once; each pair has an auxiliary variable of its own."""
        device = default_device()
        name = "data", basis, robust, device.platform, device.id
        return self._once(name, lambda: self._lay_out(self.coordinates(basis, robust)))

    def _once(self, name, find):
        if name not in self._found:
            self._found[name] = find()
        return self._found[name]

    def _lay_out(self, coordinates: Coordinates) -> ClassData:
        layout = sparse_rows if scipy.sparse.issparse(self.X) else dense_rows
        rows = layout(coordinates.rows(self.X, self.dtype), self.fit_intercept, self.dtype)
        places = self.pairs.label, self.pairs.row, np.arange(self.n_pairs), self.first_pairs
        label, row, index, first = (jax.device_put(a.astype(np.int32)) for a in places)
        largest, mean = float(self.totals.max()), float(self.totals.mean())
        if not (largest < _LARGEST and mean > 1 / _LARGEST):
            raise ValueError(
                f"counts of rows times weights have mean {mean:.2g} and maximum {largest:.2g}; to sample classes "
                f"they must lie between {1 / _LARGEST:.0e} and {_LARGEST:.0e}. Multiply all of them by one factor."
            )
        numbers = self.pairs.weight, self.totals, self.offset  # perhaps None
        weight, total, offset = jax.tree.map(lambda a: jax.device_put(a.astype(self.dtype)), numbers)
        return ClassData(rows, label, row, weight, index, offset, first, total)

    @cached_property
    def totals(self) -> np.ndarray:
        """Total weight of every row, n_i, (row,)."""
        return np.bincount(self.pairs.row, self.pairs.weight, self.n_rows)

    @cached_property
    def class_totals(self) -> np.ndarray:
        """Total weight of every class, (class,)."""
        return np.bincount(self.pairs.label, self.pairs.weight, self.n_classes)

    @cached_property
    def coef_bound(self) -> float:
        """Bound of the norm of the optimal coefficients: their ridge alone is at most F without features."""
        zero = Params(np.zeros((self.n_features, self.n_classes)), np.zeros(self.n_classes))
        best = self.null_objective if self.fit_intercept else self.objective(zero)
        return float(np.sqrt(2 * best / self.strength)) if self.strength > 0 else np.inf

    @cached_property
    def auxiliary_bound(self) -> float:
        """Bound of the optimal auxiliary variables, relative form; infinite with intercepts, which nothing bounds."""
        if self.fit_intercept:
            return np.inf
        longest = float(np.max(np.sqrt(row_products(self.X, self.X))))
        shift = 0.0 if self.offset is None else float(np.max(np.ptp(self.offset, axis=1)))
        # Two classes' coefficients differ by at most sqrt 2 times the norm of all.
        return float(np.logaddexp(0, np.log(self.n_classes - 1) + np.sqrt(2) * longest * self.coef_bound + shift))

    @cached_property
    def counts(self) -> scipy.sparse.csr_array:
        """Weighted counts, (row, class)."""
        shape = self.n_rows, self.n_classes
        return scipy.sparse.csr_array((self.pairs.weight, (self.pairs.row, self.pairs.label)), shape)

    def null_params(self) -> Params:
        """Model of class frequencies alone: the optimum without features, if there are no offsets."""
        zero = np.zeros((self.n_features, self.n_classes))
        if not self.fit_intercept:
            return Params(zero, np.zeros(self.n_classes))
        log = np.log(np.maximum(self.class_totals, 1e-2))  # a class that was never seen counts as a hundredth of a row
        return Params(zero, log - log.mean())

    @cached_property
    def null_objective(self) -> float:
        """F of the model of class frequencies."""
        if self.offset is not None:
            return self.evaluate(self.null_params()).objective
        b = self.null_params().intercept
        total = self.class_totals
        return float(total.sum() * scipy.special.logsumexp(b) - total @ b) / self.n_rows

    @cached_property
    def saturated_loss(self) -> float:
        """Mean loss of a model that is right about every row: a lower bound for all models."""
        entropy = scipy.special.entr(self.counts.data).sum() - scipy.special.entr(self.totals).sum()
        return float(entropy) / self.n_rows

    def scores(self, params: Params, rows=slice(None)) -> np.ndarray:
        """Linear predictor of some rows, (row, class), float64."""
        s = np.asarray(self.X[rows] @ params.coef, np.float64) + params.intercept[None]
        return s if self.offset is None else s + self.offset[rows]

    def objective(self, params: Params, rows=None) -> float:
        """F, or an unbiased estimate of it from some rows."""
        return self.loss(params, rows) + self.penalty_at(params)

    def loss(self, params: Params, rows=None) -> float:
        """F without its ridge, or an estimate of it from some rows."""
        return float(np.mean(self.losses(params, rows)))

    def losses(self, params: Params, rows=None) -> np.ndarray:
        """Loss of every row, or of some, (row,)."""
        chosen = np.arange(self.n_rows) if rows is None else np.asarray(rows)
        out = np.empty(len(chosen))
        for part in tiles_of(len(chosen), max(1, _SCORES // self.n_classes)):
            some = chosen[part]
            s, y = self.scores(params, some), self.counts[some]
            out[part] = self.totals[some] * scipy.special.logsumexp(s, axis=1) - y.multiply(s).sum(axis=1)
        return out

    def penalty_at(self, params: Params) -> float:
        """Penalty of some coefficients."""
        coef = np.asarray(params.coef, np.float64)
        if self.penalty.smooth:
            return self.strength / 2 * float(np.sum(coef**2))
        return float(np.sum(self.penalty.value(coef)))

    def subset(self, rows) -> Self:
        """Problem of some rows, each once."""
        rows = np.sort(rows)
        kept = np.isin(self.pairs.row, rows)
        row, label, weight = (a[kept] for a in self.pairs)
        pairs = Pairs(np.searchsorted(rows, row), label, weight)
        offset = None if self.offset is None else self.offset[rows]
        kinks = None if self.penalty.smooth else self.penalty
        return SoftmaxProblem(
            self.X[rows], pairs, self.n_classes, self.strength, self.fit_intercept, offset, self.dtype, kinks
        )

    def at_strength(self, strength: float, penalty: Penalty | None = None) -> Self:
        """Problem of the same rows with another ridge or penalty; results computed from the rows are shared."""
        given = {"fit_intercept": self.fit_intercept, "dtype": self.dtype, "penalty": penalty}
        other = SoftmaxProblem(self.X, self.pairs, self.n_classes, strength, **given)
        vars(other).update({name: getattr(self, name) for name in _OF_ROWS})
        return other

    def soften(self, temperature: float) -> Self:
        """Problem whose scores are divided by a temperature, in parameters divided by it; F is also divided by it."""
        offset = None if self.offset is None else self.offset / temperature
        strength = self.strength * temperature
        return SoftmaxProblem(self.X, self.pairs, self.n_classes, strength, self.fit_intercept, offset, self.dtype)

    def start_auxiliary(self, params: Params, alpha: float, rng: np.random.Generator) -> np.ndarray:
        """Estimate the best auxiliary variable of every pair at some parameters, from up to 64 classes, (pair,)."""
        K, m = self.n_classes, min(self.n_classes, _SAMPLED_CLASSES)
        some = np.arange(K) if m == K else rng.choice(K, m, replace=False)
        coef, intercept = np.asarray(params.coef, np.float64), np.asarray(params.intercept, np.float64)
        out = np.empty(self.n_pairs)
        for part in tiles_of(self.n_pairs, max(1, _SCORES // max(m, self.n_features))):
            row, label = self.pairs.row[part], self.pairs.label[part]
            x = self.X[row]
            s = np.asarray(x @ coef[:, some], np.float64) + intercept[some]
            own = row_products(x, coef.T[label]) + intercept[label]
            if self.offset is not None:
                s, own = s + self.offset[row[:, None], some], own + self.offset[row, label]
            others = some != label[:, None]
            share = (K - 1) / np.maximum(others.sum(axis=1), 1)
            delta = np.where(others, s - own[:, None], -np.inf) + np.log(share)[:, None]
            out[part] = np.logaddexp(0, scipy.special.logsumexp(delta, axis=1)) + alpha * own
        return out

    def evaluate(self, params: Params) -> Evaluation:
        """Compute F and its gradient in float64: ``objective`` is a number. Cost: one pass over rows and classes."""
        objective, (coef, intercept), *_ = self.sums_at(params)
        return Evaluation(objective, coef + self.strength * params.coef, intercept)

    def certify_gap(self, params: Params) -> LogLinearGap:
        """Bound F - F* at any parameters, by weak duality; see :func:`certify_gap`."""
        return certify_gap(self, params)

    def rounding_of_scores(self, params: Params) -> float:
        """Allow for the effect on F of rounding in float64 scores ``x'w + b``, whose terms may cancel."""
        largest = float(self._mean_sizes @ np.max(np.abs(params.coef), axis=1, initial=0.0))
        largest += float(np.max(np.abs(params.intercept), initial=0.0)) * float(self.totals.mean())
        if self.offset is not None:
            largest += float(self.totals @ np.max(np.abs(self.offset), axis=1)) / self.n_rows
        return 2 * (self.n_features + 2) * np.finfo(float).eps * largest

    @cached_property
    def _mean_sizes(self) -> np.ndarray:
        """Mean absolute value of every feature, or slightly more, (feature,)."""
        (total,) = sums_over_tiles(lambda rows: (abs(self.X[rows]).T @ self.totals[rows],), self.n_rows)
        return total * (1 + 1e-2) / self.n_rows

    @cached_property
    def class_sums(self) -> np.ndarray:
        """Sum of the features of every class's counts, (feature, class)."""
        if scipy.sparse.issparse(self.X):
            return (self.counts.T @ self.X).toarray().T
        (total,) = sums_over_tiles(lambda rows: (self.counts[rows].T @ self.X[rows],), self.n_rows)
        return total.T

    def sums_at(self, params: Params, paired: bool = False) -> Sums:
        """Make a pass over rows and classes, in float64."""

        def tile(rows):
            n, X = self.totals[rows], self.X[rows]
            s = self.scores(params, rows).T
            if len(s) < MANY_CLASSES:  # then sums over them are quick
                s = np.ascontiguousarray(s)
            s -= s.max(axis=0)
            p = np.exp(s)
            total = p.sum(axis=0)
            p /= total
            log_norm, some = np.log(total), slice(self.first_pairs[rows.start], self.first_pairs[rows.stop])
            row, label, weight = self.pairs.row[some] - rows.start, self.pairs.label[some], self.pairs.weight[some]
            loss = n @ log_norm - weight @ s[label, row]
            entropy = n @ (log_norm - np.einsum("ki,ki->i", p, s))
            bend = (p * n) @ p.T if paired else np.einsum("ki,ki,i->k", p, p, n)
            expected = p @ n
            p *= n
            p[label, row] -= weight
            tilt = 0.0 if self.offset is None else np.vdot(p, self.offset[rows].T)
            return loss, entropy, tilt, p @ X, p.sum(axis=1), expected, bend

        sums = sums_over_tiles(tile, self.n_rows, self._rows_at_once)
        loss, entropy, tilt, g_coef, g_intercept, expected, bend = (total / self.n_rows for total in sums)
        gradient = Params(g_coef.T, g_intercept if self.fit_intercept else np.zeros(self.n_classes))
        bend = (np.diag(expected) if paired else expected) - bend
        return Sums(float(loss) + self.penalty_at(params), gradient, float(entropy), float(tilt), bend)

    @cached_property
    def first_pairs(self) -> np.ndarray:
        """Place of every row's first pair, and of the end, (row + 1,)."""
        return np.searchsorted(self.pairs.row, np.arange(self.n_rows + 1))
