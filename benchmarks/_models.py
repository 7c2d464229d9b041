"""The compared models, created by name, and the facts that their fits report."""

from __future__ import annotations

import warnings

import numpy as np
from _common import median, timed
from _problems import STRENGTH, Problem, gaps, newton


def make_model(kind: str, link: str = "softplus", strength=STRENGTH, **parameters):
    """Make an unfitted model.

    "glmfit"; "nemos" (L-BFGS, 400 iterations); "nemos+glmfit" (NeMoS with our solver); "sklearn" (one neuron, exp).
    "cv" (strengths of a ridge by cross-validation) and "separate" (its fits one by one). Neuron by neuron, in float64:
    "each-newton" (ridge, NumPy), "each-sklearn" (ridge, exp) and "each-glum" (exp).
    """
    if kind == "glmfit":
        from glmfit import PopulationGLM

        strength = np.asarray(strength) if isinstance(strength, list) else strength
        return PopulationGLM(inverse_link_function=link, regularizer_strength=strength, **parameters)
    if kind in ("nemos", "nemos+glmfit"):
        import jax
        import nemos

        solver = {"solver_name": "LBFGS", "solver_kwargs": {"maxiter": 400, "tol": 1e-12}}
        if kind == "nemos+glmfit":
            import glmfit.plugins.nemos  # noqa: F401  registers the solver

            solver = {"solver_name": "SAGA[glmfit]"}
        return nemos.glm.PopulationGLM(
            inverse_link_function={"softplus": jax.nn.softplus, "exp": jax.numpy.exp}[link],
            regularizer="Ridge",
            regularizer_strength=strength,
            **(solver | parameters),
        )
    if kind == "sklearn":
        from sklearn.linear_model import PoissonRegressor

        return PoissonRegressor(alpha=strength, solver="newton-cholesky", max_iter=100, **parameters)
    if kind == "cv":
        from glmfit import PopulationGLMCV

        return PopulationGLMCV(inverse_link_function=link, **parameters)
    if kind == "separate":
        make_model("glmfit")  # imports
        return SeparateFits(link)
    if kind == "each-newton":
        return NumPyNewton(link, strength)
    if kind == "each-sklearn":
        make_model("sklearn")  # imports
        return Each(lambda: make_model("sklearn", strength=strength, tol=1e-5))
    if kind == "each-glum":
        from glum import GeneralizedLinearRegressor

        options = {"family": "poisson", "link": "log", "alpha": strength, "max_iter": 1000}
        return Each(lambda: GeneralizedLinearRegressor(**options, **parameters))
    raise ValueError(f"no model is called {kind!r}")


class Each:
    """A single-neuron model fitted to all neurons one after the other, in float64."""

    def __init__(self, make):
        self.make = make

    def fit(self, X, Y):
        """Fit one model per column."""
        X, Y = X.astype(np.float64), np.ascontiguousarray(Y.T, np.float64)
        models = [self.make().fit(X, y) for y in Y]
        self.coef_ = np.stack([model.coef_ for model in models], 1)
        self.intercept_ = np.array([model.intercept_ for model in models])
        return self


class NumPyNewton:
    """Damped Newton for a ridge, neuron by neuron in float64; it stops at a gap of about 1e-8 nats."""

    def __init__(self, link: str, strength: float):
        self.link, self.strength = link, strength

    def fit(self, X, Y):
        """Fit one column after the other."""
        found, *_ = newton(Problem("all", self.link, self.strength, X, Y), stop=1e-7)
        self.coef_, self.intercept_ = found[:-1], found[-1]
        return self


class SeparateFits:
    """The fits of a cross-validation one by one, to the tolerance of `PopulationGLMCV`.

    The fits to all rows, the scores and the final fit are omitted.
    """

    def __init__(self, link: str):
        self.link = link

    def fit(self, X, Y):
        """Fit eight strengths with each of five blocks of rows held out; keep the last model."""
        for fold in np.array_split(np.arange(len(X)), 5):
            x, y = np.delete(X, fold, axis=0), np.delete(Y, fold, axis=0)
            for strength in np.logspace(-6, 0, 8):
                model = make_model("glmfit", self.link, strength, tol=1e-5).fit(x, y)
        self.coef_, self.intercept_ = model.coef_, model.intercept_
        return self


def fit_quietly(model, X, y, **more):
    """Fit, wait for the result, drop warnings (the figures report what did not converge)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y, **more)
    np.asarray(model.coef_), np.asarray(model.intercept_)
    return model


def timed_fit(kind: str, problem: Problem, **parameters):
    """Seconds of ``fit``, and the fitted model."""
    model = make_model(kind, link=problem.link, **({"strength": problem.strength} | parameters))
    return timed(lambda: fit_quietly(model, problem.X, problem.Y))


def fit_summary(model) -> dict:
    """Summarise a fit: the report for glmfit, iterations for NeMoS, nothing for other models."""
    report = getattr(model, "report_", None)
    if report is None:
        info = getattr(model, "optim_info_", None)
        return {} if info is None else {"iterations": int(info.num_steps)}
    from glmfit import Status

    cv = {}
    if hasattr(model, "cv_converged_"):
        proved = model.cv_converged_ & model.cv_gap_is_bound_
        cv = {"fits": proved.size, "fits_proved": int(proved.sum())}
    return cv | {
        "solver": report.solver_name,
        "epochs": int(report.epochs.max()),
        "passes": report.row_evals / report.n_rows,
        "converged": int(report.converged.sum()),
        "settled": int(np.sum(report.converged | (report.status == Status.NO_SPIKES))),
        "neurons": len(report.status),
        "bounds": int(report.gap_is_bound.sum()),
        "proved": int(np.sum(report.converged & report.gap_is_bound)),
        "seconds_compile": report.seconds_compile,
        "largest_relative_gap_reported": float(np.nanmax(report.relative_gap)),
    }


def judge(model, problem: Problem, optimum: np.ndarray) -> dict:
    """Put the true gap of a fit next to what its report claims."""
    true = gaps(problem, model.coef_, model.intercept_, optimum)
    distance = true.pop("distance")
    facts = fit_summary(model) | true
    report = getattr(model, "report_", None)
    if report is not None:
        # Both objectives are rounded: subtract the rounding error from their difference.
        sure = distance - 1e-14 * (1 + np.abs(optimum))
        cover = np.where(sure > 0, report.gap / np.where(sure > 0, sure, 1.0), np.inf)
        cover = cover[report.gap_is_bound]
        facts |= {
            "coverage_min": float(cover.min()) if cover.size else float("nan"),
            "coverage_median": float(np.median(cover)) if cover.size else float("nan"),
        }
    return facts


def sklearn_population(problem: Problem, neurons, dtype) -> dict:
    """One Newton-Cholesky fit per neuron: seconds of each, and the population's parameters."""
    X, Y = problem.X.astype(dtype, copy=False), problem.Y.astype(dtype, copy=False)
    seconds, coef, intercept = [], [], []
    for n in neurons:
        y = np.ascontiguousarray(Y[:, n])
        spent, model = timed(lambda y=y: fit_quietly(make_model("sklearn"), X, y))
        seconds.append(spent)
        coef.append(model.coef_)
        intercept.append(model.intercept_)
    return {
        "seconds": seconds,
        "seconds_median": median(seconds),
        "coef": np.stack(coef, 1),
        "intercept": np.array(intercept),
    }
