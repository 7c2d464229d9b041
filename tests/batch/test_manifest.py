"""Manifests: tasks have stable names, and every problem is found with its table and key before anything runs."""

import copy
import json
import os
import random
import shutil
import string
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from glmfit.batch import ManifestError, Session, Task, load_session, read_manifest
from glmfit.batch import manifest as _manifest
from glmfit.batch import models as _models
from glmfit.batch import reading as _read_data
from glmfit.batch.models import ESTIMATORS, make_estimator
from glmfit.batch.sources import identity_of, stat_signature
from glmfit.design import schema

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "batch"

GOOD = """\
name = "test"
seed = 3

[[data]]
name = "track"
files = "track/*.npz"
spikes = { times = "st", unit = "su" }
signals.speed = { values = "v", times = "t" }
epochs.run = { start = "a", stop = "b" }

[[data]]
name = "sim"
files = ["sim/*.npz"]
X = "X"
y = "y"

[[model]]
name = "place"
estimator = "PopulationGLM"
data = ["track"]
[model.parameters]
tol = 1e-6
[model.grid]
regularizer_strength = [1e-3, 1e-4]
regularizer = ["Ridge", "Lasso"]
[model.design]
bin_s = 0.1
epochs = "run"
[[model.design.covariates]]
signal = "speed"
basis = { kind = "raised_cosine_log", n = 3, window_s = 0.5 }
[model.design.history]
basis = { kind = "raised_cosine_log", n = 2, window_s = 0.4 }

[[model]]
name = "plain"
estimator = "PopulationGLMCV"
data = ["sim"]
"""


@pytest.fixture
def folder(tmp_path, rng):
    """A folder with two recordings and a file of matrices."""
    (tmp_path / "track").mkdir()
    (tmp_path / "sim").mkdir()
    t = np.arange(0, 20, 0.05)
    for rat in (2, 1):
        spikes = np.sort(rng.uniform(0, 20, 60))
        arrays = {"st": spikes, "su": rng.integers(1, 4, 60), "v": rng.normal(size=len(t)), "t": t}
        np.savez(tmp_path / "track" / f"rat{rat}.npz", **arrays, a=np.array([0.0]), b=np.array([10.0]))
    np.savez(tmp_path / "sim" / "one.npz", X=rng.normal(size=(50, 3)), y=rng.poisson(1.0, (50, 2)))
    return tmp_path


def write(folder, text, name="batch.toml"):
    """Write a manifest."""
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def problems_of(folder, text, name="batch.toml"):
    """Problems found in a manifest."""
    with pytest.raises(ManifestError) as caught:
        read_manifest(write(folder, text, name))
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


# -- valid manifests


def test_tasks_are_ordered_by_session_and_then_by_model(folder):
    manifest = read_manifest(write(folder, GOOD))
    tasks = manifest.tasks()
    members = [
        f"place[regularizer_strength={s},regularizer={r}]" for s in ("0.001", "0.0001") for r in ("Ridge", "Lasso")
    ]
    expected = [(f"track/rat{rat}", member) for rat in (1, 2) for member in members] + [("sim/one", "plain")]
    assert [(task.session, task.model) for task in tasks] == expected
    assert len({task.key for task in tasks}) == len(tasks)
    assert all(len(task.key) == 20 and set(task.key) <= set(string.hexdigits.lower()) for task in tasks)
    spec = tasks[1].spec
    given = {"tol": 1e-6, "regularizer_strength": 1e-3, "regularizer": "Lasso"}
    assert spec["parameters"] == {"pad_shapes": True, **given}
    assert (spec["seed"], spec["precision"]) == (3, "single")
    assert (spec["design"]["partial_bins"], spec["design"]["target"]) == ("drop", "counts")
    assert spec["design"]["history"]["of"] == "all"
    assert manifest.name == "test" and len(manifest.digest) == 64
    assert all(Task.from_json(json.loads(json.dumps(task.to_json()))) == task for task in tasks)


def test_toml_and_json_give_the_same_tasks(folder):
    toml = read_manifest(write(folder, GOOD)).tasks()
    assert read_manifest(write(folder, json.dumps(tomllib.loads(GOOD)), "batch.json")).tasks() == toml


def test_keys_depend_on_everything_except_locations_and_names(folder):
    def keys(text=GOOD, at=folder):
        return [task.key for task in read_manifest(write(at, text)).tasks()]

    before = keys()
    shutil.copytree(folder, folder / "moved")
    assert keys(at=folder / "moved") == before
    assert keys(GOOD.replace('"place"', '"other"').replace('"track"', '"renamed"')) == before
    assert keys(GOOD.replace("tol = 1e-6", "tol = 0.000001")) == before
    for old, new in (("seed = 3", "seed = 4"), ("tol = 1e-6", "tol = 1e-5"), ("bin_s = 0.1", "bin_s = 0.05")):
        changed = keys(GOOD.replace(old, new))
        same = [a == b for a, b in zip(before, changed, strict=True)]
        assert not any(same[:-1]) and same[-1] == (old != "seed = 3")
    with np.load(folder / "track" / "rat1.npz") as file:
        arrays = dict(file)
    np.savez(folder / "track" / "rat1.npz", **{**arrays, "v": arrays["v"] + 1})
    changed = keys()
    assert not set(changed[:4]) & set(before) and changed[4:] == before[4:]


