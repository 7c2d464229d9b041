"""What results show in a notebook (a summary or a table, words for statuses, no array), and what bars of work count."""

import numpy as np
import pytest
import tqdm.auto
import tqdm.std

from glmfit import MultinomialGLM, MultinomialGLMCV, PopulationGLM, PopulationGLMCV, ResponseModel, SoftmaxGLM, Status
from glmfit.display import ProgressBar, counted
from glmfit.engine.population import PopulationProblem
from glmfit.estimators import cv_fits
from glmfit.inference import drop_groups, rescale_time, wald_table

N = 15


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    return X, rng.poisson(np.exp(0.3 * X[:, :1] + rng.normal(size=N) / 2)).astype(float)


@pytest.fixture(scope="module")
def population(data):
    return PopulationGLM("exp", regularizer_strength=1e-3).fit(*data)


def results(data, population):
    X, Y = data
    yield population.report_
    yield PopulationGLMCV(strengths=[1e-3, 1e-1], cv=2).fit(X, Y[:, :2]).report_
    yield SoftmaxGLM(regularizer_strength=1e-2).fit(X, Y[:, 0]).report_
    yield MultinomialGLM(regularizer_strength=1e-2).fit(X, Y).report_
    yield MultinomialGLMCV(strengths=[1e-3, 1e-1, 1e4], cv=2).fit(X, Y).report_
    yield wald_table(population, X, Y)
    yield drop_groups(population, X, Y, {"first": 0, "others": [1, 2]})
    yield rescale_time(Y, population.predict(X))


def compiled_results(data, population):
    X, Y = data
    by_saga = PopulationGLM("exp", regularizer_strength=1e-3, solver_name="SAGA").fit(X, Y[:, :2]).report_
    yield by_saga
    yield by_saga.step_certificate
    yield ResponseModel(1, max_epochs=3).fit(X[:20], np.eye(N), Y[:20]).report_


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", [results, pytest.param(compiled_results, marks=pytest.mark.thorough)])
def test_every_result_shows_a_summary_and_a_table(made, data, population):
    for result in made(data, population):
        assert repr(result) == str(result)
        assert "array(" not in repr(result) and len(repr(result)) < 5000
        html = result._repr_html_()
        assert html.startswith("<div>") and html.count("<pre") == html.count("</pre>") and "array(" not in html
        assert ("<table" in html) == hasattr(result, "to_frame")


def test_statuses_are_words_wherever_they_are_shown(population, tmp_path):
    assert str(Status.MAX_EPOCHS) == repr(Status.MAX_EPOCHS) == f"{Status.MAX_EPOCHS}" == "max epochs"
    assert f"{Status.CONVERGED:>12}" == "   converged"
    assert str(population.report_.status[:2]) == "[converged converged]"
    assert np.all(population.report_.status == Status.CONVERGED) and np.all(population.report_.converged)
    population.save(tmp_path / "model.npz")
    again = PopulationGLM.load(tmp_path / "model.npz").report_
    assert str(again.status[0]) == "converged" and again.status.dtype == object


def test_the_worst_neurons_come_first(population):
    shown = population.report_._worst()
    gaps = shown["gap F-F*"].astype(float).to_numpy()
    assert len(shown) == 12 and np.all(np.diff(gaps) <= 0)
    assert gaps[0] == pytest.approx(population.report_.gap.max(), rel=0.1)


