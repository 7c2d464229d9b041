"""Bad input: a clear error that says what was given, what is allowed, what to do; or the right answer."""

import warnings
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import GROUPS, D, N, T, design, recording
from oracles import population as oracle
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import validate_data

from glmfit import PopulationGLM, Status
from glmfit.data import features

every_solver = pytest.mark.parametrize("solver", ["Newton", "SAGA"])


@pytest.fixture(scope="module")
def data():
    return recording()


def changed(array, where, value):
    array = np.array(array, copy=True)
    array[where] = value
    return array


def fails(X, y, match, sample_weight=None, error=ValueError, **parameters):
    with pytest.raises(error, match=match):
        PopulationGLM(**parameters).fit(X, y, sample_weight)


# ------------------------------------------------------------------------- refused: counts


def test_negative_counts_are_an_error_that_says_where(data):
    X, Y = data
    bad = changed(changed(Y, (12, 1), -2.5), (40, 0), -1)
    words = r"y has 2 negative counts \(first at row 12, neuron 1, value -2.5\); the model needs counts .*z-scored"
    fails(X, bad, words)
    with pytest.raises(ValueError, match="negative counts"):
        PopulationGLM().fit(X, Y).score(X, bad)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_values_are_an_error_that_names_the_array(value, data):
    X, Y = data
    fails(changed(X, (3, 1), value), Y, r"Input X contains infinity: 1 infinite values \(first at row 3, feature 1\)")
    fails(X, changed(Y, (3, 1), value), r"Input y contains infinity: 1 infinite values \(first at row 3, neuron 1\)")
    fails(X, changed(Y[:, 0], 3, value), r"Input y contains infinity: 1 infinite values \(first at row 3\)")
    fails(X, Y, f"sample_weight is {value} at row 3; it needs finite", sample_weight=changed(np.ones(T), 3, value))
    model = PopulationGLM().fit(X, Y)
    with pytest.raises(ValueError, match="Input X contains infinity"):
        model.predict(changed(X, (3, 1), value))


def test_nan_everywhere_is_an_error_that_says_which_column(data):
    X, Y = data
    fails(np.full_like(X, np.nan), Y, "every row has a NaN in X, y or offset; no row is left. All NaN: feature 0")
    words = "no row is left. All NaN: feature 3. A constant column divided by its standard deviation, or values outside"
    fails(changed(X, (slice(None), 3), np.nan), Y, words)
    fails(X, changed(Y, (slice(None), slice(None)), np.nan), "no row is left. All NaN: neuron 0, neuron 1")
    with pytest.warns(ConvergenceWarning, match="1 of 3 neurons did not converge: 1 no data"):
        model = PopulationGLM().fit(X, changed(Y, (slice(None), 2), np.nan))
    assert np.isnan(model.coef_[:, 2]).all() and model.report_.converged.tolist() == [True, True, False]


def test_counts_that_are_not_integers_give_one_clear_warning(data):
    X, Y = data
    calcium = changed(Y, (slice(None), 1), Y[:, 1] * 0.37)
    with pytest.warns(UserWarning) as caught:
        model = PopulationGLM(regularizer_strength=1e-3).fit(X, calcium)
    assert len(caught) == 1 and caught[0].filename == __file__
    words = "y has counts that are not integers, in 1 of 3 neurons: fitting the Poisson quasi-likelihood."
    assert str(caught[0].message).startswith(words)
    best = oracle.newton("softplus", X, calcium, 1e-3)
    np.testing.assert_allclose(model.report_.objective, best.objective, atol=model.report_.target.max())
    assert np.isfinite(model.score(X, calcium))  # the warning comes once, at the fit


# ------------------------------------------------------------------------- refused: shapes and types


def test_different_lengths_are_an_error_that_states_both(data):
    X, Y = data
    words = "X has 600 rows but y has 599: inconsistent numbers of samples. .*same bin size, start and end"
    fails(X, Y[1:], words)
    fails(X, Y, r"sample_weight.*\(599,\).*\(600,\)", sample_weight=np.ones(T - 1))
    with pytest.raises(ValueError, match="X has 600 rows but y has 599"):
        PopulationGLM().fit(X, Y).score(X, Y[1:])


