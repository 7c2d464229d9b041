"""The figure of terms shows the model's rates, their intervals, and the rates that were counted."""

import numpy as np
import pytest

from glmfit import PopulationGAM, PopulationGLM, plotting
from glmfit.design import BSpline, CyclicBSpline, RaisedCosineLog, Term, product

matplotlib = pytest.importorskip("matplotlib")

T, BIN_S = 4000, 0.02
PLACE = product(BSpline(5, (0, 100), name="x"), BSpline(5, (0, 100), name="y"), name="place")
BASIS = PLACE + CyclicBSpline(6, name="phase") + RaisedCosineLog(4, window_s=0.2, bin_s=BIN_S, name="history")
UNITS = {"x": "cm", "y": "cm", "phase": "rad"}


@pytest.fixture(autouse=True)
def close_figures():
    """Close the figures that pyplot opened."""
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 100, (2, T))
    x = np.where((x > 60) & (y > 60), 30.0, x)  # an unvisited corner
    return x, y, rng.uniform(-np.pi, 3 * np.pi, T), rng.poisson(0.2, T)  # two turns of phase


@pytest.fixture(scope="module")
def data(inputs):
    x, y, phase, _ = inputs
    rate = np.exp(-((x - 40) ** 2 + (y - 50) ** 2) / 900 + 0.5 * np.cos(phase) - 1)
    Y = np.random.default_rng(1).poisson(np.stack([rate, np.full(T, 0.2), np.zeros(T)], axis=1)).astype(float)
    return BASIS.features(*inputs), Y


@pytest.fixture(scope="module")
def model(data):
    return PopulationGAM(BASIS, inverse_link_function="exp").fit(*data)


def lines(ax):
    """Data of every line with more than two points."""
    return [line.get_xydata() for line in ax.get_lines() if len(line.get_xydata()) > 2]


def bands(ax):
    """Vertices of every filled band."""
    return [c.get_paths()[0].vertices for c in ax.collections if isinstance(c, matplotlib.collections.PolyCollection)]


def words(ax):
    return [text.get_text() for text in ax.texts]


def test_panels_are_the_terms_with_units(model):
    axes = plotting.plot_terms(model, bin_s=BIN_S, units=UNITS)
    assert axes.shape == (1, 3)
    assert [ax.get_title(loc="left") for ax in axes[0]] == ["0: place", "phase", "history"]
    assert [ax.get_xlabel() for ax in axes[0]] == ["x (cm)", "phase (rad)", "lag (ms)"]
    assert [ax.get_ylabel() for ax in axes[0]] == ["y (cm)", "rate (spikes/s)", "change of predictor"]
    legend = axes[0, 0].figure.legends[0]
    one = plotting.plot_terms(model, terms="phase")[0, 0].figure  # whose legend is as wide as three panels
    one.draw_without_rendering()
    assert one.bbox.x0 <= one.legends[0].get_window_extent().x0 and one.legends[0].get_window_extent().x1 <= one.bbox.x1
    assert [t.get_text() for t in legend.get_texts()] == ["95 % simultaneous", "pointwise", "model"]


def test_without_rows_rates_are_those_of_the_term_over_one_turn(model):
    ax = plotting.plot_terms(model, terms="phase", bin_s=BIN_S, level=0.9)[0, 0]
    curve = model.term("phase", level=0.9)
    (drawn,) = lines(ax)
    np.testing.assert_allclose(drawn, np.column_stack([curve.axes[0], curve.rate[:, 0] / BIN_S]))
    assert ax.get_xlim() == (0, pytest.approx(2 * np.pi))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", r"$\pi$", r"$2\pi$"]
    wide, narrow = bands(ax)
    assert wide[:, 1].max() == pytest.approx(np.max(curve.rate_high_simultaneous[:, 0]) / BIN_S)
    assert narrow[:, 1].min() == pytest.approx(np.min(curve.rate_low[:, 0]) / BIN_S)
    per_bin = plotting.plot_terms(model, terms="phase")[0, 0]
    np.testing.assert_allclose(lines(per_bin)[0][:, 1], model.term("phase").rate[:, 0])
    assert per_bin.get_ylabel() == "rate (spikes/bin)"


