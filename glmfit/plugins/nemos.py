"""NeMoS models fitted by glmfit: ``solver_name="SAGA[glmfit]"``.

Importing this module registers the solver. Works with NeMoS 0.2.8 and newer; facts and limits are in
docs/how_to/use_with_nemos.md.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

try:
    import nemos
except ModuleNotFoundError as error:
    if error.name != "nemos":  # something that NeMoS needs
        raise
    raise ModuleNotFoundError(
        "glmfit.plugins.nemos needs NeMoS, not installed here: run  python -m pip install 'glmfit[nemos]'  (in a "
        "checkout: python -m pip install -e '.[nemos]').",
        name="nemos",
    ) from None
from nemos import inverse_link_function_utils
from nemos.solvers._abstract_solver import OptimizationInfo

from .. import penalties
from .._status import Status
from ..estimators import choose_solver
from ..observations import Observation, PoissonExp, PoissonSoftplus
from ..observations.row_loss import RowLoss
from ..problems import Params, PopulationProblem
from ..problems._joint_rows import joint_blocks, joint_spectrum, joint_sweep
from ..problems.joint import JointProblem
from ..solvers import SAGA as CertifiedSAGA
from ..solvers import LoopOptions, Newton
from ..solvers._epoch import saga_epoch
from ..solvers.proximal import proximal_gradient
from ..solvers.table import TableSAGA

REGULARIZERS = ("UnRegularized", "Ridge", "Lasso", "ElasticNet", "GroupLasso")
_TOL = 1e-3
_EPOCHS, _JOINT_EPOCHS, _PROXIMAL_STEPS = 200, 1000, 10_000
_AGREE = {4: 1e-4, 8: 1e-8}  # relative difference of two evaluations of one loss, per bytes of a number
_ROUNDING = 1e-2  # share of the improvement below which a gap that no step lessens is put down to rounding
_NEGLIGIBLE = 1e-4  # nats over the whole recording that no fit need gain
# A link is known by what it is, not by its name: a user's own `softplus` may bend anywhere.
_LINKS = inverse_link_function_utils.LINK_NAME_TO_FUNC
_SOFTPLUS, _EXP, _LOG_SOFTMAX = (
    [function, *(f for name, f in _LINKS.items() if name.rsplit(".", 1)[-1] == function.__name__)]
    for function in (jax.nn.softplus, jnp.exp, jax.nn.log_softmax)
)


def register() -> None:
    """Make ``"SAGA[glmfit]"`` known to NeMoS and allow it for all five regularizers. Repeating it changes nothing."""
    known = nemos.solvers.list_algo_backends("SAGA") if "SAGA" in nemos.solvers.list_available_algorithms() else []
    if "glmfit" not in known:
        nemos.solvers.register("SAGA", SAGA, backend="glmfit", validate=True)
    for name in REGULARIZERS:
        getattr(nemos.regularizer, name).allow_solver("SAGA")


# ------------------------------------------------------------------------------------- what a fit leaves


class Certificate(NamedTuple):
    """What is known of the distance from the optimum, per column of the linear predictor.

    Attributes
    ----------
    gap : numpy.ndarray
        ``F - F*``: a proved bound where ``gap_is_bound``, else an estimate.
    gap_is_bound : numpy.ndarray
        Whether it is proved.
    status : numpy.ndarray
        Values of :class:`glmfit.Status`.
    step : StepCertificate or None
        Theorem and constants of the step size, where one was used.
    """

    gap: np.ndarray
    gap_is_bound: np.ndarray
    status: np.ndarray
    step: Any = None


class FitState(eqx.Module):
    """State of the solver, NeMoS's ``solver_state_``.

    Attributes
    ----------
    function_val : array
        Penalised loss at the parameters returned.
    num_steps : array
        Epochs, or iterations of the proximal route.
    converged, reached_max_steps : array
        Whether the gap (proximal route: the gradient) is below the tolerance, or no step improves any more in this
        precision (the status is then PRECISION_FLOOR); whether the budget ran out first.
    step : array
        Step size an update starts from.
    route : str
        "certified" (a model glmfit knows, with bounds per neuron), "table" (a generalised linear model it knows by
        its loss) or "proximal" (nothing known).
    solver : str
        Algorithm that ran.
    certificate : Certificate or None
        Distance from the optimum; None on the proximal route.
    """

    function_val: Any
    num_steps: Any
    converged: Any
    reached_max_steps: Any
    step: Any
    route: str = eqx.field(static=True)
    solver: str = eqx.field(static=True)
    certificate: Any = None

    @property
    def stats(self) -> OptimizationInfo:
        """NeMoS's summary of the run."""
        return OptimizationInfo(
            function_val=self.function_val,
            num_steps=self.num_steps,
            converged=self.converged,
            reached_max_steps=self.reached_max_steps,
        )