def test_one_dimensional_features_are_an_error_with_advice(data):
    X, Y = data
    advice = r"X has shape \(600,\), one dimension; it needs features, \(time, feature\). Reshape your data: "
    fails(X[:, 0], Y, advice + r"X\[:, None\] if it is one feature, X\[None\] if it is one row")
    fails(X[:, 0].tolist(), Y, advice + r"numpy.asarray\(X\)\[:, None\]")
    fails(pd.Series(X[:, 0]), Y, advice + r"X.to_frame\(\) if")
    fails(X[0, 0], Y, "X is .*; it needs features", error=TypeError)


def test_counts_of_too_many_dimensions_are_an_error(data):
    X, Y = data
    fails(X, Y[:, :, None], r"y has shape \(600, 3, 1\), 3 dimensions; it needs counts")
    fails(X, 3.0, "y is 3.0; it needs counts, one row per time bin", error=TypeError)


def test_empty_data_are_an_error(data):
    X, Y = data
    fails(X[:0], Y[:0], r"0 sample\(s\).*minimum of 2")
    fails(X[:, :0], Y, r"0 feature\(s\).*minimum of 1")
    fails(X, Y[:, :0], "so it has no neurons")


def test_one_row_is_an_error(data):
    X, Y = data
    fails(X[:1], Y[:1], r"1 sample.*minimum of 2")
    holes = changed(X, slice(1, None), np.nan)
    fails(holes, Y, r"1 usable rows \(time bins\) after dropping 599 with NaN; a fit needs at least 2")


def test_missing_counts_are_an_error(data):
    fails(data[0], None, "target y is None: give the spike counts")


def test_objects_and_words_are_an_error(data):
    X, Y = data
    fails(np.full((T, D), "spike"), Y, "X has dtype <U5; it must be real numbers")
    fails(X, np.full(T, "spike"), "y has dtype <U5; it must be real numbers")
    fails(np.array([[{}] * D] * T, object), Y, "float|number", error=(TypeError, ValueError))
    fails(X, [[1, 2], [3]], "inhomogeneous|sequence")
    # Object arrays that hold numbers are accepted.
    model, plain = PopulationGLM().fit(X.astype(object), Y.astype(object)), PopulationGLM().fit(X, Y)
    np.testing.assert_array_equal(model.coef_, plain.coef_)


def test_complex_numbers_are_an_error(data):
    X, Y = data
    fails(X + 1j, Y, "Complex data not supported")
    fails(X, Y + 0j, "Complex data not supported")


@pytest.mark.parametrize("make", [scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_matrix])
def test_sparse_arrays_are_refused_with_advice(make, data):
    X, Y = data
    words = r"X is a sparse matrix of shape \(600, 5\); dense data is required .*Pass X.toarray\(\)"
    fails(make(X), Y, words, error=TypeError)
    fails(X, make(Y), r"y is a sparse matrix .*Pass y.toarray\(\)", error=TypeError)
    with pytest.raises(TypeError, match="X is a sparse matrix"):
        PopulationGLM().fit(X, Y).predict(make(X))


def test_bad_weights_are_an_error(data):
    X, Y = data
    fails(X, Y, "sample_weight is -1 at row 3; it needs finite numbers >= 0", sample_weight=changed(np.ones(T), 3, -1))
    fails(X, Y, "at least one non-zero|needs a positive weight", sample_weight=np.zeros(T))
    fails(
        X,
        Y,
        "sample_weight is nan at row 3; it needs finite numbers >= 0. A weight of 0 excludes",
        sample_weight=changed(np.ones(T), 3, np.nan),
    )
    fails(
        X,
        Y,
        r"sample_weight has shape \(600, 2\); it needs one number per row, \(600,\)",
        sample_weight=np.ones((T, 2)),
    )
    fails(X, Y, r"up to 1e\+306, their sum overflows.*divide all by the largest", sample_weight=np.full(T, 1e306))
    fails(X, Y, "up to 1e-310, too small.*divide all by the largest", sample_weight=np.full(T, 1e-310))
    with pytest.raises(ValueError, match=r"^exposure is up to 1e\+308, their sum overflows"):
        PopulationGLM().fit(X, Y, exposure=np.full(T, 1e308))
    with pytest.raises(ValueError, match="divide all by the largest"):
        PopulationGLM().fit(X, Y).score(X, Y, sample_weight=np.full(T, 1e308))
    with pytest.raises(ValueError, match="sample_weight times exposure is up to inf"):
        PopulationGLM().fit(X, Y, np.full(T, 1e200), exposure=np.full(T, 1e200))
    # All weight on rows with a NaN leaves nothing to fit, either.
    fails(
        changed(X, (slice(300), 0), np.nan),
        Y,
        "sample_weight is zero on all 300 rows without NaN; at least one of them needs a positive weight",
        sample_weight=(np.arange(T) < 300).astype(float),
    )