def test_the_key_of_a_fixed_task_never_changes(tmp_path):
    # If this fails, every result of every batch that was ever run would be computed again.
    (tmp_path / "a.npz").write_bytes(b"some bytes")
    text = """
        [[data]]
        name = "d"
        files = "a.npz"
        X = "X"
        y = "y"
        [[model]]
        name = "m"
        estimator = "PopulationGLM"
        parameters = { regularizer = "Lasso", regularizer_strength = 1.0, tol = 1e-7 }
    """
    (task,) = read_manifest(write(tmp_path, text)).tasks()
    assert task.key == "96e401f7f7a7efa99357"
    (task,) = read_manifest(write(tmp_path, text.replace("1.0", "1"))).tasks()
    assert task.key == "96e401f7f7a7efa99357"


def test_identities_may_come_from_a_cache(folder):
    manifest = read_manifest(write(folder, GOOD))
    asked = []
    tasks = manifest.tasks(lambda source: asked.append(source["path"]) or source["path"])
    assert [Path(path).name for path in asked] == ["rat1.npz", "rat2.npz", "one.npz"]  # once per session
    assert len({task.key for task in tasks}) == len(tasks)


def test_sessions_have_distinct_names(folder):
    for place in ("x/day1", "x/day2", "y/day1"):
        (folder / "deep" / place).mkdir(parents=True)
        shutil.copy(folder / "sim" / "one.npz", folder / "deep" / place / "s.npz")
    shutil.copy(folder / "sim" / "one.npz", folder / "deep" / "other.npz")
    text = GOOD.replace('["sim/*.npz"]', '["deep/**/*.npz", "deep/*.npz"]')
    names = list(read_manifest(write(folder, text)).data[1].sessions)
    assert names == ["sim/other", "sim/x/day1/s", "sim/day2/s", "sim/y/day1/s"]


def test_missing_data_fail_only_their_own_task(folder):
    before = read_manifest(write(folder, GOOD)).tasks()
    (folder / "track" / "rat0.npz").symlink_to(folder / "not_fetched.npz")
    manifest = read_manifest(write(folder, GOOD))
    (folder / "sim" / "one.npz").unlink()
    tasks = manifest.tasks()
    lost = [task for task in tasks if task.session in ("track/rat0", "sim/one")]
    assert [task for task in tasks if task not in lost] == before[:-1]
    assert len({task.key for task in tasks}) == len(tasks)
    for task in lost:
        with pytest.raises(FileNotFoundError, match=r"(rat0|one)\.npz does not exist"):
            load_session(task.spec["source"])


def test_signatures_detect_a_change_without_reading(folder):
    source = read_manifest(write(folder, GOOD)).tasks()[0].spec["source"]
    before = stat_signature(source)
    assert before == stat_signature(source) and json.loads(json.dumps(before)) == before
    os.utime(source["path"], ns=(1, 1))
    assert stat_signature(source) != before


def test_folders_of_zarr_are_identified_by_names_and_contents(tmp_path):
    source = {"kind": "matrices", "format": "zarr", "path": str(tmp_path / "s.zarr"), "X": "X", "y": "y"}
    (tmp_path / "s.zarr" / "c").mkdir(parents=True)
    (tmp_path / "s.zarr" / "c" / "0").write_bytes(b"0")
    first = identity_of(source)
    (tmp_path / "s.zarr" / "c" / "0").rename(tmp_path / "s.zarr" / "c" / "1")
    assert identity_of(source) != first
    shutil.copytree(tmp_path / "s.zarr", tmp_path / "t.zarr")
    assert identity_of({**source, "path": str(tmp_path / "t.zarr")}) == identity_of(source) != first
    assert identity_of({**source, "X": "Z"}) != identity_of(source)
    assert [name for name, *_ in stat_signature(source)] == ["c/1"]


# -- loaders

MODULE = """\
import numpy as np
from glmfit.batch import Session

def load(seed, n=20):
    rng = np.random.default_rng(seed)
    return Session(X=rng.normal(size=(n, 2)), y=rng.poisson(1.0, n))

def number():
    return 3

constant = 5
"""
OWN = """\
[[data]]
name = "own"
loader = "{module}:load"
arguments = [
    {{ seed = 1 }},
    {{ seed = 2, n = 30 }},
]
[[model]]
name = "m"
estimator = "PopulationGLM"
"""


