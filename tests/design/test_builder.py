"""Designs of batches: bins, covariates and histories match slow references; errors name files that cannot be read."""

import datetime
import json
import pickle
import zipfile

import numpy as np
import pynapple as nap
import pytest

from glmfit.batch import Session, build, load_session
from glmfit.design.bins import count, intersect, lag, make_bins, resample
from tests.oracles import design as oracle

EPOCHS = [
    [[0.0, 10.0]],
    [[0.3, 1.0], [1.0, 2.05], [3.0, 3.07], [4.0, 7.0]],
    [[4397.0317, 4399.4556]],
]


def design_of(**given):
    """A checked design with its defaults."""
    return {"bin_s": 0.1, "partial_bins": "drop", "target": "counts", "epochs": None, "covariates": [], **given}


# -- bins


@pytest.mark.thorough(cases=16)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("bin_s", [0.1, 0.02, 1 / 30])
@pytest.mark.parametrize("epochs", EPOCHS)
def test_counts_equal_the_oracle_with_spikes_on_edges(epochs, bin_s, keep, rng):
    low, high = epochs[0][0], epochs[-1][1]
    edges = np.round([s + k * bin_s for s, e in epochs for k in range(round((e - s) / bin_s) + 1)], 9)
    trains = [np.sort(rng.uniform(low - 1, high + 1, 200)), np.unique(edges), np.array([e for _, e in epochs])]
    trains = [np.round(train, 9) for train in trains]
    bins = make_bins(np.array(epochs), bin_s, keep)
    np.testing.assert_array_equal(count(bins, trains), oracle.counts(trains, epochs, bin_s, keep))
    assert bins.epoch.tolist() == [row[3] for row in oracle.bins(epochs, bin_s, keep)]
    if keep:
        np.testing.assert_allclose(bins.share, oracle.exposure(epochs, bin_s), rtol=1e-6)


def test_ten_seconds_have_a_hundred_bins_of_a_tenth():
    for start in (0.0, 0.1, 0.7, 4397.0317, 1.7e9 + 0.3):
        bins = make_bins(np.array([[start, start + 10.0]]), 0.1, True)
        assert len(bins.starts) == 100 and bins.n_partial == 0 and (bins.share == 1).all()


def test_partial_bins_are_dropped_or_have_exposure():
    epochs = np.array([[0, 1.05], [2, 2.02], [3, 4.0]])
    dropped, kept = make_bins(epochs, 0.1, False), make_bins(epochs, 0.1, True)
    assert len(dropped.starts) == 20 and len(kept.starts) == 22
    assert dropped.n_partial == kept.n_partial == 2
    assert dropped.partial_s == pytest.approx(0.07)
    np.testing.assert_allclose(kept.share[[10, 11]], [0.5, 0.2])


def test_pynapple_counts_the_same_in_whole_bins(rng):
    times = np.sort(np.round(rng.uniform(0, 10, 300), 9))
    epochs = nap.IntervalSet([0.5, 4], [3.5, 9])
    ours = count(make_bins(np.column_stack([epochs.start, epochs.end]), 0.1, False), [times])[:, 0]
    theirs = nap.Ts(times).count(0.1, ep=epochs)
    np.testing.assert_array_equal(ours, theirs.values)


def test_lags_stay_within_epochs():
    bins = make_bins(np.array([[0, 0.5], [0.5, 1.2]]), 0.1, False)
    values = np.arange(12.0)
    for by in (-8, -2, 0, 3):
        np.testing.assert_array_equal(lag(bins, values[:, None], by)[:, 0], oracle.lagged(values, bins.epoch, by))


def test_intersection_holds_the_common_intervals():
    a, b = np.array([[0, 2], [3, 6.0]]), np.array([[1, 4], [5, 9.0]])
    assert intersect([a, b]).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert intersect([a, np.array([[2, 3.0]])]).shape == (0, 2)


# -- signals in bins


def signal_of(times, values, support=None):
    """A checked signal."""
    given = (times, values) if support is None else nap.Tsd(t=times, d=values, time_support=support)
    return Session(signals={"s": given}).signals["s"]


