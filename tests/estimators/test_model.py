"""Model files: complete or absent; any other file raises an error that names it."""

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from glmfit import MultinomialGLM, PopulationGLM, PopulationGLMCV, ResponseModel, SoftmaxGLM, Status
from glmfit.files import load_npz, save_npz

ROOT = Path(__file__).resolve().parents[2]
OLD = ROOT / "tests" / "files" / "0.1"  # written by version 0.1, with its predictions in expected.npz
OLD_CLASSES = {
    "population": PopulationGLM,
    "population_cv": PopulationGLMCV,
    "softmax": SoftmaxGLM,
    "softmax_objects": SoftmaxGLM,
    "multinomial": MultinomialGLM,
    "response": ResponseModel,
}


def archive(path, header, **members):
    """An npz file with raw bytes for members; the header is text."""
    buffer = io.BytesIO()
    np.save(buffer, np.frombuffer(header.encode(), np.uint8))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, raw in {"header": buffer.getvalue(), **members}.items():
            file.writestr(f"{name}.npy", raw)
    return path


def npy(words: str) -> bytes:
    """An array that has only a header, with arbitrary text in it."""
    return b"\x93NUMPY\x01\x00" + (len(words) + 1).to_bytes(2, "little") + words.encode() + b"\n"


OURS = json.dumps({"format": "glmfit/1"})


@pytest.mark.parametrize(
    ("header", "member"),
    [
        pytest.param(OURS, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,)}"), id="huge"),
        pytest.param(
            OURS, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3"), id="a bracket that is not closed"
        ),
        pytest.param(OURS, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3,)) }"), id="a bracket too many"),
        pytest.param(
            "[" * 200_000 + "]" * 200_000, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (0,)}"), id="deep"
        ),
    ],
)
def test_a_crafted_file_raises_an_error_that_names_it(tmp_path, header, member):
    path = archive(tmp_path / "model.npz", header, coef=member)
    for load in (load_npz, PopulationGLM.load):
        with pytest.raises(ValueError, match=r"model\.npz is not a model saved by glmfit"):
            load(path)


def test_parameters_nested_too_deeply_are_refused(tmp_path):
    header = {"format": "glmfit/1", "class": "PopulationGLM", "parameters": {"tol": 0}}
    header = json.dumps(header).replace("0", "[" * 700 + "]" * 700)
    path = archive(tmp_path / "m.npz", header)
    with pytest.raises(ValueError, match=r"m\.npz is not a complete PopulationGLM"):
        PopulationGLM.load(path)


@pytest.mark.parametrize("name", ["population", "softmax"])
@pytest.mark.parametrize(
    ("what", "change"),
    [("coef", lambda a: a[..., :-1]), ("coef", lambda a: a.astype(str)), ("intercept", lambda a: a[None])],
)
def test_coefficients_of_the_wrong_shape_or_type_are_refused_when_loading(tmp_path, name, what, change):
    header, arrays = load_npz(OLD / f"{name}.npz")
    path = save_npz(tmp_path / "changed", header, {**arrays, what: change(arrays[what])})
    with pytest.raises(ValueError, match=f"changed.npz is not a complete {OLD_CLASSES[name].__name__}"):
        OLD_CLASSES[name].load(path)


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of that kind")
def test_exceeding_a_file_size_limit_raises_an_error_that_names_the_file(tmp_path):
    code = f"""
import resource, sys
sys.path.insert(0, {str(ROOT)!r})
import numpy as np
from glmfit.files import save_npz
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    save_npz("model.npz", {{}}, {{"coef": np.random.default_rng(0).normal(size=1000)}})
except OSError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "too large" in done.stdout and "model.npz" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
@pytest.mark.parametrize("name", OLD_CLASSES)
def test_a_file_of_version_0_1_survives_loading_and_saving(tmp_path, name):
    X = np.linspace(-1, 1, 12).reshape(4, 3)
    predict = {
        SoftmaxGLM: lambda m: m.predict_proba(X),
        ResponseModel: lambda m: m.predict(neuron_features=X),
    }.get(OLD_CLASSES[name], lambda m: m.predict(X))
    with np.load(OLD / "expected.npz") as expected:
        there = expected[name]
    model = OLD_CLASSES[name].load(OLD / f"{name}.npz")
    for again in (model, OLD_CLASSES[name].load(model.save(tmp_path / "again"))):
        np.testing.assert_allclose(predict(again), there, rtol=1e-14)
        assert str(again.report_) == str(model.report_)
        assert set(again.report_.to_frame()["status"]) <= {status.label for status in Status}
    if name == "softmax":  # a stream continues
        model.partial_fit(X, np.array(list("abca")))
    (old, arrays), (new, saved) = load_npz(OLD / f"{name}.npz"), load_npz(tmp_path / "again.npz")
    assert arrays.keys() == saved.keys() and old["report"].keys() <= new["report"].keys()


def test_slices_survive_saving(tmp_path, rng):
    X, y = rng.normal(size=(60, 4)), rng.integers(0, 3, 60)
    groups = {"a": slice(0, 2), "b": [2, 3]}
    model = SoftmaxGLM(regularizer="GroupLasso", regularizer_strength=1e-2, groups=groups).fit(X, y)
    model.save(tmp_path / "model.npz")
    assert SoftmaxGLM.load(tmp_path / "model.npz").groups == groups
