"""Newton's method on devices: Hessians of every fit in double precision, used and judged by one program per iteration.

A GPU forms all Hessians in the time a host would need to evaluate the result of a few steps, and Hessians in double
precision prove how far the optimum is. Coefficients are of standardised features, in columns (column, fit).
"""

import math
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from ...bounds import descent_step
from ...compilation import jit
from ..metric import rank_of
from ..passes import KURTOSIS, LEAST_VARIANCE, pearson_terms
from ..problem import Params
from .shards import ALIGNED, Layout, Shards, filled_up, layout_of

_TOGETHER = 8, 4, 2, 1  # fits whose Hessians are formed by one product, as many as memory allows
_COPIES = 6  # of Hessians while they are factored
STEPS = 4  # per Hessian
_LENGTHS = 5  # of a step, between Newton's along the line and the one that is proved to descend
_ROUNDING = 4e-16  # of objectives that count as equal
_MOST_WORK = 1e13  # floating-point operations of an iteration: some tenths of a second on a data-centre GPU
_ROOM = 4e9  # bytes for the Hessians of all fits, and for the arrays that some of them are formed from
_RESOLVED = 1e-5  # diagonal of a factor of a matrix with unit diagonal below which rounding may take directions away


def newton_serves(problem) -> bool:
    """Whether Newton's method on devices can fit a problem: on a CPU, BLAS forms Hessians faster."""
    if not problem.penalty.smooth or problem.observation.constant is None:
        return False
    layout = layout_of(problem)  # None for small problems, without asking jax for its devices
    return layout is not None and layout.devices[0].platform != "cpu" and jax.process_count() == 1


def newton_pays(problem) -> bool:
    """Whether that is worthwhile: an iteration is quick, its arrays fit, and a ridge penalises every direction."""
    n, d, n_fits = problem.n_rows, filled_up(problem.n_features + 1), filled_up(problem.n_neurons, max(_TOGETHER))
    affordable = 2.0 * n_fits * d**2 * (n + 3 * d) <= _MOST_WORK and 8.0 * n_fits * d**2 <= _ROOM
    if not (affordable and problem.penalty.penalises_all and newton_serves(problem)):
        return False
    devices = layout_of(problem).devices
    room = (devices[0].memory_stats() or {}).get("bytes_limit", np.inf)
    # Features as given and standardised; predictors, derivatives and trials of fits; Hessians and their factors, and
    # what they are formed from.
    return 8.0 * n * (2 * d + 8 * n_fits) / len(devices) + 16.0 * n_fits * d**2 + _ROOM <= room


class Judgement(NamedTuple):
    """Results of an iteration for every fit, (fit,) each except the parameters."""

    params: Params
    objective: np.ndarray
    decrement: np.ndarray  # squared, of the gradient there and the Hessian used
    drift: np.ndarray  # largest move of eta since the Hessian was formed
    radius_squared: np.ndarray  # bound of x'H^-1 x over the rows: the longest of them, and the trace of the inverse
    resolved: np.ndarray  # whether the Hessian shows all directions
    degrees: np.ndarray  # of freedom: trace of the inverse times the part of the Hessian that is not the ridge
    moved: np.ndarray  # whether some step has descended

    def of(self, which: np.ndarray) -> Self:
        """Return the results of some fits."""
        return Judgement(self.params.of(which), *(a[which] for a in self[1:]))


