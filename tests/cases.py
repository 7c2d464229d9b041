"""The members on which every law is tested. A new member is one line here."""

from collections.abc import Callable
from typing import NamedTuple

import mpmath as mp
import numpy as np

from glmfit import engine, observations, penalties, solvers
from glmfit.engine.certify import bounds_of
from glmfit.engine.loop import Run
from glmfit.saga.walk import SpectralView
from glmfit.solvers import LoopOptions

T, D, N = 600, 5, 3  # one shape for most tests, because compiling is slow
GROUPS = (0, 0, 1, 1, -1)
PER_COEF = np.outer([0.0, 0.01, 0.03, 0.03, 0.1], [1.0, 0.5, 2.0])  # the first feature is unpenalised

COUNTS = [0.0, 0.3, 1.0, 100.0]
OBSERVATIONS = {
    "softplus": observations.PoissonSoftplus(),
    "exp": observations.PoissonExp(),
}


class Loss(NamedTuple):
    """An observation model, responses to test it on, and its loss of (y, eta) as a formula of mpmath."""

    model: observations.Observation
    responses: list[float]
    exact: Callable


def _rate(a):
    return mp.log(1 + mp.exp(a))


LOSSES = {
    "softplus": Loss(observations.PoissonSoftplus(), COUNTS, lambda y, a: _rate(a) - y * mp.log(_rate(a))),
    "exp": Loss(observations.PoissonExp(), COUNTS, lambda y, a: mp.exp(a) - y * a),
    "logistic": Loss(observations.Bernoulli(), [0.0, 0.3, 1.0], lambda y, a: mp.log(1 + mp.exp(a)) - y * a),
    "squared": Loss(observations.Gaussian(), [-2.0, 0.0, 7.5], lambda y, a: a * a / 2 - y * a),
    "binomial": Loss(observations.Binomial(), [0.0, 0.25, 1.0], lambda y, a: mp.log(1 + mp.exp(a)) - y * a),
    "negative binomial": Loss(
        observations.NegativeBinomial(0.5), COUNTS, lambda y, a: (y + 2) * mp.log(1 + mp.exp(a) / 2) - y * a
    ),
    "nearly Poisson": Loss(
        observations.NegativeBinomial(1e-3), COUNTS, lambda y, a: (y + 1000) * mp.log(1 + mp.exp(a) / 1000) - y * a
    ),
    "gamma": Loss(observations.Gamma(0.5), [0.03, 0.7, 1.0, 40.0], lambda y, a: y * mp.exp(-a) + a),
}


PENALTIES = {  # name, strength (and ratio, groups) as tests/oracles/penalties.py takes them
    "none": ("UnRegularized", {"strength": 0.0}),
    "ridge": ("Ridge", {"strength": 0.01}),
    "ridge per neuron": ("Ridge", {"strength": np.array([0.0, 1e-3, 0.1])}),
    "lasso": ("Lasso", {"strength": 0.03}),
    "elastic net": ("ElasticNet", {"strength": 0.05, "ratio": 0.6}),
    "group lasso": ("GroupLasso", {"strength": 0.03, "groups": GROUPS}),
    "ridge per coefficient": ("Ridge", {"strength": PER_COEF}),
    "lasso per coefficient": ("Lasso", {"strength": PER_COEF}),
}

SOLVERS = {
    "saga": solvers.SAGA(),
    "saga subsets": solvers.SAGA(sampling="subsets"),
    "saga shuffle": solvers.SAGA(sampling="shuffle"),
    "saga global": solvers.SAGA(certificate="global"),
    "newton": solvers.Newton(),
    "conjugate gradients": engine.ConjugateGradients(),
}


def penalty(name, strength=0.0, ratio=0.5, groups=None, d=D, n=N):
    """Penalty of the package from the numbers the oracle takes."""
    return penalties.make(name, (strength, ratio) if name == "ElasticNet" else strength, d, n, groups=groups)


