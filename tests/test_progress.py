"""Progress bars: what they say they count, and that they end full where the work was done, and nowhere else."""

import numpy as np
import pytest
import tqdm.auto
import tqdm.std

from glmfit import PopulationGLM, PopulationGLMCV, ResponseModel, SoftmaxGLM, Status
from glmfit.engine.population import PopulationProblem
from glmfit.estimators import cv_fits
from glmfit.progress import ProgressBar, counted

X = np.random.default_rng(0).normal(size=(300, 3))
Y = np.random.default_rng(1).poisson(np.logaddexp(0, X[:, :2] - 0.5))


@pytest.fixture
def bars(monkeypatch):
    """All bars that are made, as they were when they were closed."""
    made = []

    class Recorded(tqdm.std.tqdm):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.descriptions = [self.desc]
            made.append(self)

        def set_description_str(self, desc=None, refresh=True):
            self.descriptions.append(desc)
            super().set_description_str(desc, refresh)

    monkeypatch.setattr(tqdm.auto, "tqdm", Recorded)
    return made


def test_a_fit_that_converged_ends_full_and_says_what_it_fitted(bars):
    model = PopulationGLM(solver_name="Newton", regularizer_strength=1e-3, verbose=True).fit(X, Y)
    (bar,) = bars
    assert bar.desc == "glmfit: fitting 2 neurons" and bar.unit == "epoch" and bar.disable  # closed
    assert bar.n == bar.total == model.n_iter_ < model.max_epochs
    assert bar.postfix.startswith("0 open, worst gap ")


def test_a_fit_out_of_budget_does_not_end_full(bars):
    with pytest.warns(UserWarning, match="2 max epochs"):
        PopulationGLM(solver_name="Newton", regularizer_strength=1e-3, tol=1e-12, max_epochs=1, verbose=True).fit(X, Y)
    assert bars[0].n == 1 < bars[0].total and bars[0].postfix.startswith("2 open")


@pytest.mark.thorough
def test_responses_out_of_budget_do_not_end_full(bars):
    table = np.where(np.random.default_rng(0).random((20, 8)) < 0.5, 1.0, np.nan)
    with pytest.warns(UserWarning, match="did not converge"):
        ResponseModel(n_components=1, max_epochs=1, tol=1e-12, verbose=True).fit(None, None, table)
    assert bars[0].n < bars[0].total


def test_a_fit_that_was_interrupted_stays_where_it_was(bars, monkeypatch):
    finish = PopulationProblem.finish_neuron

    def interrupted(self, params, neuron, *args, **how):
        if neuron == 1:
            raise KeyboardInterrupt
        return finish(self, params, neuron, *args, **how)

    monkeypatch.setattr(PopulationProblem, "finish_neuron", interrupted)
    with pytest.warns(UserWarning, match="1 interrupted"):
        model = PopulationGLM(solver_name="Newton", regularizer_strength=1e-3, verbose=True).fit(X, Y)
    assert 0 < bars[0].n == model.report_.epochs[0] and bars[0].total == 200
    assert list(model.report_.status) == [Status.CONVERGED, Status.INTERRUPTED]


def test_classes_are_named(bars):
    SoftmaxGLM(solver_name="ConjugateGradients", regularizer_strength=1e-2, verbose=True).fit(X, np.arange(300) % 3)
    assert bars[0].desc == "glmfit: fitting 3 classes" and bars[0].n == bars[0].total < 500
    assert bars[0].postfix.startswith("gap")


@pytest.mark.thorough
def test_a_schedule_that_was_run_ends_full(bars):
    model = SoftmaxGLM(solver_name="ImplicitSGD", regularizer_strength=1e-2, max_epochs=2, certify=False, verbose=True)
    model.fit(X, np.arange(300) % 3)
    assert bars[0].desc == "glmfit: fitting 3 classes" and bars[0].n == bars[0].total == 2


@pytest.mark.thorough
def test_a_stationary_point_that_was_found_ends_full(bars):
    table = np.where(np.random.default_rng(0).random((20, 8)) < 0.5, 1.0, np.nan)
    model = ResponseModel(n_components=1, verbose=True).fit(None, None, table)
    assert bars[0].desc == f"glmfit: fitting {np.isfinite(table).sum()} responses" and model.report_.converged
    assert bars[0].n == bars[0].total == model.n_iter_


def test_a_cross_validation_has_one_bar_that_counts_fits(bars):
    PopulationGLMCV(strengths=[1e-3, 1e-1], cv=3, verbose=True).fit(X, Y)
    (bar,) = bars
    assert bar.descriptions == ["glmfit: 2 strengths x 3 folds, 2 neurons"] and bar.unit == "fit"
    assert bar.n == bar.total == 2 * (3 + 1) * 2  # the last fits are among those to all rows


def test_a_last_fit_is_named_and_counted(bars, monkeypatch):
    monkeypatch.setattr("glmfit.estimators.cv_fits.Fits.have_converged", lambda *_: False)
    PopulationGLMCV(strengths=[1e-3, 1e-1], cv=3, verbose=True).fit(X, Y)
    (bar,) = bars
    whole = "glmfit: 2 strengths x 3 folds, 2 neurons"
    assert bar.descriptions == [whole, "glmfit: last fit, 2 neurons", whole]
    assert bar.n == bar.total == 2 * (3 + 1) * 2 + 2


def test_an_interrupted_cross_validation_stays_where_it_was(bars, monkeypatch):
    own, calls = cv_fits.Fits._solve, []

    def stopped(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return own(*args)

    monkeypatch.setattr(cv_fits.Fits, "_solve", stopped)
    with pytest.warns(UserWarning, match="1 of 2 strengths"):
        PopulationGLMCV(strengths=[1e-3, 1e-1], cv=3, verbose=True).fit(X, Y)
    assert (bars[0].n, bars[0].total) == (8, 18)


def test_a_bar_that_nobody_asked_for_counts_all_the_same(bars):
    bar = ProgressBar("nothing", 3, "things", False)
    bar.advance(2)
    bar.say("words")
    with bar.phase("more"):
        bar.to(2)
    bar.write("text")
    bar.finish()
    bar.close()
    assert bar.n == 2 and not bars


def test_the_bar_of_a_notebook_learns_its_new_total(monkeypatch):
    """A widget keeps a total of its own, and is green only where nothing is missing."""
    notebook = pytest.importorskip("tqdm.notebook")
    if notebook.IProgress is None:
        pytest.skip("ipywidgets is not installed")
    monkeypatch.setattr(tqdm.auto, "tqdm", notebook.tqdm)
    done, stopped, spent = (ProgressBar("work", most, "epochs", True, display=False) for most in (200, 200, 45))
    for bar in (done, stopped, spent):
        bar.advance(45)
    done.finish()
    spent.finish(decided=False)
    for bar, style, most in ((done, "success", 45), (stopped, "danger", 200), (spent, "danger", 46)):
        bar.close()
        widget = bar._bar.container.children[1]
        assert (widget.bar_style, widget.value, widget.max) == (style, 45, most)


def test_numbers_and_nouns():
    assert [counted(1, "neuron"), counted(2, "neuron"), counted(0, "class")] == ["1 neuron", "2 neurons", "0 classes"]
