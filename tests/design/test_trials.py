"""Trials with named dimensions: rows as loops would write them, fits, folds and arrays back."""

import numpy as np
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
    y = array(rng, *y_dims) if "neuron" in y_dims else array(rng, *y_dims, "neuron").isel(neuron=0, drop=True)
    exposure, weight = (
        xr.DataArray(rng.uniform(0.5, 1, 6), dims="trial"),
        xr.DataArray(rng.uniform(size=5), dims="time"),
    )
    offset = array(rng, "neuron", "time") if "neuron" in y_dims else array(rng, "time")
    trials = Trials(X, y, exposure=exposure, sample_weight=weight, offset=offset)
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


def test_mistakes_are_named(rng):
    X, y = array(rng, "trial", "time", "feature"), array(rng, "trial", "time", "neuron")
    exposure = xr.DataArray(np.ones(6), dims="block")
    for wrong, message in (
        (lambda: Trials(X.values, y), r"X is an array of shape \(6, 5, 3\), without names"),
        (lambda: Trials(X, "y"), r"y is 'y', without names .* dims=\('trial', 'time', 'neuron'\)"),
        (lambda: Trials(X.rename(feature="f"), y), "for example feature='f'"),
        (lambda: Trials(X, y.isel(time=0, drop=True)), "X has the dimension 'time', which y has not"),
        (lambda: Trials(X, y, exposure=exposure), "exposure has the dimension 'block', which neither"),
        (
            lambda: Trials(X, y.assign_coords(trial=range(6))),
            "different labels along 'trial' .first at 0: 3 and 0.. Align",
        ),
        (lambda: Trials(X, y[:4]), "y has 4 entries along 'trial', but X has 6"),
        (lambda: Trials(X, y, trial="block"), "trial is 'block'; the dimensions of the rows are 'trial', 'time'"),
        (lambda: Trials(X, y).folds(7), "with 6 trials it must be from 2 to 6"),
        (lambda: Trials(X, y).unstack(np.ones(6)), r"values has shape \(6,\); it needs \(30,\)"),
        (lambda: Trials(X, y).unstack(np.ones((30, 2)), "c", [1]), "labels has 1 entries; values has 2 columns"),
        (lambda: PopulationGLM().fit(X, y), r"Trials\(X, y\) lays trials out as rows"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            wrong()
