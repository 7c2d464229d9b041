"""L-BFGS in the spectral basis, by jaxopt: a deterministic yardstick for penalties a rotation leaves alone."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._checks import check_real, check_whole
from .._compile import jit
from ..bounds import check_batch_size
from ..problems.base import FiniteSum, Params
from ._check import check_rotation_invariant
from ._seed import seed_of
from .base import OptStep, Solver


class LbfgsState(NamedTuple):
    """Everything a resumed fit needs."""

    epoch: int
    row_evals: int
    seed: int
    inner: Any  # jaxopt's state
    metric: Any  # of the null model, whose centre is zero
    kappa: np.ndarray  # (neuron,) estimate of strong convexity in the metric
    objective: np.ndarray
    estimate: np.ndarray
    active: np.ndarray
    fresh: bool


@functools.cache
def _jaxopt_solver(history_size: int, sweep):
    """Jaxopt's L-BFGS over all neurons at once; jaxopt is unmaintained and warns on import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import jaxopt

    def value_and_grad(x, rows, metric, moving):
        v = metric.root(x)
        pass_ = sweep(rows, v)
        value = jnp.where(moving, pass_.loss + rows.penalty_value(v, None), 0)
        grad = jnp.where(moving, metric.root_transposed(pass_.gradient + rows.ridge * v), 0)
        return jnp.sum(value), grad

    return jaxopt.LBFGS(value_and_grad, value_and_grad=True, history_size=history_size, maxls=20, implicit_diff=False)


@functools.partial(jit, static_argnames=("history_size", "sweep"))
def _start(x, rows, metric, moving, history_size, sweep):
    return _jaxopt_solver(history_size, sweep).init_state(x, rows, metric, moving)


@functools.partial(jit, static_argnames=("history_size", "sweep"))
def _step(x, inner, rows, metric, moving, history_size, sweep):
    return _jaxopt_solver(history_size, sweep).update(x, inner, rows, metric, moving)


@dataclass(frozen=True)
class LBFGS(Solver):
    """Limited-memory BFGS (jaxopt) on all neurons together, in whitened and scaled coordinates.

    Parameters
    ----------
    history_size : int
        Pairs of vectors remembered.
    batch_size : int, optional
        Rows per block of a pass; no effect on the result but rounding.
    failure_probability : float
        Over the population, of the gap certificates.

    Notes
    -----
    An epoch is one iteration with its line search (one to a few passes). The line search is on the sum over
    neurons, so neurons are not independent of each other here. Smooth, rotation-invariant penalties only.
    """

    history_size: int = 10
    batch_size: int | None = None
    failure_probability: float = 1e-3

    def __post_init__(self):
        check_whole("history_size", self.history_size, 1)
        check_real("failure_probability", self.failure_probability, 1.0)
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size, 1)

    def init_state(self, problem: FiniteSum, params: Params, *, key) -> OptStep:
        """Scale the coordinates at the start and evaluate it."""
        check_rotation_invariant("LBFGS", problem.penalty)
        seed = seed_of(key)
        rows = self._rows(problem, seed)
        v = problem.to_columns(params)
        n = problem.n_neurons
        facts = problem.certify_smoothness(rows, v, np.full(n, 0.5), 8, 0.5, seed, 0)
        x = v / np.sqrt(facts.metric.scale)  # the null model's centre is zero
        inner = _start(x, rows, facts.metric, np.ones(n, bool), self.history_size, problem.sweep)
        state = LbfgsState(
            0, 10 * problem.n_rows, seed, inner, facts.metric, facts.kappa, np.zeros(n), np.zeros(n),
            np.ones(n, bool), False,
        )  # fmt: skip
        return OptStep(x, self._read(problem, x, state))

    def update(self, problem: FiniteSum, params, state: LbfgsState) -> OptStep:
        """One quasi-Newton iteration."""
        rows = self._rows(problem, state.seed)
        x, inner = _step(
            params, state.inner, rows, state.metric, state.active, self.history_size, problem.sweep
        )  # fmt: skip
        evals = state.row_evals + problem.n_rows * int(inner.num_linesearch_iter - state.inner.num_linesearch_iter + 1)
        state = state._replace(epoch=state.epoch + 1, row_evals=evals, inner=inner)
        return OptStep(x, self._read(problem, x, state))

    def user_params(self, problem: FiniteSum, params, state: LbfgsState) -> Params:
        """Coefficients and intercepts in float64."""
        return problem.from_columns(state.metric.root(np.asarray(params)))

    def certify_gap(self, problem: FiniteSum, params, state: LbfgsState, attempt: int = 1):
        """Ask for the population form of the gap certificate."""
        rows = self._rows(problem, state.seed)
        return problem.certify_gap(
            self.user_params(problem, params, state),
            rows=rows,
            metric=state.metric,
            failure_probability=self.failure_probability / (attempt * (attempt + 1)),
            seed=state.seed,
            number=2 * attempt + 1,
            thorough=attempt > 1,
        )

    def _rows(self, problem, seed):
        size = self.batch_size or problem.default_batch_size
        check_batch_size(size, problem.n_rows)
        return problem.rows(size, seed)

    def _read(self, problem, x, state: LbfgsState) -> LbfgsState:
        """Objective and gap estimate per neuron."""
        v = state.metric.root(np.asarray(x))
        rows = self._rows(problem, state.seed)
        pass_ = problem.sweep(rows, v)
        objective = problem.objective(v, None, pass_)
        estimate = problem.estimate_gap(v, None, pass_, state.metric, state.kappa)
        return state._replace(objective=objective, estimate=estimate, fresh=True)