class SAGA:
    """Solver of NeMoS models: certified SAGA in the spectral basis where the model is known.

    NeMoS makes and calls it; a user names it by ``solver_name="SAGA[glmfit]"`` after ``import glmfit.plugins.nemos``.

    Parameters
    ----------
    unregularized_loss, regularizer, regularizer_strength, has_aux, init_params :
        As NeMoS gives them.
    stepsize : float, optional
        Upper limit of the step. Steps are certified (or safeguarded) without it; a smaller one is as safe, a larger
        one is not taken.
    batch_size : int, optional
        Rows per step.
    tol : float, optional
        Relative error to stop at, 1e-3 when left out. As elsewhere in NeMoS it is one of the parameters or of the
        gradient; the gap is of second order, so a fit stops at a gap ``F - F*`` of ``tol**2`` (at least 1e-9 in single
        and 1e-16 in double precision) times the improvement over a model without coefficients; on the certified route
        also at 1e-4 of a nat over the whole recording. The proximal route stops when the norm of the gradient mapping
        is ``tol`` times that of the parameters plus one.
    maxiter : int, optional
        Budget in epochs (on the proximal route in iterations).
    key : jax key, optional
        Of the row order and of the certificates.

    Notes
    -----
    Three routes, told in ``solver_state_.route``:

    - "certified": Poisson with softplus or exp link, in GLM and PopulationGLM, with any of the five regularizers (also
      with strengths per coefficient) and any feature mask. Every neuron's gap is a bound wherever one can be proved.
      Small problems, where no step option is given, go to Newton's method, which compiles nothing.
    - "table": any other observation model, link or classifier: SAGA on the gradient of the loss in the linear
      predictor, with a safeguarded step and an estimated gap.
    - "proximal": a loss that is no generalised linear model, or a run that jax is tracing: accelerated proximal
      gradient steps, each of which descends.

    A model counts as known only after its loss has been found equal to ours on some rows, and its answer stands only if
    NeMoS's own objective there is what we say. The penalised loss never ends above its start.
    """

    def __init__(
        self,
        unregularized_loss: Callable,
        regularizer: Any,
        regularizer_strength: Any,
        has_aux: bool,
        init_params: Any = None,
        stepsize: float | None = None,
        batch_size: int | None = None,
        tol: float | None = None,
        maxiter: int | None = None,
        key: Any = None,
    ):
        self.unregularized_loss = unregularized_loss
        self.regularizer, self.regularizer_strength = regularizer, regularizer_strength
        self.has_aux = has_aux
        self.stepsize = _positive("stepsize", stepsize, False, "the certified step")
        self.batch_size = _positive("batch_size", batch_size, True, "a size chosen from the number of rows")
        self.maxiter = _positive("maxiter", maxiter, True, "the solver's own budget")
        self.tol = _TOL if tol is None else _positive("tol", tol, False, f"{_TOL}")
        self.key = key
        _check_key(key)
        if init_params is not None:
            regularizer.get_proximal_operator(params=init_params, strength=regularizer_strength)  # refuses early
        self._update = jax.jit(self._one_step)

    # ---------------------------------------------------------------------------------- NeMoS's contract

    @classmethod
    def get_accepted_arguments(cls) -> set[str]:
        """Names that ``solver_kwargs`` may have."""
        return {"stepsize", "batch_size", "tol", "maxiter", "key"}

    def init_state(self, init_params: Any, *args: Any) -> FitState:
        """State before the first step; nothing is computed from the data."""
        step = jnp.asarray(1.0 if self.stepsize is None else self.stepsize, float)
        no = jnp.array(False)
        return FitState(jnp.asarray(jnp.nan, float), jnp.zeros((), int), no, no, step, "proximal", "proximal gradient")

    def update(self, params: Any, state: FitState, *args: Any):
        """Take one proximal gradient step on the data given; the objective on them does not rise.

        A table of gradients cannot be kept here: the rows come without their numbers.
        """
        params, objective, step, aux = self._update(params, state.step, *args)
        state = FitState(
            objective, state.num_steps + 1, jnp.array(False), jnp.array(False), step, "proximal", "proximal gradient"
        )
        return params, state, aux

    def run(self, init_params: Any, *args: Any):
        """Fit; returns parameters, state and the loss's auxiliary value."""
        if not self.has_aux and not _is_traced((init_params, args)):
            for view in _views(self, init_params, args):
                params, state = self._fit(view, init_params, args)
                if self._confirms(view, params, state, args):
                    return params, state, None
        return self._run_proximal(init_params, args)

    def get_optim_info(self, state: FitState) -> OptimizationInfo:
        """Summary of a run, read by NeMoS 0.2.8; later versions read ``state.stats``."""
        return OptimizationInfo(
            function_val=float(state.function_val),
            num_steps=int(state.num_steps),
            converged=bool(state.converged),
            reached_max_steps=bool(state.reached_max_steps),
        )

    # ---------------------------------------------------------------------------------- proximal route

    def _pieces(self, params, args):
        """Loss, proximal operator and penalty as functions of the parameters alone."""
        prox = self.regularizer.get_proximal_operator(params=params, strength=self.regularizer_strength)
        penalised = self.regularizer.penalized_loss(lambda *_: 0.0, params=params, strength=self.regularizer_strength)

        def loss(p):
            value = self.unregularized_loss(p, *args)
            return value[0] if self.has_aux else value

        return loss, lambda p, step: prox(p, None, scaling=step), penalised

    def _one_step(self, params, step, *args):
        result = proximal_gradient(*self._pieces(params, args), params, tol=0.0, max_steps=1, step=step)
        aux = self.unregularized_loss(result.params, *args)[1] if self.has_aux else None
        limit = jnp.inf if self.stepsize is None else self.stepsize
        return result.params, result.objective, jnp.minimum(result.step, limit), aux

    def _run_proximal(self, params, args):
        budget = self.maxiter or _PROXIMAL_STEPS
        result = self._proximal(params, args, self.tol, budget)
        aux = self.unregularized_loss(result.params, *args)[1] if self.has_aux else None
        state = FitState(
            result.objective, result.n_steps, result.converged, ~result.converged & (result.n_steps >= budget),
            result.step, "proximal", "proximal gradient",
        )  # fmt: skip
        return result.params, state, aux

    def _proximal(self, params, args, tol, budget):
        first = 1.0 if self.stepsize is None else self.stepsize

        def fit(params, args):
            return proximal_gradient(*self._pieces(params, args), params, tol=tol, max_steps=budget, step=first)

        return fit(params, args) if _is_traced((params, args)) else jax.jit(fit)(params, args)

    # ---------------------------------------------------------------------------------- known models

    def _fit(self, view: View, init_params, args):
        start = view.columns(init_params)
        params, state, _ = self._fit_parts(view, start)
        fitted = view.tree(view.same_shift(params, start), init_params)
        return self._polish(view, fitted, state, args, start)

    def _confirms(self, view: View, params, state: FitState, args) -> bool:
        """Whether NeMoS's own objective at the answer is what we say: the model was what we took it for."""
        penalised = self.regularizer.penalized_loss(
            self.unregularized_loss, params=params, strength=self.regularizer_strength
        )
        given, ours = float(penalised(params, *args)), float(state.function_val)
        size = abs(given) + (float(np.abs(view.Y).mean()) if view.certified else 0.0)
        return abs(given - ours) <= _AGREE[view.dtype.itemsize] * size or not (np.isfinite(given) or np.isfinite(ours))

    def _fit_parts(self, view: View, start: Params, first: Params | None = None):
        """Fit every part from the start; if ``first`` was the start, only look how far from the optimum this is.

        Returns parameters, state, and the smallest gap asked of a part.
        """
        coef, intercept = start.coef.copy(), start.intercept.copy()
        outcomes = []
        for part in view.parts():
            outcome = self._fit_part(
                view, part, _of(start, part.columns), None if first is None else _of(first, part.columns)
            )
            coef[:, part.columns], intercept[part.columns] = 0.0, outcome.params.intercept
            coef[np.ix_(part.features, part.columns)] = outcome.params.coef[: len(part.features)]
            outcomes.append((part.columns, outcome))
        state = _merge(outcomes, view.n_columns, "certified" if view.certified else "table")
        return Params(coef, intercept), state, min(outcome.target for _, outcome in outcomes)

    def _polish(self, view: View, params, state: FitState, args, first: Params):
        """Go on with proximal steps where sparse penalties and coupled classes slow SAGA down; look again."""
        budget = _PROXIMAL_STEPS if self.maxiter is None else self.maxiter - int(state.num_steps)
        if view.certified or state.converged or not np.isfinite(state.function_val) or budget < 1:
            return params, state
        proximal = self._proximal(params, args, min(self.tol**2, 1e-9), budget)
        params = proximal.params
        at = view.columns(params)
        _, looked, target = self._fit_parts(view, at, first)
        # The second-order estimate is far too large where a kink of the penalty, not curvature, holds the classes;
        # convexity gives another: the gradient mapping times the way still to go, here the way come so far.
        way = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(at, first, strict=True)))
        gap = np.minimum(looked.certificate.gap, float(proximal.mapping) * way)
        close = bool(np.all(gap <= target))
        # Where no step improves any more the gap left is rounding, unless it is a good part of what was gained.
        converged = close or bool(proximal.converged and np.all(gap <= _ROUNDING * target / self._relative_gap(view)))
        out = not converged and int(proximal.n_steps) >= budget
        status = Status.CONVERGED if close else Status.MAX_EPOCHS if out else Status.PRECISION_FLOOR
        certificate = looked.certificate._replace(gap=gap, status=np.full(len(gap), int(status)))
        state = FitState(
            looked.function_val, state.num_steps + np.asarray(proximal.n_steps), np.asarray(converged),
            np.asarray(out), state.step, state.route, f"{state.solver}+proximal gradient", certificate,
        )  # fmt: skip
        return params, state

    def _fit_part(self, view: View, part: Part, start: Params, reference: Params | None) -> Outcome:
        X = view.X[:, part.features] if len(part.features) < view.X.shape[1] else view.X
        if not len(part.features):
            X = np.zeros((len(view.X), 1), view.X.dtype)  # the intercept alone
        Y = view.Y if len(part.columns) == view.n_columns else view.Y[:, part.columns]
        rows = part.features if len(part.features) else np.zeros(1, int)
        start = Params(start.coef[rows] * bool(len(part.features)), start.intercept)
        limit = np.inf if self.stepsize is None else self.stepsize
        gap = self._relative_gap(view)
        if view.certified:
            problem = PopulationProblem(X, np.ascontiguousarray(Y), view.loss, part.penalty, None, view.dtype)
            budget = _EPOCHS if self.maxiter is None else self.maxiter
            options = LoopOptions(tol=gap, max_epochs=budget, negligible=_NEGLIGIBLE)
            free = self.stepsize is None and self.batch_size is None
            solver = Newton() if free and choose_solver(problem) == "Newton" else self._certified(limit, len(X))
            warm = _better_start(problem, start) if np.any(start.coef) else None
            return _of_certified(problem, start, solver.run(problem, warm, key=_key(self.key), options=options))
        kernels, epoch = _own_kernels() if view.disposable else (None, None)
        problem = JointProblem(X, np.ascontiguousarray(Y), view.loss.select(len(part.columns)), part.penalty,
                               len(part.columns), view.dtype, kernels)  # fmt: skip
        batch = None if self.batch_size is None else min(self.batch_size, len(X))
        solver = TableSAGA(batch, limit, epoch)
        budget = _JOINT_EPOCHS if self.maxiter is None else self.maxiter
        budget = budget if reference is None else 0
        solution = solver.run(problem, start, key=_key(self.key), tol=gap, max_epochs=budget, reference=reference)
        return _of_table(solution, budget)

    def _relative_gap(self, view: View) -> float:
        return max(self.tol**2, 1e-9 if view.dtype == np.float32 else 1e-16)

    def _certified(self, limit, n_rows) -> CertifiedSAGA:
        batch = None if self.batch_size is None else min(self.batch_size, n_rows)
        return CertifiedSAGA(batch_size=batch, step_limit=limit)