@pytest.mark.filterwarnings("ignore:feature 3 is 0.001 in 3 rows")
def test_report_names_the_nearly_empty_columns_with_runaway_coefficients(data, tmp_path):
    X, y = data[0], data[1][:, 0].copy()
    X = np.column_stack([X, np.zeros(len(X))])
    X[:4, 3], y[:4] = (1e-12, 1e-3, 1e-3, 1e-3), (3, 0, 0, 0)  # silent rows push the coefficient, one spike holds it
    model = PopulationGLM("exp", "UnRegularized").fit(X, y)
    assert model.report_.converged.all() and np.abs(model.coef_[3]) > 1e4
    model.save(tmp_path / "model.npz")
    for report in (model.report_, PopulationGLM.load(tmp_path / "model.npz").report_):
        assert report.runaway["feature"].tolist() == ["3"] and report.runaway["n_rows"].tolist() == [4]
        assert "feature 3 (not at its median in 4 of 400 rows): neuron 0, coefficients up to" in str(report)
    assert PopulationGLM("exp", regularizer_strength=1e-3).fit(X, y).report_.runaway == {}


def test_implausibly_large_effect_is_named():
    rng = np.random.default_rng(1)
    x, z = rng.normal(size=(2, 300))
    X = np.column_stack([x, x + 1e-4 * z])  # nearly repeats the first: the difference drives the neuron
    y = rng.poisson(np.exp(0.5 * z))
    report = PopulationGLM("exp", "UnRegularized").fit(X, y).report_
    assert report.converged.all()
    assert sorted(report.runaway["feature"]) == ["0", "1"] and np.all(np.abs(report.runaway["coef"]) > 1e3)
    assert "feature 0 (not at its median in 300 of 300 rows): neuron 0, coefficients up to" in str(report)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_search_for_runaway_coefficients_leaves_the_data_as_they_are(dtype, rng):
    X = np.column_stack([rng.normal(size=3000), np.arange(3000) < 4]).astype(dtype)
    Y = rng.poisson(1.0, (3000, 2)).astype(dtype)
    Y[:4] = 0
    given = X.copy(), Y.copy()
    report = PopulationGLM("exp", regularizer_strength=1e-12).fit(X, Y).report_
    assert report.runaway["feature"].tolist() == ["1", "1"] and report.runaway["n_rows"].tolist() == [4, 4]
    assert np.array_equal(X, given[0]) and np.array_equal(Y, given[1])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:the penalty leaves next to nothing")
def test_a_null_solution_has_gap_and_pseudo_r2_zero(data):
    X, Y = data
    groups = {"regularizer": "GroupLasso", "groups": [0, 0, 1]}
    for kind in ({"regularizer": "Lasso"}, {"regularizer": "ElasticNet"}, groups):
        for solver in ("Newton", "SAGA") if kind is groups else ("Newton",):
            with pytest.warns(UserWarning, match="next to nothing"):
                report = PopulationGLM(**kind, regularizer_strength=1.0, solver_name=solver).fit(X, Y[:, :2]).report_
            assert np.all(report.status == Status.CONVERGED) and report.gap_is_bound.all()
            assert np.all(report.relative_gap == 0) and np.all(report.pseudo_r2 == 0)
            assert "-0.000" not in str(report) and "inf" not in str(report)


@pytest.mark.filterwarnings("ignore:the penalty leaves next to nothing", "ignore:X has 2 constant columns")
@pytest.mark.parametrize("strength, n_columns", [(1e8, 3), (1e12, 3), (None, 0)])
def test_a_null_solution_of_a_ridge_has_gap_and_pseudo_r2_zero(data, strength, n_columns):
    X, Y = data[0] if n_columns else np.ones((len(data[0]), 2)), data[1]
    label = np.arange(len(X)) * 3 // len(X)
    counts = PopulationGLM(regularizer_strength=strength and 1e4 * strength).fit(X, Y[:, :2])
    classes = SoftmaxGLM(regularizer_strength=strength).fit(X, label)
    spread = MultinomialGLM(regularizer_strength=strength).fit(X, 1 + Y[:, :2])
    for report in (model.report_ for model in (counts, classes, spread)):
        assert np.all(report.converged) and np.all(report.gap_is_bound)
        assert np.all(report.relative_gap == 0) and np.all(report.pseudo_r2 == 0)
        assert not np.signbit(report.to_frame().pseudo_r2).any()
        assert not any(words in str(report) for words in ("-0.000", "inf", "no useful bound"))


