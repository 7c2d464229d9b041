"""Options of the solver as a user of NeMoS gives them: read as what the solvers take, or refused in words."""

from __future__ import annotations

import numbers

import jax
import jax.numpy as jnp
import numpy as np


def positive(name: str, value, whole: bool, otherwise: str):
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


def key_of(key):
    """Key of jax from what the user gave: None, a seed, an old or a new key."""
    if key is None:
        return jax.random.key(0)
    if isinstance(key, numbers.Integral):
        return jax.random.key(int(key))
    is_new = jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    return key if is_new else jax.random.wrap_key_data(jnp.asarray(key, jnp.uint32))


def check_key(key) -> None:
    if key is None or isinstance(key, numbers.Integral):
        return
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    new = dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    old = dtype is not None and np.issubdtype(dtype, np.integer) and shape == (2,) if not new else False
    if not (new or old):
        raise ValueError(f"key is {key!r}; it must be a key of jax.random.key, a whole number, or None for seed 0.")