def _of(params: Params, columns) -> Params:
    return Params(params.coef[:, columns], params.intercept[columns])


def _better_start(problem, start: Params) -> Params:
    """Start every neuron from the null model where the start given is worse."""
    null = problem.null_params()
    worse = ~(problem.evaluate(start).objective <= problem.null_objective)
    return Params(*(np.where(worse, old, new) for old, new in zip(null, start, strict=True)))


class Outcome(NamedTuple):
    """What either solver says of a part of the columns."""

    params: Params
    objective: float
    epochs: int
    target: float
    converged: bool
    out_of_budget: bool
    step: float
    solver: str
    certificate: Certificate


def _of_certified(problem, start: Params, solution) -> Outcome:
    fine = (solution.status == Status.CONVERGED) | (solution.status == Status.NO_SPIKES)
    params, objective = solution.params, solution.objective
    if np.any(start.coef):  # a start may be better than where an unfinished fit has got to
        before = problem.evaluate(start).objective
        worse = ~fine & ~(objective <= before)
        params = Params(*(np.where(worse, old, new) for old, new in zip(start, params, strict=True)))
        objective = np.where(worse, before, objective)
    step = solution.step_certificate
    return Outcome(
        params, float(np.sum(objective)), int(solution.epochs.max()), float(np.min(solution.target)), bool(fine.all()),
        bool(np.any(solution.status == Status.MAX_EPOCHS)), float(np.min(step.step)) if step is not None else 1.0,
        solution.solver_name, Certificate(solution.gap, solution.gap_is_bound, solution.status, step),
    )  # fmt: skip