def test_means_of_bins_ignore_missing_samples(rng):
    times, values = np.sort(rng.uniform(0, 3, 100)), rng.normal(size=100)
    values[rng.random(100) < 0.3] = np.nan
    bins = make_bins(np.array([[0.2, 1.2], [2.0, 2.8]]), 0.05, False)
    found = resample(bins, signal_of(times, values), "mean", None)[:, 0]
    expected = [oracle.mean_in(np.round(times, 9), values, *edge) for edge in zip(bins.starts, bins.stops)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.isnan(found).any()


def test_linear_and_nearest_at_the_centre_of_bins():
    signal = signal_of([0.0, 1.0, 3.0], [0.0, 10.0, 30.0])
    bins = make_bins(np.array([[0.0, 3.5]]), 0.5, False)
    np.testing.assert_allclose(resample(bins, signal, "linear", None)[:, 0], [2.5, 7.5, 12.5, 17.5, 22.5, 27.5, np.nan])
    np.testing.assert_allclose(resample(bins, signal, "linear", 1.5)[:, 0], [2.5, 7.5, *[np.nan] * 5])
    np.testing.assert_array_equal(resample(bins, signal, "nearest", None)[:6, 0], [0, 10, 10, 10, 30, 30])
    np.testing.assert_array_equal(resample(bins, signal, "nearest", 1.0)[:, 0], [0, 10, 10, *[np.nan] * 2, 30, np.nan])


def test_sample_at_the_centre_of_a_bin_is_taken_unchanged():
    signal = signal_of([0.25, 0.75, 1.25], [1.0, np.nan, 3.0])
    bins = make_bins(np.array([[0.0, 1.5]]), 0.5, False)
    np.testing.assert_array_equal(resample(bins, signal, "linear", None)[:, 0], [1, np.nan, 3])


def test_interpolation_does_not_cross_the_border_of_a_support():
    signal = signal_of([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 20.0, 30.0], nap.IntervalSet([0, 2], [1, 3]))
    bins = make_bins(np.array([[0.0, 3.0]]), 0.5, False)
    found = resample(bins, signal, "linear", None)[:, 0]
    np.testing.assert_allclose(found, [0.25, 0.75, np.nan, np.nan, 22.5, 27.5])
    assert np.isnan(resample(bins, signal, "nearest", None)[2:4]).all()


# -- whole designs


@pytest.fixture
def session(rng):
    """Twenty seconds of two signals and three units, with two epochs."""
    t = np.arange(0, 20, 0.02)
    return Session(
        spikes={name: np.sort(rng.uniform(0, 20, n)) for name, n in (("a", 90), ("b", 40), ("7", 25))},
        signals={
            "speed": (t, rng.normal(size=len(t))),
            "place": (t, rng.uniform(0, 10, (len(t), 2)), ("x", "y")),
            "state": (t, np.floor(t / 5)),
        },
        epochs={"run": np.array([[1.0, 6.0], [8.0, 15.03]])},
    )


@pytest.mark.thorough
def test_a_whole_design_equals_the_oracle(session):
    bin_s, epochs = 0.1, [[1.0, 6.0], [8.0, 15.03]]
    log = {"kind": "raised_cosine_log", "n": 3, "window_s": 0.5}
    design = design_of(
        epochs="run",
        covariates=[
            {"signal": "speed"},
            {"signal": "speed", "name": "shifted", "lags": [-2, 1]},
            {"signal": "speed", "name": "past", "basis": log},
            {"signal": "place", "columns": ["y"], "basis": {"kind": "bspline", "n": 5, "order": 4, "range": [0, 10]}},
        ],
        history={"of": "all", "basis": {**log, "n": 2}},
    )
    built = build(session, design, "PopulationGLM", np.float64)
    rows = oracle.bins(epochs, bin_s, False)
    epoch = [row[3] for row in rows]
    edges = [(row[0] / 1e9, row[1] / 1e9) for row in rows]
    signals = session.signals
    speed = np.array([oracle.mean_in(signals["speed"].times, signals["speed"].values[:, 0], *e) for e in edges])
    y = np.array([oracle.mean_in(signals["place"].times, signals["place"].values[:, 1], *e) for e in edges])
    counts = oracle.counts(list(session.spikes.values()), epochs, bin_s, False)
    knots = [0.0] * 3 + [0.0, 0.5, 1.0] + [1.0] * 3
    columns = [speed[:, None]]
    columns += [oracle.lagged(speed, epoch, by)[:, None] for by in (-2, 1)]
    columns += [oracle.convolved(speed, oracle.raised_cosines_log(3, 5), epoch)]
    columns += [np.array([[oracle.cox_de_boor(v / 10, knots, 3, i) for i in range(5)] for v in y])]
    columns += [oracle.convolved(counts[:, n], oracle.raised_cosines_log(2, 5), epoch) for n in range(3)]
    np.testing.assert_array_equal(built.y, counts)
    expected = np.concatenate(columns, axis=1)
    expected[np.isnan(expected).any(axis=1)] = np.nan
    found = built.X.copy()
    found[np.isnan(found).any(axis=1)] = np.nan
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert built.feature_names[:4] == ["speed", "shifted_lag-2", "shifted_lag1", "past_0"]
    assert built.feature_names[-2:] == ["history_7_0", "history_7_1"]
    assert built.target_names == ["a", "b", "7"]
    # Five bins at the start of each epoch lack a complete past, and two at its end lack a future.
    assert built.notes["rows_left_out"] == np.isnan(expected[:, 0]).sum() == 2 * (5 + 2)
    assert built.notes["partial_bins"] == {"handled": "drop", "number": 1, "seconds": pytest.approx(0.03)}
    assert built.notes["bins"] == len(rows) == 120
    assert built.notes["seconds"] == pytest.approx(12.0)
    assert built.exposure is None and built.own is None


def test_a_column_named_as_its_covariate_is_named_once(session):
    basis = {"kind": "bspline", "n": 4, "order": 2, "range": [0, 10]}
    y = {"signal": "place", "name": "y", "columns": ["y"]}
    built = build(session, design_of(epochs="run", covariates=[y]), "PopulationGLM")
    assert built.feature_names == ["y"]
    built = build(session, design_of(epochs="run", covariates=[{**y, "basis": basis}]), "PopulationGAM")
    assert built.feature_names == ["y_0", "y_1", "y_2", "y_3"] and list(built.smooth_terms) == ["y"]


def test_exposure_of_the_last_bin(session):
    design = design_of(epochs="run", partial_bins="exposure", covariates=[{"signal": "speed"}])
    built = build(session, design, "PopulationGLM")
    np.testing.assert_allclose(built.exposure, oracle.exposure([[1.0, 6.0], [8.0, 15.03]], 0.1), rtol=1e-6)
    assert built.X.dtype == np.float32 and len(built.exposure) == len(built.X) == 121


def test_own_history_is_kept_separate(session):
    basis = {"kind": "raised_cosine_linear", "n": 2, "window_s": 0.4}
    every = build(session, design_of(history={"of": "all", "basis": basis}), "PopulationGLM")
    own = build(session, design_of(history={"of": "own", "basis": basis}), "PopulationGLM")
    assert own.X.shape == (len(own.y), 0) and own.feature_names == []
    np.testing.assert_array_equal(np.concatenate(own.own, axis=1), every.X)
    assert own.notes["own_names"] == ["history_0", "history_1"]
    assert own.notes["rows_left_out"] == every.notes["rows_left_out"] == 4


def test_own_history_can_be_combined_with_covariates(session):
    history = {"of": "own", "basis": {"kind": "raised_cosine_log", "n": 2, "window_s": 0.4}}
    built = build(session, design_of(covariates=[{"signal": "speed"}], history=history), "PopulationGLM")
    assert built.X.shape[1] == 1 and [part.shape[1] for part in built.own] == [2, 2, 2]


def test_notes_hold_mean_and_deviation_of_standardized_covariates(session):
    design = design_of(covariates=[{"signal": "place", "standardize": True}, {"signal": "speed", "lags": [5]}])
    built = build(session, design, "PopulationGLM", np.float64)
    plain = build(
        session,
        design_of(covariates=[{"signal": "place"}, {"signal": "speed", "lags": [5]}]),
        "PopulationGLM",
        np.float64,
    )
    complete = ~np.isnan(built.X).any(axis=1)
    np.testing.assert_allclose(built.X[complete, :2].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(built.X[complete, :2].std(axis=0), 1)
    for column, name in enumerate(("place_x", "place_y")):
        mean, deviation = built.notes["standardized"][name]
        np.testing.assert_allclose(built.X[:, column] * deviation + mean, plain.X[:, column])


def test_labels_and_counts_as_features(session):
    built = build(session, design_of(target="state", covariates=[{"signal": "counts", "lags": [0, 1]}]), "SoftmaxGLM")
    assert built.y.dtype == np.int64 and set(built.y) == {0, 1, 2, 3}
    assert built.feature_names == ["counts_a_lag0", "counts_a_lag1", "counts_b_lag0", "counts_b_lag1", *(
        f"counts_7_lag{by}" for by in (0, 1)
    )]  # fmt: skip
    assert built.target_names is None


@pytest.mark.parametrize(
    ("change", "origin"),
    [
        ({}, "the time supports of speed"),
        ({"epochs": "run"}, 'the interval set "run"'),
        ({"epochs": [[0, 5]]}, "the design"),
        ({"covariates": [], "history": {"of": "all", "basis": {"kind": "raised_cosine_log", "n": 2, "window_s": 0.4}}},
         "the time support of the spikes"),
    ],
)  # fmt: skip
def test_notes_state_the_origin_of_the_epochs(session, change, origin):
    design = design_of(**{"covariates": [{"signal": "speed"}], **change})
    assert build(session, design, "PopulationGLM").notes["epochs"]["from"] == origin


def test_units_are_chosen_by_name_number_and_rate(session):
    covariates = [{"signal": "speed"}]
    assert build(session, design_of(units=["7", "a"], covariates=covariates), "PopulationGLM").target_names == [
        "a",
        "7",
    ]
    built = build(session, design_of(min_rate_hz=1.5, covariates=covariates), "PopulationGLM")
    assert built.target_names == ["a", "b"] and set(built.notes["units_left_out"]) == {"7"}
    few = Session(spikes=session.spikes, min_spikes=30)
    assert few.few_spikes == {"7": 25} and list(few.spikes) == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": "rum"}, 'no epochs "rum"; did you mean "run"'),
        ({"covariates": [{"signal": "sped"}]}, 'no signal "sped"; did you mean "speed"'),
        ({"covariates": [{"signal": "place", "columns": ["z"]}]}, 'no column "z"'),
        ({"covariates": [{"signal": "place", "columns": [2]}]}, "2 columns, 0 to 1"),
        ({"units": ["c"]}, "units that the session does not have: c"),
        ({"min_rate_hz": 1e3}, "no unit is left"),
        ({"epochs": [[0, 0.05]]}, "no epoch is as long as a bin of 0.1 s"),
        ({"epochs": [[100, 110]]}, r"none of 155 spikes is in a bin: .* bins from 100 to 110 s\. Are"),
        ({"epochs": [[100, 110]], "target": "state"}, "none of 100 bins has all features. Missing: speed in 100"),
        ({"epochs": [[0, 1.0]], "covariates": [{"signal": "speed", "basis": {
            "kind": "raised_cosine_log", "n": 2, "window_s": 5.0}}]}, 'covariate "speed": no row of the signal'),
        ({"covariates": [{"signal": "speed", "basis": {"kind": "bspline", "n": 5, "range": [600, 700]}}]},
         r'covariate "speed": none of its values, .* to .*, is in the range \[600, 700\] of its basis'),
        ({"target": "speed"}, "not whole numbers"),
        ({"target": "place"}, "has 2 columns; labels need one"),
    ],
)  # fmt: skip
def test_designs_that_do_not_fit_a_session_are_refused(session, change, message):
    with pytest.raises(ValueError, match=message):
        build(session, design_of(**{"covariates": [{"signal": "speed"}], **change}), "PopulationGLM")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bin": 0.1}, 'design: bin is not known here; did you mean "bin_s"?'),
        ({"bin_s": None}, "design: bin_s is missing; it must be a number of seconds of at least 1e-06."),
        ({"units": "a"}, 'design: units is "a"; it must be a list of names of units.'),
        ({"covariates": []}, "design: there are neither covariates nor a history; a design needs features."),
        (
            {"covariates": [{"signal": "speed"}, {"signal": "place", "basis": {"kind": "bspline", "n": 5}}]},
            "design: covariates 2, basis: range is missing; it must be two numbers.",
        ),
    ],
)
def test_designs_with_invalid_keys_or_values_are_refused(session, change, message):
    with pytest.raises(ValueError, match="design: ") as found:
        build(session, {**design_of(covariates=[{"signal": "speed"}]), **change})
    assert type(found.value) is ValueError and message in str(found.value).split("\n")