@pytest.fixture
def module(tmp_path, request):
    """Name of a module with loaders, next to the manifest."""
    name = "loaders_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    (tmp_path / f"{name}.py").write_text(MODULE)
    before = list(sys.path)
    yield name
    assert sys.path == before
    sys.modules.pop(name, None)


def test_loaders_are_called_with_their_arguments(tmp_path, module):
    tasks = read_manifest(write(tmp_path, OWN.format(module=module))).tasks()
    assert [task.session for task in tasks] == ["own/seed=1", "own/seed=2,n=30"]
    assert [len(load_session(task.spec["source"]).matrices["X"]) for task in tasks] == [20, 30]
    assert stat_signature(tasks[0].spec["source"]) is None


def test_the_text_of_a_loaders_module_is_part_of_its_identity(tmp_path, module, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    manifest = read_manifest(write(tmp_path, OWN.format(module=module)))
    before = manifest.tasks()
    file = tmp_path / f"{module}.py"
    written = file.stat()
    file.write_text(MODULE.replace("20", "25"))
    os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))  # same second and length: Python sees no edit
    after = manifest.tasks()
    assert not {task.key for task in before} & {task.key for task in after}
    assert len(load_session(after[0].spec["source"]).matrices["X"]) == 25
    versioned = read_manifest(
        write(tmp_path, OWN.format(module=module).replace("arguments", 'version = "2"\narguments'))
    )
    assert not {task.key for task in after} & {task.key for task in versioned.tasks()}


def test_modules_of_the_same_name_next_to_different_manifests_are_distinct(tmp_path, module):
    other = tmp_path / "other"
    other.mkdir()
    (other / f"{module}.py").write_text(MODULE.replace("20", "27"))
    for folder, n in ((tmp_path, 20), (other, 27), (tmp_path, 20)):
        task = read_manifest(write(folder, OWN.format(module=module))).tasks()[0]
        assert len(load_session(task.spec["source"]).matrices["X"]) == n


def test_return_value_of_a_loader_is_checked(tmp_path, module):
    text = f'[[data]]\nname = "own"\nloader = "{module}:number"\n[[model]]\nname = "m"\nestimator = "PopulationGLM"\n'
    (task,) = read_manifest(write(tmp_path, text)).tasks()
    assert task.session == "own/0"
    with pytest.raises(TypeError, match=r"returned a int; it must return a glmfit.batch.Session"):
        load_session(task.spec["source"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (":load", ":lod", "has no function of that name"),
        (":load", ":constant", "has a int there"),
        ("loaders_", "no_loaders_", "could not be imported (ModuleNotFoundError: No module named"),
        (":load", "", 'it must be a string like "package.module:function"'),
        (
            "seed = 2",
            "sead = 2",
            "do not fit load(seed, n=20): missing a required argument: 'seed'; did you mean \"seed\"?",
        ),
        ("seed = 2, n = 30", "seed = 1", "are the same as those of session 1"),
        ("seed = 1", "seed = nan", "must be made of strings, finite numbers"),
        ("arguments", "argument", 'did you mean "arguments"?'),
    ],
)
def test_manifest_refuses_loaders_that_cannot_be_called(tmp_path, module, old, new, message):
    found = problems_of(tmp_path, OWN.format(module=module).replace(old, new))
    assert any(text.startswith('batch.toml: data "own"') and message in text for text in found), found


def test_error_in_the_module_of_a_loader_is_reported(tmp_path, module):
    (tmp_path / f"{module}.py").write_text("1 / 0\n")
    (found,) = problems_of(tmp_path, OWN.format(module=module))
    assert "could not be imported (ZeroDivisionError: division by zero)" in found


# -- invalid manifests

