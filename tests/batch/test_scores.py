"""Held-out scores of batches: those of fits without the held-out bins, for every estimator."""

import json

import numpy as np
import pytest

import glmfit
from glmfit.batch import ManifestError, collect, load_result, load_scores, load_session, read_manifest, run
from glmfit.batch.plan import plan
from glmfit.design import build
from glmfit.files import load_npz

pd = pytest.importorskip("pandas")
pytest.importorskip("xarray")

PLACE = {"signal": "place", "basis": {"kind": "bspline", "n": 5, "range": [-1, 1]}}
HISTORY = {"basis": {"kind": "raised_cosine_log", "n": 3, "window_s": 0.3}, "of": "own"}
RIDGE = {"estimator": "PopulationGLM", "parameters": {"regularizer_strength": 1e-3}}
FOLDS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recording of three units, the last of which is silent in the second half, and two signals."""
    folder, rng = tmp_path_factory.mktemp("recording"), np.random.default_rng(0)
    t = np.arange(0, 60, 0.01)
    place = np.sin(t / 3)
    rates = [0.05 * (1 - place), 0.05 * (1 + place), 0.05 * (t < 30)]
    spikes = [t[rng.random(len(t)) < rate] + 0.001 for rate in rates]
    trials = np.arange(0, 60, 5.0)
    np.savez(
        folder / "rat.npz",
        times=np.concatenate(spikes), unit=np.repeat([2, 5, 7], [len(s) for s in spikes]), t=t, place=place,
        choice=np.digitize(place, [-0.5, 0.5]), start=trials, stop=trials + 4.96,
        test_start=np.array([30.0]), test_stop=np.array([60.0]),
    )  # fmt: skip
    return folder


def manifest_of(folder, models):
    source = {
        "name": "rat", "files": "rat.npz", "spikes": {"times": "times", "unit": "unit"},
        "signals": {name: {"values": name, "times": "t"} for name in ("place", "choice")},
        "epochs": {
            "trials": {"start": "start", "stop": "stop"},
            "late": {"start": "test_start", "stop": "test_stop"},
        },
    }  # fmt: skip
    path = folder / "m.json"
    models = [
        {"name": f"m{k}", **model, "design": {"bin_s": 0.05, "epochs": [[0, 60]]} | model.get("design", {})}
        for k, model in enumerate(models)
    ]
    path.write_text(json.dumps({"data": [source], "model": models}))
    return path


def scored(folder, model, name="out"):
    """Rows of the index, scores (fold, unit), and the design of one model."""
    path, out = manifest_of(folder, [model]), folder / name
    assert run(path, out=out, scheduler="serial", progress=False).ok
    (task,) = plan(read_manifest(path), out)
    header, arrays = load_npz(out / "results" / f"{task.key}.npz")
    data = build(load_session(task.spec["source"]), task.spec["design"], task.spec["estimator"])
    return pd.read_parquet(collect(out).index), arrays["held_out.scores"], data, header["batch"]


def by_hand(make, data, number, scoring, X=None, y=None):
    """Scores of fits without each fold, one neuron score at a time."""
    X, y = (data.X, data.y) if X is None else (X, y)
    scores = []
    for k in range(number.max() + 1):
        train, test = number != k, number == k
        model = make().fit(X[train], y[train])
        scores.append(model.score(X[test], y[test], score_type=scoring, per_neuron=True))
    return np.stack(scores)


def blocks(n_rows, n=FOLDS):
    return np.arange(n_rows) * n // n_rows


@pytest.mark.parametrize("scoring", ["log-likelihood", "D2"])
def test_scores_match_fits_without_the_held_out_blocks(folder, scoring):
    model = {**RIDGE, "design": {"covariates": [PLACE]}, "score": {"cv": FOLDS, "scoring": scoring}}
    index, scores, data, facts = scored(folder, model)
    expected = by_hand(
        lambda: glmfit.PopulationGLM(regularizer_strength=1e-3), data, blocks(len(data.y)), scoring
    )  # fmt: skip
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(index["held_out_score"], np.nanmean(expected, axis=0), rtol=1e-4)
    error = np.nanstd(expected, axis=0, ddof=1) / np.sqrt(np.sum(~np.isnan(expected), axis=0))
    np.testing.assert_allclose(index["held_out_se"], error, rtol=1e-3)
    assert set(index["scoring"]) == {scoring} and facts["seconds_score"] > 0
    whole = glmfit.PopulationGLM(regularizer_strength=1e-3).fit(data.X, data.y)
    np.testing.assert_allclose(load_result(folder / "out").coef_, whole.coef_, atol=1e-6)  # to all bins
    assert list(index["path"]) == [f"results/{key}.npz" for key in index["key"]]
    frame = load_scores(folder / "out")
    assert list(frame.columns) == list(index["unit"]) and frame.attrs["scoring"] == scoring and len(frame) == FOLDS
    np.testing.assert_array_equal(frame.to_numpy(), scores)


def test_whole_trials_are_dealt_out_in_turn(folder):
    model = {**RIDGE, "design": {"covariates": [PLACE]}, "score": {"cv": {"epochs": "trials", "n": 3}}}
    _, scores, data, _ = scored(folder, model)
    number = np.where(data.times % 5 <= 4.96, (data.times // 5).astype(int) % 3, -1)
    expected = by_hand(lambda: glmfit.PopulationGLM(regularizer_strength=1e-3), data, number, "log-likelihood")
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6)


def test_a_neuron_without_spikes_in_the_fitted_bins_has_no_score(folder):
    """The test set is the first half for unit 7, which has spikes there only."""
    model = {**RIDGE, "design": {"covariates": [PLACE], "epochs": "trials"}, "score": {"test": "late"}}
    index, scores, data, _ = scored(folder, model)
    held = data.times >= 30
    assert scores.shape == (1, 3) and np.isfinite(scores).all()  # unit 7 is silent in the held-out bins only
    fit = glmfit.PopulationGLM(regularizer_strength=1e-3).fit(data.X[~held], data.y[~held])
    np.testing.assert_allclose(
        scores[0], fit.score(data.X[held], data.y[held], score_type="log-likelihood", per_neuron=True), rtol=1e-4
    )
    assert index["held_out_se"].isna().all()
    model["score"] = {"cv": 2}  # the second fit has no spike of unit 7
    index, scores, _, _ = scored(folder, model)
    assert np.isnan(scores[0, 2]) and np.isfinite(scores[:, :2]).all() and np.isfinite(scores[1, 2])
    assert index["held_out_score"].iloc[2] == pytest.approx(scores[1, 2])


def test_each_neuron_with_its_own_history_is_scored(folder):
    model = {**RIDGE, "design": {"covariates": [PLACE], "history": HISTORY}, "score": {"cv": FOLDS}}
    _, scores, data, _ = scored(folder, model)
    for n in range(2):
        X = np.concatenate([data.X, data.own[n]], axis=1)
        usable = ~np.isnan(X).any(axis=1)  # the first rows have no history
        number = np.full(len(X), -1)
        number[usable] = blocks(usable.sum())
        expected = by_hand(
            lambda: glmfit.PopulationGLM(regularizer_strength=1e-3), data, number, "log-likelihood", X, data.y[:, n]
        )  # fmt: skip
        np.testing.assert_allclose(scores[:, n], expected[:, 0], rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*folds without a spike")
@pytest.mark.parametrize(
    "model",
    [
        {"estimator": "PopulationGLMCV", "parameters": {"strengths": [1e-4, 1e-1], "cv": 3}},
        {"estimator": "PopulationGAM", "parameters": {"strengths": 1e-3}},
    ],
    ids=lambda model: model["estimator"],
)
def test_other_models_of_counts_are_scored(folder, model):
    model = {**model, "design": {"covariates": [PLACE]}, "score": {"cv": FOLDS}}
    index, scores, data, _ = scored(folder, model)
    terms = {} if data.smooth_terms is None else {"terms": data.smooth_terms}
    make = getattr(glmfit, model["estimator"])
    expected = by_hand(
        lambda: make(**model["parameters"], **terms), data, blocks(len(data.y)), "log-likelihood"
    )  # fmt: skip
    known = ~np.isnan(scores)
    np.testing.assert_allclose(scores[known], expected[known], rtol=1e-4)
    assert known[:, :2].all() and np.isfinite(index["held_out_score"]).all()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:the best strength", "ignore:.*categories have no counts")
@pytest.mark.parametrize("estimator", ["SoftmaxGLM", "SoftmaxGLMCV", "MultinomialGLM", "MultinomialGLMCV"])
def test_models_of_classes_are_scored(folder, estimator):
    of_labels = estimator.startswith("Softmax")
    parameters = {"strengths": [1e-3, 1e-1]} if estimator.endswith("CV") else {"regularizer_strength": 1e-2}
    design = {"target": "choice", "covariates": [{"signal": "counts"}]} if of_labels else {"covariates": [PLACE]}
    scoring = "accuracy" if of_labels else "D2"
    model = {"estimator": estimator, "parameters": parameters, "design": design}
    index, scores, data, _ = scored(folder, {**model, "score": {"cv": 2, "scoring": scoring}})
    number, make = blocks(len(data.y), 2), getattr(glmfit, estimator)
    for k, row in enumerate(scores):
        train, test = number != k, number == k
        fit = make(**parameters).fit(data.X[train], data.y[train])
        X, y = data.X[test], data.y[test]
        if not of_labels:  # without the category that has no counts in the rows fitted, and empty rows
            y = y * (data.y[train].sum(axis=0) > 0)
            X, y = X[y.any(axis=1)], y[y.any(axis=1)]
        assert row == pytest.approx(fit.score(X, y, score_type=scoring), rel=1e-4)
    assert len(index) == 3 and index["held_out_score"].to_numpy() == pytest.approx(np.full(3, scores.mean()))
    if estimator.endswith("CV"):
        assert set(index["strength"]) <= set(parameters["strengths"])


def test_scores_of_a_class_cross_validation_are_in_the_index_without_a_table(folder):
    design = {"target": "choice", "covariates": [{"signal": "counts"}]}
    model = {"estimator": "SoftmaxGLMCV", "parameters": {"strengths": [1e-3, 1e-1], "cv": 3}, "design": design}
    out = folder / "alone"
    assert run(manifest_of(folder, [model]), out=out, scheduler="serial", progress=False).ok
    index, fit = pd.read_parquet(collect(out).index), load_result(out)
    chosen = fit.cv_scores_[fit.strengths_ == fit.strength_][0]
    assert index["held_out_score"].to_numpy() == pytest.approx(np.full(3, chosen.mean()))
    assert set(index["scoring"]) == {"log-likelihood"} and set(index["strength"]) == {fit.strength_}
    frame = load_scores(out)
    assert frame.shape == (3, 3) and frame.index.name == "fold" and frame.columns.name == "unit"
    np.testing.assert_array_equal(frame, np.tile(chosen[:, None], 3))


def test_a_fit_without_held_out_scores_says_how_to_get_them(folder):
    out = folder / "unscored"
    assert run(
        manifest_of(folder, [{**RIDGE, "design": {"covariates": [PLACE]}}]), out=out, scheduler="serial", progress=False
    ).ok
    with pytest.raises(ValueError, match=r'has no held-out scores: give the model "m0" a table \[model.score\]'):
        load_scores(out)


def test_warnings_of_the_fits_name_the_table_and_damage_is_found(folder):
    lasso = {"estimator": "PopulationGLM", "parameters": {"regularizer": "Lasso", "regularizer_strength": 10.0}}
    model = {**lasso, "design": {"covariates": [PLACE]}, "score": {}}
    _, scores, _, facts = scored(folder, model, "warned")
    assert len(scores) == 5 and any(text.startswith("in the fits of [model.score]: ") for text in facts["warnings"])
    (path,) = (folder / "warned" / "results").glob("*.npz")
    header, arrays = load_npz(path)
    from glmfit.files import save_npz

    save_npz(path, header, arrays | {"held_out.scores": scores[:, :2]})
    with pytest.raises(ValueError, match=r"held-out scores have shape \(5, 2\), with 3 units"):
        load_result(path)
    del arrays["held_out.scores"]
    save_npz(path, header, arrays)
    with pytest.raises(ValueError, match="is not a complete result"):
        load_result(path)


def test_a_score_is_part_of_the_key(folder):
    design = {"design": {"covariates": [PLACE]}}
    models = [{**RIDGE, **design}, {**RIDGE, **design, "score": {}}, {**RIDGE, **design, "score": {"cv": 3}}]
    keys = {task.key for task in read_manifest(manifest_of(folder, models)).tasks()}
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ({"cv": 1}, "cv is 1; it must be"),
        ({"cv": {"epochs": "laps"}}, 'epochs names "laps", which is not among the epochs of data "rat"'),
        ({"cv": {"n": 3}}, "epochs is missing"),
        ({"cv": 3, "test": "late"}, "cv and test are both given; remove one of them"),
        ({"test": "lat"}, 'test names "lat", which is not among the epochs of data "rat"; did you mean "late"'),
        ({"scoring": "accuracy"}, 'scoring is "accuracy"; for PopulationGLM it must be one of "log-likelihood"'),
        ({"folds": 3}, "folds is not known here"),
    ],
)
def test_wrong_tables_are_named(folder, score, message):
    model = {**RIDGE, "design": {"covariates": [PLACE]}, "score": score}
    with pytest.raises(ManifestError) as caught:
        read_manifest(manifest_of(folder, [model]))
    assert any(message in problem and "score" in problem for problem in caught.value.problems), caught.value.problems


def test_folds_without_usable_bins_have_no_score(tmp_path):
    """The tracker is lost in the third quarter."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    X[200:300] = np.nan
    np.savez(tmp_path / "a.npz", X=X, y=rng.poisson(1.0, (400, 2)))
    manifest = tmp_path / "m.json"
    data = [{"name": "a", "files": "a.npz", "X": "X", "y": "y"}]
    manifest.write_text(json.dumps({"data": data, "model": [{"name": "m", **RIDGE, "score": {"cv": 3}}]}))
    assert run(manifest, out=tmp_path / "out", scheduler="serial", progress=False).ok
    (path,) = (tmp_path / "out" / "results").glob("*.npz")
    scores = load_npz(path)[1]["held_out.scores"]
    usable = np.flatnonzero(~np.isnan(X[:, 0]))
    fit = glmfit.PopulationGLM(regularizer_strength=1e-3)
    y = np.load(tmp_path / "a.npz")["y"]
    first, rest = usable[:100], usable[100:]
    fit.fit(X[rest].astype(np.float32), y[rest])
    expected = fit.score(X[first].astype(np.float32), y[first], score_type="log-likelihood", per_neuron=True)
    np.testing.assert_allclose(scores[0], expected, rtol=1e-4)  # blocks of the usable bins
    assert pd.read_parquet(collect(tmp_path / "out").index)["n_dropped"].tolist() == [100, 100]


def test_folds_that_the_data_do_not_have_fail_with_the_reason(folder):
    everything = {"bin_s": 0.05, "epochs": "late"}
    model = {**RIDGE, "design": {**everything, "covariates": [PLACE]}, "score": {"test": "late"}}
    summary = run(manifest_of(folder, [model]), out=folder / "failed", scheduler="serial", progress=False)
    assert not summary.ok and 'score: the epochs "late" have 600 of 600 bins of the design' in str(summary)
