"""Constructor parameters that several estimators have, read and checked."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields

import jax
import numpy as np

from .._checks import check_flag, check_positive, check_whole


def read_number(name: str, value) -> float:
    """Return a finite number above 0, or raise ValueError."""
    check_positive(name, value)
    return float(value)


def read_count(name: str, value) -> int:
    """Return a whole number of at least 1, or raise ValueError."""
    check_whole(name, value, 1)
    return int(value)


def read_flag(name: str, value) -> bool:
    """Return True or False, or raise ValueError."""
    check_flag(name, value)
    return bool(value)


def is_strength(value) -> bool:
    """Whether a value is one finite number of at least 0."""
    number = isinstance(value, numbers.Real | np.ndarray) and np.ndim(value) == 0 and not isinstance(value, bool)
    return number and bool(0 <= value <= sys.float_info.max)


def read_verbose(value) -> bool:
    """Return whether to show progress; any number above 0 says so, as elsewhere in scikit-learn."""
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


def read_solver(name, kwargs, allowed: dict, what: str = "solver_name", parameters: Iterable[str] = ()):
    """Return the solver of a name with its hyper-parameters; None for "auto".

    ``parameters`` are names of the estimator's own, which some look for among the solver's.
    """
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
    names = [f.name for f in fields(allowed[name])]
    for key in kwargs:
        if key not in names:
            own = f" {key} is a parameter of the estimator: pass it there." if key in parameters else ""
            raise ValueError(
                f"solver_kwargs of {name} may be {', '.join(names) or 'empty only'}, and not {key!r}.{own}"
            )
    return allowed[name](**kwargs)


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
