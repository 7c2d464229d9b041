"""Fits of NeMoS models with smooth terms: at the strengths of their regularizer, or at strengths from the data."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import jax
import nemos
import numpy as np

from ...checks import shorten
from ...engine.problem import Params
from ...engine.result import Solution
from ...estimators import PopulationGAM
from ...observations import MODELS, NegativeBinomial
from .results import Outcome, of_certified
from .smooth import Smooth, unstacked
from .terms import KnownLoss, known_loss
from .view import mask_of

_ROWS = 1 << 15  # at once
_BUDGET = 60


def fit_smooth(
    model: Any, terms: Any, X: Any, y: Any, strengths: Any = "marginal-likelihood", **parameters: Any
) -> PopulationGAM:
    """Fit a NeMoS model with smooth terms whose strengths are chosen from the data for every neuron.

    Parameters
    ----------
    model : nemos.glm.GLM or nemos.glm.PopulationGLM
        Its observation model, inverse link and feature mask are those of the fit.
    terms : basis or mapping
        As in `Smooth`: the basis of NeMoS that made X, or terms.
    X, y : array, pynapple object or dictionary of features
        As in ``model.fit``.
    strengths : {"marginal-likelihood", "cross-validation"}, mapping or array
        As in :class:`glmfit.PopulationGAM`, for its loss.
    **parameters :
        Other parameters of `PopulationGAM`, such as ``cv`` or ``max_epochs``.

    Returns
    -------
    PopulationGAM
        The fit, for curves with intervals, degrees of freedom and the report.

    Raises
    ------
    TypeError, ValueError
        For a model that is neither of the two, or has an observation model or a link that glmfit does not know; for
        data and terms that do not match.

    Notes
    -----
    The model is fitted afterwards: it has the same coefficients, and the attributes that NeMoS sets in a fit. Its
    regularizer is then a `Smooth` with the strengths chosen, and ``solver_name="SAGA[glmfit]"``, so that
    ``clone(model).fit(X, y)`` gives the same result. In NeMoS the loss of Gaussian responses is twice ours, and so are
    its strengths.

    Rows with a missing value are dropped, as in NeMoS. A neuron without spikes has strengths of 1.

    Examples
    --------
    >>> import nemos as nmo
    >>> import numpy as np
    >>> from glmfit.plugins.nemos import fit_smooth
    >>> basis = nmo.basis.BSplineEval(10, bounds=(0, 1), label="speed")
    >>> speed = np.random.default_rng(0).random(2000)
    >>> counts = np.random.default_rng(1).poisson(np.exp(np.sin(6 * speed)))
    >>> model = nmo.glm.GLM(inverse_link_function="exp")
    >>> gam = fit_smooth(model, basis, basis.compute_features(speed), counts)
    >>> 3 < gam.edf_["speed"] < 9
    True
    >>> bool(np.allclose(model.coef_, gam.coef_, atol=1e-5))
    True
    """
    loss = _loss_of(model)
    features = X.data if type(X).__name__ == "FeaturePytree" else X  # which NeMoS will do without
    matrix, Y = _matrix(features), np.asarray(y)
    shape = Y.shape[1:]
    coef = jax.tree.map(lambda leaf: np.zeros((leaf.shape[1], *shape)), features)
    smooth = Smooth(terms)
    found, _ = smooth.layout(coef)
    known = np.isfinite(matrix).all(axis=1) & np.isfinite(Y.reshape(len(Y), -1)).all(axis=1)
    mask = mask_of(model, coef)
    gam = _gam(loss, found, strengths, feature_mask=mask, **parameters)
    whole = known.all() and not isinstance(features, dict)  # then pynapple's times are of use
    gam.fit(features if whole else matrix[known], y if whole else Y[known])
    chosen = {name: _known_strengths(loss.factor * gam.strengths_[name], term, mask) for name, term in found.items()}
    start = unstacked(np.nan_to_num(gam.coef_), coef)
    smooth.answer = gam
    try:
        model.set_params(solver_kwargs={})
        model.set_params(regularizer=smooth, regularizer_strength=chosen)
        model.set_params(solver_name=smooth.default_solver)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The fit did not converge", RuntimeWarning)  # reported by the other fit
            model.fit(X, y, init_params=(start, np.atleast_1d(gam.intercept_)))
    finally:
        smooth.answer = None
    return gam


def fit_part(solver: Any, view: Any, part: Any, X: np.ndarray, Y: np.ndarray, start: Params, tol: float) -> Outcome:
    """Fit columns of a known model that share their features, and evaluate the outcome as NeMoS sees it."""
    answer, loss, columns = solver.regularizer.answer, view.loss, part.columns
    if answer is None:
        gam = _gam(loss, part.penalty.terms, part.penalty.strengths / loss.factor, tol=tol)
        gam.set_params(max_epochs=solver.maxiter or _BUDGET)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*did not converge", UserWarning)  # NeMoS says so
            gam.fit(X, Y)
        params, which = Params(gam.coef_, gam.intercept_), slice(None)
    else:
        n = view.Y.shape[1]
        whole, which = answer.coef_.reshape(-1, n), columns
        params = Params(whole[np.ix_(part.features, columns)], np.reshape(answer.intercept_, n)[columns])
        gam = answer
    share = len(columns) / view.Y.shape[1] if answer is not None else 1.0  # of the work, which parts add up
    params = Params(*(np.nan_to_num(np.asarray(a, np.float64)) for a in params))
    report, seen = gam.report_, _AsGiven(loss, X, Y, part.penalty)
    objective = seen.evaluate(params).objective
    null = objective + loss.factor * (report.null_objective - report.objective)[which]
    solution = Solution(
        params=params, status=np.asarray(report.status[which], int), gap=loss.factor * report.gap[which],
        gap_is_bound=report.gap_is_bound[which], target=loss.factor * report.target[which],
        objective=objective, null_objective=null, epochs=report.epochs[which],
        row_evals=int(share * report.row_evals), seconds_run=share * report.seconds_run,
        seconds_compile=share * report.seconds_compile, solver_name=report.solver_name,
    )  # fmt: skip
    return of_certified(seen, start, solution, view.dtype)._replace(pseudo_r2=report.pseudo_r2[which])


class _AsGiven:
    """A population with smooth terms, as NeMoS sees it."""

    def __init__(self, loss: KnownLoss, X: np.ndarray, Y: np.ndarray, penalty: Any):
        self.loss, self.X, self.Y, self.penalty = loss, X, Y, penalty
        self.saturated_loss = 0.0
        self.design_rank = X.shape[1]

    def evaluate(self, params: Params) -> SimpleNamespace:
        """Objective at parameters, (column,)."""
        total = np.zeros(self.Y.shape[1])
        for first in range(0, len(self.X), _ROWS):
            rows = slice(first, first + _ROWS)
            eta = self.X[rows].astype(np.float64) @ params.coef + params.intercept
            total += self.loss.loss(self.Y[rows].astype(np.float64), eta).sum(axis=0)
        return SimpleNamespace(objective=total / len(self.X) + self.penalty.value(params.coef))


def _gam(loss: KnownLoss, terms: Any, strengths: Any, **parameters: Any) -> PopulationGAM:
    """Make the additive model of an observation model."""
    kind = type(loss.observation)
    name, link = next((name, link) for name, of in MODELS.items() for link, known in of.items() if known is kind)
    if isinstance(loss.observation, NegativeBinomial):
        parameters["dispersion"] = loss.observation.dispersion
    return PopulationGAM(terms, strengths, link, observation_model=name, **parameters)


def _known_strengths(strengths: np.ndarray, term: Any, mask: np.ndarray | None) -> np.ndarray:
    """Strengths of a term, 1 for neurons that have no fit or lack the term."""
    has = True if mask is None else mask[list(term.features)].any(axis=0)
    return np.where(np.isfinite(strengths) & has, strengths, 1.0)


def _loss_of(model: Any) -> KnownLoss:
    """Return the loss of a NeMoS model; refuse others."""
    if not isinstance(model, nemos.glm.GLM) or hasattr(model, "n_classes"):  # classifiers have classes
        raise TypeError(f"model is {shorten(model)}; fit_smooth takes a nemos.glm.GLM or a nemos.glm.PopulationGLM.")
    loss = known_loss(model.observation_model, model.inverse_link_function)
    if loss is None:
        link = getattr(model.inverse_link_function, "__name__", "its link")
        of = f"{type(model.observation_model).__name__} with {link}"
        raise ValueError(
            f"{of} has no certified fit; fit_smooth takes Poisson with softplus or exp, negative binomial and gamma "
            "with exp, Bernoulli with logistic, and Gaussian with identity. For others give the model "
            "regularizer=Smooth(terms) with strengths, and a solver of NeMoS."
        )
    return loss


def _matrix(features: Any) -> np.ndarray:
    """Features side by side, entries of a dictionary in the order of their names."""
    return np.concatenate([np.asarray(leaf) for leaf in jax.tree.leaves(features)], axis=1)