BASIS = 'basis = { kind = "raised_cosine_log", n = 3, window_s = 0.5 }'
CV = 'estimator = "PopulationGLMCV"'
SIM = 'data = ["sim"]'
# Text of GOOD, its replacement, and the start of the problem from the name of its table on.
BAD = [
    ("seed = 3", "sead = 3", 'sead is not known here; did you mean "seed"?'),
    ("seed = 3", "seed = -1", "seed is -1; it must be a whole number of at least 0."),
    ("seed = 3", "seed = true", "seed is true; it must be a whole number"),
    ("seed = 3", 'precision = "half"', 'precision is "half"; it must be one of "single", "double".'),
    ("seed = 3", "options = { pad_shape = true }", 'options: pad_shape is not known here; did you mean "pad'),
    ("seed = 3", "options = 3", "options is 3; it must be a table"),
    ('name = "track"\n', "", "data 1: name is missing; it must be a name of letters"),
    ('name = "track"', 'name = "tr ack"', 'data "tr ack": name is "tr ack"; it must be a name of letters, digits'),
    ('name = "sim"', 'name = "track"', 'data 2: the name "track" is already that of data 1'),
    ('name = "plain"', 'name = "place"', 'model 2: the name "place" is already that of model 1'),
    ("track/*.npz", "trick/*.npz", 'data "track": files: nothing matches "trick/*.npz" in '),
    ('files = "track/*.npz"\n', "", 'data "track": files is missing'),
    ("track/*.npz", "batch.toml", 'data "track": the format of batch.toml is not known'),
    ('["sim/*.npz"]', "[3]", 'data "sim": files is [3]; it must be a non-empty string, or a list of them.'),
    ('spikes = { times = "st", unit = "su" }\n', "",
     'data "track": spikes is missing; for npz it must name two arrays'),
    ('unit = "su"', 'units = "su"', 'data "track", spikes: units is not known here; did you mean "unit"?'),
    ('values = "v", ', "", 'data "track", signals, speed: values is missing'),
    ("signals.speed", "signals.counts", 'data "track", signals: "counts" stands for the spikes'),
    ('epochs.run = { start = "a", stop = "b" }', "epochs.run = 3",
     'data "track", epochs: run is 3; it must be a table.'),
    ('y = "y"', 'z = "y"', 'data "sim": z is not known here'),
    ('estimator = "PopulationGLM"\n', 'estimator = "PopulationGlm"\n',
     'model "place": estimator is "PopulationGlm"; did you mean "PopulationGLM"?'),
    ('data = ["track"]', 'data = ["trac"]',
     'model "place": data names "trac", which is not a [[data]] name; did you mean "track"?'),
    ('data = ["track"]', "data = []", 'model "place": data is []; it must be a list of names of data.'),
    ('data = ["track"]', 'data = "track"', 'model "place": data is "track"; it must be a list of names of data.'),
    ("tol = 1e-6", "tol = -1", 'model "place", parameters: tol is -1; it must be a finite number above 0.'),
    ("tol = 1e-6", "toll = 1",
     'model "place", parameters: toll is not a parameter of PopulationGLM; did you mean "tol"?'),
    ("tol = 1e-6", "tol = inf",
     'model "place", parameters: tol is Infinity; it must be made of strings, finite numbers, true and false.'),
    ("tol = 1e-6", "tol = 2026-01-01", 'model "place", parameters: tol is 2026-01-01; it must be made of'),
    ("tol = 1e-6", "max_epochs = 1.5", 'model "place", parameters: max_epochs is 1.5; it must be a whole number'),
    ("tol = 1e-6", 'solver_name = "Sago"', 'model "place", parameters: solver_name is \'Sago\'; it must be'),
    ("tol = 1e-6", 'solver_name = "SAGA"\nsolver_kwargs = { batch = 3 }',
     'model "place", parameters: solver_kwargs of SAGA may be'),
    ("tol = 1e-6", 'solver_name = "BoundMajorization"',
     'model "place", parameters: solver_name is \'BoundMajorization\', which version 0.2 no longer has for population'),
    ("tol = 1e-6", 'inverse_link_function = "log"', 'model "place", parameters: inverse_link_function'),
    ("tol = 1e-6", 'observation_model = "Normal"', 'model "place", parameters: observation_model is \'Normal\''),
    ("tol = 1e-6", 'observation_model = "NegativeBinomial"\ndispersion = -1.0',
     'model "place", parameters: dispersion is -1.0; it must be'),
    ("tol = 1e-6", "dispersion = 1.0", 'model "place", parameters: dispersion is 1.0, but only observation_model='),
    ("tol = 1e-6", "random_state = 3", 'model "place", parameters: random_state is set by the manifest\'s seed.'),
    ("tol = 1e-6", "verbose = true", 'model "place", parameters: verbose is not for batches'),
    ("tol = 1e-6", "pad_shapes = true",
     'model "place", parameters: pad_shapes has no effect since version 0.2; remove it.'),
    ("tol = 1e-6", "regularizer_strength = 1",
     'model "place", grid: regularizer_strength is also given in the parameters'),
    ("strength = [1e-3, 1e-4]", "strength = 1e-3",
     'model "place", grid: regularizer_strength is 0.001; it must be a list of values to try'),
    ("strength = [1e-3, 1e-4]", "strength = []",
     'model "place", grid: regularizer_strength is []; it must be a list of values to try'),
    ("strength = [1e-3, 1e-4]", "strength = [1, 1.0]",
     'model "place", grid: regularizer_strength is [1, 1.0]; each value may occur once'),
    ("strength = [1e-3, 1e-4]", "strength = [1e-3, -1]", 'model "place", grid: regularizer_strength is -1'),
    ("regularizer = [", "regulariser = [",
     'model "place", grid: regulariser is not a parameter of PopulationGLM; did you mean "regularizer"?'),
    ('"Ridge", "Lasso"', '"Ridge", "Lassoo"', 'model "place", grid: regularizer is \'Lassoo\''),
    ("bin_s = 0.1\n", "", 'model "place", design: bin_s is missing; it must be a number of seconds'),
    ("bin_s = 0.1", "bin_s = 0",
     'model "place", design: bin_s is 0; it must be a number of seconds of at least 1e-06.'),
    ("bin_s = 0.1", "bins = 0.1", 'model "place", design: bins is not known here; did you mean "bin_s"?'),
    ('epochs = "run"', 'epochs = "rum"',
     'model "place", design: epochs names "rum", which is not among the epochs of data "track"'),
    ('epochs = "run"', "epochs = [[0, 2], [1, 3]]",
     'model "place", design: epochs has [1, 3]; starts come before stops, and epochs may not overlap'),
    ('epochs = "run"', "epochs = [[2, 0]]", 'model "place", design: epochs has [2, 0]'),
    ('epochs = "run"', "epochs = [[2]]",
     'model "place", design: epochs is [[2]]; it must be a non-empty string, or a list of [start, stop] in seco'),
    ('epochs = "run"', 'partial_bins = "keep"',
     'model "place", design: partial_bins is "keep"; it must be one of "drop", "exposure".'),
    ('epochs = "run"', 'target = "speed"',
     'model "place", design: target is "speed"; PopulationGLM is fitted to "counts"'),
    ('signal = "speed"', 'signal = "spede"',
     'model "place", design, covariates 1: signal names "spede", which is not among the signals'),
    ('signal = "speed"', 'signal = "counts"',
     'model "place", design, covariates 1: signal is "counts", which is the target; for the past of spikes use [model'),
    ('signal = "speed"\n', "", 'model "place", design, covariates 1: signal is missing'),
    ('signal = "speed"\n', 'signal = "speed"\nresample = "mean"\nmax_gap_s = 1\n',
     'model "place", design, covariates 1: max_gap_s does not apply to means'),
    ('signal = "speed"\n', 'signal = "speed"\nresample = "median"\n',
     'model "place", design, covariates 1: resample is "median"; it must be one of "mean", "nearest", "linear'),
    ('signal = "speed"\n', 'signal = "speed"\nlags = [1]\n',
     'model "place", design, covariates 1: basis and lags are given; a covariate takes one'),
    ('signal = "speed"\n', 'signal = "speed"\nname = "history"\n',
     'model "place", design, covariates "history": its features would be called "history" like those of the spike h'),
    ('"raised_cosine_log", n = 3', '"raised_cosine", n = 3',
     'model "place", design, covariates 1, basis: kind is "raised_cosine"; did you mean "raised_cos'),
    ('"raised_cosine_log", n = 3', '"bspline", n = 3',
     'model "place", design, covariates 1, basis: window_s is not known here'),
    ("n = 3, window_s = 0.5", "n = 3, window_s = 0.2",
     'model "place", design, covariates 1, basis: window_s is 0.2, 2 bins of 0.1 s; 3 kernels need as many.'),
    ("n = 3, window_s = 0.5", "n = 3, window_s = 0.01",
     'model "place", design, covariates 1, basis: window_s is 0.01, 0 bins of 0.1 s'),
    ('"raised_cosine_log", n = 2', '"bspline", n = 2',
     'model "place", design, history, basis: kind is "bspline"; allowed are raised'),
    (BASIS, 'basis = { kind = "bspline", n = 3, range = [0, 1] }',
     'model "place", design, covariates 1, basis: n is 3, order 4; n must be at least the order.'),
    (BASIS, 'basis = { kind = "bspline", n = 5, range = [1, 0] }',
     'model "place", design, covariates 1, basis: range is [1, 0]; it must go from low to high.'),
    (BASIS, 'basis = { kind = "bspline", n = 5 }',
     'model "place", design, covariates 1, basis: range is missing; it must be two numbers.'),
    (BASIS, "lags_s = [0.1, 0.12]", 'model "place", design, covariates 1: lags_s is [0.1, 0.12]; each lag may occ'),
    ('times = "st"', 'times = "spiketimes"', 'data "track", spikes: times: no file has an array "spiketimes"'),
    ('values = "v"', 'values = "vv"', 'data "track", signals, speed: values: no file has an array "vv"'),
    ('start = "a"', 'start = "begin"', 'data "track", epochs, run: start: no file has an array "begin"'),
    ('y = "y"', 'y = "Y"', 'data "sim": y: no file has an array "Y"; did you mean "y"?'),
    (SIM, 'data = ["sim"]\n[model.design]\nbin_s = 0.1',
     'model "plain": design is given, but the data "sim" are matrices, which'),
    (SIM, 'data = ["sim", "track"]', 'model "plain": design is missing; the data "track" are recordings.'),
    (SIM, 'data = ["sim"]\n[[model]]\nname = "again"\nestimator = "PopulationGLMCV"\ndata = ["sim"]',
     'model "again": "again" is the same as model "plain" for data "sim"'),
    (CV, 'estimator = "PopulationGLMCV"\nparameters.strengths = [1]',
     'model "plain", parameters: strengths is [1]; cross-validation needs at least two'),
    (CV, 'estimator = "PopulationGLMCV"\nparameters.rule = "worst"', 'model "plain", parameters: rule is \'worst\''),
    (CV, 'estimator = "PopulationGAM"\nparameters.strengths = "marginal-likelyhood"',
     'model "plain", parameters: strengths is \'marginal-likelyhood\'; did you mean "marginal-likelihood"? Or give'),
    (CV, 'estimator = "PopulationGAM"\nparameters.strengths = { a = -1 }',
     "model \"plain\", parameters: strengths of 'a' is -1; strengths must be finite and >= 0."),
    (CV, 'estimator = "PopulationGAM"\nparameters.terms = { a = 3 }',
     'model "plain", parameters: terms has a = 3; it must be a list of numbers or names of features.'),
    (CV, 'estimator = "PopulationGAM"\nparameters.regularizer = "Ridge"',
     'model "plain", parameters: regularizer is not a parameter of PopulationGAM'),
    (CV, 'estimator = "SoftmaxGLM"\nparameters.step = -1', 'model "plain", parameters: step is -1'),
    (CV, 'estimator = "SoftmaxGLM"\nparameters.regularizer = "Lassoo"',
     'model "plain", parameters: regularizer is \'Lassoo\'; it must be one of \'UnRegularized\''),
    (CV, 'estimator = "SoftmaxGLM"\nparameters.regularizer = "GroupLasso"',
     'model "plain", parameters: regularizer is \'GroupLasso\', but groups is None'),
    (CV, 'estimator = "SoftmaxGLM"\nparameters = { regularizer = "Lasso", solver_name = "UMax" }',
     'model "plain", parameters: solver_name is \'UMax\', and the penalty has kinks; use "auto"'),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[f"{i}" for i in range(len(BAD))])
