"""Contribution of each group of features: nested models, strengths, folds and draws of a null in one solve.

    python benchmarks/explain.py [--sections poisson,gaussian,draws,nested_variants] [--data FOLDER]

Simulated neurons drift like recorded units, so the folder of the recordings is needed.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from _common import ROOT, Section, run_sections, timed

GROUPS, PER_GROUP, FOLDS = 9, 5, 5
STRENGTHS = np.logspace(-5, -0.5, 10)


def drifts(folder: Path, n_rows: int, n_neurons: int, rng: np.random.Generator) -> np.ndarray:
    """Slow changes of log rate, (time, neuron), of variance one: smoothed counts of recorded units, joined randomly."""
    counts = np.load(folder / "m1_reach.npz")["counts"].astype(float)
    width = 100
    smooth = np.apply_along_axis(np.convolve, 0, counts[:, counts.sum(axis=0) > 500], np.hanning(width), "same")
    pieces = np.log(smooth + 0.5)
    pieces = (pieces - pieces.mean(axis=0)) / pieces.std(axis=0)
    out = np.empty((n_rows, n_neurons))
    for n in range(n_neurons):
        parts, length = [], 0
        while length < n_rows:
            parts.append(np.roll(pieces[:, rng.integers(pieces.shape[1])], rng.integers(len(pieces))))
            length += len(pieces)
        out[:, n] = np.concatenate(parts)[:n_rows]
    return out


def session(folder: Path, scale: float, n_neurons: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict]:
    """Features of events and of slow variables, (time, 45), linear predictors without noise, and groups.

    Six groups are events every three seconds or so, in five overlapping bumps; three are slow variables at five lags.
    Each neuron follows 60 % of the groups, and drifts like recorded units.
    """
    rng = np.random.default_rng(seed)
    T, X = int(200_000 * scale), []
    for g in range(GROUPS):
        if g % 3 == 2:
            slow = rng.normal(size=T)
            for t in range(1, T):
                slow[t] += 0.98 * slow[t - 1]
            X += [np.roll(slow / slow.std(), 5 * lag) for lag in range(PER_GROUP)]
        else:
            event = (rng.random(T) < 1 / 150) * rng.choice([0.25, 0.5, 1.0], T)
            bumps = [np.maximum(0, 1 - np.abs(np.arange(60) - 8 * j - 8) / 10) for j in range(PER_GROUP)]
            X += [np.convolve(event, bump)[:T] for bump in bumps]
    X = np.column_stack(X).astype(np.float32)
    follows = np.repeat(rng.random((GROUPS, n_neurons)) < 0.6, PER_GROUP, axis=0)
    W = follows * rng.normal(size=(X.shape[1], n_neurons)) * 0.06
    eta = (X / X.std(axis=0)) @ W + 0.3 * drifts(folder, T, n_neurons, rng) + rng.uniform(-3, -0.5, n_neurons)
    groups = {f"group {g}": list(range(PER_GROUP * g, PER_GROUP * (g + 1))) for g in range(GROUPS)}
    return X, eta, groups


def _poisson(strengths=STRENGTHS):
    from glmfit import PopulationGLMCV

    return PopulationGLMCV(inverse_link_function="exp", strengths=strengths, cv=FOLDS)


def poisson(_cache, scale: float, section: Section, *, folder: Path) -> None:
    """500 neurons, 200 000 bins, 45 features, 9 groups dropped in turn, 5 folds, 10 strengths chosen within them.

    scikit-learn's PoissonRegressor (newton-cholesky) makes the same fits in a loop; one model of one neuron (a tenth
    of that neuron's fits) is timed, and the rest is extrapolated.
    """
    from sklearn.linear_model import PoissonRegressor

    from glmfit.inference import explain

    N = max(4, int(500 * scale))
    X, eta, groups = session(folder, scale, N)
    Y = np.random.default_rng(1).poisson(np.exp(np.minimum(eta, 3))).astype(np.float32)
    seconds, found = timed(lambda: explain(_poisson(), X, Y, groups, kinds="unique"))
    section.note(
        shape=[*X.shape, N], seconds=seconds, fits=int(found.n_fits.sum()), proved=int(found.n_proved.sum()),
        largest_off=float(found.off.max()), d2=np.quantile(found.d2[0], (0.1, 0.5, 0.9)),
        rate=np.quantile(Y.mean(axis=0), (0.1, 0.5, 0.9)),
    )  # fmt: skip
    number, y, n_fits = np.arange(len(X)) * FOLDS // len(X), Y[:, 0], 0
    start = time.perf_counter()
    for outer in range(FOLDS):
        others, scores = [k for k in range(FOLDS) if k != outer], np.zeros(len(STRENGTHS))
        for inner in others:
            train, test = (number != outer) & (number != inner), number == inner
            for s, alpha in enumerate(STRENGTHS):
                model = PoissonRegressor(alpha=alpha, solver="newton-cholesky", max_iter=300).fit(X[train], y[train])
                scores[s] += test.sum() * model.score(X[test], y[test])
                n_fits += 1
        best = STRENGTHS[np.argmax(scores)]
        PoissonRegressor(alpha=best, solver="newton-cholesky", max_iter=300).fit(X[number != outer], y[number != outer])
        n_fits += 1
    loop = time.perf_counter() - start
    section.note(rival_fits=n_fits, rival_seconds=loop)
    section.require("seconds", seconds, 900, limit=1, against="limit")
    section.require(
        "fits proved", found.n_proved.sum(), found.n_fits.sum(), limit=1, against="all", unit="", at_least=True
    )
    whole = loop * (GROUPS + 1) * N
    section.require("seconds", seconds, whole, limit=1 / 20, against="scikit-learn in a loop, extrapolated")


def gaussian(_cache, scale: float, section: Section, *, folder: Path) -> None:
    """The same with Gaussian responses and 50 strengths."""
    from glmfit import PopulationGLMCV
    from glmfit.inference import explain

    N = max(4, int(500 * scale))
    X, eta, groups = session(folder, scale, N)
    Y = eta + np.random.default_rng(1).normal(size=eta.shape)
    model = PopulationGLMCV(observation_model="Gaussian", strengths=np.logspace(-3, 2, 50), cv=FOLDS)
    seconds, found = timed(lambda: explain(model, X, Y, groups, kinds="unique"))
    section.note(
        shape=[*X.shape, N], seconds=seconds, fits=int(found.n_fits.sum()), proved=int(found.n_proved.sum()),
        largest_off=float(found.off.max()),
    )  # fmt: skip
    section.require("seconds", seconds, 120, limit=1, against="limit")
    section.require(
        "fits proved", found.n_proved.sum(), found.n_fits.sum(), limit=1, against="all", unit="", at_least=True
    )


def draws(_cache, scale: float, section: Section, *, folder: Path) -> None:
    """100 circular shifts of the counts of 12 of these neurons: all draws, and only verdicts at 5 %.

    A neuron is far from the level if each p-value from all draws is the smallest possible one, or above 0.25.
    """
    from glmfit.inference import CircularShift, explain

    N = 12
    X, eta, groups = session(folder, scale, N)
    Y = np.random.default_rng(1).poisson(np.exp(np.minimum(eta, 3))).astype(np.float32)
    null = CircularShift(100, least=max(2, int(1000 * scale)))

    def run(neurons, **more):
        return timed(lambda: explain(_poisson(), X, Y[:, neurons], groups, kinds="unique", **more))

    run([0])
    every = np.arange(N)
    alone, _ = run(every)
    whole, all_ = run(every, null=null, level=None)
    p = all_.p_value
    far = np.all((p <= 1 / 101 + 1e-9) | (p > 0.25), axis=0)
    section.note(
        shape=[*X.shape, N],
        seconds_without=alone,
        seconds_all=whole,
        far=int(far.sum()),
        p_values=np.sort(p, axis=None),
    )
    section.require("100 draws, all of them", whole - alone, alone, limit=30, against="one explanation without")
    some, quick = run(every, null=null)
    agree = (quick.p_value <= 0.05) == (p <= 0.05)
    section.note(
        seconds_verdicts=some, same_verdicts=float(agree.mean()), draws=int(quick.n_draws.sum()),
        decided_loosely=int(quick.n_loose.sum()), possible=int(100 * np.isfinite(p).sum()),
    )  # fmt: skip
    section.require("same verdicts", agree.mean(), 1, limit=1, against="all draws", unit="", at_least=True)
    section.require(
        "100 draws, verdicts only, all neurons",
        some - alone,
        alone,
        limit=5,
        against="one explanation without",
        aim=True,
    )
    if far.any():
        away = np.flatnonzero(far)
        alone_far, _ = run(away)
        some_far, _ = run(away, null=null)
        section.note(seconds_far_without=alone_far, seconds_far_verdicts=some_far)
        section.require(
            "100 draws, verdicts only, neurons far from the level", some_far - alone_far, alone_far, limit=5,
            against="one explanation without",
        )  # fmt: skip


def nested_variants(_cache, scale: float, section: Section) -> None:
    """25 000 bins of 25 ms, 50 units, 10 nested variants, 8 strengths, 3 folds, elastic net of ratio 0.9.

    B-splines of ten variables, as in a NeMoS user's analysis, rank deficient. We also choose the strengths inside the
    training folds, which takes twice the fits. NeMoS makes three fits with ProximalGradient, of at most 1 000
    iterations, from which 240 are extrapolated.
    """
    import jax
    import nemos as nmo

    from glmfit import PopulationGLMCV
    from glmfit.inference import explain

    T, N = int(25_000 * scale), 50
    rng = np.random.default_rng(0)
    trial = 141
    phase = np.arange(T) % trial / trial
    walks = [np.cumsum(rng.normal(size=T)) for _ in range(9)]
    signals = [phase, *((w - w.min()) / np.ptp(w) for w in walks)]
    basis = nmo.basis.BSplineEval(6, bounds=(0, 1))
    parts = [np.asarray(basis.compute_features(s)) for s in signals]
    X = np.concatenate(parts, axis=1)
    X = (X - X.mean(axis=0)).astype(np.float32)
    groups = {f"signal {k}": list(range(6 * k, 6 * k + 6)) for k in range(10)}
    variants = {f"{k + 1} signals": [f"signal {j}" for j in range(k + 1)] for k in range(10)}
    W = rng.normal(size=(X.shape[1], N)) * (rng.random((X.shape[1], N)) < 0.3)
    Y = rng.poisson(np.logaddexp(0, X @ W - 1.5)).astype(np.float32)
    strengths = np.logspace(-4, -1.5, 8)
    model = PopulationGLMCV(regularizer="ElasticNet", l1_ratio=0.9, strengths=strengths, cv=3, cv_tol=1e-6)
    call = functools.partial(explain, model, X, Y, groups, kinds=[], models=variants)
    first, found = timed(call)
    seconds, found = timed(call)
    section.note(
        shape=[*X.shape, N], seconds=[first, seconds], fits=int(found.n_fits.sum()), proved=int(found.n_proved.sum())
    )
    spent, converged, train = [], 0, np.arange(T) * 3 // T != 0
    for k, strength in ((3, strengths[2]), (6, strengths[5]), (9, strengths[3])):
        rival = nmo.glm.PopulationGLM(
            inverse_link_function=jax.nn.softplus, regularizer="ElasticNet", solver_name="ProximalGradient",
            regularizer_strength=(float(strength), 0.9), solver_kwargs={"maxiter": 1000, "tol": 1e-6},
        )  # fmt: skip
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            spent.append(timed(functools.partial(rival.fit, X[train, : 6 * (k + 1)], Y[train]))[0])
        converged += not any("converge" in str(warning.message) for warning in said)
    whole = float(np.mean(spent)) * 240
    section.note(rival_seconds_each=spent, rival_converged=converged, rival_seconds=whole, nemos=nmo.__version__)
    section.require("seconds", seconds, whole, limit=0.1, against="NeMoS ProximalGradient, from 3 of 240 fits")
    section.require(
        "fits proved", found.n_proved.sum(), found.n_fits.sum(), limit=1, against="all", unit="", at_least=True
    )


def false_positives(_cache, scale: float, section: Section, *, folder: Path) -> None:
    """500 neurons that drift like recorded units and do not depend on the features: share of p-values up to 5 %."""
    from glmfit import PopulationGLM
    from glmfit.inference import CircularShift, LinearShift, drop_groups, explain

    N, T = max(20, int(500 * scale)), 6000
    rng = np.random.default_rng(3)
    slow = rng.normal(size=(T, 4))
    for t in range(1, T):
        slow[t] += 0.99 * slow[t - 1]
    X = slow / slow.std(axis=0)
    Y = rng.poisson(np.exp(0.7 * drifts(folder, T, N, rng) - 1)).astype(float)
    groups = {"a": [0, 1], "b": [2, 3]}
    model = PopulationGLM(inverse_link_function="exp", regularizer="Ridge", regularizer_strength=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = drop_groups(model.fit(X, Y), X, Y, groups)
    rates = {"chi-squared": float(np.mean(table.p_value <= 0.05))}
    for name, null in (("circular shifts", CircularShift(99, least=100)), ("linear shifts", LinearShift(1000, 99))):
        seconds, found = timed(lambda: explain(model, X, Y, groups, kinds="unique", null=null))  # noqa: B023
        rates[name] = float(np.mean(found.p_value[1:] <= 0.05))
        rates[f"{name}, seconds"] = seconds
    section.note(shape=[T, 4, N], rates=rates)
    one = {"unit": "", "topic": "bound"}
    section.require(
        "false positives at 5 %, circular shifts", rates["circular shifts"], 0.07, limit=1, against="limit", **one
    )
    section.require(
        "false positives at 5 %, circular shifts",
        rates["circular shifts"],
        0.03,
        limit=1,
        against="least",
        at_least=True,
        **one,
    )
    section.require(
        "false positives at 5 %, linear shifts", rates["linear shifts"], 0.07, limit=1, against="limit", **one
    )
    section.require(
        "false positives at 5 %, chi-squared", rates["chi-squared"], 0.07, limit=1, against="limit", aim=True, **one
    )


def agreement(_cache, scale: float, section: Section) -> None:
    """A small problem, all models, folds and strengths, compared fit by fit with scikit-learn: largest difference."""
    from sklearn.linear_model import PoissonRegressor

    from glmfit import PopulationGLMCV
    from glmfit.inference import explain

    rng = np.random.default_rng(0)
    T, d, K, tried = 600, 6, 4, np.array([1e-3, 1e-2, 1e-1])
    X = rng.normal(size=(T, d)) @ (np.eye(d) + 0.3)
    Y = rng.poisson(np.exp(0.3 * X[:, :2].sum(axis=1, keepdims=True) + [-0.5, -1.0])).astype(float)
    model = PopulationGLMCV(inverse_link_function="exp", strengths=tried, cv=K, tol=1e-12)
    found = explain(model, X, Y, {"a": [0, 1], "b": [2, 3], "c": [4, 5]}, order=["a", "b", "c"])
    number, worst = np.arange(T) * K // T, 0.0

    def loss(train, test, alpha, mask, y):
        if not mask.any():
            eta = np.full(test.sum(), np.log(y[train].mean()))
        else:
            fit = PoissonRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-12, max_iter=1000)
            fit.fit(X[train][:, mask], y[train])
            eta = np.log(fit.predict(X[test][:, mask]))
        return float(np.sum(np.exp(eta) - y[test] * eta))

    for n in range(2):
        for m, mask in enumerate(found.members):
            for k in range(K):
                scores = [
                    sum(loss((number != k) & (number != j), number == j, a, mask, Y[:, n]) for j in range(K) if j != k)
                    for a in tried
                ]
                best = tried[np.argmin(scores)]
                worst = max(worst, abs(loss(number != k, number == k, best, mask, Y[:, n]) - found.loss[m, k, n]))
    section.note(models=len(found.model), difference=worst)
    section.require("largest difference in nats", worst, 1e-4, limit=1, against="limit", unit="", topic="bound")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    options, rest = parser.parse_known_args()
    sections = {f.__name__: f for f in (poisson, gaussian, draws, nested_variants, false_positives, agreement)}
    for recorded in ("poisson", "gaussian", "draws", "false_positives"):
        sections[recorded] = functools.partial(sections[recorded], folder=options.data)
        sections[recorded].__doc__ = globals()[recorded].__doc__
    sys.exit(run_sections(__doc__, sections, "explain.json", rest))
