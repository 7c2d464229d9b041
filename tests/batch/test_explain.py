"""Contributions of groups of features in a batch equal those of `explain`, in files, tables and the index."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from batch_runs import ROOT, Batch, draw

import glmfit
from glmfit import inference
from glmfit.batch import (
    ManifestError,
    build,
    collect,
    load_explanation,
    load_result,
    load_session,
    read_manifest,
    run,
    run_one,
)  # fmt: skip
from glmfit.batch.held_out import explained as _explained
from glmfit.batch.held_out import scores as _scores
from glmfit.batch.plan import plan
from glmfit.batch.results import is_whole
from glmfit.files import load_npz, save_npz
from glmfit.inference import CircularShift, LinearShift, explain
from glmfit.inference.explained import explanation as _explanation

SESSIONS = [{"seed": 3, "n_rows": 150, "n_neurons": 2}, {"seed": 4, "n_rows": 120, "n_neurons": 3}]
NULL = {"kind": "circular_shift", "n": 19, "least": 5}
MODELS = {
    "plain": ("PopulationGLM", {"regularizer_strength": 0.01}, None),
    "each": ("PopulationGLM", {"regularizer_strength": 0.01}, {}),
    "groups": (
        "PopulationGLMCV",
        {"strengths": [1e-3, 1e-1], "cv": 4},
        {"groups": {"a": "x0", "b": ["x1", "x2"]}, "order": ["b", "a"], "models": {"both": ["a", "b"]}, "null": NULL},
    ),
    "classes": ("MultinomialGLM", {"regularizer_strength": 0.5}, None),
}
GROUPS = {"a": [0], "b": [1, 2]}


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    models = [
        {"name": n, "estimator": kind, "parameters": given} | ({} if asked is None else {"explain": asked})
        for n, (kind, given, asked) in MODELS.items()
    ]
    batch = Batch(tmp_path_factory.mktemp("explain"), SESSIONS, models)
    batch.summary = run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
    assert batch.summary.ok, batch.summary
    batch.paths = {
        (task.session, task.model): batch.out / "results" / f"{task.key}.npz"
        for task in plan(read_manifest(batch.manifest), batch.out)
    }
    return batch


def direct(name, arguments):
    """Explanation of a session of the batch by a direct call of `explain`."""
    kind, given, asked = MODELS[name]
    model, (X, y) = getattr(glmfit, kind)(**given, random_state=0), draw(arguments)
    if name == "each":
        return explain(model, X, y, {f"x{k}": k for k in range(3)})
    null = CircularShift(19, least=5)
    return explain(model, X, y, GROUPS, order=asked["order"], models=asked["models"], null=null)


def same(found, expected, but=("neuron", "feature")):
    """Check that two explanations are the same, to the last bit."""
    for name in vars(expected).keys() - {*but, "_values"}:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def test_files_are_checked_for_all_arrays_of_an_explanation():
    assert list(_explained.AXES.keys() ^ set(_explanation._array_names())) == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["each", "groups"])
def test_contributions_equal_those_of_explain(batch, name):
    for arguments in SESSIONS:
        label = f"sim/seed={arguments['seed']},n_rows={arguments['n_rows']},n_neurons={arguments['n_neurons']}"
        path = batch.paths[label, name]
        found = load_explanation(path)
        same(found, direct(name, arguments))
        assert found.feature == ["x0", "x1", "x2"] and found.neuron == list(map(str, load_result(path).report_.neuron))
        assert (found.null != "") == (name == "groups")


@pytest.mark.thorough
def test_a_model_without_contributions_says_how_to_get_them(batch):
    (path,) = (p for (session, model), p in batch.paths.items() if model == "plain" and "seed=3" in session)
    assert load_result(path).coef_.shape == (3, 2)
    with pytest.raises(ValueError, match=r'has no explanation: give the model "plain" a table \[model.explain\]'):
        load_explanation(path)


@pytest.mark.thorough
def test_contributions_are_in_a_table_and_in_the_index(batch):
    pd = pytest.importorskip("pandas")
    found = collect(batch.out)
    index, table = pd.read_parquet(found.index), pd.read_parquet(found.explained)
    assert not found.damaged and found.explained == batch.out / "explained.parquet"
    groups = [f"explain.{kind}.{group}" for group in "ab" for kind in ("unique", "maximal", "added")]
    each = [f"explain.{kind}.x{k}" for k in range(3) for kind in ("unique", "maximal")]
    columns = {*groups, *each, "explain.whole.all", "explain.model.both"}
    assert {name for name in index if name.startswith("explain.")} == columns
    for name, there in {"plain": [], "classes": [], "each": each, "groups": groups}.items():
        rows = index[index["model"] == name]
        known = rows[sorted(columns)].notna()
        extra = ["explain.model.both"] if name == "groups" else []
        assert known.any().to_dict() == {
            column: column in [*there, *extra] or (bool(there) and column == "explain.whole.all")
            for column in sorted(columns)
        }
        assert (known.all() == known.any()).all()
    for (session, model), path in batch.paths.items():
        rows = table[table["key"] == path.stem]
        if MODELS[model][2] is None:
            assert rows.empty
            continue
        expected = load_explanation(path)
        frame = expected.to_frame().reset_index()
        assert set(rows["session"]) == {session} and set(rows["model"]) == {model}
        np.testing.assert_array_equal(rows["unit"], frame["neuron"])
        for name in frame.columns.drop("neuron"):
            np.testing.assert_array_equal(rows[name], frame[name], err_msg=name)
        assert rows["p_value"].notna().all() == (model == "groups")
        units = index[index["key"] == path.stem].set_index("unit")
        for _, row in rows.iterrows():
            assert units.loc[row["unit"], f"explain.{row['kind']}.{row['group']}"] == row["nats"]


def test_without_contributions_there_is_no_table(make_batch):
    pytest.importorskip("pandas")
    batch = make_batch(SESSIONS[:1], [{"name": "m", "estimator": "PopulationGLM"}])
    assert run(batch.manifest, out=batch.out, scheduler="serial", progress=False).ok
    (batch.out / "explained.parquet").write_bytes(b"of another manifest")
    assert collect(batch.out).explained is None and not (batch.out / "explained.parquet").exists()


def test_rerun_of_an_explained_batch_imports_no_estimator(batch):
    command = ["run", str(batch.manifest), "--out", str(batch.out), "--quiet"]
    code = f"import sys\nfrom glmfit.batch.__main__ import main\nprint(main({command}), 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"


def drop(name):
    return lambda _, arrays: arrays.pop(f"explain.{name}")


def put(name, value):
    return lambda _, arrays: arrays.update({f"explain.{name}": value})


def say(**changes):
    return lambda header, _: header["batch"]["explain"].update(changes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda header, _: header["batch"].pop("explain"), "lacks its explanation"),
        (drop("loss"), "explain.loss"),
        (put("loss", np.zeros((8, 5, 9))), "explain.loss has shape"),
        (put("p_value", np.zeros(3)), "explain.p_value has shape"),
        (put("gap", np.full((6, 4, 2), "x")), "explain.gap is of type"),
        (say(neuron=["0"]), "explains 1 of 2 neurons"),
        (say(neuron=[0, 1]), "not strings"),
        (say(contributions=[["a", "unique", 1, 99]]), "compares models that do not exist"),
        (say(contributions=[["a", "unique", 1]]), "do not compare two models"),
        (say(null=None), "explanation is incomplete"),
        (say(more=1), "explanation is incomplete"),
    ],
)
def test_damaged_contributions_are_noticed(batch, change, said):
    pytest.importorskip("pandas")
    path = next(p for (session, model), p in batch.paths.items() if model == "groups" and "seed=3" in session)
    before = path.read_bytes()
    header, arrays = load_npz(path)
    change(header, arrays)
    save_npz(path, header, arrays)
    try:
        found = collect(batch.out)
        assert len(found.damaged) == 1 and said in found.damaged[0] and found.explained is not None
        assert not is_whole(batch.out, path.stem)
        for load in (load_result, load_explanation):
            with pytest.raises(ValueError, match="is not a complete result"):
                load(path)
    finally:
        path.write_bytes(before)


def test_interrupted_explanation_leaves_no_result(batch, tmp_path, monkeypatch):
    explained = inference.explain
    monkeypatch.setattr(inference, "explain", lambda *a, **k: replace(explained(*a, **k), status="interrupted"))
    task = next(t for t in read_manifest(batch.manifest).tasks() if t.model == "each")
    with pytest.raises(KeyboardInterrupt):
        run_one(task, tmp_path)
    assert not list((tmp_path / "results").iterdir()) and not list((tmp_path / "failed").iterdir())


# -- recordings: groups of covariates, folds and shifts of whole trials, own histories


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recording of three units, two signals and trials of two seconds with pauses between them."""
    folder, rng = tmp_path_factory.mktemp("recording"), np.random.default_rng(0)
    t = np.arange(0, 60, 0.01)
    place = np.sin(t / 3)
    spikes = [t[rng.random(len(t)) < 0.05 * (1 + sign * place)] + 0.001 for sign in (-1, 0, 1)]
    np.savez(
        folder / "rat.npz",
        times=np.concatenate(spikes), unit=np.repeat([2, 5, 7], [len(s) for s in spikes]), t=t, place=place,
        speed=np.cos(t), start=np.array([0.0, 30.0]), stop=np.array([29.975, 60.0]),
        on=np.arange(0, 60, 3.0), off=np.arange(0, 60, 3.0) + 2,
    )  # fmt: skip
    return folder