def test_every_problem_is_named_with_its_table_and_key(folder, old, new, message):
    text = GOOD.replace(old, new, 1) + "\n"
    assert old in GOOD
    found = problems_of(folder, text)
    assert all(problem.startswith("batch.toml: ") for problem in found)
    assert any(problem.startswith(f"batch.toml: {message}") for problem in found), found


RANDOM = [None, True, -1, 0, 2.5, 1e300, "", "x y", "track", [], [1], [[1]], ["a", 2], {}, {"a": 1}, [{}], [[0, 1], 2]]


@pytest.mark.parametrize("seed", range(10))
def test_random_manifests_raise_nothing_but_manifest_errors(folder, seed):
    draw = random.Random(seed)
    for _ in range(20):
        document = tomllib.loads(GOOD)
        for _ in range(draw.randint(1, 3)):
            *path, key = draw.choice(list(paths_of(document)))
            holder = document
            for part in path:
                holder = holder[part]
            if draw.random() < 0.3:
                del holder[key]
            elif draw.random() < 0.2 and isinstance(holder, dict):
                holder[draw.choice(["loader", "lags", "target", "X", "of", "columns"])] = copy.deepcopy(
                    draw.choice(RANDOM)
                )
            else:
                holder[key] = copy.deepcopy(draw.choice(RANDOM))
        try:
            read_manifest(write(folder, json.dumps(document, indent=1), "batch.json"))
        except ManifestError as error:
            assert all(problem.startswith("batch.json: ") for problem in error.problems), document


