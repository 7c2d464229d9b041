"""Observation models: the loss of one response as a function of the linear predictor."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from glmfit.lazy import no_longer
from glmfit.observations.base import Observation
from glmfit.observations.bernoulli import Bernoulli, Binomial
from glmfit.observations.gamma import Gamma
from glmfit.observations.gaussian import Gaussian
from glmfit.observations.negative_binomial import NegativeBinomial
from glmfit.observations.poisson import PoissonExp
from glmfit.observations.poisson_softplus import PoissonSoftplus

__all__ = [
    "MODELS",
    "RESPONSE_LOSSES",
    "Bernoulli",
    "Binomial",
    "Gamma",
    "Gaussian",
    "NegativeBinomial",
    "Observation",
    "PoissonExp",
    "PoissonSoftplus",
    "find",
    "from_inverse_link",
]

RESPONSE_LOSSES: dict[str, Observation] = {
    "poisson": PoissonSoftplus(),
    "poisson-exp": PoissonExp(),
    "logistic": Bernoulli(),
    "squared": Gaussian(),
}
"""Losses of the responses of a `glmfit.ResponseModel`, by the names that users give."""

MODELS: dict[str, dict[str, type[Observation]]] = {
    "Poisson": {"softplus": PoissonSoftplus, "exp": PoissonExp},
    "NegativeBinomial": {"exp": NegativeBinomial},
    "Bernoulli": {"logistic": Bernoulli},
    "Binomial": {"logistic": Binomial},
    "Gaussian": {"identity": Gaussian},
    "Gamma": {"exp": Gamma},
}
"""Observation models of populations by NeMoS' names (and "Binomial"), with their inverse links, the default first."""

_FUNCTIONS = {
    "softplus": (jax.nn.softplus,),
    "exp": (jnp.exp, np.exp),
    "logistic": (jax.nn.sigmoid, jax.lax.logistic, scipy.special.expit),
}
_OTHER_NAMES = {"sigmoid": "logistic", "expit": "logistic", "jax.numpy.exp": "exp", "jax.nn.softplus": "softplus"}
_REFUSED = {
    (
        "NegativeBinomial",
        "softplus",
    ): "With the softplus link the loss is not convex, and no bound of the distance from the optimum is known.",
    ("Bernoulli", "cloglog"): "For cloglog no constant of self-concordance near 1 is known, hence no useful bound.",
}


__getattr__ = no_longer(__name__, {
    "LogisticLoss": "use `Bernoulli`",
    "PoissonLoss": "use `PoissonSoftplus` or `PoissonExp`",
    "ResponseLoss": "use `Observation`",
    "SquaredLoss": "use `Gaussian`",
})  # fmt: skip


def find(observation_model: Any, inverse_link: Any = None) -> Observation:
    """Find an observation model by its name and inverse link.

    Parameters
    ----------
    observation_model : {"Poisson", "NegativeBinomial", "Bernoulli", "Binomial", "Gaussian", "Gamma"}
        Its name.
    inverse_link : str, callable or None
        "softplus" or "exp" for Poisson, "exp" for NegativeBinomial and Gamma, "logistic" for Bernoulli and Binomial,
        "identity" for Gaussian; or the function, such as `jax.nn.softplus`. None is the first of these.

    Returns
    -------
    Observation

    Raises
    ------
    ValueError
        For anything else: the curvature bounds that certify a fit are proved for these only.

    Examples
    --------
    >>> from glmfit import observations
    >>> observations.find("Bernoulli")
    Bernoulli()
    """
    if not isinstance(observation_model, str) or observation_model not in MODELS:
        raise ValueError(
            f"observation_model is {observation_model!r}; allowed are {', '.join(map(repr, MODELS))}. For counts over "
            "classes use SoftmaxGLM or MultinomialGLM."
        )
    links = MODELS[observation_model]
    if inverse_link is None:
        return next(iter(links.values()))()
    for name, model in links.items():
        if isinstance(inverse_link, str):
            matches = _OTHER_NAMES.get(inverse_link, inverse_link) == name
        else:
            known = _FUNCTIONS.get(name, ())
            matches = any(_python_function(inverse_link) is _python_function(f) for f in known)
        if matches:
            return model()
    functions = {"softplus": "jax.nn.softplus", "exp": "jax.numpy.exp and numpy.exp", "logistic": "jax.nn.sigmoid"}
    also = [functions[name] for name in links if name in functions]
    reason = _REFUSED.get((observation_model, inverse_link)) if isinstance(inverse_link, str) else None
    or_functions = f", or the functions {', '.join(also)}" if also else ""
    raise ValueError(
        f"inverse_link_function is {inverse_link!r}; with observation_model={observation_model!r} allowed are "
        f"{' and '.join(map(repr, links))}{or_functions}. "
        + (reason or "Other links, lambdas included, have no proved curvature bound: pass a name.")
    )


def from_inverse_link(inverse_link: str | Callable[..., Any]) -> Observation:
    """Find the Poisson model of an inverse link.

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
    return find("Poisson", inverse_link)


def _python_function(function: Any) -> Any:
    """Unwrap a jitted function: the deep copy that sklearn.clone makes of jax.numpy.exp keeps only this."""
    state = function.__getstate__() if callable(function) and not isinstance(function, type) else None
    return state.get("fun", function) if isinstance(state, dict) else function
