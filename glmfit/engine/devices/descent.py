"""Conjugate gradients on devices: some steps of all fits by one program, then one wait for the result."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...bounds import descent_step
from ...compilation import jit
from ..cg import OVERSHOT, SHORT, Descent, inner
from .shards import Shards

_STEPS = 10  # of a program, and so per wait
_STEPS_OF_OWN = 4  # the same if fits have their own metrics: enough to tell whether to renew them
_TRIALS = 2  # of the length of a step; a trial takes no product


class Metric(NamedTuple):
    """Inverse of the metric of every fit, as ``factor' scale factor`` in columns."""

    factor: np.ndarray  # (column, column) for all fits, or (fit, column, column)
    scale: np.ndarray | None  # (column, fit), 1 if None

    def solve(self, g) -> jax.Array:
        """Apply it to gradients, (column, fit)."""
        if self.scale is not None:
            return self.factor.T @ (self.scale * (self.factor @ g))
        return jnp.einsum("nlm,nl->mn", self.factor, jnp.einsum("nlm,mn->nl", self.factor, g))


class Point(NamedTuple):
    """State of fits, in columns (column, fit), from which steps continue."""

    params: jax.Array
    moved: jax.Array  # parameters minus those at the start, which single precision would round away
    gradient: jax.Array
    towards: jax.Array  # gradient in the inverse metric
    kept: jax.Array  # what the next direction takes from the last
    squared_norm: jax.Array  # of the gradient, (fit,)
    slope_kept: jax.Array  # gradient along what is kept, (fit,)
    moving: jax.Array  # bool (fit,)
    taken: jax.Array  # steps, (fit,)
    gained: jax.Array  # (fit,)


class DeviceDescent(Descent):
    """State of a group of fits on :class:`DeviceRows`: between calls, everything except eta is on the host."""

    _metric: Metric | None = None  # as laid out for the devices

    def advance(self, moving: np.ndarray, goal: np.ndarray, most_steps: int) -> None:
        """Take some steps of the moving fits, each until its estimate is below its goal."""
        rows, nothing, first = self.rows, np.zeros(len(moving)), self.direction(self.gradient)
        kept = self.towards - first
        left = np.where(moving, most_steps - self.n_steps, 0)
        point = Point(
            params=rows.stack(self.at),
            moved=rows.stack(np.zeros_like(self.at)),
            gradient=rows.stack(self.gradient),
            towards=rows.stack(self.towards),
            kept=rows.stack(kept),
            squared_norm=rows.spread(self.squared_norm),
            slope_kept=rows.spread(inner(self.gradient, kept)),
            moving=rows.spread(moving & (left > 0), dtype=bool),
            taken=rows.spread(nothing, dtype=np.int32),
            gained=rows.spread(nothing),
        )
        left, goal, ridge = rows.spread(left, dtype=np.int32), rows.spread(goal), rows.stack(self.ridge)
        if self._metric is None:
            self._metric = self._lay_out()
        given = rows.shards, self._metric, ridge, goal, left
        rows.eta_there, *found = _advance(rows.observation, *given, rows.eta_there, point)
        point, trace = jax.device_get(found)  # the wait
        self._arrive(point)
        steps = max(1, int(point.taken.max()))
        rows.passes += steps
        self.trace += [*np.asarray(trace, np.float64)[: steps - 1, rows.columns], self.estimate]

    def _arrive(self, point: Point) -> None:
        """Take over the state of the devices."""
        rows, moved = self.rows, self.rows.unstack(point.moved)
        before = self.at, self.gradient
        taken, gained = point.taken[rows.columns], point.gained[rows.columns].astype(np.float64)
        self.at = self.at + moved
        self.n_steps, self.gained = self.n_steps + taken, self.gained + gained
        self.seen = None
        self.gradient = np.where(taken == 0, self.gradient, rows.unstack(point.gradient))
        self.judge()
        self.remember(*before)

    def _lay_out(self) -> Metric:
        """Lay out the metrics: one factor for all fits, or one for each if some have their own."""
        rows, shared = self.rows, self.shared
        size, d = rows.n_columns, len(self.coef)
        factor = np.zeros((size, size), rows.dtype)
        factor[:d, :d], factor[d, d] = shared.basis.whiten.T, 1
        scale = rows.stack(np.vstack([shared.scale, 1 / shared.curvature]))
        if all(own is None for own in self.own):
            return Metric(rows.layout.everywhere(factor), rows.layout.everywhere(scale))
        factors = np.sqrt(scale.T)[:, :, None] * factor
        for k, own in zip(rows.columns, self.own, strict=True):
            if own is not None:
                factors[k, : d + 1, : d + 1] = own.factor()
        return Metric(rows.layout.everywhere(factors), None)

    def renew_metrics(self, fits, scale, kin=None) -> None:
        """Give some fits metrics of their own; see :meth:`Descent.renew_metrics`."""
        self._metric = None
        super().renew_metrics(fits, scale, kin)


