"""Fits of models in matrix form: in parts, each by the solver that can prove most about it."""

from dataclasses import replace
from typing import Any

import numpy as np

from ...compilation import full_precision, jit
from ...data.standard_form import StandardForm
from ...engine import ConjugateGradients, LeastSquares, Newton, ProximalNewton
from ...engine.population import PopulationProblem
from ...engine.problem import Params
from ...engine.result import LoopOptions
from ...estimators import choose_solver
from ...saga import SAGA
from ...saga.joint import JointProblem, curved, fit_joint
from ...saga.spectral_rows import block_spectra, saga_epoch, sweep
from ...status import Status, as_statuses
from ...stochastic import Pairs, SoftmaxProblem
from .results import FitState, Outcome, merge, of_certified, of_table
from .smooth import SmoothPart
from .smooth_fit import fit_part
from .terms import in_units
from .view import AGREE, Part, View

PROXIMAL_STEPS = 10_000
_ON_HOST = {kind.__name__: kind for kind in (ConjugateGradients, LeastSquares, ProximalNewton, Newton)}
_EPOCHS, _CLASS_EPOCHS, _JOINT_EPOCHS = 200, 500, 1000
_OFF = 1e-2  # share of the improvement by which two evaluations of a known model may differ
_NEGLIGIBLE = 1e-4  # nats over the whole recording that no fit need gain
_TIGHT, _SMALL_WORK = 1e-14, 4e7  # relative gap that bounds hardly show, and a fit that Newton's method makes at once