def _of_table(solution, budget: int) -> Outcome:
    n = solution.params.coef.shape[1]
    out = not solution.converged and solution.epochs >= budget
    status = Status.CONVERGED if solution.converged else Status.MAX_EPOCHS if out else Status.PRECISION_FLOOR
    status = status if np.isfinite(solution.objective) else Status.NON_FINITE
    certificate = Certificate(np.full(n, solution.gap), np.zeros(n, bool), np.full(n, int(status)))
    return Outcome(
        solution.params, solution.objective, solution.epochs, solution.target, solution.converged, out, solution.step,
        "TableSAGA", certificate,
    )  # fmt: skip


def _merge(outcomes, n_columns: int, route: str) -> FitState:
    gap, bound, status = np.empty(n_columns), np.empty(n_columns, bool), np.empty(n_columns, int)
    for columns, outcome in outcomes:
        c = outcome.certificate
        gap[columns], bound[columns], status[columns] = c.gap, c.gap_is_bound, c.status
    all_ = [outcome for _, outcome in outcomes]
    step = all_[0].certificate.step if len(all_) == 1 else None
    return FitState(
        np.asarray(sum(o.objective for o in all_)),
        np.asarray(max(o.epochs for o in all_)),
        np.asarray(all(o.converged for o in all_)),
        np.asarray(any(o.out_of_budget for o in all_)),
        np.asarray(min(o.step for o in all_)),
        route,
        "+".join(sorted({o.solver for o in all_})),
        Certificate(gap, bound, status, step),
    )