PLACE = {"signal": "place", "basis": {"kind": "bspline", "n": 5, "range": [-1, 1]}}
HISTORY = {"basis": {"kind": "raised_cosine_log", "n": 3, "window_s": 0.3}}
DESIGN = {"bin_s": 0.05, "epochs": "run", "covariates": [PLACE, {"signal": "speed"}], "history": HISTORY}
MODEL = {"estimator": "PopulationGLM", "parameters": {"regularizer_strength": 1e-2}}


def manifest_of(folder, asked, **model):
    source = {
        "name": "rat", "files": "rat.npz", "spikes": {"times": "times", "unit": "unit"},
        "signals": {name: {"values": name, "times": "t"} for name in ("place", "speed")},
        "epochs": {"run": {"start": "start", "stop": "stop"}, "trials": {"start": "on", "stop": "off"}},
    }  # fmt: skip
    path = folder / "m.json"
    model = {"name": "m", **MODEL, "design": DESIGN, "explain": asked} | model
    path.write_text(json.dumps({"seed": 8, "data": [source], "model": [model]}))
    return path


def explained(folder, asked, **model):
    """Explanation, and design, of one model of the recording."""
    path, out = manifest_of(folder, asked, **model), folder / "out"
    assert (summary := run(path, out=out, scheduler="serial", progress=False)).ok, summary
    (task,) = plan(read_manifest(path), out)
    found = load_explanation(out / "results" / f"{task.key}.npz")
    return found, build(load_session(task.spec["source"]), task.spec["design"])


