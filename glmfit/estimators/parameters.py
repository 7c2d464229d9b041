"""Constructor parameters that several estimators have, read and checked, and what ``solver_name="auto"`` picks."""

import numbers
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields

import jax
import numpy as np
import scipy.sparse

from ..checks import check_real, not_text, shorten
from ..compilation import refuse_fork
from ..engine import ConjugateGradients, LeastSquares, Newton, ProximalNewton
from ..engine.devices import newton_pays
from ..engine.exact.least_squares import least_squares_serves
from ..engine.population import PopulationProblem
from ..engine.problem import Params
from ..saga import SAGA


def by_name(*kinds: type) -> dict[str, type]:
    """Map class names to classes."""
    return {kind.__name__: kind for kind in kinds}


SOLVERS = by_name(ConjugateGradients, ProximalNewton, SAGA, Newton, LeastSquares)
_REMOVED = {  # in version 0.2, by the first of these solvers that is allowed
    "UMax": (
        ("SAGA",),
        'models of classes. Use "auto" or "ConjugateGradients", which is faster, takes sparse features too,',
    ),
    "ProximalNewton": (
        ("LBFGS", "BoundMajorization", "SharedNewton"),
        'populations. Use "auto" or "ConjugateGradients" ("ProximalNewton" for a lasso), which is faster',
    ),
}
_FEW_NEURONS, _SMALL_WORK = 3, 4e6  # with kinks, a few neurons of short recordings are fitted one by one
_EXACT_WORK = 2e11  # products in a pass of models of classes


def read_strengths(name: str, given, needs: str, *axes: int) -> np.ndarray:
    """Return finite numbers of at least 0, (strength,), given with one of these numbers of axes."""
    values = np.asarray(given, object)
    known = (
        isinstance(v, numbers.Real) and not isinstance(v, bool) and 0 <= v <= sys.float_info.max for v in values.ravel()
    )
    if values.ndim not in axes or not values.size or not all(known):
        raise ValueError(f"{name} is {shorten(given)}; it must be {needs}{not_text(given)}.")
    return values.ravel().astype(np.float64)


def check_ratio(l1_ratio) -> None:
    """Raise ValueError unless the ratio of an elastic net is in (0, 1]."""
    check_real("l1_ratio", l1_ratio, 1.0, closed=True, hint="1 is the lasso; for 0 pass regularizer='Ridge'.")


def read_init_params(given, data, mask: np.ndarray | None) -> Params:
    """Check coefficients and intercepts that a population fit begins at; a column with non-finite ones becomes NaN.

    Coefficients outside a mask, bool (feature, neuron), become 0.
    """
    n_features, n_neurons = data.X.shape[1], data.Y.shape[1]
    shapes = ((n_features,), ()) if data.one_neuron else ((n_features, n_neurons), (n_neurons,))
    coef, intercept = read_pair(given, *shapes)
    coef, intercept = coef.reshape(n_features, n_neurons).copy(), intercept.reshape(n_neurons).copy()
    if mask is not None:
        coef[~mask] = 0.0
    coef[:, ~np.isfinite(coef).all(axis=0)] = np.nan
    return Params(coef, np.where(np.isfinite(coef).all(axis=0), intercept, np.nan))


def read_pair(given, coef_shape: tuple, intercept_shape: tuple) -> Params:
    """Read ``init_params`` as arrays of these shapes."""
    needs = f"(coef, intercept) of shapes {coef_shape} and {intercept_shape}, as a fit to such data has them"
    try:
        coef, intercept = (np.asarray(part, np.float64) for part in given)
    except (TypeError, ValueError):
        raise ValueError(f"init_params is {shorten(given)}; it must be {needs}{not_text(given)}.") from None
    if (coef.shape, intercept.shape) != (coef_shape, intercept_shape):
        raise ValueError(f"init_params has shapes {coef.shape} and {intercept.shape}; it must be {needs}.")
    return Params(coef, intercept)


def read_verbose(value) -> bool:
    """Return whether to show progress; any number above 0 means yes, as elsewhere in scikit-learn."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, numbers.Integral) and value >= 0):
        return bool(value)
    raise ValueError(f"verbose is {value!r}; it must be True or False.")


def read_seed(state) -> int:
    """Return the seed behind ``random_state``: None is 0; a generator is drawn from."""
    if state is None:
        return 0
    if isinstance(state, numbers.Integral) and not isinstance(state, bool) and state >= 0:
        return int(state) % 2**32
    if isinstance(state, np.random.RandomState):
        return int(state.randint(2**31 - 1))
    if isinstance(state, np.random.Generator):
        return int(state.integers(2**31 - 1))
    if isinstance(state, jax.Array):
        is_key = jax.dtypes.issubdtype(state.dtype, jax.dtypes.prng_key)
        data = jax.random.key_data(state) if is_key else state
        return int(np.asarray(data, np.uint32).ravel()[-1])
    raise ValueError(f"random_state is {state!r}; it must be a seed >= 0, a NumPy generator, a jax key or None.")


def key_for(solver, seed: int) -> jax.Array | None:
    """Make the key of a solver's draws; refused in a forked process, None for a solver that does not use jax."""
    if getattr(solver, "on_host", False):
        return None
    refuse_fork()
    return jax.random.key(seed)


