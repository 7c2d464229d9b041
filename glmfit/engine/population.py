"""Population GLM: data, observation and penalty, one independent convex problem per neuron.

F_n(w, b) = (1/T) sum_t weight_t phi(x_t'w + b + offset_tn; y_tn) + penalty_n(w)
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..bounds import dual_gap
from ..display import counted
from ..observations import Observation
from ..penalties import Penalty
from ..status import Status
from . import passes
from .exact.neuron import OneNeuron
from .metric import SpectralBasis, basis_of, ranges_of, rough_standard
from .problem import Evaluation, Params
from .repeats import PooledRows
from .tiles import Columns, over_tiles, rows_at_once, tiles_of, weighted

_FAR_FROM_0 = 8.0  # standard deviations of a feature
_ENTRIES = 1 << 18  # responses that a thread looks at
_SOME_ROWS, _LEAST_ROWS, _SOME_RESPONSES = 16_384, 2048, 400_000  # over which the report takes a statistic
_ANY = 0.5  # mean response of a neuron without data: a value for which every model has an optimum


class PopulationProblem(OneNeuron):
    """Data, observation model and penalty of a population GLM.

    Parameters
    ----------
    X : numpy.ndarray
        Features, (time, feature), float32 or float64, finite. Or an object that returns rows for a slice, from several
        threads, and has ``shape``, ``dtype``, a length and ``chunk_rows``, the number of rows that are best read at
        once: rows are then read again in every pass.
    Y : numpy.ndarray
        Responses, (time, neuron), that the observation model allows, e.g. counts. Or an object that returns rows, as X.
    observation : Observation
        Loss of one bin.
    penalty : Penalty
        Penalty of the coefficients; the intercept is never penalised.
    weights : numpy.ndarray, optional
        Row weights (time,), non-negative with a positive sum; rescaled to mean one.
    dtype : numpy dtype
        Precision of the solver's passes (float32, or float64 when jax runs in x64 mode). Objectives, gaps and
        coefficients are float64 in either case.
    offset : numpy.ndarray, optional
        Known part of the linear predictor, (time, 1 or neuron), finite.
    devices : sequence of jax.Device, optional
        Devices that share the rows; default jax's default device.
    own : numpy.ndarray, optional
        Additional weights of single responses (time, neuron), or an object that returns rows, as Y: a response of
        weight 0 does not count for that neuron. Those of every neuron, times its row weights, are rescaled to mean one.
    """

    def __init__(
        self,
        X: Any,
        Y: Any,
        observation: Observation,
        penalty: Penalty,
        weights: np.ndarray | None = None,
        dtype: DTypeLike = np.float32,
        offset: np.ndarray | None = None,
        devices: Sequence[jax.Device] | None = None,
        own: Any = None,
    ):
        self.X, self.Y, self.observation, self.penalty = X, Y, observation, penalty
        self.dtype = np.dtype(dtype)
        self.n_rows, self.n_features = X.shape
        self.n_neurons = Y.shape[1]
        self.weights = None if weights is None else np.asarray(weights, np.float64) * (len(X) / np.sum(weights))
        self.offset, self.devices = offset, () if devices is None else tuple(devices)
        self.row_weights = None if self.weights is None else self.weights[:, None]  # one column, or one per fit
        self.there: jax.Array | None = None  # X, if it was given on a device
        # Results of the features alone, and pooled rows; fits to the same features may share them.
        self.design: dict = {}
        # All data: a fit has one column of the counts, and one of the sets of row weights if there are any.
        self.counts, self.known, self.sets = Y, offset, self.row_weights
        self.neuron, self.fold, self.own, self.scale = np.arange(self.n_neurons), None, own, None
        self.found, self.found_of = {}, defaultdict(dict)
        self.degrees: np.ndarray | None = None  # of freedom, effective, if known, (neuron,)
        self.pearson_sums: list[np.ndarray] | None = None  # of `passes.pearson_terms` at the solution, if known
        if own is not None:
            self._weigh_own()

    def _weigh_own(self) -> None:
        """Rescale the weights of every fit to mean one."""
        self.scale = np.ones(self.n_neurons)
        if self.sets is None and isinstance(self.own, np.ndarray) and self.own.dtype == bool:
            share = np.count_nonzero(self.own, axis=0)[self.neuron] / self.n_rows
        else:
            share = self._mean_of_counts(np.ones_like)
        self.scale = 1 / np.where(share > 0, share, np.inf)
        self.row_weights = FitWeights(self)

    @property
    def in_memory(self) -> bool:
        """Whether rows are arrays; otherwise they are read when needed, a slice at a time."""
        return isinstance(self.X, np.ndarray)

    def of_design(self, name: str, compute: Callable[[], Any]) -> Any:
        """Compute something from the features alone, once."""
        if name not in self.design:
            self.design[name] = compute()
        return self.design[name]

    @property
    def basis(self) -> SpectralBasis:
        """Spectral basis of the design; see docs/theory/spectral_basis.md."""
        return self.of_design("basis", lambda: basis_of(self.X, self.weights, self.penalty))

    @property
    def pooled(self) -> PooledRows | None:
        """Rows in memory that differ, if many repeat: they have the same objective. Arrays must not change later."""
        if not all(a is None or isinstance(a, np.ndarray) for a in (self.X, self.counts, self.own)):
            return None
        given = self.X, self.counts, self.weights, self.sets, self.known, self.own
        before, found = self.design.get("pooled", ([()] * len(given), None))
        if not all(a is b or (a is not None and np.array_equal(a, b)) for a, b in zip(given, before, strict=True)):
            found = PooledRows.of(*given)
            self.design["pooled"] = given, found
        return found

    @property
    def standard(self) -> tuple[np.ndarray, np.ndarray]:
        """Shift and scale of the coordinates in which Hessians are formed; any are valid, close ones round less."""
        if self.in_memory:
            return self.of_design("standard", lambda: rough_standard(self.X, self.weights))
        return self.basis.mean, self.basis.deviation  # single rows are slow to read

    @property
    def rows_apart(self) -> int:
        """Distance of the rows over which the report takes Pearson's statistic: some thousand in all."""
        return max(1, self.n_rows // min(_SOME_ROWS, max(_LEAST_ROWS, _SOME_RESPONSES // self.n_neurons)))

    @property
    def ranges(self) -> np.ndarray:
        """Ranges of the features, (feature,)."""
        return self.of_design("ranges", lambda: ranges_of(self.X, None))

    @property
    def shift(self) -> np.ndarray | None:
        """Means of features that are far from 0 relative to their variation, 0 for others; None if no feature is."""

        def far():
            mean, scale = self.standard
            shift = np.where(np.abs(mean) > _FAR_FROM_0 * scale, mean, 0.0)
            return shift if shift.any() else None

        return self.of_design("shift", far)

    # ---------------------------------------------------------------- reference point and objective

    @cached_property
    def mean_count(self) -> np.ndarray:
        """Weighted mean response per bin, (neuron,); arbitrary for a neuron without data."""
        mean = self._mean_of_counts(lambda y: np.asarray(y, np.float64))
        mean = self.observation.exact_mean(mean, lambda: self._mean_of_counts(lambda y: 1.0 - y))
        return np.where(self.unseen, _ANY, mean)

    @cached_property
    def size_of_counts(self) -> np.ndarray:
        """Weighted mean size of the responses, (neuron,)."""
        if self.observation.counts:
            return self.mean_count
        return self._mean_of_counts(lambda y: np.abs(np.asarray(y, np.float64)))

    @cached_property
    def saturated_loss(self) -> np.ndarray:
        """Mean loss of the model that predicts every response exactly, (neuron,): no model is below it."""
        return self._mean_of_counts(lambda y: passes.least_losses(self.observation, y))

    def _mean_of_counts(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Weighted mean of a function of the counts over the rows of each fit, (fit,)."""

        def tile(rows):
            values = function(self.counts[rows])
            if self.own is not None:
                own = self.own[rows]
                values = values * own if own.dtype == bool else weighted(values, np.asarray(own, np.float64))
            return values.sum(axis=0)[None] if self.sets is None else self.sets[rows].T @ values

        size = max(rows_at_once(self.counts), _ENTRIES // self.counts.shape[1])
        means = sum(over_tiles(tile, self.n_rows, size)) / self.n_rows
        means = means[0 if self.fold is None else self.fold, self.neuron]
        return means if self.scale is None else means * self.scale

    @property
    def unseen(self) -> np.ndarray:
        """Which fits have no data: no response of positive weight, bool (fit,)."""
        return np.zeros(self.n_neurons, bool) if self.scale is None else self.scale == 0

    @property
    def silent(self) -> np.ndarray:
        """Which neurons have no optimum, whatever the features: those without spikes, bool (neuron,)."""
        return ~(self.observation.has_optimum(self.mean_count) | np.isnan(self.mean_count)) & ~self.unseen

    def first_status(self) -> np.ndarray:
        """Return the status of every fit before its first step, (fit,): why it has no fit, or MAX_EPOCHS."""
        status = np.full(self.n_neurons, int(Status.MAX_EPOCHS))
        status[self.silent] = int(Status.NO_SPIKES)
        status[self.silent & (self.mean_count > 0)] = int(Status.ALL_ONES)
        status[self.unseen] = int(Status.NO_DATA)
        return status

    @cached_property
    def _null(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Intercept, objective and mean curvature of the intercept-only optimum, (neuron,) each."""
        if self.offset is not None:
            return passes.fit_intercept(self.Y, self.row_weights, self.observation, self.offset)
        eta = self.observation.intercept(self.mean_count)
        return eta, self.observation.loss(self.mean_count, eta), self.observation.curvature(self.mean_count, eta)

    @property
    def n_counted(self) -> int:
        """Number of rows of positive weight."""
        return self.n_rows if self.weights is None else int(np.count_nonzero(self.weights))

    @property
    def kin(self) -> np.ndarray:
        """Neuron of each fit, (fit,)."""
        return self.neuron

    def rows_of(self, fits: np.ndarray, pooled: bool = False) -> dict:
        """Return the arguments of `HostRows` for some fits: all rows, or if ``pooled`` those that differ."""
        found = self.pooled if pooled else None
        X, Y, sets, offset, own = (self.X, self.counts, self.sets, self.known, self.own) if found is None else found
        given = {"X": X, "Y": Y, "weights": sets, "offset": offset}
        given |= {"own": own, "scale": None if self.scale is None else self.scale[fits]}
        return given | {"neuron": self.neuron[fits], "rows": None if self.fold is None else self.fold[fits]}

    def null_params(self) -> Params:
        """Intercept-only optimum, the reference point of relative gaps."""
        return Params(np.zeros((self.n_features, self.n_neurons)), self._null[0].copy())

    def no_worse_than_null(self, start: Params) -> Params:
        """Replace starts that are missing, or worse than a constant rate, by that rate, in one pass.

        Parts of a start along directions of the features that no row shows are removed: no step would remove them.
        """
        null, known, basis = self.null_params(), np.isfinite(start.intercept), self.basis
        start = Params(*(np.where(known, a, b) for a, b in zip(start, null, strict=True)))
        if self.penalty.rotation_invariant and basis.rank < self.n_features:
            coef = basis.whiten @ (basis.unwhiten @ start.coef)
            start = Params(coef, start.intercept + basis.mean @ (start.coef - coef))
        with np.errstate(over="ignore", invalid="ignore"):
            better = self.evaluate(start).objective < self.null_objective
        return Params(*(np.where(better, a, b) for a, b in zip(start, null, strict=True)))

    @property
    def null_objective(self) -> np.ndarray:
        """F of the intercept-only model, (neuron,)."""
        return self._null[1]

    @property
    def null_curvature(self) -> np.ndarray:
        """Mean curvature of the loss at the intercept-only optimum, (neuron,)."""
        return self._null[2]

    def null_gradient(self) -> np.ndarray:
        """Gradient of the mean loss at the intercept-only optimum, (feature, neuron)."""
        at, how = self.null_params(), {"dtype": self.dtype, "offset": self.offset, "shift": self.basis.mean}
        return passes.evaluate_loss(self.X, self.Y, self.row_weights, self.observation, *at, **how)[1]

    def evaluate(self, params: Params, dtype=np.float64) -> Evaluation:
        """Compute objective and gradient of the smooth part on the data as given; products in ``dtype``."""
        return self._evaluate(params, dtype=dtype, shift=self.shift)[0]

    def evaluate_with_dual(self, params: Params) -> tuple[Evaluation, np.ndarray]:
        """Run `evaluate` and bound ``F - F*`` by duality, inf where there is no bound, (neuron,), in one pass.

        If some coefficients have no penalty, the rounding of their gradient alone rules out every dual bound.
        """
        value, sums = self._evaluate(params, dual=True)
        if not self.penalty.penalises_all:
            return value, np.full(self.n_neurons, np.inf)
        return value, dual_gap(value.objective, sums, self.penalty) + self.rounding_of(params, value.objective)

    def _evaluate(self, params: Params, **how):
        loss, grad_coef, grad_intercept, sums = passes.evaluate_loss(
            self.X, self.Y, self.row_weights, self.observation, *params, offset=self.offset, **how
        )
        ridge = np.asarray(self.penalty.ridge_strength, np.float64)
        objective = loss + np.asarray(self.penalty.value(params.coef), np.float64)
        return Evaluation(objective, grad_coef + ridge * params.coef, grad_intercept), sums

    def rounding_of(self, params: Params, objective, fits=slice(None)) -> np.ndarray:
        """Return the allowance for float64 rounding of objectives and gradients, added to every bound, (fit,).

        Sixteen units in the last place of the loss and of the mean count, and two of the predictor's terms.
        """
        (mean, scale), count = self.standard, self.size_of_counts[fits]
        terms = (np.abs(mean) + 3 * scale) @ np.abs(params.coef) + np.abs(params.intercept)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.finfo(float).eps * (16 * (np.abs(objective) + count) + 2 * count * terms)

    def left_out_is_settled(self, coef) -> np.ndarray:
        """Whether nothing can be gained along the directions of X that the basis excludes, (neuron,)."""
        return self.basis.settles(self.penalty.rotation_invariant, coef)

    def select(self, neuron: int) -> "PopulationProblem":
        """Return the problem of one fit on its rows alone; if these are all rows, it shares results of the design."""
        if self.n_neurons == 1 and self.fold is None and self.own is None and isinstance(self.counts, np.ndarray):
            return self
        column, X, weights, offset = self.neuron[neuron], self.X, self.weights, self.known
        if isinstance(self.counts, np.ndarray):
            Y = np.ascontiguousarray(self.counts[:, [column]])
        else:
            Y = np.concatenate([self.counts[rows][:, [column]] for rows in tiles_of(self.n_rows, 65536)])
        if offset is not None:
            offset = offset[:, [column if offset.shape[1] > 1 else 0]]
        whole = self.fold is None
        if self.own is not None or not whole:
            own = np.ones(self.n_rows) if self.row_weights is None else self._weights_of(neuron)
            weights = own if self.own is not None else weights
            if not whole or not own.all():
                kept, whole = np.flatnonzero(own > 0), False
                X, Y, weights, offset = (None if a is None else a[kept] for a in (X, Y, weights, offset))
        penalty = select(self.penalty, [neuron])
        one = PopulationProblem(X, Y, self.observation, penalty, weights, self.dtype, offset, self.devices)
        if whole:
            one.design, one.found = self.design, self.found_of[neuron]
        return one

    def _weights_of(self, fit: int) -> np.ndarray:
        """Row weights of one fit, (time,)."""
        set_ = 0 if self.fold is None else self.fold[fit]
        weights = 1.0 if self.sets is None else self.sets[:, set_]
        if self.own is None:
            return weights
        parts = over_tiles(lambda rows: self.own[rows][:, self.neuron[fit]], self.n_rows, rows_at_once(self.Y))
        return weights * np.concatenate(list(parts)) * self.scale[fit]


class FitWeights:
    """Row weights of the fits of a problem whose neurons have their own, looked up some rows at a time, (row, fit)."""

    def __init__(self, problem: PopulationProblem):
        self._of, self.shape = problem, (problem.n_rows, problem.n_neurons)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows) -> np.ndarray:
        p = self._of
        own = np.take(np.asarray(p.own[rows], np.float64), p.neuron, axis=1) * p.scale
        if p.sets is None:
            return own
        return own * (p.sets[rows] if p.fold is None else np.take(p.sets[rows], p.fold, axis=1))


def select(penalty: Penalty, index) -> Penalty:
    """Return the penalty of some of the fits."""
    return jax.tree.map(lambda a: a[..., index] if np.ndim(a) else a, penalty)


class FoldedProblem(PopulationProblem):
    """Fits of the same design to different neurons, rows and strengths, as columns of one problem.

    Parameters
    ----------
    X, Y, observation, dtype, offset :
        As in :class:`PopulationProblem`.
    penalty : Penalty
        Strengths shared or per column. A penalty that is not smooth also acts in a basis of all rows.
    neuron : numpy.ndarray
        Column of Y that each column fits, (column,).
    fold : numpy.ndarray, optional
        Column of ``train`` that each column uses, (column,).
    train : numpy.ndarray, optional
        Which rows count in each fold, bool (time, fold); every fold has some. Without folds all rows count.
    weights : numpy.ndarray, optional
        Additional row weights (time,); in every fold, those that count are rescaled to mean one over all rows.

    Notes
    -----
    A column's objective is the mean over the rows of its fold. The basis is that of all rows: any basis is allowed, and
    one close to the folds' own works as well (docs/theory/spectral_basis.md).
    """

    def __init__(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        observation: Observation,
        penalty: Penalty,
        neuron: ArrayLike,
        fold: ArrayLike | None = None,
        train: ArrayLike | None = None,
        weights: np.ndarray | None = None,
        dtype: DTypeLike = np.float32,
        offset: np.ndarray | None = None,
        own: Any = None,
    ):
        super().__init__(X, Y, observation, penalty, weights, dtype, offset)
        self.neuron, self.fold = np.asarray(neuron), None if fold is None else np.asarray(fold)
        self.n_neurons = len(self.neuron)
        self.Y = Columns(Y, self.neuron)
        if offset is not None:
            self.offset = Columns(offset, self.neuron if offset.shape[1] > 1 else np.zeros_like(self.neuron))
        if fold is None:
            self.own = own
            if own is not None:
                self._weigh_own()
            return
        weights = np.asarray(train, bool) * (1.0 if self.weights is None else self.weights[:, None])
        self.sets = weights * (len(X) / weights.sum(axis=0))
        self.row_weights, self.own = Columns(self.sets, self.fold), own
        if own is not None:
            self._weigh_own()

    @property
    def subject(self) -> str:
        """Name of what is fitted, for a progress bar."""
        return counted(self.n_neurons, "fit")