def test_all_problems_are_reported_together_and_once(folder):
    text = GOOD
    for old, new in (
        ("seed = 3", "sead = 3"),
        ("track/*", "trick/*"),
        ("tol = 1e-6", "tol = -1"),
        ('y = "y"', "y = 1"),
    ):
        text = text.replace(old, new)
    found = problems_of(folder, text)
    for named in ("sead", "trick", "parameters: tol is -1", 'data "sim": y is 1'):
        assert any(named in problem for problem in found), found
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("text", "name", "start"),
    [
        ("seed = 1\nname = \n", "b.toml", "b.toml, line 2: "),
        ('seed = 1\nname = "x', "b.toml", "b.toml, line 2: "),
        ("seed = 1\n\nseed = 2\n", "b.toml", "b.toml, line 3: "),
        ('{\n "seed": 1,\n "name": }', "b.json", "b.json, line 3: "),
        ('{\n "seed": NaN}', "b.json", "b.json: NaN is not JSON"),
        ("[1, 2]", "b.json", "b.json: the document is a list"),
        ("seed: 1", "b.yaml", 'b.yaml: a manifest is a .toml or a .json file, not ".yaml"'),
        ("", "b.toml", "b.toml: there is no data; a manifest needs at least one [[data]]."),
        ("data = 3\nmodel = 4", "b.toml", "b.toml: data is 3; it must be an array of tables"),
    ],
)
def test_errors_of_unreadable_documents_say_where(tmp_path, text, name, start):
    assert problems_of(tmp_path, text, name)[0].startswith(start)