def test_with_rows_rates_are_averaged_over_the_other_terms(model, data):
    X, _ = data
    used = X[np.isfinite(X).all(axis=1)]
    ax = plotting.plot_terms(model, X, terms="phase", neuron=0)[0, 0]
    (drawn,) = lines(ax)
    for point in (0, 30, 70):
        changed = used.copy()
        changed[:, 25:31] = model.terms_["phase"].basis.on_grid(drawn[[point], 0])
        assert drawn[point, 1] == pytest.approx(model.predict(changed)[:, 0].mean(), rel=0.01)
    # This is the level of the counts; the rate at the mean of the other terms is not.
    assert drawn[:, 1].mean() == pytest.approx(data[1][:, 0].mean(), rel=0.05)
    assert abs(model.term("phase").rate[:, 0].mean() / data[1][:, 0].mean() - 1) > 0.05


def test_dots_are_the_rates_counted_around_the_circle(model, data, inputs):
    X, Y = data
    ax = plotting.plot_terms(model, X, Y, terms="phase", covariates={"phase": inputs[2]}, bin_s=BIN_S, n_bins=8)[0, 0]
    (dots,) = [line for line in ax.get_lines() if line.get_marker() == "o"]
    place = np.floor(np.mod(inputs[2], 2 * np.pi) / (2 * np.pi) * 8).astype(int)
    expected = [Y[place == k, 0].mean() / BIN_S for k in range(8)]
    np.testing.assert_allclose(dots.get_ydata(), expected)
    np.testing.assert_allclose(dots.get_xdata(), (np.arange(8) + 0.5) * np.pi / 4)


def test_maps_are_grey_in_unvisited_places_and_have_the_counted_map_next_to_them(model, data, inputs):
    X, Y = data
    x, y = inputs[:2]
    given = {"covariates": {"place": (x, y)}, "bin_s": BIN_S, "n_bins": 10, "units": UNITS}
    axes = plotting.plot_terms(model, X, Y, terms=["place", "phase"], **given)
    assert [ax.get_title(loc="left") for ax in axes[0]] == ["0: place", "counted", "phase"]
    fitted, counted = (ax.images[0].get_array() for ax in axes[0, :2])
    assert fitted.shape == (20, 20) and counted.shape == (10, 10)  # (y, x)
    here = (x >= 40) & (x < 50) & (y >= 50) & (y < 60)
    assert counted[5, 4] == pytest.approx(Y[here, 0].mean() / BIN_S)
    assert counted.mask[6:, 6:].all() and fitted.mask[12:, 12:].all()
    assert not counted.mask[:6].any() and not fitted.mask[:12].any()
    assert axes[0, 0].images[0].get_clim() == axes[0, 1].images[0].get_clim()
    peak = np.unravel_index(np.argmax(fitted.filled(0)), fitted.shape)
    assert np.all(np.abs(np.array(peak) * 5 + 2.5 - [50, 40]) < 12)
    assert axes[0, 0].get_aspect() == 1 and tuple(axes[0, 0].images[0].get_extent()) == (0, 100, 0, 100)
    # One point of the map by hand: the average over the rows with this place.
    used = X[np.isfinite(X).all(axis=1)]
    used[:, :25] = PLACE.on_grid([42.5], [52.5])
    assert fitted[10, 8] == pytest.approx(model.predict(used)[:, 0].mean() / BIN_S, rel=0.01)


def test_unvisited_places_are_grey_even_without_counts(model, inputs):
    axes = plotting.plot_terms(model, terms="place", covariates={"place": inputs[:2]}, n_bins=10)
    assert axes.shape == (1, 1) and axes[0, 0].images[0].get_array().mask[12:, 12:].all()
    everywhere = plotting.plot_terms(model, terms="place", n_bins=10)[0, 0].images[0].get_array()
    assert not np.ma.getmaskarray(everywhere).any()


def test_filters_are_over_lags_on_the_scale_of_the_predictor(model):
    ax = plotting.plot_terms(model, terms="history")[0, 0]
    curve = model.term("history")
    np.testing.assert_allclose(lines(ax)[0], np.column_stack([1000 * curve.axes[0], curve.curve[:, 0]]))
    wide, narrow = bands(ax)
    assert wide[:, 1].max() == pytest.approx(curve.high_simultaneous[:, 0].max())
    assert narrow[:, 1].max() == pytest.approx(curve.high[:, 0].max())


