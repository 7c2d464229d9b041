"""Explaining responses: invalid input, neurons without spikes, tables, files, interrupted runs."""

import warnings

import numpy as np
import pytest

import glmfit.threads as threads
from glmfit import PopulationGLM, PopulationGLMCV
from glmfit.design import BSpline, product
from glmfit.engine.nested import models
from glmfit.engine.nested.search import Nested
from glmfit.inference import CircularShift, Counts, Designs, LinearShift, Permutation, explain
from glmfit.inference.explained.explanation import Explanation
from glmfit.inference.explained.testing import Verdicts

T, GROUPS = 160, {"a": [0, 1], "b": 2}
FOLD = np.arange(T) * 4 // T
ONE = {"strengths": [0.1], "kinds": "unique"}
NULL = {"level": None, "null_strength": 0.1, **ONE}


def recording(n=2):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(T, 3))
    return X, rng.poisson(np.exp(X @ rng.normal(size=(3, n)) * 0.4)).astype(float)


def model(**parameters):
    return PopulationGLMCV(**{"strengths": [1e-2, 1e-1], "cv": 4} | parameters)


def rows(*numbers):
    return np.flatnonzero(np.isin(FOLD, numbers))


@pytest.mark.parametrize(
    "given, message",
    [
        ({"cv": [(rows(1, 2, 3), rows(0)), (rows(2, 3), rows(0, 1)), (rows(0, 1), rows(2, 3))]}, "40 rows are held"),
        ({"cv": [(rows(1, 2), rows(0)), (rows(0, 2), rows(1)), (rows(0, 1), rows(2))]}, "not all rows that they do"),
        ({"cv": 2}, "cv has 2 folds and there are 2 strengths"),
        ({"order": ["c"]}, r"order names the group 'c', which does not exist; the groups are \['a', 'b'\]"),
        ({"order": ["a", "a"]}, "each group may occur only once"),
        ({"models": {"mine": ["c"]}}, r"models\['mine'\] names the group 'c'"),
        ({"models": ["a"]}, "it must map names of models to lists of groups"),
        ({"kinds": "best"}, "kinds is 'best'; it must be one of 'unique', 'maximal'"),
        ({"groups": {}}, "groups is empty"),
        ({"groups": {"full": 0}}, "which is the name of a model"),
        ({"groups": {"a": []}}, "group 'a' is empty"),
        ({"null": "circular"}, "null is a str; it must be one of glmfit.inference"),
        ({"null": CircularShift(20, within=np.zeros(5))}, r"within has shape \(5,\); it must be a label per row"),
        ({"null": CircularShift(20, least=100)}, "nothing can be shifted that far in a circle"),
        ({"null": LinearShift(60, 20)}, "Shift by at most 39 rows"),
        ({"null": Permutation(np.zeros(T), 20)}, "within has one session"),
        ({"null": Designs([np.zeros((5, 3))]), "level": None}, "features 0 of the null have shape"),
        ({"null": Designs([np.full((T, 3), np.nan)]), "level": None}, "features 0 of the null are not finite"),
        ({"null": Counts([np.zeros((5, 2))]), "level": None}, "counts 0 of the null have shape"),
        ({"level": 2.0}, r"level is 2.0; it must be a number in \(0, 1\)"),
        ({"null": CircularShift(20), "null_strength": "best"}, "null_strength is 'best'"),
        ({"strengths": [-1.0]}, "finite numbers of at least 0"),
        ({"checkpoint": 3}, "it must be the path of a file"),
    ],
)  # fmt: skip
def test_mistakes_raise_an_error_that_says_what_to_do(given, message):
    X, Y = recording()
    with pytest.raises((TypeError, ValueError), match=message):
        explain(model(), X, Y, **{"groups": GROUPS} | given)


