"""The figures show the data they were given, with units."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import scipy.stats
from sklearn.exceptions import NotFittedError

from glmfit import PopulationGLM, PopulationGLMCV, ResponseModel, SoftmaxGLM, Status, plotting
from glmfit.inference import rescale_time, wald_table

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def close_figures():
    """Close the figures that pyplot opened."""
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture
def report():
    """Four neurons: two proved, one estimate that ran out of budget, one silent."""
    gap = np.array(
        [
            [1e-2, 1e-3, 1e-2, 0.0],
            [1e-4, 1e-5, 1e-3, 0.0],
            [2e-7, 1e-7, 1e-4, 0.0],
        ]
    )
    is_bound = np.array([[0, 0, 0, 1], [0, 0, 0, 1], [1, 1, 0, 1]], bool)
    return SimpleNamespace(
        status=np.array([Status.CONVERGED, Status.CONVERGED, Status.MAX_EPOCHS, Status.NO_SPIKES]),
        gap=gap[-1],
        gap_is_bound=is_bound[-1],
        target=np.array([1e-6, 1e-6, 2e-6, 1e-6]),
        objective=np.array([0.5, 0.4, 0.3, 0.0]),
        pseudo_r2=np.array([0.1, 0.2, 0.3, np.nan]),
        n_rows=100,
        history={
            "epoch": np.array([0, 3, 6]),
            "row_evals": np.array([100, 500, 900]),
            "seconds": np.array([0.1, 0.2, 0.3]),
            "gap": gap,
            "gap_is_bound": is_bound,
        },
    )


def texts(ax):
    """Texts of the legend."""
    return [t.get_text() for t in ax.get_legend().get_texts()]


def whole(axis):
    """Whether all ticks are at whole numbers."""
    return np.all(axis.get_ticklocs() % 1 == 0)


def words(ax):
    """Texts that replace a drawing."""
    return [t.get_text() for t in ax.texts]


def line(ax, label):
    """The line with a label."""
    return next(entry for entry in ax.get_lines() if entry.get_label() == label)


def test_filter_is_basis_times_weights_in_the_requested_unit(rng):
    basis, weights, lag_s = rng.normal(size=(20, 3)), rng.normal(size=3), 1e-3 * np.arange(20)
    ax = plotting.plot_filter(basis, weights, lag_s, label="mine")
    np.testing.assert_allclose(line(ax, "mine").get_xdata(), np.arange(20))
    np.testing.assert_allclose(line(ax, "mine").get_ydata(), basis @ weights)
    assert ax.get_xlabel() == "lag (ms)"
    ax = plotting.plot_filter(basis, weights, lag_s, unit="s", label="mine")
    np.testing.assert_allclose(line(ax, "mine").get_xdata(), lag_s)
    assert ax.get_xlabel() == "lag (s)"


def test_filter_band_is_two_standard_deviations(rng):
    basis, lag_s = rng.normal(size=(5, 2)), 1e-3 * np.arange(5)
    root = rng.normal(size=(2, 2))
    ax = plotting.plot_filter(basis, np.zeros(2), lag_s, covariance=root @ root.T)
    outline = ax.collections[-1].get_paths()[0].vertices
    expected = 2 * np.sqrt(np.diag(basis @ root @ root.T @ basis.T))
    for k in range(5):
        np.testing.assert_allclose(outline[outline[:, 0] == k, 1].max(), expected[k])
        np.testing.assert_allclose(outline[outline[:, 0] == k, 1].min(), -expected[k])


def test_filters_of_many_neurons_are_one_line_each(rng):
    ax = plotting.plot_filter(rng.normal(size=(5, 2)), rng.normal(size=(2, 7)), np.arange(5.0), unit="s")
    assert len([entry for entry in ax.get_lines() if len(entry.get_xdata()) == 5]) == 7


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"unit": "bins"}, "ms"),
        ({"lag_s": np.arange(4.0)}, r"\(4, 2\)"),
        ({"weights": np.ones(3)}, r"\(5, 3\)"),
        ({"weights": 1.0}, r"weights is 1.0; it needs an array of numbers, \(basis function,\)"),
        ({"covariance": np.eye(3)}, r"covariance has shape \(3, 3\).*needs .* \(2, 2\)"),
        ({"covariance": np.eye(2), "weights": np.ones((2, 3))}, r"weights \(2, 3\).* one neuron"),
    ],
)
def test_filter_raises_errors_that_say_what_does_not_fit(change, word):
    arguments = {"basis": np.ones((5, 2)), "weights": np.ones(2), "lag_s": np.arange(5.0)} | change
    with pytest.raises((TypeError, ValueError), match=word):
        plotting.plot_filter(**arguments)


def test_rates_are_per_second_and_every_spike_is_a_tick():
    time_s, rate = 0.01 * np.arange(100), np.full(100, 0.2)
    counts = np.zeros(100)
    counts[[10, 40]] = 1, 3
    ax = plotting.plot_rate_against_spikes(time_s, rate, counts)
    np.testing.assert_allclose(line(ax, "predicted rate").get_ydata(), 20.0)
    ticks = ax.collections[-1].get_segments()
    assert len(ticks) == counts.sum()
    times = np.array([segment[0][0] for segment in ticks])
    assert np.all(np.abs(times - np.repeat(time_s, counts.astype(int))) < 0.005)
    assert len(np.unique(times)) == 4
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time (s)", "rate (spikes/s)")


def test_rates_of_several_models_within_limits():
    time_s = 0.01 * np.arange(100)
    rates = {"a": np.full(100, 0.1), "b": np.full(100, 0.2)}
    ax = plotting.plot_rate_against_spikes(time_s, rates, bin_s=0.02, limits_s=(0.2, 0.4))
    np.testing.assert_allclose(line(ax, "a").get_ydata(), 5.0)
    np.testing.assert_allclose(line(ax, "b").get_ydata(), 10.0)
    assert len(line(ax, "a").get_xdata()) == 21
    assert ax.get_xlim() == (0.2, 0.4)


def test_smoothing_keeps_the_number_of_spikes_and_skips_nan():
    time_s = 0.01 * np.arange(200)
    rate, counts = np.full(200, 0.3), np.zeros(200)
    rate[:5], counts[100] = np.nan, 1
    ax = plotting.plot_rate_against_spikes(time_s, rate, counts, smooth_s=0.03)
    drawn = line(ax, "predicted rate").get_ydata()
    assert np.isnan(drawn[:5]).all()
    np.testing.assert_allclose(drawn[5:], 30.0)
    outline = ax.collections[0].get_paths()[0].vertices
    height = {x: outline[outline[:, 0] == x, 1].max() for x in time_s}
    np.testing.assert_allclose(sum(height.values()) * 0.01, 1.0, rtol=1e-3)


def test_rate_refuses_other_lengths():
    with pytest.raises(ValueError, match=r"counts has shape \(9,\)"):
        plotting.plot_rate_against_spikes(np.arange(10.0), np.ones(10), np.ones(9))


RATES = {"time_s": 0.1 * np.arange(100), "rate": np.ones(100), "counts": np.ones(100)}


@pytest.mark.parametrize("plot", [plotting.plot_rate_against_spikes, plotting.plot_residuals, plotting.plot_signal])
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ((100, 200), r"limits_s is \(100, 200\).*nothing to draw: times lie from 0 to 9.9 s"),
        ((8, 2), r"limits_s is \(8, 2\); it must be a first and a later last time"),
        ((3, 3), "later last time"),
        ((1, 2, 3), "later last time"),
        (5, r"limits_s is 5; it needs an array of numbers, \(2,\)"),
    ],
)
def test_limits_must_hold_something_to_draw(plot, limits, words):
    arguments = {
        plotting.plot_signal: {"time_s": RATES["time_s"], "signal": RATES["rate"], "ylabel": "level (dB)"},
        plotting.plot_residuals: {**RATES, "window_s": 1.0},
    }.get(plot, RATES)
    with pytest.raises((TypeError, ValueError), match=words):
        plot(**arguments, limits_s=limits)


OF_BOTH = [
    ({"time_s": RATES["time_s"][::-1]}, "time_s must increase, but 9.8 s follows 9.9 s"),
    ({"bin_s": 0}, "bin_s is 0; it must be a finite number above 0"),
    ({"time_s": [0.0], "rate": [1.0], "counts": [1.0]}, "time_s has 1 bin.*give bin_s"),
    ({"time_s": np.ones((2, 2))}, r"time_s has shape \(2, 2\); it needs an array of numbers, \(time,\)"),
]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *OF_BOTH,
        ({"smooth_s": -1}, "smooth_s is -1; it must be a finite number above 0"),
        ({"rate": {}}, "an empty dict"),
    ],
)
def test_rates_refuse_invalid_bins_and_widths(change, words):
    with pytest.raises(ValueError, match=words):
        plotting.plot_rate_against_spikes(**RATES | change)


@pytest.mark.parametrize(
    ("change", "words"), [*OF_BOTH, ({"window_s": 0}, "window_s is 0; it must be a finite number above 0")]
)
def test_residuals_refuse_invalid_bins_and_widths(change, words):
    with pytest.raises(ValueError, match=words):
        plotting.plot_residuals(**RATES | {"window_s": 1.0} | change)


def test_convergence_draws_every_fitted_neuron_and_marks_what_is_proved(report):
    ax = plotting.plot_convergence(report)
    gap = report.history["gap"]
    thin = [entry for entry in ax.get_lines() if entry.get_linewidth() == 0.4]
    assert len(thin) == 3  # the silent neuron has nothing to converge
    for entry, values in zip(thin, gap.T[:3], strict=True):
        np.testing.assert_array_equal(entry.get_xdata(), [0, 3, 6])
        np.testing.assert_allclose(entry.get_ydata(), values)
    np.testing.assert_allclose(line(ax, "worst neuron").get_ydata(), gap[:, :3].max(axis=1))
    np.testing.assert_allclose(line(ax, "median").get_ydata(), np.median(gap[:, :3], axis=1))
    bounds = line(ax, "proved bound")
    np.testing.assert_allclose(sorted(bounds.get_ydata()), [1e-7, 2e-7])
    np.testing.assert_array_equal(bounds.get_xdata(), [6, 6])
    np.testing.assert_allclose(line(ax, "target").get_ydata(), 1e-6)
    assert ax.get_yscale() == "log"
    assert "nats per bin" in ax.get_ylabel()
    assert texts(ax) == ["a neuron (estimate)", "worst neuron", "median", "proved bound", "target"]


@pytest.mark.parametrize(
    ("against", "x", "label"),
    [("passes", [1, 5, 9], "passes over the data"), ("seconds", [0.1, 0.2, 0.3], "time (s)")],
)
def test_convergence_against_work_and_time(report, against, x, label):
    ax = plotting.plot_convergence(report, against=against)
    np.testing.assert_allclose(line(ax, "median").get_xdata(), x)
    assert ax.get_xlabel() == label


def test_convergence_refuses_an_unknown_axis(report):
    with pytest.raises(ValueError, match="'epoch', 'passes', 'seconds'"):
        plotting.plot_convergence(report, against="minutes")


def test_bounds_are_distinguished_from_estimates(report):
    optimum = report.objective - np.array([1e-8, 5e-8, 3e-4, 0.0])
    ax = plotting.plot_bounds(report, optimum)
    np.testing.assert_allclose(line(ax, "proved bound").get_xdata(), [1e-8, 5e-8], rtol=1e-6)
    np.testing.assert_allclose(line(ax, "proved bound").get_ydata(), [2e-7, 1e-7])
    np.testing.assert_allclose(line(ax, "estimate").get_ydata(), [1e-4])
    assert "nats per bin" in ax.get_xlabel()
    assert "nats per bin" in ax.get_ylabel()


@pytest.mark.parametrize(
    "draw",
    [plotting.plot_convergence, plotting.plot_report_overview, lambda report: plotting.plot_bounds(report, [0.0, 0.0])],
)
def test_a_model_may_be_given_instead_of_its_report(draw, rng):
    model = PopulationGLM(regularizer_strength=1e-2)
    with pytest.raises(NotFittedError):
        draw(model)
    X = rng.normal(size=(200, 2))
    draw(model.fit(X, rng.poisson(1.0, (200, 2))))
    for given in (None, X, model.coef_, {}):
        with pytest.raises(TypeError, match=rf"report is a {type(given).__name__}; pass model.report_, or the model"):
            draw(given)


def test_bounds_need_an_optimum_per_neuron(report):
    with pytest.raises(ValueError, match="optimum has 3 entries; the report has 4 neurons"):
        plotting.plot_bounds(report, np.zeros(3))
    with pytest.raises(TypeError, match=r"optimum is 0.0; it needs an array of numbers, \(neuron,\)"):
        plotting.plot_bounds(report, 0.0)
    with pytest.raises(TypeError, match="neurons of a PopulationGLM"):
        plotting.plot_bounds(SimpleNamespace(status=Status.CONVERGED, gap=1.0), [0.0])


def test_overview_counts_every_neuron_once(report):
    status, score, gap = plotting.plot_report_overview(report)
    assert [t.get_text() for t in status.get_yticklabels()] == ["converged", "max epochs", "no spikes"]
    assert [bar.get_width() for bar in status.patches] == [2, 1, 1]
    assert sum(bar.get_height() for bar in score.patches) == 3  # not the silent one
    assert texts(score) == ["median 0.200"]
    assert sum(bar.get_height() for bars in gap.containers for bar in bars) == 3
    assert texts(gap) == ["bound", "estimate", "target"]
    assert gap.get_xlabel() == "gap (nats per bin)"
    assert whole(status.xaxis) and whole(score.yaxis) and whole(gap.yaxis)


def test_a_silent_population_is_labelled_as_silent(report, rng):
    model = PopulationGLM(regularizer_strength=1e-2).fit(rng.normal(size=(100, 2)), np.zeros((100, 3)))
    status, score, gap = plotting.plot_report_overview(model)
    assert [bar.get_width() for bar in status.patches] == [3] and whole(status.xaxis)
    assert words(score) == words(gap) == ["no neuron with spikes"]
    assert words(plotting.plot_convergence(model)) == ["no neuron with spikes"]
    report.gap = np.zeros(4)
    assert words(plotting.plot_report_overview(report)[2]) == ["no gap above 0"]
    assert words(plotting.plot_bounds(report, report.objective)) == ["no gap above 0"]


def test_coupling_shows_the_matrix_as_it_is(rng):
    matrix = rng.normal(size=(6, 6))
    matrix[0, 0] = np.nan
    ax = plotting.plot_coupling(matrix, limit=2.0, label="coupling (log gain)")
    image = ax.images[0]
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), matrix)
    assert image.get_clim() == (-2.0, 2.0)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("target neuron", "source neuron")
    assert ax.figure.axes[1].get_ylabel() == "coupling (log gain)"


def test_coupling_takes_names(rng):
    ax = plotting.plot_coupling(rng.normal(size=(3, 3)), names=[15, "27", "unit 10"])
    for axis in (ax.xaxis, ax.yaxis):
        np.testing.assert_array_equal(axis.get_ticklocs(), [0, 1, 2])
        assert [tick.get_text() for tick in axis.get_ticklabels()] == ["15", "27", "unit 10"]
    for shape in ((3, 3), (2, 3)):
        with pytest.raises(ValueError, match="names has 2 entries; coupling has shape"):
            plotting.plot_coupling(np.zeros(shape), names=["a", "b"])


def test_coupling_refuses_anything_but_a_matrix():
    with pytest.raises(ValueError, match=r"coupling has shape \(4,\); it needs an array of numbers, \(source n"):
        plotting.plot_coupling(np.ones(4))
    with pytest.raises(ValueError, match="limit is -1; it must be a finite number above 0"):
        plotting.plot_coupling(np.ones((2, 2)), limit=-1)


def test_invalid_scores_and_pairs_are_refused():
    with pytest.raises(TypeError, match=r"scores is a dict; it needs an array of numbers, \(neuron,\)"):
        plotting.plot_scores({"a": [1, 2]})
    with pytest.raises(ValueError, match=r"scores has shape \(2, 2\)"):
        plotting.plot_scores(np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"estimated has shape \(2,\); it needs numbers of the shape of true, \(3,\)"):
        plotting.plot_recovery(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="no pair of finite numbers"):
        plotting.plot_recovery([np.nan, 1.0], [1.0, np.nan])


def test_coupling_of_zeros_is_drawn():
    assert plotting.plot_coupling(np.zeros((3, 3)), colorbar=False).images[0].get_clim() == (-1.0, 1.0)


def test_recovery_skips_nan():
    ax = plotting.plot_recovery([[1.0, np.nan], [2.0, 3.0]], [[1.5, 1.0], [np.nan, 2.5]])
    points = ax.get_lines()[-1]
    np.testing.assert_array_equal(points.get_xdata(), [1.0, 3.0])
    np.testing.assert_array_equal(points.get_ydata(), [1.5, 2.5])


def test_signal_within_limits():
    ax = plotting.plot_signal(np.arange(10.0), np.arange(10.0) ** 2, ylabel="level (dB)", limits_s=(2, 4))
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), [4, 9, 16])
    assert ax.get_ylabel() == "level (dB)"


def test_every_function_draws_into_the_given_axes(report, rng):
    import matplotlib.pyplot as plt

    axes = plotting.new_axes((1,) * 3, (1,) * 2).flat
    t, ones = np.arange(5.0), np.ones(5)
    calls = [
        lambda ax: plotting.plot_filter(np.ones((5, 2)), np.ones(2), t, ax=ax),
        lambda ax: plotting.plot_rate_against_spikes(t, ones, ones, ax=ax),
        lambda ax: plotting.plot_convergence(report, ax=ax),
        lambda ax: plotting.plot_coupling(rng.normal(size=(3, 3)), ax=ax),
        lambda ax: plotting.plot_recovery(t, t, ax=ax),
        lambda ax: plotting.plot_scores(t, ax=ax),
    ]
    for call, ax in zip(calls, axes, strict=True):
        assert call(ax) is ax
    assert plt.get_fignums() == []  # no other figure was opened


def test_axes_must_be_matplotlib_axes(report):
    axes = plotting.new_axes((1, 1))[0]
    with pytest.raises(TypeError, match=r"ax is an array of shape \(2,\); it must be one matplotlib Axes"):
        plotting.plot_scores([0.1, 0.2], ax=axes)
    with pytest.raises(TypeError, match="ax is a Figure; it must be one matplotlib Axes"):
        plotting.plot_scores([0.1, 0.2], ax=axes[0].figure)
    with pytest.raises(ValueError, match="axes has 2 entries; it must be three"):
        plotting.plot_report_overview(report, axes=axes)
    with pytest.raises(TypeError, match=r"axes\[2\] is a str"):
        plotting.plot_report_overview(report, axes=[*axes, "here"])


def test_new_axes_and_panel_letters(tmp_path):
    axes = plotting.new_axes((1, 2), (1,), size=(5, 2))
    assert axes.shape == (1, 2)
    plotting.label_panels(axes, ["one", "two"])
    assert [ax.get_title(loc="left").split()[-1] for ax in axes.flat] == ["one", "two"]
    axes[0, 0].figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


# ------------------------------------------------------------------------- cross-validation


@pytest.fixture
def chosen():
    """Three strengths, four folds; the last neuron cannot be scored, the second lacks one fold."""
    scores = np.random.default_rng(0).normal(size=(3, 4, 3)) * 0.1
    scores[1, :, 0] += 1
    scores[:, :, 2] = np.nan
    scores[:, 1, 1] = np.nan
    strengths = np.array([0.0, 1e-2, 1.0])
    return SimpleNamespace(
        cv_scores_=scores,
        strengths_=strengths,
        best_strength_=strengths[[1, 2, 2]],
        one_se_strength_=strengths[[1, 2, 2]],
        strength_=strengths[[1, 2, 2]],
        scoring="log-likelihood",
        regularizer="Ridge",
        report_=SimpleNamespace(neuron=["a", "b", "c"]),
    )


def test_cv_curves_are_means_and_standard_errors_minus_the_best(chosen):
    ax = plotting.plot_cv_curves(chosen)
    assert texts(ax) == ["a", "b", "best", "one-se rule"]
    assert ax.get_legend().get_title().get_text() == "neuron"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "0.01", "1"]
    mean = chosen.cv_scores_[:, :, 0].mean(axis=1)
    drawn, _, (bars,) = ax.containers[0]
    np.testing.assert_allclose(drawn.get_ydata(), mean - mean.max())
    lost = chosen.cv_scores_[:, :, 0] - chosen.cv_scores_[1, :, 0]
    error = lost.std(axis=1, ddof=1) / 2
    np.testing.assert_allclose([np.ptp(s[:, 1]) / 2 for s in bars.get_segments()], error)
    three = chosen.cv_scores_[:, [0, 2, 3], 1].mean(axis=1)
    np.testing.assert_allclose(ax.containers[1][0].get_ydata(), three - three.max())
    assert texts(plotting.plot_cv_curves(chosen, 1)) == ["b", "best", "one-se rule"]
    with pytest.raises(ValueError, match="the model has neurons 0 to 2"):
        plotting.plot_cv_curves(chosen, [3])


def test_the_map_of_strengths_orders_neurons_and_marks_the_choice(chosen):
    ax = plotting.plot_strengths(chosen)
    image = np.ma.filled(ax.get_images()[0].get_array().astype(float), np.nan)
    mean = chosen.cv_scores_[:, :, 0].mean(axis=1)
    np.testing.assert_allclose(image[:, 0], (mean - mean.max()) / np.ptp(mean))
    assert np.isnan(image[:, 2]).all()
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), [1, 2, 2])


def test_strengths_that_an_interrupted_fit_skipped_are_not_drawn(chosen):
    chosen.cv_scores_[0] = np.nan
    chosen.cv_scores_[:, :, 2], chosen.strength_ = np.nan, np.array([1e-2, 1.0, np.nan])
    drawn = plotting.plot_cv_curves(chosen).containers[0][0]
    mean = chosen.cv_scores_[1:, :, 0].mean(axis=1)
    np.testing.assert_allclose(drawn.get_ydata(), mean - mean.max())
    ax = plotting.plot_strengths(chosen)
    image = np.ma.filled(ax.get_images()[0].get_array().astype(float), np.nan)
    np.testing.assert_array_equal(np.isnan(image), [[1, 1, 1], [0, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), [1, 2, np.nan])


def test_strengths_need_a_fitted_cross_validated_model(rng):
    model = PopulationGLM(regularizer_strength=1e-2).fit(rng.normal(size=(100, 2)), rng.poisson(1.0, 100))
    for draw in (plotting.plot_cv_curves, plotting.plot_strengths):
        with pytest.raises(TypeError, match=r"model is a PopulationGLM, .*pass a fitted PopulationGLMCV"):
            draw(model)
        with pytest.raises(NotFittedError):
            draw(PopulationGLMCV())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_neurons_have_integer_ticks_on_the_map_of_strengths(chosen, n):
    chosen.cv_scores_, chosen.strength_ = chosen.cv_scores_[:, :, :n], chosen.strength_[:n]
    assert whole(plotting.plot_strengths(chosen).xaxis)


@pytest.mark.parametrize("regularizer, words", [("Ridge", "ridge"), ("Lasso", "lasso"), ("ElasticNet", "elastic-net")])
def test_strengths_are_named_after_their_penalty(chosen, regularizer, words):
    chosen.regularizer = regularizer
    assert plotting.plot_cv_curves(chosen).get_xlabel() == f"{words} strength"
    assert plotting.plot_strengths(chosen).get_ylabel() == f"{words} strength"


# ------------------------------------------------------------------------- fits next to data


def outline(band):
    """Lower and upper edge of a filled band: {x: (low, high)}."""
    vertices = band.get_paths()[0].vertices
    return {x: (vertices[vertices[:, 0] == x, 1].min(), vertices[vertices[:, 0] == x, 1].max()) for x in vertices[:, 0]}


def test_filter_interval_matches_the_table(rng):
    basis, lag_s = rng.normal(size=(6, 2)), 0.01 * np.arange(6)
    X = rng.normal(size=(800, 3))
    counts = rng.poisson(np.logaddexp(0, X @ [0.5, -0.5, 0.2]))
    model = PopulationGLM(regularizer="UnRegularized").fit(X, counts)
    combinations = np.column_stack([basis, np.zeros(6)])  # the third feature is not part of the filter
    table = wald_table(model, X, counts, combinations=combinations)
    interval = table.low[:, 0], table.high[:, 0]
    ax = plotting.plot_filter(basis, model.coef_[:2], lag_s, unit="s", interval=interval, label="mine")
    edges = outline(ax.collections[-1])
    for k, x in enumerate(lag_s):
        np.testing.assert_allclose(edges[x], (table.low[k, 0], table.high[k, 0]))
        np.testing.assert_allclose(line(ax, "mine").get_ydata()[k], np.mean(edges[x]))
    with pytest.raises(ValueError, match=r"\(6,\)"):
        plotting.plot_filter(basis, np.ones(2), lag_s, interval=(np.zeros(3), np.zeros(3)))


def test_tuning_is_the_mean_count_with_its_standard_error_and_the_mean_of_the_model(rng):
    x, bin_s = rng.uniform(0, 3, 900), 0.1
    counts, rate = rng.poisson(1 + x).astype(float), 1 + x
    x[:5], counts[5:9], rate[9:12] = np.nan, np.nan, np.nan
    edges = [0, 1, 2, 3, 4]  # nothing in the last
    ax = plotting.plot_tuning(x, counts, {"flat": np.ones(900), "true": rate}, bin_s=bin_s, edges=edges)
    known = np.arange(900) >= 12
    points, _, (bars,) = ax.containers[0]
    np.testing.assert_allclose(points.get_xdata(), [0.5, 1.5, 2.5])
    for k in range(3):
        here = known & (x >= k) & (x < k + 1)
        np.testing.assert_allclose(points.get_ydata()[k], counts[here].mean() / bin_s)
        error = counts[here].std(ddof=1) / np.sqrt(here.sum()) / bin_s
        np.testing.assert_allclose(np.ptp(bars.get_segments()[k][:, 1]), 2 * error)
        np.testing.assert_allclose(line(ax, "true").get_ydata()[k], rate[here].mean() / bin_s)
    np.testing.assert_allclose(line(ax, "flat").get_ydata(), 10)
    assert ax.get_ylabel() == "rate (spikes/s)"
    ax = plotting.plot_tuning(x, counts, bin_s=bin_s, edges=3, curve=([0, 3], [5, 6]))
    np.testing.assert_array_equal(line(ax, "model").get_ydata(), [5, 6])
    assert len(ax.containers[0][0].get_xdata()) == 3
    with pytest.raises(ValueError, match=r"model has shape \(3,\)"):
        plotting.plot_tuning(x, counts, np.ones(3), bin_s=bin_s)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"edges": [1, 0, -1]}, r"edges is \[1, 0, -1\]; it must be a number of intervals, or at least two limits"),
        ({"edges": [1]}, "at least two limits that increase"),
        ({"edges": 0}, "edges is 0; it must be a whole number of at least 1"),
        (
            {"edges": [7, 8, 9]},
            "no interval has min_bins=10 time bins: 2 intervals lie from 7 to 9, and 50 values.*0 to 1",
        ),
        ({"min_bins": 51}, "no interval has min_bins=51"),
        ({"min_bins": -1}, "min_bins is -1"),
        ({"bin_s": 0}, "bin_s is 0; it must be a finite number above 0"),
        ({"counts": np.full(50, np.nan)}, "no time bin where all are known"),
        ({"covariate": np.ones((50, 1))}, r"covariate has shape \(50, 1\); it needs an array of numbers, \(time,\)"),
    ],
)
def test_tuning_refuses_invalid_input(change, words):
    arguments = {"covariate": np.linspace(0, 1, 50), "counts": np.ones(50), "bin_s": 0.1, "edges": 2} | change
    with pytest.raises(ValueError, match=words):
        plotting.plot_tuning(**arguments)


def test_residuals_are_excess_spikes_in_standard_deviations(rng):
    time_s, rate = 0.05 + 0.1 * np.arange(100), rng.uniform(0.5, 2, 100)
    counts = rng.poisson(rate).astype(float)
    rate[3], counts[15] = np.nan, np.nan
    ax = plotting.plot_residuals(time_s, rate, counts, window_s=1.0)
    values, edges, _ = ax.patches[0].get_data()
    np.testing.assert_allclose(edges, np.arange(11), atol=1e-12)
    known = np.isfinite(rate) & np.isfinite(counts)
    for k, residual in enumerate(values):
        here = known & (np.arange(100) // 10 == k)
        expected = rate[here].sum()
        np.testing.assert_allclose(residual, (counts[here].sum() - expected) / np.sqrt(expected))
    ax = plotting.plot_residuals(time_s, rate, counts, window_s=1.0, limits_s=(2.0, 5.0))
    np.testing.assert_allclose(ax.patches[0].get_data().values, values[2:5])
    with pytest.raises(ValueError, match=r"rate has shape \(3,\)"):
        plotting.plot_residuals(time_s, np.ones(3), counts, window_s=1.0)


def test_time_rescaling_draws_the_distribution_and_its_band(rng):
    rate = np.full((2000, 2), 0.2)
    counts = rng.poisson(rate)
    models = {"wrong": rescale_time(counts, 0.5 * rate), "right": rescale_time(counts, rate)}
    ax = plotting.plot_time_rescaling(models, neuron=1, level=0.9)
    n = counts[:, 1].sum()
    for name, model in models.items():
        drawn = line(ax, name)
        np.testing.assert_array_equal(drawn.get_xdata()[1:-1], model.uniform[1])
        np.testing.assert_allclose(drawn.get_ydata()[:-1], np.arange(n + 1) / n)
        assert drawn.get_drawstyle() == "steps-post"
    half = scipy.stats.kstwo.ppf(0.9, n)
    np.testing.assert_allclose(outline(ax.collections[0])[1.0], (1 - half, 1 + half))
    assert texts(ax) == ["90% band", "wrong", "right"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("rescaled interval", "cumulative share of intervals")
    ax = plotting.plot_time_rescaling(models, neuron=1, difference=True)
    distance = {name: np.abs(line(ax, name).get_ydata()).max() for name in models}
    for name, model in models.items():
        np.testing.assert_allclose(distance[name], model.statistic[1])
    assert distance["right"] < models["right"].band()[1] < distance["wrong"]
    assert ax.get_ylabel() == "cumulative share of intervals,\nminus the uniform"


def test_time_rescaling_refuses_unknown_neurons_and_labels_silent_ones(rng):
    rate = np.full((500, 2), 0.2)
    counts = rng.poisson(rate)
    counts[:, 1] = 0
    rescaled = rescale_time(counts, rate)
    for neuron, message in (
        (7, "neuron is 7; rescaled, model, has neurons 0 to 1"),
        (-1, "neuron is -1; it must be a whole"),
    ):
        with pytest.raises(ValueError, match=message):
            plotting.plot_time_rescaling(rescaled, neuron=neuron)
    with pytest.raises(ValueError, match="level is 95"):
        plotting.plot_time_rescaling(rescaled, level=95)
    with pytest.raises(TypeError, match=r"rescaled, a, is a ndarray; it must be what .*rescale_time returns"):
        plotting.plot_time_rescaling({"a": rate})
    with pytest.raises(ValueError, match="empty dict"):
        plotting.plot_time_rescaling({})
    ax = plotting.plot_time_rescaling(rescaled, neuron=1)
    assert words(ax) == ["no spikes"] and "model" not in texts(ax)


# ------------------------------------------------------------------------- decoding


@pytest.mark.thorough
def test_confusion_is_the_percentage_of_each_true_class():
    true, decoded = ["b", "b", "a", "b", "a", "b"], ["b", "a", "a", "b", "a", "c"]
    ax = plotting.plot_confusion(true, decoded)
    image = np.ma.filled(ax.images[0].get_array().astype(float), np.nan)
    np.testing.assert_allclose(image, [[100, 0, 0], [25, 50, 25], [np.nan] * 3])  # c never occurred
    assert ax.get_facecolor() == matplotlib.colors.to_rgba(plotting.LIGHT)  # and is not drawn like 0 %
    assert ax.images[0].cmap.get_bad()[3] == 0
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b", "c"]
    assert [t.get_text() for t in ax.texts] == ["100", "25", "50", "25"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("decoded", "true")
    ax = plotting.plot_confusion([0, 1], [0, 0], labels=[1, 0], names=["one", "none"], numbers=False)
    np.testing.assert_allclose(ax.images[0].get_array(), [[0, 100], [0, 100]])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["one", "none"] and not ax.texts
    with pytest.raises(ValueError, match="lacks 3"):
        plotting.plot_confusion([0, 3], [0, 0], labels=[0, 1])
    with pytest.raises(ValueError, match=r"\(2,\)"):
        plotting.plot_confusion([0, 3], [0])


def test_decoded_positions_are_drawn_at_their_coordinates(rng):
    time_s, position = 0.25 + 0.5 * np.arange(6), np.array([5.0, 15.0, 35.0])  # 25 was never seen
    posterior, truth = rng.dirichlet(np.ones(3), 6), rng.uniform(0, 40, 6)
    ax = plotting.plot_decoded(time_s, posterior, position, truth, breaks=[1.5])
    image = ax.images[0]
    np.testing.assert_allclose(image.get_array()[[0, 1, 3]], posterior.T)
    np.testing.assert_array_equal(image.get_array()[2], 0)
    assert image.get_extent() == [0, 3, 0, 40]
    cut, first, second = ax.get_lines()
    assert cut.get_xdata()[0] == 1.5
    np.testing.assert_allclose(np.concatenate([first.get_ydata(), second.get_ydata()]), truth)
    assert first.get_xdata()[-1] < 1.5 < second.get_xdata()[0]
    assert texts(ax) == ["time cut", "true"]
    assert texts(plotting.plot_decoded(time_s, posterior, position, breaks=[1.5])) == ["time cut"]
    assert plotting.plot_decoded(time_s, posterior, position).get_legend() is None
    with pytest.raises(ValueError, match=r"\(6, 2\)"):
        plotting.plot_decoded(time_s, posterior, position[:2])
    with pytest.raises(ValueError, match=r"truth has shape \(5,\)"):
        plotting.plot_decoded(time_s, posterior, position, truth[1:])


def test_responses_come_from_a_table_or_a_model():
    table = np.arange(12.0).reshape(3, 4)
    table[1, 1] = np.nan
    ax = plotting.plot_responses(table, rows=[2, 1], columns=[1, 0], label="spikes")
    np.testing.assert_array_equal(np.ma.filled(ax.images[0].get_array(), np.nan), [[9, 8], [np.nan, 4]])
    assert ax.images[0].get_clim()[0] == 0
    assert ax.figure.axes[1].get_ylabel() == "spikes"
    model = MagicMock(spec=ResponseModel, predict=lambda: 2 * table)
    ax = plotting.plot_responses(model, limits=(-1, 5))
    np.testing.assert_array_equal(np.ma.filled(ax.images[0].get_array(), np.nan), 2 * table)
    assert ax.images[0].get_clim() == (-1, 5)
    assert plotting.plot_responses(np.full((2, 2), np.nan), colorbar=False).images[0].get_clim() == (0, 1)


# ------------------------------------------------------------------------- reports of every estimator


def test_overview_of_classes(rng):
    X = rng.normal(size=(300, 3))
    label = np.argmax(X + rng.gumbel(size=X.shape) + [1, 0, -1], axis=1)
    report = SoftmaxGLM(regularizer_strength=1e-2).fit(X, label).report_
    totals, loss, gap = plotting.plot_report_overview(report)
    np.testing.assert_array_equal(totals.patches[0].get_data().values, np.sort(np.bincount(label))[::-1])
    np.testing.assert_allclose([bar.get_width() for bar in loss.patches], [report.null_objective, report.objective])
    assert "converged" in loss.get_title()
    drawn = gap.get_lines()[0].get_ydata()
    np.testing.assert_allclose(drawn[-1], report.gap)
    np.testing.assert_allclose(line(gap, "target").get_ydata(), report.target)
    assert "proved bound" in texts(gap)
    ax = plotting.plot_convergence(report)
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), drawn)
    assert ax.get_ylabel().endswith("(nats per row)")
    assert texts(ax)[0] == "all classes (estimate)"


@pytest.mark.slow
def test_overview_of_classes_whose_gap_was_not_computed(rng):
    X, label = rng.normal(size=(300, 3)), rng.integers(0, 4, 300)
    model = SoftmaxGLM(solver_name="ImplicitSGD", certify=False, regularizer_strength=1e-2)
    report = model.fit(X, label).report_
    gap = plotting.plot_report_overview(report)[2]
    assert [t.get_text() for t in gap.texts] == ["gap not computed"]
    with pytest.raises(ValueError, match=r"\(ImplicitSGD\) has no history of gaps"):
        plotting.plot_convergence(report)


@pytest.mark.slow
def test_overview_of_responses(rng):
    features = rng.normal(size=(40, 5))
    table = rng.poisson(np.logaddexp(0, features @ rng.normal(size=(5, 20)))).astype(float)
    table[rng.random(table.shape) < 0.4] = np.nan
    model = ResponseModel(n_components=2, regularizer_strength=(1.0, 10.0)).fit(features, None, table)
    report = model.report_
    objective, score, gap = plotting.plot_report_overview(report)
    np.testing.assert_allclose(objective.get_lines()[0].get_ydata(), report.history["objective"])
    np.testing.assert_array_equal(score.get_lines()[0].get_xdata(), [1, 10])
    np.testing.assert_allclose(score.get_lines()[0].get_ydata(), report.tuning["score"])
    assert line(score, "chosen").get_xdata() == [report.regularizer_strength]
    np.testing.assert_allclose([b.get_width() for b in gap.patches], [report.gap_stimuli, report.gap_neurons])
    alone = ResponseModel(n_components=2, regularizer_strength=1.0).fit(features, None, table).report_
    score = plotting.plot_report_overview(alone)[1]
    np.testing.assert_allclose(score.patches[0].get_width(), alone.pseudo_r2)
    ax = plotting.plot_responses(model)
    np.testing.assert_allclose(ax.images[0].get_array(), model.predict())


# ------------------------------------------------------------------------- calibration


FAMILIES = ["Poisson", "NegativeBinomial", "Bernoulli", "Binomial", "Gaussian", "Gamma"]


def drawn_from(family, rng, T=1200):
    """Features, responses of two neurons (the second lacks bins), further arguments, and a fitted model."""
    X = rng.normal(size=(T, 2))
    eta = X @ np.array([[0.5, -0.3], [0.2, 0.4]])
    share, trials, exposure = 1 / (1 + np.exp(-eta)), rng.integers(0, 6, T), rng.choice([0.3, 1.0, 2.0], T)
    given = {"Binomial": {"exposure": trials}, "Poisson": {"exposure": exposure}}.get(family, {})
    y = {
        "Poisson": lambda: rng.poisson(exposure[:, None] * np.logaddexp(0, eta)),
        "NegativeBinomial": lambda: rng.poisson(np.exp(eta) * rng.gamma(2, 0.5, eta.shape)),
        "Bernoulli": lambda: rng.random(eta.shape) < share,
        "Binomial": lambda: rng.binomial(trials[:, None], share),
        "Gaussian": lambda: rng.normal(eta),
        "Gamma": lambda: rng.gamma(2, np.exp(eta) / 2),
    }[family]().astype(float)
    y[:100, 1] = np.nan
    return X, y, given, PopulationGLM(observation_model=family).fit(X, y, **given)


def bars(ax):
    """Positions, centres and half lengths of error bars."""
    points, _, (stems,) = ax.containers[0]
    return points.get_xdata(), points.get_ydata(), [np.ptp(s[:, 1]) / 2 for s in stems.get_segments()]


@pytest.mark.parametrize("family", FAMILIES)
def test_binned_residuals_are_means_of_pearson_residuals_and_two_standard_errors(family, rng):
    X, y, given, model = drawn_from(family, rng)
    offset = np.full(len(X), 0.1)
    ax = plotting.plot_binned_residuals(model, X, y, neuron=1, n_bins=4, offset=offset, **given)
    over, eta = given.get("exposure", np.ones(len(X))), X @ model.coef_[:, 1] + model.intercept_[1] + 0.1
    observation = model._observation()
    if hasattr(model, "dispersion_"):
        observation = observation.with_dispersion(model.dispersion_[1])
    mean = observation.mean(eta)
    with np.errstate(invalid="ignore"):
        residual = (y[:, 1] - over * mean) / np.sqrt(over * observation.variance(eta))
    known = np.isfinite(residual)
    assert known.sum() <= 1100
    order = np.argsort(mean[known])
    drawn, height, half = bars(ax)
    for k, part in enumerate(np.array_split(order, 4)):  # up to a bin at the ends
        here = residual[known][part]
        np.testing.assert_allclose(drawn[k], mean[known][part].mean(), rtol=0.02, atol=0.01)
        np.testing.assert_allclose(height[k], here.mean(), atol=0.03)
        np.testing.assert_allclose(half[k], 2 * here.std(ddof=1) / np.sqrt(len(here)), rtol=0.1)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted mean", "mean residual (SD)")


def test_binned_residuals_against_features_time_and_missing_covariates(rng):
    import pandas as pd

    X = pd.DataFrame({"speed": rng.normal(size=400), "reward": np.repeat([0.0, 1.0], 200)})
    lacks = rng.normal(size=400)
    y = rng.poisson(np.exp(-0.5 + lacks)).astype(float)
    model = PopulationGLM().fit(X, y)
    residual = model.residuals(X, y)
    ax = plotting.plot_binned_residuals(model, X, y, against="reward")
    x, height, half = bars(ax)
    np.testing.assert_array_equal(x, [0, 1])  # a bar for every value
    np.testing.assert_allclose(height, [residual[:200].mean(), residual[200:].mean()])
    np.testing.assert_allclose(half[0], 2 * residual[:200].std(ddof=1) / np.sqrt(200))
    assert ax.get_xlabel() == "reward"
    np.testing.assert_array_equal(bars(plotting.plot_binned_residuals(model, X, y, against=1))[1], height)
    ax = plotting.plot_binned_residuals(model, X, y, against="time", n_bins=4, xlabel="trial")
    np.testing.assert_allclose(bars(ax)[0], [49.5, 149.5, 249.5, 349.5])
    assert ax.get_xlabel() == "trial"
    ax = plotting.plot_binned_residuals(model, X, y, against=lacks, n_bins=5)
    x, height, half = bars(ax)
    assert height[0] < -half[0] and height[-1] > half[-1] and ax.get_xlabel() == "covariate"
    nap = pytest.importorskip("pynapple")
    t = 10 + 0.1 * np.arange(400)
    timed = nap.TsdFrame(t=t, d=X.to_numpy(), columns=["speed", "reward"])
    ax = plotting.plot_binned_residuals(
        model, timed, y, against="time", n_bins=2, epochs={"0": nap.IntervalSet(10, 29.95)}
    )
    np.testing.assert_allclose(bars(ax)[0], [t[:100].mean(), t[100:200].mean()])
    assert ax.get_xlabel() == "time (s)"


def counted(ax):
    """Numbers of bins that were counted, by position."""
    of = line(ax, "counted")
    return dict(zip(of.get_xdata(), of.get_ydata(), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["Poisson", "NegativeBinomial", "Binomial"])
def test_calibration_of_counts_shows_observed_and_expected_numbers(family, rng):
    X, y, given, model = drawn_from(family, rng)
    ax = plotting.plot_calibration(model, X, y, neuron=1, level=0.9, **given)
    over = given.get("exposure", np.ones(len(X)))
    seen = ~np.isnan(y[:, 1]) & (over > 0)
    eta, over, counts = (X @ model.coef_[:, 1] + model.intercept_[1])[seen], over[seen], y[seen, 1]
    if family == "Poisson":
        law = scipy.stats.poisson(over * np.logaddexp(0, eta))
    elif family == "Binomial":
        law = scipy.stats.binom(over, 1 / (1 + np.exp(-eta)))
    else:
        r = 1 / model.dispersion_[1]
        law = scipy.stats.nbinom(r, r / (r + np.exp(eta)))
    last = min(int(counts.max()), 12)
    p = [law.pmf(k) for k in range(last)] + [law.sf(last - 1)]
    expected = np.array([each.sum() for each in p])
    np.testing.assert_allclose(line(ax, "model").get_ydata(), expected, rtol=1e-9)
    for k in range(last + 1):
        assert counted(ax).get(k, 0) == np.sum(counts >= last if k == last else counts == k)
    draws = law.rvs(size=(2000, seen.sum()), random_state=1)
    for k in (0, 1, last):
        low, high = outline(ax.collections[0])[k]
        number = np.sum(draws >= last if k == last else draws == k, axis=1)
        assert 0.88 < np.mean((low <= number) & (number <= high)) <= (1.0 if expected[k] < 5 else 0.94)
    assert ax.get_yscale() == "log" and texts(ax) == ["model", "counted"]
    assert [t.get_text() for t in ax.get_xticklabels()][-1] == f"{last}+"


def test_calibration_distinguishes_an_overdispersed_neuron_from_poisson(rng):
    X, y, _, right = drawn_from("NegativeBinomial", rng, T=5000)
    wrong = PopulationGLM("exp").fit(X, y)
    ax = plotting.plot_calibration({"Poisson": wrong, "negative binomial": right}, X, y)
    assert texts(ax) == ["Poisson", "negative binomial", "counted"]
    outside = [
        sum(not band[k][0] <= n <= band[k][1] for k, n in counted(ax).items())
        for band in (outline(c) for c in ax.collections[:2])
    ]
    assert outside[0] >= 5 and outside[1] <= 2


def test_calibration_of_large_counts_uses_intervals(rng):
    y = rng.poisson(500, 4000).astype(float)
    X = rng.normal(size=(4000, 1))
    model = PopulationGLM("exp").fit(X, y)
    ax = plotting.plot_calibration(model, X, y)
    expected = line(ax, "model").get_ydata()
    assert 10 <= len(expected) <= 20
    np.testing.assert_allclose([expected.sum(), sum(counted(ax).values())], 4000)
    assert ax.get_xlabel() == "count (lower end of the interval)"


def test_calibration_of_binary_responses_is_the_share_of_ones(rng):
    X, y, _, model = drawn_from("Bernoulli", rng)
    ax = plotting.plot_calibration(model, X, y, neuron=1, n_bins=5)
    p, yes = model.predict(X)[100:, 1], y[100:, 1]
    x, share = line(ax, "model").get_data()
    for k, part in enumerate(np.array_split(np.argsort(p), 5)):
        np.testing.assert_allclose([x[k], share[k]], [p[part].mean(), yes[part].mean()], atol=0.01)
        low, high = np.sort(ax.collections[0].get_segments()[k][:, 1])
        ends = scipy.stats.binom.ppf([0.025, 0.975], 220, x[k]) / 220
        np.testing.assert_allclose([low, high], ends, atol=0.01)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted probability", "share of yes")


@pytest.mark.parametrize("family", ["Gaussian", "Gamma"])
def test_calibration_of_measured_values_is_the_distribution_of_their_probability_transform(family, rng):
    X, y, _, model = drawn_from(family, rng)
    wrong = PopulationGLM(observation_model=family).fit(X[:, :1], y**3 if family == "Gaussian" else y)
    ax = plotting.plot_calibration(model, X, y, neuron=1)
    eta, phi = (X @ model.coef_[:, 1] + model.intercept_[1])[100:], model.dispersion_[1]
    normal, gamma = scipy.stats.norm(eta, phi**0.5), scipy.stats.gamma(1 / phi, scale=np.exp(eta) * phi)
    law = normal if family == "Gaussian" else gamma
    u = np.sort(law.cdf(y[100:, 1]))
    drawn = line(ax, "model")
    np.testing.assert_allclose(drawn.get_xdata()[1:-1], u, rtol=1e-9)
    np.testing.assert_allclose(drawn.get_ydata()[:-1], np.arange(1101) / 1100)
    half = scipy.stats.kstwo.ppf(0.95, 1100)
    assert scipy.stats.kstest(u, "uniform").statistic < half
    np.testing.assert_allclose(outline(ax.collections[0])[1.0], (1 - half, 1 + half))
    if family == "Gaussian":
        ax = plotting.plot_calibration(wrong, X[:, :1], y**3, neuron=1)
        drawn = line(ax, "model")
        assert np.abs(drawn.get_xdata()[1:-1] - drawn.get_ydata()[1:-1]).max() > half


def test_a_silent_neuron_is_calibrated(rng):
    X, y = rng.normal(size=(300, 2)), np.zeros((300, 2))
    y[::3, 1] = 1
    for link in ("softplus", "exp"):
        model = PopulationGLM(link).fit(X, y)
        ax = plotting.plot_calibration(model, X, y, offset=np.full(300, 5.0))
        assert counted(ax) == {0: 300}
        np.testing.assert_allclose(line(ax, "model").get_ydata(), 300)


def test_calibration_and_residuals_refuse_invalid_input(rng):
    X, y, _, model = drawn_from("Gaussian", rng)
    for draw in (plotting.plot_calibration, plotting.plot_binned_residuals):
        with pytest.raises(ValueError, match="neuron is 2; the model has neurons 0 to 1"):
            draw(model, X, y, neuron=2)
        with pytest.raises(TypeError, match="model is a str; it must be a fitted PopulationGLM"):
            draw("Poisson", X, y)
        with pytest.raises(NotFittedError):
            draw(PopulationGLM(), X, y)
        with pytest.raises(ValueError, match="n_bins is 0"):
            draw(model, X, y, n_bins=0)
        with pytest.raises(ValueError, match="neuron 1 has no bin where"):
            draw(model, X[:100], y[:100], neuron=1)
    for against in ("sped", 2, True, None, 0.5):
        with pytest.raises(
            ValueError, match=f'against is {against!r}; it must be "mean", "time", a feature, 0 to 1, or'
        ):
            plotting.plot_binned_residuals(model, X, y, against=against)
    with pytest.raises(ValueError, match=r"against has shape \(3,\); it needs a value per time bin, \(1200,\)"):
        plotting.plot_binned_residuals(model, X, y, against=np.ones(3))
    with pytest.raises(ValueError, match="empty dict"):
        plotting.plot_calibration({}, X, y)
    with pytest.raises(ValueError, match="level is 95"):
        plotting.plot_calibration(model, X, y, level=95)
    positive = np.abs(np.nan_to_num(y)) + 0.1
    with pytest.warns(UserWarning, match="not integers"):
        quasi = PopulationGLM().fit(X, positive)
    with pytest.raises(ValueError, match="models of counts and of measured values have no figure in common"):
        plotting.plot_calibration({"a": model, "b": quasi}, X, positive)
    with pytest.raises(ValueError, match="y has counts that are not whole numbers"):
        plotting.plot_calibration(quasi, X, positive)


def test_without_matplotlib_a_plot_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for draw in (plotting.new_axes, lambda: plotting.plot_filter(np.eye(2), [1.0, 0.0], [0.0, 0.1])):
        with pytest.raises(ImportError, match=r'matplotlib not installed: in the checkout run  .* -e "\.\[plot\]"'):
            draw()


# ------------------------------------------------------------------------- what cannot be drawn

TIMES, POSTERIOR, PLACES = 0.1 * np.arange(20), np.full((20, 5), 0.2), np.arange(5.0)
EVEN = "must be numbers that increase by the same step"


@pytest.mark.parametrize(
    "draw, given, message",
    [
        (plotting.plot_decoded, (TIMES, POSTERIOR, [0, 1e-6, 1, 2, 1e4]), EVEN),
        (plotting.plot_decoded, (TIMES, POSTERIOR, [0, 1, np.nan, 3, 4]), EVEN),
        (plotting.plot_decoded, (TIMES, POSTERIOR, np.ones(5)), EVEN),
        (plotting.plot_decoded, (TIMES, POSTERIOR[:, :0], []), EVEN),
        (plotting.plot_decoded, ([], POSTERIOR[:0], PLACES), "time_s must be one or more finite numbers"),
        (plotting.plot_responses, (POSTERIOR, {"rows": [99]}), "rows is .* whole numbers from 0 to 19"),
        (plotting.plot_responses, (POSTERIOR, {"columns": [0.0]}), "columns is .* whole numbers from 0 to 4"),
        (plotting.plot_responses, (POSTERIOR, {"limits": (1,)}), "limits is .* a tuple of two"),
        (plotting.plot_confusion, ([0, 1], [0, 1], {"names": ["a"]}), "names has 1 names for 2 classes"),
        (plotting.plot_confusion, ([0, 1], [0, 1], {"labels": [0, 1, 1]}), "labels has 3 classes, but only 2"),
        (plotting.plot_residuals, ([], [], [], {"window_s": 1.0, "bin_s": 0.1}), "time_s has no bins"),
        (plotting.plot_residuals, ([0, 0.1, 1e9], np.ones(3), np.ones(3), {"window_s": 1.0}), "must be evenly spaced"),
        (plotting.plot_filter, (np.eye(2), [1, 1], [0, 1], {"interval": 3}), "interval is 3; it must be a tuple"),
        (plotting.plot_filter, ([[1.0]], [1], [0], {"covariance": [[-1.0]]}), "covariance is not one"),
        (plotting.plot_tuning, (TIMES, TIMES, {"bin_s": 0.1, "curve": 3}), "curve is 3; it must be a tuple of two"),
    ],
)
def test_errors_state_what_is_allowed(draw, given, message):
    named = given[-1] if isinstance(given[-1], dict) else {}
    with pytest.raises(ValueError, match=message):
        draw(*given[: len(given) - bool(named)], **named)


def test_pairs_may_be_arrays_and_units_mappings(rng):
    ends = np.array([[-1.0, -1.0], [1.0, 1.0]])
    plotting.plot_filter(np.eye(2), [1, 1], [0, 1], interval=ends, covariance=np.zeros((2, 2)), refractory_s=0)
    image = plotting.plot_responses(POSTERIOR, limits=np.array([0.0, 2.0])).images[0]
    assert image.get_clim() == (0, 2)
    plotting.plot_decoded(TIMES, POSTERIOR[:, :3], [0.333, 0.667, 1.0])


def test_rows_of_nan_do_not_hide_the_others_of_a_posterior(rng):
    posterior = rng.dirichlet(np.ones(5), 20)
    posterior[3] = np.nan
    limits = plotting.plot_decoded(TIMES, posterior, PLACES).images[0].get_clim()
    assert limits == (0, np.quantile(np.delete(posterior, 3, axis=0).max(axis=1), 0.99))