def test_covariates_and_the_history_are_the_groups_by_default(folder):
    found, data = explained(folder, {"kinds": ["unique"], "cv": 3})
    groups = {"place": slice(0, 5), "speed": [5], "history": slice(6, 15)}
    same(found, explain(glmfit.PopulationGLM(regularizer_strength=1e-2), data.X, data.y, groups, kinds="unique", cv=3))
    assert found.neuron == ["2", "5", "7"] and found.feature == data.feature_names
    assert {name: len(features) for name, features in data.terms.items()} == {"place": 5, "speed": 1, "history": 9}
    assert [name for features in data.terms.values() for name in features] == data.feature_names


@pytest.mark.thorough
def test_folds_and_shifts_of_trials(folder):
    null = {"kind": "circular_shift", "n": 19, "least": 3, "within": "trials"}
    groups = {"move": ["place", "speed"], "coupling": ["history_5_*", "history_7_0"]}
    asked = {"groups": groups, "cv": {"epochs": "trials", "n": 4}, "null": null, "level": False}
    found, data = explained(folder, asked)
    trial = np.full(len(data.X), -1)
    for k, start in enumerate(np.arange(0, 60, 3.0)):
        trial[(data.times >= start) & (data.times <= start + 2)] = k
    rows = np.arange(len(data.X))
    folds = [(rows[(trial < 0) | (trial % 4 != k)], rows[(trial >= 0) & (trial % 4 == k)]) for k in range(4)]
    groups = {"move": slice(0, 6), "coupling": [9, 10, 11, 12]}
    within = np.where(trial < 0, 1000 + rows, trial)
    null = CircularShift(19, within, least=3, random_state=8)
    model = glmfit.PopulationGLM(regularizer_strength=1e-2)
    same(found, explain(model, data.X, data.y, groups, cv=folds, null=null, level=None))
    assert (found.n_draws == 19).all() and np.mean(trial < 0) == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.thorough
def test_linear_shifts(folder):
    found, data = explained(folder, {"kinds": ["maximal"], "null": {"kind": "linear_shift", "n": 20, "largest": 60}})
    groups = {"place": slice(0, 5), "speed": [5], "history": slice(6, 15)}
    model = glmfit.PopulationGLM(regularizer_strength=1e-2)
    same(found, explain(model, data.X, data.y, groups, kinds="maximal", null=LinearShift(60, 20)))


