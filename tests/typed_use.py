"""User code for a type checker: correct uses pass, and wrong ones give the errors that a comment expects.

test_type_checker.py checks it; nothing here runs.
"""

from pathlib import Path

import numpy as np

import glmfit
from glmfit import inference, plotting, solvers
from glmfit.batch import collect, load_result, run
from glmfit.design import BSpline, Term


def a_population(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    model = glmfit.PopulationGLM("exp", regularizer="Lasso", regularizer_strength=[1e-3, 1e-2], random_state=1)
    model.fit(X, y, offset=np.zeros(len(y)), epochs=None).fit([[0.0], [1.0]], [1, 2])
    report: glmfit.FitReport = model.report_
    wald = inference.wald_table(model, X, y)
    plotting.plot_filter(np.eye(3), model.coef_, np.arange(3), interval=(wald.low[:, 0], wald.high[:, 0]))
    if bool(np.all(report.converged)):
        model.save("model.npz")
    again = glmfit.PopulationGLM.load(Path("model.npz"))
    model.fit(X, y, exposures=1.0)  # type: ignore[call-arg]
    glmfit.PopulationGLM(tol="small")  # type: ignore[arg-type]
    rate: np.ndarray = again.predict(X)
    return rate


def strengths(X: np.ndarray, y: np.ndarray) -> None:
    best = glmfit.PopulationGLMCV(strengths=np.logspace(-4, 0, 5), cv=5).fit(X, y)
    plotting.plot_cv_curves(best)
    glmfit.PopulationGAM({"place": Term.random_walk(range(10))}).fit(X, y).term("place")
    BSpline(10, (0.0, 1.0), name="place")
    glmfit.PopulationGLMCV(n_folds=5)  # type: ignore[call-arg]


def classes(X: np.ndarray, labels: list[str]) -> np.ndarray:
    model = glmfit.SoftmaxGLM(solver_name="UMax", solver_kwargs={"n_negatives": 5}).fit(X, labels)
    report: glmfit.ClassReport = model.report_
    assert report.status is not glmfit.Status.NON_FINITE
    solvers.UMax(5, batch_size=2)
    probability: np.ndarray = model.predict_proba(X)
    return probability


def sessions() -> float:
    summary = run("manifest.toml", out=Path("fits"), workers=2)
    collected = collect("fits")
    load_result("fits", session="track/rat", model="place")
    run(3, out="fits")  # type: ignore[arg-type]
    return summary.seconds + collected.n_fits
