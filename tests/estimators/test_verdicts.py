"""Verdicts on designs that invite a wrong one: converged means proved, and silence is a status."""

import warnings

import numpy as np
import pytest
from oracles import population as oracle
from scipy.special import xlogy
from sklearn.exceptions import ConvergenceWarning

from glmfit import PopulationGLM, PopulationGLMCV, Status

CLOCK = 1.7e9  # seconds: an uncentred feature, and an intercept far below -1e4


# ------------------------------------------------------------------------- silence is a status, not a number


@pytest.fixture(scope="module")
def clock():
    """Drift over a recording whose clock counts seconds since 1970, with a known offset; and a silent neuron."""
    rng = np.random.default_rng(0)
    t = CLOCK + np.arange(500)
    X, offset = np.column_stack([t, rng.normal(size=500)]), np.log(rng.uniform(0.1, 1, 500))
    y = rng.poisson(np.exp(0.004 * (t - t.mean()) + offset + 1))
    return X, np.column_stack([y, np.zeros(500)]), offset


def fits_with_large_intercepts(folder, X, Y, offset):
    def fit(**parameters):
        return PopulationGLM("exp", "UnRegularized", **parameters).fit(X, Y, offset=offset)

    yield fit()
    yield fit(solver_name="SAGA")
    yield PopulationGLM.load(fit().save(folder / "model"))
    cv = PopulationGLMCV(strengths=[1e-12, 1e-13], cv=2, inverse_link_function="exp")
    with pytest.warns(UserWarning, match="1 of 2 neurons have folds without a spike"):
        yield cv.fit(X[:, :1], Y, offset=offset)


@pytest.mark.thorough
def test_offsets_count_whatever_the_intercept(clock, tmp_path):
    X, Y, offset = clock
    for model in fits_with_large_intercepts(tmp_path, X, Y, offset):
        assert model.intercept_[0] < -1e4
        features = X[:, : model.n_features_in_]
        rate = model.predict(features, offset=offset)
        eta = features @ model.coef_[:, 0] + model.intercept_[0] + offset
        np.testing.assert_allclose(rate[:, 0], np.exp(eta), rtol=1e-5)
        assert np.all(rate[:, 1] == 0), "a neuron without spikes has rate 0, whatever the offset"
        drawn = model.simulate(features, offset=offset + np.log(100), random_state=0)
        np.testing.assert_allclose(drawn[:, 0].sum() / 100, rate[:, 0].sum(), rtol=0.05)
        assert np.all(drawn[:, 1] == 0)
        deviance = 2 * np.sum(xlogy(Y, Y / np.maximum(rate, 1e-300)) - Y + rate, axis=0)[0]
        null = Y[:, 0].sum() / np.exp(offset).sum() * np.exp(offset)
        of_null = 2 * np.sum(xlogy(Y[:, 0], Y[:, 0] / null) - Y[:, 0] + null)
        score = model.score(features, Y, offset=offset, per_neuron=True)[0]
        np.testing.assert_allclose(score, 1 - deviance / of_null, atol=1e-6)


@pytest.mark.thorough
def test_offsets_count_in_streamed_fits(clock, tmp_path):
    X, Y, offset = (np.concatenate([a] * 20) for a in clock)
    X[:, 0] = CLOCK + np.arange(len(X)) / 20
    stored = np.memmap(tmp_path / "X", np.float64, "w+", shape=X.shape)
    stored[:] = X
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # predictions are tested, not the optimum
        model = PopulationGLM("exp", max_memory=3e5, regularizer_strength=1e-9).fit(stored, Y, offset=offset)
    assert model.report_.memory_bytes is not None and model.intercept_[0] < -1e4
    rate = model.predict(stored, offset=offset)
    np.testing.assert_allclose(rate[:, 0], np.exp(X @ model.coef_[:, 0] + model.intercept_[0] + offset), rtol=1e-5)
    assert np.all(rate[:, 1] == 0)


# ------------------------------------------------------------------------- converged means proved


def nearly_the_same(rng, difference=1e-8, n_rows=300):
    """Features, two of which are nearly equal, and counts that follow their difference."""
    X, z = rng.normal(size=(n_rows, 3)), rng.normal(size=n_rows)
    Y = rng.poisson(np.exp(0.5 * z[:, None] + 1) * np.ones((1, 2)))
    return np.column_stack([X, X[:, 0] + difference * z]), Y


@pytest.mark.thorough
@pytest.mark.parametrize("solver", ["auto", "Newton", "SAGA"])
def test_a_fit_that_excludes_a_direction_is_not_converged(rng, solver):
    X, Y = nearly_the_same(rng)
    with pytest.warns(ConvergenceWarning, match="2 of 2 neurons did not converge"):
        model = PopulationGLM("exp", "UnRegularized", solver_name=solver).fit(X, Y)
    assert not model.report_.gap_is_bound.any() and not model.report_.converged.any()
    assert set(model.report_.status) <= {Status.UNPROVED, Status.MAX_EPOCHS, Status.PRECISION_FLOOR}


