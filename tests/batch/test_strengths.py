"""Strengths and held-out scores in the index of a batch equal those of the estimators."""

import numpy as np
import pytest
from batch_runs import Batch, draw

import glmfit
from glmfit.batch import collect, run
from glmfit.files import load_npz, save_npz

pd = pytest.importorskip("pandas")
pytest.importorskip("xarray")

TRIED = {"strengths": [1e-3, 1e-1, 10.0]}
SESSION = {"seed": 3, "n_rows": 120, "n_neurons": 3}
CHOSEN = {
    "cv": {**TRIED, "rule": "one-se"},
    "D2": {**TRIED, "scoring": "D2", "cv": 40},  # blocks of three bins: some have no spike, and no score
    "net": {**TRIED, "regularizer": "ElasticNet", "cv": 2},
}
GIVEN = {
    "one": ("PopulationGLM", {"regularizer_strength": 0.01}, 0.01),
    "each": ("PopulationGLM", {"regularizer_strength": [0.1, 0.2, 0.3]}, [0.1, 0.2, 0.3]),
    "pair": ("PopulationGLM", {"regularizer": "ElasticNet", "regularizer_strength": [0.02, 0.3]}, 0.02),
    "none": ("PopulationGLM", {"regularizer": "UnRegularized"}, 0.0),
    "default": ("PopulationGLM", {}, np.nan),  # a strength per coefficient
    "classes": ("MultinomialGLM", {"regularizer_strength": 0.5}, 0.5),
}


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    models = [{"name": n, "estimator": "PopulationGLMCV", "parameters": given} for n, given in CHOSEN.items()]
    models += [{"name": n, "estimator": kind, "parameters": given} for n, (kind, given, _) in GIVEN.items()]
    batch = Batch(tmp_path_factory.mktemp("strengths"), [SESSION], models)
    assert run(batch.manifest, out=batch.out, scheduler="serial", progress=False).ok
    return batch


@pytest.fixture(scope="module")
def index(batch):
    return pd.read_parquet(collect(batch.out).index).set_index("model")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*folds without a spike")
@pytest.mark.parametrize("name", CHOSEN)
def test_strengths_and_scores_of_a_cross_validation_are_in_the_index(index, name):
    model, rows = glmfit.PopulationGLMCV(**CHOSEN[name]).fit(*draw(SESSION)), index.loc[name]
    np.testing.assert_array_equal(rows["strength"], model.strength_)
    for n, (_, row) in enumerate(rows.iterrows()):
        (scores,) = model.cv_scores_[model.strengths_ == model.strength_[n], :, n]
        known = scores[~np.isnan(scores)]
        assert row["held_out_score"] == pytest.approx(known.mean())
        assert row["held_out_se"] == pytest.approx(known.std(ddof=1) / np.sqrt(len(known)))
    assert set(rows["scoring"]) == {model.scoring}
    assert np.isnan(model.cv_scores_).any() == (name == "D2")


@pytest.mark.parametrize("name", GIVEN)
def test_given_strength_is_in_the_index_without_a_score(index, name):
    rows = index.loc[name]
    np.testing.assert_array_equal(rows["strength"], np.broadcast_to(GIVEN[name][2], 3))
    assert rows[["held_out_score", "held_out_se"]].isna().all(axis=None) and set(rows["scoring"]) == {""}


def rewrite(batch, index, name, change):
    """Collect with one result changed, then restore it."""
    path = batch.out / "results" / f"{index.loc[name, 'key'].iloc[0]}.npz"
    before = path.read_bytes()
    header, arrays = load_npz(path)
    change(header, arrays)
    save_npz(path, header, arrays)
    try:
        return collect(batch.out)
    finally:
        path.write_bytes(before)


def test_results_of_versions_that_did_not_store_their_strength_are_collected(batch, index):
    found = rewrite(batch, index, "one", lambda header, _: header.pop("strength"))
    rows = pd.read_parquet(found.index).set_index("model").loc["one"]
    assert not found.damaged and rows["strength"].isna().all() and rows["gap_is_bound"].all()


def test_a_single_fold_has_no_error_and_a_fit_without_a_strength_no_score(batch, index):
    def change(_, arrays):
        arrays["cv.cv_scores_"][:, 1:, 0] = np.nan
        arrays["cv.strength_"][1] = np.nan  # interrupted before any was scored
        arrays["cv.cv_scores_"][:, 0, 2] = -np.inf

    rows = pd.read_parquet(rewrite(batch, index, "cv", change).index).set_index("model").loc["cv"]
    score, error = rows["held_out_score"].to_numpy(), rows["held_out_se"].to_numpy()
    assert np.isfinite(score[0]) and np.isnan(score[1]) and score[2] == -np.inf and np.isnan(error).all()


def test_scores_of_a_wrong_shape_count_as_damage(batch, index):
    found = rewrite(batch, index, "cv", lambda _, arrays: arrays.update({"cv.cv_scores_": np.zeros((3, 5))}))
    assert len(found.damaged) == 1 and "scores have shape (3, 5)" in found.damaged[0]
