"""What the reports of all estimators have in common."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from glmfit import MultinomialGLM, PopulationGLM, ResponseModel, SoftmaxGLM, Status

SHARED = {"status", "objective", "pseudo_r2", "epochs"}
GAP = {"gap", "gap_kind", "relative_gap"}


def fits(max_epochs=None, of_classes="auto", **more):
    """One fit of every kind to the same small data."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    Y = rng.poisson(np.logaddexp(0, X @ rng.normal(size=(3, 2))))
    Y[:, 1] = 0
    label = np.where(X[:, 0] > 0, "a", np.where(X[:, 1] > 0, "b", "c"))
    budget = {} if max_epochs is None else {"max_epochs": max_epochs}
    budget |= more
    return {
        "population": lambda: PopulationGLM(regularizer_strength=1e-3, solver_name="Newton", **budget).fit(X, Y),
        "softmax": lambda: SoftmaxGLM(regularizer_strength=1e-3, solver_name=of_classes, **budget).fit(X, label),
        "multinomial": lambda: MultinomialGLM(regularizer_strength=1e-3, solver_name=of_classes, **budget).fit(
            X, np.abs(X).round()
        ),
        "response": lambda: ResponseModel(2, **budget).fit(None, None, Y[:40] + 1.0),
    }


KINDS = tuple(fits())


@pytest.mark.parametrize("kind", KINDS)
def test_frames_share_their_columns(kind):
    model = fits()[kind]()
    frame = model.report_.to_frame()
    assert set(frame) >= (SHARED if kind == "response" else SHARED | GAP)
    assert len(frame) == (2 if kind == "population" else 1)
    assert frame["status"].iloc[0] == "converged" and frame["objective"].iloc[0] == np.ravel(model.report_.objective)[0]
    assert model.n_iter_ == frame["epochs"].max() > 0


def test_advice_and_theorem_name_what_happened():
    report = fits()["population"]().report_
    assert report.advice == [f"1 no spikes: {Status.NO_SPIKES.advice}"]
    assert "self-concordance" in report.gap_theorem
    assert fits()["softmax"]().report_.advice == []


@pytest.mark.parametrize("kind", KINDS)
def test_one_warning_for_what_did_not_converge(kind):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = fits(max_epochs=1, of_classes="BoundMajorization", tol=1e-12)[kind]().report_
    found = [w for w in caught if issubclass(w.category, ConvergenceWarning)]
    assert len(found) == 1 and found[0].filename == __file__
    words = "1 of 2 neurons did not converge: 1 max epochs" if kind == "population" else "the fit did not converge: max"
    assert str(found[0].message).startswith(words)
    assert any("max epochs" in line for line in report.advice) and report.advice[0] in str(report)