def test_predicting_with_other_features_is_an_error(data):
    X, Y = data
    model = PopulationGLM().fit(X, Y)
    with pytest.raises(ValueError, match="X has 4 features, but PopulationGLM is expecting 5 features"):
        model.predict(X[:, :4])
    with pytest.raises(ValueError, match="y has 2 neurons but the model was fitted to 3"):
        model.score(X, Y[:, :2])


# ------------------------------------------------------------------------- refused: parameters


@pytest.mark.parametrize(
    "parameters, error, message",
    [
        ({"inverse_link_function": "relu"}, ValueError, r"'relu'; with .* allowed are 'softplus' and 'exp'"),
        ({"regularizer": "ridge"}, ValueError, "regularizer is 'ridge'; allowed are 'UnRegularized', 'Ridge'"),
        ({"solver_name": "Adam"}, ValueError, "solver_name is 'Adam'; it must be \"auto\" or one of Conj"),
        ({"solver_name": None}, ValueError, "solver_name is None; it must be"),
        ({"regularizer_strength": -1}, ValueError, "regularizer_strength is -1.0; it must be finite and >= 0"),
        ({"regularizer_strength": np.nan}, ValueError, "regularizer_strength is nan; it must be finite"),
        ({"regularizer_strength": "much"}, ValueError, "regularizer_strength is 'much'; allowed are a number or"),
        ({"regularizer_strength": [1, 2]}, ValueError, r"shape \(2,\); allowed are a number, one .* shape \(3,\)"),
        ({"regularizer_strength": np.ones((N, D))}, ValueError, rf"shape \({N}, {D}\); allowed .* shape \({D}, {N}\)"),
        ({"regularizer": "GroupLasso"}, ValueError, "groups is None; pass groups as one label per feature"),
        ({"groups": [0] * D}, ValueError, "groups is given, but regularizer is 'Ridge'"),
        ({"regularizer": "GroupLasso", "groups": [0, 1]}, ValueError, r"shape \(2,\); it needs one label per feature"),
        ({"regularizer": "GroupLasso", "groups": {"a": ["x"]}}, ValueError, "X has no feature names: use indices"),
        ({"tol": 0}, ValueError, "tol is 0; it must be a finite number above 0"),
        ({"tol": -1e-3}, ValueError, "tol is -0.001; it must"),
        ({"tol": np.nan}, ValueError, "tol is nan; it must"),
        ({"tol": "small"}, ValueError, "tol is 'small'; it must"),
        ({"max_epochs": 0}, ValueError, "max_epochs is 0; it must be a whole number of at least 1"),
        ({"max_epochs": 2.5}, ValueError, "max_epochs is 2.5; it must be a whole number"),
        ({"max_epochs": True}, ValueError, "max_epochs is True; it must be a whole number"),
        ({"tol": True}, ValueError, "tol is True; it must be a finite number"),
        ({"pad_shapes": 1}, ValueError, "pad_shapes is 1; it must be True or False"),
        ({"random_state": -1}, ValueError, "random_state is -1; it must be a seed >= 0"),
        ({"random_state": "seed"}, ValueError, "random_state is 'seed'; it must be"),
        ({"solver_kwargs": {"batch_size": 9}}, ValueError, r"\['batch_size'\] were given with solver_name=\"auto\""),
        ({"solver_kwargs": [1]}, ValueError, r"solver_kwargs is \[1\]; it must be a dict"),
    ],
)  # fmt: skip
def test_invalid_parameters_are_refused(parameters, error, message, data):
    fails(*data, message, error=error, **parameters)


