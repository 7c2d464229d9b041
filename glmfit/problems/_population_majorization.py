"""Bound majorization of a population GLM: one quadratic per neuron that lies above its objective wherever it stands.

In whitened coordinates the loss's Hessian is nowhere above the mean of ``k_t z_t z_t'``, k_t the largest curvature row
t can have, and so nowhere above a number per neuron. The ridge is diagonal there: the spectral basis, one factorisation
of X'X, minimises the quadratics of all neurons. Theory: docs/theory/bound_majorization.md.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._compile import compiled, jit
from ..bounds import GapCertificate, StepCertificate, bound_largest_eigenvalue, lanczos
from ._rows import Rows, sweep
from .base import Majorizable, Params

_THEOREM = (
    "Bohning and Lindsay (1988), one fixed quadratic above the objective: Hessian of the loss at most "
    "L = lambda_max(mean of (1/4 + c* y) zz') in whitened coordinates (certified Lanczos), ridge exact; "
    "no step below 2/L goes up"
)
_FAILURE_PROBABILITY = 1e-3  # of the quadratics, and again of the gap certificates
# Within 0.2 % of the eigenvalue on a history design; the largest curvature of any row is up to 3.5 times as much.
_LANCZOS_STEPS = 12


class Quadratic(NamedTuple):
    """The curvature of all neurons' quadratics, the same at every point."""

    loss: np.ndarray  # (neuron,) of the loss, along every column
    ridge: np.ndarray  # (column, neuron)
    row: np.ndarray  # (neuron,) of the loss of the worst single row
    seed: int  # of the order of the rows, and of random starts

    @property
    def curvature(self) -> np.ndarray:
        """Of loss and ridge, (column, neuron)."""
        return self.loss + self.ridge


class PopulationPoint(NamedTuple):
    """What is known at a point."""

    v: np.ndarray  # (column, neuron)
    objective: np.ndarray  # (neuron,)
    gradient: np.ndarray  # (column, neuron) float64, ridge included
    quadratic: Quadratic


class MajorizedPopulation(NamedTuple):
    """Where a step led; (neuron,) each.

    Attributes
    ----------
    point : PopulationPoint
        Not higher than before.
    decrease : numpy.ndarray
        Of F, which the quadratic promised before the step.
    estimate : numpy.ndarray
        Of F, which it promises at the point.
    stuck : numpy.ndarray
        Whether nothing but rounding is left to be gained.
    passes : int
        Over the rows.
    """

    point: PopulationPoint
    decrease: np.ndarray
    estimate: np.ndarray
    stuck: np.ndarray
    passes: int


@partial(jit, static_argnames="n_steps")
def largest_curvature(rows: Rows, start, n_steps: int):
    """Run Lanczos on the mean of zz' times the largest curvature of each row; and find the worst row's own.

    Returns alpha and beta (step, neuron), and the largest ``w_t k_t z_t'z_t`` (neuron,).
    """
    data = rows.Z, rows.Y, rows.weight

    def bound(y, w):
        return w * rows.observation.curvature_bound(y)

    def worst(row, data):
        z, y, w = data
        return jnp.maximum(row, jnp.max(bound(y, w) * jnp.sum(z**2, axis=1, keepdims=True), axis=0)), None

    def matvec(x):
        def block(total, data):
            z, y, w = data
            return total + rows.pull(z, bound(y, w) * rows.eta(z, x)), None

        return rows.extent.scan(block, jnp.zeros_like(x), data)[0] / rows.n_rows

    row = rows.extent.scan(worst, jnp.zeros_like(rows.ridge[0]), data)[0]
    return *lanczos(matvec, jnp.broadcast_to(start, rows.ridge.shape), n_steps), row


@jit
def loss_and_gradient(rows: Rows, v):
    """Mean loss (neuron,) and its gradient (column, neuron): a sweep, of which nothing else is computed."""
    pass_ = sweep(rows, v)
    return pass_.loss, pass_.gradient


def check_majorizable(observation, order, max_products) -> None:
    """Raise ValueError where there is no such quadratic, or no use for what was given."""
    if np.isinf(observation.curvature_bound(1.0)):
        raise ValueError(
            f"BoundMajorization needs a bound of the curvature, and with the {observation.name} link there is none. "
            'Use solver_name="SAGA" or "Newton".'
        )
    if order is not None or max_products is not None:
        raise ValueError(
            "order and max_products of BoundMajorization are for softmax models; leave them out: the quadratic of a "
            "population has no order, and is minimised exactly."
        )


