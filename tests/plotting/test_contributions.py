"""The figures of explanations show the contributions, folds, strengths and draws that were found."""

from dataclasses import replace

import numpy as np
import pytest

from glmfit import PopulationGLMCV, plotting
from glmfit.inference import CircularShift, Explanation, explain

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def close_figures():
    """Close the figures that pyplot opened."""
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture(scope="module")
def found():
    """Three neurons: one follows place, one speed, one neither."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    eta = np.stack([0.6 * X[:, 0], 0.6 * X[:, 1], np.zeros(600)], axis=1)
    counts = rng.poisson(np.exp(eta - 0.5))
    model = PopulationGLMCV("exp", strengths=[1e-3, 1e-1])
    groups = {"place": 0, "speed": [1, 2]}
    null = CircularShift(24, least=5)
    return explain(model, X, counts, groups, cv=4, null=null, order=["speed", "place"], level=None)


@pytest.fixture(scope="module")
def without_null(found):
    """The same without a null."""
    nothing = np.full_like(found.p_value, np.nan)
    drawn = np.full((0, *nothing.shape), np.nan)
    return replace(found, null="", p_value=nothing, q_value=nothing, statistic=nothing, null_statistic=drawn)


def index(found, kind, name):
    return [(c.kind, c.name) for c in found.contributions].index((kind, name))


def texts(ax):
    """Texts of the legend."""
    return [t.get_text() for t in ax.get_legend().get_texts()]


def points(ax):
    """Points of every scatter."""
    return [np.asarray(c.get_offsets()) for c in ax.collections if isinstance(c, matplotlib.collections.PathCollection)]


def fills(ax):
    """Whether every point is filled."""
    scatters = [c for c in ax.collections if isinstance(c, matplotlib.collections.PathCollection)]
    return [~np.all(np.isclose(c.get_facecolors(), 1.0), axis=1) for c in scatters]


@pytest.mark.thorough
@pytest.mark.parametrize("unit", ["nats", "bits per spike", "d2"])
def test_points_are_contributions_with_standard_errors_in_the_unit(found, unit):
    ax = plotting.plot_contributions(found, unit=unit)
    values = {"nats": found.contribution, "bits per spike": found.bits_per_spike, "d2": found.d2}[unit]
    each = [index(found, "unique", "place"), index(found, "unique", "speed")]
    for n, at in enumerate(points(ax)):
        np.testing.assert_allclose(at[:, 1], values[each, n])
        assert np.all(np.round(at[:, 0]) == [0, 1])
    bars = [c for c in ax.collections if isinstance(c, matplotlib.collections.LineCollection)]
    for n, bar in enumerate(bars):
        half = [np.ptp(segment[:, 1]) / 2 for segment in bar.get_segments()]
        expected = found.standard_error[each, n] * values[each, n] / found.contribution[each, n]
        np.testing.assert_allclose(half, expected, rtol=1e-6)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["place", "speed"]
    assert {"nats": "nats", "bits per spike": "bits per spike", "d2": "D^2"}[unit] in ax.get_ylabel()
    assert texts(ax) == ["0", "1", "2"]


@pytest.mark.thorough
def test_points_of_discoveries_are_filled(found, without_null):
    each = [index(found, "unique", "place"), index(found, "unique", "speed")]
    level = float(found.q_value[each, [0, 1]].max())
    filled = fills(plotting.plot_contributions(found, level=level))
    np.testing.assert_array_equal(np.transpose(filled), found.q_value[each] <= level)
    assert filled[0][0] and filled[1][1] and not filled[2].any()
    assert np.all(fills(plotting.plot_contributions(without_null)))


def test_neurons_are_selected_by_number_or_name(found):
    ax = plotting.plot_contributions(found, neurons=["2", 0], kind="whole")
    assert texts(ax) == ["2", "0"]
    np.testing.assert_allclose([at[0, 1] for at in points(ax)], found.contribution[0, [2, 0]])


def test_the_map_has_a_row_per_group_and_a_dot_per_discovery(found):
    level = 0.2
    ax = plotting.plot_contributions(found, style="map", level=level, kind="added")
    each = [index(found, "added", "speed"), index(found, "added", "place")]  # in the given order
    np.testing.assert_allclose(ax.images[0].get_array(), found.contribution[each])
    dots = set(map(tuple, ax.get_lines()[0].get_xydata()[:, ::-1].astype(int)))
    assert dots == set(zip(*np.nonzero(found.q_value[each] <= level)))
    assert [t.get_text() for t in ax.get_yticklabels()] == ["speed", "place"]
    assert len(ax.figure.axes) == 2
    axes = plotting.new_axes()[0]
    plotting.plot_contributions(found, style="map", colorbar=False, ax=axes[0])
    assert len(axes[0].figure.axes) == 1


def many(found, n):
    """An explanation of n neurons that repeat those found."""
    some = np.arange(n) % len(found.neuron)
    arrays = {
        name: getattr(found, name)[..., some]
        for name in ("loss", "loss_off", "strength", "gap", "proved", "saturated", "n_spikes", "p_value", "q_value",
                     "statistic", "null_statistic", "n_draws", "n_loose",
                     "n_unproved_draws")
    }  # fmt: skip
    return replace(found, neuron=[f"unit {k}" for k in range(n)], **arrays)


def test_many_neurons_are_drawn_as_a_map_with_names_that_fit(found):
    ax = plotting.plot_contributions(many(found, 90))
    assert ax.images[0].get_array().shape == (2, 90)
    assert 20 < len(ax.get_xticks()) <= 40
    assert ax.get_xticklabels()[1].get_text() == "unit 3"
    ax = plotting.plot_contributions(many(found, 12), style="points")
    assert ax.get_legend() is None and len(points(ax)) == 12


def test_unique_against_maximal_is_a_point_per_neuron_and_group(found):
    ax = plotting.plot_unique_against_maximal(found)
    for name, at in zip(("place", "speed"), points(ax), strict=True):
        np.testing.assert_allclose(at[:, 0], found.contribution[index(found, "maximal", name)])
        np.testing.assert_allclose(at[:, 1], found.contribution[index(found, "unique", name)])
    assert texts(ax) == ["place", "speed"]
    assert "maximal" in ax.get_xlabel() and "unique" in ax.get_ylabel()
    ax = plotting.plot_unique_against_maximal(found, group="speed", unit="d2")
    assert len(points(ax)) == 1
    np.testing.assert_allclose(points(ax)[0][:, 1], found.d2[index(found, "unique", "speed")])


def test_the_null_is_a_histogram_of_draws_with_the_recording(found):
    ax = plotting.plot_null(found, 0, group="place")
    c = index(found, "unique", "place")
    assert sum(patch.get_height() for patch in ax.patches) == np.isfinite(found.null_statistic[:, c, 0]).sum() == 24
    (line,) = ax.get_lines()
    np.testing.assert_allclose(line.get_xdata(), found.statistic[c, 0])
    assert texts(ax) == ["24 draws", f"recording, $p$ = {found.p_value[c, 0]:.2g}"]
    assert ax.get_title(loc="left") == "neuron 0, unique: place"
    assert plotting.plot_null(found, "2", kind="whole").get_title(loc="left") == "neuron 2, all features"


def test_the_null_says_how_many_draws_were_computed(found):
    draws = found.null_statistic.copy()
    draws[10:] = np.nan
    spared = replace(found, null_statistic=draws, n_draws=np.full_like(found.n_draws, 10))
    assert texts(plotting.plot_null(spared, 0, kind="whole"))[0] == "10 of 24 draws"
    none = replace(found, null_statistic=np.full_like(draws, np.nan))
    assert plotting.plot_null(none, 0, kind="whole").texts[0].get_text() == "no draw was computed"


def test_the_page_of_a_neuron(found, without_null):
    axes = plotting.plot_explained_neuron(found, 1)
    assert axes.shape == (4,)
    n_rows, seen = len(found.contributions), [k for k in range(len(found.model)) if found.members[k].any()]
    for row in range(n_rows):
        np.testing.assert_allclose(axes[0].get_lines()[row].get_xydata(), [[found.contribution[row, 1], row]])
        np.testing.assert_allclose(axes[1].get_lines()[row].get_xdata(), found.by_fold[row, :, 1])
    for row, k in enumerate(seen):
        np.testing.assert_allclose(axes[2].get_lines()[row].get_xdata(), found.strength[k, :, 1])
    labels = [t.get_text() for t in axes[0].get_yticklabels()]
    assert labels[:2] == ["all features", "unique: place"] and len(labels) == n_rows
    assert [t.get_text() for t in axes[2].get_yticklabels()] == [found.model[k] for k in seen]
    assert len(axes[3].texts) == n_rows and axes[3].texts[0].get_text().startswith("$p$ = ")
    axes[0].figure.draw_without_rendering()
    assert plotting.plot_explained_neuron(without_null, 1)[3].texts[0].get_text() == "no null"
    mine = plotting.new_axes((1, 1), (1, 1))
    assert plotting.plot_explained_neuron(found, 0, axes=mine)[0] is mine[0, 0]


def test_a_neuron_that_cannot_be_scored_is_drawn_without_scores(found):
    loss = found.loss.copy()
    loss[..., 2] = np.nan
    nothing = np.full_like(found.statistic[:, 2], np.nan)
    statistic, q = found.statistic.copy(), found.q_value.copy()
    statistic[:, 2] = q[:, 2] = nothing
    silent = replace(found, loss=loss, statistic=statistic, q_value=q, strength=np.where(np.isnan(loss), np.nan, 1e-3))
    assert [len(at) for at in points(plotting.plot_contributions(silent))] == [2, 2, 0]
    assert np.isnan(
        np.ma.filled(plotting.plot_contributions(silent, style="map").images[0].get_array(), np.nan)[:, 2]
    ).all()
    assert len(points(plotting.plot_unique_against_maximal(silent, group="place"))[0]) == 2
    plotting.plot_explained_neuron(silent, 2)[0].figure.draw_without_rendering()
    draws = np.full_like(found.null_statistic, np.nan)
    none = replace(silent, null_statistic=draws)
    assert plotting.plot_null(none, 2, kind="whole").texts[0].get_text() == "cannot be scored"


def test_figures_of_a_saved_explanation_are_the_same(found, tmp_path):
    again = Explanation.load(found.save(tmp_path / "found.npz"))
    for a, b in zip(
        points(plotting.plot_contributions(again)), points(plotting.plot_contributions(found)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda f: plotting.plot_contributions(f.to_frame()), "explanation is a DataFrame"),
        (lambda f: plotting.plot_contributions(f, kind="model"), "kind is 'model'.*'unique', 'maximal', 'added'"),
        (lambda f: plotting.plot_contributions(f, unit="bits"), "unit is 'bits'.*'bits per spike'"),
        (lambda f: plotting.plot_contributions(f, style="bars"), "style is 'bars'.*'points', 'map'"),
        (lambda f: plotting.plot_contributions(f, level=2), "level is 2"),
        (lambda f: plotting.plot_contributions(f, neurons=[]), "neurons is empty"),
        (lambda f: plotting.plot_contributions(f, neurons=[7]), "neuron is 7; there are neurons 0 to 2"),
        (lambda f: plotting.plot_null(f, "x", group="place"), r"neuron is 'x'; it must be one of \['0', '1', '2'\]"),
        (lambda f: plotting.plot_null(f, 0), "group is None.*'place', 'speed'"),
        (lambda f: plotting.plot_null(f, 0, group="theta"), "group is 'theta'.*'place', 'speed'"),
        (lambda f: plotting.plot_unique_against_maximal(f, group="theta"), "group is 'theta'"),
        (lambda f: plotting.plot_explained_neuron(f, 0, axes=plotting.new_axes((1, 1))), "axes has 2 entries"),
    ],
)
def test_figures_raise_errors_that_say_what_does_not_fit(found, draw, words):
    with pytest.raises((TypeError, ValueError), match=words):
        draw(found)


def test_a_null_is_needed_to_draw_one(without_null):
    with pytest.raises(ValueError, match="no null; pass null="):
        plotting.plot_null(without_null, 0, group="place")


def test_unique_against_maximal_needs_both(found):
    only = replace(found, contributions=[c for c in found.contributions if c.kind != "maximal"])
    with pytest.raises(ValueError, match="kind is 'maximal'"):
        plotting.plot_unique_against_maximal(only)
