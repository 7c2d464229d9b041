"""Trials with named dimensions: rows as loops would write them, fits, folds and arrays back."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from glmfit import PopulationGLM, PopulationGLMCV, SoftmaxGLM
from glmfit.design import Convolution, RaisedCosineLog, Trials
from glmfit.inference import Permutation, explain

SIZES = {"trial": 6, "time": 5, "feature": 3, "neuron": 2}
LABELS = {"trial": [3, 1, 4, 5, 9, 2], "feature": ["a", "b", "c"], "neuron": ["u", "v"]}


def array(rng, *dims, labels=True):
    values = rng.poisson(1.0, [SIZES[dim] for dim in dims]) if "neuron" in dims else rng.normal(
        size=[SIZES[dim] for dim in dims]
    )  # fmt: skip
    return xr.DataArray(values, dims=dims, coords={d: LABELS[d] for d in dims if d in LABELS} if labels else None)


@pytest.mark.parametrize("x_dims", [("trial", "time", "feature"), ("feature", "time", "trial"), ("trial", "feature")])
@pytest.mark.parametrize("y_dims", [("trial", "time", "neuron"), ("neuron", "time", "trial"), ("time", "trial")])
def test_rows_are_those_of_loops_over_trials(x_dims, y_dims, rng):
    X = array(rng, *x_dims)
    several = "neuron" in y_dims
    y = array(rng, *y_dims) if several else array(rng, *y_dims, "neuron").isel(neuron=0, drop=True)
    exposure, weight = (
        xr.DataArray(rng.uniform(0.5, 1, 6), dims="trial"),
        xr.DataArray(rng.uniform(size=5), dims="time"),
    )
    offset = array(rng, "neuron", "time") if several else array(rng, "time")
    how = {} if several else {"neuron": None}
    trials = Trials(X, y, exposure=exposure, sample_weight=weight, offset=offset, **how)
    assert len(trials) == 30 and list(trials.given) == ["X", "y", "sample_weight", "offset", "exposure"]
    row = 0
    for k in range(6):
        for b in range(5):
            at = {"trial": k, "time": b}
            x = X.isel({dim: i for dim, i in at.items() if dim in X.dims})
            np.testing.assert_array_equal(trials.X.iloc[row], x)
            np.testing.assert_array_equal(np.asarray(trials.y)[row], y.isel(at))
            assert trials.given["exposure"][row] == exposure[k] and trials.given["sample_weight"][row] == weight[b]
            np.testing.assert_array_equal(trials.given["offset"][row], offset.isel(time=b))
            assert trials.trial[row] == k and trials.starts[k] == row - b
            row += 1
    assert list(trials.X.columns) == ["a", "b", "c"]
    back = trials.unstack(trials.y)
    xr.testing.assert_equal(back.transpose(*y_dims), y.assign_coords(trial=LABELS["trial"]))


def test_a_dataset_has_one_feature_per_variable(rng):
    of_trials, of_bins = rng.normal(size=6), rng.normal(size=5)
    X = xr.Dataset({"contrast": ("trial", of_trials), "phase": ("time", of_bins)})
    trials = Trials(X, array(rng, "trial", "time", "neuron"))
    assert list(trials.X.columns) == ["contrast", "phase"]
    np.testing.assert_array_equal(trials.X["contrast"], np.repeat(of_trials, 5))
    np.testing.assert_array_equal(trials.X["phase"], np.tile(of_bins, 6))


def test_counts_of_whole_trials_and_features_alone(rng):
    X = array(rng, "trial", "feature").rename(trial="presentation")
    y = array(rng, "neuron", "trial", labels=False).rename(trial="presentation", neuron="unit_id")
    trials = Trials(X, y, neuron="unit_id")
    assert repr(trials) == "<Trials: 6 rows (6 presentation), 3 features>"
    np.testing.assert_array_equal(trials.y, y.T)
    assert trials.unstack(np.ones((6, 2))).dims == ("presentation", "unit_id")
    alone = Trials(array(rng, "time", "trial", "feature"))
    assert alone.y is None and list(alone.given) == ["X"] and alone.unstack(np.zeros(30)).dims == ("trial", "time")


def test_a_fit_is_that_of_the_same_rows_and_predictions_have_the_dimensions(rng):
    X = array(rng, "time", "trial", "feature")
    counts = rng.poisson(np.exp(0.3 * X.values.sum(axis=2))[..., None] * [1, 2])
    y = xr.DataArray(counts, dims=("time", "trial", "neuron"), coords={"neuron": ["u", "v"]})
    exposure = xr.DataArray(rng.uniform(0.5, 1, 6), dims="trial")
    trials = Trials(X, y, exposure=exposure)
    model = PopulationGLM("exp", regularizer_strength=0.01).fit(**trials.given)
    order = np.swapaxes(X.values, 0, 1).reshape(30, 3), np.swapaxes(y.values, 0, 1).reshape(30, 2)
    same = PopulationGLM("exp", regularizer_strength=0.01).fit(*order, exposure=np.repeat(exposure.values, 5))
    np.testing.assert_allclose(model.coef_, same.coef_, rtol=1e-12)
    assert model.report_.neuron == ["u", "v"] and list(model.feature_names_in_) == ["a", "b", "c"]
    rate = trials.unstack(model.predict(trials.X))
    assert rate.dims == ("trial", "time", "neuron") and list(rate.neuron.values) == ["u", "v"]
    first = np.exp(X.isel(time=0, trial=2).values @ model.coef_ + model.intercept_)
    np.testing.assert_allclose(rate.sel(trial=4).isel(time=0), first, rtol=1e-12)


def test_trials_of_different_lengths_end_in_nan(rng):
    X, y = array(rng, "trial", "time", "feature"), array(rng, "trial", "time", "neuron").astype(float)
    X[2, 3:], y[2, 3:], y[1, 4:, 0] = np.nan, np.nan, np.nan
    trials = Trials(X, y)
    model = PopulationGLM(regularizer_strength=0.1).fit(**trials.given)
    assert model.report_.n_dropped == 2 and model.report_.n_masked.tolist() == [1, 0]
    assert np.isnan(trials.unstack(model.predict(trials.X)).sel(trial=4)).sum() == 4


def test_folds_are_of_whole_trials(rng):
    trials = Trials(array(rng, "trial", "time", "feature"), array(rng, "trial", "time", "neuron"))
    for seed in None, 0:
        folds = trials.folds(4, seed)
        assert len(folds) == 4
        tested = np.concatenate([test for _, test in folds])
        np.testing.assert_array_equal(np.sort(tested), np.arange(30))
        for train, test in folds:
            assert not set(trials.trial[train]) & set(trials.trial[test]) and len(train) + len(test) == 30
    assert np.array_equal(trials.folds(3)[0][1], np.arange(10))
    assert all(np.array_equal(a, b) for a, b in zip(trials.folds(3, 1)[0], trials.folds(3, 1)[0], strict=True))
    model = PopulationGLMCV(strengths=[1e-2, 1e-1], cv=trials.folds(3)).fit(**trials.given)
    assert model.cv_scores_.shape[1] == 3


def test_history_stays_within_trials_and_nulls_permute_them(rng):
    trials = Trials(array(rng, "trial", "time", "feature"), array(rng, "trial", "time", "neuron"))
    history = Convolution(trials.y, RaisedCosineLog(2, window_s=0.03, bin_s=0.01, name="own"), epochs=trials.starts)
    assert np.isnan(history.to_array()).any(axis=1)[trials.starts].all()
    null = Permutation(within=trials.trial, n=19)
    found = explain(
        PopulationGLM(), trials.X, trials.y, {"a": ["a"], "rest": ["b", "c"]}, cv=trials.folds(3), null=null
    )
    assert np.isfinite(found.p_value).any() and found.n_draws.max() <= 19


def test_probabilities_of_classes_have_their_labels(rng):
    X = array(rng, "trial", "feature")
    y = xr.DataArray(["left", "right", "left", "right", "left", "right"], dims="trial")
    trials = Trials(X, y)
    model = SoftmaxGLM().fit(**trials.given)
    found = trials.unstack(model.predict_proba(trials.X), "choice", model.classes_)
    assert found.dims == ("trial", "choice") and found.choice.values.tolist() == ["left", "right"]


def test_coordinates_that_are_no_labels_of_rows_are_kept_where_they_fit(rng):
    y = array(rng, "trial", "time", "neuron").assign_coords(
        image=("trial", list("abcabc")), area=("neuron", ["V1", "CA1"]), session="m1"
    )
    at_start, unlabelled = array(rng, "trial", "time").isel(time=0), xr.DataArray(rng.normal(size=6), dims="trial")
    onset = unlabelled.assign_coords(time=("trial", np.arange(6.0)))  # a name that the rows give to another dimension
    X = xr.Dataset({"start": at_start, "onset": onset.drop_vars("time")}, coords={"time": np.arange(5) / 10})
    weight = xr.ones_like(y.isel(time=2, neuron=0), dtype=float)
    for features in X, onset.expand_dims(feature=1), at_start.expand_dims("feature"):
        trials = Trials(features, y, sample_weight=weight)
        rate = trials.unstack(np.ones((30, 2)))
        assert rate.image.values.tolist() == list("abcabc") and rate.area.values.tolist() == ["V1", "CA1"]
        assert rate.groupby("image").mean().sizes["image"] == 3 and "session" not in rate.coords
        assert trials.unstack(np.ones(30)).dims == ("trial", "time")
        assert "area" not in trials.unstack(np.ones((30, 2)), "choice", [0, 1]).coords
    levels = y.assign_coords(xr.Coordinates.from_pandas_multiindex(_levels(), "trial"))
    assert Trials(X.drop_vars("trial"), levels).unstack(np.ones(30)).sel(block=1).sizes == {"within": 3, "time": 5}


def _levels():
    return pd.MultiIndex.from_product([[0, 1], [0, 1, 2]], names=["block", "within"])


def test_weights_of_bins_without_data_may_be_nan(rng):
    X, y = array(rng, "trial", "time", "feature"), array(rng, "trial", "time", "neuron").astype(float)
    exposure, weight = (xr.DataArray(rng.uniform(0.5, 1, (6, 5)), dims=("trial", "time")) for _ in range(2))
    X[2, 3:], y[1, 4:], exposure[2, 3:], exposure[1, 4:], weight[2, 3:] = (np.nan,) * 5
    trials = Trials(X, y, exposure=exposure, sample_weight=weight)
    assert (
        np.count_nonzero(trials.given["exposure"] == 0) == 3
        and np.count_nonzero(trials.given["sample_weight"] == 0) == 2
    )
    PopulationGLM(regularizer_strength=0.1).fit(**trials.given)
    exposure[0, 0] = np.nan
    with pytest.raises(ValueError, match="exposure is nan at row 0"):
        PopulationGLM().fit(**Trials(X, y, exposure=exposure).given)


def test_labels_are_compared_as_labels(rng):
    X, y = array(rng, "trial", "time", "feature"), array(rng, "trial", "time", "neuron")
    for labels in (
        [1.0, np.nan, 2.0, 3.0, 4.0, 5.0],
        list("abcdef"),
        np.arange("2020-01-01", "2020-01-07", dtype="datetime64[D]").astype("datetime64[ns]"),
    ):
        same = (a.assign_coords(trial=labels) for a in (X, y))
        assert len(Trials(*same)) == 30
    time = np.arange(5) / 10
    with pytest.raises(ValueError, match=r"along 'time' .first at 1.*join='override'"):
        Trials(X.assign_coords(time=time * (1 + 1e-12)), y.assign_coords(time=time))


def test_mistakes_are_named(rng):
    X, y = array(rng, "trial", "time", "feature"), array(rng, "trial", "time", "neuron")
    exposure, numbers = xr.DataArray(np.ones(6), dims="block"), xr.Dataset({"a": ("trial", np.ones(6))})
    for wrong, message in (
        (
            lambda: Trials(X.values, y),
            r"X is a ndarray of shape \(6, 5, 3\); it must be .* dims=\('trial', 'time', 'fe",
        ),
        (lambda: Trials(pd.DataFrame(np.ones((6, 2))), y), r"X is a DataFrame of shape .* dims=\('trial', 'feature'\)"),
        (lambda: Trials(X, "y"), r"y is a str; it must be an xarray DataArray, .* dims=\('trial', 'time', 'neuron'\)"),
        (lambda: Trials(X, numbers), "y is a Dataset; it must be an xarray DataArray"),
        (lambda: Trials(X.rename(feature="f"), y), r"none of features: name it \(feature=...\), or .* X.expand_dims"),
        (lambda: Trials(X, y.isel(time=0, drop=True)), "X has the dimension 'time', but the rows have 'trial'. Select"),
        (lambda: Trials(X.expand_dims(neuron=2), y), "Features are shared by all neurons"),
        (
            lambda: Trials(X, y.rename(time="feature")),
            "y has the dimension 'feature'.*That is the dimension of the features",
        ),
        (
            lambda: Trials(X, y, exposure=exposure),
            "exposure has the dimension 'block', but the rows have 'trial', 'time'",
        ),
        (
            lambda: Trials(X, y.assign_coords(trial=range(6))),
            "different labels along 'trial' .first at 0: 0 and 3.. Align",
        ),
        (lambda: Trials(X, y[:4]), "X has 6 entries along 'trial', but y has 4"),
        (lambda: Trials(X, y, trial="block"), "trial is 'block'; the dimensions of the rows are 'trial', 'time'"),
        (lambda: Trials(X, y.rename(neuron="unit_id")), "none named 'neuron': pass the name"),
        (lambda: Trials(*(a.rename(trial="presentation") for a in (X, y))), "'presentation', 'time'. is 'trial'; pass"),
        (lambda: Trials(X, y.isel(trial=0, time=0)), "y has no dimension of trials, only 'neuron'"),
        (lambda: Trials(numbers[[]], y), "X is a Dataset without variables"),
        (lambda: Trials(numbers.assign(b=("trial", list("abcdef"))), y), r"not numbers: 'b' \(<U1\). Encode"),
        (lambda: Trials(numbers.rename(trial="feature"), y), "X is a Dataset with a dimension 'feature'; name"),
        (lambda: Trials(X[:0], y[:0]), "there is no row: 0 trial x 5 time"),
        (lambda: Trials(X, y).folds(7), "at most 6, the number of trials"),
        (lambda: Trials(X, y).unstack(np.ones(6)), r"values has shape \(6,\); it needs \(30,\)"),
        (lambda: Trials(X, y).unstack(np.ones((30, 2)), "c", [1]), "labels has 1 entries; values has 2 columns"),
        (lambda: Trials(X, y).unstack(np.ones(30), labels=[1]), "labels has 1 entries; values has 0 columns"),
        (lambda: Trials(X, y).unstack(np.ones((30, 2)), "time"), "columns is 'time', a dimension of the rows"),
        (lambda: PopulationGLM().fit(X, y), r"Trials\(X, y\) lays trials out as rows"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            wrong()