@pytest.mark.thorough
def test_units_with_own_history_are_explained_separately(folder):
    design = DESIGN | {"history": HISTORY | {"of": "own"}}
    asked = {"kinds": ["unique"], "null": {"kind": "circular_shift", "n": 19, "least": 5}, "null_strength": 0.01}
    found, data = explained(folder, asked, design=design)
    groups = {"place": slice(0, 5), "speed": [5], "history": slice(6, 9)}
    null = CircularShift(19, least=5, random_state=8)
    for n, own in enumerate(data.own):
        X = np.concatenate([data.X, own], axis=1)
        model = glmfit.PopulationGLM(regularizer_strength=1e-2)
        alone = explain(model, X, data.y[:, [n]], groups, kinds="unique", null=null, null_strength=0.01)
        for name in ("contribution", "p_value", "standard_error", "bits_per_spike", "strength"):
            np.testing.assert_array_equal(getattr(found, name)[..., n], getattr(alone, name)[..., 0], err_msg=name)
    kinds = [c.kind for c in found.contributions]
    np.testing.assert_array_equal(found.q_value, _explanation.false_discovery_rate(found.p_value, kinds))
    assert found.neuron == ["2", "5", "7"] and data.terms["history"] == ["history_0", "history_1", "history_2"]
    assert str(found)


# -- manifests


def test_settings_of_an_explanation_are_part_of_the_key(folder):
    def key(asked, **model):
        path = manifest_of(folder, asked, **model)
        if asked is None:
            document = json.loads(path.read_text())
            del document["model"][0]["explain"]
            path.write_text(json.dumps(document))
        (task,) = read_manifest(path).tasks()
        return task.key

    keys = [key(None), key({}), key({"cv": 4}), key({"groups": {"a": "place"}}), key({"groups": {"b": "place"}})]
    assert len(set(keys)) == len(keys)
    assert key({"level": 0.05, "kinds": ["unique", "maximal"]}) == key({})
    assert key({"groups": {"a": ["place"]}}) == key({"groups": {"a": "place"}})


AT = 'm.json: model "m", explain'
BAD = [
    (3, 'model "m": explain is 3; it must be a table.'),
    ({"group": {}}, 'explain: group is not known here; did you mean "groups"?'),
    ({"groups": {}}, "explain: groups is empty"),
    ({"groups": {"a": []}}, "explain, groups: a is []; it must be a non-empty string, or a list of names of cov"),
    ({"groups": {"a b": "place"}}, 'explain, groups: "a b" is not a name of a group; it must be a name of letters'),
    ({"groups": {"full": "place"}}, 'explain, groups: "full" is the name of a model that always exists'),
    ({"groups": {"a": "plce"}}, 'explain, groups: a names "plce", which is neither a covariate of the design nor a '
     'feature of one; did you mean "place"?'),
    ({"kinds": ["uniq"]}, 'explain: kinds is ["uniq"]; it must be a list of "unique" and "maximal".'),
    ({"kinds": ["unique", "unique"]}, "each may occur once"),
    ({"kinds": "unique"}, 'explain: kinds is "unique"; it must be a list'),
    ({"order": ["place", "place"]}, "explain: order is"),
    ({"order": ["plac"]},
     'explain: order names "plac", which is not among the covariates of the design; did you mean "place"?'),
    ({"groups": {"a": "place"}, "order": ["place"]},
     'order names "place", which is not among the groups; allowed are a'),
    ({"models": {}}, "explain: models is empty"),
    ({"models": {"x": 3}}, "explain, models: x is 3; it must be a list of names of groups"),
    ({"models": {"x": ["speeed"]}}, 'explain, models: x names "speeed", which is not among the covariates'),
    ({"cv": 1}, "explain: cv is 1; it must be a whole number of at least 2, or a table"),
    ({"cv": {"n": 3}}, "explain, cv: epochs is missing"),
    ({"cv": {"epochs": "trial"}}, 'explain, cv: epochs names "trial", which is not among the epochs of data "rat"; did '
     'you mean "trials"?'),
    ({"cv": 2, "strengths": [0.1, 1]}, "explain: cv has 2 folds, and there are several strengths"),
    ({"strengths": [-1]}, "explain: strengths is [-1]; it must be a list of finite numbers of at least 0"),
    ({"level": 2}, "explain: level is 2; it must be a number between 0 and 1, or false"),
    ({"level": True}, "explain: level is true"),
    ({"null_strength": "best"}, 'explain: null_strength is "best"; it must be a finite number above 0, or one of "cho'),
    ({"null": {}}, 'explain, null: kind is missing; it must be one of "circular_shift", "linear_shift".'),
    ({"null": {"kind": "circular"}}, 'explain, null: kind is "circular"; did you mean "circular_shift"?'),
    ({"null": {"kind": "circular_shift", "largest": 3}}, "explain, null: largest is not known here"),
    ({"null": {"kind": "circular_shift", "within": "laps"}}, 'explain, null: within names "laps", which is not among'),
    ({"null": {"kind": "circular_shift", "n": 0}}, "explain, null: n is 0; it must be a whole number of at least 1."),
    ({"null": {"kind": "linear_shift"}}, "explain, null: largest is missing"),
    ({"null": {"kind": "linear_shift", "largest": 50}}, "n is 100, more than there are shifts of whole bins up to 50"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_tables_say_what_is_wrong(folder, asked, message):
    with pytest.raises(ManifestError) as caught:
        read_manifest(manifest_of(folder, asked))
    (found,) = caught.value.problems
    assert found.startswith('m.json: model "m"') and message in found, found


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"estimator": "MultinomialGLM"}, "explain is given, which MultinomialGLM does not support"),
        ({"parameters": {"regularizer": "GroupLasso"}}, 'explain: regularizer is "GroupLasso"; explain takes one of'),
        ({"grid": {"regularizer": ["Ridge", "GroupLasso"]}}, 'explain: regularizer is "GroupLasso"'),
    ],
)
def test_manifest_refuses_models_that_cannot_be_explained(folder, model, message):
    with pytest.raises(ManifestError) as caught:
        read_manifest(manifest_of(folder, {}, **{"parameters": {}, **model}))
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


