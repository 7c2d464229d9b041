"""Observation models and masks: cost relative to Poisson counts, and agreement with other packages.

    python benchmarks/observation_models.py [--sections designs,masks,ridge_cv,dispersion,agreement] [--data FOLDER]

Recorded designs need the folder of the recordings. Responses of other models are made from the counts: spike or none
(Bernoulli), up to four of four (binomial), square roots (Gaussian), counts plus a little gamma noise (gamma).
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from _common import ROOT, Section, interleaved, median, run_sections, timed
from _designs import DESIGNS

RIDGE, SHARE, TRIALS, REPEATS = 1e-4, 0.1, 4, 5
NAMES = (
    "w_maze_place",
    "w_maze_place_and_history",
    "open_field_place",
    "open_field_coupling",
    "motor_cortex_velocity_lags",
)
MODELS = ("NegativeBinomial", "Bernoulli", "Binomial", "Gaussian", "Gamma")


def fit(observation_model: str, X, Y, link=None, **parameters):
    """Fit a population without warnings."""
    from glmfit import PopulationGLM

    more = {"exposure": np.full(len(X), float(TRIALS))} if observation_model == "Binomial" else {}
    given = {"regularizer": "Ridge", "regularizer_strength": RIDGE} | parameters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PopulationGLM(link, observation_model=observation_model, **given).fit(X, Y, **more)


def responses(observation_model: str, Y: np.ndarray) -> np.ndarray:
    """Responses for a model, of the shape of counts."""
    rng = np.random.default_rng(0)
    of = {"Bernoulli": lambda: (Y > 0) * 1.0, "Binomial": lambda: np.minimum(Y, TRIALS), "Gaussian": lambda: np.sqrt(Y),
          "Gamma": lambda: Y + rng.gamma(2.0, 0.25, Y.shape)}  # fmt: skip
    return of.get(observation_model, lambda: Y)()


def some_rows(folder: Path, name: str, scale: float):
    """Rows of a recorded design."""
    X, Y = DESIGNS[name](folder)
    n = max(400, int(scale * len(X)))
    X, Y = X[:n], Y[:n]
    return X, np.ascontiguousarray(Y[:, Y.sum(axis=0) > 0])


def designs(_cache, scale: float, section: Section, *, folder: Path) -> None:
    """Later fits of every model relative to Poisson counts (exp link) of the same shape, with ridge 1e-4."""
    for name in NAMES:
        X, Y = some_rows(folder, name, scale)
        estimated = fit("NegativeBinomial", X, Y)
        calls = {"Poisson": functools.partial(fit, "Poisson", X, Y, "exp")}
        for model in MODELS:
            known = {"dispersion": estimated.dispersion_} if model == "NegativeBinomial" else {}
            calls[model] = functools.partial(fit, model, X, responses(model, Y), **known)
        models = {model: call() for model, call in calls.items()}
        calls["dispersion estimated"] = functools.partial(fit, "NegativeBinomial", X, Y)
        seconds = {what: median(values) for what, values in interleaved(calls, REPEATS).items()}
        proved = {model: float(made.report_.converged.mean()) for model, made in models.items()}
        section.note(**{name: {"shape": [*X.shape, Y.shape[1]], "seconds": seconds, "proved": proved}})
        for model in MODELS:
            section.require(
                f"{name}: {model}", seconds[model], seconds["Poisson"], limit=1.3, against="Poisson, exp", topic="cost"
            )


def masks(_cache, scale: float, section: Section, *, folder: Path) -> None:
    """Fits with a tenth of all bins masked, and with every second unit lost halfway, relative to fits of all bins."""
    for name in NAMES:
        X, Y = some_rows(folder, name, scale)
        holes = np.where(np.random.default_rng(0).random(Y.shape) < SHARE, np.nan, Y)
        lost = Y.copy()
        lost[len(Y) // 2 :, ::2] = np.nan
        for link in ("softplus", "exp"):
            given = {"all bins": Y, "a tenth masked": holes, "units lost halfway": lost}
            calls = {what: functools.partial(fit, "Poisson", X, y, link) for what, y in given.items()}
            models = {what: call() for what, call in calls.items()}
            seconds = {what: median(values) for what, values in interleaved(calls, REPEATS).items()}
            proved = {what: float(model.report_.converged.mean()) for what, model in models.items()}
            section.note(**{f"{name}, {link}": {"seconds": seconds, "proved": proved}})
            for what in list(given)[1:]:
                about = f"{name}, {link}: {what}"
                section.require(about, seconds[what], seconds["all bins"], limit=1.5, against="all bins")


def ridge_cv(_cache, scale: float, section: Section) -> None:
    """Gaussian responses, 500 neurons, 200 000 bins, 45 features, 50 strengths, 5 folds: RidgeCV in a loop.

    The loop is extrapolated from three neurons.
    """
    from sklearn.linear_model import RidgeCV

    from glmfit import PopulationGLMCV

    T, d, N, some = int(200_000 * scale), 45, 500, 3
    rng = np.random.default_rng(0)
    X = np.cumsum(rng.normal(size=(T, d)), axis=0) * 0.02 + rng.normal(size=(T, d))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    Y = X @ rng.normal(size=(d, N)) * 0.05 + rng.normal(size=(T, N))
    strengths, number = np.logspace(-6, 1, 50), np.arange(T) * 5 // T
    folds = [(np.flatnonzero(number != f), np.flatnonzero(number == f)) for f in range(5)]
    ours, model = timed(
        lambda: PopulationGLMCV(observation_model="Gaussian", strengths=strengths, cv=folds, scoring="D2").fit(X, Y)
    )
    alphas = strengths * 0.8 * T  # its penalty is not divided by the number of rows
    start = time.perf_counter()
    theirs = [RidgeCV(alphas, cv=folds, scoring="r2").fit(X, Y[:, n]) for n in range(some)]
    loop = (time.perf_counter() - start) / some * N
    same = np.mean([np.isclose(fit.alpha_, 0.8 * T * model.strength_[n]) for n, fit in enumerate(theirs)])
    section.note(
        seconds=ours, loop_extrapolated=loop, same_strength=float(same), proved=float(model.cv_converged_.mean()),
        fits=int(model.cv_scores_.size), solver=model.report_.solver_name,
    )  # fmt: skip
    section.require("500 neurons, 50 strengths, 5 folds", ours, loop, limit=0.1, against="RidgeCV in a loop")
    proved = model.cv_converged_.mean()
    section.require("fits proved", proved, 1.0, limit=1.0, against="all", unit="", at_least=True, topic="bound")


def of_motor_cortex(folder: Path):
    """Velocity lags, standardised, and counts of the 50 busiest units."""
    X, Y = DESIGNS["motor_cortex_velocity_lags"](folder)
    X, Y = X[:, X.std(axis=0) > 1e-3].astype(np.float64), Y.astype(np.float64)
    X = (X - X.mean(axis=0)) / X.std(axis=0)  # statsmodels needs this to converge
    return X, np.ascontiguousarray(Y[:, np.sort(np.argsort(Y.sum(axis=0))[::-1][:50])])


def simulated(folder: Path):
    """Counts with dispersions of 0.1 to 2 at the rates of a fit."""
    X, Y = of_motor_cortex(folder)
    rate, rng = fit("Poisson", X, Y, "exp").predict(X), np.random.default_rng(0)
    spread = rng.uniform(0.1, 2, Y.shape[1])
    return X, rng.poisson(rate * rng.gamma(1 / spread, spread, rate.shape)).astype(np.float64)


def pooled(folder: Path):
    """Recorded counts in bins of 200 ms, each pooled from ten."""
    X, Y = (a[: len(a) // 10 * 10].reshape(-1, 10, a.shape[1]) for a in of_motor_cortex(folder))
    return X.mean(axis=1), Y.sum(axis=1)


def dispersion(_cache, scale: float, section: Section, *, folder: Path) -> None:
    """Dispersion of 50 units by maximum likelihood, without a penalty: statsmodels at its defaults (BFGS), one by one.

    Only units are compared for which statsmodels reports convergence and a dispersion above 1e-3 (below is Poisson).
    """
    import statsmodels.api as sm

    for name, of in {"simulated, 20 ms": simulated, "recorded, 200 ms": pooled}.items():
        X, Y = of(folder)
        X, Y = X[:, : max(2, int(scale * X.shape[1]))], Y[:, : max(3, int(scale * Y.shape[1]))]
        rows, off, seconds, better = sm.add_constant(X), [], 0.0, 0
        calls = [timed(lambda X=X, Y=Y: fit("NegativeBinomial", X, Y, regularizer=None, regularizer_strength=None))
                 for _ in range(4)]  # fmt: skip
        ours, model = median([taken for taken, _ in calls[1:]]), calls[-1][1]
        likelihood = model.score(X, Y, score_type="log-likelihood", per_neuron=True) * len(X)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for n in range(Y.shape[1]):
                alone = sm.NegativeBinomial(Y[:, n], rows)
                taken, found = timed(lambda alone=alone: alone.fit(disp=0, maxiter=1000))
                seconds += taken
                if found.mle_retvals["converged"] and found.params[-1] > 1e-3:
                    off.append(abs(model.dispersion_[n] / float(found.params[-1]) - 1))
                    better += likelihood[n] > found.llf - 1e-3
        worst = max(off, default=np.inf)
        section.note(**{name: {
            "shape": [*X.shape, Y.shape[1]], "seconds": ours, "first": calls[0][0], "statsmodels": seconds,
            "compared": len(off), "difference": worst, "at_least_as_likely": better,
            "proved": float(model.report_.converged.mean()), "dispersion": np.quantile(model.dispersion_, (0, 0.5, 1)),
        }})  # fmt: skip
        one = {"unit": "", "topic": "bound", "limit": 1.0}
        section.require(f"{name}: largest relative difference", worst, 1e-3, against="limit", **one)
        section.require(f"{name}: at least as likely", better, len(off), against="all", at_least=True, **one)
        aim = name.startswith("recorded")  # with so few bins, both take a fraction of a second
        section.require(f"{name}: seconds", ours, seconds, limit=0.1, against="statsmodels, one by one", aim=aim)


def agreement(_cache, scale: float, section: Section) -> None:
    """Coefficients of simulated data without and with a ridge: largest difference from statsmodels and scikit-learn."""
    import statsmodels.api as sm
    from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, Ridge

    T, d, strength = int(5000 * scale), 8, 1e-3
    rng = np.random.default_rng(0)
    X = rng.normal(size=(T, d)) @ (np.eye(d) + 0.2)
    eta = X @ rng.normal(size=d) * 0.2 - 0.3
    mu, p = np.exp(eta), 1 / (1 + np.exp(-eta))
    families = sm.families
    cases = {
        "Poisson": (rng.poisson(mu), families.Poisson()),
        "NegativeBinomial": (rng.poisson(mu * rng.gamma(2, 0.5, T)), families.NegativeBinomial(alpha=0.5)),
        "Bernoulli": ((rng.random(T) < p) * 1, families.Binomial()),
        "Binomial": (rng.binomial(TRIALS, p), families.Binomial()),
        "Gaussian": (5 + 3 * eta + rng.normal(size=T), families.Gaussian()),
        "Gamma": (mu * rng.gamma(2, 0.5, T), families.Gamma(families.links.Log())),
    }
    theirs = {
        "Poisson": PoissonRegressor(alpha=strength, tol=1e-12, solver="newton-cholesky"),
        "Bernoulli": LogisticRegression(C=1 / (strength * T), tol=1e-12, solver="newton-cholesky"),
        "Gaussian": Ridge(alpha=strength * T),
        "Gamma": GammaRegressor(alpha=strength, tol=1e-12, solver="newton-cholesky"),
    }
    for name, (y, family) in cases.items():
        known = {"dispersion": 0.5} if name == "NegativeBinomial" else {}
        link = "exp" if name == "Poisson" else None
        target = np.column_stack([y, TRIALS - y]) if name == "Binomial" else y
        best = sm.GLM(target, sm.add_constant(X), family).fit(tol=1e-14, maxiter=200).params
        ours = fit(name, X, y, link, regularizer=None, regularizer_strength=None, tol=1e-14, **known)
        away = {"statsmodels": float(np.max(np.abs(np.append(ours.intercept_, ours.coef_) - best)))}
        if name in theirs:
            ours = fit(name, X, y, link, regularizer_strength=strength, tol=1e-14)
            away["scikit-learn, ridge"] = float(np.max(np.abs(ours.coef_ - np.ravel(theirs[name].fit(X, y).coef_))))
        section.note(**{name: away})
        for package, value in away.items():
            section.require(f"{name}: {package}", value, 1e-6, limit=1.0, against="limit", unit="", topic="bound")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    options, rest = parser.parse_known_args()
    sections = {f.__name__: f for f in (designs, masks, ridge_cv, dispersion, agreement)}
    for recorded in ("designs", "masks", "dispersion"):
        sections[recorded] = functools.partial(sections[recorded], folder=options.data)
        sections[recorded].__doc__ = globals()[recorded].__doc__
    sys.exit(run_sections(__doc__, sections, "observation_models.json", rest))