def test_design_that_is_not_a_dict_is_refused(session):
    with pytest.raises(TypeError, match="design is a list; it must be a dict"):
        build(session, [{"signal": "speed"}])


def test_tuples_and_numpy_values_work_like_lists_and_numbers(session):
    basis = {"kind": "bspline", "n": 5, "range": [-3, 3]}
    covariates = [{"signal": "speed", "basis": basis}, {"signal": "place", "lags": [0, 1]}]
    plain = build(session, {"bin_s": 0.1, "epochs": [[0, 5], [6, 9]], "covariates": covariates, "units": ["a"]})
    basis = {"kind": "bspline", "n": np.int64(5), "range": (-3, np.float32(3))}
    covariates = ({"signal": "speed", "basis": basis}, {"signal": "place", "lags": np.arange(2)})
    epochs = np.array([(0, 5), (6, 9)])
    given = {"bin_s": np.float64(0.1), "epochs": epochs, "covariates": covariates, "units": np.array(["a"])}
    built = build(session, given)
    assert np.array_equal(built.X, plain.X, equal_nan=True) and built.notes == plain.notes
    assert np.array_equal(built.y, plain.y)
    assert given["epochs"] is epochs and given["covariates"] is covariates


# -- sessions


def test_sessions_of_pynapple_objects(rng):
    group = nap.TsGroup({3: nap.Ts([0.1, 0.9]), 8: nap.Ts([0.4, 0.6])}, time_support=nap.IntervalSet(0, 2))
    frame = nap.TsdFrame(t=np.arange(5.0), d=rng.normal(size=(5, 2)), columns=["u", "v"])
    session = Session(group, {"f": frame}, {"run": nap.IntervalSet([0, 3], [1, 4])})
    assert {name: t.tolist() for name, t in session.spikes.items()} == {"3": [0.1, 0.9], "8": [0.4, 0.6]}
    assert session.support.tolist() == [[0, 2]] and session.signals["f"].columns == ("u", "v")
    assert session.epochs["run"].tolist() == [[0, 1], [3, 4]]
    assert "2 units: f, run" in repr(session)