@partial(jit, static_argnums=0, donate_argnums=6)
def _advance(observation, rows: Shards, metric: Metric, ridge, goal, left, eta, point: Point):
    """Take some steps; return eta and point at their end, and the estimates after each, (step, fit)."""

    def step(carry, _):
        eta, at = carry
        moving = at.moving
        slope = at.slope_kept - at.squared_norm
        downhill = slope < 0
        p = jnp.where(moving[None], jnp.where(downhill[None], at.kept, 0) - at.towards, 0)
        slope = jnp.where(downhill, slope, -at.squared_norm)
        D, c = rows.predict(p), rows.derivatives(observation, eta)[1]
        rise, start = jnp.sum(ridge * p * p, axis=0), jnp.sum(ridge * at.params * p, axis=0)
        bend = rows.mean(D * D * c) + rise

        def slope_at(length):
            r = rows.derivatives(observation, eta + length[None, None] * D)[0]
            return rows.mean(r * D) + start + length * rise

        constant = observation.constant
        reach = jnp.full_like(slope, 1e12) if constant is None else constant * jnp.abs(D).max(axis=(0, 1))
        length = _length(slope_at, slope, bend, descent_step(-slope, bend, reach))
        length = jnp.where(moving & (slope < 0), length, 0)
        eta, change = eta + length[None, None] * D, length[None] * p
        params = at.params + change
        g = rows.gather(rows.derivatives(observation, eta)[0]) + ridge * params
        g = jnp.where(moving[None], g, at.gradient)
        g, turn = jax.lax.optimization_barrier((g, g - at.gradient))
        z = metric.solve(g)
        norm, end = jnp.sum(g * z, axis=0), jnp.sum(g * p, axis=0)
        beta = jnp.maximum(jnp.sum(turn * z, axis=0) / at.squared_norm, 0)
        beta = jnp.where(jnp.isfinite(beta), beta, 0)
        taken = at.taken + moving
        gain = -length * (slope + end) / 2
        after = Point(
            params=params,
            moved=at.moved + change,
            gradient=g,
            towards=z,
            kept=jnp.where(moving[None], beta[None] * p, at.kept),
            squared_norm=jnp.where(moving, norm, at.squared_norm),
            slope_kept=beta * end,
            moving=moving & (norm > 2 * goal) & (taken < left),
            taken=taken,
            gained=at.gained + jnp.where((length > 0) & jnp.isfinite(gain), gain, 0),
        )
        return (eta, after), after.squared_norm / 2

    (eta, point), trace = jax.lax.scan(step, (eta, point), length=_STEPS if metric.scale is not None else _STEPS_OF_OWN)
    return eta, point, trace


def _length(slope_at, slope, bend, sure) -> jax.Array:
    """Length of a Newton step along a line, corrected by slopes, and at least one proved to descend."""
    length = -slope / bend
    length = jnp.where(jnp.isfinite(length), length, sure)
    low, high = jnp.zeros_like(slope), jnp.full_like(slope, jnp.inf)
    for _ in range(_TRIALS):
        at, end = length, slope_at(length)
        over = ~(end <= -OVERSHOT * slope)  # or not a number
        short = (end < SHORT * slope) & jnp.isinf(high)
        low, high = jnp.where(over, low, at), jnp.where(over, at, high)
        secant = at * slope / (slope - end)
        secant = jnp.where(jnp.isfinite(secant) & (secant > 0), secant, jnp.where(over, 0, jnp.inf))
        back = jnp.maximum(jnp.clip(secant, 0.1 * at, 0.9 * at), jnp.maximum(jnp.minimum(sure, at), low))
        length = jnp.where(over, back, jnp.where(short, jnp.clip(secant, 2 * at, 10 * at), at))
    return jnp.where(over, jnp.maximum(jnp.minimum(sure, at), low), at)