# ------------------------------------------------------------------------------------- reading a NeMoS model


class Part(NamedTuple):
    """Columns that share features and penalty layout, and can be fitted as one problem."""

    columns: np.ndarray
    features: np.ndarray
    penalty: Any


@dataclass(frozen=True)
class View:
    """A generalised linear model as matrices."""

    X: np.ndarray  # (time, feature), leaves side by side
    Y: np.ndarray  # (time, column)
    loss: Any  # Observation or RowLoss
    sizes: tuple[int, ...]  # features of each leaf
    mask: np.ndarray | None  # (feature, column)
    penalty: Penalties
    n_columns: int
    disposable: bool = False  # whether nothing compiled for the loss can serve again

    @property
    def certified(self) -> bool:
        """Whether the loss is one with proved bounds."""
        return isinstance(self.loss, Observation)

    @property
    def dtype(self):
        """Precision of the data."""
        return self.X.dtype

    def same_shift(self, params: Params, start: Params) -> Params:
        """Where a common shift of all classes changes nothing, keep that of the starting intercepts, as NeMoS does."""
        if self.certified or not self.loss.shift_invariant:
            return params
        shift = (start.intercept - params.intercept).reshape(-1, self.loss.n_coupled).mean(axis=1)
        return params._replace(intercept=params.intercept + np.repeat(shift, self.loss.n_coupled))

    def columns(self, params) -> Params:
        """Parameters of a model as matrices, float64."""
        coef = [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in jax.tree.leaves(params.coef)]
        return Params(np.concatenate(coef), np.asarray(params.intercept, np.float64).ravel())

    def tree(self, params: Params, like):
        """Matrices as parameters of a model."""
        leaves, structure = jax.tree.flatten(like.coef)
        pieces = np.split(params.coef, np.cumsum(self.sizes)[:-1])
        coef = [_put(p, leaf) for p, leaf in zip(pieces, leaves, strict=True)]
        intercept = _put(params.intercept, like.intercept)
        return eqx.tree_at(lambda p: (p.coef, p.intercept), like, (jax.tree.unflatten(structure, coef), intercept))

    def parts(self) -> list[Part]:
        """List the sets of columns with the same features and groups."""
        every = np.arange(self.X.shape[1])
        if self.mask is None and self.penalty.labels is None:
            columns = np.arange(self.n_columns)
            return [Part(columns, every, self.penalty.make(every, columns))]
        mask = np.ones((len(every), self.n_columns), bool) if self.mask is None else self.mask
        labels = np.zeros_like(mask, int) if self.penalty.labels is None else self.penalty.labels
        layout = np.concatenate([mask, labels])
        _, kind = np.unique(layout, axis=1, return_inverse=True)
        parts = []
        for k in range(kind.max() + 1):
            columns = np.flatnonzero(kind.ravel() == k)
            features = np.flatnonzero(mask[:, columns[0]])
            parts.append(Part(columns, features, self.penalty.make(features, columns)))
        return parts