class GlobalQuadratic(Majorizable):
    """The part of a population problem that steps to the minimum of a fixed quadratic, all neurons at once."""

    def start_majorization(self, params: Params, *, seed, order=None, max_products=None) -> MajorizedPopulation:
        """Find the quadratics, and evaluate a start."""
        check_majorizable(self.observation, order, max_products)
        if not self.in_memory:
            raise ValueError(
                "BoundMajorization needs its rows in memory, and these are read as they are fitted. Use "
                'solver_name="SAGA".'
            )
        quadratic = self._quadratic(seed)
        point = self._pass_at(self.to_columns(params), quadratic)
        no_promise, stuck = np.full(self.n_neurons, np.nan), np.zeros(self.n_neurons, bool)
        return MajorizedPopulation(point, no_promise, _promise(point), stuck, _LANCZOS_STEPS + 1)

    def majorize(self, point, active, relaxation, order=None, max_products=None) -> MajorizedPopulation:
        """Go ``relaxation`` times the way to the quadratics' minimum; a neuron that would not get lower stays.

        Between two points whose gradients are known F falls by at least ``g_new'(v - v_new)`` plus half the squared
        norm, in the inverse curvature, of the change of gradient. That tells a step that lowers F from rounding long
        after the losses themselves, sums over all rows, have ceased to. Nor do promises rise, but for rounding.
        """
        quadratic = point.quadratic
        step = np.where(active, -relaxation * point.gradient / quadratic.curvature, 0.0)
        after = self._pass_at((point.v + step).astype(self.dtype), quadratic)
        back = np.subtract(point.v, after.v, dtype=np.float64)  # the step as it was rounded
        change = point.gradient - after.gradient
        fall = np.sum(after.gradient * back, axis=0) + np.sum(change**2 / quadratic.curvature, axis=0) / 2
        after = after._replace(objective=np.minimum(after.objective, point.objective - fall))
        kept = [np.where(fall > 0, new, old) for new, old in zip(after[:3], point[:3], strict=True)]
        reached = PopulationPoint(*kept, quadratic)
        promised, promise = _promise(point), _promise(reached)
        return MajorizedPopulation(reached, promised, promise, ~(promise < promised), 1)

    def user_params(self, v) -> Params:
        """Parameters of the solver's coordinates."""
        return self.from_columns(v)

    def certify_majorized(self, point, attempt: int) -> GapCertificate:
        """Bound the gap at a point."""
        rows = self._majorized_rows(point.quadratic.seed)
        return self.certify_gap(
            self.from_columns(point.v),
            rows=rows,
            metric=self.metric_at(rows, self.sweep(rows, point.v)),
            failure_probability=_FAILURE_PROBABILITY / (attempt * (attempt + 1)),
            seed=point.quadratic.seed,
            number=2 * attempt + 1,
            thorough=attempt > 1,
        )

    def certify_majorization(self, point, relaxation: float) -> StepCertificate:
        """Say by which theorem no step goes up; in the metric of the quadratic, whose curvature there is L."""
        L, ridge, row, _ = point.quadratic
        return StepCertificate(
            step=relaxation / L,
            L=L,
            L_max=row + np.max(ridge / (1 + ridge / L), axis=0),
            L_b=L,
            mu=np.zeros_like(L),
            batch_size=self.n_rows,
            n_rows=self.n_rows,
            theorem=_THEOREM,
            assumptions=("step below 2/L",),
            failure_probability=_FAILURE_PROBABILITY,
            anchor_radius=np.full_like(L, np.inf),
        )

    def _quadratic(self, seed: int) -> Quadratic:
        rows = self._majorized_rows(seed)
        alpha, beta, row = compiled(largest_curvature)(rows, self.random_column(seed, 0), n_steps=_LANCZOS_STEPS)
        share = _FAILURE_PROBABILITY / self.n_neurons
        loss = bound_largest_eigenvalue(np.asarray(alpha), np.asarray(beta), self._dimension, share)
        row = np.maximum(np.asarray(row, np.float64) * (1 + 1e-5), loss)
        return Quadratic(loss, np.asarray(rows.ridge, np.float64), row, seed)

    def _majorized_rows(self, seed: int) -> Rows:
        return self.rows(self.default_batch_size, seed)

    def _pass_at(self, v, quadratic: Quadratic) -> PopulationPoint:
        """Take a pass at v."""
        pass_ = compiled(loss_and_gradient)(self._majorized_rows(quadratic.seed), v)
        loss, gradient = (np.asarray(a, np.float64) for a in pass_)
        pull = quadratic.ridge * v
        return PopulationPoint(v, loss + np.sum(pull * v, axis=0) / 2, gradient + pull, quadratic)


def _promise(point: PopulationPoint) -> np.ndarray:
    """How much lower the quadratic's minimum is, (neuron,)."""
    return np.sum(point.gradient**2 / point.quadratic.curvature, axis=0) / 2