@pytest.mark.parametrize(
    "solver, kwargs, message",
    [
        ("SAGA", {"batchsize": 9}, r"solver_kwargs of SAGA may be batch_size, sampling.*, and not 'batchsize'"),
        ("SAGA", {"batch_size": 601}, "batch_size is 601 but there are 600 rows; it must lie between 1 and 600"),
        ("SAGA", {"batch_size": 0}, "batch_size is 0; it must be a whole number of at least 1"),
        ("SAGA", {"sampling": "cyclic"}, "sampling is 'cyclic'; it must be one of 'partition', 'subsets', 'shuffle'"),
        ("SAGA", {"step_scale": 4}, r"step_scale is 4; it must be a number in \(0, 2\]"),
        ("LBFGS", {}, "solver_name is 'LBFGS', which version 0.2 no longer has for populations. Use \"auto\" or"),
        ("BoundMajorization", {"relaxation": 1}, "'BoundMajorization', which version 0.2 no longer has for pop"),
        ("Newton", {"batch_size": 9}, r"solver_kwargs of Newton may be empty only, and not 'batch_size'"),
    ],
)  # fmt: skip
def test_invalid_solver_parameters_are_refused(solver, kwargs, message, data):
    fails(*data, message, solver_name=solver, solver_kwargs=kwargs)


def test_solvers_of_one_kind_of_penalty_refuse_the_other(data):
    words = 'ConjugateGradients needs a smooth penalty .*; this problem has Lasso. Use solver_name="auto" or "Proxim'
    fails(*data, words, solver_name="ConjugateGradients", regularizer="Lasso", regularizer_strength=0.1)
    words = 'ProximalNewton needs a penalty with kinks .*; this problem has Ridge. Use solver_name="auto" or "Conjugate'
    fails(*data, words, solver_name="ProximalNewton", regularizer_strength=0.1)


def test_unknown_scores_are_refused(data):
    model = PopulationGLM().fit(*data)
    with pytest.raises(ValueError, match="score_type is 'r2'; it must be one of 'D2', 'pseudo-r2-McFadden', 'log-"):
        model.score(*data, score_type="r2")


# ------------------------------------------------------------------------- nothing half-done


BREAK = {
    "negative counts": lambda m, X, Y: m.fit(X[:, :3], -Y - 1),
    "named features": lambda m, X, Y: m.fit(pd.DataFrame(X, columns=list("abcde")), -Y - 1),
    "too long": lambda m, X, Y: m.fit(X[:, :3], Y[1:]),
    "bad strength": lambda m, X, Y: m.set_params(regularizer_strength=-1).fit(X[:, :3], Y),
    "bad solver": lambda m, X, Y: m.set_params(solver_name="Adam").fit(X[:, :3], Y),
    "bad batch": lambda m, X, Y: m.set_params(solver_name="SAGA", solver_kwargs={"batch_size": 999}).fit(X[:, :3], Y),
}


@pytest.mark.parametrize("kind", BREAK)
def test_failed_fit_leaves_the_model_unchanged(kind, data):
    X, Y = data
    model = PopulationGLM(regularizer_strength=1e-3)
    with pytest.raises(ValueError):
        BREAK[kind](model, X, Y)
    assert not [name for name in vars(model) if name.endswith("_") and not name.startswith("_")]
    model = PopulationGLM(regularizer_strength=1e-3).fit(X, Y)
    rate = model.predict(X)
    with pytest.raises(ValueError):
        BREAK[kind](model, X, Y)
    np.testing.assert_array_equal(model.predict(X), rate)
    assert model.n_features_in_ == D and not hasattr(model, "feature_names_in_")


# ------------------------------------------------------------------------- accepted: must be right


def check_fit(X, Y, solver, ridge=1e-3, link="softplus", weights=None, **parameters):
    """Fit, and compare with the oracle: converged, a valid bound, the predictions of the optimum."""
    model = PopulationGLM(link, regularizer_strength=ridge, solver_name=solver, tol=1e-7, **parameters)
    model.fit(X, Y, weights)
    best = oracle.newton(link, X, Y, ridge, weights)
    report = model.report_
    assert np.all(report.status == Status.CONVERGED)
    gap = oracle.objective(link, X, Y, model.coef_, model.intercept_, weights, strength=ridge) - best.objective
    assert np.all(gap <= report.target + 1e-14)
    assert np.all((report.gap >= gap - 1e-14) | ~report.gap_is_bound)
    expected = oracle.rate(link, np.asarray(X, float) @ best.coef + best.intercept)
    counted = np.ones(len(X), bool) if weights is None else weights > 0
    # A gap g allows rates to be off by about sqrt(2 g) relative to the root of the rate, on average.
    error = np.mean(((model.predict(X) - expected) ** 2 / np.maximum(expected, 1e-3))[counted], axis=0)
    assert np.all(error <= 4 * report.target + 1e-9)
    return model


