"""Ranges of bases that no session's values are in are found before anything is fitted."""

import json

import numpy as np
import pytest

from glmfit.batch import ManifestError, run
from glmfit.batch.manifest import read_manifest
from glmfit.batch.plan import plan


def write(folder, scale=(1.0, 1.0), span=(0, 100), columns=None, basis=None, **changes):
    """Two sessions whose x is between 0 and 100 times a scale, y a tenth of it, and a manifest."""
    rng = np.random.default_rng(0)
    for k, factor in enumerate(scale):
        t = np.arange(0, 20, 0.02)
        x = factor * 50 * (1 + np.sin(t))
        spikes = np.sort(rng.uniform(0, 20, 200))
        np.savez(folder / f"{k}.npz", times=spikes, unit=np.zeros(200, int), t=t, place=np.stack([x, x / 10], axis=1))
    source = {
        "name": "track", "files": "*.npz", "spikes": {"times": "times", "unit": "unit"},
        "signals": {"place": {"values": "place", "times": "t", "columns": ["x", "y"]}},
    }  # fmt: skip
    covariate = {"signal": "place", "basis": basis or {"kind": "bspline", "n": 5, "range": list(span)}}
    covariate |= {} if columns is None else {"columns": columns}
    design = {"bin_s": 0.1, "covariates": [covariate]}
    if changes.get("product"):
        factor = {"signal": "place", "columns": ["y"], "basis": covariate["basis"]}
        other = {"signal": "place", "columns": ["x"], "basis": {"kind": "bspline", "n": 5, "range": [0, 100]}}
        design = {"bin_s": 0.1, "products": [{"name": "map", "factors": [other, factor]}]}
    model = {"name": "place", "estimator": "PopulationGLM", "design": design}
    path = folder / "m.json"
    (folder / "out").mkdir()
    path.write_text(json.dumps({"data": [source], "model": [model]}))
    return path


def test_units_that_differ_are_reported_before_the_fits(tmp_path):
    path = write(tmp_path, span=(200, 300), columns=["x"])
    with pytest.raises(ManifestError) as caught:
        run(path, out=tmp_path / "out", scheduler="serial", progress=False)
    (problem,) = caught.value.problems
    assert problem.startswith('m.json: model "place", design: covariate "place": its values in data "track", ')
    assert problem.endswith(" to 99.9998, are outside of the range [200, 300] of its basis. Are the units the same?")
    assert not list((tmp_path / "out" / "results").glob("*")) and not (tmp_path / "out" / "tasks.json").exists()


def test_factors_of_products_are_compared(tmp_path):
    path = write(tmp_path, span=(20, 30), product=True)  # y is at most 10
    with pytest.raises(ManifestError, match=r'covariate "map: place": its values in data "track", .* to 9.99998, are'):
        plan(read_manifest(path), tmp_path / "out")


def test_columns_that_the_manifest_does_not_name_are_reported_before_the_fits(tmp_path):
    with pytest.raises(ManifestError, match='columns names "z", which "place" of data "track" lacks; allowed are x, y'):
        read_manifest(write(tmp_path, columns=["z"]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": (5.0, 1.0), "columns": ["x"], "span": (0, 1)},  # both touch 0
        {"scale": (1.0, 10.0), "span": (200, 300), "columns": ["x"]},  # one session is within
        {"span": (40, 41)},  # which no sample may be in, but means of samples
        {"basis": {"kind": "cyclic_bspline", "n": 5}},
        {"basis": {"kind": "raised_cosine_log", "n": 3, "window_s": 1.0}},
    ],
)
def test_other_manifests_are_planned(tmp_path, options):
    assert len(plan(read_manifest(write(tmp_path, **options)), tmp_path / "out")) == 2


def test_files_that_cannot_be_read_are_left_to_their_fits(tmp_path):
    path = write(tmp_path, span=(200, 300), columns=["x"])
    (tmp_path / "0.npz").write_bytes(b"damaged")
    assert len(plan(read_manifest(path), tmp_path / "out")) == 2


def test_a_planned_manifest_is_not_compared_again(tmp_path, monkeypatch):
    path = write(tmp_path)
    plan(read_manifest(path), tmp_path / "out")
    monkeypatch.setattr("glmfit.batch.ranges.read_signal", lambda *_: pytest.fail("read again"))
    plan(read_manifest(path), tmp_path / "out")