@pytest.mark.parametrize("n_neurons", [1, 2, 5])
def test_the_report_names_excluded_directions_for_any_number_of_neurons(rng, n_neurons):
    X, Y = nearly_the_same(rng)
    model = PopulationGLM("exp", "UnRegularized", solver_name="Newton")
    with pytest.warns(ConvergenceWarning, match="unproved"):
        report = model.fit(X, np.tile(Y[:, :1], n_neurons)).report_
    assert report.rank == 3
    assert "X varies too little along 1 of 4 directions" in str(report)


@pytest.mark.thorough
@pytest.mark.parametrize("solver", ["auto", "SAGA"])
def test_a_weak_ridge_lets_fits_with_nearly_equal_features_be_proved(rng, solver):
    X, Y = nearly_the_same(rng)
    report = PopulationGLM("exp", regularizer_strength=1e-6, solver_name=solver).fit(X, Y).report_
    assert report.converged.all() and report.gap_is_bound.all()
    best = oracle.newton("exp", X, Y, 1e-6)
    assert np.all(report.objective - best.objective <= report.target)


@pytest.fixture(scope="module")
def separable():
    """Counts that are 0 wherever one feature is not 0."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 3)), rng.poisson(1.0, 200).astype(float)
    X[:, 0] = (y == 0) & (rng.random(200) < 0.3)
    return X, y[:, None]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "parameters",
    [
        {"regularizer": "GroupLasso", "groups": [-1, 0, 0], "regularizer_strength": 1e-3},
        {"regularizer": "Lasso", "regularizer_strength": np.array([[0], [1e-3], [1e-3]])},
        {"regularizer": "Ridge", "regularizer_strength": np.array([[0], [1e-3], [1e-3]])},
        {"regularizer": "UnRegularized", "solver_name": "SAGA"},
        {"regularizer": "UnRegularized"},
    ],
    ids=lambda p: "-".join(str(v) for v in p.values() if isinstance(v, str)),
)
@pytest.mark.parametrize("max_epochs", [200, 5000])
def test_separable_data_are_recognised_for_any_penalty_and_solver(separable, parameters, max_epochs):
    with pytest.warns(ConvergenceWarning, match="1 separable"):
        report = PopulationGLM(max_epochs=max_epochs, **parameters).fit(*separable).report_
    assert report.status[0] == Status.SEPARABLE and not report.gap_is_bound.any()


@pytest.mark.parametrize("link", ["exp", pytest.param("softplus", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("mean, scale", [(5, 1e-3), (100, 1e-2), (1e4, 1.0), (1.7e9, 1.0), (1e3, 1e-3)])
@pytest.mark.parametrize(
    "parameters",
    [
        {"regularizer": "UnRegularized"},
        {"regularizer": "Lasso", "regularizer_strength": np.array([[0], [1e-2], [1e-2]])},
        {"regularizer": "GroupLasso", "groups": [-1, 0, 0], "regularizer_strength": 1e-2},
        {"regularizer": "Ridge", "regularizer_strength": np.array([[0], [1e-3], [1e-3]])},
    ],
)
def test_separable_data_are_recognised_wherever_the_feature_lies(separable, parameters, link, mean, scale):
    """A large mean hides the gradient in rounding, and with it the evidence that there is no optimum."""
    X, Y = separable[0].copy(), separable[1]
    X[:, 0] = mean + scale * X[:, 0]
    with pytest.warns(ConvergenceWarning, match="1 separable"):
        report = PopulationGLM(link, **parameters).fit(X, Y).report_
    assert report.status[0] == Status.SEPARABLE and not report.gap_is_bound.any()
    assert mean > 1e5 or report.runaway["feature"].tolist() == ["0"]


def test_a_penalty_on_every_feature_makes_separable_data_converge(separable):
    for parameters in ({"regularizer": "Lasso"}, {"regularizer": "GroupLasso", "groups": [0, 0, 1]}):
        report = PopulationGLM(regularizer_strength=1e-3, **parameters).fit(*separable).report_
        assert report.converged.all() and report.gap_is_bound.all()


def test_no_advice_leads_from_an_honest_status_to_a_false_one(rng):
    """Following the advice for an unproved fit gives a proved one, or one that reports that it is not."""
    X, Y = nearly_the_same(rng)
    model = PopulationGLM("exp", "UnRegularized")
    with pytest.warns(ConvergenceWarning, match="A ridge penalty can give the curvature a proof needs") as caught:
        model.fit(X, Y)
    assert "max_epochs" not in str(caught[0].message) and "loosen tol" not in str(caught[0].message)