@pytest.mark.thorough(cases=41)
@every_solver
@pytest.mark.parametrize("ridge", [0.0, 1e-3])
@pytest.mark.parametrize(
    "kind", ["constant column", "zero column", "duplicate", "sign pairs", "collinear", "scaled 1e8", "scaled 1e6",
             "scaled 1e-2", "far mean", "outlier", "clustered"]
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:X has a constant column")  # one of the designs has one
@pytest.mark.filterwarnings("ignore:feature 1 is 735.248 in 1 row")  # another one has an outlier
def test_awkward_designs_are_fitted_to_their_optimum(kind, ridge, solver):
    X = design(kind)
    Y = recording()[1]
    model = check_fit(X, Y, solver, ridge)
    assert model.report_.gap_is_bound.all()
    if kind in ("constant column", "zero column"):
        np.testing.assert_allclose(model.coef_[2], 0, atol=1e-12)
        assert solver == "Newton" or model.report_.rank == D - 1
    if kind == "duplicate" and ridge:
        np.testing.assert_allclose(model.coef_[0], model.coef_[1], atol=1e-4)


SPARSE = {
    "Lasso": {"strength": 0.02},
    "ElasticNet": {"strength": 0.02, "ratio": 0.5},
    "GroupLasso": {"strength": 0.02, "groups": GROUPS},
}


@pytest.mark.thorough(cases=9)
@pytest.mark.parametrize("penalty", SPARSE)
@pytest.mark.parametrize("kind", ["constant column", "duplicate", "sign pairs", "collinear", "scaled 1e8", "far mean"])
@pytest.mark.filterwarnings("ignore:X has a constant column")  # one of the designs has one
def test_awkward_designs_are_fitted_with_sparse_penalties_too(kind, penalty):
    if (kind, penalty) == ("scaled 1e8", "GroupLasso"):
        pytest.skip("a group with features of scale 1e8 and 1 is one feature and noise")
    X, Y, numbers = design(kind), recording()[1], SPARSE[penalty]
    strength = (numbers["strength"], numbers["ratio"]) if "ratio" in numbers else numbers["strength"]
    model = PopulationGLM(regularizer=penalty, regularizer_strength=strength, groups=numbers.get("groups"), tol=1e-7)
    # With an unpenalised feature, there is no proof if a combination of features is always 0.
    proved = penalty != "GroupLasso" or kind not in ("duplicate", "sign pairs", "collinear")
    with nullcontext() if proved else pytest.warns(ConvergenceWarning, match="3 unproved"):
        model.fit(X, Y)
    best = oracle.proximal("softplus", X, Y, penalty, **numbers)
    assert best.residual.max() < 1e-9
    gap = oracle.objective("softplus", X, Y, model.coef_, model.intercept_, None, penalty, **numbers)
    gap -= best.objective
    assert np.all(gap <= model.report_.target + 1e-12)
    assert np.all((model.report_.gap >= gap - 1e-14) | ~model.report_.gap_is_bound)
    assert model.report_.converged.all() or not proved
    if kind == "constant column" and penalty != "GroupLasso":
        np.testing.assert_array_equal(model.coef_[2], 0)
    if kind == "constant column":
        np.testing.assert_allclose(model.coef_[2], 0, atol=1e-12)


@pytest.mark.thorough(cases=1)
@every_solver
def test_more_features_than_rows_are_fitted(solver):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 60))
    Y = rng.poisson(1.0, size=(40, 2)).astype(float)
    model = check_fit(X, Y, solver, ridge=0.05)
    assert solver == "Newton" or model.report_.rank == 39


@pytest.mark.thorough(cases=1)
@every_solver
def test_feature_that_is_zero_in_all_rows_with_weight_gets_no_coefficient(solver):
    X, Y = recording()
    X[:, 1] = 0.0
    X[:100, 1] = np.random.default_rng(0).normal(size=100)
    weights = (np.arange(T) >= 100).astype(float)
    for ridge in (0.0, 1e-3):
        model = check_fit(X, Y, solver, ridge, weights=weights)
        np.testing.assert_allclose(model.coef_[1], 0, atol=1e-12)