class DeviceNewton:
    """Some fits of a problem with a smooth penalty, on devices, at their current parameters."""

    def __init__(self, problem, layout: Layout, fits: np.ndarray, params: Params):
        self._observation, self._n, self._d = problem.observation, len(fits), problem.n_features
        self._layout, self._distance = layout, problem.rows_apart
        self._mean, self._scale = problem.standard
        self._every = np.minimum(np.arange(filled_up(self._n, max(_TOGETHER))), self._n - 1)  # the last fit fills up
        ridge = np.broadcast_to(np.asarray(problem.penalty.ridge_strength, np.float64), (self._d, problem.n_neurons))
        given, there = problem.rows_of(fits), problem.there
        if there is not None and len(layout.devices) == 1 and there.devices() == set(layout.devices):
            given["X"] = there
        with jax.enable_x64(True):
            self._rows, self._known = self._lay_rows_out(layout, **given)
            self._moments = _moments(self._rows.x)
            ridge = ridge[:, fits] / self._scale[:, None] ** 2
            self._ridge = layout.everywhere(self._columns(ridge, np.zeros(self._n)))
            self._at = self._standardised(params.of(fits))

    def _standardised(self, params: Params) -> jax.Array:
        """Put parameters of the fits on the devices, as those of standardised features."""
        coef, scale = np.asarray(params.coef, np.float64), self._scale[:, None]
        return self._layout.everywhere(self._columns(coef * scale, params.intercept + self._mean @ coef))

    def _columns(self, of_features: np.ndarray, of_intercepts: np.ndarray) -> np.ndarray:
        """Put values of features and intercepts into columns."""
        out = np.zeros((self._rows.x.shape[-1], len(self._every)))
        out[: self._d], out[self._d] = of_features[:, self._every], of_intercepts[self._every]
        return out

    def _lay_rows_out(
        self, layout: Layout, X, Y, weights, offset, neuron, rows, own, scale
    ) -> tuple[Shards, jax.Array | None]:
        """Put the rows on the devices, as given, and standardise them there; return them and the fits' offsets."""
        n_rows, index = len(X), neuron[self._every]
        neurons, place = np.unique(index, return_inverse=True)
        weight = np.ones((n_rows, 1), bool) if weights is None else weights
        if own is not None:  # of every fit
            weight = weight if rows is None else weight[:, rows]
            weight, rows = weight * own[:, neuron] * scale, np.arange(len(neuron))
        x = (_padded(X, layout.shape),) if isinstance(X, jax.Array) else layout.pieces(X)
        weight = layout.put(weight, dtype=weight.dtype)
        x, weight, self._ranges = _standardise(x, weight, n_rows, self._mean, 1 / self._scale)
        made = Shards(
            x=x,
            y=layout.put_counts(Y, neurons, filled_up(len(neurons), max(_TOGETHER)), Y.dtype),
            weight=weight,
            neuron=layout.everywhere(place),
            which=None if rows is None else layout.everywhere(rows[self._every]),
            share=layout.everywhere(np.asarray(1 / n_rows)),
        )
        if offset is None:
            return made, None
        return made, layout.put(offset if offset.shape[1] == 1 else offset[:, index], dtype=np.float64)

    def rank(self) -> int:
        """Count the directions that the features distinguish."""
        moments, d = np.asarray(self._moments), self._d
        *sums, total = moments[d, : d + 1]
        mean = np.array(sums) / total
        return rank_of(mean, moments[:d, :d] / total - np.outer(mean, mean), total)

    def iterate(self) -> Judgement:
        """Form all Hessians, take some steps with each, and judge the result."""
        with jax.enable_x64(True):
            self._at, *judged = _iterate(self._observation, self._rows, self._known, self._ridge, self._at)
        at, *judged = jax.device_get((self._at, *judged))  # the wait
        coef = at[: self._d, : self._n] / self._scale[:, None]
        params = Params(coef, at[self._d, : self._n] - self._mean @ coef)
        return Judgement(params, *(a[: self._n] for a in judged))

    def describe(self, params: Params) -> tuple[np.ndarray, np.ndarray]:
        """Return sums for the report of the fits at some parameters, and the ranges of the features.

        The sums are saturated losses, and those of `passes.pearson_terms` over some rows, (1 + N_TERMS, fit).
        """
        with jax.enable_x64(True):
            given = self._rows, self._known, self._standardised(params), self._distance
            sums, ranges = jax.device_get((_describe(self._observation, *given), self._ranges))
        return sums[:, : self._n], ranges.astype(np.float64)


