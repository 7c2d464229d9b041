"""The solvers that NeMoS calls."""

import numbers
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import nemos
import numpy as np
from nemos.solvers._abstract_solver import OptimizationInfo

from ...checks import shorten
from ...compilation import jit
from ...estimators import FitReport
from .fitting import PROXIMAL_STEPS, Fitting
from .loader import run_passes
from .proximal import FEW, newton, pieces_of, proximal_gradient
from .results import FitState, report_of_proximal, unproved_state
from .view import views

_TOL = 1e-3


def report(model: Any) -> FitReport:
    """Report on a NeMoS model that glmfit fitted: status, gap and more, a row per neuron.

    Parameters
    ----------
    model : nemos model
        Fitted with ``solver_name="SAGA[glmfit]"`` or another name of ours.

    Returns
    -------
    FitReport
        Neurons are named by numbers; values that a route of the solver does not know are nan. The classes of a
        classifier are one problem, and share a row.

    Raises
    ------
    TypeError
        If it is not a model of NeMoS.
    ValueError
        If the model is not fitted, or was fitted by another solver.
    """
    if not isinstance(model, nemos.base_class.Base):
        own = "; a model of glmfit has its report in model.report_" if hasattr(model, "report_") else ""
        raise TypeError(
            f"model is {shorten(model)}, of type {type(model).__name__}; report takes a fitted model of NeMoS, such as "
            f"nemos.glm.PopulationGLM{own}."
        )
    state = getattr(model, "solver_state_", None)
    if not isinstance(state, FitState):
        by_another = f"was fitted by another solver (its state is a {type(state).__name__})"
        found = "is not fitted" if state is None else by_another
        raise ValueError(f"the model {found}. Fit it with solver_name='SAGA[glmfit]' or another name of glmfit.")
    if state.report is not None:
        return state.report
    n_classes = getattr(model, "n_classes", 1)
    return report_of_proximal(state, np.size(model.intercept_) // n_classes, n_classes)


class Solver:
    """Solver of NeMoS models: certified where the model is known.

    NeMoS makes and calls it; a user selects one of its kinds, such as ``solver_name="NonlinearCG[glmfit]"``, after
    ``import glmfit.plugins.nemos``.

    Parameters
    ----------
    unregularized_loss, regularizer, regularizer_strength, has_aux, init_params :
        As passed by NeMoS.
    tol : float, optional
        Relative error to stop at, default 1e-3. As elsewhere in NeMoS, it is an error of the parameters or of the
        gradient. The gap is of second order, so a fit stops at a gap ``F - F*`` of ``tol**2`` (at least 1e-9 in single
        and 1e-16 in double precision) times the improvement over a model without coefficients; on the certified route
        also at 1e-4 of a nat over the whole recording. The proximal route stops when the norm of the gradient mapping
        is ``tol`` times that of the parameters plus one. With 0 a fit continues as far as the precision allows.
    maxiter : int, optional
        Budget in epochs (on the proximal route in iterations).
    key : jax key, optional
        Key of the row order and of the certificates.

    Notes
    -----
    Three routes, reported in ``solver_state_.route`` (docs/how_to/use_with_nemos.md):

    - "certified": Poisson with softplus or exp link, negative binomial and gamma with exp, Bernoulli with logistic,
      Gaussian with identity, with any of the five regularizers and any feature mask, by the named solver or, if that
      does not suit the problem, the one that `PopulationGLM` would take; classifiers with a ridge or without a
      penalty. Gaps are bounds wherever one can be proved.
    - "table": any other observation model, link or classifier: SAGA with a safeguarded step and an estimated gap,
      whatever the name.
    - "proximal": a loss that is not a generalised linear model, or a run that jax is tracing: accelerated proximal
      gradient steps, each of which descends; Newton steps in a traced run of up to 128 parameters with a ridge or
      without a penalty.

    ``converged`` means proved. If the gap is only estimated to be below the tolerance, the status is UNPROVED,
    ``converged`` is False, and NeMoS warns that the fit did not converge.

    A model counts as known only if its loss equals ours on some rows, and its solution is accepted only if NeMoS's own
    objective there equals ours. The penalised loss never ends above its initial value.
    """

    method: ClassVar[str | None] = None
    """Solver of the engine that the name stands for; None for what `PopulationGLM` would take."""
    stepsize: float | None = None
    batch_size: int | None = None

    def __init__(
        self,
        unregularized_loss: Callable,
        regularizer: Any,
        regularizer_strength: Any,
        has_aux: bool,
        init_params: Any = None,
        tol: float | None = None,
        maxiter: int | None = None,
        key: Any = None,
    ):
        self.unregularized_loss = unregularized_loss
        self.regularizer, self.regularizer_strength = regularizer, regularizer_strength
        self.has_aux = has_aux
        self.maxiter = _positive("maxiter", maxiter, True, "the solver's own budget")
        none = isinstance(tol, numbers.Real) and not isinstance(tol, bool) and tol == 0
        what = f"{_TOL}, or 0 for the smallest error that the precision allows"
        self.tol = 0.0 if none else _positive("tol", tol, False, what) or _TOL
        self.key = _read_key(key)
        if init_params is not None:
            regularizer.get_proximal_operator(params=init_params, strength=regularizer_strength)  # refuses early
        self._update = jit(self._one_step)

    # ---------------------------------------------------------------------------------- NeMoS's contract

    @classmethod
    def get_accepted_arguments(cls) -> set[str]:
        """Names that ``solver_kwargs`` may have."""
        return {"tol", "maxiter", "key"}

    def init_state(self, init_params: Any, *args: Any) -> FitState:
        """State before the first step; nothing is computed from the data."""
        step = jnp.asarray(1.0 if self.stepsize is None else self.stepsize, float)
        return unproved_state(jnp.asarray(jnp.nan, float), jnp.zeros((), int), step)

    def update(self, params: Any, state: FitState, *args: Any):
        """Take one proximal gradient step on the data given; the objective on them does not rise.

        A table of gradients cannot be kept here, because the rows come without their numbers.
        """
        params, objective, step, aux = self._update(params, state.step, *args)
        return params, unproved_state(objective, state.num_steps + 1, step), aux

    def run(self, init_params: Any, *args: Any):
        """Fit; return parameters, state and the loss's auxiliary value."""
        if not self.has_aux and not _is_traced((init_params, args)):
            for view in views(self, init_params, args):
                fitting = Fitting(self, view)
                params, state = fitting.run(init_params, args)
                if fitting.confirms(init_params, params, state, args):
                    return params, state, None
        return self._run_proximal(init_params, args)

    _supports_stochastic: ClassVar[bool] = True

    def stochastic_run(
        self,
        init_params: Any,
        data_loader: Any,
        num_epochs: int = 0,
        callback: Any = None,
        ctx: Any = None,
        **named: Any,
    ):
        """Fit by passes over a data loader; return parameters, state and no auxiliary value.

        Parameters
        ----------
        init_params : pytree
            Initial parameters; if all coefficients are 0, the fit starts from a fit of some rows.
        data_loader : nemos.batching.DataLoader
            Gives batches, in any order, of the same rows whenever it is iterated over.
        num_epochs : int
            Largest number of passes; NeMoS also calls it ``n_passes``.
        callback, ctx : optional
            NeMoS's callback and training context. Parameters change at the end of a pass.

        Raises
        ------
        ValueError
            For less than one pass, responses that the model cannot have, and a loader whose passes differ in rows.

        Notes
        -----
        The first pass surveys the data; each further pass takes a Newton step of every neuron on all rows, and bounds
        its gap there. The fit ends when every gap is proved to be below the tolerance (how soon:
        docs/how_to/use_with_nemos.md). Unknown losses take one proximal gradient step per pass, and nothing is
        proved. Memory: one Hessian per neuron, and a batch.
        """
        n_passes = named.pop("n_passes", num_epochs)
        if named:
            raise TypeError(f"stochastic_run takes n_passes, callback and ctx, but not {', '.join(named)}.")
        return run_passes(self, init_params, data_loader, n_passes, callback, ctx)

    def stochastic_convergence_criterion(self, params, prev_params, state, prev_state, aux, epoch: int) -> bool:
        """Whether every gap is proved to be below the tolerance; NeMoS asks after a pass."""
        return bool(state.converged)

    def get_optim_info(self, state: FitState) -> OptimizationInfo:
        """Summary of a run in Python's numbers, read by NeMoS 0.2.8; later versions read ``state.stats``."""
        return OptimizationInfo(**{name: np.asarray(value).item() for name, value in vars(state.stats).items()})

    # ---------------------------------------------------------------------------------- proximal route

    def _descend(self, params, args, **options):
        loss, prox, penalty = pieces_of(self, params)
        return proximal_gradient(lambda p: loss(p, *args), prox, penalty, params, **options)

    def _aux(self, params, args):
        return self.unregularized_loss(params, *args)[1] if self.has_aux else None

    def _one_step(self, params, step, *args):
        result = self._descend(params, args, tol=0.0, max_steps=1, step=step)
        limit = jnp.inf if self.stepsize is None else self.stepsize
        return result.params, result.objective, jnp.minimum(result.step, limit), self._aux(result.params, args)

    def _run_proximal(self, params, args):
        budget, name = self.maxiter or PROXIMAL_STEPS, "proximal gradient"
        if self._takes_newton(params, args):
            (loss, _, penalty), name = pieces_of(self, params), "Newton"
            result = newton(lambda p: loss(p, *args) + penalty(p), params, self.tol, budget)
        else:
            result = self.proximal(params, args, self.tol, budget)
        # A small gradient proves nothing. It must suffice only if jax traces the run, and nobody can be warned.
        converged = result.converged & _is_traced((params, args))
        out = ~result.converged & (result.n_steps >= budget)
        state = unproved_state(result.objective, result.n_steps, result.step, converged, out, name)
        return result.params, state, self._aux(result.params, args)

    def _takes_newton(self, params, args) -> bool:
        """Whether the run is one of few parameters with a smooth penalty that jax traces, as in an M-step."""
        smooth = type(self.regularizer) in (nemos.regularizer.Ridge, nemos.regularizer.UnRegularized)
        few = sum(leaf.size for leaf in jax.tree.leaves(params)) <= FEW
        return smooth and few and _is_traced((params, args))

    def proximal(self, params, args, tol: float, budget: int):
        """Take proximal gradient steps until the gradient mapping is small or the budget is spent."""
        first = 1.0 if self.stepsize is None else self.stepsize

        def fit(params, args):
            return self._descend(params, args, tol=tol, max_steps=budget, step=first)

        return fit(params, args) if _is_traced((params, args)) else jit(fit)(params, args)


class NonlinearCG(Solver):
    """Conjugate gradients of all neurons in a metric that they share: ``"NonlinearCG[glmfit]"``; see `Solver`.

    The solver that `PopulationGLM` takes for smooth penalties.
    """

    method = "ConjugateGradients"


class Newton(Solver):
    """Newton's method, neuron by neuron, exact Hessians in float64: ``"Newton[glmfit]"``; see `Solver`."""

    method = "Newton"


class ProximalNewton(Solver):
    """Proximal Newton steps of all neurons, for penalties with kinks: ``"ProximalNewton[glmfit]"``; see `Solver`.

    With a smooth penalty it is "NonlinearCG[glmfit]".
    """

    method = "ProximalNewton"


class SAGA(Solver):
    """The solver that `PopulationGLM` would take, or SAGA if its options are given: ``"SAGA[glmfit]"``; see `Solver`.

    Parameters
    ----------
    unregularized_loss, regularizer, regularizer_strength, has_aux, init_params, tol, maxiter, key :
        As in `Solver`.
    stepsize : float, optional
        Upper limit of the step; selects SAGA. Steps are certified (or safeguarded) without it. A smaller limit is
        equally safe; larger steps are not taken.
    batch_size : int, optional
        Rows per step; selects SAGA.
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
        self.stepsize = _positive("stepsize", stepsize, False, "the certified step")
        self.batch_size = _positive("batch_size", batch_size, True, "a size chosen from the number of rows")
        super().__init__(unregularized_loss, regularizer, regularizer_strength, has_aux, init_params, tol, maxiter, key)

    @classmethod
    def get_accepted_arguments(cls) -> set[str]:
        """Names that ``solver_kwargs`` may have."""
        return super().get_accepted_arguments() | {"stepsize", "batch_size"}


def _positive(name: str, value, whole: bool, otherwise: str):
    """Read an option as a Python number, or raise an error that states what it must be."""
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


def _read_key(key):
    """Key of jax from what the user gave: None, a seed, an old or a new key."""
    if key is None or isinstance(key, numbers.Integral):
        return jax.random.key(int(key or 0))
    dtype, shape = getattr(key, "dtype", np.dtype(object)), getattr(key, "shape", None)
    if shape == () and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return key
    if shape == (2,) and jax.dtypes.issubdtype(dtype, np.integer):
        return jax.random.wrap_key_data(jnp.asarray(key, jnp.uint32))
    raise ValueError(f"key is {key!r}; it must be a key of jax.random.key, a whole number, or None for seed 0.")


def _is_traced(tree) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
