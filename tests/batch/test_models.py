"""Every kind of model and design, fitted from a manifest as by hand."""

import json

import numpy as np
import pytest

import glmfit
from glmfit.batch import build, collect, load_result, load_session, read_manifest, run
from glmfit.batch.plan import plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recording of three units and two signals, in a file."""
    folder, rng = tmp_path_factory.mktemp("recording"), np.random.default_rng(0)
    t = np.arange(0, 60, 0.01)
    place = np.sin(t / 3)
    spikes = [t[rng.random(len(t)) < 0.05 * (1 + sign * place)] + 0.001 for sign in (-1, 0, 1)]
    np.savez(
        folder / "rat.npz",
        times=np.concatenate(spikes), unit=np.repeat([2, 5, 7], [len(s) for s in spikes]), t=t, place=place,
        choice=(place > 0).astype(int), start=np.array([0.0, 30.0]), stop=np.array([29.975, 60.0]),
    )  # fmt: skip
    return folder


def fitted(folder, model, **top):
    """Task, result and design of one model."""
    source = {
        "name": "rat", "files": "rat.npz", "spikes": {"times": "times", "unit": "unit"},
        "signals": {name: {"values": name, "times": "t"} for name in ("place", "choice")},
        "epochs": {"run": {"start": "start", "stop": "stop"}},
    }  # fmt: skip
    manifest = folder / "m.json"
    model = {"name": "m", **model, "design": {"bin_s": 0.05, "epochs": "run"} | model.get("design", {})}
    manifest.write_text(json.dumps({**top, "data": [source], "model": [model]}))
    out = folder / "out"
    summary = run(manifest, out=out, scheduler="serial", progress=False)
    assert summary.ok, summary
    (task,) = plan(read_manifest(manifest), out)
    path = out / "results" / f"{task.key}.npz"
    with np.load(path) as file:
        facts = json.loads(file["header"].tobytes())["batch"]
    dtype = np.float64 if top.get("precision") == "double" else np.float32
    return (
        load_result(path),
        facts,
        build(load_session(task.spec["source"]), task.spec["design"], task.spec["estimator"], dtype),
    )


PLACE = {"signal": "place", "basis": {"kind": "bspline", "n": 5, "range": [-1, 1]}}
HISTORY = {"basis": {"kind": "raised_cosine_log", "n": 3, "window_s": 0.3}}


def test_partial_bins_as_exposure(folder):
    model, facts, data = fitted(
        folder,
        {
            "estimator": "PopulationGLM",
            "parameters": {"regularizer_strength": 1e-3},
            "design": {"covariates": [PLACE], "partial_bins": "exposure"},
        },
    )
    by_hand = glmfit.PopulationGLM(regularizer_strength=1e-3).fit(data.X, data.y, exposure=data.exposure)
    np.testing.assert_array_equal(model.coef_, by_hand.coef_)
    assert sorted(set(np.round(data.exposure, 6))) == [0.5, 1.0] and facts["notes"]
    assert model.report_.neuron == ["2", "5", "7"] and list(model.feature_names_in_) == data.feature_names
    assert model.report_.converged.all() and model.report_.gap_is_bound.all()


def test_own_history_gives_one_fit_per_neuron(folder):
    model, facts, data = fitted(
        folder,
        {
            "estimator": "PopulationGLM",
            "parameters": {"regularizer_strength": 1e-3},
            "design": {"covariates": [PLACE], "history": {**HISTORY, "of": "own"}},
        },
    )
    assert model.coef_.shape == (5 + 3, 3) and facts["notes"]["own_names"] == list(model.feature_names_in_)[5:]
    for n in range(3):
        X = np.concatenate([data.X, data.own[n]], axis=1)
        alone = glmfit.PopulationGLM(regularizer_strength=1e-3).fit(X, data.y[:, n])
        np.testing.assert_allclose(model.coef_[:, n], alone.coef_, rtol=1e-6, atol=1e-9)
        assert model.report_.gap[n] == pytest.approx(alone.report_.gap[0], rel=1e-3)
    assert model.report_.gap_is_bound.all() and model.report_.neuron == ["2", "5", "7"] and str(model.report_)


def test_default_strengths_equal_those_of_separate_fits(folder):
    design = {"covariates": [PLACE], "history": {**HISTORY, "of": "own"}}
    model, _, data = fitted(folder, {"estimator": "PopulationGLM", "design": design})
    alone = [
        glmfit.PopulationGLM().fit(np.concatenate([data.X, own], axis=1), data.y[:, n]).strength_[:, 0]
        for n, own in enumerate(data.own)
    ]
    np.testing.assert_allclose(model.strength_.T, alone, rtol=1e-4)


def test_fewer_bins_than_features_give_a_warning(folder):
    _, facts, _ = fitted(folder, {"estimator": "PopulationGLM", "design": {"covariates": [PLACE], "bin_s": 20.0}})
    assert "2 rows for 5 features: only the penalty makes the fit unique." in facts["warnings"]


@pytest.mark.thorough
def test_coupling_in_double_precision(folder):
    parameters = {"regularizer_strength": 1e-3, "solver_name": "SAGA"}
    model = {"estimator": "PopulationGLM", "parameters": parameters, "design": {"history": HISTORY}}
    model, _, data = fitted(folder, model, precision="double")
    assert data.X.dtype == np.float64 and model.coef_.shape == (9, 3)
    newton = glmfit.PopulationGLM(regularizer_strength=1e-3, solver_name="Newton", tol=1e-12).fit(data.X, data.y)
    excess = model.report_.objective - newton.report_.objective
    assert (excess <= model.report_.gap + 1e-12).all() and model.report_.converged.all()


@pytest.mark.thorough
def test_cross_validated_strengths(folder):
    model, _, data = fitted(
        folder,
        {"estimator": "PopulationGLMCV", "parameters": {"strengths": [1e-4, 1e-2]}, "design": {"covariates": [PLACE]}},
    )
    by_hand = glmfit.PopulationGLMCV(strengths=[1e-4, 1e-2]).fit(data.X, data.y)
    np.testing.assert_array_equal(model.coef_, by_hand.coef_)
    np.testing.assert_array_equal(model.strength_, by_hand.strength_)


@pytest.mark.parametrize(
    ("estimator", "design"),
    [
        ("SoftmaxGLM", {"target": "choice", "covariates": [{"signal": "counts"}]}),
        ("MultinomialGLM", {"covariates": [PLACE]}),
    ],
)
def test_class_models(folder, estimator, design):
    model, facts, data = fitted(
        folder, {"estimator": estimator, "parameters": {"regularizer_strength": 1e-2}, "design": design}
    )
    by_hand = getattr(glmfit, estimator)(regularizer_strength=1e-2).fit(data.X, data.y)
    np.testing.assert_allclose(model.coef_, by_hand.coef_, rtol=1e-5, atol=1e-7)
    assert facts["spec"]["estimator"] == estimator and model.report_.converged
    assert collect(folder / "out").n_units == len(model.classes_ if estimator == "SoftmaxGLM" else data.target_names)