def problem(link, X, Y, name="Ridge", weights=None, dtype=np.float32, **numbers):
    """Population problem from the numbers the oracle takes."""
    made = penalty(name, **numbers, d=X.shape[1], n=Y.shape[1])
    return engine.PopulationProblem(X, Y, OBSERVATIONS[link], made, weights, dtype)


def solve(whole, options=None, start=None, hints=None):
    """Fit a problem by the engine's solver for its penalty."""
    solver = engine.ConjugateGradients if whole.penalty.smooth else engine.ProximalNewton
    return solver(hints=hints).run(whole, start, options=options)


def seen_by_saga(whole):
    """What SAGA sees of a problem."""
    return SpectralView.of(whole)


def proved_gap(whole, at, seed=0, dual=True):
    """Bound of the gap of every neuron at some parameters, as the engine has it before any exact Hessian.

    If there are kinks, by duality, too, unless ``dual`` is False.
    """
    run, fits = Run(whole, LoopOptions(tol=0.0, negligible=0.0), seed, at), np.arange(whole.n_neurons)
    run._begin()
    run.objective[:], run.attempts = np.inf, 1
    with run.rows(fits) as rows:
        group = run.descent(rows, fits)
        group.proofs[:] = 1
        run._look(group, dual=dual and not whole.penalty.smooth)
        return bounds_of(run, group, np.zeros(len(fits)), at)[0] + whole.rounding_of(at, run.objective)


def with_fit(params, n, reached):
    """Parameters in which those of one fit are replaced by the result of its exact steps."""
    coef, intercept = (a.copy() for a in params)
    coef[:, n], intercept[n] = reached.at[:-1], reached.at[-1]
    return type(params)(coef, intercept)


def recording(link="softplus", seed=0, t=T, d=D, n=N, rate=0.5, size=0.5):
    """Correlated features with a mean, and counts of neurons they drive: X (t, d), Y (t, n), float64."""
    rng = np.random.default_rng([seed, 7])
    X = rng.normal(size=(t, d)) @ (np.eye(d) + 0.5 * rng.normal(size=(d, d)) / np.sqrt(d)) + rng.normal(size=d)
    eta = (X - X.mean(axis=0)) @ rng.normal(size=(d, n)) * size / np.sqrt(d) + np.log(rate)
    Y = rng.poisson(np.exp(np.minimum(eta, 3)) if link == "exp" else np.logaddexp(0, eta))
    return X, Y.astype(float)


def design(kind, seed=0, t=T, d=D):
    """Designs that break careless bounds and bases, all (t, d)."""
    rng = np.random.default_rng([seed, 11])
    X = rng.normal(size=(t, d))
    if kind == "sign pairs":
        X[:, 1] = -X[:, 0]
    elif kind == "duplicate":
        X[:, 1] = X[:, 0]
    elif kind == "zero column":
        X[:, 2] = 0.0
    elif kind == "constant column":
        X[:, 2] = 3.7
    elif kind == "collinear":
        X[:, -1] = X[:, :-1] @ rng.normal(size=d - 1)
    elif kind == "scaled 1e8":
        X[:, 0] *= 1e8
    elif kind == "scaled 1e6":
        X *= 1e6
    elif kind == "scaled 1e-2":
        X *= 1e-2
    elif kind == "far mean":
        X += 50.0
    elif kind == "one row":
        X[1:] = 0.0
    elif kind == "outlier":
        X[0] *= 1e3
    elif kind == "clustered":
        X = X[rng.integers(0, 4, t)] + 1e-3 * X
    elif kind == "flat":
        X = np.linalg.qr(X)[0] * np.sqrt(t)
    elif kind != "random":
        raise KeyError(kind)
    return X


DESIGNS = (
    "random", "sign pairs", "duplicate", "zero column", "constant column", "collinear", "scaled 1e8",
    "scaled 1e6", "scaled 1e-2", "far mean", "one row", "outlier", "clustered", "flat",
)  # fmt: skip