def test_covariate_may_have_a_name_that_groups_may_not_have(folder):
    design = DESIGN | {"covariates": [{**PLACE, "name": "full"}]}
    with pytest.raises(ManifestError, match='explain: groups is missing; a covariate is called "full"'):
        read_manifest(manifest_of(folder, {}, design=design))
    assert read_manifest(manifest_of(folder, {"groups": {"place": "full"}}, design=design)).tasks()


def test_matrices_have_no_epochs(tmp_path, rng):
    np.savez(tmp_path / "a.npz", X=rng.normal(size=(30, 2)), y=rng.poisson(1.0, (30, 2)))
    data = [{"name": "a", "files": "a.npz", "X": "X", "y": "y"}]
    model = {"name": "m", "estimator": "PopulationGLM", "explain": {"cv": {"epochs": "trials"}, "order": ["x0"]}}
    (tmp_path / "m.json").write_text(json.dumps({"data": data, "model": [model]}))
    with pytest.raises(ManifestError) as caught:
        read_manifest(tmp_path / "m.json")
    assert caught.value.problems == [f'{AT}, cv: epochs names "trials", but the data "a" are matrices, without epochs.']


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"groups": {"a": "x9"}},
            'explain: group a names "x9", which is neither a covariate nor a feature; allowed are x0',
        ),
        ({"groups": {"a": "y*"}}, 'explain: group a names "y*", which no feature matches'),
        ({"cv": {"epochs": "trials"}}, 'explain: cv names the epochs "trials", but matrices have no times.'),
    ],
)
def test_problems_visible_only_in_the_data_fail_in_the_fit(make_batch, asked, said):
    batch = make_batch(SESSIONS[:1], [{"name": "m", **MODEL, "explain": asked}])
    summary = run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
    assert not summary.ok and said in json.loads(next((batch.out / "failed").iterdir()).read_text())["error"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cv": {"epochs": "trials", "n": 30}}, 'cv has 30 folds of the epochs "trials", of which 20 have bins'),
        ({"groups": {"a": "place_9"}}, 'group a names "place_9", which is neither a covariate nor a feature; did'),
    ],
)
def test_problems_visible_only_in_the_recording_fail_in_the_fit(folder, asked, said):
    path = manifest_of(folder, asked)
    (task,) = read_manifest(path).tasks()
    receipt = run_one(task, folder / "failing")
    assert receipt.state == "failed" and said in receipt.error


def test_the_documentation_has_every_key():
    page = (ROOT / "docs" / "how_to" / "manifest.md").read_text()
    section = page[page.index("## `[model.explain]`") :]
    tables = [_explained._KEYS, _scores._CV, *_explained._NULL.values()]
    keys = {key for table in tables for key in table} - {"epochs"}
    assert not [key for key in keys if f"`{key}`" not in section] and "epochs =" in section
    for name in (*_explained.KINDS, *_explained.NULLS, *_explained.PENALTIES):
        assert f'`"{name}"`' in section
