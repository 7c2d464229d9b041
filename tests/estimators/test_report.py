"""What the reports of all estimators have in common."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from glmfit import MultinomialGLM, PopulationGLM, ResponseModel, SoftmaxGLM, Status
from glmfit.estimators import class_fit

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


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize("kind", KINDS)
def test_frames_share_their_columns(kind):
    model = fits()[kind]()
    frame = model.report_.to_frame()
    assert set(frame) >= (SHARED if kind == "response" else SHARED | GAP)
    assert len(frame) == (2 if kind == "population" else 1)
    assert frame["status"].iloc[0] == "converged" and frame["objective"].iloc[0] == np.ravel(model.report_.objective)[0]
    assert model.n_iter_ == frame["epochs"].max() > 0


@pytest.mark.slow
def test_pseudo_r2_is_the_deviance_explained_on_the_training_rows(monkeypatch):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 3))
    weight = rng.uniform(0.5, 2, 200)
    Y = rng.poisson(np.exp(X @ rng.normal(size=(3, 2)) / 2))
    strength = {"regularizer_strength": 1e-2}
    population = PopulationGLM(**strength, solver_name="Newton").fit(X, Y, weight)
    score = population.score(X, Y, weight, per_neuron=True)
    np.testing.assert_allclose(population.report_.pseudo_r2, score, rtol=1e-6)
    counts = rng.multinomial(rng.integers(0, 9, 200), np.full(4, 0.25))
    counts[X[:, 0] > 0, 0] += 3
    multinomial = MultinomialGLM(**strength).fit(X, counts, weight)
    assert 0.05 < multinomial.report_.pseudo_r2 < 1
    np.testing.assert_allclose(multinomial.report_.pseudo_r2, multinomial.score(X, counts, weight), rtol=1e-6)
    offset = 0.3 * rng.normal(size=(200, 4))  # and in parts, as for a large problem
    monkeypatch.setattr(class_fit, "_CERTIFIABLE", 4 * 190 * 50)
    for of in ({}, {"solver_name": "ImplicitSGD", "certify": False, "step": 0.3}):
        multinomial = MultinomialGLM(**strength, **of).fit(X, counts, weight, offset=offset)
        score = multinomial.score(X, counts, weight, offset=offset)
        np.testing.assert_allclose(multinomial.report_.pseudo_r2, score, rtol=0.2 if of else 1e-6)
    label = counts.argmax(axis=1)
    softmax = SoftmaxGLM(**strength).fit(X, label, weight)
    score = softmax.score(X, label, weight, score_type="pseudo-r2-McFadden")
    np.testing.assert_allclose(softmax.report_.pseudo_r2, score, rtol=1e-6)
    table = np.where(rng.random((20, 9)) < 0.8, rng.poisson(3.0, (20, 9)), np.nan)
    response = ResponseModel(2).fit(None, None, table)
    np.testing.assert_allclose(response.report_.pseudo_r2, response.score(table), rtol=1e-6)


def test_shares_that_never_change_leave_nothing_to_explain():
    X = np.random.default_rng(0).normal(size=(50, 2))
    report = MultinomialGLM(regularizer_strength=0.1).fit(X, np.tile([2, 1, 3], (50, 1))).report_
    assert np.isnan(report.pseudo_r2)


@pytest.mark.thorough
def test_a_gap_that_was_not_computed_has_no_kind():
    report = fits(of_classes="UMax", certify=False)["softmax"]().report_
    assert np.isnan(report.gap) and report.to_frame()["gap_kind"].item() == "none"


def test_advice_and_theorem_name_what_happened():
    report = fits()["population"]().report_
    assert report.advice == [f"1 no spikes: {Status.NO_SPIKES.advice}"]
    assert "self-concordance" in report.gap_theorem
    assert fits()["softmax"]().report_.advice == []


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_that_did_not_converge_raises_one_warning(kind):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = fits(max_epochs=1, of_classes="BoundMajorization", tol=1e-12)[kind]().report_
    found = [w for w in caught if issubclass(w.category, ConvergenceWarning)]
    assert len(found) == 1 and found[0].filename == __file__
    words = "1 of 2 neurons did not converge: 1 max epochs" if kind == "population" else "the fit did not converge: max"
    assert str(found[0].message).startswith(words)
    assert any("max epochs" in line for line in report.advice) and report.advice[0] in str(report)
