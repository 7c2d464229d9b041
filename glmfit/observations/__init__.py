"""Observation models: the loss of one response as a function of the linear predictor."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from glmfit.observations.base import Observation
from glmfit.observations.bernoulli import Bernoulli
from glmfit.observations.gaussian import Gaussian
from glmfit.observations.poisson import PoissonExp, PoissonSoftplus

__all__ = [
    "RESPONSE_LOSSES",
    "Bernoulli",
    "Gaussian",
    "Observation",
    "PoissonExp",
    "PoissonSoftplus",
    "from_inverse_link",
]

RESPONSE_LOSSES: dict[str, Observation] = {
    "poisson": PoissonSoftplus(),
    "poisson-exp": PoissonExp(),
    "logistic": Bernoulli(),
    "squared": Gaussian(),
}
"""Losses of the responses of a `glmfit.ResponseModel`, by the names that users call them."""

_KNOWN = (
    (PoissonSoftplus, (jax.nn.softplus,)),
    (PoissonExp, (jnp.exp, np.exp)),
)


def from_inverse_link(inverse_link: str | Callable) -> Observation:
    """Find the observation model of an inverse link.

    Parameters
    ----------
    inverse_link : str or callable
        "softplus" or "exp", or one of the functions `jax.nn.softplus`, `jax.numpy.exp` and `numpy.exp`.

    Returns
    -------
    Observation
        `PoissonSoftplus` or `PoissonExp`.

    Raises
    ------
    ValueError
        For anything else: the curvature bounds that certify a fit are proved for these two links only.

    Examples
    --------
    >>> from glmfit import observations
    >>> observations.from_inverse_link("softplus")
    PoissonSoftplus()
    """
    for model, functions in _KNOWN:
        if isinstance(inverse_link, str):
            matches = inverse_link == model.name
        else:
            matches = any(_python_function(inverse_link) is _python_function(f) for f in functions)
        if matches:
            return model()
    raise ValueError(
        f"inverse_link_function is {inverse_link!r}; allowed are 'softplus' and 'exp', or the functions "
        "jax.nn.softplus, jax.numpy.exp and numpy.exp. Other links, lambdas included, have no proved "
        "curvature bound: pass one of the two names."
    )


def _python_function(function: Any) -> Any:
    """Unwrap a jitted function: what sklearn.clone makes of jax.numpy.exp, a deep copy, only keeps this."""
    state = function.__getstate__() if callable(function) and not isinstance(function, type) else None
    return state.get("fun", function) if isinstance(state, dict) else function
