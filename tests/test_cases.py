"""The registry of members is complete: a new one cannot escape the laws."""

import inspect

import cases

from glmfit import observations, penalties
from glmfit.engine import LeastSquares, ProximalNewton
from glmfit.estimators.parameters import SOLVERS


def members(package, base):
    """Concrete classes that a package exports."""
    exported = (getattr(package, name) for name in package.__all__)
    return {c for c in exported if inspect.isclass(c) and issubclass(c, base) and c is not base}


def test_every_observation_is_registered():
    assert {type(case.model) for case in cases.LOSSES.values()} >= members(observations, observations.Observation)


def test_every_penalty_is_registered():
    made = {type(cases.penalty(name, **numbers)) for name, numbers in cases.PENALTIES.values()}
    assert made == members(penalties, penalties.Penalty)


def test_every_solver_is_registered():
    # These have other laws: those of penalties with kinks, and of normal responses.
    known = set(SOLVERS.values()) - {ProximalNewton, LeastSquares}
    assert {type(s) for s in cases.SOLVERS.values()} == known