def read_solver(name, kwargs, allowed: dict = SOLVERS, parameters: Iterable[str] = (), what: str = "solver_name"):
    """Return the solver of a name, None for "auto"; ``parameters`` are the estimator's, for hints in errors."""
    removed, instead = next((_REMOVED[solver] for solver in _REMOVED if solver in allowed), ((), ""))
    if isinstance(name, str) and name in removed:
        raise ValueError(
            f"{what} is {name!r}, which version 0.2 no longer has for {instead} and proves how far from the optimum a "
            "fit is."
        )
    if not isinstance(name, str) or name not in ("auto", *allowed):
        raise ValueError(f'{what} is {name!r}; it must be "auto" or one of {", ".join(allowed)}.')
    if not isinstance(kwargs, Mapping | None):
        raise ValueError(f"solver_kwargs is {kwargs!r}; it must be a dict of the solver's hyper-parameters, or None.")
    # NumPy's scalars are numbers to the user, and arrays to the static fields of a solver.
    kwargs = {key: value.item() if isinstance(value, np.generic) else value for key, value in (kwargs or {}).items()}
    if name == "auto":
        if kwargs:
            raise ValueError(
                f'solver_kwargs {sorted(kwargs)} were given with solver_name="auto"; name the solver they are for.'
            )
        return None
    names = [f.name for f in fields(allowed[name]) if f.metadata.get("option", True)]
    for key in kwargs:
        if key not in names:
            own = f" {key} is a parameter of the estimator: pass it there." if key in parameters else ""
            raise ValueError(
                f"solver_kwargs of {name} may be {', '.join(names) or 'empty only'}, and not {key!r}.{own}"
            )
    return allowed[name](**kwargs)


def choose_solver(problem: PopulationProblem) -> str:
    """Name the solver for a problem.

    "LeastSquares" for Gaussian responses and smooth penalties, unless many neurons have masks of their own. On a GPU
    "Newton" for smooth penalties on all coefficients, while all Hessians take at most 1e13 floating-point operations
    and fit in its memory. In all other cases "ConjugateGradients" for smooth penalties and "ProximalNewton" for those
    with kinks, except "Newton" for kinks, up to three neurons and short recordings, ``N T (d + 56)`` up to 4e6. These
    finish by Newton's method what they cannot prove. benchmarks/free_coefficients.py compares fits without a penalty.
    """
    if least_squares_serves(problem):
        return "LeastSquares"
    if newton_pays(problem):
        return "Newton"
    if problem.penalty.smooth:
        return "ConjugateGradients"
    work = problem.n_neurons * problem.n_rows * (problem.n_features + 56.0)
    alone = problem.in_memory and len(problem.devices) < 2 and problem.n_neurons <= _FEW_NEURONS and work <= _SMALL_WORK
    return "Newton" if alone else "ProximalNewton"


def choose_class_solver(problem) -> str:
    """Name the solver for a problem: "ConjugateGradients", "ProximalNewton", "SampledSoftmax" or "ImplicitSGD".

    ProximalNewton if the penalty has kinks.
    ConjugateGradients, which ends at a proved distance from the optimum, if a pass over rows and classes is affordable:
    rows times (features + 30) times classes, the nonzeros instead of rows times features for sparse ones, at most 2e11.
    At the limit a fit takes minutes on two cores. Beyond it, a solver that samples classes, whose steps do not grow
    with their number: SampledSoftmax, or ImplicitSGD for sparse features, which do not go in batches. Sections
    "crossover", "classes_9000", "classes_10000" and "sampled" of benchmarks/softmax_fits.py time them.
    """
    if not problem.penalty.smooth:
        return "ProximalNewton"
    n, K = problem.n_rows, problem.n_classes
    products = getattr(problem.X, "nnz", n * problem.n_features)
    if (products + 30 * n) * K <= _EXACT_WORK:
        return "ConjugateGradients"
    return "ImplicitSGD" if scipy.sparse.issparse(problem.X) else "SampledSoftmax"


def precision(dtype) -> type:
    """Precision of the passes of a fit to features of a dtype: double where jax keeps it and X has it."""
    double = dtype == np.float64 and jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    return np.float64 if double else np.float32


def read_devices(value) -> tuple | None:
    """Return the devices that share the rows, None for jax's default one."""
    if value is None:
        return None
    if isinstance(value, str) and value == "all":
        value = jax.devices()
    known = isinstance(value, list | tuple) and value and all(isinstance(device, jax.Device) for device in value)
    if not known or len(set(value)) < len(value) or len({device.platform for device in value}) > 1:
        raise ValueError(
            f'devices is {value!r}; it must be None, "all", or a list of different jax devices of one kind, such as '
            "jax.devices()[:2]."
        )
    return tuple(value)