@dataclass(frozen=True)
class Penalties:
    """Penalty of every coefficient, read off the gradient of NeMoS's own."""

    name: str
    l1: np.ndarray  # (feature, column); for the group lasso the strength of the coefficient's group
    ridge: np.ndarray  # (feature, column)
    labels: np.ndarray | None = None  # (feature, column) group within its column, -1 without

    def make(self, features, columns):
        """Penalty of ours for some features and columns."""
        at = np.ix_(features, columns)
        if not len(features) or self.name == "UnRegularized":
            return penalties.NoPenalty(np.zeros(()))
        l1, ridge = self.l1[at], self.ridge[at]
        if self.name == "Ridge":
            return penalties.Ridge(_shared(ridge))
        if self.name == "Lasso":
            return penalties.Lasso(_shared(l1))
        if self.name == "ElasticNet":
            strength = l1 + ridge
            ratio = np.where(strength > 0, l1 / np.where(strength > 0, strength, 1), 1.0)
            return penalties.ElasticNet(_shared(strength), _shared(ratio))
        labels = self.labels[features, columns[0]]
        found = np.unique(labels[labels >= 0])
        if not len(found):
            return penalties.NoPenalty(np.zeros(()))
        # A group keeps the weight of its full size where a mask has taken some of its features.
        whole = np.array([np.sum(self.labels[:, columns[0]] == g) for g in found])
        left = np.array([np.sum(labels == g) for g in found])
        strength = np.stack([l1[np.argmax(labels == g)] for g in found]) * np.sqrt(whole / left)[:, None]
        return penalties.GroupLasso(strength, tuple(labels.tolist()))


def _shared(strength: np.ndarray) -> np.ndarray:
    """One number, one per column or one per coefficient: the least that says it all."""
    if np.all(strength == strength[0, 0]):
        return strength[0, 0]
    return strength[0] if np.all(strength == strength[:1]) else strength


def _views(solver: SAGA, params, args) -> Iterator[View]:
    """Propose model, loss and penalty as matrices; none where it is no generalised linear model."""
    shape = _glm_shape(params, args)
    if shape is None:
        return
    X, Y, sizes, out = shape
    if not (np.isfinite(X.sum(dtype=np.float64)) and np.isfinite(Y.sum(dtype=np.float64))):
        return
    n_columns = int(np.prod(out, dtype=int))
    penalty = _read_penalty(solver, params, n_columns)
    if penalty is None:
        return
    model = getattr(solver.unregularized_loss, "__self__", None)
    mask = _read_mask(model, params, n_columns)
    for loss in _candidates(solver, model, params, args, out, Y):
        view = View(X, Y, loss, sizes, mask, penalty, n_columns, not _never_changes(loss))
        if not view.certified and not _uniform_in_units(mask, penalty.labels, loss.n_coupled):
            continue
        if _agrees(view, solver.unregularized_loss, params, args):
            yield view


def _glm_shape(params, args):
    """Features and targets as matrices, sizes of the leaves and shape of an output; None if it is none."""
    if not (hasattr(params, "coef") and hasattr(params, "intercept")) or len(args) != 2:
        return None
    X, coef = jax.tree.leaves(args[0]), jax.tree.leaves(params.coef)
    y, intercept = args[1], params.intercept
    if not X or len(X) != len(coef) or not hasattr(y, "shape") or not hasattr(intercept, "shape"):
        return None
    out = coef[0].shape[1:]
    good = all(x.ndim == 2 and c.shape == (x.shape[1], *out) for x, c in zip(X, coef, strict=True))
    if not good or y.shape != (len(X[0]), *out) or intercept.shape != (out or (1,)) or len(y) < 2:
        return None
    double = intercept.dtype == np.float64
    dtype = np.float64 if double else np.float32
    matrices = [np.asarray(x, dtype) for x in X]
    design = matrices[0] if len(matrices) == 1 else np.concatenate(matrices, axis=1)
    return design, np.asarray(y, dtype).reshape(len(y), -1), tuple(x.shape[1] for x in X), out


def _read_penalty(solver: SAGA, params, n_columns: int) -> Penalties | None:
    """Strengths per coefficient, from the gradient of NeMoS's penalty at all ones and all twos."""
    regularizer = solver.regularizer
    name = type(regularizer).__name__
    if name not in REGULARIZERS or type(regularizer) is not getattr(nemos.regularizer, name, None):
        return None
    value = regularizer.penalized_loss(lambda *_: 0.0, params=params, strength=solver.regularizer_strength)

    def slope(at):
        there = jax.tree.map(lambda a: jax.device_put(np.full(a.shape, at, a.dtype)), params)
        leaves = jax.tree.leaves(jax.grad(value)(there).coef)
        return np.concatenate([np.asarray(g, np.float64).reshape(len(g), -1) for g in leaves])

    if name == "UnRegularized":
        zero = np.zeros((sum(len(c) for c in jax.tree.leaves(params.coef)), n_columns))
        return Penalties(name, zero, zero)
    one = slope(1.0)
    if name == "Ridge":
        return Penalties(name, np.zeros_like(one), one)
    if name == "Lasso":
        return Penalties(name, one, np.zeros_like(one))
    if name == "ElasticNet":
        ridge = np.maximum(slope(2.0) - one, 0.0)
        ridge[ridge < 1e-6 * one] = 0.0
        return Penalties(name, one - ridge, ridge)
    labels = _group_labels(regularizer.mask, params)
    return None if labels is None else Penalties(name, one, np.zeros_like(one), labels)