@pytest.mark.parametrize(
    "wrong, message", [("Ridge", "model is a str"), (PopulationGLM(None, "GroupLasso"), "'Lasso'")]
)
def test_models_that_cannot_be_explained_are_refused(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        explain(wrong, *recording(), GROUPS)


def test_invalid_nulls_are_refused():
    for make, message in (
        (lambda: CircularShift(0), "n is 0"), (lambda: CircularShift(of="rows"), "of is 'rows'"),
        (lambda: LinearShift(5, 10), "more than there are shifts"), (lambda: Designs([]), "n is 0"),
        (lambda: Designs(iter([])), "give the number of arrays"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.parametrize("wrong", ["fewer features", "more features", "fewer neurons", "negative"])
def test_draws_of_a_null_must_match_what_they_replace(wrong):
    X, Y = recording()
    null = {
        "fewer features": Designs([X[:, :2]]), "more features": Designs([np.column_stack([X, X])]),
        "fewer neurons": Counts([Y[:, :1]]), "negative": Counts([-Y]),
    }[wrong]  # fmt: skip
    with pytest.raises(ValueError, match="of the null"):
        explain(model(), X, Y, GROUPS, null=null, **NULL)


def test_a_null_with_too_few_draws_for_the_level_is_reported():
    with pytest.raises((ValueError, UserWarning), match="draws"):
        explain(model(), *recording(), GROUPS, null=CircularShift(9), level=0.05)


@pytest.mark.parametrize("name", ["Poisson", "Binomial"])
def test_counts_of_a_null_remain_counts_with_an_exposure(name):
    X, Y = recording()
    Y = np.minimum(Y, 4)
    given = model(observation_model=name), X, Y, GROUPS
    found = explain(*given, exposure=np.full(T, 4.0), null=Counts([Y]), **NULL)
    np.testing.assert_allclose(found.null_statistic[0], found.statistic, atol=0.1)


def test_p_values_of_interrupted_linear_shifts_do_not_rely_on_missing_draws(monkeypatch):
    monkeypatch.setattr(threads, "n_cores", lambda: 1)
    found = interrupted(monkeypatch, 9, null=LinearShift(30, 20), **NULL)
    assert found.status == "interrupted" and found.n_draws[0, 0] < 10
    assert not np.any(found.p_value[:, 0] < 0.5)


def interrupted(monkeypatch, at, **given):
    """Run with Ctrl-C at a call of the search."""
    left, original = [at], Nested.of_neuron

    def of_neuron(*some, **named):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return original(*some, **named)

    monkeypatch.setattr(Nested, "of_neuron", of_neuron)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return explain(model(), *recording(), GROUPS, **given)


def test_an_interrupted_run_keeps_finished_neurons(monkeypatch):
    from glmfit.inference.explained import work as module

    monkeypatch.setattr(threads, "n_cores", lambda: 1)
    monkeypatch.setattr(module, "_CHUNK", 1)
    found = interrupted(monkeypatch, 2)
    assert found.status == "interrupted" and "pass the same checkpoint again" in str(found)
    assert np.isfinite(found.contribution[:, 0]).all() and np.isnan(found.contribution[:, 1]).all()
    with pytest.raises(KeyboardInterrupt):
        interrupted(monkeypatch, 1)


# ---------------------------------------------------------------- neurons and features of all kinds


@pytest.mark.parametrize("null", [None, CircularShift(3), CircularShift(3, of="features"), LinearShift(30, 3)])
def test_a_silent_neuron_has_no_contributions_and_does_not_affect_others(null):
    X, Y = recording()
    given = {"null": null, "level": None, "null_strength": 0.1, "kinds": "unique"}
    with pytest.warns(UserWarning, match="1 of 2 neurons have folds that cannot be fitted or scored"):
        found = explain(model(), X, Y * [0, 1], GROUPS, **given)
    alone = explain(model(), X, Y[:, 1], GROUPS, **given)
    assert np.isnan(found.contribution[:, 0]).all() and np.isnan(found.p_value[:, 0]).all()
    np.testing.assert_array_equal(found.contribution[:, 1], alone.contribution[:, 0])
    np.testing.assert_array_equal(found.p_value[:, 1], alone.p_value[:, 0])


@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso"])
@pytest.mark.parametrize("observation", ["Poisson", "Gaussian"])
def test_folds_in_which_a_neuron_was_not_recorded_are_skipped(regularizer, observation):
    X, Y = recording()
    Y[FOLD == 1, 0] = np.nan
    with pytest.warns(UserWarning, match="1 of 2 neurons have folds"):
        found = explain(model(observation_model=observation, regularizer=regularizer), X, Y, GROUPS, **ONE)
    assert np.isnan(found.by_fold[:, 1, 0]).all()
    assert np.isfinite(found.by_fold[:, [0, 2, 3], 0]).all() and np.isfinite(found.by_fold[..., 1]).all()
    np.testing.assert_allclose(found.contribution[:, 0], np.nansum(found.by_fold[..., 0], axis=1))
    assert found.n_spikes[1, 0] == 0


@pytest.mark.parametrize("strengths", [[0.1], [0.01, 0.1]])
def test_a_neuron_recorded_in_only_one_fold_has_no_contributions(strengths):
    X, Y = recording()
    Y[FOLD > 0, 0] = np.nan
    with pytest.warns(UserWarning, match="1 of 2 neurons have folds"):
        found = explain(model(), X, Y, GROUPS, strengths=strengths)
    assert np.isnan(found.contribution[:, 0]).all() and np.isfinite(found.contribution[:, 1]).all()


def test_choices_that_no_pair_of_folds_can_fit_take_the_strongest_strength():
    X, _ = recording()
    y = np.repeat([1.0, 0.0, 0.0], [60, 50, 50])
    cuts = np.repeat([0, 1, 2], [60, 50, 50])
    folds = [(np.flatnonzero(cuts != k), np.flatnonzero(cuts == k)) for k in range(3)]
    with pytest.warns(UserWarning, match="1 of 1 neurons have folds"):
        found = explain(model(observation_model="Bernoulli", cv=folds), X, y, GROUPS)
    assert np.isnan(found.loss[:, 0, 0]).all() and np.all(found.strength[1:, 1:, 0] == 0.1)


def test_one_feature_a_constant_one_and_a_group_of_all():
    X, Y = recording()
    one = explain(model(), X[:, :1], Y[:, 0], **ONE)
    assert [c.kind for c in one.contributions] == ["whole", "unique"] and one.model == ["constant", "full"]
    np.testing.assert_array_equal(one.contribution[0], one.contribution[1])
    every = explain(model(), X, Y, {"all": [0, 1, 2]}, **ONE)
    np.testing.assert_array_equal(every.contribution[0], every.contribution[1])
    X[:, 2] = 3.0
    with pytest.warns(UserWarning, match="constant column"):
        found = explain(model(), X, Y, GROUPS, **ONE)
    assert found.is_proved.all() and np.all(np.abs(found.contribution[2]) <= found.off[2] + 1e-9)


def test_rows_with_nan_are_treated_as_absent():
    X, Y = recording()
    missing = X.copy()
    missing[::7] = np.nan
    keep = np.arange(T) % 7 > 0
    one, other = (explain(model(), x, y, GROUPS) for x, y in ((missing, Y), (X[keep], Y[keep])))
    np.testing.assert_array_equal(one.loss, other.loss)


def test_trial_labels_refer_to_the_given_rows():
    X, Y = recording()
    X[::7] = np.nan
    keep, trial = np.arange(T) % 7 > 0, np.arange(T) // 40
    one = explain(model(), X, Y, GROUPS, null=CircularShift(3, within=trial), **NULL)
    other = explain(model(), X[keep], Y[keep], GROUPS, null=CircularShift(3, within=trial[keep]), **NULL)
    np.testing.assert_array_equal(one.null_statistic, other.null_statistic)


def test_pynapple_recordings_are_accepted():
    import pynapple as nap

    X, Y = recording()
    t = 0.1 * np.arange(T)
    features, counts = nap.TsdFrame(t, X, columns=["x", "y", "speed"]), nap.TsdFrame(t, Y, columns=[7, 9])
    trials = nap.IntervalSet([0, 4, 8, 12], [3.95, 7.95, 11.95, 15.95])
    groups = {"place": ["x", "y"], "speed": "speed"}
    folds = [trials[k] for k in range(4)]
    found = explain(model(), features, counts, groups, cv=folds, null=CircularShift(3, within=trials), **NULL)
    plain = explain(model(), X, Y, {"place": [0, 1], "speed": 2}, null=CircularShift(3, within=FOLD), **NULL)
    assert found.feature == ["x", "y", "speed"] and [str(n) for n in found.neuron] == ["7", "9"]
    np.testing.assert_array_equal(found.loss, plain.loss)
    np.testing.assert_array_equal(found.null_statistic, plain.null_statistic)


@pytest.mark.parametrize("observation, link", [("Bernoulli", None), ("Poisson", "softplus")])
def test_an_outlying_row_has_the_correct_loss(observation, link):
    from oracles import nested as oracle

    X, _ = recording(1)
    y = (X[:, 0] + 0.5 * np.random.default_rng(1).normal(size=T) > 0).astype(float)
    X[5, 0], y[5] = 1e4, 1.0
    given = model(observation_model=observation, inverse_link_function=link)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = explain(given, X, y, GROUPS, strengths=[1e-3], kinds="unique")
    name = link or observation
    loss, *_ = oracle.held_out(name, X, y, np.ones(T), 0.0, FOLD, 4, found.members, [1e-3])
    proved = found.proved[..., 0]
    assert proved[1:, 0].all()
    difference = np.abs((found.loss[..., 0] - loss) - (found.loss[0, :, 0] - loss[0]))
    assert np.all(difference[proved] <= (found.loss_off[..., 0] + 1e-6)[proved])


@pytest.mark.thorough
def test_a_rare_response_with_a_weak_ridge_does_not_abort_the_run():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = np.cumsum(rng.normal(size=(100, 2)), axis=0)
        y = (rng.random(100) < 0.06).astype(float)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            explain(model(observation_model="Bernoulli", cv=3), X, y, strengths=[1e-6, 1e-3])


# ---------------------------------------------------------------- tables and files


@pytest.mark.thorough
def test_tables_and_arrays_have_the_expected_shapes():
    X, Y = recording()
    more = {"order": ["b", "a"], "models": {"mine": ["a", "b"]}}
    found = explain(model(), X, Y, GROUPS, null=CircularShift(3), level=None, null_strength=0.1, **more)
    frame, arrays = found.to_frame(), found.to_xarray()
    assert [c.kind for c in found.contributions] == [
        "whole", "unique", "maximal", "unique", "maximal", "added", "added", "model"
    ]  # fmt: skip
    assert frame.shape == (16, 9) and frame.index.names == ["neuron", "kind", "group"]
    assert dict(arrays.sizes) == {
        "contribution": 8, "neuron": 2, "model": len(found.model), "fold": 4, "feature": 3, "draw": 3,
    }  # fmt: skip
    assert frame.nats.to_numpy().reshape(2, 8).T == pytest.approx(found.contribution)
    for name in ("loss", "gap", "null_statistic"):
        np.testing.assert_array_equal(arrays[name], getattr(found, name))
    assert np.all(found.q_value >= found.p_value)
    compared = found.compare("full", "constant")
    np.testing.assert_allclose(compared.nats, found.contribution[0])
    with pytest.raises(ValueError, match="is not a model here"):
        found.compare("full", "nothing")
    plain = explain(model(), X, Y, GROUPS)
    assert "p_value" not in plain.to_frame() and "null_statistic" not in plain.to_xarray()


def test_scores_match_their_definitions():
    X, Y = recording()
    found = explain(model(), X, Y, GROUPS)
    np.testing.assert_allclose(found.contribution, found.by_fold.sum(axis=1))
    spikes = np.stack([Y[FOLD == k].sum(axis=0) for k in range(4)])
    np.testing.assert_array_equal(found.n_spikes, spikes)
    np.testing.assert_allclose(found.bits_per_spike, found.contribution / np.log(2) / spikes.sum(axis=0))
    np.testing.assert_allclose(found.standard_error, 2 * found.by_fold.std(axis=1, ddof=1))
    deviance = (found.loss[0] - found.saturated).sum(axis=0)
    np.testing.assert_allclose(found.d2, found.contribution / deviance)


def test_an_explanation_survives_saving_and_damaged_files_are_refused(tmp_path):
    found = explain(model(), *recording(), GROUPS, null=CircularShift(3), level=None, null_strength=0.1)
    path = found.save(tmp_path / "found.npz")
    back = Explanation.load(path)
    assert back.to_frame().equals(found.to_frame()) and back.contributions == found.contributions
    np.testing.assert_array_equal(back.null_statistic, found.null_statistic)
    content = path.read_bytes()
    for wrong in (content[:10], content[: len(content) // 2], content[:-5], b""):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="found"):
            Explanation.load(path)
    model_file = PopulationGLM().fit(*recording()).save(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="is not an explanation"):
        Explanation.load(model_file)


def test_a_lasso_strength_of_0_is_no_penalty():
    X, Y = recording()
    lasso = explain(model(regularizer="Lasso"), X, Y, GROUPS, strengths=[0.0])
    none = explain(model(), X, Y, GROUPS, strengths=[0.0])
    assert lasso.proved.all()
    np.testing.assert_allclose(lasso.loss, none.loss, atol=1e-2)


@pytest.mark.thorough
@pytest.mark.parametrize("renewals", [0, None])
def test_draws_that_nearby_hessians_cannot_prove_are_fitted_by_solvers(renewals, monkeypatch):
    """Places that are hardly visited, and a weak ridge: the fits to shifted counts are far from that to the counts."""
    if renewals is not None:
        monkeypatch.setattr(models, "_RENEWALS", renewals)
    rng = np.random.default_rng(0)
    u = np.clip(np.cumsum(rng.normal(size=(4000, 2)) * 0.03, axis=0) % 2 - 0.5, 0, 1)
    X = product(BSpline(6, (0, 1), name="x"), BSpline(6, (0, 1), name="y"), name="place").features(*u.T)
    counts = rng.poisson(1.5 * np.exp(-((u - [0.1, 0.8]) ** 2).sum(axis=1) / 0.01))[:, None]
    null = CircularShift(19, least=200)
    given = {"cv": 3, "null": null, "null_strength": 1e-6}
    found = explain(PopulationGLMCV(strengths=[1e-4, 1e-3, 1e-2]), X, counts, {"place": range(36)}, **given)
    assert not found.n_unproved_draws.any() and np.all(found.n_draws == 19)
    np.testing.assert_allclose(found.p_value, 0.05)


def test_a_checkpoint_without_counts_of_unproved_draws_continues(tmp_path, monkeypatch):
    given = {"null": CircularShift(5), "checkpoint": tmp_path / "null.npz", **NULL}
    arrays = Verdicts.arrays
    with monkeypatch.context() as patch:
        patch.setattr(Verdicts, "arrays", lambda of: {k: v for k, v in arrays(of).items() if k != "null/unproved"})
        found = explain(model(), *recording(), GROUPS, **given)
    again = explain(model(), *recording(), GROUPS, **given)
    np.testing.assert_array_equal(again.p_value, found.p_value)
    assert not again.n_unproved_draws.any()


def test_epochs_of_a_null_must_not_share_rows():
    import pynapple as nap

    X, Y = recording()
    t = 0.1 * np.arange(T)
    counts, trials = nap.TsdFrame(t, Y), [nap.IntervalSet(0, 8), nap.IntervalSet(8, 16)]
    with pytest.raises(ValueError, match="within has epochs that overlap or touch: 1 row would belong to two"):
        explain(model(), X, counts, GROUPS, null=CircularShift(3, within=trials), **NULL)


@pytest.mark.parametrize("given", [{"regularizer": "Lasso", "regularizer_strength": 0.01}, {"regularizer": None}])
def test_an_exposure_of_rows_serves_all_neurons(given, rng):
    X, Y = rng.normal(size=(T, 3)), rng.binomial(4, 0.4, size=(T, 2))
    estimator = PopulationGLM(observation_model="Binomial", **given)
    exposure = rng.integers(4, 6, T).astype(float)
    both = explain(estimator, X, Y, GROUPS, exposure=exposure, kinds="unique")
    for n in range(2):
        alone = explain(estimator, X, Y[:, n], GROUPS, exposure=exposure, kinds="unique")
        np.testing.assert_allclose(both.loss[..., n], alone.loss[..., 0], rtol=1e-6)


def test_masks_of_features_are_refused():
    X, Y = recording()
    with pytest.raises(ValueError, match="model has a feature_mask, which explain does not support"):
        explain(PopulationGLM(feature_mask=np.ones((3, 2))), X, Y, GROUPS)