@partial(jit, static_argnums=1)
def _padded(x, shape: tuple[int, int]):
    """Rows that are on the device, as whole blocks."""
    return jnp.pad(x, ((0, math.prod(shape) - len(x)), (0, 0))).reshape(*shape, -1)


@jit
def _standardise(pieces, weight, n_rows, mean, inverse):
    """Rows ``[(x - mean) / scale, 1]``, 0 where no fit has weight, padded with columns of zeros; weights; ranges of x.

    Rows and weights are in double precision; ranges are over all rows that are not padding.
    """
    x, counts = jnp.concatenate(pieces), jnp.any(weight > 0, axis=-1, keepdims=True)
    real = jnp.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], 1) < n_rows
    ends = jnp.where(real, x, -jnp.inf).max(axis=(0, 1)), jnp.where(real, x, jnp.inf).min(axis=(0, 1))
    z = jnp.where(counts, (x.astype(mean.dtype) - mean[None, None]) * inverse[None, None], 0)
    z = jnp.concatenate([z, counts.astype(z.dtype)], axis=-1)
    z = jnp.pad(z, ((0, 0), (0, 0), (0, -z.shape[-1] % ALIGNED)))
    return z, weight.astype(mean.dtype), ends[0] - ends[1]


@jit
def _moments(x):
    """Add up products of columns over the rows that count."""
    return jnp.einsum("btl,btm->lm", x, x)


@partial(jit, static_argnums=0)
def _iterate(observation, rows: Shards, known, ridge, at):
    """Return parameters after some steps with the Hessians at ``at``, and what a :class:`Judgement` needs."""
    weights, constant = rows.weights(), observation.constant or 1.0
    y = rows.y[..., rows.neuron].astype(at.dtype)

    def objective(eta, at):
        loss = jnp.where(weights > 0, observation.loss(y, eta) * weights, 0)
        return rows.mean(loss) + jnp.sum(ridge * at * at, axis=0) / 2

    def gradient(eta, at):
        r, c = rows.derivatives(observation, eta)
        return rows.gather(r)[: len(at)] + ridge * at, c

    def step(carry, _):
        eta, at, value, g, c, moved = carry
        p = -jnp.einsum("nlm,nl->mn", factor, jnp.einsum("nlm,mn->nl", factor, g))
        D = rows.predict(p)
        slope, bend = -jnp.sum(g * p, axis=0), rows.mean(D * D * c) + jnp.sum(ridge * p * p, axis=0)
        sure = descent_step(slope, bend, constant * rows.reach(D))
        whole = jnp.maximum(slope / bend, sure)
        share = jnp.linspace(0, 1, _LENGTHS)[:, None]
        lengths = whole[None] * (sure / whole)[None] ** share
        lengths = jnp.where(jnp.isfinite(lengths), lengths, 0)
        values = jax.lax.map(lambda t: objective(eta + t[None, None] * D, at + t[None] * p), lengths)
        values = jnp.where(jnp.isfinite(values), values, jnp.inf)
        best = jnp.argmin(values, axis=0)[None]
        length, low = (jnp.take_along_axis(a, best, axis=0)[0] for a in (lengths, values))
        better = low <= value + _ROUNDING * jnp.maximum(jnp.abs(value), 1)
        length = jnp.where(better, length, 0)
        eta = eta + length[None, None] * jnp.where(better[None, None], D, 0)
        at = at + length[None] * jnp.where(better[None], p, 0)
        after = jnp.where(better, low, value)
        return (eta, at, after, *gradient(eta, at), moved | (length > 0)), None

    start = rows.predict(at) if known is None else rows.predict(at) + known
    g, c = gradient(start, at)
    factor, resolved = _factors(rows, c, ridge)
    begun = start, at, objective(start, at), g, c, jnp.zeros(at.shape[1], bool)
    (eta, at, value, g, _, moved), _ = jax.lax.scan(step, begun, length=STEPS)
    decrement = jnp.sum(jnp.einsum("nlm,mn->nl", factor, g) ** 2, axis=1)
    inverse = jnp.sum(factor * factor, axis=1)  # its diagonal, (fit, column)
    radius_squared = jnp.max(jnp.sum(rows.x * rows.x, axis=-1)) * inverse.sum(axis=1)
    degrees = jnp.sum(inverse > 0, axis=1) - jnp.sum(inverse * ridge.T, axis=1)
    return at, value, decrement, rows.reach(eta - start), radius_squared, resolved, degrees, moved


