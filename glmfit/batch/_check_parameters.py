"""Cheap checks of an estimator's parameters: all that can be known without data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import observations, penalties
from .._checks import check_real
from ..estimators._auto import read_population_solver
from ..estimators._parameters import read_count, read_flag, read_number
from ._estimators import COUNT_ESTIMATORS, make_estimator

_NOT_SMOOTH = ("Lasso", "ElasticNet", "GroupLasso")


def wrong_values(estimator: str, parameters: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Parameters whose values make no sense, with why."""
    model = make_estimator({"estimator": estimator, "parameters": parameters, "seed": 0})
    population = estimator in COUNT_ESTIMATORS
    for name, check in _checks(model, population, estimator):
        try:
            check()
        except (TypeError, ValueError) as error:
            yield name, str(error)


def _checks(model: Any, population: bool, estimator: str) -> Iterator[tuple[str, Any]]:
    """List checks with the parameter that each is about."""
    for name in ("tol", "cv_tol", "max_memory"):
        if hasattr(model, name):
            yield name, lambda name=name: read_number(name, getattr(model, name))
    if hasattr(model, "certify"):
        yield "certify", lambda: read_flag("certify", model.certify)
    if model.max_epochs is not None or population:
        yield "max_epochs", lambda: read_count("max_epochs", model.max_epochs)
    if population:
        yield "inverse_link_function", lambda: observations.from_inverse_link(model.inverse_link_function)
    if estimator == "PopulationGLM":
        yield "solver_name", lambda: _check_solver(model)
        yield "regularizer", lambda: _check_penalty(model)
    elif estimator == "PopulationGLMCV":
        from ..estimators._cv_fits import read_strengths
        from ..estimators.population_glm_cv import SOLVERS as CV_SOLVERS

        yield "solver_name", lambda: read_population_solver(model.solver_name, model.solver_kwargs, (), CV_SOLVERS)
        yield "strengths", lambda: read_strengths(model.strengths)
        yield "regularizer", model._check_words
    else:
        yield "solver_name", model._make_solver
        yield "regularizer_strength", model._strength
        yield "step", model._read_step
        yield "step_decay", lambda: check_real("step_decay", model.step_decay, 1.0, closed=True)


def _check_solver(model: Any) -> None:
    """Check the solver, and that it does what the penalty and the link need."""
    solver = read_population_solver(model.solver_name, model.solver_kwargs)
    smooth = getattr(solver, "smooth", None)  # None: it takes any penalty
    if smooth is not None and smooth == (model.regularizer in _NOT_SMOOTH):
        needs = "a smooth penalty" if smooth else "a penalty with kinks"
        raise ValueError(f'solver_name is {model.solver_name!r}, which needs {needs}; use "auto".')
    if getattr(solver, "certificate", None) == "global" and model.inverse_link_function == "exp":
        raise ValueError('certificate is "global", which the exp link has not; use "anchored".')


def _check_penalty(model: Any) -> None:
    """Check regulariser and strength as far as they do not depend on the numbers of features and neurons."""
    strength = model.regularizer_strength
    if isinstance(strength, list) or (isinstance(strength, tuple) and any(isinstance(s, list) for s in strength)):
        strength = None  # one per neuron: the data will tell
    groups = model.groups
    if model.regularizer == "GroupLasso" and groups is not None:
        return
    penalties.make(model.regularizer, strength, 1, 1, groups=groups)
