"""The estimator: scikit-learn conventions, pynapple objects, files, reports."""

import json
import os
import pickle
import traceback
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pynapple as nap
import pytest
import scipy.stats
from cases import GROUPS, D, N, T, recording
from oracles import population as oracle
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import glmfit
from glmfit import FitReport, PopulationGLM, PopulationGLMCV, Status, penalties
from glmfit.engine import ConjugateGradients
from glmfit.engine.population import PopulationProblem
from glmfit.estimators.parameters import SOLVERS, read_solver
from glmfit.saga.walk import Walk
from glmfit.solvers import SAGA

BIN_S = 0.01


@pytest.fixture(scope="module")
def data():
    """Features and counts that float32 represents exactly."""
    X, Y = recording()
    return np.round(X * 64) / 64, Y


@pytest.fixture(scope="module")
def fitted(data):
    return PopulationGLM(regularizer_strength=1e-3).fit(*data)


@pytest.fixture(scope="module")
def frames(data):
    """The data as pynapple frames on two epochs, with names and metadata."""
    X, Y = data
    t = np.concatenate([np.arange(T // 2), np.arange(T // 2) + 2 * T]) * BIN_S
    support = nap.IntervalSet([t[0] - BIN_S / 2, t[T // 2] - BIN_S / 2], [t[T // 2 - 1] + 1e-4, t[-1] + 1e-4])
    metadata = pd.DataFrame({"area": ["M1", "M1", "PMd"], "depth": [1.0, 2.0, 3.0]}, index=["u3", "u1", "u7"])
    features = nap.TsdFrame(t=t, d=X, time_support=support, columns=list("abcde"))
    counts = nap.TsdFrame(t=t, d=Y, time_support=support, columns=["u3", "u1", "u7"], metadata=metadata)
    return features, counts


# ------------------------------------------------------------------------- scikit-learn

EXPECTED_FAILURES = {
    "check_regressor_multioutput": "passes a normal y with negative values although the tag positive_only is set; "
    "a Poisson likelihood has no value there and negative counts are an error",
}


def run_checks(model, expected=EXPECTED_FAILURES):
    with warnings.catch_warnings():
        # The targets of the checks are not counts, which raises a warning; some have too few rows to fit.
        warnings.filterwarnings("ignore", message=".*counts that are not integers")
        warnings.simplefilter("ignore", ConvergenceWarning)
        results = check_estimator(model, expected_failed_checks=expected, on_fail=None, on_skip=None)
    wrong = {r["check_name"]: r["exception"] for r in results if r["status"] not in ("passed", "xfail", "skipped")}
    assert not wrong
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(expected)
    skipped = {r["check_name"] for r in results if r["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}  # needs SCIPY_ARRAY_API
    assert len(results) > 40


@pytest.mark.thorough
def test_check_estimator_passes_except_for_the_expected_failures():
    run_checks(PopulationGLM(tol=1e-14))  # the checks compare fits to 1e-7, tighter than the default tolerance


@pytest.mark.slow
def test_check_estimator_passes_with_saga():
    weights = "a fit may end with a gap of 2e-12 nats, where predictions still differ by 1e-6; the check asks for 1e-7"
    expected = EXPECTED_FAILURES | {"check_sample_weight_equivalence_on_dense_data": weights}
    run_checks(PopulationGLM(solver_name="SAGA", tol=1e-14), expected)


def test_numpy_numbers_are_valid_hyper_parameters():
    solver = read_solver("SAGA", {"batch_size": np.int64(64), "step_scale": np.float32(1)}, SOLVERS)
    assert solver == SAGA(batch_size=64, step_scale=1.0)
    assert type(solver.batch_size) is int and type(solver.step_scale) is float  # arrays cannot be static


def test_clone_keeps_every_parameter_and_no_result(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "coef_")
    changed = clone(fitted).set_params(tol=1e-3, regularizer="Lasso")
    assert changed.tol == 1e-3 and changed.regularizer == "Lasso" and fitted.regularizer == "Ridge"


def test_pipeline_and_grid_search_choose_the_strength_that_predicts_best(data):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 20)) * rng.uniform(0.1, 10, 20)
    Y = rng.poisson(np.logaddexp(0, X[:, :2] / X[:, :2].std(axis=0) @ rng.normal(size=(2, 2))))
    pipeline = make_pipeline(StandardScaler(), PopulationGLM())
    strengths = [1e-4, 3e-2, 1e2]
    search = GridSearchCV(pipeline, {"populationglm__regularizer_strength": strengths}, cv=4)
    with pytest.warns(UserWarning, match=r"next to nothing .* regularizer_strength 1e\+02"):
        search.fit(X, Y)
    assert search.best_params_["populationglm__regularizer_strength"] == 3e-2
    assert search.best_estimator_.predict(X).shape == (200, 2)
    held_out = search.cv_results_["mean_test_score"]
    assert held_out[1] > max(held_out[0], held_out[2])


def test_a_fitted_model_can_be_pickled_for_worker_processes(data, fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(data[0]), fitted.predict(data[0]))


def test_unfitted_models_raise_not_fitted_error(data, tmp_path):
    X, Y = data
    for use in (
        lambda m: m.predict(X),
        lambda m: m.score(X, Y),
        lambda m: m.simulate(X),
        lambda m: m.save(tmp_path / "m"),
    ):
        with pytest.raises(NotFittedError):
            use(PopulationGLM())
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------- inputs

INPUTS = {
    "lists": lambda X, Y: (X.tolist(), Y.tolist()),
    "integer counts": lambda X, Y: (X, Y.astype(np.int64)),
    "small integers": lambda X, Y: (X, Y.astype(np.uint8)),
    "float32": lambda X, Y: (X.astype(np.float32), Y.astype(np.float32)),
    "jax": lambda X, Y: (jnp.asarray(X), jnp.asarray(Y)),
    "pandas": lambda X, Y: (pd.DataFrame(X, columns=list("abcde")), pd.DataFrame(Y)),
    "fortran order": lambda X, Y: (np.asfortranarray(X), np.asfortranarray(Y)),
    "strided": lambda X, Y: (np.repeat(X, 2, axis=1)[:, ::2], np.repeat(Y, 3, axis=0)[::3]),
    "big endian": lambda X, Y: (X.astype(">f8"), Y),
    "read only": lambda X, Y: (np.frombuffer(X.tobytes()).reshape(X.shape), Y),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_every_container_gives_the_same_answer_as_numpy(kind, data, fitted):
    X, Y = INPUTS[kind](*data)
    exactly = clone(fitted).set_params(tol=1e-12)
    model, of_numpy = clone(exactly).fit(X, Y), clone(exactly).fit(*data)
    np.testing.assert_allclose(model.coef_, of_numpy.coef_, atol=1e-5)
    np.testing.assert_allclose(model.intercept_, of_numpy.intercept_, atol=1e-5)
    np.testing.assert_allclose(model.predict(X), of_numpy.predict(data[0]), rtol=1e-4)
    assert isinstance(model.predict(X), np.ndarray)
    if kind != "float32":
        np.testing.assert_array_equal(model.report_.status, fitted.report_.status)


@pytest.mark.thorough
def test_shapes_follow_y(data):
    X, Y = data
    one, column = PopulationGLM().fit(X, Y[:, 0]), PopulationGLM().fit(X, Y[:, :1])
    assert one.coef_.shape == (D,) and isinstance(one.intercept_, float) and one.predict(X).shape == (T,)
    assert column.coef_.shape == (D, 1) and column.intercept_.shape == (1,) and column.predict(X).shape == (T, 1)
    np.testing.assert_array_equal(column.coef_[:, 0], one.coef_)
    assert one.simulate(X).shape == (T,)
    assert one.score(X, Y[:, 0]) == column.score(X, Y[:, :1])
    assert one.score(X, Y[:, 0], per_neuron=True).shape == (1,)


def test_names_of_features_and_neurons_are_remembered_and_checked(data):
    X, Y = pd.DataFrame(data[0], columns=list("abcde")), pd.DataFrame(data[1], columns=["n1", "n2", "n3"])
    model = PopulationGLM().fit(X, Y)
    assert model.feature_names_in_.tolist() == list("abcde") and model.n_features_in_ == D
    assert model.report_.neuron == ["n1", "n2", "n3"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X[list("edcba")])
    named = PopulationGLM().fit(X, pd.Series(data[1][:, 0], name="n9"))
    assert named.report_.neuron == ["n9"]


@pytest.mark.thorough
def test_rows_with_nan_are_dropped_and_counted(data):
    X, Y = (a.copy() for a in data)
    X[3, 1] = X[100:110] = np.nan
    Y[5] = Y[105, 1] = np.nan
    weights = np.random.default_rng(0).uniform(0.5, 2, T)
    bad = np.isnan(X).any(axis=1) | np.isnan(Y).any(axis=1)
    model = PopulationGLM().fit(X, Y, weights)
    clean = PopulationGLM().fit(X[~bad], Y[~bad], weights[~bad])
    np.testing.assert_array_equal(model.coef_, clean.coef_)
    assert model.report_.n_dropped == 12 and model.report_.n_rows == T - 12
    assert "12 rows with NaN dropped" in str(model.report_)
    missing = np.isnan(X).any(axis=1)
    rate = model.predict(X)
    assert np.all(np.isnan(rate[missing])) and np.all(rate[~missing] > 0)
    assert model.score(X, Y, weights) == clean.score(X[~bad], Y[~bad], weights[~bad])
    drawn = model.simulate(X)
    np.testing.assert_array_equal(np.isnan(drawn).any(axis=1), missing)
    np.testing.assert_array_equal(np.isnan(drawn).all(axis=1), missing)


def test_integer_weights_equal_repeated_rows(data):
    X, Y = data
    weights = np.random.default_rng(0).integers(0, 3, T)
    model = PopulationGLM(regularizer_strength=0.01, tol=1e-10).fit(X, Y, weights)
    repeated = PopulationGLM(regularizer_strength=0.01, tol=1e-10).fit(
        np.repeat(X, weights, axis=0), np.repeat(Y, weights, axis=0)
    )
    np.testing.assert_allclose(model.coef_, repeated.coef_, atol=1e-4)
    np.testing.assert_allclose(
        model.score(X, Y, weights), model.score(np.repeat(X, weights, axis=0), np.repeat(Y, weights, axis=0))
    )


@pytest.mark.thorough(cases=4)
@pytest.mark.parametrize(
    "seed", [None, 7, np.int64(7), np.random.RandomState(1), np.random.default_rng(1), jax.random.key(7)]
)
def test_every_kind_of_random_state_is_accepted(seed, data):
    model = PopulationGLM(solver_name="SAGA", regularizer_strength=1e-3, random_state=seed).fit(*data)
    assert model.report_.converged.all()
    if not hasattr(seed, "uniform"):  # a generator advances
        again = clone(model).fit(*data)
        np.testing.assert_array_equal(again.coef_, model.coef_)


@pytest.mark.thorough(cases=5)
@pytest.mark.parametrize("link", ["softplus", "exp"])
@pytest.mark.parametrize("solver", ["auto", "SAGA", "Newton"])
def test_every_solver_by_name_finds_the_optimum(link, solver, data):
    X, Y = data
    model = PopulationGLM(link, regularizer_strength=1e-3, solver_name=solver).fit(X, Y)
    best = oracle.newton(link, X, Y, 1e-3)
    gap = oracle.objective(link, X, Y, model.coef_, model.intercept_, strength=1e-3) - best.objective
    assert model.report_.converged.all() and model.report_.gap_is_bound.all()
    assert np.all(gap <= model.report_.gap + 1e-15) and np.all(model.report_.gap <= model.report_.target)
    np.testing.assert_allclose(model.predict(X), oracle.rate(link, X @ model.coef_ + model.intercept_), rtol=1e-12)
    assert model.n_iter_ == model.report_.epochs.max()
    assert model.report_.solver_name == ("ConjugateGradients" if solver == "auto" else solver)


# ------------------------------------------------------------------------- pynapple


@pytest.mark.thorough
def test_pynapple_in_pynapple_out(frames, data, fitted):
    features, counts = frames
    model = clone(fitted).fit(features, counts)
    np.testing.assert_array_equal(model.coef_, fitted.coef_)
    assert model.feature_names_in_.tolist() == list("abcde")
    for made in (model.predict(features), model.simulate(features)):
        assert isinstance(made, nap.TsdFrame)
        np.testing.assert_array_equal(made.t, features.t)
        np.testing.assert_array_equal(made.time_support.values, features.time_support.values)
        assert made.columns.tolist() == ["u3", "u1", "u7"]
        assert made.metadata["area"].tolist() == ["M1", "M1", "PMd"] and made.metadata["depth"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(model.predict(features).values, fitted.predict(data[0]))
    assert model.score(features, counts) == fitted.score(*data)
    one = clone(fitted).fit(features, counts[:, 0])
    assert isinstance(one.predict(features), nap.Tsd)
    np.testing.assert_array_equal(one.predict(features).t, features.t)


def test_pynapple_features_with_plain_counts_still_give_frames(frames, data):
    model = PopulationGLM().fit(frames[0], data[1])
    rate = model.predict(frames[0])
    assert isinstance(rate, nap.TsdFrame) and rate.columns.tolist() == ["0", "1", "2"]


def test_nan_rows_of_a_frame_are_nan_in_the_prediction(frames, fitted):
    features, counts = frames
    values = features.values.copy()
    values[10] = np.nan
    holes = nap.TsdFrame(t=features.t, d=values, time_support=features.time_support, columns=features.columns)
    model = clone(fitted).fit(holes, counts)
    rate = model.predict(holes)
    np.testing.assert_array_equal(rate.t, features.t)
    assert np.all(np.isnan(rate.values[10])) and not np.isnan(np.delete(rate.values, 10, axis=0)).any()


@pytest.mark.parametrize("shift", [1, -1, 0.1])
def test_counts_shifted_against_the_features_are_an_error(frames, shift):
    features, counts = frames
    moved = nap.TsdFrame(t=counts.t + shift * BIN_S, d=counts.values)
    with pytest.raises(ValueError, match=r"times of X and y differ \(first at row 0: X at 0 s, y at .* Align them"):
        PopulationGLM().fit(features, moved)
    model = PopulationGLM().fit(features, counts)
    with pytest.raises(ValueError, match="times of X and y differ"):
        model.score(features, moved)


def test_counts_of_another_length_raise_an_error_that_names_both_lengths(frames):
    features, counts = frames
    with pytest.raises(
        ValueError, match=r"X has 600 time bins of 0.01 s \(0 to 14.99 s\) but y has 599 .* same epochs"
    ):
        PopulationGLM().fit(features, counts[1:])


def test_weights_shifted_against_the_features_are_an_error(frames):
    features, counts = frames
    weights = nap.Tsd(t=features.t + BIN_S, d=np.ones(T))
    with pytest.raises(ValueError, match="the times of X and sample_weight differ"):
        PopulationGLM().fit(features, counts, weights)


def test_exposure_of_a_simulation_is_aligned_with_the_features(fitted, frames):
    features = frames[0]
    with pytest.raises(ValueError, match="the times of X and exposure differ"):
        fitted.simulate(features, exposure=nap.Tsd(t=features.t + BIN_S, d=np.ones(T)))


def test_empty_frames_raise_an_error_that_says_they_are_empty(frames):
    _, counts = frames
    nothing = nap.TsdFrame(t=[], d=np.empty((0, 5)), columns=list("abcde"))
    with pytest.raises(ValueError, match="X has 0 time bins but y has 600 time bins"):
        PopulationGLM().fit(nothing, counts)
    with pytest.raises(ValueError, match="X and y are empty: no time bins"):
        PopulationGLM().fit(nothing, nap.TsdFrame(t=[], d=np.empty((0, 3))))


def test_neurons_in_another_order_are_not_scored(frames):
    features, counts = frames
    model = PopulationGLM().fit(features, counts)
    with pytest.raises(ValueError, match="column 0 of y is neuron 'u1', but the model was fitted with 'u3'"):
        model.score(features, counts[:, [1, 0, 2]])


def test_rounding_of_times_is_not_a_shift(frames):
    features, counts = frames
    model = PopulationGLM().fit(features, nap.TsdFrame(t=counts.t + 1e-9, d=counts.values))
    assert model.report_.converged.all()


# ------------------------------------------------------------------------- scores


def expected_score(kind, X, Y, rate, w):
    """From scipy's log-probabilities; the null model is the best constant rate of these rows."""
    null = np.broadcast_to(w @ Y / w.sum(), Y.shape)
    if kind == "D2":
        at, zero, full = (w @ scipy.stats.poisson.logpmf(Y, m) for m in (rate, null, np.maximum(Y, 1e-300)))
        return full - at, full - zero
    return (w @ scipy.stats.poisson.logpmf(Y, m) for m in (rate, null))


@pytest.mark.parametrize("kind", ["D2", "pseudo-r2-McFadden", "log-likelihood"])
def test_an_overflowing_rate_scores_minus_infinity_unless_its_row_does_not_count(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 1))
    y = rng.poisson(np.exp(X[:, 0]))
    y[0] = 0
    model = PopulationGLM("exp").fit(X, y)
    far, without = X.copy(), (np.arange(100) > 0).astype(float)
    far[0] = 1e4
    expected = model.score(X[1:], y[1:], score_type=kind)
    for exposure in (np.ones(100), np.full(100, 0.5)):
        assert model.score(far, y, score_type=kind, exposure=exposure) == -np.inf
    assert model.score(far, y, without, score_type=kind) == pytest.approx(expected, rel=1e-12)
    assert model.score(far, y, score_type=kind, exposure=without) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("link", ["softplus", "exp"])
@pytest.mark.parametrize("kind", ["D2", "pseudo-r2-McFadden"])
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_match_scipy(link, kind, weighted, data):
    X, Y = data
    model = PopulationGLM(link, regularizer_strength=0.1).fit(X, Y)
    w = np.random.default_rng(2).uniform(0, 2, T) if weighted else np.ones(T)
    at, zero = expected_score(kind, X, Y, model.predict(X), w)
    arguments = {"sample_weight": w if weighted else None, "score_type": kind}
    np.testing.assert_allclose(model.score(X, Y, per_neuron=True, **arguments), 1 - at / zero, rtol=1e-9)
    assert model.score(X, Y, **arguments) == pytest.approx(1 - at.sum() / zero.sum(), rel=1e-9)
    log_likelihood = w @ scipy.stats.poisson.logpmf(Y, model.predict(X)) / w.sum()
    arguments["score_type"] = "log-likelihood"
    np.testing.assert_allclose(model.score(X, Y, per_neuron=True, **arguments), log_likelihood, rtol=1e-9)
    assert model.score(X, Y, **arguments) == pytest.approx(log_likelihood.mean(), rel=1e-9)


def test_report_has_the_training_deviance_explained(data, fitted):
    np.testing.assert_allclose(fitted.report_.pseudo_r2, fitted.score(*data, per_neuron=True), rtol=1e-10)


def test_only_a_neuron_silent_in_the_scored_rows_scores_nan(data, fitted):
    X, Y = data[0], data[1].copy()
    Y[:, 1] = 0
    scores = fitted.score(X, Y, per_neuron=True)
    assert np.isnan(scores[1]) and np.isfinite(scores[[0, 2]]).all()
    assert np.isfinite(fitted.score(X, Y))
    assert np.isfinite(fitted.score(X, Y, score_type="log-likelihood", per_neuron=True)).all()


@pytest.mark.parametrize("score_type", ["D2", "pseudo-r2-McFadden", "log-likelihood"])
def test_spikes_of_a_neuron_that_had_none_in_the_fit_do_not_spoil_the_score_of_the_others(data, score_type):
    X, Y = data
    silent = Y.copy()
    silent[:, 1] = 0
    model = PopulationGLM(regularizer_strength=1e-3).fit(X, silent)
    others = PopulationGLM(regularizer_strength=1e-3).fit(X, Y[:, [0, 2]])
    scores = model.score(X, Y, score_type=score_type, per_neuron=True)
    assert scores[1] == -np.inf and np.isfinite(scores[[0, 2]]).all()
    with pytest.warns(UserWarning, match=r"1 of 3 neurons had no spikes in the fit but have some in these rows \(1\)"):
        score = model.score(X, Y, score_type=score_type)
    assert score == pytest.approx(others.score(X, Y[:, [0, 2]], score_type=score_type), rel=1e-4)
    assert np.isfinite(model.score(X, silent, score_type=score_type))


def test_tables_with_shuffled_rows_raise_a_warning(data):
    import pandas as pd

    X, Y = pd.DataFrame(data[0]).add_prefix("x"), pd.DataFrame(data[1])
    model = PopulationGLM(regularizer_strength=1e-3).fit(X, Y)
    shuffled = Y.sample(frac=1, random_state=0)
    with pytest.warns(UserWarning, match=r"rows of X and y have the same labels in different orders .first at row 0"):
        model.score(X, shuffled)
    model.score(X, shuffled.loc[X.index])  # no warning
    model.score(X, shuffled.reset_index(drop=True).set_axis(shuffled.index + len(X)))  # unrelated labels are ignored


# ------------------------------------------------------------------------- simulate


@pytest.mark.thorough
def test_simulated_counts_follow_the_rates_and_the_seed(data, fitted):
    X = data[0]
    first, again, other = (fitted.simulate(X, random_state=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other) and np.all(first >= 0) and np.array_equal(first, np.rint(first))
    np.testing.assert_array_equal(fitted.simulate(X), clone(fitted).set_params().fit(*data).simulate(X))
    rate = fitted.predict(X)
    many = np.mean([fitted.simulate(X, random_state=s).sum(axis=0) for s in range(40)], axis=0)
    assert np.all(np.abs(many - rate.sum(axis=0)) < 5 * np.sqrt(rate.sum(axis=0) / 40))
    correlation = np.corrcoef(first[:, 0] - rate[:, 0], rate[:, 0])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(T)


# ------------------------------------------------------------------------- files

SAVED = {
    "ridge": {"regularizer_strength": 1e-3},
    "strength per neuron": {"regularizer_strength": np.array([1e-3, 0.1, 1.0])},
    "elastic net": {"regularizer": "ElasticNet", "regularizer_strength": (np.array([0.1, 0.2, 0.3]), 0.3)},
    "groups": {"regularizer": "GroupLasso", "regularizer_strength": 0.02, "groups": list(GROUPS)},
    "named groups": {
        "regularizer": "GroupLasso",
        "regularizer_strength": 0.02,
        "groups": {"one": [0, 1], "two": ("c", "d")},
    },
    "solver": {"solver_name": "SAGA", "solver_kwargs": {"batch_size": 200, "sampling": "shuffle"}, "tol": 1e-7},
    "callable link": {"inverse_link_function": jnp.exp, "random_state": np.random.default_rng(0)},
}


def same(a, b):
    """Equality of parameters or report fields, including arrays and types."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and same(vars(a), vars(b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@pytest.mark.thorough(cases=4)
@pytest.mark.parametrize("case", SAVED)
def test_a_saved_model_loads_unchanged(case, data, tmp_path):
    X, Y = pd.DataFrame(data[0], columns=list("abcde")), data[1]
    model = PopulationGLM(**SAVED[case]).fit(X, Y)
    path = model.save(tmp_path / "model")
    assert path == tmp_path / "model.npz" and [p.name for p in tmp_path.iterdir()] == ["model.npz"]
    for name in (path, str(path), tmp_path / "model"):
        loaded = PopulationGLM.load(name)
        assert same(loaded.coef_, model.coef_) and same(loaded.intercept_, model.intercept_)
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
        assert same(loaded.report_, model.report_) and str(loaded.report_) == str(model.report_)
        assert loaded.feature_names_in_.tolist() == list("abcde") and loaded.n_features_in_ == D
        assert loaded.n_iter_ == model.n_iter_
        before, after = model.get_params(), loaded.get_params()
        if case == "callable link":
            assert after.pop("inverse_link_function") == "exp" and after.pop("random_state") is None
            before = {k: v for k, v in before.items() if k in after}
        assert same(after, before)
    again = clone(loaded).fit(X, Y)
    if case != "callable link":
        np.testing.assert_array_equal(again.coef_, model.coef_)


def test_a_saved_model_of_one_neuron_keeps_its_shapes(data, tmp_path):
    X, Y = data
    model = PopulationGLM().fit(X, Y[:, 0])
    loaded = PopulationGLM.load(model.save(tmp_path / "one.npz"))
    assert loaded.coef_.shape == (D,) and type(loaded.intercept_) is float
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.score(X, Y[:, 0]) == model.score(X, Y[:, 0])


def test_a_model_file_needs_no_pickle_and_has_a_readable_header(fitted, tmp_path):
    with np.load(fitted.save(tmp_path / "m.npz"), allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)
        header = json.loads(file["header"].tobytes().decode())
    assert header["class"] == "PopulationGLM" and header["parameters"]["regularizer_strength"] == 1e-3


@pytest.mark.parametrize("when", ["replacing", "writing"])
def test_saving_is_all_or_nothing(when, fitted, data, tmp_path, monkeypatch):
    path = fitted.save(tmp_path / "m.npz")
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(*((os, "replace", fail) if when == "replacing" else (np, "savez_compressed", fail)))
    other = clone(fitted).set_params(regularizer_strength=1.0).fit(*data)
    for name in ("m.npz", "new.npz"):
        with pytest.raises(OSError, match="disk full"):
            other.save(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["m.npz"]
    assert path.read_bytes() == before


def test_saved_files_have_the_permissions_of_any_new_file(fitted, tmp_path):
    (tmp_path / "plain").touch()
    path = fitted.save(tmp_path / "m.npz")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.slow
def test_parameters_and_columns_of_many_kinds_survive_saving(data, frames, tmp_path):
    X, Y = data
    groups = {"a": range(2), 7: (2, 3)}
    model = PopulationGLM(regularizer="GroupLasso", groups=groups, random_state=jax.random.key(3)).fit(X, Y)
    again = PopulationGLM.load(model.save(tmp_path / "groups"))
    assert again.groups == {"a": [0, 1], 7: (2, 3)} and again.random_state is None
    features, counts = frames
    numbered = nap.TsdFrame(t=counts.t, d=counts.values, time_support=counts.time_support, columns=[5, 7, 9])
    model = PopulationGLM().fit(features, numbered)
    again = PopulationGLM.load(model.save(tmp_path / "columns"))
    assert list(again.predict(features).columns) == [5, 7, 9]
    model.set_params(regularizer_strength=object())
    with pytest.raises(TypeError, match=r"regularizer_strength holds <object .* cannot keep"):
        model.save(tmp_path / "object")


def test_a_model_file_with_a_missing_part_is_refused(fitted, tmp_path):
    with np.load(fitted.save(tmp_path / "m.npz"), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    for missing in ("coef", "report.gap"):
        np.savez(tmp_path / "part.npz", **{k: v for k, v in arrays.items() if k != missing})
        with pytest.raises(ValueError, match="not a complete PopulationGLM"):
            PopulationGLM.load(tmp_path / "part.npz")
    np.savez(tmp_path / "list.npz", **arrays | {"header": np.frombuffer(b"[1]", np.uint8)})
    with pytest.raises(ValueError, match="its header is not one of ours"):
        PopulationGLM.load(tmp_path / "list.npz")


def test_files_that_are_not_models_are_refused(fitted, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"folder .*nowhere does not exist. Create it"):
        fitted.save(tmp_path / "nowhere" / "m.npz")
    with pytest.raises(FileNotFoundError):
        PopulationGLM.load(tmp_path / "missing.npz")
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "cut.npz").write_bytes(fitted.save(tmp_path / "m.npz").read_bytes()[:2000])
    for name in ("other.npz", "text.npz", "array.npy", "cut.npz"):
        with pytest.raises(ValueError, match=f"{name} is not a model saved by glmfit"):
            PopulationGLM.load(tmp_path / name)


def test_a_newer_format_is_refused_with_advice(fitted, tmp_path):
    with np.load(fitted.save(tmp_path / "m.npz")) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(arrays["header"].tobytes().decode()) | {"format": "glmfit/99"}
    np.savez(tmp_path / "new.npz", **arrays | {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)})
    with pytest.raises(ValueError, match="format 'glmfit/99', this version of glmfit reads 'glmfit/1'"):
        PopulationGLM.load(tmp_path / "new.npz")


# ------------------------------------------------------------------------- reports


@pytest.mark.slow
def test_the_report_reads_well(data):
    X, Y = data[0], data[1].copy()
    Y[:, 2] = 0
    model = PopulationGLM(solver_name="SAGA", regularizer_strength=1e-3).fit(
        X, pd.DataFrame(Y, columns=["a", "b", "c"])
    )
    report = model.report_
    assert isinstance(report, FitReport)
    text = str(report)
    for words in (
        "SAGA: 2 of 3 neurons converged, 1 without spikes; 600 rows, 5 features (rank 5)",
        "s compiling",
        "gap F-F*",
        "1 no spikes: No spike in the training rows",
        "step ",
        "(certified), batches of 200 of 600 rows",
        "theorem: Gazagnadou, Gower, Salmon (2019)",
        "failure probability",
        "gap bounds: generalised self-concordance",
    ):
        assert words in text
    lines = [line for line in text.splitlines() if line.split()[:1] in (["a"], ["b"], ["c"])]
    assert len(lines) == 3 and "converged" in lines[0] and "bound" in lines[0] and "no spikes" in lines[2]
    assert max(map(len, text.splitlines()[:9])) <= 120
    np.testing.assert_allclose(report.spike_count, Y.sum(axis=0))
    assert report.seconds_run > 0 and report.seconds_compile >= 0
    history = report.history
    np.testing.assert_array_equal(history["gap"][-1], report.gap)
    assert np.all(np.diff(history["epoch"]) >= 0) and np.all(np.diff(history["row_evals"]) > 0)
    assert history["objective"].shape == history["gap"].shape == (len(history["epoch"]), N)


def test_the_report_as_a_frame_has_a_row_per_neuron(fitted):
    frame = fitted.report_.to_frame()
    assert frame.index.name == "neuron" and frame.index.tolist() == ["0", "1", "2"]
    assert frame["status"].tolist() == ["converged"] * 3 and frame["gap_kind"].tolist() == ["bound"] * 3
    np.testing.assert_array_equal(frame["gap"], fitted.report_.gap)
    np.testing.assert_allclose(
        frame["relative_gap"], fitted.report_.gap / (fitted.report_.null_objective - fitted.report_.objective)
    )


def test_a_large_report_shows_the_worst_neurons_only():
    X, Y = recording(t=300, d=2, n=40)
    text = str(PopulationGLM(regularizer_strength=1e-2).fit(X, Y).report_)
    assert "the 12 of 40 neurons with the largest gaps" in text and len(text.splitlines()) < 30


def test_a_long_report_shows_failures_first(rng):
    X = (rng.random((400, 2)) < 0.3).astype(float)
    Y = rng.poisson(0.5, (400, 24))
    Y[X[:, 0] > 0, 3:11] = 0  # the feature silences them
    Y[:, 20] = 0
    with pytest.warns(ConvergenceWarning, match="8 of 24"):
        report = PopulationGLM("exp", "UnRegularized").fit(X, Y).report_
    status = report._worst()["status"].tolist()
    assert status[:8] == ["separable"] * 8 and status[8:10] == ["no spikes", "converged"]
    assert "the 12 of 24 neurons with failures first, then the largest gaps" in str(report)


@pytest.mark.parametrize("regularizer, given", [("Ridge", 1), ("Ridge", [1, 2, 0.5]), ("ElasticNet", ([0, 0, 0], 1)),
                                                ("UnRegularized", None)])  # fmt: skip
def test_the_strength_of_a_fit_is_a_float_an_array_or_a_tuple(data, tmp_path, regularizer, given):
    model = PopulationGLM(regularizer=regularizer, regularizer_strength=given).fit(*data)
    for fitted in (model, PopulationGLM.load(model.save(tmp_path / "model"))):
        strength = fitted.strength_
        parts = strength if isinstance(given, tuple) else (strength,)
        assert isinstance(strength, tuple) == isinstance(given, tuple)
        wanted = given if isinstance(given, tuple) else (given,)
        for part, number in zip(parts, wanted, strict=True):
            assert isinstance(part, np.ndarray if isinstance(number, list) else float)
            np.testing.assert_array_equal(part, 0.0 if number is None else number)


def test_features_too_large_for_single_precision_are_refused(data):
    X, Y = data
    for model in (PopulationGLM(), PopulationGLMCV(strengths=[1e-3, 1], cv=2)):
        for scale in (1e40, 1e150, 1e300):
            with pytest.raises(ValueError, match=r"X has values up to \d.*, too large for single precision; rescale"):
                model.fit(scale * X, Y)
    PopulationGLM().fit(1e30 * X, Y)  # and nothing leaks


def test_one_warning_counts_the_neurons_that_did_not_converge(data):
    with pytest.warns(ConvergenceWarning) as caught:
        model = PopulationGLM(solver_name="Newton", tol=1e-12, max_epochs=1, regularizer_strength=1e-3).fit(*data)
    assert len(caught) == 1 and str(caught[0].message).startswith("3 of 3 neurons did not converge: 3 max epochs (")
    assert caught[0].filename == __file__
    assert not model.report_.converged.any()


@pytest.mark.thorough
def test_progress_is_shown_only_if_verbose(data, capsys):
    model = PopulationGLM(solver_name="SAGA", regularizer_strength=1e-3)
    model.fit(*data)
    assert capsys.readouterr() == ("", "")
    clone(model).set_params(verbose=True).fit(*data)
    shown = capsys.readouterr().err
    assert "glmfit" in shown and "epoch" in shown and "100%" in shown


@pytest.mark.thorough
def test_an_interrupted_fit_warns_and_leaves_a_usable_model(data, monkeypatch):
    X, Y = data
    visit, calls = Walk.visit, []

    def interrupted(self, *args):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return visit(self, *args)

    monkeypatch.setattr(Walk, "visit", interrupted)
    model = PopulationGLM(solver_name="SAGA", regularizer_strength=1e-3, tol=1e-12)
    with pytest.warns(ConvergenceWarning, match=r"3 of 3 neurons did not converge: 3 interrupted"):
        model.fit(X, Y)
    assert np.all(model.report_.status == Status.INTERRUPTED) and not model.report_.gap_is_bound.any()
    assert model.score(X, Y) > 0
    best = oracle.newton("softplus", X, Y, 1e-3)
    gap = oracle.objective("softplus", X, Y, model.coef_, model.intercept_, strength=1e-3) - best.objective
    assert np.all((model.report_.gap > 0.4 * gap) & (model.report_.gap < 2.5 * gap))


def test_an_interruption_before_anything_was_fitted_leaves_the_old_model(data, monkeypatch):
    X, Y = data
    model = PopulationGLM(solver_name="Newton").fit(X, Y)
    before = model.coef_.copy()
    monkeypatch.setattr(PopulationProblem, "finish_neuron", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    np.testing.assert_array_equal(model.coef_, before)
    assert model.report_.converged.all()


@pytest.mark.thorough
def test_double_precision_is_used_if_jax_and_the_data_have_it(data, x64):
    X, Y = data
    double = PopulationGLM(solver_name="SAGA", regularizer_strength=1e-3, tol=1e-14).fit(X, Y)
    assert double.report_.converged.all() and np.all(double.report_.gap < 1e-12)
    best = oracle.newton("softplus", X, Y, 1e-3)
    np.testing.assert_allclose(double.coef_, best.coef, atol=1e-6)
    single = PopulationGLM(solver_name="SAGA", regularizer_strength=1e-3).fit(X.astype(np.float32), Y)
    assert single.report_.step_certificate.step.dtype == np.float64 and single.report_.converged.all()


def test_fit_calls_its_solver_directly(monkeypatch):
    package, frames, run = Path(glmfit.__file__).parent, [], ConjugateGradients.run

    def seen(*args, **options):
        frames.extend(frame for frame in traceback.extract_stack() if package in Path(frame.filename).parents)
        return run(*args, **options)

    monkeypatch.setattr(ConjugateGradients, "run", seen)
    rng = np.random.default_rng(0)
    PopulationGLM().fit(rng.normal(size=(50, 2)), rng.poisson(1.0, 50))
    assert [(Path(frame.filename).name, frame.name) for frame in frames] == [("population_glm.py", "fit")]


def test_a_subclass_may_pass_keywords_on():
    class Sub(PopulationGLM):
        def __init__(self, extra=1, **more):
            super().__init__(**more)

    model = Sub(extra=2, tol=1e-3)
    assert model.extra == 2 and model.tol == 1e-3 and not hasattr(model, "more")


@pytest.mark.parametrize(
    "given",
    [
        {"regularizer_strength": 1e-3},
        {"regularizer": None},
        {"regularizer": "Lasso", "regularizer_strength": 1e-2},
        {"regularizer_strength": 1e-3, "solver_name": "Newton"},
        {"regularizer_strength": 1e-3, "solver_name": "SAGA"},
        {"regularizer_strength": 1e-3, "observation_model": "Gaussian"},
        {"regularizer_strength": 1e-3, "observation_model": "NegativeBinomial"},
    ],
    ids=lambda given: "-".join(map(str, given.values())),
)
def test_a_fit_may_start_where_another_ended(data, given):
    X, counts = data
    plain = PopulationGLM(**given).fit(X, counts)
    again = PopulationGLM(**given).fit(X, counts, init_params=(plain.coef_, plain.intercept_))
    assert again.report_.converged.all() and again.report_.gap_is_bound.all()
    assert again.n_iter_ <= plain.n_iter_
    slack = plain.report_.gap + again.report_.gap + 1e-12
    assert np.all(np.abs(again.report_.objective - plain.report_.objective) <= slack)


def test_a_start_worse_than_a_constant_rate_is_ignored(data):
    X, counts = data
    plain = PopulationGLM(regularizer_strength=1e-3).fit(X, counts)
    coef, intercept = plain.coef_.copy(), plain.intercept_.copy()
    coef[:, 0], intercept[1] = 1e6, np.nan
    again = PopulationGLM(regularizer_strength=1e-3).fit(X, counts, init_params=(coef, intercept))
    np.testing.assert_allclose(again.coef_[:, :2], plain.coef_[:, :2], rtol=1e-3, atol=1e-5)
    assert again.report_.converged.all()


@pytest.mark.parametrize("strength", [0.0, 1e-3])
def test_components_of_a_start_that_no_row_determines_are_removed(data, strength):
    X, counts = data
    X = np.column_stack([X, np.zeros(len(X)), X[:, 0]])  # a place that was not visited, and a duplicate
    given = {"regularizer_strength": strength} if strength else {"regularizer": None}
    plain = PopulationGLM(**given).fit(X, counts)
    start = plain.coef_.copy()
    start[[5, 6]] += [[5.0], [0.3]]
    again = PopulationGLM(**given).fit(X, counts, init_params=(start, plain.intercept_))
    np.testing.assert_allclose(again.coef_, plain.coef_, atol=1e-2)
    assert again.report_.gap_is_bound.all() and again.n_iter_ <= plain.n_iter_ + 2


def test_an_invalid_start_is_refused(data):
    X, counts = data
    model = PopulationGLM(regularizer_strength=1e-3)
    for wrong in ((np.zeros((2, 2)), np.zeros(2)), (np.zeros(X.shape[1]), 0.0)):
        with pytest.raises(ValueError, match=r"init_params has shapes .*; it must be \(coef, intercept\) of shapes"):
            model.fit(X, counts, init_params=wrong)
    for wrong in ("coef", 3, ("a", "b"), (np.zeros(3),)):
        with pytest.raises(ValueError, match=r"init_params is .*; it must be \(coef, intercept\) of shapes"):
            model.fit(X, counts, init_params=wrong)
    one = model.fit(X, counts[:, 0])
    assert model.fit(X, counts[:, 0], init_params=(one.coef_, one.intercept_)).report_.converged.all()
    with pytest.raises(ValueError, match="feature_mask is given without a penalty; such a fit takes no init_params"):
        mask = np.ones((X.shape[1], counts.shape[1]))
        start = np.zeros(mask.shape), np.zeros(mask.shape[1])
        PopulationGLM(regularizer=None, feature_mask=mask).fit(X, counts, init_params=start)


def test_the_ratio_of_an_elastic_net_has_a_parameter_of_its_own(data):
    X, counts = data
    pair = PopulationGLM(regularizer="ElasticNet", regularizer_strength=(1e-2, 0.8)).fit(X, counts)
    own = PopulationGLM(regularizer="ElasticNet", regularizer_strength=1e-2, l1_ratio=0.8).fit(X, counts)
    np.testing.assert_array_equal(own.coef_, pair.coef_)
    assert own.strength_ == 1e-2 and pair.strength_ == (1e-2, 0.8)
    other = PopulationGLM(regularizer="ElasticNet", regularizer_strength=(1e-2, 0.8), l1_ratio=0.1).fit(X, counts)
    np.testing.assert_array_equal(other.coef_, pair.coef_)  # the tuple decides
    each = PopulationGLM(regularizer="ElasticNet", regularizer_strength=np.full(counts.shape[1], 1e-2), l1_ratio=0.8)
    np.testing.assert_allclose(each.fit(X, counts).coef_, pair.coef_, atol=1e-6)
    strengths = [1e-1, 1e-2]
    paths = [PopulationGLM(**vars_of).path(X, counts, strengths) for vars_of in (pair.get_params(), own.get_params())]
    np.testing.assert_array_equal(paths[0].coef, paths[1].coef)
    with pytest.raises(ValueError, match=r"l1_ratio is 1\.5; it must be a number in \(0, 1\]"):
        PopulationGLM(regularizer="ElasticNet", l1_ratio=1.5).fit(X, counts)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso", "ElasticNet", "GroupLasso"])
def test_a_masked_fit_equals_fits_of_each_neuron_to_its_features(regularizer, dtype, rng):
    X = rng.normal(size=(800, 8)).astype(dtype)
    counts = rng.poisson(np.logaddexp(0, 0.5 * X[:, :3] - 0.5 * X[:, 2:5]))
    groups = np.repeat(np.arange(4), 2)
    mask = np.ones((8, 3), int)
    mask[:2, 0] = mask[4:, 1] = 0
    strength = np.array([1e-2, 3e-2, 2e-3])
    parameters = {"regularizer": regularizer, "tol": 1e-9}
    grouped = {"groups": groups} if regularizer == "GroupLasso" else {}
    model = PopulationGLM(regularizer_strength=strength, feature_mask=mask, **grouped, **parameters).fit(X, counts)
    assert model.report_.converged.all()
    np.testing.assert_array_equal(model.strength_, strength)
    assert not model.coef_[mask == 0].any()
    for n, own in enumerate(mask.T.astype(bool)):
        grouped = {"groups": groups[own]} if regularizer == "GroupLasso" else {}
        alone = PopulationGLM(regularizer_strength=strength[n], **grouped, **parameters).fit(X[:, own], counts[:, n])
        np.testing.assert_allclose(model.coef_[own, n], alone.coef_, atol=2e-5)
        np.testing.assert_allclose(model.report_.objective[n], alone.report_.objective, rtol=1e-7)


def test_features_that_a_mask_excludes_add_no_ridge_to_an_elastic_net():
    excluded = np.array([[True, False], [False, False]])
    given = penalties.ElasticNet(np.array([1e-2, 1e-3]), np.asarray(0.25)).without(excluded)
    np.testing.assert_allclose(given.ridge_strength, [[0, 0.75e-3], [0.75e-2, 0.75e-3]])
    np.testing.assert_allclose(given.l1_strength[~excluded], [0.25e-3, 0.25e-2, 0.25e-3])


@pytest.fixture(scope="module")
def masked():
    """Features, counts, and a mask that leaves no feature to neuron 3."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(1500, 8))
    counts = rng.poisson(np.logaddexp(0, 0.5 * X[:, :4] - 0.5 * X[:, 2:6]))
    mask = np.ones((8, 4), bool)
    mask[:2, 0] = mask[4:, 1] = mask[:, 3] = False
    return X, counts, mask


@pytest.mark.parametrize("solver", ["auto", "ProximalNewton", "Newton", "SAGA"])
@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso"])
def test_all_solvers_take_a_mask_a_start_and_a_checkpoint(masked, solver, regularizer, tmp_path):
    X, counts, mask = masked
    given = {"regularizer": regularizer, "regularizer_strength": 1e-2, "feature_mask": mask}
    exact = PopulationGLM(tol=1e-10, solver_name="Newton", **given).fit(X, counts)
    model = PopulationGLM(solver_name=solver, **given).fit(X, counts, checkpoint=tmp_path / "fit.npz")
    assert model.report_.converged.all() and model.report_.gap_is_bound.all() and not model.coef_[~mask].any()
    assert np.all(model.report_.objective - exact.report_.objective <= model.report_.gap + 1e-12)
    again = PopulationGLM(solver_name=solver, **given).fit(X, counts, checkpoint=tmp_path / "fit.npz")
    np.testing.assert_array_equal(again.coef_, model.coef_)
    near = PopulationGLM(solver_name=solver, **given).fit(
        X, counts, init_params=(exact.coef_ + ~mask, exact.intercept_)
    )
    assert near.n_iter_ <= model.n_iter_ and not near.coef_[~mask].any()


@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso", "GroupLasso"])
def test_a_masked_fit_reads_rows_from_a_file(masked, regularizer, tmp_path):
    X, counts, mask = masked
    mask = np.repeat(mask[::2], 2, axis=0)
    np.save(tmp_path / "X.npy", X)
    given = {"regularizer": regularizer, "regularizer_strength": 1e-2, "feature_mask": mask}
    given |= {"groups": np.repeat(np.arange(4), 2)} if regularizer == "GroupLasso" else {}
    loaded = PopulationGLM(**given).fit(X, counts)
    streamed = PopulationGLM(max_memory=1e4, **given).fit(np.load(tmp_path / "X.npy", mmap_mode="r"), counts)
    assert streamed.report_.solver_name == "ProximalNewton" and streamed.report_.converged.all()
    np.testing.assert_allclose(streamed.report_.objective, loaded.report_.objective, rtol=1e-6)
    assert not streamed.coef_[~mask].any()


def test_a_masked_fit_without_a_penalty_names_its_solvers(masked):
    X, counts, mask = masked
    with pytest.raises(ValueError, match="without a penalty, but solver_name is 'SAGA'; use 'auto' or 'Newton'"):
        PopulationGLM(regularizer=None, feature_mask=mask, solver_name="SAGA").fit(X, counts)


@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso", "ElasticNet"])
def test_a_path_with_a_mask_equals_fits_with_it(masked, regularizer):
    X, counts, mask = masked
    model = PopulationGLM(regularizer=regularizer, feature_mask=mask)
    path = model.path(X, counts)
    assert path.converged.all() and not path.coef[:, ~mask].any()
    for s in (5, 20):
        one = PopulationGLM(regularizer=regularizer, regularizer_strength=path.strengths[s], feature_mask=mask)
        np.testing.assert_allclose(path.objective[s], one.fit(X, counts).report_.objective, rtol=1e-5)
    plain = PopulationGLM(regularizer=regularizer).path(X[:, mask[:, 1]], counts[:, 1])
    np.testing.assert_allclose(path.strengths[:, 1], plain.strengths[:, 0], rtol=1e-5)


def test_the_dispersion_with_a_masked_ridge_is_that_of_the_fit_alone(masked):
    X, _, mask = masked
    rng = np.random.default_rng(6)
    rate = np.exp(0.6 * X[:, :2] - 0.5)
    counts = rng.poisson(rate * rng.gamma(2.0, 0.5, size=rate.shape))
    given = {"regularizer_strength": 1e-3, "observation_model": "NegativeBinomial"}
    model = PopulationGLM(feature_mask=mask[:, :2], **given).fit(X, counts)
    for n in range(2):
        alone = PopulationGLM(**given).fit(X[:, mask[:, n]], counts[:, n])
        np.testing.assert_allclose(model.dispersion_[n], alone.dispersion_, rtol=1e-3)


def test_the_dispersion_with_a_mask_and_a_lasso_is_that_of_the_fit_alone(rng):
    X = rng.normal(size=(500, 4))
    rate = np.exp(0.6 * X[:, :2] - 0.5)
    counts = rng.poisson(rate * rng.gamma(2.0, 0.5, size=rate.shape))
    parameters = {"regularizer": "Lasso", "regularizer_strength": 1e-3, "observation_model": "NegativeBinomial"}
    mask = np.ones((4, 2), bool)
    mask[1, 0] = mask[0, 1] = False
    model = PopulationGLM(feature_mask=mask, **parameters).fit(X, counts)
    assert not model.coef_[~mask].any()
    for n in range(2):
        alone = PopulationGLM(**parameters).fit(X[:, mask[:, n]], counts[:, n])
        np.testing.assert_allclose(model.coef_[mask[:, n], n], alone.coef_, atol=1e-3)
        np.testing.assert_allclose(model.dispersion_[n], alone.dispersion_, rtol=1e-2)


def test_no_smaller_strength_is_advised_where_the_informative_feature_is_masked(rng):
    X = rng.normal(size=(2000, 4))
    counts = rng.poisson(np.exp(0.8 * X[:, :1] - 0.5) * np.ones((1, 2)))
    mask = np.ones((4, 2))
    mask[0] = 0
    model = PopulationGLM(regularizer="Lasso", regularizer_strength=0.1, feature_mask=mask).fit(X, counts)
    assert not model.coef_.any()  # and warnings are errors


def test_a_mask_of_a_part_of_a_group_is_refused(data):
    X, counts = data
    groups = np.arange(X.shape[1]) // 2
    mask = np.ones((X.shape[1], counts.shape[1]))
    mask[1, 0] = 0
    with pytest.raises(ValueError, match="some features of group 0 are excluded for neuron 0 and others are not"):
        PopulationGLM(regularizer="GroupLasso", groups=groups, feature_mask=mask).fit(X, counts)
    with pytest.raises(ValueError, match=r"feature 1 is excluded for some neuron, but it is in no group"):
        free = np.where(groups == 0, -1, groups)
        PopulationGLM(regularizer="GroupLasso", groups=free, feature_mask=mask).fit(X, counts)


def test_pad_shapes_has_no_effect_and_warns(data):
    X, counts = data
    with pytest.warns(UserWarning, match="pad_shapes has no effect since version 0.2; the next version removes it"):
        padded = PopulationGLM(pad_shapes=True).fit(X, counts)
    np.testing.assert_array_equal(padded.coef_, PopulationGLM().fit(X, counts).coef_)


def test_an_elastic_net_without_a_strength_has_strength_1(data):
    X, counts = data[:2]
    with pytest.warns(UserWarning, match="with regularizer_strength 1 no linear predictor"):
        one, other = (
            PopulationGLM(regularizer="ElasticNet", regularizer_strength=strength).fit(X, counts)
            for strength in ((None, 0.5), (1.0, 0.5))
        )
    assert one.strength_ == other.strength_ == (1.0, 0.5)
    np.testing.assert_array_equal(one.coef_, other.coef_)


def test_a_flag_of_a_score_is_true_or_false(data):
    X, counts = data[:2]
    with pytest.raises(ValueError, match="per_neuron is 'yes'; it must be True or False"):
        PopulationGLM().fit(X, counts).score(X, counts, per_neuron="yes")