class Fitting:
    """Fit of a view of a model with the options of the plugin's solver."""

    def __init__(self, solver: Any, view: View):
        self.solver, self.view = solver, view
        self.is_free = solver.stepsize is None and solver.batch_size is None  # no options of steps
        # Whether bounds are known for the model, and the options allow the solver that gives them.
        self.proves = view.certified or bool(view.n_classes and self.is_free)
        self.tol = max(solver.tol**2, 1e-9 if view.dtype == np.float32 else 1e-16)  # relative gap

    def run(self, init_params, args) -> tuple[Any, FitState]:
        """Fit from parameters as NeMoS keeps them."""
        view = self.view
        start = view.columns(init_params)
        found, state, _ = self._fit(start)
        params = view.tree(view.same_shift(found, start), init_params)
        budget = PROXIMAL_STEPS if self.solver.maxiter is None else self.solver.maxiter - int(state.num_steps)
        close = np.all(state.report.status == Status.UNPROVED)
        if self.proves or close or not np.isfinite(state.function_val) or budget < 1:
            return params, state
        return self._polish(params, state, args, start, budget)

    @full_precision
    def confirms(self, init_params, params, state: FitState, args) -> bool:
        """Return whether NeMoS's own objective at the solution equals ours: the model was identified correctly."""
        solver, view = self.solver, self.view
        penalised = solver.regularizer.penalized_loss(
            solver.unregularized_loss, params=params, strength=solver.regularizer_strength
        )
        given, ours = float(penalised(params, *args)), float(state.function_val)
        size = abs(given) + (float(np.abs(view.Y).mean()) if view.certified else 0.0)
        allowed = AGREE[view.dtype.itemsize] * size
        if abs(given - ours) <= allowed or not (np.isfinite(given) or np.isfinite(ours)):
            return True
        # If coefficients diverged, NeMoS's sums in its precision are off by a part of the improvement.
        return self.proves and abs(given - ours) <= allowed + _OFF * (float(penalised(init_params, *args)) - ours)

    def _fit(self, start: Params, first: Params | None = None):
        """Fit every part from the start; given the ``first`` start, only evaluate the distance from the optimum.

        Returns parameters, state, and the smallest target gap of a part.
        """
        coef, intercept = np.zeros_like(start.coef), start.intercept.copy()
        outcomes = []
        for part in self.view.parts():
            outcome = self._fit_part(part, start, first)
            found, at = outcome.solution.params, part.columns
            coef[np.ix_(part.features, at)], intercept[at] = found.coef[: len(part.features)], found.intercept
            outcomes.append((at, outcome))
        state = merge(outcomes, self.view, "certified" if self.proves else "table")
        return Params(coef, intercept), state, min(float(np.min(o.solution.target)) for _, o in outcomes)

    def _polish(self, params, state: FitState, args, first: Params, budget: int):
        """Continue with proximal steps if sparse penalties and coupled classes slow SAGA down; evaluate again."""
        proximal = self.solver.proximal(params, args, min(self.solver.tol**2, 1e-9), budget)
        params = proximal.params
        at = self.view.columns(params)
        _, looked, target = self._fit(at, first)
        # The second-order estimate is far too large if a kink of the penalty, not curvature, holds the classes;
        # convexity gives another: the gradient mapping times the remaining distance, here the distance so far.
        way = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(at, first, strict=True)))
        gap, by_convexity = looked.report.gap, float(proximal.mapping) * way
        if by_convexity < gap.sum():
            shares = gap / gap.sum() if np.isfinite(gap.sum()) else np.full_like(gap, 1 / len(gap))
            gap = shares * by_convexity
        close = bool(gap.sum() <= target)
        out = not close and int(proximal.n_steps) >= budget
        status = Status.UNPROVED if close else Status.MAX_EPOCHS if out else Status.PRECISION_FLOOR
        solver = f"{state.solver}+proximal gradient"
        report = replace(
            looked.report, solver_name=solver, epochs=state.report.epochs, gap=gap,
            status=as_statuses([status] * len(gap)),
        )  # fmt: skip
        return params, replace(
            looked, num_steps=state.num_steps + np.asarray(proximal.n_steps), reached_max_steps=np.asarray(out),
            step=state.step, solver=solver, report=report,
        )  # fmt: skip

    def _fit_part(self, part: Part, start: Params, first: Params | None) -> Outcome:
        solver, view, columns = self.solver, self.view, part.columns
        features = part.features if len(part.features) else np.zeros(1, int)
        start = Params(start.coef[np.ix_(features, columns)], start.intercept[columns])
        X, Y = _columns(view.X, features), np.ascontiguousarray(_columns(view.Y, columns))
        if not len(part.features):  # the intercept alone
            X, start = np.zeros_like(X), start._replace(coef=np.zeros_like(start.coef))
        batch_size = solver.batch_size and min(solver.batch_size, len(X))
        if self.proves:
            return self._fit_proved(part, X, Y, start, batch_size)
        kernels = _own_kernels() if view.disposable else None
        problem = JointProblem(X, Y, view.loss.select(len(columns)), part.penalty, len(columns), view.dtype, kernels)
        if first is None:
            reference, budget = None, solver.maxiter or _JOINT_EPOCHS
        else:
            reference, budget = Params(first.coef[:, columns], first.intercept[columns]), 0
        found = fit_joint(
            problem, start, key=solver.key, tol=self.tol, max_epochs=budget, reference=reference,
            batch_size=batch_size, step_limit=solver.stepsize or np.inf,
        )  # fmt: skip
        return of_table(found, view.n_together)

    def _run_in_form(self, problem, form: StandardForm, penalty, start: Params, method) -> Outcome:
        """Fit a population in standard form, and evaluate the outcome as NeMoS sees it."""
        seen = _AsGiven(problem, form, penalty)
        warm = _better_of(start, seen, seen.null_objective, form.params(problem.null_params()))
        warm = warm and Params(warm.coef, warm.intercept - form.shift)
        options = form.options(LoopOptions(self.tol, self.solver.maxiter or _EPOCHS, _NEGLIGIBLE))
        if form.is_plain and self.view.dtype != np.float64:  # else intercepts are rounded where they were not looked at
            options = replace(options, handed_over=self.view.dtype)
        found = form.solution(method.run(problem, warm, key=self.solver.key, options=options))
        return of_certified(seen, start, found, self.view.dtype)

    def _method(self, problem: PopulationProblem, batch_size: int | None):
        """Choose the solver of the engine: the named one if it suits the problem, else that of `PopulationGLM`."""
        chosen, named = choose_solver(problem), self.solver.method
        smooth = problem.penalty.smooth
        if named and chosen != "LeastSquares" and not (named == "ProximalNewton" and smooth):
            chosen = "ProximalNewton" if named == "ConjugateGradients" and not smooth else named
        work = problem.n_rows * problem.n_neurons * (problem.n_features + 56.0)
        if named is None and chosen == "ConjugateGradients" and self.tol <= _TIGHT and work <= _SMALL_WORK:
            chosen = "Newton"  # whose last step leads nearer to the optimum than a bound can tell
        if self.is_free and chosen in _ON_HOST:
            return _ON_HOST[chosen]()
        return SAGA(batch_size=batch_size, step_limit=self.solver.stepsize or np.inf)

    def _fit_proved(self, part: Part, X, Y, start: Params, batch_size: int | None) -> Outcome:
        solver, view = self.solver, self.view
        if isinstance(part.penalty, SmoothPart):
            return fit_part(solver, view, part, X, Y, start, self.tol)
        if view.certified:
            form = view.loss.standard_form(Y)
            penalty = in_units(part.penalty, form.unit)
            problem = PopulationProblem(X, form.Y, form.observation, penalty, None, view.dtype, own=form.own)
            method = self._method(problem, batch_size)
            return self._run_in_form(problem, form, part.penalty, start, method)
        pairs = Pairs(np.arange(len(X)), Y.argmax(axis=1), np.ones(len(X)))
        strength = float(part.penalty.ridge_strength)
        problem = SoftmaxProblem(X, pairs, view.n_classes, strength, True, None, view.dtype)
        warm = _better_of(start, problem, problem.null_objective, problem.null_params())
        options = LoopOptions(self.tol, solver.maxiter or _CLASS_EPOCHS, _NEGLIGIBLE)
        found = ConjugateGradients().run(problem, warm, key=solver.key, options=options)
        return of_certified(problem, start, found, view.dtype)


