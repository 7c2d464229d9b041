"""The only door to jaxopt's proximal operator: jaxopt is unmaintained and warns on import."""

import functools
import warnings
from types import ModuleType

import jax
import jax.numpy as jnp

from glmfit._types import Array


@functools.cache
def _jaxopt_prox() -> ModuleType:
    """Import jaxopt.prox on first use, without its deprecation warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from jaxopt import prox
    return prox


def soft_threshold(coef: Array, threshold: Array) -> jax.Array:
    """Minimise 1/2 ||v - coef||^2 + sum threshold |v|; the threshold broadcasts against coef."""
    return _jaxopt_prox().prox_lasso(coef, jnp.broadcast_to(threshold, coef.shape))


def thresholds(strength: Array, step: Array | float, feature_scale: Array | None, coef: Array) -> jax.Array:
    """Compute strength * step / feature_scale, in a shape that broadcasts against coef."""
    step = jnp.asarray(step, dtype=coef.dtype)
    threshold = strength * (step[None, :] if step.ndim == 1 else step)
    if feature_scale is None:
        return threshold
    return threshold / jnp.asarray(feature_scale, dtype=coef.dtype)[:, None]