def test_files_that_are_missing_or_not_utf8_are_errors(tmp_path):
    (tmp_path / "b.toml").write_bytes(b"seed = 1\nname = '\xff'\n")
    with pytest.raises(ManifestError, match=r"b.toml, line 2: the file is not UTF-8"):
        read_manifest(tmp_path / "b.toml")
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path / "none.toml")


def test_duplicate_keys_in_json_are_found(folder):
    text = json.dumps(tomllib.loads(GOOD), indent=1).replace('"seed": 3', '"seed": 3,\n "seed": 4')
    (found,) = problems_of(folder, text, "batch.json")
    assert found.startswith('batch.json: seed occurs 2 times in one table, {"name": "test", "seed": 4, ')


@pytest.mark.parametrize("depth", [95, 97, 400, 800, 5000])
@pytest.mark.parametrize(
    "write_nested",
    [
        lambda depth: ("b.json", '{"seed": ' + "[" * depth + "]" * depth + "}"),
        lambda depth: ("b.json", '{"seed": ' + '{"a": ' * depth + "1" + "}" * depth + "}"),
        lambda depth: ("b.toml", "seed = " + "[" * depth + "]" * depth),
        lambda depth: ("b.toml", "seed" + ".a" * depth + " = 1"),
    ],
)
def test_deeply_nested_tables_and_arrays_are_refused(tmp_path, write_nested, depth):
    name, text = write_nested(depth)
    found = problems_of(tmp_path, text, name)
    deep = f"{name}: tables and arrays are nested more than 100 deep."
    assert found == [deep] if depth > 100 else found[0].startswith(f"{name}: seed is "), found


def test_softmax_needs_labels_and_no_exposure(folder):
    text = (
        GOOD.replace('"PopulationGLM"\n', '"SoftmaxGLM"\n').replace("[1e-3, 1e-4]", "[1e-3]").replace(', "Lasso"', "")
    )
    (found,) = problems_of(folder, text)
    assert "target is missing; SoftmaxGLM needs the name of a signal" in found
    text = text.replace('epochs = "run"', 'epochs = "run"\ntarget = "speed"')
    assert read_manifest(write(folder, text)).tasks()
    text = text.replace('target = "speed"', 'target = "speed"\npartial_bins = "exposure"')
    (found,) = problems_of(folder, text)
    assert 'partial_bins is "exposure", which SoftmaxGLM does not support' in found
    text = text.replace('\npartial_bins = "exposure"', "").replace(
        "[model.design.history]", '[model.design.history]\nof = "own"'
    )
    (found,) = problems_of(folder, text)
    assert 'of is "own", which SoftmaxGLM cannot fit' in found


SMOOTH = (
    GOOD.replace('"PopulationGLM"', '"PopulationGAM"')
    .replace('[model.grid]\nregularizer_strength = [1e-3, 1e-4]\nregularizer = ["Ridge", "Lasso"]\n', "")
    .replace("[model.design.history]", """\
[[model.design.products]]
name = "map"
isotropic = true
factors = [
    { signal = "speed", basis = { kind = "bspline", n = 5, range = [0, 1] } },
    { signal = "speed", basis = { kind = "cyclic_bspline", n = 5, range = [0, 1] } },
]
[model.design.history]
of = "others"
""")
)  # fmt: skip
BAD_TERMS = [
    ("of =", "off =", 'design, history: off is not known here; did you mean "of"?'),
    ("n = 2, window_s = 0.4", "n = 2, penalty_order = 2, window_s = 0.4",
     "design, history, basis: penalty_order is 2; it must be below n, 2."),
    ("n = 5, range", "n = 5, order = 3, penalty_order = 3, range",
     "design, products \"map\", factors 1, basis: penalty_order is 3; it must be below order, 3."),
    ("n = 5, range", "n = 5, penalty_order = 1, range",
     'design, products "map", factors 1: its basis has a penalty_order; an isotropic product has its own'),
    ("n = 5, range", "n = 5, order = 2, range",
     'design, products "map", factors 1: its basis has order 2; in an isotropic product it must be 3 or more'),
    ('kind = "cyclic_bspline"', 'kind = "fourier"',
     'design, products "map", factors 2: its basis is "fourier"; in an isotropic product it must be "bspline"'),
    ('"cyclic_bspline", n', '"cyclic_bspline", clamped = true, n',
     'design, products "map", factors 2, basis: clamped is not known here'),
    ('{ signal = "speed", basis = { kind = "cy', '{ basis = { kind = "cy',
     'design, products "map", factors 2: signal is missing'),
    ('{ signal = "speed", basis = { kind = "cy', '{ signal = "sped", basis = { kind = "cy',
     'design, products "map", factors 2: signal names "sped", which is not among the signals'),
    ('{ signal = "speed", basis = { kind = "cy', '{ lags = [1], signal = "speed", basis = { kind = "cy',
     'design, products "map", factors 2: lags is not known here'),
    ('name = "map"', 'name = "speed"', 'design, products "speed": its features would be called "speed" like those of'),
    ('name = "map"\n', "", "design, products 1: name is missing"),
    ('signal = "speed"\n', 'signal = "speed"\nridge = true\n',
     "design, covariates 1: ridge is given with a basis, whose penalty is that of its penalty_order"),
    ('signal = "speed"\n', 'signal = "speed"\nstandardize = true\n',
     "design, covariates 1: standardize is true; PopulationGAM takes the functions of a basis as they are."),
    ("tol = 1e-6", "terms = { a = [1] }", "parameters: terms is made from the design: remove it."),
    ("tol = 1e-6", "feature_mask = 1", "parameters: feature_mask is made from the design: remove it."),
    ('"PopulationGAM"', '"PopulationGLM"',
     'design, products "map": isotropic is given, which PopulationGLM does not support; it is for PopulationGAM.'),
    ('"PopulationGAM"', '"PopulationGLMCV"', 'design, history: of is "others", which PopulationGLMCV cannot fit'),
    ("[model.design.history]", "[model.explain]\n[model.design.history]",
     "explain is given, which PopulationGAM does not support"),
]  # fmt: skip


