"""Common part of solvers that sample classes: state, draws and epochs; their steps are in ``class_steps``.

They approach the optimum and do not converge to it in finite time; the problem's certificate bounds the distance.
"""

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from ..checks import check_choice, check_positive, check_whole
from ..compilation import default_device, jit
from ..engine.problem import Params
from ..numerics import seed_of
from . import class_kernels as kernels
from .coordinates import BASES
from .schedule import ScheduledSolver

_STEP = 0.1  # c of single implicit steps in spectral coordinates
_MANY, _NEGATIVES, _MORE_NEGATIVES = 500, 20, 60  # classes; negatives for up to this many, and for more
_PORTION = 1 << 24  # numbers looked up or drawn ahead of the steps that need them


class SamplerState(NamedTuple):
    """Everything the next epoch depends on; its leaves can be saved and loaded."""

    weights: Any  # on the device
    epoch: int  # epochs done
    seed: int  # of all draws


class Step(NamedTuple):
    """Changes by a step of the classes it touches and of the auxiliary variable."""

    amount: jax.Array  # in rows, (class,)
    raised: jax.Array  # auxiliary variable before the step proper
    u: jax.Array  # and after it

    @classmethod
    def of_pair(cls, push, pull, u, after) -> Self:
        """Make the step of a pair, from the push on its negatives and the pull on its label."""
        return cls(jnp.append(-push, pull), u, after)