@pytest.mark.thorough(cases=1)
@every_solver
@pytest.mark.parametrize("link", ["softplus", "exp"])
def test_a_neuron_without_spikes_is_predicted_at_rate_zero(link, solver):
    X, Y = recording()
    Y[:, 1] = 0
    model = PopulationGLM(link, regularizer_strength=1e-3, solver_name=solver).fit(X, Y)  # and no warning
    assert model.report_.status.tolist() == [Status.CONVERGED, Status.NO_SPIKES, Status.CONVERGED]
    rate = model.predict(1e3 * X)
    assert np.all(rate[:, 1] == 0) and np.all(np.isfinite(model.predict(X)))
    assert np.all(model.coef_[:, 1] == 0) and model.report_.gap[1] == 0
    assert np.isnan(model.report_.pseudo_r2[1]) and np.isfinite(model.report_.pseudo_r2[[0, 2]]).all()
    assert np.all(model.simulate(X)[:, 1] == 0)
    assert np.isfinite(model.score(X, Y))
    alone = PopulationGLM(link, regularizer_strength=1e-3, solver_name=solver).fit(X, Y[:, 1])
    assert np.all(alone.predict(X) == 0) and alone.report_.status.tolist() == [Status.NO_SPIKES]
    # Spikes in rows of weight zero do not count for the fit.
    weights = np.where(np.arange(T) < 300, 0.0, 1.0)
    Y[:300, 1] = 1
    held_out = PopulationGLM(link, regularizer_strength=1e-3, solver_name=solver).fit(X, Y, weights)
    assert held_out.report_.status[1] == Status.NO_SPIKES and np.all(held_out.predict(X)[:, 1] == 0)


@pytest.mark.thorough(cases=1)
@every_solver
@pytest.mark.parametrize("link", ["softplus", "exp"])
def test_a_neuron_with_one_huge_bin_is_fitted(link, solver):
    X, Y = recording()
    Y[123, 1] = 1e6
    with warnings.catch_warnings():
        if link == "exp":  # 1e6 counts at a rate near 1 may prevent convergence
            warnings.simplefilter("ignore", ConvergenceWarning)
        model = PopulationGLM(link, regularizer_strength=1e-3, solver_name=solver).fit(X, Y)
    best = oracle.newton(link, X, Y, 1e-3)
    gap = oracle.objective(link, X, Y, model.coef_, model.intercept_, strength=1e-3) - best.objective
    report = model.report_
    assert np.all(np.isfinite(model.coef_)) and np.all(np.isfinite(model.predict(X)))
    assert report.status.tolist() == [Status.CONVERGED] * 3
    assert np.all(gap <= report.target + 1e-15 * np.abs(best.objective))


@pytest.mark.thorough
@every_solver
def test_huge_strength_gives_the_null_model(solver):
    X, Y = recording()
    with pytest.warns(UserWarning, match=r"next to nothing .* regularizer_strength 1e\+08"):
        model = check_fit(X, Y, solver, ridge=1e8)
    np.testing.assert_allclose(model.predict(X), np.broadcast_to(Y.mean(axis=0), Y.shape), rtol=1e-4)


