"""The registry of members is complete: a new one cannot escape the laws."""

import inspect

import cases

from glmfit import engine, observations, penalties, solvers


def members(package, base):
    """Concrete classes that a package exports."""
    exported = (getattr(package, name) for name in package.__all__)
    return {c for c in exported if inspect.isclass(c) and issubclass(c, base) and not inspect.isabstract(c)}


def test_every_observation_is_registered():
    assert {type(m) for m in cases.OBSERVATIONS.values()} == members(observations, observations.Observation)


def test_every_penalty_is_registered():
    made = {type(cases.penalty(name, **numbers)) for name, numbers in cases.PENALTIES.values()}
    assert made == members(penalties, penalties.Penalty)


def test_every_solver_is_registered():
    # Their laws stand in test_softmax_exact_laws.py and in those of the two ways of majorization.
    of_classes = {solvers.ConjugateGradients, solvers.BoundMajorization, solvers.IncrementalMajorization}
    known = members(solvers, solvers.Solver) - of_classes | {engine.ConjugateGradients, solvers.SAGA}
    assert {type(s) for s in cases.SOLVERS.values()} == known
