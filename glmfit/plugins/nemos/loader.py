"""Fits of rows that a data loader yields in batches, without numbers and in any order: NeMoS's ``stochastic_fit``.

A pass is one step on all rows, not one per batch: a step of Newton's method if the model is known, with proved gaps.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ...compilation import full_precision, jit
from ...engine import ConjugateGradients, ProximalNewton
from ...engine.exact.batches import BatchNewton, Survey, start_of_sample
from ...engine.problem import Params
from ...engine.result import LoopOptions
from .proximal import pieces_of
from .results import FitState, Outcome, merge, unproved_state
from .smooth import SmoothPart
from .terms import in_units
from .view import Part, View, matrices_of, views

_NEGLIGIBLE = 1e-4  # nats over the whole recording that no fit need gain
_UNKNOWN = 10**6  # rows of a loader that does not know their number
_FEW_ROWS = 8
_SHORTER, _SHORTEST = 0.25, 1e-12  # factor of a step that led uphill; the smallest step


class Stop(Exception):
    """A callback asks to stop."""


class Passes:
    """Passes over a loader, which report their progress to callbacks of NeMoS."""

    def __init__(self, loader: Any, most: int, callback: Any, ctx: Any):
        self.loader, self.left, self.callback = loader, most, callback
        self.ctx = SimpleNamespace(should_stop=False) if ctx is None else ctx
        self.epoch = -1

    def tell(self, event: str) -> None:
        """Call a hook of the callback, and stop if it requests that."""
        hook = getattr(self.callback, f"on_{event}", None)
        if hook is not None:
            hook(self.ctx)
        if event in ("batch_end", "epoch_end") and getattr(self.ctx, "should_stop", False):
            raise Stop

    def at(self, params: Any, state: Any) -> None:
        """Give the callback the parameters and the state of the fit."""
        self.ctx.params, self.ctx.state = params, state

    def run(self, take: Callable, end: Callable[[], None]) -> None:
        """Hand all batches of a pass to a function, then end it."""
        self.left -= 1
        self.epoch += 1
        self.ctx.epoch_idx = self.epoch
        self.tell("epoch_begin")
        for k, batch in enumerate(self.loader):
            self.ctx.batch_idx = k
            self.tell("batch_begin")
            take(*batch)
            self.tell("batch_end")
        end()
        self.tell("epoch_end")


def run_passes(solver: Any, init_params: Any, loader: Any, n_passes: int, callback: Any = None, ctx: Any = None):
    """Fit by at most ``n_passes`` passes over a loader; return parameters, state and no auxiliary value."""
    if n_passes < 1:
        raise ValueError(f"the number of passes is {n_passes}; it must be at least 1.")
    passes = Passes(loader, min(n_passes, solver.maxiter or n_passes), callback, ctx)
    sample, view = _some_rows(loader), None
    if not solver.has_aux:
        seen = next(views(solver, init_params, sample), None)
        if seen is not None and seen.certified and not isinstance(seen.parts()[0].penalty, SmoothPart):
            view = seen
    fit = GradientPasses(solver, init_params) if view is None else KnownPasses(solver, init_params, view, loader)
    passes.at(init_params, fit.state())
    passes.tell("train_begin")
    try:
        while passes.left and not fit.is_done:
            passes.run(fit.take, lambda: passes.at(*fit.end()))
        if passes.left and hasattr(passes.ctx, "request_stop"):
            passes.ctx.request_stop("glmfit: every fit has ended.")
    except Stop:
        pass
    passes.at(fit.params(), fit.state())
    passes.tell("train_end")
    return fit.params(), fit.state(), None


class KnownPasses:
    """Newton steps of a model in matrix form, after a pass that surveys the data."""

    def __init__(self, solver: Any, init_params: Any, view: View, loader: Any):
        self.solver, self.view, self.init_params = solver, view, init_params
        self.start, self.fits = view.columns(init_params), []
        observation = view.loss.observation
        self.parts = view.parts()
        n_rows = getattr(loader, "n_samples", None) or _UNKNOWN
        self.surveys = [Survey(observation, int(n_rows), 0) for _ in self.parts]
        self.extra, self.spikes = 0.0, 0.0

    @property
    def is_done(self) -> bool:
        """Whether no fit takes any more steps."""
        return bool(self.fits) and not any(fit.is_open.any() for fit in self.fits)

    def take(self, X: Any, y: Any) -> None:
        """Take a batch."""
        if not len(y):
            return
        x, Y = matrices_of(self.init_params, (X, y))
        wrong, needed = self.view.loss.observation.wrong(Y)
        if np.any(wrong) or not np.isfinite(x).all():
            bad, what = (Y[wrong][0], needed) if np.any(wrong) else (x[~np.isfinite(x)][0], "finite features")
            raise ValueError(f"a batch of the loader has {bad}; the model needs {what}.")
        if not self.fits:
            self.extra = self.extra + np.sum(self.view.loss.extra(Y.astype(np.float64)), axis=0)
            self.spikes = self.spikes + Y.sum(axis=0, dtype=np.float64)
        for part, fit in zip(self.parts, self.fits or self.surveys, strict=True):
            features = x[:, part.features] if len(part.features) else np.zeros((len(x), 1), x.dtype)
            fit.add(features, np.ascontiguousarray(Y[:, part.columns]))

    def end(self) -> tuple[Any, FitState]:
        """Take the step of a pass; return parameters and state."""
        if self.fits:
            for fit in self.fits:
                fit.end()
        else:
            self.fits = [self._begin(*each) for each in zip(self.parts, self.surveys, strict=True)]
        return self.params(), self.state()

    def _begin(self, part: Part, survey: Survey) -> BatchNewton:
        tol, dtype = self.solver.tol**2, self.view.dtype
        options = LoopOptions(max(tol, 1e-9 if dtype == np.float32 else 1e-16), 200, _NEGLIGIBLE)
        problem = survey.problem(in_units(part.penalty, self.view.loss.factor))
        given = Params(self.start.coef[np.ix_(part.features, part.columns)], self.start.intercept[part.columns])
        if not np.any(given.coef):
            method = ConjugateGradients() if part.penalty.smooth else ProximalNewton()
            given = start_of_sample(problem, method, options)
        return BatchNewton(problem, options, given, dtype, survey.fingerprint)

    def params(self) -> Any:
        """Parameters as NeMoS keeps them."""
        if not self.fits:
            return self.init_params
        coef, intercept = np.zeros_like(self.start.coef), self.start.intercept.copy()
        for part, fit in zip(self.parts, self.fits, strict=True):
            found = fit.solution().params
            coef[np.ix_(part.features, part.columns)] = found.coef[: len(part.features)]
            intercept[part.columns] = found.intercept
        return self.view.tree(Params(coef, intercept), self.init_params)

    def state(self) -> FitState:
        """Outcome so far."""
        if not self.fits:
            return unproved_state(*map(np.asarray, (np.nan, 0, 0.0)), solver="Newton", route="certified")
        outcomes = [self._outcome(*each) for each in zip(self.parts, self.fits, strict=True)]
        n_rows = self.fits[0].problem.n_rows
        state = merge(outcomes, self.view, "certified", n_rows, self.spikes)
        return eqx.tree_at(lambda s: s.num_steps, state, np.asarray(1 + max(fit.n_passes for fit in self.fits)))

    def _outcome(self, part: Part, fit: BatchNewton) -> tuple[np.ndarray, Outcome]:
        factor, found, problem = self.view.loss.factor, fit.solution(), fit.problem
        penalty = np.asarray(problem.penalty.value(found.params.coef), np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            lost = problem.null_objective - problem.saturated_loss
            explained = 1 - (found.objective - penalty - problem.saturated_loss) / lost
        constant = self.extra[part.columns] / problem.n_rows
        scaled = {name: factor * getattr(found, name) for name in ("gap", "target")}
        scaled |= {name: factor * getattr(found, name) + constant for name in ("objective", "null_objective")}
        found = replace(found, **scaled)
        return part.columns, Outcome(found, explained, float(np.sum(found.objective)), 1.0)


class GradientPasses:
    """Proximal gradient steps of a loss of unknown form, with step sizes of Barzilai and Borwein (1988).

    A step is accepted if the objective is not higher after it; otherwise the next pass tries a quarter of it.
    """

    def __init__(self, solver: Any, init_params: Any):
        self.solver, self._x = solver, None
        self._flat, self._unravel = ravel_pytree(init_params)
        loss, self._prox, self._penalty = pieces_of(solver, init_params)
        self._look = full_precision(jit(jax.value_and_grad(lambda flat, *batch: loss(self._unravel(flat), *batch))))
        self._step, self.objective, self.is_done, self.n_passes = solver.stepsize or 1.0, np.inf, False, 0
        self._trial = np.asarray(self._flat, np.float64)
        self._sums = [0.0, 0.0, 0]

    def take(self, *batch: Any) -> None:
        """Add up loss and gradient of a batch, which are means over its rows."""
        n = len(jax.tree.leaves(batch)[-1])
        if not n:
            return
        value, slope = self._look(jnp.asarray(self._trial, self._flat.dtype), *batch)
        loss, gradient, rows = self._sums
        self._sums = [loss + n * float(value), gradient + n * np.asarray(slope, np.float64), rows + n]

    def end(self) -> tuple[Any, FitState]:
        """Take the step of a pass; return parameters and state."""
        loss, gradient, rows = self._sums
        if not rows:
            raise ValueError("a pass over the loader gave no rows; the loader must give all rows at every iteration.")
        self._sums, self.n_passes = [0.0, 0.0, 0], self.n_passes + 1
        loss, gradient = loss / rows, gradient / rows
        objective = loss + float(self._penalty(self._tree(self._trial)))
        eps = float(jnp.finfo(self._flat.dtype).eps)
        if objective <= self.objective + eps * abs(objective):
            if self._x is not None:
                move, turn = self._trial - self._x, gradient - self._gradient
                curvature = float(move @ turn)
                self._step = float(move @ move) / curvature if curvature > 0 else 2 * self._step
            self._x, self._gradient, self.objective = self._trial, gradient, objective
        else:
            self._step *= _SHORTER
        limit = self.solver.stepsize or np.inf
        self._step = min(self._step, limit)
        if self._x is None or self._step < _SHORTEST:  # not a number from the beginning, or no way down
            self.is_done, self._x = True, self._trial if self._x is None else self._x
            return self.params(), self.state()
        after = self._prox(self._tree(self._x - self._step * self._gradient), self._step)
        self._trial = np.asarray(ravel_pytree(after)[0], np.float64)
        mapping = np.linalg.norm(self._trial - self._x) / self._step
        self.is_done = bool(mapping <= self.solver.tol * (1 + np.linalg.norm(self._x)))
        return self.params(), self.state()

    def _tree(self, flat: np.ndarray) -> Any:
        return self._unravel(jnp.asarray(flat, self._flat.dtype))

    def params(self) -> Any:
        """Parameters as NeMoS keeps them."""
        return self._tree(self._flat if self._x is None else self._x)

    def state(self) -> FitState:
        """Outcome so far: a small gradient proves nothing."""
        numbers = map(np.asarray, (self.objective, self.n_passes, self._step))
        return unproved_state(*numbers, out=not self.is_done)


def _some_rows(loader: Any) -> tuple:
    """Return rows that identify the model: the sample of the loader, and more if that has few."""
    sample = tuple(loader.sample_batch())
    if len(jax.tree.leaves(sample)[-1]) >= _FEW_ROWS:
        return sample
    batches = [batch for batch, _ in zip(loader, range(_FEW_ROWS), strict=False) if len(jax.tree.leaves(batch)[-1])]
    return jax.tree.map(
        lambda *parts: jnp.concatenate([jnp.asarray(part) for part in parts]), sample, *map(tuple, batches)
    )
