"""Solvers of packages that minimise the objectives of _peers_problems.py, and their ladders of settings.

A ladder is a precision and settings, loosest first; one process climbs it. NeMoS' settings are numbers of iterations,
because its tolerance does not tell when a gap is reached. The Newton solvers of its development branch have
tolerances.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

PACKAGES = ("nemos", "nemos-development", "sklearn", "statsmodels", "glum")
TOLS = tuple({"tol": 10.0**-k} for k in range(2, 9))
ITERATIONS = tuple({"maxiter": n, "tol": 1e-12} for n in (10, 30, 100, 300, 1000, 3000))
NEWTON = ({"tol": 1e-4}, {"tol": 1e-6})
SOLVERS = {
    "softplus": {"glmfit": ("auto", "Newton"), "nemos": ("LBFGS", "NonlinearCG")},
    "softmax": {
        "glmfit": ("auto", "BoundMajorization"),
        "nemos": ("LBFGS", "NonlinearCG"),
        "sklearn": ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga"),
    },
}
SOLVERS["exp"] = SOLVERS["softplus"] | {
    "sklearn": ("lbfgs", "newton-cholesky"),
    "statsmodels": ("bfgs", "CG"),
    "glum": ("irls-ls", "lbfgs"),
}


@dataclass(frozen=True)
class Rival:
    """A solver of a package, its ladders, and how it treats many neurons and later fits."""

    package: str
    solver: str
    ladders: tuple = field(compare=False)  # (precision, settings)
    tree: Path | None = None  # source that replaces the installed package

    @property
    def name(self) -> str:
        """Name in the results."""
        return f"{self.package} {self.solver}"

    @property
    def compiles(self) -> bool:
        """Whether the first fit with a setting may compile."""
        return self.package.startswith(("glmfit", "nemos"))

    @property
    def loops(self) -> bool:
        """Whether it fits one neuron after the other."""
        return self.package in ("sklearn", "statsmodels", "glum")


def rivals(link: str, nemos_tree: Path | None = None) -> list[Rival]:
    """Solvers of the installed packages, and of NeMoS' development branch if its source is given."""
    found = []
    for package, solvers in SOLVERS[link].items():
        if find_spec(package):
            found += [Rival(package, name, _ladders(package)) for name in solvers]
    if nemos_tree is not None:
        registry = (nemos_tree / "nemos" / "solvers" / "_solver_registry.py").read_text(encoding="utf-8")
        names = [name for name in ("Newton", "ProximalNewton") if f'"{name}"' in registry]
        ladders = (("float32", NEWTON), ("float64", NEWTON))
        found += [Rival("nemos-development", name, ladders, nemos_tree) for name in names]
    return found


def _ladders(package: str) -> tuple:
    if package == "glmfit":  # single precision only
        return (("float32", TOLS),)
    if package == "statsmodels":  # its tolerance is fixed
        return (("float64", ({},)),)
    settings = ITERATIONS if package == "nemos" else TOLS
    return (("float32", settings), ("float64", settings))


def why_absent(link: str, nemos_tree: Path | None = None) -> dict[str, str]:
    """Packages without a row, and the reasons."""
    there, absent = {rival.package for rival in rivals(link, nemos_tree)}, {}
    for package in PACKAGES:
        if package == "nemos-development" and package not in there:
            absent[package] = "was not given"
        elif package != "nemos-development" and find_spec(package) is None:
            absent[package] = "is not installed"
        elif package not in there:
            absent[package] = "has no softplus link" if link == "softplus" else "has no softmax with this ridge"
    return absent


# ---------------------------------------------------------------------------------------------- fits


def solver(package: str, name: str, link: str, strength: float, precision: str) -> Callable:
    """Return a function that fits features and counts, or labels, by a setting, and import its package."""
    if package.startswith("nemos"):
        import jax

        jax.config.update("jax_enable_x64", precision == "float64")
        return _nemos(name, link, strength)
    return {"glmfit": _glmfit, "sklearn": _sklearn, "glum": _glum, "statsmodels": _statsmodels}[package](
        name, link, strength
    )


def _quietly(model, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return np.asarray(model.coef_), np.asarray(model.intercept_)


def _glmfit(name, link, strength):
    import glmfit

    make = glmfit.SoftmaxGLM if link == "softmax" else partial(glmfit.PopulationGLM, link)
    make = partial(make, regularizer_strength=strength, solver_name=name, max_epochs=3000)
    make()  # imports
    return lambda X, Y, tol: _quietly(make(tol=tol), X, Y)


def _nemos(name, link, strength):
    import jax
    import nemos

    common = {"regularizer": "Ridge", "regularizer_strength": strength, "solver_name": name}
    nemos.glm.GLM(**common)  # imports

    def fit(X, Y, **setting):
        given = common | {"solver_kwargs": setting}
        if link == "softmax":
            return _quietly(nemos.glm.ClassifierGLM(int(Y.max()) + 1, **given), X, Y)
        given["inverse_link_function"] = {"softplus": jax.nn.softplus, "exp": jax.numpy.exp}[link]
        if Y.shape[1] > 1:
            return _quietly(nemos.glm.PopulationGLM(**given), X, Y)
        coef, intercept = _quietly(nemos.glm.GLM(**given), X, Y[:, 0])
        return coef[:, None], intercept

    return fit


def _loop(make: Callable) -> Callable:
    """Fit one model per neuron."""

    def fit(X, Y, tol):
        found = [_quietly(make(tol=tol), X, y) for y in np.ascontiguousarray(Y.T)]
        coef, intercept = zip(*found, strict=True)
        return np.stack(coef, axis=1), np.array(intercept)

    return fit


def _sklearn(name, link, strength):
    from sklearn.linear_model import LogisticRegression, PoissonRegressor

    if link == "exp":
        return _loop(partial(PoissonRegressor, alpha=strength, solver=name, max_iter=10_000))

    def fit(X, Y, tol):
        model = LogisticRegression(C=1 / (len(Y) * strength), solver=name, tol=tol, max_iter=10_000)
        coef, intercept = _quietly(model, X, Y)
        return coef.T, intercept

    return fit


def _glum(name, _link, strength):
    from glum import GeneralizedLinearRegressor

    made = {"family": "poisson", "link": "log", "alpha": strength, "l1_ratio": 0, "solver": name, "max_iter": 10_000}
    return _loop(lambda tol: GeneralizedLinearRegressor(gradient_tol=tol, **made))


def _statsmodels(name, _link, strength):
    """Ridge of a GLM by one of SciPy's minimisers."""
    import statsmodels.api as sm

    def fit(X, Y):
        X = np.column_stack([X, np.ones(len(X))])
        alpha, found = np.append(np.full(X.shape[1] - 1, strength), 0.0), []
        for y in Y.T:
            start = np.append(np.zeros(X.shape[1] - 1), np.log(max(y.mean(), 1e-8)))
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                model = sm.GLM(y, X, family=sm.families.Poisson())
                model = model.fit_regularized(alpha=alpha, L1_wt=0, start_params=start, opt_method=name)
            found.append(model.params)
        W = np.stack(found, axis=1)
        return W[:-1], W[-1]

    return fit