def test_terms_of_a_manifest_are_in_its_tasks(folder):
    design = read_manifest(write(folder, SMOOTH)).tasks()[0].spec["design"]
    assert [len(product["factors"]) for product in design["products"]] == [2] and design["history"]["of"] == "others"
    explained = (
        SMOOTH.replace("PopulationGAM", "PopulationGLM").replace("isotropic = true\n", "").replace("others", "all")
    )
    explained = explained.replace("[model.design.history]", '[model.explain.groups]\nm = "map"\n[model.design.history]')
    assert read_manifest(write(folder, explained)).tasks()[0].spec["explain"]["groups"] == {"m": ["map"]}


@pytest.mark.parametrize(("old", "new", "message"), BAD_TERMS, ids=[f"{i}" for i in range(len(BAD_TERMS))])
def test_every_problem_of_terms_is_named_with_its_table_and_key(folder, old, new, message):
    assert old in SMOOTH
    found = problems_of(folder, SMOOTH.replace(old, new, 1))
    assert any(problem.startswith(f'batch.toml: model "place", {message}') for problem in found) or any(
        problem.startswith(f'batch.toml: model "place": {message}') for problem in found
    ), found


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_estimators_are_made_from_their_spec(name):
    model = make_estimator({"estimator": name, "parameters": {"tol": 1e-4}, "seed": 7})
    assert (type(model).__name__, model.tol, model.random_state) == (name, 1e-4, 7)


def test_pair_means_strength_and_ratio_of_the_elastic_net():
    parameters = {"regularizer": "ElasticNet", "regularizer_strength": [0.1, 0.9]}
    assert make_estimator({"estimator": "PopulationGLM", "parameters": parameters, "seed": 0}).regularizer_strength == (
        0.1,
        0.9,
    )


def test_importing_batch_stays_light():
    heavy = ["pynapple", "numba", "h5py", "pynwb", "zarr", "xarray", "dask", "distributed", "jaxopt", "matplotlib"]
    code = f"import sys, glmfit.batch; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def children(value, path):
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    return [((*path, key), entry) for key, entry in entries]


def paths_of(value, path=()):
    for place, entry in children(value, path):
        yield place
        if isinstance(entry, dict | list):
            yield from paths_of(entry, place)


# -- the examples and the documentation


def test_the_documentation_has_every_key():
    page = (ROOT / "docs" / "how_to" / "manifest.md").read_text()
    tables = [_manifest._KEYS, _read_data._RECORDING, _read_data._MATRICES, _read_data._LOADER, _models._KEYS]
    tables += [schema._KEYS, schema._COVARIATE, schema._PRODUCT, schema._VALUE_BASIS, schema._TIME_BASIS]
    keys = {key for table in tables for key in table} - {"model"}
    assert not [key for key in keys if f"`{key}`" not in page and f"[[{key}]]" not in page and key != "options"]
    for name in (*schema.VALUE_BASES, *schema.TIME_BASES, *schema.RESAMPLE, *ESTIMATORS):
        assert f'`"{name}"`' in page


def test_the_examples_can_be_read(shared_data):
    for name, n_tasks in (("linear_track", 3), ("smooth_maps", 1)):
        manifest = read_manifest(EXAMPLES / f"{name}.toml")
        assert len(manifest.tasks(lambda source: source["path"])) == n_tasks


def test_simulated_sessions_differ_in_shape():
    tasks = read_manifest(EXAMPLES / "simulated.toml").tasks()
    sessions = [load_session(task.spec["source"]) for task in tasks[:4:2]]
    assert all(isinstance(session, Session) for session in sessions)
    assert len({session.matrices["y"].shape for session in sessions}) == 2