MATRICES = {"X": np.ones((4, 2)), "y": np.ones((4, 3))}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing is given"),
        ({"spikes": {"a": [1.0]}, "X": np.ones((2, 1))}, "a recording .* or matrices"),
        ({"X": np.ones((4, 2))}, "y is missing"),
        ({**MATRICES, "y": np.ones(3)}, "X has 4 rows"),
        ({**MATRICES, "X": np.ones(4)}, r"needs \(time, feature\)"),
        ({**MATRICES, "X": np.full((4, 2), None)}, "holds objects"),
        ({**MATRICES, "neuron_names": ["a"]}, "1 names, y has 3 columns"),
        ({**MATRICES, "exposure": np.ones(5)}, "exposure has shape"),
        ({"spikes": [1.0]}, "must be a TsGroup, a dict or a pair"),
        ({"spikes": {"a": [np.nan]}}, "not finite"),
        ({"spikes": (np.ones(3), np.ones(2))}, "one per spike"),
        ({"spikes": {"a": ["x"]}}, "unit .a. has entries that are not numbers"),
        ({"signals": {"s": [1.0]}}, "must be a Tsd, a TsdFrame or a pair"),
        ({"signals": {"s": ([0.0, 1.0], [1.0])}}, r"times \(2,\) and values \(1,\)"),
        ({"signals": {"s": ([0.0, 1.0], [1.0, np.inf])}}, "infinite at 1 s"),
        ({"signals": {"s": ([0.0], [[1.0, 2.0]], ["x"])}}, "2 columns, but 1 name of columns"),
        ({"signals": [1.0]}, "must be a dict with names as keys"),
        ({"epochs": {"e": [[1.0, 0.0]]}}, "interval 1 starts at 1 s and stops at 0 s"),
        ({"epochs": {"e": [[0.0, 2.0], [1.0, 3.0]]}}, "interval 2 starts at 1 s, before"),
        ({"epochs": {"e": [1.0, 2.0]}}, r"\(interval, 2\)"),
    ],
)
def test_sessions_refuse_invalid_content(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Session(**given)


def test_matrices_pass_through(rng):
    X, y = rng.normal(size=(6, 2)), rng.poisson(1.0, (6, 3))
    built = build(
        Session(X=X, y=y, exposure=np.ones(6), neuron_names=["a", "b", 3.0]), None, "PopulationGLM", np.float64
    )
    assert built.X is X or np.shares_memory(built.X, X)
    assert built.feature_names == ["x0", "x1"] and built.target_names == ["a", "b", "3"]
    with pytest.raises(ValueError, match="exposure, which SoftmaxGLM does not support"):
        build(Session(X=X, y=y[:, 0], exposure=np.ones(6)), None, "SoftmaxGLM")
    with pytest.raises(ValueError, match="omit the design"):
        build(Session(X=X, y=y), design_of(), "PopulationGLM")
    with pytest.raises(ValueError, match="has no design"):
        build(Session(spikes={"a": [0.0]}), None, "PopulationGLM")


# -- files


RECORDING = {
    "kind": "recording",
    "min_spikes": 0,
    "spikes": {"times": "st", "unit": "su"},
    "signals": {"speed": {"values": "v", "times": "t"}},
    "epochs": {"run": {"start": "a", "stop": "b"}},
}
ARRAYS = {
    "st": np.array([0.1, 0.5, 0.3]),
    "su": np.array([2, 1, 2], np.int16),
    "t": np.arange(10) / 10,
    "v": np.arange(10.0),
    "a": np.array([0.0]),
    "b": np.array([0.8]),
}


def npz_source(path, **change):
    return {**RECORDING, "path": str(path), "format": "npz", **change}


def test_npz_and_zarr_give_the_same_session(tmp_path):
    zarr = pytest.importorskip("zarr")
    np.savez(tmp_path / "s.npz", **ARRAYS)
    group = zarr.create_group(tmp_path / "s.zarr")
    for name, array in ARRAYS.items():
        group[name] = array
    for source in (npz_source(tmp_path / "s.npz"), npz_source(tmp_path / "s.zarr", format="zarr")):
        session = load_session(source)
        assert {name: t.tolist() for name, t in session.spikes.items()} == {"1": [0.5], "2": [0.1, 0.3]}
        assert session.epochs["run"].tolist() == [[0, 0.8]]
        np.testing.assert_array_equal(session.signals["speed"].values[:, 0], ARRAYS["v"])
    with pytest.raises(ValueError, match=r's.zarr has no array "w"'):
        load_session(npz_source(tmp_path / "s.zarr", format="zarr", spikes={"times": "w", "unit": "su"}))
    (tmp_path / "empty.zarr").mkdir()
    with pytest.raises(ValueError, match=r"empty.zarr is not a zarr group"):
        load_session(npz_source(tmp_path / "empty.zarr", format="zarr"))


class Trap:
    """Object that fails the test when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was read",)


def test_pickles_in_zarr_are_not_read(tmp_path, monkeypatch):
    pytest.importorskip("zarr")
    pickles = pytest.importorskip("numcodecs.pickles")
    monkeypatch.setattr(pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    (tmp_path / "s.zarr" / "X").mkdir(parents=True)
    (tmp_path / "s.zarr" / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "s.zarr" / "X" / "0").write_bytes(pickle.dumps(Trap()))
    source = {"kind": "matrices", "format": "zarr", "path": str(tmp_path / "s.zarr"), "X": "X", "y": "X"}
    form = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|O", "fill_value": None, "order": "C"}
    for filters in (["pickle"], ["vlen-utf8", "pickle"]):
        chain = [{"id": name} for name in filters]
        (tmp_path / "s.zarr" / "X" / ".zarray").write_text(json.dumps({**form, "filters": chain, "compressor": None}))
        with pytest.raises(ValueError, match=r's.zarr: the array "X" is'):
            load_session(source)


def test_units_of_text_and_matrices_with_names(tmp_path):
    np.savez(tmp_path / "s.npz", **{**ARRAYS, "su": np.array(["u1", "u2", "u1"])})
    assert list(load_session(npz_source(tmp_path / "s.npz")).spikes) == ["u1", "u2"]
    np.savez(tmp_path / "m.npz", X=np.ones((3, 2)), n=np.ones(3), names=np.array(["p", "q"]))
    source = {"kind": "matrices", "format": "npz", "path": str(tmp_path / "m.npz")}
    session = load_session({**source, "X": "X", "y": "n", "feature_names": "names"})
    assert session.matrices["feature_names"] == ["p", "q"]


def broken(tmp_path, how):
    """Make a file of the session that is broken in one way."""
    path = tmp_path / "bad.npz"
    np.savez_compressed(path, **ARRAYS)
    raw = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "not a zip":
        path.write_text("these are no arrays")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        path.write_bytes(raw[: len(raw) // 2])
    elif how == "corrupt":
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo("v.npy")
        at = info.header_offset + 30 + len("v.npy") + 40
        path.write_bytes(raw[:at] + bytes(b ^ 255 for b in raw[at : at + 20]) + raw[at + 20 :])
    elif how == "one array":
        with open(path, "wb") as file:
            np.save(file, np.ones(3))
    elif how == "no key":
        np.savez(path, **{("vv" if name == "v" else name): array for name, array in ARRAYS.items()})
    elif how == "objects":
        np.savez(path, **{**ARRAYS, "v": np.array([{"a": 1}] * 10)})
    elif how == "wrong shape":
        np.savez(path, **{**ARRAYS, "v": np.ones(3)})
    elif how == "epochs":
        np.savez(path, **{**ARRAYS, "b": np.array([-1.0])})
    return path


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "does not exist"),
        ("not a zip", "is not an npz file; save it with numpy.savez"),
        ("empty", "is not an npz file; save it with numpy.savez"),
        ("truncated", "is not an npz file, or is damaged"),
        ("corrupt", 'the array "v" is damaged'),
        ("one array", "not an npz file but a single array"),
        ("no key", 'has no array "v"; did you mean "vv"|has no array "v"; allowed are'),
        ("objects", "Python objects, which need a pickle"),
        ("wrong shape", "the signal 'speed' has times"),
        ("epochs", "interval 1 starts at 0 s and stops at -1 s"),
    ],
)
def test_unreadable_files_are_named(tmp_path, how, message):
    path = broken(tmp_path, how)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load_session(npz_source(path))
    assert str(path) in str(caught.value)


@pytest.fixture
def nwb(tmp_path):
    """A small NWB file: two units, a speed, a position and an interval set."""
    pynwb = pytest.importorskip("pynwb")
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    file = pynwb.NWBFile(session_description="s", identifier="i", session_start_time=start)
    file.add_unit(spike_times=[0.1, 0.3, 1.2, 2.0])
    file.add_unit(spike_times=[0.2, 1.9])
    file.add_acquisition(pynwb.TimeSeries(name="speed", data=np.arange(30.0), unit="m/s", rate=10.0, starting_time=0.0))
    place = pynwb.behavior.SpatialSeries(
        name="position", data=np.arange(60.0).reshape(30, 2), reference_frame="room", timestamps=np.arange(30) / 10
    )
    file.create_processing_module("behavior", "b").add(pynwb.behavior.Position(spatial_series=place))
    run = pynwb.epoch.TimeIntervals(name="run", description="r")
    for interval in ((0.0, 1.0), (1.0, 2.5)):
        run.add_interval(start_time=interval[0], stop_time=interval[1])
    file.add_time_intervals(run)
    path = tmp_path / "s.nwb"
    with pynwb.NWBHDF5IO(path, "w") as io:
        io.write(file)
    return path


def nwb_source(path, **change):
    source = {"kind": "recording", "format": "nwb", "path": str(path), "min_spikes": 0, "spikes": "units"}
    return {**source, "signals": {"v": "speed", "place": "position"}, "epochs": {"run": "run"}, **change}


@pytest.mark.thorough
def test_nwb_round_trip_respects_intervals(nwb):
    session = load_session(nwb_source(nwb))
    assert {name: t.tolist() for name, t in session.spikes.items()} == {"0": [0.1, 0.3, 1.2, 2.0], "1": [0.2, 1.9]}
    assert session.signals["place"].columns == ("x", "y")
    # Touching intervals stay separate, as in the file.
    assert session.epochs["run"].tolist() == [[0, 1], [1, 2.5]]
    built = build(session, design_of(epochs="run", bin_s=0.2, covariates=[{"signal": "v"}]), "PopulationGLM")
    epochs, trains = [[0.0, 1.0], [1.0, 2.5]], list(session.spikes.values())
    np.testing.assert_array_equal(built.y, oracle.counts(trains, epochs, 0.2, False))
    assert built.notes["partial_bins"]["number"] == 1
    np.testing.assert_allclose(built.X[:3, 0], [0.5, 2.5, 4.5])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spikes": "unit"}, 'has no "unit"; did you mean "units"'),
        ({"spikes": "speed"}, '"speed" is a Tsd, which holds no units'),
        ({"signals": {"v": "units"}}, "which holds no signal"),
        ({"epochs": {"run": "speed"}}, "which holds no intervals"),
        ({"epochs": {"run": "rum"}}, 'has no "rum"'),
    ],
)
def test_incomplete_nwb_files_are_named(nwb, change, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_session(nwb_source(nwb, **change))
    assert str(nwb) in str(caught.value)


def test_truncated_nwb_files_are_named(nwb):
    nwb.write_bytes(nwb.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"s.nwb is not an NWB file, or is damaged"):
        load_session(nwb_source(nwb))


@pytest.mark.parametrize("bin_s", [0.02, 0.05, 0.1, 0.001])
@pytest.mark.parametrize("at_s", [0.0, 1e6])
def test_rounding_of_times_does_not_change_the_result(bin_s, at_s):
    n = 200
    edges = at_s + np.arange(n + 1) * bin_s
    signal = Session({"a": [at_s]}, {"s": (edges, np.arange(n + 1.0))}).signals["s"]
    bins = make_bins(np.array([[at_s, at_s + n * bin_s]]), bin_s, False)
    # Samples on the edges: of two equally near, the earlier one; no gap exceeds the sampling interval.
    np.testing.assert_array_equal(resample(bins, signal, "nearest", None)[:, 0], np.arange(n))
    np.testing.assert_allclose(resample(bins, signal, "linear", bin_s)[:, 0], np.arange(n) + 0.5)
    # Samples at the centres, every second one missing: the others keep their values and need no neighbour.
    values = np.where(np.arange(n) % 2, np.nan, np.arange(n))
    signal = Session({"a": [at_s]}, {"s": (at_s + (np.arange(n) + 0.5) * bin_s, values)}).signals["s"]
    for how in ("nearest", "linear"):
        np.testing.assert_array_equal(resample(bins, signal, how, bin_s)[:, 0], values)


@pytest.mark.parametrize("offset, scale", [(1e7, 1.0), (0.0, 5e-13), (1e5, 1e-3)])
def test_standardizing_does_not_depend_on_units(offset, scale):
    t = np.arange(0, 10, 0.01)
    session = Session({"a": [1.0]}, {"s": (t, offset + scale * np.sin(t))})
    covariate = {"signal": "s", "standardize": True}
    design = {
        "bin_s": 0.01,
        "partial_bins": "drop",
        "target": "counts",
        "epochs": [[0, 9.9]],
        "covariates": [covariate],
    }
    X = build(session, design, "PopulationGLM").X[:, 0]
    expected = offset + scale * (np.sin(t[:990]) + np.sin(t[1:991])) / 2
    expected = (expected - expected.mean()) / expected.std()
    assert X.std() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(X, expected, atol=2e-2)


def test_sessions_lose_nothing_silently():
    masked = np.ma.array([1.0, 2, 3], mask=[0, 1, 0])
    assert np.isnan(Session({"a": [1.0]}, {"s": (np.arange(3.0), masked)}).signals["s"].values[1, 0])
    with pytest.raises(ValueError, match="two entries called 1"):
        Session({1: [0.1, 0.2], "1": [0.3]})
    with pytest.raises(ValueError, match="1 spikes is NaN"):
        Session((np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.5, np.nan])))
    with pytest.raises(ValueError, match="feature_names has two entries called a"):
        Session(X=np.ones((3, 2)), y=np.ones(3), feature_names=["a", "a"])


def test_a_clock_that_restarts_is_refused_and_single_repeats_keep_the_first(rng):
    t, x = np.arange(1500.0), rng.normal(size=3000)
    with pytest.raises(ValueError, match="1500 of 3000 samples at the time of another, with other values"):
        Session(signals={"x": (np.tile(t, 2), x)})
    np.testing.assert_array_equal(Session(signals={"x": (np.tile(t, 2), np.tile(x[:1500], 2))}).signals["x"].times, t)
    times = np.insert(t, 7, t[7])  # one frame twice
    np.testing.assert_array_equal(Session(signals={"x": (times, x[:1501])}).signals["x"].values[7:9, 0], x[[7, 9]])