def _group_labels(mask, params) -> np.ndarray | None:
    """Group of every coefficient within its column; None if a group reaches over columns."""
    leaves = [np.asarray(m) for m in jax.tree.leaves(mask)]
    shapes = [c.shape for c in jax.tree.leaves(params.coef)]
    if [m.shape[1:] for m in leaves] != shapes:
        return None
    member = np.concatenate([m.reshape(len(m), shape[0], -1) for m, shape in zip(leaves, shapes, strict=True)], axis=1)
    if np.any(np.sum(np.any(member != 0, axis=1), axis=1) > 1):
        return None
    labels = np.where(np.any(member != 0, axis=0), np.argmax(member, axis=0), -1)
    # Numbered within a column in order of appearance, so that columns with the same groups look the same.
    for column in labels.T:
        found, first = np.unique(column[column >= 0], return_index=True)
        number = {g: i for i, g in enumerate(found[np.argsort(first)])}
        column[:] = [number.get(g, -1) for g in column]
    return labels


def _read_mask(model, params, n_columns: int) -> np.ndarray | None:
    mask = getattr(model, "_feature_mask", None)
    if mask is None:
        return None
    coef = jax.tree.leaves(params.coef)
    whole = [
        np.broadcast_to(np.asarray(m), c.shape).reshape(len(c), -1)
        for m, c in zip(jax.tree.leaves(mask), coef, strict=True)
    ]
    mask = np.concatenate(whole) != 0
    return None if mask.all() else mask


def _uniform_in_units(mask, labels, n_coupled: int) -> bool:
    """Whether coupled columns share features and groups."""
    for layout in (mask, labels):
        if layout is not None:
            units = layout.reshape(len(layout), -1, n_coupled)
            if np.any(units != units[..., :1]):
                return False
    return True


def _candidates(solver: SAGA, model, params, args, out, Y):
    """Propose what the loss of a row may be, the best first; each is verified before it is used."""
    observation, link = getattr(model, "observation_model", None), getattr(model, "inverse_link_function", None)
    if observation is not None and callable(link):
        poisson = type(observation) is nemos.observation_models.PoissonObservations
        ours = PoissonSoftplus() if _is_one_of(link, _SOFTPLUS) else PoissonExp() if _is_one_of(link, _EXP) else None
        if poisson and ours is not None and Y.min() >= 0:
            yield ours
        coupled = isinstance(observation, nemos.observation_models.CategoricalObservations)
        settings = _settings(observation)
        if settings is not None:
            yield _NemosLoss(type(observation), settings, link, out, out[-1] if coupled else 1)
    if jax.tree.structure(params) == jax.tree.structure(type(params)(params.coef, params.intercept)):
        yield _GivenLoss(
            solver.unregularized_loss, jax.tree.map(lambda a: (a.shape, a.dtype), params), params, args, out
        )


def _is_one_of(link, functions) -> bool:
    return any(link is function for function in functions)


def _never_changes(loss) -> bool:
    """Whether a loss is made of NeMoS's and jax's own functions alone, so that what is compiled for it stays right."""
    if isinstance(loss, _GivenLoss):
        return False
    if not isinstance(loss, _NemosLoss):
        return True
    name = getattr(loss.link, "__name__", "")
    of_jax = [getattr(module, name, None) for module in (jax.nn, jnp, jax.scipy.stats.norm, jax.scipy.special)]
    own_model = getattr(nemos.observation_models, loss.observation.__name__, None) is loss.observation
    return own_model and _is_one_of(loss.link, [*_LINKS.values(), *of_jax])


def _settings(observation) -> tuple | None:
    """Read the constructor parameters of an observation model, hashable."""
    try:
        return tuple(sorted((name, float(value)) for name, value in observation.get_params().items()))
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True)
class _NemosLoss(RowLoss):
    """Loss of a row by a NeMoS observation model; equal for equal models, so that nothing is compiled twice."""

    observation: type
    settings: tuple
    link: Callable
    out: tuple[int, ...]
    n_coupled: int

    @property
    def shift_invariant(self) -> bool:
        """Whether the linear predictors of coupled columns matter only up to a common constant."""
        return self.n_coupled > 1 and _is_one_of(self.link, _LOG_SOFTMAX)

    def total(self, y, eta, weight):
        model = self.observation(**dict(self.settings))
        shape = (-1, *self.out)

        def add(scores):
            return jnp.sum(scores * weight.reshape((-1,) + (1,) * (scores.ndim - 1)))

        return model._negative_log_likelihood(
            y.reshape(shape), self.link(eta.reshape(shape)), aggregate_sample_scores=add
        )

    def select(self, n_columns: int) -> _NemosLoss:
        """Return the loss of fewer columns of the same kind."""
        whole = int(np.prod(self.out, dtype=int))
        if n_columns == whole:
            return self
        out = (n_columns // self.n_coupled, self.n_coupled) if self.n_coupled > 1 else (n_columns,)
        return _NemosLoss(self.observation, self.settings, self.link, out, self.n_coupled)


class _GivenLoss(RowLoss):
    """Loss of a row by the function NeMoS gave, at coefficients 0: the intercept is the linear predictor."""

    shift_invariant = False

    def __init__(self, loss, _, params, args, out):
        self.loss, self.out = loss, out
        self.n_coupled = int(np.prod(out, dtype=int))
        self.params = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), params)
        self.X = jax.tree.map(lambda a: np.zeros((1, a.shape[1]), a.dtype), args[0])

    def total(self, y, eta, weight):
        def one(y, eta):
            params = eqx.tree_at(lambda p: p.intercept, self.params, eta.reshape(self.params.intercept.shape))
            return self.loss(params, self.X, y.reshape((1, *self.out)))

        return jnp.sum(jax.vmap(one)(y, eta) * weight[:, 0])

    def select(self, n_columns: int) -> _GivenLoss:
        """Return the loss itself: its columns stay together."""
        return self