@partial(jit, static_argnums=0)
def _describe(observation, rows: Shards, known, at, distance):
    """Saturated losses, and terms of Pearson's statistic summed over every ``distance``-th row."""
    eta = rows.predict(at) if known is None else rows.predict(at) + known
    y, weights = rows.y[..., rows.neuron].astype(at.dtype), jnp.broadcast_to(rows.weights(), eta.shape)
    saturated = rows.mean(jnp.where(weights > 0, observation.saturated_loss(y) * weights, 0))
    index = jnp.arange(math.prod(eta.shape[:2])).reshape(*eta.shape[:2], 1)
    some = jnp.where(index % distance == 0, weights, 0)
    terms = pearson_terms(observation, y, eta, some, jnp.ones(()), KURTOSIS, LEAST_VARIANCE * rows.share)
    return jnp.stack([saturated, *(term.sum(axis=(0, 1), dtype=at.dtype) for term in terms)])


def _factors(rows: Shards, c, ridge):
    """Return A with A'A the inverse of each fit's Hessian, (fit, column, column), and whether it shows all directions.

    Nothing depends on columns without a ridge that are 0 in all rows, such as padding: A is 0 there.
    """
    n_columns, n = ridge.shape
    seen, eye = jnp.any(rows.x != 0, axis=(0, 1)), jnp.eye(n_columns)[None]

    def some(of):
        h, ridge = of  # (fit, column, column), (fit, column)
        used = seen[None] | (ridge > 0)
        used = used[:, :, None] & used[:, None]
        h = h + eye * ridge[:, None]
        diagonal = jnp.diagonal(h, axis1=1, axis2=2)
        scale = jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1))
        h = jnp.where(used, h / (scale[:, :, None] * scale[:, None]), eye)
        lower = jnp.linalg.cholesky(h)
        inverse = jax.scipy.linalg.solve_triangular(lower, jnp.broadcast_to(eye, h.shape), lower=True)
        resolved = jnp.min(jnp.diagonal(lower, axis1=1, axis2=2), axis=1) > _RESOLVED
        return jnp.where(used, inverse / scale[:, None], 0), resolved

    size = next(k for k in range(n, 0, -1) if n % k == 0 and (_COPIES * 8 * k * n_columns**2 <= _ROOM or k == 1))
    h = _hessians(rows, c).reshape(-1, size, n_columns, n_columns)
    factor, resolved = jax.lax.map(some, (h, ridge.T.reshape(-1, size, n_columns)))
    return factor.reshape(n, n_columns, n_columns), resolved.reshape(n)


def _hessians(rows: Shards, c):
    """Means over the rows of curvature times products of columns, (fit, column, column)."""
    (n_columns, n), x = (rows.x.shape[-1], c.shape[-1]), rows.x
    together = next(k for k in _TOGETHER if k * x.nbytes <= _ROOM or k == 1)

    def some(c):  # (block, row, fit)
        return jnp.einsum("btl,btnm->nlm", x, c[..., None] * x[:, :, None])

    groups = jnp.moveaxis(c.reshape(*c.shape[:2], -1, together), 2, 0)
    return jax.lax.map(some, groups).reshape(n, n_columns, n_columns) * rows.share
