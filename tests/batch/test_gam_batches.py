"""Additive models from a manifest: terms and masks of the design, results in files and in the index."""

import json

import numpy as np
import pandas as pd
import pytest

from glmfit import PopulationGAM
from glmfit.batch import build, collect, load_result, load_session, read_manifest, run
from glmfit.batch.plan import plan
from glmfit.design import BSpline, Term
from glmfit.estimators.model import from_json, to_json

PLACE = {"kind": "bspline", "n": 5, "range": [-1, 1]}
DESIGN = {
    "bin_s": 0.05,
    "covariates": [
        {"signal": "place", "basis": PLACE},
        {"signal": "speed", "name": "past", "lags": [0, 1], "ridge": True},
    ],
    "products": [
        {"name": "map", "factors": [{"signal": name, "basis": {**PLACE, "n": 4}} for name in ("place", "speed")]}
    ],
}  # fmt: skip
HISTORY = {"basis": {"kind": "raised_cosine_log", "n": 3, "window_s": 0.3}}
PARAMETERS = {"inverse_link_function": "exp"}
TERMS = ["place", "past", "map", "history_2", "history_5"]


def model_of(name, of, **parameters):
    design = DESIGN | {"history": {"of": of, **HISTORY}}
    return {"name": name, "estimator": "PopulationGAM", "parameters": PARAMETERS | parameters, "design": design}


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """Models with own and with all histories, and one without terms, of a recording of two units."""
    folder, rng = tmp_path_factory.mktemp("gam"), np.random.default_rng(0)
    t = np.arange(0, 60, 0.01)
    place, speed = np.sin(t / 3), np.sin(t / 4.3 + 1)
    spikes = [t[rng.random(len(t)) < 0.06 * (1 + sign * place)] + 0.001 for sign in (-1, 0.5)]
    np.savez(
        folder / "rat.npz", times=np.concatenate(spikes), unit=np.repeat([2, 5], [len(s) for s in spikes]), t=t,
        place=place, speed=speed,
    )  # fmt: skip
    signals = {name: {"values": name, "times": "t"} for name in ("place", "speed")}
    source = {"name": "rat", "files": "rat.npz", "spikes": {"times": "times", "unit": "unit"}, "signals": signals}
    plain = {"name": "plain", "estimator": "PopulationGLM", "design": {"bin_s": 0.05, "history": HISTORY}}
    models = [model_of("own", "own"), model_of("all", "all", strengths=1e-3), plain]
    (folder / "m.json").write_text(json.dumps({"data": [source], "model": models}))
    summary = run(folder / "m.json", out=folder / "out", scheduler="serial", progress=False)
    assert summary.ok, summary
    tasks = plan(read_manifest(folder / "m.json"), folder / "out")
    return folder / "out", {task.model: task for task in tasks}


def result_of(batch, name):
    out, tasks = batch
    return load_result(out / "results" / f"{tasks[name].key}.npz")


@pytest.mark.parametrize("name", ["own", "all"])
def test_results_equal_those_of_the_estimator(batch, name):
    spec = batch[1][name].spec
    data = build(load_session(spec["source"]), spec["design"], "PopulationGAM")
    by_hand = PopulationGAM(data.smooth_terms, feature_mask=data.feature_mask, **spec["parameters"]).fit(data.X, data.y)
    loaded = result_of(batch, name)
    np.testing.assert_array_equal(loaded.coef_, by_hand.coef_)
    assert loaded.terms_ == by_hand.terms_ and list(loaded.terms_) == TERMS
    assert loaded.report_.converged.all() and loaded.report_.neuron == ["2", "5"]
    has = np.abs(loaded.coef_[-6:].reshape(2, 3, 2)).max(axis=1) > 0
    np.testing.assert_array_equal(has, np.eye(2, dtype=bool) if name == "own" else np.ones((2, 2), bool))


def test_the_index_has_degrees_of_freedom_and_strengths_of_terms(batch):
    index = pd.read_parquet(collect(batch[0]).index).set_index(["model", "unit"])
    for name in ("own", "all"):
        model, rows = result_of(batch, name), index.loc[name]
        np.testing.assert_allclose(rows["edf"], model.report_.edf_total)
        np.testing.assert_allclose(rows["strength_gradient"], model.report_.strength_gradient)
        for term in ("place", "past", "map"):
            np.testing.assert_allclose(rows[f"edf.{term}"], model.edf_[term])
        np.testing.assert_allclose(rows["edf.history"], model.edf_["history_2"] + model.edf_["history_5"])
        np.testing.assert_allclose(rows["strength.past"], model.strengths_["past"][0])
        np.testing.assert_allclose(rows[["strength.map.0", "strength.map.1"]].T, model.strengths_["map"])
    own = result_of(batch, "own").strengths_
    np.testing.assert_allclose(index.loc["own"]["strength.history"], [own["history_2"][0, 0], own["history_5"][0, 1]])
    assert index.loc["all"]["strength.history"].isna().all() and (index.loc["all"]["strength.place"] == 1e-3).all()
    of_terms = [name for name in index if name.startswith(("edf", "strength.", "strength_"))]
    assert index.loc["plain"][of_terms].isna().all(axis=None)


def test_penalties_are_stored_unless_the_basis_implies_them():
    basis = BSpline(5, (0, 1), name="a") * BSpline(5, (0, 1), name="b")
    whole, own = basis.terms["a*b"], Term(range(25, 28), (np.diag([1.0, 2.0, 3.0]),))
    other = Term(range(28, 33), (np.eye(5),), BSpline(5, (0, 1), name="c"))
    for term in (whole, own, other):
        written = to_json(term, "terms")
        assert from_json(json.loads(json.dumps(written))) == term
        assert (written["term"][1] is None) == (term is whole)


def test_terms_of_matrices_are_ridges_of_their_features(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 3))
    np.savez(tmp_path / "one.npz", X=X, y=rng.poisson(np.exp(X[:, 0] * 0.3)), names=["a", "b", "c"])
    data = {"name": "one", "files": "one.npz", "X": "X", "y": "y", "feature_names": "names"}
    parameters = {"terms": {"ab": ["a", "b"]}, "strengths": {"ab": 0.1}}
    model = {"name": "m", "estimator": "PopulationGAM", "parameters": parameters}
    (tmp_path / "m.json").write_text(json.dumps({"data": [data], "model": [model]}))
    assert run(tmp_path / "m.json", out=tmp_path / "out", scheduler="serial", progress=False).ok
    index = pd.read_parquet(collect(tmp_path / "out").index)
    assert (
        index["strength.ab"].tolist() == [0.1]
        and 1 < index["edf.ab"][0] < 2
        and index["edf"][0] == pytest.approx(2 + index["edf.ab"][0])
    )