@dataclass(frozen=True)
class ClassSampler(ScheduledSolver):
    """Solver that samples classes, a static argument of the kernels. Its step sees scores and returns pushes."""

    auxiliary: ClassVar[bool] = False  # whether there are auxiliary variables
    hits: ClassVar[bool] = False  # whether a shared negative that is a row's own label counts
    n_negatives: int | None = 20  # classes sampled per step in addition to the label; at most all others are
    batch_size: int = 1  # rows per step
    # Fields only where there is a choice: step of the auxiliary variables (None: that of the coefficients), member of
    # the family of double sums, what a step visits, and whether weights and auxiliary variables are kept where the
    # optimum is proved to be.
    auxiliary_step = None
    alpha = 0.0
    visit = "pair"
    bounded = False
    basis: str = field(default="spectral", kw_only=True)  # whose coordinates steps are taken in, or "raw"

    def __post_init__(self):
        check_choice("basis", self.basis, BASES)
        if self.n_negatives is not None or type(self).n_negatives is not None:
            check_whole("n_negatives", self.n_negatives, 1)
        check_whole("batch_size", self.batch_size, 1)
        check_choice("visit", self.visit, ("pair", "row"))
        if self.auxiliary_step is not None:
            check_positive("auxiliary_step", self.auxiliary_step, "None is that of the coefficients.")

    @abstractmethod
    def step(self, c, tau, log_a, score, target, mobility, u) -> Step:
        """Step of one row, of length c (row weight included), from the scores of the classes it touches, (class,).

        The step of the auxiliary variable has length tau.

        ``log_a`` are the logarithms of their weights, -inf for excluded classes, ``target`` the shares of its counts
        (None for a pair, whose label is last), and u is the auxiliary variable before the step.
        """

    def init_state(self, problem, params: Params | None, *, key) -> SamplerState:
        """Lay out weights and auxiliary variables: 0, or values from the parameters if given."""
        coordinates = self.coordinates(problem)
        d = len(coordinates.units)
        V = np.zeros((problem.n_classes, d + problem.fit_intercept), problem.dtype)
        if params is not None:
            inside = coordinates.inside(params)
            V[:, :d] = inside.coef.T
            V[:, d:] = inside.intercept[:, None]
        size = (problem.n_rows if self.per_row else problem.n_pairs) if self.auxiliary else 0
        seed = seed_of(key)
        u = np.zeros(size, problem.dtype)
        if params is not None and size:
            best = problem.start_auxiliary(params, self.alpha, np.random.default_rng(seed))
            if self.per_row:  # the mean over counts: for pairs it is the log of the normaliser less their scores
                best = np.bincount(problem.pairs.row, problem.pairs.weight * best, size)
                best /= np.maximum(problem.totals, np.finfo(float).tiny)
            u[:] = best
        weights = kernels.Weights(*map(jax.device_put, (V, u, np.ones(V.shape[1], problem.dtype))))
        return SamplerState(weights, 0, seed)

    def where(self, problem) -> contextlib.AbstractContextManager:
        """Visit single rows on a CPU: sequential steps of some microseconds take longer on a GPU."""
        single = min(self.batch_size, self.n_visits(problem)) == 1 and self.visit == "pair"
        single = single and self._visit(1) is kernels.one_row
        cpu = a_cpu() if single and default_device().platform != "cpu" else None
        return contextlib.nullcontext() if cpu is None else jax.default_device(cpu)

    def coordinates(self, problem):
        """Coordinates in which steps are taken; outliers count for less if steps are stable at any length."""
        return problem.coordinates(self.basis, self.implicit)

    def negatives(self, problem) -> int:
        """Return how many classes a step samples; chosen by measurement if it is not given."""
        return self.n_negatives or (_NEGATIVES if problem.n_classes <= _MANY else _MORE_NEGATIVES)

    def known_step(self, problem) -> float | None:
        """Return the step that is right for features of one size, relative to the weight of a visit (measured)."""
        if not self.implicit or self.basis == "raw":
            return None
        return _STEP * math.sqrt(min(self.batch_size, self.n_visits(problem))) / self.visit_weight(problem)

    def ridge(self, problem) -> np.ndarray:
        """Strength of the ridge of every column, 0 for the intercept's, in terms of what is visited."""
        return super().ridge(problem) * self._units(problem)

    def _units(self, problem) -> np.ndarray:
        """Return what the ridge of every column is multiplied by, (column,)."""
        return np.append(self.coordinates(problem).units, np.zeros(int(problem.fit_intercept)))

    def update(self, problem, state: SamplerState, c: float, share: float) -> SamplerState:
        number, data = problem.dtype.type, problem.class_data(self.basis, self.implicit)
        data = data._replace(auxiliary=data.row) if self.per_row else data
        n_visits, ridge = self.n_visits(problem), self.ridge(problem)
        n = min(self.batch_size, n_visits)
        m = min(self.negatives(problem), problem.n_classes - (not self._shares(n)))  # shared ones may be all
        limit = problem.auxiliary_bound if self.bounded and self.alpha == 0 else math.inf
        log_a, tau = self.log_weight(problem.n_classes, m, n), share * (self.auxiliary_step or 0.0)
        span = kernels.Span(0, 0, number(c), ridge.astype(problem.dtype), number(log_a), number(limit), number(tau))
        data = kernels.measure(data, span, self)
        # Inputs are laid out for some steps at a time: for all steps they would need more memory than the data.
        n_steps, width = n_visits // n, int(np.diff(problem.first_pairs).max()) if self.visit == "row" else 0
        a_step = 5 * n + m if self._shares(n) else n * (m + max(width, 1)) + problem.n_features
        most = max(1, _PORTION // a_step)
        size = -(-n_steps // -(-n_steps // most))
        for_order, for_classes = jax.random.split(jax.random.fold_in(jax.random.key(state.seed), state.epoch))
        order = _order(for_order, n_visits, n, size)
        # The scales may fall by this many steps before they have to be merged into the coefficients.
        change = c * float(np.max(ridge, initial=0.0))
        fall = abs(math.log1p(change if self.implicit else -change))
        safe = (50.0 if problem.dtype.itemsize == 4 else 500.0) / max(fall, 1e-300)  # coefficients must not overflow
        stride = int(min(size, max(1.0, safe)))
        weights = state.weights
        visit, shared = kernels.counts if width else self._visit(n), self._shares(n)
        for first in range(0, n_steps, size):
            seen, key = data, jax.random.fold_in(for_classes, first)
            part, negatives = _draw(key, data, order, first, size, problem.n_classes, m, shared, width)
            if visit is kernels.one_row:
                seen, part, negatives = kernels.look_up(data, part, negatives), None, None
            last = min(size, n_steps - first)
            for start in range(0, last, stride):
                some = span._replace(start=start, stop=min(start + stride, last))
                n_steps_known = last if n > 1 and stride >= last else None
                weights = kernels.take_steps(seen, weights, part, negatives, some, visit, self, n_steps_known)
                if change > 0:
                    weights = kernels.merge_scale(weights)
        if self.bounded and problem.coef_bound < math.inf:
            units = self._units(problem).astype(problem.dtype)
            weights = kernels.project(weights, units, number(problem.coef_bound))
        return SamplerState(weights, state.epoch + 1, state.seed)

    def _visit(self, n: int) -> Callable:
        """Return what a step does with n pairs."""
        return kernels.one_row if n == 1 else kernels.shared

    @property
    def per_row(self) -> bool:
        """Whether the pairs of a row share an auxiliary variable: in the absolute form they estimate the same."""
        return self.alpha == 1 or self.visit == "row"

    def _shares(self, n: int) -> bool:
        """Whether the pairs of a batch share their negatives; rows of counts have their own."""
        return n > 1 and self.visit == "pair" and self._visit(n) is not kernels.averaged

    def log_weight(self, n_classes: int, m: int, n: int) -> float:
        """Logarithm of the weight of each of m negatives of n rows that keeps the double sum unbiased."""
        # Shared ones are drawn from all classes, a row's own label counting nothing: docs/theory/double_sum.md.
        return math.log((n_classes if self._shares(n) else n_classes - 1) / m)

    def n_visits(self, problem) -> int:
        """Visits of an epoch: pairs of a row and a class with counts, or rows."""
        return problem.n_rows if self.visit == "row" else problem.n_pairs

    def n_steps(self, problem) -> int:
        """Whole batches of an epoch; visits that do not fill one wait for the next."""
        n_visits = self.n_visits(problem)
        return n_visits // min(self.batch_size, n_visits)

    def user_params(self, problem, state: SamplerState) -> Params:
        # In float64: with features far from 0, intercepts are large, and their rounding would distort scores.
        V = (np.array(state.weights.V, np.float64) * np.array(state.weights.scale, np.float64)).T
        coordinates = self.coordinates(problem)
        d = len(coordinates.units)
        coef, intercept = coordinates.outside(Params(V[:d], V[d] if problem.fit_intercept else 0.0))
        if not problem.fit_intercept:
            return Params(coef, np.zeros(problem.n_classes))
        return Params(coef, intercept - intercept.mean())

    def is_finite(self, state: SamplerState) -> bool:
        return bool(_finite(state.weights))

    def kept(self, state: SamplerState) -> SamplerState:
        # A copy, since updates use up the weights they are given; these may come from a file.
        return SamplerState(jax.tree.map(jnp.array, state.weights), int(state.epoch), int(state.seed))


def a_cpu() -> jax.Device | None:
    """First CPU of JAX, or None if the user has excluded CPUs."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


@partial(jit, static_argnames=("n_pairs", "n", "size"))
def _order(key, n_pairs: int, n: int, size: int):
    """Order of an epoch, (step, row of the batch), filled up to a multiple of ``size`` steps, which are never taken."""
    n_steps = n_pairs // n
    order = jax.random.permutation(key, n_pairs)[: n_steps * n].astype(jnp.int32).reshape(n_steps, n)
    return jnp.concatenate([order, order[: -n_steps % size]])


@partial(jit, static_argnames=("size", "n_classes", "m", "shared", "width"))
def _draw(key, data, order, start, size: int, n_classes: int, m: int, shared: bool, width: int):
    """Pairs, or rows with counts of at most ``width`` classes, and negatives, of some of an epoch's steps."""
    order = jax.lax.dynamic_slice_in_dim(order, start, size)
    if width:
        of_step = jax.vmap(kernels.support_of, (None, 0, None))
        known = jax.vmap(of_step, (None, 0, None))(data, order, width)[0]
        return order, (known, kernels.distinct_negatives(key, known, n_classes, m, data.n_seen(order)))
    if shared:  # out of all classes: as if the label were a class of its own
        none = jnp.full((size, 1), n_classes, jnp.int32)
        return order, kernels.distinct_negatives(key, none, n_classes + 1, m)
    return order, kernels.distinct_negatives(key, data.label[order][..., None], n_classes, m)


@jit
def _finite(weights):
    return jnp.isfinite(jnp.sum(weights.V)) & jnp.isfinite(jnp.sum(weights.u)) & jnp.all(weights.scale > 0)