def test_each_neuron_has_a_row_and_those_without_a_fit_have_a_note(model, data, inputs):
    axes = plotting.plot_terms(model, *data, neuron=["1", 2], covariates={"place": inputs[:2]}, n_bins=6)
    assert axes.shape == (2, 4)
    assert axes[0, 0].get_title(loc="left") == "1: place" and axes[1, 0].get_title(loc="left") == "2: place"
    assert words(axes[1, 0]) == words(axes[1, 2]) == words(axes[1, 3]) == ["no fit"]
    assert np.all(axes[1, 1].images[0].get_array() == 0)  # silent


def test_coefficients_filters_that_change_and_terms_of_many_inputs_have_panels(data, inputs):
    x, y, phase, spikes = inputs
    history = RaisedCosineLog(3, window_s=0.2, bin_s=BIN_S, name="history")
    bases = [
        product(BSpline(4, (0, 100), name="x"), history, name="changing"),
        product(*(BSpline(4, (0, 100), name=name) for name in "xyz"), name="cube"),
    ]
    X = np.column_stack([bases[0].features(x, spikes), bases[1].features(x, y, x), np.cos(phase), np.sin(phase)])
    terms = {"changing": Term(range(12), bases[0].penalties, bases[0])}
    terms |= {"cube": Term(range(12, 76), bases[1].penalties, bases[1]), "heading": [76, 77]}
    model = PopulationGAM(terms, 1e-2, inverse_link_function="exp").fit(X, data[1][:, 0])
    changing, cube, heading = plotting.plot_terms(model)[0]
    curve = model.term("changing")
    np.testing.assert_allclose(changing.images[0].get_array(), curve.curve[..., 0].T)
    assert changing.get_xlabel() == "x" and changing.get_ylabel() == "lag (s)"
    assert words(cube) == ["3 inputs:\nmodel.term('cube')"]
    dots = next(line.get_xydata() for line in heading.get_lines() if line.get_marker() == "o")
    np.testing.assert_allclose(dots[:, 1], model.coef_[76:])
    assert [t.get_text() for t in heading.get_xticklabels()] == ["76", "77"]


def test_axes_may_be_given(model):
    given = plotting.new_axes((1, 1))
    found = plotting.plot_terms(model, terms=["phase", "history"], axes=given)
    assert found.shape == (1, 2) and found[0, 0] is given[0, 0]
    assert given[0, 0].get_legend() is not None and not given[0, 0].figure.legends
    with pytest.raises(ValueError, match=r"axes has 2 entries; 1 neuron\(s\) with 3 panels each need 3"):
        plotting.plot_terms(model, axes=given)
    with pytest.raises(TypeError, match=r"axes\[0\] is a str"):
        plotting.plot_terms(model, terms="phase", axes=["here"])


def test_what_cannot_be_drawn_is_refused(model, data, inputs):
    X, Y = data
    with pytest.raises(TypeError, match="model is a PopulationGLM; it must be a fitted"):
        plotting.plot_terms(PopulationGLM())
    with pytest.raises(ValueError, match="name is 'plaice'"):
        plotting.plot_terms(model, terms="plaice")
    with pytest.raises(ValueError, match="terms is empty"):
        plotting.plot_terms(model, terms=[])
    with pytest.raises(ValueError, match="covariates names 'plaice'"):
        plotting.plot_terms(model, X, Y, covariates={"plaice": inputs[0]})
    with pytest.raises(ValueError, match="covariates names 'history', whose rates cannot be counted"):
        plotting.plot_terms(model, X, Y, covariates={"history": inputs[3]})
    with pytest.raises(ValueError, match="covariates has 1 array for the term 'place'; it has x, y"):
        plotting.plot_terms(model, X, Y, covariates={"place": inputs[:1]})
    with pytest.raises(ValueError, match=r"covariates\['phase'\] has shape \(10,\)"):
        plotting.plot_terms(model, X, Y, covariates={"phase": inputs[2][:10]})
    with pytest.raises(ValueError, match=r"y has shape \(4000, 2\); the model has 3 neurons"):
        plotting.plot_terms(model, X, Y[:, :2], covariates={"phase": inputs[2]})
    with pytest.raises(ValueError, match="neuron is 9"):
        plotting.plot_terms(model, neuron=9)