def test_pseudo_r2_includes_what_the_offset_explains(data):
    X, label = data[0], np.arange(len(data[0])) % 2
    report = SoftmaxGLM(regularizer_strength=1e12).fit(X, label, offset=3.0 * np.eye(2)[label]).report_
    assert report.relative_gap == 0 and report.pseudo_r2 > 0.8


def test_strong_coefficients_that_the_rows_determine_are_not_named():
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.normal(size=(2000, 2)), rng.random(2000) < 0.01])
    eta = X @ [4.0, -2.0, 40.0] - 1  # a rare event with a large response, and a neuron of strong tuning
    report = PopulationGLM("softplus", "UnRegularized").fit(X, rng.poisson(np.logaddexp(0, eta))).report_
    assert report.converged.all() and report.runaway == {}


# -- progress bars: they end full if and only if the work was done

X = np.random.default_rng(0).normal(size=(300, 3))
Y = np.random.default_rng(1).poisson(np.logaddexp(0, X[:, :2] - 0.5))


@pytest.fixture
def bars(monkeypatch):
    """All bars that are made, in their final state."""
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


def test_bar_of_a_converged_fit_ends_full_and_says_what_was_fitted(bars):
    model = PopulationGLM(solver_name="Newton", regularizer_strength=1e-3, verbose=True).fit(X, Y)
    (bar,) = bars
    assert bar.desc == "glmfit: fitting 2 neurons" and bar.unit == "epoch" and bar.disable  # closed
    assert bar.n == bar.total == model.n_iter_ < model.max_epochs
    assert bar.postfix.startswith("0 open, worst gap ")


def test_bar_of_a_fit_out_of_budget_does_not_end_full(bars):
    with pytest.warns(UserWarning, match="2 max epochs"):
        PopulationGLM(solver_name="Newton", regularizer_strength=1e-3, tol=1e-12, max_epochs=1, verbose=True).fit(X, Y)
    assert bars[0].n == 1 < bars[0].total and bars[0].postfix.startswith("2 open")


@pytest.mark.thorough
def test_bar_of_responses_out_of_budget_does_not_end_full(bars):
    table = np.where(np.random.default_rng(0).random((20, 8)) < 0.5, 1.0, np.nan)
    with pytest.warns(UserWarning, match="did not converge"):
        ResponseModel(n_components=1, max_epochs=1, tol=1e-12, verbose=True).fit(None, None, table)
    assert bars[0].n < bars[0].total


def test_bar_of_an_interrupted_fit_stays_where_it_was(bars, monkeypatch):
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


def test_bar_names_the_classes(bars):
    SoftmaxGLM(solver_name="ConjugateGradients", regularizer_strength=1e-2, verbose=True).fit(X, np.arange(300) % 3)
    assert bars[0].desc == "glmfit: fitting 3 classes" and bars[0].n == bars[0].total < 500
    assert bars[0].postfix.startswith("gap")


@pytest.mark.thorough
def test_bar_of_a_completed_schedule_ends_full(bars):
    model = SoftmaxGLM(solver_name="ImplicitSGD", regularizer_strength=1e-2, max_epochs=2, certify=False, verbose=True)
    model.fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    assert bars[0].desc == "glmfit: fitting 3 classes" and bars[0].n == bars[0].total == 2


@pytest.mark.thorough
def test_bar_ends_full_at_a_stationary_point(bars):
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


def test_bar_of_an_interrupted_cross_validation_stays_where_it_was(bars, monkeypatch):
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


def test_disabled_bar_still_counts(bars):
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
    """A widget keeps its own total, and is green only if nothing is missing."""
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


def test_nouns_agree_with_their_numbers():
    assert [counted(1, "neuron"), counted(2, "neuron"), counted(0, "class")] == ["1 neuron", "2 neurons", "0 classes"]