class _AsGiven:
    """A population problem in standard form, as its user sees it."""

    def __init__(self, problem: PopulationProblem, form: StandardForm, penalty):
        self._problem, self._form, self.penalty = problem, form, penalty

    def evaluate(self, params: Params):
        """Objective of the user at parameters of the user."""
        found = self._problem.evaluate(Params(params.coef, params.intercept - self._form.shift))
        return found._replace(objective=self._seen(found.objective))

    @property
    def null_objective(self) -> np.ndarray:
        """Objective of the models without features, (neuron,)."""
        return self._seen(self._problem.null_objective)

    @property
    def saturated_loss(self) -> np.ndarray:
        """Mean loss of a model that predicts every response exactly, (neuron,)."""
        return self._seen(self._problem.saturated_loss)

    @property
    def design_rank(self) -> int:
        """Number of directions of the design that were resolved."""
        return self._problem.design_rank

    def _seen(self, objective: np.ndarray) -> np.ndarray:
        return objective * self._form.unit + self._form.constant


def _better_of(start: Params, problem, null_objective: np.ndarray, null: Params) -> Params | None:
    """Return a start, with the null model where that is better; None for a model without coefficients."""
    if not np.any(start.coef):
        return None
    worse = ~(problem.evaluate(start).objective <= null_objective)
    return Params(*(np.where(worse, old, new) for old, new in zip(null, start, strict=True)))


def _columns(array: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Take columns of an array, without a copy if they are all."""
    return array if len(which) == array.shape[1] else array[:, which]


def _own_kernels():
    """Make kernels that are freed with a run, together with the model whose loss they hold."""

    def fresh(kernel, *static):
        return jit(lambda *given, **named: kernel.__wrapped__(*given, **named), static_argnames=static)

    return fresh(sweep), fresh(saga_epoch, "subsets"), fresh(block_spectra, "n_steps"), fresh(curved)