def _agrees(view: View, loss: Callable, params, args) -> bool:
    """Whether our loss equals the given one on some rows, at two parameters near the null model."""
    n = len(view.Y)
    busy = np.argmax(np.abs(view.Y).max(axis=1))
    rows = np.unique(np.r_[np.linspace(0, n - 1, min(n, 6)).astype(int), busy])
    some = jax.tree.map(lambda a: jax.device_put(np.asarray(a)[rows]), args)
    X = view.X[rows].astype(np.float64)
    here = view.columns(params)
    size = 0.3 / max(np.sqrt(X.shape[1]) * np.abs(X).max(initial=0.0), 1e-30)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        coef = size * rng.normal(size=here.coef.shape)
        at = Params(coef, here.intercept + 0.1 * rng.normal(size=here.intercept.shape))
        eta = X @ (coef if view.mask is None else coef * view.mask) + at.intercept
        y = view.Y[rows]
        try:
            given = float(loss(view.tree(at, params), *some))
            if view.certified:
                ours = float(np.sum(view.loss.loss(y.astype(np.float64), eta)) / len(rows))
            else:
                weight = np.full((len(rows), 1), 1 / len(rows), view.dtype)
                ours = float(view.loss.total(y, eta.astype(view.dtype), weight))
        except Exception:
            return False  # a loss of other rows, or one that cannot be called row by row
        if not abs(given - ours) <= _AGREE[view.dtype.itemsize] * (abs(given) + np.abs(y).mean() + 1e-3):
            return False
    return True


# ------------------------------------------------------------------------------------- small things


def _own_kernels():
    """Kernels of a run that go with it, and with them the model whose loss they hold."""
    fresh = [
        jax.jit(lambda *a, f=joint_sweep.__wrapped__: f(*a)),
        jax.jit(lambda *a, n_steps, f=joint_blocks.__wrapped__: f(*a, n_steps), static_argnames="n_steps"),
        jax.jit(lambda *a, n_steps, f=joint_spectrum.__wrapped__: f(*a, n_steps), static_argnames="n_steps"),
    ]
    epoch = jax.jit(lambda *a, subsets, f=saga_epoch.__wrapped__: f(*a, subsets=subsets), static_argnames="subsets")
    return tuple(fresh), epoch


def _put(values: np.ndarray, like) -> jax.Array:
    """Array of jax of the shape and precision of another; nothing is compiled for it."""
    return jax.device_put(values.reshape(like.shape).astype(like.dtype))


def _is_traced(tree) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def _key(key):
    """Key of jax from what the user gave: None, a seed, an old or a new key."""
    if key is None:
        return jax.random.key(0)
    if isinstance(key, numbers.Integral):
        return jax.random.key(int(key))
    is_new = jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    return key if is_new else jax.random.wrap_key_data(jnp.asarray(key, jnp.uint32))


def _positive(name: str, value, whole: bool, otherwise: str):
    """Read an option as a Python number, or say what it must be."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if isinstance(value, (str, bool)) or not 0 < number < np.inf or (whole and number != int(number)):
        kind = "a whole number of at least 1" if whole else "a positive number"
        raise ValueError(f"{name} is {value!r}; it must be {kind}, or None for {otherwise}.")
    return int(number) if whole else number


def _check_key(key) -> None:
    if key is None or isinstance(key, numbers.Integral):
        return
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    new = dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    old = dtype is not None and np.issubdtype(dtype, np.integer) and shape == (2,) if not new else False
    if not (new or old):
        raise ValueError(f"key is {key!r}; it must be a key of jax.random.key, a whole number, or None for seed 0.")


register()