@pytest.mark.thorough(cases=1)
@every_solver
def test_two_rows_are_enough(solver):
    X, Y = np.array([[0.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    model = PopulationGLM(regularizer_strength=0.1, solver_name=solver).fit(X, Y)
    best = oracle.newton("softplus", X, Y[:, None], 0.1)
    assert np.all(np.abs(model.report_.objective - best.objective) <= model.report_.target)


@pytest.mark.thorough
@every_solver
def test_all_counts_equal_give_the_null_model(solver):
    X, _ = recording()
    model = check_fit(X, np.full((T, N), 2.0), solver)
    np.testing.assert_allclose(model.predict(X), 2.0, rtol=1e-4)
    np.testing.assert_allclose(model.coef_, 0, atol=1e-4)


# ------------------------------------------------------------------------- found by readers


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("solver", ["Newton", "SAGA", "ConjugateGradients"])
def test_a_row_of_weight_zero_may_hold_anything_finite(solver):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 2))
    y = rng.poisson(np.exp(X @ [0.5, 0.2]))
    weights = np.ones(1000)
    weights[3] = 0
    far = PopulationGLM("exp", solver_name=solver).fit(changed(X, 3, 1e4), y, weights)
    without = PopulationGLM("exp", solver_name=solver).fit(np.delete(X, 3, axis=0), np.delete(y, 3))
    assert far.report_.converged.all()
    # Not to the last bit: the order in which BLAS sums depends on the address of an array.
    np.testing.assert_allclose(far.coef_, without.coef_, rtol=1e-12)


def test_masked_entries_count_as_missing(data):
    X, Y = data
    clean = PopulationGLM().fit(np.delete(X, 5, axis=0), np.delete(Y, 5, axis=0))
    for masked in ((X, np.ma.array(changed(Y, (5, 0), 1000), mask=changed(Y < 0, (5, 0), True))),
                   (np.ma.array(changed(X, (5, 0), 1000), mask=changed(X > 1e9, (5, 0), True)), Y)):  # fmt: skip
        model = PopulationGLM().fit(*masked)
        of_neuron = masked[1] is not Y  # a masked count is missing for its neuron, a masked feature for all
        assert model.report_.n_dropped == (0 if of_neuron else 1)
        assert model.report_.n_masked.tolist() == ([1, 0, 0] if of_neuron else [0, 0, 0])
        some = [0] if of_neuron else [0, 1, 2]
        np.testing.assert_allclose(model.coef_[:, some], clean.coef_[:, some], atol=1e-4 if of_neuron else 1e-13)


def test_negative_weights_are_refused_when_scoring_too(data):
    X, Y = data
    model = PopulationGLM().fit(X, Y)
    with pytest.raises(ValueError, match="sample_weight is -1 at row 3"):
        model.score(X, Y, sample_weight=changed(np.ones(T), 3, -1))


def test_words_dates_and_empty_counts_are_named(data):
    X, Y = data
    fails(X, np.full((T, N), "a", dtype=object), r"y has entries that are not numbers \(could not convert")
    fails(X.astype("datetime64[s]"), Y, r"X has dtype datetime64\[s\]; it must be real numbers")
    fails(X, Y.astype(complex), "y has dtype complex128.*Complex data not supported")
    fails(X, Y[:, :0], r"y has shape \(600, 0\), so it has no neurons")
    fails(X, Y, "solver_name is", solver_name=["SAGA"])
    fails(X, Y, "check_every is None", solver_name="SAGA", solver_kwargs={"check_every": None})


@pytest.mark.slow
def test_slow_lasso_is_not_reported_as_a_precision_floor():
    """More features than rows: the objective falls slowly, but not because of rounding."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 60))
    y = rng.poisson(np.logaddexp(0, X[:, :5].sum(axis=1) / 2 - 1))
    with pytest.warns(ConvergenceWarning, match="max epochs"):
        model = PopulationGLM(regularizer="Lasso", regularizer_strength=1e-3).fit(X, y)
    assert model.report_.status[0] == Status.MAX_EPOCHS and model.n_iter_ == 200


def test_an_array_is_read_without_a_search_for_data_frames(monkeypatch):
    """scikit-learn's checks of an array are slow the first time; their results stay the same."""
    X, Y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(120.0).reshape(60, 2) % 3
    for given in (X, X.astype(np.float32), np.asfortranarray(X), X > 0):
        estimator = PopulationGLM()
        with monkeypatch.context() as patch:
            patch.setattr(features, "validate_data", None)
            read = features.read_features(estimator, given, reset=True)
        wanted = validate_data(PopulationGLM(), given, dtype=features.KINDS, order="C")
        assert read.dtype == wanted.dtype and read.flags.c_contiguous and estimator.n_features_in_ == 3
        np.testing.assert_array_equal(read, wanted)
    model = PopulationGLM(regularizer_strength=1e-2).fit(pd.DataFrame(X, columns=list("abc")), Y)
    with pytest.warns(UserWarning, match="valid feature names"):
        model.predict(X)
    model.fit(X, Y)
    assert not hasattr(model, "feature_names_in_")
    with pytest.raises(ValueError, match="X has 2 features, but PopulationGLM is expecting 3 features as input"):
        model.predict(X[:, :2])
